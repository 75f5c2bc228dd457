package record

import (
	"encoding/binary"
	"fmt"
)

// ControlType is what a control record says (log-format §2.5).
type ControlType int16

const (
	Abort          ControlType = 0
	Commit         ControlType = 1
	LeaderChange   ControlType = 2
	SnapshotHeader ControlType = 3
	SnapshotFooter ControlType = 4
	KRaftVersion   ControlType = 5
	KRaftVoters    ControlType = 6
)

var controlNames = [...]string{"ABORT", "COMMIT", "LEADER_CHANGE", "SNAPSHOT_HEADER", "SNAPSHOT_FOOTER", "KRAFT_VERSION", "KRAFT_VOTERS"}

// String returns Kafka's name, or "UNKNOWN(N)": a type to come is no error.
func (t ControlType) String() string {
	if t < 0 || int(t) >= len(controlNames) {
		return fmt.Sprintf("UNKNOWN(%d)", int16(t))
	}
	return controlNames[t]
}

// Control is what a control record holds.
type Control struct {
	Version          int16 // of the key
	Type             ControlType
	CoordinatorEpoch int32 // of Abort and Commit; else -1
}

// ParseControl reads key and value of a record of a control batch. Keys of
// versions to come and longer ones are read as far as they are known. Values
// other than those of Abort and Commit are not looked at. Errors wrap
// ErrInvalid.
func ParseControl(key, value []byte) (Control, error) {
	if len(key) < 4 {
		return Control{}, batchError(ErrInvalid, "control record key size", 0, int64(len(key)), atLeast, 4)
	}
	c := Control{
		Version:          int16(binary.BigEndian.Uint16(key)),
		Type:             ControlType(binary.BigEndian.Uint16(key[2:])),
		CoordinatorEpoch: -1,
	}
	if c.Version < 0 {
		return Control{}, batchError(ErrInvalid, "control record key version", 0, int64(c.Version), atLeast, 0)
	}
	if c.Type == Abort || c.Type == Commit {
		if len(value) < 6 {
			return Control{}, batchError(ErrInvalid, "transaction marker size", 0, int64(len(value)), atLeast, 6)
		}
		if v := int16(binary.BigEndian.Uint16(value)); v < 0 {
			return Control{}, batchError(ErrInvalid, "transaction marker version", 0, int64(v), atLeast, 0)
		}
		c.CoordinatorEpoch = int32(binary.BigEndian.Uint32(value[2:]))
	}
	return c, nil
}

// Marker is the end of a transaction, a control batch of one record.
type Marker struct {
	Offset           int64
	LeaderEpoch      int32
	Timestamp        int64 // ms since the epoch
	ProducerID       int64
	ProducerEpoch    int16
	Type             ControlType // Abort or Commit
	CoordinatorEpoch int32
}

// MarkerSize is the size in bytes of a marker's batch.
const MarkerSize = HeaderSize + 17

// AppendMarker appends the batch of m, MarkerSize bytes, to dst.
func AppendMarker(dst []byte, m Marker) []byte {
	var key [4]byte
	binary.BigEndian.PutUint16(key[2:], uint16(m.Type))
	var value [6]byte
	binary.BigEndian.PutUint32(value[2:], uint32(m.CoordinatorEpoch))
	recs := [1]Record{{Timestamp: m.Timestamp, Key: key[:], Value: value[:]}}
	start := len(dst)
	dst = append(dst, make([]byte, MarkerSize)...)
	Encode(dst[start:], recs[:], &Spec{
		BaseOffset:    m.Offset,
		LeaderEpoch:   m.LeaderEpoch,
		ProducerID:    m.ProducerID,
		ProducerEpoch: m.ProducerEpoch,
		BaseSequence:  NoSequence,
		Transactional: true,
		Control:       true,
	})
	return dst
}

// AppendEmpty appends what compaction leaves of b, a header at least, when all
// its records are gone: an empty batch of HeaderSize bytes that keeps its offsets,
// epochs, producer and largest timestamp (log-format §2.6).
func AppendEmpty(dst []byte, b Batch) []byte {
	start := len(dst)
	dst = append(dst, make([]byte, HeaderSize)...)
	e := Batch(dst[start:])
	spec := Spec{
		BaseOffset:    b.BaseOffset(),
		LeaderEpoch:   b.LeaderEpoch(),
		Now:           b.MaxTimestamp(),
		TimestampType: b.TimestampType(),
		ProducerID:    b.ProducerID(),
		ProducerEpoch: b.ProducerEpoch(),
		BaseSequence:  b.BaseSequence(),
		Transactional: b.IsTransactional(),
		Control:       b.IsControl(),
	}
	putFields(e, &spec, None, b.LastOffsetDelta(), NoTimestamp, b.MaxTimestamp(), 0)
	seal(e, &spec, e.ComputeCRC())
	return dst
}
