package tidemark_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/tidemark-log/tidemark"
)

// forever is a wait that nobody in a test comes to the end of.
const forever = 10 * time.Minute

func mustProduce(t *testing.T, h *tidemark.Partition, acks tidemark.Acks, n int64) {
	t.Helper()
	if base, err := h.Produce(within(t), acks, rec(n, 10)); err != nil || base != n {
		t.Fatalf("append %d: at %d, %v", n, base, err)
	}
}

// TestHandoverPassesOverWhoIsDown: a node that was killed, and that the coordinator takes
// for alive, is not waited for by a leader that stops, nor by one that is to give its
// lead to it.
func TestHandoverPassesOverWhoIsDown(t *testing.T) {
	c := openCluster(t, t.TempDir(), tidemark.ClusterOptions{SessionTimeout: forever, LagMax: forever, Log: tidemark.Options{Sync: tidemark.Never}})
	h := createTopic(t, c, "events", tidemark.TopicOptions{Replicas: [][]int32{{1, 0, 2}}})
	mustProduce(t, h, tidemark.AcksAll, 0)
	if err := c.Stop(within(t), 1); err != nil {
		t.Fatal(err)
	}
	if err := c.Start(within(t), 1); err != nil {
		t.Fatal(err)
	}
	caughtUp(t, h)
	if err := c.Kill(1); err != nil {
		t.Fatal(err)
	}
	mustProduce(t, h, tidemark.AcksLeader, 1)
	if err := c.ElectPreferred(within(t), "events", 0); !errors.Is(err, tidemark.IneligibleReplica) {
		t.Errorf("elect who is down: %v", err)
	}
	mustProduce(t, h, tidemark.AcksLeader, 2)
	leader := h.State().Leader
	if err := c.Stop(within(t), leader); err != nil {
		t.Fatal(err)
	}
	mustProduce(t, h, tidemark.AcksLeader, 3)
	if now := h.State().Leader; now != 2-leader {
		t.Errorf("node %d leads; want %d", now, 2-leader)
	}
}

// TestElectPreferredLeadsMeanwhile: while the preferred replica copies what it lacks the
// leader takes appends.
func TestElectPreferredLeadsMeanwhile(t *testing.T) {
	c := openCluster(t, t.TempDir(), tidemark.ClusterOptions{LagMax: forever, Log: tidemark.Options{Sync: tidemark.Never}})
	h := createTopic(t, c, "events", tidemark.TopicOptions{Replicas: [][]int32{{1, 0, 2}}})
	if err := c.Stop(within(t), 1); err != nil {
		t.Fatal(err)
	}
	if err := c.Start(within(t), 1); err != nil {
		t.Fatal(err)
	}
	caughtUp(t, h)
	c.Pause(1, true)
	mustProduce(t, h, tidemark.AcksLeader, 0)
	elected := make(chan error, 1)
	ctx := within(t)
	go func() { elected <- c.ElectPreferred(ctx, "events", 0) }()
	for n := range int64(1000) {
		mustProduce(t, h, tidemark.AcksLeader, 1+n)
	}
	select {
	case err := <-elected:
		t.Fatalf("elected before it has everything: %v", err)
	default:
	}
	c.Pause(1, false)
	if err := <-elected; err != nil {
		t.Fatal(err)
	}
	mustProduce(t, h, tidemark.AcksAll, 1001)
	if s := h.State(); s.Leader != 1 {
		t.Errorf("node %d leads", s.Leader)
	}
}

// TestKillBesideStop: a kill does not wait for whom a stop waits for.
func TestKillBesideStop(t *testing.T) {
	c := openCluster(t, t.TempDir(), tidemark.ClusterOptions{SessionTimeout: time.Second, LagMax: forever, Log: tidemark.Options{Sync: tidemark.Never}})
	h := createTopic(t, c, "events", tidemark.TopicOptions{Replicas: [][]int32{{0, 1, 2}}})
	mustProduce(t, h, tidemark.AcksAll, 0)
	caughtUp(t, h)
	c.Pause(1, true)
	c.Pause(2, true)
	mustProduce(t, h, tidemark.AcksLeader, 1)
	stopped := make(chan error, 1)
	go func() { stopped <- c.Stop(t.Context(), 0) }()
	eventually(t, "the node stops", func() bool { return c.Stopping(0) })
	if err := c.Kill(0); err != nil {
		t.Errorf("kill: %v", err)
	}
	if err := <-stopped; err == nil {
		t.Error("stopped in order")
	}
	c.Pause(1, false)
	c.Pause(2, false)
	if _, err := h.Produce(within(t), tidemark.AcksAll, rec(9, 10)); err != nil {
		t.Error(err)
	}
}

