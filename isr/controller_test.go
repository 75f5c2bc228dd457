package isr

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tidemark-log/tidemark/partition"
)

// court is a Controller with a clock, and knows the lives of the nodes.
type court struct {
	t     testing.TB
	c     *Controller
	now   time.Time
	lives uint64
	epoch map[int32]int64
}

const courtTTL = 9 * time.Second

func newCourt(t testing.TB, o ControllerOptions) *court {
	o.ClusterID, o.TTL = "c", courtTTL
	if o.Rand == nil {
		o.Rand = rand.NewChaCha8([32]byte{})
	}
	return &court{t: t, c: NewController(o), now: time.Unix(1_000_000, 0), epoch: map[int32]int64{}}
}

// threeUp has nodes 0, 1 and 2 registered and ready.
func threeUp(t testing.TB, o ControllerOptions) *court {
	k := newCourt(t, o)
	for n := range int32(3) {
		k.up(n, partition.Suspect)
	}
	return k
}

func uuid(n uint64) (u partition.UUID) {
	binary.BigEndian.PutUint64(u[:], n)
	u[15] = 1
	return u
}

// logOf is the log id of a node's replica, the same in all its lives.
func logOf(node int32) partition.UUID { return uuid(1000 + uint64(node)) }

func (k *court) register(node int32, e partition.Evidence) partition.Code {
	k.lives++
	q := partition.Register{Node: node, ClusterID: "c", Incarnation: uuid(k.lives), BootID: uuid(77), Evidence: e, Previous: -1}
	if e == partition.Clean {
		q.Previous = k.epoch[node]
	}
	a := k.c.Register(&q, k.now)
	if a.Code == partition.OK {
		k.epoch[node] = a.BrokerEpoch
	}
	return a.Code
}

func (k *court) ok(what string, code partition.Code) {
	k.t.Helper()
	if code != partition.OK {
		k.t.Fatalf("%s: %v", what, code)
	}
}

func (k *court) ready(node int32) {
	k.t.Helper()
	k.ok("ready", k.c.Ready(node, k.epoch[node], k.now))
}

func (k *court) up(node int32, e partition.Evidence) {
	k.t.Helper()
	k.ok("register", k.register(node, e))
	k.ready(node)
}

// down lets the sessions of nodes end, all at once, while the others live on.
func (k *court) down(nodes ...int32) {
	k.t.Helper()
	k.now = k.now.Add(courtTTL / 2)
	k.beat(nodes...)
	k.now = k.now.Add(courtTTL/2 + 1)
	k.c.Tick(k.now)
	k.beat(nodes...)
}

// beat keeps all sessions alive, but for some.
func (k *court) beat(but ...int32) {
	for n := range int32(10) {
		if _, ok := k.epoch[n]; ok && !strings.Contains(fmt.Sprint(but), fmt.Sprint(n)) {
			k.c.KeepAlive(n, k.epoch[n], k.now)
		}
	}
}

func (k *court) topic(name string, minISR int32, replicas ...int32) partition.ID {
	k.t.Helper()
	id, _, err := k.c.CreateTopic(name, TopicSpec{Replicas: [][]int32{replicas}, MinISR: minISR}, k.now)
	if err != nil {
		k.t.Fatal(err)
	}
	return partition.ID{Topic: id}
}

func (k *court) member(node int32) partition.Member {
	return partition.Member{Node: node, BrokerEpoch: k.epoch[node], LogID: logOf(node)}
}

// proposal is a sound one of the leader: these nodes, with everything current.
func (k *court) proposal(id partition.ID, nodes ...int32) *partition.Alter {
	r := k.c.Record(id)
	q := &partition.Alter{ID: id, Node: r.Leader, BrokerEpoch: k.epoch[r.Leader], LeaderEpoch: r.LeaderEpoch, PartitionEpoch: r.PartitionEpoch}
	for _, n := range nodes {
		q.ISR = append(q.ISR, k.member(n))
	}
	return q
}

func (k *court) alter(id partition.ID, nodes ...int32) {
	k.t.Helper()
	k.ok("alter", k.c.Alter(k.proposal(id, nodes...), k.now).Code)
}

// show is a record in short: "isr/elr/lastKnown leader e<leader epoch>", nodes as
// digits.
func show(r *partition.Record) string {
	list := func(l []partition.Member) (s string) {
		for _, m := range l {
			s += fmt.Sprint(m.Node)
		}
		return s
	}
	leader := "-"
	if r.Leader != partition.None {
		leader = fmt.Sprint(r.Leader)
	}
	return fmt.Sprintf("%s/%s/%s %s e%d", list(r.ISR), list(r.ELR), list(r.LastKnown), leader, r.LeaderEpoch)
}

func (k *court) want(id partition.ID, want string) {
	k.t.Helper()
	if got := show(k.c.Record(id)); got != want {
		k.t.Fatalf("record is %s; want %s", got, want)
	}
}

