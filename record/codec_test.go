package record

import (
	"bytes"
	stdgzip "compress/gzip"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/s2"
	"github.com/klauspost/compress/zstd"
	"github.com/pierrec/lz4/v4"
)

// plains are contents that take another path through the codecs.
func plains() map[string][]byte {
	noise := make([]byte, 300<<10)
	rand.NewChaCha8([32]byte{1}).Read(noise)
	text := []byte{}
	for _, r := range genText(1000) {
		text = append(text, r.Value...)
	}
	return map[string][]byte{
		"nothing": {}, "one byte": {7}, "zeros": make([]byte, 300<<10), "noise": noise, "text": text,
		"one block": text[:64<<10], "one block and a byte": text[:64<<10+1], "32 KiB": text[:32<<10], "32 KiB and a byte": text[:32<<10+1],
	}
}

func TestCompressDecompress(t *testing.T) {
	for name, plain := range plains() {
		for _, c := range codecs {
			for _, level := range map[Codec][]int{None: {0}, Gzip: {-1, 0, 1, 9}, Snappy: {0}, LZ4: {0, 1, 8, 9, 10, 17}, Zstd: {-131072, 0, 1, 3, 6, 22}}[c] {
				t.Run(fmt.Sprintf("%s/%v/level=%d", name, c, level), func(t *testing.T) {
					stream, err := Compress([]byte("before"), c, level, plain)
					if err != nil {
						t.Fatal(err)
					}
					if !bytes.HasPrefix(stream, []byte("before")) {
						t.Fatal("dst lost")
					}
					stream = stream[len("before"):]
					got, err := Decompress([]byte("before"), c, stream, len(plain))
					if err != nil || !bytes.Equal(got, append([]byte("before"), plain...)) {
						t.Fatalf("%d bytes, %v; want %d", len(got), err, len(plain)+6)
					}
					if len(plain) > 0 {
						got, err := Decompress([]byte("dst"), c, stream, len(plain)-1)
						wantError(t, err, ErrTooLarge, "")
						if string(got) != "dst" {
							t.Errorf("dst is %d bytes after an error", len(got))
						}
					}
				})
			}
		}
	}
}

// What we write is read by other decoders than ours, where the standard library or
// a frame reader of its own offers one.
func TestStreamsReadByOthers(t *testing.T) {
	for name, plain := range plains() {
		for c, open := range map[Codec]func(io.Reader) (io.Reader, error){
			Gzip: func(r io.Reader) (io.Reader, error) { return stdgzip.NewReader(r) },
			LZ4:  func(r io.Reader) (io.Reader, error) { return lz4.NewReader(r), nil },
			Zstd: func(r io.Reader) (io.Reader, error) { return zstd.NewReader(r, zstd.WithDecoderConcurrency(1)) },
		} {
			stream, err := Compress(nil, c, 0, plain)
			if err != nil {
				t.Fatal(err)
			}
			r, err := open(bytes.NewReader(stream))
			if err != nil {
				t.Fatal(err)
			}
			if got, err := io.ReadAll(r); err != nil || !bytes.Equal(got, plain) {
				t.Errorf("%v, %s: %d bytes, %v; want %d", c, name, len(got), err, len(plain))
			}
		}
	}
}

