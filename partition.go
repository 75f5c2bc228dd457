package tidemark

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"math"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tidemark-log/tidemark/dedupe"
	"github.com/tidemark-log/tidemark/isr"
	"github.com/tidemark-log/tidemark/partition"
	"github.com/tidemark-log/tidemark/record"
	"github.com/tidemark-log/tidemark/replica"
	"github.com/tidemark-log/tidemark/segment"
)

// Acks says whose word an append waits for. Use the names: the zero value is AcksAll, and
// the numbers are not those of Kafka's protocol (String gives these).
type Acks int

const (
	// AcksAll: every in-sync replica has it, as the sync mode says, and they are at
	// least MinISR. It outlives every leader as long as one of them does.
	AcksAll Acks = iota
	// AcksLeader: the leader has it, as the topic's sync mode says; it is lost if
	// another leads before it was copied.
	AcksLeader
	// AcksNone: nobody's word. The record is lost without notice if its leader fails.
	AcksNone
)

func (a Acks) String() string {
	if a < 0 || int(a) >= len(kafkaAcks) {
		return fmt.Sprintf("Acks(%d)", int(a))
	}
	return [...]string{"all", "1", "0"}[a]
}

// kafka is the number in Kafka's protocol.
func (a Acks) kafka() int16 {
	if a < 0 || int(a) >= len(kafkaAcks) {
		return math.MinInt16 // refused
	}
	return kafkaAcks[a]
}

var kafkaAcks = [...]int16{-1, 1, 0}

// Code is an error of the replication protocol, with Kafka's number and name.
type Code = partition.Code

// What an append or a read may fail with, by errors.Is. Of NotLeader,
// RequestTimedOut and NotEnoughAfterAppend it is not known whether the records are
// in the log; see Partition.Produce.
const (
	NotLeader            = partition.NotLeader
	RequestTimedOut      = partition.RequestTimedOut
	NotEnoughReplicas    = partition.NotEnoughReplicas
	NotEnoughAfterAppend = partition.NotEnoughAfterAppend
	OffsetOutOfRange     = partition.OffsetOutOfRange
	OffsetNotAvailable   = partition.OffsetNotAvailable
	StorageError         = partition.StorageError
	// IneligibleReplica: a node that is not up or not in sync cannot lead.
	IneligibleReplica = partition.IneligibleReplica
	// Unknown: the coordinator could not store it; it may come to be, or not.
	Unknown = partition.Unknown
	// InvalidRequiredAcks: acks that there are not.
	InvalidRequiredAcks = partition.InvalidRequiredAcks
)

var (
	// ErrTooManyWaiters means that ClusterOptions.MaxWaiters appends to the partition wait
	// for their acks. Nothing was appended.
	ErrTooManyWaiters = isr.ErrTooManyWaiters
	// ErrOutOfOrder and ErrFenced refuse a batch of an idempotent producer: it does not
	// follow that producer's last one, or a newer epoch of the producer was seen.
	ErrOutOfOrder = dedupe.ErrOutOfOrder
	ErrFenced     = dedupe.ErrFenced
)

// Partition is a handle on a partition of a cluster that follows its leader. All
// methods are safe for concurrent use. Once the topic is deleted they fail with
// ErrNoPartition, once the cluster is closed with ErrClosed.
type Partition struct {
	c    *Cluster
	id   partition.ID
	name TopicPartition

	parts   []atomic.Pointer[part]           // by node: those that are up
	missing []atomic.Pointer[missing]        // by node: why it has, or had, none
	record  atomic.Pointer[partition.Record] // newest, as clients see it
	gone    atomic.Bool                      // the topic was deleted

	watch struct {
		n    atomic.Int32
		mu   sync.Mutex
		list []*watcher
	}
}

// missing is a replica that its node could not make, some times.
type missing struct {
	err   error // nil: it has one now
	times int64
}

func newPartition(c *Cluster, id partition.ID, name TopicPartition) *Partition {
	return &Partition{c: c, id: id, name: name, parts: make([]atomic.Pointer[part], len(c.nodes)), missing: make([]atomic.Pointer[missing], len(c.nodes))}
}

// Name of the partition.
func (h *Partition) Name() TopicPartition { return h.name }

// take takes over a newer record.
func (h *Partition) take(r *partition.Record) bool { return takeNewer(&h.record, r) }

// takeNewer stores r unless there is one as new, and reports whether it did.
func takeNewer(at *atomic.Pointer[partition.Record], r *partition.Record) bool {
	for {
		old := at.Load()
		if old != nil && old.PartitionEpoch >= r.PartitionEpoch {
			return false
		}
		if at.CompareAndSwap(old, r) {
			return true
		}
	}
}

