package index

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tidemark-log/tidemark/internal/mmap"
	"github.com/tidemark-log/tidemark/internal/vfs"
)

// TestC001_PaddedIndexAfterKill: the indexes of a killed broker have their full
// length. Trusted, they have the entries that were written; not trusted, none.
func TestC001_PaddedIndexAfterKill(t *testing.T) {
	const base = 2076
	pad := func(t *testing.T, fsys vfs.FS, name string, size int64) {
		h, err := fsys.Open(name, vfs.ReadWrite)
		must(t, err)
		must(t, h.Truncate(size))
		must(t, h.Close())
	}
	onEach(t, func(t *testing.T, fsys vfs.FS, dir string) {
		iname, tname := filepath.Join(dir, "f.index"), filepath.Join(dir, "f.timeindex")
		x, y := openOffset(t, fsys, iname, base, rw), openTime(t, fsys, tname, base, rw)
		for i := int64(1); i <= 700; i++ {
			must(t, x.Append(base+10*i, 4096*i))
			must(t, y.Append(1700000000000+i, base+10*i))
		}
		must(t, x.Trim())
		must(t, y.Trim())
		must(t, x.Close())
		must(t, y.Close())
		whole, wholeTs := readFile(t, fsys, iname), readFile(t, fsys, tname)
		pad(t, fsys, iname, 10<<20)
		pad(t, fsys, tname, 10485756)

		trust := Options{Trust: true, Writable: true, MaxEntries: 5000}
		x, y = openOffset(t, fsys, iname, base, trust), openTime(t, fsys, tname, base, trust)
		expect(t, "Last", lastOf(x.Last()), any(pair{base + 7000, 4096 * 700}))
		expect(t, "Lookup", pairOf(x.Lookup(base+3456)), pair{base + 3450, 4096 * 345})
		expect(t, "time Last", lastOf(y.Last()), any(pair{1700000000700, base + 7000}))
		must(t, x.Check(base+7000, 4096*700))
		must(t, y.Check(base+7000, math.MaxInt64))
		must(t, x.Trim())
		must(t, y.Trim())
		if !bytes.Equal(readFile(t, fsys, iname), whole) || !bytes.Equal(readFile(t, fsys, tname), wholeTs) {
			t.Error("trimming did not give the file from before the kill")
		}
		must(t, x.Close())
		must(t, y.Close())

		pad(t, fsys, iname, 10<<20)
		x = openOffset(t, fsys, iname, base, rw)
		expect(t, "Len without trust", x.Len(), 0)
		must(t, x.Append(base+1, 100))
		must(t, x.Trim())
		expect(t, "bytes after the rebuild", len(readFile(t, fsys, iname)), OffsetEntrySize)
	})
}

// TestC004_ZeroTimeIndex: a closed segment's time index is all zeros, at full
// length. It has no entry, takes the final one, and is trimmed to it.
func TestC004_ZeroTimeIndex(t *testing.T) {
	onEach(t, func(t *testing.T, fsys vfs.FS, dir string) {
		name := filepath.Join(dir, "f")
		h, err := fsys.Open(name, vfs.Create)
		must(t, err)
		must(t, h.Truncate(10485756))
		must(t, h.Close())
		x := openTime(t, fsys, name, 500, Options{Trust: true, Writable: true})
		expect(t, "Len", x.Len(), 0)
		expect(t, "Full", x.Full(), false)
		must(t, x.Append(1700000000000, 507))
		must(t, x.AppendFinal(1700000009999, 511))
		must(t, x.Trim())
		must(t, x.Close())
		x = openTime(t, fsys, name, 500, Options{Trust: true})
		expect(t, "Len", x.Len(), 2)
		expect(t, "Last", lastOf(x.Last()), any(pair{1700000009999, 511}))
	})
}

// TestC016_StaleFullIndex: the log was cut to nothing while its index was full.
func TestC016_StaleFullIndex(t *testing.T) {
	onEach(t, func(t *testing.T, fsys vfs.FS, dir string) {
		x := openOffset(t, fsys, filepath.Join(dir, "f"), 100, Options{Writable: true, MaxEntries: 600})
		fill := func() {
			t.Helper()
			for i := int64(1); i <= 600; i++ {
				must(t, x.Append(100+i, i))
			}
			expect(t, "Full", x.Full(), true)
		}
		fill()
		before, err := fsys.Stat(x.Name())
		must(t, err)
		must(t, x.TruncateTo(100))
		expect(t, "Full after TruncateTo", x.Full(), false)
		fill()
		must(t, x.Reset())
		expect(t, "Full after Reset", x.Full(), false)
		expect(t, "Lookup", pairOf(x.Lookup(300)), pair{100, 0})
		fill()
		after, err := fsys.Stat(x.Name())
		must(t, err)
		if before.Inode != after.Inode {
			t.Error("the file was replaced, not emptied")
		}
	})
}

