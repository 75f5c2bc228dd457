package isr

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/tidemark-log/tidemark/partition"
)

// ghostNode is a node as it is, which the coordinator only hears of.
type ghostNode struct {
	alive    bool // its process runs
	lives    []ghostLife
	fenced   bool
	stopping bool
	until    time.Time
	uuid     partition.UUID
	evidence partition.Evidence // of its next life
	boot     uint64
	disk     uint64               // log ids change with it
	byLog    bool                 // each log speaks for itself,
	worse    map[partition.ID]int // and these say less than the node's evidence: see fate
}

type ghostLife struct {
	epoch   int64
	vouched bool                 // by its evidence, for the life before,
	worse   map[partition.ID]int // but for these logs
}

func (n *ghostNode) epoch() int64 {
	if len(n.lives) == 0 {
		return -1
	}
	return n.lives[len(n.lives)-1].epoch
}

// lost: it is down, and what it will say of it voids its entries. Until it does it
// may be elected, and nobody notices.
func (n *ghostNode) lost(id partition.ID) bool {
	return !n.alive && (n.evidence == partition.Suspect || n.worse[id] != 0)
}

// effective is R3 and R4 in so many words: the entry is of the present life, or
// every life since has vouched for the one before it.
func (n *ghostNode) effective(id partition.ID, entry int64) bool {
	i := slices.IndexFunc(n.lives, func(l ghostLife) bool { return l.epoch == entry })
	if i < 0 {
		return false
	}
	for _, l := range n.lives[i+1:] {
		if !l.vouched || l.worse[id] != 0 {
			return false
		}
	}
	return true
}

// coming: it has registered and is not ready yet.
func (n *ghostNode) coming() bool { return n.fenced && !n.stopping && !n.until.IsZero() }

func (n *ghostNode) live() bool { return len(n.lives) > 0 && !n.fenced && !n.stopping }

// ghostPart is a partition with its logs, of which only the length matters: what
// is below committed is the same in all that are complete.
type ghostPart struct {
	name      string
	length    map[int32]int
	committed int
	ends      map[int32]int     // as registered, for logs that are vouched for, since there was a leader
	seen      *partition.Record // the newest one told
	copy      *partition.Record // as it was when it was told
}

// longer: it is known that one node's log is longer than the other's.
func (p *ghostPart) longer(a, b int32) bool {
	x, known := p.ends[a]
	y, both := p.ends[b]
	return known && both && x > y
}

// ghost drives a Controller with calls good and bad, and knows what is true. It
// checks after each: I13 to I16, that nobody who is not effective is ever elected,
// and that no leader or candidate lacks a committed record (I5, I6).
type ghost struct {
	*rapid.T
	c        *Controller
	now      time.Time
	nodes    []*ghostNode
	parts    map[partition.ID]*ghostPart
	order    []partition.ID
	names    int
	uuids    uint64
	maxEpoch int64
	revision int64
	proposed map[int32]bool // by the step just made, if it was taken
	state    []byte
}

func (g *ghost) logID(node int32) partition.UUID {
	return uuid(10_000*uint64(node+1) + g.nodes[node].disk)
}

// expire is what every step but KeepAlive begins with.
func (g *ghost) expire() {
	for _, n := range g.nodes {
		if !g.now.Before(n.until) {
			n.fenced, n.until = true, time.Time{}
		}
	}
}

func (g *ghost) draw(what string, n int) int { return rapid.IntRange(0, n-1).Draw(g.T, what) }

func (g *ghost) oneIn(n int, what string) bool { return g.draw(what, n) == 0 }

func (g *ghost) node() int32 { return int32(g.draw("node", len(g.nodes))) }

func (g *ghost) part() (partition.ID, *ghostPart) {
	if len(g.order) == 0 {
		return partition.ID{}, nil
	}
	id := g.order[g.draw("partition", len(g.order))]
	return id, g.parts[id]
}

// epochOf is a node's broker epoch, or now and then another one.
func (g *ghost) epochOf(node int32) int64 {
	if g.oneIn(12, "stale") {
		return g.nodes[node].epoch() - int64(1+g.draw("by", 3))
	}
	return g.nodes[node].epoch()
}

// extend is the session rule: it never gets shorter.
func (n *ghostNode) extend(until time.Time) {
	if until.After(n.until) {
		n.until = until
	}
}

