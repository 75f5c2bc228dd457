package record

import (
	"encoding/binary"
	"iter"
	"math"
	"sync"
)

// DefaultMaxDecompressed bounds the decompressed records of a batch, in bytes,
// where the caller does not.
const DefaultMaxDecompressed = 128 << 20

// maxHeaders bounds the headers of one record. A header takes two bytes at
// least on disk but headerBytes as a Header in memory, so without a bound a
// small batch of compressed headers could claim gigabytes.
const (
	maxHeaders  = 1 << 20
	headerBytes = 48
)

// keepBuffer is the largest buffer that a pooled Reader keeps, in bytes.
const keepBuffer = 1 << 20

// deltas is what the numbers of a record are relative to.
type deltas struct {
	baseOffset    int64
	baseTimestamp int64
	baseSequence  int32
	appendTime    bool // every record reports maxTimestamp
	maxTimestamp  int64
}

func (b Batch) deltas() deltas {
	return deltas{
		baseOffset:    b.BaseOffset(),
		baseTimestamp: b.BaseTimestamp(),
		baseSequence:  b.BaseSequence(),
		appendTime:    b.TimestampType() == LogAppendTime,
		maxTimestamp:  b.MaxTimestamp(),
	}
}

// parse reads the record at p[pos:] into r, whose byte slices alias p and whose
// Headers are hdrs[:0] extended. It returns the place behind the record.
func (d *deltas) parse(p []byte, pos int, r *Record, hdrs []Header) (int, *Error) {
	if next := d.parseShort(p, pos, r); next != 0 {
		r.Headers = hdrs[:0]
		return next, nil
	}
	return d.parseAny(p, pos, r, hdrs)
}

// parseShort is parse for the usual record: no number takes more than two
// bytes, those before the key no more than seven together, and there are no
// headers. So one load shows all of them. It returns 0 for any other record, and
// for an invalid one.
func (d *deltas) parseShort(p []byte, pos int, r *Record) int {
	if pos > len(p)-8 {
		return 0
	}
	w := binary.LittleEndian.Uint64(p[pos:])
	length, i := w&0x7f, pos+1
	if w&0x80 != 0 {
		if length |= w >> 1 & 0x3f80; w&0x8000 != 0 {
			return 0
		}
		w >>= 8
		i++
	}
	end := i + int(length>>1)
	timestamp := w >> 16 & 0xff // behind the attributes
	offset := w >> 24 & 0x7f
	i += 4
	if w>>24&0x80 != 0 {
		if offset |= w >> 25 & 0x3f80; w>>24&0x8000 != 0 {
			return 0
		}
		w >>= 8
		i++
	}
	key := w >> 32 & 0xff
	if end > len(p) || length&1|timestamp&0x80|key&0x80 != 0 {
		return 0
	}
	q := p[:end]
	r.Key = nil
	if key != 1 {
		at := i
		if i += int(key >> 1); key&1 != 0 || i > end {
			return 0
		}
		r.Key = q[at:i:i]
	}
	if i > end-3 { // two bytes of length and a header count, or other than usual
		return 0
	}
	value := uint(q[i] & 0x7f)
	if q[i]&0x80 != 0 {
		i++
		if value |= uint(q[i]) << 7; q[i]&0x80 != 0 {
			return 0
		}
	}
	at := i + 1
	i = at + int(value>>1)
	if value&1 != 0 || i != end-1 || q[i] != 0 {
		return 0
	}
	r.Value = q[at:i:i]
	r.Offset = d.baseOffset + int64(unzigzag32(uint32(offset)))
	r.Timestamp = d.baseTimestamp + unzigzag64(timestamp)
	if d.appendTime {
		r.Timestamp = d.maxTimestamp
	}
	r.Sequence = NoSequence
	if d.baseSequence != NoSequence {
		r.Sequence = IncSequence(d.baseSequence, unzigzag32(uint32(offset)))
	}
	return end
}

