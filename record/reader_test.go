package record

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// Scenarios 5 and 6: the count says more or fewer records than there are.
func TestScenario05And06_CountDisagrees(t *testing.T) {
	for _, c := range codecs {
		for _, tc := range []struct {
			name  string
			count int32
			read  int
			text  string
		}{
			{"scenario 5: one more", 4, 3, "records present 3"},
			{"scenario 5: many more", 1 << 30, 3, "want 1073741824"},
			{"scenario 6: one fewer", 2, 2, "bytes left behind the last record 9"},
			{"scenario 6: none", 0, 0, "bytes left behind the last record 27"},
		} {
			t.Run(c.String()+" "+tc.name, func(t *testing.T) {
				b := edited(build(t, values("aa", "bb", "cc"), with(c)), func(b Batch) Batch {
					binary.BigEndian.PutUint32(b[countAt:], uint32(tc.count))
					return b
				})
				n, err := readErr(b)
				if n != tc.read {
					t.Errorf("read %d records; want %d", n, tc.read)
				}
				wantError(t, err, ErrInvalid, tc.text)
				if plain := strings.Contains(err.Error(), "of the decompressed records"); plain != (c != None) {
					t.Errorf("wrong place: %v", err)
				}
				if err := Validate(b, 0); !errors.Is(err, ErrInvalid) {
					t.Errorf("Validate: %v", err)
				}
			})
		}
	}
}

