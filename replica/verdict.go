package replica

import "sort"

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
	cut = leo
	for n := len(epochs); n > 0; {
		e, end := ask(epochs[n-1].Epoch)
		if e < 0 {
			return leo, false
		}
		own, ownEnd := EndOffset(epochs, e, leo)
		if own == e { // e below the first epoch is known too: it ends where that begins
			return min(cut, end, ownEnd), true
		}
		// Cut to the end of the newest epoch below e, and ask again with it. There
		// is one: e lies above the first.
		for n > 0 && epochs[n-1].Epoch >= e {
			n--
		}
		cut = min(cut, epochs[n].StartOffset)
	}
	return leo, false
}
