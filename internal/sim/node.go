package sim

import (
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/tidemark-log/tidemark/internal/vfs"
	"github.com/tidemark-log/tidemark/isr"
	"github.com/tidemark-log/tidemark/partition"
	"github.com/tidemark-log/tidemark/replica"
	"github.com/tidemark-log/tidemark/segment"
)

const (
	topicName = "t"
	dataDir   = "/data"
	clusterID = "simulated"
)

// phase is how far a life of a node has come.
type phase uint8

const (
	down phase = iota
	registering
	reading // the records, at or after its registration
	readying
	serving
)

// node is a machine with a disk, and one life after the other of the process on
// it. It follows the rules for drivers: see docs/replication.md.
type node struct {
	w      *world
	id     int32
	mem    *vfs.Mem
	faulty *vfs.Faulty // over mem, in seeds whose disks fail

	up       bool
	life     int32
	phase    phase
	bootsAt  int64
	pausedTo int64
	later    []event // what came while it was paused

	timepiece       // each life has a monotonic clock of its own
	late      int   // faults under way
	lateBy    int64 // timers, on average

	dir         *replica.Dir
	maps        *segment.Maps
	incarnation partition.UUID
	evidence    partition.Evidence // of the folder
	logs        []partition.LogEvidence
	brokerEpoch int64
	registered  int64
	lease       isr.Lease
	leaseSent   int64 // virtual time of the last keep-alive that was answered
	roster      roster
	revision    int64
	watch       uint64 // id of the request under way
	watchAt     int64
	parts       []*part // by number; nil where it has none
	calls       map[uint64]*call

	slow, full int // faults under way
	slowBy     int64
	armed      armed
	stopping   bool
	stopAt     int64 // when a controlled stop does not wait any more
	stopDown   int64
	stopTold   bool
	inOp       bool // dies in a disk operation
}

// call is a request to the coordinator that is sent until it is answered.
type call struct {
	op   op
	part int32
	body any
	sent int64
}

// part is a node's share of a partition.
type part struct {
	n   *node
	num int
	g   *ghost

	log  *replica.Log
	f    *replica.Fetcher
	p    *isr.Partition // nil until registered
	fx   *isr.Effects
	idle *isr.Effects // the other of the two

	sync           *replica.Sync
	syncAgain      bool
	tickAt, pumpAt int64
	tickID, pumpID int64
	parked         map[int32]*parked
	waiting        []*waiter // acks not given yet
	declined       int32     // epoch
	settling       bool
	relief         relief
	proposed       uint64 // last proposal

	seen    seen // by the checker
	spin    spin
	journal *mirror
}

type parked struct {
	m  *message
	id int64
}

// waiter is a produce that waits for its ack.
type waiter struct {
	isr.Waiter
	m    *message
	from int64
}

// roster is what a node knows of the others.
type roster struct{ nodes []partition.Node }

func (r *roster) Node(id int32) partition.Node {
	if int(id) < len(r.nodes) && id >= 0 {
		return r.nodes[id]
	}
	return partition.Node{ID: id, BrokerEpoch: -1}
}

func newNode(w *world, id int32) *node {
	n := &node{w: w, id: id, bootsAt: never}
	n.mem = vfs.NewMem(vfs.MemOptions{Clock: func() time.Time { return epoch.Add(time.Duration(w.now + n.wall)) }, Seed: w.o.Seed<<8 | uint64(id)})
	return n
}

func (n *node) String() string { return fmt.Sprintf("n%d", n.id) }

// clock is the node's own.
func (n *node) clock() time.Time { return n.at(n.w.now) }

// virtual is when a timer that is set to t by its clock rings: then, or later.
func (n *node) virtual(t time.Time) int64 {
	w, at := n.w, n.when(t)
	if w.c.has(LateTimers) && !w.calm && w.nodeRand.IntN(4) == 0 {
		at += exp(w.nodeRand, 30*ms)
	}
	if n.late > 0 {
		w.cov.add("timer late by a fault")
		at += exp(w.nodeRand, n.lateBy)
	}
	return max(at, w.now)
}

func (n *node) post(at int64, k kind, part int32, arg int64) {
	n.w.post(event{at: at, kind: k, to: n.id, life: n.life, part: part, arg: arg})
}

func (n *node) bootAt(at int64) {
	n.bootsAt = at
	n.w.post(event{at: at, kind: evBoot, to: n.id, arg: at})
}

// handle does one event of a node that is up, or boots it.
func (n *node) handle(e *event) {
	switch e.kind {
	case evBoot:
		if !n.up && (n.bootsAt == e.arg || n.life == 0) {
			n.boot()
		}
		return
	case evDeliver:
		n.deliver(e.msg)
	case evKeepAlive:
		n.keepAlive()
	case evTick:
		if pt := n.parts[e.part]; pt.p != nil && e.arg == pt.tickID {
			pt.tickAt = never
			pt.tick()
			pt.settle()
		}
	case evPump:
		if pt := n.parts[e.part]; pt.f != nil && e.arg == pt.pumpID {
			pt.pumpAt = never
			pt.pump()
			pt.settle()
		}
	case evPark:
		pt := n.parts[e.part]
		if p := pt.parked[int32(e.arg>>32)]; p != nil && p.id == e.arg&0xffffffff {
			pt.rerun(int32(e.arg>>32), false)
			pt.settle()
		}
	case evSynced:
		pt := n.parts[e.part]
		pt.synced()
		pt.settle()
	case evRetry:
		if c := n.calls[uint64(e.arg)]; c != nil {
			delete(n.calls, uint64(e.arg))
			n.call(c.op, c.part, c.body)
		}
	case evMaintain:
		n.maintain()
	case evWatch:
		if uint64(e.arg) == n.watch {
			n.ask(n.revision)
		}
	case evStop:
		n.goOnStopping()
	case evRelief:
		pt := n.parts[e.part]
		pt.goOnRelieving()
		pt.settle()
	case evResume:
		n.resume()
	}
}

