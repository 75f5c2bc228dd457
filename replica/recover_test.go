package replica

import (
	"bytes"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tidemark-log/tidemark/internal/vfs"
	"github.com/tidemark-log/tidemark/record"
	"github.com/tidemark-log/tidemark/segment"
)

// disk is a log on a Mem whose states after a crash a test makes by hand.
type disk struct {
	t   *testing.T
	mem *vfs.Mem
	o   Options
	l   *Log
}

// newDisk makes a log of 8 KiB segments: ten batches of two records, some 1.3 KiB
// each without a zero byte in the values, the first four synced.
func newDisk(t *testing.T, hw int64) *disk {
	d := &disk{t: t, mem: vfs.NewMem(vfs.MemOptions{}), o: Options{Sync: Never, SegmentBytes: 8 << 10, Maps: segment.NewMaps(100)}}
	d.open()
	d.must(d.l.BeginEpoch(3))
	for i := range 10 {
		if i == 4 {
			d.must(d.l.SyncNow())
		}
		d.append('a' + byte(i))
	}
	d.l.SetHighWatermark(hw)
	return d
}

func (d *disk) must(errs ...error) {
	d.t.Helper()
	if err := errors.Join(errs...); err != nil {
		d.t.Fatal(err)
	}
}

func (d *disk) append(fill byte) {
	d.t.Helper()
	recs := []record.Record{{Value: bytes.Repeat([]byte{fill}, 610)}, {Value: bytes.Repeat([]byte{fill}, 610)}}
	_, err := d.l.AppendRecords(recs, time.UnixMilli(1_700_000_000_000))
	d.must(err)
}

func (d *disk) open() {
	d.t.Helper()
	d.o.FS = d.mem
	l, err := Open(logDir, d.o, time.Time{})
	d.must(err)
	d.l = l
}

func (d *disk) close() { d.must(d.l.Close(time.Time{})) }

// kill ends the process.
func (d *disk) kill() { d.mem = d.mem.Kill() }

// reboot ends the process and the system, after the kernel had written all.
func (d *disk) reboot() {
	d.t.Helper()
	infos, err := d.mem.List(logDir)
	d.must(err)
	for _, i := range infos {
		d.must(syncSlot(d.mem, path.Join(logDir, i.Name)))
	}
	d.must(d.mem.SyncDir(logDir))
	d.mem = d.mem.PowerCut(dropAll())
}

// edit changes bytes of a file where they are.
func (d *disk) edit(name string, at int64, b []byte) {
	d.t.Helper()
	f, err := d.mem.Open(path.Join(logDir, name), vfs.ReadWrite)
	d.must(err)
	_, err = f.WriteAt(b, at)
	d.must(err, vfs.Sync(f), f.Close())
}

func (d *disk) remove(name string) { d.must(d.mem.Remove(path.Join(logDir, name))) }

// logs returns the content of the log files.
func (d *disk) logs() map[string]string {
	d.t.Helper()
	infos, err := d.mem.List(logDir)
	d.must(err)
	files := map[string]string{}
	for _, i := range infos {
		if path.Ext(i.Name) == ".log" {
			b, err := vfs.ReadFile(d.mem, path.Join(logDir, i.Name), 1<<20)
			d.must(err)
			files[i.Name] = string(b)
		}
	}
	return files
}

// TestR7_WhatTheSlotIsGoodFor: end and hw count under the boot id, device and
// inode they were stored under and after a clean close, syncedEnd and syncedHW
// always (replication R7).
func TestR7_WhatTheSlotIsGoodFor(t *testing.T) {
	for _, tc := range []struct {
		name       string
		end        func(d *disk)
		synced, hw int64
		newID      bool
	}{
		{name: "killed", end: (*disk).kill, synced: 8, hw: 12},
		{name: "rebooted", end: (*disk).reboot, synced: 20, hw: 8},
		{name: "closed", end: (*disk).close, synced: 20, hw: 12},
		{name: "closed and rebooted", end: func(d *disk) { d.close(); d.reboot() }, synced: 20, hw: 12},
		{name: "killed, folder copied", end: func(d *disk) {
			d.kill()
			d.must(d.mem.Mkdir("copy"))
			infos, err := d.mem.List(logDir)
			d.must(err)
			for _, i := range infos {
				d.must(copyFile(d.mem, path.Join(logDir, i.Name), path.Join("copy", i.Name)))
			}
			d.must(d.mem.RemoveAll(logDir), d.mem.Rename("copy", logDir))
		}, synced: 20, hw: 0, newID: true},
		{name: "killed, slot removed", end: func(d *disk) { d.kill(); d.remove(slotName) }, synced: 20, hw: 0, newID: true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			d := newDisk(t, 12)
			id := d.l.ID()
			tc.end(d)
			d.open()
			if d.l.Damage() != nil {
				t.Fatal(d.l.Damage())
			}
			got := fmt.Sprint(d.l.SyncedEnd(), d.l.HighWatermark(), d.l.LogEndOffset(), d.l.ID() != id)
			if want := fmt.Sprint(tc.synced, tc.hw, 20, tc.newID); got != want {
				t.Errorf("synced, hw, end, new id: %s; want %s", got, want)
			}
			d.must(d.l.Verify(0, 100, func(e *CorruptError) bool { t.Error(e); return true }))
			if e := d.l.Epochs(); !slices.Equal(e, []Epoch{{Epoch: 3}}) {
				t.Errorf("epochs %v", e)
			}
		})
	}
}

