package main

import (
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"unicode/utf8"

	"github.com/tidemark-log/tidemark/record"
)

// output writes lines, as JSON objects or as text of the same fields. Lines
// are built by appending to one buffer: the tool is as fast as that.
//
//	o.open("leaderEpoch")         {"type":"leaderEpoch","epoch":4,"startOffset":48}
//	o.int("epoch", 4)             leaderEpoch epoch=4 startOffset=48
//	o.int("startOffset", 48)
//	o.close()
type output struct {
	w    io.Writer
	json bool
	size int    // of b when it is written
	b    []byte // lines to be written, and the one being built
	err  error  // the first failed write; nothing is written after it
}

func newOutput(w io.Writer, asJSON bool) *output {
	return &output{w: w, json: asJSON, size: 64 << 10}
}

// closed reports that nobody reads the output any more: the work may stop,
// quietly.
func (o *output) closed() bool {
	return errors.Is(o.err, syscall.EPIPE) || errors.Is(o.err, io.ErrClosedPipe) || errors.Is(o.err, os.ErrClosed)
}

// flush writes all lines. It returns the first error of a write so far.
func (o *output) flush() error {
	if o.err == nil && len(o.b) > 0 {
		_, o.err = o.w.Write(o.b)
	}
	o.b = o.b[:0]
	return o.err
}

// write ends the line being built.
func (o *output) write() {
	o.b = append(o.b, '\n')
	if len(o.b) >= o.size {
		o.flush()
	}
}

func (o *output) open(typ string) {
	if o.json {
		o.b = append(append(append(o.b, `{"type":"`...), typ...), '"')
	} else {
		o.b = append(o.b, typ...)
	}
}

func (o *output) close() {
	if o.json {
		o.b = append(o.b, '}')
	}
	o.write()
}

func (o *output) key(k string) {
	if o.json {
		o.b = append(append(append(o.b, `,"`...), k...), `":`...)
	} else {
		o.b = append(append(append(o.b, ' '), k...), '=')
	}
}

func (o *output) int(k string, n int64) {
	o.key(k)
	o.b = strconv.AppendInt(o.b, n, 10)
}

func (o *output) bool(k string, v bool) {
	o.key(k)
	o.b = strconv.AppendBool(o.b, v)
}

func (o *output) str(k, s string) {
	o.key(k)
	switch {
	case o.json:
		o.b = appendJSON(o.b, s)
	case s != "" && strings.Trim(s, plainText) == "":
		o.b = append(o.b, s...)
	default:
		o.b = strconv.AppendQuote(o.b, s)
	}
}

// plainText is what text shows without quotes.
const plainText = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-/:+"

// file begins the lines of a file: in text with a line of its own, in JSON the
// lines name it themselves, through name.
func (o *output) file(path string, kind string, size int64) {
	if o.json {
		return
	}
	o.open("file")
	o.str("path", path)
	o.str("kind", kind)
	o.int("size", size)
	o.close()
}

// name puts the file into a line of JSON.
func (o *output) name(path string) {
	if o.json {
		o.str("file", path)
	}
}

