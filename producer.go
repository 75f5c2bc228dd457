package tidemark

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tidemark-log/tidemark/isr"
	"github.com/tidemark-log/tidemark/partition"
	"github.com/tidemark-log/tidemark/record"
	"github.com/tidemark-log/tidemark/replica"
)

// ProducerOptions of a producer. The zero value appends each record exactly once
// and in order.
type ProducerOptions struct {
	// Acks says whose word an append waits for. Default AcksAll. With others what is
	// acknowledged may be lost with its leader. What comes next is then appended all the
	// same, in a new epoch of the producer, as Kafka's clients do: nothing tells of the loss.
	// With AcksAll that would be ErrOutOfOrder.
	Acks Acks
	// Plain makes the producer one without an id: what is sent again after an answer
	// that was lost is in the log twice, and out of order with more than one in flight.
	Plain bool
	// MaxInFlight is how many batches may wait for their acks, in each partition.
	// Default 5, at most 5: logs remember so many.
	MaxInFlight int
	// Timeout is how long a batch is sent again until it is given up. Default 2 min.
	Timeout time.Duration
	// RequestTimeout is how long one attempt may take. Default 30 s.
	RequestTimeout time.Duration
	// RetryBackoff is how long a lane rests between two attempts. Default 20 ms.
	RetryBackoff time.Duration
	// Codec compresses the batches, at Level in the codec's own terms.
	Codec record.Codec
	Level int
}

func (o *ProducerOptions) fill() error {
	if o.MaxInFlight == 0 {
		o.MaxInFlight = 5
	}
	for _, d := range []struct {
		at *time.Duration
		v  time.Duration
	}{{&o.Timeout, 2 * time.Minute}, {&o.RequestTimeout, 30 * time.Second}, {&o.RetryBackoff, 20 * time.Millisecond}} {
		if *d.at == 0 {
			*d.at = d.v
		}
	}
	switch {
	case o.MaxInFlight < 1 || o.MaxInFlight > 5:
		return fmt.Errorf("new producer: option MaxInFlight: %d, want 1 to 5", o.MaxInFlight)
	case o.Acks != AcksAll && o.Acks != AcksLeader && o.Acks != AcksNone:
		return fmt.Errorf("new producer: option Acks: %d", o.Acks)
	case o.Timeout < 0 || o.RequestTimeout < 0 || o.RetryBackoff < 0:
		return errors.New("new producer: a time below zero")
	}
	if _, err := record.ParseCodec(o.Codec.String()); err != nil {
		return fmt.Errorf("new producer: option Codec: %w", err)
	}
	return nil
}

// Producer appends to partitions of a cluster and sends again what was not
// acknowledged, to whoever leads then. Unless it is Plain it has an id of its own and
// counts its batches, by which each log knows what it has: a batch is appended once,
// and in order, whatever happens to its answers. A producer that is made anew has
// another id; nothing ties it to what came before.
//
// All methods are safe for concurrent use. Batches of one partition go in the order
// of the calls.
type Producer struct {
	c *Cluster
	o ProducerOptions
	// Of the first lane; others get theirs when they need one.
	id    int64
	epoch int16

	mu     sync.RWMutex
	lanes  map[*Partition]*lane
	closed bool
	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	busy   sync.WaitGroup // retries
}

// NewProducer makes a producer.
//
// Errors: a field of ProducerOptions that is out of range; ErrClosed; the coordinator
// could not store the id it gave.
func (c *Cluster) NewProducer(o ProducerOptions) (*Producer, error) {
	if err := o.fill(); err != nil {
		return nil, err
	}
	if c.closed() {
		return nil, ErrClosed
	}
	p := &Producer{c: c, o: o, id: record.NoProducer, epoch: record.NoProducerEpoch, lanes: map[*Partition]*lane{}}
	if !o.Plain {
		var err error
		if p.id, p.epoch, err = c.ctl.NewProducerID(); err != nil {
			return nil, fmt.Errorf("new producer: %w", err)
		}
	}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	return p, nil
}

