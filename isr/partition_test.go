package isr

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/tidemark-log/tidemark/internal/vfs"
	"github.com/tidemark-log/tidemark/partition"
	"github.com/tidemark-log/tidemark/record"
	"github.com/tidemark-log/tidemark/replica"
	"github.com/tidemark-log/tidemark/segment"
)

var t0 = time.UnixMilli(1_700_000_000_000)

var testID = partition.ID{Topic: partition.UUID{7}, Partition: 3}

// roster is what a node knows of the others.
type roster map[int32]partition.Node

func (r roster) Node(id int32) partition.Node {
	if n, ok := r[id]; ok {
		return n
	}
	return partition.Node{ID: id, BrokerEpoch: -1}
}

// desk is the leader's side of a partition: node 1 with a real log on a file
// system in memory. The other replicas, 2 and 3, and the coordinator are the
// test's hands.
type desk struct {
	t     testing.TB
	mem   *vfs.Mem
	log   *replica.Log
	p     *Partition
	o     Options
	nodes roster
	lease *Lease
	now   time.Time
	fx    Effects // of the last step
	rec   *partition.Record
	peers map[int32]*peer
	seqs  map[int64]int32 // next sequence of each producer
}

// peer is another replica as its fetches show it.
type peer struct {
	member       partition.Member
	session, seq uint64
	last         int32 // epoch of its last batch, for offsets above 0
}

type deskOptions struct {
	sync     replica.SyncMode
	minISR   int32
	replicas []int32
	guards   partition.Guards
	segment  int64
	first    int64 // offset the log begins at
	noLead   bool
	osDir    string // on the disk of the machine, there
}

const lagMax = 30 * time.Second

func openLog(t testing.TB, fs vfs.FS, dir string, o deskOptions) *replica.Log {
	t.Helper()
	if o.osDir != "" {
		fs, dir = vfs.OS, o.osDir+dir
	}
	if o.segment == 0 {
		o.segment = 64 << 10
	}
	l, err := replica.Open(dir, replica.Options{Sync: o.sync, SegmentBytes: o.segment, PopulateBytes: 1, MaxProducers: 100, FS: fs, Maps: segment.NewMaps(1000)}, t0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close(t0) })
	if o.first > 0 {
		if err := l.TruncateFullyAndStartAt(o.first); err != nil {
			t.Fatal(err)
		}
	}
	return l
}

// newDesk gives node 1 the lead in epoch 1 with all replicas in the ISR, but for
// o.noLead.
func newDesk(t testing.TB, o deskOptions) *desk {
	t.Helper()
	if o.replicas == nil {
		o.replicas = []int32{1, 2, 3}
	}
	if o.minISR == 0 {
		o.minISR = 2
	}
	d := &desk{t: t, mem: vfs.NewMem(vfs.MemOptions{}), nodes: roster{}, lease: &Lease{}, now: t0, peers: map[int32]*peer{}, seqs: map[int64]int32{}}
	d.log = openLog(t, d.mem, "/log1", o)
	d.lease.Set(t0.Add(24 * time.Hour))
	d.rec = &partition.Record{ID: testID, Revision: 100, Replicas: o.replicas, Leader: 1, LeaderEpoch: 1, PartitionEpoch: 1, MinISR: o.minISR}
	for _, n := range o.replicas {
		d.peers[n] = &peer{member: partition.Member{Node: n, BrokerEpoch: 10 + int64(n), LogID: partition.UUID{byte(n)}}, session: 1, last: 1}
		if n == 1 {
			d.peers[n].member.LogID = d.log.ID()
		}
		d.nodes[n] = partition.Node{ID: n, BrokerEpoch: 10 + int64(n)}
		d.rec.ISR = append(d.rec.ISR, d.peers[n].member)
	}
	d.o = Options{ID: testID, Name: "t-3", Node: 1, BrokerEpoch: 11, Log: d.log, Fetcher: replica.NewFetcher(d.log, replica.FetcherOptions{ID: testID, Node: 1}),
		Lease: d.lease, Nodes: d.nodes, LagMax: lagMax, Guards: &o.guards}
	d.p = New(d.o)
	if !o.noLead {
		d.update(nil)
	}
	return d
}

// step runs a step of the partition.
func (d *desk) step(f func(fx *Effects)) *Effects {
	d.fx.Reset()
	f(&d.fx)
	d.check()
	return &d.fx
}