// parseAny is parse for every record.
func (d *deltas) parseAny(p []byte, pos int, r *Record, hdrs []Header) (int, *Error) {
	length, i := varint(p, pos)
	if i == 0 {
		return 0, badVarint("record length", pos)
	}
	if length < 0 || int(length) > len(p)-i {
		return 0, badLength("record length", pos, length, len(p)-i)
	}
	q := p[:i+int(length)] // nothing below reads behind the record
	at := i + 1            // one byte of attributes, no bit of which means anything
	timestampDelta, i := varlong(q, at)
	if i == 0 {
		return 0, badVarint("timestamp delta", at)
	}
	at = i
	offsetDelta, i := varint(q, at)
	if i == 0 {
		return 0, badVarint("offset delta", at)
	}
	at = i
	n, i := varint(q, at)
	if i == 0 {
		return 0, badVarint("key length", at)
	}
	r.Key = nil
	if n >= 0 {
		if int(n) > len(q)-i {
			return 0, badLength("key length", at, n, len(q)-i)
		}
		r.Key = q[i : i+int(n) : i+int(n)]
		i += int(n)
	}
	at = i
	if n, i = varint(q, at); i == 0 {
		return 0, badVarint("value length", at)
	}
	r.Value = nil
	if n >= 0 {
		if int(n) > len(q)-i {
			return 0, badLength("value length", at, n, len(q)-i)
		}
		r.Value = q[i : i+int(n) : i+int(n)]
		i += int(n)
	}
	at = i
	if n, i = varint(q, at); i == 0 {
		return 0, badVarint("header count", at)
	}
	r.Headers = hdrs[:0]
	if n != 0 {
		if n < 0 || int(n) > len(q)-i {
			return 0, badLength("header count", at, n, len(q)-i)
		}
		if n > maxHeaders {
			return 0, &Error{Kind: ErrTooLarge, What: "header count", Pos: at, Found: int64(n), Rel: atMost, Want: maxHeaders}
		}
		var bad *Error
		if r.Headers, i, bad = parseHeaders(q, i, int(n), r.Headers); bad != nil {
			return 0, bad
		}
	}
	if i != len(q) {
		return 0, &Error{Kind: ErrInvalid, What: "bytes left in the record", Pos: i, Found: int64(len(q) - i), Rel: want}
	}
	r.Offset = d.baseOffset + int64(offsetDelta)
	r.Timestamp = d.baseTimestamp + timestampDelta
	if d.appendTime {
		r.Timestamp = d.maxTimestamp
	}
	r.Sequence = NoSequence
	if d.baseSequence != NoSequence {
		r.Sequence = IncSequence(d.baseSequence, offsetDelta)
	}
	return i, nil
}

func parseHeaders(q []byte, i, count int, hdrs []Header) ([]Header, int, *Error) {
	for range count {
		var h Header
		at := i
		n, next := varint(q, at)
		if i = next; i == 0 {
			return hdrs, 0, badVarint("header key length", at)
		}
		if n < 0 || int(n) > len(q)-i {
			return hdrs, 0, badLength("header key length", at, n, len(q)-i)
		}
		h.Key = q[i : i+int(n) : i+int(n)]
		at = i + int(n)
		if n, i = varint(q, at); i == 0 {
			return hdrs, 0, badVarint("header value length", at)
		}
		if n >= 0 {
			if int(n) > len(q)-i {
				return hdrs, 0, badLength("header value length", at, n, len(q)-i)
			}
			h.Value = q[i : i+int(n) : i+int(n)]
			i += int(n)
		}
		hdrs = append(hdrs, h)
	}
	return hdrs, i, nil
}

func badVarint(what string, pos int) *Error {
	return &Error{Kind: ErrInvalid, What: what + " cut off or over-long", Pos: pos}
}

func badLength(what string, pos int, n int32, left int) *Error {
	if n < 0 {
		return &Error{Kind: ErrInvalid, What: what, Pos: pos, Found: int64(n), Rel: atLeast}
	}
	return &Error{Kind: ErrInvalid, What: what, Pos: pos, Found: int64(n), Rel: atMost, Want: int64(left)}
}

// Reader walks the records of one batch after another without allocating: it
// decompresses into a buffer of its own and uses that again. The zero value is
// ready. One goroutine at a time.
type Reader struct {
	// MaxBytes bounds the decompressed records of a batch. 0 is
	// DefaultMaxDecompressed. Plain batches are not copied and have no bound.
	MaxBytes int

	buf   []byte // decompressed records
	data  []byte // what records are parsed from: the batch itself or buf
	pos   int    // next record in data
	plain bool   // data is buf
	count int    // records in the batch
	next  int    // index of the next record
	err   error

	deltas
	rec  Record
	hdrs []Header
}

// Reset begins with the first record of b, which the Reader goes on to use. b
// should have passed [Check]; of its header only what Reset relies on is looked
// at again. Errors: ErrTooShort, ErrMagic, ErrCodec, and ErrTooLarge above
// MaxBytes.
func (r *Reader) Reset(b Batch) error {
	r.data, r.pos, r.count, r.next, r.plain = nil, 0, 0, 0, false
	r.err = r.reset(b)
	return r.err
}

