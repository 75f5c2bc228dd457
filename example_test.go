package tidemark_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/tidemark-log/tidemark"
)

// examples is where the directories of all examples are.
var examples string

// TestMain removes what the examples leave, who have no t to do it.
func TestMain(m *testing.M) {
	defer func() { os.RemoveAll(examples) }()
	m.Run()
}

// exampleDir returns a directory for a log, made anew for each example.
func exampleDir() string {
	var err error
	if examples == "" {
		if examples, err = os.MkdirTemp("", "tidemark-examples-"); err != nil {
			log.Fatal(err)
		}
	}
	dir, err := os.MkdirTemp(examples, "")
	if err != nil {
		log.Fatal(err)
	}
	return filepath.Join(dir, "orders")
}

func Example() {
	l, err := tidemark.Open(exampleDir(), tidemark.Options{})
	if err != nil {
		log.Fatal(err)
	}
	// On disk when Append returns.
	base, err := l.Append(
		tidemark.Record{Key: []byte("42"), Value: []byte("ordered")},
		tidemark.Record{Key: []byte("42"), Value: []byte("paid")},
	)
	if err != nil {
		log.Fatal(err)
	}
	for r, err := range l.Records(base) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%d %s=%s\n", r.Offset, r.Key, r.Value)
	}
	if err := l.Close(); err != nil {
		log.Fatal(err)
	}
	// Output:
	// 0 42=ordered
	// 1 42=paid
}

func ExampleLog_Append() {
	l, err := tidemark.Open(exampleDir(), tidemark.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer l.Close()
	base, err := l.Append(tidemark.Record{Value: []byte("a")}, tidemark.Record{Value: []byte("b")})
	fmt.Println(base, l.LogEndOffset(), err)
	// Output: 0 2 <nil>
}

// Many appends under way at once share one fdatasync.
func ExampleLog_AppendAsync() {
	l, err := tidemark.Open(exampleDir(), tidemark.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer l.Close()
	var acks []tidemark.Ack
	for i := range 100 {
		ack, err := l.AppendAsync(tidemark.Record{Value: fmt.Append(nil, i)})
		if err != nil {
			log.Fatal(err)
		}
		acks = append(acks, ack)
	}
	for _, ack := range acks {
		if err := ack.Wait(context.Background()); err != nil {
			log.Fatal(err)
		}
	}
	fmt.Println(l.SyncedEnd())
	// Output: 100
}

func ExampleLog_Tail() {
	l, err := tidemark.Open(exampleDir(), tidemark.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer l.Close()
	go func() {
		for i := range 3 {
			if _, err := l.Append(tidemark.Record{Value: fmt.Append(nil, "event ", i)}); err != nil {
				log.Print(err)
			}
		}
	}()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for r, err := range l.Tail(ctx, 0) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(string(r.Value))
		if r.Offset == 2 {
			break
		}
	}
	// Output:
	// event 0
	// event 1
	// event 2
}

func ExampleLog_OffsetForTime() {
	l, err := tidemark.Open(exampleDir(), tidemark.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer l.Close()
	noon := time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)
	for i := range 5 {
		at := noon.Add(time.Duration(i) * time.Minute)
		if _, err := l.Append(tidemark.Record{Timestamp: at.UnixMilli(), Value: []byte("v")}); err != nil {
			log.Fatal(err)
		}
	}
	fmt.Println(l.OffsetForTime(noon.Add(90 * time.Second)))
	// Output: 2 true <nil>
}

func ExampleLog_Backup() {
	dir := exampleDir()
	l, err := tidemark.Open(dir, tidemark.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer l.Close()
	if _, err := l.Append(tidemark.Record{Value: []byte("v")}); err != nil {
		log.Fatal(err)
	}
	if err := l.Backup(dir + "-copy"); err != nil {
		log.Fatal(err)
	}
	c, err := tidemark.Open(dir+"-copy", tidemark.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	fmt.Println(c.LogEndOffset(), c.ID() != l.ID())
	// Output: 1 true
}

// A folder holds many partitions, each a log.
func ExampleOpenFolder() {
	f, err := tidemark.OpenFolder(exampleDir(), tidemark.FolderOptions{})
	if err != nil {
		log.Fatal(err)
	}
	for i := range int32(3) {
		l, err := f.Create(tidemark.TopicPartition{Topic: "orders", Partition: i}, tidemark.UUID{})
		if err != nil {
			log.Fatal(err)
		}
		if _, err := l.Append(tidemark.Record{Value: fmt.Append(nil, "for ", i)}); err != nil {
			log.Fatal(err)
		}
	}
	for _, p := range f.Partitions() {
		l, err := f.Log(p)
		if err != nil {
			log.Fatal(err)
		}
		r, err := l.Get(0, nil)
		fmt.Println(p, l.LogEndOffset(), string(r.Value), err)
	}
	if err := f.Close(); err != nil {
		log.Fatal(err)
	}
	// Output:
	// orders-0 1 for 0 <nil>
	// orders-1 1 for 1 <nil>
	// orders-2 1 for 2 <nil>
}

func ExampleOpenCluster() {
	ctx := context.Background()
	c, err := tidemark.OpenCluster(exampleDir(), tidemark.ClusterOptions{})
	if err != nil {
		log.Fatal(err)
	}
	if err := c.CreateTopic(ctx, "orders", tidemark.TopicOptions{Partitions: 2, MinISR: 2}); err != nil {
		log.Fatal(err)
	}
	orders, err := c.Partition("orders", 1)
	if err != nil {
		log.Fatal(err)
	}
	// Whoever fails, each batch is appended once and in order.
	p, err := c.NewProducer(tidemark.ProducerOptions{})
	if err != nil {
		log.Fatal(err)
	}
	defer p.Close()
	// On the disks of all in-sync replicas when Produce returns.
	base, err := p.Produce(ctx, orders, tidemark.Record{Key: []byte("42"), Value: []byte("paid")})
	if err != nil {
		log.Fatal(err)
	}
	// From now on an ack means three copies, and refuses to be less.
	if err := c.SetMinISR(ctx, "orders", 3); err != nil {
		log.Fatal(err)
	}
	// Leaders go back to where they were at first, after nodes were away.
	if err := c.ElectPreferred(ctx, "orders", 1); err != nil {
		log.Fatal(err)
	}
	for r, err := range orders.Records(base) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%d %s=%s, in sync %d\n", r.Offset, r.Key, r.Value, len(orders.State().ISR))
	}
	if err := c.Close(); err != nil {
		log.Fatal(err)
	}
	// Output: 0 42=paid, in sync 3
}