// ID is the producer's id, −1 if it has none. A partition in which a batch was given
// up is gone on with under another.
func (p *Producer) ID() int64 { return p.id }

// A lane is a producer in one partition: batches in the order of their sequence
// numbers, of which some are under way. When one fails, the lane waits until all are
// answered and sends those that are left again.
type lane struct {
	p     *Producer
	h     *Partition
	slots chan struct{} // one for each batch under way

	dirty atomic.Bool // an answer came
	mu    sync.Mutex
	id    int64
	epoch int16
	next  int32     // sequence
	fly   []*flight // oldest first
	free  []*flight
	spec  record.Spec
	// known: a batch under this id was acknowledged, so that every later leader's log
	// knows what comes next and refuses what does not. Until then one is sent at a time.
	known  bool
	again  bool // what is left is to be sent again, when all is answered; nothing is sent until then
	going  bool // retry runs
	closed bool // nothing is under way, nor will be

	sent, done uint64  // batches
	flushes    []flush // who waits until so many are done, in that order
}

type flush struct {
	upTo uint64
	ch   chan struct{} // closed then
}

// A flight is a batch under way.
type flight struct {
	call
	l        *lane
	b        record.Builder
	batch    Batch
	deadline time.Time

	answered atomic.Bool // the attempt is
	sent     bool        // an attempt is, or was, under way
	err      error       // why it was not taken
	settled  chan struct{}
	base     int64
	failed   error
}

func (p *Producer) lane(h *Partition) (*lane, error) {
	p.mu.RLock()
	l, closed := p.lanes[h], p.closed
	p.mu.RUnlock()
	if l != nil && !closed {
		return l, nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.closed:
		return nil, ErrClosed
	case h == nil:
		return nil, errors.New("produce: no partition")
	case h.c != p.c: // its coordinator gives the same ids to others
		return nil, fmt.Errorf("produce: partition %s is of another cluster", h.name)
	case h.gone.Load():
		return nil, h.err()
	}
	if l = p.lanes[h]; l == nil {
		maps.DeleteFunc(p.lanes, func(h *Partition, l *lane) bool { return h.gone.Load() && l.end() })
		l = &lane{p: p, h: h, slots: make(chan struct{}, p.o.MaxInFlight), id: p.id, epoch: p.epoch, spec: record.NewSpec()}
		l.spec.Codec, l.spec.Level = p.o.Codec, p.o.Level
		p.lanes[h] = l
	}
	return l, nil
}

// end ends a lane with nothing under way, and is false of others.
func (l *lane) end() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = len(l.fly) == 0
	return l.closed
}

// Delivery is a batch under way.
type Delivery struct {
	f   *flight
	use uint64
}

// Wait returns the offset of the first record once the batch is acknowledged, −1 with
// AcksNone. An error of ctx says nothing about the batch, which stays under way, and Wait
// may be called again. Other errors: those of [Producer.Produce]; ErrWaited, since the
// answer is given once.
func (d Delivery) Wait(ctx context.Context) (base int64, err error) {
	if d.f == nil {
		return 0, errors.New("wait for a delivery: nothing was sent")
	}
	if err := d.f.uses.take(d.use); err != nil {
		return 0, err
	}
	if ctx.Done() == nil {
		<-d.f.settled
	} else {
		select {
		case <-d.f.settled:
		case <-ctx.Done():
			d.f.uses.back(d.use)
			return 0, ctx.Err()
		}
	}
	base, err = d.f.base, d.f.failed
	d.f.uses.over(d.use)
	l := d.f.l
	l.mu.Lock()
	if len(l.free) < cap(l.slots) {
		l.free = append(l.free, d.f)
	}
	l.mu.Unlock()
	l.sweep()
	return base, err
}

