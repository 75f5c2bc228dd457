package main

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/spf13/cobra"

	"github.com/tidemark-log/tidemark/internal/checkpoint"
	"github.com/tidemark-log/tidemark/record"
)

// epochRun is a stretch of batches of one leader epoch.
type epochRun struct {
	epoch       int32
	first, last int64 // offsets
	batches     int64
}

// maxEpochRuns bounds what a log of nonsense can ask for.
const maxEpochRuns = 1 << 20

// partitionEpochs is what a partition says about its leader epochs.
type partitionEpochs struct {
	path       string             // of the epoch file
	file       []checkpoint.Epoch // what it holds
	hasFile    bool               // it could be read
	runs       []epochRun
	start, end int64 // of the log
}

// list returns the leader epochs: those of the file or, if there is none, of
// the batches.
func (e *partitionEpochs) list() []checkpoint.Epoch {
	if e.hasFile {
		return e.file
	}
	var list []checkpoint.Epoch
	for _, r := range e.runs {
		if n := len(list); r.epoch >= 0 && (n == 0 || r.epoch > list[n-1].Epoch) {
			list = append(list, checkpoint.Epoch{Epoch: r.epoch, StartOffset: r.first})
		}
	}
	return list
}

// take counts a batch in.
func (e *partitionEpochs) take(sp *span) {
	epoch, first, last := leaderEpoch(sp), record.Batch(sp.data).BaseOffset(), lastOffset(sp)
	if n := len(e.runs); n > 0 && e.runs[n-1].epoch == epoch {
		e.runs[n-1].last = last
		e.runs[n-1].batches++
		return
	}
	if len(e.runs) < maxEpochRuns {
		e.runs = append(e.runs, epochRun{epoch, first, last, 1})
	}
}

// readEpochs reads the epoch file of a partition. A file that cannot be parsed
// is reported.
func (p *partitionDir) readEpochs() *partitionEpochs {
	e := &partitionEpochs{path: filepath.Join(p.dir, checkpoint.LeaderEpochFile)}
	if len(p.logs) > 0 {
		e.start = p.logs[0].base
		e.end = p.logs[len(p.logs)-1].base
	}
	b, err := readSmallFile(e.path)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return e
	case err != nil:
		p.fail(err)
		return e
	}
	if e.file, err = checkpoint.ParseEpochs(b); err != nil {
		pos, r := textReason(b, err)
		p.errorLine(e.path, pos, r)
		return e
	}
	e.hasFile = len(b) > 0
	return e
}

func epochsCommand(e *env, code *int) *cobra.Command {
	return &cobra.Command{
		Use:   "epochs PATH...",
		Short: "List leader epochs as the epoch file has them and as the batches do",
		Long: `List the leader epochs of a partition, as its epoch file has them and as its
batches do, and say where the two differ. PATH is a partition folder or a data
folder.`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(_ *cobra.Command, paths []string) error {
			e.progress = newProgress(e.stderr, paths)
			for _, p := range dataFolders(paths) {
				e.eachPartition("epochs", p, (*partitionDir).epochs)
			}
			e.progress.clear()
			*code = e.exitCode()
			return nil
		},
	}
}

