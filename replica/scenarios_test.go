package replica_test

import (
	"errors"
	"math"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/tidemark-log/tidemark/internal/vfs"
	"github.com/tidemark-log/tidemark/record"
	"github.com/tidemark-log/tidemark/replica"
	"github.com/tidemark-log/tidemark/segment"
)

// Scenarios of log-format §10.4, §10.5 and §10.7 that no case of docs/cases.md
// covers, by number.

func junk(rng *rand.Rand, n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(rng.Uint32())
	}
	return b
}

// TestScenario069_IndexesAreNoEvidence: 69, 70, 79, 80 and 97: indexes that are
// overwritten or missing, in a log that was closed, killed or is without slot.
func TestScenario069_IndexesAreNoEvidence(t *testing.T) {
	rng := rand.New(rand.NewPCG(69, 70))
	for _, tc := range []struct {
		name string
		harm func(x *lab, base int64)
	}{
		{"69 offset index overwritten", func(x *lab, base int64) { x.write(indexName(base), junk(rng, len(x.read(indexName(base))))) }},
		{"70 time index overwritten", func(x *lab, base int64) { x.write(timeName(base), junk(rng, len(x.read(timeName(base))))) }},
		{"79 both missing", func(x *lab, base int64) { x.remove(indexName(base), timeName(base)) }},
		{"80 both overwritten", func(x *lab, base int64) {
			x.write(indexName(base), junk(rng, 4000))
			x.write(timeName(base), junk(rng, 4001))
		}},
		{"both empty", func(x *lab, base int64) { x.write(indexName(base), nil); x.write(timeName(base), nil) }},
		{"97 nothing", func(*lab, int64) {}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			eachKind(t, replica.Options{IndexIntervalBytes: 200, SegmentBytes: 8 << 10}, func(x *lab) {
				for range 100 {
					x.append(1, 130)
				}
			}, func(t *testing.T, x *lab, kind string) {
				intact := newLab(t, x.o)
				for range 100 {
					intact.append(1, 130)
				}
				intact.close()
				bases := x.segments()
				if len(bases) < 3 {
					t.Fatalf("segments %v", bases)
				}
				for _, base := range bases {
					tc.harm(x, base)
				}
				x.open()
				x.undamaged()
				if x.log.LogEndOffset() != 100 {
					t.Fatalf("log ends at %d", x.log.LogEndOffset())
				}
				for offset := range int64(100) {
					r, _, ok, err := x.log.Get(offset, 100, nil)
					if err != nil || !ok || r.Offset != offset {
						t.Fatalf("get %d = %d, %v, %v", offset, r.Offset, ok, err)
					}
					x.checkRecord(r)
				}
				x.verify()
				// Empty indexes are good (log-format §3.4): where the batches are
				// believed nothing reads them to make others.
				if kind == "no slot" || kind == "killed" && tc.name != "both empty" || tc.name == "79 both missing" {
					x.whole(0, 100)
					x.close()
					for _, base := range bases {
						if !slices.Equal(x.offsetEntries(base), intact.offsetEntries(base)) || !slices.Equal(x.timeEntries(base), intact.timeEntries(base)) {
							t.Errorf("segment %d: entries %v %v; want %v %v", base, x.offsetEntries(base), x.timeEntries(base), intact.offsetEntries(base), intact.timeEntries(base))
						}
					}
				}
			})
		})
	}
}

