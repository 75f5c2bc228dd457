package main

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/tidemark-log/tidemark"
	"github.com/tidemark-log/tidemark/internal/checkpoint"
)

// writeLog appends n records, some alone and some by the batch.
func writeLog(t testing.TB, l *tidemark.Log, n int) {
	t.Helper()
	for i := 0; i < n; {
		recs := make([]tidemark.Record, 1+i%7)
		for j := range recs {
			recs[j] = tidemark.Record{Timestamp: 1700000000000 + int64(i), Key: fmt.Appendf(nil, "k%d", i%13), Value: bytes.Repeat([]byte("v"), 10+i%300)}
		}
		if _, err := l.Append(recs...); err != nil {
			t.Fatal(err)
		}
		i += len(recs)
	}
}

// What this module writes keeps the rules of a folder closed cleanly, and what
// it leaves when it is stopped at once is notes.
func TestEngineFolder(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "t-0")
	l, err := tidemark.Open(dir, tidemark.Options{SegmentBytes: 64 << 10, Sync: tidemark.Never})
	if err != nil {
		t.Fatal(err)
	}
	writeLog(t, l, 3000)

	// As a killed process leaves it: the files, now.
	killed := filepath.Join(copyDir(t, filepath.Dir(dir)), "t-0")
	mustRun(t, exitOK, "verify", "--json", killed)
	mustRun(t, exitOK, "dump", "--records", killed)

	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(filepath.Dir(dir), checkpoint.CleanMarkerFile), checkpoint.AppendCleanMarker(nil, 1))
	checkVerify(t, dir)
	records := 0
	for _, l := range lines(t, mustRun(t, exitOK, "dump", "--json", "--records", dir)) {
		if l.Type == "record" {
			records++
		}
	}
	if records < 3000 {
		t.Errorf("dump shows %d records; want those that were written", records)
	}
}

var allBits = flag.Bool("all-bits", false, "flip every bit of a small log, not one of each byte")

// TestEveryByte flips a bit of each byte of each file of a small log, one at a
// time: verify finds it, or it is harmless for a reason that harmless states.
func TestEveryByte(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "t-0")
	l, err := tidemark.Open(dir, tidemark.Options{SegmentBytes: 4 << 10, IndexIntervalBytes: 256, Sync: tidemark.Never})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 40 {
		if _, err := l.Append(tidemark.Record{Timestamp: int64(1000 + i), Key: []byte("k"), Value: bytes.Repeat([]byte("v"), i)}); err != nil {
			t.Fatal(err)
		}
	}
	end := l.LogEndOffset()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	data := filepath.Dir(dir)
	write(t, filepath.Join(data, checkpoint.CleanMarkerFile), checkpoint.AppendCleanMarker(nil, 1))
	write(t, filepath.Join(data, checkpoint.RecoveryPointFile), checkpoint.AppendOffsets(nil, []checkpoint.Offset{{Topic: "t", Offset: end}}))
	checkVerify(t, data)

	files, err := filepath.Glob(filepath.Join(dir, "0*"))
	if err != nil {
		t.Fatal(err)
	}
	files = append(files, filepath.Join(dir, checkpoint.LeaderEpochFile), filepath.Join(data, checkpoint.RecoveryPointFile))
	flips, reasons := 0, map[string]int{}
	for _, path := range files {
		rel, _ := filepath.Rel(data, path)
		before, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for bit := range 8 * len(before) {
			if !*allBits && bit%8 != bit/8%8 {
				continue
			}
			m := mutation{what: fmt.Sprintf("bit %d of byte %d", bit%8, bit/8), path: rel, before: before, after: bytes.Clone(before)}
			m.after[bit/8] ^= 1 << (bit % 8)
			write(t, path, m.after)
			flips++
			code, out, stderr := logtool("verify", "--json", dir)
			if kind, _, _ := kindOf(path); kind == kindRecoveryPoint {
				code, out, stderr = logtool("verify", "--json", data)
			}
			switch reason := harmless(data, m); {
			case code == exitDamage:
				if !names(t, out, path) {
					t.Errorf("%s, %s: no fault names the file and a position\n%s", rel, m.what, out)
				}
			case code == exitOK && reason != "":
				reasons[reason]++
			default:
				t.Errorf("%s, %s: exit %d and no reason\n%s", rel, m.what, code, stderr)
			}
		}
		write(t, path, before)
	}
	t.Logf("%d flips", flips)
	for r, n := range reasons {
		t.Logf("%4d harmless: %s", n, r)
	}
}

// C166 with the engine: dump and verify beside a log that appends, rolls,
// syncs, closes and reopens.
func TestC166_LiveEngine(t *testing.T) {
	for _, mode := range []tidemark.SyncMode{tidemark.Never, tidemark.Always} {
		t.Run(fmt.Sprint(mode), func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "t-0")
			if err := os.Mkdir(dir, 0o755); err != nil {
				t.Fatal(err)
			}
			stop, done := make(chan struct{}), make(chan struct{})
			go func() {
				defer close(done)
				for {
					l, err := tidemark.Open(dir, tidemark.Options{SegmentBytes: 32 << 10, Sync: mode})
					if err != nil {
						t.Error(err)
						return
					}
					writeLog(t, l, 500)
					if err := l.Close(); err != nil {
						t.Error(err)
						return
					}
					select {
					case <-stop:
						return
					default:
					}
				}
			}()
			defer func() {
				close(stop)
				<-done
			}()
			for start := time.Now(); time.Since(start) < time.Second; {
				for _, args := range [][]string{{"dump", "--records", "--json", dir}, {"verify", "--json", dir}, {"ls", "--segments", dir}, {"ls", "--scan", dir}, {"dump", "--tail=3", dir}} {
					if code, out, stderr := logtool(args...); code != exitOK {
						t.Fatalf("%v exits %d\n%s%s", args, code, lastLines(out, 8), stderr)
					}
				}
			}
		})
	}
}
