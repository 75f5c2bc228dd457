//go:build unix

package tidemark_test

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tidemark-log/tidemark"
	"github.com/tidemark-log/tidemark/internal/mmap"
)

// makeMany makes a folder of n partitions; with records every other one has some.
func makeMany(t testing.TB, dir string, n int, records bool) {
	t.Helper()
	f := openFolder(t, dir, tidemark.FolderOptions{})
	errs := make(chan error, n)
	next := make(chan int)
	for range 32 {
		go func() {
			for i := range next {
				l, err := f.Create(tp(i), tidemark.UUID{})
				if err == nil && records && i%2 == 0 {
					_, err = l.Append(rec(0, 200), rec(1, 200), rec(2, 200))
				}
				if err == nil {
					err = l.Close()
				}
				errs <- err
			}
		}()
	}
	go func() {
		defer close(next)
		for i := range n {
			next <- i
		}
	}()
	for range n {
		if err := <-errs; err != nil {
			t.Fatal(err)
		}
	}
	closeFolder(t, f)
}

// diskBytes sums the blocks of everything under dir.
func diskBytes(t testing.TB, dir string) (sum int64) {
	t.Helper()
	err := filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		i, err := d.Info()
		if st, ok := i.Sys().(*syscall.Stat_t); ok && err == nil {
			sum += st.Blocks * 512
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return sum
}

func heap() int64 {
	runtime.GC()
	runtime.GC() // what the first one finalized
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// TestManyPartitions: what idle partitions cost. With -many=10000 it is the
// measurement of docs/folders.md; run it with -v.
func TestManyPartitions(t *testing.T) {
	n := *many
	switch {
	case n != 0:
	case testing.Short():
		n = 100
	default:
		n = 500
	}
	dir := filepath.Join(t.TempDir(), "data")
	began := time.Now()
	makeMany(t, dir, n, true)
	t.Logf("made %d partitions, half of them with records, in %.1f s", n, time.Since(began).Seconds())
	disk := diskBytes(t, dir)
	t.Logf("disk: %.1f KiB each", float64(disk)/1024/float64(n))
	if per := disk / int64(n); per > 1<<30/10000 {
		t.Errorf("%d bytes of disk each; want at most %d", per, 1<<30/10000)
	}
	for _, mode := range modes {
		t.Run(mode.String(), func(t *testing.T) {
			before, goroutines := heap(), runtime.NumGoroutine()
			began := time.Now()
			f := openFolder(t, dir, tidemark.FolderOptions{Log: tidemark.Options{Sync: mode}})
			opened := time.Since(began)
			eventually(t, "no goroutine is left", func() bool { return runtime.NumGoroutine() <= goroutines })
			per := (heap() - before) / int64(n)
			maps, files := held(t, dir)
			t.Logf("open: %.2f s; each: %d bytes of heap, %.2f maps, %.2f descriptors", opened.Seconds(), per,
				float64(len(maps))/float64(n), float64(len(files))/float64(n))
			if got := len(f.Partitions()); got != n {
				t.Errorf("%d partitions; want %d", got, n)
			}
			if per > 20<<10 {
				t.Errorf("%d bytes of heap each; want at most 20 KiB", per)
			}
			if len(maps) > 2*n || len(files) > n+1 { // and the folder's lock
				t.Errorf("%d maps, %d descriptors of %d partitions; want at most 2 and 1 each\n%s", len(maps), len(files), n, strings.Join(maps[:min(8, len(maps))], ""))
			}
			checkAll(t, logOf(t, f, tp(0)), 0, 3)
			began = time.Now()
			closeFolder(t, f)
			t.Logf("close: %.2f s", time.Since(began).Seconds())
			if maps, files := held(t, dir); len(maps)+len(files) > 0 {
				t.Errorf("after Close the process holds\n%s%s", strings.Join(maps, ""), strings.Join(files, "\n"))
			}
		})
	}
}

// TestFolderBounds: where the process may have no more descriptors, or maps, the
// append or open that needs one says so; everything else goes on, and room that is
// made is used. The bounds are the process's, so each gets one of its own.
func TestFolderBounds(t *testing.T) {
	switch kind := os.Getenv("TIDEMARK_BOUNDS_CHILD"); kind {
	case "":
	case "files":
		var limit syscall.Rlimit
		if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
			t.Fatal(err)
		}
		limit.Cur = 200
		if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
			t.Fatal(err)
		}
		boundedFolder(t, tidemark.ErrTooManyFiles)
		return
	case "maps":
		mmap.SetLimit(150)
		boundedFolder(t, tidemark.ErrTooManyMaps)
		return
	}
	for _, kind := range []string{"files", "maps"} {
		t.Run(kind, func(t *testing.T) {
			cmd := exec.Command(os.Args[0], "-test.run=^TestFolderBounds$", "-test.v")
			cmd.Env = append(os.Environ(), "TIDEMARK_BOUNDS_CHILD="+kind)
			out, err := cmd.CombinedOutput()
			if err != nil {
				t.Fatalf("%v:\n%s", err, out)
			}
			for line := range strings.Lines(string(out)) {
				if strings.Contains(line, "written") {
					t.Log(strings.TrimSpace(line))
				}
			}
		})
	}
}

// boundedFolder writes to more partitions than the bound lets it.
func boundedFolder(t *testing.T, bound error) {
	const n = 200
	dir := filepath.Join(t.TempDir(), "data")
	makeMany(t, dir, n, false)
	f := openFolder(t, dir, tidemark.FolderOptions{})
	written := map[int]bool{}
	for i := range n {
		_, err := logOf(t, f, tp(i)).Append(rec(0, 100))
		switch {
		case err == nil:
			written[i] = true
		case !errors.Is(err, bound):
			t.Fatalf("append to partition %d = %v; want %v", i, err, bound)
		case len(written) == i:
			t.Log(err)
		}
	}
	t.Logf("%d of %d written", len(written), n)
	if len(written) < 40 || len(written) > n-40 {
		t.Fatalf("%d of %d partitions could be written", len(written), n)
	}
	if _, err := f.Create(tp(n), tidemark.UUID{}); !errors.Is(err, bound) {
		t.Errorf("Create = %v; want %v", err, bound)
	}
	for i := range n {
		l := logOf(t, f, tp(i))
		if written[i] {
			if _, err := l.Append(rec(1, 100)); err != nil {
				t.Fatalf("append to partition %d, which is awake: %v", i, err)
			}
			checkAll(t, l, 0, 2)
		} else if l.LogEndOffset() != 0 {
			t.Errorf("partition %d, whose append was refused, ends at %d", i, l.LogEndOffset())
		}
	}
	for i := range n { // room for the others
		if written[i] {
			closeLog(t, logOf(t, f, tp(i)))
		}
	}
	more := 0
	for i := range n {
		if written[i] {
			continue
		}
		if more++; more > 40 {
			break
		}
		l := logOf(t, f, tp(i))
		if _, err := l.Append(rec(0, 100)); err != nil {
			t.Fatalf("append to partition %d, with room: %v", i, err)
		}
	}
	closeFolder(t, f)
	f = openFolder(t, dir, tidemark.FolderOptions{})
	for i := range n {
		if written[i] {
			checkAll(t, logOf(t, f, tp(i)), 0, 2)
		}
	}
	closeFolder(t, f)
}
