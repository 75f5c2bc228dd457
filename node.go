package tidemark

import (
	"cmp"
	"container/heap"
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/tidemark-log/tidemark/internal/vfs"
	"github.com/tidemark-log/tidemark/isr"
	"github.com/tidemark-log/tidemark/partition"
	"github.com/tidemark-log/tidemark/replica"
)

// Node is one of a cluster's nodes: a data folder, and while it is up the replicas
// in it.
type Node struct {
	c   *Cluster
	id  int32
	dir string

	changing sync.Mutex // one start or stop at a time
	stopping atomic.Pointer[context.CancelCauseFunc]
	paused   atomic.Bool // tests: replicas ask their leaders for nothing
	life     atomic.Pointer[life]
}

// errKilled ends a stop for a kill, which waits for it.
var errKilled = errors.New("the node was killed meanwhile")

// ID is the node's number.
func (n *Node) ID() int { return int(n.id) }

// Dir is the node's data folder.
func (n *Node) Dir() string { return n.dir }

// Up reports whether the node is running.
func (n *Node) Up() bool { return n.life.Load() != nil }

// A life is a node from a start to its end: what a process would be.
type life struct {
	n     *Node
	dir   *replica.Dir
	crew  *crew
	watch task // the coordinator said something
	alarm alarms
	lease isr.Lease

	incarnation UUID
	epoch       int64 // of the broker
	fenced      atomic.Bool
	rejoining   task

	removing task // folders of deleted partitions
	removal  alarm
	making   task // replicas that could not be made
	remake   alarm

	roster atomic.Pointer[[]partition.Node] // by id; copied at each change

	watching sync.Mutex // who takes over what the coordinator said; held across I/O
	read     int64      // revision up to which it was read
	topics   map[UUID]isr.Topic

	mu     sync.Mutex
	opened map[TopicPartition]*Log // at the start, before it is known whose they are
	parts  map[partition.ID]*part
	unmade map[partition.ID]unmade // replicas it should have
	ended  bool
}

// unmade is a replica that could not be made, or whose log could not be opened.
type unmade struct {
	wait time.Duration // between the last attempt and the next
	due  time.Time
}

// maxRemake is the longest that a replica which could not be made is left alone.
const maxRemake = time.Minute

// Node implements isr.Roster.
func (f *life) Node(id int32) partition.Node {
	if list := *f.roster.Load(); int(id) < len(list) && id >= 0 {
		return list[id]
	}
	return partition.Node{ID: id, BrokerEpoch: -1}
}

func (n *Node) start(ctx context.Context) error {
	n.changing.Lock()
	defer n.changing.Unlock()
	if n.c.closed() { // asked here, since Close ends each node once
		return ErrClosed
	}
	if n.Up() {
		return fmt.Errorf("start node %d: %w", n.id, ErrNodeUp)
	}
	f, err := n.open(ctx)
	if err != nil {
		return err
	}
	return f.begin(ctx)
}

// open opens a node's logs and registers them: the first step of a start. The second is
// begin.
func (n *Node) open(ctx context.Context) (_ *life, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("start node %d: %w", n.id, err)
		}
	}()
	c := n.c
	f := &life{n: n, crew: newCrew(max(8, 2*runtime.GOMAXPROCS(0))), topics: map[UUID]isr.Topic{},
		opened: map[TopicPartition]*Log{}, parts: map[partition.ID]*part{}, unmade: map[partition.ID]unmade{}, incarnation: newUUID()}
	f.watch.run, f.rejoining.run, f.removing.run, f.making.run = f.runWatch, f.rejoin, f.runRemove, f.runMake
	f.removal.fire = func() { f.crew.do(&f.removing) }
	f.remake.fire = func() { f.crew.do(&f.making) }
	f.alarm.init()
	f.roster.Store(&[]partition.Node{})
	f.dir, err = replica.OpenDir(n.dir, replica.DirOptions{NodeID: n.id, ClusterID: c.id, BrokerEpoch: -1,
		DeleteDelay: c.o.DeleteDelay, Logger: c.o.Logger}, time.Now())
	if err != nil {
		return nil, err
	}
	logs, err := f.openAll()
	if err == nil {
		err = f.register(ctx, logs)
	}
	if err != nil {
		f.abandon()
		return nil, err
	}
	f.dir.SetBrokerEpoch(f.epoch)
	return f, nil
}

