package sim

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"

	"github.com/tidemark-log/tidemark/isr"
	"github.com/tidemark-log/tidemark/partition"
	"github.com/tidemark-log/tidemark/record"
	"github.com/tidemark-log/tidemark/replica"
)

// op names a message. An answer has the name of its request.
type op uint8

const (
	opFetch op = iota
	opAsk
	opRegister
	opReady
	opKeepAlive
	opAlter
	opDecline
	opStop
	opFence
	opHandover
	opSince
	opPID
	opRecord
	opProduce
	opConsume
	opTrim // delete records
	ops
)

var opNames = [ops]string{"fetch", "ask", "register", "ready", "keep-alive", "alter", "decline", "stop", "fence", "handover", "since", "pid", "record", "produce", "consume", "trim"}

// ofPart reports whether a message touches its partition only.
func (o op) ofPart() bool {
	switch o {
	case opFetch, opAsk, opAlter, opProduce, opConsume, opTrim:
		return true
	}
	return false
}

// message is what travels. The payload has one type for each op and direction.
type message struct {
	op       op
	answer   bool
	from, to int32
	life     int32 // of the sender's node, or for an answer of the receiver's
	part     int32
	id       uint64 // of the request
	sent     int64

	fetch   partition.Fetch // opFetch
	fetched partition.Fetched
	ask     partition.EpochAsk
	asked   partition.EpochAnswer
	alter   *partition.Alter
	altered partition.Altered
	code    partition.Code
	body    any

	view   *replica.View // that fetched.Records alias, of a local peer
	copies int           // on their way
}

// release lets go of the leader's memory.
func (m *message) release() {
	if m.copies--; m.copies <= 0 && m.view != nil {
		m.view.Release()
		m.view = nil
		m.fetched.Records = nil
	}
}

// network delays, drops, doubles and reorders, and can be cut between any two ends
// in either direction.
type network struct {
	w                  *world
	cut                map[[2]int32]int // reasons for which a direction is cut
	last               map[[2]int32]int64
	slowAll, slowCoord int // faults that make it slow
	nextID             uint64
}

func (n *network) init(w *world) {
	n.w = w
	n.cut = map[[2]int32]int{}
	n.last = map[[2]int32]int64{}
}

// localMean is how long a message within a process takes.
const localMean = 5 * us

func (n *network) id() uint64 { n.nextID++; return n.nextID }

func exp(r *rand.Rand, mean int64) int64 {
	return int64(min(r.ExpFloat64(), 20) * float64(mean))
}

func isNode(id int32) bool { return id >= 0 && id < firstClient }

// send takes a message to its receiver, or loses it.
func (n *network) send(m *message) {
	w, c := n.w, &n.w.c
	m.sent = w.now
	m.copies = 1
	r := w.netRand
	link := [2]int32{m.from, m.to}
	local := c.local && isNode(m.from) && isNode(m.to)
	if m.to == hostile {
		m.release()
		return
	}
	if n.cut[link] > 0 {
		w.cov.add("net: lost in a cut")
		m.release()
		return
	}
	faulty := !w.calm && !local
	if faulty && c.drop > 0 && r.Float64() < c.drop {
		w.cov.add("F7 dropped")
		w.tracef("net: dropped %s", m)
		m.release()
		return
	}
	if faulty && c.hostile > 0 && m.op == opFetch && m.answer && len(m.fetched.Records) > 0 && m.view == nil && r.Float64() < c.hostile {
		n.spoil(m)
	}
	if faulty && c.hostile > 0 && !m.answer && m.from != hostile && (m.op == opFetch || m.op == opAlter) && r.Float64() < c.hostile*forging(m.op) {
		n.forge(m)
	}
	times := 1
	if faulty && c.dup > 0 && r.Float64() < c.dup {
		w.cov.add("F7 doubled")
		times = 2
		m.copies++
	}
	for range times {
		base, mean := c.netBase, c.netMean
		if local {
			base, mean = 0, localMean
		}
		delay := base + exp(r, mean)
		if n.slowAll > 0 {
			delay *= 20
		}
		if n.slowCoord > 0 && (m.from == coordinator || m.to == coordinator) {
			delay = delay*50 + exp(r, 300*ms)
		}
		if c.reorder && faulty && r.IntN(200) == 0 {
			w.cov.add("F7 very late")
			delay += exp(r, 3*sec)
		}
		at := w.now + delay
		if !c.reorder || w.calm || local {
			at = max(at, n.last[link]+1)
			n.last[link] = at
		} else if at < n.last[link] {
			w.cov.add("F7 reordered")
		} else {
			n.last[link] = at
		}
		w.post(event{at: at, kind: evDeliver, to: m.to, part: m.part, msg: m})
	}
}

