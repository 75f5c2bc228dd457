package tidemark_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tidemark-log/tidemark"
)

// TestNoMethodForgotAfterClose calls each method that Log has, also one that was
// added yesterday, on a closed log: no panic, no wait, and where it can fail or
// yields, the error is ErrClosed. TestEveryMethodAfterClose says more about
// those it knows.
func TestNoMethodForgotAfterClose(t *testing.T) {
	l := open(t, t.TempDir(), tidemark.Options{})
	appendTo(t, l, 5, 100)
	closeLog(t, l)
	spec := map[reflect.Type]reflect.Value{
		reflect.TypeFor[context.Context](): reflect.ValueOf(context.Background()),
		reflect.TypeFor[time.Time]():       reflect.ValueOf(time.UnixMilli(0)),
		reflect.TypeFor[string]():          reflect.ValueOf(filepath.Join(t.TempDir(), "x")),
		reflect.TypeFor[int]():             reflect.ValueOf(1 << 20),
	}
	isError := func(t reflect.Type) bool { return t == reflect.TypeFor[error]() }
	v := reflect.ValueOf(l)
	for i := range v.NumMethod() {
		m, name := v.Method(i), v.Type().Method(i).Name
		var args []reflect.Value
		for j := range m.Type().NumIn() {
			in := m.Type().In(j)
			if a, ok := spec[in]; ok {
				args = append(args, a)
			} else if m.Type().IsVariadic() && j == m.Type().NumIn()-1 {
				args = append(args, reflect.Zero(in.Elem()))
			} else if in.Kind() == reflect.Func {
				args = append(args, reflect.MakeFunc(in, func([]reflect.Value) []reflect.Value {
					return []reflect.Value{reflect.ValueOf(true).Convert(in.Out(0))}
				}))
			} else {
				args = append(args, reflect.Zero(in))
			}
		}
		done := make(chan []reflect.Value, 1)
		go func() { done <- m.Call(args) }()
		var out []reflect.Value
		select {
		case out = <-done:
		case <-time.After(5 * time.Second):
			t.Fatalf("%s waits after Close", name)
		}
		for _, o := range out {
			var err error
			switch {
			case isError(o.Type()):
				err, _ = o.Interface().(error)
			case o.Kind() == reflect.Func && o.Type().CanSeq2() && isError(o.Type().In(0).In(1)):
				for _, e := range o.Seq2() {
					err, _ = e.Interface().(error)
				}
			default:
				continue
			}
			// An AppendBatch without a batch is wrong in itself; Close says again what
			// it said.
			switch {
			case name == "Close" && err == nil:
			case name == "AppendBatch" && err != nil:
			case !errors.Is(err, tidemark.ErrClosed):
				t.Errorf("%s after Close = %v; want ErrClosed", name, err)
			}
		}
	}
}

// held counts what the process holds of the files under dir: maps, with those
// of removed files, and descriptors.
func held(t *testing.T, dir string) (maps, files []string) {
	t.Helper()
	b, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Skipf("this system does not list maps: %v", err)
	}
	for line := range strings.Lines(string(b)) {
		if strings.Contains(line, dir+"/") {
			maps = append(maps, line)
		}
	}
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Skip(err)
	}
	for _, fd := range fds {
		if name, err := os.Readlink("/proc/self/fd/" + fd.Name()); err == nil && strings.HasPrefix(name, dir+"/") {
			files = append(files, name)
		}
	}
	return maps, files
}

