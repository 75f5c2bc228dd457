package vfs

import (
	"errors"
	"fmt"
	"math/bits"
	"path"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
)

// everyCall makes each call of FS, File and Map once, and returns what it
// returned. What an operation needs is made on fsys beneath the faults.
func everyCall(t *testing.T, fsys FS, f File, mm Map) map[string]error {
	b := make([]byte, 10)
	lock, lockErr := fsys.Lock("/data/lock")
	if lock != nil {
		defer lock.Close()
	}
	created, createErr := fsys.Open("/data/created", Create)
	if created != nil {
		defer created.Close()
	}
	opened, openErr := fsys.Open("/data/f", ReadOnly)
	if opened != nil {
		defer opened.Close()
	}
	return map[string]error{
		"open":        openErr,
		"create":      createErr,
		"stat":        errors.Join(second(fsys.Stat("/data/f")), second(f.Stat())),
		"list":        second(fsys.List("/data")),
		"mkdir":       fsys.Mkdir("/data/d"),
		"rename":      fsys.Rename("/data/f", "/data/g"),
		"link":        fsys.Link("/data/g", "/data/f"),
		"remove":      fsys.Remove("/data/g"),
		"remove all":  fsys.RemoveAll("/data/d"),
		"sync dir":    fsys.SyncDir("/data"),
		"lock":        lockErr,
		"write":       second(f.WriteAt(b, 0)),
		"read":        second(f.ReadAt(b, 0)),
		"truncate":    f.Truncate(20),
		"allocate":    f.Allocate(4096),
		"map":         second(f.Map(10, false)),
		"populate":    mm.Populate(0, 10),
		"start sync":  f.StartSync(),
		"finish sync": f.FinishSync(),
		"unmap":       mm.Unmap(),
		"close":       f.Close(),
	}
}

// C035, C045, C047: every call can be made to fail, alone, with any error.
func TestFaultyEveryCall(t *testing.T) {
	for i := range bits.Len32(uint32(AllOps)) {
		op := Op(1 << i)
		t.Run(op.String(), func(t *testing.T) {
			fsys := NewFaulty(newMem(t))
			f := open(t, fsys, "/data/f", Create)
			must(t, f.Allocate(4096))
			mm, err := f.Map(4096, true)
			must(t, err)
			fsys.ResetCalls()
			fsys.SetRules(Rule{Ops: op, Err: syscall.ENOLCK})
			for call, err := range everyCall(t, fsys, f, mm) {
				if errors.Is(err, syscall.ENOLCK) != (call == op.String()) {
					t.Errorf("%s: %v", call, err)
				}
				if call == op.String() && !strings.Contains(err.Error(), "/data") {
					t.Errorf("%s: error %q names no path", call, err)
				}
			}
			var seen Op
			for _, c := range fsys.Calls() {
				seen |= c.Op
				if failed := errors.Is(c.Err, syscall.ENOLCK); failed != (c.Op == op) {
					t.Errorf("list has %+v", c)
				}
			}
			if seen != AllOps {
				t.Errorf("not in the list: %v", AllOps&^seen)
			}
		})
	}
}

