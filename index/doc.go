// Package index keeps the two sparse indexes of a segment, in Kafka's bytes:
// files of fixed-size entries, big-endian, without header, checksum or count
// (log-format §3.1). B is the segment's base offset.
//
//	B.index, 8 bytes an entry          B.timeindex, 12 bytes an entry
//	0           4          8           0                   8           12
//	├───────────┼──────────┤           ├───────────────────┼───────────┤
//	│ offset−B  │ position │           │ timestamp (ms)    │ offset−B  │
//	└───────────┴──────────┘           └───────────────────┴───────────┘
//
// An offset entry names the last offset of the batch that starts at the
// position. A time entry (t, o) says that no record at or below o has a
// timestamp above t. Both columns of both files ascend.
//
// While an index grows, its file is longer than its entries and zeros fill the
// rest, so the entries of a file that was not trimmed end where the zeros
// begin. Seal and close trim it. The log can always rebuild an index; an index
// is never evidence of what the log holds.
//
// An index costs nothing until it is touched: opening one opens no file. It is
// mapped by its first lookup or append and holds no descriptor: what needs one
// (growing, trimming, syncing) opens the file by name. One goroutine may
// append while any number look up.
package index
