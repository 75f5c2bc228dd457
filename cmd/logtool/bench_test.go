package main

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/tidemark-log/tidemark"
	"github.com/tidemark-log/tidemark/record"
)

// benchLog writes a log of batches of 100 records and returns its folder and
// size.
func benchLog(t testing.TB, valueBytes, batches int) (dir string, size int64) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "t-0")
	l, err := tidemark.Open(dir, tidemark.Options{Sync: tidemark.Never})
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

// readAndCheck is what no verification can do without: read the file and take
// the checksum of each batch, in a buffer of that size.
func readAndCheck(t testing.TB, path string, bufSize int) time.Duration {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	castagnoli := crc32.MakeTable(crc32.Castagnoli)
	buf := make([]byte, bufSize)
	start := time.Now()
	kept := 0
	for {
		n, err := f.Read(buf[kept:])
		p := buf[:kept+n]
		for len(p) >= record.HeaderSize {
			b := record.Batch(p)
			if b.Size() > len(p) {
				break
			}
			b = b[:b.Size()]
			crc, rest := uint32(0), []byte(b[21:])
			for len(rest) > 0 {
				piece := min(len(rest), 2016) // shorter than what makes the processor lose track
				crc = crc32.Update(crc, castagnoli, rest[:piece])
				rest = rest[piece:]
			}
			if crc != b.CRC() {
				t.Fatal("checksum differs")
			}
			p = p[len(b):]
		}
		kept = copy(buf, p)
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if kept > 0 {
		t.Fatalf("%d bytes left", kept)
	}
	return time.Since(start)
}

// BenchmarkVerify measures verify of a partition against readAndCheck of its
// log, on one processor, turn about in the same run:
//
//	go test -run '^$' -bench Verify -benchtime 20x ./cmd/logtool
//
// share is the median of the ratios, beside the least and the greatest.
func BenchmarkVerify(b *testing.B) {
	for _, size := range []int{100, 1024} {
		b.Run(fmt.Sprintf("value=%d", size), func(b *testing.B) {
			dir, bytes := benchLog(b, size, 128<<20/(100*(size+16)))
			log := filepath.Join(dir, log0)
			defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
			var shares []float64
			var total, limit time.Duration
			b.ResetTimer()
			for range b.N {
				best := min(readAndCheck(b, log, 1<<20), readAndCheck(b, log, 256<<10))
				start := time.Now()
				if code, out, stderr := logtool("verify", dir); code != exitOK {
					b.Fatalf("exit %d\n%s%s", code, out, stderr)
				}
				took := time.Since(start)
				total, limit = total+took, limit+best
				shares = append(shares, best.Seconds()/took.Seconds())
			}
			slices.Sort(shares)
			b.SetBytes(bytes)
			b.ReportMetric(shares[len(shares)/2], "share")
			b.ReportMetric(shares[0], "share-least")
			b.ReportMetric(shares[len(shares)-1], "share-greatest")
			b.ReportMetric(float64(bytes)*float64(b.N)/1e6/total.Seconds(), "verify-MB/s")
			b.ReportMetric(float64(bytes)*float64(b.N)/1e6/limit.Seconds(), "limit-MB/s")
		})
	}
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
