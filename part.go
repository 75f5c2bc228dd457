package tidemark

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tidemark-log/tidemark/isr"
	"github.com/tidemark-log/tidemark/partition"
	"github.com/tidemark-log/tidemark/replica"
)

// A part is one node's part in a partition and what drives it: the follower's
// requests to the leader, the syncs of the log, the messages to the coordinator.
//
// All of it is done by a pump, of which one runs at a time: on the crew of the
// node, or, where little is to be done, on the goroutine that made work for it. A
// pump never waits for another.
type part struct {
	f       *life
	h       *Partition
	log     *Log
	p       *isr.Partition
	fetcher *replica.Fetcher

	record  atomic.Pointer[partition.Record] // newest, not acted on yet
	dirty   atomic.Bool                      // the pump has something to do
	looked  atomic.Bool                      // false: the clock, or what the node knows of others, moved
	syncing atomic.Bool                      // the pump leads a sync
	crowd   atomic.Int32                     // appends that were told at once, and may be back in a moment
	tried   atomic.Int64                     // when it was last waited for such, in ns since alarmEpoch
	due     alarm
	task    task // the pump
	asks    task // messages to the coordinator
	relief  task // have another lead where there is room

	mu     sync.Mutex // the pump; guards what follows
	ended  bool
	leader int32 // whom it follows, None if nobody
	fx     isr.Effects
	step   replica.Step
	parked replica.Do // what is under way: parked at the leader, or here until there is one
	req    partition.Fetch
	ask    partition.EpochAsk
	until  time.Time // how long it may stay at the leader
	early  time.Time // and here
	ans    isr.Answer
	at     isr.Effects // of what was asked of the leader

	synced isr.Effects // of who leads a sync

	handing sync.Mutex // one handover at a time

	say struct {
		mu       sync.Mutex
		alter    *partition.Alter
		decline  bool
		declined int32 // leader epoch
	}
}

const (
	// inlineBytes is how large a batch may be to be copied to followers by who
	// appends it: below, that is cheaper than to wake somebody.
	inlineBytes = 8 << 10
	// shareBytes is how much who waits for its append copies to a follower meanwhile.
	shareBytes = 1 << 20
	// pumpBytes is what one pump copies before others get their turn.
	pumpBytes = 4 << 20
	// fetchWait is how long a fetch is parked at a leader whose high watermark the
	// follower may not know yet (Kafka: replica.fetch.wait.max.ms).
	fetchWait = 500 * time.Millisecond
	// earlyWait is how long a request waits here for a leader that has not acted yet on
	// the record by which it is one.
	earlyWait = 10 * time.Second
)

func newPart(f *life, h *Partition, l *Log) *part {
	c := f.n.c
	p := &part{f: f, h: h, log: l, leader: partition.None}
	p.due.fire = p.ring
	p.task.run, p.asks.run, p.relief.run = p.runPump, p.runAsks, p.runRelief
	name := h.name.String()
	p.fetcher = replica.NewFetcher(l.log, replica.FetcherOptions{ID: h.id, Name: name, Node: f.n.id, BrokerEpoch: f.epoch,
		Session: uint64(f.epoch) << 32, Recovery: c.o.Recovery, MaxBytes: int32(c.o.FetchBytes), Backoff: c.o.FetchBackoff, Logger: c.o.Logger})
	p.p = isr.New(isr.Options{ID: h.id, Name: name, Node: f.n.id, BrokerEpoch: f.epoch, Log: l.log,
		Fetcher: p.fetcher, Lease: &f.lease, Nodes: f, LagMax: c.o.LagMax, Resend: min(time.Second, c.o.SessionTimeout),
		MaxWaiters: c.o.MaxWaiters, Logger: c.o.Logger})
	l.synced = p.runSynced
	if slow := c.o.SlowDisk; slow != nil {
		l.slow = func() time.Duration { return slow(int(f.n.id)) }
	}
	l.begin()
	return p
}

// take takes a record of the coordinator, to be acted on by the pump.
func (p *part) take(r *partition.Record) {
	if takeNewer(&p.record, r) {
		p.wake(crewTurn)
	}
}

// ring is the alarm.
func (p *part) ring() {
	p.looked.Store(false)
	p.wake(crewTurn)
}

