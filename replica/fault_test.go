package replica

import (
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"math"
	"math/rand/v2"
	"path"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tidemark-log/tidemark/internal/vfs"
	"github.com/tidemark-log/tidemark/record"
	"github.com/tidemark-log/tidemark/segment"
)

// The tests here fail every call that the log makes of the file system, one at
// a time, and fill the disk at every allocation (replication R8, F13, F14; C028,
// C047). One fixed story touches everything a log does; it is told once to
// count the calls, and once more for each of them.

const (
	faultDir   = "/t-0"
	faultCopy  = "/copy"
	faultBytes = 4 << 10 // of a segment
)

var faultTime = time.UnixMilli(1_700_000_000_000)

// story is what a log should hold: batches, each with a number that no other
// has, so that what was cut and what took its place can be told apart.
type story struct {
	start, end int64
	batches    []told // never written to in place
}

type told struct {
	base, last int64
	serial     uint64
}

func (s story) add(base, last int64, serial uint64) story {
	s.batches = append(slices.Clip(s.batches), told{base, last, serial})
	s.end = last + 1
	return s
}

func (s story) cut(to int64) story {
	if to < s.end {
		s.batches = slices.DeleteFunc(slices.Clone(s.batches), func(b told) bool { return b.last >= to })
		s.end = to
	}
	return s
}

// upToGap returns where the first gap above offset from begins, or the end.
func (s story) upToGap(from int64) int64 {
	at := s.start
	for _, b := range s.batches {
		if b.base > at && at >= from {
			return at
		}
		at = b.last + 1
	}
	return s.end
}

// serials returns what a log [start, end) holds at each offset, by the story.
func (s story) serials(start, end int64) map[int64]uint64 {
	m := map[int64]uint64{}
	for _, b := range s.batches {
		for o := max(b.base, start); o <= b.last && b.last < end; o++ {
			m[o] = b.serial
		}
	}
	return m
}

// faultLog is a log, what it should hold and a file system that fails.
type faultLog struct {
	t      testing.TB
	mem    *vfs.Mem
	faulty *vfs.Faulty
	o      Options
	l      *Log
	serial uint64

	want, next story // as of the last step that succeeded, and if the present one does
	synced     int64 // largest SyncedEnd told since the last cut
}

func newFaultLog(t testing.TB, mode SyncMode) *faultLog {
	x := &faultLog{t: t, mem: vfs.NewMem(vfs.MemOptions{})}
	x.o = Options{Sync: mode, SegmentBytes: faultBytes, IndexIntervalBytes: 200, PopulateBytes: 4 << 10}
	x.use(x.mem)
	return x
}

// use goes on with another disk, without faults.
func (x *faultLog) use(mem *vfs.Mem) {
	x.mem, x.faulty = mem, vfs.NewFaulty(mem)
	x.o.FS, x.o.Maps = x.faulty, segment.NewMaps(1000)
}

// must runs a step that has no reason to fail.
func (x *faultLog) must(name string, f func() error) {
	x.t.Helper()
	if err := x.do(f); err != nil {
		x.t.Fatalf("%s: %v", name, err)
	}
}

// do runs a step.
func (x *faultLog) do(f func() error) error {
	x.next = x.want
	x.tell()
	err := f()
	x.tell()
	if err == nil {
		x.want = x.next
	}
	x.synced = min(x.synced, x.next.end)
	return err
}

// tell notes what counts as synced.
func (x *faultLog) tell() {
	if x.l != nil {
		x.synced = max(x.synced, x.l.SyncedEnd())
	}
}

func (x *faultLog) open() (err error) {
	l, err := Open(faultDir, x.o, faultTime)
	if err == nil {
		x.l = l
	}
	return err
}

func (x *faultLog) close() error { return x.l.Close(faultTime) }

func (x *faultLog) lead(epoch int32) func() error {
	return func() error { return x.l.BeginEpoch(epoch) }
}

func (x *faultLog) records(n, size int) []record.Record {
	x.serial++
	recs := make([]record.Record, n)
	for i := range recs {
		v := make([]byte, max(size, 8))
		binary.BigEndian.PutUint64(v, x.serial)
		for k := range v[8:] {
			v[8+k] = byte(x.serial) + byte(k)*7
		}
		recs[i] = record.Record{Value: v, Timestamp: faultTime.UnixMilli() + int64(x.serial)}
	}
	return recs
}

func (x *faultLog) append(n, size int) func() error {
	return func() error {
		recs := x.records(n, size)
		x.next = x.want.add(x.want.end, x.want.end+int64(n)-1, x.serial)
		a, err := x.l.AppendRecords(recs, faultTime)
		if err == nil && (a.Base != x.want.end || a.End != x.next.end) {
			x.t.Errorf("append at %d answered [%d, %d)", x.want.end, a.Base, a.End)
		}
		if err != nil && a != (Appended{}) {
			x.t.Errorf("append failed by %v and answered %+v", err, a)
		}
		return err
	}
}

// follow appends a leader's batch behind a gap.
func (x *faultLog) follow(gap int64, epoch int32, n, size int) func() error {
	return func() error {
		recs := x.records(n, size)
		base := x.want.end + gap
		x.next = x.want.add(base, base+int64(n)-1, x.serial)
		spec := record.NewSpec()
		spec.BaseOffset, spec.LeaderEpoch = base, epoch
		_, err := x.l.Append(record.Encode(make([]byte, record.Size(recs, 0)), recs, &spec), Follower, faultTime)
		return err
	}
}

func (x *faultLog) sync() error { return x.l.SyncNow() }

func (x *faultLog) syncSealed() error {
	s := x.l.StartSealedSync(faultTime)
	if s == nil {
		return x.l.Err()
	}
	return x.l.FinishSync(s, s.Wait())
}

func (x *faultLog) maintain() error {
	_, err := x.l.Maintain(faultTime.Add(-time.Hour))
	return err
}

