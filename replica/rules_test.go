package replica_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"maps"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tidemark-log/tidemark/internal/vfs"
	"github.com/tidemark-log/tidemark/record"
	"github.com/tidemark-log/tidemark/replica"
)

// A data folder that was written by us and closed keeps the rules of log-format
// §12. The tests read its files by themselves: os.ReadFile,
// encoding/binary and the checksum, none of our code.

// folder is what the rules are checked on: partition directory → file → bytes.
type folder struct {
	root  map[string][]byte            // plain files of the data folder
	dirs  map[string]map[string][]byte // its directories
	start map[string]int64             // log start and end as the engine said before it closed
	end   map[string]int64
}

type diskBatch struct {
	pos, size  int
	base, last int64
	epoch      int32
	maxTs      int64
}

// parseBatches reads a .log file and returns how many bytes are whole batches.
func parseBatches(b []byte) (list []diskBatch, whole int) {
	for whole+61 <= len(b) {
		h := b[whole:]
		size := int(int32(binary.BigEndian.Uint32(h[8:]))) + 12
		if size < 61 || size > len(h) || h[16] != 2 ||
			crc32.Checksum(h[21:size], crc32.MakeTable(crc32.Castagnoli)) != binary.BigEndian.Uint32(h[17:]) {
			break
		}
		base := int64(binary.BigEndian.Uint64(h))
		list = append(list, diskBatch{pos: whole, size: size, base: base,
			last: base + int64(int32(binary.BigEndian.Uint32(h[23:]))), epoch: int32(binary.BigEndian.Uint32(h[12:])),
			maxTs: int64(binary.BigEndian.Uint64(h[35:]))})
		whole += size
	}
	return list, whole
}

var segmentName = regexp.MustCompile(`^([0-9]{20})\.(log|index|timeindex|txnindex|snapshot|dedupe)$`)

// logs returns the base offsets of a directory, ascending.
func logs(files map[string][]byte) (bases []int64) {
	for name := range files {
		if m := segmentName.FindStringSubmatch(name); m != nil && m[2] == "log" {
			var base int64
			fmt.Sscanf(m[1], "%d", &base)
			bases = append(bases, base)
		}
	}
	slices.Sort(bases)
	return bases
}

// folders makes the data folders that the rules are checked on, once: one for
// each sync mode and interval of index entries.
var folders = sync.OnceValues(func() (map[string]*folder, error) {
	all := map[string]*folder{}
	for _, mode := range []replica.SyncMode{replica.Always, replica.Interval, replica.Never} {
		for _, interval := range []int64{1, 700, 4096} {
			f, err := makeFolder(replica.Options{Sync: mode, IndexIntervalBytes: interval, SegmentBytes: 8 << 10})
			if err != nil {
				return nil, err
			}
			all[fmt.Sprintf("%v/interval=%d", mode, interval)] = f
		}
	}
	return all, nil
})

func makeFolder(o replica.Options) (f *folder, err error) {
	tmp, err := os.MkdirTemp("", "tidemark-rules")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(tmp)
	root := filepath.Join(tmp, "data")
	d, err := replica.OpenDir(root, replica.DirOptions{NodeID: 7, ClusterID: "kafka-cluster", BrokerEpoch: 42}, t0)
	if err != nil {
		return nil, err
	}
	f = &folder{root: map[string][]byte{}, dirs: map[string]map[string][]byte{}, start: map[string]int64{}, end: map[string]int64{}}
	for name, fill := range map[string]func(l *replica.Log) error{
		"plain": fillLeader, "a.b-c_d": fillFollower, "cut": fillCut, "empty": func(*replica.Log) error { return nil },
		"moved": func(l *replica.Log) error { return l.TruncateFullyAndStartAt(500) },
		"times": fillTimes, "reopened": fillLeader, "idem": fillProducers,
	} {
		p := replica.TopicPartition{Topic: name, Partition: 3}
		l, err := d.OpenLog(p, replica.UUID{1, byte(len(name))}, o, t0)
		if err != nil {
			return nil, err
		}
		if err := fill(l); err != nil {
			return nil, fmt.Errorf("fill %s: %w", name, err)
		}
		if name == "reopened" {
			if err := l.Close(t0); err != nil {
				return nil, err
			}
			d.Forget(p)
			if l, err = d.OpenLog(p, replica.UUID{}, o, t0); err != nil {
				return nil, err
			}
			if err := fillLeader(l); err != nil {
				return nil, err
			}
		}
		f.start[name+"-3"], f.end[name+"-3"] = l.LogStartOffset(), l.LogEndOffset()
	}
	if err := d.Close(t0); err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(root)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		if !e.IsDir() {
			if f.root[e.Name()], err = os.ReadFile(filepath.Join(root, e.Name())); err != nil {
				return nil, err
			}
			continue
		}
		files := map[string][]byte{}
		inner, err := os.ReadDir(filepath.Join(root, e.Name()))
		if err != nil {
			return nil, err
		}
		for _, i := range inner {
			if files[i.Name()], err = os.ReadFile(filepath.Join(root, e.Name(), i.Name())); err != nil {
				return nil, err
			}
		}
		f.dirs[e.Name()] = files
	}
	return f, nil
}

