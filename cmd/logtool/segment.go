package main

import (
	"fmt"
	"iter"
	"math"
	"path/filepath"
	"slices"

	"github.com/tidemark-log/tidemark/index"
	"github.com/tidemark-log/tidemark/internal/checkpoint"
	"github.com/tidemark-log/tidemark/internal/vfs"
	"github.com/tidemark-log/tidemark/record"
)

// segment names the files of one segment that are to be checked, empty where
// there is none.
type segment struct {
	base                            int64
	end                             int64 // base of the following segment, -1 if there is none
	last                            bool  // of its partition
	log, index, timeIndex, txnIndex string
	stage                           checkpoint.Stage
	whole                           bool // all files of the segment are looked at
	framed                          bool // header and footer records must enclose the rest
	quiet                           bool // only the indexes are asked for: say nothing about the log
}

// segment checks the files of a segment in one pass over its log.
//
// The indexes are opened before the log: a writer that is at work appends to
// the log first, so every entry seen then has its batch.
func (p *partition) segment(s *segment) {
	// A writer may be, or have been stopped, in the middle of something here.
	open := !p.clean && s.last
	offsets, times := p.openIndex(s.index, s.base, false, open), p.openIndex(s.timeIndex, s.base, true, open)
	defer offsets.close()
	defer times.close()
	txns := p.openTxnIndex(s)
	defer txns.close()

	scan, f, err := p.newScanner(s.log, s.base, open && s.stage == checkpoint.Live)
	if err != nil {
		if s.quiet {
			p.fail(err)
		} else {
			p.gone(s.log, err)
		}
		return
	}
	defer f.Close()

	size := scan.size
	maxTime, legacy := int64(record.NoTimestamp), 0
	for p.out.err == nil {
		sp, ok := scan.next()
		if !ok {
			break
		}
		p.count.bytes += sp.size
		switch sp.kind {
		case spanBatch:
			b := record.Batch(sp.data)
			maxTime = max(maxTime, b.MaxTimestamp())
			timeAt, ok := p.batch(s, &sp, b, txns)
			if !ok {
				offsets.lose()
				times.lose()
				break
			}
			offsets.batch(sp.pos, b.BaseOffset(), b.LastOffset(), false)
			times.batchTime(b.BaseOffset(), b.LastOffset(), b.MaxTimestamp(), timeAt)
		case spanLegacy:
			if legacy++; legacy == 1 && !s.quiet {
				p.report(finding{true, s.log, sp.pos, -1, "magic", fmt.Sprintf("a message of magic %d: no epochs, no producers", sp.data[16]), "2"})
			}
			first, m := p.message(s, &sp)
			maxTime = max(maxTime, m.Timestamp)
			offsets.batch(sp.pos, first, m.Offset, true)
			times.batchTime(first, m.Offset, m.Timestamp, -1)
		default:
			offsets.lose()
			times.lose()
			p.states.lose()
			p.dense = false
			p.damage(s, &sp, open)
		}
	}
	if scan.err != nil {
		p.fail(fmt.Errorf("read %s at byte %d: %w", s.log, scan.pos, scan.err))
		return
	}
	if size > 0 && s.whole && s.index == "" {
		p.note(s.log, "offset index", "none", "one; at load the segment is scanned for it")
	}
	if size > 0 && s.whole && s.timeIndex == "" {
		p.note(s.log, "time index", "none", "one")
	}
	if s.framed && p.frame[0] != record.SnapshotHeader {
		p.report(finding{false, s.log, 0, -1, "frame", "no header as the first record", record.SnapshotHeader.String()})
	}
	if s.framed && p.frame[1] != record.SnapshotFooter {
		p.report(finding{false, s.log, scan.pos, -1, "frame", "no footer as the last record", record.SnapshotFooter.String()})
	}
	offsets.finish(scan.pos)
	times.finish(p.next)
	if times != nil && !times.lost {
		p.checkLastTime(s, times, maxTime, open)
	}
	txns.finish(p)
}

