package replica

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/tidemark-log/tidemark/index"
	"github.com/tidemark-log/tidemark/internal/checkpoint"
	"github.com/tidemark-log/tidemark/internal/vfs"
	"github.com/tidemark-log/tidemark/partition"
	"github.com/tidemark-log/tidemark/record"
	"github.com/tidemark-log/tidemark/segment"
)

// lockName is the lock of a log directory. Kafka ignores the name.
const lockName = "LOCK"

// Open opens the log in dir, making it if there is none (its parent must
// exist), and recovers it (R32): below what the slot vouches for nothing is
// read; above, batches count up to the first that is not whole, and the rest is
// cut, zeroed and synced. Damage below is no torn end: the log opens, Damage
// names it, files stay as they are and everything else can be read.
//
// now is for producers that have expired. Errors: ErrLocked; ErrVersion; a full disk
// or other errors of the file system, after which the files are as before.
func Open(dir string, o Options, now time.Time) (_ *Log, err error) {
	if err := o.fill(); err != nil {
		return nil, fmt.Errorf("open log: %w", err)
	}
	defer func() {
		if err != nil {
			err = fmt.Errorf("open log %s: %w", dir, err)
		}
	}()
	l := newLog(dir, o)
	if !o.ReadOnly && !o.inDir {
		if err := o.FS.Mkdir(dir); err != nil && !errors.Is(err, fs.ErrExist) {
			return nil, err
		}
		if l.lock, err = o.FS.Lock(l.path(lockName)); err != nil {
			return nil, err
		}
		if err := folderFree(o.FS, filepath.Dir(dir)); err != nil {
			l.lock.Close()
			return nil, err
		}
	}
	r := &recovery{l: l, now: now}
	if err := r.run(); err != nil {
		r.abandon(err)
		return nil, err
	}
	return l, nil
}

func newLog(dir string, o Options) *Log {
	l := &Log{o: o, dir: dir}
	l.spec = record.NewSpec()
	l.heldAt.Store(-1)
	l.epoch.Store(noEpoch)
	l.cfg.Store(o.Config)
	l.so = l.segmentOptions()
	return l
}

// folderFree returns ErrLocked if dir is a data folder that is open: its lock
// covers the partitions. Whoever opens a folder, or one partition by itself, takes
// his lock before he looks for the other's (C044).
func folderFree(fsys vfs.FS, dir string) error {
	for _, name := range []string{metaName, dirLockName} {
		if there, err := vfs.Exists(fsys, filepath.Join(dir, name)); err != nil || !there {
			return err
		}
	}
	return unlocked(fsys, filepath.Join(dir, dirLockName))
}

// unlocked returns ErrLocked if somebody has the lock.
func unlocked(fsys vfs.FS, name string) error {
	lock, err := fsys.Lock(name)
	if err != nil {
		return err
	}
	return lock.Close()
}

// recovery is one opening of a log.
type recovery struct {
	l      *Log
	now    time.Time
	info   vfs.Info  // of the directory
	old    slotState // as found
	slot   bool      // old is valid and of this very directory
	boot   bool      // the page cache, or the disk after a clean close, is as old left it
	failed bool      // old has the failed flag (R8)
	calm   bool      // as a clean close left it: it sleeps until something is to be changed
	// touched: somebody else wrote since old was closed. Kafka's epoch file need
	// not cover the batches of a log it was handed (log-format §6).
	touched bool

	sizes   map[int64]int64 // base → size of the .log
	indexes map[int64]int64 // base → size of the .index
	times   map[int64]int64 // base → size of the .timeindex
	// Offsets of the producer files, ours and Kafka's.
	windows, snapshots map[int64]bool
	below              []int64 // bases of segments wholly below the log start: a deletion was interrupted
	list               []*segment.Segment
	last               vfs.Info        // of the last .log, zero if there is none
	rebuilt            bool            // an index was, or is to be
	holed              bool            // damage below the log start was passed over
	from               map[int64]int64 // base → byte at which reading began

	vouched  int64 // below it an invalid batch is damage
	settled  int64 // whole segments below it are not read
	believed int64 // below it batches are not read where the index leads past them

	end      int64              // as recovered
	endPos   int64              // in the last segment
	garbage  bool               // bytes that are not zero lie behind endPos
	cutLater []*segment.Segment // behind the end
	epochs   []Epoch            // of the batches that were read
	stored   []Epoch            // those of the file
	noEpochs bool               // the file is missing or cannot be read
	denied   bool               // a batch that was read has another epoch than the file says
	disorder bool               // one is of an older epoch than one before it
	total    int64
	done     int64
	dropped  int // valid batches that were cut
}

func (r *recovery) run() (err error) {
	l := r.l
	if r.info, err = l.o.FS.Stat(l.dir); err != nil {
		return err
	}
	if err := r.readNames(); err != nil {
		return err
	}
	if err := r.find(); err != nil {
		return err
	}
	l.last.evidence, l.last.end = r.evidence(), r.end
	l.last.durable = r.slot && (r.always() != 0 || l.last.evidence == partition.Clean)
	if l.o.ReadOnly || l.Damage() != nil {
		return r.publish()
	}
	if r.calm {
		return r.sleep()
	}
	if r.slot && r.old.flags&flagClean != 0 {
		if err := syncSlot(l.o.FS, l.path(slotName)); err != nil {
			return err
		}
	}
	return r.settle()
}

// find finds out what there is. Read-only it changes nothing; see Explain.
func (r *recovery) find() error {
	l := r.l
	if err := r.readSlot(); err != nil {
		return err
	}
	clean := r.old.flags&flagClean != 0
	if r.slot && !l.o.ReadOnly && !clean {
		// What it says may be in the page cache only. Nothing is done by it, to an
		// index say, before the disk has it. A clean close says what is on disk,
		// whether or not its own sync came about.
		if err := syncSlot(l.o.FS, l.path(slotName)); err != nil {
			return err
		}
	}
	if err := r.openSegments(); err != nil {
		return err
	}
	if err := r.readEpochs(); err != nil {
		return err
	}
	if err := r.judge(); err != nil {
		return err
	}
	if err := r.findProducers(); err != nil {
		return err
	}
	r.calm = !l.o.ReadOnly && l.Damage() == nil && r.asClosed()
	return r.findEpochs()
}

// abandon lets go of everything after err. A write or sync that failed leaves
// its flag: the next life must not trust what the page cache shows (R8).
func (r *recovery) abandon(err error) {
	l := r.l
	if l.slot != nil {
		if sticks(err) {
			l.slot.mark(flagFailed)
		}
		l.slot.close()
	}
	for _, s := range slices.Concat(r.list, r.cutLater) {
		s.Close()
	}
	if l.lock != nil {
		l.lock.Close()
	}
}

