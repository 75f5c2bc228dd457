package replica

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"runtime/debug"
	"sync"

	"github.com/cespare/xxhash/v2"

	"github.com/tidemark-log/tidemark/internal/invariant"
	"github.com/tidemark-log/tidemark/internal/mmap"
	"github.com/tidemark-log/tidemark/internal/vfs"
)

// The slot file holds what must be known after the process was killed or the
// power failed, in four copies in separate 4 KiB blocks (replication R7). The
// newest valid one counts. All numbers are little-endian.
//
//	 0  u32  magic "TDMS"             88  i64  syncedHW
//	 4  u16  version 1                96  i64  settledEnd
//	 6  u16  length 160              104  i64  logStart
//	 8  u64  sequence                112  u64  flags
//	16  16 B boot id                 120  i64  gapFrom
//	32  u64  device                  128  i64  gapTo
//	40  u64  inode of the directory  136  i64  size of the active .log  (clean)
//	48  16 B log id                  144  i64  its mtime, ns            (clean)
//	64  i64  end                     152  u64  xxh64 of what stands before
//	72  i64  hw
//	80  i64  syncedEnd
//
// Every version keeps magic, version, length and the hash in the last eight
// bytes.
//
// The kernel may write a page at any moment, so each copy is true whenever it
// reaches the disk: end and hw count only under the boot id they were written
// under, on the same device and inode; syncedEnd is stored after its fdatasync
// returned. settledEnd is an offset below which whole segments are sealed,
// trimmed and synced with their indexes. Where gapTo is above gapFrom, a
// truncation inside a batch left a log whose last batch ends at gapFrom and
// which ends at gapTo (log-format §4.6).
//
// A store takes a block that holds neither the newest copy, which a killed
// process falls back on, nor one that a sync covers or is about to: a power cut
// may tear every copy that was stored since.
const (
	slotName    = "tidemark.slot"
	slotSize    = slotCopies * slotBlock
	slotCopies  = 4
	slotBlock   = 4096
	slotBytes   = 160
	slotMagic   = 0x534d4454 // "TDMS"
	slotVersion = 1

	flagClean  = 1 << 0 // closed in order; valid with activeSize and activeTime
	flagFailed = 1 << 1 // a write or sync failed (R8)
	flagCut    = 1 << 2 // the disk may have what was cut behind the end
	flagEmpty  = 1 << 3 // and that is everything: the log begins anew at logStart

	flagNoProducers = 1 << 4 // no batch below the end, or syncedEnd after a power cut, has a producer
	flagAlways      = 1 << 5 // the log has been under Always ever since it was made
	flagLinked      = 1 << 6 // sealed files may be another log's too, or may have been
	flagSuspect     = 1 << 7 // an opening found no evidence (R4), and the log has neither led nor been judged since

	flagsKept = flagNoProducers | flagAlways | flagLinked | flagSuspect // while the log is open, and by a clean close
)

// ErrVersion means that a file of ours was written by a newer release.
var ErrVersion = errors.New("unknown version")

type slotState struct {
	sequence      uint64
	boot          [16]byte
	device, inode uint64
	logID         [16]byte
	end, hw       int64
	syncedEnd     int64
	syncedHW      int64
	settledEnd    int64
	logStart      int64
	flags         uint64
	gapFrom       int64
	gapTo         int64
	activeSize    int64
	activeTime    int64
}

func (s *slotState) encode(b []byte) {
	le := binary.LittleEndian
	b = b[:slotBytes]
	le.PutUint32(b[0:], slotMagic)
	le.PutUint16(b[4:], slotVersion)
	le.PutUint16(b[6:], slotBytes)
	le.PutUint64(b[8:], s.sequence)
	copy(b[16:], s.boot[:])
	le.PutUint64(b[32:], s.device)
	le.PutUint64(b[40:], s.inode)
	copy(b[48:], s.logID[:])
	for i, v := range [...]int64{s.end, s.hw, s.syncedEnd, s.syncedHW, s.settledEnd, s.logStart,
		int64(s.flags), s.gapFrom, s.gapTo, s.activeSize, s.activeTime} {
		le.PutUint64(b[64+8*i:], uint64(v))
	}
	le.PutUint64(b[slotBytes-8:], xxhash.Sum64(b[:slotBytes-8]))
}

// errSlot means that there is no valid copy.
var errSlot = errors.New("no valid copy")