func (g *ghost) want(what string, got, want partition.Code) {
	if got != want {
		g.Fatalf("%s = %v; want %v", what, got, want)
	}
}

// asLife is what every call of a node answers first.
func (g *ghost) asLife(node int32, epoch int64, code func(n *ghostNode) partition.Code) partition.Code {
	g.expire()
	n := g.nodes[node]
	if epoch < 0 || epoch != n.epoch() {
		return partition.StaleBrokerEpoch
	}
	return code(n)
}

func (g *ghost) steps() map[string]func() {
	return map[string]func(){
		"time": func() {
			d := time.Duration(rapid.Int64Range(-int64(courtTTL)/8, int64(courtTTL)*5/4).Draw(g.T, "d"))
			if g.oneIn(3, "silent") {
				g.now = g.now.Add(d)
				return
			}
			for range 4 { // who runs gives signs of life meanwhile
				g.now = g.now.Add(d / 4)
				for i := range g.nodes {
					if g.nodes[i].alive {
						g.keepAlive(int32(i), g.nodes[i].epoch())
					}
				}
			}
		},
		"tick": func() {
			g.expire()
			next, want := g.c.Tick(g.now), time.Time{}
			for _, n := range g.nodes {
				if !n.until.IsZero() && (want.IsZero() || n.until.Before(want)) {
					want = n.until
				}
			}
			if !next.Equal(want) {
				g.Fatalf("Tick again at %v; want %v", next, want)
			}
		},
		"keep alive": func() { node := g.node(); g.keepAlive(node, g.epochOf(node)) },
		"kill": func() {
			n := g.nodes[g.node()]
			if !n.alive {
				return
			}
			n.alive = false
			g.fate(n)
		},
		"register":     g.register,
		"register too": g.register,
		"ready": func() {
			node := g.node()
			epoch := g.epochOf(node)
			want := g.asLife(node, epoch, func(n *ghostNode) partition.Code {
				switch {
				case !g.now.Before(n.until):
					return partition.StaleBrokerEpoch
				case n.stopping:
					return partition.InvalidRequest
				}
				n.fenced = false
				n.extend(g.now.Add(courtTTL))
				return partition.OK
			})
			g.want("Ready", g.c.Ready(node, epoch, g.now), want)
		},
		"stop": func() {
			node := g.node()
			epoch := g.epochOf(node)
			want := g.asLife(node, epoch, func(n *ghostNode) partition.Code { n.stopping = true; return partition.OK })
			g.want("Stop", g.c.Stop(node, epoch, g.now), want)
		},
		"fence": func() {
			node := g.node()
			epoch := g.epochOf(node)
			want := g.asLife(node, epoch, func(n *ghostNode) partition.Code {
				n.fenced, n.until = true, time.Time{}
				return partition.OK
			})
			g.want("Fence", g.c.Fence(node, epoch, g.now), want)
		},
		"alter":     g.alter,
		"alter too": g.alter,
		"write":     g.write,
		"decline": func() {
			id, p := g.part()
			if p == nil {
				return
			}
			node, le := g.node(), p.seen.LeaderEpoch+int32(g.draw("le", 3)-1)
			if g.oneIn(2, "leader") && p.seen.Leader >= 0 {
				node, le = p.seen.Leader, p.seen.LeaderEpoch
			}
			epoch := g.epochOf(node)
			g.asLife(node, epoch, func(*ghostNode) partition.Code { return 0 })
			before := g.settled(id)
			want := g.asLife(node, epoch, func(*ghostNode) partition.Code { return asLeader(before, node, le) })
			g.want("Decline", g.c.Decline(id, node, epoch, le, g.now), want)
			if want == partition.OK {
				r := g.c.Record(id)
				if has(r.ISR, node) || has(r.ELR, node) {
					g.Fatalf("%d declined and is in %s", node, show(r))
				}
			}
		},
		"hand over": func() {
			id, p := g.part()
			if p == nil {
				return
			}
			from, to, le := g.node(), g.node(), p.seen.LeaderEpoch
			if g.oneIn(2, "leader") && p.seen.Leader >= 0 {
				from = p.seen.Leader
			}
			epoch := g.epochOf(from)
			g.asLife(from, epoch, func(*ghostNode) partition.Code { return 0 })
			before := g.settled(id)
			want := g.asLife(from, epoch, func(*ghostNode) partition.Code {
				switch code := asLeader(before, from, le); {
				case code != partition.OK:
					return code
				case from == to:
					return partition.InvalidRequest
				case !has(before.ISR, to) || !g.nodes[to].live():
					return partition.IneligibleReplica
				}
				return partition.OK
			})
			a := g.c.Handover(id, from, epoch, to, le, g.now)
			g.want("Handover", a.Code, want)
			if want == partition.OK && (a.Record.Leader != to || a.Record.LeaderEpoch != before.LeaderEpoch+1) {
				g.Fatalf("handed over to %d: %s", to, show(a.Record))
			}
		},
		"preferred": func() {
			id, p := g.part()
			if p == nil {
				return
			}
			g.expire()
			first, want := p.seen.Replicas[0], partition.OK
			if r := g.settled(id); r.Leader != first && !(has(r.ISR, first) && g.nodes[first].live()) {
				want = partition.IneligibleReplica
			}
			g.want("ElectPreferred", g.c.ElectPreferred(id, g.now), want)
			if r := g.c.Record(id); want == partition.OK && r.Leader != first {
				g.Fatalf("preferred is %d: %s", first, show(r))
			}
		},
		"create": func() {
			if len(g.order) > 2 {
				return
			}
			g.expire()
			g.names++
			name := fmt.Sprint("t", g.names)
			perm := rapid.Permutation([]int32{0, 1, 2, 3}).Draw(g.T, "replicas")
			replicas := perm[:1+g.draw("factor", 4)]
			id, records, err := g.c.CreateTopic(name, TopicSpec{Replicas: [][]int32{replicas}, MinISR: int32(g.draw("min", 4))}, g.now)
			if up := slices.ContainsFunc(replicas, func(n int32) bool { return g.nodes[n].live() }); up != (err == nil) {
				g.Fatalf("create on %v: %v", replicas, err)
			}
			if err != nil {
				return
			}
			pid := partition.ID{Topic: id}
			g.order = append(g.order, pid)
			g.parts[pid] = &ghostPart{name: name, length: map[int32]int{}, ends: map[int32]int{}, seen: records[0], copy: records[0].Clone()}
			if len(records[0].ISR) == 0 {
				g.Fatalf("made as %s", show(records[0]))
			}
		},
		"delete": func() {
			id, p := g.part()
			if p == nil || !g.oneIn(4, "really") {
				return
			}
			g.expire()
			if err := g.c.DeleteTopic(p.name, g.now); err != nil {
				g.Fatal(err)
			}
			delete(g.parts, id)
			g.order = slices.DeleteFunc(g.order, func(o partition.ID) bool { return o == id })
		},
		"min ISR": func() {
			id, p := g.part()
			if p == nil {
				return
			}
			g.expire()
			n := int32(g.draw("min", 4))
			if err := g.c.SetMinISR(p.name, n, g.now); err != nil {
				g.Fatal(err)
			}
			if r := g.c.Record(id); r.Leader >= 0 && r.LeaderEpoch == p.seen.LeaderEpoch && r.PartitionEpoch > p.seen.PartitionEpoch && r.MinISR != min(max(1, n), int32(len(r.Replicas))) {
				g.Fatalf("min ISR %d set, %d in force under the same leader", n, r.MinISR)
			}
		},
		"restart": func() {
			if !g.oneIn(6, "really") {
				return
			}
			c, err := LoadController(g.state, ControllerOptions{ClusterID: "c", TTL: courtTTL, Rand: g.c.o.Rand, Store: g.c.o.Store})
			if err != nil {
				g.Fatal(err)
			}
			g.c = c
			for _, id := range g.order {
				p := g.parts[id]
				if r := c.Record(id); r != nil && r.Revision == p.seen.Revision {
					if fmt.Sprintf("%+v", r) != fmt.Sprintf("%+v", p.seen) {
						g.Fatalf("%+v was loaded as %+v", p.seen, r)
					}
					p.seen, p.copy = r, r.Clone()
				}
			}
			for _, n := range g.nodes {
				if len(n.lives) > 0 {
					n.fenced, n.until = true, time.Time{}
				}
				if n.alive {
					n.alive = false
					g.fate(n)
				}
			}
		},
	}
}

