package isr

import (
	"cmp"
	"fmt"
	"maps"
	"math/rand/v2"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tidemark-log/tidemark/internal/vfs"
	"github.com/tidemark-log/tidemark/partition"
	"github.com/tidemark-log/tidemark/record"
	"github.com/tidemark-log/tidemark/replica"
	"github.com/tidemark-log/tidemark/segment"
)

// stage is a partition on nodes A, B, C with real logs, followers, leaders and a
// coordinator, where every message between replicas moves by hand. It is driven by
// the lines of a story: see the verbs below. Each line returns what happened, and
// what must never be is said in lines that begin with "!!".
type stage struct {
	t      testing.TB
	o      stageOptions
	c      *Controller
	id     partition.ID
	now    time.Time
	lives  uint64
	actors []*actor
	mail   map[string]*letter
	cut    map[string]bool // links that carry nothing: "AB", "A."
	out    strings.Builder
	acked  map[string]int64 // acks=all, by value: the offset
	trueHW int64            // highest that a leader ever had
	wrong  map[string]bool
	last   *partition.Record
	state  []byte // that the coordinator stored last
	saved  []byte // a copy of it
}

type stageOptions struct {
	nodes    int
	minISR   int32
	sync     replica.SyncMode
	recovery replica.Recovery
	guards   partition.Guards
}

// actor is a node.
type actor struct {
	id          int32
	mem         *vfs.Mem
	faulty      *vfs.Faulty
	made, marks bool // it has a log; with the marker of a clean stop
	log         *replica.Log
	p           *Partition
	f           *replica.Fetcher
	epoch       int64
	incarnation partition.UUID
	lease       *Lease
	seen        int64
	up          bool
	deaf        bool // hears no records
	slow        bool // syncs only when told
	holds       bool // keeps its proposals in hand
	alter       *partition.Alter
	altered     *partition.Altered
	fx          Effects
	was         Role
	wasEpoch    int32
	cuts        replica.FetcherState
}

// letter is a message between replicas, in somebody's hands.
type letter struct {
	from, to *actor
	life     uint64
	step     replica.Step
	fetched  *partition.Fetched
	answer   *partition.EpochAnswer
}

func (n *actor) String() string { return name(n.id) }

func name(node int32) string { return string(rune('A' + node)) }

func newStage(t testing.TB, o stageOptions) *stage {
	s := &stage{t: t, o: o, now: t0, mail: map[string]*letter{}, cut: map[string]bool{}, acked: map[string]int64{}, wrong: map[string]bool{}}
	s.c = NewController(s.coordinator())
	var replicas []int32
	for i := range int32(o.nodes) {
		n := &actor{id: i, mem: vfs.NewMem(vfs.MemOptions{Seed: uint64(i) + 1})}
		s.actors = append(s.actors, n)
		replicas = append(replicas, i)
		s.register(n, partition.Intact, []partition.LogEvidence{})
	}
	topic, _, err := s.c.CreateTopic("t", TopicSpec{Replicas: [][]int32{replicas}, MinISR: o.minISR}, s.now)
	if err != nil {
		t.Fatal(err)
	}
	s.id = partition.ID{Topic: topic}
	for _, n := range s.actors {
		s.open(n, false)
		s.begin(n)
	}
	s.hear()
	for range 5 { // until the record knows the logs
		s.fetchAll()
		s.hear()
	}
	s.out.Reset()
	return s
}

func (s *stage) coordinator() ControllerOptions {
	return ControllerOptions{ClusterID: "c", Store: func(state []byte) error { s.state = slices.Clone(state); return nil }}
}

func (s *stage) open(n *actor, held bool) bool {
	n.faulty = vfs.NewFaulty(n.mem)
	l, err := replica.Open("/log", replica.Options{Sync: s.o.sync, Held: held, SegmentBytes: 64 << 10, PopulateBytes: 1, MaxProducers: 100,
		FS: n.faulty, Maps: segment.NewMaps(1 << 20)}, s.now)
	if err != nil {
		s.sayf("%v does not open: %v", n, err)
		return false
	}
	s.t.Cleanup(func() { l.Close(s.now) })
	n.log, n.made = l, true
	return true
}

