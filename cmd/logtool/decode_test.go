package main

import (
	"encoding/binary"
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tidemark-log/tidemark/record"
)

// decodedOf returns the objects that a dump shows of the records below path.
func decodedOf(t *testing.T, args ...string) (objects []string) {
	t.Helper()
	out := mustRun(t, exitOK, append([]string{"dump", "--json", "--records"}, args...)...)
	for line := range strings.Lines(out) {
		var l struct {
			Type    string
			Decoded json.RawMessage
		}
		if err := json.Unmarshal([]byte(line), &l); err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		if l.Type == "record" {
			objects = append(objects, string(l.Decoded))
		}
	}
	return objects
}

// Every record of the internal topics that brokers wrote is taken apart whole.
func TestDecodeRealTopics(t *testing.T) {
	for _, dir := range []string{
		"kafka-4.4-closed/__consumer_offsets-0", "kafka-4.4-closed/__transaction_state-0", "kafka-4.4-closed/__transaction_state-1",
		"kafka-4.4-closed/__cluster_metadata-0", "kafka-4.4-killed/__cluster_metadata-0", "kafka-2.6-multi-record/__consumer_offsets-21",
		"kafka-2.x-compacted-two-segments/__consumer_offsets-17", "kafka-2.7.1-compacted-and-expired/__consumer_offsets-39",
	} {
		t.Run(dir, func(t *testing.T) {
			root, sub := filepath.Split(dir)
			objects := decodedOf(t, filepath.Join(dataDir(t, filepath.Clean(root)), sub))
			if len(objects) == 0 {
				t.Error("no records")
			}
			for _, o := range objects {
				if o == "" || strings.Contains(o, `"error"`) {
					t.Errorf("decoded %s", o)
				}
			}
		})
	}
}

// What each kind of internal record looks like, and what is said of one that
// is unknown or broken. None of it is damage: the log holds what was written.
func TestDecodeRecord(t *testing.T) {
	i16 := func(n int16) string { return string(binary.BigEndian.AppendUint16(nil, uint16(n))) }
	i32 := func(n int32) string { return string(binary.BigEndian.AppendUint32(nil, uint32(n))) }
	i64 := func(n int64) string { return string(binary.BigEndian.AppendUint64(nil, uint64(n))) }
	str := func(s string) string { return i16(int16(len(s))) + s }
	group := i16(2) + str("g")
	for _, tc := range []struct{ name, topic, key, value, want string }{
		{"group", "offsets", group, i16(0) + str("consumer") + i32(7) + i16(-1) + str("l") + i32(0),
			`{"type":2,"name":"GroupMetadata","key":{"group":"g"},"version":0,"value":{"protocolType":"consumer","generation":7,"protocol":null,"leader":"l","members":[]}}`},
		{"tombstone", "offsets", group, "null", `{"type":2,"name":"GroupMetadata","key":{"group":"g"},"value":null}`},
		{"flexible, fields that are not known", "offsets", i16(3) + str("g"), i16(0) + i32(5) + "\x02\x00\x08" + i64(9) + "\x09\x02ab",
			`{"type":3,"name":"ConsumerGroupMetadata","key":{"groupId":"g"},"version":0,"value":{"epoch":5,"metadataHash":9,"tag9":"YWI="}}`},
		{"nested in a tag", "offsets", i16(5) + str("g") + str("m"),
			i16(0) + "\x00\x00" + "\x02c" + "\x02h" + "\x01" + "\x00" + i32(-1) + "\x00" + "\x01\x00\x07\x01" + i32(9) + "\x01\x00",
			`{"type":5,"name":"ConsumerGroupMemberMetadata","key":{"groupId":"g","memberId":"m"},"version":0,"value":{"instanceId":null,"rackId":null,"clientId":"c","clientHost":"h","subscribedTopicNames":[],"subscribedTopicRegex":null,"rebalanceTimeoutMs":-1,"serverAssignor":null,"classicMemberMetadata":{"sessionTimeoutMs":9,"supportedProtocols":[]}}}`},
		{"version to come", "offsets", group, i16(9) + "x",
			`{"type":2,"name":"GroupMetadata","key":{"group":"g"},"version":9,"error":"read version: 9, want 0 to 4"}`},
		{"type to come", "offsets", i16(99) + "x", "x", `{"type":99,"error":"read type: 99, which is not known"}`},
		{"no key", "offsets", "null", "x", `{"error":"read type: a key of 0 bytes, want at least 2"}`},
		{"value cut short", "offsets", group, i16(0) + str("consumer") + "\x00",
			`{"type":2,"name":"GroupMetadata","key":{"group":"g"},"version":0,"error":"read generation: 1 bytes left, want 4"}`},
		{"more elements than bytes", "offsets", group, i16(0) + str("") + i32(0) + i16(-1) + i16(-1) + i32(1<<30),
			`{"type":2,"name":"GroupMetadata","key":{"group":"g"},"version":0,"error":"read members: 1073741824 elements in 0 bytes"}`},
		{"bytes left", "offsets", group + "x", "", `{"type":2,"name":"GroupMetadata","error":"read key: 1 bytes left behind the last field, want 0"}`},
		{"metadata", "metadata", "null", "\x01\x05\x00" + i32(3) + string(make([]byte, 16)) + "\x01\x01\x04" + i32(2),
			`{"type":5,"name":"PARTITION_CHANGE_RECORD","version":0,"value":{"partitionId":3,"topicId":"AAAAAAAAAAAAAAAAAAAAAA","leader":2}}`},
		{"metadata, other frame", "metadata", "null", "\x02\x05\x00", `{"error":"read frame version: 2, want 1"}`},
		{"metadata, type to come", "metadata", "null", "\x01\xff\x7f\x00", `{"type":16383,"version":0,"error":"read type: 16383, which is not known"}`},
		{"metadata, no value", "metadata", "null", "null", `{"error":"read frame version: no varint of up to 32 bits"}`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := record.Record{Timestamp: 1000, Key: []byte(tc.key), Value: []byte(tc.value)}
			if tc.key == "null" {
				r.Key = nil
			}
			if tc.value == "null" {
				r.Value = nil
			}
			dir := folder(t, map[string][]byte{log0: encode(t, 0, nil, r)})
			got := decodedOf(t, "--decode", tc.topic, dir)
			if len(got) != 1 || got[0] != tc.want {
				t.Errorf("decoded\n%s; want\n%s", strings.Join(got, "\n"), tc.want)
			}
			// In text the raw bytes stand where the object does not say it all.
			text := mustRun(t, exitOK, "dump", "--records", "--decode", tc.topic, dir)
			if raw := strings.Contains(text, " value="); raw != strings.Contains(tc.want, `"error"`) {
				t.Errorf("raw bytes shown: %t\n%s", raw, text)
			}
			if out := mustRun(t, exitOK, "dump", "--records", "--json", dir); strings.Contains(out, "decoded") {
				t.Errorf("a topic without a known form decoded: %s", out)
			}
		})
	}
}

func TestDecodeUsage(t *testing.T) {
	mustRun(t, exitUsage, "dump", "--decode", "everything", testdata)
}