// epochs prints a line for each leader epoch, in the order of the offsets at
// which they begin in the batches, else in the file.
func (p *partitionDir) epochs() {
	e := p.readEpochs()
	c := p.cursor(0)
	defer c.close()
	for {
		sp, ok := c.next()
		if !ok {
			break
		}
		e.take(&sp)
	}
	e.end = max(e.end, c.end)
	seen := make([]bool, len(e.file))
	fileOnly := func(upTo int64) {
		for i, f := range e.file {
			if !seen[i] && f.StartOffset <= upTo && !slices.ContainsFunc(e.runs, func(r epochRun) bool { return r.epoch == f.Epoch }) {
				seen[i] = true
				e.print(p.out, i, nil, e.judgeEntry(i))
			}
		}
	}
	highest := int32(record.NoLeaderEpoch)
	for i := range e.runs {
		r := &e.runs[i]
		fileOnly(r.first - 1)
		at, found := slices.BinarySearchFunc(e.file, r.epoch, func(f checkpoint.Epoch, epoch int32) int { return cmp.Compare(f.Epoch, epoch) })
		if !found || seen[at] {
			at = -1
		} else {
			seen[at] = true
		}
		why := ""
		// A leader of a lower epoch may go on behind a foreign log; its entry begins
		// there.
		if r.epoch >= 0 && r.epoch < highest && (at < 0 || e.file[at].StartOffset != r.first) {
			p.damaged = true
			why = fmt.Sprintf("epoch goes back from %d", highest)
		} else {
			why = e.judgeRun(r, at)
		}
		if r.epoch >= 0 {
			highest = r.epoch
		}
		e.print(p.out, at, r, why)
	}
	fileOnly(e.end + 1<<40)
	o := p.out
	o.open("epochs")
	o.str("file", p.dir)
	o.int("fromFile", int64(len(e.file)))
	o.int("fromBatches", int64(len(e.runs)))
	o.int("startOffset", e.start)
	o.int("endOffset", e.end)
	o.bool("hasFile", e.hasFile)
	o.close()
}

// judgeRun says how batches of an epoch differ from the entry of the file that
// covers them, at is that of the very epoch or -1.
func (e *partitionEpochs) judgeRun(r *epochRun, at int) string {
	if !e.hasFile || r.epoch < 0 {
		return ""
	}
	latest := checkpoint.Epoch{Epoch: -1}
	if n := len(e.file); n > 0 {
		latest = e.file[n-1]
	}
	switch {
	case at >= 0 && e.file[at].StartOffset == r.first:
		return ""
	case at >= 0 && e.file[at].StartOffset < r.first:
		// A leader that wrote nothing at first, a gap, or batches lost to retention.
		return fmt.Sprintf("batches begin %d offsets later", r.first-e.file[at].StartOffset)
	case at >= 0:
		return fmt.Sprintf("batches begin %d offsets earlier", e.file[at].StartOffset-r.first)
	case latest.Epoch >= 0 && r.epoch > latest.Epoch && r.last < latest.StartOffset:
		// The cluster that took the log over was younger (log-format §6).
		return fmt.Sprintf("foreign: above epoch %d, which the file begins at %d", latest.Epoch, latest.StartOffset)
	case r.epoch > latest.Epoch:
		return "the file ends before it"
	}
	return "not in the file"
}

// judgeEntry says what an entry without batches is.
func (e *partitionEpochs) judgeEntry(i int) string {
	f := e.file[i]
	switch {
	case f.StartOffset > e.end:
		return fmt.Sprintf("begins above the log's end %d", e.end)
	case f.StartOffset == e.end:
		return "no batches yet"
	case i+1 < len(e.file) && f.StartOffset < e.start && e.file[i+1].StartOffset <= e.start:
		return fmt.Sprintf("ends below the log's start %d", e.start)
	}
	return "no batches"
}

func (e *partitionEpochs) print(o *output, at int, r *epochRun, why string) {
	o.open("epoch")
	o.name(e.path)
	if at >= 0 {
		o.int("epoch", int64(e.file[at].Epoch))
		o.int("fileStart", e.file[at].StartOffset)
		end := e.end
		if at+1 < len(e.file) {
			end = e.file[at+1].StartOffset
		}
		o.int("fileEnd", max(end, e.file[at].StartOffset))
	} else {
		o.int("epoch", int64(r.epoch))
		o.null("fileStart")
		o.null("fileEnd")
	}
	switch {
	case r == nil:
		o.null("firstOffset")
		o.null("lastOffset")
		o.int("batches", 0)
	case o.json:
		o.int("firstOffset", r.first)
		o.int("lastOffset", r.last)
		o.int("batches", r.batches)
	default:
		o.key("offsets")
		o.b = appendRange(o.b, r.first, r.last)
		o.int("batches", r.batches)
	}
	o.strOr("differs", why)
	o.close()
}
