package vfs

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"path"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

var seedFlag = flag.Uint64("vfs.seed", 0, "run the random tests with this seed only")

// seeds gives n seeds, or the one of the flag; a failure names its seed.
func seeds(n uint64) []uint64 {
	if *seedFlag != 0 {
		return []uint64{*seedFlag}
	}
	var s []uint64
	for i := range n {
		s = append(s, i+1)
	}
	return s
}

func newRand(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 0)) }

// durable makes a synced file with a durable name.
func durable(t testing.TB, m *Mem, name, data string) File {
	f := open(t, m, name, Create)
	write(t, f, 0, data)
	must(t, Sync(f))
	must(t, m.SyncDir(path.Dir(name)))
	return f
}

// outcomes returns how often each result was seen in n power cuts.
func outcomes(m *Mem, n int, result func(img *Mem) string) map[string]int {
	seen := make(map[string]int)
	for seed := range uint64(n) {
		seen[result(m.PowerCut(newRand(seed)))]++
	}
	return seen
}

func checkOutcomes(t *testing.T, got map[string]int, want ...string) {
	t.Helper()
	slices.Sort(want)
	if keys := slices.Sorted(maps.Keys(got)); !slices.Equal(keys, want) {
		t.Errorf("outcomes %v; want each of %q", got, want)
	}
}

func repeated(sectors ...string) (s string) {
	for _, c := range sectors {
		s += strings.Repeat(c, sectorSize/len(c))
	}
	return s
}

// describe says for each sector of what bytes it consists.
func describe(t testing.TB, m *Mem, name string) string {
	f, err := m.Open(name, ReadOnly)
	if errors.Is(err, fs.ErrNotExist) {
		return "absent"
	}
	must(t, err)
	defer f.Close()
	var out []string
	for at, n := int64(0), size(t, f); at < n; at += sectorSize {
		b := make([]byte, min(sectorSize, n-at))
		_, err := f.ReadAt(b, at)
		must(t, err)
		out = append(out, strings.ReplaceAll(string(slices.Compact(b)), "\x00", "0"))
	}
	return strings.Join(out, " ")
}

