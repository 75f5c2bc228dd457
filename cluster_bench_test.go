package tidemark_test

import (
	"fmt"
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
