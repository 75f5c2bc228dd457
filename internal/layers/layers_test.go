package layers

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/tidemark-log/tidemark"

// below lists, for each package, the packages next below it. What lies below
// these may be imported too (architecture §3); the internal ones down to
// checkpoint lie below everything. The root package is ".".
var below = map[string][]string{
	"internal/invariant":  nil,
	"internal/mmap":       {"internal/invariant"},
	"internal/vfs":        {"internal/mmap"},
	"internal/checkpoint": {"internal/vfs"},
	"record":              {"internal/checkpoint"},
	"partition":           {"internal/checkpoint"},
	"index":               {"record"},
	"dedupe":              {"record"},
	"wire":                {"record", "partition"},
	"segment":             {"index"},
	"replica":             {"segment", "dedupe", "partition"},
	"isr":                 {"replica"},
	"internal/sim":        {"isr"},
	"internal/sim/cmd":    {"internal/sim"},
	"server":              {"isr", "wire"},
	".":                   {"isr", "server"},
}

// programs are trees of packages that may import everything, and that nothing
// outside them may import.
var programs = []string{"cmd", "bench", "examples"}

// passive packages start no goroutine, read no clock and open no socket: the
// caller passes in time, files and messages (architecture decision 3).
var passive = []string{"record", "segment", "index", "dedupe", "replica", "isr"}

// embedders get these modules with the root package and with replica, and no
// others (architecture decision 8). golang.org/x/sys is for mmap and fallocate.
var embedders = []string{
	"github.com/cespare/xxhash/v2",
	"github.com/edsrzf/mmap-go",
	"github.com/klauspost/compress",
	"github.com/pierrec/lz4/v4",
	"golang.org/x/sys",
}

type pkg struct {
	ImportPath string
	Dir        string
	Standard   bool
	Imports    []string
	Module     *struct {
		Path string
		Main bool
	}
}

// golist runs go list -json in the module's root.
func golist(t *testing.T, args ...string) []pkg {
	t.Helper()
	cmd := exec.Command("go", append([]string{"list", "-e", "-json=ImportPath,Dir,Standard,Imports,Module"}, args...)...)
	cmd.Dir = root(t)
	out, err := cmd.Output()
	if err != nil {
		if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
			err = fmt.Errorf("%w: %s", err, exit.Stderr)
		}
		t.Fatalf("%s: %v", cmd, err)
	}
	var pkgs []pkg
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		var p pkg
		if err := dec.Decode(&p); err == io.EOF {
			return pkgs
		} else if err != nil {
			t.Fatalf("%s: %v", cmd, err)
		}
		pkgs = append(pkgs, p)
	}
}

