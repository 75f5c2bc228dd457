package sim

import (
	"slices"
	"time"
)

// Shrink looks for a shorter history that breaks the same invariant: it leaves out
// faults and features, as long as what is left still does, for at most the given
// time of the clock on the wall. It returns the options of the shortest and its
// result.
func Shrink(o Options, found *Result, until time.Time) (Options, *Result) {
	o.Trace = nil
	o.Events = min(o.Events, found.Violation.Event+1)
	if o.Events == 0 {
		o.Events = found.Violation.Event + 1
	}
	best, result := o, found
	best.Schedule, best.Fixed = upTo(found), true
	try := func(c Options) bool {
		if time.Now().After(until) {
			return false
		}
		c.Partial = 0
		r := Run(c)
		if r.Violation == nil || r.Violation.Invariant != found.Violation.Invariant {
			return false
		}
		best, result = c, r
		best.Schedule = upTo(r)
		best.Events = min(best.Events, r.Violation.Event+1)
		return true
	}
	for again := true; again && time.Now().Before(until); {
		again = false
		for size := max(len(best.Schedule)/2, 1); size > 0; size /= 2 {
			for at := 0; at+size <= len(best.Schedule) && time.Now().Before(until); {
				c := best
				c.Schedule = slices.Delete(slices.Clone(best.Schedule), at, at+size)
				if try(c) {
					again = true
				} else {
					at += size
				}
			}
		}
		for f := Feature(1); f < features; f <<= 1 {
			if best.Without&f == 0 {
				c := best
				c.Without |= f
				if try(c) && result.Violation.Event < found.Violation.Event {
					again = true
				}
			}
		}
	}
	return best, result
}

// upTo are the faults that happened before the violation.
func upTo(r *Result) []Fault {
	var list []Fault
	for _, f := range r.Schedule {
		if f.At <= int64(r.Violation.At) {
			list = append(list, f)
		}
	}
	return list
}
