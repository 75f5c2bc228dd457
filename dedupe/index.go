package dedupe

import "math/bits"

// index finds the number of an entry by the hash of its producer id: open
// addressing with linear probing. A cell is eight bits of the hash over the
// number + 1; 0 is an empty cell.
//
// It doubles when three quarters are in use: old is what it was before, and eight
// of its cells move at each insertion. Moved cells stay in old, where they do no
// harm, so that its probe sequences stay whole.
type index struct {
	cells []uint32
	old   []uint32
	moved int // cells of old before this one are in cells too
	used  int // numbers in cells and old
}

const (
	numberMask  = 1<<24 - 1
	gone        = 0xff << 24 // a cell of old whose number was removed
	firstCells  = 8
	moveAtOnce  = 8
	hashFactor  = 0x9e3779b97f4a7c15
	fingerShift = 56
)

func (x *index) bytes() int64 { return 4 * int64(cap(x.cells)+cap(x.old)) }

// hash mixes a producer id with a seed of the table's own, so that nobody can
// choose ids that collide. Nothing that shows depends on it.
func (t *Table) hash(pid int64) uint64 {
	hi, lo := bits.Mul64(uint64(pid)^t.seed, hashFactor)
	return hi ^ lo
}

// find returns the number of the entry of pid, whose hash is h.
func (t *Table) find(pid int64, h uint64) (id uint32, ok bool) {
	if _, id, ok = t.probe(t.index.cells, pid, h); !ok && t.index.old != nil {
		_, id, ok = t.probe(t.index.old, pid, h)
	}
	return id, ok
}

func (t *Table) probe(cells []uint32, pid int64, h uint64) (cell uint64, id uint32, ok bool) {
	mask := uint64(len(cells) - 1)
	finger := uint32(h >> fingerShift)
	for i := h & mask; i < uint64(len(cells)); i = (i + 1) & mask {
		c := cells[i]
		if c == 0 {
			break
		}
		if c>>24 == finger && c&numberMask != 0 {
			if id := c&numberMask - 1; t.entries.get(id).pid == pid {
				return i, id, true
			}
		}
	}
	return 0, 0, false
}

// insert adds a number that is not there. The entry has its pid already.
func (t *Table) insert(h uint64, id uint32) {
	x := &t.index
	if x.old != nil {
		t.move(moveAtOnce)
	}
	if 4*(x.used+1) > 3*len(x.cells) {
		t.move(len(x.old))
		x.old, x.moved = x.cells, 0
		x.cells = make([]uint32, max(firstCells, 2*len(x.cells)))
		if len(x.old) == 0 {
			x.old = nil
		}
	}
	x.used++
	x.place(h, uint32(h>>fingerShift)<<24|(id+1))
}

// reserve makes the index of an empty table large enough for n numbers.
func (t *Table) reserve(n int) {
	if n > 0 {
		t.index.cells = make([]uint32, max(firstCells, 1<<bits.Len(uint(n+n/3))))
	}
}

func (x *index) place(h uint64, c uint32) {
	mask := uint64(len(x.cells) - 1)
	i := h & mask
	for x.cells[i] != 0 {
		i = (i + 1) & mask
	}
	x.cells[i] = c
}

// move moves up to n cells of old.
func (t *Table) move(n int) {
	x := &t.index
	for ; n > 0 && x.moved < len(x.old); n-- {
		if c := x.old[x.moved]; c&numberMask != 0 {
			x.place(t.hash(t.entries.get(c&numberMask-1).pid), c)
		}
		x.moved++
	}
	if x.moved == len(x.old) {
		x.old, x.moved = nil, 0
	}
}

// remove takes a number out. The entry has its pid still.
func (t *Table) remove(h uint64, id uint32) {
	x := &t.index
	pid := t.entries.get(id).pid
	x.used--
	if i, _, ok := t.probe(x.old, pid, h); ok {
		x.old[i] = gone
	}
	i, _, ok := t.probe(x.cells, pid, h)
	if !ok {
		return // not moved yet
	}
	// Close the gap: whatever probed past it moves back.
	mask := uint64(len(x.cells) - 1)
	for j := (i + 1) & mask; x.cells[j] != 0; j = (j + 1) & mask {
		home := t.hash(t.entries.get(x.cells[j]&numberMask-1).pid) & mask
		if (j-home)&mask >= (j-i)&mask {
			x.cells[i] = x.cells[j]
			i = j
		}
	}
	x.cells[i] = 0
}