// TestScenario071_DamagedBatch: bytes of one batch of a bare log are wrong. What
// lies before it is served; what lies behind it is cut, or, where nothing can
// have been torn, served too (R32).
func TestScenario071_DamagedBatch(t *testing.T) {
	rng := rand.New(rand.NewPCG(71, 71))
	for range 10 {
		x := newLab(t, replica.Options{SegmentBytes: 1 << 20})
		for range 20 {
			x.append(1, 100)
		}
		x.close()
		x.remove(slotFile)
		b := x.read(logName(0))
		batches, _ := parseBatches(b)
		bad := rng.IntN(20)
		b[batches[bad].pos+70+rng.IntN(50)] ^= 0x55
		x.write(logName(0), b)
		x.open()
		want := make([]int64, 0, 20)
		for i := range int64(20) {
			if i < int64(bad) || x.log.Damage() != nil && i > int64(bad) {
				want = append(want, i)
			}
		}
		var got []int64
		for i := range x.log.LogEndOffset() {
			if r, _, ok, err := x.log.Get(i, math.MaxInt64, nil); err == nil && ok && r.Offset == i {
				x.checkRecord(r)
				got = append(got, i)
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("batch %d wrong, damage %v: served %v", bad, x.log.Damage(), got)
		}
	}
}

// TestScenario078_OnlyFromTheRecoveryPoint: exactly the segments from the one
// that holds the recovery point on are read.
func TestScenario078_OnlyFromTheRecoveryPoint(t *testing.T) {
	x := newLab(t, replica.Options{SegmentBytes: 8 << 10})
	for len(x.segments()) < 6 {
		x.append(1, 700)
	}
	x.close()
	x.remove(slotFile)
	bases := x.segments()
	for _, base := range bases { // Kafka has one at each roll; this says no producers
		x.write(segment.FileName(base, ".snapshot"), []byte{0, 1, 0x48, 0x67, 0x4b, 0xc7, 0, 0, 0, 0})
	}
	end := x.offsetsIn(bases[5])
	for k, base := range bases {
		faulty := vfs.NewFaulty(x.mem.Clone())
		y := &lab{t: t, mem: x.mem, fs: faulty, dir: x.dir, o: x.o, warns: &records{}}
		y.o.Checkpoints = replica.Checkpoints{Valid: true, RecoveryPoint: base, HighWatermark: base, LogStart: -1}
		y.open()
		y.undamaged()
		var read []string
		for _, c := range faulty.Calls() {
			name := filepath.Base(c.Name)
			if c.Op == vfs.OpMap && strings.HasSuffix(name, ".log") && !slices.Contains(read, name) {
				read = append(read, name)
			}
		}
		slices.Sort(read)
		var want []string
		for _, b := range bases[k:] {
			want = append(want, logName(b))
		}
		if !slices.Equal(read, want) || y.log.LogEndOffset() != end {
			t.Errorf("recovery point %d: read %v; want %v; log ends at %d", base, read, want, y.log.LogEndOffset())
		}
		y.log.Close(t0)
	}
}

// offsetsIn returns the offset behind the last batch of a segment's file.
func (x *lab) offsetsIn(base int64) int64 {
	batches, _ := parseBatches(x.read(logName(base)))
	if len(batches) == 0 {
		return base
	}
	return batches[len(batches)-1].last + 1
}

// TestScenario083_RandomTail: random bytes behind the active segment and its
// index, unclean.
func TestScenario083_RandomTail(t *testing.T) {
	rng := rand.New(rand.NewPCG(83, 83))
	for _, kind := range []string{"killed", "no slot"} {
		for round := range 10 {
			x := newLab(t, replica.Options{IndexIntervalBytes: 300, SegmentBytes: 1 << 20})
			n := int64(50 + rng.IntN(50))
			for range n {
				x.append(1, 20+rng.IntN(100))
			}
			x.sync()
			if kind == "killed" {
				x.kill()
			} else {
				x.close()
				x.remove(slotFile)
			}
			log := x.read(logName(0))
			_, whole := parseBatches(log)
			x.write(logName(0), append(log[:whole:whole], junk(rng, 1+rng.IntN(1024))...))
			x.write(indexName(0), append(x.read(indexName(0)), junk(rng, 1+rng.IntN(1024))...))
			x.open()
			x.undamaged()
			x.whole(0, n)
			x.goesOn(0, n)
			if t.Failed() {
				t.Fatalf("%s, round %d", kind, round)
			}
		}
	}
}

// TestScenario095_EpochFile: 95, the file is ahead of the log; 96, the batches
// are ahead of the file.
func TestScenario095_EpochFile(t *testing.T) {
	type epochs = []replica.Epoch
	x := newLab(t, replica.Options{})
	x.follow(batchAt(0, 1, 2, 20), batchAt(2, 4, 2, 20))
	x.close()
	x.remove(slotFile)
	x.write("leader-epoch-checkpoint", []byte("0\n3\n1 0\n4 2\n9 4\n"))
	if err := x.tryOpen(); err != nil {
		t.Fatal(err)
	}
	if got := x.log.Epochs(); !slices.Equal(got, epochs{{Epoch: 1, StartOffset: 0}, {Epoch: 4, StartOffset: 2}}) {
		t.Errorf("95: epochs %v", got)
	}
	x.close()
	x.remove(slotFile)
	x.write("leader-epoch-checkpoint", []byte("0\n1\n1 0\n"))
	if err := x.tryOpen(); err != nil {
		t.Fatal(err)
	}
	if got := x.log.Epochs(); !slices.Equal(got, epochs{{Epoch: 1, StartOffset: 0}, {Epoch: 4, StartOffset: 2}}) {
		t.Errorf("96: epochs %v", got)
	}
	x.verify()
}

// TestScenario135_Rolls: a segment for ten records, eleven appended.
func TestScenario135_Rolls(t *testing.T) {
	x := newLab(t, replica.Options{SegmentBytes: 4096})
	n := 0
	for ; len(x.segments()) == 1; n++ {
		x.append(1, 300)
	}
	if size := len(batchAt(0, 0, 1, 300)); n != 4096/size+1 {
		t.Errorf("rolled at append %d of %d bytes", n, size)
	}
	x.whole(0, int64(n))
}

// TestScenario138_Sparse: 138, 139: reads of sparse offsets over small segments.
func TestScenario138_Sparse(t *testing.T) {
	x := newLab(t, replica.Options{SegmentBytes: 4096})
	var offsets []int64
	for offset := int64(50); offset < 800; offset += 7 {
		x.follow(batchAt(offset, 0, 1, 150))
		offsets = append(offsets, offset)
	}
	if len(x.segments()) < 4 {
		t.Fatalf("segments %v", x.segments())
	}
	for i := int64(50); i < offsets[len(offsets)-1]; i++ {
		want := offsets[slices.IndexFunc(offsets, func(o int64) bool { return o >= i })]
		for _, n := range []int{0, 1, 100, 100000} {
			b, err := x.log.Read(nil, i, math.MaxInt64, n)
			if err != nil || record.Batch(b).BaseOffset() != want {
				t.Fatalf("read at %d: %v; want %d", i, err, want)
			}
		}
	}
}

// TestScenario140_NextSegment: the first segment was cut short by hand. Where
// its indexes know of more, that is damage; else it is a gap, and what is in the
// next segment is served.
func TestScenario140_NextSegment(t *testing.T) {
	for _, known := range []bool{true, false} {
		x := newLab(t, replica.Options{SegmentBytes: 4096, IndexIntervalBytes: 1})
		for len(x.segments()) < 3 {
			x.append(1, 900)
		}
		second := x.segments()[1]
		x.close()
		x.write(logName(0), x.read(logName(0))[:len(batchAt(0, 0, 1, 900))])
		if !known {
			x.write(indexName(0), nil)
			x.write(timeName(0), nil)
		}
		x.open()
		r, _, ok, err := x.log.Get(1, math.MaxInt64, nil)
		if known {
			var c *replica.CorruptError
			if !errors.As(err, &c) || c.Next != second || len(x.findings()) != 1 {
				t.Errorf("get 1 = %v; Verify: %v", err, x.findings())
			}
		} else if err != nil || !ok || r.Offset != second {
			t.Errorf("get 1 = %d, %v, %v; want %d", r.Offset, ok, err, second)
		}
		if r, _, ok, err := x.log.Get(second, math.MaxInt64, nil); err != nil || !ok || r.Offset != second {
			t.Errorf("get %d = %d, %v, %v", second, r.Offset, ok, err)
		}
	}
}

// TestScenario141_Truncate: 141, 143, 144.
func TestScenario141_Truncate(t *testing.T) {
	for _, tc := range []struct {
		name       string
		to         int64
		start, end int64
	}{
		{"at the end", 30, 10, 30},
		{"above the end", 31, 10, 30},
		{"in the middle", 20, 10, 20},
		{"inside a batch", 21, 10, 21},
		{"at the log start", 10, 10, 10},
		{"below the first base", 4, 4, 4},
		{"to 0", 0, 0, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			x := newLab(t, replica.Options{SegmentBytes: 4096})
			if err := x.log.TruncateFullyAndStartAt(10); err != nil {
				t.Fatal(err)
			}
			x.lead()
			for range 10 {
				x.append(2, 400)
			}
			x.sync()
			x.log.SetHighWatermark(28)
			if err := x.log.Truncate(tc.to); err != nil {
				t.Fatal(err)
			}
			check := func(how string) {
				t.Helper()
				l := x.log
				if l.LogStartOffset() != tc.start || l.LogEndOffset() != tc.end {
					t.Errorf("%s: log [%d, %d); want [%d, %d)", how, l.LogStartOffset(), l.LogEndOffset(), tc.start, tc.end)
				}
				if hw := l.HighWatermark(); hw > tc.end || hw < tc.start || hw != max(tc.start, min(28, tc.end)) {
					t.Errorf("%s: high watermark %d", how, hw)
				}
				last := tc.end &^ 1
				if tc.end < 10 {
					last = 10
				}
				if got := x.readAll(tc.start); int64(len(got)) != last-10 {
					t.Errorf("%s: read %v", how, got)
				}
				if l.SyncedEnd() > tc.end {
					t.Errorf("%s: synced end %d", how, l.SyncedEnd())
				}
				x.verify()
			}
			check("truncated")
			x.kill()
			x.open()
			x.undamaged()
			check("killed")
			x.close()
			x.open()
			x.undamaged()
			check("reopened")
		})
	}
	x := newLab(t, replica.Options{})
	if err := x.log.Truncate(-1); !errors.Is(err, replica.ErrOutOfRange) {
		t.Errorf("truncate to -1 = %v", err)
	}
	if err := x.log.TruncateFullyAndStartAt(-1); !errors.Is(err, replica.ErrOutOfRange) {
		t.Errorf("start at -1 = %v", err)
	}
}

