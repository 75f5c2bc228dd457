package vfs

import (
	"maps"
	"math/rand/v2"
	"slices"
)

// Clone returns a copy as [Mem.Kill] does, and leaves this one alive.
func (m *Mem) Clone() *Mem {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.cloneLocked()
}

// Kill returns what the next process finds when this one is killed: all bytes
// and names as they are now, what is on disk and what is not, the same boot id,
// no locks, no open files. The copy shares no memory with this one, which is
// dead from now on: its maps can still be touched, but every call of it or of
// its files returns ErrDead.
func (m *Mem) Kill() *Mem {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.dead = true
	return m.cloneLocked()
}

// Blank returns what the next process finds when this one is killed and the disk is
// replaced by an empty one, in the same boot of the machine.
func (m *Mem) Blank() *Mem {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.dead = true
	b := NewMem(MemOptions{Clock: m.clock, Seed: m.seed, Capacity: m.capacity})
	b.boot, b.lastSync = m.boot, m.lastSync
	b.lastIno = max(b.lastIno, m.lastIno)
	return b
}

func (m *Mem) cloneLocked() *Mem {
	c := &Mem{
		clock: m.clock, seed: m.seed, boot: m.boot,
		capacity: m.capacity, lastIno: m.lastIno, lastSync: m.lastSync,
	}
	copies := make(map[*inode]*inode)
	var copyOf func(*inode) *inode
	copyAll := func(entries map[string]*inode) map[string]*inode {
		to := make(map[string]*inode, len(entries))
		for name, ino := range entries {
			to[name] = copyOf(ino)
		}
		return to
	}
	copyOf = func(ino *inode) *inode {
		if ino == nil || copies[ino] != nil {
			return copies[ino]
		}
		to := &inode{ino: ino.ino, isDir: ino.isDir, nlink: ino.nlink}
		copies[ino] = to
		if ino.isDir {
			to.mtime = ino.mtime
			to.entries, to.diskEntries = copyAll(ino.entries), copyAll(ino.diskEntries)
			return to
		}
		to.content = ino.content.clone()
		to.disk = ino.disk.clone()
		to.dirty = span{0, max(ino.size, ino.disk.size)} // stores through maps too
		to.inFlight = slices.Clone(ino.inFlight)
		to.lost = maps.Clone(ino.lost)
		if to.nlink > 0 {
			c.used += to.allocated()
		}
		return to
	}
	c.root = copyOf(m.root)
	for _, ch := range m.changes {
		ch = slices.Clone(ch)
		for i := range ch {
			ch[i].dir, ch[i].to = copyOf(ch[i].dir), copyOf(ch[i].to)
		}
		c.changes = append(c.changes, ch)
	}
	return c
}

// clone returns a copy without the stray stores but for those in the last sector.
func (c *content) clone() content {
	to := content{meta: c.meta, buf: make([]byte, roundUp(c.size, sectorSize))}
	to.blocks = slices.Clone(c.blocks)
	copySectors(to.buf, c.buf)
	return to
}

// A fate is how much of what was not synced a crash keeps.
type fate int

const (
	keepAll fate = iota
	keepNone
	keepFirst
	keepLast
	keepRandom
	numFates
)

func anyFate(rng *rand.Rand) fate { return fate(rng.IntN(int(numFates))) }

// keeps returns a function that says which of n things are kept, asked in order.
func (f fate) keeps(rng *rand.Rand, n int) func(i int) bool {
	at := rng.IntN(n + 1)
	return func(i int) bool {
		switch f {
		case keepAll:
			return true
		case keepFirst:
			return i < at
		case keepLast:
			return i >= at
		case keepRandom:
			return rng.IntN(2) == 0
		}
		return false
	}
}

