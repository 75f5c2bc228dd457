module github.com/tidemark-log/tidemark/interop

go 1.26.0

require github.com/tidemark-log/tidemark v0.0.0

require (
	github.com/cespare/xxhash/v2 v2.3.0 // indirect
	github.com/edsrzf/mmap-go v1.2.0 // indirect
	github.com/klauspost/compress v1.20.4 // indirect
	github.com/pierrec/lz4/v4 v4.1.33 // indirect
	golang.org/x/sys v0.50.0 // indirect
)

replace github.com/tidemark-log/tidemark => ../
