package isr

import (
	"errors"
	"time"

	"github.com/tidemark-log/tidemark/partition"
	"github.com/tidemark-log/tidemark/record"
	"github.com/tidemark-log/tidemark/replica"
)

// Waiter is an append that waits for its ack. The driver owns it, and may use it
// again once it is finished.
type Waiter struct {
	Base, End int64 // offsets of the batch, [Base, End)
	Duplicate bool  // nothing was appended: the offsets are those of the original
	Err       error // why there is no ack, nil if there is
	Driver    any   // the driver's

	finished   bool
	deadline   time.Time // zero: none
	prev, next *Waiter
}

// Finished reports whether the waiter is answered. Only who made the step that
// answered it may ask: see Effects.Done and Acked.
func (w *Waiter) Finished() bool { return w.finished }

// waiters is a list in order of End.
type waiters struct{ head, tail *Waiter }

// insert puts a waiter behind those that end where it does; that is at the tail,
// but for duplicates and appends that overtook each other.
func (l *waiters) insert(w *Waiter) {
	at := l.tail
	for at != nil && at.End > w.End {
		at = at.prev
	}
	if w.prev = at; at == nil {
		w.next, l.head = l.head, w
	} else {
		w.next, at.next = at.next, w
	}
	if w.next == nil {
		l.tail = w
	} else {
		w.next.prev = w
	}
}

func (l *waiters) remove(w *Waiter) {
	if w.prev == nil {
		l.head = w.next
	} else {
		w.prev.next = w.next
	}
	if w.next == nil {
		l.tail = w.prev
	} else {
		w.next.prev = w.prev
	}
	w.prev, w.next = nil, nil
}

// Produce appends one batch (A2). With acks 0 nobody waits. With acks 1 or −1 the
// ack goes to w, if that is not nil: it is finished on return, or by some later
// step's Effects.Done. A timeout of 0 is none.
//
// Errors, after which nothing was appended and w is not used: partition.NotLeader,
// InvalidRequiredAcks, NotEnoughReplicas, ErrTooManyWaiters, those of
// replica.Log.Append. Of w, besides: NotEnoughAfterAppend, RequestTimedOut,
// NotLeader; the batch is in the log, and nobody knows what becomes of it.
func (p *Partition) Produce(b []byte, origin replica.Origin, acks int16, timeout time.Duration, w *Waiter, now time.Time, fx *Effects) error {
	p.role.RLock()
	defer p.role.RUnlock()
	w, err := p.admit(acks, w, now)
	if err != nil {
		return err
	}
	a, err := p.o.Log.Append(b, origin, now)
	return p.appended(a, err, acks, timeout, w, now, fx)
}

// ProduceRecords is Produce of records, encoded in place.
func (p *Partition) ProduceRecords(recs []record.Record, acks int16, timeout time.Duration, w *Waiter, now time.Time, fx *Effects) error {
	p.role.RLock()
	defer p.role.RUnlock()
	w, err := p.admit(acks, w, now)
	if err != nil {
		return err
	}
	a, err := p.o.Log.AppendRecords(recs, now)
	return p.appended(a, err, acks, timeout, w, now, fx)
}

// admit does what comes before an append, and keeps a place for its waiter, which
// it returns: nil if nobody is to wait. role is held.
func (p *Partition) admit(acks int16, w *Waiter, now time.Time) (*Waiter, error) {
	switch {
	case !p.open(now):
		return nil, partition.NotLeader
	case acks < -1 || acks > 1:
		return nil, partition.InvalidRequiredAcks
	case acks == 0:
		w = nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.broken != nil:
		return nil, partition.NotLeader
	case acks == -1 && p.committed < p.minISR:
		return nil, partition.NotEnoughReplicas
	case w == nil:
	case p.waiting >= p.o.MaxWaiters:
		return nil, ErrTooManyWaiters
	default:
		p.waiting++
	}
	return w, nil
}