// TestAlter has a row for each row of A8's table, in its order: each case breaks
// what its row asks for, and much of what later rows ask for.
func TestAlter(t *testing.T) {
	for _, tc := range []struct {
		name string
		do   func(k *court, q *partition.Alter)
		want partition.Code
		isr  string // the record afterwards
	}{
		{"broker epoch old", func(k *court, q *partition.Alter) { q.BrokerEpoch--; q.LeaderEpoch += 5; q.ISR = nil }, partition.StaleBrokerEpoch, "012// 0 e2"},
		{"broker epoch of the future", func(k *court, q *partition.Alter) { q.BrokerEpoch += 1000 }, partition.StaleBrokerEpoch, "012// 0 e2"},
		{"nobody", func(k *court, q *partition.Alter) { q.Node = 9 }, partition.StaleBrokerEpoch, "012// 0 e2"},
		{"unknown partition", func(k *court, q *partition.Alter) { q.ID.Partition = 7; q.LeaderEpoch = 99 }, partition.UnknownTopicID, "012// 0 e2"},
		{"leader epoch above", func(k *court, q *partition.Alter) {
			q.LeaderEpoch++
			q.Node = 1
			q.BrokerEpoch = k.epoch[1]
			q.ISR = nil
		}, partition.NotController, "012// 0 e2"},
		{"partition epoch above", func(k *court, q *partition.Alter) { q.LeaderEpoch--; q.PartitionEpoch++ }, partition.NotController, "012// 0 e2"},
		{"leader epoch below", func(k *court, q *partition.Alter) {
			q.LeaderEpoch--
			q.PartitionEpoch = 0
			q.Node, q.BrokerEpoch = 1, k.epoch[1]
		}, partition.FencedLeaderEpoch, "012// 0 e2"},
		{"not the leader", func(k *court, q *partition.Alter) { q.Node, q.BrokerEpoch = 1, k.epoch[1]; q.PartitionEpoch-- }, partition.InvalidRequest, "012// 0 e2"},
		{"partition epoch below", func(k *court, q *partition.Alter) { q.PartitionEpoch-- }, partition.InvalidUpdateVersion, "012// 0 e2"},
		{"partition epoch below, unsound", func(k *court, q *partition.Alter) { q.PartitionEpoch--; q.ISR[1].Node = 7 }, partition.InvalidUpdateVersion, "012// 0 e2"},
		{"partition epoch below, but it is so", func(k *court, q *partition.Alter) {
			q.PartitionEpoch--
			q.ISR = []partition.Member{k.member(2), k.member(0), k.member(1)}
		}, partition.OK, "012// 0 e2"},
		{"no replica", func(k *court, q *partition.Alter) { q.ISR[1] = k.member(3) }, partition.InvalidRequest, "012// 0 e2"},
		{"twice", func(k *court, q *partition.Alter) { q.ISR = append(q.ISR, q.ISR[1]) }, partition.InvalidRequest, "012// 0 e2"},
		{"many", func(k *court, q *partition.Alter) { q.ISR = make([]partition.Member, 1<<20) }, partition.InvalidRequest, "012// 0 e2"},
		{"without the leader", func(k *court, q *partition.Alter) { q.ISR = q.ISR[1:] }, partition.InvalidRequest, "012// 0 e2"},
		{"empty", func(k *court, q *partition.Alter) { q.ISR = nil }, partition.InvalidRequest, "012// 0 e2"},
		{"unsound and ineligible", func(k *court, q *partition.Alter) { q.ISR[0].BrokerEpoch++; q.ISR[1] = q.ISR[0] }, partition.InvalidRequest, "012// 0 e2"},
		{"another incarnation", func(k *court, q *partition.Alter) { q.ISR[1].BrokerEpoch-- }, partition.IneligibleReplica, "012// 0 e2"},
		{"another directory in one life", func(k *court, q *partition.Alter) { q.ISR[1].LogID = uuid(5) }, partition.IneligibleReplica, "012// 0 e2"},
		{"an old member not heard of", func(k *court, q *partition.Alter) { q.ISR[1].BrokerEpoch = -1; q.ISR[1].LogID = partition.UUID{} }, partition.OK, "01// 0 e2"},
		{"sound", func(k *court, q *partition.Alter) {}, partition.OK, "01// 0 e2"},
		{"alone", func(k *court, q *partition.Alter) { q.ISR = q.ISR[:1] }, partition.OK, "0/12/ 0 e2"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			k := threeUp(t, ControllerOptions{})
			k.up(3, partition.Suspect)
			id := k.topic("t", 2, 0, 1, 2)
			k.ok("handover", k.c.Handover(id, 0, k.epoch[0], 1, 0, k.now).Code)
			k.ok("handover", k.c.Handover(id, 1, k.epoch[1], 0, 1, k.now).Code)
			k.alter(id, 0, 1, 2) // log ids
			before := k.c.Record(id)
			q := k.proposal(id, 0, 1)
			tc.do(k, q)
			a := k.c.Alter(q, k.now)
			if a.Code != tc.want {
				t.Errorf("Alter = %v; want %v", a.Code, tc.want)
			}
			if a.ID != q.ID || (a.Record == nil) != (tc.want == partition.UnknownTopicID) {
				t.Errorf("the answer is %+v", a)
			}
			k.want(id, tc.isr)
			after := k.c.Record(id)
			if changed := tc.isr != show(before); !changed && after != before {
				t.Errorf("the record became %+v", after)
			} else if changed && (after.PartitionEpoch != before.PartitionEpoch+1 || after.LeaderEpoch != before.LeaderEpoch) {
				t.Errorf("epochs %d %d; want %d %d", after.LeaderEpoch, after.PartitionEpoch, before.LeaderEpoch, before.PartitionEpoch+1)
			}
			if show(before) != "012// 0 e2" {
				t.Errorf("a published record was changed: %s", show(before))
			}
		})
	}
}

// TestAlterNewcomer is the last check but one of A8 for somebody outside the ISR.
func TestAlterNewcomer(t *testing.T) {
	for _, tc := range []struct {
		name string
		do   func(k *court, q *partition.Alter)
		want partition.Code
	}{
		{"sound", func(k *court, q *partition.Alter) {}, partition.OK},
		{"fenced", func(k *court, q *partition.Alter) { k.c.Fence(2, k.epoch[2], k.now) }, partition.IneligibleReplica},
		{"its session ended just now", func(k *court, q *partition.Alter) {
			k.now = k.now.Add(courtTTL / 2)
			k.beat(2)
			k.now = k.now.Add(courtTTL / 2)
		}, partition.IneligibleReplica},
		{"stopping", func(k *court, q *partition.Alter) { k.c.Stop(2, k.epoch[2], k.now) }, partition.IneligibleReplica},
		{"registered, not ready", func(k *court, q *partition.Alter) {
			k.c.Fence(2, k.epoch[2], k.now)
			k.ok("register", k.register(2, partition.Clean))
			q.ISR[2] = k.member(2)
		}, partition.IneligibleReplica},
		{"another life", func(k *court, q *partition.Alter) {
			k.c.Fence(2, k.epoch[2], k.now)
			k.up(2, partition.Suspect)
		}, partition.IneligibleReplica},
		{"life not told", func(k *court, q *partition.Alter) { q.ISR[2].BrokerEpoch = -1 }, partition.IneligibleReplica},
		{"log not told", func(k *court, q *partition.Alter) { q.ISR[2].LogID = partition.UUID{} }, partition.InvalidRequest},
		{"a new log", func(k *court, q *partition.Alter) { q.ISR[2].LogID = uuid(5) }, partition.OK},
	} {
		t.Run(tc.name, func(t *testing.T) {
			k := threeUp(t, ControllerOptions{})
			id := k.topic("t", 2, 0, 1, 2)
			k.alter(id, 0, 1)
			q := k.proposal(id, 0, 1, 2)
			tc.do(k, q)
			if got := k.c.Alter(q, k.now).Code; got != tc.want {
				t.Errorf("Alter = %v; want %v", got, tc.want)
			}
			k.want(id, map[bool]string{true: "012// 0 e0", false: "01// 0 e0"}[tc.want == partition.OK])
		})
	}
}