// TestScenario143_EmptyEpoch: an epoch without data at the end goes with any
// truncation to it or above.
func TestScenario143_EmptyEpoch(t *testing.T) {
	for _, to := range []int64{29, 30} {
		x := newLab(t, replica.Options{})
		x.follow(batchAt(0, 17, 27, 10), batchAt(27, 19, 2, 10))
		if err := x.log.BeginEpoch(20); err != nil {
			t.Fatal(err)
		}
		if err := x.log.Truncate(to); err != nil {
			t.Fatal(err)
		}
		if got := x.log.Epochs(); len(got) != 3 && len(got) != 2 || got[len(got)-1] != (replica.Epoch{Epoch: 19, StartOffset: 27}) {
			t.Errorf("truncate to %d: epochs %v", to, got)
		}
	}
}

// TestScenario145_FollowerAppends: 145, 146, 147.
func TestScenario145_FollowerAppends(t *testing.T) {
	x := newLab(t, replica.Options{})
	x.follow(batchAt(0, 0, 5, 10))
	for _, tc := range []struct {
		name    string
		batches []record.Batch
		end     int64
		err     error
	}{
		{"145 out of order", []record.Batch{batchAt(9, 0, 2, 10), batchAt(7, 0, 2, 10)}, 11, replica.ErrOrder},
		{"146 below the end", []record.Batch{batchAt(9, 0, 2, 10)}, 11, replica.ErrOrder},
		{"overlapping the end", []record.Batch{batchAt(10, 0, 2, 10)}, 11, replica.ErrOrder},
		{"147 gap", []record.Batch{batchAt(20, 0, 2, 10)}, 22, nil},
		{"older epoch", []record.Batch{batchAt(22, 3, 1, 10), batchAt(23, 2, 1, 10)}, 23, replica.ErrOrder},
	} {
		var b []byte
		for _, y := range tc.batches {
			b = append(b, y...)
		}
		a, err := x.log.Append(b, replica.Follower, t0)
		if !errors.Is(err, tc.err) || x.log.LogEndOffset() != tc.end || a.End != tc.end {
			t.Errorf("%s: %v, answered %+v, log ends at %d; want %v, %d", tc.name, err, a, x.log.LogEndOffset(), tc.err, tc.end)
		}
	}
	x.verify()
	x.kill()
	x.open()
	x.undamaged()
	if got := x.readAll(0); !slices.Equal(got, []int64{0, 1, 2, 3, 4, 9, 10, 20, 21, 22}) {
		t.Errorf("read %v", got)
	}
	// 146, empty log: the first batch begins below and reaches the start.
	y := newLab(t, replica.Options{})
	if err := y.log.TruncateFullyAndStartAt(100); err != nil {
		t.Fatal(err)
	}
	y.follow(batchAt(98, 0, 5, 10), batchAt(103, 0, 1, 10))
	y.whole(98, 104)
	y.close()
	y.open()
	y.whole(98, 104)
}

