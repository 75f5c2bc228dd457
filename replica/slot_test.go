package replica

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/cespare/xxhash/v2"

	"github.com/tidemark-log/tidemark/internal/vfs"
)

// dropAll makes a power cut lose what is not synced.
func dropAll() *rand.Rand { return rand.New(dropSource{}) }

// dropSource makes Mem.PowerCut choose keepNone for names and bytes alike.
type dropSource struct{}

// Five sixteenths of any range but a power of two, of which it is 0. A round number
// would be drawn again for ever where it does not divide the range.
func (dropSource) Uint64() uint64 { return 0x4fffffff << 32 }

func exampleSlot() slotState {
	s := slotState{sequence: 0x0102, device: 0x0b0c, inode: 0x0d0e, end: 1000, hw: 900, syncedEnd: 800, syncedHW: 700,
		settledEnd: 600, logStart: 500, flags: flagFailed | flagCut, gapFrom: 990, gapTo: 1000, activeSize: 4096, activeTime: 1_700_000_000}
	for i := range s.boot {
		s.boot[i], s.logID[i] = byte(0xa0+i), byte(0xe0+i)
	}
	return s
}

// TestSlotGolden: each field lies where the drawing in slot.go says.
func TestSlotGolden(t *testing.T) {
	s := exampleSlot()
	got := make([]byte, slotBytes)
	s.encode(got)
	const want = "54444d53" + "0100" + "a000" + "0201000000000000" +
		"a0a1a2a3a4a5a6a7a8a9aaabacadaeaf" + "0c0b000000000000" + "0e0d000000000000" +
		"e0e1e2e3e4e5e6e7e8e9eaebecedeeef" +
		"e803000000000000" + "8403000000000000" + "2003000000000000" + "bc02000000000000" + // end, hw, syncedEnd, syncedHW
		"5802000000000000" + "f401000000000000" + "0600000000000000" + // settledEnd, logStart, flags
		"de03000000000000" + "e803000000000000" + "0010000000000000" + "00f1536500000000" // gap, active
	if h := hex.EncodeToString(got[:slotBytes-8]); h != want {
		t.Errorf("slot\n%s; want\n%s", h, want)
	}
	if h := binary.LittleEndian.Uint64(got[slotBytes-8:]); h != xxhash.Sum64(got[:slotBytes-8]) {
		t.Errorf("hash %x", h)
	}
	back, err := decodeSlotCopy(got)
	if err != nil || back != s {
		t.Errorf("decoded %+v, %v; want %+v", back, err, s)
	}
}

// rehash makes b valid again after a change.
func rehash(b []byte) {
	n := int(binary.LittleEndian.Uint16(b[6:]))
	binary.LittleEndian.PutUint64(b[n-8:], xxhash.Sum64(b[:n-8]))
}

