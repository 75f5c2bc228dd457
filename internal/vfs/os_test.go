//go:build linux || darwin

package vfs

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// child returns the command that runs this binary as playRole(role).
func child(role, arg string) *exec.Cmd {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "TIDEMARK_VFS_TEST_ROLE="+role, "TIDEMARK_VFS_TEST_ARG="+arg)
	return cmd
}

func playRole(role string) int {
	arg := os.Getenv("TIDEMARK_VFS_TEST_ARG")
	switch role {
	case "lock": // says how it went, keeps the lock until its input ends
		_, err := OS.Lock(arg)
		switch {
		case errors.Is(err, ErrLocked):
			fmt.Println("locked")
		case err != nil:
			fmt.Println(err)
		default:
			fmt.Println("got it")
			_, _ = os.Stdin.Read(make([]byte, 1))
		}
	case "java lock": // as Java's FileChannel.tryLock, and so Kafka
		f, err := os.OpenFile(arg, os.O_RDWR|os.O_CREATE, 0o644)
		if err == nil {
			err = unix.FcntlFlock(f.Fd(), unix.F_SETLK, &unix.Flock_t{Type: unix.F_WRLCK})
		}
		switch {
		case errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EACCES):
			fmt.Println("locked")
		case err != nil:
			fmt.Println(err)
		default:
			fmt.Println("got it")
			_, _ = os.Stdin.Read(make([]byte, 1))
		}
	default:
		return playSystemRole(role, arg)
	}
	return 0
}

// Another process with our lock or with Java's excludes us, and we it.
func TestOSLockAcrossProcesses(t *testing.T) {
	for _, role := range []string{"lock", "java lock"} {
		t.Run(role, func(t *testing.T) {
			name := filepath.Join(t.TempDir(), ".lock")
			l, err := OS.Lock(name)
			must(t, err)
			f, err := os.Open(name) // a process's own locks end when it closes any descriptor
			must(t, err)
			must(t, f.Close())
			if out, err := child(role, name).Output(); err != nil || string(out) != "locked\n" {
				t.Errorf("child, while we hold the lock: %q, %v", out, err)
			}
			must(t, l.Close())

			cmd := child(role, name)
			in, err := cmd.StdinPipe()
			must(t, err)
			out, err := cmd.StdoutPipe()
			must(t, err)
			must(t, cmd.Start())
			said := make([]byte, 16)
			n, _ := out.Read(said)
			if string(said[:n]) != "got it\n" {
				t.Errorf("child, after we closed it: %q", said[:n])
			}
			_, err = OS.Lock(name)
			wantErr(t, err, ErrLocked, name)
			must(t, cmd.Process.Kill()) // kill -9 frees it
			_ = cmd.Wait()
			in.Close()
			l, err = OS.Lock(name)
			must(t, err)
			must(t, l.Close())
		})
	}
}

