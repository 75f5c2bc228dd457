package segment

// fetchLines asks for the cache lines of n bytes from p on and waits for none.
//
//go:noescape
func fetchLines(p *byte, n int)

// Touch asks for each cache line of p. What lies at a random place of the log is
// far away, and code that parses it waits for each line in turn, as it must know
// the one to find the next; lines that were asked for are under way all at once.
func Touch(p []byte) {
	if len(p) > 0 {
		fetchLines(&p[0], len(p))
	}
}