// A turn is what a pump may do before it leaves the rest to somebody else.
type turn struct {
	inline bool // nothing that waits for a disk
	most   int  // bytes copied
}

var (
	crewTurn  = turn{false, pumpBytes}
	briefTurn = turn{true, 8 * inlineBytes} // others may have appended meanwhile
	shareTurn = turn{true, shareBytes}
)

// wake has the pump look for work: at once, by the caller, if its turn is inline,
// else soon by somebody else.
func (p *part) wake(t turn) {
	p.dirty.Store(true)
	if !t.inline || !p.pump(t) {
		p.f.crew.do(&p.task)
	}
}

func (p *part) runPump() {
	if !p.pump(crewTurn) {
		p.f.crew.do(&p.task) // behind others
	}
}

// pump works until there is nothing to do or somebody else is at it, who looks
// again. It is false if it left something.
func (p *part) pump(t turn) bool {
	for round := 0; p.dirty.Load(); round++ {
		if t.inline && round == 4 {
			return false
		}
		if !p.mu.TryLock() {
			return true
		}
		p.dirty.Store(false)
		more := !p.ended && p.workLocked(t)
		p.mu.Unlock()
		if more {
			p.dirty.Store(true)
			return false
		}
	}
	return true
}

// workLocked reports whether it left something to do. Inline it does nothing that
// waits for a disk.
func (p *part) workLocked(t turn) (more bool) {
	if t.inline && (p.record.Load() != nil || !p.looked.Load()) {
		return true
	}
	now := time.Now()
	if r := p.record.Swap(nil); r != nil {
		p.updateLocked(r, now)
	}
	if !p.looked.Swap(true) {
		if f := p.f; !f.lease.Valid(now) && !f.fenced.Load() && f.n.life.Load() == f {
			f.keepAlive() // who waits need not hear NotLeader only because this process stood still
			now = time.Now()
		}
		p.p.Advanced(now, &p.fx)
		next := p.p.Tick(now, &p.fx)
		p.fx.Follow = false // it is about to
		p.apply(&p.fx, crewTurn)
		p.f.alarm.pull(&p.due, next)
	}
	if p.leader == partition.None || p.f.n.paused.Load() {
		return false
	}
	return p.followLocked(t, now)
}

func (p *part) updateLocked(r *partition.Record, now time.Time) {
	if err := p.p.Update(r, now, &p.fx); err != nil {
		p.f.n.c.o.Logger.Error("record of the coordinator not acted on", "node", p.f.n.id, "partition", p.h.name.String(),
			"leader", r.Leader, "leaderEpoch", r.LeaderEpoch, "err", err)
	}
	p.fx.Follow = false // it is about to
	p.apply(&p.fx, crewTurn)
	if s := p.fetcher.State(); s.Leader != p.leader {
		p.leader, p.parked = s.Leader, replica.Wait
	}
	p.looked.Store(false)
	p.h.moved(ChangedLeader)
}