// abandon ends a life that did not begin.
func (f *life) abandon() {
	f.end(ErrNodeDown, (*replica.Log).Abandon)
	_ = f.dir.Abandon() // as it was found, but for the marker
}

// begin has the node take part.
func (f *life) begin(ctx context.Context) (err error) {
	n, c := f.n, f.n.c
	defer func() {
		if err != nil {
			f.abandon()
			err = fmt.Errorf("start node %d: %w", n.id, err)
		}
	}()
	for { // while it reads its partitions, its session may end
		f.runWatch()
		code := c.ctl.Ready(n.id, f.epoch, time.Now())
		if code == partition.OK {
			break
		}
		q := f.registration()
		r := c.ctl.Register(&q, time.Now())
		switch {
		case code == partition.Unknown || r.Code == partition.Unknown:
			return fmt.Errorf("ready: the coordinator could not store it: %w", partition.Unknown)
		case r.Code == partition.OK && r.BrokerEpoch != f.epoch:
			return fmt.Errorf("ready: %w: another life began", code)
		}
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("ready: %w: %w", code, err)
		}
	}
	f.dropDeleted()
	n.life.Store(f)
	f.keepAlive()
	f.crew.do(&f.watch) // what was said before life was set
	f.mu.Lock()
	parts := len(f.parts)
	f.mu.Unlock()
	c.o.Logger.Info("node started", "node", n.id, "brokerEpoch", f.epoch, "partitions", parts)
	return nil
}

// openAll opens every log in the folder, held, and returns how the last life of each
// ended. A log that is damaged, or of which something is gone, is left out: it counts for
// nothing any more (R4). Where the system refuses, the log may be as whole as ever, and
// that would be for ever: then the node does not start, and nothing has changed.
func (f *life) openAll() ([]partition.LogEvidence, error) {
	var mu sync.Mutex
	var refused error
	logs := []partition.LogEvidence{} // not nil: what is not listed is not there
	options := map[UUID]map[string]string{}
	for _, t := range f.n.c.ctl.Since(0).Topics {
		options[t.ID] = t.Config
	}
	inParallel(8, f.dir.Partitions(), func(p TopicPartition) {
		id, err := f.dir.TopicID(p)
		config, known := options[id]
		if err == nil && !known {
			return // see dropDeleted; a topic of this name would take its place (join)
		}
		var l *Log
		if err == nil {
			l, err = f.openLog(p, id, config, true)
		}
		if err != nil {
			f.n.c.o.Logger.Error("replica not opened", "node", f.n.id, "partition", p.String(), "err", err)
			if refusal(err) {
				mu.Lock()
				defer mu.Unlock()
				refused = cmp.Or(refused, fmt.Errorf("open %s: %w", p, err))
			}
			return
		}
		e := partition.LogEvidence{ID: partition.ID{Topic: id, Partition: p.Partition}, Evidence: l.log.Evidence(), Durable: l.log.Durable()}
		e.LastEpoch, e.LEO = l.log.Tail()
		mu.Lock()
		defer mu.Unlock()
		f.opened[p] = l
		logs = append(logs, e)
	})
	return logs, refused
}

// refusal reports whether err says that the system did not let us look, of which nothing
// follows for the log: too many open files, no permission, a failed read. That something
// is gone, or that a disk is full, is another matter.
func refusal(err error) bool {
	var errno syscall.Errno
	return errors.Is(err, ErrTooManyFiles) || errors.Is(err, ErrTooManyMaps) ||
		errors.As(err, &errno) && errno != syscall.ENOENT && errno != syscall.ENOSPC && errno != syscall.EDQUOT
}

