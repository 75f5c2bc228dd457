package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/tidemark-log/tidemark/dedupe"
	"github.com/tidemark-log/tidemark/index"
	"github.com/tidemark-log/tidemark/internal/checkpoint"
	"github.com/tidemark-log/tidemark/internal/vfs"
	"github.com/tidemark-log/tidemark/record"
	seg "github.com/tidemark-log/tidemark/segment"
)

// indexInterval is Kafka's default: log bytes between two index entries.
const indexInterval = 4096

// A stage of a repair is done when all steps of those before are, and on disk.
// Whoever opens the folder in between finds a log that is longer than its
// checkpoints say, or one whose indexes are missing, which both are made good at
// load; never an index, a snapshot or a checkpoint that says more than the log.
type stage int

const (
	stageLower  stage = iota // checkpoints, so that nobody takes the cut for a loss
	stageRemove              // what stands for the log as it was
	stageLog                 // the logs
	stageWrite               // what stands for the log as it is
)

// repairStep is one change to one file.
type repairStep struct {
	stage     stage
	action    string // lower, remove, cut, drop, rebuild, write
	file      string // path
	pos, size int64  // of the bytes of a log that go, -1 if none
	why       string

	content []byte   // of lower, rebuild and write
	keep    []extent // of drop: what stays
}

// extent is a stretch of a file.
type extent struct{ from, to int64 }

// repairer is the repair subcommand.
type repairer struct {
	*env
	apply, dropDamaged bool
	fs                 vfs.FS
}

func repairCommand(e *env, code *int) *cobra.Command {
	r := &repairer{env: e, fs: vfs.OS}
	c := &cobra.Command{
		Use:   "repair PARTITION",
		Short: "Mend a partition: torn end, indexes, epoch file, snapshots, checkpoints",
		Long: `Mend a partition folder that nobody has open: cut what a writer did not finish,
make indexes, epoch file and producer snapshot again from the batches, take away
what says more than the log has. Without --apply it only says what it would do.

Damaged stretches inside the log stay, unless --drop-damaged says that the records
in them are to be given up; a copy from another replica is better. Every byte that
goes is kept in a folder tidemark.repair-N inside the partition's.`,
		Args: cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, paths []string) error {
			e.progress = newProgress(e.stderr, paths)
			r.partition(paths[0])
			e.progress.clear()
			*code = e.exitCode()
			return nil
		},
	}
	c.Flags().BoolVar(&r.apply, "apply", false, "change the files")
	c.Flags().BoolVar(&r.dropDamaged, "drop-damaged", false, "give up the records of damaged stretches")
	return c
}

// check runs verify over the partition and returns what it finds.
func (r *repairer) check(dir string) (found []finding) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		r.fail(err)
		return nil
	}
	v := &verifier{env: r.env, sink: func(f finding) { found = append(found, f) }}
	v.reader.MaxBytes = r.maxPlain
	v.partition(dir, entries, v.root(parentDir(dir), true), partitionName(dir))
	return found
}

func faultsOf(found []finding) (n int64) {
	for _, f := range found {
		if !f.note {
			n++
		}
	}
	return n
}

