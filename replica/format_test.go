package replica

import (
	"encoding/hex"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/tidemark-log/tidemark/dedupe"
	"github.com/tidemark-log/tidemark/record"
)

var rewriteFormat = flag.Bool("format.rewrite", false, "write the bytes this build makes into docs/format.md")

type fileInMemory []byte

func (f *fileInMemory) WriteAt(p []byte, at int64) (int, error) {
	*f = append(*f, make([]byte, max(0, int(at)+len(p)-len(*f)))...)
	return copy((*f)[at:], p), nil
}

// TestFormatDoc: the bytes drawn in docs/format.md are those this build makes.
func TestFormatDoc(t *testing.T) {
	spec := record.NewSpec()
	spec.BaseOffset, spec.LeaderEpoch = 100, 5
	recs := []record.Record{{Timestamp: 1700000000000, Key: []byte("k1"), Value: []byte("hello")}}
	batch := make([]byte, record.Size(recs, 0))
	record.Encode(batch, recs, &spec)

	slot := make([]byte, slotBytes)
	st := slotState{sequence: 7, device: 2, inode: 3, end: 1000, hw: 900, syncedEnd: 800, syncedHW: 800,
		settledEnd: 700, logStart: 10, flags: flagClean, activeSize: 4096, activeTime: 123456789}
	for i := range st.boot {
		st.boot[i], st.logID[i] = 1, 4
	}
	st.encode(slot)
	got, err := decodeSlotCopy(slot)
	if err != nil || got != st {
		t.Fatalf("slot of the document: %+v, %v", got, err)
	}

	table := dedupe.New(dedupe.Options{})
	for i, n := range []int{1, 3} {
		recs := slices.Repeat(recs, n)
		spec.ProducerID, spec.ProducerEpoch, spec.BaseSequence, spec.Transactional = 4242, 7, int32(10+i), i > 0
		b := record.Encode(make([]byte, record.Size(recs, 0)), recs, &spec)
		table.Update(b, int64(100+i))
	}
	var window, snapshot fileInMemory
	v := table.Freeze()
	if _, err := v.WriteWindow(&window, st.logID, 104); err != nil {
		t.Fatal(err)
	}
	if _, err := v.WriteSnapshot(&snapshot); err != nil {
		t.Fatal(err)
	}

	name := filepath.Join("..", "docs", "format.md")
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	doc := string(b)
	for kind, want := range map[string][]byte{"batch": batch, "slot": slot, "dedupe": window, "snapshot": snapshot} {
		_, rest, ok := strings.Cut(doc, "```"+kind+"\n")
		drawn, _, ok2 := strings.Cut(rest, "```")
		if !ok || !ok2 {
			t.Fatalf("%s: no block %q", name, kind)
		}
		var out strings.Builder
		at := 0
		for line := range strings.Lines(drawn) {
			var pos int
			if _, err := fmt.Sscanf(line, "%x", &pos); err != nil || pos != at {
				t.Fatalf("%s: line %q: want position %04x", kind, line, at)
			}
			digits := strings.TrimSpace(line[4:min(len(line), 31)])
			n := (len(digits) + 1) / 3
			if at+n > len(want) {
				t.Fatalf("%s: line %q goes past the end, %d bytes", kind, line, len(want))
			}
			made := strings.TrimSpace(fmt.Sprintf("% x", want[at:at+n]))
			if made != digits && !*rewriteFormat {
				t.Errorf("%s, byte %04x: the document says %s, this build makes %s", kind, at, digits, made)
			}
			out.WriteString(fmt.Sprintf("%04x  %-23s", at, made) + line[min(len(line)-1, 29):])
			at += n
		}
		if at != len(want) {
			t.Errorf("%s: the document shows %d bytes of %d: %s", kind, at, len(want), hex.EncodeToString(want[at:]))
		}
		doc = strings.Replace(doc, drawn, out.String(), 1)
	}
	if *rewriteFormat {
		if err := os.WriteFile(name, []byte(doc), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}
