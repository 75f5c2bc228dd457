// Logtool inspects partition logs in Kafka's format: single files, partition
// folders and whole data folders, Kafka's own and Tidemark's, live, closed or
// damaged, and mends them. All but repair --apply open files read-only, take no
// lock and never recover or change what they look at. See docs/logtool.md.
package main

import "os"

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }
