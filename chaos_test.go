//go:build unix

package tidemark_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tidemark-log/tidemark"
)

var (
	chaosTime = flag.Duration("chaos", 0, "how long each chaos test goes on; 0 is the default")
	chaosSeed = flag.Uint64("chaos.seed", 0, "seed of the chaos tests; 0 takes one from the clock")
)

const (
	chaosEnv        = "TIDEMARK_CHAOS_CHILD"
	chaosNodes      = 3
	chaosPartitions = 2
)

func chaosFor(t *testing.T, short time.Duration) time.Duration {
	if *chaosTime > 0 {
		return *chaosTime
	}
	return short
}

func chaosRand(t *testing.T) *rand.Rand {
	seed := *chaosSeed
	if seed == 0 {
		seed = uint64(time.Now().UnixNano())
	}
	t.Logf("seed: -chaos.seed=%d (the schedule is not the whole story)", seed)
	return rand.New(rand.NewPCG(seed, 7))
}

func chaosOptions(mode tidemark.SyncMode, recovery tidemark.Recovery) tidemark.ClusterOptions {
	return tidemark.ClusterOptions{Nodes: chaosNodes, SessionTimeout: 300 * time.Millisecond, LagMax: 500 * time.Millisecond,
		Recovery: recovery, Log: tidemark.Options{Sync: mode, SyncInterval: 5 * time.Millisecond, SegmentBytes: 256 << 10}}
}

// chaosRecord is record seq of a writer; its value tells whether it is whole.
func chaosRecord(rng *rand.Rand, writer int, seq int64) tidemark.Record {
	return killRecord(writer, seq, rng.IntN(200))
}

// A chaosWriter appends records that count up to each partition, several batches
// under way, and knows which were acknowledged.
type chaosWriter struct {
	id    int
	h     []*tidemark.Partition
	next  []int64
	acked []*atomic.Int64
}

func (w *chaosWriter) run(ctx context.Context, c *tidemark.Cluster, rng *rand.Rand) error {
	p, err := c.NewProducer(tidemark.ProducerOptions{Timeout: 10 * time.Minute, RequestTimeout: 2 * time.Second, RetryBackoff: 5 * time.Millisecond})
	if err != nil {
		return err
	}
	defer p.Close()
	type sent struct {
		d    tidemark.Delivery
		part int
		end  int64
	}
	var out []sent
	settle := func(n int) error {
		for ; len(out) > n; out = out[1:] {
			if _, err := out[0].d.Wait(context.Background()); err != nil {
				return fmt.Errorf("writer %d, records below %d of partition %d: %w", w.id, out[0].end, out[0].part, err)
			}
			w.acked[out[0].part].Store(out[0].end)
		}
		return nil
	}
	for ctx.Err() == nil {
		part := rng.IntN(len(w.h))
		var recs []tidemark.Record
		for range 1 + rng.IntN(5) {
			recs = append(recs, chaosRecord(rng, w.id, w.next[part]))
			w.next[part]++
		}
		d, err := p.ProduceAsync(context.Background(), w.h[part], recs...)
		if err != nil {
			return fmt.Errorf("writer %d: %w", w.id, err)
		}
		out = append(out, sent{d, part, w.next[part]})
		if err := settle(rng.IntN(8)); err != nil {
			return err
		}
		if rng.IntN(50) == 0 {
			time.Sleep(time.Duration(rng.IntN(3000)) * time.Microsecond)
		}
	}
	return settle(0)
}

// chaosAudit reads a partition: each writer's records are there once, in order and
// whole, from the first to the last, and all below acked. It returns what comes next.
func chaosAudit(t *testing.T, h *tidemark.Partition, writers int, acked func(writer int) int64) (next []int64, err error) {
	t.Helper()
	eventually(t, "it can be read to the end", func() bool {
		settle(t, h)
		next, err = chaosRead(h, writers, acked)
		return !errors.Is(err, tidemark.NotLeader) // or who led does so no more
	})
	return next, err
}

func chaosRead(h *tidemark.Partition, writers int, acked func(writer int) int64) (next []int64, err error) {
	next = make([]int64, writers)
	offset := int64(0)
	for r, err := range h.Records(0) {
		if err != nil {
			return next, err
		}
		ws, ss, _ := strings.Cut(string(r.Key), "/")
		w, err1 := strconv.Atoi(ws)
		seq, err2 := strconv.ParseInt(ss, 10, 64)
		switch {
		case r.Offset != offset:
			return next, fmt.Errorf("%s: record %d follows %d", h.Name(), r.Offset, offset-1)
		case err1 != nil || err2 != nil || w < 0 || w >= writers:
			return next, fmt.Errorf("%s: record %d has key %q", h.Name(), r.Offset, r.Key)
		case seq != next[w]:
			return next, fmt.Errorf("%s: record %d is number %d of writer %d; want %d", h.Name(), r.Offset, seq, w, next[w])
		case len(r.Value) < 4 || crc32.ChecksumIEEE(r.Value[4:]) != binary.BigEndian.Uint32(r.Value):
			return next, fmt.Errorf("%s: record %d, number %d of writer %d, has a wrong value", h.Name(), r.Offset, seq, w)
		}
		next[w]++
		offset++
	}
	for w := range next {
		if a := acked(w); next[w] < a {
			return next, fmt.Errorf("%s: %d records of writer %d; %d were acknowledged", h.Name(), next[w], w, a)
		}
	}
	return next, nil
}

