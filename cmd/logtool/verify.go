package main

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/spf13/cobra"

	"github.com/tidemark-log/tidemark/dedupe"
	"github.com/tidemark-log/tidemark/internal/checkpoint"
	"github.com/tidemark-log/tidemark/record"
)

// verifier is the verify subcommand: it checks files by themselves and against
// each other. What contradicts the format is a fault. What a stop without
// order leaves, and what a reader has to put up with (log-format §12), is a
// note.
type verifier struct {
	*env
	notes  bool // print notes in text too
	jobs   int
	reader record.Reader
	sink   func(finding) // takes the findings in place of the output, if set

	count counts
}

// counts is what the summary says.
type counts struct{ partitions, files, batches, records, bytes, faults, notes int64 }

func (c *counts) add(d counts) {
	c.partitions += d.partitions
	c.files += d.files
	c.batches += d.batches
	c.records += d.records
	c.bytes += d.bytes
	c.faults += d.faults
	c.notes += d.notes
}

func verifyCommand(e *env, code *int) *cobra.Command {
	v := &verifier{env: e}
	c := &cobra.Command{
		Use:   "verify PATH...",
		Short: "Check files by themselves and against each other",
		Long: `Check logs, indexes, checkpoints and names, by themselves and against each
other. PATH is a file, a partition folder or a data folder. A finding is a
fault, and the exit code 1, or a note: what an unclean stop leaves behind and
a reader copes with.`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(_ *cobra.Command, paths []string) error {
			v.reader.MaxBytes = e.maxPlain
			e.progress = newProgress(e.stderr, paths)
			for _, p := range dataFolders(paths) {
				v.path(p)
			}
			e.progress.clear()
			v.summary()
			*code = e.exitCode()
			return nil
		},
	}
	c.Flags().BoolVar(&v.notes, "notes", false, "print notes, not only faults")
	jobsFlag(c, &v.jobs)
	return c
}

func (v *verifier) report(f finding) {
	if v.sink != nil {
		v.sink(f)
		return
	}
	if f.note {
		v.count.notes++
		if !v.notes && !v.out.json {
			return
		}
	} else {
		v.count.faults++
		v.damaged = true
	}
	v.progress.clear()
	v.out.finding(f)
}

// fault and note report a finding about a whole file.
func (v *verifier) fault(file, check, found, wanted string) {
	v.report(finding{false, file, -1, -1, check, found, wanted})
}

func (v *verifier) note(file, check, found, wanted string) {
	v.report(finding{true, file, -1, -1, check, found, wanted})
}

func (v *verifier) summary() {
	o, c := v.out, &v.count
	o.open("summary")
	o.int("partitions", c.partitions)
	o.int("files", c.files)
	o.int("batches", c.batches)
	o.int("records", c.records)
	o.int("bytes", c.bytes)
	o.int("faults", c.faults)
	o.int("notes", c.notes)
	o.close()
}

// gone reports whether err says that a file vanished since its folder was
// listed, as retention makes them on a live folder; any other error counts as
// unreadable.
func (v *verifier) gone(path string, err error) bool {
	if errors.Is(err, fs.ErrNotExist) {
		v.note(path, "file", "it gone since the folder was listed", "")
		return true
	}
	v.fail(err)
	return false
}

func (v *verifier) path(path string) {
	info, err := os.Stat(path)
	if err != nil {
		v.fail(err)
		return
	}
	if !info.IsDir() {
		v.file(path)
		return
	}
	entries, err := os.ReadDir(path)
	if err != nil {
		v.fail(err)
		return
	}
	switch dirKindOf(entries, path) {
	case dirData:
		v.dataDir(path, entries)
	case dirPartition:
		v.partition(path, entries, v.root(parentDir(path), true), partitionName(path))
	default:
		v.fail(fmt.Errorf("verify %s: neither a data folder nor a partition folder", path))
	}
}

