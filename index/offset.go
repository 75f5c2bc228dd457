package index

import (
	"encoding/binary"
	"fmt"
	"math"
	"runtime/debug"
	"sync/atomic"
	"unsafe"

	"github.com/tidemark-log/tidemark/internal/mmap"
	"github.com/tidemark-log/tidemark/internal/vfs"
)

// OffsetEntrySize is the number of bytes of an offset index entry.
const OffsetEntrySize = 8

// Offset is the offset index of a segment: sparse entries (offset, pos), where
// offset is the last offset of the batch that starts at byte pos of the log
// file. The data of an entry ends at or before any higher offset, so that a
// scan from its position finds them.
type Offset struct {
	file
	scale atomic.Int64 // for floorOffset; 0 if not set yet, an old value will do
}

var offsetLayout = layout{OffsetEntrySize, relOffset, offsetSane, offsetFault, offsetsSane}

// OpenOffset opens the offset index of the segment with the given base offset.
// It reads nothing yet and does not fail for a missing file, which the first
// append makes.
func OpenOffset(fs vfs.FS, name string, base int64, o Options) (*Offset, error) {
	x := new(Offset)
	if err := x.open(fs, name, base, o, &offsetLayout); err != nil {
		return nil, err
	}
	return x, nil
}

type offsetEntry [OffsetEntrySize]byte

func (e *offsetEntry) rel() int64 { return int64(int32(binary.BigEndian.Uint32(e[:4]))) }
func (e *offsetEntry) pos() int64 { return int64(int32(binary.BigEndian.Uint32(e[4:]))) }

// offsetEntries is b as entries: one bounds check a probe instead of three.
func offsetEntries(b []byte) []offsetEntry {
	return unsafe.Slice((*offsetEntry)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/OffsetEntrySize)
}

func relOffset(b []byte, i int) int64 { return offsetEntries(b)[i].rel() }
func entryPos(b []byte, i int) int64  { return offsetEntries(b)[i].pos() }

func offsetSane(b []byte, i int) bool {
	e := offsetEntries(b)
	rel, pos := e[i].rel(), e[i].pos()
	if i == 0 {
		return rel >= 0 && pos >= 0
	}
	return rel > max(e[i-1].rel(), -1) && pos > max(e[i-1].pos(), -1)
}

func offsetsSane(b []byte, n int) bool {
	rel, pos := int64(-1), int64(-1)
	entries := offsetEntries(b)[:n]
	for i := range entries {
		e := &entries[i]
		if e.rel() <= rel || e.pos() <= pos {
			return false
		}
		rel, pos = e.rel(), e.pos()
	}
	return true
}

func offsetFault(b []byte, i int) (found, want string) {
	e := offsetEntries(b)
	prevRel, prevPos := int64(-1), int64(-1)
	if i > 0 {
		prevRel, prevPos = max(e[i-1].rel(), -1), max(e[i-1].pos(), -1)
	}
	if rel := e[i].rel(); rel <= prevRel {
		return fmt.Sprintf("relative offset %d", rel), fmt.Sprintf("above %d", prevRel)
	}
	return fmt.Sprintf("position %d", e[i].pos()), fmt.Sprintf("above %d", prevPos)
}

