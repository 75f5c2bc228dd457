// Package checkpoint reads and writes the small files and the names that
// surround a Kafka partition log: pure functions over bytes and strings, no
// file access, no clock.
//
//	recovery-point-offset-checkpoint ┐
//	replication-offset-checkpoint    │ ParseOffsets    "0\n2\na.b-c 3 0\nt 0 18\n"
//	log-start-offset-checkpoint      │
//	cleaner-offset-checkpoint        ┘
//	leader-epoch-checkpoint            ParseEpochs     "0\n2\n0 0\n4 48\n"
//	meta.properties                    ParseMeta       a Java properties file
//	partition.metadata                 ParsePartition  "version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ"
//	.kafka_cleanshutdown               ParseCleanMarker  {"version":0,"brokerEpoch":7}
//	00000000000000004096.log           ParseSegmentFile
//	topic-3, topic-3.<uuid>-delete     ParsePartitionDir
//
// The formats and rules are those of log-format §1. A file that does not keep
// them is a *ParseError: Kafka then fails the whole data directory, and so a
// writer has no excuse for leaving one (log-format §12 rule 16).
package checkpoint

import (
	"bytes"
	"fmt"
	"strconv"
)

// Names of the files in a data directory and in a partition directory.
const (
	RecoveryPointFile  = "recovery-point-offset-checkpoint"
	HighWatermarkFile  = "replication-offset-checkpoint"
	LogStartOffsetFile = "log-start-offset-checkpoint"
	CleanerOffsetFile  = "cleaner-offset-checkpoint"
	MetaFile           = "meta.properties"
	CleanMarkerFile    = ".kafka_cleanshutdown"
	LockFile           = ".lock"

	LeaderEpochFile = "leader-epoch-checkpoint"
	PartitionFile   = "partition.metadata"
)

// A ParseError says where a text file leaves its format.
type ParseError struct {
	Line  int    // counted from 1
	Found string // what stands there
	Want  string // what the format asks for
}

func (e *ParseError) Error() string {
	return fmt.Sprintf("line %d: found %s, want %s", e.Line, e.Found, e.Want)
}

// Offset is one line of an offset checkpoint.
type Offset struct {
	Topic     string
	Partition int32
	Offset    int64
}

// ParseOffsets reads an offset checkpoint. A file of no bytes, or of a version
// line alone, has no entries. Entries come in the order of the file; a
// partition listed twice comes twice (Kafka believes the last).
func ParseOffsets(b []byte) ([]Offset, error) {
	var entries []Offset
	err := parseFrame(b, "topic partition offset", 3, func(line int, f [][]byte) error {
		p, err := parseNumber(line, f[1], "a partition", 32)
		if err != nil {
			return err
		}
		o, err := parseNumber(line, f[2], "an offset", 64)
		if err != nil {
			return err
		}
		entries = append(entries, Offset{Topic: string(f[0]), Partition: int32(p), Offset: o})
		return nil
	})
	if err != nil {
		return nil, err
	}
	return entries, nil
}

// AppendOffsets appends the file's bytes to dst. Topics must be valid names
// (no white space). Without entries Kafka writes "0\n0\n", and so does this.
func AppendOffsets(dst []byte, entries []Offset) []byte {
	dst = appendFrame(dst, len(entries))
	for _, e := range entries {
		dst = append(append(dst, e.Topic...), ' ')
		dst = append(strconv.AppendInt(dst, int64(e.Partition), 10), ' ')
		dst = append(strconv.AppendInt(dst, e.Offset, 10), '\n')
	}
	return dst
}

// Epoch is one line of a leader-epoch checkpoint: the reign that starts at
// StartOffset and lasts until the next entry.
type Epoch struct {
	Epoch       int32
	StartOffset int64
}

