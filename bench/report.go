package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// measured collects samples by cell and round.
type measured struct {
	samples map[string][]sample // one a round
	failed  map[string]error    // the first failure; the cell has no number then
}

func newMeasured() *measured {
	return &measured{samples: map[string][]sample{}, failed: map[string]error{}}
}

func (m *measured) add(name string, s sample, err error) {
	if err != nil {
		m.failed[name] = err
		return
	}
	m.samples[name] = append(m.samples[name], s)
}

// err joins the failures in the order of the plan.
func (m *measured) err(cells []*cell) error {
	var errs []error
	for _, c := range cells {
		if err := m.failed[c.name]; err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", c.name, err))
		}
	}
	return errors.Join(errs...)
}

// env says where and how the numbers were made.
type env struct {
	CPU        string  `json:"cpu"`
	Cores      int     `json:"cores"`
	Kernel     string  `json:"kernel"`
	FileSystem string  `json:"fileSystem"`
	Go         string  `json:"go"`
	Rounds     int     `json:"rounds"`
	CellMS     float64 `json:"cellMs"` // timed part of a cell
	CapMiB     int64   `json:"capMiB"` // written by a cell at most
}

func environment(dir string) env {
	cpu := runtime.GOARCH
	if b, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		for line := range strings.Lines(string(b)) {
			if k, v, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(k) == "model name" {
				cpu = strings.TrimSpace(v)
				break
			}
		}
	}
	return env{CPU: cpu, Cores: runtime.NumCPU(), Kernel: kernel(), FileSystem: fsName(dir), Go: runtime.Version()}
}

// result is a cell's line in the JSON file. A field that says nothing about the
// cell is null, "" or 0: shares of cells without a limit, latencies of calls
// that wait for nothing, rates of reopening.
type result struct {
	Name          string   `json:"name"`
	Acks          string   `json:"acks"`
	Sync          string   `json:"sync"`
	Replicas      int      `json:"replicas"`
	RecordSize    int      `json:"recordSize"` // bytes of a value
	Batch         int      `json:"batch"`      // records a call
	Producers     int      `json:"producers"`
	RecordsPerSec float64  `json:"recordsPerSec"`
	BytesPerSec   float64  `json:"bytesPerSec"` // bytes of values
	ShareOfLimit  *float64 `json:"shareOfLimit"`
	P50us         *float64 `json:"p50us"`
	P99us         *float64 `json:"p99us"`
	Verified      bool     `json:"verified"`

	cell               *cell
	records            int64   // of the first round
	limitRate          float64 // median over the rounds of the fastest limit
	shareMin, shareMax float64
}

// report is the results of the cells that have any, in the order of the plan.
type report struct {
	env     env
	results []*result
	failed  map[string]error
}

func newReport(e env, cells []*cell, m *measured) *report {
	rep := &report{env: e, failed: m.failed}
	for _, c := range cells {
		ss := m.samples[c.name]
		if len(ss) == 0 || m.failed[c.name] != nil {
			continue
		}
		r := &result{Name: c.name, Acks: c.acks, Sync: c.sync, Replicas: c.replicas, RecordSize: c.size,
			Batch: c.batch, Producers: c.writers, Verified: true, cell: c, records: ss[0].records}
		if !strings.HasPrefix(c.kind, "reopen") {
			var rates []float64
			for _, s := range ss {
				rates = append(rates, s.rate())
			}
			r.RecordsPerSec = median(rates)
			r.BytesPerSec = r.RecordsPerSec * float64(c.size)
		}
		var shares, limits []float64
		for i, s := range ss {
			var best float64
			for _, l := range c.limits {
				if ls := m.samples[l]; i < len(ls) {
					best = max(best, ls[i].rate())
				}
			}
			if best > 0 {
				shares, limits = append(shares, s.rate()/best), append(limits, best)
			}
		}
		if len(shares) > 0 {
			share := median(shares)
			r.ShareOfLimit, r.limitRate = &share, median(limits)
			r.shareMin, r.shareMax = slices.Min(shares), slices.Max(shares)
		}
		var h *hdrhistogram.Histogram
		for _, s := range ss {
			switch {
			case s.latency == nil:
			case h == nil:
				h = s.latency
			default:
				h.Merge(s.latency)
			}
		}
		if h != nil {
			p50, p99 := float64(h.ValueAtQuantile(50))/1e3, float64(h.ValueAtQuantile(99))/1e3
			r.P50us, r.P99us = &p50, &p99
		}
		rep.results = append(rep.results, r)
	}
	return rep
}

func median(x []float64) float64 {
	x = slices.Sorted(slices.Values(x))
	if n := len(x); n%2 == 0 {
		return (x[n/2-1] + x[n/2]) / 2
	}
	return x[len(x)/2]
}

