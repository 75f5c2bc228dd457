package replica

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/tidemark-log/tidemark/internal/checkpoint"
	"github.com/tidemark-log/tidemark/internal/vfs"
)

// Names in a data folder, as Kafka has them (log-format §1.1).
const (
	dirLockName     = ".lock"
	cleanName       = ".kafka_cleanshutdown"
	metaName        = "meta.properties"
	partitionName   = "partition.metadata"
	recoveryName    = "recovery-point-offset-checkpoint"
	highWaterName   = "replication-offset-checkpoint"
	logStartName    = "log-start-offset-checkpoint"
	smallFileLimit  = 1 << 20  // what is read of meta.properties and the like
	checkpointLimit = 64 << 20 // what is read of a checkpoint
)

var (
	// ErrWrongNode means that the data folder belongs to another node or cluster.
	ErrWrongNode = errors.New("data folder belongs to another node")
	// ErrTopicID means that the partition's folder belongs to another topic of
	// the same name (Kafka: INCONSISTENT_TOPIC_ID).
	ErrTopicID = errors.New("inconsistent topic id")
)

// UUID is a Kafka uuid; as text 22 characters of URL-safe base64.
type UUID = checkpoint.UUID

// TopicPartition names a partition.
type TopicPartition struct {
	Topic     string
	Partition int32
}

func (p TopicPartition) String() string { return fmt.Sprintf("%s-%d", p.Topic, p.Partition) }

// DirOptions of a data folder. The zero value opens or makes one for node 0.
type DirOptions struct {
	NodeID    int32
	ClusterID string // "" takes the folder's own; a new folder gets a random one
	// BrokerEpoch is written into the clean marker: the one the node registered
	// with last, −1 if it has none. See SetBrokerEpoch.
	BrokerEpoch int64
	// DeleteDelay is how long the files of a deleted partition stay, under another
	// name (Kafka: file.delete.delay.ms). Default 1 min, below 0 none.
	DeleteDelay time.Duration
	Logger      *slog.Logger
	FS          vfs.FS // default vfs.OS
}

// Dir is a data folder: many partitions under one lock, with Kafka's
// checkpoints, meta.properties and clean marker. It is passive like Log. All
// methods are safe for concurrent use.
type Dir struct {
	o    DirOptions
	dir  string
	lock io.Closer
	meta checkpoint.Meta

	clean    bool  // the marker was there when the folder was opened
	marked   int64 // and the broker epoch it named, else −1
	recovery map[TopicPartition]int64
	high     map[TopicPartition]int64
	start    map[TopicPartition]int64
	found    []TopicPartition
	strays   []string

	mu     sync.Mutex
	logs   map[TopicPartition]*Log // nil: being opened or deleted
	failed map[TopicPartition]bool // did not open or close well: the folder stays unclean
	closed bool
	// files are the checkpoints' contents, hashed; stale are partitions that a file
	// still names but that are deleted.
	files   map[string]uint64
	stale   map[TopicPartition]bool
	there   map[TopicPartition]bool // has a folder
	deleted []deletedDir            // oldest first
}

type deletedDir struct {
	name string
	due  time.Time
}

// OpenDir opens a data folder, making it and the parents it lacks, durably, if
// there is none. The clean marker is taken away, durably, before any log is touched
// (log-format §4.1). Checkpoints that cannot be read are missing, with a
// warning; they are hints for logs without a slot.
//
// Errors: ErrLocked; ErrWrongNode; a meta.properties that cannot be read.
func OpenDir(dir string, o DirOptions, now time.Time) (_ *Dir, err error) {
	if o.FS == nil {
		o.FS = vfs.OS
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.DeleteDelay == 0 {
		o.DeleteDelay = time.Minute
	}
	defer func() {
		if err != nil {
			err = fmt.Errorf("open data folder %s: %w", dir, err)
		}
	}()
	d := &Dir{o: o, dir: dir, logs: map[TopicPartition]*Log{}, failed: map[TopicPartition]bool{},
		files: map[string]uint64{}, stale: map[TopicPartition]bool{}, there: map[TopicPartition]bool{}}
	if err := vfs.MkdirAll(o.FS, dir); err != nil {
		return nil, err
	}
	if d.lock, err = o.FS.Lock(d.path(dirLockName)); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			d.lock.Close()
		}
	}()
	if err := d.openMeta(now); err != nil {
		return nil, err
	}
	d.clean, err = vfs.Exists(o.FS, d.path(cleanName))
	if err != nil {
		return nil, err
	}
	d.marked = -1
	if d.clean {
		if b, err := vfs.ReadFile(o.FS, d.path(cleanName), smallFileLimit); err != nil {
			return nil, err
		} else if d.marked, err = checkpoint.ParseCleanMarker(b); err != nil {
			d.marked = -1
			o.Logger.Warn("clean marker names no broker epoch", "file", d.path(cleanName), "err", err)
		}
		if err := o.FS.Remove(d.path(cleanName)); err != nil {
			return nil, err
		}
		if err := o.FS.SyncDir(dir); err != nil {
			return nil, err
		}
	}
	for name, m := range map[string]*map[TopicPartition]int64{recoveryName: &d.recovery, highWaterName: &d.high, logStartName: &d.start} {
		if *m, err = d.readOffsets(name); err != nil {
			return nil, err
		}
	}
	return d, d.list()
}

