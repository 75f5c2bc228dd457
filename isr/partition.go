package isr

import (
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tidemark-log/tidemark/partition"
	"github.com/tidemark-log/tidemark/replica"
)

var (
	// ErrTooManyWaiters means that Options.MaxWaiters appends wait for their acks
	// already. Nothing was appended.
	ErrTooManyWaiters = errors.New("too many appends wait for their acks")
	// ErrStepBack means that a record of the coordinator is of an older leader
	// epoch than what this replica knows: the coordinator, or the reader of it, has
	// lost something. The record is not followed (R13, R26).
	ErrStepBack = errors.New("the coordinator's record steps back")
)

// Options of a Partition.
type Options struct {
	ID          partition.ID
	Name        string // for log lines
	Node        int32
	BrokerEpoch int64
	Log         *replica.Log
	Fetcher     *replica.Fetcher // nil for one that never follows
	// Lease is the node's; nil holds for ever (R28).
	Lease *Lease
	// Nodes is what this node knows of the others (A4, A7).
	Nodes Roster
	// LagMax is how long a member of the ISR may not have caught up with the leader
	// before it is taken out (A6). Default 30 s.
	LagMax time.Duration
	// Resend is how long a message to the coordinator may go without an answer, or
	// a refused one rests, before it is sent again. Default 1 s.
	Resend time.Duration
	// MaxWaiters bounds the appends that wait for their acks. Default 10,000.
	MaxWaiters int
	Logger     *slog.Logger      // default: discards
	Guards     *partition.Guards // nil: all on
}

// Roster says what a node knows of a node now; BrokerEpoch −1 if nothing. It is
// called with a lock of the Partition held: it must not block or call back in.
type Roster interface {
	Node(id int32) partition.Node
}

// Lease is until when a node may lead (R28): all its partitions share it. The
// zero value has ended.
type Lease struct{ until atomic.Pointer[time.Time] }

// Set moves the end of the lease.
func (l *Lease) Set(until time.Time) { l.until.Store(&until) }

// Renew moves the end of the lease to a later time, and returns what it was.
func (l *Lease) Renew(until time.Time) (was time.Time) {
	for {
		old := l.until.Load()
		if old != nil {
			was = *old
		}
		if !until.After(was) || l.until.CompareAndSwap(old, &until) {
			return was
		}
	}
}

// Valid reports whether the lease holds.
func (l *Lease) Valid(now time.Time) bool {
	until := l.end()
	return l == nil || now.Before(until)
}

func (l *Lease) end() (until time.Time) {
	if l != nil {
		if p := l.until.Load(); p != nil {
			until = *p
		}
	}
	return until
}

// Moved tells what a step moved.
type Moved uint8

const (
	MovedHW     Moved = 1 << iota // the high watermark, while leading
	MovedISR                      // the committed ISR
	MovedLeader                   // who leads, or in which epoch
	MovedRole                     // what this replica is
)

// Effects is what a step asks its driver to do. The driver owns it and may use
// it for one step after the other: a step adds to it.
type Effects struct {
	Done []*Waiter // answered
	// Acked: the waiter of this very Produce is finished on return, and not in Done.
	Acked bool
	Wake  []int32 // replicas whose parked fetch is to be run again
	// Alter is to be sent to the coordinator, its answer goes to Altered. It is not
	// changed any more. Tick says it again until it is answered.
	Alter *partition.Alter
	// Decline: tell the coordinator that this node cannot lead in DeclineEpoch
	// (R24). Tick says it again until a newer record arrives.
	Decline      bool
	DeclineEpoch int32
	// Relief: appends have found no room for LagMax, while others are in sync. If one
	// of these has room (replica.Log.Room, asked of its node), hand over to it (A14): Resign,
	// have it get everything, Controller.Handover; and Resume if that does not come about.
	// Asked for again after LagMax.
	Relief bool
	Follow bool // the fetcher may have something to do: call its Next
	Sync   bool // the log has something to sync that somebody waits for
	Moved  Moved
	// Tick, if not zero, is when Tick is to be called at the latest.
	Tick time.Time
}

