//go:build !linux

package main

import (
	"os"
	"runtime"
)

// Where the system has no call for it, the loop does without: the space is a
// hole, pages fault as they are stored to, and a sync is a full one.

func allocate(f *os.File, size int64) error { return f.Truncate(size) }
func populate([]byte)                       {}
func datasync(f *os.File) error             { return f.Sync() }
func kernel() string                        { return runtime.GOOS }
func fsName(string) string                  { return "unknown file system" }
