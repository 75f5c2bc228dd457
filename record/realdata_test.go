package record

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// realdata is the folder of files that other people's brokers and clients wrote.
// It is not part of the repository; without it the test is skipped, unless
// TIDEMARK_REQUIRE_REALDATA says that it has to be there.
func realdata(t *testing.T, elem ...string) string {
	t.Helper()
	path := filepath.Join(append([]string{"..", "..", "shared", "realdata"}, elem...)...)
	if _, err := os.Stat(path); err != nil {
		if os.Getenv("TIDEMARK_REQUIRE_REALDATA") == "1" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	return path
}

func readFile(t *testing.T, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// logFiles are the .log files below root.
func logFiles(t *testing.T, root string) []string {
	t.Helper()
	var files []string
	err := filepath.WalkDir(root, func(path string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() && strings.HasSuffix(path, ".log") {
			files = append(files, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// batchesOf cuts a log file into batches, each of which must be valid.
func batchesOf(t *testing.T, path string) []Batch {
	t.Helper()
	var out []Batch
	p := readFile(t, path)
	for pos := 0; pos < len(p); {
		b, err := Check(p[pos:])
		if err != nil {
			t.Fatalf("%s at %d: %v", path, pos, err)
		}
		if err := Validate(b, 0); err != nil {
			t.Errorf("%s at %d: %v", path, pos, err)
		}
		out = append(out, b)
		pos += len(b)
	}
	return out
}

// Every batch in every log file of six Kafka versions is valid.
func TestRealLogs(t *testing.T) {
	entries, err := os.ReadDir(realdata(t))
	if err != nil {
		t.Fatal(err)
	}
	files, batches, seen := 0, 0, map[Codec]int{}
	for _, e := range entries {
		if !e.IsDir() || !strings.HasPrefix(e.Name(), "kafka-") && !strings.HasPrefix(e.Name(), "codecrafters") {
			continue
		}
		for _, path := range logFiles(t, realdata(t, e.Name())) {
			files++
			for _, b := range batchesOf(t, path) {
				batches++
				seen[b.Codec()]++
			}
		}
	}
	t.Logf("%d files, %d batches, by codec %v", files, batches, seen)
	if files < 50 || batches < 500 || len(seen) != len(codecs) {
		t.Error("fewer than there should be")
	}
}

// truth is a line of what a consumer of Kafka 4.4 read.
type truth struct {
	P, O, T, PID int64
	TT, PE, LE   int64
	C            int64
	K, V         *string
	H            [][2]*string
	Sum          string `json:"v_sha256"`
	Len          int    `json:"v_len"`
}

func (tr *truth) same(b Batch, r Record) bool {
	bytesOf := func(s *string) []byte {
		if s == nil {
			return nil
		}
		var out []byte
		if json.Unmarshal([]byte(strconv.Quote(*s)), &out) != nil {
			return []byte("unreadable truth")
		}
		return out
	}
	want := Record{Offset: tr.O, Timestamp: tr.T, Sequence: r.Sequence, Key: bytesOf(tr.K), Value: bytesOf(tr.V)}
	for _, h := range tr.H {
		want.Headers = append(want.Headers, Header{[]byte(*h[0]), bytesOf(h[1])})
	}
	if tr.Sum != "" {
		sum := sha256.Sum256(r.Value)
		if hex.EncodeToString(sum[:]) != tr.Sum || len(r.Value) != tr.Len {
			return false
		}
		want.Value = r.Value
	}
	return same(r, want) && tr.TT == int64(b.TimestampType()) && tr.PID == b.ProducerID() && tr.PE == int64(b.ProducerEpoch()) &&
		tr.LE == int64(b.LeaderEpoch()) && tr.C == int64(b.Codec())
}

// What we read from three folders of Kafka 4.4 is what its consumer read.
func TestRecordsAgainstConsumer(t *testing.T) {
	for _, folder := range []string{"kafka-4.4-closed", "kafka-4.4-killed", "kafka-4.4-three-replicas"} {
		root := filepath.Join("..", "testdata", folder)
		if _, err := os.Stat(root); err != nil {
			root = realdata(t, folder)
		}
		wanted := map[string]map[int64]truth{} // by partition folder and offset
		lines, err := filepath.Glob(filepath.Join(root, "truth", "*.jsonl"))
		if err != nil || len(lines) == 0 {
			t.Fatal("no truth", err)
		}
		for _, path := range lines {
			dec := json.NewDecoder(bytes.NewReader(readFile(t, path)))
			for dec.More() {
				var tr truth
				if err := dec.Decode(&tr); err != nil {
					t.Fatal(path, err)
				}
				name := strings.TrimSuffix(filepath.Base(path), ".jsonl") + "-" + strconv.FormatInt(tr.P, 10)
				if wanted[name] == nil {
					wanted[name] = map[int64]truth{}
				}
				wanted[name][tr.O] = tr
			}
		}
		compared, other := 0, 0
		for _, path := range logFiles(t, root) {
			partition := filepath.Base(filepath.Dir(path))
			if strings.HasPrefix(partition, "replica-") {
				partition = "epochs-0"
			}
			want := wanted[partition]
			for _, b := range batchesOf(t, path) {
				for r, err := range b.Records() {
					if err != nil {
						t.Fatal(path, err)
					}
					tr, ok := want[r.Offset]
					if !ok || strings.Contains(path, "diverged") && b.LeaderEpoch() == 3 && r.Offset >= 48 {
						other++ // a topic without truth, below the log start, or taken back
						continue
					}
					if compared++; !tr.same(b, r) {
						t.Errorf("%s: record is %s; want %+v", path, show(r), tr)
					}
				}
			}
		}
		t.Logf("%s: %d records compared, %d others", folder, compared, other)
		if compared < 200 {
			t.Errorf("%s: only %d records compared", folder, compared)
		}
	}
}

// kafkajs reads one of the fixtures, a JSON array of bytes.
func kafkajs(t *testing.T, name string) []byte {
	t.Helper()
	p := readFile(t, realdata(t, "kafkajs-json-fixtures", name+".json"))
	var list []int
	if json.Unmarshal(p, &list) != nil {
		var buffer struct{ Data []int }
		if err := json.Unmarshal(p, &buffer); err != nil {
			t.Fatal(name, err)
		}
		list = buffer.Data
	}
	out := make([]byte, len(list))
	for i, b := range list {
		out[i] = byte(b)
	}
	return out
}

func TestC144_PlainLabelOnZstd(t *testing.T) {
	b, err := Check(kafkajs(t, "recordBatch__v0_recordbatch_zstd"))
	if err != nil || b.Codec() != None {
		t.Fatalf("codec %v, %v", b.Codec(), err)
	}
	n, err := readErr(b)
	wantError(t, err, ErrInvalid, "record 0: key length 44 at byte 66, want at most 15")
	wantError(t, Validate(b, 0), ErrInvalid, "")
	if n != 0 {
		t.Errorf("%d records", n)
	}
	_, _, err = ValidateClient(b, &ClientRules{})
	clientError(t, err, CodeInvalidRecord, "record 0")
	// Called what it is, it is sound.
	zst := edited(b, func(b Batch) Batch { b[attributesAt+1] = byte(Zstd); return b })
	if err := Validate(zst, 0); err != nil || len(read(t, zst)) != int(b.Count()) {
		t.Errorf("as zstd: %v", err)
	}
}

func TestKafkaJSBatch(t *testing.T) {
	b, err := Check(kafkajs(t, "recordBatch__v0_recordbatch"))
	if err != nil || b.Codec() != Gzip || b.TimestampType() != LogAppendTime {
		t.Fatalf("codec %v, %v", b.Codec(), err)
	}
	recs := read(t, b)
	if len(recs) != int(b.Count()) || recs[0].Timestamp != b.MaxTimestamp() {
		t.Errorf("%d records, the first %s", len(recs), show(recs[0]))
	}
}

// mixedSet reads a record set of any magics: offsets, values by offset, and how
// many batches or messages of each magic.
func mixedSet(t *testing.T, p []byte) (offsets []int64, frames [3]int) {
	t.Helper()
	for len(p) > 0 {
		size, ok := PeekSize(p)
		if !ok || size > len(p) || size <= magicAt { // a torn tail is what a fetch may end with
			break
		}
		frames[p[magicAt]]++
		if p[magicAt] == Magic {
			b, err := Check(p)
			if err != nil {
				t.Fatal(err)
			}
			for _, r := range read(t, b) {
				offsets = append(offsets, r.Offset)
			}
		} else {
			if _, err := Check(p); !errors.Is(err, ErrMagic) {
				t.Errorf("Check of magic %d: %v", p[magicAt], err)
			}
			for m, err := range LegacyMessages(p, 0) {
				if err != nil {
					t.Fatal(err)
				}
				if !m.CRCValid {
					t.Errorf("offset %d: checksum", m.Offset)
				}
				offsets = append(offsets, m.Offset)
			}
		}
		p = p[size:]
	}
	return offsets, frames
}

// Record sets as brokers sent them, of magic 1 and 2, plain and compressed, mixed.
func TestMixedMagicFixtures(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(realdata(t, "segmentio-fetch-fixtures"), "*.hex"))
	if err != nil || len(files) != 10 {
		t.Fatalf("%d files, %v", len(files), err)
	}
	for _, path := range files {
		p := unhex(t, strings.TrimSpace(string(readFile(t, path))))
		// The record set runs to the end of the response; its size, the last field
		// before it, tells where it begins.
		start := 0
		for i := 60; i < 90 && start == 0; i++ {
			if n := int(p[i])<<24 | int(p[i+1])<<16 | int(p[i+2])<<8 | int(p[i+3]); n == len(p)-i-4 {
				start = i + 4
			}
		}
		if start == 0 {
			t.Errorf("%s: no record set", path)
			continue
		}
		offsets, frames := mixedSet(t, p[start:])
		// The name tells the order: v1 and v2 are magics, b a batch of two, c
		// compressed, so that v2bc-v1c is a v2 batch, then a v1 wrapper.
		name := strings.TrimSuffix(filepath.Base(path), ".hex")
		parts := strings.Split(name, "-")
		for i, o := range offsets {
			if o != int64(i) {
				t.Errorf("%s: offsets %d", name, offsets)
				break
			}
		}
		for magic := 1; magic <= 2; magic++ {
			if (frames[magic] > 0) != slices.ContainsFunc(parts, func(s string) bool { return strings.HasPrefix(s, "v"+strconv.Itoa(magic)) }) {
				t.Errorf("%s: %d frames of magic %d", name, frames[magic], magic)
			}
		}
		if len(offsets) != 2*len(parts) {
			t.Errorf("%s: %d records", name, len(offsets))
		}
	}
}

func TestKafkaJSMessageSets(t *testing.T) {
	for name, want := range map[string]int{"messageSet__messages_v0_uncompressed.json": 3, "messageSet__messages_v0_GZIP": 3} {
		p := kafkajs(t, name)
		offsets, frames := mixedSet(t, p[4:]) // behind the size of the set
		if len(offsets) != want || frames[0] == 0 || !slices.IsSorted(offsets) {
			t.Errorf("%s: offsets %d in %d frames", name, offsets, frames)
		}
	}
}