// wakeAll has every replica look for work.
func (h *Partition) wakeAll() {
	for i := range h.parts {
		if p := h.parts[i].Load(); p != nil {
			p.wake(crewTurn)
		}
	}
}

// leading is the leader if it is up, as far as is known here.
func (h *Partition) leading() *part {
	r := h.record.Load()
	if r == nil || r.Leader < 0 || int(r.Leader) >= len(h.parts) || h.gone.Load() {
		return nil
	}
	return h.parts[r.Leader].Load()
}

// err is why there can be no leader any more.
func (h *Partition) err() error {
	switch {
	case h.c.closed():
		return ErrClosed
	case h.gone.Load():
		return fmt.Errorf("partition %s: %w", h.name, ErrNoPartition)
	}
	return nil
}

// awaitLeader waits until a leader serves, other than the one that said it does
// not. That one is asked again after a while: what made it serve again may have come
// before there was somebody to tell.
func (h *Partition) awaitLeader(ctx context.Context, not *part) (*part, error) {
	w := h.watcher(ChangedLeader)
	defer w.stop()
	var again <-chan time.Time
	if not != nil {
		t := time.NewTimer(50 * time.Millisecond)
		defer t.Stop()
		again = t.C
	}
	for first := true; ; first = false {
		if err := h.err(); err != nil {
			return nil, err
		}
		if p := h.leading(); p != nil && !(first && p == not) {
			if _, err := p.p.Latest(time.Now()); err == nil || errors.Is(err, OffsetNotAvailable) {
				return p, nil
			}
		}
		select {
		case <-w.ch:
		case <-again:
		case <-ctx.Done():
			return nil, fmt.Errorf("partition %s: %w: %w", h.name, NotLeader, ctx.Err())
		}
	}
}

// A call is an append that may wait for its ack.
type call struct {
	w    isr.Waiter
	fx   isr.Effects
	done chan struct{} // one slot
	fn   func(*call)   // in the place of done: by who answers; must not block
	uses uses
}

// uses counts those of something that is used again and again, so that a handle of
// an earlier use does nothing to a later one. It is odd while somebody waits.
type uses struct{ n atomic.Uint64 }

// take begins the only wait of a use.
func (u *uses) take(use uint64) error {
	if !u.n.CompareAndSwap(use, use+1) {
		return ErrWaited
	}
	return nil
}

// back ends a wait that got no answer: there may be another.
func (u *uses) back(use uint64) { u.n.Store(use) }

// over ends the use.
func (u *uses) over(use uint64) { u.n.Store(use + 2) }

// ErrWaited means that the answer to an append was taken before, or somebody else waits
// for it.
var ErrWaited = errors.New("the answer was waited for before")

var calls = sync.Pool{New: func() any { return &call{done: make(chan struct{}, 1)} }}

func (c *call) tell() {
	if c.fn != nil {
		c.fn(c)
		return
	}
	c.done <- struct{}{}
}

// payload is what is appended: records, or a batch.
type payload struct {
	recs   []Record
	batch  Batch
	origin replica.Origin
}

func (x *payload) small() bool {
	if x.batch != nil {
		return len(x.batch) <= inlineBytes
	}
	n := 0
	for i := range x.recs {
		if n += len(x.recs[i].Key) + len(x.recs[i].Value) + 16; n > inlineBytes {
			return false
		}
	}
	return true
}

// produce appends at this replica if it leads. Without an error c is answered by
// tell, exactly once, unless acks is 0: then it is not.
// waits: the caller is going to wait for it, and may work until then. It returns the
// replica if its log is to be synced for that: see syncFor.
func (p *part) produce(c *call, x payload, acks Acks, timeout time.Duration, waits bool) (sync *part, err error) {
	now := time.Now()
	c.w.Driver = c
	c.fx.Reset()
	if x.batch != nil {
		err = p.p.Produce(x.batch, x.origin, acks.kafka(), timeout, &c.w, now, &c.fx)
	} else {
		err = p.p.ProduceRecords(x.recs, acks.kafka(), timeout, &c.w, now, &c.fx)
	}
	acked := c.fx.Acked
	if c.fx.Sync && p.log.mode == Always {
		sync, c.fx.Sync = p, false
		if p.crowd.Load() > 0 && p.crowd.Add(-1) >= 0 {
			// The others that were told with this one are about to come back: let them, or
			// the syncs that begin now cover one append and the next ones the rest.
			runtime.Gosched()
		}
	}
	t := crewTurn
	switch {
	case sync != nil:
	case x.small():
		t = briefTurn
	case waits && acks == AcksAll && p.log.mode != Always:
		t = shareTurn
	}
	if t.inline && waits && acks == AcksAll && len(c.fx.Wake) > 0 && p.crowded(now) {
		runtime.Gosched() // the others append, and are copied together
	}
	p.apply(&c.fx, t)
	if acked {
		c.tell()
	}
	return sync, err
}

