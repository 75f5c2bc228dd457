// Package dedupe remembers what idempotent producers have sent, so that a log
// drops what they send twice, and keeps that in files (log-format §5).
//
// A [Table] holds for each producer id its epochs, its last timestamp, the first
// offset of its open transaction and its last five batches:
//
//	index, 4 B a cell          entries, 64 B             windows, 96 B
//	├──────┼──────┼─ ...      ├─────────────────┼─ ...  ├─────────────────┼─ ...
//	│ 8+24 │      │           │ id, epochs, the │       │ up to four      │
//	│ bits │      │           │ newest batch    │       │ older batches   │
//	└──┬───┴──────┴─          └─────▲───────────┴─      └─────▲───────────┴─
//	   └─────── number ─────────────┴─────────────────────────┘
//
// All links are numbers: the garbage collector finds two pointers in 1,024 entries.
// The index is open addressing over the entries' numbers, with eight bits of the
// hash in the cell. It doubles, but moves eight cells at each insertion, so that
// no append waits for all of it. Entries and windows come in chunks of 1,024 that
// never move; a chunk of windows is made when one of its producers sends a second
// batch. [Table.Freeze] shares the chunks with a [View] for a file to be written
// from; the table copies a chunk before it writes to it.
//
// Check decides about a batch and changes nothing, Update enters one that was
// appended (§5.3). Followers, and replays of a log, only call Update.
//
// A Table is bounded. When it is full, a new producer takes the place of the
// longest idle one, the one whose last batch has the lowest offset, among the
// next 32 entries that a hand meets on its way round the table. A producer with
// an open transaction is never evicted: if the hand meets nothing else in 1,024
// entries, the bound gives way. An evicted producer is unknown when it comes
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
	// MaxProducers is how many producers are kept, each in 70 to 80 bytes, or some
	// 100 more where producers send more than one batch. Default 1,000,000, at most
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

// entry is one producer: 64 bytes, a cache line, without pointers.
type entry struct {
	pid           int64 // −1: the number is free
	lastTimestamp int64
	txnFirst      int64 // −1 if no transaction is open
	last          Batch // the newest of the window, if n > 0
	coordEpoch    int32
	epoch         int16
	n             uint8 // batches remembered
	// run is how many of the newest batches follow each other in sequence, none
	// longer than longBatch. While it covers the window, a batch that comes next
	// in sequence cannot be one of it, and the window need not be looked at.
	run uint8
}

// longBatch is a number of records of which five stay below 2^31.
const longBatch = 1 << 28

// window is the up to four batches before the newest, the last of them at the
// end. It has the number of its entry. Its batches move up when one is added: a
// place that depended on the entry would be looked up only when that is there.
type window [Window - 1]Batch

// Table is the producers of one log. One caller at a time may use it.
type Table struct {
	max        int
	expiration int64 // ms
	seed       uint64
	index      index
	entries    slab[entry]
	windows    slab[window]
	live       int
	batches    int    // remembered of all producers
	hand       uint32 // where the next eviction looks
	cursor     uint32 // where Expire goes on
	evicted    int64
	expired    int64
	view       *View // the one out, if any

	// The producer that was looked up last: for Update after Check, and for a
	// producer that sends one batch after the other. −1 is none.
	lastPID int64
	lastID  uint32
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
	return Stats{Producers: t.live, Evicted: t.evicted, Expired: t.expired,
		Bytes: t.index.bytes() + t.entries.bytes() + t.windows.bytes()}
}

// Reset drops every producer and gives the memory back. Counters stay.
func (t *Table) Reset() {
	t.index, t.entries, t.windows = index{}, slab[entry]{}, slab[window]{}
	t.live, t.batches, t.hand, t.cursor, t.lastPID = 0, 0, 0, 0, -1
}

