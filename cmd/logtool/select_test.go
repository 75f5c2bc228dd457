package main

import (
	"bytes"
	"flag"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tidemark-log/tidemark"
	"github.com/tidemark-log/tidemark/dedupe"
	"github.com/tidemark-log/tidemark/record"
)

var selectSeed = flag.Uint64("select-seed", uint64(time.Now().UnixNano()), "seed of TestSelection")

// dumped is a record with the batch that it is in.
type dumped struct{ record, batch jsonLine }

func (d dumped) String() string {
	return fmt.Sprintf("%s %d:%d", d.batch.File, d.batch.Position64(), *d.record.Offset)
}

// Position64 is the position of a line that has one.
func (l jsonLine) Position64() int64 {
	if l.Position == nil {
		return -1
	}
	return *l.Position
}

// dumpAll returns the records and the batches that a dump shows.
func dumpAll(t *testing.T, args ...string) (records []dumped, batches []jsonLine) {
	t.Helper()
	for _, l := range lines(t, mustRun(t, exitOK, append([]string{"dump", "--json"}, args...)...)) {
		switch l.Type {
		case "batch":
			batches = append(batches, l)
		case "record":
			records = append(records, dumped{l, batches[len(batches)-1]})
		}
	}
	return records, batches
}

// selectable are partitions with something to choose from, one with several
// segments.
func selectable(t *testing.T) []string {
	engine := filepath.Join(t.TempDir(), "t-0")
	l, err := tidemark.Open(engine, tidemark.Options{SegmentBytes: 32 << 10, IndexIntervalBytes: 512, Sync: tidemark.Never})
	if err != nil {
		t.Fatal(err)
	}
	writeLog(t, l, 600)
	if _, err := l.Append(tidemark.Record{Timestamp: 5, Key: []byte("k\x00"), Headers: []record.Header{{Key: []byte("h"), Value: []byte("v")}, {Key: []byte("n")}}}); err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	dirs := []string{engine}
	for _, name := range []string{"idem-0", "txn-0", "codecs-0", "compacted-0", "deleted-0", "appendtime-0", "times-0"} {
		dirs = append(dirs, filepath.Join(testdata, "kafka-4.4-closed", name))
	}
	return append(dirs, filepath.Join(testdata, "kafka-4.4-three-replicas", "replica-2"))
}

