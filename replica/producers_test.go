package replica_test

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tidemark-log/tidemark/dedupe"
	"github.com/tidemark-log/tidemark/internal/checkpoint"
	"github.com/tidemark-log/tidemark/internal/vfs"
	"github.com/tidemark-log/tidemark/record"
	"github.com/tidemark-log/tidemark/replica"
	"github.com/tidemark-log/tidemark/segment"
)

// batch is one that an idempotent producer sends.
type batch struct {
	pid   int64
	epoch int16
	seq   int32
	n     int
	txn   bool
	ts    time.Time // default t0
}

func (s batch) bytes(base int64, epoch int32) record.Batch {
	recs := make([]record.Record, s.n)
	ts := t0
	if !s.ts.IsZero() {
		ts = s.ts
	}
	for i := range recs {
		recs[i] = record.Record{Timestamp: ts.UnixMilli(), Value: fmt.Append(nil, "value ", s.seq, i)}
	}
	spec := record.NewSpec()
	spec.BaseOffset, spec.LeaderEpoch = base, epoch
	spec.ProducerID, spec.ProducerEpoch, spec.BaseSequence, spec.Transactional = s.pid, s.epoch, s.seq, s.txn
	return record.Encode(make([]byte, record.Size(recs, 0)), recs, &spec)
}

// code is Kafka's error code of err, 0 for nil.
func code(err error) int16 {
	if e, ok := errors.AsType[*record.ClientError](err); ok {
		return e.Code
	}
	if err != nil {
		return math.MinInt16
	}
	return 0
}

func (x *lab) send(s batch) (replica.Appended, error) {
	return x.log.Append(s.bytes(0, -1), replica.Client, t0)
}

// accept sends a batch that must be appended at offset base.
func (x *lab) accept(base int64, s batch) {
	x.t.Helper()
	a, err := x.send(s)
	if want := (replica.Appended{Base: base, End: base + int64(s.n), MaxTimestamp: a.MaxTimestamp}); err != nil || a != want {
		x.t.Fatalf("%+v = %+v, %v; want it at %d", s, a, err, base)
	}
}

// again sends a batch that must be answered with its original at offset base.
func (x *lab) again(base int64, s batch) {
	x.t.Helper()
	end := x.log.LogEndOffset()
	a, err := x.send(s)
	want := replica.Appended{Base: base, End: base + int64(s.n), Duplicate: true, MaxTimestamp: a.MaxTimestamp}
	if err != nil || a != want || a.MaxTimestamp < 0 {
		x.t.Fatalf("%+v again = %+v, %v; want the original at %d", s, a, err, base)
	}
	if x.log.LogEndOffset() != end {
		x.t.Fatalf("a duplicate moved the end from %d to %d", end, x.log.LogEndOffset())
	}
}

// refuse sends a batch that must be refused with a code and change nothing.
func (x *lab) refuse(want int16, s batch) {
	x.t.Helper()
	end := x.log.LogEndOffset()
	before, known := x.log.Producer(s.pid)
	a, err := x.send(s)
	if code(err) != want || a != (replica.Appended{}) {
		x.t.Fatalf("%+v = %+v, %v; want code %d", s, a, err, want)
	}
	if after, still := x.log.Producer(s.pid); after != before || still != known || x.log.LogEndOffset() != end {
		x.t.Fatalf("%+v was refused, and changed %+v to %+v", s, before, after)
	}
}

func (x *lab) marker(pid int64, epoch int16, coordinator int32) error {
	b := record.AppendMarker(nil, record.Marker{Timestamp: t0.UnixMilli(), ProducerID: pid, ProducerEpoch: epoch, Type: record.Commit, CoordinatorEpoch: coordinator})
	_, err := x.log.Append(b, replica.Trusted, t0)
	return err
}

func TestC102_Wrap(t *testing.T) {
	x := newLab(t, replica.Options{})
	x.accept(0, batch{pid: 1, seq: math.MaxInt32 - 1, n: 1})
	x.refuse(45, batch{pid: 1, seq: 0, n: 1})
	x.accept(1, batch{pid: 1, seq: math.MaxInt32, n: 1})
	x.refuse(45, batch{pid: 1, seq: 1, n: 1})
	x.accept(2, batch{pid: 1, seq: 0, n: 1})
	// One batch over the edge (scenario 106).
	x.accept(3, batch{pid: 2, seq: math.MaxInt32 - 10, n: 21})
	x.again(3, batch{pid: 2, seq: math.MaxInt32 - 10, n: 21})
	x.accept(24, batch{pid: 2, seq: 10, n: 1})
}

