package replica_test

import (
	"fmt"
	"log/slog"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tidemark-log/tidemark/internal/vfs"
	"github.com/tidemark-log/tidemark/record"
	"github.com/tidemark-log/tidemark/replica"
)

// flipCase is a small log directory whose bytes are flipped one bit at a time.
type flipCase struct {
	name    string
	mode    replica.SyncMode
	build   func(x *lab)
	unclean bool
}

// flipCases have several segments, codecs, epochs and batches of several
// records. A constant clock keeps modification times: bit rot does not change
// them.
var flipCases = []flipCase{
	{"closed", replica.Always, buildFlips, false},
	{"closed without sync", replica.Never, buildFlips, false},
	{"killed", replica.Always, func(x *lab) { buildFlips(x); x.sync() }, true},
	{"killed without sync", replica.Never, buildFlips, true},
}

func buildFlips(x *lab) {
	var w record.Builder
	for i := range 12 {
		if i%4 == 0 {
			if err := x.log.BeginEpoch(int32(i)); err != nil {
				x.t.Fatal(err)
			}
		}
		spec := record.NewSpec()
		spec.Codec = record.Codec(i % 5)
		end := x.log.LogEndOffset()
		recs := []record.Record{recordAt(end, 60), recordAt(end+1, 60)}
		if i == 5 {
			recs[1] = recordAt(end+1, 3500) // the rest goes to the next segment
		}
		b, err := w.Build(recs, &spec)
		if err != nil {
			x.t.Fatal(err)
		}
		if _, err := x.log.Append(b, replica.Client, t0); err != nil {
			x.t.Fatal(err)
		}
	}
}

func (c *flipCase) make(t testing.TB) *lab {
	x := &lab{t: t, mem: vfs.NewMem(vfs.MemOptions{Clock: func() time.Time { return t0 }}), dir: "/log", warns: &records{},
		o: replica.Options{Sync: c.mode, SegmentBytes: 4 << 10, IndexIntervalBytes: 150, MaxBatchBytes: 4 << 10, Sole: true}}
	x.fs = x.mem
	x.o.Logger = slog.New(x.warns)
	x.open()
	c.build(x)
	x.o.Sole = false // HW is not the end: an end that grew would show
	if c.unclean {
		x.kill()
	} else {
		x.close()
	}
	return x
}

// verdict is what a changed directory led to.
type verdict struct {
	opened   bool
	err      error // of Open
	detected string
	missing  []int64 // offsets whose record is not served
	wrong    string  // a wrong record was served: never
	search   string  // a search by time had a wrong answer
	end      int64
	found    []*replica.CorruptError
	damage   *replica.CorruptError
	warned   bool
}

// try opens an image and looks at all n records.
func (x *lab) try(n int64) (v verdict) {
	if v.err = x.tryOpen(); v.err != nil {
		v.detected = v.err.Error()
		return v
	}
	defer x.log.Close(t0)
	v.opened = true
	l := x.log
	v.end = l.LogEndOffset()
	limit := max(v.end, 0)
	for offset := range n {
		r, _, ok, err := l.Get(offset, limit, nil)
		served := err == nil && ok && r.Offset == offset
		if err == nil && ok {
			v.check(r)
		}
		if !served {
			v.missing = append(v.missing, offset)
		}
		b, err := l.Read(nil, offset, limit, 1)
		if err == nil && len(b) > 0 {
			for r, err := range record.Batch(b).Records() {
				if err != nil {
					break
				}
				v.check(r)
			}
		}
		at, ts, ok, err := l.OffsetForTime(t0.UnixMilli()+offset, limit)
		if served && (err != nil || !ok || at != offset || ts != t0.UnixMilli()+offset) {
			v.search = fmt.Sprintf("time of %d answered %d, %v, %v", offset, at, ok, err)
		}
	}
	if v.end > n {
		v.wrong = fmt.Sprintf("log ends at %d of %d", v.end, n)
	}
	l.Verify(0, math.MaxInt64, func(e *replica.CorruptError) bool { v.found = append(v.found, e); return true })
	v.damage = l.Damage()
	switch {
	case v.damage != nil:
		v.detected = "Damage: " + v.damage.Error()
	case len(v.found) > 0:
		v.detected = "Verify: " + v.found[0].Error()
	}
	v.warned = x.warned("torn end") > 0
	return v
}