// register begins a life; logs nil leaves the logs out of what it says.
func (s *stage) register(n *actor, e partition.Evidence, logs []partition.LogEvidence) bool {
	s.lives++
	previous := int64(-1)
	if e == partition.Clean {
		previous = n.epoch
	}
	n.incarnation = uuid(s.lives)
	a := s.c.Register(&partition.Register{Node: n.id, ClusterID: "c", Incarnation: n.incarnation, BootID: n.mem.BootID(), Previous: previous,
		Evidence: e, Durable: s.o.sync == replica.Always, Logs: logs}, s.now)
	if a.Code != partition.OK {
		s.sayf("%v may not register: %v", n, a.Code)
		return false
	}
	n.epoch, n.up, n.seen, n.lease, n.was, n.wasEpoch, n.fx = a.BrokerEpoch, true, 0, &Lease{}, Idle, -1, Effects{}
	n.alter, n.altered, n.cuts = nil, nil, replica.FetcherState{}
	n.lease.Set(s.now.Add(7 * time.Second))
	if c := s.c.Ready(n.id, n.epoch, s.now); c != partition.OK {
		s.t.Fatalf("ready: %v", c)
	}
	return true
}

func (s *stage) begin(n *actor) {
	n.f = replica.NewFetcher(n.log, replica.FetcherOptions{ID: s.id, Name: "t", Node: n.id, BrokerEpoch: n.epoch, Session: s.lives << 32,
		Recovery: s.o.recovery, Guards: &s.o.guards})
	n.p = New(Options{ID: s.id, Name: "t on " + n.String(), Node: n.id, BrokerEpoch: n.epoch, Log: n.log, Fetcher: n.f, Lease: n.lease,
		Nodes: s.c, LagMax: 30 * time.Second, Guards: &s.o.guards})
}

func (s *stage) sayf(format string, args ...any) { fmt.Fprintf(&s.out, format+"\n", args...) }

func (s *stage) linked(a, b string) bool { return !s.cut[a+b] && !s.cut[b+a] }

func (s *stage) actor(x string) *actor {
	if len(x) != 1 || x[0] < 'A' || int(x[0]-'A') >= len(s.actors) {
		s.t.Fatalf("no node %q", x)
	}
	return s.actors[x[0]-'A']
}

// alive returns a node that must be up.
func (s *stage) alive(x string) *actor {
	n := s.actor(x)
	if !n.up {
		s.t.Fatalf("%s is down", x)
	}
	return n
}

// hear lets everybody hear of new records and do what that asks for.
func (s *stage) hear() {
	for again := true; again; {
		again = false
		for _, n := range s.actors {
			if !n.up {
				continue
			}
			if !n.deaf && s.linked(n.String(), ".") {
				if c := s.c.Since(n.seen); c.Revision > n.seen {
					n.seen, again = c.Revision, true
					for _, r := range c.Records {
						if err := n.p.Update(r, s.now, &n.fx); err != nil {
							s.sayf("%v: %v", n, shorten(err))
						}
					}
					n.p.Tick(s.now, &n.fx)
				}
			}
			again = s.effects(n) || again
		}
	}
	s.check()
}

var ids = regexp.MustCompile(`[\w-]{22}(-\d+)?`)

// shorten leaves the ids of a run out of an error.
func shorten(err error) string {
	return ids.ReplaceAllStringFunc(err.Error(), func(id string) string {
		if strings.ToUpper(id) == id { // a code
			return id
		}
		return "#"
	})
}

