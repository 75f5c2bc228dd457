package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// run.sh lays the adapter over a harness it leaves as it was, builds and runs
// it; the harness here is a stand-in that tries every call of the adapter.
func TestRunScript(t *testing.T) {
	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Skip("no bash")
	}
	harness := t.TempDir()
	src, err := os.ReadFile("testdata/harness/main.go")
	if err != nil {
		t.Fatal(err)
	}
	// With our own checksums at hand, nothing has to be fetched.
	sums, err := os.ReadFile("../../go.sum")
	if err != nil {
		t.Fatal(err)
	}
	files := map[string][]byte{"main.go": src, "go.sum": sums, "go.mod": []byte("module harness\n\ngo 1.26.0\n")}
	for name, b := range files {
		if err := os.WriteFile(filepath.Join(harness, name), b, 0o444); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command(bash, "run.sh", harness, "-check")
	cmd.Env = append(os.Environ(), "TMPDIR="+t.TempDir())
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.HasSuffix(strings.TrimSpace(string(out)), "ok") {
		t.Errorf("run.sh: %v\n%s", err, out)
	}
	for name, want := range files {
		if got, err := os.ReadFile(filepath.Join(harness, name)); err != nil || string(got) != string(want) {
			t.Errorf("run.sh changed the harness: %s, %v", name, err)
		}
	}
	if left, err := os.ReadDir(harness); err != nil || len(left) != len(files) {
		t.Errorf("run.sh left %v in the harness, %v", left, err)
	}
}

func TestRunScript_usage(t *testing.T) {
	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Skip("no bash")
	}
	for _, args := range [][]string{{"run.sh"}, {"run.sh", t.TempDir()}} {
		cmd := exec.Command(bash, args...)
		out, err := cmd.CombinedOutput()
		if err == nil || cmd.ProcessState.ExitCode() != 2 || !strings.Contains(string(out), "usage:") {
			t.Errorf("%v: %v\n%s; want exit 2 and the usage", args, err, out)
		}
	}
}
