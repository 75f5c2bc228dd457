package replica_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/tidemark-log/tidemark/internal/invariant"
	"github.com/tidemark-log/tidemark/partition"
	"github.com/tidemark-log/tidemark/record"
	"github.com/tidemark-log/tidemark/replica"
)

// TestFetcherAllocates: nothing per fetch, on files of the operating system.
func TestFetcherAllocates(t *testing.T) {
	for _, sync := range []replica.SyncMode{replica.Never, replica.Always} {
		l, err := replica.Open(t.TempDir(), replica.Options{Sync: sync}, t0)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close(t0)
		f := replica.NewFetcher(l, replica.FetcherOptions{ID: tp, Node: 1})
		if err := f.Follow((&rep{id: 0, epoch: 1}).record(1), t0); err != nil {
			t.Fatal(err)
		}
		batch := batchAt(0, 1, 10, 100)
		var s replica.Step
		var r partition.Fetched
		round := func() {
			for f.Next(t0, &s); s.Do == replica.SyncFirst; f.Next(t0, &s) {
				op := l.StartSync()
				if err := l.FinishSync(op, op.Wait()); err != nil {
					t.Fatal(err)
				}
			}
			if s.Do != replica.SendFetch {
				t.Fatal(s.Do, f.State())
			}
			batch.SetBaseOffset(s.Fetch.Offset)
			r = partition.Fetched{Session: s.Fetch.Session, Seq: s.Fetch.Seq, Offset: s.Fetch.Offset, LeaderEpoch: 1,
				HighWatermark: s.Fetch.Offset, Records: batch}
			if err := f.Fetched(&r, t0); err != nil {
				t.Fatal(err)
			}
		}
		for range 20 {
			round()
		}
		if got := testing.AllocsPerRun(200, round); got > 0 && !invariant.On {
			t.Errorf("%v: %v allocations a fetch", sync, got)
		}
	}
}

// hostile is what a broken peer may send instead of a batch (F22).
var hostile = []struct {
	name string
	make func(good record.Batch, end int64) []byte
	want error
}{
	{"flipped bit", func(b record.Batch, _ int64) []byte { b[len(b)-1] ^= 1; return b }, record.ErrChecksum},
	{"cut short", func(b record.Batch, _ int64) []byte { return b[:len(b)-1] }, record.ErrTooShort},
	{"a header", func(b record.Batch, _ int64) []byte { return b[:record.HeaderSize] }, record.ErrTooShort},
	{"a few bytes", func(b record.Batch, _ int64) []byte { return b[:7] }, record.ErrTooShort},
	{"zeros", func(b record.Batch, _ int64) []byte { return make([]byte, 300) }, record.ErrTooShort},
	{"huge length", func(b record.Batch, _ int64) []byte { binary.BigEndian.PutUint32(b[8:], math.MaxInt32); return b }, record.ErrTooShort},
	{"negative length", func(b record.Batch, _ int64) []byte { binary.BigEndian.PutUint32(b[8:], math.MaxUint32); return b }, record.ErrTooShort},
	{"magic 1", func(b record.Batch, _ int64) []byte { b[16] = 1; return b }, record.ErrMagic},
	{"magic 9", func(b record.Batch, _ int64) []byte { b[16] = 9; return b }, record.ErrMagic},
	{"overlap", func(b record.Batch, end int64) []byte { b.SetBaseOffset(end - 1); return b }, replica.ErrOrder},
	{"the past", func(b record.Batch, end int64) []byte { b.SetBaseOffset(0); return b }, replica.ErrOrder},
	{"gap", func(b record.Batch, end int64) []byte { b.SetBaseOffset(end + 1); return b }, replica.ErrOrder},
	{"far away", func(b record.Batch, end int64) []byte { b.SetBaseOffset(1 << 62); return b }, replica.ErrOrder},
	{"last offset overflows", func(b record.Batch, end int64) []byte { b.SetBaseOffset(math.MaxInt64 - 1); return b }, replica.ErrOrder},
	{"negative offset", func(b record.Batch, end int64) []byte { b.SetBaseOffset(-5); return b }, replica.ErrOrder},
	{"epoch to come", func(b record.Batch, _ int64) []byte { b.SetLeaderEpoch(4); return b }, replica.ErrOrder},
	{"absurd epoch", func(b record.Batch, _ int64) []byte { b.SetLeaderEpoch(math.MaxInt32); return b }, replica.ErrOrder},
	{"epoch before", func(b record.Batch, _ int64) []byte { b.SetLeaderEpoch(1); return b }, replica.ErrOrder},
}

