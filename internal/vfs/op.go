package vfs

import (
	"math/bits"
	"strings"
)

// Op names a call of [FS], [File] or [Map]; several make a set. [Mem.SetHook]
// reports them one by one, a [Rule] selects by them.
type Op uint32

const (
	OpOpen   Op = 1 << iota // Open with ReadOnly or ReadWrite
	OpCreate                // Open with Create or CreateNew
	OpStat                  // FS.Stat and File.Stat
	OpList
	OpMkdir
	OpRemove
	OpRemoveAll
	OpRename
	OpLink
	OpSyncDir
	OpLock
	OpRead
	OpWrite
	OpTruncate
	OpAllocate
	OpMap
	OpPopulate
	OpUnmap
	OpStartSync
	OpFinishSync
	OpClose // of a file or a lock
)

var opNames = [...]string{
	"open", "create", "stat", "list", "mkdir", "remove", "remove all", "rename", "link", "sync dir", "lock",
	"read", "write", "truncate", "allocate", "map", "populate", "unmap", "start sync", "finish sync", "close",
}

// AllOps is the set of every operation.
const AllOps Op = 1<<len(opNames) - 1

func (o Op) String() string {
	var names []string
	for rest := o & AllOps; rest != 0; rest &= rest - 1 {
		names = append(names, opNames[bits.TrailingZeros32(uint32(rest))])
	}
	return strings.Join(names, "|")
}
