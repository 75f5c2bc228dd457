package replica_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/tidemark-log/tidemark/record"
	"github.com/tidemark-log/tidemark/replica"
)

// consumed is a record as a consumer of Apache Kafka 4.4 read it; see
// testdata/README.md.
type consumed struct {
	Partition int32  `json:"p"`
	Offset    int64  `json:"o"`
	Timestamp int64  `json:"t"`
	Key       []byte `json:"k"`
	Value     []byte `json:"v"`
}

// kafkaFolder copies a data folder that Kafka closed and opens it.
func kafkaFolder(t *testing.T) *replica.Dir {
	t.Helper()
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS("../testdata/kafka-4.4-closed")); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(filepath.Join(dir, "truth")); err != nil {
		t.Fatal(err)
	}
	d, err := replica.OpenDir(dir, replica.DirOptions{NodeID: 1}, t0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close(t0) })
	return d
}

func kafkaTruth(t *testing.T, topic string) (recs []consumed) {
	t.Helper()
	f, err := os.Open("../testdata/kafka-4.4-closed/truth/" + topic + ".jsonl")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 64<<20)
	for lines.Scan() {
		var r consumed
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			t.Fatal(err)
		}
		recs = append(recs, r)
	}
	if len(recs) == 0 {
		t.Fatalf("nothing is known of %s: %v", topic, lines.Err())
	}
	return recs
}

// agrees compares every way to read [start, end) with what a consumer got.
func agrees(t *testing.T, l *replica.Log, want []consumed) {
	t.Helper()
	start, end := l.LogStartOffset(), l.LogEndOffset()
	at := func(offset int64) int { // the first record at or behind it
		i, _ := slices.BinarySearchFunc(want, offset, func(r consumed, o int64) int { return int(r.Offset - o) })
		return i
	}
	same := func(how string, r record.Record, w consumed) {
		t.Helper()
		if r.Offset != w.Offset || r.Timestamp != w.Timestamp || !bytes.Equal(r.Key, w.Key) || !bytes.Equal(r.Value, w.Value) {
			t.Fatalf("%s: record %d at %d, want %d at %d", how, r.Offset, r.Timestamp, w.Offset, w.Timestamp)
		}
	}
	for offset := start; offset <= end; offset++ {
		i := at(offset)
		r, _, ok, err := l.Get(offset, end, nil)
		if err != nil || ok != (i < len(want)) {
			t.Fatalf("get %d: %v, %v", offset, ok, err)
		}
		if ok {
			same("get", r, want[i])
		}
		b, err := l.Read(nil, offset, end, 1<<20)
		if err != nil || i < len(want) && len(b) == 0 || offset == end && len(b) > 0 {
			t.Fatalf("read at %d: %d bytes, %v", offset, len(b), err)
		}
		for len(b) > 0 {
			batch, err := record.Check(b)
			if err != nil {
				t.Fatal(err)
			}
			for r, err := range batch.Records() {
				if err != nil {
					t.Fatal(err)
				}
				if r.Offset >= offset {
					same("read", r, want[i])
					i++
				}
			}
			b = b[len(batch):]
		}
	}
	for i, w := range want {
		for _, ts := range []int64{w.Timestamp - 1, w.Timestamp, w.Timestamp + 1} {
			first := slices.IndexFunc(want, func(r consumed) bool { return r.Timestamp >= ts })
			offset, got, ok, err := l.OffsetForTime(ts, end)
			if err != nil || ok != (first >= 0) || ok && (offset != want[first].Offset || got != want[first].Timestamp) {
				t.Fatalf("record %d: offset for time %d = %d at %d, %v, %v; want that of record %d", i, ts, offset, got, ok, err, first)
			}
		}
	}
	if e, got := l.EndOffsetFor(l.Stats().LeaderEpoch); len(want) > 0 && (e != l.Stats().LeaderEpoch || got != end) {
		t.Errorf("end of the newest epoch = %d, %d; want %d", e, got, end)
	}
	err := l.Verify(0, math.MaxInt64, func(e *replica.CorruptError) bool { t.Errorf("Verify: %v", e); return true })
	if err != nil {
		t.Fatal(err)
	}
}

