package replica_test

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/tidemark-log/tidemark/dedupe"
	"github.com/tidemark-log/tidemark/internal/vfs"
	"github.com/tidemark-log/tidemark/partition"
	"github.com/tidemark-log/tidemark/record"
	"github.com/tidemark-log/tidemark/replica"
)

// Scenarios of docs/replication.md that are about a replica's disk.

// lastSequences says what a table of producers has to know: by producer, the last
// sequence in the log.
func (x *lab) lastSequences() map[int64]int32 {
	x.t.Helper()
	known := map[int64]int32{}
	for at := x.log.LogStartOffset(); at < x.log.LogEndOffset(); {
		b, err := x.log.Read(nil, at, math.MaxInt64, 1)
		if err != nil {
			x.t.Fatal(err)
		}
		y := record.Batch(b)
		if y.ProducerID() >= 0 {
			known[y.ProducerID()] = y.BaseSequence() + y.Count() - 1
		}
		at = y.NextOffset()
	}
	return known
}

// rebuilt checks that the producers are what the log says.
func (x *lab) rebuilt(when string) {
	x.t.Helper()
	want := x.lastSequences()
	if got := x.log.Stats().Producers.Producers; got != len(want) {
		x.t.Errorf("%s: %d producers; the log has %d", when, got, len(want))
	}
	for pid, seq := range want {
		p, known := x.log.Producer(pid)
		if last, _ := p.Last(); !known || last.LastSequence != seq {
			x.t.Errorf("%s: producer %d: %+v; its last sequence in the log is %d", when, pid, p, seq)
		}
	}
}

// TestS80_AppendFails: an append of which any step fails: the log is as if it had not
// been tried and takes it when it comes again, or takes nothing more. No offset is given
// twice, and no batch is there twice.
func TestS80_AppendFails(t *testing.T) {
	value := func(seq int32) batch { return batch{pid: 7, seq: seq, n: 1} }
	fill := func(x *lab) (next int32) { // up to the append that rolls
		for next = 0; len(x.segments()) < 2; next++ {
			x.accept(int64(next), value(next))
		}
		return next
	}
	o := replica.Options{SegmentBytes: 4096, IndexIntervalBytes: 1, Sync: replica.Never}
	dry := newLab(t, o)
	rolls := fill(dry) - 1 // the append that rolled
	for _, op := range []vfs.Op{vfs.OpCreate, vfs.OpAllocate, vfs.OpMap, vfs.OpWrite, vfs.OpRename, vfs.OpSyncDir, vfs.OpTruncate, vfs.OpStat} {
		for after := range 6 {
			for _, errno := range []error{syscall.EIO, syscall.ENOSPC} {
				t.Run(fmt.Sprintf("%v %d %v", op, after, errno), func(t *testing.T) {
					x := newLab(t, o)
					faulty := vfs.NewFaulty(x.mem)
					if err := x.log.Close(t0); err != nil {
						t.Fatal(err)
					}
					x.fs = faulty
					x.open()
					x.lead()
					for seq := range rolls {
						x.accept(int64(seq), value(seq))
					}
					before, _ := x.log.Producer(7)
					faulty.SetRules(vfs.Rule{Ops: op, After: after, Count: 1, Err: errno})
					a, err := x.send(value(rolls))
					faulty.SetRules()
					if err == nil {
						if a.Base != int64(rolls) {
							t.Errorf("appended at %d; want %d", a.Base, rolls)
						}
					} else if after, _ := x.log.Producer(7); x.log.LogEndOffset() != int64(rolls) || after != before {
						t.Errorf("refused with %v: log ends at %d, producer was %+v, is %+v", err, x.log.LogEndOffset(), before, after)
					}
					again, err2 := x.send(value(rolls))
					switch {
					case x.log.Err() != nil:
						if err2 == nil {
							t.Errorf("it failed with %v and takes more: %+v", x.log.Err(), again)
						}
						x.kill()
						x.open()
						again, err2 = x.send(value(rolls)) // there or not: once
					case err != nil && again.Duplicate:
						t.Errorf("refused with %v, and then known", err)
					}
					if err2 != nil || again.Base != int64(rolls) || x.log.LogEndOffset() != int64(rolls)+1 {
						t.Fatalf("again: %+v, %v; log ends at %d; want it at %d, once", again, err2, x.log.LogEndOffset(), rolls)
					}
					x.accept(int64(rolls)+1, value(rolls+1))
					if n := len(x.lastSequences()); n != 1 {
						t.Errorf("%d producers in the log", n)
					}
					x.rebuilt("in the end")
					x.verify()
				})
			}
		}
	}
}

