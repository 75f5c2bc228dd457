package partition

// Guards switches rules of the protocol off: the mutations by which the simulator
// shows that it would find out. The zero value, and nil, have all of them on.
// Nothing else sets one. See docs/replication.md for what each guard is.
type Guards struct {
	NoG1  bool // cut to HWc when the log opens, not when a leader has judged (no R9)
	NoG2  bool // cut to the high watermark at every change of leader (no R10, R11)
	NoG4  bool // a new leader cuts to its high watermark (no R12)
	NoG5  bool // the high watermark looks at the proposed ISR only (no R16)
	NoG6  bool // the high watermark moves below min ISR (no R17)
	NoG7  bool // a follower joins below the start of the leader's epoch (no A7)
	NoG11 bool // a fetch of another leader epoch is answered (no A3.2)
}
