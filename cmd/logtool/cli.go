package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/tidemark-log/tidemark/record"
)

// Exit codes, the same for every subcommand.
const (
	exitOK         = 0
	exitDamage     = 1 // a fault was found
	exitUsage      = 2
	exitUnreadable = 3 // something asked for could not be read, and no fault was found
)

// env is what a subcommand works with: its output, its limits, and what has
// happened so far.
type env struct {
	out      *output
	stderr   io.Writer
	progress *progress

	maxBatch int64 // bytes; a larger batch is a fault, not an allocation
	maxPlain int   // bytes of the decompressed records of one batch

	damaged    bool
	unreadable bool
}

// fail notes that path could not be read.
func (e *env) fail(err error) {
	e.unreadable = true
	e.progress.clear()
	fmt.Fprintf(e.stderr, "logtool: %v\n", err)
}

func (e *env) exitCode() int {
	switch err := e.out.flush(); {
	case err == nil, e.out.closed():
	default:
		e.fail(fmt.Errorf("write output: %w", err))
	}
	switch {
	case e.damaged:
		return exitDamage
	case e.unreadable:
		return exitUnreadable
	}
	return exitOK
}

// run is the program: arguments without its name in, exit code out.
func run(args []string, stdout, stderr io.Writer) int {
	// A reader that goes away (dump | head) is an error of the next write, not
	// the end of the process: the exit code stays ours.
	signal.Ignore(syscall.SIGPIPE)

	e := &env{stderr: stderr}
	code := exitOK
	var asJSON bool
	root := &cobra.Command{
		Use:           "logtool",
		Short:         "Inspect and mend partition logs in Kafka's format",
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			return errors.New("no command given")
		},
		PersistentPreRunE: func(*cobra.Command, []string) error {
			if e.maxBatch < record.HeaderSize || e.maxPlain < 1 {
				return fmt.Errorf("limits of %d and %d bytes: want at least %d and 1", e.maxBatch, e.maxPlain, record.HeaderSize)
			}
			e.out = newOutput(stdout, asJSON)
			return nil
		},
	}
	root.CompletionOptions.DisableDefaultCmd = true
	root.PersistentFlags().BoolVar(&asJSON, "json", false, "print one JSON object a line")
	root.PersistentFlags().Int64Var(&e.maxBatch, "max-batch", 256<<20, "largest batch to read, in `bytes`")
	root.PersistentFlags().IntVar(&e.maxPlain, "max-plain", record.DefaultMaxDecompressed, "most `bytes` to decompress of one batch")
	for _, c := range []func(*env, *int) *cobra.Command{dumpCommand, lsCommand, verifyCommand, findCommand, epochsCommand, diffCommand, explainCommand, producersCommand, repairCommand} {
		root.AddCommand(c(e, &code))
	}
	root.SetArgs(append([]string{}, args...)) // nil would mean those of the process
	root.SetOut(stdout)
	root.SetErr(stderr)
	if err := root.Execute(); err != nil {
		fmt.Fprintf(stderr, "logtool: %v\nTry 'logtool --help'.\n", err)
		return exitUsage
	}
	return code
}

// openFile opens path read-only. Anything but a regular file is refused: a
// pipe or a device would block or never end.
func openFile(path string) (*os.File, int64, error) {
	// Without O_NONBLOCK the open itself could wait for a pipe's writer.
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, 0, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("open %s: %v, want a regular file", path, info.Mode().Type())
	}
	if err != nil {
		f.Close()
		return nil, 0, err
	}
	return f, info.Size(), nil
}

// file is what the walks need of a file.
type file interface {
	io.ReaderAt
	io.Closer
	Stat() (fs.FileInfo, error)
}

// readAt reads len(p) bytes of f from pos on; fewer only at the end of the
// file, which is no error. A writer may cut the file meanwhile, as a roll does:
// the system then ends the read at one of its pages, beyond the new end, and
// what was read there is gone.
func readAt(f file, p []byte, pos int64) (int, error) {
	for {
		n, err := f.ReadAt(p, pos)
		if n == len(p) || err == nil {
			return n, nil
		}
		if err != io.EOF {
			return n, err
		}
		info, err := f.Stat()
		if err != nil {
			return 0, err
		}
		if end := max(info.Size()-pos, 0); end <= int64(n) {
			return int(end), nil
		}
		// It has grown since.
	}
}

// maxSmallFile bounds the text files, in bytes: a checkpoint of a broker with
// a hundred thousand partitions is 4 MiB.
const maxSmallFile = 64 << 20

func readSmallFile(path string) ([]byte, error) { return readBounded(path, maxSmallFile) }

// readBounded reads a file of at most limit bytes.
func readBounded(path string, limit int64) ([]byte, error) {
	f, size, err := openFile(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if size > limit {
		return nil, fmt.Errorf("read %s: %d bytes, want at most %d", path, size, limit)
	}
	return io.ReadAll(io.LimitReader(f, limit))
}
