// Package tidemark is an embeddable log in Kafka's format: records in, records
// out by offset or time, segments in mapped memory, and a stated promise for
// each append.
//
//	l, err := tidemark.Open("events", tidemark.Options{})
//	base, err := l.Append(tidemark.Record{Key: k, Value: v})
//	for rec, err := range l.Records(base) { … }
//
// Under the default, [Always], an append that returned is on disk; concurrent
// appends share one fdatasync. Under [Interval] and [Never] it is in the page
// cache: it survives a killed process, not a power cut. docs/durability.md has
// the table.
//
// The package is the active shell around package replica, which holds the log
// itself and starts no goroutine. It logs by log/slog and never ends the
// process.
package tidemark

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"math"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tidemark-log/tidemark/internal/vfs"
	"github.com/tidemark-log/tidemark/record"
	"github.com/tidemark-log/tidemark/replica"
	"github.com/tidemark-log/tidemark/segment"
)

type (
	// Record is one record of a log. For an append Offset and Sequence are ignored
	// and a zero Timestamp means now.
	Record = record.Record
	// Header is a key with a value beside a record.
	Header = record.Header
	// Batch is one record batch, as its bytes.
	Batch = record.Batch
	// View is a run of whole batches in the mapped log, zero-copy: its bytes
	// are valid until Release, and an I/O error of the disk under them kills
	// the process (Go cannot recover a fault in somebody else's goroutine). Use
	// Read where that matters.
	View = replica.View
	// CorruptError names file, position and offset of damage.
	CorruptError = replica.CorruptError
	// Progress of a long recovery.
	Progress = replica.Progress
	// Stats are counters and ends of a log.
	Stats = replica.Stats
	// SyncMode says when an append counts as kept.
	SyncMode = replica.SyncMode
)

const (
	Always   = replica.Always   // when it is on disk
	Interval = replica.Interval // when it is in the page cache; a sync follows
	Never    = replica.Never    // when it is in the page cache
)

var (
	ErrClosed     = replica.ErrClosed
	ErrOutOfRange = replica.ErrOutOfRange
	ErrFailed     = replica.ErrFailed
	ErrNoRoom     = replica.ErrNoRoom // a full disk, or another lack of the file system's; nothing was appended
	ErrReadOnly   = replica.ErrReadOnly
	ErrCorrupt    = replica.ErrCorrupt
	ErrTooLarge   = replica.ErrTooLarge
	ErrLocked     = replica.ErrLocked
)

// Options of a log. The zero value is ready to use and keeps every promise.
type Options struct {
	// Sync says when an append counts as kept. Default Always.
	Sync SyncMode
	// SyncInterval is the longest time between an append and its sync under
	// Interval. Default 1 s, from 1 ms.
	SyncInterval time.Duration
	// SegmentBytes is how large a segment file grows. Default 64 MiB, from 4
	// KiB to 2 GiB − 4 KiB.
	SegmentBytes int64
	// IndexIntervalBytes is how many log bytes pass between two entries of the
	// offset index. Lower makes point reads cheaper and costs 8 bytes an entry.
	// Default 4 KiB, from 1 B to 1 MiB.
	IndexIntervalBytes int64
	// MaxBatchBytes is the largest batch, as stored. Default 1 MiB + 12 B.
	MaxBatchBytes int
	// PopulateBytes is how far ahead of the end a goroutine prepares pages. Default 2
	// MiB, under Interval 8 MiB; at most 64 MiB; not under Always.
	PopulateBytes int64

	// Retention is how long records are kept: a segment is deleted some time
	// after its newest record got older, the one that is appended to as well.
	// Default 0, for ever; at least 1 ms. See docs/retention.md.
	Retention time.Duration
	// RetentionBytes is how much is kept: the oldest segment is deleted once the
	// others hold so many bytes, so the log holds up to a segment more. Default
	// 0, any amount.
	RetentionBytes int64
	// SegmentAge ends a segment when an append is so much younger than its first
	// batch, full or not, which lets Retention be finer. Default: Retention, at
	// most 7 days; without Retention a segment ends when it is full.
	SegmentAge time.Duration
	// TimestampAhead is how far ahead of the clock a record may be dated; one
	// beyond it is refused, since it would keep its segment until then. Default:
	// 1 h with Retention, else any.
	TimestampAhead time.Duration
	// LogAppendTime gives each record the time of its append, whatever it says.
	LogAppendTime bool

	// MaxProducers is how many idempotent producers are remembered, in 70 to 200
	// bytes each; the longest idle make room. Default 1,000,000, at most 2^24 − 2.
	MaxProducers int
	// ProducerExpiration is how long after its last batch, by that batch's timestamp,
	// a producer is remembered. Default 24 h.
	ProducerExpiration time.Duration
	// ReadOnly opens without a lock, beside a writer too, and changes nothing.
	// What is seen is the log as it was at the open.
	ReadOnly bool
	// OnRecovery is called now and then while a long recovery scans.
	OnRecovery func(Progress) `json:"-"`
	// Logger takes what an operator should see. Default: discards.
	Logger *slog.Logger `json:"-"`
}

