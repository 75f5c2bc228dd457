//go:build unix

package tidemark_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"hash/crc32"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/tidemark-log/tidemark"
	"github.com/tidemark-log/tidemark/record"
)

var (
	killRounds = flag.Int("kill.rounds", 0, "how often TestKill kills a writer; 0 is the default")
	killSeed   = flag.Uint64("kill.seed", 0, "seed of TestKill; 0 takes one from the clock")
)

const (
	killEnv     = "TIDEMARK_KILL_CHILD"
	killWriters = 3
	killLife    = 25 // kills of one directory, at most
)

// killBoard is a page that the child maps beside its parent, so that what it
// says is known whenever it dies, to the instruction.
type killBoard struct {
	opened atomic.Int64              // how often the child was about to open the log,
	ready  atomic.Int64              // had opened it, sound,
	closed atomic.Int64              // and was about to close it
	end    atomic.Int64              // the end of what was acknowledged
	read   atomic.Int64              // and of what a reader was given
	acked  [killWriters]atomic.Int64 // records of a writer that were acknowledged

	deleting atomic.Int64 // up to where records were to be deleted,
	deleted  atomic.Int64 // and were
}

func mapBoard(name string) (*killBoard, error) {
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if err := f.Truncate(4096); err != nil {
		return nil, err
	}
	b, err := syscall.Mmap(int(f.Fd()), 0, 4096, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
	if err != nil {
		return nil, err
	}
	return (*killBoard)(unsafe.Pointer(unsafe.SliceData(b))), nil
}

// raise is for counters that several goroutines move.
func raise(v *atomic.Int64, to int64) {
	for {
		old := v.Load()
		if old >= to || v.CompareAndSwap(old, to) {
			return
		}
	}
}

// killRecord is record seq of a writer; its value tells whether it is whole.
func killRecord(writer int, seq int64, size int) tidemark.Record {
	v := make([]byte, 4, 4+size)
	for i := range size {
		v = append(v, byte(seq)+byte(i)*7)
	}
	binary.BigEndian.PutUint32(v, crc32.ChecksumIEEE(v[4:]))
	return tidemark.Record{Key: fmt.Appendf(nil, "%d/%d", writer, seq), Value: v}
}

// killAudit reads the log with b's promises in hand, and returns the sequence
// number that each writer goes on with.
func killAudit(l *tidemark.Log, b *killBoard) (next [killWriters]int64, err error) {
	if d := l.Damage(); d != nil {
		return next, fmt.Errorf("damage: %w", d)
	}
	// What was not synced is not below the high watermark under Always, until it
	// is; who only reads does not see it.
	if err := l.Sync(); err == nil && l.HighWatermark() != l.LogEndOffset() {
		return next, fmt.Errorf("high watermark %d, log end %d after a sync", l.HighWatermark(), l.LogEndOffset())
	} else if err != nil && !errors.Is(err, tidemark.ErrReadOnly) {
		return next, err
	}
	start := l.LogStartOffset()
	if start < b.deleted.Load() || start > max(b.deleting.Load(), b.deleted.Load()) {
		return next, fmt.Errorf("log start %d; it was raised to %d, and was to be to %d", start, b.deleted.Load(), b.deleting.Load())
	}
	offset := start
	var seen [killWriters]bool
	if start > 0 { // of a writer whose records are all gone
		for w := range next {
			next[w] = b.acked[w].Load()
		}
	}
	for r, err := range l.Records(start) {
		if err != nil {
			return next, err
		}
		w, s, _ := strings.Cut(string(r.Key), "/")
		writer, err1 := strconv.Atoi(w)
		seq, err2 := strconv.ParseInt(s, 10, 64)
		switch {
		case r.Offset != offset:
			return next, fmt.Errorf("record %d follows %d", r.Offset, offset-1)
		case err1 != nil || err2 != nil || writer >= killWriters:
			return next, fmt.Errorf("record %d has key %q", r.Offset, r.Key)
		case start > 0 && !seen[writer]:
			seen[writer], next[writer] = true, seq
		}
		switch {
		case seq != next[writer]:
			return next, fmt.Errorf("record %d is number %d of writer %d; want %d", r.Offset, seq, writer, next[writer])
		case len(r.Value) < 4 || crc32.ChecksumIEEE(r.Value[4:]) != binary.BigEndian.Uint32(r.Value):
			return next, fmt.Errorf("record %d, number %d of writer %d, has a wrong value", r.Offset, seq, writer)
		}
		next[writer]++
		offset++
	}
	if offset != l.HighWatermark() {
		return next, fmt.Errorf("records end at %d, high watermark %d", offset, l.HighWatermark())
	}
	if end := max(b.end.Load(), b.read.Load()); offset < end {
		return next, fmt.Errorf("log ends at %d; %d was acknowledged, %d read", offset, b.end.Load(), b.read.Load())
	}
	for w := range killWriters {
		if acked := b.acked[w].Load(); next[w] < acked {
			return next, fmt.Errorf("%d records of writer %d; %d were acknowledged", next[w], w, acked)
		}
	}
	return next, nil
}

// killOptions are those of the child and of who looks after it.
func killOptions(mode tidemark.SyncMode) tidemark.Options {
	return tidemark.Options{Sync: mode, SyncInterval: time.Millisecond, SegmentBytes: 48 << 10, IndexIntervalBytes: 512}
}

// TestKillChild is the program that TestKill kills: it opens the log, checks
// it, appends from every writer while a reader follows, closes, and begins again.
func TestKillChild(t *testing.T) {
	arg := os.Getenv(killEnv)
	if arg == "" {
		t.Skip("run by TestKill")
	}
	var mode, writers, quiet, deletes int
	var seed uint64
	if _, err := fmt.Sscan(arg, &mode, &writers, &seed, &quiet, &deletes); err != nil {
		t.Fatal(err)
	}
	rng := rand.New(rand.NewPCG(seed, 0))
	b, err := mapBoard("board")
	if err != nil {
		t.Fatal(err)
	}
	for begin := time.Now(); time.Since(begin) < 20*time.Second; {
		b.opened.Add(1)
		l, err := tidemark.Open("log", killOptions(tidemark.SyncMode(mode)))
		if err != nil {
			t.Fatal(err)
		}
		next, err := killAudit(l, b)
		if err != nil {
			t.Fatal(err)
		}
		b.ready.Add(1)
		var wg, reader sync.WaitGroup
		reader.Go(func() {
			for from := l.LogEndOffset(); ; from = l.LogStartOffset() { // overtaken by a deletion
				for r, err := range l.Tail(t.Context(), from) {
					if errors.Is(err, tidemark.ErrOutOfRange) {
						break
					}
					if err != nil {
						if !errors.Is(err, tidemark.ErrClosed) {
							t.Error(err)
						}
						return
					}
					raise(&b.read, r.Offset+1)
				}
			}
		})
		appends := 1 + rng.IntN(quiet)
		for w := range writers {
			rng := rand.New(rand.NewPCG(rng.Uint64(), 1))
			wg.Go(func() {
				for range appends {
					if next[w], err = killAppend(l, b, rng, w, next[w]); err != nil {
						t.Error(err)
						return
					}
					if w > 0 || deletes == 0 || rng.IntN(16) > 0 {
						continue
					}
					if to := l.HighWatermark() - rng.Int64N(300); to > b.deleting.Load() {
						b.deleting.Store(to)
						if err := l.DeleteRecords(to); err != nil {
							t.Error(err)
							return
						}
						b.deleted.Store(to)
					}
				}
			})
		}
		wg.Wait()
		b.closed.Add(1)
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		reader.Wait()
		if t.Failed() {
			return
		}
	}
}

// killAppend appends the next records of a writer in one of the ways there are,
// and reports them once they are acknowledged.
func killAppend(l *tidemark.Log, b *killBoard, rng *rand.Rand, w int, seq int64) (int64, error) {
	var recs []tidemark.Record
	for range 1 + rng.IntN(4) {
		recs = append(recs, killRecord(w, seq, rng.IntN(64<<rng.IntN(7))))
		seq++
	}
	end := int64(0)
	switch rng.IntN(4) {
	case 0:
		spec := record.NewSpec()
		spec.Codec = []record.Codec{record.None, record.LZ4, record.Zstd}[rng.IntN(3)]
		var builder record.Builder
		for i := range recs {
			recs[i].Timestamp = time.Now().UnixMilli()
		}
		batch, err := builder.Build(recs, &spec)
		if err != nil {
			return seq, err
		}
		base, err := l.AppendBatch(batch)
		if err != nil {
			return seq, err
		}
		end = base + int64(len(recs))
	case 1:
		var ack tidemark.Ack
		for i := range recs { // the last one's ack covers those before it
			var err error
			if ack, err = l.AppendAsync(recs[i]); err != nil {
				return seq, err
			}
		}
		if err := ack.Wait(context.Background()); err != nil {
			return seq, err
		}
		end = ack.End
	default:
		base, err := l.Append(recs...)
		if err != nil {
			return seq, err
		}
		end = base + int64(len(recs))
	}
	raise(&b.end, end)
	b.acked[w].Store(seq)
	return seq, nil
}

// TestKill kills a process that writes with signal 9, at random moments of
// appending, rolling, closing and recovering from the last kill. What was
// acknowledged or read is there, in order and whole, and what was deleted is not
// (C158); nothing is called damage; and the log goes on (C001, C007, C026).
func TestKill(t *testing.T) {
	rounds := *killRounds
	switch {
	case rounds > 0:
	case testing.Short():
		rounds = 6
	default:
		rounds = 24
	}
	seed := *killSeed
	if seed == 0 {
		seed = uint64(time.Now().UnixNano())
	}
	t.Logf("seed: -kill.seed=%d", seed)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	kinds := []struct {
		mode    tidemark.SyncMode
		writers int
	}{
		{tidemark.Always, 1}, {tidemark.Never, killWriters}, {tidemark.Interval, killWriters},
		{tidemark.Always, killWriters}, {tidemark.Never, 1}, {tidemark.Interval, 1},
	}
	total := killTally{}
	for i, kind := range kinds {
		n := rounds / len(kinds)
		if i < rounds%len(kinds) {
			n++
		}
		t.Run(fmt.Sprintf("%v, writers %d", kind.mode, kind.writers), func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, uint64(i)))
			for n > 0 && !t.Failed() {
				life := min(n, killLife)
				n -= life
				killLog(t, self, kind.mode, kind.writers, life, rng, &total)
			}
		})
	}
	t.Logf("%d kills: %d before anything was opened, %d while opening or checking, %d while writing, %d while closing; %d records acknowledged",
		total.kills, total.early, total.opening, total.writing, total.closing, total.records)
	if rounds >= 300 && (total.opening < rounds/20 || total.writing < rounds/20 || total.closing < rounds/20 || total.early > rounds/4) {
		t.Error("kills are badly spread")
	}
}