func decodeSlotCopy(b []byte) (s slotState, err error) {
	le := binary.LittleEndian
	if len(b) < slotBytes || le.Uint32(b) != slotMagic {
		return s, errSlot
	}
	n := int(le.Uint16(b[6:]))
	if n < 16 || n > len(b) || xxhash.Sum64(b[:n-8]) != le.Uint64(b[n-8:]) {
		return s, errSlot
	}
	if v := le.Uint16(b[4:]); v != slotVersion {
		return s, fmt.Errorf("read %s: %w: found %d, want %d", slotName, ErrVersion, v, slotVersion)
	}
	if n != slotBytes {
		return s, errSlot
	}
	s.sequence = le.Uint64(b[8:])
	copy(s.boot[:], b[16:])
	s.device, s.inode = le.Uint64(b[32:]), le.Uint64(b[40:])
	copy(s.logID[:], b[48:])
	var flags int64
	for i, p := range [...]*int64{&s.end, &s.hw, &s.syncedEnd, &s.syncedHW, &s.settledEnd, &s.logStart,
		&flags, &s.gapFrom, &s.gapTo, &s.activeSize, &s.activeTime} {
		*p = int64(le.Uint64(b[64+8*i:]))
	}
	s.flags = uint64(flags)
	sane := 0 <= s.logStart && s.logStart <= s.syncedHW && s.syncedHW <= s.syncedEnd && s.syncedEnd <= s.end &&
		s.syncedHW <= s.hw && s.hw <= s.end && 0 <= s.settledEnd && 0 <= s.gapFrom && s.gapFrom <= s.gapTo
	if !sane {
		return s, errSlot
	}
	return s, nil
}

// decodeSlot returns the newest valid copy and its block, or errSlot if there is
// none. A copy of another version is an error, whatever the others say.
func decodeSlot(b []byte) (s slotState, block int, err error) {
	block, err = -1, errSlot
	for i := 0; len(b) >= slotBytes; i++ {
		c, e := decodeSlotCopy(b[:min(slotBlock, len(b))])
		if errors.Is(e, ErrVersion) {
			return s, -1, e
		}
		if e == nil && (err != nil || c.sequence > s.sequence) {
			s, block, err = c, i, nil
		}
		b = b[min(slotBlock, len(b)):]
	}
	return s, block, err
}

// slot is the open, mapped slot of a log.
type slot struct {
	syncMu sync.Mutex // one sync at a time; outside mu

	mu      sync.Mutex
	s       slotState // what the newest copy says
	newest  int       // its block
	synced  int       // block that the last sync covered
	syncing int       // block that the sync under way covers; −1 if none is
	fs      vfs.FS
	name    string
	onMap   func(int) error
	m       vfs.Map
	b       []byte
	asleep  bool  // not opened: the file has what a clean close left
	err     error // first store that faulted: somebody cut the file
}

// readSlot reads the slot of a directory without mapping it. A missing or
// damaged one is errSlot.
func readSlot(fsys vfs.FS, dir string) (slotState, error) {
	b, err := vfs.ReadFile(fsys, filepath.Join(dir, slotName), slotSize)
	if errors.Is(err, fs.ErrNotExist) {
		return slotState{}, errSlot
	}
	if err != nil {
		return slotState{}, err
	}
	s, _, err := decodeSlot(b)
	return s, err
}

// openSlot maps the slot for writing and stores s in it; s and the names in the
// directory are durable when it returns. fresh makes a new file, which takes the
// place of what is there only once it is durable; else syncSlot came before.
func openSlot(fsys vfs.FS, dir string, s slotState, fresh bool, onMap func(int) error) (sl *slot, err error) {
	sl = newSlot(fsys, dir, s, onMap)
	name := sl.name
	if fresh {
		name += ".tmp"
	}
	f, err := fsys.Open(name, vfs.Create)
	if err != nil {
		return nil, fmt.Errorf("open slot: %w", err)
	}
	defer f.Close()
	if fresh {
		err = f.Truncate(0)
	}
	if err == nil {
		err = f.Allocate(slotSize)
	}
	if err == nil {
		err = sl.mapFile(f)
	}
	if err != nil {
		return nil, fmt.Errorf("open slot: %w", err)
	}
	defer func() {
		if err != nil {
			sl.close()
			err = fmt.Errorf("open slot: %w", err)
			sl = nil
		}
	}()
	if !fresh {
		_, sl.newest, _ = decodeSlot(sl.b)
		sl.synced = sl.newest
	}
	sl.storeLocked()
	if err := errors.Join(sl.err, vfs.Sync(f)); err != nil {
		return sl, err
	}
	sl.synced = sl.newest
	if fresh {
		if err := fsys.Rename(name, sl.name); err != nil {
			return sl, err
		}
	}
	return sl, fsys.SyncDir(dir)
}