func TestC104_LastFive(t *testing.T) {
	x := newLab(t, replica.Options{})
	sent := []batch{{seq: 0, n: 1}, {seq: 1, n: 3}, {seq: 4, n: 2}, {seq: 6, n: 1}, {seq: 7, n: 4}, {seq: 11, n: 1}}
	bases := []int64{0, 1, 4, 6, 7, 11}
	for i, s := range sent {
		x.accept(bases[i], s)
	}
	check := func() {
		t.Helper()
		for i := 5; i >= 1; i-- {
			x.again(bases[i], sent[i])
		}
		x.refuse(45, sent[0])
		x.refuse(45, batch{seq: 8, n: 2}) // cut differently (scenario 124)
	}
	check()
	for _, end := range []func(){x.close, x.kill, x.close, x.kill} {
		end()
		x.open()
		check() // our own file has the whole window, Kafka's the last batch only
	}
	x.accept(12, batch{seq: 12, n: 1})
	if got := x.log.Stats().Producers; got.Producers != 1 || got.Duplicates != 5 || got.Refused != 2 {
		t.Errorf("stats %+v", got)
	}
}

func TestC106_UnknownProducer(t *testing.T) {
	x := newLab(t, replica.Options{})
	x.accept(0, batch{pid: 1, seq: 500, n: 1})
	x.refuse(45, batch{pid: 1, epoch: 1, seq: 500, n: 1})
	x.accept(1, batch{pid: 1, epoch: 1, seq: 0, n: 1})
	x.refuse(47, batch{pid: 1, seq: 501, n: 1})
}

