package interop

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/tidemark-log/tidemark/interop/kafka"
	"github.com/tidemark-log/tidemark/record"
)

var (
	speedMiB    = flag.Int("speed", 0, "MiB of log to dump with logtool and Kafka's tool, to compare their speed; 0 skips it")
	speedRounds = flag.Int("speed-rounds", 5, "rounds, each with a run of either tool")
	memoryMiB   = flag.Int("memory", 0, "MiB of log to dump with logtool, to see how much memory it takes; 0 skips it")
)

// speedLog writes a log of batches of 100 records of one size until it has so
// many MiB, and returns its path and the number of records.
func speedLog(t *testing.T, dir string, valueBytes, mib int) (path string, records int) {
	t.Helper()
	recs := make([]record.Record, 100)
	for i := range recs {
		recs[i] = record.Record{Timestamp: 1700000000000 + int64(i), Key: fmt.Appendf(nil, "key-%d", i), Value: bytes.Repeat([]byte{byte('a' + i%26)}, valueBytes)}
	}
	spec := record.NewSpec()
	var builder record.Builder
	batch, err := builder.Build(recs, &spec)
	if err != nil {
		t.Fatal(err)
	}
	path = filepath.Join(dir, "00000000000000000000.log")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	var chunk []byte
	for size := 0; size == 0 || size < mib<<20; size += len(batch) {
		// The checksum does not cover the base offset.
		batch.SetBaseOffset(int64(records))
		records += len(recs)
		if chunk = append(chunk, batch...); len(chunk) > 1<<20 {
			if _, err := f.Write(chunk); err != nil {
				t.Fatal(err)
			}
			chunk = chunk[:0]
		}
	}
	if _, err := f.Write(chunk); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	return path, records
}

// TestDumpSpeed measures logtool dump --json --records and Kafka's tool with
// --print-data-log on the same log, both into nothing, turn about. What either
// needs for a log of one batch is subtracted: the start of the JVM.
//
//	go test -run TestDumpSpeed -speed 512 -v .
func TestDumpSpeed(t *testing.T) {
	if *speedMiB == 0 {
		t.Skip("-speed MIB runs it")
	}
	ctx := requireKafka(t, 30*time.Minute)
	logtool := buildLogtool(t)
	null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	ours := func(path string) time.Duration {
		cmd := exec.CommandContext(ctx, logtool, "dump", "--json", "--records", path)
		cmd.Stdout, cmd.Stderr = null, os.Stderr
		start := time.Now()
		if err := cmd.Run(); err != nil {
			t.Fatal(err)
		}
		return time.Since(start)
	}
	theirs := func(path string) time.Duration {
		took, err := kafka.DumpTo(ctx, null, []string{path}, "--print-data-log")
		if err != nil {
			t.Fatal(err)
		}
		return took
	}
	for _, tc := range []struct {
		value int
		want  float64
	}{{100, 20}, {1024, 10}} {
		t.Run(fmt.Sprintf("value=%d", tc.value), func(t *testing.T) {
			one, _ := speedLog(t, t.TempDir(), tc.value, 0)
			path, records := speedLog(t, t.TempDir(), tc.value, *speedMiB)
			var ratios []float64
			for range *speedRounds {
				startOurs, startTheirs := ours(one), theirs(one)
				a, b := ours(path)-startOurs, theirs(path)-startTheirs
				ratios = append(ratios, b.Seconds()/a.Seconds())
				t.Logf("%d records of %d B: logtool %v (%.0f ns a record), Kafka %v (%.0f ns, its start of %v subtracted): %.1f times as fast",
					records, tc.value, a, float64(a.Nanoseconds())/float64(records), b, float64(b.Nanoseconds())/float64(records), startTheirs, ratios[len(ratios)-1])
			}
			slices.Sort(ratios)
			median := ratios[len(ratios)/2]
			t.Logf("ratio at %d B: %.1f [%.1f, %.1f], want %.0f", tc.value, median, ratios[0], ratios[len(ratios)-1], tc.want)
			if median < tc.want {
				t.Errorf("logtool is %.1f times as fast as Kafka's tool at %d B; want %.0f", median, tc.value, tc.want)
			}
		})
	}
}

// TestDumpMemory looks at how much memory a dump and a verify of a large log
// take.
//
//	go test -run TestDumpMemory -memory 4096 -v .
func TestDumpMemory(t *testing.T) {
	if *memoryMiB == 0 {
		t.Skip("-memory MIB runs it")
	}
	if runtime.GOOS != "linux" {
		t.Skip("the unit of Maxrss differs")
	}
	logtool := buildLogtool(t)
	dir := filepath.Join(t.TempDir(), "t-0")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	// A segment has less than 2 GiB, but for the dump one file will do.
	path, _ := speedLog(t, dir, 1024, *memoryMiB)
	const most = 64 << 20
	for _, args := range [][]string{{"dump", "--json", "--records", path}, {"dump", "--records", "--tail", "10", path}, {"ls", "--scan", dir}, {"verify", path}} {
		cmd := exec.CommandContext(context.Background(), logtool, args...)
		start := time.Now()
		// A log above 2 GiB is a fault to verify.
		err := cmd.Run()
		if _, exit := err.(*exec.ExitError); err != nil && !exit {
			t.Fatal(err)
		}
		rss := cmd.ProcessState.SysUsage().(*syscall.Rusage).Maxrss << 10
		t.Logf("%s of %d MiB: %.1f MiB resident, %v", args[0], *memoryMiB, float64(rss)/(1<<20), time.Since(start))
		if rss > most {
			t.Errorf("%s takes %d bytes; want at most %d", args[0], rss, most)
		}
	}
}
