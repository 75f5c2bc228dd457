// Package record reads and writes Kafka record batches, magic 2, as bytes.
//
// A batch is a fixed header and its records, all integers big-endian
// (log-format §2.1):
//
//	 0 baseOffset i64   │ 8 batchLength i32     bytes after this field
//	12 leaderEpoch i32  │16 magic i8 = 2        │17 crc u32
//	21 attributes i16   │23 lastOffsetDelta i32 │27 baseTimestamp i64
//	35 maxTimestamp i64 │43 producerId i64      │51 producerEpoch i16
//	53 baseSequence i32 │57 recordsCount i32    │61 records, plain or one stream
//
// The CRC-32C covers byte 21 to the end. Base offset and leader epoch lie
// outside it, so a leader stamps them into a batch it stores without touching
// the rest.
//
// [Encode] writes a plain batch in place, [Builder] any batch into its own
// memory. [Check] verifies the header and checksum of bytes that came from
// elsewhere, [Validate] every record too, [ValidateClient] what a producer may
// send. [Reader] walks the records, decompressing within a bound. Messages of
// the older magics 0 and 1 can be read, see [LegacyMessages], never written.
//
// Nothing here starts a goroutine or reads a clock, and no input makes it
// panic: every error wraps one of the Err values and is an [*Error] or a
// [*ClientError].
package record

import (
	"encoding/binary"
	"hash/crc32"
	"math"
)

// HeaderSize is the size of a batch header in bytes.
const HeaderSize = 61

// MaxSize bounds a batch in bytes: positions in a log file are 32-bit.
const MaxSize = math.MaxInt32

// What the header holds where a value is absent.
const (
	NoTimestamp     = -1
	NoProducer      = -1 // ProducerID; any other id ≥ 0 is one, 0 included
	NoProducerEpoch = -1
	NoSequence      = -1
	NoLeaderEpoch   = -1
)

// Magic is the value of the magic byte of every batch this package writes.
const Magic = 2