// boot begins a life: the process starts and looks at its disk.
func (n *node) boot() {
	w := n.w
	n.life++
	n.up, n.phase, n.bootsAt = true, registering, never
	n.pausedTo, n.stopping, n.stopTold = 0, false, false
	n.calls = map[uint64]*call{}
	n.parts = make([]*part, w.c.parts)
	n.maps = segment.NewMaps(1 << 30)
	n.roster = roster{nodes: make([]partition.Node, w.c.nodes)}
	for i := range n.roster.nodes {
		n.roster.nodes[i] = partition.Node{ID: int32(i), BrokerEpoch: -1}
	}
	n.revision, n.registered, n.brokerEpoch, n.watch = 0, 0, -1, 0
	n.lease, n.leaseSent = isr.Lease{}, -1
	n.shown, n.from, n.ppm = 0, w.now, 0
	if w.c.has(Drift) {
		w.cov.add("F8 clock of a life drifts")
		n.ppm = w.nodeRand.Int64N(20_001) - 10_000
		n.shown = w.nodeRand.Int64N(1000*sec) - 500*sec
	}
	var fsys vfs.FS = n.mem
	if w.c.kinds&DiskError != 0 && !w.calm {
		n.faulty = vfs.NewFaulty(n.mem)
		fsys = n.faulty
	} else {
		n.faulty = nil
	}
	w.cov.add("life")
	w.tracef("n%d boots, life %d", n.id, n.life)
	if err := n.open(fsys); err != nil {
		w.cov.add("life: folder does not open")
		w.tracef("n%d does not open: %v", n.id, err)
		n.die(byKill, nil, 100*ms+w.nodeRand.Int64N(sec))
		return
	}
	fillUUID(w.nodeRand, &n.incarnation)
	w.cov.add("evidence " + n.evidence.String())
	w.tracef("n%d evidence %v, logs %s", n.id, n.evidence, join(n.parts, func(pt *part) string {
		if pt == nil {
			return "-"
		}
		from, end, held := pt.log.Held()
		return fmt.Sprintf("%v leo %d hw %d held %v %d-%d damage %v", pt.log.Evidence(), pt.log.LogEndOffset(), pt.log.HighWatermark(), held, from, end, pt.log.Damage())
	}))
	n.register()
	n.post(w.now+w.c.maintain/2, evMaintain, 0, 0)
}

func fillUUID(r *rand.Rand, u *partition.UUID) {
	for i := range u {
		u[i] = byte(r.Uint32())
	}
}

// open opens folder and logs, and finds how the last life ended.
func (n *node) open(fsys vfs.FS) (err error) {
	n.dir, err = replica.OpenDir(dataDir, replica.DirOptions{NodeID: n.id, ClusterID: clusterID, BrokerEpoch: -1, FS: fsys}, n.clock())
	if err != nil {
		return err
	}
	n.evidence, n.logs = partition.Intact, []partition.LogEvidence{}
	if n.dir.Clean() {
		n.evidence = partition.Clean
	}
	for _, tp := range n.dir.Partitions() {
		pt, err := n.openLog(int(tp.Partition), true)
		if err != nil {
			return err
		}
		e := partition.LogEvidence{ID: partition.ID{Topic: n.w.topic, Partition: tp.Partition}, Evidence: pt.log.Evidence(), Durable: pt.log.Durable()}
		e.LastEpoch, e.LEO = pt.log.Tail()
		n.logs = append(n.logs, e)
		n.w.cov.add("evidence of a log " + e.Evidence.String())
	}
	return nil
}

func (n *node) openLog(num int, held bool) (*part, error) {
	w := n.w
	pt := &part{n: n, num: num, g: w.parts[num], fx: &isr.Effects{}, idle: &isr.Effects{}, parked: map[int32]*parked{}, declined: -1, tickAt: never, pumpAt: never}
	c := replica.EmbeddedConfig()
	c.SegmentIndexBytes = 1 << 10
	if w.c.has(Retention) {
		c.RetentionBytes, c.RetentionMs, c.FileDeleteDelayMs = 3*w.c.segmentBytes, 3600_000, 1000
	}
	l, err := n.dir.OpenLog(replica.TopicPartition{Topic: topicName, Partition: int32(num)}, w.topic, replica.Options{
		Sync: w.c.syncOf(num), SegmentBytes: w.c.segmentBytes, MaxBatchBytes: 4 << 10, IndexIntervalBytes: 512, Config: &c,
		PopulateBytes: 4 << 10, MaxProducers: 10_000, SealedSyncDelay: time.Duration(w.c.maintain), RetentionInterval: time.Duration(w.c.maintain),
		Held: held, Maps: n.maps,
	}, n.clock())
	if err != nil {
		return nil, err
	}
	pt.log = l
	if _, ok := w.logIDs[l.ID()]; !ok {
		w.logIDs[l.ID()] = len(w.logIDs)
	}
	n.parts[num] = pt
	w.opened(pt, held)
	return pt, nil
}

