package tidemark

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/tidemark-log/tidemark/internal/checkpoint"
	"github.com/tidemark-log/tidemark/internal/vfs"
	"github.com/tidemark-log/tidemark/isr"
	"github.com/tidemark-log/tidemark/partition"
	"github.com/tidemark-log/tidemark/replica"
)

// Recovery is what a restarted follower does with what lies above its high
// watermark.
type Recovery = replica.Recovery

const (
	Refetch = replica.Refetch // cuts it and copies it again wherever that is safe
	Adopt   = replica.Adopt   // keeps what the leader confirms
)

var (
	// ErrNodeDown means that a node is not running, or is already.
	ErrNodeDown = errors.New("node is not running")
	ErrNodeUp   = errors.New("node is running")
	// ErrNoNode means that a cluster has no node of this id.
	ErrNoNode = errors.New("no such node")
	// ErrNoTopic means that a cluster has no topic of this name, ErrTopicExists that
	// it has one.
	ErrNoTopic     = isr.ErrUnknownTopic
	ErrTopicExists = isr.ErrTopicExists
)

// ClusterOptions of a cluster. The zero value is three nodes that keep every
// promise.
type ClusterOptions struct {
	// Nodes is how many nodes there are, with ids from 0 on. Default 3. A cluster
	// that is opened again may have more, never fewer.
	Nodes int
	// Log is for the logs of topics that say nothing else. ReadOnly is refused.
	Log Options
	// LagMax is how long a replica may not have caught up with its leader before it
	// leaves the ISR (Kafka: replica.lag.time.max.ms). Default 30 s, from 10 ms.
	LagMax time.Duration
	// SessionTimeout is how long after its last sign of life a node counts as dead,
	// and others lead in its place. Default 9 s, from 50 ms.
	SessionTimeout time.Duration
	// Recovery is what a restarted replica does with what lies above its high
	// watermark. Default Refetch.
	Recovery Recovery
	// FetchBytes is what a follower asks for at a time; it gets at least a batch.
	// Default 1 MiB, from 1 B to 64 MiB.
	FetchBytes int
	// FetchBackoff is how long a follower waits after an error. Default 1 s, from 1 ms.
	FetchBackoff time.Duration
	// MaxWaiters is how many appends to a partition may wait for their acks. Default
	// 10,000.
	MaxWaiters int
	// DeleteDelay is how long the files of a deleted partition stay. Default 1 min,
	// below 0 none.
	DeleteDelay time.Duration
	// SlowDisk is how much longer each sync of a node takes than its disk does: for
	// tests of what is built on a cluster. nil is no longer. It is called by several
	// goroutines at a time.
	SlowDisk func(node int) time.Duration
	// Logger takes what an operator should see. Default: discards.
	Logger *slog.Logger
}

func (o *ClusterOptions) fill() error {
	def := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	def(&o.LagMax, 30*time.Second)
	def(&o.SessionTimeout, 9*time.Second)
	def(&o.FetchBackoff, time.Second)
	if o.Nodes == 0 {
		o.Nodes = 3
	}
	if o.FetchBytes == 0 {
		o.FetchBytes = 1 << 20
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	var errs []error
	bound := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf("option "+format, args...))
		}
	}
	bound(o.Nodes >= 1 && o.Nodes <= 1000, "Nodes: %d, want 1 to 1000", o.Nodes)
	bound(!o.Log.ReadOnly, "Log.ReadOnly: a replica writes")
	errs = append(errs, o.Log.replica().Validate())
	bound(o.LagMax >= 10*time.Millisecond, "LagMax: %v, want at least 10ms", o.LagMax)
	bound(o.SessionTimeout >= 50*time.Millisecond, "SessionTimeout: %v, want at least 50ms", o.SessionTimeout)
	bound(o.FetchBackoff >= time.Millisecond, "FetchBackoff: %v, want at least 1ms", o.FetchBackoff)
	bound(o.FetchBytes >= 1 && o.FetchBytes <= 64<<20, "FetchBytes: %d, want 1 to %d", o.FetchBytes, 64<<20)
	bound(o.MaxWaiters >= 0, "MaxWaiters: %d, want at least 0", o.MaxWaiters)
	bound(o.Recovery == Refetch || o.Recovery == Adopt, "Recovery: %d", o.Recovery)
	return errors.Join(errs...)
}