// fillLeader appends batches of every codec in several epochs over several
// segments, some of one record, some near the size of a segment.
func fillLeader(l *replica.Log) error {
	var w record.Builder
	rng := rand.New(rand.NewPCG(1, 2))
	for epoch := range int32(4) {
		if err := l.BeginEpoch(max(epoch*2, l.Stats().LeaderEpoch)); err != nil {
			return err
		}
		for i := range 12 {
			spec := record.NewSpec()
			spec.Codec = record.Codec(i % 5)
			recs := make([]record.Record, 1+rng.IntN(5))
			for j := range recs {
				recs[j] = recordAt(l.LogEndOffset()+int64(j), 20+rng.IntN(300))
			}
			if i == 7 {
				recs[0].Value = make([]byte, 7000)
			}
			b, err := w.Build(recs, &spec)
			if err != nil {
				return err
			}
			if _, err := l.Append(b, replica.Client, t0); err != nil {
				return err
			}
			if _, err := l.AppendRecords(recs, t0); err != nil {
				return err
			}
			l.Maintain(t0)
		}
		if err := l.SyncNow(); err != nil {
			return err
		}
	}
	return nil
}

// fillFollower appends a compacted leader's batches, and one larger than a
// segment.
func fillFollower(l *replica.Log) error {
	at := int64(5)
	for i := range 40 {
		size := 100
		if i == 20 {
			size = 12 << 10
		}
		if _, err := l.Append(batchAt(at, int32(i/10), 1+i%3, size), replica.Follower, t0); err != nil {
			return err
		}
		at += int64(1 + i%3 + i%4)
	}
	return nil
}

// fillCut truncates at boundaries, inside a batch, across segments and epochs.
func fillCut(l *replica.Log) error {
	if err := fillLeader(l); err != nil {
		return err
	}
	for _, to := range []int64{l.LogEndOffset() - 1, l.LogEndOffset() * 3 / 4, l.LogEndOffset() / 2} {
		if err := l.Truncate(to); err != nil {
			return err
		}
		if err := l.BeginEpoch(l.Stats().LeaderEpoch + 1); err != nil {
			return err
		}
		for range 3 {
			if _, err := l.AppendRecords([]record.Record{recordAt(l.LogEndOffset(), 500)}, t0); err != nil {
				return err
			}
		}
	}
	return l.Truncate(l.LogEndOffset() - 2)
}

// fillTimes has timestamps that fall, repeat and are missing.
func fillTimes(l *replica.Log) error {
	if err := l.BeginEpoch(0); err != nil {
		return err
	}
	for i := range int64(80) {
		ts := []int64{record.NoTimestamp, 1000 + i, 5000 - i, 5000, 3000 + 40*i}[i%5]
		if _, err := l.AppendRecords([]record.Record{{Timestamp: ts, Value: make([]byte, 150)}}, t0); err != nil {
			return err
		}
	}
	return nil
}

