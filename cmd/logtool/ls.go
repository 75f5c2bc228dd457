package main

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/tidemark-log/tidemark/index"
	"github.com/tidemark-log/tidemark/internal/checkpoint"
	"github.com/tidemark-log/tidemark/internal/vfs"
	"github.com/tidemark-log/tidemark/record"
)

// lister is the ls subcommand: what partitions and segments there are. Unless
// it is to scan it reads of each segment its first batch, the last entries of
// its indexes and what stands behind the last one: a few KiB.
type lister struct {
	*env
	segments bool
	scan     bool
	jobs     int
	reader   record.Reader
}

func lsCommand(e *env, code *int) *cobra.Command {
	l := &lister{env: e}
	c := &cobra.Command{
		Use:   "ls PATH...",
		Short: "List partitions, and their segments",
		Long: `List the partitions of a data folder, or one partition: offsets, times, sizes,
epochs, the state of the indexes, and what the checkpoints say. It looks at the
ends of files only; --scan reads all of every log and adds numbers of batches
and records, codecs and what they save.`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(_ *cobra.Command, paths []string) error {
			if l.scan {
				e.progress = newProgress(e.stderr, paths)
			}
			for _, p := range dataFolders(paths) {
				l.path(p)
			}
			e.progress.clear()
			*code = e.exitCode()
			return nil
		},
	}
	c.Flags().BoolVar(&l.segments, "segments", false, "list the segments of each partition too")
	c.Flags().BoolVar(&l.scan, "scan", false, "read all of every log")
	jobsFlag(c, &l.jobs)
	return c
}

func (l *lister) path(path string) {
	entries, err := os.ReadDir(path)
	if err != nil {
		l.fail(err)
		return
	}
	var dirs []string
	data := path
	switch dirKindOf(entries, path) {
	case dirData:
		for _, e := range entries {
			sub := filepath.Join(path, e.Name())
			if e.IsDir() && isPartitionDir(sub) {
				dirs = append(dirs, sub)
			}
		}
	case dirPartition:
		dirs, data = []string{path}, parentDir(path)
	default:
		l.fail(fmt.Errorf("ls %s: neither a data folder nor a partition folder", path))
		return
	}
	r := (&verifier{env: l.env}).root(data, true)
	if data == path {
		l.folder(path, r)
	}
	t := &table{}
	t.row(l.heads()...)
	total := partitionInfo{}
	l.out.flush()
	order := newSequence(maxKept)
	fresh := *l.env // which jobs do not change
	type result struct {
		e *env
		p *partitionInfo
	}
	inOrder(len(dirs), l.jobs, func(i int) result {
		one := &lister{env: fresh.fork(order, i), segments: l.segments, scan: l.scan}
		one.reader.MaxBytes = l.maxPlain
		return result{one.env, one.partition(dirs[i], r)}
	}, func(i int, res result) {
		p := res.p
		total.bytes += p.bytes
		total.stats.add(&p.stats)
		if l.out.json {
			l.json(p)
		} else {
			l.text(t, p)
		}
		l.join(res.e, order, i)
	})
	if !l.out.json {
		t.write(l.out)
		l.out.b = fmt.Appendf(l.out.b, "%d partitions, %s", len(dirs), humanBytes(total.bytes))
		l.out.write()
	}
}

// folder says what a data folder is.
func (l *lister) folder(dir string, r *root) {
	o := l.out
	o.open("folder")
	o.str("path", dir)
	o.bool("clean", r.clean)
	var m checkpoint.Meta
	if b, err := readSmallFile(filepath.Join(dir, checkpoint.MetaFile)); err == nil {
		m, _ = checkpoint.ParseMeta(b)
	}
	o.str("clusterId", m.ClusterID)
	o.int("nodeId", int64(m.NodeID))
	o.close()
}

// noTime stands for a time that is not known.
const noTime = math.MinInt64

// stats is what only a scan of the logs tells.
type stats struct {
	batches, records int64
	codecs           [8]codecStats // by the bits of the attributes
	undecoded        bool          // some batch could not be decompressed
}

type codecStats struct{ batches, bytes, plain int64 }

func (s *stats) add(t *stats) {
	s.batches += t.batches
	s.records += t.records
	for i := range s.codecs {
		s.codecs[i].batches += t.codecs[i].batches
		s.codecs[i].bytes += t.codecs[i].bytes
		s.codecs[i].plain += t.codecs[i].plain
	}
	s.undecoded = s.undecoded || t.undecoded
}

