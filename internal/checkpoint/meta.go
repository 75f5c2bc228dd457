package checkpoint

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// UUID is a topic id or directory id. Its text is 22 characters of URL-safe
// base64 without padding. The zero value stands for no id.
type UUID [16]byte

func (u UUID) String() string { return base64.RawURLEncoding.EncodeToString(u[:]) }

// ParseUUID reads the 22-character form, canonical only: what it accepts,
// String gives back.
func ParseUUID(s string) (UUID, error) {
	var u UUID
	if len(s) != 22 {
		return u, fmt.Errorf("parse uuid %.40q: %d characters, want 22", s, len(s))
	}
	if _, err := base64.RawURLEncoding.Strict().Decode(u[:], []byte(s)); err != nil {
		return UUID{}, fmt.Errorf("parse uuid %q: %w", s, err)
	}
	return u, nil
}

// Meta is a meta.properties file: whose directory this is.
type Meta struct {
	Version     int    // 0 or 1
	ClusterID   string // optional in version 0
	NodeID      int32  // broker.id in version 0
	DirectoryID string // UUID text; version 1 only, empty if absent
}

// ParseMeta reads meta.properties in version 0 or 1 (log-format §1.4). Keys it
// does not know are ignored, as Kafka ignores them.
func ParseMeta(b []byte) (Meta, error) {
	var m Meta
	p, err := parseProperties(b)
	if err != nil {
		return m, err
	}
	get := func(key string) (property, error) {
		v, ok := p[key]
		if !ok {
			return v, &ParseError{1 + bytes.Count(b, []byte{'\n'}), "the end", "a line " + key + "="}
		}
		return v, nil
	}
	v, err := get("version")
	if err != nil {
		return m, err
	}
	if v.value != "0" && v.value != "1" {
		return m, &ParseError{v.line, fmt.Sprintf("version %.80q", v.value), "version 0 or 1"}
	}
	m.Version = int(v.value[0] - '0')
	nodeKey := []string{"broker.id", "node.id"}[m.Version]
	if v, err = get(nodeKey); err != nil {
		return m, err
	}
	id, err := strconv.ParseInt(v.value, 10, 32)
	if err != nil || id < 0 {
		return m, &ParseError{v.line, fmt.Sprintf("%s %.80q", nodeKey, v.value), "a number that is not negative"}
	}
	m.NodeID = int32(id)
	if v, err = get("cluster.id"); err == nil {
		m.ClusterID = v.value
	} else if m.Version == 1 {
		return m, err
	}
	// A missing directory.id is made up by Kafka, a malformed one is not.
	if v, ok := p["directory.id"]; ok && m.Version == 1 {
		if _, err := ParseUUID(v.value); err != nil {
			return m, &ParseError{v.line, fmt.Sprintf("directory.id %.80q", v.value), "a uuid of 22 characters"}
		}
		m.DirectoryID = v.value
	}
	return m, nil
}

// AppendMeta appends the file's bytes to dst, with written as its date line.
func AppendMeta(dst []byte, m Meta, written time.Time) []byte {
	dst = append(dst, "#\n#"...)
	dst = written.AppendFormat(dst, "Mon Jan 02 15:04:05 MST 2006")
	dst = append(dst, '\n')
	put := func(key, value string) {
		dst = append(append(dst, key...), '=')
		dst = append(appendEscaped(dst, value), '\n')
	}
	id := strconv.Itoa(int(m.NodeID))
	if m.Version == 0 {
		put("broker.id", id)
	} else {
		put("node.id", id)
	}
	if m.DirectoryID != "" {
		put("directory.id", m.DirectoryID)
	}
	put("version", strconv.Itoa(m.Version))
	if m.Version == 1 || m.ClusterID != "" {
		put("cluster.id", m.ClusterID)
	}
	return dst
}

type property struct {
	value string
	line  int
}

