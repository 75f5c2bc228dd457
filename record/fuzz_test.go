package record

import (
	"bytes"
	"encoding/binary"
	"errors"
	"slices"
	"testing"
)

// Every target below has a bound on memory, fuzzLimit bytes decompressed, and
// demands that errors wrap one of the Err values.
const fuzzLimit = 1 << 20

var errKinds = []error{ErrTooShort, ErrChecksum, ErrMagic, ErrInvalid, ErrCodec, ErrTooLarge}

func knownError(t *testing.T, err error) {
	t.Helper()
	if !slices.ContainsFunc(errKinds, func(k error) bool { return errors.Is(err, k) }) || err.Error() == "" {
		t.Errorf("unknown error %v", err)
	}
}

// seeds are good batches, each also torn and with another byte.
func seeds(f *testing.F) {
	add := func(b []byte) {
		f.Add(b)
		f.Add(b[:len(b)-1])
		f.Add(append(slices.Clone(b), b...))
		f.Add(change(b, len(b)/2, b[len(b)/2]^0x10))
	}
	for _, b := range goldenBatches(f) {
		add(b)
	}
	for _, c := range codecs {
		add(build(f, genText(20), with(c)))
		add(build(f, []Record{{Key: []byte{}, Value: []byte{}}, {Headers: make([]Header, 3)}, {Timestamp: -1}}, with(c)))
	}
	f.Add(unhex(f, goldenV0))
	f.Add(unhex(f, goldenV1))
	f.Add(make([]byte, 100))
}

// FuzzCheck: no input panics. What Check takes is the start of the input and has
// a right checksum; what Validate and ValidateClient take, Check takes too, and
// what a client may send is valid once stamped.
func FuzzCheck(f *testing.F) {
	seeds(f)
	f.Fuzz(func(t *testing.T, p []byte) {
		b, err := Check(p)
		if err != nil {
			knownError(t, err)
			if Validate(p, fuzzLimit) == nil {
				t.Fatalf("valid but %v", err)
			}
		} else if b.CRC() != b.ComputeCRC() || b.Size() != len(b) || !bytes.Equal(b, p[:len(b)]) || b.Count() < 0 || b.LastOffset() < b.BaseOffset() && b.BaseOffset() < 1<<62 {
			t.Fatalf("accepted %x", b)
		} else if err := Validate(b, fuzzLimit); err != nil {
			knownError(t, err)
		}
		// Behind a right checksum a fuzzer gets further.
		if size, ok := PeekSize(p); ok && size >= HeaderSize && size <= len(p) {
			p = sealed(slices.Clone(p[:size]))
		}
		rules := ClientRules{Now: day, MaxAfter: 1 << 40, MaxDecompressed: fuzzLimit}
		sent, largest, err := ValidateClient(p, &rules)
		if err != nil {
			var ce *ClientError
			if !errors.As(err, &ce) || ce.Code == 0 {
				t.Fatalf("error without a code: %v", err)
			}
			knownError(t, err)
			return
		}
		sent = slices.Clone(sent)
		sent.SetMaxTimestamp(rules.TimestampType, largest)
		if err := Validate(sent, fuzzLimit); err != nil {
			t.Fatalf("a client may send %x: %v", sent, err)
		}
	})
}

// FuzzRecords: whatever lies behind a sound header, reading ends without a panic,
// by Reader, SkipTo and ParseRecordAt alike, and they agree. Records that parse
// come back the same when they are encoded anew.
func FuzzRecords(f *testing.F) {
	for _, b := range goldenBatches(f) {
		f.Add([]byte(b[HeaderSize:]), b.Count(), byte(b.Codec()))
	}
	for _, c := range codecs {
		b := build(f, genText(20), with(c))
		f.Add([]byte(b[HeaderSize:]), b.Count(), byte(c))
	}
	f.Add(rawRecord{key: "k", value: "v", headerCount: 1, headers: []byte{2, 'h', 1}}.append(nil), int32(1), byte(0))
	f.Fuzz(func(t *testing.T, region []byte, count int32, attributes byte) {
		b := make(Batch, HeaderSize, HeaderSize+len(region))
		putFields(b, &Spec{ProducerID: 5, BaseSequence: 1 << 30}, None, 1<<30, 0, day, count)
		b[attributesAt+1] = attributes
		b = seal(append(b, region...), &Spec{BaseOffset: 1000}, 0)
		r := Reader{MaxBytes: fuzzLimit}
		if err := r.Reset(b); err != nil {
			knownError(t, err)
			return
		}
		var recs []Record
		for r.Next() {
			recs = append(recs, clone(*r.Record()))
		}
		if r.Err() != nil {
			knownError(t, r.Err())
		} else if len(recs) != int(count) {
			t.Fatalf("%d records of %d and no error", len(recs), count)
		}
		skimAgrees(t, b, recs, r.Err())
		if b.Codec() == None {
			pos := HeaderSize
			for i, want := range recs {
				var rec Record
				at, err := SkipTo(b, HeaderSize, i)
				next, perr := ParseRecordAt(b, pos, &rec, nil)
				if at != pos || err != nil || perr != nil || !same(rec, want) {
					t.Fatalf("record %d: at %d (%v), read at %d: %v", i, at, err, pos, perr)
				}
				pos = next
			}
		}
		if len(recs) == 0 {
			return
		}
		spec := NewSpec()
		again := Encode(make([]byte, Size(recs, 0)), recs, &spec)
		for i, rec := range read(t, again) {
			rec.Offset, rec.Sequence = recs[i].Offset, recs[i].Sequence
			if !same(rec, recs[i]) {
				t.Fatalf("record %d encoded again is %s; want %s", i, show(rec), show(recs[i]))
			}
		}
	})
}

