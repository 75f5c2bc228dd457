package main

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/tidemark-log/tidemark/record"
)

// What Kafka closed in order has no damage. The notes are what these copies
// lack: files of 4 MiB and more were left out, a partition was removed, and
// truth/ is no partition.
func TestVerifyClosedCleanly(t *testing.T) {
	for _, tc := range []struct {
		dir   string
		notes map[string]int // by check
	}{
		{"kafka-4.4-closed", map[string]int{"name": 1, "folder": 2, "offset index": 1, "time index": 1}},
		{"kafka-0.11.0", nil},
		{"kafka-2.x-compacted-two-segments", nil}, // C070: starts far above its file name
		{"kafka-2.6-multi-record", map[string]int{"offset index": 4, "time index": 4, "producer snapshot": 3}},
		{"kafka-2.7.1-compacted-and-expired", map[string]int{"offset index": 4, "time index": 4, "producer snapshot": 2, "recovery point": 2, "folder": 2}},
		{"codecrafters-kafka-tester", map[string]int{"offset index": 2, "time index": 2, "producer snapshot": 2, "epoch file": 2}},
	} {
		t.Run(tc.dir, func(t *testing.T) {
			tc.dir = dataDir(t, tc.dir)
			out := mustRun(t, exitOK, "verify", "--json", tc.dir)
			got := map[string]int{}
			for _, f := range findings(t, out, "note") {
				got[f.Check]++
			}
			if !maps.Equal(got, tc.notes) {
				t.Errorf("notes %v; want %v\n%s", got, tc.notes, out)
			}
		})
	}
}

// What kill -9 leaves is notes: exactly the leftovers of log-format §3.4 and
// §4.3, each at its place.
func TestVerifyKilled(t *testing.T) {
	dir := filepath.Join(testdata, "kafka-4.4-killed")
	out := mustRun(t, exitOK, "verify", "--json", dir)
	var got []string
	for _, f := range findings(t, out, "note") {
		rel, _ := filepath.Rel(dir, f.File)
		at := ""
		if f.Position != nil {
			at = fmt.Sprintf("@%d", *f.Position)
		}
		got = append(got, fmt.Sprintf("%s: %s%s: %s", f.Check, rel, at, f.Found))
	}
	var want []string
	tail := func(partition, base string, offsets, times int) {
		want = append(want,
			fmt.Sprintf("zero tail: %s/%020s.index@%d: %d zero entries", partition, base, offsets*8, 1024-offsets),
			fmt.Sprintf("zero tail: %s/%020s.timeindex@%d: %d zero entries", partition, base, times*12, 682-times))
	}
	tail("appendtime-0", "0", 2, 2)
	tail("codecs-0", "0", 5, 5)
	tail("compacted-0", "150", 1, 1)
	tail("deleted-0", "45", 0, 0)
	tail("group-0", "0", 0, 0)
	tail("group-1", "0", 0, 0)
	tail("group-2", "0", 0, 0)
	tail("idem-0", "0", 2, 2)
	tail("idem-1", "0", 3, 3)
	tail("large-0", "0", 0, 0)
	tail("times-0", "15", 40, 1)
	tail("txn-0", "0", 1, 1)
	tail("txn-1", "0", 0, 0)
	for _, partition := range []string{"__cluster_metadata-0", "__consumer_offsets-0", "__transaction_state-0", "__transaction_state-1"} {
		// Their index files were too large for this copy.
		want = append(want, "offset index: "+partition+"/00000000000000000000.log: none", "time index: "+partition+"/00000000000000000000.log: none")
	}
	checkpointed := []struct {
		partition string
		at, pos   int64
	}{
		{"group-0", 0, 5}, {"appendtime-0", 0, 15}, {"large-0", 0, 30}, {"codecs-0", 0, 40}, {"compacted-0", 150, 51},
		{"txn-0", 0, 67}, {"txn-1", 0, 75}, {"deleted-0", 45, 83}, {"__consumer_offsets-0", 0, 96}, {"idem-1", 0, 119},
		{"times-0", 15, 128}, {"idem-0", 0, 139}, {"__transaction_state-0", 0, 148}, {"__transaction_state-1", 0, 172},
		{"group-2", 0, 207}, {"group-1", 0, 240},
	}
	for _, c := range checkpointed {
		want = append(want,
			fmt.Sprintf("recovery point: recovery-point-offset-checkpoint@%d: %d for %s", c.pos, c.at, c.partition),
			"producer snapshot: "+c.partition+": none at the log's end")
	}
	want = append(want,
		"producer snapshot: __cluster_metadata-0: none at the log's end",
		"folder: recovery-point-offset-checkpoint: entries for 1 partitions without a folder, first epochs-0",
		"folder: replication-offset-checkpoint: entries for 1 partitions without a folder, first epochs-0",
		"name: truth: a folder that is no partition")
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("notes differ:\n got %s\nwant %s", strings.Join(got, "\n     "), strings.Join(want, "\n     "))
	}
}

