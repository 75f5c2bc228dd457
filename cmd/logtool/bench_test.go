package main

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/tidemark-log/tidemark"
)

// benchLog writes a log of batches of 100 records and returns its folder and
// size.
func benchLog(t testing.TB, valueBytes, batches int) (dir string, size int64) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "t-0")
	l, err := tidemark.Open(dir, tidemark.Options{SegmentBytes: 1 << 30, Sync: tidemark.Never})
	if err != nil {
		t.Fatal(err)
	}
	recs := make([]tidemark.Record, 100)
	for i := range batches {
		for k := range recs {
			value := bytes.Repeat([]byte{byte('a' + k%26)}, valueBytes)
			copy(value, fmt.Sprint(i*100+k))
			recs[k] = tidemark.Record{Timestamp: 1700000000000 + int64(i), Key: fmt.Appendf(nil, "key-%d", k), Value: value}
		}
		if _, err := l.Append(recs...); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(filepath.Join(dir, log0))
	if err != nil {
		t.Fatal(err)
	}
	return dir, info.Size()
}

// BenchmarkDump measures dump --json --records into nothing:
//
//	go test -run '^$' -bench Dump ./cmd/logtool
func BenchmarkDump(b *testing.B) {
	for _, size := range []int{100, 1024} {
		b.Run(fmt.Sprintf("value=%d", size), func(b *testing.B) {
			batches := 64 << 20 / (100 * (size + 16))
			dir, bytes := benchLog(b, size, batches)
			b.SetBytes(bytes)
			b.ReportAllocs()
			b.ResetTimer()
			for range b.N {
				if code := run([]string{"dump", "--json", "--records", filepath.Join(dir, log0)}, io.Discard, io.Discard); code != exitOK {
					b.Fatalf("exit %d", code)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*batches*100), "ns/record")
		})
	}
}

// Neither dump nor verify allocates for a record or batch: what they allocate
// does not grow with the log.
func TestNoAllocationsPerRecord(t *testing.T) {
	small, _ := benchLog(t, 100, 10)
	large, _ := benchLog(t, 100, 500)
	for _, args := range [][]string{
		{"dump", "--json", "--records"}, {"dump", "--records"}, {"dump", "--json"},
		{"dump", "--json", "--records", "--key", "key-7"}, {"dump", "--json", "--tail", "1"}, {"verify"},
	} {
		allocs := func(dir string) float64 {
			return testing.AllocsPerRun(3, func() {
				if code := run(append(args, dir), io.Discard, io.Discard); code != exitOK {
					t.Errorf("%v: exit %d", args, code)
				}
			})
		}
		a, b := allocs(small), allocs(large)
		// The tool's own machinery allocates a little more or less each time, and
		// buffers grow; 490 batches of 100 records do not show.
		if b-a > 100 {
			t.Errorf("%v allocates %.0f times for 10 batches and %.0f times for 500", args, a, b)
		}
	}
}

// The digits are those of the standard library, for every length and place.
func TestAppendBase64(t *testing.T) {
	p := make([]byte, 300)
	for i := range p {
		p[i] = byte(i * 7)
	}
	for n := range p {
		got := string(appendBase64([]byte("x"), p[:n]))
		if want := string(appendJSON([]byte("x"), base64.StdEncoding.EncodeToString(p[:n]))); got != want {
			t.Fatalf("%d bytes give %s; want %s", n, got, want)
		}
	}
	if got := string(appendBase64(nil, nil)); got != "null" {
		t.Errorf("nil gives %s", got)
	}
}
