// Command bench measures what this machine can do at most, then what
// replicated partitions and the log under them do, and prints each figure beside
// the bare loop that does the same necessary work.
//
//	go run ./bench                 appends per acks mode, then the log of 1 KiB records, in under a minute
//	go run ./bench -plan log       one log, all record sizes
//	go run ./bench -acks all -sync always -producers 1,4,16 -t 1s
//	go run ./bench -acks 1,all -batch 100 -inflight 5 -idempotent -codec lz4
//	go run ./bench -acks all -batch 1 -producers 4 -rate 20000 -t 5s
//	go run ./bench -scheme isr,quorum
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
	"maps"
	"os"
	"os/signal"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/tidemark-log/tidemark"
	"github.com/tidemark-log/tidemark/record"
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
	plan     string // "all", "acks", "log"
	load     workload
	schemes  []string
	slow     time.Duration
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
	usage := fs.PrintDefaults
	fs.Usage = func() {} // a wrong flag is named, not buried under all the others
	cfg := config{load: defaultWorkload()}
	w := &cfg.load
	fs.StringVar(&cfg.dir, "dir", "", "`directory` on the file system to measure; a folder is made in it and removed (default: the current one)")
	fs.DurationVar(&cfg.t, "t", 60*time.Millisecond, "timed part of each cell")
	fs.IntVar(&cfg.rounds, "rounds", 3, "rounds; each measures every cell once")
	fs.DurationVar(&cfg.budget, "max", 45*time.Second, "start no round that would not end within this `time`; the first always runs")
	fs.Int64Var(&cfg.capMiB, "cap", 128, "`MiB` a cell may write, into all replicas together")
	fs.StringVar(&cfg.plan, "plan", "all", "what to measure: `acks` (replicated appends), log (one log), all (both, the log with records of 1 KiB); a flag below chooses acks")
	list(fs, "acks", "`modes` of acknowledgement: 0, 1, all", &w.acks, oneOf(acksOf))
	list(fs, "sync", "when an append counts as kept, `modes`: never, interval, always", &w.syncs, oneOf(syncOf))
	list(fs, "replicas", "`numbers` of replicas", &w.replicas, number(1, 9))
	list(fs, "size", "`sizes` of a value in bytes", &w.sizes, number(stampBytes, maxValue))
	list(fs, "batch", "`numbers` of records in a call", &w.batches, number(1, maxBatch))
	list(fs, "producers", "`numbers` of producers", &w.producers, number(1, 1000))
	fs.IntVar(&w.inflight, "inflight", w.inflight, "appends a producer has under way; with -idempotent at most 5")
	fs.BoolVar(&w.idem, "idempotent", false, "producers with an id and sequence numbers")
	fs.Func("codec", "compress batches: none, gzip, snappy, lz4, `zstd`", func(s string) (err error) {
		w.codec, err = record.ParseCodec(s)
		return err
	})
	fs.IntVar(&w.rate, "rate", 0, "records a `second`, of all producers together, latencies counted from when each was due; 0: as fast as it goes")
	list(fs, "scheme", "compare `schemes` of replication, one replica being slow: isr, quorum", &cfg.schemes, oneOf(schemes))
	fs.DurationVar(&cfg.slow, "slow", 20*time.Millisecond, "with -scheme: how much longer each sync of the slow replica takes")
	fs.BoolVar(&cfg.quick, "quick", false, "one round of 1 KiB records, 48 MiB and 20ms a cell, where not said otherwise")
	fs.Func("run", "run only the cells whose name matches `regexp`, and the bare loops of their shares", func(s string) (err error) {
		cfg.run, err = regexp.Compile(s)
		return err
	})
	fs.StringVar(&cfg.jsonFile, "json", "", "write the results to `file` as JSON")
	if err := fs.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			usage()
		}
		return cfg, err
	}
	set := map[string]bool{}
	fs.Visit(func(f *flag.Flag) { set[f.Name] = true })
	var asked string // the first flag of replicated appends
	for _, name := range workloadFlags {
		if set[name] && asked == "" {
			asked = name
		}
	}
	if asked != "" && !set["plan"] {
		cfg.plan = "acks"
	}
	if cfg.quick {
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
	case cfg.budget < 0:
		err = fmt.Errorf("-max %v: want at least 0", cfg.budget)
	case cfg.rounds < 1:
		err = fmt.Errorf("-rounds %d: want at least 1", cfg.rounds)
	case !slices.Contains([]string{"all", "acks", "log"}, cfg.plan):
		err = fmt.Errorf("-plan %s: want all, acks or log", cfg.plan)
	case cfg.schemes != nil && (asked != "" || set["plan"]):
		err = fmt.Errorf("-scheme: has a plan of its own, without -%s", cmp.Or(asked, "plan"))
	case asked != "" && cfg.plan == "log":
		err = fmt.Errorf("-%s: is of replicated appends, which -plan log leaves out", asked)
	case set["slow"] && cfg.schemes == nil:
		err = errors.New("-slow: wants -scheme")
	case w.inflight < 1 || w.inflight > 1000 || w.idem && w.inflight > 5:
		err = fmt.Errorf("-inflight %d: want 1 to 1000, with -idempotent to 5", w.inflight)
	case cfg.slow < time.Millisecond || cfg.slow > 10*time.Second:
		err = fmt.Errorf("-slow %v: want 1ms to 10s", cfg.slow)
	case w.rate > 0 && w.inflight > 1:
		err = errors.New("-rate: wants -inflight 1: with more an ack is looked at only after as many more sends")
	case w.rate < 0:
		err = fmt.Errorf("-rate %d: want at least 0", w.rate)
	case cfg.capMiB < 1 || cfg.capMiB > 1<<20:
		err = fmt.Errorf("-cap %d: want 1 to %d MiB", cfg.capMiB, 1<<20)
	}
	if err != nil {
		fmt.Fprintln(errw, "bench:", err)
	}
	return cfg, err
}