func (n *node) register() {
	previous := int64(-1)
	if n.dir.Clean() {
		previous = n.dir.CleanEpoch()
	}
	var boot partition.UUID = n.mem.BootID()
	n.call(opRegister, 0, &registered{q: partition.Register{Node: n.id, ClusterID: clusterID, Incarnation: n.incarnation, BootID: boot,
		Previous: previous, Evidence: n.evidence, Logs: n.logs}})
}

// call sends a request to the coordinator until it is answered.
func (n *node) call(o op, part int32, body any) {
	id := n.w.net.id()
	n.calls[id] = &call{op: o, part: part, body: body, sent: n.w.now}
	n.w.net.send(&message{op: o, from: n.id, to: coordinator, life: n.life, part: part, id: id, body: body})
	n.post(n.w.now+n.w.c.callTimeout, evRetry, part, int64(id))
}

// answered returns the call that a message answers, nil if it is old.
func (n *node) answered(m *message) *call {
	c := n.calls[m.id]
	delete(n.calls, m.id)
	return c
}

func (n *node) deliver(m *message) {
	defer m.release()
	if m.answer && m.life != n.life {
		return
	}
	w := n.w
	switch {
	case m.op == opFetch && !m.answer:
		if pt := n.parts[m.part]; pt != nil && pt.p != nil {
			pt.onFetch(m)
			pt.settle()
		}
	case m.op == opFetch:
		pt := n.parts[m.part]
		w.tracef("n%d/%d gets %v from n%d: offset %d, %d bytes, hw %d leo %d diverging %v %d-%d", n.id, m.part, m.fetched.Code, m.from,
			m.fetched.Offset, len(m.fetched.Records), m.fetched.HighWatermark, m.fetched.LEO, m.fetched.Diverging, m.fetched.DivergingEpoch, m.fetched.DivergingEnd)
		if err := pt.f.Fetched(&m.fetched, n.clock()); err != nil {
			w.cov.add("follower: " + short(err))
			w.tracef("n%d/%d fetched: %v", n.id, m.part, err)
		}
		m.release() // before a cut it asks for
		pt.advanced()
		pt.pump()
		pt.settle()
	case m.op == opAsk && !m.answer:
		if pt := n.parts[m.part]; pt != nil && pt.p != nil {
			a := m.reply(n.id)
			pt.p.Ask(&m.ask, &a.asked)
			w.cov.add("ask " + a.asked.Code.String())
			w.tracef("n%d/%d asked by n%d for epoch %d: %v %d-%d", n.id, m.part, m.from, m.ask.Epoch, a.asked.Code, a.asked.Epoch, a.asked.End)
			w.net.send(a)
		}
	case m.op == opAsk:
		pt := n.parts[m.part]
		if err := pt.f.Answered(&m.asked, n.clock()); err != nil {
			w.cov.add("follower: " + short(err))
			w.tracef("n%d/%d answered: %v", n.id, m.part, err)
		}
		pt.advanced()
		pt.pump()
		pt.settle()
	case m.op == opAlter:
		pt := n.parts[m.part]
		w.tracef("n%d/%d alter %d answered: %v", n.id, m.part, m.altered.Seq, m.altered.Code)
		a := m.altered
		pt.p.Altered(&a, n.clock(), pt.fx)
		pt.settle()
	case m.op == opHandover:
		if n.answered(m) != nil {
			w.cov.add("handover " + m.altered.Code.String())
			if r := m.altered.Record; r != nil {
				n.update(r)
			}
		}
	case m.op == opRegister:
		if c := n.answered(m); c != nil {
			n.onRegistered(m.body.(*registered))
		}
	case m.op == opSince:
		n.onSince(m)
	case m.op == opReady:
		if n.answered(m) == nil {
			return
		}
		w.tracef("n%d ready: %v", n.id, m.code)
		switch m.code {
		case partition.OK:
			if n.phase == readying {
				n.phase = serving
			}
		case partition.StaleBrokerEpoch:
			n.again()
		}
	case m.op == opKeepAlive:
		n.onKeepAlive(m)
	case m.op == opStop:
		if n.answered(m) != nil {
			n.stopTold = true
		}
	case m.op == opDecline, m.op == opFence:
		n.answered(m)
	case m.op == opProduce:
		n.onProduce(m)
	case m.op == opConsume:
		n.onConsume(m)
	case m.op == opTrim:
		if pt := n.parts[m.part]; pt != nil && pt.p != nil {
			n.onTrim(pt, m)
		}
	}
}

func (n *node) onRegistered(r *registered) {
	w := n.w
	w.cov.add("register " + r.a.Code.String())
	w.tracef("n%d registered: %v, broker epoch %d", n.id, r.a.Code, r.a.BrokerEpoch)
	if r.a.Code != partition.OK {
		if r.a.Code == partition.DuplicateRegistration || r.a.Code == partition.Unknown {
			id := w.net.id()
			n.calls[id] = &call{op: opRegister, body: &registered{q: r.q}}
			n.post(w.now+w.c.callTimeout/2, evRetry, 0, int64(id))
			return
		}
		w.fail("I16", "node %d may not register: %v", n.id, r.a.Code)
	}
	if n.brokerEpoch >= 0 && n.brokerEpoch != r.a.BrokerEpoch {
		// Another registration came between: this life is over.
		n.die(byKill, nil, 50*ms)
		return
	}
	first := n.brokerEpoch < 0
	n.brokerEpoch = r.a.BrokerEpoch
	if first {
		n.registered = r.a.BrokerEpoch
	}
	n.dir.SetBrokerEpoch(n.brokerEpoch)
	n.phase = reading
	n.changed(onRegister)
	if first {
		for _, pt := range n.parts {
			if pt != nil {
				pt.begin()
			}
		}
		n.keepAlive()
	}
	n.revision = 0
	n.ask(0)
}

