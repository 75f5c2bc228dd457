package sim

import (
	"errors"
	"fmt"
	"slices"
	"sort"
	"time"

	"github.com/tidemark-log/tidemark/isr"
	"github.com/tidemark-log/tidemark/partition"
	"github.com/tidemark-log/tidemark/record"
	"github.com/tidemark-log/tidemark/replica"
)

// ghost is what the checkers know of a partition and no replica does.
type ghost struct {
	w      *world
	num    int
	record *partition.Record // newest that was looked at

	// canon is every batch that was ever below the high watermark of a leader, and
	// trueHW the highest one: what may never be lost.
	canon  []mark
	reigns []reign // in whose reigns they were committed
	trueHW int64

	// tree has every batch that any replica ever had, by leader epoch and base
	// offset, with its predecessor: two logs with the same batch are equal below it
	// if no batch has two contents or two predecessors (I3).
	tree    map[key]link
	leaders map[int32]author // who acted as leader in an epoch
	mirrors []*mirror        // by node
	proofs  [][]proof        // by leader and node: what it proved
	trimmed int64            // highest log start of any replica
	pids    map[int64]*pidState
	brokers []int64 // by node: newest broker epoch
	reads   []clientOp
}

// reign says that all below end was committed in an epoch or before it.
type reign struct {
	epoch int32
	n     int // of canon
}

type key struct {
	epoch int32
	base  int64
}

type link struct {
	crc  uint32
	end  int64
	prev key
	root bool // predecessor unknown: a log began here
}

type author struct {
	node        int32
	brokerEpoch int64
}

// mark is what a checker keeps of a batch.
type mark struct {
	key
	end    int64
	crc    uint32
	seq    int32
	pid    int64
	number int64 // of the client's batch
}

// proof is the last fetch that a leader took from a replica.
type proof struct {
	leaderEpoch int32
	brokerEpoch int64
	offset      int64
	lag         lagClock
}

// lagClock is A6 in virtual time.
type lagClock struct {
	brokerEpoch      int64
	leo              int64 // largest of the leader at a fetch
	fetched, current int64 // the last fetch, and when it had everything
}

func (c *lagClock) fetch(q *partition.Fetch, leo, now int64) {
	if c.brokerEpoch != q.BrokerEpoch {
		*c = lagClock{brokerEpoch: q.BrokerEpoch}
	}
	switch {
	case q.Offset >= leo:
		c.current = now
	case q.Offset >= c.leo:
		c.current = max(c.current, c.fetched)
	}
	c.leo, c.fetched = max(c.leo, leo), now
}

type pidState struct {
	next int32
	end  int64
}

// mirror is one replica's log as far as it was seen, held tail included. It
// outlives the process.
type mirror struct {
	list      []mark
	start     int64 // log start
	verified  int64 // end of what was read in this life
	confirmed int64 // highest offset that it confirmed
	unsure    bool  // power failed since it was looked at, or it is damaged
	inOp      bool  // it died in a disk operation
	led       int32 // epoch in which it led when it died, −1 if it did not
	lost      bool  // it opened shorter than it was, and the node did not register since
}

func (m *mirror) end() int64 {
	if n := len(m.list); n > 0 {
		return m.list[n-1].end
	}
	return m.start
}

// find is the index of the batch that begins at base, or of the first behind it.
func find(list []mark, base int64) int {
	if n := len(list); n > 0 && list[n-1].base < base {
		return n
	}
	return sort.Search(len(list), func(i int) bool { return list[i].base >= base })
}

func (m *mirror) has(c mark) bool {
	i := find(m.list, c.base)
	return i < len(m.list) && m.list[i] == c
}

// seen is what a replica looked like after its last step.
type seen struct {
	role         isr.Role
	epoch        int32
	hw           int64
	partitionEp  int32
	hasPartition bool
}

func newGhost(w *world, num int, r *partition.Record) *ghost {
	g := &ghost{w: w, num: num, tree: map[key]link{}, leaders: map[int32]author{}, pids: map[int64]*pidState{},
		brokers: make([]int64, w.c.nodes)}
	for range w.c.nodes {
		g.mirrors = append(g.mirrors, &mirror{led: -1})
		g.proofs = append(g.proofs, make([]proof, w.c.nodes))
	}
	return g
}

// opened takes note of a log that was opened.
func (w *world) opened(pt *part, there bool) {
	m := pt.g.mirrors[pt.n.id]
	pt.journal = m
	if !there {
		*m = mirror{led: -1}
	}
	l := pt.log
	m.unsure = l.Damage() != nil
	if m.unsure {
		w.cov.add("log damaged")
		return
	}
	m.start = l.LogStartOffset()
	m.verified = m.start
	_, end, held := l.Held()
	if !held {
		end = l.LogEndOffset()
	}
	n := len(m.list)
	for n > 0 && m.list[n-1].end > end {
		n--
	}
	if n < len(m.list) {
		m.lost = true
		w.cov.add("life: unsynced tail lost")
		w.tracef("n%d/%d lost its tail from %d on, confirmed %d", pt.n.id, pt.num, end, m.confirmed)
	}
	if end < m.confirmed {
		w.cov.add("life: confirmed tail lost")
		if w.c.syncOf(pt.num) == replica.Always && !m.inOp { // else a cut may have been under way
			w.check(pt.log.Evidence() == partition.Suspect, "R6", "node %d partition %d opens with end %d under sync always, it confirmed %d, evidence %v", pt.n.id, pt.num, end, m.confirmed, pt.log.Evidence())
		}
	}
	m.confirmed = min(m.confirmed, end)
	if m.list = m.list[:n]; m.end() < m.start {
		m.list = m.list[:0]
	}
	w.check(l.HighWatermark() <= l.LogEndOffset(), "I9", "node %d partition %d opens with HWc %d above its end %d", pt.n.id, pt.num, l.HighWatermark(), l.LogEndOffset())
	w.scan(pt)
	if hw := l.HighWatermark(); hw > pt.g.trueHW && m.led >= 0 {
		w.commit(pt, hw, m.led) // it died in the step in which it raised it
	}
	m.led = -1
}

