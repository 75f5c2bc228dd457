package main

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/tidemark-log/tidemark/internal/checkpoint"
	"github.com/tidemark-log/tidemark/record"
)

// query is what find looks for. Offset and time say where to begin; key and
// producer, which of the records from there on.
type query struct {
	offset, time, pid       int64
	byOffset, byTime, byPID bool
	key                     []byte
	byKey                   bool
	limit                   int64 // hits in a partition; 0 is all
}

// hit is a record that was looked for, or the batch of a producer.
type hit struct {
	file      string
	pos, size int64
	base      int64
	last      int64
	count     int64
	epoch     int32
	pid       int64
	record    int64 // its number in the batch; -1 if the batch is meant
	offset    int64
	timestamp int64
	key       []byte // valid until the search goes on
}

// at compares where two hits are.
func (h *hit) at(o *hit) bool { return h.file == o.file && h.pos == o.pos && h.record == o.record }

// finder is the find subcommand.
type finder struct {
	*env
	query
	noIndex bool
	reader  record.Reader
}

func findCommand(e *env, code *int) *cobra.Command {
	f := &finder{env: e}
	var at, key, key64 string
	c := &cobra.Command{
		Use:   "find PATH...",
		Short: "Say where the record of an offset, time, key or producer is",
		Long: `Say in which file, at which position, in which batch a record is, and how it
was found. PATH is a partition folder or a data folder.

--offset and --time find the first record at or behind them, by the indexes
where those are sound. --key and --pid find every record with that key and every
batch of that producer; with --offset or --time, from there on.`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(c *cobra.Command, paths []string) (err error) {
			f.byOffset, f.byTime, f.byPID = c.Flags().Changed("offset"), c.Flags().Changed("time"), c.Flags().Changed("pid")
			f.byKey = c.Flags().Changed("key") || c.Flags().Changed("key-base64")
			switch {
			case f.byOffset && f.byTime:
				return fmt.Errorf("--offset and --time: want one of them")
			case !f.byOffset && !f.byTime && !f.byPID && !f.byKey:
				return fmt.Errorf("nothing to find: want --offset, --time, --key or --pid")
			case f.byOffset && f.offset < 0, f.byPID && f.pid < 0, f.limit < 0:
				return fmt.Errorf("--offset, --pid and --limit: want numbers from 0 on")
			}
			if f.byTime {
				if f.time, err = parseTime(at); err != nil {
					return err
				}
			}
			f.key = []byte(key)
			if c.Flags().Changed("key-base64") {
				if f.key, err = base64.StdEncoding.DecodeString(key64); err != nil {
					return fmt.Errorf("--key-base64 %q: %w", key64, err)
				}
			}
			e.progress = newProgress(e.stderr, paths)
			for _, p := range dataFolders(paths) {
				e.eachPartition("find", p, f.partition)
			}
			e.progress.clear()
			*code = e.exitCode()
			return nil
		},
	}
	c.Flags().Int64Var(&f.offset, "offset", 0, "the record at `OFFSET`, or the first one behind it")
	c.Flags().StringVar(&at, "time", "", "the first record of that `TIME` or later: milliseconds since 1970 or RFC 3339")
	c.Flags().StringVar(&key, "key", "", "records with that `KEY`")
	c.Flags().StringVar(&key64, "key-base64", "", "records with the key of these `BYTES` in base64")
	c.Flags().Int64Var(&f.pid, "pid", 0, "batches of the producer with that `ID`")
	c.Flags().BoolVar(&f.noIndex, "no-index", false, "read all of the log, and say where the index would have led")
	c.Flags().Int64Var(&f.limit, "limit", 0, "at most `N` hits a partition; 0 is all")
	return c
}

// parseTime reads a time as milliseconds since 1970.
func parseTime(s string) (int64, error) {
	if ms, err := strconv.ParseInt(s, 10, 64); err == nil {
		return ms, nil
	}
	t, err := time.Parse(time.RFC3339Nano, s)
	if err != nil {
		return 0, fmt.Errorf("time %q: want milliseconds since 1970 or a form like 2026-11-29T20:00:00Z", s)
	}
	return t.UnixMilli(), nil
}

// first reports whether a single record is looked for.
func (q *query) first() bool { return !q.byKey && !q.byPID }

// searched is how a search went.
type searched struct {
	found     int64
	start     string // file and position at which reading began
	startPos  int64
	offsetAt  int64  // entry of the offset index that led there, -1 if none
	timeAt    int64  // entry of the time index, -1 if none
	distrust  string // why an index was not followed
	bytesRead int64
}

