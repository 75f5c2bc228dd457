package vfs

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// playSystemRole runs in namespaces of its own, where it may mount.
func playSystemRole(role, dir string) int {
	if role != "full disk" {
		return 2
	}
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=1m"); err != nil {
		fmt.Println("cannot mount:", err)
		return 3
	}
	if err := fullDisk(dir); err != nil {
		fmt.Println(err)
		return 1
	}
	return 0
}

func fullDisk(dir string) error {
	f, err := OS.Open(filepath.Join(dir, "f"), Create)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := f.Allocate(64 << 10); err != nil {
		return err
	}
	if err := f.Allocate(2 << 20); !errors.Is(err, syscall.ENOSPC) {
		return fmt.Errorf("allocate too much: %v", err)
	}
	if info, err := f.Stat(); err != nil || info.Size != 64<<10 {
		return fmt.Errorf("size %d, %v after the failure; want 65536", info.Size, err)
	}
	if n, err := f.WriteAt(make([]byte, 2<<20), 0); !errors.Is(err, syscall.ENOSPC) || n >= 2<<20 {
		return fmt.Errorf("write too much: %d, %v", n, err)
	}
	if err := f.Truncate(0); err != nil {
		return err
	}
	return f.Allocate(512 << 10) // space is back
}

// Scenario F13, on a real file system of one MiB.
func TestOSFullDisk(t *testing.T) {
	cmd := child("full disk", t.TempDir())
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS,
		UidMappings: []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}},
	}
	out, err := cmd.CombinedOutput()
	if code := cmd.ProcessState.ExitCode(); err != nil && (code == -1 || code == 3) {
		t.Skipf("no namespaces: %v %s", err, out)
	}
	if err != nil {
		t.Errorf("%v: %s", err, out)
	}
}

func TestOSCannotPreallocate(t *testing.T) {
	// A pipe stands for a file system without fallocate: ESPIPE is not
	// EOPNOTSUPP, so go for a file of proc, which has it.
	f, err := os.OpenFile("/proc/self/comm", os.O_RDWR, 0)
	if err != nil {
		t.Skip(err)
	}
	defer f.Close()
	file, err := newOSFile(f)
	must(t, err)
	err = file.Allocate(4096)
	if !errors.Is(err, unix.EOPNOTSUPP) {
		t.Skipf("proc answers %v", err)
	}
	if want := "allocate /proc/self/comm: 4096 bytes: the file system cannot preallocate: operation not supported"; err.Error() != want {
		t.Errorf("error %q; want %q", err, want)
	}
}
