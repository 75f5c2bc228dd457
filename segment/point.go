package segment

import (
	"runtime/debug"

	"github.com/tidemark-log/tidemark/internal/mmap"
	"github.com/tidemark-log/tidemark/record"
)

// touchBytes is a batch of one record of 1 KiB and the header behind it.
const touchBytes = 1280

// Ceil returns the first index entry at or above offset: the last offset of a
// batch and where it starts. ok is false if there is none, or if lately the
// entries named other batches than the one wanted: where batches are smaller
// than the index interval, walking from the entry below is the shorter way.
func (s *Segment) Ceil(offset int64) (last, pos int64, ok bool) {
	if s.sparse.Load() > 0 {
		s.sparse.Add(-1)
		return 0, 0, false
	}
	if s.damaged.Load() {
		return 0, 0, false
	}
	return s.idx.Ceil(offset)
}

// sparseFor is how many point reads do without Ceil after it was wrong.
const sparseFor = 64

// Named is a view of the batch at pos, of which an index entry says that it ends
// with offset last, if it holds offset. The entry proves the header's offsets.
// The checksum is not checked.
func (s *Segment) Named(last, pos, offset int64) (v View, ok bool) {
	m, err := s.acquire(false)
	if err != nil {
		return View{}, false
	}
	f, ok := namedAt(m.data[:min(s.Size(), int64(len(m.data)))], pos)
	if !ok || f.Last != last || f.Base > offset {
		s.sparse.Store(sparseFor)
		s.release(m, false)
		return View{}, false
	}
	end := pos + int64(f.Size)
	return View{Bytes: m.data[pos:end:end], Base: f.Base, Next: last + 1, pos: pos, m: m}, true
}

func namedAt(data []byte, pos int64) (f Frame, ok bool) {
	var fault error
	defer mmap.Guard(data, &fault, debug.SetPanicOnFault(true))
	if pos >= int64(len(data)) {
		return f, false
	}
	Touch(data[pos:min(pos+touchBytes, int64(len(data)))])
	f, err := frameAt(data, pos, int64(len(data)))
	return f, err == nil
}

// Slice is a view of n published bytes at pos, where the caller knows a batch.
// Nothing is looked at; Base and Next are 0.
func (s *Segment) Slice(pos, n int64) (View, error) {
	m, err := s.acquire(false)
	if err != nil {
		return View{}, err
	}
	if pos+n > min(s.Size(), int64(len(m.data))) {
		s.release(m, false)
		return View{}, record.ErrTooShort
	}
	return View{Bytes: m.data[pos : pos+n : pos+n], pos: pos, m: m}, nil
}

// Fetch takes the read faults of n bytes of the view from at on in one system
// call, reading them from the disk if need be. Best effort.
func (v *View) Fetch(at, n int) error {
	return v.m.m.PopulateRead(v.pos+int64(at), int64(min(n, len(v.Bytes)-at)))
}

// Fetched is how far a map was fetched by an earlier reader; see SetFetched.
func (v *View) Fetched() int { return int(v.m.fetched.Load() - v.pos) }

// SetFetched says that everything up to byte at of the view was touched.
func (v *View) SetFetched(at int) {
	if to := v.pos + int64(at); to > v.m.fetched.Load() {
		v.m.fetched.Store(to)
	}
}
