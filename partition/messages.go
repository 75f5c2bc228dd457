package partition

// Fetch is a follower's request for records, and by that its confirmation of
// everything below Offset (replication §0, A3). A consumer's has Replica None.
type Fetch struct {
	ID          ID
	LeaderEpoch int32 // of the sender's view; −1 from a consumer that does not know
	Replica     int32
	BrokerEpoch int64 // the follower's life
	LogID       UUID  // of its directory
	// Session is new for each life and leader epoch of a follower, Seq grows with
	// each request of a session: what comes out of order is dropped (R29).
	Session, Seq uint64

	Offset           int64
	LastFetchedEpoch int32 // of the batch before Offset, −1 if there is none
	LogStart         int64
	MaxBytes         int32
}

// Fetched is the answer to a Fetch. HighWatermark, LogStart and LEO are as they
// were before the records were read.
type Fetched struct {
	Session, Seq uint64 // of the request
	Offset       int64  // of the request
	LeaderEpoch  int32  // of the leader that answers
	Code         Code

	HighWatermark, LogStart, LEO int64

	// Diverging: the follower's log parts from the leader's. DivergingEpoch ends at
	// DivergingEnd in the leader's log; there are no records (A3.8).
	Diverging      bool
	DivergingEpoch int32
	DivergingEnd   int64

	// Records are whole batches from the one that holds Offset. The memory is the
	// answer's; who gets the answer copies.
	Records []byte
}

// EpochAsk asks a leader where an epoch ends in its log (A10). It confirms
// nothing.
type EpochAsk struct {
	ID           ID
	LeaderEpoch  int32
	Replica      int32
	BrokerEpoch  int64
	Session, Seq uint64
	Epoch        int32
}

// EpochAnswer is the answer: the largest epoch of the leader's not above the one
// asked for and the offset at which it ends, both −1 where that is undefined.
type EpochAnswer struct {
	Session, Seq uint64
	LeaderEpoch  int32
	Code         Code
	Epoch        int32
	End          int64
	// LogStart is the leader's, read after End: of what lies below it the leader knows
	// no epochs, and an End that is not above it says where the log starts, and no more.
	LogStart int64
}

// Alter is a leader's proposal for another ISR, by compare-and-set (A8).
type Alter struct {
	ID ID
	// Seq counts a leader's proposals; what is sent again has the same. A
	// coordinator that refused one never takes a later copy of it.
	Seq                         uint64
	Node                        int32
	BrokerEpoch                 int64
	LeaderEpoch, PartitionEpoch int32 // as the leader knows them
	ISR                         []Member
}

// Altered is the coordinator's answer to an Alter. Record is the newest, and set
// unless Code says that the coordinator does not know.
type Altered struct {
	ID     ID
	Seq    uint64 // of the proposal
	Code   Code
	Record *Record
}

// Evidence is how the last life of a node ended, as far as it can be told (R4).
type Evidence uint8

const (
	// Suspect: something that was confirmed may be gone.
	Suspect Evidence = iota
	// Intact: it did not end orderly, but nothing that was confirmed is gone.
	Intact
	// Clean: an orderly stop; everything was on disk.
	Clean
)

func (e Evidence) String() string { return [...]string{"suspect", "intact", "clean"}[e] }

// Register begins a life of a node (A9).
type Register struct {
	Node        int32
	ClusterID   string
	Incarnation UUID  // random, one per life
	BootID      UUID  // of the operating system
	Previous    int64 // broker epoch of the clean marker, −1 if there was none
	Evidence    Evidence
	Durable     bool   // Sync: Always, for all of its logs
	Address     string // for other nodes; "" in one process
	// Logs, if not nil, is what each log says for itself, and Evidence then what holds
	// for all of them, such as the marker's. One that is not listed is not there.
	// Without it Evidence is that of the worst log, and counts for each.
	Logs []LogEvidence
}

// LogEvidence is how the last life of one log ended.
type LogEvidence struct {
	ID       ID
	Evidence Evidence
	// Durable: what it confirmed was on disk, under Sync: Always ever since it was made,
	// or because it was closed in order and not changed since.
	Durable bool
	// The log as it was opened, with what is held: R22.
	LastEpoch int32 // leader epoch of its last batch, −1 if it has none
	LEO       int64 // its end
}

// Registered is the answer to a Register.
type Registered struct {
	Code        Code
	BrokerEpoch int64 // also the revision of the registration
}

// Node is what the coordinator says about a node.
type Node struct {
	ID          int32
	BrokerEpoch int64 // −1: it never registered
	Fenced      bool
	Stopping    bool
	Durable     bool
	Address     string
	Revision    int64
}

// Eligible reports whether the node may join an ISR, or be waited for, in the
// given life.
func (n *Node) Eligible(brokerEpoch int64) bool {
	return n.BrokerEpoch == brokerEpoch && brokerEpoch >= 0 && !n.Fenced && !n.Stopping
}