// Scenarios 12, 13, 14: every length of a record wrong in its own way. The first
// record is sound, the one tested follows, and more bytes follow that, so that a
// read beyond the record would succeed.
func TestC126_BadRecords(t *testing.T) {
	header := func(kn int64, k string, vn int64, v string) []byte {
		return append(appendVarint(append(appendVarint(nil, kn), k...), vn), v...)
	}
	over := func(n int) string { return strings.Repeat("\xff", n-1) + "\x01" }
	ok := rawRecord{key: "k", value: "v"}
	for _, tc := range []struct {
		name string
		raw  []byte
		text string // empty: sound
	}{
		{"sound", ok.append(nil), ""},
		{"scenario 12: length 0", []byte{0}, "timestamp delta cut off"},
		{"scenario 12: length negative", rawRecord{length: new(int64(-1)), key: "k"}.append(nil), "record length -1 at byte 70, want at least 0"},
		{"scenario 12: length beyond the batch", rawRecord{length: new(int64(5000)), key: "k"}.append(nil), "record length 5000 at byte 70, want at most"},
		{"scenario 12: length too small", rawRecord{length: new(int64(6)), key: "k", value: "vvvv"}.append(nil), "value length 4 at byte 76, want at most 0"},
		{"scenario 12: length too large", rawRecord{length: new(int64(9)), key: "k", value: "v"}.append(nil), "bytes left in the record 1"},
		{"length 2^31-1", rawRecord{length: new(int64(1<<31 - 1))}.append(nil), "record length 2147483647"},
		{"key length beyond the record", rawRecord{key: 5}.append(nil), "key length 5 at byte 74, want at most 2"},
		{"key length 2^31-1", rawRecord{key: 1<<31 - 1}.append(nil), "key length 2147483647"},
		{"C126: key length -2 reads as null", rawRecord{key: -2, value: "v"}.append(nil), ""},
		{"value length -2 reads as null", rawRecord{value: -2}.append(nil), ""},
		{"value length beyond the record", rawRecord{value: 3}.append(nil), "value length 3 at byte 75, want at most 1"},
		{"C126: header count -1", rawRecord{headerCount: -1}.append(nil), "header count -1 at byte 76, want at least 0"},
		{"C126: header count 2^31-1", rawRecord{headerCount: 1<<31 - 1}.append(nil), "header count 2147483647 at byte 76, want at most 0"},
		{"C126: header count 2^31", rawRecord{headerCount: 1 << 31}.append(nil), "header count cut off or over-long"},
		{"offset delta of 33 bits", rawRecord{offset: 1 << 31}.append(nil), "offset delta cut off or over-long"},
		{"timestamp delta of 65 bits", []byte("\x1e\x00" + strings.Repeat("\xff", 9) + "\x02\x02\x01\x01\x00"), "timestamp delta cut off or over-long"},
		{"header count one too many", rawRecord{headerCount: 2, headers: header(1, "k", 1, "v")}.append(nil), "header key length cut off"},
		{"scenario 13, C126: null header key", rawRecord{headerCount: 1, headers: header(-1, "", 1, "v")}.append(nil), "header key length -1 at byte 77, want at least 0"},
		{"scenario 13: null header value", rawRecord{headerCount: 1, headers: header(1, "k", -1, "")}.append(nil), ""},
		{"header key length beyond", rawRecord{headerCount: 1, headers: header(9, "k", 1, "v")}.append(nil), "header key length 9"},
		{"header value length beyond", rawRecord{headerCount: 1, headers: header(1, "k", 2, "v")}.append(nil), "header value length 2"},
		{"C126: leftover bytes", rawRecord{key: "k", value: "v", tail: []byte{0}}.append(nil), "bytes left in the record 1"},
		{"non-minimal varints, sound", []byte("\x96\x80\x80\x80\x00\x00\x80\x80\x00\x82\x00\x81\x00\x80\x00\x00"), ""},
		{"scenario 14, C126: record length of 6 bytes", []byte(over(6)), "record length cut off or over-long"},
		{"scenario 14, C126: timestamp delta of 11 bytes", []byte("\x28\x00" + over(11) + "\x00\x01\x01\x00\x00\x00\x00\x00"), "timestamp delta cut off or over-long"},
		{"timestamp delta of 10 bytes", []byte("\x1e\x00" + over(10) + "\x02\x01\x01\x00"), ""},
		{"scenario 14: offset delta of 6 bytes", []byte("\x16\x00\x00" + over(6) + "\x01\x01\x00"), "offset delta cut off or over-long"},
		{"scenario 14: key length of 6 bytes", []byte("\x16\x00\x00\x02" + over(6) + "\x01\x00"), "key length cut off or over-long"},
		{"scenario 14: value length of 6 bytes", []byte("\x16\x00\x00\x02\x01" + over(6) + "\x00"), "value length cut off or over-long"},
		{"scenario 14: header count of 6 bytes", []byte("\x16\x00\x00\x02\x01\x01" + over(6)), "header count cut off or over-long"},
		{"varint cut off by the record", []byte("\x0a\x00\x00\x02\x01\x80"), "value length cut off"},
	} {
		for _, c := range []Codec{None, Gzip} {
			t.Run(tc.name+" "+c.String(), func(t *testing.T) {
				first := rawRecord{key: "ab", value: ""}.append(nil)
				last := ok.append(nil)
				region := slices.Concat(first, tc.raw, last)
				b := withRecords(t, build(t, values("x"), with(c)), 3, region)
				n, err := readErr(b)
				if tc.text == "" {
					if n != 3 || err != nil {
						t.Fatalf("%d records, %v; want 3", n, err)
					}
					return
				}
				text := tc.text
				if c != None { // positions count from the first record
					text = ""
				}
				if n != 1 {
					t.Errorf("read %d records; want 1", n)
				}
				wantError(t, err, ErrInvalid, text)
				var e *Error
				if errors.As(err, &e); e == nil || e.Record != 1 || e.Plain != (c != None) {
					t.Errorf("not about record 1: %v", err)
				}
				if err := Validate(b, 0); !errors.Is(err, ErrInvalid) {
					t.Errorf("Validate: %v", err)
				}
				if c == None {
					var rec Record
					if _, err := ParseRecordAt(b, HeaderSize+len(first), &rec, nil); !errors.Is(err, ErrInvalid) {
						t.Errorf("ParseRecordAt: %v", err)
					}
				}
			})
		}
	}
}

