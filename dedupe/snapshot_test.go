package dedupe

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cespare/xxhash/v2"

	"github.com/tidemark-log/tidemark/record"
)

// The snapshots of log-format §11.3.
const (
	goldenEmpty = "000148674bc700000000"
	goldenTwo   = "0001addaa4520000000200000000000000050000ffffffffffffffffffffffff000000000000018bcfe56800000000090000000000000032000000000000109200070000000c0000000000000066000000020000018bcfe5687bffffffffffffffffffffffff"
)

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(s)
	must(t, err)
	return b
}

// inOrder is a small table that goes through two producers in this order.
func inOrder(first, second int64) *Table {
	tab := New(Options{})
	for tab.hash(first)>>61 >= tab.hash(second)>>61 { // the homes among eight slots
		tab.seed++
	}
	return tab
}

// goldenTable is what goldenTwo says.
func goldenTable() *Table {
	tab := inOrder(5, 4242)
	tab.Update(sent{pid: 5, seq: 0, count: 1, txn: true, ts: 1}.batch(), 50)
	e := tab.edit(5)
	e.n, e.coordEpoch, e.lastTimestamp = 0, 9, 1700000000000
	tab.Update(sent{pid: 4242, epoch: 7, seq: 10, count: 3, ts: 1700000000123}.batch(), 100)
	return tab
}

func TestSnapshotGolden(t *testing.T) {
	for _, tc := range []struct {
		name, hex string
		tab       *Table
	}{
		{"no producers", goldenEmpty, New(Options{})},
		{"two producers", goldenTwo, goldenTable()},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := hex.EncodeToString(writeSnapshot(t, tc.tab)); got != tc.hex {
				t.Errorf("wrote %s\nwant  %s", got, tc.hex)
			}
			f, err := ParseSnapshot(unhex(t, tc.hex))
			must(t, err)
			tab := inOrder(5, 4242)
			must(t, tab.Load(f, 103, 1700000000124))
			if got := hex.EncodeToString(writeSnapshot(t, tab)); got != tc.hex {
				t.Errorf("wrote %s after loading\nwant  %s", got, tc.hex)
			}
		})
	}
}

// realdata are folders that real brokers wrote.
func realdata() []string { return []string{"../testdata", "../../shared/realdata"} }

// TestSnapshotRealData reads every snapshot of real brokers and writes it again
// to the same bytes, but for the order of the producers.
func TestSnapshotRealData(t *testing.T) {
	read := 0
	for _, root := range realdata() {
		filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(path, ".snapshot") {
				return nil
			}
			read++
			b, err := os.ReadFile(path)
			must(t, err)
			f, err := ParseSnapshot(b)
			if err != nil {
				t.Errorf("%s: %v", path, err)
				return nil
			}
			var end int64
			fmt.Sscanf(filepath.Base(path), "%d.snapshot", &end)
			tab := New(Options{})
			if err := tab.Load(f, end, 0); err != nil {
				t.Errorf("%s: %v", path, err)
			}
			got := writeSnapshot(t, tab)
			sortSnapshot(got)
			sortSnapshot(b)
			if !slices.Equal(got, b) {
				t.Errorf("%s: written again it is\n%x, want\n%x", path, got, b)
			}
			return nil
		})
	}
	if read == 0 {
		t.Fatal("no snapshot found")
	}
	t.Logf("%d snapshots", read)
}

// TestSnapshotDamage: cut anywhere or with any byte changed, neither file is
// taken for whole.
func TestSnapshotDamage(t *testing.T) {
	tab := goldenTable()
	for i := range int32(7) {
		tab.Update(sent{pid: 9, seq: 2 * i, count: 2, ts: int64(i)}.batch(), 60+int64(2*i))
	}
	for name, file := range map[string]struct {
		data  []byte
		parse func([]byte) (File, error)
	}{
		"snapshot": {writeSnapshot(t, tab), ParseSnapshot},
		"window":   {writeWindow(t, tab, [16]byte{7}, 103), ParseWindow},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := file.parse(file.data); err != nil {
				t.Fatal(err)
			}
			for i := range file.data {
				if _, err := file.parse(file.data[:i]); !errors.Is(err, ErrCorrupt) {
					t.Errorf("cut to %d bytes: %v", i, err)
				}
				bad := slices.Clone(file.data)
				bad[i] ^= 1
				if _, err := file.parse(bad); !errors.Is(err, ErrCorrupt) {
					t.Errorf("byte %d changed: %v", i, err)
				}
			}
			if _, err := file.parse(append(slices.Clone(file.data), 0)); !errors.Is(err, ErrCorrupt) {
				t.Errorf("a byte too many: %v", err)
			}
		})
	}
}

