package segment

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/tidemark-log/tidemark/internal/vfs"
)

// sealedSegments makes n closed segments of two batches each and opens them.
func sealedSegments(t testing.TB, m *vfs.Mem, o *Options, n int) []*Segment {
	t.Helper()
	var list []*Segment
	for i := range int64(n) {
		h := newHarness(t, m, "/", Options{Capacity: o.Capacity, IndexInterval: 1}, 10*i)
		h.append(batch(10*i, 2, 100*i, 40))
		h.append(batch(10*i+2, 2, 100*i+1, 40))
		size := h.Size()
		h.reopen()
		h.Close()
		s, err := Open("/", 10*i, size, o, true)
		if err != nil {
			t.Fatal(err)
		}
		s.Publish(10*(i+1), size)
		s.Known()
		t.Cleanup(func() { s.Close() })
		list = append(list, s)
	}
	return list
}

func mapsOf(t testing.TB, max int) (*vfs.Mem, *Options) {
	m := vfs.NewMem(vfs.MemOptions{})
	o := &Options{FS: m, Capacity: 8192, IndexInterval: 1, Maps: NewMaps(max)}
	return m, o
}

func readOne(s *Segment, offset int64) error {
	v, ok, err := s.View(offset, math.MaxInt64, 1, true, false)
	if err != nil {
		return err
	}
	defer v.Release()
	if !ok || v.Base > offset || v.Next <= offset {
		return fmt.Errorf("view at %d: [%d, %d), %v", offset, v.Base, v.Next, ok)
	}
	return nil
}

// TestEvict: reading more segments than may be mapped goes on for ever, indexes
// included, and never passes the bound.
func TestEvict(t *testing.T) {
	const max = 5
	m, o := mapsOf(t, max)
	list := sealedSegments(t, m, o, 20)
	for round := range 3 {
		for i, s := range list {
			if ts, err := s.LargestTimestamp(); err != nil || ts != int64(100*i+1) {
				t.Fatalf("largest timestamp of segment %d = %d, %v", i, ts, err)
			}
			if f, ok, err := s.FirstSince(int64(100*i+1), 0); err != nil || !ok || f.Base != int64(10*i+2) {
				t.Fatalf("first since of segment %d = %+v, %v, %v", i, f, ok, err)
			}
			for offset := range int64(4) {
				if err := readOne(s, int64(10*i)+offset); err != nil {
					t.Fatalf("round %d: %v", round, err)
				}
			}
			if n := o.Maps.Count(); n > max {
				t.Fatalf("%d maps; want at most %d", n, max)
			}
		}
	}
	for _, s := range list {
		s.Close()
	}
	if n := o.Maps.Count(); n != 0 {
		t.Errorf("%d maps counted after Close", n)
	}
	if len(o.Maps.ring) != 0 {
		t.Errorf("%d closed segments are still in the ring", len(o.Maps.ring))
	}
}

