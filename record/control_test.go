package record

import (
	"bytes"
	"slices"
	"testing"
)

// Scenario 11: a marker reads back, as control and, but for the flag, not as
// transactional.
func TestScenario11_Control(t *testing.T) {
	for _, typ := range []ControlType{Abort, Commit} {
		b, err := Check(AppendMarker(nil, Marker{Offset: 7, LeaderEpoch: 3, Timestamp: day, ProducerID: 0, ProducerEpoch: 2, Type: typ, CoordinatorEpoch: 9}))
		if err != nil {
			t.Fatal(err)
		}
		if len(b) != MarkerSize || !b.IsControl() || !b.IsTransactional() || b.BaseSequence() != NoSequence || b.ProducerID() != 0 || b.ProducerEpoch() != 2 {
			t.Errorf("%v: header %x", typ, b[:HeaderSize])
		}
		recs := read(t, b)
		got, err := ParseControl(recs[0].Key, recs[0].Value)
		if want := (Control{Type: typ, CoordinatorEpoch: 9}); err != nil || got != want {
			t.Errorf("%+v, %v; want %+v", got, err, want)
		}
		if err := Validate(b, 0); err != nil {
			t.Error(err)
		}
	}
	b := build(t, []Record{{Key: []byte{0, 0, 0, 2}, Value: []byte{0, 0}}}, func(s *Spec) { s.Control = true })
	if !b.IsControl() || b.IsTransactional() {
		t.Errorf("attributes %x", b.Attributes())
	}
}

func TestParseControl(t *testing.T) {
	for _, tc := range []struct {
		name       string
		key, value string
		want       Control
		text       string // of the error; empty: none
	}{
		{"commit", "\x00\x00\x00\x01", "\x00\x00\x00\x00\x00\x05", Control{0, Commit, 5}, ""},
		{"abort of later versions, with more", "\x00\x03\x00\x00more", "\x00\x01\x00\x00\x00\x05more", Control{3, Abort, 5}, ""},
		{"leader change", "\x00\x00\x00\x02", "", Control{0, LeaderChange, -1}, ""},
		{"a type to come", "\x00\x00\x00\x63", "", Control{0, 99, -1}, ""},
		{"key of 3 bytes", "\x00\x00\x00", "", Control{}, "control record key size 3"},
		{"no key", "", "", Control{}, "control record key size 0"},
		{"version -1", "\xff\xff\x00\x01", "", Control{}, "control record key version -1"},
		{"marker of 5 bytes", "\x00\x00\x00\x01", "\x00\x00\x00\x00\x00", Control{}, "transaction marker size 5"},
		{"marker version -1", "\x00\x00\x00\x01", "\xff\xff\x00\x00\x00\x00", Control{}, "transaction marker version -1"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := ParseControl([]byte(tc.key), []byte(tc.value))
			if tc.text != "" {
				wantError(t, err, ErrInvalid, tc.text)
				return
			}
			if err != nil || got != tc.want {
				t.Errorf("%+v, %v; want %+v", got, err, tc.want)
			}
		})
	}
	for typ, want := range map[ControlType]string{Abort: "ABORT", Commit: "COMMIT", KRaftVoters: "KRAFT_VOTERS", 7: "UNKNOWN(7)", -1: "UNKNOWN(-1)"} {
		if got := typ.String(); got != want {
			t.Errorf("%q; want %q", got, want)
		}
	}
}

// Scenario 24: a control batch stays uncompressed.
func TestScenario24_ControlIsPlain(t *testing.T) {
	rec := []Record{{Timestamp: day, Key: []byte{0, 0, 0, 1}, Value: make([]byte, 6)}}
	plain := build(t, rec, func(s *Spec) { s.Control = true })
	gz := build(t, rec, func(s *Spec) { s.Control, s.Codec = true, Gzip })
	if !bytes.Equal(plain, gz) || gz.Codec() != None {
		t.Errorf("codec %v", gz.Codec())
	}
}

// Scenario 19, C066: an empty batch keeps offsets, epochs and producer, and the
// kind of batch it was, but neither codec nor delete horizon.
func TestScenario19_EmptyBatch(t *testing.T) {
	for bits := range 16 {
		full := build(t, values("a", "b", "c"), func(s *Spec) {
			s.BaseOffset, s.LeaderEpoch, s.ProducerID, s.ProducerEpoch, s.BaseSequence, s.Codec = 90, 4, 11, 2, 33, LZ4
			s.Transactional, s.DeleteHorizon, s.Now = bits&1 != 0, int64(bits&2)*day, day+50
			s.TimestampType, s.Control = TimestampType(bits>>2&1), bits&8 != 0
		})
		e, err := Check(AppendEmpty(nil, full))
		if err != nil {
			t.Fatal(err)
		}
		if len(e) != HeaderSize || e.Count() != 0 || e.Codec() != None || e.HasDeleteHorizon() || e.BaseTimestamp() != NoTimestamp {
			t.Errorf("header %x", e)
		}
		same := func(at, n int) bool { return slices.Equal(e[at:at+n], full[at:at+n]) }
		if !same(0, 8) || !same(leaderEpochAt, 5) || !same(lastDeltaAt, 4) || !same(maxTimestampAt, 22) ||
			e.IsTransactional() != full.IsTransactional() || e.IsControl() != full.IsControl() || e.TimestampType() != full.TimestampType() {
			t.Errorf("header %x; of\n%x", e, full[:HeaderSize])
		}
		if n, err := readErr(e); n != 0 || err != nil {
			t.Errorf("%d records, %v", n, err)
		}
		if err := Validate(e, 0); err != nil {
			t.Error(err)
		}
	}
}