// Reset empties it, for the next step.
func (fx *Effects) Reset() {
	clear(fx.Done)
	*fx = Effects{Done: fx.Done[:0], Wake: fx.Wake[:0]}
}

// Role is what a replica is in its partition.
type Role uint8

const (
	Idle      Role = iota // nobody leads, it is not assigned, or no record was acted on yet
	Following             // another leads
	Leading               // it leads
	Declined              // the record names it, but it cannot lead (R24)
)

func (r Role) String() string { return [...]string{"idle", "following", "leading", "declined"}[r] }

// Partition is one replica's part in a partition, whatever its role. It is safe
// for concurrent use.
//
// Lock order, outermost first: changes, role, mu, the log's. mu is never held across
// I/O that waits for a disk; changes is, and role, shared, by an append that needs room
// and by a read. With mu held the Roster and the log's Notify are called: neither may
// block or call back in.
type Partition struct {
	o Options

	// changes lets one change of role happen at a time; it is held across the writes
	// of it.
	changes sync.Mutex
	redo    bool // the record in view could not be acted on yet; changes

	// role guards what follows, with changes for who writes. Who appends or serves
	// holds it shared, so that a change of role comes before or after as a whole.
	role     sync.RWMutex
	view     *partition.Record // newest acted on; nil before the first
	is       Role
	start    int64 // of the leader epoch, while Leading
	resigned error // why a leader takes no appends

	mu sync.Mutex // guards the rest, briefly
	leader
	tickAt    time.Time // when Tick is to be called next; zero: not at all
	declineAt time.Time // when Decline is said again; zero: it is not
	seq       uint64    // of the last proposal
	n         Counters
}

// New returns a partition that waits for its first record.
func New(o Options) *Partition {
	if o.LagMax == 0 {
		o.LagMax = 30 * time.Second
	}
	if o.Resend == 0 {
		o.Resend = time.Second
	}
	if o.MaxWaiters == 0 {
		o.MaxWaiters = 10_000
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Guards == nil {
		o.Guards = &partition.Guards{}
	}
	return &Partition{o: o}
}

// Log is the replica's log.
func (p *Partition) Log() *replica.Log { return p.o.Log }

// Fetcher is the replica's follower, nil if it has none.
func (p *Partition) Fetcher() *replica.Fetcher { return p.o.Fetcher }

// Update takes a record of the coordinator: the replica leads, follows or waits
// accordingly (A1, A10, A14). Records older than the last one are passed over. The
// caller hands in only what it read from the coordinator after the node's
// registration (R5); the record may be older. It may write and wait for the disk.
//
// Errors: ErrStepBack; replica.ErrBusy, or a full disk where nobody else may lead,
// after which Tick tries again; another error of the log, after which the replica does
// not lead.
func (p *Partition) Update(r *partition.Record, now time.Time, fx *Effects) error {
	p.changes.Lock()
	defer p.changes.Unlock()
	return p.updateLocked(r, now, fx)
}

// updateLocked is Update with changes held.
func (p *Partition) updateLocked(r *partition.Record, now time.Time, fx *Effects) error {
	v := p.view
	switch {
	case r.ID != p.o.ID:
		return fmt.Errorf("update partition %s: record of %s", p.o.ID, r.ID)
	case v != nil && (r.PartitionEpoch < v.PartitionEpoch || r.PartitionEpoch == v.PartitionEpoch && !p.redo):
		return nil
	case v != nil && r.LeaderEpoch < v.LeaderEpoch:
		return p.stepBack(r, v.LeaderEpoch)
	}
	mine := r.Leader == p.o.Node
	if own := p.o.Log.Stats().LeaderEpoch; own > r.LeaderEpoch && !mine {
		return p.stepBack(r, own)
	}
	switch {
	case mine && p.is == Leading && r.LeaderEpoch == v.LeaderEpoch:
		p.refresh(r, now, fx)
		return nil
	case mine:
		return p.takeLead(r, now, fx)
	}
	return p.takeOther(r, now, fx)
}

func (p *Partition) stepBack(r *partition.Record, epoch int32) error {
	err := fmt.Errorf("partition %s: %w: leader epoch %d of partition epoch %d, known is %d", p.o.ID, ErrStepBack, r.LeaderEpoch, r.PartitionEpoch, epoch)
	p.o.Logger.Error("record of the coordinator refused", "partition", p.o.Name, "err", err)
	return err
}

// takeLead begins a reign (A1). changes is held.
func (p *Partition) takeLead(r *partition.Record, now time.Time, fx *Effects) error {
	was := p.leave(r, Idle, now, fx)
	err := p.cannotLead(r)
	alone := false
	if err == nil {
		if p.o.Fetcher != nil {
			p.o.Fetcher.Stop()
		}
		err = p.begin(r.LeaderEpoch)
		// A full disk leaves the log whole. Where nobody else may lead, to decline would
		// end the partition: nothing leads back from last known (R23).
		alone = err != nil && p.o.Log.Writable() == nil && len(r.ISR)+len(r.ELR) == 1
	}
	p.redo = alone || errors.Is(err, replica.ErrBusy)
	p.role.Lock()
	defer p.role.Unlock()
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.redo:
		p.want(now.Add(p.o.Resend/10), fx)
		return err
	case err != nil:
		p.is = Declined
		p.declineLocked(now, fx)
		p.o.Logger.Error("cannot lead", "partition", p.o.Name, "epoch", r.LeaderEpoch, "err", err)
		return fmt.Errorf("lead partition %s in epoch %d: %w", p.o.ID, r.LeaderEpoch, err)
	}
	p.is, p.resigned, p.start = Leading, nil, p.o.Log.LogEndOffset()
	p.n.Led++
	p.leader = leader{}
	p.takeLocked(r)
	for i := range p.followers {
		if f := &p.followers[i]; f.in {
			f.caughtUp, f.clockOf = now, f.member.BrokerEpoch // a full period
		}
	}
	fx.Moved |= MovedLeader | MovedISR
	if was != Leading {
		fx.Moved |= MovedRole
	}
	fx.Sync = true // what was held or came just before may not be synced
	p.raiseLocked(now, fx)
	p.proposeLocked(nil, now, fx)
	p.armLocked(now, fx)
	return nil
}

