package segment

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"runtime/debug"
	"slices"

	"github.com/tidemark-log/tidemark/index"
	"github.com/tidemark-log/tidemark/internal/mmap"
	"github.com/tidemark-log/tidemark/internal/vfs"
	"github.com/tidemark-log/tidemark/record"
)

func be64(b []byte) uint64 { return binary.BigEndian.Uint64(b) }

// ErrCorrupt is what every CorruptError is.
var ErrCorrupt = errors.New("log is damaged")

// ErrOrder means that a batch's offsets do not follow those before it. Base
// offset and leader epoch lie outside the checksum; this check guards them.
var ErrOrder = errors.New("offsets do not follow")

// A CorruptError reports damage: bytes below the end of the log that are no
// batch. Recovery cuts a torn tail by itself; this it leaves for a person or a
// leader, files untouched.
type CorruptError struct {
	File string // name inside the log directory
	Pos  int64  // byte position of the first bad batch
	// Offset is the first offset that cannot be read, Next the first behind it
	// that can; Next is −1 where that is not known yet.
	Offset, Next int64
	Err          error // what failed: record.ErrChecksum, record.ErrTooShort, ErrOrder, ...
}

func (e *CorruptError) Error() string {
	return fmt.Sprintf("read batch at byte %d of %s, offset %d: %v", e.Pos, e.File, e.Offset, e.Err)
}

func (e *CorruptError) Unwrap() []error { return []error{ErrCorrupt, e.Err} }

// Frame is where a batch lies, by its header.
type Frame struct {
	Pos        int64 // byte position in the file
	Size       int   // bytes
	Base, Last int64 // offsets
}

// frameAt reads the header at pos of data[:size]. It checks what it can without
// the checksum.
func frameAt(data []byte, pos, size int64) (f Frame, err error) {
	if size-pos < record.HeaderSize {
		return f, record.ErrTooShort
	}
	h := data[pos : pos+record.HeaderSize]
	n := int64(int32(binary.BigEndian.Uint32(h[8:]))) + 12
	if n < record.HeaderSize || n > size-pos {
		return f, record.ErrTooShort
	}
	if h[16] != 2 {
		return f, record.ErrMagic
	}
	delta := int32(binary.BigEndian.Uint32(h[23:]))
	base := int64(be64(h))
	if delta < 0 || base < 0 || base > math.MaxInt64-int64(delta)-1 {
		return f, record.ErrInvalid
	}
	return Frame{Pos: pos, Size: int(n), Base: base, Last: base + int64(delta)}, nil
}

// FrameAt reads the header at pos of data. ok is false if there can be no batch.
func FrameAt(data []byte, pos int64) (f Frame, ok bool) {
	f, err := frameAt(data, pos, int64(len(data)))
	return f, err == nil
}

// corrupt makes the error for bad bytes at pos, where offset was expected.
func (s *Segment) corrupt(pos, offset int64, err error) *CorruptError {
	return &CorruptError{File: s.Name(), Pos: pos, Offset: offset, Next: -1, Err: err}
}

// Next reads the header at pos of data, where a batch from offset due on is
// expected that ends below end, and checks that it follows as far as can be said
// without its checksum.
func Next(data []byte, pos, due, end int64) (Frame, error) {
	f, _, err := next(data, pos, int64(len(data)), due, end)
	return f, err
}

// next reads the header at pos of data[:size], where a batch from offset due on
// is expected that ends below end. Base offsets lie outside the checksum; their
// order is what guards them. A batch that follows the one before without a gap
// has its offsets proved twice. Behind a gap, which compaction and truncation
// leave, the batch after it is looked at as well: one flipped bit would make the
// two overlap. On an error, good batches go on at offset resume or above.
func next(data []byte, pos, size, due, end int64) (f Frame, resume int64, err error) {
	f, err = frameAt(data, pos, size)
	switch {
	case err != nil || f.Base == due && f.Last < end:
		return f, due, err
	case f.Base < due || f.Last >= end:
		return f, due, ErrOrder
	}
	g, err := frameAt(data, pos+int64(f.Size), size)
	if err != nil || g.Base > f.Last || g.Base-due < f.Last-f.Base+1 {
		return f, due, nil // where f has no room before g, it is g that is wrong
	}
	if h, err := frameAt(data, g.Pos+int64(g.Size), size); err == nil {
		end = h.Base
	}
	if end-f.Last-1 < g.Last-g.Base+1 {
		return f, due, ErrOrder // nor has g room behind f
	}
	return f, f.Last + 1, ErrOrder // either
}

