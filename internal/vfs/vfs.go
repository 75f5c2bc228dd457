// Package vfs is the file system as storage needs it: files that can be
// allocated, mapped and synced in two steps, directories whose entries are
// made durable explicitly, and an advisory lock.
//
// Three implementations exist. [OS] is the real one. [Mem] keeps everything on
// the heap and can lose power: it keeps what was synced and any subset of the
// rest, per 512-byte sector, names included. [Faulty] wraps another one and
// fails chosen calls.
//
// Names are paths as the operating system spells them. Every error names the
// operation and the path, as *fs.PathError does.
package vfs

import (
	"errors"
	"io"
	"time"
)

// Mode says how [FS.Open] opens a file.
type Mode int

const (
	ReadOnly  Mode = iota // the file must exist
	ReadWrite             // the file must exist
	Create                // read-write, made empty if absent
	CreateNew             // read-write, made; an error that is fs.ErrExist if present
)

// ErrLocked is what [FS.Lock] returns when another process, or another holder
// in this one, has the lock.
var ErrLocked = errors.New("locked by another process")

// Info describes a file or directory.
type Info struct {
	Name    string // last element of the path
	Size    int64  // bytes
	ModTime time.Time
	IsDir   bool
	Device  uint64 // of the file system that holds it
	Inode   uint64
	Links   uint64 // names that the file has
}

// FS is a file system. All methods are safe for concurrent use.
type FS interface {
	Open(name string, mode Mode) (File, error)
	Stat(name string) (Info, error)
	// List returns the entries of dir in ascending order of name.
	List(dir string) ([]Info, error)
	Mkdir(dir string) error      // one level; fs.ErrExist if there is one
	Remove(name string) error    // a file or an empty directory
	RemoveAll(name string) error // no error if there is none
	// Rename replaces newName if it exists. It is atomic but not durable until
	// SyncDir of the directory.
	Rename(oldName, newName string) error
	// Link makes a hard link; fs.ErrExist if newName exists.
	Link(oldName, newName string) error
	SyncDir(dir string) error // makes the names in dir durable
	// Lock takes an exclusive advisory lock on the file, which it makes if
	// absent. Close releases it and leaves the file. It never waits: ErrLocked if
	// the lock is held, another error if the file system has no locks.
	Lock(name string) (io.Closer, error)
	// BootID identifies this run of the operating system: what the page cache
	// holds outlives a process but not a boot. All zero if unknown.
	BootID() [16]byte
}

// File is an open file. ReadAt and WriteAt are safe for concurrent use with
// each other and with a map of the same file, which sees the same bytes.
type File interface {
	io.ReaderAt
	io.WriterAt
	io.Closer // does not sync
	Name() string
	Stat() (Info, error)
	// NextData returns the first range at or behind off that may hold anything but
	// zeros, without reading it: [off, off) if there is none. Where a file system
	// cannot tell, that is everything behind off. No other call may change the file
	// meanwhile.
	NextData(off int64) (from, to int64, err error)
	// Truncate sets the size. Growing leaves a hole that reads as zeros; cutting
	// drops the bytes behind size for good: they read as zeros if the file
	// grows again.
	Truncate(size int64) error
	// Allocate makes disk blocks for [0, size), so that a later write there,
	// through a map too, cannot run out of space. It grows the file to size if
	// it is shorter and never shrinks it; fresh bytes read as zeros. On error
	// (ENOSPC) the size is as before. No other call may change the size
	// meanwhile.
	Allocate(size int64) error
	// Map maps [0, length), at least 1 byte. The file may be shorter and may grow
	// under the map; touching a page past its end is a fault. The map outlives
	// Close and Remove. Errors: mmap.ErrLimit if the process has too many maps;
	// EINVAL, ENODEV and the like from a file system that cannot map.
	Map(length int64, writable bool) (Map, error)
	// StartSync begins to make the file's bytes and size durable as they are
	// now; FinishSync waits for it and returns its error. What changes in
	// between may or may not be covered. At most one sync of a file is in
	// flight. On a real disk FinishSync does all the work. After an error the
	// bytes may be lost even if another sync succeeds (replication R8).
	StartSync() error
	FinishSync() error
}

// Map is a mapping of a file.
type Map interface {
	// Bytes is valid until Unmap. Its length is that of the mapping.
	Bytes() []byte
	// Populate takes the write faults of [off, off+n) ahead of time, through a
	// system call, so that no goroutine holds a processor while it waits.
	// Best effort: an error means only that later stores will fault.
	Populate(off, n int64) error
	// PopulateRead is Populate for read faults: nothing becomes dirty.
	PopulateRead(off, n int64) error
	Unmap() error
}

// Sync syncs f in one step.
func Sync(f File) error {
	if err := f.StartSync(); err != nil {
		return err
	}
	return f.FinishSync()
}
