package replica

import (
	"errors"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/tidemark-log/tidemark/internal/checkpoint"
	"github.com/tidemark-log/tidemark/internal/vfs"
)

// epochList makes a list of epoch, start pairs.
func epochList(pairs ...int64) (list []Epoch) {
	for i := 0; i < len(pairs); i += 2 {
		list = append(list, Epoch{Epoch: int32(pairs[i]), StartOffset: pairs[i+1]})
	}
	return list
}

func cacheOf(t testing.TB, list []Epoch) *epochCache {
	t.Helper()
	fsys := vfs.NewMem(vfs.MemOptions{})
	if err := errors.Join(fsys.Mkdir("/log"), fsys.SyncDir("/")); err != nil {
		t.Fatal(err)
	}
	c := newEpochCache(fsys, "/log")
	if err := c.set(list); err != nil {
		t.Fatal(err)
	}
	return c
}

// onDisk returns the list as the file has it after a power cut.
func onDisk(t testing.TB, c *epochCache) []Epoch {
	t.Helper()
	b, err := vfs.ReadFile(c.fs.(*vfs.Mem).PowerCut(dropAll()), c.name, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	list, err := checkpoint.ParseEpochs(b)
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// TestEpochEnds: where an epoch ends, by the scenarios of log-format §10.8 and
// the examples of §6.
func TestEpochEnds(t *testing.T) {
	const leo = 30
	for _, tc := range []struct {
		name      string
		list      []Epoch
		ask       int32
		wantEpoch int32
		wantEnd   int64
	}{
		{"scenario 163: empty", nil, 0, -1, -1},
		{"scenario 164: ask none", epochList(5, 11, 6, 12), -1, -1, -1},
		{"scenario 164: ask none of an empty list", nil, -1, -1, -1},
		{"scenario 164: ask above the latest", epochList(5, 11, 6, 12), 7, -1, -1},
		{"scenario 165: ask below the first", epochList(5, 11, 6, 12, 7, 13), 4, 4, 11},
		{"scenario 166: ask between, 1", epochList(0, 10, 2, 13, 4, 17), 1, 0, 13},
		{"scenario 166: ask between, 3", epochList(0, 10, 2, 13, 4, 17), 3, 2, 17},
		{"the first", epochList(0, 10, 2, 13, 4, 17), 0, 0, 13},
		{"a middle one", epochList(0, 10, 2, 13, 4, 17), 2, 2, 17},
		{"the latest", epochList(0, 10, 2, 13, 4, 17), 4, 4, leo},
		{"the latest, empty", epochList(0, 10, 2, leo), 2, 2, leo},
		{"the one before an empty one", epochList(0, 10, 2, leo), 1, 0, leo},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if e, end := cacheOf(t, tc.list).endOffset(tc.ask, leo); e != tc.wantEpoch || end != tc.wantEnd {
				t.Errorf("%v: end of epoch %d = (%d, %d); want (%d, %d)", tc.list, tc.ask, e, end, tc.wantEpoch, tc.wantEnd)
			}
		})
	}
}

func TestEpochAssign(t *testing.T) {
	for _, tc := range []struct {
		name string
		list []Epoch
		set  []Epoch
		want []Epoch
	}{
		{"scenario 167: same epoch, later start", epochList(2, 6), epochList(2, 10), epochList(2, 6)},
		{"same epoch, same start", epochList(2, 6), epochList(2, 6), epochList(2, 6)},
		{"same epoch, earlier start", epochList(1, 5, 2, 8), epochList(2, 6), epochList(1, 5, 2, 6)},
		{"scenario 168: an older epoch later", epochList(1, 5, 2, 6), epochList(1, 7), epochList(1, 7)},
		{"scenario 169: a newer epoch earlier", nil, epochList(2, 6, 3, 5), epochList(3, 5)},
		{"same start: the one before was empty", epochList(1, 5), epochList(2, 5), epochList(2, 5)},
		{"in order", nil, epochList(0, 0, 1, 1, 7, 20), epochList(0, 0, 1, 1, 7, 20)},
		{"§6: a foreign log under a young cluster", epochList(0, 0, 1, 12, 2, 24, 3, 36, 4, 48), epochList(2, 60), epochList(0, 0, 1, 12, 2, 60)},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := cacheOf(t, tc.list)
			for _, e := range tc.set {
				if err := c.assign(e.Epoch, e.StartOffset); err != nil {
					t.Fatal(err)
				}
			}
			if got := c.snapshot(); !slices.Equal(got, tc.want) {
				t.Errorf("%v assign %v = %v; want %v", tc.list, tc.set, got, tc.want)
			}
			if got := onDisk(t, c); !slices.Equal(got, tc.want) {
				t.Errorf("%v assign %v: on disk %v; want %v", tc.list, tc.set, got, tc.want)
			}
		})
	}
	t.Run("scenario 173: negative", func(t *testing.T) {
		c := cacheOf(t, epochList(2, 6))
		for _, e := range epochList(-1, 7, 3, -1, -1, -1) {
			if err := c.assign(e.Epoch, e.StartOffset); err == nil {
				t.Errorf("assign epoch %d at %d: no error", e.Epoch, e.StartOffset)
			}
		}
		if got := c.snapshot(); !slices.Equal(got, epochList(2, 6)) {
			t.Errorf("refused, yet the list is %v", got)
		}
	})
}

