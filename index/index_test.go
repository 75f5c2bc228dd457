package index

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/tidemark-log/tidemark/internal/vfs"

	"pgregory.net/rapid"
)

// onEach runs f on the real file system and on the heap-backed one, each with
// an empty directory.
func onEach(t *testing.T, f func(t *testing.T, fsys vfs.FS, dir string)) {
	t.Run("fs=os", func(t *testing.T) { f(t, vfs.OS, t.TempDir()) })
	t.Run("fs=mem", func(t *testing.T) { f(t, vfs.NewMem(vfs.MemOptions{}), "/") })
}

var rw = Options{Writable: true, MaxEntries: 4096}

func openOffset(t testing.TB, fsys vfs.FS, name string, base int64, o Options) *Offset {
	t.Helper()
	x, err := OpenOffset(fsys, name, base, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { x.Close() })
	return x
}

func openTime(t testing.TB, fsys vfs.FS, name string, base int64, o Options) *Time {
	t.Helper()
	x, err := OpenTime(fsys, name, base, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { x.Close() })
	return x
}

// newOffset returns an offset index on a file system of its own.
func newOffset(t testing.TB, base int64, o Options) *Offset {
	t.Helper()
	return openOffset(t, vfs.NewMem(vfs.MemOptions{}), "/0.index", base, o)
}

func newTime(t testing.TB, base int64, o Options) *Time {
	t.Helper()
	return openTime(t, vfs.NewMem(vfs.MemOptions{}), "/0.timeindex", base, o)
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func wantErr(t testing.TB, what string, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%s = %v; want %v", what, err, want)
	}
}

func writeFile(t testing.TB, fsys vfs.FS, name string, b []byte) {
	t.Helper()
	must(t, vfs.WriteFileAtomic(fsys, name, b))
}

func readFile(t testing.TB, fsys vfs.FS, name string) []byte {
	t.Helper()
	b, err := vfs.ReadFile(fsys, name, 64<<20)
	must(t, err)
	return b
}

// pair is an entry of either kind, or any other answer of two numbers.
type pair struct{ a, b int64 }

func pairOf(a, b int64) pair { return pair{a, b} }

func lastOf(a, b int64, ok bool) any {
	if !ok {
		return nil
	}
	return pair{a, b}
}

func expect[T comparable](t testing.TB, what string, got, want T) {
	t.Helper()
	if got != want {
		t.Errorf("%s = %v; want %v", what, got, want)
	}
}

func TestOffsetScenarios(t *testing.T) {
	t.Run("scenario 39: lookup in an empty index", func(t *testing.T) {
		x := newOffset(t, 45, rw)
		expect(t, "Lookup(99)", pairOf(x.Lookup(99)), pair{45, 0})
		expect(t, "Last", lastOf(x.Last()), nil)
	})
	t.Run("scenario 40: lookup below the first entry", func(t *testing.T) {
		x := newOffset(t, 45, rw)
		must(t, x.Append(50, 7))
		for _, target := range []int64{math.MinInt64, -1, 0, 44, 45, 49} {
			expect(t, fmt.Sprintf("Lookup(%d)", target), pairOf(x.Lookup(target)), pair{45, 0})
		}
		for _, target := range []int64{50, 51, 1 << 40, math.MaxInt64} {
			expect(t, fmt.Sprintf("Lookup(%d)", target), pairOf(x.Lookup(target)), pair{50, 7})
		}
	})
	t.Run("scenario 41: lookup in a full index", func(t *testing.T) {
		o := rw
		o.MaxEntries = 3000
		for _, spread := range []int64{1, 2, 37, 100_000} {
			x := newOffset(t, 45, o)
			rng := rand.New(rand.NewPCG(7, uint64(spread)))
			var offsets []int64
			for at := int64(45); len(offsets) < o.MaxEntries; {
				at += 1 + rng.Int64N(spread)
				offsets = append(offsets, at)
				must(t, x.Append(at, int64(len(offsets))))
			}
			expect(t, "Full", x.Full(), true)
			for range 5000 {
				target := 45 + rng.Int64N(offsets[len(offsets)-1]-40)
				if rng.IntN(2) == 0 {
					target = offsets[rng.IntN(len(offsets))]
				}
				i, found := slices.BinarySearch(offsets, target)
				if !found {
					i--
				}
				want := pair{45, 0}
				if i >= 0 {
					want = pair{offsets[i], int64(i + 1)}
				}
				if got := pairOf(x.Lookup(target)); got != want {
					t.Fatalf("spread %d: Lookup(%d) = %v; want %v", spread, target, got, want)
				}
			}
		}
	})
	t.Run("scenario 42: append when full", func(t *testing.T) {
		x := newOffset(t, 45, Options{Writable: true, MaxEntries: 3})
		for i := range int64(3) {
			expect(t, "Full", x.Full(), false)
			must(t, x.Append(46+i, i))
		}
		expect(t, "Full", x.Full(), true)
		wantErr(t, "fourth append", x.Append(60, 60), ErrFull)
		expect(t, "Last", lastOf(x.Last()), any(pair{48, 2}))
	})
	t.Run("scenario 43: append out of order", func(t *testing.T) {
		x := newOffset(t, 40, rw)
		must(t, x.Append(51, 10))
		wantErr(t, "append 50", x.Append(50, 20), ErrOrder)
		wantErr(t, "append 51 again", x.Append(51, 20), ErrOrder)
		wantErr(t, "append at the same position", x.Append(52, 10), ErrOrder)
		expect(t, "Len", x.Len(), 1)
	})
	t.Run("scenarios 44 and 45: upper bound", func(t *testing.T) {
		x := newOffset(t, 45, rw)
		for _, e := range []pair{{45, 0}, {46, 10}, {47, 23}, {48, 37}} {
			must(t, x.Append(e.a, e.b))
		}
		for _, tc := range []struct {
			pos, size int64
			want      any
		}{
			{0, 5, pair{46, 10}},
			{0, 10, pair{46, 10}},
			{0, 22, pair{47, 23}},
			{0, 23, pair{47, 23}},
			{10, 24, pair{48, 37}},
			{37, 1, nil},
			{0, 200, nil},
		} {
			expect(t, fmt.Sprintf("UpperBoundPos(%d+%d)", tc.pos, tc.size), lastOf(x.UpperBoundPos(tc.pos+tc.size)), tc.want)
		}
	})
	t.Run("scenario 47: truncate", func(t *testing.T) {
		x := newOffset(t, 0, Options{Writable: true, MaxEntries: 10})
		for i := range int64(9) {
			must(t, x.Append(i+1, i+1))
		}
		for _, tc := range []struct{ to, last int64 }{{12, 9}, {10, 9}, {9, 8}, {5, 4}} {
			must(t, x.TruncateTo(tc.to))
			expect(t, fmt.Sprintf("last after TruncateTo(%d)", tc.to), lastOf(x.Last()), any(pair{tc.last, tc.last}))
			must(t, x.Append(tc.last+1, tc.last+1))
			if tc.to != 10 {
				must(t, x.TruncateTo(tc.last+1))
			}
		}
	})
	t.Run("scenario 48: entry at the base", func(t *testing.T) {
		x := newOffset(t, 45, rw)
		must(t, x.Append(45, 0))
		must(t, x.Check(45, 0))
		expect(t, "Lookup(45)", pairOf(x.Lookup(45)), pair{45, 0})
		must(t, x.Append(46, 9))
		must(t, x.Close())
	})
	t.Run("out of range", func(t *testing.T) {
		x := newOffset(t, 45, rw)
		wantErr(t, "below the base", x.Append(44, 1), ErrRange)
		wantErr(t, "2^31 above the base", x.Append(45+1<<31, 1), ErrRange)
		wantErr(t, "position 2^31", x.Append(46, 1<<31), ErrRange)
		wantErr(t, "negative position", x.Append(46, -1), ErrRange)
		wantErr(t, "least offset", x.Append(math.MinInt64, 1), ErrRange)
		must(t, x.Append(45+math.MaxInt32, math.MaxInt32))
		expect(t, "Lookup(max)", pairOf(x.Lookup(math.MaxInt64)), pair{45 + math.MaxInt32, math.MaxInt32})
		expect(t, "Lookup(below it)", pairOf(x.Lookup(44+math.MaxInt32)), pair{45, 0})
	})
}