func (f *life) openLog(p TopicPartition, id UUID, config map[string]string, held bool) (*Log, error) {
	o, err := f.n.c.logOptions(config)
	if err != nil {
		return nil, err
	}
	ro := o.replica()
	ro.Held = held
	l, err := start(&o, f.crew, ro, func(ro replica.Options, now time.Time) (*replica.Log, error) {
		return f.dir.OpenLog(p, id, ro, now)
	})
	if err != nil {
		return nil, err
	}
	l.name = p
	return l, nil
}

func (f *life) registration() partition.Register {
	return partition.Register{Node: f.n.id, ClusterID: f.n.c.id, Incarnation: f.incarnation, BootID: vfs.OS.BootID(),
		Previous: f.dir.CleanEpoch(), Durable: f.n.c.o.Log.Sync == Always}
}

// register begins the life with the coordinator (A9). While the session of the last
// one has not ended it is refused.
func (f *life) register(ctx context.Context, logs []partition.LogEvidence) error {
	c := f.n.c
	q := f.registration()
	q.Logs, q.Evidence = logs, partition.Intact
	if f.dir.Clean() {
		q.Evidence = partition.Clean
	}
	for {
		r := c.ctl.Register(&q, time.Now())
		switch r.Code {
		case partition.OK:
			f.epoch = r.BrokerEpoch
			return nil
		case partition.DuplicateRegistration:
		case partition.Unknown:
			return fmt.Errorf("register: the coordinator could not store it: %w", r.Code)
		default:
			return fmt.Errorf("register: %w", r.Code)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("register: %w: %w", r.Code, ctx.Err())
		case <-time.After(c.o.SessionTimeout / 20):
			c.ctl.Tick(time.Now())
		}
	}
}

// keepAlive gives a sign of life, and takes the lease that comes with the answer
// (R28).
func (f *life) keepAlive() {
	sent := time.Now()
	ttl := f.n.c.o.SessionTimeout
	switch code := f.n.c.ctl.KeepAlive(f.n.id, f.epoch, sent); code {
	case partition.OK:
		led := f.lease.Renew(sent.Add(ttl - ttl/5))
		f.fenced.Store(false)
		if !time.Now().Before(led) { // who waits for a leader that serves: asked after, for it may have ended meanwhile
			f.mu.Lock()
			defer f.mu.Unlock()
			for _, p := range f.parts {
				p.h.moved(ChangedLeader)
			}
		}
	case partition.StaleBrokerEpoch, partition.IneligibleReplica:
		if !f.fenced.Swap(true) {
			f.n.c.o.Logger.Warn("node was taken for dead", "node", f.n.id, "code", code.String())
		}
		f.crew.do(&f.rejoining)
	}
}

// rejoin has a node that was fenced take part again: the same life.
func (f *life) rejoin() {
	c := f.n.c
	q := f.registration() // of the same life: what it says of the last one is not looked at
	if r := c.ctl.Register(&q, time.Now()); r.Code != partition.OK || r.BrokerEpoch != f.epoch {
		c.o.Logger.Warn("node cannot take part again", "node", f.n.id, "code", r.Code.String(), "brokerEpoch", r.BrokerEpoch, "was", f.epoch)
		return
	}
	f.runWatch()
	if code := c.ctl.Ready(f.n.id, f.epoch, time.Now()); code == partition.OK {
		f.keepAlive()
	}
}

// runWatch reads what changed at the coordinator and acts on it.
func (f *life) runWatch() {
	f.watching.Lock()
	defer f.watching.Unlock()
	ch := f.n.c.ctl.Since(f.read)
	f.read = ch.Revision
	if len(ch.Nodes) > 0 {
		f.takeNodes(ch.Nodes)
	}
	for _, t := range ch.Topics {
		f.takeTopic(t)
	}
	var fresh []*partition.Record
	f.mu.Lock()
	for _, r := range ch.Records {
		if p := f.parts[r.ID]; p != nil {
			p.take(r)
		} else if r.Assigned(f.n.id) {
			fresh = append(fresh, r)
		}
	}
	if len(ch.Nodes) > 0 { // who may join an ISR, and who is waited for
		for _, p := range f.parts {
			p.looked.Store(false)
			p.wake(crewTurn)
		}
	}
	f.mu.Unlock()
	inParallel(8, fresh, f.join)
}

