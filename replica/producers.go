package replica

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tidemark-log/tidemark/dedupe"
	"github.com/tidemark-log/tidemark/internal/vfs"
	"github.com/tidemark-log/tidemark/record"
	"github.com/tidemark-log/tidemark/segment"
)

const (
	windowSuffix   = dedupe.Suffix // ours, with the whole window of each producer
	snapshotSuffix = ".snapshot"   // Kafka's, with its last batch
	producerTmp    = segment.TmpPrefix + ".producers.tmp"

	// snapshotEvery is how many bytes of log are appended between two window files,
	// and so about what a reopen after a kill replays. Larger tables wait for as many
	// bytes as their files have.
	snapshotEvery = 4 << 20

	// expireEvery is Kafka's producer.id.expiration.check.interval.ms.
	expireEvery = 10 * time.Minute

	// expireAtOnce is how many producers are looked at while appends wait.
	expireAtOnce = 4096

	keepBetween = 2 // window files that are kept although no segment begins there
)

// noProducers is producers.emptyTo of a log without any batch of a producer.
const noProducers = math.MaxInt64

// producers is the part of a Log that drops what producers send twice: a table
// that is a function of the batches below the log end offset, on leader and
// follower alike (R31), and its files.
//
// A log that never saw a producer has no such file. Its slot says so, and the
// flag is cleared there before the first batch of one is written.
type producers struct {
	table     *dedupe.Table
	emptyTo   int64        // below it no batch has a producer; −1 unknown
	some      atomic.Bool  // emptyTo is not noProducers
	since     int64        // bytes of log behind the newest file
	frozen    *dedupe.View // of a roll, not yet taken up by Maintain
	frozenAt  int64        // its offset
	out       bool         // Maintain is writing a view
	before    dedupe.Stats // what the tables before this one counted
	duplicate atomic.Int64
	refused   atomic.Int64
	// All of the above under appendMu. A log's end that moves down has the table
	// built beside it.

	// mu is held while a file is written, without an append waiting, and by
	// whatever moves the end down. It comes after maint and before appendMu.
	mu       sync.Mutex
	own      []int64 // offsets of our files, ascending
	kafka    []int64 // and of Kafka's
	trusted  bool    // ours tell of this very log
	logID    [16]byte
	expireAt time.Time // when the table is looked through again
	written  int64     // end of the files that the last close would write; −1 unknown
	trace    *producerTrace
}

// producerTrace is what producersAt went by, for Explain; else there is none.
type producerTrace struct {
	loaded  string           // file, "" if none
	refused map[string]error // files, and why
	from    int64            // offset from which the log was read
}

func (o *Options) dedupe() dedupe.Options {
	return dedupe.Options{MaxProducers: o.MaxProducers, Expiration: o.ProducerExpiration}
}

// ProducerStats counts what the table of producers holds and has done since the
// log was opened.
type ProducerStats struct {
	Producers  int
	Bytes      int64 // of memory
	Duplicates int64 // batches answered with their original
	Refused    int64 // batches out of order, fenced, or in the wrong transaction state
	Evicted    int64 // producers that made room for others
	Expired    int64
}

func (l *Log) producerStats() (s ProducerStats) {
	p := &l.prod
	s.Duplicates, s.Refused = p.duplicate.Load(), p.refused.Load()
	if p.some.Load() {
		l.appendMu.Lock()
		t := p.table.Stats()
		s.Producers, s.Bytes, s.Evicted, s.Expired = t.Producers, t.Bytes, p.before.Evicted+t.Evicted, p.before.Expired+t.Expired
		l.appendMu.Unlock()
	}
	return s
}

// Producer returns what the log knows about a producer; ok is false if it is
// unknown, and in a log opened read-only.
func (l *Log) Producer(id int64) (p dedupe.Producer, ok bool) {
	l.appendMu.Lock()
	defer l.appendMu.Unlock()
	if l.prod.table == nil {
		return p, false
	}
	return l.prod.table.Get(id)
}

// answerLocked answers a batch that is not appended: a duplicate of original, or
// refused. appendMu is held.
func (p *producers) answerLocked(original dedupe.Batch, refused error) (Appended, error) {
	if refused != nil {
		p.refused.Add(1)
		return Appended{}, fmt.Errorf("append: %w", refused)
	}
	p.duplicate.Add(1)
	return Appended{Base: original.BaseOffset(), End: original.LastOffset + 1, Duplicate: true, MaxTimestamp: original.Timestamp}, nil
}

