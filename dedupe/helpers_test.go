package dedupe

import (
	"bytes"
	"testing"

	"github.com/tidemark-log/tidemark/record"
)

// sent is a data batch as its producer sends it.
type sent struct {
	pid     int64
	epoch   int16
	seq     int32
	count   int32
	ts      int64
	txn     bool
	control bool
}

// batch is the header of a batch without its records: all that the table reads.
func (s sent) batch() record.Batch {
	b := make([]byte, record.HeaderSize)
	spec := record.NewSpec()
	spec.ProducerID, spec.ProducerEpoch, spec.BaseSequence = s.pid, s.epoch, s.seq
	spec.Transactional, spec.Control = s.txn, s.control
	from := record.Encode(make([]byte, 256), []record.Record{{Timestamp: s.ts}}, &spec)
	copy(b, from)
	b[23], b[24], b[25], b[26] = byte((s.count-1)>>24), byte((s.count-1)>>16), byte((s.count-1)>>8), byte(s.count-1)
	return b
}

func markerBatch(pid int64, epoch int16, coordinator int32, typ record.ControlType, ts int64) record.Batch {
	return record.AppendMarker(nil, record.Marker{Timestamp: ts, ProducerID: pid, ProducerEpoch: epoch, Type: typ, CoordinatorEpoch: coordinator})
}

// buffer is a file in memory.
type buffer struct{ bytes.Buffer }

func (b *buffer) WriteAt(p []byte, at int64) (int, error) {
	if n := int(at) + len(p) - b.Len(); n > 0 {
		b.Write(make([]byte, n))
	}
	return copy(b.Bytes()[at:], p), nil
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func writeSnapshot(t testing.TB, tab *Table) []byte {
	t.Helper()
	var w buffer
	n, err := tab.Freeze().WriteSnapshot(&w)
	tab.Thaw()
	must(t, err)
	if n != int64(w.Len()) {
		t.Fatalf("size %d, want %d", n, w.Len())
	}
	return w.Bytes()
}

func writeWindow(t testing.TB, tab *Table, logID [16]byte, end int64) []byte {
	t.Helper()
	var w buffer
	n, err := tab.Freeze().WriteWindow(&w, logID, end)
	tab.Thaw()
	must(t, err)
	if n != int64(w.Len()) {
		t.Fatalf("size %d, want %d", n, w.Len())
	}
	return w.Bytes()
}
