package sim

import (
	"errors"

	"github.com/tidemark-log/tidemark/dedupe"
	"github.com/tidemark-log/tidemark/partition"
	"github.com/tidemark-log/tidemark/record"
	"github.com/tidemark-log/tidemark/replica"
)

// client is a producer, a consumer or the administrator.
type client interface {
	handle(e *event)
	start()
	rest() string // what it still waits for, "" for nothing
}

func (w *world) addClients() {
	r := w.clientRand
	for i := range w.c.producers {
		p := &producer{w: w, id: firstClient + int32(len(w.clients)), number: i, part: int32(r.IntN(w.c.parts)), leader: -1, pid: -1, acks: -1}
		p.idempotent = r.Float64() < w.c.idempotent
		acks := pick(r, int16(-1), -1, 0, 1)
		if w.c.has(WeakAcks) && (!p.idempotent || r.IntN(5) == 0) {
			p.acks = acks
			p.idempotent = p.idempotent && acks != 0
		}
		p.inFlight = 5
		if p.idempotent && w.c.has(Trimming|Retention) {
			p.inFlight = 1 // who is forgotten with its records may not be overtaken by itself
		}
		w.clients = append(w.clients, p)
	}
	for range w.c.consumers {
		w.clients = append(w.clients, &consumer{w: w, id: firstClient + int32(len(w.clients)), part: int32(r.IntN(w.c.parts)), leader: -1})
	}
	if w.c.has(Trimming) {
		w.clients = append(w.clients, &trimmer{w: w, id: firstClient + int32(len(w.clients))})
	}
}

func (w *world) startClients() {
	for _, c := range w.clients {
		c.start()
	}
}

func (w *world) toClient(id int32, after int64, k kind, arg int64) {
	w.post(event{at: w.now + after, kind: k, to: id, arg: arg})
}

// sent is a batch of a producer, until its fate is known.
type sent struct {
	number   int64 // unique; the batch's timestamp tells it
	ordinal  int64 // of the producer's batches
	producer *producer
	acks     int16
	pid      int64
	seq      int32
	records  int32
	bytes    []byte
	tries    int
	disorder int // OUT_OF_ORDER answers
	call     uint64
	resend   int64
	done     bool
	acked    bool // with acks=all
	base     int64
	from     int64 // when it was sent first and acked, to the client
	till     int64
}

// producer sends batches; an idempotent one up to five at once, each until it is
// acked.
type producer struct {
	w          *world
	id         int32
	number     int
	part       int32
	acks       int16
	idempotent bool
	inFlight   int
	leader     int32
	pid        int64
	seq        int32
	first      bool // nothing of this pid was acked yet
	out        []*sent
	builder    record.Builder
	resends    int64
	made       int64
	gaveUp     bool // a batch whose fate it does not know
}

func (p *producer) start() {
	p.askLeader()
	if p.idempotent {
		p.askPID()
	}
	p.w.toClient(p.id, exp(p.w.clientRand, p.w.c.produceGap), evClient, 0)
}

func (p *producer) askLeader() { askLeader(p.w, p.id, p.part) }

func askLeader(w *world, id, part int32) {
	w.net.send(&message{op: opRecord, from: id, to: coordinator, part: part})
}

func (p *producer) askPID() {
	p.pid, p.first, p.seq = -1, true, 0
	p.w.net.send(&message{op: opPID, from: p.id, to: coordinator})
	p.resends++
	p.w.toClient(p.id, 500*ms, evWatch, p.resends)
}

func (p *producer) handle(e *event) {
	w := p.w
	switch e.kind {
	case evClient: // time for a batch
		if w.calm {
			return
		}
		p.produce()
		w.toClient(p.id, 1+exp(w.clientRand, w.c.produceGap), evClient, 0)
	case evWatch:
		if p.pid < 0 && e.arg == p.resends {
			p.askPID()
		}
	case evPark: // no answer
		for _, s := range p.out {
			if s.call == uint64(e.arg) && s.call != 0 {
				w.cov.add("client: no answer")
				s.call = 0
				p.askLeader()
				p.retry(s)
				return
			}
		}
	case evRetry:
		for _, s := range p.out {
			if s.resend == e.arg && s.resend != 0 {
				s.resend = 0
				p.send(s)
				return
			}
		}
	case evDeliver:
		defer e.msg.release()
		p.answer(e.msg)
	}
}