// damage reports a stretch of a log that is no valid batch. What a stop
// without order leaves at the very end is a note (log-format §4.3).
func (p *partition) damage(s *segment, sp *span, open bool) {
	if s.quiet {
		return
	}
	offset := int64(-1)
	if p.any {
		offset = p.next
	}
	if sp.kind == spanZeros {
		p.report(finding{open || p.own && !p.clean, s.log, sp.pos, offset, "zero tail", fmt.Sprintf("%d zero bytes", sp.size), "the end behind the last batch"})
		return
	}
	r := reasonOf(sp.err)
	if sp.kind == spanTorn && open {
		p.report(finding{true, s.log, sp.pos, offset, "torn end", fmt.Sprintf("%d bytes of an unfinished batch (%s %s, want %s)", sp.size, r.check, r.found, r.wanted), "a whole batch"})
		return
	}
	p.report(finding{false, s.log, sp.pos + max(r.at, 0), offset, r.check, r.found, r.wanted})
}

// batch checks a batch whose checksum holds: its place among the offsets, its
// epoch and its records. It returns the offset of the first record that has
// the largest timestamp, -1 if there is none. It is not ok if the offsets are
// such that nothing can be compared with them.
func (p *partition) batch(s *segment, sp *span, b record.Batch, txns *txnCheck) (timeAt int64, ok bool) {
	p.count.batches++
	base, last := b.BaseOffset(), b.LastOffset()
	if !p.place(s, sp.pos, b) {
		p.dense = false
		return -1, false
	}
	timeAt = p.records(s, sp, b, txns)
	p.states.batch(b)
	if !s.quiet {
		p.checkEpoch(s, sp.pos, b)
	}
	if b.IsTransactional() && !b.IsControl() && b.HasProducer() {
		p.txns.begin(b.ProducerID(), base)
	}
	if int64(b.Count()) != last-base+1 {
		p.dense = false
	}
	return timeAt, true
}

// place checks that the offsets of a batch follow on and belong to its
// segment (log-format §12 rules 12 and 17). It is false for offsets that no
// batch can have.
func (p *partition) place(s *segment, pos int64, b record.Batch) bool {
	base, last := b.BaseOffset(), b.LastOffset()
	bad := func(found, wanted string) {
		if !s.quiet {
			p.report(finding{false, s.log, pos, base, "offset", found, wanted})
		}
	}
	switch {
	case base < 0 || last < base:
		bad(fmt.Sprintf("offsets %d to %d", base, last), "ascending ones from 0 on")
		return false
	case p.any && base < p.next:
		if slices.Contains(p.recent, copyOf{base, last, b.CRC()}) {
			if !s.quiet {
				p.report(finding{true, s.log, pos, base, "offset", fmt.Sprintf("offsets %d to %d a second time", base, last), fmt.Sprint(p.next)})
			}
			p.dense = false
			return true
		}
		bad(fmt.Sprintf("base offset %d", base), fmt.Sprintf("at least %d, behind the batch before", p.next))
	case base < s.base:
		bad(fmt.Sprintf("base offset %d", base), fmt.Sprintf("at least %d, the segment's base", s.base))
	case last-s.base > math.MaxInt32:
		bad(fmt.Sprintf("last offset %d", last), fmt.Sprintf("at most %d, 2^31-1 above the segment's base", s.base+math.MaxInt32))
	case s.end >= 0 && last >= s.end:
		bad(fmt.Sprintf("last offset %d", last), fmt.Sprintf("below %d, the base of the following segment", s.end))
	}
	if base != p.next {
		p.dense = false
	}
	// From here, not from the highest so far: one wrong offset is one finding.
	p.next, p.any = b.NextOffset(), true
	p.remember(b)
	return true
}

