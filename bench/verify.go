package main

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
)

// stampBytes is the head of every value: the writer in the top bits, its
// sequence number below, little-endian. It makes every record of a run
// distinct, so that one missing, repeated, swapped or altered is noticed.
const (
	stampBytes  = 8
	writerShift = 40
)

// values hands out the record values of one writer: a fixed pool of
// incompressible bytes, stamped anew each time it comes round. All loops of a
// run append the same bytes.
type values struct {
	size int // bytes of one value
	pool [][]byte
}

// newValues makes the pool for values of size bytes, at least stampBytes. It
// takes about 1 MiB: more than a first-level cache, so that a copy reads memory
// as a producer's would, and more values than the largest batch holds.
func newValues(size int) *values {
	n := min(max(1<<20/size, 128), 1024)
	rng := rand.New(rand.NewPCG(uint64(size), 1))
	backing := make([]byte, n*size)
	for i := 0; i+8 <= len(backing); i += 8 {
		binary.LittleEndian.PutUint64(backing[i:], rng.Uint64())
	}
	v := &values{size: size, pool: make([][]byte, n)}
	for i := range v.pool {
		v.pool[i] = backing[i*size : (i+1)*size : (i+1)*size]
	}
	return v
}

// clone is a copy for another writer, as stamping changes the pool.
func (v *values) clone() *values {
	c := &values{size: v.size, pool: make([][]byte, len(v.pool))}
	for i, b := range v.pool {
		c.pool[i] = bytes.Clone(b)
	}
	return c
}

// at returns writer's value number seq, valid until len(pool) further calls.
func (v *values) at(writer int, seq int64) []byte {
	b := v.pool[uint64(seq)%uint64(len(v.pool))]
	binary.LittleEndian.PutUint64(b, uint64(writer)<<writerShift|uint64(seq))
	return b
}

// checkStamp is the part of check that a timed read can afford: size and stamp.
func (v *values) checkStamp(writer int, seq int64, got []byte) error {
	if len(got) != v.size {
		return fmt.Errorf("verify writer %d record %d: %d bytes, want %d", writer, seq, len(got), v.size)
	}
	if s := binary.LittleEndian.Uint64(got); s != uint64(writer)<<writerShift|uint64(seq) {
		return fmt.Errorf("verify writer %d record %d: found writer %d record %d",
			writer, seq, s>>writerShift, s&(1<<writerShift-1))
	}
	return nil
}

// check compares got with what at(writer, seq) returned.
func (v *values) check(writer int, seq int64, got []byte) error {
	if err := v.checkStamp(writer, seq, got); err != nil {
		return err
	}
	want := v.pool[uint64(seq)%uint64(len(v.pool))]
	if !bytes.Equal(got[stampBytes:], want[stampBytes:]) {
		return fmt.Errorf("verify writer %d record %d: contents differ", writer, seq)
	}
	return nil
}

// A checker reads a run back in log order: each writer's records must come
// whole and in the order that writer appended them.
type checker struct {
	vals *values
	next []int64 // by writer: the sequence number its next record must carry
}

func newChecker(vals *values, writers int) *checker {
	return &checker{vals: vals, next: make([]int64, writers)}
}

// record takes the next record of the log.
func (c *checker) record(value []byte) error {
	if len(value) < stampBytes {
		return fmt.Errorf("verify record after %d: %d bytes, want %d", c.count(), len(value), c.vals.size)
	}
	w := binary.LittleEndian.Uint64(value) >> writerShift
	if w >= uint64(len(c.next)) {
		return fmt.Errorf("verify record after %d: writer %d, want below %d", c.count(), w, len(c.next))
	}
	err := c.vals.check(int(w), c.next[w], value)
	c.next[w]++
	return err
}

// done compares what was read with what was acknowledged to each writer.
func (c *checker) done(acked []int64) error {
	for w, n := range acked {
		if c.next[w] != n {
			return fmt.Errorf("verify writer %d: read back %d records, %d were acknowledged", w, c.next[w], n)
		}
	}
	return nil
}

func (c *checker) count() (n int64) {
	for _, x := range c.next {
		n += x
	}
	return n
}
