package vfs

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"slices"
	"syscall"
)

// MkdirAll makes the directory dir and the parents that it lacks, each name
// durable before anything is made below it: what is synced in dir later does not
// hang from a name that a power cut takes away. A parent that is there may have
// been left by a process that was killed before it got so far, so the deepest
// one is synced too.
func MkdirAll(fsys FS, dir string) error {
	if dir == "" { // what is made in it would be in the current directory
		return &fs.PathError{Op: OpMkdir.String(), Path: dir, Err: syscall.ENOENT}
	}
	var missing []string // the deepest first
	at := filepath.Clean(dir)
	for {
		info, err := fsys.Stat(at)
		if err == nil && !info.IsDir {
			return &fs.PathError{Op: OpMkdir.String(), Path: at, Err: syscall.ENOTDIR}
		}
		if err == nil {
			break
		}
		if !errors.Is(err, fs.ErrNotExist) || filepath.Dir(at) == at {
			return err
		}
		missing = append(missing, at)
		at = filepath.Dir(at)
	}
	if len(missing) == 0 {
		return nil
	}
	if err := SyncParent(fsys, at); err != nil {
		return err
	}
	for _, d := range slices.Backward(missing) {
		if err := fsys.Mkdir(d); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
		if err := fsys.SyncDir(filepath.Dir(d)); err != nil {
			return err
		}
	}
	return nil
}

// SyncParent makes the name of a directory durable. A parent that this process
// may not open is somebody else's, who made the name.
func SyncParent(fsys FS, dir string) error {
	err := fsys.SyncDir(filepath.Dir(filepath.Clean(dir)))
	if errors.Is(err, fs.ErrPermission) {
		return nil
	}
	return err
}

// Exists reports whether name exists. An error means that it cannot be known.
func Exists(fsys FS, name string) (bool, error) {
	_, err := fsys.Stat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// ReadFile returns the content of a file of at most limit bytes, in memory of
// its own. A longer file is an error, and none of it is read.
func ReadFile(fsys FS, name string, limit int64) (data []byte, err error) {
	f, err := fsys.Open(name, ReadOnly)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if info.Size > limit {
		return nil, fmt.Errorf("read %s: %d bytes, want at most %d", name, info.Size, limit)
	}
	data = make([]byte, info.Size)
	n, err := f.ReadAt(data, 0)
	if err == io.EOF { // cut since Stat, or empty
		err = nil
	}
	if err != nil {
		return nil, err
	}
	return data[:n], nil
}

// WriteFileAtomic makes data the durable content of name: after a crash at any
// point the file has its old content (or is absent as before) or the new one.
// It goes by name+".tmp", which must be nobody else's; a leftover one is
// replaced, and on error it is removed if that still works. A full disk is an
// error of Allocate, which changed nothing.
//
// An error after the rename, from the directory's sync, leaves the new content
// visible but not known to be durable.
func WriteFileAtomic(fsys FS, name string, data []byte) error {
	tmp := name + ".tmp"
	if err := writeSynced(fsys, tmp, data); err != nil {
		_ = fsys.Remove(tmp) // err matters more
		return err
	}
	if err := fsys.Rename(tmp, name); err != nil {
		_ = fsys.Remove(tmp)
		return err
	}
	return fsys.SyncDir(filepath.Dir(name))
}

func writeSynced(fsys FS, name string, data []byte) (err error) {
	f, err := fsys.Open(name, Create)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if err := f.Truncate(0); err != nil {
		return err
	}
	if err := f.Allocate(int64(len(data))); err != nil {
		return err
	}
	if _, err := f.WriteAt(data, 0); err != nil {
		return err
	}
	return Sync(f)
}

// AllZero reports whether every byte of p is zero, as in allocated space that
// nothing was written to.
func AllZero(p []byte) bool {
	for len(p) > len(zeros) {
		if !bytes.Equal(p[:len(zeros)], zeros[:]) {
			return false
		}
		p = p[len(zeros):]
	}
	return bytes.Equal(p, zeros[:len(p)])
}

var zeros [4096]byte