// TestSlotCopies: the newest valid copy counts, wherever it lies and whatever
// became of the others.
func TestSlotCopies(t *testing.T) {
	file := func(sequences ...uint64) []byte {
		b := make([]byte, slotSize)
		for i, q := range sequences {
			if s := exampleSlot(); q > 0 {
				s.sequence, s.inode = q, q
				s.encode(b[i*slotBlock:])
			}
		}
		return b
	}
	at := func(block, byte int) int { return block*slotBlock + byte }
	for _, tc := range []struct {
		name  string
		file  []byte
		edit  func(b []byte) []byte
		seq   uint64 // 0: none is valid
		block int
	}{
		{name: "all whole", file: file(4, 7, 6, 5), seq: 7, block: 1},
		{name: "one only, the last", file: file(0, 0, 0, 9), seq: 9, block: 3},
		{name: "the newest torn", file: file(4, 7, 6, 5), edit: func(b []byte) []byte { clear(b[at(1, 80):at(1, 512)]); return b }, seq: 6, block: 2},
		{name: "the newest of zeros", file: file(4, 7, 6, 5), edit: func(b []byte) []byte { clear(b[at(1, 0):at(2, 0)]); return b }, seq: 6, block: 2},
		{name: "a bit of the hash", file: file(4, 7, 6, 5), edit: func(b []byte) []byte { b[at(1, slotBytes-1)] ^= 1; return b }, seq: 6, block: 2},
		{name: "three torn", file: file(4, 7, 6, 5), edit: func(b []byte) []byte {
			b[at(1, 9)]++
			b[at(2, 0)]++
			b[at(3, 152)]++
			return b
		}, seq: 4, block: 0},
		{name: "length too large", file: file(4, 7), edit: func(b []byte) []byte { binary.LittleEndian.PutUint16(b[at(1, 6):], 5000); return b }, seq: 4},
		{name: "length too small", file: file(4, 7), edit: func(b []byte) []byte { binary.LittleEndian.PutUint16(b[at(1, 6):], 4); return b }, seq: 4},
		{name: "another length, right hash", file: file(4, 7), edit: func(b []byte) []byte {
			binary.LittleEndian.PutUint16(b[at(1, 6):], 200)
			rehash(b[slotBlock:])
			return b
		}, seq: 4},
		{name: "senseless ends, right hash", file: file(4, 7), edit: func(b []byte) []byte {
			binary.LittleEndian.PutUint64(b[at(1, 80):], 5000) // syncedEnd above end
			rehash(b[slotBlock:])
			return b
		}, seq: 4},
		{name: "negative log start, right hash", file: file(4, 7), edit: func(b []byte) []byte {
			binary.LittleEndian.PutUint64(b[at(1, 104):], 1<<63)
			rehash(b[slotBlock:])
			return b
		}, seq: 4},
		{name: "cut inside the second", file: file(4, 7), edit: func(b []byte) []byte { return b[:at(1, 159)] }, seq: 4},
		{name: "cut behind the second", file: file(4, 7), edit: func(b []byte) []byte { return b[:at(1, 160)] }, seq: 7, block: 1},
		{name: "zeros", file: file()},
		{name: "empty", file: nil},
		{name: "short", file: file(4)[:159]},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b := tc.file
			if tc.edit != nil {
				b = tc.edit(b)
			}
			s, block, err := decodeSlot(b)
			if tc.seq == 0 {
				if !errors.Is(err, errSlot) || block != -1 {
					t.Errorf("slot %d, block %d, %v; want none", s.sequence, block, err)
				}
				return
			}
			if err != nil || s.sequence != tc.seq || s.inode != tc.seq || block != tc.block {
				t.Errorf("slot %d, block %d, %v; want %d, block %d", s.sequence, block, err, tc.seq, tc.block)
			}
		})
	}
}

// TestSlotVersion: a newer version is an error of its own, even if a copy of
// ours lies beside it, and Open changes nothing.
func TestSlotVersion(t *testing.T) {
	x := newFaultLog(t, Always)
	x.must("open", x.open)
	x.must("lead", x.lead(0))
	x.must("append", x.append(3, 100))
	x.must("close", x.close)
	name := x.l.path(slotName)
	b := readAllOf(t, x.mem, name)
	for block := range slotCopies {
		s := exampleSlot()
		c := bytes.Clone(b)
		newer := c[block*slotBlock:]
		s.encode(newer)
		binary.LittleEndian.PutUint16(newer[4:], 2)
		binary.LittleEndian.PutUint16(newer[6:], 176)
		rehash(newer)
		writeAllOf(t, x.mem, name, c)
		before := folder(t, x.mem)
		_, err := Open(faultDir, x.o, faultTime)
		if !errors.Is(err, ErrVersion) {
			t.Fatalf("block %d: open = %v; want %v", block, err, ErrVersion)
		}
		if want := fmt.Sprintf("found %d, want %d", 2, slotVersion); !bytes.Contains([]byte(err.Error()), []byte(want)) {
			t.Errorf("error %q; want it to say %q", err, want)
		}
		if after := folder(t, x.mem); after != before {
			t.Errorf("open changed the folder from\n%s to\n%s", before, after)
		}
	}
	writeAllOf(t, x.mem, name, b)
	x.must("open", x.open)
}

