package tidemark

import (
	"testing"
	"time"
)

// The clock is never behind the wall clock by more than its resolution, busy or
// idle.
func TestClock(t *testing.T) {
	var c clock
	for i := range 200_000 {
		if i%50_000 == 0 {
			time.Sleep(3 * time.Millisecond)
		}
		before := time.Now().UnixMilli()
		got := c.now()
		if after := time.Now().UnixMilli(); got < before-1 || got > after {
			t.Fatalf("clock says %d between %d and %d", got, before, after)
		}
	}
}

func BenchmarkClock(b *testing.B) {
	var c clock
	for b.Loop() {
		c.now()
	}
}
