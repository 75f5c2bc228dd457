package segment

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/tidemark-log/tidemark/internal/vfs"
	"github.com/tidemark-log/tidemark/record"
)

// batch is a plain batch of n records at base, each with timestamp ts and a
// value of size bytes that tells its offset.
func batch(base int64, n int, ts int64, size int) record.Batch {
	recs := make([]record.Record, n)
	for i := range recs {
		v := make([]byte, size)
		copy(v, fmt.Sprint(base+int64(i)))
		recs[i] = record.Record{Timestamp: ts, Value: v}
	}
	spec := record.NewSpec()
	spec.BaseOffset, spec.LeaderEpoch = base, 3
	return record.Encode(make([]byte, record.Size(recs, 0)), recs, &spec)
}

type harness struct {
	t   testing.TB
	fs  vfs.FS
	dir string
	o   Options
	*Segment
}

func newHarness(t testing.TB, fsys vfs.FS, dir string, o Options, base int64) *harness {
	t.Helper()
	o.FS = fsys
	if o.Capacity == 0 {
		o.Capacity = 64 << 10
	}
	if o.Maps == nil {
		o.Maps = NewMaps(1000)
	}
	h := &harness{t: t, fs: fsys, dir: dir, o: o}
	s, err := Create(dir, &h.o, 1, false)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Activate(base); err != nil {
		t.Fatal(err)
	}
	s.Publish(base, 0)
	h.Segment = s
	t.Cleanup(func() { h.Segment.Close() })
	return h
}

func mem(t testing.TB, o Options, base int64) *harness {
	t.Helper()
	return newHarness(t, vfs.NewMem(vfs.MemOptions{}), "/", o, base)
}

// append puts b at the end, whatever its offsets are.
func (h *harness) append(b record.Batch) {
	h.t.Helper()
	if !h.Fits(len(b), b.LastOffset()) {
		h.t.Fatalf("batch %d to %d of %d bytes does not fit", b.BaseOffset(), b.LastOffset(), len(b))
	}
	if !h.Room(len(b)) {
		if err := h.Grow(int64(len(b))); err != nil {
			h.t.Fatal(err)
		}
	}
	if h.o.WriteThrough {
		if err := h.WriteAtEnd(b); err != nil {
			h.t.Fatal(err)
		}
	} else {
		copy(h.Reserve(len(b)), b)
	}
	h.Commit(len(b), b.LastOffset(), b.MaxTimestamp())
}

// read returns the first batch that View finds at offset, −1 if there is none.
func (h *harness) read(offset int64) (base int64) {
	h.t.Helper()
	v, ok, err := h.View(offset, math.MaxInt64, 1, true, false)
	if err != nil {
		h.t.Fatalf("view at %d: %v", offset, err)
	}
	if !ok {
		return -1
	}
	defer v.Release()
	b, err := v.Batch(0, v.Base)
	if err != nil {
		h.t.Fatal(err)
	}
	return b.BaseOffset()
}

func (h *harness) cut(pos, offset int64) {
	h.t.Helper()
	if err := h.Freeze(false); err != nil {
		h.t.Fatal(err)
	}
	err := errors.Join(h.Unseal(), h.Cut(pos, offset))
	h.Thaw()
	if err := errors.Join(err, h.Reload()); err != nil {
		h.t.Fatal(err)
	}
}

// truncate drops what lies at or above offset, as a log does.
func (h *harness) truncate(offset int64) {
	h.t.Helper()
	pos, _, err := h.Position(offset)
	if err != nil {
		h.t.Fatal(err)
	}
	h.cut(pos, offset)
}

