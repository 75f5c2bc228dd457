package isr

import (
	"bytes"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/tidemark-log/tidemark/partition"
	"github.com/tidemark-log/tidemark/replica"
)

// The scenarios of docs/replication.md that need one leader and fetches made by
// hand. Node 1 leads in epoch 1 unless said; three replicas, min ISR 2, Sync: Never
// where the disk is not what it is about.

var never = deskOptions{sync: replica.Never}

func TestS01_AckAtTheSecondFetch(t *testing.T) {
	d := newDesk(t, never)
	w := d.mustProduce(-1)
	if a := d.fetch(2, 0); len(a.Records) == 0 || a.HighWatermark != 0 {
		t.Errorf("%d bytes, high watermark %d", len(a.Records), a.HighWatermark)
	}
	d.fetch(3, 0)
	d.wantHW(0)
	d.fetch(2, 1)
	d.wantHW(0)
	wantWaiting(t, w)
	if a := d.fetch(3, 1); a.HighWatermark != 1 {
		t.Errorf("the fetch that moves the high watermark hears of %d", a.HighWatermark)
	}
	d.wantHW(1)
	wantAck(t, w, nil)
	if !slices.Equal(d.fx.Done, []*Waiter{w}) || d.fx.Moved&MovedHW == 0 || w.Base != 0 || w.End != 1 {
		t.Errorf("done %v, moved %b, offsets %d to %d", d.fx.Done, d.fx.Moved, w.Base, w.End)
	}
}

func TestS02_SlowMember(t *testing.T) {
	d := newDesk(t, never)
	d.fetch(3, 0)
	w := d.mustProduce(-1)
	d.fetch(2, 1)
	a, at := d.run(3*time.Second, 100*time.Millisecond, func() { d.fetch(2, 1) })
	wantWaiting(t, w)
	if a != nil {
		t.Fatalf("proposed %v after %v", a.ISR, at)
	}
	d.fetch(3, 1)
	wantAck(t, w, nil)

	w = d.mustProduce(-1) // and one that is gone for good
	d.fetch(2, 2)
	a, at = d.run(60*time.Second, 100*time.Millisecond, func() { d.fetch(2, 2) })
	wantWaiting(t, w)
	if a == nil || !slices.Equal(nodesOf(a.ISR), []int32{1, 2}) || at < lagMax || at > lagMax*3/2+time.Second {
		t.Fatalf("proposed %+v after %v", a, at)
	}
	d.wantHW(1)
	d.accept(a)
	wantAck(t, w, nil)
	d.wantHW(2)
}

func TestS03_BelowMinISR(t *testing.T) {
	d := newDesk(t, never)
	d.update(func(r *partition.Record) { r.ELR, r.ISR = r.ISR[1:], r.ISR[:1] })
	if _, err := d.send(-1, 5, 0, 0); err != partition.NotEnoughReplicas {
		t.Errorf("acks=all: %v", err)
	}
	if _, known := d.log.Producer(5); known || d.log.LogEndOffset() != 0 {
		t.Errorf("log ends at %d, producer known: %v", d.log.LogEndOffset(), known)
	}
	wantAck(t, d.mustProduce(1), nil)
	d.wantHW(0)
	if v, err := d.p.Consume(0, 1<<20, d.now); err != nil || len(v.Bytes) > 0 {
		t.Errorf("a consumer sees %d bytes, %v", len(v.Bytes), err)
	}
	d.fetch(2, 1)
	d.accept(d.fx.Alter)
	d.wantHW(1)
	if w, err := d.send(-1, 5, 0, 0); err != nil || w.Duplicate || w.Base != 1 {
		t.Errorf("the retry: %+v, %v", w, err)
	}
}

func TestS04_NotEnoughAfterAppend(t *testing.T) {
	d := newDesk(t, never)
	d.update(func(r *partition.Record) { r.ISR = r.ISR[:2] })
	// The append as its steps: between the copy and the wait everything happens.
	w, err := d.p.admit(-1, &Waiter{}, d.now)
	if err != nil {
		t.Fatal(err)
	}
	b := batch(1, 50, 5, 0)
	a, err := d.log.Append(b, replica.Client, d.now)
	if err != nil {
		t.Fatal(err)
	}
	d.p.Fetch(d.request(2, 1), false, false, d.now, &Answer{}, &d.fx)
	d.nodes[2] = partition.Node{ID: 2, BrokerEpoch: 12, Fenced: true}
	d.p.Update(func() *partition.Record {
		d.rec = d.rec.Clone()
		d.rec.PartitionEpoch++
		d.rec.ISR, d.rec.ELR = d.rec.ISR[:1], d.rec.ISR[1:]
		return d.rec
	}(), d.now, &d.fx)
	d.p.appended(a, nil, -1, 0, w, d.now, &d.fx)
	wantAck(t, w, partition.NotEnoughAfterAppend)
	d.wantHW(1)
	d.nodes[2] = partition.Node{ID: 2, BrokerEpoch: 12}
	d.fetch(2, 1)
	d.accept(d.fx.Alter)
	again, err := d.send(-1, 5, 0, 0)
	if err != nil || !again.Duplicate || again.Base != 0 || d.log.LogEndOffset() != 1 {
		t.Errorf("the retry: %+v, %v; log ends at %d", again, err, d.log.LogEndOffset())
	}
	wantAck(t, again, nil)
}

