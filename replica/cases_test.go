package replica_test

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/tidemark-log/tidemark/internal/vfs"
	"github.com/tidemark-log/tidemark/record"
	"github.com/tidemark-log/tidemark/replica"
	"github.com/tidemark-log/tidemark/segment"
)

// The tests of this file are named after the cases of docs/cases.md.

// TestC001_PaddedIndex: the indexes still have their preallocated length.
func TestC001_PaddedIndex(t *testing.T) {
	for _, kind := range []string{"killed", "no slot"} {
		t.Run(kind, func(t *testing.T) {
			x := newLab(t, replica.Options{IndexIntervalBytes: 200, SegmentBytes: 1 << 20})
			if err := x.log.TruncateFullyAndStartAt(2076); err != nil {
				t.Fatal(err)
			}
			x.lead()
			for range 40 {
				x.append(3, 50)
			}
			x.close()
			index, times, log := x.offsetEntries(2076), x.timeEntries(2076), x.read(logName(2076))
			x.open()
			x.kill()
			x.write(indexName(2076), append(x.read(indexName(2076)), make([]byte, 10<<20)...)[:10<<20])
			x.write(timeName(2076), append(x.read(timeName(2076)), make([]byte, 10<<20)...)[:10485756])
			if kind == "no slot" {
				x.remove(slotFile)
			}
			x.open()
			x.undamaged()
			x.whole(2076, 2196)
			x.close()
			if got := x.offsetEntries(2076); !slices.Equal(got, index) || len(index) == 0 {
				t.Errorf("offset index: %v; want %v", got, index)
			}
			if got := x.timeEntries(2076); !slices.Equal(got, times) || len(times) == 0 {
				t.Errorf("time index: %v; want %v", got, times)
			}
			if !bytes.Equal(x.read(logName(2076)), log) {
				t.Error("the log's bytes changed")
			}
		})
	}
}

// TestC004_ZeroTimeIndex: a time index of zeros at full length looks full.
func TestC004_ZeroTimeIndex(t *testing.T) {
	x := newLab(t, replica.Options{IndexIntervalBytes: 200, SegmentBytes: 8 << 10})
	x.append(10, 100)
	x.close()
	x.write(timeName(0), make([]byte, 10485756))
	x.open()
	x.append(1, 100)
	for len(x.segments()) < 2 {
		x.append(1, 500)
	}
	last := x.segments()[1]
	x.close()
	times := x.timeEntries(0)
	if n := len(times); n == 0 || times[n-1] != [2]int64{t0.UnixMilli() + last - 1, last - 1} {
		t.Errorf("time index ends with %v; want the timestamp of %d", times, last-1)
	}
	x.open()
	x.whole(0, x.log.LogEndOffset())
}

// TestC006_TailIsNoBatch: what follows the last batch is zeros, garbage, or a
// batch of an earlier life.
func TestC006_TailIsNoBatch(t *testing.T) {
	rng := rand.New(rand.NewPCG(6, 6))
	garbage := make([]byte, 64<<10)
	for i := range garbage {
		garbage[i] = byte(rng.Uint32())
	}
	for _, tc := range []struct {
		name string
		tail []byte
	}{
		{"1 MiB of zeros", make([]byte, 1<<20)},
		{"random bytes", garbage},
		{"stale batch", batchAt(3, 0, 2, 40)},
		{"stale batch, then zeros", append(slices.Clone(batchAt(0, 0, 1, 40)), make([]byte, 4096)...)},
		{"zeros, then a batch that would follow", append(make([]byte, 4096), batchAt(9, 0, 2, 40)...)},
		{"1 MiB of zeros, then a batch that would follow", append(make([]byte, 1<<20), batchAt(9, 0, 2, 40)...)},
	} {
		eachKind(t, replica.Options{SegmentBytes: 4 << 20}, func(x *lab) {
			for range 3 {
				x.append(3, 100)
			}
		}, func(t *testing.T, x *lab, kind string) {
			t.Run(tc.name, func(t *testing.T) {
				x.t = t
				end := 0
				for b := x.read(logName(0)); end < len(b); {
					n, ok := record.PeekSize(b[end:])
					if !ok {
						break
					}
					end += n
				}
				x.write(logName(0), append(x.read(logName(0))[:end:end], tc.tail...))
				x.open()
				if kind == "closed" && x.log.Damage() != nil {
					// Nothing can have come behind what a clean close left.
					if x.whole(0, 9); x.tryAppend(1, 10) == nil {
						t.Error("a damaged log took an append")
					}
					return
				}
				x.undamaged()
				x.whole(0, 9)
				if b := x.read(logName(0)); bytes.Count(b[min(end, len(b)):], []byte{0}) != max(len(b)-end, 0) {
					t.Error("what lay behind the end is still there")
				}
				x.goesOn(0, 9)
			})
		})
	}
}

// TestC007_TornLastBatch cuts a log of three batches at every length.
func TestC007_TornLastBatch(t *testing.T) {
	for _, mode := range []replica.SyncMode{replica.Always, replica.Never} {
		eachKind(t, replica.Options{Sync: mode, IndexIntervalBytes: 1}, func(x *lab) {
			x.append(2, 60)
			x.append(1, 60)
			x.append(3, 60)
			if mode == replica.Always {
				x.sync()
			}
		}, func(t *testing.T, x *lab, kind string) {
			t.Run(mode.String(), func(t *testing.T) {
				log := x.read(logName(0))
				var ends, offsets []int
				for pos, b := 0, log; pos < len(log); {
					n, ok := record.PeekSize(b[pos:])
					if !ok {
						break
					}
					pos += n
					ends, offsets = append(ends, pos), append(offsets, int(record.Batch(b[pos-n:]).NextOffset()))
				}
				image := &lab{t: t, mem: x.mem, dir: x.dir}
				for size := range ends[2] + 1 {
					y := &lab{t: t, mem: image.mem.Clone(), dir: x.dir, o: x.o, warns: &records{}}
					y.fs = y.mem
					y.write(logName(0), log[:size])
					y.open()
					want := int64(0)
					for i := range ends {
						if size >= ends[i] {
							want = int64(offsets[i])
						}
					}
					if got := y.log.LogEndOffset(); got != want {
						t.Fatalf("cut at %d: log ends at %d; want %d", size, got, want)
					}
					vouched := want
					if kind != "no slot" {
						vouched = slotEnd(image.read)
					}
					if want >= vouched {
						y.undamaged()
						y.goesOn(0, want)
					} else {
						// The slot vouches for more: gone, not torn (R32).
						if y.log.Damage() == nil {
							t.Fatalf("cut at %d: no damage though the slot vouches for %d", size, vouched)
						}
						if got := y.readAll(0); int64(len(got)) != want {
							t.Fatalf("cut at %d: %d records served; want %d", size, len(got), want)
						}
						if err := y.tryAppend(1, 10); !errors.Is(err, replica.ErrCorrupt) {
							t.Fatalf("cut at %d: append to the damaged log = %v", size, err)
						}
						if !bytes.Equal(y.read(logName(0)), log[:size]) {
							t.Fatalf("cut at %d: the damaged file changed", size)
						}
					}
					y.log.Close(t0)
				}
			})
		})
	}
}

// TestC007_TornBeyondTheSlot: bytes that nothing vouches for may be torn.
func TestC007_TornBeyondTheSlot(t *testing.T) {
	x := newLab(t, replica.Options{Sync: replica.Always})
	x.append(2, 60)
	x.sync()
	synced := x.mem.Clone() // its slot says 2
	x.append(3, 60)
	log := x.read(logName(0))
	n, _ := record.PeekSize(log)
	m, _ := record.PeekSize(log[n:])
	for size := n; size <= n+m; size++ {
		y := &lab{t: t, mem: synced.Clone(), dir: x.dir, o: x.o, warns: &records{}}
		y.fs = y.mem
		y.write(logName(0), log[:size])
		y.open()
		y.undamaged()
		want := int64(2)
		if size == n+m {
			want = 5
		}
		y.goesOn(0, want)
		y.close()
	}
}

// TestC008_EmptyLastSegment: the newest file has no bytes, or none that count.
func TestC008_EmptyLastSegment(t *testing.T) {
	for _, tail := range [][]byte{nil, bytes.Repeat([]byte{0xa5, 1, 2, 3}, 25), make([]byte, 64<<10)} {
		x := newLab(t, replica.Options{SegmentBytes: 1 << 20})
		for range 50 {
			x.append(10, 30)
		}
		x.close()
		x.remove(slotFile)
		x.write(logName(500), tail)
		x.open()
		x.undamaged()
		if got := x.segments(); !slices.Equal(got, []int64{0, 500}) {
			t.Errorf("segments %v", got)
		}
		x.goesOn(0, 500)
	}
}

