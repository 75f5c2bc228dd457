package replica

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tidemark-log/tidemark/internal/vfs"
	"github.com/tidemark-log/tidemark/record"
	"github.com/tidemark-log/tidemark/segment"
)

var modelSeeds = flag.Int("model.seeds", 300, "number of random workloads that TestModel runs")

// modelBatch is one batch as a log stores it.
type modelBatch struct {
	base, last int64
	epoch      int32
	maxTs      int64
	b          record.Batch
}

// model is a log as a slow, obvious list of batches. Its slices are never
// written to in place, so that copies may share them.
type model struct {
	mode SyncMode
	sole bool

	batches    []modelBatch
	epochs     []Epoch
	start, end int64 // log start offset; end with what is held
	synced     int64 // end of the last sync that was told
	hw         int64
	held       int64 // end that is shown while a tail is held, −1 otherwise
	epoch      int32 // what a leader stamps, −1 if none
	raised     bool  // the log start moved over batches; see checkProducers
}

func (m *model) leo() int64 {
	if m.held >= 0 {
		return m.held
	}
	return m.end
}

func (m *model) syncedEnd() int64 { return min(m.synced, m.leo()) }

func (m *model) counted() int64 {
	if m.mode == Always {
		return m.syncedEnd()
	}
	return m.leo()
}

func (m *model) highWatermark() int64 {
	if m.sole {
		return max(m.counted(), m.start)
	}
	return m.hw
}

func (m *model) latest() int32 {
	if len(m.epochs) == 0 {
		return -1
	}
	return m.epochs[len(m.epochs)-1].Epoch
}

func (m *model) clone() *model { c := *m; return &c }

func (m *model) setHW(hw int64) *model {
	c := m.clone()
	if !c.sole {
		c.hw = max(c.hw, min(hw, c.counted()))
	}
	return c
}

func (m *model) assign(epoch int32, start int64) {
	if n := len(m.epochs); n > 0 && m.epochs[n-1].Epoch == epoch && m.epochs[n-1].StartOffset <= start {
		return
	}
	var list []Epoch
	for _, e := range m.epochs {
		if e.Epoch < epoch && e.StartOffset < start {
			list = append(list, e)
		}
	}
	m.epochs = append(list, Epoch{Epoch: epoch, StartOffset: start})
}

func (m *model) add(b record.Batch) {
	mb := modelBatch{base: b.BaseOffset(), last: b.LastOffset(), epoch: b.LeaderEpoch(), maxTs: b.MaxTimestamp(), b: slices.Clone(b)}
	m.batches = append(slices.Clip(m.batches), mb)
	m.end = mb.last + 1
	if mb.epoch >= 0 {
		m.assign(mb.epoch, mb.base)
	}
}

func epochsBelow(list []Epoch, end int64) (out []Epoch) {
	for _, e := range list {
		if e.StartOffset < end {
			out = append(out, e)
		}
	}
	return out
}

// epochsFound are those that an open finds of list in a log [start, end).
func epochsFound(list []Epoch, start, end int64) []Epoch {
	if start == end {
		return epochsFrom(epochsBelow(list, end+1), start)
	}
	return epochsFrom(epochsBelow(list, end), start)
}

func epochsFrom(list []Epoch, start int64) (out []Epoch) {
	for i, e := range list {
		if i+1 < len(list) && list[i+1].StartOffset <= start {
			continue
		}
		e.StartOffset = max(e.StartOffset, start)
		out = append(out, e)
	}
	return out
}

func (m *model) truncate(to int64) *model {
	if to < m.start {
		return m.restart(to)
	}
	c := m.clone()
	c.epoch = -1
	if to >= m.end {
		c.epochs = epochsBelow(m.epochs, m.end)
		return c
	}
	n := 0
	for n < len(m.batches) && m.batches[n].last < to {
		n++
	}
	c.batches = slices.Clip(m.batches[:n])
	c.epochs = epochsBelow(m.epochs, to)
	c.end, c.synced = to, to
	c.hw = max(min(m.hw, to), m.start)
	if m.held > to {
		c.held = to
	}
	return c
}

// raise is the model with another log start. Batches below it stay until their
// segment goes, which the model does not know.
func (m *model) raise(start int64) *model {
	c := m.clone()
	if start > m.start {
		c.start, c.synced = start, max(m.synced, start)
		c.epochs = epochsFrom(m.epochs, start)
	}
	return c
}

func (m *model) restart(at int64) *model {
	return &model{mode: m.mode, sole: m.sole, start: at, end: at, synced: at, hw: at, held: -1, epoch: -1}
}

// follow is the model after a leader's batches, up to the first that does not
// fit. empty says that the active segment is.
func (m *model) follow(batches []record.Batch, empty bool) (after *model, ok bool) {
	c := m.clone()
	for i, b := range batches {
		base, epoch := b.BaseOffset(), b.LeaderEpoch()
		if i == 0 && base < c.end && empty && c.end == c.start && b.LastOffset() >= c.end {
			c = c.restart(base)
		}
		if base < c.end || epoch < c.latest() {
			return c, false
		}
		if n := len(c.epochs); n == 0 || epoch > c.epochs[n-1].Epoch || base < c.epochs[n-1].StartOffset {
			c.epoch = -1
		}
		c.add(b)
	}
	return c, true
}

// endOffset is log-format §6 by definition.
func (m *model) endOffset(epoch int32) (int32, int64) {
	if epoch < 0 || epoch > m.latest() {
		return -1, -1
	}
	if epoch == m.latest() {
		return epoch, m.leo()
	}
	if epoch < m.epochs[0].Epoch {
		return epoch, m.epochs[0].StartOffset
	}
	found := int32(-1)
	for _, e := range m.epochs {
		if e.Epoch > epoch {
			return found, e.StartOffset
		}
		found = e.Epoch
	}
	panic("unreachable")
}

