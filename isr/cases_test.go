package isr

import (
	"slices"
	"testing"
	"time"

	"github.com/tidemark-log/tidemark/partition"
	"github.com/tidemark-log/tidemark/replica"
)

func TestC088_WithAFollower(t *testing.T) { story(t, "C088-follower") }

func TestS91_OldCoordinator(t *testing.T) { story(t, "S91") }
func TestS91_UsedEpoch(t *testing.T)      { story(t, "S91-same") }

// TestC081_FollowerServesNoReads: consumers read from the leader only. A follower that
// is asked, whatever for and however far it has come, says so at once and never that the
// offset is out of range, which would send the consumer elsewhere for nothing.
func TestC081_FollowerServesNoReads(t *testing.T) {
	s := newStage(t, stageOptions{nodes: 3, minISR: 2})
	for _, line := range []string{"produce A all m1 m2", "catchup", "part A B", "produce A 1 m3 m4", "fetch C 2"} {
		s.do(line)
	}
	b := s.actors[1]
	if hw, end, head := b.log.HighWatermark(), b.log.LogEndOffset(), s.actors[0].log.LogEndOffset(); hw != 2 || end != 2 || head != 4 {
		t.Fatalf("hw %d, end %d, the leader's end %d", hw, end, head)
	}
	before := b.p.Status()
	for offset := int64(-1); offset <= 5; offset++ {
		if _, err := b.p.Consume(offset, 1<<20, s.now); err != partition.NotLeader {
			t.Errorf("consume at %d: %v", offset, err)
		}
		for _, epoch := range []int32{-1, before.LeaderEpoch} {
			for _, mayPark := range []bool{false, true} {
				var a Answer
				q := &partition.Fetch{ID: s.id, LeaderEpoch: epoch, Replica: partition.None, Offset: offset, MaxBytes: 1 << 20}
				if parked := b.p.Fetch(q, false, mayPark, s.now, &a, &b.fx); parked || a.Code != partition.NotLeader || len(a.Records) > 0 || a.HighWatermark != -1 || a.LEO != -1 {
					t.Errorf("fetch at %d in epoch %d: parked %v, %+v", offset, epoch, parked, a.Fetched)
				}
			}
		}
	}
	if _, err := b.p.Latest(s.now); err != partition.NotLeader {
		t.Errorf("latest: %v", err)
	}
	after := b.p.Status()
	before.Counters, after.Counters = Counters{}, Counters{}
	if after.Role != before.Role || after.LEO != before.LEO || !slices.Equal(after.Followers, before.Followers) {
		t.Errorf("was %+v, is %+v", before, after)
	}
	// The same node as leader gives them.
	for _, line := range []string{"heal", "catchup", "handover A B"} {
		s.do(line)
	}
	if v, err := b.p.Consume(1, 1<<20, s.now); err != nil || v.Next != 4 {
		t.Errorf("as leader: up to %d, %v", v.Next, err)
	} else {
		v.Release()
	}
}

