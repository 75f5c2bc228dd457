package isr

import (
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/tidemark-log/tidemark/dedupe"
	"github.com/tidemark-log/tidemark/internal/invariant"
	"github.com/tidemark-log/tidemark/internal/vfs"
	"github.com/tidemark-log/tidemark/partition"
	"github.com/tidemark-log/tidemark/replica"
)

// TestProduceTable is A2, row by row.
func TestProduceTable(t *testing.T) {
	lone := func(d *desk) {
		d.update(func(r *partition.Record) { r.ELR, r.ISR = r.ISR[1:], r.ISR[:1] })
	}
	for _, tc := range []struct {
		name   string
		before func(d *desk)
		acks   int16
		err    error
		grows  bool
	}{
		{"not leader", func(d *desk) { d.update(func(r *partition.Record) { r.Leader, r.LeaderEpoch = 2, 2 }) }, 1, partition.NotLeader, false},
		{"no lease", func(d *desk) { d.now = d.now.Add(48 * time.Hour) }, 0, partition.NotLeader, false},
		{"acks 2", nil, 2, partition.InvalidRequiredAcks, false},
		{"acks −2", nil, -2, partition.InvalidRequiredAcks, false},
		{"acks 32767", nil, math.MaxInt16, partition.InvalidRequiredAcks, false},
		{"below min ISR, all", lone, -1, partition.NotEnoughReplicas, false},
		{"below min ISR, 1", lone, 1, nil, true},
		{"below min ISR, 0", lone, 0, nil, true},
		{"all", nil, -1, nil, true},
		{"1", nil, 1, nil, true},
		{"0", nil, 0, nil, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			d := newDesk(t, deskOptions{sync: replica.Never})
			if tc.before != nil {
				tc.before(d)
			}
			w, err := d.produce(tc.acks)
			if err != tc.err {
				t.Errorf("error %v; want %v", err, tc.err)
			}
			if grew := d.log.LogEndOffset() == 1; grew != tc.grows {
				t.Errorf("log grew: %v; want %v", grew, tc.grows)
			}
			if want := err == nil && tc.acks == 1; w.Finished() != want {
				t.Errorf("finished %v; want %v", w.Finished(), want)
			}
		})
	}
}

// TestAcksOfSync: with Sync: Always an ack of 1 waits for the leader's disk.
func TestAcksOfSync(t *testing.T) {
	for _, mode := range []replica.SyncMode{replica.Always, replica.Interval, replica.Never} {
		t.Run(mode.String(), func(t *testing.T) {
			d := newDesk(t, deskOptions{sync: mode})
			w := d.mustProduce(1)
			if mode != replica.Always {
				wantAck(t, w, nil)
				if d.fx.Sync {
					t.Error("wants a sync")
				}
				return
			}
			wantWaiting(t, w)
			if !d.fx.Sync {
				t.Error("wants no sync")
			}
			all := d.mustProduce(-1)
			d.fetch(2, 2)
			d.fetch(3, 2)
			d.wantHW(0) // not on the leader's disk
			wantWaiting(t, all)
			d.sync()
			wantAck(t, w, nil)
			wantAck(t, all, nil)
			d.wantHW(2)
			if !slices.Equal(d.fx.Done, []*Waiter{all, w}) {
				t.Errorf("done: %v", d.fx.Done)
			}
		})
	}
}

func TestTimeouts(t *testing.T) {
	d := newDesk(t, deskOptions{})
	late, _ := d.send(-1, -1, 0, 10*time.Second)
	if d.fx.Tick != d.now.Add(10*time.Second) {
		t.Errorf("tick at %v", d.fx.Tick.Sub(d.now))
	}
	soon, _ := d.send(1, -1, 0, 2*time.Second)
	if d.fx.Tick != d.now.Add(2*time.Second) {
		t.Errorf("tick at %v", d.fx.Tick.Sub(d.now))
	}
	never, _ := d.send(-1, -1, 0, 0)
	d.tick(1999 * time.Millisecond)
	wantWaiting(t, soon)
	d.tick(time.Millisecond)
	wantAck(t, soon, partition.RequestTimedOut)
	wantWaiting(t, late)
	d.tick(8 * time.Second)
	wantAck(t, late, partition.RequestTimedOut)
	wantWaiting(t, never)
	if d.log.LogEndOffset() != 3 {
		t.Error("what timed out is not in the log any more")
	}
	if n := d.p.Status().Counters.Timeouts; n != 2 {
		t.Errorf("%d timeouts counted", n)
	}
}

