package main

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/tidemark-log/tidemark/internal/checkpoint"
	"github.com/tidemark-log/tidemark/replica"
)

func explainCommand(e *env, code *int) *cobra.Command {
	return &cobra.Command{
		Use:   "explain PATH...",
		Short: "Say what opening a partition would do, and why, without doing it",
		Long: `Say what Tidemark would do to a partition when it opens it, and why: what it goes
by, which segments it trusts, reads or scans, what it cuts, removes or makes again,
from which file it takes the producers.
Nothing is changed. The answer is that of the recovery itself. PATH is a partition
folder or a data folder.`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(_ *cobra.Command, paths []string) error {
			for _, p := range dataFolders(paths) {
				e.eachPartition("explain", p, (*partitionDir).explain)
			}
			*code = e.exitCode()
			return nil
		},
	}
}

// plan asks the recovery what it would do. The checkpoints count where the
// folder above is a data folder, as it is for replica.Dir.
func (p *partitionDir) plan() (*replica.Plan, error) {
	return replica.Explain(p.dir, replica.Options{ReadOnly: true, Checkpoints: p.checkpoints()}, time.Now())
}

func (p *partitionDir) checkpoints() (c replica.Checkpoints) {
	data := parentDir(p.dir)
	c = replica.Checkpoints{RecoveryPoint: -1, HighWatermark: -1, LogStart: -1, Clean: closedCleanly(data)}
	for _, name := range []string{checkpoint.MetaFile, checkpoint.CleanMarkerFile, checkpoint.RecoveryPointFile, checkpoint.HighWatermarkFile, checkpoint.LogStartOffsetFile} {
		_, err := os.Lstat(filepath.Join(data, name))
		c.Valid = c.Valid || err == nil
	}
	r := (&verifier{env: p.env}).root(data, true)
	for kind, to := range map[fileKind]*int64{kindRecoveryPoint: &c.RecoveryPoint, kindHighWatermark: &c.HighWatermark, kindLogStart: &c.LogStart} {
		if v, ok := r.values[kind][partitionName(p.dir)]; ok {
			*to = v.offset
		}
	}
	return c
}

func (p *partitionDir) explain() {
	plan, err := p.plan()
	if err != nil {
		p.fail(err)
		return
	}
	o := p.out
	step := func(action, file string, pos, size int64, to, why string) {
		o.open("step")
		o.str("file", filepath.Join(p.dir, file))
		o.str("action", action)
		o.intOr("position", pos)
		o.intOr("size", size)
		o.strOr("to", to)
		o.strOr("why", why)
		o.close()
	}
	for _, name := range plan.Removes {
		step("remove", name, -1, -1, "", "left over from something unfinished")
	}
	for _, r := range plan.Renames {
		step("rename", r[0], -1, -1, r[1], "a replacement that was ready")
	}
	last := -1
	for i, s := range plan.Segments {
		if s.Treatment != replica.Removed {
			last = i
		}
	}
	writable := plan.Damage == nil && plan.Refused == nil
	for i, s := range plan.Segments {
		switch s.Treatment {
		case replica.Unread:
			step("trust", s.Name, -1, s.Size, "", fmt.Sprintf("it is whole: it ends at %d, below what is settled", s.End))
		case replica.ByIndex:
			step("readHeaders", s.Name, s.ReadFrom, s.Size-s.ReadFrom, "", fmt.Sprintf("the index leads past what is believed, up to offset %d", min(plan.Believed, s.End)))
		case replica.Scanned:
			why := "nothing says that it is whole; its indexes are made again"
			if !writable {
				why = "nothing says that it is whole"
			}
			step("scan", s.Name, 0, s.Size, "", why)
		case replica.Removed:
			if writable {
				step("remove", s.Name, -1, s.Size, "", fmt.Sprintf("it lies behind the end of the log, offset %d", plan.End))
			}
		}
		if i == last && plan.Cut > 0 {
			step("cut", s.Name, s.EndPos, plan.Cut, "", fmt.Sprintf("no whole batch at offset %d, where nothing was known to be synced; %d whole ones lie behind", plan.End, plan.CutValid))
		}
	}
	for _, f := range plan.Producers {
		switch f.Treatment {
		case replica.Loaded:
			step("load", f.Name, -1, -1, "", fmt.Sprintf("the newest of producers that can be believed; what the log has from offset %d on is added", plan.ProducersFrom))
		case replica.Refused:
			step("refuse", f.Name, -1, -1, "", f.Err.Error())
		case replica.Removed:
			why := "another program had the folder, or it is a copy"
			if f.Offset > plan.End {
				why = fmt.Sprintf("it tells of producers behind the end of the log, offset %d", plan.End)
			}
			step("remove", f.Name, -1, -1, "", why)
		}
	}
	switch {
	case !writable:
	case plan.NoEpochs && len(plan.Epochs) > 0:
		step("write", checkpoint.LeaderEpochFile, -1, -1, "", "none that can be read; made from the batches")
	case !slices.Equal(plan.Stored, plan.Epochs):
		step("write", checkpoint.LeaderEpochFile, -1, -1, "", fmt.Sprintf("it lists %d epochs, the log has %d", len(plan.Stored), len(plan.Epochs)))
	}
	opens, why := "readWrite", ""
	switch {
	case plan.Refused != nil:
		p.damaged = true
		opens, why = "refused", plan.Refused.Error()
	case plan.Damage != nil:
		p.damaged = true
		opens, why = "readOnly", plan.Damage.Error()
	}
	o.open("explain")
	o.str("file", p.dir)
	o.str("opens", opens)
	o.str("basis", plan.Basis)
	for _, f := range []struct {
		key string
		val int64
	}{{"vouched", plan.Vouched}, {"settled", plan.Settled}, {"believed", plan.Believed}} {
		if f.val == math.MaxInt64 { // everything
			o.null(f.key)
		} else {
			o.int(f.key, f.val)
		}
	}
	if plan.Refused != nil {
		o.null("startOffset")
		o.null("endOffset")
	} else {
		o.int("startOffset", plan.Start)
		o.int("endOffset", plan.End)
	}
	o.intOr("highWatermark", plan.HighWatermark)
	o.intOr("producersFrom", plan.ProducersFrom)
	o.strOr("error", why)
	o.close()
}