// fillProducers has idempotent and transactional producers over several segments,
// then a cut and more of them.
func fillProducers(l *replica.Log) error {
	next := map[int64]int32{}
	fill := func(n int) error {
		if err := l.BeginEpoch(l.Stats().LeaderEpoch + 1); err != nil {
			return err
		}
		for i := range n {
			pid := int64(i % 5)
			s := batch{pid: pid, epoch: int16(pid), seq: next[pid], n: 1 + i%3, txn: pid == 4, ts: t0.Add(time.Duration(i) * time.Second)}
			if a, err := l.Append(s.bytes(0, -1), replica.Client, t0); err != nil || a.Duplicate {
				return fmt.Errorf("%+v: %+v, %w", s, a, err)
			}
			next[pid] += int32(s.n)
			if i%30 == 29 {
				m := record.Marker{Timestamp: t0.UnixMilli(), ProducerID: 4, ProducerEpoch: 4, CoordinatorEpoch: 9, Type: record.Commit}
				if _, err := l.Append(record.AppendMarker(nil, m), replica.Trusted, t0); err != nil {
					return err
				}
			}
			if _, err := l.Maintain(t0); err != nil {
				return err
			}
		}
		return l.SyncNow()
	}
	if err := fill(400); err != nil {
		return err
	}
	if err := l.Truncate(l.LogEndOffset() / 2); err != nil {
		return err
	}
	for pid := range next {
		if p, ok := l.Producer(pid); ok {
			last, _ := p.Last()
			next[pid] = last.LastSequence + 1
		}
	}
	return fill(403)
}

// eachFolder runs f over every folder.
func eachFolder(t *testing.T, f func(t *testing.T, x *folder)) {
	t.Helper()
	all, err := folders()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		t.Run(name, func(t *testing.T) { f(t, all[name]) })
	}
}

// eachLog runs f over every segment of every folder.
func eachLog(t *testing.T, f func(t *testing.T, place string, files map[string][]byte, base int64, batches []diskBatch)) {
	t.Helper()
	eachFolder(t, func(t *testing.T, x *folder) {
		segments := 0
		for dir, files := range x.dirs {
			for _, base := range logs(files) {
				segments++
				batches, _ := parseBatches(files[fmt.Sprintf("%020d.log", base)])
				f(t, fmt.Sprintf("%s/%020d", dir, base), files, base, batches)
			}
		}
		if segments < 30 {
			t.Fatalf("only %d segments", segments)
		}
	})
}

func TestRule01_LogTrimmed(t *testing.T) {
	eachLog(t, func(t *testing.T, place string, files map[string][]byte, base int64, batches []diskBatch) {
		b := files[fmt.Sprintf("%020d.log", base)]
		if _, whole := parseBatches(b); whole != len(b) {
			t.Errorf("%s.log has %d bytes, of which %d are whole batches", place, len(b), whole)
		}
	})
}

func TestRule02_IndexesTrimmed(t *testing.T) {
	eachLog(t, func(t *testing.T, place string, files map[string][]byte, base int64, _ []diskBatch) {
		index, times := files[fmt.Sprintf("%020d.index", base)], files[fmt.Sprintf("%020d.timeindex", base)]
		if len(index)%8 != 0 || len(times)%12 != 0 {
			t.Errorf("%s: index of %d bytes, time index of %d", place, len(index), len(times))
		}
		for ; len(index) >= 8; index = index[8:] {
			if binary.BigEndian.Uint64(index) == 0 {
				t.Errorf("%s.index has a zero entry", place)
			}
		}
		for ; len(times) >= 12; times = times[12:] {
			if binary.BigEndian.Uint64(times) == 0 {
				t.Errorf("%s.timeindex has a zero entry", place)
			}
		}
	})
}

