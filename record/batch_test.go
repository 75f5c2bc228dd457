package record

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/crc32"
	"math"
	"slices"
	"testing"
)

// Batches that Kafka's own writers made (log-format §11).
var golden = struct {
	byCodec                      [5]string // §11.1, by codec
	commit, empty, plain, stamps string
}{
	byCodec: [5]string{
		None:   "00000000000000640000005c0000000502b7683d3e0000000000020000018bcfe568000000018bcfe5687b000000000000109200070000000a0000000328000000046b310a68656c6c6f0402680276026e011800f60102010a776f726c640010006404046b320100",
		Gzip:   "000000000000006400000070000000050266ed93350001000000020000018bcfe568000000018bcfe5687b000000000000109200070000000a000000031f8b08000000000000ffd360606060c936e4ca48cdc9c96761ca602a63ca639460f8c6c8c4c8559e5f9493c220c090c2c2926dc4c800008a2c55b62b000000",
		Snappy: "000000000000006400000072000000050267a829d80002000000020000018bcfe568000000018bcfe5687b000000000000109200070000000a0000000382534e415050590000000001000000010000002d2ba828000000046b310a68656c6c6f0402680276026e011800f60102010a776f726c640010006404046b320100",
		LZ4:    "00000000000000640000006b0000000502a151e7d80003000000020000018bcfe568000000018bcfe5687b000000000000109200070000000a0000000304224d186040822b00008028000000046b310a68656c6c6f0402680276026e011800f60102010a776f726c640010006404046b32010000000000",
		Zstd:   "00000000000000640000006800000005025af0d4310004000000020000018bcfe568000000018bcfe5687b000000000000109200070000000a0000000328b52ffd005858010028000000046b310a68656c6c6f0402680276026e011800f60102010a776f726c640010006404046b320100010000",
	},
	commit: "00000000000000c8000000420000000502e314eb360030000000000000018bcfe568000000018bcfe5680000000000000010920007ffffffff000000012000000008000000010c00000000000900",
	empty:  "00000000000000640000003100000005022eea61d0000000000002ffffffffffffffff0000018bcfe5687b000000000000109200070000000a00000000",
	plain:  "00000000000000640000003f000000050265164aa80000000000000000018bcfe568000000018bcfe56800000000000000109200070000000a000000011a000000046b310a68656c6c6f00",
	stamps: "00000000000013880000003f0000000602ef2a7ddb0008000000000000018bcfe56800000001a3185c5000000000000000109200070000000a000000011a000000046b310a68656c6c6f00",
}

// goldenBatches are all of them.
func goldenBatches(t testing.TB) []Batch {
	var out []Batch
	for _, s := range append(golden.byCodec[:], golden.commit, golden.empty, golden.plain, golden.stamps) {
		out = append(out, unhex(t, s))
	}
	return out
}

// goldenRecords and goldenSpec are what §11.1 was made of.
func goldenRecords() []Record {
	return []Record{
		{Timestamp: day, Key: []byte("k1"), Value: []byte("hello"), Headers: []Header{{[]byte("h"), []byte("v")}, {[]byte("n"), nil}}},
		{Timestamp: day + 123, Value: []byte("world")},
		{Timestamp: day + 50, Key: []byte("k2")},
	}
}

func goldenSpec() Spec {
	return Spec{BaseOffset: 100, LeaderEpoch: 5, ProducerID: 4242, ProducerEpoch: 7, BaseSequence: 10}
}

