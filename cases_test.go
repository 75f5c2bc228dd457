package tidemark_test

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tidemark-log/tidemark"
	"github.com/tidemark-log/tidemark/dedupe"
	"github.com/tidemark-log/tidemark/record"
)

// long runs loops as long as the case asks: go test . -long.
var long = flag.Bool("long", false, "run loops and races at the full length of their cases")

var modes = []tidemark.SyncMode{tidemark.Always, tidemark.Interval, tidemark.Never}

func open(t testing.TB, dir string, o tidemark.Options) *tidemark.Log {
	t.Helper()
	l, err := tidemark.Open(dir, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

func closeLog(t testing.TB, l *tidemark.Log) {
	t.Helper()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
}

// rec is the record with number i.
func rec(i int64, size int) tidemark.Record {
	v := fmt.Appendf(nil, "%020d", i)
	for len(v) < size {
		v = append(v, byte(i))
	}
	return tidemark.Record{Timestamp: 1_700_000_000_000 + i, Key: fmt.Append(nil, i), Value: v}
}

func appendTo(t testing.TB, l *tidemark.Log, n int64, size int) {
	t.Helper()
	for end := l.LogEndOffset(); end < n; end++ {
		if base, err := l.Append(rec(end, size)); err != nil || base != end {
			t.Fatalf("append %d = %d, %v", end, base, err)
		}
	}
}

// wrong returns what is not right about a record that rec made, "" if nothing.
func wrong(r tidemark.Record) string {
	want := rec(r.Offset, len(r.Value))
	if !bytes.Equal(r.Key, want.Key) || !bytes.Equal(r.Value, want.Value) || r.Timestamp != want.Timestamp {
		return fmt.Sprintf("record %d has key %q, value %.30q, timestamp %d", r.Offset, r.Key, r.Value, r.Timestamp)
	}
	return ""
}

// checkAll reads [from, end) in each way there is.
func checkAll(t testing.TB, l *tidemark.Log, from, end int64) {
	t.Helper()
	if d := l.Damage(); d != nil {
		t.Fatalf("damage: %v", d)
	}
	if l.LogStartOffset() != from || l.LogEndOffset() != end {
		t.Fatalf("log [%d, %d); want [%d, %d)", l.LogStartOffset(), l.LogEndOffset(), from, end)
	}
	next := from
	for r, err := range l.Records(from) {
		if err != nil {
			t.Fatal(err)
		}
		if w := wrong(r); w != "" || r.Offset != next {
			t.Fatalf("offset %d at %d: %s", r.Offset, next, w)
		}
		next++
	}
	if next != end {
		t.Fatalf("records end at %d; want %d", next, end)
	}
	for i := from; i < end; i++ {
		r, err := l.Get(i, nil)
		if err != nil || r.Offset != i || wrong(r) != "" {
			t.Fatalf("get %d: %d %v %s", i, r.Offset, err, wrong(r))
		}
	}
	if err := l.Verify(func(e *tidemark.CorruptError) bool { t.Fatalf("Verify: %v", e); return true }); err != nil {
		t.Fatal(err)
	}
}

// TestC031_CloseBesideEverything: Close while appends, syncs and readers run.
// What was acknowledged is there, what came late is ErrClosed, nothing faults.
func TestC031_CloseBesideEverything(t *testing.T) {
	rounds := 30
	if *long {
		rounds = 10000 / len(modes)
	}
	for _, mode := range modes {
		t.Run(mode.String(), func(t *testing.T) {
			root := t.TempDir()
			var dir string
			o := tidemark.Options{Sync: mode, SyncInterval: time.Millisecond, SegmentBytes: 64 << 10}
			var acked atomic.Int64
			for round := range rounds {
				if round%500 == 0 { // before there are too many segments
					dir = filepath.Join(root, fmt.Sprint(round))
					acked.Store(0)
				}
				l := open(t, dir, o)
				before := l.LogEndOffset()
				if before < acked.Load() {
					t.Fatalf("round %d: log ends at %d, %d was acknowledged", round, before, acked.Load())
				}
				var wg sync.WaitGroup
				for range 2 {
					wg.Go(func() {
						for {
							base, err := l.Append(tidemark.Record{Value: make([]byte, 300)})
							if errors.Is(err, tidemark.ErrClosed) {
								return
							}
							if err != nil {
								t.Error(err)
								return
							}
							for {
								old := acked.Load()
								if old > base || acked.CompareAndSwap(old, base+1) {
									break
								}
							}
						}
					})
				}
				wg.Go(func() {
					ack, err := l.AppendAsync(tidemark.Record{Value: make([]byte, 300)})
					if err == nil {
						err = ack.Wait(context.Background())
					}
					if err != nil && !errors.Is(err, tidemark.ErrClosed) {
						t.Error(err)
					}
				})
				wg.Go(func() {
					for _, err := range l.Tail(context.Background(), max(0, before-3)) {
						if err != nil {
							if !errors.Is(err, tidemark.ErrClosed) {
								t.Error(err)
							}
							return
						}
					}
				})
				wg.Go(func() {
					for {
						if err := l.Sync(); err != nil {
							if !errors.Is(err, tidemark.ErrClosed) {
								t.Error(err)
							}
							return
						}
					}
				})
				time.Sleep(time.Duration(round%5) * 300 * time.Microsecond)
				if err := l.Close(); err != nil {
					t.Error(err)
				}
				wg.Wait()
				if t.Failed() {
					return
				}
			}
			l := open(t, dir, o)
			if l.Damage() != nil || l.LogEndOffset() < acked.Load() {
				t.Errorf("damage %v, log ends at %d, %d was acknowledged", l.Damage(), l.LogEndOffset(), acked.Load())
			}
			if err := l.Verify(func(e *tidemark.CorruptError) bool { t.Error(e); return true }); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestEveryMethodAfterClose: each returns ErrClosed, or for what cannot fail the
// last state.
func TestEveryMethodAfterClose(t *testing.T) {
	var w record.Builder
	spec := record.NewSpec()
	batch, err := w.Build([]record.Record{{Timestamp: 1, Value: []byte("v")}}, &spec)
	if err != nil {
		t.Fatal(err)
	}
	ended := func(seq func(func(tidemark.Record, error) bool)) error {
		var last error
		for _, err := range seq {
			last = err
		}
		return last
	}
	for _, mode := range modes {
		for _, kind := range []string{"writer", "read-only", "damaged"} {
			t.Run(mode.String()+"/"+kind, func(t *testing.T) {
				dir := t.TempDir()
				o := tidemark.Options{Sync: mode, SegmentBytes: 4 << 10}
				l := open(t, dir, o)
				appendTo(t, l, 12, 900)
				if kind != "writer" {
					closeLog(t, l)
					if kind == "damaged" {
						flipLast(t, dir)
					}
					o.ReadOnly = kind == "read-only"
					l = open(t, dir, o)
					if (l.Damage() != nil) != (kind == "damaged") {
						t.Fatalf("damage %v", l.Damage())
					}
				}
				var ack tidemark.Ack
				if kind == "writer" {
					if ack, err = l.AppendAsync(rec(12, 10)); err != nil {
						t.Fatal(err)
					}
				}
				view, err := l.View(0, 1<<20)
				if err != nil {
					t.Fatal(err)
				}
				bytesBefore := bytes.Clone(view.Bytes)
				for range 2 {
					if err := l.Close(); err != nil {
						t.Errorf("Close = %v", err)
					}
				}
				if !bytes.Equal(view.Bytes, bytesBefore) {
					t.Error("a view changed with Close")
				}
				view.Release()
				if kind == "writer" {
					// Close made it durable.
					if err := ack.Wait(context.Background()); err != nil {
						t.Errorf("Wait for an append before Close = %v", err)
					}
				}
				_, appendErr := l.Append(rec(0, 1))
				_, noneErr := l.Append()
				_, batchErr := l.AppendBatch(batch)
				_, asyncErr := l.AppendAsync(rec(0, 1))
				_, readErr := l.Read(nil, 0, 1)
				_, viewErr := l.View(0, 1)
				_, getErr := l.Get(0, nil)
				_, getEndErr := l.Get(1000, nil)
				_, _, timeErr := l.OffsetForTime(time.UnixMilli(0))
				for name, err := range map[string]error{
					"Append": appendErr, "Append of nothing": noneErr, "AppendBatch": batchErr, "AppendAsync": asyncErr, "Read": readErr, "View": viewErr,
					"Get": getErr, "Get at the end": getEndErr, "OffsetForTime": timeErr, "Sync": l.Sync(), "DeleteRecords": l.DeleteRecords(0),
					"Verify":  l.Verify(func(*tidemark.CorruptError) bool { return true }),
					"Records": ended(l.Records(0)), "Tail": ended(l.Tail(context.Background(), 0)),
					"Backup": l.Backup(filepath.Join(t.TempDir(), "b")),
				} {
					if !errors.Is(err, tidemark.ErrClosed) {
						t.Errorf("%s after Close = %v; want ErrClosed", name, err)
					}
				}
				if got := l.Stats(); got.LogEndOffset != l.LogEndOffset() || got.Segments == 0 {
					t.Errorf("Stats after Close = %+v", got)
				}
				_, _, _, _, _ = l.LogStartOffset(), l.HighWatermark(), l.SyncedEnd(), l.ID(), l.Damage()
			})
		}
	}
}

// flipLast damages the last batch of the last segment of a closed log.
func flipLast(t testing.TB, dir string) {
	t.Helper()
	logs, _ := filepath.Glob(filepath.Join(dir, "*.log"))
	b, err := os.ReadFile(logs[len(logs)-1])
	if err != nil || len(b) == 0 {
		t.Fatal(err, len(b))
	}
	b[len(b)-5] ^= 1
	if err := os.WriteFile(logs[len(logs)-1], b, 0o644); err != nil {
		t.Fatal(err)
	}
}

// TestDamagedAndReadOnly: neither takes writes, and nothing waits for ever for a
// sync that nobody does.
func TestDamagedAndReadOnly(t *testing.T) {
	for _, kind := range []string{"read-only", "read-only, unclean", "damaged"} {
		t.Run(kind, func(t *testing.T) {
			dir := t.TempDir()
			o := tidemark.Options{Sync: tidemark.Never, SegmentBytes: 8 << 10}
			l := open(t, dir, o)
			appendTo(t, l, 20, 900)
			var want error
			switch kind {
			case "read-only":
				closeLog(t, l)
				o.ReadOnly, want = true, tidemark.ErrReadOnly
			case "read-only, unclean": // beside the writer
				o.ReadOnly, want = true, tidemark.ErrReadOnly
			default:
				closeLog(t, l)
				flipLast(t, dir)
				want = tidemark.ErrCorrupt
			}
			l = open(t, dir, o)
			done := make(chan error, 1)
			go func() { done <- l.Sync() }()
			select {
			case err := <-done:
				if !errors.Is(err, want) {
					t.Errorf("Sync = %v; want %v", err, want)
				}
			case <-time.After(5 * time.Second):
				t.Fatal("Sync hangs")
			}
			if _, err := l.Append(rec(0, 1)); !errors.Is(err, want) {
				t.Errorf("Append = %v; want %v", err, want)
			}
			if _, err := l.AppendAsync(rec(0, 1)); !errors.Is(err, want) {
				t.Errorf("AppendAsync = %v; want %v", err, want)
			}
			n := 0
			for r, err := range l.Records(0) {
				if err == nil {
					n++
					if w := wrong(r); w != "" {
						t.Error(w)
					}
				} else if !errors.Is(err, tidemark.ErrCorrupt) {
					t.Error(err)
				}
			}
			if n < 19 {
				t.Errorf("%d records served", n)
			}
			b := filepath.Join(t.TempDir(), "b")
			if err := l.Backup(b); kind != "damaged" {
				if err != nil {
					t.Fatalf("Backup = %v", err)
				}
				c := open(t, b, tidemark.Options{})
				checkAll(t, c, 0, 20)
			} else if !errors.Is(err, tidemark.ErrCorrupt) {
				t.Errorf("Backup of a damaged log = %v", err)
			}
			closeLog(t, l)
		})
	}
}

// TestNoGoroutineLeft: Open and Close leave nothing running, whatever happened.
func TestNoGoroutineLeft(t *testing.T) {
	dir := t.TempDir()
	runtime.GC()
	before := runtime.NumGoroutine()
	for i := range 20 {
		for _, mode := range modes {
			l, err := tidemark.Open(filepath.Join(dir, mode.String()), tidemark.Options{Sync: mode, SyncInterval: time.Millisecond})
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(context.Background())
			if i%2 == 0 && l.LogEndOffset() > 0 {
				for _, err := range l.Tail(ctx, l.LogEndOffset()-1) {
					if err != nil {
						t.Fatal(err)
					}
					break
				}
			}
			cancel()
			if _, err := l.Append(rec(0, 10)); err != nil {
				t.Fatal(err)
			}
			if _, err := tidemark.Open(filepath.Join(dir, mode.String()), tidemark.Options{}); !errors.Is(err, tidemark.ErrLocked) {
				t.Fatal(err)
			}
			closeLog(t, l)
		}
	}
	for range 100 {
		if runtime.NumGoroutine() <= before {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	buf := make([]byte, 1<<16)
	t.Errorf("%d goroutines, %d before:\n%s", runtime.NumGoroutine(), before, buf[:runtime.Stack(buf, true)])
}

// TestRecordsAroundDamage: damage in the middle is an error with its place, and
// a loop that goes on gets everything else, each record once.
func TestRecordsAroundDamage(t *testing.T) {
	const n = 60
	for _, size := range []int{40, 900} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			dir := t.TempDir()
			o := tidemark.Options{SegmentBytes: 16 << 10, IndexIntervalBytes: 300, Sync: tidemark.Never}
			l := open(t, dir, o)
			for end := int64(0); end < n; end += 3 {
				if _, err := l.Append(rec(end, size), rec(end+1, size), rec(end+2, size)); err != nil {
					t.Fatal(err)
				}
			}
			closeLog(t, l)
			clean := takeImage(t, dir)
			type place struct {
				file string
				pos  int
				base int64
			}
			var places []place
			for _, f := range slices.Sorted(maps.Keys(clean)) {
				for pos, b := 0, clean[f].data; strings.HasSuffix(f, ".log") && pos < len(b); {
					x := record.Batch(b[pos:])
					places = append(places, place{f, pos, x.BaseOffset()})
					pos += x.Size()
				}
			}
			if len(places) != n/3 {
				t.Fatalf("%d batches", len(places))
			}
			for i, p := range places {
				for _, field := range []int{0, 7, 10, 11, 16, 17, 26, 60, 61, 70} {
					clean.restore(t, dir)
					clean.flip(t, dir, p.file, p.pos+field, 4)
					l := open(t, dir, o)
					for from := int64(0); from < min(n, l.LogEndOffset()); from += 7 {
						var got []int64
						var damage []*tidemark.CorruptError
						for r, err := range l.Records(from) {
							var c *tidemark.CorruptError
							switch {
							case errors.As(err, &c):
								damage = append(damage, c)
							case err != nil:
								t.Fatal(err)
							case wrong(r) != "":
								t.Fatalf("batch %d, byte %d, from %d: %s", i, field, from, wrong(r))
							default:
								got = append(got, r.Offset)
							}
						}
						for offset := from; offset < n; offset++ {
							bad := offset >= p.base && offset < p.base+3
							if slices.Contains(got, offset) == bad {
								t.Fatalf("batch %d at %d, byte %d, records from %d: %v, %v", i, p.base, field, from, got, damage)
							}
						}
						if !slices.IsSorted(got) || len(slices.Compact(slices.Clone(got))) != len(got) {
							t.Fatalf("batch %d, byte %d: %v", i, field, got)
						}
						if d := l.Damage(); d != nil && d.Offset >= l.LogEndOffset() && from < p.base+3 {
							damage = append(damage, d) // the log ends before it
						}
						if want := from < p.base+3; want != (len(damage) > 0) || len(damage) > 1 {
							t.Fatalf("batch %d at %d, byte %d, records from %d: damage %v", i, p.base, field, from, damage)
						}
						if len(damage) == 1 && (damage[0].File != p.file || damage[0].Pos != int64(p.pos)) {
							t.Fatalf("batch %d at %s byte %d, flipped byte %d: %v", i, p.file, p.pos, field, damage[0])
						}
					}
					for offset := range int64(n) {
						r, err := l.Get(offset, nil)
						if bad := offset >= p.base && offset < p.base+3; bad != (errors.Is(err, tidemark.ErrCorrupt) || offset >= l.LogEndOffset()) {
							t.Fatalf("batch %d, byte %d: get %d = %v", i, field, offset, err)
						} else if !bad && (err != nil || r.Offset != offset || wrong(r) != "") {
							t.Fatalf("batch %d, byte %d: get %d = %d, %v", i, field, offset, r.Offset, err)
						}
					}
					l.Close()
				}
			}
		})
	}
}

// image is what a closed log directory holds. It is restored in place: the slot
// of a copy would not count.
type image map[string]fileImage

type fileImage struct {
	data  []byte
	mtime time.Time
}

func takeImage(t testing.TB, dir string) image {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	im := image{}
	for _, e := range entries {
		b, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		info, err := e.Info()
		if err != nil {
			t.Fatal(err)
		}
		im[e.Name()] = fileImage{b, info.ModTime()}
	}
	return im
}

func (im image) restore(t testing.TB, dir string) {
	t.Helper()
	for name, now := range takeImage(t, dir) {
		if was, ok := im[name]; !ok {
			if err := os.Remove(filepath.Join(dir, name)); err != nil {
				t.Fatal(err)
			}
		} else if !bytes.Equal(now.data, was.data) || !now.mtime.Equal(was.mtime) {
			im.write(t, dir, name, was.data)
		}
	}
	for name, was := range im {
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			im.write(t, dir, name, was.data)
		}
	}
}

// write gives a file other bytes and keeps its time: damage of the disk does not
// change that.
func (im image) write(t testing.TB, dir, name string, b []byte) {
	t.Helper()
	name, mtime := filepath.Join(dir, name), im[name].mtime
	if err := errors.Join(os.WriteFile(name, b, 0o644), os.Chtimes(name, mtime, mtime)); err != nil {
		t.Fatal(err)
	}
}

// flip changes bits of one byte.
func (im image) flip(t testing.TB, dir, name string, at int, bits byte) {
	t.Helper()
	b := bytes.Clone(im[name].data)
	b[at] ^= bits
	im.write(t, dir, name, b)
}

// TestCutByAnother: another process cuts a segment under an open log. Every call
// gives an error or what is left; nothing crashes.
func TestCutByAnother(t *testing.T) {
	for _, mode := range modes {
		for _, cut := range []int64{0, 4096, 5000} {
			t.Run(fmt.Sprintf("%v/%d", mode, cut), func(t *testing.T) {
				dir := t.TempDir()
				l := open(t, dir, tidemark.Options{Sync: mode, SegmentBytes: 64 << 10, PopulateBytes: 1})
				appendTo(t, l, 100, 1000)
				logs, _ := filepath.Glob(filepath.Join(dir, "*.log"))
				for _, name := range logs {
					if err := os.Truncate(name, cut); err != nil {
						t.Fatal(err)
					}
				}
				sawError := false
				for offset := range int64(100) {
					if b, err := l.Read(nil, offset, 1<<20); err != nil {
						sawError = true
						if !errors.Is(err, tidemark.ErrCorrupt) {
							t.Fatalf("read at %d: %v", offset, err)
						}
					} else if got := record.Batch(b).BaseOffset(); got != offset {
						t.Fatalf("read at %d answered %d", offset, got)
					}
					if r, err := l.Get(offset, nil); err == nil && (r.Offset != offset || wrong(r) != "") {
						t.Fatalf("get %d: %d %s", offset, r.Offset, wrong(r))
					}
				}
				if !sawError {
					t.Error("no read failed")
				}
				for r, err := range l.Records(0) {
					if err == nil && wrong(r) != "" {
						t.Fatal(wrong(r))
					}
				}
				var found int
				if err := l.Verify(func(*tidemark.CorruptError) bool { found++; return found < 1000 }); err != nil {
					t.Errorf("Verify: %v", err)
				}
				if found == 0 {
					t.Error("Verify found nothing")
				}
				l.OffsetForTime(time.UnixMilli(1_700_000_000_050))
				for i := range int64(100) {
					if _, err := l.Append(rec(100+i, 1000)); err != nil {
						if mode != tidemark.Always && !errors.Is(err, tidemark.ErrFailed) && !strings.Contains(err.Error(), "page is gone") {
							t.Errorf("append: %v", err)
						}
						break
					}
				}
				l.Close()
				// Whatever came of it can be opened and says what is missing.
				if l, err := tidemark.Open(dir, tidemark.Options{Sync: mode}); err == nil {
					for r, err := range l.Records(l.LogStartOffset()) {
						if err == nil && wrong(r) != "" {
							t.Error(wrong(r))
						}
					}
					l.Close()
				}
			})
		}
	}
}

// TestC104_AppendBatchTwice: a producer that sends its batch again after a lost
// answer gets the place of the original, after a reopen too.
func TestC104_AppendBatchTwice(t *testing.T) {
	for _, mode := range modes {
		t.Run(mode.String(), func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "log")
			l := open(t, dir, tidemark.Options{Sync: mode})
			var w record.Builder
			now := time.Now().UnixMilli()
			batch := func(seq int32) tidemark.Batch {
				spec := record.NewSpec()
				spec.ProducerID, spec.ProducerEpoch, spec.BaseSequence = 42, 0, seq
				recs := []tidemark.Record{rec(0, 10), rec(1, 10)}
				for i := range recs { // an old timestamp expires when the log is opened
					recs[i].Timestamp = now
				}
				b, err := w.Build(recs, &spec)
				if err != nil {
					t.Fatal(err)
				}
				return slices.Clone(b)
			}
			send := func(seq int32, want int64) {
				t.Helper()
				if base, err := l.AppendBatch(batch(seq)); err != nil || base != want {
					t.Errorf("sequence %d = %d, %v; want %d", seq, base, err, want)
				}
			}
			for i := range int32(6) {
				send(2*i, int64(2*i))
			}
			for range 2 {
				for i := int32(1); i < 6; i++ {
					send(2*i, int64(2*i))
				}
				var refused *record.ClientError
				if _, err := l.AppendBatch(batch(0)); !errors.As(err, &refused) || refused.Code != 45 || !errors.Is(err, dedupe.ErrOutOfOrder) {
					t.Errorf("sixth last batch: %v", err)
				}
				if l.LogEndOffset() != 12 {
					t.Errorf("end %d", l.LogEndOffset())
				}
				closeLog(t, l)
				l = open(t, dir, tidemark.Options{Sync: mode})
			}
			if got := l.Stats().Producers.Producers; got != 1 {
				t.Errorf("%d producers", got)
			}
		})
	}
}
