package isr

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/cespare/xxhash/v2"

	"github.com/tidemark-log/tidemark/internal/checkpoint"
	"github.com/tidemark-log/tidemark/partition"
)

// The stored state is text, a JSON object a line, which a person can read:
//
//	{"tidemark":"coordinator","version":1,"cluster":…,"revision":…,"producers":…,"nodes":1,"topics":1,"partitions":2}
//	{"node":0,"brokerEpoch":1,…}      each node, by id
//	{"topic":"events","id":…}         each topic, in the order they were made
//	{"topic":…,"partition":0,…}       each partition, likewise
//	xxh64 0123456789abcdef            of everything above
//
// Lines are kept between two calls of Store: only what changed is made again.
type stateHead struct {
	Tidemark   string `json:"tidemark"`
	Version    int    `json:"version"`
	Cluster    string `json:"cluster"`
	Revision   int64  `json:"revision"`
	Producers  int64  `json:"producers"` // ids below this may have been given out
	Nodes      int    `json:"nodes"`
	Topics     int    `json:"topics"`
	Partitions int    `json:"partitions"`
}

type stateNode struct {
	Node        int32  `json:"node"`
	Revision    int64  `json:"revision"`
	BrokerEpoch int64  `json:"brokerEpoch"`
	ChainStart  int64  `json:"chainStart"`
	Incarnation text   `json:"incarnation"`
	Boot        text   `json:"boot"`
	Fenced      bool   `json:"fenced,omitempty"`
	Stopping    bool   `json:"stopping,omitempty"`
	Durable     bool   `json:"durable,omitempty"`
	Address     string `json:"address,omitempty"`
}

type stateTopic struct {
	Topic      string            `json:"topic"`
	ID         text              `json:"id"`
	Revision   int64             `json:"revision"`
	Partitions int32             `json:"partitions"`
	MinISR     int32             `json:"minISR"`
	Config     map[string]string `json:"config,omitempty"`
}

type statePart struct {
	Topic          text          `json:"topic"`
	Partition      int32         `json:"partition"`
	Revision       int64         `json:"revision"`
	Replicas       []int32       `json:"replicas"`
	Leader         int32         `json:"leader"`
	LeaderEpoch    int32         `json:"leaderEpoch"`
	PartitionEpoch int32         `json:"partitionEpoch"`
	MinISR         int32         `json:"minISR"`
	ISR            []stateMember `json:"isr,omitempty"`
	ELR            []stateMember `json:"elr,omitempty"`
	LastKnown      []stateMember `json:"lastKnown,omitempty"`
}

type stateMember struct {
	Node        int32 `json:"node"`
	BrokerEpoch int64 `json:"brokerEpoch"`
	Log         text  `json:"log"`
}

// text is a uuid in its 22 characters.
type text partition.UUID

func (t text) MarshalText() ([]byte, error) { return []byte(partition.UUID(t).String()), nil }

func (t *text) UnmarshalText(b []byte) error {
	u, err := checkpoint.ParseUUID(string(b))
	*t = text(u)
	return err
}

// encode returns the whole state as of c.revision.
func (c *Controller) encode() []byte {
	line := func(v any) []byte {
		b, err := json.Marshal(v)
		if err != nil { // none of these types can fail
			panic(err)
		}
		return append(b, '\n')
	}
	head := line(stateHead{"coordinator", 1, c.o.ClusterID, c.revision, c.endID, len(c.nodes), len(c.topics), len(c.parts)})
	b := append(make([]byte, 0, c.size+c.size/8), head...) // mostly it has the size it had
	for _, n := range c.nodes {
		if n.line == nil {
			n.line = line(stateNode{n.ID, n.Revision, n.BrokerEpoch, n.chainStart, text(n.incarnation), text(n.boot), n.Fenced, n.Stopping, n.Durable, n.Address})
		}
		b = append(b, n.line...)
	}
	for _, t := range c.topics {
		if t.line == nil {
			t.line = line(stateTopic{t.Name, text(t.ID), t.Revision, t.Partitions, t.MinISR, t.Config})
		}
		b = append(b, t.line...)
	}
	for _, p := range c.parts {
		if p.line == nil {
			r := p.rec
			p.line = line(statePart{
				text(r.Topic), r.Partition, r.Revision, r.Replicas, r.Leader, r.LeaderEpoch, r.PartitionEpoch, r.MinISR,
				toState(r.ISR), toState(r.ELR), toState(r.LastKnown),
			})
		}
		b = append(b, p.line...)
	}
	b = fmt.Appendf(b, "xxh64 %016x\n", xxhash.Sum64(b))
	c.size = len(b)
	return b
}