// update has the partition take the record, changed, as the coordinator's next.
func (d *desk) update(change func(r *partition.Record)) *Effects {
	d.t.Helper()
	if change != nil {
		d.rec = d.rec.Clone()
		d.rec.PartitionEpoch++
		d.rec.Revision++
		change(d.rec)
	}
	if err := d.rec.Check(); err != nil {
		d.t.Fatal(err)
	}
	return d.step(func(fx *Effects) {
		if err := d.p.Update(d.rec, d.now, fx); err != nil {
			d.t.Fatal(err)
		}
	})
}

// members returns the entries of nodes as they are now.
func (d *desk) members(nodes ...int32) (list []partition.Member) {
	for _, n := range nodes {
		list = append(list, d.peers[n].member)
	}
	return list
}

// apply makes what a proposal asks for the next record, as a coordinator does
// that accepts it, without telling the leader.
func (d *desk) apply(a *partition.Alter) {
	d.t.Helper()
	if a == nil {
		d.t.Fatal("nothing was proposed")
	}
	if a.LeaderEpoch != d.rec.LeaderEpoch || a.PartitionEpoch != d.rec.PartitionEpoch {
		d.t.Fatalf("proposal for epochs %d/%d, the record has %d/%d", a.LeaderEpoch, a.PartitionEpoch, d.rec.LeaderEpoch, d.rec.PartitionEpoch)
	}
	r := d.rec.Clone()
	r.Revision++
	r.PartitionEpoch++
	old := r.ISR
	r.ISR = a.ISR
	if len(r.ISR) >= int(r.MinISR) {
		r.ELR, r.LastKnown = nil, nil
	} else {
		for _, m := range old {
			if _, in := partition.Find(r.ISR, m.Node); !in {
				r.ELR = append(r.ELR, m)
			}
		}
	}
	r.ELR = slices.DeleteFunc(r.ELR, func(m partition.Member) bool { _, in := partition.Find(r.ISR, m.Node); return in })
	d.rec = r
}

// answer gives the coordinator's answer to a proposal.
func (d *desk) answer(a *partition.Alter, code partition.Code) *Effects {
	d.t.Helper()
	return d.step(func(fx *Effects) {
		d.p.Altered(&partition.Altered{ID: a.ID, Seq: a.Seq, Code: code, Record: d.rec}, d.now, fx)
	})
}

// accept accepts a proposal.
func (d *desk) accept(a *partition.Alter) *Effects {
	d.t.Helper()
	d.apply(a)
	return d.answer(a, partition.OK)
}

func value(offset int64, size int) []byte {
	b := binary.BigEndian.AppendUint64(nil, uint64(offset))
	for len(b) < size {
		b = append(b, byte(len(b)))
	}
	return b
}

func batch(n, size int, pid int64, seq int32) record.Batch {
	recs := make([]record.Record, n)
	for i := range recs {
		recs[i] = record.Record{Timestamp: t0.UnixMilli(), Value: value(int64(i), size)}
	}
	spec := record.NewSpec()
	if pid >= 0 {
		spec.ProducerID, spec.ProducerEpoch, spec.BaseSequence = pid, 0, seq
	}
	return record.Encode(make([]byte, record.Size(recs, 0)), recs, &spec)
}

// produce appends one record. It is the producer's next if pid ≥ 0.
func (d *desk) produce(acks int16) (*Waiter, error) { return d.send(acks, -1, 0, 0) }

func (d *desk) send(acks int16, pid int64, seq int32, timeout time.Duration) (*Waiter, error) {
	w := &Waiter{}
	var err error
	d.step(func(fx *Effects) {
		err = d.p.Produce(batch(1, 50, pid, seq), replica.Client, acks, timeout, w, d.now, fx)
	})
	return w, err
}

func (d *desk) mustProduce(acks int16) *Waiter {
	d.t.Helper()
	w, err := d.produce(acks)
	if err != nil {
		d.t.Fatal(err)
	}
	return w
}

// request makes the next fetch of a replica.
func (d *desk) request(node int32, offset int64) *partition.Fetch {
	x := d.peers[node]
	x.seq++
	q := &partition.Fetch{ID: testID, LeaderEpoch: d.rec.LeaderEpoch, Replica: node, BrokerEpoch: x.member.BrokerEpoch, LogID: x.member.LogID,
		Session: x.session, Seq: x.seq, Offset: offset, LastFetchedEpoch: x.last, MaxBytes: 1 << 20}
	if offset == d.log.LogStartOffset() {
		q.LastFetchedEpoch = -1
	}
	return q
}