// reopen closes the segment as a log does and opens it for appending.
func (h *harness) reopen() {
	h.t.Helper()
	end, size := h.End(), h.Size()
	h.Seal()
	if err := errors.Join(h.Trim(), h.SyncFile(), h.SyncIndexes(), h.Close()); err != nil {
		h.t.Fatal(err)
	}
	info, err := h.fs.Stat(filepath.Join(h.dir, h.Name()))
	if err != nil || info.Size != size {
		h.t.Fatalf("closed file: %v %v, want %d bytes", info, err, size)
	}
	s, err := Open(h.dir, h.Base(), size, &h.o, true)
	if err != nil {
		h.t.Fatal(err)
	}
	h.Segment = s
	s.Publish(end, size)
	if err := s.Freeze(false); err != nil {
		h.t.Fatal(err)
	}
	err = s.Unseal()
	s.Thaw()
	if err := errors.Join(err, s.Reload()); err != nil {
		h.t.Fatal(err)
	}
}

// modes runs f with appends through the map and by pwrite.
func modes(t *testing.T, f func(t *testing.T, o Options)) {
	for _, through := range []bool{false, true} {
		t.Run(fmt.Sprintf("writeThrough=%v", through), func(t *testing.T) { f(t, Options{WriteThrough: through}) })
	}
}

func TestFits(t *testing.T) {
	for _, tc := range []struct {
		name       string
		base, last int64
		want       bool
	}{
		{"first offset", 0, 0, true},
		{"largest relative offset", 0, math.MaxInt32, true},
		{"largest over a base", 1 << 40, 1<<40 + math.MaxInt32, true},
		{"scenario 59: far below zero", 0, -1 << 31, false},
		{"scenario 59: one too far", 0, 1 << 31, false},
		{"scenario 59: below the base", 1, 0, false},
		{"scenario 59: far below the base", 100, 10, false},
		{"scenario 59: 2^31 below the base", 1 << 31, 0, false},
		{"scenario 59: twice as far", 1 << 31, 1 << 32, false},
		{"scenario 76: MAX+5 over 0", 0, math.MaxInt32 + 5, false},
		{"scenario 76: MAX+5 over MAX", math.MaxInt32, math.MaxInt32 + 5, true},
		{"scenario 64: MAX+200 over 40", 40, math.MaxInt32 + 200, false},
		{"overflow", 0, math.MaxInt64, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := mem(t, Options{}, tc.base).Fits(100, tc.last); got != tc.want {
				t.Errorf("Fits(last offset %d) over base %d = %v; want %v", tc.last, tc.base, got, tc.want)
			}
		})
	}
	h := mem(t, Options{Capacity: 8192}, 0)
	h.append(batch(0, 1, 1, 4000))
	if n := int(h.Cap() - h.Size()); !h.Fits(n, 1) || h.Fits(n+1, 1) {
		t.Errorf("Fits does not end at the capacity")
	}
}

func TestScenario76(t *testing.T) {
	first, second := mem(t, Options{}, 0), mem(t, Options{}, math.MaxInt32)
	at := first
	for _, base := range []int64{0, 500, math.MaxInt32 + 5} {
		b := batch(base, 1, 1, 10)
		if !at.Fits(len(b), b.LastOffset()) {
			at = second
		}
		at.append(b)
	}
	if first.End() != 501 || second.End() != math.MaxInt32+6 {
		t.Errorf("segments end at %d and %d; want 501 and %d", first.End(), second.End(), math.MaxInt32+6)
	}
	if got := second.read(math.MaxInt32); got != math.MaxInt32+5 {
		t.Errorf("read of the second = %d", got)
	}
}