func toState(list []partition.Member) (s []stateMember) {
	for _, m := range list {
		s = append(s, stateMember{m.Node, m.BrokerEpoch, text(m.LogID)})
	}
	return s
}

func fromState(list []stateMember) (s []partition.Member) {
	for _, m := range list {
		s = append(s, partition.Member{Node: m.Node, BrokerEpoch: m.BrokerEpoch, LogID: partition.UUID(m.Log)})
	}
	return s
}

// LoadController returns a Controller with a state that was given to Store, and
// keeps no part of it. The sessions in it are over: they belonged to the process
// that ended. So nobody leads, every leader epoch of before is behind, and whoever
// was complete is in an ELR until its node registers and says how it fared.
//
// An error means that the state is not one that Store was given, is of another
// cluster, or could not be stored again.
func LoadController(state []byte, o ControllerOptions) (*Controller, error) {
	c := NewController(o)
	if err := c.load(state); err != nil {
		return nil, fmt.Errorf("load the coordinator's state: %w", err)
	}
	c.mu.Lock()
	for _, n := range c.nodes {
		if !n.Fenced {
			n.Fenced = true
			c.putNode(n)
		}
	}
	c.settle()
	for _, p := range c.parts {
		if err := p.rec.Check(); err != nil {
			c.mu.Unlock()
			return nil, fmt.Errorf("load the coordinator's state: %w", err)
		}
	}
	if err := c.announce(); err != nil {
		return nil, err
	}
	return c, nil
}

