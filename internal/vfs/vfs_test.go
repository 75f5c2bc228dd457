package vfs

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
)

// TestMain lets the test binary be its own child process.
func TestMain(m *testing.M) {
	if role := os.Getenv("TIDEMARK_VFS_TEST_ROLE"); role != "" {
		os.Exit(playRole(role))
	}
	os.Exit(m.Run())
}

// eachFS runs a test on every implementation: all must behave alike.
func eachFS(t *testing.T, f func(t *testing.T, fsys FS, dir string)) {
	t.Run("OS", func(t *testing.T) {
		if runtime.GOOS != "linux" && runtime.GOOS != "darwin" {
			t.Skip("not supported")
		}
		f(t, OS, t.TempDir())
	})
	t.Run("Mem", func(t *testing.T) { f(t, newMem(t), "/data") })
	t.Run("Faulty without rules", func(t *testing.T) { f(t, NewFaulty(newMem(t)), "/data") })
}

func newMem(t testing.TB) *Mem {
	m := NewMem(MemOptions{})
	must(t, m.Mkdir("/data"))
	must(t, m.SyncDir("/"))
	return m
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func open(t testing.TB, fsys FS, name string, mode Mode) File {
	t.Helper()
	f, err := fsys.Open(name, mode)
	must(t, err)
	t.Cleanup(func() { f.Close() })
	return f
}

func write(t testing.TB, f File, off int64, data string) {
	t.Helper()
	if n, err := f.WriteAt([]byte(data), off); n != len(data) || err != nil {
		t.Fatalf("WriteAt(%d bytes, %d) = %d, %v", len(data), off, n, err)
	}
}

func size(t testing.TB, f File) int64 {
	t.Helper()
	info, err := f.Stat()
	must(t, err)
	return info.Size
}

func readAll(t testing.TB, fsys FS, name string) string {
	t.Helper()
	b, err := ReadFile(fsys, name, 1<<20)
	must(t, err)
	return string(b)
}

// wantErr checks what the error is and that it names the path.
func wantErr(t testing.TB, err, want error, name string) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("error %v; want %v", err, want)
	} else if !strings.Contains(err.Error(), filepath.Base(name)) {
		t.Errorf("error %q does not name %s", err, name)
	}
}

func TestOpenModes(t *testing.T) {
	eachFS(t, func(t *testing.T, fsys FS, dir string) {
		name, absent := filepath.Join(dir, "there"), filepath.Join(dir, "absent")
		write(t, open(t, fsys, name, CreateNew), 0, "abc")
		for _, tc := range []struct {
			name string
			path string
			mode Mode
			want error
		}{
			{"read only", name, ReadOnly, nil},
			{"read-write", name, ReadWrite, nil},
			{"create keeps what is there", name, Create, nil},
			{"create new over something", name, CreateNew, fs.ErrExist},
			{"read only of nothing", absent, ReadOnly, fs.ErrNotExist},
			{"read-write of nothing", absent, ReadWrite, fs.ErrNotExist},
			{"in no directory", filepath.Join(absent, "x"), Create, fs.ErrNotExist},
			{"in a file", filepath.Join(name, "x"), Create, syscall.ENOTDIR},
			{"a directory", dir, ReadOnly, syscall.EISDIR},
		} {
			t.Run(tc.name, func(t *testing.T) {
				f, err := fsys.Open(tc.path, tc.mode)
				if tc.want != nil {
					wantErr(t, err, tc.want, tc.path)
					return
				}
				must(t, err)
				defer f.Close()
				if f.Name() != name || size(t, f) != 3 {
					t.Errorf("opened %s of %d bytes", f.Name(), size(t, f))
				}
				if _, err := f.WriteAt([]byte("x"), 0); (err == nil) != (tc.mode != ReadOnly) {
					t.Errorf("WriteAt: %v", err)
				}
			})
		}
		if ok, err := Exists(fsys, absent); ok || err != nil {
			t.Errorf("Exists of a refused file = %v, %v", ok, err)
		}
	})
}

