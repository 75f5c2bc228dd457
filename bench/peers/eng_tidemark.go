//go:build peerbench

// The adapter of this log for the shared peer benchmark. run.sh lays it over a
// copy of the harness, whose package main it joins: Register, Info, OpenOptions,
// Log and the Cap constants are the harness's. The build tag keeps it out of
// this module's own builds.
package main

import (
	"fmt"
	"sync"

	"github.com/tidemark-log/tidemark"
	"github.com/tidemark-log/tidemark/record"
)

// The index interval is stated in the notes, as it decides how far a point read
// walks from an index entry to its batch: 4 KiB is the default; at 1 KiB a batch
// of one 1 KiB record has an entry of its own.
const (
	interval  = 4096
	interval1 = 1024
)

func init() {
	note := "Kafka batches v2 in mapped segments, CRC-32C checked on every read path, point reads copied out, " +
		"offset index entry every %d bytes, at most 2 MiB of pages made at open; durable = Sync Always, else Never"
	Register(Info{Name: "tidemark", Version: "dev", Note: fmt.Sprintf(note, interval),
		Caps: CapBatch | CapDurable | CapGroup | CapPointRead}, opener(interval))
	// Without CapBatch the harness fills its datasets one record a call, so every
	// batch holds one record and a point read verifies what it returns, no more.
	Register(Info{Name: "tidemark-1", Version: "dev", Note: fmt.Sprintf("the same log, one record a batch, index entry every %d bytes", interval1),
		Caps: CapDurable | CapGroup | CapPointRead}, opener(interval1))
}

// opener ignores MaxBytes and ValueSize: a log is not told how much will be
// appended. How far ahead it makes pages is its default, 2 MiB. Recover changes
// nothing either, as opening always recovers.
func opener(interval int64) func(o OpenOptions) (Log, error) {
	return func(o OpenOptions) (Log, error) {
		opts := tidemark.Options{Sync: tidemark.Never, SegmentBytes: o.SegmentBytes, IndexIntervalBytes: interval,
			MaxBatchBytes: int(min(4<<20, o.SegmentBytes))} // 100 values of 16 KiB are more than the default takes
		if o.Durable {
			opts.Sync = tidemark.Always
		}
		l, err := tidemark.Open(o.Dir, opts)
		if err != nil {
			return nil, err
		}
		return &tidemarkLog{log: l}, nil
	}
}

type tidemarkLog struct {
	log  *tidemark.Log
	free sync.Pool // of *[]record.Record, for concurrent batches
}

func (t *tidemarkLog) Append(v []byte) error {
	_, err := t.log.Append(record.Record{Value: v})
	return err
}

func (t *tidemarkLog) AppendBatch(vs [][]byte) error {
	p, _ := t.free.Get().(*[]record.Record)
	if p == nil {
		p = new([]record.Record)
	}
	if cap(*p) < len(vs) {
		*p = make([]record.Record, len(vs))
	}
	recs := (*p)[:len(vs)]
	for i, v := range vs {
		recs[i].Value = v // the other fields are never set
	}
	_, err := t.log.Append(recs...)
	t.free.Put(p)
	return err
}

// Read returns the value in buf, or in memory of its own if buf is too small.
func (t *tidemarkLog) Read(ordinal uint64, buf []byte) ([]byte, error) {
	r, err := t.log.Get(int64(ordinal), buf)
	return r.Value, err
}

func (t *tidemarkLog) Scan(fn func(v []byte) bool) error {
	for r, err := range t.log.Records(t.log.LogStartOffset()) {
		if err != nil {
			return err
		}
		if !fn(r.Value) {
			return nil
		}
	}
	return nil
}

func (t *tidemarkLog) Count() (uint64, error) {
	return uint64(t.log.LogEndOffset() - t.log.LogStartOffset()), nil
}

func (t *tidemarkLog) Close() error { return t.log.Close() }
