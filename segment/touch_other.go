//go:build !amd64

package segment

// Touch loads one byte of each cache line of p: see touch_amd64.go. Loads wait
// where there is no instruction that only asks, but not one for the other. The
// result means nothing.
//
//go:noinline
func Touch(p []byte) (x byte) {
	for i := 0; i < len(p); i += 64 {
		x |= p[i]
	}
	return x
}
