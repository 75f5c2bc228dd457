package replica

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/tidemark-log/tidemark/record"
	"github.com/tidemark-log/tidemark/segment"
)

// Deleting from the front (log-format §7, replication R14): the log start is in
// the slot, durably, before anything below it goes, so a crash at any point leaves
// files that the next open passes over and removes, and never brings back what
// was deleted. The files of a deleted segment get Kafka's .deleted names and are
// removed some time later; views of it stay valid until released.
//
// A log of cleanup.policy compact loses only what lies below its log start here.
// The cleaner that drops superseded records will stand beside this file: it
// replaces segments by the protocol of log-format §4.5, whose interrupted states
// recovery finishes already.

// retention is what Maintain knows about deleting.
type retention struct {
	next    time.Time // when ages are looked at next; zero: not known yet
	waits   bool      // a segment that is to go is not synced yet
	warned  int64     // base of the segment last warned of + 1
	retired []retired
}

// retired is a segment whose files are to be removed.
type retired struct {
	base    int64
	at      time.Time
	renamed bool
}

// soon has the next Maintain look at ages too.
func (k *retention) soon() {
	if !k.next.IsZero() {
		k.next = time.UnixMilli(0)
	}
}

// firstRetention is when a log that was just opened is looked at for the first
// time, as Kafka has it.
const firstRetention = 30 * time.Second

// DeleteRecords makes offset the first that can be read: −1 is the high watermark
// (log-format §7.2). It is durable when it returns, and reads below it fail from
// then on; whole segments below it are deleted by the next Maintain. At or below
// the log start it does nothing.
//
// Errors: ErrPolicy if cleanup.policy has no delete; ErrOutOfRange if offset is
// below −1 or above the high watermark; those of Truncate, but never ErrBusy for
// a view.
func (l *Log) DeleteRecords(offset int64) error {
	l.maint.Lock()
	hw := l.HighWatermark()
	at := offset
	if at == -1 {
		at = hw
	}
	err := l.writable()
	switch {
	case err != nil:
	case !l.cfg.Load().Delete:
		err = fmt.Errorf("delete records: %w: cleanup.policy is %s", ErrPolicy, l.cfg.Load().policy())
	case at < 0 || at > hw:
		err = fmt.Errorf("delete records below %d: %w: high watermark %d", offset, ErrOutOfRange, hw)
	default:
		err = l.raiseStart(at)
	}
	l.maint.Unlock()
	if err == nil {
		l.notify(Work)
	}
	return err
}

// SetLogStart raises a follower's log start to its leader's, up to the high
// watermark, durably (replication A10); it never lowers it.
func (l *Log) SetLogStart(offset int64) error {
	l.maint.Lock()
	err := l.writable()
	if err == nil {
		err = l.raiseStart(min(offset, l.HighWatermark()))
	}
	l.maint.Unlock()
	if err == nil {
		l.notify(Work)
	}
	return err
}

// raiseStart makes to the log start, in the slot first, whose sync covers it. to
// is not above the high watermark. Below it everything counts as synced: it does
// not matter any more. l.maint is held.
func (l *Log) raiseStart(to int64) error {
	if to <= l.LogStartOffset() {
		return nil
	}
	if l.asleep.Load() {
		if err := l.wakeSlot(); err != nil {
			if sticks(err) {
				return l.fail("raise log start", err)
			}
			return fmt.Errorf("raise log start: %w", err)
		}
	}
	l.sync.mu.Lock()
	sl := l.slot
	sl.mu.Lock()
	l.logStart.Store(to)
	l.sync.end.Store(max(l.sync.end.Load(), to))
	l.fillSlotLocked()
	sl.storeLocked()
	sl.mu.Unlock()
	l.sync.mu.Unlock()
	if err := sl.sync(); err != nil {
		return l.fail("raise log start", err)
	}
	l.epochs.raise(to)
	return nil
}

// retain deletes what is due and says when it wants to be called again, zero if
// it need not. l.maint is held.
func (l *Log) retain(now time.Time) (due time.Time, err error) {
	k, c := &l.keep, l.cfg.Load()
	if k.next.IsZero() {
		k.next = now.Add(min(l.o.RetentionInterval, firstRetention))
	}
	list := *l.segments.Load()
	aged := c.Delete && c.RetentionMs >= 0
	byTime := aged && (k.waits || !now.Before(k.next))
	if byTime {
		k.next = now.Add(l.o.RetentionInterval)
	}
	n, all := l.expired(list, now, byTime)
	if all {
		// The active one is looked at again once another took its place: until then
		// it may grow.
		n--
		err = l.rollIdle(list[n])
	}
	k.waits = all
	if n > 0 {
		deleted, e := l.deleteFirst(list, n, now)
		if err = errors.Join(err, e); l.Err() != nil {
			return due, err
		}
		k.waits = k.waits || deleted < n
	}
	l.askForSize()
	due = l.removeRetired(now, time.Duration(min(c.FileDeleteDelayMs, 1<<40))*time.Millisecond)
	if aged && (due.IsZero() || k.next.Before(due)) {
		due = k.next
	}
	return due, err
}

