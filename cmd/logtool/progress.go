package main

import (
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"
)

// progress shows on a terminal how much of the log bytes has been read. A nil
// progress, as there is without a terminal, does nothing.
type progress struct{ bar *progressbar.ProgressBar }

func newProgress(stderr io.Writer, paths []string) *progress {
	f, ok := stderr.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) {
		return nil
	}
	return &progress{progressbar.NewOptions64(logBytes(paths),
		progressbar.OptionSetWriter(f),
		progressbar.OptionShowBytes(true),
		progressbar.OptionThrottle(100*time.Millisecond),
		progressbar.OptionClearOnFinish(),
	)}
}

func (p *progress) add(bytes int64) {
	if p != nil {
		p.bar.Add64(bytes)
	}
}

// clear takes the bar off the terminal so that a line can be printed.
func (p *progress) clear() {
	if p != nil {
		p.bar.Clear()
	}
}

// logBytes is the size of all log files below paths: what a progress bar
// counts. It is a guess where files come and go.
func logBytes(paths []string) (sum int64) {
	for _, p := range paths {
		filepath.WalkDir(p, func(path string, e fs.DirEntry, err error) error {
			if err != nil || e.IsDir() {
				return nil
			}
			if kind, _, _ := kindOf(path); kind == kindLog || kind == kindMetadataSnapshot {
				if info, err := e.Info(); err == nil {
					sum += info.Size()
				}
			}
			return nil
		})
	}
	return sum
}
