package record

import (
	"encoding/binary"
	"hash/crc32"
	"math"
)

// Header is a record header. Key is UTF-8 and cannot be null, a nil one is
// written as empty; a nil Value is null.
type Header struct{ Key, Value []byte }

// Record is one record. A nil Key or Value is null, an empty one is empty.
type Record struct {
	Offset    int64 // read: absolute. Written only with Spec.KeepOffsets
	Timestamp int64 // ms since the epoch, or NoTimestamp
	Sequence  int32 // read only; NoSequence if the batch has none

	Key, Value []byte
	Headers    []Header
}

// Spec is the part of a batch that its records do not tell. [NewSpec] makes
// one that names neither producer nor epoch; the zero value names producer 0.
type Spec struct {
	BaseOffset    int64
	LeaderEpoch   int32
	Now           int64 // ms since the epoch: for records whose Timestamp is 0, and for LogAppendTime
	TimestampType TimestampType
	ProducerID    int64
	ProducerEpoch int16
	BaseSequence  int32
	Transactional bool
	Control       bool  // never compressed, whatever Codec says
	DeleteHorizon int64 // ms since the epoch, becomes the base timestamp; 0 for none

	// KeepOffsets takes each record's own Offset, which must rise from
	// BaseOffset on and may leave gaps; the batch then reaches to LastOffset if
	// that is higher than the last record's. Builder only: compaction needs it.
	KeepOffsets bool
	LastOffset  int64

	Codec Codec // Builder only
	Level int   // in the codec's own terms, see Compress; 0 is its default
}

// NewSpec returns a Spec with everything absent, at base offset 0.
func NewSpec() Spec {
	return Spec{
		LeaderEpoch:   NoLeaderEpoch,
		ProducerID:    NoProducer,
		ProducerEpoch: NoProducerEpoch,
		BaseSequence:  NoSequence,
	}
}

// attributes is the attribute byte for records compressed with c.
func (s *Spec) attributes(c Codec) byte {
	a := byte(c) & attrCodec
	if s.TimestampType == LogAppendTime {
		a |= attrAppendTime
	}
	if s.Transactional {
		a |= attrTransaction
	}
	if s.Control {
		a |= attrControl
	}
	if s.DeleteHorizon != 0 {
		a |= attrHorizon
	}
	return a
}

// stride is how many bytes are written before they are hashed: they are then
// still in the first cache, half of which it fills.
const stride = 12 << 10

// Size returns the exact size in bytes of the plain batch that Encode makes of
// recs, at least one. now stamps records whose Timestamp is 0, as Spec.Now does.
func Size(recs []Record, now int64) int {
	base := stamp(recs[0].Timestamp, now)
	n := HeaderSize
	for i := range recs {
		r := &recs[i]
		ts, offset := zigzag64(stamp(r.Timestamp, now)-base), uint64(i)<<1
		if v := len(r.Value); r.Key == nil && len(r.Headers) == 0 && ts < 1<<7 {
			body := 4 + varintSize(offset) + lengthSize(v) + v
			n += lengthSize(body) + body
			continue
		}
		n += recordSize(r, ts, offset)
	}
	return n
}

// Encode writes recs, at least one, as a plain batch to the start of dst and
// returns it, a view of dst. len(dst) must be at least Size(recs, spec.Now), and
// that at most MaxSize: it panics otherwise, having written part. Offsets and
// sequences count on from the base. Nothing is checked; see [Builder] for the
// rules.
//
// dst is a region of zeros that a crash may leave as it is: everything is written
// before the length field, so that what a killed writer leaves is no batch.
func Encode(dst []byte, recs []Record, spec *Spec) Batch {
	first := stamp(recs[0].Timestamp, spec.Now)
	largest := first
	for i := 1; i < len(recs); i++ {
		largest = max(largest, stamp(recs[i].Timestamp, spec.Now))
	}
	putFields(dst, spec, None, int32(len(recs)-1), first, largest, int32(len(recs)))

	p, hashed, crc := HeaderSize, attributesAt, uint32(0)
	for i := range recs {
		r := &recs[i]
		ts, offset := zigzag64(stamp(r.Timestamp, spec.Now)-first), uint64(i)<<1
		if len(r.Value) <= stride {
			p = putRecord(dst, p, r, ts, offset)
		} else {
			p = putHead(dst, p, r, ts, offset)
			for v := r.Value; len(v) > 0; {
				n := copy(dst[p:], v[:min(stride, len(v))])
				v, p = v[n:], p+n
				crc = crc32.Update(crc, castagnoli, dst[hashed:p])
				hashed = p
			}
			p = putHeaders(dst, p, r.Headers)
		}
		if p-hashed >= stride {
			crc = crc32.Update(crc, castagnoli, dst[hashed:p])
			hashed = p
		}
	}
	return seal(dst[:p:p], spec, crc32.Update(crc, castagnoli, dst[hashed:p]))
}