// walker goes from batch to batch by their headers.
type walker struct {
	data             []byte
	size, end        int64 // what may be seen
	pos, due         int64 // of the next batch
	prevPos, prevDue int64 // of the one before, −1 if there is none
	damage           []Damage
}

func (s *Segment) walkFrom(data []byte, pos int64) walker {
	pub := s.pub.Load()
	w := walker{data: data, size: min(int64(uint32(pub)), int64(len(data))), end: s.base + int64(pub>>32),
		pos: pos, due: s.base, prevPos: -1}
	if s.damaged.Load() {
		s.damageMu.Lock()
		w.damage = slices.Clone(s.damage)
		s.damageMu.Unlock()
	}
	return w
}

// next is the function next for what comes next. The length field lies outside
// the checksum too: where a batch does not follow at once, the one before is
// checked, and if need be blamed.
func (w *walker) next() (f Frame, resume int64, err error) {
	if i := damageAt(w.damage, w.pos); i >= 0 {
		return f, w.due, w.damage[i].Err // its header may look right
	}
	f, resume, err = next(w.data, w.pos, w.size, w.due, w.end)
	if w.prevPos < 0 || err == nil && f.Base == w.due {
		return f, resume, err
	}
	if _, bad := record.Check(w.data[w.prevPos:w.pos]); bad != nil {
		w.pos, w.due = w.prevPos, w.prevDue
		return f, w.due, bad
	}
	return f, resume, err
}

func (w *walker) pass(f Frame) {
	w.prevPos, w.prevDue = w.pos, w.due
	w.pos, w.due = w.pos+int64(f.Size), f.Last+1
}

func (w *walker) skip(d Damage) { w.pos, w.due, w.prevPos = d.End, d.Next, -1 }

// Walk calls fn for the header of each batch from the one at pos to the
// published end, until fn returns false. Checksums are not checked. A frame
// that cannot be or does not follow ends it with a *CorruptError.
func (s *Segment) Walk(pos int64, fn func(f Frame, b []byte) bool) error {
	return s.walk(pos, true, fn)
}

// Each is Walk past damage, such as may lie below a log start.
func (s *Segment) Each(pos int64, fn func(f Frame, b []byte) bool) error {
	return s.walk(pos, false, fn)
}

func (s *Segment) walk(pos int64, strict bool, fn func(f Frame, b []byte) bool) (err error) {
	m, err := s.acquire(true)
	if err != nil {
		return err
	}
	defer s.release(m, true)
	data := m.data
	defer mmap.Guard(data, &err, debug.SetPanicOnFault(true))
	for w := s.walkFrom(data, pos); w.pos < w.size; {
		f, resume, err := w.next()
		if err != nil {
			if strict {
				return s.corrupt(w.pos, w.due, err)
			}
			d := s.locate(data[:w.size], w.pos, w.due, resume, err)
			if d.Next < 0 {
				return nil
			}
			w.skip(d)
			continue
		}
		if !fn(f, data[f.Pos:f.Pos+int64(f.Size)]) {
			return nil
		}
		w.pass(f)
	}
	return nil
}

// find returns the frame of the first batch that ends at or above offset. ok is
// false if there is none. A *CorruptError says that offset lies in damage.
func (s *Segment) find(data []byte, offset int64) (f Frame, ok bool, err error) {
	var w walker
	err = errIndex
	if eo, pos := s.idx.Lookup(offset); pos > 0 && eo <= offset {
		w = s.walkFrom(data, pos)
		if pos < w.size { // else the index lies
			Touch(data[pos:min(pos+touchBytes, w.size)])
		}
		f, ok, err = s.findFrom(&w, offset, eo)
	}
	if err == errIndex {
		w = s.walkFrom(data, 0)
		f, ok, err = s.findFrom(&w, offset, noEntry)
	}
	if !ok && err == nil && offset < w.end && s.lost(w.size, w.due) {
		c := s.corrupt(w.size, offset, record.ErrTooShort)
		c.Next = w.end
		return f, false, c
	}
	return f, ok, err
}

// lost reports whether the indexes of a sealed segment know of batches behind
// the last one, which ends at byte size and offset due: somebody cut the file.
func (s *Segment) lost(size, due int64) bool {
	if !s.sealed.Load() {
		return false
	}
	if offset, pos, ok := s.idx.Last(); ok {
		return offset >= due && pos >= size
	}
	_, offset, ok := s.tix.Last()
	return ok && offset >= due
}

// errIndex means that an index entry does not fit the log. Index files have no
// checksum: an entry is believed once the batch it names is there.
var errIndex = errors.New("index entry does not fit")

const noEntry = -1

// findFrom is find from where w stands. entry is the last offset that the index
// says of the batch there, or of one of those that follow it without a gap
// (Kafka indexes requests of several); noEntry at position 0.
func (s *Segment) findFrom(w *walker, offset, entry int64) (f Frame, ok bool, err error) {
	for w.pos < w.size {
		f, resume, err := w.next()
		if entry != noEntry {
			if err != nil || f.Last > entry {
				return f, false, errIndex
			}
			if f.Last == entry {
				entry = noEntry
			}
		}
		switch {
		case err != nil:
			d := s.locate(w.data[:w.size], w.pos, w.due, resume, err)
			if offset < d.Next || d.Next < 0 {
				return f, false, &CorruptError{File: s.Name(), Pos: d.Pos, Offset: max(offset, d.From), Next: d.Next, Err: d.Err}
			}
			w.skip(d)
		case f.Last >= offset:
			return f, true, nil
		default:
			w.pass(f)
		}
	}
	if entry != noEntry {
		return f, false, errIndex
	}
	return f, false, nil
}

// locate finds where damage at pos, where offset due was expected, ends: good
// batches go on at offset resume or above. The answer is remembered.
func (s *Segment) locate(data []byte, pos, due, resume int64, why error) Damage {
	s.damageMu.Lock()
	defer s.damageMu.Unlock()
	at := damageAt(s.damage, pos)
	if at >= 0 && (s.damage[at].Next >= 0 || s.damage[at].End == int64(len(data))) {
		return s.damage[at]
	}
	d := s.search(data, pos, resume)
	d.From, d.Err = due, why
	if at < 0 {
		s.damage = append(s.damage, d)
		s.damaged.Store(true)
	} else {
		s.damage[at] = d // the log has grown since
	}
	return d
}

func damageAt(damage []Damage, pos int64) int {
	return slices.IndexFunc(damage, func(d Damage) bool { return d.Pos == pos })
}

// forgetDamage is for a cut.
func (s *Segment) forgetDamage() {
	s.damageMu.Lock()
	defer s.damageMu.Unlock()
	s.damage = nil
	s.damaged.Store(false)
}

// search is Resync with the help of the index. Where batches begin behind bad
// bytes is safe to say only if they lead exactly to a place known otherwise, an
// entry of the index or the end: the bytes of a record may be batches too.
func (s *Segment) search(data []byte, pos, due int64) Damage {
	size := int64(len(data))
	r := newResync(data, pos, due, s.base, s.End())
	if g, ok := r.behind(); ok {
		return r.damage(g)
	}
	for from := pos; from < size; {
		anchor := size
		entry, at, ok := s.idx.UpperBoundPos(from + 1)
		if ok && at > from && at < size {
			anchor = at
		}
		for p := from + 1; p+record.HeaderSize <= anchor && r.budget > 0; p++ {
			if mayBegin(data, p) {
				if g, ok := r.leads(p, anchor); ok {
					return r.damage(g)
				}
			}
		}
		if anchor == size {
			break
		}
		if g, ok := r.good(anchor); ok && (g.Last == entry || r.trusted(g)) {
			return r.damage(g)
		}
		from = anchor
	}
	return Resync(data, pos, due, s.base, s.End())
}

// Resync looks behind bad bytes at pos for the next good batch: checksum right,
// offsets at or above due, representable over base and below end, which is where
// the batches of data end, −1 if nobody knows. Next of the answer is −1 and End
// is len(data) if there is none whose offsets are known to be right; Follows
// tells whether there are whole batches at all.
func Resync(data []byte, pos, due, base, end int64) Damage {
	r := newResync(data, pos, due, base, end)
	if g, ok := r.behind(); ok {
		return r.damage(g)
	}
	for p := pos + 1; p+record.HeaderSize <= int64(len(data)) && r.budget > 0; p++ {
		if mayBegin(data, p) {
			if g, ok := r.good(p); ok && r.trusted(g) {
				return r.damage(g)
			}
		}
	}
	return Damage{Pos: pos, From: due, Next: -1, End: int64(len(data)), Follows: r.seen}
}

// resync is one search behind bad bytes.
type resync struct {
	data      []byte
	pos, due  int64
	base, end int64
	floor     int64 // from it on offsets need no proof
	budget    int
	seen      bool // a whole batch
}

// newResync looks at what is damaged. Where only offsets are wrong, what follows
// is sound; where the header may be believed, so is what begins behind its
// offsets. Of anything else the base offset, which no checksum covers, may have
// been hit as well.
func newResync(data []byte, pos, due, base, end int64) *resync {
	r := &resync{data: data, pos: pos, due: due, base: base, end: end, floor: math.MaxInt64, budget: searchBudget(data)}
	if end < 0 {
		r.end = math.MaxInt64
	}
	if _, err := record.Check(data[pos:]); err == nil {
		r.floor = due
	} else if f, err := frameAt(data, pos, int64(len(data))); err == nil {
		r.floor = f.Last + 1
	}
	return r
}

func (r *resync) damage(next Frame) Damage {
	return Damage{Pos: r.pos, End: next.Pos, From: r.due, Next: next.Base, Follows: true}
}

// trusted reports whether the offsets of a good batch need no proof or have one:
// the next batch goes on where it ends, or everything ends there.
func (r *resync) trusted(g Frame) bool {
	if g.Base >= r.floor || g.Last+1 == r.end {
		return true
	}
	h, err := frameAt(r.data, g.Pos+int64(g.Size), int64(len(r.data)))
	return err == nil && h.Base == g.Last+1
}

// behind returns the batch that follows at once, where the damaged one has the
// length it says.
func (r *resync) behind() (g Frame, ok bool) {
	n, ok := record.PeekSize(r.data[r.pos:])
	if !ok {
		return g, false
	}
	g, ok = r.good(r.pos + int64(n))
	return g, ok && r.trusted(g)
}

// good reports whether a whole batch lies at pos.
func (r *resync) good(pos int64) (Frame, bool) {
	if pos > int64(len(r.data)) {
		return Frame{}, false
	}
	f, err := frameAt(r.data, pos, int64(len(r.data)))
	if err != nil || f.Base < r.due || f.Last >= r.end || f.Last-r.base > MaxRelative {
		return f, false
	}
	r.budget -= f.Size
	_, err = record.Check(r.data[pos : pos+int64(f.Size)])
	r.seen = r.seen || err == nil
	return f, err == nil
}

// leads reports whether batches follow one another from pos to anchor, the first
// of them good and trusted.
func (r *resync) leads(pos, anchor int64) (first Frame, ok bool) {
	due := r.due
	for p := pos; p < anchor; {
		f, err := frameAt(r.data, p, anchor)
		r.budget -= record.HeaderSize
		if err != nil || f.Base < due {
			return first, false
		}
		p += int64(f.Size)
		due = f.Last + 1
	}
	first, ok = r.good(pos)
	return first, ok && r.trusted(first)
}

// searchBudget bounds how many bytes a search hashes, and headers it walks, for
// a log whose records were made to look like batches at every byte.
func searchBudget(data []byte) int { return 1<<20 + 8*len(data) }

// mayBegin tells most places where no batch begins, cheaply.
func mayBegin(data []byte, pos int64) bool {
	return data[pos] == 0 && data[pos+16] == record.Magic
}

// View is a run of whole batches in the mapped file. It is zero-copy: its bytes
// are valid until Release, below the high watermark they never change, and an
// I/O error of the disk under them kills the process, as with any mapped file.
type View struct {
	// Bytes are whole batches, back to back, but for damage that Batch finds.
	// Read only.
	Bytes []byte
	// Base is the base offset of the first batch, Next the offset behind the last.
	Base, Next int64

	m     *mapping
	pos   int64
	above bool
}

// Release ends the view. The zero View may be released.
func (v *View) Release() {
	if v.m != nil {
		v.m.seg.release(v.m, v.above)
		*v = View{}
	}
}

