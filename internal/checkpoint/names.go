package checkpoint

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// ErrUnknownName marks a name that none of Kafka's rules covers: its loader
// ignores such a file and keeps it (log-format §1.2).
var ErrUnknownName = errors.New("not a name of a segment file")

// A Kind is what a segment file holds: its suffix.
type Kind string

const (
	Log       Kind = ".log"
	Index     Kind = ".index"
	TimeIndex Kind = ".timeindex"
	TxnIndex  Kind = ".txnindex"
	Snapshot  Kind = ".snapshot"
)

// A Stage is what stands behind the suffix of a file on its way in or out.
type Stage string

const (
	Live    Stage = ""
	Deleted Stage = ".deleted" // waiting for delayed removal
	Cleaned Stage = ".cleaned" // written by compaction or a split, not finished
	Swap    Stage = ".swap"    // finished replacement, about to take its place
)

// SegmentFile is the name of one file of a segment.
type SegmentFile struct {
	Base  int64 // base offset; for a snapshot the first offset it does not cover
	Kind  Kind
	Stage Stage
}

func (f SegmentFile) String() string {
	return fmt.Sprintf("%020d%s%s", f.Base, f.Kind, f.Stage)
}

// ParseSegmentFile reads the name of a segment file: 20 digits, suffix,
// perhaps a stage. The error is ErrUnknownName for a name that Kafka ignores,
// and another one for a name that its loader takes for a segment file although
// it breaks the form: on "abc.log" the broker exits, "5.log" gets companions
// of another base name. Neither must be written, nor touched.
func ParseSegmentFile(name string) (SegmentFile, error) {
	var f SegmentFile
	s := name
	for _, st := range []Stage{Deleted, Cleaned, Swap} {
		if r, ok := strings.CutSuffix(s, string(st)); ok {
			s, f.Stage = r, st
			break
		}
	}
	base, _, _ := strings.Cut(s, ".")
	for _, k := range []Kind{Log, Index, TimeIndex, TxnIndex, Snapshot} {
		if strings.HasSuffix(s, string(k)) {
			f.Kind = k
		}
	}
	n, digits := parseDigits(base, 20)
	switch {
	case f.Kind == "" && f.Stage != Swap && f.Stage != Cleaned:
		return SegmentFile{}, ErrUnknownName
	case f.Kind == "" && digits:
		return SegmentFile{}, ErrUnknownName // B.anything.swap
	case !digits || base+string(f.Kind) != s:
		return SegmentFile{}, fmt.Errorf("parse segment file name %q: found %q before the suffix, want 20 digits", name, strings.TrimSuffix(s, string(f.Kind)))
	}
	f.Base = n
	return f, nil
}

// ParseMetadataSnapshot reads the name of a KRaft snapshot, offset and epoch
// as in 00000000000000000140-0000000001.checkpoint.
func ParseMetadataSnapshot(name string) (endOffset int64, epoch int32, ok bool) {
	s, ok := strings.CutSuffix(name, ".checkpoint")
	o, e, dash := strings.Cut(s, "-")
	if !ok || !dash {
		return 0, 0, false
	}
	endOffset, ok = parseDigits(o, 20)
	n, ok2 := parseDigits(e, 10)
	if !ok || !ok2 || n != int64(int32(n)) {
		return 0, 0, false
	}
	return endOffset, int32(n), true
}

// parseDigits reads exactly width decimal digits.
func parseDigits(s string, width int) (int64, bool) {
	if len(s) != width || strings.Trim(s, "0123456789") != "" {
		return 0, false
	}
	n, err := strconv.ParseInt(s, 10, 64)
	return n, err == nil
}

// A DirState is why a partition directory has another name than its partition.
type DirState string

const (
	DirCurrent DirState = ""
	DirFuture  DirState = "future" // replica being moved between disks
	DirDelete  DirState = "delete" // waiting for asynchronous deletion
	DirStray   DirState = "stray"  // found at start, not this broker's
)

// PartitionDir is the name of a partition's directory.
type PartitionDir struct {
	Topic     string // may be cut short in the name of a future, delete or stray directory
	Partition int32
	State     DirState
	ID        string // the 32 hexadecimal digits of any state but DirCurrent
}

// maxDirName is the longest name of a directory, in bytes.
const maxDirName = 255

// String is the directory's name. Where it would pass 255 bytes the topic is
// cut, so that state and ID survive (log-format §1.1).
func (d PartitionDir) String() string {
	suffix := "-" + strconv.Itoa(int(d.Partition))
	if d.State != DirCurrent {
		suffix += "." + d.ID + "-" + string(d.State)
	}
	return d.Topic[:min(len(d.Topic), max(0, maxDirName-len(suffix)))] + suffix
}

// ParsePartitionDir reads the name of a partition directory. The partition is
// the decimal after the last '-'; the topic may itself contain '-'. Any other
// sub-directory of a data directory makes Kafka refuse to start.
func ParsePartitionDir(name string) (PartitionDir, error) {
	var d PartitionDir
	bad := func(found, want string) (PartitionDir, error) {
		return PartitionDir{}, fmt.Errorf("parse partition directory name %q: found %s, want %s", name, found, want)
	}
	if len(name) > maxDirName {
		return bad(strconv.Itoa(len(name))+" bytes", "at most 255")
	}
	s := name
	for _, st := range []DirState{DirFuture, DirDelete, DirStray} {
		r, ok := strings.CutSuffix(s, "-"+string(st))
		if !ok {
			continue
		}
		dot := strings.LastIndexByte(r, '.')
		if id := r[dot+1:]; dot < 0 || len(id) != 32 || strings.Trim(id, "0123456789abcdef") != "" {
			return bad(strconv.Quote(id), "'.' and 32 hexadecimal digits before -"+string(st))
		}
		s, d.State, d.ID = r[:dot], st, r[dot+1:]
		break
	}
	dash := strings.LastIndexByte(s, '-')
	if dash < 0 {
		return bad("no '-'", "topic-partition")
	}
	n, err := strconv.ParseInt(s[dash+1:], 10, 32)
	if err != nil || n < 0 || strconv.FormatInt(n, 10) != s[dash+1:] {
		return bad(strconv.Quote(s[dash+1:]), "a partition number after the last '-'")
	}
	d.Topic, d.Partition = s[:dash], int32(n)
	if !ValidTopic(d.Topic) {
		return bad(fmt.Sprintf("topic %q", d.Topic), "1 to 249 of a-z A-Z 0-9 . _ -")
	}
	return d, nil
}
