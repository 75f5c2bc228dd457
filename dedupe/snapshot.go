package dedupe

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"iter"
	"math"
	"slices"

	"github.com/cespare/xxhash/v2"

	"github.com/tidemark-log/tidemark/record"
)

// Suffix ends the name of our own file, 20 digits before it. Kafka ignores it
// (log-format §1.2).
const Suffix = ".dedupe"

// Kafka's snapshot (log-format §5.1), big-endian:
//
//	0 i16  version 1          per producer, 46 bytes:
//	2 u32  CRC-32C from 6 on    0 i64 id             2+8 i32 last sequence
//	6 i32  producers            8 i16 epoch           14 i64 last offset
//	                           22 i32 offset delta    26 i64 last timestamp
//	                           34 i32 coord. epoch    38 i64 txn first offset
const (
	snapshotVersion = 1
	snapshotHeader  = 10
	snapshotEntry   = 46
)

// Our own file, little-endian. It holds what the log below end says:
//
//	 0 u32  magic "TDMD"       per producer, in 32 bytes and 24 for each batch:
//	 4 u16  version 1            0 i64 id
//	 6 u16  header bytes, 56     8 i64 last timestamp
//	 8 16 B log id              16 i64 first offset of the open transaction, or −1
//	24 i64  end                 24 i32 coordinator epoch
//	32 u64  producers           28 i16 epoch
//	40 u64  bytes behind the    30 u8  batches, 0 to 5; u8 zero
//	        header              then each batch, the oldest first:
//	48 u64  xxh64 of what        0 i64 last offset     16 i32 last sequence
//	        stands before        8 i64 timestamp       20 i32 offset delta
//
// and behind all of it the u64 xxh64 of the producers. Every version keeps magic,
// version, header bytes and the two hashes.
const (
	windowMagic    = 0x444d4454 // "TDMD"
	windowVersion  = 1
	windowHeader   = 56
	windowProducer = 32
	windowBatch    = 24
	windowTrailer  = 8
)

var (
	// ErrCorrupt means that a file is not what was written.
	ErrCorrupt = errors.New("corrupt producer snapshot")
	// ErrVersion means that a .dedupe file is of a version to come.
	ErrVersion = errors.New("unknown version of a producer snapshot")
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func corrupt(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrCorrupt, fmt.Sprintf(format, args...))
}

// File is the checked content of a snapshot, Kafka's or ours. It views the bytes
// it was parsed from.
type File struct {
	End   int64    // the offset it stands for; −1 for Kafka's, whose name says it
	LogID [16]byte // of the log that wrote it; zero for Kafka's
	n     int
	body  []byte
	own   bool
}

// Len is the number of producers.
func (f *File) Len() int { return f.n }

// ParseSnapshot reads Kafka's snapshot. It checks length and checksum, not what
// the producers say; [Table.Load] does. Errors wrap ErrCorrupt.
func ParseSnapshot(b []byte) (File, error) {
	if len(b) < snapshotHeader {
		return File{}, corrupt("%d bytes, want at least %d", len(b), snapshotHeader)
	}
	if v := int16(binary.BigEndian.Uint16(b)); v != snapshotVersion {
		return File{}, corrupt("version %d, want %d", v, snapshotVersion)
	}
	if crc, want := crc32.Checksum(b[6:], castagnoli), binary.BigEndian.Uint32(b[2:]); crc != want {
		return File{}, corrupt("crc-32c %08x, want %08x", want, crc)
	}
	n, body := int64(int32(binary.BigEndian.Uint32(b[6:]))), b[snapshotHeader:]
	if n < 0 || n*snapshotEntry != int64(len(body)) {
		return File{}, corrupt("%d bytes of producers, want %d of %d bytes each", len(body), n, snapshotEntry)
	}
	return File{End: -1, n: int(n), body: body}, nil
}