// Log is an open log. All methods are safe for concurrent use.
type Log struct {
	log   *replica.Log
	clock clock
	mode  SyncMode

	commit struct { // group commit: who finds no sync under way leads one
		mu       sync.Mutex
		cond     sync.Cond
		inFlight bool
		waiting  int  // appends that wait for the sync under way
		crowded  bool // some waited for the last one
		closing  bool // nobody leads a sync any more: Close does the last
		closed   bool
	}
	waiting atomic.Int32 // tails
	moved   struct {
		mu sync.Mutex
		ch chan struct{} // closed when the high watermark moves or the log closes
	}

	crew     *crew
	maintain task        // Maintain has something to do
	sync     task        // something is to be synced that nobody waits for
	due      *time.Timer // of maintain; used by it alone, and by Close behind it
	interval time.Duration
	ticking  atomic.Bool // under Interval: sync is due within interval
	// Of a replica, else nil: what follows each sync that was led, and how much longer
	// it takes than the disk does.
	synced func()
	slow   func() time.Duration

	folder *Folder // nil for a log of its own
	name   TopicPartition
	closer sync.Once
	err    error
}

// Open opens the log in directory dir, making it if there is none, and recovers
// it: a torn end is cut; damage below what was synced leaves a log that serves
// everything else and takes no appends (see Damage). After a killed process
// that takes milliseconds, whatever the log's size.
//
// Errors: ErrLocked if another process has it open; a field of Options that is
// out of range; errors of the file system, such as a full disk.
func Open(dir string, o Options) (*Log, error) {
	if !o.ReadOnly {
		if err := vfs.MkdirAll(vfs.OS, dir); err != nil {
			return nil, fmt.Errorf("open log %s: %w", dir, err)
		}
	}
	// One goroutine for what prepares space, one for syncs.
	return open(&o, newCrew(2), func(ro replica.Options, now time.Time) (*replica.Log, error) {
		return replica.Open(dir, ro, now)
	})
}

