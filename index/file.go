package index

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"runtime/debug"
	"sync"
	"sync/atomic"

	"github.com/tidemark-log/tidemark/internal/invariant"
	"github.com/tidemark-log/tidemark/internal/mmap"
	"github.com/tidemark-log/tidemark/internal/vfs"
)

var (
	// ErrClosed is what every method that can fail returns after Close or Remove.
	ErrClosed = errors.New("index is closed")
	// ErrFull refuses an entry beyond Options.MaxEntries: the segment must roll.
	ErrFull = errors.New("index is full")
	// ErrOrder refuses an entry that does not follow the last one.
	ErrOrder = errors.New("entry does not follow the last one")
	// ErrRange refuses an entry whose relative offset or position does not fit
	// 31 bits, or any entry while the base offset is unknown.
	ErrRange = errors.New("entry out of range")
	// ErrReadOnly refuses a change to an index opened without Options.Writable.
	ErrReadOnly = errors.New("index is read-only")
	// ErrCorrupt is wrapped by every [*CorruptError].
	ErrCorrupt = errors.New("corrupt index")
)

// A CorruptError names the first thing wrong with an index file. The log can
// rebuild the index.
type CorruptError struct {
	File        string // as it was opened
	Entry       int    // number of the bad entry from 0, −1 if it is the file as a whole
	Found, Want string
}

func (e *CorruptError) Error() string {
	if e.Entry < 0 {
		return fmt.Sprintf("check index %s: found %s, want %s", e.File, e.Found, e.Want)
	}
	return fmt.Sprintf("check index %s entry %d: found %s, want %s", e.File, e.Entry, e.Found, e.Want)
}

func (e *CorruptError) Unwrap() error { return ErrCorrupt }

// UnknownBase is the base offset of an index that is prepared before its
// segment has one. It takes no entry until SetBase or Rename.
const UnknownBase int64 = -1

// Options says how an index is opened.
type Options struct {
	// MaxEntries is the capacity: a writable index maps that much at its first
	// append. Default: what fits Kafka's 10 MiB, 1,310,720 offset or 873,813
	// time entries. A longer file is served whole and is full.
	MaxEntries int
	// Writable allows everything that changes the file.
	Writable bool
	// Trust believes what the file holds (see Load). Without it the index
	// starts empty, to be rebuilt, and a writable one cuts the file at once.
	Trust bool
	// End, if above 0, is the log end offset: entries at or above it that end a
	// trusted file are dropped. A time entry half written by a killed process
	// then cannot be taken for a whole one.
	End int64
	// OnMap, if set, is called with +1 before a file is mapped, where an error
	// refuses the mapping, and with −1 after it is unmapped. The index's file
	// lock is held: OnMap may Unload other indexes, and must call no other
	// method of this one.
	OnMap func(delta int) error
}

const (
	defaultFileBytes = 10 << 20      // Kafka's segment.index.bytes
	maxFileBytes     = math.MaxInt32 // more entries than a log file below 2^31 bytes can have
	firstChunk       = 4 << 10       // bytes allocated by the first append
	maxChunk         = 64 << 10      // chunks double up to this
)

// layout is what the two kinds of index differ in. The functions look at entry
// i of b and at the one before.
type layout struct {
	size  int                                        // bytes of an entry
	rel   func(b []byte, i int) int64                // offset of entry i above the base
	sane  func(b []byte, i int) bool                 // whether entry i may stand where it does
	fault func(b []byte, i int) (found, want string) // why it is not sane
	all   func(b []byte, n int) bool                 // whether sane says so of the first n
}

type fileID struct{ device, inode uint64 }

// file is the storage both kinds share: a file of entries, mapped on demand.
// Lock order: io, mu.
type file struct {
	fs     vfs.FS
	layout *layout
	opt    Options

	// io serialises what opens the file and guards the fields below. It is
	// held across system calls, but not across a sync.
	io      sync.Mutex
	id      fileID // of the mapped file
	changes int    // cuts and new files so far; stores show in n
	clean   mark   // state of the last completed sync, or as loaded
	flushed bool   // whether a sync completed since open
	syncing vfs.File
	pending mark // state when syncing began

	// mu keeps the map in place while it is read or stored to: readers and the
	// appender share it, who takes the map away or lowers n has it alone. Never
	// held across a system call. The fields below change under io and mu both,
	// so that either is enough to read them.
	mu      sync.RWMutex
	name    string
	base    int64
	m       vfs.Map
	b       []byte        // bytes of m; nil if not mapped or faulted
	whole   bool          // m is writable and covers the capacity
	room    int           // entries that can be stored without a system call; −1 if none can
	err     error         // first fault on the map, or ErrClosed
	dropped *CorruptError // what a trusted load left out, while it is still in the file

	// n is the number of entries, −1 while unknown. It is stored after the bytes
	// of the last entry, so below n every entry is whole.
	n atomic.Int64
}

