package main

import (
	"bytes"
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/tidemark-log/tidemark/internal/checkpoint"
	"github.com/tidemark-log/tidemark/record"
)

// bounds is a range of numbers, both ends in it.
type bounds struct{ from, to int64 }

var unbounded = bounds{math.MinInt64, math.MaxInt64}

func (b bounds) has(n int64) bool { return b.from <= n && n <= b.to }

// parseBounds reads FROM, FROM..TO, FROM.. or ..TO, for plain numbers with a
// colon as well. FROM alone is from there on, or only that number.
func parseBounds(flag, s string, alone bool, number func(string) (int64, error)) (bounds, error) {
	b := unbounded
	if s == "" {
		return b, nil
	}
	from, to, pair := strings.Cut(s, "..")
	if !pair && strings.Trim(s, "-0123456789:") == "" {
		from, to, pair = strings.Cut(s, ":")
	}
	if !pair && alone {
		to = from
	}
	for _, end := range []struct {
		text string
		n    *int64
	}{{from, &b.from}, {to, &b.to}} {
		if end.text == "" {
			continue
		}
		n, err := number(end.text)
		if err != nil {
			return b, fmt.Errorf("--%s %s: want FROM..TO, each of them may be missing: %w", flag, s, err)
		}
		*end.n = n
	}
	if b.from > b.to {
		return b, fmt.Errorf("--%s %s: the end lies before the beginning", flag, s)
	}
	return b, nil
}

func parseNumber(s string) (int64, error) { return strconv.ParseInt(s, 10, 64) }

// parseText reads a key or header as it is, or in quotes as dump prints it.
func parseText(s string) ([]byte, error) {
	if !strings.HasPrefix(s, `"`) {
		return []byte(s), nil
	}
	u, err := strconv.Unquote(s)
	return []byte(u), err
}

// selection says which batches and records of a log are shown.
type selection struct {
	offsets, times, epochs, pids bounds
	key                          []byte // nil: any
	header                       string // name; empty: any
	headerValue                  []byte // nil: any

	limit, tail int64 // 0: no bound
	position    int64 // of the file: only the batch that holds it; -1: any
	hex         bool
}

// selectFlags adds the flags of a selection. What they say is read by the
// function that it returns.
func selectFlags(c *cobra.Command, s *selection) (parse func() error) {
	var offsets, times, epochs, pids, key, header string
	f := c.Flags()
	f.StringVar(&offsets, "offset", "", "only offsets `FROM[:TO]`, both inclusive")
	f.StringVar(&times, "time", "", "only records of the times `FROM[..TO]`, in ms since 1970 or as 2006-01-02T15:04:05Z")
	f.StringVar(&epochs, "epoch", "", "only batches of the leader `epoch`, or of FROM..TO")
	f.StringVar(&pids, "pid", "", "only batches of the producer `id`, or of FROM..TO")
	f.StringVar(&key, "key", "", "only records with the key `TEXT`, as it is or quoted as dump prints it")
	f.StringVar(&header, "header", "", "only records with a header `NAME[=VALUE]`")
	f.Int64Var(&s.limit, "limit", 0, "stop after `N` records with --records, else batches or entries")
	f.Int64Var(&s.tail, "tail", 0, "only the last `N` records with --records, else batches, of each log")
	f.BoolVar(&s.hex, "hex", false, "show one batch, the first one selected, byte by byte")
	f.Int64Var(&s.position, "position", -1, "only the batch that holds the `byte` of the file")
	return func() (err error) {
		if s.offsets, err = parseBounds("offset", offsets, false, parseNumber); err != nil {
			return err
		}
		if s.times, err = parseBounds("time", times, false, parseTime); err != nil {
			return err
		}
		if s.epochs, err = parseBounds("epoch", epochs, true, parseNumber); err != nil {
			return err
		}
		if s.pids, err = parseBounds("pid", pids, true, parseNumber); err != nil {
			return err
		}
		if f.Changed("key") {
			if s.key, err = parseText(key); err != nil {
				return fmt.Errorf("--key %s: %w", key, err)
			}
		}
		if f.Changed("header") {
			name, value, ok := strings.Cut(header, "=")
			if name == "" {
				return fmt.Errorf("--header %s: want NAME or NAME=VALUE", header)
			}
			s.header = name
			if ok {
				if s.headerValue, err = parseText(value); err != nil {
					return fmt.Errorf("--header %s: %w", header, err)
				}
			}
		}
		if s.limit < 0 || s.tail < 0 || s.position < -1 {
			return fmt.Errorf("--limit %d --tail %d --position %d: want no negative numbers", s.limit, s.tail, s.position)
		}
		return nil
	}
}