// holding is the index of the first batch that ends at or above offset.
func (m *model) holding(offset int64) int {
	i := 0
	for i < len(m.batches) && m.batches[i].last < offset {
		i++
	}
	return i
}

// rig drives a log and its model side by side.
type rig struct {
	seed    uint64
	rng     *rand.Rand
	mem     *vfs.Mem
	fs      vfs.FS // what the log sees
	o       Options
	log     *Log
	m       *model
	now     int64 // ms
	pending *Sync
	waited  bool
	views   []heldView
	backups []backup
	copies  int  // backups ever made
	wide    bool // a leader's gaps are wider than a segment now and then
	history []string
	builder record.Builder

	// What a crash may find now; see crash_test.go.
	doing state
}

type heldView struct {
	v    View
	want []byte
}

type backup struct {
	dir  string
	want *model
}

const logDir = "t-0"

// rigFailure stops a rig from wherever it is found, inside a hook too.
type rigFailure struct{ msg string }

func (r *rig) failf(format string, args ...any) {
	panic(rigFailure{fmt.Sprintf(format, args...)})
}

func (r *rig) note(format string, args ...any) {
	r.history = append(r.history, fmt.Sprintf(format, args...))
}

func newRig(seed uint64) *rig {
	r := &rig{seed: seed, rng: rand.New(rand.NewPCG(seed, 1)), now: 1_700_000_000_000}
	ticks := int64(0)
	clock := func() time.Time { ticks++; return time.UnixMicro(1_600_000_000_000_000 + ticks) }
	r.mem = vfs.NewMem(vfs.MemOptions{Seed: seed, Clock: clock})
	r.fs = splitFS{r.mem, r.rng}
	r.o = Options{
		Sync:               SyncMode(r.rng.IntN(3)),
		SegmentBytes:       []int64{4 << 10, 8 << 10, 16 << 10, 64 << 10}[r.rng.IntN(4)],
		IndexIntervalBytes: 1 + r.rng.Int64N(800),
		PopulateBytes:      []int64{0, 8 << 10, 1 << 20}[r.rng.IntN(3)],
		Sole:               r.rng.IntN(3) == 0,
		FS:                 r.fs,
		Maps:               segment.NewMaps(1000),
		snapshotEvery:      []int64{1, 3000, 20_000}[r.rng.IntN(3)],
	}
	if r.rng.IntN(3) != 0 {
		c := DefaultConfig()
		c.SegmentBytes, c.IndexIntervalBytes, c.MaxBatchBytes = r.o.SegmentBytes, r.o.IndexIntervalBytes, r.o.SegmentBytes
		c.SegmentMs = []int64{noLimit, 20_000, 2000}[r.rng.IntN(3)]
		c.SegmentJitterMs = r.rng.Int64N(2) * 5000
		c.SegmentIndexBytes = []int64{1 << 10, 10 << 20}[r.rng.IntN(2)]
		c.RetentionMs = []int64{-1, 0, 3000, 30_000}[r.rng.IntN(4)]
		c.RetentionBytes = []int64{-1, 0, 1, 3}[r.rng.IntN(4)] * r.o.SegmentBytes
		c.RetentionBytes = max(c.RetentionBytes, -1)
		c.FileDeleteDelayMs = r.rng.Int64N(2) * 3000
		c.TimestampType = record.TimestampType(r.rng.IntN(4) / 3)
		r.o.Config = &c
		r.o.RetentionInterval = time.Millisecond
	}
	r.wide = r.rng.IntN(4) == 0
	r.note("seed %d: sync %v, sole %v, segments of %d, index interval %d, config %+v", seed, r.o.Sync, r.o.Sole, r.o.SegmentBytes, r.o.IndexIntervalBytes, r.o.Config)
	r.m = &model{mode: r.o.Sync, sole: r.o.Sole, held: -1, epoch: -1}
	r.doing = state{before: r.m, after: r.m}
	return r
}

// splitFS lets a crash come between two parts of one WriteAt, as a killed
// process leaves a large pwrite half done.
type splitFS struct {
	*vfs.Mem
	rng *rand.Rand
}

func (s splitFS) Open(name string, mode vfs.Mode) (vfs.File, error) {
	f, err := s.Mem.Open(name, mode)
	if err != nil {
		return nil, err
	}
	return splitFile{f, s.rng}, nil
}

type splitFile struct {
	vfs.File
	rng *rand.Rand
}

func (f splitFile) WriteAt(p []byte, off int64) (int, error) {
	if len(p) < 2 || f.rng.IntN(4) != 0 {
		return f.File.WriteAt(p, off)
	}
	cut := 1 + f.rng.IntN(len(p)-1)
	n, err := f.File.WriteAt(p[:cut], off)
	if err != nil {
		return n, err
	}
	k, err := f.File.WriteAt(p[cut:], off+int64(n))
	return n + k, err
}

// do runs one call of the log that takes the model from r.m to after.
func (r *rig) do(after *model, f func() error) error {
	r.doing = state{before: r.m, after: after}
	err := f()
	if err == nil {
		r.m = after
	}
	r.doing = state{before: r.m, after: r.m}
	return err
}

// must is do for a call that cannot fail.
func (r *rig) must(after *model, f func() error) {
	if err := r.do(after, f); err != nil {
		r.failf("%s: %v", r.history[len(r.history)-1], err)
	}
}

func (r *rig) open(held bool) {
	o := r.o
	o.Held = held
	r.note("open held=%v", held)
	// What a reopen after a clean close finds is known; see reopen.
	l, err := Open(logDir, o, r.time())
	if err != nil {
		r.failf("open: %v", err)
	}
	r.log = l
}

