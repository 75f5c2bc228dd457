package tidemark

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/tidemark-log/tidemark/replica"
	"github.com/tidemark-log/tidemark/segment"
)

type (
	// TopicPartition names a partition.
	TopicPartition = replica.TopicPartition
	// UUID is a Kafka uuid, such as a topic's id.
	UUID = replica.UUID
)

var (
	// ErrNoPartition means that a folder has no partition of this name.
	ErrNoPartition = errors.New("no such partition")
	// ErrWrongNode means that the folder belongs to another node or cluster.
	ErrWrongNode = replica.ErrWrongNode
	// ErrTopicID means that the partition's folder belongs to another topic of
	// the same name.
	ErrTopicID = replica.ErrTopicID
	// ErrBusy means that somebody else is opening or deleting the partition.
	ErrBusy = replica.ErrBusy
	// ErrTooManyFiles and ErrTooManyMaps mean that a bound of the process is
	// reached, which all its logs share. Nothing has changed, and what is open
	// goes on; closing a log makes room.
	ErrTooManyFiles = segment.ErrTooManyFiles
	ErrTooManyMaps  = segment.ErrTooManyMaps
)

// FolderOptions of a folder. The zero value opens or makes one for node 0.
type FolderOptions struct {
	// Log is for every partition, unless LogOf is set, which is then asked for
	// each, by several goroutines at a time. ReadOnly is refused.
	Log   Options
	LogOf func(TopicPartition) Options

	// NodeID and ClusterID are Kafka's. An empty ClusterID takes that of the
	// folder; a new folder gets a random one.
	NodeID    int32
	ClusterID string

	// Parallel is how many partitions are opened, or closed, at a time. Default
	// 16.
	Parallel int
	// OnOpen is called after each partition that OpenFolder has opened, or could
	// not open; never twice at a time.
	OnOpen func(FolderProgress)

	// DeleteDelay is how long the files of a deleted partition stay, for those who
	// still read them. Default 1 min (Kafka's file.delete.delay.ms), below 0 none.
	DeleteDelay time.Duration
	// CheckpointInterval is how often Kafka's checkpoint files are brought up to
	// date, if anything moved. Logs do not need them: they are for Kafka and for
	// logtool. Default 1 min, from 1 s.
	CheckpointInterval time.Duration

	// Logger takes what an operator should see. Default: discards.
	Logger *slog.Logger
}

// FolderProgress says how far OpenFolder has come.
type FolderProgress struct {
	Done, Failed, Total int // partitions; those that failed are done too
	Partition           TopicPartition
	Err                 error // why it could not be opened, nil if it was
}

// Folder is an open data folder: many partitions in one process, each a [*Log]
// of its own, in the directory layout of a Kafka broker. The logs share a few
// goroutines, which come and go with the work, and the process's bounds on
// descriptors and maps: a partition that nobody reads or writes costs some
// kilobytes of memory and, unless it was written since it was opened, neither
// descriptor nor map.
//
// All methods are safe for concurrent use.
type Folder struct {
	o      FolderOptions
	dir    *replica.Dir
	crew   *crew
	remove task // folders of deleted partitions
	check  task // checkpoints

	mu     sync.RWMutex
	logs   map[TopicPartition]*Log
	failed map[TopicPartition]error // known partitions that are not open, and why
	busy   map[TopicPartition]bool  // being opened or deleted
	timers [2]*time.Timer           // of remove and check; nil after Close
	closed bool
	ops    sync.WaitGroup // who has one busy

	closer sync.Once
	err    error
}

// OpenFolder opens the data folder dir, making it if there is none, and all of
// its partitions, several at a time. A partition that cannot be opened does not
// stop the others: Log says why, and Reopen tries again. One that is damaged is
// open and serves what is good; see [Log.Damage].
//
// Errors: ErrLocked if another process has the folder; ErrWrongNode; a field of
// FolderOptions that is out of range; errors of the file system.
func OpenFolder(dir string, o FolderOptions) (*Folder, error) {
	if o.Parallel == 0 {
		o.Parallel = 16
	}
	if o.CheckpointInterval == 0 {
		o.CheckpointInterval = time.Minute
	}
	if o.Parallel < 1 || o.CheckpointInterval < time.Second {
		return nil, fmt.Errorf("open folder %s: Parallel %d, want at least 1; CheckpointInterval %v, want at least 1s",
			dir, o.Parallel, o.CheckpointInterval)
	}
	d, err := replica.OpenDir(dir, replica.DirOptions{NodeID: o.NodeID, ClusterID: o.ClusterID, BrokerEpoch: -1,
		DeleteDelay: o.DeleteDelay, Logger: o.Logger}, time.Now())
	if err != nil {
		return nil, err
	}
	f := &Folder{o: o, dir: d, crew: newCrew(max(8, 2*runtime.GOMAXPROCS(0))),
		logs: map[TopicPartition]*Log{}, failed: map[TopicPartition]error{}, busy: map[TopicPartition]bool{}}
	f.remove.run, f.check.run = f.runRemove, f.runCheck
	f.openAll(d.Partitions())
	f.mu.Lock()
	f.timers[0] = time.AfterFunc(time.Hour, func() { f.crew.do(&f.remove) })
	f.timers[0].Stop()
	f.timers[1] = time.AfterFunc(o.CheckpointInterval, func() { f.crew.do(&f.check) })
	f.mu.Unlock()
	return f, nil
}