// again registers the same life once more: its session was over.
func (n *node) again() {
	if n.phase == registering || n.stopping {
		return
	}
	n.w.cov.add("life: session over, registers again")
	n.phase = registering
	n.register()
}

func (n *node) keepAlive() {
	w := n.w
	m := &message{op: opKeepAlive, from: n.id, to: coordinator, life: n.life, id: w.net.id(), body: n.brokerEpoch}
	w.net.send(m)
	n.post(w.now+w.c.ttl/5, evKeepAlive, 0, 0)
}

func (n *node) onKeepAlive(m *message) {
	w := n.w
	switch m.code {
	case partition.OK:
		sent := m.body.(int64)
		if sent > n.leaseSent {
			n.leaseSent = sent
			n.lease.Renew(n.at(sent).Add(time.Duration(w.c.ttl - w.c.ttl/5)))
		}
	case partition.IneligibleReplica:
		w.cov.add("keep-alive: fenced")
		if n.phase == serving && !n.stopping {
			n.phase = readying // what it reads it has never stopped reading
			n.call(opReady, 0, n.brokerEpoch)
		}
	case partition.StaleBrokerEpoch:
		n.again()
	}
}

// ask watches for changes after a revision.
func (n *node) ask(revision int64) {
	w := n.w
	n.watch, n.watchAt = w.net.id(), w.now
	w.net.send(&message{op: opSince, from: n.id, to: coordinator, life: n.life, id: n.watch, body: since{revision}})
	n.post(w.now+w.c.reconcile, evWatch, 0, int64(n.watch))
}

func (n *node) onSince(m *message) {
	ch, ok := m.body.(isr.Changes)
	if !ok {
		return
	}
	for _, x := range ch.Nodes {
		if have := &n.roster.nodes[x.ID]; x.Revision >= have.Revision {
			*have = x
		}
	}
	if n.brokerEpoch >= 0 && ch.Revision >= n.brokerEpoch { // R5
		for _, r := range ch.Records {
			n.update(r)
			if !n.up {
				return
			}
		}
	}
	if m.id != n.watch {
		return // late: the lists are newest states all the same
	}
	if len(ch.Nodes) > 0 {
		for _, pt := range n.parts {
			if pt != nil && pt.p != nil {
				pt.tick()
				pt.settle()
			}
		}
	}
	n.revision = max(n.revision, ch.Revision)
	if n.phase == reading && n.revision >= n.brokerEpoch {
		n.phase = readying
		n.call(opReady, 0, n.brokerEpoch)
	}
	n.ask(n.revision)
}

// update takes a record.
func (n *node) update(r *partition.Record) {
	w := n.w
	num, ok := w.byID[r.ID]
	if !ok {
		num = int(r.Partition)
	}
	pt := n.parts[num]
	if pt == nil {
		if !r.Assigned(n.id) {
			return
		}
		var err error
		if pt, err = n.openLog(num, false); err != nil {
			w.cov.add("log does not open")
			w.tracef("n%d/%d log does not open: %v", n.id, num, err)
			n.die(byKill, nil, 100*ms)
			return
		}
	}
	if pt.p == nil {
		pt.begin()
	}
	before := pt.p.Status()
	err := pt.p.Update(r, n.clock(), pt.fx)
	if err != nil {
		w.cov.add("update: " + short(cmp.Or(errors.Unwrap(err), err))) // without the topic's id
		w.tracef("n%d/%d update to revision %d: %v", n.id, num, r.Revision, err)
	}
	after := pt.p.Status()
	if before.Role != after.Role || before.LeaderEpoch != after.LeaderEpoch {
		w.cov.add(fmt.Sprintf("role: %v to %v", before.Role, after.Role))
		w.tracef("n%d/%d is %v in epoch %d of leader %d, isr %s elr %s", n.id, num, after.Role, after.LeaderEpoch, r.Leader, members(r.ISR), members(r.ELR))
		switch after.Role {
		case isr.Leading:
			n.changed(onLead)
		case isr.Following:
			n.changed(onFollow)
		}
	}
	pt.pump()
	pt.settle()
}

func members(list []partition.Member) string {
	return "[" + join(list, partition.Member.String) + "]"
}

// short is an error without its numbers, for the table of what happened.
func short(err error) string {
	for _, e := range []error{replica.ErrFailed, replica.ErrHeld, replica.ErrBusy, replica.ErrCorrupt, replica.ErrOrder, replica.ErrOutOfRange,
		replica.ErrClosed, replica.ErrTooLarge, isr.ErrStepBack, isr.ErrTooManyWaiters} {
		if errors.Is(err, e) {
			return e.Error()
		}
	}
	if c, ok := errors.AsType[partition.Code](err); ok {
		return c.String()
	}
	s := []byte(err.Error())
	n := 0
	for _, b := range s {
		if b < '0' || b > '9' {
			s[n] = b
			n++
		}
	}
	return string(s[:min(n, 60)])
}