// deleteRecords drops all below the high watermark but one.
func (x *faultLog) deleteRecords() error {
	to := x.l.HighWatermark() - 1
	x.next.start = max(x.next.start, to)
	return x.l.DeleteRecords(to)
}

// deleteFiles has Maintain remove what lies below the log start, and then its
// renamed files.
func (x *faultLog) deleteFiles() error {
	if _, err := x.l.Maintain(faultTime); err != nil {
		return err
	}
	_, err := x.l.Maintain(faultTime.Add(time.Hour))
	return err
}

func (x *faultLog) truncate(to int64) func() error {
	return func() error {
		x.next = x.want.cut(to)
		return x.l.Truncate(to)
	}
}

func (x *faultLog) restart(at int64) func() error {
	return func() error {
		x.next = story{start: at, end: at}
		return x.l.TruncateFullyAndStartAt(at)
	}
}

// raise moves the high watermark, which cannot fail.
func (x *faultLog) raise() error { x.l.SetHighWatermark(math.MaxInt64); return nil }

func (x *faultLog) backup() error {
	err := x.l.Backup(faultCopy)
	if err != nil {
		if _, serr := x.mem.Stat(faultCopy); !errors.Is(serr, fs.ErrNotExist) && !strings.Contains(err.Error(), "remove") {
			x.t.Errorf("backup failed by %v and left its directory behind", err)
		}
	}
	return err
}

// read reads everything, by each way to read.
func (x *faultLog) read() error {
	got, err := contents(x.l)
	if err != nil {
		return err
	}
	for offset, serial := range got {
		r, _, ok, err := x.l.Get(offset, math.MaxInt64, nil)
		if err != nil {
			return err
		}
		if !ok || r.Offset != offset || binary.BigEndian.Uint64(r.Value) != serial {
			x.t.Errorf("get %d = %d, %v, %x", offset, r.Offset, ok, r.Value)
		}
	}
	_, _, _, err = x.l.OffsetForTime(faultTime.UnixMilli()+5, math.MaxInt64)
	if err != nil {
		return err
	}
	x.l.EndOffsetFor(1)
	return x.l.Verify(0, math.MaxInt64, func(e *CorruptError) bool {
		err := error(e)
		for ; err != nil; err = errors.Unwrap(err) {
			if e, ok := err.(*fs.PathError); ok && (e.Err == syscall.EIO || e.Err == syscall.ENOSPC) {
				return true // of the disk, not of the log
			}
		}
		x.t.Errorf("Verify: %v", e)
		return true
	})
}

// contents returns the number of the batch that each offset came with.
func contents(l *Log) (map[int64]uint64, error) {
	m := map[int64]uint64{}
	end := l.LogEndOffset()
	for offset := l.LogStartOffset(); offset < end; {
		b, err := l.Read(nil, offset, end, 1<<20)
		if err != nil {
			return nil, err
		}
		if len(b) == 0 {
			break
		}
		for len(b) > 0 {
			batch, err := record.Check(b)
			if err != nil {
				return nil, err
			}
			for r, err := range batch.Records() {
				if err != nil {
					return nil, err
				}
				if r.Offset >= l.LogStartOffset() {
					m[r.Offset] = binary.BigEndian.Uint64(r.Value)
				}
			}
			b, offset = b[len(batch):], batch.NextOffset()
		}
	}
	return m, nil
}

// A step is one call of the log that may fail; where it does, it can be made
// once more, unless the log has failed.
type step struct {
	name string
	do   func() error
}

// whole is the story that touches everything.
func (x *faultLog) whole() (steps []step) {
	add := func(name string, do func() error) { steps = append(steps, step{name, do}) }
	add("open a new log", x.open)
	add("begin epoch 0", x.lead(0))
	for range 3 {
		add("append", x.append(3, 200))
	}
	add("sync", x.sync)
	add("raise", x.raise)
	for range 6 {
		add("append", x.append(3, 200))
		add("maintain", x.maintain)
	}
	add("sync over a roll", x.sync)
	for range 8 {
		add("append", x.append(2, 400))
	}
	add("sync sealed", x.syncSealed)
	add("append", x.append(1, 10))
	add("sync", x.sync)
	add("raise", x.raise)
	add("read", x.read)
	add("backup", x.backup)
	add("truncate inside a batch", x.truncate(38))
	add("begin epoch 1", x.lead(1))
	add("append", x.append(4, 300))
	add("truncate into a segment the backup shares", x.truncate(14))
	add("begin epoch 2", x.lead(2))
	for range 3 {
		add("append", x.append(2, 500))
		add("sync", x.sync)
	}
	add("follow epoch 3 behind a gap", x.follow(5, 3, 2, 200))
	for range 4 {
		add("follow", x.follow(0, 3, 2, 700))
	}
	add("follow behind a gap and a roll", x.follow(7, 3, 1, 3000))
	add("sync", x.sync)
	add("begin epoch 4", x.lead(4))
	add("truncate at the end, of an epoch nothing was written in", func() error { return x.l.Truncate(math.MaxInt64) })
	add("begin epoch 5", x.lead(5))
	add("append", x.append(2, 500))
	add("close", x.close)
	add("open a closed log", x.open)
	add("begin epoch 5", x.lead(5))
	add("append", x.append(2, 500))
	add("sync", x.sync)
	add("raise", x.raise)
	add("delete records", x.deleteRecords)
	add("delete their files", x.deleteFiles)
	add("append", x.append(2, 500))
	add("close", x.close)
	add("open a log that lost its beginning", x.open)
	add("begin epoch 5", x.lead(5))
	add("restart", x.restart(1000))
	add("begin epoch 6", x.lead(6))
	add("append", x.append(2, 500))
	add("sync", x.sync)
	add("append", x.append(2, 500))
	add("close", x.close)
	return steps
}

