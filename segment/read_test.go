package segment

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/tidemark-log/tidemark/internal/mmap"
	"github.com/tidemark-log/tidemark/internal/vfs"
	"github.com/tidemark-log/tidemark/record"
)

// segmentOf makes a segment that holds batches, with an index interval.
func segmentOf(t testing.TB, interval int64, batches ...record.Batch) *harness {
	t.Helper()
	n := int64(0)
	for _, b := range batches {
		n += int64(len(b))
	}
	base := int64(0)
	h := mem(t, Options{IndexInterval: interval, Capacity: max(n, 64<<10)}, base)
	for _, b := range batches {
		h.append(b)
	}
	return h
}

// change lets f change the bytes of the log file behind the segment's back.
func (h *harness) change(f func(data []byte)) {
	h.t.Helper()
	if err := h.Bytes(func(data []byte) error { f(data); return nil }); err != nil {
		h.t.Fatal(err)
	}
}

// replaceIndexes gives the segment an offset index with these entries, whatever
// they are.
func (h *harness) replaceIndexes(entries []indexEntry) {
	h.t.Helper()
	end, size := h.End(), h.Size()
	if err := h.Close(); err != nil {
		h.t.Fatal(err)
	}
	var b []byte
	for _, e := range entries {
		b = binary.BigEndian.AppendUint32(b, uint32(e.offset-h.Base()))
		b = binary.BigEndian.AppendUint32(b, uint32(e.pos))
	}
	f, err := h.fs.Open(filepath.Join(h.dir, FileName(h.Base(), ".index")), vfs.Create)
	if err != nil {
		h.t.Fatal(err)
	}
	_, werr := f.WriteAt(b, 0)
	if err := errors.Join(f.Truncate(int64(len(b))), werr, f.Close()); err != nil {
		h.t.Fatal(err)
	}
	o := h.o
	o.ReadOnly = true // keeps what is wrong with the file
	s, err := Open(h.dir, h.Base(), size, &o, true)
	if err != nil {
		h.t.Fatal(err)
	}
	s.Publish(end, size)
	h.Segment = s
}

type indexEntry struct{ offset, pos int64 }

// TestFindModel compares reads at every offset with a walk over the list of
// batches: gaps, large and small intervals, index entries that are missing,
// wrong or out of order.
func TestFindModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		var batches []record.Batch
		at := rapid.Int64Range(0, 3).Draw(rt, "first offset")
		for range rapid.IntRange(0, 12).Draw(rt, "batches") {
			n := rapid.IntRange(1, 4).Draw(rt, "records")
			batches = append(batches, batch(at, n, 1, rapid.IntRange(0, 60).Draw(rt, "size")))
			at += int64(n)
			if rapid.IntRange(0, 2).Draw(rt, "gap?") == 0 {
				at += rapid.Int64Range(1, 5).Draw(rt, "gap")
			}
		}
		h := segmentOf(t, rapid.SampledFrom([]int64{1, 100, 500, 1 << 20}).Draw(rt, "interval"), batches...)
		defer h.Segment.Close()
		if rapid.Bool().Draw(rt, "replace index") {
			var entries []indexEntry
			pos := int64(0)
			for _, b := range batches {
				if rapid.Bool().Draw(rt, "indexed") {
					e := indexEntry{b.LastOffset(), pos}
					if rapid.IntRange(0, 3).Draw(rt, "wrong?") == 0 {
						e.offset = rapid.Int64Range(0, at+2).Draw(rt, "wrong offset")
					}
					if rapid.IntRange(0, 3).Draw(rt, "lie?") == 0 {
						e.pos = rapid.Int64Range(0, h.Size()+10).Draw(rt, "wrong position")
					}
					entries = append(entries, e)
				}
				pos += int64(len(b))
			}
			h.replaceIndexes(entries)
		}
		limit := rapid.Int64Range(0, at+1).Draw(rt, "limit")
		maxBytes := rapid.SampledFrom([]int{0, 1, 150, 300, 1 << 20}).Draw(rt, "max bytes")
		for offset := range at + 2 {
			checkView(rt, h, batches, offset, limit, maxBytes)
			checkPosition(rt, h, batches, offset)
		}
	})
}