// crowded reports whether the last appends were acknowledged several at once, or nobody
// has tried for a while whether the next ones would be.
func (p *part) crowded(now time.Time) bool {
	if p.crowd.Load() > 0 && p.crowd.Add(-1) >= 0 {
		return true
	}
	at, tried := int64(now.Sub(alarmEpoch)), p.tried.Load()
	return at-tried > int64(time.Millisecond) && p.tried.CompareAndSwap(tried, at)
}

// syncFor has the log synced for an append: by its own goroutine if that waits for
// it anyway.
func (p *part) syncFor(waits bool) {
	if waits {
		p.log.syncNow()
	} else {
		p.f.crew.do(&p.log.sync)
	}
}

// Pending is an append under way.
type Pending struct {
	c    *call // nil with AcksNone
	use  uint64
	none bool // AcksNone
}

// Wait returns the offset of the first record once the append is acknowledged, −1 at
// once with AcksNone. An error of ctx says nothing of the append, and Wait may be called
// again. Other errors: those of [Partition.Produce]; ErrWaited, since the answer is given
// once.
func (p Pending) Wait(ctx context.Context) (base int64, err error) {
	switch {
	case p.none:
		return -1, nil
	case p.c == nil:
		return 0, errors.New("wait for an append: nothing was sent")
	}
	if err := p.c.uses.take(p.use); err != nil {
		return 0, err
	}
	if ctx.Done() == nil {
		<-p.c.done
	} else {
		select {
		case <-p.c.done:
		case <-ctx.Done():
			p.c.uses.back(p.use)
			return 0, ctx.Err()
		}
	}
	base, err = p.c.w.Base, p.c.w.Err
	p.c.uses.over(p.use)
	p.c.release()
	return base, err
}

func (c *call) release() {
	c.w = isr.Waiter{}
	calls.Put(c)
}

// timeoutOf is how long an append may wait.
func timeoutOf(ctx context.Context) time.Duration {
	if at, ok := ctx.Deadline(); ok {
		return max(time.Until(at), time.Millisecond)
	}
	return 30 * time.Second
}

// begin appends at whoever leads. While nobody does, and nothing was appended, it
// waits.
func (h *Partition) begin(ctx context.Context, acks Acks, x payload, waits bool) (Pending, error) {
	if len(x.recs) == 0 && len(x.batch) == 0 {
		return Pending{}, errors.New("produce: nothing to append")
	}
	if err := ctx.Err(); err != nil {
		return Pending{}, err
	}
	c := calls.Get().(*call)
	p := h.leading()
	for {
		err := error(NotLeader)
		if p != nil {
			var sync *part
			if sync, err = p.produce(c, x, acks, timeoutOf(ctx), waits); sync != nil {
				sync.syncFor(waits && acks != AcksNone)
			}
			if err == nil {
				break
			}
		}
		if !errors.Is(err, NotLeader) && !errors.Is(err, ErrClosed) {
			c.release()
			return Pending{}, err
		}
		if p, err = h.awaitLeader(ctx, p); err != nil {
			c.release()
			return Pending{}, err
		}
	}
	if acks == AcksNone {
		c.release()
		return Pending{none: true}, nil
	}
	return Pending{c: c, use: c.uses.n.Load()}, nil
}

// Produce appends records as one batch, all or none, and returns the offset of the
// first once it is acknowledged as acks says; with AcksNone that is −1, at once. The
// slices are not kept. It waits for a leader while there is none; a deadline of ctx,
// or else 30 s, bounds the wait for the ack.
//
// Errors after which nothing was appended: NotEnoughReplicas; ErrTooManyWaiters;
// ErrNoRoom, until the leader has room again or, after LagMax, another leads that has, and
// others of [Log.Append]; of ctx together with NotLeader; ErrClosed. Errors after
// which the records may be in the log or not, and may be read later: NotLeader,
// RequestTimedOut, NotEnoughAfterAppend and an error of ctx alone. To append them
// again then may be to append them twice: see [Cluster.NewProducer].
func (h *Partition) Produce(ctx context.Context, acks Acks, recs ...Record) (base int64, err error) {
	a, err := h.begin(ctx, acks, payload{recs: recs}, true)
	if err != nil {
		return 0, err
	}
	return a.Wait(ctx)
}