func (c *Controller) load(state []byte) error {
	body, ok := bytes.CutSuffix(state, []byte("\n"))
	sum := bytes.LastIndexByte(body, '\n') + 1
	if want := fmt.Sprintf("xxh64 %016x", xxhash.Sum64(state[:sum])); !ok || string(body[sum:]) != want {
		return fmt.Errorf("last line %.40q, want %q", body[sum:], want)
	}
	lines := bytes.SplitAfter(state[:sum], []byte("\n"))
	lines = lines[:len(lines)-1] // what follows the last line end
	number := 0
	next := func(v any) ([]byte, error) {
		number++
		if number > len(lines) {
			return nil, fmt.Errorf("it ends after line %d", len(lines))
		}
		b := lines[number-1]
		d := json.NewDecoder(bytes.NewReader(b))
		d.DisallowUnknownFields()
		if err := d.Decode(v); err != nil {
			return nil, fmt.Errorf("line %d: %w", number, err)
		}
		return slices.Clone(b), nil
	}
	var h stateHead
	if _, err := next(&h); err != nil {
		return err
	}
	switch {
	case h.Tidemark != "coordinator" || h.Version != 1:
		return fmt.Errorf("it is a %.40q of version %d, want a \"coordinator\" of version 1", h.Tidemark, h.Version)
	case h.Cluster != c.o.ClusterID:
		return fmt.Errorf("it is of cluster %.80q, want %q", h.Cluster, c.o.ClusterID)
	case min(h.Revision, h.Producers) < 0 || min(h.Nodes, h.Topics, h.Partitions) < 0 || 1+h.Nodes+h.Topics+h.Partitions != len(lines):
		return fmt.Errorf("the head %+v does not fit %d lines", h, len(lines))
	}
	c.revision, c.announced, c.nextID, c.endID = h.Revision, h.Revision, h.Producers, h.Producers
	for range h.Nodes {
		var s stateNode
		line, err := next(&s)
		if err != nil {
			return err
		}
		i, known := c.findNode(s.Node)
		if known || i < len(c.nodes) || s.Node < 0 || s.BrokerEpoch < 1 || s.BrokerEpoch > s.Revision || s.Revision > h.Revision ||
			s.ChainStart < 1 || s.ChainStart > s.BrokerEpoch {
			return fmt.Errorf("line %d: node %+v is out of place", number, s)
		}
		n := &nodeState{incarnation: partition.UUID(s.Incarnation), boot: partition.UUID(s.Boot), chainStart: s.ChainStart, line: line}
		n.Node = partition.Node{ID: s.Node, BrokerEpoch: s.BrokerEpoch, Fenced: s.Fenced, Stopping: s.Stopping, Durable: s.Durable, Address: s.Address, Revision: s.Revision}
		c.nodes = append(c.nodes, n)
		v := n.Node
		c.change(&n.item, told{revision: s.Revision, node: &v}, false)
	}
	byTopic := map[partition.UUID]*topicState{}
	for range h.Topics {
		var s stateTopic
		line, err := next(&s)
		if err != nil {
			return err
		}
		id := partition.UUID(s.ID)
		if c.byName[s.Topic] != nil || byTopic[id] != nil || !checkpoint.ValidTopic(s.Topic) || s.Revision < 1 || s.Revision > h.Revision ||
			s.Partitions < 1 || s.MinISR < 1 {
			return fmt.Errorf("line %d: topic %+v is out of place", number, s)
		}
		t := &topicState{Topic: Topic{Name: s.Topic, ID: id, Revision: s.Revision, Partitions: s.Partitions, MinISR: s.MinISR, Config: s.Config}, line: line}
		c.topics = append(c.topics, t)
		c.byName[s.Topic], byTopic[id] = t, t
		v := t.Topic
		c.change(&t.item, told{revision: s.Revision, topic: &v}, false)
	}
	for range h.Partitions {
		var s statePart
		line, err := next(&s)
		if err != nil {
			return err
		}
		p := &partState{topic: byTopic[partition.UUID(s.Topic)], line: line, rec: &partition.Record{
			ID:       partition.ID{Topic: partition.UUID(s.Topic), Partition: s.Partition},
			Revision: s.Revision, Replicas: s.Replicas, Leader: s.Leader, LeaderEpoch: s.LeaderEpoch, PartitionEpoch: s.PartitionEpoch,
			MinISR: s.MinISR, ISR: fromState(s.ISR), ELR: fromState(s.ELR), LastKnown: fromState(s.LastKnown),
		}}
		r := p.rec
		if p.topic == nil || c.byID[r.ID] != nil || r.Partition < 0 || r.Partition >= p.topic.Partitions || r.Revision < 1 || r.Revision > h.Revision ||
			r.Leader < partition.None || r.LeaderEpoch < 0 || r.LeaderEpoch > maxEpoch || r.PartitionEpoch < 0 || r.PartitionEpoch > maxEpoch ||
			r.MinISR < 1 || int(r.MinISR) > len(r.Replicas) {
			return fmt.Errorf("line %d: partition %+v is out of place", number, s)
		}
		if err := checkReplicas(r.Replicas); err != nil {
			return fmt.Errorf("line %d: %w", number, err)
		}
		seen := map[int32]bool{}
		for _, list := range [][]partition.Member{r.ISR, r.ELR, r.LastKnown} {
			for _, m := range list {
				if n := c.node(m.Node); n == nil || seen[m.Node] || m.BrokerEpoch < 1 || m.BrokerEpoch > n.BrokerEpoch {
					return fmt.Errorf("line %d: member %s of partition %s is out of place", number, m, r.ID)
				}
				seen[m.Node] = true
			}
		}
		c.parts = append(c.parts, p)
		c.byID[r.ID] = p
		c.change(&p.item, told{revision: r.Revision, record: r}, false)
	}
	slices.SortStableFunc(c.waiting, func(a, b announcement) int { return cmp.Compare(a.revision, b.revision) })
	for _, t := range c.topics {
		for i := range t.Partitions {
			if c.byID[partition.ID{Topic: t.ID, Partition: i}] == nil {
				return fmt.Errorf("topic %q has no partition %d", t.Name, i)
			}
		}
	}
	c.tell(h.Revision)
	return nil
}