func (p *producer) produce() {
	w := p.w
	if p.idempotent && (p.pid < 0 || p.first && len(p.out) > 0) || len(p.out) > 0 && p.made-p.out[0].ordinal >= int64(p.inFlight) {
		return
	}
	s := p.make()
	p.out = append(p.out, s)
	w.cov.add("client: batch")
	p.send(s)
}

func (p *producer) make() *sent {
	w, r := p.w, p.w.clientRand
	w.batches = append(w.batches, nil)
	s := &sent{number: int64(len(w.batches) - 1), producer: p, acks: p.acks, pid: -1, seq: -1, records: int32(1 + r.IntN(w.c.batchRecords))}
	w.batches[s.number] = s
	s.ordinal = p.made
	p.made++
	if p.idempotent {
		s.pid, s.seq = p.pid, p.seq
		p.seq += s.records
	}
	p.encode(s)
	return s
}

func (p *producer) encode(s *sent) {
	recs := make([]record.Record, s.records)
	for i := range recs {
		recs[i].Value = make([]byte, 1+int(s.number)%p.w.c.recordBytes)
		recs[i].Value[0] = byte(i)
		recs[i].Timestamp = epoch.UnixMilli() + s.number
	}
	spec := record.NewSpec()
	if s.pid >= 0 {
		spec.ProducerID, spec.ProducerEpoch, spec.BaseSequence = s.pid, 0, s.seq
	}
	b, err := p.builder.Build(recs, &spec)
	if err != nil {
		panic(err)
	}
	s.bytes = append([]byte(nil), b...)
}

func (p *producer) send(s *sent) {
	w := p.w
	if p.leader < 0 {
		p.askLeader()
		p.retry(s)
		return
	}
	if s.tries++; s.tries == 1 {
		s.from = w.now
	}
	s.call = w.net.id()
	w.tracef("c%d sends batch %d, pid %d seq %d, %d records, acks %d, to n%d", p.id, s.number, s.pid, s.seq, s.records, s.acks, p.leader)
	w.net.send(&message{op: opProduce, from: p.id, to: p.leader, part: p.part, id: s.call,
		body: &produce{batch: s.bytes, acks: s.acks, timeout: w.c.clientWait * 3 / 4, s: s}})
	if s.acks == 0 {
		p.forget(s)
		return
	}
	w.toClient(p.id, w.c.clientWait, evPark, int64(s.call))
}

func (p *producer) retry(s *sent) {
	if !p.idempotent && s.tries >= 3 && !p.w.calm || p.w.calm && !p.idempotent && s.tries > 0 {
		p.forget(s)
		return
	}
	p.resends++
	s.resend = p.resends
	p.w.toClient(p.id, 10*ms+exp(p.w.clientRand, 60*ms), evRetry, s.resend)
}

func (p *producer) forget(s *sent) {
	s.done = true
	for i, x := range p.out {
		if x == s {
			p.out = append(p.out[:i], p.out[i+1:]...)
			return
		}
	}
}

func (p *producer) answer(m *message) {
	w := p.w
	switch m.op {
	case opPID:
		if p.pid < 0 {
			p.pid = m.body.([2]int64)[0]
		}
	case opRecord:
		p.leader = -1
		if r, _ := m.body.(*partition.Record); r != nil {
			p.leader = r.Leader
		}
	case opProduce:
		a := m.body.(*produced)
		var s *sent
		for _, x := range p.out {
			if x.call == m.id {
				s = x
			}
		}
		if s == nil {
			return // it has been sent again since
		}
		s.call = 0
		if a.err == nil {
			w.tracef("c%d batch %d acked at %d", p.id, s.number, a.base)
			p.first = false
			s.till = w.now
			p.forget(s)
			return
		}
		w.cov.add("client: " + short(a.err))
		if errors.Is(a.err, dedupe.ErrOutOfOrder) {
			if s.disorder++; s == p.out[0] && s.disorder >= 5 && (p.acks != -1 || w.c.has(Trimming|Retention)) {
				// What it followed was lost with a leader, as acks=1 allows: a new pid.
				w.cov.add("client: new producer id")
				for _, x := range p.out {
					x.done = true
				}
				p.out = nil
				p.gaveUp = true
				p.askPID()
				return
			}
		}
		if errors.Is(a.err, partition.NotLeader) || errors.Is(a.err, replica.ErrFailed) {
			p.askLeader()
		}
		p.retry(s)
	}
}

