package replica_test

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/tidemark-log/tidemark/internal/vfs"
	"github.com/tidemark-log/tidemark/record"
	"github.com/tidemark-log/tidemark/replica"
	"github.com/tidemark-log/tidemark/segment"
)

// keeping is a configuration of segments that take five records of 750 bytes,
// which keeps everything.
func keeping() *replica.Config {
	c := replica.DefaultConfig()
	c.SegmentBytes, c.MaxBatchBytes = 4<<10, 64<<10
	c.RetentionMs = -1
	c.TimestampAfterMaxMs = math.MaxInt64
	return &c
}

// keepingLab opens a log of c that looks at its age at every Maintain but the
// first.
func keepingLab(t testing.TB, c *replica.Config, sole bool) *lab {
	return newLab(t, replica.Options{Config: c, SegmentBytes: c.SegmentBytes, Sole: sole, RetentionInterval: time.Millisecond})
}

// fill appends records of 750 bytes, each a batch, timestamp t0 + offset ms, and
// syncs.
func (x *lab) fill(n int) {
	x.t.Helper()
	for range n {
		x.append(1, 730)
	}
	x.sync()
}

// maintain runs the maintenance at a time, with the syncs it asks for, until it
// has nothing to do.
func (x *lab) maintain(at time.Time) {
	x.t.Helper()
	for i := range 4 {
		if _, err := x.log.Maintain(at.Add(time.Duration(i-3) * time.Second)); err != nil {
			x.t.Fatal(err)
		}
		if s := x.log.StartSealedSync(at.Add(24 * time.Hour)); s != nil {
			if err := x.log.FinishSync(s, s.Wait()); err != nil {
				x.t.Fatal(err)
			}
		}
	}
}

func (x *lab) deleteRecords(offset int64) {
	x.t.Helper()
	if err := x.log.DeleteRecords(offset); err != nil {
		x.t.Fatalf("delete records below %d: %v", offset, err)
	}
}

// served checks that exactly [from, end) can be read, whatever the files hold,
// at once, after a kill, a power cut and a close. The log is closed then.
func (x *lab) served(from, end int64) {
	x.t.Helper()
	for _, how := range []string{"at once", "killed", "power cut", "closed"} {
		y := *x
		switch how {
		case "at once":
			y.serves(how, from, end)
			continue
		case "killed":
			y.mem = x.mem.Clone()
		case "power cut":
			y.mem = x.mem.PowerCut(rand.New(rand.NewPCG(1, 2)))
		case "closed":
			x.close()
		}
		y.fs, y.o.Maps = y.mem, segment.NewMaps(1000)
		if err := y.tryOpen(); err != nil {
			x.t.Fatalf("%s: %v", how, err)
		}
		y.serves(how, from, end)
		for _, name := range y.names() {
			if strings.HasSuffix(name, ".deleted") {
				x.t.Fatalf("%s: an open left %s", how, name)
			}
		}
		if err := y.log.Close(t0); err != nil {
			x.t.Fatalf("%s: close: %v", how, err)
		}
	}
}

func (x *lab) serves(how string, from, end int64) {
	x.t.Helper()
	x.undamaged()
	if x.log.LogStartOffset() != from || x.log.LogEndOffset() != end {
		x.t.Fatalf("%s: log [%d, %d); want [%d, %d)", how, x.log.LogStartOffset(), x.log.LogEndOffset(), from, end)
	}
	for _, below := range []int64{0, from / 2, from - 1} {
		if below < 0 || below >= from {
			continue
		}
		if b, err := x.log.Read(nil, below, end, 1); !errors.Is(err, replica.ErrOutOfRange) || len(b) > 0 {
			x.t.Fatalf("%s: read at %d below the log start %d: %v", how, below, from, err)
		}
		if _, _, ok, err := x.log.Get(below, end, nil); !errors.Is(err, replica.ErrOutOfRange) || ok {
			x.t.Fatalf("%s: get %d below the log start %d: %v", how, below, from, err)
		}
	}
	if got := x.readAll(from); len(got) != int(end-from) {
		x.t.Fatalf("%s: read %v of [%d, %d)", how, got, from, end)
	}
	x.verify()
	if e := x.log.Epochs(); from < end && (len(e) == 0 || e[0].StartOffset != from) {
		x.t.Fatalf("%s: epochs %v of a log from %d on", how, e, from)
	}
}

// TestC061_RetentionStops at the high watermark and at the active segment:
// whatever is expired, only whole segments below it go (scenarios 150 and 151).
func TestC061_RetentionStops(t *testing.T) {
	for _, hw := range []int64{0, 1, 4, 5, 25, 26, 27, 28, 29, 30, 100} {
		c := keeping()
		c.RetentionMs, c.RetentionBytes = 1000, 0
		x := keepingLab(t, c, false)
		x.fill(100)
		x.log.SetHighWatermark(hw)
		bases := x.segments()
		if len(bases) != 20 || bases[1] != 5 {
			t.Fatalf("segments %v", bases)
		}
		x.maintain(t0.Add(time.Hour))
		if got := x.log.LogStartOffset(); got != hw/5*5 {
			t.Errorf("high watermark %d: log start %d, want %d", hw, got, hw/5*5)
		}
		if got := x.segments(); got[0] != hw/5*5 {
			t.Errorf("high watermark %d: segments %v", hw, got)
		}
		x.served(hw/5*5, 100)
		x.open()
		x.append(1, 10)
		if got := x.log.LogEndOffset(); got != 101 {
			t.Errorf("next append ends at %d", got)
		}
		x.close()
	}
}

// TestScenario152_EverythingExpired: one empty segment, and the newest epoch,
// also after the next open: a log that kept nothing is not older than it was.
func TestScenario152_EverythingExpired(t *testing.T) {
	c := keeping()
	c.RetentionMs = 1000
	x := keepingLab(t, c, true)
	if err := x.log.TruncateFullyAndStartAt(40); err != nil {
		t.Fatal(err)
	}
	for i := int64(40); i < 100; i++ {
		x.follow(batchAt(i, int32(i/90), 1, 700))
	}
	x.sync()
	x.maintain(t0.Add(time.Hour))
	want := []replica.Epoch{{Epoch: 1, StartOffset: 100}}
	for _, how := range []string{"at once", "killed", "opened again", "closed", "and again"} {
		switch how {
		case "killed":
			x.kill()
			x.tryOpen()
		case "opened again", "and again", "closed":
			x.close()
			x.tryOpen()
		}
		if got := x.segments(); !slices.Equal(got, []int64{100}) || x.log.LogStartOffset() != 100 || x.log.LogEndOffset() != 100 {
			t.Fatalf("%s: segments %v, log [%d, %d)", how, got, x.log.LogStartOffset(), x.log.LogEndOffset())
		}
		if got := x.log.Epochs(); !slices.Equal(got, want) {
			t.Errorf("%s: epochs %v; want %v", how, got, want)
		}
	}
	x.lead()
	x.append(2, 20)
	x.whole(100, 102)
}

