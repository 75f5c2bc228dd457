package tidemark_test

import (
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tidemark-log/tidemark"
)

var many = flag.Int("many", 0, "how many partitions TestManyPartitions opens; 0 is the default")

func tp(i int) tidemark.TopicPartition {
	return tidemark.TopicPartition{Topic: fmt.Sprintf("orders.%d", i/100), Partition: int32(i % 100)}
}

func openFolder(t testing.TB, dir string, o tidemark.FolderOptions) *tidemark.Folder {
	t.Helper()
	f, err := tidemark.OpenFolder(dir, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

func closeFolder(t testing.TB, f *tidemark.Folder) {
	t.Helper()
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
}

func logOf(t testing.TB, f *tidemark.Folder, p tidemark.TopicPartition) *tidemark.Log {
	t.Helper()
	l, err := f.Log(p)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func TestFolder(t *testing.T) {
	for _, mode := range modes {
		t.Run(mode.String(), func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "data")
			o := tidemark.FolderOptions{Log: tidemark.Options{Sync: mode, SegmentBytes: 16 << 10, SyncInterval: time.Millisecond}}
			f := openFolder(t, dir, o)
			if got := f.Partitions(); len(got) != 0 {
				t.Fatalf("a new folder has %v", got)
			}
			const n = 5
			for i := range n {
				l, err := f.Create(tp(i), tidemark.UUID{})
				if err != nil {
					t.Fatal(err)
				}
				appendTo(t, l, int64(10*i), 1000)
			}
			if _, err := f.Create(tp(1), tidemark.UUID{}); !errors.Is(err, fs.ErrExist) {
				t.Errorf("Create of one that is there = %v", err)
			}
			if _, err := f.Create(tidemark.TopicPartition{Topic: "a/b"}, tidemark.UUID{}); err == nil {
				t.Error("Create took a topic named a/b")
			}
			if _, err := f.Log(tp(n)); !errors.Is(err, tidemark.ErrNoPartition) {
				t.Errorf("Log of one that is not there = %v", err)
			}
			if err := f.Delete(tp(n)); !errors.Is(err, tidemark.ErrNoPartition) {
				t.Errorf("Delete of one that is not there = %v", err)
			}
			if _, err := f.Reopen(tp(n)); !errors.Is(err, tidemark.ErrNoPartition) {
				t.Errorf("Reopen of one that is not there = %v", err)
			}
			if _, err := tidemark.OpenFolder(dir, o); !errors.Is(err, tidemark.ErrLocked) {
				t.Errorf("a second OpenFolder = %v", err)
			}
			// A log may be closed and opened again by itself.
			closeLog(t, logOf(t, f, tp(2)))
			if _, err := f.Log(tp(2)); !errors.Is(err, tidemark.ErrClosed) {
				t.Errorf("Log of one that was closed = %v", err)
			}
			for range 2 {
				l, err := f.Reopen(tp(2))
				if err != nil {
					t.Fatal(err)
				}
				checkAll(t, l, 0, 20)
			}
			closeFolder(t, f)
			if _, err := f.Log(tp(0)); !errors.Is(err, tidemark.ErrClosed) {
				t.Errorf("Log after Close = %v", err)
			}
			if _, err := f.Create(tp(9), tidemark.UUID{}); !errors.Is(err, tidemark.ErrClosed) {
				t.Errorf("Create after Close = %v", err)
			}
			if err := errors.Join(f.Delete(tp(0)), f.Close()); !errors.Is(err, tidemark.ErrClosed) {
				t.Errorf("Delete after Close = %v", err)
			}
			clean := func() bool {
				_, err := os.Stat(filepath.Join(dir, ".kafka_cleanshutdown"))
				return err == nil
			}
			if !clean() {
				t.Error("no clean marker after Close")
			}

			// One cannot be opened, one is damaged; the others do not mind.
			flipLast(t, filepath.Join(dir, tp(3).String()))
			meta := filepath.Join(dir, tp(4).String(), "partition.metadata")
			if err := os.WriteFile(meta, []byte("junk"), 0o644); err != nil {
				t.Fatal(err)
			}
			var seen []tidemark.FolderProgress
			o.OnOpen = func(p tidemark.FolderProgress) { seen = append(seen, p) }
			f = openFolder(t, dir, o)
			if last := seen[len(seen)-1]; len(seen) != n || last.Done != n || last.Total != n || last.Failed != 1 {
				t.Errorf("progress %+v", seen)
			}
			if clean() {
				t.Error("the clean marker is still there")
			}
			if got := f.Partitions(); len(got) != n || !slices.Contains(got, tp(4)) {
				t.Errorf("partitions %v", got)
			}
			for i := range 3 {
				l := logOf(t, f, tp(i))
				checkAll(t, l, 0, int64(10*i))
				appendTo(t, l, 5, 1000)
			}
			if _, err := f.Log(tp(4)); err == nil || !strings.Contains(err.Error(), "partition.metadata") {
				t.Errorf("Log of what could not be opened = %v", err)
			}
			l := logOf(t, f, tp(3))
			if l.Damage() == nil {
				t.Error("no damage")
			}
			if r, err := l.Get(7, nil); err != nil || r.Offset != 7 {
				t.Errorf("a damaged log does not serve offset 7: %v", err)
			}
			closeFolder(t, f)
			if clean() {
				t.Error("a folder with a damaged log and one that did not open was marked clean")
			}

			o.OnOpen = nil
			f = openFolder(t, dir, o)
			if err := errors.Join(f.Delete(tp(3)), f.Delete(tp(4))); err != nil {
				t.Fatal(err)
			}
			if _, err := f.Log(tp(3)); !errors.Is(err, tidemark.ErrNoPartition) {
				t.Errorf("Log of one that was deleted = %v", err)
			}
			// Another of the same name knows nothing of the old one.
			l, err := f.Create(tp(3), tidemark.UUID{})
			if err != nil {
				t.Fatal(err)
			}
			if l.LogEndOffset() != 0 {
				t.Errorf("a new log ends at %d", l.LogEndOffset())
			}
			entries, err := os.ReadDir(dir)
			if err != nil {
				t.Fatal(err)
			}
			waiting := 0
			for _, e := range entries {
				if strings.HasSuffix(e.Name(), "-delete") {
					waiting++
				}
			}
			if waiting != 2 {
				t.Errorf("%d folders wait for removal in %v; want 2", waiting, entries)
			}
			closeFolder(t, f)
			if !clean() {
				t.Error("no clean marker once what was wrong is deleted")
			}
			f = openFolder(t, dir, o)
			if names, _ := filepath.Glob(filepath.Join(dir, "*-delete")); len(names) > 0 {
				t.Errorf("%v are still there", names)
			}
			checkAll(t, logOf(t, f, tp(2)), 0, 20)
			closeFolder(t, f)
		})
	}
}

// TestC032_DeletedPartitions: files go after the delay, views of them outlive that, and
// nothing of a deleted partition is held (C032).
func TestC032_DeletedPartitions(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	f := openFolder(t, dir, tidemark.FolderOptions{DeleteDelay: -1, Log: tidemark.Options{Sync: tidemark.Never, SegmentBytes: 16 << 10}})
	goroutines := runtime.NumGoroutine()
	maps, files := held(t, dir)
	for round := range 3 {
		var view tidemark.View
		for i := range 10 {
			l, err := f.Create(tp(i), tidemark.UUID{})
			if err != nil {
				t.Fatal(err)
			}
			appendTo(t, l, 40, 1000)
			checkAll(t, l, 0, 40)
			if i == 0 {
				if view, err = l.View(0, 1<<20); err != nil {
					t.Fatal(err)
				}
			}
		}
		for i := range 10 {
			if err := f.Delete(tp(i)); err != nil {
				t.Fatal(err)
			}
		}
		if b, err := view.Batch(0, view.Base); err != nil || b.BaseOffset() != 0 {
			t.Errorf("round %d: a view of a deleted log: %v", round, err)
		}
		view.Release()
		eventually(t, "the folders are gone", func() bool {
			names, _ := filepath.Glob(filepath.Join(dir, "*-delete"))
			return len(names) == 0
		})
		m, fl := held(t, dir)
		if len(m) > len(maps) || len(fl) > len(files) {
			t.Errorf("round %d: the process holds\n%s%s", round, strings.Join(m, ""), strings.Join(fl, "\n"))
		}
	}
	eventually(t, "no goroutine is left", func() bool { return runtime.NumGoroutine() <= goroutines })
	closeFolder(t, f)
}

func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for range 2000 {
		if ok() {
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
	t.Fatalf("never: %s", what)
}

// TestFolderAtOnce: every method beside every other, and Close into the middle.
func TestFolderAtOnce(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	for round := range 3 {
		f := openFolder(t, dir, tidemark.FolderOptions{DeleteDelay: -1, Log: tidemark.Options{
			Sync: modes[round], SegmentBytes: 8 << 10, SyncInterval: time.Millisecond}})
		var wg sync.WaitGroup
		stop := make(chan struct{})
		for w := range 4 {
			wg.Go(func() {
				for i := 0; ; i++ {
					select {
					case <-stop:
						return
					default:
					}
					p := tp((w + i) % 5)
					var err error
					switch i % 7 {
					case 0:
						err = f.Delete(p)
					case 1:
						_, err = f.Reopen(p)
					case 2:
						if l, e := f.Log(p); e == nil {
							err = l.Close()
						}
					default:
						_, _ = f.Create(p, tidemark.UUID{})
						if l, e := f.Log(p); e == nil {
							for range 10 {
								if _, err = l.Append(rec(0, 500)); err != nil {
									break
								}
							}
						}
					}
					if err != nil && !errors.Is(err, tidemark.ErrClosed) && !errors.Is(err, tidemark.ErrBusy) && !errors.Is(err, tidemark.ErrNoPartition) {
						t.Error(err)
						return
					}
					f.Partitions()
				}
			})
		}
		time.Sleep(200 * time.Millisecond)
		closeFolder(t, f)
		close(stop)
		wg.Wait()
	}
	f := openFolder(t, dir, tidemark.FolderOptions{})
	for _, p := range f.Partitions() {
		if l := logOf(t, f, p); l.Damage() != nil {
			t.Errorf("%s: %v", p, l.Damage())
		}
	}
	closeFolder(t, f)
}
