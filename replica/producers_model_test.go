package replica

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/tidemark-log/tidemark/dedupe"
	"github.com/tidemark-log/tidemark/record"
)

// producerModel is the table of producers as a map, made of the batches of a log
// (R31, I21).
type producerModel map[int64]*dedupe.Producer

// producers rebuilds the table from the model's batches.
func (m *model) producers() producerModel {
	p := producerModel{}
	for _, b := range m.batches {
		p.add(b.b)
	}
	return p
}

func (m producerModel) add(b record.Batch) {
	if b.ProducerID() < 0 {
		return
	}
	p := m[b.ProducerID()]
	if p == nil {
		p = &dedupe.Producer{ID: b.ProducerID(), Epoch: -1, CoordinatorEpoch: -1, LastTimestamp: -1, TxnFirstOffset: -1}
		m[p.ID] = p
	}
	if p.Epoch != b.ProducerEpoch() {
		p.Epoch, p.N, p.Batches = b.ProducerEpoch(), 0, [dedupe.Window]dedupe.Batch{}
	}
	p.LastTimestamp = b.MaxTimestamp()
	if b.IsControl() {
		for rec := range b.Records() {
			c, err := record.ParseControl(rec.Key, rec.Value)
			if err != nil {
				panic(err)
			}
			p.CoordinatorEpoch, p.TxnFirstOffset = c.CoordinatorEpoch, -1
		}
		return
	}
	if p.N == dedupe.Window {
		copy(p.Batches[:], p.Batches[1:])
		p.N--
	}
	p.Batches[p.N] = dedupe.Batch{LastOffset: b.LastOffset(), Timestamp: b.MaxTimestamp(), LastSequence: b.LastSequence(), OffsetDelta: b.LastOffsetDelta()}
	p.N++
	if b.IsTransactional() && p.TxnFirstOffset < 0 {
		p.TxnFirstOffset = b.BaseOffset()
	}
}

// check is log-format §5.3 for a batch that is not appended yet.
func (m producerModel) check(b record.Batch) (original *dedupe.Batch, err error) {
	p := m[b.ProducerID()]
	if p == nil {
		return nil, nil
	}
	first, last := b.BaseSequence(), b.LastSequence()
	newest := int64(-1)
	for i := range p.N {
		x := p.Batches[i]
		if newest = int64(x.LastSequence); p.Epoch == b.ProducerEpoch() && x.FirstSequence() == first && x.LastSequence == last {
			return &x, nil
		}
	}
	inOrder := int64(first) == newest+1 || newest == math.MaxInt32 && first == 0
	switch e := b.ProducerEpoch(); {
	case e < p.Epoch:
		return nil, dedupe.ErrFenced
	case e > p.Epoch && p.Epoch != -1 && first != 0, e == p.Epoch && !inOrder:
		return nil, dedupe.ErrOutOfOrder
	case p.TxnFirstOffset >= 0 && !b.IsTransactional():
		return nil, dedupe.ErrTxnState
	}
	return nil, nil
}

// stamp makes b the batch of a producer.
func stampProducer(b record.Batch, pid int64, epoch int16, seq int32, transactional bool) {
	be := binary.BigEndian
	be.PutUint64(b[43:], uint64(pid))
	be.PutUint16(b[51:], uint16(epoch))
	be.PutUint32(b[53:], uint32(seq))
	if b[22] &^= 1 << 4; transactional {
		b[22] |= 1 << 4
	}
	be.PutUint32(b[17:], b.ComputeCRC())
}

// produced makes records that a producer may send: none is so old that it expires.
func (r *rig) produced(limit int) []record.Record {
	recs := r.records(limit)
	for i := range recs {
		recs[i].Timestamp = r.now - r.rng.Int64N(1000)
	}
	return recs
}

// assume makes b the batch of one of a few producers: as a rule what it sends
// next, or sends again.
func (r *rig) assume(b record.Batch, known producerModel) {
	pid := r.rng.Int64N(6)
	var epoch int16
	seq, transactional := int32(0), r.rng.IntN(8) == 0
	if p := known[pid]; p != nil {
		epoch = p.Epoch
		transactional = transactional || p.TxnFirstOffset >= 0 && r.rng.IntN(4) > 0
		if last, any := p.Last(); any {
			seq = record.IncSequence(last.LastSequence, 1)
		}
	} else if r.rng.IntN(3) == 0 {
		seq = math.MaxInt32 - r.rng.Int32N(20)
	}
	switch r.rng.IntN(16) {
	case 0:
		seq = r.rng.Int32N(10)
	case 1:
		epoch += int16(r.rng.IntN(3)) - 1
	case 2:
		epoch, seq = epoch+1, 0
	}
	stampProducer(b, pid, max(epoch, 0), seq, transactional)
}

