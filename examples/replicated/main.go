// Command replicated keeps a topic on three nodes in one process and has them fail
// under a producer: a follower dies and comes back, then the leader does. Everything
// that was acknowledged is there in the end, once and in order, on all three.
//
//	go run ./examples/replicated -dir cluster
//	go run ./cmd/logtool diff cluster/node-0/events-0 cluster/node-1/events-0
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"time"

	"github.com/tidemark-log/tidemark"
)

func main() {
	dir := flag.String("dir", "cluster", "directory of the cluster")
	flag.Parse()
	if flag.NArg() > 0 {
		log.Fatalf("unexpected argument %q; -dir names the directory", flag.Arg(0))
	}
	if err := run(*dir, os.Stdout); err != nil {
		log.Fatal(err)
	}
}

func run(dir string, out io.Writer) (err error) {
	// A dead node is noticed after a second here; the default is nine.
	c, err := tidemark.OpenCluster(dir, tidemark.ClusterOptions{SessionTimeout: time.Second, FetchBackoff: 50 * time.Millisecond})
	if err != nil {
		return err
	}
	defer func() {
		if e := c.Close(); err == nil {
			err = e
		}
	}()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	if err := c.CreateTopic(ctx, "events", tidemark.TopicOptions{MinISR: 2}); err != nil && !errors.Is(err, tidemark.ErrTopicExists) {
		return err
	}
	events, err := c.Partition("events", 0)
	if err != nil {
		return err
	}
	// The producer has an id and counts its batches: what it sends again is appended
	// once. It waits for all in-sync replicas, which are at least two, to have each
	// batch on disk.
	p, err := c.NewProducer(tidemark.ProducerOptions{})
	if err != nil {
		return err
	}
	defer p.Close()
	n := 0
	produce := func(count int) error {
		for range count {
			n++
			if _, err := p.Produce(ctx, events, tidemark.Record{Value: fmt.Appendf(nil, "event %d", n)}); err != nil {
				return err
			}
		}
		s := events.State()
		fmt.Fprintf(out, "%d events acknowledged; node %d leads in epoch %d, in sync are %v\n", n, s.Leader, s.LeaderEpoch, s.ISR)
		return nil
	}
	inSync := func() error {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		for s := range events.Subscribe(ctx, tidemark.ChangedISR|tidemark.ChangedLeader) {
			if len(s.ISR) == 3 {
				fmt.Fprintln(out, "all three are in sync again")
				return nil
			}
		}
		return ctx.Err()
	}

	if err := produce(10); err != nil {
		return err
	}
	follower := (events.State().Leader + 1) % 3
	fmt.Fprintf(out, "\nnode %d, a follower, dies\n", follower)
	if err := c.Kill(follower); err != nil {
		return err
	}
	if err := produce(10); err != nil { // the first waits until the dead node has left the ISR
		return err
	}
	if err := c.Start(ctx, follower); err != nil {
		return err
	}
	if err := inSync(); err != nil {
		return err
	}

	leader := events.State().Leader
	fmt.Fprintf(out, "\nnode %d, the leader, dies\n", leader)
	if err := c.Kill(leader); err != nil {
		return err
	}
	if err := produce(10); err != nil { // sent to whoever leads next
		return err
	}
	if err := c.Start(ctx, leader); err != nil {
		return err
	}
	if err := inSync(); err != nil {
		return err
	}

	seen := 0
	for _, err := range events.Records(0) {
		if err != nil {
			return err
		}
		seen++
	}
	fmt.Fprintf(out, "\n%d records can be read\n", seen)
	return nil
}