func (d *Dir) path(name string) string { return filepath.Join(d.dir, name) }

func (d *Dir) openMeta(now time.Time) error {
	b, err := vfs.ReadFile(d.o.FS, d.path(metaName), smallFileLimit)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		// Whoever made the folder may have been killed before its name was synced.
		if err := vfs.SyncParent(d.o.FS, d.dir); err != nil {
			return err
		}
		id, cluster := newUUID(), d.o.ClusterID
		if cluster == "" {
			cluster = newUUID().String()
		}
		d.meta = checkpoint.Meta{Version: 1, ClusterID: cluster, NodeID: d.o.NodeID, DirectoryID: id.String()}
		return vfs.WriteFileAtomic(d.o.FS, d.path(metaName), checkpoint.AppendMeta(nil, d.meta, now))
	case err != nil:
		return err
	}
	if d.meta, err = checkpoint.ParseMeta(b); err != nil {
		return fmt.Errorf("read %s: %w", metaName, err)
	}
	if d.meta.NodeID != d.o.NodeID {
		return fmt.Errorf("%w: node id %d, want %d", ErrWrongNode, d.meta.NodeID, d.o.NodeID)
	}
	if d.o.ClusterID != "" && d.meta.ClusterID != d.o.ClusterID {
		return fmt.Errorf("%w: cluster id %q, want %q", ErrWrongNode, d.meta.ClusterID, d.o.ClusterID)
	}
	return nil
}

func newUUID() (u UUID) {
	rand.Read(u[:])
	u[6], u[8] = u[6]&0x0f|0x40, u[8]&0x3f|0x80
	return u
}

// readOffsets reads a root checkpoint. What cannot be read counts as missing:
// the slot of a log knows better, and without one everything is scanned (C011).
func (d *Dir) readOffsets(name string) (map[TopicPartition]int64, error) {
	m := map[TopicPartition]int64{}
	b, err := vfs.ReadFile(d.o.FS, d.path(name), checkpointLimit)
	if errors.Is(err, fs.ErrNotExist) {
		return m, nil
	}
	if err != nil {
		return nil, err
	}
	d.files[name] = xxhash.Sum64(b)
	entries, err := checkpoint.ParseOffsets(b)
	if err != nil {
		d.o.Logger.Warn("checkpoint cannot be read, it is taken for missing", "file", d.path(name), "err", err)
		return m, nil
	}
	for _, e := range entries {
		m[TopicPartition{e.Topic, e.Partition}] = e.Offset
	}
	return m, nil
}

// list finds the partitions and finishes deletions.
func (d *Dir) list() error {
	infos, err := d.o.FS.List(d.dir)
	if err != nil {
		return err
	}
	for _, f := range infos {
		if !f.IsDir {
			if strings.HasSuffix(f.Name, ".tmp") { // a checkpoint half written
				if err := d.o.FS.Remove(d.path(f.Name)); err != nil {
					return err
				}
			}
			continue
		}
		p, err := checkpoint.ParsePartitionDir(f.Name)
		switch {
		case err != nil || p.State == checkpoint.DirStray || p.State == checkpoint.DirFuture:
			d.strays = append(d.strays, f.Name)
			d.o.Logger.Warn("folder is left alone", "dir", d.path(f.Name))
		case p.State == checkpoint.DirDelete:
			if err := d.o.FS.RemoveAll(d.path(f.Name)); err != nil {
				d.o.Logger.Warn("folder of a deleted partition cannot be removed yet", "dir", d.path(f.Name), "err", err)
			}
		default:
			p := TopicPartition{p.Topic, p.Partition}
			d.found = append(d.found, p)
			d.there[p] = true
		}
	}
	return nil
}

// Partitions lists the partitions that had a folder when the data folder was
// opened, by name.
func (d *Dir) Partitions() []TopicPartition { return slices.Clone(d.found) }