func TestGoldenFiveCodecs(t *testing.T) {
	plain := unhex(t, golden.byCodec[None])
	spec := goldenSpec()
	for _, c := range codecs {
		t.Run(c.String(), func(t *testing.T) {
			theirs, err := Check(unhex(t, golden.byCodec[c]))
			if err != nil {
				t.Fatal(err)
			}
			if theirs.Codec() != c {
				t.Errorf("codec %v", theirs.Codec())
			}
			region, err := Decompress(nil, c, theirs[HeaderSize:], 43)
			if err != nil || !bytes.Equal(region, plain[HeaderSize:]) {
				t.Errorf("records are %x, %v; want those of the plain batch", region, err)
			}
			compare(t, read(t, theirs), expect(goldenRecords(), &spec))
			if err := Validate(theirs, 43); err != nil {
				t.Error(err)
			}

			spec.Codec = c
			ours, err := new(Builder).Build(goldenRecords(), &spec)
			if err != nil {
				t.Fatal(err)
			}
			if c == None && !bytes.Equal(ours, plain) {
				t.Errorf("built\n%x; want\n%x", ours, plain)
			}
			if !bytes.Equal(ours[attributesAt:HeaderSize], theirs[attributesAt:HeaderSize]) {
				t.Errorf("built header %x; want %x", ours[:HeaderSize], theirs[:HeaderSize])
			}
			if region, err := Decompress(nil, c, ours[HeaderSize:], 43); err != nil || !bytes.Equal(region, plain[HeaderSize:]) {
				t.Errorf("built records are %x, %v", region, err)
			}
		})
	}
}

func TestGoldenInPlace(t *testing.T) {
	spec := goldenSpec()
	want := unhex(t, golden.byCodec[None])
	dst := make([]byte, len(want)+100)
	if n := Size(goldenRecords(), 0); n != len(want) {
		t.Fatalf("Size %d; want %d", n, len(want))
	}
	if got := Encode(dst, goldenRecords(), &spec); !bytes.Equal(got, want) {
		t.Errorf("encoded\n%x; want\n%x", got, want)
	}
	if !bytes.Equal(dst[len(want):], make([]byte, 100)) {
		t.Error("Encode wrote behind the batch")
	}
}

func TestGoldenOther(t *testing.T) {
	marker := Marker{Offset: 200, LeaderEpoch: 5, Timestamp: day, ProducerID: 4242, ProducerEpoch: 7, Type: Commit, CoordinatorEpoch: 9}
	if got := hex.EncodeToString(AppendMarker(nil, marker)); got != golden.commit {
		t.Errorf("marker\n%s; want\n%s", got, golden.commit)
	}
	full := Batch(unhex(t, golden.byCodec[Gzip]))
	if got := hex.EncodeToString(AppendEmpty(nil, full)); got != golden.empty {
		t.Errorf("empty batch\n%s; want\n%s", got, golden.empty)
	}
	b := Batch(unhex(t, golden.plain))
	b.SetBaseOffset(5000)
	b.SetLeaderEpoch(6)
	if b.CRC() != b.ComputeCRC() {
		t.Error("base offset and leader epoch changed the checksum")
	}
	b.SetMaxTimestamp(LogAppendTime, 1800000000000)
	if got := hex.EncodeToString(b); got != golden.stamps {
		t.Errorf("stamped\n%s; want\n%s", got, golden.stamps)
	}
}

// Scenario 1: an empty batch with all fields set reads back identical.
func TestScenario01_HeaderFields(t *testing.T) {
	for bits := range 16 {
		spec := Spec{
			BaseOffset: 15, LeaderEpoch: 15, ProducerID: 23423, ProducerEpoch: 145, BaseSequence: 983,
			Now: day, TimestampType: TimestampType(bits & 1), Transactional: bits&2 != 0, Control: bits&4 != 0,
		}
		if bits&8 != 0 {
			spec.DeleteHorizon = day + 7
		}
		b := make(Batch, HeaderSize)
		putFields(b, &spec, None, 22, spec.DeleteHorizon, day, 0)
		b, err := Check(seal(b, &spec, b.ComputeCRC()))
		if err != nil {
			t.Fatal(err)
		}
		horizon, ok := b.DeleteHorizon()
		got := fmt.Sprint(b.BaseOffset(), b.LastOffset(), b.NextOffset(), b.LastOffsetDelta(), b.LeaderEpoch(), b.ProducerID(), b.ProducerEpoch(),
			b.BaseSequence(), b.LastSequence(), b.Count(), b.Size(), b.Magic(), b.MaxTimestamp(), b.TimestampType(), b.IsTransactional(),
			b.IsControl(), b.HasProducer(), b.HasDeleteHorizon() == ok, ok, b.Codec(), b.Attributes())
		want := fmt.Sprint(15, 37, 38, 22, 15, 23423, 145, 983, 1005, 0, 61, 2, day, spec.TimestampType, spec.Transactional,
			spec.Control, true, true, bits&8 != 0, None, int16(bits&1<<3|bits&2<<3|bits&4<<3|bits&8<<3))
		if got != want {
			t.Errorf("bits %04b: %s; want %s", bits, got, want)
		}
		if ok && horizon != day+7 {
			t.Errorf("delete horizon %d", horizon)
		}
		if err := Validate(b, 0); err != nil {
			t.Errorf("Validate: %v", err)
		}
	}
}