func TestTimeScenarios(t *testing.T) {
	t.Run("scenario 50: lookup", func(t *testing.T) {
		x := newTime(t, 45, rw)
		expect(t, "Lookup in an empty index", pairOf(x.Lookup(100)), pair{-1, 45})
		for i := int64(1); i <= 10; i++ {
			must(t, x.Append(10*i, 45+10*i))
		}
		for _, tc := range []struct {
			ts   int64
			want pair
		}{
			{-1, pair{-1, 45}}, {9, pair{-1, 45}}, {10, pair{10, 55}}, {25, pair{20, 65}}, {30, pair{30, 75}},
			{99, pair{90, 135}}, {100, pair{100, 145}}, {math.MaxInt64, pair{100, 145}}, {math.MinInt64, pair{-1, 45}},
		} {
			expect(t, fmt.Sprintf("Lookup(%d)", tc.ts), pairOf(x.Lookup(tc.ts)), tc.want)
		}
	})
	t.Run("scenario 51: the last entry is held back", func(t *testing.T) {
		x := newTime(t, 0, Options{Writable: true, MaxEntries: 3})
		must(t, x.Append(10, 1))
		expect(t, "Full", x.Full(), false)
		must(t, x.Append(20, 2))
		expect(t, "Full", x.Full(), true)
		wantErr(t, "Append", x.Append(30, 3), ErrFull)
		must(t, x.AppendFinal(30, 3))
		wantErr(t, "second AppendFinal", x.AppendFinal(40, 4), ErrFull)
		expect(t, "Last", lastOf(x.Last()), any(pair{30, 3}))
		must(t, x.Sync())
		expect(t, "Unload", x.Unload(), true)
		must(t, x.AppendFinal(30, 9)) // said again, as by a close after a roll
	})
	t.Run("scenario 52: final entry out of order", func(t *testing.T) {
		x := newTime(t, 0, rw)
		must(t, x.Append(10, 5))
		wantErr(t, "lower offset", x.AppendFinal(20, 4), ErrOrder)
		wantErr(t, "lower offset, same timestamp", x.AppendFinal(10, 4), ErrOrder)
		wantErr(t, "lower timestamp", x.AppendFinal(9, 6), ErrOrder)
		expect(t, "Len", x.Len(), 1)
	})
	t.Run("scenario 53: truncate to the first entry", func(t *testing.T) {
		x := newTime(t, 45, rw)
		for i := int64(1); i <= 9; i++ {
			must(t, x.Append(10*i, 45+i))
		}
		must(t, x.TruncateTo(50))
		expect(t, "Last", lastOf(x.Last()), any(pair{40, 49}))
		must(t, x.TruncateTo(46))
		expect(t, "Len", x.Len(), 0)
		must(t, x.Append(7, 46))
	})
	t.Run("scenario 55: equal timestamp", func(t *testing.T) {
		x := newTime(t, 0, rw)
		must(t, x.Append(10, 5))
		must(t, x.Append(10, 6))
		must(t, x.AppendFinal(10, 7))
		expect(t, "Len", x.Len(), 1)
		expect(t, "Last", lastOf(x.Last()), any(pair{10, 5}))
	})
	t.Run("no timestamp", func(t *testing.T) {
		x := newTime(t, 0, rw)
		must(t, x.Append(NoTimestamp, 5))
		must(t, x.AppendFinal(NoTimestamp, 5))
		expect(t, "Len", x.Len(), 0)
		must(t, x.Append(0, 7))
		wantErr(t, "−1 after 0", x.Append(NoTimestamp, 8), ErrOrder)
		expect(t, "Last", lastOf(x.Last()), any(pair{0, 7}))
	})
	t.Run("out of range", func(t *testing.T) {
		x := newTime(t, 45, rw)
		wantErr(t, "below the base", x.Append(1, 44), ErrRange)
		wantErr(t, "2^31 above the base", x.Append(1, 45+1<<31), ErrRange)
		must(t, x.Append(math.MaxInt64, 45+math.MaxInt32))
		expect(t, "Lookup(max)", pairOf(x.Lookup(math.MaxInt64)), pair{math.MaxInt64, 45 + math.MaxInt32})
	})
}