func (r *rig) time() time.Time { return time.UnixMilli(r.now) }

// data fills p with bytes, zeros among them.
func (r *rig) data(p []byte) {
	for i := range p {
		p[i] = byte(r.rng.Uint32())
	}
	if len(p) > 0 && r.rng.IntN(4) == 0 {
		clear(p[r.rng.IntN(len(p)):])
	}
}

// records makes records of at most about limit bytes in all.
func (r *rig) records(limit int) (recs []record.Record) {
	n := 1
	if r.rng.IntN(2) == 0 {
		n += r.rng.IntN(12)
	}
	for range n {
		var size int
		switch r.rng.IntN(4) {
		case 0:
			size = r.rng.IntN(16)
		case 1:
			size = r.rng.IntN(300)
		case 2:
			size = r.rng.IntN(min(limit, 1500))
		case 3:
			size = r.rng.IntN(limit)
		}
		rec := record.Record{Value: make([]byte, size)}
		r.data(rec.Value)
		switch r.rng.IntN(6) {
		case 0:
			rec.Key = []byte(fmt.Sprint("k", r.rng.IntN(100)))
		case 1:
			rec.Timestamp = record.NoTimestamp
		case 2:
			rec.Timestamp = r.now - r.rng.Int64N(5000)
		}
		if len(recs) > 0 && record.Size(append(recs, rec), r.now) > limit {
			break
		}
		recs = append(recs, rec)
	}
	return recs
}

// encode makes the batch that AppendRecords stores.
func (r *rig) encode(recs []record.Record, base int64, epoch int32) record.Batch {
	spec := record.NewSpec()
	spec.BaseOffset, spec.LeaderEpoch, spec.Now, spec.TimestampType = base, epoch, r.now, r.timestampType()
	return record.Encode(make([]byte, record.Size(recs, r.now)), recs, &spec)
}

func (r *rig) timestampType() record.TimestampType {
	if r.o.Config == nil {
		return record.CreateTime
	}
	return r.o.Config.TimestampType
}

// compacted is encode for a batch that has lost some of its records.
func (r *rig) compacted(recs []record.Record, base int64, epoch int32) record.Batch {
	spec := record.NewSpec()
	spec.BaseOffset, spec.LeaderEpoch, spec.Now, spec.KeepOffsets = base, epoch, r.now, true
	at := base + r.rng.Int64N(3)
	for i := range recs {
		recs[i].Offset = at
		at += 1 + r.rng.Int64N(3)
	}
	spec.LastOffset = at - 1 + r.rng.Int64N(3)
	if r.rng.IntN(8) == 0 {
		spec.Codec = record.Zstd
	}
	b, err := r.builder.Build(recs, &spec)
	if err != nil {
		r.failf("build batch: %v", err)
	}
	if r.rng.IntN(6) == 0 {
		return record.AppendEmpty(nil, b)
	}
	return slices.Clone(b)
}

func (r *rig) appendRecords() {
	recs := r.records(int(r.o.SegmentBytes) - record.HeaderSize)
	n := record.Size(recs, r.now)
	r.note("append %d records of %d bytes at %d", len(recs), n, r.m.end)
	after := r.m.clone()
	if len(recs) > 0 {
		after.add(r.encode(recs, r.m.end, r.m.epoch))
	}
	var got Appended
	err := r.do(after, func() (err error) {
		got, err = r.log.AppendRecords(recs, r.time())
		return err
	})
	r.checkAppend(err, after, got, n)
}

func (r *rig) appendTrusted() {
	recs := r.records(int(r.o.SegmentBytes) - record.HeaderSize)
	spec := record.NewSpec()
	spec.Now = r.now
	b := record.Encode(make([]byte, record.Size(recs, r.now)), recs, &spec)
	r.note("append batch of %d bytes at %d", len(b), r.m.end)
	stamped := slices.Clone(b)
	if t := r.timestampType(); t == record.LogAppendTime {
		stamped.SetMaxTimestamp(t, r.now)
	}
	stamped.SetBaseOffset(r.m.end)
	stamped.SetLeaderEpoch(r.m.epoch)
	after := r.m.clone()
	after.add(stamped)
	var got Appended
	err := r.do(after, func() (err error) {
		got, err = r.log.Append(b, Origin(r.rng.IntN(2)), r.time())
		return err
	})
	r.checkAppend(err, after, got, len(b))
}

func (r *rig) checkAppend(err error, after *model, got Appended, n int) {
	var want error
	switch {
	case int64(n) > r.o.SegmentBytes:
		want = ErrTooLarge
	case r.m.held >= 0:
		want = ErrHeld
	case r.m.epoch < 0:
		want = errNoEpoch
	}
	if !errors.Is(err, want) {
		r.failf("append: %v, want %v", err, want)
	}
	if err == nil && (got.End != after.end || got.Base != after.batches[len(after.batches)-1].base) {
		r.failf("append answered %+v, want end %d", got, after.end)
	}
}