// expired returns how many of the first segments are to go, and whether all are:
// then a new one must begin first. Each pass goes on where the one before ended
// and stops at the first segment that stays (log-format §7.1).
func (l *Log) expired(list []*segment.Segment, now time.Time, byTime bool) (n int, all bool) {
	c, hw, start := l.cfg.Load(), l.HighWatermark(), l.LogStartOffset()
	for n+1 < len(list) && list[n+1].Base() <= start {
		n++
	}
	may := func() bool { // the first that is left be deleted, for all the log knows
		switch n {
		case len(list):
			return false
		case len(list) - 1:
			return list[n].Size() > 0 && list[n].End() <= hw
		}
		return list[n+1].Base() <= hw
	}
	if c.Delete && c.RetentionBytes >= 0 {
		excess := -c.RetentionBytes
		for _, s := range list[n:] {
			excess += s.Size()
		}
		for may() && excess >= list[n].Size() {
			excess -= list[n].Size()
			n++
		}
	}
	for byTime && may() && l.isOld(list[n], now.UnixMilli(), c.RetentionMs) {
		n++
	}
	return n, n == len(list)
}

// askForSize has the append ask for Maintain with which the log gets too large.
// l.maint is held.
func (l *Log) askForSize() {
	c := l.cfg.Load()
	if !c.Delete || c.RetentionBytes < 0 {
		return
	}
	list := *l.segments.Load()
	more := c.RetentionBytes + list[0].Size()
	for _, s := range list {
		more -= s.Size()
	}
	if more > 0 { // else it waits for the high watermark
		l.workAt.Store(min(l.workAt.Load(), l.active.Load().Size()+more))
	}
}

// isOld reports whether all records of a segment are older than ms. Where none
// has a timestamp it is the file's time that counts. A timestamp from the future
// keeps the segment, and all behind it, so somebody should know.
func (l *Log) isOld(s *segment.Segment, nowMs, ms int64) bool {
	ts, err := s.LargestTimestamp()
	if err != nil {
		l.o.Logger.Warn("age of a segment cannot be read, it is kept", "dir", l.dir, "segment", s.Name(), "err", err)
		return false
	}
	if ts < 0 {
		i, err := l.o.FS.Stat(l.path(s.Name()))
		if err != nil {
			l.o.Logger.Warn("age of a segment cannot be read, it is kept", "dir", l.dir, "segment", s.Name(), "err", err)
			return false
		}
		ts = i.ModTime.UnixMilli()
	}
	if ts > nowMs && s.Sealed() && l.keep.warned != s.Base()+1 {
		l.keep.warned = s.Base() + 1
		l.o.Logger.Warn("segment holds a timestamp from the future, it is not deleted by age before that", "dir", l.dir,
			"segment", s.Name(), "timestamp", ts, "now", nowMs)
	}
	return nowMs-ts > ms
}

// rollIdle begins a new segment behind the active one although nothing is
// appended. l.maint is held.
func (l *Log) rollIdle(s *segment.Segment) error {
	end := s.End()
	if err := l.prepare(1); err != nil {
		return err
	}
	l.appendMu.Lock()
	defer l.appendMu.Unlock()
	if l.active.Load() != s || s.End() != end || l.next.Load() == nil {
		return nil // there was an append
	}
	return l.rollLocked(end)
}

// deleteFirst deletes the first n segments of list, which has more, but those
// that a sync under way may have to do with: for them the next Maintain comes
// back. l.maint is held: appends only add to the log's list meanwhile.
func (l *Log) deleteFirst(list []*segment.Segment, n int, now time.Time) (deleted int, err error) {
	if err := l.raiseStart(list[n].Base()); err != nil {
		return 0, err
	}
	if n = l.unsealFirst(list[:n]); n == 0 {
		return 0, nil
	}
	l.appendMu.Lock()
	rest := slices.Clone((*l.segments.Load())[n:])
	l.segments.Store(&rest)
	l.appendMu.Unlock()
	for _, s := range list[:n] {
		// A reader that still has the old list finds the segment closed and takes
		// the new one; so that comes before the names go.
		if err := s.Close(); err != nil {
			l.o.Logger.Warn("deleted segment not closed", "dir", l.dir, "segment", s.Name(), "err", err)
		}
		l.keep.retired = append(l.keep.retired, retired{base: s.Base(), at: now})
	}
	l.o.Logger.Info("segments deleted", "dir", l.dir, "first", list[0].Base(), "logStart", l.LogStartOffset(), "count", n)
	if err := l.renameRetired(); err != nil {
		l.o.Logger.Warn("files of a deleted segment not renamed, will be tried again", "dir", l.dir, "err", err)
	}
	if err := l.o.FS.SyncDir(l.dir); err != nil {
		return n, l.fail("delete segments", err)
	}
	return n, nil
}

