package replica

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/tidemark-log/tidemark/internal/vfs"
	"github.com/tidemark-log/tidemark/segment"
)

// Treatment is what opening does with a segment.
type Treatment string

const (
	Unread  Treatment = "unread"  // not read: it is whole, and its index with it
	ByIndex Treatment = "byIndex" // read by headers from the last index entry below what is believed
	Scanned Treatment = "scanned" // read whole, checksums too; the indexes are made again
	Removed Treatment = "removed" // it lies behind the end of the log, or wholly below its start
	Loaded  Treatment = "loaded"  // of producers: the table begins with it
	Refused Treatment = "refused" // of producers: it is torn or another log's
)

// SegmentPlan is what opening would do with one segment.
type SegmentPlan struct {
	Name      string // of the log file
	Base      int64
	Size      int64 // bytes of the file
	Treatment Treatment
	ReadFrom  int64 // byte at which reading begins; the size if nothing is read
	End       int64 // offset behind its last batch
	EndPos    int64 // byte behind its last batch, −1 if the file was not read that far
}

// ProducerFilePlan is what opening would do with one file of producers, ours or
// Kafka's. Treatment is Loaded, Refused, Removed or Unread.
type ProducerFilePlan struct {
	Name      string
	Offset    int64 // the first that it does not cover
	Treatment Treatment
	Err       error // why it is refused
}

// Plan is what opening a log would do, and what it goes by.
type Plan struct {
	// Basis says what the log is judged by; see docs/recovery.md.
	Basis string
	// Vouched, Settled and Believed are offsets: below the first an invalid batch
	// is damage, whole segments below the second are not read, and below the third
	// the index leads past batches.
	Vouched, Settled, Believed int64

	Segments []SegmentPlan
	// Files that go and come, by name, before anything is judged: leftovers, and
	// what a replacement of segments left half done.
	Removes []string
	Renames [][2]string

	Start, End    int64 // of the log as it would open
	HighWatermark int64 // −1 if nothing says
	// Cut is how many bytes behind the end are cut from the last segment, of which
	// CutValid whole batches. Zeros are none: they are preallocated space.
	Cut, CutValid int64
	// Epochs is the list as it would be, Stored what the file holds. NoEpochs: there
	// is no file, or it cannot be read.
	Epochs, Stored []Epoch
	NoEpochs       bool
	// Producers are the files of producers, ours first, each kind by offset.
	// ProducersFrom is the offset from which the log is read, checksums too, for what
	// they do not tell, End if they tell all; −1 if the log would open for reading
	// only and have no table.
	Producers     []ProducerFilePlan
	ProducersFrom int64
	// Damage: the log would open for reading only, and nothing would be changed.
	Damage *CorruptError
	// Refused is why opening would fail.
	Refused error
}

// Explain answers what Open would do in dir, by the rules of Open itself, and
// changes nothing. It reads what Open would read. It takes no lock: beside a live writer it says what the next
// Open would find if the process died now.
//
// Errors: what the file system says. That Open would refuse is in the plan.
func Explain(dir string, o Options, now time.Time) (*Plan, error) {
	if err := o.fill(); err != nil {
		return nil, fmt.Errorf("explain log: %w", err)
	}
	names := &pretend{FS: o.FS, gone: map[string]bool{}, moved: map[string]string{}}
	o.FS, o.ReadOnly = names, false
	l := newLog(dir, o)
	l.prod.trace = &producerTrace{refused: map[string]error{}, from: -1}
	r := &recovery{l: l, now: now}
	p := new(Plan)
	defer r.abandon(nil)
	err := func() (err error) {
		if r.info, err = l.o.FS.Stat(l.dir); err != nil {
			return err
		}
		// Names as a writer would leave them; from there on it is a read-only open.
		if err := r.readNames(); err != nil {
			return err
		}
		l.o.ReadOnly, l.so.ReadOnly = true, true
		return r.find()
	}()
	p.fill(r, names)
	if err != nil {
		var path *fs.PathError
		if errors.As(err, &path) {
			return nil, fmt.Errorf("explain log %s: %w", dir, err)
		}
		p.Refused = err
	}
	return p, nil
}

func (p *Plan) fill(r *recovery, names *pretend) {
	p.Basis = r.basis()
	p.Vouched, p.Settled, p.Believed = r.vouched, r.settled, r.believed
	p.fillProducers(r, names)
	p.Renames = names.renames
	for _, base := range r.below {
		p.Segments = append(p.Segments, SegmentPlan{Name: segment.FileName(base, ".log"), Base: base, Size: r.sizes[base],
			Treatment: Removed, ReadFrom: r.sizes[base], End: -1, EndPos: -1})
	}
	for _, list := range [][]*segment.Segment{r.list, r.cutLater} {
		for _, s := range list {
			g := SegmentPlan{Name: s.Name(), Base: s.Base(), Size: r.sizes[s.Base()], End: s.End(), EndPos: s.Size()}
			from, read := r.from[s.Base()]
			switch {
			case slices.Contains(r.cutLater, s):
				g.Treatment, g.ReadFrom, g.End, g.EndPos = Removed, g.Size, -1, -1
			case s.IsKnown():
				g.Treatment, g.ReadFrom = Unread, g.Size
			case !read: // the judgement ended before it
				g.Treatment, g.EndPos = Scanned, -1
			case from > 0:
				g.Treatment, g.ReadFrom = ByIndex, from
			default:
				g.Treatment = Scanned
			}
			p.Segments = append(p.Segments, g)
		}
	}
	p.Start, p.End, p.HighWatermark = min(r.logStart(), r.end), r.end, r.hwc()
	p.Damage = r.l.Damage()
	if n := len(r.list); n > 0 && r.garbage && p.Damage == nil {
		p.Cut, p.CutValid = r.sizes[r.list[n-1].Base()]-r.endPos, int64(r.dropped)
	}
	p.Stored, p.NoEpochs = r.stored, r.noEpochs
	if r.l.epochs != nil {
		p.Epochs = r.l.epochs.snapshot()
	}
}

