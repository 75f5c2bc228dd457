package record

import (
	"bytes"
	"encoding/binary"
	"slices"

	"github.com/klauspost/compress/s2"
)

// The framing that snappy-java gives a stream (log-format §2.7): 8 bytes of magic,
// two versions, then chunks of i32 length and a raw snappy block.
const (
	xerialMagic  = "\x82SNAPPY\x00"
	xerialHeader = xerialMagic + "\x00\x00\x00\x01\x00\x00\x00\x01"
	xerialBlock  = 32 << 10 // plain bytes in a chunk
)

func xerialEncode(dst, src []byte) []byte {
	dst = append(dst, xerialHeader...)
	for chunk := range slices.Chunk(src, xerialBlock) {
		at := len(dst) + 4
		dst = slices.Grow(dst, 4+s2.MaxEncodedLen(len(chunk)))[:at]
		block := s2.EncodeSnappy(dst[at:cap(dst)], chunk)
		binary.BigEndian.PutUint32(dst[at-4:], uint32(len(block)))
		dst = dst[:at+len(block)]
	}
	return dst
}

// snappyDecode takes framed streams, several in a row, or one bare block.
func snappyDecode(dst, src []byte, limit int) ([]byte, *Error) {
	if !bytes.HasPrefix(src, []byte(xerialMagic)) {
		out, bad := snappyBlock(dst, src, 0, limit)
		return out, bad
	}
	start := len(dst)
	for pos := 0; pos < len(src); {
		if bytes.HasPrefix(src[pos:], []byte(xerialMagic)) {
			// The versions are not enforced: writers put all sorts there.
			if pos += len(xerialHeader); pos > len(src) {
				return nil, badStream("snappy stream header cut off", pos-len(xerialHeader), nil)
			}
			continue
		}
		if len(src)-pos < 4 {
			return nil, badStream("snappy chunk length cut off", pos, nil)
		}
		n := int64(int32(binary.BigEndian.Uint32(src[pos:])))
		if n < 0 {
			return nil, batchError(ErrCodec, "snappy chunk length", pos, n, atLeast, 0)
		}
		if pos += 4; n > int64(len(src)-pos) {
			return nil, batchError(ErrCodec, "snappy chunk length", pos-4, n, atMost, int64(len(src)-pos))
		}
		var bad *Error
		if dst, bad = snappyBlock(dst, src[pos:pos+int(n)], pos, limit-(len(dst)-start)); bad != nil {
			if bad.Kind == ErrTooLarge {
				bad = tooLarge(Snappy, limit)
			}
			return nil, bad
		}
		pos += int(n)
	}
	return dst, nil
}

// snappyBlock appends what the raw block src, found at pos of the stream, holds.
func snappyBlock(dst, src []byte, pos, limit int) ([]byte, *Error) {
	size, bad := snappySize(src, pos)
	if bad != nil {
		return nil, bad
	}
	if size > limit {
		return nil, tooLarge(Snappy, limit)
	}
	dst = slices.Grow(dst, size)
	out, err := s2.Decode(dst[len(dst):len(dst)+size:len(dst)+size], src)
	if err != nil {
		return nil, badStream("snappy block", pos, err)
	}
	return dst[:len(dst)+len(out)], nil
}

// snappySize walks the elements of a raw block and returns how many bytes they
// make, which is what the block must say. So a block that claims more costs no
// memory, and one that uses the extensions s2 has over snappy, which no Kafka
// client reads, is found.
func snappySize(src []byte, pos int) (int, *Error) {
	claimed, i := binary.Uvarint(src)
	if i <= 0 || i > maxVarint || claimed > MaxSize {
		return 0, badStream("snappy block length cut off or over-long", pos, nil)
	}
	made := 0
	for i < len(src) {
		at, tag := i, src[i]
		n := int(tag>>2) + 1
		offset := -1
		i++
		switch tag & 3 {
		case 0: // literal; the length may follow in 1 to 4 bytes
			if extra := n - 60; extra > 0 {
				if extra > len(src)-i {
					return 0, badStream("snappy literal cut off", pos+at, nil)
				}
				var length [4]byte
				copy(length[:], src[i:i+extra])
				n = int(binary.LittleEndian.Uint32(length[:])) + 1
				i += extra
			}
			if n > len(src)-i {
				return 0, badStream("snappy literal cut off", pos+at, nil)
			}
			i += n
		case 1:
			if n = 4 + int(tag>>2&7); i < len(src) {
				offset = int(tag>>5)<<8 | int(src[i])
			}
			i++
		case 2:
			if i+2 <= len(src) {
				offset = int(binary.LittleEndian.Uint16(src[i:]))
			}
			i += 2
		case 3:
			if i+4 <= len(src) {
				offset = int(binary.LittleEndian.Uint32(src[i:]))
			}
			i += 4
		}
		if tag&3 != 0 {
			if i > len(src) {
				return 0, badStream("snappy copy cut off", pos+at, nil)
			}
			if offset <= 0 || offset > made {
				return 0, batchError(ErrCodec, "snappy copy offset", pos+at, int64(offset), "want from 1 to", int64(made))
			}
		}
		if made += n; made > int(claimed) {
			break
		}
	}
	if made != int(claimed) {
		return 0, batchError(ErrCodec, "snappy block length", pos, int64(claimed), want, int64(made))
	}
	return made, nil
}