type segmentInfo struct {
	path       string
	base, end  int64 // end is above the last offset
	size, tail int64 // bytes of the file, and of those behind the last batch
	bad        int64 // bytes in front of it that are no batch
	first      int64 // time
	max        int64 // time
	epochs     [2]int32
	index      string // state
	timeIndex  string
	entries    [2]int64 // of the indexes
	aborted    int64
	stats
}

type partitionInfo struct {
	path, name       string
	pd               checkpoint.PartitionDir
	state            string
	clean            bool
	segments         int
	segs             []segmentInfo // if they are asked for
	bytes            int64         // of the logs
	start, end       int64
	hw, recovery     *int64
	first, max       int64 // times
	epoch            int32 // the last one
	epochs           int64 // entries of the file, -1 if it cannot be read
	index, timeIndex string
	damaged          bool
	stats
}

// indexStates are the states of an index, better ones first: a partition shows
// the worst of its segments.
var indexStates = []string{"good", "padded", "stale", "missing", "wrong"}

func worse(a, b string) string {
	if slices.Index(indexStates, b) > slices.Index(indexStates, a) {
		return b
	}
	return a
}

func (l *lister) partition(dir string, r *root) *partitionInfo {
	p := &partitionInfo{path: dir, name: filepath.Base(dir), state: "other", clean: r.clean, first: noTime, max: noTime,
		epoch: record.NoLeaderEpoch, epochs: -1, index: "good", timeIndex: "good"}
	if abs, err := filepath.Abs(dir); err == nil {
		p.name = filepath.Base(abs)
	}
	if pd, err := checkpoint.ParsePartitionDir(p.name); err == nil {
		p.pd, p.state = pd, string(pd.State)
		if pd.State == checkpoint.DirCurrent {
			p.state = "current"
		}
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		l.vanished(err)
		return p
	}
	files := map[int64]*segment{}
	for _, e := range entries {
		kind, name, err := kindOf(e.Name())
		if err != nil || e.IsDir() || name.Stage != checkpoint.Live {
			continue
		}
		switch kind {
		case kindLog, kindOffsetIndex, kindTimeIndex, kindTxnIndex:
		default:
			continue
		}
		if files[name.Base] == nil {
			files[name.Base] = &segment{base: name.Base}
		}
		s, path := files[name.Base], filepath.Join(dir, e.Name())
		switch kind {
		case kindLog:
			s.log = path
		case kindOffsetIndex:
			s.index = path
		case kindTimeIndex:
			s.timeIndex = path
		case kindTxnIndex:
			s.txnIndex = path
		}
	}
	maps.DeleteFunc(files, func(_ int64, s *segment) bool { return s.log == "" })
	bases := slices.Sorted(maps.Keys(files))
	for i, base := range bases {
		s := files[base]
		s.last = i == len(bases)-1
		info := l.segment(s, r.clean)
		if i == 0 {
			p.start, p.first, p.end = base, info.first, base
		}
		p.end = max(p.end, info.end)
		p.bytes += info.size
		p.max = max(p.max, info.max)
		p.epoch = max(p.epoch, info.epochs[1])
		p.index, p.timeIndex = worse(p.index, info.index), worse(p.timeIndex, info.timeIndex)
		p.damaged = p.damaged || info.bad > 0
		p.stats.add(&info.stats)
		p.segments++
		if l.segments {
			p.segs = append(p.segs, info)
		}
	}
	if p.state == "current" {
		of := func(kind fileKind) *int64 {
			if v, ok := r.values[kind][p.name]; ok {
				return &v.offset
			}
			return nil
		}
		p.hw, p.recovery = of(kindHighWatermark), of(kindRecoveryPoint)
		if n := of(kindLogStart); n != nil {
			p.start = max(p.start, *n)
		}
	}
	if b, err := readSmallFile(filepath.Join(dir, checkpoint.LeaderEpochFile)); err == nil {
		if epochs, err := checkpoint.ParseEpochs(b); err == nil {
			p.epochs = int64(len(epochs))
			if len(epochs) > 0 {
				p.epoch = epochs[len(epochs)-1].Epoch
			}
		}
	}
	return p
}

// vanished is fail, unless it is that retention was faster.
func (l *lister) vanished(err error) {
	if !errors.Is(err, fs.ErrNotExist) {
		l.fail(err)
	}
}

