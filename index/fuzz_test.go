package index

import (
	"encoding/hex"
	"math"
	"testing"

	"github.com/tidemark-log/tidemark/internal/vfs"
)

// fuzzSeeds are whole, torn, padded and backwards files of either kind.
func fuzzSeeds(f *testing.F) {
	for _, s := range []string{
		"", "00", "0000000200000000000000fa00001068", "0000018bcfe5687b000000020000018bcfe58f0f000000fa",
		"000000fa000010680000000200000000", "ffffffffffffffffffffffffffffffffffffffffffffffff",
		"80000000800000007fffffff7fffffff00000000000000000000000000000001",
	} {
		b, err := hex.DecodeString(s)
		must(f, err)
		for _, end := range []int64{0, 300} {
			f.Add(b, end, int64(350))
			f.Add(append(b, make([]byte, 48)...), end, int64(0))
			f.Add(b[:len(b)/2], end, int64(math.MaxInt64))
		}
	}
}

// FuzzOffsetFile: no file makes an index panic; what a lookup answers is never
// above the target or below the base; a writable load leaves a file that
// checks, or at least ends well, and takes an entry.
func FuzzOffsetFile(f *testing.F) {
	fuzzSeeds(f)
	const base = 100
	f.Fuzz(func(t *testing.T, b []byte, end, target int64) {
		fsys := vfs.NewMem(vfs.MemOptions{})
		writeFile(t, fsys, "/f", b)
		for range ParseOffsets(base, b) {
		}
		for _, o := range []Options{{Trust: true, End: end}, {Trust: true, Writable: true, MaxEntries: 1 << 12, End: end}} {
			x := openOffset(t, fsys, "/f", base, o)
			for _, target := range []int64{target, base, base + target&math.MaxInt32} {
				if at, pos := x.Lookup(target); at < base || pos < 0 || at > max(target, base) {
					t.Errorf("Lookup(%d) = %d, %d", target, at, pos)
				}
			}
			x.UpperBoundPos(target)
			checked := x.Check(math.MaxInt64, math.MaxInt64)
			n := x.Len()
			if at, pos, ok := x.Last(); ok && (at < base || pos < 0 || end > 0 && at >= end) {
				t.Errorf("Last = %d, %d with end %d", at, pos, end)
			}
			if checked == nil {
				for i := range n {
					at, pos := x.Entry(i)
					if gotAt, gotPos := x.Lookup(at); gotAt != at || gotPos != pos {
						t.Fatalf("Lookup(%d) = %d, %d; want entry %d: %d, %d", at, gotAt, gotPos, i, at, pos)
					}
				}
			}
			if o.Writable {
				at, pos, _ := x.Last()
				if at, pos = at+1, pos+1; at-base <= math.MaxInt32 && pos <= math.MaxInt32 && !x.Full() {
					must(t, x.Append(at, pos))
					if gotAt, gotPos, ok := x.Last(); !ok || gotAt != at || gotPos != pos {
						t.Errorf("Last = %d, %d, %v; want %d, %d", gotAt, gotPos, ok, at, pos)
					}
				}
				must(t, x.TruncateTo(target))
				must(t, x.Trim())
			}
			must(t, x.Close())
		}
	})
}

// FuzzTimeFile is FuzzOffsetFile for the time index.
func FuzzTimeFile(f *testing.F) {
	fuzzSeeds(f)
	const base = 100
	f.Fuzz(func(t *testing.T, b []byte, end, target int64) {
		fsys := vfs.NewMem(vfs.MemOptions{})
		writeFile(t, fsys, "/f", b)
		for range ParseTimes(base, b) {
		}
		for _, err := range ParseTxns("f", base, b) {
			_ = err
		}
		for _, o := range []Options{{Trust: true, End: end}, {Trust: true, Writable: true, MaxEntries: 1 << 12, End: end}} {
			x := openTime(t, fsys, "/f", base, o)
			if ts, at := x.Lookup(target); at < base || ts < NoTimestamp || ts > max(target, NoTimestamp) {
				t.Errorf("Lookup(%d) = %d, %d", target, ts, at)
			}
			checked := x.Check(math.MaxInt64, math.MaxInt64)
			n := x.Len()
			if ts, at, ok := x.Last(); ok && (at < base || ts < 0 || end > 0 && at >= end) {
				t.Errorf("Last = %d, %d with end %d", ts, at, end)
			}
			if checked == nil {
				for i := range n {
					ts, at := x.Entry(i)
					if gotTs, gotAt := x.Lookup(ts); gotTs != ts || gotAt != at {
						t.Fatalf("Lookup(%d) = %d, %d; want entry %d: %d, %d", ts, gotTs, gotAt, i, ts, at)
					}
				}
			}
			if o.Writable {
				ts, at, _ := x.Last()
				if ts < math.MaxInt64 && n < 1<<12 {
					must(t, x.AppendFinal(max(ts, 0)+1, at))
					if gotTs, gotAt, ok := x.Last(); !ok || gotTs != max(ts, 0)+1 || gotAt != at {
						t.Errorf("Last = %d, %d, %v; want %d, %d", gotTs, gotAt, ok, ts+1, at)
					}
				}
				must(t, x.TruncateTo(target))
				must(t, x.Trim())
			}
			must(t, x.Close())
		}
	})
}