func TestPowerCutSectors(t *testing.T) {
	const name = "/data/f"
	for _, tc := range []struct {
		name string
		do   func(t *testing.T, m *Mem) // from a durable file of three sectors "a"
		want []string
	}{
		{"synced", func(t *testing.T, m *Mem) {
			f := open(t, m, name, ReadWrite)
			write(t, f, 512, repeated("b"))
			must(t, Sync(f))
		}, []string{"a b a"}},
		{"two writes are independent and tear", func(t *testing.T, m *Mem) {
			f := open(t, m, name, ReadWrite)
			write(t, f, 0, repeated("b", "b"))
		}, []string{"a a a", "b a a", "a b a", "b b a", "ba a a", "a ba a", "ba ba a", "b ba a", "ba b a"}},
		{"store through a map", func(t *testing.T, m *Mem) {
			f := open(t, m, name, ReadWrite)
			mm, err := f.Map(3*512, true)
			must(t, err)
			copy(mm.Bytes()[1024:], repeated("b"))
		}, []string{"a a a", "a a b", "a a ba"}},
		{"store through a map that is gone", func(t *testing.T, m *Mem) {
			f := open(t, m, name, ReadWrite)
			mm, err := f.Map(3*512, true)
			must(t, err)
			copy(mm.Bytes()[1024:], repeated("b"))
			must(t, mm.Unmap())
			must(t, Sync(f))
		}, []string{"a a b"}},
		{"growth: size and bytes apart", func(t *testing.T, m *Mem) {
			write(t, open(t, m, name, ReadWrite), 3*512, repeated("b"))
		}, []string{"a a a", "a a a 0", "a a a b", "a a a b0"}},
		{"allocation", func(t *testing.T, m *Mem) {
			must(t, open(t, m, name, ReadWrite).Allocate(4*512))
		}, []string{"a a a", "a a a 0"}},
		{"cut that is not synced comes back, whole or in part", func(t *testing.T, m *Mem) {
			f := open(t, m, name, ReadWrite)
			must(t, f.Truncate(512))
		}, []string{"a", "a a a", "a 0 a", "a a 0", "a 0 0", "a 0a a", "a a 0a", "a 0a 0", "a 0 0a", "a 0a 0a"}},
		{"cut that is synced does not", func(t *testing.T, m *Mem) {
			f := open(t, m, name, ReadWrite)
			must(t, f.Truncate(512))
			must(t, Sync(f))
			must(t, f.Truncate(1024))
		}, []string{"a", "a 0"}},
		{"sync in flight", func(t *testing.T, m *Mem) {
			f := open(t, m, name, ReadWrite)
			write(t, f, 0, repeated("b"))
			must(t, f.StartSync())
			write(t, f, 0, repeated("c"))
		}, []string{"a a a", "b a a", "c a a", "ba a a", "ca a a"}},
		{"sync finished, the write behind its start was not covered", func(t *testing.T, m *Mem) {
			f := open(t, m, name, ReadWrite)
			write(t, f, 0, repeated("b"))
			must(t, f.StartSync())
			write(t, f, 0, repeated("c"))
			must(t, f.FinishSync())
		}, []string{"b a a", "c a a", "cb a a"}},
		{"sync of another handle", func(t *testing.T, m *Mem) {
			write(t, open(t, m, name, ReadWrite), 0, repeated("b"))
			must(t, Sync(open(t, m, name, ReadOnly)))
		}, []string{"b a a"}},
		{"older sync finished last", func(t *testing.T, m *Mem) {
			f, g := open(t, m, name, ReadWrite), open(t, m, name, ReadWrite)
			write(t, f, 0, repeated("b"))
			must(t, f.StartSync())
			write(t, f, 0, repeated("c"))
			must(t, g.StartSync())
			must(t, g.FinishSync())
			must(t, f.FinishSync())
		}, []string{"c a a"}},
		{"sync abandoned, next one covers all", func(t *testing.T, m *Mem) {
			f := open(t, m, name, ReadWrite)
			write(t, f, 0, repeated("b"))
			must(t, f.StartSync())
			must(t, f.Close())
			must(t, Sync(open(t, m, name, ReadWrite)))
		}, []string{"b a a"}},
		{"store behind the end does not exist", func(t *testing.T, m *Mem) {
			f := open(t, m, name, ReadWrite)
			must(t, f.Truncate(3*512-100))
			mm, err := f.Map(8*512, true)
			must(t, err)
			copy(mm.Bytes()[3*512-100:], repeated("z", "z", "z"))
			must(t, Sync(f))
			must(t, f.Truncate(4*512))
			must(t, Sync(f))
		}, []string{"a a a0 0"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			m := newMem(t)
			durable(t, m, name, repeated("a", "a", "a"))
			tc.do(t, m)
			checkOutcomes(t, outcomes(m, 1500, func(img *Mem) string { return describe(t, img, name) }), tc.want...)
		})
	}
}