// TopicOptions of a topic.
type TopicOptions struct {
	Partitions        int // default 1
	ReplicationFactor int // default 3, or the number of nodes if that is less
	// MinISR is how many in-sync replicas an append with AcksAll needs, at most as
	// many as there are; in a partition that has fewer all of them. Default 2, or 1 with
	// one replica.
	MinISR int
	// Replicas names the nodes of each partition, the preferred leader first, in
	// the place of Partitions and ReplicationFactor.
	Replicas [][]int32
	// Log is for the logs of the topic, on every node; nil takes that of the
	// cluster as it is at creation. It is kept with the topic. Its functions and
	// Logger are not: those of the cluster are used.
	Log *Options
}

// Cluster is several nodes in one process, each with a data folder of its own:
// partitions with a leader and followers, in-sync replicas, and the promises of
// acks 0, 1 and all over failures of nodes. docs/replication.md has the protocol,
// docs/durability.md what is promised when.
//
// The nodes share nothing but the coordinator and the calls by which they talk,
// which do the same checks as those that come over a network. All methods are safe
// for concurrent use.
type Cluster struct {
	o     ClusterOptions
	dir   string
	id    string // of the cluster
	lock  io.Closer
	ctl   *isr.Controller
	nodes []*Node
	crew  *crew
	watch task // the coordinator said something
	beat  task // signs of life of the nodes are due
	tick  task // sessions are to be looked at; may wait for the disk of the coordinator
	clock *time.Timer

	mu      sync.RWMutex
	parts   map[partition.ID]*Partition
	byName  map[TopicPartition]*Partition
	topics  map[string]isr.Topic
	read    int64 // revision up to which the coordinator was read; watch only
	closing bool

	storing  sync.Mutex
	unlocked bool // the directory is not ours any more: nothing is stored

	closer sync.Once
	err    error
}

const coordinatorFile = "coordinator" // the state of the coordinator, in the directory of the cluster

// OpenCluster opens the cluster in directory dir, making it if there is none, and
// starts all of its nodes: dir/node-0 and so on are their data folders, which are
// those of a Kafka broker, dir/coordinator holds what the coordinator knows. After a
// process was killed, partitions have leaders again once enough of their replicas
// were found to be whole; nobody leads before all nodes have opened their logs. It
// waits, for SessionTimeout at most, until whoever was elected serves.
//
// Errors: ErrLocked; a field of ClusterOptions that is out of range; the
// coordinator's file is damaged, or missing beside folders that have partitions;
// those of a node that does not start.
func OpenCluster(dir string, o ClusterOptions) (_ *Cluster, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("open cluster %s: %w", dir, err)
		}
	}()
	if err := o.fill(); err != nil {
		return nil, err
	}
	if err := vfs.MkdirAll(vfs.OS, dir); err != nil {
		return nil, err
	}
	c := &Cluster{o: o, dir: dir, crew: newCrew(4), parts: map[partition.ID]*Partition{},
		byName: map[TopicPartition]*Partition{}, topics: map[string]isr.Topic{}}
	c.watch.run, c.beat.run = c.runWatch, c.runBeat
	c.tick.run = func() { c.ctl.Tick(time.Now()) }
	if c.lock, err = vfs.OS.Lock(filepath.Join(dir, ".lock")); err != nil {
		return nil, err
	}
	for id := range int32(o.Nodes) {
		c.nodes = append(c.nodes, &Node{c: c, id: id, dir: filepath.Join(dir, fmt.Sprintf("node-%d", id))})
	}
	if err := c.coordinate(); err != nil {
		return nil, errors.Join(err, c.lock.Close())
	}
	for _, r := range c.ctl.Since(0).Records {
		if id := slices.Max(r.Replicas); int(id) >= o.Nodes {
			return nil, errors.Join(fmt.Errorf("option Nodes: %d, but node %d has replicas", o.Nodes, id), c.lock.Close())
		}
	}
	c.ctl.Notify = c.notify
	c.runWatch()
	c.mu.Lock()
	c.clock = time.AfterFunc(o.SessionTimeout/6, func() { c.crew.do(&c.beat) })
	c.mu.Unlock()
	errs := make([]error, o.Nodes)
	lives := make([]*life, o.Nodes)
	inParallel(4, c.nodes, func(n *Node) { lives[n.id], errs[n.id] = n.open(context.Background()) })
	lives = slices.DeleteFunc(lives, func(f *life) bool { return f == nil })
	for _, f := range lives { // of those that took long to open, the session may have ended
		q := f.registration()
		c.ctl.Register(&q, time.Now())
	}
	// From here on nodes may lead: those with the longest logs, since all are known (R22).
	inParallel(4, lives, func(f *life) { errs[f.n.id] = f.begin(context.Background()) })
	if err := errors.Join(errs...); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	c.awaitLeaders()
	return c, nil
}