// file checks one file. Indexes are checked against the log beside them.
func (v *verifier) file(path string) {
	kind, name, err := kindOf(path)
	if err != nil {
		v.fault(path, "name", fmt.Sprintf("%q", filepath.Base(path)), "20 digits before the suffix")
		return
	}
	v.count.files++
	dir := filepath.Dir(path)
	switch kind {
	case kindUnknown:
		if isWindow(path) {
			v.window(path)
			return
		}
		v.fail(fmt.Errorf("verify %s: unknown kind of file", path))
	case kindLog, kindOffsetIndex, kindTimeIndex, kindTxnIndex:
		st := stateBeside(path)
		log := filepath.Join(dir, checkpoint.SegmentFile{Base: name.Base, Kind: checkpoint.Log, Stage: name.Stage}.String())
		s := &segment{base: name.Base, log: log, last: filepath.Base(log) == st.lastLog, end: -1, stage: name.Stage, quiet: kind != kindLog}
		switch kind {
		case kindOffsetIndex:
			s.index = path
		case kindTimeIndex:
			s.timeIndex = path
		case kindTxnIndex:
			s.txnIndex = path
		}
		v.alone(dir, st.clean).segment(s)
	case kindMetadataSnapshot:
		v.metadataSnapshot(path)
	case kindSnapshot:
		v.snapshot(path, closedCleanly(parentDir(dir)))
	default:
		v.small(path, kind)
	}
}

// alone is a partition of which one file is checked: nothing is known of the
// segments before it.
func (v *verifier) alone(dir string, clean bool) *partition {
	return &partition{verifier: v, dir: dir, clean: clean, lastEpoch: record.NoLeaderEpoch,
		frame: [2]record.ControlType{-1, -1}, firstRecord: v.count.records}
}

// metadataSnapshot checks a KRaft snapshot: batches like a log's, which a
// header and a footer enclose, in a file that is renamed into place when whole.
func (v *verifier) metadataSnapshot(path string) {
	_, _, framed := checkpoint.ParseMetadataSnapshot(filepath.Base(path))
	v.alone(filepath.Dir(path), true).segment(&segment{log: path, last: true, end: -1, framed: framed})
}

// small parses a text file and returns what it holds, nil if it cannot, and
// its bytes.
func (v *verifier) small(path string, kind fileKind) (parsed any, b []byte) {
	b, err := readSmallFile(path)
	if err != nil {
		v.gone(path, err)
		return nil, nil
	}
	switch kind {
	case kindEpochs:
		parsed, err = checkpoint.ParseEpochs(b)
	case kindMeta:
		parsed, err = checkpoint.ParseMeta(b)
	case kindPartition:
		parsed, err = checkpoint.ParsePartition(b)
	case kindCleanMarker:
		parsed, err = checkpoint.ParseCleanMarker(b)
	default:
		parsed, err = checkpoint.ParseOffsets(b)
	}
	if err != nil {
		pos, r := textReason(b, err)
		v.report(finding{false, path, pos, -1, r.check, r.found, r.wanted})
		return nil, b
	}
	return parsed, b
}

// snapshot checks the frame of a producer snapshot. Kafka writes it in place:
// a short one is what a stop in the middle leaves, dropped at load.
func (v *verifier) snapshot(path string, clean bool) {
	h, err := readSnapshotHeader(path)
	if err != nil {
		v.gone(path, err)
		return
	}
	if !h.ok() {
		r := h.reason()
		short := h.size < snapshotHeaderSize || h.size < snapshotHeaderSize+snapshotEntrySize*int64(h.entries)
		v.report(finding{!clean && short, path, 0, -1, r.check, r.found, r.wanted})
	}
}

// window checks this module's own file of producers by itself.
func (v *verifier) window(path string) {
	b, err := readBounded(path, maxStateFile)
	if err != nil {
		v.gone(path, err)
		return
	}
	if _, err := dedupe.ParseWindow(b); err != nil {
		v.fault(path, "format", err.Error(), "")
	}
}

