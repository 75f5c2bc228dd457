package main

import (
	"path/filepath"
	"strings"
	"testing"
)

func TestRun(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	var first, second, listed strings.Builder
	if err := run(dir, "accounts", 4, false, strings.NewReader("ann opened\nbob opened\n"), &first); err != nil {
		t.Fatal(err)
	}
	if err := run(dir, "accounts", 9, false, strings.NewReader("ann closed\n"), &second); err != nil {
		t.Fatal(err)
	}
	where, _, _ := strings.Cut(first.String(), " ")
	if want := where + " offset "; !strings.HasPrefix(second.String(), want) {
		t.Errorf("the second line of ann: %q; want %q", second.String(), want)
	}
	if err := run(dir, "", 0, true, nil, &listed); err != nil {
		t.Fatal(err)
	}
	got := listed.String()
	opened, closed := strings.Index(got, "ann opened"), strings.Index(got, "ann closed")
	if opened < 0 || closed < opened || !strings.Contains(got, "bob opened") || strings.Count(got, "accounts-") != 4 {
		t.Errorf("the list is\n%s", got)
	}
}
