package vfs

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"slices"
	"testing"
)

// model is the slow, obvious account of what a power cut may leave: every
// version that a file, and every inode that a name, has had since the last sync
// that covers it.
type model struct {
	t     *testing.T
	seed  uint64
	rng   *rand.Rand
	m     *Mem
	maps  map[uint64]Map
	files map[uint64]*modelFile
	names map[string][]uint64 // inode, 0 for none; the last is what programs see
	trace []string
}

type modelFile struct {
	versions [][]byte // oldest first; the last is what programs see
	f        File     // with a sync in flight, nil if none
	started  int      // index of the version that it covers
}

const mapLength = 8 << 10

// TestRandomHistory: whatever happens, a power cut keeps what was synced, and
// nothing is found that never was.
func TestRandomHistory(t *testing.T) {
	n := uint64(40)
	if testing.Short() {
		n = 10
	}
	for _, seed := range seeds(n) {
		m := &model{
			t: t, seed: seed, rng: newRand(seed), m: newMem(t),
			maps: map[uint64]Map{}, files: map[uint64]*modelFile{}, names: map[string][]uint64{},
		}
		for _, name := range []string{"a", "b", "c"} {
			m.names[name] = []uint64{0}
		}
		for range 120 {
			m.step()
			img := m.m.PowerCut(m.rng)
			m.check(img)
			if m.rng.IntN(15) == 0 {
				m.boot(img)
			}
			if t.Failed() {
				t.Fatalf("-vfs.seed=%d, last steps %q", seed, m.trace[max(0, len(m.trace)-12):])
			}
		}
	}
}

// boot goes on with what the power cut left: from now on that is what was synced.
func (m *model) boot(img *Mem) {
	m.trace = append(m.trace, "boot")
	m.m = img
	clear(m.maps)
	for name := range m.names {
		info, err := img.Stat("/data/" + name)
		m.names[name] = []uint64{info.Inode}
		if err == nil {
			m.files[info.Inode] = &modelFile{versions: [][]byte{[]byte(readAll(m.t, img, "/data/"+name))}}
		}
	}
}

func (m *model) step() {
	name := string("abc"[m.rng.IntN(3)])
	to := string("abc"[m.rng.IntN(3)])
	path, ino := "/data/"+name, last(m.names[name])
	op := m.rng.IntN(14)
	m.trace = append(m.trace, fmt.Sprint(op, " ", name, " ", to))
	switch op {
	case 0: // make
		if ino != 0 {
			return
		}
		f, err := m.m.Open(path, CreateNew)
		must(m.t, err)
		info, err := f.Stat()
		must(m.t, err)
		must(m.t, f.Close())
		m.files[info.Inode] = &modelFile{versions: [][]byte{nil}}
		m.names[name] = append(m.names[name], info.Inode)
		return
	case 1:
		must(m.t, m.m.SyncDir("/data"))
		for n, h := range m.names {
			m.names[n] = h[len(h)-1:]
		}
		return
	case 2:
		m.m.Writeback(m.rng)
		return
	case 3:
		if m.rng.IntN(4) > 0 {
			return
		}
		m.m = m.m.Kill()
		clear(m.maps)
		for _, file := range m.files {
			file.f = nil
		}
		return
	}
	if ino == 0 {
		return
	}
	file := m.files[ino]
	old := last(file.versions)
	switch op {
	case 4:
		must(m.t, m.m.Remove(path))
		m.names[name] = append(m.names[name], 0)
	case 5:
		if to == name {
			return
		}
		must(m.t, m.m.Rename(path, "/data/"+to))
		m.names[to] = append(m.names[to], ino)
		m.names[name] = append(m.names[name], 0)
	case 6: // begin or end a sync
		if file.f == nil {
			f := open(m.t, m.m, path, ReadWrite)
			must(m.t, f.StartSync())
			file.f, file.started = f, len(file.versions)-1
			return
		}
		must(m.t, file.f.FinishSync())
		must(m.t, file.f.Close())
		file.versions = file.versions[file.started:]
		file.f = nil
	case 7, 8:
		m.with(path, func(f File) { must(m.t, Sync(f)) })
		file.versions = [][]byte{old}
		file.started = 0
	case 9:
		n := m.rng.Int64N(mapLength)
		m.with(path, func(f File) { must(m.t, f.Truncate(n)) })
		next := make([]byte, n)
		copy(next, old)
		file.versions = append(file.versions, next)
	case 10:
		n := m.rng.Int64N(mapLength)
		m.with(path, func(f File) { must(m.t, f.Allocate(n)) })
		next := make([]byte, max(n, int64(len(old))))
		copy(next, old)
		file.versions = append(file.versions, next)
	case 11, 12: // write
		off := m.rng.IntN(mapLength)
		data := m.data(min(1+m.rng.IntN(2000), mapLength-off))
		m.with(path, func(f File) {
			_, err := f.WriteAt(data, int64(off))
			must(m.t, err)
		})
		next := make([]byte, max(off+len(data), len(old)))
		copy(next, old)
		copy(next[off:], data)
		file.versions = append(file.versions, next)
	case 13: // map, store, perhaps behind the end, perhaps unmap
		mm := m.maps[ino]
		if mm == nil {
			m.with(path, func(f File) {
				var err error
				mm, err = f.Map(mapLength, true)
				must(m.t, err)
			})
			m.maps[ino] = mm
		}
		off := m.rng.IntN(mapLength)
		data := m.data(min(1+m.rng.IntN(2000), mapLength-off))
		copy(mm.Bytes()[off:], data)
		next := slices.Clone(old)
		if off < len(next) {
			copy(next[off:], data)
		}
		file.versions = append(file.versions, next)
		if m.rng.IntN(3) == 0 {
			must(m.t, mm.Unmap())
			delete(m.maps, ino)
		}
	}
	m.with("/data/"+m.nameOf(ino), func(f File) {
		got := make([]byte, mapLength+1)
		n, _ := f.ReadAt(got, 0)
		if want := last(file.versions); !bytes.Equal(got[:n], want) {
			m.t.Errorf("program reads %d bytes that are not the %d written", n, len(want))
		}
	})
}

