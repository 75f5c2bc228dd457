package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"iter"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"

	"github.com/edsrzf/mmap-go"
	"github.com/tidemark-log/tidemark/record"
)

// The bare loops do the work per record that no partition log can do without,
// and nothing else: header bytes, one copy, one CRC-32C, in the sizes of a
// Kafka record batch.
//
//	0          8        12       17    21        57      61
//	├──────────┼────────┼─ ... ──┼─────┼── ... ──┼───────┼─ record ─┼─ record ─ ...
//	│ (zeros)  │ length │        │ crc │         │ count │
//
// A record is 10 header bytes, the first 4 its value's length, then the value.
// The log's own varint headers take 8 to 12 bytes, depending on the value's size.
const (
	posLength, posCRC, posCRCStart, posCount = 8, 17, 21, 57

	recordHeader = 10
	// hashStride is how many bytes are copied before they are hashed: they are
	// then still in the first-level cache.
	hashStride = 8 << 10
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// frameSize is the size of a frame of n values of size bytes.
func frameSize(n, size int) int64 {
	return int64(record.HeaderSize) + int64(n)*int64(recordHeader+size)
}

// putFrame lays the values of recs out at the start of dst, header last, and
// returns the frame's size. dst has room for it.
func putFrame(dst []byte, recs []record.Record) int {
	clear(dst[:record.HeaderSize])
	binary.BigEndian.PutUint32(dst[posCount:], uint32(len(recs)))
	pos, hashed, crc := record.HeaderSize, posCRCStart, uint32(0)
	for i := range recs {
		v := recs[i].Value
		h := dst[pos : pos+recordHeader]
		binary.LittleEndian.PutUint64(h, uint64(len(v))|uint64(i)<<32)
		h[8], h[9] = 1, 1
		pos += recordHeader
		pos += copy(dst[pos:], v)
		if pos-hashed >= hashStride {
			crc = crc32.Update(crc, castagnoli, dst[hashed:pos])
			hashed = pos
		}
	}
	crc = crc32.Update(crc, castagnoli, dst[hashed:pos])
	binary.BigEndian.PutUint32(dst[posCRC:], crc)
	binary.BigEndian.PutUint32(dst[posLength:], uint32(pos))
	return pos
}

var errBadFrame = errors.New("bare loop: frame damaged")

// checkFrame returns the frame at the start of b, its checksum verified.
func checkFrame(b []byte) ([]byte, error) {
	if len(b) < record.HeaderSize {
		return nil, errBadFrame
	}
	n := int64(binary.BigEndian.Uint32(b[posLength:]))
	if n < record.HeaderSize || n > int64(len(b)) ||
		crc32.Checksum(b[posCRCStart:n], castagnoli) != binary.BigEndian.Uint32(b[posCRC:]) {
		return nil, errBadFrame
	}
	return b[:n], nil
}

// frameValues yields the values of the frames in b, each frame verified first.
// It ends with an error if b is not whole frames.
func frameValues(b []byte) iter.Seq2[[]byte, error] {
	return func(yield func([]byte, error) bool) {
		for len(b) > 0 {
			f, err := checkFrame(b)
			if err != nil {
				yield(nil, err)
				return
			}
			b = b[len(f):]
			for range binary.BigEndian.Uint32(f[posCount:]) {
				v, size := valueAt(f, record.HeaderSize)
				if v == nil {
					yield(nil, errBadFrame)
					return
				}
				if !yield(v, nil) {
					return
				}
				f = f[size:]
			}
			if len(f) != record.HeaderSize {
				yield(nil, errBadFrame)
				return
			}
		}
	}
}

// valueAt returns the value of the record at b[pos:] and the record's size;
// nil if it does not fit.
func valueAt(b []byte, pos int) (v []byte, size int) {
	if len(b)-pos < recordHeader {
		return nil, 0
	}
	n := int(binary.LittleEndian.Uint32(b[pos:]))
	if n > len(b)-pos-recordHeader {
		return nil, 0
	}
	return b[pos+recordHeader : pos+recordHeader+n], recordHeader + n
}

// A loop names a bare loop: where its frames go and who makes the pages ready.
type loop string

const (
	loopMemory loop = "memory"    // memory whose pages are ready
	loopReady  loop = "map-ready" // map of an allocated file, pages ready before the clock starts
	loopInline loop = "map-fill"  // the same, pages populated by the append that needs them
	loopZeros  loop = "map-zeros" // the same, pages made by writing zeros to the file
	loopAhead  loop = "map-ahead" // the same, pages populated by a goroutine ahead of the append
	loopPwrite loop = "pwrite"    // one pwrite per frame, growing file
	loopSync   loop = "fdatasync" // one pwrite per frame, allocated file, fdatasync shared by whoever waits

	loopScan  loop = "scan"
	loopPoint loop = "point"
	loopFirst loop = "point-first"
)

// How far a loop populates: in steps, the goroutine up to aheadBytes past the
// end. An inline step stays in the second-level cache until it is used.
const (
	inlineStep = 256 << 10
	aheadStep  = 2 << 20
	aheadBytes = 32 << 20
)

// A bareLog is what a bare loop appends to. It is safe for concurrent use, as
// the log is: a limit without a lock would be that of another contract.
type bareLog struct {
	loop loop
	f    *os.File  // nil: memory
	m    mmap.MMap // nil: pwrite
	wake chan struct{}
	done chan struct{} // closed when the populating goroutine has ended

	mu    sync.Mutex
	buf   []byte // frames on their way to pwrite
	ready int64  // bytes populated by append itself

	end atomic.Int64 // frames end here; stored under mu

	syncMu  sync.Mutex // guards what follows; never held across I/O
	syncEnd *sync.Cond
	syncing bool
	synced  int64
	syncErr error // sticky
}

// openBare makes the log of a bare loop with room for the bench's cap. Close
// it with closeBare.
func (b *bench) openBare(lp loop) (l *bareLog, err error) {
	l = &bareLog{loop: lp}
	l.syncEnd = sync.NewCond(&l.syncMu)
	size := b.capBytes + maxFrame
	if lp == loopMemory {
		if b.memory == nil {
			if b.memory, err = mmap.MapRegion(nil, int(size), mmap.RDWR, mmap.ANON, 0); err != nil {
				return nil, fmt.Errorf("map %d bytes of memory: %w", size, err)
			}
		}
		l.m = b.memory
		populate(l.m)
		return l, nil
	}
	name := b.scratch("bare")
	if lp == loopReady { // made once: the work of all its runs is outside the clock
		name = filepath.Join(b.dir, "bare-ready")
	}
	if l.f, err = os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o644); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, b.closeBare(l))
		}
	}()
	switch lp {
	case loopPwrite:
		return l, nil
	case loopSync:
		// Blocks and size settled: a commit then has no size to journal.
		if err = allocate(l.f, size); err == nil {
			err = l.f.Sync()
		}
		return l, err
	}
	if err = allocate(l.f, size); err != nil {
		return l, fmt.Errorf("allocate %d bytes: %w", size, err)
	}
	if l.m, err = mmap.MapRegion(l.f, int(size), mmap.RDWR, 0, 0); err != nil {
		return l, fmt.Errorf("map %d bytes: %w", size, err)
	}
	switch lp {
	case loopReady:
		populate(l.m)
	case loopAhead:
		l.wake, l.done = make(chan struct{}, 1), make(chan struct{})
		l.wake <- struct{}{}
		go l.populateAhead()
	}
	return l, nil
}

