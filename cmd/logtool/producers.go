package main

import (
	"cmp"
	"errors"
	"fmt"
	"iter"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/tidemark-log/tidemark/dedupe"
	"github.com/tidemark-log/tidemark/internal/checkpoint"
	"github.com/tidemark-log/tidemark/record"
)

// maxProducers bounds the table that a log can ask for.
const maxProducers = 1 << 22

// stateFile is a producer snapshot: Kafka's .snapshot, or our own file with the
// whole window.
type stateFile struct {
	path   string
	offset int64 // the log's end that it stands for
	own    bool
	parsed dedupe.File
	err    error // why it cannot be used
}

// stateFiles lists the snapshots of a folder in the order of their offsets.
func stateFiles(dir string, entries []os.DirEntry) (all []stateFile) {
	for _, e := range entries {
		kind, f, err := kindOf(e.Name())
		own := strings.HasSuffix(e.Name(), dedupe.Suffix)
		if e.IsDir() || !own && (err != nil || kind != kindSnapshot || f.Stage != checkpoint.Live) {
			continue
		}
		s := stateFile{path: filepath.Join(dir, e.Name()), offset: f.Base, own: own}
		if own {
			f, err := checkpoint.ParseSegmentFile(strings.TrimSuffix(e.Name(), dedupe.Suffix) + string(checkpoint.Snapshot))
			if err != nil {
				continue
			}
			s.offset = f.Base
		}
		all = append(all, s)
	}
	slices.SortStableFunc(all, func(a, b stateFile) int { return cmp.Compare(a.offset, b.offset) })
	return all
}

// read parses the file. What is wrong with it is in err; the error returned is
// that it could not be read.
func (s *stateFile) read() error {
	b, err := readSmallFile(s.path)
	if err != nil {
		return err
	}
	if s.own {
		s.parsed, s.err = dedupe.ParseWindow(b)
		if s.err == nil && s.parsed.End != s.offset {
			s.err = fmt.Errorf("%w: it stands for offset %d, its name for %d", dedupe.ErrCorrupt, s.parsed.End, s.offset)
		}
	} else {
		s.parsed, s.err = dedupe.ParseSnapshot(b)
	}
	return nil
}

// Whether what a snapshot says of a producer is what the log says.
const (
	producerEqual   = "equal"
	producerDiffers = "differs"
	producerGone    = "notInLog"      // its batches are gone: retention, cleaning
	producerMissing = "notInSnapshot" // it may have expired
)

// compared is a producer of a snapshot or of the log.
type compared struct {
	dedupe.Producer
	i     int // its number in the snapshot, -1 if it is not there
	state string
	what  string // how it differs
}

// replay follows the producers of a log, to compare snapshots with them.
type replay struct {
	table *dedupe.Table
	start int64 // offset at which the log begins
	next  int64 // behind the last batch
	dense bool  // every offset from start to next has been seen, in order
}

func newReplay(start int64) *replay {
	return &replay{table: dedupe.New(dedupe.Options{MaxProducers: maxProducers, Expiration: math.MaxInt64}), start: start, next: start, dense: true}
}

// batch enters a valid batch.
func (r *replay) batch(b record.Batch) {
	base, last := b.BaseOffset(), b.LastOffset()
	if base < 0 || last < base { // no batch has such offsets
		r.dense = false
		return
	}
	if base != r.next || int64(b.Count()) != last-base+1 {
		r.dense = false
	}
	r.next = last + 1
	r.table.Update(b, base)
}

// compare goes through the producers of a snapshot that stands for r.next, and
// those that it lacks, ordered by id within each.
func (r *replay) compare(s *stateFile) iter.Seq[compared] {
	return func(yield func(compared) bool) {
		seen := make(map[int64]bool, s.parsed.Len())
		i := 0
		for p := range s.parsed.All() {
			c := compared{Producer: p, i: i, state: producerEqual}
			i++
			if seen[p.ID] {
				c.state, c.what = producerDiffers, "it stands there twice"
			} else if of, ok := r.table.Get(p.ID); !ok {
				c.state = producerGone
				if last, any := p.Last(); r.dense && any && last.LastOffset >= r.start {
					c.state, c.what = producerDiffers, "the log has no batch of it"
				}
			} else if what := r.differs(&p, &of, s.own); what != "" {
				c.state, c.what = producerDiffers, what
			}
			seen[p.ID] = true
			if !yield(c) {
				return
			}
		}
		for p := range r.table.All() {
			if !seen[p.ID] && !yield(compared{Producer: p, i: -1, state: producerMissing}) {
				return
			}
		}
	}
}