// TestStartRefused: a log that the system does not let us open, for a reason that may
// pass, is not given up: its node does not start until it does.
func TestStartRefused(t *testing.T) {
	dir := t.TempDir()
	c := openCluster(t, dir, tidemark.ClusterOptions{SessionTimeout: 200 * time.Millisecond})
	h := createTopic(t, c, "events", tidemark.TopicOptions{Replicas: [][]int32{{2}}})
	mustProduce(t, h, tidemark.AcksAll, 0)
	if err := c.Stop(within(t), 2); err != nil {
		t.Fatal(err)
	}
	meta := filepath.Join(dir, "node-2", "events-0", "partition.metadata")
	if err := errors.Join(os.Rename(meta, meta+".away"), os.Mkdir(meta, 0o700)); err != nil {
		t.Fatal(err)
	}
	if err := c.Start(within(t), 2); !errors.Is(err, syscall.EISDIR) {
		t.Fatalf("start: %v; want what the system says", err)
	}
	if err := errors.Join(os.Remove(meta), os.Rename(meta+".away", meta)); err != nil {
		t.Fatal(err)
	}
	if err := c.Start(within(t), 2); err != nil {
		t.Fatal(err)
	}
	mustProduce(t, h, tidemark.AcksAll, 1)
}

// TestStartBesideTopics is for the race detector: a node starts while topics come and go.
func TestStartBesideTopics(t *testing.T) {
	c := openCluster(t, t.TempDir(), tidemark.ClusterOptions{DeleteDelay: -1, Log: tidemark.Options{Sync: tidemark.Never}})
	for i := range 5 {
		if err := c.Stop(within(t), 2); err != nil {
			t.Fatal(err)
		}
		for j := range 5 {
			createTopic(t, c, fmt.Sprintf("x-%d-%d", i, j), tidemark.TopicOptions{Replicas: [][]int32{{0, 1}}})
		}
		var wg sync.WaitGroup
		wg.Go(func() {
			if err := c.Start(within(t), 2); err != nil {
				t.Error(err)
			}
		})
		wg.Go(func() {
			for j := range 20 {
				name := fmt.Sprintf("y-%d-%d", i, j)
				if c.CreateTopic(within(t), name, tidemark.TopicOptions{}) != nil {
					continue // two nodes are up
				}
				if err := c.DeleteTopic(name); err != nil {
					t.Error(err)
				}
			}
		})
		wg.Wait()
	}
}

// TestNothingSent: what was refused at once has no answer to wait for, and what is wrong
// with options is said at once.
func TestNothingSent(t *testing.T) {
	c := openCluster(t, t.TempDir(), tidemark.ClusterOptions{})
	h := createTopic(t, c, "events", tidemark.TopicOptions{})
	p, err := h.ProduceAsync(within(t), tidemark.AcksAll)
	if err == nil {
		t.Error("appended nothing")
	}
	if _, err := p.Wait(within(t)); err == nil {
		t.Error("nothing is there")
	}
	if p, err = h.ProduceAsync(within(t), tidemark.AcksNone, rec(0, 1)); err != nil {
		t.Fatal(err)
	}
	if base, err := p.Wait(within(t)); base != -1 || err != nil {
		t.Errorf("acks 0: %d, %v", base, err)
	}
	if _, err := c.NewProducer(tidemark.ProducerOptions{Codec: 99}); err == nil {
		t.Error("a producer of an unknown codec")
	}
	t.Chdir(t.TempDir())
	if c, err := tidemark.OpenCluster("", tidemark.ClusterOptions{}); err == nil {
		t.Error("a cluster in no directory", c.Close())
	}
	if f, err := tidemark.OpenFolder("", tidemark.FolderOptions{}); err == nil {
		t.Error("a folder of no directory", f.Close())
	}
	if _, err := tidemark.Open("", tidemark.Options{}); err == nil {
		t.Error("a log in no directory")
	}
	if left, err := os.ReadDir("."); len(left) > 0 || err != nil {
		t.Errorf("left behind: %v, %v", left, err)
	}
}
