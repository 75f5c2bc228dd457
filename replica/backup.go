package replica

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"

	"github.com/tidemark-log/tidemark/internal/checkpoint"
	"github.com/tidemark-log/tidemark/internal/vfs"
	"github.com/tidemark-log/tidemark/record"
	"github.com/tidemark-log/tidemark/segment"
)

// Backup makes a copy of the log up to the high watermark in dir, which must
// not exist. Log files that are sealed, synced and wholly below it are linked
// where the file system can, the rest is copied; appends to the copy go to a
// segment of its own, and whoever cuts into a sealed segment from then on does so
// in a copy of it. The copy has a log id of its own and is clean: it opens without a scan. It
// is durable when Backup returns; appends may go on meanwhile.
func (l *Log) Backup(dir string) (err error) {
	fsys := l.o.FS
	if l.closed.Load() {
		return ErrClosed
	}
	if err := fsys.Mkdir(dir); err != nil {
		return fmt.Errorf("backup: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("backup to %s: %w", dir, err), fsys.RemoveAll(dir))
		}
	}()
	l.maint.Lock() // no truncation meanwhile
	defer l.maint.Unlock()
	start, hw := l.LogStartOffset(), l.HighWatermark()
	end, linked := start, false
	list := *l.segments.Load()
	for i, s := range list {
		if s.Base() >= hw {
			break
		}
		if i+1 < len(list) && list[i+1].Base() <= start {
			continue // about to be deleted
		}
		var shares bool
		if end, shares, err = l.backupSegment(s, dir, hw); err != nil {
			return err
		}
		linked = linked || shares
	}
	end = max(end, start) // which may lie inside the batch that the high watermark does
	// The last segment is empty: its name says where the copy ends, whole batches
	// or not, and nothing that the two share is ever appended to.
	last := filepath.Join(dir, segment.FileName(end, ".log"))
	if err := writeFile(fsys, last, vfs.Create, nil); err != nil {
		return err
	}
	epochs := recoveredEpochs(l.epochs.snapshot(), start, end)
	if err := vfs.WriteFileAtomic(fsys, filepath.Join(dir, epochFile), checkpoint.AppendEpochs(nil, epochs)); err != nil {
		return err
	}
	st := slotState{end: end, hw: end, syncedEnd: end, syncedHW: end, settledEnd: end, logStart: start}
	rand.Read(st.logID[:])
	if linked {
		st.flags |= flagLinked
	}
	if err := l.backupProducers(dir, *l.segments.Load(), end, &st); err != nil {
		return err
	}
	if err := writeCleanSlot(fsys, dir, st, last); err != nil {
		return err
	}
	return fsys.SyncDir(filepath.Dir(dir))
}

// backupSegment links or copies what lies below hw of a segment, and returns the
// offset that the copy goes on with.
func (l *Log) backupSegment(s *segment.Segment, dir string, hw int64) (end int64, linked bool, err error) {
	fsys := l.o.FS
	from, to := l.path(s.Name()), filepath.Join(dir, s.Name())
	// The last one is copied though the log sleeps: it goes on in the file, or in a
	// copy of it, and views of it must not see what is done to the backup.
	if s.Sealed() && s != l.active.Load() && s.Size() > 0 && s.End() <= min(hw, l.sync.end.Load()) && s.Allocated() == s.Size() {
		l.markLinked()
		if fsys.Link(from, to) == nil {
			for _, suffix := range []string{".index", ".timeindex"} {
				name := segment.FileName(s.Base(), suffix)
				if err := copyFile(fsys, l.path(name), filepath.Join(dir, name)); err != nil {
					return 0, false, err
				}
			}
			return s.End(), true, nil
		}
	}
	pos, base, err := s.Position(hw)
	if err != nil {
		return 0, false, err
	}
	end = min(base, hw)
	err = s.Bytes(func(data []byte) error { return writeFile(fsys, to, vfs.CreateNew, data[:pos]) })
	if err != nil {
		return 0, false, err
	}
	so := *l.so
	so.ReadOnly = false // the log may be open so, its copy is not
	copied, err := segment.Open(dir, s.Base(), pos, &so, false)
	if err != nil {
		return 0, false, err
	}
	defer copied.Close()
	copied.Publish(end, pos)
	err = copied.Each(0, func(f segment.Frame, b []byte) bool {
		copied.IndexBatch(f.Pos, f.Size, f.Last, record.Batch(b).MaxTimestamp())
		return true
	})
	if err != nil {
		return 0, false, err
	}
	return end, false, settleSealed(copied)
}

// markLinked notes that files of the log may have a second name from now on. How
// many names a file has now does not say who reads it: the other log may have
// deleted it under a view.
func (l *Log) markLinked() {
	if l.slot == nil { // read-only: nothing will be cut here
		return
	}
	l.slot.mu.Lock()
	marked := l.slot.s.flags&flagLinked != 0
	l.slot.s.flags |= flagLinked // of a sleeping log on disk when it wakes
	l.slot.mu.Unlock()
	if !marked && !l.asleep.Load() {
		l.storeSlot()
	}
}

// writeCleanSlot gives a directory that is wholly on disk its slot, with the log
// id, ends and flags of st. last is its last log file.
func writeCleanSlot(fsys vfs.FS, dir string, st slotState, last string) error {
	d, err := fsys.Stat(dir)
	if err != nil {
		return err
	}
	i, err := fsys.Stat(last)
	if err != nil {
		return err
	}
	st.boot, st.device, st.inode = fsys.BootID(), d.Device, d.Inode
	st.activeSize, st.activeTime = i.Size, i.ModTime.UnixNano()
	st.flags |= flagClean
	free := func(int) error { return nil }
	sl, err := openSlot(fsys, dir, st, true, free)
	if err != nil {
		return err
	}
	return sl.close()
}

// copyFile copies a file, durably. A missing one is copied as none.
func copyFile(fsys vfs.FS, from, to string) error {
	in, err := fsys.Open(from, vfs.ReadOnly)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer in.Close()
	i, err := in.Stat()
	if err != nil {
		return err
	}
	b := make([]byte, i.Size) // an index: some MiB at most
	n, err := in.ReadAt(b, 0)
	if err != nil && err != io.EOF {
		return err
	}
	return writeFile(fsys, to, vfs.CreateNew, b[:n])
}

// writeFile makes b the content of a file, durably but for its name. A full disk
// is an error of Allocate.
func writeFile(fsys vfs.FS, name string, mode vfs.Mode, b []byte) (err error) {
	f, err := fsys.Open(name, mode)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if err := f.Truncate(0); err != nil {
		return err
	}
	if err := f.Allocate(int64(len(b))); err != nil {
		return err
	}
	const step = 1 << 20
	for pos := 0; pos < len(b); pos += step {
		if _, err := f.WriteAt(b[pos:min(pos+step, len(b))], int64(pos)); err != nil {
			return err
		}
	}
	return vfs.Sync(f)
}
