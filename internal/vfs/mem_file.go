package vfs

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"path"
	"path/filepath"
	"slices"
	"syscall"
	"time"
)

// meta is what the file system knows of a file.
type meta struct {
	size   int64
	mtime  time.Time
	blocks []bool // which have space on disk
}

func (mt *meta) allocated() (bytes int64) {
	for _, used := range mt.blocks {
		if used {
			bytes += blockSize
		}
	}
	return bytes
}

// content is what programs see of a file.
type content struct {
	meta
	buf []byte // whole sectors, at least size bytes; stray stores behind them
}

// now returns a copy of sector i, as a disk would get it.
func (c *content) now(i int64) *sector {
	s := new(sector)
	if at := i * sectorSize; at < c.size {
		loadSector(s, c.buf[at:])
		clear(s[min(c.size-at, sectorSize):])
	}
	return s
}

// disk is what the disk holds of a file. A sector never changes, so that images
// share them; nil is zeros.
type disk struct {
	meta
	sectors []*sector
}

func (d *disk) at(i int64) *sector {
	if i < int64(len(d.sectors)) && d.sectors[i] != nil {
		return d.sectors[i]
	}
	return &zeroSector
}

func (d *disk) set(i int64, s *sector) {
	if missing := i + 1 - int64(len(d.sectors)); missing > 0 {
		d.sectors = append(d.sectors, make([]*sector, missing)...)
	}
	d.sectors[i] = s
}

// cut forgets the bytes from size on.
func (d *disk) cut(size int64) {
	if n := roundUp(size, sectorSize) / sectorSize; n < int64(len(d.sectors)) {
		d.sectors = d.sectors[:n:n]
	}
	if i := size / sectorSize; i < int64(len(d.sectors)) && d.sectors[i] != nil {
		s := *d.sectors[i]
		clear(s[size%sectorSize:])
		d.sectors[i] = &s
	}
}

func (d *disk) clone() disk {
	to := *d
	to.sectors = slices.Clone(d.sectors)
	return to
}

// content returns what programs see of d after a boot.
func (d *disk) content() content {
	c := content{meta: d.meta, buf: make([]byte, roundUp(d.size, sectorSize))}
	c.blocks = slices.Clone(d.blocks)
	for i, s := range d.sectors {
		if s != nil {
			copy(c.buf[i*sectorSize:], s[:])
		}
	}
	return c
}

// span is a range of bytes; empty if lo >= hi.
type span struct{ lo, hi int64 }

func (s span) union(t span) span {
	if s.lo >= s.hi {
		return t
	}
	if t.lo >= t.hi {
		return s
	}
	return span{min(s.lo, t.lo), max(s.hi, t.hi)}
}

// inode is a file or directory apart from its names. Mem.mu guards it, but not
// the bytes of buf, which maps share.
type inode struct {
	ino    uint64
	isDir  bool
	locked bool
	nlink  int // names programs see
	open   int // files and locks
	maps   int

	entries, diskEntries map[string]*inode // of a directory

	content  // of a directory only mtime counts
	disk     disk
	dirty    span // what calls changed since the last StartSync
	mapped   span // what stores through maps may have changed since then
	writable int  // writable maps out
	// inFlight are snapshots that may or may not have reached the disk: of a
	// sync that was not finished. Oldest first; a finished sync removes its own
	// and older ones.
	inFlight []*snapshot
	// lost has the sectors of failed syncs as they were then: the kernel takes
	// them for clean, so no sync writes them until they change (replication R8).
	lost map[int64]*sector
}

// snapshot is what a StartSync found dirty. It does not change.
type snapshot struct {
	meta
	seq     uint64
	span    span
	sectors map[int64]*sector
}

func (m *Mem) newInode(isDir bool) *inode {
	m.lastIno++
	ino := &inode{ino: m.lastIno, isDir: isDir}
	ino.mtime = m.clock()
	ino.disk.mtime = ino.mtime
	if isDir {
		ino.entries, ino.diskEntries = map[string]*inode{}, map[string]*inode{}
	}
	return ino
}

func (ino *inode) info(name string) Info {
	return Info{Name: name, Size: ino.size, ModTime: ino.mtime, IsDir: ino.isDir, Device: memDevice, Inode: ino.ino, Links: uint64(ino.nlink)}
}

