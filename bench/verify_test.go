package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tidemark-log/tidemark/record"
)

// victimEnv tells the child what kind of victim to be.
const victimEnv = "TIDEMARK_BENCH_TEST_VICTIM"

// TestMain lets the test binary be the child that kills itself.
func TestMain(m *testing.M) {
	if spec := os.Getenv(childEnv); spec != "" {
		open := openFile(nil)
		switch os.Getenv(victimEnv) {
		case "log":
			open = openLog
		case "lives":
			os.Exit(0)
		}
		fmt.Fprintln(os.Stderr, runVictim(spec, open, os.Stdout))
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// fileLog is the slowest log there could be: a length, a value, one write each.
// lie, if set, changes what a reader is told.
type fileLog struct {
	lie func(values [][]byte) [][]byte

	mu     sync.Mutex
	f      *os.File
	always bool
	values [][]byte
}

func openFile(lie func([][]byte) [][]byte) opener {
	return func(dir, sync string) (partitionLog, error) {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return nil, err
		}
		f, err := os.OpenFile(filepath.Join(dir, "data"), os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o644)
		if err != nil {
			return nil, err
		}
		b, err := io.ReadAll(f)
		if err != nil {
			return nil, err
		}
		l := &fileLog{lie: lie, f: f, always: sync == "always"}
		for len(b) >= 4 {
			n := 4 + binary.LittleEndian.Uint32(b)
			l.values = append(l.values, b[4:n:n])
			b = b[n:]
		}
		if lie != nil {
			l.values = lie(l.values)
		}
		return l, nil
	}
}

func (l *fileLog) Append(recs ...record.Record) (int64, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	base := len(l.values)
	var b []byte
	for _, r := range recs {
		b = binary.LittleEndian.AppendUint32(b, uint32(len(r.Value)))
		b = append(b, r.Value...)
		l.values = append(l.values, nil)
	}
	if _, err := l.f.Write(b); err != nil {
		return 0, err
	}
	if l.always {
		return int64(base), l.f.Sync()
	}
	return int64(base), nil
}

func (l *fileLog) Get(offset int64, buf []byte) (record.Record, error) {
	if offset < 0 || offset >= int64(len(l.values)) {
		return record.Record{}, errors.New("out of range")
	}
	return record.Record{Offset: offset, Value: append(buf[:0], l.values[offset]...)}, nil
}

func (l *fileLog) Records(from int64) iter.Seq2[record.Record, error] {
	return func(yield func(record.Record, error) bool) {
		for i := from; i < int64(len(l.values)); i++ {
			if !yield(record.Record{Offset: i, Value: l.values[i]}, nil) {
				return
			}
		}
	}
}

func (l *fileLog) LogStartOffset() int64 { return 0 }
func (l *fileLog) LogEndOffset() int64   { return int64(len(l.values)) }
func (l *fileLog) Sync() error           { return l.f.Sync() }
func (l *fileLog) Close() error          { return l.f.Close() }

// swap, drop and the like are what a broken log could do between an
// acknowledgement and the reading back.
func at(n int, f func(v [][]byte, i int) [][]byte) func([][]byte) [][]byte {
	return func(v [][]byte) [][]byte {
		if len(v) <= n {
			return v
		}
		return f(v, n)
	}
}

var lies = []struct {
	name string
	lie  func([][]byte) [][]byte
	want string // in the error
}{
	{"missing", at(7, func(v [][]byte, i int) [][]byte { return append(v[:i:i], v[i+1:]...) }), "found writer 0 record 8"},
	{"last missing", at(7, func(v [][]byte, i int) [][]byte { return v[:len(v)-1] }), "were acknowledged"},
	{"repeated", at(7, func(v [][]byte, i int) [][]byte { return append(v[:i+1:i+1], v[i:]...) }), "found writer 0 record 7"},
	{"swapped", at(7, func(v [][]byte, i int) [][]byte { v[i], v[i-1] = v[i-1], v[i]; return v }), "found writer 0 record 7"},
	{"last altered", at(7, func(v [][]byte, i int) [][]byte { v[i][len(v[i])-1] ^= 1; return v }), "contents differ"},
	{"first byte behind the stamp altered", at(7, func(v [][]byte, i int) [][]byte { v[i][stampBytes] ^= 1; return v }), "contents differ"},
	{"stamp altered", at(7, func(v [][]byte, i int) [][]byte { v[i][0] ^= 1; return v }), "found writer 0 record 6"},
	{"short", at(7, func(v [][]byte, i int) [][]byte { v[i] = v[i][:len(v[i])-1]; return v }), "99 bytes, want 100"},
	{"without a stamp", at(7, func(v [][]byte, i int) [][]byte { v[i] = v[i][:stampBytes-1]; return v }), "7 bytes, want 100"},
	{"of a writer that is none", at(7, func(v [][]byte, i int) [][]byte { v[i][stampBytes-1] = 1; return v }), "want below"},
}

// Every cell notices every lie; without one, every cell passes.
func TestVerify(t *testing.T) {
	cells := []*cell{
		{name: "append", kind: "append", sync: "never", size: 100, batch: 10, writers: 1, run: runAppend},
		{name: "scan", kind: "scan", size: 100, batch: 10, writers: 1, run: runScan},
		{name: "point", kind: "point", size: 100, batch: 10, writers: 1, run: runPoint},
		{name: "point-first", kind: "point-first", size: 100, batch: 10, writers: 1, run: runPoint},
		{name: "reopen-closed", kind: "reopen-closed", size: 100, batch: 10, writers: 1, run: runReopenClosed},
		{name: "reopen-killed", kind: "reopen-killed", size: 100, batch: 10, writers: 1, run: runReopenKilled},
	}
	for _, c := range cells {
		t.Run(c.name+"/truth", func(t *testing.T) {
			s, err := c.run(testBench(t, openFile(nil)), c)
			if err != nil {
				t.Fatal(err)
			}
			if s.records < 10 || s.elapsed <= 0 {
				t.Errorf("%d records in %v; want some of both", s.records, s.elapsed)
			}
		})
		for _, l := range lies {
			t.Run(c.name+"/"+l.name, func(t *testing.T) {
				_, err := c.run(testBench(t, openFile(l.lie)), c)
				if err == nil || !strings.Contains(err.Error(), l.want) {
					t.Errorf("error %v; want one with %q", err, l.want)
				}
			})
		}
	}
}

// A log that is intact when its dataset is made and lies later is caught by the
// timed read itself, stamps and contents alike.
func TestVerify_timedReads(t *testing.T) {
	for _, tc := range []struct {
		kind string
		run  func(*bench, *cell) (sample, error)
	}{{"scan", runScan}, {"point", runPoint}, {"point-first", runPoint}} {
		for _, alter := range []int{1, 99} {
			c := &cell{kind: tc.kind, size: 100, batch: 1, writers: 1, run: tc.run}
			b := testBench(t, openFile(nil))
			if _, err := c.run(b, c); err != nil {
				t.Fatal(err)
			}
			b.open = openFile(func(v [][]byte) [][]byte {
				for i := range v {
					v[i][alter] ^= 0x80
				}
				return v
			})
			if _, err := c.run(b, c); err == nil {
				t.Errorf("%s, byte %d altered: no error", tc.kind, alter)
			}
		}
	}
}

// Two values of a batch share their memory, so the first is written with the
// second's stamp: whoever counts it without reading it back does not notice.
func TestVerify_appends(t *testing.T) {
	for _, lp := range append([]loop{"append"}, appendLoops...) {
		b := testBench(t, openFile(nil))
		b.vals[100] = newValues(100)
		b.vals[100].pool[1] = b.vals[100].pool[0]
		c := &cell{kind: string(lp), sync: "never", size: 100, batch: 2, writers: 1, run: runBareAppend}
		if lp == "append" {
			c.run = runAppend
		}
		if _, err := c.run(b, c); err == nil || !strings.Contains(err.Error(), "record 0: found writer 0 record 1") {
			t.Errorf("%s: error %v; want that record 0 is record 1", lp, err)
		}
	}
}

// Sixteen writers' records may come in any order between writers, in none but
// theirs within one.
func TestVerify_writers(t *testing.T) {
	const writers = 3
	vals := newValues(32)
	log := func(order ...int) (values [][]byte, acked []int64) {
		acked = make([]int64, writers)
		for _, w := range order {
			values = append(values, slices.Clone(vals.at(w, acked[w])))
			acked[w]++
		}
		return values, acked
	}
	for _, tc := range []struct {
		name   string
		break_ func(v [][]byte, acked []int64) [][]byte
		ok     bool
	}{
		{"interleaved", func(v [][]byte, _ []int64) [][]byte { return v }, true},
		{"two writers' neighbours swapped", func(v [][]byte, _ []int64) [][]byte { v[0], v[1] = v[1], v[0]; return v }, true},
		{"one writer's records swapped", func(v [][]byte, _ []int64) [][]byte { v[0], v[2] = v[2], v[0]; return v }, false},
		{"an acknowledged record more", func(v [][]byte, acked []int64) [][]byte { acked[2]++; return v }, false},
		{"a record nobody was told of", func(v [][]byte, acked []int64) [][]byte { acked[2]--; return v }, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			v, acked := log(0, 1, 0, 2, 2, 1)
			v = tc.break_(v, acked)
			c := newChecker(vals, writers)
			var err error
			for _, x := range v {
				err = errors.Join(err, c.record(x))
			}
			if err = errors.Join(err, c.done(acked)); (err == nil) != tc.ok {
				t.Errorf("error %v; want one: %v", err, !tc.ok)
			}
		})
	}
}