func (v *verdict) check(r record.Record) {
	want := recordAt(r.Offset, len(r.Value))
	if string(r.Key) != string(want.Key) || string(r.Value) != string(want.Value) || r.Timestamp != want.Timestamp {
		v.wrong = fmt.Sprintf("offset %d has key %q, timestamp %d", r.Offset, r.Key, r.Timestamp)
	}
}

// TestBitFlips flips every byte of every file of a log directory, with -long
// every bit, else those of headers and one of the others. Each flip is detected,
// by Open, Damage or Verify, or does no harm for the reason given in harmless; no
// wrong record is ever served.
func TestBitFlips(t *testing.T) {
	for _, c := range flipCases {
		t.Run(c.name, func(t *testing.T) {
			clean := c.make(t)
			n := clean.clone(t).openEnd()
			if n != 24 || len(clean.segments()) != 3 {
				t.Fatalf("log ends at %d in segments %v", n, clean.segments())
			}
			vouched := slotEnd(clean.read)
			counts := map[string]int{}
			for _, name := range clean.names() {
				content := clean.read(name)
				for at := range content {
					header := atHeader(name, content, at) // not covered by the checksum, or close to it
					for bit := range 8 {
						if !sampled(name, content, at, header, bit) {
							continue
						}
						x := clean.clone(t)
						b := slices.Clone(content)
						b[at] ^= 1 << bit
						x.write(name, b)
						v := x.try(n)
						where := fmt.Sprintf("%s byte %d bit %d", name, at, bit)
						reason := harmless(name, content, at)
						switch {
						case v.wrong != "":
							t.Fatalf("%s: %s", where, v.wrong)
						case !v.opened:
							counts["refused by Open"]++
						case v.detected != "":
							counts["detected"]++
							// What is damaged is one batch, and no more is missing.
							if len(v.missing) > 2 {
								t.Errorf("%s: %s, but %v are missing", where, v.detected, v.missing)
							}
						case len(v.missing) > 0:
							// Behind what the slot vouches for it is a torn end.
							if !c.unclean || v.missing[0] < vouched || !v.warned {
								t.Fatalf("%s: %v are missing without a word", where, v.missing)
							}
							counts["cut as a torn end"]++
						case reason == "":
							t.Errorf("%s: not detected, and no reason why it does no harm", where)
						case v.search != "":
							t.Errorf("%s: %s", where, v.search)
						default:
							counts["harmless: "+reason]++
						}
						if t.Failed() {
							return
						}
					}
				}
			}
			for _, k := range slices.Sorted(maps.Keys(counts)) {
				t.Logf("%6d %s", counts[k], k)
			}
		})
	}
}

// sampled reports whether a bit is flipped in this run: every one with -long,
// else all of the header fields outside the checksum and some of the rest.
func sampled(name string, content []byte, at int, header bool, bit int) bool {
	every := 3
	if zeroSpace(name, content, at) {
		every = 61
	}
	switch {
	case *long:
		return true
	case testing.Short():
		return bit == at%8 && at%(7*every) == 0
	case header:
		return true
	}
	return bit == at%8 && at%every == 0
}

// atHeader reports whether a batch of a log file begins shortly before a byte.
func atHeader(name string, b []byte, at int) bool {
	if !strings.HasSuffix(name, ".log") {
		return false
	}
	batches, _ := parseBatches(b)
	return slices.ContainsFunc(batches, func(x diskBatch) bool { return at >= x.pos && at < x.pos+17 })
}

