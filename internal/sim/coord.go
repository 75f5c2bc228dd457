package sim

import (
	"fmt"
	"math"
	"math/rand/v2"
	"time"

	"github.com/tidemark-log/tidemark/isr"
	"github.com/tidemark-log/tidemark/partition"
)

// coord is the coordinator at its end of the network. It never crashes.
type coord struct {
	w       *world
	c       *isr.Controller
	moved   bool
	tickAt  int64
	tickID  int64
	watches []*message // that wait for changes, at most one of each node
	timepiece
	signs   []int64         // by node: its last sign of life that counted
	seconds map[int32]int64 // broker epochs of second machines that live (F18)
}

// byteRand makes random bytes of a seeded stream.
type byteRand struct{ r *rand.Rand }

func (b byteRand) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = byte(b.r.Uint32())
	}
	return len(p), nil
}

func newCoord(w *world) *coord {
	c := &coord{w: w, tickAt: never, signs: make([]int64, w.c.nodes), seconds: map[int32]int64{}}
	for i := range c.signs {
		c.signs[i] = math.MinInt64 / 2
	}
	c.c = isr.NewController(isr.ControllerOptions{ClusterID: clusterID, TTL: time.Duration(w.c.ttl),
		Rand: byteRand{rand.New(rand.NewPCG(w.o.Seed, 5))}})
	c.c.Notify = func() { c.moved = true }
	return c
}

func (c *coord) clock() time.Time { return c.at(c.w.now) }

func (c *coord) handle(e *event) {
	switch e.kind {
	case evCoord:
		if e.arg == c.tickID {
			c.tickAt = never
			c.c.Tick(c.clock())
		}
	case evDeliver:
		c.deliver(e.msg)
	}
	c.after()
}

// after a step: the next tick, and who waits for changes.
func (c *coord) after() {
	w := c.w
	next := c.c.Tick(c.clock())
	if !next.IsZero() {
		if at := max(c.when(next), w.now+1); at < c.tickAt {
			c.tickAt = at
			c.tickID++
			w.post(event{at: at, kind: evCoord, to: coordinator, arg: c.tickID})
		}
	}
	if !c.moved {
		return
	}
	c.moved = false
	list := c.watches
	c.watches = nil
	for _, m := range list {
		c.changes(m)
	}
}

// changes answers a watch, or lets it wait.
func (c *coord) changes(m *message) {
	ch := c.c.Since(m.body.(since).revision)
	if len(ch.Records)+len(ch.Nodes)+len(ch.Topics) == 0 && !ch.Full {
		for i, x := range c.watches {
			if x.from == m.from {
				c.watches[i] = m
				return
			}
		}
		c.watches = append(c.watches, m)
		return
	}
	r := m.reply(coordinator)
	r.body = ch
	c.w.net.send(r)
}

func (c *coord) deliver(m *message) {
	w, now := c.w, c.clock()
	r := m.reply(coordinator)
	switch m.op {
	case opRegister:
		q := m.body.(*registered).q
		r.body = &registered{q: q, a: c.c.Register(&q, now)}
		w.registered(m.from, r.body.(*registered))
	case opReady:
		r.code = c.c.Ready(m.from, m.body.(int64), now)
	case opKeepAlive:
		r.code = c.c.KeepAlive(m.from, m.body.(int64), now)
		r.body = m.sent
	case opStop:
		r.code = c.c.Stop(m.from, m.body.(int64), now)
	case opFence:
		r.code = c.c.Fence(m.from, m.body.(int64), now)
	case opAlter:
		r.altered = c.c.Alter(m.alter, now)
		w.cov.add("A8 " + r.altered.Code.String())
		w.tracef("coordinator: alter %d of n%d, epochs %d %d, isr %s: %v", m.alter.Seq, m.from, m.alter.LeaderEpoch, m.alter.PartitionEpoch, members(m.alter.ISR), r.altered.Code)
		w.altered(m, r.altered)
	case opDecline:
		id := partition.ID{Topic: w.topic, Partition: m.part}
		d := m.body.(decline)
		r.code = c.c.Decline(id, m.from, d.brokerEpoch, d.leaderEpoch, now)
		w.cov.add("decline " + r.code.String())
	case opHandover:
		h := m.body.(*handover)
		id := partition.ID{Topic: w.topic, Partition: m.part}
		r.altered = c.c.Handover(id, h.from, h.brokerEpoch, h.to, h.leaderEpoch, now)
		w.tracef("coordinator: handover of %d from n%d to n%d: %v", m.part, h.from, h.to, r.altered.Code)
	case opSince:
		c.changes(m)
		return
	case opPID:
		id, e, _ := c.c.NewProducerID()
		r.body = [2]int64{id, int64(e)}
	case opRecord:
		r.body = c.c.Record(partition.ID{Topic: w.topic, Partition: m.part})
	default:
		panic(fmt.Sprintf("coordinator gets %v", m.op))
	}
	c.sign(m, r)
	w.net.send(r)
}

// sign notes a sign of life, or the end of one.
func (c *coord) sign(m, r *message) {
	w := c.w
	switch m.op {
	case opRegister:
		if r.body.(*registered).a.Code == partition.OK {
			c.signs[m.from] = w.now
		}
	case opKeepAlive, opReady:
		if r.code == partition.OK {
			c.signs[m.from] = w.now
		}
	case opFence:
		if r.code == partition.OK {
			c.signs[m.from] = math.MinInt64 / 2
		}
	}
}

// keepSeconds gives a sign of life of each second machine.
func (c *coord) keepSeconds() {
	for id := range int32(c.w.c.nodes) {
		if epoch, ok := c.seconds[id]; ok {
			c.c.KeepAlive(id, epoch, c.clock())
		}
	}
	c.after()
}

// createTopic waits for the nodes and then makes the topic; clients and faults
// come after it.
func (w *world) createTopic() {
	for _, n := range w.nodes {
		if n.phase != serving && w.now < 3*sec {
			w.post(event{at: w.now + 20*ms, kind: evPhase, to: everyone})
			return
		}
	}
	r := rand.New(rand.NewPCG(w.o.Seed, 6))
	var replicas [][]int32
	for range w.c.parts {
		var list []int32
		for _, i := range r.Perm(w.c.nodes)[:w.c.rf] {
			list = append(list, int32(i))
		}
		replicas = append(replicas, list)
	}
	id, records, err := w.coord.c.CreateTopic(topicName, isr.TopicSpec{Replicas: replicas, MinISR: int32(w.c.minISR)}, w.coord.clock())
	if err != nil { // nobody is up
		w.post(event{at: w.now + 100*ms, kind: evPhase, to: everyone})
		return
	}
	w.topic = id
	for i, rec := range records {
		w.byID[rec.ID] = i
		w.parts = append(w.parts, newGhost(w, i, rec))
	}
	w.coord.after()
	w.checkRecords()
	w.startClients()
}
