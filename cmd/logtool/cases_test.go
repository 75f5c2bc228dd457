package main

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"maps"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tidemark-log/tidemark/index"
	"github.com/tidemark-log/tidemark/internal/checkpoint"
	"github.com/tidemark-log/tidemark/record"
)

const (
	log0   = "00000000000000000000.log"
	index0 = "00000000000000000000.index"
	times0 = "00000000000000000000.timeindex"
)

// batch encodes a batch of records with the given timestamps, at baseOffset.
func batch(t testing.TB, baseOffset int64, change func(*record.Spec), timestamps ...int64) record.Batch {
	t.Helper()
	var recs []record.Record
	for i, ts := range timestamps {
		recs = append(recs, record.Record{Offset: baseOffset + int64(i), Timestamp: ts, Key: fmt.Appendf(nil, "k%d", i), Value: []byte("value")})
	}
	return encode(t, baseOffset, change, recs...)
}

func encode(t testing.TB, baseOffset int64, change func(*record.Spec), recs ...record.Record) record.Batch {
	t.Helper()
	spec := record.NewSpec()
	spec.BaseOffset, spec.LeaderEpoch = baseOffset, 0
	if change != nil {
		change(&spec)
	}
	var w record.Builder
	b, err := w.Build(recs, &spec)
	if err != nil {
		t.Fatal(err)
	}
	return slices.Clone(b)
}

// reseal gives a batch that was changed by hand a right checksum.
func reseal(b record.Batch) record.Batch {
	binary.BigEndian.PutUint32(b[17:], b.ComputeCRC())
	return b
}

// folder makes a partition folder in a data folder that was closed cleanly,
// with those files.
func folder(t testing.TB, files map[string][]byte) string {
	t.Helper()
	data := t.TempDir()
	dir := filepath.Join(data, "t-0")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(data, checkpoint.CleanMarkerFile), []byte(`{"version":0,"brokerEpoch":1}`))
	for name, b := range files {
		write(t, filepath.Join(dir, name), b)
	}
	return dir
}

func write(t testing.TB, path string, b []byte) {
	t.Helper()
	if err := os.WriteFile(path, b, 0o644); err != nil {
		t.Fatal(err)
	}
}

// unclean takes the clean marker away from above a partition folder.
func unclean(t testing.TB, dir string) {
	t.Helper()
	if err := os.Remove(filepath.Join(filepath.Dir(dir), checkpoint.CleanMarkerFile)); err != nil {
		t.Fatal(err)
	}
}

func cat(parts ...record.Batch) (b []byte) {
	for _, p := range parts {
		b = append(b, p...)
	}
	return b
}

// offsetEntries encodes an offset index of base 0 from pairs of offset and
// position, timeEntries a time index from pairs of timestamp and offset.
func offsetEntries(pairs ...int64) (b []byte) {
	for i := 0; i < len(pairs); i += 2 {
		b = binary.BigEndian.AppendUint32(b, uint32(pairs[i]))
		b = binary.BigEndian.AppendUint32(b, uint32(pairs[i+1]))
	}
	return b
}

func timeEntries(pairs ...int64) (b []byte) {
	for i := 0; i < len(pairs); i += 2 {
		b = binary.BigEndian.AppendUint64(b, uint64(pairs[i]))
		b = binary.BigEndian.AppendUint32(b, uint32(pairs[i+1]))
	}
	return b
}

// checkVerify runs verify and compares the faults, given as "check: found".
func checkVerify(t *testing.T, path string, faults ...string) {
	t.Helper()
	want := exitOK
	if len(faults) > 0 {
		want = exitDamage
	}
	var got []string
	for _, f := range findings(t, mustRun(t, want, "verify", "--json", path), "fault") {
		got = append(got, f.Check+": "+f.Found)
	}
	if !slices.Equal(got, faults) {
		t.Errorf("faults %q; want %q", got, faults)
	}
}

// C059: broker versions differ in whether a time entry names the first or last
// offset of its batch. Kafka before 3.7 also names the record itself.
func TestC059_TimeIndexNamesFirstOrLast(t *testing.T) {
	b0, b1, b2 := batch(t, 0, nil, 10, 11), batch(t, 2, nil, 20, 30, 25, 27), batch(t, 6, nil, 40, 41)
	files := func(entries ...int64) map[string][]byte {
		return map[string][]byte{log0: cat(b0, b1, b2), times0: timeEntries(entries...)}
	}
	for _, tc := range []struct {
		name    string
		entries []int64
		faults  []string
	}{
		{"last", []int64{11, 1, 30, 5, 41, 7}, nil},
		{"first", []int64{11, 0, 30, 2, 41, 6}, nil},
		{"the record", []int64{30, 3, 41, 7}, nil},
		{"mixed", []int64{11, 1, 30, 2, 41, 7}, nil},
		{"another record of the batch", []int64{30, 4, 41, 7}, []string{"entry: timestamp 30 at offset 4"}},
		{"not the largest of its batch", []int64{20, 5, 41, 7}, []string{"entry: timestamp 20 at offset 5"}},
		{"final entry missing", []int64{11, 1, 30, 5}, []string{"last entry: timestamp 30"}},
		{"out of order", []int64{30, 5, 11, 1, 41, 7}, []string{"entry: timestamp 30 at offset 5"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			checkVerify(t, folder(t, files(tc.entries...)), tc.faults...)
		})
	}
	t.Run("a tie is for the earliest batch (C058)", func(t *testing.T) {
		same := cat(batch(t, 0, nil, 50), batch(t, 1, nil, 50))
		checkVerify(t, folder(t, map[string][]byte{log0: same, times0: timeEntries(50, 0)}))
		checkVerify(t, folder(t, map[string][]byte{log0: same, times0: timeEntries(50, 1)}), "entry: timestamp 50 at offset 1")
	})
}

// An offset index may have entries that span several batches, and need not
// have any (log-format §12).
func TestOffsetIndexEntries(t *testing.T) {
	bs := []record.Batch{batch(t, 0, nil, 1), batch(t, 1, nil, 2, 3), batch(t, 3, nil, 4), batch(t, 4, nil, 5)}
	var pos []int64
	for i := range bs {
		pos = append(pos, int64(len(cat(bs[:i]...))))
	}
	for _, tc := range []struct {
		name    string
		entries []int64
		faults  []string
	}{
		{"none", nil, nil},
		{"each batch", []int64{2, pos[1], 3, pos[2], 4, pos[3]}, nil},
		{"position 0", []int64{0, 0, 4, pos[3]}, nil},
		{"a request of two batches", []int64{3, pos[1], 4, pos[3]}, nil},
		{"a request that ends behind the next entry", []int64{4, pos[1], 5, pos[2]}, []string{
			fmt.Sprintf("entry: offset 4 at position %d", pos[1]), fmt.Sprintf("entry: offset 5 at position %d", pos[2])}},
		{"the first offset", []int64{1, pos[1]}, []string{fmt.Sprintf("entry: offset 1 at position %d", pos[1])}},
		{"inside a batch", []int64{2, pos[1] + 1, 4, pos[3]}, []string{fmt.Sprintf("entry: offset 2 at position %d", pos[1]+1)}},
		{"behind the end", []int64{2, pos[1], 9, 100000}, []string{"entry: offset 9 at position 100000"}},
		{"below the base", []int64{-1, pos[1], 4, pos[3]}, []string{fmt.Sprintf("entry: offset -1 at position %d", pos[1])}},
		{"one out of order among good ones", []int64{2, pos[1], 1 << 30, pos[2], 4, pos[3]}, []string{fmt.Sprintf("entry: offset %d at position %d", 1<<30, pos[2])}},
		{"zeros between", []int64{2, pos[1], 0, 0, 4, pos[3]}, []string{"entry: 1 zero entries with others behind them"}},
		{"zero tail of a folder closed cleanly", []int64{2, pos[1], 0, 0, 0, 0}, []string{"zero tail: 2 zero entries"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			checkVerify(t, folder(t, map[string][]byte{log0: cat(bs...), index0: offsetEntries(tc.entries...)}), tc.faults...)
		})
	}
	t.Run("a part of an entry", func(t *testing.T) {
		checkVerify(t, folder(t, map[string][]byte{log0: cat(bs...), index0: offsetEntries(2, pos[1])[:5]}), "length: 5 bytes of an entry")
	})
}