func (r *Reader) reset(b Batch) error {
	if len(b) < HeaderSize {
		return batchError(ErrTooShort, "bytes present", 0, int64(len(b)), atLeast, HeaderSize)
	}
	if size := b.Size(); size < HeaderSize || size > len(b) {
		return batchError(ErrTooShort, "batch size", lengthAt, int64(size), atMost, int64(len(b)))
	}
	if b.Magic() != Magic {
		return batchError(ErrMagic, "magic", magicAt, int64(b.Magic()), want, Magic)
	}
	b = b[:b.Size()]
	r.data, r.pos, r.count, r.deltas = b, HeaderSize, int(b.Count()), b.deltas()
	if b.Codec() == None || len(b) == HeaderSize && b.Count() == 0 {
		return nil
	}
	limit := r.MaxBytes
	if limit <= 0 {
		limit = DefaultMaxDecompressed
	}
	buf, bad := decompress(r.buf[:0], b.Codec(), b[HeaderSize:], limit, Magic)
	if bad != nil {
		if bad.Pos += HeaderSize; !b.Codec().known() {
			bad.Pos = attributesAt
		}
		r.data, r.count = nil, 0
		return bad
	}
	r.buf, r.data, r.pos, r.plain = buf, buf, 0, true
	return nil
}

// Next reads the next record. It is false after the last one and on an error,
// one of which is that the batch holds more or fewer records than its header
// says (log-format §2.3).
func (r *Reader) Next() bool {
	if r.next >= r.count || r.err != nil {
		r.end()
		return false
	}
	pos, bad := r.parse(r.data, r.pos, &r.rec, r.hdrs)
	r.hdrs = r.rec.Headers
	if bad != nil {
		if r.pos == len(r.data) {
			bad = &Error{Kind: ErrInvalid, What: "records present", Pos: r.pos, Found: int64(r.next), Rel: want, Want: int64(r.count)}
		}
		bad.Record, bad.Plain = r.next, r.plain
		r.err = bad
		return false
	}
	r.pos = pos
	r.next++
	return true
}

// Into is Next with the record in rec, which need not be on the heap then, so
// that storing the slices costs no write barrier. Its Headers are valid until
// the following call.
func (r *Reader) Into(rec *Record) bool {
	if r.next < r.count && r.err == nil {
		if pos := r.parseShort(r.data, r.pos, rec); pos != 0 {
			rec.Headers = nil
			r.pos = pos
			r.next++
			return true
		}
	}
	if !r.Next() {
		return false
	}
	*rec = r.rec
	return true
}

// Skimmed is what Skim says of the records that it passed over.
type Skimmed struct {
	Count        int
	LastOffset   int64 // of the last one
	MaxTimestamp int64 // the largest
	MaxAt        int64 // offset of the first record that has it
}

// Skim passes over usual records for whoever needs their offsets and times only:
// it checks of each what Next does, and costs half of it, where one record is like
// the other a fifth. It ends before a record that has headers or long numbers, is
// invalid, or whose offset is not above prev and those before it and at most last:
// Next reads that one.
func (r *Reader) Skim(prev, last int64) (s Skimmed) {
	if r.err != nil {
		return s
	}
	start, left := r.pos, r.count-r.next
	k := skim{p: r.data, pos: start, left: left, low: prev - r.baseOffset, high: last - r.baseOffset, largest: math.MinInt64}
	for alike := true; k.each(alike); {
		// One try a batch that fails: its records are of one size, no more.
		alike = k.alike()
	}
	n := left - k.left
	if n == 0 {
		return s
	}
	r.pos, r.next = k.pos, r.next+n
	s = Skimmed{n, r.baseOffset + k.low, r.baseTimestamp + k.largest, r.baseOffset + k.at}
	if r.appendTime { // that of all
		var first Record
		r.parse(r.data, start, &first, nil)
		s.MaxTimestamp, s.MaxAt = r.maxTimestamp, first.Offset
	}
	return s
}

// skim is where Skim stands in a batch. What the loops below need most fits into
// registers, which is why there are two.
type skim struct {
	p           []byte
	from, pos   int   // the last record, and behind it
	left        int   // records that may follow
	low, high   int64 // the last offset delta, and the largest allowed
	largest, at int64 // timestamp delta, and the first offset delta that has it
}

// each passes over records one by one. It is true before one that begins like
// the one before it, if that is wanted.
func (k *skim) each(alike bool) (again bool) {
	p, from, pos, left := k.p, k.from, k.pos, k.left
	low, high := k.low, k.high
	largest, at := k.largest, k.at
	before := uint64(math.MaxUint64) // no first two bytes
	for left > 0 && pos <= len(p)-8 {
		// As in parseShort, but for times, which may take two bytes.
		w := binary.LittleEndian.Uint64(p[pos:])
		if w&0xffff == before {
			again = true
			break
		}
		if from = pos; alike {
			before = w & 0xffff
		}
		length, i := w&0x7f, pos+5
		if w&0x80 != 0 {
			if length |= w >> 1 & 0x3f80; w&0x8000 != 0 {
				break
			}
			w >>= 8
			i++
		}
		end := i - 4 + int(length>>1)
		timestamp := w >> 16 & 0x7f
		if w>>16&0x80 != 0 {
			if timestamp |= w >> 17 & 0x3f80; w>>16&0x8000 != 0 {
				break
			}
			w >>= 8
			i++
		}
		offset := w >> 24 & 0x7f
		if w>>24&0x80 != 0 {
			if offset |= w >> 25 & 0x3f80; w>>24&0x8000 != 0 {
				break
			}
			w >>= 8
			i++
		}
		key := w >> 32 & 0xff
		if end > len(p) || length&1|key&0x80 != 0 {
			break
		}
		if key != 1 {
			if i += int(key >> 1); key&1 != 0 {
				break
			}
		}
		if i > end-3 {
			break
		}
		value := uint(p[i] & 0x7f)
		if p[i]&0x80 != 0 {
			i++
			if value |= uint(p[i]) << 7; p[i]&0x80 != 0 {
				break
			}
		}
		i += 1 + int(value>>1)
		if value&1 != 0 || i != end-1 || p[i] != 0 {
			break
		}
		delta := int64(unzigzag32(uint32(offset)))
		if delta <= low || delta > high {
			break
		}
		if t := unzigzag64(timestamp); t > largest {
			largest, at = t, delta
		}
		low, pos = delta, end
		left--
	}
	k.from, k.pos, k.left, k.low, k.largest, k.at = from, pos, left, low, largest, at
	return again
}

// alike passes over the records that equal the last one in each number but the
// offset, which is one more each time: then three compares show that one is as
// good as the one before it. It is false if there are none.
func (k *skim) alike() bool {
	p, pos, step := k.p, k.pos, k.pos-k.from
	word := binary.LittleEndian.Uint64(p[k.from:])
	timeAt := uint(16) // in bits, as all places in the word
	mask := ^uint64(0xff00)
	if word&0x80 != 0 {
		timeAt = 24
		mask = ^uint64(0xff0000) // the attributes
	}
	offsetAt := timeAt + 8
	if word>>timeAt&0x80 != 0 {
		offsetAt += 8
	}
	keyAt := offsetAt + 8
	if word>>offsetAt&0x80 != 0 {
		keyAt += 8
	}
	mask &= 2<<(keyAt+7) - 1 // up to the key's length
	valueAt := int(keyAt/8) + 1
	if key := word >> keyAt & 0xff; key != 1 {
		valueAt += int(key >> 1)
	}
	value, valueMask := binary.LittleEndian.Uint16(p[k.from+valueAt:]), uint16(0xff)
	if value&0x80 != 0 {
		valueMask = 0xffff
	}
	// One more is two more as a zig-zag number, until the low bits are all in use.
	most := 63 - int(word>>offsetAt&0x7f>>1)
	if word>>offsetAt&1 != 0 { // negative
		most = 0
	}
	most, more := min(most, k.left, int(k.high-k.low)), uint64(2)<<offsetAt
	n := 0
	for ; n < most && pos <= len(p)-8; n++ {
		word += more
		q := p[pos:]
		if (binary.LittleEndian.Uint64(q)^word)&mask != 0 || uint(step-1) >= uint(len(q)) || q[step-1] != 0 ||
			(binary.LittleEndian.Uint16(q[valueAt:])^value)&valueMask != 0 {
			break
		}
		pos += step
	}
	k.pos, k.left, k.low = pos, k.left-n, k.low+int64(n)
	return n > 0
}

// end notes what is wrong once all records were read.
func (r *Reader) end() {
	switch {
	case r.err != nil:
	case r.count < 0:
		r.err = batchError(ErrInvalid, "records count", countAt, int64(r.count), atLeast, 0)
	case r.pos != len(r.data):
		bad := batchError(ErrInvalid, "bytes left behind the last record", r.pos, int64(len(r.data)-r.pos), want, 0)
		bad.Plain = r.plain
		r.err = bad
	}
}

