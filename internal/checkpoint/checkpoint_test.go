package checkpoint

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestOffsetsGolden(t *testing.T) {
	const text = "0\n2\na.b-c 3 0\nt 0 18\n" // log-format §1.3
	want := []Offset{{"a.b-c", 3, 0}, {"t", 0, 18}}
	got, err := ParseOffsets([]byte(text))
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("ParseOffsets = %v, %v; want %v", got, err, want)
	}
	if b := AppendOffsets(nil, want); string(b) != text {
		t.Errorf("AppendOffsets = %q; want %q", b, text)
	}
	if b := AppendOffsets(nil, nil); string(b) != "0\n0\n" {
		t.Errorf("AppendOffsets of nothing = %q; want %q", b, "0\n0\n")
	}
}

func TestEpochsGolden(t *testing.T) {
	const text = "0\n3\n0 104\n1 106\n2 110\n"
	want := []Epoch{{0, 104}, {1, 106}, {2, 110}} // epoch 0 is an epoch like any other: C013
	got, err := ParseEpochs([]byte(text))
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("ParseEpochs = %v, %v; want %v", got, err, want)
	}
	if b := AppendEpochs(nil, want); string(b) != text {
		t.Errorf("AppendEpochs = %q; want %q", b, text)
	}
}

// C011: what a power cut, a hand or a tool of another system leaves of a
// checkpoint. Errors name the line, what was found and what was wanted.
func TestC011_OffsetCheckpointDamage(t *testing.T) {
	for _, tc := range []struct {
		name, in string
		entries  int
		err      string // empty: none
	}{
		{"no bytes", "", 0, ""},
		{"version line only", "0\n", 0, ""},
		{"no entries", "0\n0\n", 0, ""},
		{"fields apart by any white space", "0\n1\nt \t 0  18 \n", 1, ""},
		{"listed twice", "0\n2\nt 0 1\nt 0 2\n", 2, ""},
		{"largest values", "0\n1\nt 2147483647 9223372036854775807\n", 1, ""},
		{"other version", "1\n0\n", 0, `line 1: found "1", want format version 0`},
		{"no version", "\n0\n", 0, `line 1: found "", want format version 0`},
		{"no count", "0\nt 0 18\n", 0, `line 2: found "t 0 18", want a number of entries`},
		{"negative count", "0\n-1\n", 0, `line 2: found "-1", want a number of entries`},
		{"count larger than lines", "0\n3\nt 0 18\n", 0, "line 4: found the end after 1 entries, want 3 entries"},
		{"huge count", "0\n2147483647\nt 0 18\n", 0, "line 4: found the end after 1 entries, want 2147483647 entries"},
		{"count smaller than lines", "0\n1\nt 0 18\nu 0 1\n", 0, `line 4: found "u 0 1", want the end after 1 entries`},
		{"blank line at the end", "0\n1\nt 0 18\n\n", 0, `line 4: found "", want the end after 1 entries`},
		{"CR LF", "0\r\n1\r\nt 0 18\r\n", 0, "line 1: found a line that ends in CR LF, want a line that ends in LF"},
		{"CR LF at the end", "0\n1\nt 0 18\r\n", 0, "line 3: found a line that ends in CR LF, want a line that ends in LF"},
		{"cut in the last number", "0\n1\nt 0 1", 0, `line 3: found "t 0 1" without a line end, want a line that ends in LF`},
		{"negative offset", "0\n1\nt 0 -1\n", 0, `line 3: found "-1", want an offset that is not negative`},
		{"negative partition", "0\n1\nt -3 1\n", 0, `line 3: found "-3", want a partition that is not negative`},
		{"offset too large", "0\n1\nt 0 9223372036854775808\n", 0, `line 3: found "9223372036854775808", want an offset`},
		{"too few fields", "0\n1\nt 18\n", 0, `line 3: found "t 18", want 3 fields: topic partition offset`},
		{"too many fields", "0\n1\na b 0 18\n", 0, `line 3: found "a b 0 18", want 3 fields: topic partition offset`},
		{"topic missing", "0\n1\n  0 18\n", 0, `line 3: found "  0 18", want 3 fields: topic partition offset`},
		{"bytes", "0\n1\n\x00\xff\n", 0, `line 3: found "\x00\xff", want 3 fields: topic partition offset`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := ParseOffsets([]byte(tc.in))
			checkError(t, err, tc.err)
			if len(got) != tc.entries {
				t.Errorf("%d entries; want %d", len(got), tc.entries)
			}
		})
	}
}