func (r *repairer) partition(path string) {
	dir := r.onePartition("repair", path)
	if dir == nil {
		return
	}
	if r.apply {
		unlock, err := r.lock(dir)
		if err != nil {
			r.fail(fmt.Errorf("repair %s: %w", path, err))
			return
		}
		defer unlock()
		// As it is now that nobody writes.
		if dir = r.onePartition("repair", path); dir == nil {
			return
		}
	}
	before := r.check(dir.dir)
	m := newMender(r, dir, before)
	m.scan()
	m.plan()
	if r.unreadable {
		return // what cannot be read is not mended
	}
	slices.SortStableFunc(m.steps, func(a, b repairStep) int { return cmp.Compare(a.stage, b.stage) })
	faults, left := faultsOf(before), m.left()
	backup, applied := "", false
	if r.apply && len(m.steps) > 0 {
		var err error
		if backup, err = r.applySteps(dir.dir, m.steps); err != nil {
			r.fail(fmt.Errorf("repair %s: %w", path, err))
		} else {
			applied = true
			left = nil
			for _, f := range r.check(dir.dir) {
				if !f.note {
					left = append(left, f)
				}
			}
		}
	}
	for i := range m.steps {
		m.steps[i].print(r.out, applied)
	}
	for _, f := range left {
		r.out.finding(f)
	}
	r.damaged = len(left) > 0 || faults > 0 && !applied
	o := r.out
	o.open("repair")
	o.str("file", dir.dir)
	o.bool("applied", applied)
	o.int("steps", int64(len(m.steps)))
	o.int("faults", faults)
	o.int("left", int64(len(left)))
	if m.damagedBytes > 0 && !r.dropDamaged {
		o.str("damaged", fmt.Sprintf("%d bytes from offset %d on; --drop-damaged gives them up", m.damagedBytes, m.damagedFrom))
	} else {
		o.null("damaged")
	}
	o.strOr("backup", backup)
	o.close()
}

func (s *repairStep) print(o *output, done bool) {
	o.open("repairStep")
	o.str("file", s.file)
	o.str("action", s.action)
	o.intOr("position", s.pos)
	o.intOr("size", s.size)
	o.str("why", s.why)
	o.bool("done", done)
	o.close()
}

// lock keeps Tidemark and Kafka out: the lock of the log, and that of the data
// folder. Both files stay: an unlocked one does no harm (log-format §1.1).
func (r *repairer) lock(dir *partitionDir) (_ func(), err error) {
	var held []io.Closer
	unlock := func() {
		for _, c := range slices.Backward(held) {
			c.Close()
		}
	}
	take := func(name string) error {
		l, err := r.fs.Lock(name)
		if err == nil {
			held = append(held, l)
		}
		return err
	}
	defer func() {
		if err != nil {
			unlock()
		}
	}()
	if err := take(filepath.Join(dir.dir, "LOCK")); err != nil {
		return nil, err
	}
	data := parentDir(dir.dir)
	if !dir.checkpoints().Valid {
		return unlock, nil // no data folder
	}
	if err := take(filepath.Join(data, checkpoint.LockFile)); err != nil {
		return nil, err
	}
	return unlock, nil
}

// mender finds out what to do about a partition.
type mender struct {
	*repairer
	dir   *partitionDir
	found []finding
	steps []repairStep

	logs   []mendedLog
	epochs *partitionEpochs
	end    int64 // of the log as it will be

	changedFrom  int64 // offset from which batches go, -1 if none do
	damagedFrom  int64 // offset of the first damaged stretch, -1 if there is none
	damagedBytes int64
	clean        bool
}

// mendedLog is what a walk has found of one log.
type mendedLog struct {
	*logFile
	size    int64
	keep    []extent // batches, and what stays though it is none
	changed bool     // something goes
	aborted []index.AbortedTxn
}

func newMender(r *repairer, dir *partitionDir, found []finding) *mender {
	m := &mender{repairer: r, dir: dir, found: found, changedFrom: -1, damagedFrom: -1, clean: closedCleanly(parentDir(dir.dir))}
	m.epochs = &partitionEpochs{path: filepath.Join(dir.dir, checkpoint.LeaderEpochFile)}
	if b, err := readSmallFile(m.epochs.path); err == nil {
		m.epochs.file, err = checkpoint.ParseEpochs(b)
		m.epochs.hasFile = err == nil && len(b) > 0
	}
	if n := len(dir.logs); n > 0 {
		m.epochs.start, m.end = dir.logs[0].base, dir.logs[n-1].base
	}
	return m
}

// eachSpan walks a log.
func (m *mender) eachSpan(l *logFile, each func(*span) error) (size int64, err error) {
	scan, f, err := m.newScanner(l.path, l.base, false)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	for {
		sp, ok := scan.next()
		if !ok {
			break
		}
		if err := each(&sp); err != nil {
			return 0, err
		}
	}
	if scan.err != nil {
		return 0, fmt.Errorf("read %s at byte %d: %w", l.path, scan.pos, scan.err)
	}
	return scan.pos, nil
}