// records reads the records of a batch and compares them with its header
// (log-format §2.2, §2.3).
func (p *partition) records(s *segment, sp *span, b record.Batch, txns *txnCheck) (timeAt int64) {
	bad := func(at, offset int64, check, found, wanted string) {
		if !s.quiet {
			p.report(finding{false, s.log, sp.pos + max(at, 0), offset, check, found, wanted})
		}
	}
	base, last := b.BaseOffset(), b.LastOffset()
	timeAt = -1
	maxTime, prev, disorder := int64(math.MinInt64), base-1, false
	p.reader.Reset(b)
	var r record.Record
	for {
		if s := p.skim(b, prev, last); s.Count > 0 {
			p.count.records += int64(s.Count)
			if s.MaxTimestamp > maxTime {
				maxTime, timeAt = s.MaxTimestamp, s.MaxAt
			}
			prev, p.frame[1] = s.LastOffset, -1
		}
		if !p.reader.Into(&r) {
			break
		}
		p.count.records++
		if r.Timestamp > maxTime {
			maxTime, timeAt = r.Timestamp, r.Offset
		}
		if (r.Offset <= prev || r.Offset > last) && !disorder {
			disorder = true
			bad(record.HeaderSize, r.Offset, "record offset", fmt.Sprint(r.Offset), fmt.Sprintf("between %d and %d", prev+1, last))
		}
		prev = r.Offset
		if !b.IsControl() {
			p.frame[1] = -1
		} else {
			c, err := record.ParseControl(r.Key, r.Value)
			if err != nil {
				rs := reasonOf(err)
				bad(record.HeaderSize, r.Offset, "control record", rs.found, rs.wanted)
			} else if p.control(c.Type); b.IsTransactional() && (c.Type == record.Abort || c.Type == record.Commit) {
				first, stable := p.txns.end(b.ProducerID(), r.Offset)
				if c.Type == record.Abort {
					txns.aborted(p, index.AbortedTxn{PID: b.ProducerID(), FirstOffset: first, LastOffset: r.Offset, LastStableOffset: stable})
				}
			}
		}
	}
	if err := p.reader.Err(); err != nil {
		r := reasonOf(err)
		bad(r.at, base, r.check, r.found, r.wanted)
		return -1
	}
	if b.Count() > 0 && b.TimestampType() == record.CreateTime && maxTime != b.MaxTimestamp() {
		bad(35, base, "max timestamp", fmt.Sprint(b.MaxTimestamp()), fmt.Sprintf("%d, the largest of the records", maxTime))
	}
	return timeAt
}

// skim passes over usual records; those of a control batch are to be read.
func (p *partition) skim(b record.Batch, prev, last int64) (s record.Skimmed) {
	if !b.IsControl() {
		s = p.reader.Skim(prev, last)
	}
	return s
}

// control notes the types of the first and, so far, last control record.
func (p *partition) control(t record.ControlType) {
	if p.count.records == p.firstRecord+1 {
		p.frame[0] = t
	}
	p.frame[1] = t
}

// message checks a message of magic 0 or 1 and what is inside a compressed
// one. It returns the first offset.
func (p *partition) message(s *segment, sp *span) (first int64, outer record.LegacyMessage) {
	p.count.batches++
	p.dense = false
	outer, err := record.ParseLegacy(sp.data)
	if err != nil { // the scanner parsed it
		return -1, outer
	}
	first = outer.Offset
	bad := func(pos int64, check, found, wanted string) {
		if !s.quiet {
			p.report(finding{false, s.log, pos, outer.Offset, check, found, wanted})
		}
	}
	prev := int64(-1)
	for m, err := range record.LegacyMessages(sp.data, p.maxPlain) {
		if err != nil {
			r := reasonOf(err)
			bad(sp.pos+max(r.at, 0), r.check, r.found, r.wanted)
			break
		}
		if prev < 0 {
			first = m.Offset
		}
		p.count.records++
		switch {
		case !m.CRCValid:
			bad(sp.pos, "crc", fmt.Sprintf("a wrong checksum in the message at offset %d", m.Offset), "a right one")
		case m.Offset <= prev:
			bad(sp.pos, "record offset", fmt.Sprint(m.Offset), fmt.Sprintf("above %d", prev))
		}
		prev = m.Offset
	}
	switch {
	case first < 0 || first < s.base || outer.Offset-s.base > math.MaxInt32:
		bad(sp.pos, "offset", fmt.Sprintf("offsets %d to %d", first, outer.Offset), fmt.Sprintf("%d to %d", s.base, s.base+math.MaxInt32))
		return first, outer
	case p.any && first < p.next:
		bad(sp.pos, "offset", fmt.Sprintf("offset %d", first), fmt.Sprintf("at least %d, behind the message before", p.next))
	}
	p.next, p.any = outer.Offset+1, true
	return first, outer
}

// checkLastTime checks the entry that a roll or close leaves as the last one:
// the largest timestamp of the segment (log-format §12 rule 4).
func (p *partition) checkLastTime(s *segment, c *indexCheck, maxTime int64, open bool) {
	if maxTime < 0 || open || c.faults > 0 {
		return
	}
	if c.hits == 0 {
		p.note(c.path, "last entry", "no entries", fmt.Sprintf("timestamp %d, the largest of the segment", maxTime))
		return
	}
	if c.prev.a != maxTime {
		p.report(finding{p.padded(), c.path, (c.i - 1) * c.width(), c.prev.b, "last entry",
			fmt.Sprintf("timestamp %d", c.prev.a), fmt.Sprintf("timestamp %d, the largest of the segment", maxTime)})
	}
}