// TestC070_KafkaCompacted: a log that Kafka compacted, whose first record lies at
// 114 in file 0, and one whose beginning it deleted, 22 inside file 15, are read,
// cut in their gaps (C067) and deleted from as any other.
func TestC070_KafkaCompacted(t *testing.T) {
	for _, tc := range []struct {
		topic      string
		start, end int64
	}{{"compacted", 0, 180}, {"deleted", 22, 60}} {
		t.Run(tc.topic, func(t *testing.T) {
			truth := kafkaTruth(t, tc.topic)
			d := kafkaFolder(t)
			p := replica.TopicPartition{Topic: tc.topic}
			open := func() *replica.Log {
				t.Helper()
				l, err := d.OpenLog(p, replica.UUID{}, replica.Options{Config: keeping(), Sole: true}, t0)
				if err != nil {
					t.Fatal(err)
				}
				if l.Damage() != nil || l.LogEndOffset() < l.LogStartOffset() {
					t.Fatalf("log [%d, %d): %v", l.LogStartOffset(), l.LogEndOffset(), l.Damage())
				}
				return l
			}
			reopen := func(l *replica.Log) *replica.Log {
				t.Helper()
				if err := l.Close(t0); err != nil {
					t.Fatal(err)
				}
				d.Forget(p)
				return open()
			}
			l := open()
			if l.LogStartOffset() != tc.start || l.LogEndOffset() != tc.end {
				t.Fatalf("log [%d, %d); want [%d, %d)", l.LogStartOffset(), l.LogEndOffset(), tc.start, tc.end)
			}
			agrees(t, l, truth)
			l = reopen(l)
			agrees(t, l, truth)

			for n := len(truth); n > 0; n -= 1 + n/5 { // cut behind records, and in gaps
				to := truth[n-1].Offset + 1
				if n < len(truth) {
					to = (to + truth[n].Offset) / 2
				}
				for n > 0 && !cutsWhole(l, to, truth[n-1].Offset) {
					n-- // a batch goes as a whole
				}
				if err := l.Truncate(to); err != nil {
					t.Fatal(err)
				}
				for _, how := range []string{"cut", "reopened"} {
					if l.LogEndOffset() != to {
						t.Fatalf("%s at %d: log ends at %d", how, to, l.LogEndOffset())
					}
					agrees(t, l, truth[:n])
					if how == "cut" {
						l = reopen(l)
					}
				}
			}
			l.Close(t0)
		})
		t.Run(tc.topic+" deleted from", func(t *testing.T) {
			truth := kafkaTruth(t, tc.topic)
			d := kafkaFolder(t)
			p := replica.TopicPartition{Topic: tc.topic}
			l, err := d.OpenLog(p, replica.UUID{}, replica.Options{Config: keeping(), Sole: true}, t0)
			if err != nil {
				t.Fatal(err)
			}
			x := &lab{t: t, log: l}
			for to := tc.start + 1; to <= tc.end; to += 1 + to/7 {
				if err := l.DeleteRecords(to); err != nil {
					t.Fatal(err)
				}
				x.maintain(t0)
				for len(truth) > 0 && truth[0].Offset < to {
					truth = truth[1:]
				}
				agrees(t, l, truth)
				if _, err := l.Read(nil, to-1, tc.end, 1); !errors.Is(err, replica.ErrOutOfRange) {
					t.Errorf("read below the log start %d: %v", to, err)
				}
			}
			if err := l.DeleteRecords(-1); err != nil {
				t.Fatal(err)
			}
			agrees(t, l, nil)
		})
	}
}

// cutsWhole reports whether a truncation to an offset keeps the record at last.
func cutsWhole(l *replica.Log, to, last int64) bool {
	b, err := l.Read(nil, last, math.MaxInt64, 0)
	if err != nil || len(b) == 0 {
		return false
	}
	return record.Batch(b).LastOffset() < to
}