func TestPowerCutNames(t *testing.T) {
	// /data/old is durable and holds "old".
	for _, tc := range []struct {
		name string
		do   func(t *testing.T, m *Mem)
		want []string // list of /data with contents
	}{
		{"created, synced, name not durable (C019)", func(t *testing.T, m *Mem) {
			f := open(t, m, "/data/new", Create)
			write(t, f, 0, "x")
			must(t, Sync(f))
		}, []string{"old=old", "new=x old=old"}},
		{"created, name durable, bytes not", func(t *testing.T, m *Mem) {
			write(t, open(t, m, "/data/new", Create), 0, "x")
			must(t, m.SyncDir("/data"))
		}, []string{"new= old=old", "new=x old=old", "new=\x00 old=old"}},
		{"removed", func(t *testing.T, m *Mem) {
			must(t, m.Remove("/data/old"))
		}, []string{"", "old=old"}},
		{"renamed: never both, never neither", func(t *testing.T, m *Mem) {
			must(t, m.Rename("/data/old", "/data/new"))
		}, []string{"old=old", "new=old"}},
		{"renamed, and another one made in its place", func(t *testing.T, m *Mem) {
			must(t, m.Rename("/data/old", "/data/new"))
			f := open(t, m, "/data/old", CreateNew)
			write(t, f, 0, "x")
			must(t, Sync(f))
		}, []string{"old=old", "new=old", "new=old old=x"}},
		{"replaced by rename", func(t *testing.T, m *Mem) {
			f := open(t, m, "/data/tmp", Create)
			write(t, f, 0, "x")
			must(t, Sync(f))
			must(t, m.Rename("/data/tmp", "/data/old"))
		}, []string{"old=old", "old=old tmp=x", "old=x"}},
		{"written atomically", func(t *testing.T, m *Mem) {
			must(t, WriteFileAtomic(m, "/data/old", []byte("x")))
		}, []string{"old=x"}},
		{"linked", func(t *testing.T, m *Mem) {
			must(t, m.Link("/data/old", "/data/second"))
		}, []string{"old=old", "old=old second=old"}},
		{"same name twice stays in order", func(t *testing.T, m *Mem) {
			must(t, m.Remove("/data/old"))
			f := open(t, m, "/data/old", CreateNew)
			write(t, f, 0, "x")
			must(t, Sync(f))
			must(t, m.Remove("/data/old"))
		}, []string{"", "old=old", "old=x"}},
		{"moved to a new directory, target synced", func(t *testing.T, m *Mem) {
			must(t, m.Mkdir("/data/d"))
			must(t, m.SyncDir("/data"))
			must(t, m.Rename("/data/old", "/data/d/old"))
			must(t, m.SyncDir("/data/d"))
		}, []string{"d/old=old"}},
		{"made and moved, only the target synced", func(t *testing.T, m *Mem) {
			must(t, m.Mkdir("/data/d"))
			must(t, m.SyncDir("/data"))
			f := open(t, m, "/data/new", Create)
			write(t, f, 0, "x")
			must(t, Sync(f))
			must(t, m.Rename("/data/new", "/data/d/new"))
			must(t, m.SyncDir("/data/d"))
		}, []string{"d/new=x old=old"}},
		{"file in a new directory whose name is not durable", func(t *testing.T, m *Mem) {
			must(t, m.Mkdir("/data/d"))
			durable(t, m, "/data/d/f", "x")
		}, []string{"old=old", "d/f=x old=old"}},
		{"directory removed with what is in it", func(t *testing.T, m *Mem) {
			must(t, m.Mkdir("/data/d"))
			must(t, m.SyncDir("/data"))
			durable(t, m, "/data/d/f", "x")
			must(t, m.RemoveAll("/data/d"))
			must(t, m.SyncDir("/data"))
		}, []string{"old=old"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			m := newMem(t)
			durable(t, m, "/data/old", "old")
			tc.do(t, m)
			checkOutcomes(t, outcomes(m, 1000, func(img *Mem) string { return strings.Join(tree(t, img, "/data", ""), " ") }), tc.want...)
		})
	}
}

func tree(t testing.TB, fsys FS, dir, prefix string) (files []string) {
	infos, err := fsys.List(dir)
	must(t, err)
	for _, i := range infos {
		if i.IsDir {
			files = append(files, tree(t, fsys, path.Join(dir, i.Name), prefix+i.Name+"/")...)
		} else {
			files = append(files, prefix+i.Name+"="+readAll(t, fsys, path.Join(dir, i.Name)))
		}
	}
	return files
}

