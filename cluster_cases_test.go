package tidemark_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tidemark-log/tidemark"
	"github.com/tidemark-log/tidemark/record"
)

// TestC081_ReadsFromTheLeader: a reader is never sent to a follower, which would not have
// what it asks for: it gets all that is committed while one lags far behind, and while
// nobody leads it hears just that, at once.
func TestC081_ReadsFromTheLeader(t *testing.T) {
	c := openCluster(t, t.TempDir(), tidemark.ClusterOptions{LagMax: 100 * time.Millisecond, Log: tidemark.Options{Sync: tidemark.Never}})
	h := createTopic(t, c, "events", tidemark.TopicOptions{Replicas: [][]int32{{0, 1, 2}}, MinISR: 1})
	caughtUp(t, h)
	c.Pause(1, true)
	c.Pause(2, true)
	const n = 20
	for i := range n {
		produce(t, h, tidemark.AcksAll, fmt.Sprint(i)) // the first waits until they are out of the ISR
	}
	if end := replicaOf(h, 1).Log.LogEndOffset; end != 0 {
		t.Fatalf("the follower has %d records", end)
	}
	if got := values(t, h); len(got) != n {
		t.Errorf("%d records; want %d", len(got), n)
	}
	for offset, want := range map[int64]error{0: nil, n - 1: nil, n: nil, n + 1: tidemark.OffsetOutOfRange, -1: tidemark.OffsetOutOfRange} {
		v, err := h.View(offset, 1)
		if !errors.Is(err, want) || (err == nil && offset < n) != (len(v.Bytes) > 0) {
			t.Errorf("view at %d: %d bytes, %v", offset, len(v.Bytes), err)
		}
		v.Release()
	}
	if err := c.Kill(0); err != nil { // it alone had them
		t.Fatal(err)
	}
	for range 100 {
		for offset := range int64(n) {
			if _, err := h.View(offset, 1); !errors.Is(err, tidemark.NotLeader) || errors.Is(err, tidemark.OffsetOutOfRange) {
				t.Fatalf("view at %d while nobody leads: %v", offset, err)
			}
		}
	}
	if err := c.Start(within(t), 0); err != nil {
		t.Fatal(err)
	}
	eventually(t, "they are read again", func() bool { v, err := h.View(n-1, 1); v.Release(); return err == nil })
}

// TestC113_EpochOfOnePartition: a producer that takes its next epoch on one partition
// begins there with sequence 0, and goes on elsewhere with what it had.
func TestC113_EpochOfOnePartition(t *testing.T) {
	c := openCluster(t, t.TempDir(), tidemark.ClusterOptions{Log: tidemark.Options{Sync: tidemark.Never}})
	createTopic(t, c, "events", tidemark.TopicOptions{Partitions: 3})
	pid, _, _ := c.NewProducerID()
	var w record.Builder
	send := func(part int, epoch int16, seq int32, base int64, code int16) {
		t.Helper()
		spec := record.NewSpec()
		spec.ProducerID, spec.ProducerEpoch, spec.BaseSequence = pid, epoch, seq
		b, err := w.Build([]tidemark.Record{{Timestamp: time.Now().UnixMilli(), Value: []byte("x")}}, &spec)
		if err != nil {
			t.Fatal(err)
		}
		h, err := c.Partition("events", part)
		if err != nil {
			t.Fatal(err)
		}
		got, err := h.ProduceBatch(within(t), tidemark.AcksAll, slices.Clone(b))
		var refused *record.ClientError
		if errors.As(err, &refused) && refused.Code != code || err == nil && (code != 0 || got != base) || err != nil && refused == nil {
			t.Errorf("partition %d, epoch %d, sequence %d: at %d, %v; want %d, code %d", part, epoch, seq, got, err, base, code)
		}
	}
	for part := range 3 {
		send(part, 0, 0, 0, 0)
		send(part, 0, 1, 1, 0)
	}
	send(0, 1, 2, -1, 45)
	send(0, 1, 0, 2, 0)
	send(0, 0, 2, -1, 47)
	for part := 1; part < 3; part++ {
		h, _ := c.Partition("events", part)
		if err := c.Stop(within(t), h.State().Leader); err != nil && !errors.Is(err, tidemark.ErrNodeDown) {
			t.Fatal(err)
		}
		send(part, 0, 2, 2, 0)
		send(part, 0, 2, 2, 0) // again
		for n := range 3 {
			if err := c.Start(within(t), n); err != nil && !errors.Is(err, tidemark.ErrNodeUp) {
				t.Fatal(err)
			}
		}
		for i := range 3 { // before another is stopped
			h, _ := c.Partition("events", i)
			caughtUp(t, h)
		}
	}
	send(0, 1, 1, 3, 0)
}