// Update enters b, which was appended at base offset base, without asking
// whether it should have been (§5.3, followers and replay). Batches without
// producer change nothing, nor does a control batch that is no marker. It
// returns the transaction that a marker ended. It allocates only when the table
// grows or a View shares what it changes.
func (t *Table) Update(b record.Batch, base int64) (done Transaction, ended bool) {
	pid := b.ProducerID()
	if pid < 0 {
		return done, false
	}
	if b.IsControl() {
		m, timestamp, err := marker(b)
		if err != nil {
			return done, false
		}
		return t.updateMarker(pid, b.ProducerEpoch(), m, timestamp, base)
	}
	id := t.number(pid)
	e := t.entries.edit(id)
	t.setEpoch(e, b.ProducerEpoch())
	delta := b.LastOffsetDelta()
	t.push(id, e, Batch{LastOffset: base + int64(delta), Timestamp: b.MaxTimestamp(), LastSequence: b.LastSequence(), OffsetDelta: delta})
	e.lastTimestamp = b.MaxTimestamp()
	if e.txnFirst < 0 && b.IsTransactional() {
		e.txnFirst = base
	}
	return done, false
}

func (t *Table) updateMarker(pid int64, epoch int16, m record.Control, timestamp, offset int64) (done Transaction, ended bool) {
	e := t.entries.edit(t.number(pid))
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
func (t *Table) setEpoch(e *entry, epoch int16) {
	if e.epoch != epoch {
		t.batches -= int(e.n)
		e.epoch, e.n, e.run = epoch, 0, 0
	}
}

// push makes b the newest batch of e, which is entry id and may be written.
func (t *Table) push(id uint32, e *entry, b Batch) {
	e.extend(b)
	if e.n > 0 {
		w := t.windows.follow(id, t.entries.size(id))
		w[0].set(&w[1])
		w[1].set(&w[2])
		w[2].set(&w[3])
		w[3].set(&e.last)
	}
	e.last.set(&b)
	if e.n < Window {
		e.n++
		t.batches++
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

// extend counts b, which is about to become the newest, to the run or breaks it.
func (e *entry) extend(b Batch) {
	if e.run > 0 && b.FirstSequence() != record.IncSequence(e.last.LastSequence, 1) {
		e.run = 0
	}
	e.run = min(e.run+1, Window)
	if uint32(b.OffsetDelta) >= longBatch {
		e.run = 0
	}
}

// older are the batches before the newest, the oldest first.
func (e *entry) older(id uint32, windows *slab[window]) []Batch {
	if e.n < 2 {
		return nil
	}
	return windows.get(id)[Window-e.n:]
}

// lookup returns the number of the entry of pid, if it has one.
func (t *Table) lookup(pid int64) (id uint32, ok bool) {
	if pid == t.lastPID {
		return t.lastID, true
	}
	if id, ok = t.find(pid, t.hash(pid)); ok {
		t.lastPID, t.lastID = pid, id
	}
	return id, ok
}

// number returns the number of the entry of pid, a new one if it has none.
func (t *Table) number(pid int64) uint32 {
	id, ok := t.lookup(pid)
	if !ok {
		if t.live >= t.max {
			t.evict()
		}
		id = t.add(pid, t.hash(pid))
		t.lastPID, t.lastID = pid, id
	}
	return id
}

func (t *Table) add(pid int64, h uint64) uint32 {
	id := t.entries.take()
	*t.entries.edit(id) = entry{pid: pid, lastTimestamp: record.NoTimestamp, txnFirst: -1, coordEpoch: -1, epoch: record.NoProducerEpoch}
	t.insert(h, id)
	t.live++
	return id
}

// drop frees the entry id.
func (t *Table) drop(id uint32) {
	e := t.entries.edit(id)
	t.remove(t.hash(e.pid), id)
	t.batches -= int(e.n)
	t.lastPID = -1
	*e = entry{pid: -1}
	t.entries.free(id)
	t.live--
}

const (
	evictAmong  = 32   // entries of which the longest idle one goes
	evictWithin = 1024 // entries looked at at most
)

// evict makes room for one producer, if it can.
func (t *Table) evict() {
	victim, found := uint32(0), 0
	var idle int64
	for i := 0; i < evictWithin && found < evictAmong; i++ {
		if t.hand >= t.entries.top {
			t.hand = 0
		}
		e := t.entries.get(t.hand)
		if e.pid >= 0 && e.txnFirst < 0 {
			offset := int64(-1)
			if e.n > 0 {
				offset = e.last.LastOffset
			}
			if found == 0 || offset < idle {
				victim, idle = t.hand, offset
			}
			found++
		}
		t.hand++
	}
	if found > 0 {
		t.drop(victim)
		t.evicted++
	}
}

// Expire drops producers without open transaction whose last timestamp lies
// Expiration or more before nowMs (§5.5). It looks at n entries, going on where
// the last call stopped, and reports whether it came to the end of the table.
// There, if three quarters of the memory are free, the rest is moved together,
// which takes some 25 ms for 250,000 producers.
func (t *Table) Expire(nowMs int64, n int) (done bool) {
	for ; n > 0 && t.cursor < t.entries.top; n-- {
		if e := t.entries.get(t.cursor); e.pid >= 0 && t.isExpired(nowMs, e.lastTimestamp, e.txnFirst) {
			t.drop(t.cursor)
			t.expired++
		}
		t.cursor++
	}
	if t.cursor < t.entries.top {
		return false
	}
	t.cursor = 0
	if t.live < int(t.entries.top)/4 {
		t.compact()
	}
	return true
}

func (t *Table) isExpired(nowMs, lastTimestamp, txnFirst int64) bool {
	if txnFirst >= 0 || nowMs < lastTimestamp {
		return false
	}
	idle := nowMs - lastTimestamp
	return idle >= t.expiration || idle < 0 // it overflowed
}

// compact moves all producers to fresh memory.
func (t *Table) compact() {
	old, windows := t.entries, t.windows
	t.Reset()
	for id := range old.top {
		e := *old.get(id)
		if e.pid < 0 {
			continue
		}
		to := t.add(e.pid, t.hash(e.pid))
		*t.entries.edit(to) = e
		t.batches += int(e.n)
		if e.n > 1 {
			*t.windows.follow(to, t.entries.size(to)) = *windows.get(id)
		}
	}
}

// Get returns what is known about a producer.
func (t *Table) Get(pid int64) (p Producer, ok bool) {
	if id, ok := t.find(pid, t.hash(pid)); ok {
		e := t.entries.get(id)
		return e.producer(id, &t.windows), true
	}
	return p, false
}

// All goes through the producers, in no order that means anything.
func (t *Table) All() iter.Seq[Producer] {
	return func(yield func(Producer) bool) {
		for id := range t.entries.top {
			if e := t.entries.get(id); e.pid >= 0 && !yield(e.producer(id, &t.windows)) {
				return
			}
		}
	}
}

// producer gives e the form that callers and files see, oldest batch first.
func (e *entry) producer(id uint32, windows *slab[window]) Producer {
	p := Producer{ID: e.pid, LastTimestamp: e.lastTimestamp, TxnFirstOffset: e.txnFirst,
		CoordinatorEpoch: e.coordEpoch, Epoch: e.epoch, N: int(e.n)}
	if e.n > 0 {
		p.Batches[copy(p.Batches[:], e.older(id, windows))] = e.last
	}
	return p
}

// enter adds a producer that the table does not know.
func (t *Table) enter(p *Producer, h uint64) {
	id := t.add(p.ID, h)
	e := t.entries.edit(id)
	e.lastTimestamp, e.txnFirst, e.coordEpoch, e.epoch = p.LastTimestamp, p.TxnFirstOffset, p.CoordinatorEpoch, p.Epoch
	if p.N == 0 {
		return
	}
	for _, b := range p.Batches[:p.N] {
		e.extend(b)
		e.last = b
	}
	e.n = uint8(p.N)
	t.batches += p.N
	if p.N > 1 {
		w := t.windows.follow(id, t.entries.size(id))
		copy(w[Window-p.N:], p.Batches[:p.N-1])
	}
}