func (f *finder) partition(p *partitionDir) {
	var led *hit
	var indexed searched
	if f.noIndex {
		quiet := *f.env // what is damaged is said by the search that counts
		quiet.out, quiet.progress = newOutput(discard{}, true), nil
		q := *p
		q.env = &quiet
		g := &finder{env: &quiet, query: f.query}
		indexed = g.search(&q, true, func(h *hit) bool {
			led = new(*h)
			return false
		})
	}
	var got *hit
	s := f.search(p, !f.noIndex, func(h *hit) bool {
		if got == nil {
			got = new(*h)
		}
		f.print(h)
		return true
	})
	o := f.out
	o.open("search")
	o.str("file", p.dir)
	o.int("found", s.found)
	o.intOr("offsetIndexEntry", s.offsetAt)
	o.intOr("timeIndexEntry", s.timeAt)
	o.strOr("startFile", s.start)
	if s.start != "" {
		o.int("startPosition", s.startPos)
	} else {
		o.null("startPosition")
	}
	o.int("bytesRead", s.bytesRead)
	o.strOr("distrusted", s.distrust)
	switch {
	case !f.noIndex:
		o.null("indexLeads")
	case indexed.distrust != "":
		o.str("indexLeads", "nowhere: "+indexed.distrust)
	case (got == nil) != (led == nil) || got != nil && !got.at(led):
		f.damaged = true
		if led == nil {
			o.str("indexLeads", "elsewhere: to nothing")
		} else {
			o.str("indexLeads", fmt.Sprintf("elsewhere: to offset %d at position %d of %s", led.offset, led.pos, led.file))
		}
	default:
		o.str("indexLeads", "to the same")
	}
	o.close()
}

// discard takes output that nobody reads.
type discard struct{}

func (discard) Write(b []byte) (int, error) { return len(b), nil }

func (f *finder) print(h *hit) {
	o := f.out
	o.open("found")
	o.str("file", h.file)
	o.int("position", h.pos)
	o.int("size", h.size)
	if o.json {
		o.int("baseOffset", h.base)
		o.int("lastOffset", h.last)
	} else {
		o.key("offsets")
		o.b = appendRange(o.b, h.base, h.last)
	}
	o.int("count", h.count)
	o.int("leaderEpoch", int64(h.epoch))
	if o.json || h.pid >= 0 {
		o.int("producerId", h.pid)
	}
	o.intOr("record", h.record)
	o.int("offset", h.offset)
	o.int("timestamp", h.timestamp)
	switch {
	case h.record < 0:
		o.null("key")
	case o.json:
		o.key("key")
		o.b = appendBase64(o.b, h.key)
	default:
		o.key("key")
		o.b = appendQuoted(o.b, h.key)
	}
	o.close()
}

// search walks the batches from where the index leads, or from the front, and
// calls each for what fits until that answers false.
func (f *finder) search(p *partitionDir, useIndex bool, each func(*hit) bool) (s searched) {
	s.offsetAt, s.timeAt = -1, -1
	c := p.cursor(0)
	defer c.close()
	if useIndex {
		f.lead(p, c, &s)
	}
	begun := !f.byTime
	for {
		sp, ok := c.next()
		if !ok {
			break
		}
		if s.start == "" {
			s.start, s.startPos = c.log.path, sp.pos
		}
		if f.byOffset && lastOffset(&sp) < f.offset || !begun && maxTimestamp(&sp) < f.time || f.byPID && producerID(&sp) != f.pid {
			continue
		}
		h := hit{file: c.log.path, pos: sp.pos, size: sp.size, base: record.Batch(sp.data).BaseOffset(), last: lastOffset(&sp),
			epoch: leaderEpoch(&sp), pid: producerID(&sp), record: -1, count: 1, timestamp: maxTimestamp(&sp)}
		if sp.kind == spanBatch {
			h.count = int64(record.Batch(sp.data).Count())
		}
		h.offset = h.base
		stop := false
		take := func() {
			s.found++
			stop = !each(&h) || f.first() || s.found == f.limit
		}
		if f.byPID && !f.byKey && begun {
			take()
		} else {
			err := f.eachRecord(&f.reader, &sp, func(i int, r *record.Record) bool {
				begun = begun || r.Timestamp >= f.time
				if !begun || f.byOffset && r.Offset < f.offset || f.byKey && (r.Key == nil || !bytes.Equal(r.Key, f.key)) {
					return true
				}
				if f.byPID && !f.byKey {
					take()
					return false
				}
				h.record, h.offset, h.timestamp, h.key = int64(i), r.Offset, r.Timestamp, r.Key
				take()
				return !stop
			})
			if err != nil {
				r := reasonOf(err)
				f.errorLine(c.log.path, sp.pos+max(r.at, 0), r)
			}
		}
		if stop {
			break
		}
	}
	s.bytesRead = c.read
	return s
}

