package main

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tidemark-log/tidemark/record"
)

// fieldLine is a line of --hex in JSON.
type fieldLine struct {
	Type           string
	Position, Size int64
	Decompressed   bool
	Name, Bytes    string
	Value          *string
}

func fieldsOf(t *testing.T, code int, args ...string) (fields []fieldLine) {
	t.Helper()
	for line := range strings.Lines(mustRun(t, code, append([]string{"dump", "--hex", "--json"}, args...)...)) {
		var f fieldLine
		if err := json.Unmarshal([]byte(line), &f); err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		if f.Type == "field" {
			fields = append(fields, f)
		}
	}
	return fields
}

// The fields that --hex shows are all bytes of the batch, one behind the other,
// and of a compressed one all bytes of its decompressed records.
func TestHexCoversEveryByte(t *testing.T) {
	for _, name := range []string{"codecs-0", "txn-0", "compacted-0", "__cluster_metadata-0", "large-0"} {
		path := filepath.Join(testdata, "kafka-4.4-closed", name, log0)
		log, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		for pos := 0; pos < len(log) && n < 40; n++ {
			size, _ := record.PeekSize(log[pos:])
			b := record.Batch(log[pos : pos+size])
			var r record.Reader
			if err := r.Reset(b); err != nil {
				t.Fatal(err)
			}
			if len(r.Plain()) > 1<<20 {
				pos += size
				continue
			}
			var raw, plain strings.Builder
			last := ""
			for _, f := range fieldsOf(t, exitOK, "--position", fmt.Sprint(pos+size/2), path) {
				p, err := hex.DecodeString(f.Bytes)
				if err != nil || int64(len(p)) != f.Size {
					t.Fatalf("%s at %d: field %+v: %v", name, pos, f, err)
				}
				into, from := &raw, int64(pos)
				if f.Decompressed {
					into, from = &plain, 0
				}
				if f.Position != from+int64(into.Len()) {
					t.Fatalf("%s at %d: field %s at %d behind %d bytes", name, pos, f.Name, f.Position, into.Len())
				}
				into.Write(p)
				last = f.Name
			}
			if raw.String() != string(b) {
				t.Errorf("%s at %d: %d of %d bytes shown", name, pos, raw.Len(), len(b))
			}
			if want := r.Plain(); b.Codec() != record.None && plain.String() != string(want) {
				t.Errorf("%s at %d: %d of %d bytes of records shown", name, pos, plain.Len(), len(want))
			}
			if last == "rest" {
				t.Errorf("%s at %d: bytes behind the last record", name, pos)
			}
			pos += size
		}
	}
}

// Values are those of the records, and what is broken is named where it breaks.
func TestHexValues(t *testing.T) {
	b := encode(t, 7, nil, record.Record{Timestamp: 1000, Key: []byte("k"), Value: nil, Headers: []record.Header{{Key: []byte("h"), Value: []byte{}}}},
		record.Record{Timestamp: 1001, Value: []byte("v")})
	path := filepath.Join(folder(t, map[string][]byte{log0: b}), log0)
	values := map[string]string{}
	for _, f := range fieldsOf(t, exitOK, path) {
		if f.Value != nil {
			values[f.Name] = *f.Value
		}
	}
	for name, want := range map[string]string{
		"baseOffset": "7", "lastOffsetDelta": "1, offset 8", "maxTimestamp": "1001, 1970-01-01T00:00:01.001Z", "attributes": "none CreateTime",
		"record 0 key length": "1", "record 0 value length": "-1, null", "record 0 header 0 value length": "0",
		"record 1 timestampDelta": "1, 1001, 1970-01-01T00:00:01.001Z", "record 1 offsetDelta": "1, offset 8", "record 1 key length": "-1, null",
	} {
		if values[name] != want {
			t.Errorf("%s is %q; want %q", name, values[name], want)
		}
	}
	for i := record.HeaderSize; i < len(b); i++ {
		for _, x := range []byte{0x80, 0x01, 0x7f, 0xff} {
			bad := append(record.Batch{}, b...)
			bad[i] ^= x
			for _, p := range []record.Batch{bad, reseal(append(record.Batch{}, bad...))} {
				write(t, path, p)
				code, out, stderr := logtool("dump", "--hex", path)
				if code != exitOK && code != exitDamage || stderr != "" || !strings.Contains(out, "producerEpoch") {
					t.Fatalf("byte %d ^ %02x: exit %d\n%s%s", i, x, code, out, stderr)
				}
			}
		}
	}
	write(t, path, b)
	if code, _, stderr := logtool("dump", "--hex", "--offset=100", path); code != exitUnreadable || !strings.Contains(stderr, "no batch is selected") {
		t.Errorf("nothing selected: exit %d, %s", code, stderr)
	}
}
