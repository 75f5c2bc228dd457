package replica

import (
	"errors"
	"fmt"
	"math"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"github.com/tidemark-log/tidemark/internal/invariant"
	"github.com/tidemark-log/tidemark/internal/mmap"
	"github.com/tidemark-log/tidemark/record"
	"github.com/tidemark-log/tidemark/segment"
)

// Origin says who made a batch and so what is checked of it.
type Origin int

const (
	// Client: anybody. Validated whole, records included; the leader stamps base
	// offset and leader epoch.
	Client Origin = iota
	// Trusted: our own Builder in this process. Header and checksum are checked;
	// the leader stamps base offset and leader epoch.
	Trusted
	// Follower: the leader. Header, checksum and order are checked; offsets and
	// epochs stay as they are.
	Follower
)

// Appended is the answer to an append: offsets [Base, End).
type Appended struct {
	Base, End int64
	// Duplicate: the producer had sent the batch before. Nothing was appended; the
	// offsets are those of the original, whose ack may not have arrived.
	Duplicate bool
	// MaxTimestamp is the largest of the batch as stored, ms since the epoch, or
	// that of the original; from Append of one batch only.
	MaxTimestamp int64
}

var errNoEpoch = errors.New("no leader epoch has begun")

// AppendRecords appends records as one batch, encoded in place: one copy in
// all. Record.Offset and Sequence are ignored, a zero Timestamp becomes now. The
// slices are not kept. It never waits for the disk.
//
// Errors: ErrTooLarge and a *record.ClientError for a key or timestamp that the
// configuration refuses (nothing changed); ErrNoRoom beside an error of the file
// system at allocation, such as a full disk (nothing changed, not sticky); ErrFailed,
// ErrClosed, ErrReadOnly, ErrHeld, *CorruptError.
func (l *Log) AppendRecords(recs []record.Record, now time.Time) (a Appended, err error) {
	nowMs := now.UnixMilli()
	if len(recs) == 0 {
		end := l.LogEndOffset()
		return Appended{Base: end, End: end}, l.writable()
	}
	n, c := record.Size(recs, nowMs), l.cfg.Load()
	if most := min(c.MaxBatchBytes, c.SegmentBytes); int64(n) > most {
		return a, fmt.Errorf("append %d records: %w: %d bytes, at most %d", len(recs), ErrTooLarge, n, most)
	}
	if c.judges() {
		rules := c.rules(nowMs)
		if err := rules.CheckRecords(recs); err != nil {
			return a, fmt.Errorf("append: %w", err)
		}
	}
	l.appendMu.Lock()
	s, err := l.roomLocked(incoming{n: n, last: int64(len(recs) - 1), ts: c.largest(recs, nowMs), now: nowMs})
	if err != nil {
		l.appendMu.Unlock()
		return a, err
	}
	a.Base = s.End()
	a.End = a.Base + int64(len(recs))
	l.spec.BaseOffset, l.spec.LeaderEpoch, l.spec.Now, l.spec.TimestampType = a.Base, l.epoch.Load(), nowMs, c.TimestampType
	if l.o.Sync == Always {
		b := record.Encode(l.gatherLocked(n), recs, &l.spec)
		err = l.writeLocked(s, b)
	} else {
		err = l.encodeLocked(s, n, recs)
	}
	l.unlockAppended(err)
	if err != nil {
		return Appended{}, err
	}
	return a, nil
}

// encodeLocked builds the batch in the map. A fault there, because somebody cut
// the file, leaves unknown bytes behind the end: the log has failed.
func (l *Log) encodeLocked(s *segment.Segment, n int, recs []record.Record) (err error) {
	region := s.Reserve(n)
	if err := encodeGuarded(region, recs, &l.spec); err != nil {
		return l.fail("append", err)
	}
	b := record.Batch(region)
	l.commitLocked(s, n, b.LastOffset(), b.MaxTimestamp())
	return nil
}

func encodeGuarded(region []byte, recs []record.Record, spec *record.Spec) (err error) {
	defer mmap.Guard(region, &err, debug.SetPanicOnFault(true))
	record.Encode(region, recs, spec)
	return nil
}

