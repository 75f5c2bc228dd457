package sim

import (
	"fmt"
	"math/rand/v2"
	"path"
	"strings"
	"syscall"
	"time"

	"github.com/tidemark-log/tidemark/internal/vfs"
	"github.com/tidemark-log/tidemark/partition"
)

// FaultKind is a kind of fault, or a set of them.
type FaultKind uint32

const (
	Kill          FaultKind = 1 << iota // F1, at once
	KillInOp                            // F1, between two disk operations
	KillAfter                           // F1, right after something changed
	Power                               // F2, at once
	PowerInOp                           // F2, between two disk operations
	PowerMany                           // F3
	Pause                               // F4
	Split                               // F5: nodes into two groups
	NoCoord                             // F5: a node without coordinator
	OneWay                              // F6
	SlowNet                             // F7
	CoordAway                           // F9
	CoordSlow                           // F10
	DiskFull                            // F13
	DiskError                           // F14
	SlowDisk                            // F15
	Restart                             // F19: controlled stops
	KillMany                            // F1 for several at once
	WallJump                            // F8: a wall clock, by hours
	ClockRate                           // F8: a monotonic clock, faster or slower for a while
	TimersLate                          // F8
	EmptyDisk                           // F17: replaced by an empty one
	SecondMachine                       // F18: another with the id of a node, and an empty disk
	MinISR                              // F20
	Preferred                           // F20: election of the first replica
	BitRot                              // F16, beside the log: a killed node finds bits flipped in indexes and snapshots
	faultKinds
)

var faultNames = []string{"F1 kill", "F1 kill in a disk operation", "F1 kill after a change", "F2 power cut", "F2 power cut in a disk operation",
	"F3 power cut of many", "F4 pause", "F5 split", "F5 no coordinator", "F6 one way", "F7 slow network", "F9 coordinator away",
	"F10 coordinator slow", "F13 disk full", "F14 disk error", "F15 slow disk", "F19 controlled stop", "F1 kill of many",
	"F8 wall clock jumps", "F8 clock drifts", "F8 timers late",
	"F17 empty disk", "F18 second machine", "F20 min ISR", "F20 preferred election", "F16 bit rot beside the log"}

func (k FaultKind) String() string {
	var s []string
	for i, name := range faultNames {
		if k&(1<<i) != 0 {
			s = append(s, name)
		}
	}
	return strings.Join(s, ", ")
}

// Fault is one fault of a schedule.
type Fault struct {
	At    int64 // virtual ns
	Kind  FaultKind
	Nodes uint32 // set of nodes
	For   int64  // how long, or how long a killed node stays down
	N     int    // which disk operation, or which change
	Seed  uint64 // of what a power cut keeps and the like
}

func (f Fault) String() string {
	var nodes []string
	for i := range 32 {
		if f.Nodes&(1<<i) != 0 {
			nodes = append(nodes, fmt.Sprintf("n%d", i))
		}
	}
	return fmt.Sprintf("%v: %v of %s for %v, n %d", time.Duration(f.At), f.Kind, strings.Join(nodes, " "), time.Duration(f.For), f.N)
}

// horizon is how far a schedule reaches.
const horizon = 200 * sec

func drawSchedule(r *rand.Rand, c *config) []Fault {
	var list []Fault
	if c.faultGap == 0 || c.kinds == 0 {
		return nil
	}
	var kinds []FaultKind
	for k := FaultKind(1); k < faultKinds; k <<= 1 {
		if c.kinds&k != 0 {
			kinds = append(kinds, k)
		}
	}
	for at := 500*ms + exp(r, c.faultGap); at < horizon; at += exp(r, c.faultGap) {
		f := Fault{At: at, Kind: pick(r, kinds...), Seed: r.Uint64(), N: r.IntN(40)}
		f.For = pick(r, 20*ms, 200*ms, c.ttl/2, c.ttl*3/2, c.lagMax*2)
		f.For += exp(r, f.For/2)
		f.Nodes = 1 << r.IntN(c.nodes)
		if many := r.Uint32N(1<<c.nodes-1) + 1; f.Kind&(PowerMany|KillMany|Split) != 0 {
			f.Nodes = many
			if r.IntN(2) == 0 && f.Kind != Split {
				f.Nodes = 1<<c.nodes - 1
			}
		}
		list = append(list, f)
	}
	return list
}

