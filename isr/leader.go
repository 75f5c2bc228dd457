package isr

import (
	"errors"
	"time"

	"github.com/tidemark-log/tidemark/partition"
	"github.com/tidemark-log/tidemark/replica"
)

// leader is what a leader knows in one reign. Partition.mu guards it.
type leader struct {
	followers []follower // every other node that is assigned or in the ISR
	committed int        // size of the ISR of the record
	named     bool       // whose entries all have log ids
	minISR    int
	broken    error // why the reign ends although the record does not say so yet

	// pending is the proposal under way, at most one (R16); alterAt is when it is
	// said again, zero once it was answered. No other is made before proposeAt.
	pending   *partition.Alter
	alterAt   time.Time
	proposeAt time.Time

	// reliefAt is when another shall lead if appends find no room until then: LagMax after
	// the first that did not, and after each attempt; zero: they do.
	reliefAt time.Time

	lagAt time.Time // when followers are looked at next (A6); zero: all have caught up

	all, own waiters   // appends that wait for the high watermark, and for the own counted end
	waiting  int       // both, and those being appended
	expire   time.Time // no waiter's time is over before; zero: none has one
}

// follower is what a leader knows of another replica.
type follower struct {
	node     int32
	assigned bool
	in       bool             // in the committed ISR,
	member   partition.Member // as this
	proposed bool             // in the ISR proposed,
	coming   partition.Member // as this
	known    int64            // its largest broker epoch heard of

	// Of its valid fetches in this leader epoch, all from the last one: never mixed
	// with another's (R18).
	brokerEpoch   int64 // −1 before the first
	logID         partition.UUID
	session, seq  uint64
	leo, logStart int64 // leo −1: unknown
	parked        bool

	// The lag clock (A6): time of the last fetch, the largest LEO of the leader at
	// one, and when the follower had everything, by what it showed since; all in one
	// life.
	clockOf   int64
	lastFetch time.Time
	lastLEO   int64
	caughtUp  time.Time
}

// is reports whether the follower's fetches are those of a member, in the same
// life and from the same directory.
func (f *follower) is(m partition.Member) bool {
	return f.leo >= 0 && f.brokerEpoch == m.BrokerEpoch && (m.LogID == f.logID || m.LogID == partition.UUID{})
}

// confirmed is what a member of the ISR is known to have: nothing, if what it
// fetched was in another life than the entry's.
func (f *follower) confirmed() int64 {
	if f.in && !f.is(f.member) || f.proposed && !f.in && !f.is(f.coming) {
		return 0
	}
	return max(f.leo, 0)
}

// upToDate reports whether the follower is in sync by the lag clock. One that has
// all there is always is: an idle partition does not churn.
func (f *follower) upToDate(leo int64, now time.Time, lagMax time.Duration) bool {
	return f.leo >= leo || !f.caughtUp.IsZero() && now.Sub(f.caughtUp) <= lagMax
}

// fetched moves the lag clock: leo is the leader's before it served the fetch.
func (f *follower) fetched(offset, leo int64, now time.Time) {
	at := f.lastFetch
	if offset >= leo {
		at = now
	} else if offset < f.lastLEO {
		at = time.Time{}
	}
	if at.After(f.caughtUp) {
		f.caughtUp = at
	}
	f.lastLEO, f.lastFetch = max(f.lastLEO, leo), now
}

// find returns what is known of a node, nil if it is neither assigned nor in the
// ISR.
func (x *leader) find(node int32) *follower {
	for i := range x.followers {
		if x.followers[i].node == node {
			return &x.followers[i]
		}
	}
	return nil
}

