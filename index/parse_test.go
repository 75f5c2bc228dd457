package index

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/tidemark-log/tidemark/internal/vfs"
)

func TestParse(t *testing.T) {
	offsets, err := hex.DecodeString("0000000200000000" + "000000fa00001068")
	must(t, err)
	times, err := hex.DecodeString("0000018bcfe5687b00000002" + "0000018bcfe58f0f000000fa")
	must(t, err)
	for _, tc := range []struct {
		name string
		tail []byte
		used int
	}{
		{"trimmed", nil, 2},
		{"part of an entry", []byte{1, 2, 3}, 2},
		{"zero tail", make([]byte, 96), 2},
		{"gap of zeros", append(make([]byte, 24), bytes.Repeat([]byte{1}, 24)...), 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b := slices.Concat(offsets, tc.tail)
			want, wantTs := tc.used, tc.used
			if tc.used == 0 {
				want, wantTs = len(b)/OffsetEntrySize, (len(times)+len(tc.tail))/TimeEntrySize
			}
			expect(t, "OffsetsUsed", OffsetsUsed(b), want)
			var got []OffsetEntry
			for i, e := range ParseOffsets(100, b) {
				expect(t, "number", i, len(got))
				got = append(got, e)
			}
			expect(t, "offset entries", len(got), want)
			if !slices.Equal(got[:2], []OffsetEntry{{102, 0}, {350, 4200}}) {
				t.Errorf("offset entries %v", got)
			}
			b = slices.Concat(times, tc.tail)
			expect(t, "TimesUsed", TimesUsed(b), wantTs)
			var ts []TimeEntry
			for _, e := range ParseTimes(100, b) {
				ts = append(ts, e)
			}
			expect(t, "time entries", len(ts), wantTs)
			if !slices.Equal(ts[:2], []TimeEntry{{1700000000123, 102}, {1700000009999, 350}}) {
				t.Errorf("time entries %v", ts)
			}
		})
	}
	for range ParseOffsets(0, offsets) { // may stop early
		break
	}
	for range ParseTimes(0, times) {
		break
	}
	expect(t, "entries of nothing", OffsetsUsed(nil)+TimesUsed(nil), 0)
	expect(t, "entries of one zero", OffsetsUsed(make([]byte, 15))+TimesUsed(make([]byte, 12)), 2) // as Load has it
	expect(t, "entries of zeros", OffsetsUsed(make([]byte, 80))+TimesUsed(make([]byte, 120)), 0)
}

func TestParseTxns(t *testing.T) {
	golden, err := hex.DecodeString("00000000000000001092000000000000006400000000000000c80000000000000096")
	must(t, err)
	want := AbortedTxn{4242, 100, 200, 150}
	if got := want.AppendTo(nil); !bytes.Equal(got, golden) {
		t.Errorf("AppendTo = %x; want %x", got, golden)
	}
	later := AbortedTxn{4243, 180, 300, 301}.AppendTo(nil)
	version := func(hi, lo byte) []byte {
		b := bytes.Clone(later)
		b[0], b[1] = hi, lo
		return b
	}
	for _, tc := range []struct {
		name string
		base int64
		b    []byte
		want string
	}{
		{"empty", 0, nil, ""},
		{"golden", 100, golden, "4242:100-200/150"},
		{"two", 0, slices.Concat(golden, later), "4242:100-200/150 4243:180-300/301"},
		{"version in the high byte", 0, slices.Concat(version(1, 0), golden), "check index f.txnindex entry 0: found version 256, want 0 4242:100-200/150"},
		{"version in the low byte", 0, slices.Concat(golden, version(0, 1)), "4242:100-200/150 check index f.txnindex entry 1: found version 1, want 0"},
		{"below the base", 201, golden, "check index f.txnindex entry 0: found last offset 200, want above 200"},
		{"not ascending", 0, slices.Concat(later, golden), "4243:180-300/301 check index f.txnindex entry 1: found last offset 200, want above 300"},
		{"part of an entry", 0, slices.Concat(golden, later[:33]), "4242:100-200/150 check index f.txnindex entry 1: found 33 bytes, want 34"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var got []string
			for txn, err := range ParseTxns("f.txnindex", tc.base, tc.b) {
				if err != nil {
					wantErr(t, "entry", err, ErrCorrupt)
					got = append(got, err.Error())
					continue
				}
				got = append(got, fmt.Sprintf("%d:%d-%d/%d", txn.PID, txn.FirstOffset, txn.LastOffset, txn.LastStableOffset))
			}
			expect(t, "entries", strings.Join(got, " "), tc.want)
		})
	}
	for range ParseTxns("", 0, later[:10]) {
		break
	}
}

