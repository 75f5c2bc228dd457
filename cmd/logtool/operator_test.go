package main

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/tidemark-log/tidemark"
	"github.com/tidemark-log/tidemark/internal/checkpoint"
	"github.com/tidemark-log/tidemark/record"
)

// object is a line of JSON with whatever fields it has. Numbers in these tests
// fit a float64.
type object map[string]any

func (o object) str(k string) string { s, _ := o[k].(string); return s }
func (o object) num(k string) int64 {
	if n, ok := o[k].(float64); ok {
		return int64(n)
	}
	return -1
}

// objects parses --json output and keeps the lines of a type.
func objects(t *testing.T, out, typ string) (all []object) {
	t.Helper()
	for line := range strings.Lines(out) {
		var o object
		if err := json.Unmarshal([]byte(line), &o); err != nil {
			t.Fatalf("%v\n%s", err, line)
		}
		if o.str("type") == typ {
			all = append(all, o)
		}
	}
	return all
}

// one runs a command and returns its only line of a type.
func one(t *testing.T, want int, typ string, args ...string) object {
	t.Helper()
	all := objects(t, mustRun(t, want, append(args, "--json")...), typ)
	if len(all) != 1 {
		t.Fatalf("%v: %d lines of type %s; want 1", args, len(all), typ)
	}
	return all[0]
}

// partitionsOf lists the partition folders of a data folder that have records.
func partitionsOf(t testing.TB, data string) (dirs []string) {
	t.Helper()
	logs, err := filepath.Glob(filepath.Join(data, "*", "*.log"))
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range logs {
		if info, err := os.Stat(l); err == nil && info.Size() > 0 && !slices.Contains(dirs, filepath.Dir(l)) {
			dirs = append(dirs, filepath.Dir(l))
		}
	}
	return dirs
}

// place is where a record is.
type place struct {
	file                             string
	pos, record, offset, time, batch int64
}

// places lists the records of a partition by a dump of all of it.
func places(t *testing.T, dir string) (all []place) {
	t.Helper()
	var b object
	n := int64(0)
	for line := range strings.Lines(mustRun(t, exitOK, "dump", "--json", "--records", dir)) {
		var o object
		if err := json.Unmarshal([]byte(line), &o); err != nil {
			t.Fatal(err)
		}
		switch o.str("type") {
		case "batch":
			b, n = o, 0
		case "record":
			all = append(all, place{b.str("file"), b.num("position"), n, o.num("offset"), o.num("timestamp"), b.num("producerId")})
			n++
		}
	}
	return all
}

// C169: find leads to the record that a dump of everything has there, with the
// index and without.
func TestC169_FindByOffsetAndTime(t *testing.T) {
	indexed := 0
	for _, name := range []string{"kafka-4.4-closed", "kafka-4.4-killed", "kafka-4.4-three-replicas"} {
		for _, dir := range partitionsOf(t, filepath.Join(testdata, name)) {
			all := slices.DeleteFunc(places(t, dir), func(p place) bool { return filepath.Ext(p.file) != ".log" })
			step := max(1, len(all)/7)
			check := func(first func(place) bool, args ...string) {
				t.Helper()
				i := slices.IndexFunc(all, first)
				for _, args := range [][]string{args, append(args, "--no-index")} {
					out := mustRun(t, exitOK, append(append([]string{"find", "--json"}, args...), dir)...)
					found, s := objects(t, out, "found"), objects(t, out, "search")[0]
					if s.num("offsetIndexEntry") >= 0 {
						indexed++
					}
					if lead := s.str("indexLeads"); lead != "" && lead != "to the same" && !strings.Contains(dir, "after-truncation") { // that one has stale entries
						t.Errorf("%v in %s: the index leads %s", args, dir, lead)
					}
					if i < 0 {
						if len(found) != 0 || s.num("found") != 0 {
							t.Errorf("%v in %s finds %v; want nothing", args, dir, found)
						}
						continue
					}
					if len(found) != 1 {
						t.Errorf("%v in %s: %d found; want 1", args, dir, len(found))
						continue
					}
					f := found[0]
					if got := (place{f.str("file"), f.num("position"), f.num("record"), f.num("offset"), f.num("timestamp"), f.num("producerId")}); got != all[i] {
						t.Errorf("%v in %s finds %+v; want %+v", args, dir, got, all[i])
					}
				}
			}
			for i := 0; i < len(all); i += step {
				for _, d := range []int64{0, 1} {
					check(func(p place) bool { return p.offset >= all[i].offset+d }, "--offset", fmt.Sprint(all[i].offset+d))
				}
				for _, d := range []int64{-1, 0, 1} {
					check(func(p place) bool { return p.time >= all[i].time+d }, "--time", fmt.Sprint(all[i].time+d))
				}
			}
		}
	}
	if indexed < 10 {
		t.Errorf("the index led %d times", indexed)
	}
}

