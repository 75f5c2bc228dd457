package index

import (
	"encoding/binary"
	"fmt"
	"iter"

	"github.com/tidemark-log/tidemark/internal/vfs"
)

// OffsetEntry is one entry of an offset index: the batch that starts at byte
// Pos of the log ends with Offset.
type OffsetEntry struct{ Offset, Pos int64 }

// TimeEntry is one entry of a time index: no record at or below Offset has a
// timestamp above Timestamp, in milliseconds since 1970.
type TimeEntry struct{ Timestamp, Offset int64 }

// ParseOffsets returns the entries in the bytes b of an offset index file, with
// their numbers and just as they stand: nothing is checked. It ends where only
// zeros follow, which is entry OffsetsUsed(b), and ignores a part of an entry
// at the end of b.
func ParseOffsets(base int64, b []byte) iter.Seq2[int, OffsetEntry] {
	return func(yield func(int, OffsetEntry) bool) {
		for i := range OffsetsUsed(b) {
			if !yield(i, OffsetEntry{base + relOffset(b, i), entryPos(b, i)}) {
				return
			}
		}
	}
}

// ParseTimes is ParseOffsets for a time index.
func ParseTimes(base int64, b []byte) iter.Seq2[int, TimeEntry] {
	return func(yield func(int, TimeEntry) bool) {
		for i := range TimesUsed(b) {
			if !yield(i, TimeEntry{entryTs(b, i), base + timeRel(b, i)}) {
				return
			}
		}
	}
}

// OffsetsUsed returns the number of entries in front of the zero tail of an
// offset index file: from there on b is zero. It is len(b)/OffsetEntrySize in
// a trimmed file.
func OffsetsUsed(b []byte) int { return beforeZeros(b, OffsetEntrySize) }

// TimesUsed is OffsetsUsed for a time index.
func TimesUsed(b []byte) int { return beforeZeros(b, TimeEntrySize) }

// beforeZeros is used for a reader that has all bytes at hand and wants gaps
// of zeros shown, not skipped.
func beforeZeros(b []byte, size int) int {
	n := len(b) / size
	if n <= 1 {
		return n
	}
	for n > 0 && vfs.AllZero(b[(n-1)*size:][:size]) {
		n--
	}
	return n
}

// TxnEntrySize is the number of bytes of an entry of a transaction index.
const TxnEntrySize = 34

// AbortedTxn is one entry of a transaction index: pid's transaction from
// FirstOffset was aborted by the marker at LastOffset. LastStableOffset is
// that of the log once the marker was written.
type AbortedTxn struct {
	PID, FirstOffset, LastOffset, LastStableOffset int64
}

// AppendTo appends the entry as it stands in the file: big-endian i16 version
// 0, then the four fields in order (log-format §3.1).
func (t AbortedTxn) AppendTo(b []byte) []byte {
	b = append(b, 0, 0)
	for _, v := range [...]int64{t.PID, t.FirstOffset, t.LastOffset, t.LastStableOffset} {
		b = binary.BigEndian.AppendUint64(b, uint64(v))
	}
	return b
}

// ParseTxns returns the entries in the bytes b of the transaction index file
// called name, of a segment with the given base offset. An entry of a version
// other than 0 is a *CorruptError in place of the entry, as is one whose last
// offset lies below the base (log-format §3.4) or is not above that of the
// entry before, and, as the last element, a part of an entry at the end of b,
// which Kafka ignores.
func ParseTxns(name string, base int64, b []byte) iter.Seq2[AbortedTxn, error] {
	return func(yield func(AbortedTxn, error) bool) {
		last := base - 1
		n := len(b) / TxnEntrySize
		for i := range n {
			e := b[i*TxnEntrySize:]
			version := int16(binary.BigEndian.Uint16(e))
			field := func(k int) int64 { return int64(binary.BigEndian.Uint64(e[2+8*k:])) }
			t := AbortedTxn{field(0), field(1), field(2), field(3)}
			var err error
			switch {
			case version != 0:
				t, err = AbortedTxn{}, &CorruptError{name, i, fmt.Sprintf("version %d", version), "0"}
			case t.LastOffset <= last:
				err = &CorruptError{name, i, fmt.Sprintf("last offset %d", t.LastOffset), fmt.Sprintf("above %d", last)}
			default:
				last = t.LastOffset
			}
			if !yield(t, err) {
				return
			}
		}
		if rest := len(b) % TxnEntrySize; rest != 0 {
			yield(AbortedTxn{}, &CorruptError{name, n, fmt.Sprintf("%d bytes", rest), fmt.Sprint(TxnEntrySize)})
		}
	}
}

// AbortedIn returns those of a segment's transactions, in file order, that
// overlap [from, upTo). complete means that no later segment can hold another:
// an entry's last stable offset is at or above upTo.
func AbortedIn(txns []AbortedTxn, from, upTo int64) (aborted []AbortedTxn, complete bool) {
	for _, t := range txns {
		if t.LastOffset >= from && t.FirstOffset < upTo {
			aborted = append(aborted, t)
		}
		if t.LastStableOffset >= upTo {
			return aborted, true
		}
	}
	return aborted, false
}