// TestAlterRefusedCopy: a leader that heard INELIGIBLE_REPLICA counts without the
// newcomer again, so a copy of that proposal that was under way must not be taken
// once the newcomer has become eligible. The next proposal is.
func TestAlterRefusedCopy(t *testing.T) {
	k := threeUp(t, ControllerOptions{})
	id := k.topic("t", 2, 0, 1, 2)
	k.alter(id, 0, 1)
	k.c.Fence(2, k.epoch[2], k.now)
	q := k.proposal(id, 0, 1, 2)
	q.Seq = 8
	for range 2 {
		if a := k.c.Alter(q, k.now); a.Code != partition.IneligibleReplica || a.Seq != 8 {
			t.Fatalf("Alter = %+v", a)
		}
		// The same life comes back.
		k.ok("register", k.c.Register(&partition.Register{Node: 2, ClusterID: "c", Incarnation: uuid(k.lives)}, k.now).Code)
		k.ready(2)
	}
	q.Seq = 9
	k.ok("next", k.c.Alter(q, k.now).Code)
	k.ok("again", k.c.Alter(q, k.now).Code)
	k.want(id, "012// 0 e0")
}

// TestELR is A12's table.
func TestELR(t *testing.T) {
	k := threeUp(t, ControllerOptions{})
	id := k.topic("t", 2, 0, 1, 2)
	k.want(id, "012// 0 e0")
	k.alter(id, 0, 1, 2)
	k.down(0)
	k.want(id, "12// 1 e1")
	k.down(0, 1)
	k.want(id, "2/1/ 2 e2")
	k.down(0, 1, 2)
	k.want(id, "/12/ - e3")
	k.up(2, partition.Suspect)
	k.want(id, "/1/2 - e3")
	k.up(0, partition.Clean) // it was forgotten
	k.want(id, "/1/2 - e3")
	k.ok("register", k.register(1, partition.Clean))
	k.want(id, "/1/2 - e3") // not yet: it has not read the records
	k.ready(1)
	k.want(id, "1//2 1 e4")
	k.alter(id, 1, 2)
	k.want(id, "12// 1 e4")
}

// TestEvidence is R4: what a new life of a node makes of its old entries.
func TestEvidence(t *testing.T) {
	register := func(e partition.Evidence, previous, boot int64, durable bool) func(k *court) {
		return func(k *court) {
			k.lives++
			q := partition.Register{Node: 1, ClusterID: "c", Incarnation: uuid(k.lives), BootID: uuid(uint64(boot)), Evidence: e, Durable: durable, Previous: previous}
			if previous == 0 {
				q.Previous = k.epoch[1]
			}
			a := k.c.Register(&q, k.now)
			k.ok("register", a.Code)
			k.epoch[1] = a.BrokerEpoch
		}
	}
	for _, tc := range []struct {
		name  string
		lives []func(k *court)
		want  string
	}{
		{"clean", []func(*court){register(partition.Clean, 0, 78, false)}, "/1/ - e2"},
		{"clean, the marker of another life", []func(*court){register(partition.Clean, 1, 77, false)}, "//1 - e2"},
		{"clean without a marker", []func(*court){register(partition.Clean, -1, 77, false)}, "//1 - e2"},
		{"intact, same boot", []func(*court){register(partition.Intact, -1, 77, false)}, "/1/ - e2"},
		{"intact, another boot", []func(*court){register(partition.Intact, -1, 78, false)}, "//1 - e2"},
		{"intact, another boot, durable now only", []func(*court){register(partition.Intact, -1, 78, true)}, "//1 - e2"},
		{"suspect", []func(*court){register(partition.Suspect, 0, 77, true)}, "//1 - e2"},
		{"twice clean", []func(*court){register(partition.Clean, 0, 1, false), register(partition.Clean, 0, 2, false)}, "/1/ - e2"},
		{"durable across boots", []func(*court){register(partition.Clean, 0, 78, true), register(partition.Intact, -1, 79, true)}, "/1/ - e2"},
		{"suspect, then clean", []func(*court){register(partition.Suspect, -1, 77, false), register(partition.Clean, 0, 77, false)}, "//1 - e2"},
		{"clean, then suspect", []func(*court){register(partition.Clean, 0, 77, false), register(partition.Suspect, -1, 77, false)}, "//1 - e2"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			k := threeUp(t, ControllerOptions{})
			id := k.topic("t", 2, 0, 1)
			k.alter(id, 0, 1)
			k.ok("decline", k.c.Decline(id, 0, k.epoch[0], 0, k.now)) // 0 is out of it
			k.want(id, "1//0 1 e1")
			k.down(0, 1)
			k.want(id, "/1/0 - e2")
			k.up(0, partition.Clean) // an entry in lastKnown is not carried over
			for _, life := range tc.lives {
				k.c.Fence(1, k.epoch[1], k.now)
				life(k)
			}
			want := strings.Replace(strings.Replace(tc.want, "//1 ", "//01 ", 1), "/1/ ", "/1/0 ", 1)
			k.want(id, want)
			r := k.c.Record(id)
			if len(r.ELR) > 0 && (r.ELR[0].BrokerEpoch != k.epoch[1] || r.ELR[0].LogID != logOf(1)) {
				t.Errorf("carried over as %+v, the life is %d", r.ELR[0], k.epoch[1])
			}
			k.ready(1)
			if elected := k.c.Record(id).Leader == 1; elected != strings.HasPrefix(tc.want, "/1/") {
				t.Errorf("afterwards %s", show(k.c.Record(id)))
			}
		})
	}
}