// parseProperties reads a Java properties file: ISO 8859-1, comments with # or
// !, a key ended by =, : or white space, backslash escapes, and lines that go
// on after a backslash. Of a key that stands twice the last counts.
func parseProperties(b []byte) (map[string]property, error) {
	props := map[string]property{}
	for line := 1; len(b) > 0; line++ {
		start := line
		var l []byte
		for first := true; ; first = false {
			var part []byte
			part, b, _ = bytes.Cut(b, []byte{'\n'})
			part = bytes.TrimSuffix(part, []byte{'\r'})
			part = bytes.TrimLeft(part, " \t\f")
			if first && len(part) > 0 && (part[0] == '#' || part[0] == '!') {
				break // a comment does not go on
			}
			slashes := len(part) - len(bytes.TrimRight(part, `\`))
			if slashes%2 == 0 {
				l = append(l, part...)
				break
			}
			l = append(l, part[:len(part)-1]...)
			if len(b) == 0 {
				break
			}
			line++
		}
		if len(l) == 0 {
			continue
		}
		end := 0
		for end < len(l) && !bytes.ContainsRune([]byte("=: \t\f"), rune(l[end])) {
			if l[end] == '\\' {
				end++
			}
			end++
		}
		end = min(end, len(l))
		rest := bytes.TrimLeft(l[end:], " \t\f")
		if len(rest) > 0 && (rest[0] == '=' || rest[0] == ':') {
			rest = bytes.TrimLeft(rest[1:], " \t\f")
		}
		key, ok := unescape(l[:end])
		value, ok2 := unescape(rest)
		if !ok || !ok2 {
			return nil, &ParseError{start, quote(l), `four hexadecimal digits after \u`}
		}
		props[key] = property{value, start}
	}
	return props, nil
}

// unescape undoes the backslash escapes. ok is false for a malformed \u, the
// one thing Java refuses.
func unescape(b []byte) (s string, ok bool) {
	var sb strings.Builder
	for i := 0; i < len(b); i++ {
		c := b[i]
		if c != '\\' {
			sb.WriteRune(rune(c)) // ISO 8859-1
			continue
		}
		if i++; i == len(b) {
			break
		}
		switch c = b[i]; c {
		case 't':
			sb.WriteByte('\t')
		case 'n':
			sb.WriteByte('\n')
		case 'r':
			sb.WriteByte('\r')
		case 'f':
			sb.WriteByte('\f')
		case 'u':
			if len(b)-i < 5 {
				return "", false
			}
			n, err := strconv.ParseUint(string(b[i+1:i+5]), 16, 16)
			if err != nil {
				return "", false
			}
			sb.WriteRune(rune(n))
			i += 4
		default:
			sb.WriteRune(rune(c))
		}
	}
	return sb.String(), true
}

// appendEscaped writes a value so that parseProperties and Java read it back.
func appendEscaped(dst []byte, value string) []byte {
	for i, r := range value {
		switch {
		case r == '\\' || r == '=' || r == ':' || r == '#' || r == '!' || r == ' ' && i == 0:
			dst = append(dst, '\\', byte(r))
		case r == '\t':
			dst = append(dst, `\t`...)
		case r == '\n':
			dst = append(dst, `\n`...)
		case r == '\r':
			dst = append(dst, `\r`...)
		case r == '\f':
			dst = append(dst, `\f`...)
		case r >= 0x20 && r < 0x7f:
			dst = append(dst, byte(r))
		case r > 0xffff: // a surrogate pair, which parses as two characters
			r -= 0x10000
			dst = fmt.Appendf(dst, `\u%04x\u%04x`, 0xd800+r>>10, 0xdc00+r&0x3ff)
		default:
			dst = fmt.Appendf(dst, `\u%04x`, r)
		}
	}
	return dst
}

// Partition is a partition.metadata file: which topic the folder belongs to.
type Partition struct {
	Version int // 0 as Kafka writes it; readers accept any that is not negative
	TopicID UUID
}

// ParsePartition reads partition.metadata. The all-zero topic id is refused.
func ParsePartition(b []byte) (Partition, error) {
	var p Partition
	for i, key := range []string{"version", "topic_id"} {
		l, rest, _ := bytes.Cut(b, []byte{'\n'})
		b = rest
		k, v, _ := strings.Cut(string(l), ":")
		v = strings.TrimLeft(v, " \t")
		if k != key {
			return p, &ParseError{i + 1, quote(l), key + ": …"}
		}
		if i == 0 {
			n, err := strconv.ParseInt(v, 10, 32)
			if err != nil || n < 0 {
				return p, &ParseError{1, quote(l), "a version that is not negative"}
			}
			p.Version = int(n)
			continue
		}
		id, err := ParseUUID(v)
		if err != nil || id == (UUID{}) {
			return p, &ParseError{2, quote(l), "a topic id: a uuid of 22 characters, not all zero"}
		}
		p.TopicID = id
	}
	if len(b) > 0 {
		return p, &ParseError{3, quote(b), "the end after topic_id"}
	}
	return p, nil
}

// AppendPartition appends the file's bytes to dst: no line end after the
// second line, as Kafka has it.
func AppendPartition(dst []byte, p Partition) []byte {
	return fmt.Appendf(dst, "version: %d\ntopic_id: %s", p.Version, p.TopicID)
}

// ParseCleanMarker reads .kafka_cleanshutdown and returns the broker epoch it
// names. Older brokers left the file empty: then the epoch is -1.
//
// For loading only the presence of the file counts; the epoch is what the
// controller compares (log-format §1.1).
func ParseCleanMarker(b []byte) (brokerEpoch int64, err error) {
	if len(b) == 0 {
		return -1, nil
	}
	// By way of a map, because struct fields would match names of any case.
	m := map[string]*int64{}
	err = json.Unmarshal(b, &m)
	version, epoch := m["version"], m["brokerEpoch"]
	switch {
	case err != nil || version == nil || epoch == nil:
		return 0, &ParseError{1, quote(b), `{"version":0,"brokerEpoch":N}`}
	case *version != 0:
		return 0, &ParseError{1, fmt.Sprintf("version %d", *version), "version 0"}
	}
	return *epoch, nil
}

// AppendCleanMarker appends the file's bytes to dst.
func AppendCleanMarker(dst []byte, brokerEpoch int64) []byte {
	return fmt.Appendf(dst, `{"version":0,"brokerEpoch":%d}`, brokerEpoch)
}

// ValidTopic reports whether Kafka takes s as the name of a topic: 1 to 249
// of [a-zA-Z0-9._-], but neither "." nor "..".
func ValidTopic(s string) bool {
	if s == "" || len(s) > 249 || s == "." || s == ".." {
		return false
	}
	for i := range len(s) {
		switch c := s[i]; {
		case 'a' <= c|0x20 && c|0x20 <= 'z', '0' <= c && c <= '9', c == '.', c == '_', c == '-':
		default:
			return false
		}
	}
	return true
}