// stamp is the timestamp of a record written at now.
func stamp(ts, now int64) int64 {
	if ts == 0 {
		return now
	}
	return ts
}

// recordSize is the encoded size of r (log-format §2.2), its deltas given zig-zag.
func recordSize(r *Record, ts, offset uint64) int {
	body := bodySize(r, ts, offset)
	return lengthSize(body) + body
}

// bodySize is what the length field of a record counts.
func bodySize(r *Record, ts, offset uint64) int {
	n := 1 + varintSize(ts) + varintSize(offset) +
		lengthSize(len(r.Key)) + len(r.Key) + lengthSize(len(r.Value)) + len(r.Value)
	if len(r.Headers) == 0 {
		return n + 1
	}
	return n + headersSize(r.Headers)
}

func headersSize(headers []Header) int {
	n := lengthSize(len(headers))
	for i := range headers {
		h := &headers[i]
		n += lengthSize(len(h.Key)) + len(h.Key) + lengthSize(len(h.Value)) + len(h.Value)
	}
	return n
}

// putRecord writes r at dst[p:] and returns the place behind it.
func putRecord(dst []byte, p int, r *Record, ts, offset uint64) int {
	n := len(r.Value)
	if r.Key == nil && len(r.Headers) == 0 && n >= 8 && n < 1<<13-16 && ts < 1<<7 && offset < 1<<14 {
		// No number takes more than two bytes, so what precedes the length of the
		// value is seven at most: one store for that and one for the length, whose
		// excess the value overwrites.
		w, bits := appendShort(0, 0, uint64(4+varintSize(offset)+lengthSize(n)+n)<<1)
		w |= ts << ((bits + 8) & 63) // behind the attributes
		w, bits = appendShort(w, bits+16, offset)
		w |= 1 << (bits & 63) // null key
		length, lengthBits := appendShort(0, 0, uint64(n)<<1)
		head := int(bits/8) + 1
		value := head + int(lengthBits/8)
		d := dst[p : p+value+n+1]
		binary.LittleEndian.PutUint64(d, w)
		binary.LittleEndian.PutUint16(d[head:], uint16(length))
		copy(d[value:], r.Value)
		d[value+n] = 0 // no headers
		return p + value + n + 1
	}
	p = putHead(dst, p, r, ts, offset)
	p += copy(dst[p:p+n], r.Value)
	return putHeaders(dst, p, r.Headers)
}

// appendShort puts the varint u < 2^14 into w above its lowest bits, of which
// there are fewer than 64.
func appendShort(w uint64, bits uint, u uint64) (uint64, uint) {
	if u < 1<<7 {
		return w | u<<(bits&63), bits + 8
	}
	return w | (u+u&^0x7f+0x80)<<(bits&63), bits + 16
}

// putHead writes r up to its value, exclusive.
func putHead(dst []byte, p int, r *Record, ts, offset uint64) int {
	p = putUvarint(dst, p, uint64(bodySize(r, ts, offset))<<1)
	dst[p] = 0 // attributes: no bit means anything
	p = putUvarint(dst, p+1, ts)
	p = putUvarint(dst, p, offset)
	if r.Key == nil {
		dst[p] = 1 // -1
		p++
	} else {
		p = putUvarint(dst, p, uint64(len(r.Key))<<1)
		p += copy(dst[p:p+len(r.Key)], r.Key)
	}
	if r.Value == nil {
		dst[p] = 1
		return p + 1
	}
	return putUvarint(dst, p, uint64(len(r.Value))<<1)
}