// TestR32_DamageIsNoTornEnd: after a reboot an invalid batch below the synced end
// is damage; above it the log ends there, unless its own bytes are wrong.
func TestR32_DamageIsNoTornEnd(t *testing.T) {
	const first, second = "00000000000000000000.log", "00000000000000000012.log"
	const size = 1299 // of a batch; six of them fill a segment
	zeros := make([]byte, 8192)
	for _, tc := range []struct {
		name   string
		edit   func(d *disk)
		leo    int64 // −1: refused
		damage int64 // its offset; −1: none
		gone   []int64
	}{
		{name: "nothing wrong", edit: func(*disk) {}, leo: 20, damage: -1},
		{name: "a byte wrong below the synced end", edit: func(d *disk) { d.edit(first, 2*size+700, []byte{1}) }, leo: 20, damage: 4, gone: []int64{4, 5}},
		{name: "a sector lost below the synced end", edit: func(d *disk) { d.edit(first, 3*512, zeros[:512]) }, leo: 20, damage: 2, gone: []int64{2, 3}},
		{name: "a sector lost above it", edit: func(d *disk) { d.edit(first, 11*512, zeros[:512]) }, leo: 8, damage: -1},
		{name: "a sector torn above it", edit: func(d *disk) { d.edit(first, 11*512+200, zeros[:312]) }, leo: 8, damage: -1},
		{name: "a byte wrong above it, batches behind", edit: func(d *disk) { d.edit(first, 4*size+700, []byte{1}) }, leo: 20, damage: 8, gone: []int64{8, 9}},
		{name: "a byte wrong in the last batch", edit: func(d *disk) { d.edit(second, 3*size+700, []byte{1}) }, leo: 18, damage: -1},
		// Its own last sector may be torn: no batch behind it there says otherwise.
		{name: "a byte wrong in the last batch of a segment", edit: func(d *disk) { d.edit(first, 5*size+700, []byte{1}) }, leo: 10, damage: -1},
		{name: "a header lost above it", edit: func(d *disk) { d.edit(second, 0, zeros[:512]) }, leo: 12, damage: -1},
		{name: "all lost above it", edit: func(d *disk) { d.edit(first, 4*size, zeros[4*size:]); d.edit(second, 0, zeros) }, leo: 8, damage: -1},
		{name: "all lost from below it on", edit: func(d *disk) { d.edit(first, 3*size, zeros[3*size:]); d.remove(second) }, leo: 6, damage: 6},
		{name: "the second segment lost", edit: func(d *disk) { d.remove(second) }, leo: 12, damage: -1},
		{name: "the first segment lost", edit: func(d *disk) { d.remove(first) }, leo: 20, damage: 0, gone: []int64{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}},
		{name: "every segment lost", edit: func(d *disk) { d.remove(first); d.remove(second) }, leo: -1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			d := newDisk(t, 12)
			d.reboot()
			tc.edit(d)
			d.must(d.mem.SyncDir(logDir))
			before := d.logs()
			if tc.leo < 0 {
				d.o.FS = d.mem
				if _, err := Open(logDir, d.o, time.Time{}); !errors.Is(err, ErrCorrupt) {
					t.Fatalf("open: %v, want damage", err)
				}
				return
			}
			for range 2 { // the second open finds the same
				d.open()
				e := d.l.Damage()
				if tc.damage < 0 != (e == nil) || e != nil && e.Offset != tc.damage {
					t.Fatalf("damage %v, want at offset %d", e, tc.damage)
				}
				if d.l.LogEndOffset() != tc.leo {
					t.Errorf("end %d, want %d", d.l.LogEndOffset(), tc.leo)
				}
				var gone []int64
				for o := range tc.leo {
					rec, _, ok, err := d.l.Get(o, tc.leo, nil)
					switch {
					case err != nil || ok && rec.Offset != o:
						gone = append(gone, o)
					case !ok || !bytes.Equal(rec.Value, bytes.Repeat([]byte{'a' + byte(o/2)}, 610)):
						t.Errorf("offset %d: %v, %.10q", o, ok, rec.Value)
					}
				}
				if !slices.Equal(gone, tc.gone) {
					t.Errorf("gone %v, want %v", gone, tc.gone)
				}
				if e == nil {
					d.must(d.l.BeginEpoch(4))
					d.append('x')
					return
				}
				if _, err := d.l.AppendRecords([]record.Record{{}}, time.Time{}); !errors.Is(err, ErrCorrupt) {
					t.Errorf("append to a damaged log: %v", err)
				}
				d.l.SetHighWatermark(20)
				if d.l.StartSync() != nil {
					t.Error("a damaged log syncs")
				}
				d.close()
				for name, b := range d.logs() {
					if before[name] != b {
						t.Errorf("%s of a damaged log was changed", name)
					}
				}
			}
		})
	}
}