// settled is the newest record with the sessions that ended until now taken out.
// To see it the controller is asked for a decision that changes nothing else.
func (g *ghost) settled(id partition.ID) *partition.Record {
	g.c.Tick(g.now)
	return g.c.Record(id)
}

func (g *ghost) keepAlive(node int32, epoch int64) {
	n, want := g.nodes[node], partition.OK
	switch {
	case epoch < 0 || epoch != n.epoch() || n.fenced && !g.now.Before(n.until):
		want = partition.StaleBrokerEpoch
	case n.fenced:
		want = partition.IneligibleReplica
	}
	if want != partition.StaleBrokerEpoch {
		n.extend(g.now.Add(courtTTL))
	}
	g.want("KeepAlive", g.c.KeepAlive(node, epoch, g.now), want)
}

// What a log says that is worse than its node's evidence.
const (
	shorter = 1 // and durable, which does not help
	missing = 2
)

// fate is how a life ends, and what of that its successor will be able to say.
func (g *ghost) fate(n *ghostNode) {
	me := int32(slices.Index(g.nodes, n))
	n.evidence = rapid.SampledFrom([]partition.Evidence{partition.Clean, partition.Intact, partition.Suspect}).Draw(g.T, "evidence")
	n.byLog, n.worse = g.oneIn(2, "by log"), map[partition.ID]int{}
	if n.evidence != partition.Suspect {
		if !n.byLog {
			return
		}
		for _, id := range g.order {
			p := g.parts[id]
			m, _ := partition.Find(slices.Concat(p.seen.ISR, p.seen.ELR), me)
			how := max(0, g.draw("log", 6)-3)
			if how == missing && m.LogID == (partition.UUID{}) {
				continue // nobody can tell, see docs/replication.md R2
			}
			if n.worse[id] = how; how != 0 {
				p.length[me] = g.draw("kept", p.length[me]+1)
			}
		}
		return
	}
	n.boot += uint64(g.draw("boot", 2))
	disk := g.oneIn(3, "disk")
	if disk {
		n.disk++
	}
	for _, id := range g.order {
		p := g.parts[id]
		if disk {
			p.length[me] = 0
		} else {
			p.length[me] = g.draw("kept", p.length[me]+1)
		}
	}
}