// TestScenario153_YoungestFirst: a segment that is too young keeps those behind
// it, until the log start passes it.
func TestScenario153_YoungestFirst(t *testing.T) {
	c := keeping()
	c.RetentionMs = 1000
	x := keepingLab(t, c, true)
	young := t0.Add(time.Hour).UnixMilli()
	x.follow(datedBatch(0, young, 3500))
	x.follow(datedBatch(1, t0.UnixMilli(), 3500))
	x.follow(datedBatch(2, t0.UnixMilli(), 3500))
	x.sync()
	x.maintain(t0.Add(30 * time.Minute))
	if got := x.segments(); !slices.Equal(got, []int64{0, 1, 2}) {
		t.Fatalf("segments %v", got)
	}
	x.deleteRecords(1)
	x.maintain(t0.Add(40 * time.Minute))
	if got := x.segments(); !slices.Equal(got, []int64{3}) || x.log.LogStartOffset() != 3 {
		t.Errorf("segments %v, log start %d; want all gone", got, x.log.LogStartOffset())
	}
}

// datedBatch is a follower's batch of one record.
func datedBatch(base, ts int64, size int) record.Batch {
	recs := []record.Record{{Timestamp: ts, Key: []byte("k"), Value: value(base, size)}}
	spec := record.NewSpec()
	spec.BaseOffset, spec.LeaderEpoch = base, 0
	return record.Encode(make([]byte, record.Size(recs, 0)), recs, &spec)
}

// TestScenario154_SizeRetention: at the limit nothing goes, a segment above it
// one does.
func TestScenario154_SizeRetention(t *testing.T) {
	c := keeping()
	x := keepingLab(t, c, true)
	x.fill(30) // six segments
	all := x.log.Stats().Bytes
	less1 := all - int64(len(x.read(logName(0))))
	less2 := less1 - int64(len(x.read(logName(5))))
	for _, tc := range []struct{ limit, start int64 }{
		{-1, 0}, {all, 0}, {less1 + 1, 0}, {less1, 5}, {less2 + 1, 5}, {less2, 10}, {1, 25}, {0, 30},
	} {
		d := *c
		d.RetentionBytes = tc.limit
		if err := x.log.SetConfig(d); err != nil {
			t.Fatal(err)
		}
		x.maintain(t0)
		if got := x.log.LogStartOffset(); got != tc.start {
			t.Errorf("%d bytes, limit %d: log start %d, want %d", all, tc.limit, got, tc.start)
		}
		x.served(tc.start, 30)
		x.open()
	}
}

// TestC062_SizeIsPerSegment: a log of at most 40 KiB in segments of 16 KiB keeps
// between that and a segment more, also while it is written as fast as can be.
func TestC062_SizeIsPerSegment(t *testing.T) {
	const limit, seg = 40 << 10, 16 << 10
	c := keeping()
	c.SegmentBytes, c.RetentionBytes = seg, limit
	x := newLab(t, replica.Options{Config: c, SegmentBytes: seg, Sole: true, RetentionInterval: time.Hour})
	for i := range 160 {
		x.append(1, 730)
		x.sync()
		if _, err := x.log.Maintain(t0); err != nil {
			t.Fatal(err)
		}
		x.sync()
		if _, err := x.log.Maintain(t0); err != nil {
			t.Fatal(err)
		}
		if got := x.log.Stats().Bytes; got >= limit+seg {
			t.Fatalf("append %d: %d bytes are kept, want less than %d", i, got, limit+seg)
		} else if i > 80 && got < limit {
			t.Fatalf("append %d: %d bytes are kept, want %d at least", i, got, limit)
		}
	}
}

// TestScenario155_CompactOnly: only what lies below the log start goes.
func TestScenario155_CompactOnly(t *testing.T) {
	c := keeping()
	c.Delete, c.Compact = false, true
	c.RetentionMs, c.RetentionBytes = 0, 0
	x := keepingLab(t, c, true)
	x.fill(20)
	x.maintain(t0.Add(time.Hour))
	if got := len(x.segments()); got != 4 {
		t.Errorf("%d segments of 4", got)
	}
	if err := x.log.DeleteRecords(7); !errors.Is(err, replica.ErrPolicy) {
		t.Errorf("DeleteRecords = %v; want ErrPolicy", err)
	}
	if err := x.log.SetLogStart(12); err != nil { // what a leader says goes
		t.Fatal(err)
	}
	x.maintain(t0.Add(time.Hour))
	if got := x.segments(); !slices.Equal(got, []int64{10, 15}) {
		t.Errorf("segments %v", got)
	}
	x.served(12, 20)
}

// TestScenario156_DeleteRecords: log start as asked, inside a segment and inside
// a batch too, segments with it.
func TestScenario156_DeleteRecords(t *testing.T) {
	x := keepingLab(t, keeping(), true)
	x.fill(15)
	for _, tc := range []struct{ asked, start, first int64 }{{0, 0, 0}, {1, 1, 0}, {6, 6, 5}, {3, 6, 5}, {14, 14, 10}, {-1, 15, 10}, {15, 15, 10}} {
		x.deleteRecords(tc.asked)
		x.maintain(t0)
		if got := x.segments(); got[0] != tc.first || x.log.LogStartOffset() != tc.start {
			t.Errorf("delete below %d: log start %d, segments %v; want %d, first %d", tc.asked, x.log.LogStartOffset(), got, tc.start, tc.first)
		}
		x.served(tc.start, 15)
		x.open()
	}
	// Scenario 157: above the high watermark.
	for _, offset := range []int64{16, -2, math.MaxInt64, math.MinInt64} {
		if err := x.log.DeleteRecords(offset); !errors.Is(err, replica.ErrOutOfRange) {
			t.Errorf("delete below %d = %v; want ErrOutOfRange", offset, err)
		}
	}
	x.append(10, 10) // one batch, 15 to 24
	x.sync()
	x.deleteRecords(20)
	if b, err := x.log.Read(nil, 20, 25, 0); err != nil || record.Batch(b).BaseOffset() != 15 {
		t.Errorf("read inside the batch: %v", err)
	}
	if got, ts, ok, err := x.log.OffsetForTime(t0.UnixMilli(), 25); err != nil || !ok || got != 20 || ts != t0.UnixMilli()+20 {
		t.Errorf("first record by time = %d at %d, %v, %v; want 20", got, ts, ok, err)
	}
	if e, end := x.log.EndOffsetFor(0); e != 0 || end != 25 {
		t.Errorf("end offset for epoch 0 = %d, %d", e, end)
	}
	x.served(20, 25)
	x.open()
	// A truncation inside the batch takes it all, and the log goes on there.
	if err := x.log.Truncate(22); err != nil {
		t.Fatal(err)
	}
	for _, how := range []string{"at once", "killed", "closed"} {
		switch how {
		case "killed":
			x.kill()
			x.open()
		case "closed":
			x.close()
			x.open()
		}
		if got := x.readAll(20); len(got) != 0 || x.log.LogStartOffset() != 20 || x.log.LogEndOffset() != 22 {
			t.Errorf("%s: cut inside a batch: read %v, log [%d, %d)", how, got, x.log.LogStartOffset(), x.log.LogEndOffset())
		}
	}
	x.append(1, 10)
	if got := x.readAll(20); !slices.Equal(got, []int64{22}) {
		t.Errorf("read %v", got)
	}
}