// settled says what a log must hold after something went wrong: at least what
// lies below floor of both stories, and nothing that is in neither.
func (x *faultLog) settled(l *Log, floor int64, when string) {
	x.t.Helper()
	if d := l.Damage(); d != nil {
		x.t.Fatalf("%s: damage: %v", when, d)
	}
	got, err := contents(l)
	if err != nil {
		x.t.Fatalf("%s: read: %v", when, err)
	}
	start, end := l.LogStartOffset(), l.LogEndOffset()
	if hw := l.HighWatermark(); hw < start || hw > end {
		x.t.Fatalf("%s: high watermark %d of log [%d, %d)", when, hw, start, end)
	}
	if end < min(floor, x.want.end, x.next.end) || end > max(x.want.end, x.next.end) {
		x.t.Fatalf("%s: log ends at %d; want %d to %d", when, end, min(floor, x.want.end, x.next.end), max(x.want.end, x.next.end))
	}
	fits := func(s story) bool {
		if s.start > start || len(s.batches) > 0 && start > s.start && end > start {
			return false
		}
		want := s.serials(start, end)
		if len(got) != len(want) {
			return false
		}
		for o, serial := range want {
			if got[o] != serial {
				return false
			}
		}
		return true
	}
	if !fits(x.want) && !fits(x.next) {
		x.t.Fatalf("%s: log [%d, %d) holds %v; want it as of\n%+v or\n%+v", when, start, end, got, x.want, x.next)
	}
	err = l.Verify(0, math.MaxInt64, func(e *CorruptError) bool { x.t.Errorf("%s: Verify: %v", when, e); return true })
	if err != nil {
		x.t.Fatal(err)
	}
}

// reopen opens what a life with a fault left, without faults, and checks that
// it goes on and that what it says is on disk is.
func (x *faultLog) reopen(mem *vfs.Mem, floor int64, when string) {
	x.t.Helper()
	failed := false
	if s, err := readSlot(mem, faultDir); err == nil {
		failed = s.flags&flagFailed != 0
	}
	if failed {
		// The page cache is not to be trusted: behind a gap that no sync covered,
		// which may be a tail that was lost, nothing counts (R14).
		floor = min(floor, x.want.upToGap(x.synced), x.next.upToGap(x.synced))
	}
	before := inodes(mem)
	x.use(mem)
	if err := x.open(); err != nil {
		x.t.Fatalf("%s: reopen: %v", when, err)
	}
	l := x.l
	x.settled(l, floor, when)
	if failed && before != nil {
		// What was not synced is not trusted in place.
		active := l.active.Load()
		if i, err := mem.Stat(l.path(active.Name())); err != nil || before[active.Name()] == i.Inode {
			x.t.Fatalf("%s: the log had failed, and %s is the same file as before: %v", when, active.Name(), err)
		}
	}
	// The story so far is what was found.
	now := x.want
	if x.next.end == l.LogEndOffset() || l.LogStartOffset() == x.next.start && x.want.start != x.next.start {
		now = x.next
	}
	got, _ := contents(l)
	if !slices.Equal(sortedPairs(got), sortedPairs(now.serials(l.LogStartOffset(), l.LogEndOffset()))) {
		now = x.want
		if !slices.Equal(sortedPairs(got), sortedPairs(now.serials(l.LogStartOffset(), l.LogEndOffset()))) {
			now = x.next
		}
	}
	now = now.cut(l.LogEndOffset())
	now.start, now.end = l.LogStartOffset(), l.LogEndOffset()
	x.want, x.next = now, now
	x.synced = l.SyncedEnd()
	if s, err := readSlot(mem, faultDir); err != nil || s.flags&flagFailed != 0 || (s.flags&flagClean != 0) != l.asleep.Load() {
		x.t.Fatalf("%s: after a reopen the slot has flags %#x, %v", when, s.flags, err)
	}
	x.onDisk(mem, when+", reopened")

	x.must(when+": begin epoch", x.lead(max(l.Stats().LeaderEpoch, 0)))
	x.must(when+": append", x.append(3, 100))
	x.must(when+": sync", x.sync)
	if x.synced != x.want.end {
		x.t.Fatalf("%s: synced to %d of %d", when, x.synced, x.want.end)
	}
	x.onDisk(mem, when+", reopened and synced")
	x.must(when+": close", x.close)
	if n := x.o.Maps.Count(); n != 0 {
		x.t.Fatalf("%s: %d maps are left behind", when, n)
	}
}

// onDisk checks that all that counts as synced outlives a power cut.
func (x *faultLog) onDisk(mem *vfs.Mem, when string) {
	x.t.Helper()
	cut := *x
	cut.use(mem.PowerCut(dropAll()))
	cut.mem.SetCapacity(0)
	if err := cut.open(); err != nil {
		x.t.Fatalf("%s, power cut: open: %v", when, err)
	}
	cut.settled(cut.l, x.synced, when+", power cut")
	cut.l.Close(faultTime)
}

func inodes(mem *vfs.Mem) map[string]uint64 {
	infos, err := mem.List(faultDir)
	if err != nil {
		return nil
	}
	m := map[string]uint64{}
	for _, i := range infos {
		m[i.Name] = i.Inode
	}
	return m
}

func sortedPairs(m map[int64]uint64) (out []told) {
	for o, s := range m {
		out = append(out, told{o, o, s})
	}
	slices.SortFunc(out, func(a, b told) int { return int(a.base - b.base) })
	return out
}

// ways in which a life with a fault ends.
var faultEnds = []string{"close", "kill", "power cut"}