// holds reports whether dir is ino or lies below it.
func (ino *inode) holds(dir *inode) bool {
	if ino == dir {
		return true
	}
	for child := range maps.Values(ino.entries) {
		if child.isDir && child.holds(dir) {
			return true
		}
	}
	return false
}

// reserve makes buf hold n bytes.
func (ino *inode) reserve(n int64) {
	n = roundUp(n, sectorSize)
	switch {
	case n <= int64(len(ino.buf)):
	case n <= int64(cap(ino.buf)): // zeros, nobody was there yet
		ino.buf = ino.buf[:n]
	case ino.maps > 0:
		panic(fmt.Sprintf("vfs.Mem: inode %d is mapped and its buffer of %d bytes cannot grow to %d: map the full length first",
			ino.ino, cap(ino.buf), n))
	default:
		// Not by append, which would touch every page of a map of a gigabyte.
		buf := make([]byte, n, max(n, int64(len(ino.buf))*5/4))
		copy(buf, ino.buf)
		ino.buf = buf
	}
}

// grow makes the file at least size bytes.
func (ino *inode) grow(size int64) {
	if size <= ino.size {
		return
	}
	ino.reserve(size)
	// What was stored behind the end through a map does not exist on a disk.
	dropStores(ino.buf, ino.size, size)
	ino.changed(span{ino.size, size})
	ino.size = size
}

func (ino *inode) changed(s span) { ino.dirty = ino.dirty.union(s) }

// allocate makes blocks for the bytes of s and returns where it stopped: s.hi,
// or before it because the disk is full.
func (m *Mem) allocate(ino *inode, s span) int64 {
	for at := s.lo &^ (blockSize - 1); at < s.hi; at += blockSize {
		i := at / blockSize
		if i < int64(len(ino.blocks)) && ino.blocks[i] {
			continue
		}
		if m.capacity > 0 && m.used+blockSize > m.capacity {
			return max(at, s.lo)
		}
		ino.blocks = withBlock(ino.blocks, i)
		m.used += blockSize
	}
	return s.hi
}

// free gives back the blocks from size on.
func (m *Mem) free(ino *inode, size int64) {
	keep := min(int(roundUp(size, blockSize)/blockSize), len(ino.blocks))
	m.used -= ino.allocated()
	ino.blocks = ino.blocks[:keep:keep]
	m.used += ino.allocated()
}

// release gives back the space of the file if no name, handle or map leads to
// it. A power cut may bring it back, so the inode keeps its state.
func (m *Mem) release(ino *inode) {
	if ino.nlink == 0 && ino.open == 0 && ino.maps == 0 {
		m.used -= ino.allocated()
	}
}

// diff returns the sectors of s in which programs see something else than the
// disk has. It is what a sync of a mapped file costs: stores leave no trace.
func (ino *inode) diff(s span) (dirty []int64) {
	for i := s.lo / sectorSize; i*sectorSize < s.hi; i++ {
		same := i*sectorSize >= ino.size && *ino.disk.at(i) == zeroSector ||
			i*sectorSize < ino.size && equalSector(ino.buf[i*sectorSize:], ino.disk.at(i))
		if !same {
			dirty = append(dirty, i)
		}
	}
	return dirty
}

// capture returns what is dirty now.
func (m *Mem) capture(ino *inode) *snapshot {
	if ino.writable > 0 {
		ino.mapped = ino.mapped.union(span{0, int64(len(ino.buf))})
	}
	s := ino.dirty.union(ino.mapped)
	for _, older := range ino.inFlight {
		s = s.union(older.span)
	}
	s.hi = min(s.hi, ino.size)

	snap := &snapshot{span: s, sectors: make(map[int64]*sector)}
	stored := false
	for _, i := range ino.diff(s) {
		b := ino.now(i)
		if was := ino.lost[i]; was != nil && *was == *b {
			continue
		}
		delete(ino.lost, i)
		stored = stored || i*sectorSize < ino.dirty.lo || i*sectorSize >= ino.dirty.hi
		at := span{i * sectorSize, min((i+1)*sectorSize, ino.size)}
		if m.allocate(ino, at) < at.hi {
			panic(fmt.Sprintf("vfs.Mem: store through a map of inode %d at byte %d, a hole, on a full disk: on a real one this is SIGBUS",
				ino.ino, at.lo))
		}
		snap.sectors[i] = b
	}
	if stored {
		ino.mtime = m.clock()
	}
	snap.meta = ino.meta
	snap.blocks = slices.Clone(ino.blocks)
	ino.dirty, ino.mapped = span{}, span{}
	return snap
}