func checkView(t *rapid.T, h *harness, batches []record.Batch, offset, limit int64, maxBytes int) {
	t.Helper()
	var want []byte
	for _, b := range batches {
		if b.LastOffset() < offset {
			continue
		}
		if b.LastOffset() >= limit || want != nil && len(want)+len(b) > maxBytes {
			break
		}
		want = append(want, b...)
	}
	v, ok, err := h.View(offset, limit, maxBytes, true, true)
	if err != nil {
		t.Fatalf("view(%d, limit %d, max %d): %v", offset, limit, maxBytes, err)
	}
	defer v.Release()
	if ok != (want != nil) || !bytes.Equal(v.Bytes, want) {
		t.Fatalf("view(%d, limit %d, max %d): %d bytes from %d; want %d", offset, limit, maxBytes, len(v.Bytes), v.Base, len(want))
	}
	if !ok {
		return
	}
	at, due := 0, v.Base
	for at < len(v.Bytes) {
		b, err := v.Batch(at, due)
		if err != nil {
			t.Fatal(err)
		}
		at, due = at+len(b), b.NextOffset()
	}
	if v.Base != record.Batch(want).BaseOffset() || due > v.Next {
		t.Fatalf("view(%d): base %d, next %d; batches end at %d", offset, v.Base, v.Next, due)
	}
}

func checkPosition(t *rapid.T, h *harness, batches []record.Batch, offset int64) {
	t.Helper()
	wantPos, wantBase := h.Size(), h.End()
	pos := int64(0)
	for _, b := range batches {
		if b.LastOffset() >= offset {
			wantPos, wantBase = pos, b.BaseOffset()
			break
		}
		pos += int64(len(b))
	}
	if pos, base, err := h.Position(offset); pos != wantPos || base != wantBase || err != nil {
		t.Fatalf("position(%d) = %d, %d, %v; want %d, %d", offset, pos, base, err, wantPos, wantBase)
	}
}

// TestKafkaIndexEntry: Kafka indexes a request of several batches by its last
// offset and its first position (log-format §3.2).
func TestKafkaIndexEntry(t *testing.T) {
	var batches []record.Batch
	for i := range int64(9) {
		batches = append(batches, batch(2*i, 2, 1, 50))
	}
	h := segmentOf(t, 1<<20, batches...)
	n := int64(len(batches[0]))
	h.replaceIndexes([]indexEntry{{5, 2 * n}, {9, 4 * n}, {17, 6 * n}})
	for offset := range int64(18) {
		if got := h.read(offset); got != offset/2*2 {
			t.Errorf("read(%d) = %d", offset, got)
		}
	}
}

// TestFlippedBaseOffset: base offsets lie outside the checksum. No flip of one
// bit makes a read answer with a wrong batch or leave one out.
func TestFlippedBaseOffset(t *testing.T) {
	for _, tc := range []struct {
		name string
		gap  int64
	}{{"without gaps", 0}, {"compacted", 3}} {
		for _, interval := range []int64{1, 1 << 20} {
			t.Run(fmt.Sprintf("%s/interval=%d", tc.name, interval), func(t *testing.T) {
				var batches []record.Batch
				at := tc.gap
				for range 6 {
					b := batch(at, 2, 1, 20)
					batches = append(batches, b)
					at = b.NextOffset() + tc.gap
				}
				h := segmentOf(t, interval, batches...)
				pos := int64(0)
				for i, bad := range batches {
					for bit := range 64 {
						flip := func(data []byte) { data[pos+int64(bit/8)] ^= 1 << (bit % 8) }
						h.forgetDamage()
						h.change(flip)
						moved := record.Batch(h.cur.Load().data[pos:]).BaseOffset()
						within := moved >= prevEnd(batches, i) && moved+1 < nextBase(batches, i, h.End())
						for offset := range at {
							want := firstAt(batches, offset)
							v, ok, err := h.View(offset, math.MaxInt64, 1<<20, true, false)
							switch {
							case err != nil:
								var c *CorruptError
								from, upTo := prevEnd(batches, i), nextBase(batches, i, at)
								if tc.gap > 0 { // where two overlap, it may be the other that was moved
									from, upTo = prevEnd(batches, max(i-1, 0)), nextBase(batches, min(i+1, len(batches)-1), at)
								}
								if !errors.As(err, &c) || offset >= upTo || offset < from || c.Next > upTo {
									t.Fatalf("batch %d bit %d: view(%d): %v, goes on at %d", i, bit, offset, err, c.Next)
								}
							case within:
								// It moved within its gap: nothing in the log can tell (format.md).
							case ok && (want == nil || v.Base != want.BaseOffset()) || !ok && want != nil:
								t.Fatalf("batch %d bit %d: view(%d) = base %d, %v; want %v", i, bit, offset, v.Base, ok, want != nil)
							case ok:
								checkAll(t, &v, batches)
							}
							v.Release()
						}
						h.change(flip)
					}
					pos += int64(len(bad))
				}
			})
		}
	}
}