// TestReopen is scenario 46 and what a process leaves that did not trim.
func TestReopen(t *testing.T) {
	trust := Options{Writable: true, Trust: true, MaxEntries: 2}
	onEach(t, func(t *testing.T, fsys vfs.FS, dir string) {
		for _, trim := range []bool{true, false} {
			t.Run(fmt.Sprintf("scenario 46: trim=%v", trim), func(t *testing.T) {
				name, tname := filepath.Join(dir, fmt.Sprint(trim, ".index")), filepath.Join(dir, fmt.Sprint(trim, ".timeindex"))
				x := openOffset(t, fsys, name, 45, rw)
				y := openTime(t, fsys, tname, 45, rw)
				for i := int64(1); i <= 2; i++ {
					must(t, x.Append(45+i, 4*i))
					must(t, y.Append(100*i, 45+i))
				}
				if trim {
					must(t, x.Trim())
					must(t, y.Trim())
					expect(t, "bytes of the offset index", len(readFile(t, fsys, name)), 2*OffsetEntrySize)
					expect(t, "bytes of the time index", len(readFile(t, fsys, tname)), 2*TimeEntrySize)
				} else {
					expect(t, "bytes of the offset index", len(readFile(t, fsys, name)), firstChunk)
				}
				must(t, x.Close())
				must(t, y.Close())

				x, y = openOffset(t, fsys, name, 45, trust), openTime(t, fsys, tname, 45, trust)
				expect(t, "Len", x.Len(), 2)
				expect(t, "Last", lastOf(x.Last()), any(pair{47, 8}))
				expect(t, "Last time", lastOf(y.Last()), any(pair{200, 47}))
				wantErr(t, "Append", x.Append(48, 12), ErrFull)
				must(t, y.AppendFinal(200, 60)) // what a roll after a clean close does
				wantErr(t, "AppendFinal", y.AppendFinal(300, 60), ErrFull)
				must(t, x.Check(47, 8))
				must(t, y.Check(47, 200))
			})
		}
	})
}