// scan decides what of each log stays, and collects what is made again from the
// batches.
func (m *mender) scan() {
	var txns openTxns
	var reader record.Reader
	next := m.epochs.start
	for i := range m.dir.logs {
		l := mendedLog{logFile: &m.dir.logs[i]}
		lastLog := i == len(m.dir.logs)-1
		size, err := m.eachSpan(l.logFile, func(sp *span) error {
			stays := true
			switch {
			case sp.kind == spanBatch || sp.kind == spanLegacy:
				m.epochs.take(sp)
				next = max(next, lastOffset(sp)+1)
				if sp.kind == spanBatch {
					m.transaction(&l, &txns, &reader, record.Batch(sp.data))
				}
			case sp.kind == spanZeros, sp.kind == spanTorn && lastLog:
				stays = false
			default: // damage, or a segment that lost its end
				if m.damagedFrom < 0 {
					m.damagedFrom = next
				}
				m.damagedBytes += sp.size
				if stays = !m.dropDamaged; !stays && m.changedFrom < 0 {
					m.changedFrom = next
				}
			}
			end := sp.pos + sp.size
			switch n := len(l.keep); {
			case !stays:
				l.changed = true
			case n > 0 && l.keep[n-1].to == sp.pos:
				l.keep[n-1].to = end
			default:
				l.keep = append(l.keep, extent{sp.pos, end})
			}
			return nil
		})
		if err != nil {
			m.fail(err)
			return
		}
		l.size = size
		if l.changed && m.changedFrom < 0 && lastLog {
			m.changedFrom = next
		}
		m.logs = append(m.logs, l)
	}
	m.end = max(m.end, next)
	m.epochs.end = m.end
}

// transaction follows the transactions for the transaction index.
func (m *mender) transaction(l *mendedLog, txns *openTxns, reader *record.Reader, b record.Batch) {
	switch {
	case !b.IsTransactional() || !b.HasProducer():
	case !b.IsControl():
		txns.begin(b.ProducerID(), b.BaseOffset())
	default:
		sp := span{kind: spanBatch, data: b}
		// A marker that does not parse is a finding of its own.
		_ = m.eachRecord(reader, &sp, func(_ int, r *record.Record) bool {
			c, err := record.ParseControl(r.Key, r.Value)
			if err != nil || c.Type != record.Abort && c.Type != record.Commit {
				return true
			}
			first, stable := txns.end(b.ProducerID(), r.Offset)
			if c.Type == record.Abort && first >= 0 {
				l.aborted = append(l.aborted, index.AbortedTxn{PID: b.ProducerID(), FirstOffset: first, LastOffset: r.Offset, LastStableOffset: stable})
			}
			return true
		})
	}
}

// about returns what was found about a file; notes count if asked for.
func (m *mender) about(path string, notes bool) *finding {
	for i := range m.found {
		if f := &m.found[i]; f.file == path && (notes || !f.note) {
			return f
		}
	}
	return nil
}

func (f *finding) text() string {
	s := f.check + ": found " + f.found
	if f.wanted != "" {
		s += ", want " + f.wanted
	}
	return s
}

func (m *mender) add(s repairStep) { m.steps = append(m.steps, s) }

func (m *mender) plan() {
	for i := range m.logs {
		m.planLog(&m.logs[i])
	}
	m.planEpochs()
	m.planStates()
	m.planCheckpoints()
	m.planSlot()
}