// fillProducers also takes the files of producers out of those that go before
// anything is judged.
func (p *Plan) fillProducers(r *recovery, names *pretend) {
	trace := r.l.prod.trace
	p.ProducersFrom = trace.from
	if r.l.Damage() != nil {
		p.ProducersFrom = -1
	}
	for _, kind := range []struct {
		suffix string
		ends   map[int64]bool
	}{{windowSuffix, r.windows}, {snapshotSuffix, r.snapshots}} {
		for _, end := range slices.Sorted(maps.Keys(kind.ends)) {
			f := ProducerFilePlan{Name: segment.FileName(end, kind.suffix), Offset: end, Treatment: Unread}
			if i := slices.Index(names.removes, f.Name); i >= 0 {
				names.removes = slices.Delete(names.removes, i, i+1)
				f.Treatment = Removed
			} else if f.Name == trace.loaded {
				f.Treatment = Loaded
			} else if err := trace.refused[f.Name]; err != nil {
				f.Treatment, f.Err = Refused, err
			}
			p.Producers = append(p.Producers, f)
		}
	}
	p.Removes = names.removes
}

// basis says what readSlot went by.
func (r *recovery) basis() string {
	cp := r.l.o.Checkpoints
	clean := r.old.flags&flagClean != 0
	switch {
	case !r.slot && cp.Valid && cp.Clean:
		return "no slot; the clean marker of the data folder: everything is believed"
	case !r.slot && cp.Valid && cp.RecoveryPoint >= 0:
		return fmt.Sprintf("no slot; recovery point %d of the data folder", cp.RecoveryPoint)
	case !r.slot:
		return "no slot and no checkpoint: everything is read"
	case r.failed:
		return fmt.Sprintf("slot: a write or sync had failed; synced up to %d", r.old.syncedEnd)
	case r.boot && clean:
		return fmt.Sprintf("slot: closed cleanly at %d", r.old.end)
	case clean:
		return fmt.Sprintf("slot: closed cleanly at %d, but the last file was changed since", r.old.end)
	case r.boot:
		return fmt.Sprintf("slot: killed in this boot; written up to %d", r.old.end)
	}
	return fmt.Sprintf("slot: another boot; synced up to %d", r.old.syncedEnd)
}

// pretend is a file system whose names change in its own mind only. Files can
// be read.
type pretend struct {
	vfs.FS
	gone    map[string]bool
	moved   map[string]string // new name → name on disk
	removes []string
	renames [][2]string
}

// real returns the name on disk.
func (p *pretend) real(op, name string) (string, error) {
	if on, ok := p.moved[name]; ok {
		return on, nil
	}
	if p.gone[name] {
		return "", &fs.PathError{Op: op, Path: name, Err: fs.ErrNotExist}
	}
	return name, nil
}

func (p *pretend) Open(name string, mode vfs.Mode) (vfs.File, error) {
	if mode != vfs.ReadOnly {
		return nil, p.refuse("open", name)
	}
	name, err := p.real("open", name)
	if err != nil {
		return nil, err
	}
	return p.FS.Open(name, mode)
}

func (p *pretend) refuse(op, name string) error {
	return &fs.PathError{Op: op, Path: name, Err: fs.ErrPermission}
}

func (p *pretend) Stat(name string) (vfs.Info, error) {
	on, err := p.real("stat", name)
	if err != nil {
		return vfs.Info{}, err
	}
	i, err := p.FS.Stat(on)
	i.Name = filepath.Base(name)
	return i, err
}

func (p *pretend) List(dir string) ([]vfs.Info, error) {
	infos, err := p.FS.List(dir)
	infos = slices.DeleteFunc(infos, func(i vfs.Info) bool {
		name := filepath.Join(dir, i.Name)
		return p.gone[name] || p.moved[name] != ""
	})
	for name := range p.moved {
		if filepath.Dir(name) == filepath.Clean(dir) {
			i, err := p.Stat(name)
			if err != nil {
				return nil, err
			}
			infos = append(infos, i)
		}
	}
	slices.SortFunc(infos, func(a, b vfs.Info) int { return strings.Compare(a.Name, b.Name) })
	return infos, err
}

func (p *pretend) Remove(name string) error {
	if _, err := p.Stat(name); err != nil {
		return err
	}
	delete(p.moved, name)
	p.gone[name] = true
	p.removes = append(p.removes, filepath.Base(name))
	return nil
}

func (p *pretend) Rename(oldName, newName string) error {
	on, err := p.real("rename", oldName)
	if err != nil {
		return err
	}
	delete(p.moved, oldName)
	p.gone[oldName] = true
	p.moved[newName] = on
	p.renames = append(p.renames, [2]string{filepath.Base(oldName), filepath.Base(newName)})
	return nil
}

func (p *pretend) SyncDir(string) error                { return nil }
func (p *pretend) Mkdir(dir string) error              { return p.refuse("mkdir", dir) }
func (p *pretend) RemoveAll(name string) error         { return p.refuse("remove", name) }
func (p *pretend) Link(oldName, _ string) error        { return p.refuse("link", oldName) }
func (p *pretend) Lock(name string) (io.Closer, error) { return nil, p.refuse("lock", name) }