func TestReadSparse(t *testing.T) {
	modes(t, func(t *testing.T, o Options) {
		h := newHarness(t, vfs.NewMem(vfs.MemOptions{}), "/", o, 40)
		if h.End() != 40 || h.Size() != 0 {
			t.Errorf("scenario 68: empty segment ends at %d with %d bytes", h.End(), h.Size())
		}
		h.append(batch(50, 2, 1, 10))
		if h.End() != 52 {
			t.Errorf("scenario 68: ends at %d; want 52", h.End())
		}
		for _, tc := range []struct {
			name      string
			at, want  int64
			thenAfter int64
		}{
			{"scenario 60: below the first batch", 41, 50, 50},
			{"inside it", 51, 50, 50},
			{"scenario 61: behind the last", 52, -1, 60},
			{"scenario 62: in the gap", 55, -1, 60},
		} {
			if got := h.read(tc.at); got != tc.want {
				t.Errorf("%s: read(%d) = %d; want %d", tc.name, tc.at, got, tc.want)
			}
		}
		h.append(batch(60, 2, 1, 10))
		if got := h.read(55); got != 60 {
			t.Errorf("scenario 62: read(55) = %d; want 60", got)
		}
		// Scenario 63 has no counterpart: a limit is an offset here. At the
		// limit nothing is read, whatever it is.
		for _, limit := range []int64{0, 40, 51} {
			if v, ok, err := h.View(41, limit, 1, true, false); ok || err != nil {
				t.Errorf("View(41) below limit %d = %v, %v", limit, v, err)
			}
		}
	})
}

func TestScenario64(t *testing.T) {
	h := mem(t, Options{}, 40)
	h.reopen()
	h.truncate(57)
	if h.End() != 57 || h.Size() != 0 {
		t.Fatalf("ends at %d with %d bytes", h.End(), h.Size())
	}
	idx, tix := h.Indexes()
	if idx.Full() || tix.Full() {
		t.Error("indexes of an empty segment are full")
	}
	h.append(batch(57, 1, 1, 10))
	if got := h.read(41); got != 57 {
		t.Errorf("read(41) = %d; want 57", got)
	}
}

