//go:build !linux && !darwin

package mmap

import "errors"

// Elsewhere maps differ too much: on Windows one grows the file to the length
// of the map, and the file can be neither cut nor removed under it
// (architecture decision 9).
const supported = false

func maxMapCount() int64 { return 2 }

func populate([]byte, bool) error { return errors.ErrUnsupported }