func TestFaultyRules(t *testing.T) {
	const eio, full = syscall.EIO, syscall.ENOSPC
	write := Rule{Ops: OpWrite}
	with := func(r Rule, change func(r *Rule)) Rule { change(&r); return r }
	for _, tc := range []struct {
		name  string
		rules []Rule
		want  []error // of writes to a.log, a.index, a.log, a.index, ...
	}{
		{"none", nil, []error{nil, nil}},
		{"all", []Rule{{Err: eio}}, []error{eio, eio, eio}},
		{"once, then success", []Rule{with(write, func(r *Rule) { r.Err, r.Count = eio, 1 })}, []error{eio, nil, nil}},
		{"the third", []Rule{with(write, func(r *Rule) { r.Err, r.After, r.Count = eio, 2, 1 })}, []error{nil, nil, eio, nil}},
		{"from the second on", []Rule{with(write, func(r *Rule) { r.Err, r.After = eio, 1 })}, []error{nil, eio, eio, eio}},
		{"by pattern", []Rule{{Glob: "*.log", Err: eio}}, []error{eio, nil, eio, nil}},
		{"second of a pattern", []Rule{{Glob: "*.log", Err: eio, After: 1}}, []error{nil, nil, eio, nil}},
		{"by function", []Rule{{Match: func(op Op, name string) bool { return name == "/data/a.index" }, Err: eio}}, []error{nil, eio, nil, eio}},
		{"other operation", []Rule{{Ops: OpRead | OpStartSync, Err: eio}}, []error{nil, nil}},
		{"first that fires decides", []Rule{{Glob: "*.log", Err: eio, Count: 1}, {Err: full}}, []error{eio, full, full, full}},
		{"a rule is not used up by what an earlier one took", []Rule{{Err: eio, Count: 2}, {Err: full, Count: 1}}, []error{eio, eio, full, nil}},
		{"bad pattern matches nothing", []Rule{{Glob: "[", Err: eio}}, []error{nil, nil}},
		{"no error", []Rule{{}}, []error{nil, nil}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			fsys := NewFaulty(newMem(t))
			files := []File{open(t, fsys, "/data/a.log", Create), open(t, fsys, "/data/a.index", Create)}
			fsys.SetRules(tc.rules...)
			for i, want := range tc.want {
				if _, err := files[i%2].WriteAt([]byte("x"), 0); !errors.Is(err, want) {
					t.Errorf("write %d: %v; want %v", i, err, want)
				}
			}
		})
	}
}

func TestFaultyRenameMatchesEitherName(t *testing.T) {
	for _, glob := range []string{"old", "new"} {
		fsys := NewFaulty(newMem(t), Rule{Ops: OpRename | OpLink, Glob: glob, Err: syscall.EIO})
		for _, err := range []error{fsys.Rename("/data/old", "/data/new"), fsys.Link("/data/old", "/data/new")} {
			if !errors.Is(err, syscall.EIO) || !strings.Contains(err.Error(), "/data/old /data/new") {
				t.Errorf("%s: %v", glob, err)
			}
		}
	}
}

func TestFaultyShort(t *testing.T) {
	m := newMem(t)
	fsys := NewFaulty(m)
	f := open(t, fsys, "/data/f", Create)
	write(t, f, 0, "0123456789")
	fsys.SetRules(Rule{Ops: OpWrite | OpRead, Short: 4, Err: syscall.EIO})
	n, err := f.WriteAt([]byte("abcdefgh"), 0)
	if n != 4 || !errors.Is(err, syscall.EIO) {
		t.Errorf("short write: %d, %v", n, err)
	}
	if got := readAll(t, m, "/data/f"); got != "abcd456789" {
		t.Errorf("short write left %q", got)
	}
	for _, tc := range []struct {
		off     int64
		n, want int
	}{{0, 8, 4}, {0, 3, 3}, {8, 5, 2}, {10, 5, 0}} {
		n, err := f.ReadAt(make([]byte, tc.n), tc.off)
		if n != tc.want || !errors.Is(err, syscall.EIO) {
			t.Errorf("short read of %d at %d: %d, %v; want %d", tc.n, tc.off, n, err, tc.want)
		}
	}
}

// A failed Close or Unmap gives up what it holds all the same.
func TestFaultyCloseReleases(t *testing.T) {
	m := NewMem(MemOptions{})
	fsys := NewFaulty(m, Rule{Ops: OpClose | OpUnmap, Err: syscall.EIO})
	f := open(t, fsys, "/f", Create)
	must(t, f.Allocate(4096))
	mm, err := f.Map(4096, true)
	must(t, err)
	l, err := fsys.Lock("/l")
	must(t, err)
	for _, err := range []error{mm.Unmap(), f.Close(), l.Close()} {
		if !errors.Is(err, syscall.EIO) {
			t.Errorf("error %v", err)
		}
	}
	must(t, m.Remove("/f"))
	if m.Used() != 0 {
		t.Errorf("%d bytes still used", m.Used())
	}
	l, err = m.Lock("/l")
	must(t, err)
	must(t, l.Close())
}

