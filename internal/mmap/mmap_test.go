package mmap

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

func file(t *testing.T, size int64) *os.File {
	if !supported {
		t.Skip("not supported")
	}
	f, err := os.Create(filepath.Join(t.TempDir(), "f"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	if err := f.Truncate(size); err != nil {
		t.Fatal(err)
	}
	return f
}

// mapsOf counts the entries of the process map list that name the file.
func mapsOf(t *testing.T, name string) int {
	b, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Skip(err)
	}
	return strings.Count(string(b), name)
}

func TestMapCountsAndUnmaps(t *testing.T) {
	f := file(t, 10_000)
	before := Count()
	var maps []*Mapping
	for range 3 {
		m, err := Map(f, 10_000, true)
		if err != nil {
			t.Fatal(err)
		}
		maps = append(maps, m)
	}
	if got := Count() - before; got != 3 {
		t.Errorf("count rose by %d; want 3", got)
	}
	copy(maps[0].Bytes()[9000:], "shared")
	if got := string(maps[2].Bytes()[9000:9006]); got != "shared" {
		t.Errorf("another map reads %q", got)
	}
	b := make([]byte, 6)
	if _, err := f.ReadAt(b, 9000); err != nil || string(b) != "shared" {
		t.Errorf("the file reads %q, %v", b, err)
	}
	for _, m := range maps {
		if err := m.Unmap(); err != nil {
			t.Error(err)
		}
		if m.Bytes() != nil {
			t.Error("bytes after Unmap")
		}
		if err := m.Unmap(); err == nil {
			t.Error("second Unmap succeeded")
		}
	}
	if Count() != before {
		t.Errorf("count is %d; was %d", Count(), before)
	}
	if runtime.GOOS == "linux" {
		if n := mapsOf(t, f.Name()); n != 0 {
			t.Errorf("the kernel still has %d maps", n)
		}
	}
}

func TestLimit(t *testing.T) {
	f := file(t, 4096)
	if Limit() < 1000 || Limit() > 1<<40 {
		t.Errorf("default limit %d", Limit())
	}
	defer SetLimit(0)
	SetLimit(Count() + 1)
	m, err := Map(f, 4096, false)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Map(f, 4096, false); !errors.Is(err, ErrLimit) {
		t.Errorf("past the limit: %v", err)
	}
	if err := m.Unmap(); err != nil {
		t.Error(err)
	}
	m, err = Map(f, 4096, false)
	if err != nil {
		t.Fatalf("after an Unmap: %v", err)
	}
	if err := m.Unmap(); err != nil {
		t.Error(err)
	}
}

func TestPopulate(t *testing.T) {
	const size = 1 << 20
	f := file(t, size)
	for _, writable := range []bool{false, true} {
		m, err := Map(f, 2*size, writable)
		if err != nil {
			t.Fatal(err)
		}
		for _, tc := range []struct {
			name   string
			off, n int64
			ok     bool
		}{
			{"all", 0, size, true},
			{"part of a page", 5000, 10, true},
			{"nothing", 0, 0, true},
			{"nothing at the end", 2 * size, 0, true},
			{"past the end of the file", size, 4096, false},
			{"past the end of the map", 2*size - 10, 11, false},
			{"negative", -1, 1, false},
			{"negative length", 0, -1, false},
			{"sum overflows", 1 << 62, 1 << 62, false},
		} {
			err := m.Populate(tc.off, tc.n)
			if tc.name == "all" && errors.Is(err, errors.ErrUnsupported) {
				break // nothing but this error is promised
			}
			if (err == nil) != tc.ok {
				t.Errorf("writable %v, %s: %v", writable, tc.name, err)
			}
		}
		if err := m.Unmap(); err != nil {
			t.Error(err)
		}
		if err := m.Populate(0, 1); err == nil {
			t.Error("Populate after Unmap succeeded")
		}
	}
}

func TestMapRefused(t *testing.T) {
	f := file(t, 4096)
	before := Count()
	readOnly, err := os.Open(f.Name())
	if err != nil {
		t.Fatal(err)
	}
	defer readOnly.Close()
	for _, tc := range []struct {
		name     string
		f        *os.File
		length   int64
		writable bool
	}{
		{"empty", f, 0, false},
		{"negative", f, -1, false},
		{"longer than the address space", f, 1 << 62, false},
		{"writable map of a read-only file", readOnly, 4096, true},
	} {
		if _, err := Map(tc.f, tc.length, tc.writable); err == nil {
			t.Errorf("%s: succeeded", tc.name)
		}
	}
	if Count() != before {
		t.Errorf("refused maps are counted: %d; was %d", Count(), before)
	}
}