// closeBare releases l and its file.
func (b *bench) closeBare(l *bareLog) error {
	l.stopPopulating()
	var err error
	if l.m != nil && l.loop != loopMemory {
		err = l.m.Unmap()
	}
	if l.f != nil {
		err = errors.Join(err, l.f.Close())
		if l.loop != loopReady {
			err = errors.Join(err, os.Remove(l.f.Name()))
		}
	}
	return err
}

func (l *bareLog) stopPopulating() {
	if l.wake != nil {
		close(l.wake)
		<-l.done
		l.wake = nil
	}
}

func (l *bareLog) populateAhead() {
	defer close(l.done)
	var ready int64
	for range l.wake {
		for ready = max(ready, l.end.Load()&^(aheadStep-1)); ready < min(l.end.Load()+aheadBytes, int64(len(l.m))); {
			to := min(ready+aheadStep, int64(len(l.m)))
			populate(l.m[ready:to])
			ready = max(to, l.end.Load()&^(aheadStep-1))
		}
	}
}

// append writes recs as one frame. It returns when the loop's promise holds:
// at once, or after the fdatasync that covers the frame.
func (l *bareLog) append(recs []record.Record) error {
	end, err := l.put(recs)
	if err == nil && l.loop == loopSync {
		err = l.commit(end)
	}
	return err
}

