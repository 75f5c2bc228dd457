package record

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// shape is a set of records that takes another path through the encoder.
type recordShape struct {
	name string
	recs []Record
}

// recordShapes go through every branch of the size and the encoding of a record.
func recordShapes() []recordShape {
	var out []recordShape
	add := func(name string, recs ...Record) { out = append(out, recordShape{name, recs}) }
	for _, n := range []int{0, 1, 2, 7, 8, 9, 57, 58, 59, 63, 64, 65, 8100, 8170, 8175, 8176, 8183, 8191, 8192, stride - 1, stride, stride + 1, 3 * stride, 1 << 20} {
		add(fmt.Sprintf("value of %d", n), Record{Timestamp: day, Value: bytes.Repeat([]byte{'v'}, n)})
		add(fmt.Sprintf("key and value of %d", n), Record{Timestamp: day, Key: bytes.Repeat([]byte{'k'}, n), Value: bytes.Repeat([]byte{'v'}, n)})
	}
	add("null value", Record{Timestamp: day, Key: []byte("k")})
	add("nothing", Record{Timestamp: day})
	add("many small", slices.Repeat([]Record{{Timestamp: day, Value: []byte("some value of 24 bytes..")}}, 9000)...)
	var times []Record
	for _, d := range []int64{0, 63, 64, -64, -65, 8191, 8192, -8193, 1 << 40, -day, math.MaxInt64 - day} {
		times = append(times, Record{Timestamp: day + d, Value: []byte("0123456789")})
	}
	times[9].Timestamp = NoTimestamp // -day is the time 0, which means now
	add("times far apart", times...)
	add("strides that end inside records", slices.Repeat([]Record{{Timestamp: day, Value: make([]byte, 5000)}}, 20)...)
	headers := Record{Timestamp: day, Value: []byte("v")}
	for i := range 1000 {
		headers.Headers = append(headers.Headers, Header{fmt.Append(nil, i), make([]byte, i%130)})
	}
	add("1000 headers", headers)
	return out
}

// reference encodes a batch as plainly as possible, with the standard library.
func reference(recs []Record, spec *Spec) []byte {
	base := recs[0].Timestamp
	if base == 0 {
		base = spec.Now
	}
	var region []byte
	largest := int64(math.MinInt64)
	for i, r := range recs {
		ts := r.Timestamp
		if ts == 0 {
			ts = spec.Now
		}
		largest = max(largest, ts)
		raw := rawRecord{ts: ts - base, offset: int64(i), headerCount: int64(len(r.Headers))}
		if r.Key != nil {
			raw.key = string(r.Key)
		}
		if r.Value != nil {
			raw.value = string(r.Value)
		}
		for _, h := range r.Headers {
			raw.headers = append(appendVarint(raw.headers, int64(len(h.Key))), h.Key...)
			if h.Value == nil {
				raw.headers = appendVarint(raw.headers, -1)
			} else {
				raw.headers = append(appendVarint(raw.headers, int64(len(h.Value))), h.Value...)
			}
		}
		region = raw.append(region)
	}
	if spec.TimestampType == LogAppendTime {
		largest = spec.Now
	}
	var b []byte
	b = binary.BigEndian.AppendUint64(b, uint64(spec.BaseOffset))
	b = binary.BigEndian.AppendUint32(b, 0)
	b = binary.BigEndian.AppendUint32(b, uint32(spec.LeaderEpoch))
	b = append(b, 2, 0, 0, 0, 0, 0, spec.attributes(None))
	b = binary.BigEndian.AppendUint32(b, uint32(len(recs)-1))
	b = binary.BigEndian.AppendUint64(b, uint64(base))
	b = binary.BigEndian.AppendUint64(b, uint64(largest))
	b = binary.BigEndian.AppendUint64(b, uint64(spec.ProducerID))
	b = binary.BigEndian.AppendUint16(b, uint16(spec.ProducerEpoch))
	b = binary.BigEndian.AppendUint32(b, uint32(spec.BaseSequence))
	b = binary.BigEndian.AppendUint32(b, uint32(len(recs)))
	return sealed(append(b, region...))
}

// TestEncodeAgainstReference: Size is exact, Encode writes what a plain encoder
// does and not a byte more, and both readers give the records back.
func TestEncodeAgainstReference(t *testing.T) {
	for _, tc := range recordShapes() {
		t.Run(tc.name, func(t *testing.T) { encodeAndCompare(t, tc.recs, NewSpec()) })
	}
}