// TestLoadTail: what ends a trusted file is believed, dropped or damage.
func TestLoadTail(t *testing.T) {
	const zero8 = "0000000000000000"
	const zero12 = zero8 + "00000000"
	const good = "0000000200000010" + "000000fa00001068" // base 100: (102, 16), (350, 4200)
	const goodTs = "0000018bcfe5687b00000002" + "0000018bcfe58f0f000000fa"
	for _, tc := range []struct {
		name  string
		time  bool
		hex   string
		end   int64
		len   int
		found string // in the CorruptError of a read-only Check; "" if there is none
	}{
		{"trimmed", false, good, 0, 2, ""},
		{"empty", false, "", 0, 0, ""},
		{"zero tail", false, good + zero8 + zero8 + zero8, 0, 2, ""},
		{"C001: nothing but zeros", false, strings.Repeat(zero8, 500), 0, 0, ""},
		{"scenario 48: one entry at (base, 0)", false, zero8, 0, 1, ""},
		{"one entry at (base, 0), untrimmed", false, zero8 + zero8, 0, 0, ""},
		{"first entry at (base, 0)", false, zero8 + good + zero8, 0, 3, ""},
		{"scenario 49: 20 bytes", false, good + "00000000", 0, 2, "found 20 bytes, want a multiple of 8"},
		{"three bytes", false, "010203", 0, 0, "found 3 bytes, want a multiple of 8"},
		{"last offset below the base", false, good + "ffffffff00002000" + zero8, 0, 2, "entry 2: found relative offset -1"},
		{"last offset again", false, good + "000000fa00002000", 0, 2, "entry 2: found relative offset 250, want above 250"},
		{"last position again", false, good + "000000fb00001068", 0, 2, "entry 2: found position 4200, want above 4200"},
		{"negative position", false, "0000000180000000", 0, 0, "entry 0: found position -2147483648"},
		{"entries above the end", false, good + zero8, 351, 2, ""},
		{"last entry at the end", false, good + zero8, 350, 1, "entry 1: found offset 350, want below the log end 350"},
		{"all entries above the end", false, good, 102, 0, "entry 0: found offset 102, want below the log end 102"},

		{"trimmed", true, goodTs, 0, 2, ""},
		{"zero tail", true, goodTs + zero12 + zero12, 0, 2, ""},
		{"C004: nothing but zeros", true, strings.Repeat(zero12, 500), 0, 0, ""},
		{"first entry at (0, base)", true, zero12 + goodTs + zero12, 0, 3, ""},
		{"only entry at (0, base), trimmed", true, zero12, 0, 1, ""},
		{"scenario 54: length", true, goodTs + zero8, 0, 2, "found 32 bytes, want a multiple of 12"},
		{"scenario 54: last offset below the base", true, goodTs + "0000018bcfe58fffffffffff", 0, 2, "entry 2: found relative offset -1"},
		{"scenario 54: last timestamp below", true, goodTs + "0000018bcfe5687a00000100" + zero12, 0, 2, "entry 2: found timestamp 1700000000122"},
		{"torn: timestamp without offset", true, goodTs + "0000018bcfe58fff00000000" + zero12, 0, 2, "entry 2: found relative offset 0, want at least 250"},
		{"torn: offset without timestamp", true, goodTs + "000000000000000000000100" + zero12, 0, 2, "entry 2: found timestamp 0, want above"},
		{"torn above the end", true, goodTs + zero12, 350, 1, "entry 1: found offset 350, want below the log end 350"},
		{"negative timestamp", true, "ffffffffffffffff00000002", 0, 0, "entry 0: found timestamp -1"},
	} {
		t.Run(fmt.Sprintf("time=%v/%s", tc.time, tc.name), func(t *testing.T) {
			raw, err := hex.DecodeString(tc.hex)
			must(t, err)
			fsys := vfs.NewMem(vfs.MemOptions{})
			writeFile(t, fsys, "/f", raw)
			open := func(writable bool) (*file, func() error) {
				o := Options{Trust: true, Writable: writable, End: tc.end}
				if tc.time {
					x := openTime(t, fsys, "/f", 100, o)
					return &x.file, func() error { return x.Check(math.MaxInt64, math.MaxInt64) }
				}
				x := openOffset(t, fsys, "/f", 100, o)
				return &x.file, func() error { return x.Check(math.MaxInt64, math.MaxInt64) }
			}
			x, check := open(false)
			expect(t, "Len", x.Len(), tc.len)
			err = check()
			switch bad := (*CorruptError)(nil); {
			case tc.found == "":
				must(t, err)
			case !errors.As(err, &bad) || !errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), tc.found):
				t.Errorf("Check = %v; want a CorruptError with %q", err, tc.found)
			case bad.File != "/f":
				t.Errorf("Check names file %q", bad.File)
			}
			if got := readFile(t, fsys, "/f"); !bytes.Equal(got, raw) {
				t.Error("a read-only index changed its file")
			}
			must(t, x.Close())

			x, check = open(true)
			expect(t, "Len when writable", x.Len(), tc.len)
			must(t, check())
			if got := readFile(t, fsys, "/f"); tc.found != "" && len(got) != tc.len*x.layout.size {
				t.Errorf("a writable index left %d bytes for %d entries", len(got), tc.len)
			}
			must(t, x.Trim())
			if got, want := readFile(t, fsys, "/f"), raw[:tc.len*x.layout.size]; !bytes.Equal(got, want) {
				t.Errorf("trimmed to %x; want %x", got, want)
			}
		})
	}
}

// TestCheck: entries that Load has no reason to look at.
func TestCheck(t *testing.T) {
	for _, tc := range []struct {
		name, hex      string
		maxOff, maxPos int64
		want           string
	}{
		{"fine", "00000001000000010000000200000002", 102, 2, ""},
		{"offset too high", "00000001000000010000000200000002", 101, 2, "entry 1: found offset 102, want at most 101"},
		{"position too high", "00000001000000010000000200000002", 102, 1, "entry 1: found position 2, want at most 1"},
		{"backwards in the middle", "000000050000000100000004000000020000000600000003", 200, 99, "entry 1: found relative offset 4, want above 5"},
		{"zero in the middle", "000000050000000100000000000000000000000600000003", 200, 99, "entry 1: found relative offset 0, want above 5"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			raw, err := hex.DecodeString(tc.hex)
			must(t, err)
			fsys := vfs.NewMem(vfs.MemOptions{})
			writeFile(t, fsys, "/f", raw)
			x := openOffset(t, fsys, "/f", 100, Options{Trust: true})
			err = x.Check(tc.maxOff, tc.maxPos)
			if tc.want == "" {
				must(t, err)
			} else if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("Check = %v; want %q", err, tc.want)
			}
		})
	}
}

// TestGolden is log-format §11.3.
func TestGolden(t *testing.T) {
	onEach(t, func(t *testing.T, fsys vfs.FS, dir string) {
		x := openOffset(t, fsys, filepath.Join(dir, "f.index"), 100, rw)
		must(t, x.Append(102, 0))
		must(t, x.Append(350, 4200))
		must(t, x.Trim())
		expect(t, "offset index", hex.EncodeToString(readFile(t, fsys, x.Name())), "0000000200000000000000fa00001068")
		y := openTime(t, fsys, filepath.Join(dir, "f.timeindex"), 100, rw)
		must(t, y.Append(1700000000123, 102))
		must(t, y.AppendFinal(1700000009999, 350))
		must(t, y.Trim())
		expect(t, "time index", hex.EncodeToString(readFile(t, fsys, y.Name())), "0000018bcfe5687b000000020000018bcfe58f0f000000fa")
	})
}