// TestShortAgainstAny: what the fast parser takes, the full one takes as well and
// reads the same, whatever bytes of a record are changed; and it takes the usual
// records at all.
func TestShortAgainstAny(t *testing.T) {
	d := deltas{baseOffset: 100, baseTimestamp: day, baseSequence: 5}
	short := 0
	check := func(p []byte) {
		var fast, slow Record
		next := d.parseShort(p, 0, &fast)
		if next == 0 {
			return
		}
		short++
		end, bad := d.parseAny(p, 0, &slow, nil)
		if bad != nil || end != next || !same(fast, slow) {
			t.Fatalf("%x: %s up to %d; the full parser: %s up to %d, %v", p, show(fast), next, show(slow), end, bad)
		}
	}
	rng := rand.New(rand.NewPCG(3, 4))
	for _, raw := range []rawRecord{
		{value: "some value"},
		{key: "key", value: "v", offset: 70, ts: 3},
		{key: "", value: strings.Repeat("v", 100), offset: 8191},
		{value: strings.Repeat("v", 70), offset: -3, ts: -64},
		{key: strings.Repeat("k", 63), value: ""},
		{value: "v", headerCount: 1, headers: []byte{2, 'h', 2, 'v'}},
		{},
	} {
		rec := raw.append(nil)
		for _, tail := range []int{0, 1, 7, 8, 300} {
			p := append(slices.Clone(rec), bytes.Repeat([]byte{2}, tail)...)
			check(p)
			for at := range len(rec) {
				for v := range 256 {
					q := slices.Clone(p)
					q[at] = byte(v)
					check(q)
					q[rng.IntN(len(q))] = byte(rng.Uint32())
					q[rng.IntN(min(8, len(q)))] = byte(rng.Uint32())
					check(q)
				}
			}
		}
	}
	if short < 1000 {
		t.Errorf("the fast parser took %d records only", short)
	}
}

// A count of headers that fits the record but would take gigabytes is refused.
func TestHeaderBomb(t *testing.T) {
	n := maxHeaders + 1
	raw := rawRecord{headerCount: int64(n), headers: make([]byte, 2*n)}.append(nil)
	b := withRecords(t, build(t, values("x"), with(Zstd)), 1, raw)
	if len(b) > 2000 {
		t.Fatalf("batch of %d bytes is no bomb", len(b))
	}
	_, err := readErr(b)
	wantError(t, err, ErrTooLarge, "header count 1048577 at byte")
	fits := rawRecord{headerCount: maxHeaders, headers: make([]byte, 2*maxHeaders)}.append(nil)
	if n, err := readErr(withRecords(t, b, 1, fits)); n != 1 || err != nil {
		t.Errorf("the largest count: %d records, %v", n, err)
	}
}

// Null and empty differ, for key, value and header value, whatever the codec.
func TestC129_NullAndEmpty(t *testing.T) {
	kinds := [][]byte{nil, {}, []byte("x")}
	var recs []Record
	for _, k := range kinds {
		for _, v := range kinds {
			for _, h := range kinds {
				recs = append(recs, Record{Timestamp: day, Key: k, Value: v, Headers: []Header{{[]byte("h"), h}}})
			}
			recs = append(recs, Record{Timestamp: day, Key: k, Value: v})
		}
	}
	spec := NewSpec()
	for _, c := range codecs {
		compare(t, read(t, build(t, recs, with(c))), expect(recs, &spec))
	}
}

func TestC130_HeaderOrder(t *testing.T) {
	rec := Record{Timestamp: day, Headers: []Header{
		{[]byte("a"), []byte("1")}, {[]byte("a"), []byte("2")}, {[]byte(""), []byte("x")}, {[]byte("b"), nil}, {[]byte("bin"), []byte{0, 255, 0}},
	}}
	for i := range 1000 {
		rec.Headers = append(rec.Headers, Header{fmt.Append(nil, i%7), fmt.Append(nil, i)})
	}
	spec := NewSpec()
	for _, c := range codecs {
		compare(t, read(t, build(t, []Record{rec, rec}, with(c))), expect([]Record{rec, rec}, &spec))
	}
}