// TestSelection: what dump selects is what a plain loop over everything keeps,
// with records and without, whatever way through the files it takes.
func TestSelection(t *testing.T) {
	t.Logf("-select-seed=%d", *selectSeed)
	rng := rand.New(rand.NewPCG(*selectSeed, 0))
	for _, dir := range selectable(t) {
		t.Run(filepath.Base(dir), func(t *testing.T) {
			all, allBatches := dumpAll(t, "--records", dir)
			if len(all) < 20 {
				t.Fatalf("%d records", len(all))
			}
			for range 60 {
				one, two := all[rng.IntN(len(all))], all[rng.IntN(len(all))]
				var args []string
				var keep []func(dumped) bool
				between := func(flag, sep string, of func(dumped) int64) {
					a, b := of(one), of(two)
					from, to := min(a, b), max(a, b)
					text := fmt.Sprint(from, sep, to)
					switch rng.IntN(4) {
					case 0:
						text, to = fmt.Sprint(from, sep), 1<<62
					case 1:
						text, from = fmt.Sprint(sep, to), -1<<62
					}
					args = append(args, flag+"="+strings.ReplaceAll(text, " ", ""))
					keep = append(keep, func(d dumped) bool { return from <= of(d) && of(d) <= to })
				}
				if rng.IntN(2) == 0 {
					between("--offset", []string{":", ".."}[rng.IntN(2)], func(d dumped) int64 { return *d.record.Offset })
				}
				if rng.IntN(3) == 0 {
					between("--time", "..", func(d dumped) int64 { return d.record.Timestamp })
				}
				if rng.IntN(4) == 0 {
					between("--epoch", "..", func(d dumped) int64 { return int64(d.batch.LeaderEpoch) })
				}
				if rng.IntN(4) == 0 {
					args = append(args, fmt.Sprint("--pid=", one.batch.ProducerID))
					keep = append(keep, func(d dumped) bool { return d.batch.ProducerID == one.batch.ProducerID })
				}
				if key := one.record.Key; rng.IntN(4) == 0 && key != nil {
					args = append(args, fmt.Sprintf("--key=%q", *key))
					keep = append(keep, func(d dumped) bool { return d.record.Key != nil && bytes.Equal(*d.record.Key, *key) })
				}
				if h := one.record.Headers; rng.IntN(4) == 0 && len(h) > 0 && !strings.ContainsAny(h[0][0].(string), "=\uFFFD") {
					name := h[0][0].(string)
					args = append(args, "--header="+name)
					keep = append(keep, func(d dumped) bool {
						return slices.ContainsFunc(d.record.Headers, func(h [2]any) bool { return h[0] == name })
					})
				}
				var want []dumped
				for _, d := range all {
					if !slices.ContainsFunc(keep, func(f func(dumped) bool) bool { return !f(d) }) {
						want = append(want, d)
					}
				}
				deep := slices.ContainsFunc(args, func(a string) bool { return !strings.HasPrefix(a, "--epoch") && !strings.HasPrefix(a, "--pid") })
				wantBatches := slices.DeleteFunc(slices.Clone(allBatches), func(b jsonLine) bool {
					if !deep { // one without records is shown too
						return slices.ContainsFunc(keep, func(f func(dumped) bool) bool { return !f(dumped{batch: b}) })
					}
					return !slices.ContainsFunc(want, func(d dumped) bool { return d.batch.File == b.File && *d.batch.Position == *b.Position })
				})
				if n := int64(1 + rng.IntN(20)); rng.IntN(3) == 0 {
					args = append(args, fmt.Sprint("--limit=", n))
					want, wantBatches = want[:min(int(n), len(want))], wantBatches[:min(int(n), len(wantBatches))]
				} else if rng.IntN(3) == 0 {
					args = append(args, fmt.Sprint("--tail=", n))
					want, wantBatches = want[max(0, len(want)-int(n)):], wantBatches[max(0, len(wantBatches)-int(n)):]
				}
				got, _ := dumpAll(t, append(args, "--records", dir)...)
				if !slices.EqualFunc(got, want, func(a, b dumped) bool { return a.String() == b.String() }) {
					t.Fatalf("dump %v shows records\n%v; want\n%v", args, got, want)
				}
				_, gotBatches := dumpAll(t, append(args, dir)...)
				at := func(b jsonLine) string { return fmt.Sprint(b.File, *b.Position) }
				if !slices.EqualFunc(gotBatches, wantBatches, func(a, b jsonLine) bool { return at(a) == at(b) }) {
					t.Fatalf("dump %v shows %d batches; want %d", args, len(gotBatches), len(wantBatches))
				}
			}
		})
	}
}

// A header is found by its value too, and a record with several by any.
func TestSelectHeader(t *testing.T) {
	dir := folder(t, map[string][]byte{log0: encode(t, 0, nil,
		record.Record{Timestamp: 1, Headers: []record.Header{{Key: []byte("a"), Value: []byte("1")}, {Key: []byte("b")}}},
		record.Record{Timestamp: 2, Headers: []record.Header{{Key: []byte("a"), Value: []byte("2")}, {Key: []byte("a"), Value: []byte("\x00")}}},
		record.Record{Timestamp: 3, Key: []byte{}})})
	for _, tc := range []struct {
		arg  string
		want []int64
	}{
		{"--header=a", []int64{0, 1}}, {"--header=a=2", []int64{1}}, {`--header=a="\x00"`, []int64{1}}, {"--header=b", []int64{0}},
		{"--header=b=", nil}, {"--header=A", nil}, {"--key=", []int64{2}}, {`--key=""`, []int64{2}},
		{"--time=1970-01-01T00:00:00.002Z", []int64{1, 2}}, {"--time=..1970-01-01T00:00:00.002Z", []int64{0, 1}}, {"--offset=1:1", []int64{1}}, {"--offset=1", []int64{1, 2}},
	} {
		got, _ := dumpAll(t, "--records", tc.arg, dir)
		if !slices.EqualFunc(got, tc.want, func(d dumped, o int64) bool { return *d.record.Offset == o }) {
			t.Errorf("%s shows %v; want %v", tc.arg, got, tc.want)
		}
	}
}