// TestCapacity is log-format §3.4: Kafka's sizes, rounded down to whole entries.
func TestCapacity(t *testing.T) {
	x, y := newOffset(t, 0, Options{}), newTime(t, 0, Options{})
	expect(t, "offset entries", x.opt.MaxEntries, 1_310_720)
	expect(t, "time entries", y.opt.MaxEntries, 873_813)
	_, err := OpenOffset(vfs.OS, "f", 0, Options{MaxEntries: math.MaxInt})
	wantErr(t, "too many entries", err, ErrRange)
	_, err = OpenTime(vfs.OS, "f", -2, Options{})
	wantErr(t, "negative base", err, ErrRange)
}

// TestLazy: an index touches its file when it has to, and not before.
func TestLazy(t *testing.T) {
	mem := vfs.NewMem(vfs.MemOptions{})
	fsys := vfs.NewFaulty(mem)
	ops := func() (ops []string) {
		for _, c := range fsys.Calls() {
			ops = append(ops, c.Op.String())
		}
		fsys.ResetCalls()
		return ops
	}
	expectOps := func(what string, want ...string) {
		t.Helper()
		if got := ops(); !slices.Equal(got, want) {
			t.Errorf("%s made the calls %q; want %q", what, got, want)
		}
	}
	maps := 0
	o := rw
	o.OnMap = func(delta int) error { maps += delta; return nil }

	x := openOffset(t, fsys, "/f", 0, o)
	expectOps("open without trust", "stat")
	x.Lookup(5)
	x.Last()
	expectOps("reading an empty index")
	must(t, x.Append(1, 1))
	expectOps("first append", "open", "create", "stat", "truncate", "stat", "allocate", "map", "populate", "close")
	for i := int64(2); i <= firstChunk/OffsetEntrySize; i++ {
		must(t, x.Append(i, i))
	}
	expectOps("appends into the chunk")
	must(t, x.Append(1000, 1000))
	expectOps("append behind the chunk", "open", "stat", "allocate", "populate", "close")
	expect(t, "maps", maps, 1)
	expect(t, "bytes", len(readFile(t, mem, "/f")), 2*firstChunk)
	must(t, x.Sync())
	ops()
	must(t, x.Sync())
	expectOps("sync with nothing new")
	expect(t, "Unload", x.Unload(), true)
	expect(t, "maps after Unload", maps, 0)
	expectOps("Unload", "unmap")
	expect(t, "Len", x.Len(), 513)
	expectOps("Len of an unloaded index")
	expect(t, "Lookup", pairOf(x.Lookup(7)), pair{7, 7})
	expectOps("lookup in an unloaded index", "open", "stat", "map", "close")
	must(t, x.Append(1001, 1001)) // from a read-only map to a writable one
	expect(t, "maps", maps, 1)
	must(t, x.Trim())
	must(t, x.Close())
	expect(t, "maps after Close", maps, 0)
	ops()

	o.Trust = true
	x = openOffset(t, fsys, "/f", 0, o)
	expectOps("open with trust")
	expect(t, "Last", lastOf(x.Last()), any(pair{1001, 1001}))
	expectOps("first look", "open", "stat", "map", "close")
	must(t, x.Close())
	ops()

	// C024: a missing index is empty, and reading does not make it.
	y := openTime(t, fsys, "/g", 500, o)
	expect(t, "Last", lastOf(y.Last()), nil)
	expect(t, "Lookup", pairOf(y.Lookup(1)), pair{-1, 500})
	must(t, y.Check(499, 0))
	must(t, y.Sync())
	expect(t, "maps", maps, 0)
	if ok, err := vfs.Exists(mem, "/g"); ok || err != nil {
		t.Errorf("a read made the file: %v, %v", ok, err)
	}
	must(t, y.Trim())
	expect(t, "bytes after Trim", len(readFile(t, mem, "/g")), 0)
}

// TestGrowth: chunks double from 4 to 64 KiB and stop at the capacity, and a
// file is always whole entries.
func TestGrowth(t *testing.T) {
	fsys := vfs.NewMem(vfs.MemOptions{})
	x := openTime(t, fsys, "/f", 0, Options{Writable: true, MaxEntries: 20000})
	var sizes []int64
	for i := range int64(20000) {
		must(t, x.AppendFinal(i+1, i))
		info, err := fsys.Stat("/f")
		must(t, err)
		if len(sizes) == 0 || sizes[len(sizes)-1] != info.Size {
			sizes = append(sizes, info.Size)
		}
	}
	want := []int64{4092, 8184, 16380, 32760, 65532, 131064, 196608, 240000}
	if !slices.Equal(sizes, want) {
		t.Errorf("file sizes %v; want %v", sizes, want)
	}
}

// TestUnsynced: the map stays while it holds what no sync covered.
func TestUnsynced(t *testing.T) {
	x := newOffset(t, 0, rw)
	must(t, x.Append(1, 1))
	expect(t, "Unload before the sync", x.Unload(), false)
	must(t, x.StartSync())
	must(t, x.Append(2, 2))
	must(t, x.FinishSync())
	expect(t, "Unload after an append during the sync", x.Unload(), false)
	must(t, x.Sync())
	expect(t, "Unload after the sync", x.Unload(), true)
	must(t, x.TruncateTo(2))
	expect(t, "Unload after a truncation", x.Unload(), false)
	must(t, x.Append(2, 3)) // as many entries as synced, others
	expect(t, "Unload after other entries", x.Unload(), false)
}

