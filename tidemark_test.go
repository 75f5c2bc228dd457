package tidemark

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"testing"
	"time"
)

func TestAppendReopenRead(t *testing.T) {
	for _, mode := range []SyncMode{Always, Interval, Never} {
		t.Run(mode.String(), func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "log")
			o := Options{Sync: mode, SegmentBytes: 64 << 10}
			l, err := Open(dir, o)
			if err != nil {
				t.Fatal(err)
			}
			n := 0
			for i := range 50 {
				var recs []Record
				for range i%7 + 1 {
					recs = append(recs, Record{Key: fmt.Append(nil, "k", n), Value: bytes.Repeat([]byte{byte(n)}, 1000)})
					n++
				}
				if _, err := l.Append(recs...); err != nil {
					t.Fatal(err)
				}
			}
			check := func(l *Log) {
				t.Helper()
				i := 0
				for r, err := range l.Records(0) {
					if err != nil {
						t.Fatal(err)
					}
					if string(r.Key) != fmt.Sprint("k", i) || r.Offset != int64(i) || len(r.Value) != 1000 || r.Value[5] != byte(i) {
						t.Fatalf("record %d: offset %d key %s", i, r.Offset, r.Key)
					}
					i++
				}
				if i != n {
					t.Fatalf("read %d of %d", i, n)
				}
				for i := range n {
					r, err := l.Get(int64(i), nil)
					if err != nil || string(r.Key) != fmt.Sprint("k", i) || r.Offset != int64(i) {
						t.Fatalf("get %d: %v %v", i, r, err)
					}
				}
			}
			check(l)
			t.Logf("%+v", l.Stats())
			b := filepath.Join(filepath.Dir(dir), "backup")
			if err := l.Backup(b); err != nil {
				t.Fatal(err)
			}
			id := l.ID()
			for range 2 {
				if err := l.Close(); err != nil {
					t.Fatal(err)
				}
			}
			if _, err := l.Append(Record{}); !errors.Is(err, ErrClosed) {
				t.Fatal(err)
			}
			for _, d := range []string{dir, b} {
				l, err = Open(d, o)
				if err != nil {
					t.Fatal(err)
				}
				if l.Damage() != nil || l.LogEndOffset() != int64(n) {
					t.Fatal(l.Damage(), l.Stats())
				}
				if (l.ID() == id) != (d == dir) {
					t.Fatal("id")
				}
				check(l)
				if base, err := l.Append(Record{Value: []byte("x")}); err != nil || base != int64(n) {
					t.Fatal(base, err)
				}
				if err := l.Close(); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

func TestTail(t *testing.T) {
	l, err := Open(t.TempDir(), Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		want := int64(0)
		for r, err := range l.Tail(ctx, 0) {
			if err != nil {
				if !errors.Is(err, context.Canceled) {
					t.Error(err)
				}
				return
			}
			if r.Offset != want {
				t.Errorf("offset %d want %d", r.Offset, want)
			}
			if want++; want == 200 {
				cancel()
			}
		}
	})
	var w sync.WaitGroup
	for range 4 {
		w.Go(func() {
			for range 50 {
				if _, err := l.Append(Record{Value: []byte("v")}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	w.Wait()
	time.AfterFunc(5*time.Second, cancel)
	wg.Wait()
}

func BenchmarkAppend100(b *testing.B)    { benchAppend(b, 100, 1) }
func BenchmarkAppend1K(b *testing.B)     { benchAppend(b, 1024, 1) }
func BenchmarkAppend1Kx100(b *testing.B) { benchAppend(b, 1024, 100) }

func benchAppend(b *testing.B, size, batch int) {
	l, err := Open(b.TempDir(), Options{Sync: Never})
	if err != nil {
		b.Fatal(err)
	}
	defer l.Close()
	recs := make([]Record, batch)
	for i := range recs {
		recs[i].Value = bytes.Repeat([]byte("x"), size)
	}
	b.SetBytes(int64(size * batch))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := l.Append(recs...); err != nil {
			b.Fatal(err)
		}
	}
}
