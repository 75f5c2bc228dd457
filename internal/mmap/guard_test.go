//go:build unix

package mmap

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"testing"

	"golang.org/x/sys/unix"
)

// cutMap maps two pages of a file and then cuts the file to one.
func cutMap(t testing.TB) []byte {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "f"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	page := os.Getpagesize()
	if err := f.Truncate(int64(2 * page)); err != nil {
		t.Fatal(err)
	}
	b, err := unix.Mmap(int(f.Fd()), 0, 2*page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Munmap(b) })
	if err := f.Truncate(int64(page)); err != nil {
		t.Fatal(err)
	}
	return b
}

func guardedLoad(b []byte, i int, region []byte) (v byte, err error) {
	defer Guard(region, &err, debug.SetPanicOnFault(true))
	return b[i], nil
}

func guardedStore(b []byte, i int) (err error) {
	defer Guard(b, &err, debug.SetPanicOnFault(true))
	b[i] = 1
	return nil
}

func TestGuard(t *testing.T) {
	page := os.Getpagesize()
	b := cutMap(t)
	if v, err := guardedLoad(b, 5, b); v != 0 || err != nil {
		t.Errorf("load in the file = %d, %v; want 0, nil", v, err)
	}
	var fault *FaultError
	if _, err := guardedLoad(b, page+7, b); !errors.As(err, &fault) || fault.Pos != int64(page+7) {
		t.Errorf("load behind the cut = %v; want a fault at %d", err, page+7)
	}
	if err := guardedStore(b, page); !errors.As(err, &fault) || fault.Pos != int64(page) {
		t.Errorf("store behind the cut = %v; want a fault at %d", err, page)
	}
}

// TestGuardForeign: what is not a fault on the region is not swallowed, and the
// goroutine's setting is the caller's again.
func TestGuardForeign(t *testing.T) {
	page := os.Getpagesize()
	b := cutMap(t)
	for _, tc := range []struct {
		name string
		call func()
	}{
		{"fault behind the region", func() { guardedLoad(b, page, b[:page]) }},
		{"fault before the region", func() { guardedLoad(b, page, b[page+1:]) }},
		{"index out of range", func() { guardedLoad(b, len(b), b) }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
			defer func() {
				r := recover()
				if _, ok := r.(runtime.Error); !ok {
					t.Errorf("recovered %v; want the runtime's error", r)
				}
				if !debug.SetPanicOnFault(true) {
					t.Error("the caller's SetPanicOnFault(true) was lost")
				}
			}()
			tc.call()
		})
	}
}

// go test -run - -bench Guard ./internal/mmap
func BenchmarkGuard(b *testing.B) {
	buf := make([]byte, 4096)
	b.Run("guard=no", func(b *testing.B) {
		i := 0
		for b.Loop() {
			sink = load(buf, i&4095)
			i++
		}
	})
	b.Run("guard=yes", func(b *testing.B) {
		i := 0
		for b.Loop() {
			sink, _ = guardedLoad(buf, i&4095, buf)
			i++
		}
	})
}

var sink byte

//go:noinline
func load(b []byte, i int) byte { return b[i] }
