package dedupe

import (
	"iter"
	"math/bits"
	"slices"
	"unsafe"

	"github.com/tidemark-log/tidemark/record"
)

// part holds the producers whose hashes begin with the same depth bits, in the
// order of their hashes but for what had to give way. It is open addressing over
// buckets of eight slots: a producer is in the bucket that its hash falls on, or
// in one behind it if all up to there are full. Finding one reads a word of tags,
// which are small enough to stay in the cache, and then the one slot whose tag is
// right.
type part struct {
	tags    []uint64 // a bucket's each, a byte for a slot: see below
	slots   []slot
	windows []window // nil until one of the producers sends a second batch
	live    int      // slots taken
	used    int      // and those that were
	depth   uint8
	touched int32
	shared  bool // the View has the arrays too: copied before they are written
}

// slot is one producer: 64 bytes, a cache line, without pointers.
type slot struct {
	pid           int64
	lastTimestamp int64
	txnFirst      int64 // −1 if no transaction is open
	last          Batch // the newest of the window, if n > 0
	coordEpoch    int32
	epoch         int16
	n             uint8 // batches remembered
	// run is how many of the newest batches follow each other in sequence, none
	// longer than longBatch. While it covers the window, a batch that comes next
	// in sequence cannot be one of it, and the window need not be looked at.
	run  uint8
	next uint8 // where the newest goes in window when one follows it
	want int32 // the sequence that comes next while run covers the window, else −1
}

// window is the up to four batches before the newest: a ring, of which slot.next
// is the oldest if it is full.
type window [Window - 1]Batch

// Tags. What was taken in a full bucket stays wasTaken, so that those behind it
// are found; a bucket that has an empty slot never was full.
const (
	empty    = 0
	wasTaken = 1
	taken    = 2 // and above: 254 values of the hash

	bucket   = 8
	ones     = 0x0101010101010101
	topBits  = 0x80 * ones
	maxSlots = 2048 // of a part, then it splits
	maxDepth = 24
)

// tagged is the tag of a hash in all bytes of a word.
func tagged(h uint64) uint64 { return (h&0xffff*254>>16 + taken) * ones }

// zeros has the top bit set of each byte of w that is 0, and maybe of others
// above the first.
func zeros(w uint64) uint64 { return (w - ones) &^ w & topBits }

// home is the slot of a hash. Hashes in order have homes in order.
func (p *part) home(h uint64) int {
	i, _ := bits.Mul64(h<<(p.depth&63), uint64(len(p.slots)))
	return int(i)
}

// find returns the slot of producer pid, whose hash is h.
func (p *part) find(pid int64, h uint64) (i int, ok bool) {
	i = p.home(h)
	// The batches before the newest are read here for the cache only: Update will
	// write there, and waits once for both.
	if uint(i) < uint(len(p.windows)) {
		w := &p.windows[i]
		p.touched = w[0].OffsetDelta + w[len(w)-1].OffsetDelta
	}
	if p.has(i) && p.slots[i].pid == pid {
		return i, true
	}
	return p.search(pid, h)
}

// search is find for a producer that is not at home.
func (p *part) search(pid int64, h uint64) (i int, ok bool) {
	tag := tagged(h)
	for b := p.home(h) / bucket; ; {
		w := p.tags[b]
		for m := zeros(w ^ tag); m != 0; m &= m - 1 {
			if i := b*bucket + bits.TrailingZeros64(m)/8; p.slots[i].pid == pid {
				return i, true
			}
		}
		if zeros(w) != 0 {
			return 0, false
		}
		if b++; b == len(p.tags) {
			b = 0
		}
	}
}

// take returns a slot for a producer whose hash is h, its home unless that is the
// home of the one there, which goes elsewhere if not. There must be a free slot,
// and the arrays be unshared.
func (t *Table) take(p *part, h uint64) int {
	home := p.home(h)
	if !p.has(home) {
		p.set(home, h)
		return home
	}
	b := home / bucket
	for zeros(p.tags[b]&^(wasTaken*ones)) == 0 {
		if b++; b == len(p.tags) {
			b = 0
		}
	}
	i := b*bucket + bits.TrailingZeros64(zeros(p.tags[b]&^(wasTaken*ones)))/8
	there := t.hash(p.slots[home].pid)
	if b != home/bucket || p.home(there) == home || p.home(there)/bucket != b {
		p.set(i, h)
		return i
	}
	p.slots[i] = p.slots[home]
	if p.windows != nil {
		p.windows[i] = p.windows[home]
	}
	p.set(i, there)
	p.live-- // moved
	p.set(home, h)
	return home
}