func encodeAndCompare(t tb, recs []Record, spec Spec) {
	want := reference(recs, &spec)
	n := Size(recs, spec.Now)
	if n != len(want) {
		t.Fatalf("Size %d; want %d", n, len(want))
	}
	dst := slices.Repeat([]byte{0xa5}, n+16)
	b := Encode(dst[:n+8], recs, &spec)
	if !bytes.Equal(b, want) {
		i := 0
		for i < min(len(b), len(want)) && b[i] == want[i] {
			i++
		}
		t.Fatalf("%d bytes, %d wanted, first difference at %d", len(b), len(want), i)
	}
	if !bytes.Equal(dst[n:], slices.Repeat([]byte{0xa5}, 16)) {
		t.Fatal("bytes behind the batch changed")
	}
	compare(t, read(t, b), expect(recs, &spec))
	if err := Validate(b, 0); err != nil {
		t.Fatal(err)
	}
}

// genRecords draws records of all kinds, times within bounds the rules set.
func genRecords() *rapid.Generator[[]Record] {
	blob := rapid.OneOf(
		rapid.Just([]byte(nil)),
		rapid.Just([]byte{}),
		rapid.SliceOfN(rapid.Byte(), 1, 40),
		rapid.Custom(func(t *rapid.T) []byte {
			return bytes.Repeat([]byte{rapid.Byte().Draw(t, "byte")}, rapid.IntRange(50, 70000).Draw(t, "length"))
		}),
	)
	header := rapid.Custom(func(t *rapid.T) Header {
		return Header{Key: []byte(rapid.StringN(0, 10, 40).Draw(t, "header key")), Value: blob.Draw(t, "header value")}
	})
	record := rapid.Custom(func(t *rapid.T) Record {
		return Record{
			Timestamp: rapid.OneOf(rapid.Int64Range(-1, math.MaxInt64), rapid.Int64Range(day-100, day+100)).Draw(t, "timestamp"),
			Key:       blob.Draw(t, "key"),
			Value:     blob.Draw(t, "value"),
			Headers:   rapid.SliceOfN(header, 0, 3).Draw(t, "headers"),
		}
	})
	return rapid.SliceOfN(record, 1, 12)
}

func genSpec() *rapid.Generator[Spec] {
	return rapid.Custom(func(t *rapid.T) Spec {
		spec := NewSpec()
		spec.BaseOffset = rapid.Int64Range(0, math.MaxInt64-1000).Draw(t, "base offset")
		spec.LeaderEpoch = rapid.Int32Range(-1, math.MaxInt32).Draw(t, "leader epoch")
		spec.Now = rapid.Int64Range(1, math.MaxInt64).Draw(t, "now")
		spec.TimestampType = TimestampType(rapid.IntRange(0, 1).Draw(t, "timestamp type"))
		if rapid.Bool().Draw(t, "producer") {
			spec.ProducerID = rapid.Int64Range(0, math.MaxInt64).Draw(t, "producer id")
			spec.ProducerEpoch = rapid.Int16Range(0, math.MaxInt16).Draw(t, "producer epoch")
			spec.BaseSequence = rapid.Int32Range(0, math.MaxInt32).Draw(t, "base sequence")
			spec.Transactional = rapid.Bool().Draw(t, "transactional")
		}
		return spec
	})
}

// TestRoundTrip: any records under any spec come back as they were, from every
// codec, and Validate finds no fault.
func TestRoundTrip(t *testing.T) {
	var w Builder
	rapid.Check(t, func(t *rapid.T) {
		recs, spec := genRecords().Draw(t, "records"), genSpec().Draw(t, "spec")
		encodeAndCompare(t, recs, spec)
		spec.Codec = Codec(rapid.IntRange(0, int(Zstd)).Draw(t, "codec"))
		b, err := w.Build(recs, &spec)
		if err != nil {
			t.Fatal(err)
		}
		compare(t, read(t, b), expect(recs, &spec))
		if err := Validate(b, 0); err != nil {
			t.Fatal(err)
		}
	})
}

// A writer that stops anywhere leaves bytes that are no batch: the length comes
// last.
func TestKilledWriter(t *testing.T) {
	recs, spec := values("hello", "world"), NewSpec()
	for n := range Size(recs, 0) {
		dst := make([]byte, 200)
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("room for %d bytes was enough", n)
				}
			}()
			Encode(dst[:n:n], recs, &spec)
		}()
		if size, ok := PeekSize(dst); ok || size != prefixSize {
			t.Errorf("stopped after %d bytes: looks like a batch of %d", n, size)
		}
	}
}

