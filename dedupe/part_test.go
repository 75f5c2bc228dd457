package dedupe

import (
	"maps"
	"math/bits"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/tidemark-log/tidemark/record"
)

// sound checks what every part of a table promises.
func sound(t *testing.T, tab *Table) {
	t.Helper()
	if len(tab.dir) > 0 && len(tab.dir) != 1<<tab.depth {
		t.Fatalf("%d places in the directory of depth %d", len(tab.dir), tab.depth)
	}
	for k, p := range tab.dir {
		if first := k &^ (1<<(tab.depth-p.depth) - 1); tab.dir[first] != p {
			t.Fatalf("place %d is not of the part at %d", k, first)
		}
	}
	live, batches := 0, 0
	for p := range tab.parts() {
		n, used := 0, 0
		for i := range p.slots {
			if tag := p.tags[i/bucket] >> (i % bucket * 8) & 0xff; tag != empty {
				used++
			}
			if !p.has(i) {
				continue
			}
			n++
			e := &p.slots[i]
			batches += int(e.n)
			if q, j, ok := tab.find(e.pid); !ok || q != p || j != i {
				t.Fatalf("producer %d is found at %d, %v; want %d", e.pid, j, ok, i)
			}
			if e.n > 1 && p.windows == nil || e.run >= e.n != (e.want >= 0) {
				t.Fatalf("slot %+v", e)
			}
		}
		if n != p.live || used != p.used || used >= len(p.slots) || len(p.slots) != bucket*len(p.tags) || p.windows != nil && len(p.windows) != len(p.slots) {
			t.Fatalf("part of %d slots, live %d used %d; found %d and %d", len(p.slots), p.live, p.used, n, used)
		}
		live += n
	}
	if live != tab.live || batches != tab.batches {
		t.Fatalf("%d producers with %d batches, found %d and %d", tab.live, tab.batches, live, batches)
	}
}

// TestParts fills a table until its parts have split several times, empties it by
// eviction and expiry, and loads it again, beside a map; a view of any moment
// stays what it was.
func TestParts(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 1))
	tab, m := New(Options{MaxProducers: 8_000, Expiration: 1000 * time.Millisecond}), model{}
	offset := int64(0)
	frozen := model{}
	for phase := range 4 {
		for range 8_000 {
			s := sent{pid: r.Int64N(12_000), count: 1, ts: int64(phase) * 300}
			if phase == 1 {
				s.pid = r.Int64() // all over, and evicting
			}
			if _, known := tab.Get(s.pid); !known {
				delete(m, s.pid) // evicted
			} else if p := m[s.pid]; p.N > 0 {
				s.seq = record.IncSequence(p.Batches[p.N-1].LastSequence, 1)
			}
			tab.Update(s.batch(), offset)
			m.update(s, offset)
			offset++
		}
		maps.DeleteFunc(m, func(pid int64, _ *Producer) bool {
			_, known := tab.Get(pid)
			return !known
		})
		sound(t, tab)
		if err := m.equal(tab); err != nil {
			t.Fatal(err)
		}
		if phase > 0 {
			f, err := ParseWindow(viewBytes(t, tab.view, offset))
			must(t, err)
			again := New(Options{})
			must(t, again.Load(f, offset, 0))
			sound(t, again)
			if err := frozen.equal(again); err != nil {
				t.Fatalf("view: %v", err)
			}
			tab.Thaw()
		}
		tab.Freeze()
		frozen = model{}
		for pid, p := range m {
			c := *p
			frozen[pid] = &c
		}
		now := int64(phase)*300 + 800 // all but the last phase's
		for !tab.Expire(now, 1000) {
		}
		m.expire(now, 1000*time.Millisecond)
		sound(t, tab)
		if err := m.equal(tab); err != nil {
			t.Fatal(err)
		}
	}
	if tab.depth < 2 {
		t.Errorf("depth %d: no part has split", tab.depth)
	}
}

func viewBytes(t *testing.T, v *View, end int64) []byte {
	var w buffer
	_, err := v.WriteWindow(&w, [16]byte{}, end)
	must(t, err)
	return w.Bytes()
}

// TestZeros: the first byte it marks is the first that is 0.
func TestZeros(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 10_000 {
		w, want := uint64(0), 64
		for at := 56; at >= 0; at -= 8 {
			b := uint64(r.IntN(3)) * uint64(r.IntN(100))
			if w |= b << at; b == 0 {
				want = at + 7
			}
		}
		if got := bits.TrailingZeros64(zeros(w)); got != want {
			t.Fatalf("zeros(%016x) = %016x", w, zeros(w))
		}
	}
}

// TestSize: slots for any number of producers, with room for one more, and never
// more than a third too many.
func TestSize(t *testing.T) {
	const most = 10_000
	slots := make([]slot, size(most))
	for n := range most {
		p := part{slots: slots[:size(n)], used: n}
		if len(p.slots)%bucket != 0 || p.full() || 3*len(p.slots) > 4*n+64 {
			t.Fatalf("%d slots for %d producers", len(p.slots), n)
		}
	}
}
