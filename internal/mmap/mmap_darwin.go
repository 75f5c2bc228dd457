package mmap

import "errors"

const supported = true

// maxMapCount: darwin bounds maps by memory only; take Linux's number.
func maxMapCount() int64 { return 65530 }

func populate([]byte, bool) error { return errors.ErrUnsupported }