// No stream costs more memory than the bound allows, whatever it holds or claims,
// and none leaves a goroutine.
func TestDecompressBombs(t *testing.T) {
	const limit = 1 << 20
	bombs := map[string]struct {
		c      Codec
		stream []byte
	}{
		"snappy block that claims 2^31": {Snappy, append(binary.AppendUvarint(nil, 1<<31-1), 0xfe, 1, 0)},
		"snappy block that claims 2^60": {Snappy, binary.AppendUvarint(nil, 1<<60)},
		"zstd frame that claims 2^60":   {Zstd, zstdRaw(1<<60, "abc")},
		"zstd frame that claims 1 MiB":  {Zstd, zstdRaw(1<<20, "abc")},
		"zstd window of 1 GiB":          {Zstd, []byte("\x28\xb5\x2f\xfd\x00\xa0\x19\x00\x00abc")},
		"zstd skippable of 4 GiB":       {Zstd, []byte("\x50\x2a\x4d\x18\xff\xff\xff\xffabc")},
		"lz4 empty blocks of 4 MiB":     {LZ4, append(lz4Frame(0x60, 0x70), bytes.Repeat([]byte("\x01\x00\x00\x00\x00"), 1000)...)},
	}
	zeros := make([]byte, 64<<20)
	for _, c := range codecs[1:] {
		stream, err := Compress(nil, c, 0, zeros)
		if err != nil {
			t.Fatal(err)
		}
		bombs[c.String()+" of 64 MiB of zeros"] = struct {
			c      Codec
			stream []byte
		}{c, stream}
	}
	zeros = nil
	goroutines := runtime.NumGoroutine()
	for name, b := range bombs {
		t.Run(name, func(t *testing.T) {
			if _, err := Decompress(nil, b.c, nil, limit); err == nil && b.c != Zstd {
				t.Error("no bytes are a stream")
			} // and the pooled decoder exists
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			got, err := Decompress(nil, b.c, b.stream, limit)
			runtime.ReadMemStats(&after)
			if err == nil || got != nil {
				t.Errorf("%d bytes, %v", len(got), err)
			}
			// Counted is all that was ever taken: a buffer that grows by a quarter
			// takes five times its last size, and decoders bring tables.
			if used := after.TotalAlloc - before.TotalAlloc; used > 10*limit {
				t.Errorf("allocated %d bytes under a bound of %d", used, limit)
			}
		})
	}
	// The goroutine of a subtest ends after Run returned: give it time.
	for deadline := time.Now().Add(10 * time.Second); runtime.NumGoroutine() > goroutines; runtime.Gosched() {
		if time.Now().After(deadline) {
			t.Fatalf("%d goroutines; %d before", runtime.NumGoroutine(), goroutines)
		}
	}
}

// Any cut of a stream is an error, but for those after a complete zstd frame or
// inside what LZ4 and xerial ignore or allow: nothing and a whole chunk less.
func TestEveryCutOfAStream(t *testing.T) {
	plain := []byte(strings.Repeat("some text and some more text ", 10))
	for _, c := range codecs[1:] {
		stream, err := Compress(nil, c, 0, plain)
		if err != nil {
			t.Fatal(err)
		}
		for n := range len(stream) {
			got, err := Decompress(nil, c, stream[:n], 1<<20)
			if err == nil && !(c == Zstd && n == 0 || c == Snappy && n == len(xerialHeader)) {
				t.Errorf("%v cut to %d of %d bytes: decoded to %d", c, n, len(stream), len(got))
			}
			if err != nil {
				wantError(t, err, ErrCodec, c.String())
			}
		}
	}
}

func TestC135_Snappy(t *testing.T) {
	plain := plains()["text"]
	framed := func(size int) []byte {
		out := []byte(xerialHeader)
		for chunk := range slices.Chunk(plain, size) {
			block := s2.EncodeSnappy(nil, chunk)
			out = append(binary.BigEndian.AppendUint32(out, uint32(len(block))), block...)
		}
		return out
	}
	raw := s2.EncodeSnappy(nil, plain)
	ours, err := Compress(nil, Snappy, 0, plain)
	if err != nil {
		t.Fatal(err)
	}
	odd := append([]byte(xerialMagic), "\xff\xff\xff\xff\x00\x00\x00\x09"...) // versions are not enforced
	for _, tc := range []struct {
		name   string
		stream []byte
		want   []byte
		text   string // of the error, if want is nil
	}{
		{"raw", raw, plain, ""},
		{"raw, empty", []byte{0}, []byte{}, ""},
		{"framed by us", ours, plain, ""},
		{"framed in 4 KiB chunks", framed(4 << 10), plain, ""},
		{"framed in one chunk", framed(len(plain)), plain, ""},
		{"0 chunks", []byte(xerialHeader), []byte{}, ""},
		{"concatenated framed streams", slices.Concat(ours, []byte(xerialHeader), ours), slices.Concat(plain, plain), ""},
		{"other versions", append(odd, ours[16:]...), plain, ""},
		{"an empty chunk", append(slices.Clone(ours), 0, 0, 0, 1, 0), plain, ""},
		{"nothing", nil, nil, "snappy block length cut off"},
		{"a chunk of no bytes", append(slices.Clone(ours), 0, 0, 0, 0), nil, "snappy block length cut off"},
		{"header cut off", ours[:12], nil, "snappy stream header cut off at byte 0"},
		{"chunk length cut off", append(slices.Clone(ours), 0, 0), nil, "snappy chunk length cut off"},
		{"chunk length beyond the stream", append([]byte(xerialHeader), 0, 0, 0, 9, 1, 0), nil, "snappy chunk length 9 at byte 16, want at most 2"},
		{"chunk length negative", append([]byte(xerialHeader), 0xff, 0, 0, 9, 1, 0), nil, "snappy chunk length -16777207"},
		{"length of 6 bytes", []byte("\xff\xff\xff\xff\xff\x01"), nil, "snappy block length"},
		{"claims more than it makes", []byte("\x05\x08abc"), nil, "snappy block length 5 at byte 0, want 3"},
		{"claims less than it makes", []byte("\x02\x08abc"), nil, "snappy block length 2 at byte 0, want 3"},
		{"literal cut off", []byte("\x03\x08ab"), nil, "snappy literal cut off at byte 1"},
		{"literal length cut off", []byte("\x03\xf4\x02"), nil, "snappy literal cut off"},
		{"literal of 4 GiB", []byte("\x03\xfc\xff\xff\xff\xffabc"), nil, "snappy literal cut off"},
		{"copy cut off", []byte("\x07\x08abc\x01"), nil, "snappy copy cut off at byte 5"},
		{"copy from before the start", []byte("\x07\x08abc\x01\x04"), nil, "snappy copy offset 4 at byte 5, want from 1 to 3"},
		{"copy", []byte("\x07\x08abc\x01\x03"), []byte("abcabca"), ""},
		{"copy with a long offset", []byte("\x05\x08abc\x07\x03\x00\x00\x00"), []byte("abcab"), ""},
		{"repeat of s2, no snappy", []byte("\x0b\x08abc\x01\x03\x01\x00"), nil, "snappy copy offset 0"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := Decompress(nil, Snappy, tc.stream, 1<<30)
			if tc.want == nil {
				wantError(t, err, ErrCodec, tc.text)
				return
			}
			if err != nil || !bytes.Equal(got, tc.want) {
				t.Errorf("%d bytes, %v; want %d", len(got), err, len(tc.want))
			}
		})
	}
}

