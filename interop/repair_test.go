package interop

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/tidemark-log/tidemark/internal/checkpoint"
	"github.com/tidemark-log/tidemark/record"
)

// repairedFolder is a partition that Kafka wrote and somebody damaged: a bit
// flipped inside, the end torn off, the index and the epoch file gone. What
// logtool repair makes of it must be good enough for the broker.
func repairedFolder(t *testing.T, ctx context.Context, logtool string) folder {
	t.Helper()
	data := t.TempDir()
	f := folder{dir: filepath.Join(data, "repaired-0"), topic: "repaired"}
	closed := filepath.Join(testdata, "kafka-4.4-closed")
	if err := os.CopyFS(f.dir, os.DirFS(filepath.Join(closed, "idem-0"))); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(data, checkpoint.CleanMarkerFile), checkpoint.AppendCleanMarker(nil, 1), 0o644); err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(f.dir, checkpoint.SegmentFile{Kind: checkpoint.Log}.String())
	log, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	all := truth(t, filepath.Join(closed, "truth", "idem.jsonl"))[0]
	const flipped = 4 // number of the batch
	for n, pos := 0, 0; pos < len(log); n++ {
		b, err := record.Check(log[pos:])
		if err != nil {
			t.Fatal(err)
		}
		pos += len(b)
		switch {
		case pos == len(log): // it loses its end
		case n == flipped:
			f.end = b.NextOffset()
			log[pos-1] ^= 1
		default:
			f.end = b.NextOffset()
			f.want = append(f.want, all[b.BaseOffset():f.end]...)
		}
	}
	if err := os.WriteFile(name, log[:len(log)-9], 0o644); err != nil {
		t.Fatal(err)
	}
	for _, gone := range []string{checkpoint.SegmentFile{Kind: checkpoint.Index}.String(), checkpoint.LeaderEpochFile} {
		if err := os.Remove(filepath.Join(f.dir, gone)); err != nil {
			t.Fatal(err)
		}
	}
	if out, err := exec.CommandContext(ctx, logtool, "repair", "--apply", "--drop-damaged", f.dir).CombinedOutput(); err != nil {
		t.Fatalf("logtool repair: %v\n%s", err, out)
	}
	checkVerify(t, ctx, logtool, f.dir)
	// What went lies in there, under names that Kafka's dump tool would read.
	if err := os.RemoveAll(filepath.Join(f.dir, "tidemark.repair-1")); err != nil {
		t.Fatal(err)
	}
	checkDump(t, ctx, f.dir)
	return f
}
