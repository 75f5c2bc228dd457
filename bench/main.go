// Command bench measures what this machine can do at most, then what the log
// does, and prints each figure beside the bare loop that does the same
// necessary work.
//
//	go run ./bench                 the whole table, in under a minute
//	go run ./bench -quick          one round, 1 KiB records
//	go run ./bench -run always -t 1s -rounds 9 -max 1h -json out.json
//
// Loops and log take turns: in every round each is measured once, and a share
// is the median of the shares of single rounds, so that a machine that slows
// down for a while slows down both. Every run is read back; a missing, repeated
// or altered record is an error and exit status 1, never a number. See
// docs/benchmarks.md for the method.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"regexp"
	"slices"
	"strconv"
	"syscall"
	"time"

	"github.com/tidemark-log/tidemark"
	"golang.org/x/term"
)

// config is what the flags say.
type config struct {
	dir      string
	t        time.Duration
	rounds   int
	budget   time.Duration
	capMiB   int64
	quick    bool
	run      *regexp.Regexp
	jsonFile string
	progress io.Writer // nil: none
}

func main() {
	if spec := os.Getenv(childEnv); spec != "" {
		fmt.Fprintln(os.Stderr, "bench:", runVictim(spec, openLog, os.Stdout))
		os.Exit(1)
	}
	cfg, err := parseFlags(os.Args[1:], os.Stderr)
	if errors.Is(err, flag.ErrHelp) {
		return
	}
	if err != nil {
		os.Exit(2)
	}
	if term.IsTerminal(int(os.Stderr.Fd())) {
		cfg.progress = os.Stderr
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, cfg, openLog, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// parseFlags reports a bad flag on errw itself.
func parseFlags(args []string, errw io.Writer) (config, error) {
	fs := flag.NewFlagSet("bench", flag.ContinueOnError)
	fs.SetOutput(errw)
	var cfg config
	fs.StringVar(&cfg.dir, "dir", "", "`directory` on the file system to measure; a folder is made in it and removed (default: the current one)")
	fs.DurationVar(&cfg.t, "t", 30*time.Millisecond, "timed part of each cell")
	fs.IntVar(&cfg.rounds, "rounds", 3, "rounds; each measures every cell once")
	fs.DurationVar(&cfg.budget, "max", 35*time.Second, "start no round that would not end within this `time`; the first always runs")
	fs.Int64Var(&cfg.capMiB, "cap", 128, "`MiB` a cell may write")
	fs.BoolVar(&cfg.quick, "quick", false, "one round of 1 KiB records, 48 MiB and 20ms a cell, where not said otherwise")
	fs.Func("run", "run only the cells whose name matches `regexp`, and the bare loops of their shares", func(s string) (err error) {
		cfg.run, err = regexp.Compile(s)
		return err
	})
	fs.StringVar(&cfg.jsonFile, "json", "", "write the results to `file` as JSON")
	if err := fs.Parse(args); err != nil {
		return cfg, err
	}
	if cfg.quick {
		set := map[string]bool{}
		fs.Visit(func(f *flag.Flag) { set[f.Name] = true })
		if !set["t"] {
			cfg.t = 20 * time.Millisecond
		}
		if !set["rounds"] {
			cfg.rounds = 1
		}
		if !set["cap"] {
			cfg.capMiB = 48
		}
	}
	var err error
	switch {
	case fs.NArg() > 0:
		err = fmt.Errorf("unexpected argument %q", fs.Arg(0))
	case cfg.t <= 0:
		err = fmt.Errorf("-t %v: want more than 0", cfg.t)
	case cfg.rounds < 1:
		err = fmt.Errorf("-rounds %d: want at least 1", cfg.rounds)
	case cfg.capMiB < 1 || cfg.capMiB > 1<<20:
		err = fmt.Errorf("-cap %d: want 1 to %d MiB", cfg.capMiB, 1<<20)
	}
	if err != nil {
		fmt.Fprintln(errw, "bench:", err)
	}
	return cfg, err
}

// openLog opens the log as its users would, but for the two sizes that the
// plan dictates.
func openLog(dir, sync string) (partitionLog, error) {
	opts := tidemark.Options{Sync: tidemark.Never, SegmentBytes: segmentBytes, MaxBatchBytes: 2 * maxFrame}
	if sync == "always" {
		opts.Sync = tidemark.Always
	}
	l, err := tidemark.Open(dir, opts)
	if err != nil {
		return nil, err
	}
	return l, nil
}

const (
	segmentBytes = 64 << 20 // cells roll inside the clock
	maxBatch     = 100
	maxValue     = 16 << 10
)

// maxFrame is the largest frame of the plan in bytes.
const maxFrame = 61 + maxBatch*(recordHeader+maxValue)

// plan lists the cells in the order of a round: before each cell of the log the
// bare loops its share is taken against, so that the two run next to each other.
func plan(quick bool) []*cell {
	sizes := []int{100, 1 << 10, maxValue}
	if quick {
		sizes = []int{1 << 10}
	}
	var cells []*cell
	name := func(kind, sync string, size, batch, writers int) string {
		s := kind
		if sync != "" {
			s += "/" + sync
		}
		s += fmt.Sprintf("/%s/x%d", sizeName(size), batch)
		if writers > 0 {
			s += fmt.Sprintf("/w%d", writers)
		}
		return s
	}
	bare := func(lp loop, sync string, size, batch, writers int, run func(*bench, *cell) (sample, error)) string {
		c := &cell{name: name("limit/"+string(lp), "", size, batch, writers), kind: string(lp), sync: sync,
			size: size, batch: batch, writers: max(writers, 1), run: run}
		cells = append(cells, c)
		return c.name
	}
	log := func(kind, sync string, size, batch, writers int, run func(*bench, *cell) (sample, error), limits ...string) {
		// acks and replicas: one log, alone.
		cells = append(cells, &cell{name: name(kind, sync, size, batch, writers), kind: kind, acks: "1", sync: sync, replicas: 1,
			size: size, batch: batch, writers: max(writers, 1), limits: limits, run: run})
	}
	for _, size := range sizes {
		for _, batch := range []int{1, maxBatch} {
			for _, writers := range []int{1, 16} {
				if writers == 1 {
					bare(loopMemory, "", size, batch, writers, runBareAppend)
					bare(loopReady, "never", size, batch, writers, runBareAppend)
				}
				var fresh []string
				for _, lp := range []loop{loopInline, loopAhead, loopPwrite} {
					fresh = append(fresh, bare(lp, "never", size, batch, writers, runBareAppend))
				}
				log("append", "never", size, batch, writers, runAppend, fresh...)
				log("append", "always", size, batch, writers, runAppend,
					bare(loopSync, "always", size, batch, writers, runBareAppend))
			}
		}
	}
	for _, size := range sizes {
		for _, batch := range []int{1, maxBatch} {
			log("scan", "", size, batch, 0, runScan, bare(loopScan, "", size, batch, 0, runBareScan))
			log("point", "", size, batch, 0, runPoint, bare(loopPoint, "", size, batch, 0, runBarePoint))
			if batch > 1 {
				log("point-first", "", size, batch, 0, runPoint, bare(loopFirst, "", size, batch, 0, runBarePoint))
			}
		}
	}
	log("reopen-closed", "", 1<<10, maxBatch, 0, runReopenClosed)
	log("reopen-killed", "", 1<<10, maxBatch, 0, runReopenKilled)
	return cells
}

// choose keeps the cells that re matches and the loops their shares need.
func choose(cells []*cell, re *regexp.Regexp) []*cell {
	if re == nil {
		return cells
	}
	want := map[string]bool{}
	for _, c := range cells {
		if re.MatchString(c.name) {
			want[c.name] = true
			for _, l := range c.limits {
				want[l] = true
			}
		}
	}
	return slices.DeleteFunc(cells, func(c *cell) bool { return !want[c.name] })
}

// run measures and prints. Its error is one of set-up, of a cell, or of ctx; a
// cell's does not keep the others from being printed.
func run(ctx context.Context, cfg config, open opener, w io.Writer) (err error) {
	cells := choose(plan(cfg.quick), cfg.run)
	if len(cells) == 0 {
		return fmt.Errorf("-run %v: no such cell", cfg.run)
	}
	dir, err := os.MkdirTemp(cmp.Or(cfg.dir, "."), "tidemark-bench-")
	if err != nil {
		return err
	}
	b := newBench(dir, open, cfg.t, cfg.capMiB<<20)
	defer func() { err = errors.Join(err, b.close(), os.RemoveAll(dir)) }()

	env := environment(dir)
	start := time.Now()
	if err := b.warm(); err != nil {
		return err
	}
	m := newMeasured()
	for b.round = 0; b.round < cfg.rounds; b.round++ {
		took := time.Since(start)
		if b.round > 0 && took+took/time.Duration(b.round) > cfg.budget {
			break
		}
		order := slices.Clone(cells)
		if b.round%2 == 1 { // a loop that ran before its cell runs after it
			slices.Reverse(order)
		}
		for i, c := range order {
			if cfg.progress != nil {
				fmt.Fprintf(cfg.progress, "\r\x1b[Kround %d of %d, cell %d of %d: %s", b.round+1, cfg.rounds, i+1, len(order), c.name)
			}
			if err := ctx.Err(); err != nil {
				return err
			}
			if m.failed[c.name] == nil {
				s, err := c.run(b, c)
				m.add(c.name, s, err)
			}
		}
	}
	if cfg.progress != nil {
		fmt.Fprint(cfg.progress, "\r\x1b[K")
	}
	env.Rounds, env.CellMS, env.CapMiB = b.round, float64(cfg.t)/1e6, cfg.capMiB
	rep := newReport(env, cells, m)
	if err := rep.text(w); err != nil {
		return err
	}
	if cfg.jsonFile != "" {
		if err := rep.writeJSON(cfg.jsonFile); err != nil {
			return err
		}
	}
	return m.err(cells)
}

// warm touches as much page cache as a round uses: on a fresh virtual machine
// the first use of a page costs the host a page of its own, several times what
// anything here measures.
func (b *bench) warm() error {
	f, err := os.Create(b.scratch("warm"))
	if err != nil {
		return err
	}
	buf := make([]byte, 1<<20)
	for n := int64(0); n < 2*b.capBytes && err == nil; n += int64(len(buf)) {
		_, err = f.Write(buf)
	}
	return errors.Join(err, f.Close(), os.Remove(f.Name()))
}

func sizeName(n int) string {
	if n >= 1<<10 {
		return strconv.Itoa(n>>10) + "KiB"
	}
	return strconv.Itoa(n) + "B"
}
