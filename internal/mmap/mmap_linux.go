package mmap

import (
	"errors"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

const (
	supported      = true
	defaultMaxMaps = 65530 // the kernel's DEFAULT_MAX_MAP_COUNT
)

func maxMapCount() int64 {
	b, err := os.ReadFile("/proc/sys/vm/max_map_count")
	if err != nil {
		return defaultMaxMaps
	}
	n, err := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64)
	if err != nil || n <= 0 {
		return defaultMaxMaps
	}
	return n
}

func populate(b []byte, writable bool) error {
	advice := unix.MADV_POPULATE_READ
	if writable {
		advice = unix.MADV_POPULATE_WRITE
	}
	for {
		switch err := unix.Madvise(b, advice); err {
		case unix.EINTR, unix.EAGAIN:
		case unix.EINVAL: // the range is checked: the kernel does not know the advice
			return errors.ErrUnsupported
		default:
			return err
		}
	}
}
