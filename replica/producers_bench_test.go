package replica

import (
	"flag"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/tidemark-log/tidemark/record"
)

var reopenBytes = flag.Int64("reopen.bytes", 64<<20, "size of the log of BenchmarkReopenKilled")

// go test -run - -bench ReopenKilled -benchtime 5x -reopen.bytes=1073741824 ./replica
//
// Opening a log of 1,000 producers whose process was killed: its files are as the
// system has them, nothing was closed.
func BenchmarkReopenKilled(b *testing.B) {
	now := time.UnixMilli(1_700_000_000_000)
	o := Options{Sync: Never, Sole: true, inDir: true} // no lock: the dead log keeps its maps
	dir := filepath.Join(b.TempDir(), "log")
	l, err := Open(dir, o, now)
	if err == nil {
		err = l.BeginEpoch(0)
	}
	if err != nil {
		b.Fatal(err)
	}
	recs := make([]record.Record, 16)
	for i := range recs {
		recs[i] = record.Record{Timestamp: now.UnixMilli(), Value: make([]byte, 1000)}
	}
	spec := record.NewSpec()
	buf := make([]byte, record.Size(recs, 0))
	for n := int32(0); l.Stats().Bytes < *reopenBytes; n++ {
		for range 256 {
			spec.ProducerID, spec.ProducerEpoch, spec.BaseSequence = int64(n%1000), 0, n/1000*16
			if _, err := l.Append(record.Encode(buf, recs, &spec), Trusted, now); err != nil {
				b.Fatal(err)
			}
			n++
		}
		n--
		if _, err := l.Maintain(now); err != nil {
			b.Fatal(err)
		}
	}
	want := l.Stats().Producers.Producers
	var took []time.Duration
	for range b.N {
		start := time.Now()
		x, err := Open(dir, o, now)
		took = append(took, time.Since(start))
		if err != nil {
			b.Fatal(err)
		}
		if got := x.Stats().Producers.Producers; got != want || x.LogEndOffset() != l.LogEndOffset() {
			b.Fatalf("%d producers, end %d; want %d, %d", got, x.LogEndOffset(), want, l.LogEndOffset())
		}
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Microseconds())/1000, "ms-median")
	b.ReportMetric(float64(took[len(took)-1].Microseconds())/1000, "ms-longest")
	b.ReportMetric(float64(l.Stats().Bytes)/(1<<20), "MiB")
	b.ReportMetric(0, "ns/op")
}