// marker is the end of some producer's transaction, if it has one.
func (r *rig) marker(base int64, epoch int32, known producerModel) record.Batch {
	pid := r.rng.Int64N(6)
	m := record.Marker{Offset: base, LeaderEpoch: epoch, Timestamp: r.now, ProducerID: pid, Type: record.Commit, CoordinatorEpoch: 1}
	if p := known[pid]; p != nil {
		m.ProducerEpoch, m.CoordinatorEpoch = p.Epoch, max(p.CoordinatorEpoch, 0)
	}
	return record.AppendMarker(nil, m)
}

// appendProduced appends what an idempotent producer sends, duplicates and what
// must be refused among it, or a coordinator's marker.
func (r *rig) appendProduced() {
	known := r.known()
	recs := r.produced(int(r.o.SegmentBytes)/2 - record.HeaderSize)
	spec := record.NewSpec()
	spec.Now = r.now
	b := record.Encode(make([]byte, record.Size(recs, r.now)), recs, &spec)
	origin := Origin(r.rng.IntN(2))
	var original *dedupe.Batch
	var want error
	switch r.rng.IntN(10) {
	case 0:
		b, origin = r.marker(0, -1, known), Trusted
	case 1, 2: // one that was sent before, if there is one
		if n := len(r.m.batches); n > 0 {
			if x := r.m.batches[n-1-r.rng.IntN(min(n, 12))].b; x.HasProducer() && !x.IsControl() {
				b = slices.Clone(x)
				b.SetBaseOffset(0)
				b.SetMaxTimestamp(record.CreateTime, b.MaxTimestamp())
				origin = Trusted // compacted ones are none that a client may send
			} else {
				r.assume(b, known)
			}
		}
	default:
		r.assume(b, known)
	}
	if !b.IsControl() {
		original, want = known.check(b)
	}
	stamped := slices.Clone(b)
	if t := r.timestampType(); t == record.LogAppendTime {
		stamped.SetMaxTimestamp(t, r.now)
	}
	stamped.SetBaseOffset(r.m.end)
	stamped.SetLeaderEpoch(r.m.epoch)
	after := r.m.clone()
	if original == nil && want == nil {
		after.add(stamped)
	}
	r.note("append batch of producer %d, epoch %d, sequence %d to %d, at %d: duplicate %v, want error %v",
		b.ProducerID(), b.ProducerEpoch(), b.BaseSequence(), b.LastSequence(), r.m.end, original != nil, want)
	switch {
	case int64(len(b)) > r.o.SegmentBytes:
		want = ErrTooLarge
	case r.m.held >= 0:
		want = ErrHeld
	case r.m.epoch < 0:
		want = errNoEpoch
	}
	var got Appended
	err := r.do(after, func() (err error) {
		got, err = r.log.Append(b, origin, r.time())
		return err
	})
	if !errors.Is(err, want) {
		r.failf("append: %v, want %v", err, want)
	}
	if err != nil {
		return
	}
	expect := Appended{Base: stamped.BaseOffset(), End: stamped.NextOffset(), MaxTimestamp: stamped.MaxTimestamp()}
	if original != nil {
		expect = Appended{Base: original.BaseOffset(), End: original.LastOffset + 1, Duplicate: true, MaxTimestamp: original.Timestamp}
	}
	if got != expect {
		r.failf("append answered %+v, want %+v", got, expect)
	}
}

// checkProducers compares the table of a log with the one its batches make. Of
// batches below the log start, which are deleted, it may know or not: its windows
// end with what the batches that are left say, and say nothing that never was.
func (m *model) checkProducers(l *Log) error {
	t := l.prod.table
	if t == nil {
		return nil
	}
	all, left := m.producers(), producerModel{}
	deleted := m.raised
	for _, b := range m.batches {
		if b.base >= m.start {
			left.add(b.b)
		} else {
			deleted = true
		}
	}
	endsWith := func(a, b *dedupe.Producer) bool {
		return a.Epoch == b.Epoch && a.N >= b.N && slices.Equal(a.Batches[a.N-b.N:a.N], b.Batches[:b.N])
	}
	n := 0
	for p := range t.All() {
		n++
		w, was := left[p.ID], all[p.ID]
		switch {
		case was == nil && !m.raised:
			return fmt.Errorf("table has %+v, the log never had a batch of it", p)
		case !deleted && p != *w:
			return fmt.Errorf("table has %+v, the log %+v", p, *w)
		case !m.raised && !endsWith(was, &p):
			return fmt.Errorf("table has %+v, the log had %+v", p, *was)
		case w != nil && !endsWith(&p, w):
			return fmt.Errorf("table has %+v, the log %+v", p, *w)
		}
		delete(left, p.ID)
	}
	if len(left) > 0 || n != t.Len() {
		return fmt.Errorf("table has %d producers of %d, these are missing: %v", n, t.Len(), left)
	}
	return nil
}

// known is what the log knows of producers; see checkProducers.
func (r *rig) known() producerModel {
	known := producerModel{}
	if t := r.log.prod.table; t != nil {
		for p := range t.All() {
			known[p.ID] = &p
		}
	}
	return known
}