func (o *Options) replica() replica.Options {
	ro := replica.Options{Sync: o.Sync, SyncInterval: o.SyncInterval, SegmentBytes: o.SegmentBytes,
		IndexIntervalBytes: o.IndexIntervalBytes, MaxBatchBytes: o.MaxBatchBytes, PopulateBytes: o.PopulateBytes,
		MaxProducers: o.MaxProducers, ProducerExpiration: o.ProducerExpiration,
		ReadOnly: o.ReadOnly, Progress: o.OnRecovery, Logger: o.Logger}
	c := replica.EmbeddedConfig()
	if o.Retention != 0 {
		c.RetentionMs = wholeMs(o.Retention)
		c.SegmentMs = max(min(c.RetentionMs, (7*24*time.Hour).Milliseconds()), 1)
		c.TimestampAfterMaxMs = time.Hour.Milliseconds()
		// What is kept for a minute only is not looked at every five.
		ro.RetentionInterval = min(max(o.Retention, time.Second), 5*time.Minute)
	}
	if o.RetentionBytes != 0 {
		c.RetentionBytes = negative(o.RetentionBytes)
	}
	if o.SegmentAge != 0 {
		c.SegmentMs = wholeMs(o.SegmentAge)
	}
	if o.TimestampAhead != 0 {
		c.TimestampAfterMaxMs = wholeMs(o.TimestampAhead)
	}
	if o.LogAppendTime {
		c.TimestampType = record.LogAppendTime
	}
	ro.Config = &c
	return ro
}

// wholeMs is d in ms, at least 1; a negative one is no duration that a setting
// takes.
func wholeMs(d time.Duration) int64 {
	if d < 0 {
		return negative(-1)
	}
	return max(d.Milliseconds(), 1)
}

// negative keeps -1, which stands for no limit in Kafka's settings, from those
// that mean something else by it.
func negative(v int64) int64 {
	if v < 0 {
		return min(v, -2)
	}
	return v
}

// open makes a Log that leads itself of what the function of the same name opens.
func open(o *Options, c *crew, open func(replica.Options, time.Time) (*replica.Log, error)) (*Log, error) {
	ro := o.replica()
	ro.Sole = true
	l, err := start(o, c, ro, open)
	if err != nil || ro.ReadOnly || l.log.Damage() != nil {
		return l, err
	}
	if err := l.log.BeginEpoch(max(l.log.Stats().LeaderEpoch, 0)); err != nil {
		l.log.Close(time.Now())
		return nil, err
	}
	l.begin()
	return l, nil
}

// start opens a log with all that works behind it, which begin sets going.
func start(o *Options, c *crew, ro replica.Options, open func(replica.Options, time.Time) (*replica.Log, error)) (*Log, error) {
	l := &Log{mode: o.Sync, crew: c, interval: o.SyncInterval}
	if l.interval == 0 {
		l.interval = time.Second
	}
	l.commit.cond.L = &l.commit.mu
	l.moved.ch = make(chan struct{})
	l.maintain.run, l.sync.run = l.runMaintain, l.runSync
	ro.Notify = l.notify
	log, err := open(ro, time.Now())
	if err != nil {
		return nil, err
	}
	l.log = log
	return l, nil
}

// begin sets the background work of a sound log going.
func (l *Log) begin() {
	l.crew.do(&l.maintain)
	if l.log.SyncedEnd() < l.log.LogEndOffset() { // left by a killed process: due at once (R7)
		l.crew.do(&l.sync)
	}
}

// notify runs on the goroutine that appended or synced.
func (l *Log) notify(c replica.Change) {
	if c&replica.Work != 0 {
		l.crew.do(&l.maintain)
	}
	if c&replica.LEO != 0 && l.mode == Interval {
		l.arm()
	}
	if l.waiting.Load() != 0 && c&^replica.Work != 0 {
		l.wakeTails()
	}
}

// arm has a sync led within the interval. A timer that outlives the log does
// nothing.
func (l *Log) arm() {
	if !l.ticking.Load() && !l.ticking.Swap(true) {
		time.AfterFunc(l.interval, func() { l.crew.do(&l.sync) })
	}
}

func (l *Log) wakeTails() {
	l.moved.mu.Lock()
	defer l.moved.mu.Unlock()
	close(l.moved.ch)
	l.moved.ch = make(chan struct{})
}

