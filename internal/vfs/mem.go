package vfs

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math/rand/v2"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// ErrDead is what every call of a [Mem] and of its files returns after
// [Mem.Kill].
var ErrDead = errors.New("dead file system")

// MemOptions tunes a [Mem]. The zero value is ready to use.
type MemOptions struct {
	// Clock gives modification times. Default time.Now. It must not call the
	// file system.
	Clock func() time.Time

	// Capacity is the size of the disk in bytes, used in blocks of 4 KiB; names
	// are free. Past it Allocate and WriteAt fail with ENOSPC. 0 is no limit.
	Capacity int64

	// Seed is what the boot ids are made from.
	Seed uint64
}

// Mem is a file system on the heap that knows what a disk would have kept.
//
// Each file has its bytes as programs see them, which are those a map shares
// (so that the race detector sees stores through maps), and apart from them its
// bytes on disk. Each directory has, besides its entries, the ones on disk, and
// the changes since the last SyncDir are kept in order:
//
//	             WriteAt, maps           StartSync        FinishSync
//	program ───────────────────▶ bytes ─────────────▶ in flight ──────▶ disk
//	             Create, Rename, ...               SyncDir
//	program ───────────────────▶ names, changes ──────────────────────▶ disk
//
// [Mem.Kill] gives what the next process finds, [Mem.PowerCut] what the next
// boot finds: what is on disk and any part of the rest.
//
// Paths are slash separated; a relative one starts at the root, which exists.
// There are no symbolic links. A map does not fault: behind the end of the file
// it reads zeros, and what is stored there is dropped when the file grows over
// it or in a crash. The buffer of a mapped file cannot move, so growing a file
// past the longest map while one is out panics: map the full length first.
// After the last Unmap the old buffer is overwritten, so that a use of it shows.
type Mem struct {
	clock func() time.Time
	seed  uint64
	boot  uint64 // counts power cuts

	hook atomic.Pointer[func(op Op, name string, done bool)]
	ops  atomic.Int64

	mu       sync.Mutex // guards the rest and every inode; never held across the hook
	dead     bool
	capacity int64 // bytes, 0 is no limit
	used     int64 // bytes
	lastIno  uint64
	lastSync uint64
	root     *inode
	changes  []change // of names, not on disk yet; oldest first
}

const (
	memDevice  = 0x7469
	maxMemFile = 16 << 30 // past it EFBIG rather than a huge heap
)

// NewMem returns an empty file system.
func NewMem(opts MemOptions) *Mem {
	if opts.Clock == nil {
		opts.Clock = time.Now
	}
	m := &Mem{clock: opts.Clock, seed: opts.Seed, capacity: opts.Capacity}
	m.root = m.newInode(true)
	m.root.nlink = 1
	return m
}

// SetHook has f called before and after (done) each operation that changes what
// a crash can leave: OpCreate, OpMkdir, OpRemove (RemoveAll is several),
// OpRename, OpLink, OpSyncDir, OpLock, OpWrite, OpTruncate, OpAllocate,
// OpStartSync and OpFinishSync. Rename and Link give the new name. No lock is
// held, so f may take images. nil removes the hook.
func (m *Mem) SetHook(f func(op Op, name string, done bool)) {
	if f == nil {
		m.hook.Store(nil)
		return
	}
	m.hook.Store(&f)
}

// Ops returns how many of the operations that the hook sees have been tried.
func (m *Mem) Ops() int64 { return m.ops.Load() }

// SetCapacity changes the size of the disk; see [MemOptions.Capacity].
func (m *Mem) SetCapacity(bytes int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.capacity = bytes
}

// Used returns the bytes of the blocks in use, those of unlinked files that
// are still open or mapped included.
func (m *Mem) Used() int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.used
}

// BootID implements [FS]: the same after Kill, another after PowerCut.
func (m *Mem) BootID() (id [16]byte) {
	rng := rand.NewPCG(m.seed, m.boot)
	binary.LittleEndian.PutUint64(id[:8], rng.Uint64())
	binary.LittleEndian.PutUint64(id[8:], rng.Uint64())
	return id
}

// call runs f under the lock of a live file system.
func (m *Mem) call(op Op, name string, f func() error) error {
	m.mu.Lock()
	defer m.mu.Unlock() // by defer: f panics when a test misuses a map
	err := ErrDead
	if !m.dead {
		err = f()
	}
	if err == nil || err == io.EOF {
		return err
	}
	return &fs.PathError{Op: op.String(), Path: name, Err: err}
}