// onlyLogs reports whether other files than logs have no place in the output.
func (s *selection) onlyLogs() bool {
	return s.deep() || s.epochs != unbounded || s.pids != unbounded || s.tail > 0 || s.limit > 0 || s.position >= 0 || s.hex
}

// deep reports whether it takes the records of a batch to tell.
func (s *selection) deep() bool {
	return s.offsets != unbounded || s.times != unbounded || s.key != nil || s.header != ""
}

// batch is false if no record of the batch can be selected.
func (s *selection) batch(pos, size int64, b record.Batch) bool {
	if !s.at(pos, size) || !s.epochs.has(int64(b.LeaderEpoch())) || !s.pids.has(b.ProducerID()) {
		return false
	}
	// An append time is that of every record, a create time at most the largest.
	if b.MaxTimestamp() < s.times.from || b.TimestampType() == record.LogAppendTime && !s.times.has(b.MaxTimestamp()) {
		return false
	}
	return b.LastOffset() >= s.offsets.from && b.BaseOffset() <= s.offsets.to
}

// at reports whether a stretch of the file is selected.
func (s *selection) at(pos, size int64) bool {
	return s.position < 0 || pos <= s.position && s.position < pos+size
}

func (s *selection) record(r *record.Record) bool {
	if !s.offsets.has(r.Offset) || !s.times.has(r.Timestamp) || s.key != nil && (r.Key == nil || !bytes.Equal(r.Key, s.key)) {
		return false
	}
	return s.header == "" || slices.ContainsFunc(r.Headers, func(h record.Header) bool {
		return string(h.Key) == s.header && (s.headerValue == nil || h.Value != nil && bytes.Equal(h.Value, s.headerValue))
	})
}

// legacy is what batch and record say of a message of an older format.
func (s *selection) legacy(pos, size int64, m *record.LegacyMessage) bool {
	r := record.Record{Offset: m.Offset, Timestamp: m.Timestamp, Key: m.Key, Value: m.Value}
	return s.at(pos, size) && s.epochs.has(record.NoLeaderEpoch) && s.pids.has(record.NoProducer) && s.record(&r)
}

// take counts one more selected thing. It is false for one that is not to be
// shown: before the tail, or behind the limit.
func (d *dumper) take() bool {
	if d.skip > 0 {
		d.skip--
		return false
	}
	if d.left == 0 {
		return false
	}
	d.left--
	return true
}

// full reports that no more is to be shown.
func (d *dumper) full() bool { return d.left == 0 }

// selected counts what is selected of a batch: its records, or with one the
// batch.
func (d *dumper) selected(sp *span, b record.Batch) (n int64) {
	switch {
	case !d.sel.batch(sp.pos, sp.size, b):
		return 0
	case !d.sel.deep() && !d.records:
		return 1
	case !d.sel.deep():
		return max(0, int64(b.Count()))
	}
	d.reader.Reset(b)
	for d.reader.Next() {
		if d.sel.record(d.reader.Record()) {
			if n++; !d.records {
				break
			}
		}
	}
	return n
}

// selectedLegacy is selected for a message of an older format.
func (d *dumper) selectedLegacy(sp *span) (n int64) {
	for m, err := range record.LegacyMessages(sp.data, d.maxPlain) {
		if err != nil {
			break
		}
		if d.sel.legacy(sp.pos, sp.size, &m) {
			if n++; !d.records {
				break
			}
		}
	}
	return n
}