// batch writes the line of a batch: b has a whole header, size is what the
// span takes. errText is why it is not valid, empty if it is.
func (o *output) batch(path string, pos, size int64, b record.Batch, errText string) {
	if o.json {
		d := o.b
		d = append(d, `{"type":"batch","file":`...)
		d = appendJSON(d, path)
		d = append(d, `,"position":`...)
		d = strconv.AppendInt(d, pos, 10)
		d = append(d, `,"size":`...)
		d = strconv.AppendInt(d, size, 10)
		d = append(d, `,"baseOffset":`...)
		d = strconv.AppendInt(d, b.BaseOffset(), 10)
		d = append(d, `,"lastOffset":`...)
		d = strconv.AppendInt(d, b.LastOffset(), 10)
		d = append(d, `,"count":`...)
		d = strconv.AppendInt(d, int64(b.Count()), 10)
		d = append(d, `,"leaderEpoch":`...)
		d = strconv.AppendInt(d, int64(b.LeaderEpoch()), 10)
		d = append(d, `,"crc":`...)
		d = strconv.AppendUint(d, uint64(b.CRC()), 10)
		d = append(d, `,"valid":`...)
		d = strconv.AppendBool(d, errText == "")
		d = append(d, `,"codec":"`...)
		d = append(d, b.Codec().String()...)
		d = append(d, `","timestampType":"`...)
		d = append(d, b.TimestampType().String()...)
		d = append(d, `","baseTimestamp":`...)
		d = strconv.AppendInt(d, b.BaseTimestamp(), 10)
		d = append(d, `,"maxTimestamp":`...)
		d = strconv.AppendInt(d, b.MaxTimestamp(), 10)
		d = append(d, `,"producerId":`...)
		d = strconv.AppendInt(d, b.ProducerID(), 10)
		d = append(d, `,"producerEpoch":`...)
		d = strconv.AppendInt(d, int64(b.ProducerEpoch()), 10)
		d = append(d, `,"baseSequence":`...)
		d = strconv.AppendInt(d, int64(b.BaseSequence()), 10)
		d = append(d, `,"isTransactional":`...)
		d = strconv.AppendBool(d, b.IsTransactional())
		d = append(d, `,"isControl":`...)
		d = strconv.AppendBool(d, b.IsControl())
		d = append(d, `,"magic":`...)
		d = strconv.AppendInt(d, int64(b.Magic()), 10)
		d = append(d, `,"lastSequence":`...)
		d = strconv.AppendInt(d, int64(b.LastSequence()), 10)
		d = append(d, `,"deleteHorizonMs":`...)
		if ms, ok := b.DeleteHorizon(); ok {
			d = strconv.AppendInt(d, ms, 10)
		} else {
			d = append(d, "null"...)
		}
		if errText != "" {
			d = append(d, `,"error":`...)
			d = appendJSON(d, errText)
		}
		o.b = append(d, '}')
		o.write()
		return
	}
	d := append(o.b, "batch position="...)
	d = strconv.AppendInt(d, pos, 10)
	d = append(d, " size="...)
	d = strconv.AppendInt(d, size, 10)
	d = append(d, " offsets="...)
	d = appendRange(d, b.BaseOffset(), b.LastOffset())
	d = append(d, " count="...)
	d = strconv.AppendInt(d, int64(b.Count()), 10)
	d = append(d, " leaderEpoch="...)
	d = strconv.AppendInt(d, int64(b.LeaderEpoch()), 10)
	d = append(d, " crc="...)
	d = strconv.AppendUint(d, uint64(b.CRC()), 10)
	d = append(d, " valid="...)
	d = strconv.AppendBool(d, errText == "")
	d = append(append(d, " codec="...), b.Codec().String()...)
	d = append(append(append(d, ' '), b.TimestampType().String()...), '=')
	if ms, ok := b.DeleteHorizon(); ok {
		d = strconv.AppendInt(d, b.MaxTimestamp(), 10)
		d = append(d, " deleteHorizonMs="...)
		d = strconv.AppendInt(d, ms, 10)
	} else {
		d = appendRange(d, b.BaseTimestamp(), b.MaxTimestamp())
	}
	if b.HasProducer() {
		d = append(d, " producer="...)
		d = strconv.AppendInt(d, b.ProducerID(), 10)
		d = append(d, '/')
		d = strconv.AppendInt(d, int64(b.ProducerEpoch()), 10)
		d = append(d, " sequence="...)
		d = appendRange(d, int64(b.BaseSequence()), int64(b.LastSequence()))
	}
	if b.IsTransactional() {
		d = append(d, " transactional"...)
	}
	if b.IsControl() {
		d = append(d, " control"...)
	}
	if errText != "" {
		d = strconv.AppendQuote(append(d, " error="...), errText)
	}
	o.b = d
	o.write()
}

// legacy writes the line of a magic 0 or 1 message, under the same names as a
// batch with absent values where it has no such field. base and count are
// those of the messages inside a compressed one.
func (o *output) legacy(path string, pos int64, m *record.LegacyMessage, base, count int64, errText string) {
	if !o.json {
		o.open("message")
		o.int("position", pos)
		o.int("size", int64(m.Size))
		o.key("offsets")
		o.b = appendRange(o.b, base, m.Offset)
		o.int("count", count)
		o.int("magic", int64(m.Magic))
		o.int("crc", int64(m.CRC))
		o.bool("valid", errText == "")
		o.str("codec", m.Codec.String())
		o.int(legacyTimestampType(m), m.Timestamp)
	} else {
		o.open("batch")
		o.str("file", path)
		o.int("position", pos)
		o.int("size", int64(m.Size))
		o.int("baseOffset", base)
		o.int("lastOffset", m.Offset)
		o.int("count", count)
		o.int("leaderEpoch", record.NoLeaderEpoch)
		o.int("crc", int64(m.CRC))
		o.bool("valid", errText == "")
		o.str("codec", m.Codec.String())
		o.str("timestampType", legacyTimestampType(m))
		o.int("baseTimestamp", m.Timestamp)
		o.int("maxTimestamp", m.Timestamp)
		o.int("producerId", record.NoProducer)
		o.int("producerEpoch", record.NoProducerEpoch)
		o.int("baseSequence", record.NoSequence)
		o.bool("isTransactional", false)
		o.bool("isControl", false)
		o.int("magic", int64(m.Magic))
		o.int("lastSequence", record.NoSequence)
		o.key("deleteHorizonMs")
		o.b = append(o.b, "null"...)
	}
	if errText != "" {
		o.str("error", errText)
	}
	o.close()
}

