package sim

import (
	"strings"
	"sync/atomic"
	"testing"

	"github.com/tidemark-log/tidemark/partition"
)

// TestC084_PartitionAndKill: a partition of three replicas, min ISR 2, whose nodes are
// killed and cut off from one another and from the coordinator, one thing right after
// the other. Nothing acknowledged with acks=all is missing, which the checkers see when
// HW moves below min ISR. (Replicas that join and leave come with reassignment.)
func TestC084_PartitionAndKill(t *testing.T) {
	nemesis := func(c *config) {
		c.nodes, c.rf, c.parts, c.minISR, c.calm = 3, 3, 1, 2, false
		c.kinds = Kill | KillInOp | KillAfter | KillMany | Split | OneWay | NoCoord
		c.faultGap = 300 * ms
		c.ttl, c.lagMax, c.backoff = 900*ms, 800*ms, 100*ms
	}
	o := Options{Events: 4000, Without: Hostile | WeakAcks, tune: nemesis}
	seeds := 24
	if testing.Short() {
		seeds = 6
	}
	each(1, seeds, func(seed uint64) bool {
		o := o
		o.Seed = seed
		r := Run(o)
		if r.Violation != nil {
			t.Errorf("seed %d: %v\n%s\n%s", seed, r.Violation, r.Config, r.Violation.Stack)
		}
		kinds := FaultKind(0)
		for _, f := range r.Schedule {
			kinds |= f.Kind
		}
		if kinds&(Kill|KillInOp|KillAfter|KillMany) == 0 || kinds&(Split|OneWay|NoCoord) == 0 {
			t.Errorf("seed %d: only %v", seed, kinds)
		}
		return r.Violation == nil
	})
	var found atomic.Pointer[Violation]
	o.Guards = &partition.Guards{NoG6: true}
	each(1, 400, func(seed uint64) bool {
		o := o
		o.Seed = seed
		if r := Run(o); r.Violation != nil {
			found.CompareAndSwap(nil, r.Violation)
		}
		return found.Load() == nil
	})
	if v := found.Load(); v == nil || !strings.HasPrefix(v.Invariant, "I") {
		t.Errorf("with HW moving below min ISR it found %v", v)
	} else {
		t.Log(v)
	}
}
