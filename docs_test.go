package tidemark_test

import (
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

var (
	caseRow    = regexp.MustCompile(`^\| (C\d{3}) \|`)
	casePlace  = regexp.MustCompile("`([^`]+)`")
	caseID     = regexp.MustCompile(`C\d{3}`)
	testFunc   = regexp.MustCompile(`(?m)^func ((?:Test|Fuzz)\w+)\(\w+ \*testing\.`)
	caseInName = regexp.MustCompile(`^Test(C\d{3})_`)
)

// testsOf maps the tests of a package to the text of their files.
func testsOf(t *testing.T, pkg string) map[string]string {
	t.Helper()
	if pkg == "tidemark" {
		pkg = "."
	}
	files, err := filepath.Glob(filepath.Join(filepath.FromSlash(pkg), "*_test.go"))
	if err != nil || len(files) == 0 {
		t.Fatalf("package %s has no tests: %v", pkg, err)
	}
	tests := map[string]string{}
	for _, name := range files {
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range testFunc.FindAllSubmatch(b, -1) {
			tests[string(m[1])] = string(b)
		}
	}
	return tests
}

// TestDocsCases holds docs/cases.md against the tests: what it names exists, one
// test of each case says the id, each id stands in one place, and no test that
// has an id in its name is missing.
func TestDocsCases(t *testing.T) {
	b, err := os.ReadFile("docs/cases.md")
	if err != nil {
		t.Fatal(err)
	}
	body, left, ok := strings.Cut(string(b), "\n## Left\n")
	if !ok {
		t.Fatal("docs/cases.md does not say what is left")
	}
	pkgs := map[string]map[string]string{}
	for _, pkg := range []string{"tidemark", "record", "index", "segment", "dedupe", "replica", "isr", "internal/vfs", "internal/checkpoint", "internal/sim", "bench", "cmd/logtool"} {
		pkgs[pkg] = testsOf(t, pkg)
	}
	rows := map[string]map[string]bool{} // id → package.test
	for line := range strings.Lines(body) {
		if !strings.HasPrefix(line, "| ") {
			continue
		}
		id := ""
		if m := caseRow.FindStringSubmatch(line); m != nil {
			id = m[1]
			if rows[id] != nil {
				t.Errorf("%s stands in two rows", id)
			}
			rows[id] = map[string]bool{}
		}
		cells := strings.Split(line, "|")
		pkg, said := "", false
		for _, m := range casePlace.FindAllStringSubmatch(cells[len(cells)-2], -1) {
			if pkgs[m[1]] != nil {
				pkg = m[1]
				continue
			}
			text, ok := pkgs[pkg][m[1]]
			if !ok {
				t.Errorf("%s: no test %s in package %q", id, m[1], pkg)
				continue
			}
			said = said || strings.Contains(text, id)
			if id != "" {
				rows[id][pkg+"."+m[1]] = true
			}
		}
		if id != "" && !said {
			t.Errorf("no test of %s says so", id)
		}
	}
	for pkg, tests := range pkgs {
		for _, name := range slices.Sorted(maps.Keys(tests)) {
			if m := caseInName.FindStringSubmatch(name); m != nil && !rows[m[1]][pkg+"."+name] {
				t.Errorf("%s of package %s is missing at %s", name, pkg, m[1])
			}
		}
	}
	for line := range strings.Lines(left) {
		if cells := strings.Split(line, "|"); len(cells) > 2 {
			for _, id := range caseID.FindAllString(cells[2], -1) {
				if rows[id] != nil {
					t.Errorf("%s is left and tested", id)
				}
			}
		}
	}
}

var (
	scenarioRow    = regexp.MustCompile(`^\| S(\d+) \|`)
	scenarioInName = regexp.MustCompile(`^TestS(\d+)_`)
)

// TestDocsScenarios holds the table of scenarios in docs/replication.md against the
// tests: S1 to S98 stand in it once and in order, each with a test that exists or with
// what it waits for, and no test with a number in its name is missing.
func TestDocsScenarios(t *testing.T) {
	b, err := os.ReadFile("docs/replication.md")
	if err != nil {
		t.Fatal(err)
	}
	pkgs := map[string]map[string]string{}
	for _, pkg := range []string{"tidemark", "replica", "isr", "internal/sim"} {
		pkgs[pkg] = testsOf(t, pkg)
	}
	last := 0
	rows := map[string]bool{} // number.package.test
	for line := range strings.Lines(string(b)) {
		m := scenarioRow.FindStringSubmatch(line)
		if m == nil {
			continue
		}
		if last++; m[1] != strconv.Itoa(last) {
			t.Fatalf("S%s stands where S%d should", m[1], last)
		}
		cells := strings.Split(line, "|")
		if strings.TrimSpace(cells[3]) == "" && strings.TrimSpace(cells[4]) == "" {
			t.Errorf("S%d has no test and waits for nothing", last)
		}
		pkg := ""
		for _, m := range casePlace.FindAllStringSubmatch(cells[3], -1) {
			if pkgs[m[1]] != nil {
				pkg = m[1]
			} else if _, ok := pkgs[pkg][m[1]]; !ok {
				t.Errorf("S%d: no test %s in package %q", last, m[1], pkg)
			} else {
				rows[strconv.Itoa(last)+"."+pkg+"."+m[1]] = true
			}
		}
	}
	if last != 98 {
		t.Errorf("%d scenarios, want 98", last)
	}
	for pkg, tests := range pkgs {
		for _, name := range slices.Sorted(maps.Keys(tests)) {
			if m := scenarioInName.FindStringSubmatch(name); m != nil && !rows[strings.TrimLeft(m[1], "0")+"."+pkg+"."+name] {
				t.Errorf("%s of package %s is missing in its row", name, pkg)
			}
		}
	}
}

// TestDocsFigures: the figures of replicated appends stand in README.md and, beside what
// each mode survives, in docs/durability.md; they are the same.
func TestDocsFigures(t *testing.T) {
	figures := func(file string, cells int) (rows []string) {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(b)) {
			if f := strings.Split(line, "|"); len(f) == cells+2 && slices.Contains([]string{"never", "interval", "always"}, strings.TrimSpace(f[1])) {
				rows = append(rows, strings.Join(f[1:8], "|"))
			}
		}
		return rows
	}
	readme, durability := figures("README.md", 7), figures("docs/durability.md", 8)
	if len(readme) < 6 || !slices.Equal(readme, durability) {
		t.Errorf("README.md:\n%s\ndocs/durability.md:\n%s", strings.Join(readme, "\n"), strings.Join(durability, "\n"))
	}
}
