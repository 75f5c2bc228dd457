package index

import (
	"encoding/binary"
	"fmt"
	"math"
	"runtime/debug"

	"github.com/tidemark-log/tidemark/internal/mmap"
	"github.com/tidemark-log/tidemark/internal/vfs"
)

// TimeEntrySize is the number of bytes of a time index entry.
const TimeEntrySize = 12

// NoTimestamp is the timestamp of a record without one.
const NoTimestamp int64 = -1

// Time is the time index of a segment: sparse entries (ts, offset), where no
// record at or below offset has a timestamp above ts, in milliseconds since
// 1970. Kafka writes the last offset of the earliest batch that holds ts;
// older brokers wrote its first.
type Time struct{ file }

var timeLayout = layout{TimeEntrySize, timeRel, timeSane, timeFault, timesSane}

// OpenTime opens the time index of a segment, as [OpenOffset] does its offset
// index. The last of Options.MaxEntries is held back for AppendFinal.
func OpenTime(fs vfs.FS, name string, base int64, o Options) (*Time, error) {
	x := new(Time)
	if err := x.open(fs, name, base, o, &timeLayout); err != nil {
		return nil, err
	}
	return x, nil
}

func entryTs(b []byte, i int) int64 {
	return int64(binary.BigEndian.Uint64(b[i*TimeEntrySize:]))
}

func timeRel(b []byte, i int) int64 {
	return int64(int32(binary.BigEndian.Uint32(b[i*TimeEntrySize+8:])))
}

func timeSane(b []byte, i int) bool {
	ts, rel := entryTs(b, i), timeRel(b, i)
	if i == 0 {
		return ts > NoTimestamp && rel >= 0
	}
	return ts > max(entryTs(b, i-1), NoTimestamp) && rel >= max(timeRel(b, i-1), 0)
}

func timesSane(b []byte, n int) bool {
	ts, rel := NoTimestamp, int64(0)
	for i := range n {
		t, r := entryTs(b, i), timeRel(b, i)
		if t <= ts || r < rel {
			return false
		}
		ts, rel = t, r
	}
	return true
}

func timeFault(b []byte, i int) (found, want string) {
	prevTs, prevRel := NoTimestamp, int64(0)
	if i > 0 {
		prevTs, prevRel = max(entryTs(b, i-1), NoTimestamp), max(timeRel(b, i-1), 0)
	}
	if ts := entryTs(b, i); ts <= prevTs {
		return fmt.Sprintf("timestamp %d", ts), fmt.Sprintf("above %d", prevTs)
	}
	return fmt.Sprintf("relative offset %d", timeRel(b, i)), fmt.Sprintf("at least %d", prevRel)
}

// Append adds an entry: ts is the largest timestamp of the segment so far and
// offset the one recorded with it. A timestamp equal to the last entry's, and
// NoTimestamp in an empty index, are ignored without error (log-format §3.3).
// System calls and errors are those of [Offset.Append]; ErrOrder means that ts
// or offset is below the last entry's, and ErrFull comes one entry earlier.
func (x *Time) Append(ts, offset int64) error { return x.appendUpTo(ts, offset, 1) }

// AppendFinal is Append for the last entry of a segment that rolls or closes:
// it may take the entry that Append leaves free.
func (x *Time) AppendFinal(ts, offset int64) error { return x.appendUpTo(ts, offset, 0) }

func (x *Time) appendUpTo(ts, offset int64, spare int) error {
	for {
		x.rlock() // a repeated last entry is ignored even where no room is left
		ok, err := x.append(ts, offset, spare)
		x.mu.RUnlock()
		if ok || err != nil {
			return x.explain(err)
		}
		if err := x.grow(); err != nil {
			return err
		}
	}
}

