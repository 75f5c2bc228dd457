package segment

import (
	"errors"
	"fmt"
	"math"
	"sync"
	"sync/atomic"

	"github.com/tidemark-log/tidemark/internal/mmap"
	"github.com/tidemark-log/tidemark/internal/vfs"
)

// ErrTooManyMaps is returned where one more mapping would pass the bound of
// the process and nothing idle is left to unmap.
var ErrTooManyMaps = errors.New("too many memory maps")

// ErrTooManyFiles is returned where one more open file would pass the bound of
// the process.
var ErrTooManyFiles = errors.New("too many open files")

// Maps bounds how many mappings, and open files, a process holds for logs. Past
// the limit of the kernel on maps (Linux: vm.max_map_count) the Go runtime itself
// dies, so the bound refuses earlier. Sealed segments and their indexes are
// unmapped when the room is needed for another one, the longest unused first.
//
// A segment's file is open while it takes appends or is not synced yet, and
// counts. What is opened for the length of a call does not: it lives on what the
// bound leaves of the process's descriptors.
type Maps struct {
	mu       sync.Mutex // a leaf: nothing is called with it held
	max      int
	n        int
	maxFiles int
	files    int
	ring     []*Segment // open segments that were ever mapped, in the order the hand visits
	hand     int
}

// NewMaps returns a bound of max mappings and any number of files.
func NewMaps(max int) *Maps { return &Maps{max: max, maxFiles: math.MaxInt} }

// LimitFiles sets how many files may be held open. Those that are stay.
func (m *Maps) LimitFiles(max int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.maxFiles = max
}

// DefaultMaps is the bound all logs of a process share unless told otherwise:
// half of the maps that the kernel allows, and three quarters of the descriptors,
// or all but 64 where they are few.
var DefaultMaps = sync.OnceValue(func() *Maps {
	m := NewMaps(int(mmap.Limit()))
	if n := vfs.FileLimit(); n < math.MaxInt {
		m.LimitFiles(max(n-max(n/4, 64), 1))
	}
	return m
})

// Files returns how many files are held open now.
func (m *Maps) Files() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.files
}

// addFiles accounts for delta open files. One that passes the bound is
// ErrTooManyFiles.
func (m *Maps) addFiles(delta int) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if delta > 0 && m.files+delta > m.maxFiles {
		return fmt.Errorf("%w: logs hold %d, at most %d", ErrTooManyFiles, m.files, m.maxFiles)
	}
	m.files += delta
	return nil
}

// Count returns how many mappings are held now.
func (m *Maps) Count() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.n
}

// Add accounts for delta mappings. Before one more passes the bound, idle
// segments are unmapped; if there is none it returns ErrTooManyMaps. It waits
// for no lock but its own: who asks for a mapping may hold locks of a segment.
func (m *Maps) Add(delta int) error {
	for tries := 0; ; tries++ {
		m.mu.Lock()
		if m.n+delta <= m.max || delta <= 0 {
			m.n += delta
			m.mu.Unlock()
			return nil
		}
		victim := m.pickLocked()
		n, max, all := m.n, m.max, len(m.ring)
		m.mu.Unlock()
		if victim == nil || tries > all {
			return fmt.Errorf("%w: %d in use, at most %d", ErrTooManyMaps, n, max)
		}
		victim.evict()
	}
}

// pickLocked advances the hand to a segment that is idle and was not used
// since the hand last passed it. m.mu is held.
func (m *Maps) pickLocked() *Segment {
	for range 2 * len(m.ring) {
		if m.hand >= len(m.ring) {
			m.hand = 0
		}
		s := m.ring[m.hand]
		m.hand++
		if s.used.Swap(false) || !s.idle() {
			continue
		}
		return s
	}
	return nil
}

func (m *Maps) enter(s *Segment) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if s.ringAt < 0 {
		s.ringAt = len(m.ring)
		m.ring = append(m.ring, s)
	}
}

func (m *Maps) leave(s *Segment) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if s.ringAt < 0 {
		return
	}
	last := len(m.ring) - 1
	moved := m.ring[last]
	m.ring[s.ringAt] = moved
	moved.ringAt = s.ringAt
	m.ring[last] = nil
	m.ring = m.ring[:last]
	s.ringAt = -1
}

// mapping is one map of a segment's file. A segment takes another one when it
// is unsealed or was evicted; a reader keeps the one it began with.
type mapping struct {
	seg  *Segment
	m    vfs.Map
	data []byte
	// refs counts readers, plus one while the mapping is the segment's. 0: it is
	// unmapped; frozen: a cut has the segment to itself.
	refs    atomic.Int64
	fetched atomic.Int64 // bytes a scan has touched, from the start
	retired bool         // the segment went on without it; set before its reference is dropped
}