// cannotLead says why the replica may not lead by this record (R24), nil if it
// may.
func (p *Partition) cannotLead(r *partition.Record) error {
	l := p.o.Log
	if err := l.Writable(); err != nil && !errors.Is(err, replica.ErrBusy) {
		return err // first: a damaged log does not even know its id
	}
	m, ok := partition.Find(r.ISR, p.o.Node)
	switch id := partition.UUID(l.ID()); {
	case !ok:
		return fmt.Errorf("node %d is not in the ISR", p.o.Node)
	case m.BrokerEpoch != p.o.BrokerEpoch:
		return fmt.Errorf("the ISR has broker epoch %d, this life is %d", m.BrokerEpoch, p.o.BrokerEpoch)
	case m.LogID != (partition.UUID{}) && m.LogID != id:
		// A zero one is of a new topic, whose directories nobody has heard of.
		return fmt.Errorf("the ISR has log %s, this directory is log %s", m.LogID, id)
	}
	if own := l.Stats().LeaderEpoch; own >= r.LeaderEpoch { // the same too: a reign is begun once (R26)
		return p.stepBack(r, own)
	}
	if l.HighWatermark() > l.LogEndOffset() {
		return fmt.Errorf("log ends at %d, below its high watermark %d", l.LogEndOffset(), l.HighWatermark())
	}
	return nil
}

// begin makes the log a leader's: it keeps everything (R12), and the epoch is on
// disk. changes is held.
func (p *Partition) begin(epoch int32) error {
	l := p.o.Log
	l.Release()
	if p.o.Guards.NoG4 {
		if err := l.Truncate(l.HighWatermark()); err != nil {
			return err
		}
	}
	return l.BeginEpoch(epoch)
}

