package replica

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/tidemark-log/tidemark/record"
	"github.com/tidemark-log/tidemark/segment"
)

// Config is what a topic's configuration says about one log. Each field has the
// name, unit and default of the Kafka setting beside it (log-format §13);
// [DefaultConfig] has all defaults, the zero value is no configuration.
type Config struct {
	// SegmentBytes is segment.bytes: how large a segment grows before the next
	// one begins, 4,096 to 2^31−1 bytes. A file never passes segment.MaxCapacity.
	SegmentBytes int64
	// SegmentMs is segment.ms: an append that is dated, or made, so much later
	// than the first batch of the segment begins a new one; at least 1.
	SegmentMs int64
	// SegmentJitterMs is segment.jitter.ms: by how much at most SegmentMs is
	// shortened, differently for each segment, so that not all logs roll at once.
	// What is above SegmentMs counts as SegmentMs.
	SegmentJitterMs int64
	// SegmentIndexBytes is segment.index.bytes: a segment with an index of that
	// size is full; at least 1,024, below which segments would hold few batches.
	SegmentIndexBytes int64
	// IndexIntervalBytes is index.interval.bytes: log bytes between two entries
	// of an index, 0 to 1 MiB.
	IndexIntervalBytes int64
	// MaxBatchBytes is max.message.bytes: the largest batch, as sent, that a
	// leader takes. One above SegmentBytes is refused as well.
	MaxBatchBytes int64

	// Delete and Compact are cleanup.policy. A log that is not Delete keeps its
	// segments whatever their age and size, and its records cannot be deleted. A
	// Compact one takes no record without a key.
	Delete, Compact bool
	// RetentionMs is retention.ms: a segment whose largest timestamp is older is
	// deleted; −1 keeps it for ever.
	RetentionMs int64
	// RetentionBytes is retention.bytes: oldest segments are deleted while the
	// rest is at least so large; −1 for any size.
	RetentionBytes int64
	// FileDeleteDelayMs is file.delete.delay.ms: how long the files of a deleted
	// segment stay under their .deleted names.
	FileDeleteDelayMs int64

	// For the cleaner. MaxCompactionLagMs bounds SegmentMs of a Compact log.
	DeleteRetentionMs      int64   // delete.retention.ms
	MinCompactionLagMs     int64   // min.compaction.lag.ms
	MaxCompactionLagMs     int64   // max.compaction.lag.ms
	MinCleanableDirtyRatio float64 // min.cleanable.dirty.ratio

	// TimestampType is message.timestamp.type. With LogAppendTime a leader dates
	// the batches it takes by its own clock.
	TimestampType record.TimestampType
	// TimestampBeforeMaxMs and TimestampAfterMaxMs are
	// message.timestamp.before.max.ms and .after.max.ms: how far from the
	// leader's clock a record's own timestamp may be, 2^63−1 for any distance. 0
	// is taken as 1.
	TimestampBeforeMaxMs, TimestampAfterMaxMs int64
}

// DefaultConfig returns Kafka's defaults, those of 4.4.
func DefaultConfig() Config {
	return Config{
		SegmentBytes:           1 << 30,
		SegmentMs:              weekMs,
		SegmentIndexBytes:      10 << 20,
		IndexIntervalBytes:     4 << 10,
		MaxBatchBytes:          1<<20 + 12,
		Delete:                 true,
		RetentionMs:            weekMs,
		RetentionBytes:         -1,
		FileDeleteDelayMs:      60_000,
		DeleteRetentionMs:      86_400_000,
		MaxCompactionLagMs:     math.MaxInt64,
		MinCleanableDirtyRatio: 0.5,
		TimestampType:          record.CreateTime,
		TimestampBeforeMaxMs:   math.MaxInt64,
		TimestampAfterMaxMs:    3_600_000,
	}
}

// EmbeddedConfig returns the defaults of a log that is no topic's: segments of 64
// MiB, nothing is deleted, no segment ends because of its age, timestamps may be
// any.
func EmbeddedConfig() Config {
	c := DefaultConfig()
	c.SegmentBytes = 64 << 20
	c.SegmentMs, c.TimestampAfterMaxMs = noLimit, noLimit
	c.RetentionMs = -1
	return c
}

const (
	weekMs  = 7 * 24 * 3_600_000
	noLimit = math.MaxInt64
)

// setting is one name of a topic's configuration. A number has at, anything else
// get and set.
type setting struct {
	name   string // Kafka's
	field  string // of Config, for who sets it in Go
	lo, hi int64
	at     func(*Config) *int64
	get    func(*Config) string
	set    func(c *Config, v string) bool // whether v is a value
	values string                         // that set takes
}

