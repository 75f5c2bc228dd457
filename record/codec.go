package record

import (
	"bytes"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"sync"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
)

// Codec is how the records of a batch are compressed.
type Codec int8

const (
	None Codec = iota
	Gzip
	Snappy
	LZ4
	Zstd
)

var codecNames = [...]string{None: "none", Gzip: "gzip", Snappy: "snappy", LZ4: "lz4", Zstd: "zstd"}

func (c Codec) known() bool { return c >= None && int(c) < len(codecNames) }

// String returns Kafka's name, or "unknown(N)".
func (c Codec) String() string {
	if !c.known() {
		return "unknown(" + strconv.Itoa(int(c)) + ")"
	}
	return codecNames[c]
}

// ParseCodec is the inverse of String.
func ParseCodec(name string) (Codec, error) {
	for c, n := range codecNames {
		if n == name {
			return Codec(c), nil
		}
	}
	return None, fmt.Errorf("parse codec %q: want one of %q", name, codecNames)
}

// Compress appends src, compressed as log-format §2.7 wants it, to dst.
//
// level is in the codec's terms, 0 its default: gzip 1 to 9 or -1 (default),
// lz4 1 to 17 (9, the default, is the fast compressor), zstd -131072 to 22
// (default 3); snappy has none. Errors: ErrCodec for another level or codec.
func Compress(dst []byte, c Codec, level int, src []byte) ([]byte, error) {
	low, high := 0, 0
	switch c {
	case None:
		return append(dst, src...), nil
	case Snappy:
		return xerialEncode(dst, src), nil
	case Gzip:
		low, high = -1, 9
	case LZ4:
		low, high = 0, 17
	case Zstd:
		low, high = -131072, 22
	default:
		return dst, unknownCodec(c, 0)
	}
	if level < low {
		return dst, batchError(ErrCodec, c.String()+" level", 0, int64(level), atLeast, int64(low))
	}
	if level > high {
		return dst, batchError(ErrCodec, c.String()+" level", 0, int64(level), atMost, int64(high))
	}
	switch c {
	case Gzip:
		return gzipEncode(dst, src, level)
	case LZ4:
		return lz4Encode(dst, src, level)
	default:
		return zstdEncode(dst, src, level)
	}
}

// Decompress appends the plain form of src to dst, at most limit bytes of it. It
// takes every stream of log-format §2.7. On an error dst is returned as it was.
//
// Errors: ErrCodec for a stream that does not decode or a codec that does not
// exist, ErrTooLarge above limit. Memory stays near limit whatever the stream
// claims.
func Decompress(dst []byte, c Codec, src []byte, limit int) ([]byte, error) {
	out, bad := decompress(dst, c, src, limit, Magic)
	if bad != nil {
		return dst, bad
	}
	return out, nil
}

// decompress does it as readers of the given magic do. Positions in its errors
// are those in src.
func decompress(dst []byte, c Codec, src []byte, limit int, magic int8) ([]byte, *Error) {
	switch c {
	case None:
		if len(src) > limit {
			return nil, tooLarge(c, limit)
		}
		return append(dst, src...), nil
	case Gzip:
		return gzipDecode(dst, src, limit)
	case Snappy:
		return snappyDecode(dst, src, limit)
	case LZ4:
		return lz4Decode(dst, src, limit, magic < Magic)
	case Zstd:
		return zstdDecode(dst, src, limit)
	}
	return nil, unknownCodec(c, 0)
}

func unknownCodec(c Codec, pos int) *Error {
	return batchError(ErrCodec, "codec", pos, int64(c), atMost, int64(Zstd))
}

func tooLarge(c Codec, limit int) *Error {
	bad := batchError(ErrTooLarge, "decompressed "+c.String()+" stream", 0, 0, "", 0)
	bad.Err = fmt.Errorf("more than %d bytes", limit)
	return bad
}

// badStream reports a stream that does not decode; cause may be nil.
func badStream(what string, pos int, cause error) *Error {
	return &Error{Kind: ErrCodec, What: what, Pos: pos, Record: -1, Err: cause}
}

// gzipDecoder is a gzip reader and the bytes it reads.
type gzipDecoder struct {
	src bytes.Reader
	gz  gzip.Reader
}

var gzipDecoders = sync.Pool{New: func() any { return new(gzipDecoder) }}

func gzipDecode(dst, src []byte, limit int) ([]byte, *Error) {
	d := gzipDecoders.Get().(*gzipDecoder)
	defer func() {
		d.src.Reset(nil)
		gzipDecoders.Put(d)
	}()
	d.src.Reset(src)
	at := func() int { return len(src) - d.src.Len() }
	if err := d.gz.Reset(&d.src); err != nil {
		return nil, badStream("gzip header", at(), err)
	}
	start := len(dst)
	for {
		if len(dst) == cap(dst) {
			dst = slices.Grow(dst, 2*len(src)+bytes.MinRead)
		}
		n, err := d.gz.Read(dst[len(dst):cap(dst)])
		dst = dst[:len(dst)+n]
		if len(dst)-start > limit {
			return nil, tooLarge(Gzip, limit)
		}
		if err == io.EOF {
			return dst, nil
		}
		if err != nil {
			return nil, badStream("gzip stream", at(), err)
		}
	}
}

// appender is an io.Writer onto a slice.
type appender struct{ b []byte }

func (a *appender) Write(p []byte) (int, error) {
	a.b = append(a.b, p...)
	return len(p), nil
}