// C169: an index that is wrong leads nowhere else.
func TestC169_FindWithWrongIndex(t *testing.T) {
	dir := copyDir(t, filepath.Join(testdata, "kafka-4.4-closed", "idem-0"))
	all := places(t, dir)
	distrusted := 0
	for _, name := range []string{index0, times0} {
		path := filepath.Join(dir, name)
		before, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for bit := range 8 * len(before) {
			b := bytes.Clone(before)
			b[bit/8] ^= 1 << (bit % 8)
			write(t, path, b)
			want := all[len(all)-5]
			for _, args := range [][]string{{"--offset", fmt.Sprint(want.offset)}, {"--time", fmt.Sprint(all[40].time)}} {
				out := mustRun(t, exitOK, append(append([]string{"find", "--json"}, args...), dir)...)
				f, s := objects(t, out, "found"), objects(t, out, "search")[0]
				if s.str("distrusted") != "" {
					distrusted++
				}
				w := want
				if args[0] == "--time" {
					w = all[slices.IndexFunc(all, func(p place) bool { return p.time >= all[40].time })]
				}
				if len(f) != 1 || f[0].num("offset") != w.offset || f[0].num("position") != w.pos {
					t.Errorf("bit %d of %s: %v finds %v; want offset %d", bit, name, args, f, w.offset)
				}
			}
		}
		write(t, path, before)
	}
	if distrusted == 0 {
		t.Error("no index was distrusted")
	}
}

// C169: a segment that the time index skips is one that --no-index reads.
func TestC169_NoIndexSaysElsewhere(t *testing.T) {
	b := []record.Batch{batch(t, 0, nil, 10), batch(t, 1, nil, 99), batch(t, 2, nil, 50)}
	dir := folder(t, map[string][]byte{
		log0: cat(b[:2]...), times0: timeEntries(10, 0), index0: nil, // the last entry is missing
		"00000000000000000002.log": b[2], "00000000000000000002.timeindex": timeEntries(50, 0), "00000000000000000002.index": nil,
	})
	if s := one(t, exitOK, "found", "find", "--time", "50", dir); s.num("offset") != 2 {
		t.Errorf("found %v", s)
	}
	out := mustRun(t, exitDamage, "find", "--json", "--no-index", "--time", "50", dir)
	if f, s := objects(t, out, "found")[0], objects(t, out, "search")[0]; f.num("offset") != 1 || !strings.HasPrefix(s.str("indexLeads"), "elsewhere: to offset 2") {
		t.Errorf("found %v, %v", f, s)
	}
}

