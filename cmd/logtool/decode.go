package main

import (
	_ "embed"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/tidemark-log/tidemark/internal/checkpoint"
	"github.com/tidemark-log/tidemark/record"
)

// schemasText names the fields of the records in Kafka's internal topics. Its
// head says how; interop makes it from Kafka's jars.
//
//go:embed schemas.txt
var schemasText string

// The topics whose records can be taken apart, as --decode names them.
var decodeTopics = map[string]string{
	"offsets":      "__consumer_offsets",
	"transactions": "__transaction_state",
	"share-state":  "__share_group_state",
	"metadata":     "__cluster_metadata",
	"remote":       "__remote_log_metadata",
}

// These stand for the control records of any topic, and for what consumers put
// into the members of their group.
const controlTopic, consumerTopic = "control", "consumer"

// versions is a range of message versions, empty if from is above to.
type versions struct{ from, to int16 }

func (v versions) has(n int16) bool { return v.from <= n && n <= v.to }

// A fieldSchema is one field of a message.
type fieldSchema struct {
	name                  string
	typ                   string // struct for one that has fields itself
	array                 bool
	present, null, tagged versions
	tag                   uint64
	fields                []*fieldSchema
	quoted                string   // the name as a JSON key with its colon
	values                []string // what small numbers mean, where names are shown for them
}

// A messageSchema is a key, a value, or a record that is both.
type messageSchema struct {
	number          int16
	name            string
	valid, flexible versions
	fields          []*fieldSchema
}

// A topicSchema has the messages of a topic by their number. Coordinators
// keep pairs of key and value, the metadata log only values.
type topicSchema struct{ keys, values, records map[int16]*messageSchema }

var schemas = sync.OnceValue(func() map[string]*topicSchema {
	all, err := parseSchemas(schemasText)
	if err != nil {
		panic(err) // part of the program
	}
	for _, f := range all["__transaction_state"].values[0].fields {
		if f.name == "transactionStatus" {
			f.values = []string{"Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort", "Dead", "PrepareEpochFence"}
		}
	}
	return all
})

func parseSchemas(text string) (map[string]*topicSchema, error) {
	all := map[string]*topicSchema{}
	var topic *topicSchema
	var into []*[]*fieldSchema // by depth
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		w := strings.Fields(line)
		depth := len(line) - len(strings.TrimLeft(line, "\t"))
		bad := fmt.Errorf("parse schemas: line %q", line)
		switch {
		case len(w) == 0 || w[0][0] == '#':
		case depth > 0:
			if depth > len(into) || len(w) < 3 {
				return nil, bad
			}
			f := &fieldSchema{name: w[0], present: parseVersions(w[2]), null: versions{1, 0}, tagged: versions{1, 0}}
			f.typ, f.array = strings.CutPrefix(w[1], "[]")
			f.quoted = string(appendJSON(nil, f.name)) + ":"
			for w = w[3:]; len(w) > 1; {
				switch {
				case w[0] == "null":
					f.null, w = parseVersions(w[1]), w[2:]
				case w[0] == "tag" && len(w) > 2:
					n, err := strconv.ParseUint(w[1], 10, 32)
					if err != nil {
						return nil, bad
					}
					f.tag, f.tagged, w = n, parseVersions(w[2]), w[3:]
				default:
					return nil, bad
				}
			}
			*into[depth-1] = append(*into[depth-1], f)
			into = append(into[:depth], &f.fields)
		case w[0] == "topic" && len(w) == 2:
			topic = &topicSchema{map[int16]*messageSchema{}, map[int16]*messageSchema{}, map[int16]*messageSchema{}}
			all[w[1]] = topic
		case topic != nil && len(w) == 6:
			n, err := strconv.ParseInt(w[1], 10, 16)
			by := map[string]map[int16]*messageSchema{"key": topic.keys, "value": topic.values, "record": topic.records}[w[0]]
			if by == nil || err != nil {
				return nil, bad
			}
			m := &messageSchema{number: int16(n), name: w[2], valid: parseVersions(w[3]), flexible: parseVersions(w[5])}
			by[m.number] = m
			into = []*[]*fieldSchema{&m.fields}
		default:
			return nil, bad
		}
	}
	return all, nil
}

