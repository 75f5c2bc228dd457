package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/tidemark-log/tidemark/dedupe"
	"github.com/tidemark-log/tidemark/record"
)

var rewrite = flag.Bool("rewrite", false, "put the true output into the examples of docs/logtool.md")

// TestDocsExamples runs every example of docs/logtool.md in the root of the
// repository and compares the output.
func TestDocsExamples(t *testing.T) {
	t.Chdir("../..")
	const path = "docs/logtool.md"
	doc, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	examples := 0
	got := regexp.MustCompile("(?s)```console\n(.*?)```").ReplaceAllStringFunc(string(doc), func(block string) string {
		out := "```console\n"
		code := 0
		for _, line := range strings.Split(block, "\n") {
			switch cmd, ok := strings.CutPrefix(line, "$ logtool "); {
			case ok:
				examples++
				var stdout string
				code, stdout, _ = logtool(strings.Fields(cmd)...)
				out += line + "\n" + stdout
			case line == "$ echo $?":
				out += line + "\n" + fmt.Sprintln(code)
			}
		}
		return out + "```"
	})
	if examples == 0 {
		t.Error("no examples found")
	}
	if got == string(doc) {
		return
	}
	if *rewrite {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	was, is := strings.Split(string(doc), "\n"), strings.Split(got, "\n")
	i := 0
	for i < min(len(was), len(is)) && was[i] == is[i] {
		i++
	}
	t.Errorf("%s differs from line %d on; -rewrite puts this in:\n%s", path, i+1, strings.Join(is[i:min(len(is), i+5)], "\n"))
}

// TestDocsSchema compares the fields of each type of line, as printed, with
// the tables of docs/logtool.md.
func TestDocsSchema(t *testing.T) {
	doc, err := os.ReadFile("../../docs/logtool.md")
	if err != nil {
		t.Fatal(err)
	}
	documented := map[string][]string{}
	_, schema, _ := strings.Cut(string(doc), "\n## JSON lines\n")
	for _, section := range strings.Split(schema, "\n#### ")[1:] {
		section, _, _ = strings.Cut(section, "\n## ")
		typ, body, _ := strings.Cut(section, "\n")
		for line := range strings.Lines(body) {
			if cells := strings.Split(line, "|"); len(cells) > 2 {
				for _, f := range regexp.MustCompile("`(\\w+)`").FindAllStringSubmatch(cells[1], -1) {
					documented[typ] = append(documented[typ], f[1])
				}
			}
		}
	}

	printed := map[string]map[string]bool{}
	see := func(args ...string) {
		_, out, _ := logtool(append(args, "--json")...)
		for line := range strings.Lines(out) {
			var l map[string]any
			if err := json.Unmarshal([]byte(line), &l); err != nil {
				t.Fatal(err)
			}
			typ := l["type"].(string)
			if printed[typ] == nil {
				printed[typ] = map[string]bool{}
			}
			for k := range l {
				if k != "type" {
					printed[typ][k] = true
				}
			}
		}
	}
	see("dump", "--records", testdata+"/kafka-4.4-closed")
	see("dump", testdata+"/kafka-4.4-killed")
	see("verify", testdata+"/kafka-4.4-killed")
	see("ls", "--segments", "--scan", testdata+"/kafka-4.4-closed")
	see("dump", "--hex", testdata+"/kafka-4.4-closed/codecs-0")
	var window memoryFile
	if _, err := dedupe.New(dedupe.Options{}).Freeze().WriteWindow(&window, [16]byte{}, 5); err != nil {
		t.Fatal(err)
	}
	see("dump", folder(t, map[string][]byte{"00000000000000000005" + dedupe.Suffix: window}))
	replicas := testdata + "/kafka-4.4-three-replicas"
	see("find", "--offset", "50", testdata+"/kafka-4.4-closed/idem-0")
	see("epochs", replicas+"/replica-2")
	see("diff", replicas+"/replica-1-diverged", replicas+"/replica-2")
	see("explain", testdata+"/kafka-4.4-killed")
	see("producers", testdata+"/kafka-4.4-closed")
	see("repair", testdata+"/kafka-4.4-killed/idem-0")
	b := batch(t, 0, nil, 1)
	torn := folder(t, map[string][]byte{log0: cat(b, batch(t, 1, nil, 2)[:70])})
	see("dump", torn)
	unclean(t, torn)
	see("dump", torn)
	bad := slices.Clone(b)
	bad[70] ^= 1
	see("dump", folder(t, map[string][]byte{log0: cat(bad, record.Batch(b))}))

	for typ, fields := range documented {
		for _, f := range fields {
			if !printed[typ][f] {
				t.Errorf("%s: field %s is documented but never printed", typ, f)
			}
		}
		for f := range printed[typ] {
			if !slices.Contains(fields, f) {
				t.Errorf("%s: field %s is printed but not documented", typ, f)
			}
		}
	}
	for typ := range printed {
		if documented[typ] == nil {
			t.Errorf("lines of type %s are not documented", typ)
		}
	}
}
