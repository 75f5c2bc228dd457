package record

import "math/bits"

// Varints are zig-zag numbers in base-128 groups, least significant first, the
// high bit saying that another group follows: at most 5 bytes for 32 bits, 10
// for 64. Longer ones than necessary are read. Numbers beyond the width are not,
// where Kafka's reader drops the bits.

const (
	maxVarint  = 5
	maxVarlong = 10
)

func zigzag64(v int64) uint64 { return uint64(v<<1) ^ uint64(v>>63) }

func unzigzag32(u uint32) int32 { return int32(u>>1) ^ -int32(u&1) }
func unzigzag64(u uint64) int64 { return int64(u>>1) ^ -int64(u&1) }

// varintSize is the encoded size of the zig-zag number u: its bits over seven,
// rounded up. A multiplication does that for the rare long ones, exact up to 64
// bits.
func varintSize(u uint64) int {
	if u < 1<<7 {
		return 1
	}
	if u < 1<<14 {
		return 2
	}
	return (bits.Len64(u)*9 + 64) / 64
}

// lengthSize is the size of n ≥ 0 as a varint.
func lengthSize(n int) int { return varintSize(uint64(n) << 1) }

// putUvarint writes the zig-zag number u at dst[p:] and returns the place
// behind it.
func putUvarint(dst []byte, p int, u uint64) int {
	for u >= 0x80 {
		dst[p] = byte(u) | 0x80
		u >>= 7
		p++
	}
	dst[p] = byte(u)
	return p + 1
}

// varint reads a varint at p[i:]. next is 0 if it ends behind p or does not fit
// 32 bits.
func varint(p []byte, i int) (v int32, next int) {
	if i < len(p) && p[i] < 0x80 {
		return int32(p[i]>>1) ^ -int32(p[i]&1), i + 1
	}
	return longVarint(p, i)
}

// longVarint is varint but for the case that is cheap enough to be inlined.
func longVarint(p []byte, i int) (v int32, next int) {
	if i+1 < len(p) && p[i+1] < 0x80 {
		return unzigzag32(uint32(p[i]&0x7f) | uint32(p[i+1])<<7), i + 2
	}
	var u uint32
	for n := range maxVarint {
		if i+n >= len(p) {
			break
		}
		c := p[i+n]
		if n == maxVarint-1 && c > 0x0f {
			break
		}
		u |= uint32(c&0x7f) << (7 * n)
		if c < 0x80 {
			return unzigzag32(u), i + n + 1
		}
	}
	return 0, 0
}

// varlong reads a varlong at p[i:]. next is 0 if it ends behind p or does not fit
// 64 bits.
func varlong(p []byte, i int) (v int64, next int) {
	var u uint64
	for n := range maxVarlong {
		if i+n >= len(p) {
			break
		}
		c := p[i+n]
		if n == maxVarlong-1 && c > 0x01 {
			break
		}
		u |= uint64(c&0x7f) << (7 * n)
		if c < 0x80 {
			return unzigzag64(u), i + n + 1
		}
	}
	return 0, 0
}
