package replica_test

import (
	"errors"
	"math"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/tidemark-log/tidemark/internal/vfs"
	"github.com/tidemark-log/tidemark/record"
	"github.com/tidemark-log/tidemark/replica"
)

// TestDefaultConfig: Kafka's defaults (log-format §13), under Kafka's names, and
// back.
func TestDefaultConfig(t *testing.T) {
	const never = "9223372036854775807"
	want := map[string]string{
		"segment.bytes": "1073741824", "segment.ms": "604800000", "segment.jitter.ms": "0", "segment.index.bytes": "10485760",
		"index.interval.bytes": "4096", "max.message.bytes": "1048588", "flush.messages": never, "flush.ms": never,
		"retention.ms": "604800000", "retention.bytes": "-1", "file.delete.delay.ms": "60000", "delete.retention.ms": "86400000",
		"min.compaction.lag.ms": "0", "max.compaction.lag.ms": never, "min.cleanable.dirty.ratio": "0.5",
		"message.timestamp.type": "CreateTime", "message.timestamp.before.max.ms": never, "message.timestamp.after.max.ms": "3600000",
		"compression.type": "producer", "cleanup.policy": "delete",
		"preallocate": "true", // the one that differs: a log of ours is, whatever it says
	}
	c := replica.DefaultConfig()
	got := c.Map()
	for name, v := range want {
		if got[name] != v {
			t.Errorf("%s = %q, want %q", name, got[name], v)
		}
	}
	for name := range got {
		if want[name] == "" {
			t.Errorf("%s has no default in the paper", name)
		}
	}
	parsed, err := replica.ParseConfig(got)
	if err != nil || parsed != c {
		t.Errorf("parsed again: %+v, %v; want %+v", parsed, err, c)
	}
	if parsed, err = replica.ParseConfig(nil); err != nil || parsed != c {
		t.Errorf("nothing parsed: %+v, %v", parsed, err)
	}
}

// TestParseConfig: every setting is read, and Map says it again.
func TestParseConfig(t *testing.T) {
	m := map[string]string{
		"segment.bytes": "1048576", "segment.ms": "1000", "segment.jitter.ms": "7", "segment.index.bytes": "2048",
		"index.interval.bytes": "0", "max.message.bytes": "100", "flush.messages": "9223372036854775807", "flush.ms": "9223372036854775807",
		"retention.ms": "-1", "retention.bytes": "5", "file.delete.delay.ms": "0", "delete.retention.ms": "1",
		"min.compaction.lag.ms": "2", "max.compaction.lag.ms": "3", "min.cleanable.dirty.ratio": "0.25",
		"message.timestamp.type": "LogAppendTime", "message.timestamp.before.max.ms": "8", "message.timestamp.after.max.ms": "9",
		"compression.type": "producer", "cleanup.policy": "compact,delete", "preallocate": "true",
	}
	c, err := replica.ParseConfig(m)
	if err != nil {
		t.Fatal(err)
	}
	want := replica.Config{SegmentBytes: 1 << 20, SegmentMs: 1000, SegmentJitterMs: 7, SegmentIndexBytes: 2048, MaxBatchBytes: 100,
		Delete: true, Compact: true, RetentionMs: -1, RetentionBytes: 5, DeleteRetentionMs: 1, MinCompactionLagMs: 2, MaxCompactionLagMs: 3,
		MinCleanableDirtyRatio: 0.25, TimestampType: record.LogAppendTime, TimestampBeforeMaxMs: 8, TimestampAfterMaxMs: 9}
	if c != want {
		t.Errorf("parsed %+v\nwant %+v", c, want)
	}
	for name, v := range c.Map() {
		if m[name] != v {
			t.Errorf("%s = %q, want %q", name, v, m[name])
		}
	}
	for v, want := range map[string][2]bool{"delete": {true, false}, "compact": {false, true}, " delete , compact ": {true, true}} {
		c, err := replica.ParseConfig(map[string]string{"cleanup.policy": v})
		if err != nil || c.Delete != want[0] || c.Compact != want[1] {
			t.Errorf("cleanup.policy %q: %v %v, %v", v, c.Delete, c.Compact, err)
		}
	}
}

