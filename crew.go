package tidemark

import (
	"sync"
	"sync/atomic"
)

// A crew runs the background work of one log, or of all logs of a folder, on a
// bounded number of goroutines. They come with the work and end with it: logs
// that have none cost no goroutine.
type crew struct {
	mu      sync.Mutex
	stopped sync.Cond // a task that was being stopped has returned
	idle    int       // goroutines that may still be started
	worker  func()    // work; a go statement with a receiver would allocate
	first   *task     // queue, oldest first
	last    *task
}

func newCrew(most int) *crew {
	c := &crew{idle: most}
	c.stopped.L = &c.mu
	c.worker = c.work
	return c
}

// A task is one kind of work of one log. It never runs twice at a time.
type task struct {
	run    func()
	wanted atomic.Bool // since it was last begun

	// Guarded by crew.mu.
	next                     *task
	queued, running, stopped bool
}

// do has t run soon: once more after now, however often it is called until then.
// It does not wait.
func (c *crew) do(t *task) {
	if t.wanted.Load() || t.wanted.Swap(true) {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if t.running || t.queued || t.stopped {
		return // who runs it looks again
	}
	c.pushLocked(t)
	if c.idle > 0 {
		c.idle--
		go c.worker()
	}
}

func (c *crew) pushLocked(t *task) {
	t.queued, t.next = true, nil
	if c.first == nil {
		c.first = t
	} else {
		c.last.next = t
	}
	c.last = t
}

// growStack grows the goroutine's stack to what its work needs while there is nothing
// on it. Workers are young, and by and by it would be copied several times.
//
//go:noinline
func growStack(i int) byte {
	var room [10 << 10]byte
	return room[i]
}

func (c *crew) work() {
	growStack(0)
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.first != nil {
		t := c.first
		c.first = t.next
		t.next, t.queued = nil, false
		if t.stopped {
			continue
		}
		t.running = true
		c.mu.Unlock()
		t.wanted.Store(false)
		t.run()
		c.mu.Lock()
		t.running = false
		if t.stopped {
			c.stopped.Broadcast()
		} else if t.wanted.Load() && !t.queued {
			c.pushLocked(t) // behind the others
		}
	}
	c.idle++
}

// stop returns once t does not run and never will again.
func (c *crew) stop(t *task) {
	c.mu.Lock()
	defer c.mu.Unlock()
	t.stopped = true
	for t.running {
		c.stopped.Wait()
	}
}
