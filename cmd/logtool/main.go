// Logtool inspects partition logs in Kafka's format: single files, partition
// folders and whole data folders, Kafka's own and Tidemark's, live, closed or
// damaged. It opens files read-only, takes no lock, maps nothing and never
// recovers or changes what it looks at. See docs/logtool.md.
package main

import "os"

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }
