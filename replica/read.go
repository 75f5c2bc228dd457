package replica

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"runtime/debug"
	"slices"
	"sort"

	"github.com/tidemark-log/tidemark/internal/mmap"
	"github.com/tidemark-log/tidemark/record"
	"github.com/tidemark-log/tidemark/segment"
)

// View returns whole batches from the one that holds offset, or the first
// behind it, that end at or below limit (exclusive; for a consumer the high
// watermark): at most maxBytes of them but always the first, and never across a
// segment. At limit, or where nothing lies between offset and limit, it returns
// an empty view. It is zero-copy: see segment.View; release it. The checksum of
// the first batch is checked, those of the rest are for who uses them.
//
// Errors: ErrOutOfRange if offset is below LogStartOffset or above limit or the
// end, ErrClosed, *CorruptError.
func (l *Log) View(offset, limit int64, maxBytes int) (View, error) {
	return l.view(offset, limit, maxBytes, true)
}

// ViewUnchecked is View without the look at a checksum.
func (l *Log) ViewUnchecked(offset, limit int64, maxBytes int) (View, error) {
	return l.view(offset, limit, maxBytes, false)
}

func (l *Log) view(offset, limit int64, maxBytes int, verify bool) (View, error) {
	if l.closed.Load() {
		return View{}, ErrClosed
	}
	segments := l.segments.Load() // before the log start, which is raised before any of them goes
	end := l.LogEndOffset()
	if offset < l.logStart.Load() || offset > end || offset > limit {
		return View{}, fmt.Errorf("read at offset %d: %w: %d to %d", offset, ErrOutOfRange, l.logStart.Load(), min(limit, end))
	}
	if limit = min(limit, end); offset == limit {
		return View{}, nil
	}
	above := limit > l.HighWatermark()
	list := *segments
	for i := floorSegment(list, offset); i < len(list) && list[i].Base() < limit; i++ {
		v, ok, err := list[i].View(offset, limit, maxBytes, verify, above)
		if errors.Is(err, segment.ErrClosed) && l.segments.Load() != segments {
			return l.view(offset, limit, maxBytes, verify) // a truncation put others in their place, or they were deleted
		}
		if ok || err != nil {
			return v, l.closedErr(err)
		}
	}
	return View{}, nil
}

// closedErr says what it means for a reader that a segment is closed: the log
// is, or a truncation took the segment away. A log opened read-only misses the
// file of a segment that its writer deleted.
func (l *Log) closedErr(err error) error {
	if l.o.ReadOnly && errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("read: %w: deleted meanwhile", ErrOutOfRange)
	}
	if !errors.Is(err, segment.ErrClosed) {
		return err
	}
	if l.closed.Load() {
		return ErrClosed
	}
	return fmt.Errorf("read: %w: cut meanwhile", ErrOutOfRange)
}

// floorSegment is the index of the last segment whose base is ≤ offset, 0 if
// there is none.
func floorSegment(list []*segment.Segment, offset int64) int {
	if n := len(list) - 1; list[n].Base() <= offset {
		return n
	}
	return max(sort.Search(len(list), func(i int) bool { return list[i].Base() > offset })-1, 0)
}

// Read appends to dst whole batches from the one holding offset up to limit
// (exclusive; for a consumer the high watermark), at most maxBytes of them but
// always the first. At limit it returns dst and no error. Every checksum is
// checked in the copy: what it returns is what was written.
//
// Errors: ErrOutOfRange if offset is below LogStartOffset or above limit,
// ErrClosed after Close, *CorruptError if a checksum fails or the file was cut
// by somebody else. On error dst is returned unchanged.
func (l *Log) Read(dst []byte, offset, limit int64, maxBytes int) ([]byte, error) {
	for {
		out, err := l.read(dst, offset, limit, maxBytes)
		if !segment.Beside(err, offset) {
			return out, err
		}
	}
}

func (l *Log) read(dst []byte, offset, limit int64, maxBytes int) ([]byte, error) {
	v, err := l.view(offset, limit, maxBytes, false)
	if err != nil || v.Bytes == nil {
		return dst, err
	}
	defer v.Release()
	n := len(dst)
	out := slices.Grow(dst, len(v.Bytes))[:n+len(v.Bytes)]
	if err := copyOut(out[n:], v.Bytes); err != nil {
		return dst, v.Corrupt(0, v.Base, err)
	}
	good, err := v.CheckCopy(out[n:])
	return out[:n+good], err
}

func copyOut(dst, src []byte) (err error) {
	defer mmap.Guard(src, &err, debug.SetPanicOnFault(true))
	copy(dst, src)
	return nil
}

// Get reads the record at offset, which must be below limit, or the first one
// behind it where offset lies in a gap. Key, Value and Headers alias buf, which
// is grown if it is too small and returned for reuse. ok is false if there is
// no record at or behind offset below limit.
//
// Errors: those of Read.
func (l *Log) Get(offset, limit int64, buf []byte) (rec record.Record, _ []byte, ok bool, err error) {
	if rec, buf, ok = l.getNear(offset, limit, buf); ok {
		return rec, buf, true, nil
	}
	rec = record.Record{}
	for {
		v, err := l.view(offset, limit, 0, false)
		if err != nil || v.Bytes == nil {
			return rec, buf, false, err
		}
		next := v.Next
		rec, buf, ok, err = getFrom(&v, offset, buf)
		if fault, is := errors.AsType[*mmap.FaultError](err); is {
			err = v.Corrupt(0, v.Base, fault)
		}
		v.Release()
		if segment.Beside(err, offset) {
			continue
		}
		if ok || err != nil {
			return rec, buf, ok, err
		}
		offset = next // a batch emptied by compaction, or its tail
	}
}

func getFrom(v *View, offset int64, buf []byte) (rec record.Record, _ []byte, ok bool, err error) {
	defer mmap.Guard(v.Bytes, &err, debug.SetPanicOnFault(true))
	b := record.Batch(v.Bytes)
	if b.Codec() == record.None && b.Count() > 0 && int64(b.LastOffsetDelta()) == int64(b.Count())-1 {
		at := int(max(offset-v.Base, 0))
		rec, err = locate(v, b, at)
		if err != nil {
			return record.Record{}, buf, false, v.Corrupt(0, v.Base, err)
		}
		if rec.Offset == max(offset, v.Base) {
			rec, buf = own(rec, buf)
			return rec, buf, true, nil
		}
	}
	if _, err := record.Check(b); err != nil {
		return rec, buf, false, v.Corrupt(0, v.Base, err)
	}
	for r, err := range b.Records() {
		if err != nil {
			return record.Record{}, buf, false, v.Corrupt(0, v.Base, err)
		}
		if r.Offset >= offset {
			rec, buf = own(r, buf)
			return rec, buf, true, nil
		}
	}
	return record.Record{}, buf, false, nil
}

// own copies what a record refers to into buf.
func own(r record.Record, buf []byte) (record.Record, []byte) {
	n := len(r.Key) + len(r.Value)
	for _, h := range r.Headers {
		n += len(h.Key) + len(h.Value)
	}
	if cap(buf) < n {
		buf = make([]byte, n)
	}
	at := buf[:0]
	put := func(b []byte) []byte {
		if b == nil {
			return nil
		}
		from := len(at)
		at = append(at, b...)
		return at[from:len(at):len(at)]
	}
	r.Key, r.Value = put(r.Key), put(r.Value)
	if r.Headers != nil {
		hs := make([]record.Header, len(r.Headers))
		for i, h := range r.Headers {
			hs[i] = record.Header{Key: put(h.Key), Value: put(h.Value)}
		}
		r.Headers = hs
	}
	return r, buf
}

// OffsetForTime returns the first record in the log, not in time, whose
// timestamp is at least ts (ms) and its timestamp; ok is false if there is none
// below limit (log-format §8.3).
func (l *Log) OffsetForTime(ts, limit int64) (offset, timestamp int64, ok bool, err error) {
	for {
		if l.closed.Load() {
			return 0, 0, false, ErrClosed
		}
		segments := l.segments.Load()
		offset, timestamp, ok, err = l.offsetForTime(*segments, ts, limit)
		if err == nil || l.segments.Load() == segments {
			return offset, timestamp, ok, err
		}
		if !errors.Is(err, ErrOutOfRange) && !errors.Is(err, ErrClosed) {
			return offset, timestamp, ok, err
		}
		// Segments were deleted meanwhile: the answer may lie in those that are left.
	}
}

func (l *Log) offsetForTime(list []*segment.Segment, ts, limit int64) (offset, timestamp int64, ok bool, err error) {
	start := l.LogStartOffset()
	limit = min(limit, l.LogEndOffset())
	for _, s := range list {
		if s.End() <= start || s.Size() == 0 {
			continue
		}
		if s.Base() >= limit {
			break
		}
		if largest, err := s.LargestTimestamp(); err != nil {
			return 0, 0, false, l.closedErr(err)
		} else if largest < ts {
			continue
		}
		for from := start; ; {
			f, found, err := s.FirstSince(ts, from)
			if err != nil {
				return 0, 0, false, l.closedErr(err)
			}
			if !found || f.Base >= limit {
				break
			}
			if offset, timestamp, ok, err = l.firstInBatch(f.Base, ts, max(start, f.Base), limit); ok || err != nil {
				return offset, timestamp, ok, err
			}
			from = f.Last + 1
		}
	}
	return 0, 0, false, nil
}

// firstInBatch looks into the batch that begins at base, which may lie below
// start.
func (l *Log) firstInBatch(base, ts, start, limit int64) (offset, timestamp int64, ok bool, err error) {
	b, err := l.Read(nil, max(base, start), math.MaxInt64, 0)
	if err != nil || len(b) == 0 {
		return 0, 0, false, err
	}
	for r, err := range record.Batch(b).Records() {
		if err != nil {
			return 0, 0, false, err
		}
		if r.Timestamp >= ts && r.Offset >= start && r.Offset < limit {
			return r.Offset, r.Timestamp, true, nil
		}
	}
	return 0, 0, false, nil
}

// Verify reads every batch of [from, to) and reports each that is damaged, in
// order, until fn returns false: checksums, order of offsets and leader epochs
// against the epoch history. Damage that ends the log comes last, whatever to
// is. It reads the disk as fast as it can and changes nothing.
func (l *Log) Verify(from, to int64, fn func(*CorruptError) bool) error {
	if l.closed.Load() {
		return ErrClosed
	}
	for offset := max(from, l.LogStartOffset()); offset < min(to, l.LogEndOffset()); {
		next, bad, err := l.verifyNext(offset, to)
		if err != nil {
			return err
		}
		if bad != nil && !fn(bad) {
			return nil
		}
		if next <= offset {
			break
		}
		offset = next
	}
	if d := l.Damage(); d != nil && d.Offset >= l.LogEndOffset() {
		fn(d)
	}
	return nil
}

// verifyNext checks one view's worth of batches.
func (l *Log) verifyNext(offset, to int64) (next int64, bad *CorruptError, err error) {
	v, err := l.view(offset, to, 4<<20, false)
	if errors.As(err, &bad) {
		return l.Behind(bad), bad, nil
	}
	if err != nil || v.Bytes == nil {
		return 0, nil, err
	}
	defer v.Release()
	due := v.Base
	for at := 0; at < len(v.Bytes); {
		b, err := v.Batch(at, due)
		if errors.As(err, &bad) {
			return l.Behind(bad), bad, nil
		}
		if got, want := b.LeaderEpoch(), l.epochs.at(max(b.BaseOffset(), l.LogStartOffset())); got != want && got != record.NoLeaderEpoch {
			bad = v.Corrupt(at, due, fmt.Errorf("%w: leader epoch %d, the history says %d", ErrOrder, got, want))
			return bad.Next, bad, nil
		}
		at += len(b)
		due = b.NextOffset()
	}
	return due, nil, nil // not v.Next: is what lies between a gap, or lost?
}

// Behind is the first offset worth reading after damage.
func (l *Log) Behind(e *CorruptError) int64 {
	if e.Next > e.Offset {
		return e.Next
	}
	for _, s := range *l.segments.Load() {
		if s.Base() > e.Offset {
			return s.Base()
		}
	}
	return math.MaxInt64
}

// verifyRange checks [from, to) and returns the first damage.
func (l *Log) verifyRange(from, to int64) error {
	for offset := from; offset < to; {
		v, err := l.trueView(offset, to)
		if err != nil || v.Bytes == nil {
			return err
		}
		for at, due := 0, v.Base; at < len(v.Bytes) && err == nil; {
			var b record.Batch
			if b, err = v.Batch(at, due); err == nil {
				at += len(b)
				due = b.NextOffset()
			}
		}
		offset = v.Next
		v.Release()
		if err != nil {
			return err
		}
	}
	return nil
}

// trueView is a view that may lie in the held tail.
func (l *Log) trueView(offset, to int64) (View, error) {
	list := *l.segments.Load()
	for i := floorSegment(list, offset); i < len(list) && list[i].Base() < to; i++ {
		if v, ok, err := list[i].View(offset, to, 4<<20, false, true); ok || err != nil {
			return v, err
		}
	}
	return View{}, nil
}
