package interop

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tidemark-log/tidemark"
	"github.com/tidemark-log/tidemark/internal/vfs"
	"github.com/tidemark-log/tidemark/interop/kafka"
)

// TestLock: a data folder that one of the two programs has open is refused to the
// other (log-format §1.1), whole or one partition of it.
func TestLock(t *testing.T) {
	ctx := requireKafka(t, 3*time.Minute)
	cluster, err := kafka.NewCluster(ctx, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cluster.Kill)
	withClient(t, ctx, cluster, func(*kafka.Client) {
		f, err := tidemark.OpenFolder(cluster.LogDir, tidemark.FolderOptions{NodeID: 1})
		if !errors.Is(err, tidemark.ErrLocked) {
			t.Errorf("OpenFolder beside the broker = %v; want %v", err, tidemark.ErrLocked)
		}
		if err == nil {
			f.Close()
		}
		l, err := tidemark.Open(filepath.Join(cluster.LogDir, "__cluster_metadata-0"), tidemark.Options{})
		if !errors.Is(err, tidemark.ErrLocked) {
			t.Errorf("Open of a partition beside the broker = %v; want %v", err, tidemark.ErrLocked)
		}
		if err == nil {
			l.Close()
		}
	})
	lock, err := vfs.OS.Lock(filepath.Join(cluster.LogDir, ".lock")) // as OpenFolder does
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	if err := cluster.Start(ctx); err == nil {
		t.Error("the broker starts in a folder that is locked")
	} else if !strings.Contains(err.Error(), "Failed to acquire lock on file .lock") {
		t.Error(err)
	}
}