// TestSlotStore: whatever the power cut leaves of what was stored since a sync,
// some copy that is as new as that sync is whole; and a process that dies in the
// middle of a store finds the copy before.
func TestSlotStore(t *testing.T) {
	for seed := range uint64(300) {
		rng := rand.New(rand.NewPCG(seed, 7))
		mem := vfs.NewMem(vfs.MemOptions{Seed: seed})
		if err := errors.Join(mem.Mkdir("/log"), mem.SyncDir("/")); err != nil {
			t.Fatal(err)
		}
		free := func(int) error { return nil }
		s := exampleSlot()
		sl, err := openSlot(mem, "/log", s, true, free)
		if err != nil {
			t.Fatal(err)
		}
		synced := sl.s.sequence
		for range 30 {
			switch rng.IntN(4) {
			case 0:
				at := sl.s.sequence
				if err := sl.sync(); err != nil {
					t.Fatal(err)
				}
				synced = at
			case 1: // dies in the middle of a store
				was := sl.s.sequence
				killed := mem.Clone()
				sl.mark(0)
				block := sl.newest
				torn := sl.b[block*slotBlock : block*slotBlock+1+rng.IntN(slotBytes-9)]
				writeAt(t, killed, sl.name, torn, int64(block*slotBlock))
				if got, err := readSlot(killed, "/log"); err != nil || got.sequence != was {
					t.Fatalf("seed %d: killed in a store: sequence %d, %v; want %d", seed, got.sequence, err, was)
				}
			default:
				sl.mark(0)
			}
			if rng.IntN(3) == 0 {
				mem.Writeback(rng)
			}
			got, err := readSlot(mem.PowerCut(rng), "/log")
			if err != nil || got.sequence < synced || got.sequence > sl.s.sequence {
				t.Fatalf("seed %d: after a power cut: sequence %d, %v; %d was synced, %d stored", seed, got.sequence, err, synced, sl.s.sequence)
			}
		}
		sl.close()
	}
}

// FuzzSlot: no input panics; what is accepted encodes to the same bytes.
func FuzzSlot(f *testing.F) {
	b := make([]byte, slotSize)
	for i := range slotCopies {
		s := exampleSlot()
		s.sequence = uint64(i)
		s.encode(b[i*slotBlock:])
	}
	f.Add(b, false)
	f.Add(b[:slotBlock+slotBytes], false)
	f.Add(b[:slotBytes-1], true) // torn
	f.Add(b[:slotBytes], true)
	f.Fuzz(func(t *testing.T, src []byte, hash bool) {
		if hash { // let the fuzzer past the hash
			src = bytes.Clone(src)
			for at := 0; at+slotBytes <= len(src); at += slotBlock {
				binary.LittleEndian.PutUint64(src[at+slotBytes-8:], xxhash.Sum64(src[at:at+slotBytes-8]))
			}
		}
		s, block, err := decodeSlot(src)
		if err != nil {
			if block != -1 || !errors.Is(err, errSlot) && !errors.Is(err, ErrVersion) {
				t.Errorf("block %d, %v", block, err)
			}
			return
		}
		again := make([]byte, slotBytes)
		s.encode(again)
		if !bytes.Equal(again, src[block*slotBlock:block*slotBlock+slotBytes]) {
			t.Errorf("re-encoding changed block %d to %x", block, again)
		}
		if s.logStart < 0 || s.logStart > s.syncedHW || s.syncedHW > min(s.hw, s.syncedEnd) || max(s.hw, s.syncedEnd) > s.end {
			t.Errorf("accepted %+v", s)
		}
	})
}