// unsealFirst takes segments that are about to be deleted out of what waits for a
// sync: the log start is above them, so what they hold need not reach the disk.
// It returns how many of the first have nothing to do with a sync under way.
func (l *Log) unsealFirst(list []*segment.Segment) int {
	l.sync.mu.Lock()
	defer l.sync.mu.Unlock()
	n := len(list)
	if l.sync.inFlight {
		for _, x := range l.sync.sealed {
			if i := slices.Index(list, x.seg); i >= 0 {
				n = min(n, i)
			}
		}
		return n
	}
	l.sync.sealed = slices.DeleteFunc(l.sync.sealed, func(x sealedSegment) bool { return slices.Contains(list, x.seg) })
	return n
}

// renameRetired gives the files of deleted segments their .deleted names, the
// oldest first. l.maint is held.
func (l *Log) renameRetired() (err error) {
	for i := range l.keep.retired {
		x := &l.keep.retired[i]
		if x.renamed {
			continue
		}
		if e := segment.RetireFiles(l.o.FS, l.dir, x.base); e != nil {
			err = errors.Join(err, e)
			continue
		}
		x.renamed = true
	}
	return err
}

// removeRetired removes the files whose time has come and returns when the next
// ones are due, zero if there are none. What cannot be done now is tried again.
// l.maint is held.
func (l *Log) removeRetired(now time.Time, delay time.Duration) (due time.Time) {
	k := &l.keep
	if len(k.retired) == 0 {
		return due
	}
	if err := l.renameRetired(); err != nil {
		l.o.Logger.Warn("files of a deleted segment not renamed, will be tried again", "dir", l.dir, "err", err)
	}
	left := k.retired[:0]
	for _, x := range k.retired {
		if at := x.at.Add(delay); x.renamed && !now.Before(at) {
			err := segment.RemoveFiles(l.o.FS, l.dir, x.base, segment.DeletedSuffix)
			if err == nil {
				continue
			}
			l.o.Logger.Warn("files of a deleted segment not removed, will be tried again", "dir", l.dir, "err", err)
			x.at = now
		}
		if at := x.at.Add(max(delay, time.Second)); due.IsZero() || at.Before(due) {
			due = at
		}
		left = append(left, x)
	}
	clear(k.retired[len(left):])
	k.retired = left
	return due
}

// age is what time-based rolling knows of the active segment (log-format §3.5).
type age struct {
	id      uint64 // segment.ID; 0: of none
	read    bool   // first is known
	first   int64  // largest timestamp of its first batch, −1 if it has none
	created int64  // ms; when it was first looked at
}

// takesLocked reports whether s takes a batch, allocated or not: else a new
// segment begins. appendMu is held.
func (l *Log) takesLocked(s *segment.Segment, in *incoming) bool {
	if !s.Fits(in.n, in.last) {
		return false
	}
	c, size := l.cfg.Load(), s.Size()
	if size > 0 && size+int64(in.n) > c.SegmentBytes {
		return false // its map is larger: page size, or an older configuration
	}
	ms := c.rollMs()
	if ms == noLimit {
		return true
	}
	a := &l.age
	if a.id != s.ID() {
		*a = age{id: s.ID(), created: in.now}
	}
	if size == 0 {
		return true
	}
	if !a.read {
		a.first, a.read = s.FirstTimestamp(), true
	}
	if a.first >= 0 {
		return in.ts-a.first <= ms-l.jitter(s.Base(), c.SegmentJitterMs, ms)
	}
	return in.now-a.created <= ms-l.jitter(s.Base(), c.SegmentJitterMs, ms)
}

// jitter is by how much a segment rolls early: below most and ms, the same
// whenever it is asked for.
func (l *Log) jitter(base, most, ms int64) int64 {
	if most = min(most, ms); most <= 0 {
		return 0
	}
	id := l.ID()
	return int64(xxhash.Sum64(binary.LittleEndian.AppendUint64(id[:], uint64(base))) % uint64(most))
}

// largest is the largest timestamp of records that are appended at nowMs; it is
// asked for by whoever rolls by time only.
func (c *Config) largest(recs []record.Record, nowMs int64) int64 {
	if c.rollMs() == noLimit || c.TimestampType == record.LogAppendTime {
		return nowMs
	}
	largest := int64(record.NoTimestamp)
	for i := range recs {
		ts := recs[i].Timestamp
		if ts == 0 {
			ts = nowMs
		}
		largest = max(largest, ts)
	}
	return largest
}