// TestC158_LogStartSurvives: an acknowledged deletion is not taken back, by a
// kill or by a power cut, before or after the files went.
func TestC158_LogStartSurvives(t *testing.T) {
	for _, mode := range []replica.SyncMode{replica.Always, replica.Interval, replica.Never} {
		for _, files := range []bool{false, true} {
			x := newLab(t, replica.Options{Config: keeping(), SegmentBytes: 4 << 10, Sync: mode, Sole: true, IndexIntervalBytes: 300})
			for range 700 {
				x.append(1, 100)
			}
			x.sync()
			x.deleteRecords(500) // inside a segment
			if files {
				x.maintain(t0)
			}
			if got := x.segments(); (got[0] > 0) != files {
				t.Fatalf("segments %v", got)
			}
			x.served(500, 700)
			if got := x.segments(); got[0] == 0 || got[0] > 500 {
				t.Errorf("an open left segments %v", got)
			}
		}
	}
}

// TestC158_Checkpoint: the folder's log-start-offset-checkpoint has the log start
// after a close where it is above the first segment's base (scenario 100), and a
// log without a slot begins there. What Kafka wrote into it meanwhile counts.
func TestC158_Checkpoint(t *testing.T) {
	mem := vfs.NewMem(vfs.MemOptions{})
	p := replica.TopicPartition{Topic: "t"}
	open := func() (*replica.Dir, *lab) {
		d, err := replica.OpenDir("/data", replica.DirOptions{FS: mem}, t0)
		if err != nil {
			t.Fatal(err)
		}
		l, err := d.OpenLog(p, replica.UUID{}, replica.Options{Config: keeping(), Sole: true}, t0)
		if err != nil {
			t.Fatal(err)
		}
		return d, &lab{t: t, mem: mem, fs: mem, dir: "/data/t-0", log: l, warns: &records{}}
	}
	line := func() string {
		b, err := vfs.ReadFile(mem, "/data/log-start-offset-checkpoint", 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	d, x := open()
	x.lead()
	x.fill(20)
	x.deleteRecords(12)
	x.maintain(t0)
	if err := d.Close(t0); err != nil {
		t.Fatal(err)
	}
	if got := line(); got != "0\n1\nt 0 12\n" {
		t.Errorf("checkpoint %q", got)
	}
	for _, tc := range []struct {
		what        string
		do          func()
		start, base int64
	}{
		{"as it was", func() {}, 12, 10},
		{"without slot", func() { x.remove(slotFile) }, 12, 10},
		{"raised by Kafka", func() {
			x.dir = "/data"
			x.write("log-start-offset-checkpoint", []byte("0\n1\nt 0 16\n"))
			x.dir = "/data/t-0"
		}, 16, 15},
	} {
		tc.do()
		d, x = open()
		x.undamaged()
		if x.log.LogStartOffset() != tc.start || x.segments()[0] != tc.base {
			t.Errorf("%s: log start %d, segments %v; want %d, %d", tc.what, x.log.LogStartOffset(), x.segments(), tc.start, tc.base)
		}
		if got := x.readAll(tc.start); len(got) != int(20-tc.start) {
			t.Errorf("%s: read %v", tc.what, got)
		}
		if err := d.Close(t0); err != nil {
			t.Fatal(err)
		}
	}
	// At a segment's base there is nothing to list.
	d, x = open()
	x.lead()
	x.deleteRecords(20)
	x.fill(5)
	x.maintain(t0)
	x.log.SetLogStart(20)
	if err := d.Close(t0); err != nil {
		t.Fatal(err)
	}
	if got := line(); x.segments()[0] == 20 && got != "0\n0\n" {
		t.Errorf("checkpoint %q, segments %v", got, x.segments())
	}
}

// TestC049_FutureTimestamps: with Kafka's limit a record from the future is
// refused; where any timestamp is taken, it keeps its segment and those behind
// it from being deleted by age, which is said once; by size they go.
func TestC049_FutureTimestamps(t *testing.T) {
	future := t0.AddDate(10, 0, 0)
	c := keeping()
	c.RetentionMs = 3_600_000
	c.TimestampAfterMaxMs = replica.DefaultConfig().TimestampAfterMaxMs
	x := keepingLab(t, c, true)
	_, err := x.log.AppendRecords([]record.Record{{Timestamp: t0.UnixMilli()}, {Timestamp: future.UnixMilli()}}, t0)
	e, ok := errors.AsType[*record.ClientError](err)
	if !ok || e.Code != record.CodeInvalidTimestamp || len(e.Records) != 1 || e.Records[0].Index != 1 {
		t.Fatalf("append = %v; want INVALID_TIMESTAMP of record 1", err)
	}
	if x.log.LogEndOffset() != 0 {
		t.Error("something was appended")
	}
	c.TimestampAfterMaxMs = math.MaxInt64
	if err := x.log.SetConfig(*c); err != nil {
		t.Fatal(err)
	}
	x.fill(5)
	if _, err := x.log.AppendRecords([]record.Record{{Timestamp: future.UnixMilli(), Value: make([]byte, 3900)}}, t0); err != nil {
		t.Fatal(err)
	}
	x.fill(20)
	for range 3 {
		x.maintain(t0.Add(2 * time.Hour))
	}
	if got := x.log.LogStartOffset(); got != 5 {
		t.Errorf("log start %d; want 5, where the future is", got)
	}
	if n := x.warned("from the future"); n != 1 {
		t.Errorf("%d warnings", n)
	}
	c.RetentionBytes = 8 << 10
	if err := x.log.SetConfig(*c); err != nil {
		t.Fatal(err)
	}
	x.maintain(t0.Add(2 * time.Hour))
	if got := x.log.LogStartOffset(); got < 10 {
		t.Errorf("log start %d after retention by size", got)
	}
}

// TestC052_FileTime: where no record has a timestamp, the file's time counts.
func TestC052_FileTime(t *testing.T) {
	now := time.Unix(2_000_000_000, 0)
	clock := now
	c := keeping()
	c.RetentionMs = 60_000
	x := &lab{t: t, mem: vfs.NewMem(vfs.MemOptions{Clock: func() time.Time { return clock }}), dir: "/log", warns: &records{},
		o: replica.Options{Config: c, Sole: true, RetentionInterval: time.Millisecond}}
	x.fs = x.mem
	x.open()
	for range 5 {
		for range 5 {
			if _, err := x.log.AppendRecords([]record.Record{{Timestamp: record.NoTimestamp, Value: make([]byte, 730)}}, clock); err != nil {
				t.Fatal(err)
			}
		}
		x.sync()
		clock = clock.Add(time.Minute)
	}
	for _, tc := range []struct {
		after time.Duration
		start int64
	}{{0, 0}, {90 * time.Second, 0}, {150 * time.Second, 5}, {time.Hour, 25}} {
		x.maintain(now.Add(tc.after))
		if got := x.log.LogStartOffset(); got != tc.start && !(tc.start == 5 && got == 10) {
			t.Errorf("after %v: log start %d, want %d", tc.after, got, tc.start)
		}
	}
	x.close()
}

// TestC032_DeletedSegments: what retention deletes is unmapped and closed, on a
// real file system, views of it stay valid until released, and its files go
// after the delay.
func TestC032_DeletedSegments(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "tidemark-c032")
	held := func() (n int) {
		if b, err := os.ReadFile("/proc/self/maps"); err == nil {
			n = bytes.Count(b, []byte("tidemark-c032"))
		}
		list, _ := os.ReadDir("/proc/self/fd")
		for _, e := range list {
			if to, _ := os.Readlink("/proc/self/fd/" + e.Name()); strings.Contains(to, "tidemark-c032") {
				n++
			}
		}
		return n
	}
	c := keeping()
	c.RetentionBytes = 8 << 10
	c.FileDeleteDelayMs = 60_000
	l, err := replica.Open(dir, replica.Options{Config: c, Sync: replica.Never, Sole: true, IndexIntervalBytes: 500}, t0)
	if err != nil {
		t.Fatal(err)
	}
	if err := l.BeginEpoch(0); err != nil {
		t.Fatal(err)
	}
	x := &lab{t: t, log: l}
	before := held()
	rounds := 5
	if *long {
		rounds = 50 // 3000 segments
	}
	files := func() (live, deleted int) {
		infos, err := vfs.OS.List(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, i := range infos {
			if strings.HasSuffix(i.Name, ".deleted") {
				deleted++
			} else if strings.HasSuffix(i.Name, ".log") {
				live++
			}
		}
		return live, deleted
	}
	now := t0
	for range rounds {
		from := l.LogEndOffset()
		for range 60 * 4 {
			x.append(1, 900)
		}
		v, err := l.View(from, l.LogEndOffset(), 4000)
		if err != nil {
			t.Fatal(err)
		}
		want := bytes.Clone(v.Bytes)
		for offset := l.LogStartOffset(); offset < l.LogEndOffset(); offset += 3 {
			if _, err := l.Read(nil, offset, l.LogEndOffset(), 1); err != nil {
				t.Fatal(err)
			}
		}
		x.maintain(now)
		if l.LogStartOffset() <= from {
			t.Fatalf("log start %d", l.LogStartOffset())
		}
		if _, deleted := files(); deleted < 60 {
			t.Fatalf("%d deleted files wait", deleted)
		}
		if !bytes.Equal(v.Bytes, want) {
			t.Fatal("a view of a deleted segment changed")
		}
		v.Release()
		now = now.Add(2 * time.Minute)
		x.maintain(now)
		if live, deleted := files(); deleted != 0 || live > 4 {
			t.Fatalf("%d segments and %d deleted files after the delay", live, deleted)
		}
	}
	if got := held(); got > before+16 {
		t.Errorf("%d maps and descriptors at first, %d now", before, got)
	}
	if err := l.Close(now); err != nil {
		t.Fatal(err)
	}
	if got := held(); got != 0 {
		t.Errorf("%d maps and descriptors after Close", got)
	}
}

// TestDeletedNames: Kafka's delayed rename. All files of a segment go, snapshots
// and the like too; what a killed process left is removed at the next open; what
// cannot be removed now is tried again (C036); a rename that failed as well.
func TestDeletedNames(t *testing.T) {
	c := keeping()
	c.RetentionBytes = 4 << 10
	x := keepingLab(t, c, true)
	x.fill(20)
	faulty := vfs.NewFaulty(x.mem)
	x.close()
	x.fs = faulty
	x.open()
	for _, suffix := range []string{".snapshot", ".txnindex", ".dedupe"} {
		x.write(segment.FileName(0, suffix), []byte("x"))
	}
	x.write(segment.FileName(15, ".txnindex"), []byte("x"))
	faulty.SetRules(vfs.Rule{Ops: vfs.OpRename, Count: 1, Err: syscall.EBUSY})
	x.maintain(t0)
	deleted := func() (n int) {
		for _, name := range x.names() {
			if strings.HasSuffix(name, ".deleted") {
				n++
			}
		}
		return n
	}
	if x.log.LogStartOffset() != 10 || deleted() == 0 || x.log.Err() != nil {
		t.Fatalf("log start %d, %d deleted files, %v", x.log.LogStartOffset(), deleted(), x.log.Err())
	}
	if x.warned("will be tried again") == 0 {
		t.Error("no warning of what could not be renamed")
	}
	for _, name := range x.names() {
		if strings.HasPrefix(name, segment.FileName(0, ".")) && !strings.HasSuffix(name, ".deleted") {
			t.Errorf("%s is left", name)
		}
	}
	x.kill()
	x.open()
	if n := deleted(); n != 0 {
		t.Errorf("%d deleted files after an open", n)
	}
	if !x.has(segment.FileName(15, ".txnindex")) {
		t.Errorf("a file of a live segment is gone: %v", x.names())
	}

	faulty = vfs.NewFaulty(x.mem)
	x.close()
	x.fs = faulty
	x.open()
	x.fill(10)
	x.maintain(t0)
	n, warned := deleted(), x.warned("will be tried again")
	x.maintain(t0.Add(50 * time.Second))
	if deleted() != n || n == 0 {
		t.Errorf("%d deleted files of %d before the delay", deleted(), n)
	}
	faulty.SetRules(vfs.Rule{Ops: vfs.OpRemove, Count: 1, Err: syscall.EBUSY})
	x.maintain(t0.Add(2 * time.Minute))
	if n := deleted(); n != 1 || x.warned("will be tried again") == warned {
		t.Errorf("%d deleted files are left; want the one that was busy, and a warning", n)
	}
	x.maintain(t0.Add(4 * time.Minute))
	if n := deleted(); n != 0 {
		t.Errorf("%d deleted files after the delay", n)
	}
	x.undamaged()
}

// TestRetentionBesideReaders: readers meet deletions at any point and see whole
// records or ErrOutOfRange.
func TestRetentionBesideReaders(t *testing.T) {
	c := keeping()
	c.RetentionBytes = 8 << 10
	c.FileDeleteDelayMs = 0
	x := newLab(t, replica.Options{Config: c, SegmentBytes: 4 << 10, Sync: replica.Never, Sole: true, IndexIntervalBytes: 500})
	x.append(1, 100)
	var stop atomic.Bool
	var wg sync.WaitGroup
	for g := range 3 {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(g), 7))
			for !stop.Load() {
				start, end := x.log.LogStartOffset(), x.log.LogEndOffset()
				at := start + rng.Int64N(max(end-start, 1))
				var err error
				switch g {
				case 0:
					var r record.Record
					var ok bool
					if r, _, ok, err = x.log.Get(at, end, nil); ok && err == nil {
						if w := recordAt(r.Offset, len(r.Value)); r.Offset != at || !bytes.Equal(r.Value, w.Value) {
							t.Errorf("get %d = %d", at, r.Offset)
						}
					}
				case 1:
					_, err = x.log.Read(nil, at, end, 5000)
				case 2:
					var got int64
					var ok bool
					if got, _, ok, err = x.log.OffsetForTime(t0.UnixMilli()+at, end); ok && err == nil && got < at {
						t.Errorf("offset for the time of %d = %d", at, got)
					}
				}
				if err != nil && !errors.Is(err, replica.ErrOutOfRange) {
					t.Errorf("reader %d at %d of [%d, %d): %v", g, at, start, end, err)
					return
				}
			}
		})
	}
	n := 600
	if *long {
		n = 20000
	}
	for i := range n {
		x.append(1, 700)
		if i%5 == 0 {
			x.maintain(t0)
		}
	}
	stop.Store(true)
	wg.Wait()
	if x.log.LogStartOffset() < int64(n)/2 {
		t.Errorf("log start %d", x.log.LogStartOffset())
	}
}