func TestMaxWaiters(t *testing.T) {
	d := newDesk(t, deskOptions{})
	d.p.o.MaxWaiters = 3
	w := d.mustProduce(-1)
	d.mustProduce(1)
	d.mustProduce(-1)
	if _, err := d.produce(1); err != ErrTooManyWaiters {
		t.Errorf("fourth: %v", err)
	}
	if d.log.LogEndOffset() != 3 {
		t.Error("appended all the same")
	}
	if _, err := d.produce(0); err != nil {
		t.Errorf("who does not wait: %v", err)
	}
	if err := d.p.Produce(batch(1, 9, -1, 0), replica.Client, -1, 0, nil, d.now, &d.fx); err != nil {
		t.Errorf("without a waiter: %v", err)
	}
	// An append that fails gives its place back.
	d.fetch(2, 1)
	d.fetch(3, 1)
	d.sync()
	wantAck(t, w, nil)
	d.p.o.MaxWaiters = 1 + d.p.Status().Waiters
	if err := d.p.Produce([]byte("no batch"), replica.Client, -1, 0, &Waiter{}, d.now, &d.fx); err == nil {
		t.Error("took no batch")
	}
	d.mustProduce(-1)
}

// TestWaitersOrder: appends that overtake each other between the log and the list
// are answered in order all the same.
func TestWaitersOrder(t *testing.T) {
	var l waiters
	list := func() (ends []int64) {
		for w := l.head; w != nil; w = w.next {
			ends = append(ends, w.End)
		}
		return ends
	}
	ws := map[int64]*Waiter{}
	for _, end := range []int64{5, 3, 9, 3, 4, 1, 9} {
		ws[end] = &Waiter{End: end}
		l.insert(ws[end])
	}
	if got := list(); !slices.Equal(got, []int64{1, 3, 3, 4, 5, 9, 9}) {
		t.Errorf("list %v", got)
	}
	for _, end := range []int64{4, 1, 9} {
		l.remove(ws[end])
	}
	if got := list(); !slices.Equal(got, []int64{3, 3, 5, 9}) || l.tail.End != 9 || l.head.prev != nil || l.tail.next != nil {
		t.Errorf("list %v", got)
	}
}