func (f *Folder) openAll(list []TopicPartition) {
	var mu sync.Mutex // held across OnOpen
	progress := FolderProgress{Total: len(list)}
	inParallel(f.o.Parallel, list, func(p TopicPartition) {
		l, err := f.openLog(p, UUID{})
		f.mu.Lock()
		f.enterLocked(p, l, err)
		f.mu.Unlock()
		if f.o.OnOpen == nil {
			return
		}
		mu.Lock()
		defer mu.Unlock()
		progress.Done++
		progress.Partition, progress.Err = p, err
		if err != nil {
			progress.Failed++
		}
		f.o.OnOpen(progress)
	})
}

// inParallel calls fn for each of list, on at most n goroutines.
func inParallel[T any](n int, list []T, fn func(T)) {
	var mu sync.Mutex
	var wg sync.WaitGroup
	for range min(n, len(list)) {
		wg.Go(func() {
			for {
				mu.Lock()
				if len(list) == 0 {
					mu.Unlock()
					return
				}
				x := list[0]
				list = list[1:]
				mu.Unlock()
				fn(x)
			}
		})
	}
	wg.Wait()
}

func (f *Folder) openLog(p TopicPartition, id UUID) (*Log, error) {
	o := f.o.Log
	if f.o.LogOf != nil {
		o = f.o.LogOf(p)
	}
	if o.ReadOnly {
		return nil, fmt.Errorf("open partition %s: %w: a folder is open for writing; use Open for one of its partitions", p, ErrReadOnly)
	}
	if o.Logger == nil {
		o.Logger = f.o.Logger
	}
	l, err := open(&o, f.crew, func(ro replica.Options, now time.Time) (*replica.Log, error) {
		return f.dir.OpenLog(p, id, ro, now)
	})
	if err != nil {
		f.dir.Forget(p) // if only its epoch could not be begun
		return nil, err
	}
	l.folder, l.name = f, p
	return l, nil
}

func (f *Folder) enterLocked(p TopicPartition, l *Log, err error) {
	if err != nil {
		f.failed[p] = err
		return
	}
	delete(f.failed, p)
	f.logs[p] = l
}

// Partitions lists the partitions by name, those that could not be opened too.
func (f *Folder) Partitions() []TopicPartition {
	f.mu.RLock()
	defer f.mu.RUnlock()
	list := slices.AppendSeq(make([]TopicPartition, 0, len(f.logs)+len(f.failed)), maps.Keys(f.logs))
	list = slices.AppendSeq(list, maps.Keys(f.failed))
	slices.SortFunc(list, comparePartitions)
	return list
}

func comparePartitions(a, b TopicPartition) int {
	if c := strings.Compare(a.Topic, b.Topic); c != 0 {
		return c
	}
	return int(a.Partition) - int(b.Partition)
}

// Log returns the log of a partition.
//
// Errors: ErrNoPartition; why it could not be opened; ErrClosed if it, or the
// folder, was closed.
func (f *Folder) Log(p TopicPartition) (*Log, error) {
	f.mu.RLock()
	defer f.mu.RUnlock()
	if f.closed {
		return nil, ErrClosed
	}
	if l := f.logs[p]; l != nil {
		return l, nil
	}
	if err := f.failed[p]; err != nil {
		return nil, err
	}
	return nil, fmt.Errorf("partition %s: %w", p, ErrNoPartition)
}

// take reserves a partition for who opens or deletes it, and returns its log if
// it is open. done ends that.
func (f *Folder) take(p TopicPartition) (l *Log, known bool, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case f.closed:
		return nil, false, ErrClosed
	case f.busy[p]:
		return nil, false, fmt.Errorf("partition %s is being opened or deleted: %w", p, ErrBusy)
	}
	f.busy[p] = true
	f.ops.Add(1)
	l, open := f.logs[p]
	_, failed := f.failed[p]
	return l, open || failed, nil
}

func (f *Folder) done(p TopicPartition) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.busy, p)
	f.ops.Done()
}

