package main

import (
	"bytes"
	"strings"
	"testing"
)

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