func (l *lister) segment(s *segment, clean bool) segmentInfo {
	info := segmentInfo{path: s.log, base: s.base, end: s.base, first: noTime, max: noTime, epochs: [2]int32{record.NoLeaderEpoch, record.NoLeaderEpoch}}
	open := s.last && !clean
	// The indexes first: a writer at work appends to the log before them.
	offsets := l.openIndex(s.index, s.base, false)
	times := l.openIndex(s.timeIndex, s.base, true)
	defer offsets.close()
	defer times.close()
	scan, f, err := l.newScanner(s.log, s.base, open)
	if err != nil {
		l.vanished(err)
		return info
	}
	defer f.Close()
	info.size = scan.size

	jumped := l.scan || offsets == nil || offsets.used == 0
	for l.out.err == nil {
		sp, ok := scan.next()
		if !ok {
			break
		}
		l.span(&info, &sp, open)
		if !jumped && sp.kind == spanBatch {
			// On to the batch that the last entry names, if it is one.
			jumped = true
			e := offsets.last
			at, expect := scan.pos, scan.expect
			if e.b < at {
				continue
			}
			scan.pos = e.b
			if sp, ok = scan.next(); ok && sp.kind == spanBatch && record.Batch(sp.data).BaseOffset() <= e.a {
				l.span(&info, &sp, open)
				continue
			}
			offsets.bad = true
			scan.pos, scan.expect, scan.err = at, expect, nil
		}
	}
	if scan.err != nil {
		l.fail(fmt.Errorf("read %s at byte %d: %w", s.log, scan.pos, scan.err))
	}
	if offsets != nil && offsets.used > 0 {
		e := offsets.last
		offsets.bad = offsets.bad || e.a < s.base || e.a >= info.end || e.b < 0 || e.b >= info.size-info.tail
	}
	if times != nil && times.used > 0 {
		e := times.last
		if times.bad = times.bad || e.b < s.base || e.b >= info.end; !times.bad {
			info.max = max(info.max, e.a)
		}
	}
	info.index, info.timeIndex = offsets.state(open), times.state(open)
	if offsets != nil {
		info.entries[0] = offsets.used
	}
	if times != nil {
		info.entries[1] = times.used
	}
	if s.txnIndex != "" {
		if fi, err := os.Stat(s.txnIndex); err == nil {
			info.aborted = fi.Size() / index.TxnEntrySize
		}
	}
	return info
}

// span adds what a stretch of the log says.
func (l *lister) span(info *segmentInfo, sp *span, open bool) {
	switch sp.kind {
	case spanBatch:
		b := record.Batch(sp.data)
		if info.first == noTime {
			if info.first = b.BaseTimestamp(); b.HasDeleteHorizon() {
				info.first = b.MaxTimestamp()
			}
			info.epochs[0] = b.LeaderEpoch()
		}
		info.end = max(info.end, b.NextOffset())
		info.max = max(info.max, b.MaxTimestamp())
		info.epochs[1] = max(info.epochs[1], b.LeaderEpoch())
		if l.scan {
			info.batches++
			info.records += int64(b.Count())
			c := &info.codecs[b.Codec()&7]
			c.batches++
			if l.reader.Reset(b) == nil {
				c.bytes += int64(len(b) - record.HeaderSize)
				c.plain += int64(len(l.reader.Plain()))
			} else {
				info.undecoded = true
			}
		}
	case spanLegacy:
		m, err := record.ParseLegacy(sp.data)
		if err != nil {
			return // the scanner parsed it
		}
		if info.first == noTime {
			info.first = m.Timestamp
		}
		info.end = max(info.end, m.Offset+1)
		info.max = max(info.max, m.Timestamp)
		if l.scan {
			info.batches++
			c := &info.codecs[m.Codec&7]
			c.batches++
			for range record.LegacyMessages(sp.data, l.maxPlain) {
				info.records++
			}
		}
	case spanZeros:
		info.tail += sp.size
	case spanTorn:
		info.tail += sp.size
		if !open {
			info.bad += sp.size
			l.damaged = true
		}
	default:
		info.bad += sp.size
		l.damaged = true
	}
}

// endIndex is what the end of an index file says.
type endIndex struct {
	*entryReader
	used int64 // entries before the zero tail
	last entry // of those
	bad  bool
}