// Create makes a partition and opens its log. Its name and its topic's id are on
// disk when Create returns. A zero id becomes a random one.
//
// Errors: fs.ErrExist if there is one; ErrBusy; ErrClosed; a name that Kafka does
// not allow; those of [Open]. Where the folder was made before the error, the
// partition is there and not open: see Reopen.
func (f *Folder) Create(p TopicPartition, topicID UUID) (*Log, error) {
	_, known, err := f.take(p)
	if err != nil {
		return nil, err
	}
	defer f.done(p)
	if known {
		return nil, fmt.Errorf("create partition %s: %w", p, fs.ErrExist)
	}
	l, err := f.openLog(p, topicID)
	made := err == nil || f.dir.Has(p)
	f.mu.Lock()
	defer f.mu.Unlock()
	if made {
		f.enterLocked(p, l, err)
	}
	return l, err
}

// Reopen opens a partition again that could not be opened, was closed, has
// failed or was damaged and has been repaired. If it is open it is closed first,
// by Close, whose error does not stop it.
//
// Errors: ErrNoPartition; ErrBusy; ErrClosed; those of [Open].
func (f *Folder) Reopen(p TopicPartition) (*Log, error) {
	l, known, err := f.take(p)
	if err != nil {
		return nil, err
	}
	defer f.done(p)
	if !known {
		return nil, fmt.Errorf("partition %s: %w", p, ErrNoPartition)
	}
	if l != nil {
		if err := l.Close(); err != nil && f.o.Logger != nil {
			f.o.Logger.Warn("log closed to be opened again", "partition", p.String(), "err", err)
		}
	}
	l, err = f.openLog(p, UUID{})
	f.mu.Lock()
	defer f.mu.Unlock()
	f.enterLocked(p, l, err)
	return l, err
}

// Delete deletes a partition. Its log is closed, and once its folder has the
// name by which Kafka knows what waits for removal, durably, Delete returns. The
// files go after DeleteDelay; views of them stay valid until released.
//
// Errors: ErrNoPartition; ErrBusy; ErrClosed; errors of the file system, after
// which the partition is there and closed.
func (f *Folder) Delete(p TopicPartition) error {
	l, known, err := f.take(p)
	if err != nil {
		return err
	}
	defer f.done(p)
	if !known {
		return fmt.Errorf("partition %s: %w", p, ErrNoPartition)
	}
	if l != nil {
		_ = l.end(l.log.Discard) // dir says what matters of it
	}
	err = f.dir.Delete(p, time.Now())
	f.mu.Lock()
	delete(f.logs, p)
	if delete(f.failed, p); err != nil {
		f.failed[p] = fmt.Errorf("%w: %w", ErrClosed, err)
	}
	f.mu.Unlock()
	f.crew.do(&f.remove)
	return err
}

// closedLog is what a log says that was closed.
func (f *Folder) closedLog(l *Log) {
	f.dir.Forget(l.name)
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.logs[l.name] == l {
		delete(f.logs, l.name)
		f.failed[l.name] = ErrClosed
	}
}

func (f *Folder) runRemove() {
	if next := f.dir.RemoveDeleted(time.Now()); !next.IsZero() {
		f.arm(0, time.Until(next))
	}
}

func (f *Folder) runCheck() {
	if err := f.dir.Checkpoint(); err != nil && f.o.Logger != nil {
		f.o.Logger.Warn("checkpoints not written", "err", err)
	}
	f.arm(1, f.o.CheckpointInterval)
}

func (f *Folder) arm(timer int, wait time.Duration) {
	f.mu.RLock()
	defer f.mu.RUnlock()
	if t := f.timers[timer]; t != nil {
		t.Reset(max(wait, time.Millisecond))
	}
}

// Close closes every log, several at a time, and writes Kafka's checkpoints and,
// if all of that worked and no partition had failed or was damaged, the clean
// marker. It returns the first error of each log, joined, and the same when
// called again.
func (f *Folder) Close() error {
	f.closer.Do(func() { f.err = f.close() })
	return f.err
}

func (f *Folder) close() error {
	f.mu.Lock()
	f.closed = true
	for _, t := range f.timers {
		t.Stop()
	}
	clear(f.timers[:])
	f.mu.Unlock()
	f.ops.Wait()
	f.crew.stop(&f.remove)
	f.crew.stop(&f.check)
	f.mu.RLock()
	list := slices.SortedFunc(maps.Values(f.logs), func(a, b *Log) int { return comparePartitions(a.name, b.name) })
	f.mu.RUnlock()
	errs := make([]error, len(list)+1)
	at := make([]int, len(list))
	for i := range at {
		at[i] = i
	}
	inParallel(f.o.Parallel, at, func(i int) {
		if err := list[i].Close(); err != nil {
			errs[i] = fmt.Errorf("%s: %w", list[i].name, err)
		}
	})
	errs[len(list)] = f.dir.Close(time.Now())
	return errors.Join(errs...)
}