func last[T any](s []T) T { return s[len(s)-1] }

func (m *model) nameOf(ino uint64) string {
	for _, name := range []string{"a", "b", "c"} {
		if last(m.names[name]) == ino {
			return name
		}
	}
	return ""
}

func (m *model) with(path string, do func(f File)) {
	f, err := m.m.Open(path, ReadWrite)
	if path == "/data/" { // removed in this step
		return
	}
	must(m.t, err)
	do(f)
	must(m.t, f.Close())
}

// data is random without zeros, which would hide what was not written.
func (m *model) data(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(1 + m.rng.IntN(255))
	}
	return b
}

func (m *model) check(img *Mem) {
	blocks := int64(0)
	defer func() {
		if got := img.Used(); got > blocks*blockSize {
			m.t.Errorf("%d bytes used; files end in %d blocks", got, blocks)
		}
	}()
	for name, history := range m.names {
		info, err := img.Stat("/data/" + name)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			m.t.Error(err)
		}
		if !slices.Contains(history, info.Inode) {
			m.t.Errorf("%s is inode %d; since the last sync it was %v", name, info.Inode, history)
		}
		if info.Inode == 0 {
			continue
		}
		got := []byte(readAll(m.t, img, "/data/"+name))
		versions := m.files[info.Inode].versions
		blocks += roundUp(info.Size, blockSize) / blockSize
		if !slices.ContainsFunc(versions, func(v []byte) bool { return len(v) == len(got) }) {
			m.t.Errorf("%s has %d bytes, as no version since the last sync", name, len(got))
		}
		for i, b := range got {
			if !slices.ContainsFunc(versions, func(v []byte) bool { return i < len(v) && v[i] == b || i >= len(v) && b == 0 }) {
				m.t.Errorf("%s: byte %d is %#x, as in none of %d versions since the last sync", name, i, b, len(versions))
				break
			}
		}
	}
}

// BenchmarkMemSync is what a crash search pays per sync: one changed sector of
// a file of 1 MiB.
func BenchmarkMemSync(b *testing.B) {
	for _, mapped := range []bool{false, true} {
		b.Run(fmt.Sprintf("mapped=%v", mapped), func(b *testing.B) {
			m := NewMem(MemOptions{})
			f, err := m.Open("/f", Create)
			must(b, err)
			must(b, f.Allocate(1<<20))
			if mapped {
				_, err := f.Map(1<<20, true)
				must(b, err)
			}
			data := make([]byte, 512)
			for i := 0; b.Loop(); i++ {
				data[0]++
				_, err := f.WriteAt(data, int64(i%2048)*512)
				must(b, errors.Join(err, Sync(f)))
			}
		})
	}
	b.Run("power cut", func(b *testing.B) {
		m := NewMem(MemOptions{})
		f, err := m.Open("/f", Create)
		must(b, err)
		must(b, f.Allocate(1<<20))
		must(b, errors.Join(Sync(f), m.SyncDir("/")))
		_, err = f.WriteAt(make([]byte, 64<<10), 0)
		must(b, err)
		rng := newRand(1)
		for b.Loop() {
			m.PowerCut(rng)
		}
	})
}