// C064: software with a bug wrote offsets that the segment cannot number.
func TestC064_OffsetBeyondSegment(t *testing.T) {
	dir := folder(t, map[string][]byte{log0: cat(batch(t, 0, nil, 1), batch(t, 3000000000, nil, 2))})
	checkVerify(t, dir, "offset: last offset 3000000000")
	all := lines(t, mustRun(t, exitOK, "dump", "--json", dir))
	if l := all[len(all)-1]; l.BaseOffset != 3000000000 || l.LastOffset != 3000000000 {
		t.Errorf("dump lists offsets %d to %d; want 3000000000", l.BaseOffset, l.LastOffset)
	}
	// At the very end of the range nothing wraps.
	edge := batch(t, math.MaxInt64-1, nil, 1, 2, 3)
	checkVerify(t, folder(t, map[string][]byte{log0: edge}), fmt.Sprintf("offset: offsets %d to %d", int64(math.MaxInt64-1), edge.LastOffset()))
}

// C066, C070: a compacted log has gaps and batches without records.
func TestC066_EmptyBatches(t *testing.T) {
	full := batch(t, 60, func(s *record.Spec) { s.ProducerID, s.ProducerEpoch, s.BaseSequence = 7, 0, 3 }, 5, 6, 7, 8, 9)
	empty := record.Batch(record.AppendEmpty(nil, full))
	dir := folder(t, map[string][]byte{log0: cat(batch(t, 56, nil, 1), empty, batch(t, 80, nil, 10))})
	checkVerify(t, dir)
	l := lines(t, mustRun(t, exitOK, "dump", "--json", "--records", dir))
	if e := l[2]; e.Type != "batch" || e.Count != 0 || e.BaseOffset != 60 || e.LastOffset != 64 || e.BaseSequence != 3 || e.LastSequence != 7 || e.Size != record.HeaderSize {
		t.Errorf("the empty batch is %+v; want count 0, offsets 60 to 64, sequences 3 to 7", e)
	}
	if len(l) != 5 {
		t.Errorf("%d lines; want 3 batches and 2 records", len(l))
	}
}

// C070: compaction leaves a first segment whose offsets begin far above its
// name. The two folders of older brokers that have it are in
// TestVerifyClosedCleanly.
func TestC070_FirstOffsetAboveFileName(t *testing.T) {
	dir := folder(t, map[string][]byte{
		log0: cat(batch(t, 56, nil, 1), batch(t, 57, nil, 2)), times0: timeEntries(2, 57),
		"00000000000000000058.log": batch(t, 58, nil, 3, 4), "00000000000000000058.timeindex": timeEntries(4, 1),
	})
	checkVerify(t, dir)
}

// C069: with bit 6 the base timestamp is a delete horizon; the records count
// from it.
func TestC069_DeleteHorizon(t *testing.T) {
	b := batch(t, 5, nil, 1000, 1030)
	b[22] |= 0x40
	dir := folder(t, map[string][]byte{log0: reseal(b)})
	checkVerify(t, dir)
	l := lines(t, mustRun(t, exitOK, "dump", "--json", "--records", dir))
	if l[0].DeleteHorizonMs == nil || *l[0].DeleteHorizonMs != 1000 || l[1].Timestamp != 1000 || l[2].Timestamp != 1030 {
		t.Errorf("horizon %v, record times %d and %d; want 1000, 1000 and 1030", l[0].DeleteHorizonMs, l[1].Timestamp, l[2].Timestamp)
	}
	if text := mustRun(t, exitOK, "dump", dir); !strings.Contains(text, "deleteHorizonMs=1000") {
		t.Errorf("text does not name the horizon:\n%s", text)
	}
}

// Offsets that do not follow on: what is a fault and what a reader accepts.
func TestOffsetOrder(t *testing.T) {
	a, b, c := batch(t, 0, nil, 1, 2), batch(t, 2, nil, 3, 4), batch(t, 4, nil, 5, 6)
	checkVerify(t, folder(t, map[string][]byte{log0: cat(a, c, b)}), "offset: base offset 2")
	checkVerify(t, folder(t, map[string][]byte{log0: cat(a, batch(t, 1, nil, 3), c)}), "offset: base offset 1")
	// The same batch again is a copy, which log-format §12 asks readers to accept.
	checkVerify(t, folder(t, map[string][]byte{log0: cat(a, b, b, c)}))
	checkVerify(t, folder(t, map[string][]byte{"00000000000000000002.log": cat(a, b)}), "offset: base offset 0")
	// A segment must end before the next begins.
	checkVerify(t, folder(t, map[string][]byte{log0: cat(a, b), "00000000000000000003.log": c}), "offset: last offset 3")
}

func TestLeaderEpochs(t *testing.T) {
	in := func(e int32) func(*record.Spec) { return func(s *record.Spec) { s.LeaderEpoch = e } }
	a, b, c := batch(t, 0, in(0), 1), batch(t, 1, in(1), 2), batch(t, 2, in(1), 3)
	for _, tc := range []struct {
		name    string
		log     []byte
		file    string
		unclean bool
		faults  []string
	}{
		{"covers", cat(a, b, c), "0\n2\n0 0\n1 1\n", false, nil},
		{"an election without data", cat(a, b, c), "0\n3\n0 0\n1 1\n7 3\n", false, nil},
		{"no file bytes", cat(a, b, c), "", false, nil},
		{"file behind", cat(a, b, c), "0\n1\n0 0\n", false, []string{"leader epoch: 1"}},
		{"file behind, not closed", cat(a, b, c), "0\n1\n0 0\n", true, nil},
		{"other epoch, not closed", cat(a, b, c), "0\n2\n0 0\n2 1\n", true, []string{"leader epoch: 1"}},
		// A foreign log under a young cluster (log-format §6).
		{"foreign, then an election", cat(a, b, c), "0\n2\n0 0\n1 3\n", false, nil},
		{"foreign, then data", cat(a, batch(t, 1, in(5), 2), batch(t, 2, in(1), 3)), "0\n2\n0 0\n1 2\n", false, nil},
		{"foreign, all entries lost", cat(batch(t, 0, in(4), 1), batch(t, 1, in(5), 2), batch(t, 2, in(0), 3)), "0\n1\n0 2\n", false, nil},
		{"backwards inside an epoch", cat(a, batch(t, 1, in(5), 2), batch(t, 2, in(0), 3)), "0\n2\n0 0\n6 3\n", false, []string{"leader epoch: 0"}},
		{"entry behind the end", cat(a, b, c), "0\n3\n0 0\n1 1\n7 4\n", false, []string{"leader epoch: epoch 7 from 4"}},
		{"entry behind the end, not closed", cat(a, b, c), "0\n3\n0 0\n1 1\n7 4\n", true, nil},
		{"begins late", cat(a, b, c), "0\n1\n1 1\n", false, []string{"leader epoch: 0"}},
		{"backwards in the log", cat(a, b, batch(t, 2, in(0), 3)), "0\n2\n0 0\n1 1\n", true, []string{"leader epoch: 0"}},
		{"backwards in the log, no epoch file", cat(a, b, batch(t, 2, in(0), 3)), "", true, []string{"leader epoch: 0"}},
		{"none in a batch", cat(a, batch(t, 1, in(-1), 2), batch(t, 2, in(0), 3)), "0\n1\n0 0\n", false, nil},
		{"below none", cat(a, batch(t, 1, in(-2), 2)), "0\n1\n0 0\n", false, []string{"leader epoch: -2"}},
		{"file malformed", cat(a, b, c), "0\n2\n0 0\n", false, []string{"format: the end after 1 entries in line 4"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir := folder(t, map[string][]byte{log0: tc.log, checkpoint.LeaderEpochFile: []byte(tc.file)})
			if tc.unclean {
				unclean(t, dir)
			}
			checkVerify(t, dir, tc.faults...)
		})
	}
}

