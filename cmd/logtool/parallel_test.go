package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tidemark-log/tidemark/internal/checkpoint"
)

// What verify prints does not depend on how many partitions are read at once.
func TestVerifyJobsOrder(t *testing.T) {
	data := t.TempDir()
	good := batch(t, 0, nil, 1, 2, 3)
	for i := range 40 {
		dir := filepath.Join(data, fmt.Sprintf("t-%d", i))
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		b := bytes.Repeat(good, 1+i%7)
		if i%3 == 0 {
			b[70] ^= 1
		}
		write(t, filepath.Join(dir, log0), b)
		write(t, filepath.Join(dir, "strange"), nil)
		write(t, filepath.Join(dir, checkpoint.PartitionFile), checkpoint.AppendPartition(nil, checkpoint.Partition{TopicID: checkpoint.UUID{byte(1 + i%2)}}))
	}
	if err := os.Mkdir(filepath.Join(data, "t-99"), 0); err != nil { // unreadable, but for root
		t.Fatal(err)
	}
	for _, args := range [][]string{{"verify", "--notes", data}, {"verify", "--json", data}} {
		code, want, wantErr := logtool(append(args, "--jobs=1")...)
		if code != exitDamage || strings.Count(want, "topic id") < 5 {
			t.Fatalf("exit %d\n%s", code, want)
		}
		for range 5 {
			if code, out, stderr := logtool(append(args, "--jobs=8")...); code != exitDamage || out != want || stderr != wantErr {
				t.Fatalf("with 8 jobs exit %d and\n%s%s\nwant %s%s", code, out, stderr, want, wantErr)
			}
		}
	}
}

// Jobs that write more than may be kept wait for their turn; nothing is lost
// and nothing out of order, and those that fail say so.
func TestSequence(t *testing.T) {
	var out, errs, want bytes.Buffer
	order := newSequence(100)
	const n = 30
	line := func(i, k int) string { return fmt.Sprintf("job %d line %d\n", i, k) }
	for i := range n {
		for k := range i {
			want.WriteString(line(i, k))
		}
	}
	inOrder(n, 7, func(i int) bool {
		w, e := order.writer(i, &out), order.writer(i, &errs)
		if i%4 == 0 {
			time.Sleep(time.Millisecond)
		}
		for k := range i {
			fmt.Fprint(w, line(i, k))
			fmt.Fprint(e, line(i, k))
		}
		return true
	}, func(i int, ok bool) {
		order.mu.Lock()
		if kept := order.kept; kept > 100+7*2*len(line(99, 99)) {
			t.Errorf("%d bytes kept", kept)
		}
		order.mu.Unlock()
		order.end(i)
	})
	if out.String() != want.String() || errs.String() != want.String() {
		t.Errorf("got %s\nand %s\nwant %s", &out, &errs, &want)
	}
}