// workloadFlags are those of replicated appends.
var workloadFlags = []string{"acks", "sync", "replicas", "size", "batch", "producers", "inflight", "idempotent", "codec", "rate"}

// list adds a flag whose value is a list, separated by commas.
func list[T any](fs *flag.FlagSet, name, usage string, to *[]T, parse func(string) (T, error)) {
	fs.Func(name, usage+", separated by commas", func(s string) error {
		*to = nil
		for f := range strings.SplitSeq(s, ",") {
			v, err := parse(strings.TrimSpace(f))
			if err != nil {
				return err
			}
			*to = append(*to, v)
		}
		return nil
	})
}

func oneOf[V any](known map[string]V) func(string) (string, error) {
	return func(s string) (string, error) {
		if _, ok := known[s]; !ok {
			return "", fmt.Errorf("%q: want one of %s", s, strings.Join(slices.Sorted(maps.Keys(known)), ", "))
		}
		return s, nil
	}
}

func number(lo, hi int) func(string) (int, error) {
	return func(s string) (int, error) {
		n, err := strconv.Atoi(s)
		if err != nil || n < lo || n > hi {
			return 0, fmt.Errorf("%q: want a number from %d to %d", s, lo, hi)
		}
		return n, nil
	}
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
				for _, lp := range []loop{loopInline, loopZeros, loopAhead, loopPwrite} {
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

// cells lists what the flags ask for.
func (cfg *config) cells() (cells []*cell) {
	if cfg.schemes != nil {
		return schemeCells(cfg.schemes, cfg.slow)
	}
	if cfg.plan != "log" {
		cells = cfg.load.cells()
	}
	if cfg.plan != "acks" {
		cells = append(cells, plan(cfg.quick || cfg.plan == "all")...)
	}
	// A loop of both plans runs once.
	known := map[string]bool{}
	return slices.DeleteFunc(cells, func(c *cell) bool {
		again := known[c.name]
		known[c.name] = true
		return again
	})
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
	cells := choose(cfg.cells(), cfg.run)
	if len(cells) == 0 {
		return fmt.Errorf("-run %v: no such cell", cfg.run)
	}
	if cfg.jsonFile != "" { // found out now, not after a minute
		_, missing := os.Stat(cfg.jsonFile)
		f, err := os.OpenFile(cfg.jsonFile, os.O_WRONLY|os.O_CREATE, 0o644)
		if err != nil {
			return err
		}
		f.Close()
		if missing != nil {
			os.Remove(cfg.jsonFile)
		}
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
				return fmt.Errorf("interrupted: %w", err)
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