func TestReadWrite(t *testing.T) {
	eachFS(t, func(t *testing.T, fsys FS, dir string) {
		f := open(t, fsys, filepath.Join(dir, "f"), Create)
		long := strings.Repeat("0123456789abcdef", 300) // several sectors, not aligned
		write(t, f, 700, long)
		if got, want := size(t, f), int64(700+len(long)); got != want {
			t.Fatalf("size %d; want %d", got, want)
		}
		for _, tc := range []struct {
			name string
			off  int64
			n    int
			want string
			err  error
		}{
			{"hole reads as zeros", 0, 700, strings.Repeat("\x00", 700), nil},
			{"across sectors", 1000, 1500, long[300:1800], nil},
			{"up to the end", 700, len(long), long, nil},
			{"over the end", 700 + int64(len(long)) - 3, 10, long[len(long)-3:], io.EOF},
			{"at the end", 700 + int64(len(long)), 1, "", io.EOF},
			{"far behind", 1 << 40, 1, "", io.EOF},
			{"nothing", 5, 0, "", nil},
		} {
			p := make([]byte, tc.n)
			n, err := f.ReadAt(p, tc.off)
			if string(p[:n]) != tc.want || err != tc.err {
				t.Errorf("%s: ReadAt = %q, %v", tc.name, p[:n], err)
			}
		}
		for _, off := range []int64{-1, -1 << 63} {
			if _, err := f.ReadAt(make([]byte, 1), off); err == nil || err == io.EOF {
				t.Errorf("ReadAt(%d): %v", off, err)
			}
			if _, err := f.WriteAt(make([]byte, 1), off); err == nil {
				t.Errorf("WriteAt(%d) succeeded", off)
			}
		}
	})
}

func TestTruncate(t *testing.T) {
	eachFS(t, func(t *testing.T, fsys FS, dir string) {
		name := filepath.Join(dir, "f")
		f := open(t, fsys, name, Create)
		write(t, f, 0, strings.Repeat("x", 2000))
		m, err := f.Map(2000, false)
		must(t, err)
		must(t, f.Truncate(600))
		if i := bytes.IndexByte(m.Bytes()[600:], 'x'); i >= 0 {
			t.Errorf("map reads a cut byte at %d", 600+i)
		}
		must(t, m.Unmap())
		must(t, f.Truncate(2000))
		if got := readAll(t, fsys, name); got != strings.Repeat("x", 600)+strings.Repeat("\x00", 1400) {
			t.Errorf("cut bytes came back: %q", got)
		}
		if err := f.Truncate(-1); err == nil {
			t.Error("Truncate(-1) succeeded")
		}
	})
}

func TestAllocate(t *testing.T) {
	eachFS(t, func(t *testing.T, fsys FS, dir string) {
		name := filepath.Join(dir, "f")
		f := open(t, fsys, name, Create)
		write(t, f, 0, "head")
		must(t, f.Allocate(10_000))
		if got := size(t, f); got != 10_000 {
			t.Errorf("size %d; want 10000", got)
		}
		for _, n := range []int64{0, 5000, 10_000} {
			must(t, f.Allocate(n))
			if got := size(t, f); got != 10_000 {
				t.Errorf("size %d after Allocate(%d); want 10000", got, n)
			}
		}
		if got := readAll(t, fsys, name); got != "head"+strings.Repeat("\x00", 9996) {
			t.Error("allocated bytes are not zero")
		}
		wantErr(t, f.Allocate(-1), syscall.EINVAL, name)
	})
}

// TestNextData: every byte that is not zero lies in a range that is named, whether
// it was written or stored through a map, synced or not; and space that was only
// allocated is left out by those that can tell.
func TestNextData(t *testing.T) {
	const mib = 1 << 20
	eachFS(t, func(t *testing.T, fsys FS, dir string) {
		f := open(t, fsys, filepath.Join(dir, "f"), Create)
		must(t, f.Allocate(4*mib))
		m, err := f.Map(4*mib, true)
		must(t, err)
		defer m.Unmap()
		data := func() (runs [][2]int64) {
			t.Helper()
			for pos := int64(0); ; {
				from, to, err := f.NextData(pos)
				must(t, err)
				if from == to {
					return runs
				}
				if from < pos || to < from || to > 4*mib {
					t.Fatalf("NextData(%d) = %d, %d", pos, from, to)
				}
				runs = append(runs, [2]int64{from, to})
				pos = to
			}
		}
		inside := func(pos int64) bool {
			return slices.ContainsFunc(data(), func(r [2]int64) bool { return r[0] <= pos && pos < r[1] })
		}
		if fresh := data(); runtime.GOOS == "linux" && len(fresh) > 0 {
			t.Errorf("allocated, never written: data at %v", fresh)
		}
		for i, pos := range []int64{mib + 5000, 2*mib + 1, 4*mib - 1} {
			if i == 1 {
				m.Bytes()[pos] = 1
			} else {
				write(t, f, pos, "x")
			}
			if !inside(pos) {
				t.Errorf("byte %d is not in %v", pos, data())
			}
			if i == 0 && runtime.GOOS == "linux" && inside(mib/2) {
				t.Errorf("nothing was written at %d: %v", mib/2, data())
			}
		}
		must(t, Sync(f))
		for _, pos := range []int64{mib + 5000, 2*mib + 1, 4*mib - 1} {
			if !inside(pos) {
				t.Errorf("synced byte %d is not in %v", pos, data())
			}
		}
		if from, to, err := f.NextData(5 * mib); from != 5*mib || to != from || err != nil {
			t.Errorf("NextData behind the end = %d, %d, %v", from, to, err)
		}
		must(t, f.Close())
		if _, _, err := f.NextData(0); !errors.Is(err, fs.ErrClosed) {
			t.Errorf("NextData of a closed file: %v", err)
		}
	})
}