// planLog cuts or rewrites a log and makes its indexes again where something is
// wrong with them.
func (m *mender) planLog(l *mendedLog) {
	if l.changed {
		s := repairStep{stage: stageLog, action: "drop", file: l.path, pos: 0, keep: l.keep}
		for _, k := range l.keep {
			if k.from == s.pos {
				s.pos = k.to
			}
			s.size += k.to - k.from
		}
		s.size = l.size - s.size
		s.why = fmt.Sprintf("no whole batches; what stays is %d of %d bytes", l.size-s.size, l.size)
		if len(l.keep) == 0 || len(l.keep) == 1 && l.keep[0].from == 0 {
			s.action, s.why = "cut", "behind the last whole batch"
		}
		m.add(s)
	}
	var fresh map[checkpoint.Kind][]byte
	for _, kind := range []checkpoint.Kind{checkpoint.Index, checkpoint.TimeIndex, checkpoint.TxnIndex} {
		path := filepath.Join(m.dir.dir, checkpoint.SegmentFile{Base: l.base, Kind: kind}.String())
		why := ""
		f := m.about(path, kind != checkpoint.TxnIndex)
		_, err := os.Lstat(path)
		missing := errors.Is(err, fs.ErrNotExist)
		switch {
		case f != nil:
			why = f.text()
		case kind != checkpoint.TxnIndex && missing && l.size > 0:
			why = "it is missing"
		case l.changed && (!missing || kind == checkpoint.TxnIndex && len(l.aborted) > 0):
			why = "its log changes"
		default:
			continue
		}
		if fresh == nil && kind != checkpoint.TxnIndex {
			fresh, err = m.indexes(l)
			switch {
			case errors.Is(err, index.ErrRange): // offsets that no index can hold
				fresh = map[checkpoint.Kind][]byte{}
			case err != nil:
				m.fail(err)
				return
			}
		}
		content, made := fresh[kind]
		if kind != checkpoint.TxnIndex && !made && !l.changed {
			continue
		}
		if !missing {
			m.add(repairStep{stage: stageRemove, action: "remove", file: path, pos: -1, size: -1, why: why})
		}
		if kind == checkpoint.TxnIndex {
			for _, t := range l.aborted {
				content = t.AppendTo(content)
			}
			made = len(content) > 0 // else none is needed
		}
		if !made {
			continue
		}
		m.add(repairStep{stage: stageWrite, action: "rebuild", file: path, pos: -1, size: int64(len(content)), why: why, content: content})
	}
}

// indexes makes both indexes of a log as it will be, by the code that recovery
// uses.
func (m *mender) indexes(l *mendedLog) (map[checkpoint.Kind][]byte, error) {
	mem := vfs.NewMem(vfs.MemOptions{})
	o := &seg.Options{FS: mem, Capacity: max(l.size, indexInterval), IndexInterval: indexInterval, Maps: seg.NewMaps(16)}
	s, err := seg.Open("/", l.base, l.size, o, false)
	if err != nil {
		return nil, err
	}
	pos, k := int64(0), 0
	_, err = m.eachSpan(l.logFile, func(sp *span) error {
		for k < len(l.keep) && l.keep[k].to <= sp.pos {
			k++
		}
		if k == len(l.keep) || sp.pos < l.keep[k].from {
			return nil
		}
		if sp.kind == spanBatch || sp.kind == spanLegacy {
			s.IndexBatch(pos, int(sp.size), lastOffset(sp), maxTimestamp(sp))
		}
		pos += sp.size
		return nil
	})
	if err == nil {
		err = s.FinalEntry()
	}
	if err = errors.Join(err, s.Close()); err != nil {
		return nil, fmt.Errorf("indexes of %s: %w", l.path, err)
	}
	made := map[checkpoint.Kind][]byte{}
	for kind, used := range map[checkpoint.Kind]func([]byte) int{checkpoint.Index: index.OffsetsUsed, checkpoint.TimeIndex: index.TimesUsed} {
		width := index.OffsetEntrySize
		if kind == checkpoint.TimeIndex {
			width = index.TimeEntrySize
		}
		b, err := vfs.ReadFile(mem, "/"+seg.FileName(l.base, string(kind)), 1<<31)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		made[kind] = b[:used(b)*width]
	}
	return made, nil
}