func TestS05_ISRFallsBeforeHW(t *testing.T) {
	d := newDesk(t, never)
	d.update(func(r *partition.Record) { r.ISR = r.ISR[:2] })
	w, err := d.send(-1, -1, 0, 5*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	d.update(func(r *partition.Record) { r.ISR, r.ELR = r.ISR[:1], r.ISR[1:] })
	d.nodes[2] = partition.Node{ID: 2, BrokerEpoch: 12, Fenced: true}
	d.fetch(2, 1)
	d.wantHW(0)
	wantWaiting(t, w)
	d.tick(5 * time.Second)
	wantAck(t, w, partition.RequestTimedOut)
	d.nodes[2] = partition.Node{ID: 2, BrokerEpoch: 12}
	d.tick(time.Second)
	d.wantHW(0) // a proposal does not thaw it
	d.accept(d.fx.Alter)
	d.wantHW(1)
}

func TestS06_MinISRAboveReplicas(t *testing.T) {
	d := newDesk(t, deskOptions{sync: replica.Never, minISR: 3, replicas: []int32{1, 2}})
	w := d.mustProduce(-1)
	d.fetch(2, 1)
	wantAck(t, w, nil)
	if n := d.p.Status().MinISR; n != 2 {
		t.Errorf("min ISR %d", n)
	}
}

func TestS07_InvalidAcks(t *testing.T) {
	d := newDesk(t, never)
	for _, acks := range []int16{2, -2, 32767, -32768} {
		if _, err := d.produce(acks); err != partition.InvalidRequiredAcks || d.log.LogEndOffset() != 0 {
			t.Errorf("acks %d: %v, log ends at %d", acks, err, d.log.LogEndOffset())
		}
	}
}

func TestS08_AcksZeroToAFollower(t *testing.T) {
	d := newDesk(t, never)
	d.update(func(r *partition.Record) { r.Leader, r.LeaderEpoch = 2, 2 })
	if _, err := d.produce(0); err != partition.NotLeader || d.log.LogEndOffset() != 0 {
		t.Errorf("%v, log ends at %d", err, d.log.LogEndOffset())
	}
}

// follow makes what a follower does at a change of leader, by hand: the epoch
// rule, then copies.
func follow(t *testing.T, l *replica.Log, d *desk, node int32) (cut int64) {
	t.Helper()
	cut, ok := replica.EpochCut(l.Epochs(), l.LogEndOffset(), func(e int32) (int32, int64) {
		var a partition.EpochAnswer
		d.p.Ask(&partition.EpochAsk{ID: testID, LeaderEpoch: d.rec.LeaderEpoch, Replica: node, BrokerEpoch: d.peers[node].member.BrokerEpoch, Epoch: e}, &a)
		return a.Epoch, a.End
	})
	if !ok {
		t.Fatal("no answer")
	}
	if err := l.Truncate(cut); err != nil {
		t.Fatal(err)
	}
	copyFrom(t, l, d, node)
	return cut
}

func TestS09_AcksOneLost(t *testing.T) {
	a := newDesk(t, never)
	b := a.other(never)
	a.mustProduce(1)
	copyFrom(t, b.log, a, 2)
	lost := a.mustProduce(1)
	wantAck(t, lost, nil)
	b.update(func(r *partition.Record) { r.Leader, r.LeaderEpoch, r.ISR = 2, 2, b.members(2, 3) })
	w := b.mustProduce(1)
	if w.Base != lost.Base {
		t.Errorf("the new leader's record is at %d, the lost one was at %d", w.Base, lost.Base)
	}
	a.rec = b.rec
	a.update(nil)
	if cut := follow(t, a.log, b, 1); cut != lost.Base {
		t.Errorf("cut at %d", cut)
	}
	if !bytes.Equal(bytesOf(t, a.log), bytesOf(t, b.log)) {
		t.Error("logs differ")
	}
}

// zombie is S14's story up to the zombie's fetch.
func zombie(t *testing.T, g partition.Guards) (*desk, *Answer) {
	d := newDesk(t, deskOptions{sync: replica.Never, guards: g})
	d.update(func(r *partition.Record) { r.ISR = r.ISR[:2] })
	d.mustProduce(1) // a
	d.fetch(2, 0)
	z := d.request(2, 1) // has copied a, and hears nothing more
	z.LastFetchedEpoch = 1
	d.update(func(r *partition.Record) { r.Leader, r.LeaderEpoch, r.ISR = 3, 2, d.members(3, 2) })
	if err := d.log.Truncate(0); err != nil {
		t.Fatal(err)
	}
	d.update(func(r *partition.Record) { r.Leader, r.LeaderEpoch, r.ISR = 1, 3, d.members(1, 2) })
	d.mustProduce(1) // b
	return d, d.ask(z)
}

func TestS14_Zombie(t *testing.T) {
	d, a := zombie(t, partition.Guards{})
	if a.Code != partition.FencedLeaderEpoch {
		t.Errorf("%v", a.Code)
	}
	d.wantHW(0)
}

func TestS16_BelowEpochStart(t *testing.T) {
	d := newDesk(t, never)
	d.update(func(r *partition.Record) { r.ISR = d.members(1, 3) })
	for range 5 {
		d.mustProduce(1)
	}
	d.fetch(3, 2)
	d.wantHW(2)
	d.update(func(r *partition.Record) { r.LeaderEpoch = 2 })
	d.peers[2].session, d.peers[3].session = 2, 2
	d.wantHW(2)
	d.fetch(3, 2)
	if d.fetch(2, 2); d.fx.Alter != nil {
		t.Errorf("proposed %v at the high watermark, below the epoch's start", d.fx.Alter.ISR)
	}
	if d.fetch(2, 4); d.fx.Alter != nil {
		t.Errorf("proposed %v below the epoch's start", d.fx.Alter.ISR)
	}
	if d.fetch(2, 5); d.fx.Alter == nil || !slices.Equal(nodesOf(d.fx.Alter.ISR), []int32{1, 2, 3}) {
		t.Errorf("proposed %+v at the epoch's start", d.fx.Alter)
	}
}

func TestS29_FencedFollower(t *testing.T) {
	for name, n := range map[string]partition.Node{
		"fenced":           {ID: 3, BrokerEpoch: 13, Fenced: true},
		"stopping":         {ID: 3, BrokerEpoch: 13, Stopping: true},
		"in another life":  {ID: 3, BrokerEpoch: 12},
		"never registered": {ID: 3, BrokerEpoch: -1},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDesk(t, never)
			d.update(func(r *partition.Record) { r.ISR = r.ISR[:2] })
			d.nodes[3] = n
			d.fetch(3, 0)
			w := d.mustProduce(-1)
			d.fetch(3, 0)
			d.fetch(2, 1)
			wantAck(t, w, nil)
			if d.fetch(3, 1); d.fx.Alter != nil {
				t.Errorf("proposed %v", d.fx.Alter.ISR)
			}
			d.nodes[3] = partition.Node{ID: 3, BrokerEpoch: 13}
			if d.tick(0); d.fx.Alter == nil {
				t.Error("not proposed when it is well again")
			}
		})
	}
}

