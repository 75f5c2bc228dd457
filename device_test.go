//go:build linux

package tidemark_test

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tidemark-log/tidemark"
)

// deviceSectors reads how many 512-byte sectors were written to the block
// device under dir since boot.
func deviceSectors(dir string) (int64, error) {
	var st syscall.Stat_t
	if err := syscall.Stat(dir, &st); err != nil {
		return 0, err
	}
	major := st.Dev>>8&0xfff | st.Dev>>32&^0xfff
	minor := st.Dev&0xff | st.Dev>>12&^0xff
	b, err := os.ReadFile(fmt.Sprintf("/sys/dev/block/%d:%d/stat", major, minor))
	if err != nil {
		return 0, err
	}
	f := strings.Fields(string(b))
	if len(f) < 7 {
		return 0, fmt.Errorf("device statistics of %d fields", len(f))
	}
	return strconv.ParseInt(f[6], 10, 64)
}

// TestDeviceBytesPerCommit bounds what a synced append of 1 KiB costs the disk
// (architecture decision 4): the two pages that it touches, what the file system
// adds, and nothing that was prepared ahead. A large folio that one append makes
// dirty whole would be a hundred times that.
//
// Others write to the same device, which can only add: the least of several
// rounds counts. In the first one the segment is young, in the later ones blocks
// are allocated and segments rolled.
func TestDeviceBytesPerCommit(t *testing.T) {
	const commits, rounds, bound = 64, 12, 16 << 10
	for _, tc := range []struct {
		name         string
		mode         tidemark.SyncMode
		segmentBytes int64
	}{
		{"pwrite", tidemark.Always, 0},
		{"pwrite, with rolls", tidemark.Always, 256 << 10},
		{"map", tidemark.Interval, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir := t.TempDir()
			if _, err := deviceSectors(dir); err != nil {
				t.Skipf("the device under the test directory keeps no count: %v", err)
			}
			l := open(t, dir, tidemark.Options{Sync: tc.mode, SegmentBytes: tc.segmentBytes, SyncInterval: time.Hour})
			least := int64(1 << 62)
			for round := int64(0); round < rounds && (round < 3 || least > bound); round++ {
				before, err := deviceSectors(dir)
				if err != nil {
					t.Fatal(err)
				}
				for i := range int64(commits) {
					appendTo(t, l, round*commits+i+1, 950) // a batch of 1 KiB
					if err := l.Sync(); err != nil {
						t.Fatal(err)
					}
				}
				after, err := deviceSectors(dir)
				if err != nil {
					t.Fatal(err)
				}
				if after == before {
					t.Skip("synced appends write nothing to the device: no disk of its own")
				}
				least = min(least, (after-before)*512/commits)
			}
			t.Logf("%d bytes per commit", least)
			if least > bound {
				t.Errorf("a synced append of 1 KiB writes %d bytes to the device; want at most %d", least, bound)
			}
			if least < 1024 {
				t.Errorf("a synced append of 1 KiB writes %d bytes to the device: fewer than it has", least)
			}
		})
	}
}
