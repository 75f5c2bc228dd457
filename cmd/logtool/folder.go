package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/tidemark-log/tidemark/internal/checkpoint"
	"github.com/tidemark-log/tidemark/record"
)

// partitionDir is a partition folder as the commands that look for something see it:
// its logs in order.
type partitionDir struct {
	*env
	dir  string
	logs []logFile // ascending base offset
}

type logFile struct {
	base  int64
	path  string
	live  bool            // it may be in the middle of a write
	files map[string]bool // which suffixes the segment has beside .log
}

// eachPartition calls each for the partition folder at path, or for every one
// of the data folder there. What cannot be read is noted and passed over.
func (e *env) eachPartition(doing, path string, each func(*partitionDir)) {
	entries, err := os.ReadDir(path)
	if err != nil {
		if !errors.Is(err, os.ErrNotExist) {
			err = fmt.Errorf("%s %s: not a folder: %w", doing, path, err)
		}
		e.fail(err)
		return
	}
	switch dirKindOf(entries, path) {
	case dirPartition:
		each(e.openPartition(path, entries))
	case dirData:
		for _, d := range entries {
			sub := filepath.Join(path, d.Name())
			if pd, err := checkpoint.ParsePartitionDir(d.Name()); err != nil && !isPartitionDir(sub) || pd.State == checkpoint.DirDelete || !d.IsDir() {
				continue
			}
			entries, err := os.ReadDir(sub)
			if err != nil {
				e.fail(err)
				continue
			}
			each(e.openPartition(sub, entries))
		}
	default:
		e.fail(fmt.Errorf("%s %s: neither a data folder nor a partition folder", doing, path))
	}
}

// onePartition is eachPartition for a command that takes a single one.
func (e *env) onePartition(doing, path string) *partitionDir {
	entries, err := os.ReadDir(path)
	switch {
	case err != nil:
		e.fail(err)
	case dirKindOf(entries, path) != dirPartition:
		e.fail(fmt.Errorf("%s %s: not a partition folder", doing, path))
	default:
		return e.openPartition(path, entries)
	}
	return nil
}

func (e *env) openPartition(dir string, entries []os.DirEntry) *partitionDir {
	p := &partitionDir{env: e, dir: dir}
	st := stateOf(dir, entries)
	beside := map[int64]map[string]bool{}
	for _, d := range entries {
		kind, f, err := kindOf(d.Name())
		if err != nil || d.IsDir() || f.Stage != checkpoint.Live || segmentKinds[f.Kind] != kind || kind == kindUnknown || d.Name() != f.String() {
			continue
		}
		if beside[f.Base] == nil {
			beside[f.Base] = map[string]bool{}
		}
		beside[f.Base][string(f.Kind)] = true
		if kind == kindLog {
			p.logs = append(p.logs, logFile{base: f.Base, path: filepath.Join(dir, d.Name()), live: st.open(d.Name())})
		}
	}
	slices.SortFunc(p.logs, func(a, b logFile) int { return strings.Compare(a.path, b.path) }) // 20 digits
	for i := range p.logs {
		p.logs[i].files = beside[p.logs[i].base]
	}
	return p
}

// beside returns the path of another file of the segment, empty if there is
// none.
func (l *logFile) beside(kind checkpoint.Kind) string {
	if !l.files[string(kind)] {
		return ""
	}
	return filepath.Join(filepath.Dir(l.path), checkpoint.SegmentFile{Base: l.base, Kind: kind}.String())
}

// cursor walks the batches of a partition from one of its logs on. What is no
// batch is reported as an error line, once, unless it is what a writer has not
// finished, or zeros.
type cursor struct {
	*partitionDir
	i    int // the log being read
	log  *logFile
	scan *scanner
	f    *os.File
	read int64 // bytes gone through
	end  int64 // behind the last batch
	// quiet keeps damage from being reported: another cursor does.
	quiet bool
}

func (p *partitionDir) cursor(from int) *cursor { return &cursor{partitionDir: p, i: from - 1} }

// seek goes to a byte of log i.
func (c *cursor) seek(i int, pos int64) {
	c.close()
	c.i = i - 1
	if c.open() {
		c.scan.pos = pos
	}
}

