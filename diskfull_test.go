//go:build linux

package tidemark_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tidemark-log/tidemark"
)

// mount makes a small file system of its own, or skips. It is gone, and so is
// its loop device, when the test ends.
func mount(t *testing.T, kind string, bytes int64) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("mounting a file system takes root")
	}
	dir := t.TempDir()
	var err error
	var out []byte
	switch kind {
	case "tmpfs":
		err = syscall.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprintf("size=%d", bytes))
	default:
		image := filepath.Join(mount(t, "tmpfs", 2*bytes), "image") // fast, whatever the disk
		if err := os.WriteFile(image, nil, 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.Truncate(image, bytes); err != nil {
			t.Fatal(err)
		}
		if out, err = exec.Command("mkfs."+kind, "-q", "-F", image).CombinedOutput(); err == nil {
			out, err = exec.Command("mount", "-o", "loop", image, dir).CombinedOutput()
		}
	}
	if err != nil {
		t.Skipf("cannot mount %s here: %v %s", kind, err, out)
	}
	t.Cleanup(func() {
		err := syscall.Unmount(dir, 0)
		if errors.Is(err, syscall.EBUSY) {
			t.Error("the file system is busy after the test: something is left open")
			err = syscall.Unmount(dir, syscall.MNT_DETACH)
		}
		if err != nil {
			t.Error(err)
		}
	})
	return dir
}

// fill takes all space there is to take but leave bytes; the file it makes is
// removed to give it back.
func fill(t *testing.T, dir string, leave int64) (release func()) {
	t.Helper()
	name := filepath.Join(dir, "ballast")
	f, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	at := int64(0)
	for step := int64(1 << 20); step >= 4096; {
		switch err := syscall.Fallocate(int(f.Fd()), 0, at, step); {
		case errors.Is(err, syscall.ENOSPC):
			step /= 2
		case err != nil:
			t.Fatal(err)
		default:
			at += step
		}
	}
	if err := f.Truncate(max(0, at-leave)); err != nil {
		t.Fatal(err)
	}
	return func() {
		if err := os.Remove(name); err != nil {
			t.Fatal(err)
		}
	}
}

// TestDiskFull runs a log into the end of its file system with every amount of
// space left in turn, so that each allocation is once the one that fails: of a
// new log's files, of a segment's next chunk, of a roll, of an index, of a
// backup. Each is an error that says so, nothing faults, what was acknowledged
// stays, and the log goes on where it stood once there is space (C028).
func TestDiskFull(t *testing.T) {
	for _, kind := range []struct {
		name  string
		bytes int64
		step  int64 // pages
	}{{"tmpfs", 2 << 20, 1}, {"ext4", 4 << 20, 5}} {
		t.Run(kind.name, func(t *testing.T) {
			dir := mount(t, kind.name, kind.bytes)
			step := kind.step
			if testing.Short() {
				step *= 8
			}
			for i, mode := range modes {
				t.Run(mode.String(), func(t *testing.T) {
					hit := map[string]int{}
					for pages := int64(0); pages < 48; pages += step {
						diskFull(t, filepath.Join(dir, fmt.Sprint("log", i)), mode, pages, hit)
						if t.Failed() {
							t.Fatalf("with %d pages left", pages)
						}
					}
					t.Log("refused:", hit)
					for _, what := range []string{"open", "append", "backup", "reopen"} {
						if hit[what] == 0 {
							t.Errorf("space never ran out in %s: %v", what, hit)
						}
					}
				})
			}
		})
	}
}