// stampGuarded copies a batch with base offset and leader epoch stamped. The
// length field comes last: what a killed process leaves before it is no batch.
func stampGuarded(region, b record.Batch, base int64, epoch int32) (err error) {
	defer mmap.Guard(region, &err, debug.SetPanicOnFault(true))
	copy(region[12:], b[12:])
	region.SetLeaderEpoch(epoch)
	region.SetBaseOffset(base)
	copy(region[8:12], b[8:12])
	return nil
}

// gatherLocked returns a buffer for one pwrite, which unlockAppended gives back:
// a log that takes no appends keeps none.
func (l *Log) gatherLocked(n int) []byte {
	if l.buf == nil {
		l.buf = gathers.Get().(*gather)
	}
	if cap(l.buf.b) < n {
		l.buf.b = make([]byte, max(n, 2*cap(l.buf.b)))
	}
	return l.buf.b[:n]
}

type gather struct{ b []byte }

var gathers = sync.Pool{New: func() any { return new(gather) }}

func (l *Log) writeLocked(s *segment.Segment, b record.Batch) error {
	if err := s.WriteAtEnd(b); err != nil {
		return l.fail("append", err)
	}
	l.commitLocked(s, len(b), b.LastOffset(), b.MaxTimestamp())
	return nil
}

func (l *Log) commitLocked(s *segment.Segment, n int, last, maxTs int64) {
	if invariant.On {
		invariant.Check(last >= s.End(), "append of last offset %d below end %d", last, s.End())
	}
	s.Commit(n, last, maxTs)
	l.prod.since += int64(n)
	// The end reaches the slot every few KiB: after a kill recovery scans what
	// lies beyond it.
	if l.unslotted += n; l.unslotted >= slotEvery {
		l.unslotted = 0
		l.storeSlot()
	}
}

// slotEvery is how many bytes are appended between two stores of the slot.
const slotEvery = 4 << 10

// unlockAppended ends an append and tells who waits.
func (l *Log) unlockAppended(err error) {
	size := l.active.Load().Size()
	if l.buf != nil {
		gathers.Put(l.buf)
		l.buf = nil
	}
	l.appendMu.Unlock()
	if err == nil && l.o.Notify != nil {
		c := LEO
		if size >= l.workAt.Load() {
			l.workAt.Store(math.MaxInt64) // said once; Maintain sets it anew
			c |= Work
		}
		l.o.Notify(c)
	}
}

// incoming is what decides where a batch goes.
type incoming struct {
	n          int   // bytes
	base, last int64 // offsets
	ts         int64 // largest timestamp, ms
	now        int64 // ms
}

// roomLocked returns the segment a batch goes to whose offsets count from 0 up
// to in.last, with room for it. It lets go of appendMu while it allocates.
func (l *Log) roomLocked(in incoming) (*segment.Segment, error) {
	delta := in.last
	for {
		if err := l.writable(); err != nil {
			return nil, err
		}
		if l.heldAt.Load() >= 0 {
			return nil, ErrHeld
		}
		if l.epoch.Load() < 0 {
			return nil, errNoEpoch
		}
		s := l.active.Load()
		in.base, in.last = s.End(), s.End()+delta
		ok, err := l.fitLocked(s, &in)
		if err != nil {
			return nil, err
		}
		if ok {
			return s, nil
		}
	}
}

// fitLocked reports whether a batch fits into s right away; if not it makes room
// or rolls, after which the caller looks again.
func (l *Log) fitLocked(s *segment.Segment, in *incoming) (bool, error) {
	takes := l.takesLocked(s, in)
	ready := l.ready(s, in.n, takes)
	switch {
	case takes && ready:
		return true, nil
	case takes:
		n := int64(in.n)
		if err := l.fillOutsideLocked(s, n); !errors.Is(err, segment.ErrFull) {
			return false, l.made(err)
		}
		return false, l.outsideLocked(func() error { return l.grow(s, n, (*segment.Segment).Grow) })
	case ready:
		return false, l.rollLocked(in.base)
	}
	n := int64(in.n)
	return false, l.outsideLocked(func() error { return l.prepare(n) })
}

// ready reports whether n bytes have blocks on disk: in s or, if that does not
// take them, in the segment prepared.
func (l *Log) ready(s *segment.Segment, n int, takes bool) bool {
	if takes {
		return s.Room(n)
	}
	next := l.next.Load()
	return next != nil && next.Room(n)
}

