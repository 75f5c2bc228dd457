package interop

import (
	"archive/zip"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tidemark-log/tidemark/interop/kafka"
)

var rewriteSchemas = flag.Bool("rewrite-schemas", false, "make cmd/logtool/schemas.txt anew")

const schemasFile = "../cmd/logtool/schemas.txt"

// What Kafka's own schema files say, as far as logtool needs it.
type (
	kafkaSchema struct {
		APIKey           int
		Name             string
		Type             string
		ValidVersions    string
		FlexibleVersions string
		Fields           []kafkaField
		CommonStructs    []struct {
			Name   string
			Fields []kafkaField
		}
	}
	kafkaField struct {
		Name             string
		Type             string
		Versions         string
		NullableVersions string
		TaggedVersions   string
		Tag              int
		Fields           []kafkaField
	}
)

// TestSchemasRemade makes logtool's table of the records in Kafka's internal
// topics from the schemas that Kafka's jars carry, and compares.
func TestSchemasRemade(t *testing.T) {
	requireKafka(t, time.Minute)
	out := "# Records of Kafka's internal topics: names, types and versions, made from Kafka " + kafka.Version + "\n" +
		"# by interop (go test -run TestSchemasRemade -rewrite-schemas).\n" +
		"#\n" +
		"#\ttopic NAME\n" +
		"#\tkey|value|record NUMBER NAME VERSIONS flexible VERSIONS\n" +
		"#\t\tFIELD TYPE VERSIONS [null VERSIONS] [tag NUMBER VERSIONS]\n"
	for _, topic := range []struct{ name, jar, folder string }{
		{"__consumer_offsets", "kafka-group-coordinator", "common/message/"},
		{"__transaction_state", "kafka-transaction-coordinator", "common/message/"},
		{"__share_group_state", "kafka-share-coordinator", "common/message/"},
		{"__cluster_metadata", "kafka-metadata", "common/metadata/"},
		{"__remote_log_metadata", "kafka-storage", "message/"},
	} {
		out += "topic " + topic.name + "\n"
		schemas := readSchemas(t, topic.jar, topic.folder)
		if len(schemas) == 0 {
			t.Errorf("no schemas in %s", topic.jar)
		}
		for _, s := range schemas {
			out += s.String()
		}
	}
	clients := readSchemas(t, "kafka-clients", "common/message/")
	for _, topic := range []struct {
		name  string
		first int
		names []string
	}{
		{"control", 2, []string{"LeaderChangeMessage", "SnapshotHeaderRecord", "SnapshotFooterRecord", "KRaftVersionRecord", "VotersRecord"}},
		{"consumer", 0, []string{"ConsumerProtocolSubscription", "ConsumerProtocolAssignment"}}, // inside of GroupMetadata
	} {
		out += "topic " + topic.name + "\n"
		for k, name := range topic.names {
			i := slices.IndexFunc(clients, func(s kafkaSchema) bool { return s.Name == name })
			if i < 0 {
				t.Fatalf("no schema %s", name)
			}
			s := clients[i]
			s.APIKey, s.Type = topic.first+k, "metadata"
			out += s.String()
		}
	}
	if *rewriteSchemas {
		if err := os.WriteFile(schemasFile, []byte(out), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	was, err := os.ReadFile(schemasFile)
	if err != nil {
		t.Fatal(err)
	}
	if string(was) != out {
		t.Errorf("%s is not what Kafka %s says; -rewrite-schemas makes it anew", schemasFile, kafka.Version)
	}
}

// readSchemas reads the record schemas in a folder of a jar, by number.
func readSchemas(t *testing.T, jar, folder string) []kafkaSchema {
	t.Helper()
	name, err := kafka.Jar(jar)
	if err != nil {
		t.Fatal(err)
	}
	z, err := zip.OpenReader(name)
	if err != nil {
		t.Fatal(err)
	}
	defer z.Close()
	comment := regexp.MustCompile(`(?m)^\s*//.*$|[ \t]//[^"\n]*$`)
	var all []kafkaSchema
	for _, f := range z.File {
		if path.Dir(f.Name)+"/" != folder || path.Ext(f.Name) != ".json" {
			continue
		}
		r, err := f.Open()
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		r.Close()
		var s kafkaSchema
		if err := json.Unmarshal(comment.ReplaceAll(b, nil), &s); err != nil {
			t.Fatalf("%s: %v", f.Name, err)
		}
		if s.Type == "metadata" || s.Type == "data" && jar == "kafka-clients" || strings.HasPrefix(s.Type, "coordinator-") {
			all = append(all, s)
		}
	}
	slices.SortFunc(all, func(a, b kafkaSchema) int {
		if a.APIKey != b.APIKey {
			return a.APIKey - b.APIKey
		}
		return strings.Compare(a.Type, b.Type) // key before value
	})
	return all
}

// String is the schema in the words of schemas.txt.
func (s kafkaSchema) String() string {
	what := strings.TrimPrefix(s.Type, "coordinator-")
	name := s.Name
	if what == "metadata" {
		what = "record"
		// PartitionRecord is PARTITION_RECORD, as Kafka's tool prints it.
		name = strings.ToUpper(regexp.MustCompile(`([a-z0-9])([A-Z])`).ReplaceAllString(name, "${1}_$2"))
	} else {
		name = strings.TrimSuffix(strings.TrimSuffix(name, "Key"), "Value")
	}
	var out strings.Builder
	fmt.Fprintf(&out, "%s %d %s %s flexible %s\n", what, s.APIKey, name, s.ValidVersions, s.FlexibleVersions)
	structs := map[string][]kafkaField{}
	for _, c := range s.CommonStructs {
		structs[c.Name] = c.Fields
	}
	var fields func(indent string, list []kafkaField)
	fields = func(indent string, list []kafkaField) {
		for _, f := range list {
			sub := f.Fields
			typ := f.Type
			if sub == nil {
				sub = structs[strings.TrimPrefix(typ, "[]")]
			}
			if sub != nil {
				typ = strings.Repeat("[]", strings.Count(typ, "[]")) + "struct"
			}
			if f.Versions == "" {
				f.Versions = f.TaggedVersions
			}
			fmt.Fprintf(&out, "%s%s %s %s", indent, strings.ToLower(f.Name[:1])+f.Name[1:], typ, f.Versions)
			if f.NullableVersions != "" {
				fmt.Fprintf(&out, " null %s", f.NullableVersions)
			}
			if f.TaggedVersions != "" {
				fmt.Fprintf(&out, " tag %d %s", f.Tag, f.TaggedVersions)
			}
			out.WriteString("\n")
			fields(indent+"\t", sub)
		}
	}
	fields("\t", s.Fields)
	return out.String()
}