// What only the records of a batch show (log-format §2.2, §2.3). Its checksum
// is right each time.
func TestRecordsAgainstHeader(t *testing.T) {
	// The records of plain batches of three are 14 bytes each; byte 3 of one is
	// its offset delta, byte 2 its timestamp delta.
	const size, delta = 14, 3
	marker := record.Batch(record.AppendMarker(nil, record.Marker{Timestamp: 1, ProducerID: 1, Type: record.Commit}))
	for _, tc := range []struct {
		name   string
		b      record.Batch
		change func(b record.Batch)
		faults []string
	}{
		{"nothing", nil, func(record.Batch) {}, nil},
		{"offset deltas 0, 2, 1", nil, func(b record.Batch) { b[61+size+delta], b[61+2*size+delta] = 4, 2 }, []string{"record offset: 1"}},
		{"offset delta beyond the last", nil, func(b record.Batch) { b[61+2*size+delta] = 8 }, []string{"record offset: 4"}},
		{"max timestamp too low", nil, func(b record.Batch) { b[42]-- }, []string{"max timestamp: 8"}},
		{"max timestamp of append time", nil, func(b record.Batch) { b[42]--; b[22] |= 8 }, nil},
		{"count too large", nil, func(b record.Batch) { b[60]++ }, []string{"record: record 3: records present 3"}},
		{"count too small", nil, func(b record.Batch) { b[60]-- }, []string{fmt.Sprintf("record: bytes left behind the last record %d", size)}},
		{"unknown codec", nil, func(b record.Batch) { b[22] |= 5 }, []string{"codec: codec 5"}},
		{"undecodable gzip", nil, func(b record.Batch) { b[22] |= 1 }, []string{"codec: "}},
		{"bits 7 to 15 mean nothing", nil, func(b record.Batch) { b[21] = 0xff; b[22] |= 0x80 }, nil},
		{"control record of a negative version", marker, func(b record.Batch) { b[66] = 0x80 }, []string{"control record: control record key version -32768"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b := slices.Clone(tc.b)
			if b == nil {
				b = batch(t, 0, nil, 7, 9, 8)
			}
			if tc.b == nil && len(b) != 61+3*size {
				t.Fatalf("batch of %d bytes; want records of %d", len(b), size)
			}
			tc.change(b)
			dir := folder(t, map[string][]byte{log0: reseal(b)})
			var got []string
			code, out, _ := logtool("verify", "--json", dir)
			for _, f := range findings(t, out, "fault") {
				got = append(got, f.Check+": "+f.Found)
				if *f.Position > int64(len(b)) {
					t.Errorf("position %d is not in the batch", *f.Position)
				}
			}
			if (code == exitDamage) != (len(tc.faults) > 0) || len(got) != len(tc.faults) || len(got) == 1 && !strings.HasPrefix(got[0], tc.faults[0]) {
				t.Errorf("exit %d, faults %q; want %q", code, got, tc.faults)
			}
		})
	}
}

// A KRaft snapshot that was cut between two batches lacks its footer.
func TestMetadataSnapshotFrame(t *testing.T) {
	const name = "00000000000000000000-0000000000.checkpoint"
	b, err := os.ReadFile(filepath.Join(testdata, "kafka-4.4-closed", "__cluster_metadata-0", name))
	if err != nil {
		t.Fatal(err)
	}
	batches := batchesOf(b)
	checkVerify(t, filepath.Join(folder(t, map[string][]byte{name: b}), name))
	checkVerify(t, filepath.Join(folder(t, map[string][]byte{name: b[:batches[2].pos]}), name), "frame: no footer as the last record")
	checkVerify(t, filepath.Join(folder(t, map[string][]byte{name: b[batches[1].pos:]}), name), "frame: no header as the first record")
}

// The partitions of a topic name one topic id, those of two topics two.
func TestTopicIDs(t *testing.T) {
	a, b := checkpoint.UUID{1}, checkpoint.UUID{2}
	for _, tc := range []struct {
		name   string
		ids    map[string]checkpoint.UUID
		faults []string
	}{
		{"as they should be", map[string]checkpoint.UUID{"t-0": a, "t-1": a, "u-0": b, "__cluster_metadata-0": {15: 1}}, nil},
		{"another partition of the topic has another", map[string]checkpoint.UUID{"t-0": a, "t-1": b}, []string{"topic id: " + b.String()}},
		{"another topic has it", map[string]checkpoint.UUID{"t-0": a, "u-0": a}, []string{"topic id: " + a.String()}},
		{"that of the metadata", map[string]checkpoint.UUID{"t-0": {15: 1}}, []string{"topic id: " + checkpoint.UUID{15: 1}.String()}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			data := t.TempDir()
			for partition, id := range tc.ids {
				os.Mkdir(filepath.Join(data, partition), 0o755)
				write(t, filepath.Join(data, partition, checkpoint.PartitionFile), checkpoint.AppendPartition(nil, checkpoint.Partition{TopicID: id}))
			}
			checkVerify(t, data, tc.faults...)
		})
	}
}

func TestCheckpointsAgainstLogs(t *testing.T) {
	for _, tc := range []struct {
		name, file, line string
		unclean          bool
		faults           []string
	}{
		{"recovery point at the end", checkpoint.RecoveryPointFile, "t 0 4", false, nil},
		{"C014: recovery point beyond the end", checkpoint.RecoveryPointFile, "t 0 5", true, []string{"recovery point: 5 for t-0"}},
		{"recovery point behind", checkpoint.RecoveryPointFile, "t 0 3", true, nil},
		{"recovery point behind, closed cleanly", checkpoint.RecoveryPointFile, "t 0 3", false, nil},
		{"high watermark beyond the end", checkpoint.HighWatermarkFile, "t 0 5", false, []string{"high watermark: 5 for t-0"}},
		{"high watermark beyond the end, not closed", checkpoint.HighWatermarkFile, "t 0 5", true, nil},
		{"log start beyond the end", checkpoint.LogStartOffsetFile, "t 0 5", true, []string{"log start: 5 for t-0"}},
		{"log start inside", checkpoint.LogStartOffsetFile, "t 0 2", false, nil},
		{"cleaner offset beyond the end", checkpoint.CleanerOffsetFile, "t 0 9", false, []string{"cleaner offset: 9 for t-0"}},
		{"partition without a folder", checkpoint.HighWatermarkFile, "u 0 5", false, nil},
		{"C011: negative", checkpoint.HighWatermarkFile, "t 0 -5", true, []string{`format: "-5" in line 3`}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir := folder(t, map[string][]byte{log0: cat(batch(t, 0, nil, 1, 2), batch(t, 2, nil, 3, 4))})
			write(t, filepath.Join(filepath.Dir(dir), tc.file), []byte("0\n1\n"+tc.line+"\n"))
			if tc.unclean {
				unclean(t, dir)
			}
			checkVerify(t, filepath.Dir(dir), tc.faults...)
		})
	}
}

