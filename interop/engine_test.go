package interop

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/tidemark-log/tidemark"
	"github.com/tidemark-log/tidemark/internal/checkpoint"
	"github.com/tidemark-log/tidemark/interop/kafka"
	"github.com/tidemark-log/tidemark/record"
	"github.com/tidemark-log/tidemark/replica"
)

// Small segments and a dense index, so that a few hundred records meet rolls
// and index entries.
const (
	segmentBytes  = 16 << 10
	indexInterval = 512
)

func openLog(t *testing.T, dir string, sync tidemark.SyncMode) *tidemark.Log {
	t.Helper()
	l, err := tidemark.Open(dir, tidemark.Options{Sync: sync, SegmentBytes: segmentBytes, IndexIntervalBytes: indexInterval})
	if err != nil {
		t.Fatal(err)
	}
	if d := l.Damage(); d != nil {
		t.Fatal(d)
	}
	return l
}

// appendRecords appends n records in batches of up to 7 and notes in f what a
// consumer must see.
func (f *folder) appendRecords(t *testing.T, gen *generator, n int, leaderEpoch int32, appendBatch func([]record.Record) (int64, error)) {
	t.Helper()
	for n > 0 {
		recs := gen.records(min(n, 1+gen.rng.IntN(7)))
		n -= len(recs)
		base, err := appendBatch(recs)
		if err != nil {
			t.Fatal(err)
		}
		if base != f.end {
			t.Fatalf("append got base offset %d, want %d", base, f.end)
		}
		f.want = append(f.want, expect(recs, base, leaderEpoch)...)
		f.batches = append(f.batches, base)
		f.end += int64(len(recs))
	}
}

func closeLog(t *testing.T, l interface{ Close() error }) {
	t.Helper()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
}