// followLocked runs the follower's requests until one is parked, the follower
// waits, or its turn is over.
func (p *part) followLocked(t turn, now time.Time) (more bool) {
	for copied := 0; ; {
		p.fetcher.Next(now, &p.step)
		do, again := p.step.Do, false
		switch do {
		case replica.Wait:
			p.f.alarm.pull(&p.due, p.step.At)
			if do, again = p.parked, true; do == replica.Wait {
				return false
			}
		case replica.SyncFirst:
			p.parked = replica.Wait
			if t.inline {
				return true
			}
			p.syncing.Store(true)
			p.log.lead(p.log.log.StartSync)
			p.syncing.Store(false)
			if p.log.log.Err() != nil || p.log.log.SyncedEnd() < p.log.log.LogEndOffset() && p.log.isClosing() {
				return false
			}
			now = time.Now()
			continue
		case replica.SendAsk:
			p.ask, p.early = p.step.Ask, now.Add(earlyWait)
		case replica.SendFetch:
			p.req, p.early = p.step.Fetch, now.Add(earlyWait)
			wait := p.f.n.c.o.LagMax / 2
			if p.log.log.HighWatermark() < p.req.Offset {
				wait = min(wait, fetchWait)
			}
			p.until = now.Add(min(wait, 10*time.Second))
			if wait > 2*time.Second { // many at once cost less than one by one
				p.until = alarmEpoch.Add(p.until.Sub(alarmEpoch).Truncate(time.Second))
			}
		}
		leader := p.h.parts[p.leader].Load()
		if do == replica.SendAsk {
			if !p.askLocked(leader, now) {
				return p.parkLocked(do, p.early)
			}
			continue
		}
		if leader == nil { // as a connection that is refused
			p.ans.Fetched = partition.Fetched{Session: p.req.Session, Seq: p.req.Seq, Offset: p.req.Offset,
				LeaderEpoch: p.req.LeaderEpoch, Code: partition.NotLeader}
		} else {
			parked := leader.p.Fetch(&p.req, again, now.Before(p.until), now, &p.ans, &p.at)
			leader.apply(&p.at, t)
			if parked {
				return p.parkLocked(do, p.until)
			}
		}
		if p.tooEarly(p.ans.Code, now) {
			return p.parkLocked(do, p.early)
		}
		p.parked = replica.Wait
		n := len(p.ans.Records)
		if !p.ans.Drop {
			err := p.fetcher.Fetched(&p.ans.Fetched, now)
			if err != nil {
				p.f.n.c.o.Logger.Debug("fetch", "node", p.f.n.id, "partition", p.h.name.String(), "err", err)
			}
		}
		p.ans.View.Release()
		p.ans = isr.Answer{}
		if copied += n; copied > t.most {
			return true
		}
		now = time.Now()
	}
}

// parkLocked leaves a request under way, at the longest until the time given.
func (p *part) parkLocked(do replica.Do, until time.Time) (more bool) {
	p.parked = do
	p.f.alarm.pull(&p.due, until)
	return false
}

// tooEarly reports whether an answer says no more than that the leader has not acted
// on its record yet. To the follower that is no answer: it is asked again when the
// leader, or who is to be it, moves (apply and join).
func (p *part) tooEarly(code partition.Code, now time.Time) bool {
	return (code == partition.NotLeader || code == partition.UnknownLeaderEpoch) && now.Before(p.early)
}

// askLocked asks the leader, nil if it is not there, and is false if it is too early
// for an answer.
func (p *part) askLocked(leader *part, now time.Time) bool {
	q := &p.ask
	a := partition.EpochAnswer{Session: q.Session, Seq: q.Seq, LeaderEpoch: q.LeaderEpoch, Code: partition.NotLeader, Epoch: -1, End: -1, LogStart: -1}
	if leader != nil {
		leader.p.Ask(q, &a)
	}
	if p.tooEarly(a.Code, now) {
		return false
	}
	p.parked = replica.Wait
	if err := p.fetcher.Answered(&a, now); err != nil {
		p.f.n.c.o.Logger.Warn("verdict of the leader", "node", p.f.n.id, "partition", p.h.name.String(), "err", err)
	}
	return true
}

// apply does what a step of the partition asks for, and empties fx. t is the turn of
// those who are woken.
func (p *part) apply(fx *isr.Effects, t turn) {
	if n := len(fx.Done); n > 1 {
		p.crowd.Store(int32(n))
	}
	for i, w := range fx.Done {
		fx.Done[i] = nil
		w.Driver.(*call).tell()
	}
	if t == shareTurn {
		p.share(fx.Wake)
		fx.Wake = fx.Wake[:0]
	}
	for _, id := range fx.Wake {
		if x := p.h.parts[id].Load(); x != nil {
			x.wake(t)
		}
	}
	if fx.Alter != nil || fx.Decline {
		p.say.mu.Lock()
		if fx.Alter != nil {
			p.say.alter = fx.Alter
		}
		if fx.Decline {
			p.say.decline, p.say.declined = true, fx.DeclineEpoch
		}
		p.say.mu.Unlock()
		p.f.crew.do(&p.asks)
	}
	if fx.Sync {
		p.f.crew.do(&p.log.sync)
	}
	if fx.Relief {
		p.f.crew.do(&p.relief)
	}
	if fx.Moved != 0 {
		p.h.moved(changeOf(fx.Moved))
	}
	if fx.Moved&(isr.MovedLeader|isr.MovedRole|isr.MovedISR) != 0 {
		for i := range p.h.parts { // who asked before there was an answer
			if x := p.h.parts[i].Load(); x != nil && x != p {
				x.wake(crewTurn)
			}
		}
	}
	if fx.Follow && !p.syncing.Load() {
		p.dirty.Store(true)
		p.f.crew.do(&p.task)
	}
	p.f.alarm.pull(&p.due, fx.Tick)
	fx.Reset()
}