// Append appends records as one batch, all or none, and returns the offset of
// the first. When it returns, the records are kept as the sync mode says. The
// slices are not kept.
//
// Errors: ErrTooLarge; *record.ClientError for a timestamp beyond
// TimestampAhead; ErrClosed; ErrReadOnly; *CorruptError for a damaged log;
// ErrNoRoom beside an error of the file system such as a full disk, after which
// nothing was appended and the log goes on; ErrFailed after a failed write or sync, and from
// then on for every append: what was appended but not acknowledged may or may
// not be there after the log is opened again.
func (l *Log) Append(recs ...Record) (base int64, err error) {
	a, err := l.log.AppendRecords(recs, time.UnixMilli(l.clock.now()))
	if err != nil {
		return 0, err
	}
	if l.mode == Always {
		if err := l.wait(a.End); err != nil {
			return 0, err
		}
	}
	return a.Base, nil
}

// AppendBatch appends a batch that record.Builder or a Kafka client made. It is
// validated whole, its base offset must be 0, and b is not changed. Errors: those
// of Append, and *record.ClientError with the Kafka error code for a bad batch.
//
// A batch with a producer id, epoch and sequence (record.Spec has them) is
// appended once: sent again, within the producer's last five, it is not appended
// and base is that of the original, kept as the sync mode says. One that does not
// come next in its producer's sequence, or is of an older epoch, is refused with
// code 45 or 47; errors.Is knows dedupe.ErrOutOfOrder and dedupe.ErrFenced. An id
// that the log does not know, or has forgotten, begins with any sequence.
func (l *Log) AppendBatch(b Batch) (base int64, err error) {
	a, err := l.log.Append(b, replica.Client, time.UnixMilli(l.clock.now()))
	if err != nil {
		return 0, err
	}
	if l.mode == Always {
		if err := l.wait(a.End); err != nil {
			return 0, err
		}
	}
	return a.Base, nil
}

// Ack stands for an append that was not waited for.
type Ack struct {
	l *Log
	// Base is the offset of the first record, End the offset behind the last.
	Base, End int64
}

// AppendAsync is Append without the wait: the records have their offsets and
// are in the log, and Ack.Wait returns once they are kept. The sync is begun
// without it.
func (l *Log) AppendAsync(recs ...Record) (Ack, error) {
	a, err := l.log.AppendRecords(recs, time.UnixMilli(l.clock.now()))
	if err != nil {
		return Ack{}, err
	}
	if l.mode == Always {
		l.crew.do(&l.sync)
	}
	return Ack{l: l, Base: a.Base, End: a.End}, nil
}

// Wait returns when the records are kept as the sync mode says. An error of ctx
// says nothing about them. It may be called again. Other errors: ErrClosed;
// ErrFailed after a failed write or sync.
func (a Ack) Wait(ctx context.Context) error {
	if a.l.mode != Always || a.l.log.SyncedEnd() >= a.End {
		return nil
	}
	if ctx.Done() == nil {
		return a.l.wait(a.End)
	}
	for {
		ch := a.l.watch()
		synced, err := a.l.log.SyncedEnd() >= a.End, a.l.log.Err()
		closed := a.l.isClosed()
		if synced || err != nil || closed {
			a.l.unwatch()
			if synced {
				return nil
			}
			if err == nil {
				err = ErrClosed
			}
			return err
		}
		select {
		case <-ch:
			a.l.unwatch()
		case <-ctx.Done():
			a.l.unwatch()
			return ctx.Err()
		}
	}
}

// wait returns once everything below end is on disk. Whoever finds no sync
// under way leads one that covers all that was appended so far.
func (l *Log) wait(end int64) error {
	c := &l.commit
	c.mu.Lock()
	defer c.mu.Unlock()
	for l.log.SyncedEnd() < end {
		if err := l.log.Err(); err != nil {
			return err
		}
		if c.closed {
			return ErrClosed
		}
		if c.inFlight || c.closing {
			c.waiting++
			c.cond.Wait()
			c.waiting--
			continue
		}
		l.leadLocked(l.log.StartSync)
	}
	return nil
}

