package segment

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/tidemark-log/tidemark/internal/vfs"
)

// go test -run - -bench View ./segment
//
// BenchmarkView finds the batch that holds a random offset, without its
// checksum: an index lookup and a walk of headers.
func BenchmarkView(b *testing.B) {
	for _, size := range []int{100, 1000} {
		for _, interval := range []int64{1, 4096} {
			b.Run(fmt.Sprintf("record=%d/interval=%d", size, interval), func(b *testing.B) {
				const n = 20000
				h := newHarness(b, vfs.OS, b.TempDir(), Options{IndexInterval: interval, Capacity: 64 << 20}, 0)
				for i := range int64(n) {
					h.append(batch(i, 1, i, size))
				}
				h.Seal()
				rng := rand.New(rand.NewPCG(1, 1))
				b.ReportAllocs()
				for b.Loop() {
					offset := rng.Int64N(n)
					v, ok, err := h.View(offset, n, 1, false, false)
					if !ok || err != nil || v.Base != offset {
						b.Fatal(v.Base, ok, err)
					}
					v.Release()
				}
			})
		}
	}
}