// TestFetchTable is A3: each check, that an earlier one comes first, and that
// what is refused changes nothing (I23).
func TestFetchTable(t *testing.T) {
	type q = partition.Fetch
	for _, tc := range []struct {
		name  string
		mod   func(d *desk, q *q)
		code  partition.Code
		drop  bool
		epoch int32 // of a diverging answer
		end   int64
	}{
		{name: "fine", mod: func(d *desk, q *q) {}},
		{name: "no topic id", mod: func(d *desk, q *q) { q.ID.Topic, q.LeaderEpoch = partition.UUID{}, 1 }, code: partition.UnknownTopicID},
		{name: "another topic id", mod: func(d *desk, q *q) { q.ID.Topic, q.LeaderEpoch = partition.UUID{8}, 1 }, code: partition.InconsistentTopicID},
		{name: "another partition", mod: func(d *desk, q *q) { q.ID.Partition++ }, code: partition.UnknownTopicID},
		{name: "older epoch, of no replica", mod: func(d *desk, q *q) { q.LeaderEpoch, q.Replica = 2, 9 }, code: partition.FencedLeaderEpoch},
		{name: "no epoch", mod: func(d *desk, q *q) { q.LeaderEpoch = -1 }, code: partition.FencedLeaderEpoch},
		{name: "newer epoch, of no replica", mod: func(d *desk, q *q) { q.LeaderEpoch, q.Replica = 4, 9 }, code: partition.UnknownLeaderEpoch},
		{name: "does not lead, of no replica", mod: func(d *desk, q *q) {
			d.rec = d.rec.Clone()
			d.rec.Leader, d.rec.LeaderEpoch, d.rec.PartitionEpoch = 2, 5, 9
			d.p.Update(d.rec, d.now, &d.fx)
			q.LeaderEpoch, q.Replica = 5, 9
		}, code: partition.NotLeader},
		{name: "of no replica, without a life", mod: func(d *desk, q *q) { q.Replica, q.BrokerEpoch = 9, -1 }, code: partition.UnknownLeaderEpoch},
		{name: "from itself", mod: func(d *desk, q *q) { q.Replica = 1 }, code: partition.UnknownLeaderEpoch},
		{name: "an earlier life, below the log start", mod: func(d *desk, q *q) { q.BrokerEpoch, q.Offset = 11, 0 }, code: partition.StaleBrokerEpoch},
		{name: "no life", mod: func(d *desk, q *q) { q.BrokerEpoch = -1 }, code: partition.StaleBrokerEpoch},
		{name: "a life before one that is only heard of", mod: func(d *desk, q *q) {
			d.nodes[2] = partition.Node{ID: 2, BrokerEpoch: 99}
			q.Session++
		}, code: partition.StaleBrokerEpoch},
		{name: "another directory, below the log start", mod: func(d *desk, q *q) { q.LogID, q.Offset = partition.UUID{77}, 0 }, code: partition.StaleBrokerEpoch},
		{name: "the same again, below the log start", mod: func(d *desk, q *q) { q.Seq, q.Offset = q.Seq-1, 0 }, code: partition.StaleBrokerEpoch, drop: true},
		{name: "an older one", mod: func(d *desk, q *q) { q.Seq = 0 }, code: partition.StaleBrokerEpoch, drop: true},
		{name: "an older session", mod: func(d *desk, q *q) { q.Session, q.Seq = 0, q.Seq+9 }, code: partition.StaleBrokerEpoch, drop: true},
		{name: "below the log start, whatever the epochs say", mod: func(d *desk, q *q) { q.Offset, q.LastFetchedEpoch = 1, 99 }, code: partition.OffsetOutOfRange},
		{name: "negative offset", mod: func(d *desk, q *q) { q.Offset, q.LastFetchedEpoch = math.MinInt64, -1 }, code: partition.OffsetOutOfRange},
		{name: "last epoch above the leader's", mod: func(d *desk, q *q) { q.LastFetchedEpoch = 4 }, code: partition.OffsetOutOfRange},
		{name: "last epoch ends below the offset", mod: func(d *desk, q *q) { q.Offset, q.LastFetchedEpoch = 5, 1 }, epoch: 1, end: 4},
		{name: "last epoch that is not the leader's", mod: func(d *desk, q *q) { q.LastFetchedEpoch = 2 }, epoch: 1, end: 4},
		{name: "last epoch before the leader's first", mod: func(d *desk, q *q) { q.LastFetchedEpoch = 0 }, epoch: 0, end: 2},
		{name: "above the end in the newest epoch", mod: func(d *desk, q *q) { q.Offset, q.LastFetchedEpoch = 7, 3 }, epoch: 3, end: 6},
		{name: "above the end without an epoch", mod: func(d *desk, q *q) { q.Offset, q.LastFetchedEpoch = 7, -1 }, code: partition.OffsetOutOfRange},
		{name: "far above the end", mod: func(d *desk, q *q) { q.Offset, q.LastFetchedEpoch = math.MaxInt64, -1 }, code: partition.OffsetOutOfRange},
	} {
		t.Run(tc.name, func(t *testing.T) {
			// Log: epoch 1 from 0, epoch 3 from 4, log start 2, end 6.
			d := newDesk(t, deskOptions{sync: replica.Never})
			for range 4 {
				d.mustProduce(1)
			}
			d.fetch(2, 4)
			d.fetch(3, 4)
			if err := d.log.DeleteRecords(2); err != nil {
				t.Fatal(err)
			}
			d.update(func(r *partition.Record) { r.LeaderEpoch = 3 })
			d.peers[2].session++
			d.peers[3].session++
			d.mustProduce(1)
			d.mustProduce(1)
			d.fetch(2, 4)
			d.fetch(3, 4)
			req := d.request(2, 4)
			tc.mod(d, req)
			before := d.p.Status()
			a := d.ask(req)
			after := d.p.Status()
			if a.Code != tc.code || a.Drop != tc.drop {
				t.Errorf("%v, drop %v; want %v, %v", a.Code, a.Drop, tc.code, tc.drop)
			}
			if want := tc.end != 0; a.Diverging != want || want && (a.DivergingEpoch != tc.epoch || a.DivergingEnd != tc.end) {
				t.Errorf("diverging %v: epoch %d ends at %d; want %d, %d", a.Diverging, a.DivergingEpoch, a.DivergingEnd, tc.epoch, tc.end)
			}
			if a.Session != req.Session || a.Seq != req.Seq || a.Offset != req.Offset {
				t.Error("does not say what it answers")
			}
			if tc.name == "fine" {
				if len(a.Records) == 0 || a.HighWatermark != 4 || a.LogStart != 2 || a.LEO != 6 || a.LeaderEpoch != 3 {
					t.Errorf("%d bytes, %+v", len(a.Records), a)
				}
				return
			}
			if len(a.Records) > 0 || a.HighWatermark != -1 {
				t.Errorf("gives %d bytes and high watermark %d", len(a.Records), a.HighWatermark)
			}
			before.Counters, after.Counters = Counters{}, Counters{}
			if !reflect.DeepEqual(before, after) {
				t.Errorf("changed\n%+v\nto\n%+v", before, after)
			}
		})
	}
}

