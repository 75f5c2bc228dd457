package replica_test

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tidemark-log/tidemark/internal/vfs"
	"github.com/tidemark-log/tidemark/partition"
	"github.com/tidemark-log/tidemark/record"
	"github.com/tidemark-log/tidemark/replica"
	"github.com/tidemark-log/tidemark/segment"
)

// rep is one replica of a partition: a log in memory with its follower. As a
// leader it answers straight from the log; who may lead, and the high watermark,
// is the test's business.
type rep struct {
	t     testing.TB
	id    int32
	mem   *vfs.Mem
	o     replica.Options
	fo    replica.FetcherOptions
	log   *replica.Log
	f     *replica.Fetcher
	life  int64
	epoch int32 // that it leads, −1 if none
	now   *time.Time
	warns *records
	asks  int // epoch questions that it sent
	sent  int // fetches
}

var tp = partition.ID{Topic: partition.UUID{1}, Partition: 3}

// reps makes replicas 0 to n−1 with empty logs.
func reps(t testing.TB, n int, o replica.Options, fo replica.FetcherOptions) []*rep {
	now := t0
	list := make([]*rep, n)
	for i := range list {
		r := &rep{t: t, id: int32(i), mem: vfs.NewMem(vfs.MemOptions{Seed: uint64(i)}), o: o, fo: fo, epoch: -1, now: &now, warns: &records{}}
		if r.o.SegmentBytes == 0 {
			r.o.SegmentBytes = 16 << 10
		}
		r.o.Logger, r.o.Maps = slog.New(r.warns), segment.NewMaps(1000)
		r.fo.ID, r.fo.Name, r.fo.Node, r.fo.Logger = tp, "t-3", r.id, r.o.Logger
		t.Cleanup(func() {
			if r.log != nil {
				r.log.Close(t0)
			}
		})
		r.start(false)
		list[i] = r
	}
	return list
}

// pair makes replicas 0 and 1.
func pair(t testing.TB, o replica.Options, fo replica.FetcherOptions) (a, b *rep) {
	n := reps(t, 2, o, fo)
	return n[0], n[1]
}

// following is pair where the first leads in an epoch, has put n records, and the second
// has copied them.
func following(t testing.TB, o replica.Options, fo replica.FetcherOptions, epoch int32, n int) (a, b *rep) {
	t.Helper()
	a, b = pair(t, o, fo)
	a.lead(epoch)
	a.put(n)
	b.follow(a, 1)
	return a, b
}

// start opens the log in a new life.
func (r *rep) start(held bool) {
	r.t.Helper()
	r.life++
	r.o.FS, r.o.Held = r.mem, held
	l, err := replica.Open("/log", r.o, t0)
	if err != nil {
		r.t.Fatal(err)
	}
	r.log = l
	r.fo.BrokerEpoch, r.fo.Session = 100*r.life+int64(r.id), uint64(r.life)<<32
	r.f = replica.NewFetcher(l, r.fo)
}

// kill ends the process and starts the next, held.
func (r *rep) kill() {
	r.t.Helper()
	r.mem, r.epoch = r.mem.Kill(), -1
	r.start(true)
}

func (r *rep) powerCut(seed uint64) {
	r.t.Helper()
	r.mem, r.epoch = r.mem.PowerCut(rand.New(rand.NewPCG(seed, 1))), -1
	r.start(true)
}

func (r *rep) stop() {
	r.t.Helper()
	if err := r.log.Close(t0); err != nil {
		r.t.Fatal(err)
	}
	r.epoch = -1
	r.start(true)
}

// lead makes r the leader of an epoch, as A1 does.
func (r *rep) lead(epoch int32) {
	r.t.Helper()
	r.f.Stop()
	r.log.Release()
	if err := r.log.BeginEpoch(epoch); err != nil {
		r.t.Fatal(err)
	}
	r.epoch = epoch
}

// put appends a batch of n records that say who wrote them.
func (r *rep) put(n int) {
	r.t.Helper()
	recs := make([]record.Record, n)
	for i := range recs {
		recs[i] = record.Record{Value: fmt.Appendf(nil, "%d of node %d, epoch %d, %s", i, r.id, r.epoch, strings.Repeat("x", 40))}
	}
	if _, err := r.log.AppendRecords(recs, *r.now); err != nil {
		r.t.Fatal(err)
	}
	r.sync()
}

func (r *rep) sync() {
	r.t.Helper()
	if r.o.Sync != replica.Always {
		return
	}
	if err := r.log.SyncNow(); err != nil {
		r.t.Fatal(err)
	}
}

// hw moves a leader's high watermark.
func (r *rep) hw(to int64) { r.log.SetHighWatermark(to) }

// record names ld as leader of its epoch; isr are the other members.
func (ld *rep) record(isr ...int32) *partition.Record {
	rec := &partition.Record{ID: tp, Replicas: []int32{0, 1, 2}, Leader: ld.id, LeaderEpoch: ld.epoch, MinISR: 1}
	for _, id := range append([]int32{ld.id}, isr...) {
		rec.ISR = append(rec.ISR, partition.Member{Node: id})
	}
	return rec
}

// answer is A3.6 to A3.9 without what concerns the leader's own state.
func (ld *rep) answer(q *partition.Fetch) (a partition.Fetched, view replica.View) {
	l := ld.log
	a = partition.Fetched{Session: q.Session, Seq: q.Seq, Offset: q.Offset, LeaderEpoch: ld.epoch,
		HighWatermark: l.HighWatermark(), LogStart: l.LogStartOffset(), LEO: l.LogEndOffset()}
	e, end := l.EndOffsetFor(q.LastFetchedEpoch)
	switch {
	case q.LeaderEpoch < ld.epoch:
		a.Code = partition.FencedLeaderEpoch
	case q.LeaderEpoch > ld.epoch:
		a.Code = partition.UnknownLeaderEpoch
	case q.Offset < a.LogStart || q.LastFetchedEpoch >= 0 && e < 0:
		a.Code = partition.OffsetOutOfRange
	case q.LastFetchedEpoch >= 0 && (e < q.LastFetchedEpoch || end < q.Offset):
		a.Diverging, a.DivergingEpoch, a.DivergingEnd = true, e, end
	case q.Offset > a.LEO:
		a.Code = partition.OffsetOutOfRange
	default:
		var err error
		if view, err = l.View(q.Offset, a.LEO, int(q.MaxBytes)); err != nil {
			ld.t.Fatal(err)
		}
		a.Records = view.Bytes
	}
	return a, view
}

func (ld *rep) answerAsk(q *partition.EpochAsk) partition.EpochAnswer {
	a := partition.EpochAnswer{Session: q.Session, Seq: q.Seq, LeaderEpoch: ld.epoch, Epoch: -1, End: -1, LogStart: ld.log.LogStartOffset()}
	switch {
	case q.LeaderEpoch < ld.epoch:
		a.Code = partition.FencedLeaderEpoch
	case q.LeaderEpoch > ld.epoch:
		a.Code = partition.UnknownLeaderEpoch
	default:
		a.Epoch, a.End = ld.log.EndOffsetFor(q.Epoch)
	}
	return a
}

// step does one step of r against ld and returns what it was.
func (r *rep) step(ld *rep) (s replica.Step) {
	r.t.Helper()
	r.f.Next(*r.now, &s)
	switch s.Do {
	case replica.SendFetch:
		r.sent++
		a, v := ld.answer(&s.Fetch)
		_ = r.f.Fetched(&a, *r.now)
		v.Release()
	case replica.SendAsk:
		r.asks++
		a := ld.answerAsk(&s.Ask)
		_ = r.f.Answered(&a, *r.now)
	case replica.SyncFirst:
		r.sync()
	case replica.Wait:
		if s.At.After(*r.now) {
			*r.now = s.At
		}
	}
	return s
}

// run lets r follow ld until nothing happens any more.
func (r *rep) run(ld *rep) {
	r.t.Helper()
	for quiet, n := 0, 0; quiet < 8; n++ {
		if n > 2000 {
			r.t.Fatalf("follower is not quiet: %+v", r.f.State())
		}
		before := r.log.Stats()
		s := r.step(ld)
		if after := r.log.Stats(); s.Do == replica.SendAsk || before.LogEndOffset != after.LogEndOffset || before.HighWatermark != after.HighWatermark {
			quiet = 0
		} else {
			quiet++
		}
	}
}

// follow has r follow ld until it has everything; isr are members beside ld.
func (r *rep) follow(ld *rep, isr ...int32) {
	r.t.Helper()
	r.begin(ld, isr...)
	r.run(ld)
	r.same(ld)
}

func (r *rep) begin(ld *rep, isr ...int32) {
	r.t.Helper()
	r.epoch = -1
	if err := r.f.Follow(ld.record(isr...), *r.now); err != nil {
		r.t.Fatal(err)
	}
}

// all returns the bytes of all batches.
func (r *rep) all() (b []byte) {
	r.t.Helper()
	l := r.log
	for offset := l.LogStartOffset(); offset < l.LogEndOffset(); {
		n := len(b)
		var err error
		if b, err = l.Read(b, offset, l.LogEndOffset(), 1<<20); err != nil {
			r.t.Fatal(err)
		}
		for at := n; at < len(b); {
			x, err := record.Check(b[at:])
			if err != nil {
				r.t.Fatal(err)
			}
			at += len(x)
			offset = x.NextOffset()
		}
		if len(b) == n {
			break
		}
	}
	return b
}

// same checks that r's log is byte by byte that of ld, and its epochs.
func (r *rep) same(ld *rep) {
	r.t.Helper()
	a, b := r.log, ld.log
	if a.LogStartOffset() != b.LogStartOffset() || a.LogEndOffset() != b.LogEndOffset() || !bytes.Equal(r.all(), ld.all()) {
		r.t.Fatalf("node %d has [%d, %d), node %d [%d, %d)\n%+v", r.id, a.LogStartOffset(), a.LogEndOffset(), ld.id, b.LogStartOffset(), b.LogEndOffset(), r.f.State())
	}
	// What is empty at the leader's end the follower cannot know.
	if e, n := b.Epochs(), len(a.Epochs()); n > len(e) || !slices.Equal(a.Epochs(), e[:n]) || n < len(e) && e[n].StartOffset < a.LogEndOffset() {
		r.t.Fatalf("node %d has epochs %v, node %d %v", r.id, a.Epochs(), ld.id, e)
	}
	if s := r.f.State(); !s.Reconciled || s.Held || s.Stopped != nil {
		r.t.Fatalf("node %d: %+v", r.id, s)
	}
	r.valid()
}

// valid checks what always holds of a log.
func (r *rep) valid() {
	r.t.Helper()
	l := r.log
	if start, hw, end := l.LogStartOffset(), l.HighWatermark(), l.LogEndOffset(); start > hw || hw > end {
		r.t.Fatalf("node %d: log start %d, hw %d, end %d", r.id, start, hw, end)
	}
	if l.Damage() != nil || l.Err() != nil {
		r.t.Fatal(l.Damage(), l.Err())
	}
	if err := l.Verify(0, 1<<62, func(e *replica.CorruptError) bool { r.t.Fatal(e); return false }); err != nil {
		r.t.Fatal(err)
	}
}

func (r *rep) ends(hw, end int64) {
	r.t.Helper()
	if l := r.log; l.HighWatermark() != hw || l.LogEndOffset() != end {
		r.t.Fatalf("node %d: hw %d, end %d; want %d, %d\n%+v", r.id, l.HighWatermark(), l.LogEndOffset(), hw, end, r.f.State())
	}
}

func (r *rep) warned(text string) bool {
	r.warns.mu.Lock()
	defer r.warns.mu.Unlock()
	return slices.ContainsFunc(r.warns.lines, func(line string) bool { return strings.Contains(line, text) })
}

var modes = []replica.Recovery{replica.Refetch, replica.Adopt}

// eachMode runs a story in both recovery modes and all sync modes.
func eachMode(t *testing.T, f func(t *testing.T, o replica.Options, fo replica.FetcherOptions)) {
	for _, mode := range modes {
		for _, sync := range []replica.SyncMode{replica.Always, replica.Interval, replica.Never} {
			t.Run(mode.String()+"/"+sync.String(), func(t *testing.T) {
				f(t, replica.Options{Sync: sync}, replica.FetcherOptions{Recovery: mode})
			})
		}
	}
}

// The ordinary restart: walk 3.4 on a small scale.
func TestS10_RestartedFollower(t *testing.T) {
	eachMode(t, func(t *testing.T, o replica.Options, fo replica.FetcherOptions) {
		o.SegmentBytes = 64 << 10
		a, b := following(t, o, fo, 5, 498)
		a.hw(498)
		b.run(a)
		b.ends(498, 498)
		for range 5 {
			a.put(1)
		}
		b.run(a) // has them, and does not know that they are committed
		b.ends(498, 503)
		a.hw(503)
		a.put(117)
		b.kill()
		if from, end, held := b.log.Held(); !held || from != 498 || end != 503 || b.log.LogEndOffset() != 498 {
			t.Fatalf("held [%d, %d), %v, end %d", from, end, held, b.log.LogEndOffset())
		}
		b.follow(a) // it was fenced: not in the ISR
		b.ends(503, 620)
		s := b.f.State()
		if fo.Recovery == replica.Refetch && (s.RefetchedRecords != 5 || s.AdoptedRecords != 0) ||
			fo.Recovery == replica.Adopt && (s.RefetchedRecords != 0 || s.AdoptedRecords != 5) || s.CutBelowHW+s.CutRecords+s.RefetchRefused != 0 {
			t.Errorf("%+v", s)
		}
	})
}

// KIP-101 scenario 1: who restarts keeps what it may have acknowledged.
func TestS11_RestartBeforeElection(t *testing.T) {
	eachMode(t, func(t *testing.T, o replica.Options, fo replica.FetcherOptions) {
		a, b := pair(t, o, fo)
		b.lead(0)
		b.put(1)
		a.follow(b, 0)
		b.hw(1)
		a.run(b)
		b.put(1)
		a.step(b)
		a.sync()
		b.hw(2) // a fetched at 2; the answer is on its way
		a.kill()
		a.ends(1, 1) // held
		a.begin(b, 0)
		b.kill()
		a.lead(1)
		a.ends(1, 2)
		a.put(1)
		b.follow(a, 1)
		if b.log.LogEndOffset() != 3 {
			t.Error("the acknowledged record is gone")
		}
	})
}

// KIP-101 scenario 2: both lose power; the logs do not fork.
func TestS12_PowerCutOnBoth(t *testing.T) {
	for _, mode := range modes {
		a, b := following(t, replica.Options{Sync: replica.Never}, replica.FetcherOptions{Recovery: mode}, 0, 1)
		a.hw(1)
		b.run(a)
		if err := errors.Join(a.log.SyncNow(), b.log.SyncNow()); err != nil {
			t.Fatal(err)
		}
		a.put(1)
		if err := a.log.SyncNow(); err != nil {
			t.Fatal(err)
		}
		b.run(a)
		a.hw(2)
		a.powerCut(1)
		for seed := uint64(1); ; seed++ { // one that loses b's copy
			c := b.mem.Clone()
			b.powerCut(seed)
			if _, end, _ := b.log.Held(); end == 1 {
				break
			}
			b.mem = c
		}
		if e := b.log.Evidence(); e != partition.Suspect {
			t.Errorf("who lost a record unsynced is %v", e)
		}
		b.lead(1)
		b.put(1)
		a.follow(b, 0)
		if a.log.LogEndOffset() != 2 {
			t.Error("no fork, but not equal")
		}
	}
}

// KIP-279: three fast changes of leader.
func TestS13_FastLeaderChanges(t *testing.T) {
	eachMode(t, func(t *testing.T, o replica.Options, fo replica.FetcherOptions) {
		p, q := following(t, o, fo, 0, 1)
		q.lead(1)
		q.put(1)
		p.lead(2)
		p.put(1)
		p.put(1)
		p.put(1)
		q.lead(3)
		q.put(1)
		p.lead(4)
		p.put(1)
		p.put(1)
		q.asks = 0
		q.follow(p)
		if q.asks > 3 {
			t.Errorf("%d rounds", q.asks)
		}
	})
}

// A missed epoch of the same leader counts.
func TestS15_MissedEpoch(t *testing.T) {
	eachMode(t, func(t *testing.T, o replica.Options, fo replica.FetcherOptions) {
		n := reps(t, 3, o, fo)
		a, b, c := n[0], n[1], n[2]
		a.lead(1)
		a.put(2)
		b.follow(a, 1)
		c.follow(a, 2)
		a.put(2)
		b.run(a)
		c.lead(2)
		c.put(1)
		a.follow(c)
		a.lead(3)
		a.put(1)
		asks := b.asks
		b.follow(a, 1)
		if b.asks == asks || b.f.State().CutRecords != 2 {
			t.Errorf("asked %d times, %+v", b.asks-asks, b.f.State())
		}
	})
}

// Who is in the ELR keeps what a leader confirms; later it is an ordinary follower.
func TestS20_EligibleKeepsAll(t *testing.T) {
	a, b := following(t, replica.Options{}, replica.FetcherOptions{Recovery: replica.Refetch}, 1, 3)
	b.kill()
	rec := a.record()
	rec.MinISR, rec.ELR = 2, []partition.Member{{Node: 1, BrokerEpoch: 101}}
	if err := b.f.Follow(rec, *b.now); err != nil {
		t.Fatal(err)
	}
	b.run(a)
	b.same(a)
	if s := b.f.State(); s.RefetchedRecords != 0 || s.AdoptedRecords != 3 || s.RefetchRefused != 1 {
		t.Errorf("in the ELR: %+v", s)
	}
	a.put(1)
	b.kill()
	b.follow(a, 2)
	if s := b.f.State(); s.RefetchedRecords != 3 || s.AdoptedRecords != 0 {
		t.Errorf("forgotten: %+v", s)
	}
}

func TestS31_EmptyDisk(t *testing.T) {
	eachMode(t, func(t *testing.T, o replica.Options, fo replica.FetcherOptions) {
		a, b := pair(t, o, fo)
		a.lead(1)
		for range 30 {
			a.put(20)
		}
		a.hw(600)
		if err := a.log.DeleteRecords(250); err != nil {
			t.Fatal(err)
		}
		b.follow(a, 1)
		id := b.log.ID()
		b.mem = vfs.NewMem(vfs.MemOptions{Seed: 9})
		b.start(true)
		b.follow(a, 1) // the record still names it
		if b.log.ID() == id {
			t.Error("another directory has the same log id")
		}
		if b.log.LogStartOffset() != 250 {
			t.Errorf("log start %d", b.log.LogStartOffset())
		}
	})
}

// Epochs that nothing was written in are known to who led them, and go when it
// follows.
func TestS42_EmptyEpochs(t *testing.T) {
	a, b := following(t, replica.Options{}, replica.FetcherOptions{}, 0, 3)
	for e := int32(1); e < 5; e += 2 {
		b.lead(e)
		a.lead(e + 1)
		b.follow(a, 1)
		if got := b.log.Epochs(); len(got) != 1 {
			t.Errorf("epoch %d: %v", e, got)
		}
	}
	if s := b.f.State(); s.CutRecords != 0 || b.log.Stats().LeaderEpoch != 0 {
		t.Errorf("%+v", s)
	}
	a.put(1)
	b.run(a)
	b.same(a)
}

// A question about an epoch above the leader's newest: the follower waits, and cuts
// nothing.
func TestS43_OlderLeader(t *testing.T) {
	a, b := pair(t, replica.Options{}, replica.FetcherOptions{})
	a.lead(2)
	a.put(1)
	b.lead(3)
	b.put(2)
	a.epoch = 7 // says so, and has no such epoch in its log
	b.begin(a)
	before := *b.now
	for range 20 {
		b.step(a)
	}
	b.ends(0, 2)
	if s := b.f.State(); s.Reconciled || b.now.Sub(before) < 5*time.Second {
		t.Errorf("%+v after %v", s, b.now.Sub(before))
	}
	// Below the first that is kept: it ends where that begins.
	a, b = pair(t, replica.Options{}, replica.FetcherOptions{})
	b.lead(1)
	b.put(4)
	if _, err := a.log.Append(batchAt(0, 3, 5, 20), replica.Follower, t0); err != nil {
		t.Fatal(err)
	}
	a.lead(4)
	b.follow(a)
}

func TestS44_EpochZeroAfterUncleanStop(t *testing.T) {
	a, b := following(t, replica.Options{}, replica.FetcherOptions{}, 0, 2)
	a.powerCut(3)
	if e, end := a.log.EndOffsetFor(0); e != 0 || end > 2 {
		t.Fatalf("epoch 0 ends at (%d, %d)", e, end)
	}
	a.lead(1)
	if e, end := a.log.EndOffsetFor(0); e != 0 || end != 2 {
		t.Fatalf("epoch 0 ends at (%d, %d)", e, end)
	}
	b.follow(a, 1)
}

func TestS45_EpochFileLost(t *testing.T) {
	for _, content := range []*string{nil, new(""), new("0\n3\n0 0\n1 "), new("garbage")} {
		a, b := pair(t, replica.Options{}, replica.FetcherOptions{})
		for e := range int32(4) {
			a.lead(e)
			a.put(3)
		}
		b.follow(a, 1)
		b.lead(4)
		b.put(2)
		want := b.log.Epochs()
		b.kill()
		x := &lab{t: t, mem: b.mem, dir: "/log"}
		b.log.Close(t0)
		b.mem = b.mem.Kill()
		x.mem = b.mem
		if content == nil {
			x.remove("leader-epoch-checkpoint")
		} else {
			x.write("leader-epoch-checkpoint", []byte(*content))
		}
		b.start(true)
		if got := b.log.Epochs(); !slices.Equal(got, want) {
			t.Fatalf("epochs %v, want %v: the held tail is part of them", got, want)
		}
		a.lead(5)
		b.follow(a)
	}
}

// The history of a log that was made again does not lead an idle partition in
// circles.
func TestS46_HistoryLost(t *testing.T) {
	a, b := pair(t, replica.Options{}, replica.FetcherOptions{})
	for e := range int32(4) {
		a.lead(e)
		a.put(3)
	}
	b.follow(a, 1)
	// All of the leader's history but the last epoch goes.
	a.hw(12)
	if err := a.log.DeleteRecords(12); err != nil {
		t.Fatal(err)
	}
	a.stop()
	a.lead(9)
	b.begin(a, 1)
	before, sent := *b.now, b.sent
	b.run(a)
	b.ends(12, 12)
	// It begins anew once: that its records are the leader's nobody can say any more.
	if passed := b.now.Sub(before); b.sent-sent > 10+10*int(passed/time.Second) || b.f.State().Resets > 1 {
		t.Errorf("%d fetches in %v: %+v", b.sent-sent, passed, b.f.State())
	}
}

func TestS47_EmptyAnswer(t *testing.T) {
	a, b := following(t, replica.Options{}, replica.FetcherOptions{}, 3, 2)
	for range 3 {
		s := b.step(a)
		for s.Do != replica.SendFetch {
			s = b.step(a)
		}
		if s.Fetch.LastFetchedEpoch != 3 || s.Fetch.Offset != 2 {
			t.Fatalf("%+v", s.Fetch)
		}
	}
	// A restart does not forget it either.
	b.stop()
	b.follow(a, 1)
	if e := b.f.State().LastFetchedEpoch; e != 3 {
		t.Errorf("last fetched epoch %d", e)
	}
}

// hand gives b its next fetch's answer, as f changes it.
func (r *rep) hand(ld *rep, f func(a *partition.Fetched)) error {
	r.t.Helper()
	for range 50 {
		var s replica.Step
		if r.f.Next(*r.now, &s); s.Do == replica.SendFetch {
			r.sent++
			a, v := ld.answer(&s.Fetch)
			defer v.Release()
			f(&a)
			return r.f.Fetched(&a, *r.now)
		}
		if s.Do == replica.Wait && s.At.IsZero() {
			break
		}
		if s.Do == replica.SendAsk {
			a := ld.answerAsk(&s.Ask)
			_ = r.f.Answered(&a, *r.now)
		}
		if s.Do == replica.SyncFirst {
			r.sync()
		}
		if s.At.After(*r.now) && s.Do == replica.Wait {
			*r.now = s.At
		}
	}
	r.t.Fatalf("no fetch: %+v", r.f.State())
	return nil
}

// oldFollower returns a leader and a follower of a log without epochs, the only
// one whose fetch can be answered with a verdict: any other is judged before.
func oldFollower(t *testing.T) (a, b *rep) {
	a, b = pair(t, replica.Options{}, replica.FetcherOptions{})
	if _, err := b.log.Append(batchAt(0, -1, 4, 20), replica.Follower, t0); err != nil {
		t.Fatal(err)
	}
	b.sync()
	b.log.SetHighWatermark(4)
	a.lead(2)
	a.put(6)
	return a, b
}