// frozen is mapping.refs while a cut has the segment to itself.
const frozen = -1 << 40

// release drops a reference. The last one unmaps.
func (m *mapping) release() {
	if m.refs.Add(-1) == 0 {
		m.unmap()
		if m.retired {
			m.seg.old.Add(-1)
		}
	}
}

// retire drops the segment's reference, which it goes on without: the map stays
// until its readers are gone. The segment's mu is held.
func (m *mapping) retire() {
	m.seg.old.Add(1)
	m.retired = true
	m.release()
}

func (m *mapping) unmap() {
	_ = m.m.Unmap() // the address range is given up either way
	m.seg.countMaps(-1)
}

// countMaps accounts for a map of the log file or of an index.
func (s *Segment) countMaps(delta int) error {
	if err := s.o.Maps.Add(delta); err != nil {
		return err
	}
	s.maps.Add(int32(delta))
	return nil
}

// indexMap is index.Options.OnMap.
func (s *Segment) indexMap(delta int) error {
	if delta > 0 {
		s.o.Maps.enter(s)
	}
	return s.countMaps(delta)
}

// acquire takes a reference to the map of the file, making one if there is
// none. above says that the reader may look beyond the high watermark. The
// caller hands both to release.
func (s *Segment) acquire(above bool) (*mapping, error) {
	if above {
		for {
			s.above.Add(1)
			if !s.cutting.Load() {
				break
			}
			s.above.Add(-1)
			s.awaitThaw()
		}
	}
	for {
		if m := s.cur.Load(); m != nil {
			if r := m.refs.Load(); r > 0 {
				if !m.refs.CompareAndSwap(r, r+1) {
					continue
				}
				if !s.used.Load() {
					s.used.Store(true)
				}
				return m, nil
			}
		}
		if err := s.acquireSlow(); err != nil {
			if above {
				s.above.Add(-1)
			}
			return nil, err
		}
	}
}

// awaitThaw waits for the cut that has the segment frozen.
func (s *Segment) awaitThaw() {
	s.mu.Lock()
	defer s.mu.Unlock()
}

// acquireSlow maps the file, or waits for whoever has the segment to itself.
func (s *Segment) acquireSlow() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cur.Load() != nil {
		return nil
	}
	return s.mapLocked()
}

func (s *Segment) release(m *mapping, above bool) {
	if above {
		s.above.Add(-1)
	}
	m.release()
}

// mapLocked makes a map the segment's. s.mu is held and there is none.
func (s *Segment) mapLocked() error {
	m, err := s.newMapping()
	if err != nil {
		return err
	}
	m.refs.Store(1)
	s.cur.Store(m)
	return nil
}

// newMapping maps the whole capacity, so that a sealed segment can become the
// active one again under its readers. s.mu is held.
func (s *Segment) newMapping() (*mapping, error) {
	if s.closed {
		return nil, ErrClosed
	}
	if err := s.countMaps(1); err != nil {
		return nil, err
	}
	f, err := s.file, error(nil)
	if f == nil {
		if f, err = s.o.FS.Open(s.path(".log"), vfs.ReadOnly); err == nil {
			defer f.Close()
		}
	}
	var m vfs.Map
	if err == nil {
		m, err = f.Map(s.cap, !s.sealed.Load() && !s.o.WriteThrough)
	}
	if err != nil {
		s.countMaps(-1)
		return nil, err
	}
	s.o.Maps.enter(s)
	return &mapping{seg: s, m: m, data: m.Bytes()}, nil
}

// idle reports whether evict would find something to unmap.
func (s *Segment) idle() bool {
	m := s.cur.Load()
	return s.sealed.Load() && s.maps.Load() > 0 && (m == nil || m.refs.Load() == 1)
}

// evict unmaps a sealed segment that nobody reads. It waits for no lock, since
// its caller may be in the middle of mapping something of this very segment.
func (s *Segment) evict() {
	if !s.mu.TryLock() {
		return
	}
	defer s.mu.Unlock()
	if !s.sealed.Load() {
		return
	}
	if m := s.cur.Load(); m != nil && m.refs.CompareAndSwap(1, 0) {
		s.cur.Store(nil)
		m.unmap()
	}
	if s.idx != nil {
		s.idx.Unload()
		s.tix.Unload()
	}
}