// Scenario 2: sequences wrap after 2^31-1. Also the arithmetic of log-format §11.
func TestScenario02_SequenceWrap(t *testing.T) {
	b := build(t, values("a", "b", "c"), func(s *Spec) { s.ProducerID, s.ProducerEpoch, s.BaseSequence = 1, 0, math.MaxInt32-1 })
	var got []int32
	for r, err := range b.Records() {
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, r.Sequence)
	}
	if want := []int32{math.MaxInt32 - 1, math.MaxInt32, 0}; !slices.Equal(got, want) || b.LastSequence() != 0 {
		t.Errorf("sequences %d to %d; want %d", got, b.LastSequence(), want)
	}
	for _, tc := range []struct{ s, n, want int32 }{
		{math.MaxInt32 - 1, 3, 1}, {math.MaxInt32, 1, 0}, {0, 5, 5}, {math.MaxInt32, math.MaxInt32, math.MaxInt32 - 1}, {7, 0, 7},
	} {
		if got := IncSequence(tc.s, tc.n); got != tc.want {
			t.Errorf("IncSequence(%d, %d) = %d; want %d", tc.s, tc.n, got, tc.want)
		}
		if got := DecSequence(tc.want, tc.n); got != tc.s {
			t.Errorf("DecSequence(%d, %d) = %d; want %d", tc.want, tc.n, got, tc.s)
		}
	}
}

func TestCheck(t *testing.T) {
	good := build(t, values("hello", "world"))
	for _, tc := range []struct {
		name string
		p    []byte
		want error // nil: accepted
		text string
	}{
		{"whole", good, nil, ""},
		{"followed by other bytes", append(slices.Clone(good), 1, 2, 3), nil, ""},
		{"nothing", nil, ErrTooShort, "bytes present 0 at byte 0, want at least 12"},
		{"cut in the length", good[:11], ErrTooShort, "bytes present 11"},
		{"cut in the header", good[:60], ErrTooShort, "bytes present 60"},
		{"cut by one byte", good[:len(good)-1], ErrTooShort, fmt.Sprintf("bytes present %d at byte 8, want at least %d", len(good)-1, len(good))},
		{"zeros", make([]byte, 100), ErrTooShort, "batch size 12 at byte 8, want at least 61"},
		{"scenario 3: length shrunk below 61", change(good, lengthAt, 0, 0, 0, 48), ErrTooShort, "batch size 60"},
		{"negative length", change(good, lengthAt, 0xff, 0xff, 0xff, 0xff), ErrTooShort, "batch size 11"},
		{"smallest length field", change(good, lengthAt, 0x80, 0, 0, 0), ErrTooShort, "want at least 61"},
		{"largest length field", change(good, lengthAt, 0x7f, 0xff, 0xff, 0xff), ErrTooShort, "want at least 2147483659"},
		{"scenario 4: one byte of the crc", change(good, crcAt, good[crcAt]^1), ErrChecksum, "at byte 17, want"},
		{"last byte", change(good, len(good)-1, 7), ErrChecksum, ""},
		{"attribute bits 7 to 15", edited(good, func(b Batch) Batch { b[attributesAt] = 0xff; b[attributesAt+1] |= 0x80; return b }), nil, ""},
		{"count below 0", edited(good, func(b Batch) Batch { b[countAt] = 0xff; return b }), ErrInvalid, "records count -16777214 at byte 57, want at least 0"},
		{"last delta below 0", edited(good, func(b Batch) Batch { b[lastDeltaAt] = 0x80; return b }), ErrInvalid, "last offset delta -2147483647 at byte 23"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b, err := Check(tc.p)
			if tc.want == nil {
				if err != nil || len(b) != len(good) || cap(b) != len(b) || &b[0] != &tc.p[0] {
					t.Errorf("batch of %d bytes (cap %d), %v; want %d in place", len(b), cap(b), err, len(good))
				}
				return
			}
			wantError(t, err, tc.want, tc.text)
			if b != nil {
				t.Error("a batch with the error")
			}
		})
	}
}

