package partition

import "strconv"

// Code is an error of the protocol, with Kafka's number and name. It is an error
// unless it is OK.
type Code int16

// The codes this package's messages answer with.
const (
	Unknown               Code = -1 // nobody knows whether it was done
	OK                    Code = 0
	OffsetOutOfRange      Code = 1
	NotLeader             Code = 6
	RequestTimedOut       Code = 7
	NotEnoughReplicas     Code = 19
	NotEnoughAfterAppend  Code = 20
	InvalidRequiredAcks   Code = 21
	NotController         Code = 41
	InvalidRequest        Code = 42
	StorageError          Code = 56
	FencedLeaderEpoch     Code = 74
	UnknownLeaderEpoch    Code = 75
	StaleBrokerEpoch      Code = 77
	OffsetNotAvailable    Code = 78
	InvalidUpdateVersion  Code = 95
	UnknownTopicID        Code = 100
	DuplicateRegistration Code = 101
	InconsistentTopicID   Code = 103
	InconsistentClusterID Code = 104
	IneligibleReplica     Code = 107
)

var names = map[Code]string{
	Unknown:               "UNKNOWN_SERVER_ERROR",
	OK:                    "NONE",
	OffsetOutOfRange:      "OFFSET_OUT_OF_RANGE",
	NotLeader:             "NOT_LEADER_OR_FOLLOWER",
	RequestTimedOut:       "REQUEST_TIMED_OUT",
	NotEnoughReplicas:     "NOT_ENOUGH_REPLICAS",
	NotEnoughAfterAppend:  "NOT_ENOUGH_REPLICAS_AFTER_APPEND",
	InvalidRequiredAcks:   "INVALID_REQUIRED_ACKS",
	NotController:         "NOT_CONTROLLER",
	InvalidRequest:        "INVALID_REQUEST",
	StorageError:          "KAFKA_STORAGE_ERROR",
	FencedLeaderEpoch:     "FENCED_LEADER_EPOCH",
	UnknownLeaderEpoch:    "UNKNOWN_LEADER_EPOCH",
	StaleBrokerEpoch:      "STALE_BROKER_EPOCH",
	OffsetNotAvailable:    "OFFSET_NOT_AVAILABLE",
	InvalidUpdateVersion:  "INVALID_UPDATE_VERSION",
	UnknownTopicID:        "UNKNOWN_TOPIC_ID",
	DuplicateRegistration: "DUPLICATE_BROKER_REGISTRATION",
	InconsistentTopicID:   "INCONSISTENT_TOPIC_ID",
	InconsistentClusterID: "INCONSISTENT_CLUSTER_ID",
	IneligibleReplica:     "INELIGIBLE_REPLICA",
}

// String is Kafka's name of the code.
func (c Code) String() string {
	if s, ok := names[c]; ok {
		return s
	}
	return "code " + strconv.Itoa(int(c))
}

func (c Code) Error() string { return c.String() }

// Err returns the code as an error, nil for OK.
func (c Code) Err() error {
	if c == OK {
		return nil
	}
	return c
}
