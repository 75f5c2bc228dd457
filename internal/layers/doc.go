// Package layers holds no code, only tests: who may import whom, what the
// passive packages leave to their callers, and which modules somebody who
// embeds the log gets with it. The rules are architecture §3 and decisions 3
// and 8.
package layers