// TestHostileLeader: nothing of it reaches the log, and the leader is not asked in
// circles; behind a good batch the good one counts.
func TestHostileLeader(t *testing.T) {
	for _, sync := range []replica.SyncMode{replica.Always, replica.Never} {
		for _, tc := range hostile {
			t.Run(sync.String()+"/"+tc.name, func(t *testing.T) {
				a, b := pair(t, replica.Options{Sync: sync}, replica.FetcherOptions{})
				a.lead(2)
				a.put(4)
				a.lead(3)
				b.follow(a, 1)
				a.hw(4)
				b.run(a)
				before, epochs := b.all(), b.log.Epochs()
				at := *b.now
				err := b.hand(a, func(r *partition.Fetched) { r.Records = tc.make(batchAt(4, 3, 3, 30), 4) })
				if !errors.Is(err, tc.want) {
					t.Errorf("%v, want %v", err, tc.want)
				}
				if b.ends(4, 4); !bytes.Equal(b.all(), before) || !slices.Equal(b.log.Epochs(), epochs) {
					t.Error("the log changed")
				}
				b.valid()
				if b.step(a); b.now.Sub(at) < time.Second/2 {
					t.Error("asks again at once")
				}
				good := batchAt(4, 3, 2, 30)
				err = b.hand(a, func(r *partition.Fetched) {
					r.Records = append(slices.Clone(good), tc.make(batchAt(6, 3, 3, 30), 6)...)
				})
				if err == nil {
					t.Error("no error behind a good batch")
				}
				if b.sync(); b.log.LogEndOffset() != 6 || !bytes.Equal(b.all(), append(slices.Clone(before), good...)) {
					t.Errorf("log ends at %d", b.log.LogEndOffset())
				}
				before = append(before, good...)
				if sync == replica.Never { // and nothing is left behind the end
					x := &lab{t: t, mem: b.mem, dir: "/log"}
					if file := x.read(logName(0)); len(bytes.Trim(file[len(before):], "\x00")) > 0 {
						t.Error("bytes behind the end")
					}
				}
				b.kill() // what was refused is not behind the end either
				b.log.Release()
				if b.log.LogEndOffset() != 6 {
					t.Errorf("log ends at %d after a kill", b.log.LogEndOffset())
				}
			})
		}
	}
	// Answers to the question that no honest leader gives.
	for _, x := range [][2]int64{{9, 3}, {math.MaxInt32, 0}, {2, -7}, {-3, 5}, {-1, -1}, {3, math.MinInt64}} {
		a, b := pair(t, replica.Options{}, replica.FetcherOptions{})
		b.lead(2)
		b.put(4)
		a.epoch = 5
		b.begin(a)
		var s replica.Step
		b.f.Next(*b.now, &s)
		err := b.f.Answered(&partition.EpochAnswer{Session: s.Ask.Session, Seq: s.Ask.Seq, LeaderEpoch: 5, Epoch: int32(x[0]), End: x[1]}, *b.now)
		if err == nil {
			t.Errorf("answer %v was taken", x)
		}
		b.f.Next(*b.now, &s)
		if s.Do != replica.Wait || s.At.Before(b.now.Add(time.Second)) {
			t.Errorf("answer %v: %+v", x, s)
		}
		b.ends(0, 4)
	}
}

