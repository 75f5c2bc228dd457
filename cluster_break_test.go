package tidemark_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tidemark-log/tidemark"
)

// soon fails the test if fn has not returned after what a busy machine may take.
func soon(t *testing.T, what string, fn func()) {
	t.Helper()
	done := make(chan struct{})
	go func() { defer close(done); fn() }()
	select {
	case <-done:
	case <-time.After(20 * time.Second):
		buf := make([]byte, 1<<20)
		t.Fatalf("%s hangs\n%s", what, buf[:runtime.Stack(buf, true)])
	}
}

// TestBreakTopics: a topic that cannot be as it is asked for is refused with the
// reason, and is not there.
func TestBreakTopics(t *testing.T) {
	c := openCluster(t, t.TempDir(), tidemark.ClusterOptions{})
	for _, tt := range []struct {
		what, name string
		o          tidemark.TopicOptions
		want       string
	}{
		{"no name", "", tidemark.TopicOptions{}, "no topic name"},
		{"dot", ".", tidemark.TopicOptions{}, "no topic name"},
		{"dots", "..", tidemark.TopicOptions{}, "no topic name"},
		{"path", "../x", tidemark.TopicOptions{}, "no topic name"},
		{"long", strings.Repeat("x", 250), tidemark.TopicOptions{}, "no topic name"},
		{"letters", "für", tidemark.TopicOptions{}, "no topic name"},
		{"partitions below 0", "x", tidemark.TopicOptions{Partitions: -1}, "-1 partitions"},
		{"partitions beyond 32 bits", "x", tidemark.TopicOptions{Partitions: 1<<32 + 1}, "4294967297 partitions"},
		{"replicas below 0", "x", tidemark.TopicOptions{ReplicationFactor: -1}, "replication factor -1"},
		{"more replicas than nodes", "x", tidemark.TopicOptions{ReplicationFactor: 4}, "replication factor 4 with 3"},
		{"MinISR below 0", "x", tidemark.TopicOptions{MinISR: -1}, "MinISR: -1, want 1 to 3"},
		{"MinISR beyond the replicas", "x", tidemark.TopicOptions{MinISR: 4}, "MinISR: 4, want 1 to 3"},
		{"MinISR beyond 32 bits", "x", tidemark.TopicOptions{MinISR: 1<<32 + 1}, "MinISR"},
		{"MinISR beyond the most replicas", "x", tidemark.TopicOptions{MinISR: 3, Replicas: [][]int32{{0, 1}, {2}}}, "MinISR: 3, want 1 to 2"},
		{"no list of replicas", "x", tidemark.TopicOptions{Replicas: [][]int32{}}, "0 partitions"},
		{"an empty list of replicas", "x", tidemark.TopicOptions{Replicas: [][]int32{{0}, {}}}, "partition 1 on nodes []"},
		{"a node twice", "x", tidemark.TopicOptions{Replicas: [][]int32{{1, 1}}}, "each node once"},
		{"no such node", "x", tidemark.TopicOptions{Replicas: [][]int32{{0, 3}}}, "partition 0 on nodes [0 3], want 0 to 2"},
		{"a node below 0", "x", tidemark.TopicOptions{Replicas: [][]int32{{0, -1}}}, "partition 0 on nodes [0 -1]"},
		{"read-only", "x", tidemark.TopicOptions{Log: &tidemark.Options{ReadOnly: true}}, "ReadOnly"},
		{"a sync mode there is not", "x", tidemark.TopicOptions{Log: &tidemark.Options{Sync: 9}}, "option Sync: 9"},
		{"a segment too small", "x", tidemark.TopicOptions{Log: &tidemark.Options{SegmentBytes: 1}}, "SegmentBytes"},
		{"a retention below 0", "x", tidemark.TopicOptions{Log: &tidemark.Options{Retention: -5}}, "retention.ms"},
	} {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		err := c.CreateTopic(ctx, tt.name, tt.o)
		cancel()
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v; want an error with %q", tt.what, err, tt.want)
		}
		if list := c.Topics(); len(list) > 0 {
			t.Errorf("%s: topics %q", tt.what, list)
			_ = c.DeleteTopic(list[0])
		}
	}
	if err := c.DeleteTopic("x"); !errors.Is(err, tidemark.ErrNoTopic) {
		t.Errorf("delete what is not there: %v", err)
	}
}

// TestBreakClusterOptions: what a cluster cannot be is said when it is opened, and
// nothing is made.
func TestBreakClusterOptions(t *testing.T) {
	for want, o := range map[string]tidemark.ClusterOptions{
		"Nodes: -1":           {Nodes: -1},
		"SessionTimeout":      {SessionTimeout: -1},
		"LagMax":              {LagMax: 1},
		"FetchBytes":          {FetchBytes: 1 << 40},
		"MaxWaiters":          {MaxWaiters: -1},
		"Recovery: 7":         {Recovery: 7},
		"FetchBackoff":        {FetchBackoff: -1},
		"option Sync: -1":     {Log: tidemark.Options{Sync: -1}},
		"SegmentBytes":        {Log: tidemark.Options{SegmentBytes: -1}},
		"MaxBatchBytes":       {Log: tidemark.Options{SegmentBytes: 1 << 20, MaxBatchBytes: 2 << 20}},
		"producer expiration": {Log: tidemark.Options{ProducerExpiration: -1}},
	} {
		dir := filepath.Join(t.TempDir(), "c")
		c, err := tidemark.OpenCluster(dir, o)
		if err == nil {
			c.Close()
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v; want an error with %q", err, want)
		}
		if _, err := os.Stat(dir); err == nil {
			t.Errorf("%s: the directory was made", want)
		}
	}
}