// TestWaitForNewcomer is W of A4: the high watermark waits for who is about to
// join, and no longer once it has stopped.
func TestWaitForNewcomer(t *testing.T) {
	d := newDesk(t, deskOptions{sync: replica.Never, minISR: 1})
	d.fetch(2, 0)
	d.fetch(3, 0)
	d.update(func(r *partition.Record) { r.ISR = r.ISR[:1] })
	a := d.fx.Alter
	d.answer(a, partition.IneligibleReplica) // not yet
	w := d.mustProduce(-1)
	d.wantHW(0)
	wantWaiting(t, w)
	d.fetch(2, 1)
	d.wantHW(0)
	d.fetch(3, 1)
	d.wantHW(1)
	wantAck(t, w, nil)

	d.nodes[2] = partition.Node{ID: 2, BrokerEpoch: 12, Fenced: true}
	d.nodes[3] = partition.Node{ID: 3, BrokerEpoch: 13, Fenced: true}
	wantAck(t, d.mustProduce(-1), nil)
	d.nodes[3] = partition.Node{ID: 3, BrokerEpoch: 13} // and it does not fetch again
	w = d.mustProduce(-1)
	wantWaiting(t, w)
	d.run(46*time.Second, time.Second, nil)
	wantAck(t, w, nil)
}

func TestS34_ShrinkAnswerLost(t *testing.T) {
	d := newDesk(t, never)
	w := d.mustProduce(-1)
	d.fetch(2, 1)
	a, _ := d.run(60*time.Second, time.Second, func() { d.fetch(2, 1) })
	d.apply(a) // and nobody hears of it
	for range 5 {
		d.fetch(2, 1)
		if d.tick(time.Second); d.fx.Alter != a {
			t.Errorf("not said again: %+v", d.fx.Alter)
		}
		d.wantHW(0)
	}
	wantWaiting(t, w)
	d.update(nil)
	d.wantHW(1)
	wantAck(t, w, nil)
	if d.p.Status().Pending != nil {
		t.Error("still pending")
	}
}

func TestS35_ExpandAcceptedLeaderDies(t *testing.T) {
	a := newDesk(t, deskOptions{sync: replica.Never, minISR: 1})
	b := a.other(deskOptions{sync: replica.Never})
	a.update(func(r *partition.Record) { r.ISR = a.members(1, 3) })
	a.mustProduce(1)
	copyFrom(t, b.log, a, 2)
	p := a.p.Status().Pending
	if p == nil {
		t.Fatal("not proposed")
	}
	a.apply(p) // the answer never comes
	// From here on nothing is committed without the newcomer.
	w := a.mustProduce(-1)
	a.fetch(3, 2)
	wantWaiting(t, w)
	a.wantHW(1)
	committed := a.hw()
	b.rec = a.rec
	b.update(func(r *partition.Record) { r.Leader, r.LeaderEpoch, r.ISR = 2, 2, b.members(2, 3) })
	if s := b.p.Status(); s.Role != Leading || s.LEO < committed {
		t.Errorf("%v with end %d, %d were committed", s.Role, s.LEO, committed)
	}
}

func TestS36_ExpandRefused(t *testing.T) {
	d := newDesk(t, never)
	d.update(func(r *partition.Record) { r.ISR = r.ISR[:2] })
	d.fetch(3, 0)
	a := d.fx.Alter
	if got := nodesOf(d.p.Status().Maximal); !slices.Equal(got, []int32{1, 2, 3}) {
		t.Errorf("maximal ISR %v", got)
	}
	d.answer(a, partition.IneligibleReplica)
	if got := nodesOf(d.p.Status().Maximal); !slices.Equal(got, []int32{1, 2}) {
		t.Errorf("maximal ISR %v after the refusal", got)
	}
	if d.fetch(3, 0); d.fx.Alter != nil {
		t.Error("tries again at once")
	}
	d.tick(time.Second)
	if b := d.fx.Alter; b == nil || b.Seq == a.Seq {
		t.Errorf("no new try: %+v", b)
	}
}

func TestS37_LateAnswer(t *testing.T) {
	d := newDesk(t, never)
	d.update(func(r *partition.Record) { r.ISR = r.ISR[:2] })
	d.fetch(3, 0)
	first := d.fx.Alter
	d.update(func(r *partition.Record) { r.MinISR = 1 }) // somebody else changed it
	second := d.fx.Alter
	if second == nil || second.PartitionEpoch != first.PartitionEpoch+1 {
		t.Fatalf("next proposal %+v", second)
	}
	for _, code := range []partition.Code{partition.IneligibleReplica, partition.InvalidUpdateVersion, partition.OK, partition.Unknown} {
		d.answer(first, code)
		if got := d.p.Status().Pending; got != second {
			t.Fatalf("late %v: pending %+v", code, got)
		}
	}
	d.accept(second)
	if got := nodesOf(d.p.Status().Committed); !slices.Equal(got, []int32{1, 2, 3}) {
		t.Errorf("committed %v", got)
	}
	d.answer(second, partition.IneligibleReplica) // once more, late
	if got := nodesOf(d.p.Status().Committed); !slices.Equal(got, []int32{1, 2, 3}) {
		t.Errorf("committed %v after a late answer", got)
	}
}