// fillOutsideLocked has n bytes of s ready if they have blocks already. It does without
// maint, whose holder may have much else to do.
func (l *Log) fillOutsideLocked(s *segment.Segment, n int64) error {
	l.appendMu.Unlock()
	defer l.appendMu.Lock()
	return s.Fill(n)
}

// made makes an append's error of one of making room: where a segment takes no more
// there is none, and it looks again; a failed write ends the log.
func (l *Log) made(err error) error {
	switch {
	case err == nil || errors.Is(err, segment.ErrFull):
		return nil
	case sticks(err):
		return l.fail("append", err)
	}
	return fmt.Errorf("append: %w: %w", ErrNoRoom, err)
}

// outsideLocked runs fn under maint without appendMu.
func (l *Log) outsideLocked(fn func() error) error {
	l.appendMu.Unlock()
	defer l.appendMu.Lock()
	l.maint.Lock()
	defer l.maint.Unlock()
	return fn()
}

// grow makes room for n more bytes, by Segment.Grow or Allocate. l.maint is held.
func (l *Log) grow(s *segment.Segment, n int64, how func(*segment.Segment, int64) error) error {
	if l.closed.Load() {
		return nil // the caller looks again
	}
	if err := l.wake(); err != nil {
		return fmt.Errorf("append: %w: %w", ErrNoRoom, err)
	}
	if s != l.active.Load() {
		return nil
	}
	return l.made(how(s, n))
}

// Room returns why the log has no room now for the largest batch there may be and for
// the beginning of a leader epoch, nil if it has: whoever is about to be made the
// leader is asked before. It allocates what that append would, and may wait for the
// disk.
func (l *Log) Room() error {
	if err := l.writable(); err != nil {
		return err
	}
	c := l.cfg.Load()
	n := int64(min(c.MaxBatchBytes, c.SegmentBytes))
	l.maint.Lock()
	defer l.maint.Unlock()
	s := l.active.Load()
	var err error
	if s.Cap()-s.Size() >= n {
		err = l.grow(s, n, (*segment.Segment).Allocate)
	} else {
		err = l.prepare(n)
	}
	if err != nil {
		return err
	}
	if err := l.epochs.rewrite(); err != nil {
		if sticks(err) {
			return l.fail("write leader epochs", err)
		}
		return fmt.Errorf("%w: %w", ErrNoRoom, err)
	}
	return nil
}

// prepare makes the next segment under temporary names. l.maint is held.
func (l *Log) prepare(need int64) error {
	if l.closed.Load() {
		return ErrClosed
	}
	if err := l.wake(); err != nil {
		return fmt.Errorf("append: %w: %w", ErrNoRoom, err)
	}
	if next := l.next.Load(); next != nil {
		err := next.Grow(need)
		if sticks(err) {
			return l.fail("prepare segment", err)
		}
		if err == nil || !l.next.CompareAndSwap(next, nil) {
			return nil
		}
		if err := next.Remove(); err != nil {
			return err
		}
	}
	follows := l.active.Load().Size() >= readySize
	s, err := segment.Create(l.dir, l.so, need, follows)
	if sticks(err) {
		return l.fail("prepare segment", err)
	}
	if err != nil {
		return fmt.Errorf("prepare segment: %w: %w", ErrNoRoom, err)
	}
	l.nextPop = 0
	if follows {
		l.nextPop, err = s.Populate(0, l.o.PopulateBytes)
	}
	l.next.Store(s)
	if sticks(err) {
		return l.fail("prepare segment", err)
	}
	return nil
}

// readySize is the size of a segment from which its successor is expected to be
// filled as well.
const readySize = 4 << 20