// died takes note of the end of a life, or of what comes after it.
func (w *world) died(n *node, mode crashMode, was bool) {
	for num, g := range w.parts {
		m := g.mirrors[n.id]
		if was {
			m.inOp = n.inOp
		}
		if mode == byPower {
			m.unsure = true
		}
		if n.parts != nil && n.parts[num] != nil && n.parts[num].seen.role == isr.Leading {
			m.led = n.parts[num].seen.epoch
		}
	}
}

// scan reads what a step added to a log, or notes what it cut.
func (w *world) scan(pt *part) {
	m, l := pt.journal, pt.log
	if m.unsure {
		return
	}
	start, leo := l.LogStartOffset(), l.LogEndOffset()
	_, end, held := l.Held()
	if !held {
		end = leo
	}
	pt.g.trimmed = max(pt.g.trimmed, start)
	if m.end() > end {
		w.cut(pt, end, start)
	}
	m.start = start
	m.verified = min(m.verified, leo)
	m.verified = max(m.verified, start)
	if start >= m.end() { // it may have begun anew, and begin a little lower with its first batch
		m.list = m.list[:0]
	}
	for m.verified < leo {
		v, err := l.ViewUnchecked(m.verified, leo, 1<<20)
		if err != nil || len(v.Bytes) == 0 {
			if errors.Is(err, replica.ErrFailed) || l.Err() != nil {
				m.unsure = true
				v.Release()
				return
			}
			w.fail("I2", "node %d partition %d: nothing to read from %d to %d: %v", pt.n.id, pt.num, m.verified, leo, err)
		}
		for b := v.Bytes; len(b) > 0; {
			batch := record.Batch(b)
			w.appended(pt, batch)
			b = b[batch.Size():]
		}
		v.Release()
	}
}

func markOf(b record.Batch) mark {
	return mark{key: key{b.LeaderEpoch(), b.BaseOffset()}, end: b.NextOffset(), crc: b.CRC(), pid: b.ProducerID(), seq: b.BaseSequence(),
		number: b.BaseTimestamp() - epoch.UnixMilli()}
}

// appended takes one batch of a log that was not read in this life.
func (w *world) appended(pt *part, b record.Batch) {
	g, m, x := pt.g, pt.journal, markOf(b)
	m.verified = x.end
	w.mix(uint64(x.base)<<20 ^ uint64(x.crc))
	i := find(m.list, x.base)
	if i < len(m.list) {
		w.check(m.list[i] == x, "I3", "node %d partition %d: batch at %d is %v, it was %v", pt.n.id, pt.num, x.base, x, m.list[i])
		return
	}
	here := link{crc: x.crc, end: x.end, root: true}
	if i > 0 && m.list[i-1].end > m.start { // what lies below the log start may be anything
		last := m.list[i-1]
		w.check(last.epoch <= x.epoch, "I2", "node %d partition %d: epoch %d at offset %d behind epoch %d", pt.n.id, pt.num, x.epoch, x.base, last.epoch)
		w.check(last.end == x.base, "I2", "node %d partition %d: batch at %d behind one that ends at %d", pt.n.id, pt.num, x.base, last.end)
		here.prev, here.root = last.key, false
	}
	was, ok := g.tree[x.key]
	switch {
	case !ok:
		g.tree[x.key] = here
		a, led := g.leaders[x.epoch]
		w.check(led && a.node == pt.n.id, "I1", "node %d partition %d has a batch of epoch %d at %d that its leader, %v, never had", pt.n.id, pt.num, x.epoch, x.base, a)
	case was.crc != here.crc || was.end != here.end:
		w.fail("I3", "node %d partition %d: batch at %d of epoch %d ends at %d, elsewhere at %d, or has other bytes", pt.n.id, pt.num, x.base, x.epoch, here.end, was.end)
	case was.root && !here.root:
		g.tree[x.key] = here
	case !here.root && was.prev != here.prev:
		w.fail("I3", "node %d partition %d: batch at %d of epoch %d follows %v, elsewhere %v", pt.n.id, pt.num, x.base, x.epoch, here.prev, was.prev)
	}
	m.list = append(m.list, x)
}

// cut takes note of a log that was cut to end.
func (w *world) cut(pt *part, end, start int64) {
	g, m, n := pt.g, pt.journal, pt.n
	k := len(m.list)
	for k > 0 && m.list[k-1].end > end {
		k--
	}
	w.cov.add("log cut")
	w.tracef("n%d/%d cut from %d to %d", n.id, pt.num, m.end(), end)
	n.changed(onCut)
	if pt.seen.role == isr.Leading {
		if st := pt.p.Status(); st.Role == isr.Leading && st.LeaderEpoch == pt.seen.epoch {
			w.fail("I12", "node %d partition %d leads epoch %d and cut its log from %d to %d", n.id, pt.num, st.LeaderEpoch, m.end(), end)
		}
	}
	for _, x := range m.list[k:] {
		if x.end <= start {
			continue
		}
		i := find(g.canon, x.base)
		if i < len(g.canon) && g.canon[i] == x {
			w.cov.add("committed records cut by one that is no candidate")
			w.check(!w.candidate(g, n), "I11", "node %d partition %d cut committed batch %d to %d, true HW %d, and is a candidate: isr %s elr %s",
				n.id, pt.num, x.base, x.end, g.trueHW, members(g.record.ISR), members(g.record.ELR))
			break
		}
	}
	m.list = m.list[:k]
	m.confirmed = min(m.confirmed, end)
}

