package main

import (
	"bytes"
	"errors"
	"hash/crc32"
	"math"
	"slices"
	"time"

	"github.com/tidemark-log/tidemark/internal/vfs"
	"github.com/tidemark-log/tidemark/record"
)

// A spanKind says what a stretch of a log file is.
type spanKind int

const (
	spanBatch  spanKind = iota // a magic 2 batch that passed record.Check
	spanLegacy                 // a message of magic 0 or 1 whose checksum holds
	spanBad                    // a batch that fails a check, or bytes that are none
	spanTorn                   // what a writer stopped in the middle of leaves at the end
	spanZeros                  // zeros up to the end: preallocation
)

// A span is a stretch of a log file.
type span struct {
	kind spanKind
	pos  int64
	size int64 // bytes
	// data holds the span's bytes until the following next. It is nil where the
	// span has no length of its own or is above the scanner's limit.
	data []byte
	err  error // of a bad or torn span: the first check that failed
}

// scanner walks a log file from front to back through one bounded buffer. It
// neither trusts a length field before it has compared it with the file nor
// reads a batch above maxBatch, so its memory depends on neither.
//
// Where the bytes are no batch it looks for the next place at which a whole
// valid one starts whose offsets follow on; what lies between is one span.
type scanner struct {
	f        file
	size     int64 // of the file; falls if that turns out to be shorter
	maxBatch int64
	expect   int64 // no later batch starts below this offset
	progress *progress

	// live returns the file's size now. It is set where a writer may be at work
	// (a folder not closed cleanly, the last segment): a span that looks bad is
	// then read again, because it may be half written.
	live func() int64

	pos    int64
	buf    []byte // the file's bytes from bufPos
	bufPos int64
	probe  []byte // of resync and zeros, which must leave buf alone
	err    error  // a failed read; the walk ends there
}

// readSize is how much is read at once, in bytes: what stays in the cache until
// its checksums are taken.
const readSize = 256 << 10

// minHeader is how many bytes Kafka's scanner needs to look at a batch: up to
// and with the magic (log-format §2.3).
const minHeader = 17

// next returns the next span, false after the last one or on a read error.
func (s *scanner) next() (span, bool) {
	sp, ok := s.look()
	if ok && s.live != nil && sp.kind == spanBatch && record.Batch(sp.data).BaseOffset() < s.expect {
		// Of a header that is read beside its writer the front may be older than what
		// follows, and no checksum covers the base offset.
		var base [8]byte
		if s.probeAt(base[:], sp.pos) == len(base) && !bytes.Equal(base[:], sp.data[:len(base)]) {
			s.buf = s.buf[:0]
			sp, ok = s.look()
		}
	}
	wait := 2 * time.Millisecond
	for try := 0; ok && s.live != nil && (sp.kind == spanBad || sp.kind == spanTorn); try++ {
		if try >= 3 { // its writer may stand still, on a busy machine: at the end of the log
			if sp.kind == spanTorn || try == 7 || !s.zeros(sp.pos+sp.size) {
				break
			}
			wait *= 2
		}
		time.Sleep(wait)
		s.size = s.live()
		s.buf = s.buf[:0]
		sp, ok = s.look()
	}
	if s.err != nil || !ok {
		return span{}, false
	}
	switch sp.kind {
	case spanBatch:
		s.expect = max(s.expect, record.Batch(sp.data).NextOffset())
	case spanLegacy:
		s.expect = max(s.expect, record.Batch(sp.data).BaseOffset()+1)
	}
	s.pos += sp.size
	s.progress.add(sp.size)
	return sp, true
}

