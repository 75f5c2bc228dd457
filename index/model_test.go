package index

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/tidemark-log/tidemark/internal/vfs"
	"pgregory.net/rapid"
)

// indexer is what both kinds can do; a and b are offset and position, or
// timestamp and offset.
type indexer interface {
	Append(a, b int64) error
	Lookup(a int64) (int64, int64)
	Entry(i int) (int64, int64)
	Last() (int64, int64, bool)
	Check(maxOffset, maxOther int64) error
	Len() int
	Load() error
	Unload() bool
	TruncateTo(offset int64) error
	Reset() error
	Trim() error
	Sync() error
	StartSync() error
	FinishSync() error
	Prepare() error
	Rename(base int64, name string) error
	Close() error
}

const modelBase = 1000

// model is a slow index and the fast one it is compared with.
type model struct {
	fs     *vfs.Mem
	x      indexer
	name   string
	time   bool
	max    int
	want   []pair
	synced []pair // entries of the last sync, nil once they changed otherwise than by appends
	end    int64  // log end offset, as the log would know it
	maps   int
}

func (m *model) open(t *rapid.T, trust bool, end int64) {
	o := Options{Writable: true, Trust: trust, MaxEntries: m.max, End: end, OnMap: func(d int) error { m.maps += d; return nil }}
	var err error
	if m.time {
		m.x, err = OpenTime(m.fs, m.name, modelBase, o)
	} else {
		m.x, err = OpenOffset(m.fs, m.name, modelBase, o)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func (m *model) offset(e pair) int64 {
	if m.time {
		return e.b
	}
	return e.a
}

// none is what a lookup answers below the first entry.
func (m *model) none() pair {
	if m.time {
		return pair{NoTimestamp, modelBase}
	}
	return pair{modelBase, 0}
}

// append is the rule of log-format §3.3; stored says whether there is a new entry.
func (m *model) append(e pair) (stored bool, err error) {
	limit := m.max
	if m.time {
		limit--
	}
	if n := len(m.want); n > 0 {
		last := m.want[n-1]
		switch {
		case m.time && (e.b < last.b || e.a < last.a), !m.time && (e.a <= last.a || e.b <= last.b):
			err = ErrOrder
		case m.time && e.a == last.a:
			return false, nil
		}
	} else if m.time && e.a < 0 {
		return false, nil
	}
	if len(m.want) >= limit && (err == nil || !m.time) {
		err = ErrFull
	}
	return err == nil, err
}

func (m *model) floor(target int64) pair {
	want := m.none()
	for _, e := range m.want {
		if e.a > target {
			break
		}
		want = e
	}
	return want
}

func (m *model) size() int64 {
	if m.time {
		return TimeEntrySize
	}
	return OffsetEntrySize
}

// reopen opens what a process left, trusted, and compares.
func (m *model) reopen(t *rapid.T) {
	// A lone zero entry cannot be told from zeros behind it.
	zero := m.none()
	zero.a = max(zero.a, 0)
	if len(m.want) == 1 && m.want[0] == zero {
		if info, err := m.fs.Stat(m.name); err != nil || info.Size != m.size() {
			m.want = nil
		}
	}
	for len(m.want) > 0 && m.offset(m.want[len(m.want)-1]) >= m.end {
		m.want = m.want[:len(m.want)-1]
	}
	m.open(t, true, m.end)
	m.compare(t)
}

func (m *model) check(t *rapid.T) {
	if got := m.x.Len(); got != len(m.want) {
		t.Fatalf("Len = %d; want %d", got, len(m.want))
	}
	if a, b, ok := m.x.Last(); ok != (len(m.want) > 0) || ok && (pair{a, b}) != m.want[len(m.want)-1] {
		t.Fatalf("Last = %d, %d, %v; want the last of %d entries", a, b, ok, len(m.want))
	}
}

func (m *model) compare(t *rapid.T) {
	m.check(t)
	for i, want := range m.want {
		if got := pairOf(m.x.Entry(i)); got != want {
			t.Fatalf("Entry(%d) = %v; want %v", i, got, want)
		}
	}
	if err := m.x.Check(1<<40, 1<<40); err != nil {
		t.Fatal(err)
	}
}

func run(t *rapid.T, time bool) {
	m := &model{fs: vfs.NewMem(vfs.MemOptions{}), time: time, name: "/f", end: modelBase, max: rapid.SampledFrom([]int{1, 2, 5, 700, 2500}).Draw(t, "max")}
	m.open(t, false, 0)
	defer func() {
		if err := m.x.Close(); err != nil {
			t.Error(err)
		}
		if m.maps != 0 {
			t.Errorf("%d maps after Close", m.maps)
		}
	}()
	step := rapid.Int64Range(-1, 40)
	noErr := func(err error) {
		if err != nil {
			t.Fatal(err)
		}
	}
	add := func(e pair) {
		stored, want := m.append(e)
		if err := m.x.Append(e.a, e.b); !errors.Is(err, want) {
			t.Fatalf("Append(%d, %d) to %d entries = %v; want %v", e.a, e.b, len(m.want), err, want)
		}
		if stored {
			m.want = append(m.want, e)
			m.end = max(m.end, m.offset(e)+1)
		}
	}
	next := func(da, db int64) pair {
		last := pair{modelBase, 0}
		if time {
			last = pair{0, modelBase}
		}
		if n := len(m.want); n > 0 {
			last = m.want[n-1]
		}
		return pair{last.a + da, last.b + db}
	}
	t.Repeat(map[string]func(*rapid.T){
		"": m.check,
		"append": func(t *rapid.T) {
			e := next(step.Draw(t, "da"), step.Draw(t, "db"))
			add(pair{max(e.a, m.none().a), max(e.b, m.none().b)})
		},
		"append many": func(t *rapid.T) {
			rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))
			spread := rapid.SampledFrom([]int64{1, 3, 1000}).Draw(t, "spread")
			for range rapid.IntRange(1, 600).Draw(t, "n") {
				add(next(1+rng.Int64N(spread), 1+rng.Int64N(9)))
			}
		},
		"lookup": func(t *rapid.T) {
			top := m.floor(1 << 60).a
			target := rapid.Int64Range(-5, top+10).Draw(t, "target")
			if len(m.want) > 0 && rapid.Bool().Draw(t, "near an entry") {
				target = m.want[rapid.IntRange(0, len(m.want)-1).Draw(t, "i")].a + rapid.Int64Range(-1, 1).Draw(t, "d")
			}
			if got, want := pairOf(m.x.Lookup(target)), m.floor(target); got != want {
				t.Fatalf("Lookup(%d) = %v; want %v", target, got, want)
			}
			if x, ok := m.x.(*Offset); ok {
				want := any(nil)
				if i := slices.IndexFunc(m.want, func(e pair) bool { return e.b >= target }); i >= 0 {
					want = m.want[i]
				}
				if got := lastOf(x.UpperBoundPos(target)); got != want {
					t.Fatalf("UpperBoundPos(%d) = %v; want %v", target, got, want)
				}
			}
		},
		"truncate": func(t *rapid.T) {
			to := rapid.Int64Range(modelBase, m.end+5).Draw(t, "to")
			noErr(m.x.TruncateTo(to))
			n := len(m.want)
			for n > 0 && m.offset(m.want[n-1]) >= to {
				n--
			}
			if n < len(m.want) {
				m.want = m.want[:n:n]
				m.synced = nil
			}
			m.end = min(m.end, to)
		},
		"reset": func(t *rapid.T) {
			noErr(m.x.Reset())
			m.want = nil
			m.synced = nil
		},
		"trim": func(t *rapid.T) {
			noErr(m.x.Trim())
			info, err := m.fs.Stat(m.name)
			noErr(err)
			if info.Size != int64(len(m.want))*m.size() {
				t.Fatalf("trimmed to %d bytes for %d entries", info.Size, len(m.want))
			}
		},
		"sync": func(t *rapid.T) {
			noErr(m.x.Sync())
			noErr(m.fs.SyncDir("/"))
			m.synced = slices.Clone(m.want)
		},
		"append in a sync": func(t *rapid.T) {
			noErr(m.x.StartSync())
			synced := slices.Clone(m.want)
			add(next(1, 1))
			noErr(m.x.FinishSync())
			noErr(m.fs.SyncDir("/"))
			m.synced = synced
		},
		"unload":  func(*rapid.T) { m.x.Unload() },
		"prepare": func(*rapid.T) { _ = m.x.Prepare() }, // may say that it is full
		"rename": func(t *rapid.T) {
			to := fmt.Sprint("/g", rapid.IntRange(0, 3).Draw(t, "name"))
			noErr(m.x.Rename(modelBase, to))
			m.name, m.synced = to, nil
		},
		"remove by hand": func(t *rapid.T) {
			// Only a mapped index can restore its file.
			noErr(m.x.Load())
			if m.maps == 1 {
				_ = m.fs.Remove(m.name)
				noErr(m.x.Trim())
				m.synced = nil
			}
		},
		"close and reopen": func(t *rapid.T) {
			noErr(m.x.Close())
			m.reopen(t)
		},
		"kill": func(t *rapid.T) {
			old := m.x
			m.fs = m.fs.Kill()
			_ = old.Close() // of a dead file system; only the count of maps matters
			if end := rapid.Int64Range(modelBase, m.end).Draw(t, "end"); end < m.end {
				m.end, m.synced = end, nil
			}
			m.reopen(t)
		},
		"power cut": func(t *rapid.T) {
			old := m.x
			m.fs = m.fs.PowerCut(rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1)))
			_ = old.Close()
			// What a sync covered is there. Behind it anything may be: the log does
			// not trust such an index, unless its own end says how far.
			if len(m.synced) > 1 {
				m.want, m.end = m.synced, m.offset(m.synced[len(m.synced)-1])+1
				m.reopen(t)
				_ = m.x.Close()
			}
			m.open(t, false, 0)
			m.want, m.end = nil, modelBase
			m.synced = nil
		},
	})
}

func TestOffsetModel(t *testing.T) { rapid.Check(t, func(t *rapid.T) { run(t, false) }) }
func TestTimeModel(t *testing.T)   { rapid.Check(t, func(t *rapid.T) { run(t, true) }) }