// C006, C007: what may stand at the end of a log, by how it was closed.
func TestLogTails(t *testing.T) {
	a, b := batch(t, 0, nil, 1), batch(t, 1, nil, 2)
	size := len(a) + len(b)
	big := encode(t, 2, nil, record.Record{Offset: 2, Timestamp: 3, Value: bytes.Repeat([]byte("x"), 5000)})
	half := append(slices.Clone(big[:2000]), make([]byte, 6000)...)
	unstamped := slices.Clone(big)
	clear(unstamped[:record.HeaderSize])
	rot := slices.Clone(big)
	rot[100] ^= 1
	middle := cat(a, b, batch(t, 2, nil, 3))
	middle[len(a)+70] ^= 1
	longer := cat(a, b, batch(t, 2, nil, 3))
	longer[len(a)+8] = 0x7f // the length of the second batch
	for _, tc := range []struct {
		name          string
		log           []byte
		clean, killed []string // faults of a folder closed cleanly, and of one that was not
	}{
		{"nothing", cat(a, b), nil, nil},
		{"seventeen zeros", cat(a, b, make([]byte, 17)), []string{"zero tail: 17 zero bytes"}, nil},
		{"a MiB of zeros", cat(a, b, make([]byte, 1<<20)), []string{"zero tail: 1048576 zero bytes"}, nil},
		{"part of a header", cat(a, b, big[:10]), []string{"length: bytes left 10"}, nil},
		{"batch without its end", cat(a, b, big[:3000]), []string{"length: bytes left 3000"}, nil},
		{"half a batch in a preallocated file", cat(a, b, half), []string{fmt.Sprintf("crc: crc-32c %08x", big.CRC()), fmt.Sprintf("zero tail: %d zero bytes", len(half)-len(big))}, nil},
		{"records before their header", cat(a, b, unstamped), []string{"length: length 0"}, nil},
		{"a whole batch with a flipped bit", cat(a, b, rot), []string{fmt.Sprintf("crc: crc-32c %08x", big.CRC())}, []string{fmt.Sprintf("crc: crc-32c %08x", big.CRC())}},
		{"a flipped bit with batches behind", middle, []string{fmt.Sprintf("crc: crc-32c %08x", b.CRC())}, []string{fmt.Sprintf("crc: crc-32c %08x", b.CRC())}},
		{"a wrong length with batches behind", longer, []string{fmt.Sprintf("length: bytes left %d", len(longer)-len(a))}, []string{fmt.Sprintf("length: bytes left %d", len(longer)-len(a))}},
		{"zeros, then an older batch (C006)", cat(a, b, make([]byte, 600), a), []string{"length: length 0"}, nil},
		{"random bytes", cat(a, b, bytes.Repeat([]byte{0xa7}, 500)), []string{"length: length -1482184793"}, []string{"length: length -1482184793"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir := folder(t, map[string][]byte{log0: tc.log})
			checkVerify(t, dir, tc.clean...)
			if len(tc.clean) > 0 {
				out := findings(t, mustRun(t, exitDamage, "verify", "--json", filepath.Join(dir, log0)), "fault")
				if p := *out[0].Position; p < int64(len(a)) || p > int64(size+len(big)) {
					t.Errorf("position %d; want one in the bad bytes", p)
				}
			}
			unclean(t, dir)
			checkVerify(t, dir, tc.killed...)
			// Dump shows every batch, and has the same exit code.
			want := exitOK
			if len(tc.killed) > 0 {
				want = exitDamage
			}
			valid := 0
			for _, l := range lines(t, mustRun(t, want, "dump", "--json", dir)) {
				if l.Type == "batch" && l.Valid {
					valid++
				}
			}
			if valid < 2 {
				t.Errorf("dump shows %d valid batches; want 2", valid)
			}
			// The same bytes in a segment that is not the last are damage.
			if tc.clean != nil {
				write(t, filepath.Join(dir, "00000000000000000100.log"), batch(t, 100, nil, 9))
				checkVerify(t, dir, tc.clean...)
				want := exitDamage
				if strings.HasPrefix(tc.clean[0], "zero tail") {
					want = exitOK // dump shows it and leaves the judgement to verify
				}
				mustRun(t, want, "dump", filepath.Join(dir, log0))
			}
		})
	}
}

// Entries that fit no batch may stand behind the used ones only where a
// truncation can have left them: last segment, not closed, grown to capacity.
func TestEntriesBehindTheUsedOnes(t *testing.T) {
	b0, b1 := batch(t, 0, nil, 1), batch(t, 1, nil, 2)
	at := int64(len(b0))
	zeros := make([]int64, 20)
	for _, tc := range []struct {
		name    string
		entries []int64
		unclean bool
		faults  int
	}{
		{"not closed, at capacity", append([]int64{1, at, 5, at + 7, 6, at + 9}, zeros...), true, 0},
		{"not closed, at capacity, not ascending", append([]int64{1, at, 7, at + 9, 6, at + 8}, zeros...), true, 2},
		{"not closed, trimmed", []int64{1, at, 5, at + 7}, true, 1},
		{"not closed, trimmed, beyond the end of the log", []int64{1, at, 5, 9000}, true, 0},
		{"not closed, behind zeros", append([]int64{1, at, 0, 0, 5, at + 7}, zeros...), true, 2},
		{"not closed, a good one behind", append([]int64{0, 3, 1, at}, zeros...), true, 1},
		{"closed cleanly", append([]int64{1, at, 5, at + 7}, zeros...), false, 2},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir := folder(t, map[string][]byte{log0: cat(b0, b1), index0: offsetEntries(tc.entries...)})
			if tc.unclean {
				unclean(t, dir)
			}
			_, out, _ := logtool("verify", "--json", dir)
			if f := findings(t, out, "fault"); len(f) != tc.faults {
				t.Errorf("%d faults; want %d\n%s", len(f), tc.faults, out)
			}
		})
	}
}

func TestProducerSnapshots(t *testing.T) {
	snap, err := hex.DecodeString("0001addaa4520000000200000000000000050000ffffffffffffffffffffffff000000000000018bcfe56800000000090000000000000032000000000000109200070000000c0000000000000066000000020000018bcfe5687bffffffffffffffffffffffff") // log-format §11.3
	if err != nil {
		t.Fatal(err)
	}
	rot := slices.Clone(snap)
	rot[30] ^= 1
	version := slices.Clone(snap)
	version[1] = 2
	none := binary.BigEndian.AppendUint32([]byte{0, 1}, crc32.Checksum(make([]byte, 4), crc32.MakeTable(crc32.Castagnoli)))
	none = append(none, 0, 0, 0, 0)
	for _, tc := range []struct {
		name          string
		at            int64
		b             []byte
		clean, killed int // faults
	}{
		{"at the end", 2, none, 0, 0},
		{"at no segment's base", 1, none, 0, 0},
		{"of producers that the log has not", 2, snap, 1, 0},
		{"beyond the end", 3, snap, 1, 0},
		{"flipped bit", 2, rot, 1, 1},
		{"version 2", 2, version, 1, 1},
		{"empty", 2, nil, 1, 0},
		{"cut", 2, snap[:60], 1, 0},
		{"longer", 2, append(slices.Clone(snap), 0), 1, 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			name := checkpoint.SegmentFile{Base: tc.at, Kind: checkpoint.Snapshot}.String()
			dir := folder(t, map[string][]byte{log0: batch(t, 0, nil, 1, 2), name: tc.b})
			for _, want := range []int{tc.clean, tc.killed} {
				_, out, _ := logtool("verify", "--json", dir)
				if f := findings(t, out, "fault"); len(f) != want {
					t.Errorf("%d faults; want %d\n%s", len(f), want, out)
				}
				os.Remove(filepath.Join(filepath.Dir(dir), checkpoint.CleanMarkerFile))
			}
		})
	}
}

// C144: the attributes say "none", the checksum is right, the body is zstd.
func TestC144_LabelSaysPlain(t *testing.T) {
	bad := batch(t, 1, func(s *record.Spec) { s.Codec = record.Zstd }, slices.Repeat([]int64{5}, 50)...)
	bad[22] &^= 7
	reseal(bad)
	dir := folder(t, map[string][]byte{log0: cat(batch(t, 0, nil, 1), bad, batch(t, 51, nil, 9))})
	checkC144(t, dir)

	t.Run("fixture", func(t *testing.T) {
		b := kafkajsBytes(t, "recordBatch__v0_recordbatch_zstd.json")
		dir := folder(t, map[string][]byte{log0: cat(b, batch(t, 100, func(s *record.Spec) { s.LeaderEpoch = 911 }, 9))})
		faults := findings(t, mustRun(t, exitDamage, "verify", "--json", dir), "fault")
		if len(faults) != 1 || faults[0].Check != "record" || *faults[0].Position < record.HeaderSize {
			t.Errorf("faults %+v; want one about a record", faults)
		}
	})
}

