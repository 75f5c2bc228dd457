package vfs

import (
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// allocate uses plain fallocate: blocks for [0, size), holes included, and the
// new size in one. A signal, such as the Go scheduler's own, may interrupt it.
func allocate(fd uintptr, size int64) error {
	for {
		if err := unix.Fallocate(int(fd), 0, 0, size); err != unix.EINTR {
			return err
		}
	}
}

// syncData uses fdatasync: the bytes and what is needed to read them back, the
// size too. Only EINTR is retried; after any other error the kernel may have
// dropped the dirty pages, and a second call would lie (replication R8).
func syncData(fd uintptr) error {
	for {
		if err := unix.Fdatasync(int(fd)); err != unix.EINTR {
			return err
		}
	}
}

// lockFile locks the whole file or unlocks it. It is the lock that Java takes, and
// so Kafka, by fcntl, but owned by the open file. A flock is of another kind: on a
// local file system neither sees the other.
func lockFile(f *os.File, lock bool) error {
	how := unix.Flock_t{Type: unix.F_UNLCK}
	if lock {
		how.Type = unix.F_WRLCK
	}
	for {
		if err := unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &how); err != unix.EINTR {
			return err
		}
	}
}

// nextData asks the file system which blocks were written, in its own records or
// in the page cache: allocated ones that were not are holes to it.
func nextData(fd int, off int64) (from, to int64, err error) {
	from, err = unix.Seek(fd, off, unix.SEEK_DATA)
	if err == unix.ENXIO { // nothing behind off
		return off, off, nil
	}
	if err == nil {
		to, err = unix.Seek(fd, from, unix.SEEK_HOLE)
	}
	return from, to, err
}

func readBootID() [16]byte {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return [16]byte{}
	}
	return parseUUID(strings.TrimSpace(string(b)))
}
