package main

import (
	"bytes"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestC096_SyncBesideEachFigure: what the default run prints of appends stands below a
// heading that says how they are synced, in the terms of docs/durability.md.
func TestC096_SyncBesideEachFigure(t *testing.T) {
	cfg, err := parseFlags(nil, t.Output())
	if err != nil {
		t.Fatal(err)
	}
	cells, m := cfg.cells(), newMeasured()
	syncs := map[string]string{} // by rate, as it is printed
	for i, c := range cells {
		if c.kind == "produce" || c.kind == "append" {
			rate := int64(100 + i)
			m.add(c.name, sample{records: rate, elapsed: time.Second}, nil)
			syncs[si(float64(rate))] = c.sync
		}
	}
	if len(syncs) < 20 {
		t.Fatalf("the default run has %d cells of appends", len(syncs))
	}
	var b bytes.Buffer
	if err := newReport(env{}, cells, m).text(&b); err != nil {
		t.Fatal(err)
	}
	seen, sync := 0, ""
	for line := range strings.Lines(b.String()) {
		switch f := strings.Fields(line); {
		case !strings.HasPrefix(line, " "):
			_, after, _ := strings.Cut(line, ", sync ")
			sync, _, _ = strings.Cut(strings.TrimSpace(after), ":")
		default:
			for rate, want := range syncs {
				if slices.Contains(f, rate) {
					if seen++; sync != want {
						t.Errorf("%s rec/s, of sync %s, stands below sync %q", rate, want, sync)
					}
				}
			}
		}
	}
	if seen < len(syncs) {
		t.Errorf("%d of %d figures are printed:\n%s", seen, len(syncs), b.String())
	}
}
