// Package segment keeps one run of a partition's record batches in a
// preallocated, memory-mapped file with its offset and time index.
//
// File 00000000000000004096.log starts with the batch whose base offset is
// 4096 (or, where compaction or truncation left a gap, above it); batches
// follow back to back, the producer's own bytes but for the base offset and
// leader epoch, which the leader fills in:
//
//	0            b1           b2              Size          allocated   Capacity
//	├────────────┼────────────┼──── ... ──────┼─────────────┤···········┤
//	│ batch 4096 │ batch 4101 │               │ zeros       │ no file
//
// Below Size every batch is whole and its checksum held when it was written.
// From Size to the end of the file every byte is zero, so a zero length field
// marks the end. The map covers the whole capacity from the start and the file
// grows under it by allocated chunks, so no map ever moves under a reader.
// Package record owns the bytes inside a batch.
//
// One goroutine may append while any number read. The package starts no
// goroutine and reads no clock.
package segment

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/tidemark-log/tidemark/index"
	"github.com/tidemark-log/tidemark/internal/invariant"
	"github.com/tidemark-log/tidemark/internal/vfs"
	"github.com/tidemark-log/tidemark/record"
)

const (
	// MaxCapacity bounds a segment: an untrimmed file must stay below Kafka's
	// limit of 2^31−1 bytes.
	MaxCapacity = 1<<31 - 4096
	// MaxRelative is the largest offset − base that the indexes can hold.
	MaxRelative = 1<<31 - 1

	pageSize   = 4096
	firstChunk = 64 << 10 // first allocation of a log that holds nothing yet
	maxGrow    = 16 << 20 // largest single allocation: recovery looks through what is not used yet

	maxZeroAhead = 256 << 10 // see zeroAhead
	zeroBatch    = 16 << 10
)

var (
	// ErrFull means that the bytes or the offset do not fit: roll.
	ErrFull = errors.New("segment is full")
	// ErrClosed is returned after Close or Remove.
	ErrClosed = errors.New("segment is closed")
	// ErrBusy means that a view of the bytes to cut is still held.
	ErrBusy = errors.New("a view of the log is still held")
)

// Options is what all segments of a log share. It must not change.
type Options struct {
	FS vfs.FS
	// Capacity is the size of the map and the most a segment's file may take,
	// in bytes. At most MaxCapacity.
	Capacity int64
	// IndexInterval is how many log bytes pass between two index entries.
	IndexInterval int64
	// IndexBytes bounds each index file: a segment with a full one takes no more
	// batches. 0: as large as the capacity asks for.
	IndexBytes int64
	// WriteThrough appends by pwrite instead of through the map (architecture,
	// decision 4): every flush write-protects mapped pages, and the next store
	// would fault again.
	WriteThrough bool
	// Fill makes the pages that appends will need by writing zeros in large pieces,
	// which costs a quarter of populating them. A store makes all of a piece dirty,
	// so it is for logs whose active segment is not synced.
	Fill     bool
	ReadOnly bool
	Maps     *Maps
}

// Segment is one segment. Fields that only the appender uses are marked; the
// caller serializes appends, seals, truncation and growth.
type Segment struct {
	o    *Options
	dir  string
	base int64
	cap  int64

	// pub is what readers may see: (end − base) << 32 | size, the former at most 2^31.
	// One word, so that offset and position always belong together.
	pub atomic.Uint64
	// allocated is the size of the file: blocks exist below it.
	allocated atomic.Int64
	// filled is where appends end for now: behind it Options.Fill writes zeros.
	filled atomic.Int64
	sealed atomic.Bool
	known  bool // recovery need not read it
	id     atomic.Uint64

	cur     atomic.Pointer[mapping] // nil: not mapped; changed under mu
	old     atomic.Int64            // retired mappings that are still read
	maps    atomic.Int32            // maps of the log file and the indexes
	above   atomic.Int64            // readers that may look beyond the high watermark
	cutting atomic.Bool             // frozen: those wait outside
	used    atomic.Bool             // since the hand of Maps last passed
	sparse  atomic.Int32            // point reads to do without Ceil
	ringAt  int                     // place in Maps.ring, −1 if none; guarded by Maps.mu

	mu     sync.Mutex // guards what follows; held across mapping and while frozen
	file   vfs.File   // open while it may hold bytes that are not synced
	closed bool
	alone  bool // frozen without any reader

	damageMu sync.Mutex // guards damage; held while bytes are searched
	damage   []Damage   // found so far
	damaged  atomic.Bool

	idx *index.Offset
	tix *index.Time

	// appender only
	zeroTo    int64 // up to here blocks are known to be written; see zeroAhead
	zeroStep  int64
	lastEntry int64 // log bytes since the last index entry
	full      bool  // an index is, by Options.IndexBytes
	maxTs     atomic.Int64
	maxTsAt   int64 // last offset of the earliest batch that holds maxTs
}