// ParseWindow reads our own file. It checks every length and both checksums.
// Errors wrap ErrCorrupt or ErrVersion.
func ParseWindow(b []byte) (f File, err error) {
	le := binary.LittleEndian
	if len(b) < 16 || le.Uint32(b) != windowMagic {
		return f, corrupt("%d bytes that do not begin with the magic number", len(b))
	}
	h := int(le.Uint16(b[6:]))
	if h < 16 || h > len(b) || xxhash.Sum64(b[:h-8]) != le.Uint64(b[h-8:]) {
		return f, corrupt("checksum of the header, %d of %d bytes", h, len(b))
	}
	if v := le.Uint16(b[4:]); v != windowVersion {
		return f, fmt.Errorf("%w: found %d, want %d", ErrVersion, v, windowVersion)
	}
	if h != windowHeader {
		return f, corrupt("header of %d bytes, want %d", h, windowHeader)
	}
	f.own = true
	copy(f.LogID[:], b[8:])
	f.End = int64(le.Uint64(b[24:]))
	n, size, body := le.Uint64(b[32:]), le.Uint64(b[40:]), b[windowHeader:]
	if uint64(len(body)) != size+windowTrailer || size > math.MaxInt64 || f.End < 0 {
		return f, corrupt("%d bytes behind the header, want %d and the checksum", len(body), size)
	}
	f.body = body[:size]
	if xxhash.Sum64(f.body) != le.Uint64(body[size:]) {
		return f, corrupt("checksum of the producers")
	}
	seen := uint64(0)
	for rest := f.body; len(rest) > 0; seen++ {
		if len(rest) < windowProducer {
			return f, corrupt("%d bytes left, want a producer of at least %d", len(rest), windowProducer)
		}
		size := windowProducer + windowBatch*int(rest[30])
		if rest[30] > Window || size > len(rest) {
			return f, corrupt("producer with %d batches in %d bytes", rest[30], len(rest))
		}
		rest = rest[size:]
	}
	if seen != n || n > math.MaxInt32 {
		return f, corrupt("%d producers, want %d", seen, n)
	}
	f.n = int(n)
	return f, nil
}

// All goes through the producers in the order of the file.
func (f *File) All() iter.Seq[Producer] {
	return func(yield func(Producer) bool) {
		for rest := f.body; len(rest) > 0; {
			var p Producer
			rest = f.next(rest, &p)
			if !yield(p) {
				return
			}
		}
	}
}

// next reads the producer at the start of b, which is as long as it says, and
// returns what follows. Batches behind p.N stay as they are.
func (f *File) next(b []byte, p *Producer) []byte {
	if f.own {
		le := binary.LittleEndian
		p.ID = int64(le.Uint64(b))
		p.LastTimestamp = int64(le.Uint64(b[8:]))
		p.TxnFirstOffset = int64(le.Uint64(b[16:]))
		p.CoordinatorEpoch = int32(le.Uint32(b[24:]))
		p.Epoch = int16(le.Uint16(b[28:]))
		p.N = int(b[30])
		b = b[windowProducer:]
		for i := range p.N {
			q, to := (*[windowBatch]byte)(b[i*windowBatch:]), &p.Batches[i]
			to.LastOffset, to.Timestamp = int64(le.Uint64(q[:])), int64(le.Uint64(q[8:]))
			to.LastSequence, to.OffsetDelta = int32(le.Uint32(q[16:])), int32(le.Uint32(q[20:]))
		}
		return b[p.N*windowBatch:]
	}
	be := binary.BigEndian
	p.ID = int64(be.Uint64(b))
	p.Epoch = int16(be.Uint16(b[8:]))
	p.LastTimestamp = int64(be.Uint64(b[26:]))
	p.CoordinatorEpoch = int32(be.Uint32(b[34:]))
	p.TxnFirstOffset = max(int64(be.Uint64(b[38:])), -1)
	p.N = 0
	if last := int64(be.Uint64(b[14:])); last >= 0 {
		p.N = 1
		p.Batches[0] = Batch{LastOffset: last, Timestamp: p.LastTimestamp,
			LastSequence: int32(be.Uint32(b[10:])), OffsetDelta: int32(be.Uint32(b[22:]))}
	}
	return b[snapshotEntry:]
}

// Load makes the table what f says about a log that ends at end, but for
// producers that have expired by nowMs (log-format §5.5). Beyond MaxProducers it
// evicts. On error, which wraps ErrCorrupt, the table is empty.
func (t *Table) Load(f File, end, nowMs int64) (err error) {
	t.Reset()
	defer func() {
		if err != nil {
			t.Reset()
		}
	}()
	if f.own && f.End != end {
		return corrupt("it stands for offset %d, want %d", f.End, end)
	}
	t.reserve(min(f.n, t.max))
	order, ends := t.order(&f)
	var p Producer
	at := 0
	for k, part := range slices.Clone(t.dir) {
		n := ends[k] - at
		*part = *newPart(size(min(n, maxSlots)), part.depth)
		for ; at < ends[k]; at++ {
			if at%fetchAtOnce == 0 {
				fetch(f.body, order[at:min(at+fetchAtOnce, len(order))], len(f.body)/f.n)
			}
			f.next(f.body[order[at]:], &p)
			if err := p.check(end); err != nil {
				return err
			}
			if t.knows(p.ID) {
				return corrupt("producer %d stands in it twice", p.ID)
			}
			if t.isExpired(nowMs, p.LastTimestamp, p.TxnFirstOffset) {
				t.expired++
				continue
			}
			if t.live >= t.max {
				t.evict()
			}
			t.enter(&p)
		}
	}
	return nil
}