func TestRule03_OffsetIndex(t *testing.T) {
	entries := 0
	eachLog(t, func(t *testing.T, place string, files map[string][]byte, base int64, batches []diskBatch) {
		lastRel, lastPos := int64(-1), int64(0)
		for b := files[fmt.Sprintf("%020d.index", base)]; len(b) >= 8; b = b[8:] {
			rel, pos := int64(int32(binary.BigEndian.Uint32(b))), int64(int32(binary.BigEndian.Uint32(b[4:])))
			i := slices.IndexFunc(batches, func(x diskBatch) bool { return int64(x.pos) == pos })
			switch {
			case i < 0:
				t.Errorf("%s.index: no batch at %d", place, pos)
			case batches[i].last != base+rel:
				t.Errorf("%s.index: offset %d at %d, but the batch there ends with %d", place, base+rel, pos, batches[i].last)
			case i == 0:
				t.Errorf("%s.index: the first batch is indexed", place)
			}
			if rel <= lastRel || pos <= lastPos {
				t.Errorf("%s.index does not ascend", place)
			}
			lastRel, lastPos = rel, pos
			entries++
		}
	})
	if entries < 100 {
		t.Errorf("only %d entries checked", entries)
	}
}

func TestRule04_TimeIndex(t *testing.T) {
	entries := 0
	eachLog(t, func(t *testing.T, place string, files map[string][]byte, base int64, batches []diskBatch) {
		lastTs, lastOffset := int64(-1), int64(-1)
		for b := files[fmt.Sprintf("%020d.timeindex", base)]; len(b) >= 12; b = b[12:] {
			ts, offset := int64(binary.BigEndian.Uint64(b)), base+int64(int32(binary.BigEndian.Uint32(b[8:])))
			if ts <= lastTs || offset < lastOffset {
				t.Errorf("%s.timeindex does not ascend", place)
			}
			lastTs, lastOffset = ts, offset
			first := slices.IndexFunc(batches, func(x diskBatch) bool { return x.maxTs >= ts })
			if first < 0 || batches[first].maxTs != ts || batches[first].last != offset {
				t.Errorf("%s.timeindex: (%d, %d) is not the earliest batch with the largest timestamp so far", place, ts, offset)
			}
			entries++
		}
		largest := int64(-1)
		for _, x := range batches {
			largest = max(largest, x.maxTs)
		}
		if lastTs != largest {
			t.Errorf("%s.timeindex ends with timestamp %d; the largest is %d", place, lastTs, largest)
		}
	})
	if entries < 100 {
		t.Errorf("only %d entries checked", entries)
	}
}

func TestRule05_EverySegmentHasAnIndex(t *testing.T) {
	eachLog(t, func(t *testing.T, place string, files map[string][]byte, base int64, _ []diskBatch) {
		for _, suffix := range []string{"index", "timeindex"} {
			if _, ok := files[fmt.Sprintf("%020d.%s", base, suffix)]; !ok {
				t.Errorf("%s.%s is missing", place, suffix)
			}
		}
	})
}

// producerLine is an entry of a snapshot but for its producer id.
type producerLine struct {
	epoch              int16
	lastSeq            int32
	last               int64
	delta              int32
	timestamp          int64
	coordinator        int32
	transactionStarted int64
}

// parseSnapshot reads Kafka's snapshot (log-format §5.1).
func parseSnapshot(b []byte) (map[int64]producerLine, error) {
	be := binary.BigEndian
	if len(b) < 10 || be.Uint16(b) != 1 || (len(b)-10)%46 != 0 || int(be.Uint32(b[6:])) != (len(b)-10)/46 ||
		be.Uint32(b[2:]) != crc32.Checksum(b[6:], crc32.MakeTable(crc32.Castagnoli)) {
		return nil, fmt.Errorf("%d bytes are no snapshot", len(b))
	}
	m := map[int64]producerLine{}
	for b = b[10:]; len(b) > 0; b = b[46:] {
		m[int64(be.Uint64(b))] = producerLine{int16(be.Uint16(b[8:])), int32(be.Uint32(b[10:])), int64(be.Uint64(b[14:])), int32(be.Uint32(b[22:])),
			int64(be.Uint64(b[26:])), int32(be.Uint32(b[34:])), int64(be.Uint64(b[38:]))}
	}
	return m, nil
}