func (g *ghost) register() {
	node := g.node()
	n := g.nodes[node]
	g.expire()
	q := partition.Register{Node: node, ClusterID: "c", Incarnation: n.uuid, BootID: uuid(n.boot), Evidence: n.evidence, Previous: -1}
	if q.Evidence == partition.Clean {
		q.Previous = n.epoch()
	}
	if n.byLog {
		q.Logs = []partition.LogEvidence{}
		for _, id := range g.order {
			switch n.worse[id] {
			case 0:
				q.Logs = append(q.Logs, partition.LogEvidence{ID: id, Evidence: partition.Clean, LastEpoch: 1, LEO: int64(g.parts[id].length[node])})
			case shorter:
				q.Logs = append(q.Logs, partition.LogEvidence{ID: id, Durable: true})
			}
		}
	}
	live := len(n.lives) > 0 && g.now.Before(n.until)
	want := partition.OK
	fresh := !n.alive
	switch {
	case fresh:
		g.uuids++
		q.Incarnation = uuid(g.uuids)
		if live {
			want = partition.DuplicateRegistration
		}
	case n.stopping && !live:
		want = partition.StaleBrokerEpoch
	}
	a := g.c.Register(&q, g.now)
	g.want("Register", a.Code, want)
	if want != partition.OK {
		return
	}
	if !fresh {
		if a.BrokerEpoch != n.epoch() {
			g.Fatalf("the same life got broker epoch %d, it had %d", a.BrokerEpoch, n.epoch())
		}
		n.extend(g.now.Add(courtTTL))
		return
	}
	if a.BrokerEpoch <= g.maxEpoch {
		g.Fatalf("broker epoch %d after %d", a.BrokerEpoch, g.maxEpoch)
	}
	g.maxEpoch = a.BrokerEpoch
	for _, id := range g.order {
		p := g.parts[id]
		delete(p.ends, node)
		if p.seen.Leader < 0 && n.byLog && n.worse[id] == 0 && n.evidence != partition.Suspect {
			p.ends[node] = p.length[node]
		}
	}
	n.lives = append(n.lives, ghostLife{a.BrokerEpoch, len(n.lives) > 0 && q.Evidence != partition.Suspect, n.worse})
	n.alive, n.uuid, n.fenced, n.stopping = true, q.Incarnation, true, false
	n.until = g.now.Add(courtTTL)
}

