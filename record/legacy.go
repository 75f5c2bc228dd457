package record

import (
	"encoding/binary"
	"hash/crc32"
	"iter"
)

// Messages of magic 0 and 1 (log-format §2.9) start like a batch:
//
//	0 offset i64 │ 8 size i32 │ 12 crc u32 │ 16 magic i8 │ 17 attributes i8
//
// Magic 1 has a timestamp, i64, at 18; then come key and value, each with an i32
// length of which -1 means null. The CRC is CRC-32 (IEEE) from byte 16 on. A
// compressed message has a set of messages for a value.
const (
	legacyCRCAt     = 12
	legacyAttrAt    = 17
	legacyPrefix    = 18 // up to and with the attributes
	legacyMinimumV0 = prefixSize + 14
	legacyMinimumV1 = prefixSize + 22
)

// LegacyMessage is a message of magic 0 or 1. Its slices alias what it was read
// from.
type LegacyMessage struct {
	Offset        int64
	Size          int // bytes, with the 12 of offset and size
	Magic         int8
	CRC           uint32
	CRCValid      bool
	Codec         Codec // of the message itself; an inner message has None
	TimestampType TimestampType
	Timestamp     int64 // ms since the epoch; NoTimestamp with magic 0
	Key, Value    []byte
}

// ParseLegacy reads the message at the start of p, a compressed one as it stands.
// A wrong checksum is no error, see CRCValid. Errors wrap ErrTooShort, ErrMagic or
// ErrInvalid.
func ParseLegacy(p []byte) (LegacyMessage, error) {
	m, bad := parseLegacy(p)
	if bad != nil {
		return LegacyMessage{}, bad
	}
	return m, nil
}

func parseLegacy(p []byte) (LegacyMessage, *Error) {
	if len(p) < legacyMinimumV0 {
		return LegacyMessage{}, batchError(ErrTooShort, "bytes present", 0, int64(len(p)), atLeast, legacyMinimumV0)
	}
	b := Batch(p)
	size := b.Size()
	magic := b.Magic()
	least := legacyMinimumV0
	if magic == 1 {
		least = legacyMinimumV1
	}
	switch {
	case magic != 0 && magic != 1:
		return LegacyMessage{}, batchError(ErrMagic, "magic", magicAt, int64(magic), "want 0 or", 1)
	case size < least:
		return LegacyMessage{}, batchError(ErrTooShort, "message size", lengthAt, int64(size), atLeast, int64(least))
	case size > len(p):
		return LegacyMessage{}, batchError(ErrTooShort, "bytes present", lengthAt, int64(len(p)), atLeast, int64(size))
	}
	b = b[:size:size]
	m := LegacyMessage{
		Offset:    b.BaseOffset(),
		Size:      size,
		Magic:     magic,
		CRC:       binary.BigEndian.Uint32(b[legacyCRCAt:]),
		Codec:     Codec(b[legacyAttrAt] & attrCodec),
		Timestamp: NoTimestamp,
	}
	m.CRCValid = crc32.ChecksumIEEE(b[magicAt:]) == m.CRC
	pos := legacyPrefix
	if magic == 1 {
		m.TimestampType = TimestampType(b[legacyAttrAt] >> 3 & 1)
		m.Timestamp = b.i64(pos)
		pos += 8
	}
	for _, f := range [...]struct {
		what string
		to   *[]byte
	}{{"key length", &m.Key}, {"value length", &m.Value}} {
		if len(b)-pos < 4 {
			return LegacyMessage{}, batchError(ErrInvalid, f.what+" at the end", pos, int64(len(b)-pos), atLeast, 4)
		}
		n := int(b.i32(pos))
		if pos += 4; n > len(b)-pos {
			return LegacyMessage{}, batchError(ErrInvalid, f.what, pos-4, int64(n), atMost, int64(len(b)-pos))
		}
		if n >= 0 {
			*f.to = b[pos : pos+n : pos+n]
			pos += n
		}
	}
	if pos != len(b) {
		return LegacyMessage{}, batchError(ErrInvalid, "bytes left behind the value", pos, int64(len(b)-pos), want, 0)
	}
	return m, nil
}

// LegacyMessages yields the messages of the one at the start of p: itself, or
// if it is compressed those inside it, decompressed to at most limit bytes (0 is
// DefaultMaxDecompressed), with their offsets made absolute and, where the
// leader stamped the outer one, its time. Slices are valid for as long as p,
// those of inner messages for ever. An error is the last thing it yields; the
// kinds are those of ParseLegacy, ErrCodec and ErrTooLarge.
func LegacyMessages(p []byte, limit int) iter.Seq2[LegacyMessage, error] {
	return func(yield func(LegacyMessage, error) bool) {
		outer, bad := parseLegacy(p)
		if bad != nil {
			yield(LegacyMessage{}, bad)
			return
		}
		if outer.Codec == None {
			yield(outer, nil)
			return
		}
		set, shift, bad := legacySet(&outer, limit)
		if bad != nil {
			yield(LegacyMessage{}, bad)
			return
		}
		for pos := 0; pos < len(set); {
			m, _ := parseLegacy(set[pos:]) // legacySet has seen it parse
			pos += m.Size
			m.Offset += shift
			if outer.TimestampType == LogAppendTime {
				m.TimestampType, m.Timestamp = LogAppendTime, outer.Timestamp
			}
			if !yield(m, nil) {
				return
			}
		}
	}
}

// legacySet decompresses the value of outer. shift is what makes the offsets of
// the messages in it absolute: the outer offset is that of the last one.
func legacySet(outer *LegacyMessage, limit int) (set []byte, shift int64, bad *Error) {
	if limit <= 0 {
		limit = DefaultMaxDecompressed
	}
	// What a stream is cannot be told from where the value lies, so positions in
	// errors are those inside the value.
	switch {
	case outer.Codec >= Zstd: // came with magic 2
		return nil, 0, batchError(ErrCodec, "codec of an old message", legacyAttrAt, int64(outer.Codec), atMost, int64(LZ4))
	case outer.Value == nil:
		return nil, 0, batchError(ErrInvalid, "null value of a compressed message", legacyPrefix, 0, "", 0)
	}
	if set, bad = decompress(nil, outer.Codec, outer.Value, limit, outer.Magic); bad != nil {
		return nil, 0, bad
	}
	count, last := 0, int64(0)
	for pos := 0; pos < len(set); count++ {
		m, bad := parseLegacy(set[pos:])
		switch {
		case bad != nil:
		case m.Codec != None:
			bad = batchError(ErrInvalid, "compressed message inside a compressed one", legacyAttrAt, int64(m.Codec), want, int64(None))
		case m.Magic != outer.Magic:
			bad = batchError(ErrMagic, "magic of an inner message", magicAt, int64(m.Magic), want, int64(outer.Magic))
		}
		if bad != nil {
			bad.Pos, bad.Plain, bad.Record = bad.Pos+pos, true, count
			return nil, 0, bad
		}
		last = m.Offset
		pos += m.Size
	}
	if count == 0 {
		return nil, 0, batchError(ErrInvalid, "no message inside a compressed one", legacyPrefix, 0, "", 0)
	}
	if outer.Magic == 1 {
		shift = outer.Offset - last
	}
	return set, shift, nil
}