// TestAlterTable is what a leader does with the coordinator's answers (A8).
func TestAlterTable(t *testing.T) {
	for _, tc := range []struct {
		code    partition.Code
		newer   bool // the answer has a newer record
		pending bool // afterwards
		resent  bool
	}{
		{partition.OK, true, false, false},
		{partition.OK, false, true, true},
		{partition.IneligibleReplica, false, false, false},
		{partition.InvalidUpdateVersion, true, false, false},
		{partition.InvalidUpdateVersion, false, true, false},
		{partition.FencedLeaderEpoch, false, true, false},
		{partition.StaleBrokerEpoch, false, true, false},
		{partition.InvalidRequest, false, true, false},
		{partition.NotController, false, true, true},
		{partition.Unknown, false, true, true},
	} {
		t.Run(fmt.Sprintf("%v newer=%v", tc.code, tc.newer), func(t *testing.T) {
			d := newDesk(t, deskOptions{sync: replica.Never, minISR: 1})
			d.update(func(r *partition.Record) { r.ISR = r.ISR[:2] })
			d.mustProduce(1)
			d.fetch(2, 1)
			d.fetch(3, 1)
			a := d.fx.Alter
			if a == nil || !slices.Equal(nodesOf(a.ISR), []int32{1, 2, 3}) {
				t.Fatalf("proposed %+v", a)
			}
			d.mustProduce(1)
			d.fetch(2, 2)
			d.wantHW(1) // node 3 counts already
			if tc.newer {
				d.apply(a)
			}
			d.answer(a, tc.code)
			if got := d.p.Status().Pending != nil; got != tc.pending {
				t.Errorf("pending %v; want %v", got, tc.pending)
			}
			if tc.code == partition.IneligibleReplica {
				d.nodes[3] = partition.Node{ID: 3, BrokerEpoch: 13, Fenced: true}
				if d.fetch(2, 2); d.hw() != 2 {
					t.Errorf("high watermark %d after a refusal; want 2", d.hw())
				}
			} else {
				d.wantHW(1)
			}
			resent := false
			for range 5 {
				d.tick(time.Second)
				if d.fx.Alter != nil {
					resent = true
					if d.fx.Alter != a {
						t.Errorf("another proposal: %+v", d.fx.Alter)
					}
				}
			}
			if resent != tc.resent {
				t.Errorf("said again: %v; want %v", resent, tc.resent)
			}
		})
	}
}

// TestProposalsAreNumbered: over reigns too, so that no answer is taken for one
// to another.
func TestProposalsAreNumbered(t *testing.T) {
	d := newDesk(t, deskOptions{minISR: 1})
	d.update(func(r *partition.Record) { r.ISR = r.ISR[:1] })
	d.fetch(2, 0)
	first := d.fx.Alter
	d.update(func(r *partition.Record) { r.LeaderEpoch++ })
	d.peers[2].session++
	d.fetch(2, 0)
	if second := d.fx.Alter; first == nil || second == nil || second.Seq <= first.Seq {
		t.Errorf("%+v, then %+v", first, second)
	}
}