// TestBreakIDs: nodes and partitions there are not.
func TestBreakIDs(t *testing.T) {
	c := openCluster(t, t.TempDir(), tidemark.ClusterOptions{Nodes: 1})
	createTopic(t, c, "x", tidemark.TopicOptions{})
	for _, id := range []int{-1, 1, 1 << 32} {
		for what, err := range map[string]error{"start": c.Start(within(t), id), "stop": c.Stop(within(t), id), "kill": c.Kill(id)} {
			if !errors.Is(err, tidemark.ErrNoNode) {
				t.Errorf("%s node %d: %v", what, id, err)
			}
		}
		if n := c.Node(id); n != nil {
			t.Errorf("node %d: %v", id, n)
		}
		if _, err := c.Partition("x", id); !errors.Is(err, tidemark.ErrNoPartition) {
			t.Errorf("partition %d: %v", id, err)
		}
	}
	if _, err := c.Partition("y", 0); !errors.Is(err, tidemark.ErrNoTopic) {
		t.Errorf("partition of no topic: %v", err)
	}
	if got := tidemark.Acks(7).String(); got != "Acks(7)" {
		t.Errorf("acks 7 is %q", got)
	}
	if err := c.Start(within(t), 0); !errors.Is(err, tidemark.ErrNodeUp) {
		t.Errorf("start what is up: %v", err)
	}
	if err := c.Kill(0); err != nil {
		t.Fatal(err)
	}
	for what, err := range map[string]error{"kill": c.Kill(0), "stop": c.Stop(within(t), 0)} {
		if !errors.Is(err, tidemark.ErrNodeDown) {
			t.Errorf("%s what is down: %v", what, err)
		}
	}
}

