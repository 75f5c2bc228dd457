package interop

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/tidemark-log/tidemark/interop/kafka"
)

const testdata = "../testdata"

// requireKafka skips the test where Kafka cannot run, and bounds it in time.
func requireKafka(t *testing.T, limit time.Duration) context.Context {
	t.Helper()
	if err := kafka.Available(); err != nil {
		if os.Getenv("TIDEMARK_REQUIRE_KAFKA") == "1" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	if err := kafka.Fetch(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	t.Cleanup(cancel)
	return ctx
}

// describe is all that a record holds, in one line. Long values are shown by
// their hash, as in the truth files.
func describe(r kafka.Record) string {
	value := quote(r.Value)
	if len(r.Value) > 3000 {
		value = fmt.Sprintf("%d bytes %x", len(r.Value), sha256.Sum256(r.Value))
	}
	var headers []string
	for _, h := range r.Headers {
		headers = append(headers, fmt.Sprintf("%q=%s", h.Key, quote(h.Value)))
	}
	return fmt.Sprintf("offset %d epoch %d time %d append-time %t key %s value %s headers [%s]",
		r.Offset, r.LeaderEpoch, r.Timestamp, r.AppendTime, quote(r.Key), value, strings.Join(headers, " "))
}

// quote keeps null and empty apart (case C129).
func quote(b []byte) string {
	if b == nil {
		return "null"
	}
	return fmt.Sprintf("%q", b)
}

// compare reports the first difference between two lists of described records.
func compare(t *testing.T, got, want []string) {
	t.Helper()
	for i := range min(len(got), len(want)) {
		if got[i] != want[i] {
			t.Fatalf("record %d of %d:\n got %.500s\nwant %.500s", i, len(want), got[i], want[i])
		}
	}
	if len(got) != len(want) {
		t.Fatalf("%d records, want %d", len(got), len(want))
	}
}

func describeAll(recs []kafka.Record) []string {
	lines := make([]string, len(recs))
	for i, r := range recs {
		lines[i] = describe(r)
	}
	return lines
}

// truth reads what a consumer of the brokers that wrote testdata got from one
// topic, by partition. Control records, which no consumer returns, are left out.
func truth(t *testing.T, file string) map[int][]string {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	want := make(map[int][]string)
	for line := range bytes.Lines(b) {
		var r struct {
			P    int
			O, T int64
			TT   int
			LE   int32
			K, V []byte
			H    [][2]*string // value in base64 or null
			Sum  string       `json:"v_sha256"`
			Len  int          `json:"v_len"`
		}
		if err := json.Unmarshal(line, &r); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		if isMarker(r.K, r.V) {
			continue
		}
		rec := kafka.Record{Offset: r.O, Timestamp: r.T, AppendTime: r.TT == 1, LeaderEpoch: r.LE, Key: r.K, Value: r.V}
		for _, h := range r.H {
			header := kafka.Header{Key: *h[0]}
			if h[1] != nil {
				if header.Value, err = base64.StdEncoding.DecodeString(*h[1]); err != nil {
					t.Fatalf("%s: %v", file, err)
				}
			}
			rec.Headers = append(rec.Headers, header)
		}
		text := describe(rec)
		if r.Sum != "" {
			text = strings.Replace(text, "value null", fmt.Sprintf("value %d bytes %s", r.Len, r.Sum), 1)
		}
		want[r.P] = append(want[r.P], text)
	}
	return want
}

// isMarker recognises the control records of testdata: the key is version 0 and
// ABORT or COMMIT, the value version 0 and coordinator epoch 0 (log-format §2.5).
// No data record there looks like that.
func isMarker(key, value []byte) bool {
	return len(key) == 4 && key[0]|key[1]|key[2] == 0 && key[3] <= 1 && bytes.Equal(value, make([]byte, 6))
}