// candidate reports whether a node may be elected as it is.
func (w *world) candidate(g *ghost, n *node) bool {
	r := w.coord.c.Record(partition.ID{Topic: w.topic, Partition: int32(g.num)})
	if r == nil {
		return false
	}
	for _, list := range [][]partition.Member{r.ISR, r.ELR} {
		if m, ok := partition.Find(list, n.id); ok && m.BrokerEpoch == n.brokerEpoch && w.coord.c.Node(n.id).BrokerEpoch == n.brokerEpoch {
			return true
		}
	}
	return false
}

// covers reports whether a log has all that is committed.
func (g *ghost) covers(m *mirror) bool {
	n := len(g.canon)
	return n == 0 || m.has(g.canon[n-1]) || m.start >= g.canon[n-1].end
}

// coversBefore is covers for what was committed before a leader epoch began, or in
// it: one that hears late of its old reign need not have more.
func (g *ghost) coversBefore(m *mirror, epoch int32) bool {
	n := 0
	for i := len(g.reigns) - 1; i >= 0; i-- {
		if g.reigns[i].epoch <= epoch {
			n = g.reigns[i].n
			break
		}
	}
	return n == 0 || m.has(g.canon[n-1]) || m.start >= g.canon[n-1].end
}

// checkNode looks at what an event did to a node; part −1 is all of them.
func (w *world) checkNode(n *node, part int) {
	if !n.up {
		return
	}
	for _, pt := range n.parts {
		if pt != nil && (part < 0 || pt.num == part) {
			w.checkPart(pt)
		}
	}
}

func (w *world) checkPart(pt *part) {
	g, l, n := pt.g, pt.log, pt.n
	if pt.p != nil {
		w.checkRole(pt)
	}
	w.scan(pt)
	start, hw, leo := l.LogStartOffset(), l.HighWatermark(), l.LogEndOffset()
	w.mix(uint64(leo)<<32 ^ uint64(hw))
	if pt.journal.unsure {
		return
	}
	if start > hw || hw > leo {
		w.fail("I9", "node %d partition %d: log start %d, HW %d, end %d", n.id, pt.num, start, hw, leo)
	}
	if w.c.syncOf(pt.num) == replica.Always && hw > l.SyncedEnd() && l.Err() == nil {
		w.fail("I9", "node %d partition %d: HW %d, synced end %d", n.id, pt.num, hw, l.SyncedEnd())
	}
	if hw == pt.seen.hw {
		return
	}
	if pt.seen.role == isr.Leading {
		w.leaderMoved(pt)
	}
	w.check(hw <= g.trueHW, "I10", "node %d partition %d: HW %d, no leader was ever above %d", n.id, pt.num, hw, g.trueHW)
	if hw > pt.seen.hw && hw > start {
		// I4: what it takes for committed is.
		i := find(g.canon, hw) - 1
		if i >= 0 && g.canon[i].end <= hw && g.canon[i].base >= start {
			w.check(pt.journal.has(g.canon[i]), "I4", "node %d partition %d: below its HW %d it lacks committed batch %v", n.id, pt.num, hw, g.canon[i])
		}
	}
	pt.seen.hw = hw
}

// checkRole looks at who leads.
func (w *world) checkRole(pt *part) {
	g, n, s := pt.g, pt.n, &pt.seen
	st := pt.p.Status()
	if st.Record != nil {
		if s.hasPartition {
			w.check(st.Record.PartitionEpoch >= s.partitionEp, "I2", "node %d partition %d: partition epoch %d after %d", n.id, pt.num, st.Record.PartitionEpoch, s.partitionEp)
		}
		s.partitionEp, s.hasPartition = st.Record.PartitionEpoch, true
		if k := len(pt.journal.list); k > 0 && st.Role != isr.Idle && !pt.journal.unsure {
			last := pt.journal.list[k-1].epoch
			w.check(last <= st.Record.LeaderEpoch || st.Role == isr.Declined, "I2", "node %d partition %d is %v in epoch %d, its log has epoch %d", n.id, pt.num, st.Role, st.Record.LeaderEpoch, last)
		}
	}
	begins := st.Role == isr.Leading && (s.role != isr.Leading || s.epoch != st.LeaderEpoch)
	if begins {
		a := author{n.id, n.brokerEpoch}
		was, ok := g.leaders[st.LeaderEpoch]
		w.check(!ok || was == a, "I1", "partition %d epoch %d is led by node %d (broker epoch %d) and by node %d (%d)", pt.num, st.LeaderEpoch, was.node, was.brokerEpoch, a.node, a.brokerEpoch)
		g.leaders[st.LeaderEpoch] = a
		if !ok {
			w.cov.add("leader elected")
		}
		w.scan(pt) // what it cut, it cut before it led
		s.hw = 0
		for i := range g.proofs[n.id] {
			g.proofs[n.id][i].lag = lagClock{}
		}
		for _, m := range st.Record.ISR {
			g.proofs[n.id][m.Node].lag = lagClock{brokerEpoch: m.BrokerEpoch, current: w.now} // a full period
		}
	}
	hw := pt.log.HighWatermark()
	if st.Role == isr.Leading && !begins && hw < s.hw {
		w.fail("I8", "node %d partition %d leads epoch %d, its HW went from %d to %d", n.id, pt.num, st.LeaderEpoch, s.hw, hw)
	}
	s.role, s.epoch = st.Role, st.LeaderEpoch
	if begins {
		w.check(pt.journal.unsure || g.coversBefore(pt.journal, st.LeaderEpoch), "I6", "node %d leads partition %d in epoch %d without a committed batch: it has %d to %d, true HW is %d", n.id, pt.num, st.LeaderEpoch,
			pt.journal.start, pt.journal.end(), g.trueHW)
	}
	if st.Role == isr.Leading {
		w.checkMaximal(pt, &st)
		if len(st.Committed) > 0 {
			w.cov.state(st.Role, false, true, inISR(&st, n.id), st.Pending != nil)
		}
		return
	}
	f := pt.f.State()
	w.cov.state(st.Role, f.Held, f.Reconciled, inISR(&st, n.id), false)
}