// TestBreakRecords: what cannot be appended is refused, appends nothing, and holds
// nobody up, by a partition and by a producer.
func TestBreakRecords(t *testing.T) {
	c := openCluster(t, t.TempDir(), tidemark.ClusterOptions{Log: tidemark.Options{Sync: tidemark.Never}})
	h := createTopic(t, c, "x", tidemark.TopicOptions{})
	other := openCluster(t, t.TempDir(), tidemark.ClusterOptions{Nodes: 1})
	foreign := createTopic(t, other, "x", tidemark.TopicOptions{})
	p, err := c.NewProducer(tidemark.ProducerOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	huge := tidemark.Record{Value: make([]byte, 2<<20)}
	send := func(h *tidemark.Partition, recs ...tidemark.Record) error {
		_, err := p.Produce(within(t), h, recs...)
		return err
	}
	plain := func(acks tidemark.Acks, recs ...tidemark.Record) error {
		_, err := h.Produce(within(t), acks, recs...)
		return err
	}
	batch := func(b tidemark.Batch) error {
		_, err := h.ProduceBatch(within(t), tidemark.AcksAll, b)
		return err
	}
	for _, tt := range []struct {
		what string
		err  error
		want string
	}{
		{"no records", plain(tidemark.AcksAll), "nothing to append"},
		{"a producer's no records", send(h), "records to build 0"},
		{"a huge record", plain(tidemark.AcksAll, huge), "too large"},
		{"a huge record, acks 0", plain(tidemark.AcksNone, huge), "too large"},
		{"a producer's huge record", send(h, huge), "too large"},
		{"acks there are not", plain(tidemark.Acks(7), tidemark.Record{}), "INVALID_REQUIRED_ACKS"},
		{"acks below 0", plain(tidemark.Acks(-1), tidemark.Record{}), "INVALID_REQUIRED_ACKS"},
		{"a nil batch", batch(nil), "nothing to append"},
		{"half a batch", batch(make(tidemark.Batch, 30)), "short"},
		{"zeros", batch(make(tidemark.Batch, 100)), ""},
		{"another cluster's partition", send(foreign, tidemark.Record{}), "another cluster"},
		{"no partition", send(nil, tidemark.Record{}), "no partition"},
	} {
		if tt.err == nil || !strings.Contains(tt.err.Error(), tt.want) {
			t.Errorf("%s: %v; want an error with %q", tt.what, tt.err, tt.want)
		}
	}
	if _, err := (tidemark.Delivery{}).Wait(within(t)); err == nil {
		t.Error("a delivery that was refused is waited for")
	}
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := h.Produce(ended, tidemark.AcksAll, tidemark.Record{}); !errors.Is(err, context.Canceled) {
		t.Errorf("produce with a context that ended: %v", err)
	}
	if _, err := p.Produce(ended, h, tidemark.Record{}); !errors.Is(err, context.Canceled) {
		t.Errorf("a producer with a context that ended: %v", err)
	}
	if base := produce(t, h, tidemark.AcksAll, "first"); base != 0 {
		t.Errorf("first is at %d: something refused was appended", base)
	}
	if err := send(h, tidemark.Record{Value: []byte("second")}); err != nil {
		t.Error(err)
	}
	if got := values(t, h); fmt.Sprint(got) != "[first second]" {
		t.Errorf("%q", got)
	}
}

// TestBreakClosed: after Close, and while it goes on, every call returns ErrClosed or
// what it had, and leaves no goroutine.
func TestBreakClosed(t *testing.T) {
	before := runtime.NumGoroutine()
	dir := t.TempDir()
	c := openCluster(t, dir, tidemark.ClusterOptions{Log: tidemark.Options{Sync: tidemark.Never}})
	h := createTopic(t, c, "x", tidemark.TopicOptions{})
	var wg sync.WaitGroup
	var acked sync.Map
	var prod []*tidemark.Producer
	for i := range 4 {
		p, err := c.NewProducer(tidemark.ProducerOptions{Plain: i == 3})
		if err != nil {
			t.Fatal(err)
		}
		prod = append(prod, p)
		wg.Go(func() {
			for n := 0; ; n++ {
				v := fmt.Sprint(i, "-", n)
				if _, err := p.Produce(context.Background(), h, tidemark.Record{Value: []byte(v)}); err != nil {
					if !errors.Is(err, tidemark.ErrClosed) {
						t.Errorf("producer: %v", err)
					}
					return
				}
				acked.Store(v, true)
			}
		})
		wg.Go(func() {
			for n := 0; ; n++ {
				v := fmt.Sprint(i, "+", n)
				if _, err := h.Produce(context.Background(), tidemark.AcksAll, tidemark.Record{Value: []byte(v)}); err != nil {
					if !errors.Is(err, tidemark.ErrClosed) && !errors.Is(err, tidemark.NotLeader) {
						t.Errorf("produce: %v", err)
					}
					return
				}
				acked.Store(v, true)
			}
		})
	}
	wg.Go(func() {
		for _, err := range h.Tail(context.Background(), 0) {
			if err != nil && !errors.Is(err, tidemark.ErrClosed) {
				t.Errorf("tail: %v", err)
			}
		}
	})
	for _, what := range []tidemark.Changes{tidemark.ChangedHW, tidemark.ChangedISR, tidemark.ChangedLeader} {
		wg.Go(func() {
			for range h.Subscribe(context.Background(), what) {
			}
		})
	}
	wg.Go(func() {
		for range 20 {
			if err := c.CreateTopic(context.Background(), "y", tidemark.TopicOptions{}); err != nil {
				if !errors.Is(err, tidemark.ErrClosed) {
					t.Errorf("create: %v", err)
				}
				return
			}
			if err := c.DeleteTopic("y"); err != nil && !errors.Is(err, tidemark.ErrClosed) {
				t.Errorf("delete: %v", err)
			}
		}
	})
	wg.Go(func() {
		for c.Kill(2) == nil {
			if err := c.Start(context.Background(), 2); err != nil {
				if !errors.Is(err, tidemark.ErrClosed) {
					t.Errorf("start: %v", err)
				}
				return
			}
		}
	})
	time.Sleep(100 * time.Millisecond)
	for range 2 {
		wg.Go(func() {
			if err := c.Close(); err != nil {
				t.Errorf("close: %v", err)
			}
		})
	}
	soon(t, "what goes on while the cluster is closed", wg.Wait)
	for what, err := range map[string]error{
		"close":     c.Close(),
		"close it":  prod[0].Close(),
		"and again": prod[0].Close(),
	} {
		if err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	_, produced := h.Produce(context.Background(), tidemark.AcksAll, tidemark.Record{})
	_, none := h.Produce(context.Background(), tidemark.AcksNone, tidemark.Record{})
	_, sent := prod[1].Produce(context.Background(), h, tidemark.Record{})
	_, viewed := h.View(0, 1)
	_, latest := h.HighWatermark()
	_, handle := c.Partition("x", 0)
	_, made := c.NewProducer(tidemark.ProducerOptions{})
	for what, err := range map[string]error{
		"produce": produced, "acks 0": none, "producer": sent, "view": viewed, "latest": latest, "partition": handle, "new producer": made,
		"create": c.CreateTopic(context.Background(), "z", tidemark.TopicOptions{}),
		"delete": c.DeleteTopic("x"),
		"start":  c.Start(context.Background(), 0),
	} {
		if !errors.Is(err, tidemark.ErrClosed) {
			t.Errorf("%s after Close: %v", what, err)
		}
	}
	for what, err := range map[string]error{"stop": c.Stop(context.Background(), 0), "kill": c.Kill(0)} {
		if !errors.Is(err, tidemark.ErrNodeDown) && !errors.Is(err, tidemark.ErrClosed) {
			t.Errorf("%s after Close: %v", what, err)
		}
	}
	if h.State().Leader == 99 || len(h.Stats().Replicas) != 3 || c.Node(0).Up() || c.Node(2).Up() {
		t.Errorf("%+v", h.Stats())
	}
	for _, p := range prod {
		p.Close()
	}
	eventually(t, "no goroutine is left", func() bool { return runtime.NumGoroutine() <= before })
	c = openCluster(t, dir, tidemark.ClusterOptions{Log: tidemark.Options{Sync: tidemark.Never}})
	h, err := c.Partition("x", 0)
	if err != nil {
		t.Fatal(err)
	}
	produce(t, h, tidemark.AcksAll, "again") // all before it is committed then
	got := values(t, h)
	acked.Range(func(v, _ any) bool {
		if n := len(slices.DeleteFunc(slices.Clone(got), func(x string) bool { return x != v.(string) })); n < 1 {
			t.Errorf("%s was acknowledged and is not there", v)
		}
		return true
	})
}

// TestBreakProducerClose: Close settles what is under way, at once.
func TestBreakProducerClose(t *testing.T) {
	c := openCluster(t, t.TempDir(), tidemark.ClusterOptions{Log: tidemark.Options{Sync: tidemark.Never}})
	h := createTopic(t, c, "x", tidemark.TopicOptions{MinISR: 2})
	p, err := c.NewProducer(tidemark.ProducerOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Produce(within(t), h, tidemark.Record{}); err != nil {
		t.Fatal(err)
	}
	for n := range 3 {
		c.Pause(n, true) // nothing is acknowledged
	}
	var list []tidemark.Delivery
	for range 5 {
		d, err := p.ProduceAsync(within(t), h, tidemark.Record{})
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, d)
	}
	sixth := make(chan error, 1)
	go func() {
		_, err := p.Produce(context.Background(), h, tidemark.Record{})
		sixth <- err
	}()
	time.Sleep(10 * time.Millisecond)
	soon(t, "close of a producer", func() { p.Close() })
	soon(t, "a wait for what was under way", func() {
		for _, d := range list {
			if _, err := d.Wait(context.Background()); !errors.Is(err, tidemark.ErrClosed) {
				t.Errorf("under way at Close: %v", err)
			}
		}
		if err := <-sixth; !errors.Is(err, tidemark.ErrClosed) {
			t.Errorf("waiting for room at Close: %v", err)
		}
	})
	for n := range 3 {
		c.Pause(n, false)
	}
	produce(t, h, tidemark.AcksAll, "after")
}

// TestBreakOtherProcess: a directory that is open is not opened again, and whoever
// was closed does not write the coordinator's file under the next one.
func TestBreakOtherProcess(t *testing.T) {
	dir := t.TempDir()
	old := openCluster(t, dir, tidemark.ClusterOptions{})
	createTopic(t, old, "x", tidemark.TopicOptions{})
	if c, err := tidemark.OpenCluster(dir, quick(tidemark.ClusterOptions{})); !errors.Is(err, tidemark.ErrLocked) {
		t.Errorf("open what is open: %v, %v", c, err)
	}
	closeCluster(t, old)
	c := openCluster(t, dir, tidemark.ClusterOptions{})
	createTopic(t, c, "y", tidemark.TopicOptions{})
	for range 1001 { // ids that are stored as given out
		old.NewProducerID()
	}
	closeCluster(t, c)
	c = openCluster(t, dir, tidemark.ClusterOptions{})
	if list := c.Topics(); fmt.Sprint(list) != "[x y]" {
		t.Errorf("topics %q", list)
	}
}

// TestBreakFewerNodes: a cluster does not open with fewer nodes than it had.
func TestBreakFewerNodes(t *testing.T) {
	dir := t.TempDir()
	c := openCluster(t, dir, tidemark.ClusterOptions{})
	h := createTopic(t, c, "x", tidemark.TopicOptions{})
	produce(t, h, tidemark.AcksAll, "kept")
	closeCluster(t, c)
	c, err := tidemark.OpenCluster(dir, quick(tidemark.ClusterOptions{Nodes: 2}))
	if err == nil {
		h, _ := c.Partition("x", 0)
		t.Errorf("opened: %+v", h.Stats())
		c.Close()
	} else if !strings.Contains(err.Error(), "option Nodes: 2, but node 2") {
		t.Error(err)
	}
	c = openCluster(t, dir, tidemark.ClusterOptions{Nodes: 4})
	h, _ = c.Partition("x", 0)
	produce(t, h, tidemark.AcksAll, "more")
	if got := values(t, h); fmt.Sprint(got) != "[kept more]" {
		t.Errorf("%q", got)
	}
}

// TestBreakFolders: what becomes of a node's folder while it is down never makes an
// acknowledged record go away without a word.
func TestBreakFolders(t *testing.T) {
	for _, tt := range []struct {
		what string
		rf   int
		do   func(t *testing.T, node string)
	}{
		{"folder deleted", 3, func(t *testing.T, node string) { must(t, os.RemoveAll(node)) }},
		{"folder deleted, one replica", 1, func(t *testing.T, node string) { must(t, os.RemoveAll(node)) }},
		{"partition deleted", 3, func(t *testing.T, node string) { must(t, os.RemoveAll(filepath.Join(node, "x-0"))) }},
		{"partition deleted, one replica", 1, func(t *testing.T, node string) { must(t, os.RemoveAll(filepath.Join(node, "x-0"))) }},
		{"log cut", 3, func(t *testing.T, node string) {
			must(t, os.Truncate(filepath.Join(node, "x-0", "00000000000000000000.log"), 100))
		}},
		{"log cut, one replica", 1, func(t *testing.T, node string) {
			must(t, os.Truncate(filepath.Join(node, "x-0", "00000000000000000000.log"), 100))
		}},
		{"log empty, one replica", 1, func(t *testing.T, node string) {
			must(t, os.Truncate(filepath.Join(node, "x-0", "00000000000000000000.log"), 0))
		}},
		{"log deleted, one replica", 1, func(t *testing.T, node string) {
			must(t, os.Remove(filepath.Join(node, "x-0", "00000000000000000000.log")))
		}},
	} {
		for _, how := range []string{"kill", "stop"} {
			t.Run(tt.what+", "+how, func(t *testing.T) {
				t.Parallel()
				dir := t.TempDir()
				c := openCluster(t, dir, tidemark.ClusterOptions{SessionTimeout: 200 * time.Millisecond})
				replicas := []int32{2, 1, 0}[:tt.rf]
				h := createTopic(t, c, "x", tidemark.TopicOptions{Replicas: [][]int32{replicas}})
				for i := range 5 {
					produce(t, h, tidemark.AcksAll, fmt.Sprint(i))
				}
				if how == "kill" {
					must(t, c.Kill(2))
				} else {
					must(t, c.Stop(within(t), 2))
				}
				tt.do(t, filepath.Join(dir, "node-2"))
				err := c.Start(within(t), 2)
				if err != nil {
					t.Logf("start: %v", err)
				}
				ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
				defer cancel()
				if tt.rf == 3 {
					ctx = within(t)
				}
				base, err := h.Produce(ctx, tidemark.AcksAll, tidemark.Record{Value: []byte("after")})
				if tt.rf == 3 {
					if got := values(t, h); err != nil || fmt.Sprint(got) != "[0 1 2 3 4 after]" {
						t.Errorf("%q, %v", got, err)
					}
					if strings.HasPrefix(tt.what, "log cut") { // damage below what was synced is not cut, and not copied over
						eventually(t, "the damage shows", func() bool {
							r := replicaOf(h, 2)
							_, damaged := errors.AsType[*tidemark.CorruptError](r.Err)
							return r.Up && !r.InISR && damaged
						})
						return
					}
					caughtUp(t, h)
				} else if err == nil && base != 5 {
					t.Errorf("acknowledged at %d with what was acknowledged before gone", base)
				} else {
					if !errors.Is(err, tidemark.NotLeader) {
						t.Errorf("produce: %v", err)
					}
				}
			})
		}
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// TestBreakDeleteInUse: who waits at a topic that is deleted hears of it, and its files go.
func TestBreakDeleteInUse(t *testing.T) {
	dir := t.TempDir()
	c := openCluster(t, dir, tidemark.ClusterOptions{Log: tidemark.Options{Sync: tidemark.Never}, DeleteDelay: -1})
	h := createTopic(t, c, "x", tidemark.TopicOptions{})
	p, err := c.NewProducer(tidemark.ProducerOptions{})
	must(t, err)
	defer p.Close()
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			for {
				if _, err := p.Produce(context.Background(), h, tidemark.Record{}); err != nil {
					if !errors.Is(err, tidemark.ErrNoPartition) {
						t.Errorf("producer: %v", err)
					}
					return
				}
			}
		})
		wg.Go(func() {
			for {
				if _, err := h.Produce(context.Background(), tidemark.AcksLeader, tidemark.Record{}); err != nil {
					if !errors.Is(err, tidemark.ErrNoPartition) && !errors.Is(err, tidemark.NotLeader) {
						t.Errorf("produce: %v", err)
					}
					return
				}
			}
		})
		wg.Go(func() {
			for _, err := range h.Tail(context.Background(), 0) {
				if err != nil && !errors.Is(err, tidemark.ErrNoPartition) {
					t.Errorf("tail: %v", err)
				}
			}
		})
		wg.Go(func() {
			for range h.Subscribe(context.Background(), tidemark.ChangedHW) {
			}
		})
	}
	time.Sleep(50 * time.Millisecond)
	must(t, c.DeleteTopic("x"))
	soon(t, "what goes on at a deleted topic", wg.Wait)
	eventually(t, "the folders go", func() bool {
		left, _ := filepath.Glob(filepath.Join(dir, "node-*", "x-*"))
		return len(left) == 0
	})
	h = createTopic(t, c, "x", tidemark.TopicOptions{})
	if base := produce(t, h, tidemark.AcksAll, "new"); base != 0 {
		t.Errorf("a new topic begins at %d", base)
	}
}

// TestBreakLastISR: the last replica in sync is stopped, and started; nothing else
// leads meanwhile, and nothing is lost.
func TestBreakLastISR(t *testing.T) {
	c := openCluster(t, t.TempDir(), tidemark.ClusterOptions{SessionTimeout: 200 * time.Millisecond})
	h := createTopic(t, c, "x", tidemark.TopicOptions{Replicas: [][]int32{{0, 1}}, MinISR: 1})
	produce(t, h, tidemark.AcksAll, "both")
	must(t, c.Kill(1))
	inSync(t, h, 0)
	produce(t, h, tidemark.AcksAll, "alone")
	must(t, c.Stop(within(t), 0))
	must(t, c.Start(within(t), 1))
	ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
	defer cancel()
	if base, err := h.Produce(ctx, tidemark.AcksAll, tidemark.Record{}); err == nil {
		t.Errorf("node 1 leads without what was acknowledged: %d", base)
	}
	must(t, c.Start(within(t), 0))
	produce(t, h, tidemark.AcksAll, "again")
	if got := values(t, h); fmt.Sprint(got) != "[both alone again]" {
		t.Errorf("%q", got)
	}
	caughtUp(t, h)
}

// TestBreakLeaderFolder: a leader whose files are cut or gone does not keep the lead once
// it cannot append.
func TestBreakLeaderFolder(t *testing.T) {
	for what, do := range map[string]func(dir string) error{
		"folder deleted": os.RemoveAll,
		"log cut":        func(dir string) error { return os.Truncate(filepath.Join(dir, "00000000000000000000.log"), 0) },
		"slot cut":       func(dir string) error { return os.Truncate(filepath.Join(dir, "tidemark.slot"), 0) },
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			c := openCluster(t, dir, tidemark.ClusterOptions{LagMax: 200 * time.Millisecond,
				Log: tidemark.Options{Sync: tidemark.Never, SegmentBytes: 64 << 10, PopulateBytes: 1}})
			h := createTopic(t, c, "x", tidemark.TopicOptions{Replicas: [][]int32{{0, 1, 2}}})
			caughtUp(t, h)
			acked := 0
			add := func() {
				if _, err := h.Produce(within(t), tidemark.AcksAll, tidemark.Record{Value: make([]byte, 5000)}); err == nil {
					acked++
				}
			}
			add()
			must(t, do(filepath.Join(dir, "node-0", "x-0")))
			eventually(t, "another leads", func() bool { add(); return h.State().Leader > 0 })
			add()
			inSync(t, h, 1, 2)
			if got := len(values(t, h)); got < acked {
				t.Errorf("%d records; %d were acknowledged", got, acked)
			}
		})
	}
}