// A dropped directory and a dropped file free their blocks; a file that comes
// back has its own.
func TestPowerCutSpace(t *testing.T) {
	m := NewMem(MemOptions{Capacity: 8 * blockSize})
	f := durable(t, m, "/f", "")
	must(t, f.Allocate(4*blockSize))
	must(t, Sync(f))
	must(t, f.Close())
	must(t, m.Remove("/f"))
	if m.Used() != 0 {
		t.Errorf("%d bytes used after Remove", m.Used())
	}
	got := outcomes(m, 200, func(img *Mem) string { return fmt.Sprint(describe(t, img, "/f") == "absent", img.Used()) })
	checkOutcomes(t, got, "true 0", fmt.Sprint("false ", 4*blockSize))
}

func TestCapacity(t *testing.T) {
	m := NewMem(MemOptions{Capacity: 4 * blockSize})
	f, g := open(t, m, "/f", Create), open(t, m, "/g", Create)
	used := func(blocks int64) {
		t.Helper()
		if m.Used() != blocks*blockSize {
			t.Errorf("%d bytes used; want %d blocks", m.Used(), blocks)
		}
	}
	must(t, f.Allocate(2*blockSize))
	used(2)
	wantErr(t, g.Allocate(3*blockSize), syscall.ENOSPC, "/g")
	if size(t, g) != 0 {
		t.Errorf("failed Allocate left %d bytes", size(t, g))
	}
	used(2)

	// A write takes what fits.
	n, err := g.WriteAt(bytes.Repeat([]byte("x"), 3*blockSize), 100)
	if n != 2*blockSize-100 || size(t, g) != 2*blockSize {
		t.Errorf("WriteAt wrote %d, size %d", n, size(t, g))
	}
	wantErr(t, err, syscall.ENOSPC, "/g")
	used(4)

	// A hole costs nothing until it is written.
	must(t, f.Truncate(100*blockSize))
	_, err = f.WriteAt([]byte("x"), 50*blockSize)
	wantErr(t, err, syscall.ENOSPC, "/f")
	write(t, f, 0, "overwriting what has blocks still works")

	// Unlinked, but open: the space is back with the last user.
	mm, err := g.Map(10, false)
	must(t, err)
	must(t, m.Remove("/g"))
	must(t, g.Close())
	used(4)
	must(t, mm.Unmap())
	used(2)
	write(t, f, 50*blockSize, "x")
	used(3)
	must(t, f.Truncate(blockSize+1))
	used(2)

	m.SetCapacity(100 * blockSize)
	must(t, f.Allocate(50*blockSize))
	used(50)
	if got := m.Clone().Used(); got != m.Used() {
		t.Errorf("clone uses %d bytes; want %d", got, m.Used())
	}
}

func TestMapStoreIntoHole(t *testing.T) {
	m := NewMem(MemOptions{Capacity: 4 * blockSize})
	f := open(t, m, "/f", Create)
	must(t, f.Truncate(10*blockSize))
	mm, err := f.Map(10*blockSize, true)
	must(t, err)
	mm.Bytes()[0] = 1
	must(t, Sync(f))
	if m.Used() != blockSize {
		t.Errorf("%d bytes used; want one block", m.Used())
	}
	clear(mm.Bytes()[blockSize:]) // zeros in a hole are no difference
	must(t, Sync(f))
	for i := range 4 {
		mm.Bytes()[blockSize*(1+i)] = 1
	}
	mustPanic(t, "SIGBUS", func() { _ = Sync(f) })
}

func TestMapMustNotMove(t *testing.T) {
	m := newMem(t)
	f := open(t, m, "/f", Create)
	write(t, f, 0, "x")
	mm, err := f.Map(4*blockSize, true)
	must(t, err)
	must(t, f.Allocate(4*blockSize)) // within the reserve
	mustPanic(t, "map the full length first", func() { _ = f.Allocate(1 << 20) })
	mustPanic(t, "map the full length first", func() { _, _ = f.WriteAt([]byte("x"), 1<<20) })
	if _, err := f.Stat(); err != nil {
		t.Errorf("after a panic: %v", err) // no lock is left behind
	}

	old := mm.Bytes()
	must(t, mm.Unmap())
	if old[0] != 0xDB || readAll(t, m, "/f")[0] != 'x' {
		t.Errorf("after Unmap the slice reads %q, the file %q", old[0], readAll(t, m, "/f")[:1])
	}
	must(t, f.Allocate(1<<20))
}