// share wakes followers and does their work as well until others have taken it: the
// last one's first.
func (p *part) share(ids []int32) {
	for i, id := range ids {
		if x := p.h.parts[id].Load(); x != nil {
			x.dirty.Store(true)
			if i < len(ids)-1 {
				x.f.crew.do(&x.task)
			}
		}
	}
	for i := len(ids) - 1; i >= 0; i-- {
		if x := p.h.parts[ids[i]].Load(); x != nil && !x.pump(shareTurn) {
			x.f.crew.do(&x.task)
		}
	}
}

// runAsks sends what is to be said to the coordinator and takes the answer.
func (p *part) runAsks() {
	s := &p.say
	s.mu.Lock()
	alter, decline, declined := s.alter, s.decline, s.declined
	s.alter, s.decline = nil, false
	s.mu.Unlock()
	ctl, now := p.f.n.c.ctl, time.Now()
	if decline {
		ctl.Decline(p.h.id, p.f.n.id, p.f.epoch, declined, now)
	}
	if alter != nil {
		a := ctl.Alter(alter, now)
		var fx isr.Effects
		p.p.Altered(&a, time.Now(), &fx)
		p.apply(&fx, crewTurn)
	}
}

// runSynced follows each sync of the log, by who led it.
func (p *part) runSynced() {
	fx := &p.synced
	p.p.Advanced(time.Now(), fx)
	p.apply(fx, crewTurn)
	if p.log.mode == Always && !p.syncing.Load() && p.log.log.Err() == nil && p.log.log.SyncedEnd() < p.log.log.LogEndOffset() {
		p.f.crew.do(&p.log.sync)
	}
}

// syncNow leads a sync if none is under way; else who leads that sees to the next.
func (l *Log) syncNow() {
	c := &l.commit
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.inFlight && !c.closing {
		l.leadLocked(l.log.StartSync)
	}
}

func (l *Log) isClosing() bool {
	l.commit.mu.Lock()
	defer l.commit.mu.Unlock()
	return l.commit.closing
}

// successors are the members of the ISR that may lead in the place of this replica, the
// preferred one first. Of a node that has ended the coordinator may not know that yet.
func (p *part) successors(s *isr.Status) (list []int32) {
	for _, id := range s.Record.Replicas {
		n := p.f.Node(id)
		if m, in := partition.Find(s.Committed, id); in && id != p.f.n.id && n.Eligible(m.BrokerEpoch) && p.h.parts[id].Load() != nil {
			list = append(list, id)
		}
	}
	return list
}

// handOver gives what this replica leads to another, once that has all of it (A14). It
// leads while the other copies what there is now, LagMax at most; then it takes nothing
// more until the rest is copied, and leads on if that takes longer than given.
func (p *part) handOver(ctx context.Context, to int32, wait time.Duration, why error) error {
	p.handing.Lock()
	defer p.handing.Unlock()
	s := p.p.Status()
	if s.Role != isr.Leading || s.Resigned != nil { // it was handed over, or is about to end
		return fmt.Errorf("hand partition %s over from node %d to %d: %w", p.h.name, p.f.n.id, to, NotLeader)
	}
	epoch := s.LeaderEpoch
	before, cancel := context.WithTimeout(ctx, p.f.n.c.o.LagMax)
	err := p.awaitFollowers(before, to, s.LEO)
	cancel()
	if err != nil {
		return fmt.Errorf("hand partition %s over from node %d to %d: %w", p.h.name, p.f.n.id, to, err)
	}
	p.resign(why)
	ctx, cancel = context.WithTimeout(ctx, wait)
	defer cancel()
	if err = p.awaitFollowers(ctx, to, math.MaxInt64); err == nil {
		a := p.f.n.c.ctl.Handover(p.h.id, p.f.n.id, p.f.epoch, to, epoch, time.Now())
		if a.Code == partition.OK && a.Record != nil {
			p.take(a.Record)
			return nil
		}
		err = a.Code
	}
	p.mu.Lock()
	if !p.ended { // else appends would wait for ever
		p.p.Resume()
	}
	p.mu.Unlock()
	p.h.moved(ChangedLeader)
	return fmt.Errorf("hand partition %s over from node %d to %d: %w", p.h.name, p.f.n.id, to, err)
}

