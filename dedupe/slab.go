package dedupe

import "unsafe"

// slab keeps values without pointers by number, in chunks that never move but
// for the first, which starts small. A number that is free may be taken again.
type slab[T any] struct {
	chunks []chunk[T]
	freed  []uint32
	spare  [][]T // values of whole chunks to use again
	top    uint32
}

type chunk[T any] struct {
	values []T
	shared bool // the View has them too: copied before they are written
}

const (
	chunkShift = 10
	chunkSize  = 1 << chunkShift
	chunkMask  = chunkSize - 1
	firstChunk = 4
	maxSpare   = 16
)

// get returns the value of a number that was taken, for reading.
func (s *slab[T]) get(id uint32) *T { return &s.chunks[id>>chunkShift].values[id&chunkMask] }

// edit is get for writing. A pointer from get does not see what is written.
func (s *slab[T]) edit(id uint32) *T {
	c := &s.chunks[id>>chunkShift]
	if c.shared {
		s.replace(c, len(c.values))
	}
	return &c.values[id&chunkMask]
}

// size is how many values the chunk of a number has.
func (s *slab[T]) size(id uint32) int { return len(s.chunks[id>>chunkShift].values) }

// replace puts a copy with n values in the place of what a chunk has.
func (s *slab[T]) replace(c *chunk[T], n int) {
	fresh := s.fresh(n)
	copy(fresh, c.values)
	c.values, c.shared = fresh, false
}

func (s *slab[T]) fresh(n int) []T {
	if last := len(s.spare) - 1; last >= 0 && n == chunkSize {
		values := s.spare[last]
		s.spare = s.spare[:last]
		return values
	}
	return make([]T, n)
}

// take returns a number whose value is anything.
func (s *slab[T]) take() uint32 {
	if last := len(s.freed) - 1; last >= 0 {
		id := s.freed[last]
		s.freed = s.freed[:last]
		return id
	}
	id := s.top
	s.top++
	switch c := int(id >> chunkShift); {
	case c == len(s.chunks) && c == 0:
		s.chunks = append(s.chunks, chunk[T]{values: s.fresh(firstChunk)})
	case c == len(s.chunks):
		s.chunks = append(s.chunks, chunk[T]{values: s.fresh(chunkSize)})
	case int(id&chunkMask) == len(s.chunks[c].values):
		s.replace(&s.chunks[c], 2*len(s.chunks[c].values))
	}
	return id
}

// follow is edit for a slab that follows another one, whose chunk of that number
// has n values.
func (s *slab[T]) follow(id uint32, n int) *T {
	c := int(id >> chunkShift)
	if c >= len(s.chunks) || len(s.chunks[c].values) < n {
		for c >= len(s.chunks) {
			s.chunks = append(s.chunks, chunk[T]{})
		}
		s.replace(&s.chunks[c], n)
	}
	return s.edit(id)
}

func (s *slab[T]) free(id uint32) { s.freed = append(s.freed, id) }

// share returns the chunks as they are now.
func (s *slab[T]) share() []chunk[T] {
	for i := range s.chunks {
		s.chunks[i].shared = s.chunks[i].values != nil
	}
	return append([]chunk[T](nil), s.chunks...)
}

// unshare ends share. What was copied meanwhile is used again.
func (s *slab[T]) unshare(chunks []chunk[T]) {
	for i, c := range chunks {
		switch {
		case len(c.values) == 0:
		case i < len(s.chunks) && len(s.chunks[i].values) > 0 && &s.chunks[i].values[0] == &c.values[0]:
			s.chunks[i].shared = false
		case len(c.values) == chunkSize && len(s.spare) < maxSpare:
			s.spare = append(s.spare, c.values)
		}
	}
}

func (s *slab[T]) bytes() int64 {
	var zero T
	values := chunkSize * len(s.spare)
	for _, c := range s.chunks {
		values += len(c.values)
	}
	return int64(values)*int64(unsafe.Sizeof(zero)) + int64(cap(s.chunks))*int64(unsafe.Sizeof(chunk[T]{})) + 4*int64(cap(s.freed))
}