// where a replica stands in its record.
func inISR(st *isr.Status, id int32) int {
	if st.Record == nil {
		return 0
	}
	if _, ok := partition.Find(st.Record.ISR, id); ok {
		return 2
	}
	if _, ok := partition.Find(st.Record.ELR, id); ok {
		return 1
	}
	return 0
}

// checkMaximal is I7.
func (w *world) checkMaximal(pt *part, st *isr.Status) {
	r := pt.g.record
	if r == nil || r.Leader != pt.n.id || r.LeaderEpoch != st.LeaderEpoch || len(st.Committed) < int(st.Record.MinISR) {
		return
	}
	for _, list := range [][]partition.Member{r.ISR, r.ELR} {
		for _, m := range list {
			if _, ok := partition.Find(st.Maximal, m.Node); !ok {
				w.fail("I7", "partition %d: node %d may be elected, leader %d in epoch %d counts %s only; isr %s elr %s", pt.num, m.Node, pt.n.id, st.LeaderEpoch, members(st.Maximal), members(r.ISR), members(r.ELR))
			}
		}
	}
}

// leaderMoved makes what a leader takes for committed the truth.
func (w *world) leaderMoved(pt *part) {
	g := pt.g
	hw := pt.log.HighWatermark()
	if hw <= g.trueHW || pt.journal.unsure {
		return
	}
	w.checkRole(pt)
	if pt.seen.role != isr.Leading {
		return
	}
	w.scan(pt)
	w.commit(pt, hw, pt.seen.epoch)
}

// commit makes all of a log below hw committed in a leader's epoch.
func (w *world) commit(pt *part, hw int64, epoch int32) {
	g, m := pt.g, pt.journal
	from := int64(0)
	if n := len(g.canon); n > 0 {
		from = g.canon[n-1].end
		w.check(g.covers(m), "I6", "node %d partition %d moves the true HW from %d to %d and lacks %v", pt.n.id, pt.num, g.trueHW, hw, g.canon[n-1])
	}
	for _, x := range m.list[find(m.list, from):] {
		if x.end > hw {
			break
		}
		g.canon = append(g.canon, x)
		w.committed(g, x)
	}
	g.trueHW = hw
	if n := len(g.reigns); n > 0 && g.reigns[n-1].epoch == epoch {
		g.reigns[n-1].n = len(g.canon)
	} else {
		w.check(n == 0 || g.reigns[n-1].epoch < epoch, "I8", "node %d partition %d moves the true HW to %d in epoch %d, it was moved in a later one", pt.n.id, pt.num, hw, epoch)
		g.reigns = append(g.reigns, reign{epoch, len(g.canon)})
	}
	w.checkCandidates(g)
}

// committed is I20 for one batch that became committed.
func (w *world) committed(g *ghost, x mark) {
	if x.number < 0 || x.number >= int64(len(w.batches)) {
		w.fail("I19", "partition %d: committed batch %v was never sent", g.num, x)
	}
	if x.pid < 0 {
		return
	}
	s := w.batches[x.number]
	p := g.pids[x.pid]
	if p == nil {
		p = &pidState{next: x.seq}
		g.pids[x.pid] = p
	}
	if x.seq != p.next && p.end > g.trimmed {
		w.fail("I20", "partition %d: producer %d has sequence %d at offset %d behind sequence %d", g.num, x.pid, x.seq, x.base, p.next-1)
	}
	p.next, p.end = x.seq+s.records, x.end
}

// checkCandidates is I5: who may be elected has all that is committed.
func (w *world) checkCandidates(g *ghost) {
	r := g.record
	if r == nil {
		return
	}
	for _, list := range [][]partition.Member{r.ISR, r.ELR} {
		for _, e := range list {
			m := g.mirrors[e.Node]
			if m.unsure || m.lost || e.BrokerEpoch != g.brokers[e.Node] {
				continue
			}
			w.check(g.covers(m), "I5", "partition %d: node %d may be elected and has %d to %d only, true HW is %d; isr %s elr %s", g.num, e.Node, m.start, m.end(), g.trueHW, members(r.ISR), members(r.ELR))
		}
	}
}

