package tidemark_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/tidemark-log/tidemark"
	"github.com/tidemark-log/tidemark/partition"
)

// quick are options under which what takes seconds takes milliseconds.
func quick(o tidemark.ClusterOptions) tidemark.ClusterOptions {
	if o.SessionTimeout == 0 {
		o.SessionTimeout = time.Second
	}
	if o.FetchBackoff == 0 {
		o.FetchBackoff = 20 * time.Millisecond
	}
	if o.Log.SegmentBytes == 0 {
		o.Log.SegmentBytes = 4 << 20
	}
	if os.Getenv("TIDEMARK_LOG") != "" {
		o.Logger = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	return o
}

func openCluster(t testing.TB, dir string, o tidemark.ClusterOptions) *tidemark.Cluster {
	t.Helper()
	c, err := tidemark.OpenCluster(dir, quick(o))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func closeCluster(t testing.TB, c *tidemark.Cluster) {
	t.Helper()
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
}

// within is a context that ends after what a busy machine may take, stopped processes included.
func within(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func createTopic(t testing.TB, c *tidemark.Cluster, name string, o tidemark.TopicOptions) *tidemark.Partition {
	t.Helper()
	if err := c.CreateTopic(within(t), name, o); err != nil {
		t.Fatal(err)
	}
	h, err := c.Partition(name, 0)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func produce(t testing.TB, h *tidemark.Partition, acks tidemark.Acks, value string) int64 {
	t.Helper()
	base, err := h.Produce(within(t), acks, tidemark.Record{Value: []byte(value)})
	if err != nil {
		t.Fatalf("produce %q: %v", value, err)
	}
	return base
}

// values reads all there is.
func values(t testing.TB, h *tidemark.Partition) (list []string) {
	t.Helper()
	for rec, err := range h.Records(0) {
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, string(rec.Value))
	}
	return list
}

// TestClusterAlone: one node leads itself, over restarts in order and not.
func TestClusterAlone(t *testing.T) {
	for _, mode := range []tidemark.SyncMode{tidemark.Always, tidemark.Never} {
		t.Run(mode.String(), func(t *testing.T) {
			dir := t.TempDir()
			o := tidemark.ClusterOptions{Nodes: 1, Log: tidemark.Options{Sync: mode}}
			c := openCluster(t, dir, o)
			h := createTopic(t, c, "events", tidemark.TopicOptions{})
			var want []string
			for i := range 10 {
				for _, acks := range []tidemark.Acks{tidemark.AcksAll, tidemark.AcksLeader, tidemark.AcksNone} {
					v := fmt.Sprint(i, acks)
					if base := produce(t, h, acks, v); acks != tidemark.AcksNone && base != int64(len(want)) {
						t.Errorf("%s is at %d; want %d", v, base, len(want))
					}
					want = append(want, v)
				}
			}
			check := func(when string) {
				t.Helper()
				eventually(t, when, func() bool { return len(values(t, h)) >= len(want) })
				if got := values(t, h); fmt.Sprint(got) != fmt.Sprint(want) {
					t.Errorf("%s: %q; want %q", when, got, want)
				}
			}
			check("written")
			if err := c.Kill(0); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
			defer cancel()
			if _, err := h.Produce(ctx, tidemark.AcksAll, tidemark.Record{}); !errors.Is(err, tidemark.NotLeader) || !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("produce without a leader: %v", err)
			}
			if err := c.Start(within(t), 0); err != nil {
				t.Fatal(err)
			}
			want = append(want, "killed")
			produce(t, h, tidemark.AcksAll, "killed")
			check("killed and started")
			if err := c.Stop(within(t), 0); err != nil {
				t.Fatal(err)
			}
			if err := c.Start(within(t), 0); err != nil {
				t.Fatal(err)
			}
			want = append(want, "stopped")
			produce(t, h, tidemark.AcksAll, "stopped")
			check("stopped and started")
			closeCluster(t, c)
			c = openCluster(t, dir, o)
			if err := c.CreateTopic(within(t), "events", tidemark.TopicOptions{}); !errors.Is(err, tidemark.ErrTopicExists) {
				t.Errorf("create a topic that is there: %v", err)
			}
			h, _ = c.Partition("events", 0)
			want = append(want, "opened")
			produce(t, h, tidemark.AcksAll, "opened")
			check("closed and opened")
			if err := c.DeleteTopic("events"); err != nil {
				t.Fatal(err)
			}
			if _, err := h.Produce(within(t), tidemark.AcksAll, tidemark.Record{}); !errors.Is(err, tidemark.ErrNoPartition) {
				t.Errorf("produce to a deleted topic: %v", err)
			}
			h = createTopic(t, c, "events", tidemark.TopicOptions{})
			want = []string{"again"}
			produce(t, h, tidemark.AcksAll, "again")
			check("deleted and made again")
		})
	}
}

// TestC094_IllegalAcks: what is none of the three is refused, and nothing appended.
func TestC094_IllegalAcks(t *testing.T) {
	c := openCluster(t, t.TempDir(), tidemark.ClusterOptions{Nodes: 1})
	h := createTopic(t, c, "events", tidemark.TopicOptions{})
	for _, acks := range []tidemark.Acks{-1, 3, 32767} {
		if _, err := h.Produce(within(t), acks, tidemark.Record{}); !errors.Is(err, partition.InvalidRequiredAcks) {
			t.Errorf("acks %d: %v; want INVALID_REQUIRED_ACKS", int(acks), err)
		}
		if _, err := c.NewProducer(tidemark.ProducerOptions{Acks: acks}); err == nil {
			t.Errorf("a producer with acks %d", int(acks))
		}
	}
	if end := h.Stats().Replicas[0].Log.LogEndOffset; end != 0 {
		t.Errorf("log ends at %d; want 0", end)
	}
}

// TestC092_AcksAll: min ISR is not what acks=all waits for, all of the ISR is.
func TestC092_AcksAll(t *testing.T) {
	c := openCluster(t, t.TempDir(), tidemark.ClusterOptions{Log: tidemark.Options{Sync: tidemark.Never}})
	h := createTopic(t, c, "events", tidemark.TopicOptions{Replicas: [][]int32{{0, 1, 2}}, MinISR: 2})
	caughtUp(t, h)
	c.Pause(2, true)
	a, err := h.ProduceAsync(within(t), tidemark.AcksAll, rec(0, 10))
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "two have it", func() bool { return replicaOf(h, 1).Log.LogEndOffset == 1 })
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	if _, err := a.Wait(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("acknowledged with two of three: %v", err)
	}
	if n := len(values(t, h)); n > 0 {
		t.Errorf("%d records can be read before all have them", n)
	}
	c.Pause(2, false)
	produce(t, h, tidemark.AcksAll, "x")
	for n := range 3 {
		if end := replicaOf(h, n).Log.LogEndOffset; end != 2 {
			t.Errorf("node %d has %d records; want 2", n, end)
		}
	}
	caughtUp(t, h) // and each of them hears that they are committed
}

// TestC097_WaitingReader: a reader that waits gets what comes, and a change of the
// leader does not end it.
func TestC097_WaitingReader(t *testing.T) {
	c := openCluster(t, t.TempDir(), tidemark.ClusterOptions{Log: tidemark.Options{Sync: tidemark.Never}})
	h := createTopic(t, c, "events", tidemark.TopicOptions{})
	caughtUp(t, h)
	got := make(chan string, 10)
	ctx, cancel := context.WithCancel(within(t))
	var wg sync.WaitGroup
	wg.Go(func() {
		for r, err := range h.Tail(ctx, 0) {
			if err != nil {
				if !errors.Is(err, context.Canceled) {
					t.Error(err)
				}
				close(got)
				return
			}
			got <- string(r.Value)
		}
	})
	produce(t, h, tidemark.AcksAll, "first")
	if v := <-got; v != "first" {
		t.Errorf("read %q", v)
	}
	lead := h.State().Leader
	if err := c.Stop(within(t), lead); err != nil {
		t.Fatal(err)
	}
	produce(t, h, tidemark.AcksAll, "second")
	if v := <-got; v != "second" {
		t.Errorf("read %q", v)
	}
	cancel()
	wg.Wait()
	if v, open := <-got; open {
		t.Errorf("read %q at the end", v)
	}
}

// TestC098_FetchesAreBounded: a follower does not fetch for each move of the high
// watermark, nor while nothing comes.
func TestC098_FetchesAreBounded(t *testing.T) {
	c := openCluster(t, t.TempDir(), tidemark.ClusterOptions{Log: tidemark.Options{Sync: tidemark.Never}})
	h := createTopic(t, c, "events", tidemark.TopicOptions{})
	caughtUp(t, h)
	before := h.Stats().Leading.Fetches
	const n = 100
	for i := range n {
		produce(t, h, tidemark.AcksAll, fmt.Sprint(i))
	}
	caughtUp(t, h)
	time.Sleep(20 * time.Millisecond)
	// Of each of the two: one that brings the record and one that is parked again, and
	// now and then one for the high watermark alone.
	if got := h.Stats().Leading.Fetches - before; got > 2*2*n+50 {
		t.Errorf("%d fetches for %d records", got, n)
	}
}

// TestC113_PartitionsApart: one producer, many partitions, leaders that move: no
// batch is refused, and each is there once and in order.
func TestC113_PartitionsApart(t *testing.T) {
	c := openCluster(t, t.TempDir(), tidemark.ClusterOptions{Log: tidemark.Options{Sync: tidemark.Never}})
	const parts, rounds = 12, 30
	createTopic(t, c, "events", tidemark.TopicOptions{Partitions: parts})
	p, err := c.NewProducer(tidemark.ProducerOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	var out []tidemark.Delivery
	noneRefused := func() {
		t.Helper()
		for i := range parts {
			h, _ := c.Partition("events", i)
			for _, r := range h.Stats().Replicas {
				if n := r.Log.Producers.Refused; n > 0 {
					t.Errorf("partition %d, node %d: %d batches refused", i, r.Node, n)
				}
			}
		}
	}
	for round := range rounds {
		for i := range parts {
			h, _ := c.Partition("events", i)
			d, err := p.ProduceAsync(within(t), h, tidemark.Record{Value: fmt.Append(nil, round)})
			if err != nil {
				t.Fatal(err)
			}
			out = append(out, d)
		}
		if n := round / 10; round%10 == 5 {
			noneRefused() // a node that was stopped begins to count anew
			if err := c.Stop(within(t), n); err != nil {
				t.Fatal(err)
			}
			if err := c.Start(within(t), n); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, d := range out {
		if _, err := d.Wait(within(t)); err != nil {
			t.Fatal(err)
		}
	}
	noneRefused()
	for i := range parts {
		h, _ := c.Partition("events", i)
		settle(t, h)
		for n, v := range values(t, h) {
			if v != fmt.Sprint(n) {
				t.Fatalf("partition %d: record %d is %s", i, n, v)
			}
		}
		if hw, err := h.HighWatermark(); err != nil || hw != rounds {
			t.Errorf("partition %d: high watermark %d, %v; want %d", i, hw, err, rounds)
		}
	}
}

// settle waits until a leader knows what is committed.
func settle(t testing.TB, h *tidemark.Partition) {
	t.Helper()
	eventually(t, "the leader knows what is committed", func() bool {
		_, err := h.HighWatermark()
		return err == nil
	})
}

// TestClusterTooFew: below min ISR acks=all is refused and changes nothing, and what
// others append is not shown until there are enough again.
func TestClusterTooFew(t *testing.T) {
	c := openCluster(t, t.TempDir(), tidemark.ClusterOptions{Log: tidemark.Options{Sync: tidemark.Never}})
	h := createTopic(t, c, "events", tidemark.TopicOptions{Replicas: [][]int32{{0, 1, 2}}, MinISR: 2})
	produce(t, h, tidemark.AcksAll, "first")
	for _, n := range []int{1, 2} {
		if err := c.Stop(within(t), n); err != nil {
			t.Fatal(err)
		}
	}
	inSync(t, h, 0)
	eventually(t, "the leader knows it", func() bool {
		_, err := h.Produce(within(t), tidemark.AcksAll, rec(0, 10))
		return errors.Is(err, tidemark.NotEnoughReplicas)
	})
	base := produce(t, h, tidemark.AcksLeader, "alone")
	if got := values(t, h); len(got) > int(base) {
		t.Errorf("%q can be read", got)
	}
	if err := c.Start(within(t), 1); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it can be read", func() bool { return len(values(t, h)) == int(base)+1 })
	produce(t, h, tidemark.AcksAll, "last")
}

// TestClusterWithoutCoordinator: folders with partitions are not opened without what
// the coordinator knew of them, and stay as they are.
func TestClusterWithoutCoordinator(t *testing.T) {
	dir := t.TempDir()
	c := openCluster(t, dir, tidemark.ClusterOptions{})
	h := createTopic(t, c, "events", tidemark.TopicOptions{})
	produce(t, h, tidemark.AcksAll, "kept")
	closeCluster(t, c)
	name := filepath.Join(dir, "coordinator")
	if err := os.Rename(name, name+".away"); err != nil {
		t.Fatal(err)
	}
	if _, err := tidemark.OpenCluster(dir, tidemark.ClusterOptions{}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("opened without the coordinator's file: %v", err)
	}
	if err := os.WriteFile(name, []byte("{}"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := tidemark.OpenCluster(dir, tidemark.ClusterOptions{}); err == nil {
		t.Error("opened with a damaged file of the coordinator")
	}
	if err := os.Rename(name+".away", name); err != nil {
		t.Fatal(err)
	}
	c = openCluster(t, dir, tidemark.ClusterOptions{})
	if h, err := c.Partition("events", 0); err != nil {
		t.Error(err)
	} else if settle(t, h); len(values(t, h)) != 1 {
		t.Errorf("%q", values(t, h))
	}
	if _, err := tidemark.OpenCluster(dir, tidemark.ClusterOptions{}); !errors.Is(err, tidemark.ErrLocked) {
		t.Errorf("opened twice: %v", err)
	}
}

// TestClusterOptions: what is out of range is refused and changes nothing.
func TestClusterOptions(t *testing.T) {
	for _, o := range []tidemark.ClusterOptions{
		{Nodes: -1}, {LagMax: time.Millisecond}, {SessionTimeout: 1}, {FetchBytes: -1}, {FetchBackoff: 1}, {MaxWaiters: -1},
		{Recovery: 7}, {Log: tidemark.Options{ReadOnly: true}},
	} {
		dir := filepath.Join(t.TempDir(), "c")
		if _, err := tidemark.OpenCluster(dir, o); err == nil {
			t.Errorf("opened with %+v", o)
		}
		if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%+v left a directory", o)
		}
	}
	dir := t.TempDir()
	c := openCluster(t, dir, tidemark.ClusterOptions{})
	for name, o := range map[string]tidemark.TopicOptions{
		"a/b": {}, "": {}, "many": {ReplicationFactor: 4}, "none": {Partitions: -1}, "min": {MinISR: -1},
		"nobody": {Replicas: [][]int32{{}}}, "who": {Replicas: [][]int32{{0, 3}}}, "below": {Replicas: [][]int32{{-1}}},
		"twice": {Replicas: [][]int32{{1, 1}}}, "reads": {Log: &tidemark.Options{ReadOnly: true}},
		"small": {Log: &tidemark.Options{SegmentBytes: 1}},
	} {
		if err := c.CreateTopic(within(t), name, o); err == nil {
			t.Errorf("topic %q made with %+v", name, o)
		}
	}
	if err := c.DeleteTopic("none"); !errors.Is(err, tidemark.ErrNoTopic) {
		t.Errorf("delete: %v", err)
	}
	if got := c.Topics(); len(got) > 0 {
		t.Errorf("topics %q", got)
	}
	createTopic(t, c, "events", tidemark.TopicOptions{})
	if _, err := c.Partition("events", 1); !errors.Is(err, tidemark.ErrNoPartition) {
		t.Errorf("partition 1: %v", err)
	}
	closeCluster(t, c)
	if _, err := tidemark.OpenCluster(dir, tidemark.ClusterOptions{Nodes: 2}); err == nil {
		t.Error("opened with fewer nodes than have replicas")
	}
	openCluster(t, dir, tidemark.ClusterOptions{Nodes: 4})
}

// TestClusterClosed: every call after Close says so, and one that waits ends.
func TestClusterClosed(t *testing.T) {
	c := openCluster(t, t.TempDir(), tidemark.ClusterOptions{})
	h := createTopic(t, c, "events", tidemark.TopicOptions{})
	p, err := c.NewProducer(tidemark.ProducerOptions{})
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() {
		for _, err := range h.Tail(context.Background(), 0) {
			ended <- err
		}
	}()
	closeCluster(t, c)
	if err := <-ended; !errors.Is(err, tidemark.ErrClosed) {
		t.Errorf("Tail ended with %v", err)
	}
	ctx := within(t)
	for name, call := range map[string]func() error{
		"CreateTopic": func() error { return c.CreateTopic(ctx, "x", tidemark.TopicOptions{}) },
		"DeleteTopic": func() error { return c.DeleteTopic("events") },
		"Partition":   func() error { _, err := c.Partition("events", 0); return err },
		"Start":       func() error { return c.Start(ctx, 0) },
		"NewProducer": func() error { _, err := c.NewProducer(tidemark.ProducerOptions{}); return err },
		"Produce":     func() error { _, err := h.Produce(ctx, tidemark.AcksAll, rec(0, 10)); return err },
		"View":        func() error { _, err := h.View(0, 1); return err },
		"Latest":      func() error { _, err := h.HighWatermark(); return err },
		"Records": func() (err error) {
			for _, err = range h.Records(0) {
			}
			return err
		},
		"Tail": func() (err error) {
			for _, err = range h.Tail(ctx, 0) {
			}
			return err
		},
	} {
		if err := call(); !errors.Is(err, tidemark.ErrClosed) {
			t.Errorf("%s after Close: %v", name, err)
		}
	}
	for name, call := range map[string]func() error{"Stop": func() error { return c.Stop(ctx, 0) }, "Kill": func() error { return c.Kill(0) }} {
		if err := call(); !errors.Is(err, tidemark.ErrNodeDown) {
			t.Errorf("%s after Close: %v", name, err)
		}
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
	if s := h.Stats(); s.HighWatermark != -1 || c.Close() != nil {
		t.Errorf("after Close: %+v", s)
	}
}

// TestClusterNobodyBacksOff: who follows a leader before that has acted on its own
// record does not take that for an error, which would cost the first appends of a
// topic, and of a new leader, a whole backoff.
func TestClusterNobodyBacksOff(t *testing.T) {
	c := openCluster(t, t.TempDir(), tidemark.ClusterOptions{FetchBackoff: time.Hour, Log: tidemark.Options{Sync: tidemark.Never}})
	var list []*tidemark.Partition
	for i := range 10 {
		h := createTopic(t, c, fmt.Sprint("events-", i), tidemark.TopicOptions{})
		produce(t, h, tidemark.AcksAll, "new")
		list = append(list, h)
	}
	if err := c.Kill(0); err != nil {
		t.Fatal(err)
	}
	for _, h := range list {
		produce(t, h, tidemark.AcksAll, "another leads")
	}
	for _, h := range list {
		if got := values(t, h); fmt.Sprint(got) != "[new another leads]" {
			t.Errorf("%v has %q", h.Name(), got)
		}
	}
}
