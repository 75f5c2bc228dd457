package interop

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tidemark-log/tidemark/interop/kafka"
)

// kafkaDump is what Kafka's dump tool prints of each file's batches and records.
func kafkaDump(t *testing.T, ctx context.Context, files []string) map[string][]string {
	t.Helper()
	// What it says on standard error is of no use here: with --deep-iteration it
	// takes every segment above 0 for a gap (log-format §9.3).
	out, _, err := kafka.Dump(ctx, files, "--deep-iteration")
	if err != nil {
		t.Fatal(err)
	}
	lines := make(map[string][]string)
	file := ""
	for line := range strings.Lines(out) {
		line = strings.TrimSuffix(line, "\n")
		if name, ok := strings.CutPrefix(line, "Dumping "); ok {
			file = name
			lines[file] = nil
		} else if strings.HasPrefix(line, "baseOffset: ") || strings.HasPrefix(line, "| offset: ") {
			lines[file] = append(lines[file], line)
		}
	}
	return lines
}

// logtoolDump is the same from logtool's JSON, in the words of Kafka's tool.
func logtoolDump(t *testing.T, ctx context.Context, logtool string, files []string) map[string][]string {
	t.Helper()
	cmd := exec.CommandContext(ctx, logtool, append([]string{"dump", "--json", "--records"}, files...)...)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("logtool dump: %v: %s", err, stderr.String())
	}
	lines := make(map[string][]string)
	var batch struct {
		Type, File                                     string
		Position, Size                                 int64
		BaseOffset, LastOffset                         int64
		Count, BaseSequence, LastSequence, LeaderEpoch int32
		ProducerID                                     int64
		ProducerEpoch                                  int16
		IsTransactional, IsControl, Valid              bool
		DeleteHorizonMs                                *int64
		TimestampType                                  string
		MaxTimestamp                                   int64
		Magic                                          int8
		Codec                                          string
		CRC                                            uint32
	}
	for line := range bytes.Lines(out) {
		var record struct {
			Type              string
			Offset, Timestamp int64
			Sequence          int32
			Key, Value        []byte
			Headers           [][2]*string
		}
		if err := json.Unmarshal(line, &record); err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		text := ""
		switch record.Type {
		case "batch":
			b := &batch
			b.DeleteHorizonMs = nil
			if err := json.Unmarshal(line, b); err != nil {
				t.Fatalf("%v: %s", err, line)
			}
			horizon := "OptionalLong.empty"
			if b.DeleteHorizonMs != nil {
				horizon = fmt.Sprintf("OptionalLong[%d]", *b.DeleteHorizonMs)
			}
			text = fmt.Sprintf("baseOffset: %d lastOffset: %d count: %d baseSequence: %d lastSequence: %d producerId: %d "+
				"producerEpoch: %d partitionLeaderEpoch: %d isTransactional: %t isControl: %t deleteHorizonMs: %s "+
				"position: %d %s: %d size: %d magic: %d compresscodec: %s crc: %d isvalid: %t",
				b.BaseOffset, b.LastOffset, b.Count, b.BaseSequence, b.LastSequence, b.ProducerID,
				b.ProducerEpoch, b.LeaderEpoch, b.IsTransactional, b.IsControl, horizon,
				b.Position, b.TimestampType, b.MaxTimestamp, b.Size, b.Magic, b.Codec, b.CRC, b.Valid)
		case "record":
			var keys []string
			for _, h := range record.Headers {
				keys = append(keys, *h[0])
			}
			text = fmt.Sprintf("| offset: %d %s: %d keySize: %d valueSize: %d sequence: %d headerKeys: [%s]",
				record.Offset, batch.TimestampType, record.Timestamp, size(record.Key), size(record.Value), record.Sequence, strings.Join(keys, ","))
		default:
			t.Fatalf("logtool prints of a log a line of type %q: %s", record.Type, line)
		}
		lines[batch.File] = append(lines[batch.File], text)
	}
	return lines
}

// size is a length as Kafka's tool prints it: −1 for null.
func size(b []byte) int {
	if b == nil {
		return -1
	}
	return len(b)
}

func buildLogtool(t *testing.T) string {
	t.Helper()
	logtool := filepath.Join(t.TempDir(), "logtool")
	if out, err := exec.Command("go", "build", "-o", logtool, "github.com/tidemark-log/tidemark/cmd/logtool").CombinedOutput(); err != nil {
		t.Fatalf("build logtool: %v\n%s", err, out)
	}
	return logtool
}

// checkVerify fails the test if logtool finds a fault below dir.
func checkVerify(t *testing.T, ctx context.Context, logtool, dir string) {
	t.Helper()
	if out, err := exec.CommandContext(ctx, logtool, "verify", dir).CombinedOutput(); err != nil {
		t.Errorf("logtool verify %s: %v\n%s", dir, err, out)
	}
}

// TestLogtoolAgrees compares every number that logtool and Kafka's dump tool
// print of the same batches and records.
func TestLogtoolAgrees(t *testing.T) {
	ctx := requireKafka(t, 3*time.Minute)
	logtool := buildLogtool(t)
	files := segmentFiles(t, testdata, ".log")
	for _, f := range engineFolders(t) {
		files = append(files, segmentFiles(t, f.dir, ".log")...)
	}
	want, got := kafkaDump(t, ctx, files), logtoolDump(t, ctx, logtool, files)
	total := 0
	for _, file := range files {
		total += len(want[file])
		for i := range max(len(got[file]), len(want[file])) {
			g, w := "nothing", "nothing"
			if i < len(got[file]) {
				g = got[file][i]
			}
			if i < len(want[file]) {
				w = want[file][i]
			}
			// A control record's line goes on with its contents.
			if g != w && !strings.HasPrefix(w, g+" ") {
				t.Errorf("%s, line %d:\nlogtool %s\n  Kafka %s", file, i, g, w)
				break
			}
		}
	}
	if total < 5000 {
		t.Errorf("Kafka's tool printed %d lines of %d files, want more than 5000", total, len(files))
	}
}