// checkRecords looks at what the coordinator decided.
func (w *world) checkRecords() {
	for num, g := range w.parts {
		r := w.coord.c.Record(partition.ID{Topic: w.topic, Partition: int32(num)})
		if r == g.record {
			continue
		}
		was := g.record
		w.check(r != nil, "I15", "partition %d has no record any more", num)
		w.tracef("coordinator: partition %d leader %d epochs %d %d isr %s elr %s last known %s", num, r.Leader, r.LeaderEpoch, r.PartitionEpoch, members(r.ISR), members(r.ELR), members(r.LastKnown))
		if err := r.Check(); err != nil {
			w.fail("I13", "%v", err)
		}
		w.mix(uint64(r.PartitionEpoch)<<32 ^ uint64(r.LeaderEpoch)<<8 ^ uint64(uint32(r.Leader)))
		g.record = r
		if r.Leader == partition.None {
			w.cov.add("leaderless")
		}
		if len(r.ELR) > 0 {
			w.cov.add("ELR used")
		}
		for id := range g.brokers {
			g.brokers[id] = w.coord.c.Node(int32(id)).BrokerEpoch
		}
		if was != nil {
			w.checkChange(g, was, r)
		}
		w.checkCandidates(g)
		if r.Leader >= 0 {
			if n := w.nodes[r.Leader]; n.up && n.parts[num] != nil && n.parts[num].p != nil {
				if st := n.parts[num].p.Status(); st.Role == isr.Leading {
					w.checkMaximal(n.parts[num], &st)
				}
			}
		}
	}
}

// checkChange is I14 and I15.
func (w *world) checkChange(g *ghost, was, r *partition.Record) {
	w.check(r.PartitionEpoch > was.PartitionEpoch && r.LeaderEpoch >= was.LeaderEpoch && r.Revision > was.Revision,
		"I15", "partition %d: epochs %d %d, revision %d after %d %d, %d", g.num, r.LeaderEpoch, r.PartitionEpoch, r.Revision, was.LeaderEpoch, was.PartitionEpoch, was.Revision)
	w.check(r.Leader == was.Leader || r.LeaderEpoch > was.LeaderEpoch, "I15", "partition %d: leader %d after %d in epoch %d", g.num, r.Leader, was.Leader, r.LeaderEpoch)
	for _, m := range r.ISR {
		had, ok := partition.Find(was.ISR, m.Node)
		if ok && had == m {
			continue
		}
		w.check(m.BrokerEpoch == g.brokers[m.Node], "I14", "partition %d: %v enters the ISR, node %d is in its life %d", g.num, m, m.Node, g.brokers[m.Node])
		if len(was.ISR) > 0 && r.LeaderEpoch == was.LeaderEpoch && !(ok && had.BrokerEpoch == m.BrokerEpoch) {
			w.cov.add("ISR entered")
			p := g.proofs[r.Leader][m.Node]
			w.check(p.brokerEpoch == m.BrokerEpoch && p.leaderEpoch == r.LeaderEpoch, "I14", "partition %d: %v enters the ISR in epoch %d, its last fetch was %+v", g.num, m, r.LeaderEpoch, p)
		}
	}
	if len(r.ISR) < len(was.ISR) {
		w.cov.add("ISR left")
	}
}

// proposed is I14 at the moment of the proposal: a newcomer has proved that it has
// all that was committed before.
func (w *world) proposed(pt *part, a *partition.Alter) {
	st := pt.p.Status()
	w.tracef("n%d/%d proposes %d: isr %s in epochs %d %d, hw %d", pt.n.id, pt.num, a.Seq, members(a.ISR), a.LeaderEpoch, a.PartitionEpoch, st.HighWatermark)
	if a.Seq == pt.proposed {
		return // said again
	}
	pt.proposed = a.Seq
	for _, m := range st.Committed {
		c := &pt.g.proofs[pt.n.id][m.Node].lag
		if _, stays := partition.Find(a.ISR, m.Node); stays || m.BrokerEpoch != c.brokerEpoch || pt.n.roster.Node(m.Node).BrokerEpoch != m.BrokerEpoch {
			continue // or it is of a life that is over
		}
		if c.current == 0 {
			continue // in this life it joined at a high watermark that is far behind (A7)
		}
		w.cov.add("A6 taken out")
		// No clock is so much faster.
		w.check(w.now-c.current > w.c.lagMax*9/10, "A6", "partition %d: leader %d proposes node %d away, which had everything %v ago, the limit is %v",
			pt.num, pt.n.id, m.Node, time.Duration(w.now-c.current), time.Duration(w.c.lagMax))
	}
	for _, m := range a.ISR {
		if m.Node == pt.n.id {
			continue
		}
		if _, ok := partition.Find(st.Committed, m.Node); ok {
			continue
		}
		p := pt.g.proofs[pt.n.id][m.Node]
		w.check(p.leaderEpoch == a.LeaderEpoch && p.brokerEpoch == m.BrokerEpoch && p.offset >= max(st.EpochStart, st.HighWatermark), "I14",
			"partition %d: leader %d in epoch %d (from %d, HW %d) proposes %v, whose last fetch was %+v", pt.num, pt.n.id, a.LeaderEpoch, st.EpochStart, st.HighWatermark, m, p)
	}
}

// altered is I23 for the coordinator: what was forged changes nothing.
func (w *world) altered(m *message, r partition.Altered) {
	g := w.parts[m.part]
	if m.from != hostile {
		return
	}
	now := w.coord.c.Record(g.record.ID)
	// A success may answer a forged copy of what the record says already.
	if now != g.record || r.Code == partition.OK && !slices.Equal(now.ISR, m.alter.ISR) {
		w.fail("I23", "the coordinator answers %v to a forged proposal %+v", r.Code, *m.alter)
	}
}