// Damage is a run of bytes that are no batch, with good ones behind it or not.
type Damage struct {
	Pos, End   int64 // bytes [Pos, End)
	From, Next int64 // offsets [From, Next) are gone; Next is where good ones go on
	Follows    bool  // whole batches follow, whether or not their offsets can be believed
	Err        error
}

// FileName is the name of a segment's file: 20 digits and the suffix.
func FileName(base int64, suffix string) string { return fmt.Sprintf("%020d%s", base, suffix) }

// ParseName returns the base offset of a file named by FileName with suffix.
func ParseName(name, suffix string) (base int64, ok bool) {
	digits, found := strings.CutSuffix(name, suffix)
	if !found || len(digits) != 20 || strings.Trim(digits, "0123456789") != "" {
		return 0, false
	}
	base, err := strconv.ParseInt(digits, 10, 64)
	return base, err == nil
}

// TmpPrefix starts the names a prepared segment has before its base is known.
// Kafka ignores x.tmp names.
const TmpPrefix = "tidemark-next"

// indexOptions are those of an index of at most so many entries.
func (s *Segment) indexOptions(trust bool, most int64) index.Options {
	interval := max(s.o.IndexInterval, record.HeaderSize)
	return index.Options{
		MaxEntries: int(min(s.cap/interval+16, max(most, 2), 1<<28)),
		Writable:   !s.o.ReadOnly,
		Trust:      trust,
		OnMap:      s.indexMap,
	}
}

// newSegment makes what Create and Open have in common. need is what it must
// be able to hold.
func newSegment(dir string, base int64, o *Options, need int64) *Segment {
	s := &Segment{o: o, dir: dir, base: base, ringAt: -1, cap: roundUp(max(o.Capacity, need), pageSize), maxTsAt: -1}
	s.id.Store(lastID.Add(1))
	s.maxTs.Store(-1)
	return s
}

// Create makes an empty segment under temporary names with its first chunk
// allocated, ready to take a base by Activate. follows says that it will
// follow a full one, which makes the first chunk large. need is what it must
// be able to hold.
func Create(dir string, o *Options, need int64, follows bool) (*Segment, error) {
	if need > MaxCapacity {
		return nil, fmt.Errorf("create segment: %d bytes, at most %d fit", need, int64(MaxCapacity))
	}
	s := newSegment(dir, -1, o, need)
	if err := s.create(need, follows); err != nil {
		return nil, fmt.Errorf("create segment: %w", err)
	}
	return s, nil
}

func (s *Segment) create(need int64, follows bool) (err error) {
	fsys, name := s.o.FS, filepath.Join(s.dir, TmpPrefix+".log.tmp")
	if err := fsys.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err = s.openAs(name, vfs.CreateNew); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			s.closeFile()
			fsys.Remove(name)
		}
	}()
	if err := s.mapLocked(); err != nil {
		return err
	}
	first := min(int64(firstChunk), s.cap)
	if follows {
		first = min(maxGrow, s.cap)
	}
	if err = s.Allocate(max(first, need)); err != nil && follows {
		err = s.Allocate(max(need, 1))
	}
	if err == nil && need > 0 {
		err = s.Grow(need)
	}
	if err != nil {
		s.cur.Swap(nil).retire()
		s.o.Maps.leave(s)
	}
	return err
}

