package main

import (
	"cmp"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/tidemark-log/tidemark/internal/checkpoint"
	"github.com/tidemark-log/tidemark/record"
)

// clusterMetadataID is the topic id of __cluster_metadata, the same everywhere.
var clusterMetadataID = checkpoint.UUID{15: 1}

// partition is the check of one partition: what is carried from one segment to
// the next.
type partition struct {
	*verifier
	dir   string
	clean bool // the data folder was closed cleanly
	own   bool // written by this module, which trims sealed segments after the roll

	topicID    checkpoint.UUID
	topicIDPos int64 // in partition.metadata

	start int64 // log start offset as far as the folder knows it
	next  int64 // above the last offset of the batches so far
	any   bool  // there was a batch
	dense bool  // every offset from 0 to next has been seen, and in order

	epochs    []checkpoint.Epoch
	epochText []byte // the epoch file
	hasEpochs bool   // it could be read
	lastEpoch int32  // of the last batch that had one
	epochEnd  int64  // above the offsets of that batch
	epochSaid [2]int32

	frame       [2]record.ControlType // first and last record of a KRaft snapshot, -1 for data
	firstRecord int64                 // records counted before it

	recent []copyOf // the last batches, to tell a copy from disorder
	txns   openTxns
	states *stateCheck
}

// partition checks a partition folder. It returns its topic id, and where in
// partition.metadata that stands. tp is the partition's name in the checkpoints
// of r, empty if it has none.
func (v *verifier) partition(dir string, entries []os.DirEntry, r *root, tp string) (id checkpoint.UUID, idPos int64) {
	v.count.partitions++
	p := &partition{verifier: v, dir: dir, clean: r.clean, lastEpoch: record.NoLeaderEpoch, epochSaid: [2]int32{-2, -2}}
	segments, snapshots := p.list(entries)
	bases := slices.Sorted(maps.Keys(segments))
	first := int64(0)
	if len(bases) > 0 {
		first = bases[0]
	}
	p.start, p.next, p.dense = max(first, r.values[kindLogStart][tp].offset), first, first == 0
	p.checkStates(entries, first)
	for i, base := range bases {
		if v.out.err != nil {
			return p.topicID, p.topicIDPos
		}
		s := segments[base]
		s.last = i == len(bases)-1
		if s.last {
			s.end = -1
		} else {
			s.end = bases[i+1]
		}
		p.segment(s)
	}
	if len(bases) == 0 {
		return p.topicID, p.topicIDPos
	}
	p.next = max(p.next, bases[len(bases)-1])
	p.checkEpochEnd()
	p.states.finish(p.next)
	p.checkSnapshots(snapshots)
	if tp != "" {
		p.checkRoot(r, tp, first)
	}
	return p.topicID, p.topicIDPos
}

// list goes through the names of a partition folder (log-format §1.2).
func (p *partition) list(entries []os.DirEntry) (segments map[int64]*segment, snapshots []int64) {
	segments = map[int64]*segment{}
	seg := func(base int64) *segment {
		if segments[base] == nil {
			segments[base] = &segment{base: base, whole: true}
		}
		return segments[base]
	}
	for _, e := range entries {
		path := filepath.Join(p.dir, e.Name())
		kind, name, err := kindOf(e.Name())
		switch {
		case e.IsDir():
			p.note(path, "name", "a folder inside a partition folder", "")
			continue
		case err != nil:
			p.fault(path, "name", fmt.Sprintf("%q", e.Name()), "20 digits before the suffix: Kafka does not start on it")
			continue
		case strings.HasSuffix(e.Name(), string(checkpoint.Deleted)):
			p.note(path, "name", "a file waiting for deletion", "")
			continue
		case name.Stage == checkpoint.Cleaned || strings.HasSuffix(e.Name(), string(checkpoint.Cleaned)):
			p.note(path, "name", "unfinished output of a cleaning, deleted at load", "")
			continue
		case name.Stage == checkpoint.Swap:
			p.note(path, "name", "a replacement about to take its place, finished at load", "")
			if kind == kindLog {
				p.alone(p.dir, p.clean).segment(&segment{base: name.Base, log: path, end: -1, stage: name.Stage})
			}
			continue
		}
		p.verifier.count.files++
		switch kind {
		case kindLog:
			seg(name.Base).log = path
		case kindOffsetIndex:
			seg(name.Base).index = path
		case kindTimeIndex:
			seg(name.Base).timeIndex = path
		case kindTxnIndex:
			seg(name.Base).txnIndex = path
		case kindSnapshot:
			snapshots = append(snapshots, name.Base)
			p.snapshot(path, p.clean)
		case kindEpochs:
			parsed, b := p.small(path, kind)
			p.epochs, p.hasEpochs = parsed.([]checkpoint.Epoch)
			p.epochText = b
		case kindPartition:
			parsed, b := p.small(path, kind)
			m, ok := parsed.(checkpoint.Partition)
			p.topicID, p.topicIDPos = m.TopicID, linePos(b, 2)
			name := partitionName(p.dir) // empty for a copy: that may be of any partition
			if metadata := strings.HasPrefix(name, "__cluster_metadata-"); ok && name != "" && metadata != (m.TopicID == clusterMetadataID) {
				p.report(finding{false, path, p.topicIDPos, -1, "topic id", m.TopicID.String(), clusterMetadataID.String() + " for __cluster_metadata and no other topic"})
			}
		case kindMetadataSnapshot:
			p.metadataSnapshot(path)
		case kindUnknown:
			p.verifier.count.files--
			p.own = p.own || e.Name() == slotFile
			if !ownFile(e.Name()) && e.Name() != "quorum-state" {
				p.note(path, "name", "a file of unknown kind", "")
			}
		default:
			p.note(path, "name", fmt.Sprintf("a file of kind %s inside a partition folder", kind), "")
			p.small(path, kind)
		}
	}
	for base, s := range segments {
		if s.log == "" {
			for _, path := range []string{s.index, s.timeIndex, s.txnIndex} {
				if path != "" {
					p.note(path, "file", "an index without its log, deleted at load", "")
				}
			}
			delete(segments, base)
		}
	}
	return segments, snapshots
}

