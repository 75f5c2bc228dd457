package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"github.com/tidemark-log/tidemark"
	"github.com/tidemark-log/tidemark/record"
)

// workload is what the cells of replicated appends share: each list is a
// dimension of the plan.
type workload struct {
	acks      []string // "0", "1", "all"
	syncs     []string // "never", "interval", "always"
	replicas  []int
	sizes     []int
	batches   []int
	producers []int
	inflight  int // appends a producer has under way
	codec     record.Codec
	idem      bool
	rate      int // records a second, all producers together; 0: as fast as it goes
}

var acksOf = map[string]tidemark.Acks{"0": tidemark.AcksNone, "1": tidemark.AcksLeader, "all": tidemark.AcksAll}

var syncOf = map[string]tidemark.SyncMode{"never": tidemark.Never, "interval": tidemark.Interval, "always": tidemark.Always}

func defaultWorkload() workload {
	return workload{acks: []string{"0", "1", "all"}, syncs: []string{"never", "always"}, replicas: []int{replicas},
		sizes: []int{1 << 10}, batches: []int{1, maxBatch}, producers: []int{1, 16}, inflight: 1}
}

// cells lists the cells in the order of a round, each behind the bare loops of its
// share.
func (w *workload) cells() []*cell {
	var cells []*cell
	known := map[string]bool{}
	for _, sync := range w.syncs {
		for _, size := range w.sizes {
			for _, batch := range w.batches {
				for _, n := range w.producers {
					for _, rf := range w.replicas {
						var limits []string
						for _, lp := range w.limitsOf(sync, rf) {
							c := &cell{name: fmt.Sprintf("limit/%s/%s/x%d/w%d", lp, sizeName(size), batch, n), kind: string(lp),
								sync: sync, size: size, batch: batch, writers: n, run: runBareSet}
							if rf == 1 {
								c.run = runBareAppend
							}
							limits = append(limits, c.name)
							if !known[c.name] {
								known[c.name] = true
								cells = append(cells, c)
							}
						}
						for _, acks := range w.acks {
							cells = append(cells, &cell{
								name: fmt.Sprintf("produce/acks=%s/%s/rf%d/%s/x%d/w%d", acks, sync, rf, sizeName(size), batch, n),
								kind: "produce", acks: acks, sync: sync, replicas: rf, size: size, batch: batch, writers: n,
								limits: limits, load: w, run: runProduce})
						}
					}
				}
			}
		}
	}
	return cells
}

// String says what the table's columns do not.
func (w *workload) String() string {
	var s string
	if w.idem {
		s += "; producers with ids"
	}
	if w.codec != record.None {
		s += "; " + w.codec.String() + ", which the limit does without"
	}
	if w.inflight > 1 {
		s += fmt.Sprintf("; each producer has %d appends under way", w.inflight)
	}
	if w.rate > 0 {
		s += fmt.Sprintf("; %d records a second in all, p50 and p99 from when an append was due", w.rate)
	}
	return s
}

// limitsOf names the bare loops that do the necessary work of an append to so
// many replicas; none where a rate is given, which they would not keep to.
func (w *workload) limitsOf(sync string, rf int) []loop {
	switch {
	case w.rate > 0:
		return nil
	case rf == replicas && sync == "always":
		return []loop{loopSetSync}
	case rf == replicas:
		return []loop{loopSet, loopSetSpread, loopSetPopulate}
	case rf == 1 && sync == "always":
		return []loop{loopSync}
	case rf == 1:
		return []loop{loopInline, loopZeros}
	}
	return nil
}

