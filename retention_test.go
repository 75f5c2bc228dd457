package tidemark_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/tidemark-log/tidemark"
	"github.com/tidemark-log/tidemark/record"
)

// until waits for what a goroutine does in the background.
func until(t testing.TB, what string, done func() bool) {
	t.Helper()
	for end := time.Now().Add(2 * time.Minute); !done(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited in vain for %s", what)
		}
	}
}

func logFiles(t testing.TB, dir string) []string {
	t.Helper()
	logs, err := filepath.Glob(filepath.Join(dir, "*.log"))
	if err != nil {
		t.Fatal(err)
	}
	return logs
}

// TestDeleteRecords: the beginning of a log goes at once for readers, its files
// in the background, and neither comes back.
func TestDeleteRecords(t *testing.T) {
	for _, mode := range modes {
		t.Run(mode.String(), func(t *testing.T) {
			dir := t.TempDir()
			o := tidemark.Options{Sync: mode, SegmentBytes: 4 << 10}
			l := open(t, dir, o)
			appendTo(t, l, 40, 900)
			files := len(logFiles(t, dir))
			if err := l.DeleteRecords(17); err != nil {
				t.Fatal(err)
			}
			checkAll(t, l, 17, 40)
			for _, err := range l.Records(16) {
				if !errors.Is(err, tidemark.ErrOutOfRange) {
					t.Errorf("Records from below the log start: %v", err)
				}
			}
			if _, err := l.Get(16, nil); !errors.Is(err, tidemark.ErrOutOfRange) {
				t.Errorf("Get below the log start = %v", err)
			}
			until(t, "the files of 4 segments to go", func() bool { return len(logFiles(t, dir)) <= files-4 })
			checkAll(t, l, 17, 40)
			for _, offset := range []int64{41, -2} {
				if err := l.DeleteRecords(offset); !errors.Is(err, tidemark.ErrOutOfRange) {
					t.Errorf("DeleteRecords(%d) = %v", offset, err)
				}
			}
			if err := l.DeleteRecords(3); err != nil { // gone already
				t.Error(err)
			}
			closeLog(t, l)
			o.ReadOnly = true
			l = open(t, dir, o)
			checkAll(t, l, 17, 40)
			if err := l.DeleteRecords(20); !errors.Is(err, tidemark.ErrReadOnly) {
				t.Errorf("DeleteRecords of a read-only log = %v", err)
			}
			closeLog(t, l)
			o.ReadOnly = false
			l = open(t, dir, o)
			checkAll(t, l, 17, 40)
			if err := l.DeleteRecords(-1); err != nil {
				t.Fatal(err)
			}
			if l.LogStartOffset() != 40 {
				t.Errorf("log start %d after everything was deleted", l.LogStartOffset())
			}
			appendTo(t, l, 45, 900)
			checkAll(t, l, 40, 45)
			closeLog(t, l)
			checkAll(t, open(t, dir, o), 40, 45)
		})
	}
}

// TestRetention: by size and by age, in the background.
func TestRetention(t *testing.T) {
	for _, mode := range modes {
		t.Run(mode.String(), func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			l := open(t, dir, tidemark.Options{Sync: mode, SegmentBytes: 4 << 10, RetentionBytes: 8 << 10})
			appendTo(t, l, 200, 900)
			until(t, "retention by size", func() bool { return l.Stats().Bytes < 12<<10 })
			if got := l.Stats().Bytes; got < 8<<10 {
				t.Errorf("%d bytes are kept", got)
			}
			checkAll(t, l, l.LogStartOffset(), 200)
			closeLog(t, l)

			// What is there is older than this.
			l = open(t, dir, tidemark.Options{Sync: mode, SegmentBytes: 4 << 10, Retention: time.Millisecond})
			until(t, "retention by age", func() bool { return l.LogStartOffset() == 200 && l.Stats().Segments == 1 })
			closeLog(t, l)
			l = open(t, dir, tidemark.Options{})
			checkAll(t, l, 200, 200)
			appendTo(t, l, 203, 900)
			checkAll(t, l, 200, 203)
		})
	}
}

// TestTimestampOptions: TimestampAhead and LogAppendTime.
func TestTimestampOptions(t *testing.T) {
	l := open(t, t.TempDir(), tidemark.Options{TimestampAhead: time.Hour})
	ahead := tidemark.Record{Timestamp: time.Now().Add(2 * time.Hour).UnixMilli(), Value: []byte("v")}
	_, err := l.Append(ahead)
	if e, ok := errors.AsType[*record.ClientError](err); !ok || e.Code != record.CodeInvalidTimestamp {
		t.Errorf("append of a record from the future = %v", err)
	}
	ahead.Timestamp = 1
	if _, err := l.Append(ahead); err != nil {
		t.Error(err)
	}
	closeLog(t, l)

	before := time.Now().UnixMilli()
	l = open(t, t.TempDir(), tidemark.Options{LogAppendTime: true})
	if _, err := l.Append(ahead); err != nil {
		t.Fatal(err)
	}
	r, err := l.Get(0, nil)
	if err != nil || r.Timestamp < before-1000 || r.Timestamp > time.Now().UnixMilli()+1000 {
		t.Errorf("timestamp %d of a record appended at %d, %v", r.Timestamp, before, err)
	}
	closeLog(t, l)
}

// TestRefusedRetention: no setting means something else than it says.
func TestRefusedRetention(t *testing.T) {
	for name, o := range map[string]tidemark.Options{
		"RetentionMs": {Retention: -1}, "RetentionBytes": {RetentionBytes: -1}, "SegmentMs": {SegmentAge: -time.Hour},
		"TimestampAfterMaxMs": {TimestampAhead: -1},
	} {
		dir := filepath.Join(t.TempDir(), "log")
		if l, err := tidemark.Open(dir, o); err == nil {
			closeLog(t, l)
			t.Errorf("%s: -1 was taken", name)
		}
		if _, err := os.Stat(filepath.Join(dir, "tidemark.slot")); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: refused, and made a log: %v", name, err)
		}
	}
	dir := filepath.Join(t.TempDir(), "a", "b", "log") // with its parents
	l := open(t, dir, tidemark.Options{})
	appendTo(t, l, 1, 10)
	closeLog(t, l)
}