// TestC013_EpochZero: epochs are found again in the batches, 0 included
// (scenario 72, rows "epochs 1, 3, 9" and "backwards" of log-format §4.3).
func TestC013_EpochZero(t *testing.T) {
	type epochs = []replica.Epoch
	for _, tc := range []struct {
		name   string
		epochs []int32 // of batches at 104, 106, 108, …
		want   epochs
	}{
		{"C013", []int32{0, 0, 1, 2}, epochs{{Epoch: 0, StartOffset: 104}, {Epoch: 1, StartOffset: 108}, {Epoch: 2, StartOffset: 110}}},
		{"scenario 72", []int32{0, 1, 1, 2}, epochs{{Epoch: 0, StartOffset: 104}, {Epoch: 1, StartOffset: 106}, {Epoch: 2, StartOffset: 110}}},
		{"gaps", []int32{1, 3, 9}, epochs{{Epoch: 1, StartOffset: 104}, {Epoch: 3, StartOffset: 106}, {Epoch: 9, StartOffset: 108}}},
		{"backwards", []int32{3, 1}, epochs{{Epoch: 3, StartOffset: 104}}},
		{"none", []int32{-1, -1}, nil},
	} {
		for _, file := range []string{"missing", "empty", "not a checkpoint"} {
			t.Run(tc.name+"/"+file, func(t *testing.T) {
				x := newLab(t, replica.Options{})
				x.close()
				x.remove(slotFile, logName(0), indexName(0), timeName(0), "leader-epoch-checkpoint")
				var b []byte
				for i, e := range tc.epochs {
					b = append(b, batchAt(104+2*int64(i), e, 2, 20)...)
				}
				x.write(logName(104), b)
				switch file {
				case "empty":
					x.write("leader-epoch-checkpoint", nil)
				case "not a checkpoint":
					x.write("leader-epoch-checkpoint", []byte("0\n3\n1 1\n"))
				}
				if err := x.tryOpen(); err != nil {
					t.Fatal(err)
				}
				x.undamaged()
				if got := x.log.Epochs(); !slices.Equal(got, tc.want) {
					t.Errorf("epochs %v; want %v", got, tc.want)
				}
				if got := x.readAll(104); len(got) != 2*len(tc.epochs) {
					t.Errorf("read %v", got)
				}
			})
		}
	}
}

// TestC014_RecoveryPointAhead: a checkpoint says 900, the log ends at 700 with a
// torn batch.
func TestC014_RecoveryPointAhead(t *testing.T) {
	build := func(t *testing.T) *lab {
		x := newLab(t, replica.Options{SegmentBytes: 1 << 20})
		for range 70 {
			x.append(10, 30)
		}
		x.sync()
		return x
	}
	torn := func(x *lab) {
		b := x.read(logName(0))
		end := 0
		for {
			n, ok := record.PeekSize(b[end:])
			if !ok {
				break
			}
			end += n
		}
		x.write(logName(0), append(b[:end:end], batchAt(700, 0, 5, 100)[:300]...))
	}
	checkpoint := replica.Checkpoints{Valid: true, RecoveryPoint: 900, HighWatermark: 700, LogStart: -1}

	t.Run("the slot decides", func(t *testing.T) {
		x := build(t)
		x.kill()
		torn(x)
		x.o.Checkpoints = checkpoint
		x.open()
		x.undamaged()
		x.whole(0, 700)
		x.goesOn(0, 700)
	})
	t.Run("no slot", func(t *testing.T) {
		x := build(t)
		x.kill()
		torn(x)
		x.remove(slotFile)
		before := x.read(logName(0))
		x.o.Checkpoints = checkpoint
		x.open()
		if x.log.Damage() == nil {
			t.Fatal("no damage reported")
		}
		if got := x.readAll(0); len(got) != 700 {
			t.Errorf("%d records served; want 700", len(got))
		}
		if err := x.tryAppend(1, 10); !errors.Is(err, replica.ErrCorrupt) {
			t.Errorf("append = %v", err)
		}
		if !bytes.Equal(x.read(logName(0)), before) {
			t.Error("the file changed")
		}
	})
}

// TestC016_EmptyAfterTruncation: the active segment is cut to nothing while its
// index has entries.
func TestC016_EmptyAfterTruncation(t *testing.T) {
	x := newLab(t, replica.Options{IndexIntervalBytes: 1, SegmentBytes: 4 << 10})
	if err := x.log.TruncateFullyAndStartAt(50); err != nil {
		t.Fatal(err)
	}
	x.lead()
	for range 20 {
		x.append(1, 10)
	}
	x.sync()
	before, _ := x.mem.Stat(x.path(logName(50)))
	if len(x.offsetEntries(50)) == 0 {
		t.Fatal("the index has no entries")
	}
	if err := x.log.Truncate(50); err != nil {
		t.Fatal(err)
	}
	x.lead()
	for range 20 {
		x.append(1, 20)
	}
	after, _ := x.mem.Stat(x.path(logName(50)))
	if !slices.Equal(x.segments(), []int64{50}) || before.Inode != after.Inode {
		t.Errorf("segments %v; inode %d, then %d", x.segments(), before.Inode, after.Inode)
	}
	x.whole(50, 70)
	x.close()
	if got := x.offsetEntries(50); len(got) != 19 || got[0][0] != 51 {
		t.Errorf("index %v; want 19 entries from 51 on", got)
	}
	x.open()
	x.goesOn(50, 70)
}

// TestC019_NamesAreSynced: no acknowledged append depends on a name that is not
// on disk.
func TestC019_NamesAreSynced(t *testing.T) {
	for _, mode := range []replica.SyncMode{replica.Always, replica.Interval} {
		t.Run(mode.String(), func(t *testing.T) {
			mem := vfs.NewMem(vfs.MemOptions{})
			faulty := vfs.NewFaulty(mem)
			x := &lab{t: t, mem: mem, fs: faulty, dir: "/log", warns: &records{}, o: replica.Options{Sync: mode, SegmentBytes: 4 << 10}}
			x.open()
			for i := range 40 {
				x.append(1, 700)
				if i%3 == 0 {
					if err := x.log.BeginEpoch(int32(i)); err != nil {
						t.Fatal(err)
					}
				}
				x.sync() // acknowledged
				unsynced := map[string]bool{}
				for _, c := range faulty.Calls() {
					switch c.Op {
					case vfs.OpCreate:
						unsynced[c.Name] = true
					case vfs.OpRename:
						delete(unsynced, c.Name)
						unsynced[c.To] = true
					case vfs.OpRemove:
						delete(unsynced, c.Name)
					case vfs.OpSyncDir:
						for name := range unsynced {
							if filepath.Dir(name) == c.Name {
								delete(unsynced, name)
							}
						}
					}
				}
				for name := range unsynced {
					// Indexes of the active segment are derived, and a prepared
					// segment or temporary file is nobody's yet.
					if strings.HasSuffix(name, ".log") || strings.HasSuffix(name, "checkpoint") || strings.HasSuffix(name, ".slot") {
						t.Fatalf("append %d was acknowledged before the name %s was synced", i, name)
					}
				}
			}
			if len(x.segments()) < 5 {
				t.Fatalf("only %d segments", len(x.segments()))
			}
			x.close()
		})
	}
}

// TestC020_OldSegmentFirst: whatever moment the power fails at, what counts as
// synced is there, without a hole before a segment that was synced first.
func TestC020_OldSegmentFirst(t *testing.T) {
	for _, mode := range []replica.SyncMode{replica.Always, replica.Interval, replica.Never} {
		t.Run(mode.String(), func(t *testing.T) {
			x := newLab(t, replica.Options{Sync: mode, SegmentBytes: 4 << 10})
			images := 0
			rng := rand.New(rand.NewPCG(20, 20))
			synced := func() int64 { return x.log.SyncedEnd() }
			x.mem.SetHook(func(op vfs.Op, name string, done bool) {
				if op != vfs.OpFinishSync || !done {
					return
				}
				y := &lab{t: t, mem: x.mem.PowerCut(rng), dir: x.dir, o: x.o, warns: &records{}}
				y.fs = y.mem
				want := synced()
				y.open()
				y.undamaged()
				if end := y.log.LogEndOffset(); end < want {
					t.Errorf("log ends at %d after a power cut; %d was synced", end, want)
				}
				y.whole(0, y.log.LogEndOffset())
				y.log.Close(t0)
				images++
			})
			for i := range 30 {
				x.append(1, 900)
				if i%7 == 6 {
					x.sync()
				}
			}
			x.mem.SetHook(nil)
			if images == 0 || len(x.segments()) < 5 {
				t.Errorf("%d images, %d segments", images, len(x.segments()))
			}
		})
	}
}

