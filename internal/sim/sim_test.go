package sim

import (
	"flag"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tidemark-log/tidemark/partition"
)

var (
	seeds  = flag.Int("sim.seeds", 0, "number of seeds of TestSeeds; 0 is the default")
	first  = flag.Uint64("sim.seed", 1, "first seed of TestSeeds")
	events = flag.Int("sim.events", 0, "events of each; 0 is the default")
)

// each runs f for seeds from first on, as many at once as there are processors,
// until it says that this is enough.
func each(first uint64, n int, f func(seed uint64) bool) {
	var next atomic.Int64
	var wg sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			for {
				i := next.Add(1) - 1
				if i >= int64(n) || !f(first+uint64(i)) {
					next.Store(int64(n))
					return
				}
			}
		})
	}
	wg.Wait()
}

// TestSeeds: no seed breaks an invariant. CI runs many more with the command.
func TestSeeds(t *testing.T) {
	n, e := *seeds, *events
	if n == 0 {
		n = 30
		if testing.Short() {
			n, e = 8, max(e, 1000)
		}
	}
	if e == 0 {
		e = 3000
	}
	each(*first, n, func(seed uint64) bool {
		if r := Run(Options{Seed: seed, Events: e}); r.Violation != nil {
			t.Errorf("seed %d, %d events: %v\n%s\n%s", seed, e, r.Violation, r.Config, r.Violation.Stack)
			return false
		}
		return true
	})
}

// TestDeterminism: a seed is one history, whatever else the machine does.
func TestDeterminism(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(0))
	for seed := uint64(1); seed <= 6; seed++ {
		var got []*Result
		for _, procs := range []int{1, 4} {
			runtime.GOMAXPROCS(procs)
			got = append(got, Run(Options{Seed: seed, Events: 2000}))
		}
		if a, b := got[0], got[1]; a.Hash != b.Hash || a.Events != b.Events || a.Virtual != b.Virtual {
			t.Errorf("seed %d: hash %x after %d events, then %x after %d", seed, a.Hash, a.Events, b.Hash, b.Events)
		}
	}
	if a, b := Run(Options{Seed: 1, Events: 500}), Run(Options{Seed: 2, Events: 500}); a.Hash == b.Hash {
		t.Error("two seeds, one hash")
	}
}

// TestGuards: without a guard the checkers find that what it protects is broken, and
// not just anything. The first seed that shows it, and the step, are written to the log
// of the test; docs/replication.md §6 has them.
func TestGuards(t *testing.T) {
	for _, g := range []struct {
		name     string
		guards   partition.Guards
		protects []string
		tune     func(*config) // for those that need a rare story
	}{
		{"G1", partition.Guards{NoG1: true}, []string{"I5", "I6", "I11"}, nil},
		{"G2", partition.Guards{NoG2: true}, []string{"I5", "I6", "I11"}, nil},
		{"G4", partition.Guards{NoG4: true}, []string{"I5", "I6", "I11"}, nil},
		{"G5", partition.Guards{NoG5: true}, []string{"I5", "I6", "I17"}, nil},
		{"G6", partition.Guards{NoG6: true}, []string{"I4", "I5", "I6", "I17"}, nil},
		{"G7", partition.Guards{NoG7: true}, []string{"I5", "I6", "I14"}, slowFollowers},
		{"G11", partition.Guards{NoG11: true}, []string{"I3", "I4", "I5", "I6", "I14"}, changingLeaders},
	} {
		t.Run(g.name, func(t *testing.T) {
			var mu sync.Mutex
			var found *Result
			ran, others := 0, map[string]int{}
			each(1, 2000, func(seed uint64) bool {
				r := Run(Options{Seed: seed, Events: 5000, Guards: &g.guards, tune: g.tune, Without: Hostile})
				mu.Lock()
				defer mu.Unlock()
				ran++
				switch v := r.Violation; {
				case v == nil:
				case !slices.Contains(g.protects, v.Invariant):
					others[v.Invariant]++
				case found == nil || seed < found.Seed:
					found = r
				}
				return found == nil
			})
			if found == nil {
				t.Fatalf("nothing of %v broken in %d seeds; others: %v", g.protects, ran, others)
			}
			t.Logf("seed %d of %d: %v; others: %v", found.Seed, ran, found.Violation, others)
		})
	}
}