// Places in the header, and what cannot be told without reading so far.
const (
	lengthAt         = 8
	prefixSize       = 12 // base offset and length: the part length does not count
	leaderEpochAt    = 12
	magicAt          = 16
	crcAt            = 17
	attributesAt     = 21 // where the CRC begins
	lastDeltaAt      = 23
	baseTimestampAt  = 27
	maxTimestampAt   = 35
	producerIDAt     = 43
	producerEpochAt  = 51
	baseSequenceAt   = 53
	countAt          = 57
	minLength        = 14 // smallest length field of any magic (log-format §2.3)
	attrCodec        = 0x07
	attrAppendTime   = 1 << 3
	attrTransaction  = 1 << 4
	attrControl      = 1 << 5
	attrHorizon      = 1 << 6
	attrInterpreted  = 0x7f // bits 7-15 mean nothing; a rewrite clears them
	sequenceWrapMask = math.MaxInt32
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// TimestampType says whose clock the timestamps of a batch come from.
type TimestampType int8

const (
	CreateTime    TimestampType = 0 // the producer's, one per record
	LogAppendTime TimestampType = 1 // the leader's, one for the batch
)

// String returns Kafka's name.
func (t TimestampType) String() string {
	if t == LogAppendTime {
		return "LogAppendTime"
	}
	return "CreateTime"
}

// Batch is the bytes of one whole batch, header included. It owns nothing: it
// is valid as long as the memory it views. The methods do not allocate and
// need HeaderSize bytes; a Batch from [Check] or a builder has them.
type Batch []byte

func (b Batch) i64(at int) int64 { return int64(binary.BigEndian.Uint64(b[at:])) }
func (b Batch) i32(at int) int32 { return int32(binary.BigEndian.Uint32(b[at:])) }
func (b Batch) i16(at int) int16 { return int16(binary.BigEndian.Uint16(b[at:])) }

// BaseOffset is the offset of the first record when the batch was made.
// Compaction keeps it even if that record is gone.
func (b Batch) BaseOffset() int64 { return b.i64(0) }

// LastOffset is the offset of the last record when the batch was made.
func (b Batch) LastOffset() int64 { return b.BaseOffset() + int64(b.LastOffsetDelta()) }

// NextOffset is the offset after the batch: LastOffset + 1.
func (b Batch) NextOffset() int64 { return b.LastOffset() + 1 }

// Size is the size of the batch in bytes by its length field.
func (b Batch) Size() int { return prefixSize + int(b.i32(lengthAt)) }

// LeaderEpoch is the epoch of the leader that appended the batch, or NoLeaderEpoch.
func (b Batch) LeaderEpoch() int32 { return b.i32(leaderEpochAt) }

// Magic is the format version, 2 in every batch that passes Check.
func (b Batch) Magic() int8 { return int8(b[magicAt]) }

// CRC is the stored checksum.
func (b Batch) CRC() uint32 { return binary.BigEndian.Uint32(b[crcAt:]) }

// ComputeCRC returns the checksum that byte 21 to the end of b should have.
func (b Batch) ComputeCRC() uint32 { return checksum(b[attributesAt:]) }

// checksum is the CRC-32C of bytes that are not in the cache yet. The standard
// library hashes long input as three streams side by side, up to 4 KiB apart,
// which keeps memory from being fetched ahead: in pieces below that it is half as
// fast again out of memory, and no slower than memory in the cache.
func checksum(p []byte) (crc uint32) {
	const piece = 2016
	for len(p) > 2*piece {
		crc = crc32.Update(crc, castagnoli, p[:piece])
		p = p[piece:]
	}
	return crc32.Update(crc, castagnoli, p)
}

// Attributes is the raw attribute field; bits 7 to 15 mean nothing.
func (b Batch) Attributes() int16 { return b.i16(attributesAt) }

// Codec is how the records are compressed. It may be one that does not exist.
func (b Batch) Codec() Codec { return Codec(b[attributesAt+1] & attrCodec) }

// TimestampType tells whether MaxTimestamp is the leader's append time.
func (b Batch) TimestampType() TimestampType {
	return TimestampType(b[attributesAt+1] >> 3 & 1)
}

// IsTransactional reports whether the batch is part of a transaction.
func (b Batch) IsTransactional() bool { return b[attributesAt+1]&attrTransaction != 0 }

// IsControl reports whether the records are control records, such as
// transaction markers, which no consumer sees; see [ParseControl].
func (b Batch) IsControl() bool { return b[attributesAt+1]&attrControl != 0 }

// HasDeleteHorizon reports whether BaseTimestamp is a delete horizon.
func (b Batch) HasDeleteHorizon() bool { return b[attributesAt+1]&attrHorizon != 0 }

// DeleteHorizon is the time, ms since the epoch, after which compaction may
// drop the tombstones of the batch.
func (b Batch) DeleteHorizon() (ms int64, ok bool) {
	if !b.HasDeleteHorizon() {
		return NoTimestamp, false
	}
	return b.BaseTimestamp(), true
}

// LastOffsetDelta is LastOffset - BaseOffset.
func (b Batch) LastOffsetDelta() int32 { return b.i32(lastDeltaAt) }

// BaseTimestamp is what the timestamp deltas of the records add to, in ms since
// the epoch: the first record's timestamp, or the delete horizon.
func (b Batch) BaseTimestamp() int64 { return b.i64(baseTimestampAt) }

// MaxTimestamp is the largest timestamp of the records, or the time of the
// append with LogAppendTime; ms since the epoch or NoTimestamp.
func (b Batch) MaxTimestamp() int64 { return b.i64(maxTimestampAt) }

// ProducerID is the id of the idempotent producer, or NoProducer.
func (b Batch) ProducerID() int64 { return b.i64(producerIDAt) }

// HasProducer reports whether the batch names a producer. Without one, epoch
// and sequence mean nothing: clients send -1 and 0 alike.
func (b Batch) HasProducer() bool { return b.ProducerID() > NoProducer }

// ProducerEpoch is the life of the producer that sent the batch.
func (b Batch) ProducerEpoch() int16 { return b.i16(producerEpochAt) }

// BaseSequence is the sequence of the first record, or NoSequence.
func (b Batch) BaseSequence() int32 { return b.i32(baseSequenceAt) }

// LastSequence is the sequence of the last record, or NoSequence.
func (b Batch) LastSequence() int32 {
	if b.BaseSequence() == NoSequence {
		return NoSequence
	}
	return IncSequence(b.BaseSequence(), b.LastOffsetDelta())
}

// Count is the number of records present.
func (b Batch) Count() int32 { return b.i32(countAt) }

// SetBaseOffset moves the batch to another offset. The CRC does not cover it.
func (b Batch) SetBaseOffset(offset int64) { binary.BigEndian.PutUint64(b, uint64(offset)) }

// SetLeaderEpoch stamps the epoch of the appending leader. The CRC does not
// cover it.
func (b Batch) SetLeaderEpoch(epoch int32) {
	binary.BigEndian.PutUint32(b[leaderEpochAt:], uint32(epoch))
}

// SetMaxTimestamp sets timestamp type and largest timestamp (ms) as a leader
// does, and restamps the CRC. A batch that has both already is not written to.
func (b Batch) SetMaxTimestamp(t TimestampType, ms int64) {
	if b.TimestampType() == t && b.MaxTimestamp() == ms {
		return
	}
	attrs := b[attributesAt+1] & attrInterpreted &^ attrAppendTime
	if t == LogAppendTime {
		attrs |= attrAppendTime
	}
	b[attributesAt], b[attributesAt+1] = 0, attrs
	binary.BigEndian.PutUint64(b[maxTimestampAt:], uint64(ms))
	binary.BigEndian.PutUint32(b[crcAt:], b.ComputeCRC())
}

// SetProducer makes the batch that of another producer, epoch or sequence, and
// restamps the CRC.
func (b Batch) SetProducer(id int64, epoch int16, sequence int32) {
	binary.BigEndian.PutUint64(b[producerIDAt:], uint64(id))
	binary.BigEndian.PutUint16(b[producerEpochAt:], uint16(epoch))
	binary.BigEndian.PutUint32(b[baseSequenceAt:], uint32(sequence))
	binary.BigEndian.PutUint32(b[crcAt:], b.ComputeCRC())
}

// PeekSize returns the total size of the batch or older message at the start
// of p by its length field, which may exceed len(p) and is no more than
// MaxInt32 + 12. It is not ok when p has fewer than 12 bytes or the field is
// below 14, the smallest of any magic (log-format §2.3), as in a run of zeros.
func PeekSize(p []byte) (size int, ok bool) {
	if len(p) < prefixSize {
		return 0, false
	}
	length := int32(binary.BigEndian.Uint32(p[lengthAt:]))
	return prefixSize + int(length), length >= minLength
}

// Check verifies the batch at the start of p, which may go on behind it: whole,
// magic 2, right checksum, no negative counts (log-format §2.3). It returns the
// batch, a view of p cut to its size. It does not look at the records; see
// [Validate].
//
// Errors wrap ErrTooShort, ErrMagic, ErrChecksum or ErrInvalid, the first that
// applies; but a magic 0 or 1 message set, even a cut one, is ErrMagic.
func Check(p []byte) (Batch, error) {
	size, err := checkSize(p, len(p))
	if err != nil {
		return nil, err
	}
	b := Batch(p[:size:size])
	if crc := b.ComputeCRC(); crc != b.CRC() {
		return nil, batchError(ErrChecksum, "crc-32c", crcAt, int64(b.CRC()), want, int64(crc))
	}
	if err := b.checkCounts(); err != nil {
		return nil, err
	}
	return b, nil
}

// CheckHeader is Check without the checksum, of a batch whose header alone is in
// p and of which so many bytes are present. It returns the size.
func CheckHeader(p []byte, present int) (size int, err error) {
	if size, err = checkSize(p, present); err == nil {
		err = Batch(p).checkCounts()
	}
	return size, err
}

func checkSize(p []byte, present int) (size int, err error) {
	size, ok := PeekSize(p)
	switch {
	case len(p) < prefixSize:
		return 0, batchError(ErrTooShort, "bytes present", 0, int64(len(p)), atLeast, prefixSize)
	case ok && len(p) > magicAt && p[magicAt] < Magic:
		return 0, legacyMagicError(p[magicAt])
	case size < HeaderSize:
		return 0, batchError(ErrTooShort, "batch size", lengthAt, int64(size), atLeast, HeaderSize)
	case size > present || len(p) < HeaderSize:
		return 0, batchError(ErrTooShort, "bytes present", lengthAt, int64(present), atLeast, int64(size))
	}
	if m := Batch(p).Magic(); m != Magic {
		return 0, batchError(ErrMagic, "magic", magicAt, int64(m), want, Magic)
	}
	return size, nil
}

func (b Batch) checkCounts() error {
	if b.Count() < 0 {
		return batchError(ErrInvalid, "records count", countAt, int64(b.Count()), atLeast, 0)
	}
	if b.LastOffsetDelta() < 0 {
		return batchError(ErrInvalid, "last offset delta", lastDeltaAt, int64(b.LastOffsetDelta()), atLeast, 0)
	}
	return nil
}

// IncSequence returns the sequence n after s, for n ≥ 0: 0 follows 2^31-1.
func IncSequence(s, n int32) int32 { return (s + n) & sequenceWrapMask }

// DecSequence returns the sequence n before s, for n ≥ 0: 2^31-1 precedes 0.
func DecSequence(s, n int32) int32 { return (s - n) & sequenceWrapMask }
