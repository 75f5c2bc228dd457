package main

import (
	"encoding/binary"
	"fmt"

	"github.com/tidemark-log/tidemark/index"
	"github.com/tidemark-log/tidemark/internal/vfs"
)

// An entry of an offset index or time index. Both have two columns that
// ascend together:
//
//	offset index: offset and position
//	time index:   timestamp and offset
type entry struct{ a, b int64 }

// entryReader reads the entries of an index file in order, by pread through a
// small buffer: a hostile file may be of any size.
type entryReader struct {
	f     file
	path  string
	size  int64 // bytes of the file, as it was at open
	base  int64 // offsets in the file count from it
	times bool

	buf     []byte
	bufFrom int64 // number of the entry that buf starts with

	zeroFrom, zeroTo int64 // the run of zero entries looked at last
	err              error
}

func openEntries(path string, base int64, times bool) (*entryReader, error) {
	f, size, err := openFile(path)
	if err != nil {
		return nil, err
	}
	return &entryReader{f: f, path: path, size: size, base: base, times: times}, nil
}

func (r *entryReader) close() { r.f.Close() }

func (r *entryReader) width() int64 {
	if r.times {
		return index.TimeEntrySize
	}
	return index.OffsetEntrySize
}

// len is the number of whole entries.
func (r *entryReader) len() int64 { return r.size / r.width() }

// raw returns the bytes of entry i, none behind the last one.
func (r *entryReader) raw(i int64) []byte {
	w := r.width()
	if i < 0 || i >= r.len() {
		return nil
	}
	if at := (i - r.bufFrom) * w; at >= 0 && at+w <= int64(len(r.buf)) {
		return r.buf[at : at+w]
	}
	const piece = 5461 // entries; 64 KiB of the wider ones
	want := min(piece, r.len()-i) * w
	if int64(cap(r.buf)) < want {
		r.buf = make([]byte, piece*w)
	}
	n, err := readAt(r.f, r.buf[:want], i*w)
	r.buf, r.bufFrom = r.buf[:int64(n)/w*w], i
	if err != nil {
		r.err, r.size = err, 0
	} else if int64(n) < want {
		r.size = min(r.size, i*w+int64(n)) // cut by somebody since
	}
	if int64(len(r.buf)) < w {
		return nil
	}
	return r.buf[:w]
}

// at returns entry i.
func (r *entryReader) at(i int64) (e entry, ok bool) {
	p := r.raw(i)
	switch {
	case p == nil:
		return entry{}, false
	case r.times:
		return entry{int64(binary.BigEndian.Uint64(p)), r.base + int64(int32(binary.BigEndian.Uint32(p[8:])))}, true
	}
	return entry{r.base + int64(int32(binary.BigEndian.Uint32(p))), int64(int32(binary.BigEndian.Uint32(p[4:])))}, true
}

// zeroRun returns the end of the run of all-zero entries that starts at i: i
// itself if that entry is not zero.
func (r *entryReader) zeroRun(i int64) int64 {
	for {
		p := r.raw(i)
		if p == nil || !vfs.AllZero(p) {
			return i
		}
		i++
	}
}

// tailAt reports whether the zero entries from i on are preallocation: they
// reach the end of the file. One zero entry alone is not: it can be a real
// one, for the base offset at position 0 or at the time 0.
func (r *entryReader) tailAt(i int64) bool {
	if i == 0 && r.len() == 1 {
		return false
	}
	if i < r.zeroFrom || i >= r.zeroTo {
		r.zeroFrom, r.zeroTo = i, r.zeroRun(i)
	}
	return i < r.zeroTo && r.zeroTo >= r.len()
}

// name names the entry as a finding does.
func (r *entryReader) name(e entry) string {
	if r.times {
		return fmt.Sprintf("timestamp %d at offset %d", e.a, e.b)
	}
	return fmt.Sprintf("offset %d at position %d", e.a, e.b)
}