// Batch returns the batch at byte at of the view once its checksum holds and its
// offsets follow. due is the offset behind the batch before it, v.Base for the
// first. A page that is gone is an error here, as all errors a *CorruptError.
func (v *View) Batch(at int, due int64) (record.Batch, error) {
	b, err := v.check(v.Bytes, at, due)
	if err != nil {
		return nil, v.Corrupt(at, due, err)
	}
	return b, nil
}

// CheckCopy checks p, a copy of the view's bytes, as Batch does each batch of
// it. It returns how many bytes are good; what is wrong behind them is err,
// which is nil if something is good.
func (v *View) CheckCopy(p []byte) (good int, err error) {
	for due := v.Base; good < len(p); {
		b, err := v.check(p, good, due)
		if err != nil && good == 0 {
			return 0, v.Corrupt(0, due, err)
		}
		if err != nil {
			break
		}
		good += len(b)
		due = b.NextOffset()
	}
	return good, nil
}

func (v *View) check(p []byte, at int, due int64) (b record.Batch, err error) {
	defer mmap.Guard(p, &err, debug.SetPanicOnFault(true))
	if b, err = record.Check(p[at:]); err != nil {
		return nil, err
	}
	base, last := b.BaseOffset(), b.LastOffset()
	if base == due && last < v.Next {
		return b, nil
	}
	if _, _, err := next(p, int64(at), int64(len(p)), due, v.Next); err != nil {
		return nil, err
	}
	return b, nil
}

// Corrupt makes the error for the batch at byte at of the view, where offset due
// was expected. What Batch does not let pass is remembered: the segment's reads
// go around it from now on.
func (v *View) Corrupt(at int, due int64, err error) *CorruptError {
	s := v.m.seg
	c := s.corrupt(v.pos+int64(at), due, err)
	if b, bad := v.check(v.Bytes, at, due); bad == nil {
		c.Offset, c.Next = b.BaseOffset(), b.NextOffset()
		return c
	}
	var fault error
	func() {
		defer mmap.Guard(v.m.data, &fault, debug.SetPanicOnFault(true))
		w := s.walkFrom(v.m.data, c.Pos)
		data := w.data[:max(w.size, v.pos+int64(len(v.Bytes)))]
		_, resume, bad := next(data, c.Pos, int64(len(data)), due, w.end)
		if bad == nil {
			resume = due
		}
		c.Next = s.locate(data, c.Pos, due, resume, err).Next
	}()
	return c
}

// Segment and Pos tell where the view's first byte lies.
func (v *View) Segment() *Segment { return v.m.seg }
func (v *View) Pos() int64        { return v.pos }

// View returns whole batches from the one that holds offset, or the first
// behind it, up to those that end below limit, at most maxBytes of them but
// always the first. ok is false if there is none. No checksum is checked but
// that of the first batch if verify is set; above says that limit is beyond the
// high watermark.
func (s *Segment) View(offset, limit int64, maxBytes int, verify, above bool) (v View, ok bool, err error) {
	for {
		id := s.id.Load()
		v, ok, err = s.view(offset, limit, maxBytes, above)
		if ok && verify {
			if _, err = v.Batch(0, v.Base); err != nil {
				v.Release()
				ok = false
			}
		}
		switch {
		case err == nil:
			return v, ok, nil
		case id != s.id.Load(): // a cut above limit came in between, and the look behind the last batch met it
			continue
		case Beside(err, offset):
			continue
		}
		if fault, is := errors.AsType[*mmap.FaultError](err); is && !errors.Is(err, ErrCorrupt) {
			err = s.corrupt(fault.Pos, offset, err)
		}
		return v, ok, err
	}
}

// Beside reports whether err is damage that ends at or before offset. A batch
// that cannot be read may say of itself that it goes further than it does; who
// asks again is led around it.
func Beside(err error, offset int64) bool {
	c, ok := errors.AsType[*CorruptError](err)
	return ok && c.Next >= 0 && c.Next <= offset
}

