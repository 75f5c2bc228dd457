package sim

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/tidemark-log/tidemark/replica"
)

// Feature is a set of what a seed may draw beside its faults.
type Feature uint32

const (
	NetDrop Feature = 1 << iota
	NetDup
	NetReorder
	Hostile
	Drift
	LateTimers
	Trimming
	Consumers
	WeakAcks // acks 0 and 1
	Writeback
	Retention // by size, and by an age that only a clock that jumps can show (F20)
	features
)

// AllFeatures is the set of all.
const AllFeatures = features - 1

// ParseFeatures reads a list of names; ok is false if there is no such.
func ParseFeatures(list string) (f Feature, ok bool) {
	for name := range strings.SplitSeq(list, ",") {
		i := slices.Index(featureNames, strings.TrimSpace(name))
		if i < 0 && name != "" {
			return 0, false
		}
		if i >= 0 {
			f |= 1 << i
		}
	}
	return f, true
}

var featureNames = []string{"drop", "dup", "reorder", "hostile", "drift", "late", "trim", "consumers", "weak acks", "writeback", "retention"}

func (f Feature) String() string {
	var s []string
	for i, name := range featureNames {
		if f&(1<<i) != 0 {
			s = append(s, name)
		}
	}
	return strings.Join(s, ", ")
}

// config is what a seed draws ("swarm"): which features are on and how large
// everything is.
type config struct {
	features                  Feature
	calm                      bool
	nodes, parts, rf, minISR  int
	syncs                     [3]replica.SyncMode // of each partition
	recovery                  replica.Recovery
	segmentBytes              int64
	local                     bool // peers in one process
	lagMax, ttl, backoff      int64
	fetchTimeout, maxWait     int64
	callTimeout, clientWait   int64
	reconcile, maintain       int64
	checkEvery                int64
	fetchBytes                int32
	netBase, netMean          int64
	drop, dup, hostile        float64
	reorder                   bool
	syncMean                  int64
	producers, consumers      int
	idempotent                float64
	produceGap                int64
	batchRecords, recordBytes int
	faultGap                  int64 // mean between two faults; 0 none
	kinds                     FaultKind
}

func (c *config) syncOf(part int) replica.SyncMode { return c.syncs[part] }

func (c *config) has(f Feature) bool { return c.features&f != 0 }

func (c *config) String() string {
	s := fmt.Sprintf("%d nodes, %d partitions, rf %d, min isr %d, sync %v, recovery %d, segments %d, lag %v, ttl %v, local %v, %d+%d clients; %v; faults every %v: %v",
		c.nodes, c.parts, c.rf, c.minISR, c.syncs[:c.parts], c.recovery, c.segmentBytes, time.Duration(c.lagMax), time.Duration(c.ttl), c.local,
		c.producers, c.consumers, c.features, time.Duration(c.faultGap), c.kinds)
	return s
}

// between draws from lo to hi, small values as often as large ones.
func between(r *rand.Rand, lo, hi int64) int64 {
	switch r.IntN(4) {
	case 0:
		return lo
	case 1:
		return lo + (hi-lo)/8
	}
	return lo + r.Int64N(hi-lo+1)
}

func pick[T any](r *rand.Rand, list ...T) T { return list[r.IntN(len(list))] }

// drawConfig draws always the same numbers, so that what is left out does not move
// the rest.
func drawConfig(r *rand.Rand, without Feature) config {
	c := config{
		calm:         r.IntN(12) == 0,
		nodes:        pick(r, 3, 3, 3, 3, 4, 5, 2),
		parts:        pick(r, 1, 1, 1, 2, 3),
		rf:           3,
		minISR:       pick(r, 1, 2, 2, 2, 3),
		recovery:     replica.Recovery(r.IntN(2)),
		segmentBytes: pick[int64](r, 4<<10, 8<<10, 16<<10),
		local:        r.IntN(4) == 0,
		lagMax:       between(r, 800*ms, 6*sec),
		ttl:          between(r, 900*ms, 4*sec),
		backoff:      between(r, 100*ms, sec),
		fetchTimeout: between(r, 700*ms, 5*sec),
		maxWait:      between(r, 100*ms, 500*ms),
		callTimeout:  between(r, 300*ms, 2*sec),
		clientWait:   between(r, 500*ms, 5*sec),
		reconcile:    between(r, 500*ms, 5*sec),
		maintain:     between(r, 300*ms, 5*sec),
		checkEvery:   200 * ms,
		fetchBytes:   int32(between(r, 200, 16<<10)),
		netBase:      pick(r, 50*us, 200*us, ms),
		netMean:      pick(r, 100*us, ms, 5*ms, 20*ms),
		drop:         pick(r, 0, 0.005, 0.03, 0.1),
		dup:          pick(r, 0, 0.01, 0.1),
		hostile:      pick(r, 0, 0, 0.02, 0.1),
		reorder:      r.IntN(2) == 0,
		syncMean:     pick(r, 100*us, ms, 5*ms, 20*ms),
		producers:    1 + r.IntN(4),
		consumers:    r.IntN(3),
		idempotent:   pick(r, 0, 0.5, 1, 1),
		produceGap:   between(r, 2*ms, 100*ms),
		batchRecords: pick(r, 1, 1, 3, 10),
		recordBytes:  pick(r, 1, 20, 300),
		faultGap:     pick(r, 300*ms, sec, 2*sec, 2*sec, 5*sec),
	}
	for i := range c.syncs {
		if c.syncs[i] = c.syncs[0]; i == 0 || r.IntN(2) == 0 {
			c.syncs[i] = pick(r, replica.Always, replica.Always, replica.Interval, replica.Never)
		}
	}
	c.rf = min(c.nodes, pick(r, 3, 3, 3, 3, 2, 1))
	c.minISR = min(c.minISR, c.rf)
	for f := Feature(1); f < features; f <<= 1 {
		if r.IntN(3) > 0 {
			c.features |= f
		}
	}
	often := pick(r, 2, 3, 6) // one kind in so many
	for k := FaultKind(1); k < faultKinds; k <<= 1 {
		if r.IntN(often) == 0 {
			c.kinds |= k
		}
	}
	if c.calm {
		c.faultGap, c.drop, c.dup, c.hostile = 0, 0, 0, 0
		c.features &^= Drift | LateTimers
	}
	c.features &^= without
	if !c.has(NetDrop) {
		c.drop = 0
	}
	if !c.has(NetDup) {
		c.dup = 0
	}
	if !c.has(NetReorder) {
		c.reorder = false
	}
	if !c.has(Hostile) {
		c.hostile = 0
	}
	if !c.has(Consumers) {
		c.consumers = 0
	}
	return c
}