func TestS38_RetriableError(t *testing.T) {
	for _, code := range []partition.Code{partition.Unknown, partition.NotController} {
		d := newDesk(t, never)
		d.update(func(r *partition.Record) { r.ISR = r.ISR[:2] })
		d.fetch(3, 0)
		a := d.fx.Alter
		for i := range 100 {
			d.answer(a, code)
			if d.tick(time.Second); d.fx.Alter != a {
				t.Fatalf("%v, try %d: %+v", code, i, d.fx.Alter)
			}
		}
		d.accept(a)
		if got := nodesOf(d.p.Status().Committed); !slices.Equal(got, []int32{1, 2, 3}) {
			t.Errorf("committed %v", got)
		}
	}
}

func TestS39_AppliedButTimedOut(t *testing.T) {
	d := newDesk(t, never)
	d.update(func(r *partition.Record) { r.ISR = r.ISR[:2] })
	d.fetch(3, 0)
	a := d.fx.Alter
	d.apply(a)
	d.tick(time.Second)
	d.answer(d.fx.Alter, partition.OK) // it equals the stored record
	if s := d.p.Status(); s.Pending != nil || len(s.Committed) != 3 {
		t.Fatalf("pending %+v, committed %v", s.Pending, s.Committed)
	}
	// ISR management goes on.
	d.mustProduce(1)
	d.fetch(3, 1)
	b, _ := d.run(60*time.Second, time.Second, func() { d.fetch(3, 1) })
	if b == nil || !slices.Equal(nodesOf(b.ISR), []int32{1, 3}) {
		t.Errorf("next proposal %+v", b)
	}
}

func TestS40_NoDeadlock(t *testing.T) {
	d := newDesk(t, deskOptions{sync: replica.Never, minISR: 1})
	var wg sync.WaitGroup
	var mu sync.Mutex // of the coordinator
	rounds := 300
	alter := func(fx *Effects) { // as a driver that calls back at once
		if fx.Alter == nil {
			return
		}
		a, again := fx.Alter, &Effects{}
		mu.Lock()
		code := partition.InvalidUpdateVersion
		if a.PartitionEpoch == d.rec.PartitionEpoch {
			d.apply(a)
			code = partition.OK
		}
		r := d.rec
		mu.Unlock()
		d.p.Altered(&partition.Altered{ID: a.ID, Seq: a.Seq, Code: code, Record: r}, t0, again)
	}
	for _, node := range []int32{2, 3} {
		wg.Go(func() {
			x := &peer{member: d.peers[node].member}
			a, fx := &Answer{}, &Effects{}
			for i := range uint64(rounds) {
				fx.Reset()
				end := d.log.LogEndOffset()
				q := &partition.Fetch{ID: testID, LeaderEpoch: 1, Replica: node, BrokerEpoch: x.member.BrokerEpoch, LogID: x.member.LogID, Session: 5, Seq: i, Offset: end, LastFetchedEpoch: 1, MaxBytes: 1}
				if !d.p.Fetch(q, false, i%2 == 0, t0.Add(time.Duration(i)*time.Second), a, fx) {
					if a.Code != partition.OK || a.HighWatermark > a.LEO || a.LogStart > a.HighWatermark {
						t.Errorf("%v, %d %d %d", a.Code, a.LogStart, a.HighWatermark, a.LEO)
					}
					a.View.Release()
				}
				alter(fx)
			}
		})
	}
	for _, acks := range []int16{0, 1, -1} {
		wg.Go(func() {
			fx := &Effects{}
			for range rounds {
				fx.Reset()
				if err := d.p.Produce(batch(1, 50, -1, 0), replica.Trusted, acks, time.Minute, &Waiter{}, t0, fx); err != nil {
					t.Error(err)
				}
				alter(fx)
			}
		})
	}
	wg.Go(func() {
		fx := &Effects{}
		for i := range rounds {
			fx.Reset()
			d.p.Tick(t0.Add(time.Duration(i)*time.Second), fx)
			d.p.Advanced(t0, fx)
			d.p.Status()
			alter(fx)
		}
	})
	wg.Wait()
	if d.log.LogEndOffset() != int64(3*rounds) {
		t.Errorf("log ends at %d", d.log.LogEndOffset())
	}
}

func TestS41_SameReign(t *testing.T) {
	d := newDesk(t, never)
	d.mustProduce(1)
	d.fetch(2, 1)
	d.fetch(3, 1)
	before, epochs := d.p.Status(), d.log.Epochs()
	d.now = d.now.Add(time.Hour)
	d.update(func(r *partition.Record) { r.ISR = r.ISR[:2] })
	after := d.p.Status()
	for i := range after.Followers {
		b, a := before.Followers[i], after.Followers[i]
		a.InISR = b.InISR
		if a != b {
			t.Errorf("follower was %+v, is %+v", b, a)
		}
	}
	if after.EpochStart != before.EpochStart || !slices.Equal(d.log.Epochs(), epochs) || after.Counters.Led != 1 {
		t.Errorf("epoch start %d, epochs %v", after.EpochStart, d.log.Epochs())
	}
}

func TestS49_DivergingIsNoProgress(t *testing.T) {
	d := newDesk(t, never)
	d.mustProduce(1)
	d.fetch(2, 0)
	d.fetch(3, 1)
	before := d.follower(2)
	q := d.request(2, 1)
	q.LastFetchedEpoch = 0
	a := d.ask(q)
	if !a.Diverging || a.DivergingEpoch != 0 || a.DivergingEnd != 0 || a.HighWatermark != -1 || len(a.Records) > 0 {
		t.Errorf("%+v", a.Fetched)
	}
	if after := d.follower(2); after != before {
		t.Errorf("was %+v, is %+v", before, after)
	}
	d.wantHW(0)
}