func TestC169_FindByKeyAndProducer(t *testing.T) {
	dir := filepath.Join(testdata, "kafka-4.4-closed", "txn-0")
	all := places(t, dir)
	byPID := map[int64]map[int64]bool{} // producer → positions
	for _, p := range all {
		if byPID[p.batch] == nil {
			byPID[p.batch] = map[int64]bool{}
		}
		byPID[p.batch][p.pos] = true
	}
	delete(byPID, -1)
	for pid, want := range byPID {
		got := objects(t, mustRun(t, exitOK, "find", "--json", "--pid", fmt.Sprint(pid), dir), "found")
		if len(got) != len(want) {
			t.Errorf("producer %d: %d batches; want %d", pid, len(got), len(want))
		}
		for _, o := range got {
			if !want[o.num("position")] || o.num("producerId") != pid {
				t.Errorf("producer %d: %v", pid, o)
			}
		}
		if got := objects(t, mustRun(t, exitOK, "find", "--json", "--limit", "1", "--pid", fmt.Sprint(pid), dir), "found"); len(got) != 1 {
			t.Errorf("--limit 1 finds %d", len(got))
		}
	}
	keys := map[string]int{}
	for _, l := range lines(t, mustRun(t, exitOK, "dump", "--json", "--records", dir)) {
		if l.Type == "record" && l.Key != nil {
			keys[string(*l.Key)]++
		}
	}
	for key, n := range keys {
		args := []string{"find", "--json", "--key=" + key, dir}
		if strings.ContainsFunc(key, func(r rune) bool { return r < ' ' }) {
			continue
		}
		if got := objects(t, mustRun(t, exitOK, args...), "found"); len(got) != n {
			t.Errorf("key %q: %d found; want %d", key, len(got), n)
		}
	}
	for _, args := range [][]string{{}, {"--offset", "1", "--time", "1"}, {"--time", "yesterday"}, {"--offset", "-1"}, {"--key-base64", "*"}} {
		mustRun(t, exitUsage, append(append([]string{"find"}, args...), dir)...)
	}
	mustRun(t, exitUnreadable, "find", "--offset", "1", filepath.Join(dir, "none"))
}

// The replicas that Kafka left: see the acceptance of the work order.
func TestDiffReplicas(t *testing.T) {
	dir := filepath.Join(testdata, "kafka-4.4-three-replicas")
	at := func(name string) string { return filepath.Join(dir, name) }
	for _, other := range []string{"replica-2", "replica-3"} {
		out := mustRun(t, exitDamage, "diff", "--json", at("replica-1-diverged"), at(other))
		d := objects(t, out, "diff")[0]
		if d.str("verdict") != "parted" || d.num("offset") != 48 || d.num("leaderEpoch") != 3 || d.num("otherLeaderEpoch") != 4 {
			t.Errorf("diverged against %s: %v", other, d)
		}
		cuts := objects(t, out, "cut")
		for i, rule := range []string{"highWatermark", "epoch"} {
			if c := cuts[i]; c.str("file") != at("replica-1-diverged") || c.str("rule") != rule || c.num("fromOffset") != 48 || c.num("lastOffset") != 52 ||
				c.num("foreignLeft") != 0 || c.num("sharedCut") != 0 {
				t.Errorf("cut %d: %v", i, c)
			}
		}
		if c := cuts[3]; c.str("result") != "undefined" || c.str("rule") != "epoch" {
			t.Errorf("an older leader: %v", c)
		}
		d = one(t, exitOK, "diff", "diff", at("replica-1-after-truncation"), at(other))
		if d.str("verdict") != "equal" || d.num("endOffset") != 60 || d.num("equalBatches") != 60 {
			t.Errorf("truncated against %s: %v", other, d)
		}
	}
	if d := one(t, exitOK, "diff", "diff", at("replica-2"), at("replica-3")); d.str("verdict") != "equal" {
		t.Errorf("replica 2 against 3: %v", d)
	}
	// With a high watermark that is behind, the rule cuts what the leader has too;
	// with one that is ahead it leaves what is foreign (KIP-101).
	for _, tc := range []struct{ hw, from, foreign, shared int64 }{{40, 40, 0, 8}, {50, 50, 2, 0}, {60, -1, 5, 0}} {
		out := mustRun(t, exitDamage, "diff", "--json", "--hw-a", fmt.Sprint(tc.hw), at("replica-1-diverged"), at("replica-2"))
		if c := objects(t, out, "cut")[0]; c.num("fromOffset") != tc.from || c.num("foreignLeft") != tc.foreign || c.num("sharedCut") != tc.shared {
			t.Errorf("high watermark %d: %v", tc.hw, c)
		}
	}
}