// mark tells two states of the file apart.
type mark struct {
	n       int64
	changes int
}

func (f *file) open(fsys vfs.FS, name string, base int64, o Options, l *layout) error {
	if base < UnknownBase {
		return fmt.Errorf("open index %s: base offset %d: %w", name, base, ErrRange)
	}
	if o.MaxEntries <= 0 {
		o.MaxEntries = defaultFileBytes / l.size
	}
	if o.MaxEntries > maxFileBytes/l.size {
		return fmt.Errorf("open index %s: %d entries, want at most %d: %w", name, o.MaxEntries, maxFileBytes/l.size, ErrRange)
	}
	f.fs, f.name, f.base, f.opt, f.layout, f.room = fsys, name, base, o, l, -1
	if o.Trust {
		f.n.Store(-1)
		f.clean.n = -1
		return nil
	}
	if !o.Writable {
		return nil
	}
	// A stale file must not survive under an index that never gets an entry.
	switch info, err := fsys.Stat(name); {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return fmt.Errorf("open index %s: %w", name, err)
	case info.Size == 0:
		return nil
	}
	return f.cut(0)
}

// capacity is how many entries the file has room for at most. It is never a
// single one, so that a file of that length is known to be trimmed (see used).
func (f *file) capacity() int { return max(f.opt.MaxEntries, 2) }

// usableLocked returns why the index cannot be used. io or mu is held.
func (f *file) usableLocked() error {
	if f.err != nil {
		return fmt.Errorf("index %s: %w", f.name, f.err)
	}
	return nil
}

// writableLocked returns why the index cannot be changed. io or mu is held.
func (f *file) writableLocked() error {
	if err := f.usableLocked(); err != nil {
		return err
	}
	if !f.opt.Writable {
		return fmt.Errorf("index %s: %w", f.name, ErrReadOnly)
	}
	return nil
}

// rlock takes mu for reading and returns how many entries can be read from
// f.b: all of them, or none if the file cannot be mapped.
func (f *file) rlock() int {
	f.mu.RLock()
	n := int(f.n.Load())
	if f.b == nil && n != 0 {
		return f.rlockSlow()
	}
	return n
}

func (f *file) rlockSlow() int {
	for range 4 { // an Unload may come between the mapping and the lock
		f.mu.RUnlock()
		err := f.Load()
		f.mu.RLock()
		n := int(f.n.Load())
		if n == 0 || f.b != nil {
			return n
		}
		if err != nil {
			break
		}
	}
	return 0
}

// Load maps the file if it has entries and is not mapped yet; every other
// method does so by itself, but a lookup cannot tell why it failed.
//
// The first Load of a trusted file finds its entries: they end at the zeros
// that fill an untrimmed file. Then it drops from their end those that do not
// follow the one before or lie at or above Options.End, and a length that is
// not a multiple of the entry size. A writable index removes from the file
// what was dropped, a read-only one lets Check report it. A missing file is an
// empty index. What another process appends later is not seen.
//
// Errors: ErrClosed, *CorruptError if the file is shorter than its known
// entries or longer than any index, what OnMap refused, or of the file system.
// They are not sticky, but for a fault on the map, see Err.
func (f *file) Load() error {
	f.io.Lock()
	defer f.io.Unlock()
	return f.loadLocked()
}

