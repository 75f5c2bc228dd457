package interop

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/tidemark-log/tidemark"
	"github.com/tidemark-log/tidemark/internal/checkpoint"
	"github.com/tidemark-log/tidemark/interop/kafka"
)

// A folder is a partition as some program left it, closed cleanly, with what
// Kafka must make of it.
type folder struct {
	dir       string
	topic     string
	partition int
	start     int64 // log start offset; where it lies inside a segment the checkpoint has to say so
	end       int64
	want      []string // each record of [start, end), by describe

	// foreignEpochs: the batches have leader epochs above the cluster's, whose own
	// then go backwards (log-format §6).
	foreignEpochs bool

	batches []int64 // base offsets of the batches that Tidemark wrote
	times   []int64 // timestamps, and
	atTimes []int64 // what Kafka answers for them
}

func (f folder) String() string { return fmt.Sprintf("%s-%d", f.topic, f.partition) }

// testdataFolders are the partitions of testdata that a consumer read.
func testdataFolders(t *testing.T) []folder {
	closed := filepath.Join(testdata, "kafka-4.4-closed")
	folders := []folder{
		{topic: "appendtime", end: 69},
		{topic: "codecs", end: 256},
		{topic: "compacted", end: 180},
		{topic: "deleted", start: 22, end: 60},
		{topic: "group", end: 10},
		{topic: "group", partition: 1, end: 10},
		{topic: "group", partition: 2, end: 10},
		{topic: "idem", end: 76},
		{topic: "idem", partition: 1, end: 118},
		{topic: "large", end: 3004},
		{topic: "times", start: 15, end: 150},
		{topic: "txn", end: 36},
		{topic: "txn", partition: 1, end: 24},
	}
	for i := range folders {
		f := &folders[i]
		f.dir = filepath.Join(closed, f.String())
		f.want = truth(t, filepath.Join(closed, "truth", f.topic+".jsonl"))[f.partition]
	}
	replicas := filepath.Join(testdata, "kafka-4.4-three-replicas")
	return append(folders, folder{
		dir: filepath.Join(replicas, "replica-2"), topic: "epochs", end: 60,
		want: truth(t, filepath.Join(replicas, "truth", "epochs.jsonl"))[0],
	})
}

// TestHandOver gives partition folders of other programs to a stopped broker as
// log-format §12.1 says and reads them back from it with Kafka's own client.
// Tidemark's folders then go back and forth: the broker appends to them,
// Tidemark opens the broker's files where they are and appends, the broker again.
func TestHandOver(t *testing.T) {
	ctx := requireKafka(t, 8*time.Minute)
	ours := engineFolders(t)
	logtool := buildLogtool(t)
	theirs := append(testdataFolders(t), bareFolder(t), repairedFolder(t, ctx, logtool))
	for _, f := range ours {
		checkDump(t, ctx, f.dir)
		checkVerify(t, ctx, logtool, f.dir)
	}

	cluster, err := kafka.NewCluster(ctx, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cluster.Kill)

	// Steps 1 and 2.
	withClient(t, ctx, cluster, func(c *kafka.Client) {
		partitions := make(map[string]int)
		for _, f := range slices.Concat(ours, theirs) {
			partitions[f.topic] = max(partitions[f.topic], f.partition+1)
		}
		for topic, n := range partitions {
			if err := c.Create(topic, n, "retention.ms=-1", "retention.bytes=-1", "cleanup.policy=delete"); err != nil {
				t.Fatal(err)
			}
		}
	})

	// Steps 3 to 5.
	for _, f := range slices.Concat(ours, theirs) {
		handOver(t, cluster.LogDir, f)
	}
	gen := newGenerator(99)
	for round := range 2 {
		withClient(t, ctx, cluster, func(c *kafka.Client) {
			if round == 0 {
				for _, f := range theirs {
					t.Run(f.String(), func(t *testing.T) { readBack(t, c, f) })
				}
			}
			for i := range ours {
				f := &ours[i]
				t.Run(fmt.Sprintf("%v/round %d", f, round), func(t *testing.T) {
					readBack(t, c, *f)
					writeByKafka(t, c, f, gen)
					askTimes(t, c, f, gen)
				})
			}
		})
		noStrays(t, cluster.LogDir)
		if t.Failed() {
			return // what follows would only repeat it
		}
		for i := range ours {
			ours[i].dir = filepath.Join(cluster.LogDir, ours[i].String())
		}
		for _, f := range ours {
			l := openLog(t, f.dir, tidemark.Always)
			readLog(t, l, f)
			checkTimes(t, l, f)
			closeLog(t, l)
		}
		useInPlace(t, cluster.LogDir, ours, gen)
		for _, f := range ours {
			if !f.foreignEpochs {
				checkVerify(t, ctx, logtool, f.dir)
			}
		}
		checkDump(t, ctx, cluster.LogDir)
	}
}

