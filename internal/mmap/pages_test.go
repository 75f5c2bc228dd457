package mmap

import (
	"testing"
	"time"
)

// Large pages while they are cheaper; the dearer size is tried again, and seldom.
func TestPageCosts(t *testing.T) {
	for _, tc := range []struct {
		name         string
		small, large time.Duration // what a step costs
		least, most  int           // large steps of 1,000
	}{
		{"large at hand", time.Millisecond, time.Millisecond / 2, 970, 1000},
		{"large ten times as dear", time.Millisecond, 10 * time.Millisecond, 1, 20},
		{"large a little dearer", time.Millisecond, 1100 * time.Microsecond, 20, 500},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var p pageCosts
			large := 0
			for range 1000 {
				cost, l := tc.small, p.large()
				if l {
					cost = tc.large
					large++
				}
				p.add(l, LargePage, cost)
			}
			if large < tc.least || large > tc.most {
				t.Errorf("%d large steps of 1,000, want %d to %d", large, tc.least, tc.most)
			}
		})
	}
}

// What was dear becomes cheap: it is used again.
func TestPageCostsChange(t *testing.T) {
	var p pageCosts
	dear := [2]time.Duration{time.Millisecond, 10 * time.Millisecond}
	cheap := [2]time.Duration{time.Millisecond, time.Millisecond / 2}
	step := func(cost [2]time.Duration) bool {
		l := p.large()
		if l {
			p.add(l, LargePage, cost[1])
		} else {
			p.add(l, LargePage, cost[0])
		}
		return l
	}
	for range 500 {
		step(dear)
	}
	if p.large() && p.cost[1] > p.cost[0] {
		t.Fatal("large pages although they are dear")
	}
	n := 0
	for range 1000 {
		if step(cheap) {
			n++
		}
	}
	if n < 500 {
		t.Errorf("%d large steps of 1,000 once they are cheap", n)
	}
}