// PowerCut returns what the next boot finds when the power fails now. What was
// synced is there. Of the rest (replication F2):
//
//   - each 512-byte sector is as on disk, as now, as a sync in flight has it, or
//     torn: its first bytes as now, the others as on disk;
//   - a size, with the blocks behind it, is the one on disk, the present one or
//     that of a sync in flight; what was never written reads as zeros;
//   - each change of names is there or not, as a whole, and not without the
//     earlier changes of the same names. A file left without a name is gone.
//
// rng decides, and favours the extremes: all, nothing, only the first, only the
// last. The same rng and history give the same image. This file system stays
// alive, so that one run of a test can take many images. For the intermediate
// states that a page may have on disk see [Mem.Writeback].
func (m *Mem) PowerCut(rng *rand.Rand) *Mem {
	m.mu.Lock()
	defer m.mu.Unlock()
	img := &Mem{
		clock: m.clock, seed: m.seed, boot: m.boot + 1,
		capacity: m.capacity, lastIno: m.lastIno, lastSync: m.lastSync,
	}

	// Which names are there: on disk, and kept of the changes.
	entries := make(map[*inode]map[string]*inode)
	of := func(dir *inode) map[string]*inode {
		if entries[dir] == nil {
			entries[dir] = maps.Clone(dir.diskEntries)
		}
		return entries[dir]
	}
	type key struct {
		dir  *inode
		name string
	}
	dropped := make(map[key]bool)
	keeps := anyFate(rng).keeps(rng, len(m.changes))
	for i, c := range m.changes {
		keep := keeps(i)
		for _, e := range c {
			keep = keep && !dropped[key{e.dir, e.name}]
		}
		for _, e := range c {
			if keep {
				e.applyTo(of(e.dir))
			} else {
				dropped[key{e.dir, e.name}] = true
			}
		}
	}

	// What is in the files that they lead to.
	shared, alike := anyFate(rng), rng.IntN(2) == 0
	copies := make(map[*inode]*inode)
	var copyOf func(*inode) *inode
	copyOf = func(ino *inode) *inode {
		if to := copies[ino]; to != nil {
			to.nlink++
			return to
		}
		to := &inode{ino: ino.ino, isDir: ino.isDir, nlink: 1}
		copies[ino] = to
		if ino.isDir {
			to.mtime = ino.mtime
			to.entries = make(map[string]*inode)
			for _, name := range slices.Sorted(maps.Keys(of(ino))) {
				to.entries[name] = copyOf(of(ino)[name])
			}
			to.diskEntries = maps.Clone(to.entries)
			return to
		}
		f := shared
		if !alike {
			f = anyFate(rng)
		}
		to.disk = ino.settle(rng, f, true)
		to.content = to.disk.content()
		img.used += to.allocated()
		return to
	}
	img.root = copyOf(m.root)
	return img
}

// Writeback makes a part of what is not synced durable, as the kernel does when
// it likes: whole sectors as they are now, sizes, and the oldest changes of
// names. Called now and then it lets a later [Mem.PowerCut] find intermediate
// states, such as a slot newer than the log it speaks of (replication R7).
func (m *Mem) Writeback(rng *rand.Rand) {
	m.mu.Lock()
	defer m.mu.Unlock()
	n := rng.IntN(len(m.changes) + 1)
	for _, c := range m.changes[:n] {
		c.applyToDisk()
	}
	m.changes = slices.Clone(m.changes[n:])
	seen := make(map[*inode]bool)
	var visit func(*inode)
	visit = func(ino *inode) {
		if seen[ino] {
			return
		}
		seen[ino] = true
		if !ino.isDir {
			ino.disk = ino.settle(rng, anyFate(rng), false)
		}
		for _, name := range slices.Sorted(maps.Keys(ino.entries)) {
			visit(ino.entries[name])
		}
	}
	visit(m.root)
}

// settle returns what is on disk after a part of what is not synced has got
// there. In a crash sectors may tear; else those of failed syncs stay behind.
func (ino *inode) settle(rng *rand.Rand, f fate, crash bool) disk {
	metas := []meta{ino.disk.meta, ino.content.meta}
	for _, snap := range ino.inFlight {
		metas = append(metas, snap.meta)
	}
	kept := metas[rng.IntN(len(metas))]
	switch f {
	case keepAll:
		kept = ino.content.meta
	case keepNone:
		kept = ino.disk.meta
	}
	out := ino.disk.clone()
	out.meta = kept
	out.blocks = slices.Clone(kept.blocks)

	dirty := ino.diff(span{0, max(ino.size, ino.disk.size)})
	for _, snap := range ino.inFlight {
		dirty = slices.AppendSeq(dirty, maps.Keys(snap.sectors))
	}
	slices.Sort(dirty)
	dirty = slices.Compact(dirty)
	keeps := f.keeps(rng, len(dirty))
	for k, i := range dirty {
		now := ino.now(i)
		if was := ino.lost[i]; !crash && was != nil && *was == *now {
			continue
		}
		keep, torn := keeps(k), crash && f != keepAll && f != keepNone && rng.IntN(8) == 0
		if f == keepRandom && len(ino.inFlight) > 0 && rng.IntN(2) == 0 {
			if s := ino.inFlight[rng.IntN(len(ino.inFlight))].sectors[i]; s != nil {
				now = s
			}
		}
		if torn {
			n := 1 + rng.IntN(sectorSize-1)
			mixed := *now
			now = &mixed
			copy(now[n:], out.at(i)[n:])
		}
		if (keep || torn) && i*sectorSize < kept.size {
			out.set(i, now)
			out.blocks = withBlock(out.blocks, i*sectorSize/blockSize)
		}
	}
	out.cut(kept.size)
	return out
}

func withBlock(blocks []bool, i int64) []bool {
	if missing := i + 1 - int64(len(blocks)); missing > 0 {
		blocks = append(blocks, make([]bool, missing)...)
	}
	blocks[i] = true
	return blocks
}