type killTally struct{ kills, early, opening, writing, closing, records int }

// killLog makes one log and kills its writer again and again.
func killLog(t *testing.T, self string, mode tidemark.SyncMode, writers, life int, rng *rand.Rand, total *killTally) {
	dir := t.TempDir()
	b, err := mapBoard(filepath.Join(dir, "board"))
	if err != nil {
		t.Fatal(err)
	}
	deletes := rng.IntN(2)
	for round := range life {
		quiet := 1 << rng.IntN(11) // appends between two opens
		opened, ready, closed := b.opened.Load(), b.ready.Load(), b.closed.Load()
		cmd := exec.Command(self, "-test.run=^TestKillChild$", "-test.count=1")
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%d %d %d %d %d", killEnv, mode, writers, rng.Uint64(), quiet, deletes))
		var out bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &out
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		// A recovery takes a millisecond or so: from where it begins, short waits
		// meet it and what comes right behind.
		wait := time.Duration(rng.Int64N(int64(100*time.Microsecond) << (1 + rng.IntN(10))))
		if rng.IntN(16) > 0 {
			for deadline := time.Now().Add(20 * time.Second); b.opened.Load() == opened && time.Now().Before(deadline); {
				time.Sleep(50 * time.Microsecond)
			}
		}
		time.Sleep(wait)
		cmd.Process.Kill()
		var exit *exec.ExitError
		if err := cmd.Wait(); !errors.As(err, &exit) || exit.ExitCode() != -1 {
			t.Fatalf("round %d: the child ended by itself: %v\n%s", round, err, out.Bytes())
		}
		total.kills++
		switch cycles := b.opened.Load() - opened; {
		case cycles == 0:
			total.early++
		case b.ready.Load()-ready < cycles:
			total.opening++
		case b.closed.Load()-closed == cycles:
			total.closing++
		default:
			total.writing++
		}
		if err := killReopen(dir, mode, b, rng); err != nil {
			t.Fatalf("round %d, killed %v after the open: %v\nrun again with the seed, or look at a copy of the log", round, wait, err)
		}
	}
	for w := range writers {
		total.records += int(b.acked[w].Load())
	}
}