// ask sends a fetch, without parking.
func (d *desk) ask(q *partition.Fetch) *Answer {
	a := &Answer{}
	d.step(func(fx *Effects) {
		if d.p.Fetch(q, false, false, d.now, a, fx) {
			d.t.Error("parked, though it may not")
		}
	})
	a.View.Release()
	return a
}

// fetch confirms offset for a replica and fails if that is refused.
func (d *desk) fetch(node int32, offset int64) *Answer {
	d.t.Helper()
	a := d.ask(d.request(node, offset))
	if a.Code != partition.OK || a.Diverging || a.Drop {
		d.t.Fatalf("fetch of node %d at %d: %v, diverging %v, drop %v", node, offset, a.Code, a.Diverging, a.Drop)
	}
	return a
}

func (d *desk) tick(after time.Duration) *Effects {
	d.now = d.now.Add(after)
	return d.step(func(fx *Effects) { d.p.Tick(d.now, fx) })
}

// run passes time, calling Tick when it is wanted, and returns what was
// proposed first and when.
func (d *desk) run(until time.Duration, every time.Duration, each func()) (a *partition.Alter, at time.Duration) {
	next := d.step(func(fx *Effects) { fx.Tick = d.p.Tick(d.now, fx) }).Tick
	for start := d.now; d.now.Sub(start) < until; {
		d.now = d.now.Add(every)
		if each != nil {
			each()
			next = earlier(next, d.fx.Tick)
			if a == nil && d.fx.Alter != nil {
				a, at = d.fx.Alter, d.now.Sub(start)
			}
		}
		if !next.IsZero() && !d.now.Before(next) {
			d.step(func(fx *Effects) { next = d.p.Tick(d.now, fx) })
			if a == nil && d.fx.Alter != nil {
				a, at = d.fx.Alter, d.now.Sub(start)
			}
		}
	}
	return a, at
}

func (d *desk) hw() int64 { return d.log.HighWatermark() }

func (d *desk) wantHW(want int64) {
	d.t.Helper()
	if got := d.hw(); got != want {
		d.t.Errorf("high watermark %d; want %d", got, want)
	}
}

func (d *desk) follower(node int32) FollowerStatus {
	for _, f := range d.p.Status().Followers {
		if f.Node == node {
			return f
		}
	}
	return FollowerStatus{}
}

func (d *desk) sync() {
	d.t.Helper()
	if err := d.log.SyncNow(); err != nil {
		d.t.Fatal(err)
	}
	d.step(func(fx *Effects) { d.p.Advanced(d.now, fx) })
}

func nodesOf(list []partition.Member) (nodes []int32) {
	for _, m := range list {
		nodes = append(nodes, m.Node)
	}
	slices.Sort(nodes)
	return nodes
}

// check holds the state after a step against what must always be true.
func (d *desk) check() {
	d.t.Helper()
	s := d.p.Status()
	if !(s.LogStart <= s.HighWatermark && s.HighWatermark <= s.LEO) {
		d.t.Errorf("log start %d, high watermark %d, end %d", s.LogStart, s.HighWatermark, s.LEO)
	}
	if n := d.waiting(); n != s.Waiters {
		d.t.Errorf("%d waiters counted, %d in the lists", s.Waiters, n)
	}
	for _, w := range d.fx.Done {
		if !w.Finished() {
			d.t.Error("a waiter is done and not finished")
		}
	}
}

func (d *desk) waiting() (n int) {
	d.p.mu.Lock()
	defer d.p.mu.Unlock()
	for _, l := range []*waiters{&d.p.all, &d.p.own} {
		var prev *Waiter
		for w := l.head; w != nil; prev, w = w, w.next {
			if w.prev != prev || prev != nil && prev.End > w.End {
				d.t.Error("list of waiters is not linked in order")
			}
			n++
		}
		if l.tail != prev {
			d.t.Error("list of waiters has another tail")
		}
	}
	return n
}

func wantAck(t testing.TB, w *Waiter, want error) {
	t.Helper()
	if !w.Finished() || w.Err != want {
		t.Errorf("waiter finished %v with %v; want %v", w.Finished(), w.Err, want)
	}
}

