package dedupe

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/tidemark-log/tidemark/record"
)

// model is the obvious table: a map of slices.
type model map[int64]*Producer

func (m model) window(pid int64) []Batch { p := m[pid]; return p.Batches[:p.N] }

// check says what log-format §5.3 says, row by row: 0 to accept, −1 a duplicate.
func (m model) check(s sent) (code int16, original Batch) {
	p, known := m[s.pid]
	if !known {
		return 0, original
	}
	first, last := int64(s.seq), int64(s.seq)+int64(s.count)-1
	if last > math.MaxInt32 {
		last -= math.MaxInt32 + 1
	}
	if s.epoch == p.Epoch {
		for _, b := range m.window(s.pid) {
			if int64(b.FirstSequence()) == first && int64(b.LastSequence) == last {
				return -1, b
			}
		}
	}
	newest := int64(-1)
	if p.N > 0 {
		newest = int64(p.Batches[p.N-1].LastSequence)
	}
	switch {
	case s.epoch < p.Epoch:
		return 47, original
	case p.Epoch == -1:
	case s.epoch > p.Epoch && first != 0:
		return 45, original
	case s.epoch > p.Epoch:
	case newest == -1 && first != 0:
		return 45, original
	case first == newest+1, newest == math.MaxInt32 && first == 0:
	default:
		return 45, original
	}
	if p.TxnFirstOffset >= 0 && !s.txn {
		return 48, original
	}
	return 0, original
}

func (m model) producer(pid int64, epoch int16) *Producer {
	p := m[pid]
	if p == nil {
		p = &Producer{ID: pid, Epoch: -1, CoordinatorEpoch: -1, LastTimestamp: -1, TxnFirstOffset: -1}
		m[pid] = p
	}
	if p.Epoch != epoch {
		p.Epoch, p.N, p.Batches = epoch, 0, [Window]Batch{}
	}
	return p
}

func (m model) update(s sent, base int64) {
	p := m.producer(s.pid, s.epoch)
	if p.N == Window {
		p.N--
		copy(p.Batches[:], p.Batches[1:])
	}
	last := int64(s.seq) + int64(s.count) - 1
	if last > math.MaxInt32 {
		last -= math.MaxInt32 + 1
	}
	p.Batches[p.N] = Batch{LastOffset: base + int64(s.count) - 1, Timestamp: s.ts, LastSequence: int32(last), OffsetDelta: s.count - 1}
	p.N++
	p.LastTimestamp = s.ts
	if s.txn && p.TxnFirstOffset < 0 {
		p.TxnFirstOffset = base
	}
}

func (m model) marker(pid int64, epoch int16, coordinator int32, ts int64) {
	p := m.producer(pid, epoch)
	p.CoordinatorEpoch, p.LastTimestamp, p.TxnFirstOffset = coordinator, ts, -1
}

func (m model) expire(now int64, expiration time.Duration) {
	maps.DeleteFunc(m, func(_ int64, p *Producer) bool {
		return p.TxnFirstOffset < 0 && now-p.LastTimestamp >= expiration.Milliseconds()
	})
}

// evicted takes out who made room for pid: one of the longest idle producers
// without open transaction, if the table is small enough for the hand to see all.
func (m model) evicted(tab *Table, pid int64) error {
	idle := func(p *Producer) int64 { last, _ := p.Last(); return last.LastOffset }
	oldest := int64(math.MaxInt64)
	var gone []int64
	for id, p := range m {
		if p.TxnFirstOffset < 0 {
			oldest = min(oldest, idle(p))
		}
		if _, ok := tab.Get(id); !ok {
			gone = append(gone, id)
		}
	}
	switch {
	case len(gone) == 0 && oldest == math.MaxInt64: // the bound gives way
	case len(gone) != 1:
		return fmt.Errorf("%v made room for %d, want one", gone, pid)
	case m[gone[0]].TxnFirstOffset >= 0 || idle(m[gone[0]]) != oldest:
		return fmt.Errorf("%+v made room for %d, want one idle since %d", m[gone[0]], pid, oldest)
	default:
		delete(m, gone[0])
	}
	return nil
}

