package tidemark

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// clock tells the wall clock in milliseconds, for appends that come by the
// million a second. A reading costs some 30 to 60 ns; the processor's cycle
// counter costs a few and is enough to tell that hardly any time has passed.
type clock struct {
	// ms is stored before cycles, and both under mu: who sees cycles sees its ms,
	// or a later one.
	cycles atomic.Uint64
	ms     atomic.Int64
	mu     sync.Mutex
}

// fresh is how many cycles a reading is used for: below 0.3 ms at 1 GHz and more.
const fresh = 1 << 18

// now is at most a fraction of a millisecond old.
func (c *clock) now() int64 {
	n := cycles()
	if n-c.cycles.Load() < fresh && n != 0 { // a counter that went back is far ahead
		return c.ms.Load()
	}
	if n == 0 || !c.mu.TryLock() {
		return time.Now().UnixMilli()
	}
	defer c.mu.Unlock()
	n = cycles()
	ms := time.Now().UnixMilli()
	c.ms.Store(ms)
	c.cycles.Store(n)
	return ms
}

func outOfRange(offset, start, end int64) error {
	return fmt.Errorf("read at offset %d: %w: %d to %d", offset, ErrOutOfRange, start, end)
}