// replayLines is what a snapshot at offset end should say (log-format §5.2, §5.6).
func replayLines(files map[string][]byte, end int64) map[int64]producerLine {
	be := binary.BigEndian
	m := map[int64]producerLine{}
	for _, base := range logs(files) {
		b := files[fmt.Sprintf("%020d.log", base)]
		list, _ := parseBatches(b)
		for _, x := range list {
			h := b[x.pos : x.pos+x.size]
			pid := int64(be.Uint64(h[43:]))
			if pid < 0 || x.last >= end {
				continue
			}
			p, known := m[pid]
			if epoch := int16(be.Uint16(h[51:])); !known || p.epoch != epoch {
				if !known {
					p.coordinator, p.transactionStarted = -1, -1
				}
				p.epoch, p.lastSeq, p.last, p.delta = epoch, -1, -1, 0
			}
			p.timestamp = x.maxTs
			if h[22]&0x20 != 0 { // the coordinator epoch is the end of the only record
				p.coordinator, p.transactionStarted = int32(be.Uint32(h[len(h)-5:])), -1
			} else {
				p.last, p.delta = x.last, int32(x.last-x.base)
				p.lastSeq = int32(int64(be.Uint32(h[53:]))+int64(p.delta)) & math.MaxInt32
				if h[22]&0x10 != 0 && p.transactionStarted < 0 {
					p.transactionStarted = x.base
				}
			}
			m[pid] = p
		}
	}
	return m
}

// TestRule06_Snapshots: a log with producers has a snapshot at its end and at the
// bases of its last two segments, and each says what the log below it does.
func TestRule06_Snapshots(t *testing.T) {
	eachFolder(t, func(t *testing.T, x *folder) {
		seen := 0
		for dir, files := range x.dirs {
			for name, b := range files {
				m := segmentName.FindStringSubmatch(name)
				if m == nil || m[2] != "snapshot" {
					continue
				}
				seen++
				var end int64
				fmt.Sscanf(m[1], "%d", &end)
				got, err := parseSnapshot(b)
				if err != nil {
					t.Errorf("%s/%s: %v", dir, name, err)
				}
				if want := replayLines(files, end); !maps.Equal(got, want) {
					t.Errorf("%s/%s says\n%+v, the log\n%+v", dir, name, got, want)
				}
			}
			if len(replayLines(files, math.MaxInt64)) == 0 {
				continue
			}
			bases := logs(files)
			for _, at := range append(bases[max(len(bases)-2, 0):], x.end[dir]) {
				if name := fmt.Sprintf("%020d.snapshot", at); at > 0 && files[name] == nil {
					t.Errorf("%s/%s is missing; segments %v, end %d", dir, name, bases, x.end[dir])
				}
			}
		}
		if seen < 3 {
			t.Errorf("only %d snapshots", seen)
		}
	})
}

func TestRule07_NoForeignSnapshot(t *testing.T) {
	eachFolder(t, func(t *testing.T, x *folder) {
		for dir, files := range x.dirs {
			for name := range files {
				if m := segmentName.FindStringSubmatch(name); m != nil && m[2] == "snapshot" {
					var offset int64
					fmt.Sscanf(m[1], "%d", &offset)
					if offset > x.end[dir] {
						t.Errorf("%s/%s lies above the log end %d", dir, name, x.end[dir])
					}
				}
			}
		}
	})
}

// parseEpochs reads leader-epoch-checkpoint as strictly as Kafka does.
func parseEpochs(b []byte) (list [][2]int64, err error) {
	lines := strings.Split(string(b), "\n")
	var n int
	if len(b) == 0 {
		return nil, nil
	}
	if _, err := fmt.Sscanf(lines[0]+" "+lines[1], "0 %d", &n); err != nil || len(lines) != n+3 || lines[n+2] != "" {
		return nil, fmt.Errorf("frame of %q", b)
	}
	for _, line := range lines[2 : n+2] {
		var e, o int64
		if _, err := fmt.Sscanf(line, "%d %d", &e, &o); err != nil || line != fmt.Sprintf("%d %d", e, o) {
			return nil, fmt.Errorf("line %q", line)
		}
		list = append(list, [2]int64{e, o})
	}
	return list, nil
}

