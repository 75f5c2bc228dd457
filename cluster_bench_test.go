package tidemark_test

import (
	"fmt"
	"math"
	"runtime"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tidemark-log/tidemark"
)

// go test -run '^$' -bench Cluster -benchtime 2s .
func BenchmarkCluster(b *testing.B) {
	for _, size := range []struct{ n, bytes int }{{1, 100}, {1, 1 << 10}, {100, 1 << 10}} {
		for _, acks := range []tidemark.Acks{tidemark.AcksNone, tidemark.AcksLeader, tidemark.AcksAll} {
			for _, how := range []string{"records", "idempotent"} {
				b.Run(fmt.Sprintf("batch=%dx%d/acks=%s/%s", size.n, size.bytes, acks, how), func(b *testing.B) {
					c := openCluster(b, b.TempDir(), tidemark.ClusterOptions{Log: tidemark.Options{Sync: tidemark.Never, SegmentBytes: 64 << 20, RetentionBytes: 512 << 20}})
					h := createTopic(b, c, "events", tidemark.TopicOptions{})
					caughtUp(b, h)
					p, err := c.NewProducer(tidemark.ProducerOptions{Acks: acks})
					if err != nil {
						b.Fatal(err)
					}
					recs := make([]tidemark.Record, size.n)
					for i := range recs {
						recs[i].Value = make([]byte, size.bytes)
					}
					b.SetBytes(int64(size.n * size.bytes))
					b.ReportAllocs()
					ctx := b.Context()
					took := make([]time.Duration, b.N)
					b.ResetTimer()
					for i := range b.N {
						begin := time.Now()
						if how == "records" {
							_, err = h.Produce(ctx, acks, recs...)
						} else {
							_, err = p.Produce(ctx, h, recs...)
						}
						if err != nil {
							b.Fatal(err)
						}
						took[i] = time.Since(begin)
					}
					b.StopTimer()
					slices.Sort(took)
					b.ReportMetric(float64(took[len(took)/2]), "p50-ns")
					b.ReportMetric(float64(took[len(took)*99/100]), "p99-ns")
					caughtUp(b, h)
				})
			}
		}
	}
}

// BenchmarkClusterIdempotence compares a producer with an id to a plain one on one
// partition: what the id costs in percent of the time of an append, as the median over
// b.N rounds, and the upper bound of its 95 % interval. A round is 16 short turns, plain,
// id, id, plain and so on, so that whatever moves steadily meanwhile (the log, the
// machine) cancels, and compares the medians of both: a turn that the machine takes away
// from counts for neither. Garbage is collected between rounds.
//
//	go test -run '^$' -bench ClusterIdempotence -benchtime 1500x .
func BenchmarkClusterIdempotence(b *testing.B) {
	for _, n := range []int{1, 100} {
		for _, acks := range []tidemark.Acks{tidemark.AcksLeader, tidemark.AcksAll} {
			b.Run(fmt.Sprintf("batch=%dx1024/acks=%s", n, acks), func(b *testing.B) {
				c := openCluster(b, b.TempDir(), tidemark.ClusterOptions{Log: tidemark.Options{Sync: tidemark.Never, SegmentBytes: 64 << 20, RetentionBytes: 256 << 20}})
				recs := make([]tidemark.Record, n)
				for i := range recs {
					recs[i].Value = make([]byte, 1<<10)
				}
				h := createTopic(b, c, "events", tidemark.TopicOptions{})
				caughtUp(b, h)
				appends := 500 / (n + 11) // both sizes take about as long
				var producers [2]*tidemark.Producer
				turn := func(i int) time.Duration {
					begin := time.Now()
					for range appends {
						if _, err := producers[i].Produce(b.Context(), h, recs...); err != nil {
							b.Fatal(err)
						}
					}
					for behind := true; behind; { // every replica has it
						behind = false
						for _, r := range h.Stats().Replicas {
							behind = behind || r.Lag != 0
						}
					}
					return time.Since(begin)
				}
				for i := range producers {
					p, err := c.NewProducer(tidemark.ProducerOptions{Acks: acks, Plain: i == 0})
					if err != nil {
						b.Fatal(err)
					}
					producers[i] = p
					turn(i)
				}
				defer debug.SetGCPercent(debug.SetGCPercent(-1))
				ratios := make([]float64, b.N)
				b.ResetTimer()
				for i := range b.N {
					if i%50 == 0 {
						runtime.GC()
					}
					var took [2][]time.Duration
					for j := range 16 {
						k := (i + (j+1)/2) % 2
						took[k] = append(took[k], turn(k))
					}
					ratios[i] = float64(middle(took[1])) / float64(middle(took[0]))
				}
				slices.Sort(ratios)
				// The interval of a median by ranks: half the rounds and 1.96 deviations.
				at := float64(len(ratios))/2 + 0.98*math.Sqrt(float64(len(ratios)))
				b.ReportMetric(100*(ratios[len(ratios)/2]-1), "median-%")
				b.ReportMetric(100*(ratios[min(int(at), len(ratios)-1)]-1), "upper-%")
			})
		}
	}
}

// middle is the median of an even number of durations, twice.
func middle(d []time.Duration) time.Duration {
	slices.Sort(d)
	return d[len(d)/2-1] + d[len(d)/2]
}

// go test -run '^$' -bench ClusterSync -benchtime 2s .
func BenchmarkClusterSync(b *testing.B) {
	for _, producers := range []int{1, 16} {
		for _, acks := range []tidemark.Acks{tidemark.AcksLeader, tidemark.AcksAll} {
			b.Run(fmt.Sprintf("producers=%d/acks=%s", producers, acks), func(b *testing.B) {
				c := openCluster(b, b.TempDir(), tidemark.ClusterOptions{Log: tidemark.Options{SegmentBytes: 64 << 20}})
				h := createTopic(b, c, "events", tidemark.TopicOptions{})
				caughtUp(b, h)
				b.SetBytes(1 << 10)
				b.ReportAllocs()
				b.ResetTimer()
				var wg sync.WaitGroup
				var n atomic.Int64
				for range producers {
					wg.Go(func() {
						recs := []tidemark.Record{{Value: make([]byte, 1<<10)}}
						for n.Add(1) <= int64(b.N) {
							if _, err := h.Produce(b.Context(), acks, recs...); err != nil {
								b.Error(err)
								return
							}
						}
					})
				}
				wg.Wait()
			})
		}
	}
}