// TestBreakReplicaNotMade: a node that cannot make its replica leads nothing by it, and
// has one once nothing is in the way any more.
func TestBreakReplicaNotMade(t *testing.T) {
	for _, rf := range []int{3, 1} {
		t.Run(fmt.Sprint("replicas ", rf), func(t *testing.T) {
			dir := t.TempDir()
			c := openCluster(t, dir, tidemark.ClusterOptions{SessionTimeout: 200 * time.Millisecond})
			inTheWay := filepath.Join(dir, "node-0", "x-0")
			must(t, os.WriteFile(inTheWay, []byte("in the way"), 0o600))
			ctx := within(t)
			if rf == 1 { // nobody else can lead
				var cancel func()
				ctx, cancel = context.WithTimeout(ctx, 100*time.Millisecond)
				defer cancel()
			}
			if err := c.CreateTopic(ctx, "x", tidemark.TopicOptions{Replicas: [][]int32{[]int32{0, 1, 2}[:rf]}}); (err == nil) != (rf == 3) {
				t.Fatal(err)
			}
			h, err := c.Partition("x", 0)
			must(t, err)
			if rf == 3 {
				if lead := h.State().Leader; lead == 0 {
					t.Errorf("node 0 leads")
				}
				produce(t, h, tidemark.AcksLeader, "leader")
				produce(t, h, tidemark.AcksAll, "all")
			}
			if r := replicaOf(h, 0); r.Up || r.Err == nil || r.NotMade == 0 {
				t.Errorf("%+v", r)
			}
			must(t, os.Remove(inTheWay))
			produce(t, h, tidemark.AcksAll, "again")
			caughtUp(t, h)
			if r := replicaOf(h, 0); !r.Up || r.Err != nil || r.NotMade == 0 {
				t.Errorf("%+v", r)
			}
		})
	}
}

