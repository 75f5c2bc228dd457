// Package replica keeps one replica's copy of a partition: a log of segments in
// offset order with its leader-epoch history, its high watermark and what must
// survive a killed process, and a data folder of such logs.
//
// The package is passive: it starts no goroutine and reads no clock. The caller
// passes the time and the file system in, and makes bytes durable in three
// steps, [Log.StartSync], [Sync.Wait] and [Log.FinishSync], so that the same
// code runs under a simulator. The active shell is package tidemark.
//
// Numbers like R7 are rules of docs/replication.md; I9 and the like its
// invariants.
package replica

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tidemark-log/tidemark/internal/vfs"
	"github.com/tidemark-log/tidemark/partition"
	"github.com/tidemark-log/tidemark/record"
	"github.com/tidemark-log/tidemark/segment"
)

var (
	// ErrClosed is what every method returns after Close.
	ErrClosed = errors.New("log is closed")
	// ErrOutOfRange means that an offset lies below the log start or above the end.
	ErrOutOfRange = errors.New("offset out of range")
	// ErrFailed means that a write or a sync failed earlier in this life of the
	// log. It stays: nothing more is acknowledged until the log is opened again
	// (R8). The first error is wrapped beside it.
	ErrFailed = errors.New("log has failed")
	// ErrNoRoom means that an append found no room: a full disk, a directory that is
	// gone, a bound of the process. Nothing has changed, and a later one may find some
	// (R8). The file system's error is wrapped beside it.
	ErrNoRoom = errors.New("no room for an append")
	// ErrReadOnly is returned by whatever would change a log opened read-only.
	ErrReadOnly = errors.New("log is read-only")
	// ErrHeld means that a restarted replica has not been judged yet (R9).
	ErrHeld = errors.New("tail is held until a leader has judged it")
	// ErrBusy means that a view or a sync is in the way: try again later.
	ErrBusy = segment.ErrBusy
	// ErrCorrupt is what every *CorruptError is.
	ErrCorrupt = segment.ErrCorrupt
	// ErrTooLarge means that a batch is above Config.MaxBatchBytes, or does not
	// fit into a segment.
	ErrTooLarge = errors.New("message too large")
	// ErrPolicy means that the log's configuration does not let its records be
	// deleted (Kafka: POLICY_VIOLATION).
	ErrPolicy = errors.New("the cleanup policy does not allow it")
	// ErrLocked means that another process has the directory open.
	ErrLocked = vfs.ErrLocked
)

// CorruptError reports damage with file, position and offsets.
type CorruptError = segment.CorruptError

// View is a run of whole batches in the mapped log; see segment.View.
type View = segment.View

// SyncMode says when an append counts as kept.
type SyncMode int

const (
	// Always: when it is on disk.
	Always SyncMode = iota
	// Interval: when it is in the page cache; a sync follows every SyncInterval.
	Interval
	// Never: when it is in the page cache; only sealed segments are synced, in
	// the background.
	Never
)

func (m SyncMode) String() string { return [...]string{"always", "interval", "never"}[m] }

// Change tells a Notify hook what moved.
type Change uint8

const (
	LEO    Change = 1 << iota // the log end offset
	Synced                    // the synced end
	HW                        // the high watermark
	Work                      // Maintain has something to do
)

