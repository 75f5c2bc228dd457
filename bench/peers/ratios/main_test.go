package main

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

var rewrite = flag.Bool("rewrite", false, "rewrite testdata from what the tests produce")

const heading = "engine,cell,round,records,bytes,seconds,cpu_seconds,allocs,alloc_bytes,p50_ns,p99_ns,error\n"

// rates are records a second of each engine, by round; CPU is 2 µs a record for
// us and 1 µs for everybody else, a record is 1 MiB.
func csvOf(cell string, rates map[string][]float64) string {
	var b strings.Builder
	for _, engine := range []string{"limit-mem", "limit-mmap", "base-ahead", "base-mmap", "base-pwrite", "tidemark", "tidemark-1", "pebble-wal", "raft-wal", "klevdb"} {
		for round, r := range rates[engine] {
			cpu := r * 1e-6
			if engine == ours {
				cpu *= 2
			}
			fmt.Fprintf(&b, "%s,%s,%d,%.0f,%.0f,1.000000,%.6f,3,100,0,0,\n", engine, cell, round, r, r*(1<<20), cpu)
		}
	}
	return b.String()
}

func sampleCSV() string {
	return heading +
		csvOf("append1/100B", map[string][]float64{
			"limit-mem": {4000, 4000, 4000}, "base-ahead": {2000, 2200, 2400}, "base-mmap": {1000, 9000, 1000}, "base-pwrite": {500, 500, 500},
			"tidemark": {1600, 1540, 1680}, "pebble-wal": {9000, 9000, 9000}, "raft-wal": {100, 110, 90}, "klevdb": {200, 150, 100},
		}) +
		csvOf("fsync1", map[string][]float64{
			"base-mmap": {3000, 3000, 3000}, "base-pwrite": {1000, 1000, 1000},
			"tidemark": {850, 920, 880}, "raft-wal": {900, 900, 900},
		}) +
		csvOf("scan/1KiB", map[string][]float64{
			"limit-mem": {1000, 1000, 1000}, "base-mmap": {900, 900, 900}, "tidemark": {800, 700, 690}, "klevdb": {100, 100, 100},
		}) +
		csvOf("point/1KiB", map[string][]float64{
			"limit-mmap": {1000, 1000}, "base-mmap": {1000, 1000}, "tidemark": {500, 700}, "tidemark-1": {820, 840},
		}) +
		"klevdb,point/1KiB,0,0,0,0.000000,0.000000,0,0,0,0,\"panic: no, thanks\"\n"
}

const reportMD = `# Peer benchmark results

## Open after kill -9, 1024 MiB of 1 KiB records

| engine | first open ready | median open |
|---|---:|---:|
| base-mmap | 225.2 ms | 216.8 ms |
| tidemark | 3.4 ms | 2.0 ms |

## Writer killed

| tidemark | 20 | 0 |
`

func write(t *testing.T, name, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return file
}