// engineFolders are partitions written by Tidemark, by each of its ways to write
// and to end, all of them closed.
func engineFolders(t *testing.T) []folder {
	var folders []folder
	add := func(topic string, write func(f *folder, gen *generator)) {
		f := folder{dir: filepath.Join(t.TempDir(), topic), topic: "ours-" + topic}
		write(&f, newGenerator(uint64(len(folders))))
		folders = append(folders, f)
	}

	for _, sync := range []tidemark.SyncMode{tidemark.Always, tidemark.Interval, tidemark.Never} {
		add("sync-"+sync.String(), func(f *folder, gen *generator) {
			l := openLog(t, f.dir, sync)
			f.appendRecords(t, gen, 300, 0, func(recs []record.Record) (int64, error) { return l.Append(recs...) })
			closeLog(t, l)
		})
	}

	add("codecs", func(f *folder, gen *generator) {
		l := openLog(t, f.dir, tidemark.Never)
		var b record.Builder
		sequence := int32(0) // of the producer's next record
		for i := range 100 {
			spec := record.NewSpec()
			spec.Codec = record.Codec(i % 5)
			if i%3 == 0 {
				spec.ProducerID, spec.ProducerEpoch, spec.BaseSequence = 4242, 7, sequence
			}
			f.appendRecords(t, gen, 1+gen.rng.IntN(7), 0, func(recs []record.Record) (int64, error) {
				batch, err := b.Build(recs, &spec)
				if err != nil {
					return 0, err
				}
				if spec.ProducerID >= 0 {
					sequence += int32(len(recs))
					spec.BaseSequence = sequence // should the records take two batches
				}
				return l.AppendBatch(batch)
			})
		}
		closeLog(t, l)
	})

	// A process that was killed leaves its files as they are: a copy of them is
	// recovered, here without the help of a slot that belongs to it.
	add("killed", func(f *folder, gen *generator) {
		l := openLog(t, f.dir+"-live", tidemark.Always)
		f.appendRecords(t, gen, 300, 0, func(recs []record.Record) (int64, error) { return l.Append(recs...) })
		copyFolder(t, f.dir, f.dir+"-live")
		closeLog(t, l)
		l = openLog(t, f.dir, tidemark.Always)
		f.appendRecords(t, gen, 50, 0, func(recs []record.Record) (int64, error) { return l.Append(recs...) })
		closeLog(t, l)
	})

	add("backup", func(f *folder, gen *generator) {
		l := openLog(t, f.dir+"-live", tidemark.Never)
		f.appendRecords(t, gen, 300, 0, func(recs []record.Record) (int64, error) { return l.Append(recs...) })
		if err := l.Backup(f.dir); err != nil {
			t.Fatal(err)
		}
		closeLog(t, l)
	})

	// What a replica goes through: leaders change, its tail is cut.
	add("epochs", func(f *folder, gen *generator) {
		f.foreignEpochs = true
		l, err := replica.Open(f.dir, replica.Options{Sync: replica.Never, SegmentBytes: segmentBytes, IndexIntervalBytes: indexInterval}, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		for _, epoch := range []int32{0, 1, 4, 7} {
			if err := l.BeginEpoch(epoch); err != nil {
				t.Fatal(err)
			}
			f.appendRecords(t, gen, 100, epoch, func(recs []record.Record) (int64, error) {
				a, err := l.AppendRecords(recs, time.Now())
				return a.Base, err
			})
			if epoch == 4 { // in the middle of the batches of epoch 1
				if err := l.Truncate(150); err != nil {
					t.Fatal(err)
				}
				whole := slices.IndexFunc(f.batches, func(base int64) bool { return base > 150 })
				f.want, f.end = f.want[:f.batches[whole-1]], 150
			}
		}
		if err := l.Close(time.Now()); err != nil {
			t.Fatal(err)
		}
	})

	// A follower that was outside its leader's range starts afresh, above 0.
	add("restarted", func(f *folder, gen *generator) {
		l, err := replica.Open(f.dir, replica.Options{Sync: replica.Always, SegmentBytes: segmentBytes, IndexIntervalBytes: indexInterval}, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		if err := l.TruncateFullyAndStartAt(1000); err != nil {
			t.Fatal(err)
		}
		f.start, f.end = 1000, 1000
		if err := l.BeginEpoch(2); err != nil {
			t.Fatal(err)
		}
		f.appendRecords(t, gen, 200, 2, func(recs []record.Record) (int64, error) {
			a, err := l.AppendRecords(recs, time.Now())
			return a.Base, err
		})
		if err := errors.Join(l.SyncNow(), l.Close(time.Now())); err != nil {
			t.Fatal(err)
		}
	})
	return folders
}

// copyFolder copies the files of a folder, which may be in use.
func copyFolder(t *testing.T, to, from string) {
	t.Helper()
	if err := os.CopyFS(to, os.DirFS(from)); err != nil {
		t.Fatal(err)
	}
}

// A reader is a log of the root package or a replica's.
type reader interface {
	LogStartOffset() int64
	LogEndOffset() int64
}

// readLog checks that the engine reads exactly f, from Kafka's files too.
func readLog(t *testing.T, l reader, f folder) {
	t.Helper()
	if start, end := l.LogStartOffset(), l.LogEndOffset(); start != f.start || end != f.end {
		t.Fatalf("%v: log holds offsets [%d, %d), want [%d, %d)", f, start, end, f.start, f.end)
	}
	read := func(dst []byte, offset int64) ([]byte, error) {
		if l, ok := l.(*replica.Log); ok {
			return l.Read(dst, offset, f.end, 1<<20)
		}
		return l.(*tidemark.Log).Read(dst, offset, 1<<20)
	}
	var got []string
	var buf []byte
	for offset := f.start; offset < f.end; {
		var err error
		if buf, err = read(buf[:0], offset); err != nil {
			t.Fatal(err)
		}
		if len(buf) == 0 {
			break // a gap up to the end
		}
		for rest := buf; len(rest) > 0; {
			b, err := record.Check(rest)
			if err != nil {
				t.Fatal(err)
			}
			rest = rest[len(b):]
			offset = b.NextOffset()
			if b.IsControl() {
				continue
			}
			for r, err := range b.Records() {
				if err != nil {
					t.Fatal(err)
				}
				k := shown(r, r.Offset, b.LeaderEpoch())
				k.AppendTime = b.TimestampType() == record.LogAppendTime
				got = append(got, describe(k))
			}
		}
	}
	compare(t, got, f.want)
}

// writeByKafka has Kafka's producer append to f, one batch or more a codec.
func writeByKafka(t *testing.T, c *kafka.Client, f *folder, gen *generator) {
	t.Helper()
	for codec := record.None; codec <= record.Zstd; codec++ {
		var recs []kafka.Record
		for _, r := range gen.records(20) {
			recs = append(recs, shown(r, 0, 0))
		}
		offsets, err := c.Write(f.topic, f.partition, codec.String(), recs)
		if err != nil {
			t.Fatal(err)
		}
		read, err := c.Read(f.topic, f.partition, f.end, f.end+int64(len(recs)))
		if err != nil {
			t.Fatal(err)
		}
		if len(read) != len(recs) {
			t.Fatalf("broker serves %d records of the %d it took", len(read), len(recs))
		}
		for i := range recs {
			recs[i].Offset = offsets[i]
			recs[i].LeaderEpoch = read[i].LeaderEpoch // the cluster's affair
		}
		want := describeAll(recs)
		compare(t, describeAll(read), want)
		f.want = append(f.want, want...)
		f.end += int64(len(recs))
	}
}

// askTimes has Kafka look up some timestamps, among them one too late and one
// before all records (case C055).
func askTimes(t *testing.T, c *kafka.Client, f *folder, gen *generator) {
	t.Helper()
	f.times = []int64{0, gen.time + 10_000}
	for range 20 {
		f.times = append(f.times, gen.time-gen.rng.Int64N(2_000_000))
	}
	var err error
	if f.atTimes, err = c.OffsetsForTimes(f.topic, f.partition, f.times); err != nil {
		t.Fatal(err)
	}
}

// checkTimes looks up the same timestamps in the log.
func checkTimes(t *testing.T, l *tidemark.Log, f folder) {
	t.Helper()
	for i, ts := range f.times {
		got, ok, err := l.OffsetForTime(time.UnixMilli(ts))
		if err != nil {
			t.Fatal(err)
		}
		if !ok {
			got = -1
		}
		if got != f.atTimes[i] {
			t.Errorf("%v: offset for time %d is %d, Kafka says %d", f, ts, got, f.atTimes[i])
		}
	}
}

// useInPlace has the engine open Kafka's own data folder, read what Kafka left,
// append and close it: Kafka's next start takes it as it is.
func useInPlace(t *testing.T, logDir string, folders []folder, gen *generator) {
	t.Helper()
	marker, err := os.ReadFile(filepath.Join(logDir, checkpoint.CleanMarkerFile))
	if err != nil {
		t.Fatal(err)
	}
	epoch, err := checkpoint.ParseCleanMarker(marker)
	if err != nil {
		t.Fatal(err)
	}
	// With the epoch of Kafka's own marker, or the controller would take the stop
	// for an unclean one (log-format §12 rule 13).
	d, err := replica.OpenDir(logDir, replica.DirOptions{NodeID: 1, BrokerEpoch: epoch}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	if !d.Clean() {
		t.Error("Kafka's clean stop was not taken for one")
	}
	for i := range folders {
		f := &folders[i]
		l, err := d.OpenLog(replica.TopicPartition{Topic: f.topic, Partition: int32(f.partition)}, replica.UUID{},
			replica.Options{Sole: true, SegmentBytes: segmentBytes, IndexIntervalBytes: indexInterval}, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		readLog(t, l, *f)
		leaderEpoch := l.Stats().LeaderEpoch
		if err := l.BeginEpoch(leaderEpoch); err != nil {
			t.Fatal(err)
		}
		f.appendRecords(t, gen, 20, leaderEpoch, func(recs []record.Record) (int64, error) {
			a, err := l.AppendRecords(recs, time.Now())
			return a.Base, err
		})
		if err := l.SyncNow(); err != nil {
			t.Fatal(err)
		}
		readLog(t, l, *f)
	}
	if err := d.Close(time.Now()); err != nil {
		t.Fatal(err)
	}
}