// Expect prepares for much to come: disk blocks in one piece.
func (s *Segment) Expect() error { return s.Allocate(min(s.cap-s.Size(), maxGrow)) }

// Activate gives a created segment its base and its names. The directory is
// not synced.
func (s *Segment) Activate(base int64) (err error) {
	s.base = base
	if err = s.openIndexes(false); err == nil {
		err = s.o.FS.Rename(filepath.Join(s.dir, TmpPrefix+".log.tmp"), s.path(".log"))
	}
	if err != nil {
		s.base = -1
		return fmt.Errorf("activate segment: %w", err)
	}
	return nil
}

func (s *Segment) openIndexes(trust bool) error {
	idx, err := index.OpenOffset(s.o.FS, s.path(".index"), s.base, s.indexOptions(trust, s.o.indexEntries(index.OffsetEntrySize)))
	if err != nil {
		return err
	}
	tix, err := index.OpenTime(s.o.FS, s.path(".timeindex"), s.base, s.indexOptions(trust, s.o.indexEntries(index.TimeEntrySize)))
	if err != nil {
		return err
	}
	s.idx, s.tix = idx, tix
	return nil
}

// Open opens an existing segment of size bytes. Nothing is mapped or read. The
// caller says by Publish what readers may see. trust says that the indexes are
// believed; else they start empty and are rebuilt by IndexBatch.
func Open(dir string, base, size int64, o *Options, trust bool) (*Segment, error) {
	if size > math.MaxInt32 {
		return nil, fmt.Errorf("open segment %s: %d bytes, at most %d", FileName(base, ".log"), size, math.MaxInt32)
	}
	s := newSegment(dir, base, o, size)
	s.allocated.Store(size)
	s.filled.Store(size)
	s.sealed.Store(true)
	return s, s.openIndexes(trust)
}

func (s *Segment) path(suffix string) string { return filepath.Join(s.dir, FileName(s.base, suffix)) }

// Name is the name of the log file in its directory.
func (s *Segment) Name() string { return FileName(s.base, ".log") }

// Base is the base offset: the one in the file's name.
func (s *Segment) Base() int64 { return s.base }

// End is the offset behind the last one readers may see.
func (s *Segment) End() int64 { return s.base + int64(s.pub.Load()>>32) }

// Size is how many bytes readers may see.
func (s *Segment) Size() int64 { return int64(uint32(s.pub.Load())) }

// Allocated is the size of the file.
func (s *Segment) Allocated() int64 { return s.allocated.Load() }

// Cap is the most bytes it can hold.
func (s *Segment) Cap() int64 { return s.cap }

// Sealed reports whether it takes no more appends.
func (s *Segment) Sealed() bool { return s.sealed.Load() }

// ID tells segments of a process apart, and a segment from itself before a cut.
func (s *Segment) ID() uint64 { return s.id.Load() }

var lastID atomic.Uint64

// LargestTimestamp is MaxTimestamp for a segment nothing was read of yet: the
// last entry of the time index names it, and the batches bear it out.
func (s *Segment) LargestTimestamp() (int64, error) {
	if ts := s.maxTs.Load(); ts != tsUnread {
		return ts, nil
	}
	largest, pos := int64(record.NoTimestamp), int64(0)
	if ts, at, ok := s.tix.Last(); ok {
		// What the batches do not bear out is not believed, nor that the entry is
		// the final one: it may be what is left of a damaged file.
		if f, err := s.withTimestamp(ts, at); err == nil {
			largest, pos = ts, f.Pos
		}
	}
	err := s.Each(pos, func(_ Frame, b []byte) bool {
		largest = max(largest, maxTimestamp(b))
		return true
	})
	if err != nil {
		return largest, err
	}
	s.maxTs.Store(largest)
	return largest, nil
}