// TestReadOnlyBesideDeletion: who opened the log before its writer deleted from it
// reads what is left, and of the rest the records or ErrOutOfRange.
func TestReadOnlyBesideDeletion(t *testing.T) {
	c := keeping()
	c.FileDeleteDelayMs = 0
	x := keepingLab(t, c, true)
	x.fill(40)
	x.close()
	x.open()
	l, err := replica.Open(x.dir, replica.Options{ReadOnly: true, Config: c, FS: x.fs, Maps: segment.NewMaps(1000)}, t0)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close(t0)
	x.deleteRecords(27)
	x.maintain(t0.Add(time.Hour))
	y := &lab{t: t, log: l}
	if got := y.readAll(27); len(got) != 13 {
		t.Errorf("read %v", got)
	}
	gone := 0
	for offset := range int64(25) {
		b, err := l.Read(nil, offset, 40, 0)
		if err == nil && record.Batch(b).BaseOffset() == offset {
			continue
		}
		if !errors.Is(err, replica.ErrOutOfRange) {
			t.Errorf("read at %d: %d bytes, %v", offset, len(b), err)
		}
		gone++
	}
	if gone == 0 {
		t.Error("nothing is gone: the test tests nothing")
	}
}

// TestLostDeletion: power fails while segments go. A log start that is in the
// slot makes what is left below it no log any more, holes or not; a first segment
// above it is damage, which no deletion leaves.
func TestLostDeletion(t *testing.T) {
	c := keeping()
	x := keepingLab(t, c, true)
	x.fill(40)
	x.deleteRecords(27)
	plan, err := replica.Explain(x.dir, replica.Options{FS: x.mem.Clone(), Config: c}, t0)
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range plan.Segments {
		if removed := g.Treatment == replica.Removed; removed != (g.Base < 25) {
			t.Errorf("the plan for segment %d is %q", g.Base, g.Treatment)
		}
	}
	for _, gone := range [][]int64{{}, {0}, {10}, {0, 5, 15}, {0, 5, 10, 15, 20}} {
		y := *x
		y.mem = x.mem.Clone()
		y.fs, y.o.Maps = y.mem, segment.NewMaps(1000)
		for _, base := range gone {
			y.remove(logName(base), indexName(base))
		}
		if err := y.tryOpen(); err != nil {
			t.Fatal(err)
		}
		y.undamaged()
		if got := y.segments(); got[0] != 25 || y.log.LogStartOffset() != 27 {
			t.Errorf("without %v: log start %d, segments %v", gone, y.log.LogStartOffset(), got)
		}
		if got := y.readAll(27); len(got) != 13 {
			t.Errorf("without %v: read %v", gone, got)
		}
		y.log.Close(t0)
	}
	y := *x
	y.mem = x.mem.Clone()
	y.fs, y.o.Maps = y.mem, segment.NewMaps(1000)
	y.remove(logName(0), logName(5), logName(10), logName(15), logName(20), logName(25))
	if err := y.tryOpen(); err != nil {
		t.Fatal(err)
	}
	if d := y.log.Damage(); d == nil || d.Offset != 27 {
		t.Errorf("damage %v; want it at 27", d)
	}
	y.log.Close(t0)
}

