package isr

import (
	"errors"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/tidemark-log/tidemark/partition"
	"github.com/tidemark-log/tidemark/replica"
)

// sight is a valid fetch as the leader saw it.
type sight struct {
	member partition.Member
	offset int64
	at     time.Time
	leo    int64 // the leader's
}

// model says from the whole history of a reign what the leader must make of it.
// It shares no state with the Partition, only what was proposed.
type model struct {
	began   time.Time
	first   []partition.Member // ISR at the start of the reign
	start   int64
	hw      int64
	sights  map[int32][]sight
	pending *partition.Alter
}

// caughtUp follows A6: the latest moment of which the fetches show that the
// replica had everything.
func (m *model) caughtUp(node int32) (at time.Time) {
	list := m.sights[node]
	_, member := partition.Find(m.first, node)
	if member {
		at = m.began
	}
	for i, s := range list {
		var before int64
		var last time.Time
		for _, e := range list[:i] {
			before, last = max(before, e.leo), e.at
		}
		switch {
		case s.offset >= s.leo:
			at = latest(at, s.at)
		case i > 0 && s.offset >= before:
			at = latest(at, last)
		}
	}
	return at
}

func latest(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// leo is the last confirmed offset of a replica, −1 if there is none, and who
// confirmed it.
func (m *model) leo(node int32) (int64, partition.Member) {
	if list := m.sights[node]; len(list) > 0 {
		s := list[len(list)-1]
		return s.offset, s.member
	}
	return -1, partition.Member{}
}

// confirmed is what an entry of the ISR has confirmed.
func (m *model) confirmed(e partition.Member) int64 {
	if leo, who := m.leo(e.Node); leo >= 0 && who == e {
		return leo
	}
	return 0
}

func (m *model) upToDate(node int32, leo int64, now time.Time) bool {
	own, _ := m.leo(node)
	at := m.caughtUp(node)
	return own >= leo || !at.IsZero() && now.Sub(at) <= lagMax
}

func (m *model) eligible(d *desk, node int32) bool {
	_, who := m.leo(node)
	n := d.nodes.Node(node)
	return n.Eligible(who.BrokerEpoch)
}

// raise is A4.
func (m *model) raise(d *desk) {
	if len(d.rec.ISR) < int(d.rec.MinISR) {
		return
	}
	hw, leo := d.log.CountedEnd(), d.log.LogEndOffset()
	for _, e := range m.maximal(d) {
		if e.Node != 1 {
			hw = min(hw, m.confirmed(e))
		}
	}
	for _, node := range d.rec.Replicas {
		_, in := partition.Find(m.maximal(d), node)
		if own, _ := m.leo(node); !in && own >= 0 && m.upToDate(node, leo, d.now) && m.eligible(d, node) {
			hw = min(hw, own)
		}
	}
	m.hw = max(m.hw, hw)
}

// maximal is the ISR and everyone proposed. An entry in both is the record's.
func (m *model) maximal(d *desk) []partition.Member {
	list := slices.Clone(d.rec.ISR)
	if m.pending != nil {
		for _, e := range m.pending.ISR {
			if _, in := partition.Find(list, e.Node); !in {
				list = append(list, e)
			}
		}
	}
	return list
}

// may reports whether a replica may join (A7).
func (m *model) may(d *desk, node int32, hw int64) bool {
	leo, _ := m.leo(node)
	_, in := partition.Find(d.rec.ISR, node)
	return !in && leo >= hw && leo >= m.start && leo >= 0 && m.eligible(d, node) &&
		(len(d.rec.ISR) >= int(d.rec.MinISR) || m.upToDate(node, d.log.LogEndOffset(), d.now))
}

// machine drives a desk and its model.
type machine struct {
	*desk
	m       model
	t       *rapid.T
	pos     map[int32]int64 // where a replica's log ends
	epochs  []int64         // starts of the leader epochs 1, 2, …
	next    time.Time       // of Tick
	old     []*partition.Alter
	waiters []*Waiter
	acks    map[*Waiter]int16
	rest    time.Time           // no proposal before
	late    map[int32]time.Time // when a member was last in time, or none could be made
}

func (x *machine) reign() {
	x.rest = time.Time{}
	x.m = model{began: x.now, first: x.rec.ISR, start: x.log.LogEndOffset(), hw: x.m.hw, sights: map[int32][]sight{}}
	for int(x.rec.LeaderEpoch) > len(x.epochs) {
		x.epochs = append(x.epochs, x.m.start)
	}
}

// lastEpoch is the epoch of the record before an offset.
func (x *machine) lastEpoch(offset int64) int32 {
	e := int32(-1)
	for i, start := range x.epochs {
		if start < offset {
			e = int32(i + 1)
		}
	}
	return e
}

// after looks at what a step did. Before the model's own step it is told what was
// proposed.
func (x *machine) after(fx *Effects, raised bool) {
	hw := x.m.hw
	if a := fx.Alter; a != nil && (x.m.pending == nil || a.Seq != x.m.pending.Seq) {
		x.proposal(a, min(hw, x.log.HighWatermark()))
		x.m.pending = a
		x.old = append(x.old, a)
	}
	if raised {
		x.m.raise(x.desk)
	}
	x.same(fx)
}

func (x *machine) same(fx *Effects) {
	s := x.p.Status()
	if s.HighWatermark != x.m.hw {
		x.t.Fatalf("high watermark %d; the model says %d\nrecord %+v\npending %+v\n%+v", s.HighWatermark, x.m.hw, x.rec, x.m.pending, s.Followers)
	}
	if s.Pending != x.m.pending {
		x.t.Fatalf("pending %+v; the model says %+v", s.Pending, x.m.pending)
	}
	for _, f := range s.Followers {
		if leo, _ := x.m.leo(f.Node); f.LEO != leo {
			x.t.Fatalf("node %d at %d; the model says %d", f.Node, f.LEO, leo)
		}
		if at := x.m.caughtUp(f.Node); !f.LastCaughtUp.Equal(at) {
			x.t.Fatalf("node %d had caught up at %v; the model says %v", f.Node, f.LastCaughtUp.Sub(t0), at.Sub(t0))
		}
	}
	maximal := len(x.m.maximal(x.desk))
	for _, w := range fx.Done {
		x.acked(w, maximal)
	}
	for _, w := range x.waiters {
		if w.Finished() {
			continue
		}
		if x.acks[w] == -1 && w.End <= x.m.hw || x.acks[w] == 1 && w.End <= x.log.CountedEnd() {
			x.t.Fatalf("append [%d, %d) with acks %d waits; high watermark %d, counted %d", w.Base, w.End, x.acks[w], x.m.hw, x.log.CountedEnd())
		}
	}
	if !fx.Tick.IsZero() {
		x.next = earlier(x.next, fx.Tick)
	}
	x.punctual()
}

// punctual: nobody who lags stays long, if a proposal is possible. Half a period
// after the limit it is looked at. It is called at least once a second.
func (x *machine) punctual() {
	for node := int32(2); node <= 3; node++ {
		_, in := partition.Find(x.rec.ISR, node)
		if !in || x.m.pending != nil || x.now.Before(x.rest) || x.m.upToDate(node, x.log.LogEndOffset(), x.now) {
			x.late[node] = x.now
		} else if d := x.now.Sub(x.late[node]); d > lagMax/2+time.Second {
			x.t.Fatalf("node %d is in the ISR, too late for %v", node, d)
		}
	}
}

// acked is I17 and I18.
func (x *machine) acked(w *Waiter, maximal int) {
	if w.Err != nil {
		if !errors.Is(w.Err, partition.NotLeader) {
			x.t.Fatalf("append [%d, %d): %v", w.Base, w.End, w.Err)
		}
		return
	}
	switch {
	case x.acks[w] == 1 && w.End > x.log.CountedEnd():
		x.t.Fatalf("ack 1 of %d; counted end is %d", w.End, x.log.CountedEnd())
	case x.acks[w] == -1 && (w.End > x.m.hw || maximal < int(x.rec.MinISR)):
		x.t.Fatalf("ack all of %d; high watermark %d, maximal ISR of %d", w.End, x.m.hw, maximal)
	}
}

// proposal holds a proposal against A6, A7 and R19.
func (x *machine) proposal(a *partition.Alter, hw int64) {
	if x.m.pending != nil {
		x.t.Fatalf("proposal %d while %d is under way", a.Seq, x.m.pending.Seq)
	}
	if x.now.Before(x.rest) {
		x.t.Fatal("proposal too soon after a refusal")
	}
	if a.PartitionEpoch != x.rec.PartitionEpoch || a.LeaderEpoch != x.rec.LeaderEpoch || a.BrokerEpoch != 11 || a.Node != 1 {
		x.t.Fatalf("proposal %+v for record %+v", a, x.rec)
	}
	if _, in := partition.Find(a.ISR, 1); !in {
		x.t.Fatal("a leader proposes to leave")
	}
	for _, e := range a.ISR {
		if e.Node == 1 {
			continue
		}
		was, in := partition.Find(x.rec.ISR, e.Node)
		if in && e != was {
			x.t.Fatalf("entry %+v becomes %+v without leaving", was, e)
		}
		if _, who := x.m.leo(e.Node); !in && (who != e || !x.m.may(x.desk, e.Node, hw)) {
			x.t.Fatalf("node %d joins as %+v; it is %+v", e.Node, e, who)
		}
	}
	for _, e := range x.rec.ISR {
		if _, stays := partition.Find(a.ISR, e.Node); stays || e.Node == 1 {
			continue
		}
		_, who := x.m.leo(e.Node)
		void := e.BrokerEpoch != x.nodes.Node(e.Node).BrokerEpoch || who.BrokerEpoch > e.BrokerEpoch
		if !void && x.m.upToDate(e.Node, x.log.LogEndOffset(), x.now) {
			x.t.Fatalf("node %d, which is in sync, is to leave", e.Node)
		}
	}
}

func (x *machine) Produce(t *rapid.T) {
	acks := rapid.SampledFrom([]int16{0, 1, -1, -1}).Draw(t, "acks")
	frozen := len(x.rec.ISR) < int(x.rec.MinISR)
	lone := len(x.rec.ISR) == 1
	w, err := x.send(acks, -1, 0, 0)
	if want := acks == -1 && frozen; want != (err == partition.NotEnoughReplicas) || !want && err != nil {
		t.Fatalf("produce: %v", err)
	}
	if err == nil && acks != 0 {
		x.acks[w] = acks
		x.waiters = append(x.waiters, w)
	}
	x.after(&x.fx, lone && err == nil)
	if err == nil && acks != 0 && w.Finished() {
		x.acked(w, len(x.m.maximal(x.desk)))
	}
}

func (x *machine) Fetch(t *rapid.T) {
	node := rapid.Int32Range(2, 3).Draw(t, "node")
	p, leo := x.peers[node], x.log.LogEndOffset()
	q := x.request(node, x.pos[node])
	q.LastFetchedEpoch = x.lastEpoch(q.Offset)
	mayPark := rapid.Bool().Draw(t, "park")
	a := &Answer{}
	fresh := x.m.pending == nil && !x.now.Before(x.rest)
	parked := false
	x.step(func(fx *Effects) { parked = x.p.Fetch(q, false, mayPark, x.now, a, fx) })
	a.View.Release()
	if !parked && (a.Code != partition.OK || a.Diverging) {
		t.Fatalf("fetch of node %d at %d: %v, diverging %v", node, q.Offset, a.Code, a.Diverging)
	}
	if parked != (mayPark && q.Offset == leo) {
		t.Fatalf("parked %v at %d; end is %d", parked, q.Offset, leo)
	}
	list := x.m.sights[node]
	if n := len(list); n > 0 && list[n-1].member.BrokerEpoch != p.member.BrokerEpoch {
		list = nil // a new life begins its own clock
		x.m.first = slices.DeleteFunc(slices.Clone(x.m.first), func(e partition.Member) bool { return e.Node == node })
	}
	if e, in := partition.Find(x.m.first, node); in && e.BrokerEpoch != p.member.BrokerEpoch {
		x.m.first = slices.DeleteFunc(slices.Clone(x.m.first), func(e partition.Member) bool { return e.Node == node })
	}
	x.m.sights[node] = append(list, sight{p.member, q.Offset, x.now, leo})
	must := fresh && x.m.may(x.desk, node, x.m.hw) && !x.anyVoid()
	x.after(&x.fx, true)
	if must && x.m.pending == nil {
		t.Fatalf("node %d at %d may join, nothing is proposed", node, q.Offset)
	}
	if !parked {
		x.pos[node] = rapid.Int64Range(x.pos[node], leo).Draw(t, "copied")
	}
}

func (x *machine) anyVoid() bool {
	for _, e := range x.rec.ISR {
		if e.Node != 1 && x.nodes.Node(e.Node).BrokerEpoch > e.BrokerEpoch {
			return true
		}
	}
	return false
}

func (x *machine) Sync(t *rapid.T) {
	if err := x.log.SyncNow(); err != nil {
		t.Fatal(err)
	}
	x.step(func(fx *Effects) { x.p.Advanced(x.now, fx) })
	x.after(&x.fx, true)
}

// Time passes; Tick comes when it is wanted.
func (x *machine) Time(t *rapid.T) {
	d := time.Duration(rapid.SampledFrom([]int{1, 500, 1000, 5000, 16000, 40000}).Draw(t, "ms")) * time.Millisecond
	for end := x.now.Add(d); ; {
		for due := end; ; x.punctual() {
			if !x.next.IsZero() && x.next.Before(due) {
				due = x.next
			}
			if x.now.Add(time.Second).Before(due) {
				x.now = x.now.Add(time.Second)
			} else {
				x.now = latest(x.now, due)
				break
			}
		}
		if x.next.IsZero() || x.next.After(x.now) {
			return
		}
		x.next = time.Time{}
		x.step(func(fx *Effects) {
			next := x.p.Tick(x.now, fx)
			fx.Tick = next
		})
		if !x.fx.Tick.IsZero() && !x.fx.Tick.After(x.now) {
			t.Fatalf("Tick wants to be called again at once")
		}
		x.after(&x.fx, true)
	}
}

// Roster: a node is fenced or not, or has begun another life, with the same
// directory or another, and a log that may have lost its end.
func (x *machine) Roster(t *rapid.T) {
	node := rapid.Int32Range(2, 3).Draw(t, "node")
	n := x.nodes[node]
	switch rapid.IntRange(0, 2).Draw(t, "what") {
	case 0:
		n.Fenced = !n.Fenced
	case 1:
		n.Fenced = false
	case 2:
		n.BrokerEpoch += 10
		p := x.peers[node]
		p.member.BrokerEpoch, p.session = n.BrokerEpoch, 0
		x.pos[node] = rapid.Int64Range(0, x.pos[node]).Draw(t, "kept")
	}
	n.ID = node
	x.nodes[node] = n
}

// Decide: the coordinator decides about the proposal under way, and its answer
// arrives or not.
func (x *machine) Decide(t *rapid.T) {
	a := x.m.pending
	if a == nil {
		t.Skip()
	}
	code := partition.OK
	for _, e := range a.ISR {
		if n := x.nodes.Node(e.Node); e.Node != 1 && !n.Eligible(e.BrokerEpoch) {
			code = partition.IneligibleReplica
		}
	}
	if rapid.IntRange(0, 4).Draw(t, "trouble") == 0 {
		code = rapid.SampledFrom([]partition.Code{partition.Unknown, partition.NotController, partition.IneligibleReplica}).Draw(t, "code")
	}
	lost := rapid.Bool().Draw(t, "lost")
	switch code {
	case partition.OK:
		x.apply(a)
		x.m.pending = nil
		if lost {
			x.see()
			return
		}
		x.m.raise(x.desk)
	case partition.IneligibleReplica:
		if lost {
			return // and it will be asked again
		}
		x.m.pending, x.rest = nil, x.now.Add(time.Second)
		x.m.raise(x.desk)
	}
	x.step(func(fx *Effects) {
		x.p.Altered(&partition.Altered{ID: testID, Seq: a.Seq, Code: code, Record: x.rec}, x.now, fx)
	})
	x.after(&x.fx, false)
}

// see has the leader see the newest record.
func (x *machine) see() {
	x.m.raise(x.desk)
	x.step(func(fx *Effects) {
		if err := x.p.Update(x.rec, x.now, fx); err != nil {
			x.t.Fatal(err)
		}
	})
	x.after(&x.fx, false)
}

// Late: an answer to a proposal of long ago.
func (x *machine) Late(t *rapid.T) {
	if len(x.old) == 0 {
		t.Skip()
	}
	a := rapid.SampledFrom(x.old).Draw(t, "which")
	if a == x.m.pending {
		t.Skip()
	}
	code := rapid.SampledFrom([]partition.Code{partition.OK, partition.IneligibleReplica, partition.InvalidUpdateVersion}).Draw(t, "code")
	x.step(func(fx *Effects) {
		x.p.Altered(&partition.Altered{ID: testID, Seq: a.Seq, Code: code, Record: x.rec}, x.now, fx)
	})
	x.after(&x.fx, false)
}

// Change: the coordinator changes the record by itself.
func (x *machine) Change(t *rapid.T) {
	r := x.rec.Clone()
	r.PartitionEpoch++
	r.Revision++
	reign := false
	switch what := rapid.IntRange(0, 3).Draw(t, "what"); what {
	case 0: // a member is fenced
		for i, e := range r.ISR {
			if e.Node != 1 {
				r.ISR = slices.Delete(r.ISR, i, i+1)
				if len(r.ISR) < int(r.MinISR) {
					r.ELR = append(r.ELR, e)
				}
				n := x.nodes[e.Node]
				n.Fenced = true
				x.nodes[e.Node] = n
				break
			}
		}
	case 1:
		r.MinISR = rapid.Int32Range(1, 3).Draw(t, "min")
		if len(r.ISR) >= int(r.MinISR) {
			r.ELR = nil
		}
	case 2: // elected again
		r.LeaderEpoch++
		reign = true
	}
	if len(r.ISR) >= int(r.MinISR) {
		r.ELR = nil
	}
	if err := r.Check(); err != nil {
		t.Fatal(err)
	}
	x.rec, x.m.pending = r, nil
	if reign {
		for _, p := range x.peers {
			p.session++
		}
		x.reign()
		x.step(func(fx *Effects) {
			if err := x.p.Update(x.rec, x.now, fx); err != nil {
				t.Fatal(err)
			}
		})
		x.m.raise(x.desk)
		x.after(&x.fx, false)
		return
	}
	x.see()
}

func (x *machine) Check(t *rapid.T) { x.t = t }

// TestModel: ISR and high watermark against the definitions.
func TestModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		o := deskOptions{sync: rapid.SampledFrom([]replica.SyncMode{replica.Never, replica.Always}).Draw(rt, "sync"), minISR: rapid.Int32Range(1, 3).Draw(rt, "min")}
		x := &machine{desk: newDesk(t, o), t: rt, pos: map[int32]int64{2: 0, 3: 0}, acks: map[*Waiter]int16{}, late: map[int32]time.Time{}}
		defer x.log.Close(t0)
		x.reign()
		x.next = x.fx.Tick
		rt.Repeat(map[string]func(*rapid.T){
			"":        x.Check,
			"produce": x.Produce,
			"fetch":   x.Fetch,
			"fetch2":  x.Fetch,
			"sync":    x.Sync,
			"time":    x.Time,
			"roster":  x.Roster,
			"decide":  x.Decide,
			"late":    x.Late,
			"change":  x.Change,
		})
		if t.Failed() {
			rt.Fatal("a check of the desk failed")
		}
	})
}
