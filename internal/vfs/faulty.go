package vfs

import (
	"io"
	"io/fs"
	"path/filepath"
	"slices"
	"sync"
)

// A Rule makes calls of a [Faulty] fail. The zero value but for Err fails every
// call.
type Rule struct {
	Ops   Op                            // which operations; 0 is all
	Glob  string                        // pattern of filepath.Match for the last element of the name; "" is all
	Match func(op Op, name string) bool // further condition; nil is none. It must not call the Faulty
	After int                           // how many matching calls pass first
	Count int                           // how many fail then; 0 is all
	Err   error                         // what they return, in a *fs.PathError; nil lets them pass
	Short int                           // OpRead, OpWrite: bytes that are moved before Err
}

// A Call is one call that a [Faulty] saw.
type Call struct {
	Op   Op
	Name string
	To   string // OpRename, OpLink: the new name
	// Off and N are position and length of OpRead, OpWrite and OpPopulate; N is
	// the size of OpTruncate, OpAllocate and OpMap.
	Off, N int64
	Err    error // what it returned
}

// Faulty wraps a file system, fails calls by rule and keeps a list of all it
// saw, so that a test can first count the calls and then fail each in turn, or
// check the order of syncs (C019, C047).
//
// A failed call does nothing but for the Short bytes, with two exceptions: Close
// and Unmap give up what they hold all the same, and a failed FinishSync over a
// [Mem] loses what it covered: no later sync makes it durable (replication R8).
// Rename and Link match by either name.
type Faulty struct {
	fs FS

	mu    sync.Mutex // guards the rest; held across Rule.Match only
	rules []*activeRule
	calls []Call
}

type activeRule struct {
	Rule
	seen int
}

// NewFaulty wraps fsys.
func NewFaulty(fsys FS, rules ...Rule) *Faulty {
	f := &Faulty{fs: fsys}
	f.SetRules(rules...)
	return f
}

// SetRules replaces the rules; their counts start anew. The first rule that
// wants a call to fail decides; one that is past its Count, or not yet at After,
// leaves it to the next.
func (f *Faulty) SetRules(rules ...Rule) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.rules = nil
	for _, r := range rules {
		f.rules = append(f.rules, &activeRule{Rule: r})
	}
}

// Calls returns the calls so far in the order in which they returned.
func (f *Faulty) Calls() []Call {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.calls)
}

// ResetCalls empties the list of calls.
func (f *Faulty) ResetCalls() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls = nil
}

func (r *Rule) matches(op Op, name string) bool {
	if r.Ops != 0 && r.Ops&op == 0 {
		return false
	}
	if r.Glob != "" {
		if ok, err := filepath.Match(r.Glob, filepath.Base(name)); !ok || err != nil {
			return false
		}
	}
	return r.Match == nil || r.Match(op, name)
}

// fault returns the rule by which c fails, nil if it passes.
func (f *Faulty) fault(c Call) *activeRule {
	f.mu.Lock()
	defer f.mu.Unlock()
	var failing *activeRule
	for _, r := range f.rules {
		if !r.matches(c.Op, c.Name) && (c.To == "" || !r.matches(c.Op, c.To)) {
			continue
		}
		r.seen++
		n := r.seen - r.After
		if n > 0 && (r.Count == 0 || n <= r.Count) && r.Err != nil {
			failing = r
			break
		}
	}
	return failing
}

// run makes the call, or lets it fail, and notes it.
func (f *Faulty) run(c Call, do func() error) error {
	if r := f.fault(c); r != nil {
		return f.note(c, c.error(r.Err))
	}
	return f.note(c, do())
}

func (f *Faulty) note(c Call, err error) error {
	c.Err = err
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls = append(f.calls, c)
	return err
}

func (c Call) error(err error) error {
	name := c.Name
	if c.To != "" {
		name += " " + c.To
	}
	return &fs.PathError{Op: c.Op.String(), Path: name, Err: err}
}

// Open implements [FS].
func (f *Faulty) Open(name string, mode Mode) (file File, err error) {
	op := OpOpen
	if mode == Create || mode == CreateNew {
		op = OpCreate
	}
	err = f.run(Call{Op: op, Name: name}, func() error {
		file, err = f.fs.Open(name, mode)
		return err
	})
	if err != nil {
		return nil, err
	}
	return &faultyFile{File: file, f: f}, nil
}

// Stat implements [FS].
func (f *Faulty) Stat(name string) (info Info, err error) {
	err = f.run(Call{Op: OpStat, Name: name}, func() error {
		info, err = f.fs.Stat(name)
		return err
	})
	return info, err
}

// List implements [FS].
func (f *Faulty) List(dir string) (infos []Info, err error) {
	err = f.run(Call{Op: OpList, Name: dir}, func() error {
		infos, err = f.fs.List(dir)
		return err
	})
	return infos, err
}

// Mkdir implements [FS].
func (f *Faulty) Mkdir(dir string) error {
	return f.run(Call{Op: OpMkdir, Name: dir}, func() error { return f.fs.Mkdir(dir) })
}

// Remove implements [FS].
func (f *Faulty) Remove(name string) error {
	return f.run(Call{Op: OpRemove, Name: name}, func() error { return f.fs.Remove(name) })
}

