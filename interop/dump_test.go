package interop

import (
	"context"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tidemark-log/tidemark/interop/kafka"
)

// segmentFiles are the files below dir whose names end in one of exts, in
// ascending order.
func segmentFiles(t *testing.T, dir string, exts ...string) []string {
	t.Helper()
	var files []string
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() && slices.Contains(exts, filepath.Ext(path)) {
			files = append(files, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(files) == 0 {
		t.Fatalf("no %v files in %s", exts, dir)
	}
	return files
}

// findings are what Kafka's dump tool has to say against the segment files below
// dir: batches that are not valid, bytes behind the last batch, and indexes that
// do not match the log (log-format §9.3).
func findings(t *testing.T, ctx context.Context, dir string) []string {
	t.Helper()
	files := segmentFiles(t, dir, ".log", ".index", ".timeindex")
	out, stderr, err := kafka.Dump(ctx, files)
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	dumped := make(map[string]bool)
	for line := range strings.Lines(out) {
		line = strings.TrimSuffix(line, "\n")
		if file, ok := strings.CutPrefix(line, "Dumping "); ok {
			dumped[file] = true
		}
		if strings.HasSuffix(line, "isvalid: false") || strings.Contains(line, "invalid bytes") {
			found = append(found, line)
		}
	}
	for line := range strings.Lines(stderr) {
		found = append(found, strings.TrimSuffix(line, "\n"))
	}
	for _, f := range files {
		if !dumped[f] {
			t.Errorf("dump tool did not read %s", f)
		}
	}
	return found
}

// checkDump fails the test for every finding of Kafka's dump tool below dir.
func checkDump(t *testing.T, ctx context.Context, dir string) {
	t.Helper()
	for _, line := range findings(t, ctx, dir) {
		t.Error(line)
	}
}

func TestDumpFindsNothingInTestdata(t *testing.T) {
	ctx := requireKafka(t, 2*time.Minute)
	for _, dir := range []string{"kafka-4.4-closed", "kafka-4.4-three-replicas/replica-2", "kafka-4.4-three-replicas/replica-3"} {
		t.Run(dir, func(t *testing.T) { checkDump(t, ctx, filepath.Join(testdata, dir)) })
	}
}

// TestDumpFindsDamage shows that the check above can fail.
func TestDumpFindsDamage(t *testing.T) {
	ctx := requireKafka(t, 2*time.Minute)
	const base = "00000000000000000000"
	for _, tc := range []struct {
		name, file string
		damage     func([]byte) []byte
		want       string
	}{
		{"bit flip in a batch", base + ".log", func(b []byte) []byte { b[100] ^= 1; return b }, "isvalid: false"},
		{"17 bytes behind the last batch", base + ".log", func(b []byte) []byte { return append(b, make([]byte, 17)...) }, "Found 17 invalid bytes"},
		{"index offset off by one", base + ".index", func(b []byte) []byte { b[3]++; return b }, "Index offset: 77, log offset: 76"},
		{"time off by one", base + ".timeindex", func(b []byte) []byte { b[7]++; return b }, "Index timestamp: "},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir := t.TempDir()
			if err := os.CopyFS(dir, os.DirFS(filepath.Join(testdata, "kafka-4.4-closed", "codecs-0"))); err != nil {
				t.Fatal(err)
			}
			file := filepath.Join(dir, tc.file)
			b, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(file, tc.damage(b), 0o644); err != nil {
				t.Fatal(err)
			}
			got := strings.Join(findings(t, ctx, dir), "\n")
			if !strings.Contains(got, tc.want) {
				t.Errorf("found %q, want %q", got, tc.want)
			}
		})
	}
}