func (s *stage) effects(n *actor) (some bool) {
	for _, w := range n.fx.Done {
		s.told(w)
	}
	n.fx.Done = n.fx.Done[:0]
	if st := n.p.Status(); st.Role != n.was || st.LeaderEpoch != n.wasEpoch {
		n.was, n.wasEpoch = st.Role, st.LeaderEpoch
		switch st.Role {
		case Leading:
			s.sayf("%v leads epoch %d from %d", n, st.LeaderEpoch, st.EpochStart)
		case Following:
			s.sayf("%v follows %s in epoch %d", n, name(st.Record.Leader), st.LeaderEpoch)
		default:
			s.sayf("%v is %v in epoch %d", n, st.Role, st.LeaderEpoch)
		}
	}
	if a := n.fx.Alter; a != nil && s.linked(n.String(), ".") {
		n.fx.Alter = nil
		if some = true; n.holds {
			if n.alter == nil || n.alter.Seq != a.Seq {
				s.sayf("%v proposes %s", n, letters(a.ISR))
			}
			n.alter = a
		} else {
			s.decide(n, a)
			s.answer(n)
		}
	}
	if n.fx.Decline && s.linked(n.String(), ".") {
		some = true
		code := s.c.Decline(s.id, n.id, n.epoch, n.fx.DeclineEpoch, s.now)
		s.sayf("%v declines epoch %d: %v", n, n.fx.DeclineEpoch, code)
		n.fx.Decline = false
	}
	if n.fx.Sync && !n.slow {
		n.fx.Sync = false
		if s.o.sync == replica.Always {
			some = true
			s.sync(n)
		}
	}
	if c := n.f.State(); c != n.cuts {
		was := n.cuts
		n.cuts = c
		for _, x := range []struct {
			what     string
			was, now int64
		}{
			{"cuts", was.CutRecords, c.CutRecords}, {"adopts", was.AdoptedRecords, c.AdoptedRecords},
			{"drops what it held, to copy it again:", was.RefetchedRecords, c.RefetchedRecords},
			{"may not drop what it held (R11), times", was.RefetchRefused, c.RefetchRefused},
			{"cuts below its high watermark, times", was.CutBelowHW, c.CutBelowHW},
			{"begins anew at the leader's start, times", was.Resets, c.Resets},
			{"refuses what it was sent, times", was.Corrupt, c.Corrupt},
		} {
			if x.now > x.was {
				s.sayf("%v %s %d", n, x.what, x.now-x.was)
			}
		}
		if c.Stopped != nil && was.Stopped == nil {
			s.sayf("%v stops following: %s", n, shorten(c.Stopped))
		}
	}
	n.fx.Wake, n.fx.Follow, n.fx.Moved, n.fx.Tick = n.fx.Wake[:0], false, 0, time.Time{}
	return some
}

// told says what a producer hears.
func (s *stage) told(w *Waiter) {
	what := w.Driver.(string)
	switch {
	case w.Err != nil:
		s.sayf("%s: %v", strings.TrimSuffix(what, "!"), w.Err)
	case w.Duplicate:
		s.sayf("%s acked at %d, a duplicate", strings.TrimSuffix(what, "!"), w.Base)
	default:
		s.sayf("%s acked at %d", strings.TrimSuffix(what, "!"), w.Base)
	}
	if v, all := strings.CutSuffix(what, "!"); all && w.Err == nil {
		s.acked[v] = w.Base
	}
}

// decide gives a proposal to the coordinator.
func (s *stage) decide(n *actor, a *partition.Alter) {
	answer := s.c.Alter(a, s.now)
	s.sayf("%v proposes %s: %v", n, letters(a.ISR), answer.Code)
	n.altered = &answer
}

func (s *stage) answer(n *actor) {
	if n.altered == nil {
		s.t.Fatalf("no answer for %v", n)
	}
	n.p.Altered(n.altered, s.now, &n.fx)
}

func (s *stage) sync(n *actor) {
	if x := n.log.StartSync(); x != nil {
		if err := n.log.FinishSync(x, x.Wait()); err != nil {
			s.sayf("%v: sync failed", n)
		}
	}
	n.p.Advanced(s.now, &n.fx)
}

// sendSoon is send after the follower's rest, if it is at rest.
func (s *stage) sendSoon(n *actor) *letter {
	m := s.send(n)
	if m == nil {
		var at replica.Step
		n.f.Next(s.now, &at)
		if rest := at.At.Sub(s.now); at.Do == replica.Wait && rest > 0 && rest <= time.Second {
			s.pass(rest, false)
			m = s.send(n)
		}
	}
	return m
}

// send makes the next request of a follower, nil if it has none.
func (s *stage) send(n *actor) *letter {
	m := &letter{from: n, life: uint64(n.epoch)}
	for range 3 {
		n.f.Next(s.now, &m.step)
		s.effects(n)
		if m.step.Do != replica.SyncFirst || n.slow {
			break
		}
		s.sync(n)
	}
	if to := n.f.State().Leader; to >= 0 {
		m.to = s.actors[to]
	}
	if m.step.Do == replica.Wait || m.step.Do == replica.SyncFirst {
		return nil
	}
	return m
}

