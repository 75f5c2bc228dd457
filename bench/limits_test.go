package main

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"strings"
	"testing"

	"github.com/tidemark-log/tidemark/record"
)

var appendLoops = []loop{loopMemory, loopReady, loopInline, loopZeros, loopAhead, loopPwrite, loopSync}

// A loop's figure counts records that are there: run appends, reads back and
// compares; here the frames are walked once more and their bytes added up.
func TestLoops(t *testing.T) {
	for _, lp := range appendLoops {
		for _, shape := range []struct{ size, batch, writers int }{{100, 1, 1}, {100, 100, 1}, {1 << 10, 1, 16}, {16 << 10, 100, 1}, {16 << 10, 3, 4}} {
			t.Run(fmt.Sprintf("%s/%d/x%d/w%d", lp, shape.size, shape.batch, shape.writers), func(t *testing.T) {
				b := testBench(t, nil)
				b.capBytes = 4 << 20
				c := &cell{kind: string(lp), sync: "never", size: shape.size, batch: shape.batch, writers: shape.writers}
				if lp == loopSync {
					c.sync = "always"
				}
				s, err := runBareAppend(b, c)
				if err != nil {
					t.Fatal(err)
				}
				if s.records == 0 || s.records%int64(c.batch) != 0 {
					t.Errorf("%d records; want some, in batches of %d", s.records, c.batch)
				}
				if s.records*int64(c.size) > b.capBytes+int64(c.writers)*frameSize(c.batch, c.size) {
					t.Errorf("%d records of %d bytes pass the cap of %d", s.records, c.size, b.capBytes)
				}
				if want := s.records / int64(c.batch); lp == loopSync && s.latency.TotalCount() != want {
					t.Errorf("%d latencies of %d calls", s.latency.TotalCount(), want)
				}

				l, err := b.openBare(lp)
				if err != nil {
					t.Fatal(err)
				}
				defer b.closeBare(l)
				_, acked, err := b.drive(c, min(8, b.calls(c)), b.t, false, l.append)
				if err != nil {
					t.Fatal(err)
				}
				var frames int64
				for _, n := range acked {
					frames += n / int64(c.batch)
				}
				if want := frames * frameSize(c.batch, c.size); l.end.Load() != want {
					t.Errorf("%d frames end at %d; want %d", frames, l.end.Load(), want)
				}
				if lp == loopSync {
					return // drive above did not wait for it
				}
				acked[0]++
				if err := l.readBack(newChecker(b.values(c.size), c.writers), acked); err == nil {
					t.Error("a record that was never appended was not missed")
				}
			})
		}
	}
}

// A loop syncs what it says it synced: one sync covers all that was written by
// then, and a failed one is told to everybody from then on.
func TestLoop_commit(t *testing.T) {
	b := testBench(t, nil)
	l, err := b.openBare(loopSync)
	if err != nil {
		t.Fatal(err)
	}
	recs := []record.Record{{Value: b.values(100).at(0, 0)}}
	for range 3 {
		if err := l.append(recs); err != nil {
			t.Fatal(err)
		}
		if l.synced != l.end.Load() {
			t.Errorf("append returned with %d synced of %d written", l.synced, l.end.Load())
		}
	}
	if err := b.closeBare(l); err != nil {
		t.Fatal(err)
	}
	l.end.Add(1) // written after the file was closed: the sync must fail, and go on failing
	for range 2 {
		if err := l.commit(l.end.Load()); err == nil {
			t.Error("no error from syncing a closed file")
		}
	}
}

// The bytes a loop writes are as many as the log's own batch takes, to 2 %.
func TestFrameSize(t *testing.T) {
	for _, size := range []int{100, 1 << 10, 16 << 10} {
		for _, batch := range []int{1, 100} {
			vals := newValues(size)
			recs := make([]record.Record, batch)
			for i := range recs {
				recs[i].Value = vals.at(0, int64(i))
			}
			got, want := frameSize(batch, size), int64(record.Size(recs, 1))
			if d := got - want; d*50 > want || -d*50 > want {
				t.Errorf("%d x %d bytes: frame of %d bytes, batch of %d", batch, size, got, want)
			}
			b := make([]byte, got)
			if n := putFrame(b, recs); int64(n) != got {
				t.Errorf("%d x %d bytes: wrote %d, frameSize %d", batch, size, n, got)
			}
		}
	}
}

