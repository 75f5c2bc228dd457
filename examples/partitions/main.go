// Command partitions keeps lines in a data folder of several partitions, in the
// layout of a Kafka broker: the first word of a line is its key, and lines with
// the same key go to the same partition, in order.
//
//	printf 'ann opened\nbob opened\nann closed\n' | go run ./examples/partitions -dir data
//	go run ./examples/partitions -dir data -list
package main

import (
	"bufio"
	"bytes"
	"crypto/rand"
	"flag"
	"fmt"
	"hash/fnv"
	"io"
	"log"
	"os"

	"github.com/tidemark-log/tidemark"
)

func main() {
	dir := flag.String("dir", "data", "data folder")
	topic := flag.String("topic", "accounts", "topic of the lines")
	n := flag.Int("partitions", 4, "partitions of a new topic")
	list := flag.Bool("list", false, "print what is there instead of appending")
	flag.Parse()
	if err := run(*dir, *topic, int32(*n), *list, os.Stdin, os.Stdout); err != nil {
		log.Fatal(err)
	}
}

func run(dir, topic string, n int32, list bool, in io.Reader, out io.Writer) (err error) {
	f, err := tidemark.OpenFolder(dir, tidemark.FolderOptions{})
	if err != nil {
		return err
	}
	defer func() {
		if e := f.Close(); err == nil {
			err = e
		}
	}()
	if list {
		return show(f, out)
	}
	logs, err := open(f, topic, n)
	if err != nil {
		return err
	}
	lines := bufio.NewScanner(in)
	for lines.Scan() {
		key, value, _ := bytes.Cut(lines.Bytes(), []byte(" "))
		h := fnv.New32a()
		h.Write(key)
		i := h.Sum32() % uint32(len(logs))
		base, err := logs[i].Append(tidemark.Record{Key: key, Value: value})
		if err != nil {
			return err
		}
		fmt.Fprintf(out, "%s-%d offset %d: %s\n", topic, i, base, key)
	}
	return lines.Err()
}

// open returns the logs of a topic, making n partitions if it has none.
func open(f *tidemark.Folder, topic string, n int32) (logs []*tidemark.Log, err error) {
	for _, p := range f.Partitions() {
		if p.Topic != topic {
			continue
		}
		l, err := f.Log(p)
		if err != nil {
			return nil, fmt.Errorf("partition %s: %w", p, err)
		}
		logs = append(logs, l)
	}
	if len(logs) > 0 {
		return logs, nil
	}
	if n < 1 {
		return nil, fmt.Errorf("topic %s: %d partitions, want at least 1", topic, n)
	}
	var id tidemark.UUID // one for the whole topic
	rand.Read(id[:])
	for i := range n {
		l, err := f.Create(tidemark.TopicPartition{Topic: topic, Partition: i}, id)
		if err != nil {
			return nil, err
		}
		logs = append(logs, l)
	}
	return logs, nil
}

// show prints every record of every partition.
func show(f *tidemark.Folder, out io.Writer) error {
	for _, p := range f.Partitions() {
		l, err := f.Log(p)
		if err != nil { // the others can be read all the same
			fmt.Fprintf(out, "%s: %v\n", p, err)
			continue
		}
		fmt.Fprintf(out, "%s: offsets %d to %d\n", p, l.LogStartOffset(), l.HighWatermark())
		for r, err := range l.Records(l.LogStartOffset()) {
			if err != nil {
				return fmt.Errorf("partition %s: %w", p, err)
			}
			fmt.Fprintf(out, "  %d %s %s\n", r.Offset, r.Key, r.Value)
		}
	}
	return nil
}