func TestBuilderRules(t *testing.T) {
	at := func(ts int64) []Record { return []Record{{Timestamp: day}, {Timestamp: ts}} }
	offsets := func(offs ...int64) []Record {
		recs := make([]Record, len(offs))
		for i, o := range offs {
			recs[i].Offset = o
		}
		return recs
	}
	producer := func(id int64, epoch int16, sequence int32) func(*Spec) {
		return func(s *Spec) { s.ProducerID, s.ProducerEpoch, s.BaseSequence = id, epoch, sequence }
	}
	keep := func(s *Spec) { s.KeepOffsets, s.BaseOffset = true, 5 }
	for _, tc := range []struct {
		name string
		recs []Record
		edit func(*Spec)
		want error // nil: built
		text string
	}{
		{"no records", nil, nil, ErrInvalid, "records to build 0"},
		{"time -1", at(-1), nil, nil, ""},
		{"time below -1", at(-2), nil, ErrInvalid, "record 1: timestamp -2"},
		{"now below -1", []Record{{}}, func(s *Spec) { s.Now = -9 }, ErrInvalid, "record 0: timestamp -9"},
		{"base offset below 0", at(day), func(s *Spec) { s.BaseOffset = -1 }, ErrInvalid, "base offset -1"},
		{"gaps", offsets(5, 7, 100), keep, nil, ""},
		{"equal offsets", offsets(5, 7, 7), keep, ErrInvalid, "record 2: offset 7"},
		{"falling offsets", offsets(6, 5), keep, ErrInvalid, "record 1: offset 5"},
		{"below the base", offsets(4), keep, ErrInvalid, "record 0: offset 4"},
		{"widest span", offsets(5, 5+math.MaxInt32), keep, nil, ""},
		{"too wide", offsets(5, 6+math.MaxInt32), keep, ErrInvalid, "record 1: offset"},
		{"last offset too far", offsets(5), func(s *Spec) { keep(s); s.LastOffset = 6 + math.MaxInt32 }, ErrInvalid, "last offset"},
		{"producer 0 (C117)", at(day), producer(0, 0, 0), nil, ""},
		{"producer below -1", at(day), producer(-2, -1, -1), ErrInvalid, "producer id -2"},
		{"producer without epoch", at(day), producer(7, -1, 0), ErrInvalid, "producer epoch -1"},
		{"producer without sequence", at(day), producer(7, 0, -1), ErrInvalid, "base sequence -1"},
		{"the same as control", at(day), func(s *Spec) { producer(7, 0, -1)(s); s.Control = true }, nil, ""},
		{"transactional without producer", at(day), func(s *Spec) { s.Transactional = true }, ErrInvalid, "producer id of a transactional batch -1"},
		{"unknown codec", at(day), with(5), ErrCodec, "codec 5"},
		{"negative codec", at(day), with(-1), ErrCodec, "codec -1"},
		{"gzip level 10", at(day), func(s *Spec) { s.Codec, s.Level = Gzip, 10 }, ErrCodec, "gzip level 10 at byte 0, want at most 9"},
		{"gzip level -2", at(day), func(s *Spec) { s.Codec, s.Level = Gzip, -2 }, ErrCodec, "gzip level -2"},
		{"lz4 level 18", at(day), func(s *Spec) { s.Codec, s.Level = LZ4, 18 }, ErrCodec, "lz4 level 18"},
		{"zstd level 23", at(day), func(s *Spec) { s.Codec, s.Level = Zstd, 23 }, ErrCodec, "zstd level 23"},
		{"level without use", at(day), func(s *Spec) { s.Codec, s.Level = Snappy, 99 }, nil, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			spec := NewSpec()
			if tc.edit != nil {
				tc.edit(&spec)
			}
			b, err := new(Builder).Build(tc.recs, &spec)
			if tc.want != nil {
				wantError(t, err, tc.want, tc.text)
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if err := Validate(b, 0); err != nil {
				t.Error(err)
			}
		})
	}
}

// One value too many for the format is refused before anything is written.
func TestBuilderTooLarge(t *testing.T) {
	value := make([]byte, 64<<20)
	spec := NewSpec()
	var w Builder
	_, err := w.Build(slices.Repeat([]Record{{Value: value}}, 40), &spec)
	wantError(t, err, ErrTooLarge, "record 31: batch size 2147484125 at byte 0, want at most 2147483647")
	if w.out != nil || w.plain != nil {
		t.Error("memory was taken")
	}
}