// appendFollower appends a leader's batches, now and then with one among them
// that must be refused.
func (r *rig) appendFollower() {
	var batches []record.Batch
	base, epoch := r.m.end, max(r.m.latest(), 0)
	known := r.m.producers()
	for range 1 + r.rng.IntN(4) {
		limit := int(r.o.SegmentBytes)
		if r.rng.IntN(10) == 0 {
			limit *= 3 // a segment of its own
		}
		switch r.rng.IntN(40) {
		case 0:
			base = max(base-1-r.rng.Int64N(5), 0) // overlaps, or goes on inside the first batch
		case 1, 2, 3:
			base += r.rng.Int64N(20)
		case 4:
			if r.wide || r.rng.IntN(10) == 0 {
				base += []int64{1 << 31, 1 << 32, 1 << 40}[r.rng.IntN(3)] + r.rng.Int64N(100)
			}
		case 5:
			epoch--
		case 6, 7, 8:
			epoch += 1 + r.rng.Int32N(3)
		}
		epoch = max(epoch, 0)
		recs := r.records(limit)
		b := r.encode(recs, base, epoch)
		if r.rng.IntN(5) == 0 {
			b = r.compacted(recs, base, epoch)
		}
		switch r.rng.IntN(6) {
		case 0, 1:
			b = r.encode(r.produced(limit), base, epoch)
			r.assume(b, known)
		case 2:
			b = r.marker(base, epoch, known)
		}
		known.add(b)
		batches = append(batches, b)
		base = b.NextOffset()
	}
	empty := r.log.active.Load().Size() == 0
	after, fits := r.m.follow(batches, empty)
	all := slices.Concat(func() (bs [][]byte) {
		for _, b := range batches {
			bs = append(bs, b)
		}
		return bs
	}()...)
	want := error(nil)
	if !fits {
		want = ErrOrder
	}
	if fits && r.m.held < 0 && len(batches[len(batches)-1]) > record.HeaderSize && r.rng.IntN(12) == 0 { // the last one does not arrive whole
		all[len(all)-1-r.rng.IntN(len(batches[len(batches)-1])-record.HeaderSize)] ^= 1 << r.rng.IntN(8)
		after, _ = r.m.follow(batches[:len(batches)-1], empty)
		want = record.ErrChecksum
	}
	if r.m.held >= 0 {
		after, want = r.m, ErrHeld
	}
	r.note("follow: %d batches, %d bytes, to %d, want error %v", len(batches), len(all), after.end, want)
	restart := after.start != r.m.start
	r.doing = state{before: r.m, after: after, restart: restart}
	got, err := r.log.Append(all, Follower, r.time())
	if restart && r.pending != nil && errors.Is(err, ErrBusy) {
		after, want = r.m, ErrBusy
	}
	r.m = after
	r.doing = state{before: r.m, after: r.m}
	if !errors.Is(err, want) {
		r.failf("append from leader: %v, want %v", err, want)
	}
	if got.End != r.m.leo() {
		r.failf("append from leader answered %+v, want end %d", got, r.m.end)
	}
}

func (r *rig) beginEpoch() {
	epoch := max(r.m.latest(), 0) + r.rng.Int32N(3)
	r.note("begin epoch %d at %d", epoch, r.m.end)
	after := r.m.clone()
	after.assign(epoch, r.m.end)
	after.epoch = epoch
	err := r.do(after, func() error { return r.log.BeginEpoch(epoch) })
	if r.m.held >= 0 && !errors.Is(err, ErrHeld) || r.m.held < 0 && err != nil {
		r.failf("begin epoch: %v", err)
	}
}

// sync starts a sync, waits for one, or finishes one.
func (r *rig) sync() {
	whole := r.rng.IntN(2) == 0
	if r.pending == nil {
		r.startSync()
		if !whole {
			return
		}
	}
	if r.pending != nil && !r.waited {
		r.note("wait for sync to %d", r.pending.End())
		if err := r.pending.Wait(); err != nil {
			r.failf("sync: %v", err)
		}
		r.waited = true
		if !whole {
			return
		}
	}
	r.finishSync()
}

func (r *rig) startSync() {
	if r.rng.IntN(4) == 0 {
		before := r.now - r.rng.Int64N(3000)
		r.pending = r.log.StartSealedSync(time.UnixMilli(before))
	} else {
		r.pending = r.log.StartSync()
		if r.pending != nil && r.pending.End() != r.m.end {
			r.failf("sync to %d, want %d", r.pending.End(), r.m.end)
		}
		if r.pending == nil && r.m.synced < r.m.end {
			r.failf("no sync although %d of %d are synced", r.m.synced, r.m.end)
		}
	}
	r.waited = false
	if r.pending != nil {
		if r.pending.End() > r.m.end {
			r.failf("sync to %d of a log to %d", r.pending.End(), r.m.end)
		}
		r.note("start sync to %d", r.pending.End())
	}
}

func (r *rig) finishSync() {
	if r.pending == nil {
		return
	}
	var err error
	if !r.waited {
		err = r.pending.Wait()
	}
	r.note("finish sync to %d", r.pending.End())
	s := r.pending
	r.pending = nil
	after := r.m.clone()
	after.synced = max(after.synced, s.End())
	r.must(after, func() error { return r.log.FinishSync(s, err) })
}

func (r *rig) setHW() {
	hw := r.m.hw + r.rng.Int64N(max(r.m.end-r.m.hw, 0)+3)
	r.note("set high watermark %d", hw)
	r.must(r.m.setHW(hw), func() error { r.log.SetHighWatermark(hw); return nil })
}

func (r *rig) maintain() {
	start := r.retained()
	r.note("maintain, log start %d to %d", r.m.start, start)
	r.must(r.m.raise(start), func() error { _, err := r.log.Maintain(r.time()); return err })
}