// root is what the checkpoints of a data folder say about its partitions.
type root struct {
	dir    string
	clean  bool
	values map[fileKind]map[string]rootValue // by file and partition
}

type rootValue struct {
	offset int64
	pos    int64 // of its line in the file
}

// checkpointNames are the checkpoint files of a data folder.
var checkpointNames = map[fileKind]string{
	kindRecoveryPoint: checkpoint.RecoveryPointFile, kindHighWatermark: checkpoint.HighWatermarkFile,
	kindLogStart: checkpoint.LogStartOffsetFile, kindCleanerOffset: checkpoint.CleanerOffsetFile,
}

func (r *root) path(kind fileKind) string { return filepath.Join(r.dir, checkpointNames[kind]) }

// root reads the checkpoints of a data folder. If they are context only, what
// is wrong with them is left out silently.
func (v *verifier) root(dir string, context bool) *root {
	r := &root{dir: dir, clean: closedCleanly(dir), values: map[fileKind]map[string]rootValue{}}
	for _, kind := range slices.Sorted(maps.Keys(checkpointNames)) {
		path := r.path(kind)
		if _, err := os.Lstat(path); err != nil {
			continue
		}
		var entries []checkpoint.Offset
		var b []byte
		if context {
			b, _ = readSmallFile(path)
			entries, _ = checkpoint.ParseOffsets(b)
		} else {
			v.count.files++
			var parsed any
			parsed, b = v.small(path, kind)
			entries, _ = parsed.([]checkpoint.Offset)
		}
		m := map[string]rootValue{}
		pos := linePos(b, 3)
		for _, e := range entries {
			tp := fmt.Sprintf("%s-%d", e.Topic, e.Partition)
			if _, twice := m[tp]; twice && !context {
				v.report(finding{false, path, pos, -1, "entry", tp + " a second time", "each partition once"})
			}
			m[tp] = rootValue{e.Offset, pos}
			pos += linePos(b[pos:], 2)
		}
		r.values[kind] = m
	}
	return r
}

func (v *verifier) dataDir(dir string, entries []os.DirEntry) {
	r := v.root(dir, false)
	var dirs []string
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		if e.IsDir() {
			dirs = append(dirs, path)
			continue
		}
		switch kind, _, err := kindOf(e.Name()); {
		case checkpointNames[kind] != "": // read by root
		case kind == kindMeta || kind == kindCleanMarker:
			v.count.files++
			v.small(path, kind)
		case kind == kindMetadataSnapshot:
			v.file(path)
		case e.Name() == checkpoint.LockFile || ownFile(e.Name()):
		case kind == kindUnknown && err == nil:
			v.note(path, "name", "a file of unknown kind", "")
		default:
			v.note(path, "name", fmt.Sprintf("a file of kind %s outside a partition folder", kind), "")
		}
	}
	folders := map[string]bool{}
	v.subDirs(dirs, r, folders)
	for _, kind := range slices.Sorted(maps.Keys(checkpointNames)) {
		names := make([]string, 0, len(r.values[kind]))
		for tp := range r.values[kind] {
			if !folders[tp] {
				names = append(names, tp)
			}
		}
		if len(names) > 0 {
			slices.Sort(names)
			v.note(r.path(kind), "folder", fmt.Sprintf("entries for %d partitions without a folder, first %s", len(names), names[0]), "")
		}
	}
}

// topicIDs compares the ids that the partitions of a data folder name.
type topicIDs struct {
	of map[string]topicID
	by map[checkpoint.UUID]checkpoint.PartitionDir
}

type topicID struct {
	id        checkpoint.UUID
	partition string // that named it
}

// maxKept bounds what partitions checked out of turn may have to say, in bytes.
const maxKept = 16 << 20

