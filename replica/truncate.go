package replica

import (
	"errors"
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/tidemark-log/tidemark/segment"
)

// Truncate drops every record at or above to, durably: when it returns, no
// crash brings them back. Whole batches go: where to lies inside one, the log
// ends with the batch before and its end offset is to all the same (log-format
// §4.6). At or above the end it only drops a leader epoch nothing was written
// in. Below the log start it is TruncateFullyAndStartAt.
//
// ErrBusy while a sync is under way or a view of what goes is held: try again,
// as after a file that could not be opened or read before anything changed. Any
// other error is sticky.
func (l *Log) Truncate(to int64) error {
	if to < 0 {
		return fmt.Errorf("truncate to %d: %w", to, ErrOutOfRange)
	}
	release, err := l.exclusive()
	if err != nil {
		return err
	}
	defer release()
	if to < l.LogStartOffset() {
		return l.restart(to)
	}
	return l.cut(to)
}

// TruncateFullyAndStartAt drops everything: one empty segment begins at offset,
// which is log start, high watermark and end, without leader epochs.
func (l *Log) TruncateFullyAndStartAt(offset int64) error {
	if offset < 0 {
		return fmt.Errorf("start log at %d: %w", offset, ErrOutOfRange)
	}
	release, err := l.exclusive()
	if err != nil {
		return err
	}
	defer release()
	return l.restart(offset)
}

// exclusive takes the sync gate and keeps appends out until release. ErrBusy if
// a sync is under way.
func (l *Log) exclusive() (release func(), err error) {
	l.maint.Lock()
	unlock, err := l.exclusiveLocked()
	if err != nil {
		l.maint.Unlock()
		return nil, err
	}
	return func() {
		unlock()
		l.maint.Unlock()
		l.notify(LEO | Synced | HW)
	}, nil
}

// exclusiveLocked is exclusive with l.maint held.
func (l *Log) exclusiveLocked() (release func(), err error) {
	if err := l.writable(); err != nil { // truncation is allowed while held
		return nil, err
	}
	if err := l.wake(); err != nil {
		return nil, err
	}
	if !l.takeGate() {
		return nil, ErrBusy
	}
	l.prod.mu.Lock()
	l.appendMu.Lock()
	l.cutting.Store(true) // appends answer ErrBusy
	l.prod.dropLocked()
	l.appendMu.Unlock()
	return func() {
		l.cutting.Store(false)
		l.prod.mu.Unlock()
		l.leaveGate()
	}, nil
}

func (l *Log) takeGate() bool {
	l.sync.mu.Lock()
	defer l.sync.mu.Unlock()
	if l.sync.inFlight {
		return false
	}
	l.sync.inFlight = true
	return true
}

func (l *Log) leaveGate() {
	l.sync.mu.Lock()
	defer l.sync.mu.Unlock()
	l.leaveGateLocked()
}

// leaveGateLocked ends a sync or what keeps syncs out. sync.mu is held.
func (l *Log) leaveGateLocked() {
	l.sync.inFlight = false
	for _, s := range l.sync.replaced {
		if err := s.Close(); err != nil {
			l.o.Logger.Warn("replaced segment not closed", "dir", l.dir, "err", err)
		}
	}
	l.sync.replaced = nil
}