// tsUnread is Segment.maxTs of a known segment until somebody asks.
const tsUnread = record.NoTimestamp - 1

// MaxTimestamp is the largest timestamp in it in ms, −1 if none is known.
func (s *Segment) MaxTimestamp() int64 { return max(s.maxTs.Load(), record.NoTimestamp) }

// Publish sets what readers may see. An end that lies behind a gap, out of reach of
// the segment's own offsets, is lowered to where they end: another segment begins
// there.
func (s *Segment) Publish(end, size int64) {
	if invariant.On {
		invariant.Check(end >= s.base && size >= 0 && size < 1<<31, "segment %d: publish end %d size %d", s.base, end, size)
	}
	s.pub.Store(uint64(min(end-s.base, MaxRelative+1))<<32 | uint64(size))
}

// Fits reports whether a batch of n bytes that ends at lastOffset may go into
// the segment, allocated or not.
func (s *Segment) Fits(n int, lastOffset int64) bool {
	rel := lastOffset - s.base
	return s.Size()+int64(n) <= s.cap && rel >= 0 && rel <= MaxRelative && !s.full
}

// noteFull looks whether an index is full (log-format §3.5).
func (s *Segment) noteFull() {
	s.full = s.Size() > 0 && (int64(s.idx.Len()) >= s.o.indexEntries(index.OffsetEntrySize) ||
		int64(s.tix.Len()) >= s.o.indexEntries(index.TimeEntrySize)-1) // the last is for FinalEntry
}

// indexEntries is how many entries of so many bytes an index may have.
func (o *Options) indexEntries(bytes int64) int64 {
	if o.IndexBytes <= 0 {
		return math.MaxInt64
	}
	return o.IndexBytes / bytes
}

// FirstTimestamp is the largest timestamp of the first batch in ms, NoTimestamp
// if there is none or it cannot be read.
func (s *Segment) FirstTimestamp() int64 {
	ts := int64(record.NoTimestamp)
	_ = s.Walk(0, func(_ Frame, b []byte) bool {
		ts = maxTimestamp(b)
		return false
	})
	return ts
}

// Ready is where appends end for now: blocks exist below it, and nobody else writes.
func (s *Segment) Ready() int64 {
	if s.o.Fill {
		return s.filled.Load()
	}
	return s.allocated.Load()
}

// Room reports whether n more bytes are ready.
func (s *Segment) Room(n int) bool { return s.Size()+int64(n) <= s.Ready() }

// Reserve returns the n bytes behind the end, mapped and ready, for the
// appender to build a batch in. Publish them by Commit.
func (s *Segment) Reserve(n int) []byte {
	size := s.Size()
	return s.cur.Load().data[size : size+int64(n) : size+int64(n)]
}

// WriteAtEnd writes b behind the end by one pwrite. Publish it by Commit. After
// an error the bytes there are unknown: the log must not go on.
func (s *Segment) WriteAtEnd(b []byte) error {
	end := s.Size() + int64(len(b))
	_, err := s.file.WriteAt(b, s.Size())
	if err == nil && end > s.zeroTo && len(b) <= zeroBatch {
		err = s.zeroAhead(end)
	}
	return err
}

// zeroAhead writes zeros behind end, where a log that is synced after every few
// batches goes on. Allocated blocks nobody has written yet are marked as such: the
// sync that covers the first bytes of one changes the file's metadata too and waits
// for that as well. Zeros take that once for many syncs. They are written block by
// block (architecture decision 4), about as many as were appended here before: a
// log that takes little writes little twice.
func (s *Segment) zeroAhead(end int64) error {
	from := roundUp(end, pageSize)
	if s.zeroStep == 0 { // nothing was appended here yet
		s.zeroStep, s.zeroTo = pageSize/2, from+pageSize
		return nil
	}
	step := min(2*s.zeroStep, maxZeroAhead)
	s.zeroTo = max(min(from+step, s.allocated.Load()), end)
	if s.zeroTo == from+step {
		s.zeroStep = step
	}
	for ; from+pageSize <= s.zeroTo; from += pageSize {
		if _, err := s.file.WriteAt(zeroPage[:], from); err != nil {
			return err
		}
	}
	return nil
}