func (f *life) takeNodes(nodes []partition.Node) {
	list := slices.Clone(*f.roster.Load())
	for _, n := range nodes {
		for int(n.ID) >= len(list) {
			list = append(list, partition.Node{ID: int32(len(list)), BrokerEpoch: -1})
		}
		list[n.ID] = n
	}
	f.roster.Store(&list)
}

func (f *life) takeTopic(t isr.Topic) {
	if !t.Deleted {
		f.topics[t.ID] = t
		return
	}
	delete(f.topics, t.ID)
	for i := range t.Partitions {
		id, name := partition.ID{Topic: t.ID, Partition: i}, TopicPartition{Topic: t.Name, Partition: i}
		f.mu.Lock()
		p := f.parts[id]
		delete(f.parts, id)
		delete(f.unmade, id)
		f.mu.Unlock()
		if p != nil {
			p.end(ErrNoPartition, (*replica.Log).Discard)
		}
		f.deleteFolder(name, t.ID)
	}
}

// dropDeleted deletes the folders of topics that were deleted while the node was down
// (S90). What the coordinator does not know to be deleted is left alone: it may have
// lost something itself.
func (f *life) dropDeleted() {
	for _, name := range f.dir.Partitions() {
		id, err := f.dir.TopicID(name)
		f.watching.Lock()
		if _, known := f.topics[id]; err == nil && !known {
			if f.n.c.ctl.Deleted(id) {
				f.deleteFolder(name, id)
			} else if f.dir.Has(name) {
				f.n.c.o.Logger.Warn("folder of a topic that nobody knows is left alone", "node", f.n.id, "partition", name.String(), "topic", id.String())
			}
		}
		f.watching.Unlock()
	}
}

// deleteFolder deletes the folder of a partition if it is the given topic's.
func (f *life) deleteFolder(name TopicPartition, topic UUID) {
	if have, err := f.dir.TopicID(name); err != nil || have != topic {
		return
	}
	if l := f.takeOpened(name); l != nil {
		_ = l.end(l.log.Discard) // its files go
	}
	if err := f.dir.Delete(name, time.Now()); err != nil {
		f.n.c.o.Logger.Warn("replica of a deleted topic not deleted", "node", f.n.id, "partition", name.String(), "err", err)
		return
	}
	f.crew.do(&f.removing)
}

func (f *life) runRemove() {
	if next := f.dir.RemoveDeleted(time.Now()); !next.IsZero() {
		f.alarm.pull(&f.removal, next)
	}
}

// runMake tries again to make the replicas for which it is time.
func (f *life) runMake() {
	f.watching.Lock()
	defer f.watching.Unlock()
	f.mu.Lock()
	list := slices.Collect(maps.Keys(f.unmade))
	f.mu.Unlock()
	var due []*partition.Record
	for _, id := range list {
		r := f.n.c.ctl.Record(id)
		f.mu.Lock()
		switch u := f.unmade[id]; {
		case r == nil || !r.Assigned(f.n.id) || f.parts[id] != nil:
			delete(f.unmade, id)
		case time.Now().Before(u.due):
			f.alarm.pull(&f.remake, u.due)
		default:
			due = append(due, r)
		}
		f.mu.Unlock()
	}
	inParallel(8, due, f.join)
}

// notMade has a replica that could not be made tried again.
func (f *life) notMade(h *Partition, err error) {
	f.n.c.o.Logger.Error("replica not made", "node", f.n.id, "partition", h.name.String(), "err", err)
	m := &missing{err: err, times: 1}
	if old := h.missing[f.n.id].Load(); old != nil {
		m.times += old.times
	}
	h.missing[f.n.id].Store(m)
	f.mu.Lock()
	defer f.mu.Unlock()
	u := f.unmade[h.id]
	u.wait = min(max(2*u.wait, f.n.c.o.FetchBackoff), max(maxRemake, f.n.c.o.FetchBackoff))
	u.due = time.Now().Add(u.wait)
	f.unmade[h.id] = u
	f.alarm.pull(&f.remake, u.due)
}