func TestDiff(t *testing.T) {
	recs := func(from, to int64) (r []record.Record) {
		for o := from; o < to; o++ {
			r = append(r, record.Record{Offset: o, Timestamp: 100 + o, Key: fmt.Appendf(nil, "k%d", o%3), Value: fmt.Appendf(nil, "value %d", o), Headers: []record.Header{{Key: []byte("h"), Value: nil}}})
		}
		return r
	}
	in := func(epoch int32, codec record.Codec) func(*record.Spec) {
		return func(s *record.Spec) { s.LeaderEpoch, s.Codec = epoch, codec }
	}
	b := func(from, to int64) record.Batch { return encode(t, from, in(0, record.None), recs(from, to)...) }
	changed := func(change func(r *record.Record)) record.Batch {
		r := recs(3, 6)
		change(&r[1])
		return encode(t, 3, in(0, record.None), r...)
	}
	whole := cat(b(0, 3), b(3, 6), b(6, 9))
	for _, tc := range []struct {
		name    string
		other   []byte
		base    string // of the other, if not 0
		verdict string
		offset  int64
		recut   string
		what    string
		exit    int
	}{
		{"equal", whole, "", "equal", -1, "", "", exitOK},
		{"prefix", cat(b(0, 3), b(3, 6)), "", "prefix", -1, "", "", exitOK},
		{"prefix by records", cat(b(0, 3), b(3, 5)), "", "prefix", -1, "cut into other batches", "", exitOK},
		{"compressed again", cat(b(0, 3), encode(t, 3, in(0, record.LZ4), recs(3, 6)...), b(6, 9)), "", "equal", -1, "compressed again, none and lz4", "", exitOK},
		{"cut into other batches", cat(b(0, 2), b(2, 7), b(7, 9)), "", "equal", -1, "cut into other batches", "", exitOK},
		{"cleaned", cat(b(0, 3), encode(t, 3, func(s *record.Spec) { s.LeaderEpoch, s.KeepOffsets, s.LastOffset = 0, true, 5 }, recs(4, 5)...), b(6, 9)), "", "equal", -1, "cleaned", "", exitOK},
		{"begins later", b(6, 9), "00000000000000000006.log", "equal", -1, "", "", exitOK},
		{"epoch", cat(b(0, 3), encode(t, 3, in(1, record.None), recs(3, 6)...)), "", "parted", 3, "", "leader epoch 0 against 1", exitDamage},
		{"value", cat(b(0, 3), changed(func(r *record.Record) { r.Value = []byte("x") })), "", "parted", 4, "other headers", "value", exitDamage},
		{"null key", cat(b(0, 3), changed(func(r *record.Record) { r.Key = nil })), "", "parted", 4, "other headers", "key", exitDamage},
		{"null header", cat(b(0, 3), changed(func(r *record.Record) { r.Headers[0].Value = []byte{} })), "", "parted", 4, "other headers", "header 0", exitDamage},
		{"timestamp", cat(b(0, 3), changed(func(r *record.Record) { r.Timestamp-- })), "", "parted", 4, "other headers", "timestamp 104 against 103", exitDamage},
	} {
		t.Run(tc.name, func(t *testing.T) {
			name := log0
			if tc.base != "" {
				name = tc.base
			}
			a, o := folder(t, map[string][]byte{log0: whole}), folder(t, map[string][]byte{name: tc.other})
			for i, pair := range [][2]string{{a, o}, {o, a}} {
				d := one(t, tc.exit, "diff", "diff", pair[0], pair[1])
				if d.str("verdict") != tc.verdict || d.num("offset") != tc.offset {
					t.Errorf("%v; want %s at %d", d, tc.verdict, tc.offset)
				}
				if i == 0 && (d.str("recut") != tc.recut || d.str("what") != tc.what) {
					t.Errorf("%v; want recut %q, what %q", d, tc.recut, tc.what)
				}
			}
		})
	}
	t.Run("a damaged one", func(t *testing.T) {
		bad := bytes.Clone(whole)
		bad[len(b(0, 3))+70] ^= 1
		a, o := folder(t, map[string][]byte{log0: whole}), folder(t, map[string][]byte{log0: bad})
		out := mustRun(t, exitDamage, "diff", "--json", a, o)
		if e, d := objects(t, out, "error"), objects(t, out, "diff")[0]; len(e) != 1 || d.str("verdict") != "equal" || d.num("alone") != 3 {
			t.Errorf("%v, %v", e, d)
		}
	})
	t.Run("the follower is behind the leader's start (C079)", func(t *testing.T) {
		a, o := folder(t, map[string][]byte{log0: b(0, 3)}), folder(t, map[string][]byte{"00000000000000000006.log": b(6, 9)})
		c := objects(t, mustRun(t, exitOK, "diff", "--json", a, o), "cut")[0]
		if c.num("fromOffset") != 0 || !strings.Contains(c.str("why"), "begins at 6") {
			t.Errorf("%v", c)
		}
	})
}