func mustPanic(t *testing.T, want string, f func()) {
	t.Helper()
	defer func() {
		t.Helper()
		if r := fmt.Sprint(recover()); !strings.Contains(r, want) {
			t.Errorf("panic %q; want one with %q", r, want)
		}
	}()
	f()
}

func TestFileTooLarge(t *testing.T) {
	m := newMem(t)
	f := open(t, m, "/f", Create)
	for _, err := range []error{
		f.Truncate(1 << 62), f.Allocate(1 << 62), second(f.WriteAt([]byte("x"), 1<<62)),
		second(f.WriteAt([]byte("xy"), 1<<63-1)), second(f.Map(1<<62, true)),
	} {
		wantErr(t, err, syscall.EFBIG, "/f")
	}
}

// Scenario F1: a killed process leaves everything it wrote.
func TestKill(t *testing.T) {
	m := newMem(t)
	f := durable(t, m, "/data/f", repeated("a"))
	l, err := m.Lock("/data/.lock")
	must(t, err)
	mm, err := f.Map(blockSize, true)
	must(t, err)
	write(t, f, 0, "unsynced")
	must(t, f.Allocate(blockSize))
	copy(mm.Bytes()[2000:], "stored")
	write(t, open(t, m, "/data/new", Create), 0, "x")
	must(t, m.Rename("/data/new", "/data/newer"))
	gone := open(t, m, "/data/gone", Create)
	write(t, gone, 0, "x")
	must(t, m.Remove("/data/gone"))

	before := tree(t, m, "/data", "")
	info, err := f.Stat()
	must(t, err)
	boot := m.BootID()
	next := m.Kill()

	if got := tree(t, next, "/data", ""); !slices.Equal(got, before) {
		t.Errorf("after the kill %q; want %q", got, before)
	}
	if got, err := next.Stat("/data/f"); err != nil || got.Size != info.Size || got.Inode != info.Inode ||
		got.Device != info.Device || !got.ModTime.Equal(info.ModTime) {
		t.Errorf("after the kill %+v, %v; want %+v", got, err, info)
	}
	if next.BootID() != boot {
		t.Error("boot id changed")
	}
	if next.Used() != 3*blockSize-blockSize { // f and newer
		t.Errorf("%d bytes used", next.Used())
	}
	l2, err := next.Lock("/data/.lock")
	must(t, err)
	defer l2.Close()

	// The old one is dead, its memory is its own.
	copy(mm.Bytes(), "scribble")
	if got := readAll(t, next, "/data/f")[:8]; got != "unsynced" {
		t.Errorf("the image shares memory with a dead map: %q", got)
	}
	b := make([]byte, 1)
	for call, err := range map[string]error{
		"Open": second(m.Open("/data/f", ReadOnly)), "Create": second(m.Open("/data/x", Create)),
		"Stat": second(m.Stat("/data")), "List": second(m.List("/data")), "Mkdir": m.Mkdir("/data/d"),
		"Remove": m.Remove("/data/f"), "RemoveAll": m.RemoveAll("/data/f"), "Rename": m.Rename("/data/f", "/data/g"),
		"Link": m.Link("/data/f", "/data/g"), "SyncDir": m.SyncDir("/data"), "Lock": second(m.Lock("/data/l")),
		"ReadAt": second(f.ReadAt(b, 0)), "WriteAt": second(f.WriteAt(b, 0)), "File.Stat": second(f.Stat()),
		"Truncate": f.Truncate(0), "Allocate": f.Allocate(1), "Map": second(f.Map(1, false)),
		"StartSync": f.StartSync(), "FinishSync": f.FinishSync(), "Close": f.Close(),
		"Populate": mm.Populate(0, 1), "Unmap": mm.Unmap(), "Unlock": l.Close(),
	} {
		if !errors.Is(err, ErrDead) {
			t.Errorf("%s on the dead file system: %v", call, err)
		}
	}

	// What was not durable before the kill is not durable after it.
	checkOutcomes(t, outcomes(next, 2000, func(img *Mem) string {
		_, err := img.Stat("/data/newer")
		return fmt.Sprint(err == nil, " ", strings.HasPrefix(describe(t, img, "/data/f"), "a"))
	}), "false false", "false true", "true false", "true true")
	g := open(t, next, "/data/f", ReadOnly)
	must(t, Sync(g)) // without a map or a write in this life
	checkOutcomes(t, outcomes(next, 200, func(img *Mem) string {
		return readAll(t, img, "/data/f")[:8] + readAll(t, img, "/data/f")[2000:2006]
	}), "unsyncedstored")
}