// TestEvidence: R4, word by word.
func TestEvidence(t *testing.T) {
	build := func(o replica.Options) *rep {
		r := reps(t, 1, o, replica.FetcherOptions{})[0]
		if e := r.log.Evidence(); e != partition.Clean {
			t.Errorf("%v: a new log is %v", o.Sync, e)
		}
		r.lead(1)
		for range 5 {
			r.put(3)
		}
		return r
	}
	check := func(r *rep, what string, want partition.Evidence) {
		t.Helper()
		if got := r.log.Evidence(); got != want {
			t.Errorf("%v, %s: %v, want %v", r.o.Sync, what, got, want)
		}
		r.log.Release() // what is held counts as well
		if want == partition.Intact && r.log.Stats().SyncedEnd < r.log.LogEndOffset() {
			t.Errorf("%v, %s: intact, synced to %d of %d", r.o.Sync, what, r.log.SyncedEnd(), r.log.LogEndOffset())
		}
	}
	for _, sync := range []replica.SyncMode{replica.Always, replica.Interval, replica.Never} {
		durable := partition.Suspect
		if sync == replica.Always {
			durable = partition.Intact
		}
		r := build(replica.Options{Sync: sync})
		r.stop()
		check(r, "closed", partition.Clean)
		r.mem = r.mem.Kill()
		r.start(true)
		check(r, "killed while it slept", partition.Clean)
		r.powerCut(1)
		check(r, "power cut while it slept", partition.Clean)
		r.lead(2)
		r.put(1)
		r.kill()
		check(r, "killed", partition.Intact)
		r.powerCut(2)
		check(r, "power cut", durable)
		r.lead(3)
		r.put(1)
		r.kill()
		r.kill()
		check(r, "killed twice", partition.Intact)

		// Idle: nothing was appended since it was closed in order.
		r = build(replica.Options{Sync: sync})
		r.hw(7)
		r.stop()
		for epoch := int32(2); epoch < 5; epoch++ {
			r.lead(epoch)
			r.hw(r.log.HighWatermark() + 2)
			r.mem.Writeback(rand.New(rand.NewPCG(uint64(epoch), 1)))
			if epoch == 3 {
				r.kill()
			} else {
				r.powerCut(uint64(epoch))
			}
			check(r, "idle, not ended in order", partition.Clean)
			if !r.log.Durable() {
				t.Errorf("%v: an idle log is not durable", sync)
			}
		}
		r.lead(5)
		r.put(1)
		r.mem.Writeback(rand.New(rand.NewPCG(5, 1)))
		r.powerCut(5)
		check(r, "power cut after one record", durable)
		if r.log.Durable() != (sync == replica.Always) {
			t.Errorf("%v: durable after a power cut: %v", sync, r.log.Durable())
		}
		// Lives that nobody was told of do not make up for it, however they end.
		r.stop()
		r.stop()
		if sync != replica.Always {
			check(r, "closed since the power cut", partition.Suspect)
			r.powerCut(6)
			check(r, "and idle since", partition.Suspect)
			if r.log.Durable() {
				t.Errorf("%v: a log that lost its tail is durable", sync)
			}
			a := reps(t, 1, r.o, replica.FetcherOptions{})[0]
			a.id = 1
			a.lead(9)
			a.put(1)
			r.follow(a)
			r.kill()
			check(r, "killed after it was judged", partition.Intact)
		}

		// Another mode in between.
		r = build(replica.Options{Sync: sync})
		r.stop()
		r.o.Sync = replica.Interval
		r.stop()
		r.lead(2)
		r.put(1)
		r.stop()
		r.o.Sync = sync
		r.stop()
		r.lead(3)
		r.put(1)
		r.powerCut(3)
		check(r, "power cut, once under another mode", partition.Suspect)

		// Copied, and without its slot.
		r = build(replica.Options{Sync: sync})
		r.kill()
		r.log.Close(t0)
		r.mem = r.mem.Kill()
		x := &lab{t: t, mem: r.mem, dir: "/log"}
		x.remove(slotFile)
		r.start(true)
		check(r, "without a slot", partition.Suspect)

		// Damaged.
		r = build(replica.Options{Sync: sync})
		r.stop()
		x = &lab{t: t, mem: r.mem, dir: "/log"}
		r.log.Close(t0)
		b := x.read(logName(0))
		b[100] ^= 1
		x.write(logName(0), b)
		r.start(true)
		check(r, "touched", partition.Suspect)

		// Damaged where everything is deleted.
		r = build(replica.Options{Sync: sync})
		r.hw(9)
		if err := errors.Join(r.log.SyncNow(), r.log.DeleteRecords(9)); err != nil {
			t.Fatal(err)
		}
		r.mem = r.mem.PowerCut(rand.New(rand.NewPCG(4, 1)))
		x = &lab{t: t, mem: r.mem, dir: "/log"}
		b = x.read(logName(0))
		b[8] ^= 1 // the length of its first batch
		x.write(logName(0), b)
		r.start(true)
		if !r.warned("damage below the log start") {
			t.Errorf("%v: the damage was not met", sync)
		}
		check(r, "damaged below the log start", durable)
	}
}