func TestS51_BelowLogStart(t *testing.T) {
	d := newDesk(t, deskOptions{sync: replica.Never, first: 100})
	d.mustProduce(1)
	q := d.request(2, 99)
	q.LastFetchedEpoch = 0 // and diverging, if anybody asked
	if a := d.ask(q); a.Code != partition.OffsetOutOfRange || a.Diverging || a.LogStart != 100 || a.LEO != 101 {
		t.Errorf("%+v", a.Fetched)
	}
}

func TestS54_NoResetAtAChangeOfLeader(t *testing.T) {
	d := newDesk(t, never)
	for range 3 {
		d.mustProduce(1)
	}
	q := d.request(2, 3)
	d.update(func(r *partition.Record) { r.Leader, r.LeaderEpoch = 3, 2 })
	if a := d.ask(q); a.Code != partition.FencedLeaderEpoch {
		t.Errorf("from the old epoch: %v", a.Code)
	}
	q.LeaderEpoch = 2
	if a := d.ask(q); a.Code != partition.NotLeader {
		t.Errorf("at who follows: %v", a.Code)
	}
	q.LeaderEpoch = 3
	if a := d.ask(q); a.Code != partition.UnknownLeaderEpoch {
		t.Errorf("at who does not know yet: %v", a.Code)
	}
	if err := d.log.Truncate(1); err != nil {
		t.Fatal(err)
	}
	d.update(func(r *partition.Record) { r.Leader, r.LeaderEpoch = 1, 3 })
	if a := d.ask(q); !a.Diverging || a.DivergingEnd != 1 {
		t.Errorf("longer than the new leader: %+v", a.Fetched)
	}
}

func TestS56_FailedRead(t *testing.T) {
	d := newDesk(t, never)
	d.mustProduce(1)
	d.mustProduce(1)
	d.fetch(2, 0)
	d.fetch(3, 2)
	before := d.follower(2)
	d.log.Close(t0)
	if a := d.ask(d.request(2, 1)); a.Code != partition.StorageError || len(a.Records) > 0 {
		t.Errorf("%+v", a.Fetched)
	}
	if after := d.follower(2); after != before {
		t.Errorf("was %+v, is %+v", before, after)
	}
	q := d.request(2, 2)
	q.BrokerEpoch--
	if a := d.ask(q); a.Code != partition.StaleBrokerEpoch {
		t.Errorf("%v", a.Code)
	}
	if after := d.follower(2); after != before {
		t.Errorf("an earlier life changed it: was %+v, is %+v", before, after)
	}
}

func TestS57_SessionOfAnotherEpoch(t *testing.T) {
	d := newDesk(t, never)
	d.mustProduce(1)
	d.fetch(2, 0)
	late := d.request(2, 1)
	d.update(func(r *partition.Record) { r.LeaderEpoch = 2 })
	if a := d.ask(late); a.Code != partition.FencedLeaderEpoch {
		t.Errorf("%v", a.Code)
	}
	d.peers[2].session++
	d.fetch(2, 1)
	late.LeaderEpoch = 2
	if a := d.ask(late); !a.Drop {
		t.Errorf("%v", a.Code)
	}
}

func TestS58_NotAssigned(t *testing.T) {
	d := newDesk(t, never)
	d.update(func(r *partition.Record) { r.LeaderEpoch = 5 })
	for _, tc := range []struct {
		epoch int32
		code  partition.Code
	}{{4, partition.FencedLeaderEpoch}, {6, partition.UnknownLeaderEpoch}, {5, partition.UnknownLeaderEpoch}} {
		if a := d.ask(&partition.Fetch{ID: testID, LeaderEpoch: tc.epoch, Replica: 9, BrokerEpoch: 1}); a.Code != tc.code {
			t.Errorf("epoch %d: %v; want %v", tc.epoch, a.Code, tc.code)
		}
	}
	d.update(func(r *partition.Record) { r.Leader, r.LeaderEpoch = 2, 6 })
	if a := d.ask(&partition.Fetch{ID: testID, LeaderEpoch: 6, Replica: 9, BrokerEpoch: 1}); a.Code != partition.NotLeader {
		t.Errorf("at a follower: %v", a.Code)
	}
}

func TestS59_OneHighWatermark(t *testing.T) {
	d := newDesk(t, never)
	var wg sync.WaitGroup
	stop := make(chan struct{})
	wg.Go(func() {
		fx, a := &Effects{}, &Answer{}
		q := [2]*partition.Fetch{d.request(2, 0), d.request(3, 0)}
		for range 2000 {
			fx.Reset()
			if err := d.p.Produce(batch(1, 50, -1, 0), replica.Trusted, 0, 0, nil, t0, fx); err != nil {
				t.Error(err)
			}
			for _, q := range q {
				q.Offset, q.LastFetchedEpoch = d.log.LogEndOffset(), 1
				q.Seq++
				if d.p.Fetch(q, false, false, t0, a, fx); a.LogStart > a.HighWatermark || a.HighWatermark > a.LEO {
					t.Errorf("%d %d %d", a.LogStart, a.HighWatermark, a.LEO)
				}
			}
		}
		close(stop)
	})
	a := &Answer{}
	for at := int64(0); ; {
		d.p.Fetch(&partition.Fetch{ID: testID, LeaderEpoch: -1, Replica: partition.None, Offset: at, MaxBytes: 1 << 20}, false, false, t0, a, &Effects{})
		if len(a.Records) > 0 {
			if a.View.Next > a.HighWatermark {
				t.Errorf("records up to %d, high watermark %d", a.View.Next, a.HighWatermark)
			}
			at = a.View.Next
			a.View.Release()
		}
		select {
		case <-stop:
			wg.Wait()
			return
		default:
		}
	}
}