// TestS90_TopicRecreated: a topic is deleted while a node is down, and maybe made again.
// The node's old log goes, or is not looked at if the whole cluster was closed meanwhile;
// it is never the new topic's.
func TestS90_TopicRecreated(t *testing.T) {
	for _, again := range []bool{false, true} {
		for _, reopen := range []bool{false, true} {
			t.Run(fmt.Sprintf("again=%v,reopen=%v", again, reopen), func(t *testing.T) {
				dir := t.TempDir()
				o := tidemark.ClusterOptions{DeleteDelay: -1, SessionTimeout: 200 * time.Millisecond}
				c := openCluster(t, dir, o)
				h := createTopic(t, c, "x", tidemark.TopicOptions{Replicas: [][]int32{{2, 1, 0}}})
				produce(t, h, tidemark.AcksAll, "old")
				caughtUp(t, h)
				must(t, c.Kill(2))
				must(t, c.DeleteTopic("x"))
				if again {
					h = createTopic(t, c, "x", tidemark.TopicOptions{Replicas: [][]int32{{2, 1, 0}}})
					produce(t, h, tidemark.AcksAll, "new")
				}
				if reopen {
					closeCluster(t, c)
					c = openCluster(t, dir, o)
				} else {
					must(t, c.Start(within(t), 2))
				}
				folder := filepath.Join(dir, "node-2", "x-0")
				if !again {
					_, err := os.Stat(folder)
					if left := err == nil; left != reopen {
						t.Errorf("the folder is there: %v", left)
					}
					createTopic(t, c, "x", tidemark.TopicOptions{Replicas: [][]int32{{2, 1, 0}}})
				}
				h, err := c.Partition("x", 0)
				must(t, err)
				if !again {
					produce(t, h, tidemark.AcksAll, "new")
				}
				caughtUp(t, h)
				if got := values(t, h); fmt.Sprint(got) != "[new]" {
					t.Errorf("%q", got)
				}
				sameLogs(t, dir, c, 3, "x-0")
			})
		}
	}
}