// TestS81_ProducerFilesLost: files of producers that a power cut took, in part or as a
// whole, are passed over: the table is what the log says (KAFKA-9892).
func TestS81_ProducerFilesLost(t *testing.T) {
	isFile := func(name string) bool {
		return strings.HasSuffix(name, dedupe.Suffix) || strings.HasSuffix(name, ".snapshot")
	}
	fill := func(t *testing.T, mode replica.SyncMode) *lab {
		x := newLab(t, replica.Options{SegmentBytes: 4096, Sync: mode})
		for i := range int32(40) { // several segments, each with its files
			for pid := range int64(3) {
				x.accept(x.log.LogEndOffset(), batch{pid: pid, seq: i, n: 1})
			}
		}
		return x
	}
	check := func(x *lab, when string) {
		x.t.Helper()
		x.undamaged()
		x.rebuilt(when)
		for pid, seq := range x.lastSequences() {
			if a, err := x.send(batch{pid: pid, seq: seq, n: 1}); err != nil || !a.Duplicate {
				x.t.Errorf("%s: producer %d sends %d again: %+v, %v", when, pid, seq, a, err)
			}
			x.accept(x.log.LogEndOffset(), batch{pid: pid, seq: seq + 1, n: 1})
		}
	}
	for _, mode := range []replica.SyncMode{replica.Always, replica.Never} {
		x := fill(t, mode)
		rng := rand.New(rand.NewPCG(81, uint64(mode)))
		images, files := 0, 0
		x.mem.SetHook(func(op vfs.Op, name string, done bool) { // while the files are written
			y := &lab{t: t, mem: x.mem.PowerCut(rng), dir: x.dir, o: x.o, warns: &records{}}
			y.fs = y.mem
			images++
			if slices.ContainsFunc(y.names(), isFile) {
				files++
			}
			y.open()
			y.lead()
			check(y, fmt.Sprintf("%v, power cut, %v of %s, done %v", mode, op, name, done))
			y.log.Close(t0)
		})
		x.close()
		x.mem.SetHook(nil)
		if images < 10 || files == 0 || files == images {
			t.Errorf("%v: %d images, %d with files of producers", mode, images, files)
		}
	}
	// Whatever they say: the name is there, and not what was written.
	for name, harm := range map[string]func(b []byte) []byte{
		"empty": func(b []byte) []byte { return nil },
		"zeros": func(b []byte) []byte { return make([]byte, len(b)) },
		"torn":  func(b []byte) []byte { return b[:len(b)/2] },
		"bytes": func(b []byte) []byte { b[len(b)-11] ^= 1; b[len(b)-21] ^= 1; b[len(b)/2] ^= 1; return b }, // sequences and offsets
	} {
		x := fill(t, replica.Always)
		x.close()
		x.open()
		x.lead()
		x.accept(x.log.LogEndOffset(), batch{pid: 1, seq: 40, n: 1})
		x.kill()
		n := 0
		for _, file := range x.names() {
			if isFile(file) {
				x.write(file, harm(x.read(file)))
				n++
			}
		}
		if n == 0 {
			t.Fatal("there is no file of producers")
		}
		x.open()
		x.lead()
		check(x, name)
	}
}

// dirOf opens a folder with two logs; those that cannot be opened are nil.
func dirOf(fsys vfs.FS) (d *replica.Dir, logs [2]*replica.Log, err error) {
	if d, err = replica.OpenDir("/data", replica.DirOptions{FS: fsys, BrokerEpoch: 42}, t0); err != nil {
		return nil, logs, err
	}
	for i := range logs {
		var e error
		if logs[i], e = d.OpenLog(replica.TopicPartition{Topic: "t", Partition: int32(i)}, replica.UUID{}, replica.Options{Sync: replica.Never, SegmentBytes: 8 << 10}, t0); e != nil {
			err = errors.Join(err, e)
		}
	}
	return d, logs, err
}