// TestScenario085_GarbageBelowTheStart: a log without a slot whose checkpoint has
// a log start loses nothing by garbage below it; Kafka cuts everything.
func TestScenario085_GarbageBelowTheStart(t *testing.T) {
	x := keepingLab(t, keeping(), true)
	x.fill(30)
	x.close()
	x.remove(slotFile)
	x.write(logName(5), bytes.Repeat([]byte{0xa5}, 4000))
	x.o.Checkpoints = replica.Checkpoints{Valid: true, RecoveryPoint: -1, HighWatermark: -1, LogStart: 12}
	x.open()
	x.undamaged()
	if got := x.segments(); !slices.Equal(got, []int64{10, 15, 20, 25}) || x.log.LogStartOffset() != 12 {
		t.Errorf("log start %d, segments %v", x.log.LogStartOffset(), got)
	}
	x.served(12, 30)

	// A log start above the end (log-format §4.2): an empty log begins there.
	x.remove(slotFile)
	x.o.Checkpoints.LogStart, x.o.Checkpoints.RecoveryPoint = 100, 30
	x.open()
	x.undamaged()
	if got := x.segments(); !slices.Equal(got, []int64{100}) {
		t.Errorf("segments %v", got)
	}
	x.goesOn(100, 100)
}

// TestDamageBelowTheStart_changes: a log with such damage is cut, backed up and
// finds its epochs like any other, wherever the damage lies. A follower stood still
// for good because of it (simulator, seed 100352).
func TestDamageBelowTheStart_changes(t *testing.T) {
	for _, bad := range []int64{3, 8, 11} {
		for _, to := range []int64{12, 13, 16, 20} {
			t.Run(fmt.Sprintf("batch %d, cut to %d", bad, to), func(t *testing.T) {
				c := keeping()
				c.SegmentBytes = 64 << 10
				x := keepingLab(t, c, true)
				x.fill(20)
				x.deleteRecords(12)
				b := x.read(logName(0))
				at := bytes.Index(b, value(bad, 730)) - 70 // in the header
				x.mem = x.mem.PowerCut(rand.New(rand.NewPCG(5, 6)))
				x.fs = x.mem
				copy(b[at:at+512], bytes.Repeat([]byte{0xa5}, 512)) // as a sector that was never written
				x.write(logName(0), b)
				x.remove("leader-epoch-checkpoint")
				x.open()
				x.undamaged()
				if got := x.log.Epochs(); len(got) != 1 || got[0].StartOffset > 12 {
					t.Errorf("epochs %v", got)
				}
				if err := x.log.Backup("/copy"); err != nil {
					t.Error(err)
				}
				if err := x.log.Truncate(to); err != nil {
					t.Fatal(err)
				}
				if got := x.log.LogEndOffset(); got != to {
					t.Errorf("log ends at %d, want %d", got, to)
				}
				x.served(12, to)
				x.open()
				x.undamaged()
				if got := x.log.LogEndOffset(); got != to || x.log.LogStartOffset() != 12 {
					t.Errorf("opened again, the log is [%d, %d), want [12, %d)", x.log.LogStartOffset(), got, to)
				}
				x.append(1, 100)
				x.sync()
				x.served(12, to+1)
			})
		}
	}
}

