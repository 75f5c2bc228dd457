package replica

import (
	"log/slog"
	"time"

	"github.com/tidemark-log/tidemark/partition"
)

// Recovery is what a restarted follower does with what lies above its high
// watermark once a leader has judged it.
type Recovery int

const (
	// Refetch cuts it and copies it again from the leader, wherever R11 allows
	// that; elsewhere it does what Adopt does, and says so.
	Refetch Recovery = iota
	// Adopt keeps what the leader confirms.
	Adopt
)

func (r Recovery) String() string { return [...]string{"refetch", "adopt"}[r] }

// FetcherOptions of a follower.
type FetcherOptions struct {
	ID          partition.ID
	Name        string // for log lines
	Node        int32
	BrokerEpoch int64
	// Session is larger in each life of the node; its lower 32 bits are the
	// fetcher's, which counts what it follows in them (R29).
	Session  uint64
	Recovery Recovery
	MaxBytes int32 // per fetch, default 1 MiB; the first batch is given whole
	// Backoff is how long it waits after an error, and over what time it may ask
	// fruitlessly only a few times (I26). Default 1 s.
	Backoff time.Duration
	// Timeout is how long a request may go without an answer before it counts as
	// lost. Default 30 s.
	Timeout time.Duration
	Guards  *partition.Guards // nil: all on
	Logger  *slog.Logger      // default: discards
}

// Do is what a step asks of the driver.
type Do uint8

const (
	Wait      Do = iota // until Step.At, or until something happens
	SendFetch           // Step.Fetch to the leader; the answer goes to Fetched
	SendAsk             // Step.Ask to the leader; the answer goes to Answered
	SyncFirst           // have the log synced, then call Next again (R6)
)

// Step is what a follower wants done.
type Step struct {
	Do    Do
	Fetch partition.Fetch
	Ask   partition.EpochAsk
	// At is when Next is to be called again if nothing happened before; zero: only
	// when something did.
	At time.Time
}

// FetcherState is a snapshot of a follower.
type FetcherState struct {
	Following        bool
	Leader           int32 // None if it follows nobody
	LeaderEpoch      int32
	Reconciled       bool
	Held             bool
	LastFetchedEpoch int32 // −1 if the log is empty
	Stopped          error // why it does not go on by itself, nil if it does

	// Counters since it was made.
	CutRecords, CutBytes int64 // by verdicts
	CutBelowHW           int64 // cuts below the own high watermark
	AdoptedRecords       int64
	RefetchedRecords     int64 // dropped to be copied again
	RefetchRefused       int64 // times R11 forbade it
	Corrupt              int64 // answers with a batch that is not valid or not in order
	Resets               int64 // times the log began anew at the leader's start
	Dropped              int64 // answers that did not fit
	Lost                 int64 // requests without an answer
	Appended             int64 // records copied
}

// Fetcher is the follower's part in a partition (A5, A10, A15): it says what to
// send to the leader and takes the answers. It is passive, and safe for concurrent
// use.
type Fetcher struct {
	l *Log
	o FetcherOptions
}

// NewFetcher returns the follower of a log. It follows nobody yet.
func NewFetcher(l *Log, o FetcherOptions) *Fetcher { return &Fetcher{l: l, o: o} }

// Follow makes it follow the leader of a record (A10).
func (f *Fetcher) Follow(r *partition.Record, now time.Time) error { return nil }

// View takes a newer record of the same leader epoch (S41).
func (f *Fetcher) View(r *partition.Record) {}

// Stop ends following: this replica leads, or its node stops.
func (f *Fetcher) Stop() {}

// Next says what to do now. At most one request is in flight.
func (f *Fetcher) Next(now time.Time, s *Step) { *s = Step{} }

// Fetched takes the answer to a fetch. r.Records is copied before it returns.
func (f *Fetcher) Fetched(r *partition.Fetched, now time.Time) error { return nil }

// Answered takes the answer to an epoch question.
func (f *Fetcher) Answered(a *partition.EpochAnswer, now time.Time) error { return nil }

// State returns a snapshot.
func (f *Fetcher) State() FetcherState { return FetcherState{Leader: partition.None} }

// Evidence is how the last life of this log ended (R4).
func (l *Log) Evidence() partition.Evidence { return partition.Suspect }