// SkipTo and ParseRecordAt find what the Reader finds, for records of equal and of
// all sorts of sizes.
func TestSkipToAgainstReader(t *testing.T) {
	mixed := []Record{}
	for i, n := range []int{0, 0, 1, 1, 60, 60, 61, 200, 200, 200, 3, 9000, 9000, 9000 + 8192, 8200, 57, 57, 0} {
		mixed = append(mixed, Record{Timestamp: day + int64(i%3), Value: bytes.Repeat([]byte{'v'}, n), Headers: make([]Header, i/2%2)})
	}
	for name, recs := range map[string][]Record{"equal": benchRecords(100, 200), "one": benchRecords(5, 1), "mixed": mixed, "text": genText(300)} {
		t.Run(name, func(t *testing.T) {
			b := build(t, recs)
			want := read(t, b)
			var rec Record
			for i := range want {
				pos, err := SkipTo(b, HeaderSize, i)
				if err != nil {
					t.Fatalf("skip %d: %v", i, err)
				}
				next, err := ParseRecordAt(b, pos, &rec, rec.Headers)
				if err != nil || !same(rec, want[i]) {
					t.Fatalf("record %d at %d is %s, %v; want %s", i, pos, show(rec), err, show(want[i]))
				}
				if step, err := SkipTo(b, pos, 1); err != nil || step != next {
					t.Errorf("one step from %d: %d, %v; want %d", pos, step, err, next)
				}
			}
			if end, err := SkipTo(b, HeaderSize, len(want)); err != nil || end != len(b) {
				t.Errorf("skip all: %d, %v; want %d", end, err, len(b))
			}
			if _, err := SkipTo(b, HeaderSize, len(want)+1); !errors.Is(err, ErrInvalid) {
				t.Errorf("skip one too many: %v", err)
			}
		})
	}
}

func TestSkipToErrors(t *testing.T) {
	b := build(t, values("hello", "world"))
	far := withRecords(t, b, 2, rawRecord{length: new(int64(900)), value: "v"}.append(nil))
	below := withRecords(t, b, 2, rawRecord{length: new(int64(-3)), value: "v"}.append(nil))
	for _, tc := range []struct {
		name string
		b    Batch
		pos  int
		want error
		text string
	}{
		{"compressed", build(t, values("a"), with(LZ4)), HeaderSize, ErrCodec, "codec 3"},
		{"inside the header", b, HeaderSize - 1, ErrInvalid, "record position 60"},
		{"behind the batch", b, len(b) + 1, ErrInvalid, "record position"},
		{"negative", b, -1, ErrInvalid, "record position -1"},
		{"at the end", b, len(b), ErrInvalid, "record length cut off"},
		{"no header", b[:60], HeaderSize, ErrTooShort, "bytes present 60"},
		{"length beyond the batch", far, HeaderSize, ErrInvalid, "record length 900"},
		{"length negative", below, HeaderSize, ErrInvalid, "record length -3"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := SkipTo(tc.b, tc.pos, 1)
			wantError(t, err, tc.want, tc.text)
			_, err = ParseRecordAt(tc.b, tc.pos, new(Record), nil)
			wantError(t, err, tc.want, tc.text)
		})
	}
	if pos, err := SkipTo(b, len(b), 0); pos != len(b) || err != nil {
		t.Errorf("skip nothing at the end: %d, %v", pos, err)
	}
}

// Scenarios 15 and 16: what a scan of a file's bytes makes of a torn tail.
func TestScenario15And16_Tail(t *testing.T) {
	b := build(t, values("hello"))
	for cut := range len(b) {
		p := append(slices.Clone(b), b[:cut]...)
		n := 0
		for {
			batch, err := Check(p)
			if err != nil {
				if !errors.Is(err, ErrTooShort) {
					t.Errorf("tail of %d bytes: %v", cut, err)
				}
				break
			}
			n, p = n+1, p[len(batch):]
		}
		if n != 1 || len(p) != cut {
			t.Errorf("%d batches, %d bytes left; want 1, %d", n, len(p), cut)
		}
	}
}