// loadLocked is Load with io held.
func (f *file) loadLocked() error {
	if err := f.usableLocked(); err != nil {
		return err
	}
	n := f.n.Load()
	if f.b != nil || n == 0 {
		return nil
	}
	h, info, err := f.openFile(vfs.ReadOnly)
	if errors.Is(err, fs.ErrNotExist) && n < 0 {
		f.n.Store(0)
		f.clean.n = 0
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { h.Close() }()
	size := int64(f.layout.size)
	whole := info.Size / size * size
	switch {
	case info.Size > maxFileBytes:
		return &CorruptError{f.name, -1, fmt.Sprintf("%d bytes", info.Size), fmt.Sprintf("at most %d", int64(maxFileBytes))}
	case whole < n*size:
		return f.short(info.Size, n)
	}
	var m vfs.Map
	var bad *CorruptError
	if whole > 0 {
		if m, err = f.mapFile(h, whole, false); err != nil {
			return err
		}
	}
	if n < 0 {
		if m != nil {
			n, bad, err = f.count(m.Bytes(), f.base)
		} else {
			n = 0
		}
		if rest := info.Size - whole; err == nil && bad == nil && rest != 0 {
			bad = &CorruptError{f.name, -1, fmt.Sprintf("%d bytes", info.Size), fmt.Sprintf("a multiple of %d", size)}
		}
		if err == nil && bad != nil && f.opt.Writable {
			err = f.truncateFile(n)
			bad = nil
		}
		if m != nil && (err != nil || n == 0) {
			err = cmp.Or(err, f.unmap(m))
			m = nil
		}
		if err != nil {
			return fmt.Errorf("load index %s: %w", f.name, err)
		}
	}
	f.mu.Lock()
	if m != nil {
		f.m, f.b = m, m.Bytes()
	}
	f.id, f.dropped = fileID{info.Device, info.Inode}, bad
	if f.n.Swap(n) < 0 {
		f.clean = mark{n, f.clean.changes}
	}
	f.mu.Unlock()
	return nil
}

// knowLocked makes n known. io is held.
func (f *file) knowLocked() error {
	if f.n.Load() >= 0 {
		return nil
	}
	return f.loadLocked()
}

// count finds the entries of a file that was just mapped at b, as Load says.
func (f *file) count(b []byte, base int64) (n int64, bad *CorruptError, err error) {
	defer mmap.Guard(b, &err, debug.SetPanicOnFault(true))
	k := used(b, f.layout.size)
	beyond := func(i int) bool { return f.opt.End > 0 && base+f.layout.rel(b, i) >= f.opt.End }
	all := k
	for k > 0 && (beyond(k-1) || !f.layout.sane(b, k-1)) {
		k--
	}
	if k < all {
		bad = &CorruptError{File: f.name, Entry: k}
		if bad.Found, bad.Want = f.layout.fault(b, k); f.layout.sane(b, k) {
			bad.Found, bad.Want = fmt.Sprintf("offset %d", base+f.layout.rel(b, k)), fmt.Sprintf("below the log end %d", f.opt.End)
		}
	}
	return int64(k), bad, nil
}

// used returns how many entries of b stand before the zeros at its end, if
// they stand without a gap. Only the first entry may be all zero, and only if
// another follows or it is the whole file: of Kafka's files one that starts
// with (base, position 0), or (timestamp 0, base).
func used(b []byte, size int) int {
	n := len(b) / size
	if n <= 1 {
		return n
	}
	zero := func(i int) bool { return vfs.AllZero(b[i*size:][:size]) }
	lo, hi := 1, n // below lo no entry but the first is zero, from hi on every one is
	for lo < hi {
		if mid := int(uint(lo+hi) >> 1); zero(mid) {
			hi = mid
		} else {
			lo = mid + 1
		}
	}
	if lo == 1 && zero(0) {
		return 0
	}
	return lo
}

// openFile opens the file by name. io is held.
func (f *file) openFile(mode vfs.Mode) (vfs.File, vfs.Info, error) {
	h, err := f.fs.Open(f.name, mode)
	if err != nil {
		return nil, vfs.Info{}, fmt.Errorf("open index: %w", err)
	}
	info, err := h.Stat()
	if err != nil {
		h.Close()
		return nil, vfs.Info{}, fmt.Errorf("open index: %w", err)
	}
	return h, info, nil
}

func (f *file) mapFile(h vfs.File, length int64, writable bool) (vfs.Map, error) {
	if f.opt.OnMap != nil {
		if err := f.opt.OnMap(1); err != nil {
			return nil, fmt.Errorf("map index %s: %w", f.name, err)
		}
	}
	m, err := h.Map(length, writable)
	if err != nil {
		if f.opt.OnMap != nil {
			f.opt.OnMap(-1)
		}
		return nil, fmt.Errorf("map index %s: %w", f.name, err)
	}
	return m, nil
}

func (f *file) unmap(m vfs.Map) error {
	if m == nil {
		return nil
	}
	err := m.Unmap()
	if f.opt.OnMap != nil {
		f.opt.OnMap(-1)
	}
	return err
}

// takeMapLocked takes the map away from readers and the appender, for the
// caller to unmap. io and mu are held.
func (f *file) takeMapLocked() vfs.Map {
	m := f.m
	f.m, f.b, f.whole, f.room = nil, nil, false, -1
	return m
}

// dropMap unmaps once the last reader has left. io is held.
func (f *file) dropMap() error {
	f.mu.Lock()
	m := f.takeMapLocked()
	f.mu.Unlock()
	return f.unmap(m)
}

// fail makes a fault on the map stick and takes the bytes away from lookups.
func (f *file) fail(err error) error {
	f.io.Lock()
	defer f.io.Unlock()
	return f.failLocked(err)
}

// failLocked is fail with io held.
func (f *file) failLocked(err error) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err == nil {
		f.err, f.b, f.room = err, nil, -1
	}
	return f.usableLocked()
}