// writeJSON writes {"env": …, "results": […]} to file.
func (rep *report) writeJSON(file string) error {
	b, err := json.MarshalIndent(struct {
		Env     env       `json:"env"`
		Results []*result `json:"results"`
	}{rep.env, append([]*result{}, rep.results...)}, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(file, append(b, '\n'), 0o644)
}

// text prints the tables.
func (rep *report) text(w io.Writer) error {
	var b strings.Builder
	e := rep.env
	rounds := "1 round"
	if e.Rounds != 1 {
		rounds = fmt.Sprintf("%d rounds", e.Rounds)
	}
	fmt.Fprintf(&b, "tidemark bench: %s, %d cores, %s, %s, %s; %s of %g ms a cell, at most %d MiB each\n",
		e.CPU, e.Cores, e.Kernel, e.FileSystem, e.Go, rounds, e.CellMS, e.CapMiB)
	b.WriteString("rec/s, MB/s (values only): medians of the rounds. p50, p99: one call, closed loop. Every run was read back and compared.\n")
	b.WriteString("limit: the bare loop that does the same necessary work (header bytes, copy, CRC-32C, pages, sync), the fastest where several do.\n")
	b.WriteString("share: log / limit within a round, median [least, greatest]. never, always: when an append syncs; without, it is in the page cache.\n")

	rep.replicated(&b)
	rep.schemes(&b)
	rep.limits(&b)
	rep.table(&b, "Append, sync never", func(c *cell) bool { return c.kind == "append" && c.sync == "never" }, false)
	rep.table(&b, "Append, sync always: a call returns when its records are on disk", func(c *cell) bool { return c.kind == "append" && c.sync == "always" }, true)
	rep.table(&b, "Scan from end to end after reopening, every batch verified", func(c *cell) bool { return c.kind == "scan" }, false)
	rep.table(&b, "Random point read, copied out; batches of 100 verified before", func(c *cell) bool { return c.kind == "point" }, true)
	rep.table(&b, "The same, first touch: the read verifies its whole batch", func(c *cell) bool { return c.kind == "point-first" }, true)
	rep.reopen(&b)
	_, err := io.WriteString(w, b.String())
	return err
}

func size(n int) string {
	if n >= 1<<10 {
		return strconv.Itoa(n>>10) + " KiB"
	}
	return strconv.Itoa(n) + " B"
}

func label(c *cell) []string {
	return []string{size(c.size), "x" + strconv.Itoa(c.batch), strconv.Itoa(c.writers)}
}

// limits prints the bare append loops as a matrix: a row for each shape of
// append, a column for each loop.
func (rep *report) limits(b *strings.Builder) {
	columns := []loop{loopMemory, loopReady, loopInline, loopZeros, loopAhead, loopPwrite, loopSync}
	header := []string{"record", "batch", "writers", "memory", "map ready", "map filled", "map zeros", "map ahead", "pwrite", "+fdatasync"}
	rows := [][]string{append(header, "p50", "p99")}
	at := map[string]int{}
	for _, r := range rep.results {
		i := slices.Index(columns, loop(r.cell.kind))
		if i < 0 {
			continue
		}
		key := strings.Join(label(r.cell), " ")
		n, ok := at[key]
		if !ok {
			n = len(rows)
			at[key] = n
			rows = append(rows, append(label(r.cell), slices.Repeat([]string{""}, len(columns)+2)...))
		}
		rows[n][3+i] = mbs(r.BytesPerSec)
		if r.P50us != nil {
			rows[n][3+len(columns)], rows[n][4+len(columns)] = micros(*r.P50us), micros(*r.P99us)
		}
	}
	print(b, "Limits: bare loops, MB/s; a map's pages ready before the clock, populated by the append, made by its zeros, or populated by a goroutine ahead of it", rows)
}

// replicated prints the appends per acks mode.
func (rep *report) replicated(b *strings.Builder) {
	for _, sync := range []string{"never", "interval", "always"} {
		var how string
		rows := [][]string{{"acks", "replicas", "record", "batch", "producers", "rec/s", "MB/s", "limit rec/s", "share", "[least, greatest]", "p50", "p99"}}
		for _, r := range rep.results {
			c := r.cell
			if c.kind != "produce" || c.sync != sync {
				continue
			}
			how = c.load.String()
			row := append([]string{c.acks, strconv.Itoa(c.replicas)}, label(c)...)
			row = append(row, si(r.RecordsPerSec), mbs(r.BytesPerSec), "", "", "", "", "")
			if r.ShareOfLimit != nil {
				row[7], row[8] = si(r.limitRate), fmt.Sprintf("%.2f", *r.ShareOfLimit)
				row[9] = fmt.Sprintf("[%.2f, %.2f]", r.shareMin, r.shareMax)
			}
			if r.P50us != nil {
				row[10], row[11] = micros(*r.P50us), micros(*r.P99us)
			}
			rows = append(rows, row)
		}
		print(b, "Replicated appends, sync "+sync+": "+syncText[sync]+how, rows)
	}
}

// schemes prints the comparison of schemes.
func (rep *report) schemes(b *strings.Builder) {
	rows := [][]string{{"scheme", "survives", "replicas", "slow follower", "append/s", "p50", "p99"}}
	for _, r := range rep.results {
		if s := r.cell.scheme; s != nil {
			slow := "none"
			if s.slow > 0 {
				slow = "+" + s.slow.String() + " a sync"
			}
			if s.lagMax <= s.slow {
				slow += ", left the ISR"
			}
			rows = append(rows, []string{s.name, strconv.Itoa(s.failures), strconv.Itoa(s.replicas()), slow,
				si(r.RecordsPerSec), micros(*r.P50us), micros(*r.P99us)})
		}
	}
	print(b, "Schemes: an append counts once all in-sync replicas have it on disk (isr) or a majority of all (quorum); 1 KiB each, 4 producers", rows)
}

var syncText = map[string]string{
	"never":    "a replica has a record when it is in its page cache",
	"interval": "the same, and a sync follows within a second",
	"always":   "a replica has a record when it is on its disk; acks 0 waits for no sync, its limit does",
}

// table prints the results of the log's cells that match.
func (rep *report) table(b *strings.Builder, title string, match func(*cell) bool, latency bool) {
	header := []string{"record", "batch", "writers", "rec/s", "MB/s", "limit rec/s", "share", "[least, greatest]"}
	if latency {
		header = append(header, "p50", "p99")
	}
	rows := [][]string{header}
	for _, r := range rep.results {
		if r.cell.bare() || !match(r.cell) {
			continue
		}
		row := append(label(r.cell), si(r.RecordsPerSec), mbs(r.BytesPerSec), "", "", "")
		if r.ShareOfLimit != nil {
			row[5], row[6] = si(r.limitRate), fmt.Sprintf("%.2f", *r.ShareOfLimit)
			row[7] = fmt.Sprintf("[%.2f, %.2f]", r.shareMin, r.shareMax)
		}
		if latency && r.P50us != nil {
			row = append(row, micros(*r.P50us), micros(*r.P99us))
		}
		rows = append(rows, row)
	}
	print(b, title, rows)
}

// reopen prints how long opening took, and beside it how long the scan's bare
// loop takes for as many records: what opening costs a log that has to walk them.
func (rep *report) reopen(b *strings.Builder) {
	rows := [][]string{{"after", "records", "record", "p50", "greatest", "a walk with CRC"}}
	for _, r := range rep.results {
		after, ok := strings.CutPrefix(r.cell.kind, "reopen-")
		if !ok {
			continue
		}
		walk := ""
		for _, l := range rep.results {
			if l.cell.kind == string(loopScan) && l.cell.bare() && l.RecordSize == r.RecordSize && l.Batch == r.Batch {
				walk = micros(float64(r.records) / l.RecordsPerSec * 1e6)
			}
		}
		rows = append(rows, []string{after, si(float64(r.records)), size(r.RecordSize), micros(*r.P50us), micros(*r.P99us), walk})
	}
	print(b, "Reopen: closed, or left by a process that killed itself without a sync", rows)
}

// print writes title and rows, the first a heading, columns aligned right. No
// row but the heading: nothing at all.
func print(b *strings.Builder, title string, rows [][]string) {
	if len(rows) < 2 {
		return
	}
	width := make([]int, len(rows[0]))
	for _, row := range rows {
		for i, s := range row {
			width[i] = max(width[i], utf8.RuneCountInString(s))
		}
	}
	b.WriteString("\n" + title + "\n")
	for _, row := range rows {
		var line strings.Builder
		for i, s := range row {
			line.WriteString("  " + strings.Repeat(" ", width[i]-utf8.RuneCountInString(s)) + s)
		}
		b.WriteString(strings.TrimRight(line.String(), " ") + "\n")
	}
}

func si(x float64) string {
	switch {
	case x >= 999_500:
		return fmt.Sprintf("%.2fM", x/1e6)
	case x >= 9950:
		return fmt.Sprintf("%.0fk", x/1e3)
	case x >= 999.5:
		return fmt.Sprintf("%.1fk", x/1e3)
	}
	return fmt.Sprintf("%.0f", x)
}

func mbs(x float64) string {
	if x < 9.95e6 {
		return fmt.Sprintf("%.1f", x/1e6)
	}
	return fmt.Sprintf("%.0f", x/1e6)
}

func micros(us float64) string {
	switch {
	case us >= 9950:
		return fmt.Sprintf("%.0f ms", us/1e3)
	case us >= 999.5:
		return fmt.Sprintf("%.1f ms", us/1e3)
	case us >= 9.995:
		return fmt.Sprintf("%.0f µs", us)
	}
	return fmt.Sprintf("%.2f µs", us)
}