// Produce appends records as one batch, all or none, and returns the offset of the
// first once it is acknowledged. The slices are not kept. While MaxInFlight batches of
// the partition are under way it waits.
//
// Errors: of the records, those of [Partition.Produce]; of ctx, which says nothing
// about the batch; ErrClosed. A batch that was not acknowledged within
// ProducerOptions.Timeout is given up with the last error of an attempt: it may be in
// the log or not. Those behind it are given up with it.
func (p *Producer) Produce(ctx context.Context, h *Partition, recs ...Record) (base int64, err error) {
	d, err := p.send(ctx, h, recs, true)
	if err != nil {
		return 0, err
	}
	return d.Wait(ctx)
}

// ProduceAsync is Produce without the wait for the ack: Delivery.Wait is that.
func (p *Producer) ProduceAsync(ctx context.Context, h *Partition, recs ...Record) (Delivery, error) {
	return p.send(ctx, h, recs, false)
}

func (p *Producer) send(ctx context.Context, h *Partition, recs []Record, waits bool) (Delivery, error) {
	l, err := p.lane(h)
	if err == nil {
		err = ctx.Err()
	}
	if err != nil {
		return Delivery{}, err
	}
	select {
	case l.slots <- struct{}{}:
	default:
		select {
		case l.slots <- struct{}{}:
		case <-ctx.Done():
			return Delivery{}, ctx.Err()
		case <-p.ctx.Done():
			return Delivery{}, ErrClosed
		}
	}
	l.mu.Lock()
	var f *flight
	if err = ErrClosed; !l.closed {
		f, err = l.build(recs)
	}
	if err != nil {
		l.mu.Unlock()
		l.sweep() // an answer may have come meanwhile: who has the lock looks again
		<-l.slots
		return Delivery{}, err
	}
	d := Delivery{f, f.uses.n.Load()} // before it may be answered, and waited for
	l.fly = append(l.fly, f)
	l.sent++
	sync := l.sendLocked(waits)
	l.sweepLocked()
	l.mu.Unlock()
	l.sweep()
	if sync != nil {
		sync.syncFor(waits)
	}
	return d, nil
}

func newFlight(l *lane) *flight {
	f := &flight{l: l, settled: make(chan struct{}, 1)}
	f.fn = func(*call) { f.answer(nil) }
	return f
}

// build makes the next batch.
func (l *lane) build(recs []Record) (f *flight, err error) {
	if n := len(l.free); n > 0 {
		f, l.free = l.free[n-1], l.free[:n-1]
	} else {
		f = newFlight(l)
	}
	now := time.Now()
	l.spec.Now, l.spec.ProducerID, l.spec.ProducerEpoch, l.spec.BaseSequence = now.UnixMilli(), l.id, l.epoch, l.next
	if l.id < 0 {
		l.spec.BaseSequence = record.NoSequence
	}
	if f.batch, err = f.b.Build(recs, &l.spec); err != nil {
		l.free = append(l.free, f)
		return nil, fmt.Errorf("produce: %w", err)
	}
	l.next = after(l.next, len(recs))
	f.deadline, f.err, f.failed, f.sent = now.Add(l.p.o.Timeout), nil, nil, false
	f.answered.Store(false)
	return f, nil
}

// after is the sequence that follows n records from one on.
func after(sequence int32, n int) int32 { return int32((int64(sequence) + int64(n)) & math.MaxInt32) }

// sendLocked sends what was not, in order. waits is as in part.produce. It returns a
// replica that wants a sync.
func (l *lane) sendLocked(waits bool) (sync *part) {
	for i, f := range l.fly {
		if l.again || i > 0 && !l.known && l.id >= 0 {
			break
		}
		if f.sent {
			continue
		}
		if s := l.send(f, waits); s != nil {
			sync = s
		}
		if f.answered.Load() && f.why() != nil {
			l.again = true // nothing behind it is sent before it
		}
	}
	return sync
}

