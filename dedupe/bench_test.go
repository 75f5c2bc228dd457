package dedupe

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/tidemark-log/tidemark/record"
)

// fill makes a table of n producers with windows of batches each.
func fill(n, batches int) *Table {
	tab := New(Options{MaxProducers: max(n, 1)})
	b := sent{count: 1, ts: 1}.batch()
	for round := range batches {
		for pid := range n {
			set(b, int64(pid), int32(round))
			tab.Update(b, int64(round*n+pid))
		}
	}
	return tab
}

// set makes b the batch of a producer that begins with sequence seq.
func set(b record.Batch, pid int64, seq int32) {
	binary.BigEndian.PutUint64(b[43:], uint64(pid))
	binary.BigEndian.PutUint32(b[53:], uint32(seq))
}

// go test -run - -bench CheckUpdate ./dedupe
//
// Rounds of one check and update of each producer, in random order, in turn with
// rounds of a bare read, compare and write in an array of the table's size, each
// under a mutex as in an append. ratio is the median of the paired rounds.
//
// In turn: which producer is next depends on what was read of the one before, as
// appends do wait for each other. The others name all producers beforehand: the
// processor reads several entries of the bare array ahead of their turn, some of
// them where an entry takes hundreds of instructions.
func BenchmarkCheckUpdate(b *testing.B) {
	for _, n := range []int{1000, 1_000_000} {
		for _, batches := range []int{1, 5} {
			tab := fill(n, batches)
			for _, turn := range []bool{true, false} {
				b.Run(fmt.Sprintf("producers=%d/batches=%d/turn=%v", n, batches, turn), func(b *testing.B) {
					benchCheckUpdate(b, tab, n, batches, turn)
				})
			}
		}
	}
}

func benchCheckUpdate(b *testing.B, tab *Table, n, batches int, turn bool) {
	var mu sync.Mutex
	size := int(tab.Stats().Bytes) / n / 8 * 8
	array := make([]uint64, n*size/8+8)
	for i := range array { // no page of zeros that all share
		array[i] = 0
	}
	order := rand.New(rand.NewPCG(1, 2)).Perm(n)
	head := sent{count: 1, ts: 1}.batch()
	p, _ := tab.Get(0)
	last, _ := p.Last()
	round, epoch := last.LastSequence+1, p.Epoch
	offset := last.LastOffset + int64(n)
	next := func() { // batches of another round
		if round++; batches == 1 { // of one batch: each round restarts the window
			epoch++
			round = 0
			binary.BigEndian.PutUint16(head[51:], uint16(epoch))
		}
	}
	round--
	next()
	table := func(pids []int) {
		zero := 0
		for _, pid := range pids {
			pid += zero
			set(head, int64(pid), round)
			mu.Lock()
			if _, dup, err := tab.Check(head); dup || err != nil {
				b.Fatal(dup, err)
			}
			tab.Update(head, offset)
			mu.Unlock()
			offset++
			if turn {
				zero = int(tab.lastPart.slots[tab.lastSlot].pid) - pid
			}
		}
	}
	bare := func(pids []int) {
		zero := 0
		for _, pid := range pids {
			pid += zero
			set(head, int64(pid), round)
			mu.Lock()
			e := array[pid*size/8:][:8]
			if e[0] > binary.BigEndian.Uint64(head[43:]) {
				b.Fatal("order")
			}
			e[0] = uint64(pid) >> 40
			e[3] = uint64(offset)
			e[4]++
			e[7] = e[4]
			mu.Unlock()
			offset++
			if turn {
				zero = int(e[4] >> 40)
			}
		}
	}
	var ratios, ours, theirs []float64
	var before, after runtime.MemStats
	table(order)
	bare(order)
	runtime.ReadMemStats(&before)
	done := 0
	// Rounds are short, so that few of them are interrupted.
	for done < b.N || done < n {
		next()
		for pids := range slices.Chunk(order, 500) {
			start := time.Now()
			table(pids)
			mid := time.Now()
			bare(pids)
			end := time.Now()
			ratios = append(ratios, float64(mid.Sub(start))/float64(end.Sub(mid)))
			ours = append(ours, float64(mid.Sub(start))/float64(len(pids)))
			theirs = append(theirs, float64(end.Sub(mid))/float64(len(pids)))
			done += len(pids)
		}
	}
	next()
	runtime.ReadMemStats(&after)
	median := func(x []float64) float64 { slices.Sort(x); return x[len(x)/2] }
	b.ReportMetric(median(ratios), "ratio")
	b.ReportMetric(median(ours), "ns/check+update")
	b.ReportMetric(median(theirs), "ns/bare")
	b.ReportMetric(float64(size), "B/producer")
	b.ReportMetric(float64(after.Mallocs-before.Mallocs)/float64(done), "allocs/check+update")
	b.ReportMetric(0, "ns/op")
}

