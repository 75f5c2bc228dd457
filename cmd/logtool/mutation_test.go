package main

import (
	"bytes"
	"encoding/binary"
	"flag"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/tidemark-log/tidemark/internal/checkpoint"
	"github.com/tidemark-log/tidemark/record"
)

var (
	mutations    = flag.Int("mutations", 1000, "how many mutations to try")
	mutationSeed = flag.Uint64("mutation-seed", 1, "seed of the mutations")
)

// mutation is one change to one file.
type mutation struct {
	what          string
	path          string // relative to the folder
	before, after []byte
}

// TestMutations changes files that Kafka wrote, one at a time, at random. Each
// change must be found, with exit code 1 and a fault that names the file and
// the position, or be harmless for a reason that harmless states.
func TestMutations(t *testing.T) {
	rng := rand.New(rand.NewPCG(*mutationSeed, 0))
	type folder struct {
		dir   string
		files []string
	}
	var folders []folder
	for _, name := range []string{"kafka-4.4-closed", "kafka-4.4-killed", "kafka-4.4-three-replicas"} {
		f := folder{dir: copyDir(t, filepath.Join(testdata, name))}
		filepath.WalkDir(f.dir, func(path string, e fs.DirEntry, err error) error {
			// Nothing reads the truth, quorum-state or the stray checkpoints.
			rel, _ := filepath.Rel(f.dir, path)
			if kind, _, _ := kindOf(path); err == nil && !e.IsDir() && kind != kindUnknown && !strings.HasPrefix(rel, "truth") {
				if info, err := e.Info(); err == nil && info.Size() > 0 {
					f.files = append(f.files, rel)
				}
			}
			return nil
		})
		folders = append(folders, f)
	}
	found := 0
	reasons := map[string]int{}
	for n := range *mutations {
		f := folders[rng.IntN(len(folders))]
		m := mutate(rng, f.dir, f.files)
		path := filepath.Join(f.dir, m.path)
		if err := os.WriteFile(path, m.after, 0o644); err != nil {
			t.Fatal(err)
		}
		// The folder of a partition takes in what the data folder says of it, but
		// only the data folder compares partitions.
		target := f.dir
		if kind, _, _ := kindOf(path); kind != kindPartition && filepath.Dir(m.path) != "." {
			target = filepath.Dir(path)
		}
		code, out, stderr := logtool("verify", "--json", target)
		reason := harmless(f.dir, m)
		switch {
		case code == exitDamage:
			found++
			if !names(t, out, path) {
				t.Errorf("seed %d, mutation %d, %s %s: no fault names the file and a position\n%s", *mutationSeed, n, m.path, m.what, out)
			}
		case code == exitOK && reason != "":
			reasons[reason]++
		default:
			t.Errorf("seed %d, mutation %d, %s/%s %s: exit %d and no reason%s", *mutationSeed, n, filepath.Base(f.dir), m.path, m.what, code, stderr)
		}
		if code, _, _ := logtool("dump", "--json", "--records", path); code != exitOK && code != exitDamage {
			t.Errorf("seed %d, mutation %d, %s %s: dump exits %d", *mutationSeed, n, m.path, m.what, code)
		}
		if err := os.WriteFile(path, m.before, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("%d of %d mutations found", found, *mutations)
	for r, n := range reasons {
		t.Logf("%4d harmless: %s", n, r)
	}
}

// names reports whether a fault names the file, in place of the one that it
// contradicts if need be, and a position.
func names(t *testing.T, out, path string) bool {
	for _, f := range findings(t, out, "fault") {
		if f.Position == nil {
			continue
		}
		if f.File == path {
			return true
		}
		// Where two files disagree one of them is named as the place, the other in
		// the text.
		kind, _, _ := kindOf(path)
		switch {
		case kind == kindPartition && f.Check == "topic id",
			(kind == kindEpochs || kind == kindLogStart) && f.Check == "leader epoch",
			kind == kindLog && slices.Contains([]string{"entry", "last entry", "recovery point", "high watermark", "leader epoch"}, f.Check):
			return true
		}
	}
	return false
}

// mutate makes one change to one of the files.
func mutate(rng *rand.Rand, dir string, files []string) mutation {
	for {
		m := mutation{path: files[rng.IntN(len(files))]}
		b, err := os.ReadFile(filepath.Join(dir, m.path))
		if err != nil {
			panic(err)
		}
		m.before = b
		m.after = slices.Clone(b)
		switch at := rng.IntN(len(b)); rng.IntN(5) {
		case 0:
			m.what = fmt.Sprintf("flip bits of byte %d", at)
			m.after[at] ^= byte(1 + rng.IntN(255))
		case 1:
			m.what = fmt.Sprintf("cut at %d", at)
			m.after = m.after[:at]
		case 2:
			n := 1 + rng.IntN(min(64, len(b)))
			x, y := rng.IntN(len(b)-n+1), rng.IntN(len(b)-n+1)
			if x+n > y && y+n > x {
				continue
			}
			m.what = fmt.Sprintf("swap %d bytes at %d and %d", n, x, y)
			copy(m.after[x:x+n], b[y:y+n])
			copy(m.after[y:y+n], b[x:x+n])
		case 3:
			n := []int{1, 64, 512}[rng.IntN(3)]
			at = at / n * n
			m.what = fmt.Sprintf("zero %d bytes at %d", n, at)
			clear(m.after[at:min(len(b), at+n)])
		case 4:
			batches := batchesOf(b)
			if kind, _, _ := kindOf(m.path); kind != kindLog && kind != kindMetadataSnapshot || len(batches) == 0 {
				continue
			}
			pos := batches[rng.IntN(len(batches))].pos
			length := []uint32{0, 1, 13, 14, 48, 49, 1 << 20, 1<<31 - 1, 1 << 31, rng.Uint32N(4096)}[rng.IntN(10)]
			m.what = fmt.Sprintf("length %d at %d", int32(length), pos)
			binary.BigEndian.PutUint32(m.after[pos+8:], length)
		}
		if !bytes.Equal(m.before, m.after) {
			return m
		}
	}
}

type batchAt struct {
	pos int
	record.Batch
}

// batchesOf returns the batches of a log file, up to the first that is none.
func batchesOf(b []byte) (all []batchAt) {
	for pos := 0; pos < len(b); {
		batch, err := record.Check(b[pos:])
		if err != nil {
			break
		}
		all = append(all, batchAt{pos, batch})
		pos += len(batch)
	}
	return all
}

// harmless says why a mutation need not be found, empty if it must be. It
// knows the files as slices and judges by the rules of the format, not by what
// verify does.
func harmless(dir string, m mutation) string {
	path := filepath.Join(dir, m.path)
	kind, name, _ := kindOf(path)
	clean := closedCleanly(dir)
	switch kind {
	case kindMeta:
		if _, err := checkpoint.ParseMeta(m.after); err == nil {
			return "whose directory it is, and when that was written, is said nowhere else"
		}
	case kindCleanMarker:
		if _, err := checkpoint.ParseCleanMarker(m.after); err == nil {
			return "the broker epoch is for the controller to compare"
		}
	case kindPartition:
		p, err := checkpoint.ParsePartition(m.after)
		before, _ := checkpoint.ParsePartition(m.before)
		topic, _, _ := strings.Cut(filepath.Base(filepath.Dir(path)), "-")
		others, _ := filepath.Glob(filepath.Join(dir, topic+"-*"))
		switch {
		case err != nil:
		case p.TopicID == before.TopicID:
			return "readers of partition.metadata accept any version"
		case len(others) == 1 && topic != "__cluster_metadata" || strings.HasPrefix(topic, "replica"):
			return "the id of a topic with one partition is said nowhere else"
		}
	case kindSnapshot:
		if n := len(m.after); !clean && (n < 10 || n < 10+46*int(int32(binary.BigEndian.Uint32(m.after[6:])))) {
			return "a snapshot that was cut short by an unclean stop is dropped at load"
		}
	case kindEpochs:
		return harmlessEpochs(dir, path, m)
	case kindRecoveryPoint, kindHighWatermark, kindLogStart, kindCleanerOffset:
		return harmlessCheckpoint(dir, kind, clean, m)
	case kindLog:
		return harmlessLog(dir, path, clean, m)
	case kindOffsetIndex, kindTimeIndex:
		return harmlessIndex(path, kind, name.Base, clean, m)
	case kindTxnIndex:
		if !clean && len(m.after)%34 == 0 && bytes.HasPrefix(m.before, m.after) {
			return "recovery makes the entries that an unclean stop lost"
		}
	}
	return ""
}

// partitionLog returns the batches of all segments, and which log is the last.
// A file that is being tried counts as it was before.
func partitionLog(dir string, m mutation) (all []batchAt, last string) {
	logs, _ := filepath.Glob(filepath.Join(dir, "*.log"))
	for _, l := range logs {
		b, _ := os.ReadFile(l)
		if strings.HasSuffix(l, m.path) {
			b = m.before
		}
		all = append(all, batchesOf(b)...)
		last = l
	}
	return all, last
}

func harmlessEpochs(dir, path string, m mutation) string {
	before, _ := checkpoint.ParseEpochs(m.before)
	after, err := checkpoint.ParseEpochs(m.after)
	if err != nil {
		return ""
	}
	if len(after) == 0 {
		return "an epoch file without entries is legal"
	}
	batches, _ := partitionLog(filepath.Dir(path), m)
	end := int64(0)
	for _, b := range batches {
		if b.BaseOffset() >= before[0].StartOffset && epochAt(before, b.BaseOffset()) != epochAt(after, b.BaseOffset()) {
			return ""
		}
		end = b.NextOffset()
	}
	if closedCleanly(dir) && after[len(after)-1].StartOffset > end {
		return ""
	}
	return "no batch's epoch changes"
}

func epochAt(epochs []checkpoint.Epoch, offset int64) int32 {
	e := int32(-1)
	for _, x := range epochs {
		if x.StartOffset <= offset {
			e = x.Epoch
		}
	}
	return e
}

func harmlessCheckpoint(dir string, kind fileKind, clean bool, m mutation) string {
	parse := func(b []byte) map[string]int64 {
		offsets, err := checkpoint.ParseOffsets(b)
		if err != nil {
			return nil
		}
		all := map[string]int64{}
		for _, o := range offsets {
			tp := fmt.Sprintf("%s-%d", o.Topic, o.Partition)
			if _, twice := all[tp]; twice {
				return nil
			}
			all[tp] = o.Offset
		}
		return all
	}
	before, after := parse(m.before), parse(m.after)
	if after == nil {
		return ""
	}
	reason := "fewer entries are legal"
	for tp, o := range after {
		if was, ok := before[tp]; ok && was == o {
			continue
		}
		if _, err := os.Stat(filepath.Join(dir, tp)); err != nil || !strings.Contains(tp, "-") {
			reason = "an entry for a partition without a folder is harmless"
			continue
		}
		batches, _ := partitionLog(filepath.Join(dir, tp), m)
		first, end := batches[0].BaseOffset(), batches[len(batches)-1].NextOffset()
		switch {
		case kind == kindHighWatermark && (o <= end || !clean):
			reason = "a high watermark may lie anywhere in the log, and beyond after an unclean stop"
		case kind == kindRecoveryPoint && o <= end:
			reason = "a recovery point may lie anywhere in a log, and says nothing of one closed cleanly"
		case kind == kindCleanerOffset && (o <= end || !clean):
			reason = "a cleaner offset out of range is reset"
		case kind == kindLogStart && o <= end && (o >= 22 || o < first || !clean):
			// Not between the true log start, 22, and the first segment: there the
			// epoch file of a log closed cleanly would have to cover more.
			reason = "a log start may lie anywhere in the log"
		default:
			return ""
		}
	}
	return reason
}

func harmlessLog(dir, path string, clean bool, m mutation) string {
	before := batchesOf(m.before)
	all, last := partitionLog(filepath.Dir(path), m)
	open := !clean && path == last
	same := 0 // bytes before the first change
	for same < len(m.after) && m.before[same] == m.after[same] {
		same++
	}
	// The batch with the first change, and those on both sides.
	i := 0
	for i+1 < len(before) && before[i+1].pos <= same {
		i++
	}
	b := before[i]
	if open && (len(m.after) < len(m.before) || len(bytes.Trim(m.after[same:], "\x00")) == 0) {
		offset := b.BaseOffset()
		if same == b.pos+len(b.Batch) {
			offset = b.NextOffset()
		}
		if recoveryPoint(dir, path) <= offset {
			return "a log that was not closed may end anywhere above its recovery point"
		}
		return ""
	}
	if open && i == len(before)-1 {
		if size, ok := record.PeekSize(m.after[b.pos:]); !ok || size > len(m.after)-b.pos {
			return "the last batch of a log that was not closed may be unfinished"
		}
	}
	// Base offset and leader epoch of one batch lie outside the checksum.
	if len(m.after) != len(m.before) || !bytes.Equal(m.before[:b.pos], m.after[:b.pos]) ||
		!bytes.Equal(m.before[b.pos+16:], m.after[b.pos+16:]) || !bytes.Equal(m.before[b.pos+8:b.pos+12], m.after[b.pos+8:b.pos+12]) {
		return ""
	}
	now := record.Batch(m.after[b.pos:][:len(b.Batch)])
	k := slices.IndexFunc(all, func(x batchAt) bool { return x.BaseOffset() == b.BaseOffset() })
	switch {
	case now.BaseOffset() != b.BaseOffset() && now.LeaderEpoch() != b.LeaderEpoch():
		return ""
	case now.BaseOffset() != b.BaseOffset():
		if k > 0 && now.BaseOffset() <= all[k-1].LastOffset() || k+1 < len(all) && now.LastOffset() >= all[k+1].BaseOffset() {
			return ""
		}
		if k+1 == len(all) && clean && !strings.Contains(path, "__cluster_metadata") {
			return "" // the recovery point names the end
		}
		return "the base offset moves inside a gap, or at an end that nothing names"
	case now.LeaderEpoch() < -1:
		return ""
	}
	text, _ := os.ReadFile(filepath.Join(filepath.Dir(path), checkpoint.LeaderEpochFile))
	epochs, _ := checkpoint.ParseEpochs(text)
	if k > 0 && now.LeaderEpoch() < all[k-1].LeaderEpoch() && now.LeaderEpoch() != -1 {
		return ""
	}
	if k+1 < len(all) && now.LeaderEpoch() > all[k+1].LeaderEpoch() && !slices.ContainsFunc(epochs, func(e checkpoint.Epoch) bool {
		return e.StartOffset > b.LastOffset() && e.StartOffset <= all[k+1].BaseOffset() && e.Epoch == all[k+1].LeaderEpoch()
	}) {
		return ""
	}
	switch cover := epochAt(epochs, b.BaseOffset()); {
	case now.LeaderEpoch() == -1:
		return "a batch may have no leader epoch"
	case cover < 0:
		return "the epoch file does not reach below the log start"
	case now.LeaderEpoch() > cover && epochs[len(epochs)-1].StartOffset > b.BaseOffset():
		return "a leader of a lower epoch may have taken a foreign log over"
	case !clean && epochs[len(epochs)-1].Epoch == cover && now.LeaderEpoch() > cover:
		return "the epoch file may be behind after an unclean stop"
	}
	return ""
}

func recoveryPoint(dir, path string) int64 {
	b, _ := os.ReadFile(filepath.Join(dir, checkpoint.RecoveryPointFile))
	offsets, _ := checkpoint.ParseOffsets(b)
	for _, o := range offsets {
		if fmt.Sprintf("%s-%d", o.Topic, o.Partition) == filepath.Base(filepath.Dir(path)) {
			return o.Offset
		}
	}
	return 0
}

func harmlessIndex(path string, kind fileKind, base int64, clean bool, m mutation) string {
	width := 8
	if kind == kindTimeIndex {
		width = 12
	}
	log, _ := os.ReadFile(filepath.Join(filepath.Dir(path), checkpoint.SegmentFile{Base: base, Kind: checkpoint.Log}.String()))
	batches := batchesOf(log)
	_, last := partitionLog(filepath.Dir(path), m)
	open := !clean && strings.TrimSuffix(path, filepath.Ext(path)) == strings.TrimSuffix(last, ".log")
	if len(m.after)%width != 0 {
		return ""
	}
	used := len(m.after)
	for used > 0 && len(bytes.Trim(m.after[used-width:used], "\x00")) == 0 && !(used == width && len(m.after) == width) {
		used -= width
	}
	if used < len(m.after) && clean {
		return ""
	}
	end := int64(len(log)) // of what the second column counts
	if kind == kindTimeIndex {
		end = batches[len(batches)-1].NextOffset()
	}
	// Entries that fit, from the front.
	fits := 0
	prev := entry{-1, -1}
	var entries []entry
	for i := 0; i < used; i += width {
		e := entry{base + int64(int32(binary.BigEndian.Uint32(m.after[i:]))), 0}
		if width == 8 {
			e.b = int64(int32(binary.BigEndian.Uint32(m.after[i+4:])))
		} else {
			e = entry{int64(binary.BigEndian.Uint64(m.after[i:])), base + int64(int32(binary.BigEndian.Uint32(m.after[i+8:])))}
		}
		entries = append(entries, e)
	}
	for i, e := range entries {
		next := int64(len(log))
		if i+1 < len(entries) {
			next = entries[i+1].b
		}
		ok := e.a > prev.a && e.b > prev.b
		if width == 8 {
			ok = ok && slices.ContainsFunc(batches, func(b batchAt) bool { return int64(b.pos) == e.b }) &&
				slices.ContainsFunc(batches, func(b batchAt) bool {
					return int64(b.pos) >= e.b && (int64(b.pos) < next || i+1 == len(entries)) && b.LastOffset() == e.a
				})
		} else {
			largest := int64(-1)
			ok = ok && slices.ContainsFunc(batches, func(b batchAt) bool {
				fit := b.BaseOffset() <= e.b && e.b <= b.LastOffset() && b.MaxTimestamp() == e.a && largest < e.a &&
					(e.b == b.BaseOffset() || e.b == b.LastOffset() || timestampAt(b.Batch, e.b) == e.a)
				largest = max(largest, b.MaxTimestamp())
				return fit
			})
		}
		if !ok {
			break
		}
		prev = e
		fits++
	}
	switch {
	case fits < len(entries) && open && used < len(m.after) && ascending(entries[fits:]):
		return "old entries may follow the used ones in a file that was not closed"
	case fits < len(entries) && open && ascending(entries[fits:]) && entries[fits].b >= end:
		return "entries may lie beyond the end of a log that was not closed"
	case fits < len(entries):
		return ""
	case width == 12 && fits > 0 && clean && prev.a != slices.MaxFunc(batches, func(x, y batchAt) int { return int(x.MaxTimestamp() - y.MaxTimestamp()) }).MaxTimestamp():
		return "" // the last entry must name the largest timestamp
	}
	return "fewer entries, or others that fit the batches as well, are legal"
}

func ascending(entries []entry) bool {
	return slices.IsSortedFunc(entries, func(x, y entry) int {
		if x.a > y.a || x.b > y.b {
			return 1
		}
		return -1
	})
}

func timestampAt(b record.Batch, offset int64) int64 {
	for r, err := range b.Records() {
		if err == nil && r.Offset == offset {
			return r.Timestamp
		}
	}
	return -2
}
