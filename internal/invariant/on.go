//go:build invariants || race

// Package invariant states what the code believes and, in tests built with
// -tags invariants or -race, stops the program that broke it.
package invariant

import "fmt"

// On reports whether checks are compiled in. Guard costly arguments with it.
const On = true

// Check panics when ok is false. It is for bugs in this module, never for bad
// input or a failing disk: those are errors.
func Check(ok bool, format string, args ...any) {
	if !ok {
		panic("invariant: " + fmt.Sprintf(format, args...))
	}
}