func checkC144(t *testing.T, dir string) {
	t.Helper()
	faults := findings(t, mustRun(t, exitDamage, "verify", "--json", dir), "fault")
	if len(faults) != 1 || faults[0].Check != "record" || *faults[0].Offset != 1 {
		t.Errorf("faults %+v; want one about a record of the batch at 1", faults)
	}
	var got []string
	for _, l := range lines(t, mustRun(t, exitDamage, "dump", "--json", "--records", dir)) {
		got = append(got, l.Type)
	}
	if want := []string{"batch", "record", "batch", "error", "batch", "record"}; !slices.Equal(got, want) {
		t.Errorf("dump shows %v; want %v", got, want)
	}
	if text := mustRun(t, exitDamage, "dump", "--records", dir); !regexp.MustCompile(`(?m)^error position=\d+ check=record found="record 0: `).MatchString(text) {
		t.Errorf("text does not name the failing check and its byte:\n%s", text)
	}
}

func kafkajsBytes(t *testing.T, name string) []byte {
	b, err := os.ReadFile(filepath.Join(realdata(t, "kafkajs-json-fixtures"), name))
	if err != nil {
		t.Fatal(err)
	}
	var f struct{ Data []int }
	if err := json.Unmarshal(b, &f); err != nil {
		t.Fatal(err)
	}
	var out []byte
	for _, n := range f.Data {
		out = append(out, byte(n))
	}
	return out
}

// C159: payloads and header names that would break a line.
func TestC159_OutputForScripts(t *testing.T) {
	r := record.Record{Timestamp: math.MaxInt64 - 1, Key: []byte("a b=\"c\"\n"), Value: []byte("\xff\x00line\nbreak, and: more\u2028\\"), Headers: []record.Header{
		{Key: []byte("third:header"), Value: []byte("1,2")}, {Key: []byte("fourth,header"), Value: nil}, {Key: []byte(""), Value: []byte("]=\"")},
	}}
	huge := record.Record{Offset: 1, Timestamp: math.MaxInt64 - 1, Value: bytes.Repeat([]byte("\x01\xfe"), 1<<19)}
	dir := folder(t, map[string][]byte{log0: encode(t, 0, func(s *record.Spec) { s.ProducerID, s.ProducerEpoch, s.BaseSequence = math.MaxInt64, 1, 0 }, r, huge)})

	out := mustRun(t, exitOK, "dump", "--json", "--records", dir)
	l := lines(t, out)
	if len(l) != 3 {
		t.Fatalf("%d lines; want 3", len(l))
	}
	if !strings.Contains(out, `"producerId":9223372036854775807,`) || l[1].Timestamp != math.MaxInt64-1 {
		t.Errorf("64-bit values are rounded: %.300s", out)
	}
	if !bytes.Equal(*l[1].Key, r.Key) || !bytes.Equal(*l[1].Value, r.Value) || !bytes.Equal(*l[2].Value, huge.Value) {
		t.Errorf("key or value differ")
	}
	if l[2].Key != nil {
		t.Errorf("null key is shown as %q", *l[2].Key)
	}
	want := [][2]any{{"third:header", base64.StdEncoding.EncodeToString([]byte("1,2"))}, {"fourth,header", nil}, {"", base64.StdEncoding.EncodeToString([]byte("]=\""))}}
	if fmt.Sprint(l[1].Headers) != fmt.Sprint(want) {
		t.Errorf("headers %v; want %v", l[1].Headers, want)
	}
	// Stable names in a stable order.
	keys := regexp.MustCompile(`"(\w+)":`).FindAllStringSubmatch(strings.SplitN(out, "\n", 2)[0], -1)
	var order []string
	for _, k := range keys {
		order = append(order, k[1])
	}
	if want := strings.Fields("type file position size baseOffset lastOffset count leaderEpoch crc valid codec timestampType baseTimestamp maxTimestamp producerId producerEpoch baseSequence isTransactional isControl magic lastSequence deleteHorizonMs"); !slices.Equal(order, want) {
		t.Errorf("batch fields %v; want %v", order, want)
	}

	text := mustRun(t, exitOK, "dump", "--records", dir)
	if n := strings.Count(text, "\n"); n != 4 {
		t.Errorf("text has %d lines; want one a file, batch and record: 4", n)
	}
	if want := `key="a b=\"c\"\n" value="\xff\x00line\nbreak, and: more\u2028\\" headers=["third:header"="1,2","fourth,header"=null,""="]=\""]`; !strings.Contains(text, want) {
		t.Errorf("text does not contain %s:\n%.600s", want, text)
	}
}

// C129 on this side: null and empty differ.
func TestC129_NullAndEmpty(t *testing.T) {
	for _, codec := range []record.Codec{record.None, record.Gzip, record.Snappy, record.LZ4, record.Zstd} {
		var recs []record.Record
		for i, k := range [][]byte{nil, {}, []byte("k")} {
			for j, v := range [][]byte{nil, {}, []byte("v")} {
				recs = append(recs, record.Record{Offset: int64(3*i + j), Timestamp: 1, Key: k, Value: v, Headers: []record.Header{{Key: []byte("h"), Value: v}}})
			}
		}
		path := filepath.Join(folder(t, map[string][]byte{log0: encode(t, 0, func(s *record.Spec) { s.Codec = codec }, recs...)}), log0)
		l := lines(t, mustRun(t, exitOK, "dump", "--json", "--records", path))
		for i, r := range recs {
			got := l[1+i]
			if (got.Key == nil) != (r.Key == nil) || (got.Value == nil) != (r.Value == nil) || (got.Headers[0][1] == nil) != (r.Value == nil) {
				t.Errorf("%v: record %d: key %v, value %v, header %v", codec, i, got.Key, got.Value, got.Headers)
			}
		}
	}
}

// C161: a quick yes or no, by exit code.
func TestC161_ExitCodes(t *testing.T) {
	good := batch(t, 0, nil, 1, 2)
	bad := slices.Clone(good)
	bad[70] ^= 4
	dir := func(log, index []byte) string {
		return folder(t, map[string][]byte{log0: log, index0: index})
	}
	notes := filepath.Join(t.TempDir(), "notes.txt")
	write(t, notes, []byte("hello"))
	for _, tc := range []struct {
		name   string
		args   []string
		code   int
		stdout string // regular expression
		stderr string // part of
	}{
		{"healthy", []string{"verify", dir(good, nil)}, exitOK, `^summary .* faults=0 notes=\d+\n$`, ""},
		{"bad checksum", []string{"verify", dir(bad, nil)}, exitDamage, `^fault .*/0{20}\.log: position 17: crc: found crc-32c [0-9a-f]{8}, want [0-9a-f]{8}\nsummary .* faults=1 `, ""},
		{"bad index", []string{"verify", dir(good, offsetEntries(1, 5))}, exitDamage, `^fault .*/0{20}\.index: position 0: offset 1: entry: found offset 1 at position 5, want the position of a batch\nsummary`, ""},
		{"bad checksum, dump", []string{"dump", dir(bad, nil)}, exitDamage, `(?s)valid=false .* error=.*\nerror position=17 check=crc`, ""},
		{"missing", []string{"verify", filepath.Join(dir(good, nil), "none.log")}, exitUnreadable, `^summary`, "none.log"},
		{"missing, dump", []string{"dump", filepath.Join(dir(good, nil), "none.log")}, exitUnreadable, `^$`, "none.log"},
		{"not a segment", []string{"verify", notes}, exitUnreadable, `^summary`, "unknown kind"},
		{"not a segment, dump", []string{"dump", notes}, exitOK, `^unknown file=\S+ what="unknown kind"\n$`, ""},
		{"neither kind of folder", []string{"verify", filepath.Dir(notes)}, exitUnreadable, `^summary`, "neither a data folder nor a partition folder"},
		{"damage and something missing", []string{"verify", "none", dir(bad, nil)}, exitDamage, `faults=1`, "none"},
		{"no command", nil, exitUsage, `^$`, "no command given"},
		{"unknown command", []string{"frobnicate"}, exitUsage, `^$`, "frobnicate"},
		{"unknown flag", []string{"dump", "--frob", "x"}, exitUsage, `^$`, "--frob"},
		{"no path", []string{"dump"}, exitUsage, `^$`, "requires at least 1 arg"},
		{"nonsense limit", []string{"dump", "--max-batch", "5", "x"}, exitUsage, `^$`, "want at least 61"},
		{"help", []string{"--help"}, exitOK, `Available Commands`, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			code, stdout, stderr := logtool(tc.args...)
			if code != tc.code || !regexp.MustCompile(tc.stdout).MatchString(stdout) || !strings.Contains(stderr, tc.stderr) || tc.stderr == "" && stderr != "" {
				t.Errorf("exit %d, stdout %q, stderr %q; want %d, %q, %q", code, stdout, stderr, tc.code, tc.stdout, tc.stderr)
			}
		})
	}
	if os.Geteuid() != 0 {
		d := dir(good, nil)
		os.Chmod(filepath.Join(d, log0), 0)
		mustRun(t, exitUnreadable, "verify", d)
	}
}

