package main

import (
	"path/filepath"
	"strings"
	"testing"
)

// TestRun: the story comes to its end, and can go on in the same directory.
func TestRun(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "cluster")
	for _, want := range []string{"\n30 records can be read\n", "\n60 records can be read\n"} {
		var out strings.Builder
		if err := run(dir, &out); err != nil {
			t.Fatalf("%v after\n%s", err, out.String())
		}
		got := out.String()
		if !strings.HasSuffix(got, want) || strings.Count(got, "all three are in sync again") != 2 {
			t.Errorf("the story is\n%s", got)
		}
	}
}
