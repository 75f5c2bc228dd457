package record

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/crc32"
	"slices"
	"testing"
)

const (
	goldenV0 = "0000000000000007000000101fecd70a0000000000016b0000000176"
	goldenV1 = "000000000000000700000018cf056e6e01000000000000000001000000016b0000000176"
)

// appendLegacy appends a message. key and value may be nil.
func appendLegacy(dst []byte, magic int8, offset int64, attributes byte, ts int64, key, value []byte) []byte {
	body := []byte{byte(magic), attributes}
	if magic == 1 {
		body = binary.BigEndian.AppendUint64(body, uint64(ts))
	}
	for _, f := range [][]byte{key, value} {
		if f == nil {
			body = binary.BigEndian.AppendUint32(body, 0xffffffff)
			continue
		}
		body = append(binary.BigEndian.AppendUint32(body, uint32(len(f))), f...)
	}
	dst = binary.BigEndian.AppendUint64(dst, uint64(offset))
	dst = binary.BigEndian.AppendUint32(dst, uint32(4+len(body)))
	dst = binary.BigEndian.AppendUint32(dst, crc32.ChecksumIEEE(body))
	return append(dst, body...)
}

// wrapper is a compressed set of messages.
func wrapper(t testing.TB, magic int8, offset int64, c Codec, appendTime bool, set []byte) []byte {
	t.Helper()
	stream, err := Compress(nil, c, 0, set)
	if err != nil {
		t.Fatal(err)
	}
	attributes := byte(c)
	if appendTime {
		attributes |= attrAppendTime
	}
	return appendLegacy(nil, magic, offset, attributes, day+77, nil, stream)
}

func legacyMessages(t testing.TB, p []byte) ([]LegacyMessage, error) {
	t.Helper()
	var out []LegacyMessage
	for m, err := range LegacyMessages(p, 1<<20) {
		if err != nil {
			return out, err
		}
		out = append(out, m)
	}
	return out, nil
}

func TestGoldenLegacy(t *testing.T) {
	for _, tc := range []struct {
		hex   string
		magic int8
		ts    int64
	}{{goldenV0, 0, NoTimestamp}, {goldenV1, 1, 1}} {
		p := unhex(t, tc.hex)
		got, err := legacyMessages(t, append(p, "rest"...))
		if err != nil || len(got) != 1 {
			t.Fatalf("%d messages, %v", len(got), err)
		}
		m := got[0]
		if m.Offset != 7 || m.Magic != tc.magic || !m.CRCValid || m.Codec != None || m.Timestamp != tc.ts || m.TimestampType != CreateTime ||
			string(m.Key) != "k" || string(m.Value) != "v" || m.Size != len(p) {
			t.Errorf("%+v", m)
		}
		if own := hex.EncodeToString(appendLegacy(nil, tc.magic, 7, 0, tc.ts, []byte("k"), []byte("v"))); own != hex.EncodeToString(p) {
			t.Errorf("test writer gives %s", own)
		}
	}
}

func TestLegacyWrapper(t *testing.T) {
	for _, c := range []Codec{Gzip, Snappy, LZ4} {
		for _, tc := range []struct {
			name       string
			magic      int8
			inner      []int64 // offsets as stored
			outer      int64
			appendTime bool
			want       []int64
		}{
			{"magic 0: absolute", 0, []int64{40, 41, 45}, 45, false, []int64{40, 41, 45}},
			{"magic 0: absolute, whatever the outer one says", 0, []int64{40, 41, 45}, 50, false, []int64{40, 41, 45}},
			{"magic 1: relative", 1, []int64{0, 1, 2}, 45, false, []int64{43, 44, 45}},
			{"magic 1: relative with gaps", 1, []int64{0, 3, 9}, 45, false, []int64{36, 39, 45}},
			{"magic 1: already absolute", 1, []int64{43, 44, 45}, 45, false, []int64{43, 44, 45}},
			{"magic 1: append time", 1, []int64{0, 1, 2}, 2, true, []int64{0, 1, 2}},
		} {
			t.Run(fmt.Sprintf("%v/%s", c, tc.name), func(t *testing.T) {
				var set []byte
				for i, o := range tc.inner {
					set = appendLegacy(set, tc.magic, o, 0, day+int64(i), fmt.Append(nil, "k", i), nil)
				}
				p := wrapper(t, tc.magic, tc.outer, c, tc.appendTime, set)
				outer, err := ParseLegacy(p)
				if err != nil || outer.Codec != c || outer.Offset != tc.outer || outer.Size != len(p) || !outer.CRCValid {
					t.Fatalf("outer %+v, %v", outer, err)
				}
				got, err := legacyMessages(t, p)
				if err != nil || len(got) != len(tc.want) {
					t.Fatalf("%d messages, %v", len(got), err)
				}
				for i, m := range got {
					ts, typ := int64(NoTimestamp), CreateTime
					if tc.magic == 1 {
						ts = day + int64(i)
					}
					if tc.appendTime {
						ts, typ = day+77, LogAppendTime
					}
					if m.Offset != tc.want[i] || m.Timestamp != ts || m.TimestampType != typ || string(m.Key) != fmt.Sprint("k", i) ||
						m.Value != nil || !m.CRCValid || m.Codec != None || m.Magic != tc.magic {
						t.Errorf("message %d: %+v", i, m)
					}
				}
			})
		}
	}
}