// appended does what comes after an append that was admitted. role is still held.
func (p *Partition) appended(a replica.Appended, err error, acks int16, timeout time.Duration, w *Waiter, now time.Time, fx *Effects) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err != nil {
		if w != nil {
			p.waiting--
		}
		if p.checkLogLocked(now, fx); p.broken == nil && errors.Is(err, replica.ErrNoRoom) {
			p.noRoomLocked(err, now, fx)
		}
		return err
	}
	if a.Duplicate {
		p.n.Duplicates++
	} else {
		p.n.Appends++
		p.reliefAt = time.Time{}
		for i := range p.followers {
			p.wakeLocked(&p.followers[i], fx)
		}
		if p.lagAt.IsZero() && len(p.followers) > 0 {
			p.armLocked(now, fx)
		}
	}
	counted := p.o.Log.CountedEnd()
	if counted < a.End {
		fx.Sync = true
	}
	if w != nil {
		*w = Waiter{Base: a.Base, End: a.End, Duplicate: a.Duplicate, Driver: w.Driver}
		p.awaitLocked(w, acks, timeout, counted, now, fx)
	}
	if p.committed == 1 { // nobody's fetch will move the high watermark
		p.raiseLocked(now, fx)
	}
	return nil
}

// awaitLocked answers a waiter, or has it wait: for the counted end with acks 1,
// else for the high watermark. A duplicate waits for what its original does
// (R30).
func (p *Partition) awaitLocked(w *Waiter, acks int16, timeout time.Duration, counted int64, now time.Time, fx *Effects) {
	list := &p.all
	switch {
	case p.broken != nil:
		p.finishLocked(w, partition.NotLeader)
		fx.Acked = true
		return
	case acks == 1 && counted >= w.End:
		p.finishLocked(w, nil)
		fx.Acked = true
		return
	case acks == 1:
		list = &p.own
	case p.o.Log.HighWatermark() >= w.End:
		p.finishLocked(w, p.enough())
		fx.Acked = true
		return
	}
	if timeout > 0 {
		w.deadline = now.Add(timeout)
		if p.expire = earlier(p.expire, w.deadline); p.expire == w.deadline {
			p.want(p.expire, fx)
		}
	}
	if until := p.o.Lease.end(); until.After(now) {
		p.want(until, fx)
	}
	list.insert(w)
}

// enough is what becomes of an append that the high watermark has passed: it
// counts if those who have it are enough now.
func (p *Partition) enough() error {
	if p.maximal() < p.minISR {
		return partition.NotEnoughAfterAppend
	}
	return nil
}

func (p *Partition) finishLocked(w *Waiter, err error) {
	w.Err, w.finished = err, true
	p.waiting--
}

// releaseLocked answers the waiters below the high watermark and the counted end.
func (p *Partition) releaseLocked(hw, counted int64, fx *Effects) {
	if w := p.all.head; w != nil && w.End <= hw {
		for err := p.enough(); w != nil && w.End <= hw; w = p.all.head {
			p.doneLocked(&p.all, w, err, fx)
		}
	}
	for w := p.own.head; w != nil && w.End <= counted; w = p.own.head {
		p.doneLocked(&p.own, w, nil, fx)
	}
}

func (p *Partition) doneLocked(l *waiters, w *Waiter, err error, fx *Effects) {
	l.remove(w)
	p.finishLocked(w, err)
	fx.Done = append(fx.Done, w)
}

// failLocked answers all waiters with an error.
func (p *Partition) failLocked(err error, fx *Effects) {
	for _, l := range []*waiters{&p.all, &p.own} {
		for l.head != nil {
			p.doneLocked(l, l.head, err, fx)
		}
	}
	p.expire = time.Time{}
}

// timeoutLocked answers the waiters whose time is over.
func (p *Partition) timeoutLocked(now time.Time, fx *Effects) {
	if p.expire.IsZero() || now.Before(p.expire) {
		return
	}
	p.expire = time.Time{}
	for _, l := range []*waiters{&p.all, &p.own} {
		for w, next := l.head, (*Waiter)(nil); w != nil; w = next {
			next = w.next
			switch {
			case w.deadline.IsZero():
			case now.Before(w.deadline):
				p.expire = earlier(p.expire, w.deadline)
			default:
				p.n.Timeouts++
				p.doneLocked(l, w, partition.RequestTimedOut, fx)
			}
		}
	}
}