// TestS83_CrashWhileLoading: a folder that was closed in order, and whose next life ended
// while it was loading, is not clean any more, however that ended (KAFKA-10471).
func TestS83_CrashWhileLoading(t *testing.T) {
	mem := vfs.NewMem(vfs.MemOptions{})
	d, logs, err := dirOf(mem)
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range logs {
		if err := fillLeader(l); err != nil {
			t.Fatal(err)
		}
	}
	if err := d.Close(t0); err != nil {
		t.Fatal(err)
	}
	ends := [2]int64{logs[0].LogEndOffset(), logs[1].LogEndOffset()}
	images := 0
	look := func(img *vfs.Mem, when string) {
		t.Helper()
		images++
		d, logs, err := dirOf(img)
		if err != nil {
			t.Fatalf("%s: %v", when, err)
		}
		if d.Clean() {
			t.Errorf("%s: the folder is clean", when)
		}
		for i, l := range logs {
			if l.Damage() != nil || l.LogEndOffset() < ends[i] {
				t.Errorf("%s: log %d ends at %d of %d, damage %v", when, i, l.LogEndOffset(), ends[i], l.Damage())
			}
		}
		d.Close(t0)
	}
	rng := rand.New(rand.NewPCG(83, 1))
	loading := false // from the first thing that is done to a log
	mem.SetHook(func(op vfs.Op, name string, done bool) {
		if done && loading {
			look(mem.Clone().Kill(), fmt.Sprintf("killed after %v of %s", op, name))
			look(mem.PowerCut(rng), fmt.Sprintf("power cut after %v of %s", op, name))
		}
	})
	if d, err = replica.OpenDir("/data", replica.DirOptions{FS: mem, BrokerEpoch: 42}, t0); err != nil {
		t.Fatal(err)
	}
	if !d.Clean() {
		t.Fatal("it was closed, and is not clean")
	}
	loading = true
	look(mem.Clone().Kill(), "killed before a log is opened")
	look(mem.PowerCut(rng), "power cut before a log is opened")
	for i := range logs {
		l, err := d.OpenLog(replica.TopicPartition{Topic: "t", Partition: int32(i)}, replica.UUID{}, replica.Options{Sync: replica.Never, SegmentBytes: 8 << 10}, t0)
		if err != nil {
			t.Fatal(err)
		}
		if err := l.BeginEpoch(9); err != nil { // a log that is only opened writes nothing
			t.Fatal(err)
		}
		if _, err := l.AppendRecords([]record.Record{{Timestamp: 1}}, t0); err != nil {
			t.Fatal(err)
		}
	}
	mem.SetHook(nil)
	if images < 8 {
		t.Errorf("%d images", images)
	}
	d.Close(t0)
}

// TestS84_StopInterrupted: a stop is cut short at every operation, or one of its syncs
// fails. Where the marker of a clean stop is there afterwards, all that was appended is,
// under Never too (KAFKA-13315).
func TestS84_StopInterrupted(t *testing.T) {
	mem := vfs.NewMem(vfs.MemOptions{})
	begin := func(fsys vfs.FS) (*replica.Dir, [2]*replica.Log) {
		d, logs, err := dirOf(fsys)
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range logs {
			if err := fillLeader(l); err != nil {
				t.Fatal(err)
			}
		}
		return d, logs
	}
	d, logs := begin(mem)
	ends := [2]int64{logs[0].LogEndOffset(), logs[1].LogEndOffset()}
	clean, not := 0, 0
	look := func(img *vfs.Mem, when string) {
		d, err := replica.OpenDir("/data", replica.DirOptions{FS: img, BrokerEpoch: 43}, t0)
		if err != nil {
			t.Fatalf("%s: %v", when, err)
		}
		if !d.Clean() {
			not++
			return
		}
		clean++
		for i, end := range ends {
			l, err := d.OpenLog(replica.TopicPartition{Topic: "t", Partition: int32(i)}, replica.UUID{}, replica.Options{Sync: replica.Never, SegmentBytes: 8 << 10}, t0)
			if err != nil || l.LogEndOffset() != end || l.Evidence() != partition.Clean && l.Evidence() != partition.Intact {
				t.Fatalf("%s: the folder is clean, and log %d ends at %d of %d, %v, %v", when, i, l.LogEndOffset(), end, l.Evidence(), err)
			}
		}
		d.Close(t0)
	}
	rng := rand.New(rand.NewPCG(84, 1))
	mem.SetHook(func(op vfs.Op, name string, done bool) {
		for range 2 {
			look(mem.PowerCut(rng), fmt.Sprintf("power cut, %v of %s, done %v", op, name, done))
		}
	})
	if err := d.Close(t0); err != nil {
		t.Fatal(err)
	}
	mem.SetHook(nil)
	look(mem.PowerCut(rng), "power cut after the stop")
	if clean == 0 || not == 0 {
		t.Errorf("%d images clean, %d not", clean, not)
	}

	for after := range 6 { // syncs that fail, in the logs or in what is written besides
		mem := vfs.NewMem(vfs.MemOptions{})
		faulty := vfs.NewFaulty(mem)
		d, _ := begin(faulty)
		faulty.SetRules(vfs.Rule{Ops: vfs.OpFinishSync, After: after, Count: 1, Err: syscall.EIO})
		faulty.ResetCalls()
		err := d.Close(t0)
		if !slices.ContainsFunc(faulty.Calls(), func(c vfs.Call) bool { return c.Err != nil && !errors.Is(c.Err, fs.ErrNotExist) }) {
			continue // there are no more
		}
		if err == nil {
			t.Errorf("sync %d failed, and Close says nothing", after)
		}
		look(mem.PowerCut(rng), fmt.Sprintf("sync %d failed", after))
		if there, _ := vfs.Exists(mem, "/data/.kafka_cleanshutdown"); there {
			t.Errorf("sync %d failed, and the folder is clean", after)
		}
	}
}

