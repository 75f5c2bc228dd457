package replica_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"math"
	"path"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/tidemark-log/tidemark/internal/vfs"
	"github.com/tidemark-log/tidemark/record"
	"github.com/tidemark-log/tidemark/replica"
	"github.com/tidemark-log/tidemark/segment"
)

// long runs loops as long as the case asks: go test ./replica -long.
var long = flag.Bool("long", false, "run loops and races at the full length of their cases")

const slotFile = "tidemark.slot"

var t0 = time.UnixMilli(1_700_000_000_000)

// lab is a log directory in memory that can be opened, killed and tampered with.
type lab struct {
	t     testing.TB
	mem   *vfs.Mem
	fs    vfs.FS // mem, or a Faulty around it
	dir   string
	o     replica.Options
	log   *replica.Log
	warns *records
}

// records keeps log lines of level Warn and above.
type records struct {
	mu    sync.Mutex
	lines []string
}

func (r *records) Enabled(_ context.Context, l slog.Level) bool { return l >= slog.LevelWarn }
func (r *records) WithAttrs([]slog.Attr) slog.Handler           { return r }
func (r *records) WithGroup(string) slog.Handler                { return r }
func (r *records) Handle(_ context.Context, x slog.Record) error {
	line := x.Message
	x.Attrs(func(a slog.Attr) bool { line += " " + a.String(); return true })
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lines = append(r.lines, line)
	return nil
}

func (r *records) all() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.lines)
}

// newLab opens an empty log in leader epoch 0. Sole and small segments unless o
// says otherwise.
func newLab(t testing.TB, o replica.Options) *lab {
	t.Helper()
	x := &lab{t: t, mem: vfs.NewMem(vfs.MemOptions{}), dir: "/log", o: o, warns: &records{}}
	x.fs = x.mem
	if x.o.SegmentBytes == 0 {
		x.o.SegmentBytes = 16 << 10
	}
	x.o.Logger = slog.New(x.warns)
	x.o.Maps = segment.NewMaps(1000)
	t.Cleanup(func() {
		if x.log != nil {
			x.log.Close(t0)
		}
	})
	x.open()
	return x
}

func (x *lab) tryOpen() error {
	x.o.FS = x.fs
	l, err := openExplained(x.t, x.fs, x.dir, x.o)
	if err == nil {
		x.log = l
	}
	return err
}