func TestMap(t *testing.T) {
	eachFS(t, func(t *testing.T, fsys FS, dir string) {
		name := filepath.Join(dir, "f")
		f := open(t, fsys, name, Create)
		must(t, f.Allocate(4096))
		w, err := f.Map(1<<20, true) // longer than the file
		must(t, err)
		r, err := f.Map(1<<20, false)
		must(t, err)
		if len(w.Bytes()) != 1<<20 || cap(w.Bytes()) != 1<<20 {
			t.Fatalf("map of %d bytes, cap %d", len(w.Bytes()), cap(w.Bytes()))
		}

		copy(w.Bytes()[100:], "stored")
		p := make([]byte, 6)
		if _, err := f.ReadAt(p, 100); err != nil || string(p) != "stored" {
			t.Errorf("ReadAt sees %q, %v of a store", p, err)
		}
		write(t, f, 200, "written")
		if got := r.Bytes()[200:207]; string(got) != "written" {
			t.Errorf("map sees %q of a write", got)
		}

		must(t, f.Allocate(3*4096)) // the file grows under the map
		if err := w.Populate(4096, 2*4096); err != nil && !errors.Is(err, errors.ErrUnsupported) {
			t.Errorf("Populate: %v", err)
		}
		if err := w.Populate(100, 0); err != nil {
			t.Errorf("Populate of nothing: %v", err)
		}
		if err := w.Populate(100, 50); err != nil && !errors.Is(err, errors.ErrUnsupported) {
			t.Errorf("Populate of a part of a page: %v", err)
		}
		for _, bad := range [][2]int64{{-1, 5}, {0, -1}, {1 << 20, 1}, {1 << 62, 1 << 62}, {512 << 10, 4096}} {
			if err := w.Populate(bad[0], bad[1]); err == nil {
				t.Errorf("Populate(%d, %d) succeeded", bad[0], bad[1])
			}
		}
		copy(w.Bytes()[2*4096:], "grown")
		if _, err := f.ReadAt(p[:5], 2*4096); err != nil || string(p[:5]) != "grown" {
			t.Errorf("ReadAt sees %q, %v of a store in the grown part", p[:5], err)
		}

		must(t, Sync(f))
		must(t, fsys.Remove(name))
		must(t, f.Close())
		if got := string(r.Bytes()[100:106]); got != "stored" {
			t.Errorf("map reads %q after Close and Remove", got)
		}
		must(t, w.Unmap())
		must(t, r.Unmap())
		if err := r.Unmap(); err == nil {
			t.Error("second Unmap succeeded")
		}
		if r.Bytes() != nil {
			t.Error("Bytes after Unmap")
		}
	})
}

func TestMapRefused(t *testing.T) {
	eachFS(t, func(t *testing.T, fsys FS, dir string) {
		name := filepath.Join(dir, "f")
		write(t, open(t, fsys, name, Create), 0, "abc")
		f := open(t, fsys, name, ReadOnly)
		_, err := f.Map(3, true)
		wantErr(t, err, syscall.EACCES, name)
		for _, n := range []int64{0, -1} {
			if _, err := f.Map(n, false); err == nil {
				t.Errorf("Map(%d) succeeded", n)
			}
		}
		m, err := f.Map(3, false)
		must(t, err)
		if string(m.Bytes()) != "abc" {
			t.Errorf("map reads %q", m.Bytes())
		}
		must(t, m.Unmap())
	})
}