// checkSnapshots compares the names of the producer snapshots with the end of
// the log (log-format §12 rules 6 and 7).
func (p *partition) checkSnapshots(snapshots []int64) {
	for _, o := range snapshots {
		if o > p.next {
			p.report(finding{!p.clean, filepath.Join(p.dir, checkpoint.SegmentFile{Base: o, Kind: checkpoint.Snapshot}.String()),
				-1, o, "producer snapshot", fmt.Sprintf("state up to offset %d", o), fmt.Sprintf("at most the log's end %d", p.next)})
		}
	}
	if p.any && !slices.Contains(snapshots, p.next) {
		p.note(p.dir, "producer snapshot", "none at the log's end", fmt.Sprintf("one at %d", p.next))
	}
}

// padded reports whether indexes may end in zeros: after an unclean stop, and
// always in the metadata log, which the marker does not vouch for.
func (p *partition) padded() bool { return !p.clean || filepath.Base(p.dir) == "__cluster_metadata-0" }

// checkRoot compares the checkpoints of the data folder with the log.
func (p *partition) checkRoot(r *root, tp string, first int64) {
	check := func(kind fileKind, rule string, each func(n int64) (note bool, wanted string)) {
		v, ok := r.values[kind][tp]
		if !ok {
			return
		}
		if note, wanted := each(v.offset); wanted != "" {
			p.report(finding{note, r.path(kind), v.pos, v.offset, rule, fmt.Sprintf("%d for %s", v.offset, tp), wanted})
		}
	}
	atMostEnd := fmt.Sprintf("at most the log's end %d", p.next)
	check(kindRecoveryPoint, "recovery point", func(n int64) (bool, string) {
		switch {
		case n > p.next: // what was synced is missing (replication R32)
			return false, atMostEnd
		case n < p.next: // with the clean marker its value does not matter (log-format §4.2 row 10)
			return true, fmt.Sprintf("the log's end %d", p.next)
		}
		return false, ""
	})
	check(kindHighWatermark, "high watermark", func(n int64) (bool, string) {
		switch {
		case n > p.next:
			return !p.clean, atMostEnd
		case n < p.start:
			return true, fmt.Sprintf("at least the log start %d", p.start)
		}
		return false, ""
	})
	check(kindLogStart, "log start", func(n int64) (bool, string) {
		switch {
		case n > p.next: // Kafka then deletes every segment (log-format §4.2 step 11)
			return false, atMostEnd
		case n < first:
			return true, fmt.Sprintf("at least the first segment's base %d", first)
		}
		return false, ""
	})
	check(kindCleanerOffset, "cleaner offset", func(n int64) (bool, string) {
		switch {
		case n > p.next:
			return !p.clean, atMostEnd
		case n < first:
			return true, fmt.Sprintf("at least the first segment's base %d", first)
		}
		return false, ""
	})
}