// send begins an attempt. mu is held, so that attempts are in order; the answer may
// come before it returns, and does not take mu. It returns a replica that wants a
// sync.
func (l *lane) send(f *flight, waits bool) (sync *part) {
	f.answered.Store(false)
	f.err, f.sent = nil, true
	f.w = isr.Waiter{}
	p := l.h.leading()
	if p == nil {
		f.answer(NotLeader)
		return nil
	}
	timeout := max(min(l.p.o.RequestTimeout, time.Until(f.deadline)), time.Millisecond)
	sync, err := p.produce(&f.call, payload{batch: f.batch, origin: replica.Trusted}, l.p.o.Acks, timeout, waits)
	if err != nil {
		f.answer(err)
	} else if l.p.o.Acks == AcksNone {
		f.w.Base = -1
		f.answer(nil)
	}
	return sync
}

// answer ends an attempt, by whoever knows.
func (f *flight) answer(err error) {
	f.err = err
	f.answered.Store(true)
	f.l.sweep()
}

// sweep settles what is answered, unless somebody else is at it, who looks again.
func (l *lane) sweep() {
	l.dirty.Store(true)
	for l.dirty.Load() && l.mu.TryLock() {
		l.sweepLocked()
		l.mu.Unlock()
	}
}

func (l *lane) sweepLocked() {
	l.dirty.Store(false)
	if l.closed {
		return
	}
	for len(l.fly) > 0 && l.fly[0].taken() {
		l.fly[0].base = l.fly[0].w.Base
		l.known = true
		l.settle(0)
	}
	out, first := 0, error(nil) // under way; of the oldest that failed
	for _, f := range l.fly {
		if !f.sent {
			continue
		} else if !f.answered.Load() {
			out++
		} else if err := f.why(); err != nil && first == nil {
			first, l.again = err, true
		}
	}
	switch {
	case len(l.fly) == 0:
		l.again = false
	case l.again && out == 0 && first != nil && l.forgotten(first):
		l.renumber(first)
		if p := l.sendLocked(false); p != nil {
			p.syncFor(false)
		}
	case l.again && out == 0 && first != nil && !retriable(first):
		l.giveUp(first)
	case l.again && out == 0 && !l.going:
		l.going = true
		l.p.busy.Add(1)
		go l.retry()
	case !l.again:
		if p := l.sendLocked(false); p != nil {
			p.syncFor(false)
		}
	}
}

// taken reports whether the batch is acknowledged.
func (f *flight) taken() bool { return f.sent && f.answered.Load() && f.why() == nil }

// why is why an attempt failed, nil if it did not.
func (f *flight) why() error {
	if f.err != nil {
		return f.err
	}
	return f.w.Err
}

// settle ends a flight. mu is held.
func (l *lane) settle(i int) {
	f := l.fly[i]
	copy(l.fly[i:], l.fly[i+1:])
	l.fly[len(l.fly)-1] = nil
	l.fly = l.fly[:len(l.fly)-1]
	l.done++
	for len(l.flushes) > 0 && l.flushes[0].upTo <= l.done {
		close(l.flushes[0].ch)
		l.flushes = l.flushes[1:]
	}
	f.settled <- struct{}{}
	<-l.slots
}