type gzipEncoder struct {
	dst appender
	gz  *gzip.Writer
}

var gzipEncoders [gzip.BestCompression + 1]sync.Pool // by level, 0 the default

func gzipEncode(dst, src []byte, level int) ([]byte, error) {
	level = max(level, 0)
	e, _ := gzipEncoders[level].Get().(*gzipEncoder)
	if e == nil {
		e = new(gzipEncoder)
		gzipLevel := level
		if level == 0 {
			gzipLevel = gzip.DefaultCompression
		}
		var err error
		if e.gz, err = gzip.NewWriterLevel(&e.dst, gzipLevel); err != nil {
			return dst, badStream("gzip level", 0, err)
		}
	}
	e.dst.b = dst
	e.gz.Reset(&e.dst)
	_, err := e.gz.Write(src)
	if cerr := e.gz.Close(); err == nil {
		err = cerr
	}
	out := e.dst.b
	e.dst.b = nil
	gzipEncoders[level].Put(e)
	if err != nil { // an appender gives none
		return dst, badStream("gzip stream", 0, err)
	}
	return out, nil
}

const (
	zstdMaxBlock  = 128 << 10 // plain bytes in a block, by the format
	zstdMaxWindow = 128 << 20 // what Kafka's Java clients read: a window log of 27
)

var zstdDecoders sync.Pool

// zstdDecode decodes all frames of src into memory of its own: the output is
// the window, so that a large window costs nothing.
func zstdDecode(dst, src []byte, limit int) ([]byte, *Error) {
	room, bad := zstdRoom(src)
	if bad != nil {
		return nil, bad
	}
	d, _ := zstdDecoders.Get().(*zstd.Decoder)
	if d == nil {
		var err error
		d, err = zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(zstdMaxWindow),
			zstd.WithDecodeAllCapLimit(true))
		if err != nil {
			return nil, badStream("zstd decoder", 0, err)
		}
	}
	defer zstdDecoders.Put(d)
	n := int(min(room, int64(limit)))
	dst = slices.Grow(dst, n)
	start := len(dst)
	out, err := d.DecodeAll(src, dst[start:start:start+n])
	switch {
	case err == zstd.ErrDecoderSizeExceeded && room > int64(limit):
		return nil, tooLarge(Zstd, limit)
	case err != nil:
		return nil, badStream("zstd stream", 0, err)
	}
	return dst[:start+len(out)], nil
}

// zstdRoom walks the frames of src by their headers. It returns how many plain
// bytes they hold at most: what a frame says if it does, but one that says more
// than its blocks can hold is an error. That keeps a few bytes from asking for a
// lot of memory.
func zstdRoom(src []byte) (room int64, bad *Error) {
	rest := src
	for len(rest) > 0 {
		var h zstd.Header
		at := len(src) - len(rest)
		body, err := h.DecodeAndStrip(rest)
		if err != nil {
			return 0, badStream("zstd frame header", at, err)
		}
		rest = body
		if h.Skippable {
			if int64(h.SkippableSize) > int64(len(rest)) {
				return 0, badStream("zstd skippable frame cut off", at, nil)
			}
			rest = rest[h.SkippableSize:]
			continue
		}
		held := int64(0)
		for last := false; !last; {
			if len(rest) < 3 {
				return 0, badStream("zstd block header cut off", len(src)-len(rest), nil)
			}
			header := int(rest[0]) | int(rest[1])<<8 | int(rest[2])<<16
			size, plain := header>>3, header>>3
			switch last = header&1 != 0; header >> 1 & 3 {
			case 1: // one byte repeated
				size = 1
			case 2: // compressed
				plain = zstdMaxBlock
			}
			if rest = rest[3:]; size > len(rest) {
				return 0, badStream("zstd block cut off", len(src)-len(rest), nil)
			}
			rest = rest[size:]
			held += int64(min(plain, zstdMaxBlock))
		}
		if h.HasCheckSum {
			if len(rest) < 4 {
				return 0, badStream("zstd checksum cut off", len(src)-len(rest), nil)
			}
			rest = rest[4:]
		}
		if h.HasFCS {
			if h.FrameContentSize > uint64(held) {
				return 0, batchError(ErrCodec, "zstd content size", at, int64(min(h.FrameContentSize, math.MaxInt64)), atMost, held)
			}
			held = int64(h.FrameContentSize)
		}
		room += held
	}
	return room, nil
}

var zstdEncoders [zstd.SpeedBestCompression + 1]sync.Pool

// zstdEncode writes one frame without checksum, as Kafka does, but with the
// content size: every zstd reader takes it, and can then allocate once.
func zstdEncode(dst, src []byte, level int) ([]byte, error) {
	if level == 0 {
		level = 3
	}
	speed := zstd.EncoderLevelFromZstd(level)
	e, _ := zstdEncoders[speed].Get().(*zstd.Encoder)
	if e == nil {
		var err error
		e, err = zstd.NewWriter(nil, zstd.WithEncoderLevel(speed), zstd.WithEncoderConcurrency(1),
			zstd.WithEncoderCRC(false), zstd.WithZeroFrames(true), zstd.WithLowerEncoderMem(true))
		if err != nil {
			return dst, badStream("zstd level", 0, err)
		}
	}
	out := e.EncodeAll(src, dst)
	zstdEncoders[speed].Put(e)
	return out, nil
}