// parseVersions reads "2", "0-3", "1+" or "none".
func parseVersions(s string) versions {
	from, to, ok := strings.Cut(s, "-")
	if !ok {
		from, ok = strings.CutSuffix(s, "+")
		if to = from; ok {
			to = strconv.Itoa(math.MaxInt16)
		}
	}
	a, err := strconv.ParseInt(from, 10, 16)
	b, err2 := strconv.ParseInt(to, 10, 16)
	if err != nil || err2 != nil {
		return versions{1, 0}
	}
	return versions{int16(a), int16(b)}
}

// decoder turns the records of one internal topic into JSON.
type decoder struct {
	topic *topicSchema
	b     []byte // the object being built
	rest  []byte // what is left to read
	err   error
	flex  bool
	v     int16

	consumer bool // the group at hand is one of consumers
}

// decoderFor returns the decoder for a log file, nil if its records have no
// known form. how is a name of decodeTopics, or auto: the folder tells.
func decoderFor(how, path string, kind fileKind) *decoder {
	topic := decodeTopics[how]
	if how == "auto" {
		dir := path
		if abs, err := filepath.Abs(path); err == nil {
			dir = abs
		}
		d, err := checkpoint.ParsePartitionDir(filepath.Base(filepath.Dir(dir)))
		if err == nil {
			topic = d.Topic
		}
		if kind == kindMetadataSnapshot {
			topic = "__cluster_metadata"
		}
	}
	if t := schemas()[topic]; t != nil && topic != controlTopic && topic != consumerTopic {
		return &decoder{topic: t}
	}
	return nil
}

// record returns a JSON object that says what a record holds, valid until the
// next call, and whether it says everything. What is unknown or malformed is
// named in it; it is no fault of the log.
//
//	{"type":2,"name":"GroupMetadata","key":{…},"version":3,"value":{…}}
func (d *decoder) record(key, value []byte) (object []byte, whole bool) {
	d.b, d.err, d.consumer = append(d.b[:0], '{'), nil, false
	if len(d.topic.records) > 0 {
		d.metadata(value)
	} else {
		d.pair(key, value)
	}
	return d.close()
}

// control is record for a control record whose type is known.
func (d *decoder) control(typ record.ControlType, value []byte) (object []byte, whole bool) {
	d.b, d.err, d.rest = append(d.b[:0], '{'), nil, value
	m := schemas()[controlTopic].records[int16(typ)]
	if m == nil {
		return nil, false
	}
	d.head(m.number, m)
	// The version is the message's own first field.
	if len(value) < 2 {
		d.fail("version", "%d bytes left, want 2", len(value))
	} else {
		d.body("value", m, int16(binary.BigEndian.Uint16(value)))
	}
	return d.close()
}

func (d *decoder) close() (object []byte, whole bool) {
	if d.err != nil {
		if len(d.b) > 1 {
			d.b = append(d.b, ',')
		}
		d.b = appendJSON(append(d.b, `"error":`...), d.err.Error())
	}
	d.b = append(d.b, '}')
	return d.b, d.err == nil
}

// pair reads key and value of a coordinator's record: the key begins with the
// type, the value with its version, two bytes each.
func (d *decoder) pair(key, value []byte) {
	if len(key) < 2 {
		d.fail("type", "a key of %d bytes, want at least 2", len(key))
		return
	}
	typ := int16(binary.BigEndian.Uint16(key))
	m := d.topic.keys[typ]
	d.head(typ, m)
	if m == nil {
		d.fail("type", "%d, which is not known", typ)
		return
	}
	d.rest = key[2:]
	d.body("key", m, 0)
	if d.err != nil {
		return
	}
	if value == nil {
		d.b = append(d.b, `,"value":null`...)
		return
	}
	if len(value) < 2 {
		d.fail("version", "a value of %d bytes, want at least 2", len(value))
		return
	}
	version := int16(binary.BigEndian.Uint16(value))
	d.b = strconv.AppendInt(append(d.b, `,"version":`...), int64(version), 10)
	if m = d.topic.values[typ]; m == nil {
		d.fail("type", "%d has no value that is known", typ)
		return
	}
	d.rest = value[2:]
	d.body("value", m, version)
}

// metadata reads a value that begins with the version of its frame, its type
// and its version, as unsigned varints.
func (d *decoder) metadata(value []byte) {
	d.rest = value
	frame, typ, version := d.uvarint("frame version"), d.uvarint("type"), d.uvarint("version")
	if d.err == nil && frame != 1 {
		d.fail("frame version", "%d, want 1", frame)
	}
	if d.err != nil {
		return
	}
	var m *messageSchema
	if typ <= math.MaxInt16 {
		m = d.topic.records[int16(typ)]
	}
	d.head(int16(min(typ, math.MaxInt16)), m)
	d.b = strconv.AppendUint(append(d.b, `,"version":`...), version, 10)
	if m == nil {
		d.fail("type", "%d, which is not known", typ)
		return
	}
	d.body("value", m, int16(min(version, math.MaxInt16)))
}