// A holder may remove the file before it lets go: still there is one at a time.
func TestOSLockRemoved(t *testing.T) {
	name := filepath.Join(t.TempDir(), ".lock")
	var holders atomic.Int32
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for range 500 {
				l, err := OS.Lock(name)
				if err != nil {
					if !errors.Is(err, ErrLocked) {
						t.Error(err)
					}
					continue
				}
				if n := holders.Add(1); n != 1 {
					t.Errorf("%d holders", n)
				}
				holders.Add(-1) // whoever makes the file anew may come from here on
				if err := OS.Remove(name); err != nil {
					t.Error(err)
				}
				if err := l.Close(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
}

// A child that the program starts must not keep the lock.
func TestOSLockIsNotInherited(t *testing.T) {
	name := filepath.Join(t.TempDir(), ".lock")
	l, err := OS.Lock(name)
	must(t, err)
	cmd := exec.Command("sleep", "10")
	if err := cmd.Start(); err != nil {
		t.Skip(err)
	}
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	must(t, l.Close())
	l, err = OS.Lock(name)
	must(t, err)
	must(t, l.Close())
}

func TestC045_LockErrors(t *testing.T) {
	for _, errno := range []unix.Errno{unix.ENOLCK, unix.EINVAL, unix.ENOTSUP, unix.ENOSYS} {
		err := lockError("/mnt/.lock", errno)
		if !errors.Is(err, errno) || errors.Is(err, ErrLocked) || !strings.Contains(err.Error(), "does not support locks") {
			t.Errorf("%v: %v", errno, err)
		}
	}
	wantErr(t, lockError("/mnt/.lock", unix.EWOULDBLOCK), ErrLocked, "/mnt/.lock")
}

func TestOSAllocatesNothing(t *testing.T) {
	f := open(t, OS, filepath.Join(t.TempDir(), "f"), Create)
	must(t, f.Allocate(4096))
	p := make([]byte, 512)
	for name, call := range map[string]func() error{
		"ReadAt":  func() error { return second(f.ReadAt(p, 0)) },
		"WriteAt": func() error { return second(f.WriteAt(p, 0)) },
		"Sync":    func() error { return Sync(f) },
	} {
		var err error
		if n := testing.AllocsPerRun(20, func() { err = errors.Join(err, call()) }); n != 0 || err != nil {
			t.Errorf("%s: %v allocations, %v", name, n, err)
		}
	}
}

// A stray named pipe in a data directory must not hang who opens it.
func TestOSOpenOfPipe(t *testing.T) {
	name := filepath.Join(t.TempDir(), "00000000000000000000.log")
	if err := unix.Mkfifo(name, 0o644); err != nil {
		t.Skip(err)
	}
	done := make(chan error, 1)
	go func() { done <- second(OS.Open(name, ReadOnly)) }()
	select {
	case err := <-done:
		if err == nil || !strings.Contains(err.Error(), "not a regular file") {
			t.Errorf("error %v", err)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("Open hangs")
	}
}

func TestOSFileModes(t *testing.T) {
	old := unix.Umask(0)
	defer unix.Umask(old)
	dir := t.TempDir()
	must(t, OS.Mkdir(filepath.Join(dir, "d")))
	open(t, OS, filepath.Join(dir, "f"), Create)
	for name, want := range map[string]os.FileMode{"d": os.ModeDir | 0o755, "f": 0o644} {
		fi, err := os.Stat(filepath.Join(dir, name))
		must(t, err)
		if fi.Mode() != want {
			t.Errorf("%s has mode %v; want %v", name, fi.Mode(), want)
		}
	}
}

func TestOSListFollowsLinks(t *testing.T) {
	dir := t.TempDir()
	must(t, os.Mkdir(filepath.Join(dir, "d"), 0o755))
	must(t, os.Symlink("d", filepath.Join(dir, "link")))
	must(t, os.Symlink("nowhere", filepath.Join(dir, "dangling")))
	infos, err := OS.List(dir)
	must(t, err)
	got := fmt.Sprint(infos[0].Name, infos[0].IsDir, infos[1].Name, infos[1].IsDir, infos[2].Name, infos[2].IsDir)
	if want := fmt.Sprint("d", true, "dangling", false, "link", true); len(infos) != 3 || got != want {
		t.Errorf("list: %s; want %s", got, want)
	}
}

func TestParseUUID(t *testing.T) {
	want := [16]byte{0x01, 0x23, 0x45, 0x67, 0x89, 0xab, 0xcd, 0xef, 0x01, 0x23, 0x45, 0x67, 0x89, 0xab, 0xcd, 0xef}
	for in, ok := range map[string]bool{
		"01234567-89ab-cdef-0123-456789ABCDEF":  true,
		"0123456789abcdef0123456789abcdef":      true,
		"":                                      false,
		"01234567-89ab-cdef-0123-456789abcde":   false,
		"01234567-89ab-cdef-0123-456789abcdef0": false,
		"01234567-89ab-cdef-0123-456789abcdeg":  false,
		"{1234567-89ab-cdef-0123-456789abcdef}": false,
		strings.Repeat("0", 1<<10):              false,
	} {
		got := parseUUID(in)
		if ok && got != want || !ok && !bytes.Equal(got[:], make([]byte, 16)) {
			t.Errorf("parseUUID(%q) = %x", in, got)
		}
	}
}