// TestBreakLostByLeader: what a leader alone acknowledged is lost with it; what a
// producer sends next is in the log all the same, once and in order.
func TestBreakLostByLeader(t *testing.T) {
	for _, acks := range []tidemark.Acks{tidemark.AcksLeader, tidemark.AcksNone} {
		t.Run("acks "+acks.String(), func(t *testing.T) {
			c := openCluster(t, t.TempDir(), tidemark.ClusterOptions{SessionTimeout: 300 * time.Millisecond, Log: tidemark.Options{Sync: tidemark.Never}})
			h := createTopic(t, c, "x", tidemark.TopicOptions{Replicas: [][]int32{{0, 1, 2}}})
			p, err := c.NewProducer(tidemark.ProducerOptions{Acks: acks})
			must(t, err)
			defer p.Close()
			send := func(v string) tidemark.Delivery {
				t.Helper()
				d, err := p.ProduceAsync(within(t), h, tidemark.Record{Value: []byte(v)})
				must(t, err)
				return d
			}
			wait := func(list ...tidemark.Delivery) {
				t.Helper()
				for _, d := range list {
					if _, err := d.Wait(within(t)); err != nil {
						t.Error(err)
					}
				}
			}
			wait(send("a"))
			caughtUp(t, h)
			c.Pause(1, true)
			c.Pause(2, true)
			wait(send("lost"))
			must(t, c.Kill(0))
			c.Pause(1, false)
			c.Pause(2, false)
			wait(send("b"), send("c"), send("d"))
			wait(send("e"))
			eventually(t, "all is committed", func() bool { return fmt.Sprint(values(t, h)) == "[a b c d e]" })
		})
	}
}