func TestC013_EpochFileErrors(t *testing.T) {
	for _, tc := range []struct{ name, in, err string }{
		{"no bytes", "", ""},
		{"epoch 0 at 0", "0\n1\n0 0\n", ""},
		{"epoch falls", "0\n2\n3 0\n1 5\n", "line 4: found epoch 1 at 5, want both above epoch 3 at 0 of the line before"},
		{"epoch repeats", "0\n2\n3 0\n3 5\n", "line 4: found epoch 3 at 5, want both above epoch 3 at 0 of the line before"},
		{"start repeats", "0\n2\n3 5\n4 5\n", "line 4: found epoch 4 at 5, want both above epoch 3 at 5 of the line before"},
		{"negative epoch", "0\n1\n-1 0\n", `line 3: found "-1", want an epoch that is not negative`},
		{"negative start", "0\n1\n1 -5\n", `line 3: found "-5", want an offset that is not negative`},
		{"three fields", "0\n1\n1 2 3\n", `line 3: found "1 2 3", want 2 fields: epoch startOffset`},
		{"count too large", "0\n2\n1 2\n", "line 4: found the end after 1 entries, want 2 entries"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := ParseEpochs([]byte(tc.in))
			checkError(t, err, tc.err)
		})
	}
}

func TestErrorOfHugeLineStaysShort(t *testing.T) {
	_, err := ParseOffsets([]byte("0\n1\n" + strings.Repeat("x", 1<<20) + "\n"))
	if err == nil || len(err.Error()) > 200 {
		t.Errorf("error of %d bytes; want at most 200", len(fmt.Sprint(err)))
	}
}

