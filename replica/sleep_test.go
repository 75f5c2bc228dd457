package replica

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/tidemark-log/tidemark/internal/vfs"
	"github.com/tidemark-log/tidemark/record"
	"github.com/tidemark-log/tidemark/segment"
)

// A log that was closed in order and is opened again sleeps until something is to
// be changed.

// stat describes every file of the log's directory.
func (d *disk) stat() string {
	d.t.Helper()
	infos, err := d.mem.List(logDir)
	d.must(err)
	var s string
	for _, i := range infos {
		if i.Name != lockName {
			s += fmt.Sprintf("%s: %d bytes, %v, inode %d\n", i.Name, i.Size, i.ModTime.UnixNano(), i.Inode)
		}
	}
	return s
}

// content returns the offsets of the batches' first records with their values'
// first byte.
func (d *disk) content() string {
	d.t.Helper()
	var s string
	for offset, end := d.l.LogStartOffset(), d.l.LogEndOffset(); offset < end; {
		r, _, ok, err := d.l.Get(offset, end, nil)
		d.must(err)
		if !ok {
			break
		}
		s += string(r.Value[:1])
		offset = r.Offset + 2
	}
	return s
}

// TestSleep: opening, reading and closing such a log writes nothing, syncs nothing
// and holds neither file nor, once it is not read, map.
func TestSleep(t *testing.T) {
	for _, how := range []string{"closed", "closed and killed asleep", "closed and rebooted"} {
		t.Run(how, func(t *testing.T) {
			d := newDisk(t, 20)
			d.must(d.l.BeginEpoch(7)) // nothing is written in it
			d.close()
			before := d.stat()
			for range 3 {
				faulty := vfs.NewFaulty(d.mem)
				d.o.FS, d.o.Maps = faulty, segment.NewMaps(100)
				l, err := Open(logDir, d.o, time.Time{})
				d.must(err)
				d.l = l
				if !l.asleep.Load() {
					t.Fatal("the log is awake")
				}
				if d.o.Maps.Count() != 0 || d.o.Maps.Files() != 0 {
					t.Errorf("%d maps, %d files are held", d.o.Maps.Count(), d.o.Maps.Files())
				}
				if got := d.content(); got != "abcdefghij" {
					t.Errorf("found %s", got)
				}
				if l.SyncedEnd() != 20 || l.HighWatermark() != 20 || l.Stats().LeaderEpoch != 3 {
					t.Errorf("%+v", l.Stats())
				}
				if n, err := l.Maintain(time.Now()); err != nil || n != (Next{}) || l.StartSync() != nil {
					t.Errorf("Maintain = %+v, %v", n, err)
				}
				if how != "closed" {
					d.kill()
					if how == "closed and rebooted" {
						d.mem = d.mem.PowerCut(dropAll())
					}
					continue
				}
				d.close()
				for _, c := range faulty.Calls() {
					if c.Op&(vfs.OpWrite|vfs.OpTruncate|vfs.OpAllocate|vfs.OpRename|vfs.OpCreate|vfs.OpStartSync|vfs.OpFinishSync|vfs.OpSyncDir) != 0 {
						t.Errorf("%v of %s", c.Op, c.Name)
					}
				}
				if d.o.Maps.Count() != 0 {
					t.Errorf("%d maps are held after Close", d.o.Maps.Count())
				}
			}
			if after := d.stat(); after != before {
				t.Errorf("files are\n%s they were\n%s", after, before)
			}
			d.open()
			d.must(d.l.BeginEpoch(3))
			d.append('k')
			if d.l.asleep.Load() {
				t.Error("the log takes appends asleep")
			}
			d.kill()
			d.open()
			if got := d.content(); got != "abcdefghijk" {
				t.Errorf("found %s", got)
			}
			// The epoch that nothing was written in must not cover what came later.
			if got, want := d.l.Epochs(), []Epoch{{Epoch: 3}}; !slices.Equal(got, want) {
				t.Errorf("epochs %v; want %v", got, want)
			}
			d.close()
		})
	}
}

// TestSleepNot: what a clean close did not leave is mended, asleep or not.
func TestSleepNot(t *testing.T) {
	for name, spoil := range map[string]func(d *disk){
		"index not trimmed": func(d *disk) { d.pad(".index", 4096) },
		"times not trimmed": func(d *disk) { d.pad(".timeindex", 4096) },
		"index missing":     func(d *disk) { d.remove(segment.FileName(12, ".index")) },
		"times missing":     func(d *disk) { d.remove(segment.FileName(12, ".timeindex")) },
		"index wrong": func(d *disk) {
			d.edit(segment.FileName(12, ".index"), 0, []byte{0, 0, 0, 200, 0, 0, 0, 1})
		},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDisk(t, 20)
			d.o.IndexIntervalBytes = 1000
			d.close()
			d.open()
			for c := byte('k'); c < 'o'; c++ { // the last segment has entries
				d.must(d.l.BeginEpoch(3))
				d.append(c)
			}
			if got := d.l.active.Load().Base(); got != 12 && got != 24 {
				t.Fatalf("the last segment begins at %d", got)
			}
			d.must(d.l.Truncate(24), d.l.BeginEpoch(3))
			d.close()
			want := d.stat()
			spoil(d)
			if d.stat() == want && name != "index wrong" {
				t.Fatal("nothing is spoilt")
			}
			d.open()
			if d.l.asleep.Load() {
				t.Error("the log sleeps")
			}
			if got := d.content(); got != "abcdefghijkl" {
				t.Errorf("found %s", got)
			}
			d.close()
			d.open()
			if !d.l.asleep.Load() {
				t.Error("the log is awake, once it is mended and closed")
			}
			d.close()
		})
	}
}