// zeroSpace reports whether a byte lies in the long runs of unused zeros.
func zeroSpace(name string, b []byte, at int) bool {
	return name == slotFile && at%4096 >= 160 || len(b) > 8<<10 && strings.HasSuffix(name, ".log") && !nonZero(b[at:])
}

func nonZero(b []byte) bool {
	return slices.ContainsFunc(b, func(x byte) bool { return x != 0 })
}

// harmless says why a flip may go undetected. The bytes outside checksums are:
//
//   - base offset, length and leader epoch of a batch (bytes 0 to 15): not in
//     this list, since order, the batch that follows and the epoch history
//     guard them;
//   - index and time index: no evidence. An entry is believed only when the
//     batch it names is there and says the same;
//   - the slot: four copies, each with a checksum, of which the newest good one
//     counts and any other is true as well; nobody reads the rest of its blocks;
//   - the space behind the last batch of a log that was not closed: zeros that a
//     batch overwrites, garbage if they are not;
//   - LOCK: never read.
func harmless(name string, b []byte, at int) string {
	switch {
	case name == slotFile && at%4096 >= 160:
		return "unused bytes of the slot"
	case name == slotFile:
		return "one of four copies in the slot"
	case strings.HasSuffix(name, ".index"), strings.HasSuffix(name, ".timeindex"):
		return "index entries are no evidence"
	case strings.HasSuffix(name, ".log") && !nonZero(b[at:]):
		return "space behind the last batch"
	case name == "leader-epoch-checkpoint" && strings.ContainsRune("\n ", rune(b[at])):
		return "white space of the epoch file, which is made again"
	case name == "leader-epoch-checkpoint":
		return "the epoch file is made again from the batches"
	case name == "LOCK":
		return "never read"
	}
	return ""
}

func (x *lab) clone(t testing.TB) *lab {
	y := &lab{t: t, mem: x.mem.Clone(), dir: x.dir, o: x.o, warns: &records{}}
	y.fs = y.mem
	y.o.Logger = slog.New(y.warns)
	return y
}

// openEnd returns where the log ends.
func (x *lab) openEnd() int64 {
	x.t.Helper()
	if err := x.tryOpen(); err != nil {
		x.t.Fatal(err)
	}
	defer x.log.Close(t0)
	x.undamaged()
	return x.log.LogEndOffset()
}

// TestCutsAndZeros cuts every file at every length, and zeroes runs of bytes at
// every place: detected, or harmless, or a torn end; never a wrong record.
func TestCutsAndZeros(t *testing.T) {
	for _, c := range flipCases {
		t.Run(c.name, func(t *testing.T) {
			clean := c.make(t)
			n := clean.clone(t).openEnd()
			vouched := slotEnd(clean.read)
			look := func(where, name string, b []byte) {
				x := clean.clone(t)
				x.write(name, b)
				v := x.try(n)
				switch {
				case v.wrong != "":
					t.Fatalf("%s: %s", where, v.wrong)
				case !v.opened, v.detected != "":
				case len(v.missing) > 0 && (!c.unclean || v.missing[0] < vouched):
					t.Fatalf("%s: %v are missing without a word", where, v.missing)
				}
			}
			for _, name := range clean.names() {
				content := clean.read(name)
				for at := range content {
					if !sampled(name, content, at, atHeader(name, content, at), at%8) || !*long && at%3 != 0 {
						continue
					}
					look(fmt.Sprintf("%s cut to %d", name, at), name, content[:at:at])
				}
				for _, run := range []int{1, 8, 61, 512} {
					if run == 1 && !*long {
						continue
					}
					for at := 0; at < len(content); at += max(1, run/2) {
						if !nonZero(content[at:min(at+run, len(content))]) {
							continue
						}
						b := slices.Clone(content)
						clear(b[at:min(at+run, len(b))])
						look(fmt.Sprintf("%s zeroed in [%d, %d)", name, at, at+run), name, b)
					}
				}
			}
		})
	}
}
