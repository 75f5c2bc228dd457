package interop

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/tidemark-log/tidemark/internal/checkpoint"
	"github.com/tidemark-log/tidemark/record"
)

// bareFolder is a partition of nothing but .log files, batches of all codecs as
// record.Builder makes them: Kafka has to find out the rest (log-format §4.3).
func bareFolder(t *testing.T) folder {
	t.Helper()
	f := folder{dir: t.TempDir(), topic: "bare"}
	gen := newGenerator(1)
	var b record.Builder
	for segment := range 3 {
		var file []byte
		base := f.end
		for range 4 {
			for codec := record.None; codec <= record.Zstd; codec++ {
				recs := gen.records(1 + gen.rng.IntN(20))
				spec := record.NewSpec()
				spec.BaseOffset, spec.LeaderEpoch, spec.Codec = f.end, int32(segment), codec
				batch, err := b.Build(recs, &spec)
				if err != nil {
					t.Fatal(err)
				}
				file = append(file, batch...)
				f.want = append(f.want, expect(recs, f.end, int32(segment))...)
				f.end += int64(len(recs))
			}
		}
		name := filepath.Join(f.dir, checkpoint.SegmentFile{Base: base, Kind: checkpoint.Log}.String())
		if err := os.WriteFile(name, file, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return f
}
