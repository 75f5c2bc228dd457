package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"github.com/tidemark-log/tidemark"
	"github.com/tidemark-log/tidemark/record"
)

// A scheme says when an append to several replicas is acknowledged.
type scheme struct {
	name     string // "isr": by all in-sync replicas; "quorum": by a majority of all
	failures int    // replicas that may fail without a loss
	slow     time.Duration
	lagMax   time.Duration
}

// replicas is how many a scheme needs for its failures: a majority must outlive
// them, or one member of the ISR.
func (s *scheme) replicas() int {
	if s.name == "quorum" {
		return 2*s.failures + 1
	}
	return s.failures + 1
}

// acks is how many replicas must have a record.
func (s *scheme) acks(isr int) int {
	if s.name == "quorum" {
		return s.failures + 1
	}
	return isr
}

var schemes = map[string]bool{"isr": true, "quorum": true}

// schemeCells compares the schemes, for one failure and two: all replicas equally
// fast, the disk of one follower slow, and under ISR one so slow that it leaves.
func schemeCells(names []string, slow time.Duration) []*cell {
	var cells []*cell
	for _, f := range []int{1, 2} {
		for _, name := range names {
			add := func(what string, slow, lagMax time.Duration) {
				s := &scheme{name: name, failures: f, slow: slow, lagMax: lagMax}
				cells = append(cells, &cell{name: fmt.Sprintf("scheme/%s/failures=%d/%s", name, f, what), kind: "scheme",
					acks: name, sync: "always", replicas: s.replicas(), size: 1 << 10, batch: 1, writers: 4, scheme: s, run: runScheme})
			}
			add("even", 0, 30*time.Second)
			add("slow", slow, 30*time.Second)
			if name == "isr" {
				add("left", slow, slow)
			}
		}
	}
	return cells
}

// runScheme waits for every append by looking at what each replica has confirmed to
// the leader, the same way for both schemes.
func runScheme(b *bench, c *cell) (s sample, err error) {
	dir := b.scratch("scheme")
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	slow := int(c.replicas) - 1
	cl, err := tidemark.OpenCluster(dir, tidemark.ClusterOptions{Nodes: c.replicas, LagMax: max(c.scheme.lagMax, 10*time.Millisecond),
		SlowDisk: func(node int) time.Duration {
			if node == slow {
				return c.scheme.slow
			}
			return 0
		}})
	if err != nil {
		return s, err
	}
	defer func() { err = errors.Join(err, cl.Close()) }() // once more is no error
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	nodes := make([]int32, c.replicas)
	for i := range nodes {
		nodes[i] = int32(i)
	}
	if err := cl.CreateTopic(ctx, topic, tidemark.TopicOptions{Replicas: [][]int32{nodes}, MinISR: 1}); err != nil {
		return s, err
	}
	p, err := cl.Partition(topic, 0)
	if err != nil {
		return s, err
	}
	vals := b.values(c.size)
	warmed := int64(0)
	one := func(value []byte) error {
		base, err := p.Produce(ctx, tidemark.AcksLeader, record.Record{Value: value})
		if err != nil {
			return err
		}
		return awaitHaving(ctx, p, base+1, c.scheme)
	}
	if err := one(vals.at(0, 0)); err != nil { // the first finds everybody still getting ready
		return s, err
	}
	warmed++
	if c.scheme.lagMax <= c.scheme.slow { // and for the slow one to leave
		for until := time.Now().Add(2*c.scheme.lagMax + 100*time.Millisecond); time.Now().Before(until); {
			if err := one(vals.at(0, 0)); err != nil {
				return s, err
			}
			warmed++
		}
	}
	s, acked, err := b.writers(c, true, func(w int, vals *values, lat *hdrhistogram.Histogram, start time.Time) (n int64, err error) {
		for time.Since(start) < max(b.t, 10*c.scheme.slow) {
			t0 := time.Now()
			if err := one(vals.at(w, n)); err != nil {
				return n, err
			}
			observe(lat, time.Since(t0))
			n++
		}
		return n, nil
	})
	if l := p.State().Leader; l == slow {
		err = errors.Join(err, fmt.Errorf("node %d leads, whose disk is the slow one", l))
	}
	if err == nil {
		err = awaitReplicas(p, c.replicas, true)
	}
	if err = errors.Join(err, cl.Close()); err != nil {
		return s, err
	}
	return s, b.readReplicas(c, dir, warmed, acked)
}

// awaitHaving returns once as many replicas as the scheme asks for have confirmed
// everything below end.
func awaitHaving(ctx context.Context, p *tidemark.Partition, end int64, s *scheme) error {
	var leo int64 // as the look before saw it: a lag is older than the rest of its look
	for {
		st := p.Stats()
		have, isr := 0, 0
		for _, r := range st.Replicas {
			if r.InISR {
				isr++
			}
			if s.name == "isr" && !r.InISR {
				continue
			}
			has := leo - r.Lag
			if r.Role == "leading" {
				has = r.Log.SyncedEnd
			}
			if r.Lag >= 0 && has >= end {
				have++
			}
		}
		if have >= s.acks(isr) {
			return nil
		}
		for _, r := range st.Replicas {
			if r.Role == "leading" {
				leo = r.Log.LogEndOffset
			}
		}
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("%d of %d replicas have offset %d: %w", have, s.acks(isr), end-1, err)
		}
		time.Sleep(20 * time.Microsecond)
	}
}