// endLife ends a life as one of faultEnds and opens what is left.
func (x *faultLog) endLife(end, when string, rng *rand.Rand) {
	x.t.Helper()
	mem, floor := x.mem, int64(math.MaxInt64)
	switch end {
	case "close":
		x.faulty.SetRules()
		if x.l != nil {
			failed := x.l.Err()
			err := x.l.Close(faultTime)
			if failed != nil && !errors.Is(err, ErrFailed) {
				x.t.Fatalf("%s: close = %v; want %v", when, err, failed)
			}
			if again := x.l.Close(faultTime); again != err {
				x.t.Fatalf("%s: closed again: %v; want %v", when, again, err)
			}
			if n := x.o.Maps.Count(); n != 0 {
				x.t.Fatalf("%s: %d maps are left behind by Close", when, n)
			}
		}
	case "kill":
		mem = mem.Kill()
	case "power cut":
		mem, floor = mem.PowerCut(rng), x.synced
	}
	x.reopen(mem, floor, when+", "+end)
}

// guard turns a panic of the log into a failure that names what was done.
func guard(t testing.TB, when func() string) {
	if p := recover(); p != nil {
		t.Fatalf("%s: panic: %v\n%s", when(), p, debug.Stack())
	}
}

// sticky are the operations whose failure ends the log for this life (R8).
const sticky = vfs.OpWrite | vfs.OpStartSync | vfs.OpFinishSync | vfs.OpSyncDir

// aFault is one call to fail.
type aFault struct {
	op    vfs.Op
	nth   int // of its operation
	name  string
	err   error
	count int // 1: once, 0: from then on
	short int
}

func (f aFault) rule() vfs.Rule {
	return vfs.Rule{Ops: f.op, After: f.nth, Count: f.count, Err: f.err, Short: f.short}
}

func (f aFault) String() string {
	s := fmt.Sprintf("%v at %v %d of %s", f.err, f.op, f.nth, f.name)
	if f.count == 0 {
		s += " and all after it"
	}
	if f.short > 0 {
		s += fmt.Sprintf(", %d bytes done", f.short)
	}
	return s
}

// allFaults says that no call is left out, which takes half a minute: -long.
func allFaults() bool {
	f := flag.Lookup("long")
	return f != nil && f.Value.String() == "true"
}

// faultsOf makes the faults of each call that was seen.
func faultsOf(calls []vfs.Call) (list []aFault) {
	seen := map[vfs.Op]int{}
	for _, c := range calls {
		f := aFault{op: c.Op, nth: seen[c.Op], name: path.Base(c.Name), err: syscall.EIO, count: 1}
		seen[c.Op]++
		list = append(list, f)
		f.count = 0
		list = append(list, f)
		switch c.Op {
		case vfs.OpAllocate, vfs.OpFinishSync:
			f.err, f.count = syscall.ENOSPC, 1
			list = append(list, f)
		case vfs.OpWrite:
			f.err, f.count, f.short = syscall.ENOSPC, 1, int(c.N)/2
			list = append(list, f)
			f.err, f.short = syscall.EIO, int(c.N)
			list = append(list, f)
		}
	}
	return list
}

// TestC047_EveryCall: each call that a log makes of the file system fails in
// turn, once or from then on. The step that made it says so, and never by a
// panic; after a write or a sync nothing counts any more in this life, and the
// flag is in the slot before the error is returned (R8); after anything else the
// step can be made again. Whatever end that life takes, the next finds all that
// was synced, and after a kill all that was appended, and nothing that was cut.
func TestC047_EveryCall(t *testing.T) {
	for _, mode := range []SyncMode{Always, Interval, Never} {
		t.Run(mode.String(), func(t *testing.T) {
			t.Parallel()
			x := newFaultLog(t, mode)
			for _, s := range x.whole() {
				x.must(s.name, s.do)
			}
			faults := faultsOf(x.faulty.Calls())
			t.Logf("%d faults", len(faults))
			hit := map[vfs.Op]int{}
			for i, f := range faults {
				if i%11 != 0 && hit[f.op] > 8 && !allFaults() {
					continue
				}
				x.fault(t, f, faultEnds[i%len(faultEnds)], rand.New(rand.NewPCG(uint64(i), 47)))
				hit[f.op]++
			}
			for _, op := range []vfs.Op{vfs.OpOpen, vfs.OpCreate, vfs.OpStat, vfs.OpList, vfs.OpMkdir, vfs.OpRemove, vfs.OpRename,
				vfs.OpLink, vfs.OpSyncDir, vfs.OpLock, vfs.OpRead, vfs.OpWrite, vfs.OpTruncate, vfs.OpAllocate, vfs.OpMap,
				vfs.OpStartSync, vfs.OpFinishSync, vfs.OpClose, vfs.OpUnmap} {
				if hit[op] == 0 {
					t.Errorf("no %v failed", op)
				}
			}
		})
	}
}

// fault tells the story with one fault.
func (*faultLog) fault(t *testing.T, f aFault, end string, rng *rand.Rand) {
	x := newFaultLog(t, f.mode(t))
	x.faulty.SetRules(f.rule())
	when := f.String()
	defer guard(t, func() string { return when })
	for i, s := range x.whole() {
		when = fmt.Sprintf("%v, step %d, %s", f, i, s.name)
		x.faulty.ResetCalls()
		err := x.do(s.do)
		if !slices.ContainsFunc(x.faulty.Calls(), func(c vfs.Call) bool { return isFault(c.Err, f) }) {
			if err != nil {
				t.Fatalf("%s: %v, before the fault", when, err)
			}
			continue
		}
		x.afterFault(f, s, err, when)
		x.endLife(end, when, rng)
		return
	}
	t.Fatalf("%v did not happen", f)
}

// mode is that of the subtest.
func (f aFault) mode(t *testing.T) SyncMode {
	for _, m := range []SyncMode{Always, Interval, Never} {
		if strings.Contains(t.Name(), "/"+m.String()) {
			return m
		}
	}
	return Always
}

func isFault(err error, f aFault) bool { return err != nil && errors.Is(err, f.err) }