// write appends at the leader. Whoever of the ISR runs copies it; it is committed
// if all of them do and are enough.
func (g *ghost) write() {
	_, p := g.part()
	if p == nil || p.seen.Leader < 0 || !g.nodes[p.seen.Leader].alive {
		return
	}
	r, all := p.seen, true
	to := p.length[r.Leader] + 1 + g.draw("records", 3)
	for _, m := range r.ISR {
		if n := g.nodes[m.Node]; m.Node == r.Leader || n.alive && n.epoch() == m.BrokerEpoch && !g.oneIn(4, "slow") {
			p.length[m.Node] = to
		} else {
			all = false
		}
	}
	if all && len(r.ISR) >= int(r.MinISR) {
		p.committed = to
	}
}

// alter proposes an ISR, mostly one that a leader might propose: without some
// members, with others that have caught up.
func (g *ghost) alter() {
	id, p := g.part()
	if p == nil {
		return
	}
	r := p.seen
	q := &partition.Alter{ID: id, Node: r.Leader, LeaderEpoch: r.LeaderEpoch, PartitionEpoch: r.PartitionEpoch}
	if r.Leader < 0 || g.oneIn(10, "somebody") {
		q.Node = g.node()
	}
	q.BrokerEpoch = g.epochOf(q.Node)
	copied := map[int32]bool{}
	for _, node := range r.Replicas {
		m, in := partition.Find(r.ISR, node)
		n := g.nodes[node]
		switch {
		case in && (node == r.Leader || !g.oneIn(3, "drop")):
			if g.oneIn(4, "unheard") {
				m.BrokerEpoch = -1
			} else if m.LogID == (partition.UUID{}) && g.oneIn(2, "log id") {
				m.LogID = g.logID(node)
			}
			q.ISR = append(q.ISR, m)
		case !in && n.alive && r.Leader >= 0 && g.nodes[r.Leader].alive && g.oneIn(2, "join"):
			q.ISR = append(q.ISR, partition.Member{Node: node, BrokerEpoch: n.epoch(), LogID: g.logID(node)})
			copied[node] = true
		}
	}
	bad := func(what string) bool { return g.oneIn(15, what) }
	if bad("leader epoch") {
		q.LeaderEpoch += int32(1 - 2*g.draw("le", 2))
	}
	if bad("partition epoch") {
		q.PartitionEpoch += int32(1 - 2*g.draw("pe", 2))
	}
	if bad("stranger") {
		q.ISR = append(q.ISR, partition.Member{Node: g.node(), BrokerEpoch: 1 << 40, LogID: uuid(9)})
	}
	if len(q.ISR) > 0 && bad("old life") {
		q.ISR[g.draw("whose", len(q.ISR))].BrokerEpoch--
	}
	if len(q.ISR) > 0 && bad("missing") {
		q.ISR = q.ISR[1:]
	}
	sent := slices.Clone(q.ISR)

	g.asLife(q.Node, q.BrokerEpoch, func(*ghostNode) partition.Code { return 0 })
	now := g.settled(id)
	want := g.asLife(q.Node, q.BrokerEpoch, func(*ghostNode) partition.Code { return g.verdict(now, q) })
	a := g.c.Alter(q, g.now)
	g.want(fmt.Sprintf("Alter %+v of %s", q, show(now)), a.Code, want)
	if !slices.Equal(q.ISR, sent) {
		g.Fatal("the proposal was changed")
	}
	if want != partition.OK || q.PartitionEpoch < now.PartitionEpoch {
		if a.Record != now {
			g.Fatalf("refused, yet the record is %+v after %+v", a.Record, now)
		}
		return
	}
	g.proposed = map[int32]bool{}
	for _, m := range q.ISR {
		g.proposed[m.Node] = true
		if copied[m.Node] {
			p.length[m.Node] = p.length[r.Leader]
		}
	}
	if len(a.Record.ISR) != len(q.ISR) || a.Record.LeaderEpoch != now.LeaderEpoch {
		g.Fatalf("%+v became %s", q.ISR, show(a.Record))
	}
}