// leadLocked runs one sync and reports whether there was one to run. commit.mu
// is held, and let go of meanwhile.
func (l *Log) leadLocked(start func() *replica.Sync) bool {
	c := &l.commit
	c.inFlight = true
	crowded := c.crowded
	c.mu.Unlock()
	if crowded {
		// The last sync let several appenders go. They are about to come back:
		// let them, or this sync covers one append and the next one the rest.
		runtime.Gosched()
	}
	s := start()
	if s != nil {
		err := s.Wait()
		if l.slow != nil {
			time.Sleep(l.slow())
		}
		l.log.FinishSync(s, err)
		if l.synced != nil {
			l.synced()
		}
	}
	c.mu.Lock()
	c.inFlight = false
	c.crowded = c.waiting > 0
	c.cond.Broadcast()
	return s != nil
}

// lead runs one sync once none is under way, and reports whether it did.
func (l *Log) lead(start func() *replica.Sync) bool {
	c := &l.commit
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.inFlight && !c.closing {
		c.cond.Wait()
	}
	return !c.closing && l.leadLocked(start)
}

// Sync returns when everything appended before the call is on disk, whatever the
// sync mode. Errors: those of Append but ErrTooLarge.
func (l *Log) Sync() error {
	if err := l.log.Writable(); err != nil {
		return err
	}
	return l.wait(l.log.LogEndOffset())
}

// runSync leads a sync for appends that nobody waits for.
func (l *Log) runSync() {
	l.ticking.Store(false) // what is appended from here on may come too late for this one
	l.lead(l.log.StartSync)
	if l.mode == Interval && l.log.SyncedEnd() < l.log.LogEndOffset() && l.log.Writable() == nil {
		l.arm()
	}
}

// runMaintain prepares space ahead of appends and syncs sealed segments.
func (l *Log) runMaintain() {
	now := time.Now()
	next, err := l.log.Maintain(now)
	if err == nil && next.SealedSync {
		l.lead(func() *replica.Sync { return l.log.StartSealedSync(now) })
		next, _ = l.log.Maintain(time.Now())
	}
	if next.At.IsZero() {
		return
	}
	wait := max(time.Until(next.At), time.Second) // or it could not be done now
	if l.due == nil {
		l.due = time.AfterFunc(wait, func() { l.crew.do(&l.maintain) })
	} else {
		l.due.Reset(wait)
	}
}

// DeleteRecords makes offset the first that can be read; −1 deletes everything up
// to the high watermark. It is durable when it returns. Reads below it are
// ErrOutOfRange from then on, views of it stay valid until released, and segments
// wholly below it are deleted in the background. At or below the log start it
// does nothing.
//
// Errors: ErrOutOfRange if offset is below −1 or above the high watermark;
// ErrClosed, ErrReadOnly, ErrFailed, *CorruptError as of Append.
func (l *Log) DeleteRecords(offset int64) error { return l.log.DeleteRecords(offset) }

// LogStartOffset is the first offset that may be read.
func (l *Log) LogStartOffset() int64 { return l.log.LogStartOffset() }

// HighWatermark is the end of what may be read: what an ack covers. Under
// Always that is what is on disk.
func (l *Log) HighWatermark() int64 { return l.log.HighWatermark() }

// LogEndOffset is the offset the next record gets.
func (l *Log) LogEndOffset() int64 { return l.log.LogEndOffset() }

// SyncedEnd is the offset below which everything is on disk.
func (l *Log) SyncedEnd() int64 { return l.log.SyncedEnd() }

// Stats returns a snapshot of counters and ends.
func (l *Log) Stats() Stats { return l.log.Stats() }

// Damage is the first damage that opening found, nil if none. A damaged log
// serves everything else and takes no appends.
func (l *Log) Damage() *CorruptError { return l.log.Damage() }

