package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/tidemark-log/tidemark"
	"github.com/tidemark-log/tidemark/internal/checkpoint"
)

func ls(t *testing.T, code int, args ...string) (all []map[string]any) {
	t.Helper()
	for line := range strings.Lines(mustRun(t, code, append([]string{"ls", "--json"}, args...)...)) {
		l := map[string]any{}
		d := json.NewDecoder(strings.NewReader(line))
		d.UseNumber()
		if err := d.Decode(&l); err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		all = append(all, l)
	}
	return all
}

// What ls says without reading the logs is what a dump of all of it shows, and
// what it says after a scan as well.
func TestLsAgainstDump(t *testing.T) {
	for _, name := range []string{"kafka-4.4-closed", "kafka-4.4-killed", "kafka-4.4-three-replicas", "kafka-0.11.0", "kafka-2.6-multi-record", "kafka-2.7.1-compacted-and-expired", "kafka-2.x-compacted-two-segments"} {
		t.Run(name, func(t *testing.T) {
			root := dataDir(t, name)
			fast, scanned := ls(t, exitOK, root), ls(t, exitOK, "--scan", root)
			if len(fast) < 2 || len(fast) != len(scanned) {
				t.Fatalf("%d lines, with a scan %d", len(fast), len(scanned))
			}
			for i, p := range fast {
				for k, v := range p {
					if fmt.Sprint(scanned[i][k]) != fmt.Sprint(v) {
						t.Errorf("%v: %s is %v, after a scan %v", p["path"], k, v, scanned[i][k])
					}
				}
				if p["type"] != "partition" {
					continue
				}
				dir := p["path"].(string)
				_, batches := dumpAll(t, dir)
				end, records, bytes, codecs := int64(-1), int64(0), int64(0), map[string]bool{}
				for _, b := range batches {
					if filepath.Ext(b.File) != ".log" {
						continue
					}
					end = max(end, b.LastOffset+1)
					records += b.Count
					codecs[b.Codec] = true
				}
				logs, err := filepath.Glob(filepath.Join(dir, "*.log"))
				if err != nil {
					t.Fatal(err)
				}
				for _, l := range logs {
					info, err := os.Stat(l)
					if err != nil {
						t.Fatal(err)
					}
					bytes += info.Size()
				}
				if end < 0 { // no data: the base of the last segment
					f, err := checkpoint.ParseSegmentFile(filepath.Base(logs[len(logs)-1]))
					if err != nil {
						t.Fatal(err)
					}
					end = f.Base
				}
				got := fmt.Sprintln(p["logEndOffset"], p["segments"], p["bytes"], scanned[i]["records"], slices.Sorted(maps.Keys(scanned[i]["codecs"].(map[string]any))))
				if want := fmt.Sprintln(end, len(logs), bytes, records, slices.Sorted(maps.Keys(codecs))); got != want {
					t.Errorf("%s: %s; want %s", dir, got, want)
				}
			}
		})
	}
}

func TestLsIndexStates(t *testing.T) {
	state := func(dir string) (string, string) {
		l := ls(t, exitOK, dir)
		return l[len(l)-1]["index"].(string), l[len(l)-1]["timeIndex"].(string)
	}
	dir := filepath.Join(t.TempDir(), "t-0")
	l, err := tidemark.Open(dir, tidemark.Options{IndexIntervalBytes: 512, Sync: tidemark.Never})
	if err != nil {
		t.Fatal(err)
	}
	writeLog(t, l, 500)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(filepath.Dir(dir), checkpoint.CleanMarkerFile), nil)
	index, times := filepath.Join(dir, index0), filepath.Join(dir, times0)
	read := func(path string) []byte {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	good, goodTimes := read(index), read(times)
	change := func(b []byte, at int, x byte) []byte {
		b = slices.Clone(b)
		b[len(b)+at] ^= x
		return b
	}
	for _, tc := range []struct {
		name               string
		index, times       []byte
		want, wantTimes    string
		unclean, noneThere bool
	}{
		{"good", good, goodTimes, "good", "good", false, false},
		{"padded", append(slices.Clone(good), make([]byte, 8000)...), append(slices.Clone(goodTimes), make([]byte, 1200)...), "padded", "padded", false, false},
		{"empty", nil, nil, "good", "good", false, false},
		{"cut inside an entry", good[:len(good)-1], goodTimes[:len(goodTimes)-1], "wrong", "wrong", false, false},
		{"position between batches", change(good, -1, 1), goodTimes, "wrong", "good", false, false},
		{"offset beyond the end", change(good, -6, 0x40), change(goodTimes, -2, 0x40), "wrong", "wrong", false, false},
		{"not ascending", append(slices.Clone(good), good[len(good)-8:]...), append(slices.Clone(goodTimes), goodTimes[len(goodTimes)-12:]...), "wrong", "wrong", false, false},
		{"what a truncation leaves", change(good, -6, 0x40), goodTimes, "stale", "good", true, false},
		{"none", nil, nil, "missing", "missing", false, true},
	} {
		write(t, index, tc.index)
		write(t, times, tc.times)
		if tc.noneThere {
			os.Remove(index)
			os.Remove(times)
		}
		if tc.unclean {
			unclean(t, dir)
		}
		if a, b := state(dir); a != tc.want || b != tc.wantTimes {
			t.Errorf("%s: %s and %s; want %s and %s", tc.name, a, b, tc.want, tc.wantTimes)
		}
		write(t, filepath.Join(filepath.Dir(dir), checkpoint.CleanMarkerFile), nil)
	}
}

// Without --scan the middle of a log is not read: damage there goes unseen.
func TestLsReadsOnlyEnds(t *testing.T) {
	dir, size := benchLog(t, 1000, 100)
	path := filepath.Join(dir, log0)
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt(make([]byte, 1000), size/2); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if l := ls(t, exitOK, dir); l[0]["logEndOffset"] != json.Number("10000") || l[0]["damaged"] != false {
		t.Errorf("ls says %v", l)
	}
	if l := ls(t, exitDamage, "--scan", "--segments", dir); l[0]["damaged"] != true || l[1]["badBytes"] == json.Number("0") {
		t.Errorf("ls --scan says %v", l)
	}
}

func TestLsUsage(t *testing.T) {
	mustRun(t, exitUnreadable, "ls", filepath.Join(testdata, "README.md"))
	mustRun(t, exitUnreadable, "ls", t.TempDir())
	mustRun(t, exitUsage, "ls")
}
