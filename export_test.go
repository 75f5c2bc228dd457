package tidemark

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
func (c *Cluster) NewProducerID() (int64, int16) { return c.ctl.NewProducerID() }

// Lanes is in how many partitions a producer may have something under way.
func (p *Producer) Lanes() int {
	p.mu.RLock()
	defer p.mu.RUnlock()
	return len(p.lanes)
}