// checkEpoch compares the leader epoch of a batch, which no checksum covers,
// with those before it and with the epoch file (log-format §6).
func (p *partition) checkEpoch(s *segment, pos int64, b record.Batch) {
	epoch, base := b.LeaderEpoch(), b.BaseOffset()
	bad := func(note bool, found int32, wanted string) {
		p.report(finding{note, s.log, pos + 12, base, "leader epoch", fmt.Sprint(found), wanted})
	}
	if epoch < record.NoLeaderEpoch {
		bad(false, epoch, "at least -1")
		return
	}
	if epoch == record.NoLeaderEpoch { // kept by Kafka, without an entry
		return
	}
	n, _ := slices.BinarySearchFunc(p.epochs, base+1, func(e checkpoint.Epoch, o int64) int { return cmp.Compare(e.StartOffset, o) })
	cover := checkpoint.Epoch{Epoch: record.NoLeaderEpoch}
	if n > 0 {
		cover = p.epochs[n-1]
	}
	// A leader of a lower epoch goes on behind a foreign log; its entry begins
	// there.
	if epoch < p.lastEpoch && (cover.Epoch != epoch || cover.StartOffset < p.epochEnd) {
		bad(false, epoch, fmt.Sprintf("at least %d, that of the batch before", p.lastEpoch))
		return
	}
	p.lastEpoch, p.epochEnd = epoch, b.NextOffset()
	if !p.hasEpochs || s.stage != checkpoint.Live {
		return
	}
	// Below the log start the file need not reach.
	if cover.Epoch == epoch || cover.Epoch < 0 && base < p.start {
		return
	}
	if said := [2]int32{cover.Epoch, epoch}; said != p.epochSaid {
		p.epochSaid = said
		// Without order at the stop the file may end too early; recovery mends it.
		// With a later entry the log came from a cluster of higher epochs, and the
		// leader that took it over began below them: their entries went.
		above := epoch > cover.Epoch && !p.clean
		if n < len(p.epochs) {
			above = epoch > cover.Epoch && (cover.Epoch >= 0 || epoch >= p.epochs[n].Epoch)
		}
		missing := len(p.epochs) == 0
		wanted := fmt.Sprintf("%d, that of the epoch file", cover.Epoch)
		if cover.Epoch < 0 {
			wanted = "an entry of the epoch file to cover it"
		}
		bad(missing || above, epoch, wanted)
	}
}

// checkEpochEnd looks for entries that promise more than the log has. One at
// its end is what an election without data leaves.
func (p *partition) checkEpochEnd() {
	if p.any && !p.hasEpochs && p.lastEpoch >= 0 {
		p.note(p.dir, "epoch file", "none that can be read", fmt.Sprintf("epochs up to %d", p.lastEpoch))
	}
	// Starts ascend, so only the last entries can.
	n, _ := slices.BinarySearchFunc(p.epochs, p.next+1, func(e checkpoint.Epoch, o int64) int { return cmp.Compare(e.StartOffset, o) })
	if n < len(p.epochs) {
		e := p.epochs[n]
		p.report(finding{!p.clean, filepath.Join(p.dir, checkpoint.LeaderEpochFile), linePos(p.epochText, 3+n), e.StartOffset, "leader epoch",
			fmt.Sprintf("epoch %d from %d", e.Epoch, e.StartOffset), fmt.Sprintf("at most the log's end %d", p.next)})
	}
}

// copyOf identifies a batch well enough to tell that another is the same.
type copyOf struct {
	base, last int64
	crc        uint32
}

// remember keeps the batch among the recent ones.
func (p *partition) remember(b record.Batch) {
	const window = 256
	if len(p.recent) == window {
		p.recent = append(p.recent[:0], p.recent[window/2:]...)
	}
	p.recent = append(p.recent, copyOf{b.BaseOffset(), b.LastOffset(), b.CRC()})
}

// openTxns follows the transactions of a log, to check the transaction index.
type openTxns struct {
	first map[int64]int64 // producer id to the first offset of its open transaction
	queue []openTxn       // in the order they began; may hold ended ones
	lost  bool            // more are open than are followed
}

type openTxn struct{ pid, first int64 }

// maxOpenTxns bounds the memory that a log can ask for.
const maxOpenTxns = 1 << 20

func (t *openTxns) begin(pid, offset int64) {
	if _, ok := t.first[pid]; ok {
		return
	}
	if len(t.first) == maxOpenTxns {
		t.lost = true
		return
	}
	if t.first == nil {
		t.first = map[int64]int64{}
	}
	t.first[pid] = offset
	if len(t.queue) > 2*len(t.first)+64 {
		t.queue = slices.DeleteFunc(t.queue, t.ended)
	}
	t.queue = append(t.queue, openTxn{pid, offset})
}

func (t *openTxns) ended(o openTxn) bool {
	first, ok := t.first[o.pid]
	return !ok || first != o.first
}

// end closes pid's transaction with a marker at offset. It returns where the
// transaction began, -1 if that is not known, and the last stable offset
// behind it: the beginning of the oldest other one, else the next offset.
func (t *openTxns) end(pid, offset int64) (first, stable int64) {
	first, ok := t.first[pid]
	if !ok {
		first = -1
	}
	delete(t.first, pid)
	for len(t.queue) > 0 && t.ended(t.queue[0]) {
		t.queue = t.queue[1:]
	}
	if len(t.queue) > 0 {
		return first, t.queue[0].first
	}
	return first, offset + 1
}
