package main

import (
	"os"
	"path/filepath"

	"github.com/tidemark-log/tidemark/internal/checkpoint"
)

// A fileKind is what a file of a data or partition directory holds, told by
// its name (log-format §1).
type fileKind string

const (
	kindLog              fileKind = "log"
	kindOffsetIndex      fileKind = "offsetIndex"
	kindTimeIndex        fileKind = "timeIndex"
	kindTxnIndex         fileKind = "txnIndex"
	kindSnapshot         fileKind = "producerSnapshot"
	kindMetadataSnapshot fileKind = "metadataSnapshot" // KRaft; batches
	kindEpochs           fileKind = "leaderEpochs"
	kindRecoveryPoint    fileKind = "recoveryPoint"
	kindHighWatermark    fileKind = "highWatermark"
	kindLogStart         fileKind = "logStartOffset"
	kindCleanerOffset    fileKind = "cleanerOffset"
	kindMeta             fileKind = "metaProperties"
	kindPartition        fileKind = "partitionMetadata"
	kindCleanMarker      fileKind = "cleanShutdown"
	kindUnknown          fileKind = "unknown"
)

var segmentKinds = map[checkpoint.Kind]fileKind{
	checkpoint.Log: kindLog, checkpoint.Index: kindOffsetIndex, checkpoint.TimeIndex: kindTimeIndex,
	checkpoint.TxnIndex: kindTxnIndex, checkpoint.Snapshot: kindSnapshot,
}

var fixedNames = map[string]fileKind{
	checkpoint.LeaderEpochFile:    kindEpochs,
	checkpoint.PartitionFile:      kindPartition,
	checkpoint.RecoveryPointFile:  kindRecoveryPoint,
	checkpoint.HighWatermarkFile:  kindHighWatermark,
	checkpoint.LogStartOffsetFile: kindLogStart,
	checkpoint.CleanerOffsetFile:  kindCleanerOffset,
	checkpoint.MetaFile:           kindMeta,
	checkpoint.CleanMarkerFile:    kindCleanMarker,
	"bootstrap.checkpoint":        kindMetadataSnapshot,
}

// kindOf tells by its name what a file holds. base is the base offset that
// relative offsets in it count from. err is set for a name that Kafka's loader
// takes for a segment file although it is none, which no writer makes.
func kindOf(name string) (kind fileKind, f checkpoint.SegmentFile, err error) {
	name = filepath.Base(name)
	if k, ok := fixedNames[name]; ok {
		return k, f, nil
	}
	if _, _, ok := checkpoint.ParseMetadataSnapshot(name); ok {
		return kindMetadataSnapshot, f, nil
	}
	switch f, err = checkpoint.ParseSegmentFile(name); err {
	case nil:
		return segmentKinds[f.Kind], f, nil
	case checkpoint.ErrUnknownName:
		return kindUnknown, f, nil
	}
	return kindUnknown, f, err
}

// A dirKind is what a directory holds.
type dirKind int

const (
	dirOther     dirKind = iota
	dirPartition         // segments
	dirData              // partitions
)

// dirKindOf tells what a directory holds by the names in it: a copied replica
// may have any name itself.
func dirKindOf(entries []os.DirEntry, path string) dirKind {
	if hasSegments(entries) {
		return dirPartition
	}
	for _, e := range entries {
		if e.IsDir() && isPartitionDir(filepath.Join(path, e.Name())) {
			return dirData
		}
		switch kind, _, _ := kindOf(e.Name()); kind {
		case kindRecoveryPoint, kindHighWatermark, kindLogStart, kindCleanerOffset, kindMeta, kindCleanMarker:
			return dirData
		}
	}
	if partitionName(path) != "" {
		return dirPartition // an empty one
	}
	return dirOther
}

// hasSegments reports whether files are there that only a partition has.
func hasSegments(entries []os.DirEntry) bool {
	for _, e := range entries {
		switch kind, _, _ := kindOf(e.Name()); kind {
		case kindLog, kindOffsetIndex, kindTimeIndex, kindTxnIndex, kindSnapshot, kindEpochs, kindPartition:
			if !e.IsDir() {
				return true
			}
		}
	}
	return false
}

// dataFolders returns the paths, and in place of a folder of data folders, such as that of
// a cluster, what is in it: the folders with the file that a broker or a node leaves in
// its own. What cannot be read is for the command to say.
func dataFolders(paths []string) (list []string) {
	hasMeta := func(dir string) bool {
		_, err := os.Lstat(filepath.Join(dir, checkpoint.MetaFile))
		return err == nil
	}
	for _, path := range paths {
		found := len(list)
		if !hasMeta(path) {
			entries, _ := os.ReadDir(path)
			for _, e := range entries {
				if sub := filepath.Join(path, e.Name()); e.IsDir() && hasMeta(sub) {
					list = append(list, sub)
				}
			}
		}
		if len(list) == found {
			list = append(list, path)
		}
	}
	return list
}

// isPartitionDir reports whether a sub-directory of a data directory is to be
// looked into.
func isPartitionDir(path string) bool {
	if _, err := checkpoint.ParsePartitionDir(filepath.Base(path)); err == nil {
		return true
	}
	entries, err := os.ReadDir(path)
	return err == nil && hasSegments(entries)
}

// closedCleanly reports whether the data directory has the marker that Kafka
// and Tidemark leave when they stop in order.
func closedCleanly(dataDir string) bool {
	_, err := os.Lstat(filepath.Join(dataDir, checkpoint.CleanMarkerFile))
	return err == nil
}

// A folderState is what decides how the end of a log file is to be taken.
type folderState struct {
	clean   bool   // the data folder was closed cleanly
	lastLog string // name of the partition's last segment
}

// stateOf returns the state of a partition folder with those entries.
func stateOf(dir string, entries []os.DirEntry) folderState {
	st := folderState{clean: closedCleanly(parentDir(dir))}
	for _, e := range entries {
		// Names of 20 digits ascend as their offsets do.
		if kind, f, _ := kindOf(e.Name()); kind == kindLog && f.Stage == checkpoint.Live {
			st.lastLog = max(st.lastLog, e.Name())
		}
	}
	return st
}

// stateBeside returns the state of the folder that a file lies in.
func stateBeside(path string) folderState {
	dir := filepath.Dir(path)
	entries, _ := os.ReadDir(dir)
	return stateOf(dir, entries)
}

// open reports whether a log file may have been left, or be, in the middle of
// a write: it is the last of a folder that was not closed cleanly.
func (st folderState) open(path string) bool {
	return !st.clean && filepath.Base(path) == st.lastLog
}

// partitionName returns the name that a partition folder has in checkpoints,
// empty if it is not where a broker would serve it from.
func partitionName(dir string) string {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return ""
	}
	d, err := checkpoint.ParsePartitionDir(filepath.Base(abs))
	if err != nil || d.State != checkpoint.DirCurrent {
		return ""
	}
	return d.String()
}

// parentDir is the folder that the folder dir lies in, "." included.
func parentDir(dir string) string {
	if abs, err := filepath.Abs(dir); err == nil {
		return filepath.Dir(abs)
	}
	return filepath.Join(dir, "..")
}