// rollLocked makes the prepared segment the active one, for a batch whose base
// offset is base. appendMu is held; the cost is a rename. The old segment is
// synced before anything in the new one can count as synced (C020). An empty
// one with the same base is replaced (log-format §3.5).
func (l *Log) rollLocked(base int64) error {
	old, s := l.active.Load(), l.next.Load()
	list := *l.segments.Load()
	list = list[:len(list):len(list)]
	replaced := old.Size() == 0 && old.Base() == base
	if err := s.Activate(base); err != nil {
		return fmt.Errorf("roll: %w: %w", ErrNoRoom, err) // nothing changed
	}
	s.Publish(base, 0)
	l.sync.mu.Lock()
	inFlight := l.sync.inFlight
	if replaced {
		list = list[:len(list)-1]
		if inFlight { // its file may be part of the sync
			l.sync.replaced = append(l.sync.replaced, old)
		}
	} else {
		old.Seal()
		l.sync.sealed = append(l.sync.sealed, sealedSegment{seg: old})
		l.prod.rolledLocked(base)
	}
	l.sync.dirty = true
	l.sync.gap = l.sync.gap || base != old.End()
	l.sync.mu.Unlock()
	list = append(list, s)
	l.segments.Store(&list)
	l.active.Store(s)
	l.next.Store(nil)
	l.workAt.Store(0)
	l.storeSlot() // after a kill a segment behind the slot's end is a leftover
	if replaced && !inFlight {
		return old.Close()
	}
	return nil
}

// Append appends ready batches. From a Client it must be exactly one; from a
// Follower there may be several, in order, and they are appended all or up to
// the first that is wrong, whose error is returned beside what was appended.
// b is not kept; for Client and Trusted it is not changed either. It never
// waits for the disk.
//
// A batch of an idempotent producer from Client or Trusted is appended only if it
// comes next in its sequence, and a duplicate is answered with the original
// (log-format §5.3); a Follower's is taken as it is, since its leader decided.
//
// Errors: those of AppendRecords; for a bad batch, of which nothing was
// appended, a *record.ClientError with Kafka's code from a Client and a
// *record.Error from others; a *record.ClientError that wraps
// dedupe.ErrOutOfOrder, ErrFenced, ErrTxnState or ErrCoordinatorFenced, for what
// the producer should not have sent; ErrOrder where a follower's batch does not follow
// the end or its epoch goes back.
func (l *Log) Append(b []byte, origin Origin, now time.Time) (Appended, error) {
	if origin == Follower {
		return l.appendFollower(b, demand{epoch: math.MaxInt32, gaps: true, leo: math.MaxInt64}, now.UnixMilli())
	}
	check := l.checkTrusted
	if origin == Client {
		check = l.checkClient
	}
	batch, err := check(b, now.UnixMilli())
	if err != nil {
		return Appended{}, fmt.Errorf("append: %w", err)
	}
	l.appendMu.Lock()
	s, err := l.roomLocked(incoming{n: len(batch), last: int64(batch.LastOffsetDelta()), ts: batch.MaxTimestamp(), now: now.UnixMilli()})
	var a Appended
	produced, done := batch.HasProducer(), false
	if err == nil && produced {
		original, duplicate, refused := l.prod.table.Check(batch)
		if done = duplicate || refused != nil; done {
			a, err = l.prod.answerLocked(original, refused)
		} else if l.prod.emptyTo == noProducers {
			l.expectLocked(s.End())
		}
	}
	if err == nil && !done {
		a.Base = s.End()
		a.End = a.Base + int64(batch.LastOffsetDelta()) + 1
		a.MaxTimestamp = batch.MaxTimestamp()
		if err = l.copyLocked(s, batch, a.Base, l.epoch.Load()); err == nil && produced {
			l.prod.table.Update(batch, a.Base)
		}
	}
	l.unlockAppended(err)
	if err != nil {
		return Appended{}, err
	}
	return a, nil
}

func (l *Log) checkTrusted(b []byte, nowMs int64) (record.Batch, error) {
	c := l.cfg.Load()
	batch, err := record.Check(b)
	switch {
	case err != nil:
		return nil, err
	case len(batch) != len(b):
		return nil, fmt.Errorf("%w: %d bytes behind the batch", record.ErrInvalid, len(b)-len(batch))
	case int64(len(batch)) > min(c.MaxBatchBytes, c.SegmentBytes):
		return nil, fmt.Errorf("%w: %d bytes, at most %d", ErrTooLarge, len(batch), min(c.MaxBatchBytes, c.SegmentBytes))
	}
	if c.TimestampType == record.LogAppendTime {
		return dated(batch, record.LogAppendTime, nowMs), nil
	}
	return batch, nil
}

