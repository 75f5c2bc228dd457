//go:build unix

package main

import (
	"bytes"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/tidemark-log/tidemark/index"
	"github.com/tidemark-log/tidemark/record"
)

// C166: a live partition is read as it is: no lock, no file made or changed,
// no damage seen in what is being written, rolled and deleted.
func TestC166_LivePartition(t *testing.T) {
	dir := folder(t, nil)
	unclean(t, dir)
	still := copyDir(t, filepath.Join(testdata, "kafka-4.4-killed"))
	before := snapshotTree(t, still)

	var stop atomic.Bool
	done := make(chan int, 1)
	go func() { done <- liveWriter(t, dir, &stop) }()
	defer func() { // after a failure too
		stop.Store(true)
		done <- <-done
	}()
	rounds := 0
	for start := time.Now(); time.Since(start) < 2*time.Second; rounds++ {
		for _, args := range [][]string{
			{"dump", "--records", "--json", dir}, {"verify", "--json", dir}, {"verify", filepath.Dir(dir)},
			{"ls", "--segments", filepath.Dir(dir)}, {"ls", "--scan", dir}, {"dump", "--tail", "5", "--records", dir}, {"dump", "--offset", "100:110", dir},
		} {
			code, out, stderr := logtool(args...)
			if code != exitOK {
				t.Fatalf("round %d: %v exits %d\n%s%s", rounds, args, code, lastLines(out, 5), stderr)
			}
		}
	}
	stop.Store(true)
	written := <-done
	done <- written
	if written < 100 || rounds < 3 {
		t.Errorf("%d batches written, %d rounds read; want many", written, rounds)
	}

	mustRun(t, exitOK, "verify", "--json", still)
	mustRun(t, exitOK, "dump", "--records", still)
	mustRun(t, exitOK, "dump", "--tail", "3", still)
	mustRun(t, exitOK, "dump", "--hex", still)
	mustRun(t, exitOK, "ls", "--scan", "--segments", still)
	if after := snapshotTree(t, still); !maps.Equal(before, after) {
		t.Errorf("files changed:\n%v\n%v", before, after)
	}
}

// liveWriter writes as the engine does: into a preallocated file, records
// first, header last; index entries after their batch; a roll trims. It
// returns how many batches it wrote.
func liveWriter(t *testing.T, dir string, stop *atomic.Bool) (n int) {
	const capacity, interval = 256 << 10, 4 << 10
	open := func(base int64, ext string) *os.File {
		f, err := os.Create(filepath.Join(dir, fmt.Sprintf("%020d%s", base, ext)))
		if err != nil {
			t.Error(err)
		}
		return f
	}
	var bases []int64
	for next := int64(0); !stop.Load(); {
		base := next
		bases = append(bases, base)
		log, idx, tim := open(base, ".log"), open(base, ".index"), open(base, ".timeindex")
		log.Truncate(capacity)
		idx.Truncate(4096)
		tim.Truncate(6144 / 12 * 12)
		var pos, since, entries int64
		ts := int64(0)
		for !stop.Load() {
			ts++
			b := batch(t, next, nil, ts, ts, ts)
			if pos+int64(len(b)) > capacity {
				break
			}
			log.WriteAt(b[record.HeaderSize:], pos+record.HeaderSize)
			log.WriteAt(b[:record.HeaderSize], pos)
			if since > interval {
				idx.WriteAt(offsetEntries(next+2-base, pos), entries*index.OffsetEntrySize)
				tim.WriteAt(timeEntries(ts, next+2-base), entries*index.TimeEntrySize)
				entries++
				since = 0
			}
			since += int64(len(b))
			pos += int64(len(b))
			next += 3
			n++
		}
		if stop.Load() {
			break
		}
		// Roll: final time entry, then everything trimmed.
		tim.WriteAt(timeEntries(ts-1, next-1-base), entries*index.TimeEntrySize)
		log.Truncate(pos)
		idx.Truncate(entries * index.OffsetEntrySize)
		tim.Truncate((entries + 1) * index.TimeEntrySize)
		for _, f := range []*os.File{log, idx, tim} {
			f.Close()
		}
		if len(bases) > 3 {
			for _, ext := range []string{".log", ".index", ".timeindex"} {
				os.Remove(filepath.Join(dir, fmt.Sprintf("%020d%s", bases[0], ext)))
			}
			bases = bases[1:]
		}
	}
	return n
}

// snapshotTree tells of each file what changes when somebody writes to it.
func snapshotTree(t *testing.T, dir string) map[string]string {
	files := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		sum := uint32(0)
		if !e.IsDir() {
			b, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			sum = crc32.ChecksumIEEE(b)
		}
		files[path] = fmt.Sprint(info.Sys().(*syscall.Stat_t).Ino, info.ModTime().UnixNano(), info.Size(), sum)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// C168: dump | head stops quietly, in constant memory.
func TestC168_PipeClosed(t *testing.T) {
	if testing.Short() {
		t.Skip("writes 128 MiB")
	}
	path := filepath.Join(t.TempDir(), log0)
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	piece := cat(slices.Repeat([]record.Batch{encode(t, 0, nil, record.Record{Timestamp: 1, Value: bytes.Repeat([]byte("v"), 4000)})}, 256)...)
	for size := 0; size < 128<<20; size += len(piece) {
		if _, err := f.Write(piece); err != nil {
			t.Fatal(err)
		}
	}
	f.Close()
	start := func(args ...string) *exec.Cmd {
		c := exec.Command(os.Args[0], args...)
		c.Env = append(os.Environ(), "LOGTOOL_RUN_MAIN=1")
		return c
	}
	const limit = 100 << 10 // KiB, of which the runtime takes some
	memory := func(c *exec.Cmd) int64 {
		m := int64(c.ProcessState.SysUsage().(*syscall.Rusage).Maxrss)
		if runtime.GOOS == "darwin" { // in bytes there
			m >>= 10
		}
		return m
	}

	c := start("dump", "--records", path)
	var stderr bytes.Buffer
	c.Stderr = &stderr
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := io.CopyN(io.Discard, out, 50000); err != nil {
		t.Fatal(err)
	}
	out.Close()
	if err := c.Wait(); err != nil || stderr.Len() > 0 {
		t.Errorf("after its reader left: %v, stderr %q; want a quiet exit 0", err, stderr.String())
	}
	if m := memory(c); m > limit {
		t.Errorf("dump took %d KiB; want at most %d", m, limit)
	}

	c = start("dump", "--records", "--json", path)
	if err := c.Run(); err != nil { // to the null device
		t.Errorf("dump: %v", err)
	}
	if m := memory(c); m > limit {
		t.Errorf("dump took %d KiB; want at most %d", m, limit)
	}
}

// A pipe is refused: opening it would wait for its writer.
func TestPipeRefused(t *testing.T) {
	path := filepath.Join(t.TempDir(), log0)
	if err := syscall.Mkfifo(path, 0o644); err != nil {
		t.Skip(err)
	}
	for _, command := range []string{"dump", "verify", "dump --hex", "dump --tail=1"} {
		if code, _, stderr := logtool(append(strings.Fields(command), path)...); code != exitUnreadable || !strings.Contains(stderr, "want a regular file") {
			t.Errorf("%s exits %d, stderr %q; want %d", command, code, stderr, exitUnreadable)
		}
	}
}