func TestMeta(t *testing.T) {
	const kafka = "#\n#Sun Nov 29 15:34:27 UTC 2026\nnode.id=1\ndirectory.id=lJkkqoLpOJhEOK1gCPqeaQ\nversion=1\ncluster.id=4L6g3nShT-eMCtK--X86sw\n"
	full := Meta{1, "4L6g3nShT-eMCtK--X86sw", 1, "lJkkqoLpOJhEOK1gCPqeaQ"}
	for _, tc := range []struct {
		name, in string
		want     Meta
		err      string
	}{
		{"as Kafka writes it", kafka, full, ""},
		{"CR LF", strings.ReplaceAll(kafka, "\n", "\r\n"), full, ""},
		{"other separators", "version: 1\n  node.id 1\ncluster.id\t=  c\n", Meta{1, "c", 1, ""}, ""},
		{"escapes", `version=1` + "\n" + `node.id=\u0031` + "\n" + `cluster\.id=a\=\:\t\\b` + "\n", Meta{1, "a=:\t\\b", 1, ""}, ""},
		{"a value that goes on", "version=1\nnode.id=1\\\n   2\ncluster.id=c", Meta{1, "c", 12, ""}, ""},
		{"comment that seems to go on", "!note\\\nversion=1\nnode.id=1\ncluster.id=c\n", Meta{1, "c", 1, ""}, ""},
		{"backslash at the end", `version=1` + "\nnode.id=1\n" + `cluster.id=c\`, Meta{1, "c", 1, ""}, ""},
		{"ISO 8859-1", "version=1\nnode.id=1\ncluster.id=\xe4\n", Meta{1, "ä", 1, ""}, ""},
		{"last of two counts", "version=1\nnode.id=1\nnode.id=2\ncluster.id=c\n", Meta{1, "c", 2, ""}, ""},
		{"version 0", "version=0\nbroker.id=7\n", Meta{0, "", 7, ""}, ""},
		{"no version", "node.id=1\n", Meta{}, "line 2: found the end, want a line version="},
		{"version 2", "version=2\n", Meta{}, `line 1: found version "2", want version 0 or 1`},
		{"no node", "version=1\ncluster.id=c\n", Meta{}, "line 3: found the end, want a line node.id="},
		{"negative node", "version=1\nnode.id=-1\ncluster.id=c\n", Meta{}, `line 2: found node.id "-1", want a number that is not negative`},
		{"no cluster", "version=1\nnode.id=1\n", Meta{}, "line 3: found the end, want a line cluster.id="},
		{"directory", "version=1\nnode.id=1\ncluster.id=c\ndirectory.id=x\n", Meta{}, `line 4: found directory.id "x", want a uuid of 22 characters`},
		{"bad escape", `cluster.id=\u12`, Meta{}, `line 1: found "cluster.id=\\u12", want four hexadecimal digits after \u`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := ParseMeta([]byte(tc.in))
			checkError(t, err, tc.err)
			if tc.err == "" && got != tc.want {
				t.Errorf("ParseMeta = %+v; want %+v", got, tc.want)
			}
		})
	}
	when := time.Date(2026, 11, 29, 15, 34, 27, 0, time.UTC)
	if got := AppendMeta(nil, full, when); string(got) != kafka {
		t.Errorf("AppendMeta = %q; want %q", got, kafka)
	}
	for _, m := range []Meta{full, {Version: 0, NodeID: 3}, {1, " a=b:c#d!e\\f\t\n\r\fü鲸", 0, ""}} {
		if got, err := ParseMeta(AppendMeta(nil, m, when)); err != nil || got != m {
			t.Errorf("written and read: %+v, %v; want %+v", got, err, m)
		}
	}
}

func TestPartition(t *testing.T) {
	const kafka = "version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ" // log-format §1.4
	want := Partition{0, UUID{15: 1}}
	for _, tc := range []struct {
		name, in string
		err      string
	}{
		{"as Kafka writes it", kafka, ""},
		{"line end at the end", kafka + "\n", ""},
		{"no bytes", "", `line 1: found "", want version: …`},
		{"first line only", "version: 0\n", `line 2: found "", want topic_id: …`},
		{"negative version", "version: -1\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ", `line 1: found "version: -1", want a version that is not negative`},
		{"short id", "version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAA", `line 2: found "topic_id: AAAAAAAAAAAAAAAAAAAAA", want a topic id: a uuid of 22 characters, not all zero`},
		{"zero id", "version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAA", `line 2: found "topic_id: AAAAAAAAAAAAAAAAAAAAAA", want a topic id: a uuid of 22 characters, not all zero`},
		{"id that no writer makes", "version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAR", `line 2: found "topic_id: AAAAAAAAAAAAAAAAAAAAAR", want a topic id: a uuid of 22 characters, not all zero`},
		{"CR LF", "version: 0\r\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ", `line 1: found "version: 0\r", want a version that is not negative`},
		{"third line", kafka + "\nx", `line 3: found "x", want the end after topic_id`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := ParsePartition([]byte(tc.in))
			checkError(t, err, tc.err)
			if tc.err == "" && got != want {
				t.Errorf("ParsePartition = %+v; want %+v", got, want)
			}
		})
	}
	if got := AppendPartition(nil, want); string(got) != kafka {
		t.Errorf("AppendPartition = %q; want %q", got, kafka)
	}
	if p, err := ParsePartition([]byte("version: 1\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ")); err != nil || p.Version != 1 {
		t.Errorf("version 1: %+v, %v; want it accepted", p, err)
	}
}

func TestCleanMarker(t *testing.T) {
	const kafka = `{"version":0,"brokerEpoch":224}`
	if got := AppendCleanMarker(nil, 224); string(got) != kafka {
		t.Errorf("AppendCleanMarker = %q; want %q", got, kafka)
	}
	for _, tc := range []struct {
		in   string
		want int64
		err  string
	}{
		{kafka, 224, ""},
		{"", -1, ""},
		{"junk", 0, `line 1: found "junk", want {"version":0,"brokerEpoch":N}`},
		{`{"version":0}`, 0, `line 1: found "{\"version\":0}", want {"version":0,"brokerEpoch":N}`},
		{`{"version":1,"brokerEpoch":2}`, 0, "line 1: found version 1, want version 0"},
	} {
		got, err := ParseCleanMarker([]byte(tc.in))
		checkError(t, err, tc.err)
		if got != tc.want {
			t.Errorf("ParseCleanMarker(%q) = %d; want %d", tc.in, got, tc.want)
		}
	}
}

func TestSegmentFile(t *testing.T) {
	for _, tc := range []struct {
		name string
		want SegmentFile
		err  string // "unknown" or a part of the text
	}{
		{"00000000000000000000.log", SegmentFile{0, Log, Live}, ""},
		{"00000000000000004096.timeindex", SegmentFile{4096, TimeIndex, Live}, ""},
		{"09223372036854775807.snapshot", SegmentFile{1<<63 - 1, Snapshot, Live}, ""},
		{"00000000000000000000.log.deleted", SegmentFile{0, Log, Deleted}, ""},
		{"00000000000000000007.timeindex.cleaned", SegmentFile{7, TimeIndex, Cleaned}, ""},
		{"00000000000000000007.txnindex.swap", SegmentFile{7, TxnIndex, Swap}, ""},
		{"00000000000000000007.index", SegmentFile{7, Index, Live}, ""},
		{".DS_Store", SegmentFile{}, "unknown"}, // C037
		{"00000000000000000000.log.bak", SegmentFile{}, "unknown"},
		{"00000000000000000000.dedupe", SegmentFile{}, "unknown"},
		{"00000000000000000000.dedupe.swap", SegmentFile{}, "unknown"},
		{"anything.deleted", SegmentFile{}, "unknown"},
		{"log", SegmentFile{}, "unknown"},
		{"notanumber.log", SegmentFile{}, `found "notanumber" before the suffix, want 20 digits`},
		{"5.log", SegmentFile{}, `found "5" before the suffix`},
		{"000000000000000000005.log", SegmentFile{}, `found "000000000000000000005" before`},
		{"99999999999999999999.log", SegmentFile{}, "want 20 digits"},
		{"-0000000000000000005.log", SegmentFile{}, "want 20 digits"},
		{"00000000000000000000.x.log", SegmentFile{}, `found "00000000000000000000.x"`},
		{"x.swap", SegmentFile{}, `found "x" before`},
		{".log", SegmentFile{}, `found "" before`},
	} {
		got, err := ParseSegmentFile(tc.name)
		switch {
		case tc.err == "unknown" && !errors.Is(err, ErrUnknownName),
			tc.err != "unknown" && errors.Is(err, ErrUnknownName),
			tc.err == "" && err != nil,
			tc.err != "" && tc.err != "unknown" && (err == nil || !strings.Contains(err.Error(), tc.err)):
			t.Errorf("ParseSegmentFile(%q): error %v; want %q", tc.name, err, tc.err)
		case got != tc.want:
			t.Errorf("ParseSegmentFile(%q) = %+v; want %+v", tc.name, got, tc.want)
		case err == nil && got.String() != tc.name:
			t.Errorf("%+v prints as %q; want %q", got, got, tc.name)
		}
	}
}

func TestMetadataSnapshotName(t *testing.T) {
	for _, tc := range []struct {
		name   string
		offset int64
		epoch  int32
		ok     bool
	}{
		{"00000000000000000140-0000000001.checkpoint", 140, 1, true},
		{"00000000000000000140-9999999999.checkpoint", 0, 0, false},
		{"140-1.checkpoint", 0, 0, false},
		{"bootstrap.checkpoint", 0, 0, false},
		{"00000000000000000140-0000000001", 0, 0, false},
	} {
		if o, e, ok := ParseMetadataSnapshot(tc.name); o != tc.offset || e != tc.epoch || ok != tc.ok {
			t.Errorf("ParseMetadataSnapshot(%q) = %d, %d, %v; want %d, %d, %v", tc.name, o, e, ok, tc.offset, tc.epoch, tc.ok)
		}
	}
}

func TestPartitionDir(t *testing.T) {
	const id = "0123456789abcdef0123456789abcdef"
	for _, tc := range []struct {
		name string
		want PartitionDir
		err  string
	}{
		{"t-0", PartitionDir{"t", 0, "", ""}, ""},
		{"a.b-c_d-12", PartitionDir{"a.b-c_d", 12, "", ""}, ""},
		{"a--7", PartitionDir{"a-", 7, "", ""}, ""},
		{"__cluster_metadata-0", PartitionDir{"__cluster_metadata", 0, "", ""}, ""},
		{"a.b-0." + id + "-delete", PartitionDir{"a.b", 0, DirDelete, id}, ""},
		{"t-3." + id + "-stray", PartitionDir{"t", 3, DirStray, id}, ""},
		{"t-3." + id + "-future", PartitionDir{"t", 3, DirFuture, id}, ""},
		{"lost+found", PartitionDir{}, "found no '-'"}, // C036
		{"truth", PartitionDir{}, "found no '-'"},
		{"foo-bar", PartitionDir{}, `found "bar", want a partition number`},
		{"t-", PartitionDir{}, `found ""`},
		{"-0", PartitionDir{}, `found topic ""`},
		{"t--1x", PartitionDir{}, `found "1x"`},
		{"t-01", PartitionDir{}, `found "01"`},
		{"t-2147483648", PartitionDir{}, `found "2147483648"`},
		{"ü-0", PartitionDir{}, "found topic"},
		{"t-0.xyz-delete", PartitionDir{}, `found "xyz", want '.' and 32 hexadecimal digits`},
		{"t-delete", PartitionDir{}, "want '.' and 32 hexadecimal digits"},
		{strings.Repeat("t", 254) + "-0", PartitionDir{}, "found 256 bytes, want at most 255"},
	} {
		got, err := ParsePartitionDir(tc.name)
		if tc.err == "" != (err == nil) || err != nil && !strings.Contains(err.Error(), tc.err) {
			t.Errorf("ParsePartitionDir(%q): error %v; want %q", tc.name, err, tc.err)
		}
		if got != tc.want {
			t.Errorf("ParsePartitionDir(%q) = %+v; want %+v", tc.name, got, tc.want)
		}
		if err == nil && got.String() != tc.name {
			t.Errorf("%+v prints as %q; want %q", got, got, tc.name)
		}
	}
	long := PartitionDir{strings.Repeat("t", 249), 123, DirDelete, id}
	name := long.String()
	if len(name) != 255 || !strings.HasSuffix(name, "t-123."+id+"-delete") {
		t.Errorf("a long topic gives %q (%d bytes); want 255 bytes with the suffix whole", name, len(name))
	}
	if got, err := ParsePartitionDir(name); err != nil || got.Partition != 123 || got.State != DirDelete {
		t.Errorf("cut name parses as %+v, %v", got, err)
	}
}

func TestUUID(t *testing.T) {
	u, err := ParseUUID("71XPVCJ1Qgu_dzTL8LPaBg")
	if err != nil || u.String() != "71XPVCJ1Qgu_dzTL8LPaBg" {
		t.Errorf("ParseUUID = %v, %v", u, err)
	}
	for _, s := range []string{"", "71XPVCJ1Qgu/dzTL8LPaBg", "71XPVCJ1Qgu_dzTL8LPaBg=", "71XPVCJ1Qgu_dzTL8LPaBh"} {
		if _, err := ParseUUID(s); err == nil {
			t.Errorf("ParseUUID(%q): no error", s)
		}
	}
}

// FuzzFiles: no input panics in any parser, and what one accepts is the same
// after it was written and read again.
func FuzzFiles(f *testing.F) {
	for _, s := range []string{
		"0\n2\na.b-c 3 0\nt 0 18\n", "0\n1\nt 0 1", "0\r\n", "0\n2\n0 0\n4 48\n",
		"#\n#date\nnode.id=1\nversion=1\ncluster.id=c\\u0041\\\n x\n", "version=0\nbroker.id=1\n",
		"version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ", `{"version":0,"brokerEpoch":224}`,
		"00000000000000000007.timeindex.cleaned", "t-3.0123456789abcdef0123456789abcdef-stray",
	} {
		f.Add([]byte(s))
		f.Add([]byte(s[:len(s)-1]))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if e, err := ParseOffsets(b); err == nil {
			// A topic may hold any byte but white space as ParseOffsets sees it.
			if again, err := ParseOffsets(AppendOffsets(nil, e)); err != nil || !slices.Equal(again, e) {
				t.Errorf("offsets %v read again as %v, %v", e, again, err)
			}
		}
		if e, err := ParseEpochs(b); err == nil {
			if again, err := ParseEpochs(AppendEpochs(nil, e)); err != nil || !slices.Equal(again, e) {
				t.Errorf("epochs %v read again as %v, %v", e, again, err)
			}
		}
		if m, err := ParseMeta(b); err == nil {
			if again, err := ParseMeta(AppendMeta(nil, m, time.Time{})); err != nil || again != m {
				t.Errorf("meta %+v read again as %+v, %v", m, again, err)
			}
		}
		if p, err := ParsePartition(b); err == nil {
			if again, err := ParsePartition(AppendPartition(nil, p)); err != nil || again != p {
				t.Errorf("partition %+v read again as %+v, %v", p, again, err)
			}
		}
		if e, err := ParseCleanMarker(b); err == nil {
			if again, err := ParseCleanMarker(AppendCleanMarker(nil, e)); err != nil || again != e {
				t.Errorf("broker epoch %d read again as %d, %v", e, again, err)
			}
		}
		if s, err := ParseSegmentFile(string(b)); err == nil && s.String() != string(b) {
			t.Errorf("segment file %q prints as %q", b, s)
		}
		if d, err := ParsePartitionDir(string(b)); err == nil && d.String() != string(b) {
			t.Errorf("partition directory %q prints as %q", b, d)
		}
		ParseMetadataSnapshot(string(b))
	})
}

// checkError compares an error with the text it should have; empty is none.
func checkError(t *testing.T, err error, want string) {
	t.Helper()
	got := ""
	if err != nil {
		got = err.Error()
		if pe := (*ParseError)(nil); !errors.As(err, &pe) {
			t.Errorf("error of type %T; want *ParseError", err)
		}
	}
	if got != want {
		t.Errorf("error %q; want %q", got, want)
	}
}