// subDirs checks the folders in a data folder, several at once. What is printed
// does not depend on how many. The partitions that a checkpoint may name are
// added to folders.
func (v *verifier) subDirs(dirs []string, r *root, folders map[string]bool) {
	type result struct {
		v    *verifier
		seen subDir
	}
	topics := topicIDs{map[string]topicID{}, map[checkpoint.UUID]checkpoint.PartitionDir{}}
	readers := sync.Pool{New: func() any { return &record.Reader{MaxBytes: v.maxPlain} }}
	var stop atomic.Bool
	// What was printed so far stands before what the first of them prints.
	v.out.flush()
	order := newSequence(maxKept)
	fresh := *v.env // which jobs do not change
	work := func(i int) result {
		one := &verifier{env: fresh.fork(order, i), notes: v.notes}
		if stop.Load() {
			return result{v: one}
		}
		reader := readers.Get().(*record.Reader)
		one.reader = *reader
		seen := one.subDir(dirs[i], r)
		*reader = one.reader
		readers.Put(reader)
		one.out.flush()
		return result{one, seen}
	}
	inOrder(len(dirs), v.jobs, work, func(i int, res result) {
		v.count.add(res.v.count)
		if seen := res.seen; seen.current {
			folders[filepath.Base(dirs[i])] = true
			topics.compare(v, dirs[i], seen)
		}
		v.join(res.v.env, order, i)
		stop.Store(v.out.err != nil)
	})
}

// A subDir is what a folder of a data folder is to the others.
type subDir struct {
	current bool // its name is that of a partition
	pd      checkpoint.PartitionDir
	tp      string          // its name in checkpoints, empty if it has none
	id      checkpoint.UUID // zero if none is known
	idPos   int64           // in partition.metadata
}

func (v *verifier) subDir(path string, r *root) (s subDir) {
	name := filepath.Base(path)
	pd, nameErr := checkpoint.ParsePartitionDir(name)
	switch {
	case nameErr != nil && !isPartitionDir(path):
		if name != "remote-log-index-cache" {
			v.note(path, "name", "a folder that is no partition", "topic-partition")
		}
		return s
	case nameErr != nil:
		v.note(path, "name", fmt.Sprintf("a partition in a folder called %q", name), "topic-partition")
	case pd.State == checkpoint.DirDelete:
		v.note(path, "name", "a partition waiting for deletion", "")
		return s
	case pd.State != checkpoint.DirCurrent:
		v.note(path, "name", "a "+string(pd.State)+" partition", "")
	default:
		s.current, s.pd = true, pd
	}
	entries, err := os.ReadDir(path)
	if err != nil {
		v.gone(path, err)
		return s
	}
	s.tp = partitionName(path)
	s.id, s.idPos = v.partition(path, entries, r, s.tp)
	return s
}

func (t *topicIDs) compare(v *verifier, path string, s subDir) {
	if s.id == (checkpoint.UUID{}) || s.tp == "" {
		return
	}
	bad := func(wanted string) {
		v.report(finding{false, filepath.Join(path, checkpoint.PartitionFile), s.idPos, -1, "topic id", s.id.String(), wanted})
	}
	if other, ok := t.of[s.pd.Topic]; ok && other.id != s.id {
		bad(fmt.Sprintf("%v as in %s", other.id, other.partition))
	}
	if other, ok := t.by[s.id]; ok && other.Topic != s.pd.Topic {
		bad(fmt.Sprintf("another one than %s has", other.String()))
	}
	t.of[s.pd.Topic] = topicID{s.id, s.tp}
	t.by[s.id] = s.pd
}

// slotFile is what every log of this module has beside Kafka's files.
const slotFile = "tidemark.slot"

// ownFile reports whether the name is one that this module keeps.
func ownFile(name string) bool {
	return strings.HasPrefix(name, "tidemark") || name == "LOCK" || strings.HasSuffix(name, ".dedupe")
}