// differs says in what a snapshot's producer is not that of the log. Of a log
// that retention or cleaning took from, only that counts which is still there.
func (r *replay) differs(s, log *dedupe.Producer, own bool) string {
	whole := r.dense && r.start == 0
	a, hasA := s.Last()
	b, hasB := log.Last()
	if !r.dense && (log.Epoch < s.Epoch || hasA && log.Epoch == s.Epoch && b.LastOffset < a.LastOffset) {
		return "" // what the snapshot goes by is gone from the log
	}
	switch {
	case s.Epoch != log.Epoch:
		return fmt.Sprintf("epoch %d, the log has %d", s.Epoch, log.Epoch)
	case hasB && (!hasA || a.LastOffset != b.LastOffset || a.LastSequence != b.LastSequence):
		return fmt.Sprintf("last sequence %d at offset %d, the log has %d at %d", a.LastSequence, a.LastOffset, b.LastSequence, b.LastOffset)
	case hasA && !hasB && a.LastOffset >= r.start && r.dense:
		return fmt.Sprintf("last sequence %d at offset %d, the log has none", a.LastSequence, a.LastOffset)
	case hasA && hasB && a.OffsetDelta != b.OffsetDelta:
		return fmt.Sprintf("last batch of %d offsets, the log has %d", a.OffsetDelta+1, b.OffsetDelta+1)
	case s.TxnFirstOffset != log.TxnFirstOffset && (whole || s.TxnFirstOffset >= r.start && r.dense):
		return fmt.Sprintf("transaction open from %d, the log has %d", s.TxnFirstOffset, log.TxnFirstOffset)
	case !whole:
		return ""
	case s.LastTimestamp != log.LastTimestamp:
		return fmt.Sprintf("last timestamp %d, the log has %d", s.LastTimestamp, log.LastTimestamp)
	case s.CoordinatorEpoch != log.CoordinatorEpoch:
		return fmt.Sprintf("coordinator epoch %d, the log has %d", s.CoordinatorEpoch, log.CoordinatorEpoch)
	case own && !endsWith(log, s):
		return fmt.Sprintf("window of %d batches that the log's, of %d, does not end with", s.N, log.N)
	}
	return ""
}

// endsWith reports whether the window of log ends with that of s: it is shorter
// where it began with one of Kafka's snapshots, which have one batch.
func endsWith(log, s *dedupe.Producer) bool {
	if s.N > log.N {
		return false
	}
	for i := range s.N {
		a, b := s.Batches[s.N-1-i], log.Batches[log.N-1-i]
		if a.LastOffset != b.LastOffset || a.LastSequence != b.LastSequence || a.OffsetDelta != b.OffsetDelta {
			return false
		}
	}
	return true
}

// producers is the producers subcommand.
type producers struct {
	*env
	all bool
}

func producersCommand(e *env, code *int) *cobra.Command {
	p := &producers{env: e}
	c := &cobra.Command{
		Use:   "producers PATH...",
		Short: "List idempotent producers as the snapshot has them, against the log",
		Long: `List the idempotent producers of a partition as its newest snapshot has them,
compared with what the log says up to that offset. Without a snapshot those of the
log are listed. PATH is a partition folder or a data folder.`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(_ *cobra.Command, paths []string) error {
			e.progress = newProgress(e.stderr, paths)
			for _, path := range dataFolders(paths) {
				e.eachPartition("producers", path, p.partition)
			}
			e.progress.clear()
			*code = e.exitCode()
			return nil
		},
	}
	c.Flags().BoolVar(&p.all, "all", false, "every snapshot, not only the newest of each kind")
	return c
}

func (p *producers) partition(dir *partitionDir) {
	entries, err := os.ReadDir(dir.dir)
	if err != nil {
		p.fail(err)
		return
	}
	files := stateFiles(dir.dir, entries)
	for i := range files {
		if err := files[i].read(); err != nil {
			p.fail(err)
			files[i].err = err
		} else if files[i].err != nil {
			p.errorLine(files[i].path, 0, reason{"format", -1, files[i].err.Error(), "a producer snapshot"})
		}
	}
	if !p.all {
		files = newest(files)
	}
	start := int64(0)
	if len(dir.logs) > 0 {
		start = dir.logs[0].base
	}
	r := newReplay(start)
	c := dir.cursor(0)
	defer c.close()
	shown := 0
	show := func(upTo int64) {
		for ; len(files) > 0 && files[0].offset <= upTo; files = files[1:] {
			if f := &files[0]; f.err == nil {
				shown++
				p.compare(dir, f, r)
			}
		}
	}
	for {
		sp, ok := c.next()
		if !ok {
			break
		}
		if sp.kind != spanBatch {
			continue
		}
		b := record.Batch(sp.data)
		show(b.BaseOffset())
		r.batch(b)
	}
	show(max(r.next, c.end))
	for _, f := range files {
		if f.err == nil {
			p.errorLine(f.path, 0, reason{"offset", -1, fmt.Sprintf("state up to offset %d", f.offset), fmt.Sprintf("at most the log's end %d", r.next)})
		}
	}
	if shown == 0 && r.table.Len() > 0 {
		p.compare(dir, nil, r)
	} else if shown == 0 {
		p.summary(dir, nil, r, map[string]int64{})
	}
}

// newest keeps the last usable file of each kind.
func newest(files []stateFile) (kept []stateFile) {
	var have [2]bool
	for _, f := range slices.Backward(files) {
		kind := 0
		if f.own {
			kind = 1
		}
		if f.err == nil && !have[kind] {
			have[kind] = true
			kept = append(kept, f)
		}
	}
	slices.Reverse(kept)
	return kept
}

