package isr

import (
	"time"

	"github.com/tidemark-log/tidemark/partition"
)

// tickLocked does what is due while leading.
func (p *Partition) tickLocked(now time.Time, fx *Effects) {
	p.checkLogLocked(now, fx)
	if p.broken != nil {
		return
	}
	if !p.o.Lease.Valid(now) {
		p.failLocked(partition.NotLeader, fx)
	}
	p.timeoutLocked(now, fx)
	lag := !p.lagAt.IsZero() && !now.Before(p.lagAt)
	if lag {
		p.forgivePauseLocked(now)
		p.lagAt = time.Time{}
	}
	switch {
	case p.pending == nil:
		if lag {
			p.shrinkLocked(now, fx)
		}
		p.proposeLocked(nil, now, fx)
	case !p.alterAt.IsZero():
		if !now.Before(p.alterAt) {
			fx.Alter, p.alterAt = p.pending, now.Add(p.o.Resend)
		}
		p.want(p.alterAt, fx)
	}
	p.raiseLocked(now, fx)
	p.armLocked(now, fx)
}

// forgivePauseLocked adds the time by which a look at the followers came too
// late, because this process stood still, to what they are measured by: nobody
// could fetch meanwhile.
func (p *Partition) forgivePauseLocked(now time.Time) {
	late := now.Sub(p.lagAt)
	if late <= p.o.LagMax/2 {
		return
	}
	for i := range p.followers {
		if f := &p.followers[i]; !f.caughtUp.IsZero() {
			if f.caughtUp = f.caughtUp.Add(late); f.caughtUp.After(now) {
				f.caughtUp = now
			}
		}
	}
}

// armLocked has Tick called for all that may fall due.
func (p *Partition) armLocked(now time.Time, fx *Effects) {
	if p.lagAt.IsZero() {
		leo := p.o.Log.LogEndOffset()
		for i := range p.followers {
			f := &p.followers[i]
			if f.leo < leo && (f.in || f.proposed || f.upToDate(leo, now, p.o.LagMax)) {
				p.lagAt = now.Add(p.o.LagMax / 2)
				break
			}
		}
	}
	if !p.lagAt.IsZero() {
		p.want(p.lagAt, fx)
	}
	if p.proposeAt.After(now) {
		p.want(p.proposeAt, fx)
	}
	if p.waiting > 0 {
		if !p.expire.IsZero() {
			p.want(p.expire, fx)
		}
		if until := p.o.Lease.end(); until.After(now) {
			p.want(until, fx)
		}
	}
}

// void reports whether a member's entry is of an earlier life of its node, of a
// directory that the same life has not any more, or of a node that is not
// assigned.
func (f *follower) void() bool {
	return f.in && (!f.assigned || f.member.BrokerEpoch < f.known || f.brokerEpoch == f.member.BrokerEpoch && !f.is(f.member))
}

// shrinkLocked proposes to take out everyone who has not caught up for too long
// (A6).
func (p *Partition) shrinkLocked(now time.Time, fx *Effects) {
	leo := p.o.Log.LogEndOffset()
	p.removeLocked(now, fx, func(f *follower) bool { return f.void() || !f.upToDate(leo, now, p.o.LagMax) })
}

// removeLocked proposes the ISR without those members that out names, if it
// names any.
func (p *Partition) removeLocked(now time.Time, fx *Effects, out func(*follower) bool) {
	if now.Before(p.proposeAt) || p.resigned != nil {
		return
	}
	n := 0
	for i := range p.followers {
		if f := &p.followers[i]; f.in && out(f) {
			n++
		}
	}
	if n == 0 {
		return
	}
	p.n.Shrinks++
	p.alterLocked(now, fx, func(f *follower) (partition.Member, bool) { return f.entry(), f.in && !out(f) })
}

// entry is a member of the ISR with all that is known of it.
func (f *follower) entry() partition.Member {
	if f.is(f.member) {
		return partition.Member{Node: f.node, BrokerEpoch: f.brokerEpoch, LogID: f.logID}
	}
	return f.member
}