// TestChaosNodes kills, stops and starts nodes at random under producers that append
// exactly once and readers that follow: nothing acknowledged is lost, nothing is
// there twice or out of order, what was read is read again, and in the end all
// replicas are equal, byte by byte.
func TestChaosNodes(t *testing.T) {
	rng := chaosRand(t)
	kinds := []struct {
		mode     tidemark.SyncMode
		recovery tidemark.Recovery
	}{{tidemark.Never, tidemark.Refetch}, {tidemark.Always, tidemark.Adopt}, {tidemark.Interval, tidemark.Refetch}}
	for _, kind := range kinds {
		t.Run(fmt.Sprintf("%v,%v", kind.mode, kind.recovery), func(t *testing.T) {
			dir := t.TempDir()
			c := openCluster(t, dir, chaosOptions(kind.mode, kind.recovery))
			createTopic(t, c, "t", tidemark.TopicOptions{Partitions: chaosPartitions})
			handles := make([]*tidemark.Partition, chaosPartitions)
			for i := range handles {
				handles[i], _ = c.Partition("t", i)
			}
			ctx, stop := context.WithCancel(context.Background())
			reading, stopReading := context.WithCancel(context.Background())
			defer stop()
			defer stopReading()
			const writers = 3
			var ws []*chaosWriter
			var wg, readers sync.WaitGroup
			for id := range writers {
				w := &chaosWriter{id: id, h: handles, next: make([]int64, len(handles))}
				for range handles {
					w.acked = append(w.acked, new(atomic.Int64))
				}
				ws = append(ws, w)
				rng := rand.New(rand.NewPCG(rng.Uint64(), 1))
				wg.Go(func() {
					if err := w.run(ctx, c, rng); err != nil {
						t.Error(err)
						stop()
					}
				})
			}
			read := make([][]string, len(handles)) // what a consumer was given, by offset
			count := make([]atomic.Int64, len(handles))
			for i, h := range handles {
				readers.Go(func() {
					for r, err := range h.Tail(reading, 0) {
						if err != nil {
							if !errors.Is(err, context.Canceled) {
								t.Errorf("tail of %s: %v", h.Name(), err)
							}
							return
						}
						if r.Offset != int64(len(read[i])) {
							t.Errorf("tail of %s: offset %d; want %d", h.Name(), r.Offset, len(read[i]))
							return
						}
						read[i] = append(read[i], string(r.Key))
						count[i].Add(1)
					}
				})
			}
			tally := chaosOfNodes(t, ctx, c, rng, chaosFor(t, 2*time.Second))
			stop()
			for n := range chaosNodes {
				if !c.Node(n).Up() {
					if err := c.Start(within(t), n); err != nil {
						t.Fatal(err)
					}
				}
			}
			wg.Wait()
			for i, h := range handles {
				caughtUp(t, h)
				next, err := chaosAudit(t, h, writers, func(w int) int64 { return ws[w].acked[i].Load() })
				if err != nil {
					t.Error(err)
				}
				for w := range next {
					if next[w] != ws[w].next[i] {
						t.Errorf("%s: %d records of writer %d; it sent %d", h.Name(), next[w], w, ws[w].next[i])
					}
				}
			}
			eventually(t, "everything is read", func() bool {
				for i, h := range handles {
					if hw, err := h.HighWatermark(); err != nil || count[i].Load() < hw && !t.Failed() {
						return false
					}
				}
				return true
			})
			stopReading()
			readers.Wait()
			for i, h := range handles {
				for r, err := range h.Records(0) {
					if err != nil {
						t.Fatal(err)
					}
					if int(r.Offset) >= len(read[i]) || read[i][r.Offset] != string(r.Key) {
						t.Fatalf("%s: record %d is %q; it was read as another", h.Name(), r.Offset, r.Key)
					}
				}
				t.Logf("%s: %d records, leader epoch %d; %v", h.Name(), len(read[i]), h.State().LeaderEpoch, tally)
			}
			sameLogs(t, dir, c, chaosNodes, "t-0", "t-1")
		})
	}
}

// chaosOfNodes kills, stops and starts nodes for a while.
func chaosOfNodes(t *testing.T, ctx context.Context, c *tidemark.Cluster, rng *rand.Rand, d time.Duration) map[string]int {
	tally := map[string]int{}
	for begin := time.Now(); time.Since(begin) < d && ctx.Err() == nil; {
		n := rng.IntN(chaosNodes)
		switch up := c.Node(n).Up(); {
		case up && rng.IntN(3) > 0:
			tally["kill"]++
			if err := c.Kill(n); err != nil {
				t.Error(err)
			}
		case up:
			tally["stop"]++
			ctx, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
			if err := c.Stop(ctx, n); err != nil {
				t.Error(err)
			}
			cancel()
		default:
			tally["start"]++
			if err := c.Start(context.Background(), n); err != nil {
				t.Error(err)
			}
		}
		time.Sleep(time.Duration(rng.IntN(400)) * time.Millisecond)
	}
	return tally
}