// cut does the steps of R14 in their order; a crash between them leaves a
// longer log, which is judged again. A log that was cut follows: it takes a
// leader's appends only after the next BeginEpoch.
func (l *Log) cut(to int64) error {
	if to >= l.trueEnd() {
		err := l.epochs.truncate(l.trueEnd())
		if sticks(err) {
			return l.fail("truncate", err)
		}
		if err == nil {
			l.epoch.Store(noEpoch)
		}
		return err
	}
	list := *l.segments.Load()
	keep := len(list) - 1
	for keep > 0 && list[keep].Base() >= to && list[keep].Base() > l.LogStartOffset() {
		keep--
	}
	l.slot.mu.Lock()
	linked := l.slot.s.flags&flagLinked != 0
	l.slot.mu.Unlock()
	list, err := l.unshare(list, keep, linked)
	if err != nil {
		return err
	}
	s := list[keep]
	pos, _, err := s.Position(to)
	if err != nil {
		return err
	}
	last, err := endBefore(s, pos, to)
	if err != nil {
		return err
	}
	// Nobody may look at what goes, before anything changes.
	aboveOnly := to >= l.HighWatermark()
	for i := keep; i < len(list); i++ {
		if err := list[i].Freeze(aboveOnly); err != nil {
			thaw(list[keep:i])
			return err
		}
	}
	if err := s.Unseal(); err != nil {
		thaw(list[keep:])
		return err
	}
	if to < l.HighWatermark() {
		l.o.Logger.Warn("truncating below the high watermark", "dir", l.dir, "to", to, "hw", l.HighWatermark())
	}
	l.epoch.Store(noEpoch)
	if l.sync.end.Load() < to {
		// Where the log will end, the slot says; what lies before must be there.
		err = l.settleTo(s, max(s.End(), to))
	}
	if err == nil {
		err = l.lowerSlot(slotState{end: to, logStart: l.LogStartOffset(), settledEnd: s.Base(), gapFrom: last, gapTo: to})
	}
	if err == nil {
		err = l.forgetProducersAbove(to)
	}
	var full error
	if err == nil {
		// On a full disk the cut makes the room for the file of the epochs. Recovery
		// drops epochs that begin at the end.
		if err = l.epochs.truncate(to); err != nil && !sticks(err) {
			full, err = err, nil
		}
	}
	if err != nil {
		thaw(list[keep:])
		return l.fail("truncate", err)
	}
	kept := list[: keep+1 : keep+1]
	l.segments.Store(&kept)
	l.active.Store(s)
	thaw(list[keep+1:])
	err = l.removeFromEnd(list[keep+1:])
	if err != nil {
		for _, x := range list[keep+1:] {
			err = errors.Join(err, x.Close()) // the log leads to them no more
		}
	}
	if err == nil {
		l.forgetSealed(s)
		err = s.Cut(pos, to)
	}
	s.Thaw()
	if err == nil && full != nil {
		err = l.epochs.truncate(to)
	}
	if err == nil {
		err = s.Reload()
	}
	if err == nil && s.End() < to {
		if err = settleSealed(s); err == nil {
			s, err = l.endBehind(kept, to)
		}
	}
	if err == nil {
		err = l.rebuildProducers(to)
	}
	if err != nil {
		return l.fail("truncate", err)
	}
	l.endCut()
	if h := l.heldAt.Load(); h > to {
		l.heldAt.Store(to)
	}
	l.popSeg, l.popTo = s, 0
	l.workAt.Store(0)
	return nil
}

func thaw(list []*segment.Segment) {
	for _, s := range list {
		s.Thaw()
	}
}

// unshare gives list[i], if it is sealed, a file of its own: in any case, or if a
// backup has a hard link to it.
func (l *Log) unshare(list []*segment.Segment, i int, always bool) ([]*segment.Segment, error) {
	if !list[i].Sealed() {
		return list, nil
	}
	if shared, err := l.shared(list[i]); err != nil || !shared && !always {
		return list, err
	}
	err := l.writeCopy(list[i])
	if sticks(err) {
		err = l.fail("truncate", err)
	}
	if err != nil {
		return nil, err
	}
	fresh, err := l.takeCopy(list[i])
	if err != nil {
		return nil, l.fail("truncate", err)
	}
	l.forgetSealed(list[i])
	list = slices.Clone(list)
	list[i] = fresh
	l.segments.Store(&list)
	return list, nil
}

// endBefore returns the end of the batches of s below byte pos, where a batch
// that ends at or above offset begins.
func endBefore(s *segment.Segment, pos, offset int64) (end int64, err error) {
	idx, _ := s.Indexes()
	_, from := idx.Lookup(offset - 1)
	if from >= pos {
		from = 0
	}
	end = s.Base()
	err = s.Each(from, func(f segment.Frame, _ []byte) bool { // below the log start may be damage
		if f.Pos < pos {
			end = f.Last + 1
		}
		return f.Pos < pos
	})
	return end, err
}