// look finds out what starts at pos.
func (s *scanner) look() (span, bool) {
	head := s.peek(record.HeaderSize)
	left := s.size - s.pos
	if len(head) == 0 || s.err != nil {
		return span{}, false
	}
	sp := span{kind: spanBad, pos: s.pos, size: left}
	size64 := int64(0)
	if size, ok := record.PeekSize(head); ok {
		size64 = int64(size)
	}
	// Behind the length every header has something: a writer has yet to go on.
	const behindLength = 12
	unstamped := len(head) > behindLength && vfs.AllZero(head[behindLength:])
	switch {
	case left < minHeader || size64 == 0 || unstamped:
		if s.zeros(s.pos) {
			sp.kind = spanZeros
			return sp, true
		}
		sp.err = tooShort("bytes left", 0, left, minHeader)
		if left >= minHeader {
			length := record.Batch(head).Size() - 12
			if sp.err = tooShort("length", 8, int64(length), 14); size64 > 0 {
				sp.err = &record.Error{Kind: record.ErrMagic, What: "magic", Pos: 16, Record: -1, Found: 0, Rel: "want", Want: record.Magic}
			}
		}
		if left < minHeader || unstamped || vfs.AllZero(head[:minHeader]) {
			sp.kind = spanTorn
		}
		s.bound(&sp)
		return sp, true
	case size64 > left:
		sp.err = tooShort("bytes left", 8, left, size64)
		// Of what a writer began the front at least looks like a batch.
		if h := record.Batch(head); h[16] <= record.Magic && h.BaseOffset() >= s.expect && h.BaseOffset()-s.expect <= math.MaxInt32 {
			sp.kind = spanTorn
		}
		s.bound(&sp)
		return sp, true
	case size64 > s.maxBatch:
		sp.size = size64
		sp.err = &record.Error{Kind: record.ErrTooLarge, What: "batch size", Pos: 8, Record: -1, Found: size64, Rel: "want at most", Want: s.maxBatch}
		s.follow(&sp)
		return sp, true
	}
	data := s.peek(size64)
	if int64(len(data)) < size64 { // it was there a moment ago
		sp.kind, sp.size, sp.err = spanTorn, s.size-s.pos, tooShort("bytes left", 8, int64(len(data)), size64)
		return sp, sp.size > 0 && s.err == nil
	}
	sp.data, sp.size = data, size64
	if magic := data[16]; magic < record.Magic {
		sp.kind, sp.err = spanLegacy, checkLegacy(data)
	} else {
		_, err := record.Check(data)
		sp.kind, sp.err = spanBatch, err
	}
	if sp.err != nil {
		sp.kind = spanBad
		s.follow(&sp)
	}
	return sp, true
}

// bound ends a span without a credible length at the next valid batch. With
// valid data behind it, it is no torn end.
func (s *scanner) bound(sp *span) {
	if next := s.resync(sp.pos + 1); next >= 0 {
		sp.kind, sp.size = spanBad, next-sp.pos
	}
}

// follow decides whether to believe the length of a batch that failed its
// check: what stands behind it must be the end, zeros or another header.
// Otherwise the span ends at the next valid batch, if there is one.
func (s *scanner) follow(sp *span) {
	end := sp.pos + sp.size
	// A writer that stopped in the middle leaves zeros from there to the end.
	const untouched = 64
	if n := len(sp.data); n >= untouched && vfs.AllZero(sp.data[n-untouched:]) && s.zeros(end) {
		sp.kind = spanTorn
		return
	}
	var head [minHeader]byte
	if n := s.probeAt(head[:min(minHeader, s.size-end)], end); n < minHeader || vfs.AllZero(head[:]) {
		return
	}
	if size, ok := record.PeekSize(head[:]); ok && head[16] <= record.Magic && int64(size) <= s.size-end {
		return
	}
	if next := s.resync(sp.pos + 1); next >= 0 {
		sp.size, sp.data = next-sp.pos, nil
	}
}

// peek returns n bytes from pos on, fewer only at the end of the file. They
// are valid until the next peek.
func (s *scanner) peek(n int64) []byte {
	n = min(n, s.size-s.pos)
	if n <= 0 {
		return nil
	}
	at := s.pos - s.bufPos
	if at >= 0 && at+n <= int64(len(s.buf)) {
		return s.buf[at : at+n]
	}
	want := min(max(n, readSize), s.size-s.pos)
	kept := 0
	if at >= 0 && at < int64(len(s.buf)) {
		kept = copy(s.buf, s.buf[at:])
	}
	s.buf = slices.Grow(s.buf[:kept], int(want)-kept)
	got, err := readAt(s.f, s.buf[kept:want], s.pos+int64(kept))
	s.buf, s.bufPos = s.buf[:kept+got], s.pos
	if err != nil {
		s.err = err
		return nil
	}
	if int64(len(s.buf)) < want {
		s.size = min(s.size, s.pos+int64(len(s.buf))) // cut by somebody since
	}
	return s.buf[:min(n, int64(len(s.buf)))]
}