// TestS45_EpochFileStale: whatever a power cut leaves, of the file too, the epochs are
// those of the batches (KAFKA-16541).
func TestS45_EpochFileStale(t *testing.T) {
	for _, mode := range []replica.SyncMode{replica.Always, replica.Never} {
		n := reps(t, 2, replica.Options{Sync: mode, SegmentBytes: 4096}, replica.FetcherOptions{})
		a, b := n[0], n[1]
		for e := range int32(12) {
			a.lead(e)
			a.put(2)
			b.follow(a, 1)
		}
		for _, r := range n {
			shorter := 0
			for seed := range uint64(40) {
				x := &lab{t: t, mem: r.mem.PowerCut(rand.New(rand.NewPCG(seed, 45))), dir: "/log", o: r.o, warns: &records{}}
				x.fs = x.mem
				x.open()
				x.undamaged()
				x.log.Release()
				var want []replica.Epoch
				for e := range int32(12) {
					if start := 2 * int64(e); start < x.log.LogEndOffset() {
						want = append(want, replica.Epoch{Epoch: e, StartOffset: start})
					}
				}
				got := x.log.Epochs()
				if len(got) > len(want) { // one may be there that nothing is left of
					got = got[:len(want)]
				}
				if !slices.Equal(got, want) {
					t.Errorf("%v, node %d, power cut %d: epochs %v of a log to %d", mode, r.id, seed, x.log.Epochs(), x.log.LogEndOffset())
				}
				if len(want) < 12 {
					shorter++
				}
				x.log.Close(t0)
			}
			t.Logf("%v, node %d: %d of 40 cuts took batches", mode, r.id, shorter)
		}
	}
}

// TestS45_EpochFileFlipped: a digit of the file that is another one, which nothing in the
// file tells, is not believed against the batches that are read after a kill (F16).
func TestS45_EpochFileFlipped(t *testing.T) {
	want := []replica.Epoch{{Epoch: 0, StartOffset: 0}, {Epoch: 3, StartOffset: 6}, {Epoch: 4, StartOffset: 14}}
	for _, file := range []string{
		"0\n3\n0 0\n3 6\n4 14\n",
		"0\n3\n2 0\n3 6\n4 14\n",
		"0\n3\n0 0\n3 2\n4 14\n",
		"0\n3\n0 0\n3 4\n4 14\n",
		"0\n3\n0 0\n3 6\n6 14\n",
		"0\n3\n0 0\n3 6\n4 10\n",
		"0\n2\n0 0\n4 6\n",
	} {
		x := newLab(t, replica.Options{})
		for i := range int64(10) {
			epoch := int32(0)
			if i >= 7 {
				epoch = 4
			} else if i >= 3 {
				epoch = 3
			}
			x.follow(batchAt(2*i, epoch, 2, 20))
		}
		x.kill()
		x.write("leader-epoch-checkpoint", []byte(file))
		x.open()
		x.undamaged()
		if got := x.log.Epochs(); !slices.Equal(got, want) {
			t.Errorf("file %q: epochs %v, want %v", file, got, want)
		}
		if found := x.findings(); len(found) > 0 {
			t.Errorf("file %q: Verify found %v", file, found)
		}
	}
}