// afterKafka is what a restart with Kafka's snapshot leaves: the newest batch,
// whose timestamp becomes that of the producer.
func (m model) afterKafka() {
	for _, p := range m {
		last, any := p.Last()
		p.Batches = [Window]Batch{}
		if p.N = 0; any {
			last.Timestamp = p.LastTimestamp
			p.N, p.Batches[0] = 1, last
		}
	}
}

func (m model) equal(tab *Table) error {
	seen := 0
	for p := range tab.All() {
		seen++
		want := m[p.ID]
		if want == nil {
			return fmt.Errorf("table has producer %+v, want none", p)
		}
		// What lies behind N means nothing.
		clear(p.Batches[p.N:])
		if p != *want {
			return fmt.Errorf("table has %+v, want %+v", p, *want)
		}
		if got, ok := tab.Get(p.ID); !ok || got.ID != p.ID || got.N != p.N {
			return fmt.Errorf("Get(%d) = %+v, %v", p.ID, got, ok)
		}
	}
	if seen != len(m) || seen != tab.Len() {
		return fmt.Errorf("table has %d producers, Len %d, want %d", seen, tab.Len(), len(m))
	}
	return nil
}

func codeOf(err error) int16 {
	if e, ok := errors.AsType[*record.ClientError](err); ok {
		return e.Code
	}
	if err != nil {
		return -2
	}
	return 0
}