// indexCheck compares the entries of an offset or time index with the batches
// of the log as the scan comes past them. A nil one does nothing.
//
// An entry that fits no batch is a fault. But where a writer was stopped,
// those behind the last entry that fits may be of batches that were truncated:
// Kafka leaves them in the file (log-format §3.4).
type indexCheck struct {
	*entryReader
	p    *partition
	open bool // the segment was being written to

	i      int64 // the entry looked at
	prev   entry // the last entry that fitted
	hits   int64 // entries that fitted
	within bool  // the batches of entry i have begun
	blind  bool  // damage in the log: entries for it cannot be compared
	lost   bool  // there was damage

	maxBefore int64 // time index: largest timestamp of the batches so far

	lastPos   int64 // offset index: log position of the last entry that fitted
	stretchAt int64 // where a long stretch without entries begins, -1 if none

	run     []finding // misses since the last entry that fitted, the first few
	runLen  int64
	runAt   int64 // entry with which the run begins
	runLast entry // the last one of the run
	stale   bool  // the run may be what was there before a truncation: it ascends
	faults  int64
}

func (p *partition) openIndex(path string, base int64, times, open bool) *indexCheck {
	if path == "" {
		return nil
	}
	r, err := openEntries(path, base, times)
	if err != nil {
		p.gone(path, err)
		return nil
	}
	return &indexCheck{entryReader: r, p: p, open: open, maxBefore: math.MinInt64, stretchAt: -1}
}

func (c *indexCheck) close() {
	if c != nil {
		c.entryReader.close()
	}
}

// current returns the next entry in order. It is false at the end of the used
// part.
func (c *indexCheck) current() (e entry, ok bool) {
	for {
		e, ok = c.at(c.i)
		if !ok || c.tailAt(c.i) {
			return e, false
		}
		if zeros := c.zeroRun(c.i) - c.i; zeros > 1 || zeros == 1 && c.i > 0 {
			// Neither a preallocated tail nor, after a truncation, old entries.
			c.stale = false
			c.runLen++
			c.run = append(c.run, finding{false, c.path, c.i * c.width(), -1, "entry", fmt.Sprintf("%d zero entries with others behind them", zeros), "none"})
			c.i += zeros
		} else if !c.ascends(e) {
			if c.hits > 0 {
				c.miss(e, "above "+c.name(c.prev)+" before it")
			} else {
				c.miss(e, fmt.Sprintf("at or above the segment's base %d", c.base))
			}
		} else if n, ok := c.at(c.i + 1); ok && (n.a <= e.a || n.b <= e.b) && !vfs.AllZero(c.raw(c.i+1)) && c.ascends(n) {
			c.miss(e, "below "+c.name(n)+" behind it")
		} else {
			return e, true
		}
	}
}

// ascends reports whether the entry may follow the last one that fitted.
func (c *indexCheck) ascends(e entry) bool {
	if c.hits > 0 {
		return e.a > c.prev.a && e.b > c.prev.b
	}
	if c.times {
		return e.a >= 0 && e.b >= c.base
	}
	return e.a >= c.base && e.b >= 0
}

// miss notes that the current entry fits nothing, and goes on to the next.
func (c *indexCheck) miss(e entry, wanted string) {
	const shown = 16
	if c.runLen == 0 {
		c.runAt, c.stale = c.i, true
	} else if e.a <= c.runLast.a || e.b <= c.runLast.b {
		c.stale = false
	}
	c.runLast = e
	if c.runLen++; c.runLen <= shown {
		offset := e.a
		if c.times {
			offset = e.b
		}
		c.run = append(c.run, finding{false, c.path, c.i * c.width(), offset, "entry", c.name(e), wanted})
	}
	c.i++
	c.within = false
}

// hit notes that the current entry fits, and goes on to the next. Misses
// before it are faults then.
func (c *indexCheck) hit(e entry) {
	c.flush()
	c.prev = e
	c.hits++
	c.i++
	c.within = false
}

func (c *indexCheck) flush() {
	for _, f := range c.run {
		c.p.report(f)
	}
	if more := c.runLen - int64(len(c.run)); more > 0 {
		c.p.fault(c.path, "entry", fmt.Sprintf("%d more that do not fit", more), "none")
	}
	c.faults += c.runLen
	c.run, c.runLen = c.run[:0], 0
}

// lose says that the log has no valid batch for a stretch.
func (c *indexCheck) lose() {
	if c != nil {
		c.blind, c.lost, c.within = true, true, false
	}
}

