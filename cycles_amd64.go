package tidemark

// cycles reads the time stamp counter: it counts up at a constant rate, on
// whichever core.
func cycles() uint64