// logs dumps the logs of a partition, in order, as far as they can hold what
// is selected.
func (d *dumper) logs(paths []string, st folderState) error {
	from := make([]int64, len(paths))
	if d.sel.tail > 0 {
		left := d.left
		first, pos, skip, err := d.tailOf(paths, st)
		if err != nil {
			return err
		}
		paths, from = paths[first:], from[first:]
		if len(from) > 0 {
			from[0] = pos
		}
		d.skip, d.left = skip, min(left, d.sel.tail)
		had := d.left
		defer func() { d.skip, d.left = 0, left-(had-d.left) }()
	}
	for i, path := range paths {
		_, f, _ := kindOf(path)
		if i+1 < len(paths) {
			if _, next, _ := kindOf(paths[i+1]); next.Base <= d.sel.offsets.from {
				continue
			}
		}
		if f.Base > d.sel.offsets.to || d.full() {
			break
		}
		if err := d.log(path, kindLog, f.Base, from[i], st.open(path)); err != nil {
			d.vanished(err)
		}
	}
	return nil
}

// tailOf finds out where the last selected things of a partition begin: in
// which of its logs, at which byte, and how many before them are to be skipped
// from there. It reads no more logs than it must.
func (d *dumper) tailOf(paths []string, st folderState) (first int, pos, skip int64, err error) {
	type part struct{ pos, n int64 }
	need := d.sel.tail
	for first = len(paths) - 1; first >= 0; first-- {
		path := paths[first]
		_, name, _ := kindOf(path)
		s, f, err := d.newScanner(path, name.Base, st.open(path))
		if err != nil {
			d.vanished(err)
			continue
		}
		var parts []part // parts[head:] is what it ends with
		head, sum := 0, int64(0)
		for {
			sp, ok := s.next()
			if !ok {
				break
			}
			n := int64(0)
			switch sp.kind {
			case spanBatch:
				n = d.selected(&sp, record.Batch(sp.data))
			case spanLegacy:
				n = d.selectedLegacy(&sp)
			}
			if n == 0 {
				continue
			}
			parts, sum = append(parts, part{sp.pos, n}), sum+n
			for ; sum-parts[head].n >= need; head++ {
				sum -= parts[head].n
			}
			if head > 1000 && head > len(parts)/2 {
				parts, head = append(parts[:0], parts[head:]...), 0
			}
		}
		f.Close()
		if s.err != nil {
			return 0, 0, 0, fmt.Errorf("read %s at byte %d: %w", path, s.pos, s.err)
		}
		if sum >= need {
			return first, parts[head].pos, sum - need, nil
		}
		need -= sum
	}
	return 0, 0, 0, nil
}

// startFor returns a position in a log from which on the batch that holds
// offset is found: that of an index entry, if the batch there agrees with it,
// else 0.
func (e *env) startFor(s *scanner, path string, base, offset int64) int64 {
	_, name, err := kindOf(path)
	if err != nil || offset <= base {
		return 0
	}
	name.Kind = checkpoint.Index
	r, err := openEntries(filepath.Join(filepath.Dir(path), name.String()), base, false)
	if err != nil {
		return 0
	}
	defer r.close()
	// The last used entry at or below offset.
	low, high := int64(0), r.usedFast()
	for low < high {
		mid := (low + high) / 2
		if x, ok := r.at(mid); ok && x.a <= offset {
			low = mid + 1
		} else {
			high = mid
		}
	}
	x, ok := r.at(low - 1)
	if !ok || x.b <= 0 || x.b >= s.size {
		return 0
	}
	probe := &scanner{f: s.f, size: s.size, maxBatch: s.maxBatch, expect: base, pos: x.b}
	if sp, ok := probe.next(); ok && sp.kind == spanBatch && record.Batch(sp.data).BaseOffset() <= x.a {
		return x.b
	}
	return 0
}