// legacyTimestampType is the label of a message's time: magic 0 has none.
func legacyTimestampType(m *record.LegacyMessage) string {
	if m.Magic == 0 {
		return "NoTimestampType"
	}
	return m.TimestampType.String()
}

// decoded is a record of an internal topic taken apart, a JSON object; empty if
// it is none. It is not whole where something in it is unknown or malformed.
type decoded struct {
	object []byte
	whole  bool
}

// record writes the line of a record; label is the timestamp type. control is
// what a record of a control batch says, nil for any other.
func (o *output) record(r *record.Record, label string, control *record.Control, dec decoded) {
	d := o.b
	if o.json {
		d = append(d, `{"type":"record","offset":`...)
		d = strconv.AppendInt(d, r.Offset, 10)
		d = append(d, `,"timestamp":`...)
		d = strconv.AppendInt(d, r.Timestamp, 10)
		d = append(d, `,"sequence":`...)
		d = strconv.AppendInt(d, int64(r.Sequence), 10)
		d = append(d, `,"key":`...)
		d = appendBase64(d, r.Key)
		d = append(d, `,"value":`...)
		d = appendBase64(d, r.Value)
		d = append(d, `,"headers":[`...)
		for i, h := range r.Headers {
			if i > 0 {
				d = append(d, ',')
			}
			d = appendJSON(append(d, '['), h.Key)
			d = appendBase64(append(d, ','), h.Value)
			d = append(d, ']')
		}
		d = append(d, ']')
		if control != nil {
			d = append(append(append(d, `,"control":"`...), control.Type.String()...), '"')
			if control.CoordinatorEpoch >= 0 {
				d = append(d, `,"coordinatorEpoch":`...)
				d = strconv.AppendInt(d, int64(control.CoordinatorEpoch), 10)
			}
		}
		if dec.object != nil {
			d = append(append(d, `,"decoded":`...), dec.object...)
		}
		d = append(d, '}')
	} else {
		d = append(d, "  record offset="...)
		d = strconv.AppendInt(d, r.Offset, 10)
		d = append(append(append(d, ' '), label...), '=')
		d = strconv.AppendInt(d, r.Timestamp, 10)
		if r.Sequence >= 0 {
			d = append(d, " sequence="...)
			d = strconv.AppendInt(d, int64(r.Sequence), 10)
		}
		if !dec.whole {
			d = appendQuoted(append(d, " key="...), r.Key)
			d = appendQuoted(append(d, " value="...), r.Value)
		}
		if len(r.Headers) > 0 {
			d = append(d, " headers=["...)
			for i, h := range r.Headers {
				if i > 0 {
					d = append(d, ',')
				}
				d = appendQuotedText(d, h.Key)
				d = appendQuoted(append(d, '='), h.Value)
			}
			d = append(d, ']')
		}
		if control != nil {
			d = append(append(d, " control="...), control.Type.String()...)
			if control.CoordinatorEpoch >= 0 {
				d = append(d, " coordinatorEpoch="...)
				d = strconv.AppendInt(d, int64(control.CoordinatorEpoch), 10)
			}
		}
		if dec.object != nil {
			d = append(append(d, " decoded="...), dec.object...)
		}
	}
	o.b = d
	o.write()
}

// appendRange appends "7" or "7..9".
func appendRange(d []byte, first, last int64) []byte {
	d = strconv.AppendInt(d, first, 10)
	if last != first {
		d = append(d, ".."...)
		d = strconv.AppendInt(d, last, 10)
	}
	return d
}

// appendBase64 appends a JSON string, or null for nil.
func appendBase64(d, p []byte) []byte {
	if p == nil {
		return append(d, "null"...)
	}
	d = append(d, '"')
	n := base64.StdEncoding.EncodedLen(len(p))
	d = slices.Grow(d, n)
	out := d[len(d) : len(d)+n]
	// Six bytes are eight digits: four times as fast as the standard library,
	// and most of what a dump does.
	for len(p) >= 8 {
		v := binary.BigEndian.Uint64(p)
		binary.BigEndian.PutUint64(out, uint64(base64Pairs[v>>52])<<48|uint64(base64Pairs[v>>40&0xfff])<<32|
			uint64(base64Pairs[v>>28&0xfff])<<16|uint64(base64Pairs[v>>16&0xfff]))
		p, out = p[6:], out[8:]
	}
	base64.StdEncoding.Encode(out, p)
	return append(d[:len(d)+n], '"')
}

