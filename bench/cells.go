package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"github.com/edsrzf/mmap-go"
	"github.com/tidemark-log/tidemark/record"
)

// partitionLog is what the cells ask of the log; *tidemark.Log has it.
type partitionLog interface {
	Append(recs ...record.Record) (base int64, err error)
	Get(offset int64, buf []byte) (record.Record, error)
	Records(from int64) iter.Seq2[record.Record, error]
	LogStartOffset() int64
	LogEndOffset() int64
	Sync() error
	Close() error
}

// An opener opens the log in dir. sync is "never" or "always".
type opener func(dir, sync string) (partitionLog, error)

// A cell is one line of the plan: what is done, to records of what size, how
// many a call, by how many writers, and with which promise.
type cell struct {
	name     string // kind[/sync]/size/xBatch[/wWriters]
	kind     string // append, scan, ...; for a bare loop its name
	acks     string // "" for a bare loop, which answers nobody
	sync     string // "never", "always"; "" where nothing is written
	replicas int
	size     int // bytes of a value
	batch    int // records a call
	writers  int
	// limits are the bare loops that do the same necessary work. The cell's share
	// is its rate over that of the fastest of them in the same round.
	limits []string
	load   *workload // of a replicated append, for what has no field here
	scheme *scheme   // of a comparison of schemes
	run    func(*bench, *cell) (sample, error)
}

func (c *cell) bare() bool { return c.acks == "" }

// A sample is one run of one cell, verified.
type sample struct {
	records int64
	elapsed time.Duration
	latency *hdrhistogram.Histogram // ns a call; nil where no call waits
}

func (s sample) rate() float64 {
	if s.elapsed <= 0 {
		return 0
	}
	return float64(s.records) / s.elapsed.Seconds()
}

// bench is what the runs of a program share.
type bench struct {
	dir      string // holds everything a run writes
	open     opener
	t        time.Duration // a cell's timed part
	capBytes int64         // at most so many bytes are written by a run

	round  int
	seq    int // of scratch names
	vals   map[int]*values
	data   map[string]dataset
	memory mmap.MMap
}

// dataset is a log made once, for the cells that read.
type dataset struct {
	dir     string
	records int64
}

func newBench(dir string, open opener, t time.Duration, capBytes int64) *bench {
	return &bench{dir: dir, open: open, t: t, capBytes: capBytes, vals: map[int]*values{}, data: map[string]dataset{}}
}

// close gives the memory back; the files go with dir.
func (b *bench) close() error {
	if b.memory == nil {
		return nil
	}
	return b.memory.Unmap()
}

func (b *bench) scratch(name string) string {
	b.seq++
	return filepath.Join(b.dir, name+"-"+strconv.Itoa(b.seq))
}

func (b *bench) values(size int) *values {
	if b.vals[size] == nil {
		b.vals[size] = newValues(size)
	}
	return b.vals[size]
}

// calls is how many appends of c fit under the cap.
func (b *bench) calls(c *cell) int64 { return max(b.capBytes/frameSize(c.batch, c.size), 1) }

func newLatency() *hdrhistogram.Histogram {
	return hdrhistogram.New(1, int64(time.Minute), 3)
}

func observe(h *hdrhistogram.Histogram, d time.Duration) {
	_ = h.RecordValue(min(max(int64(d), 1), int64(time.Minute))) // in range: no error
}

// ---- append ----

// writers runs one for each of c's writers at the same time, and says how many
// records each appended. timed: each gets a histogram for its calls.
func (b *bench) writers(c *cell, timed bool, one func(w int, vals *values, lat *hdrhistogram.Histogram, start time.Time) (acked int64, err error)) (s sample, acked []int64, err error) {
	acked = make([]int64, c.writers)
	errs := make([]error, c.writers)
	hists := make([]*hdrhistogram.Histogram, c.writers)
	vals := make([]*values, c.writers)
	for w := range c.writers {
		vals[w] = b.values(c.size)
		if w > 0 {
			vals[w] = vals[w].clone()
		}
		if timed {
			hists[w] = newLatency()
		}
	}
	runtime.GC()
	var wg sync.WaitGroup
	start := time.Now()
	for w := range c.writers {
		wg.Go(func() { acked[w], errs[w] = one(w, vals[w], hists[w], start) })
	}
	wg.Wait()
	s.elapsed = time.Since(start)
	for w := range c.writers {
		s.records += acked[w]
		if timed && w > 0 {
			hists[0].Merge(hists[w])
		}
	}
	s.latency = hists[0]
	return s, acked, errors.Join(errs...)
}