// begin makes the partition of a log, once the node has its broker epoch.
func (pt *part) begin() {
	n, w := pt.n, pt.n.w
	id := partition.ID{Topic: w.topic, Partition: int32(pt.num)}
	pt.f = replica.NewFetcher(pt.log, replica.FetcherOptions{ID: id, Node: n.id, BrokerEpoch: n.brokerEpoch, Session: uint64(n.brokerEpoch) << 32,
		Recovery: w.c.recovery, MaxBytes: w.c.fetchBytes, Backoff: time.Duration(w.c.backoff), Timeout: time.Duration(w.c.fetchTimeout), Guards: w.o.Guards})
	pt.p = isr.New(isr.Options{ID: id, Node: n.id, BrokerEpoch: n.brokerEpoch, Log: pt.log, Fetcher: pt.f,
		Lease: &n.lease, Nodes: &n.roster, LagMax: time.Duration(w.c.lagMax), Resend: time.Duration(w.c.callTimeout), Guards: w.o.Guards})
}

// settle does what the last steps asked for, and what that asks for.
func (pt *part) settle() {
	if pt.settling {
		return
	}
	pt.settling = true
	n, w := pt.n, pt.n.w
	for range 1000 {
		fx := pt.fx
		if len(fx.Done) == 0 && len(fx.Wake) == 0 && fx.Alter == nil && !fx.Decline && !fx.Follow && !fx.Sync && fx.Moved == 0 && fx.Tick.IsZero() && !fx.Relief {
			pt.settling = false
			return
		}
		pt.fx, pt.idle = pt.idle, pt.fx
		pt.fx.Reset()
		if fx.Moved&isr.MovedHW != 0 {
			n.changed(onHW)
			w.leaderMoved(pt)
		}
		for _, wt := range fx.Done {
			pt.ack(wt.Driver.(*waiter))
		}
		if fx.Alter != nil {
			n.changed(onAlter)
			w.proposed(pt, fx.Alter)
			w.net.send(&message{op: opAlter, from: n.id, to: coordinator, life: n.life, part: int32(pt.num), id: w.net.id(), alter: fx.Alter})
		}
		if fx.Decline {
			w.cov.add("declined a leadership")
			n.call(opDecline, int32(pt.num), decline{fx.DeclineEpoch, n.brokerEpoch})
		}
		for _, id := range fx.Wake {
			pt.rerun(id, true)
		}
		if fx.Relief {
			pt.relieve()
		}
		if fx.Sync {
			pt.startSync()
		}
		if fx.Follow {
			pt.pump()
		}
		if !fx.Tick.IsZero() {
			pt.tickBy(fx.Tick)
		}
	}
	w.fail("I26", "node %d partition %d: the effects of a step do not end", n.id, pt.num)
}

func (pt *part) tick() {
	next := pt.p.Tick(pt.n.clock(), pt.fx)
	if !next.IsZero() {
		pt.tickBy(next)
	}
}

// tickBy has Tick called at a time of the node's clock, or earlier.
func (pt *part) tickBy(t time.Time) {
	if at := pt.n.virtual(t); at < pt.tickAt {
		pt.tickAt = at
		pt.tickID++
		pt.n.post(at, evTick, int32(pt.num), pt.tickID)
	}
}

// advanced tells the partition that its log moved.
func (pt *part) advanced() { pt.p.Advanced(pt.n.clock(), pt.fx) }

// pump asks the follower what to do until it waits.
func (pt *part) pump() {
	n, w := pt.n, pt.n.w
	var s replica.Step
	for range 20 {
		pt.f.Next(n.clock(), &s)
		switch s.Do {
		case replica.SendFetch:
			pt.countFetch()
			w.confirmed(pt, &s.Fetch)
			leader := pt.leader()
			w.tracef("n%d/%d fetches at %d, epoch %d, from n%d", n.id, pt.num, s.Fetch.Offset, s.Fetch.LeaderEpoch, leader)
			if leader >= 0 {
				w.net.send(&message{op: opFetch, from: n.id, to: leader, life: n.life, part: int32(pt.num), id: w.net.id(), fetch: s.Fetch})
			}
		case replica.SendAsk:
			pt.countFetch()
			leader := pt.leader()
			w.tracef("n%d/%d asks for epoch %d in epoch %d of n%d", n.id, pt.num, s.Ask.Epoch, s.Ask.LeaderEpoch, leader)
			if leader >= 0 {
				w.net.send(&message{op: opAsk, from: n.id, to: leader, life: n.life, part: int32(pt.num), id: w.net.id(), ask: s.Ask})
			}
		case replica.SyncFirst:
			pt.startSync()
			if pt.sync == nil { // nothing to sync: the next step is another one
				continue
			}
			return
		default:
			if !s.At.IsZero() {
				if at := n.virtual(s.At); at < pt.pumpAt {
					pt.pumpAt = at
					pt.pumpID++
					n.post(at, evPump, int32(pt.num), pt.pumpID)
				}
			}
			return
		}
	}
	w.fail("I26", "node %d partition %d: the follower never waits", n.id, pt.num)
}

func (pt *part) leader() int32 { return pt.f.State().Leader }

// startSync begins a sync of the log; time passes until it ends.
func (pt *part) startSync() {
	if pt.sync != nil {
		pt.syncAgain = true
		return
	}
	if pt.sync = pt.log.StartSync(); pt.sync == nil {
		return
	}
	n := pt.n
	n.post(n.w.now+n.syncTime(), evSynced, int32(pt.num), 0)
}

