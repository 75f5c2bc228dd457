package main

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/tidemark-log/tidemark"
	"github.com/tidemark-log/tidemark/internal/checkpoint"
	"github.com/tidemark-log/tidemark/internal/vfs"
	"github.com/tidemark-log/tidemark/record"
)

// damagedFolders are partitions with something wrong, by what it is. Each folder
// lies in a data folder of its own, which was closed cleanly.
func damagedFolders(t testing.TB) map[string]string {
	t.Helper()
	edit := func(change func(data, dir string)) string {
		data := filepath.Join(t.TempDir(), "data")
		if err := os.CopyFS(data, os.DirFS(filepath.Join(testdata, "kafka-4.4-closed"))); err != nil {
			t.Fatal(err)
		}
		for _, dir := range partitionsOf(t, data) {
			if name := filepath.Base(dir); name != "idem-0" && name != "idem-1" && name != "txn-1" {
				os.RemoveAll(dir)
			}
		}
		os.RemoveAll(filepath.Join(data, "truth"))
		change(data, filepath.Join(data, "idem-0"))
		return filepath.Join(data, "idem-0")
	}
	read := func(path string) []byte {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	change := func(name string, f func(b []byte) []byte) func(string, string) {
		return func(_, dir string) { write(t, filepath.Join(dir, name), f(read(filepath.Join(dir, name)))) }
	}
	remove := func(name string) func(string, string) {
		return func(_, dir string) {
			if err := os.Remove(filepath.Join(dir, name)); err != nil {
				t.Fatal(err)
			}
		}
	}
	txn := func(f func(data, dir string)) func(string, string) {
		return func(data, dir string) {
			f(data, filepath.Join(data, "txn-1"))
			// The partition that the test looks at, of another topic then.
			if err := errors.Join(os.RemoveAll(dir), os.RemoveAll(filepath.Join(data, "idem-1")), os.Rename(filepath.Join(data, "txn-1"), dir)); err != nil {
				t.Fatal(err)
			}
		}
	}
	snap := fmt.Sprintf("%020d.snapshot", 76)
	return map[string]string{
		"torn":          edit(change(log0, func(b []byte) []byte { return b[:len(b)-30] })),
		"garbage":       edit(change(log0, func(b []byte) []byte { return append(b, "garbage"...) })),
		"zeros":         edit(change(log0, func(b []byte) []byte { return append(b, make([]byte, 5000)...) })),
		"flipped":       edit(change(log0, func(b []byte) []byte { b[3000] ^= 1; return b })),
		"flipped twice": edit(change(log0, func(b []byte) []byte { b[1300] ^= 1; b[7400] ^= 1; return b })),
		"flipped, torn": edit(change(log0, func(b []byte) []byte { b[3000] ^= 1; return b[:len(b)-9] })),
		"index":         edit(change(index0, func(b []byte) []byte { b[7] ^= 1; return b })),
		"no index":      edit(remove(index0)),
		"index zeros":   edit(change(index0, func(b []byte) []byte { return append(b, make([]byte, 800)...) })),
		"time index":    edit(change(times0, func(b []byte) []byte { return b[:len(b)-5] })),
		"no time index": edit(remove(times0)),
		"epochs":        edit(change(checkpoint.LeaderEpochFile, func(b []byte) []byte { return b[:len(b)-3] })),
		"no epochs":     edit(remove(checkpoint.LeaderEpochFile)),
		"epochs behind": edit(change(checkpoint.LeaderEpochFile, func([]byte) []byte { return []byte("0\n2\n0 0\n9 900\n") })),
		"snapshot":      edit(change(snap, func(b []byte) []byte { b[20] ^= 1; return b })),
		"no snapshot":   edit(remove(snap)),
		"snapshot beyond": edit(func(_, dir string) {
			write(t, filepath.Join(dir, fmt.Sprintf("%020d.snapshot", 99)), read(filepath.Join(dir, snap)))
		}),
		"recovery point": edit(func(data, _ string) {
			path := filepath.Join(data, checkpoint.RecoveryPointFile)
			write(t, path, bytes.Replace(read(path), []byte("idem 0 76"), []byte("idem 0 99"), 1))
		}),
		"txn index":    edit(txn(change("00000000000000000000.txnindex", func(b []byte) []byte { b[20] ^= 1; return b }))),
		"no txn index": edit(txn(remove("00000000000000000000.txnindex"))),
	}
}

// needsDrop are those of which records must be given up.
func needsDrop(name string) bool { return strings.HasPrefix(name, "flipped") }

// batchesIn returns the whole batches of a log file.
func batchesIn(t testing.TB, b []byte) (all []string) {
	t.Helper()
	s := &scanner{f: newMemFile(b), size: int64(len(b)), maxBatch: 1 << 30}
	for {
		sp, ok := s.next()
		if !ok {
			return all
		}
		if sp.kind == spanBatch {
			all = append(all, string(sp.data))
		}
	}
}

func TestRepair(t *testing.T) {
	for name, dir := range damagedFolders(t) {
		t.Run(name, func(t *testing.T) {
			data := filepath.Dir(dir)
			before := bytesOf(t, data)
			// A dry run says what is wrong and changes nothing.
			_, out, _ := logtool("repair", "--json", dir)
			if !maps.Equal(before, bytesOf(t, data)) {
				t.Fatal("a dry run changed something")
			}
			if r := objects(t, out, "repair")[0]; r["applied"] != false || r.num("steps") == 0 && !needsDrop(name) {
				t.Errorf("dry run: %v", r)
			}
			if needsDrop(name) {
				r := one(t, exitDamage, "repair", "repair", "--apply", dir)
				if r.num("left") == 0 || !strings.Contains(r.str("damaged"), "--drop-damaged") {
					t.Errorf("without the flag: %v", r)
				}
				for i, b := range batchesIn(t, []byte(before["idem-0/"+log0])) {
					if got := batchesIn(t, []byte(bytesOf(t, data)["idem-0/"+log0])); i >= len(got) || got[i] != b {
						t.Fatalf("batch %d is gone without the flag", i)
					}
				}
			}
			r := one(t, exitOK, "repair", "repair", "--apply", "--drop-damaged", dir)
			if r["applied"] != true || r.num("left") != 0 || r.str("backup") == "" {
				t.Errorf("%v", r)
			}
			checkVerify(t, data)
			checkKept(t, before, bytesOf(t, data))
			// Nothing that was good is lost, and it stays mended.
			if got, want := batchesIn(t, []byte(bytesOf(t, data)["idem-0/"+log0])), batchesIn(t, []byte(before["idem-0/"+log0])); !slices.Equal(got, want) {
				t.Errorf("%d batches; want %d", len(got), len(want))
			}
			if r := one(t, exitOK, "repair", "repair", "--apply", "--drop-damaged", dir); r.num("steps") != 0 {
				t.Errorf("a second time: %v", r)
			}
			if p := one(t, exitOK, "producers", "producers", dir); p.str("verdict") != "equal" && !needsDrop(name) {
				t.Errorf("producers: %v", p)
			}
			l, err := tidemark.Open(dir, tidemark.Options{})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := l.Append(tidemark.Record{Value: []byte("goes on")}); err != nil {
				t.Error(err)
			}
			if err := l.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

// checkKept checks that what a file held before is still somewhere: in its
// place, or in a backup, or what is left in its place and what was cut.
func checkKept(t *testing.T, before, after map[string]string) {
	t.Helper()
	for name, b := range before {
		if after[name] == b || filepath.Base(name) == checkpoint.LockFile {
			continue
		}
		// All there is of that name, and the tails that were cut.
		var heads, tails []string
		for other, a := range after {
			switch file, _, cut := strings.Cut(filepath.Base(other), ".from-"); {
			case file != filepath.Base(name) || other != name && !strings.Contains(other, "tidemark.repair-"):
			case cut:
				tails = append(tails, a)
			default:
				heads = append(heads, a)
			}
		}
		kept := slices.Contains(heads, b)
		for _, head := range heads {
			for _, tail := range tails {
				kept = kept || head+tail == b
			}
		}
		if !kept {
			t.Errorf("what %s held is gone", name)
		}
	}
}

var (
	repairSeeds = flag.Int("repair-seeds", 2, "power cuts at each step of a repair")
	repairAll   = flag.Bool("repair-all", false, "interrupt every repair, not only some")
)

// interrupted says whether a repair is one of those that a test interrupts.
func interrupted(name string, some ...string) bool {
	return *repairAll || slices.Contains(some, name) && (!testing.Short() || name == "flipped, torn")
}

// TestRepairInterrupted fails each call of the file system in turn: what the
// folder held is there, in its place or in the backup; nothing is wrong that was
// not before, an index or a snapshot of the other log say; and the repair can be
// done again and comes to the same log.
func TestRepairInterrupted(t *testing.T) {
	for name, from := range damagedFolders(t) {
		if !interrupted(name, "torn", "flipped, torn", "no epochs", "snapshot", "txn index", "recovery point") {
			continue
		}
		t.Run(name, func(t *testing.T) {
			want := ""
			was := faultKinds(t, from)
			for n := 0; ; n++ {
				data := copyDir(t, filepath.Dir(from))
				dir := filepath.Join(data, filepath.Base(from))
				before := bytesOf(t, data)
				faulty := vfs.NewFaulty(vfs.OS, vfs.Rule{Ops: mutating, After: n, Err: errBroken})
				failed := repairOn(t, faulty, dir)
				after := bytesOf(t, data)
				checkKept(t, before, after)
				for f := range faultKinds(t, dir) {
					if !was[f] {
						t.Errorf("stopped at call %d: a fault that was not there: %s", n, f)
					}
				}
				if !failed && n == 0 {
					t.Fatal("nothing was called")
				}
				mustRun(t, exitOK, "repair", "--apply", "--drop-damaged", dir)
				checkVerify(t, data)
				checkKept(t, before, bytesOf(t, data))
				log := bytesOf(t, data)[filepath.Join(filepath.Base(from), log0)]
				if want == "" {
					want = log
				}
				if log != want {
					t.Fatalf("failed at call %d: %d bytes of log; want %d", n, len(log), len(want))
				}
				os.RemoveAll(data)
				if !failed {
					return
				}
			}
		})
	}
}

// faultKinds returns which file has which kind of fault.
func faultKinds(t *testing.T, dir string) map[string]bool {
	t.Helper()
	_, out, _ := logtool("verify", "--json", dir)
	kinds := map[string]bool{}
	for _, f := range findings(t, out, "fault") {
		kinds[filepath.Base(f.File)+": "+f.Check] = true
	}
	return kinds
}

var errBroken = errors.New("broken")

// mutating are the calls that change something.
const mutating = vfs.OpCreate | vfs.OpMkdir | vfs.OpRemove | vfs.OpRename | vfs.OpLink | vfs.OpSyncDir | vfs.OpWrite | vfs.OpTruncate | vfs.OpAllocate | vfs.OpStartSync | vfs.OpFinishSync

// repairOn applies a repair on a file system and reports whether that failed.
func repairOn(t *testing.T, fsys vfs.FS, dir string) (failed bool) {
	t.Helper()
	var out, stderr bytes.Buffer
	e := &env{out: newOutput(&out, true), stderr: &stderr, maxBatch: 256 << 20, maxPlain: record.DefaultMaxDecompressed}
	r := &repairer{env: e, apply: true, dropDamaged: true, fs: fsys}
	m := newMender(r, r.onePartition("repair", dir), r.check(dir))
	m.scan()
	m.plan()
	if e.unreadable {
		t.Fatal(stderr.String())
	}
	slices.SortStableFunc(m.steps, func(a, b repairStep) int { return int(a.stage - b.stage) })
	_, err := r.applySteps(dir, m.steps)
	return err != nil
}

// TestRepairPowerCut loses the power behind each call instead: what was not
// synced may be there, in part or not at all.
func TestRepairPowerCut(t *testing.T) {
	rng := rand.New(rand.NewPCG(uint64(*repairSeeds), 7))
	for name, from := range damagedFolders(t) {
		if !interrupted(name, "flipped, torn", "snapshot") {
			continue
		}
		t.Run(name, func(t *testing.T) {
			for n := 0; ; n++ {
				data := copyDir(t, filepath.Dir(from))
				dir := filepath.Join(data, filepath.Base(from))
				before := bytesOf(t, data)
				mem := vfs.NewMem(vfs.MemOptions{})
				intoMem(t, mem, data)
				failed := repairOn(t, vfs.NewFaulty(mem, vfs.Rule{Ops: mutating, After: n, Err: errBroken}), dir)
				for range *repairSeeds {
					cut := t.TempDir()
					outOfMem(t, mem.PowerCut(rng), data, cut)
					checkKept(t, before, bytesOf(t, cut))
					mustRun(t, exitOK, "repair", "--apply", "--drop-damaged", filepath.Join(cut, filepath.Base(from)))
					checkVerify(t, cut)
					os.RemoveAll(cut)
				}
				os.RemoveAll(data)
				if !failed {
					return
				}
			}
		})
	}
}

// intoMem copies a folder to the same path of a file system in memory, durably.
func intoMem(t *testing.T, mem *vfs.Mem, dir string) {
	t.Helper()
	for i, c := range dir {
		if c == '/' && i > 0 {
			if err := mem.Mkdir(dir[:i]); err != nil && !errors.Is(err, fs.ErrExist) {
				t.Fatal(err)
			}
		}
	}
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if e.IsDir() {
			return errors.Join(mem.Mkdir(path), mem.SyncDir(filepath.Dir(path)))
		}
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		return vfs.WriteFileAtomic(mem, path, b)
	})
	for d := dir; err == nil && d != "/"; d = filepath.Dir(d) {
		err = mem.SyncDir(filepath.Dir(d))
	}
	if err != nil {
		t.Fatal(err)
	}
}

// outOfMem copies a folder of a file system in memory to a real one.
func outOfMem(t *testing.T, mem *vfs.Mem, from, to string) {
	t.Helper()
	infos, err := mem.List(from)
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range infos {
		path := filepath.Join(to, i.Name)
		if i.IsDir {
			if err := os.Mkdir(path, 0o755); err != nil {
				t.Fatal(err)
			}
			outOfMem(t, mem, filepath.Join(from, i.Name), path)
			continue
		}
		b, err := vfs.ReadFile(mem, filepath.Join(from, i.Name), 1<<30)
		if err != nil {
			t.Fatal(err)
		}
		write(t, path, b)
	}
}

// A folder that somebody has open is left alone.
func TestRepairLocked(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "t-0")
	l, err := tidemark.Open(dir, tidemark.Options{})
	if err != nil {
		t.Fatal(err)
	}
	writeLog(t, l, 10)
	code, _, stderr := logtool("repair", "--apply", dir)
	if code != exitUnreadable || !strings.Contains(stderr, "locked") {
		t.Errorf("exit %d\n%s", code, stderr)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	mustRun(t, exitOK, "repair", "--apply", dir)
	data := copyDir(t, filepath.Join(testdata, "kafka-4.4-closed"))
	lock, err := vfs.OS.Lock(filepath.Join(data, checkpoint.LockFile))
	if err != nil {
		t.Fatal(err)
	}
	if code, _, stderr := logtool("repair", "--apply", filepath.Join(data, "idem-0")); code != exitUnreadable || !strings.Contains(stderr, "locked") {
		t.Errorf("exit %d\n%s", code, stderr)
	}
	lock.Close()
}

// A log of Tidemark's with damage below what its slot vouches for opens
// read-only; once the damage is dropped it goes on, HW and epochs intact.
func TestRepairOwnLog(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "t-0")
	l, err := tidemark.Open(dir, tidemark.Options{SegmentBytes: 16 << 10, Sync: tidemark.Always})
	if err != nil {
		t.Fatal(err)
	}
	writeLog(t, l, 500)
	end := l.LogEndOffset()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	logs, err := filepath.Glob(filepath.Join(dir, "*.log"))
	if err != nil || len(logs) < 3 {
		t.Fatal(logs, err)
	}
	for _, path := range []string{logs[1], logs[len(logs)-1]} {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		b[len(b)/2] ^= 1
		write(t, path, b)
	}
	mustRun(t, exitDamage, "verify", dir)
	r := one(t, exitOK, "repair", "repair", "--apply", "--drop-damaged", dir)
	if r.num("left") != 0 {
		t.Error(r)
	}
	checkVerify(t, dir)
	if l, err = tidemark.Open(dir, tidemark.Options{SegmentBytes: 16 << 10}); err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if l.LogEndOffset() != end {
		t.Errorf("log ends at %d; want %d", l.LogEndOffset(), end)
	}
	if _, err := l.Append(tidemark.Record{Value: []byte("x")}); err != nil {
		t.Error(err)
	}
}

// TestRepairEveryFlip flips a bit of each byte of each file of a partition, one
// at a time: no command fails at it, and after a repair verify is content, or the
// repair said what it left.
func TestRepairEveryFlip(t *testing.T) {
	if testing.Short() {
		t.Skip("long")
	}
	data := t.TempDir()
	dir := filepath.Join(data, "t-0")
	recs := func(from int64, pid int64) record.Batch {
		return batch(t, from, func(s *record.Spec) { s.ProducerID, s.ProducerEpoch, s.BaseSequence = pid, 0, int32(from) }, 100+from, 101+from)
	}
	good := map[string]string{
		log0: string(cat(recs(0, 1), recs(2, 1), recs(4, 1), recs(6, 1))), index0: string(offsetEntries(5, 200)), times0: string(timeEntries(105, 5, 107, 7)),
		checkpoint.LeaderEpochFile: "0\n1\n0 0\n",
	}
	good[index0] = string(offsetEntries(5, int64(len(recs(0, 1))+len(recs(2, 1)))))
	restore := func() {
		if err := errors.Join(os.RemoveAll(dir), os.Mkdir(dir, 0o755)); err != nil {
			t.Fatal(err)
		}
		for name, b := range good {
			write(t, filepath.Join(dir, name), []byte(b))
		}
		write(t, filepath.Join(data, checkpoint.CleanMarkerFile), nil)
	}
	restore()
	checkVerify(t, dir)
	twin := copyDir(t, dir)
	left := 0
	for _, name := range slices.Sorted(maps.Keys(good)) {
		for bit := range 8 * len(good[name]) {
			if bit%8 != bit/8%8 && !*allBits {
				continue
			}
			restore()
			b := []byte(good[name])
			b[bit/8] ^= 1 << (bit % 8)
			write(t, filepath.Join(dir, name), b)
			for _, args := range [][]string{
				{"find", "--offset", "5", dir}, {"find", "--no-index", "--time", "105", dir}, {"find", "--pid", "1", dir}, {"epochs", dir},
				{"diff", dir, twin}, {"diff", twin, dir}, {"explain", dir}, {"producers", dir}, {"repair", dir},
			} {
				if code, out, stderr := logtool(args...); code != exitOK && code != exitDamage || stderr != "" {
					t.Errorf("bit %d of %s: %v exits %d\n%s%s", bit, name, args, code, out, stderr)
				}
			}
			code, out, stderr := logtool("repair", "--json", "--apply", "--drop-damaged", dir)
			var r object
			if all := objects(t, out, "repair"); len(all) == 1 {
				r = all[0]
			}
			verified, found, _ := logtool("verify", dir)
			switch {
			case r == nil || stderr != "":
				t.Errorf("bit %d of %s: exit %d\n%s%s", bit, name, code, out, stderr)
			case (r.num("left") > 0) != (verified == exitDamage) || (code == exitOK) != (r.num("left") == 0):
				t.Errorf("bit %d of %s: exit %d, %v; verify exits %d\n%s", bit, name, code, r, verified, found)
			case r.num("left") > 0:
				left++
			}
		}
	}
	t.Logf("%d flips left something", left)
}