func wantWaiting(t testing.TB, w *Waiter) {
	t.Helper()
	if w.Finished() {
		t.Errorf("waiter is finished with %v; want that it waits", w.Err)
	}
}

// other is another replica that can lead: node 2.
func (d *desk) other(o deskOptions) *desk {
	e := &desk{t: d.t, mem: d.mem, nodes: d.nodes, lease: d.lease, now: d.now, rec: d.rec, peers: d.peers, seqs: d.seqs}
	e.log = openLog(d.t, d.mem, "/log2", o)
	e.peers[2].member.LogID = e.log.ID()
	e.o = d.o
	e.o.Node, e.o.BrokerEpoch, e.o.Log, e.o.Fetcher = 2, 12, e.log, replica.NewFetcher(e.log, replica.FetcherOptions{ID: testID, Node: 2})
	e.p = New(e.o)
	return e
}

// copyFrom has a log take what a leader has, as a follower in its epoch, and
// returns its new end.
func copyFrom(t testing.TB, l *replica.Log, d *desk, node int32) {
	t.Helper()
	for {
		q := d.request(node, l.LogEndOffset())
		q.LastFetchedEpoch = l.Stats().LeaderEpoch
		if l.LogEndOffset() == l.LogStartOffset() {
			q.LastFetchedEpoch = -1
		}
		a := &Answer{}
		d.step(func(fx *Effects) { d.p.Fetch(q, false, false, d.now, a, fx) })
		if a.Code != partition.OK || a.Diverging {
			t.Fatalf("fetch at %d: %v, diverging %v", q.Offset, a.Code, a.Diverging)
		}
		if len(a.Records) == 0 {
			return
		}
		if _, err := l.Append(a.Records, replica.Follower, d.now); err != nil {
			t.Fatal(err)
		}
		d.peers[node].last = l.Stats().LeaderEpoch
		l.SetHighWatermark(a.HighWatermark)
		a.View.Release()
	}
}

func bytesOf(t testing.TB, l *replica.Log) []byte {
	t.Helper()
	var out []byte
	for at := l.LogStartOffset(); at < l.LogEndOffset(); {
		b, err := l.Read(nil, at, l.LogEndOffset(), 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, b...)
		for len(b) > 0 {
			n, _ := record.PeekSize(b)
			at = record.Batch(b[:n]).NextOffset()
			b = b[n:]
		}
	}
	return out
}

func TestLease(t *testing.T) {
	var none *Lease
	if !none.Valid(t0) {
		t.Error("no lease ended")
	}
	l := &Lease{}
	if l.Valid(t0) {
		t.Error("a new lease holds")
	}
	l.Set(t0.Add(1))
	if !l.Valid(t0) || l.Valid(t0.Add(1)) {
		t.Error("a lease does not end when it should")
	}
}

