package kafka

import (
	"reflect"
	"testing"
)

// C129: null and empty are different in every place; C130: headers keep order
// and duplicates.
func TestParseRecord(t *testing.T) {
	for _, tc := range []struct {
		name, line string
		want       Record
		ok         bool
	}{
		{"null key and value", "7\t1700000000000\t0\t3\t-\t-\t",
			Record{Offset: 7, Timestamp: 1700000000000, LeaderEpoch: 3}, true},
		{"empty key and value, append time", "0\t-1\t1\t-1\t\t\t",
			Record{Timestamp: -1, AppendTime: true, LeaderEpoch: -1, Key: []byte{}, Value: []byte{}}, true},
		{"headers", "0\t0\t0\t0\ta2V5\tdg==\taA==:-,aA==:,:dg==",
			Record{Key: []byte("key"), Value: []byte("v"), Headers: []Header{{"h", nil}, {"h", []byte{}}, {"", []byte("v")}}}, true},
		{"a field short", "0\t0\t0\t0\t-\t-", Record{}, false},
		{"not base64", "0\t0\t0\t0\t*\t-\t", Record{}, false},
		{"not a number", "x\t0\t0\t0\t-\t-\t", Record{}, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := parseRecord(tc.line)
			if (err == nil) != tc.ok {
				t.Fatalf("parseRecord(%q): error %v", tc.line, err)
			}
			if tc.ok && !reflect.DeepEqual(got, tc.want) {
				t.Errorf("parseRecord(%q) = %#v, want %#v", tc.line, got, tc.want)
			}
		})
	}
}