// Has reports whether a partition has a folder.
func (d *Dir) Has(p TopicPartition) bool {
	name, err := dirName(p)
	if err != nil {
		return false
	}
	i, err := d.o.FS.Stat(d.path(name))
	return err == nil && i.IsDir
}

// dirName is the name of a partition's folder.
func dirName(p TopicPartition) (string, error) {
	name := checkpoint.PartitionDir{Topic: p.Topic, Partition: p.Partition}.String()
	if got, err := checkpoint.ParsePartitionDir(name); err != nil || got.Topic != p.Topic || got.Partition != p.Partition {
		return "", fmt.Errorf("no partition name: %q, %d", p.Topic, p.Partition)
	}
	return name, nil
}

// Strays lists the folders that are no partition's and are left alone. Kafka
// refuses a data folder with one whose name it cannot parse.
func (d *Dir) Strays() []string { return slices.Clone(d.strays) }

// Clean reports whether the last stop was orderly.
func (d *Dir) Clean() bool { return d.clean }

// CleanEpoch is the broker epoch in the marker of the last orderly stop, −1 if
// there was none or it names none.
func (d *Dir) CleanEpoch() int64 { return d.marked }

// SetBrokerEpoch has the next clean marker name the epoch the node registered
// with.
func (d *Dir) SetBrokerEpoch(epoch int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.o.BrokerEpoch = epoch
}

// Abandon lets go of the folder and of every log in it, all files left as they
// are: what a killed process leaves. No sync of a log may be under way.
func (d *Dir) Abandon() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil
	}
	d.closed = true
	var errs []error
	for _, p := range slices.SortedFunc(maps.Keys(d.logs), comparePartitions) {
		if l := d.logs[p]; l != nil {
			errs = append(errs, l.Abandon())
		}
	}
	return errors.Join(append(errs, d.lock.Close())...)
}

// ClusterID and DirectoryID are those of meta.properties.
func (d *Dir) ClusterID() string   { return d.meta.ClusterID }
func (d *Dir) DirectoryID() string { return d.meta.DirectoryID }

// OpenLog opens a partition's log, making its folder and partition.metadata
// (durable before the first append) if there is none. topicID zero takes the
// folder's own; a new folder gets a random one. o.FS and o.Checkpoints are set
// by Dir. A log is open once: a second OpenLog is ErrLocked until it is closed.
func (d *Dir) OpenLog(p TopicPartition, topicID UUID, o Options, now time.Time) (l *Log, err error) {
	name, err := dirName(p)
	if err != nil {
		return nil, fmt.Errorf("open log: %w", err)
	}
	if err := d.take(p); err != nil {
		return nil, fmt.Errorf("open log %s: %w", name, err)
	}
	defer func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		if err != nil {
			delete(d.logs, p)
			delete(d.there, p) // what is there may be no folder: it is looked for again
			d.failed[p] = true
			return
		}
		delete(d.failed, p)
		d.logs[p] = l
	}()
	if !o.ReadOnly {
		if err := d.makeFolder(p, name); err != nil {
			return nil, err
		}
		if err := d.openPartition(name, topicID); err != nil {
			return nil, err
		}
	}
	o.FS = d.o.FS
	o.inDir = true
	d.mu.Lock()
	o.Checkpoints = Checkpoints{Valid: true, RecoveryPoint: at(d.recovery, p), HighWatermark: at(d.high, p), LogStart: at(d.start, p), Clean: d.clean}
	d.mu.Unlock()
	if o.Logger == nil {
		o.Logger = d.o.Logger
	}
	return Open(d.path(name), o, now)
}

// take reserves a partition that is not open.
func (d *Dir) take(p TopicPartition) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return ErrClosed
	}
	if _, open := d.logs[p]; open {
		return ErrLocked
	}
	d.logs[p] = nil
	return nil
}