// RemoveAll implements [FS].
func (f *Faulty) RemoveAll(name string) error {
	return f.run(Call{Op: OpRemoveAll, Name: name}, func() error { return f.fs.RemoveAll(name) })
}

// Rename implements [FS].
func (f *Faulty) Rename(oldName, newName string) error {
	return f.run(Call{Op: OpRename, Name: oldName, To: newName}, func() error { return f.fs.Rename(oldName, newName) })
}

// Link implements [FS].
func (f *Faulty) Link(oldName, newName string) error {
	return f.run(Call{Op: OpLink, Name: oldName, To: newName}, func() error { return f.fs.Link(oldName, newName) })
}

// SyncDir implements [FS].
func (f *Faulty) SyncDir(dir string) error {
	return f.run(Call{Op: OpSyncDir, Name: dir}, func() error { return f.fs.SyncDir(dir) })
}

// Lock implements [FS].
func (f *Faulty) Lock(name string) (lock io.Closer, err error) {
	err = f.run(Call{Op: OpLock, Name: name}, func() error {
		lock, err = f.fs.Lock(name)
		return err
	})
	if err != nil {
		return nil, err
	}
	return &faultyLock{lock: lock, f: f, name: name}, nil
}

// BootID implements [FS]. It cannot fail.
func (f *Faulty) BootID() [16]byte { return f.fs.BootID() }

// close runs what must happen even if the call is to fail.
func (f *Faulty) close(c Call, do func() error) error {
	r := f.fault(c)
	err := do()
	if r != nil {
		err = c.error(r.Err)
	}
	return f.note(c, err)
}

type faultyLock struct {
	lock io.Closer
	f    *Faulty
	name string
}

func (l *faultyLock) Close() error {
	return l.f.close(Call{Op: OpClose, Name: l.name}, l.lock.Close)
}

type faultyFile struct {
	File
	f *Faulty
}

func (f *faultyFile) call(op Op, off, n int64) Call {
	return Call{Op: op, Name: f.Name(), Off: off, N: n}
}

func (f *faultyFile) ReadAt(p []byte, off int64) (int, error) {
	return f.move(f.call(OpRead, off, int64(len(p))), f.File.ReadAt, p, off)
}

func (f *faultyFile) WriteAt(p []byte, off int64) (int, error) {
	return f.move(f.call(OpWrite, off, int64(len(p))), f.File.WriteAt, p, off)
}

func (f *faultyFile) move(c Call, at func([]byte, int64) (int, error), p []byte, off int64) (n int, err error) {
	r := f.f.fault(c)
	if r == nil {
		n, err = at(p, off)
		return n, f.f.note(c, err)
	}
	if r.Short > 0 {
		n, err = at(p[:min(r.Short, len(p))], off)
	}
	if err == nil || err == io.EOF {
		err = c.error(r.Err)
	}
	return n, f.f.note(c, err)
}

func (f *faultyFile) Close() error {
	return f.f.close(f.call(OpClose, 0, 0), f.File.Close)
}

func (f *faultyFile) Stat() (info Info, err error) {
	err = f.f.run(f.call(OpStat, 0, 0), func() error {
		info, err = f.File.Stat()
		return err
	})
	return info, err
}

func (f *faultyFile) NextData(off int64) (from, to int64, err error) {
	err = f.f.run(f.call(OpRead, off, 0), func() error {
		from, to, err = f.File.NextData(off)
		return err
	})
	return from, to, err
}

func (f *faultyFile) Truncate(size int64) error {
	return f.f.run(f.call(OpTruncate, 0, size), func() error { return f.File.Truncate(size) })
}

func (f *faultyFile) Allocate(size int64) error {
	return f.f.run(f.call(OpAllocate, 0, size), func() error { return f.File.Allocate(size) })
}

func (f *faultyFile) StartSync() error {
	return f.f.run(f.call(OpStartSync, 0, 0), f.File.StartSync)
}

func (f *faultyFile) FinishSync() error {
	c := f.call(OpFinishSync, 0, 0)
	r := f.f.fault(c)
	if r == nil {
		return f.f.note(c, f.File.FinishSync())
	}
	if mem, ok := f.File.(*memFile); ok {
		mem.failSync()
	}
	return f.f.note(c, c.error(r.Err))
}

func (f *faultyFile) Map(length int64, writable bool) (m Map, err error) {
	err = f.f.run(f.call(OpMap, 0, length), func() error {
		m, err = f.File.Map(length, writable)
		return err
	})
	if err != nil {
		return nil, err
	}
	return &faultyMap{Map: m, file: f}, nil
}

type faultyMap struct {
	Map
	file *faultyFile
}

func (m *faultyMap) Populate(off, n int64) error {
	return m.file.f.run(m.file.call(OpPopulate, off, n), func() error { return m.Map.Populate(off, n) })
}

func (m *faultyMap) PopulateRead(off, n int64) error {
	return m.file.f.run(m.file.call(OpPopulate, off, n), func() error { return m.Map.PopulateRead(off, n) })
}

func (m *faultyMap) Unmap() error {
	return m.file.f.close(m.file.call(OpUnmap, 0, 0), m.Map.Unmap)
}