// Options of a log. The zero value is ready to use.
type Options struct {
	// Sync says when an append counts as kept. Default Always.
	Sync SyncMode
	// SyncInterval is the longest time between an append and its sync under
	// Interval. Default 1 s.
	SyncInterval time.Duration
	// SegmentBytes is how large a segment grows before the next one begins.
	// Default 64 MiB, from 4 KiB to 2 GiB.
	SegmentBytes int64
	// IndexIntervalBytes is how many log bytes pass between two entries of the
	// offset index. Lower makes seeks shorter and costs 8 bytes an entry.
	// Default 4 KiB, from 1 B to 1 MiB.
	IndexIntervalBytes int64
	// MaxBatchBytes is the largest batch a leader takes. A follower takes what
	// its leader took. Default 1 MiB + 12 B (Kafka's max.message.bytes); it may
	// not pass SegmentBytes.
	MaxBatchBytes int
	// Config is the topic's configuration; the three fields above, where they are
	// not zero, take the place of its own. Default EmbeddedConfig.
	Config *Config
	// RetentionInterval is how often Maintain looks for segments to delete by
	// age (Kafka's log.retention.check.interval.ms), for the first time after 30
	// s. Default 5 min, from 1 ms.
	RetentionInterval time.Duration
	// PopulateBytes is how far ahead of the end pages are prepared, so that appends
	// do not wait for them. Default 2 MiB, under Interval 8 MiB; at most 64 MiB; not
	// under Always.
	PopulateBytes int64
	// MaxProducers is how many idempotent producers are remembered, in 70 to 200
	// bytes each; see package dedupe for who makes room for a new one. Default
	// 1,000,000, at most 2^24 − 2.
	MaxProducers int
	// ProducerExpiration is how long after its last batch, by that batch's timestamp,
	// a producer is remembered. Default 24 h (Kafka's producer.id.expiration.ms).
	ProducerExpiration time.Duration
	// SealedSyncDelay is how long after the roll a sealed segment is synced in
	// the background under Never and Interval. Default 10 s.
	SealedSyncDelay time.Duration

	// Sole says that no other replica exists: HW is what an ack covers.
	Sole bool
	// Held opens a restarted replica that must be judged by a leader first (R9).
	Held bool
	// ReadOnly opens without a lock, beside a writer too, and changes nothing.
	// What is seen is the log as it was at the open.
	ReadOnly bool

	// Hints from the checkpoints of a data folder, used for a log without a
	// valid slot (R32): Dir fills them in.
	Checkpoints Checkpoints

	// Notify is called after something moved, by the goroutine that moved it,
	// with no lock of the log held. It must not block or call back in.
	Notify func(Change)
	// Progress is called now and then while a long recovery scans.
	Progress func(Progress)
	Logger   *slog.Logger // default: discards

	inDir         bool  // the data folder has the lock
	snapshotEvery int64 // see snapshotEvery; tests make it small

	FS   vfs.FS        // default vfs.OS
	Maps *segment.Maps // default segment.DefaultMaps()
}

// Checkpoints is what Kafka's files in the data folder say of one partition;
// −1 where there is no line.
type Checkpoints struct {
	Valid         bool
	RecoveryPoint int64
	HighWatermark int64
	LogStart      int64
	Clean         bool // the clean marker was there: everything is synced
}

// Progress of a recovery.
type Progress struct {
	Segment      string // file being scanned
	Done, Total  int64  // bytes of all files to scan
	SegmentsLeft int
}

// Validate returns what is wrong with the options, all of it at once; nil if a log
// can be opened with them.
func (o Options) Validate() error { return o.fill() }

