//go:build !invariants && !race

// Package invariant states what the code believes and, in tests built with
// -tags invariants or -race, stops the program that broke it.
package invariant

// On reports whether checks are compiled in. Guard costly arguments with it.
const On = false

// Check does nothing in this build.
func Check(bool, string, ...any) {}