// settleTo makes the sealed segments before s durable, and s without its
// indexes; then all below end is. The gate is taken.
func (l *Log) settleTo(s *segment.Segment, end int64) error {
	l.sync.mu.Lock()
	n := 0
	for n < len(l.sync.sealed) && l.sync.sealed[n].seg.Base() < s.Base() {
		n++
	}
	sealed := slices.Clone(l.sync.sealed[:n])
	l.sync.mu.Unlock()
	for _, x := range sealed {
		if err := settleSealed(x.seg); err != nil {
			return err
		}
	}
	if err := l.o.FS.SyncDir(l.dir); err != nil {
		return err
	}
	if err := s.SyncFile(); err != nil {
		return err
	}
	l.sync.mu.Lock()
	defer l.sync.mu.Unlock()
	l.sync.sealed = slices.Delete(l.sync.sealed, 0, n)
	l.sync.dirty, l.sync.gap = false, false
	l.sync.settled.Store(max(l.sync.settled.Load(), s.Base()))
	l.sync.end.Store(max(l.sync.end.Load(), end))
	return nil
}

// lowerSlot bounds every end of the slot and in memory by b.end, and takes
// logStart, the gap and flags from b, durably. A log start above the end is in the slot
// only: until the log begins there, nothing counts that did not before.
func (l *Log) lowerSlot(b slotState) error {
	sl := l.slot
	sl.mu.Lock()
	l.logStart.Store(min(l.logStart.Load(), b.logStart))
	l.hw.Store(min(l.hw.Load(), b.end))
	l.sync.end.Store(min(l.sync.end.Load(), b.end))
	l.sync.settled.Store(min(l.sync.settled.Load(), b.settledEnd))
	s := &sl.s
	s.logStart = b.logStart
	s.hw = max(l.hw.Load(), b.logStart)
	s.syncedEnd = max(l.sync.end.Load(), b.logStart)
	s.syncedHW = min(s.hw, s.syncedEnd)
	s.end = max(min(s.end, b.end), s.syncedEnd, s.hw)
	s.settledEnd = l.sync.settled.Load()
	s.gapFrom, s.gapTo = b.gapFrom, b.gapTo
	s.flags = s.flags&^flagEmpty | flagCut | b.flags
	sl.storeLocked()
	sl.mu.Unlock()
	return sl.sync()
}

// removeFromEnd deletes segments, the last first, each durably, so that a crash
// leaves a log without a hole.
func (l *Log) removeFromEnd(list []*segment.Segment) error {
	for i := len(list) - 1; i >= 0; i-- {
		l.forgetSealed(list[i])
		if err := list[i].Remove(); err != nil {
			return err
		}
		if err := l.o.FS.SyncDir(l.dir); err != nil {
			return err
		}
	}
	return nil
}

func (l *Log) forgetSealed(s *segment.Segment) {
	l.sync.mu.Lock()
	defer l.sync.mu.Unlock()
	l.sync.sealed = slices.DeleteFunc(l.sync.sealed, func(x sealedSegment) bool { return x.seg == s })
}

// restartAt is restart for a follower whose leader's first batch begins below
// the offset it was asked for. l.maint is held.
func (l *Log) restartAt(base, end int64) error {
	if s := l.active.Load(); s.Size() != 0 || s.End() != end {
		return nil // the caller looks again
	}
	release, err := l.exclusiveLocked()
	if err != nil {
		return err
	}
	defer release()
	return l.restart(base)
}