func TestSelectUsage(t *testing.T) {
	for _, arg := range []string{
		"--offset=x", "--offset=5:3", "--offset=1:2:3", "--time=yesterday", "--time=2026-11-29", "--epoch=1..x", "--pid=-", "--key=\"open", "--header==v",
		"--limit=-1", "--tail=-1", "--tail=x", "--position=-2",
	} {
		if code, out, stderr := logtool("dump", arg, testdata); code != exitUsage || out != "" || stderr == "" {
			t.Errorf("%s exits %d\n%s%s", arg, code, out, stderr)
		}
	}
}

// With a selection a folder shows its logs and nothing else, and a damaged
// batch still shows.
func TestSelectDamage(t *testing.T) {
	a, b, c := batch(t, 0, nil, 1), batch(t, 1, nil, 2), batch(t, 2, nil, 3)
	b[len(b)-1] ^= 1
	dir := folder(t, map[string][]byte{log0: cat(a, b, c), "leader-epoch-checkpoint": []byte("0\n1\n0 0\n")})
	types := func(code int, args ...string) (all []string) {
		for _, l := range lines(t, mustRun(t, code, append(args, "--json", dir)...)) {
			all = append(all, l.Type)
		}
		return all
	}
	if got, want := types(exitDamage, "dump", "--offset=2"), strings.Fields("batch error batch"); !slices.Equal(got, want) {
		t.Errorf("lines %v; want %v", got, want)
	}
	// What lies before the tail is not asked for.
	if got, want := types(exitOK, "dump", "--records", "--tail=1"), strings.Fields("batch record"); !slices.Equal(got, want) {
		t.Errorf("lines %v; want %v", got, want)
	}
}

// Entries of Kafka's snapshot, and of this module's own file, which holds the
// whole window.
func TestDumpProducers(t *testing.T) {
	out := mustRun(t, exitOK, "dump", "--json", filepath.Join(testdata, "kafka-4.4-closed", "idem-0", "00000000000000000076.snapshot"))
	if n := strings.Count(out, `"type":"producerEntry"`); n < 2 || !strings.Contains(out, `"window":[{"firstSequence":`) {
		t.Errorf("%d producers\n%s", n, out)
	}
	table := dedupe.New(dedupe.Options{})
	for i := range 7 {
		b := batch(t, int64(i*2), func(s *record.Spec) { s.ProducerID, s.ProducerEpoch, s.BaseSequence = 9, 3, int32(i*2) }, int64(i), int64(i+1))
		table.Update(b, b.BaseOffset())
	}
	file := filepath.Join(t.TempDir(), "00000000000000000014"+dedupe.Suffix)
	var mem memoryFile
	if _, err := table.Freeze().WriteWindow(&mem, [16]byte{1}, 14); err != nil {
		t.Fatal(err)
	}
	write(t, file, mem)
	text := mustRun(t, exitOK, "dump", file)
	for _, want := range []string{
		"producerWindow offset=14 size=", " valid=true entries=1 logId=01000000000000000000000000000000\n",
		"producerEntry producerId=9 producerEpoch=3 coordinatorEpoch=-1 currentTxnFirstOffset=-1 lastTimestamp=7 " +
			"window=[sequence=4..5 offsets=4..5 timestamp=3,sequence=6..7 offsets=6..7 timestamp=4,",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	mem[len(mem)-20] ^= 1
	write(t, file, mem)
	if text := mustRun(t, exitDamage, "dump", file); !strings.Contains(text, "error position=0 check=format") {
		t.Errorf("a flipped bit gives\n%s", text)
	}
}

// memoryFile is a file written by WriteAt.
type memoryFile []byte

func (m *memoryFile) WriteAt(p []byte, off int64) (int, error) {
	if need := int(off) + len(p); need > len(*m) {
		*m = append(*m, make([]byte, need-len(*m))...)
	}
	return copy((*m)[off:], p), nil
}
