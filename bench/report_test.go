package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"iter"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tidemark-log/tidemark/record"
)

var rewrite = flag.Bool("rewrite", false, "rewrite testdata from what the tests produce")

// fixed is a plan and samples of it that need no measuring: three rounds of
// round numbers, so that medians and shares can be checked by eye.
func fixed() (env, []*cell, *measured) {
	e := env{CPU: "Test CPU", Cores: 2, Kernel: "Linux 6.1", FileSystem: "ext4", Go: "go1.26", Rounds: 3, CellMS: 40, CapMiB: 192}
	cells, m := plan(false), newMeasured()
	for i, c := range cells {
		for round := range 3 {
			// The rates of a cell are 1, 2 and 4 times a number that grows along the plan.
			s := sample{records: int64(1000*(i+1)) << round, elapsed: time.Second}
			if c.sync == "always" || strings.HasPrefix(c.kind, "point") || strings.HasPrefix(c.kind, "reopen") {
				s.latency = newLatency()
				for k := range 100 {
					observe(s.latency, time.Duration(k+1)*time.Duration(i+1)*time.Microsecond)
				}
			}
			m.add(c.name, s, nil)
		}
	}
	m.add("append/never/16KiB/x100/w16", sample{}, errors.New("verify writer 3 record 9: contents differ"))
	return e, cells, m
}

func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	file := filepath.Join("testdata", name)
	if *rewrite {
		if err := os.WriteFile(file, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s differs (-rewrite takes it over); got:\n%s", file, got)
	}
}

func TestReport(t *testing.T) {
	var b bytes.Buffer
	if err := newReport(fixed()).text(&b); err != nil {
		t.Fatal(err)
	}
	golden(t, "report.txt", b.Bytes())
}

func TestReport_shares(t *testing.T) {
	a := &cell{name: "a", size: 10, batch: 1, writers: 1}
	b := &cell{name: "b", size: 10, batch: 1, writers: 1}
	log := &cell{name: "log", acks: "1", size: 10, batch: 1, writers: 1, limits: []string{"a", "b"}}
	m := newMeasured()
	for _, r := range [][3]int64{{100, 200, 100}, {400, 200, 100}, {100, 50, 90}} {
		for i, c := range []*cell{a, b, log} {
			m.add(c.name, sample{records: r[i], elapsed: time.Second}, nil)
		}
	}
	rep := newReport(env{}, []*cell{a, b, log}, m)
	r := rep.results[2]
	// Per round against the faster of the two: 0.5, 0.25, 0.9.
	if *r.ShareOfLimit != 0.5 || r.shareMin != 0.25 || r.shareMax != 0.9 {
		t.Errorf("share %v [%v, %v]; want 0.5 [0.25, 0.9]", *r.ShareOfLimit, r.shareMin, r.shareMax)
	}
	if r.RecordsPerSec != 100 || r.BytesPerSec != 1000 || r.limitRate != 200 {
		t.Errorf("%v rec/s, %v B/s, limit %v; want 100, 1000, 200", r.RecordsPerSec, r.BytesPerSec, r.limitRate)
	}
	if rep.results[0].ShareOfLimit != nil {
		t.Error("a limit has a share")
	}
}

// The fields of the JSON file, and no others: scripts read them.
func TestReport_json(t *testing.T) {
	file := filepath.Join(t.TempDir(), "out.json")
	if err := newReport(fixed()).writeJSON(file); err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var got struct {
		Env     map[string]any
		Results []map[string]any
	}
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&got); err != nil {
		t.Fatal(err)
	}
	if keys := sortedKeys(got.Env); !slices.Equal(keys, []string{"capMiB", "cellMs", "cores", "cpu", "fileSystem", "go", "kernel", "rounds"}) {
		t.Errorf("env has %v", keys)
	}
	kinds := map[string]string{"name": "string", "acks": "string", "sync": "string", "replicas": "float64", "recordSize": "float64",
		"batch": "float64", "producers": "float64", "recordsPerSec": "float64", "bytesPerSec": "float64",
		"shareOfLimit": "float64?", "p50us": "float64?", "p99us": "float64?", "verified": "bool"}
	byName := map[string]map[string]any{}
	for _, r := range got.Results {
		byName[r["name"].(string)] = r
		if len(r) != len(kinds) {
			t.Errorf("%v has fields %v", r["name"], sortedKeys(r))
		}
		for k, kind := range kinds {
			v, ok := r[k]
			typ, optional := strings.CutSuffix(kind, "?")
			if !ok || fmt.Sprintf("%T", v) != typ && !(optional && v == nil) {
				t.Errorf("%v: %s is %T %v; want %s", r["name"], k, v, v, kind)
			}
		}
	}
	if len(byName) != len(plan(false))-1 {
		t.Errorf("%d results of %d cells, one of which failed", len(byName), len(plan(false)))
	}
	if r := byName["append/never/16KiB/x100/w16"]; r != nil {
		t.Errorf("a cell that failed has a number: %v", r)
	}
	r := byName["append/always/100B/x1/w16"]
	if r["acks"] != "1" || r["replicas"] != 1.0 || r["sync"] != "always" || r["producers"] != 16.0 || r["p99us"] == nil || r["shareOfLimit"] == nil {
		t.Errorf("append/always/100B/x1/w16 is %v", r)
	}
	if r := byName["limit/memory/100B/x1/w1"]; r["acks"] != "" || r["replicas"] != 0.0 || r["shareOfLimit"] != nil {
		t.Errorf("limit/memory/100B/x1/w1 is %v", r)
	}
}