// takeLocked takes over who is in a record. What is known of a replica that
// stays is kept.
func (p *Partition) takeLocked(r *partition.Record) {
	old := p.followers
	p.followers = make([]follower, 0, len(r.Replicas)+len(r.ISR))
	add := func(node int32) *follower {
		if f := p.find(node); f != nil {
			return f
		}
		f := follower{node: node, known: -1, brokerEpoch: -1, clockOf: -1, leo: -1}
		for i := range old {
			if old[i].node == node {
				f = old[i]
			}
		}
		f.assigned, f.in, f.proposed = false, false, false
		f.known = max(f.known, p.o.Nodes.Node(node).BrokerEpoch)
		p.followers = append(p.followers, f)
		return &p.followers[len(p.followers)-1]
	}
	for _, node := range r.Replicas {
		if node != p.o.Node {
			add(node).assigned = true
		}
	}
	p.named = true
	for _, m := range r.ISR {
		p.named = p.named && m.LogID != partition.UUID{}
		if m.Node != p.o.Node {
			f := add(m.Node)
			f.in, f.member = true, m
			f.known = max(f.known, m.BrokerEpoch)
		}
	}
	p.committed, p.minISR = len(r.ISR), min(int(r.MinISR), len(r.Replicas))
	// Whatever was proposed was taken, or is refused from now on.
	p.pending, p.alterAt = nil, time.Time{}
}

// maximal is the size of the ISR and everyone in the proposal under way.
func (p *Partition) maximal() int {
	n := p.committed
	for i := range p.followers {
		if f := &p.followers[i]; f.proposed && !f.in {
			n++
		}
	}
	return n
}

// raiseLocked moves the high watermark to what everybody has whom it must wait
// for (A4), and answers the appends it passes.
func (p *Partition) raiseLocked(now time.Time, fx *Effects) {
	// After an error that sticks nothing is acked, although others have it (R8).
	if p.checkLogLocked(now, fx); p.broken != nil {
		return
	}
	l, g := p.o.Log, p.o.Guards
	counted := l.CountedEnd()
	// Frozen below min ISR (R17), and while the record does not say which logs its ISR
	// means: an empty directory in the place of one of them could be elected (R2).
	if p.named && (p.committed >= p.minISR || g.NoG6) {
		hw, leo := counted, l.LogEndOffset()
		for i := range p.followers {
			f := &p.followers[i]
			switch {
			case g.NoG5 && p.pending != nil && f.in && !f.proposed: // an ISR that was only proposed counts
			case f.in, f.proposed: // the maximal ISR (R16)
				hw = min(hw, f.confirmed())
			case f.leo >= 0 && f.leo < hw && f.upToDate(leo, now, p.o.LagMax) && p.eligible(f):
				// It is about to join, and would never reach a high watermark that moves
				// with each append.
				hw = f.leo
			}
		}
		if old := l.HighWatermark(); hw > old {
			l.SetHighWatermark(hw)
			if l.HighWatermark() > old {
				fx.Moved |= MovedHW
			}
		}
	}
	p.releaseLocked(l.HighWatermark(), counted, fx)
}

// eligible reports whether a replica that fetches may join the ISR now, or be
// waited for.
func (p *Partition) eligible(f *follower) bool {
	n := p.o.Nodes.Node(f.node)
	return f.assigned && n.Eligible(f.brokerEpoch)
}

// serves says why the replica does not serve a request of a leader epoch (A3.1 to
// A3.3). A request without one is a consumer's. role is held.
func (p *Partition) serves(id partition.ID, epoch int32, replica int32) partition.Code {
	switch {
	case id.Topic != p.o.ID.Topic:
		if id.Topic == (partition.UUID{}) {
			return partition.UnknownTopicID
		}
		return partition.InconsistentTopicID
	case id.Partition != p.o.ID.Partition:
		return partition.UnknownTopicID
	case epoch < 0 && replica == partition.None:
	case epoch < p.epoch() && !p.o.Guards.NoG11:
		return partition.FencedLeaderEpoch
	case epoch > p.epoch():
		return partition.UnknownLeaderEpoch
	}
	if p.is != Leading {
		return partition.NotLeader
	}
	return partition.OK
}

// epoch is the leader epoch of the view, −1 before the first. role is held.
func (p *Partition) epoch() int32 {
	if p.view == nil {
		return -1
	}
	return p.view.LeaderEpoch
}

// Answer is the answer to a fetch. Its Records are those of View, which is to be
// released after use.
type Answer struct {
	partition.Fetched
	View replica.View
	// Drop: the request came out of order, no answer is to be sent (R29).
	Drop bool
}