// lz4Frame is the header of a frame with a right checksum; extra follows BD.
func lz4Frame(flg, bd byte, extra ...byte) []byte {
	f := append([]byte{0x04, 0x22, 0x4d, 0x18, flg, bd}, extra...)
	return append(f, byte(xxh32(f[4:])>>8))
}

func le32(n uint32) []byte { return binary.LittleEndian.AppendUint32(nil, n) }

func TestC138_LZ4HeaderChecksum(t *testing.T) {
	recs := values("hello")
	stream := build(t, recs, with(LZ4))[HeaderSize:]
	if !bytes.Equal(stream[:7], []byte{0x04, 0x22, 0x4d, 0x18, 0x60, 0x40, 0x82}) {
		t.Errorf("header %x", stream[:7])
	}
	old := slices.Clone(stream)
	old[6] = 0x1a // what magic 0 writers hash: the magic bytes too (log-format §2.7)
	junk := slices.Clone(stream)
	junk[6] = 0x99

	for _, tc := range []struct {
		name        string
		stream      []byte
		v2, magic01 bool
	}{{"right", stream, true, true}, {"old bug", old, false, true}, {"junk", junk, false, false}} {
		b := withRecords(t, build(t, recs), 1, tc.stream)
		b[attributesAt+1] = byte(LZ4)
		_, err := readErr(sealed(b))
		if tc.v2 != (err == nil) {
			t.Errorf("%s, v2: %v", tc.name, err)
		}
		if err != nil {
			wantError(t, err, ErrCodec, "lz4 header checksum")
			wantError(t, err, ErrCodec, "at byte 67, want 130")
		}
		for magic := range int8(2) {
			if _, bad := decompress(nil, LZ4, tc.stream, 1<<20, magic); tc.magic01 != (bad == nil) {
				t.Errorf("%s, magic %d: %v", tc.name, magic, bad)
			}
		}
	}
}