// expectLocked is called before the first batch of a producer is written, at base.
// appendMu is held.
func (l *Log) expectLocked(base int64) {
	p := &l.prod
	p.emptyTo = base
	p.some.Store(true)
	l.slot.mu.Lock()
	l.slot.s.flags &^= flagNoProducers
	l.slot.mu.Unlock()
	l.storeSlot()
}

// rolledLocked freezes the table for the files at the base of a new segment.
// appendMu is held.
func (p *producers) rolledLocked(base int64) {
	switch {
	case p.emptyTo == noProducers || p.since < p.table.FileBytes():
		return
	case p.out: // the writer is busy: let it go on with a later one at once
		p.since = math.MaxInt64 / 2
		return
	case p.frozen != nil: // not taken up since the last roll
		p.table.Thaw()
	}
	p.frozen, p.frozenAt, p.since = p.table.Freeze(), base, 0
}

// takeLocked returns what is to be written now, and whether both files are.
// appendMu is held.
func (p *producers) takeLocked(end, every int64) (v *dedupe.View, at int64, roll bool) {
	if v = p.frozen; v != nil {
		p.frozen, p.out = nil, true
		return v, p.frozenAt, true
	}
	if p.emptyTo == noProducers || p.since < max(every, p.table.FileBytes()) {
		return nil, 0, false
	}
	p.since, p.out = 0, true
	return p.table.Freeze(), end, false
}

// dropLocked forgets a frozen table. appendMu and mu are held.
func (p *producers) dropLocked() {
	if p.table != nil {
		p.table.Thaw()
	}
	p.frozen = nil
}