// step is call for an operation that changes what a crash can leave.
func (m *Mem) step(op Op, name string, f func() error) error {
	hook := m.hook.Load()
	if hook != nil {
		(*hook)(op, name, false)
	}
	m.ops.Add(1)
	err := m.call(op, name, f)
	if hook != nil && !errors.Is(err, ErrDead) {
		(*hook)(op, name, true)
	}
	return err
}

// A change is what one call does to names, and reaches the disk as a whole.
type change []entry

// An entry is a name and what it leads to afterwards, nil for nothing.
type entry struct {
	dir  *inode
	name string
	to   *inode
}

// apply changes the names that programs see, and notes it for the disk.
func (m *Mem) apply(c change) {
	now := m.clock()
	for _, e := range c {
		old := e.dir.entries[e.name]
		if e.to != nil {
			e.to.nlink++
		}
		e.applyTo(e.dir.entries)
		e.dir.mtime = now
		if old != nil {
			old.nlink--
			m.release(old)
		}
	}
	m.changes = append(m.changes, c)
}

// applyTo changes the entries of e.dir, or a copy of them.
func (e entry) applyTo(entries map[string]*inode) {
	if e.to != nil {
		entries[e.name] = e.to
	} else {
		delete(entries, e.name)
	}
}

func (c change) applyToDisk() {
	for _, e := range c {
		e.applyTo(e.dir.diskEntries)
	}
}

// resolve returns the directory that has or would have the name, the last
// element, and what is there, nil if nothing.
func (m *Mem) resolve(name string) (dir *inode, base string, found *inode, err error) {
	clean := path.Clean("/" + filepath.ToSlash(name))
	if clean == "/" {
		return nil, "/", m.root, nil
	}
	at := m.root
	parent, base := path.Split(clean)
	for elem := range strings.SplitSeq(strings.Trim(parent, "/"), "/") {
		if elem == "" {
			continue
		}
		if at = at.entries[elem]; at == nil {
			return nil, "", nil, syscall.ENOENT
		}
		if !at.isDir {
			return nil, "", nil, syscall.ENOTDIR
		}
	}
	return at, base, at.entries[base], nil
}

// mustResolve is resolve for a name that must exist.
func (m *Mem) mustResolve(name string) (dir *inode, base string, found *inode, err error) {
	dir, base, found, err = m.resolve(name)
	if err == nil && found == nil {
		err = syscall.ENOENT
	}
	return dir, base, found, err
}

// Open implements [FS].
func (m *Mem) Open(name string, mode Mode) (File, error) {
	f := &memFile{m: m, name: name, writable: mode != ReadOnly}
	if mode == ReadOnly || mode == ReadWrite {
		err := m.call(OpOpen, name, func() error { return m.openLocked(f, false, false) })
		if err != nil {
			return nil, err
		}
		return f, nil
	}
	err := m.step(OpCreate, name, func() error { return m.openLocked(f, true, mode == CreateNew) })
	if err != nil {
		return nil, err
	}
	return f, nil
}

func (m *Mem) openLocked(f *memFile, create, exclusive bool) error {
	dir, base, ino, err := m.resolve(f.name)
	switch {
	case err != nil:
		return err
	case ino == nil && !create:
		return syscall.ENOENT
	case ino == nil:
		ino = m.newInode(false)
		m.apply(change{{dir, base, ino}})
	case exclusive:
		return syscall.EEXIST
	case ino.isDir:
		return syscall.EISDIR
	}
	ino.open++
	f.ino = ino
	return nil
}

// Stat implements [FS].
func (m *Mem) Stat(name string) (info Info, err error) {
	err = m.call(OpStat, name, func() error {
		_, base, ino, err := m.mustResolve(name)
		if err == nil {
			info = ino.info(base)
		}
		return err
	})
	return info, err
}

// List implements [FS].
func (m *Mem) List(dir string) (infos []Info, err error) {
	err = m.call(OpList, dir, func() error {
		_, _, ino, err := m.mustResolve(dir)
		if err != nil {
			return err
		}
		if !ino.isDir {
			return syscall.ENOTDIR
		}
		for _, name := range slices.Sorted(maps.Keys(ino.entries)) {
			infos = append(infos, ino.entries[name].info(name))
		}
		return nil
	})
	return infos, err
}

// Mkdir implements [FS].
func (m *Mem) Mkdir(dir string) error {
	return m.step(OpMkdir, dir, func() error {
		parent, base, ino, err := m.resolve(dir)
		if err != nil {
			return err
		}
		if ino != nil {
			return syscall.EEXIST
		}
		m.apply(change{{parent, base, m.newInode(true)}})
		return nil
	})
}

