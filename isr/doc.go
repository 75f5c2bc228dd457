// Package isr is who leads a partition and what counts as committed: a node's
// part in a partition, with the in-sync replicas, the high watermark and the
// promises of acks while it leads ([Partition]), and the coordinator that says who
// does ([Controller]).
//
// The package is passive: it starts no goroutine and reads no clock. A step takes
// an event and the time, and tells in [Effects] what is to be done; the driver
// does it. The drivers are package tidemark and the simulator.
//
// Letters and numbers, A3 or R17, are those of docs/replication.md.
package isr