// ID is the log's random id, made with its directory and never copied.
func (l *Log) ID() [16]byte { return l.log.ID() }

// Read appends to dst whole batches from the one holding offset up to the high
// watermark, at most maxBytes of them but always the first. At the high
// watermark it returns dst and no error. Every checksum is checked in the copy.
//
// Errors: ErrOutOfRange, ErrClosed, *CorruptError; dst is then unchanged.
func (l *Log) Read(dst []byte, offset int64, maxBytes int) ([]byte, error) {
	return l.log.Read(dst, offset, l.log.HighWatermark(), maxBytes)
}

// View is Read without the copy: release it. Only the first batch's checksum was
// checked.
func (l *Log) View(offset int64, maxBytes int) (View, error) {
	return l.log.View(offset, l.log.HighWatermark(), maxBytes)
}

// Get reads the record at offset, or the first one behind it where offset lies
// in a gap, checksum checked. Its slices alias buf if that is large enough, else
// fresh memory.
//
// Errors: ErrOutOfRange at or above the high watermark or below the log start;
// ErrClosed; *CorruptError.
func (l *Log) Get(offset int64, buf []byte) (Record, error) {
	hw := l.log.HighWatermark()
	if offset >= hw {
		if l.isClosed() {
			return Record{}, ErrClosed
		}
		return Record{}, outOfRange(offset, l.log.LogStartOffset(), hw)
	}
	rec, _, ok, err := l.log.Get(offset, hw, buf)
	if err == nil && !ok {
		err = outOfRange(offset, l.log.LogStartOffset(), hw)
	}
	return rec, err
}

// OffsetForTime returns the offset of the first record, in the order of the log,
// whose timestamp is at or after t; ok is false if there is none below the high
// watermark.
func (l *Log) OffsetForTime(t time.Time) (offset int64, ok bool, err error) {
	offset, _, ok, err = l.log.OffsetForTime(t.UnixMilli(), l.log.HighWatermark())
	return offset, ok, err
}

// Verify reads every batch of the log and reports damage, in order, until fn
// returns false.
func (l *Log) Verify(fn func(*CorruptError) bool) error {
	return l.log.Verify(l.log.LogStartOffset(), l.log.LogEndOffset(), fn)
}

// Records yields the records from offset from on, up to the high watermark as it
// is when the loop gets there. It is zero-copy: the slices of a record are valid
// during its turn of the loop, and what View says of I/O errors holds. Every
// checksum is checked first. Damage is yielded as an error, a *CorruptError; a
// loop that goes on gets what lies behind it. Control records are left out.
func (l *Log) Records(from int64) iter.Seq2[Record, error] {
	return func(yield func(Record, error) bool) {
		l.records(from, yield)
	}
}

// Tail yields as Records does and then waits for more, without polling, until
// ctx ends or the log is closed. It ends with the error of ctx or ErrClosed.
func (l *Log) Tail(ctx context.Context, from int64) iter.Seq2[Record, error] {
	return func(yield func(Record, error) bool) {
		for {
			next, ok := l.records(from, yield)
			if !ok {
				return
			}
			from = next
			ch := l.watch()
			closed := l.isClosed()
			if l.log.HighWatermark() > from && !closed {
				l.unwatch()
				continue
			}
			if closed {
				l.unwatch()
				yield(Record{}, ErrClosed)
				return
			}
			select {
			case <-ch:
				l.unwatch()
			case <-ctx.Done():
				l.unwatch()
				yield(Record{}, ctx.Err())
				return
			}
		}
	}
}

// watch returns a channel that is closed when something moves; unwatch ends it.
func (l *Log) watch() <-chan struct{} {
	l.waiting.Add(1)
	l.moved.mu.Lock()
	defer l.moved.mu.Unlock()
	return l.moved.ch
}

func (l *Log) unwatch() { l.waiting.Add(-1) }

var readers = sync.Pool{New: func() any { return new(record.Reader) }}