// registered is I16.
func (w *world) registered(id int32, r *registered) {
	if r.a.Code != partition.OK {
		return
	}
	if n := w.nodes[id]; n.up && n.incarnation == r.q.Incarnation {
		for _, g := range w.parts {
			g.mirrors[id].lost = false
		}
	}
	if w.lives == nil {
		w.lives = map[int64]partition.UUID{}
	}
	if u, ok := w.lives[r.a.BrokerEpoch]; ok {
		w.check(u == r.q.Incarnation, "I16", "broker epoch %d is given to two lives", r.a.BrokerEpoch)
		return
	}
	w.check(r.a.BrokerEpoch > w.lastLife, "I16", "broker epoch %d after %d", r.a.BrokerEpoch, w.lastLife)
	w.lastLife = r.a.BrokerEpoch
	w.lives[r.a.BrokerEpoch] = r.q.Incarnation
}

// confirmed is R6: a follower confirms by a fetch what it has.
func (w *world) confirmed(pt *part, q *partition.Fetch) {
	w.scan(pt)
	if !pt.f.State().Reconciled {
		w.fail("I10", "node %d partition %d fetches at %d before it is reconciled", pt.n.id, pt.num, q.Offset)
	}
	if w.c.syncOf(pt.num) == replica.Always && q.Offset > pt.log.SyncedEnd() {
		w.fail("R6", "node %d partition %d confirms %d, synced end %d", pt.n.id, pt.num, q.Offset, pt.log.SyncedEnd())
	}
	// With nothing in it, and so not at its leader's high watermark, a log may yet begin
	// below that, where the batch begins that its leader's log start lies in (A15).
	if q.Offset > pt.log.LogStartOffset() {
		pt.journal.confirmed = max(pt.journal.confirmed, q.Offset)
	}
}

// beforeFetch remembers a leader as it is, now and then.
func (w *world) beforeFetch(pt *part, m *message) *isr.Status {
	if w.count%16 != 0 && m.from != hostile {
		return nil
	}
	st := pt.p.Status()
	return &st
}

// afterFetch is I23, and notes what a follower has proved.
func (w *world) afterFetch(pt *part, m *message, a *isr.Answer, before *isr.Status) {
	q := &m.fetch
	// What is answered is gone from here before the step ends.
	if a != nil && a.HighWatermark > pt.g.trueHW {
		w.leaderMoved(pt)
	} else if a != nil && len(a.Records) > 0 {
		w.scan(pt)
	}
	taken := a == nil || a.Code == partition.OK && !a.Diverging && !a.Drop
	if taken && m.from == hostile {
		w.fail("I23", "node %d partition %d takes a fetch that was forged: %+v", pt.n.id, pt.num, *q)
	}
	if taken {
		p := &pt.g.proofs[pt.n.id][q.Replica]
		if q.LeaderEpoch > p.leaderEpoch || q.BrokerEpoch >= p.brokerEpoch {
			p.leaderEpoch, p.brokerEpoch, p.offset = q.LeaderEpoch, q.BrokerEpoch, q.Offset
		}
		p.lag.fetch(q, pt.log.LogEndOffset(), w.now)
		return
	}
	if before == nil {
		return
	}
	st := pt.p.Status()
	if st.HighWatermark != before.HighWatermark || st.LEO != before.LEO || st.LogStart != before.LogStart ||
		!slices.Equal(st.Followers, before.Followers) || !slices.Equal(st.Maximal, before.Maximal) {
		w.fail("I23", "node %d partition %d refuses a fetch with %v and is not as before: %+v, was %+v", pt.n.id, pt.num, a.Code, st, *before)
	}
	w.cov.add("I23 looked at")
}

// acked is I17 and I18.
func (w *world) acked(pt *part, wt *waiter, q *produce) {
	g, n := pt.g, pt.n
	w.tracef("n%d/%d acks batch %d at %d to %d, acks %d, duplicate %v", n.id, pt.num, q.s.number, wt.Base, wt.End, q.acks, wt.Duplicate)
	if pt.log.Err() != nil {
		w.fail("R8", "node %d partition %d acks %d to %d after %v", n.id, pt.num, wt.Base, wt.End, pt.log.Err())
	}
	if q.acks == 1 {
		w.check(pt.log.CountedEnd() >= wt.End, "I18", "node %d partition %d acks %d with counted end %d", n.id, pt.num, wt.End, pt.log.CountedEnd())
		return
	}
	w.leaderMoved(pt)
	w.check(wt.End <= g.trueHW, "I17", "node %d partition %d acks %d to %d, true HW is %d", n.id, pt.num, wt.Base, wt.End, g.trueHW)
	st := pt.p.Status()
	if st.Role == isr.Leading {
		w.check(len(st.Maximal) >= int(st.Record.MinISR), "I17", "node %d partition %d acks %d with ISR %s", n.id, pt.num, wt.End, members(st.Maximal))
		for _, m := range st.Maximal {
			other := w.nodes[m.Node]
			if !other.up || other.brokerEpoch != m.BrokerEpoch || other.parts[pt.num] == nil {
				continue
			}
			o := other.parts[pt.num]
			have := o.journal.end()
			if w.c.syncOf(pt.num) == replica.Always {
				have = min(have, o.log.SyncedEnd())
			}
			w.check(have >= wt.End || o.journal.unsure || o.journal.start >= wt.End, "I17", "node %d partition %d acks %d to %d, node %d, which may be elected, has %d", n.id, pt.num, wt.Base, wt.End, m.Node, have)
		}
	}
	i := find(g.canon, wt.Base)
	if i == len(g.canon) || g.canon[i].base != wt.Base || g.canon[i].end != wt.End || g.canon[i].number != q.s.number {
		if wt.End > pt.journal.start {
			w.fail("I20", "node %d partition %d acks batch %d at %d to %d, another one is there", n.id, pt.num, q.s.number, wt.Base, wt.End)
		}
	}
	q.s.acked, q.s.base = true, wt.Base
}

