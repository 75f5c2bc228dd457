package index

import (
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"testing"

	"github.com/tidemark-log/tidemark/internal/vfs"
)

var benchSink int64

// benchOffsets returns ascending relative offsets: batches of about equal
// size, or bursts of tiny batches between long runs of large ones.
func benchOffsets(kind string, n int) []int64 {
	rng := rand.New(rand.NewPCG(1, 2))
	offsets := make([]int64, n)
	at := int64(0)
	for i := range offsets {
		switch {
		case kind == "uniform":
			at += 30 + rng.Int64N(20)
		case i/100%2 == 0:
			at += 1
		default:
			at += 1 + rng.Int64N(1+int64(i%5000))
		}
		offsets[i] = at
	}
	return offsets
}

func fillOffsets(tb testing.TB, x *Offset, offsets []int64) {
	tb.Helper()
	for i, o := range offsets {
		if err := x.Append(x.Base()+o, int64(i+1)*4096%(1<<31)); err != nil {
			tb.Fatal(err)
		}
	}
}

// go test -run - -bench OffsetLookup ./index
func BenchmarkOffsetLookup(b *testing.B) {
	for _, kind := range []string{"uniform", "skewed"} {
		for _, n := range []int{1 << 10, 1 << 16} {
			offsets := benchOffsets(kind, n)
			x, err := OpenOffset(vfs.OS, filepath.Join(b.TempDir(), "0.index"), 0, Options{Writable: true})
			if err != nil {
				b.Fatal(err)
			}
			fillOffsets(b, x, offsets)
			rng := rand.New(rand.NewPCG(3, 4))
			targets := make([]int64, 1<<12)
			for i := range targets {
				targets[i] = rng.Int64N(offsets[n-1])
			}
			b.Run(fmt.Sprintf("data=%s/entries=%d", kind, n), func(b *testing.B) {
				b.ReportAllocs()
				i := 0
				for b.Loop() {
					_, benchSink = x.Lookup(targets[i&(len(targets)-1)])
					i++
				}
			})
			x.Close()
		}
	}
}

// go test -run - -bench OffsetAppend ./index
func BenchmarkOffsetAppend(b *testing.B) {
	x, err := OpenOffset(vfs.OS, filepath.Join(b.TempDir(), "0.index"), 0, Options{Writable: true})
	if err != nil {
		b.Fatal(err)
	}
	defer x.Close()
	b.ReportAllocs()
	n := int64(0)
	for b.Loop() {
		if n == 1<<20 {
			b.StopTimer()
			if err := x.Reset(); err != nil {
				b.Fatal(err)
			}
			n = 0
			b.StartTimer()
		}
		n++
		if err := x.Append(n, n); err != nil {
			b.Fatal(err)
		}
	}
}

// go test -run - -bench TimeLookup ./index
func BenchmarkTimeLookup(b *testing.B) {
	x, err := OpenTime(vfs.OS, filepath.Join(b.TempDir(), "0.timeindex"), 0, Options{Writable: true})
	if err != nil {
		b.Fatal(err)
	}
	defer x.Close()
	const n = 1 << 16
	for i := range int64(n) {
		if err := x.Append(1700000000000+17*i, 40*i+39); err != nil {
			b.Fatal(err)
		}
	}
	rng := rand.New(rand.NewPCG(3, 4))
	b.ReportAllocs()
	for b.Loop() {
		_, benchSink = x.Lookup(1700000000000 + rng.Int64N(17*n))
	}
}