// maxStretch is how many bytes of log may pass without an entry before a note
// says so: a thousand times Kafka's default interval.
const maxStretch = 4 << 20

// batch compares a batch with the entries of an offset index: the entry at its
// position must name its last offset, or the last one of the request that it
// begins (log-format §3.2). Older formats name the first.
func (c *indexCheck) batch(pos, base, last int64, legacy bool) {
	if c == nil {
		return
	}
	for {
		e, ok := c.current()
		if !ok {
			break
		}
		if c.blind && e.b < pos {
			c.i++
			continue
		}
		if n, ok := c.at(c.i + 1); c.within && ok && n.b <= pos && !c.tailAt(c.i+1) {
			c.miss(e, "the last offset of a batch before the next entry")
			continue
		}
		if e.b > pos {
			break
		}
		if !c.within && e.b < pos {
			c.miss(e, "the position of a batch")
			continue
		}
		if e.a > last {
			c.within = true
			break
		}
		if e.a != last && !(legacy && e.a == base) {
			c.miss(e, fmt.Sprintf("offset %d, the last of the batch at %d", last, pos))
			continue
		}
		c.lastPos = pos
		c.hit(e)
	}
	c.blind = false
	if pos-c.lastPos > maxStretch && c.stretchAt < 0 && c.len() > 0 {
		c.stretchAt = c.lastPos
	}
}

// batchTime compares a batch with the entries of a time index: one that names it
// must have its largest timestamp, which none before it may reach, and its
// first or last offset or that of the record (log-format §3.3; broker versions
// differ).
func (c *indexCheck) batchTime(base, last, maxTime, timeAt int64) {
	if c == nil {
		return
	}
	for {
		e, ok := c.current()
		if !ok || e.b > last {
			break
		}
		switch {
		case e.b < base && c.blind:
			c.i++
		case e.b < base:
			c.miss(e, "the offset of a batch")
		case e.a != maxTime:
			c.miss(e, fmt.Sprintf("timestamp %d, the largest of its batch", maxTime))
		case c.maxBefore >= maxTime:
			c.miss(e, fmt.Sprintf("a timestamp above %d, reached before its batch", c.maxBefore))
		case e.b != base && e.b != last && e.b != timeAt:
			c.miss(e, fmt.Sprintf("offset %d or %d, first or last of its batch", base, last))
		default:
			c.hit(e)
		}
	}
	c.blind = false
	c.maxBefore = max(c.maxBefore, maxTime)
}

// finish looks at what is left once the log has ended, at that position or
// offset.
func (c *indexCheck) finish(end int64) {
	if c == nil {
		return
	}
	beyond := c.runLen == 0
	for {
		e, ok := c.current()
		if !ok {
			break
		}
		if c.blind {
			c.i++
			continue
		}
		beyond = beyond && e.b >= end
		if c.times {
			c.miss(e, "the offset of a batch")
		} else {
			c.miss(e, "the position of a batch")
		}
	}
	// Entries of batches that were truncated stay in a file that was grown to
	// capacity, where zeros follow. Those beyond the end are of batches that the
	// log lost, or that a writer has added since.
	if c.runLen > 0 && c.open && c.stale && (c.i < c.len() || beyond) {
		c.p.report(finding{true, c.path, c.runAt * c.width(), -1, "stale entries",
			fmt.Sprintf("%d that fit no batch", c.runLen), fmt.Sprintf("the end behind %d used ones", c.runAt)})
		c.run, c.runLen = nil, 0
	}
	c.flush()
	if n := c.len(); c.i < n {
		c.p.report(finding{c.p.padded(), c.path, c.i * c.width(), -1, "zero tail",
			fmt.Sprintf("%d zero entries", n-c.i), fmt.Sprintf("the end behind %d used ones", c.i)})
	}
	if rest := c.size % c.width(); rest != 0 {
		c.p.report(finding{false, c.path, c.size - rest, -1, "length", fmt.Sprintf("%d bytes of an entry", rest), fmt.Sprint(c.width())})
	}
	if c.stretchAt >= 0 {
		c.p.report(finding{true, c.path, -1, -1, "entries", fmt.Sprintf("none for the log from position %d on for over %d bytes", c.stretchAt, maxStretch), "one every few KiB"})
	}
	if c.err != nil {
		c.p.fail(fmt.Errorf("read %s: %w", c.path, c.err))
	}
}