// Fetch serves a replica's fetch, or a consumer's (A3). What is refused changes
// nothing (I23). With mayPark it may report parked, if there is nothing to give
// yet: no answer is to be sent then, and the fetch is to be run again, with again
// set, when Effects.Wake names the replica or the time it may wait is over.
//
// Replicas are served without a lease and after Resign too: what they copy is what
// this leader epoch has, and the more of it they have the less is lost when another
// leads (A14).
func (p *Partition) Fetch(q *partition.Fetch, again, mayPark bool, now time.Time, a *Answer, fx *Effects) (parked bool) {
	p.role.RLock()
	defer p.role.RUnlock()
	*a = Answer{Fetched: partition.Fetched{Session: q.Session, Seq: q.Seq, Offset: q.Offset, LeaderEpoch: p.epoch(),
		Code: p.serves(q.ID, q.LeaderEpoch, q.Replica), HighWatermark: -1, LogStart: -1, LEO: -1, DivergingEpoch: -1, DivergingEnd: -1}}
	switch {
	case a.Code != partition.OK:
		p.count(&p.n.Rejected)
		return false
	case q.Replica == partition.None:
		return p.fetchConsumer(q, mayPark, now, a)
	}
	for {
		parked, ok := p.fetch(q, again, mayPark, now, a, fx)
		if ok {
			return parked
		}
	}
}

func (p *Partition) count(n *int64) {
	p.mu.Lock()
	*n++
	p.mu.Unlock()
}