// TestBlank: an empty disk in the same machine: the old one is dead, and the boot goes
// on.
func TestBlank(t *testing.T) {
	m := NewMem(MemOptions{Seed: 5}).PowerCut(rand.New(rand.NewPCG(1, 1)))
	if err := WriteFileAtomic(m, "/a", []byte("x")); err != nil {
		t.Fatal(err)
	}
	b := m.Blank()
	if b.BootID() != m.BootID() {
		t.Error("another boot")
	}
	if _, err := m.List("/"); !errors.Is(err, ErrDead) {
		t.Errorf("the old disk: %v", err)
	}
	if list, err := b.List("/"); err != nil || len(list) != 0 {
		t.Errorf("the new disk has %v, %v", list, err)
	}
	if err := WriteFileAtomic(b, "/a", []byte("y")); err != nil {
		t.Error(err)
	}
}

func TestPowerCutIsDeterministic(t *testing.T) {
	m := newMem(t)
	rng := newRand(7)
	for i := range 20 {
		f := open(t, m, fmt.Sprintf("/data/%d", i), Create)
		write(t, f, 0, repeated(strings.Repeat("abcdefgh"[i%8:], 1)[:1], "x", "y"))
		if rng.IntN(2) == 0 {
			must(t, Sync(f))
			must(t, m.SyncDir("/data"))
		}
	}
	state := func(img *Mem) string { return fmt.Sprint(tree(t, img, "/data", ""), img.BootID(), img.Used()) }
	different := false
	for seed := range uint64(50) {
		a, b := state(m.PowerCut(newRand(seed))), state(m.Clone().PowerCut(newRand(seed)))
		if a != b {
			t.Fatalf("seed %d gives two images", seed)
		}
		different = different || a != state(m.PowerCut(newRand(seed+1)))
	}
	if !different {
		t.Error("all seeds give the same image")
	}
}

func TestBootIDs(t *testing.T) {
	m := NewMem(MemOptions{Seed: 5})
	seen := map[[16]byte]bool{}
	for range 10 {
		if seen[m.BootID()] {
			t.Fatal("boot id came back")
		}
		seen[m.BootID()] = true
		m = m.PowerCut(newRand(1)) // the same rng each time
	}
	if NewMem(MemOptions{Seed: 5}).BootID() == NewMem(MemOptions{Seed: 6}).BootID() {
		t.Error("seed does not matter")
	}
}

// Writeback lets a state between two syncs reach the disk, and never takes back
// what a sync promised.
func TestWriteback(t *testing.T) {
	seen := make(map[string]int)
	for seed := range uint64(600) {
		rng := newRand(seed)
		m := newMem(t)
		f := durable(t, m, "/data/f", repeated("a"))
		write(t, f, 0, repeated("b"))
		write(t, open(t, m, "/data/g", Create), 0, "x")
		m.Writeback(rng)
		write(t, f, 0, repeated("c"))
		img := m.PowerCut(rng)
		seen[describe(t, img, "/data/f")]++
		seen["g "+describe(t, img, "/data/g")]++
	}
	checkOutcomes(t, seen, "a", "b", "c", "ca", "cb", "g absent", "g ", "g x", "g 0")
}