var settings = []setting{
	{name: "segment.bytes", field: "SegmentBytes", lo: 4 << 10, hi: math.MaxInt32, at: func(c *Config) *int64 { return &c.SegmentBytes }},
	{name: "segment.ms", field: "SegmentMs", lo: 1, hi: math.MaxInt64, at: func(c *Config) *int64 { return &c.SegmentMs }},
	{name: "segment.jitter.ms", field: "SegmentJitterMs", hi: math.MaxInt64, at: func(c *Config) *int64 { return &c.SegmentJitterMs }},
	{name: "segment.index.bytes", field: "SegmentIndexBytes", lo: 1 << 10, hi: math.MaxInt32, at: func(c *Config) *int64 { return &c.SegmentIndexBytes }},
	{name: "index.interval.bytes", field: "IndexIntervalBytes", hi: 1 << 20, at: func(c *Config) *int64 { return &c.IndexIntervalBytes }},
	{name: "max.message.bytes", field: "MaxBatchBytes", lo: record.HeaderSize, hi: math.MaxInt32, at: func(c *Config) *int64 { return &c.MaxBatchBytes }},
	{name: "cleanup.policy", get: (*Config).policy, set: (*Config).setPolicy, values: `"delete", "compact" or both`},
	{name: "retention.ms", field: "RetentionMs", lo: -1, hi: math.MaxInt64, at: func(c *Config) *int64 { return &c.RetentionMs }},
	{name: "retention.bytes", field: "RetentionBytes", lo: -1, hi: math.MaxInt64, at: func(c *Config) *int64 { return &c.RetentionBytes }},
	{name: "file.delete.delay.ms", field: "FileDeleteDelayMs", hi: math.MaxInt64, at: func(c *Config) *int64 { return &c.FileDeleteDelayMs }},
	{name: "delete.retention.ms", field: "DeleteRetentionMs", hi: math.MaxInt64, at: func(c *Config) *int64 { return &c.DeleteRetentionMs }},
	{name: "min.compaction.lag.ms", field: "MinCompactionLagMs", hi: math.MaxInt64, at: func(c *Config) *int64 { return &c.MinCompactionLagMs }},
	{name: "max.compaction.lag.ms", field: "MaxCompactionLagMs", lo: 1, hi: math.MaxInt64, at: func(c *Config) *int64 { return &c.MaxCompactionLagMs }},
	{name: "min.cleanable.dirty.ratio", get: func(c *Config) string { return strconv.FormatFloat(c.MinCleanableDirtyRatio, 'g', -1, 64) },
		set: (*Config).setDirtyRatio, values: "0 to 1"},
	{name: "message.timestamp.type", get: func(c *Config) string { return c.TimestampType.String() },
		set: (*Config).setTimestampType, values: "CreateTime or LogAppendTime"},
	{name: "message.timestamp.before.max.ms", field: "TimestampBeforeMaxMs", hi: math.MaxInt64, at: func(c *Config) *int64 { return &c.TimestampBeforeMaxMs }},
	{name: "message.timestamp.after.max.ms", field: "TimestampAfterMaxMs", hi: math.MaxInt64, at: func(c *Config) *int64 { return &c.TimestampAfterMaxMs }},
	// What a log of ours does in one way only.
	only("compression.type", "producer"),
	only("flush.messages", strconv.Itoa(math.MaxInt64)), // Options.Sync says when
	only("flush.ms", strconv.Itoa(math.MaxInt64)),
	{name: "preallocate", get: func(*Config) string { return "true" }, set: func(_ *Config, v string) bool { return v == "true" || v == "false" },
		values: "true or false; a log is preallocated either way"},
}

func only(name, value string) setting {
	return setting{name: name, get: func(*Config) string { return value }, set: func(_ *Config, v string) bool { return v == value }, values: value}
}

func (c *Config) policy() string {
	switch {
	case c.Delete && c.Compact:
		return "compact,delete"
	case c.Compact:
		return "compact"
	}
	return "delete"
}

func (c *Config) setPolicy(v string) bool {
	c.Delete, c.Compact = false, false
	for p := range strings.SplitSeq(v, ",") {
		switch strings.TrimSpace(p) {
		case "delete":
			c.Delete = true
		case "compact":
			c.Compact = true
		default:
			return false
		}
	}
	return true
}

func (c *Config) setDirtyRatio(v string) bool {
	f, err := strconv.ParseFloat(v, 64)
	c.MinCleanableDirtyRatio = f
	return err == nil && f >= 0 && f <= 1
}

func (c *Config) setTimestampType(v string) bool {
	c.TimestampType = record.CreateTime
	if v == record.LogAppendTime.String() {
		c.TimestampType = record.LogAppendTime
	}
	return v == c.TimestampType.String()
}

// ParseConfig returns Kafka's defaults with the settings of m, a topic's
// configuration. The error names every setting that does not exist or whose
// value is out of range, and the range.
func ParseConfig(m map[string]string) (Config, error) {
	c := DefaultConfig()
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(m)) {
		i := slices.IndexFunc(settings, func(s setting) bool { return s.name == name })
		if i < 0 {
			errs = append(errs, fmt.Errorf("setting %s: unknown", name))
			continue
		}
		s, v := &settings[i], strings.TrimSpace(m[name])
		if s.at == nil {
			if !s.set(&c, v) {
				errs = append(errs, fmt.Errorf("setting %s: %q, want %s", name, v, s.values))
			}
			continue
		}
		n, err := strconv.ParseInt(v, 10, 64)
		if err != nil || n < s.lo || n > s.hi {
			errs = append(errs, fmt.Errorf("setting %s: %q, want %d to %d", name, v, s.lo, s.hi))
			continue
		}
		*s.at(&c) = n
	}
	if err := errors.Join(errs...); err != nil {
		return Config{}, err
	}
	return c, nil
}

