package main

import (
	"cmp"
	"io"
	"runtime"
	"slices"
	"sync"

	"github.com/spf13/cobra"
)

// jobsFlag adds the flag that says how many partitions are read at once.
func jobsFlag(c *cobra.Command, jobs *int) {
	c.Flags().IntVar(jobs, "jobs", min(runtime.GOMAXPROCS(0), 16), "partitions to read at once")
}

// inOrder calls work for the numbers below n, several at once, and done with
// each result, one at a time and in order. It returns when all are done.
func inOrder[T any](n, jobs int, work func(i int) T, done func(i int, result T)) {
	jobs = max(1, min(jobs, n))
	if jobs == 1 {
		for i := range n {
			done(i, work(i))
		}
		return
	}
	var mu sync.Mutex // guards what follows
	next, finished := 0, map[int]T{}
	ready := sync.NewCond(&mu)
	for range jobs {
		go func() {
			mu.Lock()
			defer mu.Unlock()
			for next < n {
				i := next
				next++
				mu.Unlock()
				r := work(i)
				mu.Lock()
				finished[i] = r
				ready.Broadcast()
			}
		}()
	}
	for i := range n {
		mu.Lock()
		r, ok := finished[i]
		for ; !ok; r, ok = finished[i] {
			ready.Wait()
		}
		delete(finished, i)
		mu.Unlock()
		done(i, r)
	}
}

// fork returns the surroundings of one job of several: what it prints comes out
// in order. It ends with join, in the order of the jobs.
func (e *env) fork(order *sequence, job int) *env {
	f := *e
	f.damaged, f.unreadable = false, false
	f.out = &output{w: order.writer(job, e.out.w), json: e.out.json, size: 4 << 10}
	f.stderr = order.writer(job, e.stderr)
	return &f
}

// join takes over what happened in a job and gives the turn to the next.
func (e *env) join(f *env, order *sequence, job int) {
	e.damaged = e.damaged || f.damaged
	e.unreadable = e.unreadable || f.unreadable
	e.out.flush()
	e.out.err = cmp.Or(e.out.err, f.out.err)
	order.end(job)
}

// sequence puts what numbered jobs write into the order of their numbers. The
// job whose turn it is writes through; the others' bytes are kept, all together
// at most limit of them (and one write more of each): then they wait for their
// turn.
type sequence struct {
	limit int

	mu    sync.Mutex // guards what follows, and the writers behind it
	moved *sync.Cond // turn or kept has changed
	turn  int
	kept  int // bytes
	jobs  map[int][]*sequenced
}

func newSequence(limit int) *sequence {
	s := &sequence{limit: limit, jobs: map[int][]*sequenced{}}
	s.moved = sync.NewCond(&s.mu)
	return s
}

// A sequenced writer belongs to one job.
type sequenced struct {
	s    *sequence
	job  int
	w    io.Writer
	kept []byte
	err  error // of w
}

// writer returns what the job is to write to in place of w.
func (s *sequence) writer(job int, w io.Writer) io.Writer {
	s.mu.Lock()
	defer s.mu.Unlock()
	q := &sequenced{s: s, job: job, w: w}
	s.jobs[job] = append(s.jobs[job], q)
	return q
}

func (q *sequenced) Write(p []byte) (int, error) {
	s := q.s
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.turn != q.job && s.kept >= s.limit {
		s.moved.Wait()
	}
	if s.turn != q.job {
		q.kept = append(q.kept, p...)
		s.kept += len(p)
		return len(p), nil
	}
	q.flushLocked()
	if q.err == nil {
		_, q.err = q.w.Write(p)
	}
	return len(p), q.err
}

// flushLocked writes what was kept. Caller holds s.mu.
func (q *sequenced) flushLocked() {
	if len(q.kept) > 0 && q.err == nil {
		_, q.err = q.w.Write(q.kept)
	}
	q.s.kept -= len(q.kept)
	q.kept = nil
}

// end finishes the job whose turn it is, which writes no more, and gives the
// turn to the next.
func (s *sequence) end(job int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, q := range s.jobs[job] {
		q.flushLocked()
	}
	delete(s.jobs, job)
	s.turn = job + 1
	for _, q := range slices.Clone(s.jobs[s.turn]) {
		q.flushLocked()
	}
	s.moved.Broadcast()
}