// openIndex looks at the end of an index; nil if there is none.
func (l *lister) openIndex(path string, base int64, times bool) *endIndex {
	if path == "" {
		return nil
	}
	r, err := openEntries(path, base, times)
	if err != nil {
		l.vanished(err)
		return nil
	}
	x := &endIndex{entryReader: r, bad: r.size%r.width() != 0}
	x.used = r.usedFast()
	if x.used > 0 {
		x.last, _ = r.at(x.used - 1)
	}
	if x.used > 1 {
		if e, ok := r.at(x.used - 2); ok && (e.a >= x.last.a || e.b >= x.last.b) {
			x.bad = true
		}
	}
	return x
}

func (x *endIndex) close() {
	if x != nil {
		x.entryReader.close()
	}
}

func (x *endIndex) state(open bool) string {
	switch {
	case x == nil:
		return "missing"
	case x.bad && open && x.size%x.width() == 0 && x.used > 0:
		return "stale" // what a truncation or a writer at work leaves
	case x.bad:
		return "wrong"
	case x.used < x.len():
		return "padded"
	}
	return "good"
}

// usedFast is how many entries stand before a zero tail, found by bisection:
// in a file that is in order no zero entry stands between others.
func (r *entryReader) usedFast() int64 {
	n := r.len()
	zero := func(i int64) bool { p := r.raw(i); return p == nil || vfs.AllZero(p) }
	if n == 0 || !zero(n-1) {
		return n
	}
	if n == 1 && !r.times {
		return 1 // the base offset at position 0
	}
	low, high := int64(0), n-1 // high is zero
	for low < high {
		if mid := (low + high) / 2; zero(mid) {
			high = mid
		} else {
			low = mid + 1
		}
	}
	return low
}

func (l *lister) json(p *partitionInfo) {
	o := l.out
	o.open("partition")
	o.str("path", p.path)
	o.str("topic", p.pd.Topic)
	o.int("partition", int64(p.pd.Partition))
	o.str("state", p.state)
	o.bool("clean", p.clean)
	o.int("segments", int64(p.segments))
	o.int("bytes", p.bytes)
	o.int("logStartOffset", p.start)
	o.int("logEndOffset", p.end)
	o.optional("highWatermark", p.hw)
	o.optional("recoveryPoint", p.recovery)
	o.time("firstTimestamp", p.first)
	o.time("maxTimestamp", p.max)
	o.int("leaderEpoch", int64(p.epoch))
	o.int("epochs", p.epochs)
	o.str("index", p.index)
	o.str("timeIndex", p.timeIndex)
	o.bool("damaged", p.damaged)
	l.jsonStats(&p.stats)
	o.close()
	if !l.segments {
		return
	}
	for i := range p.segs {
		s := &p.segs[i]
		o.open("segment")
		o.str("file", s.path)
		o.int("baseOffset", s.base)
		o.int("endOffset", s.end)
		o.int("bytes", s.size)
		o.int("tailBytes", s.tail)
		o.int("badBytes", s.bad)
		o.time("firstTimestamp", s.first)
		o.time("maxTimestamp", s.max)
		o.int("firstEpoch", int64(s.epochs[0]))
		o.int("leaderEpoch", int64(s.epochs[1]))
		o.str("index", s.index)
		o.int("indexEntries", s.entries[0])
		o.str("timeIndex", s.timeIndex)
		o.int("timeIndexEntries", s.entries[1])
		o.int("abortedTransactions", s.aborted)
		l.jsonStats(&s.stats)
		o.close()
	}
}

func (l *lister) jsonStats(s *stats) {
	if !l.scan {
		return
	}
	o := l.out
	o.int("batches", s.batches)
	o.int("records", s.records)
	o.key("codecs")
	o.b = append(o.b, '{')
	sep := ""
	for i, c := range s.codecs {
		if c.batches > 0 {
			o.b = fmt.Appendf(o.b, `%s"%s":{"batches":%d,"bytes":%d,"plainBytes":%d}`, sep, record.Codec(i), c.batches, c.bytes, c.plain)
			sep = ","
		}
	}
	o.b = append(o.b, '}')
}

func (o *output) optional(k string, n *int64) {
	if n != nil {
		o.int(k, *n)
		return
	}
	o.key(k)
	o.b = append(o.b, "null"...)
}

// time writes a time in milliseconds, null if it is not known.
func (o *output) time(k string, ms int64) {
	if ms == noTime {
		o.optional(k, nil)
		return
	}
	o.int(k, ms)
}