// set tags slot i, which is free or whose producer has moved.
func (p *part) set(i int, h uint64) {
	w, at := &p.tags[i/bucket], i%bucket*8
	if *w>>at&0xff == empty {
		p.used++
	}
	p.live++
	*w = *w&^(0xff<<at) | tagged(h)&(0xff<<at)
}

// drop frees slot i.
func (p *part) drop(i int) {
	p.own()
	w, at := &p.tags[i/bucket], i%bucket*8
	full := zeros(*w) == 0
	*w &^= 0xff << at
	if full {
		*w |= wasTaken << at
	} else {
		p.used--
	}
	p.live--
}

// has reports whether there is a producer in slot i.
func (p *part) has(i int) bool { return p.tags[uint(i)/bucket]>>(uint(i)%bucket*8)&0xff >= taken }

// full reports whether the next producer needs more slots: one in 16 stays empty,
// lest the way to one that is not there gets long.
func (p *part) full() bool { return p.used >= len(p.slots)-max(1, len(p.slots)/16) }

// size is how many slots n producers get: an eighth more, and what makes it a
// multiple of an eighth of a power of two.
func size(n int) int {
	n += n/8 + 2
	step := max(bucket, 1<<bits.Len(uint(n))>>4)
	return (n + step - 1) / step * step
}

func newPart(slots int, depth uint8) *part {
	return &part{tags: make([]uint64, slots/bucket), slots: make([]slot, slots), depth: depth}
}

// own makes sure that nobody else has the arrays.
func (p *part) own() {
	if p.shared {
		p.unshare()
	}
}

//go:noinline
func (p *part) unshare() {
	p.tags = slices.Clone(p.tags)
	p.slots = slices.Clone(p.slots)
	p.windows = slices.Clone(p.windows)
	p.shared = false
}

// producer gives slot i the form that callers and files see, oldest batch first.
func (p *part) producer(i int) Producer {
	e := &p.slots[i]
	out := Producer{ID: e.pid, LastTimestamp: e.lastTimestamp, TxnFirstOffset: e.txnFirst,
		CoordinatorEpoch: e.coordEpoch, Epoch: e.epoch, N: int(e.n)}
	for k := range int(e.n) {
		out.Batches[k] = *p.batch(i, k)
	}
	return out
}

// batch returns batch k of slot i, 0 the oldest and n − 1 the newest.
func (p *part) batch(i, k int) *Batch {
	e := &p.slots[i]
	if back := int(e.n) - 1 - k; back > 0 {
		return &p.windows[i][(int(e.next)-back)&(Window-2)]
	}
	return &e.last
}

func (p *part) makeWindows() {
	if p.windows == nil {
		p.windows = newWindows(len(p.slots))
	}
}

//go:noinline
func newWindows(n int) []window { return make([]window, n) }

func (p *part) bytes() int64 {
	return allocated(len(p.tags)*8) + allocated(len(p.slots)*int(unsafe.Sizeof(slot{}))) +
		allocated(len(p.windows)*int(unsafe.Sizeof(window{}))) + int64(unsafe.Sizeof(part{}))
}

// allocated is what an array of n bytes takes: large ones have whole pages.
func allocated(n int) int64 {
	const page = 8 << 10
	if n > 4*page {
		n = (n + page - 1) / page * page
	}
	return int64(n)
}

// hash mixes a producer id with a seed of the table's own, so that nobody can
// choose ids that collide. Nothing that shows depends on it.
func (t *Table) hash(pid int64) uint64 {
	const factor = 0x9e3779b97f4a7c15
	hi, lo := bits.Mul64(uint64(pid)^t.seed, factor)
	return hi ^ lo
}

// find returns where producer pid is.
func (t *Table) find(pid int64) (p *part, i int, ok bool) {
	h := t.hash(pid)
	k := h >> (64 - t.depth)
	if k >= uint64(len(t.dir)) {
		return nil, 0, false // an empty table
	}
	p = t.dir[k]
	i, ok = p.find(pid, h)
	return p, i, ok
}