// lead puts the cursor where the indexes say that reading may begin. What an
// index says is compared with the batch that it names; one that is wrong is not
// followed, and s says why.
func (f *finder) lead(p *partitionDir, c *cursor, s *searched) {
	switch {
	case len(p.logs) == 0:
	case f.byOffset:
		i := 0
		for i+1 < len(p.logs) && p.logs[i+1].base <= f.offset {
			i++
		}
		f.leadTo(p, c, s, i, f.offset)
	case f.byTime:
		for i := range p.logs {
			l := &p.logs[i]
			e, at, last, why := f.floor(p, l, true, func(e entry) bool { return e.a < f.time })
			switch {
			case why != "":
				s.distrust = why
				c.seek(i, 0)
				return
			case at >= 0 && last && i+1 < len(p.logs) && !l.live:
				continue // the last entry has the segment's largest time
			case at < 0:
				c.seek(i, 0)
				return
			}
			s.timeAt = at
			f.leadTo(p, c, s, i, e.b)
			return
		}
	}
}

// leadTo puts the cursor at or before the batch that has offset, in log i.
func (f *finder) leadTo(p *partitionDir, c *cursor, s *searched, i int, offset int64) {
	e, at, _, why := f.floor(p, &p.logs[i], false, func(e entry) bool { return e.a <= offset })
	if why != "" {
		s.distrust, s.timeAt = why, -1
	}
	if at < 0 || why != "" {
		c.seek(i, 0)
		return
	}
	s.offsetAt = at
	c.seek(i, e.b)
}

// floor returns the last entry of an index of which below is true and its
// number, -1 if there is none, and whether it is the last of all. Entries are
// read in order as long as they ascend, so that neither zeros nor what a
// truncation left behind are taken for one. why says that the index is wrong.
func (f *finder) floor(p *partitionDir, l *logFile, times bool, below func(entry) bool) (got entry, at int64, last bool, why string) {
	at = -1
	kind := checkpoint.Index
	if times {
		kind = checkpoint.TimeIndex
	}
	path := l.beside(kind)
	if path == "" {
		return got, at, false, ""
	}
	r, err := openEntries(path, l.base, times)
	if err != nil {
		return got, at, false, err.Error()
	}
	defer r.close()
	var prev entry
	for i := int64(0); ; i++ {
		e, ok := r.at(i)
		if !ok || r.tailAt(i) {
			break
		}
		if e.b < 0 || i > 0 && (e.a <= prev.a || e.b <= prev.b) || !times && e.a < l.base {
			if !l.live {
				return got, -1, false, fmt.Sprintf("%s: entry %d does not ascend", path, i)
			}
			break // left behind by a truncation
		}
		prev = e
		if last = below(e); !last {
			break
		}
		got, at = e, i
	}
	if r.err != nil {
		return got, -1, false, r.err.Error()
	}
	if at < 0 {
		return got, at, false, ""
	}
	if why := f.checkEntry(p, l, times, got); why != "" {
		return got, -1, false, fmt.Sprintf("%s: entry %d: %s", path, at, why)
	}
	return got, at, last, ""
}

// checkEntry compares an entry with the batch that it names.
func (f *finder) checkEntry(p *partitionDir, l *logFile, times bool, e entry) (why string) {
	pos := e.b
	if times {
		o, at, _, why := f.floor(p, l, false, func(x entry) bool { return x.a <= e.b })
		if why != "" {
			return why
		}
		if pos = 0; at >= 0 {
			pos = o.b
		}
	}
	scan, file, err := p.newScanner(l.path, l.base, false)
	if err != nil {
		return err.Error()
	}
	defer file.Close()
	scan.progress = nil
	for scan.pos = pos; ; {
		sp, ok := scan.next()
		if !ok || sp.kind != spanBatch && sp.kind != spanLegacy {
			return fmt.Sprintf("no batch at position %d", scan.pos)
		}
		first := record.Batch(sp.data).BaseOffset()
		switch {
		case !times && (first > e.a || first < l.base):
			return fmt.Sprintf("offset %d at position %d, where offset %d begins", e.a, e.b, first)
		case !times:
			return ""
		case lastOffset(&sp) < e.b:
			continue
		case first > e.b:
			return fmt.Sprintf("no batch has offset %d", e.b)
		case maxTimestamp(&sp) != e.a:
			return fmt.Sprintf("timestamp %d at offset %d, whose batch has %d", e.a, e.b, maxTimestamp(&sp))
		}
		return ""
	}
}
