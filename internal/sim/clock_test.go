package sim

import (
	"testing"
	"time"
)

// TestTimepiece: wall clock and monotonic clock of an instant are two, and package
// time takes them as such.
func TestTimepiece(t *testing.T) {
	c := timepiece{wall: -5 * 3600 * sec, shown: 77 * sec, from: 10 * sec, ppm: 9_000}
	a := c.at(20 * sec)
	c.wall = 3 * 3600 * sec
	b := c.at(21 * sec)
	if d := b.Sub(a); d != time.Second+9*time.Millisecond {
		t.Errorf("monotonic %v apart", d)
	}
	if d := b.UnixNano() - a.UnixNano(); d != 8*3600*sec+sec {
		t.Errorf("on the wall %v apart", time.Duration(d))
	}
	if want := epoch.Add(3*time.Hour + 21*time.Second); b.UnixNano() != want.UnixNano() || !b.After(a) {
		t.Errorf("%v, want %v", b, want)
	}
	for _, at := range []int64{10 * sec, 25*sec + 1234567, 200 * sec} {
		if got := c.when(c.at(at)); got < at || got > at+3000 {
			t.Errorf("shows at %d what it shows at %d", got, at)
		}
	}
	before := c.at(30 * sec)
	c.rate(30*sec, -40_000)
	if after := c.at(30 * sec); !after.Equal(before) {
		t.Errorf("at another rate it shows %v, before %v", after, before)
	}
}