// planEpochs makes the epoch file again from the batches if something is wrong
// with it. What it knows of elections without data at the log's end stays.
func (m *mender) planEpochs() {
	e := m.epochs
	f := m.about(e.path, false)
	uncovered := (*finding)(nil) // batches that the file does not cover
	for i := range m.found {
		if g := &m.found[i]; uncovered == nil && !g.note && isUncovered(g) {
			uncovered = g
		}
	}
	beyond := func(x checkpoint.Epoch) bool { return x.StartOffset > m.end }
	why := ""
	switch {
	case f != nil:
		why = f.text()
	case uncovered != nil:
		why = uncovered.text()
	case !e.hasFile && slices.ContainsFunc(e.runs, func(r epochRun) bool { return r.epoch >= 0 }):
		why = "none that can be read"
	case m.changedFrom >= 0 && slices.ContainsFunc(e.file, beyond):
		why = "it goes on behind the log's end"
	default:
		return
	}
	var list []checkpoint.Epoch
	if e.hasFile && uncovered == nil {
		list = slices.DeleteFunc(slices.Clone(e.file), beyond)
	} else {
		assign := func(x checkpoint.Epoch) {
			if n := len(list); x.Epoch >= 0 && (n == 0 || x.Epoch > list[n-1].Epoch && x.StartOffset > list[n-1].StartOffset) {
				list = append(list, x)
			}
		}
		for _, r := range e.runs {
			assign(checkpoint.Epoch{Epoch: r.epoch, StartOffset: r.first})
		}
		for _, x := range e.file {
			if x.StartOffset == m.end {
				assign(x)
			}
		}
	}
	content := checkpoint.AppendEpochs(nil, list)
	m.add(repairStep{stage: stageWrite, action: "write", file: e.path, pos: -1, size: int64(len(content)), why: why, content: content})
}

// isUncovered reports whether a finding is that the epoch file does not cover a
// batch.
func isUncovered(f *finding) bool {
	return f.check == "leader epoch" && strings.HasSuffix(f.file, string(checkpoint.Log)) && strings.Contains(f.wanted, "epoch file")
}

// planStates takes producer snapshots away that are wrong or stand for more than
// the log will have, and makes one for its end.
func (m *mender) planStates() {
	entries, err := os.ReadDir(m.dir.dir)
	if err != nil {
		m.fail(err)
		return
	}
	var from *stateFile // the newest that is good, to go on from
	atEnd, went := false, false
	files := stateFiles(m.dir.dir, entries)
	for i := range files {
		s := &files[i]
		if err := s.read(); err != nil {
			m.fail(err)
			return
		}
		why := ""
		switch f := m.about(s.path, false); {
		case f != nil:
			why = f.text()
		case s.err != nil && !errors.Is(s.err, dedupe.ErrVersion):
			why = s.err.Error()
		case m.changedFrom >= 0 && s.offset > m.changedFrom, s.offset > m.end:
			why = fmt.Sprintf("it stands for the log up to offset %d", s.offset)
		default:
			if s.err == nil {
				from = s
				atEnd = atEnd || !s.own && s.offset == m.end
			}
			continue
		}
		went = true
		m.add(repairStep{stage: stageRemove, action: "remove", file: s.path, pos: -1, size: -1, why: why})
	}
	if atEnd || !went && m.changedFrom < 0 && !m.clean {
		return // at an unclean load it is made anyway
	}
	r := newReplay(m.epochs.start)
	begin := int64(0)
	if from != nil {
		if err := r.table.Load(from.parsed, from.offset, 0); err == nil {
			begin = from.offset
		}
	}
	for i := range m.logs {
		_, err := m.eachSpan(m.logs[i].logFile, func(sp *span) error {
			if sp.kind == spanBatch && record.Batch(sp.data).BaseOffset() >= begin {
				r.batch(record.Batch(sp.data))
			}
			return nil
		})
		if err != nil {
			m.fail(err)
			return
		}
	}
	if r.table.Len() == 0 {
		return
	}
	var content memory
	if _, err := r.table.Freeze().WriteSnapshot(&content); err != nil {
		m.fail(err)
		return
	}
	r.table.Thaw()
	m.add(repairStep{stage: stageWrite, action: "write", pos: -1, size: int64(len(content)), content: content,
		file: filepath.Join(m.dir.dir, checkpoint.SegmentFile{Base: m.end, Kind: checkpoint.Snapshot}.String()),
		why:  fmt.Sprintf("%d producers at the log's end", r.table.Len())})
}