// awaitLeaders waits until whoever was elected serves with enough in sync, so that
// what was closed can be read and appended to as soon as it is open again.
func (c *Cluster) awaitLeaders() {
	c.runWatch()
	ctx, cancel := context.WithTimeout(context.Background(), c.o.SessionTimeout)
	defer cancel()
	c.mu.RLock()
	parts := slices.Collect(maps.Values(c.parts))
	c.mu.RUnlock()
	for _, h := range parts {
		if r := h.record.Load(); r == nil || r.Leader < 0 {
			continue
		}
		if _, err := h.awaitLeader(ctx, nil); err != nil {
			return
		}
		for range h.Subscribe(ctx, ChangedISR|ChangedLeader) {
			p := h.leading() // it may not have acted yet on what the record says
			if p == nil {
				continue
			}
			if s := p.p.Status(); len(s.Committed) >= s.MinISR {
				break
			}
		}
	}
}

// coordinate loads the coordinator or makes one.
func (c *Cluster) coordinate() error {
	name := filepath.Join(c.dir, coordinatorFile)
	known, err := c.findID()
	if err != nil {
		return err
	}
	o := isr.ControllerOptions{ClusterID: c.id, TTL: c.o.SessionTimeout, Logger: c.o.Logger,
		Store: func(state []byte) error {
			c.storing.Lock()
			defer c.storing.Unlock()
			if c.unlocked {
				return ErrClosed
			}
			return vfs.WriteFileAtomic(vfs.OS, name, state)
		}}
	state, err := vfs.ReadFile(vfs.OS, name, 1<<30)
	switch {
	case errors.Is(err, fs.ErrNotExist) && !known:
		c.ctl = isr.NewController(o)
		return nil
	case err != nil:
		return fmt.Errorf("read coordinator: %w", err)
	}
	if c.ctl, err = isr.LoadController(state, o); err != nil {
		return fmt.Errorf("load %s: %w", name, err)
	}
	return nil
}

// findID takes the cluster's id from a node's folder, or makes one, and reports
// whether a folder has partitions.
func (c *Cluster) findID() (known bool, err error) {
	for _, n := range c.nodes {
		b, err := vfs.ReadFile(vfs.OS, filepath.Join(n.dir, "meta.properties"), 1<<20)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return false, err
		}
		m, err := checkpoint.ParseMeta(b)
		if err != nil {
			return false, fmt.Errorf("read %s: %w", filepath.Join(n.dir, "meta.properties"), err)
		}
		if c.id == "" {
			c.id = m.ClusterID
		}
		infos, err := vfs.OS.List(n.dir)
		if err != nil {
			return false, err
		}
		known = known || slices.ContainsFunc(infos, func(i vfs.Info) bool {
			p, err := checkpoint.ParsePartitionDir(i.Name)
			return err == nil && i.IsDir && p.State == checkpoint.DirCurrent
		})
	}
	if c.id == "" {
		c.id = newUUID().String()
	}
	return known, nil
}