// checkClient returns the batch as the log stores it, offsets and epoch apart: a
// copy if the timestamps are not what the client said (log-format §2.8). Errors
// wrap a *record.ClientError.
func (l *Log) checkClient(b []byte, nowMs int64) (record.Batch, error) {
	c := l.cfg.Load()
	rules := c.rules(nowMs)
	batch, maxTs, err := record.ValidateClient(b, &rules)
	if err == nil && int64(len(batch)) > c.SegmentBytes {
		err = &record.ClientError{Code: record.CodeRecordListTooLarge, Err: fmt.Errorf("%d bytes, a segment takes %d", len(batch), c.SegmentBytes)}
	}
	if e, ok := errors.AsType[*record.ClientError](err); ok && (e.Code == record.CodeMessageTooLarge || e.Code == record.CodeRecordListTooLarge) {
		err = fmt.Errorf("%w: %w", ErrTooLarge, err)
	}
	if err != nil {
		return nil, err
	}
	return dated(batch, c.TimestampType, maxTs), nil
}

// dated returns the batch with timestamp type and largest timestamp, b itself if
// it has them.
func dated(b record.Batch, t record.TimestampType, ms int64) record.Batch {
	if b.TimestampType() != t || b.MaxTimestamp() != ms {
		b = slices.Clone(b)
		b.SetMaxTimestamp(t, ms)
	}
	return b
}

// copyLocked puts a batch behind the end with base offset and epoch stamped.
func (l *Log) copyLocked(s *segment.Segment, b record.Batch, base int64, epoch int32) error {
	n := len(b)
	if l.o.Sync == Always {
		g := record.Batch(l.gatherLocked(n))
		copy(g, b)
		g.SetBaseOffset(base)
		g.SetLeaderEpoch(epoch)
		return l.writeLocked(s, g)
	}
	if err := stampGuarded(s.Reserve(n), b, base, epoch); err != nil {
		return l.fail("append", err)
	}
	l.commitLocked(s, n, base+int64(b.LastOffsetDelta()), b.MaxTimestamp())
	return nil
}

// ErrOrder means that a follower's batch does not go on where the log ends.
var ErrOrder = segment.ErrOrder

// demand is what a follower asks of its leader's batches beside what they say of
// themselves.
type demand struct {
	epoch int32 // none is of a later one
	gaps  bool  // the topic is compacted: offsets may be missing
	leo   int64 // the leader's log ends here, as it says
}

// appendFollower appends the leader's batches as they are (log-format §2.8,
// replication A5): they are copied, and the copy is validated. Base offset and
// leader epoch lie outside the checksum; the order checks here are all that
// guards them.
func (l *Log) appendFollower(src []byte, d demand, nowMs int64) (a Appended, err error) {
	a.Base = l.LogEndOffset()
	a.End = a.Base
	for len(src) > 0 {
		n, err := l.appendRun(src, d, nowMs, &a)
		if err != nil {
			return a, err
		}
		src = src[n:]
	}
	return a, nil
}

// head is what the header of a leader's batch says.
type head struct {
	size       int
	base, last int64
	maxTs      int64
	epoch      int32
	produced   bool
}

// readHead reads the header at the start of src, which may be the leader's map.
func readHead(src []byte) (h head, err error) {
	var b [record.HeaderSize]byte
	n := min(len(src), len(b))
	if err = copyOut(b[:n], src[:n]); err == nil {
		h, err = headOf(b[:n], len(src))
	}
	return h, err
}

func headOf(b record.Batch, present int) (h head, err error) {
	if h.size, err = record.CheckHeader(b, present); err != nil {
		return h, err
	}
	h.base, h.last, h.epoch = b.BaseOffset(), b.LastOffset(), b.LeaderEpoch()
	h.maxTs, h.produced = b.MaxTimestamp(), b.HasProducer()
	if h.base < 0 || h.last < h.base || h.last == math.MaxInt64 {
		err = fmt.Errorf("%w: batch %d to %d", ErrOrder, h.base, h.last)
	}
	return h, err
}

