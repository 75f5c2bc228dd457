package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/tidemark-log/tidemark/internal/checkpoint"
	"github.com/tidemark-log/tidemark/record"
	"github.com/tidemark-log/tidemark/replica"
)

// replicaSide is one of the two replicas that diff compares.
type replicaSide struct {
	*partitionDir
	c      *cursor
	epochs *partitionEpochs
	hw     int64 // high watermark, -1 if not known

	sp     span // the batch looked at
	have   bool
	inside bool            // its records are looked at, one by one
	recs   []record.Record // those left
	reader record.Reader

	alone int64 // records that the other side lacks
}

// parting is where two logs part.
type parting struct {
	offset int64 // -1 if they do not
	epochs [2]int32
	what   string
}

// differ is the diff subcommand.
type differ struct {
	*env
	hw [2]int64 // given by flag

	side      [2]replicaSide
	part      parting
	batches   int64  // equal byte for byte
	records   int64  // equal one by one
	recut     string // how the batches that are not equal differ though records are
	recutFrom int64
}

func diffCommand(e *env, code *int) *cobra.Command {
	d := &differ{env: e}
	c := &cobra.Command{
		Use:   "diff A B",
		Short: "Compare two replicas of a partition",
		Long: `Compare two replicas of a partition: are they equal, is one the beginning of the
other, or at which offset do they part, and in which leader epochs. Batches are
compared by their bytes, and where those differ (compressed again, cleaned) by
their records.

Then, for each as the follower of the other: what the high-watermark rule and the
epoch rule would cut. The high watermark comes from the data folder or, for a copied
folder, from a copy of that checkpoint beside it under the name
FOLDER.` + checkpoint.HighWatermarkFile + `, or from a flag.`,
		Args: cobra.ExactArgs(2),
		RunE: func(c *cobra.Command, paths []string) error {
			e.progress = newProgress(e.stderr, paths)
			d.run(paths)
			e.progress.clear()
			*code = e.exitCode()
			return nil
		},
	}
	c.Flags().Int64Var(&d.hw[0], "hw-a", -1, "high watermark of A, an `OFFSET`")
	c.Flags().Int64Var(&d.hw[1], "hw-b", -1, "high watermark of B, an `OFFSET`")
	return c
}

func (d *differ) run(paths []string) {
	for i, path := range paths {
		p := d.onePartition("diff", path)
		if p == nil {
			return
		}
		s := &d.side[i]
		*s = replicaSide{partitionDir: p, c: p.cursor(0), epochs: p.readEpochs(), hw: d.hw[i]}
		defer s.c.close()
		if s.hw < 0 {
			s.hw = p.highWatermark()
		}
	}
	d.part.offset, d.recutFrom = -1, -1
	d.compare()
	for i := range d.side {
		s := &d.side[i]
		for s.have || s.load() { // to the end, for its offset
			s.drop()
		}
		s.epochs.end = max(s.epochs.end, s.c.end)
	}
	d.verdict()
	for i := range d.side {
		d.rules(&d.side[i], &d.side[1-i])
	}
}

// highWatermark returns the partition's high watermark as a checkpoint has it,
// -1 if none does.
func (p *partitionDir) highWatermark() int64 {
	name := partitionName(p.dir)
	for _, path := range []string{filepath.Join(parentDir(p.dir), checkpoint.HighWatermarkFile), strings.TrimRight(p.dir, "/") + "." + checkpoint.HighWatermarkFile} {
		b, err := readSmallFile(path)
		if err != nil {
			if !errors.Is(err, os.ErrNotExist) {
				p.fail(err)
			}
			continue
		}
		entries, err := checkpoint.ParseOffsets(b)
		if err != nil {
			pos, r := textReason(b, err)
			p.errorLine(path, pos, r)
			continue
		}
		for _, e := range entries {
			if fmt.Sprintf("%s-%d", e.Topic, e.Partition) == name || name == "" && len(entries) == 1 {
				return e.Offset
			}
		}
	}
	return -1
}

// load takes the next batch. It is false at the end.
func (s *replicaSide) load() bool {
	s.sp, s.have = s.c.next()
	s.inside = false
	if s.have {
		s.epochs.take(&s.sp)
	}
	return s.have
}

func (s *replicaSide) drop() { s.have, s.inside = false, false }

// enter begins to look at the records of the batch. They are copied: the two
// sides go through their batches at a different pace, and a reader has but one
// record at a time.
func (s *replicaSide) enter() {
	s.inside, s.recs = true, nil
	err := s.eachRecord(&s.reader, &s.sp, func(_ int, r *record.Record) bool {
		rec := *r
		rec.Key, rec.Value = bytes.Clone(r.Key), bytes.Clone(r.Value)
		rec.Headers = nil
		for _, h := range r.Headers {
			rec.Headers = append(rec.Headers, record.Header{Key: bytes.Clone(h.Key), Value: bytes.Clone(h.Value)})
		}
		s.recs = append(s.recs, rec)
		return true
	})
	if err != nil {
		r := reasonOf(err)
		s.errorLine(s.c.log.path, s.sp.pos+max(r.at, 0), r)
	}
}