// order returns where the producers of a file begin, those of the same part one
// after the other, so that its slots stay in the cache while they are entered;
// and where in that list the parts end.
func (t *Table) order(f *File) (order, ends []int) {
	at := make([]int, len(t.dir)+1) // where the first of each part goes, one place further on
	for k := range f.hashes(t) {
		at[k+1]++
	}
	for k := range at[1:] {
		at[k+1] += at[k]
	}
	order = make([]int, f.n)
	for k, pos := range f.hashes(t) {
		order[at[k]] = pos
		at[k]++
	}
	return order, at
}

// fetchAtOnce is how many producers are brought into the cache together.
const fetchAtOnce = 16

// fetch reads a byte of each cache line of the producers at some places, size bytes
// each, so that the processor waits for all of them at once. What it returns means
// nothing.
//
//go:noinline
func fetch(b []byte, places []int, size int) (sum byte) {
	for _, at := range places {
		p := b[at:min(at+size, len(b))]
		for i := 0; i < len(p); i += 64 {
			sum += p[i]
		}
		sum += p[len(p)-1]
	}
	return sum
}

// hashes goes through the producers of a file in its order: the part of t that
// each belongs to, and where it begins.
func (f *File) hashes(t *Table) iter.Seq2[uint64, int] {
	return func(yield func(uint64, int) bool) {
		for pos := 0; pos < len(f.body); {
			b := f.body[pos:]
			id, size := int64(binary.BigEndian.Uint64(b)), snapshotEntry
			if f.own {
				id, size = int64(binary.LittleEndian.Uint64(b)), windowProducer+windowBatch*int(b[30])
			}
			if !yield(t.hash(id)>>(64-t.depth), pos) {
				return
			}
			pos += size
		}
	}
}

// check tells whether p can be true of a log that ends at end.
func (p *Producer) check(end int64) error {
	ok := p.ID >= 0 && p.Epoch >= record.NoProducerEpoch && p.TxnFirstOffset >= -1 && p.TxnFirstOffset < end
	before := int64(-1)
	for _, b := range p.Batches[:p.N] {
		ok = ok && b.LastOffset > before && b.LastOffset < end && b.OffsetDelta >= 0 && b.BaseOffset() >= 0 && b.LastSequence >= record.NoSequence
		before = b.LastOffset
	}
	if !ok {
		return corrupt("producer %d cannot be in a log that ends at offset %d: %+v", p.ID, end, *p)
	}
	return nil
}

// View is a table as it was when it was frozen.
type View struct {
	parts   []part
	live    int
	batches int
}

// Freeze returns the table as it is now, for a file to be written from while the
// table goes on. It costs a few microseconds, and 100 bytes of copying for every
// 1,000 to 2,000 producers. There may be one View at a time: nil if one is out.
func (t *Table) Freeze() *View {
	if t.view != nil {
		return nil
	}
	t.view = &View{live: t.live, batches: t.batches, parts: make([]part, 0, len(t.dir))}
	for p := range t.parts() {
		p.shared = true
		t.view.parts = append(t.view.parts, *p)
	}
	return t.view
}

// Thaw ends the View that is out.
func (t *Table) Thaw() {
	t.view = nil
	for p := range t.parts() {
		p.shared = false
	}
}

// all goes through the slots that are taken.
func (v *View) all() iter.Seq2[*part, int] {
	return func(yield func(*part, int) bool) {
		for k := range v.parts {
			p := &v.parts[k]
			for i := range p.slots {
				if p.has(i) && !yield(p, i) {
					return
				}
			}
		}
	}
}

// Len is the number of producers.
func (v *View) Len() int { return v.live }

// SnapshotBytes is the size of what WriteSnapshot writes.
func (v *View) SnapshotBytes() int64 { return snapshotBytes(v.live) }

// WindowBytes is the size of what WriteWindow writes.
func (v *View) WindowBytes() int64 { return windowBytes(v.live, v.batches) }

// FileBytes is the size of both files of the table together.
func (t *Table) FileBytes() int64 { return snapshotBytes(t.live) + windowBytes(t.live, t.batches) }

// MaxFileBytes is the size of the larger file of a table that is full, 0 standing
// for the default of MaxProducers.
func MaxFileBytes(maxProducers int) int64 {
	if maxProducers == 0 {
		maxProducers = defaultMaxProducers
	}
	return windowBytes(maxProducers, Window*maxProducers)
}

func snapshotBytes(producers int) int64 { return snapshotHeader + int64(producers)*snapshotEntry }

