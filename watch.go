package tidemark

import (
	"context"
	"iter"
	"slices"

	"github.com/tidemark-log/tidemark/isr"
	"github.com/tidemark-log/tidemark/partition"
)

// Changes is what moved in a partition.
type Changes uint8

const (
	ChangedHW     Changes = 1 << iota // the high watermark
	ChangedISR                        // who is in sync
	ChangedLeader                     // who leads, in which epoch, or whether it serves
)

const changedAll = ChangedHW | ChangedISR | ChangedLeader

func changeOf(m isr.Moved) (c Changes) {
	if m&isr.MovedHW != 0 {
		c |= ChangedHW
	}
	if m&isr.MovedISR != 0 {
		c |= ChangedISR
	}
	if m&(isr.MovedLeader|isr.MovedRole) != 0 {
		c |= ChangedLeader
	}
	return c
}

// A watcher is woken when something moves; what moves before it looks counts once.
type watcher struct {
	h    *Partition
	what Changes
	ch   chan struct{} // one slot
}

func (h *Partition) watcher(what Changes) *watcher {
	w := &watcher{h: h, what: what, ch: make(chan struct{}, 1)}
	h.watch.mu.Lock()
	defer h.watch.mu.Unlock()
	h.watch.list = append(h.watch.list, w)
	h.watch.n.Store(int32(len(h.watch.list)))
	return w
}

func (w *watcher) stop() {
	s := &w.h.watch
	s.mu.Lock()
	defer s.mu.Unlock()
	s.list = slices.DeleteFunc(s.list, func(x *watcher) bool { return x == w })
	s.n.Store(int32(len(s.list)))
}

// moved wakes who watches. It never blocks.
func (h *Partition) moved(what Changes) {
	if h.watch.n.Load() == 0 {
		return
	}
	h.watch.mu.Lock()
	defer h.watch.mu.Unlock()
	for _, w := range h.watch.list {
		if w.what&what != 0 {
			select {
			case w.ch <- struct{}{}:
			default:
			}
		}
	}
}

// PartitionState is who leads a partition and who is in sync.
type PartitionState struct {
	Leader        int // node id, −1 if nobody leads
	LeaderEpoch   int32
	ISR           []int // node ids
	HighWatermark int64 // −1 if no leader serves
}

// State is the partition's as it is now; after its topic was deleted, as it was last.
func (h *Partition) State() PartitionState {
	s := PartitionState{Leader: -1, LeaderEpoch: -1, HighWatermark: -1}
	if r := h.record.Load(); r != nil {
		s.Leader, s.LeaderEpoch, s.ISR = int(r.Leader), r.LeaderEpoch, nodesOf(r.ISR)
	}
	if hw, err := h.HighWatermark(); err == nil {
		s.HighWatermark = hw
	}
	return s
}

func nodesOf(list []partition.Member) (ids []int) {
	for _, m := range list {
		ids = append(ids, int(m.Node))
	}
	return ids
}

// Subscribe yields the state of the partition now and again after something of what
// is named has changed, until ctx ends, the topic is deleted or the cluster closed. A
// slow loop holds nobody up: it gets the newest state, not each.
func (h *Partition) Subscribe(ctx context.Context, what Changes) iter.Seq[PartitionState] {
	return func(yield func(PartitionState) bool) {
		w := h.watcher(what)
		defer w.stop()
		for h.err() == nil && yield(h.State()) {
			select {
			case <-w.ch:
			case <-ctx.Done():
				return
			}
		}
	}
}

// ReplicaStats are of one replica of a partition.
type ReplicaStats struct {
	Node      int
	Up        bool // the rest is zero if not, but for NotMade and Err
	Role      string
	InISR     bool
	Lag       int64 // offsets behind the leader, as it knows; −1 if it does not
	Log       Stats
	Held      bool  // what lies above the high watermark waits for a verdict
	Cut       int64 // records that verdicts of leaders cut
	Refetched int64 // records dropped to be copied again
	Adopted   int64
	Copied    int64 // records
	NotMade   int64 // times that its log could not be made or opened; it is tried again
	Err       error // why the log takes nothing any more, or could not be made
}

// PartitionStats are of a partition over all of its replicas.
type PartitionStats struct {
	PartitionState
	MinISR   int
	ELR      []int // nodes out of sync that have everything committed all the same
	Waiters  int   // appends that wait for their acks
	Leading  isr.Counters
	Replicas []ReplicaStats
}

// Stats returns a snapshot.
func (h *Partition) Stats() PartitionStats {
	s := PartitionStats{PartitionState: h.State()}
	r := h.record.Load()
	if r == nil {
		return s
	}
	s.MinISR, s.ELR = int(r.MinISR), nodesOf(r.ELR)
	var lead isr.Status
	if p := h.leading(); p != nil {
		lead = p.p.Status()
		s.Waiters, s.Leading = lead.Waiters, lead.Counters
	}
	for _, id := range r.Replicas {
		x := ReplicaStats{Node: int(id), Lag: -1}
		_, x.InISR = partition.Find(r.ISR, id)
		if p := h.parts[id].Load(); p != nil {
			st, f := p.p.Status(), p.fetcher.State()
			x.Up, x.Role, x.Log, x.Held, x.Err = true, st.Role.String(), p.log.log.Stats(), f.Held, p.log.log.Err()
			if d := p.log.log.Damage(); d != nil && x.Err == nil {
				x.Err = d
			}
			x.Cut, x.Refetched, x.Adopted, x.Copied = f.CutRecords, f.RefetchedRecords, f.AdoptedRecords, f.Appended
		}
		if m := h.missing[id].Load(); m != nil {
			if x.NotMade = m.times; !x.Up && h.c.nodes[id].Up() {
				x.Err = m.err
			}
		}
		for _, f := range lead.Followers {
			if f.Node == id && f.LEO >= 0 {
				x.Lag = lead.LEO - f.LEO
			}
		}
		if id == r.Leader {
			x.Lag = 0
		}
		s.Replicas = append(s.Replicas, x)
	}
	return s
}