// openWritable opens the file to change it. If the name is gone, or names
// another file than the one mapped (somebody removed or replaced it), a new
// file gets all entries and the old map is dropped. io is held.
func (f *file) openWritable() (vfs.File, vfs.Info, error) {
	h, info, err := f.openFile(vfs.ReadWrite)
	missing := errors.Is(err, fs.ErrNotExist)
	if err != nil && !missing {
		return nil, info, err
	}
	if missing {
		if h, info, err = f.openFile(vfs.Create); err != nil {
			return nil, info, err
		}
	}
	if missing || f.m != nil && f.id != (fileID{info.Device, info.Inode}) {
		f.changes++
		if err = f.rewrite(h); err == nil {
			info, err = h.Stat()
		}
		if err != nil {
			h.Close()
			return nil, info, fmt.Errorf("rewrite index: %w", err)
		}
	}
	if n := f.n.Load(); info.Size < n*int64(f.layout.size) {
		h.Close()
		return nil, info, f.short(info.Size, n)
	}
	f.id = fileID{info.Device, info.Inode}
	return h, info, nil
}

// short is the error for a file that lost entries it had.
func (f *file) short(size, n int64) error {
	return &CorruptError{f.name, -1, fmt.Sprintf("%d bytes", size), fmt.Sprintf("at least %d: %d entries were there", n*int64(f.layout.size), n)}
}

// rewrite makes h hold the entries of the map, which it drops.
func (f *file) rewrite(h vfs.File) error {
	n := f.n.Load()
	if n > 0 && f.m == nil {
		return f.short(0, n)
	}
	entries, err := f.copyOut(n)
	if err != nil {
		return f.failLocked(err)
	}
	if err := h.Truncate(0); err != nil {
		return err
	}
	if n > 0 {
		if _, err := h.WriteAt(entries, 0); err != nil {
			return err
		}
	}
	return f.dropMap()
}

func (f *file) copyOut(n int64) (entries []byte, err error) {
	if n <= 0 {
		return nil, nil
	}
	defer mmap.Guard(f.b, &err, debug.SetPanicOnFault(true))
	return append(entries, f.b[:n*int64(f.layout.size)]...), nil
}

// grow makes room for one more entry at least: it allocates the next chunk of
// the file and maps the whole capacity, once.
func (f *file) grow() error {
	f.io.Lock()
	defer f.io.Unlock()
	if err := f.writableLocked(); err != nil {
		return err
	}
	if err := f.knowLocked(); err != nil {
		return err
	}
	n, size := int(f.n.Load()), int64(f.layout.size)
	if n >= f.opt.MaxEntries {
		return fmt.Errorf("index %s: %d entries: %w", f.name, n, ErrFull)
	}
	if f.room > n {
		return nil
	}
	h, info, err := f.openWritable()
	if err != nil {
		return err
	}
	defer func() { h.Close() }()
	if f.room < 0 && info.Size > int64(n)*size {
		// What lies behind the entries is not ours: Kafka leaves stale ones there
		// after a truncation (log-format §3.4), and its zeros may have no blocks.
		if err := h.Truncate(int64(n) * size); err != nil {
			return fmt.Errorf("grow index: %w", err)
		}
	}
	old := int64(max(f.room, n)) * size
	end := int64(firstChunk)
	for end < old+size {
		end += min(end, maxChunk)
	}
	room := int(min(end/size, int64(f.capacity())))
	if !f.whole {
		// The map that a lookup made is read-only and ends with the file. It goes
		// first, so that the bound on maps is kept; lookups wait in Load.
		if err := f.dropMap(); err != nil {
			return fmt.Errorf("grow index %s: %w", f.name, err)
		}
	}
	if err := h.Allocate(int64(room) * size); err != nil {
		return fmt.Errorf("grow index: %w", err)
	}
	f.changes++
	if !f.whole {
		m, err := f.mapFile(h, int64(f.capacity())*size, true)
		if err != nil {
			return err
		}
		f.mu.Lock()
		f.m, f.b, f.whole = m, m.Bytes(), true
		f.mu.Unlock()
	}
	_ = f.m.Populate(old, int64(room)*size-old) // else the stores fault, that is all
	f.mu.Lock()
	f.room = min(room, f.opt.MaxEntries)
	f.mu.Unlock()
	return nil
}