func newUUID() (u UUID) {
	rand.Read(u[:])
	u[6], u[8] = u[6]&0x0f|0x40, u[8]&0x3f|0x80
	return u
}

// notify runs on whose call changed something at the coordinator.
func (c *Cluster) notify() {
	c.crew.do(&c.watch)
	for _, n := range c.nodes {
		if f := n.life.Load(); f != nil {
			f.crew.do(&f.watch)
		}
	}
}

// runWatch takes over what changed at the coordinator: topics, and who leads.
func (c *Cluster) runWatch() {
	c.mu.Lock()
	ch := c.ctl.Since(c.read)
	c.read = ch.Revision
	for _, t := range ch.Topics {
		c.topicLocked(t)
	}
	var moved []*Partition
	for _, r := range ch.Records {
		if h := c.parts[r.ID]; h != nil && h.take(r) {
			moved = append(moved, h)
		}
	}
	c.mu.Unlock()
	for _, h := range moved {
		h.moved(ChangedLeader | ChangedISR)
	}
}

func (c *Cluster) topicLocked(t isr.Topic) {
	if was, ok := c.topics[t.Name]; ok && (t.ID != was.ID || t.Deleted) {
		if t.Deleted && t.ID != was.ID {
			return // another of its name is here
		}
		for i := range was.Partitions {
			id := partition.ID{Topic: was.ID, Partition: i}
			if h := c.parts[id]; h != nil {
				h.gone.Store(true)
				h.moved(changedAll)
			}
			delete(c.parts, id)
			delete(c.byName, TopicPartition{Topic: t.Name, Partition: i})
		}
		delete(c.topics, t.Name)
	}
	if t.Deleted {
		return
	}
	c.topics[t.Name] = t
	for i := range t.Partitions {
		c.handleLocked(partition.ID{Topic: t.ID, Partition: i}, TopicPartition{Topic: t.Name, Partition: i})
	}
}

func (c *Cluster) handleLocked(id partition.ID, name TopicPartition) *Partition {
	h := c.parts[id]
	if h == nil {
		h = newPartition(c, id, name)
		c.parts[id], c.byName[name] = h, h
	}
	return h
}

// enter returns the handle of a partition that a node hears of, maybe before the
// cluster's own watch does; nil if the topic was deleted meanwhile.
func (c *Cluster) enter(r *partition.Record) *Partition {
	for range 2 {
		c.mu.Lock()
		h := c.parts[r.ID]
		c.mu.Unlock()
		if h != nil {
			if h.take(r) {
				h.moved(ChangedLeader | ChangedISR)
			}
			return h
		}
		c.runWatch() // what the node has read, this reads too
	}
	return nil
}

// runBeat gives the nodes' signs of life, then has somebody look whose session has
// ended: in this order, since a process that was stopped for a while stopped both,
// and not here, since signs of life wait for no disk.
func (c *Cluster) runBeat() {
	for _, n := range c.nodes {
		if f := n.life.Load(); f != nil {
			f.keepAlive()
		}
	}
	c.crew.do(&c.tick)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.clock != nil {
		c.clock.Reset(c.o.SessionTimeout / 6)
	}
}

// topicConfig is the key under which the coordinator keeps the options of a
// topic's logs.
const topicConfig = "tidemark.log"

func encodeOptions(o Options) map[string]string {
	b, err := json.Marshal(&o)
	if err != nil {
		panic(err) // numbers and booleans
	}
	return map[string]string{topicConfig: string(b)}
}