// memory is a file in memory.
type memory []byte

func (m *memory) WriteAt(p []byte, off int64) (int, error) {
	if n := int(off) + len(p); n > len(*m) {
		*m = append(*m, make([]byte, n-len(*m))...)
	}
	return copy((*m)[off:], p), nil
}

// planCheckpoints lowers what the checkpoints of the data folder say about the
// partition to the log's end. A log start beyond it would make Kafka delete
// every segment.
func (m *mender) planCheckpoints() {
	tp := partitionName(m.dir.dir)
	data := parentDir(m.dir.dir)
	for _, kind := range []fileKind{kindRecoveryPoint, kindHighWatermark, kindLogStart, kindCleanerOffset} {
		path := filepath.Join(data, checkpointNames[kind])
		b, err := readSmallFile(path)
		if err != nil || tp == "" {
			continue
		}
		entries, err := checkpoint.ParseOffsets(b)
		if err != nil {
			continue // verify of the data folder says so
		}
		was := int64(-1)
		for i := range entries {
			if e := &entries[i]; fmt.Sprintf("%s-%d", e.Topic, e.Partition) == tp && e.Offset > m.end {
				was, e.Offset = e.Offset, m.end
			}
		}
		if was >= 0 {
			content := checkpoint.AppendOffsets(nil, entries)
			m.add(repairStep{stage: stageLower, action: "lower", file: path, pos: -1, size: int64(len(content)), content: content,
				why: fmt.Sprintf("%s of %s is %d, the log ends at %d", kind, tp, was, m.end)})
		}
	}
}

// planSlot takes the slot away where it vouches for more than there will be: the
// log is then judged as one that Kafka wrote.
func (m *mender) planSlot() {
	path := filepath.Join(m.dir.dir, slotFile)
	if _, err := os.Lstat(path); err != nil || m.changedFrom < 0 {
		return
	}
	plan, err := m.dir.plan()
	if err != nil {
		m.fail(err)
		return
	}
	if plan.Damage == nil && m.end >= plan.Vouched && m.damagedFrom < 0 {
		return
	}
	why := fmt.Sprintf("it vouches for offsets up to %d", plan.Vouched)
	if plan.Start > m.epochs.start {
		why += fmt.Sprintf("; with it goes the log start %d, records from %d on can be read again", plan.Start, m.epochs.start)
	}
	m.add(repairStep{stage: stageRemove, action: "remove", file: path, pos: -1, size: -1, why: why})
}

// left returns the faults that no step is about.
func (m *mender) left() (left []finding) {
	about := map[string]*repairStep{}
	for i := range m.steps {
		about[m.steps[i].file] = &m.steps[i]
	}
	for _, f := range m.found {
		s := about[f.file]
		if kind, _, _ := kindOf(f.file); kind == kindLog {
			spoilt := slices.Contains([]string{"length", "crc", "magic", "size", "torn end", "zero tail"}, f.check)
			switch {
			case isUncovered(&f):
				s = about[m.epochs.path]
			case s != nil && !(spoilt && (s.action == "drop" || f.pos >= s.pos)):
				s = nil
			}
		}
		if !f.note && s == nil {
			left = append(left, f)
		}
	}
	return left
}

