package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/edsrzf/mmap-go"
	"github.com/tidemark-log/tidemark/record"
)

// Loops of replicated appends: who does the followers' work.
const (
	loopSet         loop = "rf3"          // the append that brings it
	loopSetSpread   loop = "rf3-spread"   // a goroutine for each follower
	loopSetPopulate loop = "rf3-populate" // the same, pages populated instead of filled with zeros
	loopSetSync     loop = "rf3-sync"     // a goroutine each and an fdatasync each, shared by whoever waits
)

const (
	replicas   = 3
	fetchBytes = 1 << 20 // a follower takes so much at a time
)

// A bareSet is what a bare loop of replicated appends writes to: a leader and
// its followers, each a bareLog with a file of its own. The necessary work of a
// record is that of one log for the leader, and for each follower one copy out
// of the leader's log and a CRC-32C over the copy, since a follower trusts
// nobody's bytes; with a sync also a pwrite and an fdatasync of its own.
type bareSet struct {
	leader    *bareLog
	followers []*bareLog
	source    mmap.MMap // the leader's file as followers read it
	sync      bool

	wake []chan struct{} // one a follower; none if the append does their work
	done sync.WaitGroup

	mu     sync.Mutex
	moved  *sync.Cond
	failed error
}

func (b *bench) openSet(lp loop) (s *bareSet, err error) {
	of := loopZeros
	switch lp {
	case loopSetPopulate:
		of = loopInline
	case loopSetSync:
		of = loopSync
	}
	s = &bareSet{sync: lp == loopSetSync}
	s.moved = sync.NewCond(&s.mu)
	defer func() {
		if err != nil {
			err = errors.Join(err, b.closeSet(s))
		}
	}()
	if s.leader, err = b.openBare(of); err != nil {
		return s, err
	}
	s.source = s.leader.m
	if s.sync {
		if s.source, err = mmap.MapRegion(s.leader.f, int(b.capBytes+maxFrame), mmap.RDONLY, 0, 0); err != nil {
			return s, err
		}
	}
	for range replicas - 1 {
		f, err := b.openBare(of)
		if err != nil {
			return s, err
		}
		s.followers = append(s.followers, f)
		if lp != loopSet {
			wake := make(chan struct{}, 1)
			s.wake = append(s.wake, wake)
			s.done.Go(func() { s.follow(f, wake) })
		}
	}
	return s, nil
}

// closeSet ends the followers and gives the files back.
func (b *bench) closeSet(s *bareSet) error {
	s.stop()
	var errs []error
	if s.sync && s.source != nil {
		errs = append(errs, s.source.Unmap())
	}
	for _, l := range append(s.followers, s.leader) {
		if l != nil {
			errs = append(errs, b.closeBare(l))
		}
	}
	return errors.Join(errs...)
}

func (s *bareSet) stop() {
	for _, w := range s.wake {
		close(w)
	}
	s.wake = nil
	s.done.Wait()
}

// append appends to the leader. With a sync it returns once every replica has
// the frame on disk, else the followers may still be behind.
func (s *bareSet) append(recs []record.Record) error {
	if s.wake == nil {
		if err := s.leader.append(recs); err != nil {
			return err
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, f := range s.followers {
			if err := s.copyTo(f); err != nil {
				return err
			}
		}
		return nil
	}
	end, err := s.leader.put(recs)
	if err != nil {
		return err
	}
	s.wakeAll()
	if !s.sync {
		return nil
	}
	if err := s.leader.commit(end); err != nil {
		return err
	}
	return s.wait(end)
}

func (s *bareSet) wakeAll() {
	for _, w := range s.wake {
		select {
		case w <- struct{}{}:
		default:
		}
	}
}

// wait returns once every follower has everything below end, on disk if there is
// a sync.
func (s *bareSet) wait(end int64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, f := range s.followers {
		for s.failed == nil && s.has(f) < end {
			s.moved.Wait()
		}
	}
	return s.failed
}

func (s *bareSet) has(f *bareLog) int64 {
	if !s.sync {
		return f.end.Load()
	}
	f.syncMu.Lock()
	defer f.syncMu.Unlock()
	return f.synced
}

func (s *bareSet) follow(f *bareLog, wake chan struct{}) {
	for range wake {
		err := s.copyTo(f)
		if err == nil && s.sync {
			err = f.commit(f.end.Load())
		}
		s.mu.Lock()
		s.failed = errors.Join(s.failed, err)
		s.moved.Broadcast()
		s.mu.Unlock()
	}
}

// copyTo copies what the leader has and f has not, whole frames.
func (s *bareSet) copyTo(f *bareLog) error {
	for {
		at, end := f.end.Load(), s.leader.end.Load()
		if at == end {
			return nil
		}
		to := at
		for to < end {
			n := int64(binary.BigEndian.Uint32(s.source[to+posLength:]))
			if to > at && to+n-at > fetchBytes {
				break
			}
			to += n
		}
		if err := f.take(s.source[at:to]); err != nil {
			return err
		}
	}
}

// take appends frames of another log: copied, and then the copy verified. One
// goroutine does at a time.
func (l *bareLog) take(frames []byte) error {
	pos := l.end.Load()
	end := pos + int64(len(frames))
	var dst []byte
	if l.m == nil {
		if cap(l.buf) < len(frames) {
			l.buf = make([]byte, max(len(frames), fetchBytes))
		}
		dst = l.buf[:len(frames)]
	} else {
		if end > int64(len(l.m)) {
			return fmt.Errorf("bare loop: copy at %d: %d bytes are mapped", pos, len(l.m))
		}
		if err := l.readyTo(end); err != nil {
			return err
		}
		dst = l.m[pos:end]
	}
	for len(frames) > 0 {
		n := binary.BigEndian.Uint32(frames[posLength:])
		copy(dst, frames[:n])
		if _, err := checkFrame(dst[:n]); err != nil {
			return err
		}
		dst, frames = dst[n:], frames[n:]
	}
	if l.m == nil {
		if _, err := l.f.WriteAt(l.buf[:end-pos], pos); err != nil {
			return err
		}
	}
	l.end.Store(end)
	return nil
}

// finish waits until the followers have everything: a clock that stopped before
// would leave their work out.
func (s *bareSet) finish() error {
	if s.wake == nil {
		return nil
	}
	s.wakeAll()
	return s.wait(s.leader.end.Load())
}

func runBareSet(b *bench, c *cell) (s sample, err error) {
	set, err := b.openSet(loop(c.kind))
	if err != nil {
		return s, err
	}
	defer func() { err = errors.Join(err, b.closeSet(set)) }()
	s, acked, err := b.drive(c, max(b.calls(c)/replicas, 1), b.t, c.sync == "always", set.append)
	if err != nil {
		return s, err
	}
	start := time.Now()
	if err := set.finish(); err != nil {
		return s, err
	}
	s.elapsed += time.Since(start)
	set.stop()
	for i, l := range append([]*bareLog{set.leader}, set.followers...) {
		if err := l.readBack(newChecker(b.values(c.size), c.writers), acked); err != nil {
			return s, fmt.Errorf("replica %d: %w", i+1, err)
		}
	}
	return s, nil
}