// TestEvidenceByLog: R4 for each log. A log that lost its tail, or is gone, takes
// only its own entry with it.
func TestEvidenceByLog(t *testing.T) {
	k := threeUp(t, ControllerOptions{})
	var ids []partition.ID
	for i := range 6 {
		ids = append(ids, k.topic(fmt.Sprint("t", i), 2, 0, 1))
		if i != 5 {
			k.alter(ids[i], 0, 1) // the log ids of the last one are not known yet
		}
	}
	k.down(0, 1)
	for _, boot := range []uint64{77, 78} { // the second time over a power cut
		k.lives++
		q := partition.Register{Node: 0, ClusterID: "c", Incarnation: uuid(k.lives), BootID: uuid(boot), Evidence: partition.Intact, Previous: -1, Logs: []partition.LogEvidence{
			{ID: ids[0], Evidence: partition.Intact},
			{ID: ids[1], Evidence: partition.Suspect, Durable: true},
			{ID: ids[2], Evidence: partition.Clean},
			{ID: ids[3], Evidence: partition.Intact, Durable: true},
			{ID: partition.ID{Partition: 9}, Evidence: partition.Clean},
		}}
		a := k.c.Register(&q, k.now)
		k.ok("register", a.Code)
		k.epoch[0] = a.BrokerEpoch
		want := []string{"/01/ - e1", "/1/0 - e1", "/01/ - e1", "/01/ - e1", "/1/0 - e1", "/01/ - e1"}
		if boot == 78 { // what was not durable may have lost its tail
			want[0], want[2] = "/1/0 - e1", "/1/0 - e1"
		}
		for i, id := range ids {
			if got := show(k.c.Record(id)); got != want[i] {
				t.Errorf("boot %d, log %d: %s; want %s", boot, i, got, want[i])
			}
		}
		k.ok("fence", k.c.Fence(0, k.epoch[0], k.now))
	}
	// The marker, and all logs closed.
	k.lives++
	q := partition.Register{Node: 0, ClusterID: "c", Incarnation: uuid(k.lives), BootID: uuid(79), Evidence: partition.Clean, Previous: k.epoch[0],
		Logs: []partition.LogEvidence{{ID: ids[3], Evidence: partition.Clean}}}
	k.ok("register", k.c.Register(&q, k.now).Code)
	k.want(ids[3], "/01/ - e1")
	k.want(ids[5], "/01/ - e1")
}

// TestR21_AllAtOnce: of nodes that die together none is left to be the only
// candidate, whatever the order in which the coordinator comes to know.
func TestR21_AllAtOnce(t *testing.T) {
	k := threeUp(t, ControllerOptions{})
	id := k.topic("t", 2, 0, 1, 2)
	k.alter(id, 0, 1, 2)
	rev := k.c.Since(0).Revision
	k.now = k.now.Add(2 * courtTTL)
	if next := k.c.Tick(k.now); !next.IsZero() {
		t.Errorf("Tick again at %v, with nobody alive", next)
	}
	k.want(id, "/012/ - e1")
	if r := k.c.Record(id); r.PartitionEpoch != 2 {
		t.Errorf("partition epoch %d: not one step", r.PartitionEpoch)
	}
	ch := k.c.Since(rev)
	if len(ch.Records) != 1 || len(ch.Nodes) != 3 || ch.Full {
		t.Errorf("changes %+v", ch)
	}
	// One by one it is a matter of order: who is forgotten was below min ISR no more.
	k = threeUp(t, ControllerOptions{})
	id = k.topic("t", 2, 0, 1, 2)
	for n := range int32(3) {
		k.ok("fence", k.c.Fence(n, k.epoch[n], k.now))
	}
	k.want(id, "/12/ - e3")
}

// TestR22_CleanElection: S17's record, in each order of return; the first one that
// is live and complete leads alone, and all others keep what they have.
func TestR22_CleanElection(t *testing.T) {
	for _, order := range [][]int32{{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}} {
		t.Run(fmt.Sprint(order), func(t *testing.T) {
			k := threeUp(t, ControllerOptions{})
			id := k.topic("t", 2, 0, 1, 2)
			k.alter(id, 0, 1, 2)
			k.down(0, 1, 2)
			k.want(id, "/012/ - e1")
			first := order[0]
			for i, n := range order {
				k.up(n, partition.Intact)
				r := k.c.Record(id)
				if r.Leader != first || len(r.ISR) != 1 || len(r.ELR) != 2 || r.LeaderEpoch != 2 {
					t.Fatalf("after return %d: %s", i, show(r))
				}
				for _, m := range r.ELR {
					if back := m.BrokerEpoch == k.epoch[m.Node]; !back {
						t.Fatalf("ELR has %v, its life is %d", m, k.epoch[m.Node])
					}
				}
			}
			// The leader's machine burns down: one of the ELR leads in the same step.
			k.down(first)
			r := k.c.Record(id)
			if r.Leader == first || r.Leader == partition.None || len(r.ISR) != 1 || len(r.ELR) != 2 || r.LeaderEpoch != 3 {
				t.Fatalf("after the leader's end: %s", show(r))
			}
		})
	}
	t.Run("suspect last one standing, S19", func(t *testing.T) {
		k := threeUp(t, ControllerOptions{})
		id := k.topic("t", 2, 0, 1, 2)
		k.down(0)
		k.down(0, 1)
		k.want(id, "2/1/ 2 e2")
		k.c.Fence(2, k.epoch[2], k.now)
		k.up(2, partition.Suspect) // it lost its tail
		k.want(id, "/1/2 - e3")
		k.up(1, partition.Intact)
		k.want(id, "1//2 1 e4")
	})
	t.Run("min 1, the last of the ISR is away, S22", func(t *testing.T) {
		k := threeUp(t, ControllerOptions{})
		id := k.topic("t", 1, 0, 1, 2)
		k.alter(id, 0)
		k.want(id, "0// 0 e0")
		k.down(0)
		k.want(id, "/0/ - e1") // 1 and 2 are up
		k.up(0, partition.Intact)
		k.want(id, "0// 0 e2")
	})
	t.Run("nobody is known to be complete", func(t *testing.T) {
		k := threeUp(t, ControllerOptions{})
		id := k.topic("t", 2, 0, 1, 2)
		k.down(0, 1, 2)
		for n := range int32(3) {
			k.up(n, partition.Suspect)
		}
		k.want(id, "//012 - e1")
		if code := k.c.ElectPreferred(id, k.now); code != partition.IneligibleReplica {
			t.Errorf("ElectPreferred = %v", code)
		}
	})
}