// C162: a batch is one line, with or without its records; markers are visible.
func TestC162_BatchAndRecordLevel(t *testing.T) {
	var b []byte
	for i := range int64(3) {
		b = append(b, batch(t, i*100, func(s *record.Spec) {
			s.ProducerID, s.ProducerEpoch, s.BaseSequence, s.Transactional = 9, 0, int32(i*100), true
		}, slices.Repeat([]int64{1000}, 100)...)...)
	}
	b = record.AppendMarker(b, record.Marker{Offset: 300, Timestamp: 1000, ProducerID: 9, Type: record.Commit, CoordinatorEpoch: 4})
	dir := folder(t, map[string][]byte{log0: b})
	checkVerify(t, dir)
	count := func(args ...string) map[string]int {
		n := map[string]int{}
		for _, l := range lines(t, mustRun(t, exitOK, append(args, "--json", dir)...)) {
			n[l.Type]++
			if l.IsControl || l.Control != "" {
				n["control "+l.Type+l.Control]++
			}
		}
		return n
	}
	if got, want := count("dump"), (map[string]int{"batch": 4, "control batch": 1}); !maps.Equal(got, want) {
		t.Errorf("without records: %v; want %v", got, want)
	}
	if got, want := count("dump", "--records"), (map[string]int{"batch": 4, "record": 301, "control batch": 1, "control recordCOMMIT": 1}); !maps.Equal(got, want) {
		t.Errorf("with records: %v; want %v", got, want)
	}
	if text := mustRun(t, exitOK, "dump", "--records", dir); !strings.Contains(text, "control=COMMIT coordinatorEpoch=4") {
		t.Errorf("text does not show the marker")
	}
}

// C164: whatever lies in a folder is decoded by its name, or called unknown;
// text is never taken for batches.
func TestC164_OtherFiles(t *testing.T) {
	dir := copyDir(t, filepath.Join(testdata, "kafka-4.4-closed"))
	txn := filepath.Join(dir, "txn-1")
	for _, stage := range []string{"deleted", "cleaned", "swap"} {
		b, _ := os.ReadFile(filepath.Join(txn, log0))
		write(t, filepath.Join(txn, log0+"."+stage), b)
	}
	write(t, filepath.Join(txn, "notes.txt"), []byte("hello"))
	os.Mkdir(filepath.Join(txn, "sub"), 0o755)
	kafkaMarker := filepath.Join(dir, checkpoint.CleanMarkerFile)
	for _, tc := range []struct {
		path  string
		types string // of the lines, each once
	}{
		{"txn-1/" + log0, "batch"},
		{"txn-1/" + log0 + ".deleted", "batch"},
		{"txn-1/" + log0 + ".cleaned", "batch"},
		{"txn-1/" + log0 + ".swap", "batch"},
		{"txn-0/" + index0, "offsetIndexEntry"},
		{"txn-1/" + index0, ""},
		{"txn-1/" + times0, "timeIndexEntry"},
		{"txn-1/00000000000000000000.txnindex", "txnIndexEntry"},
		{"txn-1/00000000000000000024.snapshot", "producerEntry producerSnapshot"},
		{"txn-1/leader-epoch-checkpoint", "leaderEpoch"},
		{"txn-1/partition.metadata", "partitionMetadata"},
		{"txn-1/notes.txt", "unknown"},
		{"__cluster_metadata-0/00000000000000000050-0000000001.checkpoint", "batch"},
		{"meta.properties", "metaProperties"},
		{".kafka_cleanshutdown", "cleanShutdown"},
		{"recovery-point-offset-checkpoint", "checkpoint"},
		{"replication-offset-checkpoint", "checkpoint"},
		{"log-start-offset-checkpoint", "checkpoint"},
		{"cleaner-offset-checkpoint", "checkpoint"},
		{"truth/txn.jsonl", "unknown"},
		{"txn-1", "batch producerEntry producerSnapshot leaderEpoch partitionMetadata timeIndexEntry txnIndexEntry unknown"},
	} {
		types := map[string]bool{}
		for _, l := range lines(t, mustRun(t, exitOK, "dump", "--json", filepath.Join(dir, tc.path))) {
			types[l.Type] = true
		}
		want := map[string]bool{}
		for _, w := range strings.Fields(tc.types) {
			want[w] = true
		}
		if !maps.Equal(types, want) {
			t.Errorf("dump %s: lines of types %v; want %v", tc.path, types, want)
		}
		mustRun(t, exitOK, "dump", filepath.Join(dir, tc.path))
	}

	// Values, one of each kind.
	text := mustRun(t, exitOK, "dump", dir)
	for _, want := range []string{
		"\ntxnIndexEntry entry=0 producerId=",
		"\nproducerSnapshot offset=24 size=148 version=1 valid=true entries=3\n",
		"\nleaderEpoch epoch=2 startOffset=24\n",
		"\nmetaProperties version=1 clusterId=4L6g3nShT-eMCtK--X86sw nodeId=1 directoryId=lJkkqoLpOJhEOK1gCPqeaQ\n",
		"\ncleanShutdown brokerEpoch=224\n",
		"\ncheckpoint kind=logStartOffset topic=deleted partition=0 offset=22\n",
		"\noffsetIndexEntry entry=0 offset=35 position=4258\n",
		"\ntimeIndexEntry entry=0 timestamp=1795966479195 offset=35\n",
		"\npartitionMetadata version=0 topicId=",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("dump of the data folder does not contain %q", want)
		}
	}

	// The leftovers are notes for verify, text under a log's name is damage.
	mustRun(t, exitOK, "verify", dir)
	os.Remove(kafkaMarker)
	write(t, filepath.Join(txn, log0), []byte(strings.Repeat("this is no log\n", 50)))
	mustRun(t, exitDamage, "verify", txn)
	mustRun(t, exitDamage, "dump", filepath.Join(txn, log0))
}

// C037: names that do not belong.
func TestC037_StrayNames(t *testing.T) {
	good := batch(t, 0, nil, 1)
	dir := folder(t, map[string][]byte{log0: good, ".DS_Store": []byte("x"), log0 + ".bak": good, "00000000000000000500.index": nil})
	os.Mkdir(filepath.Join(dir, "sub"), 0o755)
	checkVerify(t, dir)
	write(t, filepath.Join(dir, "notanumber.log"), good)
	write(t, filepath.Join(dir, "5.log"), good)
	checkVerify(t, dir, `name: "5.log"`, `name: "notanumber.log"`)
	mustRun(t, exitOK, "dump", dir)
}