// changingLeaders has many leaders, one after the other, and nodes that hear late
// of them.
func changingLeaders(c *config) {
	c.nodes, c.rf, c.parts, c.minISR, c.calm, c.local = 3, 3, 1, min(c.minISR, 2), false, false
	c.kinds = Kill | KillAfter | NoCoord | Pause | OneWay | Restart
	c.faultGap = 300 * ms
	c.ttl, c.lagMax, c.backoff = 900*ms, 800*ms, 100*ms
	c.reconcile = 5 * sec
}

// slowFollowers are some batches behind, one at a time. With four of them a new leader
// whose high watermark is old can have an ISR of two while another one catches up.
func slowFollowers(c *config) {
	changingLeaders(c)
	c.nodes, c.rf, c.minISR = 4, 4, 2
	c.fetchBytes, c.netBase, c.netMean = 1, ms, 20*ms
	c.produceGap = 10 * ms
}

// TestShrink: a found history gets shorter, and what is left still shows it.
func TestShrink(t *testing.T) {
	g := &partition.Guards{NoG4: true}
	for seed := uint64(1); seed < 500; seed++ {
		o := Options{Seed: seed, Events: 6000, Guards: g}
		r := Run(o)
		if r.Violation == nil {
			continue
		}
		best, short := Shrink(o, r, time.Now().Add(3*time.Second))
		if short.Violation == nil || short.Violation.Invariant != r.Violation.Invariant {
			t.Fatalf("shrunk to %v, was %v", short.Violation, r.Violation)
		}
		var b strings.Builder
		best.Trace = &b
		if again := Run(best); again.Violation == nil || again.Violation.Error() != short.Violation.Error() {
			t.Errorf("run again: %v, want %v", again.Violation, short.Violation)
		}
		if !strings.Contains(b.String(), "VIOLATION") {
			t.Errorf("no violation in the trace:\n%s", b.String())
		}
		if len(best.Schedule) > len(r.Schedule) {
			t.Errorf("%d faults, had %d", len(best.Schedule), len(r.Schedule))
		}
		return
	}
	t.Fatal("guard G4 off, and nothing found")
}

// TestLocalAndRemote is I24: peers in one process, whose answers are views of the
// leader's memory, do the same as peers that get copies.
func TestLocalAndRemote(t *testing.T) {
	for seed := uint64(1); seed <= 8; seed++ {
		var got [2]*Result
		for i, local := range []bool{false, true} {
			got[i] = Run(Options{Seed: seed, Events: 3000, Without: NetDrop | NetDup | NetReorder | Hostile, tune: func(c *config) {
				c.local, c.netBase, c.netMean = local, 0, localMean
			}})
			if v := got[i].Violation; v != nil {
				t.Fatalf("seed %d, local %v: %v", seed, local, v)
			}
		}
		if a, b := got[0], got[1]; a.Hash != b.Hash || a.Events != b.Events {
			t.Errorf("seed %d: hash %x after %d events with copies, %x after %d with views", seed, a.Hash, a.Events, b.Hash, b.Events)
		}
	}
}

// TestHistory: a history in which a record is read before it was sent is none.
func TestHistory(t *testing.T) {
	for name, tc := range map[string]struct {
		read int64 // when the read ended
		ok   bool
	}{"after": {40, true}, "beside": {16, true}, "before it was sent": {12, false}} {
		t.Run(name, func(t *testing.T) {
			p := &producer{id: firstClient, acks: -1, idempotent: true}
			w := &world{clients: []client{p}}
			g := &ghost{w: w}
			for i, at := range []int64{5, 15} {
				w.batches = append(w.batches, &sent{producer: p, acked: true, base: int64(i), from: at, till: at + 5})
				g.canon = append(g.canon, mark{key: key{0, int64(i)}, end: int64(i) + 1, number: int64(i)})
			}
			g.reads = []clientOp{{client: firstClient + 1, read: true, base: 0, end: 2, from: 11, till: tc.read}}
			defer func() {
				if v, _ := recover().(*Violation); (v == nil) != tc.ok {
					t.Errorf("found %v", v)
				}
			}()
			w.checkHistory(g)
		})
	}
}