// drive appends c's records through call until c's time has passed or cap is
// reached, and says how many each writer appended. wait: the call waits for a
// disk, so each is timed.
func (b *bench) drive(c *cell, calls int64, t time.Duration, wait bool, call func([]record.Record) error) (s sample, acked []int64, err error) {
	// Looking at the clock costs as much as a small append: look once for every
	// 64 KiB or 64 calls.
	look := min(max(64<<10/frameSize(c.batch, c.size), 1), 64)
	if wait {
		look = 1
	}
	budget := max(calls/int64(c.writers), 1)
	return b.writers(c, wait, func(w int, vals *values, lat *hdrhistogram.Histogram, start time.Time) (acked int64, err error) {
		recs := make([]record.Record, c.batch)
		var seq int64
		for n := int64(0); n < budget; {
			for range min(look, budget-n) {
				for i := range recs {
					recs[i].Value = vals.at(w, seq+int64(i))
				}
				var t0 time.Time
				if wait {
					t0 = time.Now()
				}
				if err := call(recs); err != nil {
					return acked, err
				}
				if wait {
					observe(lat, time.Since(t0))
				}
				seq += int64(c.batch)
				n++
			}
			acked = seq
			if time.Since(start) >= t {
				break
			}
		}
		return acked, nil
	})
}

func runBareAppend(b *bench, c *cell) (s sample, err error) {
	l, err := b.openBare(loop(c.kind))
	if err != nil {
		return s, err
	}
	defer func() { err = errors.Join(err, b.closeBare(l)) }()
	s, acked, err := b.drive(c, b.calls(c), b.t, c.sync == "always", l.append)
	if err != nil {
		return s, err
	}
	return s, l.readBack(newChecker(b.values(c.size), c.writers), acked)
}

func runAppend(b *bench, c *cell) (s sample, err error) {
	dir := b.scratch("log")
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	l, err := b.open(dir, c.sync)
	if err != nil {
		return s, err
	}
	s, acked, err := b.drive(c, b.calls(c), b.t, c.sync == "always", func(recs []record.Record) error {
		_, err := l.Append(recs...)
		return err
	})
	if err = errors.Join(err, l.Close()); err != nil {
		return s, err
	}
	if l, err = b.open(dir, "never"); err != nil {
		return s, fmt.Errorf("reopen: %w", err)
	}
	err = readBack(l, 0, newChecker(b.values(c.size), c.writers), acked)
	return s, errors.Join(err, l.Close())
}

// readBack verifies everything in l from an offset on: offsets without a gap, and each
// writer's records whole and in order.
func readBack(l partitionLog, start int64, c *checker, acked []int64) error {
	end, next := l.LogEndOffset(), start
	for r, err := range l.Records(start) {
		if err != nil {
			return err
		}
		if r.Offset != next {
			return fmt.Errorf("verify: offset %d, want %d", r.Offset, next)
		}
		next++
		if err := c.record(r.Value); err != nil {
			return err
		}
	}
	if next != end {
		return fmt.Errorf("verify: records end at offset %d, log end offset is %d", next, end)
	}
	return c.done(acked)
}

// fill appends n calls of c's records to l, with one writer.
func (b *bench) fill(l partitionLog, c *cell, calls int64) (int64, error) {
	one := *c
	one.writers = 1
	s, _, err := b.drive(&one, calls, time.Hour, false, func(recs []record.Record) error {
		_, err := l.Append(recs...)
		return err
	})
	return s.records, err
}

// ---- scan and point reads ----

// readCalls is how many frames or batches of c the read cells read: a third of
// the cap, which by default is more than a processor's caches hold.
func (b *bench) readCalls(c *cell) int64 { return max(b.calls(c)/3, 1) }

// dataset makes c's log at its first use: written, synced, so that no
// write-back runs under a measurement, closed, and verified in full.
func (b *bench) dataset(c *cell) (dataset, error) {
	key := fmt.Sprintf("%d/%d", c.size, c.batch)
	if d, ok := b.data[key]; ok {
		return d, nil
	}
	d := dataset{dir: b.scratch("data")}
	l, err := b.open(d.dir, "never")
	if err != nil {
		return d, err
	}
	d.records, err = b.fill(l, c, b.readCalls(c))
	if err == nil {
		err = l.Sync()
	}
	if err = errors.Join(err, l.Close()); err != nil {
		return d, err
	}
	if l, err = b.open(d.dir, "never"); err != nil {
		return d, err
	}
	err = readBack(l, 0, newChecker(b.values(c.size), 1), []int64{d.records})
	if err = errors.Join(err, l.Close()); err == nil {
		b.data[key] = d
	}
	return d, err
}

