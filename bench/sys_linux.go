package main

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// The bare loops call the system themselves rather than through the log's own
// file layer: a limit that shared its faults would hide them.

// allocate makes disk blocks for [0, size) of f.
func allocate(f *os.File, size int64) error {
	return retry(func() error { return unix.Fallocate(int(f.Fd()), 0, 0, size) })
}

// populate takes the write faults of b, which starts at a page. Best effort:
// where the kernel is too old, later stores fault by themselves.
func populate(b []byte) { _ = unix.Madvise(b, unix.MADV_POPULATE_WRITE) }

// datasync makes the bytes of f durable.
func datasync(f *os.File) error {
	return retry(func() error { return unix.Fdatasync(int(f.Fd())) })
}

func retry(call func() error) error {
	for {
		if err := call(); err != unix.EINTR {
			return err
		}
	}
}

func kernel() string {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return "Linux"
	}
	return "Linux " + unix.ByteSliceToString(u.Release[:])
}

// fsName names the file system that holds dir.
func fsName(dir string) string {
	var s unix.Statfs_t
	if err := unix.Statfs(dir, &s); err != nil {
		return "unknown file system"
	}
	switch uint32(s.Type) {
	case unix.EXT4_SUPER_MAGIC:
		return "ext4"
	case unix.XFS_SUPER_MAGIC:
		return "xfs"
	case unix.BTRFS_SUPER_MAGIC:
		return "btrfs"
	case unix.TMPFS_MAGIC:
		return "tmpfs"
	case unix.OVERLAYFS_SUPER_MAGIC:
		return "overlayfs"
	case unix.NFS_SUPER_MAGIC:
		return "nfs"
	case unix.FUSE_SUPER_MAGIC:
		return "fuse"
	case 0x2fc12fc1:
		return "zfs"
	}
	return fmt.Sprintf("file system %#x", uint32(s.Type))
}