func (n *node) syncTime() int64 {
	t := 20*us + exp(n.w.nodeRand, n.w.c.syncMean)
	if n.slow > 0 {
		t += exp(n.w.nodeRand, n.slowBy)
	}
	return t
}

// synced ends the sync.
func (pt *part) synced() {
	s := pt.sync
	if s == nil {
		return
	}
	err := s.Wait()
	pt.sync = nil
	if err = pt.log.FinishSync(s, err); err != nil {
		pt.n.w.cov.add("sync failed")
		pt.n.w.tracef("n%d/%d sync: %v", pt.n.id, pt.num, err)
	}
	pt.n.changed(onSynced)
	if pt.p == nil {
		return
	}
	pt.advanced()
	if pt.syncAgain {
		pt.syncAgain = false
		pt.startSync()
	}
	pt.pump()
}

// onFetch serves a follower, or lets it wait.
func (pt *part) onFetch(m *message) {
	pt.serve(m, false, true)
}

// rerun serves a parked fetch once more.
func (pt *part) rerun(id int32, mayPark bool) {
	p := pt.parked[id]
	if p == nil {
		return
	}
	delete(pt.parked, id)
	pt.serve(p.m, true, mayPark)
}

func (pt *part) serve(m *message, again, mayPark bool) {
	n, w := pt.n, pt.n.w
	before := w.beforeFetch(pt, m)
	var a isr.Answer
	if pt.p.Fetch(&m.fetch, again, mayPark, n.clock(), &a, pt.fx) {
		w.cov.add("A3 parked")
		w.afterFetch(pt, m, nil, before)
		n.post(w.now+w.c.maxWait, evPark, int32(pt.num), int64(m.fetch.Replica)<<32|int64(m.id&0xffffffff))
		pt.parked[m.fetch.Replica] = &parked{m, int64(m.id & 0xffffffff)}
		return
	}
	w.afterFetch(pt, m, &a, before)
	if a.Drop {
		w.cov.add("A3 dropped (R29)")
		return
	}
	if a.Diverging {
		w.cov.add("A3 diverging")
	} else {
		w.cov.add("A3 " + a.Code.String())
	}
	r := m.reply(n.id)
	r.fetched = a.Fetched
	if a.View.Bytes != nil {
		if w.c.local {
			v := a.View
			r.view = &v
		} else {
			r.fetched.Records = append([]byte(nil), a.Records...)
			a.View.Release()
		}
	}
	w.net.send(r)
}

func (n *node) onProduce(m *message) {
	w := n.w
	q := m.body.(*produce)
	pt := n.parts[m.part]
	answer := func(err error) {
		r := m.reply(n.id)
		r.body = &produced{err: err}
		if q.acks != 0 {
			w.net.send(r)
		}
	}
	if pt == nil || pt.p == nil {
		answer(partition.NotLeader)
		return
	}
	wt := &waiter{m: m, from: w.now}
	wt.Driver = wt
	err := pt.p.Produce(q.batch, replica.Client, q.acks, time.Duration(q.timeout), &wt.Waiter, n.clock(), pt.fx)
	if err != nil {
		w.cov.add("A2 " + short(err))
		w.tracef("n%d/%d produce refused: %v", n.id, m.part, err)
		answer(err)
	} else {
		n.changed(onAppend)
		switch {
		case q.acks == 0:
		case wt.Finished():
			pt.ack(wt)
		default:
			pt.waiting = append(pt.waiting, wt)
		}
	}
	pt.settle()
}

// ack tells a client what became of its batch.
func (pt *part) ack(wt *waiter) {
	n, w := pt.n, pt.n.w
	for i, x := range pt.waiting {
		if x == wt {
			pt.waiting = append(pt.waiting[:i], pt.waiting[i+1:]...)
			break
		}
	}
	q := wt.m.body.(*produce)
	r := wt.m.reply(n.id)
	r.body = &produced{err: wt.Err, base: wt.Base, end: wt.End, duplicate: wt.Duplicate}
	if wt.Err == nil {
		w.acked(pt, wt, q)
		n.changed(onAck)
		if wt.Duplicate {
			w.cov.add("A2 duplicate acked")
		} else {
			w.cov.add(fmt.Sprintf("A2 acked %d", q.acks))
		}
	} else {
		w.cov.add("A2 ack " + short(wt.Err))
		if errors.Is(wt.Err, partition.RequestTimedOut) {
			w.check(w.now-wt.from >= q.timeout*9/10, "A2", "node %d partition %d: an append times out after %v, it may wait %v", n.id, pt.num, time.Duration(w.now-wt.from), time.Duration(q.timeout))
		}
	}
	w.net.send(r)
}

func (n *node) onConsume(m *message) {
	q := m.body.(*consume)
	pt := n.parts[m.part]
	a := &consumed{err: partition.NotLeader}
	if pt != nil && pt.p != nil {
		a = pt.consume(q)
		n.w.served(pt, q, a)
	}
	r := m.reply(n.id)
	r.body = a
	n.w.net.send(r)
}

func (pt *part) consume(q *consume) *consumed {
	now := pt.n.clock()
	a := &consumed{start: pt.log.LogStartOffset()}
	if q.latest {
		a.offset, a.err = pt.p.Latest(now)
		return a
	}
	v, err := pt.p.Consume(q.offset, 2000, now)
	if err != nil {
		a.err = err
		return a
	}
	a.bytes = append([]byte(nil), v.Bytes...)
	v.Release()
	return a
}

