package interop

import (
	"encoding/json"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/tidemark-log/tidemark/interop/kafka"
)

// TestDecodersAgree compares what logtool makes of the records of Kafka's
// internal topics, and of control records, with the decoders of Kafka's tool.
func TestDecodersAgree(t *testing.T) {
	ctx := requireKafka(t, 3*time.Minute)
	logtool := buildLogtool(t)
	glob := func(pattern string) []string {
		files, err := filepath.Glob(filepath.Join(testdata, "kafka-4.4-closed", pattern))
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: %v, %d files", pattern, err, len(files))
		}
		return files
	}
	for _, tc := range []struct {
		option string
		files  []string
	}{
		{"--offsets-decoder", glob("__consumer_offsets-*/*.log")},
		{"--transaction-log-decoder", glob("__transaction_state-*/*.log")},
		{"--cluster-metadata-decoder", append(glob("__cluster_metadata-0/*.log"), glob("__cluster_metadata-0/*.checkpoint")...)},
	} {
		t.Run(tc.option, func(t *testing.T) {
			out, _, err := kafka.Dump(ctx, tc.files, tc.option)
			if err != nil {
				t.Fatal(err)
			}
			var want []string
			for line := range strings.Lines(out) {
				if strings.HasPrefix(line, "| offset: ") {
					want = append(want, strings.TrimSuffix(line, "\n"))
				}
			}
			cmd := exec.CommandContext(ctx, logtool, append([]string{"dump", "--json", "--records"}, tc.files...)...)
			ours, err := cmd.Output()
			if err != nil {
				t.Fatal(err)
			}
			i := 0
			for line := range strings.Lines(string(ours)) {
				var l struct {
					Type    string
					Control string
					Decoded *struct {
						Type, Version json.Number
						Name, Error   string
						Key, Value    any
					}
				}
				d := json.NewDecoder(strings.NewReader(line))
				d.UseNumber()
				if err := d.Decode(&l); err != nil {
					t.Fatalf("%v: %s", err, line)
				}
				if l.Type != "record" {
					continue
				}
				if i == len(want) {
					t.Fatalf("logtool shows more than the %d records of Kafka's tool", i)
				}
				theirs := want[i]
				i++
				if l.Decoded == nil || l.Decoded.Error != "" {
					t.Errorf("Kafka's tool says %s\nlogtool %s", theirs, line)
					continue
				}
				dec := l.Decoded
				if l.Control != "" {
					if value := after(t, theirs, "{"); !reflect.DeepEqual(value, dec.Value) {
						t.Errorf("Kafka's tool says %s\nlogtool %s", theirs, line)
					}
					continue
				}
				payload, _ := after(t, theirs, " payload: {").(map[string]any)
				same := payload == nil && dec.Value == nil
				if payload != nil {
					same = reflect.DeepEqual(payload["data"], dec.Value) && number(payload["version"]) == string(dec.Version)
				}
				if key, ok := after(t, theirs, " key: {").(map[string]any); ok {
					same = same && number(key["type"]) == string(dec.Type) && reflect.DeepEqual(key["data"], dec.Key)
				} else {
					same = same && payload["type"] == dec.Name
				}
				if !same {
					t.Errorf("Kafka's tool says %s\nlogtool %s", theirs, line)
				}
			}
			if i != len(want) || i == 0 {
				t.Errorf("logtool shows %d records, Kafka's tool %d", i, len(want))
			}
		})
	}
}

// after parses the JSON object that begins with the last byte of mark, nil if
// there is none.
func after(t *testing.T, line, mark string) (v any) {
	t.Helper()
	i := strings.Index(line, mark)
	if i < 0 {
		return nil
	}
	d := json.NewDecoder(strings.NewReader(line[i+len(mark)-1:]))
	d.UseNumber()
	if err := d.Decode(&v); err != nil {
		t.Fatalf("%v: %s", err, line)
	}
	return v
}

// number is a number that Kafka prints with or without quotes.
func number(v any) string {
	switch v := v.(type) {
	case string:
		return v
	case json.Number:
		return string(v)
	}
	return ""
}
