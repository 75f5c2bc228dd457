package vfs

import "unsafe"

// What follows stands for the kernel and the disk, which read a page while a
// program stores into it: no data race, at worst a torn sector. So the race
// detector must not look, and these functions assign arrays and compare strings,
// since copy, bytes.Equal and == of arrays report even from a norace function.
// At every other access to a file's bytes it does look.

const (
	sectorSize = 512  // what a disk writes whole, if it does not tear
	blockSize  = 4096 // of the file system: page, allocation unit
)

type sector [sectorSize]byte

var zeroSector sector

// roundUp returns the least multiple of unit, a power of two, that is >= n.
func roundUp(n, unit int64) int64 { return (n + unit - 1) &^ (unit - 1) }

//go:norace
func loadSector(dst *sector, src []byte) { *dst = *(*sector)(src) }

//go:norace
func equalSector(a []byte, b *sector) bool {
	return unsafe.String(unsafe.SliceData(a[:sectorSize]), sectorSize) == unsafe.String(&b[0], sectorSize)
}

// copySectors copies len(dst) bytes, whole sectors.
//
//go:norace
func copySectors(dst, src []byte) {
	for len(dst) > 0 {
		*(*sector)(dst) = *(*sector)(src)
		dst, src = dst[sectorSize:], src[sectorSize:]
	}
}

// dropStores zeroes [lo, hi) of b, whose length is whole sectors, and touches
// only what is not zero yet: of a large buffer that was never written the
// operating system has made no pages.
//
//go:norace
func dropStores(b []byte, lo, hi int64) {
	for at := lo &^ (sectorSize - 1); at < hi; at += sectorSize {
		s := b[at : at+sectorSize]
		if equalSector(s, &zeroSector) {
			continue
		}
		for i := max(lo-at, 0); i < min(hi-at, sectorSize); i++ {
			s[i] = 0
		}
	}
}

// readSectors copies [off, off+len(p)) of b, whose length is whole sectors.
func readSectors(p, b []byte, off int64) {
	var s sector
	for len(p) > 0 {
		at := off &^ (sectorSize - 1)
		loadSector(&s, b[at:])
		n := copy(p, s[off-at:])
		p, off = p[n:], off+int64(n)
	}
}