// TestC022_CompleteSwap: files of a finished replacement take their place; one
// that was not finished is dropped (scenarios 93, 94).
func TestC022_CompleteSwap(t *testing.T) {
	join := func(batches ...record.Batch) (b []byte) {
		for _, x := range batches {
			b = append(b, x...)
		}
		return b
	}
	whole := func(from, to int64) (b []byte) {
		for ; from < to; from += 10 {
			b = append(b, batchAt(from, 0, 10, 20)...)
		}
		return b
	}
	for _, tc := range []struct {
		name  string
		files map[string][]byte
		want  []int64 // first offsets of what is left
		logs  []int64
	}{
		{"all swapped, originals there", map[string][]byte{
			".log": nil, logName(0) + ".swap": join(batchAt(0, 0, 10, 20), batchAt(90, 0, 10, 20)), indexName(0) + ".swap": nil, timeName(0) + ".swap": nil,
		}, []int64{0, 90, 100, 110}, []int64{0, 100}},
		{"originals partly gone", map[string][]byte{
			"-": []byte(logName(0)), logName(0) + ".swap": join(batchAt(0, 0, 10, 20), batchAt(90, 0, 10, 20)), logName(50) + ".deleted": whole(50, 100),
		}, []int64{0, 90, 100, 110}, []int64{0, 100}},
		{"scenario 93: only cleaned", map[string][]byte{
			logName(0) + ".cleaned": batchAt(0, 0, 10, 20), indexName(0) + ".cleaned": nil,
		}, []int64{0, 10, 20, 30, 40, 50, 60, 70, 80, 90, 100, 110}, []int64{0, 50, 100}},
		{"scenario 94: swap above the smallest cleaned", map[string][]byte{
			logName(0) + ".cleaned": batchAt(0, 0, 10, 20), logName(50) + ".swap": batchAt(90, 0, 10, 20),
		}, []int64{0, 10, 20, 30, 40, 50, 60, 70, 80, 90, 100, 110}, []int64{0, 50, 100}},
		{"swap below the smallest cleaned", map[string][]byte{
			logName(50) + ".cleaned": batchAt(50, 0, 10, 20), logName(0) + ".swap": batchAt(40, 0, 10, 20),
		}, []int64{40, 50, 60, 70, 80, 90, 100, 110}, []int64{0, 50, 100}},
		{"scenario 82: deleted", map[string][]byte{
			logName(300) + ".deleted": whole(300, 310), indexName(300) + ".deleted": nil, "anything.deleted": nil,
		}, []int64{0, 10, 20, 30, 40, 50, 60, 70, 80, 90, 100, 110}, []int64{0, 50, 100}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			x := newLab(t, replica.Options{})
			x.close()
			x.remove(slotFile, logName(0), indexName(0), timeName(0), "leader-epoch-checkpoint")
			for from, to := range map[int64]int64{0: 50, 50: 100, 100: 120} {
				x.write(logName(from), whole(from, to))
			}
			for name, b := range tc.files {
				switch {
				case name == "-":
					x.remove(string(b))
				case name != ".log":
					x.write(name, b)
				}
			}
			for round := range 2 {
				if err := x.tryOpen(); err != nil {
					t.Fatal(err)
				}
				x.undamaged()
				var got []int64
				for _, offset := range x.readAll(0) {
					if offset%10 == 0 {
						got = append(got, offset)
					}
				}
				if !slices.Equal(got, tc.want) || !slices.Equal(x.segments(), tc.logs) {
					t.Fatalf("open %d: batches at %v in segments %v; want %v in %v", round+1, got, x.segments(), tc.want, tc.logs)
				}
				for _, name := range x.names() {
					if strings.HasSuffix(name, ".swap") || strings.HasSuffix(name, ".cleaned") || strings.HasSuffix(name, ".deleted") {
						t.Errorf("open %d left %s", round+1, name)
					}
				}
				x.close()
				if round == 0 {
					x.remove(slotFile)
				}
			}
		})
	}
}