// What Kafka's replica 1 had of its own goes; the rest of replica 2 is copied.
func TestFollowKafkasLeader(t *testing.T) {
	for _, mode := range modes {
		dir := t.TempDir()
		open := func(name string) *replica.Log {
			to := filepath.Join(dir, name)
			if err := os.CopyFS(to, os.DirFS("../testdata/kafka-4.4-three-replicas/"+name)); err != nil {
				t.Fatal(err)
			}
			l, err := replica.Open(to, replica.Options{SegmentBytes: 1 << 20, Held: true,
				Checkpoints: replica.Checkpoints{Valid: true, RecoveryPoint: -1, HighWatermark: 48, LogStart: -1}}, t0)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { l.Close(t0) })
			return l
		}
		now := t0
		a := &rep{t: t, id: 2, log: open("replica-2"), epoch: -1, now: &now}
		b := &rep{t: t, id: 1, log: open("replica-1-diverged"), epoch: -1, now: &now}
		fo := replica.FetcherOptions{ID: tp, Recovery: mode}
		a.f, b.f = replica.NewFetcher(a.log, fo), nil
		fo.Node = 1
		b.f = replica.NewFetcher(b.log, fo)
		diverged, want := b.log.Epochs(), b.log.LogEndOffset()
		a.lead(9)
		a.hw(60)
		b.follow(a)
		if a.log.LogEndOffset() != 60 || b.log.HighWatermark() != 60 {
			t.Errorf("%v: end %d, hw %d", mode, a.log.LogEndOffset(), b.log.HighWatermark())
		}
		t.Logf("%v: from epochs %v, held from %d: %+v", mode, diverged, want, b.f.State())
		if err := errors.Join(a.log.Close(t0), b.log.Close(t0)); err != nil {
			t.Fatal(err)
		}
		var files [2][]byte
		for i, name := range []string{"replica-2", "replica-1-diverged"} {
			var err error
			if files[i], err = os.ReadFile(filepath.Join(dir, name, logName(0))); err != nil {
				t.Fatal(err)
			}
		}
		truth, err := os.ReadFile("../testdata/kafka-4.4-three-replicas/replica-2/" + logName(0))
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(files[0], files[1]) || !bytes.Equal(files[0], truth) {
			t.Errorf("%v: log files of %d, %d and %d bytes differ", mode, len(files[0]), len(files[1]), len(truth))
		}
	}
}

// modelBatch is a batch of the slow model: what makes it what it is, and how many
// records it has.
type modelBatch struct {
	epoch int32
	id    int
	n     int64
}