func TestScenario65(t *testing.T) {
	modes(t, func(t *testing.T, o Options) {
		h := newHarness(t, vfs.NewMem(vfs.MemOptions{}), "/", o, 0)
		h.append(batch(0, 3, 77, 10))
		h.truncate(0)
		if h.End() != 0 || h.Size() != 0 || h.MaxTimestamp() != -1 {
			t.Fatalf("ends at %d with %d bytes, largest timestamp %d", h.End(), h.Size(), h.MaxTimestamp())
		}
		err := h.Bytes(func(data []byte) error {
			if i := slicesIndexNonZero(data); i >= 0 {
				t.Errorf("byte %d of the cut file is not zero", i)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		h.append(batch(0, 1, 5, 10))
		if h.read(0) != 0 || h.End() != 1 {
			t.Error("append after the cut is not there")
		}
	})
}

func slicesIndexNonZero(b []byte) int {
	return bytes.IndexFunc(b, func(r rune) bool { return r != 0 })
}

func TestScenario66(t *testing.T) {
	size := int64(len(batch(40, 1, 400, 10)))
	h := mem(t, Options{IndexInterval: 2*size - 1}, 40)
	for i := range int64(30) {
		h.append(batch(40+i, 1, 400+i, 10))
	}
	_, tix := h.Indexes()
	if tix.Len() != 14 {
		t.Fatalf("%d time entries; want 14", tix.Len())
	}
	h.truncate(41)
	if tix.Len() != 0 || h.MaxTimestamp() != 400 || h.End() != 41 {
		t.Errorf("after the cut: %d time entries, largest timestamp %d, end %d; want 0, 400, 41", tix.Len(), h.MaxTimestamp(), h.End())
	}
}

func TestScenario67(t *testing.T) {
	for _, interval := range []int64{1, 4096} {
		h := mem(t, Options{IndexInterval: interval}, 40)
		for i := range int64(10) {
			h.append(batch(40+i, 1, 400+10*i, 10))
		}
		for _, tc := range []struct{ ts, want int64 }{
			{420, 42}, {421, 43}, {430, 43}, {431, 44}, {491, -1}, {401, 41}, {399, 40},
		} {
			f, ok, err := h.FirstSince(tc.ts, 0)
			if err != nil {
				t.Fatal(err)
			}
			if !ok {
				f.Base = -1
			}
			if f.Base != tc.want {
				t.Errorf("interval %d: first since %d = %d; want %d", interval, tc.ts, f.Base, tc.want)
			}
		}
	}
}

func TestScenario74(t *testing.T) {
	modes(t, func(t *testing.T, o Options) {
		o.Capacity = 512 << 20
		h := newHarness(t, vfs.OS, t.TempDir(), o, 0)
		if err := h.Grow(1 << 20); err != nil {
			t.Fatal(err)
		}
		h.append(batch(0, 3, 1, 100))
		name, before := filepath.Join(h.dir, h.Name()), h.Size()
		if info, err := os.Stat(name); err != nil || info.Size() < 1<<20 {
			t.Fatalf("open file: %v %v", info, err)
		}
		for range 2 {
			h.reopen() // checks the size of the closed file
			if h.Size() != before || h.End() != 3 || h.read(1) != 0 {
				t.Errorf("reopened: %d bytes, end %d", h.Size(), h.End())
			}
		}
	})
}

func TestScenario75(t *testing.T) {
	h := mem(t, Options{}, 0)
	for _, base := range []int64{0, 10, 30} {
		h.append(batch(base, 2, 1, 10))
	}
	size := h.Size()
	h.truncate(20)
	if h.End() != 20 || h.Size() != size/3*2 {
		t.Fatalf("cut in the gap: end %d, %d bytes; want 20, %d", h.End(), h.Size(), size/3*2)
	}
	if h.read(5) != 10 || h.read(11) != 10 || h.read(12) != -1 {
		t.Errorf("reads up to the gap: %d %d %d", h.read(5), h.read(11), h.read(12))
	}
}

// TestIndexEntries: an entry names the last offset of the batch that starts at
// its position, and the first batch of a segment has none (log-format §3.2).
func TestIndexEntries(t *testing.T) {
	modes(t, func(t *testing.T, o Options) {
		o.IndexInterval = 200
		h := newHarness(t, vfs.NewMem(vfs.MemOptions{}), "/", o, 0)
		size := int64(len(batch(0, 2, 1, 50)))
		for i := range int64(6) {
			if i == 4 {
				h.reopen() // the distance to the last entry is kept
			}
			h.append(batch(2*i, 2, 100-i, 50))
		}
		idx, tix := h.Indexes()
		var got []int64
		for i := range idx.Len() {
			off, pos := idx.Entry(i)
			got = append(got, off, pos)
		}
		want := []int64{5, 2 * size, 9, 4 * size}
		if size*2 <= 200 || fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("offset entries %v; want %v", got, want)
		}
		// Timestamps fall: the first batch has the largest for good.
		if ts, off := tix.Entry(0); tix.Len() != 1 || ts != 100 || off != 1 {
			t.Errorf("%d time entries, the first (%d, %d); want one (100, 1)", tix.Len(), ts, off)
		}
	})
}

// TestSealOnFullDisk: where the final time entry finds no room the time index is
// emptied, so that no search believes an older maximum.
func TestSealOnFullDisk(t *testing.T) {
	faulty := vfs.NewFaulty(vfs.NewMem(vfs.MemOptions{}))
	h := newHarness(t, faulty, "/", Options{IndexInterval: 1}, 0)
	h.append(batch(0, 1, 10, 10))
	faulty.SetRules(vfs.Rule{Ops: vfs.OpAllocate, Glob: "*.timeindex", Err: errors.New("no space")})
	h.append(batch(1, 1, 20, 10))
	h.append(batch(2, 1, 30, 10))
	h.Seal()
	if err := errors.Join(h.Trim(), h.SyncFile(), h.SyncIndexes(), h.Close()); err != nil {
		t.Fatal(err)
	}
	faulty.SetRules()
	if info, err := faulty.Stat("/" + FileName(0, ".timeindex")); err != nil || info.Size != 0 {
		t.Errorf("time index: %d bytes, %v; want none, since the last entry would not be the final one", info.Size, err)
	}
	s, err := Open(h.dir, 0, h.Size(), &h.o, true)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	s.Publish(3, h.Size())
	s.Known()
	if ts, err := s.LargestTimestamp(); ts != 30 || err != nil {
		t.Errorf("LargestTimestamp = %d, %v; want 30", ts, err)
	}
}

func TestNames(t *testing.T) {
	if got := FileName(4096, ".log"); got != "00000000000000004096.log" {
		t.Errorf("FileName = %s", got)
	}
	for _, tc := range []struct {
		name string
		base int64
		ok   bool
	}{
		{"00000000000000000000.log", 0, true},
		{"09223372036854775807.log", math.MaxInt64, true},
		{"09223372036854775808.log", 0, false},
		{"5.log", 0, false},
		{"-0000000000000000001.log", 0, false},
		{"+0000000000000000001.log", 0, false},
		{"00000000000000000000.log.deleted", 0, false},
		{"notanumber.log", 0, false},
		{"00000000000000000000.index", 0, false},
		{".log", 0, false},
	} {
		base, ok := ParseName(tc.name, ".log")
		if ok != tc.ok || ok && base != tc.base {
			t.Errorf("ParseName(%s) = %d, %v; want %d, %v", tc.name, base, ok, tc.base, tc.ok)
		}
	}
}

// TestCreateErrors: a failed Create leaves no file, no map and no descriptor.
func TestCreateErrors(t *testing.T) {
	for _, op := range []vfs.Op{vfs.OpCreate, vfs.OpAllocate, vfs.OpMap} {
		m := vfs.NewMem(vfs.MemOptions{})
		fail := errors.New("refused")
		o := Options{FS: vfs.NewFaulty(m, vfs.Rule{Ops: op, Err: fail}), Capacity: 64 << 10, Maps: NewMaps(10)}
		if _, err := Create("/", &o, 1, false); !errors.Is(err, fail) {
			t.Errorf("%v refused: %v", op, err)
		}
		if files, err := m.List("/"); err != nil || len(files) != 0 {
			t.Errorf("%v refused: %v %v left behind", op, files, err)
		}
		if n := o.Maps.Count(); n != 0 || len(o.Maps.ring) != 0 {
			t.Errorf("%v refused: %d maps counted, %d segments in the ring", op, n, len(o.Maps.ring))
		}
	}
	o := Options{FS: vfs.NewMem(vfs.MemOptions{}), Capacity: 64 << 10, Maps: NewMaps(10)}
	if _, err := Create("/", &o, MaxCapacity+1, false); err == nil {
		t.Error("a segment beyond MaxCapacity was created")
	}
	if _, err := Open("/", 0, 1<<31, &o, true); err == nil {
		t.Error("a file of 2^31 bytes was opened")
	}
}

// TestGrow: on ENOSPC nothing changes; the last blocks of a disk are used.
func TestGrow(t *testing.T) {
	m := vfs.NewMem(vfs.MemOptions{})
	h := newHarness(t, m, "/", Options{Capacity: 1 << 20}, 0)
	before := h.Allocated()
	m.SetCapacity(m.Used() + 8192)
	if err := h.Grow(before + 8192); err != nil || h.Allocated() != before+8192 {
		t.Errorf("last two blocks: %v, %d allocated; want %d", err, h.Allocated(), before+8192)
	}
	if err := h.Grow(before + 8193); err == nil || errors.Is(err, ErrFull) || h.Allocated() != before+8192 {
		t.Errorf("full disk: %v, %d allocated", err, h.Allocated())
	}
	m.SetCapacity(0)
	if err := h.Grow(h.Cap() + 1); !errors.Is(err, ErrFull) {
		t.Errorf("beyond the capacity: %v; want ErrFull", err)
	}
	if err := h.Grow(h.Cap()); err != nil || h.Allocated() != h.Cap() {
		t.Errorf("to the capacity: %v", err)
	}
}

// TestActivateFails: a refused rename leaves a segment that can take a base
// later on.
func TestActivateFails(t *testing.T) {
	faulty := vfs.NewFaulty(vfs.NewMem(vfs.MemOptions{}))
	o := Options{FS: faulty, Capacity: 64 << 10, Maps: NewMaps(10)}
	s, err := Create("/", &o, 1, false)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range []vfs.Rule{{Ops: vfs.OpRename, Err: os.ErrPermission}, {Ops: vfs.OpStat, Glob: "*.timeindex", Err: os.ErrPermission}} {
		faulty.SetRules(r)
		if err := s.Activate(7); !errors.Is(err, os.ErrPermission) {
			t.Fatalf("Activate = %v", err)
		}
	}
	faulty.SetRules()
	if err := s.Activate(9); err != nil || s.Base() != 9 {
		t.Fatalf("Activate = %v, base %d", err, s.Base())
	}
	if err := s.Remove(); err != nil || o.Maps.Count() != 0 {
		t.Fatalf("Remove = %v, %d maps", err, o.Maps.Count())
	}
	if files, _ := faulty.List("/"); len(files) != 0 {
		t.Errorf("left behind: %v", files)
	}
}

// TestZeroAhead: behind small synced batches zeros are written, in few calls, never
// over what is there or beyond what is allocated, and about as many as was
// appended; behind large ones none.
func TestZeroAhead(t *testing.T) {
	faulty := vfs.NewFaulty(vfs.NewMem(vfs.MemOptions{}))
	h := newHarness(t, faulty, "/", Options{WriteThrough: true, Capacity: 4 << 20}, 0)
	var offset, zeros int64
	appendOne := func(size int) (ahead int) {
		b := batch(offset, 1, 1, size)
		at := h.Size()
		faulty.ResetCalls()
		h.append(b)
		offset++
		for _, c := range faulty.Calls() {
			switch {
			case c.Op != vfs.OpWrite || c.Off == at:
			case c.Off < h.Size() || c.Off%pageSize != 0 || c.N > pageSize:
				t.Fatalf("%d bytes written at %d, the log ends at %d", c.N, c.Off, h.Size())
			case c.Off+c.N > h.Allocated():
				t.Fatalf("%d bytes written at %d, %d are allocated", c.N, c.Off, h.Allocated())
			default:
				ahead++
				zeros += c.N
			}
		}
		return ahead
	}
	times := 0
	for range 1024 {
		if appendOne(1000) > 0 {
			times++
		}
		if zeros > h.Size()*3/2 {
			t.Fatalf("%d zeros behind %d bytes", zeros, h.Size())
		}
	}
	if times < 5 || times > 20 {
		t.Errorf("zeros written %d times in 1 MiB; want 5 to 20", times)
	}
	if zeros < h.Size()/2 {
		t.Errorf("%d zeros in a log of %d bytes", zeros, h.Size())
	}
	for range 64 {
		if n := appendOne(zeroBatch + 1); n > 0 {
			t.Fatalf("%d blocks of zeros behind a large batch", n)
		}
	}
	for o := range offset {
		if got := h.read(o); got != o {
			t.Fatalf("read at %d = %d", o, got)
		}
	}
	// A cut begins anew: what is behind it is fresh.
	h.truncate(10)
	offset = 10
	for range 8 {
		if n := appendOne(1000); n > 8 {
			t.Fatalf("%d blocks of zeros in a log of %d bytes", n, h.Size())
		}
	}
	// Zeros that cannot be written are a failed write.
	faulty.SetRules(vfs.Rule{Ops: vfs.OpWrite, Err: errors.New("io"), After: 1})
	for range 64 {
		b := batch(offset, 1, 1, 1000)
		err := h.WriteAtEnd(b)
		if err != nil {
			return
		}
		h.Commit(len(b), b.LastOffset(), b.MaxTimestamp())
		offset++
		faulty.SetRules(vfs.Rule{Ops: vfs.OpWrite, Err: errors.New("io"), After: 1})
	}
	t.Error("no append failed for its zeros")
}

// TestFill: the pages that appends need are made by zeros, each byte once, within what
// is allocated and never below what is ready: what is appended stays. A young segment
// gets few.
func TestFill(t *testing.T) {
	faulty := vfs.NewFaulty(vfs.NewMem(vfs.MemOptions{}))
	h := newHarness(t, faulty, "/", Options{Fill: true, Capacity: 4 << 20}, 0)
	if h.Ready() > pageSize || h.Allocated() != firstChunk {
		t.Errorf("a new segment has %d bytes ready and %d allocated", h.Ready(), h.Allocated())
	}
	var offset int64
	step := func(do func()) {
		t.Helper()
		ready := h.Ready()
		faulty.ResetCalls()
		do()
		for _, c := range faulty.Calls() {
			if c.Op != vfs.OpWrite {
				continue
			}
			if c.Off != ready || c.N > FillStep || c.Off+c.N > h.Allocated() {
				t.Fatalf("%d bytes written at %d; %d were ready, %d are allocated", c.N, c.Off, ready, h.Allocated())
			}
			ready += c.N
		}
		if h.Ready() != ready || ready < h.Size() {
			t.Fatalf("%d bytes ready of %d; zeros end at %d", h.Ready(), h.Size(), ready)
		}
	}
	appendOne := func(size int) {
		b := batch(offset, 1, 1, size)
		step(func() { h.append(b) })
		offset++
	}
	for i := range 2500 {
		appendOne(1000)
		if i%100 == 0 {
			to := h.Size() + 100<<10
			step(func() {
				if got, err := h.Populate(h.Size(), to); err != nil || got < min(to, h.Allocated()) {
					t.Fatalf("Populate up to %d = %d, %v", to, got, err)
				}
			})
		}
		if h.Ready() > 2*h.Size()+100<<10+pageSize {
			t.Fatalf("%d bytes ready for a log of %d", h.Ready(), h.Size())
		}
	}
	for range 4 {
		appendOne(300 << 10)
	}
	for o := range offset {
		if got := h.read(o); got != o {
			t.Fatalf("read at %d = %d", o, got)
		}
	}
	h.truncate(10) // what is behind the cut is fresh
	offset = 10
	appendOne(1000)
	h.reopen()
	appendOne(1000)
	faulty.SetRules(vfs.Rule{Ops: vfs.OpWrite, Err: errors.New("io")})
	if err := h.Grow(1 << 20); err == nil || errors.Is(err, ErrFull) {
		t.Errorf("zeros that cannot be written: %v", err)
	}
}

// TestFillBesideAppends: somebody else makes pages while records take their place.
func TestFillBesideAppends(t *testing.T) {
	h := newHarness(t, vfs.OS, t.TempDir(), Options{Fill: true, Capacity: 8 << 20}, 0)
	var wg sync.WaitGroup
	var done atomic.Bool
	wg.Go(func() {
		for !done.Load() {
			size := h.Size()
			if err := h.Allocate(min(512<<10, h.Cap()-size)); err != nil && !errors.Is(err, ErrFull) {
				t.Error(err)
				return
			}
			if _, err := h.Populate(size, size+512<<10); err != nil {
				t.Error(err)
				return
			}
		}
	})
	end := int64(0)
	for ; h.Size() < 7<<20; end++ {
		h.append(batch(end, 1, 1, 700+int(end)%3000))
	}
	done.Store(true)
	wg.Wait()
	next := int64(0)
	err := h.Walk(0, func(f Frame, b []byte) bool {
		if _, err := record.Check(b); err != nil || f.Base != next {
			t.Errorf("batch %d at %d: %v", next, f.Pos, err)
		}
		next++
		return true
	})
	if err != nil || next != end {
		t.Errorf("%d of %d batches: %v", next, end, err)
	}
}
