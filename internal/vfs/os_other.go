//go:build !linux && !darwin

package vfs

import (
	"errors"
	"io"
	"io/fs"
	"math"
)

// OS is the file system of the operating system. On this one it is not
// supported: every call fails with errors.ErrUnsupported (architecture
// decision 9).
var OS FS = osFS{}

// FileLimit returns how many descriptors the process may have.
func FileLimit() int { return math.MaxInt }

type osFS struct{}

func unsupported(op, name string) error {
	return &fs.PathError{Op: op, Path: name, Err: errors.ErrUnsupported}
}

func (osFS) Open(name string, _ Mode) (File, error) { return nil, unsupported("open", name) }
func (osFS) Stat(name string) (Info, error)         { return Info{}, unsupported("stat", name) }
func (osFS) List(dir string) ([]Info, error)        { return nil, unsupported("list", dir) }
func (osFS) Mkdir(dir string) error                 { return unsupported("mkdir", dir) }
func (osFS) Remove(name string) error               { return unsupported("remove", name) }
func (osFS) RemoveAll(name string) error            { return unsupported("remove", name) }
func (osFS) Rename(oldName, _ string) error         { return unsupported("rename", oldName) }
func (osFS) Link(oldName, _ string) error           { return unsupported("link", oldName) }
func (osFS) SyncDir(dir string) error               { return unsupported("sync", dir) }
func (osFS) Lock(name string) (io.Closer, error)    { return nil, unsupported("lock", name) }
func (osFS) BootID() [16]byte                       { return [16]byte{} }
