// Command cmd runs the simulator of partition replication.
//
//	go run ./internal/sim/cmd -seed 1 -seeds 2000 -events 20000 -j 2
//
// It exits with 0 if no seed broke an invariant, 1 if one did, 2 for wrong usage. At
// least 500 seeds of 10,000 events with everything on must also come across every
// fault, answer and state there is: else it says what is missing, and exits with 1.
// A seed that did is run again with fewer faults, and the shortest history that
// breaks the same invariant is printed step by step.
package main

import (
	"bufio"
	"bytes"
	"flag"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tidemark-log/tidemark/internal/sim"
	"github.com/tidemark-log/tidemark/partition"
)

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

func run(args []string, out, errs io.Writer) int {
	fs := flag.NewFlagSet("sim", flag.ContinueOnError)
	fs.SetOutput(errs)
	seed := fs.Uint64("seed", 1, "first seed")
	seeds := fs.Int("seeds", 1, "how many, one after the other")
	events := fs.Int("events", 20_000, "events before the faults end")
	jobs := fs.Int("j", runtime.GOMAXPROCS(0), "runs at once")
	trace := fs.Bool("trace", false, "print each step; of one seed")
	guard := fs.String("guard", "", "switch a guard off: G1, G2, G4, G5, G6, G7 or G11")
	shrink := fs.Duration("shrink", 20*time.Second, "how long to look for a shorter history")
	without := fs.String("without", "", "features to leave out, with commas between: "+sim.AllFeatures.String())
	keep := fs.Bool("k", false, "go on after a violation")
	quiet := fs.Bool("q", false, "no table of what was covered")
	last := fs.Int("lines", 200, "lines of the shortest history that are printed")
	if err := fs.Parse(args); err != nil {
		return 2
	}
	guards, ok := Guards(*guard)
	off, known := sim.ParseFeatures(*without)
	wrong := ""
	switch {
	case fs.NArg() > 0:
		wrong = fmt.Sprintf("unexpected argument %q", fs.Arg(0))
	case !ok:
		wrong = fmt.Sprintf("-guard %s: want G1, G2, G4, G5, G6, G7 or G11", *guard)
	case !known:
		wrong = fmt.Sprintf("-without %s: want some of %v", *without, sim.AllFeatures)
	case *seeds < 1 || *jobs < 1 || *events < 1:
		wrong = fmt.Sprintf("-seeds %d, -j %d, -events %d: want at least 1 of each", *seeds, *jobs, *events)
	case *trace && *seeds > 1:
		wrong = fmt.Sprintf("-trace: is of one seed, not of -seeds %d", *seeds)
	}
	if wrong != "" {
		fmt.Fprintln(errs, "sim:", wrong)
		return 2
	}
	begin := time.Now()
	var (
		next  atomic.Int64
		stop  atomic.Bool
		wg    sync.WaitGroup
		mu    sync.Mutex
		bad   []*sim.Result
		total sim.Coverage
		ran   int
		count int64
	)
	w := bufio.NewWriter(out)
	for range min(*jobs, *seeds) {
		wg.Go(func() {
			for !stop.Load() {
				i := next.Add(1) - 1
				if i >= int64(*seeds) {
					return
				}
				o := sim.Options{Seed: *seed + uint64(i), Events: *events, Guards: guards, Without: off}
				if *trace {
					o.Trace = w
				}
				r := sim.Run(o)
				mu.Lock()
				ran++
				count += int64(r.Events)
				total.Merge(&r.Coverage)
				if r.Violation != nil {
					bad = append(bad, r)
					if !*keep {
						stop.Store(true)
					}
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	defer w.Flush()
	if !*quiet {
		total.Print(w)
	}
	took := time.Since(begin)
	fmt.Fprintf(w, "%d seeds, %d events, %v, %.1f µs an event and core\n", ran, count, took.Round(time.Millisecond),
		float64(took.Microseconds())*float64(min(*jobs, *seeds))/float64(max(count, 1)))
	if len(bad) == 0 {
		if *guard != "" || off != 0 {
			return 0
		}
		list := missing(&total, *seeds, *events)
		for _, what := range list {
			fmt.Fprintf(w, "never came up: %s\n", what)
		}
		return min(len(list), 1)
	}
	slices.SortFunc(bad, func(a, b *sim.Result) int { return int(int64(a.Seed) - int64(b.Seed)) })
	for _, r := range bad {
		fmt.Fprintf(w, "seed %d: %v\n  %s\n", r.Seed, r.Violation, r.Config)
		if r.Violation.Stack != "" {
			fmt.Fprintln(w, r.Violation.Stack)
		}
	}
	w.Flush()
	if *trace || *shrink == 0 {
		return 1
	}
	r := slices.MinFunc(bad, func(a, b *sim.Result) int { return a.Violation.Event - b.Violation.Event })
	best, short := sim.Shrink(sim.Options{Seed: r.Seed, Events: *events, Guards: guards, Without: off}, r, time.Now().Add(*shrink))
	var b bytes.Buffer
	best.Trace = &b
	sim.Run(best)
	lines := bytes.Split(bytes.TrimRight(b.Bytes(), "\n"), []byte("\n"))
	fmt.Fprintf(w, "\nshortest history found: seed %d, %d events, %d faults, without %v\n", r.Seed, short.Violation.Event, len(best.Schedule), best.Without)
	if n := len(lines); n > *last {
		fmt.Fprintf(w, "… %d lines\n", n-*last)
		lines = lines[n-*last:]
	}
	for _, l := range lines {
		fmt.Fprintf(w, "%s\n", l)
	}
	return 1
}

// missing is what a run that was long enough for it did not come across.
func missing(c *sim.Coverage, seeds, events int) []string {
	if seeds < 500 || events < 10_000 {
		return nil
	}
	return c.Missing()
}

// Guards returns the guards with one of them off; ok is false if there is no such.
func Guards(name string) (g *partition.Guards, ok bool) {
	g = &partition.Guards{}
	switch name {
	case "":
		return nil, true
	case "G1":
		g.NoG1 = true
	case "G2":
		g.NoG2 = true
	case "G4":
		g.NoG4 = true
	case "G5":
		g.NoG5 = true
	case "G6":
		g.NoG6 = true
	case "G7":
		g.NoG7 = true
	case "G11":
		g.NoG11 = true
	default:
		return nil, false
	}
	return g, true
}
