package replica

import (
	"errors"
	"io/fs"
	"time"

	"github.com/tidemark-log/tidemark/internal/vfs"
	"github.com/tidemark-log/tidemark/segment"
)

// Sync is one sync of a log under way. There is at most one.
type Sync struct {
	l      *Log
	end    int64            // everything below is on disk once it is done
	active *segment.Segment // nil: sealed segments only
	sealed []sealedSegment  // with their indexes, first
	dir    bool             // names
	slot   bool             // syncedEnd as well
	base   int64            // first offset not covered as settled
	err    error
}

// End is the offset the sync covers.
func (s *Sync) End() int64 { return s.end }

// StartSync begins to make everything up to the log end offset durable. nil if
// a sync is under way already or nothing needs one.
func (l *Log) StartSync() *Sync { return l.startSync(true, time.Time{}) }

// StartSealedSync does so for the sealed segments that rolled before the given
// time: the background work of Never and Interval.
func (l *Log) StartSealedSync(before time.Time) *Sync { return l.startSync(false, before) }

func (l *Log) startSync(all bool, before time.Time) *Sync {
	if l.o.ReadOnly || l.closed.Load() || l.failure.Load() != nil || l.damage.Load() != nil {
		return nil
	}
	l.appendMu.Lock()
	active := l.active.Load()
	end := active.End()
	l.sync.mu.Lock()
	defer l.sync.mu.Unlock()
	if l.sync.inFlight {
		l.appendMu.Unlock()
		return nil
	}
	op := &l.sync.op
	*op = Sync{l: l, sealed: op.sealed[:0], slot: l.sync.gap}
	for _, s := range l.sync.sealed {
		if !all && s.at.After(before) {
			break
		}
		op.sealed = append(op.sealed, s)
		op.end = s.seg.End()
		op.base = op.end
	}
	if all {
		op.active, op.end = active, end
	}
	op.dir = l.sync.dirty || len(op.sealed) > 0 // Trim may make index files
	if op.end <= l.sync.end.Load() && len(op.sealed) == 0 && !op.dir || !all && len(op.sealed) == 0 {
		l.appendMu.Unlock()
		return nil
	}
	l.sync.dirty = false
	l.sync.gap = l.sync.gap && !all
	l.sync.inFlight = true
	l.appendMu.Unlock()
	if op.active != nil {
		op.err = op.active.StartSync()
	}
	return op
}

// Wait does the work of a sync and returns its error, which FinishSync wants.
// It holds no lock. Older segments come first, then names, then the active
// segment, so that what is on disk at any moment is a log (C020).
func (s *Sync) Wait() error {
	if s.err != nil {
		return s.err
	}
	for _, x := range s.sealed {
		if err := x.seg.Trim(); err != nil {
			return err
		}
		if err := x.seg.StartSync(); err != nil {
			return err
		}
		if err := x.seg.FinishSync(); err != nil {
			return err
		}
		if err := x.seg.SyncIndexes(); err != nil {
			return err
		}
	}
	if s.dir {
		if err := s.l.o.FS.SyncDir(s.l.dir); err != nil {
			return err
		}
	}
	if s.active != nil {
		if err := s.active.FinishSync(); err != nil {
			return err
		}
	}
	if s.slot {
		// After a power cut a gap between two segments looks like one whose end was
		// lost. It counts only below the slot's synced end.
		return s.l.storeSynced(s.end)
	}
	return nil
}

// storeSynced makes the slot say, durably, that all below end is on disk.
func (l *Log) storeSynced(end int64) error {
	l.slot.mu.Lock()
	l.slot.s.syncedEnd = max(l.slot.s.syncedEnd, end)
	l.fillSlotLocked()
	l.slot.storeLocked()
	l.slot.mu.Unlock()
	return l.slot.sync()
}

// FinishSync ends a sync with the result of Wait. On success SyncedEnd moves;
// on failure the log has failed for good (R8), and the sticky error is returned.
func (l *Log) FinishSync(s *Sync, err error) error {
	if err == nil {
		err = l.Err() // a write failed meanwhile: nothing more is acknowledged
	} else {
		err = l.fail("sync", err)
	}
	if err != nil {
		l.sync.mu.Lock()
		l.leaveGateLocked()
		l.sync.mu.Unlock()
		l.notify(Synced | HW)
		return err
	}
	var settle error
	for _, x := range s.sealed {
		settle = errors.Join(settle, x.seg.Settled())
	}
	l.sync.mu.Lock()
	n := copy(l.sync.sealed, l.sync.sealed[len(s.sealed):])
	clear(l.sync.sealed[n:])
	l.sync.sealed = l.sync.sealed[:n]
	l.sync.settled.Store(max(l.sync.settled.Load(), s.base))
	if s.end > l.sync.end.Load() {
		l.sync.end.Store(s.end)
	}
	l.leaveGateLocked()
	l.sync.mu.Unlock()
	l.storeSlot()
	if settle != nil {
		return l.fail("sync", settle)
	}
	l.notify(Synced | HW)
	return nil
}