// crashMode says how a node dies.
type crashMode uint8

const (
	byKill crashMode = iota
	byPower
)

func (m crashMode) String() string { return [...]string{"kill", "power cut"}[m] }

// change is something that happened on a node; a fault can wait for it.
type change uint8

const (
	onAppend change = iota
	onHW
	onLead
	onFollow
	onAlter
	onAck
	onCut
	onRegister
	onSynced
	changes
)

// armed is a crash that waits.
type armed struct {
	on    bool
	what  change
	left  int
	mode  crashMode
	down  int64
	rng   *rand.Rand
	fired bool
}

// crashed is the panic by which a node dies between two disk operations.
type crashed struct {
	mode crashMode
	down int64
	img  *vfs.Mem
	how  string
}

func (w *world) inject(i int) {
	f := &w.schedule[i]
	if w.calm {
		return
	}
	w.cov.add(f.Kind.String())
	w.tracef("FAULT %v", f)
	rng := rand.New(rand.NewPCG(f.Seed, 7))
	var chosen []*node
	for _, n := range w.nodes {
		if f.Nodes&(1<<n.id) != 0 {
			chosen = append(chosen, n)
		}
	}
	heal := true
	for _, n := range chosen {
		switch f.Kind {
		case Kill, KillMany:
			heal = false
			n.crash(byKill, f.For+rng.Int64N(f.For+1), rng)
		case Power, PowerMany:
			heal = false
			n.crash(byPower, f.For+rng.Int64N(f.For+1), rng)
		case KillInOp, PowerInOp:
			heal = false
			mode := byKill
			if f.Kind == PowerInOp {
				mode = byPower
			}
			n.armOp(f.N, mode, f.For, rng)
		case KillAfter:
			heal = false
			n.armed = armed{on: true, what: change(f.N) % changes, left: rng.IntN(3), mode: crashMode(rng.IntN(2) * rng.IntN(2)), down: f.For, rng: rng}
		case Pause:
			heal = false
			if n.up {
				n.pause(f.For)
			}
		case NoCoord:
			w.net.cutLink(n.id, coordinator, 1)
			w.net.cutLink(coordinator, n.id, 1)
		case OneWay:
			w.oneWay(f, n, 1)
		case DiskFull:
			n.mem.SetCapacity(n.mem.Used() + int64(f.N%3)*4096)
			n.full++
		case DiskError:
			heal = false
			n.failDisk(f.N, rng)
		case SlowDisk:
			n.slow++
			n.slowBy = pick(rng, 10*ms, 100*ms, sec, 5*sec)
		case Restart:
			heal = false
			n.beginStop(f.For)
		case WallJump:
			heal = false
			n.wall = w.jump(rng)
		case ClockRate:
			n.rate(w.now, rng.Int64N(100_001)-50_000)
		case EmptyDisk:
			heal = false
			n.loseDisk(rng.IntN(2) == 0, f.For, rng)
		case BitRot:
			heal = false
			n.crash(byKill, f.For, rng)
			n.rot(rng)
		case SecondMachine:
			w.second(n, rng)
		case TimersLate:
			n.late++
			n.lateBy = pick(rng, 10*ms, 100*ms, sec)
		}
	}
	switch f.Kind {
	case Split:
		w.split(f, 1)
	case SlowNet:
		w.net.slowAll++
	case CoordAway:
		for _, n := range w.nodes {
			w.net.cutLink(n.id, coordinator, 1)
			w.net.cutLink(coordinator, n.id, 1)
		}
	case CoordSlow:
		w.net.slowCoord++
	case MinISR, Preferred:
		heal = false
		if len(w.parts) > 0 {
			w.administer(f)
		}
	case WallJump:
		if rng.IntN(3) == 0 {
			w.coord.wall = w.jump(rng)
		}
	}
	if heal {
		w.post(event{at: w.now + f.For, kind: evHeal, to: everyone, arg: int64(i)})
	}
}

