package record

import (
	"bytes"
	"fmt"
	"hash/crc32"
	"testing"
)

// shapes are the batches that the benchmarks encode and read.
var shapes = []struct{ size, count int }{{100, 1}, {100, 100}, {1 << 10, 1}, {1 << 10, 100}, {16 << 10, 1}}

// ring is the memory that batches go to one after another, as in a log: larger
// than the caches' share of one batch, small enough to stay mapped.
const ring = 8 << 20

func benchRecords(size, count int) []Record {
	recs := make([]Record, count)
	for i := range recs {
		recs[i].Value = bytes.Repeat([]byte{byte('a' + i%26)}, size)
	}
	return recs
}

// go test -run - -bench 'Encode|Bare' ./record
//
// Encode is Size and Encode; Bare copies the same values into the same place and
// hashes them with one call, which is the least any writer must do.
func BenchmarkEncode(b *testing.B) {
	for _, s := range shapes {
		b.Run(fmt.Sprintf("size=%d/count=%d", s.size, s.count), func(b *testing.B) {
			recs, spec := benchRecords(s.size, s.count), NewSpec()
			spec.Now = 1700000000000
			dst, at := make([]byte, ring), 0
			clear(dst) // fault the pages in
			b.SetBytes(int64(s.size * s.count))
			b.ReportAllocs()
			for b.Loop() {
				n := Size(recs, spec.Now)
				if at+n > len(dst) {
					at = 0
				}
				Encode(dst[at:at+n], recs, &spec)
				at += n
			}
		})
	}
}

func BenchmarkBare(b *testing.B) {
	for _, s := range shapes {
		b.Run(fmt.Sprintf("size=%d/count=%d", s.size, s.count), func(b *testing.B) {
			recs := benchRecords(s.size, s.count)
			dst, at := make([]byte, ring), 0
			clear(dst)
			b.SetBytes(int64(s.size * s.count))
			for b.Loop() {
				n := HeaderSize + s.count*s.size
				if at+n > len(dst) {
					at = 0
				}
				p := at + HeaderSize
				for i := range recs {
					p += copy(dst[p:], recs[i].Value)
				}
				crc := crc32.Checksum(dst[at+attributesAt:p], castagnoli)
				dst[at] = byte(crc)
				at += n
			}
		})
	}
}

// go test -run - -bench 'Check|Reader|SkipTo' ./record
func BenchmarkCheck(b *testing.B) {
	for _, s := range shapes {
		b.Run(fmt.Sprintf("size=%d/count=%d", s.size, s.count), func(b *testing.B) {
			batch := benchBatch(b, s.size, s.count)
			b.SetBytes(int64(len(batch)))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := Check(batch); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkReader(b *testing.B) {
	for _, s := range shapes {
		b.Run(fmt.Sprintf("codec=none/size=%d/count=%d", s.size, s.count), func(b *testing.B) {
			benchReader(b, benchBatch(b, s.size, s.count))
		})
	}
	for _, codec := range codecs {
		b.Run(fmt.Sprintf("codec=%v/text=500", codec), func(b *testing.B) { benchReader(b, build(b, genText(500), with(codec))) })
	}
}

func benchReader(b *testing.B, batch Batch) {
	var r Reader
	count := int(batch.Count())
	b.ReportAllocs()
	for b.Loop() {
		n := 0
		for r.Reset(batch); r.Next(); n++ {
		}
		if n != count {
			b.Fatal(n, r.Err())
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(count), "ns/record")
	b.ReportMetric(float64(r.pos)*float64(b.N)/b.Elapsed().Seconds()/1e6, "MB/s")
}

func BenchmarkSkipTo(b *testing.B) {
	batch := benchBatch(b, 100, 100)
	var rec Record
	b.ReportAllocs()
	for b.Loop() {
		pos, err := SkipTo(batch, HeaderSize, 50)
		if err != nil {
			b.Fatal(err)
		}
		if _, err = ParseRecordAt(batch, pos, &rec, rec.Headers); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkValidate(b *testing.B) {
	batch := benchBatch(b, 100, 100)
	b.SetBytes(int64(len(batch)))
	b.ReportAllocs()
	for b.Loop() {
		if err := Validate(batch, 0); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkBuild(b *testing.B) {
	for _, codec := range codecs {
		b.Run(fmt.Sprintf("codec=%v/text=500", codec), func(b *testing.B) {
			recs, spec := genText(500), NewSpec()
			spec.Codec = codec
			var w Builder
			b.SetBytes(int64(Size(recs, 0)))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := w.Build(recs, &spec); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func benchBatch(b *testing.B, size, count int) Batch {
	b.Helper()
	return build(b, benchRecords(size, count))
}

// BenchmarkSkim skims records of one size and millisecond, of one size, and of
// sizes that differ:
//
//	go test -run '^$' -bench Skim ./record
func BenchmarkSkim(b *testing.B) {
	for _, records := range []string{"alike", "times", "sizes"} {
		b.Run("records="+records, func(b *testing.B) {
			recs := make([]Record, 100)
			for i := range recs {
				recs[i] = Record{Timestamp: day, Key: []byte("key-17"), Value: make([]byte, 100)}
				switch records {
				case "times":
					recs[i].Timestamp += int64(i % 40)
				case "sizes":
					recs[i].Value = recs[i].Value[:70+i*37%30]
				}
			}
			batch := build(b, recs)
			var r Reader
			for range b.N {
				r.Reset(batch)
				if s := r.Skim(-1, 99); s.Count != 100 {
					b.Fatal(s)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*100), "ns/record")
		})
	}
}
