package tidemark_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/tidemark-log/tidemark"
)

// replicaOf returns the stats of a partition's replica on a node.
func replicaOf(h *tidemark.Partition, node int) tidemark.ReplicaStats {
	for _, r := range h.Stats().Replicas {
		if r.Node == node {
			return r
		}
	}
	return tidemark.ReplicaStats{}
}

// inSync waits until the ISR is these nodes.
func inSync(t testing.TB, h *tidemark.Partition, want ...int) {
	t.Helper()
	slices.Sort(want)
	eventually(t, fmt.Sprintf("in-sync replicas %v", want), func() bool {
		got := h.State().ISR
		slices.Sort(got)
		return slices.Equal(got, want)
	})
}

// caughtUp waits until all replicas are in sync and have and know of everything.
func caughtUp(t testing.TB, h *tidemark.Partition) {
	t.Helper()
	t.Helper()
	var s tidemark.PartitionStats
	defer func() {
		if t.Failed() || s.Leader < 0 {
			t.Logf("%+v", s)
		}
	}()
	eventually(t, "all replicas are in sync", func() bool {
		s = h.Stats()
		for _, r := range s.Replicas {
			if !r.Up || !r.InISR || r.Lag != 0 || r.Log.HighWatermark != s.HighWatermark || r.Log.LogEndOffset != s.HighWatermark {
				return false
			}
		}
		return len(s.Replicas) > 0
	})
}

// logBytes are the batches of a partition in a node's folder, of which nothing may
// be open.
func logBytes(t testing.TB, dir string, node int, name string) (b []byte) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, fmt.Sprintf("node-%d", node), name, "*.log"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no log of %s in node %d: %v", name, node, err)
	}
	slices.Sort(files)
	for _, f := range files {
		x, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		b = append(b, x...)
	}
	return b
}

// sameLogs closes the cluster and compares the logs of all nodes byte by byte.
func sameLogs(t testing.TB, dir string, c *tidemark.Cluster, nodes int, names ...string) {
	t.Helper()
	closeCluster(t, c)
	for _, name := range names {
		want := logBytes(t, dir, 0, name)
		for n := 1; n < nodes; n++ {
			if got := logBytes(t, dir, n, name); !bytes.Equal(got, want) {
				t.Errorf("%s: node %d has %d bytes, node 0 %d, or they differ", name, n, len(got), len(want))
			}
		}
	}
}

// TestStorySlowFollower: a follower that gets nothing leaves the ISR after the lag
// time, acks=all goes on without it, and it comes back once it has everything.
func TestStorySlowFollower(t *testing.T) {
	dir := t.TempDir()
	c := openCluster(t, dir, tidemark.ClusterOptions{LagMax: 200 * time.Millisecond, Log: tidemark.Options{Sync: tidemark.Never}})
	h := createTopic(t, c, "events", tidemark.TopicOptions{MinISR: 2})
	caughtUp(t, h)
	lead := h.State().Leader
	slow := (lead + 1) % 3
	c.Pause(slow, true)
	base := produce(t, h, tidemark.AcksAll, "without it") // waits for the shrink
	inSync(t, h, lead, (lead+2)%3)                        // the handle may hear of it after the ack
	if end := replicaOf(h, slow).Log.LogEndOffset; end > base {
		t.Errorf("the slow follower has %d records", end)
	}
	produce(t, h, tidemark.AcksAll, "goes on")
	c.Pause(slow, false)
	inSync(t, h, 0, 1, 2)
	caughtUp(t, h)
	sameLogs(t, dir, c, 3, "events-0")
}