// records yields up to the high watermark. ok is false once yield was.
func (l *Log) records(from int64, yield func(Record, error) bool) (next int64, ok bool) {
	r := readers.Get().(*record.Reader)
	defer readers.Put(r)
	for {
		hw := l.log.HighWatermark()
		if from >= hw {
			return from, true
		}
		next, ok, err := l.recordsIn(r, from, hw, yield)
		if !ok {
			return from, false
		}
		if segment.Beside(err, from) {
			continue
		}
		if err != nil {
			if !yield(Record{}, err) {
				return from, false
			}
			var c *CorruptError
			if !errors.As(err, &c) {
				return from, false
			}
			next = l.log.Behind(c)
		}
		if next <= from {
			return from, true
		}
		from = next
	}
}

// recordsIn yields the records of one view.
func (l *Log) recordsIn(r *record.Reader, from, hw int64, yield func(Record, error) bool) (next int64, ok bool, err error) {
	viewBytes := 4 << 20
	if hw >= l.log.LogEndOffset() {
		viewBytes = math.MaxInt32 // the rest of the segment: no boundary to look for
	}
	v, err := l.log.ViewUnchecked(from, hw, viewBytes)
	if err != nil || v.Bytes == nil {
		return hw, true, err
	}
	defer v.Release()
	return recordsOf(r, &v, from, yield)
}

// recordsOf yields the records of a view from offset from on.
func recordsOf(r *record.Reader, v *View, from int64, yield func(Record, error) bool) (next int64, ok bool, err error) {
	f := fetcher{v: v}
	defer f.stop()
	var rec Record
	due := v.Base
	for at := 0; at < len(v.Bytes); {
		f.ahead(at)
		b, err := v.Batch(at, due)
		if err != nil {
			return 0, true, err
		}
		at += len(b)
		base := due
		due = b.NextOffset()
		if b.IsControl() {
			continue
		}
		if err := r.Reset(b); err != nil {
			return 0, true, v.Corrupt(at-len(b), base, err)
		}
		for r.Into(&rec) {
			if rec.Offset >= from && !yield(rec, nil) {
				return 0, false, nil
			}
		}
		if err := r.Err(); err != nil {
			return 0, true, v.Corrupt(at-len(b), base, err)
		}
	}
	return due, true, nil
}

// Backup makes a copy of the log up to the high watermark in dir, which must not
// exist: sealed segments are linked, the rest is copied. It is a log of its own
// with an id of its own. Writes go on meanwhile.
func (l *Log) Backup(dir string) error {
	if err := l.Sync(); err != nil && !errors.Is(err, ErrReadOnly) {
		return err
	}
	return l.log.Backup(dir)
}

func (l *Log) isClosed() bool {
	l.commit.mu.Lock()
	defer l.commit.mu.Unlock()
	return l.commit.closed
}

// Close waits for what runs, syncs whatever the sync mode, trims the files and
// marks the log clean. It returns the first write or sync error of the log's
// life, also one that happened in the background, and the same when called
// again. Views stay valid until released.
func (l *Log) Close() error {
	return l.end(func() error {
		err := l.log.Close(time.Now())
		if l.folder != nil {
			l.folder.closedLog(l)
		}
		return err
	})
}

// end stops everything and then closes the log by the function given.
func (l *Log) end(how func() error) error {
	l.closer.Do(func() {
		c := &l.commit
		c.mu.Lock()
		c.closing = true
		for c.inFlight {
			c.cond.Wait()
		}
		c.cond.Broadcast()
		c.mu.Unlock()
		l.crew.stop(&l.maintain)
		l.crew.stop(&l.sync)
		if l.due != nil {
			l.due.Stop()
		}
		l.err = how()
		c.mu.Lock()
		c.closed = true
		c.cond.Broadcast()
		c.mu.Unlock()
		l.wakeTails()
	})
	return l.err
}