func TestOnMapRefuses(t *testing.T) {
	refused := errors.New("too many maps")
	refuse := true
	o := Options{Writable: true, MaxEntries: 100, OnMap: func(delta int) error {
		if delta > 0 && refuse {
			return refused
		}
		return nil
	}}
	fsys := vfs.NewMem(vfs.MemOptions{})
	x := openOffset(t, fsys, "/f", 10, o)
	wantErr(t, "Append", x.Append(11, 1), refused)
	expect(t, "Len", x.Len(), 0)
	refuse = false
	must(t, x.Append(11, 1))
	must(t, x.Sync())
	expect(t, "Unload", x.Unload(), true)
	refuse = true
	expect(t, "Lookup without a map", pairOf(x.Lookup(11)), pair{10, 0})
	expect(t, "Last without a map", lastOf(x.Last()), nil)
	wantErr(t, "Load", x.Load(), refused)
	wantErr(t, "Check", x.Check(11, 1), refused)
	wantErr(t, "TruncateTo", x.TruncateTo(10), refused)
	must(t, x.Err()) // not sticky
	refuse = false
	expect(t, "Lookup", pairOf(x.Lookup(11)), pair{11, 1})
}

// TestC035_MapRefused: a file system that cannot map.
func TestC035_MapRefused(t *testing.T) {
	fsys := vfs.NewFaulty(vfs.NewMem(vfs.MemOptions{}), vfs.Rule{Ops: vfs.OpMap, Err: syscall.EINVAL})
	maps := 0
	x := openOffset(t, fsys, "/f", 0, Options{Writable: true, OnMap: func(d int) error { maps += d; return nil }})
	err := x.Append(1, 1)
	wantErr(t, "Append", err, syscall.EINVAL)
	expect(t, "maps", maps, 0)
	if err == nil || !strings.Contains(err.Error(), "/f") {
		t.Errorf("Append = %v; want the path in it", err)
	}
	expect(t, "Len", x.Len(), 0)
}

// TestDiskFull: no room for a chunk refuses the append and changes nothing.
func TestDiskFull(t *testing.T) {
	fsys := vfs.NewMem(vfs.MemOptions{Capacity: 4096})
	x := openOffset(t, fsys, "/f", 0, rw)
	const n = firstChunk / OffsetEntrySize
	for i := range int64(n) {
		must(t, x.Append(i, i))
	}
	wantErr(t, "Append on a full disk", x.Append(n, n), syscall.ENOSPC)
	expect(t, "Len", x.Len(), n)
	expect(t, "Lookup", pairOf(x.Lookup(77)), pair{77, 77})
	must(t, x.TruncateTo(100))
	must(t, x.Append(100, 100))
	fsys.SetCapacity(1 << 20)
	for i := int64(101); i <= n; i++ {
		must(t, x.Append(i, i))
	}
}

// TestC047_EveryCallFails: each call fails in turn, once; there is no panic, the
// error comes out, and once the cause is gone a Reset and the rebuild work.
func TestC047_EveryCallFails(t *testing.T) {
	story := func(fsys vfs.FS) error {
		o := Options{Writable: true, Trust: true, MaxEntries: 2000}
		x, err := OpenOffset(fsys, "/f", 0, o)
		if err != nil {
			return err
		}
		defer x.Close()
		if err := x.Load(); err != nil { // Len and lookups would hide it
			return err
		}
		for i := int64(x.Len()) + 1; i <= 600; i++ {
			if err := x.Append(i, i); err != nil {
				return err
			}
		}
		if err := x.TruncateTo(550); err != nil {
			return err
		}
		if err := x.Sync(); err != nil {
			return err
		}
		x.Unload()
		if err := x.Load(); err != nil {
			return err
		}
		if at, pos := x.Lookup(300); at != 300 || pos != 300 {
			return fmt.Errorf("Lookup(300) = %d, %d", at, pos)
		}
		if err := x.Append(550, 550); err != nil {
			return err
		}
		if err := x.Rename(0, "/g"); err != nil {
			return err
		}
		if err := x.Trim(); err != nil {
			return err
		}
		if err := x.Check(550, 550); err != nil {
			return err
		}
		if err := x.Rename(0, "/f"); err != nil {
			return err
		}
		return x.Close()
	}
	counting := vfs.NewFaulty(vfs.NewMem(vfs.MemOptions{}))
	must(t, story(counting))
	calls := counting.Calls()
	if len(calls) < 30 {
		t.Fatalf("the story makes %d calls", len(calls))
	}
	injected := errors.New("injected")
	for i, c := range calls {
		t.Run(fmt.Sprintf("call=%d/op=%s", i, c.Op), func(t *testing.T) {
			mem := vfs.NewMem(vfs.MemOptions{})
			// What these leave undone harms nothing.
			quiet := c.Op&(vfs.OpUnmap|vfs.OpPopulate|vfs.OpClose) != 0
			err := story(vfs.NewFaulty(mem, vfs.Rule{After: i, Count: 1, Err: injected}))
			if err != nil && !errors.Is(err, injected) || err == nil && !quiet {
				t.Errorf("story = %v; want the injected error", err)
			}
			x := openOffset(t, mem, "/f", 0, Options{Writable: true, MaxEntries: 2000})
			must(t, x.Reset())
			must(t, x.Append(5, 5))
			must(t, x.Check(5, 5))
		})
	}
}