func (d *disk) pad(suffix string, size int64) {
	d.t.Helper()
	f, err := d.mem.Open(path.Join(logDir, segment.FileName(12, suffix)), vfs.ReadWrite)
	d.must(err)
	d.must(f.Truncate(size), f.Close())
}

// TestWakeFails: an append that cannot wake the log says why, changes nothing and
// may be made again; a sync that fails sticks.
func TestWakeFails(t *testing.T) {
	for _, tc := range []struct {
		name   string
		rule   vfs.Rule
		maps   int
		files  int
		sticks bool
	}{
		{name: "slot cannot be opened", rule: vfs.Rule{Ops: vfs.OpOpen, Glob: slotName, Err: syscall.EMFILE}},
		{name: "log cannot be opened", rule: vfs.Rule{Ops: vfs.OpOpen, Glob: "*.log", Err: syscall.EMFILE}},
		{name: "nothing can be mapped", rule: vfs.Rule{Ops: vfs.OpMap, Err: syscall.ENOMEM}},
		{name: "no block is left", rule: vfs.Rule{Ops: vfs.OpAllocate, Err: syscall.ENOSPC}},
		{name: "no map is left", maps: -1},
		{name: "one map is left", maps: 1},
		{name: "no file is left", files: -1},
		{name: "slot cannot be synced", rule: vfs.Rule{Ops: vfs.OpFinishSync, Glob: slotName, Err: syscall.EIO}, sticks: true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			d := newDisk(t, 20)
			d.close()
			faulty := vfs.NewFaulty(d.mem)
			d.o.FS, d.o.Maps = faulty, segment.NewMaps(100)
			l, err := Open(logDir, d.o, time.Time{})
			d.must(err)
			d.l = l
			d.must(l.BeginEpoch(3))
			want := error(tc.rule.Err)
			if tc.rule.Err != nil {
				faulty.SetRules(tc.rule)
			}
			if tc.maps != 0 { // somebody else has the others
				want = segment.ErrTooManyMaps
				d.must(d.o.Maps.Add(100 - max(tc.maps, 0)))
			}
			if tc.files != 0 {
				want = segment.ErrTooManyFiles
				d.o.Maps.LimitFiles(0)
			}
			before := d.logs()
			for range 3 {
				_, err := l.AppendRecords([]record.Record{{Value: []byte("x")}}, time.Time{})
				if !errors.Is(err, want) && !errors.Is(err, l.Err()) || err == nil {
					t.Fatalf("append = %v; want %v", err, want)
				}
			}
			if stuck := l.Err() != nil; stuck != tc.sticks {
				t.Fatalf("error that sticks: %v", l.Err())
			}
			for name, b := range d.logs() {
				if before[name] != b {
					t.Errorf("%s has changed", name)
				}
			}
			if got := d.o.Maps.Files(); got > 0 {
				t.Errorf("%d files are held", got)
			}
			faulty.SetRules()
			if tc.maps != 0 {
				d.must(d.o.Maps.Add(max(tc.maps, 0) - 100))
			}
			d.o.Maps.LimitFiles(10)
			if tc.sticks {
				if err := l.Close(time.Time{}); !errors.Is(err, ErrFailed) {
					t.Errorf("Close = %v", err)
				}
				d.open()
			} else {
				d.append('k')
				if got := d.content(); got != "abcdefghijk" {
					t.Errorf("found %s", got)
				}
			}
			d.close()
			if n := d.o.Maps.Count(); n != 0 {
				t.Errorf("%d maps are left", n)
			}
		})
	}
}

// TestSleepAndBackup: a sleeping log and its backup go on by themselves, and so do
// views; a file that somebody else has a link to is copied before it is written.
func TestSleepAndBackup(t *testing.T) {
	d := newDisk(t, 20)
	d.close()
	d.open()
	view, err := d.l.View(0, 20, 1<<20)
	d.must(err)
	d.must(d.l.Backup("backup"))
	last := path.Join(logDir, segment.FileName(12, ".log"))
	d.must(d.mem.Link(last, "linked"))
	linked, err := vfs.ReadFile(d.mem, "linked", 1<<20)
	d.must(err)
	d.must(d.l.BeginEpoch(3))
	d.append('k')
	view.Release()
	if now, err := vfs.ReadFile(d.mem, "linked", 1<<20); err != nil || string(now) != string(linked) {
		t.Errorf("the linked file has changed: %v", err)
	}
	if got := d.content(); got != "abcdefghijk" {
		t.Errorf("found %s", got)
	}
	b, err := Open("backup", d.o, time.Time{})
	d.must(err)
	log := *d
	log.l = b
	if got := log.content(); got != "abcdefghij" {
		t.Errorf("the backup has %s", got)
	}
	d.must(b.Close(time.Time{}))
	d.close()
	d.open()
	if got := d.content(); got != "abcdefghijk" {
		t.Errorf("found %s", got)
	}
	d.close()
}

// TestSleepHighWatermark: it is kept over a kill though nothing was appended, and
// the log closes clean.
func TestSleepHighWatermark(t *testing.T) {
	d := newDisk(t, 12)
	d.close()
	d.open()
	d.l.SetHighWatermark(16)
	d.kill()
	d.open()
	if hw := d.l.HighWatermark(); hw != 16 {
		t.Errorf("high watermark %d after a kill; want 16", hw)
	}
	d.close()
	d.open()
	d.l.SetHighWatermark(18)
	d.close()
	d.open()
	if hw := d.l.HighWatermark(); hw != 18 || !d.l.asleep.Load() {
		t.Errorf("high watermark %d, asleep %v; want 18, true", hw, d.l.asleep.Load())
	}
	d.close()
}
