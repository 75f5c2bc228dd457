//go:build unix

package tidemark_test

import (
	"flag"
	"fmt"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/tidemark-log/tidemark"
	"github.com/tidemark-log/tidemark/internal/invariant"
)

var idlePartitions = flag.Int("idle", 100, "partitions of TestClusterAtRest")

// TestClusterLeavesNothing: neither a close nor a kill keeps a goroutine, a map, a
// descriptor or a lock.
func TestClusterLeavesNothing(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "c")
	before := runtime.NumGoroutine()
	for round := range 3 {
		c := openCluster(t, dir, tidemark.ClusterOptions{Log: tidemark.Options{Sync: modes[round]}})
		if round == 0 {
			createTopic(t, c, "events", tidemark.TopicOptions{Partitions: 3})
		}
		p, err := c.NewProducer(tidemark.ProducerOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for i := range 3 {
			h, err := c.Partition("events", i)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := p.Produce(within(t), h, rec(int64(i), 100)); err != nil {
				t.Fatal(err)
			}
		}
		if round == 1 {
			for n := range 3 {
				if err := c.Kill(n); err != nil {
					t.Fatal(err)
				}
			}
			if m, f := held(t, filepath.Join(dir, "node-")); len(m)+len(f) > 0 {
				t.Errorf("killed nodes hold %q and %q", m, f)
			}
		}
		if err := p.Close(); err != nil {
			t.Fatal(err)
		}
		closeCluster(t, c)
		if m, f := held(t, dir); len(m)+len(f) > 0 {
			t.Errorf("round %d: a closed cluster holds %q and %q", round, m, f)
		}
		eventually(t, "no goroutine is left", func() bool { return runtime.NumGoroutine() <= before })
	}
}

// TestClusterAllocates: an append allocates nothing in steady state, on the leader,
// on its followers, and in a producer. (Space on disk is prepared now and then, which
// does: some nine allocations for a megabyte.)
func TestClusterAllocates(t *testing.T) {
	if invariant.On {
		t.Skip("checks and the race detector allocate")
	}
	for _, mode := range []tidemark.SyncMode{tidemark.Never, tidemark.Always} {
		for _, size := range []struct{ n, bytes, runs int }{{1, 100, 300}, {1, 20 << 10, 300}, {100, 100, 300}} { // copied inline, by the crew, many at once
			t.Run(fmt.Sprintf("%v,%dx%d", mode, size.n, size.bytes), func(t *testing.T) {
				c := openCluster(t, t.TempDir(), tidemark.ClusterOptions{Log: tidemark.Options{Sync: mode, SegmentBytes: 64 << 20}})
				h := createTopic(t, c, "events", tidemark.TopicOptions{})
				caughtUp(t, h)
				p, err := c.NewProducer(tidemark.ProducerOptions{})
				if err != nil {
					t.Fatal(err)
				}
				defer p.Close()
				recs := make([]tidemark.Record, size.n)
				for i := range recs {
					recs[i].Value = make([]byte, size.bytes)
				}
				for name, run := range map[string]func() error{
					"partition": func() error { _, err := h.Produce(t.Context(), tidemark.AcksAll, recs...); return err },
					"producer":  func() error { _, err := p.Produce(t.Context(), h, recs...); return err },
				} {
					for range 50 {
						if err := run(); err != nil {
							t.Fatal(err)
						}
					}
					if n := testing.AllocsPerRun(size.runs, func() { err = run() }); n > 0 || err != nil {
						t.Errorf("%s: %v allocations an append, %v", name, n, err)
					}
				}
			})
		}
	}
}

// TestClusterAtRest: partitions that nobody writes to have no goroutine and cost
// hardly any processor time: a follower asks again when its parked fetch has waited
// its time, and that is all. -idle=1000 is what docs/benchmarks.md has.
func TestClusterAtRest(t *testing.T) {
	before := runtime.NumGoroutine()
	c := openCluster(t, t.TempDir(), tidemark.ClusterOptions{SessionTimeout: 9 * time.Second, Log: tidemark.Options{Sync: tidemark.Never}})
	begin := time.Now()
	createTopic(t, c, "events", tidemark.TopicOptions{Partitions: *idlePartitions})
	made := time.Since(begin)
	var handles []*tidemark.Partition
	for i := range *idlePartitions {
		h, err := c.Partition("events", i)
		if err != nil {
			t.Fatal(err)
		}
		produce(t, h, tidemark.AcksAll, "x")
		handles = append(handles, h)
	}
	for _, h := range handles {
		caughtUp(t, h)
	}
	wait := 2 * time.Second
	if *idlePartitions >= 1000 {
		wait = 20 * time.Second
		time.Sleep(20 * time.Second) // a leader looks at its followers once more after LagMax/2
	}
	eventually(t, "no goroutine is left but a few", func() bool { return runtime.NumGoroutine() <= before+3 })
	fetched := func() (n int64) {
		for _, h := range handles {
			n += h.Stats().Leading.Fetches
		}
		return n
	}
	used := func() (cpu time.Duration, switches int64) {
		var u syscall.Rusage
		if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
			t.Fatal(err)
		}
		return time.Duration(u.Utime.Nano() + u.Stime.Nano()), u.Nvcsw
	}
	asked := fetched()
	runtime.GC() // of what making them left
	cpu, switches := used()
	time.Sleep(wait)
	cpu2, switches2 := used()
	fetches := fetched() - asked
	t.Logf("%d partitions × 3 made in %v; at rest %.2f %% of a processor, %d fetches and %d context switches in %v", *idlePartitions, made,
		100*float64(cpu2-cpu)/float64(wait), fetches, switches2-switches, wait)
	// Parked for 10 s, so a fifth of these fall due; who polls would have many times as many.
	if followers := int64(2 * *idlePartitions); wait < 10*time.Second && fetches > followers {
		t.Errorf("%d fetches of %d followers at rest in %v", fetches, followers, wait)
	}
}