func TestRun(t *testing.T) {
	reference := heading + csvOf("append1/100B", map[string][]float64{"base-pwrite": {500, 500}, "pebble-wal": {5000, 5000}}) +
		strings.ReplaceAll(csvOf("append1/100B", map[string][]float64{"klevdb": {1900, 2100}}), "klevdb", "liftbridge")
	var b bytes.Buffer
	code, err := run([]string{"-report", write(t, "report.md", reportMD), "-reference", write(t, "ref.csv", reference),
		"-segment", "1048576", write(t, "raw.csv", sampleCSV())}, &b, t.Output())
	if code != 1 || err != nil {
		t.Errorf("exit %d, %v; want 1: some lines are missed", code, err)
	}
	golden := filepath.Join("testdata", "ratios.txt")
	if *rewrite {
		if err := os.WriteFile(golden, b.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(b.Bytes(), want) {
		t.Errorf("%s differs (-rewrite takes it over); got:\n%s", golden, b.String())
	}
}

func TestRatio(t *testing.T) {
	d, err := parse(strings.NewReader(sampleCSV()))
	if err != nil {
		t.Fatal(err)
	}
	// One lucky round makes no baseline the best: medians decide.
	if base := d.fastest(baselines, "append1/100B"); base != "base-ahead" {
		t.Errorf("best bare loop %s; want base-ahead", base)
	}
	e := d.ratio(ours, "base-ahead", "append1/100B", rate)
	if fmt.Sprintf("%.2f %.2f", e.rounds, e.median) != "[0.80 0.70 0.70] 0.70" {
		t.Errorf("ratios %.2f, median %.2f; want 0.80, 0.70, 0.70 and 0.70", e.rounds, e.median)
	}
	if e.lo > e.median || e.hi < e.median || e.lo < 0.7-1e-9 || e.hi > 0.8+1e-9 {
		t.Errorf("interval [%v, %v] of %v", e.lo, e.hi, e.rounds)
	}
	if c := d.ratio(ours, "base-ahead", "append1/100B", cpu); c.median != 2 {
		t.Errorf("CPU ratio %v; want 2", c.median)
	}
	if len(d.failed) != 1 || !strings.Contains(d.failed[0], "no, thanks") {
		t.Errorf("failed: %v", d.failed)
	}
	// A round that only one of the two has does not count.
	delete(d.byEngine["base-ahead"]["append1/100B"], 0)
	if e := d.ratio(ours, "base-ahead", "append1/100B", rate); len(e.rounds) != 2 {
		t.Errorf("ratios %v of two common rounds", e.rounds)
	}
}

// The interval holds the true median about as often as it says: of many sets of
// nine rounds drawn from a known distribution, at least nine in ten.
func TestEstimate_coverage(t *testing.T) {
	const sets = 200
	hit := 0
	x := uint64(1)
	for range sets {
		rounds := make([]float64, 9)
		for i := range rounds {
			x ^= x << 13
			x ^= x >> 7
			x ^= x << 17
			rounds[i] = float64(x%2001)/1000 - 1 // uniform in [-1, 1], median 0
		}
		if e := estimateOf(rounds); e.lo <= 0 && 0 <= e.hi {
			hit++
		}
	}
	if hit < sets*9/10 || hit == sets {
		t.Errorf("the median lay in %d of %d intervals; want about 95 %%", hit, sets)
	}
}

func TestEstimate(t *testing.T) {
	if e := estimateOf([]float64{2, 2, 2}); e.median != 2 || e.lo != 2 || e.hi != 2 {
		t.Errorf("three equal rounds: %v", e)
	}
	if e := estimateOf(nil); e.ok() || e.String() != "-" {
		t.Errorf("no rounds: %v", e)
	}
	a, b := estimateOf([]float64{1, 5, 3, 2}), estimateOf([]float64{1, 5, 3, 2})
	if a.String() != b.String() || a.median != 2.5 {
		t.Errorf("%v and %v; want the same twice, median 2.5", a, b)
	}
}

func TestJudge(t *testing.T) {
	e := func(x ...float64) estimate { return estimateOf(x) }
	for _, tc := range []struct {
		name    string
		e       estimate
		line    float64
		low     bool
		verdict string
		missed  int
	}{
		{"above", e(0.95, 0.96, 0.97), 0.9, false, "met", 0},
		{"at the line", e(0.9, 0.9, 0.9), 0.9, false, "met", 0},
		{"below", e(0.5, 0.6, 0.7), 0.9, false, "missed by 0.30", 1},
		{"below, interval across", e(0.85, 0.85, 0.95), 0.9, false, "missed by 0.05, interval crosses", 1},
		{"above, interval across", e(0.8, 0.95, 0.99), 0.9, false, "met, interval crosses", 0},
		{"less is better, less", e(1, 1.1, 1.1), 1.2, true, "met", 0},
		{"less is better, more", e(1.5, 1.5, 1.5), 1.2, true, "missed by 0.30", 1},
		{"nothing", e(), 0.9, false, "no samples", 1},
	} {
		a := &analysis{}
		a.judge("cell", "what", tc.e, tc.line, tc.low)
		if got := a.lines[0][4]; got != tc.verdict || a.missed != tc.missed {
			t.Errorf("%s: %q, %d missed; want %q, %d", tc.name, got, a.missed, tc.verdict, tc.missed)
		}
	}
}

func TestBadInput(t *testing.T) {
	for name, text := range map[string]string{
		"empty":         "",
		"no column":     "engine,cell\nx,y\n",
		"not a number":  heading + "tidemark,scan/1KiB,0,many,1,1,1,1,1,1,1,\n",
		"negative":      heading + "tidemark,scan/1KiB,0,-1,1,1,1,1,1,1,1,\n",
		"not finite":    heading + "tidemark,scan/1KiB,0,1,1,NaN,1,1,1,1,1,\n",
		"row too short": heading + "tidemark,scan/1KiB\n",
	} {
		if code, err := run([]string{write(t, "raw.csv", text)}, t.Output(), t.Output()); code != 2 || err == nil {
			t.Errorf("%s: exit %d, %v; want 2 and an error", name, code, err)
		}
	}
	raw := write(t, "raw.csv", sampleCSV())
	for name, args := range map[string][]string{
		"no argument":        {},
		"two arguments":      {raw, raw},
		"no such file":       {raw + "x"},
		"report without one": {"-report", raw, raw},
	} {
		if code, err := run(args, t.Output(), t.Output()); code != 2 || err == nil {
			t.Errorf("%s: exit %d, %v; want 2 and an error", name, code, err)
		}
	}
}