// put writes recs as one frame, which ends at end.
func (l *bareLog) put(recs []record.Record) (end int64, err error) {
	l.mu.Lock()
	pos := l.end.Load()
	end = pos + frameSize(len(recs), len(recs[0].Value))
	switch {
	case l.m == nil:
		if int64(cap(l.buf)) < end-pos {
			l.buf = make([]byte, end-pos)
		}
		b := l.buf[:end-pos]
		putFrame(b, recs)
		if _, err := l.f.WriteAt(b, pos); err != nil {
			l.mu.Unlock()
			return 0, err
		}
	case end > int64(len(l.m)):
		l.mu.Unlock()
		return 0, fmt.Errorf("bare loop: append at %d: %d bytes are mapped", pos, len(l.m))
	default:
		if l.loop == loopInline || l.loop == loopZeros {
			if err := l.readyTo(end); err != nil {
				l.mu.Unlock()
				return 0, err
			}
		}
		putFrame(l.m[pos:end], recs)
	}
	l.end.Store(end)
	l.mu.Unlock()
	if l.loop == loopAhead && pos/aheadStep != end/aheadStep {
		select {
		case l.wake <- struct{}{}:
		default:
		}
	}
	return end, nil
}

// readyTo has the pages below end ready, in whole steps.
func (l *bareLog) readyTo(end int64) error {
	for l.ready < end {
		to := min(l.ready+inlineStep, int64(len(l.m)))
		if l.loop == loopZeros {
			if _, err := l.f.WriteAt(zeros[:to-l.ready], l.ready); err != nil {
				return err
			}
		} else {
			populate(l.m[l.ready:to])
		}
		l.ready = to
	}
	return nil
}

var zeros [inlineStep]byte

// commit returns when everything below end is durable. Who finds no fdatasync
// under way leads one, for all that is written by then; the others wait for it.
func (l *bareLog) commit(end int64) error {
	l.syncMu.Lock()
	defer l.syncMu.Unlock()
	for l.synced < end && l.syncErr == nil {
		if l.syncing {
			l.syncEnd.Wait()
			continue
		}
		l.syncing = true
		l.syncMu.Unlock()
		written := l.end.Load()
		err := datasync(l.f)
		l.syncMu.Lock()
		l.syncing, l.synced, l.syncErr = false, written, err
		l.syncEnd.Broadcast()
	}
	return l.syncErr
}

// readBack verifies everything that was appended.
func (l *bareLog) readBack(c *checker, acked []int64) error {
	l.stopPopulating()
	b := []byte(l.m)
	if l.m == nil && l.end.Load() > 0 {
		m, err := mmap.MapRegion(l.f, int(l.end.Load()), mmap.RDONLY, 0, 0)
		if err != nil {
			return err
		}
		defer m.Unmap()
		b = m
	}
	for v, err := range frameValues(b[:l.end.Load()]) {
		if err != nil {
			return err
		}
		if err := c.record(v); err != nil {
			return err
		}
	}
	return c.done(acked)
}
