package isr

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"github.com/tidemark-log/tidemark/internal/vfs"
	"github.com/tidemark-log/tidemark/partition"
	"github.com/tidemark-log/tidemark/replica"
)

// town is a whole replicated partition: three nodes with logs, leaders and
// fetchers, and a coordinator, stepped by hand without any network. Messages are
// never lost here; package sim sees to that.
type town struct {
	t     *testing.T
	c     *Controller
	id    partition.ID
	sync  replica.SyncMode
	now   time.Time
	lives uint64
	folk  [3]*citizen
	asks  int // epoch questions
}

type citizen struct {
	id    int32
	mem   *vfs.Mem
	log   *replica.Log
	p     *Partition
	f     *replica.Fetcher
	epoch int64
	lease *Lease
	seen  int64
	up    bool
	tick  time.Time
	fx    Effects
}

func newTown(t *testing.T, sync replica.SyncMode, minISR int32) *town {
	x := &town{t: t, sync: sync, now: t0, c: NewController(ControllerOptions{ClusterID: "c"})}
	for i := range x.folk {
		x.folk[i] = &citizen{id: int32(i), mem: vfs.NewMem(vfs.MemOptions{Seed: uint64(i)})}
		x.register(x.folk[i], partition.Clean)
	}
	topic, _, err := x.c.CreateTopic("t", TopicSpec{Replicas: [][]int32{{0, 1, 2}}, MinISR: minISR}, x.now)
	if err != nil {
		t.Fatal(err)
	}
	x.id = partition.ID{Topic: topic}
	for _, n := range x.folk {
		x.open(n)
	}
	x.settle()
	return x
}

func (x *town) register(n *citizen, e partition.Evidence) {
	x.lives++
	a := x.c.Register(&partition.Register{Node: n.id, ClusterID: "c", Incarnation: uuid(x.lives), BootID: uuid(1), Previous: n.epoch, Evidence: e}, x.now)
	if a.Code != partition.OK {
		x.t.Fatalf("register node %d: %v", n.id, a.Code)
	}
	n.epoch, n.up, n.seen = a.BrokerEpoch, true, 0
	n.lease = &Lease{}
	if c := x.c.Ready(n.id, n.epoch, x.now); c != partition.OK {
		x.t.Fatalf("ready: %v", c)
	}
}

func (x *town) openLog(n *citizen, held bool) {
	l, err := replica.Open("/log", replica.Options{Sync: x.sync, Held: held, SegmentBytes: 64 << 10, PopulateBytes: 1, MaxProducers: 100, FS: n.mem}, x.now)
	if err != nil {
		x.t.Fatal(err)
	}
	x.t.Cleanup(func() { l.Close(x.now) })
	n.log = l
}

func (x *town) open(n *citizen) {
	if n.log == nil {
		x.openLog(n, false)
	}
	n.f = replica.NewFetcher(n.log, replica.FetcherOptions{ID: x.id, Node: n.id, BrokerEpoch: n.epoch, Session: x.lives << 32})
	n.p = New(Options{ID: x.id, Name: fmt.Sprint("t on node ", n.id), Node: n.id, BrokerEpoch: n.epoch, Log: n.log, Fetcher: n.f, Lease: n.lease, Nodes: x.c})
	n.tick = time.Time{}
}

// kill ends a node's process; what it wrote is there.
func (x *town) kill(n *citizen) {
	n.up, n.mem = false, n.mem.Kill()
	n.log = nil
}

// back starts a killed node anew.
func (x *town) back(n *citizen) {
	x.openLog(n, true)
	x.register(n, n.log.Evidence())
	x.open(n)
}

func (x *town) alive() {
	for _, n := range x.folk {
		if n.up {
			if x.c.KeepAlive(n.id, n.epoch, x.now) == partition.OK {
				n.lease.Set(x.now.Add(7 * time.Second))
			}
		}
	}
	x.c.Tick(x.now)
}

// step lets a node do one thing, and reports whether there was one.
func (x *town) step(n *citizen) bool {
	defer func() {
		n.tick = earlier(n.tick, n.fx.Tick)
		n.fx.Reset()
	}()
	if a := n.fx.Alter; a != nil {
		x.t.Fatal("a proposal was passed over")
	}
	if c := x.c.Since(n.seen); c.Revision > n.seen {
		n.seen = c.Revision
		for _, r := range c.Records {
			if r.ID == x.id {
				if err := n.p.Update(r, x.now, &n.fx); err != nil {
					x.t.Fatal(err)
				}
			}
		}
		n.tick = n.p.Tick(x.now, &n.fx)
		x.effects(n)
		return true
	}
	if !n.tick.IsZero() && !x.now.Before(n.tick) {
		n.tick = n.p.Tick(x.now, &n.fx)
		x.effects(n)
		return true
	}
	if s := n.log.StartSync(); x.sync == replica.Always && s != nil {
		if err := n.log.FinishSync(s, s.Wait()); err != nil {
			x.t.Fatal(err)
		}
		n.p.Advanced(x.now, &n.fx)
		x.effects(n)
		return true
	}
	var s replica.Step
	n.f.Next(x.now, &s)
	st := n.f.State()
	switch {
	case s.Do == replica.SendAsk && x.leader(st.Leader) != nil:
		var a partition.EpochAnswer
		x.asks++
		x.folk[st.Leader].p.Ask(&s.Ask, &a)
		if err := n.f.Answered(&a, x.now); err != nil {
			x.t.Log(err)
		}
		return true
	case s.Do == replica.SendFetch && x.leader(st.Leader) != nil:
		l, a := x.folk[st.Leader], &Answer{}
		end, hw := n.log.LogEndOffset(), n.log.HighWatermark()
		l.p.Fetch(&s.Fetch, false, false, x.now, a, &l.fx)
		x.effects(l)
		if err := n.f.Fetched(&a.Fetched, x.now); err != nil {
			x.t.Log(err)
		}
		a.View.Release()
		n.p.Advanced(x.now, &n.fx)
		x.effects(n)
		return n.log.LogEndOffset() > end || n.log.HighWatermark() > hw || l.fx.Moved != 0
	}
	return false
}

