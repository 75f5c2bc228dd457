package replica_test

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tidemark-log/tidemark/internal/vfs"
	"github.com/tidemark-log/tidemark/replica"
	"github.com/tidemark-log/tidemark/segment"
)

func dirOptions(fsys vfs.FS) replica.DirOptions {
	return replica.DirOptions{FS: fsys, DeleteDelay: time.Minute}
}

// folderWith makes a data folder with partition t-0 of three records, which the
// checkpoints know.
func folderWith(t *testing.T, mem *vfs.Mem) (*replica.Dir, replica.TopicPartition, replica.Options) {
	t.Helper()
	if err := errors.Join(mem.Mkdir("/data"), mem.SyncDir("/")); err != nil {
		t.Fatal(err)
	}
	d, err := replica.OpenDir("/data", dirOptions(mem), t0)
	if err != nil {
		t.Fatal(err)
	}
	p := replica.TopicPartition{Topic: "t"}
	o := replica.Options{SegmentBytes: 16 << 10, Maps: segment.NewMaps(1000), Sole: true}
	writeTo(t, d, p, o, 3)
	if err := d.Checkpoint(); err != nil {
		t.Fatal(err)
	}
	return d, p, o
}

// writeTo opens a partition's log and appends n synced records.
func writeTo(t *testing.T, d *replica.Dir, p replica.TopicPartition, o replica.Options, n int) *replica.Log {
	t.Helper()
	l, err := d.OpenLog(p, replica.UUID{}, o, t0)
	if err != nil {
		t.Fatal(err)
	}
	if err := l.BeginEpoch(0); err != nil {
		t.Fatal(err)
	}
	x := lab{t: t, log: l}
	x.append(n, 100)
	x.sync()
	return l
}

// TestDeleteAndMakeAgain crashes between any two disk operations of the deletion of
// a partition and of the making of another by its name: one of them is there, or
// none, whole; once Delete has returned the old one never comes back, and the new
// one is not judged by what the checkpoints said of the old.
func TestDeleteAndMakeAgain(t *testing.T) {
	for seed := range uint64(8) {
		mem := vfs.NewMem(vfs.MemOptions{Seed: seed})
		d, p, o := folderWith(t, mem)
		rng := rand.New(rand.NewPCG(seed, 44))
		stage, images := "deleting", 0
		mem.SetHook(func(op vfs.Op, name string, done bool) {
			for _, img := range []*vfs.Mem{mem.PowerCut(rng), mem.Clone()} {
				images++
				judgeFolder(t, img, p, o, stage, fmt.Sprintf("seed %d, %s, %v of %s, done %v", seed, stage, op, name, done))
			}
		})
		if err := d.Delete(p, t0); err != nil {
			t.Fatal(err)
		}
		stage = "deleted"
		writeTo(t, d, p, o, 1)
		stage = "made again"
		if next := d.RemoveDeleted(t0); !next.Equal(t0.Add(time.Minute)) {
			t.Errorf("the next removal is due at %v", next)
		}
		if next := d.RemoveDeleted(t0.Add(time.Minute)); !next.IsZero() {
			t.Errorf("once everything is removed, the next removal is due at %v", next)
		}
		if err := d.Close(t0); err != nil {
			t.Fatal(err)
		}
		mem.SetHook(nil)
		infos, err := mem.List("/data")
		if err != nil {
			t.Fatal(err)
		}
		for _, i := range infos {
			if strings.HasSuffix(i.Name, "-delete") {
				t.Errorf("%s is left", i.Name)
			}
		}
		if images < 50 {
			t.Errorf("only %d images", images)
		}
	}
}

func judgeFolder(t *testing.T, img *vfs.Mem, p replica.TopicPartition, o replica.Options, stage, when string) {
	t.Helper()
	d, err := replica.OpenDir("/data", dirOptions(img), t0)
	if err != nil {
		t.Fatalf("%s: %v", when, err)
	}
	end := int64(-1)
	for _, q := range d.Partitions() {
		if q != p {
			t.Fatalf("%s: partition %v", when, q)
		}
		o.Maps = segment.NewMaps(1000)
		l, err := d.OpenLog(p, replica.UUID{}, o, t0)
		if err != nil {
			t.Fatalf("%s: %v", when, err)
		}
		if l.Damage() != nil {
			t.Fatalf("%s: %v", when, l.Damage())
		}
		end = l.LogEndOffset()
	}
	ok := map[string][]int64{"deleting": {3, -1}, "deleted": {-1, 0, 1}, "made again": {1}}[stage]
	for _, e := range ok {
		if e == end {
			return
		}
	}
	t.Fatalf("%s: the log ends at %d; want one of %v", when, end, ok)
}