// TestLoadRefuses: a file with the right checksum may still say what cannot be.
func TestLoadRefuses(t *testing.T) {
	for _, tc := range []struct {
		name string
		p    Producer
		end  int64
	}{
		{"negative producer id", Producer{ID: -1, TxnFirstOffset: -1}, 10},
		{"batch behind the end", Producer{ID: 1, TxnFirstOffset: -1, N: 1, Batches: [Window]Batch{{LastOffset: 10}}}, 10},
		{"batch that begins below 0", Producer{ID: 1, TxnFirstOffset: -1, N: 1, Batches: [Window]Batch{{LastOffset: 3, OffsetDelta: 4}}}, 10},
		{"batch that ends before it begins", Producer{ID: 1, TxnFirstOffset: -1, N: 1, Batches: [Window]Batch{{LastOffset: 3, OffsetDelta: -1}}}, 10},
		{"transaction behind the end", Producer{ID: 1, TxnFirstOffset: 10}, 10},
		{"batches that do not rise", Producer{ID: 1, TxnFirstOffset: -1, N: 2, Batches: [Window]Batch{{LastOffset: 3}, {LastOffset: 3}}}, 10},
	} {
		t.Run(tc.name, func(t *testing.T) {
			from := New(Options{})
			from.enter(&tc.p)
			data := writeWindow(t, from, [16]byte{}, tc.end)
			binary.LittleEndian.PutUint64(data[windowHeader:], uint64(tc.p.ID))
			mendWindow(data)
			f, err := ParseWindow(data)
			must(t, err)
			tab := New(Options{})
			tab.Update(sent{pid: 3, count: 1, ts: 1}.batch(), 0)
			if err := tab.Load(f, tc.end, 0); !errors.Is(err, ErrCorrupt) || tab.Len() != 0 {
				t.Errorf("Load = %v with %d producers; want ErrCorrupt and none", err, tab.Len())
			}
		})
	}
	f, err := ParseWindow(writeWindow(t, goldenTable(), [16]byte{}, 103))
	must(t, err)
	if err := New(Options{}).Load(f, 104, 0); !errors.Is(err, ErrCorrupt) {
		t.Errorf("file for offset 103 loaded for 104: %v", err)
	}
}

// sortSnapshot puts the producers of a snapshot in the order of their ids.
func sortSnapshot(b []byte) {
	list := slices.Collect(slices.Chunk(slices.Clone(b[snapshotHeader:]), snapshotEntry))
	slices.SortFunc(list, bytes.Compare)
	copy(b[snapshotHeader:], slices.Concat(list...))
	mendSnapshot(b)
}

// TestWindowGolden pins the bytes of our own file.
func TestWindowGolden(t *testing.T) {
	tab := inOrder(4242, 5)
	tab.Update(sent{pid: 4242, epoch: 7, seq: 10, count: 3, ts: 1700000000123}.batch(), 100)
	tab.Update(sent{pid: 4242, epoch: 7, seq: 13, count: 1, ts: 1700000000124, txn: true}.batch(), 103)
	tab.Update(markerBatch(5, 2, 9, record.Abort, 1700000000000), 104)
	var id [16]byte
	copy(id[:], "0123456789abcdef")
	got := hex.EncodeToString(writeWindow(t, tab, id, 105))
	const want = "54444d4401003800" + "30313233343536373839616263646566" + "6900000000000000" + "0200000000000000" + "7000000000000000" + "58bd26d4a2b5a798" +
		"9210000000000000" + "7c68e5cf8b010000" + "6700000000000000" + "ffffffff" + "0700" + "0200" +
		"6600000000000000" + "7b68e5cf8b010000" + "0c000000" + "02000000" +
		"6700000000000000" + "7c68e5cf8b010000" + "0d000000" + "00000000" +
		"0500000000000000" + "0068e5cf8b010000" + "ffffffffffffffff" + "09000000" + "0200" + "0000" + "0e8e0c2d816117b0"
	if got != want {
		t.Errorf("wrote\n%s\nwant\n%s", got, want)
	}
}