// TestC176_Settings: unsafe ones are refused with the name and the range, all at
// once, when a log is made and when it is changed; C173: an index of one entry.
func TestC176_Settings(t *testing.T) {
	bad := map[string][]string{
		"segment.bytes":                   {"0", "1", "-1", "2147483648", "", "1k"},
		"segment.ms":                      {"0", "-1"},
		"segment.jitter.ms":               {"-1"},
		"segment.index.bytes":             {"4", "12", "0"},
		"index.interval.bytes":            {"-1", "1048577"},
		"max.message.bytes":               {"-1", "0", "2147483648"},
		"retention.ms":                    {"-2", "9223372036854775808"},
		"retention.bytes":                 {"-2"},
		"file.delete.delay.ms":            {"-1"},
		"delete.retention.ms":             {"-1"},
		"min.compaction.lag.ms":           {"-1"},
		"max.compaction.lag.ms":           {"0"},
		"min.cleanable.dirty.ratio":       {"-0.1", "1.1", "NaN", "half"},
		"message.timestamp.type":          {"createTime", "0", ""},
		"message.timestamp.before.max.ms": {"-1"},
		"message.timestamp.after.max.ms":  {"-1"},
		"cleanup.policy":                  {"", "none", "delete,", "compact,delete,x"},
		"compression.type":                {"zstd"},
		"flush.messages":                  {"1"},
		"flush.ms":                        {"1000"},
		"preallocate":                     {"yes"},
		"min.insync.replicas":             {"1"},
	}
	for name, values := range bad {
		for _, v := range values {
			_, err := replica.ParseConfig(map[string]string{name: v, "retention.ms": map[bool]string{true: v, false: "1"}[name == "retention.ms"]})
			if err == nil || !strings.Contains(err.Error(), "setting "+name+": ") {
				t.Errorf("%s=%q: %v; want an error that names it", name, v, err)
			}
		}
	}
	_, err := replica.ParseConfig(map[string]string{"segment.bytes": "0", "retention.ms": "-2", "segment.size": "1"})
	for _, want := range []string{`segment.bytes: "0", want 4096 to 2147483647`, `retention.ms: "-2", want -1 to`, "segment.size: unknown"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v; want %q in it", err, want)
		}
	}

	// The same in Go, for a new log and for one that is open.
	x := newLab(t, replica.Options{})
	was := x.log.Config()
	for name, spoil := range map[string]func(*replica.Config){
		"SegmentBytes":           func(c *replica.Config) { c.SegmentBytes = 1 },
		"SegmentMs":              func(c *replica.Config) { c.SegmentMs = 0 },
		"SegmentJitterMs":        func(c *replica.Config) { c.SegmentJitterMs = -1 },
		"SegmentIndexBytes":      func(c *replica.Config) { c.SegmentIndexBytes = 12 },
		"IndexIntervalBytes":     func(c *replica.Config) { c.IndexIntervalBytes = -1 },
		"MaxBatchBytes":          func(c *replica.Config) { c.MaxBatchBytes = 0 },
		"RetentionMs":            func(c *replica.Config) { c.RetentionMs = -2 },
		"RetentionBytes":         func(c *replica.Config) { c.RetentionBytes = -2 },
		"FileDeleteDelayMs":      func(c *replica.Config) { c.FileDeleteDelayMs = -1 },
		"Delete":                 func(c *replica.Config) { c.Delete = false },
		"MinCleanableDirtyRatio": func(c *replica.Config) { c.MinCleanableDirtyRatio = math.NaN() },
		"TimestampType":          func(c *replica.Config) { c.TimestampType = 2 },
		"TimestampAfterMaxMs":    func(c *replica.Config) { c.TimestampAfterMaxMs = -1 },
		"MaxCompactionLagMs":     func(c *replica.Config) { c.MaxCompactionLagMs = 0 },
	} {
		c := replica.DefaultConfig()
		spoil(&c)
		mem := vfs.NewMem(vfs.MemOptions{})
		if _, err := replica.Open("/log", replica.Options{Config: &c, FS: mem}, t0); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: open = %v", name, err)
		}
		if err := x.log.SetConfig(c); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: SetConfig = %v", name, err)
		}
	}
	if _, err := replica.Open("/log", replica.Options{Config: new(replica.Config), FS: vfs.NewMem(vfs.MemOptions{})}, t0); err == nil {
		t.Error("a zero Config was taken")
	}
	if x.log.Config() != was {
		t.Errorf("configuration changed to %+v", x.log.Config())
	}
}