// TestDirDelete: what else a deletion meets.
func TestDirDelete(t *testing.T) {
	mem := vfs.NewMem(vfs.MemOptions{})
	d, p, o := folderWith(t, mem)
	other := replica.TopicPartition{Topic: "t", Partition: 1}
	if err := d.Delete(other, t0); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Delete of one that is not there = %v", err)
	}
	if err := d.Delete(replica.TopicPartition{Topic: "../t"}, t0); err == nil {
		t.Error("Delete took a topic named ../t")
	}
	writeTo(t, d, other, o, 2)
	if !d.Has(p) || !d.Has(other) || d.Has(replica.TopicPartition{Topic: "u"}) {
		t.Error("Has is wrong")
	}
	if err := d.Delete(p, t0); err != nil {
		t.Fatal(err)
	}
	if err := d.Delete(p, t0); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Delete once more = %v", err)
	}
	if d.Has(p) {
		t.Error("a deleted partition is there")
	}
	if err := d.Close(t0); err != nil {
		t.Fatal(err)
	}
	if err := d.Delete(other, t0); !errors.Is(err, replica.ErrClosed) {
		t.Errorf("Delete after Close = %v", err)
	}

	// A folder that cannot be renamed: the log is closed, not in order, and can be
	// opened again.
	faulty := vfs.NewFaulty(mem)
	if d, err := replica.OpenDir("/data", dirOptions(faulty), t0); err != nil {
		t.Fatal(err)
	} else {
		if names, _ := mem.List("/data"); len(names) == 0 || strings.Contains(fmt.Sprint(names), "-delete") {
			t.Errorf("what was deleted is left: %v", names)
		}
		writeTo(t, d, other, o, 2)
		faulty.SetRules(vfs.Rule{Ops: vfs.OpRename, Err: syscall.EIO})
		if err := d.Delete(other, t0); !errors.Is(err, syscall.EIO) {
			t.Errorf("Delete = %v", err)
		}
		faulty.SetRules()
		l := writeTo(t, d, other, o, 1)
		if l.LogEndOffset() != 5 {
			t.Errorf("the log ends at %d", l.LogEndOffset())
		}
		if err := d.Close(t0); err != nil {
			t.Fatal(err)
		}
		if clean, _ := vfs.Exists(mem, "/data/.kafka_cleanshutdown"); !clean {
			t.Error("no clean marker, though everything was closed in order at last")
		}
	}
}

// TestCheckpointsUnchanged: a folder in which nothing moved is not written to but
// for its marker.
func TestCheckpointsUnchanged(t *testing.T) {
	mem := vfs.NewMem(vfs.MemOptions{})
	d, p, o := folderWith(t, mem)
	if err := d.Close(t0); err != nil {
		t.Fatal(err)
	}
	faulty := vfs.NewFaulty(mem)
	d, err := replica.OpenDir("/data", dirOptions(faulty), t0)
	if err != nil {
		t.Fatal(err)
	}
	o.Maps = segment.NewMaps(10)
	l, err := d.OpenLog(p, replica.UUID{}, o, t0)
	if err != nil {
		t.Fatal(err)
	}
	if err := l.BeginEpoch(0); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(d.Checkpoint(), d.Close(t0)); err != nil {
		t.Fatal(err)
	}
	for _, c := range faulty.Calls() {
		if c.Op&(vfs.OpCreate|vfs.OpWrite|vfs.OpTruncate|vfs.OpAllocate) != 0 && !strings.Contains(c.Name, "cleanshutdown") {
			t.Errorf("%v of %s", c.Op, c.Name)
		}
	}
}

// TestAbandon: a folder that is let go of looks as after kill -9 to who opens it
// next, in the same process: everything written is there, the lock is free, and
// no marker says that the stop was orderly. An orderly one names the broker epoch.
func TestAbandon(t *testing.T) {
	mem := vfs.NewMem(vfs.MemOptions{})
	d, p, o := folderWith(t, mem)
	if err := d.Abandon(); err != nil {
		t.Fatal(err)
	}
	open := func() (*replica.Dir, *replica.Log) {
		d, err := replica.OpenDir("/data", dirOptions(mem), t0)
		if err != nil {
			t.Fatal(err)
		}
		l, err := d.OpenLog(p, replica.UUID{}, o, t0)
		if err != nil {
			t.Fatal(err)
		}
		return d, l
	}
	d, l := open()
	if d.Clean() || d.CleanEpoch() != -1 || l.LogEndOffset() != 3 {
		t.Errorf("after Abandon: clean %v, epoch %d, end %d; want false, -1, 3", d.Clean(), d.CleanEpoch(), l.LogEndOffset())
	}
	d.SetBrokerEpoch(17)
	if err := d.Close(t0); err != nil {
		t.Fatal(err)
	}
	d, _ = open()
	if !d.Clean() || d.CleanEpoch() != 17 {
		t.Errorf("after Close: clean %v, epoch %d; want true, 17", d.Clean(), d.CleanEpoch())
	}
	if err := d.Close(t0); err != nil {
		t.Fatal(err)
	}
}