var zeroPage [pageSize]byte

// Commit publishes a batch of n bytes that Reserve or WriteAtEnd put behind the
// end, and enters it into the indexes if it is time. It reports whether it did.
// Index files are derived: one that cannot grow is left behind, not an error.
func (s *Segment) Commit(n int, lastOffset, maxTs int64) (indexed bool) {
	pos := s.Size()
	indexed = s.IndexBatch(pos, n, lastOffset, maxTs)
	s.Publish(lastOffset+1, pos+int64(n))
	return indexed
}

// IndexBatch is the part of Commit that concerns the indexes; recovery calls it
// for each batch it scans (log-format §3.2).
func (s *Segment) IndexBatch(pos int64, n int, lastOffset, maxTs int64) (indexed bool) {
	if maxTs > s.maxTs.Load() {
		s.maxTs.Store(maxTs)
		s.maxTsAt = lastOffset
	}
	if s.lastEntry > s.o.IndexInterval && pos > 0 {
		// The time entry first: where a killed process leaves an offset entry,
		// everything before it is covered by the time index, and what is behind
		// it is read again (Reload).
		if ts := s.maxTs.Load(); ts >= 0 {
			_ = s.tix.Append(ts, s.maxTsAt)
		}
		if s.idx.Append(lastOffset, pos) == nil {
			s.lastEntry, indexed = 0, true
			s.noteFull()
		}
	}
	s.lastEntry += int64(n)
	return indexed
}

// Grow has need more bytes ready: Allocate, and Fill.
func (s *Segment) Grow(need int64) error {
	if err := s.Allocate(need); err != nil {
		return err
	}
	return s.Fill(need)
}