// takeOther makes another the leader, or nobody (A10). changes is held.
func (p *Partition) takeOther(r *partition.Record, now time.Time, fx *Effects) error {
	f, v := p.o.Fetcher, p.view
	is := Idle
	if r.Leader != partition.None && r.Assigned(p.o.Node) && f != nil {
		is = Following
	}
	same := v != nil && v.LeaderEpoch == r.LeaderEpoch && !p.redo
	was := p.leave(r, is, now, fx)
	p.redo = false
	if was != is {
		fx.Moved |= MovedRole
	}
	if !same {
		fx.Moved |= MovedLeader
	}
	switch {
	case is == Following && was == Following && same:
		f.View(r)
	case is == Following:
		if err := f.Follow(r, now); err != nil {
			return fmt.Errorf("follow node %d in partition %s: %w", r.Leader, p.o.ID, err)
		}
	case f != nil:
		f.Stop()
	}
	fx.Follow = fx.Follow || is == Following
	return nil
}

// leave ends what the replica was, and has it be something else by record r. A
// leader's waiters fail, and its parked fetches are run again to hear of it
// (A14).
func (p *Partition) leave(r *partition.Record, is Role, now time.Time, fx *Effects) (was Role) {
	p.role.Lock()
	defer p.role.Unlock()
	p.mu.Lock()
	defer p.mu.Unlock()
	was = p.is
	if was == Leading {
		p.failLocked(partition.NotLeader, fx)
		for i := range p.followers {
			p.wakeLocked(&p.followers[i], fx)
		}
	}
	p.view, p.is, p.start = r, is, 0
	p.leader = leader{}
	p.declineAt = time.Time{}
	return was
}

// refresh takes a record of the reign that goes on: nothing is reset (S41).
func (p *Partition) refresh(r *partition.Record, now time.Time, fx *Effects) {
	p.role.Lock()
	defer p.role.Unlock()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.view = r
	p.takeLocked(r)
	fx.Moved |= MovedISR
	p.raiseLocked(now, fx) // now that whoever left does not count any more
	p.proposeLocked(nil, now, fx)
	p.armLocked(now, fx)
}

// declineLocked tells the coordinator that this node cannot lead.
func (p *Partition) declineLocked(now time.Time, fx *Effects) {
	if p.declineAt.IsZero() {
		p.n.Declined++
	}
	fx.Decline, fx.DeclineEpoch = true, p.view.LeaderEpoch
	p.declineAt = now.Add(p.o.Resend)
	p.want(p.declineAt, fx)
}

// want asks for a Tick at the latest at t. mu is held.
func (p *Partition) want(t time.Time, fx *Effects) {
	if p.tickAt.IsZero() || t.Before(p.tickAt) {
		p.tickAt = t
		fx.Tick = earlier(fx.Tick, t)
	}
}

// earlier returns the earlier of two times, zero being none.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// Advanced tells that the log's synced end or its end moved, or that it failed:
// after each FinishSync, and after the fetcher appended.
func (p *Partition) Advanced(now time.Time, fx *Effects) {
	p.role.RLock()
	defer p.role.RUnlock()
	switch p.is {
	case Following:
		fx.Follow = true
	case Leading:
		p.mu.Lock()
		defer p.mu.Unlock()
		p.raiseLocked(now, fx)
	}
}

// Tick does what is due by the clock and returns when it wants to be called
// again, zero if nothing can fall due. Another step may want it earlier: see
// Effects.Tick. It is also to be called when the Roster changed. It may write
// like Update.
func (p *Partition) Tick(now time.Time, fx *Effects) (next time.Time) {
	redo := false
	if p.changes.TryLock() { // else a change of role is under way, which may take its time
		if p.redo {
			if err := p.updateLocked(p.view, now, fx); err != nil {
				p.o.Logger.Warn("record not acted on yet", "partition", p.o.Name, "err", err)
			}
		}
		redo = p.redo
		p.changes.Unlock()
	}

	p.role.RLock()
	defer p.role.RUnlock()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.tickAt = time.Time{}
	if redo {
		p.want(now.Add(p.o.Resend/10), fx)
	}
	if p.is == Leading {
		p.tickLocked(now, fx)
	}
	if !p.declineAt.IsZero() {
		if !now.Before(p.declineAt) {
			p.declineLocked(now, fx)
		}
		p.want(p.declineAt, fx)
	}
	return p.tickAt
}

