package isr

import (
	"time"

	"github.com/tidemark-log/tidemark/partition"
)

// Coordinator is what a node asks of whoever keeps the records. A *Controller is
// one, called directly or at the far end of a network; now is the coordinator's
// time and means nothing to one that has its own clock.
//
// partition.Unknown as an answer says that nobody knows whether it was done: the
// same call is to be made again, or the record to be read.
type Coordinator interface {
	Register(q *partition.Register, now time.Time) partition.Registered
	Ready(node int32, brokerEpoch int64, now time.Time) partition.Code
	KeepAlive(node int32, brokerEpoch int64, now time.Time) partition.Code
	Stop(node int32, brokerEpoch int64, now time.Time) partition.Code
	Fence(node int32, brokerEpoch int64, now time.Time) partition.Code

	Alter(q *partition.Alter, now time.Time) partition.Altered
	Decline(id partition.ID, node int32, brokerEpoch int64, leaderEpoch int32, now time.Time) partition.Code
	Handover(id partition.ID, from int32, brokerEpoch int64, to, leaderEpoch int32, now time.Time) partition.Altered

	NewProducerID() (id int64, epoch int16, err error)
	Since(revision int64) Changes
}

var _ Coordinator = (*Controller)(nil)

// Changes is what happened after a revision: the newest state of everything that
// changed, each list in the order of its changes. Asking again with Revision
// leaves no gap.
type Changes struct {
	Revision int64
	// Full: the lists are all there is, and what they do not name is gone. Asking
	// from 0 is always answered in full.
	Full    bool
	Topics  []Topic
	Records []*partition.Record // shared, never to be changed
	Nodes   []partition.Node
}

// TopicSpec is what a topic is made of.
type TopicSpec struct {
	// Replicas assigns the nodes of each partition, the preferred leader first. If
	// it is nil, Partitions are spread over the nodes that are up, each on
	// ReplicationFactor of them.
	Replicas          [][]int32
	Partitions        int32
	ReplicationFactor int

	MinISR int32             // default 1; more than a partition has replicas counts as all of them
	Config map[string]string // settings of the logs, kept for the nodes and not looked at
}

// Topic is a topic as the coordinator knows it; of a deleted one only what nodes need to
// drop what they have of it.
type Topic struct {
	Name       string
	ID         partition.UUID
	Revision   int64
	Deleted    bool
	Partitions int32
	MinISR     int32 // as asked for; the one in force is in the records
	Config     map[string]string
}