// FuzzSnapshot: no bytes make the reader of Kafka's snapshot panic or claim
// memory beyond them; what loads is written again and loads to the same.
func FuzzSnapshot(f *testing.F) {
	f.Add(unhex(f, goldenEmpty), int64(0), int64(0), false)
	f.Add(unhex(f, goldenTwo), int64(103), int64(1700000000124), false)
	f.Add(unhex(f, goldenTwo)[:60], int64(103), int64(0), true)
	f.Fuzz(func(t *testing.T, b []byte, end, now int64, mend bool) {
		if mend {
			mendSnapshot(b)
		}
		file, err := ParseSnapshot(b)
		if err != nil || end < 0 { // no log ends there
			return
		}
		for p := range file.All() {
			p.Last()
		}
		tab := New(Options{MaxProducers: 100})
		if err := tab.Load(file, end, now); err != nil {
			if !errors.Is(err, ErrCorrupt) || tab.Len() != 0 {
				t.Errorf("Load = %v, %d producers", err, tab.Len())
			}
			return
		}
		reload(t, tab, end, now)
	})
}

// mendSnapshot makes version, count and checksum right.
func mendSnapshot(b []byte) {
	if len(b) >= snapshotHeader {
		binary.BigEndian.PutUint16(b, snapshotVersion)
		binary.BigEndian.PutUint32(b[6:], uint32((len(b)-snapshotHeader)/snapshotEntry))
		binary.BigEndian.PutUint32(b[2:], crc32.Checksum(b[6:], castagnoli))
	}
}

// mendWindow makes what the header says of itself and both checksums right.
func mendWindow(b []byte) {
	if len(b) >= windowHeader+windowTrailer {
		le := binary.LittleEndian
		body := b[windowHeader : len(b)-windowTrailer]
		le.PutUint32(b, windowMagic)
		le.PutUint16(b[6:], windowHeader)
		le.PutUint64(b[40:], uint64(len(body)))
		le.PutUint64(b[48:], xxhash.Sum64(b[:48]))
		le.PutUint64(b[len(b)-windowTrailer:], xxhash.Sum64(body))
	}
}

// FuzzWindow is FuzzSnapshot for our own file.
func FuzzWindow(f *testing.F) {
	tab := goldenTable()
	for i := range int32(7) {
		tab.Update(sent{pid: 9, seq: 2 * i, count: 2, ts: int64(i)}.batch(), 60+int64(2*i))
	}
	f.Add(writeWindow(f, tab, [16]byte{1}, 103), int64(0), false)
	f.Add(writeWindow(f, New(Options{}), [16]byte{}, 0), int64(0), true)
	f.Fuzz(func(t *testing.T, b []byte, now int64, mend bool) {
		if mend {
			mendWindow(b)
		}
		file, err := ParseWindow(b)
		if err != nil {
			if !errors.Is(err, ErrCorrupt) && !errors.Is(err, ErrVersion) {
				t.Error(err)
			}
			return
		}
		n := 0
		for range file.All() {
			n++
		}
		if n != file.Len() {
			t.Fatalf("%d producers, want %d", n, file.Len())
		}
		tab := New(Options{MaxProducers: 100})
		if tab.Load(file, file.End, now) == nil {
			reload(t, tab, file.End, now)
		}
	})
}

// reload writes tab to both files and compares what they load to.
func reload(t *testing.T, tab *Table, end, now int64) {
	t.Helper()
	want := sorted(tab)
	f, err := ParseWindow(writeWindow(t, tab, [16]byte{}, end))
	must(t, err)
	again := New(Options{MaxProducers: 100})
	must(t, again.Load(f, end, now))
	if got := sorted(again); !slices.Equal(got, want) {
		t.Fatalf("window file loads to\n%+v, want\n%+v", got, want)
	}
	f, err = ParseSnapshot(writeSnapshot(t, tab))
	must(t, err)
	must(t, again.Load(f, end, now))
	if again.Len() != tab.Len() {
		t.Fatalf("snapshot loads %d producers, want %d", again.Len(), tab.Len())
	}
}

func sorted(tab *Table) []Producer {
	list := slices.Collect(tab.All())
	slices.SortFunc(list, func(a, b Producer) int { return int(min(max(a.ID-b.ID, -1), 1)) })
	return list
}