// TestNames: ids of directories that nobody knew when the topic was made come
// into the record once all are known. Until they are there nothing is committed, or an
// empty directory in the place of a member's could be elected. Found by the simulator
// (F17).
func TestNames(t *testing.T) {
	d := newDesk(t, deskOptions{noLead: true})
	for i := range d.rec.ISR {
		d.rec.ISR[i].LogID = partition.UUID{}
	}
	d.update(nil)
	d.fetch(2, 0)
	if d.fx.Alter != nil {
		t.Errorf("proposed %v before it knows node 3", d.fx.Alter.ISR)
	}
	w := d.mustProduce(-1)
	d.fetch(3, 0)
	a := d.fx.Alter
	if a == nil || !slices.Equal(a.ISR, d.members(1, 2, 3)) {
		t.Fatalf("proposed %+v; want all with their directories", a)
	}
	d.fetch(2, 1)
	d.fetch(3, 1)
	d.sync()
	d.wantHW(0)
	wantWaiting(t, w)
	d.accept(a)
	d.wantHW(1)
	wantAck(t, w, nil)
	if d.fx.Alter != nil {
		t.Error("proposes again")
	}
}

// TestBrokenLeader: R8 and damage. The leader says that it cannot go on until
// another leads.
func TestBrokenLeader(t *testing.T) {
	d := newDesk(t, deskOptions{})
	w := d.mustProduce(-1)
	s := d.log.StartSync()
	s.Wait()
	d.log.FinishSync(s, vfs.ErrDead)
	d.step(func(fx *Effects) { d.p.Advanced(d.now, fx) })
	wantAck(t, w, partition.NotLeader)
	if !d.fx.Decline || d.fx.DeclineEpoch != 1 {
		t.Errorf("decline %v of epoch %d", d.fx.Decline, d.fx.DeclineEpoch)
	}
	if _, err := d.produce(0); err != partition.NotLeader {
		t.Errorf("produce: %v", err)
	}
	if a := d.ask(d.request(2, 0)); a.Code != partition.StorageError {
		t.Errorf("fetch: %v", a.Code)
	}
	if d.tick(time.Second); !d.fx.Decline {
		t.Error("says it once only")
	}
	d.update(func(r *partition.Record) { r.Leader, r.LeaderEpoch = 2, 2 })
	if d.tick(time.Hour); d.fx.Decline {
		t.Error("still declines")
	}
}

func TestAsk(t *testing.T) {
	d := newDesk(t, deskOptions{sync: replica.Never})
	d.mustProduce(1)
	d.mustProduce(1)
	d.update(func(r *partition.Record) { r.LeaderEpoch = 4 })
	d.mustProduce(1)
	for _, tc := range []struct {
		name  string
		q     partition.EpochAsk
		code  partition.Code
		epoch int32
		end   int64
	}{
		{"the newest", partition.EpochAsk{LeaderEpoch: 4, Replica: 2, BrokerEpoch: 12, Epoch: 4}, partition.OK, 4, 3},
		{"an older one", partition.EpochAsk{LeaderEpoch: 4, Replica: 2, BrokerEpoch: 12, Epoch: 1}, partition.OK, 1, 2},
		{"one in between", partition.EpochAsk{LeaderEpoch: 4, Replica: 2, BrokerEpoch: 12, Epoch: 3}, partition.OK, 1, 2},
		{"below the first", partition.EpochAsk{LeaderEpoch: 4, Replica: 2, BrokerEpoch: 12, Epoch: 0}, partition.OK, 0, 0},
		{"above the last", partition.EpochAsk{LeaderEpoch: 4, Replica: 2, BrokerEpoch: 12, Epoch: 5}, partition.OK, -1, -1},
		{"from an older epoch", partition.EpochAsk{LeaderEpoch: 3, Replica: 2, BrokerEpoch: 12}, partition.FencedLeaderEpoch, -1, -1},
		{"from a newer epoch", partition.EpochAsk{LeaderEpoch: 5, Replica: 2, BrokerEpoch: 12}, partition.UnknownLeaderEpoch, -1, -1},
		{"from an earlier life", partition.EpochAsk{LeaderEpoch: 4, Replica: 2, BrokerEpoch: 11}, partition.StaleBrokerEpoch, -1, -1},
		{"from no replica", partition.EpochAsk{LeaderEpoch: 4, Replica: 8, BrokerEpoch: 11}, partition.UnknownLeaderEpoch, -1, -1},
	} {
		tc.q.ID, tc.q.Session, tc.q.Seq = testID, 8, 9
		before := d.p.Status()
		var a partition.EpochAnswer
		d.p.Ask(&tc.q, &a)
		want := partition.EpochAnswer{Session: 8, Seq: 9, LeaderEpoch: 4, Code: tc.code, Epoch: tc.epoch, End: tc.end, LogStart: -1}
		if tc.code == partition.OK {
			want.LogStart = 0
		}
		if a != want {
			t.Errorf("%s: %+v; want %+v", tc.name, a, want)
		}
		if after := d.p.Status(); !reflect.DeepEqual(before, after) {
			t.Errorf("%s: changed %+v to %+v", tc.name, before, after)
		}
	}
}