// openCluster makes a cluster of n nodes with one partition, whose leader serves.
func (b *bench) openCluster(c *cell, dir string) (*tidemark.Cluster, *tidemark.Partition, error) {
	log := tidemark.Options{Sync: syncOf[c.sync], SegmentBytes: segmentBytes, MaxBatchBytes: 2 * maxFrame}
	cl, err := tidemark.OpenCluster(dir, tidemark.ClusterOptions{Nodes: c.replicas, Log: log})
	if err != nil {
		return nil, nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	err = cl.CreateTopic(ctx, topic, tidemark.TopicOptions{ReplicationFactor: c.replicas})
	var p *tidemark.Partition
	if err == nil {
		p, err = cl.Partition(topic, 0)
	}
	if err != nil {
		return nil, nil, errors.Join(err, cl.Close())
	}
	return cl, p, nil
}

const topic = "bench"

// runProduce appends to a partition of a fresh cluster. The clock stops once every
// replica has everything, whatever was waited for before.
func runProduce(b *bench, c *cell) (s sample, err error) {
	dir := b.scratch("cluster")
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	cl, p, err := b.openCluster(c, dir)
	if err != nil {
		return s, err
	}
	s, acked, err := b.produce(c, cl, p)
	if err == nil {
		start := time.Now()
		err = awaitReplicas(p, c.replicas, c.sync == "always")
		s.elapsed += time.Since(start)
	}
	if err = errors.Join(err, cl.Close()); err != nil {
		return s, err
	}
	return s, b.readReplicas(c, dir, 0, acked)
}

// readReplicas verifies what each replica has, behind the first so many records.
func (b *bench) readReplicas(c *cell, dir string, from int64, acked []int64) error {
	for id := range c.replicas {
		l, err := b.open(filepath.Join(dir, "node-"+strconv.Itoa(id), topic+"-0"), "never")
		if err == nil {
			err = readBack(l, from, newChecker(b.values(c.size), c.writers), acked)
			err = errors.Join(err, l.Close())
		}
		if err != nil {
			return fmt.Errorf("replica %d: %w", id, err)
		}
	}
	return nil
}

// awaitReplicas waits until every replica has what the leader has, as the topic's
// sync mode says. It polls: what it measures takes far longer than a look.
func awaitReplicas(p *tidemark.Partition, n int, synced bool) error {
	for start := time.Now(); ; time.Sleep(20 * time.Microsecond) {
		s := p.Stats()
		var end int64
		for _, r := range s.Replicas {
			if r.Err != nil {
				return fmt.Errorf("node %d: %w", r.Node, r.Err)
			}
			end = max(end, r.Log.LogEndOffset)
		}
		have := 0
		for _, r := range s.Replicas {
			if r.Up && r.Log.LogEndOffset == end && (!synced || r.Log.SyncedEnd == end) {
				have++
			}
		}
		if have == n {
			return nil
		}
		if time.Since(start) > time.Minute {
			return fmt.Errorf("replicas are not equal after a minute: %+v", s)
		}
	}
}

// A sender appends the records of one producer. waits: it returns with the ack.
type sender interface {
	send(recs []record.Record, waits bool) (ack, error)
}

// An ack is one of the two ways to wait for an append.
type ack struct {
	pending  tidemark.Pending
	delivery tidemark.Delivery
	is       bool // a delivery
	done     bool
}

func (a *ack) wait() (err error) {
	if a.done {
		return nil
	}
	if a.is {
		_, err = a.delivery.Wait(context.Background())
	} else {
		_, err = a.pending.Wait(context.Background())
	}
	return err
}

func newSender(c *cell, cl *tidemark.Cluster, p *tidemark.Partition) (sender, error) {
	acks := acksOf[c.acks]
	switch {
	case c.load.idem:
		x, err := cl.NewProducer(tidemark.ProducerOptions{Acks: acks, MaxInFlight: c.load.inflight, Codec: c.load.codec})
		return idempotent{x, p}, err
	case c.load.codec == record.None:
		return plain{p, acks}, nil
	}
	x := &batches{p: p, acks: acks, spec: record.NewSpec()}
	x.spec.Codec = c.load.codec
	return x, nil
}

// idempotent sends again until it is there once.
type idempotent struct {
	x *tidemark.Producer
	p *tidemark.Partition
}

func (x idempotent) send(recs []record.Record, waits bool) (ack, error) {
	if waits {
		_, err := x.x.Produce(context.Background(), x.p, recs...)
		return ack{done: true}, err
	}
	d, err := x.x.ProduceAsync(context.Background(), x.p, recs...)
	return ack{delivery: d, is: true}, err
}

// plain has the log encode the records in place.
type plain struct {
	p    *tidemark.Partition
	acks tidemark.Acks
}

func (x plain) send(recs []record.Record, waits bool) (ack, error) {
	if waits {
		_, err := x.p.Produce(context.Background(), x.acks, recs...)
		return ack{done: true}, err
	}
	a, err := x.p.ProduceAsync(context.Background(), x.acks, recs...)
	return ack{pending: a}, err
}

// batches compresses them first.
type batches struct {
	p    *tidemark.Partition
	acks tidemark.Acks
	spec record.Spec
	b    record.Builder
}

func (x *batches) send(recs []record.Record, waits bool) (ack, error) {
	x.spec.Now = time.Now().UnixMilli()
	b, err := x.b.Build(recs, &x.spec)
	if err != nil {
		return ack{}, err
	}
	if waits {
		_, err := x.p.ProduceBatch(context.Background(), x.acks, b)
		return ack{done: true}, err
	}
	a, err := x.p.ProduceBatchAsync(context.Background(), x.acks, b)
	return ack{pending: a}, err
}

// produce drives c's producers until c's time has passed or the cap is reached.
func (b *bench) produce(c *cell, cl *tidemark.Cluster, p *tidemark.Partition) (s sample, acked []int64, err error) {
	senders := make([]sender, c.writers)
	for w := range senders {
		if senders[w], err = newSender(c, cl, p); err != nil {
			return s, nil, err
		}
	}
	budget := max(b.calls(c)/int64(c.replicas)/int64(c.writers), 1)
	return b.writers(c, c.acks != "0", func(w int, vals *values, lat *hdrhistogram.Histogram, start time.Time) (int64, error) {
		return b.produceOne(c, w, vals, senders[w], lat, budget, start)
	})
}

// produceOne is one producer: it sends its next batch when less than inflight are
// under way or, at a fixed rate, when that is due; then its latency counts from
// when it was due, not from when it could be sent (no coordinated omission).
func (b *bench) produceOne(c *cell, w int, vals *values, to sender, lat *hdrhistogram.Histogram, budget int64, start time.Time) (acked int64, err error) {
	type sent struct {
		ack ack
		at  time.Time
	}
	under := make([]sent, 0, c.load.inflight)
	settle := func() error {
		x := under[0]
		under = append(under[:0], under[1:]...)
		if err := x.ack.wait(); err != nil {
			return err
		}
		observe(lat, time.Since(x.at))
		return nil
	}
	var every time.Duration
	if c.load.rate > 0 {
		every = time.Duration(float64(c.batch*c.writers) / float64(c.load.rate) * float64(time.Second))
	}
	recs := make([]record.Record, c.batch)
	look := max(64<<10/frameSize(c.batch, c.size), 1)
	if lat != nil || every > 0 {
		look = 1
	}
	for n := int64(0); n < budget; n++ {
		var at time.Time
		switch {
		case every > 0:
			at = start.Add(time.Duration(n) * every)
			time.Sleep(time.Until(at))
		case lat != nil:
			at = time.Now()
		}
		for i := range recs {
			recs[i].Value = vals.at(w, acked+int64(i))
		}
		a, err := to.send(recs, cap(under) == 1)
		if err != nil {
			return acked, err
		}
		acked += int64(c.batch)
		if lat != nil {
			if under = append(under, sent{a, at}); len(under) == cap(under) {
				if err := settle(); err != nil {
					return acked, err
				}
			}
		}
		if (n+1)%look == 0 && time.Since(start) >= b.t {
			break
		}
	}
	for len(under) > 0 {
		if err := settle(); err != nil {
			return acked, err
		}
	}
	return acked, nil
}