func (m *letter) String() string {
	if m.step.Do == replica.SendAsk {
		return fmt.Sprintf("%v asks %v about epoch %d", m.from, m.to, m.step.Ask.Epoch)
	}
	return fmt.Sprintf("%v fetches at %d from %v", m.from, m.step.Fetch.Offset, m.to)
}

// take lets the leader have a request.
func (s *stage) take(m *letter) (said string) {
	if m.to == nil || !m.to.up || !s.linked(m.from.String(), m.to.String()) {
		return "nobody hears it"
	}
	if m.step.Do == replica.SendAsk {
		m.answer = &partition.EpochAnswer{}
		switch m.to.p.Ask(&m.step.Ask, m.answer); {
		case m.answer.Code != partition.OK:
			return m.answer.Code.String()
		case m.answer.Epoch < 0:
			return "undefined"
		}
		return fmt.Sprintf("epoch %d ends at %d", m.answer.Epoch, m.answer.End)
	}
	var a Answer
	m.to.p.Fetch(&m.step.Fetch, false, false, s.now, &a, &m.to.fx)
	if a.Drop {
		return "out of order"
	}
	m.fetched = &a.Fetched
	m.fetched.Records = slices.Clone(a.Records)
	a.View.Release()
	switch {
	case a.Code != partition.OK:
		return a.Code.String()
	case !a.Diverging && (a.HighWatermark < a.LogStart || a.HighWatermark > a.LEO):
		s.never("I9: %v answers log start %d, hw %d, end %d", m.to, a.LogStart, a.HighWatermark, a.LEO)
	case a.Diverging:
		return fmt.Sprintf("diverges, epoch %d ends at %d", a.DivergingEpoch, a.DivergingEnd)
	}
	return fmt.Sprintf("%d records, hw %d", countOf(s.t, m.fetched.Records), a.HighWatermark)
}

// give lets the follower have the answer.
func (s *stage) give(m *letter) (said string) {
	switch {
	case !m.from.up || m.life != uint64(m.from.epoch):
		return "nobody waits for it"
	case m.answer != nil:
		if err := m.from.f.Answered(m.answer, s.now); err != nil {
			said = shorten(err)
		}
	case m.fetched != nil:
		if err := m.from.f.Fetched(m.fetched, s.now); err != nil && m.fetched.Code == partition.OK {
			said = shorten(err)
		}
	default:
		return "no answer"
	}
	m.from.p.Advanced(s.now, &m.from.fx)
	return said
}

// fetchAll lets every follower fetch until it has nothing new.
func (s *stage) fetchAll(nodes ...*actor) {
	if nodes == nil {
		nodes = s.actors
	}
	for again, rounds := true, 0; again; rounds++ {
		if rounds > 500 {
			s.t.Fatal("followers do not come to rest")
		}
		again = false
		for _, n := range nodes {
			if !n.up {
				continue
			}
			end, hw, st := n.log.LogEndOffset(), n.log.HighWatermark(), n.f.State()
			m := s.send(n)
			if m == nil {
				continue
			}
			var head int64
			if m.to != nil && m.to.up {
				head = m.to.log.HighWatermark()
			}
			s.take(m)
			s.give(m)
			s.effects(n)
			again = again || m.step.Do == replica.SendAsk || end != n.log.LogEndOffset() || hw != n.log.HighWatermark() || st.Reconciled != n.f.State().Reconciled ||
				m.to != nil && m.to.up && head != m.to.log.HighWatermark()
		}
		s.hear()
	}
}

// pass lets time go by; with fetch the followers go on fetching.
func (s *stage) pass(d time.Duration, fetch bool) {
	const step = 500 * time.Millisecond
	for ; d > 0; d -= step {
		s.now = s.now.Add(min(d, step))
		for _, n := range s.actors {
			if !n.up || !s.linked(n.String(), ".") {
				continue
			}
			switch s.c.KeepAlive(n.id, n.epoch, s.now) {
			case partition.OK:
				n.lease.Set(s.now.Add(7 * time.Second))
			case partition.StaleBrokerEpoch:
				a := s.c.Register(&partition.Register{Node: n.id, ClusterID: "c", Incarnation: n.incarnation}, s.now)
				if a.Code != partition.OK || a.BrokerEpoch != n.epoch {
					s.sayf("%v is over: %v", n, a.Code)
					n.up = false
				}
			case partition.IneligibleReplica:
				s.hear()
				s.c.Ready(n.id, n.epoch, s.now)
			}
		}
		s.c.Tick(s.now)
		s.hear()
		for _, n := range s.actors {
			if n.up {
				n.p.Tick(s.now, &n.fx)
			}
		}
		s.hear()
		if fetch {
			s.fetchAll()
		}
	}
}