func TestRule08_EpochsCoverTheLog(t *testing.T) {
	several := 0
	eachFolder(t, func(t *testing.T, x *folder) {
		for dir, files := range x.dirs {
			epochs, err := parseEpochs(files["leader-epoch-checkpoint"])
			if err != nil {
				t.Errorf("%s: %v", dir, err)
				continue
			}
			if len(epochs) > 2 {
				several++
			}
			at := func(offset int64) int64 {
				e := int64(-1)
				for _, x := range epochs {
					if x[1] <= offset {
						e = x[0]
					}
				}
				return e
			}
			for i := 1; i < len(epochs); i++ {
				if epochs[i][0] <= epochs[i-1][0] || epochs[i][1] <= epochs[i-1][1] {
					t.Errorf("%s: epochs do not ascend: %v", dir, epochs)
				}
			}
			for _, base := range logs(files) {
				batches, _ := parseBatches(files[fmt.Sprintf("%020d.log", base)])
				for _, y := range batches {
					if e := at(y.base); e != int64(y.epoch) {
						t.Errorf("%s: batch at %d has epoch %d, the file says %d", dir, y.base, y.epoch, e)
					}
				}
			}
			if n := len(epochs); n > 0 && epochs[n-1][1] > x.end[dir] {
				t.Errorf("%s: epoch %v begins above the log end %d", dir, epochs[n-1], x.end[dir])
			}
		}
	})
	if several == 0 {
		t.Error("no log with several epochs")
	}
}

// parseOffsets reads a root checkpoint as strictly as Kafka does.
func parseOffsets(b []byte) (m map[string]int64, err error) {
	lines := strings.Split(string(b), "\n")
	var n int
	if len(lines) < 3 {
		return nil, fmt.Errorf("frame of %q", b)
	}
	if _, err := fmt.Sscanf(lines[0]+" "+lines[1], "0 %d", &n); err != nil || len(lines) != n+3 || lines[n+2] != "" {
		return nil, fmt.Errorf("frame of %q", b)
	}
	m = map[string]int64{}
	for _, line := range lines[2 : n+2] {
		f := strings.Split(line, " ")
		var o int64
		if len(f) != 3 {
			return nil, fmt.Errorf("line %q", line)
		}
		if _, err := fmt.Sscanf(f[2], "%d", &o); err != nil {
			return nil, fmt.Errorf("line %q", line)
		}
		m[f[0]+"-"+f[1]] = o
	}
	return m, nil
}

func TestRule09_RecoveryPoint(t *testing.T) {
	eachFolder(t, func(t *testing.T, x *folder) {
		points, err := parseOffsets(x.root["recovery-point-offset-checkpoint"])
		if err != nil {
			t.Fatal(err)
		}
		high, err := parseOffsets(x.root["replication-offset-checkpoint"])
		if err != nil {
			t.Fatal(err)
		}
		for dir, end := range x.end {
			// All is on disk after Close.
			if points[dir] != end {
				t.Errorf("recovery point of %s is %d; the log ends at %d", dir, points[dir], end)
			}
			if hw, ok := high[dir]; !ok || hw > end || hw < x.start[dir] {
				t.Errorf("high watermark of %s is %d; the log is [%d, %d)", dir, hw, x.start[dir], end)
			}
		}
	})
}

func TestRule10_Identity(t *testing.T) {
	metadata := regexp.MustCompile(`^version: 0\ntopic_id: [A-Za-z0-9_-]{22}$`)
	eachFolder(t, func(t *testing.T, x *folder) {
		for dir, files := range x.dirs {
			if b := files["partition.metadata"]; !metadata.Match(b) || strings.HasSuffix(string(b), strings.Repeat("A", 22)) {
				t.Errorf("%s/partition.metadata is %q", dir, b)
			}
		}
		meta := string(x.root["meta.properties"])
		for _, line := range []string{"version=1", "node.id=7", "cluster.id=kafka-cluster", "directory.id="} {
			if !strings.Contains(meta, "\n"+line) {
				t.Errorf("meta.properties lacks %s: %q", line, meta)
			}
		}
		if !strings.HasPrefix(meta, "#\n#") {
			t.Errorf("meta.properties begins with %.20q", meta)
		}
	})
}