// TestC107_Expiry: a producer is forgotten after its time, and goes on where it
// was all the same; one with an open transaction is not (scenarios 114, 116, 128).
func TestC107_Expiry(t *testing.T) {
	x := newLab(t, replica.Options{ProducerExpiration: 10 * time.Minute})
	at := func(d time.Duration) time.Time { return t0.Add(d) }
	maintain := func(d time.Duration) replica.Next {
		t.Helper()
		n, err := x.log.Maintain(at(d))
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	known := func(pid int64, want bool) {
		t.Helper()
		if _, ok := x.log.Producer(pid); ok != want {
			t.Errorf("producer %d known: %v", pid, ok)
		}
	}
	x.accept(0, batch{pid: 1, n: 2})
	x.accept(2, batch{pid: 2, n: 1, txn: true})
	if n := maintain(0); n.At.IsZero() || n.At.After(at(10*time.Minute)) {
		t.Errorf("Maintain is due %v", n.At)
	}
	maintain(9 * time.Minute)
	known(1, true)
	maintain(10 * time.Minute)
	known(1, false)
	known(2, true)
	x.accept(3, batch{pid: 1, seq: 2, n: 1, ts: at(10 * time.Minute)})
	if got := x.log.Stats().Producers; got.Expired != 1 {
		t.Errorf("%d expired", got.Expired)
	}
	// The same while a snapshot is loaded.
	x.close()
	x.o.FS = x.fs
	l, err := replica.Open(x.dir, x.o, at(time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	x.log = l
	known(1, false)
	known(2, true)
	x.lead()
	x.accept(4, batch{pid: 1, seq: 77, n: 1})
}

// TestC110_SnapshotWithoutData: a log of a real broker whose records are gone, but
// not what its snapshot says of their producers.
func TestC110_SnapshotWithoutData(t *testing.T) {
	from := filepath.Join("..", "..", "shared", "realdata", "kafka-2.7.1-compacted-and-expired", "myTopic-0")
	infos, err := os.ReadDir(from)
	if err != nil {
		if os.Getenv("TIDEMARK_REQUIRE_REALDATA") != "" {
			t.Fatal(err)
		}
		t.Skip("no real brokers' files beside the checkout")
	}
	x := newLab(t, replica.Options{})
	x.close()
	for _, name := range x.names() {
		x.remove(name)
	}
	for _, f := range infos {
		b, err := os.ReadFile(filepath.Join(from, f.Name()))
		if err != nil {
			t.Fatal(err)
		}
		x.write(f.Name(), b)
	}
	x.o.ProducerExpiration = 100 * 365 * 24 * time.Hour
	x.open()
	if got := x.log.Stats().Producers; got.Producers != 3 || x.log.LogEndOffset() != 38 {
		t.Fatalf("%d producers, end %d", got.Producers, x.log.LogEndOffset())
	}
	x.again(24, batch{pid: 4003, n: 14})
	x.accept(38, batch{pid: 4003, seq: 14, n: 1})
}

// TestC111_Flood: clients that take an id for each request.
func TestC111_Flood(t *testing.T) {
	x := newLab(t, replica.Options{MaxProducers: 1000, SegmentBytes: 1 << 20})
	n := int64(20_000)
	if *long {
		n = 1_000_000
	}
	for pid := range n {
		x.accept(pid, batch{pid: pid, n: 1})
		if pid%100 == 0 {
			x.again(pid, batch{pid: pid, n: 1})
		}
	}
	got := x.log.Stats().Producers
	if got.Producers != 1000 || got.Evicted != n-1000 {
		t.Errorf("%d producers, %d evicted", got.Producers, got.Evicted)
	}
	if per := got.Bytes / 1000; per > 200 {
		t.Errorf("%d bytes a producer", per)
	}
	x.close()
	x.open()
	if got := x.log.Stats().Producers.Producers; got != 1000 {
		t.Errorf("%d producers after a reopen", got)
	}
	// Expiry gives the memory back.
	if _, err := x.log.Maintain(t0); err != nil {
		t.Fatal(err)
	}
	if _, err := x.log.Maintain(t0.Add(25 * time.Hour)); err != nil {
		t.Fatal(err)
	}
	if got := x.log.Stats().Producers; got.Producers != 0 || got.Bytes > 1000 {
		t.Errorf("after expiry: %+v", got)
	}
}

func TestC114_OldEpoch(t *testing.T) {
	x := newLab(t, replica.Options{})
	x.accept(0, batch{pid: 1, epoch: 5, n: 1})
	x.refuse(47, batch{pid: 1, epoch: 4, n: 1})
	x.refuse(47, batch{pid: 1, epoch: 4, seq: 1, n: 1})
	x.follow(batch{pid: 1, epoch: 4, n: 1}.bytes(1, 0))
	if p, _ := x.log.Producer(1); p.Epoch != 4 || p.N != 1 {
		t.Errorf("after a follower's append: %+v", p)
	}
}

// TestC116_EpochRunsOut: the log takes the last epoch there is and never one
// below; a new id is for whoever hands them out.
func TestC116_EpochRunsOut(t *testing.T) {
	x := newLab(t, replica.Options{})
	x.accept(0, batch{pid: 1, epoch: math.MaxInt16, n: 1})
	x.refuse(47, batch{pid: 1, epoch: math.MaxInt16 - 1, n: 1})
	x.refuse(87, batch{pid: 1, epoch: math.MinInt16, n: 1})
	x.refuse(87, batch{pid: 1, epoch: -1, n: 1})
	x.accept(1, batch{pid: 2, epoch: 0, n: 1})
}

func TestC117_ProducerZero(t *testing.T) {
	x := newLab(t, replica.Options{})
	x.accept(0, batch{pid: 0, n: 1})
	x.again(0, batch{pid: 0, n: 1})
	x.refuse(87, batch{pid: 0, seq: -1, n: 1})
	for i := range int64(2) { // no producer: whatever the sequence says
		x.accept(1+i, batch{pid: -1, epoch: -1, seq: 7, n: 1})
	}
	if got := x.log.Stats().Producers.Producers; got != 1 {
		t.Errorf("%d producers", got)
	}
}

func TestC118_SequenceCountsRecords(t *testing.T) {
	x := newLab(t, replica.Options{})
	x.accept(0, batch{pid: 3, n: 3})
	x.accept(3, batch{pid: 3, seq: 3, n: 1})
	x.refuse(87, batch{pid: 3, seq: -1, n: 1})
	x.refuse(45, batch{pid: 3, seq: 0, n: 1})
	x.refuse(45, batch{pid: 3, seq: 2, n: 1})
	x.accept(4, batch{pid: 3, seq: 4, n: 7})
	x.accept(11, batch{pid: 3, seq: 11, n: 1})
}

// TestScenario101 is scenarios 101 to 111, 115, 117, 122 and 126 of log-format
// §10.6 and §10.7 on a log.
func TestScenario101_Producers(t *testing.T) {
	t.Run("gap, older epoch, marker of a newer one", func(t *testing.T) {
		x := newLab(t, replica.Options{})
		x.accept(0, batch{pid: 1, n: 1})
		x.accept(1, batch{pid: 1, seq: 1, n: 1})
		x.refuse(45, batch{pid: 1, seq: 5, n: 1})
		x.accept(2, batch{pid: 1, epoch: 1, n: 1})
		x.refuse(47, batch{pid: 1, n: 1})
		if err := x.marker(1, 2, 0); err != nil { // 108, 109
			t.Fatal(err)
		}
		x.refuse(45, batch{pid: 1, epoch: 2, seq: 2, n: 1})
		x.refuse(45, batch{pid: 1, epoch: 3, seq: 2, n: 1})
		x.refuse(47, batch{pid: 1, epoch: 1, n: 1}) // 122
		x.accept(4, batch{pid: 1, epoch: 2, n: 1})
	})
	t.Run("only a marker is known", func(t *testing.T) {
		x := newLab(t, replica.Options{})
		if err := x.marker(1, 2, 0); err != nil {
			t.Fatal(err)
		}
		x.refuse(47, batch{pid: 1, n: 1})
		x.refuse(45, batch{pid: 1, epoch: 2, seq: 17, n: 1})
		x.accept(1, batch{pid: 1, epoch: 2, n: 1})
	})
	t.Run("transactions", func(t *testing.T) {
		x := newLab(t, replica.Options{})
		x.accept(0, batch{pid: 1, n: 5, txn: true})
		x.refuse(48, batch{pid: 1, seq: 5, n: 1})
		x.accept(5, batch{pid: 1, seq: 5, n: 5, txn: true})
		if p, _ := x.log.Producer(1); p.TxnFirstOffset != 0 {
			t.Errorf("open transaction: %+v", p)
		}
		if err := x.marker(1, 0, 9); err != nil {
			t.Fatal(err)
		}
		if p, _ := x.log.Producer(1); p.TxnFirstOffset != -1 || p.N != 2 || p.CoordinatorEpoch != 9 {
			t.Errorf("after the marker: %+v", p)
		}
		x.again(5, batch{pid: 1, seq: 5, n: 5, txn: true})
		if err := x.marker(1, 0, 8); code(err) != 52 { // 117
			t.Errorf("marker of an older coordinator: %v", err)
		}
		x.follow(record.AppendMarker(nil, record.Marker{Offset: 11, ProducerID: 1, Type: record.Abort, CoordinatorEpoch: 8, Timestamp: t0.UnixMilli()}))
		if p, _ := x.log.Producer(1); p.CoordinatorEpoch != 8 {
			t.Errorf("follower: %+v", p)
		}
	})
	t.Run("follower takes what its leader took", func(t *testing.T) {
		x := newLab(t, replica.Options{})
		x.follow(batch{pid: 1, seq: 40, n: 1}.bytes(0, 0), batch{pid: 1, seq: 50, n: 2}.bytes(1, 0), batch{pid: 1, seq: 50, n: 2}.bytes(3, 0))
		x.lead()
		x.again(1, batch{pid: 1, seq: 50, n: 2})
		x.accept(5, batch{pid: 1, seq: 52, n: 1})
	})
}

// TestProducersFollowTheLog: the table says what the log says, whatever was
// written, torn or left over (log-format §5.6; scenarios 112, 113, 118, 121, 130).
func TestProducersFollowTheLog(t *testing.T) {
	snapshot := func(end int64) string { return segment.FileName(end, ".snapshot") }
	window := func(end int64) string { return segment.FileName(end, dedupe.Suffix) }
	build := func(t *testing.T) *lab {
		x := newLab(t, replica.Options{SegmentBytes: 4 << 10})
		x.accept(0, batch{pid: 9, n: 1})
		for i := int64(1); len(x.segments()) < 4; i++ {
			x.accept(i, batch{pid: i % 2, seq: int32((i - 1) / 2), n: 1})
			if _, err := x.log.Maintain(t0); err != nil {
				t.Fatal(err)
			}
		}
		return x
	}
	// rest sends everybody's last batches once more, and their next ones.
	rest := func(x *lab) {
		x.t.Helper()
		end := x.log.LogEndOffset()
		x.again(0, batch{pid: 9, n: 1})
		for i := end - 1; i >= end-10; i-- {
			x.again(i, batch{pid: i % 2, seq: int32((i - 1) / 2), n: 1})
		}
		i := end - 11
		x.refuse(45, batch{pid: i % 2, seq: int32((i - 1) / 2), n: 1})
		x.accept(end, batch{pid: end % 2, seq: int32((end - 1) / 2), n: 1})
	}
	t.Run("files at each roll and at the end", func(t *testing.T) {
		x := build(t)
		for _, base := range x.segments()[1:] {
			if !x.has(snapshot(base)) || !x.has(window(base)) {
				t.Errorf("no files at the roll to %d: %v", base, x.names())
			}
		}
		rest(x)
		end := x.log.LogEndOffset()
		x.close()
		if !x.has(snapshot(end)) || !x.has(window(end)) {
			t.Errorf("no files at the end %d: %v", end, x.names())
		}
		x.open()
		rest(x)
	})
	for _, tc := range []struct {
		name string
		harm func(x *lab, end int64)
	}{
		{"killed", func(x *lab, _ int64) { x.kill() }},
		{"newest window file torn", func(x *lab, end int64) { x.close(); x.write(window(end), x.read(window(end))[:70]) }},
		{"every window file torn", func(x *lab, end int64) {
			x.close()
			for _, name := range x.names() {
				if strings.HasSuffix(name, dedupe.Suffix) {
					x.write(name, []byte("junk"))
				}
			}
		}},
		{"no window file", func(x *lab, end int64) {
			x.close()
			for _, name := range x.names() {
				if strings.HasSuffix(name, dedupe.Suffix) {
					x.remove(name)
				}
			}
		}},
		{"no file at all", func(x *lab, end int64) {
			x.kill()
			for _, name := range x.names() {
				if strings.HasSuffix(name, dedupe.Suffix) || strings.HasSuffix(name, ".snapshot") {
					x.remove(name)
				}
			}
		}},
		{"files above the end", func(x *lab, end int64) {
			x.close()
			x.write(window(end+5), x.read(window(end)))
			x.write(snapshot(end+5), x.read(snapshot(end)))
		}},
		{"window file of another log", func(x *lab, end int64) {
			y := newLab(x.t, replica.Options{})
			for i := range end {
				y.accept(i, batch{pid: 77, seq: int32(i), n: 1})
			}
			y.close()
			x.close()
			x.write(window(end), y.read(window(end)))
		}},
		{"window file under another name", func(x *lab, end int64) {
			x.kill()
			x.write(window(end), x.read(window(x.segments()[1])))
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			x := build(t)
			tc.harm(x, x.log.LogEndOffset())
			x.open()
			rest(x)
			for _, name := range x.names() {
				for _, suffix := range []string{dedupe.Suffix, ".snapshot"} {
					if at, ok := segment.ParseName(name, suffix); ok && at > x.log.LogEndOffset() {
						t.Errorf("%s is left", name)
					}
				}
			}
		})
	}
	t.Run("truncated", func(t *testing.T) {
		x := build(t)
		bases := x.segments()
		for _, to := range []int64{x.log.LogEndOffset() - 3, bases[2] + 12, bases[1] + 12, 12} {
			if err := x.log.Truncate(to); err != nil {
				t.Fatal(err)
			}
			for _, name := range x.names() {
				if at, ok := segment.ParseName(name, dedupe.Suffix); ok && at > to {
					t.Errorf("%s is left after a cut to %d", name, to)
				}
			}
			x.lead()
			rest(x)
		}
		if err := x.log.TruncateFullyAndStartAt(100); err != nil {
			t.Fatal(err)
		}
		x.lead()
		if got := x.log.Stats().Producers.Producers; got != 0 {
			t.Errorf("%d producers in an empty log", got)
		}
		x.accept(100, batch{pid: 9, seq: 55, n: 1})
		x.close()
		x.open()
		x.again(100, batch{pid: 9, seq: 55, n: 1})
	})
	t.Run("cut to before the first producer", func(t *testing.T) {
		x := newLab(t, replica.Options{})
		x.append(5, 10)
		x.accept(5, batch{pid: 1, n: 1})
		if err := x.log.Truncate(3); err != nil {
			t.Fatal(err)
		}
		x.lead()
		x.accept(3, batch{pid: 1, seq: 8, n: 1})
		x.kill()
		x.open()
		x.again(3, batch{pid: 1, seq: 8, n: 1})
	})
}

// TestExplainProducers: Explain says of every file of producers what Open does with
// it, and from where the log is read.
func TestExplainProducers(t *testing.T) {
	snapshot := func(end int64) string { return segment.FileName(end, ".snapshot") }
	window := func(end int64) string { return segment.FileName(end, dedupe.Suffix) }
	const base, end = 5, 6 // of the last segment, and of the log
	for _, tc := range []struct {
		name string
		harm func(x *lab)
		want string // ours, Kafka's, offset
	}{
		{"closed", func(x *lab) {}, "5 unread, 6 loaded; 5 unread, 6 unread; from 6"},
		{"killed", func(x *lab) { x.open(); x.accept(end, batch{pid: 1, seq: 3, n: 1}); x.kill() }, "5 unread, 6 loaded; 5 unread, 6 unread; from 6"},
		{"ours torn", func(x *lab) { x.write(window(end), x.read(window(end))[:70]) }, "5 loaded, 6 refused; 5 unread, 6 unread; from 5"},
		{"ours all torn", func(x *lab) {
			x.write(window(end), nil)
			x.write(window(base), nil)
		}, "5 refused, 6 refused; 5 unread, 6 unread; from 0"},
		{"above the end", func(x *lab) {
			x.write(window(end+1), x.read(window(end)))
			x.write(snapshot(end+1), x.read(snapshot(end)))
		}, "5 unread, 6 loaded, 7 removed; 5 unread, 6 unread, 7 removed; from 6"},
		{"no slot", func(x *lab) { x.remove(slotFile) }, "5 removed, 6 removed; 5 unread, 6 loaded; from 6"},
		{"no slot, Kafka's torn", func(x *lab) {
			x.remove(slotFile)
			x.write(snapshot(end), x.read(snapshot(end))[:10])
		}, "5 removed, 6 removed; 5 loaded, 6 refused; from 5"},
		{"damaged", func(x *lab) {
			b := x.read(logName(0))
			b[len(b)-1] ^= 1
			x.write(logName(0), b)
			x.remove(indexName(0), slotFile)
			x.o.Checkpoints = replica.Checkpoints{Valid: true, RecoveryPoint: end, HighWatermark: end, LogStart: -1}
		}, "5 unread, 6 unread; 5 unread, 6 unread; from -1"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			x := newLab(t, replica.Options{SegmentBytes: 4 << 10})
			for i := int64(0); i < end; i += 2 {
				x.accept(i, batch{pid: 1, seq: int32(i / 2), n: 1})
				x.append(1, 1500)
			}
			if got := x.segments(); !slices.Equal(got, []int64{0, base}) {
				t.Fatalf("segments %v", got)
			}
			if _, err := x.log.Maintain(t0); err != nil {
				t.Fatal(err)
			}
			x.close()
			tc.harm(x)
			o := x.o
			o.Logger, o.FS = nil, x.fs
			p, err := replica.Explain(x.dir, o, t0)
			if err != nil || p.Refused != nil {
				t.Fatal(err, p.Refused)
			}
			var kinds [2][]string
			for _, f := range p.Producers {
				kind := 0
				if strings.HasSuffix(f.Name, ".snapshot") {
					kind = 1
				}
				kinds[kind] = append(kinds[kind], fmt.Sprintf("%d %s", f.Offset, f.Treatment))
			}
			got := fmt.Sprintf("%s; %s; from %d", strings.Join(kinds[0], ", "), strings.Join(kinds[1], ", "), p.ProducersFrom)
			if got != tc.want {
				t.Errorf("%s; want %s", got, tc.want)
			}
			x.open() // compares
		})
	}
}

// TestProducersForeign: after somebody else had the folder, files of ours that
// tell of an earlier log are not believed.
func TestProducersForeign(t *testing.T) {
	x := newLab(t, replica.Options{})
	x.accept(0, batch{pid: 1, n: 1})
	x.accept(1, batch{pid: 1, seq: 1, n: 1})
	x.close()
	// It cut the log to 1 and wrote another batch there, and its snapshot.
	first := batch{pid: 1, n: 1}.bytes(0, 0)
	second := batch{pid: 2, seq: 30, n: 1}.bytes(1, 0)
	third := batch{pid: 2, seq: 31, n: 4}.bytes(2, 0)
	x.write(logName(0), slices.Concat(first, second, third))
	x.remove(indexName(0), timeName(0), segment.FileName(2, ".snapshot"))
	x.open()
	if end := x.log.LogEndOffset(); end != 6 {
		t.Fatalf("end %d", end)
	}
	x.again(1, batch{pid: 2, seq: 30, n: 1})
	x.accept(6, batch{pid: 1, seq: 1, n: 1})
	if x.has(segment.FileName(2, dedupe.Suffix)) {
		t.Error("a window file of the earlier log is left")
	}
}

// TestNoProducersNoFiles: a log that never saw a producer pays nothing for them.
func TestNoProducersNoFiles(t *testing.T) {
	x := newLab(t, replica.Options{SegmentBytes: 4 << 10})
	for len(x.segments()) < 3 {
		x.append(5, 100)
		if _, err := x.log.Maintain(t0); err != nil {
			t.Fatal(err)
		}
	}
	for _, end := range []func(){x.close, x.kill} {
		end()
		for _, name := range x.names() {
			if strings.HasSuffix(name, dedupe.Suffix) || strings.HasSuffix(name, ".snapshot") {
				t.Errorf("there is %s", name)
			}
		}
		// Nor is the log read for them: nobody sees a flipped bit far back.
		b := x.read(logName(0))
		b[200] ^= 1
		x.write(logName(0), b)
		x.open()
		x.undamaged()
		b[200] ^= 1
		x.write(logName(0), b)
		if got := x.log.Stats().Producers; got != (replica.ProducerStats{}) {
			t.Errorf("%+v", got)
		}
	}
}

// TestProducersInBackup: a copy knows what its records' producers sent, up to its
// own end.
func TestProducersInBackup(t *testing.T) {
	x := newLab(t, replica.Options{})
	x.accept(0, batch{pid: 1, n: 3})
	x.accept(3, batch{pid: 1, seq: 3, n: 1})
	x.sync()
	x.log.SetHighWatermark(3)
	if err := x.log.Backup("/copy"); err != nil {
		t.Fatal(err)
	}
	x.accept(4, batch{pid: 1, seq: 4, n: 1})
	y := &lab{t: t, mem: x.mem, fs: x.mem, dir: "/copy", o: x.o, warns: x.warns}
	y.open()
	y.again(0, batch{pid: 1, n: 3})
	y.accept(3, batch{pid: 1, seq: 3, n: 1})
	y.close()
	x.again(4, batch{pid: 1, seq: 4, n: 1})
}

// TestProducerSnapshotsBesideAppends: files are written while appends go on, and
// a slow disk under a file holds up none of them.
func TestProducerSnapshotsBesideAppends(t *testing.T) {
	x := newLab(t, replica.Options{SegmentBytes: 4 << 10, Sync: replica.Never})
	stop, done := make(chan struct{}), make(chan error)
	go func() {
		for {
			select {
			case <-stop:
				done <- nil
				return
			default:
			}
			if _, err := x.log.Maintain(t0); err != nil {
				done <- err
				return
			}
		}
	}()
	for i := range int64(3000) {
		x.accept(i, batch{pid: i % 50, seq: int32(i / 50), n: 1})
		if i%7 == 0 {
			x.again(i, batch{pid: i % 50, seq: int32(i / 50), n: 1})
		}
	}
	close(stop)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	x.kill()
	x.open()
	for i := int64(2750); i < 3000; i++ {
		x.again(i, batch{pid: i % 50, seq: int32(i / 50), n: 1})
	}
}

// TestFullDiskUnderSnapshots: a snapshot that has no room is news, no failure; what it
// would have said is read from the log.
func TestFullDiskUnderSnapshots(t *testing.T) {
	x := newLab(t, replica.Options{})
	x.accept(0, batch{pid: 1, n: 1})
	x.accept(1, batch{pid: 1, seq: 1, n: 1})
	faulty := vfs.NewFaulty(x.mem)
	x.close()
	x.fs = faulty
	x.open()
	x.accept(2, batch{pid: 1, seq: 2, n: 1})
	faulty.SetRules(vfs.Rule{Ops: vfs.OpAllocate, Glob: "*.producers.tmp", Err: errors.New("no space left")})
	x.close()
	faulty.SetRules()
	x.open()
	for i := range int64(3) {
		x.again(i, batch{pid: 1, seq: int32(i), n: 1})
	}
}

// go test -run - -bench Produced -benchtime 1x ./replica
//
// A client's appends with and without a producer, in turn; ratio is the median of
// the paired rounds, upper their 95 % bound.
func BenchmarkProduced(b *testing.B) {
	for _, size := range []int{100, 1024} {
		for _, n := range []int{1, 100} {
			for _, producers := range []int64{1, 1000} {
				b.Run(fmt.Sprintf("value=%d/records=%d/producers=%d", size, n, producers), func(b *testing.B) {
					benchProduced(b, size, n, producers)
				})
			}
		}
	}
}

func benchProduced(b *testing.B, size, n int, producers int64) {
	open := func(name string) *replica.Log {
		l, err := replica.Open(filepath.Join(b.TempDir(), name), replica.Options{Sync: replica.Never, Sole: true, SegmentBytes: 1 << 30}, t0)
		if err == nil {
			err = l.BeginEpoch(0)
		}
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { l.Close(t0) })
		return l
	}
	with, without := open("with"), open("without")
	recs := slices.Repeat([]record.Record{{Timestamp: t0.UnixMilli(), Value: make([]byte, size)}}, n)
	spec := record.NewSpec()
	round := 2000 / n
	batches, plains := make([]record.Batch, round), make([]record.Batch, round)
	for i := range batches {
		batches[i], plains[i] = make(record.Batch, record.Size(recs, 0)), make(record.Batch, record.Size(recs, 0))
	}
	sent := int64(0)
	prepare := func() { // both anew, so that they are as near in the caches
		for i := range batches {
			spec.ProducerID, spec.ProducerEpoch, spec.BaseSequence = record.NoProducer, record.NoProducerEpoch, record.NoSequence
			record.Encode(plains[i], recs, &spec)
			spec.ProducerID, spec.ProducerEpoch, spec.BaseSequence = sent%producers, 0, int32(sent/producers)*int32(n)
			record.Encode(batches[i], recs, &spec)
			sent++
		}
	}
	run := func(l *replica.Log, batches []record.Batch) time.Duration {
		start := time.Now()
		for _, x := range batches {
			if _, err := l.Append(x, replica.Client, t0); err != nil {
				b.Fatal(err)
			}
		}
		took := time.Since(start)
		if _, err := l.Maintain(t0); err != nil {
			b.Fatal(err)
		}
		return took
	}
	var ratios []float64
	var a, p time.Duration
	for len(ratios) < 200 {
		prepare()
		var dw, dp time.Duration
		if len(ratios)%2 == 0 {
			dw, dp = run(with, batches), run(without, plains)
		} else {
			dp, dw = run(without, plains), run(with, batches)
		}
		ratios = append(ratios, float64(dw)/float64(dp))
		a, p = a+dw, p+dp
	}
	slices.Sort(ratios)
	k := len(ratios)
	// The 95 % bound of the median, by order statistics.
	upper := min(k-1, k/2+int(math.Ceil(0.98*math.Sqrt(float64(k)))))
	b.ReportMetric(ratios[k/2], "ratio")
	b.ReportMetric(ratios[upper], "upper")
	b.ReportMetric(float64(p.Nanoseconds())/float64(k*round), "ns-without")
	b.ReportMetric(float64(a.Nanoseconds())/float64(k*round), "ns-with")
	b.ReportMetric(0, "ns/op")
}

// TestCleanWithoutSnapshot: who hands a clean folder over without its snapshots
// wants an empty table (log-format §12.1); without the marker the log is read.
func TestCleanWithoutSnapshot(t *testing.T) {
	for _, clean := range []bool{true, false} {
		x := newLab(t, replica.Options{})
		x.accept(0, batch{pid: 1, n: 1})
		x.close()
		x.remove(slotFile, segment.FileName(1, ".snapshot"))
		x.o.Checkpoints = replica.Checkpoints{Valid: true, RecoveryPoint: 1, HighWatermark: 1, LogStart: -1, Clean: clean}
		x.open()
		if clean {
			x.accept(1, batch{pid: 1, n: 1})
		} else {
			x.again(0, batch{pid: 1, n: 1})
		}
	}
}

// TestEpochsWithoutProducerFiles: a log that was closed in order, but without the
// room for its producer files, does not sleep. The epoch file is then mended at
// once: nothing wakes this log later, and the next append would get an epoch that
// it was not written in.
func TestEpochsWithoutProducerFiles(t *testing.T) {
	x := newLab(t, replica.Options{})
	x.accept(0, batch{pid: 1, n: 3})
	x.sync()
	if err := x.log.BeginEpoch(5); err != nil { // and nothing is written in it
		t.Fatal(err)
	}
	x.close()
	x.remove(segment.FileName(3, dedupe.Suffix), segment.FileName(3, ".snapshot"))
	x.open()
	x.undamaged()
	want := checkpoint.AppendEpochs(nil, x.log.Epochs())
	if got := x.read("leader-epoch-checkpoint"); !bytes.Equal(got, want) {
		t.Errorf("the epoch file holds %q, the log %q", got, want)
	}
	x.append(1, 100)
	x.kill()
	x.open()
	x.verify()
}