// compare prints the producers of a snapshot, or of the log if there is none.
func (p *producers) compare(dir *partitionDir, f *stateFile, r *replay) {
	var list []compared
	if f != nil {
		list = slices.Collect(r.compare(f))
	} else {
		for of := range r.table.All() {
			list = append(list, compared{Producer: of, i: -1, state: producerMissing})
		}
	}
	slices.SortStableFunc(list, func(a, b compared) int { return cmp.Compare(a.ID, b.ID) })
	count := map[string]int64{}
	for _, c := range list {
		count[c.state]++
		if c.state == producerDiffers {
			p.damaged = true
		}
		p.print(dir, f, r, &c)
	}
	p.summary(dir, f, r, count)
}

func (p *producers) print(dir *partitionDir, f *stateFile, r *replay, c *compared) {
	o := p.out
	last, any := c.Last()
	o.open("producer")
	if f != nil {
		o.str("file", f.path)
	} else {
		o.str("file", dir.dir)
	}
	o.int("producerId", c.ID)
	o.int("producerEpoch", int64(c.Epoch))
	o.int("coordinatorEpoch", int64(c.CoordinatorEpoch))
	o.intOr("currentTxnFirstOffset", c.TxnFirstOffset)
	o.int("lastTimestamp", c.LastTimestamp)
	if any {
		o.int("firstSequence", int64(last.FirstSequence()))
		o.int("lastSequence", int64(last.LastSequence))
		o.int("lastOffset", last.LastOffset)
	} else {
		o.null("firstSequence")
		o.null("lastSequence")
		o.null("lastOffset")
	}
	o.int("window", int64(c.N))
	o.str("log", c.state)
	o.strOr("differs", c.what)
	o.close()
}

func (p *producers) summary(dir *partitionDir, f *stateFile, r *replay, count map[string]int64) {
	o := p.out
	verdict := "equal"
	o.open("producers")
	switch {
	case f == nil:
		verdict = "noSnapshot"
		o.str("file", dir.dir)
		o.null("snapshotOffset")
	default:
		o.str("file", f.path)
		o.int("snapshotOffset", f.offset)
	}
	switch {
	case count[producerDiffers] > 0:
		verdict = "differs"
	case f != nil && count[producerGone]+count[producerMissing] > 0:
		verdict = "partly"
	}
	o.str("verdict", verdict)
	o.int("rebuilt", int64(r.table.Len()))
	for _, s := range []string{producerEqual, producerDiffers, producerGone, producerMissing} {
		o.int(s, count[s])
	}
	o.int("evicted", r.table.Stats().Evicted)
	o.close()
}

// stateCheck is the part of verify that compares snapshots with the log. A nil
// one does nothing.
type stateCheck struct {
	p     *partition
	files []stateFile
	r     *replay
}

// checkStates begins the comparison of the snapshots of the folder with the log,
// which starts at that offset. What is wrong with Kafka's as files is said
// elsewhere.
func (p *partition) checkStates(entries []os.DirEntry, start int64) {
	c := &stateCheck{p: p, r: newReplay(start)}
	for _, f := range stateFiles(p.dir, entries) {
		if err := f.read(); err != nil {
			if f.own { // of the others it is said already
				p.gone(f.path, err)
			}
			continue
		}
		if f.err != nil {
			if f.own {
				v := errors.Is(f.err, dedupe.ErrVersion)
				p.report(finding{v, f.path, 0, f.offset, "producer snapshot", f.err.Error(), "a file that can be read"})
			}
			continue
		}
		c.files = append(c.files, f)
	}
	if len(c.files) > 0 {
		p.states = c
	}
}

// batch takes the next valid batch of the log.
func (c *stateCheck) batch(b record.Batch) {
	if c == nil || len(c.files) == 0 {
		return
	}
	c.upTo(b.BaseOffset())
	c.r.batch(b)
}

// lose says that the log has no valid batch for a stretch.
func (c *stateCheck) lose() {
	if c != nil {
		c.r.dense = false
	}
}

// upTo compares the snapshots up to an offset that the log has come to.
func (c *stateCheck) upTo(offset int64) {
	for ; len(c.files) > 0 && c.files[0].offset <= offset; c.files = c.files[1:] {
		f := &c.files[0]
		missing := 0
		for d := range c.r.compare(f) {
			switch d.state {
			case producerMissing:
				missing++
			case producerDiffers:
				// Where data is missing the log is no proof.
				note := !c.p.clean || !c.r.dense
				pos := int64(-1)
				if !f.own {
					pos = snapshotHeaderSize + snapshotEntrySize*int64(d.i)
				}
				c.p.report(finding{note, f.path, pos, f.offset, "producer snapshot", fmt.Sprintf("producer %d: %s", d.ID, d.what), "what the log says"})
			}
		}
		if missing > 0 {
			c.p.note(f.path, "producer snapshot", fmt.Sprintf("none of %d producers of the log", missing), "them, unless they have expired")
		}
	}
}

func (c *stateCheck) finish(end int64) {
	if c != nil {
		c.upTo(end)
	}
}