// SyncNow makes everything appended so far durable, in one call. ErrBusy if a
// sync is under way.
func (l *Log) SyncNow() error {
	if err := l.writable(); err != nil && !errors.Is(err, ErrBusy) {
		return err
	}
	s := l.StartSync()
	if s == nil {
		l.sync.mu.Lock()
		defer l.sync.mu.Unlock()
		if l.sync.inFlight {
			return ErrBusy
		}
		return l.Err()
	}
	return l.FinishSync(s, s.Wait())
}

// sticks reports whether err ends the log for this life: it comes from a write
// or a sync (R8). A full disk at allocation, a refused map or a failed rename
// leave everything as it was.
func sticks(err error) bool {
	pe, ok := errors.AsType[*fs.PathError](err)
	if !ok {
		return false
	}
	switch pe.Op {
	case "sync", vfs.OpWrite.String(), vfs.OpStartSync.String(), vfs.OpFinishSync.String(), vfs.OpSyncDir.String():
		return true
	}
	return false
}

// Next is what Maintain wants of its caller.
type Next struct {
	// SealedSync: StartSealedSync(now − SealedSyncDelay) has work.
	SealedSync bool
	// At is when Maintain wants to be called again: a sealed segment or a deletion
	// falls due, or producers may expire. Zero if nothing waits.
	At time.Time
}

// Maintain does what makes appends cheap, it allocates and populates ahead and
// prepares the next segment; it writes the producer files that are due, and
// deletes what the configuration no longer keeps (log-format §7.1). It may take
// as long as the disk does and holds no lock that an append needs. An error (a
// full disk) is only news: the append that needs the space will ask again and say
// so; a failed sync of a deletion sticks.
func (l *Log) Maintain(now time.Time) (n Next, err error) {
	if l.o.ReadOnly {
		return n, nil
	}
	n, err = l.maintain(now)
	at, e := l.maintainProducers(now)
	if !at.IsZero() && (n.At.IsZero() || at.Before(n.At)) {
		n.At = at
	}
	return n, errors.Join(err, e)
}

func (l *Log) maintain(now time.Time) (n Next, err error) {
	l.maint.Lock()
	defer l.maint.Unlock()
	if err := l.writable(); err != nil {
		return n, nil
	}
	if !l.asleep.Load() {
		err = l.aheadLocked()
	}
	due, e := l.retain(now)
	if err = errors.Join(err, e); l.Err() != nil {
		return n, err
	}
	l.sync.mu.Lock()
	defer l.sync.mu.Unlock()
	for i := range l.sync.sealed {
		x := &l.sync.sealed[i]
		if x.at.IsZero() {
			x.at = now
		}
		if due := x.at.Add(l.o.SealedSyncDelay); n.At.IsZero() || due.Before(n.At) {
			n.At = due
		}
	}
	n.SealedSync = len(l.sync.sealed) > 0 && !n.At.After(now) || len(l.sync.sealed) >= maxSealed
	if !due.IsZero() && (n.At.IsZero() || due.Before(n.At)) {
		n.At = due
	}
	return n, err
}

// maxSealed is how many sealed segments may wait for their sync, each with a
// descriptor, before it is due at once.
const maxSealed = 64

// populateStep is how much is populated between two looks at the log.
const populateStep = segment.FillStep

// aheadLocked allocates, populates and prepares. It takes no lock that an append
// needs: an append that fills memory as fast as it can would be slowed down.
func (l *Log) aheadLocked() error {
	for {
		s := l.active.Load()
		size := s.Size()
		if l.popSeg != s {
			l.busy = l.popSeg != nil
			l.popSeg, l.popTo, l.popFrom = s, l.nextPop, size
			l.expected = l.busy // Create did
			l.nextPop = 0
		}
		l.popFrom = min(l.popFrom, size) // a truncation may have come in between
		if l.popTo < size {
			l.popTo = size &^ (4096 - 1)
		}
		// How far ahead: not much for a log that takes little, the whole lead for
		// one that filled a segment.
		lead := max(l.o.PopulateBytes, readySize/2)
		if !l.busy {
			lead = min(lead, size-l.popFrom)
		}
		if !l.expected && size-l.popFrom >= lead && lead >= readySize {
			l.expected = true
			_ = s.Expect() // a full disk is for the append to meet
		}
		if room := min(lead, s.Cap()-size); s.Allocated()-size < room {
			if err := s.Allocate(room); err != nil && !errors.Is(err, segment.ErrFull) {
				return err
			}
		}
		if want := min(size+lead, s.Allocated()); l.o.Sync != Always && l.popTo < want && l.o.PopulateBytes > 0 {
			to, err := s.Populate(l.popTo, min(l.popTo&^(populateStep-1)+populateStep, want))
			if err != nil {
				return l.fail("prepare space", err)
			}
			if to > l.popTo {
				l.popTo = to
				continue
			}
		}
		// The successor is made while a quarter of the segment is left.
		late := s.Cap() - s.Cap()/4
		if size > late {
			if grows := l.busy || size > l.popFrom; grows && l.next.Load() == nil && s == l.active.Load() {
				if err := l.prepare(1); err != nil {
					return err
				}
			}
			late = s.Cap()
		}
		l.workAt.Store(min(size+max(lead/4, 64<<10), late+1))
		if s == l.active.Load() {
			return nil
		}
	}
}
