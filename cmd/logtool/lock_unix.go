//go:build linux || darwin

package main

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// lockRecord takes the lock that a Java program takes of a file, which knows
// nothing of flock: Kafka's lock of its data folder. It holds until the file, or
// another descriptor of it in this process, is closed.
func lockRecord(f *os.File) error {
	err := unix.FcntlFlock(f.Fd(), unix.F_SETLK, &unix.Flock_t{Type: unix.F_WRLCK})
	if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EACCES) {
		return fmt.Errorf("lock %s: held by another process", f.Name())
	}
	return err
}
