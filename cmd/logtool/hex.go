package main

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"strconv"

	"github.com/tidemark-log/tidemark/record"
)

// annotator writes a batch field by field: position, bytes, name and value.
type annotator struct {
	o     *output
	path  string
	from  int64 // position of the bytes that places count from
	plain bool  // they are the decompressed records, and positions count in them
}

// field writes one field; at is its place. Without a value the bytes are shown
// as text too.
func (a *annotator) field(at int, p []byte, name, value string) {
	o := a.o
	if o.json {
		o.open("field")
		o.name(a.path)
		o.int("position", a.from+int64(at))
		o.int("size", int64(len(p)))
		o.bool("decompressed", a.plain)
		o.str("name", name)
		o.key("value")
		if value == "" {
			o.b = append(o.b, "null"...)
		} else {
			o.b = appendJSON(o.b, value)
		}
		o.key("bytes")
		o.b = append(hex.AppendEncode(append(o.b, '"'), p), '"')
		o.close()
		return
	}
	const row = 16
	for i := 0; i == 0 || i < len(p); i += row {
		part := p[i:min(len(p), i+row)]
		mark := ' '
		if a.plain {
			mark = '+'
		}
		o.b = fmt.Appendf(o.b, "%c%9d  %-32x  %s", mark, a.from+int64(at+i), part, name)
		switch {
		case value != "" && i == 0:
			o.b = append(append(o.b, "  "...), value...)
		case value == "" && len(part) > 0:
			o.b = appendQuoted(append(o.b, "  "...), part)
		}
		o.write()
	}
}

// annotate writes the fields of a batch and of its records, as far as they can
// be told apart. b has a whole header.
func (d *dumper) annotate(path string, pos int64, b record.Batch) {
	a := &annotator{o: d.out, path: path, from: pos}
	at := 0
	field := func(size int, name, value string) {
		a.field(at, b[at:at+size], name, value)
		at += size
	}
	number := func(n int64) string { return strconv.FormatInt(n, 10) }
	crc := fmt.Sprintf("%d", b.CRC())
	if c := b.ComputeCRC(); c != b.CRC() {
		crc += fmt.Sprintf(", of the bytes there %d", c)
	}
	attributes := b.Codec().String() + " " + b.TimestampType().String()
	for _, x := range []struct {
		is   bool
		name string
	}{{b.IsTransactional(), " transactional"}, {b.IsControl(), " control"}, {b.HasDeleteHorizon(), " deleteHorizon"}} {
		if x.is {
			attributes += x.name
		}
	}
	field(8, "baseOffset", number(b.BaseOffset()))
	field(4, "length", number(int64(b.Size()-12)))
	field(4, "leaderEpoch", number(int64(b.LeaderEpoch())))
	field(1, "magic", number(int64(b.Magic())))
	field(4, "crc", crc)
	field(2, "attributes", attributes)
	field(4, "lastOffsetDelta", fmt.Sprintf("%d, offset %d", b.LastOffsetDelta(), b.LastOffset()))
	first := "baseTimestamp"
	if b.HasDeleteHorizon() {
		first = "deleteHorizonMs"
	}
	field(8, first, fullTime(b.BaseTimestamp()))
	field(8, "maxTimestamp", fullTime(b.MaxTimestamp()))
	field(8, "producerId", number(b.ProducerID()))
	field(2, "producerEpoch", number(int64(b.ProducerEpoch())))
	field(4, "baseSequence", number(int64(b.BaseSequence())))
	field(4, "count", number(int64(b.Count())))

	err := d.reader.Reset(b)
	plain := d.reader.Plain()
	if b.Codec() != record.None {
		for ; at < len(b) && d.out.err == nil; at += min(16, len(b)-at) {
			a.field(at, b[at:min(len(b), at+16)], b.Codec().String(), "compressed")
		}
		a = &annotator{o: d.out, path: path, plain: true}
		at = 0
	}
	if err != nil {
		r := reasonOf(err)
		d.fault(path, pos+max(r.at, 0), r)
		return
	}
	if !a.plain {
		a.from += record.HeaderSize
	}
	if !a.records(plain, b) {
		d.damaged = true
	}
}

// records writes the fields of records. It is false if there are bytes that
// are none.
func (a *annotator) records(p []byte, b record.Batch) bool {
	at, nr := 0, 0
	// Each of these reads one field and is false where its bytes are no such.
	bad := func(name, why string) bool {
		a.field(at, p[at:], name, why)
		at = len(p)
		return false
	}
	varint := func(name string, n *int64, explain func(int64) string) bool {
		v, size := binary.Varint(p[at:])
		if size <= 0 {
			return bad(name, "no varint")
		}
		*n = v
		text := strconv.FormatInt(v, 10)
		if explain != nil {
			text += explain(v)
		}
		a.field(at, p[at:at+size], name, text)
		at += size
		return true
	}
	bytes := func(name string, null bool) bool {
		var n int64
		if !varint(name+" length", &n, func(n int64) string {
			if n == -1 && null {
				return ", null"
			}
			return ""
		}) {
			return false
		}
		if n > int64(len(p)-at) || n < -1 || n < 0 && !null {
			return bad(name, fmt.Sprintf("%d bytes left", len(p)-at))
		}
		if n > 0 {
			a.field(at, p[at:at+int(n)], name, "")
			at += int(n)
		}
		return true
	}
	one := func() bool {
		prefix := fmt.Sprintf("record %d ", nr)
		var length, n, headers int64
		if !varint(prefix+"length", &length, nil) {
			return false
		}
		if length < 0 || length > int64(len(p)-at) {
			return bad(prefix+"fields", fmt.Sprintf("%d bytes left", len(p)-at))
		}
		end := int64(at) + length
		if at == len(p) {
			return bad(prefix+"attributes", "0 bytes left")
		}
		a.field(at, p[at:at+1], prefix+"attributes", strconv.Itoa(int(p[at])))
		at++
		ok := varint(prefix+"timestampDelta", &n, func(n int64) string {
			if b.HasDeleteHorizon() || b.TimestampType() != 0 {
				return ""
			}
			return ", " + fullTime(b.BaseTimestamp()+n)
		}) && varint(prefix+"offsetDelta", &n, func(n int64) string { return fmt.Sprintf(", offset %d", b.BaseOffset()+n) }) &&
			bytes(prefix+"key", true) && bytes(prefix+"value", true) && varint(prefix+"headers", &headers, nil)
		for i := int64(0); ok && i < headers; i++ {
			ok = bytes(fmt.Sprintf("%sheader %d key", prefix, i), false) && bytes(fmt.Sprintf("%sheader %d value", prefix, i), true)
		}
		if ok && int64(at) != end {
			return bad(prefix+"end", fmt.Sprintf("%d bytes behind the length field, which says %d", int64(at)-end+length, length))
		}
		return ok
	}
	for ; nr < int(b.Count()) && at < len(p) && a.o.err == nil; nr++ {
		if !one() {
			return false
		}
	}
	if at < len(p) && a.o.err == nil {
		return bad("rest", "behind the last record")
	}
	return true
}

// fullTime is a time as the number it is and for people.
func fullTime(ms int64) string {
	s := strconv.FormatInt(ms, 10)
	if t := humanTime(ms); t != "-" {
		s += ", " + t
	}
	return s
}