// maintainProducers drops producers that have expired and writes the files that
// are due. No append waits for a file. It returns when it wants to be called
// again, zero if never. An error is only news: what could not be written makes
// the next open longer.
func (l *Log) maintainProducers(now time.Time) (next time.Time, err error) {
	p := &l.prod
	if !p.some.Load() {
		return next, nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	every := expireEvery
	if l.o.ProducerExpiration > 0 {
		every = min(every, l.o.ProducerExpiration)
	}
	if p.expireAt.IsZero() {
		p.expireAt = now.Add(every)
	}
	for done := now.Before(p.expireAt); !done; {
		l.appendMu.Lock()
		done = p.table.Expire(now.UnixMilli(), expireAtOnce)
		l.appendMu.Unlock()
		if done {
			p.expireAt = now.Add(every)
		}
	}
	for l.writable() == nil {
		l.appendMu.Lock()
		v, end, roll := p.takeLocked(l.trueEnd(), l.o.snapshotEvery)
		l.appendMu.Unlock()
		if v == nil {
			break
		}
		err = errors.Join(err, l.writeProducers(v, end, roll))
		l.appendMu.Lock()
		p.table.Thaw()
		p.out = false
		l.appendMu.Unlock()
	}
	return p.expireAt, err
}

// writeProducers writes the window file at offset end and, with both, Kafka's
// snapshot behind it, durably but for the last name: where Kafka's is, ours is, and
// nobody has to do with the lesser one. Each is there whole or not at all. Those
// that are of no more use are removed. p.mu is held.
func (l *Log) writeProducers(v *dedupe.View, end int64, both bool) error {
	p := &l.prod
	err := l.writeProducerFile(segment.FileName(end, windowSuffix), v.WindowBytes(), both, func(w io.WriterAt) (int64, error) {
		return v.WriteWindow(w, p.logID, end)
	})
	if err != nil {
		return err
	}
	p.own = insert(p.own, end)
	if both {
		if err := l.o.FS.SyncDir(l.dir); err != nil {
			return err
		}
		err := l.writeProducerFile(segment.FileName(end, snapshotSuffix), v.SnapshotBytes(), true, v.WriteSnapshot)
		if err != nil {
			return err
		}
		p.kafka = insert(p.kafka, end)
		l.sync.mu.Lock()
		l.sync.dirty = true
		l.sync.mu.Unlock()
	}
	n := len(p.own)
	base := func(end int64) bool {
		_, found := slices.BinarySearchFunc(*l.segments.Load(), end, func(s *segment.Segment, end int64) int { return cmp.Compare(s.Base(), end) })
		return found
	}
	err = l.removeProducers(&p.kafka, snapshotSuffix, func(_ int, at int64) bool { return !base(at) && !slices.Contains(p.own[max(n-keepBetween, 0):], at) })
	if err == nil {
		err = l.removeProducers(&p.own, windowSuffix, func(i int, at int64) bool { return !base(at) && i < n-keepBetween })
	}
	return err
}

func insert(list []int64, end int64) []int64 {
	if i, there := slices.BinarySearch(list, end); !there {
		list = slices.Insert(list, i, end)
	}
	return list
}

func (l *Log) writeProducerFile(name string, size int64, sync bool, write func(io.WriterAt) (int64, error)) (err error) {
	tmp := l.path(producerTmp)
	defer func() {
		if err != nil {
			_ = l.o.FS.Remove(tmp)
			err = fmt.Errorf("write %s: %w", name, err)
		}
	}()
	if err := writeTmp(l.o.FS, tmp, size, sync, write); err != nil {
		return err
	}
	return l.o.FS.Rename(tmp, l.path(name))
}

func writeTmp(fsys vfs.FS, tmp string, size int64, sync bool, write func(io.WriterAt) (int64, error)) (err error) {
	f, err := fsys.Open(tmp, vfs.Create)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if err := f.Truncate(0); err != nil {
		return err
	}
	if err := f.Allocate(size); err != nil { // where a full disk shows
		return err
	}
	if _, err := write(f); err != nil {
		return err
	}
	if !sync {
		return nil
	}
	return vfs.Sync(f)
}

// removeProducers removes files, durably if they are Kafka's: ours go only after
// those. p.mu is held.
func (l *Log) removeProducers(ends *[]int64, suffix string, goes func(i int, end int64) bool) error {
	var kept []int64
	removed := false
	for i, end := range *ends {
		if !goes(i, end) {
			kept = append(kept, end)
			continue
		}
		if err := l.removeFile(segment.FileName(end, suffix)); err != nil {
			return err
		}
		removed = true
	}
	*ends = kept
	if removed && suffix == snapshotSuffix {
		return l.o.FS.SyncDir(l.dir)
	}
	return nil
}

func (l *Log) removeFile(name string) error {
	if err := l.o.FS.Remove(l.path(name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// forgetProducersAbove removes the files above offset end, durably, before the
// log below them can become another. p.mu is held.
func (l *Log) forgetProducersAbove(end int64) error {
	p := &l.prod
	above := func(_ int, at int64) bool { return at > end }
	if err := l.removeProducers(&p.kafka, snapshotSuffix, above); err != nil {
		return err
	}
	n := len(p.own)
	if err := l.removeProducers(&p.own, windowSuffix, above); err != nil || len(p.own) == n {
		return err
	}
	return l.o.FS.SyncDir(l.dir)
}

// rebuildProducers makes the table what the log says after its end moved down.
// p.mu is held, and appends are kept out.
func (l *Log) rebuildProducers(end int64) error {
	p := &l.prod
	if p.emptyTo == noProducers {
		return nil
	}
	t := dedupe.New(l.o.dedupe())
	_, read, err := l.producersAt(t, *l.segments.Load(), l.LogStartOffset(), end, 0)
	if err != nil {
		return err
	}
	l.appendMu.Lock()
	defer l.appendMu.Unlock()
	p.replaceLocked(t, read)
	p.emptyTo = min(p.emptyTo, end) // a producer may come at end
	return nil
}

// replaceLocked puts another table in the place of the one that is there, behind
// whose file are read bytes of log. mu and appendMu are held.
func (p *producers) replaceLocked(t *dedupe.Table, read int64) {
	old := p.table.Stats()
	p.before.Evicted += old.Evicted
	p.before.Expired += old.Expired
	p.table, p.since, p.written = t, read, -1
}

// resetProducers is for a log that was emptied. Its files are gone. p.mu is held,
// and appends are kept out.
func (l *Log) resetProducers() {
	p := &l.prod
	l.appendMu.Lock()
	defer l.appendMu.Unlock()
	p.replaceLocked(dedupe.New(l.o.dedupe()), 0)
	p.emptyTo = noProducers
	p.some.Store(false)
	l.slot.mu.Lock()
	l.slot.s.flags |= flagNoProducers
	l.slot.mu.Unlock()
}

// producersAt makes t the table of the log below end: from the newest file that
// can be believed, and the batches behind it, read bytes of them. none is true if
// there is no batch of a producer in the log below end. p.mu is held, or the log
// is not open yet.
//
// Which file it is:
//
//	ours, if nobody else had the folder since they were written, the newest first
//	of a log of ours that has its first batch still, none: all of it is read
//	Kafka's, the newest first
//	none: all of it is read
//
// One that is torn or of another log is passed over, and so is one from before the
// first segment: batches behind it are gone, and a producer's next one would look
// like a gap. A duplicate further back than the last batch is known from Kafka's
// only where it lies behind the file.
func (l *Log) producersAt(t *dedupe.Table, list []*segment.Segment, start, end, nowMs int64) (none bool, read int64, err error) {
	p := &l.prod
	l.appendMu.Lock()
	empty := min(p.emptyTo, end)
	l.appendMu.Unlock()
	first := end
	if len(list) > 0 {
		first = min(end, list[0].Base())
	}
	from, whole := int64(-1), false
	if p.trusted {
		from = l.loadProducers(t, p.own, windowSuffix, max(first, empty+1), end, nowMs)
		if from < 0 && empty >= 0 {
			from, whole = empty, true
		}
	}
	if begins := len(list) > 0 && first == 0 && p.trusted; from < 0 && !begins {
		from = l.loadProducers(t, p.kafka, snapshotSuffix, first, end, nowMs)
	}
	if from < 0 {
		from, whole = 0, true
	}
	if whole {
		t.Reset()
	}
	if p.trace != nil {
		p.trace.from = min(from, end)
	}
	saw, read, err := replayProducers(t, list, start, from, end)
	if bad, ok := errors.AsType[*CorruptError](err); ok && bad.Offset < start && from < start {
		// What lies below the log start may be lost. Nobody's state is known from there:
		// they are unknown, and may go on as they like.
		t.Reset()
		if p.trace != nil {
			p.trace.loaded, p.trace.from = "", start
		}
		_, read, err = replayProducers(t, list, start, start, end)
		saw = true
	}
	return whole && !saw, read, err
}

// loadProducers loads the newest file that can be believed of those at offsets
// [lowest, end], and returns its offset, −1 if there is none.
func (l *Log) loadProducers(t *dedupe.Table, ends []int64, suffix string, lowest, end, nowMs int64) int64 {
	for _, at := range slices.Backward(ends) {
		if at > end {
			continue
		}
		if at < lowest {
			break
		}
		name := segment.FileName(at, suffix)
		err := l.loadProducerFile(t, name, at, suffix == windowSuffix, nowMs)
		if trace := l.prod.trace; trace != nil && err == nil {
			trace.loaded = name
		} else if trace != nil {
			trace.refused[name] = err
		}
		if err == nil {
			return at
		}
		l.o.Logger.Warn("producer snapshot is passed over", "dir", l.dir, "file", name, "err", err)
	}
	return -1
}

var errOtherLog = errors.New("file of another log")

func (l *Log) loadProducerFile(t *dedupe.Table, name string, at int64, own bool, nowMs int64) error {
	// Twice what the table takes, lest an operator who lowers the bound pays with a
	// replay.
	limit := max(64<<20, 2*dedupe.MaxFileBytes(l.o.MaxProducers))
	b, err := vfs.ReadFile(l.o.FS, l.path(name), limit)
	if err != nil {
		return err
	}
	parse := dedupe.ParseSnapshot
	if own {
		parse = dedupe.ParseWindow
	}
	f, err := parse(b)
	if err == nil && own && f.LogID != l.prod.logID {
		err = errOtherLog
	}
	if err != nil {
		return err
	}
	return t.Load(f, at, nowMs)
}

// replayProducers enters the batches of [from, end) in t, read bytes of them,
// checksums checked, and reports whether it saw any that had a producer.
func replayProducers(t *dedupe.Table, list []*segment.Segment, start, from, end int64) (saw bool, read int64, err error) {
	for _, s := range list {
		if s.End() <= from || s.Base() >= end || s.Size() == 0 {
			continue
		}
		pos := int64(0)
		if from > s.Base() {
			pos, _, err = s.Position(from)
			if errors.Is(err, ErrCorrupt) && from > start {
				pos, err = 0, nil // or its index is not settled yet: the walk will tell
			}
			if err != nil {
				return saw, read, err
			}
		}
		var bad *CorruptError
		err := s.Walk(pos, func(f segment.Frame, b []byte) bool {
			if f.Last >= end {
				return false
			}
			if f.Last < from {
				return true
			}
			batch, err := record.Check(b)
			if err != nil {
				bad = &CorruptError{File: s.Name(), Pos: f.Pos, Offset: f.Base, Next: -1, Err: err}
				return false
			}
			read += int64(len(batch))
			if batch.HasProducer() {
				saw = true
				t.Update(batch, f.Base)
			}
			return true
		})
		if err == nil && bad != nil {
			err = bad
		}
		if err != nil {
			return saw, read, err
		}
	}
	return saw, read, nil
}

// findProducers builds the table of a log that is being opened, whose segments and
// end are known. What tells of offsets behind the end, or was written before
// somebody else had the folder, is removed, durably.
func (r *recovery) findProducers() error {
	l, p := r.l, &r.l.prod
	p.own, p.kafka = slices.Sorted(maps.Keys(r.windows)), slices.Sorted(maps.Keys(r.snapshots))
	clean := r.old.flags&flagClean != 0
	p.trusted = r.slot && (r.boot || !clean)
	p.logID, p.emptyTo, p.written = r.old.logID, -1, -1
	if p.trusted && r.old.flags&flagNoProducers != 0 {
		p.emptyTo = r.old.syncedEnd
		if r.boot {
			p.emptyTo = r.old.end
		}
	}
	if l.o.ReadOnly && p.trace == nil || l.Damage() != nil {
		return nil
	}
	end := r.end
	if len(r.list) == 0 && (!r.slot || r.old.flags&flagCut != 0) {
		end, p.emptyTo = -1, noProducers // new, or emptied by a truncation: no file tells of it
	}
	if !p.trusted {
		for _, at := range p.own {
			if err := l.removeFile(segment.FileName(at, windowSuffix)); err != nil {
				return err
			}
		}
		if len(p.own) > 0 {
			if err := l.o.FS.SyncDir(l.dir); err != nil {
				return err
			}
		}
		p.own = nil
	}
	if err := l.forgetProducersAbove(end); err != nil {
		return err
	}
	p.table = dedupe.New(l.o.dedupe())
	if cp := l.o.Checkpoints; !r.slot && cp.Valid && cp.Clean && len(p.kafka) == 0 && len(r.list) > 0 {
		// Kafka's rule: who takes the snapshots of a folder that is clean away wants
		// an empty table (log-format §5.6, §12.1).
		p.trusted = true
		p.some.Store(true)
		if p.trace != nil {
			p.trace.from = r.end
		}
		return nil
	}
	none, read, err := l.producersAt(p.table, r.list, r.logStart(), r.end, r.now.UnixMilli())
	if bad, ok := errors.AsType[*CorruptError](err); ok {
		r.damaged(bad.File, bad.Pos, bad.Offset, bad.Err)
		return nil
	}
	if err != nil {
		return err
	}
	if none {
		p.emptyTo = noProducers
	}
	p.some.Store(p.emptyTo != noProducers)
	p.since = read
	if n := len(p.own); r.boot && clean && n > 0 && p.own[n-1] == r.end && slices.Contains(p.kafka, r.end) {
		p.written = r.end
	}
	p.trusted = true // from here on
	return nil
}

// closeProducers writes both files at the end of the log, durably but for their
// names. maint and p.mu are held, and appends are over.
func (l *Log) closeProducers() error {
	p := &l.prod
	end := l.trueEnd()
	if p.emptyTo == noProducers || p.written == end {
		return nil
	}
	p.dropLocked()
	v := p.table.Freeze()
	defer p.table.Thaw()
	err := l.writeProducers(v, end, true)
	if err != nil && !sticks(err) {
		// A full disk: older files and the log say the same, only more slowly.
		l.o.Logger.Warn("producer snapshot not written", "dir", l.dir, "err", err)
		return nil
	}
	return err
}

// backupProducers gives a copy of the log up to end in dir what the copy's slot
// st needs. maint is held.
func (l *Log) backupProducers(dir string, list []*segment.Segment, end int64, st *slotState) error {
	p := &l.prod
	p.mu.Lock()
	defer p.mu.Unlock()
	t := dedupe.New(l.o.dedupe())
	none, _, err := l.producersAt(t, list, l.LogStartOffset(), end, 0)
	if err != nil {
		return err
	}
	if none {
		st.flags |= flagNoProducers
		return nil
	}
	v := t.Freeze()
	err = writeTmp(l.o.FS, filepath.Join(dir, segment.FileName(end, snapshotSuffix)), v.SnapshotBytes(), true, v.WriteSnapshot)
	if err != nil {
		return err
	}
	return writeTmp(l.o.FS, filepath.Join(dir, segment.FileName(end, windowSuffix)), v.WindowBytes(), true, func(w io.WriterAt) (int64, error) {
		return v.WriteWindow(w, st.logID, end)
	})
}
