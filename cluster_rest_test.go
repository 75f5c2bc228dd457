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

var idlePartitions = flag.Int("idle", 40, "partitions of TestClusterAtRest")

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
// on its followers, and in a producer.
func TestClusterAllocates(t *testing.T) {
	if invariant.On {
		t.Skip("checks and the race detector allocate")
	}
	for _, mode := range []tidemark.SyncMode{tidemark.Never, tidemark.Always} {
		for _, size := range []int{100, 20 << 10} { // copied inline, and by the crew
			t.Run(fmt.Sprintf("%v,%d", mode, size), func(t *testing.T) {
				c := openCluster(t, t.TempDir(), tidemark.ClusterOptions{Log: tidemark.Options{Sync: mode, SegmentBytes: 64 << 20}})
				h := createTopic(t, c, "events", tidemark.TopicOptions{})
				caughtUp(t, h)
				p, err := c.NewProducer(tidemark.ProducerOptions{})
				if err != nil {
					t.Fatal(err)
				}
				defer p.Close()
				recs := []tidemark.Record{{Value: make([]byte, size)}}
				for name, run := range map[string]func() error{
					"partition": func() error { _, err := h.Produce(t.Context(), tidemark.AcksAll, recs...); return err },
					"producer":  func() error { _, err := p.Produce(t.Context(), h, recs...); return err },
				} {
					for range 50 {
						if err := run(); err != nil {
							t.Fatal(err)
						}
					}
					if n := testing.AllocsPerRun(300, func() { err = run() }); n > 0 || err != nil {
						t.Errorf("%s: %v allocations an append, %v", name, n, err)
					}
				}
			})
		}
	}
}

// TestClusterAtRest: partitions that nobody writes to have no goroutine and cost
// hardly any processor time. -idle=1000 is what docs/benchmarks.md has.
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
	eventually(t, "no goroutine is left but a few", func() bool { return runtime.NumGoroutine() <= before+3 })
	cpu := func() time.Duration {
		var u syscall.Rusage
		if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
			t.Fatal(err)
		}
		return time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	wait := time.Second
	if *idlePartitions >= 1000 {
		wait = 20 * time.Second
		time.Sleep(5 * time.Second) // what making them left to be done
	}
	from := cpu()
	time.Sleep(wait)
	t.Logf("%d partitions × 3 made in %v; at rest %.2f %% of a processor", *idlePartitions, made, 100*float64(cpu()-from)/float64(wait))
}