// join makes this node's part in a partition, with its log, and the folder if there
// is none.
func (f *life) join(r *partition.Record) {
	c := f.n.c
	t, ok := f.topics[r.ID.Topic]
	if !ok {
		return
	}
	h := c.enter(r)
	if h == nil {
		return
	}
	l := f.takeOpened(h.name)
	if l == nil {
		var err error
		if have, e := f.dir.TopicID(h.name); e == nil && have != (UUID{}) && have != t.ID {
			f.deleteFolder(h.name, have) // of a topic of this name that was deleted while the node was down (S90)
		}
		if l, err = f.openLog(h.name, t.ID, t.Config, f.dir.Has(h.name)); err != nil {
			f.notMade(h, err)
			if r.Leader == f.n.id && len(r.ISR)+len(r.ELR) > 1 { // somebody else may have it
				c.ctl.Decline(r.ID, f.n.id, f.epoch, r.LeaderEpoch, time.Now())
			}
			return
		}
	}
	p := newPart(f, h, l)
	f.mu.Lock()
	ended := f.ended
	if !ended {
		f.parts[r.ID] = p
		delete(f.unmade, r.ID)
		if m := h.missing[f.n.id].Load(); m != nil {
			h.missing[f.n.id].Store(&missing{times: m.times})
		}
		h.parts[f.n.id].Store(p)
	}
	f.mu.Unlock()
	if ended {
		p.end(ErrNodeDown, (*replica.Log).Abandon)
		return
	}
	p.take(r)
	h.wakeAll() // who asked here before there was somebody to answer
}

func (f *life) takeOpened(name TopicPartition) *Log {
	f.mu.Lock()
	defer f.mu.Unlock()
	l := f.opened[name]
	delete(f.opened, name)
	return l
}

// end stops everything the life does, fails who waits with why, and ends each log
// by the function given.
func (f *life) end(why error, how func(*replica.Log) error) error {
	f.mu.Lock()
	f.ended = true
	f.mu.Unlock()
	f.alarm.stop()
	f.crew.stop(&f.watch)
	f.crew.stop(&f.rejoining)
	f.crew.stop(&f.removing)
	f.crew.stop(&f.making)
	f.mu.Lock()
	parts := slices.Collect(maps.Values(f.parts))
	logs := slices.Collect(maps.Values(f.opened))
	f.mu.Unlock()
	var mu sync.Mutex
	var errs []error
	keep := func(name TopicPartition, err error) {
		if err != nil {
			mu.Lock()
			defer mu.Unlock()
			errs = append(errs, fmt.Errorf("%s: %w", name, err))
		}
	}
	inParallel(8, parts, func(p *part) { keep(p.h.name, p.end(why, how)) })
	inParallel(8, logs, func(l *Log) { keep(l.name, l.end(func() error { return how(l.log) })) })
	return errors.Join(errs...)
}

func (n *Node) take() (*life, error) {
	f := n.life.Swap(nil)
	if f == nil {
		return nil, fmt.Errorf("node %d: %w", n.id, ErrNodeDown)
	}
	return f, nil
}

func (n *Node) kill() error {
	if cancel := n.stopping.Load(); cancel != nil {
		(*cancel)(errKilled)
	}
	n.changing.Lock()
	defer n.changing.Unlock()
	f, err := n.take()
	if err != nil {
		return err
	}
	_ = f.end(ErrNodeDown, (*replica.Log).Abandon)
	_ = f.dir.Abandon()
	n.c.o.Logger.Info("node killed", "node", n.id)
	return nil
}

// end stops a node in order, without handing anything over.
func (n *Node) end() error {
	n.changing.Lock()
	defer n.changing.Unlock()
	f, err := n.take()
	if err != nil {
		return err
	}
	return f.close()
}

