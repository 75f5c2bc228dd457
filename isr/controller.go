package isr

import (
	"cmp"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/tidemark-log/tidemark/internal/checkpoint"
	"github.com/tidemark-log/tidemark/internal/invariant"
	"github.com/tidemark-log/tidemark/partition"
)

// Errors of the calls that make and change topics.
var (
	ErrTopicExists  = errors.New("topic exists")
	ErrUnknownTopic = errors.New("unknown topic")
)

const (
	defaultTTL    = 9 * time.Second
	maxPartitions = 100_000 // of one topic
	maxReplicas   = 64      // of one partition
	maxEpoch      = math.MaxInt32 - 1
	idBlock       = 1000 // producer ids stored as given out at a time
	maxDeleted    = 1024 // deleted topics remembered for Since
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
	// stores again. It must not call the Controller but for KeepAlive and what only
	// reads. nil: the state lives in memory only.
	Store func(state []byte) error
}

// Controller is the coordinator of one process: a state machine that keeps the
// record of each partition and decides who leads (docs/replication.md §7). Safe for
// concurrent use.
//
// A change is made in memory first and announced (told by Since and by the answer
// of the call) once it is stored, so everything anybody has heard of survives. What
// is stored is always the state as of one revision, so a decision never outlives
// what it rests on.
type Controller struct {
	// Notify is called, without locks, after something changed that Since tells. Set
	// it before the first call.
	Notify func()

	o ControllerOptions

	storing sync.Mutex // held across Store. Lock order: storing, mu.

	mu        sync.Mutex    // guards all below; never held across Store or Notify
	revision  int64         // of the newest change
	announced int64         // up to here changes are stored and told
	failed    error         // of the last Store
	size      int           // of the state that was encoded last
	nodes     []*nodeState  // by id
	topics    []*topicState // in the order they were made
	parts     []*partState  // likewise: every walk goes along these lists
	byID      map[partition.ID]*partState
	byName    map[string]*topicState

	nextID, endID int64 // producer ids: the next one, and the end of those stored as given out

	waiting []announcement // changes not yet announced, in order
	changes item           // ring of what was announced, in order
	deleted int            // topics in the ring that are deleted
	compact int64          // revision of the newest of these that was dropped
}

type nodeState struct {
	item
	partition.Node
	incarnation, boot partition.UUID
	// chainStart is the first broker epoch since which every restart gave evidence
	// that nothing confirmed was lost (R4).
	chainStart int64
	until      time.Time // end of the session; zero: it is over
	line       []byte    // as stored; nil after a change
}

type topicState struct {
	item
	Topic
	line []byte
}

type partState struct {
	item
	topic *topicState
	rec   *partition.Record
	// refused is the newest proposal of this leader epoch that was refused for a
	// member's sake: its leader went back to the ISR before, so no late copy of it may
	// count.
	refused uint64
	// ends are those of the logs that nodes have registered with since there was a
	// leader.
	ends map[int32]logEnd
	line []byte
}

// logEnd is where a log ends, and the epoch of its last batch.
type logEnd struct {
	epoch  int32
	offset int64
}

var unknownEnd = logEnd{-1, -1}

// longer reports whether a log is longer than another one: of a later epoch, or of the
// same and with more in it.
func (e logEnd) longer(o logEnd) bool {
	return e.epoch > o.epoch || e.epoch == o.epoch && e.offset > o.offset
}

// minISR is what the topic asks for; more than all replicas is all of them.
func (p *partState) minISR() int32 { return min(p.topic.MinISR, int32(len(p.rec.Replicas))) }

// named reports whether the log of a node's entry is known. Before, it need not be
// there yet: what is not there says nothing against it.
func (p *partState) named(node int32) bool {
	m, _ := partition.Find(slices.Concat(p.rec.ISR, p.rec.ELR), node)
	return m.LogID != partition.UUID{}
}

// An item is the announced state of something, in a ring ordered by revision. One
// of record, node and topic is set; they are never changed.
type item struct {
	prev, next *item
	told
}

type told struct {
	revision int64
	record   *partition.Record
	node     *partition.Node
	topic    *Topic
}

// An announcement is a change that waits for the store.
type announcement struct {
	of *item
	told
	gone bool // it leaves the ring
}