// head writes what kind of record it is.
func (d *decoder) head(typ int16, m *messageSchema) {
	d.b = strconv.AppendInt(append(d.b, `"type":`...), int64(typ), 10)
	if m != nil {
		d.b = appendJSON(append(d.b, `,"name":`...), m.name)
	}
}

// body writes the fields of a message under a key. If they cannot be read it
// writes nothing but the error.
func (d *decoder) body(name string, m *messageSchema, version int16) {
	if !m.valid.has(version) {
		d.fail("version", "%d, want %d to %d", version, m.valid.from, m.valid.to)
		return
	}
	start := len(d.b)
	d.v, d.flex = version, m.flexible.has(version)
	d.b = appendJSON(append(d.b, ','), name)
	d.b = append(d.b, ':')
	d.fields(m.fields)
	if d.err == nil && len(d.rest) > 0 {
		d.fail(name, "%d bytes left behind the last field, want 0", len(d.rest))
	}
	if d.err != nil {
		d.b = d.b[:start]
	}
}

func (d *decoder) fail(what, format string, args ...any) {
	if d.err == nil {
		d.err = fmt.Errorf("read "+what+": "+format, args...)
	}
}

// fields reads the fields of a message or struct into an object.
func (d *decoder) fields(list []*fieldSchema) {
	d.b = append(d.b, '{')
	empty := true
	key := func(quoted string) {
		if !empty {
			d.b = append(d.b, ',')
		}
		d.b, empty = append(d.b, quoted...), false
	}
	for _, f := range list {
		if d.err != nil {
			return
		}
		if f.present.has(d.v) && !f.tagged.has(d.v) {
			key(f.quoted)
			d.field(f)
		}
	}
	if d.flex && d.err == nil {
		for n := d.uvarint("number of tagged fields"); n > 0 && d.err == nil; n-- {
			tag, size := d.uvarint("tag"), d.uvarint("size of a tagged field")
			p := d.take("tagged field", size)
			if d.err != nil {
				return
			}
			i := slices.IndexFunc(list, func(f *fieldSchema) bool { return f.tagged.has(d.v) && f.tag == tag })
			if i < 0 {
				key(fmt.Sprintf(`"tag%d":`, tag))
				d.b = appendBase64(d.b, p)
				continue
			}
			key(list[i].quoted)
			after := d.rest
			d.rest = p
			d.field(list[i])
			if d.err == nil && len(d.rest) > 0 {
				d.fail(list[i].name, "%d bytes left behind it, want 0", len(d.rest))
			}
			d.rest = after
		}
	}
	d.b = append(d.b, '}')
}

// field reads one field, or all elements of an array.
func (d *decoder) field(f *fieldSchema) {
	null := f.null.has(d.v)
	if !f.array {
		d.value(f, null)
		return
	}
	n, ok := d.length(f.name, 4)
	if !ok {
		if !null {
			d.fail(f.name, "null, want an array")
		}
		d.b = append(d.b, "null"...)
		return
	}
	// Every element takes a byte at least.
	if n > uint64(len(d.rest)) {
		d.fail(f.name, "%d elements in %d bytes", n, len(d.rest))
	}
	d.b = append(d.b, '[')
	for i := uint64(0); i < n && d.err == nil; i++ {
		if i > 0 {
			d.b = append(d.b, ',')
		}
		d.value(f, false)
	}
	d.b = append(d.b, ']')
}

// fixedSizes are the bytes of types that always have as many.
var fixedSizes = map[string]uint64{"bool": 1, "int8": 1, "int16": 2, "uint16": 2, "int32": 4, "uint32": 4, "int64": 8, "float64": 8, "uuid": 16}