// TestC087_HighWatermarkAfterCut: a replica is elected right after it was cut. What it
// tells followers and consumers of the high watermark lies within its log, wherever that
// was before and wherever the log was cut to.
func TestC087_HighWatermarkAfterCut(t *testing.T) {
	const first, end = 100, 108
	for hw := int64(first); hw <= end; hw += 2 {
		for cut := int64(first); cut <= end; cut += 2 {
			d := newDesk(t, deskOptions{sync: replica.Never, first: first, noLead: true})
			d.log.BeginEpoch(0)
			for range 4 {
				if _, err := d.log.Append(batch(2, 50, -1, 0), replica.Client, t0); err != nil {
					t.Fatal(err)
				}
			}
			d.log.SetHighWatermark(hw)
			d.update(func(r *partition.Record) { r.Leader, r.LeaderEpoch = 2, 2 })
			if err := d.log.Truncate(cut); err != nil {
				t.Fatal(err)
			}
			d.update(func(r *partition.Record) { r.Leader, r.LeaderEpoch = 1, 3 })
			d.peers[2].session, d.peers[3].session = 3, 3
			d.wantHW(min(hw, cut))
			for offset := int64(first); offset <= cut; offset += 2 {
				q := d.request(2, offset)
				if q.LastFetchedEpoch = 0; offset == first {
					q.LastFetchedEpoch = -1
				}
				a := d.ask(q)
				if a.Code != partition.OK || a.Diverging || a.HighWatermark < a.LogStart || a.HighWatermark > a.LEO || a.LogStart != first || a.LEO != cut {
					t.Errorf("hw %d, cut to %d, a follower at %d: %+v", hw, cut, offset, a.Fetched)
				}
				a.View.Release()
				v, err := d.p.Consume(offset, 1<<20, d.now)
				if err != nil || v.Next > min(hw, cut) {
					t.Errorf("hw %d, cut to %d, a consumer at %d: up to %d, %v", hw, cut, offset, v.Next, err)
				}
				v.Release()
			}
			if at, err := d.p.Latest(d.now); err == nil && (at < first || at > cut) || err != nil && err != partition.OffsetNotAvailable {
				t.Errorf("hw %d, cut to %d: latest %d, %v", hw, cut, at, err)
			}
			if _, err := d.p.Consume(cut+1, 1<<20, d.now); err != partition.OffsetOutOfRange {
				t.Errorf("hw %d, cut to %d: beyond the end: %v", hw, cut, err)
			}
		}
	}
}

// TestC097_ParkedAreWoken: the very step that moves the high watermark, or has another
// lead, says so to whoever keeps the fetches of consumers, and run again they are
// answered, as they are by a leader that may not serve any more.
func TestC097_ParkedAreWoken(t *testing.T) {
	ask := func(d *desk) (parked bool, a *Answer) {
		a = &Answer{}
		q := &partition.Fetch{ID: testID, LeaderEpoch: -1, Replica: partition.None, Offset: d.hw(), MaxBytes: 1 << 20}
		d.step(func(fx *Effects) { parked = d.p.Fetch(q, false, true, d.now, a, fx) })
		return parked, a
	}
	for _, tc := range []struct {
		name  string
		do    func(d *desk)
		moved Moved
		code  partition.Code
	}{
		{"data", func(d *desk) {
			d.mustProduce(1)
			d.fetch(2, 1)
			if d.fx.Moved&MovedHW != 0 {
				t.Error("moved before all had it")
			}
			d.fetch(3, 1)
		}, MovedHW, partition.OK},
		{"another leads", func(d *desk) { d.update(func(r *partition.Record) { r.Leader, r.LeaderEpoch = 2, 2 }) }, MovedLeader, partition.NotLeader},
		{"it resigns", func(d *desk) { d.step(func(fx *Effects) { d.p.Resign(d.now, nil, fx) }) }, 0, partition.NotLeader},
		{"its lease ends", func(d *desk) { d.now = d.now.Add(48 * time.Hour); d.tick(0) }, 0, partition.NotLeader},
	} {
		t.Run(tc.name, func(t *testing.T) {
			d := newDesk(t, never)
			d.fetch(2, 0)
			d.fetch(3, 0)
			if parked, a := ask(d); !parked {
				t.Fatalf("not parked: %+v", a.Fetched)
			}
			tc.do(d)
			if d.fx.Moved&tc.moved != tc.moved {
				t.Errorf("moved %b, want %b: nobody would be told", d.fx.Moved, tc.moved)
			}
			q := &partition.Fetch{ID: testID, LeaderEpoch: -1, Replica: partition.None, Offset: 0, MaxBytes: 1 << 20}
			a := &Answer{}
			if parked := d.p.Fetch(q, true, true, d.now, a, &d.fx); parked || a.Code != tc.code || (len(a.Records) > 0) != (tc.code == partition.OK) {
				t.Errorf("parked %v, %v, %d bytes", parked, a.Code, len(a.Records))
			}
			a.View.Release()
		})
	}
}