// bareDataset is the same for the bare loops: a file of frames, mapped anew.
func (b *bench) bareDataset(c *cell) (m mmap.MMap, n int64, err error) {
	l, err := b.openBare(loopReady)
	if err != nil {
		return nil, 0, err
	}
	s, _, err := b.drive(c, b.readCalls(c), time.Hour, false, l.append)
	if err == nil {
		m, err = mmap.MapRegion(l.f, int(l.end.Load()), mmap.RDONLY, 0, 0)
	}
	return m, s.records, errors.Join(err, b.closeBare(l))
}

func runBareScan(b *bench, c *cell) (s sample, err error) {
	m, n, err := b.bareDataset(c)
	if err != nil {
		return s, err
	}
	defer func() { err = errors.Join(err, m.Unmap()) }()
	vals, ck := b.values(c.size), newChecker(b.values(c.size), 1)
	runtime.GC()
	start := time.Now()
	for v, err := range frameValues(m) {
		if err == nil {
			err = vals.checkStamp(0, s.records, v)
		}
		if err != nil {
			return s, err
		}
		s.records++
	}
	s.elapsed = time.Since(start)
	for v := range frameValues(m) {
		if err := ck.record(v); err != nil {
			return s, err
		}
	}
	return s, ck.done([]int64{n})
}

// runScan reads the log once from end to end: opened anew, so the page cache is
// warm and the page tables are not. Inside the clock each record's size and
// stamp are looked at; contents are compared in a second pass.
func runScan(b *bench, c *cell) (s sample, err error) {
	d, err := b.dataset(c)
	if err != nil {
		return s, err
	}
	l, err := b.open(d.dir, "never")
	if err != nil {
		return s, err
	}
	defer func() { err = errors.Join(err, l.Close()) }()
	vals := b.values(c.size)
	runtime.GC()
	start := time.Now()
	for r, err := range l.Records(0) {
		if err == nil {
			err = vals.checkStamp(0, s.records, r.Value)
		}
		if err != nil {
			return s, err
		}
		s.records++
	}
	s.elapsed = time.Since(start)
	return s, readBack(l, 0, newChecker(vals, 1), []int64{d.records})
}

// sampleEvery is how many point reads share one look at the clock and one
// comparison of contents; the others have size and stamp checked.
const sampleEvery = 16

// readAt reads the value of record i; it may use and return buf.
type readAt func(i int64, buf []byte) (value []byte, err error)

// points reads random records for c's time.
func (b *bench) points(c *cell, n int64, read readAt) (s sample, err error) {
	vals, rng := b.values(c.size), rand.New(rand.NewPCG(uint64(b.round), 2))
	buf := make([]byte, 0, c.size+256)
	// A quarter of the time first, untimed: the page tables fill.
	for _, t := range []time.Duration{b.t / 4, b.t} {
		runtime.GC()
		s = sample{latency: newLatency()}
		for start := time.Now(); ; {
			for k := range sampleEvery {
				i := rng.Int64N(n)
				var t0 time.Time
				if k == 0 {
					t0 = time.Now()
				}
				v, err := read(i, buf)
				if k == 0 {
					observe(s.latency, time.Since(t0))
				}
				if err != nil {
					return s, err
				}
				if k == 0 {
					err = vals.check(0, i, v)
				} else {
					err = vals.checkStamp(0, i, v)
				}
				if err != nil {
					return s, err
				}
			}
			s.records += sampleEvery
			if s.elapsed = time.Since(start); s.elapsed >= t {
				break
			}
		}
	}
	return s, nil
}

// firsts reads one record of every batch, in random order: each read has to
// verify its batch.
func (b *bench) firsts(c *cell, n int64, read readAt) (s sample, err error) {
	vals, rng := b.values(c.size), rand.New(rand.NewPCG(uint64(b.round), 3))
	buf := make([]byte, 0, c.size+256)
	order := rng.Perm(int(n) / c.batch)
	s.latency = newLatency()
	runtime.GC()
	start := time.Now()
	for _, k := range order {
		i := int64(k*c.batch + rng.IntN(c.batch))
		t0 := time.Now()
		v, err := read(i, buf)
		observe(s.latency, time.Since(t0))
		if err == nil {
			err = vals.check(0, i, v)
		}
		if err != nil {
			return s, err
		}
	}
	s.records, s.elapsed = int64(len(order)), time.Since(start)
	return s, nil
}

