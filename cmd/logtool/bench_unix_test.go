//go:build unix

package main

import (
	"fmt"
	"hash/crc32"
	"io"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/tidemark-log/tidemark/record"
)

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
	start := cpuTime(t)
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
	return cpuTime(t) - start
}

// BenchmarkVerify measures verify of a partition against readAndCheck of its
// log, in time of the processor, turn about in the same run:
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
			// The buffer with which this machine is faster, then one run of either a
			// round: the better of two would be a limit that nothing reaches twice.
			buffer, fastest := 0, time.Duration(math.MaxInt64)
			for range 3 {
				for _, size := range []int{256 << 10, 1 << 20} {
					if took := readAndCheck(b, log, size); took < fastest {
						buffer, fastest = size, took
					}
				}
			}
			b.ResetTimer()
			for range b.N {
				bare := readAndCheck(b, log, buffer)
				start := cpuTime(b)
				if code, out, stderr := logtool("verify", dir); code != exitOK {
					b.Fatalf("exit %d\n%s%s", code, out, stderr)
				}
				took := cpuTime(b) - start
				total, limit = total+took, limit+bare
				shares = append(shares, bare.Seconds()/took.Seconds())
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

// cpuTime is the time that processors have spent on this process.
func cpuTime(t testing.TB) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