// TestS87_OthersGoOn: of one partition the leader sends batches with a wrong byte. Its
// followers take none of them and ask again; what else the nodes have goes on, and so
// does that partition once the byte is right again.
func TestS87_OthersGoOn(t *testing.T) {
	dir := t.TempDir()
	c := openCluster(t, dir, tidemark.ClusterOptions{FetchBackoff: 10 * time.Millisecond, Log: tidemark.Options{Sync: tidemark.Never}})
	bad := createTopic(t, c, "bad", tidemark.TopicOptions{Replicas: [][]int32{{0, 1, 2}}})
	good := createTopic(t, c, "good", tidemark.TopicOptions{Replicas: [][]int32{{0, 1, 2}}})
	produce(t, bad, tidemark.AcksAll, "first")
	produce(t, good, tidemark.AcksAll, "first")
	caughtUp(t, bad)
	c.Pause(1, true)
	c.Pause(2, true)
	produce(t, bad, tidemark.AcksLeader, "a value that is easily found")
	file := filepath.Join(dir, "node-0", "bad-0", "00000000000000000000.log")
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	at := int64(strings.Index(string(b), "easily"))
	flip := func(x byte) {
		t.Helper()
		f, err := os.OpenFile(file, os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if _, err := f.WriteAt([]byte{x}, at); err != nil {
			t.Fatal(err)
		}
	}
	if at < 0 {
		t.Fatal("the value is not in the file")
	}
	flip('E')
	fetches := bad.Stats().Leading.Fetches
	begin := time.Now()
	c.Pause(1, false)
	c.Pause(2, false)
	eventually(t, "they have asked a few times", func() bool { return bad.Stats().Leading.Fetches > fetches+6 })
	for i := range 50 {
		produce(t, good, tidemark.AcksAll, fmt.Sprint(i))
	}
	caughtUp(t, good)
	asked := bad.Stats().Leading.Fetches - fetches
	if most := 2 * (int64(time.Since(begin)/(10*time.Millisecond)) + 3); asked > most {
		t.Errorf("%d fetches of what is bad in %v", asked, time.Since(begin))
	}
	for n := 1; n < 3; n++ {
		if r := replicaOf(bad, n); !r.Up || r.Log.LogEndOffset != 1 || r.Err != nil {
			t.Errorf("node %d: up %v, %d records, %v", n, r.Up, r.Log.LogEndOffset, r.Err)
		}
	}
	flip('e')
	caughtUp(t, bad)
	if got := values(t, bad); len(got) != 2 {
		t.Errorf("%q", got)
	}
}

// TestCopiedCluster: the logs of a copied folder of a cluster are new ones, of which the
// coordinator knows nothing, so nobody leads; each can be opened by itself, with all it
// had (docs/recovery.md).
func TestCopiedCluster(t *testing.T) {
	dir, to := filepath.Join(t.TempDir(), "c"), filepath.Join(t.TempDir(), "copy")
	c := openCluster(t, dir, tidemark.ClusterOptions{})
	h := createTopic(t, c, "events", tidemark.TopicOptions{})
	for i := range int64(10) {
		if _, err := h.Produce(within(t), tidemark.AcksAll, rec(i, 10)); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.CopyFS(to, os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	c = openCluster(t, to, tidemark.ClusterOptions{})
	h, err := c.Partition("events", 0)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := h.Produce(ctx, tidemark.AcksAll, rec(10, 10)); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("append: %v; want none to lead", err)
	}
	if s := h.Stats(); s.Leader != -1 {
		t.Errorf("leader %d", s.Leader)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	for n := range 3 {
		l, err := tidemark.Open(filepath.Join(to, fmt.Sprintf("node-%d", n), "events-0"), tidemark.Options{})
		if err != nil {
			t.Fatal(err)
		}
		if end := l.LogEndOffset(); end != 10 {
			t.Errorf("node %d: log ends at %d", n, end)
		}
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	}

	moved := filepath.Join(t.TempDir(), "moved")
	if err := os.Rename(dir, moved); err != nil {
		t.Fatal(err)
	}
	c = openCluster(t, moved, tidemark.ClusterOptions{})
	if h, err = c.Partition("events", 0); err != nil {
		t.Fatal(err)
	}
	if base, err := h.Produce(within(t), tidemark.AcksAll, rec(10, 10)); err != nil || base != 10 {
		t.Errorf("moved: append at %d, %v", base, err)
	}
}