// TestR24_Decline: S30, S32, S88.
func TestR24_Decline(t *testing.T) {
	k := threeUp(t, ControllerOptions{})
	id := k.topic("t", 2, 0, 1, 2)
	for _, tc := range []struct {
		name  string
		node  int32
		epoch int64
		le    int32
		want  partition.Code
	}{
		{"stale life", 0, k.epoch[0] - 1, 0, partition.StaleBrokerEpoch},
		{"not the leader", 1, k.epoch[1], 0, partition.InvalidRequest},
		{"epoch above", 0, k.epoch[0], 1, partition.NotController},
		{"epoch below", 0, k.epoch[0], -1, partition.FencedLeaderEpoch},
	} {
		if got := k.c.Decline(id, tc.node, tc.epoch, tc.le, k.now); got != tc.want {
			t.Errorf("%s: %v; want %v", tc.name, got, tc.want)
		}
	}
	if got := k.c.Decline(partition.ID{}, 0, k.epoch[0], 0, k.now); got != partition.UnknownTopicID {
		t.Errorf("unknown partition: %v", got)
	}
	k.want(id, "012// 0 e0")
	k.ok("decline", k.c.Decline(id, 0, k.epoch[0], 0, k.now))
	k.want(id, "12// 1 e1") // ISR ≥ min: nothing to remember
	k.ok("decline", k.c.Decline(id, 1, k.epoch[1], 1, k.now))
	k.want(id, "2//1 2 e2")
	if got := k.c.Decline(id, 1, k.epoch[1], 1, k.now); got != partition.FencedLeaderEpoch {
		t.Errorf("declined again: %v", got)
	}
	k.ok("decline", k.c.Decline(id, 2, k.epoch[2], 2, k.now))
	k.want(id, "//12 - e3")
	k.ready(2) // it is up all the time
	k.want(id, "//12 - e3")
}

// TestMinISR is the rule of the value in force (R20, S74).
func TestMinISR(t *testing.T) {
	k := threeUp(t, ControllerOptions{})
	id := k.topic("t", 5, 0, 1, 2)
	min := func(want int32) {
		t.Helper()
		if got := k.c.Record(id).MinISR; got != want {
			t.Fatalf("min ISR in force %d; want %d", got, want)
		}
	}
	set := func(n int32) {
		t.Helper()
		if err := k.c.SetMinISR("t", n, k.now); err != nil {
			t.Fatal(err)
		}
	}
	min(3) // all of them (S6)
	k.alter(id, 0, 1)
	k.want(id, "01/2/ 0 e0")
	set(2)
	min(2)
	k.want(id, "01// 0 e0")
	k.alter(id, 0)
	k.want(id, "0/1/ 0 e0")
	set(3) // given up, whoever was complete by another measure
	min(3)
	k.want(id, "0// 0 e0")
	k.alter(id, 0, 1)
	k.want(id, "01// 0 e0")
	k.down(0, 1)
	k.want(id, "/01/ - e1")
	set(1) // not while nobody leads: it would forget one of them
	min(3)
	k.want(id, "/01/ - e1")
	k.up(1, partition.Intact)
	k.want(id, "1/0/ 1 e2")
	min(3) // nor with the election: who was elected may decline
	k.ok("decline", k.c.Decline(id, 1, k.epoch[1], 2, k.now))
	k.want(id, "/0/1 - e3")
	k.up(0, partition.Intact)
	k.want(id, "0//1 0 e4")
	k.alter(id, 0, 2)
	min(1)
	k.want(id, "02// 0 e4")
	if err := k.c.SetMinISR("u", 1, k.now); !errors.Is(err, ErrUnknownTopic) {
		t.Errorf("SetMinISR of no topic: %v", err)
	}
}

// TestS25_Register: F18, K-16952.
func TestS25_Register(t *testing.T) {
	k := newCourt(t, ControllerOptions{})
	q := partition.Register{Node: 4, ClusterID: "c", Incarnation: uuid(1), Previous: -1}
	first := k.c.Register(&q, k.now)
	k.ok("register", first.Code)
	if n := k.c.Node(4); !n.Fenced || n.BrokerEpoch != first.BrokerEpoch || n.Revision != first.BrokerEpoch {
		t.Errorf("node after its registration: %+v", n)
	}
	k.ok("ready", k.c.Ready(4, first.BrokerEpoch, k.now))
	if again := k.c.Register(&q, k.now); again != first {
		t.Errorf("the same incarnation again: %+v; want %+v", again, first)
	}
	if k.c.Node(4).Fenced {
		t.Error("a copy of the registration fenced the node")
	}
	other := q
	other.Incarnation = uuid(2)
	for _, tc := range []struct {
		name string
		do   func(q *partition.Register)
		want partition.Code
	}{
		{"another incarnation while the first lives", func(q *partition.Register) {}, partition.DuplicateRegistration},
		{"another cluster", func(q *partition.Register) { q.ClusterID = "d" }, partition.InconsistentClusterID},
		{"no incarnation", func(q *partition.Register) { q.Incarnation = partition.UUID{} }, partition.InvalidRequest},
		{"node below 0", func(q *partition.Register) { q.Node = -2 }, partition.InvalidRequest},
		{"no such evidence", func(q *partition.Register) { q.Evidence = 7 }, partition.InvalidRequest},
	} {
		q := other
		tc.do(&q)
		if got := k.c.Register(&q, k.now); got.Code != tc.want || got.BrokerEpoch != -1 {
			t.Errorf("%s: %+v; want %v", tc.name, got, tc.want)
		}
	}
	k.now = k.now.Add(courtTTL)
	second := k.c.Register(&other, k.now)
	if second.Code != partition.OK || second.BrokerEpoch <= first.BrokerEpoch {
		t.Errorf("after the session's end: %+v, the first was %+v", second, first)
	}
	if code := k.c.KeepAlive(4, first.BrokerEpoch, k.now); code != partition.StaleBrokerEpoch {
		t.Errorf("the first life's keep-alive: %v", code)
	}
	if code := k.c.Ready(4, first.BrokerEpoch, k.now); code != partition.StaleBrokerEpoch {
		t.Errorf("the first life is ready: %v", code)
	}
}