// openExplained opens a log and compares what Explain foretold with what came of
// it.
func openExplained(t testing.TB, fsys vfs.FS, dir string, o replica.Options) (*replica.Log, error) {
	t.Helper()
	quiet := o
	quiet.Logger, quiet.Progress = nil, nil
	mem, isMem := fsys.(*vfs.Mem)
	if !isMem { // the calls of a faulty one are counted
		return replica.Open(dir, o, t0)
	}
	before := tree(t, mem, dir)
	p, explainErr := replica.Explain(dir, quiet, t0)
	if after := tree(t, mem, dir); !maps.Equal(before, after) {
		t.Errorf("Explain changed the folder:\n%v\n%v", before, after)
	}
	var warns *records
	heard, hears := 0, false
	if o.Logger != nil {
		if warns, hears = o.Logger.Handler().(*records); hears {
			heard = len(warns.all())
		}
	}
	l, err := replica.Open(dir, o, t0)
	if explainErr != nil || len(before) == 0 {
		return l, err
	}
	if (p.Refused != nil) != (err != nil) && !errors.Is(err, replica.ErrLocked) && !errors.Is(err, syscall.ENOSPC) && !(err != nil && p.Damage != nil && len(p.Segments) == 0) {
		t.Errorf("Explain says refused %v; Open %v", p.Refused, err)
	}
	if err != nil {
		return l, err
	}
	if d := l.Damage(); (d == nil) != (p.Damage == nil) || d != nil && d.Error() != p.Damage.Error() {
		t.Errorf("Explain says damage %v; Open %v", p.Damage, d)
	}
	if p.End != l.LogEndOffset() && !o.Held || p.Start != l.LogStartOffset() {
		t.Errorf("Explain says offsets %d to %d; Open %d to %d\n%+v", p.Start, p.End, l.LogStartOffset(), l.LogEndOffset(), p)
	}
	if !slices.Equal(p.Epochs, l.Epochs()) {
		t.Errorf("Explain says epochs %v; Open %v", p.Epochs, l.Epochs())
	}
	if l.Damage() != nil || o.ReadOnly {
		return l, nil
	}
	after := tree(t, mem, dir)
	refused := map[string]bool{}
	for _, f := range p.Producers {
		if _, there := after[f.Name]; there == (f.Treatment == replica.Removed) {
			t.Errorf("Explain says %s of %s; after Open it is there: %v", f.Treatment, f.Name, there)
		}
		if f.Treatment == replica.Refused {
			refused[fmt.Sprintf("producer snapshot is passed over dir=%s file=%s err=%v", dir, f.Name, f.Err)] = true
		}
	}
	if hears {
		for _, line := range warns.all()[heard:] {
			if strings.HasPrefix(line, "producer snapshot is passed over") && !refused[line] {
				t.Errorf("Open says %s; Explain says %+v", line, p.Producers)
			}
			delete(refused, line)
		}
		for line := range refused {
			t.Errorf("Explain says that Open says %s; it does not", line)
		}
	}
	for i, s := range p.Segments {
		_, there := after[s.Name]
		// Of a log that begins anew an empty segment has the name again.
		if gone := s.Treatment == replica.Removed; gone == there && !(gone && s.Base == p.End) {
			t.Errorf("Explain says %s of %s; after Open it is there: %v", s.Treatment, s.Name, there)
		}
		if s.Treatment != replica.Removed && (i+1 == len(p.Segments) || p.Segments[i+1].Treatment == replica.Removed) && s.End > p.End {
			t.Errorf("Explain says that %s ends at %d, the log at %d", s.Name, s.End, p.End)
		}
	}
	for _, name := range p.Removes {
		if _, there := after[name]; there && !slices.ContainsFunc(p.Renames, func(r [2]string) bool { return r[1] == name }) {
			t.Errorf("Explain says that %s is removed; after Open it is there", name)
		}
	}
	return l, nil
}

// tree lists the files of a folder with their sizes and bytes.
func tree(t testing.TB, mem *vfs.Mem, dir string) map[string]string {
	t.Helper()
	infos, err := mem.List(dir)
	if err != nil {
		return nil
	}
	all := map[string]string{}
	for _, i := range infos {
		if i.IsDir {
			continue
		}
		b, err := vfs.ReadFile(mem, path.Join(dir, i.Name), 1<<30)
		if err != nil {
			t.Fatal(err)
		}
		all[i.Name] = string(b)
	}
	return all
}

// open opens the log and begins the epoch it has, or 0.
func (x *lab) open() *replica.Log {
	x.t.Helper()
	if err := x.tryOpen(); err != nil {
		x.t.Fatal(err)
	}
	if x.log.Damage() == nil && !x.o.ReadOnly {
		x.lead()
	}
	return x.log
}

func (x *lab) close() {
	x.t.Helper()
	if err := x.log.Close(t0); err != nil {
		x.t.Fatal(err)
	}
	x.log = nil
}

// kill ends the process: everything written is there, nothing was closed.
func (x *lab) kill() {
	x.mem = x.mem.Kill()
	x.fs, x.log = x.mem, nil
}

func (x *lab) path(name string) string { return path.Join(x.dir, name) }

func (x *lab) read(name string) []byte {
	x.t.Helper()
	b, err := vfs.ReadFile(x.mem, x.path(name), 1<<30)
	if err != nil {
		x.t.Fatal(err)
	}
	return b
}

func (x *lab) write(name string, b []byte) {
	x.t.Helper()
	f, err := x.mem.Open(x.path(name), vfs.Create)
	if err != nil {
		x.t.Fatal(err)
	}
	_, werr := f.WriteAt(b, 0)
	if err := errors.Join(werr, f.Truncate(int64(len(b))), vfs.Sync(f), f.Close(), x.mem.SyncDir(x.dir)); err != nil {
		x.t.Fatal(err)
	}
}