// memFile is an open file, or a held lock.
type memFile struct {
	m        *Mem
	ino      *inode
	name     string
	writable bool

	// guarded by m.mu
	lock, closed bool
	sync         *snapshot // in flight, nil if none
}

func (f *memFile) Name() string { return f.name }

// call and step are those of Mem for an open file.
func (f *memFile) call(op Op, body func() error) error {
	return f.m.call(op, f.name, func() error {
		if f.closed {
			return fs.ErrClosed
		}
		return body()
	})
}

func (f *memFile) step(op Op, body func() error) error {
	return f.m.step(op, f.name, func() error {
		if f.closed {
			return fs.ErrClosed
		}
		return body()
	})
}

func (f *memFile) ReadAt(p []byte, off int64) (n int, err error) {
	err = f.call(OpRead, func() error {
		if off < 0 {
			return badSize(off)
		}
		if off < f.ino.size {
			n = int(min(int64(len(p)), f.ino.size-off))
			readSectors(p[:n], f.ino.buf, off)
		}
		if n < len(p) {
			return io.EOF
		}
		return nil
	})
	return n, err
}

// WriteAt implements [File]. On a full disk it writes what fits.
func (f *memFile) WriteAt(p []byte, off int64) (n int, err error) {
	err = f.step(OpWrite, func() error {
		if !f.writable {
			return syscall.EBADF
		}
		if err := errors.Join(badSize(off), badSize(off+int64(len(p)))); err != nil {
			return err
		}
		end := f.m.allocate(f.ino, span{off, off + int64(len(p))})
		if n = int(end - off); n > 0 {
			f.ino.grow(end)
			copy(f.ino.buf[off:end], p)
			f.ino.changed(span{off, end})
			f.ino.mtime = f.m.clock()
		}
		if n < len(p) {
			return syscall.ENOSPC
		}
		return nil
	})
	return n, err
}

func (f *memFile) Close() error {
	return f.call(OpClose, func() error {
		f.closed = true
		if f.lock {
			f.ino.locked = false
		}
		f.ino.open--
		f.m.release(f.ino)
		return nil
	})
}

func (f *memFile) Stat() (info Info, err error) {
	err = f.call(OpStat, func() error {
		info = f.ino.info(path.Base(filepath.ToSlash(f.name)))
		return nil
	})
	return info, err
}

func (f *memFile) NextData(off int64) (from, to int64, err error) {
	err = f.call(OpRead, func() error {
		if off < 0 {
			return badSize(off)
		}
		for from = off; from < f.ino.size; from = from/sectorSize*sectorSize + sectorSize {
			var s sector
			readSectors(s[:min(sectorSize-from%sectorSize, f.ino.size-from)], f.ino.buf, from)
			if s != zeroSector {
				to = f.ino.size
				return nil
			}
		}
		from, to = off, off
		return nil
	})
	return from, to, err
}

func (f *memFile) Truncate(size int64) error {
	return f.step(OpTruncate, func() error {
		if !f.writable {
			return syscall.EINVAL
		}
		if err := badSize(size); err != nil {
			return err
		}
		if size < f.ino.size {
			clear(f.ino.buf[size:f.ino.size])
			f.ino.size = size
			f.m.free(f.ino, size)
		}
		f.ino.grow(size)
		f.ino.mtime = f.m.clock()
		return nil
	})
}

func (f *memFile) Allocate(size int64) error {
	return f.step(OpAllocate, func() error {
		if !f.writable {
			return syscall.EBADF
		}
		if err := badSize(size); err != nil {
			return err
		}
		before, used := slices.Clone(f.ino.blocks), f.m.used
		if f.m.allocate(f.ino, span{0, size}) < size {
			f.ino.blocks, f.m.used = before, used
			return fmt.Errorf("%d bytes: %w", size, syscall.ENOSPC)
		}
		f.ino.grow(size)
		return nil
	})
}