// appendRun appends the first batch of src and those that may follow it by one
// copy. It returns their size; a.End moves with what was appended.
func (l *Log) appendRun(src []byte, d demand, nowMs int64, a *Appended) (n int, err error) {
	h, err := readHead(src)
	if err != nil {
		return 0, fmt.Errorf("append from leader at offset %d: %w", a.End, err)
	}
	l.appendMu.Lock()
	s, err := l.roomForLocked(src, &h, d, nowMs)
	if err != nil {
		l.appendMu.Unlock()
		return 0, err
	}
	end := s.End()
	n = h.size
	if h.base == end { // a gap is in the slot before more comes behind it: see below
		l.extendRun(&n, src, s, &h, nowMs)
	}
	if h.produced && l.prod.emptyTo == noProducers {
		l.expectLocked(h.base)
	}
	err = l.takeRunLocked(s, src[:n], &h)
	if s.End() == end {
		l.unlockAppended(err)
		return 0, err
	}
	a.End = s.End()
	if h.base > end {
		l.storeSlot() // recovery takes no gap that the slot does not know
	}
	l.unlockAppended(nil)
	return n, err
}

// roomForLocked returns the segment that the first of the leader's batches goes to,
// which may begin a log, an epoch or, behind a gap, a segment: only a good batch does.
// appendMu is held, but not all the time.
func (l *Log) roomForLocked(src []byte, h *head, d demand, nowMs int64) (*segment.Segment, error) {
	in := incoming{n: h.size, base: h.base, last: h.last, ts: h.maxTs, now: nowMs}
	for good := false; ; {
		if err := l.writable(); err != nil {
			return nil, err
		}
		if l.heldAt.Load() >= 0 {
			return nil, ErrHeld
		}
		s, newest := l.active.Load(), l.epochs.last()
		end := s.End()
		first := h.base < end && end == l.logStart.Load() && s.Size() == 0 && h.last >= end
		var err error
		switch {
		case h.base < end && !first:
			err = fmt.Errorf("%w: base offset %d, log ends at %d", ErrOrder, h.base, end)
		case h.base > end && !d.gaps:
			err = fmt.Errorf("%w: base offset %d, log ends at %d and is not compacted", ErrOrder, h.base, end)
		case h.epoch > d.epoch:
			err = fmt.Errorf("%w: epoch %d of a leader of epoch %d", ErrOrder, h.epoch, d.epoch)
		case h.epoch >= 0 && h.epoch < newest.Epoch && !first:
			err = fmt.Errorf("%w: epoch %d behind epoch %d", ErrOrder, h.epoch, newest.Epoch)
		}
		begins := h.epoch >= 0 && (h.epoch > newest.Epoch || h.base < newest.StartOffset)
		if err == nil && !good && (h.base != end || begins) {
			if err = checkCopy(src[:h.size]); err == nil && first {
				err = checkFirst(src[h.size:], h, d)
			}
			good = true
		}
		if err != nil {
			return nil, fmt.Errorf("append from leader at offset %d: %w", end, err)
		}
		switch {
		case first: // the leader's log start lies inside its first batch (A15): begin there
			err = l.outsideLocked(func() error { return l.restartAt(h.base, end) })
		case begins && l.ready(s, h.size, l.takesLocked(s, &in)):
			// On disk before the append goes on, so that recovery knows every epoch.
			err = l.outsideLocked(func() error { return l.followEpoch(h.epoch, h.base) })
		default:
			var ok bool
			if ok, err = l.fitLocked(s, &in); ok {
				return s, err
			}
		}
		if err != nil {
			return nil, err
		}
	}
}

// checkFirst checks the first batch of a log that begins inside of it. Elsewhere the
// end of the log says where a batch must begin; here nothing does, and no checksum
// covers it. What can be said is that the batch behind it, if there is one, begins
// where it ends, and that it does not end above the leader's log. A base that is
// wrong and stands alone is found at the next batch: see Fetcher.clash.
func checkFirst(rest []byte, h *head, d demand) error {
	if h.last >= d.leo {
		return fmt.Errorf("%w: batch %d to %d, the leader's log ends at %d", ErrOrder, h.base, h.last, d.leo)
	}
	if len(rest) == 0 {
		return nil
	}
	next, err := readHead(rest)
	if err == nil && (next.base <= h.last || next.base > h.last+1 && !d.gaps) {
		err = fmt.Errorf("%w: batch %d to %d, the next one begins at %d", ErrOrder, h.base, h.last, next.base)
	}
	return err
}

// checkCopy checks a copy of a batch: before what cannot be taken back.
func checkCopy(b []byte) error {
	c := make([]byte, len(b))
	err := copyOut(c, b)
	if err == nil {
		_, err = record.Check(c)
	}
	return err
}