// jump is what a wall clock shows from now on, compared with the others: hours more or
// less, but no day, which is how long a producer that is silent is remembered.
func (w *world) jump(r *rand.Rand) int64 {
	return pick(r, ms, sec, 60*sec, 11*3600*sec) * (r.Int64N(2001) - 1000) / 1000
}

// administer is what an operator asks of the coordinator.
func (w *world) administer(f *Fault) {
	c := w.coord
	if f.Kind == MinISR {
		if err := c.c.SetMinISR(topicName, int32(1+f.N%w.c.rf), c.clock()); err != nil {
			panic(err)
		}
	} else {
		code := c.c.ElectPreferred(partition.ID{Topic: w.topic, Partition: int32(f.N % w.c.parts)}, c.clock())
		w.cov.add("preferred election " + code.String())
	}
	c.after()
	w.checkRecords()
}

// second has a machine with an empty disk register under a node's id, and say that it
// is ready. It is refused while the node's session lives; afterwards it is the node
// until its own ends, which it keeps up until the fault is over.
func (w *world) second(n *node, r *rand.Rand) {
	c := w.coord
	q := partition.Register{Node: n.id, ClusterID: clusterID, Previous: -1, Evidence: partition.Intact, Logs: []partition.LogEvidence{}}
	fillUUID(r, &q.Incarnation)
	fillUUID(r, &q.BootID)
	a := c.c.Register(&q, c.clock())
	w.tracef("a second n%d registers: %v, broker epoch %d", n.id, a.Code, a.BrokerEpoch)
	w.cov.add("F18 " + a.Code.String())
	if w.now < c.signs[n.id]+w.c.ttl {
		w.check(a.Code == partition.DuplicateRegistration, "F18", "a second node %d is answered %v while the session of the first lives", n.id, a.Code)
	}
	if a.Code == partition.OK {
		w.registered(n.id, &registered{q, a})
		c.seconds[n.id] = a.BrokerEpoch
		c.c.Ready(n.id, a.BrokerEpoch, c.clock())
	}
	c.after()
	w.checkRecords()
}

// loseDisk ends a life, and its disk is replaced by an empty one, with or without a
// reboot.
func (n *node) loseDisk(reboot bool, down int64, r *rand.Rand) {
	w := n.w
	w.tracef("n%d loses its disk, reboot %v, down for %v", n.id, reboot, time.Duration(down))
	img := n.mem
	if reboot {
		img = n.mem.PowerCut(r)
	}
	n.die(byKill, img.Blank(), down)
	for _, g := range w.parts {
		*g.mirrors[n.id] = mirror{led: -1, lost: true}
	}
}

// rot flips a bit of each of some files that can be made again from the batches.
func (n *node) rot(r *rand.Rand) {
	for num := range n.w.parts {
		dir := fmt.Sprintf("%s/%s-%d", dataDir, topicName, num)
		list, err := n.mem.List(dir)
		if err != nil {
			continue
		}
		for _, i := range list {
			if i.IsDir || i.Size == 0 || !rots(i.Name) || r.IntN(3) > 0 {
				continue
			}
			f, err := n.mem.Open(dir+"/"+i.Name, vfs.ReadWrite)
			if err != nil {
				panic(err)
			}
			var b [1]byte
			at := r.Int64N(i.Size)
			if _, err := f.ReadAt(b[:], at); err != nil {
				panic(err)
			}
			b[0] ^= 1 << r.IntN(8)
			if _, err := f.WriteAt(b[:], at); err != nil {
				panic(err)
			}
			f.Close()
			n.w.cov.add("F16 bit flipped in " + path.Ext(i.Name))
			n.w.tracef("n%d/%d bit flipped in %s at %d", n.id, num, i.Name, at)
		}
	}
}

// rots reports whether a file has bits flipped while its node is down. One in the
// leader-epoch file, which has no checksum, is believed where no batch is read
// (docs/recovery.md), so I22 would not hold.
func rots(name string) bool {
	switch path.Ext(name) {
	case ".index", ".timeindex", ".snapshot", ".dedupe":
		return true
	}
	return false
}