// What compaction writes: gaps, a last offset beyond the last record, a delete
// horizon that times are relative to (C069).
func TestC069_RewrittenBatch(t *testing.T) {
	recs := []Record{
		{Offset: 12, Timestamp: day + 5, Key: []byte("a")},
		{Offset: 15, Timestamp: day, Key: []byte("b"), Value: []byte("some longer value")},
	}
	for _, c := range codecs {
		spec := NewSpec()
		spec.BaseOffset, spec.KeepOffsets, spec.LastOffset, spec.DeleteHorizon, spec.Codec = 10, true, 19, day+86400000, c
		b, err := new(Builder).Build(recs, &spec)
		if err != nil {
			t.Fatal(err)
		}
		horizon, ok := b.DeleteHorizon()
		if b.BaseOffset() != 10 || b.LastOffset() != 19 || b.Count() != 2 || horizon != day+86400000 || !ok || b.MaxTimestamp() != day+5 {
			t.Errorf("%v: offsets %d to %d, %d records, horizon %d, max time %d", c, b.BaseOffset(), b.LastOffset(), b.Count(), horizon, b.MaxTimestamp())
		}
		want := slices.Clone(recs)
		want[0].Sequence, want[1].Sequence = NoSequence, NoSequence
		compare(t, read(t, b), want)
		if err := Validate(b, 0); err != nil {
			t.Error(err)
		}
	}
}

// Scenario 32: a gzip batch rebuilt with snappy keeps count, offsets and records.
func TestScenario32_Recompress(t *testing.T) {
	spec := goldenSpec()
	gz := Batch(unhex(t, golden.byCodec[Gzip]))
	spec.Codec, spec.KeepOffsets = Snappy, true
	b, err := new(Builder).Build(read(t, gz), &spec)
	if err != nil {
		t.Fatal(err)
	}
	if b.Codec() != Snappy || b.Count() != gz.Count() || b.LastOffset() != gz.LastOffset() || b.MaxTimestamp() != gz.MaxTimestamp() {
		t.Errorf("header %x; of\n%x", b[:HeaderSize], gz[:HeaderSize])
	}
	compare(t, read(t, b), read(t, gz))
}

func TestAllocations(t *testing.T) {
	if raceEnabled {
		t.Skip("pools drop what they are given under the race detector")
	}
	recs, spec := genText(50), goldenSpec()
	recs[3].Headers = []Header{{[]byte("h"), []byte("v")}, {[]byte("n"), nil}}
	recs[4].Key = []byte("k")
	dst := make([]byte, Size(recs, day))
	b := Encode(dst, recs, &spec)
	check := func(name string, want float64, f func()) {
		t.Helper()
		f() // buffers grow once
		if got := testing.AllocsPerRun(100, f); got > want {
			t.Errorf("%s: %v allocations; want %v", name, got, want)
		}
	}
	check("Size and Encode", 0, func() { Size(recs, day); Encode(dst, recs, &spec) })
	check("Check", 0, func() {
		if _, err := Check(b); err != nil {
			t.Fatal(err)
		}
	})
	check("Validate", 0, func() {
		if err := Validate(b, 0); err != nil {
			t.Fatal(err)
		}
	})
	var rec Record
	check("SkipTo and ParseRecordAt", 0, func() {
		pos, err := SkipTo(b, HeaderSize, 30)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := ParseRecordAt(b, pos, &rec, rec.Headers); err != nil {
			t.Fatal(err)
		}
	})
	for _, c := range codecs {
		var w Builder
		var r Reader
		spec.Codec = c
		var made Batch
		check("Build "+c.String(), 0, func() {
			var err error
			if made, err = w.Build(recs, &spec); err != nil {
				t.Fatal(err)
			}
		})
		check("Reader "+c.String(), 0, func() {
			for r.Reset(made); r.Next(); {
			}
			if r.Err() != nil {
				t.Fatal(r.Err())
			}
		})
	}
}

// genText makes n records of a few hundred bytes that compress as text does.
func genText(n int) []Record {
	rng := rand.New(rand.NewPCG(1, 2))
	words := []string{"offset", "partition", "leader", "follower", "epoch", "segment", "batch", "record", "commit", "abort"}
	recs := make([]Record, n)
	for i := range recs {
		v := fmt.Appendf(nil, `{"id":%d`, i)
		for range 1 + rng.IntN(20) {
			v = fmt.Appendf(v, `,"%s":"%s %d"`, words[rng.IntN(len(words))], words[rng.IntN(len(words))], rng.IntN(1000000))
		}
		recs[i] = Record{Timestamp: day + int64(rng.IntN(100)), Value: append(v, '}')}
	}
	return recs
}
