package interop

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// TestReadmeProgram builds the README's program as it stands and runs it twice:
// what it prints is a person's first impression.
func TestReadmeProgram(t *testing.T) {
	readme, err := os.ReadFile("../README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := bytes.Cut(readme, []byte("```go\n"))
	program, _, ok := bytes.Cut(rest, []byte("```\n"))
	if !ok {
		t.Fatal("README.md has no Go program")
	}
	dir := t.TempDir()
	source, binary := filepath.Join(dir, "main.go"), filepath.Join(dir, "readme")
	if err := os.WriteFile(source, program, 0o644); err != nil {
		t.Fatal(err)
	}
	build := exec.Command("go", "build", "-o", binary, source)
	build.Dir = ".." // imports are resolved by the root module
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	for _, want := range []string{"0 42=paid\n", "0 42=paid\n1 42=paid\n"} {
		run := exec.Command(binary)
		run.Dir = dir
		if out, err := run.CombinedOutput(); err != nil || string(out) != want {
			t.Fatalf("run: %v, printed %q, want %q", err, out, want)
		}
	}
}