// TestC023_OneBadIndex: a damaged index costs a look at its own segment, when it
// is needed, and not at any other.
func TestC023_OneBadIndex(t *testing.T) {
	x := newLab(t, replica.Options{IndexIntervalBytes: 100, SegmentBytes: 4 << 10})
	for len(x.segments()) < 20 {
		x.append(3, 100)
	}
	end := x.log.LogEndOffset()
	bases := x.segments()
	x.close()
	b := x.read(indexName(0))
	for i := range b {
		b[i] ^= 0x5a
	}
	x.write(indexName(0), b)
	faulty := vfs.NewFaulty(x.mem)
	x.fs = faulty
	x.open()
	x.undamaged()
	touched := func() (names []string) {
		for _, c := range faulty.Calls() {
			name := filepath.Base(c.Name)
			if c.Op == vfs.OpMap && strings.HasSuffix(name, ".log") && !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
		return names
	}
	active := logName(bases[len(bases)-1])
	for _, name := range touched() {
		if name != active && name != segment.TmpPrefix+".log.tmp" {
			t.Errorf("open read %s", name)
		}
	}
	for offset := range bases[1] {
		if r, _, ok, err := x.log.Get(offset, end, nil); err != nil || !ok || r.Offset != offset {
			t.Fatalf("get %d: %d %v %v", offset, r.Offset, ok, err)
		}
	}
	for _, name := range touched() {
		if name != active && name != segment.TmpPrefix+".log.tmp" && name != logName(0) {
			t.Errorf("reading segment 0 touched %s", name)
		}
	}
	x.whole(0, end)
}

// TestC024_EmptyActiveWithoutIndex: indexes are made lazily; an empty active
// segment has none.
func TestC024_EmptyActiveWithoutIndex(t *testing.T) {
	x := newLab(t, replica.Options{})
	x.close()
	x.remove(slotFile, logName(0), indexName(0), timeName(0), "leader-epoch-checkpoint")
	x.write(logName(500), nil)
	x.warns.lines = nil
	x.o.Checkpoints = replica.Checkpoints{Valid: true, Clean: true, RecoveryPoint: 500, HighWatermark: 500, LogStart: -1}
	x.open()
	x.undamaged()
	if len(x.warns.lines) > 0 {
		t.Errorf("not quiet: %q", x.warns.lines)
	}
	x.whole(500, 500)
	x.goesOn(500, 500)
}

// TestC026_DataWins: the newest segment is gone, the slot and the checkpoints
// still speak of it.
func TestC026_DataWins(t *testing.T) {
	eachKind(t, replica.Options{SegmentBytes: 4 << 10}, func(x *lab) {
		for len(x.segments()) < 4 {
			x.append(2, 300)
		}
		x.sync()
	}, func(t *testing.T, x *lab, kind string) {
		last := x.segments()[3]
		x.remove(logName(last), indexName(last), timeName(last))
		x.open()
		if got := x.readAll(0); int64(len(got)) != last {
			t.Errorf("%d records served; want %d", len(got), last)
		}
		if kind == "no slot" {
			x.undamaged()
			x.goesOn(0, last)
			return
		}
		if x.log.Damage() == nil || x.warned("damaged") == 0 {
			t.Error("what was synced is gone, and nothing says so")
		}
		if err := x.tryAppend(1, 10); !errors.Is(err, replica.ErrCorrupt) {
			t.Errorf("an offset is handed out a second time: %v", err)
		}
	})
}

// TestC028_FullDisk: an unclean log is opened on a full disk.
func TestC028_FullDisk(t *testing.T) {
	for _, kind := range []string{"killed", "no slot"} {
		t.Run(kind, func(t *testing.T) {
			x := newLab(t, replica.Options{SegmentBytes: 8 << 10, IndexIntervalBytes: 100})
			for len(x.segments()) < 3 {
				x.append(3, 100)
			}
			x.sync()
			end := x.log.LogEndOffset()
			x.kill()
			if kind == "no slot" {
				x.remove(slotFile)
			}
			logs := map[int64][]byte{}
			for _, b := range x.segments() {
				logs[b] = x.read(logName(b))
			}
			x.mem.SetCapacity(x.mem.Used())
			err := x.tryOpen()
			if err != nil && !errors.Is(err, syscall.ENOSPC) {
				t.Fatalf("open on a full disk: %v", err)
			}
			if err == nil { // it needed nothing
				x.undamaged()
				if err := x.log.Close(t0); err != nil && !errors.Is(err, syscall.ENOSPC) {
					t.Fatal(err)
				}
			}
			for b, want := range logs {
				if got := x.read(logName(b)); !bytes.Equal(bytes.TrimRight(got, "\x00"), bytes.TrimRight(want, "\x00")) {
					t.Errorf("%s changed", logName(b))
				}
			}
			ro := x.o
			ro.FS, ro.ReadOnly = x.mem, true
			r, err := replica.Open(x.dir, ro, t0)
			if err != nil || r.LogEndOffset() != end {
				t.Fatalf("read-only open on a full disk: %v", err)
			}
			r.Close(t0)
			x.mem.SetCapacity(0)
			x.open()
			x.undamaged()
			x.whole(0, end)
			x.goesOn(0, end)
		})
	}
}

// TestC033_LookupsDuringRolls: lookups while segments roll, are sealed, synced,
// unmapped and mapped again. Run with -race.
func TestC033_LookupsDuringRolls(t *testing.T) {
	for _, mode := range []replica.SyncMode{replica.Always, replica.Never} {
		t.Run(mode.String(), func(t *testing.T) {
			x := newLab(t, replica.Options{Sync: mode, SegmentBytes: 4 << 10, IndexIntervalBytes: 100, SealedSyncDelay: time.Nanosecond, Sole: true})
			x.close()
			x.o.Maps = segment.NewMaps(16)
			x.open()
			var stop atomic.Bool
			var wg sync.WaitGroup
			for r := range 3 {
				wg.Go(func() {
					rng := rand.New(rand.NewPCG(33, uint64(r)))
					var buf []byte
					for !stop.Load() {
						end := x.log.HighWatermark()
						if end == 0 {
							continue
						}
						offset := rng.Int64N(end)
						rec, b, ok, err := x.log.Get(offset, end, buf)
						if err != nil || !ok || rec.Offset != offset {
							t.Errorf("get %d of %d: %d %v %v", offset, end, rec.Offset, ok, err)
							return
						}
						x.checkRecord(rec)
						buf = b
						if rng.IntN(20) == 0 {
							if got, _, ok, err := x.log.OffsetForTime(t0.UnixMilli()+offset, end); err != nil || !ok || got != offset {
								t.Errorf("time of %d: %d %v %v", offset, got, ok, err)
								return
							}
						}
					}
				})
			}
			deadline := time.Now().Add(raceTime())
			for time.Now().Before(deadline) && !t.Failed() {
				x.append(2, 150)
				x.log.Maintain(t0)
				if x.log.LogEndOffset()%10 == 0 {
					x.sync()
				}
			}
			stop.Store(true)
			wg.Wait()
			x.sync()
			if len(x.segments()) < 5 {
				t.Errorf("only %d segments", len(x.segments()))
			}
		})
	}
}

// raceTime is how long a test runs that looks for a race.
func raceTime() time.Duration {
	if *long {
		return 30 * time.Second
	}
	return time.Second
}

// TestC035_CannotMap: a file system that refuses shared writable maps.
func TestC035_CannotMap(t *testing.T) {
	faulty := vfs.NewFaulty(vfs.NewMem(vfs.MemOptions{}), vfs.Rule{Ops: vfs.OpMap, Err: syscall.EINVAL})
	o := replica.Options{FS: faulty, Maps: segment.NewMaps(100)}
	_, err := replica.Open("/log", o, t0)
	if !errors.Is(err, syscall.EINVAL) || !strings.Contains(err.Error(), "/log/") || !strings.Contains(err.Error(), "map") {
		t.Fatalf("open = %v; want the path and the reason", err)
	}
	if o.Maps.Count() != 0 {
		t.Errorf("%d maps left behind", o.Maps.Count())
	}
	faulty.SetRules()
	l, err := replica.Open("/log", o, t0)
	if err != nil {
		t.Fatal(err)
	}
	l.Close(t0)
}

// TestC036_NFSNames: hidden names of a network file system and of a disk are
// ignored and kept, in the log's folder.
func TestC036_NFSNames(t *testing.T) {
	x := newLab(t, replica.Options{})
	x.append(2, 10)
	x.close()
	x.write(".nfs0000000001", []byte("x"))
	if err := x.mem.Mkdir(x.path("lost+found")); err != nil {
		t.Fatal(err)
	}
	x.open()
	x.undamaged()
	x.goesOn(0, 2)
	if !x.has(".nfs0000000001") || !x.has("lost+found") {
		t.Errorf("unknown names were removed: %v", x.names())
	}
}

// TestC037_StrayFiles: names that are none of ours are ignored and kept; an
// index without its log is removed (scenario 81).
func TestC037_StrayFiles(t *testing.T) {
	eachKind(t, replica.Options{}, func(x *lab) { x.append(3, 10); x.sync() }, func(t *testing.T, x *lab, kind string) {
		stray := []string{".DS_Store", logName(0) + ".bak", "notanumber.log", "5.log", "-0000000000000000001.log", "+0000000000000000001.log",
			"99999999999999999999.log", "notes", "x.tmp", ".hidden", "abc.dedupe", "abc.index"}
		for _, name := range stray {
			x.write(name, []byte("something"))
		}
		if err := x.mem.Mkdir(x.path("sub")); err != nil {
			t.Fatal(err)
		}
		if err := x.mem.Mkdir(x.path(logName(7))); err != nil {
			t.Fatal(err)
		}
		x.write(indexName(40), nil)
		x.write(timeName(41), []byte("junk"))
		x.write("tidemark-next.log.tmp", []byte("leftover of a prepared segment"))
		x.open()
		x.undamaged()
		x.goesOn(0, 3)
		for _, name := range append(stray, "sub", logName(7)) {
			if !x.has(name) {
				t.Errorf("%s was removed", name)
			}
		}
		for _, name := range []string{indexName(40), timeName(41)} {
			if x.has(name) {
				t.Errorf("%s is still there", name)
			}
		}
	})
}

// TestC041_IndexRemovedByHand: the index gets its full content all the same.
func TestC041_IndexRemovedByHand(t *testing.T) {
	x := newLab(t, replica.Options{IndexIntervalBytes: 150, SegmentBytes: 8 << 10})
	y := newLab(t, replica.Options{IndexIntervalBytes: 150, SegmentBytes: 8 << 10})
	for i := 0; len(x.segments()) < 3; i++ {
		if i == 5 {
			x.remove(indexName(0), timeName(0))
		}
		x.append(2, 50)
		y.append(2, 50)
		x.readAll(max(0, x.log.LogEndOffset()-5))
	}
	end := x.log.LogEndOffset()
	x.whole(0, end)
	x.sync()
	y.sync()
	if !slices.Equal(x.offsetEntries(0), y.offsetEntries(0)) || !slices.Equal(x.timeEntries(0), y.timeEntries(0)) || len(x.offsetEntries(0)) == 0 {
		t.Errorf("indexes %v and %v; want %v and %v", x.offsetEntries(0), x.timeEntries(0), y.offsetEntries(0), y.timeEntries(0))
	}
	x.close()
	x.open()
	x.whole(0, end)
}

// TestC044_EveryDirectoryIsLocked: a log directory and a data folder alike
// (scenario 99). A read-only open needs no lock.
func TestC044_EveryDirectoryIsLocked(t *testing.T) {
	for name, fsys := range map[string]vfs.FS{"memory": vfs.NewMem(vfs.MemOptions{}), "disk": vfs.OS} {
		t.Run(name, func(t *testing.T) {
			root := "/"
			if fsys == vfs.OS {
				root = t.TempDir()
			}
			o := replica.Options{FS: fsys, Sole: true}
			dir := filepath.Join(root, "log")
			l, err := replica.Open(dir, o, t0)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := replica.Open(dir, o, t0); !errors.Is(err, replica.ErrLocked) || !strings.Contains(err.Error(), dir) {
				t.Errorf("second open = %v; want ErrLocked with the path", err)
			}
			ro := o
			ro.ReadOnly = true
			if r, err := replica.Open(dir, ro, t0); err != nil {
				t.Errorf("read-only open beside a writer: %v", err)
			} else {
				r.Close(t0)
			}
			if err := l.Close(t0); err != nil {
				t.Fatal(err)
			}
			if l, err = replica.Open(dir, o, t0); err != nil {
				t.Fatalf("open after Close: %v", err)
			}
			l.Close(t0)

			data := filepath.Join(root, "data")
			d, err := replica.OpenDir(data, replica.DirOptions{FS: fsys}, t0)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := replica.OpenDir(data, replica.DirOptions{FS: fsys}, t0); !errors.Is(err, replica.ErrLocked) {
				t.Errorf("second open of the data folder = %v; want ErrLocked", err)
			}
			// A partition is its folder's, or is opened by itself: the one who comes
			// second is refused, which of the two it is.
			p := replica.TopicPartition{Topic: "t"}
			part := filepath.Join(data, p.String())
			if _, err := d.OpenLog(p, replica.UUID{}, o, t0); err != nil {
				t.Fatal(err)
			}
			if _, err := replica.Open(part, o, t0); !errors.Is(err, replica.ErrLocked) {
				t.Errorf("open of a partition of an open folder = %v; want ErrLocked", err)
			}
			if r, err := replica.Open(part, ro, t0); err != nil {
				t.Errorf("read-only open of it: %v", err)
			} else {
				r.Close(t0)
			}
			if err := d.Close(t0); err != nil {
				t.Fatal(err)
			}
			if l, err = replica.Open(part, o, t0); err != nil {
				t.Fatalf("open of a partition of a closed folder: %v", err)
			}
			if d, err = replica.OpenDir(data, replica.DirOptions{FS: fsys}, t0); err != nil {
				t.Fatal(err)
			}
			if _, err := d.OpenLog(p, replica.UUID{}, o, t0); !errors.Is(err, replica.ErrLocked) {
				t.Errorf("open in the folder of a partition that is open by itself = %v; want ErrLocked", err)
			}
			if err := l.Close(t0); err != nil {
				t.Fatal(err)
			}
			if _, err := d.OpenLog(p, replica.UUID{}, o, t0); err != nil {
				t.Errorf("open in the folder once it is closed: %v", err)
			}
			d.Close(t0)
		})
	}
}

// TestC045_NoLocks: a mount that cannot lock.
func TestC045_NoLocks(t *testing.T) {
	for _, e := range []error{syscall.ENOLCK, syscall.EINVAL} {
		faulty := vfs.NewFaulty(vfs.NewMem(vfs.MemOptions{}), vfs.Rule{Ops: vfs.OpLock, Err: e})
		if _, err := replica.Open("/log", replica.Options{FS: faulty}, t0); !errors.Is(err, e) || !strings.Contains(err.Error(), "/log/LOCK") {
			t.Errorf("open = %v; want %v and the path", err, e)
		}
		if _, err := replica.OpenDir("/data", replica.DirOptions{FS: faulty}, t0); !errors.Is(err, e) || !strings.Contains(err.Error(), "/data/.lock") {
			t.Errorf("open of a data folder = %v; want %v and the path", err, e)
		}
	}
}

// TestC048_SyncMeetsDelete: syncs while everything is dropped, again and again.
// A file that is gone is no failure of the disk.
func TestC048_SyncMeetsDelete(t *testing.T) {
	for _, mode := range []replica.SyncMode{replica.Always, replica.Interval, replica.Never} {
		t.Run(mode.String(), func(t *testing.T) {
			x := newLab(t, replica.Options{Sync: mode, SegmentBytes: 4 << 10, IndexIntervalBytes: 1})
			var stop atomic.Bool
			var wg sync.WaitGroup
			for range 2 {
				wg.Go(func() {
					for !stop.Load() {
						if err := x.log.SyncNow(); err != nil && !errors.Is(err, replica.ErrBusy) {
							t.Error(err)
							return
						}
						x.log.Maintain(t0)
						if s := x.log.StartSealedSync(t0); s != nil {
							if err := x.log.FinishSync(s, s.Wait()); err != nil {
								t.Error(err)
							}
						}
					}
				})
			}
			for i := 0; i < 200 && !t.Failed(); i++ {
				for range 8 {
					x.append(1, 800)
				}
				var err error
				for err = replica.ErrBusy; errors.Is(err, replica.ErrBusy); {
					if i%2 == 0 {
						err = x.log.TruncateFullyAndStartAt(int64(10 * i))
					} else {
						err = x.log.Truncate(x.log.LogStartOffset() + 1)
					}
				}
				if err != nil {
					t.Error(err)
				}
				x.lead()
			}
			stop.Store(true)
			wg.Wait()
			if err := x.log.Err(); err != nil {
				t.Errorf("log has failed: %v", err)
			}
			x.close()
		})
	}
}

// TestC052_NoTimestamp: −1 means none and enters no index.
func TestC052_NoTimestamp(t *testing.T) {
	x := newLab(t, replica.Options{IndexIntervalBytes: 1})
	for i := range int64(20) {
		r := recordAt(i, 100)
		if i%2 == 0 {
			r.Timestamp = record.NoTimestamp
		}
		if _, err := x.log.AppendRecords([]record.Record{r}, t0); err != nil {
			t.Fatal(err)
		}
	}
	check := func() {
		t.Helper()
		for i := range int64(20) {
			want := i | 1
			if got, _, ok, err := x.log.OffsetForTime(t0.UnixMilli()+i, 20); err != nil || !ok || got != want {
				t.Errorf("time of %d = %d, %v, %v; want %d", i, got, ok, err, want)
			}
		}
	}
	check()
	x.close()
	for _, e := range x.timeEntries(0) {
		if e[0] < 0 {
			t.Errorf("time index has entry %v", e)
		}
	}
	x.open()
	check()

	// Nothing but records without one.
	y := newLab(t, replica.Options{IndexIntervalBytes: 1, SegmentBytes: 4 << 10})
	for len(y.segments()) < 3 {
		if _, err := y.log.AppendRecords([]record.Record{{Timestamp: record.NoTimestamp, Value: make([]byte, 500)}}, t0); err != nil {
			t.Fatal(err)
		}
	}
	y.close()
	if e := y.timeEntries(0); len(e) != 0 {
		t.Errorf("time index of records without timestamps: %v", e)
	}
	y.open()
	if got, _, ok, err := y.log.OffsetForTime(0, math.MaxInt64); ok || err != nil {
		t.Errorf("search by time = %d, %v, %v", got, ok, err)
	}
	if ts := y.log.Stats().MaxTimestamp; ts != -1 {
		t.Errorf("largest timestamp %d", ts)
	}
}

// TestC055_BetweenTimestamps: never the record before the asked time.
func TestC055_BetweenTimestamps(t *testing.T) {
	for _, perBatch := range []int{1, 4} {
		x := newLab(t, replica.Options{IndexIntervalBytes: 1})
		recs := []record.Record{{Timestamp: 2}, {Timestamp: 4}, {Timestamp: 6}, {Timestamp: 8}}
		for b := range slices.Chunk(recs, perBatch) {
			if _, err := x.log.AppendRecords(b, t0); err != nil {
				t.Fatal(err)
			}
		}
		for i, want := range []int64{0, 0, 1, 1, 2, 2, 3, 3, -1} {
			got, _, ok, err := x.log.OffsetForTime(int64(i+1), math.MaxInt64)
			if err != nil {
				t.Fatal(err)
			}
			if !ok {
				got = -1
			}
			if got != want {
				t.Errorf("%d a batch: time %d = %d; want %d", perBatch, i+1, got, want)
			}
		}
		// Scenario 161: nothing at or above the limit.
		if _, _, ok, _ := x.log.OffsetForTime(8, 3); ok {
			t.Error("a record at the limit was found")
		}
	}
}

// TestC057_SeveralBatches: a follower indexes each batch of a fetch.
func TestC057_SeveralBatches(t *testing.T) {
	x := newLab(t, replica.Options{SegmentBytes: 4 << 20, MaxBatchBytes: 1 << 20})
	var b []byte
	var last, pos []int64
	for i := range int64(200) {
		y := batchAt(5*i, 0, 5, 1050)
		last, pos = append(last, 5*i+4), append(pos, int64(len(b)))
		b = append(b, y...)
	}
	if len(b) < 1<<20 {
		t.Fatalf("%d bytes", len(b))
	}
	if a, err := x.log.Append(b, replica.Follower, t0); err != nil || a.End != 1000 {
		t.Fatal(a, err)
	}
	x.close()
	entries := x.offsetEntries(0)
	if want := len(b) / 4096; len(entries) < want/2 || len(entries) > want {
		t.Errorf("%d entries for %d KiB", len(entries), len(b)>>10)
	}
	for _, e := range entries {
		if i := slices.Index(last, e[0]); i < 0 || pos[i] != e[1] {
			t.Errorf("entry %v names no batch", e)
		}
	}
}

// TestC058_EqualTimestamps: of equal maxima the first batch counts.
func TestC058_EqualTimestamps(t *testing.T) {
	for before := range 3 {
		x := newLab(t, replica.Options{IndexIntervalBytes: 150})
		offset := int64(0)
		put := func(ts int64) {
			if _, err := x.log.AppendRecords([]record.Record{{Timestamp: ts, Value: make([]byte, 80)}}, t0); err != nil {
				t.Fatal(err)
			}
			offset++
		}
		for range before {
			put(1)
		}
		first := offset
		put(9)
		put(9)
		put(9)
		put(3)
		x.close()
		e := x.timeEntries(0)
		if n := len(e); n == 0 || e[n-1] != [2]int64{9, first} {
			t.Errorf("%d batches before: time index %v; want it to end with (9, %d)", before, e, first)
		}
		x.open()
		if got, _, ok, err := x.log.OffsetForTime(9, math.MaxInt64); got != first || !ok || err != nil {
			t.Errorf("time 9 = %d, %v, %v; want %d", got, ok, err, first)
		}
	}
}

// TestC059_FirstOrLastOffset: brokers of several versions name the first or the
// last offset of a batch in the time index.
func TestC059_FirstOrLastOffset(t *testing.T) {
	x := newLab(t, replica.Options{IndexIntervalBytes: 1})
	for range 30 {
		x.append(4, 30)
	}
	x.close()
	b := x.read(timeName(0))
	for i := 0; i*12 < len(b); i += 2 {
		b[i*12+11] -= 3 // the first offset of the batch
	}
	x.write(timeName(0), b)
	x.open()
	x.whole(0, 120)
}

// TestC073_ElectionWithoutWrites: an epoch that was begun at the end and never
// written in goes with a truncation to the end.
func TestC073_ElectionWithoutWrites(t *testing.T) {
	x := newLab(t, replica.Options{})
	for range 10 {
		x.append(10, 10)
	}
	if err := x.log.BeginEpoch(5); err != nil {
		t.Fatal(err)
	}
	if got := x.log.Epochs(); len(got) != 2 || got[1] != (replica.Epoch{Epoch: 5, StartOffset: 100}) {
		t.Fatalf("epochs %v", got)
	}
	if err := x.log.Truncate(100); err != nil {
		t.Fatal(err)
	}
	if got := x.log.Epochs(); len(got) != 1 || got[0].Epoch != 0 {
		t.Errorf("epochs %v; want that of 5 gone", got)
	}
	x.follow(batchAt(100, 6, 2, 10))
	if got := x.log.Epochs(); len(got) != 2 || got[1] != (replica.Epoch{Epoch: 6, StartOffset: 100}) {
		t.Errorf("epochs %v", got)
	}
	if e, end := x.log.EndOffsetFor(5); e != 0 || end != 100 {
		t.Errorf("epoch 5 ends at (%d, %d); want (0, 100)", e, end)
	}
	x.whole(0, 102)
}

// TestC075_BelowTheFirstEpoch: the answer lets a follower begin at the log
// start.
func TestC075_BelowTheFirstEpoch(t *testing.T) {
	x := newLab(t, replica.Options{})
	if err := x.log.TruncateFullyAndStartAt(10); err != nil {
		t.Fatal(err)
	}
	if err := x.log.BeginEpoch(5); err != nil {
		t.Fatal(err)
	}
	x.append(3, 10)
	if e, end := x.log.EndOffsetFor(4); e != 4 || end != 10 {
		t.Errorf("EndOffsetFor(4) = (%d, %d); want (4, 10)", e, end)
	}
}

// TestC076_SparseEpochs: a file that lists two of ten epochs. Verify says so, and
// nothing is cut for it.
func TestC076_SparseEpochs(t *testing.T) {
	x := newLab(t, replica.Options{})
	for e := range int32(10) {
		x.follow(batchAt(2*int64(e), e, 2, 20))
	}
	x.close()
	x.write("leader-epoch-checkpoint", []byte("0\n2\n0 0\n9 18\n"))
	if err := x.tryOpen(); err != nil {
		t.Fatal(err)
	}
	x.undamaged()
	if got := x.readAll(0); len(got) != 20 {
		t.Errorf("%d records", len(got))
	}
	if found := x.findings(); len(found) != 8 || !strings.Contains(found[0].Error(), "epoch 1") {
		t.Errorf("Verify found %v; want the batches of epochs 1 to 8", found)
	}
}

// TestRefusedBatches: C119, C122, C123, C126, C131, C143 at the log: nothing of a
// refused batch is appended. Package record has the validation itself.
func TestRefusedBatches(t *testing.T) {
	good := func() record.Batch { return batchAt(0, -1, 2, 20) }
	reseal := func(b record.Batch) record.Batch {
		c := b.ComputeCRC()
		b[17], b[18], b[19], b[20] = byte(c>>24), byte(c>>16), byte(c>>8), byte(c)
		return b
	}
	for _, tc := range []struct {
		name string
		make func() []byte
		code int16 // Kafka's, 0 where package record says it without
	}{
		{"C119 two batches", func() []byte { return append(good(), good()...) }, 87},
		{"C122 base offset 5", func() []byte { b := good(); b.SetBaseOffset(5); return b }, 87},
		{"C122 base offset -1", func() []byte { b := good(); b.SetBaseOffset(-1); return b }, 87},
		{"C123 control batch", func() []byte { b := good(); b[22] |= 1 << 5; return reseal(b) }, 87},
		{"C123 control and transactional", func() []byte { b := good(); b[22] |= 3 << 4; return reseal(b) }, 87},
		{"C126 record length beyond the batch", func() []byte { b := good(); b[61] = 0x7e; return reseal(b) }, 87},
		{"C131 magic 1", func() []byte { b := good(); b[16] = 1; return b }, 0},
		{"C131 magic 3", func() []byte { b := good(); b[16] = 3; return b }, 0},
		{"C143 codec 5", func() []byte { b := good(); b[22] = 5; return reseal(b) }, 0},
		{"bad checksum", func() []byte { b := good(); b[70] ^= 1; return b }, 0},
		{"cut", func() []byte { b := good(); return b[:len(b)-1] }, 0},
		{"empty", func() []byte { return nil }, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			x := newLab(t, replica.Options{})
			x.append(3, 10)
			before := x.read(logName(0))
			_, err := x.log.Append(tc.make(), replica.Client, t0)
			if err == nil {
				t.Fatal("it was appended")
			}
			var c *record.ClientError
			if tc.code != 0 && (!errors.As(err, &c) || c.Code != tc.code) {
				t.Errorf("refused with %v; want code %d", err, tc.code)
			}
			if !bytes.Equal(x.read(logName(0)), before) {
				t.Error("the file changed")
			}
			x.goesOn(0, 3)
		})
	}
}