func (d *decoder) value(f *fieldSchema, null bool) {
	if size, ok := fixedSizes[f.typ]; ok {
		p := d.take(f.name, size)
		if d.err != nil {
			return
		}
		switch f.typ {
		case "bool":
			d.b = strconv.AppendBool(d.b, p[0] != 0)
		case "int8":
			if int(p[0]) < len(f.values) {
				d.b = appendJSON(d.b, f.values[p[0]])
				return
			}
			d.b = strconv.AppendInt(d.b, int64(int8(p[0])), 10)
		case "int16":
			d.b = strconv.AppendInt(d.b, int64(int16(binary.BigEndian.Uint16(p))), 10)
		case "uint16":
			d.b = strconv.AppendUint(d.b, uint64(binary.BigEndian.Uint16(p)), 10)
		case "int32":
			d.b = strconv.AppendInt(d.b, int64(int32(binary.BigEndian.Uint32(p))), 10)
		case "uint32":
			d.b = strconv.AppendUint(d.b, uint64(binary.BigEndian.Uint32(p)), 10)
		case "int64":
			d.b = strconv.AppendInt(d.b, int64(binary.BigEndian.Uint64(p)), 10)
		case "float64":
			x := math.Float64frombits(binary.BigEndian.Uint64(p))
			if math.IsNaN(x) || math.IsInf(x, 0) { // JSON has no number for it
				d.b = appendJSON(d.b, strconv.FormatFloat(x, 'g', -1, 64))
				return
			}
			d.b = strconv.AppendFloat(d.b, x, 'g', -1, 64)
		case "uuid":
			d.b = append(d.b, '"')
			d.b = base64.RawURLEncoding.AppendEncode(d.b, p)
			d.b = append(d.b, '"')
		}
		return
	}
	switch f.typ {
	case "struct":
		if null {
			p := d.take(f.name, 1)
			if d.err != nil {
				return
			}
			if int8(p[0]) < 0 {
				d.b = append(d.b, "null"...)
				return
			}
		}
		d.fields(f.fields)
	case "string", "bytes":
		prefix := 2
		if f.typ == "bytes" {
			prefix = 4
		}
		n, ok := d.length(f.name, prefix)
		if !ok {
			if !null {
				d.fail(f.name, "null, want %s", f.typ)
			}
			d.b = append(d.b, "null"...)
			return
		}
		p := d.take(f.name, n)
		if d.err != nil {
			return
		}
		if f.typ == "string" {
			d.b = appendJSON(d.b, p)
			if f.name == "protocolType" {
				d.consumer = string(p) == "consumer"
			}
		} else if !d.consumer || !d.protocol(f.name, p) {
			d.b = append(d.b, '"')
			d.b = base64.StdEncoding.AppendEncode(d.b, p)
			d.b = append(d.b, '"')
		}
	default:
		d.fail(f.name, "type %s, which is not known", f.typ)
	}
}

// protocol writes what a consumer put into its member, which begins with a
// version. It is false, and writes nothing, for other bytes.
func (d *decoder) protocol(name string, p []byte) bool {
	number, ok := map[string]int16{"subscription": 0, "assignment": 1}[name]
	if !ok || len(p) < 2 {
		return false
	}
	m := schemas()[consumerTopic].records[number]
	sub := decoder{b: d.b, rest: p[2:], v: int16(binary.BigEndian.Uint16(p))}
	if !m.valid.has(sub.v) {
		return false
	}
	if sub.fields(m.fields); sub.err != nil || len(sub.rest) > 0 {
		return false
	}
	d.b = sub.b
	return true
}

// length reads how long a string or array is; it is not ok for null. Where the
// version is not flexible it takes size bytes.
func (d *decoder) length(what string, size int) (n uint64, ok bool) {
	if d.flex {
		n := d.uvarint(what)
		return n - 1, n != 0
	}
	p := d.take(what, uint64(size))
	if d.err != nil {
		return 0, true
	}
	signed := int64(int16(binary.BigEndian.Uint16(p)))
	if size == 4 {
		signed = int64(int32(binary.BigEndian.Uint32(p)))
	}
	if signed < -1 {
		d.fail(what, "length %d, want at least -1", signed)
		return 0, true
	}
	return uint64(signed), signed >= 0
}

func (d *decoder) take(what string, n uint64) []byte {
	if d.err == nil && n > uint64(len(d.rest)) {
		d.fail(what, "%d bytes left, want %d", len(d.rest), n)
	}
	if d.err != nil {
		return nil
	}
	p := d.rest[:n:n]
	d.rest = d.rest[n:]
	return p
}

// uvarint reads an unsigned varint of up to 32 bits.
func (d *decoder) uvarint(what string) uint64 {
	n, size := binary.Uvarint(d.rest[:min(len(d.rest), 5)])
	if d.err == nil && (size <= 0 || n > math.MaxUint32) {
		d.fail(what, "no varint of up to 32 bits")
	}
	if d.err != nil {
		return 0
	}
	d.rest = d.rest[size:]
	return n
}