// TestParking: what is parked is run again when there is something to give.
func TestParking(t *testing.T) {
	d := newDesk(t, deskOptions{sync: replica.Never})
	park := func(q *partition.Fetch, again bool) (parked bool, a *Answer) {
		a = &Answer{}
		d.step(func(fx *Effects) { parked = d.p.Fetch(q, again, true, d.now, a, fx) })
		return parked, a
	}
	q := d.request(2, 0)
	if parked, _ := park(q, false); !parked || !d.follower(2).Parked || d.follower(2).LEO != 0 {
		t.Fatalf("not parked: %+v", d.follower(2))
	}
	if parked, a := park(q, false); parked || !a.Drop {
		t.Error("the same fetch once more is not dropped")
	}
	d.mustProduce(0)
	if !slices.Equal(d.fx.Wake, []int32{2}) {
		t.Errorf("wakes %v", d.fx.Wake)
	}
	if d.mustProduce(0); len(d.fx.Wake) != 0 {
		t.Errorf("wakes %v again", d.fx.Wake)
	}
	parked, a := park(q, true)
	if parked || len(a.Records) == 0 || a.LEO != 2 || a.HighWatermark != 0 {
		t.Errorf("parked %v, %d bytes, %+v", parked, len(a.Records), a.Fetched)
	}
	a.View.Release()
	// The time is over: an answer without records, and the newest high watermark.
	q = d.request(2, 2)
	park(q, false)
	d.fetch(3, 2)
	d.wantHW(2)
	if len(d.fx.Wake) != 0 {
		t.Error("wakes for the high watermark, which nobody waits for")
	}
	a = &Answer{}
	if d.p.Fetch(q, true, false, d.now, a, &d.fx) || len(a.Records) > 0 || a.HighWatermark != 2 {
		t.Errorf("%+v", a.Fetched)
	}
	// A later one takes its place.
	park(d.request(2, 2), false)
	if parked, a := park(q, true); parked || !a.Drop {
		t.Error("a fetch that was given up is run")
	}
	if !d.follower(2).Parked {
		t.Error("the newer one is not parked any more")
	}
	// One that does not fit any more is answered, not parked.
	q = d.request(2, 2)
	park(q, false)
	d.update(func(r *partition.Record) { r.Leader, r.LeaderEpoch = 3, 2 })
	if !slices.Equal(d.fx.Wake, []int32{2}) {
		t.Errorf("wakes %v", d.fx.Wake)
	}
	if parked, a := park(q, true); parked || a.Code != partition.FencedLeaderEpoch {
		t.Errorf("parked %v, %v", parked, a.Code)
	}
}