// Record returns the record that Next read. It is overwritten by the following
// Next; its byte slices alias the batch, or if that is compressed the Reader's
// buffer until the following Reset.
func (r *Reader) Record() *Record { return &r.rec }

// Plain returns the bytes that the records of the batch are read from,
// decompressed if need be; none after an error of Reset. They live as long as
// what Record returns.
func (r *Reader) Plain() []byte {
	if r.plain || r.data == nil {
		return r.data
	}
	return r.data[HeaderSize:]
}

// Err returns what ended the walk early, nil after the last record.
func (r *Reader) Err() error { return r.err }

var readers = sync.Pool{New: func() any { return new(Reader) }}

func getReader(maxBytes int) *Reader {
	r := readers.Get().(*Reader)
	r.MaxBytes = maxBytes
	return r
}

// putReader takes a Reader back without the memory that it only views, and
// without what one big batch made it hold.
func putReader(r *Reader) {
	if cap(r.buf) > keepBuffer {
		r.buf = nil
	}
	if cap(r.hdrs)*headerBytes > keepBuffer {
		r.hdrs = nil
	}
	clear(r.hdrs[:cap(r.hdrs)])
	r.data, r.rec, r.err = nil, Record{}, nil
	readers.Put(r)
}

// Records yields the records of b, decompressing at most DefaultMaxDecompressed
// bytes. An error is the last thing it yields. The byte slices of a record are
// valid during its turn of the loop; copy what is to stay.
func (b Batch) Records() iter.Seq2[Record, error] {
	return func(yield func(Record, error) bool) {
		r := getReader(0)
		defer putReader(r)
		r.Reset(b)
		for r.Next() {
			if !yield(r.rec, nil) {
				return
			}
		}
		if r.err != nil {
			yield(Record{}, r.err)
		}
	}
}

// SkipTo passes over n records of the plain batch b by their lengths alone. pos
// is the byte in b where the first of them starts, HeaderSize for that of the
// batch; newPos is where the record behind them starts, or the end of b. In a
// batch whose Count is LastOffsetDelta + 1, which every batch is until
// compaction, n records are n offsets.
//
// Errors: ErrInvalid where the lengths do not fit, ErrCodec if b is compressed.
func SkipTo(b Batch, pos, n int) (newPos int, err error) {
	if err := plainBatch(b, pos); err != nil {
		return 0, err
	}
	// Each place depends on the length before it, a chain that costs more than
	// all else. Records of equal size, the usual case, break it: while the two
	// bytes in which a length lies are those of the record before, the step is
	// known without them.
	step, word := 0, uint16(0)
	for i := range n {
		if pos+step <= len(b)-2 && step != 0 && binary.LittleEndian.Uint16(b[pos:]) == word {
			pos += step
			continue
		}
		length, next := varint(b, pos)
		if next == 0 {
			bad := badVarint("record length", pos)
			bad.Record = i
			return 0, bad
		}
		if length < 0 || int(length) > len(b)-next {
			bad := badLength("record length", pos, length, len(b)-next)
			bad.Record = i
			return 0, bad
		}
		if step = 0; next-pos <= 2 && length > 0 {
			step, word = next-pos+int(length), binary.LittleEndian.Uint16(b[pos:])
		}
		pos = next + int(length)
	}
	return pos, nil
}

// ParseRecordAt reads the record at byte pos of the plain batch b, as [SkipTo]
// found it, into rec, whose byte slices alias b and whose Headers are hdrs[:0]
// extended. next is where the record behind it starts. Errors as for SkipTo.
func ParseRecordAt(b Batch, pos int, rec *Record, hdrs []Header) (next int, err error) {
	if err := plainBatch(b, pos); err != nil {
		return 0, err
	}
	d := b.deltas()
	next, bad := d.parse(b, pos, rec, hdrs)
	if bad != nil {
		bad.Record = -1
		return 0, bad
	}
	return next, nil
}

// plainBatch checks that pos lies among the records of b and b is plain.
func plainBatch(b Batch, pos int) error {
	if len(b) < HeaderSize {
		return batchError(ErrTooShort, "bytes present", 0, int64(len(b)), atLeast, HeaderSize)
	}
	if b.Codec() != None {
		return batchError(ErrCodec, "codec", attributesAt, int64(b.Codec()), want, int64(None))
	}
	if pos < HeaderSize || pos > len(b) {
		return batchError(ErrInvalid, "record position", 0, int64(pos), atMost, int64(len(b)))
	}
	return nil
}
