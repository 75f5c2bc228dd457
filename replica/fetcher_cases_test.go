package replica_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tidemark-log/tidemark/replica"
)

// Cases of docs/cases.md that need a follower beside its leader.

// between has r's log closed, changed, and opened again in a new life.
func (r *rep) between(change func(x *lab)) {
	r.t.Helper()
	if err := r.log.Close(t0); err != nil {
		r.t.Fatal(err)
	}
	change(&lab{t: r.t, mem: r.mem, dir: "/log"})
	r.start(true)
}

// TestC073_StartsFollowing: the follower's newest epoch begins at its end, where the
// leader's begins too. No byte is cut for it, and yet it has to go.
func TestC073_StartsFollowing(t *testing.T) {
	eachMode(t, func(t *testing.T, o replica.Options, fo replica.FetcherOptions) {
		a, b := following(t, o, fo, 4, 100)
		b.lead(5)
		a.lead(6)
		old := []replica.Epoch{{Epoch: 4, StartOffset: 0}}
		if got := b.log.Epochs(); !slices.Equal(got, append(old, replica.Epoch{Epoch: 5, StartOffset: 100})) {
			t.Fatalf("epochs %v", got)
		}
		b.follow(a, 1)
		if got := b.log.Epochs(); !slices.Equal(got, old) || b.f.State().CutRecords != 0 {
			t.Errorf("epochs %v, %+v", got, b.f.State())
		}
		a.put(1)
		b.run(a)
		b.same(a)
		b.kill() // nor does the file have it
		if got := b.log.Epochs(); !slices.Equal(got, a.log.Epochs()) {
			t.Errorf("epochs %v after a restart; want %v", got, a.log.Epochs())
		}
	})
}

// TestC075_BeginsAtTheLogStart: a follower whose epoch the leader has deleted begins
// where the leader's log does, not at 0.
func TestC075_BeginsAtTheLogStart(t *testing.T) {
	for _, end := range []int{3, 10, 12, 20} {
		a, b := pair(t, replica.Options{}, replica.FetcherOptions{})
		if err := a.log.TruncateFullyAndStartAt(10); err != nil {
			t.Fatal(err)
		}
		a.lead(5)
		a.put(5)
		b.lead(4)
		b.put(end)
		b.follow(a)
		if s := b.f.State(); b.log.LogStartOffset() != 10 || s.Resets > 1 {
			t.Errorf("from %d: log start %d, %+v", end, b.log.LogStartOffset(), s)
		}
	}
}

// TestC076_SparseFollower: a follower whose epoch file lists two of ten epochs is cut
// where its log leaves the leader's and nowhere below.
func TestC076_SparseFollower(t *testing.T) {
	for _, tc := range []struct {
		name string
		lead func(a *rep)
		cut  int64
	}{
		{"an equal log", func(a *rep) {}, 0},
		{"an equal log, and more", func(a *rep) { a.put(3) }, 0},
		{"one without the last epoch", func(a *rep) {
			if err := a.log.Truncate(18); err != nil {
				a.t.Fatal(err)
			}
			a.lead(10)
			a.put(1)
		}, 2},
	} {
		for _, unclean := range []bool{false, true} {
			t.Run(tc.name, func(t *testing.T) {
				a, b := pair(t, replica.Options{}, replica.FetcherOptions{})
				for e := range int32(10) {
					a.lead(e)
					a.put(2)
				}
				b.follow(a, 1)
				a.hw(18)
				b.run(a)
				b.between(func(x *lab) {
					x.write("leader-epoch-checkpoint", []byte("0\n2\n0 0\n9 18\n"))
					if unclean {
						x.remove(slotFile)
					}
				})
				tc.lead(a)
				b.begin(a, 1)
				b.run(a)
				if s := b.f.State(); s.CutRecords+s.RefetchedRecords > tc.cut || b.log.LogEndOffset() != a.log.LogEndOffset() || string(b.all()) != string(a.all()) {
					t.Errorf("unclean %v: it ends at %d, the leader at %d; %+v", unclean, b.log.LogEndOffset(), a.log.LogEndOffset(), s)
				}
			})
		}
	}
}

// TestC078_AheadOfTheLeader: the leader lost its tail. Its follower is cut to it, which
// is said loudly, and goes on; a partition beside it, on the same nodes, notices nothing.
func TestC078_AheadOfTheLeader(t *testing.T) {
	eachMode(t, func(t *testing.T, o replica.Options, fo replica.FetcherOptions) {
		o.SegmentBytes = 64 << 10
		a, b := pair(t, o, fo)
		x := reps(t, 2, o, fo) // the other partition
		a.lead(1)
		x[0].lead(1)
		for range 7 {
			a.put(293)
			x[0].put(1)
		}
		a.put(340)
		b.follow(a, 1)
		x[1].follow(x[0], 1)
		a.hw(2391)
		b.run(a)
		b.ends(2391, 2391)
		if err := a.log.Truncate(2051); err != nil { // behind the protocol's back
			t.Fatal(err)
		}
		a.lead(2)
		b.begin(a, 1)
		for !b.f.State().Reconciled {
			b.step(a)
			x[0].put(1)
			x[1].step(x[0])
		}
		b.run(a)
		b.same(a)
		lost := b.warnings("below its high watermark")
		if s := b.f.State(); s.CutBelowHW != 1 || lost != 1 || s.Stopped != nil {
			t.Errorf("%+v; said %d times that committed records are gone", s, lost)
		}
		a.put(1)
		b.run(a)
		b.same(a)
		x[1].run(x[0])
		x[1].same(x[0])
		if s := x[1].f.State(); s.CutRecords+s.Resets != 0 {
			t.Errorf("the other partition: %+v", s)
		}
	})
}

