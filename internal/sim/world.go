// Package sim runs the real replicas, leaders, followers and coordinator of
// packages replica and isr in one goroutine against a clock, a network and disks
// that it owns (replication §7). One seed is one history: who sends what, what is
// lost, delayed, doubled, who is killed between which two disk operations, what a
// power cut keeps.
//
// A run has two phases. First everything may fail, and after every step the
// checkers, which look from outside at logs, records and answers, look for a broken
// invariant (I1 to I26 of docs/replication.md). Then the faults stop, and what is
// left must come to rest: a leader, everybody in sync, logs equal.
//
//	world ── event heap, virtual time, one random stream for each purpose
//	 ├─ nodes     disk (vfs.Mem), life, timers, isr.Partition, replica.Fetcher
//	 ├─ coord     isr.Controller behind the same network
//	 ├─ clients   producers, consumers, an administrator
//	 ├─ schedule  faults with times, drawn before the run, so that they can be left out
//	 └─ checker   ghost state: the true high watermark, all that was ever acked
package sim

import (
	"fmt"
	"io"
	"math/bits"
	"math/rand/v2"
	"runtime/debug"
	"strings"
	"time"

	"github.com/tidemark-log/tidemark/partition"
)

// Options of a run. Seed alone decides everything that the others do not.
type Options struct {
	Seed   uint64
	Events int               // of the phase with faults. Default 20,000
	Guards *partition.Guards // switched off, for the tests of the checkers; nil is all on
	Trace  io.Writer         // gets a line for each step; nil for none

	// Schedule takes the place of the drawn faults, and Without of features that
	// the seed drew: how a history is shrunk.
	Schedule []Fault
	Fixed    bool // Schedule counts, empty too
	Without  Feature
	Partial  int // stop the run after so many events of both phases; 0 for no bound

	tune func(*config) // tests
}

// Result of a run.
type Result struct {
	Seed      uint64
	Hash      uint64 // of all events and what they did
	Events    int
	Virtual   time.Duration
	Violation *Violation // nil if no invariant was broken
	Coverage  Coverage
	Schedule  []Fault // the faults as drawn
	Config    string  // what the seed drew
}

// A Violation is a broken invariant.
type Violation struct {
	Invariant string // "I6", or "panic"
	Text      string
	At        time.Duration // virtual
	Event     int
	Stack     string // of a panic
}

func (v *Violation) Error() string {
	return fmt.Sprintf("%s broken at event %d, %v: %s", v.Invariant, v.Event, v.At, v.Text)
}

// ms and us are virtual time.
const (
	us  = int64(time.Microsecond)
	ms  = int64(time.Millisecond)
	sec = int64(time.Second)
)

// epoch is when virtual time begins.
var epoch = time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)

type world struct {
	o     Options
	c     config
	now   int64 // ns since epoch
	seq   uint64
	heap  []event
	count int
	hash  uint64

	// Streams are apart, so that a fault left out does not change what clients do.
	netRand, clientRand, nodeRand *rand.Rand

	net     network
	coord   *coord
	nodes   []*node
	clients []client
	parts   []*ghost // by partition number
	topic   partition.UUID
	byID    map[partition.ID]int
	logIDs  map[partition.UUID]int // for the trace

	schedule []Fault
	calm     bool // second phase
	settled  bool // of it: everything at rest
	calmFrom int64
	copied   int64 // the most that all replicas ever had in it, and when that grew last
	movedAt  int64
	cov      Coverage
	batches  []*sent
	stopped  bool
	lives    map[int64]partition.UUID // by broker epoch
	lastLife int64
	pidsDone []int64
}

// kinds of events.
type kind uint8

const (
	evDeliver kind = iota
	evFault
	evHeal
	evBoot
	evKeepAlive
	evTick   // isr.Partition.Tick
	evPump   // replica.Fetcher.Next
	evPark   // a parked fetch has waited long enough
	evSynced // a sync ends
	evRetry  // a request of a node was not answered
	evMaintain
	evWatch
	evStop   // a controlled stop goes on
	evRelief // so does a handover for want of room
	evClient
	evCoord
	evResume
	evPhase
	evCheck
)