func (p *producer) rest() string {
	if len(p.out) > 0 {
		return "a batch that was never acked"
	}
	return ""
}

// consumer reads from the log start on.
type consumer struct {
	w      *world
	id     int32
	part   int32
	leader int32
	offset int64
	call   uint64
	sent   int64
}

func (c *consumer) start() {
	askLeader(c.w, c.id, c.part)
	c.w.toClient(c.id, 50*ms, evClient, 0)
}

func (c *consumer) handle(e *event) {
	w := c.w
	switch e.kind {
	case evClient:
		if w.calm {
			return
		}
		if c.leader < 0 {
			askLeader(w, c.id, c.part)
		} else {
			c.call, c.sent = w.net.id(), w.now
			w.net.send(&message{op: opConsume, from: c.id, to: c.leader, part: c.part, id: c.call,
				body: &consume{offset: c.offset, latest: w.clientRand.IntN(8) == 0}})
		}
		w.toClient(c.id, 10*ms+exp(w.clientRand, 60*ms), evClient, 0)
	case evDeliver:
		defer e.msg.release()
		m := e.msg
		if m.op == opRecord {
			if r, _ := m.body.(*partition.Record); r != nil {
				c.leader = r.Leader
			}
			return
		}
		a := m.body.(*consumed)
		if m.id != c.call {
			return
		}
		c.call = 0
		switch {
		case errors.Is(a.err, partition.NotLeader):
			askLeader(w, c.id, c.part)
		case errors.Is(a.err, partition.OffsetOutOfRange) || errors.Is(a.err, replica.ErrOutOfRange):
			w.cov.add("consumer out of range")
			w.check(a.start > c.offset, "I19", "consumer %d at offset %d is out of range, log start %d", c.id, c.offset, a.start)
			c.offset = a.start
		case a.err != nil:
			w.cov.add("consumer: " + short(a.err))
		case len(a.bytes) > 0:
			at := c.offset
			for b := a.bytes; len(b) > 0; {
				batch := record.Batch(b)
				w.check(batch.BaseOffset() <= at && batch.LastOffset() >= at, "I19", "consumer %d at offset %d gets batch %d to %d", c.id, at, batch.BaseOffset(), batch.LastOffset())
				at = batch.NextOffset()
				b = b[batch.Size():]
			}
			w.cov.add("consumer read")
			if g := w.parts[c.part]; len(g.reads) < historyOps {
				g.reads = append(g.reads, clientOp{client: c.id, read: true, base: c.offset, end: at, from: c.sent, till: w.now})
			}
			c.offset = at
		}
	}
}

func (c *consumer) rest() string { return "" }

// trimmer deletes records now and then.
type trimmer struct {
	w  *world
	id int32
}

func (t *trimmer) start() { t.w.toClient(t.id, sec, evClient, 0) }

func (t *trimmer) handle(e *event) {
	w := t.w
	switch e.kind {
	case evClient:
		if w.calm {
			return
		}
		part := int32(w.clientRand.IntN(w.c.parts))
		if r := w.coord.c.Record(partition.ID{Topic: w.topic, Partition: part}); r != nil && r.Leader >= 0 {
			w.net.send(&message{op: opTrim, from: t.id, to: r.Leader, part: part, body: int64(w.clientRand.IntN(60))})
		}
		w.toClient(t.id, exp(w.clientRand, 2*sec), evClient, 0)
	case evDeliver:
		e.msg.release()
	}
}

func (t *trimmer) rest() string { return "" }