func TestAbortedIn(t *testing.T) {
	txns := []AbortedTxn{{1, 0, 10, 11}, {2, 5, 15, 13}, {3, 18, 35, 25}, {4, 32, 50, 40}}
	for _, tc := range []struct {
		from, upTo int64
		want       []AbortedTxn
		complete   bool
	}{
		{0, 100, txns, false},
		{0, 32, txns[:3], true},
		{10, 35, txns, true},
		{11, 35, txns[1:], true},
		{20, 41, txns[2:], false},
	} {
		got, complete := AbortedIn(txns, tc.from, tc.upTo)
		if !slices.Equal(got, tc.want) || complete != tc.complete {
			t.Errorf("scenario 57: [%d,%d) = %v, %v; want %v, %v", tc.from, tc.upTo, got, complete, tc.want, tc.complete)
		}
	}
}

// TestKafkaFiles opens every index that Kafka 4.4 wrote: those closed cleanly
// are sound to the last byte, and those of killed brokers may end in zeros.
func TestKafkaFiles(t *testing.T) {
	seen := map[string]int{}
	err := filepath.WalkDir("../testdata", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		ext := filepath.Ext(path)
		base, perr := strconv.ParseInt(strings.TrimSuffix(d.Name(), ext), 10, 64)
		if perr != nil {
			return nil
		}
		raw, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		last := base + math.MaxInt32
		closed := strings.Contains(path, "kafka-4.4-closed")
		size, entries, n := int64(0), 0, 0
		switch ext {
		case ".index":
			x := openOffset(t, vfs.OS, path, base, Options{Trust: true})
			must(t, x.Check(last, math.MaxInt32))
			for i, e := range ParseOffsets(base, raw) {
				expect(t, fmt.Sprintf("%s entry %d", path, i), pairOf(x.Entry(i)), pair{e.Offset, e.Pos})
				expect(t, fmt.Sprintf("%s Lookup(%d)", path, e.Offset), pairOf(x.Lookup(e.Offset)), pair{e.Offset, e.Pos})
				entries++
			}
			size, n = OffsetEntrySize, x.Len()
		case ".timeindex":
			y := openTime(t, vfs.OS, path, base, Options{Trust: true})
			must(t, y.Check(last, math.MaxInt64))
			for i, e := range ParseTimes(base, raw) {
				expect(t, fmt.Sprintf("%s entry %d", path, i), pairOf(y.Entry(i)), pair{e.Timestamp, e.Offset})
				entries++
			}
			size, n = TimeEntrySize, y.Len()
		case ".txnindex":
			for txn, err := range ParseTxns(path, base, raw) {
				must(t, err)
				if txn.FirstOffset > txn.LastOffset || txn.LastOffset > last {
					t.Errorf("%s: %+v", path, txn)
				}
				entries++
			}
			size, n = TxnEntrySize, entries
		default:
			return nil
		}
		expect(t, path+" entries", n, entries)
		if int64(entries)*size != int64(len(raw)) {
			if seen["zero tail"]++; closed {
				t.Errorf("%s: %d bytes for %d entries", path, len(raw), entries)
			}
		}
		seen[ext]++
		seen["entries"] += entries
		return nil
	})
	must(t, err)
	t.Log(seen)
	for _, what := range []string{".index", ".timeindex", ".txnindex", "zero tail"} {
		if seen[what] == 0 {
			t.Errorf("no %s among the files", what)
		}
	}
}
