// Command harness stands in for the peer benchmark's: it has what the adapter
// joins, and does with it what the harness does.
package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
)

type Caps uint

const (
	CapBatch Caps = 1 << iota
	CapDurable
	CapGroup
	CapPointRead
)

type OpenOptions struct {
	Dir          string
	Durable      bool
	SegmentBytes int64
	MaxBytes     int64
	ValueSize    int
	Recover      bool
}

type Info struct {
	Name, Version, Note string
	Caps                Caps
}

type Log interface {
	Append(v []byte) error
	AppendBatch(vs [][]byte) error
	Read(ordinal uint64, buf []byte) ([]byte, error)
	Scan(fn func(v []byte) bool) error
	Count() (uint64, error)
	Close() error
}

var engines = map[string]struct {
	Info
	open func(OpenOptions) (Log, error)
}{}

func Register(info Info, open func(OpenOptions) (Log, error)) {
	e := engines[info.Name]
	e.Info, e.open = info, open
	engines[info.Name] = e
}

func main() {
	if len(os.Args) != 2 || os.Args[1] != "-check" {
		fail(fmt.Errorf("arguments %q; want those given to run.sh", os.Args[1:]))
	}
	if n := len(engines); n != 2 {
		fail(fmt.Errorf("%d engines registered; want 2", n))
	}
	all := CapBatch | CapDurable | CapGroup | CapPointRead
	for name, caps := range map[string]Caps{"tidemark": all, "tidemark-1": all &^ CapBatch} {
		e, ok := engines[name]
		if !ok || e.Caps != caps {
			fail(fmt.Errorf("%s: registered %v with %b; want %b", name, ok, e.Caps, caps))
		}
		for _, durable := range []bool{false, true} {
			if err := check(e.open, durable); err != nil {
				fail(fmt.Errorf("%s, durable %v: %w", name, durable, err))
			}
		}
	}
	if !strings.Contains(engines["tidemark"].Note, "every 4096 bytes") {
		fail(fmt.Errorf("note %q does not state the index interval", engines["tidemark"].Note))
	}
	fmt.Println("ok")
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, "harness:", err)
	os.Exit(1)
}

const writers, each, batch = 4, 50, 100

func value(i int) []byte { return bytes.Repeat([]byte{byte(i), byte(i >> 8)}, 512) }

func check(open func(OpenOptions) (Log, error), durable bool) error {
	dir, err := os.MkdirTemp("", "adapter-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	// MaxBytes and ValueSize are lies: the adapter must not look at them.
	o := OpenOptions{Dir: dir, Durable: durable, SegmentBytes: 8 << 20, MaxBytes: 1, ValueSize: 1}
	l, err := open(o)
	if err != nil {
		return err
	}
	vs := make([][]byte, batch)
	for i := range vs {
		vs[i] = value(i)
	}
	if err := l.AppendBatch(vs); err != nil {
		return err
	}
	for i := range vs {
		clear(vs[i]) // the log must have kept nothing
	}
	errs := make([]error, writers)
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			for i := range each {
				if w%2 == 0 {
					errs[w] = errors.Join(errs[w], l.Append(value(i)))
				} else {
					errs[w] = errors.Join(errs[w], l.AppendBatch([][]byte{value(i)}))
				}
			}
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	const total = batch + writers*each
	for pass := range 2 {
		if n, err := l.Count(); n != total || err != nil {
			return fmt.Errorf("pass %d: count %d, %v; want %d", pass, n, err, total)
		}
		n := 0
		if err := l.Scan(func(v []byte) bool {
			if n < batch && !bytes.Equal(v, value(n)) || len(v) != 1024 {
				err = fmt.Errorf("pass %d: record %d differs", pass, n)
			}
			n++
			return true
		}); err != nil {
			return err
		}
		if err != nil || n != total {
			return errors.Join(err, fmt.Errorf("pass %d: scanned %d records; want %d", pass, n, total))
		}
		stopped := 0
		if err := l.Scan(func([]byte) bool { stopped++; return stopped < 3 }); err != nil || stopped != 3 {
			return fmt.Errorf("scan told to stop after 3 went on to %d, %v", stopped, err)
		}
		buf := make([]byte, 1024+64)
		for i := range uint64(batch) {
			if v, err := l.Read(i, buf); err != nil || !bytes.Equal(v, value(int(i))) {
				return fmt.Errorf("pass %d: read %d: %d bytes, %v", pass, i, len(v), err)
			}
		}
		if v, err := l.Read(7, nil); err != nil || !bytes.Equal(v, value(7)) {
			return fmt.Errorf("pass %d: read without a buffer: %d bytes, %v", pass, len(v), err)
		}
		if _, err := l.Read(total, buf); err == nil {
			return fmt.Errorf("pass %d: a record past the end was read", pass)
		}
		if pass == 0 {
			if err := l.Close(); err != nil {
				return err
			}
			o.Recover = true
			if l, err = open(o); err != nil {
				return err
			}
		}
	}
	if err := noAllocations(l); err != nil {
		return err
	}
	return l.Close()
}

// noAllocations checks the calls the harness counts heap objects of. Opening and
// rolling make some, on other goroutines too: a mean over many calls rounds them
// away.
func noAllocations(l Log) error {
	v, buf := value(1), make([]byte, 2048)
	vs := [][]byte{v, v, v}
	calls := map[string]func() error{
		"Append":      func() error { return l.Append(v) },
		"AppendBatch": func() error { return l.AppendBatch(vs) },
		"Read":        func() error { _, err := l.Read(3, buf); return err },
	}
	for name, call := range calls {
		var err error
		if n := testing.AllocsPerRun(500, func() { err = errors.Join(err, call()) }); n != 0 || err != nil {
			return fmt.Errorf("%s: %v allocations, %v", name, n, err)
		}
	}
	return nil
}
