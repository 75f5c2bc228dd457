package isr

import (
	"cmp"
	"slices"

	"github.com/tidemark-log/tidemark/partition"
)

// A wish is what a step wants of a record, beside what the state of the nodes
// asks for.
type wish struct {
	isr    []partition.Member // the ISR proposed by the leader (A8); nil: the present one
	leader int32              // who shall lead if it may (A14); None: nobody in particular
	refuse int32              // whose entry is lost: it declined (R24), or its log has no evidence (R4); None: nobody
}

var noWish = wish{leader: partition.None, refuse: partition.None}

// decide returns the record that follows r, with the nodes as they are now, or
// nil if r stands. It is the only place where members enter and leave the lists
// and where leaders are chosen: A11, A12, R3, R4, R20 to R22 and R24.
//
// Every entry of r is judged once:
//
//	stays   of this life, its node up, and not on its way out
//	left    of this life, or of one it was carried over from: still complete
//	lost    anything else: void by a registration after which nobody can vouch
//	        for the log, or declined
//
// Whoever stays is the ISR, if one of them may lead. Else the ISR is empty and all
// that is complete goes to the ELR, from which somebody live leads alone.
func (c *Controller) decide(p *partState, w wish) *partition.Record {
	r := p.rec
	lead, minISR := r.Leader, r.MinISR
	if w.leader != partition.None {
		lead = w.leader
	}
	wanted := w.isr
	if wanted == nil {
		wanted = r.ISR
	}

	var room [3][8]partition.Member // most records stand: that is found out without garbage
	isr, left, lost := room[0][:0], room[1][:0], room[2][:0]
	judge := func(m partition.Member, may bool) {
		node := c.node(m.Node)
		switch {
		case node == nil || !r.Assigned(m.Node): // forgotten
		case m.Node == w.refuse || m.BrokerEpoch < node.chainStart:
			lost = append(lost, m)
		case m.BrokerEpoch != node.BrokerEpoch: // its node vouches for it (R4)
			m.BrokerEpoch = node.BrokerEpoch
			left = append(left, m)
		case may && !node.Fenced && (!node.Stopping || m.Node == lead):
			isr = append(isr, m)
		default:
			left = append(left, m)
		}
	}
	for _, m := range wanted {
		judge(m, true)
	}
	for _, list := range [][]partition.Member{r.ISR, r.ELR} {
		for _, m := range list {
			if _, again := partition.Find(wanted, m.Node); !again {
				judge(m, false)
			}
		}
	}

	if !c.mayLead(isr, lead) && !(lead == r.Leader && has(isr, lead)) { // A11 keep: a leader on its way out goes on
		lead = c.first(r, isr)
	}
	elected := lead != r.Leader
	if lead == partition.None {
		// The ISR is empty: who stays and does not lead may lead. Nobody is forgotten
		// (R21), and one of the ELR may lead at once, alone.
		if lead = c.longest(p, left); lead != partition.None {
			elected = true
			i := slices.IndexFunc(left, func(m partition.Member) bool { return m.Node == lead })
			isr = append(isr[:0], left[i])
			left = slices.Delete(left, i, i+1)
		}
	}
	for _, m := range r.LastKnown {
		if r.Assigned(m.Node) && !has(lost, m.Node) && !has(isr, m.Node) && !has(left, m.Node) {
			lost = append(lost, m)
		}
	}

	// The least ISR in force changes only under a leader that goes on: what another
	// one counted as complete is given up with it (R20), and whoever was just elected
	// may still decline.
	if want := p.minISR(); lead != partition.None && !elected && want != minISR {
		minISR, left = want, nil
	}
	if len(isr) >= int(minISR) {
		left, lost = nil, nil
	}
	inOrder(r, isr)
	inOrder(r, left)
	inOrder(r, lost)
	if !elected && minISR == r.MinISR && slices.Equal(isr, r.ISR) && slices.Equal(left, r.ELR) && slices.Equal(lost, r.LastKnown) {
		return nil
	}
	n := *r // shares Replicas, which never change
	n.Leader, n.MinISR = lead, minISR
	n.ISR, n.ELR, n.LastKnown = own(isr), own(left), own(lost)
	if elected {
		n.LeaderEpoch++
	}
	return &n
}

// mayLead reports whether a node may be made the leader: in the list, and live.
func (c *Controller) mayLead(list []partition.Member, node int32) bool {
	n := c.node(node)
	return n != nil && !n.Fenced && !n.Stopping && has(list, node)
}

// first returns the first replica that may lead, None if none may (A11).
func (c *Controller) first(r *partition.Record, list []partition.Member) int32 {
	for _, node := range r.Replicas {
		if c.mayLead(list, node) {
			return node
		}
	}
	return partition.None
}

// longest returns who of the ELR is to lead (R22). All of them have what is committed;
// with the longest log the least of what lies above, acks=1 among it, is cut. None:
// nobody may, or one that has registered and is not ready yet has a longer log than
// those that are. For it the partition waits, but not beyond its session.
func (c *Controller) longest(p *partState, list []partition.Member) int32 {
	best, end := c.first(p.rec, list), unknownEnd
	for _, node := range p.rec.Replicas {
		if e, known := p.ends[node]; known && c.mayLead(list, node) && e.longer(end) {
			best, end = node, e
		}
	}
	if end == unknownEnd {
		return best
	}
	for node, e := range p.ends {
		if c.node(node).coming() && has(list, node) && e.longer(end) {
			return partition.None
		}
	}
	return best
}

func has(list []partition.Member, node int32) bool {
	_, ok := partition.Find(list, node)
	return ok
}

// own copies a list, nil if it is empty.
func own(list []partition.Member) []partition.Member { return append([]partition.Member(nil), list...) }

// inOrder sorts a list like the replicas.
func inOrder(r *partition.Record, list []partition.Member) {
	slices.SortFunc(list, func(a, b partition.Member) int {
		return cmp.Compare(slices.Index(r.Replicas, a.Node), slices.Index(r.Replicas, b.Node))
	})
}