// fetch is ok unless the log grew meanwhile, when there was nothing to give. role
// is held.
func (p *Partition) fetch(q *partition.Fetch, again, mayPark bool, now time.Time, a *Answer, fx *Effects) (parked, ok bool) {
	l := p.o.Log
	// The records come first, outside of mu: reading may wait for a disk, and what
	// cannot be read leaves everything as it was.
	a.LogStart, a.LEO = l.LogStartOffset(), l.LogEndOffset()
	var failed error
	if q.Offset >= a.LogStart && q.Offset < a.LEO {
		if a.View, failed = l.ViewUnchecked(q.Offset, a.LEO, max(int(q.MaxBytes), 0)); failed == nil {
			a.Records = a.View.Bytes
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	f := p.find(q.Replica)
	if p.refuseLocked(q, again, f, a) || p.failedRead(failed, now, a, fx) {
		a.View.Release()
		a.Records = nil
		return false, true
	}
	if len(a.Records) == 0 && l.LogEndOffset() > a.LEO {
		return false, false
	}
	if f.clockOf != q.BrokerEpoch {
		f.clockOf, f.lastFetch, f.lastLEO, f.caughtUp = q.BrokerEpoch, time.Time{}, 0, time.Time{}
	}
	f.brokerEpoch, f.logID, f.session, f.seq = q.BrokerEpoch, q.LogID, q.Session, q.Seq
	f.known = max(f.known, q.BrokerEpoch)
	f.leo, f.logStart = q.Offset, q.LogStart
	f.fetched(q.Offset, a.LEO, now)
	p.n.Fetches++
	if !f.in || f.member != (partition.Member{Node: f.node, BrokerEpoch: f.brokerEpoch, LogID: f.logID}) {
		p.proposeLocked(f, now, fx)
	}
	p.raiseLocked(now, fx)
	f.parked = mayPark && len(a.Records) == 0
	if f.parked {
		return true, true
	}
	a.HighWatermark = min(l.HighWatermark(), a.LEO)
	return false, true
}

// refuseLocked does the checks of A3 from the fourth on, in their order, and
// reports whether one failed: a is the answer then.
func (p *Partition) refuseLocked(q *partition.Fetch, again bool, f *follower, a *Answer) bool {
	switch {
	case f == nil || !f.assigned:
		a.Code = partition.UnknownLeaderEpoch // it waits for what it does not know yet
	case p.broken != nil:
		a.Code = partition.StorageError
	case p.staleLocked(q, f):
		a.Code = partition.StaleBrokerEpoch
	case q.BrokerEpoch == f.brokerEpoch && (q.Session < f.session || q.Session == f.session && (q.Seq < f.seq || q.Seq == f.seq && !again)):
		a.Code, a.Drop = partition.StaleBrokerEpoch, true
		p.n.Dropped++
		return true
	case q.Offset < a.LogStart:
		a.Code = partition.OffsetOutOfRange
	case p.divergesLocked(q, a):
		return true
	case a.Code == partition.OK && q.Offset > a.LEO:
		a.Code = partition.OffsetOutOfRange
	}
	if a.Code == partition.OK {
		return false
	}
	p.n.Rejected++
	return true
}

// staleLocked reports whether a fetch is of an earlier life of its node, or of
// another directory than the life's last.
func (p *Partition) staleLocked(q *partition.Fetch, f *follower) bool {
	if q.Session != f.session {
		f.known = max(f.known, p.o.Nodes.Node(f.node).BrokerEpoch)
	}
	return q.BrokerEpoch < max(f.known, 0) || q.BrokerEpoch == f.brokerEpoch && q.LogID != f.logID
}

// divergesLocked asks the epoch history about the batch before the offset (A3.7,
// A3.8). It reports whether the answer is that the logs part; where the history
// cannot tell, the answer's code says so.
func (p *Partition) divergesLocked(q *partition.Fetch, a *Answer) bool {
	if q.LastFetchedEpoch < 0 || p.o.Guards.NoG11 && q.LeaderEpoch != a.LeaderEpoch {
		return false
	}
	e, end := p.o.Log.EndOffsetFor(q.LastFetchedEpoch)
	switch {
	case e < 0:
		a.Code = partition.OffsetOutOfRange
		return false
	case e == q.LastFetchedEpoch && end >= q.Offset:
		return false
	}
	a.Diverging, a.DivergingEpoch, a.DivergingEnd = true, e, end
	p.n.Diverging++
	return true
}

// failedRead makes an error of reading the answer. A leader whose log is damaged
// resigns.
func (p *Partition) failedRead(err error, now time.Time, a *Answer, fx *Effects) bool {
	switch {
	case err == nil:
		return false
	case errors.Is(err, replica.ErrOutOfRange): // deleted meanwhile
		a.Code = partition.OffsetOutOfRange
	default:
		a.Code = partition.StorageError
		p.o.Logger.Error("fetch not served", "partition", p.o.Name, "offset", a.Offset, "err", err)
		if errors.Is(err, replica.ErrCorrupt) {
			p.breakLocked(err, now, fx)
		}
	}
	p.n.Rejected++
	return true
}

// breakLocked ends the reign from within: the log has failed or is damaged. The
// coordinator is told; it elects another.
func (p *Partition) breakLocked(why error, now time.Time, fx *Effects) {
	if p.broken != nil {
		return
	}
	p.broken = why
	p.o.Logger.Error("leader resigns", "partition", p.o.Name, "epoch", p.view.LeaderEpoch, "err", why)
	p.alterAt, p.lagAt = time.Time{}, time.Time{}
	p.failLocked(partition.NotLeader, fx)
	for i := range p.followers {
		p.wakeLocked(&p.followers[i], fx)
	}
	p.declineLocked(now, fx)
}

// checkLogLocked ends the reign if the log has failed (R8).
func (p *Partition) checkLogLocked(now time.Time, fx *Effects) {
	if err := p.o.Log.Err(); err != nil {
		p.breakLocked(err, now, fx)
	} else if d := p.o.Log.Damage(); d != nil {
		p.breakLocked(d, now, fx)
	}
}

// noRoomLocked takes note of an append that found no room. Nothing is wrong with what
// the replica has, so it leads on for a while: there may be some again, or nowhere else
// either.
func (p *Partition) noRoomLocked(why error, now time.Time, fx *Effects) {
	p.n.NoRoom++
	switch {
	case p.reliefAt.IsZero():
		p.o.Logger.Warn("leader has no room for appends", "partition", p.o.Name, "epoch", p.view.LeaderEpoch, "err", why)
	case now.Before(p.reliefAt):
		return
	default:
		fx.Relief = p.committed > 1
	}
	p.reliefAt = now.Add(p.o.LagMax)
}

func (p *Partition) wakeLocked(f *follower, fx *Effects) {
	if f.parked {
		f.parked = false
		fx.Wake = append(fx.Wake, f.node)
	}
}

// fetchConsumer serves a fetch that is no replica's: up to the high watermark, as
// it was first. role is held.
func (p *Partition) fetchConsumer(q *partition.Fetch, mayPark bool, now time.Time, a *Answer) (parked bool) {
	l := p.o.Log
	a.LogStart, a.HighWatermark = l.LogStartOffset(), l.HighWatermark()
	a.LEO = a.HighWatermark // nobody's business
	v, err := p.consume(q.Offset, a.HighWatermark, max(int(q.MaxBytes), 0), now)
	switch {
	case err == nil:
	case errors.Is(err, partition.NotLeader):
		a.Code = partition.NotLeader
	case errors.Is(err, partition.OffsetOutOfRange):
		a.Code = partition.OffsetOutOfRange
	default:
		a.Code = partition.StorageError
		p.o.Logger.Error("fetch not served", "partition", p.o.Name, "offset", q.Offset, "err", err)
	}
	a.View, a.Records = v, v.Bytes
	return mayPark && a.Code == partition.OK && len(a.Records) == 0
}

// Consume returns what a consumer may read from offset on: committed batches, at
// most maxBytes of them but always the first. Empty from the high watermark to
// the end. Release the view.
//
// Errors: partition.NotLeader, without a lease too; OffsetOutOfRange; those of
// replica.Log.View.
func (p *Partition) Consume(offset int64, maxBytes int, now time.Time) (replica.View, error) {
	p.role.RLock()
	defer p.role.RUnlock()
	return p.consume(offset, p.o.Log.HighWatermark(), maxBytes, now)
}

func (p *Partition) consume(offset, hw int64, maxBytes int, now time.Time) (replica.View, error) {
	l := p.o.Log
	switch {
	case !p.open(now):
		return replica.View{}, partition.NotLeader
	case offset < l.LogStartOffset() || offset > l.LogEndOffset():
		return replica.View{}, partition.OffsetOutOfRange
	case offset >= hw:
		return replica.View{}, nil
	}
	v, err := l.View(offset, hw, maxBytes)
	if errors.Is(err, replica.ErrOutOfRange) {
		err = partition.OffsetOutOfRange
	}
	return v, err
}

// open reports whether it leads, may go on doing so (R28) and wants to. role is
// held.
func (p *Partition) open(now time.Time) bool {
	return p.is == Leading && p.resigned == nil && p.o.Lease.Valid(now)
}

// Latest is the end of what consumers may read.
//
// Errors: partition.NotLeader; OffsetNotAvailable while a new leader does not yet
// know that everything committed before its epoch is.
func (p *Partition) Latest(now time.Time) (int64, error) {
	p.role.RLock()
	defer p.role.RUnlock()
	if !p.open(now) {
		return 0, partition.NotLeader
	}
	hw := p.o.Log.HighWatermark()
	if hw < p.start {
		return 0, partition.OffsetNotAvailable
	}
	return hw, nil
}

// Ask answers where a leader epoch ends (A10). It changes nothing.
func (p *Partition) Ask(q *partition.EpochAsk, a *partition.EpochAnswer) {
	p.role.RLock()
	defer p.role.RUnlock()
	*a = partition.EpochAnswer{Session: q.Session, Seq: q.Seq, LeaderEpoch: p.epoch(), Epoch: -1, End: -1, LogStart: -1,
		Code: p.serves(q.ID, q.LeaderEpoch, q.Replica)}
	if a.Code == partition.OK && q.Replica != partition.None {
		p.mu.Lock()
		switch f := p.find(q.Replica); {
		case f == nil || !f.assigned:
			a.Code = partition.UnknownLeaderEpoch
		case p.broken != nil:
			a.Code = partition.StorageError
		case q.BrokerEpoch < max(f.known, 0):
			a.Code = partition.StaleBrokerEpoch
		}
		p.mu.Unlock()
	}
	if a.Code == partition.OK {
		a.Epoch, a.End = p.o.Log.EndOffsetFor(q.Epoch)
		a.LogStart = p.o.Log.LogStartOffset()
	}
}