func (x *lab) remove(names ...string) {
	x.t.Helper()
	for _, name := range names {
		if err := x.mem.Remove(x.path(name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			x.t.Fatal(err)
		}
	}
}

func (x *lab) names() (names []string) {
	x.t.Helper()
	infos, err := x.mem.List(x.dir)
	if err != nil {
		x.t.Fatal(err)
	}
	for _, i := range infos {
		names = append(names, i.Name)
	}
	return names
}

func (x *lab) has(name string) bool { return slices.Contains(x.names(), name) }

// segments returns the base offsets of the .log files.
func (x *lab) segments() (bases []int64) {
	for _, name := range x.names() {
		if b, ok := segment.ParseName(name, ".log"); ok {
			bases = append(bases, b)
		}
	}
	return bases
}

func logName(base int64) string   { return segment.FileName(base, ".log") }
func indexName(base int64) string { return segment.FileName(base, ".index") }
func timeName(base int64) string  { return segment.FileName(base, ".timeindex") }

// value is what the record at an offset holds.
func value(offset int64, size int) []byte {
	b := binary.BigEndian.AppendUint64(nil, uint64(offset))
	for len(b) < size {
		b = append(b, byte(len(b))*7+byte(offset))
	}
	return b
}

// append appends n records of about size bytes as one batch. Record i has
// timestamp t0 + offset.
func (x *lab) append(n, size int) {
	x.t.Helper()
	if err := x.tryAppend(n, size); err != nil {
		x.t.Fatal(err)
	}
}

func (x *lab) tryAppend(n, size int) error {
	recs := make([]record.Record, n)
	end := x.log.LogEndOffset()
	for i := range recs {
		recs[i] = recordAt(end+int64(i), size)
	}
	a, err := x.log.AppendRecords(recs, t0)
	if err == nil && (a.Base != end || a.End != end+int64(n)) {
		x.t.Errorf("append at %d answered [%d, %d)", end, a.Base, a.End)
	}
	return err
}

func recordAt(offset int64, size int) record.Record {
	return record.Record{Timestamp: t0.UnixMilli() + offset, Key: fmt.Append(nil, "k", offset), Value: value(offset, size)}
}

// batchAt is a follower's batch.
func batchAt(base int64, epoch int32, n int, size int) record.Batch {
	recs := make([]record.Record, n)
	for i := range recs {
		recs[i] = recordAt(base+int64(i), size)
	}
	spec := record.NewSpec()
	spec.BaseOffset, spec.LeaderEpoch = base, epoch
	return record.Encode(make([]byte, record.Size(recs, 0)), recs, &spec)
}

func (x *lab) follow(batches ...record.Batch) {
	x.t.Helper()
	var b []byte
	for _, y := range batches {
		b = append(b, y...)
	}
	if _, err := x.log.Append(b, replica.Follower, t0); err != nil {
		x.t.Fatal(err)
	}
}

// lead begins the epoch the log has, as a leader does after a cut.
func (x *lab) lead() {
	x.t.Helper()
	if err := x.log.BeginEpoch(max(x.log.Stats().LeaderEpoch, 0)); err != nil {
		x.t.Fatal(err)
	}
}

func (x *lab) sync() {
	x.t.Helper()
	if err := x.log.SyncNow(); err != nil {
		x.t.Fatal(err)
	}
}

// readAll returns the offsets of all records in [from, end), each with the
// content it should have, by Read.
func (x *lab) readAll(from int64) (offsets []int64) {
	x.t.Helper()
	end := x.log.LogEndOffset()
	for offset := from; offset < end; {
		b, err := x.log.Read(nil, offset, end, 1<<20)
		if err != nil {
			x.t.Fatalf("read at %d: %v", offset, err)
		}
		if len(b) == 0 {
			return offsets
		}
		for len(b) > 0 {
			batch, err := record.Check(b)
			if err != nil {
				x.t.Fatal(err)
			}
			for r, err := range batch.Records() {
				if err != nil {
					x.t.Fatal(err)
				}
				if r.Offset < offset {
					continue
				}
				x.checkRecord(r)
				offsets = append(offsets, r.Offset)
			}
			b, offset = b[len(batch):], batch.NextOffset()
		}
	}
	return offsets
}

func (x *lab) checkRecord(r record.Record) {
	x.t.Helper()
	if want := recordAt(r.Offset, len(r.Value)); !bytes.Equal(r.Key, want.Key) || !bytes.Equal(r.Value, want.Value) || r.Timestamp != want.Timestamp {
		x.t.Fatalf("record %d has key %q, timestamp %d, value %.20x", r.Offset, r.Key, r.Timestamp, r.Value)
	}
}

// whole checks that exactly the records of [from, end) are there, by Read, Get
// and time, and that Verify finds nothing.
func (x *lab) whole(from, end int64) {
	x.t.Helper()
	if x.log.LogStartOffset() != from || x.log.LogEndOffset() != end {
		x.t.Fatalf("log [%d, %d); want [%d, %d)", x.log.LogStartOffset(), x.log.LogEndOffset(), from, end)
	}
	if got := x.readAll(from); int64(len(got)) != end-from {
		x.t.Fatalf("read %d records of [%d, %d)", len(got), from, end)
	}
	for offset := from; offset < end; offset++ {
		r, _, ok, err := x.log.Get(offset, end, nil)
		if err != nil || !ok || r.Offset != offset {
			x.t.Fatalf("get %d = %d, %v, %v", offset, r.Offset, ok, err)
		}
		x.checkRecord(r)
		got, ts, ok, err := x.log.OffsetForTime(t0.UnixMilli()+offset, end)
		if err != nil || !ok || got != offset || ts != t0.UnixMilli()+offset {
			x.t.Fatalf("offset for the time of %d = %d at %d, %v, %v", offset, got, ts, ok, err)
		}
	}
	x.verify()
}

// verify fails if Verify finds anything.
func (x *lab) verify() {
	x.t.Helper()
	if found := x.findings(); len(found) > 0 {
		x.t.Fatalf("Verify: %v", found)
	}
}

func (x *lab) findings() (found []*replica.CorruptError) {
	x.t.Helper()
	err := x.log.Verify(0, math.MaxInt64, func(e *replica.CorruptError) bool {
		found = append(found, e)
		return true
	})
	if err != nil {
		x.t.Fatalf("Verify: %v", err)
	}
	return found
}

// goesOn checks that the next append gets offset end and survives a reopen.
func (x *lab) goesOn(from, end int64) {
	x.t.Helper()
	x.append(1, 20)
	x.whole(from, end+1)
	x.close()
	x.open()
	x.whole(from, end+1)
}

func (x *lab) undamaged() {
	x.t.Helper()
	if d := x.log.Damage(); d != nil {
		x.t.Fatalf("damage: %v", d)
	}
}

func (x *lab) warned(text string) (n int) {
	for _, line := range x.warns.all() {
		if strings.Contains(line, text) {
			n++
		}
	}
	return n
}

// entries reads an index file: pairs of offset and position, or timestamp and
// offset.
func (x *lab) offsetEntries(base int64) (e [][2]int64) {
	b := x.read(indexName(base))
	for ; len(b) >= 8; b = b[8:] {
		e = append(e, [2]int64{base + int64(binary.BigEndian.Uint32(b)), int64(binary.BigEndian.Uint32(b[4:]))})
	}
	return e
}

func (x *lab) timeEntries(base int64) (e [][2]int64) {
	b := x.read(timeName(base))
	for ; len(b) >= 12; b = b[12:] {
		e = append(e, [2]int64{int64(binary.BigEndian.Uint64(b)), base + int64(binary.BigEndian.Uint32(b[8:]))})
	}
	return e
}

// eachKind runs f over a log that was closed, killed, and one without a slot, as
// Kafka leaves it.
func eachKind(t *testing.T, o replica.Options, build func(x *lab), f func(t *testing.T, x *lab, kind string)) {
	for _, kind := range []string{"closed", "killed", "no slot"} {
		t.Run(kind, func(t *testing.T) {
			x := newLab(t, o)
			build(x)
			switch kind {
			case "closed":
				x.close()
			case "killed":
				x.kill()
			default:
				x.close()
				x.remove(slotFile)
			}
			f(t, x, kind)
		})
	}
}

// slotEnd is the end that the newest copy in a slot file vouches for. The format
// is in docs/format.md; checksums are not looked at here.
func slotEnd(read func(name string) []byte) int64 {
	b := read(slotFile)
	var newest uint64
	var end int64
	for ; len(b) >= 4096; b = b[4096:] {
		if seq := binary.LittleEndian.Uint64(b[8:]); seq > newest {
			newest, end = seq, int64(binary.LittleEndian.Uint64(b[64:]))
		}
	}
	return end
}
