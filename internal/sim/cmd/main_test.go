package main

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"github.com/tidemark-log/tidemark/internal/sim"
)

// TestMissing: what a long run does not come across is named; a short one need not
// come across anything.
func TestMissing(t *testing.T) {
	var c sim.Coverage
	all := missing(&c, 500, 10_000)
	if missing(&c, 499, 10_000) != nil || missing(&c, 500, 9_999) != nil {
		t.Error("asks for everything of a short run")
	}
	for _, want := range []string{"F1 kill", "F8 wall clock jumps", "F14 disk error", "A3 diverging", "A8 INELIGIBLE_REPLICA",
		"history judged by porcupine", "state: following, held true"} {
		if !slices.Contains(all, want) {
			t.Errorf("%q is not asked for: %q", want, all)
		}
	}
	// What one run came across is asked for no more.
	r := sim.Run(sim.Options{Seed: 2, Events: 3000})
	c.Merge(&r.Coverage)
	some := missing(&c, 500, 10_000)
	for _, what := range []string{"A3 NONE", "A8 NONE", "I25 at rest", "state: leading, held false"} {
		if slices.Contains(some, what) || !slices.Contains(all, what) {
			t.Errorf("%q missing in %q, before in %q", what, some, all)
		}
	}
	if len(some) == 0 {
		t.Error("one seed has everything")
	}
}

// TestExit: 0 for clean seeds, 1 for a broken invariant, with its shortest
// history, 2 for wrong usage.
func TestExit(t *testing.T) {
	for _, tc := range []struct {
		args string
		code int
		want []string
	}{
		{"-seeds 3 -events 500", 0, []string{"3 seeds", "A3 NONE", "state: leading"}},
		{"-seeds 3 -events 500 -q", 0, []string{"3 seeds"}},
		{"-events 300 -trace", 0, []string{"n0 boots", "ready"}},
		{"-seeds 50 -events 5000 -guard G4 -shrink 1s -q", 1, []string{"broken at event", "shortest history found: seed", "VIOLATION"}},
		{"-seeds 0", 2, nil},
		{"-guard G3", 2, nil},
		{"-trace -seeds 2", 2, nil},
		{"-without nothing", 2, nil},
		{"-bad", 2, nil},
		{"argument", 2, nil},
	} {
		t.Run(tc.args, func(t *testing.T) {
			var out, errs bytes.Buffer
			if code := run(strings.Fields(tc.args), &out, &errs); code != tc.code {
				t.Fatalf("exit %d, want %d\n%s%s", code, tc.code, out.String(), errs.String())
			}
			for _, w := range tc.want {
				if !strings.Contains(out.String(), w) {
					t.Errorf("no %q in\n%s", w, out.String())
				}
			}
			if tc.code == 2 && errs.Len() == 0 {
				t.Error("no word of what is wrong")
			}
		})
	}
}
