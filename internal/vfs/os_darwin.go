package vfs

import (
	"os"

	"golang.org/x/sys/unix"
)

// allocate asks for the blocks that are missing behind the last one the file
// has. Holes stay holes: darwin has no call to fill them.
func allocate(fd uintptr, size int64) error {
	var st unix.Stat_t
	if err := unix.Fstat(int(fd), &st); err != nil {
		return err
	}
	if missing := size - st.Blocks*512; missing > 0 {
		err := unix.FcntlFstore(fd, unix.F_PREALLOCATE, &unix.Fstore_t{
			Flags:   unix.F_ALLOCATEALL,
			Posmode: unix.F_PEOFPOSMODE,
			Length:  missing,
		})
		if err != nil {
			return err
		}
	}
	if st.Size >= size {
		return nil
	}
	return unix.Ftruncate(int(fd), size)
}

// nextData does not tell: nobody tried what darwin's calls say of bytes that were
// stored through a map.
func nextData(fd int, off int64) (from, to int64, err error) {
	var st unix.Stat_t
	err = unix.Fstat(fd, &st)
	return off, max(off, st.Size), err
}

// syncData asks the drive to empty its cache, which fsync does not on darwin.
func syncData(fd uintptr) error {
	for {
		if _, err := unix.FcntlInt(fd, unix.F_FULLFSYNC, 0); err != unix.EINTR {
			return err
		}
	}
}

// lockFile locks the file or unlocks it. On darwin a flock and the lock that Java
// takes by fcntl exclude each other (fcntl(2)).
func lockFile(f *os.File, lock bool) error {
	how := unix.LOCK_UN
	if lock {
		how = unix.LOCK_EX | unix.LOCK_NB
	}
	for {
		if err := unix.Flock(int(f.Fd()), how); err != unix.EINTR {
			return err
		}
	}
}

// readBootID: the boot time would move with the clock, this does not.
func readBootID() [16]byte {
	s, err := unix.Sysctl("kern.bootsessionuuid")
	if err != nil {
		return [16]byte{}
	}
	return parseUUID(s)
}