// go test -run - -bench Files -benchtime 5x ./dedupe
func BenchmarkFiles(b *testing.B) {
	for _, batches := range []int{1, 5} {
		for _, kind := range []string{"snapshot", "window"} {
			b.Run(fmt.Sprintf("producers=1000000/batches=%d/file=%s", batches, kind), func(b *testing.B) {
				tab := fill(1_000_000, batches)
				end := int64(batches) * 1_000_000
				name := filepath.Join(b.TempDir(), "f")
				var write, load, sync time.Duration
				var size int64
				for range b.N {
					f, err := os.Create(name)
					must(b, err)
					start := time.Now()
					v := tab.Freeze()
					if kind == "snapshot" {
						size, err = v.WriteSnapshot(f)
					} else {
						size, err = v.WriteWindow(f, [16]byte{}, end)
					}
					must(b, err)
					tab.Thaw()
					write += time.Since(start)
					start = time.Now()
					must(b, f.Sync())
					must(b, f.Close())
					sync += time.Since(start)
					runtime.GC()
					start = time.Now()
					data, err := os.ReadFile(name)
					must(b, err)
					var file File
					if kind == "snapshot" {
						file, err = ParseSnapshot(data)
					} else {
						file, err = ParseWindow(data)
					}
					must(b, err)
					must(b, New(Options{}).Load(file, end, 0))
					load += time.Since(start)
				}
				ms := func(d time.Duration) float64 { return d.Seconds() * 1000 / float64(b.N) }
				b.ReportMetric(ms(write), "ms-write")
				b.ReportMetric(ms(sync), "ms-sync")
				b.ReportMetric(ms(load), "ms-load")
				b.ReportMetric(float64(size)/1e6, "MB")
				b.ReportMetric(0, "ns/op")
			})
		}
	}
}

// go test -run - -bench Insert -benchtime 1000000x ./dedupe
//
// Producers nobody knows, one batch each; the longest of all updates is the pause
// that growing costs.
func BenchmarkInsert(b *testing.B) {
	for _, bound := range []int{maxMaxProducers, 100_000} {
		b.Run(fmt.Sprintf("max=%d", bound), func(b *testing.B) {
			tab := New(Options{MaxProducers: bound})
			head := sent{count: 1, ts: 1}.batch()
			var longest time.Duration
			for i := range b.N {
				set(head, int64(i), 0)
				start := time.Now()
				tab.Update(head, int64(i))
				longest = max(longest, time.Since(start))
			}
			b.ReportMetric(float64(longest.Microseconds()), "µs-longest")
		})
	}
}

// go test -run - -bench GCPause -benchtime 200x ./dedupe
//
// What a garbage collection costs with a million producers in memory and without:
// how long the world stands still, median and longest, and how long all of it takes.
func BenchmarkGCPause(b *testing.B) {
	for _, with := range []bool{false, true, false, true} {
		b.Run(fmt.Sprintf("table=%v", with), func(b *testing.B) {
			var tab *Table
			if with {
				tab = fill(1_000_000, 5)
			}
			runtime.GC()
			var stats debug.GCStats
			var pauses, took []float64
			for range max(b.N, 20) {
				start := time.Now()
				runtime.GC()
				took = append(took, time.Since(start).Seconds()*1e6)
				debug.ReadGCStats(&stats)
				pauses = append(pauses, stats.Pause[0].Seconds()*1e6)
			}
			slices.Sort(pauses)
			slices.Sort(took)
			b.ReportMetric(pauses[len(pauses)/2], "µs-pause-median")
			b.ReportMetric(pauses[len(pauses)-1], "µs-pause-longest")
			b.ReportMetric(took[len(took)/2], "µs-gc-median")
			b.ReportMetric(0, "ns/op")
			runtime.KeepAlive(tab)
		})
	}
}