// TestC033_UnmapUnderLookups: lookups run beside everything that unmaps, cuts
// and grows, and every answer is a right one.
func TestC033_UnmapUnderLookups(t *testing.T) {
	onEach(t, func(t *testing.T, fsys vfs.FS, dir string) {
		const base, max = 1000, 3000
		offset := func(i int64) int64 { return base + 10*i + 9 } // of entry i
		var maps atomic.Int64
		o := Options{Writable: true, MaxEntries: max, OnMap: func(d int) error { maps.Add(int64(d)); return nil }}
		x := openOffset(t, fsys, filepath.Join(dir, "f.index"), base, o)
		y := openTime(t, fsys, filepath.Join(dir, "f.timeindex"), base, o)
		var stop atomic.Bool
		var wg sync.WaitGroup
		for seed := range uint64(3) {
			wg.Go(func() {
				rng := rand.New(rand.NewPCG(seed, 33))
				for !stop.Load() {
					target := base + rng.Int64N(11*max)
					if at, pos := x.Lookup(target); pos == 0 && at != base || pos != 0 && (at != offset(pos/100-1) || at > target) {
						t.Errorf("Lookup(%d) = %d, %d", target, at, pos)
						return
					}
					if ts, at := y.Lookup(target); ts == NoTimestamp && at != base || ts != NoTimestamp && (at != offset(ts-base) || ts > target) {
						t.Errorf("time Lookup(%d) = %d, %d", target, ts, at)
						return
					}
					if at, pos, ok := x.UpperBoundPos(100 * rng.Int64N(max)); ok && at != offset(pos/100-1) {
						t.Errorf("UpperBoundPos = %d, %d", at, pos)
						return
					}
					if at, pos, ok := x.Last(); ok && at != offset(pos/100-1) {
						t.Errorf("Last = %d, %d", at, pos)
						return
					}
				}
			})
		}
		wg.Go(func() {
			for !stop.Load() {
				x.Unload()
				y.Unload()
				err := errors.Join(x.Sync(), y.Sync())
				if err != nil && !(errors.Is(err, ErrClosed) && stop.Load()) {
					t.Error(err)
					return
				}
			}
		})
		rng := rand.New(rand.NewPCG(5, 33))
		for end := time.Now().Add(time.Second); time.Now().Before(end) && !t.Failed(); {
			switch rng.IntN(20) {
			case 0:
				must(t, errors.Join(x.Trim(), y.Trim()))
			case 1:
				must(t, errors.Join(x.Reset(), y.Reset()))
			case 2, 3:
				to := base + rng.Int64N(12*max)
				must(t, errors.Join(x.TruncateTo(to), y.TruncateTo(to)))
			case 4:
				must(t, errors.Join(x.Check(math.MaxInt64, math.MaxInt64), y.Check(math.MaxInt64, math.MaxInt64)))
			default:
				if x.Len() != y.Len() {
					t.Fatalf("%d offset entries, %d time entries", x.Len(), y.Len())
				}
				for i := int64(x.Len()); i < min(int64(x.Len())+200, max); i++ {
					must(t, errors.Join(x.Append(offset(i), 100*(i+1)), y.AppendFinal(base+i, offset(i))))
				}
			}
		}
		stop.Store(true)
		must(t, errors.Join(x.Close(), y.Close())) // with lookups under way
		wg.Wait()
		expect(t, "maps after Close", maps.Load(), 0)
	})
}

