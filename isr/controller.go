package isr

import (
	"errors"
	"io"
	"log/slog"
	"time"

	"github.com/tidemark-log/tidemark/partition"
)

// ControllerOptions tunes a Controller. The zero value is ready to use.
type ControllerOptions struct {
	ClusterID string        // what a node must say it belongs to
	TTL       time.Duration // how long a session lives after its last sign of life; default 9 s
	Rand      io.Reader     // for topic ids; default crypto/rand
	Logger    *slog.Logger  // default: none

	// Store is given the whole state before a change is announced, and returns when
	// it will outlive the process. One call runs at a time, without locks that
	// KeepAlive needs; what changed meanwhile goes with the next. After an error the
	// change stays unannounced and its caller hears Unknown; each later call and Tick
	// stores again. nil: the state lives in memory only.
	Store func(state []byte) error
}

// Controller is the coordinator of one process: a state machine that keeps the
// record of each partition and decides who leads. Safe for concurrent use.
type Controller struct {
	// Notify is called, without locks, after something changed that Since tells. Set
	// it before the first call.
	Notify func()

	o ControllerOptions
}

// NewController returns a Controller that knows of nothing.
func NewController(o ControllerOptions) *Controller { return &Controller{o: o} }

// LoadController returns a Controller with a state that was given to Store. The
// sessions in it are over: they belonged to the process that ended.
func LoadController(state []byte, o ControllerOptions) (*Controller, error) {
	return nil, errors.New("not yet")
}

// Register begins a life of a node (A9). The node is fenced until Ready.
func (c *Controller) Register(q *partition.Register, now time.Time) partition.Registered {
	return partition.Registered{Code: partition.Unknown}
}

// Ready says that a node has read the records with Since after its registration
// was answered, and acts on them: it may lead and join ISRs from here on.
func (c *Controller) Ready(node int32, brokerEpoch int64, now time.Time) partition.Code {
	return partition.Unknown
}

// KeepAlive keeps the session of a node. Only OK lets the node count on its lease
// (R28). IneligibleReplica: the session lives, the node is fenced.
// StaleBrokerEpoch: the session is over; a Register of the same incarnation keeps
// its broker epoch, and Since and Ready follow it.
func (c *Controller) KeepAlive(node int32, brokerEpoch int64, now time.Time) partition.Code {
	return partition.Unknown
}

// Stop begins a controlled stop: the node joins no ISR any more and leaves those
// it does not lead. It then hands over what it leads, and asks for Fence.
func (c *Controller) Stop(node int32, brokerEpoch int64, now time.Time) partition.Code {
	return partition.Unknown
}

// Fence ends the session of a node that asks for it.
func (c *Controller) Fence(node int32, brokerEpoch int64, now time.Time) partition.Code {
	return partition.Unknown
}

// Alter takes a leader's proposal for another ISR (A8).
func (c *Controller) Alter(q *partition.Alter, now time.Time) partition.Altered {
	return partition.Altered{ID: q.ID, Code: partition.Unknown}
}

// Decline says that a node cannot lead what it was elected for (R24).
func (c *Controller) Decline(id partition.ID, node int32, brokerEpoch int64, leaderEpoch int32, now time.Time) partition.Code {
	return partition.Unknown
}

// Handover makes to the leader in the place of from, which asks for it once to
// has everything (A14).
func (c *Controller) Handover(id partition.ID, from int32, brokerEpoch int64, to, leaderEpoch int32, now time.Time) partition.Altered {
	return partition.Altered{ID: id, Code: partition.Unknown}
}

// CreateTopic makes a topic, all of whose live replicas are in sync: their logs
// are empty.
func (c *Controller) CreateTopic(name string, o TopicSpec, now time.Time) (partition.UUID, []*partition.Record, error) {
	return partition.UUID{}, nil, errors.New("not yet")
}

// DeleteTopic forgets a topic.
func (c *Controller) DeleteTopic(name string, now time.Time) error { return errors.New("not yet") }

// SetMinISR changes the least ISR of a topic (R20).
func (c *Controller) SetMinISR(name string, minISR int32, now time.Time) error {
	return errors.New("not yet")
}

// ElectPreferred makes the first replica the leader if it is live and in the ISR,
// at once; a leader that can be asked hands over instead.
func (c *Controller) ElectPreferred(id partition.ID, now time.Time) partition.Code {
	return partition.Unknown
}

// NewProducerID returns an id that no producer had before; −1 if it could not be
// stored.
func (c *Controller) NewProducerID() (id int64, epoch int16) { return -1, -1 }

// Tick fences the nodes whose sessions ended, all in one step (R21), and says when
// it is to be called again; zero: when something happens.
func (c *Controller) Tick(now time.Time) (next time.Time) { return time.Time{} }

// Since returns what changed after a revision.
func (c *Controller) Since(revision int64) Changes { return Changes{Revision: revision} }

// Record returns the record of a partition, nil if there is none.
func (c *Controller) Record(id partition.ID) *partition.Record { return nil }

// Node returns what is known of a node; its BrokerEpoch is −1 if nothing is.
func (c *Controller) Node(id int32) partition.Node { return partition.Node{ID: id, BrokerEpoch: -1} }

// Topic returns a topic by its name.
func (c *Controller) Topic(name string) (Topic, bool) { return Topic{}, false }