// knows is find for a producer that most likely is unknown.
func (t *Table) knows(pid int64) bool {
	h := t.hash(pid)
	if len(t.dir) == 0 {
		return false
	}
	_, ok := t.dir[h>>(64-t.depth)].search(pid, h)
	return ok
}

// add makes a slot for a producer that is not there, with the id only.
func (t *Table) add(pid int64) (p *part, i int) {
	h := t.hash(pid)
	if len(t.dir) == 0 {
		t.dir = []*part{newPart(size(0), 0)}
	}
	for p = t.dir[h>>(64-t.depth)]; p.full(); p = t.dir[h>>(64-t.depth)] {
		t.remake(p)
	}
	p.own()
	i = t.take(p, h)
	t.live++
	e := &p.slots[i]
	e.pid, e.lastTimestamp, e.txnFirst, e.coordEpoch, e.epoch = pid, record.NoTimestamp, -1, -1, record.NoProducerEpoch
	e.n, e.run, e.next, e.want = 0, 0, 0, -1
	return p, i
}

// drop frees slot i of p.
func (t *Table) drop(p *part, i int) {
	t.batches -= int(p.slots[i].n)
	t.lastPID = -1
	p.drop(i)
	t.live--
}

// remake gives p as many slots as its producers need, or splits it in two. No
// append ever waits for more.
func (t *Table) remake(p *part) {
	t.lastPID = -1
	old := *p
	n := size(old.live)
	if n <= maxSlots || old.depth == maxDepth {
		*p = *newPart(n, old.depth)
		t.move(&old, p, p)
		return
	}
	high := 0
	bit := uint64(1) << (63 - old.depth)
	for i := range old.slots {
		if old.has(i) && t.hash(old.slots[i].pid)&bit != 0 {
			high++
		}
	}
	q := newPart(size(high), old.depth+1)
	*p = *newPart(size(old.live-high), old.depth+1)
	t.move(&old, p, q)
	if old.depth == t.depth {
		dir := make([]*part, 2*len(t.dir))
		for k, x := range t.dir {
			dir[2*k], dir[2*k+1] = x, x
		}
		t.dir = dir
		t.depth++
		t.hand.part *= 2
		t.cursor.part *= 2
	}
	first := 0
	for t.dir[first] != p {
		first++
	}
	half := 1 << (t.depth - old.depth - 1)
	for k := first + half; k < first+2*half; k++ {
		t.dir[k] = q
	}
}

// move puts the producers of a part that was into low and high, which are new and
// share one bit of the hash more, or are the same.
func (t *Table) move(old, low, high *part) {
	for i := range old.slots {
		if !old.has(i) {
			continue
		}
		e := &old.slots[i]
		h := t.hash(e.pid)
		to := low
		if low != high && h>>(63-old.depth)&1 != 0 {
			to = high
		}
		j := t.take(to, h)
		to.slots[j] = *e
		if e.n > 1 {
			to.makeWindows()
			to.windows[j] = old.windows[i]
		}
	}
}

// reserve makes the parts of an empty table for n producers, without slots, and
// returns how many slots each should get.
func (t *Table) reserve(n int) (slots int) {
	for n>>t.depth > maxSlots*6/7 {
		t.depth++
	}
	t.dir = make([]*part, 1<<t.depth)
	for k := range t.dir {
		t.dir[k] = &part{depth: t.depth}
	}
	n >>= t.depth
	return size(n + 1<<(bits.Len(uint(n))/2)) // some parts get more
}

// parts goes through the parts in order.
func (t *Table) parts() iter.Seq[*part] {
	return func(yield func(*part) bool) {
		for k := 0; k < len(t.dir); k += 1 << (t.depth - t.dir[k].depth) {
			if !yield(t.dir[k]) {
				return
			}
		}
	}
}

// place is where a walk over all slots has come to. Producers that move meanwhile
// may be met twice or not at all.
type place struct{ part, slot int }

// step returns the slot at c and goes on to the next; p is nil at the end, where c
// starts again.
func (t *Table) step(c *place) (p *part, i int) {
	for c.part < len(t.dir) {
		p, i = t.dir[c.part], c.slot
		if c.slot++; i < len(p.slots) {
			return p, i
		}
		*c = place{part: c.part + 1<<(t.depth-p.depth)}
	}
	*c = place{}
	return nil, 0
}