// TestC041_RemovedByHand: the name goes away, or comes to name another file,
// under an open index. The next call that opens it writes all entries anew.
func TestC041_RemovedByHand(t *testing.T) {
	remove := func(t *testing.T, fsys vfs.FS, name string) { must(t, fsys.Remove(name)) }
	replace := func(t *testing.T, fsys vfs.FS, name string) { writeFile(t, fsys, name, bytes.Repeat([]byte{9}, 77)) }
	for _, tc := range []struct {
		name string
		harm func(t *testing.T, fsys vfs.FS, name string)
		then func(x *Offset) error
	}{
		{"removed, then grown", remove, func(x *Offset) error {
			for i := int64(101); i <= 2000; i++ {
				if err := x.Append(10*i, i); err != nil {
					return err
				}
			}
			return x.TruncateTo(1001)
		}},
		{"removed, then trimmed", remove, (*Offset).Trim},
		{"removed, then synced", remove, (*Offset).Sync},
		{"removed, then renamed", remove, func(x *Offset) error { return x.Rename(x.Base(), x.Name()+"2") }},
		{"replaced, then grown", replace, func(x *Offset) error {
			for i := int64(101); i <= 2000; i++ {
				if err := x.Append(10*i, i); err != nil {
					return err
				}
			}
			return x.TruncateTo(1001)
		}},
		{"replaced, then trimmed", replace, (*Offset).Trim},
		{"replaced, then synced", replace, (*Offset).Sync},
	} {
		t.Run(tc.name, func(t *testing.T) {
			onEach(t, func(t *testing.T, fsys vfs.FS, dir string) {
				x := openOffset(t, fsys, filepath.Join(dir, "f"), 0, rw)
				for i := int64(1); i <= 100; i++ {
					must(t, x.Append(10*i, i))
				}
				tc.harm(t, fsys, x.Name())
				expect(t, "Lookup before", pairOf(x.Lookup(505)), pair{500, 50})
				must(t, tc.then(x))
				expect(t, "Lookup after", pairOf(x.Lookup(505)), pair{500, 50})
				expect(t, "Last", lastOf(x.Last()), any(pair{1000, 100}))
				must(t, x.Append(1010, 101))
				must(t, x.Trim())
				must(t, x.Close())
				x = openOffset(t, fsys, x.Name(), 0, Options{Trust: true})
				expect(t, "Len after reopening", x.Len(), 101)
				for i := int64(1); i <= 101; i++ {
					expect(t, fmt.Sprintf("Entry(%d)", i-1), pairOf(x.Entry(int(i-1))), pair{10 * i, i})
				}
			})
		})
	}
}

// TestC041_Synced: what was written anew counts as not synced.
func TestC041_Synced(t *testing.T) {
	fsys := vfs.NewMem(vfs.MemOptions{})
	x := openOffset(t, fsys, "/f", 0, rw)
	must(t, x.Append(10, 1))
	must(t, x.Append(20, 2))
	must(t, errors.Join(x.Trim(), x.Sync(), fsys.SyncDir("/")))
	must(t, fsys.Remove("/f"))
	must(t, errors.Join(x.Trim(), x.Sync(), fsys.SyncDir("/")))
	after := fsys.PowerCut(rand.New(rand.NewPCG(1, 41)))
	if got, want := readFile(t, after, "/f"), []byte{0, 0, 0, 10, 0, 0, 0, 1, 0, 0, 0, 20, 0, 0, 0, 2}; !bytes.Equal(got, want) {
		t.Errorf("after a power cut the file is %x; want %x", got, want)
	}
}