// makeFolder makes the folder of a partition, durably, if there is none. Before,
// the partition's lines are taken out of the checkpoints: to a new log they would
// say that everything was lost.
func (d *Dir) makeFolder(p TopicPartition, name string) error {
	d.mu.Lock()
	there := d.there[p]
	d.mu.Unlock()
	if there {
		return nil
	}
	there, err := vfs.Exists(d.o.FS, d.path(name))
	if err != nil {
		return err
	}
	if !there {
		if err := d.dropHints(p); err != nil {
			return err
		}
		if err := d.o.FS.Mkdir(d.path(name)); err != nil {
			return err
		}
		if err := d.o.FS.SyncDir(d.dir); err != nil {
			return err
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.there[p] = true
	return nil
}

func (d *Dir) dropHints(p TopicPartition) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.stale[p] && !d.hasHints(p) {
		return nil
	}
	d.forgetHints(p)
	return d.checkpointLocked()
}

func (d *Dir) hasHints(p TopicPartition) bool {
	return at(d.recovery, p) >= 0 || at(d.high, p) >= 0 || at(d.start, p) >= 0
}

func (d *Dir) forgetHints(p TopicPartition) {
	delete(d.recovery, p)
	delete(d.high, p)
	delete(d.start, p)
}

func at(m map[TopicPartition]int64, p TopicPartition) int64 {
	if v, ok := m[p]; ok {
		return v
	}
	return -1
}

// openPartition checks the partition.metadata, or makes one.
func (d *Dir) openPartition(name string, id UUID) error {
	file := filepath.Join(d.path(name), partitionName)
	b, err := vfs.ReadFile(d.o.FS, file, smallFileLimit)
	if err == nil {
		have, err := checkpoint.ParsePartition(b)
		if err != nil {
			return fmt.Errorf("read %s: %w", filepath.Join(name, partitionName), err)
		}
		if id != (UUID{}) && have.TopicID != id {
			return fmt.Errorf("open log %s: %w: found %s, want %s", name, ErrTopicID, have.TopicID, id)
		}
		return nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if id == (UUID{}) {
		id = newUUID()
	}
	return vfs.WriteFileAtomic(d.o.FS, file, checkpoint.AppendPartition(nil, checkpoint.Partition{TopicID: id}))
}

// TopicID is the topic's id in a partition's folder; zero if it has none yet.
func (d *Dir) TopicID(p TopicPartition) (UUID, error) {
	name, err := dirName(p)
	if err != nil {
		return UUID{}, err
	}
	b, err := vfs.ReadFile(d.o.FS, filepath.Join(d.path(name), partitionName), smallFileLimit)
	if errors.Is(err, fs.ErrNotExist) {
		return UUID{}, nil
	}
	if err != nil {
		return UUID{}, err
	}
	have, err := checkpoint.ParsePartition(b)
	if err != nil {
		return UUID{}, fmt.Errorf("read %s: %w", filepath.Join(name, partitionName), err)
	}
	return have.TopicID, nil
}

// Forget ends Dir's knowledge of a log that was closed by itself. The next
// OpenLog of it works, and its checkpoint lines stay as they were last written.
func (d *Dir) Forget(p TopicPartition) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if l := d.logs[p]; l != nil {
		d.remember(p, l)
		if l.Damage() != nil || l.Close(time.Time{}) != nil { // it says once more what it said
			d.failed[p] = true
		}
		delete(d.logs, p)
	}
}

// Delete deletes a partition, open or not. Its folder takes the name by which
// Kafka knows what waits for removal, durably, and RemoveDeleted removes it
// later. Views of an open log stay valid until released.
//
// Errors: fs.ErrNotExist if it has no folder; ErrLocked while it is being opened
// or deleted; ErrClosed; errors of the file system, after which the partition is
// closed.
func (d *Dir) Delete(p TopicPartition, now time.Time) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("delete partition %s: %w", p, err)
		}
	}()
	name, err := dirName(p)
	if err != nil {
		return err
	}
	l, err := d.takeOpen(p)
	if err != nil {
		return err
	}
	if l != nil {
		if err := l.Discard(); err != nil { // what matters of it goes with the files
			d.o.Logger.Warn("log of a deleted partition not closed", "partition", p.String(), "err", err)
		}
	}
	id := newUUID()
	gone := checkpoint.PartitionDir{Topic: p.Topic, Partition: p.Partition, State: checkpoint.DirDelete, ID: hex.EncodeToString(id[:])}.String()
	if err = d.o.FS.Rename(d.path(name), d.path(gone)); err == nil {
		err = d.o.FS.SyncDir(d.dir)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.logs, p)
	delete(d.there, p) // or it is looked for
	if err != nil {
		d.failed[p] = true // it was not closed in order
		return err
	}
	delete(d.failed, p)
	d.stale[p] = d.stale[p] || d.hasHints(p)
	d.forgetHints(p)
	d.deleted = append(d.deleted, deletedDir{name: gone, due: now.Add(max(d.o.DeleteDelay, 0))})
	return nil
}

// takeOpen reserves a partition, open or not, and returns its log if it is open.
func (d *Dir) takeOpen(p TopicPartition) (*Log, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	l, open := d.logs[p]
	switch {
	case d.closed:
		return nil, ErrClosed
	case open && l == nil:
		return nil, ErrLocked
	}
	d.logs[p] = nil
	return l, nil
}