// txnCheck compares the entries of a transaction index with the abort markers
// of the log as the scan comes past them.
type txnCheck struct {
	path string
	size int64 // bytes of the file
	next func() (txnEntry, bool)
	stop func()
	cur  txnEntry
	have bool
}

type txnEntry struct {
	i   int64
	t   index.AbortedTxn
	bad *index.CorruptError
}

// openTxnIndex opens the transaction index of a segment. Without one it still
// notices markers that should have an entry.
func (p *partition) openTxnIndex(s *segment) *txnCheck {
	c := &txnCheck{path: s.txnIndex}
	if s.txnIndex == "" {
		if !s.whole {
			return nil
		}
		c.path = filepath.Join(p.dir, checkpoint.SegmentFile{Base: s.base, Kind: checkpoint.TxnIndex}.String())
		return c
	}
	f, size, err := openFile(s.txnIndex)
	if err != nil {
		p.gone(s.txnIndex, err)
		return nil
	}
	c.size = size
	next, stop := iter.Pull(txnEntries(f, s.txnIndex, s.base, p.fail))
	c.next, c.stop = next, func() { stop(); f.Close() }
	c.advance(p)
	return c
}

func txnEntries(f file, path string, base int64, fail func(error)) iter.Seq[txnEntry] {
	return func(yield func(txnEntry) bool) {
		err := eachTxn(f, path, base, func(i int64, t index.AbortedTxn, bad *index.CorruptError) bool {
			return yield(txnEntry{i, t, bad})
		})
		if err != nil {
			fail(err)
		}
	}
}

func (c *txnCheck) close() {
	if c != nil && c.stop != nil {
		c.stop()
	}
}

// advance goes to the next entry that can be read and reports those that
// cannot.
func (c *txnCheck) advance(p *partition) {
	c.have = false
	for c.next != nil {
		e, ok := c.next()
		if !ok {
			return
		}
		if e.bad == nil {
			c.cur, c.have = e, true
			return
		}
		p.report(finding{false, c.path, e.i * index.TxnEntrySize, -1, "entry", e.bad.Found, e.bad.Want})
	}
}

// aborted compares an abort marker with the entry for it. first is -1 in want
// if the transaction's beginning was not seen.
func (c *txnCheck) aborted(p *partition, want index.AbortedTxn) {
	if c == nil {
		return
	}
	for c.have && c.cur.t.LastOffset < want.LastOffset {
		c.miss(p, fmt.Sprintf("the offset of an abort marker, next at %d", want.LastOffset))
		c.advance(p)
	}
	if !c.have || c.cur.t.LastOffset > want.LastOffset {
		// After a cleaning a marker may stand without its data and its entry.
		if want.FirstOffset >= 0 {
			at := c.size
			if c.have {
				at = c.cur.i * index.TxnEntrySize
			}
			p.report(finding{!p.clean, c.path, at, want.LastOffset, "entry", "none for the transaction that was aborted there",
				fmt.Sprintf("producer %d, offsets %d to %d", want.PID, want.FirstOffset, want.LastOffset)})
		}
		return
	}
	got := c.cur.t
	exact := p.dense && !p.txns.lost
	switch {
	case got.PID != want.PID:
		c.miss(p, fmt.Sprintf("producer %d", want.PID))
	case exact && got != want:
		c.miss(p, fmt.Sprintf("first offset %d, last stable offset %d", want.FirstOffset, want.LastStableOffset))
	case got.FirstOffset < 0 || got.FirstOffset > got.LastOffset || want.FirstOffset >= 0 && got.FirstOffset > want.FirstOffset:
		c.miss(p, fmt.Sprintf("a first offset of at most %d", max(want.FirstOffset, 0)))
	case got.LastStableOffset < 0 || got.LastStableOffset > got.LastOffset+1:
		c.miss(p, fmt.Sprintf("a last stable offset of at most %d", got.LastOffset+1))
	}
	c.advance(p)
}

func (c *txnCheck) miss(p *partition, wanted string) {
	t := c.cur.t
	p.report(finding{false, c.path, c.cur.i * index.TxnEntrySize, t.LastOffset, "entry",
		fmt.Sprintf("producer %d, offsets %d to %d, last stable offset %d", t.PID, t.FirstOffset, t.LastOffset, t.LastStableOffset), wanted})
}

func (c *txnCheck) finish(p *partition) {
	for c != nil && c.have {
		c.miss(p, "the offset of an abort marker")
		c.advance(p)
	}
}