func TestFaultyConcurrent(t *testing.T) {
	fsys := NewFaulty(newMem(t), Rule{Ops: OpWrite, After: 50, Count: 7, Err: syscall.EIO})
	var wg sync.WaitGroup
	var mu sync.Mutex
	failed := 0
	for i := range 4 {
		f := open(t, fsys, fmt.Sprint("/data/", i), Create)
		wg.Go(func() {
			for range 25 {
				if _, err := f.WriteAt([]byte("x"), 0); err != nil {
					mu.Lock()
					failed++
					mu.Unlock()
				}
			}
		})
	}
	wg.Wait()
	writes := 0
	for _, c := range fsys.Calls() {
		if c.Op == OpWrite {
			writes++
		}
	}
	if failed != 7 || writes != 100 {
		t.Errorf("%d of %d writes failed; want 7 of 100", failed, writes)
	}
}

// C019: the list shows that the directory is synced after the rename, and the
// file before it.
func TestC019_WriteFileAtomicOrder(t *testing.T) {
	fsys := NewFaulty(newMem(t))
	must(t, WriteFileAtomic(fsys, "/data/checkpoint", []byte("x")))
	var got []string
	for _, c := range fsys.Calls() {
		got = append(got, strings.TrimSpace(fmt.Sprint(c.Op, " ", c.Name, " ", c.To)))
	}
	want := []string{
		"create /data/checkpoint.tmp", "truncate /data/checkpoint.tmp", "allocate /data/checkpoint.tmp",
		"write /data/checkpoint.tmp",
		"start sync /data/checkpoint.tmp", "finish sync /data/checkpoint.tmp", "close /data/checkpoint.tmp",
		"rename /data/checkpoint.tmp /data/checkpoint", "sync dir /data",
	}
	if !slices.Equal(got, want) {
		t.Errorf("calls\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// C047 for WriteFileAtomic: each call fails in turn. The error comes back, the
// content is whole, and no temporary file stays.
func TestC047_WriteFileAtomicFaults(t *testing.T) {
	const name = "/data/checkpoint"
	calls := 0
	for n := 0; n == 0 || n < calls; n++ {
		m := newMem(t)
		must(t, WriteFileAtomic(m, name, []byte("old")))
		fsys := NewFaulty(m, Rule{After: n, Count: 1, Err: syscall.EIO})
		err := WriteFileAtomic(fsys, name, []byte("new content"))
		if !errors.Is(err, syscall.EIO) {
			t.Errorf("call %d: %v", n, err)
		}
		var last Call
		for _, c := range fsys.Calls() {
			if c.Err != nil {
				last = c
			}
		}
		want := "old"
		if last.Op == OpSyncDir { // visible, not known to be durable
			want = "new content"
		}
		if got := readAll(t, m, name); got != want {
			t.Errorf("call %d, %v: content %q; want %q", n, last.Op, got, want)
		}
		if ok, err := Exists(m, name+".tmp"); ok || err != nil {
			t.Errorf("call %d, %v: temporary file %v, %v", n, last.Op, ok, err)
		}
		fsys = NewFaulty(m)
		must(t, WriteFileAtomic(fsys, name, []byte("new content")))
		calls = len(fsys.Calls())
	}
	if calls < 9 {
		t.Errorf("%d calls", calls)
	}
}

// A power cut between any two of its disk operations leaves old or new.
func TestWriteFileAtomicPowerCuts(t *testing.T) {
	const name = "/data/checkpoint"
	m := newMem(t)
	must(t, WriteFileAtomic(m, name, []byte("old")))
	seen := make(map[string]int)
	m.SetHook(func(Op, string, bool) {
		for seed := range uint64(50) {
			seen[readAll(t, m.PowerCut(newRand(seed)), name)]++
		}
	})
	must(t, WriteFileAtomic(m, name, []byte("new content")))
	checkOutcomes(t, seen, "old", "new content")
}

func TestReadFileFaults(t *testing.T) {
	for _, op := range []Op{OpOpen, OpStat, OpRead, OpClose} {
		m := newMem(t)
		must(t, WriteFileAtomic(m, "/data/f", []byte("x")))
		fsys := NewFaulty(m, Rule{Ops: op, Err: syscall.ESTALE})
		_, err := ReadFile(fsys, "/data/f", 10)
		wantErr(t, err, syscall.ESTALE, path.Base("/data/f"))
	}
	fsys := NewFaulty(newMem(t), Rule{Ops: OpStat, Err: syscall.EACCES})
	_, err := Exists(fsys, "/data/f")
	wantErr(t, err, syscall.EACCES, "/data/f")
}