// Resign ends leading by this node's own choice, because it stops or hands over
// (A14): no more appends and reads, waiters fail. Followers go on fetching what
// there is. It lasts until the record names a newer leader epoch, or Resume.
func (p *Partition) Resign(now time.Time, why error, fx *Effects) {
	p.role.Lock()
	defer p.role.Unlock()
	if p.is != Leading {
		return
	}
	if why == nil {
		why = partition.NotLeader
	}
	p.resigned = why
	p.mu.Lock()
	defer p.mu.Unlock()
	p.failLocked(partition.NotLeader, fx)
}

// Resume takes Resign back, for a handover that did not come about.
func (p *Partition) Resume() {
	p.role.Lock()
	defer p.role.Unlock()
	p.resigned = nil
}

// Status is a snapshot.
type Status struct {
	Role        Role
	Record      *partition.Record // newest acted on, nil before the first
	LeaderEpoch int32             // of the record, −1 before the first

	HighWatermark, LogStart, LEO, CountedLEO int64

	// While leading:
	Resigned   error              // why it takes no appends
	EpochStart int64              // where its leader epoch began
	Committed  []partition.Member // ISR of the record
	Maximal    []partition.Member // and everyone in a proposal under way
	MinISR     int
	Pending    *partition.Alter // nil if there is none
	Followers  []FollowerStatus
	Waiters    int

	Counters Counters
}

// FollowerStatus is what a leader knows of a replica, by its last valid fetch in
// this leader epoch.
type FollowerStatus struct {
	Node         int32
	BrokerEpoch  int64 // −1: it did not fetch
	LogID        partition.UUID
	LEO          int64 // −1: unknown
	LogStart     int64
	LastFetch    time.Time
	LastCaughtUp time.Time
	InISR        bool // committed
	Parked       bool
}

// Counters since the Partition was made.
type Counters struct {
	Appends, Duplicates, Timeouts int64
	Shrinks, Expands              int64 // proposals made, the latter also of ids that were not known
	Refused                       int64 // proposals that were not applied
	Fetches                       int64 // valid ones of replicas
	Diverging, Rejected           int64
	Dropped                       int64 // out of order (R29)
	Led, Declined                 int64
	NoRoom                        int64 // appends that found none
}

// Status returns a snapshot.
func (p *Partition) Status() (s Status) {
	p.role.RLock()
	defer p.role.RUnlock()
	p.mu.Lock()
	defer p.mu.Unlock()
	l := p.o.Log
	s = Status{Role: p.is, Record: p.view, LeaderEpoch: -1, Counters: p.n,
		HighWatermark: l.HighWatermark(), LogStart: l.LogStartOffset(), LEO: l.LogEndOffset(), CountedLEO: l.CountedEnd()}
	if p.view != nil {
		s.LeaderEpoch = p.view.LeaderEpoch
	}
	if p.is != Leading {
		return s
	}
	s.Resigned, s.EpochStart, s.MinISR, s.Pending = p.resigned, p.start, p.minISR, p.pending
	if s.Resigned == nil {
		s.Resigned = p.broken
	}
	s.Committed, s.Maximal = p.view.ISR, append(s.Maximal, p.view.ISR...)
	if p.pending != nil {
		for _, m := range p.pending.ISR {
			if _, in := partition.Find(s.Maximal, m.Node); !in {
				s.Maximal = append(s.Maximal, m)
			}
		}
	}
	for i := range p.followers {
		f := &p.followers[i]
		s.Followers = append(s.Followers, FollowerStatus{Node: f.node, BrokerEpoch: f.brokerEpoch, LogID: f.logID, LEO: f.leo,
			LogStart: f.logStart, LastFetch: f.lastFetch, LastCaughtUp: f.caughtUp, InISR: f.in, Parked: f.parked})
	}
	s.Waiters = p.waiting
	return s
}