// No altered byte that the checksum covers, nor one of the two fields that say
// what it covers, goes unnoticed, and none makes a reader panic.
func TestFrame_flips(t *testing.T) {
	vals := newValues(40)
	recs := []record.Record{{Value: vals.at(0, 0)}, {Value: vals.at(0, 1)}}
	good := make([]byte, frameSize(2, 40))
	putFrame(good, recs)
	read := func(b []byte) (n int, err error) {
		for _, err := range frameValues(b) {
			if err != nil {
				return n, err
			}
			n++
		}
		return n, nil
	}
	if n, err := read(good); n != 2 || err != nil {
		t.Fatalf("intact: %d values, %v", n, err)
	}
	for i := range good {
		if i < posLength || i >= posLength+4 && i < posCRC {
			continue // base offset, leader epoch and magic: zeros here, outside the checksum
		}
		for bit := range 8 {
			b := append([]byte(nil), good...)
			b[i] ^= 1 << bit
			if _, err := read(b); err == nil {
				t.Errorf("byte %d bit %d: not noticed", i, bit)
			}
		}
	}
	for n := range len(good) - 1 {
		if _, err := read(good[:n+1]); err == nil {
			t.Errorf("cut to %d bytes: not noticed", n+1)
		}
	}
	// Lengths that disagree under a right checksum.
	for name, edit := range map[string]func(b []byte){
		"value longer than the frame": func(b []byte) { b[record.HeaderSize+2] = 1 },
		"one value too many":          func(b []byte) { b[posCount+3] = 3 },
		"one value too few":           func(b []byte) { b[posCount+3] = 1 },
	} {
		b := append([]byte(nil), good...)
		edit(b)
		sum(b)
		if _, err := read(b); err == nil {
			t.Errorf("%s: not noticed", name)
		}
	}
}

// The loops must not be slowed down by the collector.
func TestLoops_noAllocations(t *testing.T) {
	for _, lp := range appendLoops {
		b := testBench(t, nil)
		l, err := b.openBare(lp)
		if err != nil {
			t.Fatal(err)
		}
		recs := []record.Record{{Value: b.values(100).at(0, 0)}}
		if n := testing.AllocsPerRun(100, func() {
			if err := l.append(recs); err != nil {
				t.Fatal(err)
			}
		}); n != 0 {
			t.Errorf("%s: %v allocations an append", lp, n)
		}
		if err := b.closeBare(l); err != nil {
			t.Error(err)
		}
	}
}

func TestBareReads(t *testing.T) {
	b := testBench(t, nil)
	for _, c := range []*cell{
		{kind: string(loopScan), size: 100, batch: 10, writers: 1, run: runBareScan},
		{kind: string(loopPoint), size: 100, batch: 1, writers: 1, run: runBarePoint},
		{kind: string(loopPoint), size: 100, batch: 10, writers: 1, run: runBarePoint},
		{kind: string(loopFirst), size: 100, batch: 10, writers: 1, run: runBarePoint},
	} {
		s, err := c.run(b, c)
		if err != nil {
			t.Errorf("%s x%d: %v", c.kind, c.batch, err)
		}
		want := b.readCalls(c) * int64(c.batch)
		switch loop(c.kind) {
		case loopFirst:
			want = b.readCalls(c)
		case loopPoint:
			want = s.records - s.records%sampleEvery
		}
		if s.records != want || s.records == 0 {
			t.Errorf("%s x%d: %d records; want %d", c.kind, c.batch, s.records, want)
		}
	}
}

func TestBareAppend_full(t *testing.T) {
	b := testBench(t, nil)
	l, err := b.openBare(loopMemory)
	if err != nil {
		t.Fatal(err)
	}
	l.end.Store(int64(len(l.m)) - 1)
	err = l.append([]record.Record{{Value: make([]byte, 100)}})
	if err == nil || !strings.Contains(err.Error(), "are mapped") {
		t.Errorf("error %v; want that the map is full", err)
	}
}

func sum(frame []byte) {
	binary.BigEndian.PutUint32(frame[posCRC:], crc32.Checksum(frame[posCRCStart:], castagnoli))
}

// The loops of replicated appends: every replica is read back and compared.
func TestSetLoops(t *testing.T) {
	for _, lp := range []loop{loopSet, loopSetSpread, loopSetPopulate, loopSetSync} {
		for _, shape := range []struct{ size, batch, writers int }{{100, 1, 1}, {1 << 10, 100, 1}, {1 << 10, 1, 16}, {16 << 10, 3, 4}} {
			t.Run(fmt.Sprintf("%s/%d/x%d/w%d", lp, shape.size, shape.batch, shape.writers), func(t *testing.T) {
				b := testBench(t, nil)
				b.capBytes = 4 << 20
				c := &cell{kind: string(lp), sync: "never", size: shape.size, batch: shape.batch, writers: shape.writers}
				if lp == loopSetSync {
					c.sync = "always"
				}
				s, err := runBareSet(b, c)
				if err != nil {
					t.Fatal(err)
				}
				if s.records == 0 || s.records%int64(c.batch) != 0 {
					t.Errorf("%d records; want some, in batches of %d", s.records, c.batch)
				}

				set, err := b.openSet(lp)
				if err != nil {
					t.Fatal(err)
				}
				defer b.closeSet(set)
				if err := set.append(values1(b, c)); err != nil {
					t.Fatal(err)
				}
				if err := set.finish(); err != nil {
					t.Fatal(err)
				}
				for i, f := range set.followers {
					if f.end.Load() != set.leader.end.Load() {
						t.Errorf("follower %d ends at %d, the leader at %d", i, f.end.Load(), set.leader.end.Load())
					}
				}
			})
		}
	}
}

func values1(b *bench, c *cell) []record.Record {
	recs := make([]record.Record, c.batch)
	for i := range recs {
		recs[i].Value = b.values(c.size).at(0, int64(i))
	}
	return recs
}