func TestS60_RollAtTheHighWatermark(t *testing.T) {
	d := newDesk(t, deskOptions{sync: replica.Never, segment: 4 << 10})
	b := batch(1, 900, -1, 0)
	for d.log.Stats().Segments < 2 { // the last one is the first of its segment
		if err := d.p.Produce(b, replica.Client, 1, 0, nil, d.now, &d.fx); err != nil {
			t.Fatal(err)
		}
	}
	end := d.log.LogEndOffset()
	d.fetch(2, end-1)
	d.fetch(3, end-1)
	d.wantHW(end - 1)
	seen := int64(0)
	for {
		v, err := d.p.Consume(seen, 1<<20, d.now)
		if err != nil {
			t.Fatal(err)
		}
		if len(v.Bytes) == 0 {
			break
		}
		seen = v.Next
		v.Release()
	}
	if seen != end-1 {
		t.Errorf("read up to %d; the high watermark is %d", seen, end-1)
	}
}

func TestS61_HighWatermarkAfterFailover(t *testing.T) {
	for _, tc := range []struct {
		name string
		hw   int64
		want int64
	}{
		{"unknown", -1, 100}, {"below the start", 5, 100}, {"inside", 102, 102}, {"at the end", 104, 104}, {"beyond the log", 1 << 40, 104},
	} {
		t.Run(tc.name, func(t *testing.T) {
			d := newDesk(t, deskOptions{sync: replica.Never, first: 100, noLead: true})
			d.log.BeginEpoch(0)
			for range 4 {
				d.log.Append(batch(1, 50, -1, 0), replica.Client, t0)
			}
			d.log.SetHighWatermark(tc.hw)
			d.update(nil)
			d.wantHW(tc.want)
			d.fetch(2, 104)
			d.fetch(3, 104)
			d.wantHW(104)
		})
	}
}

func TestS62_SoleReplica(t *testing.T) {
	for _, mode := range []replica.SyncMode{replica.Never, replica.Always} {
		d := newDesk(t, deskOptions{sync: mode, minISR: 1, replicas: []int32{1}, noLead: true})
		d.log.BeginEpoch(0)
		for range 3 {
			d.log.Append(batch(1, 50, -1, 0), replica.Client, t0)
		}
		d.update(nil)
		if mode == replica.Always {
			d.wantHW(0)
			if !d.fx.Sync {
				t.Error("wants no sync")
			}
			d.sync()
		}
		d.wantHW(3)
		v, err := d.p.Consume(0, 1<<20, d.now)
		if err != nil || v.Next != 3 {
			t.Errorf("%v: read up to %d, %v", mode, v.Next, err)
		}
		v.Release()
		w := d.mustProduce(-1)
		if mode == replica.Always {
			d.sync()
		}
		wantAck(t, w, nil)
	}
}

func TestS64_AfterFailover(t *testing.T) {
	d := newDesk(t, never)
	for range 4 {
		d.mustProduce(1)
	}
	d.fetch(2, 2)
	d.fetch(3, 2)
	d.update(func(r *partition.Record) { r.LeaderEpoch = 2 })
	d.peers[2].session, d.peers[3].session = 2, 2
	for at, want := range map[int64]error{2: nil, 3: nil, 4: nil, 5: partition.OffsetOutOfRange, -1: partition.OffsetOutOfRange} {
		if v, err := d.p.Consume(at, 1<<20, d.now); err != want || len(v.Bytes) > 0 {
			t.Errorf("at %d: %d bytes, %v", at, len(v.Bytes), err)
		}
	}
	if _, err := d.p.Latest(d.now); err != partition.OffsetNotAvailable {
		t.Errorf("latest: %v", err)
	}
	d.fetch(2, 4)
	d.fetch(3, 3)
	if _, err := d.p.Latest(d.now); err != partition.OffsetNotAvailable {
		t.Errorf("latest at high watermark 3: %v", err)
	}
	d.fetch(3, 4)
	if at, err := d.p.Latest(d.now); err != nil || at != 4 {
		t.Errorf("latest: %d, %v", at, err)
	}
}

func TestS66_IdlePartition(t *testing.T) {
	d := newDesk(t, never)
	d.mustProduce(1)
	d.fetch(2, 1)
	d.fetch(3, 1)
	if a, at := d.run(5*time.Hour, time.Second, nil); a != nil {
		t.Errorf("proposed %v after %v", a.ISR, at)
	}
	if next := d.tick(0).Tick; !next.IsZero() {
		t.Errorf("an idle partition wants a tick in %v", next.Sub(d.now))
	}
	// After hours of rest a follower has a full period for what comes then.
	d.mustProduce(1)
	d.fetch(2, 2)
	if a, at := d.run(31*time.Second, time.Second, func() { d.fetch(2, 2) }); a != nil && at < lagMax/2 {
		t.Errorf("proposed %v after %v", a.ISR, at)
	}
}

func TestS67_AlwaysOneBehind(t *testing.T) {
	d := newDesk(t, never)
	d.mustProduce(0)
	a, at := d.run(5*time.Minute, 50*time.Millisecond, func() {
		d.mustProduce(0)
		end := d.log.LogEndOffset()
		d.fetch(2, end)
		d.fx.Alter = nil
		d.fetch(3, end-1)
	})
	if a != nil {
		t.Errorf("proposed %v after %v", nodesOf(a.ISR), at)
	}
}