// A follower that was truncated keeps old time entries behind the used ones
// (log-format §3.4).
func TestVerifyStaleEntries(t *testing.T) {
	dir := filepath.Join(testdata, "kafka-4.4-three-replicas", "replica-1-after-truncation")
	out := mustRun(t, exitOK, "verify", "--json", dir)
	for _, f := range findings(t, out, "note") {
		if f.Check == "stale entries" {
			if filepath.Base(f.File) != "00000000000000000000.timeindex" || *f.Position != 12 || !strings.HasPrefix(f.Found, "2 ") {
				t.Errorf("stale entries: %+v; want 2 at byte 12 of the time index", f)
			}
			return
		}
	}
	t.Errorf("no note of stale entries\n%s", out)
}

// truthRecord is a record as a consumer read it.
type truthRecord struct {
	P, O, T, TT int64
	K, V        *string
	H           [][2]*string
	PID         int64
	PE          int16
	LE          int32
	C           record.Codec
	SHA         string `json:"v_sha256"`
	Len         int    `json:"v_len"`
}

// TestDumpEqualsTruth compares every record that dump shows with what a Kafka
// consumer read from the same broker.
func TestDumpEqualsTruth(t *testing.T) {
	type exception struct {
		kind     string // "only dump", "only truth" or "differs"
		from, to int64  // offsets, inclusive
	}
	for _, tc := range []struct {
		dir, partition string // partition empty: all with a truth
		exceptions     map[string]exception
	}{
		{dir: "kafka-4.4-closed", exceptions: map[string]exception{
			"deleted-0": {"only dump", 15, 21}, // below the log start
		}},
		{dir: "kafka-4.4-killed", exceptions: map[string]exception{
			"deleted-0": {"only dump", 15, 21},
			"times-0":   {"only truth", 0, 14}, // removed by retention since
		}},
		{dir: "kafka-4.4-three-replicas", partition: "replica-2"},
		{dir: "kafka-4.4-three-replicas", partition: "replica-3"},
		{dir: "kafka-4.4-three-replicas", partition: "replica-1-after-truncation"},
		// It took 48 to 52 in a reign of its own and has nothing behind.
		{dir: "kafka-4.4-three-replicas", partition: "replica-1-diverged", exceptions: map[string]exception{
			"replica-1-diverged": {"differs", 48, 52},
		}},
	} {
		truth := readTruth(t, filepath.Join(testdata, tc.dir, "truth"))
		partitions := []string{tc.partition}
		if tc.partition == "" {
			partitions = slices.Sorted(maps.Keys(truth))
		}
		for _, partition := range partitions {
			t.Run(tc.dir+"/"+partition, func(t *testing.T) {
				want := truth[partition]
				if tc.partition != "" {
					want = maps.Clone(truth["epochs-0"])
				}
				if partition == "replica-1-diverged" {
					maps.DeleteFunc(want, func(o int64, _ string) bool { return o > 52 })
				}
				got := dumpRecords(t, filepath.Join(testdata, tc.dir, partition))
				offsets := maps.Clone(want)
				maps.Copy(offsets, got)
				for _, o := range slices.Sorted(maps.Keys(offsets)) {
					g, dumped := got[o]
					w, known := want[o]
					kind := ""
					switch {
					case !dumped:
						kind = "only truth"
					case !known:
						kind = "only dump"
					case g != w:
						kind = "differs"
					}
					wantKind := ""
					if e := tc.exceptions[partition]; e.kind != "" && e.from <= o && o <= e.to {
						wantKind = e.kind
					}
					if kind != wantKind {
						t.Errorf("offset %d: %q; want %q\n got %s\nwant %s", o, kind, wantKind, g, w)
					}
				}
			})
		}
	}
}

