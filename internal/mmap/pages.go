package mmap

import (
	"sync"
	"time"
)

// LargePage is the size of a large page where it matters, and how much is
// populated between two choices, in bytes.
const LargePage = 2 << 20

// costs is what populating lately cost in this process.
var costs pageCosts

// pageCosts chooses between small and large pages by what they cost. Large ones
// take half the time where the memory for them is at hand, and ten times as long
// where it is not: in a virtual machine whose host takes unused memory back they
// come from exactly the blocks that are gone, and elsewhere from compaction.
type pageCosts struct {
	mu   sync.Mutex
	cost [2]float64 // ns a KiB of small and of large pages; 0: not known
}

// large reports whether large pages are to be tried next.
func (p *pageCosts) large() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.cost[1] <= p.cost[0]
}

// add takes in what n bytes cost. The other size seems a little cheaper each
// time it is not tried, until it is: after some 230 steps at ten times the cost,
// which makes its trials a few percent of the whole.
func (p *pageCosts) add(large bool, n int64, d time.Duration) {
	c := max(float64(d.Nanoseconds()), 1) / (float64(n) / 1024)
	i := 0
	if large {
		i = 1
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cost[i] == 0 {
		p.cost[i] = c
	}
	p.cost[i] += (c - p.cost[i]) / 2
	p.cost[1-i] *= 0.99
}

// Values of Mapping.pages.
const (
	pagesUnset = iota // as the kernel has it
	pagesSmall
	pagesLarge
)

// Huge lets Populate use large pages where the file system has them and while
// they are cheaper than small ones.
func (m *Mapping) Huge() { m.pages.CompareAndSwap(pagesUnset, pagesSmall) }

// choose advises the kernel of the pages to use from start on.
func (m *Mapping) choose(start int64) (large bool) {
	large = costs.large()
	want := int32(pagesSmall)
	if large {
		want = pagesLarge
	}
	if m.pages.Swap(want) != want {
		_ = huge(m.data[start:], large) // a hint
	}
	return large
}