// logOptions are those of a topic's logs.
func (c *Cluster) logOptions(config map[string]string) (Options, error) {
	o := c.o.Log
	if s, ok := config[topicConfig]; ok {
		o = Options{}
		if err := json.Unmarshal([]byte(s), &o); err != nil {
			return o, fmt.Errorf("options of a topic: %w", err)
		}
	}
	o.OnRecovery, o.Logger = c.o.Log.OnRecovery, c.o.Log.Logger
	if o.Logger == nil {
		o.Logger = c.o.Logger
	}
	return o, nil
}

// CreateTopic makes a topic and returns once all of its partitions have leaders
// that take appends, or ctx ends; the topic is there in either case.
//
// Errors: ErrTopicExists; a field of TopicOptions that is out of range, or more
// replicas than nodes that are up; ErrClosed; that of ctx.
func (c *Cluster) CreateTopic(ctx context.Context, name string, o TopicOptions) error {
	if c.closed() {
		return ErrClosed
	}
	if o.Partitions == 0 && o.Replicas == nil {
		o.Partitions = 1
	}
	rf := o.ReplicationFactor
	switch {
	case o.Replicas != nil:
		o.Partitions = len(o.Replicas)
		for i, list := range o.Replicas {
			if rf = max(rf, len(list)); len(list) == 0 || slices.Min(list) < 0 || int(slices.Max(list)) >= len(c.nodes) {
				return fmt.Errorf("create topic %q: option Replicas: partition %d on nodes %d, want 0 to %d", name, i, list, len(c.nodes)-1)
			}
		}
	case rf == 0:
		rf = min(3, len(c.nodes))
	}
	if o.Partitions != int(int32(o.Partitions)) {
		return fmt.Errorf("create topic %q: %d partitions, too many", name, o.Partitions)
	}
	if o.MinISR == 0 {
		o.MinISR = min(2, rf)
	}
	opts := c.o.Log
	if o.Log != nil {
		opts = *o.Log
	}
	if opts.ReadOnly {
		return fmt.Errorf("create topic %q: option Log.ReadOnly: a replica writes", name)
	}
	if err := opts.replica().Validate(); err != nil {
		return fmt.Errorf("create topic %q: %w", name, err)
	}
	if !checkpoint.ValidTopic(name) {
		return fmt.Errorf("create topic %q: no topic name", name)
	}
	spec := isr.TopicSpec{Replicas: o.Replicas, Partitions: int32(o.Partitions), ReplicationFactor: rf,
		MinISR: int32(o.MinISR), Config: encodeOptions(opts)}
	if rf > 0 && rf <= len(c.nodes) && (o.MinISR < 1 || o.MinISR > rf) { // else that is what is wrong
		return fmt.Errorf("create topic %q: option MinISR: %d, want 1 to %d", name, o.MinISR, rf)
	}
	c.awaitNodes(ctx)
	if _, _, err := c.ctl.CreateTopic(name, spec, time.Now()); err != nil {
		return err
	}
	c.runWatch()
	for i := range o.Partitions {
		h, err := c.Partition(name, i)
		if err != nil {
			return fmt.Errorf("create topic %q: %w", name, err)
		}
		if _, err := h.awaitLeader(ctx, nil); err != nil {
			return fmt.Errorf("create topic %q: partition %d: %w", name, i, err)
		}
	}
	return nil
}

// awaitNodes waits, for SessionTimeout at most, until the nodes that are up are not
// counted as dead: where this process stood still they may be for a moment.
func (c *Cluster) awaitNodes(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, c.o.SessionTimeout)
	defer cancel()
	for _, n := range c.nodes {
		for f := n.life.Load(); f != nil && n.life.Load() == f; {
			if f.keepAlive(); !c.ctl.Node(n.id).Fenced {
				break
			}
			select {
			case <-time.After(time.Millisecond):
			case <-ctx.Done():
				return
			}
		}
	}
}