// Prepare does ahead of time what the first append would have to: it makes the
// file and its first chunk, and maps it.
func (f *file) Prepare() error { return f.grow() }

// Len returns the number of entries.
func (f *file) Len() int {
	if f.n.Load() < 0 {
		_ = f.Load() // an index that cannot be read has no entries to offer
	}
	return max(int(f.n.Load()), 0)
}

// Err returns why the index stopped serving: a *mmap.FaultError in the chain
// if a page of its map could not be touched, ErrClosed after Close. From then
// on lookups answer as an empty index does, which is right but slow, and
// everything else fails. Reset mends a fault.
func (f *file) Err() error {
	f.mu.RLock()
	defer f.mu.RUnlock()
	return f.usableLocked()
}

// Name returns the path of the file.
func (f *file) Name() string {
	f.mu.RLock()
	defer f.mu.RUnlock()
	return f.name
}

// Base returns the base offset, UnknownBase if none was set yet.
func (f *file) Base() int64 {
	f.mu.RLock()
	defer f.mu.RUnlock()
	return f.base
}

// Unload drops the map if there is one and reports whether none is left; the
// next lookup maps the file again. It leaves the map where it is while
// somebody uses it, and while entries are not synced: it is what keeps the
// kernel from forgetting a failed write-back (replication R8).
func (f *file) Unload() bool {
	if !f.io.TryLock() {
		return false
	}
	defer f.io.Unlock()
	if f.m == nil {
		return true
	}
	if f.stateLocked() != f.clean && f.err == nil {
		return false
	}
	if !f.mu.TryLock() {
		return false
	}
	m := f.takeMapLocked()
	f.mu.Unlock()
	_ = f.unmap(m) // the address range is given up either way
	return true
}

// stateLocked is what a sync that begins now makes durable. io is held.
func (f *file) stateLocked() mark { return mark{f.n.Load(), f.changes} }

// cut drops all entries but the first n, in the file and for lookups. io is
// held or f is not shared yet. The file is shortened, not overwritten: a
// process killed half-way leaves either all of the dropped entries or none,
// and they read as zeros when the file grows again.
func (f *file) cut(n int64) error {
	f.mu.Lock()
	f.n.Store(n)
	f.room = -1
	f.mu.Unlock()
	return f.truncateFile(n)
}

// truncateFile shortens the file to n entries if it is longer. io is held.
func (f *file) truncateFile(n int64) error {
	h, info, err := f.openFile(vfs.ReadWrite)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // nothing is left to drop; openWritable restores the rest
	}
	if err != nil {
		return err
	}
	if err := f.shorten(h, info, n); err != nil {
		return fmt.Errorf("truncate index to %d entries: %w", n, err)
	}
	return nil
}

// shorten cuts h, which is as info says, to n entries if it is longer, and closes
// it. io is held.
func (f *file) shorten(h vfs.File, info vfs.Info, n int64) (err error) {
	if size := n * int64(f.layout.size); info.Size > size {
		f.changes++
		err = h.Truncate(size)
	}
	return cmp.Or(err, h.Close())
}

// TruncateTo drops every entry at or above offset (log-format §3.3), from the
// file too.
func (f *file) TruncateTo(offset int64) error {
	f.io.Lock()
	defer f.io.Unlock()
	if err := f.writableLocked(); err != nil {
		return err
	}
	if err := f.loadLocked(); err != nil {
		return err
	}
	n := f.n.Load()
	k, err := f.below(int(n), offset)
	if err != nil {
		return f.failLocked(err)
	}
	if k == n {
		return nil
	}
	return f.cut(k)
}