func TestEpochTruncate(t *testing.T) {
	list := epochList(2, 6, 3, 8, 4, 11)
	t.Run("from the end", func(t *testing.T) {
		for _, tc := range []struct {
			name string
			end  int64
			want []Epoch
		}{
			{"scenario 170: 8", 8, epochList(2, 6)},
			{"scenario 170: 9", 9, epochList(2, 6, 3, 8)},
			{"scenario 170: 11", 11, epochList(2, 6, 3, 8)},
			{"scenario 170: 12", 12, list},
			{"scenario 172: -1", -1, list},
			{"0", 0, nil},
			{"the first start", 6, nil},
		} {
			t.Run(tc.name, func(t *testing.T) {
				if got := fromEnd(list, tc.end); !slices.Equal(got, tc.want) {
					t.Errorf("fromEnd(%d) = %v; want %v", tc.end, got, tc.want)
				}
				c := cacheOf(t, list)
				if err := c.truncate(tc.end); err != nil {
					t.Fatal(err)
				}
				if got := onDisk(t, c); !slices.Equal(got, tc.want) || !slices.Equal(c.snapshot(), tc.want) {
					t.Errorf("truncate(%d) = %v, on disk %v; want %v", tc.end, c.snapshot(), got, tc.want)
				}
			})
		}
	})
	t.Run("from the start", func(t *testing.T) {
		for _, tc := range []struct {
			name  string
			start int64
			want  []Epoch
		}{
			{"scenario 171: 6", 6, list},
			{"scenario 171: 7", 7, epochList(2, 7, 3, 8, 4, 11)},
			{"scenario 171: 8", 8, epochList(3, 8, 4, 11)},
			{"scenario 171: 9", 9, epochList(3, 9, 4, 11)},
			{"scenario 171: 11", 11, epochList(4, 11)},
			{"scenario 171: 15", 15, epochList(4, 15)},
			{"§6: 5", 5, list},
			{"scenario 172: -1", -1, list},
		} {
			t.Run(tc.name, func(t *testing.T) {
				if got := fromStart(list, tc.start); !slices.Equal(got, tc.want) {
					t.Errorf("fromStart(%d) = %v; want %v", tc.start, got, tc.want)
				}
			})
		}
		if got := fromStart(nil, 5); len(got) != 0 {
			t.Errorf("fromStart of an empty list = %v", got)
		}
	})
	if want := epochList(2, 6, 3, 8, 4, 11); !slices.Equal(list, want) {
		t.Errorf("the list that was cut is %v itself now", list)
	}
}

// epochedBatch is a batch of [base, end), as the oracle of TestEpochProperty
// keeps it.
type epochedBatch struct {
	base, end int64
	epoch     int32
}

