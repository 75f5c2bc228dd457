package sim

import (
	"time"

	"github.com/anishathalye/porcupine"
)

// historyOps is how many operations of a partition are judged. The problem grows
// fast with them.
const historyOps = 200

// clientOp is one operation that a client made and that was answered: an append of
// [base, end), or a read of records up to end.
type clientOp struct {
	client     int32
	read       bool
	base, end  int64
	from, till int64 // virtual time
}

// logModel is what clients may believe a partition to be: a list that only grows, by
// one batch at a time, each at the end of the one before.
var logModel = porcupine.Model{
	Init: func() any { return int64(0) },
	Step: func(state, input, _ any) (bool, any) {
		end, op := state.(int64), input.(*clientOp)
		if op.read {
			return op.end <= end, end
		}
		return op.base == end, op.end
	},
}

// checkHistory has porcupine judge the beginning of what the clients of a
// partition saw. It needs to know of every batch where it is: all producers have to
// be idempotent and to have been answered.
func (w *world) checkHistory(g *ghost) {
	var list []*clientOp
	for _, c := range w.clients {
		p, ok := c.(*producer)
		if ok && int(p.part) == g.num && (!p.idempotent || p.acks != -1 || p.gaveUp) {
			return
		}
	}
	at := int64(0)
	for _, x := range g.canon {
		s := w.batches[x.number]
		if x.base != at || !s.acked || s.till == 0 || s.base != x.base {
			return // sent twice, after it had been deleted
		}
		list = append(list, &clientOp{client: s.producer.id, base: x.base, end: x.end, from: s.from, till: s.till})
		if at = x.end; len(list) >= historyOps*2/3 {
			break
		}
	}
	for i := range g.reads {
		if r := &g.reads[i]; r.end <= at && len(list) < historyOps {
			list = append(list, r)
		}
	}
	ops := make([]porcupine.Operation, len(list))
	for i, o := range list {
		ops[i] = porcupine.Operation{ClientId: int(o.client - firstClient), Input: o, Call: o.from, Return: o.till}
	}
	switch porcupine.CheckOperationsTimeout(logModel, ops, 2*time.Second) {
	case porcupine.Illegal:
		w.fail("I19", "partition %d: what its clients saw is no history of a log; %d operations", g.num, len(ops))
	case porcupine.Unknown:
		w.cov.add("history not judged in time")
	default:
		w.cov.add("history judged by porcupine")
	}
}