func TestLegacyErrors(t *testing.T) {
	one := appendLegacy(nil, 1, 0, 0, day, []byte("k"), []byte("v"))
	zero := appendLegacy(nil, 0, 0, 0, day, []byte("k"), []byte("v"))
	gz := wrapper(t, 1, 0, Gzip, false, one)
	rep := func(p []byte, at int, b ...byte) []byte { return change(p, at, b...) }
	for _, tc := range []struct {
		name string
		p    []byte
		want error // nil: no error
		text string
	}{
		{"sound", one, nil, ""},
		{"nothing", nil, ErrTooShort, "bytes present 0"},
		{"cut", one[:len(one)-1], ErrTooShort, "bytes present 35"},
		{"below the smallest size of magic 0", rep(zero, lengthAt+3, 13), ErrTooShort, "message size 25 at byte 8, want at least 26"},
		{"below the smallest size of magic 1", rep(one, lengthAt+3, 21), ErrTooShort, "message size 33 at byte 8, want at least 34"},
		{"negative size", rep(one, lengthAt, 0xff, 0xff, 0xff, 0xff), ErrTooShort, "message size 11"},
		{"magic 2", rep(one, magicAt, 2), ErrMagic, "magic 2"},
		{"magic -1", rep(one, magicAt, 255), ErrMagic, "magic -1"},
		{"key length beyond", rep(one, 26, 0, 0, 0, 9), ErrInvalid, "key length 9 at byte 26, want at most 6"},
		{"no room for the value length", rep(one, 26, 0, 0, 0, 4), ErrInvalid, "value length at the end 2"},
		{"value length too small", rep(one, 31, 0, 0, 0, 0), ErrInvalid, "bytes left behind the value 1"},
		{"value length beyond", rep(one, 31, 0, 0, 0, 2), ErrInvalid, "value length 2 at byte 31, want at most 1"},
		{"null value of a wrapper", appendLegacy(nil, 1, 0, 1, day, nil, nil), ErrInvalid, "null value of a compressed message"},
		{"zstd is not allowed", appendLegacy(nil, 1, 0, 4, day, nil, []byte("x")), ErrCodec, "codec of an old message 4"},
		{"no such codec", appendLegacy(nil, 1, 0, 7, day, nil, []byte("x")), ErrCodec, "codec of an old message 7"},
		{"no stream", appendLegacy(nil, 1, 0, 1, day, nil, []byte("x")), ErrCodec, "gzip header"},
		{"nothing inside", wrapper(t, 1, 0, Gzip, false, nil), ErrInvalid, "no message inside"},
		{"wrapper inside", wrapper(t, 1, 0, Gzip, false, gz), ErrInvalid, "record 0: compressed message inside a compressed one"},
		{"other magic inside", wrapper(t, 1, 0, Gzip, false, slices.Concat(one, zero)), ErrMagic, "record 1: magic of an inner message 0 at byte 52 of the decompressed records, want 1"},
		{"torn message inside", wrapper(t, 1, 0, Gzip, false, slices.Concat(one, one[:30])), ErrTooShort, "record 1: bytes present 30"},
		{"bomb", wrapper(t, 1, 0, Gzip, false, appendLegacy(nil, 1, 0, 0, 0, nil, make([]byte, 2<<20))), ErrTooLarge, "more than 1048576 bytes"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := legacyMessages(t, tc.p)
			if tc.want == nil {
				if err != nil || len(got) != 1 {
					t.Errorf("%d messages, %v", len(got), err)
				}
				return
			}
			wantError(t, err, tc.want, tc.text)
			if len(got) != 0 {
				t.Errorf("%d messages before the error", len(got))
			}
		})
	}
}

// Scenario 38: a bad checksum, outside or inside, is told and does not hide the
// message.
func TestScenario38_LegacyChecksum(t *testing.T) {
	bad := change(unhex(t, goldenV1), legacyCRCAt, 1)
	got, err := legacyMessages(t, bad)
	if err != nil || len(got) != 1 || got[0].CRCValid {
		t.Errorf("%+v, %v", got, err)
	}
	got, err = legacyMessages(t, wrapper(t, 1, 8, Snappy, false, slices.Concat(unhex(t, goldenV1), bad)))
	if err != nil || len(got) != 2 || !got[0].CRCValid || got[1].CRCValid {
		t.Errorf("%+v, %v", got, err)
	}
}

// The LZ4 header byte that old clients got wrong, in a message of magic 1.
func TestC138_LegacyLZ4(t *testing.T) {
	set := appendLegacy(nil, 1, 0, 0, day, nil, []byte("hello"))
	for _, sum := range []byte{0x82, 0x1a} {
		stream, err := Compress(nil, LZ4, 0, set)
		if err != nil {
			t.Fatal(err)
		}
		stream[6] = sum
		got, err := legacyMessages(t, appendLegacy(nil, 1, 5, byte(LZ4), day, nil, stream))
		if err != nil || len(got) != 1 || !bytes.Equal(got[0].Value, []byte("hello")) || got[0].Offset != 5 {
			t.Errorf("header byte %x: %+v, %v", sum, got, err)
		}
	}
}

func TestLegacyMessagesBreak(t *testing.T) {
	set := slices.Repeat(unhex(t, goldenV1), 3)
	n := 0
	for _, err := range LegacyMessages(wrapper(t, 1, 2, Gzip, false, set), 0) {
		if err != nil {
			t.Fatal(err)
		}
		if n++; n == 2 {
			break
		}
	}
	if n != 2 {
		t.Error(n)
	}
	if err := func() error {
		for _, err := range LegacyMessages(nil, 0) {
			return err
		}
		return nil
	}(); !errors.Is(err, ErrTooShort) {
		t.Error(err)
	}
}