// TestWhoLeads is A1 and R24: which record makes the replica lead.
func TestWhoLeads(t *testing.T) {
	for _, tc := range []struct {
		name   string
		o      deskOptions
		before func(d *desk)
		want   Role
		err    error // wrapped; any if nil and want is Declined
	}{
		{"named", deskOptions{}, nil, Leading, nil},
		{"its directory is not known yet", deskOptions{}, func(d *desk) { d.rec.ISR[0].LogID = partition.UUID{} }, Leading, nil},
		{"another directory", deskOptions{}, func(d *desk) { d.rec.ISR[0].LogID = partition.UUID{99} }, Declined, nil},
		{"an earlier life", deskOptions{}, func(d *desk) { d.rec.ISR[0].BrokerEpoch = 3 }, Declined, nil},
		{"log of a newer epoch", deskOptions{}, func(d *desk) { d.log.BeginEpoch(9) }, Declined, ErrStepBack},
		{"closed log", deskOptions{}, func(d *desk) { d.log.Close(t0) }, Declined, replica.ErrClosed},
		{"another leads", deskOptions{}, func(d *desk) { d.rec.Leader = 2 }, Following, nil},
		{"another leads, log of a newer epoch", deskOptions{}, func(d *desk) { d.rec.Leader = 2; d.log.BeginEpoch(9) }, Idle, ErrStepBack},
		{"nobody leads", deskOptions{}, func(d *desk) {
			d.rec.Leader, d.rec.ELR, d.rec.ISR = partition.None, d.rec.ISR, nil
		}, Idle, nil},
		{"not assigned", deskOptions{}, func(d *desk) {
			d.rec.Leader, d.rec.Replicas, d.rec.ISR = 2, []int32{2, 3}, d.rec.ISR[1:]
		}, Idle, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tc.o.noLead = true
			d := newDesk(t, tc.o)
			if tc.before != nil {
				tc.before(d)
			}
			var err error
			d.step(func(fx *Effects) { err = d.p.Update(d.rec, d.now, fx) })
			if got := d.p.Status().Role; got != tc.want {
				t.Errorf("role %v; want %v (%v)", got, tc.want, err)
			}
			if failed := tc.want == Declined || tc.err != nil; failed != (err != nil) || tc.err != nil && !errors.Is(err, tc.err) {
				t.Errorf("error %v; want %v", err, tc.err)
			}
			if d.fx.Decline != (tc.want == Declined) {
				t.Errorf("decline %v", d.fx.Decline)
			}
			if d.fx.Follow != (tc.want == Following) {
				t.Errorf("follow %v", d.fx.Follow)
			}
			if tc.want == Declined {
				if d.fx.DeclineEpoch != 1 || d.fx.Tick.IsZero() {
					t.Errorf("declines epoch %d, tick at %v", d.fx.DeclineEpoch, d.fx.Tick)
				}
				if d.tick(d.fx.Tick.Sub(d.now)); !d.fx.Decline {
					t.Error("does not say again that it declines")
				}
				d.step(func(fx *Effects) {
					r := d.rec.Clone()
					r.Leader, r.LeaderEpoch, r.PartitionEpoch = 2, 10, 2
					d.p.Update(r, d.now, fx)
				})
				if d.tick(time.Hour); d.fx.Decline {
					t.Error("declines though another leads")
				}
			}
		})
	}
}

func TestOlderRecords(t *testing.T) {
	d := newDesk(t, deskOptions{})
	d.update(func(r *partition.Record) { r.LeaderEpoch = 5 })
	for _, tc := range []struct {
		name                        string
		partitionEpoch, leaderEpoch int32
		err                         error
	}{
		{"older partition epoch", 1, 1, nil},
		{"the same once more", 2, 5, nil},
		{"older leader epoch in a newer record", 3, 4, ErrStepBack},
	} {
		r := d.rec.Clone()
		r.PartitionEpoch, r.LeaderEpoch, r.Leader = tc.partitionEpoch, tc.leaderEpoch, 2
		d.step(func(fx *Effects) {
			if err := d.p.Update(r, d.now, fx); !errors.Is(err, tc.err) {
				t.Errorf("%s: %v; want %v", tc.name, err, tc.err)
			}
		})
		if s := d.p.Status(); s.Role != Leading || s.LeaderEpoch != 5 {
			t.Errorf("%s: %v in epoch %d", tc.name, s.Role, s.LeaderEpoch)
		}
	}
	// What was heard of counts too, not only what the log has.
	e := newDesk(t, deskOptions{noLead: true})
	e.update(func(r *partition.Record) { r.Leader, r.LeaderEpoch = 2, 5 })
	for _, leader := range []int32{1, 2, 3} {
		r := e.rec.Clone()
		r.PartitionEpoch, r.LeaderEpoch, r.Leader = 9, 4, leader
		if err := e.p.Update(r, e.now, &e.fx); !errors.Is(err, ErrStepBack) || e.p.Status().LeaderEpoch != 5 {
			t.Errorf("leader %d in epoch 4 after 5: %v", leader, err)
		}
	}
	r := d.rec.Clone()
	r.PartitionEpoch, r.ID.Topic = 9, partition.UUID{1}
	if err := d.p.Update(r, d.now, &d.fx); err == nil {
		t.Error("took a record of another partition")
	}
}

