//go:build race

package record

// raceEnabled: a sync.Pool then drops part of what it is given, so that
// allocations cannot be counted.
const raceEnabled = true