func (c *cursor) open() bool {
	for c.i++; c.i < len(c.logs); c.i++ {
		c.log = &c.logs[c.i]
		scan, f, err := c.newScanner(c.log.path, c.log.base, c.log.live)
		if err == nil {
			c.scan, c.f = scan, f
			return true
		}
		if !errors.Is(err, os.ErrNotExist) || !c.quiet { // retention may have it
			c.fail(err)
		}
	}
	return false
}

func (c *cursor) close() {
	if c.f != nil {
		c.f.Close()
		c.f, c.scan = nil, nil
	}
}

// next returns the next batch, or message of an old format. Its bytes are
// valid until the following next.
func (c *cursor) next() (sp span, ok bool) {
	for c.out.err == nil {
		if c.scan == nil && !c.open() {
			return span{}, false
		}
		sp, ok := c.scan.next()
		if !ok {
			if c.scan.err != nil {
				c.fail(fmt.Errorf("read %s at byte %d: %w", c.log.path, c.scan.pos, c.scan.err))
			}
			c.close()
			continue
		}
		c.read += sp.size
		switch sp.kind {
		case spanBatch, spanLegacy:
			c.end = max(c.end, lastOffset(&sp)+1)
			return sp, true
		case spanZeros:
		default:
			if !c.quiet && !(sp.kind == spanTorn && c.log.live) {
				r := reasonOf(sp.err)
				c.errorLine(c.log.path, sp.pos+max(r.at, 0), r)
			}
		}
	}
	return span{}, false
}

// lastOffset returns the last offset of a batch or message.
func lastOffset(sp *span) int64 {
	if sp.kind == spanLegacy {
		return record.Batch(sp.data).BaseOffset() // of the last one, if it holds several
	}
	return record.Batch(sp.data).LastOffset()
}

// maxTimestamp returns the largest timestamp that the header names.
func maxTimestamp(sp *span) int64 {
	if sp.kind == spanLegacy {
		m, _ := record.ParseLegacy(sp.data)
		return m.Timestamp
	}
	return record.Batch(sp.data).MaxTimestamp()
}

// leaderEpoch returns the epoch that the header names, −1 if none.
func leaderEpoch(sp *span) int32 {
	if sp.kind == spanLegacy {
		return record.NoLeaderEpoch
	}
	return record.Batch(sp.data).LeaderEpoch()
}

// producerID returns the producer that the header names, −1 if none.
func producerID(sp *span) int64 {
	if sp.kind == spanLegacy {
		return record.NoProducer
	}
	return record.Batch(sp.data).ProducerID()
}

// eachRecord calls each for the records of a batch or message, numbered from 0,
// until it answers false. A record is valid during the call.
func (e *env) eachRecord(r *record.Reader, sp *span, each func(i int, rec *record.Record) bool) error {
	if sp.kind == spanLegacy {
		i := 0
		for m, err := range record.LegacyMessages(sp.data, e.maxPlain) {
			if err != nil {
				return err
			}
			rec := record.Record{Offset: m.Offset, Timestamp: m.Timestamp, Sequence: record.NoSequence, Key: m.Key, Value: m.Value}
			if !each(i, &rec) {
				return nil
			}
			i++
		}
		return nil
	}
	r.MaxBytes = e.maxPlain
	r.Reset(sp.data)
	for i := 0; r.Next(); i++ {
		if !each(i, r.Record()) {
			return nil
		}
	}
	return r.Err()
}

// errorLine writes an error line, as dump does, and makes the exit code 1.
func (e *env) errorLine(path string, pos int64, r reason) {
	e.damaged = true
	e.progress.clear()
	o := e.out
	o.open("error")
	o.name(path)
	o.int("position", pos)
	o.str("check", r.check)
	o.str("found", r.found)
	o.str("wanted", r.wanted)
	o.close()
}

// null writes a field without a value: JSON has null, text leaves it out.
func (o *output) null(k string) {
	if o.json {
		o.key(k)
		o.b = append(o.b, "null"...)
	}
}

// intOr writes a number, or null if it is below 0.
func (o *output) intOr(k string, n int64) {
	if n < 0 {
		o.null(k)
		return
	}
	o.int(k, n)
}

// strOr writes a string, or null if it is empty.
func (o *output) strOr(k, s string) {
	if s == "" {
		o.null(k)
		return
	}
	o.str(k, s)
}