// everyone is the receiver of events that are nobody's.
const (
	everyone    int32 = -3
	coordinator int32 = -2
	firstClient int32 = 100
)

type event struct {
	at   int64
	seq  uint64
	kind kind
	to   int32 // node, coordinator, client or everyone
	life int32 // of the node; 0 is any
	part int32
	arg  int64
	msg  *message
}

func (a *event) before(b *event) bool {
	if a.at != b.at {
		return a.at < b.at
	}
	return a.seq < b.seq
}

func (w *world) post(e event) {
	w.seq++
	e.seq = w.seq
	if e.at < w.now {
		e.at = w.now
	}
	w.heap = append(w.heap, e)
	i := len(w.heap) - 1
	for i > 0 {
		up := (i - 1) / 4
		if !w.heap[i].before(&w.heap[up]) {
			break
		}
		w.heap[i], w.heap[up] = w.heap[up], w.heap[i]
		i = up
	}
}

func (w *world) pop() event {
	top := w.heap[0]
	n := len(w.heap) - 1
	w.heap[0] = w.heap[n]
	w.heap[n] = event{}
	w.heap = w.heap[:n]
	for i := 0; ; {
		first, least := 4*i+1, i
		for j := first; j < min(first+4, n); j++ {
			if w.heap[j].before(&w.heap[least]) {
				least = j
			}
		}
		if least == i {
			break
		}
		w.heap[i], w.heap[least] = w.heap[least], w.heap[i]
		i = least
	}
	return top
}

// mix adds to the hash of the history.
func (w *world) mix(v uint64) {
	w.hash = bits.RotateLeft64(w.hash^v*0x9e3779b97f4a7c15, 29) * 0xbf58476d1ce4e5b9
}

func (w *world) tracef(format string, args ...any) {
	if w.o.Trace != nil {
		fmt.Fprintf(w.o.Trace, "%6d %10.3fms  %s\n", w.count, float64(w.now)/1e6, fmt.Sprintf(format, args...))
	}
}

// fail ends the run with a broken invariant.
func (w *world) fail(invariant, format string, args ...any) {
	panic(&Violation{Invariant: invariant, Text: fmt.Sprintf(format, args...)})
}

func (w *world) check(ok bool, invariant, format string, args ...any) {
	if !ok {
		w.fail(invariant, format, args...)
	}
}

// Run runs one seed.
func Run(o Options) *Result {
	if o.Events == 0 {
		o.Events = 20_000
	}
	w := &world{o: o, byID: map[partition.ID]int{}, logIDs: map[partition.UUID]int{}}
	w.netRand = rand.New(rand.NewPCG(o.Seed, 1))
	w.clientRand = rand.New(rand.NewPCG(o.Seed, 2))
	w.nodeRand = rand.New(rand.NewPCG(o.Seed, 3))
	draw := rand.New(rand.NewPCG(o.Seed, 4))
	w.c = drawConfig(draw, o.Without)
	if o.tune != nil {
		o.tune(&w.c)
	}
	w.schedule = drawSchedule(draw, &w.c)
	if o.Fixed {
		w.schedule = o.Schedule
	}
	r := &Result{Seed: o.Seed, Schedule: w.schedule, Config: w.c.String()}
	w.tracef("seed %d: %s", o.Seed, r.Config)
	r.Violation = w.run()
	w.free()
	r.Hash, r.Events, r.Virtual, r.Coverage = w.hash, w.count, time.Duration(w.now), w.cov
	if r.Violation != nil {
		w.tracef("VIOLATION %v", r.Violation)
	}
	return r
}