// Allocate makes disk blocks so that need more bytes fit, and some more. The
// caller holds no lock that an append needs. ErrFull if they pass the capacity.
// On ENOSPC nothing changed.
func (s *Segment) Allocate(need int64) error {
	size, have := s.Size(), s.allocated.Load()
	if size+need <= have {
		return nil
	}
	if size+need > s.cap {
		return ErrFull
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.sealed.Load() || s.file == nil { // rolled meanwhile: it must stay trimmed
		return ErrFull
	}
	want := min(s.cap, roundUp(max(size+need, min(2*have, have+maxGrow)), pageSize))
	err := s.file.Allocate(want)
	if err != nil && want > roundUp(size+need, pageSize) {
		want = min(s.cap, roundUp(size+need, pageSize)) // the last blocks of a full disk
		err = s.file.Allocate(want)
	}
	if err != nil {
		return fmt.Errorf("allocate log space: %w", err)
	}
	s.allocated.Store(want)
	return nil
}

// FillStep is how many zeros are written at once: few enough to be in a processor's
// cache still when records take their place.
const FillStep = 256 << 10

var zeros [FillStep]byte

// Fill has n more bytes ready, which have blocks on disk: ErrFull if they have none.
// The caller holds no lock that an append needs. After another error the log must
// not go on, as after one of WriteAtEnd.
func (s *Segment) Fill(n int64) error {
	to := s.Size() + n
	if to <= s.Ready() {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.sealed.Load() || s.file == nil || to > s.allocated.Load() {
		return ErrFull
	}
	return s.fillLocked(to)
}

// fillLocked writes zeros up to the byte given, and some more: as many as there are,
// up to a step. Nobody else writes there: appends end below, and s.mu keeps a cut out.
func (s *Segment) fillLocked(to int64) error {
	if !s.o.Fill {
		return nil
	}
	at, most := s.Ready(), s.allocated.Load()
	// Somebody may have cut the file. A store would find out, a write make it whole.
	if i, err := s.file.Stat(); err != nil {
		return fmt.Errorf("make pages: %w", err)
	} else if i.Size < most {
		return fmt.Errorf("make pages: %w", &fs.PathError{Op: vfs.OpWrite.String(), Path: s.file.Name(),
			Err: fmt.Errorf("the file has %d bytes, want %d: somebody cut it", i.Size, most)})
	}
	for to = min(roundUp(max(to, min(2*at, at+FillStep)), pageSize), most); at < to; {
		n := min(to-at, FillStep-at%FillStep)
		if _, err := s.file.WriteAt(zeros[:n], at); err != nil {
			return fmt.Errorf("make pages: %w", err)
		}
		at += n
		s.filled.Store(at)
	}
	return nil
}

// Populate prepares [from, to) within the allocated part for appends, as Fill does or
// by taking write faults, and returns where it stopped. Errors are those of Fill.
func (s *Segment) Populate(from, to int64) (int64, error) {
	to = min(to, s.allocated.Load())
	if from >= to || s.o.WriteThrough {
		return from, nil
	}
	if s.o.Fill {
		err := s.Fill(to - s.Size())
		if errors.Is(err, ErrFull) { // rolled or cut meanwhile
			return from, nil
		}
		return max(from, s.filled.Load()), err
	}
	m, err := s.acquire(false)
	if err != nil {
		return from, nil
	}
	defer m.release()
	if m.m.Populate(from, to-from) != nil { // stores will fault, that is all
		return from, nil
	}
	return to, nil
}

// Seal ends appending. Trim follows before the segment counts as settled.
func (s *Segment) Seal() {
	if !s.sealed.Swap(true) {
		_ = s.FinalEntry() // now, for readers; Trim says if it cannot be made
	}
}

// FinalEntry makes the last time entry (log-format §3.5). Once is enough.
func (s *Segment) FinalEntry() error {
	if ts := s.maxTs.Load(); ts >= 0 {
		return s.tix.AppendFinal(ts, s.maxTsAt)
	}
	return nil
}

// Trim cuts the file and its indexes to what is used. A sealed segment is
// trimmed before the sync that covers it, so that recovery can tell a file that
// ended from one whose tail was lost. A time index without its final entry, for
// which a full disk has no room, would hide the newest records from a search:
// it is emptied instead.
func (s *Segment) Trim() error {
	if err := s.trimFile(); err != nil {
		return err
	}
	if s.FinalEntry() != nil {
		if err := s.tix.Reset(); err != nil {
			return err
		}
	}
	return errors.Join(s.idx.Trim(), s.tix.Trim())
}

func (s *Segment) trimFile() error {
	s.mu.Lock() // not beside Grow
	defer s.mu.Unlock()
	if err := s.file.Truncate(s.Size()); err != nil {
		return err
	}
	s.allocated.Store(s.Size())
	s.filled.Store(s.Size())
	return nil
}

// Unseal makes the last segment of a log appendable: its file is opened and its
// map is writable where appends go through it. The segment is frozen; readers
// keep the map they have.
func (s *Segment) Unseal() error {
	if !s.sealed.Load() {
		return nil
	}
	if err := s.openFileLocked(); err != nil {
		return err
	}
	s.sealed.Store(false) // from here on nobody evicts it
	old := s.cur.Load()
	if old != nil && s.o.WriteThrough {
		return nil
	}
	m, err := s.newMapping()
	if err != nil {
		s.sealed.Store(true)
		return err
	}
	m.refs.Store(1)
	if s.alone {
		m.refs.Store(frozen)
	}
	s.cur.Store(m)
	switch {
	case old == nil:
	case s.alone:
		old.refs.Store(0)
		old.unmap()
	default:
		old.retire()
	}
	return nil
}

// Wake is Unseal for a segment that is not frozen: readers may be in it.
func (s *Segment) Wake() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	had := s.file != nil
	err := s.Unseal()
	if err != nil && !had {
		s.closeFile()
	}
	return err
}

// Rest unmaps a sealed segment that nobody reads, as the bound on maps does.
func (s *Segment) Rest() { s.evict() }

// OpenFile opens the file of a segment whose bytes may need a sync or a trim.
// It stays open until Settled.
func (s *Segment) OpenFile() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.openFileLocked()
}