// verdict is A8's table, read from the paper.
func (g *ghost) verdict(r *partition.Record, q *partition.Alter) partition.Code {
	resolved := map[int32]partition.Member{}
	sound := true
	for _, m := range q.ISR {
		old, was := partition.Find(r.ISR, m.Node)
		if was && m.BrokerEpoch == -1 {
			m.BrokerEpoch = old.BrokerEpoch
		}
		if was && m.LogID == (partition.UUID{}) {
			m.LogID = old.LogID
		}
		if !was && m.LogID == (partition.UUID{}) { // whose log is it? (R2)
			sound = false
		}
		if _, twice := resolved[m.Node]; twice || !slices.Contains(r.Replicas, m.Node) {
			sound = false
		}
		resolved[m.Node] = m
	}
	if _, leads := resolved[q.Node]; !leads {
		sound = false
	}
	same := sound && len(resolved) == len(r.ISR)
	for _, m := range r.ISR {
		same = same && resolved[m.Node] == m
	}
	switch {
	case q.LeaderEpoch > r.LeaderEpoch || q.PartitionEpoch > r.PartitionEpoch:
		return partition.NotController
	case q.LeaderEpoch < r.LeaderEpoch:
		return partition.FencedLeaderEpoch
	case q.Node != r.Leader:
		return partition.InvalidRequest
	case q.PartitionEpoch < r.PartitionEpoch && !same:
		return partition.InvalidUpdateVersion
	case q.PartitionEpoch < r.PartitionEpoch:
		return partition.OK
	case !sound:
		return partition.InvalidRequest
	}
	for _, m := range resolved {
		if n := g.nodes[m.Node]; !n.live() || m.BrokerEpoch != n.epoch() {
			return partition.IneligibleReplica
		}
		if old, _ := partition.Find(r.ISR, m.Node); old.LogID != (partition.UUID{}) && old.LogID != m.LogID {
			return partition.IneligibleReplica
		}
	}
	return partition.OK
}

func (g *ghost) check() {
	for i, n := range g.nodes {
		got := g.c.Node(int32(i))
		if got.BrokerEpoch != n.epoch() || len(n.lives) > 0 && (got.Fenced != n.fenced || got.Stopping != n.stopping) {
			// A session that ended stays until the next decision.
			if !n.fenced || got.Fenced {
				g.Fatalf("node %d is told as %+v; it is %+v", i, got, n)
			}
		}
	}
	ch := g.c.Since(g.revision)
	if ch.Revision < g.revision || ch.Full != (g.revision == 0) {
		g.Fatalf("changes %+v after %d", ch, g.revision)
	}
	g.revision = ch.Revision
	for _, r := range ch.Records {
		p := g.parts[r.ID]
		if p == nil {
			g.Fatalf("record of nobody: %+v", r)
		}
		if r != p.seen {
			g.checkStep(p, p.seen, r)
			p.seen, p.copy = r, r.Clone()
		}
	}
	g.proposed = nil
	full := g.c.Since(0)
	if len(full.Records) != len(g.order) || len(full.Topics) != len(g.order) {
		g.Fatalf("%d partitions, told are %d and %d topics", len(g.order), len(full.Records), len(full.Topics))
	}
	for _, id := range g.order {
		p := g.parts[id]
		r := p.seen
		if g.c.Record(id) != r || !slices.Contains(full.Records, r) {
			g.Fatalf("the watch shows %s, the record is %s", show(r), show(g.c.Record(id)))
		}
		if !reflect.DeepEqual(r, p.copy) {
			g.Fatalf("a published record was changed from %+v to %+v", p.copy, r)
		}
		if err := r.Check(); err != nil {
			g.Fatal(err)
		}
		for _, m := range r.ISR {
			n := g.nodes[m.Node]
			if m.BrokerEpoch != n.epoch() || n.stopping && m.Node != r.Leader && !n.fenced {
				g.Fatalf("%s: %v is in the ISR; its node is %+v", show(r), m, n)
			}
		}
		candidates := slices.Concat(r.ISR, r.ELR)
		for _, m := range candidates {
			n := g.nodes[m.Node]
			if m.BrokerEpoch != n.epoch() {
				g.Fatalf("%s: %v is a candidate; its node is %+v", show(r), m, n)
			}
			if p.length[m.Node] < p.committed && !n.lost(id) {
				g.Fatalf("%s: candidate %v has %d of %d committed (I5)", show(r), m, p.length[m.Node], p.committed)
			}
			if r.Leader < 0 && n.live() && !slices.ContainsFunc(candidates, func(o partition.Member) bool {
				return g.nodes[o.Node].coming() && p.longer(o.Node, m.Node) // R22
			}) {
				g.Fatalf("%s: %v could lead", show(r), m)
			}
		}
	}
}