// root returns the module's directory. It also touches every Go file under it:
// go test keeps a passed result while the files a test opened are unchanged,
// and knows nothing of what go list reads.
func root(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	err = filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && path != dir && (strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata"):
			return filepath.SkipDir
		case strings.HasSuffix(path, ".go"):
			_, err = os.Stat(path)
			if errors.Is(err, os.ErrNotExist) { // an editor's temporary file
				err = nil
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// ours returns path within the module, "." for the root; ok is false if it is
// somebody else's.
func ours(path string) (rel string, ok bool) {
	if path == module {
		return ".", true
	}
	return strings.CutPrefix(path, module+"/")
}

func program(rel string) (string, bool) {
	top, _, _ := strings.Cut(rel, "/")
	return top, slices.Contains(programs, top)
}

// verdict says what is wrong with package from importing package to, "" if
// nothing is.
func verdict(from, to string) string {
	if tree, ok := program(to); ok {
		if of, ok := program(from); ok && of == tree {
			return ""
		}
		return fmt.Sprintf("%s imports %s, a program", from, to)
	}
	if _, ok := program(from); ok {
		return ""
	}
	for _, p := range []string{from, to} {
		if _, ok := below[p]; !ok {
			return fmt.Sprintf("%s imports %s: give %s its place in the table of this test and in the architecture", from, to, p)
		}
	}
	if !reaches(from, to) {
		return fmt.Sprintf("%s imports %s, which is not below it", from, to)
	}
	return ""
}

func reaches(from, to string) bool {
	return slices.ContainsFunc(below[from], func(next string) bool { return next == to || reaches(next, to) })
}

// TestImports: what is not a test imports downwards only.
func TestImports(t *testing.T) {
	for _, p := range golist(t, "./...") {
		from, ok := ours(p.ImportPath)
		if !ok {
			continue
		}
		for _, path := range p.Imports {
			if to, ok := ours(path); ok {
				if wrong := verdict(from, to); wrong != "" {
					t.Error(wrong)
				}
			}
		}
	}
}

func TestVerdict(t *testing.T) {
	for _, tc := range []struct {
		from, to string
		ok       bool
	}{
		{"index", "internal/vfs", true},
		{"index", "record", true},
		{"segment", "index", true},
		{"segment", "record", true},
		{"replica", "segment", true},
		{"replica", "partition", true},
		{"replica", "index", true},
		{"isr", "replica", true},
		{"internal/sim", "dedupe", true},
		{".", "segment", true},
		{"cmd/logtool", ".", true},
		{"cmd/logtool", "cmd/logtool/internal/render", true},
		{"bench", "internal/vfs", true},

		{"internal/vfs", "record", false},
		{"internal/mmap", "internal/vfs", false},
		{"record", "partition", false},
		{"index", "dedupe", false},
		{"index", "segment", false},
		{"dedupe", "index", false},
		{"segment", "dedupe", false},
		{"replica", "isr", false},
		{"isr", "wire", false},
		{"server", ".", false},
		{"server", "internal/sim", false},
		{"segment", "bench", false},
		{"bench", "cmd/logtool", false},
		{"util", "record", false},
		{"segment", "internal/util", false},
	} {
		if got := verdict(tc.from, tc.to); (got == "") != tc.ok {
			t.Errorf("%s imports %s: verdict %q; want ok = %v", tc.from, tc.to, got, tc.ok)
		}
	}
}

// TestBelowIsAcyclic: else reaches would not end.
func TestBelowIsAcyclic(t *testing.T) {
	var visit func(p string, path []string)
	visit = func(p string, path []string) {
		if slices.Contains(path, p) {
			t.Fatalf("cycle: %s", append(path, p))
		}
		if _, ok := below[p]; !ok {
			t.Fatalf("%s stands below another package but not in the table", p)
		}
		for _, next := range below[p] {
			visit(next, append(path, p))
		}
	}
	for p := range below {
		visit(p, nil)
	}
}

// TestPassive reads every non-test file of the passive packages, whatever its
// build tags.
func TestPassive(t *testing.T) {
	dir := root(t)
	for _, p := range passive {
		err := filepath.WalkDir(filepath.Join(dir, p), func(path string, d os.DirEntry, err error) error {
			switch {
			case errors.Is(err, os.ErrNotExist): // a package still to be written
				return nil
			case err != nil:
				return err
			case d.IsDir() && d.Name() == "testdata":
				return filepath.SkipDir
			case d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go"):
				return nil
			}
			src, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			name, err := filepath.Rel(dir, path)
			if err != nil {
				return err
			}
			found, err := active(filepath.ToSlash(name), src)
			for _, f := range found {
				t.Error(f)
			}
			return err
		})
		if err != nil {
			t.Errorf("read package %s: %v", p, err)
		}
	}
}

// clock lists the functions of package time that read the clock or wait for it.
var clock = []string{"After", "AfterFunc", "NewTicker", "NewTimer", "Now", "Since", "Sleep", "Tick", "Until"}

// seeded lists the functions of the math/rand packages that do not draw from
// the process's own source.
var seeded = []string{"New", "NewChaCha8", "NewPCG", "NewSource", "NewZipf"}

// active lists what a passive package must not contain.
func active(name string, src []byte) (found []string, err error) {
	fset := token.NewFileSet()
	file, err := parser.ParseFile(fset, name, src, 0)
	if err != nil {
		return nil, err
	}
	report := func(n ast.Node, format string, args ...any) {
		found = append(found, fmt.Sprintf("%s: %s", fset.Position(n.Pos()), fmt.Sprintf(format, args...)))
	}
	imports := map[string]string{} // name in this file: path
	for _, spec := range file.Imports {
		path := strings.Trim(spec.Path.Value, "`\"")
		if path == "net" || strings.HasPrefix(path, "net/") {
			report(spec, "imports %s", path)
		}
		if path != "time" && path != "math/rand" && path != "math/rand/v2" {
			continue
		}
		local := "rand"
		if path == "time" {
			local = "time"
		}
		if spec.Name != nil {
			local = spec.Name.Name
		}
		if local == "." {
			report(spec, "imports %s into the file block", path)
		}
		imports[local] = path
	}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.GoStmt:
			report(n, "starts a goroutine")
		case *ast.SelectorExpr:
			x, ok := n.X.(*ast.Ident)
			if !ok || x.Obj != nil { // Obj: a variable that hides the package
				break
			}
			switch path := imports[x.Name]; path {
			case "time":
				if slices.Contains(clock, n.Sel.Name) {
					report(n, "uses time.%s", n.Sel.Name)
				}
			case "math/rand", "math/rand/v2":
				if !slices.Contains(seeded, n.Sel.Name) && !randType(n.Sel.Name) {
					report(n, "uses the global %s.%s", path, n.Sel.Name)
				}
			}
		}
		return true
	})
	return found, nil
}