// retained is the log start that Maintain should leave: one segment after the
// other goes as long as any rule says so (log-format §7.1).
func (r *rig) retained() int64 {
	l, c := r.log, r.log.Config()
	list := *l.segments.Load()
	kept := list
	byTime := c.RetentionMs >= 0 && !l.keep.next.IsZero() && !r.time().Before(l.keep.next) || c.RetentionMs >= 0 && l.keep.waits
	hw := r.m.highWatermark()
	for {
		s, upper := kept[0], kept[0].End()
		if len(kept) > 1 {
			upper = kept[1].Base()
		}
		size := int64(0)
		for _, x := range kept {
			size += x.Size()
		}
		maxTs := int64(record.NoTimestamp)
		if err := s.Walk(0, func(_ segment.Frame, b []byte) bool {
			maxTs = max(maxTs, record.Batch(b).MaxTimestamp())
			return true
		}); err != nil { // damage below the log start
			maxTs, err = s.LargestTimestamp()
			if err != nil || r.m.start <= s.Base() {
				r.failf("%v", err)
			}
		}
		if maxTs < 0 {
			i, err := r.mem.Stat(l.path(s.Name()))
			if err != nil {
				r.failf("%v", err)
			}
			maxTs = i.ModTime.UnixMilli()
		}
		goes := len(kept) > 1 && upper <= r.m.start ||
			c.RetentionBytes >= 0 && size-s.Size() >= c.RetentionBytes ||
			byTime && r.now-maxTs > c.RetentionMs
		if !goes || upper > hw || len(kept) == 1 { // the active one rolls first
			return max(r.m.start, kept[0].Base())
		}
		kept = kept[1:]
	}
}

func (r *rig) deleteRecords() {
	hw := r.m.highWatermark()
	to := r.m.start + r.rng.Int64N(hw-r.m.start+1)
	want := error(nil)
	switch r.rng.IntN(12) {
	case 0:
		to = hw + 1 + r.rng.Int64N(5)
		want = ErrOutOfRange
	case 1:
		to, want = -2, ErrOutOfRange
	case 2:
		to = hw
	case 3:
		to = r.rng.Int64N(r.m.start + 1)
	}
	after := r.m
	if want == nil {
		after = r.m.raise(to)
	}
	asked := to
	if to == hw && r.rng.IntN(2) == 0 {
		asked = -1
	}
	r.note("delete records below %d of %d to %d", asked, r.m.start, r.m.end)
	call := func() error { return r.log.DeleteRecords(asked) }
	if asked >= 0 && r.rng.IntN(4) == 0 { // as a follower learns it from its leader
		call = func() error { return r.log.SetLogStart(asked) }
		if want != nil {
			after, want = r.m.raise(hw), nil
		}
	}
	if err := r.do(after, call); !errors.Is(err, want) {
		r.failf("delete records below %d: %v, want %v", asked, err, want)
	}
}

func (r *rig) truncate() {
	to := r.offset()
	switch r.rng.IntN(4) {
	case 0: // a batch's edge
		if n := len(r.m.batches); n > 0 {
			to = r.m.batches[r.rng.IntN(n)].base
		}
	case 1: // not far back
		to = max(r.m.end-r.rng.Int64N(30), 0)
	}
	if r.rng.IntN(20) == 0 {
		to = max(r.m.start-r.rng.Int64N(10), 0)
	}
	r.note("truncate %d to %d", r.m.end, to)
	r.cutting(r.m.truncate(to), to < r.m.start, func() error { return r.log.Truncate(to) })
}

func (r *rig) restart() {
	at := r.offset() + r.rng.Int64N(3)*r.rng.Int64N(100)
	r.note("truncate fully and start at %d", at)
	r.cutting(r.m.restart(at), true, func() error { return r.log.TruncateFullyAndStartAt(at) })
}

// cutting runs a truncation, which a sync under way or a view may refuse.
func (r *rig) cutting(after *model, restart bool, f func() error) {
	r.doing = state{before: r.m, after: after, restart: restart}
	err := f()
	busy := r.pending != nil || len(r.views) > 0
	switch {
	case errors.Is(err, ErrBusy) && busy:
		r.note("… busy")
	case err != nil || r.pending != nil:
		r.failf("truncate: %v, sync under way: %v", err, r.pending != nil)
	default:
		r.m = after
	}
	r.doing = state{before: r.m, after: r.m}
}

// offset is anywhere in the log.
func (r *rig) offset() int64 { return r.m.start + r.rng.Int64N(r.m.end-r.m.start+1) }

func (r *rig) reopen() {
	r.finishSync()
	r.releaseViews()
	r.note("close at %d", r.m.end)
	after := r.m.clone()
	after.synced = after.end
	r.must(after, func() error { return r.log.Close(r.time()) })
	after = after.clone()
	after.epoch = -1
	after.epochs = epochsFound(after.epochs, after.start, after.end)
	held := !r.o.Sole && r.rng.IntN(3) == 0
	after.held = -1
	if held {
		after.held = max(after.start, min(after.hw, after.end))
	}
	r.doing.after = after
	r.open(held)
	if d := r.log.Damage(); d != nil {
		r.failf("open after a clean close: %v", d)
	}
	r.m = after
	r.doing = state{before: r.m, after: r.m}
	r.checkFiles(r.mem, r.log)
}

// heldTail does what ends or shortens a held tail.
func (r *rig) heldTail() {
	if r.m.held < 0 {
		return
	}
	after := r.m.clone()
	switch r.rng.IntN(3) {
	case 0:
		to := r.m.held + r.rng.Int64N(r.m.end-r.m.held+1)
		r.note("adopt to %d of %d", to, r.m.end)
		after.held = to
		r.must(after, func() error { return r.log.Adopt(to) })
	case 1:
		r.note("drop from %d", r.m.held)
		after = r.m.truncate(r.m.held)
		after.held = -1
		r.cutting(after, false, r.log.Drop)
	case 2:
		r.note("release")
		after.held = -1
		r.must(after, func() error { r.log.Release(); return nil })
	}
}

func (r *rig) backup() {
	r.copies++
	dir := fmt.Sprint("backup", r.copies)
	hw := r.m.highWatermark()
	r.note("backup to %s up to %d", dir, hw)
	r.must(r.m, func() error { return r.log.Backup(dir) })
	want := r.m.clone()
	want.batches = slices.Clip(want.batches[:want.holding(hw)])
	want.end = hw
	if n := len(want.batches); n < len(r.m.batches) {
		want.end = max(min(hw, r.m.batches[n].base), want.start)
	}
	r.backups = append(r.backups, backup{dir, want})
}

