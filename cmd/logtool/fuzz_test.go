package main

import (
	"bytes"
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/tidemark-log/tidemark/dedupe"
	"github.com/tidemark-log/tidemark/internal/checkpoint"
	"github.com/tidemark-log/tidemark/record"
)

// fuzzNames are one name of each kind of file.
var fuzzNames = []string{
	log0, index0, times0, "00000000000000000000.txnindex", "00000000000000000002.snapshot",
	"00000000000000000000-0000000000.checkpoint", "00000000000000000002" + dedupe.Suffix, checkpoint.LeaderEpochFile, checkpoint.PartitionFile,
	log0 + ".swap", log0 + ".deleted",
	"../" + checkpoint.RecoveryPointFile, "../" + checkpoint.HighWatermarkFile, "../" + checkpoint.LogStartOffsetFile,
	"../" + checkpoint.CleanerOffsetFile, "../" + checkpoint.MetaFile, "../" + checkpoint.CleanMarkerFile,
}

// FuzzFiles puts arbitrary bytes under the name of each kind of file into a
// good data folder. No command panics or calls it unreadable, and every line of
// their JSON is an object.
func FuzzFiles(f *testing.F) {
	for i, seed := range []string{
		"appendtime-0/" + log0, "appendtime-0/" + index0, "appendtime-0/" + times0, "txn-0/00000000000000000000.txnindex",
		"txn-0/00000000000000000036.snapshot", "__cluster_metadata-0/00000000000000000000-0000000000.checkpoint",
		"txn-0/00000000000000000036.snapshot", "txn-0/leader-epoch-checkpoint", "txn-0/partition.metadata", "group-0/" + log0, "group-0/" + log0,
		checkpoint.RecoveryPointFile, checkpoint.HighWatermarkFile, checkpoint.LogStartOffsetFile, checkpoint.CleanerOffsetFile,
		checkpoint.MetaFile, checkpoint.CleanMarkerFile,
	} {
		b, err := os.ReadFile(filepath.Join(testdata, "kafka-4.4-closed", seed))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(byte(i), true, b)
		f.Add(byte(i), false, b[:len(b)-1])
	}
	good := cat(batch(f, 0, nil, 1, 2), batch(f, 2, nil, 3))
	dir := folder(f, map[string][]byte{log0: good})
	data := filepath.Dir(dir)
	other := folder(f, map[string][]byte{log0: good})
	marker := filepath.Join(data, checkpoint.CleanMarkerFile)
	f.Fuzz(func(t *testing.T, kind byte, clean bool, b []byte) {
		path := filepath.Join(dir, fuzzNames[int(kind)%len(fuzzNames)])
		write(t, path, b)
		defer func() {
			os.Remove(path)
			write(t, filepath.Join(dir, log0), good)
		}()
		if clean && path != marker {
			write(t, marker, nil)
			defer os.Remove(marker)
		}
		for _, args := range [][]string{
			{"verify", "--json", data}, {"verify", "--notes", path}, {"dump", "--json", "--records", data}, {"dump", "--records", path},
			{"ls", "--json", "--segments", data}, {"ls", "--scan", dir}, {"dump", "--json", "--tail=2", "--records", "--decode=offsets", dir},
			{"dump", "--json", "--offset=1:2", "--records", "--decode=metadata", dir}, {"dump", "--key=k0", "--time=0", dir},
			{"find", "--json", "--offset", "1", data}, {"find", "--json", "--no-index", "--time", "2", dir}, {"find", "--json", "--key", "k0", dir},
			{"epochs", "--json", data}, {"producers", "--json", "--all", data}, {"explain", "--json", data},
			{"diff", "--json", dir, other}, {"diff", "--json", other, dir}, {"repair", "--json", "--drop-damaged", dir},
		} {
			args = append(args, "--max-plain", "1000000")
			code, out, stderr := logtool(args...)
			if code != exitOK && code != exitDamage || stderr != "" {
				t.Errorf("%v exits %d\n%s", args, code, stderr)
			}
			if args[1] == "--json" {
				for line := range strings.Lines(out) {
					var l map[string]any
					if err := json.Unmarshal([]byte(line), &l); err != nil || l["type"] == nil {
						t.Errorf("%v prints no object: %v\n%s", args, err, line)
					}
				}
			}
		}
	})
}