// NewController returns a Controller that knows of nothing.
func NewController(o ControllerOptions) *Controller {
	if o.TTL <= 0 {
		o.TTL = defaultTTL
	}
	if o.Rand == nil {
		o.Rand = rand.Reader
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	c := &Controller{o: o, byID: map[partition.ID]*partState{}, byName: map[string]*topicState{}}
	c.changes.prev, c.changes.next = &c.changes, &c.changes
	return c
}

// do runs a step on the state as of now and announces what it changed. An error,
// which wraps partition.Unknown, says that it could not be stored: then nobody may be
// told the step's outcome, a refusal neither, for it may rest on changes nobody has
// heard of.
func (c *Controller) do(now time.Time, step func()) error {
	c.mu.Lock()
	c.expire(now)
	step()
	return c.announce()
}

// announce stores and tells every change made so far. It lets go of mu.
func (c *Controller) announce() error {
	upTo, notify := c.revision, false
	if c.o.Store == nil {
		notify = c.tell(upTo)
	}
	done := c.announced >= upTo
	c.mu.Unlock()
	if notify && c.Notify != nil {
		c.Notify()
	}
	if done {
		return nil
	}
	return c.store(upTo)
}

func (c *Controller) store(upTo int64) error {
	c.storing.Lock()
	c.mu.Lock()
	if c.announced >= upTo { // somebody else's call took it along
		c.mu.Unlock()
		c.storing.Unlock()
		return nil
	}
	upTo = c.revision
	state := c.encode()
	c.mu.Unlock()
	err := c.o.Store(state)
	c.mu.Lock()
	news := err != nil && c.failed == nil
	c.failed = err
	notify := err == nil && c.tell(upTo)
	c.mu.Unlock()
	c.storing.Unlock()
	if news {
		c.o.Logger.Error("coordinator: store the state", "revision", upTo, "err", err)
	}
	if err != nil {
		return fmt.Errorf("store the coordinator's state: %w: %w", partition.Unknown, err)
	}
	if notify && c.Notify != nil {
		c.Notify()
	}
	return nil
}

// tell moves the changes up to a revision to the end of the ring.
func (c *Controller) tell(upTo int64) (some bool) {
	c.announced = upTo
	i := 0
	for ; i < len(c.waiting) && c.waiting[i].revision <= upTo; i++ {
		a := c.waiting[i]
		it := a.of
		if it.next != nil {
			it.prev.next, it.next.prev = it.next, it.prev
			it.prev, it.next = nil, nil
		}
		it.told = a.told
		if a.gone {
			continue
		}
		last := c.changes.prev
		it.prev, it.next = last, &c.changes
		last.next, c.changes.prev = it, it
		if a.topic != nil && a.topic.Deleted {
			c.deleted++
		}
	}
	c.waiting = slices.Delete(c.waiting, 0, i)
	for it := c.changes.next; c.deleted > maxDeleted; it = it.next {
		if it.topic != nil && it.topic.Deleted {
			it.prev.next, it.next.prev = it.next, it.prev
			c.compact = it.revision
			c.deleted--
		}
	}
	return i > 0
}

// change counts a revision and puts what it did in line to be announced.
func (c *Controller) change(of *item, t told, gone bool) {
	c.waiting = append(c.waiting, announcement{of, t, gone})
}

func (c *Controller) node(id int32) *nodeState {
	if i, ok := c.findNode(id); ok {
		return c.nodes[i]
	}
	return nil
}

func (c *Controller) findNode(id int32) (int, bool) {
	return slices.BinarySearchFunc(c.nodes, id, func(n *nodeState, id int32) int { return cmp.Compare(n.ID, id) })
}

// putNode makes a node's new state a change.
func (c *Controller) putNode(n *nodeState) {
	c.revision++
	n.Revision, n.line = c.revision, nil
	v := n.Node
	c.change(&n.item, told{revision: c.revision, node: &v}, false)
}

// put makes a record that decide returned a change (I15).
func (c *Controller) put(p *partState, r *partition.Record) {
	if r == nil {
		return
	}
	old := p.rec
	r.PartitionEpoch++
	r.Revision = c.revision + 1
	if err := r.Check(); err != nil || r.LeaderEpoch > maxEpoch || r.PartitionEpoch > maxEpoch {
		// A bug, or four thousand million changes. The old record is the safe one.
		invariant.Check(err == nil, "record after %+v: %v", old, err)
		c.o.Logger.Error("coordinator: no record follows", "partition", p.name(), "err", err,
			"leaderEpoch", old.LeaderEpoch, "partitionEpoch", old.PartitionEpoch)
		return
	}
	c.revision++
	p.rec, p.line = r, nil
	if r.LeaderEpoch != old.LeaderEpoch {
		p.refused = 0
	}
	if r.Leader != partition.None {
		p.ends = nil // others copy from it
	}
	c.change(&p.item, told{revision: r.Revision, record: r}, false)
	if r.LeaderEpoch == old.LeaderEpoch {
		return
	}
	log := c.o.Logger.With("partition", p.name(), "epoch", r.LeaderEpoch, "isr", r.ISR, "elr", r.ELR, "lastKnown", r.LastKnown)
	switch {
	case r.Leader != partition.None:
		log.Info("coordinator: leader elected", "leader", r.Leader, "before", old.Leader)
	case len(r.ELR) > 0:
		log.Warn("coordinator: no leader until one of the ELR is back", "before", old.Leader)
	default:
		log.Error("coordinator: no leader, and nobody is known to be complete", "before", old.Leader)
	}
}

func (p *partState) name() string { return fmt.Sprintf("%s-%d", p.topic.Name, p.rec.Partition) }

// settle brings every record in line with the nodes as they are now.
func (c *Controller) settle() {
	for _, p := range c.parts {
		c.put(p, c.decide(p, noWish))
	}
}

// expire fences the nodes whose sessions ended: all of them, then the records
// (R21).
func (c *Controller) expire(now time.Time) {
	some := false
	for _, n := range c.nodes {
		if n.until.IsZero() || n.live(now) {
			continue
		}
		c.o.Logger.Warn("coordinator: session ended", "node", n.ID, "brokerEpoch", n.BrokerEpoch)
		n.until, some = time.Time{}, true
		if !n.Fenced {
			n.Fenced = true
			c.putNode(n)
		}
	}
	if some {
		c.settle()
	}
}

// live reports whether the session of a node lives.
func (n *nodeState) live(now time.Time) bool { return now.Before(n.until) }

// coming reports whether a node has registered, lives, and is not ready yet.
func (n *nodeState) coming() bool { return n.Fenced && !n.Stopping && !n.until.IsZero() }

// extend renews a session. A clock that stepped back takes nothing away.
func (n *nodeState) extend(now time.Time, ttl time.Duration) {
	if end := now.Add(ttl); end.After(n.until) {
		n.until = end
	}
}

// Register begins a life of a node (A9), which is fenced until Ready. Everything
// the records say of its earlier lives is void from here on, but for what its
// evidence lets live on in ELRs (R3, R4).
//
// The same incarnation asking again gets the same broker epoch. Another one is
// refused with DuplicateRegistration while the session of the one before lives;
// who knows that that process is gone ends it with Fence.
func (c *Controller) Register(q *partition.Register, now time.Time) partition.Registered {
	a := partition.Registered{BrokerEpoch: -1}
	if c.do(now, func() { a.Code, a.BrokerEpoch = c.register(q, now) }) != nil {
		return partition.Registered{Code: partition.Unknown, BrokerEpoch: -1}
	}
	return a
}

func (c *Controller) register(q *partition.Register, now time.Time) (partition.Code, int64) {
	switch {
	case q.ClusterID != c.o.ClusterID:
		return partition.InconsistentClusterID, -1
	case q.Node < 0, q.Incarnation == partition.UUID{}, q.Evidence > partition.Clean:
		return partition.InvalidRequest, -1
	}
	i, known := c.findNode(q.Node)
	if !known {
		c.nodes = slices.Insert(c.nodes, i, &nodeState{Node: partition.Node{ID: q.Node, BrokerEpoch: -1}})
	}
	n := c.nodes[i]
	switch {
	case n.incarnation == q.Incarnation:
		if n.Stopping && !n.live(now) { // a stopped life is over; this is a late message
			return partition.StaleBrokerEpoch, -1
		}
		n.extend(now, c.o.TTL)
		return partition.OK, n.BrokerEpoch
	case n.live(now):
		return partition.DuplicateRegistration, -1
	}
	epoch := c.revision + 1
	logs := n.logs(q)
	if !known || !n.vouched(q, q.Evidence, q.Logs != nil || q.Durable && n.Durable) {
		n.chainStart = epoch
	}
	n.Node = partition.Node{ID: q.Node, BrokerEpoch: epoch, Fenced: true, Durable: q.Durable, Address: q.Address}
	n.incarnation, n.boot = q.Incarnation, q.BootID
	n.until = now.Add(c.o.TTL)
	c.putNode(n)
	for _, p := range c.parts {
		w := noWish
		l, listed := logs[p.rec.ID]
		if logs != nil && !l.vouched && (listed || p.named(n.ID)) {
			w.refuse = n.ID
		}
		delete(p.ends, n.ID)
		if l.vouched && p.rec.Leader == partition.None {
			if p.ends == nil {
				p.ends = map[int32]logEnd{}
			}
			p.ends[n.ID] = l.end
		}
		c.put(p, c.decide(p, w))
	}
	c.o.Logger.Info("coordinator: node registered", "node", n.ID, "brokerEpoch", epoch, "evidence", q.Evidence, "chainStart", n.chainStart)
	return partition.OK, epoch
}

// vouched reports whether evidence, of the node or of one of its logs, shows that
// the life before lost nothing that it had confirmed (R4). Another boot leaves that
// to what was durable at each confirmation: a log may have been opened, and cut,
// under this boot already.
func (n *nodeState) vouched(q *partition.Register, e partition.Evidence, durable bool) bool {
	switch e {
	case partition.Clean: // the marker of another life is no evidence for this one
		return q.Previous == n.BrokerEpoch
	case partition.Intact:
		return durable || q.BootID == n.boot && q.BootID != partition.UUID{}
	}
	return false
}

// said is what a registration says of one log.
type said struct {
	vouched bool
	end     logEnd
}

// logs is what a registration says of the logs one by one, nil if it does not.
func (n *nodeState) logs(q *partition.Register) map[partition.ID]said {
	if q.Logs == nil {
		return nil
	}
	logs := make(map[partition.ID]said, len(q.Logs))
	for _, l := range q.Logs {
		logs[l.ID] = said{n.vouched(q, min(q.Evidence, l.Evidence), l.Durable), logEnd{l.LastEpoch, l.LEO}}
	}
	return logs
}

// asNode runs a step for the present life of a node.
func (c *Controller) asNode(id int32, brokerEpoch int64, now time.Time, step func(*nodeState) partition.Code) partition.Code {
	code := partition.StaleBrokerEpoch
	err := c.do(now, func() {
		if n := c.node(id); n != nil && n.BrokerEpoch == brokerEpoch {
			code = step(n)
		}
	})
	if err != nil {
		return partition.Unknown
	}
	return code
}

// Ready says that a node has read the records, with Since, after its registration
// was answered, and acts on them: from here on it may lead and join ISRs.
// Partitions that wait for it get their leader.
func (c *Controller) Ready(node int32, brokerEpoch int64, now time.Time) partition.Code {
	return c.asNode(node, brokerEpoch, now, func(n *nodeState) partition.Code {
		switch {
		case !n.live(now):
			return partition.StaleBrokerEpoch
		case n.Stopping:
			return partition.InvalidRequest
		}
		n.extend(now, c.o.TTL)
		if n.Fenced {
			n.Fenced = false
			c.putNode(n)
			c.settle()
		}
		return partition.OK
	})
}

// KeepAlive keeps the session of a node. Only OK lets the node count on its lease
// (R28). IneligibleReplica: the session lives, but the node is fenced.
// StaleBrokerEpoch: the session is over; a Register of the same incarnation keeps
// the broker epoch, and Since and Ready follow it.
//
// It waits for no Store.
func (c *Controller) KeepAlive(node int32, brokerEpoch int64, now time.Time) partition.Code {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := c.node(node)
	switch {
	case n == nil, n.BrokerEpoch != brokerEpoch, n.Fenced && !n.live(now):
		return partition.StaleBrokerEpoch
	}
	n.extend(now, c.o.TTL) // also of one that is late: nobody has been told yet
	if n.Fenced {
		return partition.IneligibleReplica
	}
	return partition.OK
}

// Stop begins a controlled stop, the end of a life: the node joins no ISR any more
// and leaves those it does not lead. It goes on leading, hands over what it leads,
// and asks for Fence.
func (c *Controller) Stop(node int32, brokerEpoch int64, now time.Time) partition.Code {
	return c.asNode(node, brokerEpoch, now, func(n *nodeState) partition.Code {
		if !n.Stopping {
			n.Stopping = true
			c.putNode(n)
			c.settle()
		}
		return partition.OK
	})
}

// Fence ends the session of a node: it asks for it, or somebody knows that its
// process is gone. It leaves ISRs and leads nothing, but stays in ELRs (A9).
func (c *Controller) Fence(node int32, brokerEpoch int64, now time.Time) partition.Code {
	return c.asNode(node, brokerEpoch, now, func(n *nodeState) partition.Code {
		n.until = time.Time{}
		if !n.Fenced {
			n.Fenced = true
			c.putNode(n)
		}
		c.settle()
		return partition.OK
	})
}

// onPart runs a step on a partition and returns its record after it, as announced;
// code is the step's.
func (c *Controller) onPart(id partition.ID, node int32, brokerEpoch int64, now time.Time, step func(*partState) partition.Code) (partition.Code, *partition.Record) {
	var p *partState
	code := c.asNode(node, brokerEpoch, now, func(*nodeState) partition.Code {
		if p = c.byID[id]; p == nil {
			return partition.UnknownTopicID
		}
		return step(p)
	})
	return code, c.Record(id)
}

// Alter takes a leader's proposal for another ISR (A8). The lists of the record
// come in the order of the replicas. A member without a broker epoch or a log id is
// taken from the present ISR. Sent again it is answered again, and changes nothing
// more.
func (c *Controller) Alter(q *partition.Alter, now time.Time) partition.Altered {
	a := partition.Altered{ID: q.ID, Seq: q.Seq}
	a.Code, a.Record = c.onPart(q.ID, q.Node, q.BrokerEpoch, now, func(p *partState) partition.Code {
		r := p.rec
		isr, sound := proposed(r, q)
		switch {
		case q.LeaderEpoch > r.LeaderEpoch || q.PartitionEpoch > r.PartitionEpoch:
			return partition.NotController
		case q.LeaderEpoch < r.LeaderEpoch:
			return partition.FencedLeaderEpoch
		case q.Node != r.Leader:
			return partition.InvalidRequest
		case q.PartitionEpoch < r.PartitionEpoch:
			if sound && slices.Equal(isr, r.ISR) { // applied, and the answer was lost
				return partition.OK
			}
			return partition.InvalidUpdateVersion
		case !sound:
			return partition.InvalidRequest
		}
		eligible := q.Seq == 0 || q.Seq > p.refused
		for _, m := range isr {
			n := c.node(m.Node)
			old, stays := partition.Find(r.ISR, m.Node)
			if n == nil || !n.Eligible(m.BrokerEpoch) ||
				stays && old.LogID != m.LogID && old.LogID != (partition.UUID{}) { // another directory in one life (R2)
				eligible = false
			}
		}
		if !eligible {
			p.refused = max(p.refused, q.Seq)
			return partition.IneligibleReplica
		}
		c.put(p, c.decide(p, wish{isr: isr, leader: partition.None, refuse: partition.None}))
		return partition.OK
	})
	return a
}

// proposed returns the ISR of a proposal in the order of the replicas, with what
// it leaves out of old members filled in. It is not sound if it names somebody
// twice or who is not assigned, leaves the leader out, or has a newcomer whose log
// nobody knows.
func proposed(r *partition.Record, q *partition.Alter) (isr []partition.Member, sound bool) {
	if len(q.ISR) > len(r.Replicas) || !has(q.ISR, q.Node) {
		return nil, false
	}
	isr = slices.Clone(q.ISR)
	for i := range isr {
		m := &isr[i]
		old, stays := partition.Find(r.ISR, m.Node)
		if !r.Assigned(m.Node) || has(isr[:i], m.Node) || !stays && m.LogID == (partition.UUID{}) {
			return nil, false
		}
		if stays && m.BrokerEpoch == -1 {
			m.BrokerEpoch = old.BrokerEpoch
		}
		if stays && m.LogID == (partition.UUID{}) {
			m.LogID = old.LogID
		}
	}
	inOrder(r, isr)
	return isr, true
}

// asLeader is the beginning of what only the leader of an epoch may ask for.
func asLeader(r *partition.Record, node, leaderEpoch int32) partition.Code {
	switch {
	case leaderEpoch > r.LeaderEpoch:
		return partition.NotController
	case leaderEpoch < r.LeaderEpoch:
		return partition.FencedLeaderEpoch
	case node != r.Leader:
		return partition.InvalidRequest
	}
	return partition.OK
}

// Decline says that a node cannot lead what it was elected for (R24). Its entry is
// worth nothing any more; somebody else is elected, or nobody.
func (c *Controller) Decline(id partition.ID, node int32, brokerEpoch int64, leaderEpoch int32, now time.Time) partition.Code {
	code, _ := c.onPart(id, node, brokerEpoch, now, func(p *partState) partition.Code {
		code := asLeader(p.rec, node, leaderEpoch)
		if code == partition.OK {
			c.o.Logger.Warn("coordinator: leadership declined", "partition", p.name(), "node", node, "epoch", leaderEpoch)
			c.put(p, c.decide(p, wish{leader: partition.None, refuse: node}))
		}
		return code
	})
	return code
}

// Handover makes to the leader in the place of from, which asks for it once to
// has all of its log (A14). A leader that is stopping leaves the ISR by it.
func (c *Controller) Handover(id partition.ID, from int32, brokerEpoch int64, to, leaderEpoch int32, now time.Time) partition.Altered {
	a := partition.Altered{ID: id}
	a.Code, a.Record = c.onPart(id, from, brokerEpoch, now, func(p *partState) partition.Code {
		code := asLeader(p.rec, from, leaderEpoch)
		switch {
		case code != partition.OK:
			return code
		case to == from:
			return partition.InvalidRequest
		case !c.mayLead(p.rec.ISR, to):
			return partition.IneligibleReplica
		}
		c.put(p, c.decide(p, wish{leader: to, refuse: partition.None}))
		return partition.OK
	})
	return a
}

// ElectPreferred makes the first replica the leader if it is live and in the ISR,
// at once; a leader that can be asked hands over instead. IneligibleReplica: it may
// not.
func (c *Controller) ElectPreferred(id partition.ID, now time.Time) partition.Code {
	code := partition.UnknownTopicID
	err := c.do(now, func() {
		p := c.byID[id]
		if p == nil {
			return
		}
		code = partition.OK
		switch first := p.rec.Replicas[0]; {
		case first == p.rec.Leader:
		case !c.mayLead(p.rec.ISR, first):
			code = partition.IneligibleReplica
		default:
			c.put(p, c.decide(p, wish{leader: first, refuse: partition.None}))
		}
	})
	if err != nil {
		return partition.Unknown
	}
	return code
}

// CreateTopic makes a topic. All live replicas are in sync from the start, since
// their logs are empty: their nodes make the directories when they read the records,
// and until the leader has proposed their log ids these are zero. At least one replica
// of each partition has to be live.
//
// Errors: ErrTopicExists; one that wraps partition.Unknown and that of the store if it
// could not be stored, then the topic may come to be; others say what is wrong with the
// arguments.
func (c *Controller) CreateTopic(name string, o TopicSpec, now time.Time) (partition.UUID, []*partition.Record, error) {
	var t *topicState
	var records []*partition.Record
	var refused error
	err := c.do(now, func() { t, records, refused = c.createTopic(name, &o) })
	if err = cmp.Or(err, refused); err != nil {
		return partition.UUID{}, nil, fmt.Errorf("create topic %q: %w", name, err)
	}
	return t.ID, records, nil
}

func (c *Controller) createTopic(name string, o *TopicSpec) (*topicState, []*partition.Record, error) {
	switch {
	case c.byName[name] != nil:
		return nil, nil, ErrTopicExists
	case !checkpoint.ValidTopic(name):
		return nil, nil, errors.New("not a name Kafka takes")
	}
	replicas, err := c.assign(o)
	if err != nil {
		return nil, nil, err
	}
	id, err := c.newTopicID()
	if err != nil {
		return nil, nil, err
	}
	c.revision++
	t := &topicState{Topic: Topic{
		Name: name, ID: id, Revision: c.revision, Partitions: int32(len(replicas)),
		MinISR: max(1, o.MinISR), Config: maps.Clone(o.Config),
	}}
	v := t.Topic
	c.change(&t.item, told{revision: c.revision, topic: &v}, false)
	c.topics = append(c.topics, t)
	c.byName[name] = t
	records := make([]*partition.Record, len(replicas))
	for i, nodes := range replicas {
		c.revision++
		r := &partition.Record{ID: partition.ID{Topic: id, Partition: int32(i)}, Revision: c.revision, Replicas: nodes, Leader: partition.None}
		for _, id := range nodes {
			if n := c.node(id); n != nil && n.Eligible(n.BrokerEpoch) {
				r.ISR = append(r.ISR, partition.Member{Node: id, BrokerEpoch: n.BrokerEpoch})
			}
		}
		r.Leader = r.ISR[0].Node
		p := &partState{topic: t, rec: r}
		r.MinISR = p.minISR()
		err := r.Check()
		invariant.Check(err == nil, "new record %+v: %v", r, err)
		c.parts = append(c.parts, p)
		c.byID[r.ID] = p
		c.change(&p.item, told{revision: r.Revision, record: r}, false)
		records[i] = r
	}
	return t, records, nil
}

// assign returns the replicas of a new topic's partitions: as asked for, or each
// partition one node further along the live ones.
func (c *Controller) assign(o *TopicSpec) ([][]int32, error) {
	var up []int32
	for _, n := range c.nodes {
		if n.Eligible(n.BrokerEpoch) {
			up = append(up, n.ID)
		}
	}
	if o.Replicas == nil {
		switch rf := o.ReplicationFactor; {
		case o.Partitions < 1 || o.Partitions > maxPartitions:
			return nil, fmt.Errorf("%d partitions, want 1 to %d", o.Partitions, maxPartitions)
		case rf < 1 || rf > maxReplicas:
			return nil, fmt.Errorf("replication factor %d, want 1 to %d", rf, maxReplicas)
		case rf > len(up):
			return nil, fmt.Errorf("replication factor %d with %d live nodes", rf, len(up))
		}
		all := make([][]int32, o.Partitions)
		for i := range all {
			for j := range o.ReplicationFactor {
				all[i] = append(all[i], up[(len(c.parts)+i+j)%len(up)])
			}
		}
		return all, nil
	}
	if n := len(o.Replicas); n < 1 || n > maxPartitions || o.Partitions != 0 && int(o.Partitions) != n {
		return nil, fmt.Errorf("replicas of %d partitions, want 1 to %d and those of %d", n, maxPartitions, o.Partitions)
	}
	all := make([][]int32, len(o.Replicas))
	for i, nodes := range o.Replicas {
		all[i] = slices.Clone(nodes)
		if err := checkReplicas(nodes); err != nil {
			return nil, fmt.Errorf("partition %d: %w", i, err)
		}
		if !slices.ContainsFunc(nodes, func(n int32) bool { return slices.Contains(up, n) }) {
			return nil, fmt.Errorf("partition %d: none of its replicas %v is live", i, nodes)
		}
	}
	return all, nil
}

func checkReplicas(nodes []int32) error {
	if n := len(nodes); n < 1 || n > maxReplicas {
		return fmt.Errorf("%d replicas, want 1 to %d", n, maxReplicas)
	}
	for i, n := range nodes {
		if n < 0 || slices.Contains(nodes[:i], n) {
			return fmt.Errorf("replicas %v, want each node once and none below 0", nodes)
		}
	}
	return nil
}

// newTopicID draws a random uuid (version 4) that no topic has. Kafka keeps the
// first hundred numbers for itself, and wants no id whose text looks like a flag.
func (c *Controller) newTopicID() (partition.UUID, error) {
	for {
		var id partition.UUID
		if _, err := io.ReadFull(c.o.Rand, id[:]); err != nil {
			return id, fmt.Errorf("draw an id: %w", err)
		}
		id[6], id[8] = id[6]&0x0f|0x40, id[8]&0x3f|0x80
		if id.String()[0] != '-' && c.byID[partition.ID{Topic: id}] == nil {
			return id, nil
		}
	}
}

// DeleteTopic forgets a topic and its partitions for good: one of the same name
// gets another id.
//
// Errors: ErrUnknownTopic; one that wraps partition.Unknown and that of the store if it
// could not be stored.
func (c *Controller) DeleteTopic(name string, now time.Time) error {
	return c.onTopic(name, "delete", now, func(t *topicState) {
		c.revision++
		v := Topic{Name: t.Name, ID: t.ID, Revision: c.revision, Deleted: true, Partitions: t.Partitions}
		for _, p := range c.parts {
			if p.topic == t {
				delete(c.byID, p.rec.ID)
				c.change(&p.item, told{revision: c.revision}, true)
			}
		}
		c.change(&t.item, told{revision: c.revision, topic: &v}, false)
		c.parts = slices.DeleteFunc(c.parts, func(p *partState) bool { return p.topic == t })
		c.topics = slices.DeleteFunc(c.topics, func(o *topicState) bool { return o == t })
		delete(c.byName, name)
	})
}

// SetMinISR changes the least ISR that a topic asks for. It is in force at once
// where a partition has a leader, and else with the first change under its next one
// (R20).
//
// Errors: ErrUnknownTopic; one that wraps partition.Unknown and that of the store if it
// could not be stored.
func (c *Controller) SetMinISR(name string, minISR int32, now time.Time) error {
	return c.onTopic(name, "set the least ISR of", now, func(t *topicState) {
		if minISR = max(1, minISR); minISR == t.MinISR {
			return
		}
		c.revision++
		t.MinISR, t.Revision, t.line = minISR, c.revision, nil
		v := t.Topic
		c.change(&t.item, told{revision: c.revision, topic: &v}, false)
		for _, p := range c.parts {
			if p.topic == t {
				c.put(p, c.decide(p, noWish))
			}
		}
	})
}

func (c *Controller) onTopic(name, what string, now time.Time, step func(*topicState)) error {
	refused := ErrUnknownTopic
	err := c.do(now, func() {
		if t := c.byName[name]; t != nil {
			refused = nil
			step(t)
		}
	})
	if err = cmp.Or(err, refused); err != nil {
		return fmt.Errorf("%s topic %q: %w", what, name, err)
	}
	return nil
}

// NewProducerID returns an id that no producer had before, with its first epoch;
// −1 and −1 with an error that wraps partition.Unknown and the store's if it could not
// be stored.
func (c *Controller) NewProducerID() (id int64, epoch int16, err error) {
	c.mu.Lock()
	if c.nextID == c.endID {
		c.revision++
		c.endID += idBlock
	}
	id = c.nextID
	c.nextID++
	if err := c.announce(); err != nil {
		return -1, -1, err
	}
	return id, 0, nil
}

// Tick fences the nodes whose sessions ended, all in one step (R21), and says when
// it is to be called again; zero: when something happens.
func (c *Controller) Tick(now time.Time) (next time.Time) {
	c.do(now, func() {})
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, n := range c.nodes {
		if !n.until.IsZero() && (next.IsZero() || n.until.Before(next)) {
			next = n.until
		}
	}
	if c.failed != nil {
		if again := now.Add(c.o.TTL / 9); next.IsZero() || again.Before(next) {
			next = again
		}
	}
	return next
}

// Since returns what changed after a revision.
func (c *Controller) Since(revision int64) Changes {
	c.mu.Lock()
	defer c.mu.Unlock()
	ch := Changes{Revision: c.announced, Full: revision <= 0 || revision < c.compact}
	it := &c.changes
	if ch.Full {
		revision = -1
	}
	for it.prev != &c.changes && it.prev.revision > revision {
		it = it.prev
	}
	for ; it != &c.changes; it = it.next {
		switch {
		case it.record != nil:
			ch.Records = append(ch.Records, it.record)
		case it.node != nil:
			ch.Nodes = append(ch.Nodes, *it.node)
		case it.topic != nil && !(ch.Full && it.topic.Deleted):
			ch.Topics = append(ch.Topics, *it.topic)
		}
	}
	return ch
}

// Record returns the record of a partition, nil if there is none.
func (c *Controller) Record(id partition.ID) *partition.Record {
	c.mu.Lock()
	defer c.mu.Unlock()
	if p := c.byID[id]; p != nil {
		return p.record
	}
	return nil
}

// Node returns what is known of a node; its BrokerEpoch is −1 if nothing is.
func (c *Controller) Node(id int32) partition.Node {
	c.mu.Lock()
	defer c.mu.Unlock()
	if n := c.node(id); n != nil && n.item.node != nil {
		return *n.item.node
	}
	return partition.Node{ID: id, BrokerEpoch: -1}
}

// Deleted reports whether a topic of this id was deleted, as far as is remembered: the
// last 1,024 since the state was loaded. What was not may be another cluster's.
func (c *Controller) Deleted(id partition.UUID) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for it := c.changes.prev; it != &c.changes; it = it.prev {
		if it.topic != nil && it.topic.Deleted && it.topic.ID == id {
			return true
		}
	}
	return false
}

// Topic returns a topic by its name. Its Config is not to be changed.
func (c *Controller) Topic(name string) (Topic, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if t := c.byName[name]; t != nil && t.item.topic != nil {
		return *t.item.topic, true
	}
	return Topic{}, false
}