// A file that is cut or removed between its opening and its reading.
func TestC166_FileShrinks(t *testing.T) {
	b := cat(batch(t, 0, nil, 1), batch(t, 1, nil, 2), batch(t, 2, nil, 3))
	for cut := range len(b) {
		path := filepath.Join(t.TempDir(), log0)
		write(t, path, b[:cut])
		f, _, err := openFile(path)
		if err != nil {
			t.Fatal(err)
		}
		s := &scanner{f: f, size: int64(len(b)), maxBatch: 1 << 20} // the size of a moment ago
		end := int64(0)
		for {
			sp, ok := s.next()
			if !ok {
				break
			}
			if sp.pos != end || sp.size <= 0 || sp.pos+sp.size > int64(cut) {
				t.Fatalf("cut at %d: span at %d of %d bytes behind %d", cut, sp.pos, sp.size, end)
			}
			end = sp.pos + sp.size
		}
		if s.err != nil || end != int64(cut) {
			t.Errorf("cut at %d: walk ends at %d, error %v", cut, end, s.err)
		}
		f.Close()
	}
}

// memFile is a file of these bytes. cutTo, if it is not negative, is the size
// that somebody gives it in the middle of the first read, which has got to
// cutAt by then: it ends there, as a read ends at a page.
type memFile struct {
	b            []byte
	cutAt, cutTo int
	grow         bool // by another read it has its size again
	fail         error
	once         func(read []byte) // changes what is read from the beginning, once
}

func newMemFile(b []byte) *memFile { return &memFile{b: b, cutTo: -1} }

func (f *memFile) Close() error { return nil }

func (f *memFile) Stat() (fs.FileInfo, error) { return memInfo(len(f.b)), nil }

func (f *memFile) ReadAt(p []byte, pos int64) (int, error) {
	if f.fail != nil {
		return 0, f.fail
	}
	b := f.b
	if f.cutTo >= 0 {
		if !f.grow {
			f.b = b[:f.cutTo]
		}
		b, f.cutTo = b[:f.cutAt], -1
	}
	n, err := bytes.NewReader(b).ReadAt(p, pos)
	if f.once != nil && pos == 0 {
		f.once(p[:n])
		f.once = nil
	}
	return n, err
}

type memInfo int64

func (i memInfo) Name() string     { return "" }
func (i memInfo) Size() int64      { return int64(i) }
func (memInfo) Mode() fs.FileMode  { return 0 }
func (memInfo) ModTime() time.Time { return time.Time{} }
func (memInfo) IsDir() bool        { return false }
func (memInfo) Sys() any           { return nil }

// A file that is cut in the middle of a read, which ends at a page behind the
// new end: an index of 512 entries of which a roll leaves 65, its log, and an
// index of transactions. None has a part of anything at its end.
func TestC166_FileShrinksWithinRead(t *testing.T) {
	const entries, used, page = 512, 65, 4096
	for _, grow := range []bool{false, true} {
		want := used
		if grow {
			want = entries
		}
		cutTo := func(b []byte, to int) *memFile { return &memFile{b: b, cutAt: page, cutTo: to, grow: grow} }

		r := &entryReader{f: cutTo(make([]byte, entries*index.TimeEntrySize), used*index.TimeEntrySize), size: entries * index.TimeEntrySize, times: true}
		for i := int64(0); ; i++ {
			if _, ok := r.at(i); !ok {
				break
			}
		}
		if r.err != nil || r.size != int64(want*index.TimeEntrySize) {
			t.Errorf("grows %v: time index of %d bytes, error %v; want %d", grow, r.size, r.err, want*index.TimeEntrySize)
		}

		var log []byte
		var ends []int
		for i := range 200 {
			log = append(log, batch(t, int64(i), nil, int64(i))...)
			ends = append(ends, len(log))
		}
		s := &scanner{f: cutTo(log, ends[20]), size: int64(len(log)), maxBatch: 1 << 20}
		batches := 0
		for sp, ok := s.next(); ok; sp, ok = s.next() {
			if batches++; sp.kind != spanBatch {
				t.Errorf("grows %v: span of kind %v at %d, error %v", grow, sp.kind, sp.pos, sp.err)
			}
		}
		if want := map[bool]int{false: 21, true: len(ends)}[grow]; s.err != nil || batches != want {
			t.Errorf("grows %v: %d batches, error %v; want %d", grow, batches, s.err, want)
		}

		var txns []byte
		for i := range 200 {
			txns = index.AbortedTxn{PID: 1, FirstOffset: int64(i), LastOffset: int64(i), LastStableOffset: int64(i)}.AppendTo(txns)
		}
		got := 0
		err := eachTxn(cutTo(txns, 20*index.TxnEntrySize), "x", 0, func(i int64, _ index.AbortedTxn, bad *index.CorruptError) bool {
			if got++; bad != nil {
				t.Errorf("grows %v: entry %d: %v", grow, i, bad)
			}
			return true
		})
		if want := map[bool]int{false: 20, true: 200}[grow]; err != nil || got != want {
			t.Errorf("grows %v: %d aborted transactions, error %v; want %d", grow, got, err, want)
		}
	}
}

// A header that is read while it is written: the front of it, the base offset, is older
// than what follows. It is read again.
func TestC166_HeaderHalfRead(t *testing.T) {
	log := cat(batch(t, 0, nil, 1), batch(t, 1, nil, 2), batch(t, 2, nil, 3))
	second := int(record.Batch(log).Size())
	for k := 8; k < record.HeaderSize; k++ {
		f := newMemFile(slices.Clone(log))
		again := 1
		if k == 8 { // not written yet when it was read
			f.once = func(b []byte) { clear(b[second : second+k]) }
		} else { // written up to there, by a writer that stands still for a while
			clear(f.b[second+k:])
			f.b = append(f.b[:second+record.HeaderSize], log[second+record.HeaderSize:2*second]...)
			f.b = append(f.b, make([]byte, len(log)-2*second)...)
			again = 5
		}
		s := &scanner{f: f, size: int64(len(log)), maxBatch: 1 << 20}
		s.live = func() int64 { // looked at again
			if again--; again == 0 {
				copy(f.b, log)
			}
			return int64(len(log))
		}
		var bases []int64
		for sp, ok := s.next(); ok; sp, ok = s.next() {
			switch sp.kind {
			case spanBatch:
				bases = append(bases, record.Batch(sp.data).BaseOffset())
			case spanBad:
				t.Errorf("%d bytes of the header: %v", k, sp.err)
			}
		}
		if torn := k > 8 && again > 0 && slices.Equal(bases, []int64{0}); !torn && !slices.Equal(bases, []int64{0, 1, 2}) {
			t.Errorf("%d bytes of the header: batches at %v", k, bases)
		}
	}
}

// A read that fails is no end of the file: the walk says so.
func TestReadFails(t *testing.T) {
	fail := errors.New("input/output error")
	f := &memFile{fail: fail, cutTo: -1}
	if err := eachTxn(f, "x", 0, func(int64, index.AbortedTxn, *index.CorruptError) bool { return true }); !errors.Is(err, fail) {
		t.Errorf("transaction index: %v", err)
	}
	r := &entryReader{f: f, size: 80}
	if _, ok := r.at(0); ok || !errors.Is(r.err, fail) {
		t.Errorf("offset index: %v, %v", ok, r.err)
	}
	for _, look := range []func(s *scanner){
		func(s *scanner) { s.next() },
		func(s *scanner) { s.zeros(0) },
		func(s *scanner) { s.resync(0) },
		func(s *scanner) { s.follow(&span{}) },
	} {
		s := &scanner{f: f, size: 1000, maxBatch: 1 << 20}
		if look(s); !errors.Is(s.err, fail) {
			t.Errorf("log: %v", s.err)
		}
	}
}