func (s *stage) die(n *actor, mem *vfs.Mem) {
	n.up, n.mem, n.log, n.deaf, n.slow, n.holds = false, mem, nil, false, false, false
}

// produce appends a record for each value, one batch each.
func (s *stage) produce(n *actor, acks int16, pid int64, seq int32, values []string) {
	for i, v := range values {
		w := &Waiter{Driver: v}
		if acks == -1 {
			w.Driver = v + "!"
		}
		recs := []record.Record{{Timestamp: t0.UnixMilli(), Value: fmt.Appendf(nil, "%-700s", v)}} // more than a sector, which a power cut takes as a whole
		spec := record.NewSpec()
		if pid >= 0 {
			spec.ProducerID, spec.ProducerEpoch, spec.BaseSequence = pid, 0, seq+int32(i)
		}
		b := record.Encode(make([]byte, record.Size(recs, 0)), recs, &spec)
		if err := n.p.Produce(b, replica.Client, acks, 0, w, s.now, &n.fx); err != nil {
			s.sayf("%s refused: %s", v, shorten(err))
			continue
		}
		if n.fx.Acked {
			n.fx.Acked = false
			s.told(w)
		}
	}
}

const damaged = "damaged"

// entry is a record of a log.
type entry struct {
	value string
	epoch int32
}

func (s *stage) entries(l *replica.Log) (list []entry) {
	for at, end := l.LogStartOffset(), l.LogEndOffset(); at < end; {
		b, err := l.Read(nil, at, end, 1<<20)
		if err != nil || len(b) == 0 {
			return append(list, entry{damaged, 0})
		}
		for len(b) > 0 {
			x, err := record.Check(b)
			if err != nil {
				s.t.Fatal(err)
			}
			for r, err := range x.Records() {
				if err != nil {
					s.t.Fatal(err)
				}
				list = append(list, entry{strings.TrimRight(string(r.Value), " "), x.LeaderEpoch()})
			}
			at, b = x.NextOffset(), b[len(x):]
		}
	}
	return list
}

func countOf(t testing.TB, b []byte) (n int32) {
	for len(b) > 0 {
		x, err := record.Check(b)
		if err != nil {
			t.Fatal(err)
		}
		n += x.Count()
		b = b[len(x):]
	}
	return n
}

func (s *stage) never(format string, args ...any) {
	if line := "!! " + fmt.Sprintf(format, args...); !s.wrong[line] {
		s.wrong[line] = true
		s.sayf("%s", line)
	}
}