func (o *Options) fill() error {
	def := func(v *int64, d int64) {
		if *v == 0 {
			*v = d
		}
	}
	if o.Sync == Interval {
		def(&o.PopulateBytes, 8<<20)
	}
	def(&o.PopulateBytes, 2<<20)
	def(&o.snapshotEvery, snapshotEvery)
	if o.SyncInterval == 0 {
		o.SyncInterval = time.Second
	}
	if o.RetentionInterval == 0 {
		o.RetentionInterval = 5 * time.Minute
	}
	if o.SealedSyncDelay == 0 {
		o.SealedSyncDelay = 10 * time.Second
	}
	if o.FS == nil {
		o.FS = vfs.OS
	}
	if o.Maps == nil {
		o.Maps = segment.DefaultMaps()
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	errs := []error{o.config()}
	bound := func(name string, v, lo, hi int64) {
		if v < lo || v > hi {
			errs = append(errs, fmt.Errorf("option %s: %d, want %d to %d", name, v, lo, hi))
		}
	}
	bound("Sync", int64(o.Sync), int64(Always), int64(Never))
	bound("SyncInterval", int64(o.SyncInterval), int64(time.Millisecond), int64(time.Hour))
	bound("PopulateBytes", o.PopulateBytes, 0, 64<<20)
	bound("RetentionInterval", int64(o.RetentionInterval), int64(time.Millisecond), math.MaxInt64)
	bound("SealedSyncDelay", int64(o.SealedSyncDelay), 0, int64(24*time.Hour))
	d := o.dedupe()
	errs = append(errs, d.Validate())
	return errors.Join(errs...)
}

// Log is one replica's copy of a partition. All methods are safe for concurrent
// use.
//
// Lock order, outermost first: maint, prod.mu, appendMu, sync.mu, slot.mu,
// epochs.mu.
type Log struct {
	o    Options
	cfg  atomic.Pointer[Config] // changed under maint
	so   *segment.Options       // of segments to come; maint
	dir  string
	lock io.Closer

	// maint serializes what allocates and maps: Maintain, growth, preparing a
	// segment, truncation, Close. It may be held across I/O; an append takes it
	// only when it has run out of prepared space.
	maint sync.Mutex

	appendMu  sync.Mutex // one appender; held across the copy or pwrite, never across a sync or an allocation
	buf       *gather    // pwrite gathers here; appendMu
	unslotted int        // bytes appended since the slot was stored; appendMu
	spec      record.Spec
	age       age                             // of the active segment; appendMu
	next      atomic.Pointer[segment.Segment] // prepared: stored under maint, taken under appendMu

	segments atomic.Pointer[[]*segment.Segment] // ascending base; the last is active; changed under appendMu
	active   atomic.Pointer[segment.Segment]
	epoch    atomic.Int32 // what a leader stamps; −1 before BeginEpoch

	hw, logStart atomic.Int64
	heldAt       atomic.Int64 // end shown while held; −1 if not held
	failure      atomic.Pointer[failure]
	damage       atomic.Pointer[CorruptError]
	closed       atomic.Bool
	cutting      atomic.Bool  // a truncation keeps appends out
	asleep       atomic.Bool  // as a clean close left it, nothing open; left under maint
	workAt       atomic.Int64 // size of the active segment from which Maintain has work

	// What was populated, under maint.
	popSeg   *segment.Segment // active when last looked at
	popTo    int64            // its populated end
	popFrom  int64            // its size when first seen
	nextPop  int64            // populated end of next
	busy     bool             // a segment was filled since the open
	expected bool             // Expect was called for popSeg

	keep retention // under maint

	sync struct {
		mu       sync.Mutex
		end      atomic.Int64 // SyncedEnd
		inFlight bool
		sealed   []sealedSegment    // sealed, not yet synced; ascending
		dirty    bool               // names made since the last sync of the directory
		replaced []*segment.Segment // empty ones that a sync under way may still use
		gap      bool               // a segment that began behind a gap is not synced yet
		settled  atomic.Int64       // see slot: settledEnd
		op       Sync
		hwStored time.Time
	}
	slot   *slot
	epochs *epochCache
	prod   producers

	last struct { // how the last life ended; see Evidence
		evidence partition.Evidence
		end      int64
		durable  bool
	}

	closeOnce sync.Once
	closeErr  error
}

type sealedSegment struct {
	seg *segment.Segment
	at  time.Time // of the roll
}

type failure struct{ err error }

// Dir is the directory the log lives in.
func (l *Log) Dir() string { return l.dir }

// ID is the log id: a random 128-bit number of this very directory, made with
// it and never copied (R2). Zero for a log opened read-only without a slot.
func (l *Log) ID() [16]byte {
	if l.slot == nil {
		return [16]byte{}
	}
	l.slot.mu.Lock()
	defer l.slot.mu.Unlock()
	return l.slot.s.logID
}

// LogEndOffset is the offset the next record gets, or while held the end of
// what is not held. It is 0 for an empty log that begins at 0.
func (l *Log) LogEndOffset() int64 {
	if h := l.heldAt.Load(); h >= 0 {
		return h
	}
	return l.active.Load().End()
}

// trueEnd is the end with the held tail.
func (l *Log) trueEnd() int64 { return l.active.Load().End() }

// Tail is the leader epoch of the last batch, −1 if there is none, and the end of the
// log, both with what is held: which of two logs is the longer one (R22).
func (l *Log) Tail() (epoch int32, end int64) {
	end = l.trueEnd()
	return l.epochBelow(end), end
}

// epochBelow is the leader epoch of the batch that ends at end, −1 if the log begins
// there or the batch has none.
func (l *Log) epochBelow(end int64) int32 {
	if end == l.LogStartOffset() {
		return -1
	}
	return l.epochs.at(end - 1)
}

// LogStartOffset is the first offset that may be read.
func (l *Log) LogStartOffset() int64 { return l.logStart.Load() }

// SyncedEnd is the offset below which everything is on disk.
func (l *Log) SyncedEnd() int64 { return min(l.sync.end.Load(), l.LogEndOffset()) }

// CountedEnd is the end that is confirmed to others: SyncedEnd under Always,
// the log end offset otherwise (R6).
func (l *Log) CountedEnd() int64 {
	if l.o.Sync == Always {
		return l.SyncedEnd()
	}
	return l.LogEndOffset()
}

// HighWatermark is the end of what every in-sync replica has.
func (l *Log) HighWatermark() int64 {
	if l.o.Sole {
		return max(l.CountedEnd(), l.logStart.Load())
	}
	return l.hw.Load()
}

// SetHighWatermark moves the high watermark up to hw, bounded by the counted
// end. It never moves it down: only a truncation does.
func (l *Log) SetHighWatermark(hw int64) {
	if l.o.ReadOnly || l.o.Sole {
		return
	}
	if l.raiseHW(hw) {
		l.notify(HW)
	}
}

// raiseHW moves hw and its copy in the slot, under the slot's lock: a truncation
// that lowers both comes before or after as a whole.
func (l *Log) raiseHW(hw int64) bool {
	sl := l.slot
	if sl == nil { // damaged: nothing is written any more
		return false
	}
	sl.mu.Lock()
	defer sl.mu.Unlock()
	hw = min(hw, l.CountedEnd())
	if hw <= l.hw.Load() || l.cutting.Load() || l.closed.Load() {
		return false
	}
	l.hw.Store(hw)
	if err := sl.wakeLocked(); err != nil && sl.asleep {
		l.o.Logger.Warn("high watermark not stored", "dir", l.dir, "hw", hw, "err", err)
		return true
	}
	l.fillSlotLocked() // the mark of a log that sleeps stays
	sl.storeLocked()
	return true
}

// Damage is the first damage that opening found, nil if none. A damaged log
// keeps its files and serves what is good; appends are refused (R32).
func (l *Log) Damage() *CorruptError { return l.damage.Load() }

// Err is the sticky error, nil if the log works.
func (l *Log) Err() error {
	if f := l.failure.Load(); f != nil {
		return f.err
	}
	return nil
}

func (l *Log) notify(c Change) {
	if l.o.Notify != nil {
		l.o.Notify(c)
	}
}

// fail makes an error stick (R8): the flag reaches the slot before the caller
// sees the error.
func (l *Log) fail(doing string, err error) error {
	f := &failure{fmt.Errorf("%s: %w: %w", doing, ErrFailed, err)}
	if l.failure.CompareAndSwap(nil, f) {
		l.slot.mark(flagFailed)
		if err := l.slot.sync(); err != nil {
			l.o.Logger.Error("slot not synced after a failure", "dir", l.dir, "err", err)
		}
		l.o.Logger.Error("log failed, it takes no more appends until reopened", "dir", l.dir, "doing", doing, "err", err)
	}
	return l.failure.Load().err
}

// Writable returns why the log takes no appends, nil if it does: ErrClosed,
// ErrReadOnly, ErrBusy during a truncation, the sticky error, damage.
func (l *Log) Writable() error { return l.writable() }

// writable returns why the log cannot be changed, nil if it can.
func (l *Log) writable() error {
	if l.closed.Load() {
		return ErrClosed
	}
	if f := l.failure.Load(); f != nil {
		return f.err
	}
	if l.o.ReadOnly {
		return ErrReadOnly
	}
	if l.cutting.Load() {
		return ErrBusy
	}
	if d := l.damage.Load(); d != nil {
		return fmt.Errorf("log takes no appends: %w", d)
	}
	return nil
}

// storeSlot writes what the slot must know now. A log whose slot cannot be
// written has failed: after a kill its old copy would name an old end.
func (l *Log) storeSlot() {
	l.slot.mu.Lock()
	l.fillSlotLocked()
	l.slot.storeLocked()
	err := l.slot.err
	l.slot.mu.Unlock()
	if err != nil {
		l.fail("store slot", err)
	}
}

// fillSlotLocked takes the ends as they are. syncedEnd and logStart only grow
// here; lowerSlot lowers them.
func (l *Log) fillSlotLocked() {
	s := &l.slot.s
	s.logStart = max(s.logStart, l.logStart.Load())
	s.syncedEnd = max(s.syncedEnd, l.sync.end.Load(), s.logStart)
	s.hw = max(l.HighWatermark(), s.logStart) // before end: the end only grows
	s.end = max(l.trueEnd(), s.syncedEnd, s.hw)
	s.syncedHW = min(s.hw, s.syncedEnd)
	s.settledEnd = l.sync.settled.Load()
}

// BeginEpoch makes the log a leader's in the given epoch: it is stamped on what
// is appended from now on. The epoch's start is on disk when it returns.
func (l *Log) BeginEpoch(epoch int32) error {
	if err := l.writable(); err != nil {
		return err
	}
	if l.heldAt.Load() >= 0 {
		return ErrHeld
	}
	l.maint.Lock()
	defer l.maint.Unlock()
	if last := l.epochs.latest(); epoch < max(last, 0) {
		return fmt.Errorf("begin leader epoch %d: the log has epoch %d", epoch, last)
	}
	l.appendMu.Lock()
	l.epoch.Store(noEpoch) // appends wait outside while the file is written
	start := l.trueEnd()
	l.appendMu.Unlock()
	if err := l.epochs.assign(epoch, start); err != nil {
		if sticks(err) {
			return l.fail("begin leader epoch", err)
		}
		return fmt.Errorf("begin leader epoch: %w", err) // the file is as before
	}
	l.epoch.Store(epoch)
	l.cleared()
	return nil
}

// noEpoch is Log.epoch of a log that no leader's epoch was begun for.
const noEpoch = -1

// Epochs returns the leader epochs of the log, ascending.
func (l *Log) Epochs() []Epoch { return l.epochs.snapshot() }

// EndOffsetFor answers where an epoch ends in this log: the largest known epoch
// ≤ epoch and the start of the next one; (−1, −1) where that is undefined
// (log-format §6).
func (l *Log) EndOffsetFor(epoch int32) (e int32, end int64) {
	return l.epochs.endOffset(epoch, l.LogEndOffset())
}

func (l *Log) path(name string) string { return filepath.Join(l.dir, name) }

// Stats is a snapshot of counters and ends.
type Stats struct {
	LogStartOffset, HighWatermark, LogEndOffset, SyncedEnd int64
	Segments                                               int
	Bytes                                                  int64 // of batches
	AllocatedBytes                                         int64 // of log files
	MaxTimestamp                                           int64 // ms, −1 if none
	LeaderEpoch                                            int32 // newest, −1 if none
	Maps                                                   int   // of the whole process
	Producers                                              ProducerStats
}

// Stats returns a snapshot.
func (l *Log) Stats() Stats {
	s := Stats{LogStartOffset: l.LogStartOffset(), HighWatermark: l.HighWatermark(), LogEndOffset: l.LogEndOffset(),
		SyncedEnd: l.SyncedEnd(), MaxTimestamp: -1, LeaderEpoch: l.epochs.latest(), Maps: l.o.Maps.Count(), Producers: l.producerStats()}
	for _, seg := range *l.segments.Load() {
		s.Segments++
		s.Bytes += seg.Size()
		s.AllocatedBytes += seg.Allocated()
		s.MaxTimestamp = max(s.MaxTimestamp, seg.MaxTimestamp())
	}
	return s
}