func TestNames(t *testing.T) {
	eachFS(t, func(t *testing.T, fsys FS, dir string) {
		in := func(name string) string { return filepath.Join(dir, name) }
		list := func(d string) (names []string) {
			infos, err := fsys.List(d)
			must(t, err)
			for _, i := range infos {
				names = append(names, i.Name)
			}
			return names
		}
		for _, name := range []string{"b", "a", "c"} {
			write(t, open(t, fsys, in(name), CreateNew), 0, "content of "+name)
		}
		must(t, fsys.Mkdir(in("d")))
		if got := list(dir); !slices.Equal(got, []string{"a", "b", "c", "d"}) {
			t.Errorf("list %q", got)
		}
		a, err := fsys.Stat(in("a"))
		must(t, err)
		if a.Name != "a" || a.Size != 12 || a.IsDir || a.Inode == 0 || a.ModTime.IsZero() {
			t.Errorf("Stat(a) = %+v", a)
		}
		d, err := fsys.Stat(in("d"))
		must(t, err)
		if !d.IsDir || d.Device != a.Device || d.Inode == a.Inode {
			t.Errorf("Stat(d) = %+v beside %+v", d, a)
		}

		must(t, fsys.Rename(in("a"), in("b"))) // replaces
		if got := readAll(t, fsys, in("b")); got != "content of a" {
			t.Errorf("b holds %q", got)
		}
		if b, err := fsys.Stat(in("b")); err != nil || b.Inode != a.Inode {
			t.Errorf("inode %d, %v after rename; was %d", b.Inode, err, a.Inode)
		}
		must(t, fsys.Rename(in("b"), in("d/b")))
		must(t, fsys.Link(in("d/b"), in("linked")))
		for _, links := range []uint64{2, 1} {
			if i, err := fsys.Stat(in("linked")); err != nil || i.Links != links {
				t.Errorf("%d links, %v; want %d", i.Links, err, links)
			}
			if links == 2 {
				must(t, fsys.Remove(in("d/b")))
			}
		}
		if got := readAll(t, fsys, in("linked")); got != "content of a" {
			t.Errorf("link holds %q", got)
		}
		must(t, fsys.SyncDir(dir))

		must(t, fsys.Mkdir(in("d/e")))
		for _, tc := range []struct {
			name string
			err  error
			want error
			path string
		}{
			{"mkdir over something", fsys.Mkdir(in("c")), fs.ErrExist, "c"},
			{"mkdir two levels", fsys.Mkdir(in("x/y")), fs.ErrNotExist, "y"},
			{"remove nothing", fsys.Remove(in("x")), fs.ErrNotExist, "x"},
			{"remove a full directory", fsys.Remove(in("d")), syscall.ENOTEMPTY, "d"},
			{"rename nothing", fsys.Rename(in("x"), in("y")), fs.ErrNotExist, "x"},
			{"rename a file over a directory", fsys.Rename(in("c"), in("d")), fs.ErrExist, "c"},
			{"rename a directory over a file", fsys.Rename(in("d"), in("c")), syscall.ENOTDIR, "d"},
			{"rename a directory into itself", fsys.Rename(in("d"), in("d/e/f")), syscall.EINVAL, "d"},
			{"link nothing", fsys.Link(in("x"), in("y")), fs.ErrNotExist, "x"},
			{"link over something", fsys.Link(in("c"), in("linked")), fs.ErrExist, "linked"},
			{"sync a missing directory", fsys.SyncDir(in("x")), fs.ErrNotExist, "x"},
			{"sync a file as a directory", fsys.SyncDir(in("c")), syscall.ENOTDIR, "c"},
			{"list a file", second(fsys.List(in("c"))), syscall.ENOTDIR, "c"},
			{"stat below a file", second(fsys.Stat(in("c/x"))), syscall.ENOTDIR, "x"},
		} {
			t.Run(tc.name, func(t *testing.T) { wantErr(t, tc.err, tc.want, tc.path) })
		}

		must(t, fsys.Rename(in("c"), in("c")))
		must(t, fsys.RemoveAll(in("nothing")))
		must(t, fsys.RemoveAll(in("d")))
		must(t, fsys.RemoveAll(in("c")))
		if got := list(dir); !slices.Equal(got, []string{"linked"}) {
			t.Errorf("list %q at the end", got)
		}
	})
}

func second[T any](_ T, err error) error { return err }

func TestClosedFile(t *testing.T) {
	eachFS(t, func(t *testing.T, fsys FS, dir string) {
		name := filepath.Join(dir, "f")
		f := open(t, fsys, name, Create)
		must(t, f.Close())
		b := make([]byte, 1)
		for call, err := range map[string]error{
			"ReadAt":   second(f.ReadAt(b, 0)),
			"WriteAt":  second(f.WriteAt(b, 0)),
			"Stat":     second(f.Stat()),
			"Truncate": f.Truncate(0),
			"Allocate": f.Allocate(1),
			"Sync":     Sync(f),
			"Close":    f.Close(),
		} {
			if !errors.Is(err, fs.ErrClosed) {
				t.Errorf("%s: %v", call, err)
			}
		}
		if _, err := f.Map(1, false); err == nil {
			t.Error("Map succeeded")
		}
	})
}