// ProduceBatch is Produce of a batch that record.Builder or a Kafka client made; see
// [Log.AppendBatch] for what is checked.
func (h *Partition) ProduceBatch(ctx context.Context, acks Acks, b Batch) (base int64, err error) {
	a, err := h.begin(ctx, acks, payload{batch: b, origin: replica.Client}, true)
	if err != nil {
		return 0, err
	}
	return a.Wait(ctx)
}

// ProduceAsync is Produce without the wait for the ack: Pending.Wait is that.
func (h *Partition) ProduceAsync(ctx context.Context, acks Acks, recs ...Record) (Pending, error) {
	return h.begin(ctx, acks, payload{recs: recs}, false)
}

// ProduceBatchAsync is ProduceBatch without the wait for the ack.
func (h *Partition) ProduceBatchAsync(ctx context.Context, acks Acks, b Batch) (Pending, error) {
	return h.begin(ctx, acks, payload{batch: b, origin: replica.Client}, false)
}

// HighWatermark is the end of what may be read.
//
// Errors: NotLeader; OffsetNotAvailable while a new leader does not know yet that
// everything committed before is.
func (h *Partition) HighWatermark() (int64, error) {
	p := h.leading()
	if p == nil {
		return 0, cmp.Or[error](h.err(), NotLeader)
	}
	return p.p.Latest(time.Now())
}

// LogStartOffset is the first offset that may be read.
//
// Errors: NotLeader.
func (h *Partition) LogStartOffset() (int64, error) {
	p := h.leading()
	if p == nil {
		return 0, cmp.Or[error](h.err(), NotLeader)
	}
	if _, err := p.p.Latest(time.Now()); err != nil && !errors.Is(err, OffsetNotAvailable) {
		return 0, err
	}
	return p.log.log.LogStartOffset(), nil
}

// View is what may be read from offset on, zero-copy: whole batches, at most
// maxBytes of them but always the first; empty at the end. Release it.
//
// Errors: NotLeader, OffsetOutOfRange, *CorruptError, ErrClosed.
func (h *Partition) View(offset int64, maxBytes int) (View, error) {
	err := error(NotLeader)
	if p := h.leading(); p != nil {
		var v View
		if v, err = p.p.Consume(offset, maxBytes, time.Now()); err == nil {
			return v, nil
		}
	}
	return View{}, cmp.Or(h.err(), fmt.Errorf("read partition %s at %d: %w", h.name, offset, err))
}

// Records yields the records from offset from on, up to the high watermark as it is
// when the loop gets there; what [Log.Records] says holds. Errors that are yielded:
// those of View.
func (h *Partition) Records(from int64) iter.Seq2[Record, error] {
	return func(yield func(Record, error) bool) {
		if _, err, ok := h.records(from, yield); ok && err != nil {
			yield(Record{}, err)
		}
	}
}

// Tail yields as Records does and then waits for more, without polling, over
// changes of the leader, until ctx ends, the topic is deleted or the cluster closed.
func (h *Partition) Tail(ctx context.Context, from int64) iter.Seq2[Record, error] {
	return func(yield func(Record, error) bool) {
		w := h.watcher(ChangedHW | ChangedLeader)
		defer w.stop()
		for {
			next, err, ok := h.records(from, yield)
			if !ok {
				return
			}
			from = next
			if err == nil {
				if err = h.err(); err == nil {
					select {
					case <-w.ch:
						continue
					case <-ctx.Done():
						err = ctx.Err()
					}
				}
			} else if errors.Is(err, NotLeader) || errors.Is(err, OffsetNotAvailable) {
				if _, err = h.awaitLeader(ctx, nil); err == nil {
					continue
				}
				if ctx.Err() != nil {
					err = ctx.Err()
				}
			}
			yield(Record{}, err)
			return
		}
	}
}

// records yields up to the high watermark. ok is false once yield was, or after
// damage; err is why it ended before.
func (h *Partition) records(from int64, yield func(Record, error) bool) (next int64, err error, ok bool) {
	r := readers.Get().(*record.Reader)
	defer readers.Put(r)
	for {
		v, err := h.View(from, 4<<20)
		if err != nil && segment.Beside(err, from) {
			continue
		}
		if err != nil || v.Bytes == nil {
			return from, err, true
		}
		next, ok, err := recordsOf(r, &v, from, yield)
		v.Release()
		if !ok || err != nil {
			return from, err, ok
		}
		if next <= from {
			return from, nil, true
		}
		from = next
	}
}