// onTrim deletes records below an offset, as an administrator asks of the leader.
func (n *node) onTrim(pt *part, m *message) {
	r := m.reply(n.id)
	r.code = partition.NotLeader
	if st := pt.p.Status(); st.Role == isr.Leading && st.Resigned == nil && n.lease.Valid(n.clock()) {
		r.code = partition.OK
		hw := pt.log.HighWatermark()
		at := hw - m.body.(int64)
		if at > pt.log.LogStartOffset() {
			if err := pt.log.DeleteRecords(at); err != nil {
				n.w.cov.add("trim: " + short(err))
			} else {
				n.w.cov.add("trimmed")
				n.w.tracef("n%d/%d log start to %d", n.id, pt.num, at)
			}
		}
	}
	n.w.net.send(r)
}

// maintain does a node's background work.
func (n *node) maintain() {
	w := n.w
	for _, pt := range n.parts {
		if pt == nil {
			continue
		}
		start := pt.log.LogStartOffset()
		next, err := pt.log.Maintain(n.clock())
		if pt.log.LogStartOffset() > start {
			w.cov.add("F20 retention")
		}
		if err != nil {
			w.cov.add("maintain: " + short(err))
		}
		switch {
		case w.c.syncOf(pt.num) == replica.Interval:
			pt.startSync()
		case next.SealedSync && pt.sync == nil:
			if pt.sync = pt.log.StartSealedSync(n.clock()); pt.sync != nil {
				n.post(w.now+n.syncTime(), evSynced, int32(pt.num), 0)
			}
		}
		if pt.p != nil {
			pt.advanced()
			pt.settle()
		}
	}
	if w.c.has(Writeback) && !w.calm && w.nodeRand.IntN(3) == 0 {
		n.mem.Writeback(w.nodeRand)
	}
	if n.faulty != nil {
		n.faulty.ResetCalls()
	}
	n.post(w.now+w.c.maintain, evMaintain, 0, 0)
}

// changed notes that something happened that a crash may wait for.
func (n *node) changed(c change) {
	if a := &n.armed; a.on && a.what == c {
		if a.left--; a.left < 0 {
			a.fired = true
		}
	}
}

// fireArmed lets the crash that waited happen, once the step is done.
func (n *node) fireArmed() {
	if a := n.armed; a.on && a.fired && n.up {
		n.armed = armed{}
		n.crash(a.mode, a.down, a.rng)
	}
}

// armOp makes the node die before or after one of its next disk operations.
func (n *node) armOp(left int, mode crashMode, forTime int64, rng *rand.Rand) {
	mem := n.mem
	mem.SetHook(func(op vfs.Op, name string, done bool) {
		if left--; left >= 0 {
			return
		}
		mem.SetHook(nil)
		c := crashed{mode: mode, down: forTime + rng.Int64N(forTime+1), how: fmt.Sprintf("%v, %v %s, done %v", mode, op, name, done)}
		if mode == byPower {
			c.img = mem.PowerCut(rng)
			mem.Kill()
		} else {
			c.img = mem.Kill()
		}
		panic(c)
	})
}

func (n *node) crashedAs(c crashed) {
	n.w.cov.add("crashed in a disk operation: " + c.mode.String())
	n.inOp = true
	n.die(c.mode, c.img, c.down)
}

// crash kills the process, or cuts the power of the machine.
func (n *node) crash(mode crashMode, down int64, rng *rand.Rand) {
	n.w.tracef("n%d %v, down for %v", n.id, mode, time.Duration(down))
	var img *vfs.Mem
	if mode == byPower {
		img = n.mem.PowerCut(rng)
	}
	n.die(mode, img, down)
}

// die ends a life. img is what the disk looks like, nil for as it is.
func (n *node) die(mode crashMode, img *vfs.Mem, down int64) {
	w := n.w
	if img == nil {
		img = n.mem.Kill()
	}
	was := n.up
	n.mem, n.faulty = img, nil
	if n.full == 0 {
		n.mem.SetCapacity(0)
	}
	for i := range n.later {
		w.drop(&n.later[i])
	}
	n.later = nil
	n.up, n.phase, n.pausedTo, n.stopping = false, 0, 0, false
	w.died(n, mode, was)
	n.inOp = false
	n.armed = armed{}
	n.parts, n.dir, n.calls = nil, nil, nil
	if was || n.bootsAt == never {
		n.bootAt(w.now + down)
	}
}

func (n *node) pause(d int64) {
	if n.pausedTo <= n.w.now {
		n.pausedTo = n.w.now + d
		n.w.post(event{at: n.pausedTo, kind: evResume, to: n.id, life: n.life})
	}
}

func (n *node) resume() {
	n.pausedTo = 0
	list := n.later
	n.later = nil
	for _, e := range list {
		if e.kind == evResume {
			continue
		}
		e.at = n.w.now
		n.w.post(e)
	}
}

// broken reports whether one of its logs takes no more appends in this life.
func (n *node) broken() bool {
	for _, pt := range n.parts {
		if pt != nil && (pt.log.Err() != nil) {
			return true
		}
	}
	return false
}

// beginStop begins a controlled stop.
func (n *node) beginStop(forTime int64) {
	if !n.up || n.phase != serving || n.stopping || n.pausedTo > n.w.now {
		return
	}
	n.stopping, n.stopTold, n.stopDown, n.stopAt = true, false, forTime, n.w.now+2*sec
	n.call(opStop, 0, n.brokerEpoch)
	n.post(n.w.now+10*ms, evStop, 0, 0)
}