// DeleteTopic deletes a topic. Its files go in the background; on a node that is down,
// when it comes back. Where the process ends before that they stay, and are not looked
// at, until a topic of the same name is made there, or somebody removes them.
//
// Errors: ErrNoTopic, ErrClosed, those of the coordinator's file.
func (c *Cluster) DeleteTopic(name string) error {
	if c.closed() {
		return ErrClosed
	}
	c.mu.RLock()
	_, ok := c.topics[name]
	c.mu.RUnlock()
	if !ok {
		return fmt.Errorf("delete topic %q: %w", name, ErrNoTopic)
	}
	if err := c.ctl.DeleteTopic(name, time.Now()); err != nil {
		return err
	}
	c.runWatch()
	return nil
}

// ElectPreferred makes the first of a partition's replicas the leader, if it is up and in
// sync, and returns once it leads. The present leader hands over when that has all it
// has: nothing is lost, whatever acks it was given. It goes on while what there is is
// copied; while the rest is, it takes no appends, for a second at most.
//
// Errors: ErrNoTopic, ErrNoPartition, ErrClosed; IneligibleReplica; that of ctx, or of the
// wait for what is not copied yet, after LagMax or that second. Then the leader leads on.
func (c *Cluster) ElectPreferred(ctx context.Context, topic string, partition int) error {
	h, err := c.Partition(topic, partition)
	if err != nil {
		return err
	}
	for not := (*part)(nil); ; {
		if r := c.ctl.Record(h.id); r != nil && r.Leader < 0 {
			return fmt.Errorf("elect preferred leader of %s: %w: nobody leads", h.name, IneligibleReplica)
		}
		p, err := h.awaitLeader(ctx, not)
		if err != nil {
			return fmt.Errorf("elect preferred leader: %w", err)
		}
		s := p.p.Status()
		if not = p; s.Role != isr.Leading {
			continue
		}
		to := s.Record.Replicas[0]
		if to == p.f.n.id {
			return nil
		}
		if !slices.Contains(p.successors(&s), to) {
			return fmt.Errorf("elect preferred leader of %s: %w: node %d, in sync are %d", h.name, IneligibleReplica, to, nodesOf(s.Committed))
		}
		if err := p.handOver(ctx, to, time.Second, NotLeader); err != nil && !errors.Is(err, NotLeader) {
			return fmt.Errorf("elect preferred leader: %w", err)
		}
		c.runWatch()
	}
}

// SetMinISR changes TopicOptions.MinISR of a topic, and returns once those who lead act
// on it. Where nobody leads it is in force with the first change under the next leader.
//
// Errors: ErrNoTopic; ErrClosed; n is not from 1 to the replicas of its partitions; of the
// coordinator's file; of ctx, after which it is changed all the same.
func (c *Cluster) SetMinISR(ctx context.Context, topic string, n int) error {
	if c.closed() {
		return ErrClosed
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	c.mu.RLock()
	var parts []*Partition
	for i := range c.topics[topic].Partitions {
		parts = append(parts, c.byName[TopicPartition{Topic: topic, Partition: i}])
	}
	c.mu.RUnlock()
	rf := 0
	for _, h := range parts {
		if r := c.ctl.Record(h.id); r != nil {
			rf = max(rf, len(r.Replicas))
		}
	}
	if rf > 0 && (n < 1 || n > rf) {
		return fmt.Errorf("set MinISR of topic %q: %d, want 1 to %d", topic, n, rf)
	}
	if err := c.ctl.SetMinISR(topic, int32(n), time.Now()); err != nil {
		return err
	}
	c.runWatch()
	for _, h := range parts {
		for s := range h.Subscribe(ctx, ChangedISR|ChangedLeader) {
			r := h.record.Load()
			if p := h.leading(); s.Leader < 0 || p == nil {
				break
			} else if v := p.p.Status().Record; v != nil && v.PartitionEpoch >= r.PartitionEpoch {
				break
			}
		}
	}
	return ctx.Err()
}

// Topics lists the topics by name.
func (c *Cluster) Topics() []string {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return slices.Sorted(maps.Keys(c.topics))
}

// Partition returns a handle on a partition. It follows the leader, over restarts
// of nodes, until the topic is deleted or the cluster closed.
//
// Errors: ErrNoTopic, ErrNoPartition, ErrClosed.
func (c *Cluster) Partition(topic string, partition int) (*Partition, error) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	if c.closing {
		return nil, ErrClosed
	}
	if h := c.byName[TopicPartition{Topic: topic, Partition: int32(partition)}]; h != nil && int(h.id.Partition) == partition {
		return h, nil
	}
	err := ErrNoPartition
	if _, ok := c.topics[topic]; !ok {
		err = ErrNoTopic
	}
	return nil, fmt.Errorf("partition %s-%d: %w", topic, partition, err)
}

