// Package dedupe remembers what idempotent producers have sent, so that a log
// drops what they send twice, and keeps that in files (log-format §5).
//
// A [Table] holds for each producer id its epochs, its last timestamp, the first
// offset of its open transaction and its last five batches:
//
//	tags, 1 B a slot    slots, 64 B              windows, 96 B
//	├─┼─┼─┼─ ...       ├─────────────────┼─ ... ├─────────────────┼─ ...
//	│ │ │ │            │ id, epochs, the │      │ ring of up to   │
//	│ │ │ │            │ newest batch    │      │ 4 older batches │
//	└─┴─┴─┴─           └─────────────────┴─     └─────────────────┴─
//
// All three are arrays under the same number, which the hash of the id names: open
// addressing. Most producers are at home there, so that one append waits for one
// cache miss: slot, tags and window are fetched side by side. The tags find the
// others. Slots have no pointers: the garbage collector looks at none of them.
//
// The table is divided by the first bits of the hash into parts of up to 2,048 slots.
// A part that is full grows by an eighth, or splits in two: no append waits for
// more than one part to be copied. Windows are made for a part when one of its
// producers sends a second batch. [Table.Freeze] shares the parts with a [View] for
// a file to be written from; the table copies a part before it writes to it.
//
// Check decides about a batch and changes nothing, Update enters one that was
// appended (§5.3). Followers, and replays of a log, only call Update.
//
// A Table is bounded. When it is full, a new producer takes the place of the
// longest idle one, the one whose last batch has the lowest offset, among the
// next 32 that a hand meets on its way round the table. A producer with an open
// transaction is never evicted: if the hand meets nothing else in 1,024 slots, the
// bound gives way. An evicted producer is unknown when it comes
// back: whatever it sends is accepted, as after expiry.
//
// There are two files. Kafka's .snapshot has the last batch of each producer, our
// own .dedupe the whole window. The package starts no goroutine and reads no
// clock; a Table has one caller at a time.
package dedupe

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"time"

	"github.com/tidemark-log/tidemark/record"
)

// Window is how many batches of a producer are remembered (log-format §5.2).
const Window = 5

// Options bounds a table. The zero value is ready to use.
type Options struct {
	// MaxProducers is how many producers are kept, each in 70 to 80 bytes, or 170 to
	// 200 where producers send more than one batch. Default 1,000,000, at most
	// 2^24 − 2.
	MaxProducers int

	// Expiration is how long after its last timestamp a producer without open
	// transaction is kept: Kafka's producer.id.expiration.ms. Default 24 h.
	Expiration time.Duration
}

const (
	defaultMaxProducers = 1_000_000
	maxMaxProducers     = 1<<24 - 2
	defaultExpiration   = 24 * time.Hour
)

// Validate lists every field that is out of bounds.
func (o *Options) Validate() error {
	var errs []error
	if o.MaxProducers < 0 || o.MaxProducers > maxMaxProducers {
		errs = append(errs, fmt.Errorf("MaxProducers %d, want 0 to %d", o.MaxProducers, maxMaxProducers))
	}
	if o.Expiration < 0 {
		errs = append(errs, fmt.Errorf("producer expiration %v, want 0 or more", o.Expiration))
	}
	return errors.Join(errs...)
}

// Batch is what is remembered of one batch.
type Batch struct {
	LastOffset   int64
	Timestamp    int64 // the batch's largest, ms since the epoch; what a duplicate's ack carries
	LastSequence int32
	OffsetDelta  int32 // LastOffset − BaseOffset
}

// BaseOffset is the offset of the batch's first record.
func (b Batch) BaseOffset() int64 { return b.LastOffset - int64(b.OffsetDelta) }

// FirstSequence is the sequence of the batch's first record.
func (b Batch) FirstSequence() int32 { return record.DecSequence(b.LastSequence, b.OffsetDelta) }

// Producer is what a table or a file knows about one producer.
type Producer struct {
	ID               int64
	LastTimestamp    int64 // of its last batch or marker, ms since the epoch
	TxnFirstOffset   int64 // of its open transaction, −1 if none is
	CoordinatorEpoch int32 // −1 if no marker was seen
	Epoch            int16
	N                int // batches in the window
	Batches          [Window]Batch
}

// Last returns the newest batch of the window, false if there is none.
func (p *Producer) Last() (Batch, bool) {
	if p.N == 0 {
		return Batch{LastOffset: -1, LastSequence: record.NoSequence}, false
	}
	return p.Batches[p.N-1], true
}

// Transaction is one that a marker has ended.
type Transaction struct {
	ProducerID  int64
	First, Last int64 // offsets, Last that of the marker
	Aborted     bool
}

// Stats counts what a table holds and has done.
type Stats struct {
	Producers int // in the table
	Evicted   int64
	Expired   int64
	Bytes     int64 // memory of index, entries and windows
}

// longBatch is a number of records of which five stay below 2^31.
const longBatch = 1 << 28