// warnings counts the lines of the log with a text.
func (r *rep) warnings(text string) (n int) {
	r.warns.mu.Lock()
	defer r.warns.mu.Unlock()
	for _, line := range r.warns.lines {
		if strings.Contains(line, text) {
			n++
		}
	}
	return n
}

// TestC079_BehindAndBeyond: the leader has 5,000 to 8,000. Followers below begin anew
// at 5,000, those inside stay where they are, one beyond is cut; each says so once at
// most and asks no more often than it has to.
func TestC079_BehindAndBeyond(t *testing.T) {
	for _, tc := range []struct {
		end    int
		from   int64 // where it then goes on
		resets int64
		cuts   int64
	}{
		{0, 5000, 1, 0},
		{4000, 5000, 1, 0},
		{4900, 5000, 1, 0},
		{5000, 5000, 0, 0},
		{6000, 6000, 0, 0},
		{8000, 8000, 0, 0},
		{9000, 8000, 0, 1000},
	} {
		t.Run(fmt.Sprint(tc.end), func(t *testing.T) {
			o := replica.Options{Sync: replica.Never, SegmentBytes: 1 << 20}
			a, b := pair(t, o, replica.FetcherOptions{MaxBytes: 16 << 10})
			a.lead(1)
			for a.log.LogEndOffset() < 8000 {
				a.put(100)
			}
			if tc.end > 0 { // it had copied so far; then it led alone for the rest
				for b.log.LogEndOffset() < int64(min(tc.end, 8000)) {
					x, err := a.log.Read(nil, b.log.LogEndOffset(), int64(min(tc.end, 8000)), 1)
					if err != nil {
						t.Fatal(err)
					}
					if _, err := b.log.Append(x, replica.Follower, t0); err != nil {
						t.Fatal(err)
					}
				}
				if tc.end > 8000 {
					b.lead(2)
					for b.log.LogEndOffset() < int64(tc.end) {
						b.put(100)
					}
				}
			}
			a.hw(8000)
			if err := a.log.DeleteRecords(5000); err != nil {
				t.Fatal(err)
			}
			a.lead(3)
			said, sent, asks, before := len(b.warns.lines), b.sent, b.asks, *b.now
			b.begin(a)
			for s, rounds := (replica.Step{}), 0; s.Do != replica.SendFetch || s.Fetch.Offset != tc.from; rounds++ {
				if s = b.step(a); rounds > 20 {
					t.Fatalf("it ends at %d: %+v", b.log.LogEndOffset(), b.f.State())
				}
			}
			if s := b.f.State(); s.Resets != tc.resets || s.CutRecords != tc.cuts {
				t.Errorf("%+v", s)
			}
			if asked := b.sent + b.asks - sent - asks; asked > 4 || b.now.Sub(before) > 5*time.Second {
				t.Errorf("%d requests in %v", asked, b.now.Sub(before))
			}
			if lines := b.warns.lines[said:]; len(lines) > 1 {
				t.Errorf("it said %q", lines)
			}
			b.run(a)
			if b.log.LogEndOffset() != 8000 || b.log.LogStartOffset() != 5000 || b.log.HighWatermark() != 8000 {
				t.Errorf("log start %d, hw %d, end %d", b.log.LogStartOffset(), b.log.HighWatermark(), b.log.LogEndOffset())
			}
			if x, err := b.log.Read(nil, 5000, 8000, 1<<20); err != nil {
				t.Error(err)
			} else if y, err := a.log.Read(nil, 5000, 8000, 1<<20); err != nil || string(x) != string(y) {
				t.Errorf("other bytes, or %v", err)
			}
			b.valid()
		})
	}
}

// TestC107_ReplicasAgree: replicas forget a producer by their own clocks. The next
// batch is taken by those that have forgotten it and those that have not, and after
// that they know the same of it again.
func TestC107_ReplicasAgree(t *testing.T) {
	for _, who := range []string{"leader", "follower", "both"} {
		t.Run(who, func(t *testing.T) {
			a, b := pair(t, replica.Options{ProducerExpiration: 10 * time.Minute}, replica.FetcherOptions{})
			send := func(r *rep, seq int32) replica.Appended {
				t.Helper()
				got, err := r.log.Append(producerBatch(0, 0, 7, seq, 1), replica.Client, t0.Add(11*time.Minute))
				if err != nil {
					t.Fatalf("sequence %d: %v", seq, err)
				}
				r.sync()
				return got
			}
			a.lead(1)
			send(a, 0)
			b.follow(a, 1)
			for _, x := range map[string][]*rep{"leader": {a}, "follower": {b}, "both": {a, b}}[who] {
				for _, now := range []time.Duration{0, time.Hour} {
					if _, err := x.log.Maintain(t0.Add(now)); err != nil {
						t.Fatal(err)
					}
				}
				if _, known := x.log.Producer(7); known {
					t.Fatalf("node %d has not forgotten it", x.id)
				}
			}
			if got := send(a, 1); got.Duplicate || got.Base != 1 {
				t.Errorf("the next one: %+v", got)
			}
			b.run(a)
			b.same(a)
			p, _ := a.log.Producer(7)
			q, known := b.log.Producer(7)
			last, _ := p.Last()
			if got, _ := q.Last(); !known || got != last || p.Epoch != q.Epoch {
				t.Errorf("the leader knows %+v, the follower %+v", p, q)
			}
			b.lead(2)
			if got := send(b, 1); !got.Duplicate || got.Base != 1 {
				t.Errorf("again, at the next leader: %+v", got)
			}
			if got := send(b, 2); got.Duplicate || got.Base != 2 {
				t.Errorf("the one after: %+v", got)
			}
		})
	}
}