// TestStoryFailedFollower: a follower that was killed cuts its log to its high
// watermark, copies what is missing, and is in sync again from the high watermark on.
func TestStoryFailedFollower(t *testing.T) {
	for _, recovery := range []tidemark.Recovery{tidemark.Refetch, tidemark.Adopt} {
		t.Run(recovery.String(), func(t *testing.T) {
			dir := t.TempDir()
			c := openCluster(t, dir, tidemark.ClusterOptions{Recovery: recovery, Log: tidemark.Options{Sync: tidemark.Never}})
			h := createTopic(t, c, "events", tidemark.TopicOptions{MinISR: 2})
			for i := range 20 {
				produce(t, h, tidemark.AcksAll, fmt.Sprint(i))
			}
			dead := (h.State().Leader + 1) % 3
			eventually(t, "everything is copied", func() bool { return replicaOf(h, dead).Log.LogEndOffset == 20 })
			hw := replicaOf(h, dead).Log.HighWatermark
			if err := c.Kill(dead); err != nil {
				t.Fatal(err)
			}
			for i := range 20 { // the first waits until its session has ended
				produce(t, h, tidemark.AcksAll, fmt.Sprint(20+i))
			}
			eventually(t, "the dead node is out of sync", func() bool { return !slices.Contains(h.State().ISR, dead) })
			if err := c.Start(within(t), dead); err != nil {
				t.Fatal(err)
			}
			caughtUp(t, h)
			r := replicaOf(h, dead)
			held := 20 - hw // what lay above its high watermark
			if recovery == tidemark.Refetch && (r.Refetched != held || r.Copied != 20+held) {
				t.Errorf("refetched %d and copied %d records; want %d and %d", r.Refetched, r.Copied, held, 20+held)
			}
			if recovery == tidemark.Adopt && (r.Adopted != held || r.Copied != 20) {
				t.Errorf("adopted %d and copied %d records; want %d and 20", r.Adopted, r.Copied, held)
			}
			if got := values(t, h); len(got) != 40 {
				t.Errorf("%d records; want 40", len(got))
			}
			sameLogs(t, dir, c, 3, "events-0")
		})
	}
}

// TestStoryFailedLeader: one of the ISR leads in the place of a killed leader, and
// what that had alone is cut when it comes back.
func TestStoryFailedLeader(t *testing.T) {
	dir := t.TempDir()
	c := openCluster(t, dir, tidemark.ClusterOptions{Log: tidemark.Options{Sync: tidemark.Never}})
	h := createTopic(t, c, "events", tidemark.TopicOptions{MinISR: 2})
	var want []string
	add := func(v string) { produce(t, h, tidemark.AcksAll, v); want = append(want, v) }
	for i := range 10 {
		add(fmt.Sprint(i))
	}
	old := h.State()
	for n := range 3 {
		if n != old.Leader {
			c.Pause(n, true)
		}
	}
	for i := range 3 { // on the leader only
		produce(t, h, tidemark.AcksLeader, fmt.Sprint("lost", i))
	}
	if err := c.Kill(old.Leader); err != nil {
		t.Fatal(err)
	}
	for n := range 3 {
		if n != old.Leader {
			c.Pause(n, false)
		}
	}
	add("after") // waits for the new leader
	now := h.State()
	if now.Leader == old.Leader || !slices.Contains(old.ISR, now.Leader) || now.LeaderEpoch <= old.LeaderEpoch {
		t.Errorf("%+v follows %+v", now, old)
	}
	if err := c.Start(within(t), old.Leader); err != nil {
		t.Fatal(err)
	}
	caughtUp(t, h)
	if r := replicaOf(h, old.Leader); r.Cut+r.Refetched < 3 {
		t.Errorf("the old leader cut %d and refetched %d records; it had 3 alone", r.Cut, r.Refetched)
	}
	if got := values(t, h); !slices.Equal(got, want) {
		t.Errorf("%q; want %q", got, want)
	}
	sameLogs(t, dir, c, 3, "events-0")
}

