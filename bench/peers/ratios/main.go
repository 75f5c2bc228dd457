// Command ratios reads the samples of a peer benchmark run (the file its -raw
// flag writes) and answers what this log promises about them: its median
// per-round ratios to the bare loops and to the peers, a 95 % interval beside
// each, and whether each line is met.
//
//	bench/peers/run.sh HARNESS -t 2s -cap 2048 -rounds 9 -max 2h -raw raw.csv -o report.md
//	go run ./bench/peers/ratios -report report.md raw.csv
//
// Ratios are taken within a round, where both ran next to each other, and then
// the median over the rounds. The interval is a bootstrap of that median: what
// the middle 95 % of medians would be if rounds were drawn anew from those at
// hand. "met" compares the median with the line; where the interval reaches
// across the line, it says so.
//
// Exit status: 0 all lines met, 1 some not, 2 usage or unreadable input.
package main

import (
	"bufio"
	"cmp"
	"encoding/csv"
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

const (
	ours    = "tidemark"   // batches as the harness makes them
	oursOne = "tidemark-1" // one record a batch
	pwrite  = "base-pwrite"
)

var (
	baselines = []string{"base-ahead", "base-mmap", pwrite}
	limits    = []string{"limit-mem", "limit-mmap"}
)

// notRanked are the peers that keep another promise, and which: a log is
// compared with those that checksum what they store and show, after kill -9 and
// without a repair by hand, every record they acknowledged.
var notRanked = map[string]string{
	"bigqueue":   "no checksum",
	"diskqueue":  "no checksum, loses acknowledged records on kill -9",
	"pebble-wal": "loses acknowledged records on kill -9",
	"tidwall":    "no checksum, may not open after kill -9",
	"walfs":      "may not open after kill -9",
}

func main() {
	code, err := run(os.Args[1:], os.Stdout, os.Stderr)
	if err != nil {
		fmt.Fprintln(os.Stderr, "ratios:", err)
	}
	os.Exit(code)
}

func run(args []string, w, errw io.Writer) (int, error) {
	fs := flag.NewFlagSet("ratios", flag.ContinueOnError)
	fs.SetOutput(errw)
	reference := fs.String("reference", "", "samples `file` of an earlier run, for peers missing in this one: compared by their ratio to base-pwrite")
	report := fs.String("report", "", "report `file` of the same run, for the time to reopen after kill -9")
	segment := fs.Int64("segment", 64<<20, "segment size of the run in bytes, to count rolls")
	if err := fs.Parse(args); err != nil {
		return 2, nil // told by the flag package
	}
	if fs.NArg() != 1 {
		return 2, errors.New("want one argument, the file that -raw wrote")
	}
	data, err := read(fs.Arg(0))
	if err != nil {
		return 2, err
	}
	a := &analysis{data: data, segment: *segment}
	if *reference != "" {
		if a.reference, err = read(*reference); err != nil {
			return 2, err
		}
	}
	if *report != "" {
		if a.reopenMS, err = readReopen(*report); err != nil {
			return 2, err
		}
	}
	a.print(w)
	if a.missed > 0 {
		return 1, nil
	}
	return 0, nil
}

// sample is one engine in one cell and round.
type sample struct {
	records, bytes, seconds, cpu, allocs float64
}

func rate(s sample) float64 { return s.records / s.seconds }
func cpu(s sample) float64  { return s.cpu / s.records }

// samples is engine → cell → round. A round that failed is not there.
type samples struct {
	byEngine map[string]map[string]map[int]sample
	cells    []string // in order of appearance
	engines  []string
	failed   []string
}

func read(name string) (*samples, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	d, err := parse(f)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	return d, nil
}

func parse(r io.Reader) (*samples, error) {
	c := csv.NewReader(r)
	head, err := c.Read()
	if err != nil {
		return nil, err
	}
	col := map[string]int{}
	for i, h := range head {
		col[h] = i
	}
	for _, h := range []string{"engine", "cell", "round", "records", "bytes", "seconds", "cpu_seconds", "allocs", "error"} {
		if _, ok := col[h]; !ok {
			return nil, fmt.Errorf("no column %q", h)
		}
	}
	d := &samples{byEngine: map[string]map[string]map[int]sample{}}
	for {
		row, err := c.Read()
		if err == io.EOF {
			return d, nil
		}
		if err != nil {
			return nil, err
		}
		engine, cell := row[col["engine"]], row[col["cell"]]
		if e := row[col["error"]]; e != "" {
			d.failed = append(d.failed, fmt.Sprintf("%s %s round %s: %s", engine, cell, row[col["round"]], e))
			continue
		}
		num := func(name string) float64 {
			x, perr := strconv.ParseFloat(row[col[name]], 64)
			if perr != nil || !(x >= 0) || math.IsInf(x, 0) {
				err = fmt.Errorf("column %s of %s %s: %q", name, engine, cell, row[col[name]])
			}
			return x
		}
		s := sample{records: num("records"), bytes: num("bytes"), seconds: num("seconds"), cpu: num("cpu_seconds"), allocs: num("allocs")}
		round := int(num("round"))
		if err != nil {
			return nil, err
		}
		if s.records == 0 || s.seconds == 0 {
			d.failed = append(d.failed, fmt.Sprintf("%s %s round %d: no record", engine, cell, round))
			continue
		}
		if d.byEngine[engine] == nil {
			d.byEngine[engine] = map[string]map[int]sample{}
			d.engines = append(d.engines, engine)
		}
		if d.byEngine[engine][cell] == nil {
			d.byEngine[engine][cell] = map[int]sample{}
		}
		d.byEngine[engine][cell][round] = s
		if !slices.Contains(d.cells, cell) {
			d.cells = append(d.cells, cell)
		}
	}
}

// readReopen finds our time to reopen after kill -9 in the harness's report:
// the row of the table whose heading says so, its first open until ready.
func readReopen(name string) (ms map[string]float64, err error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	ms = map[string]float64{}
	in := false
	sc := bufio.NewScanner(f)
	for sc.Scan() {
		line := sc.Text()
		if strings.HasPrefix(line, "## ") {
			in = strings.HasPrefix(line, "## Open after kill -9")
		}
		if cols := strings.Split(line, "|"); in && len(cols) > 3 {
			engine := strings.TrimSpace(cols[1])
			if x, perr := strconv.ParseFloat(strings.TrimSuffix(strings.TrimSpace(cols[2]), " ms"), 64); perr == nil {
				ms[engine] = x
			}
		}
	}
	if err := sc.Err(); err != nil {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	if len(ms) == 0 {
		return nil, fmt.Errorf("read %s: no table of opening after kill -9", name)
	}
	return ms, nil
}

// estimate is a median over rounds with its 95 % interval.
type estimate struct {
	rounds []float64 // in order
	median float64
	lo, hi float64
}

func (e estimate) ok() bool { return len(e.rounds) > 0 }

func (e estimate) String() string {
	if !e.ok() {
		return "-"
	}
	return fmt.Sprintf("%.2f [%.2f, %.2f]", e.median, e.lo, e.hi)
}

// estimateOf resamples the rounds with a fixed seed: the same file gives the
// same interval.
func estimateOf(rounds []float64) estimate {
	e := estimate{rounds: rounds}
	if !e.ok() {
		return e
	}
	e.median = median(slices.Clone(rounds))
	const draws = 10000
	rng := rand.New(rand.NewPCG(1, uint64(len(rounds))))
	medians := make([]float64, draws)
	drawn := make([]float64, len(rounds))
	for i := range medians {
		for j := range drawn {
			drawn[j] = rounds[rng.IntN(len(rounds))]
		}
		medians[i] = median(drawn)
	}
	slices.Sort(medians)
	e.lo, e.hi = medians[draws*25/1000], medians[draws*975/1000]
	return e
}

// median sorts x.
func median(x []float64) float64 {
	slices.Sort(x)
	if n := len(x); n%2 == 0 {
		return (x[n/2-1] + x[n/2]) / 2
	}
	return x[len(x)/2]
}

// ratio is the estimate of f(a)/f(b) within rounds.
func (d *samples) ratio(a, b, cell string, f func(sample) float64) estimate {
	var x []float64
	as, bs := d.byEngine[a][cell], d.byEngine[b][cell]
	for _, round := range sortedRounds(as) {
		if s, ok := bs[round]; ok && f(s) > 0 {
			x = append(x, f(as[round])/f(s))
		}
	}
	return estimateOf(x)
}

func sortedRounds(m map[int]sample) []int {
	var rounds []int
	for r := range m {
		rounds = append(rounds, r)
	}
	slices.Sort(rounds)
	return rounds
}

// medianOf is the median of f over the rounds, 0 if there are none.
func (d *samples) medianOf(engine, cell string, f func(sample) float64) float64 {
	var x []float64
	for _, s := range d.byEngine[engine][cell] {
		x = append(x, f(s))
	}
	if len(x) == 0 {
		return 0
	}
	return median(x)
}

// fastest is the engine of those given with the highest median rate in cell, ""
// if none ran.
func (d *samples) fastest(engines []string, cell string) string {
	best, name := 0.0, ""
	for _, e := range engines {
		if r := d.medianOf(e, cell, rate); r > best {
			best, name = r, e
		}
	}
	return name
}

type kind int

const (
	appendCell kind = iota
	syncedCell
	scanCell
	pointCell
)

func kindOf(cell string) kind {
	switch {
	case strings.HasPrefix(cell, "append"):
		return appendCell
	case strings.HasPrefix(cell, "fsync"):
		return syncedCell
	case strings.HasPrefix(cell, "scan"):
		return scanCell
	}
	return pointCell
}

type analysis struct {
	data, reference *samples
	reopenMS        map[string]float64
	segment         int64

	lines  [][]string
	missed int
}

// judge adds one line of what must hold. low is whether less is better.
func (a *analysis) judge(cell, what string, e estimate, line float64, low bool) {
	met, verdict := false, "no samples"
	if e.ok() {
		short := line - e.median
		if low {
			short = -short
		}
		if met = short <= 0; met {
			verdict = "met"
		} else {
			verdict = fmt.Sprintf("missed by %.2f", short)
		}
		if e.lo < line && line < e.hi {
			verdict += ", interval crosses"
		}
	}
	sign := "≥"
	if low {
		sign = "≤"
	}
	a.add(met, cell, what, e.String(), fmt.Sprintf("%s %.2f", sign, line), verdict)
}

func (a *analysis) add(met bool, cols ...string) {
	if !met {
		a.missed++
	}
	a.lines = append(a.lines, cols)
}

func (a *analysis) print(w io.Writer) {
	d := a.data
	a.lines = [][]string{{"cell", "what", "median [95 %]", "line", "verdict"}}
	var ratios, rounds [][]string
	ratios = append(ratios, []string{"cell", "rec/s", "best bare", "rate", "CPU/rec", "limit-mem", "limit-mmap", "allocs/rec"})
	for _, cell := range d.cells {
		us := []string{ours}
		if kindOf(cell) == pointCell {
			us = append(us, oursOne)
		}
		for _, name := range us {
			if len(d.byEngine[name][cell]) == 0 {
				a.add(false, cell, name, "-", "", "no samples")
				continue
			}
			base := d.fastest(baselines, cell)
			if kindOf(cell) == syncedCell {
				base = pwrite // where every append syncs, a map is no contender
			}
			best := d.ratio(name, base, cell, rate)
			label := cell
			if name != ours {
				label += " " + name
			}
			ratios = append(ratios, []string{label, si(d.medianOf(name, cell, rate)), base, best.String(),
				d.ratio(name, base, cell, cpu).String(), d.ratio(name, limits[0], cell, rate).String(),
				d.ratio(name, limits[1], cell, rate).String(), fmt.Sprintf("%.4f", d.medianOf(name, cell, allocs))})
			row := []string{label, base}
			for _, x := range best.rounds {
				row = append(row, fmt.Sprintf("%.2f", x))
			}
			rounds = append(rounds, row)
			a.judgeCell(cell, name, base, best)
		}
	}
	if a.reopenMS != nil {
		ms, ok := a.reopenMS[ours]
		if !ok {
			ms = math.NaN()
		}
		met := ms <= 10
		a.add(met, "reopen", "first open after kill -9, until ready", fmt.Sprintf("%.1f ms", ms), "≤ 10 ms", verdictOf(met))
	}
	table(w, "Median per-round ratios; CPU/rec against the same bare loop", ratios)
	table(w, "The rate ratio round by round", rounds)
	table(w, "What must hold", a.lines)
	for _, e := range d.engines {
		if why, ok := notRanked[e]; ok {
			fmt.Fprintf(w, "not ranked: %s (%s)\n", e, why)
		}
	}
	for _, f := range d.failed {
		fmt.Fprintln(w, "failed:", f)
	}
	if a.reopenMS == nil {
		fmt.Fprintln(w, "not judged: reopening after kill -9, which only the report has (-report)")
	}
	fmt.Fprintf(w, "%d of %d lines missed\n", a.missed, len(a.lines)-1)
}

func allocs(s sample) float64 { return s.allocs / s.records }

func verdictOf(met bool) string {
	if met {
		return "met"
	}
	return "missed"
}

// judgeCell adds the lines of one cell for one of our two engines.
func (a *analysis) judgeCell(cell, name, base string, best estimate) {
	d := a.data
	switch kindOf(cell) {
	case appendCell:
		line := 0.9
		if cell == "append1/100B" {
			line = 0.7
		}
		a.judge(cell, "rate / "+base, best, line, false)
		a.judge(cell, "CPU per record / "+base, d.ratio(name, base, cell, cpu), 1.2, true)
		a.judgeRank(cell, false)
		// The harness counts values; what a log adds to them is left out, so this
		// is a lower bound.
		rolls := d.medianOf(name, cell, func(s sample) float64 { return s.bytes }) / float64(a.segment)
		a.add(rolls >= 16, cell, "segments filled", fmt.Sprintf("%.1f", rolls), "≥ 16", verdictOf(rolls >= 16))
	case syncedCell:
		a.judge(cell, "rate / "+pwrite, d.ratio(name, pwrite, cell, rate), 0.9, false)
		a.judgeRank(cell, true)
	case scanCell:
		switch cell {
		case "scan/1KiB":
			a.judge(cell, "rate / limit-mem", d.ratio(name, limits[0], cell, rate), 0.7, false)
		case "scan/100B":
			a.judge(cell, "rate / limit-mem", d.ratio(name, limits[0], cell, rate), 0.6, false)
		}
		a.judgeRank(cell, false)
	case pointCell:
		what, line := "batches of 100, rate / limit-mmap", 0.6
		if name == oursOne {
			what, line = "batches of one, rate / limit-mmap", 0.8
		}
		a.judge(cell, what, d.ratio(name, limits[1], cell, rate), line, false)
	}
	if kindOf(cell) != syncedCell {
		// The harness itself allocates some dozen objects a cell.
		n := d.medianOf(name, cell, allocs)
		a.add(n < 0.005, cell, "allocations per record, "+name, fmt.Sprintf("%.4f", n), "0", verdictOf(n < 0.005))
	}
}

// judgeRank compares us with the fastest ranked peer of the cell. within: it is
// enough that the interval of our ratio to it reaches 1.
func (a *analysis) judgeRank(cell string, within bool) {
	peer, e := a.first(cell)
	if peer == "" {
		a.add(false, cell, "first among peers", "-", "≥ 1.00", "no peer ran")
		return
	}
	met := e.median >= 1
	verdict := verdictOf(met)
	if !met && within && e.hi >= 1 {
		met, verdict = true, "met, within the interval"
	}
	a.add(met, cell, "rate / "+peer+", the first peer", e.String(), "≥ 1.00", verdict)
}

// first is the ranked peer that comes closest to us or ahead of us. Peers that
// only the reference run has are compared through base-pwrite: our ratio to it
// here over theirs there.
func (a *analysis) first(cell string) (peer string, e estimate) {
	consider := func(name string, r estimate) {
		if r.ok() && (peer == "" || r.median < e.median) {
			peer, e = name, r
		}
	}
	for _, name := range a.data.engines {
		if ranked(name) {
			consider(name, a.data.ratio(ours, name, cell, rate))
		}
	}
	if a.reference == nil {
		return peer, e
	}
	mine := a.data.ratio(ours, pwrite, cell, rate)
	for _, name := range a.reference.engines {
		if _, here := a.data.byEngine[name]; here || !ranked(name) {
			continue
		}
		theirs := a.reference.ratio(name, pwrite, cell, rate)
		if !theirs.ok() || !mine.ok() {
			continue
		}
		consider(name+" (reference run)", estimate{rounds: mine.rounds, median: mine.median / theirs.median,
			lo: mine.lo / theirs.hi, hi: mine.hi / theirs.lo})
	}
	return peer, e
}

func ranked(engine string) bool {
	_, out := notRanked[engine]
	return !out && engine != ours && engine != oursOne &&
		!strings.HasPrefix(engine, "limit-") && !strings.HasPrefix(engine, "base-")
}

func si(x float64) string {
	switch {
	case x >= 1e6:
		return fmt.Sprintf("%.2fM", x/1e6)
	case x >= 1e3:
		return fmt.Sprintf("%.1fk", x/1e3)
	}
	return fmt.Sprintf("%.0f", x)
}

// table prints rows, the first a heading, in columns; rows may differ in length.
func table(w io.Writer, title string, rows [][]string) {
	n := len(slices.MaxFunc(rows, func(a, b []string) int { return cmp.Compare(len(a), len(b)) }))
	width := make([]int, n)
	for _, row := range rows {
		for i, s := range row {
			width[i] = max(width[i], utf8.RuneCountInString(s))
		}
	}
	fmt.Fprintf(w, "%s\n", title)
	for _, row := range rows {
		var line strings.Builder
		for i, s := range row {
			line.WriteString("  " + s + strings.Repeat(" ", width[i]-utf8.RuneCountInString(s)))
		}
		fmt.Fprintln(w, strings.TrimRight(line.String(), " "))
	}
	fmt.Fprintln(w)
}