// below returns how many of the first n entries have an offset below the
// argument. io is held.
func (f *file) below(n int, offset int64) (k int64, err error) {
	if n <= 0 || offset <= f.base {
		return 0, nil
	}
	defer mmap.Guard(f.b, &err, debug.SetPanicOnFault(true))
	lo, hi := 0, n
	for lo < hi {
		if mid := int(uint(lo+hi) >> 1); f.layout.rel(f.b, mid) < offset-f.base {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	return int64(lo), nil
}

// Reset drops every entry, without reading them, and forgets a fault. The file
// stays the same file.
func (f *file) Reset() error {
	f.io.Lock()
	defer f.io.Unlock()
	if errors.Is(f.err, ErrClosed) || !f.opt.Writable {
		return f.writableLocked()
	}
	f.mu.Lock()
	m := f.takeMapLocked()
	f.err, f.dropped = nil, nil
	f.mu.Unlock()
	return cmp.Or(f.unmap(m), f.cut(0))
}

// Trim cuts the file to its entries, as it must be whenever somebody else may
// open it (log-format §3.4, §12 rule 2), and makes an empty one if there is no
// file (rule 5). An append makes it longer again.
func (f *file) Trim() error {
	f.io.Lock()
	defer f.io.Unlock()
	if err := f.writableLocked(); err != nil {
		return err
	}
	if err := f.knowLocked(); err != nil {
		return err
	}
	f.mu.Lock()
	f.room = -1 // no store may land behind the end
	n := f.n.Load()
	f.mu.Unlock()
	h, info, err := f.openWritable()
	if err != nil {
		return err
	}
	if err := f.shorten(h, info, n); err != nil {
		return fmt.Errorf("trim index to %d entries: %w", n, err)
	}
	return nil
}

// StartSync begins to make the entries durable as they are now, and FinishSync
// waits for it and returns its error. Entries appended in between may or may
// not be covered. A StartSync without FinishSync refuses another one.
func (f *file) StartSync() error {
	f.io.Lock()
	defer f.io.Unlock()
	if err := f.usableLocked(); err != nil {
		return err
	}
	if f.syncing != nil {
		return fmt.Errorf("sync index %s: another sync is in flight", f.name)
	}
	state := f.stateLocked()
	if f.flushed && state == f.clean {
		return nil
	}
	var h vfs.File
	var err error
	if f.opt.Writable && f.m != nil {
		h, _, err = f.openWritable()
		state = f.stateLocked()
	} else if h, _, err = f.openFile(vfs.ReadOnly); errors.Is(err, fs.ErrNotExist) {
		return nil // not made yet, or removed by hand: the next open rebuilds it
	}
	if err != nil {
		return err
	}
	if err := h.StartSync(); err != nil {
		h.Close()
		return fmt.Errorf("sync index: %w", err)
	}
	f.syncing, f.pending = h, state
	return nil
}

// FinishSync is the second half of StartSync; without one it does nothing.
func (f *file) FinishSync() error {
	f.io.Lock()
	h, state := f.syncing, f.pending
	f.io.Unlock()
	if h == nil {
		return nil
	}
	err := h.FinishSync()
	f.io.Lock()
	defer f.io.Unlock()
	f.syncing = nil
	if err = cmp.Or(err, h.Close()); err != nil {
		return fmt.Errorf("sync index: %w", err)
	}
	f.flushed = true
	if state.n >= 0 { // else nothing was touched, or it was loaded meanwhile
		f.clean = state
	}
	return nil
}

// Sync is StartSync and FinishSync in one.
func (f *file) Sync() error {
	if err := f.StartSync(); err != nil {
		return err
	}
	return f.FinishSync()
}

// SetBase gives the index its base offset. An index with entries, which are
// relative to it, keeps the one it has.
func (f *file) SetBase(base int64) error {
	f.io.Lock()
	defer f.io.Unlock()
	return f.setBaseLocked(base)
}

func (f *file) setBaseLocked(base int64) error {
	if base < UnknownBase {
		return fmt.Errorf("set base of index %s: %d: %w", f.name, base, ErrRange)
	}
	if errors.Is(f.err, ErrClosed) {
		return f.usableLocked()
	}
	if base == f.base {
		return nil
	}
	if err := f.knowLocked(); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if n := f.n.Load(); n > 0 {
		return fmt.Errorf("set base of index %s: %d, but %d entries are relative to %d: %w", f.name, base, n, f.base, ErrRange)
	}
	f.base = base
	return nil
}

// Rename gives the file another name, which it takes from any file that has
// it, and the index the base offset that belongs to the name. Making the name
// durable is up to the caller, as with vfs.FS.Rename.
func (f *file) Rename(base int64, name string) error {
	f.io.Lock()
	defer f.io.Unlock()
	if err := f.setBaseLocked(base); err != nil {
		return err
	}
	// An absent file, made lazily or removed by hand, is made under the new name.
	if err := f.fs.Rename(f.name, name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("rename index: %w", err)
	}
	f.mu.Lock()
	f.name = name
	f.mu.Unlock()
	return nil
}

// Remove closes the index and deletes the file, if there is one.
func (f *file) Remove() error {
	err := f.Close()
	f.io.Lock()
	defer f.io.Unlock()
	if rerr := f.fs.Remove(f.name); rerr != nil && !errors.Is(rerr, fs.ErrNotExist) {
		err = cmp.Or(err, fmt.Errorf("remove index: %w", rerr))
	}
	return err
}

// Close waits for lookups and unmaps. It neither trims nor syncs. From then on
// lookups answer as an empty index does and everything else returns ErrClosed;
// a second Close does nothing.
func (f *file) Close() error {
	f.io.Lock()
	defer f.io.Unlock()
	f.mu.Lock()
	m := f.takeMapLocked()
	f.err = ErrClosed
	f.mu.Unlock()
	if err := f.unmap(m); err != nil {
		return fmt.Errorf("close index %s: %w", f.name, err)
	}
	return nil
}

// check walks all entries: order, and what outside says of each. A length that
// is not a multiple of the entry size counts as damage, as does what a
// read-only Load dropped.
func (f *file) check(outside func(b []byte, i int, base int64) (found, want string)) error {
	if err := f.Load(); err != nil {
		return err
	}
	n := f.rlock()
	bad, dropped, err := f.walk(n, outside)
	name, known := f.name, int(f.n.Load())
	f.mu.RUnlock()
	switch {
	case err != nil:
		return f.fail(err)
	case bad != nil:
		return bad
	case dropped != nil:
		return dropped
	case n == 0 && known > 0: // unmapped since Load, and rlock could not map it again
		if err := f.Load(); err != nil {
			return err
		}
		return f.check(outside)
	}
	info, err := f.fs.Stat(name)
	switch {
	case errors.Is(err, fs.ErrNotExist) && n == 0:
		return nil
	case err != nil:
		return fmt.Errorf("check index: %w", err)
	case info.Size%int64(f.layout.size) != 0:
		return &CorruptError{name, -1, fmt.Sprintf("%d bytes", info.Size), fmt.Sprintf("a multiple of %d", f.layout.size)}
	}
	return nil
}

func (f *file) walk(n int, outside func([]byte, int, int64) (string, string)) (bad, dropped *CorruptError, err error) {
	defer mmap.Guard(f.b, &err, debug.SetPanicOnFault(true))
	first := 0
	if f.layout.all(f.b, n) {
		first = max(n-1, 0) // they rise: what bounds the last one bounds them all
	}
	for i := first; i < n; i++ {
		found, want := outside(f.b, i, f.base)
		if !f.layout.sane(f.b, i) {
			found, want = f.layout.fault(f.b, i)
		}
		if want != "" {
			return &CorruptError{f.name, i, found, want}, nil, nil
		}
	}
	return nil, f.dropped, nil
}

// publish makes the entry just stored the last one. mu is held.
func (f *file) publish(n int) {
	if invariant.On {
		found, want := f.layout.fault(f.b, n)
		invariant.Check(f.layout.sane(f.b, n), "index %s: stored entry %d: %s, want %s", f.name, n, found, want)
	}
	f.n.Store(int64(n) + 1)
}

// explain makes a fault that stopped the appender stick, and leaves any other
// error as it is. No lock is held.
func (f *file) explain(err error) error {
	if err == nil {
		return nil
	}
	if _, ok := errors.AsType[*mmap.FaultError](err); ok {
		return f.fail(err)
	}
	return err
}