// killReopen looks after a log whose writer was killed: beside nobody, as a
// reader; or as the next writer, which appends and closes; or not at all, and
// the next child finds what the last one left. In each case the slot may be lost
// as well, and then the checksums say where the log ends.
func killReopen(dir string, mode tidemark.SyncMode, b *killBoard, rng *rand.Rand) error {
	name := filepath.Join(dir, "log")
	if _, err := os.Stat(filepath.Join(name, "tidemark.slot")); err != nil {
		return nil // killed before there was a log
	}
	o := killOptions(mode)
	what := rng.IntN(4)
	switch what {
	case 0:
		return nil
	case 1:
		o.ReadOnly = true
	case 2:
		if err := os.Remove(filepath.Join(name, "tidemark.slot")); err != nil {
			return err
		}
		b.deleted.Store(0) // nothing else knows the log start, but for files that are gone
	}
	l, err := tidemark.Open(name, o)
	if o.ReadOnly && errors.Is(err, fs.ErrNotExist) && b.end.Load() == 0 {
		return nil // killed while it was made; who only reads makes no segment
	}
	if err != nil {
		return err
	}
	defer l.Close()
	next, err := killAudit(l, b)
	if err != nil {
		return err
	}
	if err := l.Verify(func(e *tidemark.CorruptError) bool { err = e; return false }); err != nil {
		return err
	}
	if err != nil {
		return fmt.Errorf("verify: %w", err)
	}
	if o.ReadOnly {
		return nil
	}
	end := l.LogEndOffset()
	base, err := l.Append(killRecord(0, next[0], 100))
	if err != nil || base != end {
		return fmt.Errorf("append behind %d = %d, %w", end, base, err)
	}
	raise(&b.end, base+1)
	b.acked[0].Store(next[0] + 1)
	return l.Close()
}