// TestNothingHeld: neither a Close nor an Open that failed keeps a map, a
// descriptor or a goroutine, of a removed file neither (C032); a view keeps one
// map, until it is released.
func TestNothingHeld(t *testing.T) {
	root := t.TempDir()
	free := func(t *testing.T, when string) {
		t.Helper()
		maps, files := held(t, root)
		if len(maps) > 0 || len(files) > 0 {
			t.Errorf("%s the process holds\n%s%s", when, strings.Join(maps, ""), strings.Join(files, "\n"))
		}
	}
	goroutines := runtime.NumGoroutine()
	for _, mode := range modes {
		dir := filepath.Join(root, mode.String())
		o := tidemark.Options{Sync: mode, SegmentBytes: 8 << 10}
		t.Run(mode.String(), func(t *testing.T) {
			l := open(t, dir, o)
			appendTo(t, l, 40, 900)
			checkAll(t, l, 0, 40)
			if maps, files := held(t, root); len(maps) == 0 || len(files) == 0 {
				t.Fatalf("an open log holds maps %q, files %q: the test looks at the wrong place", maps, files)
			}
			view, err := l.View(0, 1<<20)
			if err != nil {
				t.Fatal(err)
			}
			closeLog(t, l)
			if maps, _ := held(t, root); len(maps) != 1 {
				t.Errorf("with one view out the process holds\n%s", strings.Join(maps, ""))
			}
			view.Release()
			free(t, "after Close")

			for name, spoil := range map[string]func() (restore func()){
				"bad options": func() func() {
					o.SegmentBytes = 1
					return func() { o.SegmentBytes = 8 << 10 }
				},
				"the lock taken": func() func() {
					other := open(t, dir, o)
					return func() { closeLog(t, other) }
				},
				"no file for a slot": func() func() {
					slot := filepath.Join(dir, "tidemark.slot")
					was, err := os.ReadFile(slot)
					if err != nil {
						t.Fatal(err)
					}
					if err := os.Remove(slot); err != nil {
						t.Fatal(err)
					}
					if err := os.Mkdir(slot, 0o755); err != nil {
						t.Fatal(err)
					}
					return func() {
						if err := errors.Join(os.Remove(slot), os.WriteFile(slot, was, 0o644)); err != nil {
							t.Fatal(err)
						}
					}
				},
			} {
				restore := spoil()
				if l, err := tidemark.Open(dir, o); err == nil {
					l.Close()
					t.Errorf("open with %s went through", name)
				}
				restore()
				free(t, "after an open with "+name)
			}

			flipLast(t, dir)
			l = open(t, dir, o)
			if l.Damage() == nil {
				t.Error("no damage")
			}
			closeLog(t, l)
			free(t, "after Close of a damaged log")
			if err := os.RemoveAll(dir); err != nil {
				t.Fatal(err)
			}
			l = open(t, dir, o)
			appendTo(t, l, 40, 900)
			entries, err := os.ReadDir(dir)
			if err != nil {
				t.Fatal(err)
			}
			for _, e := range entries { // maintenance may make another beside us
				if err := os.Remove(filepath.Join(dir, e.Name())); err != nil && !errors.Is(err, os.ErrNotExist) {
					t.Fatal(err)
				}
			}
			l.Close() // what it says is its own affair: the files are gone
			free(t, "after Close of a removed log")
		})
	}
	for range 100 {
		if runtime.NumGoroutine() <= goroutines {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	buf := make([]byte, 1<<16)
	t.Errorf("%d goroutines, %d before:\n%s", runtime.NumGoroutine(), goroutines, buf[:runtime.Stack(buf, true)])
}

// TestCloseAgainstAppend: of appends that run into a Close each either is in the
// log or was told ErrClosed; whoever waits is let go; Close called by several
// says the same to each, once it is done.
func TestCloseAgainstAppend(t *testing.T) {
	rounds := 14
	switch {
	case *long:
		rounds = 2000
	case testing.Short():
		rounds = 4
	}
	for _, mode := range modes {
		t.Run(mode.String(), func(t *testing.T) {
			for round := range rounds {
				dir := filepath.Join(t.TempDir(), fmt.Sprint(round))
				o := tidemark.Options{Sync: mode, SegmentBytes: 16 << 10}
				l := open(t, dir, o)
				var wg sync.WaitGroup
				var mu sync.Mutex
				kept := map[int64]bool{} // offsets that were acknowledged
				ack := func(base int64) {
					mu.Lock()
					defer mu.Unlock()
					if kept[base] {
						t.Errorf("offset %d was given twice", base)
					}
					kept[base] = true
				}
				failed := func(err error) bool {
					if err != nil && !errors.Is(err, tidemark.ErrClosed) {
						t.Error(err)
					}
					return err != nil
				}
				for range 2 {
					wg.Go(func() {
						for {
							base, err := l.Append(tidemark.Record{Value: make([]byte, 500)})
							if failed(err) {
								return
							}
							ack(base)
						}
					})
				}
				wg.Go(func() {
					for {
						a, err := l.AppendAsync(tidemark.Record{Value: make([]byte, 500)})
						if failed(err) {
							return
						}
						// One that went in is made durable by Close at the latest.
						if err := a.Wait(t.Context()); err != nil {
							t.Errorf("Wait = %v", err)
							return
						}
						ack(a.Base)
					}
				})
				wg.Go(func() {
					for _, err := range l.Tail(t.Context(), 0) {
						if err != nil {
							failed(err)
							return
						}
					}
				})
				time.Sleep(time.Duration(round%7) * 200 * time.Microsecond)
				for range 3 {
					wg.Go(func() {
						if err := l.Close(); err != nil {
							t.Errorf("Close = %v", err)
						}
						if _, err := l.Append(rec(0, 1)); !errors.Is(err, tidemark.ErrClosed) {
							t.Errorf("Append after Close = %v", err)
						}
					})
				}
				done := make(chan struct{})
				go func() { wg.Wait(); close(done) }()
				select {
				case <-done:
				case <-time.After(20 * time.Second):
					buf := make([]byte, 1<<20)
					t.Fatalf("round %d hangs:\n%s", round, buf[:runtime.Stack(buf, true)])
				}
				end := l.LogEndOffset()
				l = open(t, dir, o)
				if l.Damage() != nil || l.LogEndOffset() != end {
					t.Fatalf("round %d: log ends at %d after Close, at %d when opened; damage %v", round, end, l.LogEndOffset(), l.Damage())
				}
				for base := range kept {
					if r, err := l.Get(base, nil); err != nil || r.Offset != base {
						t.Fatalf("round %d: acknowledged offset %d: %d, %v", round, base, r.Offset, err)
					}
				}
				closeLog(t, l)
				if t.Failed() {
					return
				}
			}
		})
	}
}