func TestRule11_OnlyPartitionFolders(t *testing.T) {
	name := regexp.MustCompile(`^[A-Za-z0-9._-]{1,249}-[0-9]+$`)
	eachFolder(t, func(t *testing.T, x *folder) {
		for dir := range x.dirs {
			if !name.MatchString(dir) {
				t.Errorf("folder %q", dir)
			}
			if _, ok := x.end[dir]; !ok {
				t.Errorf("folder %q is no partition of ours", dir)
			}
		}
	})
}

func TestRule12_Ranges(t *testing.T) {
	eachLog(t, func(t *testing.T, place string, files map[string][]byte, base int64, batches []diskBatch) {
		if n := len(files[fmt.Sprintf("%020d.log", base)]); n >= math.MaxInt32 {
			t.Errorf("%s.log has %d bytes", place, n)
		}
		for _, b := range batches {
			if b.base < base || b.last-base > math.MaxInt32 {
				t.Errorf("%s.log: batch %d to %d", place, b.base, b.last)
			}
		}
	})
	// Offsets far apart get segments of their own (scenario 91).
	x := newLab(t, replica.Options{})
	x.follow(batchAt(0, 0, 1, 20), batchAt(math.MaxInt32+2, 0, 1, 20), batchAt(math.MaxInt32+3, 0, 1, 20), batchAt(1<<40, 0, 1, 20))
	if got := x.segments(); !slices.Equal(got, []int64{0, math.MaxInt32 + 2, 1 << 40}) {
		t.Errorf("segments %v", got)
	}
	x.close()
	x.open()
	if got := x.readAll(0); !slices.Equal(got, []int64{0, math.MaxInt32 + 2, math.MaxInt32 + 3, 1 << 40}) {
		t.Errorf("read %v", got)
	}
	x.verify()
}

// TestRule13_CleanMarkerLast: everything is durable before the marker is, and
// nothing is changed after it.
func TestRule13_CleanMarkerLast(t *testing.T) {
	eachFolder(t, func(t *testing.T, x *folder) {
		if got := string(x.root[".kafka_cleanshutdown"]); got != `{"version":0,"brokerEpoch":42}` {
			t.Errorf("clean marker %q", got)
		}
	})
	faulty := vfs.NewFaulty(vfs.NewMem(vfs.MemOptions{}))
	open := func() (*replica.Dir, *replica.Log) {
		t.Helper()
		d, err := replica.OpenDir("/data", replica.DirOptions{FS: faulty, BrokerEpoch: 42}, t0)
		if err != nil {
			t.Fatal(err)
		}
		l, err := d.OpenLog(replica.TopicPartition{Topic: "t"}, replica.UUID{}, replica.Options{Sync: replica.Never, SegmentBytes: 8 << 10}, t0)
		if err != nil {
			t.Fatal(err)
		}
		return d, l
	}
	d, l := open()
	if d.Clean() {
		t.Error("a new folder is clean")
	}
	if err := fillLeader(l); err != nil {
		t.Fatal(err)
	}
	faulty.ResetCalls()
	if err := d.Close(t0); err != nil {
		t.Fatal(err)
	}
	marked := false
	for _, c := range faulty.Calls() {
		isMarker := strings.Contains(c.Name, ".kafka_cleanshutdown")
		switch c.Op {
		case vfs.OpRename:
			marked = marked || strings.HasSuffix(c.To, ".kafka_cleanshutdown")
		case vfs.OpWrite, vfs.OpTruncate, vfs.OpAllocate, vfs.OpCreate, vfs.OpFinishSync:
			if marked && !isMarker {
				t.Errorf("%v of %s after the clean marker", c.Op, c.Name)
			}
		}
	}
	if !marked {
		t.Fatal("no clean marker")
	}

	// Opening takes it away before anything else is touched, and a log that
	// cannot be opened keeps it away (scenario 98).
	faulty.ResetCalls()
	d, _ = open()
	if !d.Clean() {
		t.Error("the folder was closed, and is not clean")
	}
	removed := -1
	for i, c := range faulty.Calls() {
		if c.Op == vfs.OpRemove && strings.HasSuffix(c.Name, ".kafka_cleanshutdown") {
			removed = i
		}
		if removed < 0 && strings.Contains(c.Name, "/t-0") {
			t.Fatalf("%v of %s before the clean marker is gone", c.Op, c.Name)
		}
	}
	bad := errors.New("unreadable")
	faulty.SetRules(vfs.Rule{Ops: vfs.OpList, Glob: "u-0", Err: bad})
	if _, err := d.OpenLog(replica.TopicPartition{Topic: "u"}, replica.UUID{}, replica.Options{}, t0); !errors.Is(err, bad) {
		t.Fatalf("open of the other log = %v", err)
	}
	faulty.SetRules()
	if err := d.Close(t0); err != nil {
		t.Fatal(err)
	}
	if there, _ := vfs.Exists(faulty, "/data/.kafka_cleanshutdown"); there {
		t.Error("a log failed to load, and the folder is clean")
	}
}