// A batch above the limit is a fault, never an allocation, and what follows is
// read.
func TestBatchAboveLimit(t *testing.T) {
	big := encode(t, 1, nil, record.Record{Offset: 1, Timestamp: 1, Value: make([]byte, 100000)})
	dir := folder(t, map[string][]byte{log0: cat(batch(t, 0, nil, 1), big, batch(t, 2, nil, 3))})
	out := mustRun(t, exitDamage, "verify", "--json", "--max-batch", "50000", dir)
	if f := findings(t, out, "fault"); len(f) != 1 || f[0].Check != "size" || f[0].Wanted != "at most 50000" {
		t.Errorf("faults %+v; want one about the size", f)
	}
	if s := lines(t, out); s[len(s)-1].Batches != 2 {
		t.Errorf("%d batches checked; want the two others", s[len(s)-1].Batches)
	}
	// A length field of 2 GiB in a file that is as long, but empty.
	sparse := filepath.Join(t.TempDir(), log0)
	head := make([]byte, record.HeaderSize)
	binary.BigEndian.PutUint32(head[8:], math.MaxInt32-12)
	head[16] = record.Magic
	write(t, sparse, head)
	if err := os.Truncate(sparse, 1<<31+100); err != nil {
		t.Skip(err)
	}
	start := time.Now()
	mustRun(t, exitDamage, "dump", sparse)
	t.Logf("sparse file of 2 GiB: %v", time.Since(start))
}

// Old formats are read and named (log-format §2.9).
func TestLegacyMagics(t *testing.T) {
	t.Run("log-format §11.2", func(t *testing.T) {
		for _, tc := range []struct {
			hex   string
			magic int
			ts    int64
		}{
			{"0000000000000007000000101fecd70a0000000000016b0000000176", 0, -1},
			{"000000000000000700000018cf056e6e01000000000000000001000000016b0000000176", 1, 1},
		} {
			b, _ := hex.DecodeString(tc.hex)
			path := filepath.Join(folder(t, map[string][]byte{log0: b}), log0)
			l := lines(t, mustRun(t, exitOK, "dump", "--json", "--records", path))
			if l[0].Type != "batch" || l[0].Magic != tc.magic || l[0].BaseOffset != 7 || !l[0].Valid || l[1].Timestamp != tc.ts || string(*l[1].Key) != "k" || string(*l[1].Value) != "v" {
				t.Errorf("magic %d: %+v", tc.magic, l)
			}
			checkVerify(t, path)
			if text := mustRun(t, exitOK, "verify", "--notes", path); !strings.Contains(text, fmt.Sprintf("a message of magic %d", tc.magic)) {
				t.Errorf("verify does not name magic %d:\n%s", tc.magic, text)
			}
			b[len(b)-1] ^= 1
			write(t, path, b)
			mustRun(t, exitDamage, "verify", path)
		}
	})
	t.Run("kafka-go fixtures", func(t *testing.T) {
		files, err := filepath.Glob(filepath.Join(realdata(t, "segmentio-fetch-fixtures"), "*.hex"))
		if err != nil || len(files) == 0 {
			t.Fatal("no fixtures", err)
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			all, err := hex.DecodeString(strings.TrimSpace(string(text)))
			if err != nil {
				t.Fatal(err)
			}
			// The records are the last field of the response, behind their length.
			var set []byte
			for at := 73; at <= 78; at++ {
				if int(binary.BigEndian.Uint32(all[at-4:])) == len(all)-at {
					set = all[at:]
				}
			}
			if set == nil {
				t.Fatalf("%s: no record set", file)
			}
			path := filepath.Join(folder(t, map[string][]byte{log0: set}), log0)
			records, magics := 0, map[int]bool{}
			for _, l := range lines(t, mustRun(t, exitOK, "dump", "--json", "--records", path)) {
				switch l.Type {
				case "batch":
					magics[l.Magic] = true
				case "record":
					records++
				}
			}
			name := filepath.Base(file)
			if records == 0 || magics[1] != strings.Contains(name, "v1") || magics[2] != strings.Contains(name, "v2") {
				t.Errorf("%s: %d records, magics %v", name, records, magics)
			}
		}
	})
	t.Run("kafkajs fixtures", func(t *testing.T) {
		for _, name := range []string{"messageSet__messages_v0_GZIP.json", "messageSet__messages_v0_uncompressed.json.json"} {
			b := kafkajsBytes(t, name)[4:]
			path := filepath.Join(folder(t, map[string][]byte{log0: b}), log0)
			n := 0
			for _, l := range lines(t, mustRun(t, exitOK, "dump", "--json", "--records", path)) {
				if l.Type == "record" {
					n++
				}
			}
			if n != 3 {
				t.Errorf("%s: %d records; want 3", name, n)
			}
		}
	})
}

// Transactions: the index names each aborted one, and no other.
func TestTxnIndex(t *testing.T) {
	data := func(pid, offset int64) record.Batch {
		return batch(t, offset, func(s *record.Spec) {
			s.ProducerID, s.ProducerEpoch, s.BaseSequence, s.Transactional = pid, 0, 0, true
		}, 1)
	}
	marker := func(pid, offset int64, typ record.ControlType) record.Batch {
		return record.AppendMarker(nil, record.Marker{Offset: offset, Timestamp: 1, ProducerID: pid, Type: typ})
	}
	log := cat(data(5, 0), data(10, 1), marker(10, 2, record.Abort), marker(5, 3, record.Commit), data(10, 4), marker(10, 5, record.Abort))
	first, second := index.AbortedTxn{PID: 10, FirstOffset: 1, LastOffset: 2, LastStableOffset: 0}, index.AbortedTxn{PID: 10, FirstOffset: 4, LastOffset: 5, LastStableOffset: 6}
	txns := func(all ...index.AbortedTxn) (b []byte) {
		for _, x := range all {
			b = x.AppendTo(b)
		}
		return b
	}
	wrong := first
	wrong.LastStableOffset = 1
	version := txns(first, second)
	version[1] = 1
	for _, tc := range []struct {
		name   string
		b      []byte
		faults []string
	}{
		{"right", txns(first, second), nil},
		{"one missing", txns(first), []string{"entry: none for the transaction that was aborted there"}},
		{"first missing", txns(second), []string{"entry: none for the transaction that was aborted there"}},
		{"last stable offset", txns(wrong, second), []string{"entry: producer 10, offsets 1 to 2, last stable offset 1"}},
		{"a commit", txns(first, index.AbortedTxn{PID: 5, FirstOffset: 0, LastOffset: 3, LastStableOffset: 4}, second), []string{"entry: producer 5, offsets 0 to 3, last stable offset 4"}},
		{"version", version, []string{"entry: version 1", "entry: none for the transaction that was aborted there"}},
		{"cut", txns(first, second)[:40], []string{"entry: 6 bytes", "entry: none for the transaction that was aborted there"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			checkVerify(t, folder(t, map[string][]byte{log0: log, "00000000000000000000.txnindex": tc.b}), tc.faults...)
		})
	}
}

// A folder of data folders, as that of a cluster is: each is looked into, although the
// names of its nodes look like those of partitions.
func TestFolderOfDataFolders(t *testing.T) {
	top := t.TempDir()
	for _, node := range []string{"node-0", "node-1"} {
		if err := os.CopyFS(filepath.Join(top, node), os.DirFS(filepath.Join(testdata, "kafka-4.4-closed"))); err != nil {
			t.Fatal(err)
		}
	}
	one := mustRun(t, exitOK, "verify", "--json", filepath.Join(top, "node-1"))
	both := mustRun(t, exitOK, "verify", "--json", top)
	sum := func(out string) jsonLine { all := lines(t, out); return all[len(all)-1] }
	if a, b := sum(one), sum(both); b.Batches != 2*a.Batches || a.Batches == 0 {
		t.Errorf("%d batches in one, %d in both", a.Batches, b.Batches)
	}
	for _, args := range [][]string{{"ls"}, {"dump"}, {"epochs"}, {"find", "--offset", "0"}, {"producers"}, {"explain"}} {
		code, out, stderr := logtool(append(args, top)...)
		for _, node := range []string{"node-0", "node-1"} {
			if code != exitOK || !strings.Contains(out, filepath.Join(top, node)) {
				t.Errorf("%s: exit %d, nothing of %s\n%s%s", args, code, node, lastLines(out, 5), stderr)
			}
		}
	}
	log := filepath.Join(top, "node-0", "idem-0", log0)
	b, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	b[100] ^= 1
	write(t, log, b)
	mustRun(t, exitDamage, "verify", top)
}
