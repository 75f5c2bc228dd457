package replica

import (
	"errors"
	"fmt"
	"slices"
	"sort"

	"github.com/tidemark-log/tidemark/record"
	"github.com/tidemark-log/tidemark/segment"
)

// EndOffset answers where an epoch ends in a log with these epochs that ends at
// leo (log-format §6): the largest known epoch ≤ epoch and the start of the
// next. (−1, −1) if that is undefined.
func EndOffset(epochs []Epoch, epoch int32, leo int64) (int32, int64) {
	n := len(epochs)
	switch {
	case epoch < 0 || n == 0 || epoch > epochs[n-1].Epoch:
		return -1, -1
	case epoch == epochs[n-1].Epoch:
		return epoch, leo
	case epoch < epochs[0].Epoch:
		return epoch, epochs[0].StartOffset
	}
	i := sort.Search(n, func(i int) bool { return epochs[i].Epoch > epoch })
	return epochs[i-1].Epoch, epochs[i].StartOffset
}

// EpochCut is the epoch rule (replication A10): the offset to which a follower
// with these epochs, whose log ends at leo, cuts before it fetches. ask is the
// leader's EndOffset. It is not ok if the follower has no epochs or the leader
// answers that it knows none as new: it is older than the follower (R13).
func EpochCut(epochs []Epoch, leo int64, ask func(epoch int32) (int32, int64)) (cut int64, ok bool) {
	r := newRounds(epochs, leo)
	for r.left > 0 {
		done, err := r.answer(ask(r.question()))
		if done || err != nil {
			return r.cut, err == nil
		}
	}
	return leo, false
}

var (
	errOlderLeader = errors.New("leader knows no epoch as new as the log's")
	errBadAnswer   = errors.New("no answer to the question asked")
	errOtherEpochs = errors.New("batches have epochs that the list lacked")
)

// rounds is the epoch rule as questions and answers.
type rounds struct {
	epochs []Epoch
	left   int   // epochs that the leader may know
	leo    int64 // of the follower
	cut    int64 // what is above is the follower's own for certain
}

func newRounds(epochs []Epoch, leo int64) rounds {
	return rounds{epochs: epochs, left: len(epochs), leo: leo, cut: leo}
}

// question is the epoch to ask about. There must be one left.
func (r *rounds) question() int32 { return r.epochs[r.left-1].Epoch }

// answer takes the leader's EndOffset of the question. When it is done cut is the
// verdict; otherwise there is another question.
func (r *rounds) answer(e int32, end int64) (done bool, err error) {
	asked := r.question()
	switch {
	case e < 0:
		return false, errOlderLeader
	case e > asked || end < 0:
		return false, fmt.Errorf("%w: epoch %d ends at %d, asked for epoch %d", errBadAnswer, e, end, asked)
	}
	if own, ownEnd := EndOffset(r.epochs, e, r.leo); own == e { // e below the first epoch is known too: it ends where that begins
		r.cut = min(r.cut, end, ownEnd)
		return true, nil
	}
	// Cut to the end of the newest epoch below e, and ask again with it. There
	// is one: e lies above the first.
	for r.left > 0 && r.epochs[r.left-1].Epoch >= e {
		r.left--
	}
	r.cut = min(r.cut, r.epochs[r.left].StartOffset)
	return false, nil
}

// correctEpochs has the list of epochs say what the batches in [from, end) do, which a
// verdict is about to cut. errOtherEpochs means that it said something else, as one of a
// time before each epoch was listed may: the verdict on it would go too far.
func (l *Log) correctEpochs(from, end int64) error {
	if err := l.writable(); err != nil {
		return err
	}
	l.maint.Lock()
	defer l.maint.Unlock()
	old := fromEnd(l.epochs.snapshot(), end)
	list := fromEnd(old, from)
	segments := *l.segments.Load()
	for _, s := range segments[floorSegment(segments, from):] {
		err := s.Each(0, func(f segment.Frame, b []byte) bool {
			if f.Base >= from {
				list = withBatch(list, record.Batch(b).LeaderEpoch(), max(f.Base, l.LogStartOffset()))
			}
			return true
		})
		if err != nil {
			return err
		}
	}
	if slices.Equal(list, old) {
		return nil
	}
	l.o.Logger.Warn("leader epochs are corrected by what the batches say", "dir", l.dir, "from", from, "were", old, "are", list)
	if err := l.epochs.set(list); err != nil {
		if sticks(err) {
			return l.fail("correct leader epochs", err)
		}
		return err
	}
	return errOtherEpochs
}