// append stores an entry if there is room. x.mu is held.
func (x *Time) append(ts, offset int64, spare int) (ok bool, err error) {
	n := int(x.n.Load())
	if n == 0 && ts <= NoTimestamp {
		return true, nil
	}
	if x.b == nil {
		return false, nil
	}
	defer mmap.Guard(x.b, &err, debug.SetPanicOnFault(true))
	rel := offset - x.base
	if n > 0 {
		lastTs, lastRel := entryTs(x.b, n-1), timeRel(x.b, n-1)
		switch {
		case offset < x.base+lastRel || ts < lastTs:
			return false, fmt.Errorf("append timestamp %d at offset %d to index %s, last %d at %d: %w",
				ts, offset, x.name, lastTs, x.base+lastRel, ErrOrder)
		case ts == lastTs:
			return true, nil
		}
	}
	switch {
	case x.base < 0 || offset < x.base || rel > math.MaxInt32:
		return false, fmt.Errorf("append timestamp %d at offset %d to index %s of base %d: %w", ts, offset, x.name, x.base, ErrRange)
	case n >= x.opt.MaxEntries-spare:
		return false, fmt.Errorf("append timestamp %d at offset %d to index %s of %d entries: %w", ts, offset, x.name, n, ErrFull)
	case n >= x.room:
		return false, nil
	}
	// Twelve bytes take two stores, and a process may be killed between them.
	// With the timestamp first, what that leaves is (ts, base): out of order,
	// and dropped by the next Load, or as true as the whole entry.
	e := x.b[n*TimeEntrySize:][:TimeEntrySize]
	binary.BigEndian.PutUint64(e, uint64(ts))
	binary.BigEndian.PutUint32(e[8:], uint32(rel))
	x.publish(n)
	return true, nil
}

// Lookup returns the last entry with a timestamp at or below ts, or
// (NoTimestamp, base) if there is none: the first record with a timestamp
// above that of the entry lies above its offset. So it answers too if the file
// cannot be mapped; Load and Err say why. It does not allocate.
func (x *Time) Lookup(ts int64) (entryTs, offset int64) {
	n := x.rlock()
	entryTs, offset, err := x.floor(n, ts)
	base := x.base
	x.mu.RUnlock()
	if err != nil {
		x.fail(err)
		return NoTimestamp, base
	}
	return entryTs, offset
}

func (x *Time) floor(n int, target int64) (ts, offset int64, err error) {
	if n == 0 {
		return NoTimestamp, x.base, nil
	}
	defer mmap.Guard(x.b, &err, debug.SetPanicOnFault(true))
	lo := 0
	if entryTs(x.b, n-1) <= target { // the warm end
		lo = n - 1
	}
	for span := n - lo; span > 1; {
		half := span / 2
		if mid := lo + half; entryTs(x.b, mid) <= target {
			lo = mid
		}
		span -= half
	}
	ts, rel := entryTs(x.b, lo), timeRel(x.b, lo)
	if ts > target || ts < 0 || rel < 0 { // none, or nothing Check would pass
		return NoTimestamp, x.base, nil
	}
	return ts, x.base + rel, nil
}

// Entry returns entry i. Outside [0, Len()), or if the file cannot be mapped,
// it returns (NoTimestamp, base).
func (x *Time) Entry(i int) (ts, offset int64) {
	n := x.rlock()
	ts, offset, err := x.at(n, i)
	x.mu.RUnlock()
	if err != nil {
		x.fail(err)
	}
	return ts, offset
}

func (x *Time) at(n, i int) (ts, offset int64, err error) {
	ts, offset = NoTimestamp, x.base
	if i < 0 || i >= n {
		return ts, offset, nil
	}
	defer mmap.Guard(x.b, &err, debug.SetPanicOnFault(true))
	t, rel := entryTs(x.b, i), timeRel(x.b, i)
	return t, x.base + rel, nil
}

// Last returns the last entry, which after AppendFinal holds the largest
// timestamp of the segment; ok is false if there is none.
func (x *Time) Last() (ts, offset int64, ok bool) {
	n := x.rlock()
	ts, offset, err := x.at(n, n-1)
	x.mu.RUnlock()
	if err != nil {
		x.fail(err)
	}
	return ts, offset, n > 0 && err == nil
}

// Full reports whether only AppendFinal is left to add an entry, if that
// (log-format §3.5).
func (x *Time) Full() bool { return x.Len() >= x.opt.MaxEntries-1 }

// Check reads the whole index and returns a *CorruptError for the first entry
// that does not ascend, lies below the base, or is above maxTs or maxOffset,
// the largest timestamp and the last offset of the segment.
func (x *Time) Check(maxOffset, maxTs int64) error {
	return x.check(func(b []byte, i int, base int64) (found, want string) {
		if ts := entryTs(b, i); ts > maxTs {
			return fmt.Sprintf("timestamp %d", ts), fmt.Sprintf("at most %d", maxTs)
		}
		if offset := base + timeRel(b, i); offset > maxOffset {
			return fmt.Sprintf("offset %d", offset), fmt.Sprintf("at most %d", maxOffset)
		}
		return "", ""
	})
}