// TestS26_QuickBounce: a node is back before its leader, or anybody, has noticed.
func TestS26_QuickBounce(t *testing.T) {
	k := threeUp(t, ControllerOptions{})
	id := k.topic("t", 2, 0, 1, 2)
	k.alter(id, 0, 1, 2)
	shrink := k.proposal(id, 0, 1, 2) // K-7235: of the record with the old entry
	old := k.epoch[1]
	k.ok("fence", k.c.Fence(1, old, k.now)) // its process is known to be gone
	k.ok("register", k.register(1, partition.Intact))
	k.want(id, "02// 0 e0")
	k.ready(1)
	k.want(id, "02// 0 e0")
	if a := k.c.Alter(shrink, k.now); a.Code != partition.InvalidUpdateVersion || show(a.Record) != "02// 0 e0" {
		t.Errorf("proposal with the old entry: %+v", a)
	}
	k.alter(id, 0, 1, 2)
	if m, _ := partition.Find(k.c.Record(id).ISR, 1); m.BrokerEpoch != k.epoch[1] || m.BrokerEpoch == old {
		t.Errorf("member %+v", m)
	}

	// The session has ended and nobody ticked: the registration voids the entry of
	// the leader itself.
	k.now = k.now.Add(courtTTL / 2)
	k.beat(0)
	k.now = k.now.Add(courtTTL / 2)
	k.up(0, partition.Intact)
	k.want(id, "12// 1 e1")

	// Below min ISR a node that lost nothing stays a candidate, in its new life.
	k.alter(id, 1)
	k.want(id, "1/2/ 1 e1")
	k.ok("fence", k.c.Fence(2, k.epoch[2], k.now))
	k.up(2, partition.Intact)
	k.want(id, "1/2/ 1 e1")
	if m := k.c.Record(id).ELR[0]; m.BrokerEpoch != k.epoch[2] {
		t.Errorf("ELR has %v, the life is %d", m, k.epoch[2])
	}
}

// TestS27_StaleCatchUp: KIP-903.
func TestS27_StaleCatchUp(t *testing.T) {
	k := threeUp(t, ControllerOptions{})
	id := k.topic("t", 2, 0, 1, 2)
	k.alter(id, 0, 1)
	expand := k.proposal(id, 0, 1, 2)
	k.ok("fence", k.c.Fence(2, k.epoch[2], k.now))
	k.up(2, partition.Suspect) // an empty disk
	if a := k.c.Alter(expand, k.now); a.Code != partition.IneligibleReplica {
		t.Errorf("Alter = %v", a.Code)
	}
	k.want(id, "01// 0 e0")
}

// TestS29_Stop: what stops joins nothing, and hands over what it leads (A9, A14).
func TestS29_Stop(t *testing.T) {
	k := threeUp(t, ControllerOptions{})
	id := k.topic("t", 2, 0, 1, 2)
	other := k.topic("u", 2, 1, 0, 2)
	k.alter(id, 0, 1, 2)
	k.ok("stop", k.c.Stop(0, k.epoch[0], k.now))
	k.ok("stop again", k.c.Stop(0, k.epoch[0], k.now))
	k.want(id, "012// 0 e0")   // leads on
	k.want(other, "12// 1 e0") // has left
	k.down()                   // somebody else's step takes nothing from it
	k.want(id, "012// 0 e0")   //
	expand := k.proposal(other, 0, 1, 2)
	if a := k.c.Alter(expand, k.now); a.Code != partition.IneligibleReplica {
		t.Errorf("expand by a stopping node: %v", a.Code)
	}
	if code := k.c.KeepAlive(0, k.epoch[0], k.now); code != partition.OK {
		t.Errorf("keep-alive while it stops: %v", code)
	}
	for _, tc := range []struct {
		name     string
		from, to int32
		epoch    int64
		le       int32
		want     partition.Code
	}{
		{"stale life", 0, 1, k.epoch[0] - 1, 0, partition.StaleBrokerEpoch},
		{"epoch above", 0, 1, k.epoch[0], 1, partition.NotController},
		{"epoch below", 0, 1, k.epoch[0], -1, partition.FencedLeaderEpoch},
		{"not the leader", 1, 2, k.epoch[1], 0, partition.InvalidRequest},
		{"to itself", 0, 0, k.epoch[0], 0, partition.InvalidRequest},
		{"to nobody", 0, 7, k.epoch[0], 0, partition.IneligibleReplica},
	} {
		if a := k.c.Handover(id, tc.from, tc.epoch, tc.to, tc.le, k.now); a.Code != tc.want {
			t.Errorf("hand over, %s: %v; want %v", tc.name, a.Code, tc.want)
		}
	}
	k.ok("hand over", k.c.Handover(id, 0, k.epoch[0], 2, 0, k.now).Code)
	k.want(id, "12// 2 e1")
	k.ok("fence", k.c.Fence(0, k.epoch[0], k.now))
	if code := k.c.KeepAlive(0, k.epoch[0], k.now); code != partition.StaleBrokerEpoch {
		t.Errorf("keep-alive after its end: %v", code)
	}
	late := partition.Register{Node: 0, ClusterID: "c", Incarnation: uuid(1)} // its first one
	if a := k.c.Register(&late, k.now); a.Code != partition.StaleBrokerEpoch {
		t.Errorf("a late copy of its registration: %v", a.Code)
	}
	if code := k.c.Ready(0, k.epoch[0], k.now); code != partition.StaleBrokerEpoch {
		t.Errorf("a late ready: %v", code)
	}
	k.up(0, partition.Clean)
	k.alter(id, 0, 1, 2)
	k.ok("preferred", k.c.ElectPreferred(id, k.now))
	k.want(id, "012// 0 e2")
	k.ok("preferred", k.c.ElectPreferred(id, k.now))
	k.want(id, "012// 0 e2")

	// The last one of the ISR has nobody to hand over to.
	k.alter(other, 0, 1, 2)
	k.alter(other, 1)
	k.ok("stop", k.c.Stop(1, k.epoch[1], k.now))
	k.want(other, "1/02/ 1 e0")
	k.ok("fence", k.c.Fence(1, k.epoch[1], k.now))
	k.want(other, "0/12/ 0 e1") // the ELR goes on, and forgets nobody
}