// base64Pairs are the two digits that stand for each 12 bits.
var base64Pairs = func() (pairs [4096]uint16) {
	const digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
	for i := range pairs {
		pairs[i] = uint16(digits[i>>6])<<8 | uint16(digits[i&63])
	}
	return pairs
}()

// appendQuoted appends bytes as a Go string literal, which gives every byte
// sequence a form of its own, or null for nil.
func appendQuoted(d, p []byte) []byte {
	if p == nil {
		return append(d, "null"...)
	}
	return appendQuotedText(d, p)
}

func appendQuotedText[T string | []byte](d []byte, p T) []byte {
	i := 0
	for i < len(p) && p[i] >= ' ' && p[i] < 0x7f && p[i] != '"' && p[i] != '\\' {
		i++
	}
	d = append(append(d, '"'), p[:i]...)
	if i == len(p) {
		return append(d, '"')
	}
	start := len(d)
	d = strconv.AppendQuote(d, string(p[i:]))
	copy(d[start:], d[start+1:]) // the opening quote is there already
	return d[:len(d)-1]
}

const hexDigits = "0123456789abcdef"

// appendJSON appends a JSON string. Bytes that are not UTF-8 become U+FFFD:
// JSON has no other way.
func appendJSON[T string | []byte](d []byte, s T) []byte {
	d = append(d, '"')
	start := 0
	for i := 0; i < len(s); {
		c := s[i]
		if c >= ' ' && c < utf8.RuneSelf && c != '"' && c != '\\' {
			i++
			continue
		}
		size := 1
		if c >= utf8.RuneSelf {
			var r rune
			r, size = utf8.DecodeRuneInString(string(s[i:min(len(s), i+utf8.UTFMax)]))
			if r != utf8.RuneError || size > 1 {
				i += size
				continue
			}
		}
		d = append(d, s[start:i]...)
		switch {
		case c >= utf8.RuneSelf:
			d = append(d, "\uFFFD"...)
		case c == '"' || c == '\\':
			d = append(d, '\\', c)
		case c == '\n':
			d = append(d, `\n`...)
		case c == '\r':
			d = append(d, `\r`...)
		case c == '\t':
			d = append(d, `\t`...)
		default:
			d = append(d, '\\', 'u', '0', '0', hexDigits[c>>4], hexDigits[c&15])
		}
		i += size
		start = i
	}
	return append(append(d, s[start:]...), '"')
}

// A finding is one thing that verify has to say: a fault, which makes the exit
// code 1, or a note, which does not.
type finding struct {
	note   bool
	file   string
	pos    int64  // byte in the file; none if negative
	offset int64  // record offset; none if negative
	check  string // which rule
	found  string
	wanted string // empty where a note has nothing to compare with
}

func (o *output) finding(f finding) {
	severity := "fault"
	if f.note {
		severity = "note"
	}
	if o.json {
		o.open("finding")
		o.str("severity", severity)
		o.str("file", f.file)
		for _, n := range []struct {
			key string
			val int64
		}{{"position", f.pos}, {"offset", f.offset}} {
			if n.val >= 0 {
				o.int(n.key, n.val)
			} else {
				o.key(n.key)
				o.b = append(o.b, "null"...)
			}
		}
		o.str("check", f.check)
		o.str("found", f.found)
		o.str("wanted", f.wanted)
		o.close()
		return
	}
	o.b = fmt.Appendf(o.b, "%s %s", severity, f.file)
	if f.pos >= 0 {
		o.b = fmt.Appendf(o.b, ": position %d", f.pos)
	}
	if f.offset >= 0 {
		o.b = fmt.Appendf(o.b, ": offset %d", f.offset)
	}
	o.b = fmt.Appendf(o.b, ": %s: found %s", f.check, f.found)
	if f.wanted != "" {
		o.b = fmt.Appendf(o.b, ", want %s", f.wanted)
	}
	o.write()
}

// describe splits an error of package record into found and wanted.
func describe(e *record.Error) (found, wanted string) {
	number := func(n int64) string {
		if e.Kind == record.ErrChecksum {
			return fmt.Sprintf("%08x", uint32(n))
		}
		return strconv.FormatInt(n, 10)
	}
	found = e.What
	if e.Record >= 0 {
		found = fmt.Sprintf("record %d: %s", e.Record, found)
	}
	if e.Rel != "" {
		found += " " + number(e.Found)
		if rel, ok := strings.CutPrefix(e.Rel, "want"); ok {
			wanted = strings.TrimLeft(rel+" "+number(e.Want), " ")
		}
	}
	if e.Plain {
		found += fmt.Sprintf(" at byte %d of the decompressed records", e.Pos)
	}
	if e.Err != nil {
		found += ": " + e.Err.Error()
	}
	return found, wanted
}