// TestFetchOfConsumer: one door for consumers too.
func TestFetchOfConsumer(t *testing.T) {
	d := newDesk(t, deskOptions{sync: replica.Never})
	d.mustProduce(1)
	d.mustProduce(1)
	d.fetch(2, 1)
	d.fetch(3, 1)
	for _, tc := range []struct {
		name    string
		offset  int64
		epoch   int32
		code    partition.Code
		records bool
		parked  bool
	}{
		{"committed", 0, -1, partition.OK, true, false},
		{"committed, with the epoch", 0, 1, partition.OK, true, false},
		{"at the high watermark", 1, -1, partition.OK, false, true},
		{"not committed", 2, -1, partition.OK, false, true},
		{"beyond the end", 3, -1, partition.OffsetOutOfRange, false, false},
		{"below the start", -1, -1, partition.OffsetOutOfRange, false, false},
		{"of an older epoch", 0, 0, partition.FencedLeaderEpoch, false, false},
		{"of a newer epoch", 0, 2, partition.UnknownLeaderEpoch, false, false},
	} {
		a := &Answer{}
		parked := d.p.Fetch(&partition.Fetch{ID: testID, LeaderEpoch: tc.epoch, Replica: partition.None, Offset: tc.offset, MaxBytes: 1 << 20}, false, true, d.now, a, &d.fx)
		if a.Code != tc.code || (len(a.Records) > 0) != tc.records || parked != tc.parked {
			t.Errorf("%s: %v, %d bytes, parked %v", tc.name, a.Code, len(a.Records), parked)
		}
		if tc.records && a.View.Next != 1 {
			t.Errorf("%s: records up to %d, the high watermark is 1", tc.name, a.View.Next)
		}
		a.View.Release()
	}
	d.now = d.now.Add(48 * time.Hour)
	a := &Answer{}
	if d.p.Fetch(&partition.Fetch{ID: testID, LeaderEpoch: -1, Replica: partition.None}, false, true, d.now, a, &d.fx); a.Code != partition.NotLeader {
		t.Errorf("without a lease: %v", a.Code)
	}
}

// TestRefusedAppend: what the producer should not have sent changes nothing.
func TestRefusedAppend(t *testing.T) {
	d := newDesk(t, deskOptions{})
	if _, err := d.send(-1, 5, 0, 0); err != nil {
		t.Fatal(err)
	}
	_, err := d.send(-1, 5, 7, 0)
	if !errors.Is(err, dedupe.ErrOutOfOrder) {
		t.Errorf("gap: %v", err)
	}
	if s := d.p.Status(); s.Waiters != 1 || s.LEO != 1 {
		t.Errorf("%d waiters, end %d", s.Waiters, s.LEO)
	}
}

// TestAllocations: in the steady state an append, its copies and its ack
// allocate nothing.
func TestAllocations(t *testing.T) {
	for _, mode := range []replica.SyncMode{replica.Never, replica.Always} {
		o := deskOptions{sync: mode, segment: 64 << 20}
		if mode == replica.Always { // a sync in memory allocates
			o.osDir = t.TempDir()
		}
		d := newDesk(t, o)
		b := batch(3, 100, -1, 0)
		w, a, fx := &Waiter{}, &Answer{}, &Effects{}
		q := [2]*partition.Fetch{d.request(2, 0), d.request(3, 0)}
		now := d.now
		run := func() {
			now = now.Add(time.Millisecond)
			fx.Reset()
			if err := d.p.Produce(b, replica.Trusted, -1, 30*time.Second, w, now, fx); err != nil {
				t.Fatal(err)
			}
			end := w.End
			for _, q := range q {
				fx.Reset()
				d.p.Fetch(q, true, false, now, a, fx)
				if len(a.Records) != len(b) {
					t.Fatalf("%v, %d bytes", a.Code, len(a.Records))
				}
				a.View.Release()
				q.Seq++
				q.Offset, q.LastFetchedEpoch = end, 1
			}
			if mode == replica.Always {
				s := d.log.StartSync()
				if err := d.log.FinishSync(s, s.Wait()); err != nil {
					t.Fatal(err)
				}
				d.p.Advanced(now, fx)
			}
			for _, q := range q {
				if !d.p.Fetch(q, false, true, now, a, fx) {
					t.Fatalf("not parked: %v", a.Code)
				}
			}
			if !w.Finished() || w.Err != nil {
				t.Fatalf("not acked: %v", w.Err)
			}
		}
		q[0].LastFetchedEpoch, q[1].LastFetchedEpoch = -1, -1
		if n := testing.AllocsPerRun(200, run); n > 0 && !invariant.On {
			t.Errorf("%v: %v allocations per batch; want none", mode, n)
		}
	}
}

