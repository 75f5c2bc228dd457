package isr

import (
	"time"

	"github.com/tidemark-log/tidemark/partition"
	"github.com/tidemark-log/tidemark/record"
	"github.com/tidemark-log/tidemark/replica"
)

type leader struct{}

// Waiter is an append that waits for its ack. The driver owns it, and may use it
// again once it is finished.
type Waiter struct {
	Base, End int64 // offsets of the batch, [Base, End)
	Duplicate bool  // nothing was appended: the offsets are those of the original
	Err       error // why there is no ack, nil if there is
	Driver    any   // the driver's

	finished bool
}

// Finished reports whether the waiter is answered. Only who made the step that
// answered it may ask: see Effects.Done.
func (w *Waiter) Finished() bool { return w.finished }

// Produce appends one batch (A2). With acks 0 nobody waits. With acks 1 or −1 the
// ack goes to w: it is finished on return, or by some later step's Effects.Done.
// A timeout of 0 is none.
//
// Errors, after which nothing was appended and w is not used: partition.NotLeader,
// InvalidRequiredAcks, NotEnoughReplicas, ErrTooManyWaiters, those of
// replica.Log.Append. Of w, besides: NotEnoughAfterAppend, RequestTimedOut,
// NotLeader; the batch is in the log, and nobody knows what becomes of it.
func (p *Partition) Produce(b []byte, origin replica.Origin, acks int16, timeout time.Duration, w *Waiter, now time.Time, fx *Effects) error {
	return nil
}

// ProduceRecords is Produce of records, encoded in place.
func (p *Partition) ProduceRecords(recs []record.Record, acks int16, timeout time.Duration, w *Waiter, now time.Time, fx *Effects) error {
	return nil
}

// Answer is the answer to a fetch. Its Records are those of View, which is to be
// released after use.
type Answer struct {
	partition.Fetched
	View replica.View
	// Drop: the request came out of order, no answer is to be sent (R29).
	Drop bool
}

// Fetch serves a replica's fetch, or a consumer's (A3). What is refused changes
// nothing (I23). With mayPark it may report parked, if there is nothing to give
// yet: a is not set then, and the fetch is to be run again, with again set, when
// Effects.Wake names the replica or its time is over.
func (p *Partition) Fetch(q *partition.Fetch, again, mayPark bool, now time.Time, a *Answer, fx *Effects) (parked bool) {
	return false
}

// Ask answers where a leader epoch ends (A10).
func (p *Partition) Ask(q *partition.EpochAsk, a *partition.EpochAnswer) {}

// Consume returns what a consumer may read from offset on: committed batches, at
// most maxBytes of them but always the first. Empty from the high watermark to
// the end. Release the view.
//
// Errors: partition.NotLeader, OffsetOutOfRange, those of replica.Log.View.
func (p *Partition) Consume(offset int64, maxBytes int, now time.Time) (replica.View, error) {
	return replica.View{}, nil
}

// Latest is the end of what consumers may read.
//
// Errors: partition.NotLeader; OffsetNotAvailable while a new leader does not yet
// know that everything committed before its epoch is.
func (p *Partition) Latest(now time.Time) (int64, error) { return 0, nil }