// maxRun bounds what is copied before it is validated.
const maxRun = 1 << 20

// extendRun adds to the n bytes of the batch h those behind it in src that follow
// it in s without more ado: of its epoch, without a gap, allocated. What is wrong
// with the one that does not, the next run will say.
func (l *Log) extendRun(n *int, src []byte, s *segment.Segment, h *head, nowMs int64) {
	size := s.Size()
	if size == 0 {
		return // the age of the segment is that of its first batch
	}
	var fault error // as if src ended there
	defer mmap.Guard(src, &fault, debug.SetPanicOnFault(true))
	room := min(s.Ready()-size, maxRun)
	for last := h.last; *n < len(src); {
		rest := src[*n:]
		g, err := headOf(rest[:min(len(rest), record.HeaderSize)], len(rest))
		in := incoming{n: *n + g.size, base: g.base, last: g.last, ts: g.maxTs, now: nowMs}
		if err != nil || g.base != last+1 || g.epoch != h.epoch || int64(in.n) > room || !l.takesLocked(s, &in) {
			return
		}
		*n, last = in.n, g.last
		h.produced = h.produced || g.produced
	}
}

// takeRunLocked copies a run of batches behind the end of s, validates the copy and
// commits what is good, up to the first that is not.
func (l *Log) takeRunLocked(s *segment.Segment, src []byte, h *head) error {
	if l.o.Sync == Always {
		b := l.gatherLocked(len(src))
		if err := copyOut(b, src); err != nil {
			return fmt.Errorf("append from leader: %w", err)
		}
		good, err := checkRun(b, h)
		if good > 0 {
			if err := s.WriteAtEnd(b[:good]); err != nil {
				return l.fail("append", err)
			}
			l.commitRunLocked(s, b[:good])
		}
		return err
	}
	err, own := l.mapRunLocked(s, src, h)
	if own != nil {
		return l.fail("append", own)
	}
	return err
}

// mapRunLocked is takeRunLocked in the map. own is a fault there.
func (l *Log) mapRunLocked(s *segment.Segment, src []byte, h *head) (err, own error) {
	b := s.Reserve(len(src))
	defer mmap.Guard(b, &own, debug.SetPanicOnFault(true))
	good := 0
	if err = copyOut(b, src); err != nil {
		err = fmt.Errorf("append from leader: %w", err)
	} else {
		good, err = checkRun(b, h)
	}
	clear(b[good:])
	l.commitRunLocked(s, b[:good])
	return err, nil
}

// checkRun validates a copy that begins with the batch h: it is as it looked before
// it was copied, and whole. It returns the size of what is good.
func checkRun(p []byte, h *head) (good int, err error) {
	for due := h.base; good < len(p); {
		b, err := record.Check(p[good:])
		if err == nil && (b.BaseOffset() != due || b.LeaderEpoch() != h.epoch || b.LastOffset() < due || b.LastOffset() == math.MaxInt64) {
			err = fmt.Errorf("%w: batch %d to %d of epoch %d", ErrOrder, b.BaseOffset(), b.LastOffset(), b.LeaderEpoch())
		}
		if err != nil {
			return good, fmt.Errorf("append from leader at offset %d: %w", due, err)
		}
		good, due = good+len(b), b.NextOffset()
	}
	return good, nil
}

func (l *Log) commitRunLocked(s *segment.Segment, p []byte) {
	for len(p) > 0 {
		n, _ := record.PeekSize(p)
		b := record.Batch(p[:n])
		l.commitLocked(s, n, b.LastOffset(), b.MaxTimestamp())
		if b.HasProducer() {
			l.prod.table.Update(b, b.BaseOffset())
		}
		p = p[n:]
	}
}

// followEpoch enters the epoch of another leader: this log is no leader's any
// more. l.maint is held.
func (l *Log) followEpoch(epoch int32, start int64) error {
	if err := l.writable(); err != nil {
		return err
	}
	l.epoch.Store(noEpoch)
	err := l.epochs.assign(epoch, start)
	if sticks(err) {
		return l.fail("append from leader", err)
	}
	if err != nil {
		return fmt.Errorf("append from leader: %w", err)
	}
	return nil
}