// TestC129_NullAndEmpty: the nine combinations of key and value, null header
// values, C130's order of headers, in each codec, after a restart.
func TestC129_NullAndEmpty(t *testing.T) {
	var recs []record.Record
	for _, key := range [][]byte{nil, {}, []byte("k")} {
		for _, val := range [][]byte{nil, {}, []byte("v")} {
			recs = append(recs, record.Record{Timestamp: t0.UnixMilli(), Key: key, Value: val, Headers: []record.Header{
				{Key: []byte("a"), Value: []byte("1")}, {Key: []byte("a"), Value: []byte("2")}, {Key: []byte(""), Value: []byte("x")},
				{Key: []byte("b"), Value: nil}, {Key: []byte("c"), Value: []byte{}},
			}})
		}
	}
	many := record.Record{Timestamp: t0.UnixMilli()}
	for i := range 1000 {
		many.Headers = append(many.Headers, record.Header{Key: fmt.Append(nil, "h", i%7), Value: []byte{byte(i), 0, 0xff}})
	}
	recs = append(recs, many)
	testStored(t, recs)
}

// TestC130_Headers is part of TestC129.
func TestC130_Headers(t *testing.T) { TestC129_NullAndEmpty(t) }

// testStored appends recs plain and in each codec as client and follower, and
// reads them back before and after a restart and a kill.
func testStored(t *testing.T, recs []record.Record) {
	x := newLab(t, replica.Options{SegmentBytes: 1 << 20})
	n := int64(len(recs))
	rounds := int64(0)
	add := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		rounds++
	}
	_, err := x.log.AppendRecords(recs, t0)
	add(err)
	for c := record.None; c <= record.Zstd; c++ {
		var w record.Builder
		spec := record.NewSpec()
		spec.Codec = c
		b, err := w.Build(recs, &spec)
		if err != nil {
			t.Fatal(err)
		}
		_, err = x.log.Append(b, replica.Client, t0)
		add(err)
		b.SetBaseOffset(x.log.LogEndOffset())
		b.SetLeaderEpoch(0)
		_, err = x.log.Append(b, replica.Follower, t0)
		add(err)
	}
	check := func() {
		t.Helper()
		for i := range rounds * n {
			r, _, ok, err := x.log.Get(i, rounds*n, nil)
			if err != nil || !ok {
				t.Fatalf("get %d: %v %v", i, ok, err)
			}
			if diff := diffRecord(r, recs[i%n]); diff != "" {
				t.Fatalf("record %d: %s", i, diff)
			}
		}
		x.verify()
	}
	check()
	x.close()
	x.open()
	check()
	x.kill()
	x.open()
	check()
}