// TestC011_HighWatermarkFile: a checkpoint that cannot be read is missing.
func TestC011_HighWatermarkFile(t *testing.T) {
	p := replica.TopicPartition{Topic: "t"}
	for _, tc := range []struct{ name, text string }{
		{"empty", ""}, {"version line only", "0\n"}, {"count too large", "0\n2\nt 0 40\n"}, {"CR LF", "0\r\n1\r\nt 0 40\r\n"},
		{"negative offset", "0\n1\nt 0 -7\n"}, {"another version", "1\n1\nt 0 40\n"}, {"binary", "\x00\xff\x00"}, {"missing", "-"},
	} {
		for _, slot := range []bool{true, false} {
			fsys := vfs.NewMem(vfs.MemOptions{})
			open := func() (*replica.Dir, *replica.Log) {
				t.Helper()
				d, err := replica.OpenDir("/data", replica.DirOptions{FS: fsys}, t0)
				if err != nil {
					t.Fatalf("%s: %v", tc.name, err)
				}
				l, err := d.OpenLog(p, replica.UUID{}, replica.Options{SegmentBytes: 64 << 10}, t0)
				if err != nil {
					t.Fatalf("%s: %v", tc.name, err)
				}
				return d, l
			}
			d, l := open()
			if err := l.BeginEpoch(0); err != nil {
				t.Fatal(err)
			}
			for range 100 {
				if _, err := l.AppendRecords([]record.Record{{Timestamp: 1}}, t0); err != nil {
					t.Fatal(err)
				}
			}
			if err := l.SyncNow(); err != nil {
				t.Fatal(err)
			}
			l.SetHighWatermark(40)
			if err := d.Close(t0); err != nil {
				t.Fatal(err)
			}
			x := &lab{t: t, mem: fsys, dir: "/data"}
			x.remove("replication-offset-checkpoint")
			if tc.text != "-" {
				x.write("replication-offset-checkpoint", []byte(tc.text))
			}
			want := int64(40)
			if !slot {
				x.remove("t-0/" + slotFile)
				want = 0
			}
			d, l = open()
			if l.HighWatermark() != want || l.LogEndOffset() != 100 || l.Damage() != nil {
				t.Errorf("%s, slot %v: high watermark %d, log end %d, damage %v; want %d, 100", tc.name, slot, l.HighWatermark(), l.LogEndOffset(), l.Damage(), want)
			}
			if err := d.Close(t0); err != nil {
				t.Error(err)
			}
		}
	}
}

// TestC036_NFSNamesInTheFolder: as in a log's own folder.
func TestC036_NFSNamesInTheFolder(t *testing.T) {
	fsys := vfs.NewMem(vfs.MemOptions{})
	x := &lab{t: t, mem: fsys, dir: "/data"}
	for round := range 2 {
		d, err := replica.OpenDir("/data", replica.DirOptions{FS: fsys}, t0)
		if err != nil {
			t.Fatal(err)
		}
		if round == 1 && !slices.Equal(d.Strays(), []string{"lost+found"}) {
			t.Errorf("strays %v", d.Strays())
		}
		if _, err := d.OpenLog(replica.TopicPartition{Topic: "t"}, replica.UUID{}, replica.Options{}, t0); err != nil {
			t.Fatal(err)
		}
		if err := d.Close(t0); err != nil {
			t.Fatal(err)
		}
		if round == 0 {
			x.write(".nfs0000000001", []byte("x"))
			if err := fsys.Mkdir("/data/lost+found"); err != nil {
				t.Fatal(err)
			}
		} else if !x.has(".nfs0000000001") || !x.has("lost+found") {
			t.Errorf("unknown names were removed: %v", x.names())
		}
	}
}