// probeSize is the piece that zeros and resync read at once, in bytes.
const probeSize = 64 << 10

// piece reads up to probeSize bytes at pos, none at the end or on an error.
func (s *scanner) piece(pos int64) []byte {
	s.probe = slices.Grow(s.probe[:0], probeSize)
	return s.probe[:s.probeAt(s.probe[:min(probeSize, max(0, s.size-pos))], pos)]
}

// probeAt is readAt for a look ahead. A failed read ends the walk.
func (s *scanner) probeAt(p []byte, pos int64) int {
	n, err := readAt(s.f, p, pos)
	if err != nil {
		s.err = err
		return 0
	}
	return n
}

// zeros reports whether the file has nothing but zeros from pos on.
func (s *scanner) zeros(pos int64) bool {
	for pos < s.size {
		p := s.piece(pos)
		if !vfs.AllZero(p) {
			return false
		}
		if len(p) == 0 {
			break
		}
		pos += int64(len(p))
	}
	return true
}

// resync returns the next position at or after from where a whole valid batch
// starts whose offsets follow on, or -1. An older batch, as recycled blocks
// may hold, is not taken.
func (s *scanner) resync(from int64) int64 {
	// Bytes in which every place looks like a header could make this read the
	// file over and over.
	budget := int64(64 << 20)
	var whole []byte
	for from+record.HeaderSize <= s.size {
		p := s.piece(from)
		i := 0
		for ; i+record.HeaderSize <= len(p); i++ {
			skip := bytes.IndexByte(p[i+16:len(p)-record.HeaderSize+17], record.Magic)
			if skip < 0 {
				i = len(p) - record.HeaderSize + 1
				break
			}
			i += skip
			h := record.Batch(p[i : i+record.HeaderSize])
			size, ok := record.PeekSize(h)
			pos := from + int64(i)
			if !ok || size < record.HeaderSize || int64(size) > min(s.size-pos, s.maxBatch) ||
				h.BaseOffset() < s.expect || h.LastOffsetDelta() < 0 || h.Count() < 0 {
				continue
			}
			if budget -= int64(size); budget < 0 {
				return -1
			}
			whole = slices.Grow(whole[:0], size)[:size]
			if s.probeAt(whole, pos) < size {
				continue
			}
			if _, err := record.Check(whole); err == nil {
				return pos
			}
		}
		if i == 0 {
			break // the file became shorter
		}
		from += int64(i)
	}
	return -1
}

// checkLegacy verifies a whole message of magic 0 or 1.
func checkLegacy(data []byte) error {
	m, err := record.ParseLegacy(data)
	if err == nil && !m.CRCValid {
		err = &record.Error{Kind: record.ErrChecksum, What: "crc-32", Pos: 12, Record: -1,
			Found: int64(m.CRC), Rel: "want", Want: int64(crc32.ChecksumIEEE(data[16:]))}
	}
	return err
}

func tooShort(what string, pos int, found, atLeast int64) error {
	return &record.Error{Kind: record.ErrTooShort, What: what, Pos: pos, Record: -1, Found: found, Rel: "want at least", Want: atLeast}
}

// A reason is an error of package record taken apart for a finding.
type reason struct {
	check         string // which rule failed
	at            int64  // byte in the batch, -1 if none can be named
	found, wanted string
}

func reasonOf(err error) reason {
	r := reason{check: "record", at: -1, found: err.Error()}
	for _, k := range []struct {
		kind error
		name string
	}{
		{record.ErrTooShort, "length"}, {record.ErrChecksum, "crc"}, {record.ErrMagic, "magic"},
		{record.ErrCodec, "codec"}, {record.ErrTooLarge, "size"},
	} {
		if errors.Is(err, k.kind) {
			r.check = k.name
		}
	}
	var e *record.Error
	if errors.As(err, &e) {
		if !e.Plain {
			r.at = int64(e.Pos)
		}
		r.found, r.wanted = describe(e)
	}
	return r
}