// Node returns a node by its id, from 0 to ClusterOptions.Nodes − 1, else nil.
func (c *Cluster) Node(id int) *Node {
	if id < 0 || id >= len(c.nodes) {
		return nil
	}
	return c.nodes[id]
}

func (c *Cluster) node(id int) (*Node, error) {
	n := c.Node(id)
	if n == nil {
		return nil, fmt.Errorf("node %d: %w, want 0 to %d", id, ErrNoNode, len(c.nodes)-1)
	}
	return n, nil
}

// Start starts a node that was stopped or killed. It returns once the node has read
// who leads and takes part; its replicas catch up in the background. While the
// session of its last life has not ended it waits, until ctx ends.
//
// Errors: ErrNoNode; ErrNodeUp; ErrClosed; ErrLocked and others of its folder; that
// of ctx.
func (c *Cluster) Start(ctx context.Context, id int) error {
	n, err := c.node(id)
	if err != nil {
		return err
	}
	return n.start(ctx)
}

// Stop stops a node in order: others take the lead where it led, once they have all
// it has, its logs are synced and marked clean. It waits for that at most until ctx
// ends, and for each of the others at most LagMax, and stops then all the same.
//
// Errors: ErrNoNode; ErrNodeDown; of its logs and folder, after which it has stopped.
func (c *Cluster) Stop(ctx context.Context, id int) error {
	n, err := c.node(id)
	if err != nil {
		return err
	}
	return n.stop(ctx)
}

// Kill ends a node as kill -9 ends a process: nothing is synced, handed over or
// told to anybody, and its files are as they are at this moment. Others lead in its
// place once its session has ended.
//
// Errors: ErrNoNode; ErrNodeDown.
func (c *Cluster) Kill(id int) error {
	n, err := c.node(id)
	if err != nil {
		return err
	}
	return n.kill()
}

func (c *Cluster) closed() bool {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.closing
}

// Close stops all nodes in order, without electing others, and returns the first
// error of each; the same when called again. Appends that wait fail.
func (c *Cluster) Close() error {
	c.closer.Do(func() { c.err = c.close() })
	return c.err
}

func (c *Cluster) close() error {
	c.mu.Lock()
	c.closing = true
	c.mu.Unlock()
	// What was acknowledged by leaders alone is copied, so that whoever leads next has
	// it. Signs of life go on meanwhile.
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	inParallel(4, c.nodes, func(n *Node) { n.resign(ctx) })
	c.mu.Lock()
	if c.clock != nil {
		c.clock.Stop()
		c.clock = nil
	}
	c.mu.Unlock()
	c.crew.stop(&c.beat)
	c.crew.stop(&c.tick)
	errs := make([]error, len(c.nodes)+1)
	inParallel(4, c.nodes, func(n *Node) {
		if err := n.end(); err != nil && !errors.Is(err, ErrNodeDown) {
			errs[n.id] = err
		}
	})
	c.crew.stop(&c.watch)
	c.mu.Lock()
	for _, h := range c.parts {
		h.moved(changedAll)
	}
	c.mu.Unlock()
	c.storing.Lock()
	defer c.storing.Unlock()
	c.unlocked = true
	errs[len(c.nodes)] = c.lock.Close()
	return errors.Join(errs...)
}
