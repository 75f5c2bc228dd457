package vfs

import (
	"errors"
	"math/rand/v2"
	"syscall"
	"testing"
)

// TestMkdirAll: whenever the power fails, a directory that was made is there with
// its parents once something in it is synced, whoever made them and was killed
// half-way.
func TestMkdirAll(t *testing.T) {
	build := func(m *Mem) error {
		if err := MkdirAll(m, "/a/b/c"); err != nil {
			return err
		}
		// As who opens something new there does: the last name may be an earlier
		// process's, which did not get to sync it.
		if err := SyncParent(m, "/a/b/c"); err != nil {
			return err
		}
		return WriteFileAtomic(m, "/a/b/c/f", []byte("x"))
	}
	total := NewMem(MemOptions{})
	if err := build(total); err != nil {
		t.Fatal(err)
	}
	rng := rand.New(rand.NewPCG(1, 2))
	kills := 0
	for n := range total.Ops() {
		// A process that is killed at its nth operation, and one after it.
		first := NewMem(MemOptions{})
		var image *Mem
		at := int64(0)
		first.SetHook(func(_ Op, _ string, done bool) {
			if !done {
				if at == n {
					image = first.Clone()
				}
				at++
			}
		})
		if err := build(first); err != nil {
			t.Fatal(err)
		}
		kills++
		if err := build(image); err != nil {
			t.Fatal(err)
		}
		for range 8 {
			after := image.PowerCut(rng)
			if b, err := ReadFile(after, "/a/b/c/f", 10); err != nil || string(b) != "x" {
				t.Fatalf("killed at operation %d, power cut: %q, %v", n, b, err)
			}
		}
	}
	if kills < 8 {
		t.Errorf("%d operations", kills)
	}
	m := NewMem(MemOptions{})
	if err := MkdirAll(m, "x"); err != nil { // relative
		t.Error(err)
	}
	ops := m.Ops()
	if err := MkdirAll(m, "/x"); err != nil || m.Ops() != ops {
		t.Errorf("one that is there: %v, %d operations", err, m.Ops()-ops)
	}
	if err := WriteFileAtomic(m, "/f", nil); err != nil {
		t.Fatal(err)
	}
	if err := MkdirAll(m, "/f/g"); !errors.Is(err, syscall.ENOTDIR) {
		t.Errorf("below a file: %v", err)
	}
	// A parent that may not be opened is somebody else's.
	faulty := NewFaulty(m)
	faulty.SetRules(Rule{Ops: OpSyncDir, Count: 1, Err: syscall.EACCES})
	if err := MkdirAll(faulty, "/x/y/z"); err != nil {
		t.Error(err)
	}
	faulty.SetRules(Rule{Ops: OpSyncDir, Err: syscall.EIO})
	if err := MkdirAll(faulty, "/x/y/w"); !errors.Is(err, syscall.EIO) {
		t.Errorf("a failed sync: %v", err)
	}
}
