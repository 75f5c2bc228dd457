package replica

import (
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/tidemark-log/tidemark/partition"
	"github.com/tidemark-log/tidemark/record"
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

var (
	// ErrStepBack means that a record is of an older leader epoch than the replica
	// knows of: it would have newer history cut by older (R13).
	ErrStepBack = errors.New("leader epoch goes back")
	// ErrTakenBack means that a leader denies what it gave or confirmed in the same
	// epoch. A log only grows while its epoch lasts (I12), so one of the two logs is
	// not what it should be.
	ErrTakenBack = errors.New("leader takes back what it gave in this epoch")
)

// FetcherOptions of a follower.
type FetcherOptions struct {
	ID          partition.ID
	Name        string // for log lines
	Node        int32
	BrokerEpoch int64
	// Session is larger in each life of the node; its lower 32 bits are the
	// fetcher's, which counts in them what it follows (R29).
	Session  uint64
	Recovery Recovery
	MaxBytes int32 // per fetch, default 1 MiB; the first batch is given whole
	// Backoff is how long it waits after an error, and the time in which it asks
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

func (d Do) String() string { return [...]string{"wait", "fetch", "ask", "sync first"}[d] }

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
	Reconciled       bool // the log is known to be the beginning of the leader's
	Held             bool
	LastFetchedEpoch int32 // of the batch before the end; −1 if there is none
	Stopped          error // why it does not go on by itself, nil if it does

	// Counters since it was made.
	CutRecords, CutBytes int64 // by verdicts, what is copied again apart
	CutBelowHW           int64 // times a verdict cut below the high watermark
	AdoptedRecords       int64 // held, and confirmed by a leader
	RefetchedRecords     int64 // held, and dropped to be copied again
	RefetchRefused       int64 // times R11 forbade that
	Corrupt              int64 // answers with a batch that is not valid or not in order
	Resets               int64 // times the log began anew at the leader's start
	Dropped              int64 // answers that did not fit
	Lost                 int64 // requests without an answer
	Appended             int64 // records copied
}

// Fetcher is the follower's part in a partition: it has a leader judge the log,
// copies what is missing and confirms it (A5, A10, A15). It is passive: Next says
// what to send, and Fetched and Answered take what comes back. All methods are safe
// for concurrent use; those that cut hold the others up, State apart.
type Fetcher struct {
	l     *Log
	o     FetcherOptions
	logID UUID

	mu      sync.Mutex
	view    *partition.Record // followed; nil if none is
	known   int32             // newest leader epoch heard of
	session uint64
	seq     uint64
	out     request
	after   time.Time // nothing is sent before

	asking rounds // while not reconciled, once asked is set
	asked  bool
	due    change // to be made before anything else
	judged int64  // the leader's log start, if its verdict says no more than that, else −1

	leaderHW, leaderStart int64 // newest known of this leader

	idle      int       // fruitless answers
	idleSince time.Time // the first of them
	bad       int       // answers in a row with a bad batch
	clashes   int       // of them, in which the batch at clashAt holds the end of the log
	clashAt   int64

	s FetcherState

	shown struct {
		sync.Mutex
		FetcherState
	}
}

// request is what is in flight.
type request struct {
	do     Do // Wait: nothing
	at     time.Time
	offset int64
}

// change is what is to be done to the log, and is still to do while the log is
// busy.
type change struct {
	do changeKind
	to int64
}

type changeKind uint8

const (
	nothing changeKind = iota
	judge              // a leader's verdict: what lies above to is not its history
	reset              // the leader's log begins at to, above the end
)

// NewFetcher returns the follower of a log. It follows nobody yet.
func NewFetcher(l *Log, o FetcherOptions) *Fetcher {
	if o.MaxBytes <= 0 {
		o.MaxBytes = 1 << 20
	}
	if o.Backoff <= 0 {
		o.Backoff = time.Second
	}
	if o.Timeout <= 0 {
		o.Timeout = 30 * time.Second
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Guards == nil {
		o.Guards = new(partition.Guards)
	}
	f := &Fetcher{l: l, o: o, logID: l.ID(), known: -1, session: o.Session}
	f.s = FetcherState{Leader: partition.None, LeaderEpoch: -1, LastFetchedEpoch: -1}
	if o.Guards.NoG1 {
		if err := l.Drop(); err != nil {
			f.s.Stopped = err
		}
	}
	f.shown.FetcherState = f.s
	return f
}

// unlock ends a step.
func (f *Fetcher) unlock() {
	f.shown.Lock()
	f.shown.FetcherState = f.s
	f.shown.Unlock()
	f.mu.Unlock()
}

// State returns a snapshot. It waits for nothing.
func (f *Fetcher) State() FetcherState {
	f.shown.Lock()
	defer f.shown.Unlock()
	s := f.shown.FetcherState
	s.Held = f.l.heldAt.Load() >= 0
	return s
}

// Follow makes it follow the leader of a record (A10): what is in flight is void,
// and the first thing to do is to have the log judged. A record of the epoch it
// follows already is a newer View. The record is kept and must not change.
//
// Errors: ErrStepBack, after which nothing is different from before.
func (f *Fetcher) Follow(r *partition.Record, now time.Time) error {
	f.mu.Lock()
	defer f.unlock()
	if r.Leader == partition.None || r.Leader == f.o.Node {
		return fmt.Errorf("follow %s: the record of epoch %d has leader %d", f.o.Name, r.LeaderEpoch, r.Leader)
	}
	newest := max(f.known, f.l.epochs.latest())
	if f.view != nil && f.view.LeaderEpoch == r.LeaderEpoch {
		f.takeView(r)
		return nil
	}
	if r.LeaderEpoch < newest {
		err := fmt.Errorf("follow %s: %w: the record has epoch %d, the replica knows of epoch %d", f.o.Name, ErrStepBack, r.LeaderEpoch, newest)
		if f.view == nil {
			f.s.Stopped = err
		}
		f.o.Logger.Error("replica does not follow", "partition", f.o.Name, "err", err)
		return err
	}
	f.stop()
	f.view, f.known = r, r.LeaderEpoch
	f.session++
	f.s.Following, f.s.Leader, f.s.LeaderEpoch = true, r.Leader, r.LeaderEpoch
	return nil
}

// View takes a newer record of the same leader epoch: R11 looks at who is in the
// ISR and the ELR. Nothing restarts.
func (f *Fetcher) View(r *partition.Record) {
	f.mu.Lock()
	defer f.unlock()
	f.takeView(r)
}

func (f *Fetcher) takeView(r *partition.Record) {
	if v := f.view; v != nil && v.LeaderEpoch == r.LeaderEpoch && v.Leader == r.Leader && v.PartitionEpoch <= r.PartitionEpoch {
		f.view = r
	}
}

// Stop ends following: this replica leads, or its node stops. When it returns no
// step is under way.
func (f *Fetcher) Stop() {
	f.mu.Lock()
	defer f.unlock()
	f.stop()
}

func (f *Fetcher) stop() {
	f.view, f.out, f.due, f.after = nil, request{}, change{}, time.Time{}
	f.asked, f.asking, f.leaderHW, f.leaderStart = false, rounds{}, 0, 0
	f.idle, f.bad, f.clashes = 0, 0, 0
	s := &f.s
	s.Following, s.Leader, s.LeaderEpoch, s.Reconciled, s.LastFetchedEpoch, s.Stopped = false, partition.None, -1, false, -1, nil
}

// halt ends following until there is another leader epoch.
func (f *Fetcher) halt(err error) error {
	f.s.Stopped = err
	f.o.Logger.Error("follower stops", "partition", f.o.Name, "leader", f.s.Leader, "epoch", f.s.LeaderEpoch, "err", err)
	return err
}

// Next says what to do now. At most one request is in flight. A change of the log
// that is due is made here, which takes as long as the disk does.
func (f *Fetcher) Next(now time.Time, s *Step) {
	f.mu.Lock()
	defer f.unlock()
	*s = Step{}
	if f.view == nil || f.s.Stopped != nil {
		return
	}
	if err := f.l.writable(); errors.Is(err, ErrBusy) {
		s.At = now.Add(f.o.Backoff / 10)
		return
	} else if err != nil {
		if !errors.Is(err, ErrClosed) {
			f.halt(err)
		}
		return
	}
	if f.out.do != Wait {
		if until := f.out.at.Add(f.o.Timeout); now.Before(until) {
			s.At = until
			return
		}
		f.out = request{}
		f.s.Lost++
	}
	if f.due.do != nothing && !f.change(now, s) {
		return
	}
	if now.Before(f.after) {
		s.At = f.after
		return
	}
	if !f.s.Reconciled {
		if !f.asked {
			f.asked, f.asking = true, newRounds(f.l.Epochs(), f.l.trueEnd())
		}
		if f.asking.left > 0 {
			f.ask(now, s)
			return
		}
		// No epochs, nothing to ask: an empty log, or one of before there were epochs,
		// of which no more is known than its high watermark.
		f.due = change{judge, f.l.HighWatermark()}
		f.judged = -1
		if !f.change(now, s) {
			return
		}
	}
	f.learn()
	end := f.l.LogEndOffset()
	if f.l.CountedEnd() < end {
		s.Do = SyncFirst
		return
	}
	f.send(SendFetch, now, end, s)
	s.Fetch = partition.Fetch{ID: f.o.ID, LeaderEpoch: f.s.LeaderEpoch, Replica: f.o.Node, BrokerEpoch: f.o.BrokerEpoch, LogID: f.logID,
		Session: f.session, Seq: f.seq, Offset: end, LastFetchedEpoch: f.s.LastFetchedEpoch, LogStart: f.l.LogStartOffset(), MaxBytes: f.o.MaxBytes}
}

func (f *Fetcher) ask(now time.Time, s *Step) {
	f.send(SendAsk, now, 0, s)
	s.Ask = partition.EpochAsk{ID: f.o.ID, LeaderEpoch: f.s.LeaderEpoch, Replica: f.o.Node, BrokerEpoch: f.o.BrokerEpoch,
		Session: f.session, Seq: f.seq, Epoch: f.asking.question()}
}

func (f *Fetcher) send(do Do, now time.Time, offset int64, s *Step) {
	f.seq++
	f.out = request{do: do, at: now, offset: offset}
	s.Do, s.At = do, now.Add(f.o.Timeout)
}

// learn takes over what is known of the leader's high watermark and log start as
// far as the own log goes, and reports whether that was news.
func (f *Fetcher) learn() (moved bool) {
	l := f.l
	hw, start := l.HighWatermark(), l.LogStartOffset()
	l.SetHighWatermark(f.leaderHW)
	if min(f.leaderStart, l.HighWatermark()) > start {
		if err := l.SetLogStart(f.leaderStart); err != nil {
			f.o.Logger.Warn("log start not raised", "partition", f.o.Name, "to", f.leaderStart, "err", err)
		}
	}
	return l.HighWatermark() > hw || l.LogStartOffset() > start
}

// fits reports whether an answer is to what is in flight; if it is, that is not in
// flight any more.
func (f *Fetcher) fits(do Do, session, seq uint64) bool {
	if f.view == nil || f.out.do != do || session != f.session || seq != f.seq {
		f.s.Dropped++
		return false
	}
	f.out = request{}
	return true
}

// refused takes an answer that says no, or is of a leader of another epoch.
func (f *Fetcher) refused(what string, code partition.Code, epoch int32, now time.Time) error {
	f.after = now.Add(f.o.Backoff)
	if code == partition.OK {
		f.s.Dropped++
		return fmt.Errorf("%s of %s: answer of leader epoch %d, want %d", what, f.o.Name, epoch, f.s.LeaderEpoch)
	}
	return fmt.Errorf("%s of %s: %w", what, f.o.Name, code)
}

// Answered takes the answer to an epoch question. One that does not fit is
// dropped. An error is news only: it asks again, or State says why not.
func (f *Fetcher) Answered(a *partition.EpochAnswer, now time.Time) error {
	f.mu.Lock()
	defer f.unlock()
	if !f.fits(SendAsk, a.Session, a.Seq) {
		return nil
	}
	if a.Code != partition.OK || a.LeaderEpoch != f.s.LeaderEpoch {
		return f.refused("epoch question", a.Code, a.LeaderEpoch, now)
	}
	done, err := f.asking.answer(a.Epoch, a.End)
	if err != nil { // it begins with the first question again
		f.asked = false
		f.after = now.Add(f.o.Backoff)
		return fmt.Errorf("epoch question of %s: %w", f.o.Name, err)
	}
	if done {
		f.due = change{judge, f.asking.cut}
		if f.judged = -1; a.End <= a.LogStart {
			f.judged = a.LogStart
		}
	}
	return nil
}

// Fetched takes the answer to a fetch; r.Records are copied before it returns. One
// that does not fit is dropped. An error is news only: it fetches again, or State
// says why not.
func (f *Fetcher) Fetched(r *partition.Fetched, now time.Time) error {
	f.mu.Lock()
	defer f.unlock()
	sent := f.out.offset
	if !f.fits(SendFetch, r.Session, r.Seq) {
		return nil
	}
	if f.l.LogEndOffset() != sent || r.Offset != sent {
		f.s.Dropped++
		f.after = now.Add(f.o.Backoff)
		return fmt.Errorf("fetch of %s: answer for offset %d, log ends at %d", f.o.Name, r.Offset, f.l.LogEndOffset())
	}
	switch {
	case r.LeaderEpoch != f.s.LeaderEpoch || r.Code != partition.OK && r.Code != partition.OffsetOutOfRange:
		return f.refused("fetch", r.Code, r.LeaderEpoch, now)
	case r.Code == partition.OffsetOutOfRange:
		return f.outOfRange(r, now)
	case r.Diverging:
		return f.diverging(r, now)
	}
	moved := false
	if len(r.Records) > 0 {
		var err error
		if moved, err = f.copy(r, now); err != nil {
			return err
		}
	}
	f.leaderHW, f.leaderStart = max(f.leaderHW, r.HighWatermark), max(f.leaderStart, r.LogStart)
	if f.learn() || moved {
		f.idle = 0
		return nil
	}
	f.fruitless(now)
	return nil
}

// copy appends the leader's batches. Of those before one that is not good it has
// taken what it could.
func (f *Fetcher) copy(r *partition.Fetched, now time.Time) (moved bool, err error) {
	l := f.l
	a, err := l.appendFollower(r.Records, demand{epoch: f.s.LeaderEpoch, gaps: l.cfg.Load().Compact, leo: r.LEO}, now.UnixMilli())
	if moved = a.End > a.Base; moved {
		f.s.Appended += a.End - a.Base
		f.s.LastFetchedEpoch = l.lastEpoch()
	}
	if err == nil {
		f.bad, f.clashes = 0, 0
		return moved, nil
	}
	f.after = now.Add(f.o.Backoff)
	if _, bad := errors.AsType[*record.Error](err); bad || errors.Is(err, ErrOrder) {
		f.s.Corrupt++
		if f.bad++; f.bad == reportBad {
			f.o.Logger.Error("leader sends batches that are not good", "partition", f.o.Name, "leader", f.s.Leader, "times", f.bad, "err", err)
		}
		if f.clash(r, moved) {
			f.due = change{reset, r.LogStart}
		}
	}
	return moved, fmt.Errorf("fetch of %s from node %d: %w", f.o.Name, f.s.Leader, err)
}

// clash reports whether the log is to begin anew because the batch that it began
// with inside (A15) was not where it said, which its checksum does not cover. The
// log is that batch alone, and the leader's batch at its end begins below that, again
// and again at the same offset: one wrong answer is no reason. A replica that may be
// elected gives nothing away.
func (f *Fetcher) clash(r *partition.Fetched, moved bool) bool {
	end := f.l.LogEndOffset()
	h, err := readHead(r.Records)
	if err != nil || moved || h.base >= end || h.last < end || checkCopy(r.Records[:h.size]) != nil {
		f.clashes = 0
		return false
	}
	if base, err := f.l.batchStart(end - 1); err != nil || base >= f.l.LogStartOffset() {
		return false
	}
	if f.clashes == 0 || f.clashAt != h.base {
		f.clashes, f.clashAt = 0, h.base
	}
	f.clashes++
	return f.clashes >= reportBad && f.mayRefetch() == ""
}

// reportBad is how many bad answers in a row are reported as an error.
const reportBad = 3

// diverging takes an answer that denies the log. Nothing else of it counts (A5).
func (f *Fetcher) diverging(r *partition.Fetched, now time.Time) error {
	last, end := f.s.LastFetchedEpoch, f.l.LogEndOffset()
	says := fmt.Sprintf("diverging at epoch %d, end %d, where the log has epoch %d, end %d", r.DivergingEpoch, r.DivergingEnd, last, end)
	if e := r.DivergingEpoch; e < 0 || r.DivergingEnd < 0 || e > last || e == last && r.DivergingEnd >= end {
		f.after = now.Add(f.o.Backoff)
		return fmt.Errorf("fetch of %s: %w: %s", f.o.Name, errBadAnswer, says)
	}
	return f.halt(fmt.Errorf("fetch of %s: %w: %s", f.o.Name, ErrTakenBack, says)) // all of the log is this leader's
}

// outOfRange is A15's table.
func (f *Fetcher) outOfRange(r *partition.Fetched, now time.Time) error {
	start, end := f.l.LogStartOffset(), f.l.LogEndOffset()
	err := fmt.Errorf("fetch of %s at offset %d: %w: leader has %d to %d", f.o.Name, end, r.Code, r.LogStart, r.LEO)
	switch {
	case r.LogStart < 0 || r.LEO < r.LogStart: // no leader's log is like that
	case end < r.LogStart || end > r.LEO && start == end:
		f.due = change{reset, r.LogStart}
		return err
	case end > r.LEO: // all of the log is this leader's
		return f.halt(fmt.Errorf("%w: %w", ErrTakenBack, err))
	default: // the leader moved meanwhile: no reset, no spin
	}
	f.after = now.Add(f.o.Backoff)
	return err
}

// fruitless counts an answer that brought nothing: a leader that does not let
// fetches wait is asked a few times per Backoff (I26).
func (f *Fetcher) fruitless(now time.Time) {
	if f.idle == 0 || now.Sub(f.idleSince) >= f.o.Backoff {
		f.idle, f.idleSince = 0, now
	}
	if f.idle++; f.idle >= maxFruitless {
		f.after = f.idleSince.Add(f.o.Backoff)
	}
}

const maxFruitless = 5

// change makes the change that is due. If it is not made, s says when to come again.
func (f *Fetcher) change(now time.Time, s *Step) (done bool) {
	var err error
	if f.due.do == judge {
		err = f.judge(f.due.to)
	} else {
		err = f.reset(f.due.to)
	}
	switch end := f.l.LogEndOffset(); {
	case err == nil && f.due.do == judge && end <= f.judged && f.l.LogStartOffset() < end:
		// Of what lies below its log start the leader knows no epochs: its verdict on an
		// epoch that ended there says where the log starts, and no more. Before it fetches,
		// since a fetch at the leader's high watermark would let it join (A7).
		f.due = change{reset, f.judged}
		return f.change(now, s)
	case err == nil:
		f.l.cleared()
		f.due, f.asked, f.asking = change{}, false, rounds{}
		f.s.Reconciled, f.s.LastFetchedEpoch = true, f.l.lastEpoch()
		return true
	case f.s.Stopped != nil:
	case errors.Is(err, errOtherEpochs):
		f.due, f.asked, f.asking, f.s.Reconciled = change{}, false, rounds{}, false
		s.At = now
	case errors.Is(err, ErrBusy): // a view or a sync is out; who ends it may call at once
		s.At = now.Add(f.o.Backoff / 10)
	case f.l.writable() != nil:
		f.halt(err)
	default: // a full disk, a file that cannot be opened: the log is as before
		f.o.Logger.Warn("follower cannot change its log yet", "partition", f.o.Name, "err", err)
		f.after = now.Add(f.o.Backoff)
		s.At = f.after
	}
	return false
}

// judge has the log end at to or below, where the leader's history parts from it
// (R9 to R11).
func (f *Fetcher) judge(to int64) error {
	l := f.l
	held, end, isHeld := l.Held()
	to, err := l.batchStart(min(to, end))
	if err != nil {
		return err
	}
	if to < end {
		if err := l.correctEpochs(to, end); err != nil {
			return err
		}
	}
	keep, hw := to, l.HighWatermark()
	if isHeld && held < to && f.o.Recovery == Refetch {
		if why := f.mayRefetch(); why == "" {
			if keep, err = l.batchStart(held); err != nil {
				return err
			}
		} else {
			f.s.RefetchRefused++
			f.o.Logger.Warn("follower keeps what its leader confirms and does not copy it again", "partition", f.o.Name,
				"from", held, "to", to, "because", why)
		}
	}
	if f.o.Guards.NoG2 {
		keep = min(keep, hw)
	}
	if isHeld && held < keep {
		if err := f.adopt(held, keep); err != nil {
			return err
		}
	}
	if err := f.cut(keep, to, end, hw); err != nil {
		return err
	}
	if isHeld {
		return l.Drop()
	}
	return nil
}

// mayRefetch returns why R11 forbids to discard what a leader confirmed, "" if it
// does not: an election could need it.
func (f *Fetcher) mayRefetch() string {
	r := f.view
	if _, in := partition.Find(r.ISR, f.o.Node); in {
		return "it is in the ISR"
	}
	if _, in := partition.Find(r.ELR, f.o.Node); in {
		return "it is in the ELR"
	}
	if len(r.ISR) < int(r.MinISR) {
		return "the ISR is below min ISR"
	}
	return ""
}

// adopt makes the held tail [from, to) count. What cannot be read is no record any
// more: it is copied again with what lies behind it, unless an election could need
// that.
func (f *Fetcher) adopt(from, to int64) error {
	err := f.l.Adopt(to)
	if bad, ok := errors.AsType[*CorruptError](err); ok {
		if why := f.mayRefetch(); why != "" {
			return f.halt(fmt.Errorf("what was held is damaged, and %s: %w", why, err))
		}
		f.o.Logger.Error("what was held is damaged and copied again", "partition", f.o.Name, "err", err)
		to = max(bad.Offset, from)
		if err = f.l.Adopt(to); err == nil {
			err = f.l.Truncate(to)
		}
	}
	if err == nil {
		f.s.AdoptedRecords += to - from
	}
	return err
}

// cut ends the log at keep. The leader has what lies between keep and to.
func (f *Fetcher) cut(keep, to, end, hw int64) error {
	l := f.l
	if keep = min(keep, l.trueEnd()); keep >= end && l.epochs.last().StartOffset < end {
		return nil
	}
	bytes := l.size()
	var err error
	if keep < l.LogStartOffset() {
		err = l.TruncateFullyAndStartAt(keep)
	} else {
		err = l.Truncate(keep)
	}
	if err != nil || keep >= end {
		return err
	}
	f.s.CutRecords += end - to
	f.s.RefetchedRecords += to - min(keep, to)
	f.s.CutBytes += bytes - l.size()
	if keep < hw {
		f.s.CutBelowHW++
		f.o.Logger.Error("follower cut below its high watermark: records may be lost", "partition", f.o.Name, "from", keep, "end", end,
			"hw", hw, "leader", f.s.Leader, "epoch", f.s.LeaderEpoch)
		return nil
	}
	f.o.Logger.Info("follower cut its log", "partition", f.o.Name, "from", keep, "end", end, "hw", hw, "leader", f.s.Leader, "epoch", f.s.LeaderEpoch)
	return nil
}

// reset begins the log anew at the leader's start, with which nothing of it is in
// common (A15).
func (f *Fetcher) reset(to int64) error {
	start, end := f.l.LogStartOffset(), f.l.LogEndOffset()
	if err := f.l.TruncateFullyAndStartAt(to); err != nil {
		return err
	}
	f.s.Resets++
	f.o.Logger.Warn("follower begins anew at its leader's log start", "partition", f.o.Name, "start", start, "end", end, "at", to)
	return nil
}

// size is how many bytes of batches the log has.
func (l *Log) size() (n int64) {
	for _, s := range *l.segments.Load() {
		n += s.Size()
	}
	return n
}

// lastEpoch is the epoch of the last batch, −1 if there is none or it has none.
func (l *Log) lastEpoch() int32 { return l.epochBelow(l.LogEndOffset()) }

// batchStart returns the base of the batch that offset lies inside of, else offset:
// the log can end there without a gap.
func (l *Log) batchStart(offset int64) (int64, error) {
	list := *l.segments.Load()
	_, base, err := list[floorSegment(list, offset)].Position(offset)
	return min(base, offset), err
}