// TestTableModel drives the table and the model with the same batches, markers,
// expiries, evictions, frozen views and restarts.
func TestTableModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		o := Options{MaxProducers: rapid.IntRange(1, 24).Draw(t, "max"), Expiration: 100 * time.Millisecond}
		tab, m := New(o), model{}
		ids := int64(rapid.IntRange(1, 40).Draw(t, "ids"))
		offset, now := int64(0), int64(1000)
		var frozen model // what the View that is out must show
		thaw := func() {
			if frozen == nil {
				return
			}
			var w buffer
			if _, err := tab.view.WriteWindow(&w, [16]byte{1}, offset); err != nil {
				t.Fatal(err)
			}
			f, err := ParseWindow(w.Bytes())
			if err != nil {
				t.Fatal(err)
			}
			restored := New(Options{})
			if err := restored.Load(f, offset, 0); err != nil {
				t.Fatal(err)
			}
			if err := frozen.equal(restored); err != nil {
				t.Fatalf("view: %v", err)
			}
			tab.Thaw()
			frozen = nil
		}
		// update enters a batch in the table and follows an eviction.
		update := func(pid int64, b record.Batch) (Transaction, bool) {
			done, ended := tab.Update(b, offset)
			if _, known := m[pid]; !known && len(m) >= o.MaxProducers {
				if err := m.evicted(tab, pid); err != nil {
					t.Fatal(err)
				}
			}
			return done, ended
		}
		seq := func(pid int64) (seq, count int32) {
			count = int32(rapid.IntRange(1, 3).Draw(t, "count"))
			p := m[pid]
			switch k := rapid.IntRange(0, 9).Draw(t, "seq"); {
			case p != nil && p.N > 0 && k < 6:
				return record.IncSequence(p.Batches[p.N-1].LastSequence, 1), count
			case p != nil && p.N > 0 && k < 8:
				b := p.Batches[rapid.IntRange(0, p.N-1).Draw(t, "retry")]
				return b.FirstSequence(), b.OffsetDelta + 1
			case k == 8:
				return math.MaxInt32 - int32(rapid.IntRange(0, 3).Draw(t, "below")), count
			}
			return int32(rapid.IntRange(0, 5).Draw(t, "any")), count
		}
		draw := func() sent {
			pid := rapid.Int64Range(0, ids-1).Draw(t, "pid")
			s := sent{pid: pid, ts: now - int64(rapid.IntRange(-20, 60).Draw(t, "age")), txn: rapid.IntRange(0, 3).Draw(t, "txn") == 0}
			if p := m[pid]; p != nil {
				s.epoch = max(0, p.Epoch+int16(rapid.SampledFrom([]int{0, 0, 0, 0, 0, 0, 1, -1}).Draw(t, "epoch")))
				s.txn = s.txn || p.TxnFirstOffset >= 0 && rapid.Bool().Draw(t, "same")
			}
			s.seq, s.count = seq(pid)
			return s
		}
		t.Repeat(map[string]func(*rapid.T){
			"client": func(*rapid.T) {
				s := draw()
				before := tab.Stats()
				original, dup, err := tab.Check(s.batch())
				want, wantOriginal := m.check(s)
				got := codeOf(err)
				if dup {
					got = -1
				}
				if got != want || original != wantOriginal {
					t.Fatalf("Check(%+v) = %d %+v (%v), want %d %+v; producer %+v", s, got, original, err, want, wantOriginal, m[s.pid])
				}
				if tab.Stats() != before {
					t.Fatal("Check changed the table")
				}
				if got == 0 {
					update(s.pid, s.batch())
					m.update(s, offset)
					offset += int64(s.count)
				}
			},
			"follower": func(*rapid.T) {
				s := draw()
				offset += int64(rapid.IntRange(0, 3).Draw(t, "gap"))
				update(s.pid, s.batch())
				m.update(s, offset)
				offset += int64(s.count)
			},
			"marker": func(*rapid.T) {
				s := draw()
				coordinator := int32(rapid.IntRange(0, 3).Draw(t, "coordinator"))
				b := markerBatch(s.pid, s.epoch, coordinator, record.Commit, s.ts)
				_, dup, err := tab.Check(b)
				want := int16(0)
				if p := m[s.pid]; p != nil && s.epoch < p.Epoch {
					want = 47
				} else if p != nil && coordinator < p.CoordinatorEpoch {
					want = 52
				}
				if codeOf(err) != want || dup {
					t.Fatalf("Check(marker of %+v) = %v %v, want %d", s, dup, err, want)
				}
				open := int64(-1)
				if p := m[s.pid]; p != nil {
					open = p.TxnFirstOffset
				}
				done, ended := update(s.pid, b)
				if ended != (open >= 0) || ended && done != (Transaction{ProducerID: s.pid, First: open, Last: offset}) {
					t.Fatalf("marker ended %+v, %v; want one from %d", done, ended, open)
				}
				m.marker(s.pid, s.epoch, coordinator, s.ts)
				offset++
			},
			"expire": func(*rapid.T) {
				now += int64(rapid.IntRange(0, 40).Draw(t, "pass"))
				for !tab.Expire(now, rapid.IntRange(1, 20).Draw(t, "step")) {
				}
				m.expire(now, o.Expiration)
			},
			"freeze": func(*rapid.T) {
				if frozen != nil {
					thaw()
				}
				if tab.Freeze() == nil {
					t.Fatal("no view")
				}
				frozen = model{}
				for pid, p := range m {
					c := *p
					frozen[pid] = &c
				}
			},
			"thaw": func(*rapid.T) { thaw() },
			"restart": func(*rapid.T) {
				thaw()
				data, kafka := []byte(nil), rapid.Bool().Draw(t, "kafka")
				var w buffer
				var f File
				var err error
				v := tab.Freeze()
				if kafka {
					_, err = v.WriteSnapshot(&w)
					data = w.Bytes()
					f, _ = ParseSnapshot(data)
				} else {
					_, err = v.WriteWindow(&w, [16]byte{}, offset)
					data = w.Bytes()
					f, _ = ParseWindow(data)
				}
				tab.Thaw()
				if err != nil {
					t.Fatal(err)
				}
				if f.Len() != len(m) {
					t.Fatalf("file has %d producers, want %d", f.Len(), len(m))
				}
				over := len(m) > o.MaxProducers // open transactions
				tab = New(o)
				if err := tab.Load(f, offset, now); err != nil {
					t.Fatal(err)
				}
				if kafka {
					m.afterKafka()
				}
				m.expire(now, o.Expiration)
				if over {
					// The order of the file decides who goes.
					got := slices.Collect(tab.All())
					maps.DeleteFunc(m, func(pid int64, p *Producer) bool {
						return p.TxnFirstOffset < 0 && !slices.ContainsFunc(got, func(g Producer) bool { return g.ID == pid })
					})
				}
			},
			"": func(*rapid.T) {
				if err := m.equal(tab); err != nil {
					t.Fatal(err)
				}
			},
		})
	})
}