// Table is the producers of one log. One caller at a time may use it.
type Table struct {
	max        int
	expiration int64 // ms
	seed       uint64
	dir        []*part // by the first depth bits of the hash
	depth      uint8
	live       int
	batches    int   // remembered of all producers
	hand       place // where the next eviction looks
	cursor     place // where Expire goes on
	evicted    int64
	expired    int64
	view       *View // the one out, if any

	// The producer that was looked up last: for Update after Check, and for a
	// producer that sends one batch after the other. −1 is none.
	lastPID  int64
	lastPart *part
	lastSlot int
	last     *slot
}

// New returns an empty table. The options must be valid.
func New(o Options) *Table {
	t := &Table{lastPID: -1, max: o.MaxProducers, expiration: o.Expiration.Milliseconds()}
	var seed [8]byte
	rand.Read(seed[:])
	t.seed = binary.LittleEndian.Uint64(seed[:])
	if t.max == 0 {
		t.max = defaultMaxProducers
	}
	if o.Expiration == 0 {
		t.expiration = defaultExpiration.Milliseconds()
	}
	return t
}

// Len is the number of producers.
func (t *Table) Len() int { return t.live }

// Stats counts.
func (t *Table) Stats() Stats {
	s := Stats{Producers: t.live, Evicted: t.evicted, Expired: t.expired, Bytes: 8 * int64(cap(t.dir))}
	for p := range t.parts() {
		s.Bytes += p.bytes()
	}
	return s
}

// Reset drops every producer and gives the memory back. Counters stay.
func (t *Table) Reset() {
	t.dir, t.depth, t.hand, t.cursor = nil, 0, place{}, place{}
	t.live, t.batches, t.lastPID = 0, 0, -1
}

// Update enters b, which was appended at base offset base, without asking
// whether it should have been (§5.3, followers and replay). Batches without
// producer change nothing, nor does a control batch that is no marker. It
// returns the transaction that a marker ended. It allocates only when the table
// grows or a View shares what it changes.
func (t *Table) Update(b record.Batch, base int64) (done Transaction, ended bool) {
	_ = b[record.HeaderSize-1]
	pid := b.ProducerID()
	if pid < 0 {
		return done, false
	}
	if b.IsControl() {
		return t.updateControl(b, base)
	}
	e := t.edit(pid)
	first, delta := b.BaseSequence(), b.LastOffsetDelta()
	if e.n == Window && e.expects(b.ProducerEpoch(), first, delta) { // most of them
		t.lastPart.windows[t.lastSlot][e.next%(Window-1)].set(&e.last)
		e.next++
		e.want = record.IncSequence(first, delta+1)
	} else {
		t.extend(e, b)
	}
	e.last.LastOffset = base + int64(delta)
	e.last.Timestamp = b.MaxTimestamp()
	e.last.LastSequence = b.LastSequence()
	e.last.OffsetDelta = delta
	e.lastTimestamp = e.last.Timestamp
	if e.txnFirst < 0 && b.IsTransactional() {
		e.txnFirst = base
	}
	return done, false
}

func (t *Table) updateControl(b record.Batch, base int64) (done Transaction, ended bool) {
	m, timestamp, err := marker(b)
	if err != nil {
		return done, false
	}
	return t.updateMarker(b.ProducerID(), b.ProducerEpoch(), m, timestamp, base)
}

func (t *Table) updateMarker(pid int64, epoch int16, m record.Control, timestamp, offset int64) (done Transaction, ended bool) {
	e := t.edit(pid)
	t.setEpoch(e, epoch)
	e.coordEpoch = m.CoordinatorEpoch
	e.lastTimestamp = timestamp
	if e.txnFirst < 0 {
		return done, false
	}
	done = Transaction{ProducerID: pid, First: e.txnFirst, Last: offset, Aborted: m.Type == record.Abort}
	e.txnFirst = -1
	return done, true
}

// setEpoch empties the window of a producer whose epoch changes.
func (t *Table) setEpoch(e *slot, epoch int16) {
	if e.epoch != epoch {
		t.batches -= int(e.n)
		e.epoch, e.n, e.run, e.want = epoch, 0, 0, -1
	}
}

// set copies field by field. A copy of the whole would load 16 bytes where the
// last call stored eight, and wait for them to reach the cache.
func (b *Batch) set(from *Batch) {
	b.LastOffset = from.LastOffset
	b.Timestamp = from.Timestamp
	b.LastSequence = from.LastSequence
	b.OffsetDelta = from.OffsetDelta
}

// extend makes room in the window of e, the last one looked up, for b as the
// newest batch.
func (t *Table) extend(e *slot, b record.Batch) {
	t.setEpoch(e, b.ProducerEpoch())
	run := runs(e.run, e.last.LastSequence, b.BaseSequence(), b.LastOffsetDelta())
	if e.n > 0 {
		p := t.lastPart
		p.makeWindows()
		p.windows[t.lastSlot][e.next%(Window-1)].set(&e.last)
		e.next++
	}
	if e.n < Window {
		e.n++
		t.batches++
	}
	e.expect(run, b.LastSequence())
}

// expect sets the run, of a window that ends with sequence last, and what comes next.
func (e *slot) expect(run uint8, last int32) {
	e.run, e.want = run, -1
	if run >= e.n {
		e.want = record.IncSequence(last, 1)
	}
}