// oneWay cuts one direction between a node and some others; which, N says.
func (w *world) oneWay(f *Fault, n *node, by int) {
	for _, other := range w.ends() {
		if other == n.id || f.N&(1<<(uint32(other+2)%5)) == 0 {
			continue
		}
		if f.Seed&1 == 0 {
			w.net.cutLink(n.id, other, by)
		} else {
			w.net.cutLink(other, n.id, by)
		}
	}
}

// split cuts the nodes of a set from the others; the coordinator is on one side.
func (w *world) split(f *Fault, by int) {
	side := func(id int32) bool {
		if id == coordinator {
			return f.Seed&2 != 0
		}
		return f.Nodes&(1<<id) != 0
	}
	ends := w.ends()
	if f.Seed&4 != 0 {
		ends = ends[1:] // the coordinator sees all
	}
	for _, a := range ends {
		for _, b := range ends {
			if a != b && side(a) != side(b) {
				w.net.cutLink(a, b, by)
			}
		}
	}
}

// heal ends a fault.
func (w *world) heal(i int) {
	if w.calm {
		return
	}
	f := &w.schedule[i]
	w.tracef("HEAL %v", f.Kind)
	for _, n := range w.nodes {
		if f.Nodes&(1<<n.id) == 0 {
			continue
		}
		switch f.Kind {
		case NoCoord:
			w.net.cutLink(n.id, coordinator, -1)
			w.net.cutLink(coordinator, n.id, -1)
		case OneWay:
			w.oneWay(f, n, -1)
		case DiskFull:
			if n.full--; n.full <= 0 {
				n.full = 0
				n.mem.SetCapacity(0)
			}
		case SlowDisk:
			if n.slow--; n.slow <= 0 {
				n.slow, n.slowBy = 0, 0
			}
		case ClockRate:
			n.rate(w.now, 0)
		case SecondMachine:
			delete(w.coord.seconds, n.id)
		case TimersLate:
			if n.late--; n.late <= 0 {
				n.late, n.lateBy = 0, 0
			}
		}
	}
	switch f.Kind {
	case Split:
		w.split(f, -1)
	case SlowNet:
		w.net.slowAll--
	case CoordAway:
		for _, n := range w.nodes {
			w.net.cutLink(n.id, coordinator, -1)
			w.net.cutLink(coordinator, n.id, -1)
		}
	case CoordSlow:
		w.net.slowCoord--
	}
}

// beginCalm ends the first phase: nothing fails any more, all nodes run.
func (w *world) beginCalm() {
	w.calm = true
	w.calmFrom = w.now
	w.tracef("CALM: faults end")
	clear(w.net.cut)
	clear(w.coord.seconds)
	clear(w.net.last) // what is minutes late by then holds nothing up
	w.net.slowAll, w.net.slowCoord = 0, 0
	for _, n := range w.nodes {
		n.full, n.slow, n.slowBy, n.late, n.lateBy = 0, 0, 0, 0, 0
		n.rate(w.now, 0)
		n.armed = armed{}
		n.mem.SetHook(nil)
		n.mem.SetCapacity(0)
		if n.faulty != nil {
			n.faulty.SetRules()
		}
		switch {
		case n.up && n.stopping:
			// it ends by itself and boots again
		case n.up && n.broken():
			n.crash(byKill, 100*ms, nil) // as an operator would
		case n.up && n.pausedTo > w.now:
			n.resume()
		case !n.up:
			n.bootAt(w.now + 50*ms)
		}
	}
}

// failDisk makes one operation of a node's disk fail.
func (n *node) failDisk(which int, rng *rand.Rand) {
	if n.faulty == nil || !n.up {
		return
	}
	op := []vfs.Op{vfs.OpWrite, vfs.OpFinishSync, vfs.OpFinishSync, vfs.OpSyncDir, vfs.OpAllocate, vfs.OpStartSync, vfs.OpRead}[which%7]
	err := pick[error](rng, syscall.EIO, syscall.EIO, syscall.ENOSPC)
	n.faulty.SetRules(vfs.Rule{Ops: op, After: rng.IntN(4), Count: 1 + rng.IntN(2), Err: err})
}
