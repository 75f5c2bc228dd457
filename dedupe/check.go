package dedupe

import (
	"errors"
	"fmt"
	"math"

	"github.com/tidemark-log/tidemark/record"
)

// What a batch is refused for. Check returns each in a *record.ClientError with
// Kafka's code (log-format §5.7).
var (
	// ErrOutOfOrder: the sequence does not follow the last one, and the batch is
	// none of the five before. Code 45.
	ErrOutOfOrder = errors.New("sequence out of order")
	// ErrFenced: a newer epoch of the producer was seen. Code 47.
	ErrFenced = errors.New("producer epoch is fenced")
	// ErrTxnState: a plain batch inside a transaction. Code 48.
	ErrTxnState = errors.New("invalid transaction state")
	// ErrCoordinatorFenced: a newer transaction coordinator was seen. Code 52.
	ErrCoordinatorFenced = errors.New("transaction coordinator is fenced")
)

func refuse(code int16, kind error, pid int64, format string, args ...any) error {
	return &record.ClientError{Code: code, Err: fmt.Errorf("%w: producer %d: %s", kind, pid, fmt.Sprintf(format, args...))}
}

// Check decides about a batch before it is appended, a client's or a marker of a
// coordinator (log-format §5.3): nil to append it and then call [Table.Update];
// duplicate, with the original, if its producer sent it before and it must not be
// appended again (§5.4); or an error that is a *record.ClientError wrapping
// ErrOutOfOrder, ErrFenced, ErrTxnState, ErrCoordinatorFenced or
// record.ErrInvalid. Batches without producer are always fine.
//
// b has its place in the log not yet; its base offset is not looked at. Check
// changes nothing, and allocates for errors and compressed markers only.
func (t *Table) Check(b record.Batch) (original Batch, duplicate bool, err error) {
	pid := b.ProducerID()
	if pid < 0 {
		return original, false, nil
	}
	if pid != t.lastPID && !t.look(pid) {
		return t.check(nil, b)
	}
	// Most batches come next in sequence, and nothing else is to be known of them.
	e := t.last
	if e.expects(b.ProducerEpoch(), b.BaseSequence(), b.LastOffsetDelta()) && !b.IsControl() && (e.txnFirst < 0 || b.IsTransactional()) {
		return original, false, nil
	}
	return t.check(e, b)
}

// expects reports whether a batch of delta + 1 records that begins with first is
// the next in sequence and none of the window.
func (e *slot) expects(epoch int16, first, delta int32) bool {
	return first == e.want && first >= 0 && epoch == e.epoch && uint32(delta) < longBatch
}

// check is Check of a batch whose producer has slot e, the last one looked up, nil
// if it is unknown.
func (t *Table) check(e *slot, b record.Batch) (original Batch, duplicate bool, err error) {
	if b.IsControl() {
		return original, false, checkMarker(e, b)
	}
	pid := b.ProducerID()
	first, last := b.BaseSequence(), b.LastSequence()
	if first < 0 {
		return original, false, refuse(record.CodeInvalidRecord, record.ErrInvalid, pid, "base sequence %d, want at least 0", first)
	}
	if e == nil {
		return original, false, nil // row 5
	}
	epoch := b.ProducerEpoch()
	if epoch != e.epoch {
		switch {
		case epoch < e.epoch: // row 3
			return original, false, refuse(record.CodeInvalidProducerEpoch, ErrFenced, pid, "epoch %d, newest is %d", epoch, e.epoch)
		case e.epoch != record.NoProducerEpoch && first != 0: // row 6
			return original, false, refuse(record.CodeOutOfOrderSequence, ErrOutOfOrder, pid, "epoch %d begins with sequence %d, want 0", epoch, first)
		}
	} else if known := e.lastSequence(); !follows(known, first) || e.run < e.n || b.LastOffsetDelta() >= longBatch {
		if original, ok := t.lastPart.original(t.lastSlot, first, last); ok { // row 1
			return original, true, nil
		}
		if !follows(known, first) && epoch != record.NoProducerEpoch { // rows 8 and 10
			return original, false, refuse(record.CodeOutOfOrderSequence, ErrOutOfOrder, pid, "epoch %d: sequence %d after %d", epoch, first, known)
		}
	}
	if e.txnFirst >= 0 && !b.IsTransactional() { // row 11
		return original, false, refuse(record.CodeInvalidTxnState, ErrTxnState, pid,
			"a batch outside of the transaction that is open since offset %d", e.txnFirst)
	}
	return original, false, nil
}

func (e *slot) lastSequence() int32 {
	if e.n == 0 {
		return record.NoSequence
	}
	return e.last.LastSequence
}

// follows reports whether a batch may begin with sequence first behind last.
func follows(last, first int32) bool {
	if last == math.MaxInt32 {
		return first == 0
	}
	return first == last+1
}

// original looks for a batch of slot i by its sequences, the oldest first, as
// Kafka does.
func (p *part) original(i int, first, last int32) (Batch, bool) {
	for k := range int(p.slots[i].n) {
		if b := p.batch(i, k); b.LastSequence == last && b.FirstSequence() == first {
			return *b, true
		}
	}
	return Batch{}, false
}

// checkMarker decides about a control batch of a coordinator, e the producer's.
func checkMarker(e *slot, b record.Batch) error {
	pid := b.ProducerID()
	m, _, err := marker(b)
	if err != nil {
		return &record.ClientError{Code: record.CodeInvalidRecord, Err: fmt.Errorf("marker of producer %d: %w", pid, err)}
	}
	switch {
	case e == nil:
		return nil
	case b.ProducerEpoch() < e.epoch:
		return refuse(record.CodeInvalidProducerEpoch, ErrFenced, pid, "marker of epoch %d, newest is %d", b.ProducerEpoch(), e.epoch)
	case m.CoordinatorEpoch < e.coordEpoch:
		return refuse(record.CodeCoordinatorFenced, ErrCoordinatorFenced, pid, "coordinator epoch %d, newest is %d", m.CoordinatorEpoch, e.coordEpoch)
	}
	return nil
}

var errNoMarker = fmt.Errorf("%w: control batch is no transaction marker", record.ErrInvalid)

// marker reads the first record of a control batch, which is the only one
// (log-format §2.5), and its timestamp.
func marker(b record.Batch) (m record.Control, timestamp int64, err error) {
	if b.Count() == 0 { // compaction left the header only (§2.6)
		return m, 0, errNoMarker
	}
	var r record.Reader
	r.MaxBytes = maxMarker
	if err := r.Reset(b); err != nil {
		return m, 0, err
	}
	if !r.Next() {
		return m, 0, errors.Join(errNoMarker, r.Err())
	}
	rec := r.Record()
	if m, err = record.ParseControl(rec.Key, rec.Value); err == nil && m.Type != record.Abort && m.Type != record.Commit {
		err = errNoMarker
	}
	return m, rec.Timestamp, err
}

// maxMarker bounds the records of a marker, which nobody compresses.
const maxMarker = 64 << 10