// compare walks both logs side by side up to where they part, or one ends.
func (d *differ) compare() {
	a, b := &d.side[0], &d.side[1]
	start := int64(0)
	for i := range d.side {
		start = max(start, d.side[i].epochs.start)
	}
	for d.out.err == nil {
		for i := range d.side { // a longer log is compared from where the other begins
			for s := &d.side[i]; !s.have && s.load() && lastOffset(&s.sp) < start; {
				s.drop()
			}
		}
		if !a.have || !b.have {
			break
		}
		if !a.inside && !b.inside && bytes.Equal(a.sp.data, b.sp.data) {
			d.batches++
			a.drop()
			b.drop()
			continue
		}
		for i := range d.side {
			if s := &d.side[i]; !s.inside {
				s.enter()
			}
		}
		d.step(a, b)
		if d.part.offset >= 0 {
			return
		}
	}
	// What is left below the other's end is what that one lacks.
	for i := range d.side {
		s, other := &d.side[i], &d.side[1-i]
		if other.have {
			continue
		}
		for s.have && s.inside && len(s.recs) > 0 && s.recs[0].Offset < other.c.end {
			d.lacks(s)
		}
	}
}

// lacks passes over a record of s that the other side does not have: a cleaning
// took it there, or damage.
func (d *differ) lacks(s *replicaSide) {
	d.different("cleaned", s.recs[0].Offset)
	s.alone++
	s.recs = s.recs[1:]
}

// different notes how batches differ whose records do not.
func (d *differ) different(how string, offset int64) {
	if d.recut == "" {
		d.recutFrom = offset
	}
	if d.recut != "cleaned" {
		d.recut = how
	}
}

// step compares one record of each side.
func (d *differ) step(a, b *replicaSide) {
	if len(a.recs) == 0 || len(b.recs) == 0 {
		for _, s := range []*replicaSide{a, b} {
			if len(s.recs) == 0 {
				s.drop()
			}
		}
		return
	}
	ra, rb := &a.recs[0], &b.recs[0]
	switch {
	case ra.Offset < rb.Offset:
		d.lacks(a)
	case ra.Offset > rb.Offset:
		d.lacks(b)
	default:
		if what := differs(&a.sp, &b.sp, ra, rb); what != "" {
			d.part = parting{ra.Offset, [2]int32{leaderEpoch(&a.sp), leaderEpoch(&b.sp)}, what}
			return
		}
		how := "cut into other batches"
		if a.sp.kind == spanBatch && b.sp.kind == spanBatch {
			ba, bb := record.Batch(a.sp.data), record.Batch(b.sp.data)
			switch same := ba.BaseOffset() == bb.BaseOffset() && ba.LastOffset() == bb.LastOffset() && ba.Count() == bb.Count(); {
			case same && ba.Codec() != bb.Codec():
				how = fmt.Sprintf("compressed again, %v and %v", ba.Codec(), bb.Codec())
			case same:
				how = "other headers"
			}
		}
		d.different(how, ra.Offset)
		d.records++
		a.recs, b.recs = a.recs[1:], b.recs[1:]
	}
}

// differs says in what two records of one offset differ.
func differs(sa, sb *span, a, b *record.Record) string {
	ea, eb := leaderEpoch(sa), leaderEpoch(sb)
	switch {
	case ea != eb && ea >= 0 && eb >= 0:
		return fmt.Sprintf("leader epoch %d against %d", ea, eb)
	case a.Timestamp != b.Timestamp:
		return fmt.Sprintf("timestamp %d against %d", a.Timestamp, b.Timestamp)
	case !sameBytes(a.Key, b.Key):
		return "key"
	case !sameBytes(a.Value, b.Value):
		return "value"
	case len(a.Headers) != len(b.Headers):
		return fmt.Sprintf("%d headers against %d", len(a.Headers), len(b.Headers))
	case producerID(sa) != producerID(sb):
		return fmt.Sprintf("producer %d against %d", producerID(sa), producerID(sb))
	case a.Sequence != b.Sequence:
		return fmt.Sprintf("sequence %d against %d", a.Sequence, b.Sequence)
	}
	for i := range a.Headers {
		if !bytes.Equal(a.Headers[i].Key, b.Headers[i].Key) || !sameBytes(a.Headers[i].Value, b.Headers[i].Value) {
			return fmt.Sprintf("header %d", i)
		}
	}
	if sa.kind == spanBatch && sb.kind == spanBatch {
		ba, bb := record.Batch(sa.data), record.Batch(sb.data)
		switch {
		case ba.IsControl() != bb.IsControl():
			return "control batch against data"
		case ba.IsTransactional() != bb.IsTransactional():
			return "transactional batch against another"
		case ba.ProducerEpoch() != bb.ProducerEpoch():
			return fmt.Sprintf("producer epoch %d against %d", ba.ProducerEpoch(), bb.ProducerEpoch())
		}
	}
	return ""
}