// readNames lists the directory and clears leftovers: our temporary names, and
// what Kafka's replacement of segments leaves (log-format §4.2).
func (r *recovery) readNames() error {
	l := r.l
	infos, err := l.o.FS.List(l.dir)
	if err != nil {
		return err
	}
	if !l.o.ReadOnly {
		// In a data folder there is a lock if somebody opened the partition by itself.
		if l.o.inDir && slices.ContainsFunc(infos, func(f vfs.Info) bool { return f.Name == lockName }) {
			if err := unlocked(l.o.FS, l.path(lockName)); err != nil {
				return err
			}
		}
		changed, err := r.finishSwap(infos)
		if err == nil && changed {
			infos, err = l.o.FS.List(l.dir)
		}
		if err != nil {
			return err
		}
	}
	r.sizes, r.indexes, r.times, r.from = map[int64]int64{}, map[int64]int64{}, map[int64]int64{}, map[int64]int64{}
	r.windows, r.snapshots = map[int64]bool{}, map[int64]bool{}
	for _, f := range infos {
		if base, ok := segment.ParseName(f.Name, ".log"); ok && !f.IsDir {
			r.sizes[base], r.last = f.Size, f // ascending
		} else if base, ok := segment.ParseName(f.Name, ".index"); ok {
			r.indexes[base] = f.Size
		} else if base, ok := segment.ParseName(f.Name, ".timeindex"); ok {
			r.times[base] = f.Size
		} else if end, ok := segment.ParseName(f.Name, windowSuffix); ok && !f.IsDir {
			r.windows[end] = true
		} else if end, ok := segment.ParseName(f.Name, snapshotSuffix); ok && !f.IsDir {
			r.snapshots[end] = true
		}
	}
	if l.o.ReadOnly {
		return nil
	}
	for _, f := range infos {
		name := f.Name
		drop := strings.HasPrefix(name, segment.TmpPrefix) || name == epochFile+".tmp" || name == slotName+".tmp"
		for _, suffix := range []string{".index", ".timeindex", ".txnindex"} {
			if base, ok := segment.ParseName(name, suffix); ok {
				if _, there := r.sizes[base]; !there {
					drop = true // an index without its log
				}
			}
		}
		if drop && !f.IsDir {
			if err := l.o.FS.Remove(l.path(name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
	}
	return nil
}

// finishSwap completes or undoes a replacement of segments that Kafka's cleaner
// was in the middle of (log-format §4.2, steps 1 to 6). infos are the files; it
// reports whether it changed any.
func (r *recovery) finishSwap(infos []vfs.Info) (changed bool, err error) {
	l := r.l
	remove := func(name string) error {
		changed = true
		if err := l.o.FS.Remove(l.path(name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return nil
	}
	minCleaned := int64(-1)
	var swaps []string
	for _, f := range infos {
		if f.IsDir {
			continue
		}
		if strings.HasSuffix(f.Name, string(checkpoint.Deleted)) {
			if err := remove(f.Name); err != nil {
				return changed, err
			}
			continue
		}
		k, err := checkpoint.ParseSegmentFile(f.Name)
		if err != nil {
			continue
		}
		switch k.Stage {
		case checkpoint.Cleaned:
			if minCleaned < 0 || k.Base < minCleaned {
				minCleaned = k.Base
			}
		case checkpoint.Swap:
			swaps = append(swaps, f.Name)
		}
	}
	if minCleaned < 0 && len(swaps) == 0 {
		return changed, nil
	}
	for _, f := range infos {
		if k, err := checkpoint.ParseSegmentFile(f.Name); err == nil && k.Stage == checkpoint.Cleaned {
			if err := remove(f.Name); err != nil {
				return changed, err
			}
		}
	}
	lo, hi := int64(-1), int64(-1) // offsets [lo, hi) of finished replacements
	keep := swaps[:0]
	for _, name := range swaps {
		k, _ := checkpoint.ParseSegmentFile(name)
		if minCleaned >= 0 && k.Base >= minCleaned {
			if err := remove(name); err != nil {
				return changed, err
			}
			continue
		}
		keep = append(keep, name)
		if k.Kind == checkpoint.Log {
			next, err := r.endOfFile(l.path(name), k.Base)
			if err != nil {
				return changed, err
			}
			if lo < 0 || k.Base < lo {
				lo = k.Base
			}
			hi = max(hi, next)
		}
	}
	for _, f := range infos {
		k, err := checkpoint.ParseSegmentFile(f.Name)
		if err != nil || k.Stage != checkpoint.Live || k.Base < lo || k.Base >= hi || k.Kind == checkpoint.Snapshot {
			continue
		}
		if err := remove(f.Name); err != nil {
			return changed, err
		}
	}
	changed = true
	for _, name := range keep {
		if err := l.o.FS.Rename(l.path(name), l.path(strings.TrimSuffix(name, ".swap"))); err != nil {
			return changed, err
		}
	}
	return changed, l.o.FS.SyncDir(l.dir)
}

// endOfFile reads the headers of a log file for the offset behind its last
// whole batch.
func (r *recovery) endOfFile(name string, base int64) (int64, error) {
	f, err := r.l.o.FS.Open(name, vfs.ReadOnly)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	i, err := f.Stat()
	if err != nil {
		return 0, err
	}
	var h [record.HeaderSize]byte
	next := base
	for pos := int64(0); pos+record.HeaderSize <= i.Size; {
		if _, err := f.ReadAt(h[:], pos); err != nil && err != io.EOF {
			return 0, err
		}
		b := record.Batch(h[:])
		if b.Size() < record.HeaderSize || pos+int64(b.Size()) > i.Size {
			break
		}
		pos += int64(b.Size())
		next = max(next, b.NextOffset())
	}
	return next, nil
}

// readSlot decides what is known: see R7 and R32.
func (r *recovery) readSlot() error {
	l := r.l
	st, err := readSlot(l.o.FS, l.dir)
	switch {
	case err == nil && st.device == r.info.Device && st.inode == r.info.Inode:
		r.old, r.slot = st, true
	case err == nil || errors.Is(err, errSlot):
		// None, damaged, or another directory's: a copied folder is a new log.
		if cp := l.o.Checkpoints; cp.Valid {
			r.vouched = max(cp.RecoveryPoint, 0)
			r.settled = r.vouched
			r.old.logStart = max(cp.LogStart, 0)
			if r.vouched <= r.old.logStart {
				r.vouched = 0 // all below it may be gone
			}
			if cp.Clean {
				r.settled, r.believed = math.MaxInt64, math.MaxInt64
			}
		}
		return nil
	default:
		return err
	}
	r.failed = st.flags&flagFailed != 0
	r.vouched, r.settled = st.syncedEnd, st.settledEnd
	clean := st.flags&flagClean != 0
	r.boot = !clean && r.sameBoot() && !r.failed
	if clean {
		// A clean close vouches for the file it left, not for one that somebody
		// touched since.
		r.boot = r.last.Size == st.activeSize && r.last.ModTime.UnixNano() == st.activeTime
		if cp := l.o.Checkpoints; cp.Valid && cp.Clean {
			r.old.logStart = max(st.logStart, cp.LogStart) // Kafka may have had the folder, and raised it
		}
		if !r.boot {
			r.settled = 0
			r.touched = r.last.Name != "" && r.last.Size != st.activeSize
		}
	}
	if r.boot {
		r.vouched = st.end // damage below it is no torn tail
		r.believed = st.end
	}
	if r.vouched <= r.old.logStart {
		r.vouched, r.believed = 0, 0 // a log that is empty, or was about to be
	}
	return nil
}

func (r *recovery) sameBoot() bool {
	return r.slot && r.old.boot == r.l.o.FS.BootID() && r.old.boot != [16]byte{}
}

// openSegments opens the files in order, unread.
func (r *recovery) openSegments() error {
	l := r.l
	bases := slices.Sorted(maps.Keys(r.sizes))
	for len(bases) > 1 && bases[1] <= r.old.logStart {
		r.below = append(r.below, bases[0])
		bases = bases[1:]
	}
	for i, base := range bases {
		known := false
		if i+1 < len(bases) {
			next := bases[i+1]
			known = r.hasIndex(base) && next <= r.settled && next-base <= segment.MaxRelative+1
		}
		if !known && r.failed && !l.o.ReadOnly {
			// Pages of the indexes may be lost as well.
			for _, suffix := range []string{".index", ".timeindex"} {
				err := l.o.FS.Remove(l.path(segment.FileName(base, suffix)))
				if err != nil && !errors.Is(err, fs.ErrNotExist) {
					return err
				}
			}
			delete(r.indexes, base)
		}
		s, err := segment.Open(l.dir, base, r.sizes[base], l.so, known || r.indexLeads(base))
		if err != nil {
			return err
		}
		r.list = append(r.list, s)
		if known {
			s.Publish(bases[i+1], r.sizes[base])
			s.Known()
		} else {
			r.total += r.sizes[base]
		}
	}
	return nil
}

// indexLeads reports whether the index of a segment is used to get past batches
// that need not be read.
func (r *recovery) indexLeads(base int64) bool { return r.hasIndex(base) && r.believed > base }

func (r *recovery) hasIndex(base int64) bool {
	_, ok := r.indexes[base]
	return ok
}

// judge finds the end of the log: in believed segments by headers, beyond by
// checksums.
func (r *recovery) judge() error {
	next := r.old.logStart
	if len(r.list) > 0 {
		next = r.list[0].Base()
		switch lost := r.slot && next > r.old.logStart && r.vouched > r.old.logStart; {
		case lost && r.old.flags&flagClean != 0: // Kafka may have had the folder, and its retention
			r.l.o.Logger.Warn("first segment begins above the log start", "dir", r.l.dir, "logStart", r.old.logStart, "first", next)
		case lost: // a log start that moves is in the slot before a segment goes (R14)
			r.damaged(segment.FileName(r.old.logStart, ".log"), 0, r.old.logStart, fmt.Errorf("the log begins at offset %d, its first segment at %d", r.old.logStart, next))
		}
	}
	for i, s := range r.list {
		if i > 0 && s.Base() != next && r.endsAtGap(i, next) {
			r.forgetFrom(i)
			break
		}
		var stop bool
		var err error
		if next, stop, err = r.scan(i, s, next); err != nil {
			return err
		}
		if stop {
			r.forgetFrom(i + 1)
			break
		}
	}
	r.end = next
	switch {
	case r.l.Damage() != nil:
	case r.vouched == 0 && (r.end < r.old.logStart || r.end == r.old.logStart && r.old.flags&flagEmpty != 0 && !r.beginsAtStart()):
		// A crash in the middle of TruncateFullyAndStartAt, or a log start that
		// passed the end (log-format §4.2): an empty log begins there.
		r.forgetFrom(0)
		r.end, r.epochs, r.denied = r.old.logStart, nil, false
	case r.end < r.vouched && len(r.list) == 0:
		r.damaged(segment.FileName(r.end, ".log"), 0, r.end, errors.New("every segment is missing"))
	case r.end < r.vouched:
		r.damaged(r.list[len(r.list)-1].Name(), r.endPos, r.end, fmt.Errorf("log ends at offset %d, %d was synced", r.end, r.vouched))
	}
	return nil
}

// beginsAtStart reports whether the first segment is one that begins with the log:
// nothing of a log that was emptied is left.
func (r *recovery) beginsAtStart() bool {
	return len(r.list) > 0 && r.list[0].Base() == r.old.logStart
}

// endsAtGap decides about segment i, whose base is not next, where the one
// before ended. A compacted leader leaves gaps; a segment that was not synced
// and lost its end, or its name, is the end of the log (R14).
func (r *recovery) endsAtGap(i int, next int64) bool {
	s, prev := r.list[i], r.list[i-1]
	switch {
	case s.Base() < next:
		r.damaged(s.Name(), 0, next, fmt.Errorf("%w: segment begins at %d, the one before ends at %d", segment.ErrOrder, s.Base(), next))
	case !r.slot || s.Base() <= r.old.logStart:
	case r.boot:
		// Every roll stores the end: what begins behind it is a leftover of a
		// recovery that was killed.
		return s.Base() > r.old.end
	case next >= r.vouched:
		return true // a gap reaches the slot before it counts as synced
	case prev.Allocated() > prev.Size():
		// A segment is trimmed before the sync that covers it.
		r.damaged(prev.Name(), prev.Size(), next, fmt.Errorf("batches up to offset %d are missing", s.Base()))
	}
	return false
}

// forgetFrom takes the segments from list[i] on out: they are removed when the
// log is settled.
func (r *recovery) forgetFrom(i int) {
	for _, s := range r.list[i:] {
		r.l.o.Logger.Warn("segment behind the end of the log is cut", "dir", r.l.dir, "segment", s.Name())
	}
	r.cutLater = slices.Concat(r.list[i:], r.cutLater)
	r.list = r.list[:i:i]
}

// damaged remembers the first damage. Nothing is cut after it.
func (r *recovery) damaged(file string, pos, offset int64, err error) {
	e := &CorruptError{File: file, Pos: pos, Offset: offset, Next: -1, Err: err}
	if r.l.damage.CompareAndSwap(nil, e) {
		r.l.o.Logger.Error("log is damaged; it opens for reading only", "dir", r.l.dir, "err", e)
	}
}

// scan finds the end of segment i. next is where the one before ended.
func (r *recovery) scan(i int, s *segment.Segment, next int64) (end int64, stop bool, err error) {
	if s.IsKnown() {
		return s.End(), false, nil
	}
	next = max(next, s.Base())
	pos := int64(0)
	indexed := int64(-1) // last offset that the indexes know
	if r.indexLeads(s.Base()) {
		idx, tix := s.Indexes()
		// An index is no evidence of what the log holds, but one that is sound in
		// itself and names an offset the log lacks is a reason to say so.
		if r.rolled(i) && idx.Check(r.list[i+1].Base()-1, math.MaxInt32) == nil && tix.Check(r.list[i+1].Base()-1, math.MaxInt64) == nil {
			if o, _, ok := idx.Last(); ok {
				indexed = o
			}
			if _, o, ok := tix.Last(); ok {
				indexed = max(indexed, o)
			}
		}
		if pos, next, err = r.skip(s, next); err != nil {
			return 0, false, err
		}
	}
	r.from[s.Base()] = pos
	if pos == 0 && !r.l.o.ReadOnly {
		r.rebuilt = r.rebuilt || r.sizes[s.Base()] > 0
		if err := s.ResetIndexes(); err != nil {
			return 0, false, err
		}
	}
	err = s.Bytes(func(data []byte) error {
		for pos < int64(len(data)) {
			b, err := record.Check(data[pos:])
			if err == nil && (b.BaseOffset() < r.pastGap(i, next) || b.LastOffset()-s.Base() > segment.MaxRelative) {
				err = segment.ErrOrder
				if b.BaseOffset() >= next && !r.slot {
					// An old bug of Kafka's compaction; Kafka splits such a segment (log-format §3.6).
					return fmt.Errorf("%s, byte %d: offset %d does not fit over base %d: %w", s.Name(), pos, b.LastOffset(), s.Base(), err)
				}
			}
			if err == nil && !r.follows(i, data, pos, next) {
				err = segment.ErrOrder
			}
			if err == nil {
				if !r.l.o.ReadOnly {
					s.IndexBatch(pos, len(b), b.LastOffset(), b.MaxTimestamp())
				}
				r.takeEpoch(b)
				pos += int64(len(b))
				next = b.NextOffset()
				r.progress(s, int64(len(b)))
				continue
			}
			next = r.pastGap(i, next)
			if fresh(s, data, pos) {
				return nil
			}
			if m, e := record.ParseLegacy(data[pos:]); e == nil && m.CRCValid {
				return fmt.Errorf("%s, byte %d: %w", s.Name(), pos, err)
			}
			end := r.vouched // as far as it is known
			if i+1 < len(r.list) {
				end = r.list[i+1].Base()
			} else if end <= next {
				end = -1
			}
			d := segment.Resync(data, pos, next, s.Base(), end)
			if d.Next >= 0 && d.Next <= r.old.logStart {
				r.holed = true
				r.l.o.Logger.Warn("damage below the log start is passed over", "dir", r.l.dir, "segment", s.Name(), "pos", pos, "offset", next)
				pos, next = d.End, d.Next
				continue
			}
			if !r.isDamage(data, pos, next, d, i) {
				r.garbage, stop = true, true
				r.countDropped(data, d)
				return nil
			}
			r.damaged(s.Name(), pos, next, err)
			if d.Next < 0 {
				return nil
			}
			pos, next = d.End, d.Next
		}
		return nil
	})
	if err != nil {
		return 0, false, err
	}
	next = r.pastGap(i, next)
	if next <= indexed {
		r.damaged(s.Name(), pos, next, fmt.Errorf("%w: the index knows offset %d", record.ErrTooShort, indexed))
	}
	s.Publish(next, pos)
	r.endPos = pos
	return next, stop && r.l.Damage() == nil, nil
}

// takeEpoch takes in the epoch of a batch that counts.
func (r *recovery) takeEpoch(b record.Batch) {
	e, n := b.LeaderEpoch(), len(r.epochs)
	if e < 0 || b.LastOffset() < r.old.logStart {
		return
	}
	if len(r.stored) > 0 && epochAt(r.stored, max(b.BaseOffset(), r.stored[0].StartOffset)) != e {
		r.denied = true
	}
	if n > 0 && e < r.epochs[n-1].Epoch {
		r.disorder = true
	}
	r.epochs = withBatch(r.epochs, e, b.BaseOffset())
}

// follows reports whether the whole batch at pos may lie where offset next is
// due. Base offset and leader epoch are outside the checksum, but the slot knows
// offsets at which a batch ended, and of gaps: what was vouched for ends there,
// and behind it the same boot has none that an append returned from. Of a log
// that was being cut it knows where that should have ended.
func (r *recovery) follows(i int, data []byte, pos, next int64) bool {
	due, b := r.pastGap(i, next), record.Batch(data[pos:])
	switch {
	case !r.slot || r.old.flags&flagCut != 0 || b.LastOffset() < r.old.logStart: // of the last the history says nothing
		return true
	case i+1 < len(r.list) && b.LastOffset() >= r.list[i+1].Base():
		return false
	case !r.touched && !r.noEpochs && len(r.stored) > 0 && b.LeaderEpoch() > epochAt(r.stored, max(b.BaseOffset(), r.stored[0].StartOffset)):
		return false // an epoch is in the file before any batch of it is in the log
	case due < r.vouched:
		_, err := segment.Next(data, pos, due, r.vouched)
		return err == nil
	}
	return !r.boot || b.BaseOffset() == due
}

// pastGap returns where the log goes on in segment i behind a batch that ends at
// next: a truncation inside a batch left a gap there. If it was interrupted, the
// batch may still be there; its end is not that of the log any more.
func (r *recovery) pastGap(i int, next int64) int64 {
	goesOn := i+1 < len(r.list) && r.list[i+1].Base() == next
	if next == r.old.gapFrom && !goesOn {
		return r.old.gapTo
	}
	return next
}

// skip walks the headers of believed batches from the last index entry below
// them on, and leaves the indexes as they were there. If the index does not fit
// the log it answers position 0, and all is read.
func (r *recovery) skip(s *segment.Segment, first int64) (pos, next int64, err error) {
	idx, tix := s.Indexes()
	if !r.l.o.ReadOnly {
		if err := errors.Join(idx.TruncateTo(r.believed), tix.TruncateTo(r.believed)); err != nil {
			return 0, 0, err
		}
	}
	if s.CheckIndexes(r.sizes[s.Base()]) != nil {
		return 0, first, nil
	}
	entry, start := idx.Lookup(r.believed - 1)
	err = s.Bytes(func(data []byte) error {
		pos, next = start, first
		for met := start == 0; ; {
			f, err := segment.Next(data, pos, next, r.believed)
			if !met && (err != nil || f.Last > entry) {
				pos = 0 // the index lies, or the batch it names does
				return nil
			}
			if err != nil {
				return nil
			}
			met = met || f.Last == entry
			pos += int64(f.Size)
			next = f.Last + 1
		}
	})
	if err != nil || pos == 0 {
		return 0, first, err
	}
	s.Publish(next, pos)
	return pos, next, s.Reload()
}

// rolled reports whether this boot rolled from segment i: it is as the slot says,
// whole.
func (r *recovery) rolled(i int) bool {
	return r.boot && i+1 < len(r.list) && r.list[i+1].Base() <= r.believed
}

// isDamage tells damage from a torn end (R32). Below what was synced an invalid
// batch is damage, and so it is in a segment that this boot rolled from. Above it is an ordinary power cut, valid batches behind it
// or not, since sectors reach the disk in any order; unless none of its sectors
// can have been lost or torn: then its own bytes are wrong.
func (r *recovery) isDamage(data []byte, pos, next int64, d segment.Damage, i int) bool {
	if next < r.vouched || r.rolled(i) {
		return true
	}
	if r.old.flags&flagCut != 0 {
		return false // what a truncation or a recovery had begun to cut
	}
	follows := d.Follows
	for _, s := range r.list[i+1:] {
		follows = follows || s.Allocated() >= record.HeaderSize
	}
	if !follows {
		return false
	}
	end := d.End
	if n, ok := record.PeekSize(data[pos:]); ok {
		if pos+int64(n) > int64(len(data)) {
			return false // the file was longer than its size on disk
		}
		end = min(end, pos+int64(n))
	}
	last := end - end%sectorSize
	if d.Next >= 0 && d.End == end && !vfs.AllZero(data[end:min(last+sectorSize, int64(len(data)))]) {
		// A sector tears in one place. What is in the last one of the good batch
		// behind says that it is whole up to there.
		end = max(last, pos)
	}
	return !mayBeTorn(data, pos, end)
}

// sectorSize is what a disk writes whole, if it does not tear.
const sectorSize = 512

// mayBeTorn reports whether a sector of data[pos:end] may have missed its write,
// or a part of it: what it holds of the range ends in a zero byte, as fresh space
// does.
func mayBeTorn(data []byte, pos, end int64) bool {
	for at := pos; at < end; {
		at = min((at/sectorSize+1)*sectorSize, end)
		if data[at-1] == 0 {
			return true
		}
	}
	return false
}

func (r *recovery) countDropped(data []byte, d segment.Damage) {
	if d.Next < 0 {
		return
	}
	for pos := d.End; pos < int64(len(data)); {
		b, err := record.Check(data[pos:])
		if err != nil {
			break
		}
		r.dropped++
		pos += int64(len(b))
	}
}

func (r *recovery) progress(s *segment.Segment, n int64) {
	const every = 16 << 20
	before := r.done
	r.done += n
	if r.l.o.Progress != nil && before/every != r.done/every {
		left := 0
		for _, x := range r.list {
			if x.Base() > s.Base() {
				left++
			}
		}
		r.l.o.Progress(Progress{Segment: s.Name(), Done: r.done, Total: r.total, SegmentsLeft: left})
	}
}

// fresh reports whether nothing but zeros lies in the file behind pos. Of space that
// was allocated and never written the file system knows: reading it would cost a
// page of memory for each block.
func fresh(s *segment.Segment, data []byte, pos int64) bool {
	size, zero := int64(len(data)), true
	if size-pos <= readFresh {
		return vfs.AllZero(data[pos:])
	}
	err := s.Written(pos, func(from, to int64) bool {
		zero = from >= size || vfs.AllZero(data[from:min(to, size)])
		return zero
	})
	if err != nil {
		return vfs.AllZero(data[pos:])
	}
	return zero
}

// readFresh is how much is looked through without asking.
const readFresh = 256 << 10

// readEpochs reads the epoch file.
func (r *recovery) readEpochs() error {
	l := r.l
	b, err := vfs.ReadFile(l.o.FS, l.path(epochFile), 16<<20)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	r.noEpochs = err != nil || len(b) == 0
	if r.stored, err = checkpoint.ParseEpochs(b); err != nil {
		l.o.Logger.Warn("leader epochs cannot be read, they are rebuilt from the log", "dir", l.dir, "err", err)
		r.noEpochs = true
	}
	return nil
}

// findEpochs takes the epochs of the batches that were read and, for the others,
// those of the file (log-format §6). A file that is missing, cannot be parsed, or says
// something else than a batch that was read is made again from the headers of every
// batch. Neither has a checksum over it; the file is believed where the batches deny
// each other.
func (r *recovery) findEpochs() error {
	l := r.l
	l.epochs = newEpochCache(l.o.FS, l.dir)
	missing, stored, list := r.noEpochs, r.stored, r.stored
	if !missing && r.denied && !r.disorder {
		l.o.Logger.Warn("leader epochs are not those of the batches, they are rebuilt from the log", "dir", l.dir, "were", stored)
		missing = true
	}
	if missing {
		list = nil
		start := r.logStart()
		for _, s := range r.list {
			err := s.Each(0, func(f segment.Frame, b []byte) bool {
				if f.Last < start && start < r.end {
					return true
				}
				list = withBatch(list, record.Batch(b).LeaderEpoch(), f.Base)
				return true
			})
			if err != nil {
				return err
			}
		}
	} else {
		if !r.slot {
			list = beginAt(list, r.epochs)
		}
		for _, e := range r.epochs {
			if n := len(list); n == 0 || e.Epoch > list[n-1].Epoch {
				list, _ = assignList(list, e.Epoch, e.StartOffset)
			}
		}
	}
	list = recoveredEpochs(list, r.logStart(), r.end)
	if len(r.list) == 0 && r.old.flags&flagEmpty != 0 { // emptied by TruncateFullyAndStartAt
		list = nil
	}
	l.epochs.list = list
	if l.o.ReadOnly || l.Damage() != nil || !missing && slices.Equal(stored, list) {
		return nil
	}
	if n := len(list); !missing && r.calm && n < len(stored) && slices.Equal(stored[:n], list) {
		// Epochs that nothing was written in. The file may have them until the log
		// wakes: the next recovery would drop them again.
		l.epochs.file = stored
		return nil
	}
	return l.epochs.set(list) // before the slot vouches for the batches they came from
}

// beginAt returns list with what the batches that were read say of offsets below
// its first entry. A log start that was raised has cut the list there; where the
// slot is lost it is where the first segment begins.
func beginAt(list, read []Epoch) []Epoch {
	if len(list) == 0 {
		return list
	}
	var below []Epoch
	for _, e := range read {
		if e.Epoch >= list[0].Epoch || e.StartOffset >= list[0].StartOffset {
			if e.Epoch == list[0].Epoch && e.StartOffset < list[0].StartOffset {
				list = slices.Clone(list)
				list[0].StartOffset = e.StartOffset
			}
			break
		}
		below = append(below, e)
	}
	return append(below, list...)
}

// recoveredEpochs drops the epochs nothing was written in. In an empty log that
// cannot be told from one whose records were all deleted, and the newest epoch
// stays: whoever compares logs must not take this one for older than it is.
func recoveredEpochs(list []Epoch, start, end int64) []Epoch {
	if start == end {
		end++
	}
	if list = fromEnd(list, end); len(list) > 0 {
		list = fromStart(list, start)
	}
	return list
}

func (r *recovery) logStart() int64 {
	start := r.old.logStart
	if len(r.list) > 0 {
		start = max(start, r.list[0].Base())
	}
	return start
}

// publish makes the log ready for reading.
func (r *recovery) publish() error {
	l := r.l
	if len(r.list) == 0 {
		if d := l.Damage(); d != nil {
			return d
		}
		return fmt.Errorf("no segment: %w", fs.ErrNotExist)
	}
	l.segments.Store(&r.list)
	l.active.Store(r.list[len(r.list)-1])
	// Of a log that must not be written the end behind a wide gap that an interrupted
	// cut left is not shown: nothing lies in there.
	r.end = min(r.end, l.trueEnd())
	start := min(r.logStart(), r.end)
	l.logStart.Store(start)
	// What was read after another boot came from the disk. Of a damaged log all
	// that is left is served.
	synced := r.end
	if r.sameBoot() && l.Damage() == nil {
		synced = max(start, min(r.old.syncedEnd, r.end))
	}
	l.sync.end.Store(synced)
	l.hw.Store(max(start, min(r.hwc(), r.end)))
	return nil
}

// evidence is how the last life of the log ended, provided that all up to the end
// is on disk (R4).
func (r *recovery) evidence() partition.Evidence {
	clean := r.old.flags&flagClean != 0
	switch {
	case r.old.flags&flagSuspect != 0 && r.slot:
		return partition.Suspect // nobody was told yet
	case r.l.Damage() != nil || r.failed: // damage below the log start is of records that are deleted
		return partition.Suspect
	case !r.slot && len(r.sizes) == 0:
		return partition.Clean // it was never there: nothing was confirmed
	case !r.slot || clean && !r.boot:
		return partition.Suspect // another directory's, or somebody wrote since
	case clean:
		return partition.Clean
	case r.sameBoot():
		return partition.Intact
	case r.old.flags&flagAlways != 0 && r.end >= r.hwc():
		return partition.Intact // nothing above syncedEnd was confirmed, and that is damage if it is gone
	}
	return partition.Suspect
}

// always is flagAlways if the log is still, or as a new one, under Always.
func (r *recovery) always() uint64 {
	switch {
	case r.l.o.Sync != Always:
		return 0
	case r.slot:
		return r.old.flags & flagAlways
	case len(r.sizes) == 0:
		return flagAlways
	}
	return 0
}

// Durable reports whether what the log ever confirmed was on disk before it opened,
// whatever became of the system since (R4): it has been under Always ever since it was
// made, or was closed in order, and nothing changed it since.
func (l *Log) Durable() bool { return l.last.durable }

// cleared notes that nothing hangs any more on how the last life ended: a coordinator
// has been told, and lets the log lead, or a leader has judged it. That this reaches
// the disk is not waited for.
func (l *Log) cleared() {
	if l.o.Sole {
		return // nobody was asked
	}
	l.slot.mu.Lock()
	was := l.slot.s.flags&flagSuspect != 0
	l.slot.s.flags &^= flagSuspect // of a sleeping log on disk when it wakes
	l.slot.mu.Unlock()
	if was && !l.asleep.Load() {
		l.storeSlot()
	}
}

// Evidence is how the last life of the log ended (R4): Clean after a Close, or for
// a log that was just made; Intact if everything that may have been confirmed is
// there; else Suspect. What the last life of this boot left in the page cache is
// made durable first, since until then it cannot be counted on (R7): call it
// before the log is used, and expect it to take as long as a sync does.
func (l *Log) Evidence() partition.Evidence {
	if l.last.evidence == partition.Intact && l.sync.end.Load() < l.last.end {
		if err := l.SyncNow(); err != nil {
			return partition.Suspect
		}
	}
	if l.Err() != nil {
		return partition.Suspect
	}
	return l.last.evidence
}

// hwc is the high watermark as found (replication §0), −1 if there is none.
func (r *recovery) hwc() int64 {
	cp := r.l.o.Checkpoints
	switch {
	case r.boot || r.sameBoot():
		return r.old.hw
	case r.slot && r.old.flags&flagClean != 0 && cp.Valid: // others had the folder since
		return max(r.old.syncedHW, cp.HighWatermark)
	case r.slot:
		return r.old.syncedHW
	case cp.Valid:
		return cp.HighWatermark
	}
	return -1
}

// asClosed reports whether the log is just as a clean close left it, with nothing
// to mend. Its segments and producers are known.
func (r *recovery) asClosed() bool {
	n := len(r.list)
	if !r.slot || !r.boot || r.old.flags&^flagsKept != flagClean || r.garbage || r.rebuilt || n == 0 || len(r.cutLater)+len(r.below) > 0 {
		return false
	}
	for _, s := range r.list[:n-1] {
		if !s.IsKnown() {
			return false
		}
	}
	if r.list[n-1].End() < r.end {
		return false // behind a wide gap an empty segment is due
	}
	if p := &r.l.prod; p.some.Load() && p.written != r.end {
		return false // the next close has files to write
	}
	s := r.list[n-1]
	idx, tix := s.Indexes()
	whole := func(sizes map[int64]int64, want int) bool { // there, and trimmed (log-format §12)
		size, ok := sizes[s.Base()]
		return ok && size == int64(want)
	}
	return r.end == r.old.end && r.end == r.old.syncedEnd && r.logStart() == r.old.logStart &&
		s.Size() == s.Allocated() && whole(r.indexes, idx.Len()*index.OffsetEntrySize) && whole(r.times, tix.Len()*index.TimeEntrySize)
}

// sleep makes a calm log ready for reading. Nothing stays open or mapped, and
// nothing is written: the slot goes on saying that the log is clean, which it is
// until wake.
func (r *recovery) sleep() error {
	l := r.l
	st := r.old
	st.boot, st.flags = l.o.FS.BootID(), flagClean|st.flags&(flagsKept&^flagAlways)|r.always()
	l.slot = sleepingSlot(l.o.FS, l.dir, st, l.o.Maps.Add)
	l.sync.settled.Store(st.settledEnd)
	if err := r.publish(); err != nil {
		return err
	}
	l.sync.end.Store(r.end)
	if l.o.Held && !l.o.Sole {
		l.heldAt.Store(max(r.logStart(), min(r.hwc(), r.end)))
	}
	l.asleep.Store(true)
	for _, s := range r.list {
		s.Rest()
	}
	return nil
}

// wake makes a sleeping log ready for changes. The slot says durably that it is
// not clean any more before anything else changes. On an error that does not stick
// the log sleeps on and is as it was. l.maint is held, appendMu is not.
func (l *Log) wake() error {
	if !l.asleep.Load() {
		return nil
	}
	err := l.wakeSlot()
	if err == nil {
		err = l.epochs.flush()
	}
	if err == nil {
		// Somebody may have a link to the file.
		list := *l.segments.Load()
		if list, err = l.unshare(list, len(list)-1, false); err == nil {
			s := list[len(list)-1]
			l.active.Store(s)
			err = s.Wake()
		}
	}
	if sticks(err) {
		return l.fail("wake log", err)
	}
	if err != nil {
		return fmt.Errorf("wake log: %w", err)
	}
	l.asleep.Store(false)
	return nil
}

// wakeSlot is the part of wake that concerns the slot and the epoch file: what the
// next recovery goes by.
func (l *Log) wakeSlot() error {
	l.slot.mu.Lock()
	err := l.slot.wakeLocked()
	l.slot.s.flags &^= flagClean
	l.slot.mu.Unlock()
	if err != nil {
		return err
	}
	l.storeSlot()
	if err := l.Err(); err != nil {
		return err
	}
	if err := l.slot.sync(); err != nil {
		return err
	}
	return l.epochs.flush()
}

// settle makes the log ready for appending: what is not part of it is cut, in
// the order of R14, and whatever was read from the disk of another boot is
// synced before it counts.
func (r *recovery) settle() error {
	l := r.l
	start := r.logStart()
	st := r.old
	if !r.slot {
		st = slotState{}
		rand.Read(st.logID[:])
		// Nothing in the folder counts before its own name is on disk (C019).
		if err := vfs.SyncParent(l.o.FS, l.dir); err != nil {
			return err
		}
	}
	st.boot, st.device, st.inode = l.o.FS.BootID(), r.info.Device, r.info.Inode
	st.logStart = start
	st.end = r.end
	st.hw = max(start, min(r.hwc(), r.end))
	st.syncedEnd = max(start, min(r.old.syncedEnd, r.end))
	st.syncedHW = min(st.hw, st.syncedEnd)
	st.settledEnd = min(st.settledEnd, r.end)
	st.flags = st.flags&(flagFailed|flagCut|flagEmpty|flagLinked) | r.always()
	if l.last.evidence == partition.Suspect {
		st.flags |= flagSuspect
	}
	if l.prod.emptyTo == noProducers {
		st.flags |= flagNoProducers
	}
	l.prod.logID = st.logID
	if r.garbage {
		st.flags |= flagCut
	}
	var err error
	if l.slot, err = openSlot(l.o.FS, l.dir, st, !r.slot || r.failed, l.o.Maps.Add); err != nil {
		return err
	}
	for i := len(r.cutLater) - 1; i >= 0; i-- {
		if err := r.cutLater[i].Remove(); err != nil {
			return err
		}
		if err := l.o.FS.SyncDir(l.dir); err != nil {
			return err
		}
	}
	r.cutLater = nil
	for _, base := range r.below { // the slot has the log start, durably
		if err := segment.RemoveFiles(l.o.FS, l.dir, base, ""); err != nil {
			return err
		}
	}
	if len(r.below) > 0 {
		if err := l.o.FS.SyncDir(l.dir); err != nil {
			return err
		}
	}
	if len(r.list) == 0 {
		s, err := l.firstSegment(r.end)
		if err != nil {
			return err
		}
		r.list = append(r.list, s)
	} else if err := r.rewrite(); err != nil {
		return err
	}
	if last := r.list[len(r.list)-1]; last.End() < r.end { // as in cut
		if err := settleSealed(last); err != nil {
			return err
		}
		s, err := l.firstSegment(r.end)
		if err != nil {
			return err
		}
		r.list = append(r.list, s)
		r.garbage = false
	}
	l.sync.settled.Store(st.settledEnd)
	synced := st.syncedEnd
	active := r.list[len(r.list)-1]
	for i, s := range r.list[:len(r.list)-1] {
		next := r.list[i+1].Base()
		l.sync.gap = l.sync.gap || next > synced && next != s.End()
		switch {
		case s.IsKnown():
		case r.boot:
			err = s.OpenFile()
			l.sync.sealed = append(l.sync.sealed, sealedSegment{seg: s})
		default:
			err = settleSealed(s)
		}
		if err != nil {
			return err
		}
	}
	if err := r.unseal(active); err != nil {
		return err
	}
	if !r.boot || st.flags&flagCut != 0 {
		// Nothing that was cut may come back behind what is appended next.
		if err := active.SyncFile(); err != nil {
			return err
		}
	}
	if !r.boot {
		if err := l.o.FS.SyncDir(l.dir); err != nil { // indexes that Trim made
			return err
		}
		synced = r.end
		l.sync.settled.Store(active.Base())
	}
	if err := r.publish(); err != nil {
		return err
	}
	l.sync.end.Store(synced)
	if l.o.Held && r.hwc() >= 0 && !l.o.Sole {
		l.heldAt.Store(max(start, min(r.hwc(), r.end)))
	}
	l.hw.Store(max(start, min(r.hwc(), l.CountedEnd())))
	l.slot.mu.Lock()
	l.slot.s.flags &= flagsKept
	l.slot.mu.Unlock()
	l.storeSlot()
	if r.failed || r.holed {
		// With an older slot, which knows of nothing synced above the log start, the
		// next recovery would take the hole for a torn end.
		return l.slot.sync()
	}
	return nil
}

// unseal makes the last segment appendable and cuts what does not belong to it.
func (r *recovery) unseal(s *segment.Segment) error {
	if !s.Sealed() {
		return nil
	}
	if err := s.Freeze(false); err != nil {
		return err
	}
	err := s.Unseal()
	if err == nil && r.garbage {
		r.l.o.Logger.Warn("torn end of the log is cut", "dir", r.l.dir, "segment", s.Name(), "pos", r.endPos,
			"offset", r.end, "validBatchesDropped", r.dropped)
		err = s.Cut(s.Size(), r.end)
	}
	s.Thaw()
	if err != nil {
		return err
	}
	return s.Reload()
}

// settleSealed makes a sealed segment and its indexes durable, trimmed.
func settleSealed(s *segment.Segment) error {
	if err := s.OpenFile(); err != nil {
		return err
	}
	if err := s.Trim(); err != nil {
		return err
	}
	if err := s.SyncFile(); err != nil {
		return err
	}
	if err := s.SyncIndexes(); err != nil {
		return err
	}
	return s.Settled()
}

// rewrite copies to new files every segment that must not be written in place:
// one that a backup shares, if it is to take appends, and after a failed sync
// those with bytes of [syncedEnd, end). For such the kernel may show pages that
// the disk never got, and only fresh pages are written again (R8).
func (r *recovery) rewrite() (err error) {
	l := r.l
	for i, s := range r.list {
		last := i == len(r.list)-1
		lost := r.failed && (last || s.End() > r.old.syncedEnd)
		if !lost && last {
			if lost, err = l.shared(s); err != nil {
				return err
			}
		}
		if !lost {
			continue
		}
		if r.list[i], err = l.copySegment(s); err != nil {
			return err
		}
		if last {
			r.garbage = false
		}
	}
	if r.failed {
		l.o.Logger.Warn("log had failed; what was not synced was copied to new files", "dir", l.dir, "from", r.old.syncedEnd, "to", r.end)
	}
	return nil
}

// shared reports whether a backup has a hard link to the segment's file.
func (l *Log) shared(s *segment.Segment) (bool, error) {
	i, err := l.o.FS.Stat(l.path(s.Name()))
	return i.Links > 1, err
}

// copySegment puts a copy of a sealed segment's batches, durable, in the place
// of its file and opens that. Views of the old file stay valid. On error it
// returns s.
func (l *Log) copySegment(s *segment.Segment) (*segment.Segment, error) {
	if err := l.writeCopy(s); err != nil {
		return s, err
	}
	return l.takeCopy(s)
}

// writeCopy gives a copy of a sealed segment's batches the name of its file. On
// error the file is as before.
func (l *Log) writeCopy(s *segment.Segment) error {
	tmp := l.path(segment.TmpPrefix + ".copy.tmp")
	err := s.Bytes(func(data []byte) error { return writeFile(l.o.FS, tmp, vfs.Create, data[:s.Size()]) })
	if err == nil {
		err = l.o.FS.Rename(tmp, l.path(s.Name()))
	}
	if err != nil {
		return fmt.Errorf("copy segment %s: %w", s.Name(), err)
	}
	return nil
}

// takeCopy opens what writeCopy made and closes s. On error it returns s, which
// can be read but, its file having no name any more, not written.
func (l *Log) takeCopy(s *segment.Segment) (*segment.Segment, error) {
	if err := l.o.FS.SyncDir(l.dir); err != nil {
		return s, fmt.Errorf("copy segment %s: %w", s.Name(), err)
	}
	fresh, err := segment.Open(l.dir, s.Base(), s.Size(), l.so, true)
	if err != nil {
		return s, err
	}
	fresh.Publish(s.End(), s.Size())
	if err := fresh.Reload(); err != nil {
		return s, errors.Join(err, fresh.Close())
	}
	if err := s.Close(); err != nil {
		l.o.Logger.Warn("copied segment not closed", "dir", l.dir, "segment", s.Name(), "err", err)
	}
	return fresh, nil
}

// Close makes the log durable whatever the sync mode, trims its files and marks
// it clean. The caller ended syncs and appends. It returns the first write or
// sync error of the log's life, and the same again when called again. Views
// stay valid until released.
func (l *Log) Close(now time.Time) error {
	l.closeOnce.Do(func() { l.closeErr = l.close(now, orderly) })
	return l.closeErr
}

// Discard is Close for a log that is about to be deleted: nothing is made
// durable, and no error of the log's life is returned.
func (l *Log) Discard() error {
	l.closeOnce.Do(func() { l.closeErr = l.close(time.Time{}, discard) })
	return l.closeErr
}

// Abandon lets go of what the log holds in this process and leaves its files as
// they are at this moment: what a killed process leaves. A sync under way must
// have ended.
func (l *Log) Abandon() error {
	l.closeOnce.Do(func() { l.closeErr = l.close(time.Time{}, abandon) })
	return l.closeErr
}

// How a log is closed.
type closing int

const (
	orderly closing = iota
	discard         // its files are about to go
	abandon         // its files stay as they are
)

func (l *Log) close(now time.Time, how closing) error {
	keep := how == orderly
	l.maint.Lock()
	defer l.maint.Unlock()
	l.prod.mu.Lock()
	defer l.prod.mu.Unlock()
	l.appendMu.Lock()
	writable := l.writable() == nil
	l.closed.Store(true)
	next := l.next.Swap(nil)
	l.appendMu.Unlock()
	var err error
	if keep {
		err = l.Err()
	}
	if next != nil && how == abandon {
		err = errors.Join(err, next.Close())
	} else if next != nil {
		err = errors.Join(err, next.Remove())
	}
	if keep && writable {
		l.removeRetired(now.Add(math.MaxInt64), 0) // whatever their time; what is left the next open removes
	}
	if keep && writable && !l.o.ReadOnly && !l.untouched() {
		if e := l.closeClean(); e != nil && err == nil {
			err = l.fail("close", e)
		}
	}
	for _, s := range *l.segments.Load() {
		err = errors.Join(err, s.Close())
	}
	if l.slot != nil {
		l.slot.mu.Lock()
		err = errors.Join(err, l.slot.close())
		l.slot.mu.Unlock()
	}
	if l.lock != nil {
		err = errors.Join(err, l.lock.Close())
	}
	return err
}

// untouched reports whether the files are as a clean close left them.
func (l *Log) untouched() bool {
	if !l.asleep.Load() {
		return false
	}
	l.slot.mu.Lock()
	defer l.slot.mu.Unlock()
	return l.slot.asleep
}

func (l *Log) closeClean() error {
	if !l.takeGate() {
		return ErrBusy
	}
	defer l.leaveGate()
	active := l.active.Load()
	if !l.asleep.Load() { // else only the slot was woken, and the files are settled
		active.Seal()
		if err := active.Trim(); err != nil {
			return err
		}
		if err := l.settleTo(active, active.End()); err != nil {
			return err
		}
		if err := active.SyncIndexes(); err != nil {
			return err
		}
		if err := l.closeProducers(); err != nil {
			return err
		}
		// Trim may have made the index files.
		if err := l.o.FS.SyncDir(l.dir); err != nil {
			return err
		}
	}
	i, err := l.o.FS.Stat(l.path(active.Name()))
	if err != nil {
		return err
	}
	l.slot.mu.Lock()
	l.fillSlotLocked()
	l.slot.s.flags |= flagClean
	l.slot.s.activeSize, l.slot.s.activeTime = i.Size, i.ModTime.UnixNano()
	l.slot.storeLocked()
	l.slot.mu.Unlock()
	return l.slot.sync()
}