// afterFault checks what a log owes the step that met a fault.
func (x *faultLog) afterFault(f aFault, s step, err error, when string) {
	t := x.t
	t.Helper()
	if err != nil && !errors.Is(err, f.err) && !errors.Is(err, ErrFailed) {
		t.Fatalf("%s: error %v does not name the fault", when, err)
	}
	if x.l == nil {
		if err == nil {
			t.Fatalf("%s: no log and no error", when)
		}
		return
	}
	if f.op&sticky != 0 && s.name != "backup" { // whose files are not the log's
		if err == nil {
			t.Fatalf("%s: the fault was swallowed", when)
		}
		opened := strings.HasPrefix(s.name, "open") // failed: no log
		if !opened && x.l.Err() == nil && s.name != "close" {
			t.Fatalf("%s: %v does not stick", when, err)
		}
	}
	if f.op == vfs.OpAllocate && x.l.Err() != nil && !strings.HasPrefix(s.name, "open") &&
		s.name != "close" && !isCut(s) {
		t.Fatalf("%s: a full disk at allocation stuck: %v", when, x.l.Err())
	}
	if strings.HasPrefix(s.name, "open") || s.name == "close" {
		return
	}
	if x.l.Err() == nil {
		x.goesOn(f, s, err, when)
		return
	}
	if st, serr := readSlot(x.mem, faultDir); serr != nil || st.flags&flagFailed == 0 {
		t.Fatalf("%s: the error was returned and the slot has flags %#x, %v", when, st.flags, serr)
	}
	x.isDead(s, when)
}

// isDead checks that a log that has failed does nothing that counts any more,
// though the disk works again.
func (x *faultLog) isDead(s step, when string) {
	t, l := x.t, x.l
	t.Helper()
	x.faulty.SetRules()
	synced, end, hw := l.SyncedEnd(), l.LogEndOffset(), l.HighWatermark()
	if l.StartSync() != nil || l.StartSealedSync(faultTime.Add(time.Hour)) != nil {
		t.Fatalf("%s: a sync starts after a failure", when)
	}
	refused := map[string]error{
		"SyncNow": l.SyncNow(), "BeginEpoch": l.BeginEpoch(100), "Truncate": l.Truncate(0), "TruncateFullyAndStartAt": l.TruncateFullyAndStartAt(0),
		"Writable": l.Writable(), "DeleteRecords": l.DeleteRecords(0), "SetLogStart": l.SetLogStart(0),
	}
	_, refused["AppendRecords"] = l.AppendRecords(x.records(1, 10), faultTime)
	for name, err := range refused {
		if !errors.Is(err, ErrFailed) {
			t.Fatalf("%s: %s = %v after a failure", when, name, err)
		}
	}
	if n, err := l.Maintain(faultTime); n != (Next{}) || err != nil {
		t.Fatalf("%s: Maintain = %+v, %v after a failure", when, n, err)
	}
	if l.SyncedEnd() != synced || l.LogEndOffset() != end || l.HighWatermark() != hw || l.CountedEnd() > end {
		t.Fatalf("%s: ends moved after a failure", when)
	}
	if c, err := contents(l); err != nil {
		if s.name != "restart" { // which was to drop everything, and had begun
			t.Fatalf("%s: read after a failure: %v", when, err)
		}
	} else if len(c) == 0 && x.want.end > x.want.start && x.next.end > x.next.start {
		t.Fatalf("%s: nothing can be read after a failure", when)
	}
}

// goesOn checks that a log that has not failed is as before the step, or after
// it, and that the step can be made again.
func (x *faultLog) goesOn(f aFault, s step, err error, when string) {
	t := x.t
	t.Helper()
	x.faulty.SetRules()
	if err == nil {
		if x.l.LogEndOffset() != x.want.end {
			t.Fatalf("%s: log ends at %d; want %d", when, x.l.LogEndOffset(), x.want.end)
		}
	} else {
		if x.l.LogEndOffset() != x.want.end || x.l.LogStartOffset() != x.want.start {
			t.Fatalf("%s: failed by %v, which does not stick, and left the log [%d, %d); want [%d, %d)",
				when, err, x.l.LogStartOffset(), x.l.LogEndOffset(), x.want.start, x.want.end)
		}
		if err := x.do(s.do); err != nil {
			t.Fatalf("%s: made again: %v", when, err)
		}
	}
	x.next = x.want
	x.settled(x.l, math.MaxInt64, when+", made again")
	if x.l.epoch.Load() != noEpoch {
		x.must(when+": append", x.append(2, 300))
		x.must(when+": sync", x.sync)
	}
	x.onDisk(x.mem, when+", made again")
}

// TestR8_SyncUnderWay: a write fails while a sync is under way. The sync itself
// succeeds, and yet nothing is acknowledged by it; nor is anything by a sync that
// failed once and whose file syncs well ever after.
func TestR8_SyncUnderWay(t *testing.T) {
	x := newFaultLog(t, Always)
	x.o.Sole = true
	x.must("open", x.open)
	x.must("begin epoch", x.lead(0))
	x.must("append", x.append(3, 100))
	x.must("sync", x.sync)
	x.must("append", x.append(2, 100))
	told := 0
	x.l.o.Notify = func(Change) { told++ }
	s := x.l.StartSync()
	x.faulty.SetRules(vfs.Rule{Ops: vfs.OpWrite, Count: 1, Err: syscall.EIO})
	if err := x.do(x.append(1, 100)); !errors.Is(err, ErrFailed) || !errors.Is(err, syscall.EIO) {
		t.Fatalf("append = %v", err)
	}
	if err := s.Wait(); err != nil {
		t.Fatal(err)
	}
	if err := x.l.FinishSync(s, nil); !errors.Is(err, ErrFailed) {
		t.Errorf("FinishSync = %v after a write failed", err)
	}
	if x.l.SyncedEnd() != 3 || x.l.CountedEnd() != 3 || x.l.HighWatermark() != 3 || x.l.LogEndOffset() != 5 {
		t.Errorf("synced %d, counted %d, high watermark %d, end %d; want 3, 3, 3, 5",
			x.l.SyncedEnd(), x.l.CountedEnd(), x.l.HighWatermark(), x.l.LogEndOffset())
	}
	if told == 0 {
		t.Error("who waits for the sync was not told")
	}
	x.isDead(step{}, "write failed")
	x.endLife("close", "write failed", nil)
}