func TestRule14_Names(t *testing.T) {
	allowed := regexp.MustCompile(`^([0-9]{20}\.(log|index|timeindex|txnindex|snapshot|dedupe)|leader-epoch-checkpoint|partition\.metadata|[a-z-]+\.slot|LOCK)$`)
	inRoot := regexp.MustCompile(`^((recovery-point-offset|replication-offset|log-start-offset|cleaner-offset)-checkpoint|meta\.properties|\.kafka_cleanshutdown|\.lock|[a-z-]+\.slot|LOCK)$`)
	eachFolder(t, func(t *testing.T, x *folder) {
		for dir, files := range x.dirs {
			for name := range files {
				if !allowed.MatchString(name) {
					t.Errorf("%s/%s", dir, name)
				}
			}
		}
		for name := range x.root {
			if !inRoot.MatchString(name) {
				t.Errorf("file %s in the data folder", name)
			}
		}
	})
}

func TestRule15_TxnIndex(t *testing.T) {
	eachLog(t, func(t *testing.T, place string, files map[string][]byte, base int64, _ []diskBatch) {
		b := files[fmt.Sprintf("%020d.txnindex", base)]
		if len(b)%34 != 0 {
			t.Errorf("%s.txnindex has %d bytes", place, len(b))
		}
		for ; len(b) >= 34; b = b[34:] {
			if binary.BigEndian.Uint16(b) != 0 {
				t.Errorf("%s.txnindex has an entry of version %d", place, binary.BigEndian.Uint16(b))
			}
		}
	})
}

func TestRule16_CheckpointsWellFormed(t *testing.T) {
	eachFolder(t, func(t *testing.T, x *folder) {
		for _, name := range []string{"recovery-point-offset-checkpoint", "replication-offset-checkpoint", "log-start-offset-checkpoint"} {
			m, err := parseOffsets(x.root[name])
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
			for p, offset := range m {
				if offset < 0 {
					t.Errorf("%s: %s at %d", name, p, offset)
				}
				// Scenario 100: only logs whose start lies above their first segment.
				if name == "log-start-offset-checkpoint" && offset <= logs(x.dirs[p])[0] {
					t.Errorf("%s lists %s at %d", name, p, offset)
				}
			}
		}
		if b, ok := x.root["cleaner-offset-checkpoint"]; ok {
			if _, err := parseOffsets(b); err != nil {
				t.Error(err)
			}
		}
		for dir, files := range x.dirs {
			if _, err := parseEpochs(files["leader-epoch-checkpoint"]); err != nil {
				t.Errorf("%s: %v", dir, err)
			}
		}
	})
}

func TestRule17_OffsetsAscend(t *testing.T) {
	eachFolder(t, func(t *testing.T, x *folder) {
		for dir, files := range x.dirs {
			next := int64(0)
			for _, base := range logs(files) {
				if base < next {
					t.Errorf("%s: segment %d begins below %d", dir, base, next)
				}
				batches, _ := parseBatches(files[fmt.Sprintf("%020d.log", base)])
				for _, b := range batches {
					if b.base < next || b.last < b.base {
						t.Errorf("%s: batch %d to %d, %d is due", dir, b.base, b.last, next)
					}
					next = b.last + 1
				}
				next = max(next, base)
			}
			if next > x.end[dir] {
				t.Errorf("%s: batches up to %d, the log ends at %d", dir, next, x.end[dir])
			}
		}
	})
}