// TestEvictOrder: what was used since the hand passed stays.
func TestEvictOrder(t *testing.T) {
	m, o := mapsOf(t, 6)
	o.IndexInterval = 1 << 20
	list := sealedSegments(t, m, o, 8)
	read := func(i int) {
		t.Helper()
		if err := readOne(list[i], int64(10*i)); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 3 {
		read(i)
	}
	for i := 3; i < 8; i++ {
		read(i)
		read(0)
		if list[0].cur.Load() == nil {
			t.Fatalf("segment 0, in use all along, was unmapped for segment %d", i)
		}
	}
}

// TestEvictInUse: what somebody reads, or appends to, stays mapped.
func TestEvictInUse(t *testing.T) {
	m, o := mapsOf(t, 100)
	s := sealedSegments(t, m, o, 1)[0]
	v, _, err := s.View(0, 100, 1, true, false)
	if err != nil {
		t.Fatal(err)
	}
	s.evict()
	if b, err := v.Batch(0, 0); err != nil || b.BaseOffset() != 0 || s.cur.Load() == nil {
		t.Errorf("segment with a view out was unmapped: %v", err)
	}
	v.Release()
	s.evict()
	if s.cur.Load() != nil || s.maps.Load() != 0 {
		t.Errorf("idle segment still has %d maps", s.maps.Load())
	}
	h := newHarness(t, m, "/", Options{}, 1000)
	h.append(batch(1000, 1, 1, 10))
	h.evict()
	h.append(batch(1001, 1, 1, 10))
	if h.read(1001) != 1001 {
		t.Error("active segment was unmapped")
	}
}

// TestTooManyMaps: where every map is in use the next one is refused, and works
// once a view is released.
func TestTooManyMaps(t *testing.T) {
	m, o := mapsOf(t, 4)
	list := sealedSegments(t, m, o, 6)
	var views []View
	var refused int
	for i, s := range list {
		v, ok, err := s.View(int64(10*i), math.MaxInt64, 1, false, false)
		if err != nil {
			if !errors.Is(err, ErrTooManyMaps) {
				t.Fatal(err)
			}
			refused++
			continue
		}
		if !ok {
			t.Fatal("no view")
		}
		views = append(views, v)
	}
	if refused == 0 || len(views) == 0 {
		t.Fatalf("%d views, %d refused", len(views), refused)
	}
	for i := range views {
		views[i].Release()
	}
	for i, s := range list {
		if err := readOne(s, int64(10*i)); err != nil {
			t.Fatal(err)
		}
	}
}

// TestEvictConcurrently: readers of all segments under a small bound, while
// segments are closed and maps of other kinds come and go. Run with -race: the
// heap-backed file system overwrites what is unmapped.
func TestEvictConcurrently(t *testing.T) {
	const readers = 4
	m, o := mapsOf(t, 3+2*readers)
	list := sealedSegments(t, m, o, 16)
	var wg sync.WaitGroup
	for r := range readers {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(1, uint64(r)))
			for range 2000 {
				i := rng.IntN(len(list))
				offset := int64(10*i + rng.IntN(4))
				if err := readOne(list[i], offset); err != nil {
					t.Error(err)
					return
				}
				if rng.IntN(10) == 0 {
					if f, ok, err := list[i].FirstSince(int64(100*i+1), 0); err != nil || !ok || f.Base != int64(10*i+2) {
						t.Errorf("first since: %+v %v %v", f, ok, err)
						return
					}
				}
			}
		})
	}
	wg.Wait()
	if n := o.Maps.Count(); n > 3+2*readers {
		t.Errorf("%d maps", n)
	}
}

// TestCloseWithViews: views stay readable after Close, whoever is evicting at
// the same time, and the last one unmaps.
func TestCloseWithViews(t *testing.T) {
	m, o := mapsOf(t, 100)
	list := sealedSegments(t, m, o, 1)
	s := list[0]
	v, ok, err := s.View(0, 100, 1<<20, true, false)
	if err != nil || !ok {
		t.Fatal(ok, err)
	}
	w, _, err := s.View(2, 100, 1<<20, true, true)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if _, _, err := s.View(0, 100, 1, true, false); !errors.Is(err, ErrClosed) {
		t.Errorf("View after Close: %v; want ErrClosed", err)
	}
	s.evict()
	v.Release()
	v.Release() // the zero view
	if o.Maps.Count() != 1 {
		t.Errorf("%d maps with one view out", o.Maps.Count())
	}
	if b, err := w.Batch(0, 2); err != nil || b.BaseOffset() != 2 {
		t.Errorf("view after Close: %v", err)
	}
	w.Release()
	if o.Maps.Count() != 0 || s.maps.Load() != 0 {
		t.Errorf("%d maps after the last Release", o.Maps.Count())
	}
	if err := s.Close(); err != nil {
		t.Errorf("second Close: %v", err)
	}
}