func TestS68_NeverCatchesUp(t *testing.T) {
	d := newDesk(t, never)
	at := int64(0)
	a, after := d.run(2*time.Minute, 100*time.Millisecond, func() {
		for range 4 {
			d.mustProduce(0)
		}
		d.fetch(2, d.log.LogEndOffset())
		d.fetch(3, at)
		at += 2
	})
	if a == nil || !slices.Equal(nodesOf(a.ISR), []int32{1, 2}) || after < lagMax || after > lagMax*3/2+time.Second {
		t.Errorf("proposed %+v after %v", a, after)
	}
}

func TestS69_ElectionThenWrite(t *testing.T) {
	d := newDesk(t, never)
	d.now = d.now.Add(time.Hour)
	d.update(func(r *partition.Record) { r.LeaderEpoch = 2 })
	d.mustProduce(0)
	if d.tick(0); d.fx.Alter != nil {
		t.Error("shrinks at once")
	}
	if a, at := d.run(29*time.Second, time.Second, nil); a != nil {
		t.Errorf("proposed %v after %v", a.ISR, at)
	}
	if a, _ := d.run(17*time.Second, time.Second, nil); a == nil || !slices.Equal(nodesOf(a.ISR), []int32{1}) {
		t.Errorf("proposed %+v for followers that never came", a)
	}
}

func TestS70_PausedLeader(t *testing.T) {
	d := newDesk(t, never)
	d.lease.Set(d.now.Add(9 * time.Second))
	w := d.mustProduce(-1)
	d.fetch(2, 1)
	d.fetch(3, 0)
	d.now = d.now.Add(60 * time.Second)
	if _, err := d.produce(1); err != partition.NotLeader {
		t.Errorf("produce: %v", err)
	}
	if _, err := d.p.Consume(0, 1, d.now); err != partition.NotLeader {
		t.Errorf("consume: %v", err)
	}
	if d.tick(0); d.fx.Alter != nil {
		t.Errorf("wakes and proposes %v", d.fx.Alter.ISR)
	}
	wantAck(t, w, partition.NotLeader)
	d.lease.Set(d.now.Add(time.Hour)) // nobody else was elected
	if a, at := d.run(14*time.Second, time.Second, nil); a != nil {
		t.Errorf("proposed %v after %v", a.ISR, at)
	}
	d.fetch(2, 1)
	d.fetch(3, 1)
	d.wantHW(1)
	// Once only: one that stays away is found out.
	d.mustProduce(1)
	d.fetch(2, 2)
	if a, _ := d.run(60*time.Second, time.Second, func() { d.fetch(2, 2) }); a == nil || !slices.Equal(nodesOf(a.ISR), []int32{1, 2}) {
		t.Errorf("proposed %+v", a)
	}
}

// TestLateTick: a look that comes a little late, as timers do, forgives nothing.
func TestLateTick(t *testing.T) {
	d := newDesk(t, never)
	d.mustProduce(1)
	d.tick(lagMax/2 + lagMax/3)
	if d.tick(lagMax / 2); d.fx.Alter == nil {
		t.Errorf("nothing proposed %v after the members were last heard of", d.now.Sub(t0))
	}
}

// TestNoReturnUnasked: who was taken out for lag does not come back by what it had
// fetched before, though the high watermark has not passed it.
func TestNoReturnUnasked(t *testing.T) {
	d := newDesk(t, deskOptions{})
	d.mustProduce(1)
	d.sync()
	d.mustProduce(1) // and the leader's disk is slow
	d.fetch(3, 1)
	a, _ := d.run(60*time.Second, time.Second, func() { d.fetch(2, 2) })
	d.accept(a)
	d.wantHW(1)
	for range 5 {
		if d.tick(10 * time.Second); d.fx.Alter != nil || d.p.Status().Pending != nil {
			t.Fatalf("proposed %+v", d.p.Status().Pending)
		}
	}
	if d.fetch(3, 1); d.fx.Alter == nil {
		t.Error("not proposed when it fetches again")
	}
}

func TestS71_FrozenAndLagging(t *testing.T) {
	d := newDesk(t, never)
	d.fetch(2, 0)
	d.fetch(3, 0)
	for n := int32(2); n <= 3; n++ {
		d.nodes[n] = partition.Node{ID: n, BrokerEpoch: 10 + int64(n), Fenced: true}
	}
	d.update(func(r *partition.Record) { r.ISR, r.ELR = r.ISR[:1], r.ISR[1:] })
	at := int64(0)
	a, after := d.run(2*time.Minute, time.Second, func() {
		for range 4 {
			d.mustProduce(1)
		}
		d.fx.Alter = nil
		if d.now.Sub(t0) < 31*time.Second {
			return // away
		}
		d.nodes[2] = partition.Node{ID: 2, BrokerEpoch: 12}
		d.fetch(2, at) // at the frozen high watermark, or a little above
		at++
	})
	if a != nil {
		t.Errorf("proposed %v after %v", nodesOf(a.ISR), after)
	}
	d.wantHW(0)
	d.fetch(2, d.log.LogEndOffset())
	if a := d.fx.Alter; a == nil || !slices.Equal(nodesOf(a.ISR), []int32{1, 2}) {
		t.Errorf("proposed %+v for one that has caught up", a)
	}
}

func TestS72_NotAssignedInISR(t *testing.T) {
	d := newDesk(t, never)
	w := d.mustProduce(-1)
	d.rec = d.rec.Clone()
	d.rec.PartitionEpoch++
	d.rec.Replicas = []int32{1, 2}
	d.step(func(fx *Effects) { d.p.Update(d.rec, d.now, fx) })
	a := d.fx.Alter
	if a == nil || !slices.Equal(nodesOf(a.ISR), []int32{1, 2}) {
		t.Fatalf("proposed %+v", a)
	}
	d.fetch(2, 1)
	wantWaiting(t, w)
	d.accept(a)
	wantAck(t, w, nil)
}