// TestR8_LostPages: after a sync that failed the page cache shows what the disk
// never got, and syncing the file again would not write it. The next life, of the
// same boot, writes it to new files: then it outlives a power cut.
func TestR8_LostPages(t *testing.T) {
	for _, mode := range []SyncMode{Always, Interval, Never} {
		t.Run(mode.String(), func(t *testing.T) {
			x := newFaultLog(t, mode)
			x.must("open", x.open)
			x.must("begin epoch", x.lead(0))
			x.must("append", x.append(3, 100))
			x.must("sync", x.sync)
			for range 20 { // sealed segments as well
				x.must("append", x.append(3, 200))
			}
			end := x.want.end
			x.faulty.SetRules(vfs.Rule{Ops: vfs.OpFinishSync, Glob: "*.log*", Err: syscall.EIO})
			x.next = x.want
			if err := x.sync(); !errors.Is(err, ErrFailed) {
				t.Fatalf("sync = %v", err)
			}
			if x.l.SyncedEnd() != 3 {
				t.Fatalf("synced to %d after a failed sync; want 3", x.l.SyncedEnd())
			}
			// What the disk has now, whatever any sync says.
			cut := *x
			cut.use(x.mem.PowerCut(dropAll()))
			if err := cut.open(); err != nil {
				t.Fatal(err)
			}
			cut.settled(cut.l, 3, "power cut")
			if cut.l.LogEndOffset() == end {
				t.Fatal("nothing is lost: the test tests nothing")
			}
			x.use(x.mem.Kill())
			x.must("reopen", x.open)
			x.settled(x.l, end, "reopened")
			x.must("begin epoch", x.lead(0))
			x.must("sync", x.sync)
			x.tell()
			if x.synced != end {
				t.Fatalf("synced to %d of %d", x.synced, end)
			}
			x.onDisk(x.mem, "reopened and synced")
		})
	}
}

// TestR8_RestartFails: a restart at or above the end that fails before the log begins
// there acknowledges nothing, and the ends keep their order.
func TestR8_RestartFails(t *testing.T) {
	for _, at := range []int64{5, 1000} {
		x := newFaultLog(t, Always)
		x.must("open", x.open)
		x.must("begin epoch", x.lead(0))
		x.must("append", x.append(3, 100))
		x.must("sync", x.sync)
		x.must("append", x.append(2, 100))
		x.faulty.SetRules(vfs.Rule{Ops: vfs.OpFinishSync, Glob: slotName, Err: syscall.EIO})
		if err := x.do(x.restart(at)); !errors.Is(err, ErrFailed) {
			t.Fatalf("restart at %d = %v", at, err)
		}
		l := x.l
		if l.SyncedEnd() > 3 || l.LogStartOffset() > l.HighWatermark() || l.HighWatermark() > l.LogEndOffset() {
			t.Errorf("restart at %d failed: log start %d, high watermark %d, synced %d, end %d; 3 were synced",
				at, l.LogStartOffset(), l.HighWatermark(), l.SyncedEnd(), l.LogEndOffset())
		}
		x.endLife("kill", fmt.Sprintf("restart at %d failed", at), nil)
	}
}