// restart empties the log and begins it at offset.
func (l *Log) restart(offset int64) error {
	if err := l.freezeAll(); err != nil {
		return err
	}
	// A deleted segment's file that kept its name would be in the way of the log
	// that begins below it.
	if err := l.renameRetired(); err != nil {
		return fmt.Errorf("restart log: %w", err)
	}
	l.epoch.Store(noEpoch)
	list := *l.segments.Load()
	// Segments go first, for the room on a full disk; no segment, no epochs. What
	// lies below the log start and was not removed yet must not come back: a log
	// that is to begin there is emptied where it is.
	at := max(offset, l.LogStartOffset())
	err := l.lowerSlot(slotState{end: at, logStart: at, flags: flagEmpty})
	if err == nil {
		err = l.forgetProducersAbove(-1)
	}
	if err == nil {
		err = l.removeFromEnd(list)
	}
	if err == nil && offset < at {
		err = l.lowerSlot(slotState{end: offset, logStart: offset, flags: flagEmpty})
	}
	if err == nil {
		err = l.epochs.set(nil)
	}
	var s *segment.Segment
	if err == nil {
		s, err = l.firstSegment(offset)
	}
	if err != nil {
		return l.fail("restart log", err)
	}
	fresh := []*segment.Segment{s}
	l.segments.Store(&fresh)
	l.active.Store(s)
	for _, end := range []*atomic.Int64{&l.sync.end, &l.hw, &l.logStart} {
		end.Store(offset)
	}
	l.heldAt.Store(-1)
	l.workAt.Store(0)
	l.resetProducers()
	l.endCut()
	return nil
}

// endCut stores that what was cut is off the disk.
func (l *Log) endCut() {
	l.slot.mu.Lock()
	l.slot.s.flags &^= flagCut | flagEmpty
	l.slot.mu.Unlock()
	l.storeSlot()
}

// endBehind has a log end further behind the base of its last segment than that can
// say: an empty one begins there, as in Kafka. The last is settled and appends are
// kept out.
func (l *Log) endBehind(list []*segment.Segment, end int64) (*segment.Segment, error) {
	list[len(list)-1].Seal()
	s, err := l.firstSegment(end)
	if err != nil {
		return list[len(list)-1], err
	}
	list = append(list[:len(list):len(list)], s)
	l.segments.Store(&list)
	l.active.Store(s)
	return s, nil
}

// firstSegment makes an empty segment, of a log without another one or behind a wide
// gap. Appends are kept out.
func (l *Log) firstSegment(offset int64) (s *segment.Segment, err error) {
	if s = l.next.Swap(nil); s == nil {
		if s, err = segment.Create(l.dir, l.so, 1, false); err != nil {
			return nil, err
		}
	}
	if err = s.Activate(offset); err == nil {
		err = l.o.FS.SyncDir(l.dir)
	}
	if err != nil {
		return nil, errors.Join(err, s.Remove())
	}
	s.Publish(offset, 0)
	return s, nil
}

// freezeAll makes sure that no view is out, and lets readers in again: those
// that come later find an offset that is out of range.
func (l *Log) freezeAll() error {
	for _, s := range *l.segments.Load() {
		if err := s.Freeze(false); err != nil {
			return err
		}
		s.Thaw()
	}
	return nil
}

// Adopt makes part of the held tail count, up to offset to: a leader confirmed
// it (R10). Its checksums are read once more first.
func (l *Log) Adopt(to int64) error {
	h := l.heldAt.Load()
	if h < 0 || to <= h {
		return nil
	}
	if to > l.trueEnd() {
		return fmt.Errorf("adopt to %d: %w: log ends at %d", to, ErrOutOfRange, l.trueEnd())
	}
	if err := l.verifyRange(h, to); err != nil {
		return err
	}
	l.heldAt.Store(to)
	l.notify(LEO)
	return nil
}

// Drop cuts what is still held and ends holding. ErrBusy as for Truncate.
func (l *Log) Drop() error {
	h := l.heldAt.Load()
	if h < 0 {
		return nil
	}
	// With nothing to cut a log that sleeps sleeps on.
	if h < l.trueEnd() || l.epochs.last().StartOffset >= h {
		if err := l.Truncate(h); err != nil {
			return err
		}
	}
	l.heldAt.Store(-1)
	return nil
}

// Release ends holding and keeps everything: this replica leads (R12).
func (l *Log) Release() {
	if l.heldAt.Swap(-1) >= 0 {
		l.notify(LEO)
	}
}

// Held reports whether a tail is held, and its offsets [from, end).
func (l *Log) Held() (from, end int64, held bool) {
	h := l.heldAt.Load()
	return h, l.trueEnd(), h >= 0
}