// checkBackup opens a backup on fs and compares it. Now and then it is written
// to as well, which the log must not see.
func (r *rig) checkBackup(fs *vfs.Mem, b backup, write bool) {
	o := r.o
	o.FS = fs
	l, err := Open(b.dir, o, r.time())
	if err != nil {
		r.failf("open %s: %v", b.dir, err)
	}
	// The end is the high watermark of the log, or that of the last batch where a
	// gap lies between them.
	want := b.want.clone()
	if end := l.LogEndOffset(); end < want.end && (len(want.batches) == 0 || end > want.batches[len(want.batches)-1].last) {
		want.end = end
	}
	want.epochs, want.hw, want.synced = epochsFound(want.epochs, want.start, want.end), want.end, want.end
	want.held, want.epoch = -1, -1
	r.compare(l, want)
	r.checkContent(l, want)
	if write && want.end > want.start {
		if r.rng.IntN(2) == 0 {
			to := want.start + r.rng.Int64N(want.end-want.start+1)
			r.note("truncate %s to %d", b.dir, to)
			if err := l.Truncate(to); err != nil {
				r.failf("truncate %s: %v", b.dir, err)
			}
			want = want.truncate(to)
		}
		if err := l.BeginEpoch(max(want.latest(), 0)); err != nil {
			r.failf("begin epoch in %s: %v", b.dir, err)
		}
		recs := r.records(500)
		want.assign(max(want.latest(), 0), want.end)
		want.add(r.encode(recs, want.end, want.latest()))
		r.note("append to %s", b.dir)
		if _, err := l.AppendRecords(recs, r.time()); err != nil {
			r.failf("append to %s: %v", b.dir, err)
		}
		r.checkContent(l, want)
	}
	if err := l.Close(r.time()); err != nil {
		r.failf("close %s: %v", b.dir, err)
	}
}

// useBackup opens the last backup beside the log, writes to it and forgets it.
func (r *rig) useBackup() {
	if len(r.backups) == 0 {
		return
	}
	b := r.backups[len(r.backups)-1]
	r.backups = r.backups[:len(r.backups)-1]
	r.note("use %s", b.dir)
	r.checkBackup(r.mem, b, true)
	if err := r.mem.RemoveAll(b.dir); err != nil {
		r.failf("remove %s: %v", b.dir, err)
	}
}

func (r *rig) holdView() {
	if len(r.views) > 2 {
		return
	}
	offset := r.offset()
	limit := r.m.end
	if r.rng.IntN(2) == 0 {
		limit = r.m.highWatermark()
	}
	if offset > min(limit, r.m.leo()) {
		return
	}
	v, err := r.log.View(offset, limit, r.rng.IntN(10000))
	if err != nil {
		r.failf("view %d to %d: %v", offset, limit, err)
	}
	if v.Bytes != nil {
		r.note("hold a view of %d to %d", v.Base, v.Next)
		r.views = append(r.views, heldView{v, slices.Clone(v.Bytes)})
	}
}

// releaseViews checks first that nothing has changed under them.
func (r *rig) releaseViews() {
	for i := range r.views {
		h := &r.views[i]
		if !bytes.Equal(h.v.Bytes, h.want) {
			r.failf("a view of %d to %d changed while it was held", h.v.Base, h.v.Next)
		}
		h.v.Release()
	}
	r.views = nil
}

var rigSteps = []struct {
	weight int
	step   func(*rig)
}{
	{24, (*rig).appendRecords}, {8, (*rig).appendTrusted}, {20, (*rig).appendProduced}, {12, (*rig).appendFollower}, {16, (*rig).sync}, {10, (*rig).setHW},
	{6, (*rig).maintain}, {4, (*rig).deleteRecords}, {7, (*rig).truncate}, {2, (*rig).restart}, {3, (*rig).reopen}, {5, (*rig).beginEpoch}, {6, (*rig).heldTail},
	{1, (*rig).backup}, {1, (*rig).useBackup}, {3, (*rig).holdView}, {4, (*rig).releaseViews},
}

func (r *rig) step() {
	r.now += r.rng.Int64N(1000)
	if r.m.epoch < 0 && r.rng.IntN(3) == 0 {
		r.beginEpoch()
	}
	if r.m.held >= 0 && r.rng.IntN(3) == 0 {
		r.heldTail()
	}
	total := 0
	for _, s := range rigSteps {
		total += s.weight
	}
	n := r.rng.IntN(total)
	for _, s := range rigSteps {
		if n -= s.weight; n < 0 {
			s.step(r)
			break
		}
	}
	r.compare(r.log, r.m)
}

// compare is what can be asked after every step.
func (r *rig) compare(l *Log, m *model) {
	type ends struct{ start, leo, synced, hw int64 }
	got := ends{l.LogStartOffset(), l.LogEndOffset(), l.SyncedEnd(), l.HighWatermark()}
	want := ends{m.start, m.leo(), m.syncedEnd(), m.highWatermark()}
	if got != want {
		r.failf("start, end, synced, hw are %+v, want %+v", got, want)
	}
	if got := l.Epochs(); !slices.Equal(got, m.epochs) {
		r.failf("epochs %v, want %v", got, m.epochs)
	}
	if err := m.checkProducers(l); err != nil {
		r.failf("producers: %v", err)
	}
	epoch := r.rng.Int32N(m.latest()+3) - 1
	e, end := l.EndOffsetFor(epoch)
	if we, wend := m.endOffset(epoch); e != we || end != wend {
		r.failf("end offset for epoch %d of %v: %d, %d; want %d, %d", epoch, m.epochs, e, end, we, wend)
	}
	r.compareRead(l, m)
	if r.rng.IntN(8) == 0 {
		r.compareTime(l, m)
	}
}

