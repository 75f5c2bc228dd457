package interop

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"

	"github.com/tidemark-log/tidemark/interop/kafka"
	"github.com/tidemark-log/tidemark/record"
)

// A generator makes records that differ in every way a record can (cases C129,
// C130), the same ones for the same seed.
type generator struct {
	rng  *rand.Rand
	time int64 // ms
}

func newGenerator(seed uint64) *generator {
	return &generator{rng: rand.New(rand.NewPCG(seed, 0)), time: 1_700_000_000_000}
}

// blob is null, empty, or up to limit bytes, half of them text that compresses.
func (g *generator) blob(limit int) []byte {
	switch n := g.rng.IntN(limit); {
	case n%7 == 0:
		return nil
	case n%7 == 1:
		return []byte{}
	case n%2 == 0:
		b := make([]byte, n)
		for i := range b {
			b[i] = "tidemark "[i%9]
		}
		return b
	default:
		b := make([]byte, 0, n+8)
		for len(b) < n {
			b = binary.LittleEndian.AppendUint64(b, g.rng.Uint64())
		}
		return b[:n]
	}
}

func (g *generator) records(n int) []record.Record {
	recs := make([]record.Record, n)
	for i := range recs {
		g.time += g.rng.Int64N(5000) - 1000 // not always forward
		recs[i] = record.Record{Timestamp: g.time, Key: g.blob(40), Value: g.blob(400)}
		for range max(0, g.rng.IntN(6)-2) {
			key := fmt.Sprintf("h%d", g.rng.IntN(2))
			recs[i].Headers = append(recs[i].Headers, record.Header{Key: []byte(key), Value: g.blob(20)})
		}
	}
	return recs
}

// expect is how Kafka's consumer shows recs, written from offset base on.
func expect(recs []record.Record, base int64, leaderEpoch int32) []string {
	lines := make([]string, len(recs))
	for i, r := range recs {
		lines[i] = describe(shown(r, base+int64(i), leaderEpoch))
	}
	return lines
}

func shown(r record.Record, offset int64, leaderEpoch int32) kafka.Record {
	k := kafka.Record{Offset: offset, Timestamp: r.Timestamp, LeaderEpoch: leaderEpoch, Key: r.Key, Value: r.Value}
	for _, h := range r.Headers {
		k.Headers = append(k.Headers, kafka.Header{Key: string(h.Key), Value: h.Value})
	}
	return k
}