func TestClosed(t *testing.T) {
	fsys := vfs.NewMem(vfs.MemOptions{})
	x := openOffset(t, fsys, "/f", 3, rw)
	y := openTime(t, fsys, "/g", 3, rw)
	must(t, x.Append(4, 4))
	must(t, y.Append(4, 4))
	must(t, x.Close())
	must(t, y.Close())
	must(t, x.Close())
	for what, err := range map[string]error{
		"Append": x.Append(5, 5), "time Append": y.Append(5, 5), "AppendFinal": y.AppendFinal(5, 5),
		"TruncateTo": x.TruncateTo(3), "Reset": x.Reset(), "Trim": x.Trim(), "Load": x.Load(), "Prepare": x.Prepare(),
		"StartSync": x.StartSync(), "Sync": x.Sync(), "Rename": x.Rename(3, "/h"), "SetBase": x.SetBase(9),
		"Check": x.Check(9, 9), "time Check": y.Check(9, 9), "Err": x.Err(),
	} {
		wantErr(t, what, err, ErrClosed)
	}
	expect(t, "Lookup", pairOf(x.Lookup(4)), pair{3, 0})
	expect(t, "time Lookup", pairOf(y.Lookup(4)), pair{-1, 3})
	expect(t, "Last", lastOf(x.Last()), nil)
	expect(t, "Entry", pairOf(x.Entry(0)), pair{3, 0})
	expect(t, "Unload", x.Unload(), true)
}

func TestReadOnly(t *testing.T) {
	fsys := vfs.NewMem(vfs.MemOptions{})
	writeFile(t, fsys, "/f", []byte{0, 0, 0, 1, 0, 0, 0, 1})
	x := openOffset(t, fsys, "/f", 0, Options{Trust: true})
	for what, err := range map[string]error{
		"Append": x.Append(5, 5), "TruncateTo": x.TruncateTo(0), "Reset": x.Reset(), "Trim": x.Trim(), "Prepare": x.Prepare(),
	} {
		wantErr(t, what, err, ErrReadOnly)
	}
	expect(t, "Last", lastOf(x.Last()), any(pair{1, 1}))

	y := openOffset(t, fsys, "/f", 0, Options{}) // neither trusted nor to be rebuilt
	expect(t, "Len", y.Len(), 0)
	expect(t, "bytes", len(readFile(t, fsys, "/f")), 8)
}

// TestPrepared: a next segment's index is made before its base is known.
func TestPrepared(t *testing.T) {
	onEach(t, func(t *testing.T, mem vfs.FS, dir string) {
		fsys := vfs.NewFaulty(mem)
		tmp, name := filepath.Join(dir, "next.index.tmp"), filepath.Join(dir, "00000000000000000777.index")
		x := openOffset(t, fsys, tmp, UnknownBase, rw)
		must(t, x.Prepare())
		wantErr(t, "Append without a base", x.Append(778, 1), ErrRange)
		expect(t, "Lookup without a base", pairOf(x.Lookup(5)), pair{UnknownBase, 0})
		must(t, x.Rename(777, name))
		expect(t, "Base", x.Base(), 777)
		fsys.ResetCalls()
		must(t, x.Append(778, 1))
		expect(t, "calls of the first append", len(fsys.Calls()), 0)
		must(t, x.SetBase(777))
		wantErr(t, "another base", x.SetBase(700), ErrRange)
		must(t, x.Trim())
		expect(t, "file", hex.EncodeToString(readFile(t, mem, name)), "0000000100000001")
		if ok, err := vfs.Exists(mem, tmp); ok || err != nil {
			t.Errorf("the temporary name exists: %v, %v", ok, err)
		}
		must(t, x.Rename(777, name+".deleted"))
		expect(t, "Lookup", pairOf(x.Lookup(800)), pair{778, 1})
		must(t, x.Remove())
		must(t, x.Remove())
		infos, err := mem.List(dir)
		must(t, err)
		expect(t, "files left", len(infos), 0)
	})
}

// TestStale: a file that is not trusted is emptied when it is opened, although
// no entry may ever come.
func TestStale(t *testing.T) {
	onEach(t, func(t *testing.T, fsys vfs.FS, dir string) {
		name := filepath.Join(dir, "f")
		writeFile(t, fsys, name, bytes.Repeat([]byte{1}, 10000))
		x := openOffset(t, fsys, name, 0, rw)
		expect(t, "bytes", len(readFile(t, fsys, name)), 0)
		expect(t, "Len", x.Len(), 0)
		must(t, x.Append(1, 1))
		if b := readFile(t, fsys, name); !vfs.AllZero(b[8:]) {
			t.Error("old bytes stand behind the entry")
		}
	})
}

// TestStaleBehindEntries is log-format §3.4: Kafka leaves old entries behind a
// truncated index. They may not come back behind ours.
func TestStaleBehindEntries(t *testing.T) {
	fsys := vfs.NewMem(vfs.MemOptions{})
	var raw []byte
	for i := range byte(100) {
		raw = append(raw, 0, 0, 0, i+1, 0, 0, 0, i+1)
	}
	writeFile(t, fsys, "/f", append(raw, make([]byte, 3296)...))
	x := openOffset(t, fsys, "/f", 0, Options{Writable: true, Trust: true, MaxEntries: 1000, End: 51})
	expect(t, "Len", x.Len(), 50)
	must(t, x.Append(60, 60))
	must(t, x.Close())
	x = openOffset(t, fsys, "/f", 0, Options{Writable: true, Trust: true, MaxEntries: 1000})
	expect(t, "Len after reopening", x.Len(), 51)
	expect(t, "Last", lastOf(x.Last()), any(pair{60, 60}))

	// Stale ones behind zeros, where the load does not see them.
	raw = append(raw[:24:24], make([]byte, 72)...)
	raw[11*OffsetEntrySize+3], raw[11*OffsetEntrySize+7] = 99, 99
	writeFile(t, fsys, "/g", raw)
	x = openOffset(t, fsys, "/g", 0, Options{Writable: true, Trust: true, MaxEntries: 1000})
	expect(t, "Len", x.Len(), 3)
	for i := int64(4); i <= 11; i++ {
		must(t, x.Append(i, i))
	}
	must(t, x.Close())
	x = openOffset(t, fsys, "/g", 0, Options{Trust: true})
	expect(t, "Last", lastOf(x.Last()), any(pair{11, 11}))
}