func diskFull(t *testing.T, dir string, mode tidemark.SyncMode, pages int64, hit map[string]int) {
	leave := pages << 12
	// Segments that grow in chunks, and small ones that roll and fill an index.
	o := tidemark.Options{Sync: mode, SegmentBytes: 256 << 10, IndexIntervalBytes: 64}
	if pages%3 > 0 {
		o.SegmentBytes = 16 << 10
	}
	enospc := func(what string, err error) {
		t.Helper()
		if !errors.Is(err, syscall.ENOSPC) {
			t.Fatalf("%s on a full disk: %v", what, err)
		}
		what, _, _ = strings.Cut(what, " ")
		hit[what]++
	}
	const size = 1400
	defer os.RemoveAll(dir)
	release := fill(t, filepath.Dir(dir), leave)
	l, err := tidemark.Open(dir, o)
	if err != nil {
		enospc("open of a new log", err)
		release()
		if l, err = tidemark.Open(dir, o); err != nil {
			t.Fatalf("open once there is space: %v", err)
		}
		release = fill(t, filepath.Dir(dir), leave)
	}
	defer func() { l.Close() }()
	refuse := func(end int64) {
		t.Helper()
		for ; ; end++ {
			base, err := l.Append(rec(end, size))
			if err != nil {
				enospc("append", err)
				break
			}
			if base != end {
				t.Fatalf("append %d = %d", end, base)
			}
		}
		// Refused again, and no less readable.
		if _, err := l.Append(rec(0, size)); err == nil {
			t.Fatal("append after a refused append went through with nothing released")
		}
		if err := l.Sync(); err != nil {
			t.Fatalf("sync on a full disk: %v", err)
		}
		checkAll(t, l, 0, end)
	}
	refuse(0)
	end := l.LogEndOffset()

	// Space comes back, without a reopen.
	release()
	appendTo(t, l, end+20, size)
	end += 20
	checkAll(t, l, 0, end)

	// It runs out in the middle of a backup.
	release = fill(t, filepath.Dir(dir), leave)
	b := filepath.Join(filepath.Dir(dir), "backup")
	if err := l.Backup(b); err != nil {
		enospc("backup", err)
		if _, err := os.Stat(b); err == nil {
			t.Error("a failed backup left its directory")
		}
	}
	if err := os.RemoveAll(b); err != nil {
		t.Fatal(err)
	}

	// It runs out again, and the log is closed and opened on the full disk.
	refuse(end)
	end = l.LogEndOffset()
	closeLog(t, l)
	if pages%2 == 0 { // a new one takes space
		if err := os.Remove(filepath.Join(dir, "tidemark.slot")); err != nil {
			t.Fatal(err)
		}
	}
	release()
	release = fill(t, filepath.Dir(dir), leave%(8<<12)) // closing trimmed the files
	if l, err = tidemark.Open(dir, o); err != nil {
		enospc("reopen", err)
		ro := o
		ro.ReadOnly = true
		if l, err = tidemark.Open(dir, ro); err != nil {
			t.Fatalf("read-only on a full disk: %v", err)
		}
		checkAll(t, l, 0, end)
		closeLog(t, l)
		release()
		l, err = tidemark.Open(dir, o)
	} else {
		checkAll(t, l, 0, end)
		release()
	}
	if err != nil {
		t.Fatal(err)
	}
	appendTo(t, l, end+20, size)
	checkAll(t, l, 0, end+20)
	closeLog(t, l)
}

// TestOtherFilesCutByAnother: TestCutByAnother for the files beside the
// segments (C041). Whatever another process cuts or removes under an open log, calls
// answer right or with an error, and the next open finds all that was synced.
func TestOtherFilesCutByAnother(t *testing.T) {
	for _, mode := range modes {
		if testing.Short() && mode == tidemark.Interval {
			continue
		}
		for _, pattern := range []string{"*.index", "*.timeindex", "tidemark.slot", "leader-epoch-checkpoint", "*"} {
			for _, cut := range []int64{0, 8, -1} {
				if pattern == "*" && cut >= 0 {
					continue
				}
				t.Run(fmt.Sprintf("%v/%s/%d", mode, strings.Trim(pattern, "*."), cut), func(t *testing.T) {
					t.Parallel() // they wait for the disk
					dir := t.TempDir()
					o := tidemark.Options{Sync: mode, SegmentBytes: 16 << 10, IndexIntervalBytes: 64, PopulateBytes: 1}
					l := open(t, dir, o)
					appendTo(t, l, 40, 1000)
					if err := l.Sync(); err != nil {
						t.Fatal(err)
					}
					names, _ := filepath.Glob(filepath.Join(dir, pattern))
					if len(names) == 0 {
						t.Fatalf("no %s", pattern)
					}
					for _, name := range names {
						var err error
						if cut >= 0 {
							err = os.Truncate(name, cut)
						} else {
							err = os.Remove(name)
						}
						if err != nil && !errors.Is(err, os.ErrNotExist) {
							t.Fatal(err)
						}
					}
					var err error
					for offset := range int64(40) {
						if r, err := l.Get(offset, nil); err != nil || r.Offset != offset || wrong(r) != "" {
							t.Fatalf("get %d: %d %v", offset, r.Offset, err)
						}
					}
					l.OffsetForTime(time.UnixMilli(1_700_000_000_020))
					end := int64(40)
					for ; end < 80 && err == nil; end++ {
						_, err = l.Append(rec(end, 1000))
					}
					if err != nil {
						end--
					}
					synced := l.SyncedEnd()
					closed := l.Close()
					if closed == nil {
						synced = end
					}
					t.Logf("append %d: %v; close: %v", end, err, closed)
					for _, err := range []error{err, closed} {
						if err != nil && !errors.Is(err, tidemark.ErrFailed) {
							t.Errorf("an error that does not say that the log has failed: %v", err)
						}
					}
					if strings.HasSuffix(pattern, ".slot") && cut >= 0 && err == nil {
						t.Error("appends go on with half a slot")
					}
					if pattern == "*" {
						return
					}
					l = open(t, dir, o)
					if got := l.LogEndOffset(); got < synced {
						t.Fatalf("log ends at %d; %d was synced", got, synced)
					}
					checkAll(t, l, 0, l.LogEndOffset())
					appendTo(t, l, l.LogEndOffset()+20, 1000)
				})
			}
		}
	}
}