func diffRecord(got, want record.Record) string {
	same := func(a, b []byte) bool { return bytes.Equal(a, b) && (a == nil) == (b == nil) }
	if !same(got.Key, want.Key) || !same(got.Value, want.Value) {
		return fmt.Sprintf("key %#v value %#v; want %#v %#v", got.Key, got.Value, want.Key, want.Value)
	}
	if len(got.Headers) != len(want.Headers) {
		return fmt.Sprintf("%d headers; want %d", len(got.Headers), len(want.Headers))
	}
	for i, h := range got.Headers {
		if w := want.Headers[i]; !bytes.Equal(h.Key, w.Key) || !same(h.Value, w.Value) {
			return fmt.Sprintf("header %d is %q=%#v; want %q=%#v", i, h.Key, h.Value, w.Key, w.Value)
		}
	}
	return ""
}

// TestC133_Limits: the limit is on the batch as stored; all or nothing.
func TestC133_Limits(t *testing.T) {
	const limit = 2000
	for _, mode := range []replica.SyncMode{replica.Always, replica.Never} {
		x := newLab(t, replica.Options{Sync: mode, MaxBatchBytes: limit, SegmentBytes: 8 << 10})
		exact := func(n int) []record.Record {
			r := []record.Record{{Timestamp: 1, Value: make([]byte, n-100)}}
			r[0].Value = make([]byte, n-100+n-record.Size(r, 1))
			return r
		}
		if n := record.Size(exact(limit), 1); n != limit {
			t.Fatalf("built %d bytes", n)
		}
		if _, err := x.log.AppendRecords(exact(limit), t0); err != nil {
			t.Errorf("exactly the limit: %v", err)
		}
		if _, err := x.log.AppendRecords(exact(limit+1), t0); !errors.Is(err, replica.ErrTooLarge) {
			t.Errorf("one byte more: %v; want ErrTooLarge", err)
		}
		three := []record.Record{{Timestamp: 1}, {Timestamp: 1, Value: make([]byte, limit)}, {Timestamp: 1}}
		if _, err := x.log.AppendRecords(three, t0); !errors.Is(err, replica.ErrTooLarge) || x.log.LogEndOffset() != 1 {
			t.Errorf("three records, one too big: %v, log ends at %d", err, x.log.LogEndOffset())
		}
		var w record.Builder
		spec := record.NewSpec()
		spec.Codec = record.Zstd
		b, err := w.Build([]record.Record{{Timestamp: 1, Value: make([]byte, 500<<10)}}, &spec)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := x.log.Append(b, replica.Client, t0); err != nil {
			t.Errorf("%d bytes stored, 500 KiB plain: %v", len(b), err)
		}
		spec.Codec = record.None
		if b, err = w.Build(exact(limit+1), &spec); err != nil {
			t.Fatal(err)
		}
		var c *record.ClientError
		if _, err := x.log.Append(b, replica.Client, t0); !errors.Is(err, replica.ErrTooLarge) && (!errors.As(err, &c) || c.Code != 10) {
			t.Errorf("client batch above the limit: %v", err)
		}
		// Scenario 148: a follower takes what its leader took, in a segment of
		// its own if need be.
		big := batchAt(2, 0, 1, 20<<10)
		x.follow(big)
		x.append(1, 10)
		if r, _, ok, err := x.log.Get(2, 4, nil); err != nil || !ok || len(r.Value) != 20<<10 {
			t.Errorf("the follower's large batch: %d bytes, %v, %v", len(r.Value), ok, err)
		}
		x.sync()
		x.close()
		x.open()
		if r, _, ok, err := x.log.Get(2, 4, nil); err != nil || !ok || len(r.Value) != 20<<10 {
			t.Errorf("after reopen: %d bytes, %v, %v", len(r.Value), ok, err)
		}
		x.verify()
	}
	if _, err := replica.Open("/x", replica.Options{FS: vfs.NewMem(vfs.MemOptions{}), MaxBatchBytes: 8193, SegmentBytes: 8192}, t0); err == nil {
		t.Error("a batch limit above the segment size was taken")
	}
}

