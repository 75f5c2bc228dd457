package sim

import (
	"time"
	"unsafe"
)

// A timepiece is the clock of a machine: what the wall clock shows, and the monotonic
// one beside it. They are told apart in one time.Time as the operating system does,
// so that what must not look at the wall clock and does is found (F8).
type timepiece struct {
	wall int64 // how much the wall clock is ahead of virtual time
	// The monotonic clock shows shown at the virtual time from, and runs by ppm fast
	// since then.
	shown, from, ppm int64
}

// at is what the clock shows at a virtual time. One before from is at the rate of now.
func (c *timepiece) at(t int64) time.Time {
	return instant(epoch.Add(time.Duration(t+c.wall)), c.mono(t))
}

func (c *timepiece) mono(t int64) int64 { return c.shown + (t - c.from) + (t-c.from)/1e6*c.ppm }

// when is the virtual time at which the clock shows t by its monotonic half, or a
// little later.
func (c *timepiece) when(t time.Time) int64 {
	left := int64(t.Sub(instant(epoch, c.shown)))
	return c.from + left - left/(1e6+c.ppm)*c.ppm + 1000 // rounding
}

// rate lets the clock run at another rate from now on.
func (c *timepiece) rate(now, ppm int64) {
	c.shown, c.from, c.ppm = c.mono(now), now, ppm
}

// instant makes a time of which wall clock and monotonic clock are given. Package time
// makes one only for the clocks of this machine.
func instant(wall time.Time, mono int64) time.Time {
	const hasMonotonic = 1 << 63
	t := struct {
		wall uint64
		ext  int64
		loc  *time.Location
	}{hasMonotonic | uint64(wall.Unix()-since1885)<<30 | uint64(wall.Nanosecond()), mono, nil}
	return *(*time.Time)(unsafe.Pointer(&t))
}

// since1885 is where the wall clock of a time with a monotonic one begins.
var since1885 = time.Date(1885, 1, 1, 0, 0, 0, 0, time.UTC).Unix()
