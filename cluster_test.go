package tidemark_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"testing"
	"time"

	"github.com/tidemark-log/tidemark"
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

// within is a context that ends after what a busy machine may take.
func within(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
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