func prevEnd(batches []record.Batch, i int) int64 {
	if i == 0 {
		return 0
	}
	return batches[i-1].NextOffset()
}

func nextBase(batches []record.Batch, i int, end int64) int64 {
	if i == len(batches)-1 {
		return end
	}
	return batches[i+1].BaseOffset()
}

func firstAt(batches []record.Batch, offset int64) record.Batch {
	for _, b := range batches {
		if b.LastOffset() >= offset {
			return b
		}
	}
	return nil
}

// checkAll: what Batch lets pass is a batch that was appended.
func checkAll(t *testing.T, v *View, batches []record.Batch) {
	t.Helper()
	for at, due := 0, v.Base; at < len(v.Bytes); {
		b, err := v.Batch(at, due)
		if err != nil {
			return
		}
		if !slices.ContainsFunc(batches, func(w record.Batch) bool { return bytes.Equal(w, b) }) {
			t.Fatalf("Batch passed one with base %d that was never appended", b.BaseOffset())
		}
		at, due = at+len(b), b.NextOffset()
	}
}

// TestDamageEveryBit flips every bit of a batch in the middle: reads of the
// others go on, reads of that one fail and say where good ones begin again.
func TestDamageEveryBit(t *testing.T) {
	var batches []record.Batch
	for i := range int64(5) {
		batches = append(batches, batch(3*i, 3, 1, 15))
	}
	n := len(batches[0])
	for _, interval := range []int64{1, 1 << 20} {
		h := segmentOf(t, interval, batches...)
		for bit := range n * 8 {
			at := 2*n + bit/8
			if in := bit / 8; in >= 12 && in < 16 {
				continue // the leader epoch: no reader looks at it, Verify does
			}
			h.change(func(data []byte) { data[at] ^= 1 << (bit % 8) })
			for offset := range int64(15) {
				h.forgetDamage() // each read finds it by itself
				v, ok, err := h.View(offset, math.MaxInt64, 1, true, false)
				if bad := offset/3 == 2; bad {
					var c *CorruptError
					if !errors.As(err, &c) || !errors.Is(err, ErrCorrupt) || c.Pos != int64(2*n) || c.Next != 9 || c.Offset > offset {
						t.Fatalf("interval %d, byte %d bit %d: view(%d) = base %d, %v, %+v", interval, bit/8, bit%8, offset, v.Base, ok, err)
					}
					continue
				}
				if err != nil || !ok || v.Base != offset/3*3 {
					t.Fatalf("interval %d, byte %d bit %d: view(%d) = base %d, %v, %v", interval, bit/8, bit%8, offset, v.Base, ok, err)
				}
				v.Release()
			}
			h.change(func(data []byte) { data[at] ^= 1 << (bit % 8) })
		}
	}
}

// TestCheckCopy: a copy is good up to the first damage; damage at its start is
// an error.
func TestCheckCopy(t *testing.T) {
	batches := []record.Batch{batch(0, 2, 1, 30), batch(2, 2, 1, 30), batch(4, 2, 1, 30)}
	n := len(batches[0])
	h := segmentOf(t, 1, batches...)
	h.change(func(data []byte) { data[n+70]++ })
	v, _, err := h.View(0, 6, 1<<20, false, false)
	if err != nil {
		t.Fatal(err)
	}
	defer v.Release()
	if good, err := v.CheckCopy(slices.Clone(v.Bytes)); good != n || err != nil {
		t.Errorf("CheckCopy = %d, %v; want %d", good, err, n)
	}
	w, _, err := h.View(2, 6, 1<<20, false, false)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Release()
	good, err := w.CheckCopy(slices.Clone(w.Bytes))
	var c *CorruptError
	if good != 0 || !errors.As(err, &c) || c.Pos != int64(n) || c.Offset != 2 || c.Next != 4 || !errors.Is(err, record.ErrChecksum) {
		t.Errorf("CheckCopy at damage = %d, %v", good, err)
	}
}