// TestBusyLog: while a sync is under way a cut is not possible; what the record
// asks for comes about later.
func TestBusyBegin(t *testing.T) {
	d := newDesk(t, deskOptions{guards: partition.Guards{NoG4: true}, noLead: true})
	d.log.BeginEpoch(0)
	d.log.Append(batch(1, 50, -1, 0), replica.Client, t0)
	s := d.log.StartSync()
	var err error
	d.step(func(fx *Effects) { err = d.p.Update(d.rec, d.now, fx) })
	if !errors.Is(err, replica.ErrBusy) || d.p.Status().Role != Idle || d.fx.Tick.IsZero() || d.fx.Decline {
		t.Fatalf("%v, %v, tick at %v, decline %v", err, d.p.Status().Role, d.fx.Tick, d.fx.Decline)
	}
	d.tick(d.fx.Tick.Sub(d.now))
	if d.p.Status().Role != Idle || d.fx.Tick.IsZero() {
		t.Fatalf("still busy: %v, tick at %v", d.p.Status().Role, d.fx.Tick)
	}
	if err := d.log.FinishSync(s, s.Wait()); err != nil {
		t.Fatal(err)
	}
	d.tick(d.fx.Tick.Sub(d.now))
	if s := d.p.Status(); s.Role != Leading || s.LEO != 0 {
		t.Errorf("%v with end %d", s.Role, s.LEO)
	}
}

func TestStepDown(t *testing.T) {
	for name, f := range map[string]func(d *desk){
		"another leads": func(d *desk) { d.update(func(r *partition.Record) { r.Leader, r.LeaderEpoch = 2, 2 }) },
		"nobody leads": func(d *desk) {
			d.update(func(r *partition.Record) { r.Leader, r.LeaderEpoch, r.ELR, r.ISR = partition.None, 2, r.ISR, nil })
		},
		"elected again": func(d *desk) { d.update(func(r *partition.Record) { r.LeaderEpoch = 2 }) },
		"resigned":      func(d *desk) { d.step(func(fx *Effects) { d.p.Resign(d.now, nil, fx) }) },
		"lease ended":   func(d *desk) { d.lease.Set(d.now.Add(time.Second)); d.tick(time.Second) },
	} {
		t.Run(name, func(t *testing.T) {
			d := newDesk(t, deskOptions{})
			all, one := d.mustProduce(-1), d.mustProduce(1)
			q := d.request(2, 2)
			d.fetch(3, 0)
			d.step(func(fx *Effects) {
				q.LastFetchedEpoch = 1
				if !d.p.Fetch(q, false, true, d.now, &Answer{}, fx) {
					t.Fatal("not parked")
				}
			})
			f(d)
			wantAck(t, all, partition.NotLeader)
			wantAck(t, one, partition.NotLeader)
			if n := len(d.fx.Done); n != 2 {
				t.Errorf("%d done", n)
			}
			if still := name == "resigned" || name == "lease ended"; still == slices.Contains(d.fx.Wake, 2) {
				t.Errorf("wakes %v", d.fx.Wake)
			}
			if name == "elected again" {
				d.mustProduce(1)
				return
			}
			for _, acks := range []int16{0, 1, -1} {
				if _, err := d.produce(acks); err != partition.NotLeader {
					t.Errorf("acks=%d: %v", acks, err)
				}
			}
			if _, err := d.p.Consume(0, 1<<20, d.now); err != partition.NotLeader {
				t.Errorf("consume: %v", err)
			}
			if _, err := d.p.Latest(d.now); err != partition.NotLeader {
				t.Errorf("latest: %v", err)
			}
			if d.log.LogEndOffset() != 2 {
				t.Errorf("log ends at %d", d.log.LogEndOffset())
			}
		})
	}
}

// TestResign: A14's order. The leader takes nothing more, its follower catches
// up, and only then another leads.
func TestResign(t *testing.T) {
	d := newDesk(t, deskOptions{})
	d.mustProduce(1)
	d.step(func(fx *Effects) { d.p.Resign(d.now, errors.New("stopping"), fx) })
	if s := d.p.Status(); s.Resigned == nil || s.Role != Leading {
		t.Errorf("%v, resigned %v", s.Role, s.Resigned)
	}
	if a := d.fetch(2, 0); len(a.Records) == 0 {
		t.Error("a follower cannot catch up")
	}
	if d.fetch(2, 1); d.follower(2).LEO != 1 {
		t.Error("its end is not seen")
	}
	d.p.Resume()
	d.mustProduce(1)
}

