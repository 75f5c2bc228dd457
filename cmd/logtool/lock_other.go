//go:build !linux && !darwin

package main

import (
	"errors"
	"os"
)

func lockRecord(*os.File) error { return errors.ErrUnsupported }