// Nothing but the verdict counts of an answer that carries one.
func TestS48_DivergingWithHigherHW(t *testing.T) {
	a, b := following(t, replica.Options{}, replica.FetcherOptions{}, 1, 5)
	a.hw(3)
	b.run(a)
	b.ends(3, 5)
	err := b.hand(a, func(r *partition.Fetched) {
		r.Diverging, r.DivergingEpoch, r.DivergingEnd = true, 1, 4
		r.HighWatermark, r.LogStart = 5, 3
	})
	b.step(a)
	b.ends(3, 5)
	if b.log.LogStartOffset() != 0 {
		t.Error("log start moved")
	}
	// It is a leader that takes back what it gave: the follower stops there.
	if s := b.f.State(); !errors.Is(s.Stopped, replica.ErrTakenBack) || s.CutRecords != 0 {
		t.Errorf("%v; %+v", err, s)
	}
	// In another epoch it goes on.
	a.lead(2)
	b.follow(a, 1)
}

// TestS49: a diverging answer is no progress: the same offset is not confirmed again
// before the question is answered.
func TestS49_DivergingIsNoProgress(t *testing.T) {
	a, b := oldFollower(t)
	b.begin(a)
	err := b.hand(a, func(r *partition.Fetched) {
		r.Records, r.Diverging, r.DivergingEpoch, r.DivergingEnd = nil, true, 0, 2
	})
	if err == nil { // it has no epoch that the answer could be about
		t.Error("accepted a verdict about nothing")
	}
	before := *b.now
	s := b.step(a)
	if s.Do != replica.Wait || b.now.Sub(before) < time.Second/2 {
		t.Errorf("%v after %v", s.Do, b.now.Sub(before))
	}
	b.ends(4, 4)
}

// A verdict that is still to be carried out when the view changes is void.
func TestS50_VerdictOfAnotherView(t *testing.T) {
	for _, again := range []string{"leads", "follows another", "stops"} {
		n := reps(t, 3, replica.Options{Sync: replica.Never}, replica.FetcherOptions{})
		a, b, c := n[0], n[1], n[2]
		a.lead(1)
		a.put(4)
		b.follow(a, 1)
		c.follow(a, 1)
		b.lead(2)
		b.put(3)
		c.follow(b, 2)
		a.lead(3)
		b.begin(a, 1)
		view, err := b.log.View(4, 7, 1) // in the way of a cut
		if err != nil {
			t.Fatal(err)
		}
		for range 5 {
			b.step(a)
		}
		b.ends(0, 7)
		if s := b.f.State(); s.Reconciled {
			t.Fatalf("%+v", s)
		}
		switch again {
		case "leads":
			b.lead(4)
		case "follows another":
			c.lead(4)
			b.begin(c, 1)
		case "stops":
			b.f.Stop()
		}
		view.Release()
		for range 20 {
			b.step(c)
		}
		if b.ends(0, 7); b.f.State().CutRecords != 0 {
			t.Errorf("%s: %+v", again, b.f.State())
		}
	}
}

// A sync or a view in the way is waited for, without a spin.
func TestBusyCut(t *testing.T) {
	a, b := following(t, replica.Options{Sync: replica.Interval}, replica.FetcherOptions{}, 1, 4)
	b.lead(2)
	b.put(3)
	a.lead(3)
	b.begin(a, 1)
	op := b.log.StartSync()
	start := *b.now
	for range 10 {
		b.step(a)
	}
	if waited := b.now.Sub(start); waited < 500*time.Millisecond || waited > 2*time.Second {
		t.Errorf("ten steps in %v", waited)
	}
	if err := b.log.FinishSync(op, op.Wait()); err != nil {
		t.Fatal(err)
	}
	b.run(a)
	b.same(a)
	if s := b.f.State(); s.CutRecords != 3 || s.CutBytes == 0 {
		t.Errorf("%+v", s)
	}
}

// Below the leader's log start, whatever the epochs say: the log begins anew there.
func TestS51_BelowLogStartDiverging(t *testing.T) {
	a, b := pair(t, replica.Options{}, replica.FetcherOptions{})
	b.lead(1)
	b.put(3)
	a.lead(2)
	for range 10 {
		a.put(2)
	}
	a.hw(20)
	if err := a.log.DeleteRecords(14); err != nil {
		t.Fatal(err)
	}
	b.follow(a)
	if s := b.f.State(); s.Resets != 1 || s.CutBelowHW != 0 {
		t.Errorf("%+v", s)
	}
}

func TestS52_BelowLogStart(t *testing.T) {
	eachMode(t, func(t *testing.T, o replica.Options, fo replica.FetcherOptions) {
		a, b := following(t, o, fo, 1, 3)
		a.hw(3)
		b.run(a)
		for range 10 {
			a.put(1)
		}
		a.hw(13)
		if err := a.log.DeleteRecords(9); err != nil {
			t.Fatal(err)
		}
		var s replica.Step
		for range 20 { // up to the reset, not further
			if b.f.State().Resets > 0 {
				break
			}
			s = b.step(a)
		}
		if b.f.State().Resets != 1 || b.log.LogStartOffset() != 9 {
			t.Fatalf("last step %v: %+v", s.Do, b.f.State())
		}
		b.run(a)
		b.same(a)
		b.ends(13, 13)
		b.lead(2)
		if got, err := b.log.Read(nil, 9, b.log.HighWatermark(), 1<<20); err != nil || len(got) == 0 {
			t.Errorf("read after the election: %v", err)
		}
	})
}

// A follower that is ahead is cut, with a report where it knew of a commit.
func TestS53_AheadOfLeader(t *testing.T) {
	a, b := following(t, replica.Options{}, replica.FetcherOptions{}, 1, 2)
	b.lead(2)
	b.put(1)
	b.put(1)
	b.hw(3)
	a.lead(3)
	b.follow(a, 1)
	if s := b.f.State(); s.CutBelowHW != 1 || s.CutRecords != 2 || !b.warned("below its high watermark") {
		t.Errorf("%+v\n%v", s, b.warns.lines)
	}
	b.ends(2, 2)
}