// RemoveDeleted removes the folders of partitions that were deleted at least
// DeleteDelay ago and returns when the next one is due, zero if none waits. What
// is left when the data folder is closed goes when it is opened again.
func (d *Dir) RemoveDeleted(now time.Time) (next time.Time) {
	d.mu.Lock()
	due := 0
	for due < len(d.deleted) && !d.deleted[due].due.After(now) {
		due++
	}
	list := slices.Clone(d.deleted[:due])
	d.deleted = slices.Delete(d.deleted, 0, due)
	closed := d.closed
	d.mu.Unlock()
	if closed {
		return next
	}
	var again []deletedDir
	for _, x := range list {
		if err := d.o.FS.RemoveAll(d.path(x.name)); err != nil {
			d.o.Logger.Warn("folder of a deleted partition cannot be removed yet", "dir", d.path(x.name), "err", err)
			again = append(again, deletedDir{x.name, now.Add(max(d.o.DeleteDelay, time.Second))})
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.deleted = append(d.deleted, again...)
	if len(d.deleted) > 0 {
		next = d.deleted[0].due
	}
	return next
}

// remember takes a log's ends for the checkpoints. d.mu is held.
func (d *Dir) remember(p TopicPartition, l *Log) {
	if l.Damage() != nil {
		return // its end is not what was synced
	}
	d.recovery[p] = l.SyncedEnd()
	d.high[p] = l.HighWatermark()
	delete(d.start, p)
	if start := l.LogStartOffset(); start > (*l.segments.Load())[0].Base() {
		d.start[p] = start // Kafka lists only these
	}
}

// Checkpoint writes Kafka's three checkpoint files, durably: what a reader of
// the folder without our slots goes by. A recovery point is never above what is
// on disk.
func (d *Dir) Checkpoint() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return ErrClosed
	}
	return d.checkpointLocked()
}

func (d *Dir) checkpointLocked() error {
	for p, l := range d.logs {
		if l != nil {
			d.remember(p, l)
		}
	}
	for _, f := range []struct {
		name string
		m    map[TopicPartition]int64
	}{{recoveryName, d.recovery}, {highWaterName, d.high}, {logStartName, d.start}} {
		var entries []checkpoint.Offset
		for _, p := range slices.SortedFunc(maps.Keys(f.m), comparePartitions) {
			entries = append(entries, checkpoint.Offset{Topic: p.Topic, Partition: p.Partition, Offset: f.m[p]})
		}
		b := checkpoint.AppendOffsets(nil, entries)
		sum := xxhash.Sum64(b)
		if was, ok := d.files[f.name]; ok && was == sum {
			continue // as it is
		}
		delete(d.files, f.name)
		if err := vfs.WriteFileAtomic(d.o.FS, d.path(f.name), b); err != nil {
			return fmt.Errorf("write checkpoint: %w", err)
		}
		d.files[f.name] = sum
	}
	clear(d.stale)
	return nil
}

func comparePartitions(a, b TopicPartition) int {
	if c := strings.Compare(a.Topic, b.Topic); c != 0 {
		return c
	}
	return int(a.Partition) - int(b.Partition)
}

// Close closes every open log, writes the checkpoints and then, only if all of
// that worked and no log had failed to open, the clean marker; last it lets go
// of the lock (log-format §4.4). It returns the first error of each.
func (d *Dir) Close(now time.Time) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil
	}
	d.closed = true
	var errs []error
	for _, p := range slices.SortedFunc(maps.Keys(d.logs), comparePartitions) {
		l := d.logs[p]
		if l == nil {
			continue
		}
		if err := l.Close(now); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", p, err))
		}
		if l.Damage() != nil {
			d.failed[p] = true // it stays unclean, and is judged again
		}
	}
	if err := d.checkpointLocked(); err != nil {
		errs = append(errs, err)
	}
	if len(errs) == 0 && len(d.failed) == 0 {
		err := vfs.WriteFileAtomic(d.o.FS, d.path(cleanName), checkpoint.AppendCleanMarker(nil, d.o.BrokerEpoch))
		if err != nil {
			errs = append(errs, fmt.Errorf("write clean marker: %w", err))
		}
	}
	// Removed while it is held: afterwards it may be somebody else's.
	if err := d.o.FS.Remove(d.path(dirLockName)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		errs = append(errs, err)
	}
	errs = append(errs, d.lock.Close())
	return errors.Join(errs...)
}