func sortedKeys(m map[string]any) (keys []string) {
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// The plan covers what the work order lists, and every share has its limits in
// the same plan, next to it.
func TestPlan(t *testing.T) {
	cells := plan(false)
	place := map[string]int{}
	for i, c := range cells {
		if _, twice := place[c.name]; twice {
			t.Errorf("%s is planned twice", c.name)
		}
		place[c.name] = i
		if n := frameSize(c.batch, c.size); n > maxFrame {
			t.Errorf("%s has frames of %d bytes; maxFrame is %d", c.name, n, int64(maxFrame))
		}
		if newValues(c.size); len(newValues(c.size).pool) < c.batch {
			t.Errorf("%s: the pool has fewer values than a batch", c.name)
		}
	}
	for i, c := range cells {
		for _, l := range c.limits {
			if j, ok := place[l]; !ok || j >= i || i-j > 8 {
				t.Errorf("%s at %d: its limit %s is at %d, in the plan %v", c.name, i, l, j, ok)
			}
		}
	}
	for _, size := range []string{"100B", "1KiB", "16KiB"} {
		for _, batch := range []string{"x1", "x100"} {
			var want []string
			for _, lp := range appendLoops {
				want = append(want, fmt.Sprintf("limit/%s/%s/%s/w1", lp, size, batch))
			}
			for _, sync := range []string{"never", "always"} {
				for _, w := range []string{"w1", "w16"} {
					want = append(want, fmt.Sprintf("append/%s/%s/%s/%s", sync, size, batch, w))
				}
			}
			want = append(want, "scan/"+size+"/"+batch, "point/"+size+"/"+batch)
			for _, name := range want {
				if _, ok := place[name]; !ok {
					t.Errorf("%s is not planned", name)
				}
			}
		}
	}
	for _, name := range []string{"point-first/1KiB/x100", "reopen-closed/1KiB/x100", "reopen-killed/1KiB/x100"} {
		if _, ok := place[name]; !ok {
			t.Errorf("%s is not planned", name)
		}
	}
}

// The plan of replicated appends has every combination, and the limits before.
func TestPlan_acks(t *testing.T) {
	cfg, err := parseFlags([]string{"-acks", "0,1,all", "-sync", "never,interval,always", "-replicas", "1,2,3"}, t.Output())
	if err != nil {
		t.Fatal(err)
	}
	place := map[string]int{}
	produce := 0
	for i, c := range cfg.cells() {
		if _, twice := place[c.name]; twice {
			t.Errorf("%s is planned twice", c.name)
		}
		place[c.name] = i
		for _, l := range c.limits {
			if _, ok := place[l]; !ok {
				t.Errorf("%s comes before its limit %s", c.name, l)
			}
		}
		if c.kind == "produce" {
			produce++
			if (len(c.limits) > 0) != (c.replicas != 2) {
				t.Errorf("%s has limits %v", c.name, c.limits)
			}
		}
	}
	if want := 3 * 3 * 3 * 2 * 2; produce != want {
		t.Errorf("%d cells of appends; want %d", produce, want)
	}
}

// Replicated appends of every kind run, and are verified on each replica.
func TestProduce(t *testing.T) {
	for _, args := range []string{
		"-acks 0,1,all -sync never,always -batch 1,100 -producers 1,4",
		"-acks 1,all -sync interval -replicas 1 -batch 7 -producers 2 -inflight 5 -idempotent",
		"-acks all -sync never -replicas 2 -batch 10 -producers 2 -codec lz4 -inflight 3",
		"-acks all -sync never -batch 1 -producers 2 -rate 5000",
		"-scheme isr,quorum -slow 5ms",
	} {
		t.Run(args, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "out.json")
			cfg, err := parseFlags(append(strings.Fields(args), "-dir", t.TempDir(), "-t", "5ms", "-rounds", "1", "-cap", "1", "-json", file), t.Output())
			if err != nil {
				t.Fatal(err)
			}
			var out bytes.Buffer
			if err := run(t.Context(), cfg, openLog, &out); err != nil {
				t.Fatal(err)
			}
			raw, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			cells := cfg.cells()
			if got := bytes.Count(raw, []byte(`"verified": true`)); got != len(cells) {
				t.Errorf("%d results of %d cells:\n%s", got, len(cells), out.String())
			}
		})
	}
}