// TestVerdictModel: whatever elections did to two logs, what the follower keeps is
// what a comparison of the batches says, and in the end it has what the leader has.
func TestVerdictModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		o := replica.Options{Sync: rapid.SampledFrom([]replica.SyncMode{replica.Never, replica.Always}).Draw(rt, "sync")}
		n := reps(t, 2, o, replica.FetcherOptions{Recovery: rapid.SampledFrom(modes).Draw(rt, "recovery")})
		defer func() {
			for _, r := range n {
				r.log.Close(t0)
				r.log = nil
			}
		}()
		var model [2][]modelBatch
		ends := func(list []modelBatch) (end int64) {
			for _, b := range list {
				end += b.n
			}
			return end
		}
		id, epoch := 0, int32(0)
		for range rapid.IntRange(1, 8).Draw(rt, "epochs") {
			who := rapid.IntRange(0, 1).Draw(rt, "leader")
			ld, fl := n[who], n[1-who]
			epoch += rapid.Int32Range(1, 2).Draw(rt, "step")
			ld.lead(epoch)
			for range rapid.IntRange(0, 3).Draw(rt, "batches") {
				count := rapid.IntRange(1, 4).Draw(rt, "records")
				ld.put(count)
				id++
				model[who] = append(model[who], modelBatch{epoch, id, int64(count)})
			}
			switch rapid.IntRange(0, 3).Draw(rt, "then") {
			case 0: // nobody follows
				continue
			case 1: // a part of it
				fl.begin(ld)
				for range rapid.IntRange(0, 6).Draw(rt, "steps") {
					fl.step(ld)
				}
				if !fl.f.State().Reconciled {
					continue
				}
			case 2:
				fl.begin(ld)
				fl.run(ld)
				ld.hw(rapid.Int64Range(0, ld.log.LogEndOffset()).Draw(rt, "hw"))
				fl.run(ld)
				fl.same(ld)
			case 3:
				fl.kill()
				fl.begin(ld)
				fl.run(ld)
				fl.same(ld)
			}
			// What they have in common by the model, and what was copied.
			common := 0
			for common < min(len(model[0]), len(model[1])) && model[0][common] == model[1][common] {
				common++
			}
			keep := ends(model[who][:common])
			end := fl.log.LogEndOffset()
			if end < keep && (fl.fo.Recovery == replica.Adopt || fl.log.HighWatermark() > end) {
				rt.Fatalf("follower ends at %d; %d are common", end, keep)
			}
			list := model[who]
			for len(list) > 0 && ends(list) > end {
				list = list[:len(list)-1]
			}
			if ends(list) != end {
				rt.Fatalf("follower ends at %d, inside a batch", end)
			}
			model[1-who] = slices.Clone(list)
			got, want := fl.all(), ld.all()
			if !bytes.HasPrefix(want, got) {
				rt.Fatalf("the follower's log is not the beginning of the leader's: %d of %d bytes", len(got), len(want))
			}
			if s := fl.f.State(); s.Stopped != nil {
				rt.Fatal(s.Stopped)
			}
			fl.valid()
		}
	})
}

// FuzzFetcher: whatever a leader answers, nobody panics, and the log stays a log.
func FuzzFetcher(f *testing.F) {
	good := batchAt(4, 4, 2, 20)
	f.Add(byte(0), int64(4), int64(0), int64(9), int32(3), int64(2), []byte(good))
	f.Add(byte(1), int64(2), int64(0), int64(9), int32(2), int64(2), []byte(nil))
	f.Add(byte(2), int64(2), int64(7), int64(9), int32(2), int64(2), []byte(nil))
	f.Add(byte(3), int64(2), int64(7), int64(9), int32(1), int64(1), []byte(good[:30]))
	f.Fuzz(func(t *testing.T, kind byte, hw, start, leo int64, epoch int32, end int64, records []byte) {
		a, b := following(t, replica.Options{Sync: replica.SyncMode(kind >> 3 & 1 * 2)}, replica.FetcherOptions{Recovery: replica.Recovery(kind >> 4 & 1)}, 2, 4)
		if kind&32 != 0 {
			a.hw(3)
			b.run(a)
		}
		switch {
		case kind&64 != 0:
			b.kill()
		case kind&128 != 0:
			b.lead(3)
			b.put(2)
		}
		a.lead(4)
		if err := b.f.Follow(a.record(), t0); err != nil {
			t.Fatal(err)
		}
		for i := range 6 {
			var s replica.Step
			switch b.f.Next(*b.now, &s); s.Do {
			case replica.SendAsk:
				x := a.answerAsk(&s.Ask)
				if kind&1 != 0 {
					x.Epoch, x.End = epoch, end
				}
				_ = b.f.Answered(&x, *b.now)
			case replica.SendFetch:
				r, v := a.answer(&s.Fetch)
				v.Release()
				r.HighWatermark, r.LogStart, r.LEO, r.Records = hw, start, leo, records
				if kind&2 != 0 {
					r.Code = partition.OffsetOutOfRange
				}
				if kind&4 != 0 && i < 3 {
					r.Diverging, r.DivergingEpoch, r.DivergingEnd = true, epoch, end
				}
				_ = b.f.Fetched(&r, *b.now)
			case replica.SyncFirst:
				b.sync()
			case replica.Wait:
				*b.now = s.At
			}
			if _, _, held := b.log.Held(); !held {
				b.valid()
			}
		}
	})
}
