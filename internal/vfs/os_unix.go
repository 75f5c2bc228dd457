//go:build linux || darwin

package vfs

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"sync"
	"syscall"

	"github.com/tidemark-log/tidemark/internal/mmap"
	"golang.org/x/sys/unix"
)

// OS is the file system of the operating system.
//
// The full promise holds on Linux. On darwin holes inside a file are not
// allocated and nothing is populated. Elsewhere every call fails with
// errors.ErrUnsupported (architecture decision 9).
var OS FS = osFS{}

type osFS struct{}

var openFlags = [...]int{
	ReadOnly:  os.O_RDONLY,
	ReadWrite: os.O_RDWR,
	Create:    os.O_RDWR | os.O_CREATE,
	CreateNew: os.O_RDWR | os.O_CREATE | os.O_EXCL,
}

func (osFS) Open(name string, mode Mode) (File, error) {
	// Without O_NONBLOCK opening a stray named pipe would wait for a writer; it
	// means nothing to a regular file. Package os adds O_CLOEXEC.
	f, err := os.OpenFile(name, openFlags[mode]|unix.O_NONBLOCK|unix.O_NOCTTY, 0o644)
	if err != nil {
		return nil, err
	}
	file, err := newOSFile(f)
	if err != nil {
		f.Close()
		return nil, err
	}
	return file, nil
}

func (osFS) Stat(name string) (Info, error) {
	fi, err := os.Stat(name)
	if err != nil {
		return Info{}, err
	}
	return osInfo(fi), nil
}

func (osFS) List(dir string) ([]Info, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	infos := make([]Info, 0, len(entries))
	for _, e := range entries {
		fi, err := e.Info()
		if errors.Is(err, fs.ErrNotExist) {
			continue // removed since ReadDir
		}
		if err != nil {
			return nil, err
		}
		if fi.Mode()&fs.ModeSymlink != 0 {
			// Describe what Open would open; a dangling link describes itself.
			if target, err := os.Stat(filepath.Join(dir, e.Name())); err == nil {
				fi = target
			}
		}
		info := osInfo(fi)
		info.Name = e.Name()
		infos = append(infos, info)
	}
	return infos, nil
}

func (osFS) Mkdir(dir string) error               { return os.Mkdir(dir, 0o755) }
func (osFS) Remove(name string) error             { return os.Remove(name) }
func (osFS) RemoveAll(name string) error          { return os.RemoveAll(name) }
func (osFS) Rename(oldName, newName string) error { return os.Rename(oldName, newName) }
func (osFS) Link(oldName, newName string) error   { return os.Link(oldName, newName) }

func (osFS) SyncDir(dir string) error {
	d, err := os.OpenFile(dir, os.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

func (osFS) Lock(name string) (io.Closer, error) {
	for {
		f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o644)
		if err != nil {
			return nil, err
		}
		if err := lockFile(f, true); err != nil {
			f.Close()
			return nil, lockError(name, err)
		}
		// Who had the lock may have removed the file since it was opened: the next
		// one would lock another.
		mine, err := f.Stat()
		if err != nil {
			f.Close()
			return nil, err
		}
		if there, err := os.Stat(name); err == nil && os.SameFile(mine, there) {
			return &osLock{f: f}, nil
		}
		if err := f.Close(); err != nil {
			return nil, err
		}
	}
}

// lockError says what the errno of a lock means to who runs the program.
func lockError(name string, err error) error {
	switch err {
	case unix.EAGAIN, unix.EACCES:
		err = ErrLocked
	case unix.ENOLCK, unix.EINVAL, unix.ENOTSUP, unix.ENOSYS:
		err = fmt.Errorf("the file system does not support locks: %w", err)
	}
	return &fs.PathError{Op: "lock", Path: name, Err: err}
}

func (osFS) BootID() [16]byte { return osBootID() }

// FileLimit returns how many descriptors the process may have, read once;
// math.MaxInt if it has no limit.
var FileLimit = sync.OnceValue(func() int {
	var r unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &r); err != nil || uint64(r.Cur) >= 1<<31 {
		return math.MaxInt
	}
	return int(r.Cur)
})

var osBootID = sync.OnceValue(readBootID)

// osLock is a held lock. It belongs to the open file, not to the process: a
// second holder in this one is refused too, and whoever else opens and closes the
// file does not end it.
type osLock struct{ f *os.File }

func (l *osLock) Close() error {
	// Unlock first: a child being forked right now may hold a copy of the
	// descriptor until its exec.
	if err := lockFile(l.f, false); err != nil {
		return errors.Join(&fs.PathError{Op: "unlock", Path: l.f.Name(), Err: err}, l.f.Close())
	}
	return l.f.Close()
}

