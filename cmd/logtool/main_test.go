package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestMain lets tests run this program as a process of its own.
func TestMain(m *testing.M) {
	if os.Getenv("LOGTOOL_RUN_MAIN") != "" {
		main()
	}
	os.Exit(m.Run())
}

const testdata = "../../testdata"

// realdata returns a folder of files that other Kafka versions wrote. They lie
// beside the repository, not in it: without them the test is skipped, unless
// the environment says that they must be there.
func realdata(t testing.TB, name string) string {
	t.Helper()
	dir := filepath.Join("..", "..", "..", "shared", "realdata", name)
	if _, err := os.Stat(dir); err != nil {
		if os.Getenv("TIDEMARK_REQUIRE_REALDATA") == "1" {
			t.Fatalf("TIDEMARK_REQUIRE_REALDATA=1: %v", err)
		}
		t.Skipf("no real data: %v", err)
	}
	return dir
}

// dataDir returns a folder of testdata, or else of the real data.
func dataDir(t testing.TB, name string) string {
	t.Helper()
	if dir := filepath.Join(testdata, name); name != "" {
		if _, err := os.Stat(dir); err == nil {
			return dir
		}
	}
	return realdata(t, name)
}

// logtool runs the program in this process.
func logtool(args ...string) (code int, stdout, stderr string) {
	var out, err bytes.Buffer
	code = run(args, &out, &err)
	return code, out.String(), err.String()
}

// mustRun runs the program and fails the test on another exit code.
func mustRun(t *testing.T, want int, args ...string) (stdout string) {
	t.Helper()
	code, stdout, stderr := logtool(args...)
	if code != want {
		t.Fatalf("logtool %s: exit %d; want %d\n%s%s", strings.Join(args, " "), code, want, stdout, stderr)
	}
	return stdout
}

// jsonLine is any line of --json output.
type jsonLine struct {
	Type     string
	Severity string
	File     string
	What     string
	Content  string
	Error    string

	Position, Offset *int64
	Check            string
	Found, Wanted    string

	Size                              int64
	BaseOffset, LastOffset            int64
	Count                             int64
	LeaderEpoch                       int32
	CRC                               uint32
	Valid                             bool
	Codec, TimestampType              string
	BaseTimestamp, MaxTimestamp       int64
	ProducerID                        int64
	ProducerEpoch                     int16
	BaseSequence, LastSequence        int32
	IsTransactional, IsControl        bool
	Magic                             int
	DeleteHorizonMs                   *int64
	Timestamp                         int64
	Sequence                          int32
	Key, Value                        *[]byte
	Headers                           [][2]any
	Control                           string
	CoordinatorEpoch                  *int32
	Entry                             int64
	FirstOffset, LastStableOffset     int64
	Epoch                             int64
	StartOffset                       int64
	Kind, Topic                       string
	Partition                         int64
	Version                           int64
	ClusterID, DirectoryID, TopicID   string
	NodeID, BrokerEpoch               int64
	Entries                           int64
	Partitions, Files, Batches        int64
	Records, Bytes, Faults, NoteCount int64
}

// lines parses --json output, every line of which must be an object with a
// type.
func lines(t *testing.T, out string) []jsonLine {
	t.Helper()
	var all []jsonLine
	for i, s := range strings.Split(strings.TrimSuffix(out, "\n"), "\n") {
		if s == "" && out == "" {
			break
		}
		var l jsonLine
		if err := json.Unmarshal([]byte(s), &l); err != nil || l.Type == "" {
			t.Fatalf("line %d is no object with a type: %v\n%s", i+1, err, s)
		}
		all = append(all, l)
	}
	return all
}

// findings returns the findings of verify.
func findings(t *testing.T, out, severity string) []jsonLine {
	t.Helper()
	var f []jsonLine
	for _, l := range lines(t, out) {
		if l.Type == "finding" && l.Severity == severity {
			f = append(f, l)
		}
	}
	return f
}

// copyDir copies a folder to a new temporary one and returns its path, which
// ends in the same name.
func copyDir(t testing.TB, dir string) string {
	t.Helper()
	to := filepath.Join(t.TempDir(), filepath.Base(dir))
	if err := os.CopyFS(to, os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	return to
}

// lastLines shortens an output for an error.
func lastLines(s string, n int) string {
	l := strings.Split(strings.TrimSuffix(s, "\n"), "\n")
	return strings.Join(l[max(0, len(l)-n):], "\n")
}