// TestC143_UnknownCodec and C144: what a leader took is kept as it is, and does
// not keep anyone from what lies behind it.
func TestC143_UnknownCodec(t *testing.T) {
	reseal := func(b record.Batch) record.Batch {
		c := b.ComputeCRC()
		b[17], b[18], b[19], b[20] = byte(c>>24), byte(c>>16), byte(c>>8), byte(c)
		return b
	}
	unknown := batchAt(2, 0, 2, 20)
	unknown[22] = 5
	var w record.Builder
	spec := record.NewSpec()
	spec.Codec, spec.BaseOffset, spec.LeaderEpoch = record.Zstd, 6, 0
	lying, err := w.Build([]record.Record{recordAt(6, 30), recordAt(7, 30)}, &spec)
	if err != nil {
		t.Fatal(err)
	}
	lying[22] &^= 7
	x := newLab(t, replica.Options{})
	x.follow(batchAt(0, 0, 2, 20), reseal(unknown), batchAt(4, 0, 2, 20), reseal(lying), batchAt(8, 0, 2, 20))
	for round := range 2 {
		for _, offset := range []int64{0, 1, 4, 5, 8, 9} {
			r, _, ok, err := x.log.Get(offset, 10, nil)
			if err != nil || !ok || r.Offset != offset {
				t.Fatalf("round %d: get %d = %d, %v, %v", round, offset, r.Offset, ok, err)
			}
			x.checkRecord(r)
		}
		for offset, want := range map[int64]error{2: record.ErrCodec, 3: record.ErrCodec, 6: record.ErrInvalid, 7: record.ErrInvalid} {
			if _, _, _, err := x.log.Get(offset, 10, nil); !errors.Is(err, want) || !errors.Is(err, replica.ErrCorrupt) {
				t.Errorf("round %d: get %d = %v; want %v", round, offset, err, want)
			}
		}
		// As bytes they are what the leader sent.
		if b, err := x.log.Read(nil, 2, 10, 0); err != nil || !bytes.Equal(b, unknown) {
			t.Errorf("round %d: read of the unknown codec: %d bytes, %v", round, len(b), err)
		}
		if b, err := x.log.Read(nil, 6, 10, 0); err != nil || !bytes.Equal(b, lying) {
			t.Errorf("round %d: read of the mislabelled batch: %d bytes, %v", round, len(b), err)
		}
		x.verify()
		x.close()
		x.open()
		x.undamaged()
	}
}

// TestC064_OverflowingSegment: offsets that do not fit over the file's base.
func TestC064_OverflowingSegment(t *testing.T) {
	x := newLab(t, replica.Options{})
	x.close()
	x.remove(slotFile, indexName(0), timeName(0))
	x.write(logName(0), append(slices.Clone(batchAt(0, 0, 2, 20)), batchAt(3_000_000_000, 0, 2, 20)...))
	before := x.read(logName(0))
	err := x.tryOpen()
	if err == nil && x.log.Damage() == nil {
		t.Fatalf("opened without a word, log ends at %d", x.log.LogEndOffset())
	}
	if err == nil {
		if got := x.readAll(0); !slices.Equal(got, []int64{0, 1}) {
			t.Errorf("served %v", got)
		}
	}
	if !bytes.Equal(x.read(logName(0)), before) {
		t.Error("the file changed")
	}
}

// TestC066_EmptyBatch: a header that compaction left is passed over.
func TestC066_EmptyBatch(t *testing.T) {
	empty := record.Batch(slices.Clone(batchAt(2, 0, 1, 1)[:record.HeaderSize]))
	empty[8], empty[9], empty[10], empty[11] = 0, 0, 0, 49
	empty[26] = 4 // last offset 6
	empty[60] = 0 // no records
	c := empty.ComputeCRC()
	empty[17], empty[18], empty[19], empty[20] = byte(c>>24), byte(c>>16), byte(c>>8), byte(c)
	x := newLab(t, replica.Options{IndexIntervalBytes: 1})
	x.follow(batchAt(0, 0, 2, 20), empty, batchAt(7, 0, 2, 20))
	for round := range 2 {
		if got := x.readAll(0); !slices.Equal(got, []int64{0, 1, 7, 8}) {
			t.Errorf("round %d: read %v", round, got)
		}
		for offset := int64(2); offset < 7; offset++ {
			if r, _, ok, err := x.log.Get(offset, 9, nil); err != nil || !ok || r.Offset != 7 {
				t.Errorf("round %d: get %d = %d, %v, %v; want 7", round, offset, r.Offset, ok, err)
			}
		}
		x.verify()
		x.kill()
		x.open()
		x.undamaged()
	}
	if x.log.LogEndOffset() != 9 {
		t.Errorf("log ends at %d", x.log.LogEndOffset())
	}
}

// TestC067_InsideAGap: reads and truncations at offsets that compaction removed.
func TestC067_InsideAGap(t *testing.T) {
	for _, tc := range []struct {
		to, end int64
		left    []int64
	}{{7, 7, []int64{4}}, {16, 16, []int64{4}}, {5, 5, []int64{4}}, {4, 4, nil}, {17, 17, []int64{4, 16}}} {
		x := newLab(t, replica.Options{})
		x.follow(batchAt(4, 0, 1, 20), batchAt(16, 0, 1, 20))
		for offset, want := range map[int64]int64{0: 4, 4: 4, 5: 16, 7: 16, 16: 16} {
			if r, _, ok, err := x.log.Get(offset, 17, nil); err != nil || !ok || r.Offset != want {
				t.Errorf("get %d = %d, %v, %v; want %d", offset, r.Offset, ok, err, want)
			}
		}
		if got, _, ok, err := x.log.OffsetForTime(t0.UnixMilli()+7, 17); err != nil || !ok || got != 16 {
			t.Errorf("time of 7 = %d, %v, %v; want 16", got, ok, err)
		}
		if err := x.log.Truncate(tc.to); err != nil {
			t.Fatal(err)
		}
		for _, how := range []string{"", "closed", "killed"} {
			switch how {
			case "closed":
				x.close()
				x.open()
			case "killed":
				x.kill()
				x.open()
			}
			x.undamaged()
			if got := x.readAll(0); x.log.LogEndOffset() != tc.end || !slices.Equal(got, tc.left) {
				t.Errorf("truncate to %d %s: log ends at %d with %v; want %d with %v", tc.to, how, x.log.LogEndOffset(), got, tc.end, tc.left)
			}
		}
		x.lead()
		x.append(1, 10)
		if got := x.readAll(0); !slices.Equal(got, append(slices.Clone(tc.left), tc.end)) {
			t.Errorf("after an append: %v", got)
		}
	}
}

// TestC070_FirstOffsetAboveTheName: a compacted segment 0 that begins at 56.
func TestC070_FirstOffsetAboveTheName(t *testing.T) {
	x := newLab(t, replica.Options{})
	x.close()
	x.remove(slotFile, indexName(0), timeName(0))
	x.write(logName(0), append(slices.Clone(batchAt(56, 0, 2, 20)), batchAt(70, 0, 2, 20)...))
	x.open()
	x.undamaged()
	if x.log.LogStartOffset() != 0 {
		t.Errorf("log starts at %d; want 0", x.log.LogStartOffset())
	}
	if b, err := x.log.Read(nil, 0, 72, 1); err != nil || record.Batch(b).BaseOffset() != 56 {
		t.Errorf("read at 0: %v", err)
	}
	if got := x.readAll(0); !slices.Equal(got, []int64{56, 57, 70, 71}) {
		t.Errorf("read %v", got)
	}
	x.verify()
}