// runs returns the run of a window whose newest batch ends with sequence last when
// one of delta + 1 records that begins with first follows.
func runs(run uint8, last, first, delta int32) uint8 {
	if first != record.IncSequence(last, 1) {
		run = 0
	}
	if uint32(delta) >= longBatch {
		return 0
	}
	return min(run+1, Window)
}

// look makes producer pid the last one looked up, if it is known.
func (t *Table) look(pid int64) bool {
	p, i, ok := t.find(pid)
	if ok {
		t.lastPID, t.lastPart, t.lastSlot, t.last = pid, p, i, &p.slots[i]
	}
	return ok
}

// edit returns the slot of producer pid to be written, a new one if it has none,
// and makes it the last one looked up.
func (t *Table) edit(pid int64) *slot {
	if pid != t.lastPID || t.lastPart.shared {
		t.prepare(pid)
	}
	return t.last
}

//go:noinline
func (t *Table) prepare(pid int64) {
	p, i, ok := t.find(pid)
	if !ok {
		if t.live >= t.max {
			t.evict()
		}
		p, i = t.add(pid)
	}
	p.own()
	t.lastPID, t.lastPart, t.lastSlot, t.last = pid, p, i, &p.slots[i]
}

const (
	evictAmong  = 32   // producers of which the longest idle one goes
	evictWithin = 1024 // slots looked at at most
)

// evict makes room for one producer, if it can.
func (t *Table) evict() {
	var from *part
	victim, found := 0, 0
	var idle int64
	for i := 0; i < evictWithin && found < evictAmong; i++ {
		p, i := t.step(&t.hand)
		if p == nil || !p.has(i) || p.slots[i].txnFirst >= 0 {
			continue
		}
		e := &p.slots[i]
		offset := int64(-1)
		if e.n > 0 {
			offset = e.last.LastOffset
		}
		if found == 0 || offset < idle {
			from, victim, idle = p, i, offset
		}
		found++
	}
	if found > 0 {
		t.drop(from, victim)
		t.evicted++
	}
}

// Expire drops producers without open transaction whose last timestamp lies
// Expiration or more before nowMs (§5.5). It looks at n slots, going on where
// the last call stopped, and reports whether it came to the end of the table.
// There, if three quarters of the memory are free, the rest is moved together,
// which takes some 25 ms for 250,000 producers.
func (t *Table) Expire(nowMs int64, n int) (done bool) {
	for ; n > 0; n-- {
		p, i := t.step(&t.cursor)
		if p == nil {
			t.compact()
			return true
		}
		if e := &p.slots[i]; p.has(i) && t.isExpired(nowMs, e.lastTimestamp, e.txnFirst) {
			t.drop(p, i)
			t.expired++
		}
	}
	return false
}

func (t *Table) isExpired(nowMs, lastTimestamp, txnFirst int64) bool {
	if txnFirst >= 0 || nowMs < lastTimestamp {
		return false
	}
	idle := nowMs - lastTimestamp
	return idle >= t.expiration || idle < 0 // it overflowed
}

// compact moves all producers to fresh memory, if they need a quarter of it.
func (t *Table) compact() {
	room := 0
	for p := range t.parts() {
		room += len(p.slots)
	}
	if t.live >= room/4 {
		return
	}
	old := *t
	t.Reset()
	slots := t.reserve(old.live)
	for _, p := range t.dir {
		*p = *newPart(slots, p.depth)
	}
	for p := range old.parts() {
		for i := range p.slots {
			if p.has(i) {
				producer := p.producer(i)
				t.enter(&producer)
			}
		}
	}
}

// Get returns what is known about a producer.
func (t *Table) Get(pid int64) (p Producer, ok bool) {
	if part, i, ok := t.find(pid); ok {
		return part.producer(i), true
	}
	return p, false
}

// All goes through the producers, in no order that means anything.
func (t *Table) All() iter.Seq[Producer] {
	return func(yield func(Producer) bool) {
		for p := range t.parts() {
			for i := range p.slots {
				if p.has(i) && !yield(p.producer(i)) {
					return
				}
			}
		}
	}
}

// enter adds a producer that the table does not know.
func (t *Table) enter(from *Producer) {
	p, i := t.add(from.ID)
	e := &p.slots[i]
	e.lastTimestamp, e.txnFirst, e.coordEpoch, e.epoch = from.LastTimestamp, from.TxnFirstOffset, from.CoordinatorEpoch, from.Epoch
	n := from.N
	t.batches += n
	if n == 0 {
		return
	}
	run, last := uint8(0), int32(0)
	for k := range n {
		b := &from.Batches[k]
		run, last = runs(run, last, b.FirstSequence(), b.OffsetDelta), b.LastSequence
	}
	e.last.set(&from.Batches[n-1])
	e.n, e.next = uint8(n), uint8(n-1)
	e.expect(run, last)
	if n > 1 {
		p.makeWindows()
		for k := range n - 1 {
			p.windows[i][k].set(&from.Batches[k])
		}
	}
}