// skimAgrees checks that Skim and Next together see of a batch what Next saw.
func skimAgrees(t *testing.T, b Batch, recs []Record, want error) (skimmed int) {
	t.Helper()
	r := Reader{MaxBytes: fuzzLimit}
	if r.Reset(b) != nil {
		return 0
	}
	prev := b.BaseOffset() - 1
	n := 0
	for {
		s := r.Skim(prev, b.LastOffset())
		if s.Count > 0 {
			if n+s.Count > len(recs) {
				t.Fatalf("%d records skimmed at %d of %d", s.Count, n, len(recs))
			}
			first, offset := recs[n], prev
			for _, rec := range recs[n : n+s.Count] {
				if rec.Offset <= offset || rec.Offset > b.LastOffset() {
					t.Fatalf("skimmed over offset %d behind %d", rec.Offset, offset)
				}
				if offset = rec.Offset; rec.Timestamp > first.Timestamp {
					first = rec
				}
			}
			if got := (Skimmed{s.Count, offset, first.Timestamp, first.Offset}); s != got {
				t.Fatalf("skimmed %+v; want %+v", s, got)
			}
			n, prev, skimmed = n+s.Count, offset, skimmed+s.Count
		}
		if !r.Next() {
			break
		}
		if n == len(recs) || !same(*r.Record(), recs[n]) {
			t.Fatalf("record %d differs behind skimmed ones", n)
		}
		prev = r.Record().Offset
		n++
	}
	if got := r.Err(); n != len(recs) || (got == nil) != (want == nil) || got != nil && got.Error() != want.Error() {
		t.Fatalf("%d records, %v; want %d, %v", n, got, len(recs), want)
	}
	return skimmed
}

// Skim passes over usual records, also with times that take two bytes.
func TestSkim(t *testing.T) {
	recs := make([]Record, 300)
	for i := range recs {
		recs[i] = Record{Timestamp: day + int64(i*5), Key: []byte("k"), Value: []byte("value")}
	}
	recs[7].Key, recs[8].Value = nil, []byte{}
	for _, change := range []func(*Spec){nil, func(s *Spec) { s.TimestampType, s.Now = LogAppendTime, day }, with(Zstd)} {
		spec := NewSpec()
		spec.BaseOffset = 1000
		if change != nil {
			change(&spec)
		}
		var w Builder
		b, err := w.Build(recs, &spec)
		if err != nil {
			t.Fatal(err)
		}
		// An empty value is not usual.
		if n := skimAgrees(t, b, read(t, b), nil); n != len(recs)-1 {
			t.Errorf("%d of %d records skimmed", n, len(recs))
		}
	}
}

// Skim passes over records alike in a stride of its own. Whatever byte of them
// is another one, it sees what Next sees.
func TestSkimAlike(t *testing.T) {
	for _, tc := range []struct {
		name  string
		count int
		times int // ms between the first record and the others
		key   []byte
		value int
	}{
		{"short", 140, 0, []byte("k"), 1},
		{"null key", 70, 0, nil, 2},
		{"lengths of two bytes", 70, 0, []byte("key-17"), 100},
		{"times of two bytes", 70, 100, []byte("k"), 70},
	} {
		t.Run(tc.name, func(t *testing.T) {
			recs := make([]Record, tc.count)
			for i := range recs {
				recs[i] = Record{Timestamp: day + int64(min(i, 1)*tc.times), Key: tc.key, Value: bytes.Repeat([]byte{'v'}, tc.value)}
			}
			whole := build(t, recs)
			if n := skimAgrees(t, whole, read(t, whole), nil); n != len(recs) {
				t.Fatalf("%d of %d records skimmed", n, len(recs))
			}
			for at := lastDeltaAt; at < len(whole); at++ {
				if bytes.Equal(whole[at-1:min(at+2, len(whole))], []byte("vvv")) {
					continue // inside a value
				}
				for _, flip := range []byte{1, 2, 0x80, whole[at]} {
					b := slices.Clone(whole)
					b[at] ^= flip
					var r Reader
					r.Reset(b)
					var seen []Record
					for r.Next() {
						seen = append(seen, clone(*r.Record()))
					}
					skimAgrees(t, b, seen, r.Err())
				}
			}
		})
	}
}