func TestC139_LZ4Frames(t *testing.T) {
	plain := plains()["text"]
	by := func(opts ...lz4.Option) []byte { // another writer
		var buf bytes.Buffer
		w := lz4.NewWriter(&buf)
		if err := w.Apply(append(opts, lz4.ConcurrencyOption(1))...); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(plain); err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		return buf.Bytes()
	}
	blockSums := by(lz4.BlockChecksumOption(true), lz4.BlockSizeOption(lz4.Block64Kb))
	badSum := slices.Clone(blockSums)
	badSum[11] ^= 1 // in the first block
	frame := func(head []byte, rest ...string) []byte { return append(head, strings.Join(rest, "")...) }
	abc := string(le32(3|lz4StoredRaw)) + "abc"
	end := string(le32(0))
	for _, tc := range []struct {
		name   string
		stream []byte
		want   []byte
		text   string
	}{
		{"content size", by(lz4.SizeOption(uint64(len(plain)))), plain, ""},
		{"content checksum", by(lz4.ChecksumOption(true)), plain, ""},
		{"block checksums", blockSums, plain, ""},
		{"block checksum wrong", badSum, nil, "lz4 block checksum"},
		{"BD 256 KiB", by(lz4.BlockSizeOption(lz4.Block256Kb)), plain, ""},
		{"BD 1 MiB", by(lz4.BlockSizeOption(lz4.Block1Mb)), plain, ""},
		{"BD 4 MiB", by(lz4.BlockSizeOption(lz4.Block4Mb)), plain, ""},
		{"stored raw", frame(lz4Frame(0x60, 0x40), abc, abc, end), []byte("abcabc"), ""},
		{"no block", frame(lz4Frame(0x60, 0x40), end), []byte{}, ""},
		{"content size is not compared", frame(lz4Frame(0x68, 0x40, 99, 0, 0, 0, 0, 0, 0, 0), abc, end), []byte("abc"), ""},
		{"content checksum is not verified", frame(lz4Frame(0x64, 0x40), abc, end, "junk"), []byte("abc"), ""},
		{"content checksum missing", frame(lz4Frame(0x64, 0x40), abc, end), nil, "lz4 content checksum cut off at byte 18"},
		{"trailing data", frame(lz4Frame(0x60, 0x40), abc, end, "more"), []byte("abc"), ""},
		{"no end mark", frame(lz4Frame(0x60, 0x40), abc), nil, "lz4 block length or end mark cut off at byte 14"},
		{"linked blocks", frame(lz4Frame(0x40, 0x40), abc, end), nil, "lz4 frame of linked blocks, which Kafka clients cannot read at byte 4"},
		{"dictionary id", frame(lz4Frame(0x61, 0x40, 1, 2, 3, 4), abc, end), nil, "lz4 frame with a dictionary"},
		{"reserved bit of FLG", frame(lz4Frame(0x62, 0x40), abc, end), nil, "lz4 frame with a reserved bit"},
		{"version 2", frame(lz4Frame(0xa0, 0x40), abc, end), nil, "lz4 frame version 2"},
		{"BD 3", frame(lz4Frame(0x60, 0x30), abc, end), nil, "lz4 block size"},
		{"reserved bits of BD", frame(lz4Frame(0x60, 0x41), abc, end), nil, "lz4 block size"},
		{"high bit of BD", frame(lz4Frame(0x60, 0xc0), abc, end), nil, "lz4 block size"},
		{"legacy frame", []byte("\x02\x21\x4c\x18\x00\x00\x00\x00\x00"), nil, "lz4 frame magic"},
		{"content size cut off", lz4Frame(0x68, 0x40)[:6], nil, "lz4 frame magic at byte 0"},
		{"header cut off in the content size", append(lz4Frame(0x68, 0x40), 1, 2), nil, "lz4 frame header cut off"},
		{"BD 4 MiB, small block", frame(lz4Frame(0x60, 0x70), string(le32(4)), "\x30abc", end), []byte("abc"), ""},
		{"block above BD", frame(lz4Frame(0x60, 0x40), string(le32(64<<10+1))), nil, "lz4 block length 65537 at byte 7, want at most"},
		{"block beyond the stream", frame(lz4Frame(0x60, 0x40), string(le32(9)), "abc"), nil, "lz4 block length 9 at byte 7, want at most 3"},
		{"block that does not decode", frame(lz4Frame(0x60, 0x40), string(le32(3)), "\x0f\x09\x00", end), nil, "lz4 block at byte 7"},
		{"block checksum cut off", frame(lz4Frame(0x70, 0x40), abc), nil, "lz4 block checksum cut off"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := Decompress(nil, LZ4, tc.stream, 1<<30)
			if tc.want == nil {
				wantError(t, err, ErrCodec, tc.text)
				return
			}
			if cap(got) > 300*len(tc.stream) {
				t.Errorf("%d bytes of memory for a stream of %d", cap(got), len(tc.stream))
			}
			if err != nil || !bytes.Equal(got, tc.want) {
				t.Errorf("%d bytes, %v; want %d", len(got), err, len(tc.want))
			}
		})
	}
}