// TestDamageBelowTheStart: what nobody can read does not make a log damaged.
func TestDamageBelowTheStart(t *testing.T) {
	c := keeping()
	c.SegmentBytes = 64 << 10
	x := keepingLab(t, c, true)
	x.fill(20)
	x.deleteRecords(12)
	b := x.read(logName(0))
	at := bytes.Index(b, value(3, 730)) + 100
	x.mem = x.mem.PowerCut(rand.New(rand.NewPCG(5, 6)))
	x.fs = x.mem
	b[at] ^= 4
	x.write(logName(0), b)
	x.open()
	x.undamaged()
	if x.warned("below the log start") == 0 {
		t.Error("no warning")
	}
	x.append(1, 100)
	x.sync()
	x.served(12, 21)
	x.open()
	x.deleteRecords(2)
	x.served(12, 21)

	// Above it is another matter.
	at = bytes.Index(b, value(15, 730)) + 100
	b = x.read(logName(0))
	b[at] ^= 4
	x.write(logName(0), b)
	x.remove(slotFile)
	x.o.Checkpoints = replica.Checkpoints{Valid: true, RecoveryPoint: 21, HighWatermark: 21, LogStart: 12}
	if err := x.tryOpen(); err != nil {
		t.Fatal(err)
	}
	if found := x.findings(); len(found) != 1 || found[0].Offset != 15 {
		t.Errorf("found %v", found)
	}
}

// TestFollowerRetention: a follower raises its log start with its leader's, up to
// its own high watermark.
func TestFollowerRetention(t *testing.T) {
	x := keepingLab(t, keeping(), false)
	for i := range int64(20) {
		x.follow(batchAt(i, 0, 1, 730))
	}
	x.sync()
	x.log.SetHighWatermark(12)
	for _, tc := range []struct{ leader, start int64 }{{-1, 0}, {0, 0}, {7, 7}, {5, 7}, {18, 12}, {12, 12}} {
		if err := x.log.SetLogStart(tc.leader); err != nil {
			t.Fatal(err)
		}
		if got := x.log.LogStartOffset(); got != tc.start {
			t.Errorf("leader's log start %d: %d, want %d", tc.leader, got, tc.start)
		}
	}
	x.maintain(t0)
	if got := x.segments(); got[0] != 10 {
		t.Errorf("segments %v", got)
	}
	x.follow(batchAt(20, 0, 1, 730))
	x.sync()
	x.served(12, 21)
}