// Remove implements [FS].
func (m *Mem) Remove(name string) error {
	return m.step(OpRemove, name, func() error {
		dir, base, ino, err := m.mustResolve(name)
		switch {
		case err != nil:
			return err
		case dir == nil:
			return syscall.EBUSY
		case len(ino.entries) > 0:
			return syscall.ENOTEMPTY
		}
		m.apply(change{{dir, base, nil}})
		return nil
	})
}

// RemoveAll implements [FS], by as many removals as there are names.
func (m *Mem) RemoveAll(name string) error {
	info, err := m.Stat(name)
	if err == nil && info.IsDir {
		var children []Info
		children, err = m.List(name)
		for _, c := range children {
			if err := m.RemoveAll(path.Join(name, c.Name)); err != nil {
				return err
			}
		}
	}
	if err == nil {
		err = m.Remove(name)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// Rename implements [FS].
func (m *Mem) Rename(oldName, newName string) error {
	return m.stepTwo(OpRename, oldName, newName, func() error {
		oldDir, oldBase, ino, err := m.mustResolve(oldName)
		if err != nil {
			return err
		}
		newDir, newBase, there, err := m.resolve(newName)
		switch {
		case err != nil:
			return err
		case oldDir == nil || newDir == nil:
			return syscall.EBUSY
		case there == ino:
			return nil
		case there != nil && there.isDir: // package os refuses even an empty one
			return syscall.EEXIST
		case there != nil && ino.isDir:
			return syscall.ENOTDIR
		case ino.isDir && ino.holds(newDir):
			return syscall.EINVAL
		}
		// The new name first: the inode must not lose its last one in between.
		m.apply(change{{newDir, newBase, ino}, {oldDir, oldBase, nil}})
		return nil
	})
}

// Link implements [FS].
func (m *Mem) Link(oldName, newName string) error {
	return m.stepTwo(OpLink, oldName, newName, func() error {
		_, _, ino, err := m.mustResolve(oldName)
		if err != nil {
			return err
		}
		dir, base, there, err := m.resolve(newName)
		switch {
		case err != nil:
			return err
		case there != nil:
			return syscall.EEXIST
		case ino.isDir:
			return syscall.EPERM
		}
		m.apply(change{{dir, base, ino}})
		return nil
	})
}

// stepTwo is step for an operation on two names, whose error names both.
func (m *Mem) stepTwo(op Op, oldName, newName string, f func() error) error {
	err := m.step(op, newName, f)
	var pe *fs.PathError
	if errors.As(err, &pe) {
		return &fs.PathError{Op: pe.Op, Path: oldName + " " + newName, Err: pe.Err}
	}
	return err
}

// SyncDir implements [FS]. A change of two directories becomes durable as a
// whole with the first of them that is synced, together with the earlier
// changes of the same names.
func (m *Mem) SyncDir(dir string) error {
	return m.step(OpSyncDir, dir, func() error {
		_, _, ino, err := m.mustResolve(dir)
		if err != nil {
			return err
		}
		if !ino.isDir {
			return syscall.ENOTDIR
		}
		type key struct {
			dir  *inode
			name string
		}
		needed := make(map[key]bool)
		synced := make([]bool, len(m.changes))
		for i, c := range slices.Backward(m.changes) {
			synced[i] = slices.ContainsFunc(c, func(e entry) bool {
				return e.dir == ino || needed[key{e.dir, e.name}]
			})
			if synced[i] {
				for _, e := range c {
					needed[key{e.dir, e.name}] = true
				}
			}
		}
		var rest []change
		for i, c := range m.changes {
			if synced[i] {
				c.applyToDisk()
			} else {
				rest = append(rest, c)
			}
		}
		m.changes = rest
		return nil
	})
}

// Lock implements [FS].
func (m *Mem) Lock(name string) (io.Closer, error) {
	f := &memFile{m: m, name: name}
	err := m.step(OpLock, name, func() error {
		if err := m.openLocked(f, true, false); err != nil {
			return err
		}
		if f.ino.locked {
			f.ino.open--
			return ErrLocked
		}
		f.ino.locked, f.lock = true, true
		return nil
	})
	if err != nil {
		return nil, err
	}
	return f, nil
}

var _ FS = (*Mem)(nil)

// badSize is the error for a size or position that no file can have.
func badSize(n int64) error {
	if n < 0 {
		return fmt.Errorf("%d: %w", n, syscall.EINVAL)
	}
	if n > maxMemFile {
		return fmt.Errorf("%d: %w", n, syscall.EFBIG)
	}
	return nil
}