// readTruth returns by partition and offset what a consumer read, in a form to
// compare.
func readTruth(t *testing.T, dir string) map[string]map[int64]string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.jsonl"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no truth in %s: %v", dir, err)
	}
	all := map[string]map[int64]string{}
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(b)) {
			var r truthRecord
			if err := json.Unmarshal([]byte(line), &r); err != nil {
				t.Fatalf("%s: %v", f, err)
			}
			partition := fmt.Sprintf("%s-%d", strings.TrimSuffix(filepath.Base(f), ".jsonl"), r.P)
			if all[partition] == nil {
				all[partition] = map[int64]string{}
			}
			value := quoted(r.V)
			if r.SHA != "" {
				value = fmt.Sprintf("%d bytes %s", r.Len, r.SHA)
			}
			headers := ""
			for _, h := range r.H {
				headers += *h[0] + "=" + quoted(h[1]) + ";"
			}
			all[partition][r.O] = fmt.Sprintf("t=%d type=%d k=%s v=%s h=%s pid=%d/%d epoch=%d codec=%v", r.T, r.TT, quoted(r.K), value, headers, r.PID, r.PE, r.LE, r.C)
		}
	}
	return all
}

// dumpRecords returns the records of a partition folder in the same form.
func dumpRecords(t *testing.T, dir string) map[int64]string {
	t.Helper()
	all := map[int64]string{}
	var b jsonLine
	for _, l := range lines(t, mustRun(t, exitOK, "dump", "--json", "--records", dir)) {
		switch l.Type {
		case "batch":
			b = l
		case "record":
			var v *string
			value := ""
			if l.Value != nil {
				s := base64.StdEncoding.EncodeToString(*l.Value)
				v = &s
				if len(*l.Value) > 3000 {
					sum := sha256.Sum256(*l.Value)
					value = fmt.Sprintf("%d bytes %s", len(*l.Value), hex.EncodeToString(sum[:]))
				}
			}
			if value == "" {
				value = quoted(v)
			}
			var k *string
			if l.Key != nil {
				s := base64.StdEncoding.EncodeToString(*l.Key)
				k = &s
			}
			headers := ""
			for _, h := range l.Headers {
				var hv *string
				if s, ok := h[1].(string); ok {
					hv = &s
				}
				headers += h[0].(string) + "=" + quoted(hv) + ";"
			}
			typ := slices.Index([]string{"CreateTime", "LogAppendTime"}, b.TimestampType)
			if _, twice := all[*l.Offset]; twice {
				t.Errorf("offset %d dumped twice", *l.Offset)
			}
			all[*l.Offset] = fmt.Sprintf("t=%d type=%d k=%s v=%s h=%s pid=%d/%d epoch=%d codec=%s", l.Timestamp, typ, quoted(k), value, headers, b.ProducerID, b.ProducerEpoch, b.LeaderEpoch, b.Codec)
		}
	}
	return all
}

func quoted(s *string) string {
	if s == nil {
		return "null"
	}
	return `"` + *s + `"`
}