// A sync that failed loses what it covered, though everything can still be
// read and the next sync succeeds; a new file is the way out (replication R8).
func TestFailedSyncLoses(t *testing.T) {
	const eio = syscall.EIO
	setup := func(t *testing.T) (*Mem, *Faulty, File) {
		m := newMem(t)
		durable(t, m, "/data/f", repeated("a", "a"))
		faulty := NewFaulty(m, Rule{Ops: OpFinishSync, Count: 1, Err: eio})
		f := open(t, faulty, "/data/f", ReadWrite)
		write(t, f, 0, repeated("b"))
		wantErr(t, Sync(f), eio, "/data/f")
		must(t, Sync(f)) // "success"
		if got := describe(t, m, "/data/f"); got != "b a" {
			t.Errorf("program reads %q", got)
		}
		return m, faulty, f
	}
	result := func(m *Mem, name string) map[string]int {
		return outcomes(m, 1000, func(img *Mem) string { return describe(t, img, name) })
	}
	t.Run("second sync lies", func(t *testing.T) {
		m, _, _ := setup(t)
		checkOutcomes(t, result(m, "/data/f"), "a a", "b a", "ba a")
	})
	t.Run("so it does in the next life", func(t *testing.T) {
		m, _, _ := setup(t)
		next := m.Kill()
		must(t, Sync(open(t, next, "/data/f", ReadWrite)))
		checkOutcomes(t, result(next, "/data/f"), "a a", "b a", "ba a")
	})
	t.Run("the same bytes once more do not help", func(t *testing.T) {
		m, _, f := setup(t)
		write(t, f, 0, repeated("b"))
		must(t, Sync(f))
		checkOutcomes(t, result(m, "/data/f"), "a a", "b a", "ba a")
	})
	t.Run("writeback leaves them behind", func(t *testing.T) {
		m, _, _ := setup(t)
		for seed := range uint64(20) {
			m.Writeback(newRand(seed))
		}
		checkOutcomes(t, result(m, "/data/f"), "a a", "b a", "ba a")
	})
	t.Run("other bytes do", func(t *testing.T) {
		m, _, f := setup(t)
		write(t, f, 0, repeated("c"))
		must(t, Sync(f))
		checkOutcomes(t, result(m, "/data/f"), "c a")
	})
	t.Run("a copy does", func(t *testing.T) {
		m, _, _ := setup(t)
		durable(t, m, "/data/copy", readAll(t, m, "/data/f"))
		checkOutcomes(t, result(m, "/data/copy"), "b a")
	})
}

func TestSyncMisuse(t *testing.T) {
	m := newMem(t)
	f := open(t, m, "/f", Create)
	if err := f.FinishSync(); err == nil {
		t.Error("FinishSync without StartSync succeeded")
	}
	must(t, f.StartSync())
	if err := f.StartSync(); err == nil {
		t.Error("second StartSync succeeded")
	}
	must(t, f.FinishSync())
	must(t, Sync(f))
}

