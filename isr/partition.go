package isr

import (
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tidemark-log/tidemark/partition"
	"github.com/tidemark-log/tidemark/record"
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
	Registered  int64 // revision of the registration; older records are not acted on (R5)
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
	Wake []int32   // replicas whose parked fetch is to be run again
	// Alter is to be sent to the coordinator, its answer goes to Altered. It is not
	// changed any more. Tick says it again until it is answered.
	Alter *partition.Alter
	// Decline: tell the coordinator that this node cannot lead in DeclineEpoch
	// (R24). Tick says it again until a newer record arrives.
	Decline      bool
	DeclineEpoch int32
	Follow       bool // the fetcher may have something to do: call its Next
	Sync         bool // the log has something to sync that somebody waits for
	Moved        Moved
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
	Idle      Role = iota // nobody leads, or no record was acted on yet, or not assigned
	Following             //
	Leading               //
	Declined              // the record names it, but it cannot lead (R24)
)

func (r Role) String() string { return [...]string{"idle", "following", "leading", "declined"}[r] }

// Partition is one replica's part in a partition, whatever its role. It is safe
// for concurrent use.
//
// Lock order, outermost first: changes, role, mu, those of the fetcher and the
// log. Nothing but changes is held across I/O that waits for a disk, and none
// across a call to the driver, but for Roster.
type Partition struct {
	o Options

	changes sync.Mutex // one change of role at a time; held across writes
	// role guards view, state and epochStart. Who appends or serves holds it shared,
	// so that a change of role comes before or after as a whole.
	role sync.RWMutex
	view *partition.Record // newest acted on; nil before the first
	is   Role
	lead leader // while Leading
	mu   sync.Mutex
}

// New returns a partition that waits for its first record.
func New(o Options) *Partition { return &Partition{o: o} }

// Log is the replica's log.
func (p *Partition) Log() *replica.Log { return p.o.Log }

// Fetcher is the replica's follower, nil if it has none.
func (p *Partition) Fetcher() *replica.Fetcher { return p.o.Fetcher }

// Update takes a record of the coordinator: the replica leads, follows or waits
// accordingly (A1, A10, A14). Records older than the last one or than the node's
// registration are passed over (R5). It may write and wait for the disk.
//
// Errors: ErrStepBack; an error of the log, after which the replica does not
// lead.
func (p *Partition) Update(r *partition.Record, now time.Time, fx *Effects) error { return nil }

// Altered takes the coordinator's answer to a proposal (A8). It may write like
// Update.
func (p *Partition) Altered(a *partition.Altered, now time.Time, fx *Effects) {}

// Advanced tells that the log's synced end or its end moved, or that it failed:
// after each FinishSync, and after the fetcher appended.
func (p *Partition) Advanced(now time.Time, fx *Effects) {}

// Tick does what is due by the clock and returns when it wants to be called
// again, zero if nothing can fall due. Another step may want it earlier: see
// Effects.Tick. It may write like Update.
func (p *Partition) Tick(now time.Time, fx *Effects) (next time.Time) { return }

// Resign ends leading by this node's own choice, because it stops or hands over
// (A14): no more appends and reads, waiters fail. Followers may go on fetching
// what there is. It lasts until the record names a newer leader epoch, or Resume.
func (p *Partition) Resign(now time.Time, why error, fx *Effects) {}

// Resume takes Resign back, for a handover that did not come about.
func (p *Partition) Resume() {}

// Status is a snapshot.
type Status struct {
	Role        Role
	Resigned    error             // why a leader takes no appends
	Record      *partition.Record // newest acted on, nil before the first
	LeaderEpoch int32             // in which it leads or follows, −1 if neither
	EpochStart  int64             // where its leader epoch began, while leading

	HighWatermark, LogStart, LEO, CountedLEO int64

	// While leading:
	Committed []partition.Member // ISR of the record
	Maximal   []partition.Member // with everyone in a proposal under way
	Pending   *partition.Alter   // nil if there is none
	Followers []FollowerStatus
	Waiters   int
	Counters  Counters
}

// FollowerStatus is what a leader knows of a replica.
type FollowerStatus struct {
	Node         int32
	BrokerEpoch  int64 // of its last fetch in this leader epoch
	LogID        partition.UUID
	LEO          int64 // −1: unknown
	LogStart     int64
	LastFetch    time.Time
	LastCaughtUp time.Time
	InISR        bool
	Parked       bool
}

// Counters since the Partition was made.
type Counters struct {
	Appends, Duplicates                     int64
	Shrinks, Expands, Refused               int64 // proposals made, and those refused
	Fetches, Diverging, Rejected, Discarded int64 // of followers; Discarded: out of order (R29)
	Led, Declined, Timeouts                 int64
}

// Status returns a snapshot.
func (p *Partition) Status() (s Status) { return }

// ReplicaFetch and so on: see leader.go.
var _ = fmt.Sprint
var _ record.Record