func (l *lister) heads() []string {
	h := strings.Fields("PARTITION START END HW RECOVERY SEGMENTS BYTES FIRST LAST EPOCH INDEX TIMEINDEX STATE")
	if l.scan {
		h = append(h, "BATCHES", "RECORDS", "CODECS")
	}
	return h
}

func (l *lister) text(t *table, p *partitionInfo) {
	number := func(n *int64) string {
		if n == nil {
			return "-"
		}
		return strconv.FormatInt(*n, 10)
	}
	state := []string{"clean"}
	if !p.clean {
		state[0] = "unclean"
	}
	if p.state != "current" {
		state = append(state, p.state)
	}
	if p.damaged {
		state = append(state, "damaged")
	}
	cells := []string{plainName(p.name), strconv.FormatInt(p.start, 10), strconv.FormatInt(p.end, 10), number(p.hw), number(p.recovery),
		strconv.Itoa(p.segments), humanBytes(p.bytes), humanTime(p.first), humanTime(p.max), humanEpoch(p.epoch), p.index, p.timeIndex, strings.Join(state, ",")}
	t.row(append(cells, l.textStats(&p.stats)...)...)
	if !l.segments {
		return
	}
	for i := range p.segs {
		s := &p.segs[i]
		state := "-"
		switch {
		case s.bad > 0:
			state = fmt.Sprintf("%s damaged", humanBytes(s.bad))
		case s.tail > 0:
			state = fmt.Sprintf("%s tail", humanBytes(s.tail))
		}
		cells := []string{fmt.Sprintf("  %020d", s.base), strconv.FormatInt(s.base, 10), strconv.FormatInt(s.end, 10), "-", "-",
			"-", humanBytes(s.size), humanTime(s.first), humanTime(s.max), humanEpoch(s.epochs[1]), s.index, s.timeIndex, state}
		t.row(append(cells, l.textStats(&s.stats)...)...)
	}
}

func (l *lister) textStats(s *stats) []string {
	if !l.scan {
		return nil
	}
	var codecs []string
	for i, c := range s.codecs {
		switch {
		case c.batches == 0:
		case i == int(record.None) || c.bytes == 0:
			codecs = append(codecs, fmt.Sprintf("%s:%d", record.Codec(i), c.batches))
		default:
			codecs = append(codecs, fmt.Sprintf("%s:%d(%.1fx)", record.Codec(i), c.batches, float64(c.plain)/float64(c.bytes)))
		}
	}
	return []string{strconv.FormatInt(s.batches, 10), strconv.FormatInt(s.records, 10), cmp.Or(strings.Join(codecs, ","), "-")}
}

// plainName shows a name that may hold anything.
func plainName(s string) string {
	if strings.Trim(s, plainText) == "" {
		return s
	}
	return strconv.Quote(s)
}

func humanEpoch(e int32) string {
	if e < 0 {
		return "-"
	}
	return strconv.Itoa(int(e))
}

func humanTime(ms int64) string {
	if ms < 0 { // unknown, or the -1 of a batch without times
		return "-"
	}
	return time.UnixMilli(ms).UTC().Format("2006-01-02T15:04:05.000Z")
}

// humanBytes is exact below 10,000 bytes.
func humanBytes(n int64) string {
	if n < 10000 {
		return strconv.FormatInt(n, 10)
	}
	f := float64(n)
	for _, unit := range "KMGTP" {
		if f /= 1024; f < 1000 || unit == 'P' {
			return strconv.FormatFloat(f, 'f', 1, 64) + string(unit)
		}
	}
	return ""
}

// A table lines up its columns, the first to the left and numbers to the right.
type table struct {
	rows   [][]string
	widths []int
}

func (t *table) row(cells ...string) {
	for i, c := range cells {
		if i == len(t.widths) {
			t.widths = append(t.widths, 0)
		}
		t.widths[i] = max(t.widths[i], utf8.RuneCountInString(c))
	}
	t.rows = append(t.rows, cells)
}

func (t *table) write(o *output) {
	for _, cells := range t.rows {
		for i, c := range cells {
			pad := strings.Repeat(" ", t.widths[i]-utf8.RuneCountInString(c))
			switch {
			case i == 0:
				o.b = append(append(o.b, c...), pad...)
			case i == len(cells)-1 && i > 7:
				o.b = append(append(o.b, "  "...), c...)
			default:
				o.b = append(append(append(o.b, "  "...), pad...), c...)
			}
		}
		o.write()
	}
}