// TestStoryAckLost: the leader dies when the batch is on all replicas and the ack is
// not yet given. Who appends it again has it twice, unless it is idempotent.
func TestStoryAckLost(t *testing.T) {
	for _, plain := range []bool{true, false} {
		t.Run(fmt.Sprintf("plain=%v", plain), func(t *testing.T) {
			dir := t.TempDir()
			c := openCluster(t, dir, tidemark.ClusterOptions{Log: tidemark.Options{Sync: tidemark.Never}})
			h := createTopic(t, c, "events", tidemark.TopicOptions{Replicas: [][]int32{{0, 1, 2}}})
			p, err := c.NewProducer(tidemark.ProducerOptions{Plain: plain})
			if err != nil {
				t.Fatal(err)
			}
			defer p.Close()
			send := func(v string) tidemark.Delivery {
				d, err := p.ProduceAsync(within(t), h, tidemark.Record{Value: []byte(v)})
				if err != nil {
					t.Fatal(err)
				}
				return d
			}
			if base, err := send("first").Wait(within(t)); err != nil || base != 0 {
				t.Fatal(base, err)
			}
			// Node 1 copies the batch and will lead; node 2 does not, and so no ack is given.
			c.Pause(2, true)
			d := send("second")
			eventually(t, "it is copied", func() bool { return replicaOf(h, 1).Log.LogEndOffset == 2 })
			if err := c.Kill(0); err != nil {
				t.Fatal(err)
			}
			eventually(t, "node 1 leads", func() bool { return h.State().Leader == 1 })
			c.Pause(2, false)
			base, err := d.Wait(within(t))
			want := []string{"first", "second"}
			if plain {
				want = append(want, "second")
			}
			if err != nil || base != int64(len(want)-1) {
				t.Errorf("acknowledged at %d, %v; want %d", base, err, len(want)-1)
			}
			if got := values(t, h); !slices.Equal(got, want) {
				t.Errorf("%q; want %q", got, want)
			}
			if err := c.Start(within(t), 0); err != nil {
				t.Fatal(err)
			}
			caughtUp(t, h)
			sameLogs(t, dir, c, 3, "events-0")
		})
	}
}

// TestStoryNewProducerNewID: a producer that begins again has another id: what it
// sends again is not known to be a repetition. Partitions tell batches apart by
// themselves.
func TestStoryNewProducerNewID(t *testing.T) {
	c := openCluster(t, t.TempDir(), tidemark.ClusterOptions{Log: tidemark.Options{Sync: tidemark.Never}})
	createTopic(t, c, "events", tidemark.TopicOptions{Partitions: 2})
	var ids []int64
	for range 2 {
		p, err := c.NewProducer(tidemark.ProducerOptions{})
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, p.ID())
		for part := range 2 {
			h, err := c.Partition("events", part)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := p.Produce(within(t), h, tidemark.Record{Value: []byte("x")}); err != nil {
				t.Fatal(err)
			}
		}
		if err := p.Close(); err != nil {
			t.Fatal(err)
		}
		if _, err := p.Produce(within(t), nil, tidemark.Record{}); !errors.Is(err, tidemark.ErrClosed) {
			t.Errorf("produce after Close: %v", err)
		}
	}
	if ids[0] == ids[1] || ids[0] < 0 {
		t.Errorf("producers %v", ids)
	}
	for part := range 2 {
		h, _ := c.Partition("events", part)
		if got := values(t, h); len(got) != 2 {
			t.Errorf("partition %d has %q; each producer sent one", part, got)
		}
	}
}

// TestStoryStop: a leader that is stopped in order hands over what it has: nothing
// acknowledged by it alone is lost, and nobody cuts.
func TestStoryStop(t *testing.T) {
	dir := t.TempDir()
	c := openCluster(t, dir, tidemark.ClusterOptions{Log: tidemark.Options{Sync: tidemark.Never}})
	h := createTopic(t, c, "events", tidemark.TopicOptions{MinISR: 2})
	for round := range 6 {
		for i := range 20 {
			produce(t, h, tidemark.AcksLeader, fmt.Sprint(round, i))
		}
		lead := h.State()
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		if err := c.Stop(ctx, lead.Leader); err != nil {
			t.Fatal(err)
		}
		cancel()
		eventually(t, "another leads", func() bool { return h.State().Leader != lead.Leader })
		produce(t, h, tidemark.AcksAll, "on")
		if err := c.Start(within(t), lead.Leader); err != nil {
			t.Fatal(err)
		}
		caughtUp(t, h)
		for _, r := range h.Stats().Replicas {
			if r.Cut > 0 {
				t.Errorf("round %d: node %d cut %d records", round, r.Node, r.Cut)
			}
		}
	}
	if got := values(t, h); len(got) != 6*21 {
		t.Errorf("%d records; want %d", len(got), 6*21)
	}
	sameLogs(t, dir, c, 3, "events-0")
}