// TestS33_FencedLastLeader: K-19522.
func TestS33_FencedLastLeader(t *testing.T) {
	k := threeUp(t, ControllerOptions{})
	id := k.topic("t", 2, 0, 1, 2)
	k.alter(id, 0)
	k.want(id, "0/12/ 0 e0")
	k.down(0, 1)
	k.want(id, "2/01/ 2 e1") // in one step: not 1, which is dead too
	k.down(0, 1, 2)
	k.want(id, "/012/ - e2")
	k.ok("register", k.register(0, partition.Clean))
	if code := k.c.ElectPreferred(id, k.now); code != partition.IneligibleReplica {
		t.Errorf("ElectPreferred of a fenced node: %v", code)
	}
	k.want(id, "/012/ - e2")
	// The session of one that was never ready ends, and it says that it is now.
	k.now = k.now.Add(courtTTL)
	if code := k.c.Ready(0, k.epoch[0], k.now); code != partition.StaleBrokerEpoch {
		t.Errorf("ready after its session: %v", code)
	}
	k.want(id, "/012/ - e2")
}

// TestS72_Unassigned: a state from elsewhere whose ISR has somebody who is no
// replica any more. It is not kept, and whoever is left of the ISR goes on.
func TestS72_Unassigned(t *testing.T) {
	var state []byte
	k := threeUp(t, ControllerOptions{Store: func(b []byte) error { state = b; return nil }})
	id := k.topic("t", 2, 0, 1, 2)
	k.alter(id, 0, 1, 2)
	p := k.c.byID[id]
	p.rec = p.rec.Clone()
	p.rec.Replicas, p.line = []int32{0, 1}, nil
	k.c.revision++
	k.ok("store", k.c.Ready(0, k.epoch[0], k.now))
	// In one process: the next decision about the record takes it out.
	k.ok("stop", k.c.Stop(2, k.epoch[2], k.now))
	k.want(id, "01// 0 e0")
	if a := k.c.Alter(k.proposal(id, 0, 1, 2), k.now); a.Code != partition.InvalidRequest {
		t.Errorf("proposal with somebody who is no replica: %v", a.Code)
	}
	// After a restart: the first one, before anybody reads.
	c, err := LoadController(state, ControllerOptions{ClusterID: "c"})
	if err != nil {
		t.Fatal(err)
	}
	if got := show(c.Record(id)); got != "/01/ - e1" {
		t.Errorf("loaded as %s", got)
	}
}

// TestKeepAlive: what is told when (R28), and that only Tick or another decision
// ends a session.
func TestKeepAlive(t *testing.T) {
	k := newCourt(t, ControllerOptions{})
	if code := k.c.KeepAlive(1, 0, k.now); code != partition.StaleBrokerEpoch {
		t.Errorf("of nobody: %v", code)
	}
	k.ok("register", k.register(1, partition.Suspect))
	if code := k.c.KeepAlive(1, k.epoch[1], k.now); code != partition.IneligibleReplica {
		t.Errorf("before it is ready: %v", code)
	}
	k.ready(1)
	if next := k.c.Tick(k.now); !next.Equal(k.now.Add(courtTTL)) {
		t.Errorf("Tick again at %v, want in %v", next, courtTTL)
	}
	k.now = k.now.Add(courtTTL)
	k.ok("late, but nobody knows", k.c.KeepAlive(1, k.epoch[1], k.now))
	k.ok("a clock that steps back", k.c.KeepAlive(1, k.epoch[1], k.now.Add(-time.Hour)))
	k.now = k.now.Add(courtTTL - 1)
	k.c.Tick(k.now)
	k.ok("in time", k.c.KeepAlive(1, k.epoch[1], k.now))
	k.now = k.now.Add(courtTTL)
	k.c.Tick(k.now)
	if code := k.c.KeepAlive(1, k.epoch[1], k.now); code != partition.StaleBrokerEpoch {
		t.Errorf("after its end: %v", code)
	}
	a := k.c.Register(&partition.Register{Node: 1, ClusterID: "c", Incarnation: uuid(k.lives)}, k.now)
	if a.Code != partition.OK || a.BrokerEpoch != k.epoch[1] {
		t.Errorf("the same process returns: %+v, it was %d", a, k.epoch[1])
	}
	if code := k.c.KeepAlive(1, k.epoch[1], k.now); code != partition.IneligibleReplica {
		t.Errorf("returned, not ready: %v", code)
	}
	k.ready(1)
	k.ok("ready", k.c.KeepAlive(1, k.epoch[1], k.now))
}

func TestTopics(t *testing.T) {
	k := newCourt(t, ControllerOptions{})
	if _, _, err := k.c.CreateTopic("t", TopicSpec{Partitions: 1, ReplicationFactor: 1}, k.now); err == nil {
		t.Error("a topic without nodes")
	}
	for n := range int32(4) {
		k.up(n, partition.Suspect)
	}
	k.c.Fence(2, k.epoch[2], k.now)
	id, records, err := k.c.CreateTopic("spread", TopicSpec{Partitions: 5, ReplicationFactor: 2, Config: map[string]string{"a": "b"}}, k.now)
	if err != nil {
		t.Fatal(err)
	}
	got := ""
	for _, r := range records {
		got += fmt.Sprint(r.Replicas)
		if r.MinISR != 1 || r.Leader != r.Replicas[0] || len(r.ISR) != 2 || r.ID.Topic != id || r != k.c.Record(r.ID) {
			t.Errorf("record %+v", r)
		}
	}
	if want := "[0 1][1 3][3 0][0 1][1 3]"; got != want {
		t.Errorf("replicas %s; want %s", got, want)
	}
	if tp, ok := k.c.Topic("spread"); !ok || tp.ID != id || tp.Partitions != 5 || tp.MinISR != 1 || tp.Config["a"] != "b" {
		t.Errorf("topic %+v, %v", tp, ok)
	}
	for _, tc := range []struct {
		name string
		spec TopicSpec
	}{
		{"spread", TopicSpec{Partitions: 1, ReplicationFactor: 1}},
		{"no/name", TopicSpec{Partitions: 1, ReplicationFactor: 1}},
		{"t", TopicSpec{ReplicationFactor: 1}},
		{"t", TopicSpec{Partitions: 1 << 30, ReplicationFactor: 1}},
		{"t", TopicSpec{Partitions: 1}},
		{"t", TopicSpec{Partitions: 1, ReplicationFactor: 4}},
		{"t", TopicSpec{Partitions: 1, ReplicationFactor: 1 << 30}},
		{"t", TopicSpec{Replicas: [][]int32{}}},
		{"t", TopicSpec{Replicas: [][]int32{{0}}, Partitions: 2}},
		{"t", TopicSpec{Replicas: [][]int32{{0}, {}}}},
		{"t", TopicSpec{Replicas: [][]int32{{0, 1, 0}}}},
		{"t", TopicSpec{Replicas: [][]int32{{0, -1}}}},
		{"t", TopicSpec{Replicas: [][]int32{{0}, {2, 8}}}}, // none of them is up
	} {
		if _, _, err := k.c.CreateTopic(tc.name, tc.spec, k.now); err == nil {
			t.Errorf("CreateTopic(%q, %+v) went well", tc.name, tc.spec)
		}
	}
	// Replicas of which some are away are not in sync.
	k.want(k.topic("t", 2, 2, 1, 8, 3), "13// 1 e0")

	if err := k.c.DeleteTopic("spread", k.now); err != nil {
		t.Fatal(err)
	}
	if err := k.c.DeleteTopic("spread", k.now); !errors.Is(err, ErrUnknownTopic) {
		t.Errorf("deleted again: %v", err)
	}
	again, _, err := k.c.CreateTopic("spread", TopicSpec{Partitions: 1, ReplicationFactor: 1}, k.now)
	if err != nil || again == id {
		t.Errorf("made again: %v, %v", again, err)
	}
	if k.c.Record(records[0].ID) != nil {
		t.Error("the deleted partition has a record")
	}
}