func randType(name string) bool {
	return slices.Contains([]string{"ChaCha8", "PCG", "Rand", "Source", "Source64", "Zipf"}, name)
}

func TestActive(t *testing.T) {
	for _, tc := range []struct{ name, src, want string }{
		{"goroutine", "package p\nfunc f() { go f() }", "p.go:2:12: starts a goroutine"},
		{"clock", "package p\nimport \"time\"\nvar t = time.Now()", "p.go:3:9: uses time.Now"},
		{"clock as a value", "package p\nimport \"time\"\nvar now = time.Now", "p.go:3:11: uses time.Now"},
		{"clock by another name", "package p\nimport t \"time\"\nfunc f() { t.Sleep(1) }", "p.go:3:12: uses time.Sleep"},
		{"clock without a name", "package p\nimport . \"time\"", "p.go:2:8: imports time into the file block"},
		{"socket", "package p\nimport \"net/http\"", "p.go:2:8: imports net/http"},
		{"global randomness", "package p\nimport \"math/rand/v2\"\nvar x = rand.IntN(3)", "p.go:3:9: uses the global math/rand/v2.IntN"},
		{"durations", "package p\nimport \"time\"\nvar d time.Duration = time.Second", ""},
		{"time as an argument", "package p\nimport \"time\"\nfunc f(t time.Time) int64 { return t.Add(1).UnixMilli() }", ""},
		{"seeded randomness", "package p\nimport \"math/rand/v2\"\nfunc f(r *rand.Rand) int { return r.IntN(3) }", ""},
		{"a variable named time", "package p\nfunc f() { var time struct{ Now int }; _ = time.Now }", ""},
		{"network-like name", "package p\nimport \"netip\"", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			found, err := active("p.go", []byte(tc.src))
			if err != nil {
				t.Fatal(err)
			}
			if got := strings.Join(found, "\n"); got != tc.want {
				t.Errorf("found %q; want %q", got, tc.want)
			}
		})
	}
}

// TestEmbedderModules pins the modules that come with the packages somebody
// embeds.
func TestEmbedderModules(t *testing.T) {
	for _, target := range []string{".", "./replica"} {
		t.Run(strings.TrimPrefix(cmp.Or(strings.TrimPrefix(target, "."), "root"), "/"), func(t *testing.T) {
			if goFiles, err := filepath.Glob(filepath.Join(root(t), target, "*.go")); err != nil {
				t.Fatal(err)
			} else if len(goFiles) == 0 {
				t.Skipf("%s is still to be written", target)
			}
			for _, p := range golist(t, "-deps", target) {
				switch {
				case p.Standard || p.Module != nil && (p.Module.Main || slices.Contains(embedders, p.Module.Path)):
				case p.Module == nil:
					t.Errorf("%s needs %s, which no module provides", target, p.ImportPath)
				default:
					t.Errorf("%s needs %s of module %s", target, p.ImportPath, p.Module.Path)
				}
			}
		})
	}
}