// check says what must never be.
func (s *stage) check() {
	r := s.c.Record(s.id)
	if r == nil {
		return
	}
	if err := r.Check(); err != nil {
		s.never("I13: %v", err)
	}
	if s.last != nil && (r.LeaderEpoch < s.last.LeaderEpoch || r.PartitionEpoch < s.last.PartitionEpoch || r.Leader != s.last.Leader && r.LeaderEpoch == s.last.LeaderEpoch) {
		s.never("I15: %s after %s", show(r), show(s.last))
	}
	s.last = r
	logs := map[*actor][]entry{}
	for _, n := range s.actors {
		if n.up && n.log != nil && n.p != nil {
			l := n.log
			if start, hw, end := l.LogStartOffset(), l.HighWatermark(), l.LogEndOffset(); start > hw || hw > end || s.o.sync == replica.Always && hw > l.SyncedEnd() {
				s.never("I9: %v: log start %d, hw %d, end %d, synced %d", n, start, hw, end, l.SyncedEnd())
			}
			if st := n.p.Status(); st.Role == Leading {
				s.trueHW = max(s.trueHW, l.HighWatermark())
			}
			logs[n] = s.entries(l)
		}
	}
	for i, a := range s.actors {
		for _, b := range s.actors[i+1:] {
			x, y := logs[a], logs[b]
			if a.log == nil || b.log == nil || len(x) == 0 || len(y) == 0 {
				continue
			}
			xs, ys := a.log.LogStartOffset(), b.log.LogStartOffset()
			same := false // from the top: once equal in epoch, equal below
			for at := min(xs+int64(len(x)), ys+int64(len(y))) - 1; at >= max(xs, ys); at-- {
				p, q := x[at-xs], y[at-ys]
				if p.value == damaged || q.value == damaged {
					continue
				}
				if same = same || p.epoch == q.epoch; same && p != q {
					s.never("I3: %d is %v on %v and %v on %v", at, p, a, q, b)
				}
				if p != q && at < min(a.log.HighWatermark(), b.log.HighWatermark()) {
					s.never("I4: %d is %v on %v and %v on %v, and committed", at, p, a, q, b)
				}
			}
		}
	}
	if r.Leader == partition.None || !s.actors[r.Leader].up {
		return
	}
	n := s.actors[r.Leader]
	if st := n.p.Status(); st.Role != Leading || st.LeaderEpoch != r.LeaderEpoch {
		return
	}
	start := n.log.LogStartOffset()
	if end := n.log.LogEndOffset(); end < s.trueHW {
		s.never("I6: %v leads and ends at %d, %d was committed", n, end, s.trueHW)
	}
	for _, v := range slices.Sorted(maps.Keys(s.acked)) {
		at := s.acked[v]
		if at >= start && (at-start >= int64(len(logs[n])) || logs[n][at-start].value != v) {
			s.never("I6: %v leads without %s, which was acked at %d", n, v, at)
		}
	}
}

func letters(list []partition.Member) (x string) {
	for _, m := range list {
		x += name(m.Node)
	}
	return cmp.Or(x, "-")
}

// show says how things stand.
func (s *stage) show() {
	r := s.c.Record(s.id)
	leader := "nobody"
	if r.Leader >= 0 {
		leader = name(r.Leader)
	}
	s.sayf("epoch %d: %s leads, isr %s, elr %s, last known %s", r.LeaderEpoch, leader, letters(r.ISR), letters(r.ELR), letters(r.LastKnown))
	for _, n := range s.actors {
		if !n.up {
			s.sayf("%v down", n)
			continue
		}
		line := n.String() + ":"
		at := n.log.LogStartOffset()
		if at > 0 {
			line += fmt.Sprintf(" from %d:", at)
		}
		for _, e := range s.entries(n.log) {
			if at == n.log.HighWatermark() {
				line += " |"
			}
			line += fmt.Sprintf(" %s/%d", e.value, e.epoch)
			at++
		}
		if at == n.log.HighWatermark() {
			line += " |"
		}
		if from, end, held := n.log.Held(); held {
			line += fmt.Sprintf(" and %d held", end-from)
		}
		s.sayf("%s", line)
	}
}