// compareRead reads at a random offset, by View, Read and Get.
func (r *rig) compareRead(l *Log, m *model) {
	offset := m.start + r.rng.Int64N(m.leo()-m.start+1)
	limit := m.leo()
	if r.rng.IntN(3) == 0 {
		limit = min(limit, offset+r.rng.Int64N(m.leo()-offset+1))
	}
	maxBytes := r.rng.IntN(4) * r.rng.IntN(5000)
	i := m.holding(offset)
	want := i < len(m.batches) && m.batches[i].last < limit
	whole := func(got []byte, how string) {
		if !want {
			if len(got) > 0 {
				r.failf("%s at %d to %d: %d bytes, want none", how, offset, limit, len(got))
			}
			return
		}
		for j := i; ; j++ {
			b := m.batches[j].b
			if !bytes.HasPrefix(got, b) {
				r.failf("%s at %d to %d: batch %d to %d is not there", how, offset, limit, m.batches[j].base, m.batches[j].last)
			}
			if got = got[len(b):]; len(got) == 0 {
				break
			}
			if j+1 == len(m.batches) || m.batches[j+1].last >= limit {
				r.failf("%s at %d to %d: %d bytes too many", how, offset, limit, len(got))
			}
		}
	}
	v, err := l.View(offset, limit, maxBytes)
	if err != nil {
		r.failf("view at %d to %d: %v", offset, limit, err)
	}
	whole(v.Bytes, "view")
	v.Release()
	b, err := l.Read([]byte("x"), offset, limit, maxBytes)
	if err != nil || len(b) == 0 || b[0] != 'x' {
		r.failf("read at %d to %d: %v", offset, limit, err)
	}
	whole(b[1:], "read")

	rec, _, ok, err := l.Get(offset, limit, nil)
	if err != nil {
		r.failf("get %d below %d: %v", offset, limit, err)
	}
	for ; i < len(m.batches) && m.batches[i].last < limit; i++ {
		for w, err := range m.batches[i].b.Records() {
			if err != nil {
				r.failf("%v", err)
			}
			if w.Offset < offset {
				continue
			}
			if !ok || rec.Offset != w.Offset || rec.Timestamp != w.Timestamp || !bytes.Equal(rec.Value, w.Value) || !bytes.Equal(rec.Key, w.Key) {
				r.failf("get %d below %d: %v, offset %d; want offset %d", offset, limit, ok, rec.Offset, w.Offset)
			}
			return
		}
	}
	if ok {
		r.failf("get %d below %d: found offset %d, want none", offset, limit, rec.Offset)
	}
}

func (r *rig) compareTime(l *Log, m *model) {
	ts := r.now - r.rng.Int64N(30_000)
	limit := m.leo() - r.rng.Int64N(m.leo()-m.start+1)/2
	offset, at, ok, err := l.OffsetForTime(ts, limit)
	if err != nil {
		r.failf("offset for time %d: %v", ts, err)
	}
	for i := range m.batches {
		if m.batches[i].maxTs < ts || m.batches[i].base >= m.leo() {
			continue
		}
		for w, err := range m.batches[i].b.Records() {
			if err != nil {
				r.failf("%v", err)
			}
			if w.Timestamp < ts || w.Offset < m.start || w.Offset >= limit {
				continue
			}
			if m.batches[i].last >= m.leo() { // straddles what is held: not served
				continue
			}
			if !ok || offset != w.Offset || at != w.Timestamp {
				r.failf("offset for time %d below %d: %d, %d, %v; want %d, %d", ts, limit, offset, at, ok, w.Offset, w.Timestamp)
			}
			return
		}
	}
	if ok {
		r.failf("offset for time %d below %d: %d, want none", ts, limit, offset)
	}
}

// checkContent compares every byte, the indexes with fresh ones, what Verify
// says and the counters.
func (r *rig) checkContent(l *Log, m *model) {
	i := m.holding(m.start)
	var stats Stats
	stats.MaxTimestamp = record.NoTimestamp
	holes := false
	for _, s := range *l.segments.Load() {
		ix := rebuilt{interval: r.o.IndexIntervalBytes, maxTs: record.NoTimestamp}
		visit := func(f segment.Frame, b []byte) bool {
			ix.add(f, record.Batch(b).MaxTimestamp())
			if f.Last < m.start { // may be lost by a power cut, if it was not synced
				_, err := record.Check(b)
				holes = holes || err != nil
				return true
			}
			if i == len(m.batches) || !bytes.Equal(b, m.batches[i].b) {
				r.failf("%s byte %d: batch %d to %d, epoch %d, is not what was appended: batch %d of %d, log %d to %d",
					s.Name(), f.Pos, f.Base, f.Last, record.Batch(b).LeaderEpoch(), i, len(m.batches), m.start, m.end)
			}
			i++
			return true
		}
		err := s.Walk(0, visit)
		if c, ok := errors.AsType[*CorruptError](err); ok && c.Offset < m.start {
			pos, _, err2 := s.Position(m.start)
			err = errors.Join(err2, s.Walk(pos, visit))
			holes = true
		}
		if err != nil {
			r.failf("%v", err)
		}
		if !holes {
			r.checkIndexes(l, s, &ix)
		}
		stats.Segments++
		stats.Bytes += s.Size()
		stats.AllocatedBytes += s.Allocated()
		stats.MaxTimestamp = max(stats.MaxTimestamp, ix.maxTs)
		if s.Allocated() < s.Size() {
			r.failf("%s: %d bytes of %d allocated", s.Name(), s.Size(), s.Allocated())
		}
	}
	if i != len(m.batches) {
		r.failf("batch %d to %d is missing", m.batches[i].base, m.batches[i].last)
	}
	if err := l.Verify(0, math.MaxInt64, func(e *CorruptError) bool { r.failf("verify: %v", e); return false }); err != nil {
		r.failf("verify: %v", err)
	}
	got := l.Stats()
	stats.LogStartOffset, stats.HighWatermark, stats.LogEndOffset, stats.SyncedEnd = m.start, m.highWatermark(), m.leo(), m.syncedEnd()
	stats.LeaderEpoch, stats.Maps, stats.Producers = m.latest(), got.Maps, got.Producers
	if got.MaxTimestamp < stats.MaxTimestamp || holes { // a settled segment is not asked
		got.MaxTimestamp = stats.MaxTimestamp
	}
	if got != stats {
		r.failf("stats %+v, want %+v", got, stats)
	}
}