// goOnStopping hands over what the node leads, one step at a time, and then closes
// its folder.
func (n *node) goOnStopping() {
	w := n.w
	leads, busy := false, false
	for _, pt := range n.parts {
		if pt == nil {
			continue
		}
		busy = busy || pt.sync != nil
		if pt.p == nil {
			continue
		}
		st := pt.p.Status()
		if st.Role != isr.Leading {
			continue
		}
		if st.Resigned == nil {
			pt.p.Resign(n.clock(), errors.New("stops"), pt.fx)
			pt.settle()
			st = pt.p.Status()
		}
		for _, m := range st.Committed {
			if m.Node == n.id {
				continue
			}
			leads = true
			i := followerOf(st.Followers, m.Node)
			if n.stopTold && i >= 0 && st.Followers[i].LEO == st.LEO && !n.calling(opHandover, int32(pt.num)) {
				n.call(opHandover, int32(pt.num), &handover{from: n.id, to: m.Node, brokerEpoch: n.brokerEpoch, leaderEpoch: st.LeaderEpoch})
			}
			break
		}
	}
	if (leads || busy || !n.stopTold) && w.now < n.stopAt || busy && w.now < n.stopAt+60*sec {
		n.post(w.now+20*ms, evStop, 0, 0)
		return
	}
	w.tracef("n%d stops in order, leading %v", n.id, leads)
	if !w.calm {
		w.net.send(&message{op: opFence, from: n.id, to: coordinator, life: n.life, id: w.net.id(), body: n.brokerEpoch})
	}
	for _, pt := range n.parts {
		if pt != nil && pt.p != nil {
			pt.p.Resign(n.clock(), errors.New("stops"), pt.fx)
			pt.settle()
		}
	}
	w.checkNode(n, -1)
	if err := n.dir.Close(n.clock()); err != nil {
		w.cov.add("stop: folder does not close")
		w.tracef("n%d does not close: %v", n.id, err)
	} else {
		w.cov.add("stopped in order")
	}
	n.die(byKill, nil, n.stopDown)
}

// relief is a handover to a replica that has room for appends (F13).
type relief struct {
	on       bool
	to       int32
	epoch    int32
	until    int64
	proposed bool
}

// relieve begins one.
func (pt *part) relieve() {
	n, w := pt.n, pt.n.w
	st := pt.p.Status()
	if n.stopping || pt.relief.on || st.Role != isr.Leading || st.Resigned != nil {
		return
	}
	for _, m := range st.Committed {
		i := followerOf(st.Followers, m.Node)
		if m.Node == n.id || i < 0 || st.Followers[i].LEO != st.LEO || w.nodes[m.Node].full > 0 {
			continue
		}
		w.cov.add("F13 handover for want of room")
		w.tracef("n%d/%d has no room, hands over to n%d", n.id, pt.num, m.Node)
		pt.relief = relief{on: true, to: m.Node, epoch: st.LeaderEpoch, until: w.now + sec}
		pt.p.Resign(n.clock(), replica.ErrNoRoom, pt.fx)
		n.post(w.now, evRelief, int32(pt.num), 0)
		return
	}
}

// goOnRelieving asks the coordinator once the other one has everything, or leads on.
func (pt *part) goOnRelieving() {
	n, w, r := pt.n, pt.n.w, &pt.relief
	st := pt.p.Status()
	switch i := followerOf(st.Followers, r.to); {
	case st.Role != isr.Leading || st.LeaderEpoch != r.epoch || n.stopping:
		*r = relief{}
		return
	case !r.proposed && i >= 0 && st.Followers[i].LEO == st.LEO:
		r.proposed = true
		n.call(opHandover, int32(pt.num), &handover{from: n.id, to: r.to, brokerEpoch: n.brokerEpoch, leaderEpoch: r.epoch})
	case r.proposed && !n.calling(opHandover, int32(pt.num)) || !r.proposed && w.now >= r.until:
		w.cov.add("F13 handover that did not come about")
		*r = relief{}
		pt.p.Resume()
		return
	}
	n.post(w.now+20*ms, evRelief, int32(pt.num), 0)
}

func (n *node) calling(o op, part int32) bool {
	for _, c := range n.calls {
		if c != nil && c.op == o && c.part == part {
			return true
		}
	}
	return false
}

func followerOf(list []isr.FollowerStatus, id int32) int {
	for i := range list {
		if list[i].Node == id {
			return i
		}
	}
	return -1
}

// countFetch looks for a follower that spins (I26).
func (pt *part) countFetch() {
	n, w := pt.n, pt.n.w
	s := &pt.spin
	st := pt.f.State()
	now := [4]int64{pt.log.LogEndOffset(), pt.log.HighWatermark(), int64(st.LeaderEpoch), pt.log.LogStartOffset()}
	if now != s.at || st.Reconciled != s.reconciled || w.now-s.since > w.c.backoff {
		*s = spin{at: now, reconciled: st.Reconciled, since: w.now}
	}
	if s.count++; s.count > 30 {
		w.fail("I26", "node %d partition %d: %d requests within %v without progress", n.id, pt.num, s.count, time.Duration(w.now-s.since))
	}
}

type spin struct {
	at         [4]int64
	reconciled bool
	since      int64
	count      int
}