// The hook sees every state between two disk operations, and may take images.
func TestHook(t *testing.T) {
	m := newMem(t)
	var got []string
	m.SetHook(func(op Op, name string, done bool) {
		_ = m.PowerCut(newRand(1))
		if _, err := m.Clone().Stat(name); op == OpRename && (err == nil) != done {
			t.Errorf("done %v: %v", done, err)
		}
		if done {
			got = append(got, op.String()+" "+name)
		}
	})
	before := m.Ops()
	must(t, m.Mkdir("/data/d"))
	f := open(t, m, "/data/d/f", Create)
	write(t, f, 0, "x")
	must(t, f.Allocate(10))
	must(t, f.Truncate(5))
	must(t, Sync(f))
	must(t, m.Link("/data/d/f", "/data/g"))
	must(t, m.Rename("/data/g", "/data/h"))
	must(t, m.SyncDir("/data"))
	l, err := m.Lock("/data/l")
	must(t, err)
	must(t, l.Close())
	_ = readAll(t, m, "/data/h")
	must(t, m.RemoveAll("/data/d"))
	want := []string{
		"mkdir /data/d", "create /data/d/f", "write /data/d/f", "allocate /data/d/f", "truncate /data/d/f",
		"start sync /data/d/f", "finish sync /data/d/f", "link /data/g", "rename /data/h", "sync dir /data",
		"lock /data/l", "remove /data/d/f", "remove /data/d",
	}
	if !slices.Equal(got, want) {
		t.Errorf("hook saw\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if n := m.Ops() - before; n != int64(len(want)) {
		t.Errorf("%d operations; want %d", n, len(want))
	}

	// Killed before an operation: it does not happen, and the hook is not
	// called for a dead one.
	var next *Mem
	calls := 0
	m.SetHook(func(Op, string, bool) {
		calls++
		next = m.Kill()
	})
	wantErr(t, m.Mkdir("/data/e"), ErrDead, "/data/e")
	if _, err := next.Stat("/data/e"); !errors.Is(err, fs.ErrNotExist) || calls != 1 {
		t.Errorf("after a kill before mkdir: %v, %d calls", err, calls)
	}
	m.SetHook(nil)
}

// Images are taken while other goroutines store, write, sync and rename.
func TestImagesBesideWriters(t *testing.T) {
	m := newMem(t)
	f := durable(t, m, "/data/f", "")
	must(t, f.Allocate(64<<10))
	mm, err := f.Map(64<<10, true)
	must(t, err)
	var stop atomic.Bool
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := 0; !stop.Load(); i++ {
			mm.Bytes()[i%(64<<10)]++
		}
	})
	wg.Go(func() {
		for i := 0; !stop.Load(); i++ {
			if err := errors.Join(WriteFileAtomic(m, "/data/c", []byte{byte(i)}), Sync(f)); err != nil {
				t.Error(err)
				return
			}
		}
	})
	for seed := range uint64(30) {
		rng := newRand(seed)
		m.Writeback(rng)
		for _, img := range []*Mem{m.Clone(), m.PowerCut(rng)} {
			if got := len(readAll(t, img, "/data/f")); got != 64<<10 && got != 0 {
				t.Errorf("image has %d bytes", got)
			}
		}
	}
	stop.Store(true)
	wg.Wait()
	must(t, mm.Unmap())
}

func TestClock(t *testing.T) {
	now := time.Unix(1000, 0)
	m := NewMem(MemOptions{Clock: func() time.Time { now = now.Add(time.Second); return now }})
	f := open(t, m, "/f", Create)
	mtime := func(m *Mem) time.Time {
		info, err := m.Stat("/f")
		must(t, err)
		return info.ModTime
	}
	last := mtime(m)
	later := func(what string, changes bool) {
		t.Helper()
		if got := mtime(m); got.After(last) != changes {
			t.Errorf("%s: modified %v, before %v", what, got, last)
		}
		last = mtime(m)
	}
	write(t, f, 0, "x")
	later("write", true)
	must(t, Sync(f))
	later("sync", false)
	must(t, f.Truncate(512))
	later("truncate", true)
	must(t, Sync(f))
	mm, err := f.Map(512, true)
	must(t, err)
	must(t, Sync(f))
	later("map", false)
	mm.Bytes()[0] = 1
	must(t, Sync(f))
	later("store, seen by the sync", true)
	must(t, m.SyncDir("/"))
	synced := last
	write(t, f, 0, "y")
	seen := outcomes(m, 200, func(img *Mem) string { return fmt.Sprint(mtime(img).Equal(synced), mtime(img).Equal(mtime(m))) })
	checkOutcomes(t, seen, "true false", "false true")
}