// TestLookupShapes: however uneven the offsets, each entry, its neighbours and
// the gaps between are found.
func TestLookupShapes(t *testing.T) {
	for _, tc := range []struct {
		name string
		step func(i int64) int64
	}{
		{"dense, then sparse", func(i int64) int64 { return 1 + i/90*100_000 }},
		{"sparse, then dense", func(i int64) int64 { return 1 + (1-min(i/90, 1))*100_000 }},
		{"ever sparser", func(i int64) int64 { return 1 + i*i }},
		{"bursts", func(i int64) int64 { return 1 + i%50/49*1_000_000 }},
	} {
		for _, n := range []int{1, 2, 3, 64, 65, 100, 1000} {
			t.Run(fmt.Sprintf("%s/entries=%d", tc.name, n), func(t *testing.T) {
				x := newOffset(t, 0, rw)
				var offsets []int64
				for at, i := int64(0), int64(0); len(offsets) < n; i++ {
					at += tc.step(i)
					offsets = append(offsets, at)
					must(t, x.Append(at, i))
				}
				for i, at := range offsets {
					before := pair{0, 0}
					if i > 0 {
						before = pair{offsets[i-1], int64(i - 1)}
					}
					expect(t, fmt.Sprintf("Lookup(%d)", at), pairOf(x.Lookup(at)), pair{at, int64(i)})
					expect(t, fmt.Sprintf("Lookup(%d)", at-1), pairOf(x.Lookup(at-1)), before)
					expect(t, fmt.Sprintf("Lookup(%d)", (at+before.a)/2), pairOf(x.Lookup((at+before.a)/2)), before)
				}
			})
		}
	}
}

// TestHostileEntries: what no check looked at does not come out of a lookup.
func TestHostileEntries(t *testing.T) {
	fsys := vfs.NewMem(vfs.MemOptions{})
	b, err := hex.DecodeString("fffffffb00000001" + "0000000680000000" + "0000000700000003")
	must(t, err)
	writeFile(t, fsys, "/f", b)
	x := openOffset(t, fsys, "/f", 100, Options{Trust: true})
	expect(t, "Len", x.Len(), 3)
	for _, target := range []int64{100, 105, 106} {
		expect(t, fmt.Sprintf("Lookup(%d)", target), pairOf(x.Lookup(target)), pair{100, 0})
	}
	b, err = hex.DecodeString("0000000000000001fffffffb" + "8000000000000000000000fa" + "0000000000000004000000fb")
	must(t, err)
	writeFile(t, fsys, "/g", b)
	y := openTime(t, fsys, "/g", 100, Options{Trust: true})
	expect(t, "time Len", y.Len(), 3)
	for _, target := range []int64{-5, 0, 1, 3} {
		expect(t, fmt.Sprintf("time Lookup(%d)", target), pairOf(y.Lookup(target)), pair{-1, 100})
	}
	b, err = hex.DecodeString("0000000000000001fffffffb" + "0000000000000004000000fb")
	must(t, err)
	writeFile(t, fsys, "/h", b)
	y = openTime(t, fsys, "/h", 100, Options{Trust: true})
	expect(t, "time Lookup(1)", pairOf(y.Lookup(1)), pair{-1, 100})
	expect(t, "time Lookup(4)", pairOf(y.Lookup(4)), pair{4, 351})
}

// TestHostileLength: a length no index can have is an error, and maps nothing.
func TestHostileLength(t *testing.T) {
	dir := t.TempDir()
	name := filepath.Join(dir, "f")
	h, err := vfs.OS.Open(name, vfs.Create)
	must(t, err)
	must(t, h.Truncate(1<<40))
	must(t, h.Close())
	x := openTime(t, vfs.OS, name, 0, Options{Trust: true, OnMap: func(int) error { t.Error("mapped"); return nil }})
	wantErr(t, "Load", x.Load(), ErrCorrupt)
	expect(t, "Lookup", pairOf(x.Lookup(5)), pair{-1, 0})
	expect(t, "Len", x.Len(), 0)
}

func TestRemovedByHandIsNotAnError(t *testing.T) {
	fsys := vfs.NewMem(vfs.MemOptions{})
	x := openOffset(t, fsys, "/f", 0, rw)
	must(t, x.Append(1, 1))
	must(t, fsys.Remove("/f"))
	must(t, x.Remove())
	if _, err := fsys.Stat("/f"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Stat = %v", err)
	}
}

// What all says of a file is what sane says of its entries.
func TestAllSane(t *testing.T) {
	for _, l := range []*layout{&offsetLayout, &timeLayout} {
		rapid.Check(t, func(t *rapid.T) {
			n := rapid.IntRange(0, 6).Draw(t, "n")
			b := make([]byte, n*l.size)
			for i := range n {
				// Small steps, and now and then a byte of anything.
				copy(b[i*l.size:], b[max(i-1, 0)*l.size:][:l.size])
				for _, last := range []int{3, 7, 11} {
					if last < l.size && rapid.IntRange(0, 3).Draw(t, "step") > 0 {
						b[i*l.size+last]++
					}
				}
				if rapid.IntRange(0, 7).Draw(t, "odd") == 0 {
					b[i*l.size+rapid.IntRange(0, l.size-1).Draw(t, "at")] = rapid.Byte().Draw(t, "byte")
				}
			}
			want := true
			for i := range n {
				want = want && l.sane(b, i)
			}
			if got := l.all(b, n); got != want {
				t.Fatalf("all %v, one by one %v: %x", got, want, b)
			}
		})
	}
}