func windowBytes(producers, batches int) int64 {
	return windowHeader + int64(producers)*windowProducer + int64(batches)*windowBatch + windowTrailer
}

// piece is how much is encoded before it is written.
const piece = 128 << 10

// WriteSnapshot writes Kafka's snapshot to w from position 0 on and returns its
// size.
func (v *View) WriteSnapshot(w io.WriterAt) (size int64, err error) {
	be := binary.BigEndian
	buf := make([]byte, 0, piece+snapshotEntry)
	var head [snapshotHeader]byte
	be.PutUint16(head[:], snapshotVersion)
	be.PutUint32(head[6:], uint32(v.live))
	crc := crc32.Checksum(head[6:], castagnoli)
	size = snapshotHeader
	flush := func() error {
		crc = crc32.Update(crc, castagnoli, buf)
		_, err := w.WriteAt(buf, size)
		size += int64(len(buf))
		buf = buf[:0]
		return err
	}
	for p, i := range v.all() {
		e := &p.slots[i]
		last := Batch{LastOffset: -1, LastSequence: record.NoSequence}
		if e.n > 0 {
			last = e.last
		}
		buf = buf[:len(buf)+snapshotEntry]
		q := (*[snapshotEntry]byte)(buf[len(buf)-snapshotEntry:])
		be.PutUint64(q[0:], uint64(e.pid))
		be.PutUint16(q[8:], uint16(e.epoch))
		be.PutUint32(q[10:], uint32(last.LastSequence))
		be.PutUint64(q[14:], uint64(last.LastOffset))
		be.PutUint32(q[22:], uint32(last.OffsetDelta))
		be.PutUint64(q[26:], uint64(e.lastTimestamp))
		be.PutUint32(q[34:], uint32(e.coordEpoch))
		be.PutUint64(q[38:], uint64(e.txnFirst))
		if len(buf) >= piece {
			if err := flush(); err != nil {
				return 0, err
			}
		}
	}
	if err := flush(); err != nil {
		return 0, err
	}
	be.PutUint32(head[2:], crc)
	_, err = w.WriteAt(head[:], 0)
	return size, err
}

// WriteWindow writes our own file to w from position 0 on and returns its size.
// The table was frozen when log logID ended at offset end.
func (v *View) WriteWindow(w io.WriterAt, logID [16]byte, end int64) (size int64, err error) {
	le := binary.LittleEndian
	buf := make([]byte, 0, piece+windowProducer+Window*windowBatch+windowTrailer)
	hash := xxhash.New()
	size = windowHeader
	flush := func() error {
		_, err := w.WriteAt(buf, size)
		size += int64(len(buf))
		buf = buf[:0]
		return err
	}
	for p, i := range v.all() {
		e := &p.slots[i]
		at := len(buf)
		buf = buf[:at+windowProducer+int(e.n)*windowBatch]
		q := (*[windowProducer]byte)(buf[at:])
		le.PutUint64(q[0:], uint64(e.pid))
		le.PutUint64(q[8:], uint64(e.lastTimestamp))
		le.PutUint64(q[16:], uint64(e.txnFirst))
		le.PutUint32(q[24:], uint32(e.coordEpoch))
		le.PutUint16(q[28:], uint16(e.epoch))
		q[30], q[31] = e.n, 0
		for k := range int(e.n) {
			q, b := (*[windowBatch]byte)(buf[at+windowProducer+k*windowBatch:]), p.batch(i, k)
			le.PutUint64(q[0:], uint64(b.LastOffset))
			le.PutUint64(q[8:], uint64(b.Timestamp))
			le.PutUint32(q[16:], uint32(b.LastSequence))
			le.PutUint32(q[20:], uint32(b.OffsetDelta))
		}
		if len(buf) >= piece {
			hash.Write(buf)
			if err := flush(); err != nil {
				return 0, err
			}
		}
	}
	hash.Write(buf)
	body := size + int64(len(buf)) - windowHeader
	buf = le.AppendUint64(buf, hash.Sum64())
	if err := flush(); err != nil {
		return 0, err
	}
	var head [windowHeader]byte
	le.PutUint32(head[:], windowMagic)
	le.PutUint16(head[4:], windowVersion)
	le.PutUint16(head[6:], windowHeader)
	copy(head[8:], logID[:])
	le.PutUint64(head[24:], uint64(end))
	le.PutUint64(head[32:], uint64(v.live))
	le.PutUint64(head[40:], uint64(body))
	le.PutUint64(head[48:], xxhash.Sum64(head[:48]))
	_, err = w.WriteAt(head[:], 0)
	return size, err
}
