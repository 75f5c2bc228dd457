package mmap

import (
	"syscall"
	"testing"
)

// After Populate a store takes no page fault; the check without it shows that
// the measure sees one.
func TestPopulateTakesTheFaults(t *testing.T) {
	const pages = 512
	faults := func(populate bool) int64 {
		f := file(t, 0)
		if err := syscall.Fallocate(int(f.Fd()), 0, 0, pages*4096); err != nil {
			t.Skip(err)
		}
		m, err := Map(f, pages*4096, true)
		if err != nil {
			t.Fatal(err)
		}
		defer m.Unmap()
		if populate {
			if err := m.Populate(0, pages*4096); err != nil {
				t.Skip(err)
			}
		}
		var before, after syscall.Rusage
		_ = syscall.Getrusage(syscall.RUSAGE_SELF, &before)
		for i := range pages {
			m.Bytes()[i*4096] = 1
		}
		_ = syscall.Getrusage(syscall.RUSAGE_SELF, &after)
		return after.Minflt - before.Minflt + after.Majflt - before.Majflt
	}
	without, with := faults(false), faults(true)
	if without < pages/32 {
		t.Skipf("only %d faults without populating: large pages", without)
	}
	if with > without/4 {
		t.Errorf("%d faults after Populate, %d without", with, without)
	}
}
