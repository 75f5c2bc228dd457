// Command embedded keeps a log of lines: what comes in on standard input is
// appended, on disk before the next prompt, and -from prints the log.
//
//	echo hello | go run ./examples/embedded -dir lines
//	go run ./examples/embedded -dir lines -from 0
package main

import (
	"bufio"
	"flag"
	"fmt"
	"log"
	"os"

	"github.com/tidemark-log/tidemark"
)

func main() {
	dir := flag.String("dir", "lines", "directory of the log")
	from := flag.Int64("from", -1, "print the records from this offset on instead of appending")
	flag.Parse()
	if err := run(*dir, *from); err != nil {
		log.Fatal(err)
	}
}

func run(dir string, from int64) (err error) {
	l, err := tidemark.Open(dir, tidemark.Options{ReadOnly: from >= 0})
	if err != nil {
		return err
	}
	defer func() {
		if e := l.Close(); err == nil {
			err = e
		}
	}()
	if d := l.Damage(); d != nil {
		return d
	}
	if from >= 0 {
		for r, err := range l.Records(from) {
			if err != nil {
				return err
			}
			fmt.Printf("%d %s\n", r.Offset, r.Value)
		}
		return nil
	}
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		base, err := l.Append(tidemark.Record{Value: in.Bytes()})
		if err != nil {
			return err
		}
		fmt.Println("kept at offset", base)
	}
	return in.Err()
}