// TestS54: in range, and yet out of range: a leader that has just moved.
func TestS54_OutOfRangeInRange(t *testing.T) {
	a, b := following(t, replica.Options{}, replica.FetcherOptions{}, 1, 5)
	sent, before := b.sent, *b.now
	for range 5 {
		if err := b.hand(a, func(r *partition.Fetched) { r.Code = partition.OffsetOutOfRange }); err == nil {
			t.Error("no word of it")
		}
	}
	b.ends(0, 5)
	if passed := b.now.Sub(before); b.sent-sent != 5 || passed < 4*time.Second {
		t.Errorf("%d fetches in %v", b.sent-sent, passed)
	}
	// Nor does the answer of an unreasonable leader move it.
	for _, ends := range [][2]int64{{-5, 3}, {9, 8}, {0, 0}, {9, -1}} {
		_ = b.hand(a, func(r *partition.Fetched) { r.Code, r.LogStart, r.LEO = partition.OffsetOutOfRange, ends[0], ends[1] })
		b.step(a)
		b.ends(0, 5)
		if ends[0] == 0 {
			a.lead(a.epoch + 1)
			b.begin(a, 1)
		}
	}
}

// The leader's log start lies inside a batch.
func TestS55_StartInsideBatch(t *testing.T) {
	eachMode(t, func(t *testing.T, o replica.Options, fo replica.FetcherOptions) {
		a, b := pair(t, o, fo)
		a.lead(1)
		a.put(10)
		a.put(10)
		a.hw(20)
		if err := a.log.DeleteRecords(15); err != nil {
			t.Fatal(err)
		}
		b.follow(a, 1)
		b.ends(20, 20)
		if b.log.LogStartOffset() != 15 {
			t.Errorf("log start %d", b.log.LogStartOffset())
		}
		b.kill()
		b.follow(a)
	})
}

// TestFirstBatchElsewhere: the first batch of a log that begins inside of it says a
// wrong base offset, which no checksum covers. Found by the simulator (seed 100466):
// with another batch behind it, or above the leader's end, it is refused. Alone it
// cannot be told until the next one does not follow; then the log begins anew, unless
// the replica may be elected.
func TestFirstBatchElsewhere(t *testing.T) {
	for name, tc := range map[string]struct {
		maxBytes int32
		by       int64 // how much the base is too large
		isr      []int32
		refused  bool // at once
		heals    bool
	}{
		"another behind it":  {0, 2, nil, true, true},
		"above the end":      {1, 4, nil, true, true},
		"alone":              {1, 2, nil, false, true},
		"alone, and too low": {1, -2, nil, false, true},
		"alone, in the isr":  {1, 2, []int32{1}, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			eachMode(t, func(t *testing.T, o replica.Options, fo replica.FetcherOptions) {
				fo.MaxBytes = tc.maxBytes
				a, b := pair(t, o, fo)
				a.lead(1)
				a.put(4)
				a.put(10)
				a.put(3)
				a.hw(17)
				if err := a.log.DeleteRecords(10); err != nil {
					t.Fatal(err)
				}
				b.begin(a, tc.isr...)
				// It hears first that it is below the leader's start.
				var s replica.Step
				for s.Fetch.Offset != 10 {
					b.f.Next(*b.now, &s)
					if s.Do == replica.SendFetch && s.Fetch.Offset != 10 {
						x, _ := a.answer(&s.Fetch)
						_ = b.f.Fetched(&x, *b.now)
					}
				}
				x, v := a.answer(&s.Fetch)
				x.Records = bytes.Clone(x.Records)
				v.Release()
				record.Batch(x.Records).SetBaseOffset(4 + tc.by)
				err := b.f.Fetched(&x, *b.now)
				if got := errors.Is(err, replica.ErrOrder); got != tc.refused {
					t.Fatalf("refused %v: %v", got, err)
				}
				if !tc.refused && b.log.LogEndOffset() != 14+tc.by {
					t.Fatalf("log ends at %d", b.log.LogEndOffset())
				}
				if tc.heals {
					b.run(a)
					b.same(a)
					return
				}
				for range 40 {
					b.step(a)
				}
				if b.log.LogEndOffset() != 14+tc.by || b.f.State().Corrupt == 0 {
					t.Errorf("log ends at %d: %+v", b.log.LogEndOffset(), b.f.State())
				}
			})
		})
	}
}

// While the leader cannot be reached the high watermark stays as it was, and is
// there after a restart.
func TestS63_LeaderUnreachable(t *testing.T) {
	a, b := following(t, replica.Options{}, replica.FetcherOptions{Timeout: 10 * time.Second}, 1, 5)
	a.hw(5)
	b.run(a)
	a.lead(2)
	b.begin(a, 1)
	seen := uint64(0)
	for range 10 { // nobody answers
		var s replica.Step
		b.f.Next(*b.now, &s)
		switch s.Do {
		case replica.SendAsk:
			if s.Ask.Seq <= seen {
				t.Fatal("sequence does not grow")
			}
			seen = s.Ask.Seq
		case replica.Wait:
			*b.now = s.At
		}
	}
	if lost := b.f.State().Lost; lost != 4 && lost != 5 {
		t.Errorf("%d lost", lost)
	}
	b.ends(5, 5)
	b.kill()
	b.ends(5, 5)
	b.follow(a, 1)
}

// TestVerdictAtLogStart: the leader's log start lies inside its first batch, and its
// epochs say of the follower's, older ones only where that is. Found by the
// simulator (seed 1543 of a stand-in).
func TestVerdictAtLogStart(t *testing.T) {
	eachMode(t, func(t *testing.T, o replica.Options, fo replica.FetcherOptions) {
		a, b := pair(t, o, fo)
		b.lead(0)
		for range 28 {
			b.put(1)
		}
		a.follow(b, 0)
		for range 29 { // nobody has them
			b.put(1)
		}
		a.lead(1)
		a.put(10)
		a.put(20)
		a.hw(58)
		if err := a.log.DeleteRecords(37); err != nil {
			t.Fatal(err)
		}
		b.kill()
		b.begin(a)
		var s replica.Step
		for s.Do != replica.SendFetch { // by which it may join the ISR (seed 1023815)
			s = b.step(a)
		}
		if s.Fetch.LogStart < s.Fetch.Offset {
			t.Errorf("it fetches at %d with a log from %d on", s.Fetch.Offset, s.Fetch.LogStart)
		}
		b.follow(a)
		if b.log.LogStartOffset() != 37 {
			t.Errorf("log start %d", b.log.LogStartOffset())
		}
	})
}