func (w *world) run() (v *Violation) {
	defer func() {
		r := recover()
		if r == nil {
			return
		}
		if b, ok := r.(*Violation); ok {
			v = b
		} else {
			v = &Violation{Invariant: "panic", Text: fmt.Sprint(r), Stack: string(debug.Stack())}
		}
		v.Event, v.At = w.count, time.Duration(w.now)
	}()
	w.begin()
	for len(w.heap) > 0 && !w.stopped {
		if !w.calm && w.count >= w.o.Events {
			w.beginCalm()
		}
		if w.o.Partial > 0 && w.count >= w.o.Partial {
			break
		}
		e := w.pop()
		w.now = max(w.now, e.at)
		w.handle(&e)
	}
	return nil
}

// begin starts the nodes, one soon after the other.
func (w *world) begin() {
	w.net.init(w)
	w.coord = newCoord(w)
	for i := range w.c.nodes {
		w.nodes = append(w.nodes, newNode(w, int32(i)))
		w.post(event{at: w.nodeRand.Int64N(50 * ms), kind: evBoot, to: int32(i)})
	}
	w.addClients()
	for i := range w.schedule {
		w.post(event{at: w.schedule[i].At, kind: evFault, to: everyone, arg: int64(i)})
	}
	w.post(event{at: 100 * ms, kind: evPhase, to: everyone})
	w.post(event{at: sec, kind: evCheck, to: everyone})
}

// handle does one event.
func (w *world) handle(e *event) {
	var n *node
	if e.to >= 0 && e.to < firstClient {
		n = w.nodes[e.to]
		if e.kind != evBoot && (!n.up || e.life != 0 && e.life != n.life) {
			w.drop(e)
			return
		}
		if n.pausedTo > w.now && e.kind != evBoot {
			e.at = n.pausedTo // it finds it when it goes on
			n.later = append(n.later, *e)
			return
		}
	}
	w.count++
	w.mix(uint64(w.now))
	w.mix(uint64(e.kind)<<48 ^ uint64(uint32(e.to))<<16 ^ uint64(uint32(e.part)))
	switch {
	case n != nil:
		w.onNode(n, e)
	case e.to == coordinator:
		w.coord.handle(e)
		w.checkRecords()
	case e.to >= firstClient:
		w.clients[e.to-firstClient].handle(e)
	case e.kind == evFault:
		w.inject(int(e.arg))
	case e.kind == evHeal:
		w.heal(int(e.arg))
	case e.kind == evPhase:
		w.createTopic()
	case e.kind == evCheck:
		if len(w.coord.seconds) > 0 {
			w.coord.keepSeconds()
			w.checkRecords()
		}
		w.checkSometimes()
		if w.calm {
			w.checkRest()
		}
		w.post(event{at: w.now + w.c.checkEvery, kind: evCheck, to: everyone})
	}
}

// onNode does one event of a node, which may be crashed by it.
func (w *world) onNode(n *node, e *event) {
	defer func() {
		if r := recover(); r != nil {
			c, ok := r.(crashed)
			if !ok {
				panic(r)
			}
			w.tracef("n%d crashed between two disk operations (%s)", n.id, c.how)
			n.crashedAs(c)
			w.checkNode(n, -1)
		}
	}()
	n.handle(e)
	n.fireArmed()
	switch part := int(e.part); {
	case e.kind == evTick, e.kind == evPump, e.kind == evPark, e.kind == evSynced, e.kind == evDeliver && e.msg.op.ofPart():
		w.checkNode(n, part)
	case e.kind == evKeepAlive, e.kind == evWatch, e.kind == evDeliver && e.msg.op == opKeepAlive:
	default:
		w.checkNode(n, -1)
	}
}

// drop ends an event that nobody takes.
func (w *world) drop(e *event) {
	if e.msg != nil {
		e.msg.release()
	}
}

// free gives back what a failed run holds.
func (w *world) free() {
	for i := range w.heap {
		w.drop(&w.heap[i])
	}
	w.heap = nil
}

func join[T any](list []T, f func(T) string) string {
	var b strings.Builder
	for i, x := range list {
		if i > 0 {
			b.WriteByte(' ')
		}
		b.WriteString(f(x))
	}
	return b.String()
}
