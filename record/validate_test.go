package record

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
)

func setCounts(lastDelta, count int32) func(Batch) Batch {
	return func(b Batch) Batch {
		binary.BigEndian.PutUint32(b[lastDeltaAt:], uint32(lastDelta))
		binary.BigEndian.PutUint32(b[countAt:], uint32(count))
		return b
	}
}

// deltaBatch has the given offset deltas.
func deltaBatch(t *testing.T, c Codec, lastDelta int32, deltas ...int64) Batch {
	var region []byte
	for _, d := range deltas {
		region = rawRecord{offset: d, value: "value"}.append(region)
	}
	b := withRecords(t, build(t, []Record{{Timestamp: day}}, with(c)), int32(len(deltas)), region)
	return edited(b, setCounts(lastDelta, int32(len(deltas))))
}

func TestValidate(t *testing.T) {
	good := build(t, values("a", "b", "c"))
	setMax := func(ts int64) func(Batch) Batch {
		return func(b Batch) Batch { binary.BigEndian.PutUint64(b[maxTimestampAt:], uint64(ts)); return b }
	}
	for _, tc := range []struct {
		name string
		b    Batch
		want error
		text string
	}{
		{"good", good, nil, ""},
		{"followed by other bytes", append(slices.Clone(good), 1, 2, 3), nil, ""},
		{"torn", good[:len(good)-1], ErrTooShort, ""},
		{"checksum", change(good, crcAt, 1), ErrChecksum, ""},
		{"max timestamp too low", edited(good, setMax(day+1)), ErrInvalid, fmt.Sprintf("max timestamp %d at byte 35, want %d", day+1, day+2)},
		{"max timestamp too high", edited(good, setMax(day+3)), ErrInvalid, "max timestamp"},
		{"append time is not compared", edited(good, func(b Batch) Batch { b[attributesAt+1] |= attrAppendTime; return setMax(7)(b) }), nil, ""},
		{"no timestamps", build(t, []Record{{Timestamp: -1}, {Timestamp: -1}}), nil, ""},
		{"empty, codec bits set", edited(AppendEmpty(nil, good), func(b Batch) Batch { b[attributesAt+1] |= byte(Gzip); return b }), nil, ""},
		{"body behind an empty header", edited(good, setCounts(2, 0)), ErrInvalid, "bytes left behind the last record"},
		{"compacted: gaps", deltaBatch(t, None, 9, 1, 4, 7), nil, ""},
		{"compacted: gaps, compressed", deltaBatch(t, Zstd, 9, 1, 4, 7), nil, ""},
		{"more records than offsets", edited(good, setCounts(1, 3)), ErrInvalid, "records count 3 at byte 57, want at most 2"},
		{"deltas 0, 2, 1", deltaBatch(t, None, 2, 0, 2, 1), ErrInvalid, "record 2: offset delta of the record 1 at byte 85, want at least 3"},
		{"deltas 0, 2, 1, compressed", deltaBatch(t, Gzip, 2, 0, 2, 1), ErrInvalid, "of the decompressed records, want at least 3"},
		{"delta twice", deltaBatch(t, None, 5, 0, 2, 2), ErrInvalid, "record 2: offset delta of the record 2"},
		{"delta negative", deltaBatch(t, None, 5, -1, 2, 3), ErrInvalid, "record 0: offset delta of the record -1"},
		{"delta beyond the last", deltaBatch(t, None, 5, 0, 2, 6), ErrInvalid, "record 2: offset delta of the record 6 at byte 85, want at most 5"},
		{"offset that overflows", edited(deltaBatch(t, None, 5, 0, 2, 6), func(b Batch) Batch { b.SetBaseOffset(math.MaxInt64 - 1); return b }), ErrInvalid, "delta of the record 6"},
		{"nil", nil, ErrTooShort, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			err := Validate(tc.b, 0)
			if tc.want == nil {
				if err != nil {
					t.Error(err)
				}
				return
			}
			wantError(t, err, tc.want, tc.text)
		})
	}
}