func (s *Segment) openFileLocked() error {
	if s.file != nil {
		return nil
	}
	return s.openAs(s.path(".log"), vfs.ReadWrite)
}

// openAs opens the log file to keep it open until closeFile. s.mu is held or s is
// not shared yet.
func (s *Segment) openAs(name string, mode vfs.Mode) error {
	if err := s.o.Maps.addFiles(1); err != nil {
		return err
	}
	f, err := s.o.FS.Open(name, mode)
	if err != nil {
		s.o.Maps.addFiles(-1)
		return err
	}
	s.file = f
	return nil
}

func (s *Segment) closeFile() error {
	if s.file == nil {
		return nil
	}
	err := s.file.Close()
	s.file = nil
	s.o.Maps.addFiles(-1)
	return err
}

// StartSync and FinishSync make the log file durable; see vfs.File.
func (s *Segment) StartSync() error  { return s.file.StartSync() }
func (s *Segment) FinishSync() error { return s.file.FinishSync() }

// SyncIndexes makes both indexes durable, creating empty files where none was
// needed so far: Kafka wants them beside each segment.
func (s *Segment) SyncIndexes() error {
	if err := s.idx.StartSync(); err != nil {
		return err
	}
	if err := s.idx.FinishSync(); err != nil {
		return err
	}
	if err := s.tix.StartSync(); err != nil {
		return err
	}
	return s.tix.FinishSync()
}

// Settled closes the file of a sealed segment that is wholly synced.
func (s *Segment) Settled() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.closeFile()
}

// Freeze keeps readers out of what is about to be cut, until Thaw: all of them,
// or with aboveOnly those that may look beyond the high watermark. ErrBusy if
// one is in there.
func (s *Segment) Freeze(aboveOnly bool) error {
	s.mu.Lock()
	s.cutting.Store(true)
	if s.above.Load() == 0 {
		if aboveOnly {
			return nil
		}
		if m := s.cur.Load(); s.old.Load() == 0 && (m == nil || m.refs.CompareAndSwap(1, frozen)) {
			s.alone = true
			return nil
		}
	}
	s.cutting.Store(false)
	s.mu.Unlock()
	return ErrBusy
}

// Thaw lets readers in again.
func (s *Segment) Thaw() {
	if m := s.cur.Load(); s.alone && m != nil {
		m.refs.Store(1)
	}
	s.alone = false
	s.cutting.Store(false)
	s.mu.Unlock()
}

// Cut drops everything from pos on, zeroed to the allocated end, and the index
// entries at or above offset, which becomes the end. The segment is frozen and
// its file open. It is durable when Cut returns: cut bytes must not come back.
func (s *Segment) Cut(pos, offset int64) error {
	have := s.allocated.Load()
	if err := s.idx.TruncateTo(offset); err != nil {
		return err
	}
	if err := s.tix.TruncateTo(offset); err != nil {
		return err
	}
	s.id.Store(lastID.Add(1))
	s.Publish(offset, pos)
	s.zeroTo, s.zeroStep = 0, 0
	if err := s.file.Truncate(pos); err != nil {
		return err
	}
	s.allocated.Store(pos)
	s.filled.Store(pos)
	// Blocks are wanted back; where the disk is full the next append asks again.
	if want := max(min(have, roundUp(pos+firstChunk, pageSize)), pos); want > pos && s.file.Allocate(want) == nil {
		s.allocated.Store(want)
	}
	s.forgetDamage()
	return vfs.Sync(s.file)
}

// Reload sets the largest timestamp and the distance to the last index entry
// from the indexes and the batches behind the last entry.
func (s *Segment) Reload() error {
	s.maxTs.Store(-1)
	s.maxTsAt = -1
	if ts, off, ok := s.tix.Last(); ok {
		s.maxTs.Store(ts)
		s.maxTsAt = off
	}
	var pos int64
	if _, p, ok := s.idx.Last(); ok {
		pos = p
	}
	s.lastEntry = s.Size() - pos
	s.noteFull()
	return s.Each(pos, func(f Frame, b []byte) bool {
		if ts := maxTimestamp(b); ts > s.maxTs.Load() {
			s.maxTs.Store(ts)
			s.maxTsAt = f.Last
		}
		return true
	})
}