// TestCutUnderTheMap: another process cuts the file. Nothing crashes: lookups
// fall back to what is always right, appends fail, a Reset mends.
func TestCutUnderTheMap(t *testing.T) {
	fill := func(t *testing.T) (*Offset, *Time) {
		dir := t.TempDir()
		x := openOffset(t, vfs.OS, filepath.Join(dir, "f.index"), 7, rw)
		y := openTime(t, vfs.OS, filepath.Join(dir, "f.timeindex"), 7, rw)
		for i := int64(1); i <= 2000; i++ {
			must(t, x.Append(7+10*i, 100*i))
			must(t, y.Append(1000*i, 7+10*i))
		}
		must(t, os.Truncate(x.Name(), 0))
		must(t, os.Truncate(y.Name(), 0))
		return x, y
	}
	for _, tc := range []struct {
		name string
		call func(t *testing.T, x *Offset, y *Time)
	}{
		{"Lookup", func(t *testing.T, x *Offset, y *Time) {
			expect(t, "Lookup", pairOf(x.Lookup(500)), pair{7, 0})
			expect(t, "time Lookup", pairOf(y.Lookup(500000)), pair{-1, 7})
		}},
		{"UpperBoundPos", func(t *testing.T, x *Offset, y *Time) {
			expect(t, "UpperBoundPos", lastOf(x.UpperBoundPos(5000)), nil)
			expect(t, "time Entry", pairOf(y.Entry(5)), pair{-1, 7})
		}},
		{"Last", func(t *testing.T, x *Offset, y *Time) {
			expect(t, "Last", lastOf(x.Last()), nil)
			expect(t, "time Last", lastOf(y.Last()), nil)
		}},
		{"Append", func(t *testing.T, x *Offset, y *Time) {
			if x.Append(1<<20, 1<<20) == nil || y.Append(1<<40, 1<<20) == nil {
				t.Error("Append = nil")
			}
		}},
		{"Check", func(t *testing.T, x *Offset, y *Time) {
			if x.Check(1<<20, 1<<20) == nil || y.Check(1<<20, 1<<40) == nil {
				t.Error("Check = nil")
			}
		}},
		{"TruncateTo", func(t *testing.T, x *Offset, y *Time) {
			if x.TruncateTo(500) == nil || y.TruncateTo(500) == nil {
				t.Error("TruncateTo = nil")
			}
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			x, y := fill(t)
			tc.call(t, x, y)
			for _, err := range []error{x.Err(), y.Err()} {
				if fault := (*mmap.FaultError)(nil); !errors.As(err, &fault) {
					t.Fatalf("Err = %v; want a fault", err)
				}
			}
			if x.Append(1<<20, 1<<20) == nil || x.Trim() == nil || x.Sync() == nil {
				t.Error("the index goes on after a fault")
			}
			expect(t, "Lookup", pairOf(x.Lookup(500)), pair{7, 0})
			must(t, errors.Join(x.Reset(), y.Reset(), x.Err(), y.Err()))
			must(t, errors.Join(x.Append(8, 1), y.Append(9, 8)))
			expect(t, "Lookup after the rebuild", pairOf(x.Lookup(500)), pair{8, 1})
			expect(t, "time Lookup after the rebuild", pairOf(y.Lookup(500)), pair{9, 8})
		})
	}
	t.Run("cut while unloaded", func(t *testing.T) {
		x := openOffset(t, vfs.OS, filepath.Join(t.TempDir(), "f"), 7, rw)
		for i := int64(1); i <= 10; i++ {
			must(t, x.Append(7+i, i))
		}
		must(t, x.Sync())
		expect(t, "Unload", x.Unload(), true)
		must(t, os.Truncate(x.Name(), 40))
		wantErr(t, "Load", x.Load(), ErrCorrupt)
		wantErr(t, "Append", x.Append(50, 50), ErrCorrupt)
		expect(t, "Lookup", pairOf(x.Lookup(9)), pair{7, 0})
	})
}

// TestC058_EqualMaxima: the interval rule repeats the running maximum; the
// entry stays that of the first batch that holds it.
func TestC058_EqualMaxima(t *testing.T) {
	x := newTime(t, 0, rw)
	must(t, x.Append(1700000000000, 9))
	must(t, x.Append(1700000000000, 19)) // second batch with the same maximum
	must(t, x.AppendFinal(1700000000000, 29))
	expect(t, "Lookup", pairOf(x.Lookup(1700000000000)), pair{1700000000000, 9})
	expect(t, "Len", x.Len(), 1)
}

// TestC059_FirstOrLastOffset: brokers before and after Kafka 3.7 differ in the
// offset they record; an index that holds both kinds is sound.
func TestC059_FirstOrLastOffset(t *testing.T) {
	fsys := vfs.NewMem(vfs.MemOptions{})
	x := openTime(t, fsys, "/f", 100, rw)
	// Batches 100–109, 110–119, ...; every third entry names the first offset.
	for i := range int64(73) {
		offset := 100 + 10*i
		if i%3 != 0 {
			offset += 9
		}
		must(t, x.Append(1000+i, offset))
	}
	must(t, x.Trim())
	must(t, x.Check(829, 1072))
	for i := range int64(73) {
		ts, offset := x.Lookup(1000 + i)
		if ts != 1000+i || (offset-100)/10 != i {
			t.Errorf("Lookup(%d) = %d, %d; want a place in batch %d", 1000+i, ts, offset, i)
		}
	}
}