// applySteps carries the steps out. First all that goes is kept in a folder of
// its own, durably. On error the folder is as some steps have left it, and what
// they took away is in there.
func (r *repairer) applySteps(dir string, steps []repairStep) (backup string, err error) {
	for n := 1; ; n++ {
		backup = filepath.Join(dir, fmt.Sprintf("tidemark.repair-%d", n))
		err := r.fs.Mkdir(backup)
		if err == nil {
			break
		}
		if !errors.Is(err, fs.ErrExist) || n == 10000 {
			return "", err
		}
	}
	if err := r.fs.SyncDir(dir); err != nil {
		return backup, err
	}
	kept := map[string]bool{}
	for i := range steps {
		if s := &steps[i]; !kept[s.file] {
			kept[s.file] = true
			if err := r.keep(backup, s); err != nil {
				return backup, err
			}
		}
	}
	if err := r.fs.SyncDir(backup); err != nil {
		return backup, err
	}
	for i := range steps {
		s := &steps[i]
		if i > 0 && s.stage != steps[i-1].stage && steps[i-1].stage == stageRemove {
			if err := r.fs.SyncDir(dir); err != nil {
				return backup, err
			}
		}
		if err := r.carryOut(s); err != nil {
			return backup, err
		}
	}
	return backup, r.fs.SyncDir(dir)
}

// keep puts what a step takes away into the backup: a second name of the file,
// or a copy of the bytes that are cut in place.
func (r *repairer) keep(backup string, s *repairStep) error {
	name := filepath.Join(backup, filepath.Base(s.file))
	if s.action == "cut" {
		return r.copyBytes(s.file, fmt.Sprintf("%s.from-%d", name, s.pos), []extent{{s.pos, s.pos + s.size}})
	}
	err := r.fs.Link(s.file, name)
	switch {
	case err == nil || errors.Is(err, fs.ErrNotExist): // none was there
		return nil
	case errors.Is(err, fs.ErrExist):
		return err
	}
	info, statErr := r.fs.Stat(s.file) // a file system without links
	if statErr != nil {
		return errors.Join(err, statErr)
	}
	return r.copyBytes(s.file, name, []extent{{0, info.Size}})
}

// copyBytes writes stretches of a file to a new one, durably but for its name.
func (r *repairer) copyBytes(from, to string, parts []extent) (err error) {
	src, err := r.fs.Open(from, vfs.ReadOnly)
	if err != nil {
		return err
	}
	defer src.Close()
	if err := r.fs.Remove(to); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	dst, err := r.fs.Open(to, vfs.CreateNew)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dst.Close()) }()
	total := int64(0)
	for _, p := range parts {
		total += p.to - p.from
	}
	if err := dst.Allocate(total); err != nil {
		return err
	}
	buf, at := make([]byte, min(total, readSize)), int64(0)
	for _, p := range parts {
		for pos := p.from; pos < p.to; {
			n, err := src.ReadAt(buf[:min(int64(len(buf)), p.to-pos)], pos)
			if n == 0 {
				return fmt.Errorf("read %s at byte %d: %w", from, pos, cmp.Or(err, io.ErrUnexpectedEOF))
			}
			if _, err := dst.WriteAt(buf[:n], at); err != nil {
				return err
			}
			pos += int64(n)
			at += int64(n)
		}
	}
	return vfs.Sync(dst)
}

func (r *repairer) carryOut(s *repairStep) error {
	switch s.action {
	case "remove":
		if err := r.fs.Remove(s.file); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return nil
	case "cut":
		info, err := r.fs.Stat(s.file)
		if err != nil {
			return err
		}
		if info.Links <= 1 {
			return r.truncate(s.file, s.pos)
		}
		// The bytes belong to a backup as well.
		s.keep = []extent{{0, s.pos}}
		fallthrough
	case "drop":
		tmp := s.file + ".tmp"
		if err := r.copyBytes(s.file, tmp, s.keep); err != nil {
			return err
		}
		if err := r.fs.Rename(tmp, s.file); err != nil {
			return err
		}
		return r.fs.SyncDir(filepath.Dir(s.file))
	}
	return vfs.WriteFileAtomic(r.fs, s.file, s.content)
}

func (r *repairer) truncate(name string, size int64) (err error) {
	f, err := r.fs.Open(name, vfs.ReadWrite)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if err := f.Truncate(size); err != nil {
		return err
	}
	return vfs.Sync(f)
}