func TestXXH32(t *testing.T) {
	for s, want := range map[string]uint32{ // published vectors
		"": 0x02cc5d05, "a": 0x550d7456, "abc": 0x32d153ff, "Nobody inspects the spammish repetition": 0xe2293b2f,
	} {
		if got := xxh32([]byte(s)); got != want {
			t.Errorf("xxh32(%q) = %08x; want %08x", s, got, want)
		}
	}
}

// zstdRaw is a frame of one raw block that says it holds size bytes.
func zstdRaw(size uint64, content string) []byte {
	f := []byte("\x28\xb5\x2f\xfd\xe0") // content size of 8 bytes, single segment
	f = binary.LittleEndian.AppendUint64(f, size)
	n := len(content)<<3 | 1
	return append(append(f, byte(n), byte(n>>8), byte(n>>16)), content...)
}

func TestC141_Zstd(t *testing.T) {
	plain := plains()["text"]
	var buf bytes.Buffer
	w, err := zstd.NewWriter(&buf, zstd.WithEncoderConcurrency(1), zstd.WithWindowSize(8<<20))
	if err != nil {
		t.Fatal(err)
	}
	for chunk := range slices.Chunk(plain, 1000) { // flushed, so that the size is not known
		if _, err := w.Write(chunk); err != nil {
			t.Fatal(err)
		}
		if err := w.Flush(); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	streamed := buf.Bytes()
	var h zstd.Header
	if err := h.Decode(streamed); err != nil || h.HasFCS {
		t.Fatalf("the streamed frame has a size: %v", err)
	}
	sized, err := Compress(nil, Zstd, 0, plain)
	if err != nil {
		t.Fatal(err)
	}
	skippable := []byte("\x5f\x2a\x4d\x18\x03\x00\x00\x00abc")
	badSum := slices.Clone(streamed)
	badSum[len(badSum)-1] ^= 1
	for _, tc := range []struct {
		name   string
		stream []byte
		want   []byte
		kind   error
		text   string
	}{
		{"without size, with checksum", streamed, plain, nil, ""},
		{"two frames", slices.Concat(sized, streamed), slices.Concat(plain, plain), nil, ""},
		{"skippable frame first", slices.Concat(skippable, sized), plain, nil, ""},
		{"skippable frames between and last", slices.Concat(sized, skippable, sized, skippable), slices.Concat(plain, plain), nil, ""},
		{"right size", zstdRaw(3, "abc"), []byte("abc"), nil, ""},
		{"empty frame", zstdRaw(0, ""), []byte{}, nil, ""},
		{"size too small", zstdRaw(2, "abc"), nil, ErrCodec, "zstd stream"},
		{"size too large", zstdRaw(4, "abc"), nil, ErrCodec, "zstd content size 4 at byte 0, want at most 3"},
		{"size 2^60", zstdRaw(1<<60, "abc"), nil, ErrCodec, "zstd content size 1152921504606846976"},
		{"second size too small", slices.Concat(zstdRaw(3, "abc"), zstdRaw(1, "abc")), nil, ErrCodec, "zstd stream"},
		{"checksum wrong", badSum, nil, ErrCodec, "zstd stream"},
		{"window beyond what Kafka reads", []byte("\x28\xb5\x2f\xfd\x00\x90\x19\x00\x00abc"), nil, ErrCodec, "zstd stream"},
		{"largest window", []byte("\x28\xb5\x2f\xfd\x00\x88\x19\x00\x00abc"), []byte("abc"), nil, ""},
		{"dictionary", []byte("\x28\xb5\x2f\xfd\x21\x07\x03\x19\x00\x00abc"), nil, ErrCodec, "zstd stream"},
		{"bytes behind the frame", append(zstdRaw(3, "abc"), 1, 2), nil, ErrCodec, "zstd frame header at byte 19"},
		{"other magic", []byte("\x28\xb5\x2f\xfc\x00\x00\x00\x00\x00"), nil, ErrCodec, "zstd frame header at byte 0"},
		{"reserved block type", []byte("\x28\xb5\x2f\xfd\x20\x00\x07\x00\x00"), nil, ErrCodec, "zstd"},
		{"block beyond the stream", []byte("\x28\xb5\x2f\xfd\x20\x03\x19\x00\x00ab"), nil, ErrCodec, "zstd block cut off at byte 9"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := Decompress(nil, Zstd, tc.stream, len(tc.want)+10)
			if tc.want == nil {
				wantError(t, err, tc.kind, tc.text)
				return
			}
			if err != nil || !bytes.Equal(got, tc.want) {
				t.Errorf("%d bytes, %v; want %d", len(got), err, len(tc.want))
			}
			if len(tc.want) > 0 {
				_, err = Decompress(nil, Zstd, tc.stream, len(tc.want)-1)
				wantError(t, err, ErrTooLarge, "decompressed zstd stream")
			}
		})
	}
}

