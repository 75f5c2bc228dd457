package replica

import (
	"fmt"
	"path/filepath"
	"slices"
	"sort"
	"sync"

	"github.com/tidemark-log/tidemark/internal/checkpoint"
	"github.com/tidemark-log/tidemark/internal/vfs"
)

const epochFile = "leader-epoch-checkpoint"

// Epoch is one leader's reign: its number and the offset it began at.
type Epoch = checkpoint.Epoch

// epochCache is the list of leader epochs of a log, ascending in both columns
// (log-format §6), and its file. Reads and writes take mu; it is held across
// the write of the file, which happens once per change of leader.
type epochCache struct {
	mu   sync.RWMutex
	fs   vfs.FS
	name string
	list []Epoch
	file []Epoch // what the file holds, durably; nil if that is not known
}

func newEpochCache(fsys vfs.FS, dir string) *epochCache {
	return &epochCache{fs: fsys, name: filepath.Join(dir, epochFile)}
}

// assignList returns list with (epoch, start) assigned, and whether that
// changed it. list itself is not changed.
func assignList(list []Epoch, epoch int32, start int64) ([]Epoch, bool) {
	n := len(list)
	if n > 0 && list[n-1].Epoch == epoch && list[n-1].StartOffset <= start {
		return list, false
	}
	for n > 0 && (list[n-1].Epoch >= epoch || list[n-1].StartOffset >= start) {
		n--
	}
	return append(list[:n:n], Epoch{Epoch: epoch, StartOffset: start}), true
}

// last returns the newest epoch, (−1, −1) if there is none.
func (c *epochCache) last() Epoch {
	c.mu.RLock()
	defer c.mu.RUnlock()
	if len(c.list) == 0 {
		return Epoch{Epoch: -1, StartOffset: -1}
	}
	return c.list[len(c.list)-1]
}

// latest returns the newest epoch, −1 if there is none.
func (c *epochCache) latest() int32 { return c.last().Epoch }

func (c *epochCache) snapshot() []Epoch {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return append([]Epoch(nil), c.list...)
}

// assign enters an epoch and returns when the file is durable.
func (c *epochCache) assign(epoch int32, start int64) error {
	if epoch < 0 || start < 0 {
		return fmt.Errorf("assign leader epoch %d at offset %d: must not be negative", epoch, start)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	list, changed := assignList(c.list, epoch, start)
	if !changed {
		return nil
	}
	return c.storeLocked(list)
}

// set replaces the list and the file.
func (c *epochCache) set(list []Epoch) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.storeLocked(list)
}

func (c *epochCache) storeLocked(list []Epoch) error {
	if c.file != nil && slices.Equal(list, c.file) {
		c.list = list
		return nil
	}
	c.file = nil // until it is known again
	if err := vfs.WriteFileAtomic(c.fs, c.name, checkpoint.AppendEpochs(nil, list)); err != nil {
		return fmt.Errorf("write leader epochs: %w", err)
	}
	c.list, c.file = list, list
	return nil
}

// rewrite writes the file once more as it is, which takes the room that the next
// epoch would.
func (c *epochCache) rewrite() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.file = nil
	return c.storeLocked(c.list)
}

// flush has the file hold what the list does, where it is known not to: it kept
// epochs that nothing was written in.
func (c *epochCache) flush() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.file == nil {
		return nil
	}
	return c.storeLocked(c.list)
}

// fromEnd returns list without the epochs that start at or behind end. Below 0
// it is no offset.
func fromEnd(list []Epoch, end int64) []Epoch {
	n := len(list)
	for end >= 0 && n > 0 && list[n-1].StartOffset >= end {
		n--
	}
	return list[:n:n]
}

// withBatch returns list, which is in order, with what a batch says: it begins the
// epoch given unless that is none or not a newer one.
func withBatch(list []Epoch, epoch int32, base int64) []Epoch {
	if n := len(list); epoch < 0 || n > 0 && epoch <= list[n-1].Epoch {
		return list
	}
	return append(list, Epoch{Epoch: epoch, StartOffset: base})
}

// fromStart returns list cut to what concerns offsets from start on: the epoch
// that covers start begins there now.
func fromStart(list []Epoch, start int64) []Epoch {
	n := sort.Search(len(list), func(i int) bool { return list[i].StartOffset > start })
	if n == 0 || list[n-1].StartOffset == start {
		return list[max(n-1, 0):]
	}
	out := append([]Epoch(nil), list[n-1:]...)
	out[0].StartOffset = start
	return out
}

// truncate drops epochs that start at or behind end, durably.
func (c *epochCache) truncate(end int64) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	list := fromEnd(c.list, end)
	if len(list) == len(c.list) {
		return nil
	}
	return c.storeLocked(list)
}

// raise cuts the list to what concerns offsets from start on. The file may say
// more: what it says of offsets below the log start is passed over.
func (c *epochCache) raise(start int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.list = fromStart(c.list, start)
}

// at returns the epoch that offset belongs to, −1 if none is known.
func (c *epochCache) at(offset int64) int32 {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return epochAt(c.list, offset)
}

func epochAt(list []Epoch, offset int64) int32 {
	n := sort.Search(len(list), func(i int) bool { return list[i].StartOffset > offset })
	if n == 0 {
		return -1
	}
	return list[n-1].Epoch
}

// endOffset is EndOffset of the list as it is now.
func (c *epochCache) endOffset(epoch int32, leo int64) (int32, int64) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return EndOffset(c.list, epoch, leo)
}