// The error of Reset is also that of Err, nothing is read after it, and the next
// Reset starts afresh.
func TestReaderReuse(t *testing.T) {
	var r Reader
	good := build(t, values("a", "b"), with(Snappy))
	bad := edited(good, func(b Batch) Batch { b[HeaderSize+20] ^= 0xff; return b })
	for _, b := range []Batch{nil, good[:30], good[:len(good)-1], bad, {0}} {
		err := r.Reset(b)
		if err == nil || r.Next() || r.Err() != err {
			t.Errorf("%d bytes: %v, then %v", len(b), err, r.Err())
		}
		if err := r.Reset(good); err != nil {
			t.Fatal(err)
		}
		n := 0
		for r.Next() {
			n++
		}
		if n != 2 || r.Err() != nil || r.Next() {
			t.Errorf("%d records, %v", n, r.Err())
		}
	}
}

// Into reads what Next reads, up to the same end, in turns with it too.
func TestInto(t *testing.T) {
	mixed := genText(50)
	mixed[7].Headers = []Header{{[]byte("h"), nil}}
	mixed[8].Key = []byte("k")
	mixed[9].Value = nil
	short := edited(build(t, mixed), setCounts(49, 40))
	for _, b := range []Batch{build(t, mixed), build(t, mixed, with(LZ4)), short, edited(short, setCounts(59, 60))} {
		var next, into Reader
		next.Reset(b)
		into.Reset(b)
		for i := 0; ; i++ {
			var rec Record
			more := next.Next()
			if i%3 == 2 {
				if into.Next() != more {
					t.Fatalf("record %d: Next is not %v", i, more)
				}
				rec = *into.Record()
			} else if into.Into(&rec) != more {
				t.Fatalf("record %d: Into is not %v", i, more)
			}
			if !more {
				break
			}
			if !same(rec, *next.Record()) {
				t.Errorf("record %d is %s; want %s", i, show(rec), show(*next.Record()))
			}
		}
		if fmt.Sprint(next.Err()) != fmt.Sprint(into.Err()) {
			t.Errorf("Into ended with %v; Next with %v", into.Err(), next.Err())
		}
	}
}

// A Reader that is given what Check would refuse says so.
func TestReaderNegativeCount(t *testing.T) {
	b := edited(AppendEmpty(nil, build(t, values("a"))), setCounts(0, -1))
	_, err := readErr(b)
	wantError(t, err, ErrInvalid, "records count -1 at byte 57")
}

// Slices of a plain batch alias it and cannot be extended over what follows.
func TestRecordsAlias(t *testing.T) {
	b := build(t, []Record{{Key: []byte("kk"), Value: []byte("vvvvvvvvvv"), Headers: []Header{{[]byte("h"), []byte("v")}}}})
	for r, err := range b.Records() {
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range [][]byte{r.Key, r.Value, r.Headers[0].Key, r.Headers[0].Value} {
			if cap(s) != len(s) {
				t.Errorf("%q has room for %d bytes more", s, cap(s)-len(s))
			}
		}
		b[bytes.IndexByte(b, 'k')] = 'K'
		if r.Key[0] != 'K' {
			t.Error("the key is a copy")
		}
	}
}

// Leaving the loop early returns the pooled reader in order.
func TestRecordsBreak(t *testing.T) {
	b := build(t, genText(10), with(Gzip))
	for range 10 {
		for r, err := range b.Records() {
			if err != nil || r.Offset != 0 {
				t.Fatal(r.Offset, err)
			}
			for inner, err := range b.Records() { // a second one at the same time
				if err != nil || inner.Offset != 0 {
					t.Fatal(inner.Offset, err)
				}
				break
			}
			break
		}
	}
}