// proposeLocked proposes what the followers' state asks for, apart from lag:
// members whose entry is void go (R19), replicas that have everything join (A7),
// directories that were not known when the topic was made get their ids (R2).
// fresh is the replica whose fetch this is, nil if it is about none.
func (p *Partition) proposeLocked(fresh *follower, now time.Time, fx *Effects) {
	if p.pending != nil || p.broken != nil || p.resigned != nil || now.Before(p.proposeAt) {
		return
	}
	hw, leo := p.o.Log.HighWatermark(), p.o.Log.LogEndOffset()
	join := func(f *follower) bool {
		// Without a fetch just now, only one that goes on fetching: not one that was
		// just taken out.
		return (f == fresh || now.Sub(f.lastFetch) <= p.o.LagMax && f.upToDate(leo, now, p.o.LagMax)) && p.joinsLocked(f, hw, leo, now)
	}
	var void, joins, unnamed bool
	for i := range p.followers {
		f := &p.followers[i]
		if f.in {
			f.known = max(f.known, p.o.Nodes.Node(f.node).BrokerEpoch)
		}
		void = void || f.void()
		joins = joins || join(f)
		unnamed = unnamed || f.in && f.entry().LogID == (partition.UUID{}) // not heard of yet
	}
	switch own, _ := partition.Find(p.view.ISR, p.o.Node); {
	case void:
		p.removeLocked(now, fx, (*follower).void)
	case joins:
		p.n.Expands++
		p.alterLocked(now, fx, func(f *follower) (partition.Member, bool) {
			if join(f) {
				return partition.Member{Node: f.node, BrokerEpoch: f.brokerEpoch, LogID: f.logID}, true
			}
			return f.entry(), f.in
		})
	case !unnamed && p.namesLocked(own):
		p.n.Expands++
		p.alterLocked(now, fx, func(f *follower) (partition.Member, bool) { return f.entry(), f.in })
	}
}

// namesLocked reports whether some entry of the record lacks its directory's id.
func (p *Partition) namesLocked(own partition.Member) bool {
	zero := own.LogID == (partition.UUID{})
	for i := range p.followers {
		f := &p.followers[i]
		zero = zero || f.in && f.member.LogID == (partition.UUID{})
	}
	return zero
}

// joinsLocked reports whether a replica outside the ISR may be proposed for it
// (A7).
func (p *Partition) joinsLocked(f *follower, hw, leo int64, now time.Time) bool {
	return !f.in && f.leo >= 0 && f.leo >= hw &&
		(f.leo >= p.start || p.o.Guards.NoG7) && // below, a committed record may be missing
		// At a frozen high watermark anybody would do, and be out again soon.
		(p.committed >= p.minISR || f.upToDate(leo, now, p.o.LagMax)) &&
		p.eligible(f)
}

// alterLocked makes a proposal: the leader, and of the others who member says.
// The maximal ISR has all of them from now on.
func (p *Partition) alterLocked(now time.Time, fx *Effects, member func(*follower) (partition.Member, bool)) {
	p.seq++
	a := &partition.Alter{ID: p.o.ID, Seq: p.seq, Node: p.o.Node, BrokerEpoch: p.o.BrokerEpoch,
		LeaderEpoch: p.view.LeaderEpoch, PartitionEpoch: p.view.PartitionEpoch}
	a.ISR = append(a.ISR, partition.Member{Node: p.o.Node, BrokerEpoch: p.o.BrokerEpoch, LogID: p.o.Log.ID()})
	for i := range p.followers {
		f := &p.followers[i]
		if m, ok := member(f); ok {
			f.proposed, f.coming = true, m
			a.ISR = append(a.ISR, m)
		}
	}
	p.pending, p.alterAt = a, now.Add(p.o.Resend)
	fx.Alter = a
	p.want(p.alterAt, fx)
}

// Altered takes the coordinator's answer to a proposal (A8). It may write like
// Update.
func (p *Partition) Altered(a *partition.Altered, now time.Time, fx *Effects) {
	if a.ID != p.o.ID {
		return
	}
	if a.Record != nil { // the newest there is, whatever it answers
		if err := p.Update(a.Record, now, fx); err != nil {
			p.o.Logger.Warn("record not acted on", "partition", p.o.Name, "err", err)
		}
	}
	p.role.RLock()
	defer p.role.RUnlock()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.pending == nil || a.Seq != p.pending.Seq {
		return // of one that is settled
	}
	switch a.Code {
	case partition.Unknown, partition.NotController:
		// Perhaps it was applied, or the coordinator is behind: said again by Tick.
	case partition.IneligibleReplica:
		// It was not and will not be applied: back to the ISR of the record.
		p.n.Refused++
		p.pending, p.alterAt, p.proposeAt = nil, time.Time{}, now.Add(p.o.Resend)
		for i := range p.followers {
			p.followers[i].proposed = false
		}
		p.want(p.proposeAt, fx)
		p.raiseLocked(now, fx)
	default:
		// A newer record is on its way; until then both ISRs count. After OK without
		// one nobody can tell.
		if p.alterAt = (time.Time{}); a.Code == partition.OK {
			p.alterAt = now.Add(p.o.Resend)
			p.want(p.alterAt, fx)
		} else {
			p.n.Refused++
		}
	}
}