// Append adds an entry for the batch that starts at byte pos of the log and
// ends with offset. It makes no system call unless a chunk of the file is used
// up. On error nothing was added.
//
// Errors: ErrOrder if offset or pos is not above the last entry's, ErrFull,
// ErrRange if offset or pos is more than 2^31−1 above the base or 0, ErrReadOnly,
// ErrClosed, a *mmap.FaultError if the file was cut under its map, or what
// allocating (a full disk) or mapping says.
func (x *Offset) Append(offset, pos int64) error {
	for {
		x.mu.RLock()
		ok, err := x.append(offset, pos)
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
func (x *Offset) append(offset, pos int64) (ok bool, err error) {
	n := int(x.n.Load())
	if n >= x.room {
		return false, nil
	}
	rel := offset - x.base
	if x.base < 0 || offset < x.base || rel > math.MaxInt32 || pos < 0 || pos > math.MaxInt32 {
		return false, fmt.Errorf("append offset %d at position %d to index %s of base %d: %w", offset, pos, x.name, x.base, ErrRange)
	}
	defer mmap.Guard(x.b, &err, debug.SetPanicOnFault(true))
	if n > 0 {
		if lastRel, lastPos := relOffset(x.b, n-1), entryPos(x.b, n-1); rel <= lastRel || pos <= lastPos {
			return false, fmt.Errorf("append offset %d at position %d to index %s, last %d at %d: %w",
				offset, pos, x.name, x.base+lastRel, lastPos, ErrOrder)
		}
	}
	// One store of an aligned word: a killed process leaves all of it or none.
	*(*uint64)(unsafe.Pointer(&offsetEntries(x.b)[n])) = bigEndian(uint64(rel)<<32 | uint64(pos))
	x.publish(n)
	if n&63 == 63 {
		x.scale.Store(proportion(n+1, rel))
	}
	return true, nil
}

// bigEndian returns the word whose bytes in memory are v, highest first.
func bigEndian(v uint64) uint64 {
	var b [8]byte
	binary.BigEndian.PutUint64(b[:], v)
	return binary.NativeEndian.Uint64(b[:])
}

// Lookup returns the last entry with an offset at or below the argument, or
// (base, 0) if there is none: a scan of the log from pos finds offset. So it
// answers too if the file cannot be mapped; Load and Err say why. It does not
// allocate.
func (x *Offset) Lookup(offset int64) (entryOffset, pos int64) {
	n := x.rlock()
	base := x.base
	if n == 0 || offset < base {
		x.mu.RUnlock()
		return base, 0
	}
	rel, pos, err := x.floor(n, offset-base)
	x.mu.RUnlock()
	if err != nil {
		x.fail(err)
		return base, 0
	}
	return base + rel, pos
}

// Ceil returns the first entry with an offset at or above the argument; ok is
// false if there is none. In a log whose every batch has an entry it is that of
// the batch that holds offset.
func (x *Offset) Ceil(offset int64) (entryOffset, pos int64, ok bool) {
	n := x.rlock()
	base := x.base
	if n == 0 {
		x.mu.RUnlock()
		return 0, 0, false
	}
	rel, pos, ok, err := x.ceil(n, offset-base)
	x.mu.RUnlock()
	if err != nil {
		x.fail(err)
	}
	return base + rel, pos, ok && err == nil
}

func (x *Offset) ceil(n int, target int64) (rel, pos int64, ok bool, err error) {
	defer mmap.Guard(x.b, &err, debug.SetPanicOnFault(true))
	i := -1
	if target >= 0 {
		i = floorOffset(x.b, n, min(target, math.MaxInt32), x.proportion(n))
	}
	if i < 0 || relOffset(x.b, i) < target {
		i++
	}
	if i == n {
		return 0, 0, false, nil
	}
	rel, pos = relOffset(x.b, i), entryPos(x.b, i)
	return rel, pos, rel >= 0 && pos >= 0, nil
}

func (x *Offset) proportion(n int) int64 {
	scale := x.scale.Load()
	if scale == 0 {
		scale = proportion(n, relOffset(x.b, n-1))
		x.scale.Store(scale)
	}
	return scale
}

func (x *Offset) floor(n int, target int64) (rel, pos int64, err error) {
	defer mmap.Guard(x.b, &err, debug.SetPanicOnFault(true))
	i := floorOffset(x.b, n, min(target, math.MaxInt32), x.proportion(n))
	if i < 0 {
		return 0, 0, nil
	}
	rel, pos = relOffset(x.b, i), entryPos(x.b, i)
	if rel < 0 || pos < 0 { // nothing Check would pass
		return 0, 0, nil
	}
	return rel, pos, nil
}

// floorOffset returns the number of the last of n entries of b whose relative
// offset is at or below target, −1 if none. n is above 0, scale is entries per
// offset as a fraction of 2^32.
//
// Offsets grow about linearly with the entry number, so a guess by proportion,
// corrected once from what stands there, lands within a few entries; widening
// steps from it find a bound on the other side. Where offsets are skewed the
// steps soon reach over the index and binary search does the work.
func floorOffset(b []byte, n int, target, scale int64) int {
	e := offsetEntries(b)[:n]
	lo, hi := 0, n-1
	if target >= e[hi].rel() { // the warm end: consumers that keep up
		return hi
	}
	if target < e[lo].rel() {
		return -1
	}
	// From here on e[lo] <= target < e[hi], whatever the entries hold.
	at := min(int(target*scale>>32), hi) // both factors are below 2^32
	at = min(max(at+int((target-e[at].rel())*scale>>32), lo), hi)
	step := 4
	if e[at].rel() <= target {
		lo = at
		for at += step; at < hi; at += step {
			if e[at].rel() > target {
				hi = at
				break
			}
			lo = at
			step *= 8
		}
	} else {
		hi = at
		for at -= step; at > lo; at -= step {
			if e[at].rel() <= target {
				lo = at
				break
			}
			hi = at
			step *= 8
		}
	}
	for span := hi - lo; span > 1; {
		half := span / 2
		if mid := lo + half; e[mid].rel() <= target {
			lo = mid
		}
		span -= half
	}
	return lo
}

// proportion returns the scale for floorOffset of n entries whose last
// relative offset is rel. Any value up to 2^32 gives right answers.
func proportion(n int, rel int64) int64 {
	return min(int64(n)<<32/max(rel, int64(n)), 1<<32)
}

// UpperBoundPos returns the first entry whose position is at or above pos; ok
// is false if there is none. It bounds a search for aborted transactions
// (log-format §3.3).
func (x *Offset) UpperBoundPos(pos int64) (offset, entryPos int64, ok bool) {
	n := x.rlock()
	base := x.base
	rel, entryPos, ok, err := x.ceilPos(n, pos)
	x.mu.RUnlock()
	if err != nil {
		x.fail(err)
	}
	if err != nil || !ok {
		return 0, 0, false
	}
	return base + rel, entryPos, true
}

func (x *Offset) ceilPos(n int, pos int64) (rel, at int64, ok bool, err error) {
	defer mmap.Guard(x.b, &err, debug.SetPanicOnFault(true))
	lo, hi := 0, n
	for lo < hi {
		if mid := int(uint(lo+hi) >> 1); entryPos(x.b, mid) < pos {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	if lo == n {
		return 0, 0, false, nil
	}
	return relOffset(x.b, lo), entryPos(x.b, lo), true, nil
}

// Entry returns entry i. Outside [0, Len()), or if the file cannot be mapped,
// it returns (base, 0).
func (x *Offset) Entry(i int) (offset, pos int64) {
	n := x.rlock()
	offset, pos, err := x.at(n, i)
	x.mu.RUnlock()
	if err != nil {
		x.fail(err)
	}
	return offset, pos
}

// at returns (base, 0) if there is no such entry or it cannot be touched.
func (x *Offset) at(n, i int) (offset, pos int64, err error) {
	offset = x.base
	if i < 0 || i >= n {
		return offset, 0, nil
	}
	defer mmap.Guard(x.b, &err, debug.SetPanicOnFault(true))
	rel, p := relOffset(x.b, i), entryPos(x.b, i)
	return x.base + rel, p, nil
}

// Last returns the last entry; ok is false if there is none.
func (x *Offset) Last() (offset, pos int64, ok bool) {
	n := x.rlock()
	offset, pos, err := x.at(n, n-1)
	x.mu.RUnlock()
	if err != nil {
		x.fail(err)
	}
	return offset, pos, n > 0 && err == nil
}

// Full reports whether the next Append returns ErrFull (log-format §3.5).
func (x *Offset) Full() bool { return x.Len() >= x.opt.MaxEntries }

// Check reads the whole index and returns a *CorruptError for the first entry
// that does not ascend, lies below the base, or is above maxOffset or maxPos.
// maxOffset is the last offset of the segment, maxPos the position of its last
// batch.
func (x *Offset) Check(maxOffset, maxPos int64) error {
	return x.check(func(b []byte, i int, base int64) (found, want string) {
		if offset := base + relOffset(b, i); offset > maxOffset {
			return fmt.Sprintf("offset %d", offset), fmt.Sprintf("at most %d", maxOffset)
		}
		if pos := entryPos(b, i); pos > maxPos {
			return fmt.Sprintf("position %d", pos), fmt.Sprintf("at most %d", maxPos)
		}
		return "", ""
	})
}