// TestS26_VoidEntry is the leader's half of S26: an entry of an earlier life
// holds the high watermark until it is out of the record.
func TestS26_VoidEntry(t *testing.T) {
	for _, how := range []string{"roster", "fetch", "directory"} {
		t.Run(how, func(t *testing.T) {
			d := newDesk(t, never)
			d.fetch(3, 0)
			w := d.mustProduce(-1)
			d.fetch(2, 1)
			x := d.peers[3]
			switch x.session++; how {
			case "roster":
				d.nodes[3] = partition.Node{ID: 3, BrokerEpoch: 99}
				d.tick(0)
			case "fetch":
				x.member.BrokerEpoch = 99
				d.nodes[3] = partition.Node{ID: 3, BrokerEpoch: 99}
				d.fetch(3, 1) // of the new life: no evidence for the old
			case "directory":
				d.update(func(r *partition.Record) { r.ISR[2].LogID = partition.UUID{55} })
				d.fetch(3, 1)
			}
			a := d.p.Status().Pending
			if a == nil || !slices.Equal(nodesOf(a.ISR), []int32{1, 2}) {
				t.Fatalf("proposed %+v", a)
			}
			d.wantHW(0)
			d.accept(a)
			d.wantHW(1)
			wantAck(t, w, nil)
			if how == "fetch" {
				if b := d.fx.Alter; b == nil || !slices.Contains(b.ISR, x.member) {
					t.Errorf("then proposed %+v; want the new life", b)
				}
			}
		})
	}
}

// failover gives a leader whose log has the producer's batch, replicated but not
// acked, as the leader before it died.
func failover(t *testing.T, pid int64) *desk {
	a := newDesk(t, never)
	b := a.other(never)
	w, err := a.send(-1, pid, 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	copyFrom(t, b.log, a, 2)
	wantWaiting(t, w)
	b.update(func(r *partition.Record) { r.Leader, r.LeaderEpoch, r.ISR = 2, 2, b.members(2, 3) })
	b.peers[3].session++
	return b
}

func TestS76_RetryAfterFailover(t *testing.T) {
	b := failover(t, -1)
	if w, err := b.send(-1, -1, 0, 0); err != nil || w.Base != 1 || w.Duplicate {
		t.Errorf("without a producer id: %+v, %v", w, err)
	}
	b = failover(t, 5)
	w, err := b.send(-1, 5, 0, 0)
	if err != nil || w.Base != 0 || !w.Duplicate || b.log.LogEndOffset() != 1 {
		t.Errorf("idempotent: %+v, %v; log ends at %d", w, err, b.log.LogEndOffset())
	}
	b.fetch(3, 1)
	wantAck(t, w, nil)
}

func TestS77_DuplicateWaits(t *testing.T) {
	b := failover(t, 5)
	w, err := b.send(-1, 5, 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	wantWaiting(t, w)
	b.wantHW(0)
	b.fetch(3, 0)
	wantWaiting(t, w)
	b.fetch(3, 1)
	wantAck(t, w, nil)
	again, _ := b.send(-1, 5, 0, 0)
	wantAck(t, again, nil)
	if !again.Duplicate || again.Base != 0 {
		t.Errorf("%+v", again)
	}

	// With acks=1 it waits for the leader's disk.
	d := newDesk(t, deskOptions{})
	first, _ := d.send(1, 5, 0, 0)
	second, _ := d.send(1, 5, 0, 0)
	wantWaiting(t, first)
	wantWaiting(t, second)
	d.sync()
	wantAck(t, first, nil)
	wantAck(t, second, nil)
}

// TestGuards: each guard switched off lets through what it is there for (3.6).
func TestGuards(t *testing.T) {
	t.Run("G4", func(t *testing.T) {
		for _, off := range []bool{false, true} {
			d := newDesk(t, deskOptions{sync: replica.Never, guards: partition.Guards{NoG4: off}})
			d.mustProduce(1)
			d.update(func(r *partition.Record) { r.LeaderEpoch = 2 })
			if lost := d.log.LogEndOffset() == 0; lost != off {
				t.Errorf("off %v: a new leader cuts: %v", off, lost)
			}
		}
	})
	t.Run("G5", func(t *testing.T) {
		for _, off := range []bool{false, true} {
			d := newDesk(t, deskOptions{sync: replica.Never, guards: partition.Guards{NoG5: off}})
			d.mustProduce(1)
			if a, _ := d.run(60*time.Second, time.Second, func() { d.fetch(2, 1) }); a == nil {
				t.Fatal("no proposal")
			}
			if d.fetch(2, 1); d.hw() == 1 != off {
				t.Errorf("off %v: high watermark %d", off, d.hw())
			}
		}
	})
	t.Run("G6", func(t *testing.T) {
		for _, off := range []bool{false, true} {
			d := newDesk(t, deskOptions{sync: replica.Never, guards: partition.Guards{NoG6: off}})
			d.update(func(r *partition.Record) { r.ISR, r.ELR = r.ISR[:1], r.ISR[1:] })
			if d.mustProduce(1); d.hw() == 1 != off {
				t.Errorf("off %v: high watermark %d", off, d.hw())
			}
		}
	})
	t.Run("G7", func(t *testing.T) {
		for _, off := range []bool{false, true} {
			d := newDesk(t, deskOptions{sync: replica.Never, guards: partition.Guards{NoG7: off}})
			d.mustProduce(1)
			d.update(func(r *partition.Record) { r.LeaderEpoch, r.ISR = 2, d.members(1, 3) })
			if d.fetch(2, 0); (d.fx.Alter != nil) != off {
				t.Errorf("off %v: proposed %+v", off, d.fx.Alter)
			}
		}
	})
	t.Run("G11", func(t *testing.T) {
		d, a := zombie(t, partition.Guards{NoG11: true})
		if a.Code != partition.OK || d.hw() != 1 {
			t.Errorf("off: %v, high watermark %d", a.Code, d.hw())
		}
	})
}