// A replica whose records are not all what was appended is found, whichever it is.
func TestProduce_lie(t *testing.T) {
	for node := range replicas {
		for _, alter := range []func(r *record.Record) (leave bool){
			func(r *record.Record) bool { r.Value = r.Value[:len(r.Value)-1]; return false },
			func(r *record.Record) bool { r.Value = bytes.Repeat([]byte{1}, len(r.Value)); return false },
			func(r *record.Record) bool { return true },
		} {
			cfg, err := parseFlags([]string{"-acks", "all", "-sync", "never", "-batch", "10", "-producers", "1",
				"-dir", t.TempDir(), "-t", "5ms", "-rounds", "1", "-cap", "1"}, t.Output())
			if err != nil {
				t.Fatal(err)
			}
			open := func(dir, sync string) (partitionLog, error) {
				l, err := openLog(dir, sync)
				if err == nil && strings.Contains(dir, fmt.Sprintf("node-%d", node)) {
					l = liar{l, alter}
				}
				return l, err
			}
			want := fmt.Sprintf("replica %d: verify", node)
			if err := run(t.Context(), cfg, open, t.Output()); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("error %v; want one of %s", err, want)
			}
		}
	}
}

// liar alters the seventh record, or leaves it out.
type liar struct {
	partitionLog
	alter func(r *record.Record) (leave bool)
}

func (l liar) Records(from int64) iter.Seq2[record.Record, error] {
	return func(yield func(record.Record, error) bool) {
		for r, err := range l.partitionLog.Records(from) {
			if r.Offset == 7 && l.alter(&r) {
				continue
			}
			if !yield(r, err) {
				return
			}
		}
	}
}

func TestChoose(t *testing.T) {
	var names []string
	for _, c := range choose(plan(false), regexp.MustCompile(`^append/always/1KiB/x1/`)) {
		names = append(names, c.name)
	}
	want := []string{"limit/fdatasync/1KiB/x1/w1", "append/always/1KiB/x1/w1", "limit/fdatasync/1KiB/x1/w16", "append/always/1KiB/x1/w16"}
	if !slices.Equal(names, want) {
		t.Errorf("chose %v; want %v", names, want)
	}
}

// A whole run over a log that keeps its promises, and over one that does not:
// the second fails, and the cell that found it has no number.
func TestRun(t *testing.T) {
	for _, tc := range []struct {
		name string
		open opener
		ok   bool
	}{
		{"truth", openFile(nil), true},
		{"lie", openFile(lies[0].lie), false},
		{"the log itself", openLog, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if tc.name == "the log itself" {
				t.Setenv(victimEnv, "log")
			}
			dir := t.TempDir()
			file := filepath.Join(t.TempDir(), "out.json")
			cfg, err := parseFlags([]string{"-dir", dir, "-quick", "-t", "2ms", "-rounds", "2", "-max", "1h", "-cap", "1", "-json", file, "-run", "append|scan|point|reopen"}, t.Output())
			if err != nil {
				t.Fatal(err)
			}
			var out bytes.Buffer
			err = run(t.Context(), cfg, tc.open, &out)
			if (err == nil) != tc.ok {
				t.Errorf("error %v; want one: %v", err, !tc.ok)
			}
			raw, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			for _, name := range []string{"append/never/1KiB/x1/w1", "scan/1KiB/x100", "reopen-killed/1KiB/x100"} {
				if got := bytes.Contains(raw, []byte(`"name": "`+name+`"`)); got != tc.ok {
					t.Errorf("%s has a result: %v; want %v", name, got, tc.ok)
				}
			}
			if !strings.Contains(out.String(), "2 rounds of 2 ms") || !strings.Contains(out.String(), "Limits: ") {
				t.Errorf("printed:\n%s", out.String())
			}
			if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
				t.Errorf("left behind: %v, %v", left, err)
			}
		})
	}
}