func (f *life) close() error {
	err := f.end(ErrNodeDown, func(l *replica.Log) error { return l.Close(time.Now()) })
	err = errors.Join(err, f.dir.Close(time.Now()))
	f.n.c.o.Logger.Info("node stopped", "node", f.n.id, "err", err)
	if err != nil {
		err = fmt.Errorf("stop node %d: %w", f.n.id, err)
	}
	return err
}

// stop hands over what the node leads and ends it in order (A14).
func (n *Node) stop(ctx context.Context) error {
	n.changing.Lock()
	defer n.changing.Unlock()
	f := n.life.Load()
	if f == nil {
		return fmt.Errorf("stop node %d: %w", n.id, ErrNodeDown)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	n.stopping.Store(&cancel)
	defer n.stopping.Store(nil)
	n.c.ctl.Stop(n.id, f.epoch, time.Now())
	f.mu.Lock()
	parts := slices.Collect(maps.Values(f.parts))
	f.mu.Unlock()
	inParallel(16, parts, func(p *part) { p.stepDown(ctx) })
	if context.Cause(ctx) == errKilled { // who does waits for changing
		return fmt.Errorf("stop node %d: %w", n.id, errKilled)
	}
	n.c.ctl.Fence(n.id, f.epoch, time.Now())
	n.life.Store(nil)
	return f.close()
}

// resign has the node lead nothing any more, for all nodes to be stopped.
func (n *Node) resign(ctx context.Context) {
	f := n.life.Load()
	if f == nil {
		return
	}
	f.mu.Lock()
	parts := slices.Collect(maps.Values(f.parts))
	f.mu.Unlock()
	inParallel(16, parts, func(p *part) { p.settle(ctx) })
}

// alarms wake what is due, with one timer for all of a node.
type alarms struct {
	mu    sync.Mutex
	heap  alarmHeap
	timer *time.Timer
	done  bool
}

// An alarm goes off once, at the earliest of the times that were asked for.
type alarm struct {
	fire func()       // must not block
	due  atomic.Int64 // in ns since alarmEpoch, 0 if nothing is; changed under alarms.mu
	at   int          // in the heap
}

var alarmEpoch = time.Now()

func (a *alarms) init() {
	a.timer = time.AfterFunc(time.Hour, a.ring)
	a.timer.Stop()
}

// pull has x go off at the given time, or before if that was asked for; a zero time
// asks for nothing.
func (a *alarms) pull(x *alarm, at time.Time) {
	if at.IsZero() {
		return
	}
	ns := max(int64(at.Sub(alarmEpoch)), 1)
	if was := x.due.Load(); was != 0 && was <= ns {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	was := x.due.Load()
	if a.done || was != 0 && was <= ns {
		return
	}
	x.due.Store(ns)
	if was == 0 {
		heap.Push(&a.heap, x)
	} else {
		heap.Fix(&a.heap, x.at)
	}
	if a.heap[0] == x {
		a.setLocked()
	}
}

func (a *alarms) setLocked() {
	if len(a.heap) > 0 {
		a.timer.Reset(max(time.Duration(a.heap[0].due.Load())-time.Since(alarmEpoch), 0))
	}
}

// ring fires what is due.
func (a *alarms) ring() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.done {
		return
	}
	now := int64(time.Since(alarmEpoch))
	for len(a.heap) > 0 && a.heap[0].due.Load() <= now {
		x := heap.Pop(&a.heap).(*alarm)
		x.due.Store(0)
		x.fire()
	}
	a.setLocked()
}

func (a *alarms) stop() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.done = true
	a.timer.Stop()
}

type alarmHeap []*alarm

func (h alarmHeap) Len() int           { return len(h) }
func (h alarmHeap) Less(i, j int) bool { return h[i].due.Load() < h[j].due.Load() }
func (h alarmHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].at, h[j].at = i, j
}

func (h *alarmHeap) Push(x any) {
	x.(*alarm).at = len(*h)
	*h = append(*h, x.(*alarm))
}

func (h *alarmHeap) Pop() any {
	n := len(*h) - 1
	x := (*h)[n]
	(*h)[n] = nil
	*h = (*h)[:n]
	return x
}