func TestResync(t *testing.T) {
	b := func(base int64) record.Batch { return batch(base, 2, 1, 30) }
	n := int64(len(b(0)))
	join := func(parts ...[]byte) []byte { return bytes.Join(parts, nil) }
	broken := func(base int64) []byte { x := b(base); x[70]++; return x }
	for _, tc := range []struct {
		name          string
		data          []byte
		pos, due, end int64
		stop, next    int64
		follows       bool
	}{
		{"damage to the end", join(b(0), broken(2)), n, 2, -1, 2 * n, -1, false},
		{"next batch", join(b(0), broken(2), b(4)), n, 2, -1, 2 * n, 4, true},
		{"two bad ones", join(b(0), broken(2), broken(4), b(6)), n, 2, -1, 3 * n, 6, true},
		{"garbage, then two that prove each other", join(b(0), []byte("garbage, not a batch"), b(4), b(6)), n, 2, -1, n + 20, 4, true},
		{"garbage, then the last one", join(b(0), []byte("garbage, not a batch"), b(4)), n, 2, 6, n + 20, 4, true},
		{"garbage, then one of unknown offset", join(b(0), []byte("garbage, not a batch"), b(4)), n, 2, -1, 2*n + 20, -1, true},
		{"behind zeros", join(b(0), make([]byte, 1000), b(4), b(6)), n, 2, -1, n + 1000, 4, true},
		{"stale batch is passed over (C006)", join(b(2), []byte{1}, b(0), b(4), b(6)), n, 4, -1, n + 1 + n, 4, true},
		{"base offset of the next was hit as well", join(b(2), []byte{1}, b(0), b(8), b(10)), n, 0, -1, n + 1 + n, 8, true},
		{"offset beyond the segment", join(b(0), []byte{1}, b(1<<31), b(1<<31+2)), n, 2, -1, n + 1 + 2*n, -1, false},
		{"offset beyond the end", join(b(0), []byte{1}, b(20), b(22)), n, 2, 20, n + 1 + 2*n, -1, false},
		{"nothing there", b(0), n, 2, -1, n, -1, false},
		{"length field beyond the data", join(b(0), bytes.Repeat([]byte{0x7f}, 100)), n, 2, -1, n + 100, -1, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			d := Resync(tc.data, tc.pos, tc.due, 0, tc.end)
			if d.Pos != tc.pos || d.From != tc.due || d.End != tc.stop || d.Next != tc.next || d.Follows != tc.follows {
				t.Errorf("Resync = %+v; want end %d, next %d, follows %v", d, tc.stop, tc.next, tc.follows)
			}
		})
	}
}

// TestEmbeddedBatch: a record may hold batches of another log. Where the batch
// around them is damaged in its length, they must not be taken for the log's.
func TestEmbeddedBatch(t *testing.T) {
	inner := bytes.Join([][]byte{batch(100, 1, 1, 30), batch(101, 1, 1, 30), batch(102, 1, 1, 30)}, nil)
	recs := []record.Record{{Timestamp: 1, Value: inner}}
	spec := record.NewSpec()
	spec.BaseOffset = 2
	outer := record.Encode(make([]byte, record.Size(recs, 0)), recs, &spec)
	for _, interval := range []int64{1, 1 << 20} {
		h := segmentOf(t, interval, batch(0, 2, 1, 30), outer, batch(200, 2, 1, 30), batch(202, 2, 1, 30))
		at := len(batch(0, 2, 1, 30)) + 11
		h.change(func(data []byte) { data[at] ^= 0x40 })
		for _, offset := range []int64{2, 100, 102, 199} {
			_, ok, err := h.View(offset, math.MaxInt64, 1, true, false)
			var c *CorruptError
			if !errors.As(err, &c) || c.Next != 200 {
				t.Errorf("interval %d: view(%d) = %v, %v; want damage up to 200", interval, offset, ok, err)
			}
		}
		if h.read(200) != 200 {
			t.Error("the batch behind is not found")
		}
	}
}

// TestSearchBudget: a record made of headers at every byte does not make the
// search behind damage take for ever.
func TestSearchBudget(t *testing.T) {
	value := make([]byte, 256<<10)
	for i := 0; i+64 < len(value); i += 64 {
		p := value[i:]
		p[7] = 9 // base offset
		binary.BigEndian.PutUint32(p[8:], uint32(len(value)-i-12))
		p[16] = record.Magic
	}
	recs := []record.Record{{Timestamp: 1, Value: value}}
	spec := record.NewSpec()
	evil := record.Encode(make([]byte, record.Size(recs, 0)), recs, &spec)
	h := segmentOf(t, 1<<20, evil, batch(1, 1, 1, 30))
	h.change(func(data []byte) { data[11] ^= 0x40 })
	for range 3 {
		if _, _, err := h.View(0, math.MaxInt64, 1, true, false); !errors.Is(err, ErrCorrupt) {
			t.Fatal(err)
		}
	}
	d := Resync(h.cur.Load().data[:h.Size()], 0, 0, 0, -1)
	t.Logf("resync: %+v of %d", d, h.Size())
}

