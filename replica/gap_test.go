package replica_test

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/tidemark-log/tidemark/internal/vfs"
	"github.com/tidemark-log/tidemark/record"
	"github.com/tidemark-log/tidemark/replica"
)

// gaps are some that compaction could leave: within what a segment can hold, at the
// edge of it, and far beyond.
var gaps = []int64{1 << 20, 1<<31 - 10, 1<<31 - 9, 1 << 31, 1<<32 - 10, 1 << 32, 1<<32 + 10, 1 << 45}

// A log cut at the other side of a gap, or in the middle of it, ends just there, in
// this life and the next ones, and goes on from there, however wide the gap is.
func TestCutBehindAGap(t *testing.T) {
	for _, gap := range gaps {
		first := 10 + gap
		for _, to := range []int64{first, first - gap/2} {
			for _, mode := range []replica.SyncMode{replica.Always, replica.Never} {
				x := newLab(t, replica.Options{Sync: mode})
				x.follow(batchAt(0, 0, 10, 50))
				x.follow(batchAt(first, 0, 10, 50))
				if x.log.LogEndOffset() != first+10 {
					t.Fatalf("gap of %d: end %d", gap, x.log.LogEndOffset())
				}
				if err := x.log.Truncate(to); err != nil {
					t.Fatalf("gap of %d, cut to %d: %v", gap, to, err)
				}
				check := func(what string, end int64, records int) {
					t.Helper()
					x.undamaged()
					if got := x.readAll(0); len(got) != records || x.log.LogEndOffset() != end || x.log.LogStartOffset() != 0 {
						t.Fatalf("gap of %d, cut to %d, %s: %d records, log %d to %d; want %d, end %d", gap, to, what, len(got),
							x.log.LogStartOffset(), x.log.LogEndOffset(), records, end)
					}
					x.verify()
				}
				check("at once", to, 10)
				x.kill()
				x.open()
				check("after a kill", to, 10)
				x.mem = x.mem.PowerCut(rand.New(rand.NewPCG(1, 1)))
				x.fs = x.mem
				x.open()
				check("after a power cut", to, 10)
				x.close()
				x.open()
				check("after a close", to, 10)
				x.append(5, 50)
				x.sync()
				check("after an append", to+5, 15)
				x.kill()
				x.open()
				check("after an append and a kill", to+5, 15)
				x.close()
				x.open()
				check("after all", to+5, 15)
			}
		}
	}
}

// A cut that was interrupted at any place leaves a log that opens; read-only, too,
// which shows nothing that was cut.
func TestCutBehindAGapInterrupted(t *testing.T) {
	const first = 1 << 40
	for call := 1; ; call++ {
		x := newLab(t, replica.Options{})
		x.follow(batchAt(0, 0, 10, 50))
		x.follow(batchAt(first, 0, 10, 50))
		x.sync()
		mem := x.mem.Clone()
		n, done := 0, false
		x.mem.SetHook(func(vfs.Op, string, bool) {
			if n++; n == call {
				mem, done = x.mem.Clone(), true
			}
		})
		if err := x.log.Truncate(first - 3); err != nil {
			t.Fatal(err)
		}
		x.mem.SetHook(nil)
		if !done {
			break
		}
		x.log.Close(t0)
		x.mem = mem.Kill()
		x.fs = x.mem
		o := x.o
		o.FS, o.ReadOnly = x.mem, true
		l, err := replica.Open(x.dir, o, t0)
		if err != nil || l.Damage() != nil {
			t.Fatal(err, l.Damage())
		}
		if end := l.LogEndOffset(); !slices.Contains([]int64{first + 10, first - 3, 1 << 31}, end) {
			t.Errorf("call %d: read-only it ends at %d", call, end)
		}
		l.Close(t0)
		x.open()
		x.undamaged()
		if end := x.log.LogEndOffset(); end != first+10 && end != first-3 || !slices.Contains([]int{10, 20}, len(x.readAll(0))) {
			t.Errorf("call %d: it ends at %d", call, end)
		}
		x.verify()
	}
}

// A follower goes on where its leader does, at the other side of a gap, and is cut
// there; but only of a topic that is compacted there are any.
func TestFollowOverAGap(t *testing.T) {
	for _, gap := range gaps {
		first := 10 + gap
		c := replica.EmbeddedConfig()
		c.Compact = true
		a, b := pair(t, replica.Options{Config: &c}, replica.FetcherOptions{})
		for _, x := range [][]byte{batchAt(0, 0, 10, 50), batchAt(first, 0, 10, 50)} {
			if _, err := a.log.Append(x, replica.Follower, t0); err != nil {
				t.Fatal(err)
			}
		}
		a.lead(0)
		a.sync()
		b.follow(a)
		b.ends(0, first+10)
		a.hw(first)
		b.run(a)
		b.ends(first, first+10)
		if err := a.log.Truncate(first); err != nil { // as if it had not come so far
			t.Fatal(err)
		}
		a.lead(1)
		b.begin(a)
		for b.log.LogEndOffset() != first {
			b.step(a)
		}
		b.kill()
		b.ends(first, first)
		if _, err := a.log.AppendRecords([]record.Record{recordAt(first, 50)}, t0); err != nil {
			t.Fatal(err)
		}
		a.sync()
		b.follow(a)
		b.ends(first, first+1)
	}
	a, b := pair(t, replica.Options{}, replica.FetcherOptions{})
	for _, x := range [][]byte{batchAt(0, 0, 10, 50), batchAt(1<<40, 0, 10, 50)} {
		if _, err := a.log.Append(x, replica.Follower, t0); err != nil {
			t.Fatal(err)
		}
	}
	a.lead(0)
	a.sync()
	b.begin(a)
	b.run(a)
	b.ends(0, 10)
	if b.f.State().Corrupt == 0 {
		t.Errorf("a gap in a topic that is not compacted: %+v", b.f.State())
	}
}