// sameBytes tells null from empty.
func sameBytes(a, b []byte) bool { return (a == nil) == (b == nil) && bytes.Equal(a, b) }

func (d *differ) verdict() {
	a, b := &d.side[0], &d.side[1]
	verdict, shorter := "equal", ""
	switch {
	case d.part.offset >= 0:
		verdict = "parted"
		d.damaged = true // the exit code of a difference
	case a.epochs.end < b.epochs.end:
		verdict, shorter = "prefix", a.dir
	case b.epochs.end < a.epochs.end:
		verdict, shorter = "prefix", b.dir
	}
	o := d.out
	o.open("diff")
	o.str("file", a.dir)
	o.str("other", b.dir)
	o.str("verdict", verdict)
	o.strOr("shorter", shorter)
	o.intOr("offset", d.part.offset)
	if d.part.offset >= 0 {
		o.int("leaderEpoch", int64(d.part.epochs[0]))
		o.int("otherLeaderEpoch", int64(d.part.epochs[1]))
	} else {
		o.null("leaderEpoch")
		o.null("otherLeaderEpoch")
	}
	o.strOr("what", d.part.what)
	o.int("startOffset", a.epochs.start)
	o.int("endOffset", a.epochs.end)
	o.int("otherStartOffset", b.epochs.start)
	o.int("otherEndOffset", b.epochs.end)
	o.int("equalBatches", d.batches)
	o.int("equalRecords", d.records)
	o.int("alone", a.alone)
	o.int("otherAlone", b.alone)
	o.strOr("recut", d.recut)
	o.intOr("recutOffset", d.recutFrom)
	o.close()
}

// rules prints what each rule of replication A10 cuts of a follower, and the
// rule for one that is outside the leader's range (A15).
func (d *differ) rules(f, leader *replicaSide) {
	start, end := f.epochs.start, f.epochs.end
	shared := min(end, leader.epochs.end) // below it the two are equal
	if d.part.offset >= 0 {
		shared = d.part.offset
	}
	line := func(rule string, cut int64, why string) {
		o := d.out
		o.open("cut")
		o.str("file", f.dir)
		o.str("leader", leader.dir)
		o.str("rule", rule)
		switch {
		case cut < 0:
			o.null("fromOffset")
			o.null("lastOffset")
			o.str("result", "undefined")
		case cut >= end:
			o.null("fromOffset")
			o.null("lastOffset")
			o.str("result", "nothing")
		case o.json:
			o.int("fromOffset", cut)
			o.int("lastOffset", end-1)
			o.str("result", "cuts")
		default:
			o.key("offsets")
			o.b = appendRange(o.b, cut, end-1)
			o.str("result", "cuts")
		}
		// What stays though the leader has something else there, and what goes though
		// it has the same.
		o.int("foreignLeft", max(0, min(cut, end)-shared))
		o.int("sharedCut", max(0, shared-max(cut, start))*b2i(cut >= 0))
		o.strOr("why", why)
		o.close()
	}
	if end < leader.epochs.start {
		why := fmt.Sprintf("the leader begins at %d: the follower starts again there, empty", leader.epochs.start)
		line("highWatermark", start, why)
		line("epoch", start, why)
		return
	}
	if f.hw < 0 {
		line("highWatermark", -1, "high watermark not known")
	} else {
		line("highWatermark", min(end, max(start, f.hw)), fmt.Sprintf("high watermark %d", f.hw))
	}
	own, theirs := f.epochs.list(), leader.epochs.list()
	var asked []string
	cut, ok := replica.EpochCut(own, end, func(epoch int32) (int32, int64) {
		e, o := replica.EndOffset(theirs, epoch, leader.epochs.end)
		asked = append(asked, fmt.Sprintf("epoch %d: leader ends %d at %d", epoch, e, o))
		return e, o
	})
	switch {
	case len(own) == 0:
		line("epoch", -1, "the follower has no epochs")
	case !ok:
		line("epoch", -1, fmt.Sprintf("the leader knows no epoch %d: it is older than the follower", own[len(own)-1].Epoch))
	default:
		line("epoch", cut, strings.Join(asked, ", "))
	}
}

func b2i(b bool) int64 {
	if b {
		return 1
	}
	return 0
}