func producerBatch(base int64, epoch int32, pid int64, seq int32, n int) record.Batch {
	recs := make([]record.Record, n)
	for i := range recs {
		recs[i] = recordAt(base+int64(i), 20)
	}
	spec := record.NewSpec()
	spec.BaseOffset, spec.LeaderEpoch, spec.ProducerID, spec.ProducerEpoch, spec.BaseSequence = base, epoch, pid, 0, seq
	return record.Encode(make([]byte, record.Size(recs, 0)), recs, &spec)
}

// A follower takes its leader's word for a producer it knows nothing of.
func TestS79_UnknownProducer(t *testing.T) {
	a, b := pair(t, replica.Options{}, replica.FetcherOptions{})
	for i := range int32(10) {
		if _, err := a.log.Append(producerBatch(int64(i), 1, 7, i, 1), replica.Follower, t0); err != nil {
			t.Fatal(err)
		}
	}
	a.sync()
	a.hw(10)
	if err := a.log.DeleteRecords(6); err != nil {
		t.Fatal(err)
	}
	a.lead(2)
	b.follow(a, 1)
	b.lead(3)
	got, err := b.log.Append(producerBatch(0, 0, 7, 9, 1), replica.Client, t0)
	if err != nil || !got.Duplicate || got.Base != 9 {
		t.Errorf("retry of the last batch: %+v, %v", got, err)
	}
}

// A cut inside a producer's window leaves the table of the log.
func TestS82_CutInWindow(t *testing.T) {
	eachMode(t, func(t *testing.T, o replica.Options, fo replica.FetcherOptions) {
		a, b := pair(t, o, fo)
		a.lead(1)
		put := func(r *rep, seq int32) replica.Appended {
			t.Helper()
			got, err := r.log.Append(producerBatch(0, 0, 7, seq, 1), replica.Client, t0)
			if err != nil {
				t.Fatal(err)
			}
			r.sync()
			return got
		}
		put(a, 0)
		put(a, 1)
		b.follow(a, 1)
		b.lead(2)
		put(b, 2)
		put(b, 3)
		a.lead(3)
		b.follow(a, 1) // without 2 and 3
		b.lead(4)
		if got := put(b, 1); !got.Duplicate || got.Base != 1 {
			t.Errorf("sequence 1: %+v", got)
		}
		if got := put(b, 2); got.Duplicate || got.Base != 2 {
			t.Errorf("sequence 2: %+v", got)
		}
		_, err := b.log.Append(producerBatch(0, 0, 7, 4, 1), replica.Client, t0)
		if err == nil {
			t.Error("sequence 4 before 3 was taken")
		}
	})
}

// A partition whose leader sends rubbish holds no other up: each has its own
// follower, and that one does not spin.
func TestS87_CorruptPartition(t *testing.T) {
	a, b := pair(t, replica.Options{}, replica.FetcherOptions{})
	a.lead(1)
	a.put(5)
	b.begin(a, 1)
	sent, before := b.sent, *b.now
	for range 6 {
		err := b.hand(a, func(r *partition.Fetched) {
			r.Records = slices.Clone(r.Records)
			r.Records[len(r.Records)-3] ^= 4
		})
		if !errors.Is(err, record.ErrChecksum) {
			t.Fatalf("answer with a flipped bit: %v", err)
		}
	}
	b.ends(0, 0)
	if s := b.f.State(); s.Corrupt != 6 || b.sent-sent != 6 || b.now.Sub(before) < 5*time.Second || !b.warned("batches that are not good") {
		t.Errorf("%+v after %v: %v", s, b.now.Sub(before), b.warns.lines)
	}
	b.run(a)
	b.same(a)
}

// A held tail of several epochs takes several rounds, and nothing of it is served
// meanwhile.
func TestS96_HeldTailOfManyEpochs(t *testing.T) {
	eachMode(t, func(t *testing.T, o replica.Options, fo replica.FetcherOptions) {
		a, b := following(t, o, fo, 0, 2)
		a.hw(2)
		b.run(a)
		// b leads 2, 4, 6 alone, a 1, 3, 5, 7.
		for e := int32(1); e < 8; e++ {
			x := []*rep{a, b}[(e+1)%2]
			x.lead(e)
			x.put(2)
		}
		b.kill()
		if _, end, held := b.log.Held(); !held || end != 8 {
			t.Fatalf("held to %d, %v", end, held)
		}
		b.begin(a)
		b.asks = 0
		for !b.f.State().Reconciled {
			if b.log.LogEndOffset() != 2 || b.log.HighWatermark() != 2 {
				t.Fatal("held records show before the verdict")
			}
			if _, err := b.log.View(3, 8, 1); !errors.Is(err, replica.ErrOutOfRange) {
				t.Fatalf("view of the held tail: %v", err)
			}
			if s := b.step(a); s.Do == replica.SendFetch {
				break
			}
		}
		if b.asks < 3 {
			t.Errorf("%d rounds", b.asks)
		}
		b.run(a)
		b.same(a)
	})
}

func TestS97_RefetchRefused(t *testing.T) {
	for _, tc := range []struct {
		name string
		set  func(r *partition.Record)
		ok   bool
	}{
		{"out of both, enough in sync", func(r *partition.Record) {}, true},
		{"in the ISR", func(r *partition.Record) { r.ISR = append(r.ISR, partition.Member{Node: 1}) }, false},
		{"in the ELR", func(r *partition.Record) { r.ELR, r.MinISR = []partition.Member{{Node: 1}}, 2 }, false},
		{"in the ELR, and enough in sync", func(r *partition.Record) { r.ELR = []partition.Member{{Node: 1}} }, false}, // no record is like that
		{"ISR below min", func(r *partition.Record) { r.MinISR = 2 }, false},
		{"last known", func(r *partition.Record) { r.LastKnown, r.MinISR = []partition.Member{{Node: 1}}, 2 }, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			a, b := following(t, replica.Options{}, replica.FetcherOptions{Recovery: replica.Refetch}, 1, 4)
			b.kill()
			rec := a.record()
			tc.set(rec)
			if err := b.f.Follow(rec, *b.now); err != nil {
				t.Fatal(err)
			}
			b.run(a)
			b.same(a)
			s := b.f.State()
			if tc.ok != (s.RefetchedRecords == 4) || tc.ok != (s.AdoptedRecords == 0) || tc.ok != (s.RefetchRefused == 0) {
				t.Errorf("%+v", s)
			}
			if !tc.ok && !b.warned("does not copy it again") {
				t.Errorf("not said: %v", b.warns.lines)
			}
		})
	}
}