func (x *town) leader(node int32) *citizen {
	if node >= 0 && x.folk[node].up {
		return x.folk[node]
	}
	return nil
}

func (x *town) effects(n *citizen) {
	for n.fx.Alter != nil {
		a := n.fx.Alter
		n.fx.Alter = nil
		answer := x.c.Alter(a, x.now)
		n.p.Altered(&answer, x.now, &n.fx)
	}
	if n.fx.Decline {
		n.fx.Decline = false
		x.c.Decline(x.id, n.id, n.epoch, n.fx.DeclineEpoch, x.now)
	}
}

// settle passes time until everything is said and done.
func (x *town) settle() {
	x.t.Helper()
	for range 30 {
		x.alive()
		for again, rounds := true, 0; again; rounds++ {
			if again = false; rounds > 500 {
				x.t.Fatal("no end")
			}
			for _, n := range x.folk {
				again = n.up && x.step(n) || again
			}
		}
		x.now = x.now.Add(500 * time.Millisecond)
	}
}

func (x *town) head() *citizen {
	x.t.Helper()
	n := x.leader(x.c.Record(x.id).Leader)
	if n == nil || n.p.Status().Role != Leading {
		x.t.Fatalf("nobody leads: %+v", x.c.Record(x.id))
	}
	return n
}

func (x *town) produce(acks int16, pid int64, seq int32) *Waiter {
	x.t.Helper()
	n, w := x.head(), &Waiter{}
	x.alive()
	if err := n.p.Produce(batch(1, 50, pid, seq), replica.Client, acks, 0, w, x.now, &n.fx); err != nil {
		x.t.Fatal(err)
	}
	x.effects(n)
	n.tick = earlier(n.tick, n.fx.Tick)
	n.fx.Reset()
	return w
}

// equal is I25: all up, all in the ISR, logs equal, everything committed.
func (x *town) equal() {
	x.t.Helper()
	r, head := x.c.Record(x.id), x.head()
	if len(r.ISR) != 3 {
		x.t.Fatalf("ISR %v", r.ISR)
	}
	for _, m := range r.ISR {
		if m.LogID != x.folk[m.Node].log.ID() {
			x.t.Errorf("the record does not know the directory of node %d", m.Node)
		}
	}
	for _, n := range x.folk {
		if !bytes.Equal(bytesOf(x.t, n.log), bytesOf(x.t, head.log)) || n.log.HighWatermark() != head.log.LogEndOffset() {
			x.t.Errorf("node %d: end %d, high watermark %d; the leader's end is %d", n.id, n.log.LogEndOffset(), n.log.HighWatermark(), head.log.LogEndOffset())
		}
	}
}

// TestStory: a follower dies and comes back, then the leader with an append that
// only it has, then one whose append was copied and not acked.
func TestStory(t *testing.T) {
	for _, sync := range []replica.SyncMode{replica.Always, replica.Never} {
		t.Run(sync.String(), func(t *testing.T) {
			x := newTown(t, sync, 2)
			for i := range int32(5) {
				w := x.produce(-1, 7, i)
				x.settle()
				wantAck(t, w, nil)
			}
			x.equal()

			// S41: a record of the same reign stops no follower.
			x.asks = 0
			if err := x.c.SetMinISR("t", 1, x.now); err != nil {
				t.Fatal(err)
			}
			x.settle()
			x.c.SetMinISR("t", 2, x.now)
			x.produce(-1, 7, 5)
			x.settle()
			if x.equal(); x.asks > 0 || x.head().p.Status().Counters.Led != 1 {
				t.Errorf("%d epoch questions in one reign", x.asks)
			}

			x.kill(x.folk[1])
			w := x.produce(-1, 7, 6)
			x.settle()
			wantAck(t, w, nil)
			x.back(x.folk[1])
			x.settle()
			x.equal()

			old := x.head()
			x.produce(1, -1, 0) // and nobody copies it
			x.kill(old)
			x.settle()
			next := x.head()
			if next == old || next.log.LogEndOffset() != 7 {
				t.Fatalf("node %d leads with end %d", next.id, next.log.LogEndOffset())
			}
			x.produce(-1, 7, 7)
			x.settle()
			x.back(old)
			x.settle()
			x.equal()

			x.produce(-1, 7, 8)
			for range 3 {
				for _, n := range x.folk {
					if n != next { // copies, but confirms nothing
						x.step(n)
						break
					}
				}
			}
			end := next.log.LogEndOffset()
			x.kill(next)
			x.settle()
			retry := x.produce(-1, 7, 8)
			x.settle()
			wantAck(t, retry, nil)
			if got := x.head().log.LogEndOffset(); got != end {
				t.Errorf("end %d; want %d, one of each", got, end)
			}
			x.back(next)
			x.settle()
			x.equal()
		})
	}
}