// spoil makes a fetch answer one that no follower may believe (F22). What it
// changes is within a follower's reach: the bytes that a checksum covers, and base
// offset and leader epoch where they contradict the request or another batch.
func (n *network) spoil(m *message) {
	r, b := n.w.netRand, m.fetched.Records
	n.w.cov.add("F22 spoiled answer")
	// The first batch of a log that begins inside of it (A15) may be anywhere there, for
	// all that its follower can tell, unless another one comes with it.
	alone := record.Batch(b).BaseOffset() < m.fetched.Offset && record.Batch(b).Size() >= len(b)
	// Any batch of the answer.
	for r.IntN(3) > 0 && record.Batch(b).Size() < len(b) {
		if next := record.Batch(b).Size(); len(b)-next >= record.HeaderSize {
			b = b[next:]
		}
	}
	size := min(record.Batch(b).Size(), len(b))
	what := r.IntN(4)
	if what == 1 && alone {
		n.w.cov.add("F22 base offset that nothing contradicts")
		what = 0
	}
	switch what {
	case 0: // a flipped bit of what the checksum covers
		b[21+r.IntN(size-21)] ^= 1 << r.IntN(8)
	case 1: // another base offset
		b[r.IntN(8)] += 1 + byte(r.IntN(200))
	case 2: // an absurd epoch
		b[12], b[13], b[14], b[15] = 0x7f, 0xff, 0xff, byte(r.IntN(256))
	case 3: // the end is missing
		m.fetched.Records = m.fetched.Records[:len(m.fetched.Records)-1-r.IntN(size-1)]
	}
}

// forging makes up for how rare a request is.
func forging(o op) float64 {
	if o == opAlter {
		return 8
	}
	return 1
}

// hostile sends what no leader and no coordinator may act on; it hears no answer.
const hostile = firstClient - 1

// forge sends a copy of a request that must be refused and change nothing (F22,
// I23).
func (n *network) forge(m *message) {
	r := n.w.netRand
	n.w.cov.add("F22 forged request")
	f := &message{op: m.op, from: hostile, to: m.to, part: m.part, id: n.id(), fetch: m.fetch}
	if m.op == opFetch {
		q := &f.fetch
		q.Seq += 1 + uint64(r.IntN(3))
		switch r.IntN(10) {
		case 0:
			q.ID.Topic[3] ^= 1
		case 1:
			q.ID.Topic = partition.UUID{}
		case 2:
			q.ID.Partition += 7
		case 3:
			q.LeaderEpoch += 1 << 20
		case 4:
			q.LeaderEpoch = -1 - int32(r.IntN(3))
		case 5:
			q.Replica = 90
		case 6:
			q.BrokerEpoch = -1 - int64(r.IntN(3))
		case 7:
			q.Offset = math.MaxInt64 - int64(r.IntN(3))
		case 8:
			q.Offset, q.LastFetchedEpoch = -1-int64(r.IntN(3)), math.MaxInt32
		case 9: // to one that does not lead
			f.to = (f.to + 1 + r.Int32N(int32(n.w.c.nodes-1))) % int32(n.w.c.nodes)
		}
	} else {
		a := *m.alter
		a.ISR = slices.Clone(a.ISR)
		a.Seq = 0
		switch r.IntN(9) {
		case 0:
			a.BrokerEpoch -= 1 + int64(r.IntN(3))
		case 1:
			a.LeaderEpoch += 1000
		case 2:
			a.PartitionEpoch += 1000
		case 3:
			a.LeaderEpoch--
		case 4:
			a.ISR = append(a.ISR, a.ISR[0])
		case 5:
			a.ISR = append(a.ISR, partition.Member{Node: 90})
		case 6:
			a.ISR = a.ISR[1:] // without its leader
		case 7:
			a.ISR[len(a.ISR)-1].BrokerEpoch += 1000
		case 8:
			a.ID.Topic[3] ^= 1
		}
		f.alter = &a
	}
	n.w.post(event{at: n.w.now + exp(r, 10*ms), kind: evDeliver, to: f.to, part: f.part, msg: f})
}

// cutLink counts reasons for which nothing gets from a to b.
func (n *network) cutLink(a, b int32, by int) {
	n.cut[[2]int32{a, b}] += by
}

// ends are all nodes and the coordinator.
func (w *world) ends() []int32 {
	list := []int32{coordinator}
	for i := range w.nodes {
		list = append(list, int32(i))
	}
	return list
}

// reply begins the answer to a request.
func (m *message) reply(from int32) *message {
	return &message{op: m.op, answer: true, from: from, to: m.from, life: m.life, part: m.part, id: m.id}
}

// since is what a node knows when it asks for changes.
type since struct{ revision int64 }

// produce is a client's batch.
type produce struct {
	batch   []byte
	acks    int16
	timeout int64
	s       *sent
}

// produced is the answer.
type produced struct {
	err       error
	base, end int64
	duplicate bool
}

// consume asks for records.
type consume struct {
	offset int64
	latest bool
}

type consumed struct {
	err    error
	bytes  []byte
	offset int64 // of latest
	start  int64
}

type handover struct {
	from, to    int32
	brokerEpoch int64
	leaderEpoch int32
}

type decline struct {
	leaderEpoch int32
	brokerEpoch int64
}

type registered struct {
	q partition.Register
	a partition.Registered
}

const never = math.MaxInt64

var _ isr.Roster = (*roster)(nil)

func (m *message) String() string {
	way := "request"
	if m.answer {
		way = "answer"
	}
	return fmt.Sprintf("%s %s from %d to %d", opNames[m.op], way, m.from, m.to)
}