func readAllOf(t testing.TB, mem *vfs.Mem, name string) []byte {
	t.Helper()
	b, err := vfs.ReadFile(mem, name, 1<<30)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func writeAt(t testing.TB, mem *vfs.Mem, name string, b []byte, at int64) {
	t.Helper()
	f, err := mem.Open(name, vfs.ReadWrite)
	if err != nil {
		t.Fatal(err)
	}
	_, werr := f.WriteAt(b, at)
	if err := errors.Join(werr, f.Close()); err != nil {
		t.Fatal(err)
	}
}

func writeAllOf(t testing.TB, mem *vfs.Mem, name string, b []byte) {
	t.Helper()
	writeAt(t, mem, name, b, 0)
}

// folder describes the names and contents of the log's directory.
func folder(t testing.TB, mem *vfs.Mem) string {
	t.Helper()
	infos, err := mem.List(faultDir)
	if err != nil {
		t.Fatal(err)
	}
	var s strings.Builder
	for _, i := range infos {
		fmt.Fprintf(&s, "%s %d %x\n", i.Name, i.Inode, readAllOf(t, mem, path.Join(faultDir, i.Name)))
	}
	return s.String()
}

// A wreck is what a life left behind: a disk and what a log there should hold.
type wreck struct {
	name   string
	mem    *vfs.Mem
	want   story // what an Open without faults finds
	was    story // or what a power cut may go back to, if a cut was under way
	synced int64
}

// wrecks makes disks on which recovery has something to do.
func wrecks(t testing.TB, mode SyncMode) (list []wreck) {
	begin := func(appends int) *faultLog {
		x := newFaultLog(t, mode)
		x.must("open", x.open)
		x.must("begin epoch", x.lead(0))
		for i := range appends {
			x.must("append", x.append(3, 200))
			if i == appends/2 {
				x.must("sync", x.sync)
				x.must("raise", x.raise)
			}
		}
		return x
	}
	add := func(name string, mem *vfs.Mem, x *faultLog) {
		y := newFaultLog(t, mode)
		y.use(mem.Clone())
		if err := y.open(); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		y.want, y.next = x.want, x.next
		y.settled(y.l, x.synced, name)
		got, err := contents(y.l)
		if err != nil {
			t.Fatal(err)
		}
		w := wreck{name: name, mem: mem, want: x.want, was: x.want, synced: x.synced}
		start, end := y.l.LogStartOffset(), y.l.LogEndOffset()
		if !slices.Equal(sortedPairs(got), sortedPairs(x.want.serials(start, end))) {
			w.want = x.next
		}
		w.want = w.want.cut(end)
		w.want.start, w.want.end = start, end
		if !strings.Contains(name, "killed in") {
			w.was = w.want
		}
		list = append(list, w)
	}

	x := begin(20)
	add("killed", x.mem.Kill(), x)

	x = begin(14)
	active := x.l.active.Load()
	mem := x.mem.Kill()
	junk := make([]byte, min(active.Allocated()-active.Size(), 700))
	for i := range junk {
		junk[i] = byte(i*7 + 1)
	}
	writeAt(t, mem, x.l.path(active.Name()), junk, active.Size())
	add("killed, rubbish behind the end", mem, x)

	for seed := range uint64(4) {
		x = begin(20)
		add(fmt.Sprintf("power cut %d", seed), x.mem.PowerCut(rand.New(rand.NewPCG(seed, 3))), x)
	}

	for _, ends := range []string{"killed", "closed"} {
		x = begin(20)
		x.faulty.SetRules(vfs.Rule{Ops: vfs.OpFinishSync, Glob: "*.log*", Count: 1, Err: syscall.EIO})
		if err := x.sync(); !errors.Is(err, ErrFailed) {
			t.Fatalf("sync = %v", err)
		}
		if ends == "closed" {
			if err := x.close(); !errors.Is(err, ErrFailed) {
				t.Fatalf("close = %v", err)
			}
		}
		add("sync failed, "+ends, x.mem.Kill(), x)
	}

	x = begin(12)
	x.must("close", x.close)
	add("closed", x.mem.Kill(), x)

	x = begin(12)
	x.must("close", x.close)
	mem = x.mem.Kill()
	if err := mem.Remove(x.l.path(slotName)); err != nil {
		t.Fatal(err)
	}
	add("no slot", mem, x)

	x = begin(12)
	mem = x.mem.Kill()
	if err := mem.Remove(x.l.path(epochFile)); err != nil {
		t.Fatal(err)
	}
	add("no leader epochs", mem, x)

	// A cut and a restart, killed after each of their operations that recovery
	// has to finish.
	for _, what := range []string{"truncate", "restart"} {
		for after := 3; after < 40; after += 4 {
			x = begin(20)
			f, n := x.truncate(7), 0
			if what == "restart" {
				f = x.restart(1000)
			}
			var mem *vfs.Mem
			x.mem.SetHook(func(_ vfs.Op, _ string, done bool) {
				if n++; n == after {
					mem = x.mem.Clone()
				}
			})
			synced := x.synced
			err := x.do(f)
			x.mem.SetHook(nil)
			if err != nil || mem == nil {
				break
			}
			y := *x
			y.want = story{}
			for i, b := range begin(20).want.batches { // as it was before
				y.want = y.want.add(b.base, b.last, uint64(i)+1)
			}
			y.next, y.synced = x.want, min(synced, x.want.end)
			add(fmt.Sprintf("killed in a %s, %d", what, after), mem, &y)
		}
	}
	return list
}

// TestC047_Recovery: each call of an Open that has something to recover fails in
// turn. Open returns an error and lets go of all it had, or a log that is right;
// and so does the next one, even if the power fails in between.
func TestC047_Recovery(t *testing.T) {
	for _, mode := range []SyncMode{Always, Interval} {
		for _, w := range wrecks(t, mode) {
			t.Run(mode.String()+"/"+w.name, func(t *testing.T) {
				t.Parallel()
				x := newFaultLog(t, mode)
				x.use(w.mem.Clone())
				if err := x.open(); err != nil {
					t.Fatal(err)
				}
				if x.l.LogEndOffset() != w.want.end || x.l.LogStartOffset() != w.want.start {
					t.Fatalf("log [%d, %d); want [%d, %d)", x.l.LogStartOffset(), x.l.LogEndOffset(), w.want.start, w.want.end)
				}
				faults := faultsOf(x.faulty.Calls())
				for i, f := range faults {
					if i%7 != 0 && len(faults) > 60 && !allFaults() {
						continue
					}
					w.fault(t, mode, f, faultEnds[i%len(faultEnds)], rand.New(rand.NewPCG(uint64(i), 48)))
				}
			})
		}
	}
}

// fault opens a wreck with one fault.
func (w *wreck) fault(t *testing.T, mode SyncMode, f aFault, end string, rng *rand.Rand) {
	x := newFaultLog(t, mode)
	x.use(w.mem.Clone())
	x.want, x.next, x.synced = w.want, w.want, w.synced
	if end == "power cut" {
		x.next = w.was
	}
	when := f.String()
	defer guard(t, func() string { return when })
	x.faulty.SetRules(f.rule())
	err := x.open()
	if !slices.ContainsFunc(x.faulty.Calls(), func(c vfs.Call) bool { return isFault(c.Err, f) }) {
		t.Fatalf("%s did not happen", when)
	}
	switch {
	case err != nil:
		if !isFault(err, f) {
			t.Fatalf("%s: open: %v does not name the fault", when, err)
		}
		if n := x.o.Maps.Count(); n != 0 {
			t.Fatalf("%s: %d maps are left behind by an open that failed", when, n)
		}
	case f.op&sticky != 0:
		t.Fatalf("%s: open swallowed the fault", when)
	default:
		x.settled(x.l, math.MaxInt64, when)
		x.next = w.want
	}
	x.synced = min(x.synced, x.want.end, x.next.end)
	x.endLife(end, when, rng)
}

// TestDiskFull: the disk fills up at each allocation of the story (F13, C028).
// What needs space says so and changes nothing; the rest, cuts and Close among
// it, works; nothing sticks, and once there is space the story goes on.
func TestDiskFull(t *testing.T) {
	for _, mode := range []SyncMode{Always, Interval, Never} {
		t.Run(mode.String(), func(t *testing.T) {
			t.Parallel()
			x := newFaultLog(t, mode)
			for _, s := range x.whole() {
				x.must(s.name, s.do)
			}
			points := 0
			for _, c := range x.faulty.Calls() {
				if c.Op == vfs.OpAllocate {
					points++
				}
			}
			for nth := range points {
				for i, end := range []string{"space", "close", "kill"} {
					if nth%3 == i || allFaults() {
						fullAt(t, mode, nth, end)
					}
				}
			}
			t.Logf("%d allocations", points)
		})
	}
}

// fullAt tells the story with a disk that is full from the nth allocation on.
func fullAt(t *testing.T, mode SyncMode, nth int, end string) {
	x := newFaultLog(t, mode)
	when, full, at := "", false, 0
	defer guard(t, func() string { return when })
	x.mem.SetHook(func(op vfs.Op, _ string, done bool) {
		if op == vfs.OpAllocate && !done {
			if at == nth {
				x.mem.SetCapacity(max(x.mem.Used(), 1))
				full = true
			}
			at++
		}
	})
	for i, s := range x.whole() {
		when = fmt.Sprintf("disk full at allocation %d, step %d, %s", nth, i, s.name)
		err := x.do(s.do)
		if !full {
			if err != nil {
				t.Fatalf("%s: %v", when, err)
			}
			continue
		}
		x.mem.SetHook(nil)
		x.checkFull(s, err, when)
		if s.name == "close" && err != nil {
			t.Fatalf("%s: %v", when, err)
		}
		if strings.HasPrefix(s.name, "open") || s.name == "close" || x.l.Err() != nil {
			x.mem.SetCapacity(0)
			x.endLife("kill", when, nil)
			return
		}
		switch end {
		case "close": // needs no space
			if err := x.close(); err != nil {
				t.Fatalf("%s: close: %v", when, err)
			}
		case "kill":
			x.use(x.mem.Kill())
			used := x.mem.Used()
			if err := x.open(); err == nil {
				x.settled(x.l, math.MaxInt64, when+", opened on a full disk")
				x.use(x.mem.Kill())
			} else if !errors.Is(err, syscall.ENOSPC) || used == 0 {
				t.Fatalf("%s: open on a full disk: %v", when, err)
			}
		case "space":
			x.mem.SetCapacity(0)
			if err != nil {
				x.must(when+": made again", s.do)
			}
			for _, s := range x.whole()[i+1:] {
				x.must(when+": then "+s.name, s.do)
			}
		}
		x.mem.SetCapacity(0)
		x.reopen(x.mem, math.MaxInt64, when+", "+end)
		return
	}
	t.Fatalf("allocation %d did not happen", nth)
}

func isCut(s step) bool {
	return strings.HasPrefix(s.name, "truncate") || strings.HasPrefix(s.name, "restart")
}

// TestF13_CutsOnAFullDisk: a disk that is full before a cut begins does not keep
// it from working. Two need space before they make some, and change nothing
// without: one into a file that a backup shares, which is copied, and one that
// drops a leader epoch and no batch.
func TestF13_CutsOnAFullDisk(t *testing.T) {
	for _, mode := range []SyncMode{Always, Interval, Never} {
		t.Run(mode.String(), func(t *testing.T) {
			cuts := 0
			x := newFaultLog(t, mode)
			for _, s := range x.whole() {
				if isCut(s) {
					cuts++
					x.mem.SetCapacity(x.mem.Used())
					err := x.do(s.do)
					if strings.Contains(s.name, "shares") || strings.Contains(s.name, "at the end") {
						if !errors.Is(err, syscall.ENOSPC) || x.l.Err() != nil {
							t.Fatalf("%s on a full disk: %v, sticky %v", s.name, err, x.l.Err())
						}
						x.next = x.want
						x.settled(x.l, math.MaxInt64, s.name)
						x.mem.SetCapacity(0)
						err = x.do(s.do)
					}
					if err != nil {
						t.Fatalf("%s on a full disk: %v", s.name, err)
					}
					x.settled(x.l, math.MaxInt64, s.name)
					x.mem.SetCapacity(0)
					x.onDisk(x.mem, s.name)
					continue
				}
				x.must(s.name, s.do)
			}
			if cuts != 4 {
				t.Errorf("%d cuts", cuts)
			}
		})
	}
}

// checkFull checks a step that met a full disk.
func (x *faultLog) checkFull(s step, err error, when string) {
	t := x.t
	t.Helper()
	if err != nil && !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("%s: %v is not a full disk", when, err)
	}
	if x.l == nil || s.name == "close" || strings.HasPrefix(s.name, "open") {
		return
	}
	if x.l.Err() != nil {
		if !isCut(s) { // which was half done when somebody took the space it had made
			t.Fatalf("%s: sticks: %v", when, x.l.Err())
		}
		x.isDead(s, when)
		return
	}
	if err != nil { // still full, and the same again
		if x.l.LogEndOffset() != x.want.end || x.l.LogStartOffset() != x.want.start {
			t.Fatalf("%s: failed by %v and left the log [%d, %d); want [%d, %d)", when, err,
				x.l.LogStartOffset(), x.l.LogEndOffset(), x.want.start, x.want.end)
		}
		epochs := x.l.Epochs()
		if again := x.do(s.do); again != nil && (!errors.Is(again, syscall.ENOSPC) || x.l.Err() != nil) {
			t.Fatalf("%s: made again on a full disk: %v", when, again)
		} else if again != nil && !slices.Equal(x.l.Epochs(), epochs) {
			t.Fatalf("%s: epochs were %v, are %v", when, epochs, x.l.Epochs())
		}
	}
	x.next = x.want
	x.settled(x.l, math.MaxInt64, when)
	x.must(when+": sync on a full disk", x.sync)
	x.onDisk(x.mem, when+", on a full disk")
}