// served is I19: what is read is committed.
func (w *world) served(pt *part, q *consume, a *consumed) {
	g, n := pt.g, pt.n
	if a.err != nil {
		return
	}
	w.check(n.leaseSent >= 0 && w.now < n.leaseSent+w.c.ttl, "R28", "node %d partition %d serves reads, its session ended", n.id, pt.num)
	if q.latest {
		w.leaderMoved(pt)
		w.check(a.offset <= g.trueHW, "I19", "node %d partition %d: latest offset %d, true HW %d", n.id, pt.num, a.offset, g.trueHW)
		return
	}
	for b := a.bytes; len(b) > 0; {
		batch := record.Batch(b)
		x := markOf(batch)
		i := find(g.canon, x.base)
		if x.end > g.trueHW || i == len(g.canon) || g.canon[i] != x {
			w.fail("I19", "node %d partition %d serves batch %v, committed is something else; true HW %d", n.id, pt.num, x, g.trueHW)
		}
		if _, err := record.Check(batch); err != nil {
			w.fail("I19", "node %d partition %d serves a batch that is not valid: %v", n.id, pt.num, err)
		}
		b = b[batch.Size():]
	}
}

// checkSometimes are the checks that look at everything.
func (w *world) checkSometimes() {
	for _, n := range w.nodes {
		if !n.up {
			continue
		}
		for _, pt := range n.parts {
			if pt == nil || pt.journal.unsure || pt.log.Err() != nil {
				continue
			}
			w.scan(pt)
			w.checkEpochs(pt)
			w.checkProducers(pt)
		}
	}
	dead := len(w.parts) > 0
	for _, g := range w.parts {
		w.checkCandidates(g)
		dead = dead && g.record.Leader == partition.None && len(g.record.ELR) == 0
	}
	if dead && !w.calm {
		// Nobody is known to have everything, anywhere: nothing more can happen.
		w.cov.add("ended early: no partition has a survivor")
		w.beginCalm()
	}
}

// checkEpochs is I22.
func (w *world) checkEpochs(pt *part) {
	m := pt.journal
	_, _, held := pt.log.Held()
	got := pt.log.Epochs()
	for i := 1; i < len(got); i++ {
		if got[i].Epoch <= got[i-1].Epoch || got[i].StartOffset <= got[i-1].StartOffset {
			w.fail("I22", "node %d partition %d: leader epochs %v", pt.n.id, pt.num, got)
		}
	}
	if held {
		return
	}
	var want []replica.Epoch
	for i, x := range m.list {
		if x.end <= m.start {
			continue
		}
		if len(want) == 0 || m.list[i].epoch != want[len(want)-1].Epoch {
			want = append(want, replica.Epoch{Epoch: x.epoch, StartOffset: max(x.base, m.start)})
		}
	}
	if n := len(got); n > 0 && got[n-1].StartOffset >= m.end() {
		w.check(got[n-1].StartOffset == pt.log.LogEndOffset() || got[n-1].StartOffset <= m.start, "I22", "node %d partition %d: leader epochs %v, the log ends at %d", pt.n.id, pt.num, got, pt.log.LogEndOffset())
		got = got[:n-1]
	}
	// Below the log start only the last entry counts.
	if len(got) > 0 && got[0].StartOffset < m.start {
		got = slices.Clone(got)
		got[0].StartOffset = m.start
	}
	if !slices.Equal(got, want) && !(len(want) == 0 && len(got) <= 1) {
		w.fail("I22", "node %d partition %d: leader epochs %v, the batches say %v; log %d to %d", pt.n.id, pt.num, pt.log.Epochs(), want, m.start, m.end())
	}
}

// checkProducers is I21 for the producers that have something in the log.
func (w *world) checkProducers(pt *part) {
	m := pt.journal
	if _, _, held := pt.log.Held(); held {
		return
	}
	done := w.pidsDone[:0]
	for i := len(m.list) - 1; i >= 0 && i > len(m.list)-40; i-- {
		x := m.list[i]
		if x.pid < 0 || slices.Contains(done, x.pid) || x.end <= m.start {
			continue
		}
		done = append(done, x.pid)
		p, ok := pt.log.Producer(x.pid)
		last, some := p.Last()
		if !ok || !some || last.LastOffset != x.end-1 || last.FirstSequence() != x.seq {
			w.fail("I21", "node %d partition %d: producer %d is %+v, its last batch is at %d to %d, sequence %d", pt.n.id, pt.num, x.pid, p, x.base, x.end, x.seq)
		}
	}
	w.pidsDone = done
}