// C045: a held lock is an error at once.
func TestC045_LockIsExclusive(t *testing.T) {
	eachFS(t, func(t *testing.T, fsys FS, dir string) {
		name := filepath.Join(dir, ".lock")
		l, err := fsys.Lock(name)
		must(t, err)
		_, err = fsys.Lock(name)
		wantErr(t, err, ErrLocked, name)
		must(t, l.Close())
		if ok, err := Exists(fsys, name); !ok || err != nil {
			t.Errorf("lock file exists: %v, %v", ok, err)
		}
		l, err = fsys.Lock(name)
		must(t, err)
		must(t, l.Close())
		if err := l.Close(); err == nil {
			t.Error("second Close succeeded")
		}
		_, err = fsys.Lock(filepath.Join(dir, "absent", ".lock"))
		wantErr(t, err, fs.ErrNotExist, ".lock")
	})
}

func TestBootID(t *testing.T) {
	eachFS(t, func(t *testing.T, fsys FS, dir string) {
		id := fsys.BootID()
		if id != fsys.BootID() {
			t.Error("boot id changes")
		}
		if id == [16]byte{} {
			t.Error("boot id is zero")
		}
	})
}

// One goroutine appends through a map, others read what is published, sync,
// and write elsewhere: what the engine does. Under -race this also shows that
// a sync does not count as a reader of the stores it runs beside.
func TestConcurrentUse(t *testing.T) {
	eachFS(t, func(t *testing.T, fsys FS, dir string) {
		const half = 64 << 10
		f := open(t, fsys, filepath.Join(dir, "f"), Create)
		must(t, f.Allocate(2*half))
		m, err := f.Map(2*half, true)
		must(t, err)
		var wg sync.WaitGroup
		wg.Go(func() { // the lower half belongs to this one
			for i := range half {
				m.Bytes()[i] = byte(i)
			}
		})
		wg.Go(func() { // the upper half to this one
			for i := 0; i < half; i += 512 {
				if _, err := f.WriteAt(bytes.Repeat([]byte{byte(i / 512)}, 512), half+int64(i)); err != nil {
					t.Error(err)
				}
			}
		})
		wg.Go(func() {
			for range 50 {
				if err := Sync(f); err != nil {
					t.Error(err)
				}
			}
		})
		wg.Go(func() { // pread beside stores, as a reader in another process
			p := make([]byte, 1000)
			for i := range int64(100) {
				if _, err := f.ReadAt(p, i*1000); err != nil {
					t.Error(err)
				}
				if _, err := f.Stat(); err != nil {
					t.Error(err)
				}
			}
		})
		wg.Wait()
		got := make([]byte, 2*half)
		_, err = f.ReadAt(got, 0)
		must(t, err)
		for i, b := range got {
			want := byte(i)
			if i >= half {
				want = byte((i - half) / 512)
			}
			if b != want {
				t.Fatalf("byte %d is %d; want %d", i, b, want)
			}
		}
		must(t, m.Unmap())
	})
}

func TestWriteFileAtomic(t *testing.T) {
	eachFS(t, func(t *testing.T, fsys FS, dir string) {
		name := filepath.Join(dir, "checkpoint")
		write(t, open(t, fsys, name+".tmp", Create), 0, "a longer leftover of a crash")
		for _, data := range []string{"first", "", "second, longer"} {
			must(t, WriteFileAtomic(fsys, name, []byte(data)))
			if got := readAll(t, fsys, name); got != data {
				t.Errorf("read %q; want %q", got, data)
			}
		}
		if ok, err := Exists(fsys, name+".tmp"); ok || err != nil {
			t.Errorf("temporary file: %v, %v", ok, err)
		}
		if err := WriteFileAtomic(fsys, filepath.Join(dir, "no", "where"), nil); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("in no directory: %v", err)
		}
	})
}

func TestReadFileLimit(t *testing.T) {
	eachFS(t, func(t *testing.T, fsys FS, dir string) {
		name := filepath.Join(dir, "f")
		write(t, open(t, fsys, name, Create), 0, "12345")
		if b, err := ReadFile(fsys, name, 5); string(b) != "12345" || err != nil {
			t.Errorf("at the limit: %q, %v", b, err)
		}
		if b, err := ReadFile(fsys, name, 4); b != nil || err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("past the limit: %q, %v", b, err)
		}
		if _, err := ReadFile(fsys, name+"x", 4); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("absent: %v", err)
		}
	})
}