// putHeaders writes what follows the value.
func putHeaders(dst []byte, p int, headers []Header) int {
	p = putUvarint(dst, p, uint64(len(headers))<<1)
	for i := range headers {
		h := &headers[i]
		p = putUvarint(dst, p, uint64(len(h.Key))<<1)
		p += copy(dst[p:p+len(h.Key)], h.Key)
		if h.Value == nil {
			dst[p] = 1
			p++
			continue
		}
		p = putUvarint(dst, p, uint64(len(h.Value))<<1)
		p += copy(dst[p:p+len(h.Value)], h.Value)
	}
	return p
}

// putFields writes the header fields that the CRC covers. largest counts with
// CreateTime.
func putFields(dst []byte, spec *Spec, c Codec, lastDelta int32, base, largest int64, count int32) {
	h := dst[:HeaderSize]
	if spec.TimestampType == LogAppendTime {
		largest = spec.Now
	}
	binary.BigEndian.PutUint16(h[attributesAt:], uint16(spec.attributes(c)))
	binary.BigEndian.PutUint32(h[lastDeltaAt:], uint32(lastDelta))
	binary.BigEndian.PutUint64(h[baseTimestampAt:], uint64(base))
	binary.BigEndian.PutUint64(h[maxTimestampAt:], uint64(largest))
	binary.BigEndian.PutUint64(h[producerIDAt:], uint64(spec.ProducerID))
	binary.BigEndian.PutUint16(h[producerEpochAt:], uint16(spec.ProducerEpoch))
	binary.BigEndian.PutUint32(h[baseSequenceAt:], uint32(spec.BaseSequence))
	binary.BigEndian.PutUint32(h[countAt:], uint32(count))
}

// seal writes the fields outside the CRC, the length last. b is the whole batch.
func seal(b Batch, spec *Spec, crc uint32) Batch {
	binary.BigEndian.PutUint32(b[crcAt:], crc)
	b[magicAt] = Magic
	b.SetLeaderEpoch(spec.LeaderEpoch)
	b.SetBaseOffset(spec.BaseOffset)
	binary.BigEndian.PutUint32(b[lengthAt:], uint32(len(b)-prefixSize))
	return b
}

// Builder makes batches by the rules of log-format §2.4, compressed or not, in
// memory of its own that it uses again. The zero value is ready. One goroutine
// at a time.
type Builder struct {
	out   []byte // the batch
	plain []byte // the records before compression
}

// Build returns the batch of recs, valid until the next Build. What breaks a
// rule is ErrInvalid, a codec that does not exist ErrCodec, and a batch beyond
// MaxSize ErrTooLarge. The offsets of recs are not written back.
func (w *Builder) Build(recs []Record, spec *Spec) (Batch, error) {
	size, err := checkRules(recs, spec)
	if err != nil {
		return nil, err
	}
	codec := spec.Codec
	if spec.Control {
		codec = None
	}
	if codec == None && !spec.KeepOffsets && spec.DeleteHorizon == 0 {
		w.out = resize(w.out, size)
		return Encode(w.out, recs, spec), nil
	}

	base := stamp(recs[0].Timestamp, spec.Now)
	largest := base
	first := base
	if spec.DeleteHorizon != 0 {
		first = spec.DeleteHorizon
	}
	w.plain = resize(w.plain, size)
	p := HeaderSize // room for the header, so that a plain batch needs no copy
	for i := range recs {
		r := &recs[i]
		ts := stamp(r.Timestamp, spec.Now)
		largest = max(largest, ts)
		p = putRecord(w.plain, p, r, zigzag64(ts-first), uint64(spec.offsetDelta(recs, i))<<1)
	}
	if codec == None {
		w.plain, w.out = w.out, w.plain[:p]
	} else {
		w.out = resize(w.out, HeaderSize)
		if w.out, err = Compress(w.out, codec, spec.Level, w.plain[HeaderSize:p]); err != nil {
			return nil, err
		}
		if len(w.out) > MaxSize {
			return nil, batchError(ErrTooLarge, "batch size", lengthAt, int64(len(w.out)), atMost, MaxSize)
		}
	}
	last := int64(spec.offsetDelta(recs, len(recs)-1))
	if spec.KeepOffsets {
		last = max(last, spec.LastOffset-spec.BaseOffset)
	}
	b := Batch(w.out[:len(w.out):len(w.out)])
	putFields(b, spec, codec, int32(last), first, largest, int32(len(recs)))
	return seal(b, spec, b.ComputeCRC()), nil
}

