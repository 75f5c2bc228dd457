package record

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"testing"
)

const day = 1700000000000 // ms since the epoch, the time of most test records

var codecs = []Codec{None, Gzip, Snappy, LZ4, Zstd}

// tb is what the helpers need of a test; rapid's have no more.
type tb interface {
	Helper()
	Fatal(...any)
	Fatalf(string, ...any)
}

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(s)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// build makes a batch of recs in memory of its own.
func build(t testing.TB, recs []Record, edit ...func(*Spec)) Batch {
	t.Helper()
	spec := NewSpec()
	for _, e := range edit {
		e(&spec)
	}
	b, err := new(Builder).Build(recs, &spec)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func with(c Codec) func(*Spec) { return func(s *Spec) { s.Codec = c } }

// values are records with nothing but a value and a time.
func values(vs ...string) []Record {
	recs := make([]Record, len(vs))
	for i, v := range vs {
		recs[i] = Record{Timestamp: day + int64(i), Value: []byte(v)}
	}
	return recs
}

// edited returns a copy of b that edit changed, with a right length and checksum.
func edited(b Batch, edit func(Batch) Batch) Batch {
	b = edit(slices.Clone(b))
	return sealed(b)
}

func sealed(b Batch) Batch {
	binary.BigEndian.PutUint32(b[lengthAt:], uint32(len(b)-prefixSize))
	binary.BigEndian.PutUint32(b[crcAt:], b.ComputeCRC())
	return b
}

// withRecords returns b with another records region, compressed with its codec.
func withRecords(t testing.TB, b Batch, count int32, region []byte) Batch {
	t.Helper()
	out, err := Compress(slices.Clone(b[:HeaderSize]), b.Codec(), 0, region)
	if err != nil {
		t.Fatal(err)
	}
	binary.BigEndian.PutUint32(out[countAt:], uint32(count))
	binary.BigEndian.PutUint32(out[lastDeltaAt:], uint32(max(count-1, 0)))
	return sealed(out)
}

// read returns copies of the records of b.
func read(t tb, b Batch) []Record {
	t.Helper()
	var recs []Record
	for r, err := range b.Records() {
		if err != nil {
			t.Fatalf("record %d: %v", len(recs), err)
		}
		recs = append(recs, clone(r))
	}
	return recs
}

// readErr walks b and returns what ended the walk.
func readErr(b Batch) (n int, err error) {
	for _, e := range b.Records() {
		if e != nil {
			return n, e
		}
		n++
	}
	return n, nil
}

func clone(r Record) Record {
	r.Key, r.Value, r.Headers = bytes.Clone(r.Key), bytes.Clone(r.Value), slices.Clone(r.Headers)
	for i, h := range r.Headers {
		r.Headers[i] = Header{bytes.Clone(h.Key), bytes.Clone(h.Value)}
	}
	return r
}

// same compares records, null and empty apart.
func same(a, b Record) bool {
	eq := func(a, b []byte) bool { return (a == nil) == (b == nil) && bytes.Equal(a, b) }
	return a.Offset == b.Offset && a.Timestamp == b.Timestamp && a.Sequence == b.Sequence &&
		eq(a.Key, b.Key) && eq(a.Value, b.Value) &&
		slices.EqualFunc(a.Headers, b.Headers, func(a, b Header) bool {
			return bytes.Equal(a.Key, b.Key) && eq(a.Value, b.Value)
		})
}

func show(r Record) string {
	s := fmt.Sprintf("{offset %d, time %d, sequence %d, key %#v, value %#v", r.Offset, r.Timestamp, r.Sequence, r.Key, r.Value)
	for _, h := range r.Headers {
		s += fmt.Sprintf(", %q=%#v", h.Key, h.Value)
	}
	return s + "}"
}

// expect returns recs as a reader should give them back.
func expect(recs []Record, spec *Spec) []Record {
	out := slices.Clone(recs)
	for i := range out {
		out[i].Sequence = NoSequence
		if spec.BaseSequence >= 0 {
			out[i].Sequence = int32((int64(spec.BaseSequence) + int64(i)) % (1 << 31))
		}
		out[i].Offset = spec.BaseOffset + int64(i)
		if out[i].Timestamp == 0 {
			out[i].Timestamp = spec.Now
		}
		if spec.TimestampType == LogAppendTime {
			out[i].Timestamp = spec.Now
		}
	}
	return out
}

func compare(t tb, got, want []Record) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%d records; want %d", len(got), len(want))
	}
	for i := range got {
		if !same(got[i], want[i]) {
			t.Fatalf("record %d is\n%s; want\n%s", i, show(got[i]), show(want[i]))
		}
	}
}

// wantError checks kind and, if it is not empty, text of an error.
func wantError(t testing.TB, err, kind error, text string) {
	t.Helper()
	if !errors.Is(err, kind) || err != nil && !bytes.Contains([]byte(err.Error()), []byte(text)) {
		t.Errorf("error is %v; want %v: … %s …", err, kind, text)
	}
}

// rawRecord is a record given field by field, to make invalid ones.
type rawRecord struct {
	length      *int64 // nil for the right one
	ts, offset  int64
	key, value  any // nil, string, or a length (int) without the bytes
	headerCount int64
	headers     []byte
	tail        []byte
}

func (r rawRecord) append(dst []byte) []byte {
	body := []byte{0}
	body = appendVarint(body, r.ts)
	body = appendVarint(body, r.offset)
	for _, f := range []any{r.key, r.value} {
		switch f := f.(type) {
		case nil:
			body = appendVarint(body, -1)
		case int:
			body = appendVarint(body, int64(f))
		case string:
			body = append(appendVarint(body, int64(len(f))), f...)
		}
	}
	body = appendVarint(body, r.headerCount)
	body = append(append(body, r.headers...), r.tail...)
	n := int64(len(body))
	if r.length != nil {
		n = *r.length
	}
	return append(appendVarint(dst, n), body...)
}

// appendVarint is a plain second implementation, the standard library's.
func appendVarint(dst []byte, v int64) []byte { return binary.AppendVarint(dst, v) }