// checkStep holds a record against the one that was seen before.
func (g *ghost) checkStep(p *ghostPart, old, r *partition.Record) {
	step := r.PartitionEpoch - old.PartitionEpoch
	// One decision, and one before it for sessions that had ended.
	if step < 1 || step > 2 || r.LeaderEpoch < old.LeaderEpoch || r.Revision <= old.Revision || r.LeaderEpoch > old.LeaderEpoch+step {
		g.Fatalf("%+v follows %+v (I15)", r, old)
	}
	if r.Leader != old.Leader && r.LeaderEpoch == old.LeaderEpoch {
		g.Fatalf("%s follows %s in one leader epoch (I15)", show(r), show(old))
	}
	for _, m := range r.ISR {
		if was := has(old.ISR, m.Node); was || g.proposed[m.Node] {
			continue
		}
		if r.Leader != m.Node || len(r.ISR) != 1 || !has(old.ELR, m.Node) { // I14
			g.Fatalf("%v entered the ISR: %s follows %s", m, show(r), show(old))
		}
	}
	if r.LeaderEpoch == old.LeaderEpoch || r.Leader == partition.None {
		return
	}
	entry, was := partition.Find(slices.Concat(old.ISR, old.ELR), r.Leader)
	if n := g.nodes[r.Leader]; !was || !n.effective(r.ID, entry.BrokerEpoch) || !n.live() {
		g.Fatalf("%d was elected: %s follows %s; its node is %+v", r.Leader, show(r), show(old), n)
	}
	if p.length[r.Leader] < p.committed && !g.nodes[r.Leader].lost(r.ID) {
		g.Fatalf("%d was elected with %d of %d committed (I6)", r.Leader, p.length[r.Leader], p.committed)
	}
	for _, m := range old.ELR {
		n := g.nodes[m.Node]
		if len(old.ISR) == 0 && has(r.ELR, m.Node) && (n.live() || n.coming()) && p.longer(m.Node, r.Leader) {
			g.Fatalf("%d was elected with a log up to %d, %d has one to %d (R22): %s follows %s", r.Leader, p.ends[r.Leader],
				m.Node, p.ends[m.Node], show(r), show(old))
		}
	}
	clear(p.ends)
	// Whoever follows it has what it has, or less.
	for n, l := range p.length {
		p.length[n] = min(l, max(p.committed, p.length[r.Leader]))
	}
}

func TestControllerModel(t *testing.T) {
	for range 10 {
		rapid.Check(t, playGhost)
	}
}

func playGhost(t *rapid.T) {
	g := &ghost{T: t, now: time.Unix(1_000_000, 0), parts: map[partition.ID]*ghostPart{}}
	g.c = NewController(ControllerOptions{
		ClusterID: "c", TTL: courtTTL, Rand: rand.NewChaCha8([32]byte{1}),
		Store: func(b []byte) error { g.state = b; return nil },
	})
	g.state = g.c.encode()
	for range 4 {
		g.nodes = append(g.nodes, &ghostNode{boot: 1})
	}
	steps := g.steps()
	names := slices.Sorted(maps.Keys(steps))
	// Mostly there is something to lose.
	for i := range int32(g.draw("up", 5)) {
		n := g.nodes[i]
		g.uuids++
		n.uuid = uuid(g.uuids)
		a := g.c.Register(&partition.Register{Node: i, ClusterID: "c", Incarnation: n.uuid, BootID: uuid(1)}, g.now)
		g.want("Register", a.Code, partition.OK)
		g.want("Ready", g.c.Ready(i, a.BrokerEpoch, g.now), partition.OK)
		n.alive, n.lives, n.until, g.maxEpoch = true, []ghostLife{{a.BrokerEpoch, false, nil}}, g.now.Add(courtTTL), a.BrokerEpoch
	}
	for range rapid.IntRange(1, 120).Draw(t, "steps") {
		steps[rapid.SampledFrom(names).Draw(t, "step")]()
		g.check()
	}
}