// go test ./isr -run '^$' -bench AcksAll
//
// One append of one small record and the two fetches each of its two followers
// that make it committed, without their copies.
func BenchmarkAcksAll(b *testing.B) {
	d := newDesk(b, deskOptions{sync: replica.Never, segment: 1 << 30, osDir: b.TempDir()})
	rec := batch(1, 100, -1, 0)
	w, a, fx := &Waiter{}, &Answer{}, &Effects{}
	q := [2]*partition.Fetch{d.request(2, 0), d.request(3, 0)}
	q[0].LastFetchedEpoch, q[1].LastFetchedEpoch = -1, -1
	b.ReportAllocs()
	for b.Loop() {
		fx.Reset()
		if err := d.p.Produce(rec, replica.Trusted, -1, 30*time.Second, w, d.now, fx); err != nil {
			b.Fatal(err)
		}
		for _, q := range q {
			d.p.Fetch(q, true, false, d.now, a, fx)
			a.View.Release()
			q.Seq++
			q.Offset, q.LastFetchedEpoch = w.End, 1
			if !d.p.Fetch(q, false, true, d.now, a, fx) {
				b.Fatalf("not parked: %v", a.Code)
			}
		}
		if !w.Finished() {
			b.Fatal("not acked")
		}
	}
}

// TestFetchBesideAppend: an append that comes while a fetch is served is in its
// answer or wakes it, and the answer's offsets fit together.
func TestFetchBesideAppend(t *testing.T) {
	d := newDesk(t, deskOptions{sync: replica.Never, minISR: 1, segment: 8 << 20})
	d.nodes[2] = partition.Node{ID: 2, BrokerEpoch: 12, Fenced: true} // nobody waits for it
	d.update(func(r *partition.Record) { r.ISR = r.ISR[:1] })
	b := batch(1, 50, -1, 0)
	var fx [2]Effects
	a, q := &Answer{}, d.request(2, 0)
	start, done := make(chan bool), make(chan bool)
	go func() {
		for range start {
			fx[0].Reset()
			if err := d.p.Produce(b, replica.Trusted, 0, 0, nil, t0, &fx[0]); err != nil {
				t.Error(err)
			}
			done <- true
		}
	}()
	together := 0
	for i := range 20_000 {
		q.Seq++
		if q.Offset = d.log.LogEndOffset(); i%2 == 1 {
			q.Offset-- // there is something to read
		}
		if q.LastFetchedEpoch = 1; q.Offset == 0 {
			q.LastFetchedEpoch = -1
		}
		start <- true
		fx[1].Reset()
		parked := d.p.Fetch(q, false, true, t0, a, &fx[1])
		<-done
		woken := slices.Contains(fx[0].Wake, 2)
		switch end := d.log.LogEndOffset(); {
		case parked && !woken:
			t.Fatalf("round %d: parked at %d, the log ends at %d and nobody wakes it", i, q.Offset, end)
		case parked:
		case a.HighWatermark > a.LEO || a.LogStart > a.HighWatermark:
			t.Fatalf("round %d: log start %d, high watermark %d, end %d", i, a.LogStart, a.HighWatermark, a.LEO)
		case a.LEO < end:
			together++
		}
		a.View.Release()
	}
	close(start)
	if together == 0 {
		t.Log("never together: nothing was tried")
	}
}

// TestGrowsBeforeParking: the log grew after a fetch had looked at its end and
// before it was noted. The append had nobody to wake, so it may not park.
func TestGrowsBeforeParking(t *testing.T) {
	d := newDesk(t, never)
	for i := range int64(20) {
		a, q, parked := &Answer{}, d.request(2, i), make(chan bool)
		d.p.mu.Lock()
		go func() { parked <- d.p.Fetch(q, false, true, t0, a, &Effects{}) }()
		time.Sleep(time.Millisecond) // it waits for mu by now, most likely
		if _, err := d.log.Append(batch(1, 50, -1, 0), replica.Trusted, t0); err != nil {
			t.Fatal(err)
		}
		d.p.mu.Unlock()
		if <-parked || a.LEO != i+1 || len(a.Records) == 0 {
			t.Fatalf("parked at %d, the log ends at %d", i, i+1)
		}
		a.View.Release()
	}
}