// retriable reports whether another attempt may do better.
func retriable(err error) bool {
	for _, e := range []error{NotLeader, RequestTimedOut, NotEnoughReplicas, NotEnoughAfterAppend, isr.ErrTooManyWaiters,
		partition.StorageError, replica.ErrClosed, replica.ErrBusy, replica.ErrHeld, replica.ErrFailed, replica.ErrNoRoom} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// forgotten reports whether a leader does not know what one before it acknowledged
// alone, by what it refuses the next batch for.
func (l *lane) forgotten(err error) bool {
	return l.known && l.id >= 0 && l.p.o.Acks != AcksAll && errors.Is(err, ErrOutOfOrder)
}

// renumber has what is left sent again in a new epoch of the producer, which begins with
// sequence 0 (KIP-360). All are answered. It is not in the log: that would know it, or
// refuse nothing.
func (l *lane) renumber(why error) {
	l.p.c.o.Logger.Warn("records that a leader acknowledged alone are lost", "partition", l.h.name.String(), "producer", l.id, "epoch", l.epoch, "err", why)
	if l.epoch++; l.epoch == math.MaxInt16 {
		l.id, l.epoch, _ = l.p.c.ctl.NewProducerID() // −1: without an id until the next
	}
	l.next, l.known, l.again = 0, false, false
	for _, f := range l.fly {
		if f.taken() {
			continue // although one before it was not
		}
		sequence := l.next
		if l.id < 0 {
			sequence = record.NoSequence
		}
		f.batch.SetProducer(l.id, l.epoch, sequence)
		l.next = after(l.next, int(f.batch.Count()))
		f.sent = false
	}
}

// giveUp fails the first batch that was not taken and all behind it, and goes on
// under another id: the log may miss a sequence number. All are answered.
func (l *lane) giveUp(why error) {
	for len(l.fly) > 0 {
		f := l.fly[0]
		if f.taken() {
			f.base = f.w.Base
		} else if f.failed = why; f.sent && f.why() != nil && f.why() != why {
			f.failed = fmt.Errorf("produce: given up: %w: %w", why, f.why())
		}
		l.settle(0)
	}
	l.again = false
	if l.p.o.Plain {
		return
	}
	if id, epoch, err := l.p.c.ctl.NewProducerID(); err == nil {
		l.id, l.epoch, l.next, l.known = id, epoch, 0, false
	}
}

// close settles everything; what is answered later is not looked at.
func (l *lane) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	for len(l.fly) > 0 {
		if f := l.fly[0]; f.taken() {
			f.base = f.w.Base
		} else if f.failed = fmt.Errorf("produce: given up: %w", ErrClosed); f.answered.Load() && f.why() != nil {
			f.failed = fmt.Errorf("produce: given up: %w: %w", ErrClosed, f.why())
		}
		l.settle(0)
	}
}

// retry sends what is left again, once somebody leads.
func (l *lane) retry() {
	defer l.p.busy.Done()
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return
	}
	deadline, why := l.fly[0].deadline, l.fly[0].why() // nobody else but Close settles while going
	l.mu.Unlock()
	ctx, cancel := context.WithDeadline(l.p.ctx, deadline)
	defer cancel()
	t := time.NewTimer(l.p.o.RetryBackoff)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
	_, err := l.h.awaitLeader(ctx, nil)
	if err == nil {
		err = ctx.Err()
	}
	l.mu.Lock()
	l.going = false
	var sync *part
	if l.closed {
		l.mu.Unlock()
		return
	}
	if err != nil {
		if why != nil {
			err = fmt.Errorf("produce: given up: %w: %w", why, err)
		}
		l.giveUp(err)
	} else {
		l.again = false
		for _, f := range l.fly {
			if !f.taken() {
				f.sent = false // what was taken although one before it was not stays
			}
		}
		sync = l.sendLocked(false)
		l.sweepLocked()
	}
	l.mu.Unlock()
	l.sweep()
	if sync != nil {
		sync.syncFor(false)
	}
}

// Flush waits until every batch that was sent before is settled, or ctx ends.
func (p *Producer) Flush(ctx context.Context) error {
	p.mu.RLock()
	var list []*lane
	for _, l := range p.lanes {
		list = append(list, l)
	}
	p.mu.RUnlock()
	for _, l := range list {
		l.mu.Lock()
		x := flush{l.sent, make(chan struct{})}
		if l.done == l.sent {
			close(x.ch)
		} else {
			l.flushes = append(l.flushes, x)
		}
		l.mu.Unlock()
		l.sweep() // an answer may have come meanwhile
		select {
		case <-x.ch:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// Close gives up what is not settled, which may be in the log or not, with ErrClosed
// and ends the producer; call Flush before.
func (p *Producer) Close() error {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	for _, l := range p.lanes { // there are no more from here on
		l.close()
	}
	p.cancel()
	p.busy.Wait()
	return nil
}