// TestChaosChild is the program that TestChaosProcess kills.
func TestChaosChild(t *testing.T) {
	arg := os.Getenv(chaosEnv)
	if arg == "" {
		t.Skip("run by TestChaosProcess")
	}
	var mode int
	var seed uint64
	if _, err := fmt.Sscan(arg, &mode, &seed); err != nil {
		t.Fatal(err)
	}
	rng := rand.New(rand.NewPCG(seed, 0))
	b, err := mapBoard("board")
	if err != nil {
		t.Fatal(err)
	}
	b.opened.Add(1)
	c := openCluster(t, "cluster", chaosOptions(tidemark.SyncMode(mode), tidemark.Recovery(seed%2)))
	if len(c.Topics()) == 0 {
		createTopic(t, c, "t", tidemark.TopicOptions{})
	}
	h, err := c.Partition("t", 0)
	if err != nil {
		t.Fatal(err)
	}
	next, err := chaosAudit(t, h, killWriters, func(w int) int64 { return b.acked[w].Load() })
	if err != nil {
		t.Fatal(err)
	}
	b.ready.Add(1)
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	var wg sync.WaitGroup
	for id := range killWriters {
		// What is in the log and was not acknowledged stays: the audit saw it.
		w := &chaosWriter{id: id, h: []*tidemark.Partition{h}, next: next[id : id+1], acked: []*atomic.Int64{&b.acked[id]}}
		rng := rand.New(rand.NewPCG(rng.Uint64(), 1))
		wg.Go(func() {
			if err := w.run(ctx, c, rng); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Go(func() { chaosOfNodes(t, ctx, c, rng, 20*time.Second) })
	wg.Wait()
}

// TestChaosProcess kills a process with a cluster in it with signal 9 at random
// moments, while nodes inside it are killed and started too, and opens the same
// directories again: what was acknowledged is there, once and in order, and in the
// end all replicas are equal.
func TestChaosProcess(t *testing.T) {
	if testing.Short() {
		t.Skip("starts processes")
	}
	rng := chaosRand(t)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for _, mode := range []tidemark.SyncMode{tidemark.Never, tidemark.Always} {
		t.Run(mode.String(), func(t *testing.T) {
			dir := t.TempDir()
			b, err := mapBoard(filepath.Join(dir, "board"))
			if err != nil {
				t.Fatal(err)
			}
			lives := 0
			for begin := time.Now(); lives < 3 || time.Since(begin) < chaosFor(t, 2*time.Second); lives++ {
				var out bytes.Buffer
				cmd := exec.Command(self, "-test.run", "^TestChaosChild$", "-test.timeout", "5m")
				cmd.Dir, cmd.Stdout, cmd.Stderr = dir, &out, &out
				cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%d %d", chaosEnv, mode, rng.Uint64()))
				ready := b.ready.Load()
				if err := cmd.Start(); err != nil {
					t.Fatal(err)
				}
				done := make(chan error, 1)
				go func() { done <- cmd.Wait() }()
				kill := time.After(time.Duration(rng.IntN(600)) * time.Millisecond)
				if rng.IntN(4) > 0 { // else maybe while it opens
					for b.ready.Load() == ready && len(done) == 0 {
						time.Sleep(time.Millisecond)
					}
					kill = time.After(time.Duration(rng.IntN(800)) * time.Millisecond)
				}
				select {
				case err := <-done:
					t.Fatalf("the process ended by itself: %v\n%s", err, out.String())
				case <-kill:
				}
				cmd.Process.Kill()
				<-done
				if strings.Contains(out.String(), "FAIL") {
					t.Fatalf("life %d:\n%s", lives, out.String())
				}
			}
			c := openCluster(t, filepath.Join(dir, "cluster"), chaosOptions(mode, tidemark.Refetch))
			if len(c.Topics()) == 0 {
				t.Skip("never came to making a topic")
			}
			h, err := c.Partition("t", 0)
			if err != nil {
				t.Fatal(err)
			}
			caughtUp(t, h)
			if _, err := chaosAudit(t, h, killWriters, func(w int) int64 { return b.acked[w].Load() }); err != nil {
				t.Error(err)
			}
			hw, _ := h.HighWatermark()
			n := int64(0)
			for w := range killWriters {
				n += b.acked[w].Load()
			}
			t.Logf("%d lives, %d came up; %d records, %d acknowledged", lives, b.ready.Load(), hw, n)
			sameLogs(t, filepath.Join(dir, "cluster"), c, chaosNodes, "t-0")
		})
	}
}