// stepDown ends leading for good, and hands over if anybody may lead instead.
func (p *part) stepDown(ctx context.Context) {
	s := p.p.Status()
	if s.Role != isr.Leading {
		return
	}
	list := p.successors(&s)
	slices.SortStableFunc(list, func(a, b int32) int { return cmp.Compare(leoOf(&s, b), leoOf(&s, a)) })
	for _, to := range list {
		// Who is in sync is not further behind than that.
		if err := p.handOver(ctx, to, p.f.n.c.o.LagMax, ErrNodeDown); err != nil {
			p.f.n.c.o.Logger.Warn("lead not handed over", "node", p.f.n.id, "err", err)
			continue
		}
		return
	}
	p.resign(ErrNodeDown)
}

// leoOf is where a follower's log ends, as its leader knows it.
func leoOf(s *isr.Status, id int32) int64 {
	for _, f := range s.Followers {
		if f.Node == id {
			return f.LEO
		}
	}
	return -1
}

// runRelief hands over to a replica that has room for appends, which this one has not.
func (p *part) runRelief() {
	s := p.p.Status()
	if s.Role != isr.Leading || s.Resigned != nil {
		return
	}
	log := p.f.n.c.o.Logger.With("node", p.f.n.id, "partition", p.h.name.String())
	for _, to := range p.successors(&s) {
		x := p.h.parts[to].Load()
		if x == nil || leoOf(&s, to) != s.LEO {
			continue
		}
		err := x.log.log.Room() // asked of its node
		if err == nil {
			if err = p.handOver(context.Background(), to, time.Second, replica.ErrNoRoom); err == nil {
				log.Warn("lead handed over for want of room", "to", to)
				return
			}
		}
		log.Warn("lead not handed over for want of room", "to", to, "err", err)
	}
}

// settle takes no more appends, and waits until all followers that are up and may lead
// next have what there is.
func (p *part) settle(ctx context.Context) {
	p.handing.Lock()
	defer p.handing.Unlock()
	if p.p.Status().Role == isr.Leading {
		p.resign(ErrNodeDown)
		if err := p.awaitFollowers(ctx, partition.None, math.MaxInt64); err != nil {
			p.f.n.c.o.Logger.Warn("closed before all replicas have what there is", "node", p.f.n.id, "partition", p.h.name.String(), "err", err)
		}
	}
}

func (p *part) resign(why error) {
	var fx isr.Effects
	p.p.Resign(time.Now(), why, &fx)
	p.apply(&fx, crewTurn)
}

// awaitFollowers waits until a follower, or with None all that are up and in sync, have
// confirmed everything up to an offset.
func (p *part) awaitFollowers(ctx context.Context, id int32, upTo int64) error {
	for {
		s := p.p.Status()
		if s.Role != isr.Leading || p.h.parts[p.f.n.id].Load() != p {
			return NotLeader
		}
		behind := false
		for _, f := range s.Followers {
			if id == f.Node && (!f.InISR || p.h.parts[id].Load() == nil) {
				return partition.IneligibleReplica
			}
			if (id == f.Node || id == partition.None && f.InISR && p.h.parts[f.Node].Load() != nil) && f.LEO < min(s.LEO, upTo) {
				behind = true
			}
		}
		if !behind {
			return nil
		}
		p.h.wakeAll()
		select {
		case <-ctx.Done():
			return fmt.Errorf("followers are behind %d: %w", s.LEO, ctx.Err())
		case <-time.After(time.Millisecond):
		}
	}
}

// end stops everything, fails who waits and ends the log by the function given.
func (p *part) end(why error, how func(*replica.Log) error) error {
	p.h.parts[p.f.n.id].CompareAndSwap(p, nil)
	p.f.crew.stop(&p.task)
	p.f.crew.stop(&p.asks)
	p.f.crew.stop(&p.relief)
	p.mu.Lock()
	p.ended = true
	p.mu.Unlock()
	p.resign(why)
	p.fetcher.Stop()
	return p.log.end(func() error { return how(p.log.log) })
}