// Map returns every setting of c under Kafka's names.
func (c *Config) Map() map[string]string {
	m := make(map[string]string, len(settings))
	for i := range settings {
		if s := &settings[i]; s.at != nil {
			m[s.name] = strconv.FormatInt(*s.at(c), 10)
		} else {
			m[s.name] = s.get(c)
		}
	}
	return m
}

// check returns an error that names every field that is out of range.
func (c *Config) check() error {
	var errs []error
	for i := range settings {
		s := &settings[i]
		if s.at == nil {
			continue
		}
		if v := *s.at(c); v < s.lo || v > s.hi {
			errs = append(errs, fmt.Errorf("option %s (%s): %d, want %d to %d", s.field, s.name, v, s.lo, s.hi))
		}
	}
	if !c.Delete && !c.Compact {
		errs = append(errs, errors.New("options Delete and Compact (cleanup.policy): neither is set"))
	}
	if r := c.MinCleanableDirtyRatio; !(r >= 0 && r <= 1) {
		errs = append(errs, fmt.Errorf("option MinCleanableDirtyRatio (min.cleanable.dirty.ratio): %v, want 0 to 1", r))
	}
	if t := c.TimestampType; t != record.CreateTime && t != record.LogAppendTime {
		errs = append(errs, fmt.Errorf("option TimestampType (message.timestamp.type): %d, want 0 or 1", t))
	}
	return errors.Join(errs...)
}

// rollMs is how old a segment gets.
func (c *Config) rollMs() int64 {
	if c.Compact {
		return min(c.SegmentMs, c.MaxCompactionLagMs)
	}
	return c.SegmentMs
}

// judges reports whether a record can break a rule of c.
func (c *Config) judges() bool {
	return c.Compact || c.TimestampType == record.CreateTime &&
		(c.TimestampBeforeMaxMs != noLimit || c.TimestampAfterMaxMs != noLimit)
}

// rules are those for a batch that is appended at nowMs.
func (c *Config) rules(nowMs int64) record.ClientRules {
	limit := func(ms int64) int64 {
		if ms == noLimit {
			return 0 // any
		}
		return max(ms, 1)
	}
	return record.ClientRules{Now: nowMs, TimestampType: c.TimestampType, MaxBefore: limit(c.TimestampBeforeMaxMs),
		MaxAfter: limit(c.TimestampAfterMaxMs), Compacted: c.Compact, MaxBatchSize: int(c.MaxBatchBytes)}
}

// config fills Options.Config from the fields beside it, and checks it.
func (o *Options) config() error {
	c := EmbeddedConfig()
	if o.Config != nil {
		c = *o.Config
	}
	if o.SegmentBytes != 0 {
		c.SegmentBytes = o.SegmentBytes
	}
	if o.IndexIntervalBytes != 0 {
		c.IndexIntervalBytes = o.IndexIntervalBytes
	}
	if o.MaxBatchBytes != 0 {
		c.MaxBatchBytes = int64(o.MaxBatchBytes)
	}
	o.Config = &c
	err := c.check()
	if err == nil && int64(o.MaxBatchBytes) > c.SegmentBytes {
		err = fmt.Errorf("option MaxBatchBytes: %d, want at most SegmentBytes, %d", o.MaxBatchBytes, c.SegmentBytes)
	}
	return err
}

// Config returns the log's configuration.
func (l *Log) Config() Config { return *l.cfg.Load() }

// SetConfig changes the configuration of an open log. What concerns segments and
// indexes holds for segments that begin later; a segment that is larger or older
// than it may be now ends with the next append. An error names every field that
// is out of range, and nothing changed.
func (l *Log) SetConfig(c Config) error {
	if err := c.check(); err != nil {
		return fmt.Errorf("set configuration: %w", err)
	}
	l.maint.Lock()
	defer l.maint.Unlock()
	if l.closed.Load() {
		return ErrClosed
	}
	l.cfg.Store(&c)
	l.so = l.segmentOptions()
	l.keep.soon()
	return nil
}

// segmentOptions are those of segments that begin now. l.maint is held.
func (l *Log) segmentOptions() *segment.Options {
	o, c := &l.o, l.cfg.Load()
	return &segment.Options{FS: o.FS, Capacity: min(c.SegmentBytes, segment.MaxCapacity), IndexInterval: c.IndexIntervalBytes,
		IndexBytes: c.SegmentIndexBytes, WriteThrough: o.Sync == Always, Fill: o.Sync == Never && o.PopulateBytes > 0, ReadOnly: o.ReadOnly, Maps: o.Maps}
}