func TestGzipStreams(t *testing.T) {
	plain := plains()["text"]
	member := func(edit func(*stdgzip.Writer)) []byte {
		var buf bytes.Buffer
		w := stdgzip.NewWriter(&buf)
		edit(w)
		w.Write(plain)
		w.Close()
		return buf.Bytes()
	}
	one := member(func(*stdgzip.Writer) {})
	badCRC, badSize, badHeader := slices.Clone(one), slices.Clone(one), slices.Clone(one)
	badCRC[len(one)-5] ^= 1
	badSize[len(one)-1] ^= 1
	badHeader[2] = 7
	for _, tc := range []struct {
		name   string
		stream []byte
		want   []byte
		text   string
	}{
		{"one member", one, plain, ""},
		{"two members", slices.Concat(one, one), slices.Concat(plain, plain), ""},
		{"name, comment, extra", member(func(w *stdgzip.Writer) { w.Name, w.Comment, w.Extra = "n", "c", []byte("xx\x01\x00e") }), plain, ""},
		{"checksum", badCRC, nil, "gzip stream"},
		{"size", badSize, nil, "gzip stream"},
		{"method", badHeader, nil, "gzip header"},
		{"nothing", nil, nil, "gzip header at byte 0"},
		{"bytes behind", append(slices.Clone(one), 1, 2, 3), nil, "gzip stream"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := Decompress(nil, Gzip, tc.stream, 1<<30)
			if tc.want == nil {
				wantError(t, err, ErrCodec, tc.text)
				return
			}
			if err != nil || !bytes.Equal(got, tc.want) {
				t.Errorf("%d bytes, %v; want %d", len(got), err, len(tc.want))
			}
		})
	}
}

func TestC143_UnknownCodec(t *testing.T) {
	for id := 5; id <= 7; id++ {
		b := edited(build(t, values("a")), func(b Batch) Batch { b[attributesAt+1] = byte(id); return b })
		if _, err := Check(b); err != nil {
			t.Errorf("codec %d: Check asks for it: %v", id, err)
		}
		_, err := readErr(b)
		wantError(t, err, ErrCodec, fmt.Sprintf("codec %d at byte 21, want at most 4", id))
		wantError(t, Validate(b, 0), ErrCodec, "")
		_, err = Compress(nil, Codec(id), 0, nil)
		wantError(t, err, ErrCodec, "")
		if s := b.Codec().String(); s != fmt.Sprintf("unknown(%d)", id) {
			t.Error(s)
		}
	}
}

func TestCodecNames(t *testing.T) {
	for _, c := range codecs {
		if got, err := ParseCodec(c.String()); err != nil || got != c {
			t.Errorf("%v is read as %v, %v", c, got, err)
		}
	}
	for _, s := range []string{"", "GZIP", "producer", "unknown(5)"} {
		if c, err := ParseCodec(s); err == nil {
			t.Errorf("%q is read as %v", s, c)
		}
	}
}

// A bound on the Reader holds for what its batch decompresses to.
func TestReaderMaxBytes(t *testing.T) {
	recs := values(strings.Repeat("x", 1000))
	for _, c := range codecs[1:] {
		b := build(t, recs, with(c))
		plain := len(build(t, recs)) - HeaderSize
		for limit, want := range map[int]error{plain: nil, plain - 1: ErrTooLarge, 1: ErrTooLarge} {
			r := Reader{MaxBytes: limit}
			if err := r.Reset(b); !errors.Is(err, want) || r.Next() != (want == nil) {
				t.Errorf("%v under %d bytes: %v; want %v", c, limit, err, want)
			}
			if err := Validate(b, limit); !errors.Is(err, want) {
				t.Errorf("%v, Validate under %d bytes: %v; want %v", c, limit, err, want)
			}
		}
	}
}