// runBarePoint has the place of every record in memory: no index search. It
// verifies what the log has to, the whole batch of a record at the first touch
// and when a batch is one record, and copies the value out.
func runBarePoint(b *bench, c *cell) (s sample, err error) {
	m, n, err := b.bareDataset(c)
	if err != nil {
		return s, err
	}
	defer func() { err = errors.Join(err, m.Unmap()) }()
	verify := c.kind == string(loopFirst) || c.batch == 1
	frame, rec := int64(frameSize(c.batch, c.size)), int64(recordHeader+c.size)
	read := func(i int64, buf []byte) ([]byte, error) {
		f := m[i/int64(c.batch)*frame:]
		if verify {
			var err error
			if f, err = checkFrame(f); err != nil {
				return nil, err
			}
		}
		v, _ := valueAt(f, record.HeaderSize+int(i%int64(c.batch)*rec))
		return append(buf[:0], v...), nil
	}
	if c.kind == string(loopFirst) {
		return b.firsts(c, n, read)
	}
	return b.points(c, n, read)
}

func runPoint(b *bench, c *cell) (s sample, err error) {
	d, err := b.dataset(c)
	if err != nil {
		return s, err
	}
	l, err := b.open(d.dir, "never")
	if err != nil {
		return s, err
	}
	defer func() { err = errors.Join(err, l.Close()) }()
	read := func(i int64, buf []byte) ([]byte, error) {
		r, err := l.Get(i, buf)
		return r.Value, err
	}
	if c.kind == "point-first" {
		return b.firsts(c, d.records, read)
	}
	if c.batch > 1 { // one read a batch: what follows finds every batch verified
		if _, err := b.firsts(c, d.records, read); err != nil {
			return s, err
		}
	}
	return b.points(c, d.records, read)
}

// ---- reopen ----

// timeOpen opens the log in dir, reads it back, and closes it.
func (b *bench) timeOpen(dir string, c *cell, n int64) (s sample, err error) {
	s = sample{records: n, latency: newLatency()}
	runtime.GC()
	start := time.Now()
	l, err := b.open(dir, "never")
	s.elapsed = time.Since(start)
	observe(s.latency, s.elapsed)
	if err != nil {
		return s, err
	}
	err = readBack(l, 0, newChecker(b.values(c.size), 1), []int64{n})
	return s, errors.Join(err, l.Close())
}

func runReopenClosed(b *bench, c *cell) (s sample, err error) {
	dir := b.scratch("closed")
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	l, err := b.open(dir, "never")
	if err != nil {
		return s, err
	}
	n, err := b.fill(l, c, b.calls(c))
	if err = errors.Join(err, l.Close()); err != nil {
		return s, err
	}
	return b.timeOpen(dir, c, n)
}

// childEnv carries a victim to the child process.
const childEnv = "TIDEMARK_BENCH_VICTIM"

// victim is what a child process does before it kills itself: append, sync
// nothing, report what was acknowledged.
type victim struct {
	Dir         string
	Size, Batch int
	Calls       int64
}

// runReopenKilled opens what a process left that was killed: every record it
// acknowledged was handed to the kernel, so every one must be there.
func runReopenKilled(b *bench, c *cell) (s sample, err error) {
	v := victim{Dir: b.scratch("killed"), Size: c.size, Batch: c.batch, Calls: b.calls(c)}
	defer func() { err = errors.Join(err, os.RemoveAll(v.Dir)) }()
	exe, err := os.Executable()
	if err != nil {
		return s, err
	}
	spec, err := json.Marshal(v)
	if err != nil {
		return s, err
	}
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), childEnv+"="+string(spec))
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if cmd.ProcessState == nil || cmd.ProcessState.ExitCode() != -1 {
		return s, fmt.Errorf("child process: want it killed, got: %v", errors.Join(err, fmt.Errorf("state %v", cmd.ProcessState)))
	}
	n, err := strconv.ParseInt(strings.TrimSpace(string(out)), 10, 64)
	if err != nil {
		return s, fmt.Errorf("child process: %w", err)
	}
	return b.timeOpen(v.Dir, c, n)
}

// runVictim is the child's side. It returns only on failure.
func runVictim(spec string, open opener, out io.Writer) error {
	var v victim
	if err := json.Unmarshal([]byte(spec), &v); err != nil {
		return fmt.Errorf("read %s: %w", childEnv, err)
	}
	l, err := open(v.Dir, "never")
	if err != nil {
		return err
	}
	b := newBench(v.Dir, open, 0, 0)
	n, err := b.fill(l, &cell{size: v.Size, batch: v.Batch}, v.Calls)
	if err != nil {
		return err
	}
	if _, err := fmt.Fprintln(out, n); err != nil {
		return err
	}
	self, err := os.FindProcess(os.Getpid())
	if err != nil {
		return err
	}
	if err := self.Kill(); err != nil {
		return err
	}
	time.Sleep(time.Minute) // the kill is on its way
	return errors.New("still alive a minute after the kill")
}
