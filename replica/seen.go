package replica

import (
	"runtime/debug"
	"sync"
	"sync/atomic"

	"github.com/tidemark-log/tidemark/internal/mmap"
	"github.com/tidemark-log/tidemark/record"
	"github.com/tidemark-log/tidemark/segment"
)

// A point read into a batch of many records would check the whole batch's
// checksum and walk its records from the first. seen remembers, for the whole
// process and in bounded memory (about 1 MiB), which large batches were verified
// since their segment was opened, their offsets and where every so-many-th of
// their records begins.
//
// It is a cache of four places per hash; the one longest unused is given up.
const (
	seenSets    = 1024
	seenWays    = 4
	seenSamples = 50
	seenMin     = 4 << 10 // bytes of a batch from which it is worth it
)

type seenBatch struct {
	segment uint64 // segment.ID, 0: free
	pos     int64
	base    int64 // first offset
	count   int32 // records, and offsets
	size    int32 // bytes
	step    int32 // records between two samples
	used    uint32
	at      [seenSamples]uint32
}

type seenSet struct {
	mu    sync.Mutex
	clock uint32
	ways  [seenWays]seenBatch
}

var seen atomic.Pointer[[seenSets]seenSet]

func seenSetOf(segment uint64, pos int64) *seenSet {
	t := seen.Load()
	if t == nil {
		seen.CompareAndSwap(nil, new([seenSets]seenSet))
		t = seen.Load()
	}
	h := (uint64(pos) + segment*0x9e3779b97f4a7c15) * 0xd6e8feb86659fd93
	return &t[h>>32%seenSets]
}

// spot is where a record lies: walk skip records from byte at of the batch.
type spot struct {
	size     int32
	at, skip int
	each     int // bytes of a record, on average
}

// spotOf finds record n of the batch, which the caller knows to be in it.
func (b *seenBatch) spotOf(n int) spot {
	i := n / int(b.step)
	return spot{size: b.size, at: int(b.at[i]), skip: n - i*int(b.step), each: int(b.size / b.count)}
}

// find returns the batch at pos of a segment if it was seen and holds offset,
// or with offset −1 in any case. s.mu is held.
func (s *seenSet) find(segment uint64, pos int64) *seenBatch {
	for i := range s.ways {
		if w := &s.ways[i]; w.segment == segment && w.pos == pos {
			s.clock++
			w.used = s.clock
			return w
		}
	}
	return nil
}

func (s *seenSet) put(b *seenBatch) {
	s.mu.Lock()
	defer s.mu.Unlock()
	oldest := &s.ways[0]
	for i := range s.ways {
		w := &s.ways[i]
		if w.segment == 0 || w.segment == b.segment && w.pos == b.pos {
			oldest = w
			break
		}
		if s.clock-w.used > s.clock-oldest.used {
			oldest = w
		}
	}
	s.clock++
	*oldest = *b
	oldest.used = s.clock
}

// getNear is Get where an index entry names the very batch: no other is touched,
// and of a batch that was seen neither header nor checksum nor many records. ok
// is false where it takes the longer way, which also finds what is wrong.
func (l *Log) getNear(offset, limit int64, buf []byte) (rec record.Record, _ []byte, ok bool) {
	list := *l.segments.Load() // before the log start
	if l.closed.Load() || offset < l.logStart.Load() || limit > l.HighWatermark() {
		return rec, buf, false
	}
	s := list[floorSegment(list, offset)]
	last, pos, ok := s.Ceil(offset)
	if !ok || last >= limit {
		return rec, buf, false
	}
	id := s.ID()
	if at, ok := seenSpot(id, pos, offset); ok {
		v, err := s.Slice(pos, int64(at.size))
		if err == nil {
			rec, buf, err = readSpot(&v, at, buf)
			v.Release()
		}
		return rec, buf, err == nil && rec.Offset == offset && s.ID() == id
	}
	v, ok := s.Named(last, pos, offset)
	if !ok {
		return rec, buf, false
	}
	rec, buf, ok, err := getFrom(&v, offset, buf)
	v.Release()
	return rec, buf, ok && err == nil && s.ID() == id
}

// seenSpot finds a record in a batch that was seen.
func seenSpot(segment uint64, pos, offset int64) (at spot, ok bool) {
	if seen.Load() == nil {
		return at, false
	}
	set := seenSetOf(segment, pos)
	set.mu.Lock()
	defer set.mu.Unlock()
	b := set.find(segment, pos)
	if b == nil || offset < b.base || offset-b.base >= int64(b.count) {
		return at, false
	}
	return b.spotOf(int(offset - b.base)), true
}

func readSpot(v *View, at spot, buf []byte) (rec record.Record, _ []byte, err error) {
	defer mmap.Guard(v.Bytes, &err, debug.SetPanicOnFault(true))
	segment.Touch(v.Bytes[at.at:min(at.at+(at.skip+1)*at.each+64, at.at+4096, len(v.Bytes))])
	if rec, err = parseNth(v.Bytes, at.at, at.skip); err == nil {
		rec, buf = own(rec, buf)
	}
	return rec, buf, err
}

// locate returns record number n of the uncompressed batch at the start of v,
// verified. Key, Value and Headers alias the map.
func locate(v *View, b record.Batch, n int) (rec record.Record, err error) {
	if len(b) < seenMin || b.Count() < 4 {
		if _, err := record.Check(b); err != nil {
			return rec, err
		}
		return parseNth(b, record.HeaderSize, n)
	}
	id := v.Segment().ID()
	set := seenSetOf(id, v.Pos())
	set.mu.Lock()
	if w := set.find(id, v.Pos()); w != nil && int(w.size) == len(b) {
		at := w.spotOf(n)
		set.mu.Unlock()
		return parseNth(b, at.at, at.skip)
	}
	set.mu.Unlock()
	w := seenBatch{segment: id, pos: v.Pos(), base: b.BaseOffset(), count: b.Count(), size: int32(len(b))}
	if err := w.fill(b); err != nil {
		return rec, err
	}
	set.put(&w)
	at := w.spotOf(n)
	return parseNth(b, at.at, at.skip)
}

// fill verifies the batch and takes the samples.
func (w *seenBatch) fill(b record.Batch) error {
	if _, err := record.Check(b); err != nil {
		return err
	}
	count := int(b.Count())
	w.step = int32((count + seenSamples - 1) / seenSamples)
	pos := record.HeaderSize
	for i, n := 0, 0; n < count; i, n = i+1, n+int(w.step) {
		if n > 0 {
			var err error
			if pos, err = record.SkipTo(b, pos, int(w.step)); err != nil {
				return err
			}
		}
		w.at[i] = uint32(pos)
	}
	return nil
}

func parseNth(b record.Batch, pos, n int) (rec record.Record, err error) {
	if n > 0 {
		if pos, err = record.SkipTo(b, pos, n); err != nil {
			return rec, err
		}
	}
	_, err = record.ParseRecordAt(b, pos, &rec, nil)
	return rec, err
}