// do does a line of a story and returns what came of it.
//
//	produce A all|1|0 m1 m2 [pid 7 seq 0]   one batch a value
//	fetch B [3]           B asks or fetches, and hears the answer, so many times
//	catchup B             until it has nothing new; without nodes, everybody
//	send B x              its request stays in hand, as x
//	take x, give x        the leader has it; the follower has the answer. Both may be repeated
//	lose x                neither
//	hold A                A's proposals stay in hand until: decide A (the coordinator has it), answer A (A has the answer)
//	deaf B, hears B       it hears no records; it does again
//	part A B, part A .    no link, between them or to the coordinator; heal: all links are back
//	slow A, sync A        it syncs only when told
//	fence A               its session is over
//	kill A                the process
//	power A [n]           power cut; its log ends at n then
//	stop A                a clean stop, after a handover if it leads
//	start A [blind]       blind: it says nothing of its logs
//	burn A                its disk is replaced by an empty one
//	rot A                 a byte of its first batch is wrong
//	break A               its next sync fails, and the next does not
//	handover A B, prefer  A14; the coordinator elects the first replica
//	trim A 5              DeleteRecords
//	min 2                 min ISR of the topic
//	read A 3              a consumer; latest A
//	time 10s, run 10s     goes by; with run everybody fetches
//	save, restore         the coordinator's state is copied; a coordinator begins with the copy
//	show
func (s *stage) do(line string) string {
	f := strings.Fields(line)
	arg := func(i int) string {
		if i >= len(f) {
			s.t.Fatalf("%q lacks an argument", line)
		}
		return f[i]
	}
	number := func(i int) int64 {
		x, err := strconv.ParseInt(arg(i), 10, 64)
		if err != nil {
			s.t.Fatalf("%q: %v", line, err)
		}
		return x
	}
	switch f[0] {
	case "produce":
		n, acks, pid, seq := s.alive(arg(1)), map[string]int16{"all": -1, "1": 1, "0": 0}[arg(2)], int64(-1), int64(0)
		values := f[3:]
		if i := slices.Index(values, "pid"); i >= 0 {
			pid, seq = number(3+i+1), number(3+i+3)
			values = values[:i]
		}
		s.produce(n, acks, pid, int32(seq), values)
	case "fetch":
		n, times := s.alive(arg(1)), int64(1)
		if len(f) > 2 {
			times = number(2)
		}
		for range times {
			if m := s.sendSoon(n); m == nil {
				s.sayf("%v has nothing to ask", n)
			} else {
				a := s.take(m)
				s.sayf("%v: %s", m, a)
				if x := s.give(m); x != "" && x != "no answer" {
					s.sayf("%s", x)
				}
			}
			s.hear()
		}
	case "catchup":
		var list []*actor
		for _, x := range f[1:] {
			list = append(list, s.alive(x))
		}
		s.pass(time.Second, false)
		s.fetchAll(list...)
	case "send":
		n := s.alive(arg(1))
		if m := s.sendSoon(n); m != nil {
			s.mail[arg(2)] = m
			s.sayf("%v", m)
		} else {
			s.sayf("%v has nothing to ask", n)
		}
	case "take", "give":
		m := s.mail[arg(1)]
		if m == nil {
			s.t.Fatalf("%q: no such message", line)
		}
		x := ""
		if f[0] == "take" {
			x = s.take(m)
		} else {
			x = s.give(m)
		}
		if x != "" {
			s.sayf("%s", x)
		}
	case "lose":
		delete(s.mail, arg(1))
	case "hold":
		s.alive(arg(1)).holds = true
	case "decide":
		if n := s.alive(arg(1)); n.alter != nil {
			s.decide(n, n.alter)
		}
	case "answer":
		n := s.alive(arg(1))
		n.holds = false
		s.answer(n)
	case "deaf":
		s.alive(arg(1)).deaf = true
	case "hears":
		s.alive(arg(1)).deaf = false
	case "part":
		s.cut[arg(1)+arg(2)] = true
	case "heal":
		clear(s.cut)
	case "slow":
		s.alive(arg(1)).slow = true
	case "sync":
		n := s.alive(arg(1))
		n.slow, n.fx.Sync = false, false
		s.sync(n)
	case "fence":
		n := s.actor(arg(1))
		s.c.Fence(n.id, n.epoch, s.now)
	case "kill":
		n := s.alive(arg(1))
		s.die(n, n.mem.Kill())
	case "power":
		n := s.alive(arg(1))
		mem := n.mem.PowerCut(rand.New(rand.NewPCG(1, 1)))
		if len(f) > 2 {
			mem = s.powerCut(n.mem, number(2))
		}
		n.mem.Kill()
		s.die(n, mem)
	case "stop":
		n := s.alive(arg(1))
		s.c.Stop(n.id, n.epoch, s.now)
		s.hear()
		if st := n.p.Status(); st.Role == Leading {
			n.p.Resign(s.now, nil, &n.fx)
			s.fetchAll()
			for _, m := range s.c.Record(s.id).ISR {
				if m.Node != n.id {
					a := s.c.Handover(s.id, n.id, n.epoch, m.Node, st.LeaderEpoch, s.now)
					s.sayf("%v hands over to %s: %v", n, name(m.Node), a.Code)
					break
				}
			}
			s.hear()
		}
		s.c.Fence(n.id, n.epoch, s.now)
		s.hear()
		if err := n.log.Close(s.now); err != nil {
			s.t.Fatal(err)
		}
		s.die(n, n.mem.Kill())
		n.marks = true
	case "start":
		n := s.actor(arg(1))
		if n.up {
			s.t.Fatalf("%v is up", n)
		}
		s.start(n, len(f) > 2)
	case "burn":
		n := s.actor(arg(1))
		if n.up {
			s.t.Fatalf("%v is up", n)
		}
		s.lives++
		n.mem, n.made, n.marks = vfs.NewMem(vfs.MemOptions{Seed: 100 + s.lives}), false, false
	case "rot":
		n := s.actor(arg(1))
		f, err := n.mem.Open("/log/00000000000000000000.log", vfs.ReadWrite)
		if err != nil {
			s.t.Fatal(err)
		}
		if _, err := f.WriteAt([]byte{0xff}, 64); err != nil {
			s.t.Fatal(err)
		}
		f.Close()
	case "break":
		s.alive(arg(1)).faulty.SetRules(vfs.Rule{Ops: vfs.OpFinishSync, Glob: "*.log*", Count: 1, Err: syscall.EIO})
	case "handover":
		n, to := s.alive(arg(1)), s.actor(arg(2))
		n.p.Resign(s.now, nil, &n.fx)
		s.fetchAll(to)
		a := s.c.Handover(s.id, n.id, n.epoch, to.id, n.p.Status().LeaderEpoch, s.now)
		s.sayf("%v hands over to %v: %v", n, to, a.Code)
		if a.Code != partition.OK {
			n.p.Resume()
		}
	case "prefer":
		s.sayf("%v", s.c.ElectPreferred(s.id, s.now))
	case "trim":
		if err := s.alive(arg(1)).log.DeleteRecords(number(2)); err != nil {
			s.sayf("%s", shorten(err))
		}
	case "min":
		if err := s.c.SetMinISR("t", int32(number(1)), s.now); err != nil {
			s.t.Fatal(err)
		}
	case "read":
		v, err := s.alive(arg(1)).p.Consume(number(2), 1<<20, s.now)
		if err != nil {
			s.sayf("%s", shorten(err))
		} else {
			s.sayf("%d records", countOf(s.t, v.Bytes))
			v.Release()
		}
	case "latest":
		if at, err := s.alive(arg(1)).p.Latest(s.now); err != nil {
			s.sayf("%s", shorten(err))
		} else {
			s.sayf("%d", at)
		}
	case "time", "run":
		d, err := time.ParseDuration(arg(1))
		if err != nil {
			s.t.Fatalf("%q: %v", line, err)
		}
		s.pass(d, f[0] == "run")
	case "save":
		s.saved = s.state
	case "restore":
		for _, n := range s.actors {
			if n.up {
				s.t.Fatalf("%v is up", n)
			}
		}
		c, err := LoadController(s.saved, s.coordinator())
		if err != nil {
			s.t.Fatal(err)
		}
		s.c, s.last = c, nil
	case "show":
		s.show()
	default:
		s.t.Fatalf("no verb %q", f[0])
	}
	s.hear()
	out := s.out.String()
	s.out.Reset()
	return out
}