func (s *Segment) view(offset, limit int64, maxBytes int, above bool) (v View, ok bool, err error) {
	m, err := s.acquire(above)
	if err != nil {
		return v, false, err
	}
	data := m.data
	defer func() {
		if v.m == nil {
			s.release(m, above)
		}
	}()
	defer mmap.Guard(data, &err, debug.SetPanicOnFault(true))
	w := s.walkFrom(data, 0)
	size, end := w.size, w.end
	f, found, err := s.find(data, offset)
	if err != nil || !found || f.Last >= limit {
		return v, false, err
	}
	stop, last := f.Pos+int64(f.Size), f.Last
	if limit >= end && f.Pos+int64(maxBytes) >= size {
		stop, last = size, end-1
	} else {
		for stop < size && last+1 < limit && stop-f.Pos < int64(maxBytes) {
			g, _, err := next(data, stop, size, last+1, limit)
			if err != nil || stop+int64(g.Size)-f.Pos > int64(maxBytes) {
				break // damage is for the read that starts there
			}
			stop += int64(g.Size)
			last = g.Last
		}
	}
	return View{Bytes: data[f.Pos:stop:stop], Base: f.Base, Next: last + 1, m: m, pos: f.Pos, above: above}, true, nil
}

// Position returns the byte position of the first batch that ends at or above
// offset, and that batch's base; size and end of the segment if there is none.
func (s *Segment) Position(offset int64) (pos, base int64, err error) {
	m, err := s.acquire(true)
	if err != nil {
		return 0, 0, err
	}
	defer s.release(m, true)
	defer mmap.Guard(m.data, &err, debug.SetPanicOnFault(true))
	f, ok, err := s.find(m.data, offset)
	if err != nil {
		return 0, 0, err
	}
	if !ok {
		return s.Size(), s.End(), nil
	}
	return f.Pos, f.Base, nil
}

// FirstSince returns the frame of the first batch at or behind offset from
// whose largest timestamp is at least ts (log-format §8.3). It passes over
// damage.
func (s *Segment) FirstSince(ts, from int64) (f Frame, ok bool, err error) {
	var pos int64
	if have, at := s.tix.Lookup(ts); have >= 0 {
		if g, err := s.withTimestamp(have, at); err == nil {
			pos = g.Pos
		} else if !errors.Is(err, errIndex) {
			return f, false, err
		}
	}
	err = s.Each(pos, func(g Frame, b []byte) bool {
		if g.Last >= from && maxTimestamp(b) >= ts {
			f, ok = g, true
		}
		return !ok
	})
	return f, ok, err
}

// withTimestamp returns the batch that holds offset at, if its largest timestamp
// is what the time index says. errIndex if not: damaged, not published yet, or
// the index is wrong.
func (s *Segment) withTimestamp(ts, at int64) (f Frame, err error) {
	m, err := s.acquire(true)
	if err != nil {
		return f, err
	}
	defer s.release(m, true)
	defer mmap.Guard(m.data, &err, debug.SetPanicOnFault(true))
	f, ok, err := s.find(m.data, at)
	if err != nil || !ok || maxTimestamp(m.data[f.Pos:]) != ts {
		return f, errIndex
	}
	return f, nil
}

// maxTimestamp reads the largest timestamp from the header of a batch.
func maxTimestamp(b []byte) int64 { return record.Batch(b).MaxTimestamp() }

// Bytes calls fn with the mapped bytes of the whole file, published or not;
// recovery and verification read through it. A fault in fn is an error.
func (s *Segment) Bytes(fn func(data []byte) error) (err error) {
	if s.allocated.Load() == 0 {
		return fn(nil) // not worth a map
	}
	m, err := s.acquire(true)
	if err != nil {
		return err
	}
	defer s.release(m, true)
	defer mmap.Guard(m.data, &err, debug.SetPanicOnFault(true))
	return fn(m.data[:min(s.allocated.Load(), int64(len(m.data)))])
}

// Written calls fn for each run of the file's bytes from pos on that may hold
// anything but zeros, by what the file system knows without reading them, until fn
// returns false.
func (s *Segment) Written(pos int64, fn func(from, to int64) bool) error {
	f, err := s.o.FS.Open(s.path(".log"), vfs.ReadOnly)
	if err != nil {
		return err
	}
	defer f.Close()
	for {
		from, to, err := f.NextData(pos)
		if err != nil || from == to {
			return err
		}
		if !fn(from, to) {
			return nil
		}
		pos = to
	}
}

// Indexes gives recovery access to the indexes.
func (s *Segment) Indexes() (*index.Offset, *index.Time) { return s.idx, s.tix }