func change(b []byte, at int, to ...byte) []byte {
	b = slices.Clone(b)
	copy(b[at:], to)
	return b
}

// The checksum covers byte 21 to the end and nothing before it, the header before
// is checked otherwise or free to change.
func TestEveryBitFlip(t *testing.T) {
	good := build(t, values("hello", "world"))
	for i := range len(good) * 8 {
		b := slices.Clone(good)
		b[i/8] ^= 1 << (i % 8)
		_, err := Check(b)
		free := i/8 < lengthAt || i/8 >= leaderEpochAt && i/8 < magicAt
		if free != (err == nil) {
			t.Errorf("bit %d of byte %d flipped: %v", i%8, i/8, err)
		}
	}
}

// Every cut is seen, by whatever part of the header is left.
func TestC007_EveryCut(t *testing.T) {
	good := build(t, values("hello", "world"))
	for n := range len(good) {
		if _, err := Check(good[:n]); !errors.Is(err, ErrTooShort) {
			t.Errorf("cut to %d bytes: %v", n, err)
		}
	}
}

func TestC131_OtherMagics(t *testing.T) {
	good := build(t, values("hello"))
	for _, tc := range []struct {
		magic byte
		text  string
	}{
		{0, "unsupported magic: magic 0 message set at byte 16"},
		{1, "unsupported magic: magic 1 message set at byte 16"},
		{3, "unsupported magic: magic 3 at byte 16, want 2"},
		{127, "magic 127"},
		{255, "magic -1"},
	} {
		b := sealed(change(good, magicAt, tc.magic))
		_, err := Check(b)
		wantError(t, err, ErrMagic, tc.text)
		if err := new(Reader).Reset(b); !errors.Is(err, ErrMagic) {
			t.Errorf("Reset with magic %d: %v", tc.magic, err)
		}
	}
	_, err := Check(unhex(t, goldenV0)) // shorter than a batch header
	wantError(t, err, ErrMagic, "magic 0 message set")
	_, err = Check(unhex(t, goldenV0)[:20])
	wantError(t, err, ErrMagic, "magic 0 message set")
}

func TestPeekSize(t *testing.T) {
	for _, tc := range []struct {
		name   string
		length int32
		cut    int // bytes given, of 20
		size   int
		ok     bool
	}{
		{"eleven bytes", 49, 11, 0, false},
		{"twelve bytes", 49, 12, 61, true},
		{"smallest", 14, 20, 26, true},
		{"below", 13, 20, 25, false},
		{"zero", 0, 20, 12, false},
		{"negative", -1, 20, 11, false},
		{"largest", math.MaxInt32, 20, math.MaxInt32 + 12, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := make([]byte, 20)
			binary.BigEndian.PutUint32(p[lengthAt:], uint32(tc.length))
			if size, ok := PeekSize(p[:tc.cut]); size != tc.size || ok != tc.ok {
				t.Errorf("PeekSize = %d, %v; want %d, %v", size, ok, tc.size, tc.ok)
			}
		})
	}
}

// Scenario 7: a new last offset moves the base. Scenario 8: the leader epoch
// leaves the checksum alone.
func TestScenario07And08_Stamps(t *testing.T) {
	b := build(t, values("a", "b", "c"))
	b.SetBaseOffset(99 - int64(b.LastOffsetDelta()))
	b.SetLeaderEpoch(12)
	if _, err := Check(b); err != nil {
		t.Fatal(err)
	}
	if b.BaseOffset() != 97 || b.LastOffset() != 99 || b.LeaderEpoch() != 12 {
		t.Errorf("offsets %d to %d, epoch %d", b.BaseOffset(), b.LastOffset(), b.LeaderEpoch())
	}
	if recs := read(t, b); recs[0].Offset != 97 || recs[2].Offset != 99 {
		t.Errorf("records %d to %d", recs[0].Offset, recs[2].Offset)
	}
}

