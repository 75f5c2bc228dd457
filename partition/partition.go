// Package partition holds what replicas of a partition, its leader and the
// coordinator say to one another: ids, the coordinator's record of a partition,
// fetch, epoch and membership messages, and the errors they answer with. It is a
// leaf: plain values, no behaviour that needs a log.
//
// Names and numbers like A3 and R15 are those of docs/replication.md.
package partition

import (
	"fmt"
	"slices"

	"github.com/tidemark-log/tidemark/internal/checkpoint"
)

// UUID is a Kafka uuid, such as a topic's id.
type UUID = checkpoint.UUID

// ID names a partition for good: a topic made again under its old name has
// another id.
type ID struct {
	Topic     UUID
	Partition int32
}

func (id ID) String() string { return fmt.Sprintf("%s-%d", id.Topic, id.Partition) }

// None is the leader of a partition that has none, and the replica id of a
// consumer.
const None int32 = -1

// Member names one replica as it was in one life of its node: an entry of the
// ISR or the ELR. It is worth something only while BrokerEpoch is the node's
// current one (R1, R3) and LogID that of its directory (R2).
type Member struct {
	Node        int32
	BrokerEpoch int64 // −1: taken over from a record, not heard of in this leader epoch
	LogID       UUID
}

func (m Member) String() string { return fmt.Sprintf("%d@%d", m.Node, m.BrokerEpoch) }

// Record is the coordinator's record of a partition: who leads it and who may.
// It holds no offsets. A published Record is never changed; see Clone.
type Record struct {
	ID
	Revision int64 // of the store when this change was made

	Replicas []int32 // assigned, the preferred leader first
	Leader   int32   // None if there is none
	// LeaderEpoch grows with every change of leader or election, PartitionEpoch
	// with every accepted change of the record.
	LeaderEpoch, PartitionEpoch int32

	ISR       []Member // in sync
	ELR       []Member // left the ISR while the high watermark was frozen: still complete (R20)
	LastKnown []Member // were in either, and are not effective any more
	MinISR    int32    // in force, at most len(Replicas)
}

// Clone returns a copy that shares nothing.
func (r *Record) Clone() *Record {
	c := *r
	c.Replicas = slices.Clone(r.Replicas)
	c.ISR, c.ELR, c.LastKnown = slices.Clone(r.ISR), slices.Clone(r.ELR), slices.Clone(r.LastKnown)
	return &c
}

// Find returns the member of a node in a list; ok is false if there is none.
func Find(list []Member, node int32) (m Member, ok bool) {
	for _, m := range list {
		if m.Node == node {
			return m, true
		}
	}
	return Member{}, false
}

// Assigned reports whether a node is one of the replicas.
func (r *Record) Assigned(node int32) bool { return slices.Contains(r.Replicas, node) }

// Check returns what is wrong with a record by I13, nil if nothing is.
func (r *Record) Check() error {
	in := func(list []Member, node int32) bool { _, ok := Find(list, node); return ok }
	for i, m := range r.ISR {
		switch {
		case !r.Assigned(m.Node):
			return fmt.Errorf("partition %s: ISR has node %d, which is no replica", r.ID, m.Node)
		case in(r.ISR[:i], m.Node):
			return fmt.Errorf("partition %s: ISR has node %d twice", r.ID, m.Node)
		case in(r.ELR, m.Node):
			return fmt.Errorf("partition %s: node %d is in ISR and ELR", r.ID, m.Node)
		}
	}
	switch {
	case (r.Leader == None) != (len(r.ISR) == 0):
		return fmt.Errorf("partition %s: leader %d with an ISR of %d", r.ID, r.Leader, len(r.ISR))
	case r.Leader != None && !in(r.ISR, r.Leader):
		return fmt.Errorf("partition %s: leader %d is not in the ISR", r.ID, r.Leader)
	case len(r.ISR) >= int(r.MinISR) && len(r.ELR)+len(r.LastKnown) > 0:
		return fmt.Errorf("partition %s: ISR of %d is at least %d, yet ELR has %d and last known %d",
			r.ID, len(r.ISR), r.MinISR, len(r.ELR), len(r.LastKnown))
	case r.Leader == None && len(r.ELR)+len(r.LastKnown) == 0:
		return fmt.Errorf("partition %s: nobody leads and nobody is remembered", r.ID)
	}
	return nil
}