// big is more than a full disk takes.
var big = tidemark.Record{Value: make([]byte, 64<<10)}

// fillUp appends until the leader's disk is full, and returns how many it took.
func fillUp(t *testing.T, h *tidemark.Partition) (n int) {
	t.Helper()
	for range 20 {
		if _, err := h.Produce(within(t), tidemark.AcksAll, big); err != nil {
			if !errors.Is(err, tidemark.ErrNoRoom) || !errors.Is(err, syscall.ENOSPC) {
				t.Fatalf("a full leader: %v", err)
			}
			return n
		}
		n++
	}
	t.Fatal("the disk does not fill")
	return n
}

// TestBreakFullDisk: a follower whose disk is full leaves the ISR and comes back when
// there is room. A leader whose disk is full refuses appends, and after LagMax another
// leads, with all there was.
func TestBreakFullDisk(t *testing.T) {
	disk := mount(t, "tmpfs", 16<<20)
	dir := t.TempDir()
	must(t, os.Symlink(disk, filepath.Join(dir, "node-1")))
	c := openCluster(t, dir, tidemark.ClusterOptions{LagMax: 200 * time.Millisecond,
		Log: tidemark.Options{Sync: tidemark.Never, SegmentBytes: 256 << 10, PopulateBytes: 1}})
	h := createTopic(t, c, "x", tidemark.TopicOptions{Replicas: [][]int32{{0, 1, 2}}})
	lead := createTopic(t, c, "y", tidemark.TopicOptions{Replicas: [][]int32{{1, 0, 2}}})
	caughtUp(t, h)
	caughtUp(t, lead)
	release := fill(t, disk, 0)
	for i := range 12 {
		if _, err := h.Produce(within(t), tidemark.AcksAll, big); err != nil {
			t.Fatalf("with a full follower: %d: %v", i, err)
		}
	}
	inSync(t, h, 0, 2)
	acked := fillUp(t, lead)
	p, err := c.NewProducer(tidemark.ProducerOptions{})
	must(t, err)
	defer p.Close()
	if _, err := p.Produce(within(t), lead, big); err != nil { // sends it again until another leads
		t.Error(err)
	}
	if s := lead.State(); s.Leader != 0 {
		t.Errorf("%+v; want leader 0", s)
	}
	inSync(t, lead, 0, 2)
	release()
	caughtUp(t, h)
	caughtUp(t, lead)
	if got := len(values(t, lead)); got != acked+1 {
		t.Errorf("%d records; want %d", got, acked+1)
	}
}

// TestBreakFullDisks: while no replica has room the leader stays; it goes on once there
// is some.
func TestBreakFullDisks(t *testing.T) {
	disk := mount(t, "tmpfs", 32<<20)
	const lag = 50 * time.Millisecond
	dir := t.TempDir()
	for n := range 3 { // the coordinator has another disk
		node := fmt.Sprint("node-", n)
		must(t, os.Mkdir(filepath.Join(disk, node), 0o755))
		must(t, os.Symlink(filepath.Join(disk, node), filepath.Join(dir, node)))
	}
	c := openCluster(t, dir, tidemark.ClusterOptions{LagMax: lag,
		Log: tidemark.Options{Sync: tidemark.Never, SegmentBytes: 256 << 10, PopulateBytes: 1}})
	h := createTopic(t, c, "x", tidemark.TopicOptions{})
	caughtUp(t, h)
	release := fill(t, disk, 0)
	acked := fillUp(t, h)
	before := h.State()
	for until := time.Now().Add(10 * lag); time.Now().Before(until); time.Sleep(lag / 10) {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		_, err := h.Produce(ctx, tidemark.AcksAll, big)
		if cancel(); !errors.Is(err, tidemark.ErrNoRoom) {
			t.Fatalf("on full disks: %v", err)
		}
	}
	if got := len(values(t, h)); got != acked {
		t.Errorf("%d records can be read; want %d", got, acked)
	}
	if s := h.State(); s.Leader != before.Leader || s.LeaderEpoch != before.LeaderEpoch {
		t.Errorf("%+v follows %+v though nobody has room", s, before)
	}
	if n := h.Stats().Leading.NoRoom; n < 10 {
		t.Errorf("%d appends found no room", n)
	}
	release()
	if _, err := h.Produce(within(t), tidemark.AcksAll, big); err != nil {
		t.Errorf("with room again: %v", err)
	}
}
