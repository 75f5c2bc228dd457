//go:build !linux && !darwin

package vfs

import (
	"errors"
	"testing"
)

func playRole(string) int { return 2 }

// C038: it compiles and says that it is not supported.
func TestC038_Unsupported(t *testing.T) {
	for _, err := range []error{
		second(OS.Open("f", Create)), second(OS.Stat("f")), second(OS.List("d")), OS.Mkdir("d"), OS.Remove("f"),
		OS.RemoveAll("f"), OS.Rename("f", "g"), OS.Link("f", "g"), OS.SyncDir("d"), second(OS.Lock("f")),
	} {
		if !errors.Is(err, errors.ErrUnsupported) {
			t.Errorf("error %v", err)
		}
	}
}
