// Package mmap maps files and counts the maps of the process.
//
// A process may hold only so many maps (Linux: vm.max_map_count, 65,530 by
// default), and past that number the Go runtime itself dies, since it maps its
// heap too. [Map] therefore refuses, with an error, from half of it on
// (architecture §4, "Bounds of the host").
package mmap

import (
	"errors"
	"fmt"
	"math"
	"os"
	"sync"
	"sync/atomic"

	mmapgo "github.com/edsrzf/mmap-go"
)

// ErrLimit is what [Map] returns when [Count] has reached [Limit].
var ErrLimit = errors.New("too many memory maps in this process")

var (
	count       atomic.Int64
	override    atomic.Int64 // by SetLimit; 0 is the default
	defaultHalf = sync.OnceValue(func() int64 { return maxMapCount() / 2 })
)

// Count returns how many maps made by this package are out.
func Count() int64 { return count.Load() }

// Limit returns how many may be out at a time: by default half of what the
// kernel grants the process, read once.
func Limit() int64 {
	if n := override.Load(); n > 0 {
		return n
	}
	return defaultHalf()
}

// SetLimit replaces the limit; 0 brings the default back. Maps that are out
// stay.
func SetLimit(n int64) { override.Store(n) }

// A Mapping is a shared map of the first bytes of a file. It outlives the
// descriptor and the name of the file. Its methods other than Unmap are safe
// for concurrent use.
type Mapping struct {
	data     mmapgo.MMap
	writable bool
}

// Map maps [0, length) of f, shared. The file may be shorter; touching a page
// past its end is a fault that no caller can turn into an error, and so is a
// store into a hole when the disk is full.
//
// Errors: ErrLimit; errors.ErrUnsupported where maps are not supported
// (architecture decision 9) or the length exceeds the address space; else the
// kernel's, such as EINVAL or ENODEV from a file system that cannot map.
func Map(f *os.File, length int64, writable bool) (*Mapping, error) {
	if length <= 0 {
		return nil, fmt.Errorf("map length %d, want at least 1", length)
	}
	if !supported || length > math.MaxInt {
		return nil, fmt.Errorf("map of %d bytes: %w", length, errors.ErrUnsupported)
	}
	if n, limit := count.Add(1), Limit(); n > limit {
		count.Add(-1)
		return nil, fmt.Errorf("%w: limit %d", ErrLimit, limit)
	}
	prot := mmapgo.RDONLY
	if writable {
		prot = mmapgo.RDWR
	}
	data, err := mmapgo.MapRegion(f, int(length), prot, 0, 0)
	if err != nil {
		count.Add(-1)
		return nil, fmt.Errorf("map of %d bytes: %w", length, err)
	}
	return &Mapping{data: data, writable: writable}, nil
}

// Bytes returns the mapped memory, valid until Unmap; nil after it.
func (m *Mapping) Bytes() []byte { return m.data }

// Populate takes the faults of [off, off+n) ahead of time in one system call:
// write faults if the map is writable, else read faults. A fault that the
// hardware takes would keep a Go processor until the disk answers; a system
// call gives it away (peers §4, 33).
//
// An error means only that later touches may fault: errors.ErrUnsupported
// where the kernel cannot populate (Linux before 5.14, darwin), EFAULT if the
// range reaches past the page of the file's end.
func (m *Mapping) Populate(off, n int64) error {
	return m.populate(off, n, m.writable)
}

// PopulateRead is Populate for read faults, of a writable map too: nothing
// becomes dirty.
func (m *Mapping) PopulateRead(off, n int64) error { return m.populate(off, n, false) }

func (m *Mapping) populate(off, n int64, writable bool) error {
	if off < 0 || n < 0 || off > int64(len(m.data))-n {
		return fmt.Errorf("populate %d bytes at %d: map has %d", n, off, len(m.data))
	}
	if n == 0 {
		return nil
	}
	// The address must be that of a page.
	start := off &^ (int64(os.Getpagesize()) - 1)
	if err := populate(m.data[start:off+n], writable); err != nil {
		return fmt.Errorf("populate %d bytes at %d: %w", n, off, err)
	}
	return nil
}

// Unmap ends the map. It writes nothing: stores of a shared map are already in
// the page cache, and a sync of the file makes them durable.
func (m *Mapping) Unmap() error {
	if m.data == nil {
		return errors.New("unmapped twice")
	}
	// A failed munmap leaves the map in place, but Unmap of the library forgets
	// it; count it as gone, for no one can end it any more.
	count.Add(-1)
	return m.data.Unmap()
}