// ParseEpochs reads a leader-epoch checkpoint. Both columns must ascend
// strictly (log-format §6).
func ParseEpochs(b []byte) ([]Epoch, error) {
	var epochs []Epoch
	err := parseFrame(b, "epoch startOffset", 2, func(line int, f [][]byte) error {
		e, err := parseNumber(line, f[0], "an epoch", 32)
		if err != nil {
			return err
		}
		o, err := parseNumber(line, f[1], "an offset", 64)
		if err != nil {
			return err
		}
		if n := len(epochs); n > 0 {
			if last := epochs[n-1]; int32(e) <= last.Epoch || o <= last.StartOffset {
				return &ParseError{line, fmt.Sprintf("epoch %d at %d", e, o),
					fmt.Sprintf("both above epoch %d at %d of the line before", last.Epoch, last.StartOffset)}
			}
		}
		epochs = append(epochs, Epoch{int32(e), o})
		return nil
	})
	if err != nil {
		return nil, err
	}
	return epochs, nil
}

// AppendEpochs appends the file's bytes to dst.
func AppendEpochs(dst []byte, epochs []Epoch) []byte {
	dst = appendFrame(dst, len(epochs))
	for _, e := range epochs {
		dst = append(strconv.AppendInt(dst, int64(e.Epoch), 10), ' ')
		dst = append(strconv.AppendInt(dst, e.StartOffset, 10), '\n')
	}
	return dst
}

func appendFrame(dst []byte, n int) []byte {
	dst = append(dst, "0\n"...)
	return append(strconv.AppendInt(dst, int64(n), 10), '\n')
}

// parseFrame checks what all checkpoint files share (log-format §1.3), a
// version line, a count line and that many entry lines, and hands out the
// fields of each entry.
//
// It is stricter than Kafka in two points, because each can hide a changed
// value: a line end must be a bare LF, and the last line must have one (a file
// cut inside its last number would otherwise read as a smaller number).
func parseFrame(b []byte, entry string, fields int, each func(line int, f [][]byte) error) error {
	if len(b) == 0 {
		return nil
	}
	line := 0
	// next returns the line that follows, without its end.
	next := func() ([]byte, error) {
		line++
		l, rest, ok := bytes.Cut(b, []byte{'\n'})
		if !ok {
			return nil, &ParseError{line, quote(l) + " without a line end", "a line that ends in LF"}
		}
		if bytes.HasSuffix(l, []byte{'\r'}) {
			return nil, &ParseError{line, "a line that ends in CR LF", "a line that ends in LF"}
		}
		b = rest
		return l, nil
	}
	l, err := next()
	if err != nil {
		return err
	}
	if v, err := strconv.ParseInt(string(l), 10, 32); err != nil || v != 0 {
		return &ParseError{line, quote(l), "format version 0"}
	}
	if len(b) == 0 {
		return nil
	}
	if l, err = next(); err != nil {
		return err
	}
	count, err := strconv.ParseInt(string(l), 10, 32)
	if err != nil || count < 0 {
		return &ParseError{line, quote(l), "a number of entries"}
	}
	for n := int64(0); len(b) > 0; n++ {
		if l, err = next(); err != nil {
			return err
		}
		if n == count {
			return &ParseError{line, quote(l), fmt.Sprintf("the end after %d entries", count)}
		}
		f := bytes.Fields(l)
		if len(f) != fields || l[0] == ' ' || l[0] == '\t' {
			return &ParseError{line, quote(l), fmt.Sprintf("%d fields: %s", fields, entry)}
		}
		if err := each(line, f); err != nil {
			return err
		}
	}
	if n := int64(line - 2); n < count {
		return &ParseError{line + 1, fmt.Sprintf("the end after %d entries", n), fmt.Sprintf("%d entries", count)}
	}
	return nil
}

// parseNumber reads a decimal that is not negative: no column of these files
// has a meaning for a negative number.
func parseNumber(line int, f []byte, what string, bits int) (int64, error) {
	n, err := strconv.ParseInt(string(f), 10, bits)
	if err != nil || n < 0 {
		if err == nil {
			what += " that is not negative"
		}
		return 0, &ParseError{line, quote(f), what}
	}
	return n, nil
}

// quote shows b in an error: escaped, and cut where it would flood the line.
func quote(b []byte) string {
	const limit = 80
	if len(b) > limit {
		return strconv.Quote(string(b[:limit])) + "…"
	}
	return strconv.Quote(string(b))
}