// rebuilt is what the indexes of a segment should hold (log-format §3.2).
type rebuilt struct {
	interval, since, maxTs int64
	offsets                [][2]int64      // last offset, position
	maxAt                  map[int64]bool  // last offsets of batches that hold a maximum so far
	upTo                   map[int64]int64 // last offset → largest timestamp up to there
}

func (x *rebuilt) add(f segment.Frame, maxTs int64) {
	if x.maxAt == nil {
		x.maxAt, x.upTo = map[int64]bool{}, map[int64]int64{}
	}
	if maxTs > x.maxTs {
		x.maxTs = maxTs
		x.maxAt[f.Last] = true
	}
	x.upTo[f.Last] = x.maxTs
	if x.since > x.interval && f.Pos > 0 {
		x.offsets = append(x.offsets, [2]int64{f.Last, f.Pos})
		x.since = 0
	}
	x.since += int64(f.Size)
}

func (r *rig) checkIndexes(l *Log, s *segment.Segment, want *rebuilt) {
	idx, tix := s.Indexes()
	var got [][2]int64
	for i := range idx.Len() {
		o, p := idx.Entry(i)
		got = append(got, [2]int64{o, p})
	}
	if !slices.Equal(got, want.offsets) {
		r.failf("offset index of %s: %v, rebuilt %v", s.Name(), got, want.offsets)
	}
	for i := range tix.Len() {
		ts, o := tix.Entry(i)
		if !want.maxAt[o] || want.upTo[o] != ts {
			r.failf("time index of %s: entry %d is %d at offset %d; the largest up to there is %d", s.Name(), i, ts, o, want.upTo[o])
		}
	}
	// A sealed segment has its final entry when it is synced at the latest.
	settled := s.Sealed() && !slices.ContainsFunc(l.sync.sealed, func(x sealedSegment) bool { return x.seg == s })
	if ts, _, ok := tix.Last(); settled && want.maxTs >= 0 && (!ok || ts != want.maxTs) {
		r.failf("time index of %s, which is sealed, ends with %d, want %d", s.Name(), ts, want.maxTs)
	}
}

// checkFiles looks for files that should not be there right after an open.
func (r *rig) checkFiles(fs *vfs.Mem, l *Log) {
	infos, err := fs.List(logDir)
	if err != nil {
		r.failf("%v", err)
	}
	bases := map[string]bool{}
	for _, s := range *l.segments.Load() {
		bases[segment.FileName(s.Base(), "")] = true
	}
	for _, f := range infos {
		stem := strings.TrimSuffix(f.Name, filepath.Ext(f.Name))
		switch {
		case f.Name == lockName, f.Name == slotName, f.Name == epochFile:
		case bases[stem] && slices.Contains([]string{".log", ".index", ".timeindex"}, filepath.Ext(f.Name)):
		case slices.Contains([]string{windowSuffix, snapshotSuffix}, filepath.Ext(f.Name)):
			if end, ok := segment.ParseName(f.Name, filepath.Ext(f.Name)); !ok || end > l.trueEnd() {
				r.failf("%s is left in the directory of a log that ends at %d", f.Name, l.trueEnd())
			}
		default:
			r.failf("%s is left in the directory of a log of %d segments", f.Name, len(bases))
		}
	}
}

// run runs f and returns what failed.
func (r *rig) run(f func()) (err error) {
	defer func() {
		if p := recover(); p != nil {
			if bad, ok := p.(rigFailure); ok {
				err = errors.New(bad.msg)
			} else {
				err = fmt.Errorf("panic: %v\n%s", p, debug.Stack())
			}
		}
	}()
	f()
	return nil
}

// report is the end of a failed run's history.
func (r *rig) report() string {
	from := max(len(r.history)-60, 0)
	return r.history[0] + "\n" + strings.Join(r.history[from:], "\n")
}

// TestModel runs random workloads on a log and on its model side by side, without
// a crash. A failing seed is printed; -model.seed runs it alone.
func TestModel(t *testing.T) {
	n := *modelSeeds
	if testing.Short() {
		n = min(n, 60)
	}
	each(t, n, 0, func(seed uint64) error {
		r := newRig(seed)
		err := r.run(func() {
			r.open(false)
			for range 150 {
				r.step()
			}
			r.releaseViews()
			r.checkContent(r.log, r.m)
			r.finishSync()
			for _, b := range r.backups {
				r.checkBackup(r.mem, b, true)
			}
			r.checkContent(r.log, r.m)
			if err := r.log.Close(r.time()); err != nil {
				r.failf("close: %v", err)
			}
			if n := r.o.Maps.Count(); n != 0 {
				r.failf("%d maps are left after close", n)
			}
		})
		if err != nil {
			err = fmt.Errorf("seed %d: %w\n%s", seed, err, r.report())
		}
		return err
	})
}