func (f *memFile) StartSync() error {
	return f.step(OpStartSync, func() error {
		if f.sync != nil {
			return errors.New("a sync of this file is in flight")
		}
		f.sync = f.m.capture(f.ino)
		f.m.lastSync++
		f.sync.seq = f.m.lastSync
		f.ino.inFlight = append(f.ino.inFlight, f.sync)
		return nil
	})
}

func (f *memFile) FinishSync() error {
	return f.step(OpFinishSync, func() error {
		snap, err := f.endSync()
		if err != nil {
			return err
		}
		ino := f.ino
		if !slices.Contains(ino.inFlight, snap) {
			return nil // a later sync, of another handle, covered it
		}
		ino.disk.cut(snap.size)
		for i, s := range snap.sectors {
			ino.disk.set(i, s)
		}
		ino.disk.meta = snap.meta
		ino.inFlight = slices.DeleteFunc(ino.inFlight, func(s *snapshot) bool { return s.seq <= snap.seq })
		return nil
	})
}

func (f *memFile) endSync() (*snapshot, error) {
	snap := f.sync
	if snap == nil {
		return nil, errors.New("no sync of this file was started")
	}
	f.sync = nil
	return snap, nil
}

// failSync ends the sync in flight as a disk error does: what it covered may
// never reach the disk, and the kernel takes it for clean.
func (f *memFile) failSync() {
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	snap, err := f.endSync()
	if err != nil {
		return
	}
	if f.ino.lost == nil {
		f.ino.lost = make(map[int64]*sector)
	}
	maps.Copy(f.ino.lost, snap.sectors)
}

func (f *memFile) Map(length int64, writable bool) (Map, error) {
	var mm *memMap
	err := f.call(OpMap, func() error {
		if err := badSize(length); err != nil {
			return err
		}
		if length == 0 {
			return syscall.EINVAL
		}
		if writable && !f.writable {
			return syscall.EACCES
		}
		f.ino.reserve(length)
		f.ino.maps++
		if writable {
			f.ino.writable++
		}
		mm = &memMap{m: f.m, ino: f.ino, name: f.name, writable: writable, b: f.ino.buf[:length:length]}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return mm, nil
}

type memMap struct {
	m        *Mem
	ino      *inode
	name     string
	writable bool
	b        []byte // nil once unmapped
}

func (mm *memMap) Bytes() []byte { return mm.b }

func (mm *memMap) Populate(off, n int64) error {
	return mm.m.call(OpPopulate, mm.name, func() error {
		if off < 0 || n < 0 || off > int64(len(mm.b))-n {
			return fmt.Errorf("%d bytes at %d: map has %d", n, off, len(mm.b))
		}
		if n > 0 && off+n > roundUp(mm.ino.size, blockSize) {
			return fmt.Errorf("%d bytes at %d: %w", n, off, syscall.EFAULT)
		}
		return nil
	})
}

func (mm *memMap) PopulateRead(off, n int64) error { return mm.Populate(off, n) }

func (mm *memMap) Unmap() error {
	return mm.m.call(OpUnmap, mm.name, func() error {
		if mm.b == nil {
			return errors.New("unmapped twice")
		}
		ino := mm.ino
		mm.b = nil
		ino.maps--
		if mm.writable {
			ino.writable--
			ino.mapped = ino.mapped.union(span{0, int64(len(ino.buf))})
		}
		if ino.maps == 0 {
			// Who kept the slice reads rubbish from now on, and the race
			// detector sees it if that happens at the same time.
			old := ino.buf
			n := roundUp(ino.size, sectorSize)
			ino.buf = slices.Clone(old[:n])
			clear(ino.buf[ino.size:]) // stray stores
			fill(old[:n], 0xDB)
		}
		mm.m.release(ino)
		return nil
	})
}

func fill(b []byte, v byte) {
	if len(b) == 0 {
		return
	}
	b[0] = v
	for n := 1; n < len(b); n *= 2 {
		copy(b[n:], b[:n])
	}
}
