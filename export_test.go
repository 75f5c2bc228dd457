package tidemark

import (
	"context"
	"time"
)

// Pause has the replicas of a node ask their leaders for nothing, or do so again.
func (c *Cluster) Pause(node int, on bool) {
	n := c.nodes[node]
	n.paused.Store(on)
	if f := n.life.Load(); f != nil {
		f.mu.Lock()
		defer f.mu.Unlock()
		for _, p := range f.parts {
			p.wake(crewTurn)
		}
	}
}

// NewProducerID has the coordinator give out an id, and store that now and then.
func (c *Cluster) NewProducerID() (int64, int16, error) { return c.ctl.NewProducerID() }

// Lanes is in how many partitions a producer may have something under way.
func (p *Producer) Lanes() int {
	p.mu.RLock()
	defer p.mu.RUnlock()
	return len(p.lanes)
}

// Expire has the coordinator see the sessions of all nodes end, as if the process had
// stood still.
func (c *Cluster) Expire() { c.ctl.Tick(time.Now().Add(2 * c.o.SessionTimeout)) }

// EndLease ends the lease of a node, and has its replicas hear of it.
func (c *Cluster) EndLease(node int) {
	f := c.nodes[node].life.Load()
	f.lease.Set(time.Now())
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, p := range f.parts {
		p.ring()
	}
}

// LeaderAgain waits for a leader as who was just told that the present one does not lead.
func (h *Partition) LeaderAgain(ctx context.Context) error {
	_, err := h.awaitLeader(ctx, h.leading())
	return err
}

// Stopping reports whether a stop of a node has begun.
func (c *Cluster) Stopping(node int) bool { return c.ctl.Node(int32(node)).Stopping }