// gapLog shifts the offsets a reader sees.
type gapLog struct{ partitionLog }

func (l gapLog) Records(from int64) iter.Seq2[record.Record, error] {
	return func(yield func(record.Record, error) bool) {
		for r, err := range l.partitionLog.Records(from) {
			if r.Offset > 3 {
				r.Offset++
			}
			if !yield(r, err) {
				return
			}
		}
	}
}

func TestVerify_offsets(t *testing.T) {
	open := func(dir, sync string) (partitionLog, error) {
		l, err := openFile(nil)(dir, sync)
		return gapLog{l}, err
	}
	c := &cell{kind: "append", sync: "never", size: 100, batch: 1, writers: 1}
	if _, err := runAppend(testBench(t, open), c); err == nil || !strings.Contains(err.Error(), "offset 5, want 4") {
		t.Errorf("error %v; want the gap named", err)
	}
}

// The child is killed, not ended: a victim that ends by itself is an error.
func TestReopenKilled_childThatLives(t *testing.T) {
	t.Setenv(victimEnv, "lives")
	c := &cell{kind: "reopen-killed", size: 100, batch: 1, writers: 1}
	if _, err := runReopenKilled(testBench(t, openFile(nil)), c); err == nil || !strings.Contains(err.Error(), "want it killed") {
		t.Errorf("error %v; want that the child was not killed", err)
	}
}

func testBench(t *testing.T, open opener) *bench {
	b := newBench(t.TempDir(), open, time.Millisecond, 1<<20)
	t.Cleanup(func() {
		if err := b.close(); err != nil {
			t.Error(err)
		}
	})
	return b
}
