package tidemark

import (
	"sync/atomic"

	"github.com/tidemark-log/tidemark/segment"
)

// A fetcher takes the read faults of a long view ahead of the loop that reads
// it, on a goroutine of its own and through a system call, so that neither
// mapping pages nor the disk holds up the reader or a processor. A map that was
// scanned once needs none.
type fetcher struct {
	v    *segment.View
	next int // byte of the view from which ahead has something to say

	at   atomic.Int64
	wake chan struct{}
	done chan struct{}
}

const (
	fetchMin  = 1 << 20 // views shorter than this are read as they are
	fetchStep = 1 << 20
	fetchLead = 8 << 20
)

// ahead tells that the reader is at byte at of the view.
func (f *fetcher) ahead(at int) {
	if at < f.next {
		return
	}
	f.next = at + fetchStep
	if f.done == nil {
		if len(f.v.Bytes)-max(at, f.v.Fetched()) < fetchMin {
			f.next = len(f.v.Bytes)
			return
		}
		f.wake, f.done = make(chan struct{}, 1), make(chan struct{})
		go f.run(max(at, f.v.Fetched()))
	}
	f.at.Store(int64(at))
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

func (f *fetcher) run(at int) {
	defer close(f.done)
	for range f.wake {
		for at < min(int(f.at.Load())+fetchLead, len(f.v.Bytes)) {
			if f.v.Fetch(at, fetchStep) != nil {
				return
			}
			at += fetchStep
			f.v.SetFetched(min(at, len(f.v.Bytes)))
		}
		if at >= len(f.v.Bytes) {
			return
		}
	}
}

// stop waits for the goroutine: the view is about to be released.
func (f *fetcher) stop() {
	if f.done != nil {
		close(f.wake)
		<-f.done
	}
}