// FuzzHex: any bytes can be shown field by field, and those shown are those
// there.
func FuzzHex(f *testing.F) {
	b := batch(f, 0, nil, 1, 2)
	f.Add([]byte(b))
	f.Add([]byte(b[:len(b)-1]))
	f.Add([]byte(encode(f, 0, func(s *record.Spec) { s.Codec = record.Gzip }, record.Record{Timestamp: 1, Value: bytes.Repeat([]byte("v"), 100)})))
	path := filepath.Join(folder(f, nil), log0)
	f.Fuzz(func(t *testing.T, in []byte) {
		if size, ok := record.PeekSize(in); ok && size == len(in) && size >= record.HeaderSize {
			reseal(in)
		}
		write(t, path, in)
		code, out, stderr := logtool("dump", "--hex", "--json", "--max-plain", "100000", path)
		if code == exitUsage || strings.Count(stderr, "\n") > 1 {
			t.Errorf("exit %d\n%s", code, stderr)
		}
		for line := range strings.Lines(out) {
			var l map[string]any
			if err := json.Unmarshal([]byte(line), &l); err != nil {
				t.Errorf("no object: %v\n%s", err, line)
			}
		}
	})
}

// FuzzDecode: any bytes as the record of an internal topic give one object that
// is JSON, not much longer than they are.
func FuzzDecode(f *testing.F) {
	f.Add(byte(0), []byte("\x00\x02\x00\x01g"), []byte("\x00\x00\x00\x01c\x00\x00\x00\x01\xff\xff\xff\xff\x00\x00\x00\x00"))
	f.Add(byte(1), []byte(nil), []byte("\x01\x0c\x00\x11metadata.version\x00\x21\x00"))
	f.Add(byte(2), []byte("\x00\x00\x00\x01t"), []byte("\x00\x01"))
	names := slices.Sorted(maps.Keys(decodeTopics))
	f.Fuzz(func(t *testing.T, topic byte, key, value []byte) {
		d := decoderFor(names[int(topic)%len(names)], "x", kindLog)
		object, whole := d.record(key, value)
		control, _ := new(decoder).control(record.ControlType(topic%8), value)
		for _, o := range [][]byte{object, control} {
			if o != nil && !json.Valid(o) {
				t.Errorf("no JSON: %s", o)
			}
		}
		// The longest of names stands for one byte.
		if len(object) > 1000+100*(len(key)+len(value)) {
			t.Errorf("%d bytes of %d", len(object), len(key)+len(value))
		}
		if whole == bytes.Contains(object, []byte(`"error":"read `)) {
			t.Errorf("whole, with an error: %s", object)
		}
	})
}

// FuzzScan: the spans of a walk cover the bytes one behind the other, and what
// it calls a valid batch is one.
func FuzzScan(f *testing.F) {
	a, b, c := batch(f, 0, nil, 1), batch(f, 1, nil, 2, 3), batch(f, 3, nil, 4)
	f.Add([]byte(cat(a, b, c)))
	f.Add([]byte(cat(a, b[:30], c)))
	f.Add(append(cat(a, b), make([]byte, 100)...))
	f.Add(bytes.Repeat([]byte{2}, 300))
	f.Fuzz(func(t *testing.T, in []byte) {
		s := &scanner{f: newMemFile(in), size: int64(len(in)), maxBatch: 4096}
		end := int64(0)
		for {
			sp, ok := s.next()
			if !ok {
				break
			}
			if sp.pos != end || sp.size <= 0 || sp.data != nil && !bytes.Equal(sp.data, in[sp.pos:sp.pos+sp.size]) {
				t.Fatalf("span of %d bytes at %d behind %d", sp.size, sp.pos, end)
			}
			end += sp.size
			if sp.kind == spanBatch {
				if _, err := record.Check(sp.data); err != nil {
					t.Errorf("batch at %d: %v", sp.pos, err)
				}
			}
			if (sp.err == nil) != (sp.kind == spanBatch || sp.kind == spanLegacy || sp.kind == spanZeros) {
				t.Errorf("span at %d of kind %d has error %v", sp.pos, sp.kind, sp.err)
			}
		}
		if s.err != nil || end != int64(len(in)) {
			t.Errorf("the walk ends at %d of %d: %v", end, len(in), s.err)
		}
	})
}
