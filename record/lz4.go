package record

import (
	"encoding/binary"
	"math/bits"
	"slices"
	"sync"

	"github.com/pierrec/lz4/v4"
)

// The subset of LZ4 frames that Kafka's reader takes (log-format §2.7): magic, FLG,
// BD, an optional content size, header checksum; then blocks of u32 length and
// bytes, ended by a length of 0. All numbers little-endian.
const (
	lz4Magic        = 0x184D2204
	lz4Version      = 1 << 6
	lz4VersionMask  = 3 << 6
	lz4Independent  = 1 << 5
	lz4BlockSums    = 1 << 4
	lz4ContentSize  = 1 << 3
	lz4ContentSum   = 1 << 2
	lz4Reserved     = 1 << 1
	lz4DictionaryID = 1 << 0
	lz4StoredRaw    = 1 << 31
	lz4Block        = 64 << 10
	lz4MaxRatio     = 255 // no block grows more than that
	lz4Default      = 9
)

// lz4Header is a frame header as it is written.
var lz4Header = [...]byte{0x04, 0x22, 0x4d, 0x18, lz4Version | lz4Independent, 4 << 4, 0x82}

type lz4Encoder struct {
	fast lz4.Compressor
	deep lz4.CompressorHC
}

var lz4Encoders = sync.Pool{New: func() any { return new(lz4Encoder) }}

func lz4Encode(dst, src []byte, level int) ([]byte, error) {
	e := lz4Encoders.Get().(*lz4Encoder)
	defer lz4Encoders.Put(e)
	compress := e.fast.CompressBlock
	if level != 0 && level != lz4Default {
		e.deep.Level = lz4.Level1 << (min(level, lz4Default) - 1)
		compress = e.deep.CompressBlock
	}
	dst = append(dst, lz4Header[:]...)
	for chunk := range slices.Chunk(src, lz4Block) {
		at := len(dst) + 4
		dst = slices.Grow(dst, 4+len(chunk))[:at]
		n, err := compress(chunk, dst[at:at+len(chunk)])
		if err != nil || n == 0 || n >= len(chunk) {
			dst = append(dst, chunk...)
			binary.LittleEndian.PutUint32(dst[at-4:], uint32(len(chunk))|lz4StoredRaw)
			continue
		}
		dst = dst[:at+n]
		binary.LittleEndian.PutUint32(dst[at-4:], uint32(n))
	}
	return append(dst, 0, 0, 0, 0), nil
}

// lz4Decode appends the content of the first frame of src; what follows it is
// ignored. legacy also takes the header checksum that writers of magic 0 made, of
// the magic bytes too. A content checksum must be there but is not verified, as
// in Kafka: the checksum of the batch covers it.
func lz4Decode(dst, src []byte, limit int, legacy bool) ([]byte, *Error) {
	if len(src) < len(lz4Header) || binary.LittleEndian.Uint32(src) != lz4Magic {
		return nil, badStream("lz4 frame magic", 0, nil)
	}
	flg, bd := src[4], src[5]
	head := 6
	if flg&lz4ContentSize != 0 {
		head += 8
	}
	switch {
	case flg&lz4VersionMask != lz4Version:
		return nil, batchError(ErrCodec, "lz4 frame version", 4, int64(flg>>6), want, 1)
	case flg&lz4DictionaryID != 0:
		return nil, badStream("lz4 frame with a dictionary", 4, nil)
	case flg&lz4Reserved != 0:
		return nil, badStream("lz4 frame with a reserved bit", 4, nil)
	case flg&lz4Independent == 0:
		return nil, badStream("lz4 frame of linked blocks, which Kafka clients cannot read", 4, nil)
	case bd&0x8f != 0 || bd>>4 < 4:
		return nil, badStream("lz4 block size", 5, nil)
	case len(src) <= head:
		return nil, badStream("lz4 frame header cut off", 0, nil)
	}
	sum := src[head]
	if good := byte(xxh32(src[4:head]) >> 8); sum != good && !(legacy && sum == byte(xxh32(src[:head])>>8)) {
		return nil, batchError(ErrCodec, "lz4 header checksum", head, int64(sum), want, int64(good))
	}
	maxBlock := 1 << (8 + 2*(bd>>4))
	start := len(dst)
	for pos := head + 1; ; {
		if len(src)-pos < 4 {
			return nil, badStream("lz4 block length or end mark cut off", pos, nil)
		}
		word := binary.LittleEndian.Uint32(src[pos:])
		n := int(word &^ lz4StoredRaw)
		at := pos
		pos += 4
		if n == 0 {
			if flg&lz4ContentSum != 0 && len(src)-pos < 4 {
				return nil, badStream("lz4 content checksum cut off", pos, nil)
			}
			return dst, nil
		}
		if n > maxBlock || n > len(src)-pos {
			return nil, batchError(ErrCodec, "lz4 block length", at, int64(n), atMost, int64(min(maxBlock, len(src)-pos)))
		}
		block := src[pos : pos+n]
		pos += n
		if flg&lz4BlockSums != 0 {
			if len(src)-pos < 4 {
				return nil, badStream("lz4 block checksum cut off", pos, nil)
			}
			if got, good := binary.LittleEndian.Uint32(src[pos:]), xxh32(block); got != good {
				return nil, batchError(ErrCodec, "lz4 block checksum", pos, int64(got), want, int64(good))
			}
			pos += 4
		}
		if word&lz4StoredRaw != 0 {
			dst = append(dst, block...)
		} else {
			room := min(maxBlock, lz4MaxRatio*n)
			dst = slices.Grow(dst, room)
			made, err := lz4.UncompressBlock(block, dst[len(dst):len(dst)+room])
			if err != nil {
				return nil, badStream("lz4 block", at, err)
			}
			dst = dst[:len(dst)+made]
		}
		if len(dst)-start > limit {
			return nil, tooLarge(LZ4, limit)
		}
	}
}

// xxh32 is the 32-bit xxHash of b with seed 0, which LZ4 frames use.
func xxh32(b []byte) uint32 {
	const (
		p1 uint32 = 2654435761
		p2 uint32 = 2246822519
		p3 uint32 = 3266489917
		p4 uint32 = 668265263
		p5 uint32 = 374761393
	)
	h := p5
	n := uint32(len(b))
	if len(b) >= 16 {
		v := [4]uint32{p2, p2, 0, 0}
		v[0] += p1
		v[3] -= p1
		for ; len(b) >= 16; b = b[16:] {
			for i := range v {
				v[i] = bits.RotateLeft32(v[i]+binary.LittleEndian.Uint32(b[4*i:])*p2, 13) * p1
			}
		}
		h = bits.RotateLeft32(v[0], 1) + bits.RotateLeft32(v[1], 7) + bits.RotateLeft32(v[2], 12) + bits.RotateLeft32(v[3], 18)
	}
	h += n
	for ; len(b) >= 4; b = b[4:] {
		h = bits.RotateLeft32(h+binary.LittleEndian.Uint32(b)*p3, 17) * p4
	}
	for _, c := range b {
		h = bits.RotateLeft32(h+uint32(c)*p5, 11) * p1
	}
	h = (h ^ h>>15) * p2
	h = (h ^ h>>13) * p3
	return h ^ h>>16
}