// FuzzRead: whatever a segment's file and index hold, reads do not panic, and
// what Batch passes has a checksum that holds and offsets that ascend.
func FuzzRead(f *testing.F) {
	good := bytes.Join([][]byte{batch(0, 2, 1, 30), batch(2, 2, 1, 30), batch(9, 1, 1, 30)}, nil)
	f.Add(good, []byte{0, 0, 0, 3, 0, 0, 0, 120}, int64(2))
	f.Add(good[:len(good)-5], []byte{}, int64(0))
	f.Add(make([]byte, 200), []byte{1, 2, 3}, int64(7))
	f.Fuzz(func(t *testing.T, data, idx []byte, offset int64) {
		m := vfs.NewMem(vfs.MemOptions{})
		write := func(name string, b []byte) {
			file, err := m.Open(name, vfs.Create)
			if err != nil {
				t.Fatal(err)
			}
			file.WriteAt(b, 0)
			file.Close()
		}
		write("/"+FileName(0, ".log"), data)
		write("/"+FileName(0, ".index"), idx)
		o := Options{FS: m, Capacity: 64 << 10, IndexInterval: 1, Maps: NewMaps(100), ReadOnly: true}
		s, err := Open("/", 0, int64(len(data)), &o, true)
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		s.Publish(math.MaxInt32, int64(len(data)))
		v, ok, err := s.View(offset, math.MaxInt64, 1<<20, true, true)
		if ok && err == nil {
			for at, due := 0, v.Base; at < len(v.Bytes); {
				b, err := v.Batch(at, due)
				if err != nil {
					break
				}
				if _, err := record.Check(b); err != nil || b.BaseOffset() < due || b.NextOffset() > v.Next {
					t.Fatalf("Batch passed base %d, due %d: %v", b.BaseOffset(), due, err)
				}
				at, due = at+len(b), b.NextOffset()
			}
		}
		v.Release()
		s.Position(offset)
		s.FirstSince(offset, 0)
		s.LargestTimestamp()
		Resync(data, 0, 0, 0, -1)
	})
}

// TestCutByAnother: a file that somebody cuts is an error of every read, not a
// crash.
func TestCutByAnother(t *testing.T) {
	h := newHarness(t, vfs.OS, t.TempDir(), Options{IndexInterval: 1}, 0)
	for i := range int64(20) {
		h.append(batch(i, 1, i, 1000))
	}
	h.reopen()
	v, _, err := h.View(0, 20, 1<<20, false, false)
	if err != nil {
		t.Fatal(err)
	}
	defer v.Release()
	if err := os.Truncate(filepath.Join(h.dir, h.Name()), 4096); err != nil {
		t.Fatal(err)
	}
	var fault *mmap.FaultError
	var c *CorruptError
	if _, err := v.Batch(8000, 7); !errors.As(err, &c) || !errors.As(err, &fault) {
		t.Errorf("Batch of a view: %v", err)
	}
	if _, _, err := h.View(15, 20, 1, true, false); !errors.As(err, &c) {
		t.Errorf("View: %v", err)
	}
	if err := h.Walk(0, func(Frame, []byte) bool { return true }); err == nil {
		t.Error("Walk: no error")
	}
	if _, _, err := h.Position(15); err == nil {
		t.Error("Position: no error")
	}
	if _, _, err := h.FirstSince(15, 0); err == nil {
		t.Error("FirstSince: no error")
	}
	if err := h.Bytes(func(data []byte) error { sink += data[9000]; return nil }); !errors.As(err, &fault) {
		t.Errorf("Bytes: %v", err)
	}
	if h.read(0) != 0 {
		t.Error("what is left cannot be read")
	}
}

// TestWrongTimeIndex: an entry that does not fit its batch is not believed.
func TestWrongTimeIndex(t *testing.T) {
	h := mem(t, Options{IndexInterval: 1}, 0)
	for i := range int64(10) {
		h.append(batch(i, 1, 100*i, 10))
	}
	_, tix := h.Indexes()
	if err := tix.Reset(); err != nil {
		t.Fatal(err)
	}
	if err := tix.Append(150, 8); err != nil {
		t.Fatal(err)
	}
	if f, ok, err := h.FirstSince(200, 0); f.Base != 2 || !ok || err != nil {
		t.Errorf("FirstSince(200) = %d, %v, %v; want 2", f.Base, ok, err)
	}
}

var sink byte