// fuzzCodec: no stream panics or decodes to more than the bound, what decodes has
// a compressed form that decodes to the same.
func fuzzCodec(f *testing.F, c Codec, more ...[]byte) {
	for _, plain := range [][]byte{nil, []byte("abc"), bytes.Repeat([]byte("abc"), 50000), genText(5)[4].Value} {
		stream, err := Compress(nil, c, 0, plain)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(stream)
		f.Add(stream[:len(stream)-1])
		f.Add(append(slices.Clone(stream), stream...))
	}
	for _, s := range more {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, stream []byte) {
		for magic := range int8(3) {
			dst := []byte("dst")
			out, bad := decompress(dst, c, stream, fuzzLimit, magic)
			if bad != nil {
				knownError(t, bad)
				continue
			}
			if !bytes.HasPrefix(out, dst) || len(out)-len(dst) > fuzzLimit {
				t.Fatalf("%d bytes under a bound of %d", len(out)-len(dst), fuzzLimit)
			}
			plain := out[len(dst):]
			again, err := Compress(nil, c, 0, plain)
			if err != nil {
				t.Fatal(err)
			}
			if back, err := Decompress(nil, c, again, len(plain)); err != nil || !bytes.Equal(back, plain) {
				t.Fatalf("%d bytes came back as %d, %v", len(plain), len(back), err)
			}
		}
	})
}

func FuzzGzip(f *testing.F) { fuzzCodec(f, Gzip) }

func FuzzSnappy(f *testing.F) {
	fuzzCodec(f, Snappy, []byte{0}, []byte("\x07\x08abc\x01\x03"), []byte("\x05\x08abc\x07\x03\x00\x00\x00"), []byte("\x04\xf0\x03abcd"),
		append([]byte(xerialHeader), "\x00\x00\x00\x05\x03\x08abc"...))
}

func FuzzLZ4(f *testing.F) {
	block := append(le32(3|lz4StoredRaw), "abc\x00\x00\x00\x00\x00\x00\x00\x00"...)
	fuzzCodec(f, LZ4, append(lz4Frame(0x60, 0x70), block...), append(lz4Frame(0x74, 0x40), block...), append(lz4Frame(0x68, 0x40, 3, 0, 0, 0, 0, 0, 0, 0), block...))
}

func FuzzZstd(f *testing.F) {
	fuzzCodec(f, Zstd, zstdRaw(3, "abc"), zstdRaw(2, "abc"), []byte("\x50\x2a\x4d\x18\x01\x00\x00\x00x"), []byte("\x28\xb5\x2f\xfd\x00\x88\x19\x00\x00abc"),
		[]byte("\x28\xb5\x2f\xfd\x00\x58\x03\x08\x00x"))
}

// FuzzLegacy: no message of magic 0 or 1 panics, sizes and slices stay inside.
func FuzzLegacy(f *testing.F) {
	for magic := range int8(2) {
		set := appendLegacy(appendLegacy(nil, magic, 0, 0, day, []byte("k"), []byte("v")), magic, 1, 0, day, nil, nil)
		f.Add(set)
		for _, c := range codecs[1:] {
			f.Add(wrapper(f, magic, 1, c, magic == 1, set))
		}
	}
	f.Add(make([]byte, 40))
	f.Fuzz(func(t *testing.T, p []byte) {
		n := 0
		for m, err := range LegacyMessages(p, fuzzLimit) {
			if err != nil {
				knownError(t, err)
				return
			}
			if m.Size < legacyMinimumV0 || len(m.Key)+len(m.Value) > m.Size || m.Magic != int8(p[magicAt]) {
				t.Fatalf("message %d: %+v", n, m)
			}
			n++
		}
		if n == 0 {
			t.Fatal("no message and no error")
		}
		if size := int(binary.BigEndian.Uint32(p[lengthAt:])) + prefixSize; size > len(p) {
			t.Fatalf("accepted %d bytes of %d", len(p), size)
		}
	})
}