func TestStatusOfNothing(t *testing.T) {
	d := newDesk(t, deskOptions{noLead: true})
	s := d.p.Status()
	if s.Role != Idle || s.LeaderEpoch != -1 || s.Record != nil {
		t.Errorf("%+v", s)
	}
	a := d.ask(&partition.Fetch{ID: testID, LeaderEpoch: 0, Replica: 2, BrokerEpoch: 12})
	if a.Code != partition.UnknownLeaderEpoch || a.LeaderEpoch != -1 {
		t.Errorf("fetch: %v of epoch %d", a.Code, a.LeaderEpoch)
	}
	if next := d.tick(time.Hour).Tick; !next.IsZero() {
		t.Errorf("wants a tick at %v", next)
	}
	if got := fmt.Sprint(Idle, Following, Leading, Declined); got != "idle following leading declined" {
		t.Error(got)
	}
}

// TestFailedLogAcksNothing: an append that everybody has is not acked once the
// leader's log has failed for another reason than that append (R8).
func TestFailedLogAcksNothing(t *testing.T) {
	d := newDesk(t, deskOptions{sync: replica.Never})
	all := d.mustProduce(-1)
	d.fetch(3, 1)
	d.mem.Kill()
	if err := d.log.SyncNow(); err == nil {
		t.Fatal("the disk is gone, and the sync went well")
	}
	d.fetch(2, 1)
	wantAck(t, all, partition.NotLeader)
	if !d.fx.Decline && d.p.Status().Resigned == nil {
		t.Error("leads on")
	}
}

// A disk that is full when a replica is elected leaves its log whole. Who could lead in
// its place is elected; the only one that may lead tries again until there is space,
// since nothing leads back from last known.
func TestLeadOnFullDisk(t *testing.T) {
	for _, alone := range []bool{true, false} {
		t.Run(fmt.Sprintf("alone %v", alone), func(t *testing.T) {
			d := newDesk(t, deskOptions{noLead: true, minISR: 1})
			d.rec = d.rec.Clone()
			if alone {
				d.rec.ISR = d.rec.ISR[:1]
			}
			d.mem.SetCapacity(d.mem.Used())
			var fx Effects
			if err := d.p.Update(d.rec, d.now, &fx); !errors.Is(err, syscall.ENOSPC) {
				t.Fatalf("update on a full disk: %v, want ENOSPC", err)
			}
			if fx.Decline == alone {
				t.Errorf("declines: %v", fx.Decline)
			}
			if alone && (fx.Tick.IsZero() || d.p.Status().Role == Leading) {
				t.Errorf("wants Tick at %v, is %v", fx.Tick, d.p.Status().Role)
			}
			d.mem.SetCapacity(0)
			d.tick(time.Second)
			if got := d.p.Status().Role; (got == Leading) != alone {
				t.Errorf("with space again it is %v", got)
			}
		})
	}
}

// A leader that has had no room for LagMax asks to be relieved, and again after that
// time, unless it has taken an append meanwhile or is alone.
func TestRelief(t *testing.T) {
	d := newDesk(t, deskOptions{minISR: 1, sync: replica.Never, segment: 8 << 10})
	refused := func(after time.Duration, want bool) {
		t.Helper()
		d.now = d.now.Add(after)
		if _, err := d.produce(1); !errors.Is(err, replica.ErrNoRoom) || !errors.Is(err, syscall.ENOSPC) {
			t.Fatalf("append on a full disk: %v", err)
		}
		if d.fx.Relief != want {
			t.Errorf("relief: %v; want %v", d.fx.Relief, want)
		}
	}
	d.mem.SetCapacity(d.mem.Used())
	for range 1000 {
		if _, err := d.produce(1); err != nil {
			break
		}
	}
	refused(lagMax-1, false)
	if err := d.log.Room(); !errors.Is(err, replica.ErrNoRoom) {
		t.Errorf("room: %v", err)
	}
	refused(1, true)
	refused(lagMax-1, false)
	refused(1, true)
	d.mem.SetCapacity(0)
	if err := d.log.Room(); err != nil {
		t.Errorf("room: %v", err)
	}
	d.mustProduce(1)
	d.mem.SetCapacity(d.mem.Used())
	for err := error(nil); err == nil; {
		_, err = d.produce(1)
	}
	refused(lagMax-1, false)
	refused(1, true)
	d.update(func(r *partition.Record) { r.ISR = r.ISR[:1] })
	refused(lagMax, false)
	if d.p.Status().Role != Leading || d.p.Status().Counters.NoRoom != 9 {
		t.Errorf("%+v", d.p.Status())
	}
}