// TestR14_OrderOfACut: slot, epochs, later segments from the far end with a
// directory sync each, then the log itself; each durable before the next begins.
func TestR14_OrderOfACut(t *testing.T) {
	d := newDisk(t, 12)
	for i := range 14 { // two more segments, and an epoch above the cut
		if i == 9 {
			d.must(d.l.BeginEpoch(5))
		}
		d.append('k')
	}
	d.must(d.l.SyncNow())
	d.close()
	faulty := vfs.NewFaulty(d.mem)
	d.o.FS = faulty
	l, err := Open(logDir, d.o, time.Time{})
	d.must(err)
	l.maint.Lock()
	d.must(l.wake())
	l.maint.Unlock()
	faulty.ResetCalls()
	d.must(l.Truncate(15))
	var got []string
	for _, c := range faulty.Calls() {
		name := path.Base(c.Name)
		switch ext := path.Ext(name); {
		case c.Op == vfs.OpSyncDir || c.Op == vfs.OpRename, c.Op == vfs.OpFinishSync && ext != ".tmp",
			c.Op&(vfs.OpRemove|vfs.OpTruncate) != 0 && ext == ".log":
			got = append(got, c.Op.String()+" "+name)
		}
	}
	want := []string{
		"finish sync " + slotName,
		"rename " + epochFile + ".tmp", "sync dir " + logDir,
		"remove 00000000000000000036.log", "sync dir " + logDir,
		"remove 00000000000000000024.log", "sync dir " + logDir,
		"truncate 00000000000000000012.log", "finish sync 00000000000000000012.log",
	}
	if !slices.Equal(got, want) {
		t.Errorf("calls\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if l.LogEndOffset() != 15 || l.SyncedEnd() != 15 || l.HighWatermark() != 12 || !slices.Equal(l.Epochs(), []Epoch{{Epoch: 3}}) {
		t.Errorf("end %d, synced %d, hw %d, epochs %v", l.LogEndOffset(), l.SyncedEnd(), l.HighWatermark(), l.Epochs())
	}
}

// TestTruncateUnderViews: a view of what goes refuses a cut; one below the high
// watermark does not, in a sealed segment either, and its bytes stay.
func TestTruncateUnderViews(t *testing.T) {
	d := newDisk(t, 8)
	stays, err := d.l.View(0, 8, 1)
	d.must(err)
	goes, err := d.l.View(10, 20, 1)
	d.must(err)
	want := bytes.Clone(stays.Bytes)
	if err := d.l.Truncate(10); !errors.Is(err, ErrBusy) {
		t.Fatalf("truncate under a view of what goes: %v", err)
	}
	if d.l.LogEndOffset() != 20 || d.l.Err() != nil {
		t.Fatalf("end %d, %v after a refused cut", d.l.LogEndOffset(), d.l.Err())
	}
	goes.Release()
	d.must(d.l.Truncate(10), d.l.BeginEpoch(4))
	for range 8 {
		d.append('z')
	}
	if !bytes.Equal(stays.Bytes, want) {
		t.Error("a view of what stayed has changed")
	}
	stays.Release()
	d.close()
	if n := d.o.Maps.Count(); n != 0 {
		t.Errorf("%d maps left", n)
	}
}

// TestBackupIsApart: neither a log nor its backup sees what becomes of the other,
// though they share files.
func TestBackupIsApart(t *testing.T) {
	d := newDisk(t, 12)
	for range 20 {
		d.append('k')
	}
	d.must(d.l.SyncNow())
	d.l.SetHighWatermark(60)
	d.must(d.l.Backup("backup"))
	if i, err := d.mem.Stat("backup/00000000000000000012.log"); err != nil || i.Links != 2 {
		t.Fatalf("a sealed segment has %d names, %v", i.Links, err)
	}
	read := func(l *Log) (all []byte) {
		for o := l.LogStartOffset(); o < l.LogEndOffset(); {
			v, err := l.View(o, l.LogEndOffset(), 1<<20)
			d.must(err)
			all, o = append(all, v.Bytes...), v.Next
			v.Release()
		}
		return all
	}
	whole := read(d.l)
	d.must(d.l.Truncate(17), d.l.BeginEpoch(4)) // inside a shared segment
	d.append('y')
	after := read(d.l)

	b, err := Open("backup", d.o, time.Time{})
	d.must(err)
	if got := read(b); !bytes.Equal(got, whole) || b.ID() == d.l.ID() {
		t.Errorf("backup has %d bytes after the log was cut, want %d", len(got), len(whole))
	}
	d.must(b.Truncate(5), b.BeginEpoch(9)) // inside the first one
	_, err = b.AppendRecords([]record.Record{{Value: []byte("b")}}, time.Time{})
	d.must(err, b.Close(time.Time{}))
	if !bytes.Equal(read(d.l), after) {
		t.Error("the log has changed with its backup")
	}
	// A backup is there after a power cut, name and all.
	d.o.FS = d.mem.PowerCut(dropAll())
	if b, err = Open("backup", d.o, time.Time{}); err != nil || b.LogEndOffset() != 6 {
		t.Fatalf("backup after a power cut: %v", err)
	}
}

// TestBackupUnderViews: a view stays as it is when its log has deleted the segment,
// so that the other log is the file's only owner, and that one is cut.
func TestBackupUnderViews(t *testing.T) {
	for _, life := range []string{"same", "closed", "killed"} {
		for _, deletes := range []string{"log", "backup"} {
			t.Run(life+"/"+deletes+" deletes", func(t *testing.T) {
				d := newDisk(t, 12)
				for range 20 {
					d.append('k')
				}
				d.must(d.l.SyncNow())
				d.l.SetHighWatermark(60)
				d.must(d.l.Backup("backup"))
				switch life { // of the log, which is open when the backup is made
				case "closed":
					d.close()
					d.open()
				case "killed":
					d.kill()
					d.open()
				}
				o := d.o
				o.FS = d.mem
				b, err := Open("backup", o, time.Time{})
				d.must(err)
				viewed, cut, dir := d.l, b, logDir
				if deletes == "backup" {
					viewed, cut, dir = b, d.l, "backup"
				}
				v, err := viewed.View(0, 12, 1<<20)
				d.must(err)
				want := bytes.Clone(v.Bytes)
				d.must(d.mem.Remove(path.Join(dir, segment.FileName(0, ".log"))))
				d.must(cut.Truncate(5))
				if !bytes.Equal(v.Bytes, want) {
					t.Error("the view has changed")
				}
				v.Release()
				if end := cut.LogEndOffset(); end != 5 {
					t.Errorf("end %d after the cut", end)
				}
			})
		}
	}
}

// TestTornLastSector: the good batch behind a bad one shows that the sector they
// share is whole only if the sector has something of it that a tear would not
// leave as well. (Seed 7175 of the crash search.)
func TestTornLastSector(t *testing.T) {
	batch := func(base int64, value int) record.Batch {
		recs := []record.Record{{Value: bytes.Repeat([]byte{'v'}, value)}}
		spec := record.NewSpec()
		spec.BaseOffset, spec.LeaderEpoch, spec.Now = base, 1, 1_700_000_000_000
		return record.Encode(make([]byte, record.Size(recs, spec.Now)), recs, &spec)
	}
	for _, tc := range []struct {
		name   string
		shared int // bytes of the second batch in the last sector of the first
		damage bool
	}{
		{name: "nothing of it", shared: 0},
		{name: "zeros of its base offset", shared: 6},
		{name: "its length", shared: 12, damage: true},
		{name: "its header", shared: 61, damage: true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			first := batch(7, 1000)
			first = batch(7, 1000+2*sectorSize-tc.shared-len(first)+sectorSize)
			data := append(slices.Clone(first), batch(8, 300)...)
			if at := len(first) % sectorSize; at != (sectorSize-tc.shared)%sectorSize {
				t.Fatalf("first batch ends at byte %d of a sector", at)
			}
			data[len(first)-50]++ // torn there, or a byte wrong: what is behind tells
			r := &recovery{l: &Log{}, list: make([]*segment.Segment, 1)}
			d := segment.Resync(data, 0, 7, 0, 9)
			if got := r.isDamage(data, 0, 7, d, 0); got != tc.damage {
				t.Errorf("damage %v, want %v (%+v)", got, tc.damage, d)
			}
		})
	}
}