// TestCloseEvictRace: Close and eviction at the same moment unmap once.
func TestCloseEvictRace(t *testing.T) {
	for range 200 {
		m, o := mapsOf(t, 100)
		s := sealedSegments(t, m, o, 1)[0]
		if err := readOne(s, 0); err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		wg.Go(s.evict)
		wg.Go(func() { s.Close() })
		wg.Go(func() {
			if err := readOne(s, 2); err != nil && !errors.Is(err, ErrClosed) {
				t.Error(err)
			}
		})
		wg.Wait()
		if n := o.Maps.Count(); n != 0 {
			t.Fatalf("%d maps after Close", n)
		}
	}
}

// TestFreeze: who may be in the segment during a cut.
func TestFreeze(t *testing.T) {
	for _, tc := range []struct {
		name      string
		above     bool // the view that is out
		aboveOnly bool // the freeze
		busy      bool
	}{
		{"no reader of the tail, view below", false, true, false},
		{"view beyond the high watermark", true, true, true},
		{"cut below a view", false, false, true},
		{"cut below a view beyond", true, false, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			m, o := mapsOf(t, 100)
			s := sealedSegments(t, m, o, 1)[0]
			v, _, err := s.View(0, 100, 1, true, tc.above)
			if err != nil {
				t.Fatal(err)
			}
			err = s.Freeze(tc.aboveOnly)
			if (err != nil) != tc.busy || err != nil && !errors.Is(err, ErrBusy) {
				t.Fatalf("Freeze = %v; busy wanted: %v", err, tc.busy)
			}
			if err == nil {
				if err := errors.Join(s.Unseal(), s.Cut(s.Size()/2, 2)); err != nil {
					t.Fatal(err)
				}
				s.Thaw()
				// The view lies in the map from before.
				if _, err := v.Batch(0, 0); err != nil {
					t.Error(err)
				}
				if err := s.Freeze(false); !errors.Is(err, ErrBusy) {
					t.Errorf("Freeze against a view of the old map = %v; want ErrBusy", err)
				}
			}
			v.Release()
			if err := s.Freeze(false); err != nil {
				t.Errorf("Freeze after Release = %v", err)
			}
			s.Thaw()
			if err := readOne(s, 1); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestFreezeUnmapped: a frozen segment that is not mapped lets nobody in.
func TestFreezeUnmapped(t *testing.T) {
	m, o := mapsOf(t, 100)
	s := sealedSegments(t, m, o, 1)[0]
	if err := s.Freeze(false); err != nil {
		t.Fatal(err)
	}
	done := make(chan error)
	go func() { done <- readOne(s, 0) }()
	if err := s.Unseal(); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-done:
		t.Errorf("a reader got in: %v", err)
	default:
	}
	if err := s.Cut(s.Size()/2, 2); err != nil {
		t.Fatal(err)
	}
	s.Thaw()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// TestCutUnderReaders: readers below the high watermark go on while the tail is
// cut and appended anew, sealed and unsealed, in turn. Readers of the tail see
// one of its two versions or wait.
func TestCutUnderReaders(t *testing.T) {
	modes(t, func(t *testing.T, o Options) {
		o.IndexInterval = 1
		h := newHarness(t, vfs.NewMem(vfs.MemOptions{}), "/", o, 0)
		h.append(batch(0, 4, 1, 40))
		kept := h.Size()
		h.append(batch(4, 4, 1, 40))
		var stop atomic.Bool
		var wg sync.WaitGroup
		for r := range 3 {
			wg.Go(func() {
				for !stop.Load() {
					above := r == 0
					limit := int64(4)
					if above {
						limit = math.MaxInt64
					}
					v, ok, err := h.View(0, limit, 1<<20, true, above)
					if err != nil || !ok {
						t.Errorf("view = %v, %v", ok, err)
						return
					}
					for at, due := 0, v.Base; at < len(v.Bytes); {
						b, err := v.Batch(at, due)
						if err != nil {
							t.Error(err)
							break
						}
						at, due = at+len(b), b.NextOffset()
					}
					v.Release()
				}
			})
		}
		for i := 0; i < 300 && !t.Failed(); i++ {
			if i%3 == 0 {
				h.Seal()
			}
			if err := h.Freeze(true); err != nil {
				if !errors.Is(err, ErrBusy) {
					t.Error(err)
				}
				if h.Sealed() { // as it was
					for h.Freeze(true) != nil {
					}
					if err := h.Unseal(); err != nil {
						t.Error(err)
					}
					h.Thaw()
				}
				continue
			}
			err := errors.Join(h.Unseal(), h.Cut(kept, 4))
			h.Thaw()
			if err := errors.Join(err, h.Reload()); err != nil {
				t.Error(err)
			}
			h.append(batch(4, 4, int64(i), 40))
		}
		stop.Store(true)
		wg.Wait()
	})
}

// TestAppendUnderReaders: one appender, many readers (run with -race).
func TestAppendUnderReaders(t *testing.T) {
	modes(t, func(t *testing.T, o Options) {
		o.IndexInterval = 300
		h := newHarness(t, vfs.NewMem(vfs.MemOptions{}), "/", o, 0)
		var wg sync.WaitGroup
		for r := range 3 {
			wg.Go(func() {
				rng := rand.New(rand.NewPCG(2, uint64(r)))
				for h.End() < 600 {
					end := h.End()
					if end == 0 {
						continue
					}
					offset := rng.Int64N(end)
					if err := readOne(h.Segment, offset); err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		for i := int64(0); i < 600; i += 2 {
			h.append(batch(i, 2, i, 40))
		}
		wg.Wait()
	})
}

// TestFileBound: a segment holds a descriptor while it takes appends; past the
// bound the next is refused, and whatever gives one up makes room.
func TestFileBound(t *testing.T) {
	m, o := mapsOf(t, 100)
	o.Maps.LimitFiles(2)
	create := func(dir string) (*Segment, error) {
		if err := m.Mkdir(dir); err != nil && !errors.Is(err, fs.ErrExist) {
			t.Fatal(err)
		}
		s, err := Create(dir, o, 1, false)
		if err == nil {
			err = s.Activate(0)
		}
		return s, err
	}
	a, err := create("/a")
	if err != nil {
		t.Fatal(err)
	}
	b, err := create("/b")
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if _, err := create("/c"); !errors.Is(err, ErrTooManyFiles) {
			t.Fatalf("a third segment: %v", err)
		}
	}
	if maps, files := o.Maps.Count(), o.Maps.Files(); maps != 2 || files != 2 {
		t.Errorf("%d maps and %d files are held; want 2 and 2", maps, files)
	}
	a.Seal()
	if err := errors.Join(a.Trim(), a.SyncFile(), a.Settled(), a.Settled()); err != nil {
		t.Fatal(err)
	}
	c, err := create("/c")
	if err != nil {
		t.Fatal(err)
	}
	if err := a.OpenFile(); !errors.Is(err, ErrTooManyFiles) {
		t.Errorf("a file opened again: %v", err)
	}
	if err := a.Wake(); !errors.Is(err, ErrTooManyFiles) || !a.Sealed() {
		t.Errorf("Wake = %v, sealed %v", err, a.Sealed())
	}
	// One that cannot be made gives its descriptor back.
	o.FS = vfs.NewFaulty(m, vfs.Rule{Ops: vfs.OpMap, Err: syscall.ENOMEM})
	if err := errors.Join(b.Remove(), c.Close()); err != nil {
		t.Fatal(err)
	}
	if _, err := create("/d"); !errors.Is(err, syscall.ENOMEM) {
		t.Errorf("a segment that cannot be mapped: %v", err)
	}
	if err := a.Wake(); !errors.Is(err, syscall.ENOMEM) || !a.Sealed() {
		t.Errorf("Wake = %v, sealed %v", err, a.Sealed())
	}
	if n := o.Maps.Files(); n != 0 {
		t.Errorf("%d files are held at the end", n)
	}
	a.Close()
}