// start begins the next life of a node.
func (s *stage) start(n *actor, blind bool) {
	e := partition.Intact
	if n.marks {
		e, n.marks = partition.Clean, false
	}
	made := n.made
	if !s.open(n, made) {
		return
	}
	var logs []partition.LogEvidence
	if !blind {
		logs = []partition.LogEvidence{}
		if made {
			l := partition.LogEvidence{ID: s.id, Evidence: n.log.Evidence(), Durable: n.log.Durable()}
			l.LastEpoch, l.LEO = n.log.Tail()
			logs = append(logs, l)
		}
	}
	if !s.register(n, e, logs) {
		n.log = nil
		n.mem = n.mem.Kill()
		return
	}
	s.begin(n)
}

// powerCut returns what a power cut left, with a log that ends at end.
func (s *stage) powerCut(mem *vfs.Mem, end int64) *vfs.Mem {
	for seed := range uint64(1000) {
		rng := func() *rand.Rand { return rand.New(rand.NewPCG(seed, 2)) }
		l, err := replica.Open("/log", replica.Options{Sync: s.o.sync, SegmentBytes: 64 << 10, PopulateBytes: 1, FS: mem.PowerCut(rng()), Maps: segment.NewMaps(1 << 20)}, s.now)
		if err != nil {
			continue
		}
		at, damage := l.LogEndOffset(), l.Damage()
		l.Close(s.now)
		if at == end && damage == nil {
			return mem.PowerCut(rng())
		}
	}
	s.t.Fatalf("no power cut leaves a log that ends at %d", end)
	return nil
}