// TestSince: somebody who asks again and again knows the same as somebody who asks
// for everything.
func TestSince(t *testing.T) {
	k := threeUp(t, ControllerOptions{})
	rev := k.c.Since(0).Revision
	id := k.topic("t", 2, 0, 1, 2)
	gone := k.topic("u", 2, 0, 1, 2)
	ch := k.c.Since(rev)
	if ch.Full || len(ch.Topics) != 2 || len(ch.Records) != 2 || len(ch.Nodes) != 0 {
		t.Fatalf("changes %+v", ch)
	}
	rev = ch.Revision
	if ch = k.c.Since(rev); ch.Full || len(ch.Topics)+len(ch.Records)+len(ch.Nodes) != 0 || ch.Revision != rev {
		t.Errorf("nothing changed: %+v", ch)
	}
	k.alter(id, 0, 1)
	k.alter(id, 0)
	k.alter(gone, 0)
	if err := k.c.DeleteTopic("u", k.now); err != nil {
		t.Fatal(err)
	}
	ch = k.c.Since(rev)
	if len(ch.Records) != 1 || ch.Records[0] != k.c.Record(id) || len(ch.Topics) != 1 || !ch.Topics[0].Deleted || ch.Topics[0].ID != gone.Topic || ch.Topics[0].Partitions != 1 {
		t.Errorf("changes %+v", ch)
	}
	full := k.c.Since(0)
	if !full.Full || len(full.Records) != 1 || len(full.Topics) != 1 || len(full.Nodes) != 3 {
		t.Errorf("everything: %+v", full)
	}
	// Deleted topics are not remembered for ever: who asks from before hears everything.
	for range maxDeleted + 1 {
		k.topic("v", 1, 0)
		if err := k.c.DeleteTopic("v", k.now); err != nil {
			t.Fatal(err)
		}
	}
	if late := k.c.Since(rev); !late.Full || len(late.Topics) != 1 {
		t.Errorf("from before what was forgotten: full %v, %d topics", late.Full, len(late.Topics))
	}
	if ch := k.c.Since(k.c.compact); ch.Full || len(ch.Topics) != maxDeleted {
		t.Errorf("from what was forgotten: full %v, %d topics", ch.Full, len(ch.Topics))
	}
}

func TestProducerIDs(t *testing.T) {
	var state []byte
	fail := false
	store := func(b []byte) error {
		if fail {
			return errors.New("disk")
		}
		state = b
		return nil
	}
	k := newCourt(t, ControllerOptions{Store: store})
	seen := map[int64]bool{}
	take := func(c *Controller) {
		t.Helper()
		id, epoch, err := c.NewProducerID()
		if err != nil || id < 0 || epoch != 0 || seen[id] {
			t.Fatalf("id %d, epoch %d, seen %v, error %v", id, epoch, seen[id], err)
		}
		seen[id] = true
	}
	for range idBlock + 10 {
		take(k.c)
	}
	c, err := LoadController(state, ControllerOptions{ClusterID: "c", Store: store})
	if err != nil {
		t.Fatal(err)
	}
	take(c)
	for range idBlock - 1 {
		take(c)
	}
	fail = true
	for range 3 {
		if id, _, err := c.NewProducerID(); id != -1 || !errors.Is(err, partition.Unknown) {
			t.Fatalf("id %d was not stored", id)
		}
	}
	fail = false
	take(c)
}

// TestNotify: it is called without locks, once something can be read.
func TestNotify(t *testing.T) {
	for _, store := range []func([]byte) error{nil, func([]byte) error { return nil }} {
		k := newCourt(t, ControllerOptions{Store: store})
		var revs []int64
		k.c.Notify = func() { revs = append(revs, k.c.Since(0).Revision) }
		k.up(0, partition.Suspect)
		k.topic("t", 1, 0)
		k.c.KeepAlive(0, k.epoch[0], k.now)
		k.c.Tick(k.now)
		if fmt.Sprint(revs) != "[1 2 4]" {
			t.Errorf("notified at revisions %v", revs)
		}
	}
}

// TestConcurrent: callers of all kinds at once, for the race detector. With a
// store, one call of it takes the changes of several along.
func TestConcurrent(t *testing.T) {
	var stores int
	k := threeUp(t, ControllerOptions{Store: func([]byte) error { stores++; time.Sleep(time.Millisecond); return nil }})
	k.c.Notify = func() { k.c.Since(0) }
	ids := make([]partition.ID, 20)
	for i := range ids {
		ids[i] = k.topic(fmt.Sprint("t", i), 2, 0, 1, 2)
	}
	stores = 0
	var wg sync.WaitGroup
	for _, id := range ids {
		wg.Go(func() {
			for i := range 10 {
				nodes := []int32{0, 1, 2}[:2+i%2]
				if a := k.c.Alter(k.proposal(id, nodes...), k.now); a.Code != partition.OK || len(a.Record.ISR) != len(nodes) {
					t.Errorf("alter: %+v", a)
				}
				k.c.KeepAlive(1, k.epoch[1], k.now)
				k.c.Node(1)
			}
		})
	}
	wg.Wait()
	if stores > 150 {
		t.Errorf("%d stores for 200 changes of 20 callers", stores)
	}
}