// TestRun_json: a file that cannot be written is found out before anything is measured,
// and a run that came to nothing leaves none.
func TestRun_json(t *testing.T) {
	dir := t.TempDir()
	cfg := config{dir: dir, t: time.Millisecond, rounds: 1, capMiB: 1, jsonFile: filepath.Join(dir, "missing", "out.json")}
	var out strings.Builder
	if err := run(t.Context(), cfg, openFile(nil), &out); !errors.Is(err, os.ErrNotExist) || out.Len() > 0 {
		t.Errorf("error %v, printed %q", err, out.String())
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	cfg.jsonFile = filepath.Join(dir, "out.json")
	if err := run(ctx, cfg, openFile(nil), &out); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left %v, %v", left, err)
	}
}

func TestRun_interrupted(t *testing.T) {
	dir := t.TempDir()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	err := run(ctx, config{dir: dir, t: time.Millisecond, rounds: 1, capMiB: 1}, openFile(nil), t.Output())
	if !errors.Is(err, context.Canceled) {
		t.Errorf("error %v; want %v", err, context.Canceled)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

func TestFlags(t *testing.T) {
	for _, tc := range []struct {
		args string
		ok   bool
	}{
		{"", true}, {"-quick", true}, {"-run ^scan", true},
		{"-run (", false}, {"-t 0s", false}, {"-max -1s", false}, {"-max 0s", true}, {"-rounds 0", false}, {"-cap 0", false}, {"-cap 99999999", false}, {"extra", false}, {"-nonsense", false},
		{"-plan log -acks 1", false}, {"-slow 5ms", false}, {"-scheme isr -acks 1", false}, {"-scheme isr -plan log", false}, {"-scheme isr -slow 5ms", true},
		{"-rate 10 -inflight 2", false}, {"-idempotent -inflight 6", false}, {"-acks 2", false}, {"-sync no", false}, {"-codec x", false},
	} {
		_, err := parseFlags(strings.Fields(tc.args), t.Output())
		if (err == nil) != tc.ok {
			t.Errorf("%q: error %v; want one: %v", tc.args, err, !tc.ok)
		}
	}
	quick, err := parseFlags([]string{"-quick", "-t", "1s"}, t.Output())
	if err != nil || quick.t != time.Second || quick.rounds != 1 || quick.capMiB != 48 {
		t.Errorf("-quick -t 1s: %+v, %v; want what was said and else one round of 48 MiB", quick, err)
	}
}

// docs/benchmarks.md names every flag and every field of the JSON file, and no
// others.
func TestDocs(t *testing.T) {
	doc, err := os.ReadFile("../docs/benchmarks.md")
	if err != nil {
		t.Fatal(err)
	}
	var usage bytes.Buffer
	if _, err := parseFlags([]string{"-h"}, &usage); !errors.Is(err, flag.ErrHelp) {
		t.Fatal(err)
	}
	names := func(re string, b []byte) (found []string) {
		for _, m := range regexp.MustCompile(re).FindAllSubmatch(b, -1) {
			found = append(found, string(m[1]))
		}
		slices.Sort(found)
		return found
	}
	if got, want := names("(?m)^\\| `-(\\w+)`", doc), names(`(?m)^  -(\w+)`, usage.Bytes()); !slices.Equal(got, want) {
		t.Errorf("documented flags %v; there are %v", got, want)
	}
	raw, err := json.Marshal(result{})
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := bytes.Cut(doc, []byte("| field | type | means |"))
	table, _, _ = bytes.Cut(table, []byte("\n\n"))
	var documented []string
	for line := range bytes.Lines(table) {
		if cols := bytes.Split(line, []byte("|")); len(cols) > 2 {
			documented = append(documented, names("`(\\w+)`", cols[1])...)
		}
	}
	slices.Sort(documented)
	if want := names(`"(\w+)":`, raw); !slices.Equal(documented, want) {
		t.Errorf("documented fields %v; there are %v", documented, want)
	}
}