// checkRest is I25: is everything at rest, or will it never be?
func (w *world) checkRest() {
	for _, n := range w.nodes {
		if n.up && !n.stopping && n.broken() { // by a sync that failed before the faults ended
			n.crash(byKill, 100*ms, nil)
		}
	}
	why := w.restless()
	if why == "" {
		w.atRest()
		w.settled, w.stopped = true, true
		return
	}
	// A follower that is far behind may need many fetches: as long as more is copied than
	// ever was, it goes on.
	copied := int64(0)
	for _, n := range w.nodes {
		for _, pt := range n.parts {
			if pt != nil {
				copied += pt.log.LogEndOffset()
			}
		}
	}
	if copied > w.copied {
		w.copied, w.movedAt = copied, w.now
	}
	bound := 60*sec + 20*(w.c.ttl+w.c.lagMax+w.c.backoff+w.c.fetchTimeout+w.c.callTimeout+w.c.clientWait)
	if w.now-max(w.calmFrom, w.movedAt) > bound {
		w.fail("I25", "%v after the faults ended: %s", time.Duration(w.now-w.calmFrom), why)
	}
}

// restless says what has not come to rest.
func (w *world) restless() string {
	if len(w.parts) == 0 {
		return ""
	}
	for _, n := range w.nodes {
		if n.phase != serving || n.stopping {
			return fmt.Sprintf("node %d is in phase %d", n.id, n.phase)
		}
	}
	dead := map[int]bool{}
	for num, g := range w.parts {
		r := g.record
		if r.Leader == partition.None && len(r.ISR)+len(r.ELR) == 0 {
			dead[num] = true // nobody is known to have all: reported, not guessed
			continue
		}
		if r.Leader == partition.None {
			return fmt.Sprintf("partition %d has no leader, elr %s", num, members(r.ELR))
		}
		if len(r.ISR) != len(r.Replicas) {
			damaged := 0
			for _, id := range r.Replicas {
				if pt := w.nodes[id].parts[num]; pt != nil && pt.log.Damage() != nil {
					damaged++
				}
			}
			if len(r.ISR)+damaged < len(r.Replicas) {
				return fmt.Sprintf("partition %d: isr %s of %v, followers %s", num, members(r.ISR), r.Replicas, w.describe(num))
			}
		}
		for _, m := range r.ISR {
			if pt := w.nodes[m.Node].parts[num]; pt == nil || pt.p == nil {
				return fmt.Sprintf("partition %d has no log on node %d", num, m.Node)
			}
		}
		lead := w.nodes[r.Leader].parts[num]
		leo := lead.log.LogEndOffset()
		for _, m := range r.ISR {
			pt := w.nodes[m.Node].parts[num]
			if pt.log.LogEndOffset() != leo || pt.log.HighWatermark() != leo {
				return fmt.Sprintf("partition %d: node %d ends at %d with HW %d, the leader at %d; %s", num, m.Node, pt.log.LogEndOffset(), pt.log.HighWatermark(), leo, w.describe(num))
			}
			if len(pt.waiting) > 0 {
				return fmt.Sprintf("partition %d: %d appends wait on node %d", num, len(pt.waiting), m.Node)
			}
		}
	}
	for _, c := range w.clients {
		if p, ok := c.(*producer); ok && !dead[int(p.part)] && p.rest() != "" {
			return fmt.Sprintf("producer %d: batch %d, sequence %d, %s", p.id, p.out[0].number, p.out[0].seq, p.rest())
		}
	}
	return ""
}

func (w *world) describe(num int) string {
	return join(w.nodes, func(n *node) string {
		if !n.up || n.parts[num] == nil || n.parts[num].p == nil {
			return fmt.Sprintf("n%d down", n.id)
		}
		pt := n.parts[num]
		st, f := pt.p.Status(), pt.f.State()
		return fmt.Sprintf("n%d %v leo %d hw %d reconciled %v held %v stopped %v resigned %v err %v", n.id, st.Role, st.LEO, st.HighWatermark, f.Reconciled, f.Held, f.Stopped, st.Resigned, pt.log.Err())
	})
}

// atRest looks at the end at what every promise came to.
func (w *world) atRest() {
	for num, g := range w.parts {
		if g.record.Leader == partition.None {
			w.cov.add("I25 partition without survivor")
			continue
		}
		w.cov.add("I25 at rest")
		for _, m := range g.record.ISR {
			pt := w.nodes[m.Node].parts[num]
			if pt.journal.unsure {
				continue
			}
			w.check(g.covers(pt.journal), "I6", "partition %d: node %d has not all that was committed", num, m.Node)
			if err := pt.log.Verify(0, pt.log.LogEndOffset(), func(e *replica.CorruptError) bool {
				w.fail("I3", "node %d partition %d: %v", m.Node, num, e)
				return false
			}); err != nil {
				w.fail("I3", "node %d partition %d: %v", m.Node, num, err)
			}
		}
		w.checkHistory(g)
		// Exactly once: each acked batch of an idempotent producer, at its offset.
		times := map[int64]int{}
		for _, x := range g.canon {
			if x.base >= g.trimmed { // who is forgotten with its records may send again
				times[x.number]++
			}
		}
		for _, s := range w.batches {
			if !s.acked || int(s.producer.part) != num {
				continue
			}
			i := find(g.canon, s.base)
			w.check(i < len(g.canon) && g.canon[i].number == s.number, "I6", "partition %d: batch %d, acked at %d, is not there", num, s.number, s.base)
			if s.pid >= 0 && times[s.number] != 1 && s.base >= g.trimmed {
				w.fail("I20", "partition %d: batch %d of producer %d is there %d times", num, s.number, s.pid, times[s.number])
			}
		}
	}
}