// TestStepBack: no record of an older epoch is followed (R13), held epochs included.
func TestStepBack(t *testing.T) {
	a, b := pair(t, replica.Options{}, replica.FetcherOptions{})
	b.lead(5)
	b.put(1)
	b.kill()
	a.lead(4)
	if err := b.f.Follow(a.record(), *b.now); !errors.Is(err, replica.ErrStepBack) {
		t.Fatalf("follow epoch 4 with epoch 5 in the log: %v", err)
	}
	var s replica.Step
	if b.f.Next(*b.now, &s); s.Do != replica.Wait || !s.At.IsZero() {
		t.Fatalf("%+v", s)
	}
	a.lead(6)
	b.follow(a)
	a.epoch = 5
	if err := b.f.Follow(a.record(), *b.now); !errors.Is(err, replica.ErrStepBack) {
		t.Fatalf("follow epoch 5 after 6: %v", err)
	}
	a.epoch = 6
	b.run(a) // it goes on with what it had
	b.same(a)
}

// TestNewerView: a record of the same leader epoch restarts nothing (S41).
func TestS41_NewerView(t *testing.T) {
	a, b := following(t, replica.Options{}, replica.FetcherOptions{}, 1, 2)
	var s replica.Step
	b.f.Next(*b.now, &s)
	if s.Do != replica.SendFetch {
		t.Fatal(s.Do)
	}
	rec := a.record(1, 2)
	rec.PartitionEpoch = 9
	if err := b.f.Follow(rec, *b.now); err != nil {
		t.Fatal(err)
	}
	a.put(1)
	got, v := a.answer(&s.Fetch)
	defer v.Release()
	if err := b.f.Fetched(&got, *b.now); err != nil || b.log.LogEndOffset() != 3 || b.f.State().Dropped != 0 {
		t.Errorf("answer after a newer view: %v, %+v", err, b.f.State())
	}
}

// TestLateAnswers: what does not answer the question in flight is dropped (R29).
func TestLateAnswers(t *testing.T) {
	a, b := pair(t, replica.Options{Sync: replica.Never}, replica.FetcherOptions{})
	a.lead(1)
	a.put(2)
	b.begin(a, 1)
	var s replica.Step
	for s.Do != replica.SendFetch {
		if b.f.Next(*b.now, &s); s.Do == replica.SendAsk {
			x := a.answerAsk(&s.Ask)
			_ = b.f.Answered(&x, *b.now)
		}
	}
	first, v := a.answer(&s.Fetch)
	defer v.Release()
	for what, change := range map[string]func(r *partition.Fetched){
		"session":  func(r *partition.Fetched) { r.Session++ },
		"sequence": func(r *partition.Fetched) { r.Seq-- },
	} {
		r := first
		change(&r)
		_ = b.f.Fetched(&r, *b.now)
		if b.log.LogEndOffset() != 0 {
			t.Fatalf("answer of another %s was taken", what)
		}
	}
	x := partition.EpochAnswer{Session: s.Fetch.Session, Seq: s.Fetch.Seq, LeaderEpoch: 1}
	_ = b.f.Answered(&x, *b.now)
	if err := b.f.Fetched(&first, *b.now); err != nil {
		t.Fatal(err)
	}
	b.ends(0, 2)
	_ = b.f.Fetched(&first, *b.now) // twice
	b.ends(0, 2)
	if d := b.f.State().Dropped; d != 4 {
		t.Errorf("%d dropped", d)
	}
	// An old life's, and that of an epoch before.
	b.f.Next(*b.now, &s)
	old, v2 := a.answer(&s.Fetch)
	defer v2.Release()
	a.lead(2)
	b.begin(a, 1)
	_ = b.f.Fetched(&old, *b.now)
	if d := b.f.State().Dropped; d != 5 {
		t.Errorf("%d dropped", d)
	}
	b.run(a)
	b.same(a)
}

// TestPacing: no more than a few fruitless fetches per back-off (I26), though none
// waits that brings something.
func TestPacing(t *testing.T) {
	a, b := following(t, replica.Options{Sync: replica.Never}, replica.FetcherOptions{}, 1, 1)
	for _, code := range []partition.Code{partition.OK, partition.FencedLeaderEpoch, partition.UnknownLeaderEpoch, partition.NotLeader,
		partition.StaleBrokerEpoch, partition.StorageError, partition.UnknownTopicID} {
		sent, before := b.sent, *b.now
		for b.now.Sub(before) < 10*time.Second {
			_ = b.hand(a, func(r *partition.Fetched) { r.Code = code })
		}
		if got := b.sent - sent; got > 60 || code != partition.OK && got > 11 {
			t.Errorf("%v: %d fetches in 10 s", code, got)
		}
	}
	before := *b.now
	for range 100 {
		a.put(1)
		for b.log.LogEndOffset() < a.log.LogEndOffset() {
			b.step(a)
		}
	}
	if waited := b.now.Sub(before); waited > 2*time.Second {
		t.Errorf("waited %v while there was something to copy", waited)
	}
}

// TestConfirmIsSynced: under Always a fetch confirms only what is on disk (R6), and
// the high watermark follows the sync.
func TestConfirmIsSynced(t *testing.T) {
	a, b := pair(t, replica.Options{Sync: replica.Always}, replica.FetcherOptions{})
	a.lead(1)
	a.put(3)
	a.hw(3)
	b.begin(a, 1)
	var s replica.Step
	for b.log.LogEndOffset() < 3 {
		s = b.step(a)
	}
	b.ends(0, 3)
	for range 3 {
		if b.f.Next(*b.now, &s); s.Do != replica.SyncFirst {
			t.Fatalf("%v with %d of 3 synced", s.Do, b.log.SyncedEnd())
		}
	}
	b.sync()
	if b.f.Next(*b.now, &s); s.Do != replica.SendFetch || s.Fetch.Offset != 3 {
		t.Fatalf("%+v", s)
	}
	b.ends(3, 3)
}