// TestBreakWaitTwice: an answer is given once, whatever its memory is used for next; who
// gave up waiting may wait again.
func TestBreakWaitTwice(t *testing.T) {
	c := openCluster(t, t.TempDir(), tidemark.ClusterOptions{Log: tidemark.Options{Sync: tidemark.Never}})
	h := createTopic(t, c, "x", tidemark.TopicOptions{Replicas: [][]int32{{0, 1, 2}}, MinISR: 3})
	caughtUp(t, h)
	p, err := c.NewProducer(tidemark.ProducerOptions{})
	must(t, err)
	defer p.Close()
	type pending interface {
		Wait(context.Context) (int64, error)
	}
	for what, begin := range map[string]func() (pending, error){
		"Pending":  func() (pending, error) { return h.ProduceAsync(within(t), tidemark.AcksAll, tidemark.Record{}) },
		"Delivery": func() (pending, error) { return p.ProduceAsync(within(t), h, tidemark.Record{}) },
	} {
		var old []pending
		for i := range 3 {
			c.Pause(1, true)
			produce(t, h, tidemark.AcksLeader, "node 1 has asked for it") // and its next fetch will not come
			x, err := begin()
			must(t, err)
			ctx, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
			if _, err := x.Wait(ctx); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%s: %v", what, err)
			}
			cancel()
			for _, o := range old {
				if base, err := o.Wait(within(t)); !errors.Is(err, tidemark.ErrWaited) {
					t.Errorf("%s: a second wait: %d, %v", what, base, err)
				}
			}
			c.Pause(1, false)
			var got [2]error // of two at once one has the answer
			var wg sync.WaitGroup
			for j := range got {
				wg.Go(func() { _, got[j] = x.Wait(within(t)) })
			}
			wg.Wait()
			if (got[0] == nil) == (got[1] == nil) || !errors.Is(errors.Join(got[:]...), tidemark.ErrWaited) {
				t.Errorf("%s %d: two at once: %v", what, i, got)
			}
			old = append(old, x)
		}
	}
}

// TestBreakLanes: a producer forgets the partitions of deleted topics.
func TestBreakLanes(t *testing.T) {
	c := openCluster(t, t.TempDir(), tidemark.ClusterOptions{Log: tidemark.Options{Sync: tidemark.Never}})
	p, err := c.NewProducer(tidemark.ProducerOptions{})
	must(t, err)
	defer p.Close()
	for i := range 5 {
		h := createTopic(t, c, "x", tidemark.TopicOptions{})
		_, err := p.Produce(within(t), h, tidemark.Record{})
		must(t, err)
		must(t, c.DeleteTopic("x"))
		if _, err := p.Produce(within(t), h, tidemark.Record{}); !errors.Is(err, tidemark.ErrNoPartition) {
			t.Errorf("produce to a deleted topic: %v", err)
		}
		if n := p.Lanes(); n != 1 {
			t.Errorf("%d lanes after %d topics", n, i+1)
		}
	}
}

// TestElectPreferred: the lead goes to the first replica, with everything, if that is in
// sync.
func TestElectPreferred(t *testing.T) {
	c := openCluster(t, t.TempDir(), tidemark.ClusterOptions{SessionTimeout: 300 * time.Millisecond, LagMax: 500 * time.Millisecond, Log: tidemark.Options{Sync: tidemark.Never}})
	h := createTopic(t, c, "x", tidemark.TopicOptions{Replicas: [][]int32{{2, 1, 0}}})
	must(t, c.ElectPreferred(within(t), "x", 0)) // it is
	must(t, c.Kill(2))
	produce(t, h, tidemark.AcksLeader, "a")
	if err := c.ElectPreferred(within(t), "x", 0); !errors.Is(err, tidemark.IneligibleReplica) {
		t.Errorf("node 2 is down: %v", err)
	}
	must(t, c.Start(within(t), 2))
	caughtUp(t, h)
	c.Pause(2, true)
	produce(t, h, tidemark.AcksLeader, "b")
	if err := c.ElectPreferred(within(t), "x", 0); err == nil {
		t.Error("node 2 leads without the last record")
	}
	produce(t, h, tidemark.AcksLeader, "c") // the leader leads on
	c.Pause(2, false)
	caughtUp(t, h)
	must(t, c.ElectPreferred(within(t), "x", 0))
	if s := h.State(); s.Leader != 2 {
		t.Errorf("%+v", s)
	}
	produce(t, h, tidemark.AcksAll, "d")
	if got := fmt.Sprint(values(t, h)); got != "[a b c d]" {
		t.Errorf("%s", got)
	}
	if start, err := h.LogStartOffset(); start != 0 || err != nil {
		t.Errorf("log start %d, %v", start, err)
	}
	if err := c.ElectPreferred(within(t), "y", 0); !errors.Is(err, tidemark.ErrNoTopic) {
		t.Errorf("no topic: %v", err)
	}
}