func TestEpochs(t *testing.T) {
	in := func(e int32) func(*record.Spec) { return func(s *record.Spec) { s.LeaderEpoch = e } }
	log := cat(batch(t, 0, in(0), 1, 2), batch(t, 2, in(3), 3), batch(t, 3, in(3), 4))
	for _, tc := range []struct {
		name string
		log  []byte
		file string
		exit int
		want string // epoch=differs of each line
	}{
		{"as the batches", log, "0\n2\n0 0\n3 2\n", exitOK, "0= 3="},
		{"malformed", log, "0\n4\n0 0\n1 2\n3 2\n5 4\n", exitDamage, ""},
		{"elections without data", log, "0\n3\n0 0\n3 2\n5 4\n", exitOK, "0= 3= 5=no batches yet"},
		{"no file", log, "", exitOK, "0= 3="},
		{"ends early", log, "0\n1\n0 0\n", exitOK, "0= 3=the file ends before it"},
		{"begins early", log, "0\n2\n0 0\n3 1\n", exitOK, "0= 3=batches begin 1 offsets later"},
		{"begins late", log, "0\n2\n0 0\n3 3\n", exitOK, "0= 3=batches begin 1 offsets earlier"},
		{"foreign", log, "0\n2\n0 0\n1 4\n", exitOK, "0= 3=foreign: above epoch 1, which the file begins at 4 1=no batches yet"},
		{"beyond", log, "0\n3\n0 0\n3 2\n7 9\n", exitOK, "0= 3= 7=begins above the log's end 4"},
		{"goes back", cat(log, batch(t, 4, in(1), 5)), "0\n2\n0 0\n3 2\n", exitDamage, "0= 3= 1=epoch goes back from 3"},
		{"a lower leader behind a foreign log", cat(log, batch(t, 4, in(1), 5)), "0\n2\n0 0\n1 4\n", exitOK, "0= 3=foreign: above epoch 1, which the file begins at 4 1="},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir := folder(t, map[string][]byte{log0: tc.log, checkpoint.LeaderEpochFile: []byte(tc.file)})
			out := mustRun(t, tc.exit, "epochs", "--json", dir)
			var got []string
			for _, o := range objects(t, out, "epoch") {
				got = append(got, fmt.Sprintf("%d=%s", o.num("epoch"), o.str("differs")))
			}
			if s := strings.Join(got, " "); tc.want != "" && s != tc.want {
				t.Errorf("%s\nwant %s", s, tc.want)
			}
			if len(objects(t, out, "epochs")) != 1 {
				t.Error("no last line")
			}
		})
	}
	// Kafka's own: the file of a replica whose leader changed five times.
	out := mustRun(t, exitOK, "epochs", "--json", filepath.Join(testdata, "kafka-4.4-three-replicas", "replica-2"))
	if e := objects(t, out, "epoch"); len(e) != 5 || e[4].num("fileStart") != 48 || e[4].num("firstOffset") != 48 || e[4].num("fileEnd") != 60 {
		t.Errorf("%v", e)
	}
}