type osFile struct {
	f    *os.File
	conn syscall.RawConn // its Control fails only when f is closed

	// sync and syncErr let FinishSync run a system call on a descriptor that a
	// concurrent Close cannot recycle, without a closure made per call.
	sync    func(fd uintptr)
	syncErr error
}

func newOSFile(f *os.File) (*osFile, error) {
	fi, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !fi.Mode().IsRegular() {
		err := error(syscall.EISDIR)
		if !fi.IsDir() {
			err = fmt.Errorf("not a regular file but %v", fi.Mode().Type())
		}
		return nil, &fs.PathError{Op: "open", Path: f.Name(), Err: err}
	}
	conn, err := f.SyscallConn()
	if err != nil {
		return nil, err
	}
	file := &osFile{f: f, conn: conn}
	file.sync = func(fd uintptr) { file.syncErr = syncData(fd) }
	return file, nil
}

func (f *osFile) ReadAt(p []byte, off int64) (int, error)  { return f.f.ReadAt(p, off) }
func (f *osFile) WriteAt(p []byte, off int64) (int, error) { return f.f.WriteAt(p, off) }
func (f *osFile) Close() error                             { return f.f.Close() }
func (f *osFile) Name() string                             { return f.f.Name() }
func (f *osFile) Truncate(size int64) error                { return f.f.Truncate(size) }

func (f *osFile) Stat() (Info, error) {
	fi, err := f.f.Stat()
	if err != nil {
		return Info{}, err
	}
	return osInfo(fi), nil
}

func (f *osFile) NextData(off int64) (from, to int64, err error) {
	if f.conn.Control(func(fd uintptr) { from, to, err = nextData(int(fd), off) }) != nil {
		err = fs.ErrClosed
	}
	if err != nil {
		return 0, 0, f.pathError("seek data", err)
	}
	return from, to, nil
}

func (f *osFile) Allocate(size int64) error {
	if size < 0 {
		return f.pathError("allocate", fmt.Errorf("size %d: %w", size, syscall.EINVAL))
	}
	before, err := f.f.Stat()
	if err != nil || size == 0 {
		return err
	}
	if f.conn.Control(func(fd uintptr) { err = allocate(fd, size) }) != nil {
		err = fs.ErrClosed
	}
	if err == nil {
		return nil
	}
	if errors.Is(err, unix.EOPNOTSUPP) {
		err = fmt.Errorf("the file system cannot preallocate: %w", err)
	}
	// The kernel may have grown the file by the part that did fit: give it back.
	if after, statErr := f.f.Stat(); statErr == nil && after.Size() > before.Size() {
		err = errors.Join(err, f.f.Truncate(before.Size()))
	}
	return f.pathError("allocate", fmt.Errorf("%d bytes: %w", size, err))
}

func (f *osFile) Map(length int64, writable bool) (Map, error) {
	m, err := mmap.Map(f.f, length, writable)
	if err != nil {
		return nil, f.pathError("map", err)
	}
	return m, nil
}

func (f *osFile) StartSync() error { return nil }

func (f *osFile) FinishSync() error {
	if f.conn.Control(f.sync) != nil {
		return f.pathError("sync", fs.ErrClosed)
	}
	if f.syncErr != nil {
		return f.pathError("sync", f.syncErr)
	}
	return nil
}

func (f *osFile) pathError(op string, err error) error {
	return &fs.PathError{Op: op, Path: f.f.Name(), Err: err}
}

func osInfo(fi fs.FileInfo) Info {
	info := Info{Name: fi.Name(), Size: fi.Size(), ModTime: fi.ModTime(), IsDir: fi.IsDir()}
	if st, ok := fi.Sys().(*syscall.Stat_t); ok {
		info.Device, info.Inode, info.Links = uint64(st.Dev), st.Ino, uint64(st.Nlink)
	}
	return info
}

// parseUUID returns zero if s is none.
func parseUUID(s string) (id [16]byte) {
	n := 0
	for i := range len(s) {
		var v byte
		switch c := s[i]; {
		case c >= '0' && c <= '9':
			v = c - '0'
		case c|0x20 >= 'a' && c|0x20 <= 'f':
			v = c | 0x20 - 'a' + 10
		case c == '-':
			continue
		default:
			return [16]byte{}
		}
		if n == 32 {
			return [16]byte{}
		}
		id[n/2] = id[n/2]<<4 | v
		n++
	}
	if n != 32 {
		return [16]byte{}
	}
	return id
}
