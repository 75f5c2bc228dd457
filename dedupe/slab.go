package dedupe

import "unsafe"

// slab keeps values without pointers by number, in chunks that never move but
// for the first, which starts small. A number that is free may be taken again.
type slab[T any] struct {
	chunks [][]T
	shared []bool // the View has this chunk too: copied before it is written
	freed  []uint32
	spare  [][]T // whole chunks to use again
	top    uint32
}

const (
	chunkShift = 8
	chunkSize  = 1 << chunkShift
	chunkMask  = chunkSize - 1
	firstChunk = 4
	maxSpare   = 64
)

// get returns the value of a number that was taken, for reading.
func (s *slab[T]) get(id uint32) *T { return &s.chunks[id>>chunkShift][id&chunkMask] }

// edit is get for writing. A pointer from get does not see what is written.
func (s *slab[T]) edit(id uint32) *T {
	if c := id >> chunkShift; s.shared[c] {
		s.replace(c, len(s.chunks[c]))
	}
	return &s.chunks[id>>chunkShift][id&chunkMask]
}

// replace puts a copy of n values in the place of chunk c.
func (s *slab[T]) replace(c uint32, n int) {
	fresh := s.chunk(n)
	copy(fresh, s.chunks[c])
	s.chunks[c], s.shared[c] = fresh, false
}

func (s *slab[T]) chunk(n int) []T {
	if last := len(s.spare) - 1; last >= 0 && n == chunkSize {
		c := s.spare[last]
		s.spare = s.spare[:last]
		return c
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
	c := int(id >> chunkShift)
	switch {
	case c == len(s.chunks) && c == 0:
		s.chunks, s.shared = append(s.chunks, s.chunk(firstChunk)), append(s.shared, false)
	case c == len(s.chunks):
		s.chunks, s.shared = append(s.chunks, s.chunk(chunkSize)), append(s.shared, false)
	case int(id&chunkMask) == len(s.chunks[c]):
		s.replace(uint32(c), 2*len(s.chunks[c]))
	}
	return id
}

// make is edit for a slab that follows another one, whose chunk of that number
// has n values.
func (s *slab[T]) make(id uint32, n int) *T {
	c := id >> chunkShift
	if int(c) >= len(s.chunks) || len(s.chunks[c]) < n {
		for int(c) >= len(s.chunks) {
			s.chunks, s.shared = append(s.chunks, nil), append(s.shared, false)
		}
		s.replace(c, n)
	}
	return s.edit(id)
}

func (s *slab[T]) free(id uint32) { s.freed = append(s.freed, id) }

// share returns the chunks as they are now.
func (s *slab[T]) share() [][]T {
	for i, c := range s.chunks {
		s.shared[i] = c != nil
	}
	return append([][]T(nil), s.chunks...)
}

// unshare ends share. Chunks that were copied meanwhile are used again.
func (s *slab[T]) unshare(chunks [][]T) {
	for i, c := range chunks {
		switch {
		case len(c) == 0:
		case i < len(s.chunks) && len(s.chunks[i]) > 0 && &s.chunks[i][0] == &c[0]:
			s.shared[i] = false
		case len(c) == chunkSize && len(s.spare) < maxSpare:
			s.spare = append(s.spare, c)
		}
	}
}

func (s *slab[T]) bytes() int64 {
	var zero T
	n := int64(cap(s.chunks))*int64(unsafe.Sizeof([]T(nil))) + int64(cap(s.shared)) + 4*int64(cap(s.freed))
	values := chunkSize * len(s.spare)
	for _, c := range s.chunks {
		values += len(c)
	}
	return n + int64(values)*int64(unsafe.Sizeof(zero))
}