// sleepingSlot is the slot of a log that nothing has changed since a clean close.
// It is opened when there is something to store in it.
func sleepingSlot(fsys vfs.FS, dir string, s slotState, onMap func(int) error) *slot {
	sl := newSlot(fsys, dir, s, onMap)
	sl.asleep = true
	return sl
}

func newSlot(fsys vfs.FS, dir string, s slotState, onMap func(int) error) *slot {
	return &slot{s: s, fs: fsys, name: filepath.Join(dir, slotName), synced: -1, syncing: -1, newest: -1, onMap: onMap}
}

// wakeLocked opens a sleeping slot. The close that wrote it may have been killed
// before its sync: what it says is on disk before another copy is stored. sl.mu is
// held.
func (sl *slot) wakeLocked() error {
	if !sl.asleep {
		return nil
	}
	f, err := sl.fs.Open(sl.name, vfs.ReadWrite)
	if err != nil {
		return fmt.Errorf("open slot: %w", err)
	}
	defer f.Close()
	if err = f.Allocate(slotSize); err == nil { // it is, unless somebody cut the file
		err = sl.mapFile(f)
	}
	if err == nil {
		_, sl.newest, _ = decodeSlot(sl.b)
		sl.synced = sl.newest
		sl.asleep = false // if the sync fails, it can say that the log has
		err = vfs.Sync(f)
	}
	if err != nil {
		return fmt.Errorf("open slot: %w", err)
	}
	return nil
}

func (sl *slot) mapFile(f vfs.File) (err error) {
	if err := sl.onMap(1); err != nil {
		return err
	}
	if sl.m, err = f.Map(slotSize, true); err != nil {
		sl.onMap(-1)
		return err
	}
	sl.b = sl.m.Bytes()
	return nil
}

// storeLocked writes s to a block that may be overwritten. sl.mu is held.
func (sl *slot) storeLocked() {
	if err := sl.wakeLocked(); err != nil {
		sl.err = cmp.Or(sl.err, err)
		return
	}
	block := 0
	for block == sl.newest || block == sl.synced || block == sl.syncing {
		block++
	}
	sl.s.sequence++
	var b [slotBytes]byte
	sl.s.encode(b[:])
	if invariant.On {
		_, err := decodeSlotCopy(b[:])
		invariant.Check(err == nil, "slot %+v: %v", sl.s, err)
	}
	if err := copyGuarded(sl.b[block*slotBlock:], b[:]); err != nil && sl.err == nil {
		sl.err = fmt.Errorf("%s: %w", slotName, err)
	}
	sl.newest = block
}

func copyGuarded(dst, src []byte) (err error) {
	defer mmap.Guard(dst, &err, debug.SetPanicOnFault(true))
	copy(dst, src)
	return nil
}

// mark stores flags beside what the newest copy says.
func (sl *slot) mark(flags uint64) {
	sl.mu.Lock()
	defer sl.mu.Unlock()
	sl.s.flags = sl.s.flags&^flagClean | flags
	sl.storeLocked()
}

// sync makes the newest copy durable.
func (sl *slot) sync() error {
	sl.syncMu.Lock()
	defer sl.syncMu.Unlock()
	sl.mu.Lock()
	sl.syncing = sl.newest
	sl.mu.Unlock()
	err := syncSlot(sl.fs, sl.name)
	sl.mu.Lock()
	defer sl.mu.Unlock()
	if err == nil {
		err = sl.err
	}
	if err == nil {
		sl.synced = sl.syncing
	}
	sl.syncing = -1
	return err
}

// syncSlot makes durable what the slot file holds.
func syncSlot(fsys vfs.FS, name string) error {
	f, err := fsys.Open(name, vfs.ReadWrite)
	if err != nil {
		return err
	}
	return errors.Join(vfs.Sync(f), f.Close())
}

func (sl *slot) close() error {
	sl.asleep = false
	if sl.m == nil {
		return nil
	}
	err := sl.m.Unmap()
	sl.m, sl.b = nil, nil
	sl.onMap(-1)
	return err
}