// TestSetMinISR: a least ISR that was changed is in force when SetMinISR returns.
func TestSetMinISR(t *testing.T) {
	c := openCluster(t, t.TempDir(), tidemark.ClusterOptions{SessionTimeout: 300 * time.Millisecond, Log: tidemark.Options{Sync: tidemark.Never}})
	h := createTopic(t, c, "x", tidemark.TopicOptions{Partitions: 3})
	must(t, c.Kill((h.State().Leader+1)%3))
	eventually(t, "two are in sync", func() bool { return len(h.State().ISR) == 2 })
	for i := range 10 {
		must(t, c.SetMinISR(within(t), "x", 3))
		if _, err := h.Produce(within(t), tidemark.AcksAll, tidemark.Record{}); !errors.Is(err, tidemark.NotEnoughReplicas) {
			t.Errorf("%d: two of three: %v", i, err)
		}
		must(t, c.SetMinISR(within(t), "x", 2))
		produce(t, h, tidemark.AcksAll, "two")
	}
	if n := h.Stats().MinISR; n != 2 {
		t.Errorf("MinISR %d", n)
	}
	for _, n := range []int{-1, 0, 4, 1 << 32} {
		if err := c.SetMinISR(within(t), "x", n); err == nil {
			t.Errorf("MinISR %d is taken", n)
		}
	}
	if err := c.SetMinISR(within(t), "y", 1); !errors.Is(err, tidemark.ErrNoTopic) {
		t.Errorf("no topic: %v", err)
	}
}

// TestBreakLeaseEnds: where a lease ran out because the process stood still, its node asks
// for another before appends fail; who heard NotLeader meanwhile does not wait for a change
// that was told before it waited.
func TestBreakLeaseEnds(t *testing.T) {
	c := openCluster(t, t.TempDir(), tidemark.ClusterOptions{SessionTimeout: time.Minute, Log: tidemark.Options{Sync: tidemark.Never}})
	h := createTopic(t, c, "x", tidemark.TopicOptions{Replicas: [][]int32{{0, 1, 2}}})
	caughtUp(t, h)
	for i := range 10 {
		c.Pause(1, true)
		c.Pause(2, true)
		d, err := h.ProduceAsync(within(t), tidemark.AcksAll, tidemark.Record{})
		must(t, err)
		c.EndLease(0)
		eventually(t, "it has another", func() bool { _, err := h.HighWatermark(); return err == nil })
		c.Pause(1, false)
		c.Pause(2, false)
		if base, err := d.Wait(within(t)); base != int64(i) || err != nil {
			t.Fatalf("append %d: at %d, %v", i, base, err)
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	must(t, h.LeaderAgain(ctx))
}

// TestBreakSessionsEnd: nodes that are taken for dead for a moment, because the process
// stood still, have replicas of a topic that is made then.
func TestBreakSessionsEnd(t *testing.T) {
	c := openCluster(t, t.TempDir(), tidemark.ClusterOptions{SessionTimeout: 30 * time.Second, Log: tidemark.Options{Sync: tidemark.Never}})
	for i := range 3 {
		c.Expire()
		createTopic(t, c, fmt.Sprint("x", i), tidemark.TopicOptions{})
	}
}

// TestBreakElectTwice: of those who elect the preferred leader at once all come back, and
// nothing is lost meanwhile; where the leader is killed as it hands over they come back soon.
func TestBreakElectTwice(t *testing.T) {
	c := openCluster(t, t.TempDir(), tidemark.ClusterOptions{LagMax: time.Hour, Log: tidemark.Options{Sync: tidemark.Never}})
	h := createTopic(t, c, "x", tidemark.TopicOptions{Replicas: [][]int32{{1, 0, 2}}})
	caughtUp(t, h)
	must(t, c.Stop(within(t), 1))
	must(t, c.Start(within(t), 1))
	caughtUp(t, h)
	elect := func() (answers chan error) {
		answers = make(chan error, 4)
		for range 4 {
			go func() { answers <- c.ElectPreferred(within(t), "x", 0) }()
		}
		return answers
	}
	a := elect()
	for range 4 {
		must(t, <-a)
	}
	if s := h.State(); s.Leader != 1 {
		t.Errorf("%+v", s)
	}
	must(t, c.Stop(within(t), 1))
	must(t, c.Start(within(t), 1))
	caughtUp(t, h)
	lead := h.State().Leader
	c.Pause(1, true)
	produce(t, h, tidemark.AcksLeader, "not copied")
	a = elect()
	for range 100 { // meanwhile it leads
		produce(t, h, tidemark.AcksLeader, "not copied either")
	}
	must(t, c.Kill(lead))
	soon(t, "the calls come back", func() {
		for range 4 {
			<-a // whatever they say
		}
	})
}

// TestBreakLongestLog: of a cluster whose process ended who has the longest log leads,
// although others are opened first (R22).
func TestBreakLongestLog(t *testing.T) {
	dir := t.TempDir()
	o := tidemark.ClusterOptions{Nodes: 9, Log: tidemark.Options{Sync: tidemark.Never}}
	c := openCluster(t, dir, o)
	h := createTopic(t, c, "x", tidemark.TopicOptions{Replicas: [][]int32{{8, 0}}, MinISR: 1})
	produce(t, h, tidemark.AcksAll, "a")
	caughtUp(t, h)
	c.Pause(0, true)
	produce(t, h, tidemark.AcksLeader, "b")
	for n := range o.Nodes {
		must(t, c.Kill(n))
	}
	closeCluster(t, c)
	c = openCluster(t, dir, o)
	h, err := c.Partition("x", 0)
	must(t, err)
	if got := fmt.Sprint(values(t, h)); h.State().Leader != 8 || got != "[a b]" {
		t.Errorf("node %d leads, with %s", h.State().Leader, got)
	}
}