// TestC146_LargerThanTheLimit: the first batch is returned whole (scenario 138).
func TestC146_LargerThanTheLimit(t *testing.T) {
	x := newLab(t, replica.Options{SegmentBytes: 4 << 20, MaxBatchBytes: 2 << 20})
	x.append(1, 1<<20)
	x.append(1, 10)
	for _, n := range []int{0, 1, 100, 1048575} {
		b, err := x.log.Read(nil, 0, 2, n)
		if err != nil || len(b) < 1<<20 || record.Batch(b).NextOffset() != 1 {
			t.Errorf("read of %d bytes: %d, %v", n, len(b), err)
		}
	}
	if b, err := x.log.Read(nil, 0, 2, 2<<20); err != nil || record.Batch(b[record.Batch(b).Size():]).BaseOffset() != 1 {
		t.Errorf("read of all: %v", err)
	}
}

// TestC148_InsideABatch: offsets and limits inside a batch.
func TestC148_InsideABatch(t *testing.T) {
	x := newLab(t, replica.Options{})
	x.append(10, 20)
	x.append(10, 20)
	if b, err := x.log.Read(nil, 15, 20, 1<<20); err != nil || record.Batch(b).BaseOffset() != 10 {
		t.Errorf("read at 15: %v", err)
	}
	for _, tc := range []struct{ at, limit, next int64 }{{0, 15, 10}, {12, 15, 0}, {9, 10, 10}, {0, 20, 20}, {0, 19, 10}} {
		b, err := x.log.Read(nil, tc.at, tc.limit, 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		next := int64(0)
		for len(b) > 0 {
			y := record.Batch(b)
			next, b = y.NextOffset(), b[y.Size():]
		}
		if next != tc.next {
			t.Errorf("read at %d below %d goes to %d; want %d", tc.at, tc.limit, next, tc.next)
		}
	}
}

// TestC149_Edges: at, below and above the range (scenario 137).
func TestC149_Edges(t *testing.T) {
	x := newLab(t, replica.Options{})
	if err := x.log.TruncateFullyAndStartAt(1024); err != nil {
		t.Fatal(err)
	}
	x.lead()
	x.append(1, 20)
	for _, tc := range []struct {
		at    int64
		out   bool
		bytes bool
	}{{1024, false, true}, {1025, false, false}, {0, true, false}, {1023, true, false}, {1026, true, false}, {-1, true, false}, {math.MaxInt64, true, false}, {math.MinInt64, true, false}} {
		b, err := x.log.Read(nil, tc.at, math.MaxInt64, 1)
		if errors.Is(err, replica.ErrOutOfRange) != tc.out || (err != nil) != tc.out || (len(b) > 0) != tc.bytes {
			t.Errorf("read at %d: %d bytes, %v", tc.at, len(b), err)
		}
		_, _, ok, err := x.log.Get(tc.at, math.MaxInt64, nil)
		if ok != tc.bytes || (err != nil) != tc.out {
			t.Errorf("get %d: %v, %v", tc.at, ok, err)
		}
	}
}

// TestC171_ManySegments: a clean open reads no segment but the last one, and a
// close touches no index that nobody used (C172).
func TestC171_ManySegments(t *testing.T) {
	x := newLab(t, replica.Options{SegmentBytes: 4 << 10, Sync: replica.Never})
	for len(x.segments()) < 300 {
		for range 4 {
			x.append(1, 900)
		}
	}
	n := len(x.segments())
	end := x.log.LogEndOffset()
	x.close()
	faulty := vfs.NewFaulty(x.mem)
	x.fs = faulty
	x.open()
	x.undamaged()
	if x.log.LogEndOffset() != end {
		t.Errorf("log ends at %d; want %d", x.log.LogEndOffset(), end)
	}
	count := func() (opens, maps int) {
		for _, c := range faulty.Calls() {
			switch c.Op {
			case vfs.OpOpen:
				opens++
			case vfs.OpMap:
				maps++
			}
		}
		return opens, maps
	}
	if opens, maps := count(); opens > 20 || maps > 10 {
		t.Errorf("a clean open of %d segments opened %d files and mapped %d", n, opens, maps)
	}
	faulty.ResetCalls()
	x.close()
	if opens, maps := count(); opens > 20 || maps > 10 {
		t.Errorf("the close opened %d files and mapped %d", opens, maps)
	}
	// After a kill only what the slot does not vouch for.
	x.fs = x.mem
	x.open()
	x.append(1, 100)
	x.kill()
	faulty = vfs.NewFaulty(x.mem)
	x.fs = faulty
	x.open()
	x.undamaged()
	if opens, maps := count(); opens > 20 || maps > 10 {
		t.Errorf("an open after a kill opened %d files and mapped %d", opens, maps)
	}
	x.whole(0, end+1)
}

// TestC176_UnsafeSettings: refused with the name and the range; C173: a segment
// smaller than one batch.
func TestC176_UnsafeSettings(t *testing.T) {
	for _, tc := range []struct {
		name string
		o    replica.Options
	}{
		{"SegmentBytes", replica.Options{SegmentBytes: 1}},
		{"SegmentBytes", replica.Options{SegmentBytes: -1}},
		{"SegmentBytes", replica.Options{SegmentBytes: 1 << 31}},
		{"IndexIntervalBytes", replica.Options{IndexIntervalBytes: -1}},
		{"IndexIntervalBytes", replica.Options{IndexIntervalBytes: 1<<20 + 1}},
		{"MaxBatchBytes", replica.Options{MaxBatchBytes: -2}},
		{"MaxBatchBytes", replica.Options{SegmentBytes: 4096, MaxBatchBytes: 4097}},
		{"PopulateBytes", replica.Options{PopulateBytes: -1}},
		{"SyncInterval", replica.Options{SyncInterval: time.Nanosecond}},
		{"Sync", replica.Options{Sync: 7}},
	} {
		tc.o.FS = vfs.NewMem(vfs.MemOptions{})
		_, err := replica.Open("/log", tc.o, t0)
		if err == nil || !strings.Contains(err.Error(), tc.name) {
			t.Errorf("%s: %v; want the name in it", tc.name, err)
			continue
		}
		if files, _ := tc.o.FS.List("/"); len(files) != 0 {
			t.Errorf("%s: refused, but made %v", tc.name, files)
		}
	}
}

// TestC032_NothingStaysMapped: after many segments were made and dropped, maps
// and descriptors are as before.
func TestC032_NothingStaysMapped(t *testing.T) {
	count := func() (maps, fds int) {
		if b, err := os.ReadFile("/proc/self/maps"); err == nil {
			maps = bytes.Count(b, []byte("tidemark-c032"))
		}
		list, _ := os.ReadDir("/proc/self/fd")
		for _, e := range list {
			if to, _ := os.Readlink("/proc/self/fd/" + e.Name()); strings.Contains(to, "tidemark-c032") {
				fds++
			}
		}
		return maps, fds
	}
	if _, err := os.Stat("/proc/self/maps"); err != nil {
		t.Skip("no /proc")
	}
	dir := filepath.Join(t.TempDir(), "tidemark-c032")
	l, err := replica.Open(dir, replica.Options{SegmentBytes: 4 << 10, Sync: replica.Never, Sole: true, IndexIntervalBytes: 500}, t0)
	if err != nil {
		t.Fatal(err)
	}
	l.BeginEpoch(0)
	maps0, fds0 := count()
	rounds := 6
	if *long {
		rounds = 50 // 3000 segments
	}
	for i := range rounds {
		for range 60 * 4 {
			if _, err := l.AppendRecords([]record.Record{{Value: make([]byte, 900)}}, t0); err != nil {
				t.Fatal(err)
			}
		}
		if got := l.Stats().Segments; got < 50 {
			t.Fatalf("%d segments", got)
		}
		for offset := l.LogStartOffset(); offset < l.LogEndOffset(); offset += 3 {
			if _, err := l.Read(nil, offset, l.LogEndOffset(), 1); err != nil {
				t.Fatal(err)
			}
		}
		if s := l.StartSealedSync(t0.Add(time.Hour)); s != nil {
			if err := l.FinishSync(s, s.Wait()); err != nil {
				t.Fatal(err)
			}
		}
		if i%2 == 0 {
			err = l.TruncateFullyAndStartAt(l.LogEndOffset() + 5)
		} else {
			err = l.Truncate(l.LogStartOffset())
		}
		if err != nil {
			t.Fatal(err)
		}
		l.BeginEpoch(0)
	}
	if maps, fds := count(); maps > maps0+4 || fds > fds0+1 {
		t.Errorf("%d maps and %d descriptors at first, %d and %d now", maps0, fds0, maps, fds)
	}
	if err := l.Close(t0); err != nil {
		t.Fatal(err)
	}
	if maps, fds := count(); maps != 0 || fds != 0 {
		t.Errorf("%d maps and %d descriptors after Close", maps, fds)
	}
}