// TestSetConfig: what may change while a log is open, does.
func TestSetConfig(t *testing.T) {
	for _, mode := range []replica.SyncMode{replica.Always, replica.Never} {
		x := newLab(t, replica.Options{Config: keeping(), SegmentBytes: 4 << 10, Sync: mode, Sole: true})
		x.fill(7) // 0 to 4, 5 to 6
		c := x.log.Config()
		c.SegmentBytes = 40 << 10
		if err := x.log.SetConfig(c); err != nil {
			t.Fatal(err)
		}
		x.fill(50)
		bases := x.segments()
		if n := len(bases); n > 5 || bases[1] != 5 {
			t.Errorf("%v: larger segments: %v", mode, bases)
		}
		c.SegmentBytes, c.MaxBatchBytes = 4<<10, 1000 // the active one is larger than that
		if err := x.log.SetConfig(c); err != nil {
			t.Fatal(err)
		}
		end := x.log.LogEndOffset()
		x.fill(11)
		if got := x.segments(); !slices.Equal(got[len(got)-3:], []int64{end, end + 5, end + 10}) {
			t.Errorf("%v: smaller segments from %d on: %v", mode, end, got)
		}
		if err := x.tryAppend(1, 1000); !errors.Is(err, replica.ErrTooLarge) {
			t.Errorf("%v: append of more than MaxBatchBytes = %v", mode, err)
		}
		x.whole(0, end+11)
		x.close()
		if err := x.open().SetConfig(c); err != nil {
			t.Fatal(err)
		}
		x.whole(0, end+11)
		l := x.log
		x.close()
		if err := l.SetConfig(c); !errors.Is(err, replica.ErrClosed) {
			t.Errorf("SetConfig after Close = %v", err)
		}
	}
}

// TestConfigDocs: the table in docs/retention.md has every setting with its
// default.
func TestConfigDocs(t *testing.T) {
	b, err := os.ReadFile("../docs/retention.md")
	if err != nil {
		t.Fatal(err)
	}
	c := replica.DefaultConfig()
	m := c.Map()
	for _, row := range regexp.MustCompile("(?m)^\\| `([a-z.]+)` \\| ([^|]+) \\|").FindAllStringSubmatch(string(b), -1) {
		name, said := row[1], strings.TrimSpace(row[2])
		v, ok := m[name]
		if !ok {
			t.Errorf("%s is no setting, or stands there twice", name)
			continue
		}
		if v == strconv.Itoa(math.MaxInt64) {
			v = "2^63−1"
		}
		if said != v {
			t.Errorf("%s: the page says %q, the default is %q", name, said, v)
		}
		delete(m, name)
	}
	for name := range m {
		t.Errorf("%s is missing", name)
	}
}

// FuzzParseConfig: no value panics, and what is accepted says itself again.
func FuzzParseConfig(f *testing.F) {
	c := replica.DefaultConfig()
	for name, v := range c.Map() {
		f.Add(name, v)
		f.Add(name, "-"+v)
	}
	f.Add("cleanup.policy", "compact, delete")
	f.Fuzz(func(t *testing.T, name, v string) {
		c, err := replica.ParseConfig(map[string]string{name: v})
		if err != nil {
			return
		}
		again, err := replica.ParseConfig(c.Map())
		if err != nil || again != c {
			t.Errorf("%s=%q: %+v, parsed again %+v, %v", name, v, c, again, err)
		}
	})
}