// clientError checks code and text of what ValidateClient gave and returns the
// indexes of the records blamed.
func clientError(t *testing.T, err error, code int16, text string) []int {
	t.Helper()
	var ce *ClientError
	if !errors.As(err, &ce) {
		t.Fatalf("error is %v; want code %d", err, code)
	}
	if ce.Code != code || !strings.Contains(ce.Err.Error(), text) {
		t.Errorf("code %d: %v; want %d: … %s …", ce.Code, ce.Err, code, text)
	}
	var blamed []int
	for _, r := range ce.Records {
		blamed = append(blamed, r.Index)
		if !strings.Contains(r.Err.Error(), fmt.Sprintf("record %d: ", r.Index)) {
			t.Errorf("record error without its record: %v", r.Err)
		}
	}
	return blamed
}

func TestValidateClient(t *testing.T) {
	good := build(t, values("a", "b", "c"))
	gz := build(t, values("a", "b", "c"), with(Gzip))
	zst := build(t, values("a", "b", "c"), with(Zstd))
	producer := func(id int64, epoch int16, sequence int32) Batch {
		return edited(good, func(b Batch) Batch {
			binary.BigEndian.PutUint64(b[producerIDAt:], uint64(id))
			binary.BigEndian.PutUint16(b[producerEpochAt:], uint16(epoch))
			binary.BigEndian.PutUint32(b[baseSequenceAt:], uint32(sequence))
			return b
		})
	}
	attributes := func(a byte) Batch {
		return edited(good, func(b Batch) Batch { b[attributesAt+1] |= a; return b })
	}
	cat := func(bs ...[]byte) []byte { return slices.Concat(bs...) }
	base := func(o int64) []byte { b := slices.Clone(good); b.SetBaseOffset(o); return b }
	garbled := edited(gz, func(b Batch) Batch { b[HeaderSize+12] ^= 0xff; return b })

	for _, tc := range []struct {
		name  string
		p     []byte
		rules ClientRules
		code  int16 // 0: accepted
		text  string
	}{
		{"good", good, ClientRules{}, 0, ""},
		{"scenario 30, 31: compressed, left as it is", gz, ClientRules{}, 0, ""},
		{"no bytes", nil, ClientRules{}, 87, "whole batches in the request 0"},
		{"10 bytes", good[:10], ClientRules{}, 87, "whole batches in the request"},
		{"only a partial batch", good[:len(good)-1], ClientRules{}, 87, "whole batches in the request"},
		{"100 zero bytes", make([]byte, 100), ClientRules{}, 2, "batch length 0 at byte 8, want at least 14"},
		{"batch, then 11 bytes", cat(good, good[:11]), ClientRules{}, 0, ""},
		{"batch, then an incomplete one", cat(good, good[:len(good)-1]), ClientRules{}, 0, ""},
		{"batch, then 20 zero bytes", cat(good, make([]byte, 20)), ClientRules{}, 2, "batch length 0"},
		{"scenario 20, C119: two plain batches", cat(good, good), ClientRules{}, 87, "second batch in the request"},
		{"C119: two gzip batches", cat(gz, gz), ClientRules{}, 87, "second batch in the request"},
		{"a message set behind the batch", cat(good, unhex(t, goldenV1)), ClientRules{}, 87, "second batch"},
		{"C131: magic 0", unhex(t, goldenV0), ClientRules{}, 87, "magic 0 message set"},
		{"C131: magic 1", unhex(t, goldenV1), ClientRules{}, 87, "magic 1 message set"},
		{"C131: magic 3", sealed(change(good, magicAt, 3)), ClientRules{}, 2, "magic 3"},
		{"C131: magic 127", sealed(change(good, magicAt, 127)), ClientRules{}, 2, "magic 127"},
		{"scenario 37, C143: zstd too early", zst, ClientRules{NoZstd: true}, 76, "zstd"},
		{"zstd", zst, ClientRules{}, 0, ""},
		{"C122: base offset 5", base(5), ClientRules{}, 87, "base offset 5 at byte 0, want 0"},
		{"C122: base offset -1", base(-1), ClientRules{}, 87, "base offset -1"},
		{"C133: exactly the limit", good, ClientRules{MaxBatchSize: len(good)}, 0, ""},
		{"C133: limit and one", good, ClientRules{MaxBatchSize: len(good) - 1}, 10, "batch size"},
		{"checksum", change(good, crcAt, 1), ClientRules{}, 2, "crc-32c"},
		{"size below the header", cat(change(good, lengthAt, 0, 0, 0, 40)[:52]), ClientRules{}, 2, "batch size 52"},
		{"any leader epoch", edited(good, func(b Batch) Batch { b.SetLeaderEpoch(99); return b }), ClientRules{}, 0, ""},
		{"scenario 23, C123: control batch", attributes(attrControl), ClientRules{}, 87, "control batch from a client"},
		{"C123: control and transactional", attributes(attrControl | attrTransaction), ClientRules{}, 87, "control batch"},
		{"scenario 23: control batch from the coordinator", AppendMarker(nil, Marker{Timestamp: day, ProducerID: 4, Type: Commit}), ClientRules{Coordinator: true}, 0, ""},
		{"scenario 35, C117: producer without sequence", producer(0, 0, -1), ClientRules{}, 87, "base sequence -1"},
		{"producer without epoch", producer(7, -1, 0), ClientRules{}, 87, "producer epoch -1"},
		{"C117: producer 0", producer(0, 0, 0), ClientRules{}, 0, ""},
		{"C117: sequence without producer", producer(-1, -1, 7), ClientRules{}, 0, ""},
		{"no producer as some clients write it", producer(-1, 0, 0), ClientRules{}, 0, ""},
		{"bits 6 and 9", edited(good, func(b Batch) Batch { b[attributesAt] = 2; b[attributesAt+1] |= attrHorizon; return b }), ClientRules{}, 0, ""},
		{"undecodable stream", garbled, ClientRules{}, 87, "gzip"},
		{"C143: codec 5", attributes(5), ClientRules{}, 87, "codec 5"},
		{"C143: codec 7", attributes(7), ClientRules{}, 87, "codec 7"},
		{"C144: zstd bytes, plain label", edited(zst, func(b Batch) Batch { b[attributesAt+1] = 0; return b }), ClientRules{}, 87, "record 0"},
		{"more plain bytes than allowed", gz, ClientRules{MaxDecompressed: 5}, 10, "decompressed gzip stream"},
		{"C133: small as stored, large plain", build(t, values(strings.Repeat("x", 1<<20)), with(LZ4)), ClientRules{MaxBatchSize: 64 << 10}, 0, ""},
		{"scenario 34: max timestamp wrong", edited(good, func(b Batch) Batch { b[maxTimestampAt+7]--; return b }), ClientRules{}, 0, ""},
		{"scenario 33: deltas 0, 2, 1", deltaBatch(t, Gzip, 2, 0, 2, 1), ClientRules{}, 87, "record 2: offset delta"},
		{"deltas 0, 2, 1 plain", deltaBatch(t, None, 2, 0, 2, 1), ClientRules{}, 87, "record 2: offset delta"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b, largest, err := ValidateClient(tc.p, &tc.rules)
			if tc.code != 0 {
				if blamed := clientError(t, err, tc.code, tc.text); blamed != nil {
					t.Errorf("records %d are to blame", blamed)
				}
				if b != nil {
					t.Error("a batch with the error")
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			size, _ := PeekSize(tc.p)
			if len(b) != size || cap(b) != size || &b[0] != &tc.p[0] {
				t.Errorf("%d bytes (cap %d); want the first %d", len(b), cap(b), size)
			}
			b = slices.Clone(b)
			b.SetMaxTimestamp(CreateTime, largest)
			if err := Validate(b, 0); err != nil {
				t.Errorf("once stamped: %v", err)
			}
		})
	}
}

// Scenario 21: last offset delta and count that disagree. Scenario 22: no record.
func TestScenario21And22_Counts(t *testing.T) {
	for _, c := range codecs {
		for _, tc := range [][2]int32{{0, 3}, {15, 3}, {-3, 3}, {5, 6}, {1, 2}, {-1, 0}, {0, 0}, {2, -3}} {
			b := edited(build(t, values("a", "b", "c"), with(c)), setCounts(tc[0], tc[1]))
			if _, _, err := ValidateClient(b, &ClientRules{}); err == nil {
				t.Errorf("%v: last offset delta %d and count %d of 3 records are accepted", c, tc[0], tc[1])
			} else {
				clientError(t, err, CodeInvalidRecord, "")
			}
		}
	}
	empty := AppendEmpty(nil, build(t, values("a")))
	_, _, err := ValidateClient(empty, &ClientRules{})
	clientError(t, err, CodeInvalidRecord, "records count 0 at byte 57, want at least 1")
}

// Scenarios 25 to 27, C071, C134: which records are to blame, and which code wins.
func TestC134_RecordErrors(t *testing.T) {
	const now, hour = day, 3600_000
	rec := func(key string, ts int64) Record {
		r := Record{Timestamp: ts, Value: []byte("v")}
		if key != "" {
			r.Key = []byte(key)
		}
		return r
	}
	for _, tc := range []struct {
		name   string
		recs   []Record
		rules  ClientRules
		code   int16
		blamed []int
	}{
		{"inside the window", []Record{rec("", now-hour), rec("", now), rec("", now+hour)}, ClientRules{MaxBefore: hour, MaxAfter: hour}, 0, nil},
		{"C134: too far ahead", []Record{rec("", now), rec("", now+hour), rec("", now+hour+1)}, ClientRules{MaxAfter: hour}, 32, []int{2}},
		{"scenario 26: too old and too new", []Record{rec("", now-hour-1), rec("", now), rec("", now+hour+1)}, ClientRules{MaxBefore: hour, MaxAfter: hour}, 32, []int{0, 2}},
		{"time -1 is no time", []Record{rec("", -1)}, ClientRules{MaxBefore: hour, MaxAfter: hour}, 0, nil},
		{"no bound", []Record{rec("", 1), rec("", math.MaxInt64)}, ClientRules{}, 0, nil},
		{"widest bounds", []Record{rec("", 1), rec("", math.MaxInt64)}, ClientRules{MaxBefore: math.MaxInt64, MaxAfter: math.MaxInt64}, 0, nil},
		{"append time: no window", []Record{rec("", 1)}, ClientRules{TimestampType: LogAppendTime, MaxBefore: hour}, 0, nil},
		{"scenario 25, C071: null keys", []Record{rec("k", now), rec("", now), rec("k", now), rec("", now)}, ClientRules{Compacted: true}, 87, []int{1, 3}},
		{"C071: single null key", []Record{rec("", now)}, ClientRules{Compacted: true}, 87, []int{0}},
		{"empty key is a key", []Record{{Timestamp: now, Key: []byte{}}}, ClientRules{Compacted: true}, 0, nil},
		{"scenario 27: null key and bad time in different records", []Record{rec("", now), rec("k", now+2*hour)}, ClientRules{Compacted: true, MaxAfter: hour}, 32, []int{0, 1}},
		{"both in one record", []Record{rec("k", now), rec("", now+2*hour)}, ClientRules{Compacted: true, MaxAfter: hour}, 87, []int{1}},
	} {
		for _, c := range []Codec{None, Snappy} {
			t.Run(tc.name+" "+c.String(), func(t *testing.T) {
				tc.rules.Now = now
				_, _, asBatch := ValidateClient(build(t, tc.recs, with(c)), &tc.rules)
				for how, err := range map[string]error{"batch": asBatch, "records": tc.rules.CheckRecords(tc.recs)} {
					if tc.code == 0 {
						if err != nil {
							t.Errorf("%s: %v", how, err)
						}
						continue
					}
					if blamed := clientError(t, err, tc.code, "record "); !slices.Equal(blamed, tc.blamed) {
						t.Errorf("%s: records %d are to blame; want %d", how, blamed, tc.blamed)
					}
				}
			})
		}
	}
}

// Timestamps that a client chose to make the subtraction overflow.
func TestTimestampWindowOverflow(t *testing.T) {
	rules := ClientRules{Now: day, MaxBefore: 1000, MaxAfter: 1000}
	for _, ts := range []int64{math.MinInt64, math.MinInt64 + day, -2, math.MaxInt64} {
		b := edited(build(t, values("a")), func(b Batch) Batch { binary.BigEndian.PutUint64(b[baseTimestampAt:], uint64(ts)); return b })
		_, _, err := ValidateClient(b, &rules)
		clientError(t, err, CodeInvalidTimestamp, fmt.Sprintf("timestamp %d", ts))
	}
}

// A long list of bad records is cut; the code is right all the same.
func TestRecordErrorsAreBounded(t *testing.T) {
	recs := slices.Repeat([]Record{{Timestamp: day}}, 3*maxRecordErrors)
	recs = append(recs, Record{Timestamp: day + 10, Key: []byte("k")})
	_, _, err := ValidateClient(build(t, recs), &ClientRules{Compacted: true, Now: day, MaxAfter: 5})
	if blamed := clientError(t, err, CodeInvalidTimestamp, "null key"); len(blamed) != maxRecordErrors {
		t.Errorf("%d records", len(blamed))
	}
}

// Scenario 28: append time on a topic of that type, in place. Scenario 29: the
// client may not set it itself, but on a CreateTime topic with real times.
func TestScenario28And29_AppendTime(t *testing.T) {
	for _, c := range codecs {
		b := build(t, values("a", "b"), with(c))
		rules := ClientRules{Now: day + 5000, TimestampType: LogAppendTime}
		got, largest, err := ValidateClient(b, &rules)
		if err != nil {
			t.Fatal(err)
		}
		got.SetMaxTimestamp(rules.TimestampType, largest)
		if len(got) != len(b) || &got[0] != &b[0] || got.TimestampType() != LogAppendTime {
			t.Errorf("%v: not in place", c)
		}
		for _, r := range read(t, got) {
			if r.Timestamp != day+5000 {
				t.Errorf("%v: record at %d", c, r.Timestamp)
			}
		}
		_, _, err = ValidateClient(got, &rules)
		if blamed := clientError(t, err, CodeInvalidTimestamp, "LogAppendTime from a client"); !slices.Equal(blamed, []int{0, 1}) {
			t.Errorf("records %d", blamed)
		}
		// On a CreateTime topic the bit goes and the true maximum comes back.
		again, largest, err := ValidateClient(got, &ClientRules{Now: day})
		if err != nil || largest != day+1 {
			t.Fatalf("largest %d, %v", largest, err)
		}
		again.SetMaxTimestamp(CreateTime, largest)
		if err := Validate(again, 0); err != nil {
			t.Error(err)
		}
		untimed := slices.Clone(got)
		untimed.SetMaxTimestamp(LogAppendTime, NoTimestamp)
		_, _, err = ValidateClient(untimed, &ClientRules{Now: day})
		clientError(t, err, CodeInvalidTimestamp, "LogAppendTime from a client")
	}
}

// Scenario 34: the true maximum is reported, and stamping it makes the batch right.
func TestScenario34_MaxTimestamp(t *testing.T) {
	for _, c := range codecs {
		b := edited(build(t, values("a", "b", "c"), with(c)), func(b Batch) Batch {
			binary.BigEndian.PutUint64(b[maxTimestampAt:], day)
			return b
		})
		got, largest, err := ValidateClient(b, &ClientRules{})
		if err != nil || largest != day+2 {
			t.Fatalf("%v: largest %d, %v; want %d", c, largest, err, day+2)
		}
		got.SetMaxTimestamp(CreateTime, largest)
		if err := Validate(got, 0); err != nil {
			t.Error(err)
		}
	}
}