// TestEpochProperty: over any history of appends, elections and cuts the cache
// answers what a look at every batch does.
func TestEpochProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		fsys := vfs.NewMem(vfs.MemOptions{})
		if err := fsys.Mkdir("/log"); err != nil {
			t.Fatal(err)
		}
		c := newEpochCache(fsys, "/log")
		var batches []epochedBatch
		start, leo := int64(0), int64(0)
		newest := int32(-1) // begun last; empty if its start is leo
		assign := func(e int32, at int64) {
			if err := c.assign(e, at); err != nil {
				t.Fatal(err)
			}
			newest = e
		}
		t.Repeat(map[string]func(*rapid.T){
			"elect": func(t *rapid.T) { assign(newest+rapid.Int32Range(1, 3).Draw(t, "up"), leo) },
			"append": func(t *rapid.T) {
				e := max(newest, 0)
				if rapid.Bool().Draw(t, "follows a new leader") {
					e += rapid.Int32Range(1, 3).Draw(t, "up")
				}
				base := leo + max(rapid.Int64Range(-5, 3).Draw(t, "gap"), 0)
				leo = base + rapid.Int64Range(1, 10).Draw(t, "count")
				assign(e, base)
				batches = append(batches, epochedBatch{base, leo, e})
			},
			"cut the end": func(t *rapid.T) {
				leo = rapid.Int64Range(start, leo).Draw(t, "to")
				if err := c.truncate(leo); err != nil {
					t.Fatal(err)
				}
				batches = slices.DeleteFunc(batches, func(b epochedBatch) bool { return b.end > leo })
				newest = c.latest()
			},
			"cut the start": func(t *rapid.T) {
				start = rapid.Int64Range(start, leo).Draw(t, "to")
				if err := c.set(fromStart(c.snapshot(), start)); err != nil {
					t.Fatal(err)
				}
			},
			"": func(t *rapid.T) {
				list := c.snapshot()
				for i := 1; i < len(list); i++ {
					if list[i-1].Epoch >= list[i].Epoch || list[i-1].StartOffset >= list[i].StartOffset {
						t.Fatalf("not ascending: %v", list)
					}
				}
				if len(list) > 0 && list[len(list)-1].StartOffset > leo {
					t.Fatalf("%v has an epoch behind the end, %d", list, leo)
				}
				b, err := vfs.ReadFile(fsys, c.name, 1<<20)
				stored, perr := checkpoint.ParseEpochs(b)
				if err == nil && (perr != nil || !slices.Equal(stored, list)) {
					t.Fatalf("file has %v, %v; want %v", stored, perr, list)
				}
				for _, x := range batches {
					for _, offset := range []int64{x.base, x.end - 1} {
						if offset >= start && c.at(offset) != x.epoch {
							t.Fatalf("%v: epoch at %d = %d; the batch has %d", list, offset, c.at(offset), x.epoch)
						}
					}
				}
				for ask := int32(-1); ask <= newest+1; ask++ {
					gotEpoch, gotEnd := c.endOffset(ask, leo)
					checkEnd(t, list, batches, start, leo, ask, gotEpoch, gotEnd)
				}
			},
		})
	})
}

// checkEnd checks the answer to "where does epoch ask end" against the batches:
// no batch of a later epoch lies below the end, and none of ask or an earlier
// one above.
func checkEnd(t *rapid.T, list []Epoch, batches []epochedBatch, start, leo int64, ask, epoch int32, end int64) {
	if epoch < 0 || end < 0 {
		if epoch != -1 || end != -1 {
			t.Fatalf("%v: end of epoch %d = (%d, %d)", list, ask, epoch, end)
		}
		if ask >= 0 && len(list) > 0 && ask <= list[len(list)-1].Epoch {
			t.Fatalf("%v: end of epoch %d undefined", list, ask)
		}
		return
	}
	if epoch > ask || end > leo {
		t.Fatalf("%v: end of epoch %d = (%d, %d), log ends at %d", list, ask, epoch, end, leo)
	}
	for _, b := range batches {
		switch {
		case b.end <= start:
		case b.epoch > ask && b.base < end && b.base >= start:
			t.Fatalf("%v: epoch %d ends at %d; the batch at %d has epoch %d", list, ask, end, b.base, b.epoch)
		case b.epoch <= ask && b.end > end:
			t.Fatalf("%v: epoch %d ends at %d; the batch [%d, %d) has epoch %d", list, ask, end, b.base, b.end, b.epoch)
		case b.epoch <= ask && b.epoch > epoch && b.end > start:
			t.Fatalf("%v: epoch %d answered as %d; the batch at %d has %d", list, ask, epoch, b.base, b.epoch)
		}
	}
}