func (s *Spec) offsetDelta(recs []Record, i int) int32 {
	if s.KeepOffsets {
		return int32(recs[i].Offset - s.BaseOffset)
	}
	return int32(i)
}

// resize returns a slice of n bytes of any content, b's memory if it is large
// enough.
func resize(b []byte, n int) []byte {
	if cap(b) < n {
		return make([]byte, n, n+n/4)
	}
	return b[:n]
}

// checkRules checks what log-format §2.4 demands and returns the plain size.
func checkRules(recs []Record, spec *Spec) (size int, err error) {
	rule := func(what string, i int, got int64, rel string, wanted int64) error {
		return &Error{Kind: ErrInvalid, What: what, Record: i, Found: got, Rel: rel, Want: wanted}
	}
	switch {
	case len(recs) == 0:
		return 0, rule("records to build", -1, 0, atLeast, 1)
	case len(recs) > math.MaxInt32:
		return 0, rule("records to build", -1, int64(len(recs)), atMost, math.MaxInt32)
	case spec.BaseOffset < 0:
		return 0, rule("base offset", -1, spec.BaseOffset, atLeast, 0)
	case spec.Transactional && spec.ProducerID <= NoProducer:
		return 0, rule("producer id of a transactional batch", -1, spec.ProducerID, atLeast, 0)
	case spec.ProducerID < NoProducer:
		return 0, rule("producer id", -1, spec.ProducerID, atLeast, NoProducer)
	case spec.ProducerID > NoProducer && spec.ProducerEpoch < 0:
		return 0, rule("producer epoch", -1, int64(spec.ProducerEpoch), atLeast, 0)
	case spec.ProducerID > NoProducer && spec.BaseSequence < 0 && !spec.Control:
		return 0, rule("base sequence", -1, int64(spec.BaseSequence), atLeast, 0)
	case !spec.Codec.known():
		return 0, batchError(ErrCodec, "codec", attributesAt, int64(spec.Codec), atMost, int64(Zstd))
	}
	first := stamp(recs[0].Timestamp, spec.Now)
	if spec.DeleteHorizon != 0 {
		first = spec.DeleteHorizon
	}
	last := spec.BaseOffset - 1
	size = HeaderSize
	for i := range recs {
		r := &recs[i]
		ts := stamp(r.Timestamp, spec.Now)
		if ts < NoTimestamp {
			return 0, rule("timestamp", i, ts, atLeast, NoTimestamp)
		}
		if spec.KeepOffsets {
			if r.Offset <= last {
				return 0, rule("offset", i, r.Offset, atLeast, last+1)
			}
			if r.Offset-spec.BaseOffset > math.MaxInt32 {
				return 0, rule("offset", i, r.Offset, atMost, spec.BaseOffset+math.MaxInt32)
			}
			last = r.Offset
		}
		size += recordSize(r, zigzag64(ts-first), uint64(spec.offsetDelta(recs, i))<<1)
		if size > MaxSize {
			return 0, &Error{Kind: ErrTooLarge, What: "batch size", Record: i, Found: int64(size), Rel: atMost, Want: MaxSize}
		}
	}
	if spec.KeepOffsets && spec.LastOffset-spec.BaseOffset > math.MaxInt32 {
		return 0, rule("last offset", -1, spec.LastOffset, atMost, spec.BaseOffset+math.MaxInt32)
	}
	return size, nil
}