// TestC156_TopicRecreated: a partition made anew begins at 0, whatever was known
// of the one before.
func TestC156_TopicRecreated(t *testing.T) {
	mem := vfs.NewMem(vfs.MemOptions{})
	p := replica.TopicPartition{Topic: "t"}
	id := func(b byte) (u replica.UUID) { u[0] = b; return u }
	open := func(topic replica.UUID) (*replica.Dir, *lab) {
		d, err := replica.OpenDir("/data", replica.DirOptions{FS: mem}, t0)
		if err != nil {
			t.Fatal(err)
		}
		l, err := d.OpenLog(p, topic, replica.Options{Config: keeping(), Sole: true}, t0)
		if err != nil {
			t.Fatal(err)
		}
		x := &lab{t: t, mem: mem, fs: mem, dir: "/data/t-0", log: l, warns: &records{}}
		x.lead()
		return d, x
	}
	d, x := open(id(1))
	x.fill(20)
	x.deleteRecords(12)
	if err := d.Close(t0); err != nil {
		t.Fatal(err)
	}
	if err := mem.RemoveAll("/data/t-0"); err != nil {
		t.Fatal(err)
	}
	d, x = open(id(2))
	if x.log.LogStartOffset() != 0 || x.log.LogEndOffset() != 0 || x.log.HighWatermark() != 0 {
		t.Errorf("log [%d, %d), high watermark %d", x.log.LogStartOffset(), x.log.LogEndOffset(), x.log.HighWatermark())
	}
	if _, err := x.log.Read(nil, 99999, math.MaxInt64, 1); !errors.Is(err, replica.ErrOutOfRange) {
		t.Errorf("read at 99999 = %v", err)
	}
	x.fill(1)
	if err := d.Close(t0); err != nil {
		t.Fatal(err)
	}
	d, err := replica.OpenDir("/data", replica.DirOptions{FS: mem}, t0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.OpenLog(p, id(1), replica.Options{}, t0); !errors.Is(err, replica.ErrTopicID) {
		t.Errorf("the old topic id: %v", err)
	}
	if err := d.Close(t0); err != nil {
		t.Fatal(err)
	}
}

// TestRollsByAge: scenarios 131 to 134, and C173: no empty segment rolls.
func TestRollsByAge(t *testing.T) {
	at := func(ms int64) time.Time { return t0.Add(time.Duration(ms) * time.Millisecond) }
	app := func(x *lab, ts int64, now time.Time) {
		t.Helper()
		if _, err := x.log.AppendRecords([]record.Record{{Timestamp: ts, Value: []byte("v")}}, now); err != nil {
			t.Fatal(err)
		}
	}
	for _, tc := range []struct {
		name  string
		do    func(x *lab)
		bases []int64
	}{
		{"131 no timestamps, the clock counts", func(x *lab) {
			app(x, -1, at(5000)) // the segment was empty
			app(x, -1, at(5500))
			app(x, -1, at(6001))
			app(x, -1, at(6002))
		}, []int64{0, 2}},
		{"132 the clock passes, messages do not", func(x *lab) {
			app(x, at(0).UnixMilli(), at(0))
			app(x, at(900).UnixMilli(), at(5000))
			app(x, -1, at(90000))
			app(x, at(1000).UnixMilli(), at(90000))
		}, []int64{0}},
		{"132 a message passes", func(x *lab) {
			app(x, at(0).UnixMilli(), at(0))
			app(x, at(1001).UnixMilli(), at(0))
			app(x, at(1002).UnixMilli(), at(0))
		}, []int64{0, 1}},
		{"133 an append of nothing", func(x *lab) {
			app(x, at(0).UnixMilli(), at(0))
			if _, err := x.log.AppendRecords(nil, at(90000)); err != nil {
				t.Fatal(err)
			}
		}, []int64{0}},
		{"a record dated by the log", func(x *lab) {
			app(x, 0, at(0))
			app(x, 0, at(1000))
			app(x, 0, at(1001))
		}, []int64{0, 2}},
		{"reopened", func(x *lab) {
			app(x, at(0).UnixMilli(), at(0))
			x.close()
			x.open()
			app(x, at(1000).UnixMilli(), at(1000))
			x.kill()
			x.open()
			app(x, at(1001).UnixMilli(), at(1001))
		}, []int64{0, 2}},
		{"follower", func(x *lab) {
			x.follow(datedBatch(0, at(0).UnixMilli(), 10), datedBatch(1, at(1001).UnixMilli(), 10), datedBatch(2, at(1).UnixMilli(), 10))
		}, []int64{0, 1}},
		{"cut back to nothing", func(x *lab) {
			app(x, at(0).UnixMilli(), at(0))
			if err := x.log.Truncate(0); err != nil {
				t.Fatal(err)
			}
			x.lead()
			app(x, at(5000).UnixMilli(), at(5000))
			app(x, at(6000).UnixMilli(), at(6000))
		}, []int64{0}},
	} {
		for _, mode := range []replica.SyncMode{replica.Always, replica.Never} {
			c := keeping()
			c.SegmentMs = 1000
			x := newLab(t, replica.Options{Config: c, Sync: mode, Sole: true})
			tc.do(x)
			if got := x.segments(); !slices.Equal(got, tc.bases) {
				t.Errorf("%s, %v: segments %v, want %v", tc.name, mode, got, tc.bases)
			}
			x.verify()
		}
	}

	// Scenario 134: a bound of 1200 ms off 3600.
	drawn := map[int64]bool{}
	for range 20 {
		c := keeping()
		c.SegmentMs, c.SegmentJitterMs = 3600, 1200
		x := newLab(t, replica.Options{Config: c, SegmentBytes: 1 << 20, Sole: true})
		app(x, at(0).UnixMilli(), at(0))
		app(x, at(2400).UnixMilli(), at(0))
		if got := x.segments(); len(got) != 1 {
			t.Fatalf("rolled at 2400: %v", got)
		}
		ms := int64(2401)
		for ; x.log.Stats().Segments == 1 && ms < 4000; ms++ {
			app(x, at(ms).UnixMilli(), at(0))
		}
		if ms > 3602 {
			t.Errorf("rolled at %d", ms-1)
		}
		drawn[ms] = true
	}
	if len(drawn) < 5 {
		t.Errorf("logs roll together: %v", drawn)
	}
	// C173: a jitter above the age counts as the age. Segments stay longer than a
	// record, on average.
	c := keeping()
	c.SegmentBytes, c.SegmentMs, c.SegmentJitterMs = 64<<10, 1000, 5000
	x := newLab(t, replica.Options{Config: c, SegmentBytes: c.SegmentBytes, Sole: true})
	for i := range int64(200) {
		app(x, at(i*10).UnixMilli(), at(0))
	}
	if got := len(x.segments()); got > 40 {
		t.Errorf("%d segments of 200 records over 2 s", got)
	}
}

// TestScenario136_IndexFull: a segment whose index is full takes no more, and no
// segment is empty but the last.
func TestScenario136_IndexFull(t *testing.T) {
	c := keeping()
	c.SegmentBytes, c.SegmentIndexBytes, c.IndexIntervalBytes = 1<<20, 1<<10, 0
	x := newLab(t, replica.Options{Config: c, SegmentBytes: c.SegmentBytes, Sole: true})
	for range 400 {
		x.append(1, 20)
	}
	// 1,024 bytes are 128 offset entries, and 85 time entries, of which one is
	// kept for the end; the first batch has none.
	if got, want := x.segments(), []int64{0, 85, 170, 255, 340}; !slices.Equal(got, want) {
		t.Errorf("segments %v, want %v", got, want)
	}
	x.whole(0, 400)
	x.close()
	x.open()
	x.append(1, 20)
	x.whole(0, 401)
	x.kill()
	x.open()
	x.whole(0, 401)
	for _, base := range x.segments() {
		if n := len(x.timeEntries(base)); n > 85 && base != 340 {
			t.Errorf("time index of %d has %d entries", base, n)
		}
	}
}

// TestC134_Timestamps: limits and LogAppendTime as a leader applies them
// (log-format §2.8, scenarios 26 to 29); a follower takes what its leader took.
func TestC134_Timestamps(t *testing.T) {
	ms := t0.UnixMilli()
	build := func(spec record.Spec, ts ...int64) record.Batch {
		var w record.Builder
		var recs []record.Record
		for i, x := range ts {
			recs = append(recs, record.Record{Timestamp: x, Key: []byte("k"), Value: fmt.Append(nil, i)})
		}
		b, err := w.Build(recs, &spec)
		if err != nil {
			t.Fatal(err)
		}
		return slices.Clone(b)
	}
	plain, zstd := record.NewSpec(), record.NewSpec()
	zstd.Codec = record.Zstd
	for _, mode := range []replica.SyncMode{replica.Always, replica.Never} {
		c := keeping()
		c.TimestampBeforeMaxMs, c.TimestampAfterMaxMs = 1000, 500
		x := newLab(t, replica.Options{Config: c, SegmentBytes: 64 << 10, Sync: mode, Sole: true})
		for _, spec := range []record.Spec{plain, zstd} {
			end := x.log.LogEndOffset()
			_, err := x.log.Append(build(spec, ms, ms-1000, ms+501), replica.Client, t0)
			e, ok := errors.AsType[*record.ClientError](err)
			if !ok || e.Code != record.CodeInvalidTimestamp || len(e.Records) != 1 || e.Records[0].Index != 2 {
				t.Errorf("too far ahead: %v", err)
			}
			_, err = x.log.Append(build(spec, ms-1001, ms), replica.Client, t0)
			if e, ok := errors.AsType[*record.ClientError](err); !ok || e.Records[0].Index != 0 {
				t.Errorf("too far back: %v", err)
			}
			if x.log.LogEndOffset() != end {
				t.Fatal("something was appended")
			}
			if _, err = x.log.Append(build(spec, ms-1000, -1, ms+500), replica.Client, t0); err != nil {
				t.Errorf("within the limits: %v", err)
			}
		}
		x.follow(batchAt(6, 0, 1, 10), datedBatch(7, 1, 10)) // of 1970

		// By the leader's clock.
		c.TimestampType = record.LogAppendTime
		if err := x.log.SetConfig(*c); err != nil {
			t.Fatal(err)
		}
		x.lead()
		later := t0.Add(time.Minute)
		stamped := func(how string, offset int64) {
			t.Helper()
			b, err := x.log.Read(nil, offset, math.MaxInt64, 0)
			if err != nil {
				t.Fatalf("%s: %v", how, err)
			}
			batch, err := record.Check(b)
			if err != nil {
				t.Fatalf("%s: %v", how, err)
			}
			if batch.TimestampType() != record.LogAppendTime || batch.MaxTimestamp() != later.UnixMilli() {
				t.Errorf("%s: %v, largest timestamp %d", how, batch.TimestampType(), batch.MaxTimestamp())
			}
			for r, err := range batch.Records() {
				if err != nil || r.Timestamp != later.UnixMilli() {
					t.Errorf("%s: record %d has timestamp %d, %v", how, r.Offset, r.Timestamp, err)
				}
			}
		}
		sent := build(zstd, 1, 2, ms*2)
		before := bytes.Clone(sent)
		for how, add := range map[string]func() (replica.Appended, error){
			"client":  func() (replica.Appended, error) { return x.log.Append(sent, replica.Client, later) },
			"trusted": func() (replica.Appended, error) { return x.log.Append(sent, replica.Trusted, later) },
			"records": func() (replica.Appended, error) {
				return x.log.AppendRecords([]record.Record{{Timestamp: 5}, {}, {Timestamp: -1}}, later)
			},
		} {
			a, err := add()
			if err != nil || a.End != a.Base+3 {
				t.Fatalf("%s: %+v, %v", how, a, err)
			}
			stamped(how, a.Base)
			if !bytes.Equal(sent, before) {
				t.Errorf("%s: the caller's batch changed", how)
			}
		}
		spec := plain
		spec.TimestampType, spec.Now = record.LogAppendTime, ms
		_, err := x.log.Append(build(spec, ms), replica.Client, t0)
		if e, ok := errors.AsType[*record.ClientError](err); !ok || e.Code != record.CodeInvalidTimestamp {
			t.Errorf("append time from a client: %v", err)
		}
		if got, _, ok, err := x.log.OffsetForTime(ms+1000, math.MaxInt64); err != nil || !ok || got != 8 {
			t.Errorf("offset by append time = %d, %v, %v", got, ok, err)
		}
		x.verify()
	}
}

// TestC071_NullKey: a compacted log takes no record without a key; nothing of its
// batch is appended.
func TestC071_NullKey(t *testing.T) {
	c := keeping()
	c.Compact = true
	x := newLab(t, replica.Options{Config: c, SegmentBytes: 64 << 10, Sole: true})
	recs := []record.Record{{Timestamp: 1, Key: []byte("a")}, {Timestamp: 1, Value: []byte("v")}, {Timestamp: 1, Key: []byte{}}}
	var w record.Builder
	spec := record.NewSpec()
	b, err := w.Build(recs, &spec)
	if err != nil {
		t.Fatal(err)
	}
	_, clientErr := x.log.Append(b, replica.Client, t0)
	_, recordsErr := x.log.AppendRecords(recs, t0)
	for how, err := range map[string]error{"client": clientErr, "records": recordsErr} {
		e, ok := errors.AsType[*record.ClientError](err)
		if !ok || e.Code != record.CodeInvalidRecord || len(e.Records) != 1 || e.Records[0].Index != 1 {
			t.Errorf("%s: %v", how, err)
		}
	}
	if x.log.LogEndOffset() != 0 {
		t.Error("something was appended")
	}
	recs[1].Key = []byte("b")
	if _, err := x.log.AppendRecords(recs, t0); err != nil {
		t.Error(err)
	}
}

// TestSegmentLimit: Kafka's code for a batch that no segment takes (scenario 149).
func TestSegmentLimit(t *testing.T) {
	x := keepingLab(t, keeping(), true) // batches up to 64 KiB, segments of 4 KiB
	var w record.Builder
	spec := record.NewSpec()
	b, err := w.Build([]record.Record{{Timestamp: 1, Value: make([]byte, 5000)}}, &spec)
	if err != nil {
		t.Fatal(err)
	}
	_, err = x.log.Append(b, replica.Client, t0)
	if e, ok := errors.AsType[*record.ClientError](err); !ok || e.Code != record.CodeRecordListTooLarge || !errors.Is(err, replica.ErrTooLarge) {
		t.Errorf("client: %v; want RECORD_LIST_TOO_LARGE", err)
	}
	if _, err := x.log.AppendRecords([]record.Record{{Value: make([]byte, 5000)}}, t0); !errors.Is(err, replica.ErrTooLarge) {
		t.Errorf("records: %v", err)
	}
}

// TestNestedFolder: a data folder made with its parents is there after a power
// cut, with what was synced in it.
func TestNestedFolder(t *testing.T) {
	mem := vfs.NewMem(vfs.MemOptions{})
	for round := range 2 {
		d, err := replica.OpenDir("/a/b/data", replica.DirOptions{FS: mem}, t0)
		if err != nil {
			t.Fatal(err)
		}
		l, err := d.OpenLog(replica.TopicPartition{Topic: "t"}, replica.UUID{}, replica.Options{}, t0)
		if err != nil {
			t.Fatal(err)
		}
		if end := l.LogEndOffset(); end != int64(round) {
			t.Fatalf("log ends at %d after a power cut, want %d", end, round)
		}
		x := &lab{t: t, log: l}
		x.lead()
		x.fill(1)
		mem = mem.PowerCut(rand.New(rand.NewPCG(3, uint64(round))))
	}
}