// explain says what the recovery does and leaves everything as it is.
func TestExplain(t *testing.T) {
	data := t.TempDir()
	dir := filepath.Join(data, "t-0")
	l, err := tidemark.Open(dir, tidemark.Options{SegmentBytes: 16 << 10, Sync: tidemark.Always})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 400 {
		if _, err := l.Append(tidemark.Record{Timestamp: int64(1000 + i), Key: []byte("k"), Value: bytes.Repeat([]byte("v"), 200)}); err != nil {
			t.Fatal(err)
		}
	}
	end := l.LogEndOffset()
	killed := filepath.Join(data, "killed-0")
	if err := os.CopyFS(killed, os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	explain := func(exit int, dir string) (steps []string, last object) {
		t.Helper()
		before := bytesOf(t, dir)
		out := mustRun(t, exit, "explain", "--json", dir)
		if !maps.Equal(before, bytesOf(t, dir)) {
			t.Error("explain changed something")
		}
		for _, s := range objects(t, out, "step") {
			steps = append(steps, s.str("action")+" "+filepath.Base(s.str("file")))
		}
		return steps, objects(t, out, "explain")[0]
	}
	steps, last := explain(exitOK, dir)
	if last.str("opens") != "readWrite" || !strings.HasPrefix(last.str("basis"), "slot: killed in this boot") || last.num("endOffset") != end {
		t.Errorf("live: %v %v", steps, last)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	steps, last = explain(exitOK, dir)
	if !strings.HasPrefix(last.str("basis"), "slot: closed cleanly") || last.num("endOffset") != end || len(steps) < 5 || !strings.HasPrefix(steps[0], "trust ") {
		t.Errorf("closed: %v %v", steps, last)
	}
	// A copy is another directory: its slot is not its own.
	steps, last = explain(exitOK, killed)
	if !strings.HasPrefix(last.str("basis"), "no slot") || last.num("endOffset") != end || !strings.HasPrefix(steps[0], "scan ") {
		t.Errorf("copied: %v %v", steps, last)
	}
	logs, err := filepath.Glob(filepath.Join(killed, "*.log"))
	if err != nil || len(logs) < 4 {
		t.Fatal(logs, err)
	}
	tail := logs[len(logs)-1]
	b, err := os.ReadFile(tail)
	if err != nil {
		t.Fatal(err)
	}
	size := len(bytes.TrimRight(b, "\x00"))
	write(t, tail, b[:size-20])
	write(t, filepath.Join(killed, "00000000000000000000.log.deleted"), []byte("x"))
	steps, last = explain(exitOK, killed)
	if last.num("endOffset") != end-1 || !slices.Contains(steps, "cut "+filepath.Base(tail)) || !slices.Contains(steps, "remove 00000000000000000000.log.deleted") {
		t.Errorf("torn: %v %v", steps, last)
	}
	// Damage: below what a recovery point says is on disk.
	write(t, filepath.Join(data, checkpoint.RecoveryPointFile), checkpoint.AppendOffsets(nil, []checkpoint.Offset{{Topic: "killed", Offset: end}}))
	write(t, filepath.Join(killed, checkpoint.LeaderEpochFile), nil)
	_, last = explain(exitDamage, killed)
	if last.str("opens") != "readOnly" || !strings.Contains(last.str("error"), "batch too short") {
		t.Errorf("damaged: %v", last)
	}
	mustRun(t, exitUnreadable, "explain", filepath.Join(data, "none"))
}

// explain says where the producers come from: Kafka's newest snapshot, the one
// before if that is torn, the log if there is none.
func TestExplainProducers(t *testing.T) {
	data := copyDir(t, filepath.Join(testdata, "kafka-4.4-closed"))
	dir := filepath.Join(data, "idem-0")
	newest := filepath.Join(dir, "00000000000000000076.snapshot")
	for _, tc := range []struct {
		name string
		harm func()
		step string
		from int64
	}{
		{"as it is", func() {}, "load 00000000000000000076.snapshot", 76},
		{"torn", func() { write(t, newest, []byte("torn")) }, "refuse 00000000000000000076.snapshot", 0},
		{"unclean, none", func() {
			if err := errors.Join(os.Remove(newest), os.Remove(filepath.Join(data, checkpoint.CleanMarkerFile))); err != nil {
				t.Fatal(err)
			}
		}, "scan 00000000000000000000.log", 0},
	} {
		tc.harm()
		out := mustRun(t, exitOK, "explain", "--json", dir)
		found := false
		for _, s := range objects(t, out, "step") {
			found = found || s.str("action")+" "+filepath.Base(s.str("file")) == tc.step
		}
		if from := objects(t, out, "explain")[0].num("producersFrom"); !found || from != tc.from {
			t.Errorf("%s: want %s, from %d\n%s", tc.name, tc.step, tc.from, out)
		}
	}
}

// bytesOf returns the content of every file below a folder, by its path in it.
func bytesOf(t testing.TB, dir string) map[string]string {
	t.Helper()
	all := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		b, err := os.ReadFile(path)
		rel, _ := filepath.Rel(dir, path)
		all[rel] = string(b)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// Every partition that Kafka closed has a snapshot that says what its log says.
func TestProducersClosed(t *testing.T) {
	for name, equal := range map[string]bool{"kafka-4.4-closed": true, "kafka-4.4-killed": false} {
		out := mustRun(t, exitOK, "producers", "--json", filepath.Join(testdata, name))
		all := objects(t, out, "producers")
		producers := int64(0)
		for _, o := range all {
			producers += o.num("equal")
			if v := o.str("verdict"); equal && v != "equal" && !(v == "noSnapshot" && o.num("rebuilt") == 0) {
				t.Errorf("%s: %v", name, o)
			}
		}
		if equal && (len(all) < 15 || producers < 10) {
			t.Errorf("%s: %d partitions, %d producers equal", name, len(all), producers)
		}
	}
}

// A snapshot whose checksum is right but whose producers are not.
func TestSnapshotAgainstLog(t *testing.T) {
	for _, tc := range []struct {
		name  string
		at    int // byte of the first entry
		add   byte
		fault string
	}{
		{"nothing", 0, 0, ""},
		{"epoch", 9, 1, "epoch"},
		{"sequence", 13, 1, "last sequence"},
		{"offset", 21, 1, "last sequence"},
		{"delta", 25, 1, "last batch"},
		{"timestamp", 33, 1, "last timestamp"},
		{"coordinator", 37, 1, "coordinator epoch"},
		{"transaction", 45, 0, "transaction open"},
		{"another producer", 7, 100, "the log has no batch"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			data := copyDir(t, filepath.Join(testdata, "kafka-4.4-closed"))
			dir := filepath.Join(data, "idem-0")
			snaps, err := filepath.Glob(filepath.Join(dir, "*.snapshot"))
			if err != nil || len(snaps) == 0 {
				t.Fatal(snaps, err)
			}
			path := snaps[len(snaps)-1]
			b, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			b[snapshotHeaderSize+tc.at] += tc.add
			if tc.name == "transaction" {
				binary.BigEndian.PutUint64(b[snapshotHeaderSize+38:], 3)
			}
			binary.BigEndian.PutUint32(b[2:], crc32.Checksum(b[6:], crc32.MakeTable(crc32.Castagnoli)))
			write(t, path, b)
			if tc.fault == "" {
				checkVerify(t, dir)
				return
			}
			f := findings(t, mustRun(t, exitDamage, "verify", "--json", dir), "fault")
			if len(f) != 1 || f[0].File != path || !strings.Contains(f[0].Found, tc.fault) || *f[0].Position != snapshotHeaderSize {
				t.Errorf("%+v; want one about the %s", f, tc.fault)
			}
			if p := one(t, exitDamage, "producers", "producers", dir); p.str("verdict") != "differs" {
				t.Errorf("producers says %v", p)
			}
			// Without order at the stop it is dropped at load.
			unclean(t, dir)
			checkVerify(t, dir)
		})
	}
}
