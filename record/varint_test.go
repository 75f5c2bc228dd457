package record

import (
	"bytes"
	"encoding/binary"
	"math"
	"testing"
)

// Numbers of every bit length and their neighbours are written as the standard
// library writes them, in the size that varintSize tells, and read back.
func TestVarints(t *testing.T) {
	numbers := []int64{0, math.MinInt64, math.MaxInt64}
	for bit := range 63 {
		n := int64(1) << bit
		numbers = append(numbers, n-1, n, n+1, -n+1, -n, -n-1)
	}
	for _, n := range numbers {
		want := binary.AppendVarint(nil, n)
		got := make([]byte, 12)
		got = got[:putUvarint(got, 0, zigzag64(n))]
		if !bytes.Equal(got, want) || varintSize(zigzag64(n)) != len(want) {
			t.Errorf("%d is written as %x in %d bytes; want %x", n, got, varintSize(zigzag64(n)), want)
		}
		if v, next := varlong(append(want, 0xff), 0); v != n || next != len(want) {
			t.Errorf("varlong %x is %d up to %d; want %d", want, v, next, n)
		}
		v, next := varint(append(want, 0xff), 0)
		if n == int64(int32(n)) && (int64(v) != n || next != len(want)) || n != int64(int32(n)) && next != 0 {
			t.Errorf("varint %x is %d up to %d; want %d", want, v, next, n)
		}
		for cut := range want {
			if _, next := varlong(want[:cut], 0); next != 0 {
				t.Errorf("varlong %x cut to %d is read", want, cut)
			}
			if _, next := varint(want[:cut], 0); next != 0 {
				t.Errorf("varint %x cut to %d is read", want, cut)
			}
		}
	}
}