// withClient runs fn while the broker runs, and stops the broker cleanly.
func withClient(t *testing.T, ctx context.Context, cluster *kafka.Cluster, fn func(*kafka.Client)) {
	t.Helper()
	if err := cluster.Start(ctx); err != nil {
		t.Fatal(err)
	}
	c, err := cluster.Client(ctx)
	if err != nil {
		t.Fatal(err)
	}
	fn(c)
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	if err := cluster.Stop(ctx); err != nil {
		t.Fatal(err)
	}
}

// handOver puts f's files in the place of those that the broker made
// (log-format §12.1, steps 3 and 4). Snapshots stay behind: their producer ids
// would collide with those that the cluster hands out anew.
func handOver(t *testing.T, logDir string, f folder) {
	t.Helper()
	dst := filepath.Join(logDir, f.String())
	made, err := os.ReadDir(dst)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range made {
		if e.Name() != checkpoint.PartitionFile {
			if err := os.Remove(filepath.Join(dst, e.Name())); err != nil {
				t.Fatal(err)
			}
		}
	}
	src, err := os.ReadDir(f.dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range src {
		if e.Name() == checkpoint.PartitionFile || filepath.Ext(e.Name()) == ".snapshot" {
			continue
		}
		b, err := os.ReadFile(filepath.Join(f.dir, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dst, e.Name()), b, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	setCheckpoint(t, filepath.Join(logDir, checkpoint.LogStartOffsetFile), f, f.start)
	for _, name := range []string{checkpoint.RecoveryPointFile, checkpoint.HighWatermarkFile, checkpoint.CleanerOffsetFile} {
		setCheckpoint(t, filepath.Join(logDir, name), f, 0)
	}
}

// setCheckpoint replaces f's line of an offset checkpoint (log-format §1.3), or
// drops it if offset is 0.
func setCheckpoint(t *testing.T, file string, f folder, offset int64) {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	offsets, err := checkpoint.ParseOffsets(b)
	if err != nil {
		t.Fatal(err)
	}
	offsets = slices.DeleteFunc(offsets, func(o checkpoint.Offset) bool { return o.Topic == f.topic && int(o.Partition) == f.partition })
	if offset > 0 {
		offsets = append(offsets, checkpoint.Offset{Topic: f.topic, Partition: int32(f.partition), Offset: offset})
	}
	if err := os.WriteFile(file, checkpoint.AppendOffsets(nil, offsets), 0o644); err != nil {
		t.Fatal(err)
	}
}

// readBack checks that the broker serves exactly f.
func readBack(t *testing.T, c *kafka.Client, f folder) {
	t.Helper()
	start, end, err := c.Ends(f.topic, f.partition)
	if err != nil {
		t.Fatal(err)
	}
	if start != f.start || end != f.end {
		t.Fatalf("broker serves offsets [%d, %d), want [%d, %d)", start, end, f.start, f.end)
	}
	got, err := c.Read(f.topic, f.partition, start, end)
	if err != nil {
		t.Fatal(err)
	}
	compare(t, describeAll(got), f.want)
}

// noStrays checks that the broker took every folder for one of its own.
func noStrays(t *testing.T, logDir string) {
	t.Helper()
	strays, err := fs.Glob(os.DirFS(logDir), "*-stray")
	if err != nil || len(strays) > 0 {
		t.Errorf("stray folders %v, error %v; want none", strays, err)
	}
}