// Known marks a segment that an earlier life trimmed and synced.
func (s *Segment) Known() {
	s.known = true
	s.maxTs.Store(tsUnread)
}

// IsKnown reports whether it was marked by Known.
func (s *Segment) IsKnown() bool { return s.known }

// CheckIndexes walks both indexes for entries that cannot be, given the size of
// the log file.
func (s *Segment) CheckIndexes(size int64) error {
	if err := s.idx.Check(s.base+MaxRelative, size); err != nil {
		return err
	}
	return s.tix.Check(s.base+MaxRelative, math.MaxInt64)
}

// SyncFile makes the log file durable in one step. Its file is open.
func (s *Segment) SyncFile() error { return vfs.Sync(s.file) }

// ResetIndexes empties both indexes.
func (s *Segment) ResetIndexes() error {
	s.maxTs.Store(-1)
	s.maxTsAt = -1
	s.lastEntry = 0
	s.full = false
	return errors.Join(s.idx.Reset(), s.tix.Reset())
}

// Close unmaps once the last view is gone and closes the files. It does not
// trim or sync.
func (s *Segment) Close() error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil
	}
	s.closed = true
	err := s.closeFile()
	if m := s.cur.Swap(nil); m != nil {
		m.retire()
	}
	s.mu.Unlock()
	if s.idx != nil { // nil: prepared, never activated
		err = errors.Join(err, s.idx.Close(), s.tix.Close())
	}
	s.o.Maps.leave(s)
	return err
}

// Remove closes the segment and deletes its files, but for those of producers,
// which tell of what lies below its base.
func (s *Segment) Remove() error {
	err := s.Close()
	if s.base < 0 {
		return errors.Join(err, s.o.FS.Remove(filepath.Join(s.dir, TmpPrefix+".log.tmp")))
	}
	return errors.Join(err, removeFiles(s.o.FS, s.dir, s.base, "", ownSuffixes[:]))
}

// suffixes of the files that go with a segment, the log last: recovery takes an
// index without a log for a leftover, never the other way round. ownSuffixes are
// those that tell of its own records.
var (
	suffixes    = [...]string{".timeindex", ".index", ".txnindex", ".snapshot", ".dedupe", ".log"}
	ownSuffixes = [...]string{".timeindex", ".index", ".txnindex", ".log"}
)

// DeletedSuffix is what the names of a deleted segment's files end in until they
// are removed (log-format §7.1).
const DeletedSuffix = ".deleted"

// RemoveFiles removes the files of a segment that is not open, under their names
// with the given suffix, "" or DeletedSuffix. Missing ones are no error.
func RemoveFiles(fsys vfs.FS, dir string, base int64, suffix string) error {
	return removeFiles(fsys, dir, base, suffix, suffixes[:])
}

func removeFiles(fsys vfs.FS, dir string, base int64, suffix string, which []string) (err error) {
	for _, x := range which {
		if e := fsys.Remove(filepath.Join(dir, FileName(base, x)+suffix)); e != nil && !errors.Is(e, fs.ErrNotExist) {
			err = errors.Join(err, e)
		}
	}
	return err
}

// RetireFiles gives the files of a segment that is not open the names of deleted
// ones. Missing ones are no error; after another one it may be called again.
func RetireFiles(fsys vfs.FS, dir string, base int64) (err error) {
	for _, x := range suffixes {
		name := filepath.Join(dir, FileName(base, x))
		if e := fsys.Rename(name, name+DeletedSuffix); e != nil && !errors.Is(e, fs.ErrNotExist) {
			err = errors.Join(err, e)
		}
	}
	return err
}

func roundUp(n, to int64) int64 { return (n + to - 1) / to * to }