// Scenario 9: append time, checksum made anew. Scenario 10: nothing changes,
// nothing is written.
func TestScenario09And10_SetMaxTimestamp(t *testing.T) {
	for _, c := range codecs {
		t.Run(c.String(), func(t *testing.T) {
			b := build(t, values("a", "b", "c"), with(c))
			b[attributesAt], b[attributesAt+1] = 0x7f, b[attributesAt+1]|0x80 // bits that mean nothing
			b = sealed(b)
			before := slices.Clone(b)
			b.SetMaxTimestamp(CreateTime, day+2)
			if !bytes.Equal(b, before) {
				t.Error("same type and time changed the batch")
			}
			b.SetMaxTimestamp(LogAppendTime, day+1000)
			if _, err := Check(b); err != nil {
				t.Fatal(err)
			}
			if b.Attributes() != int16(c)|attrAppendTime {
				t.Errorf("attributes %x", b.Attributes())
			}
			for _, r := range read(t, b) {
				if r.Timestamp != day+1000 {
					t.Errorf("record at %d", r.Timestamp)
				}
			}
			b.SetMaxTimestamp(CreateTime, day+2)
			if _, err := Check(b); err != nil {
				t.Fatal(err)
			}
			if recs := read(t, b); b.MaxTimestamp() != day+2 || recs[1].Timestamp != day+1 {
				t.Errorf("back to CreateTime: max %d, record %d", b.MaxTimestamp(), recs[1].Timestamp)
			}
		})
	}
}

// The checksum in pieces is the checksum.
func TestComputeCRC(t *testing.T) {
	p := plains()["noise"]
	for _, n := range []int{HeaderSize, 100, 2016, 2037, 4032, 4053, 4054, 6048, 10000, len(p)} {
		if got, want := Batch(p[:n]).ComputeCRC(), crc32.Checksum(p[attributesAt:n], crc32.MakeTable(crc32.Castagnoli)); got != want {
			t.Errorf("%d bytes: %08x; want %08x", n, got, want)
		}
	}
}

func TestErrorText(t *testing.T) {
	for _, tc := range []struct {
		err  *Error
		want string
	}{
		{batchError(ErrChecksum, "crc-32c", 17, 0xdeadbeef, want, 1), "checksum mismatch: crc-32c deadbeef at byte 17, want 00000001"},
		{&Error{Kind: ErrInvalid, What: "key length", Pos: 5, Plain: true, Record: 3, Found: 9, Rel: atMost, Want: 4},
			"invalid batch: record 3: key length 9 at byte 5 of the decompressed records, want at most 4"},
		{badStream("gzip stream", 61, errors.New("boom")), "undecodable records: gzip stream at byte 61: boom"},
	} {
		if got := tc.err.Error(); got != tc.want {
			t.Errorf("%q; want %q", got, tc.want)
		}
		if !errors.Is(tc.err, tc.err.Kind) {
			t.Errorf("%v is not its kind", tc.err)
		}
	}
}

// TestSetProducer: a batch that gets another producer is what encoding it for that one
// gives.
func TestSetProducer(t *testing.T) {
	recs := []Record{{Timestamp: 1, Value: []byte("a")}, {Timestamp: 2, Value: []byte("b")}}
	encode := func(id int64, epoch int16, sequence int32) Batch {
		spec := NewSpec()
		spec.ProducerID, spec.ProducerEpoch, spec.BaseSequence = id, epoch, sequence
		return Encode(make([]byte, Size(recs, 0)), recs, &spec)
	}
	b := encode(7, 1, 5)
	for _, p := range []struct {
		id       int64
		epoch    int16
		sequence int32
	}{{7, 2, 0}, {1 << 40, 0, 0}, {7, 32767, 1<<31 - 1}, {NoProducer, NoProducerEpoch, NoSequence}} {
		b.SetProducer(p.id, p.epoch, p.sequence)
		if want := encode(p.id, p.epoch, p.sequence); !bytes.Equal(b, want) {
			t.Errorf("%+v: % x; want % x", p, b, want)
		}
	}
}
