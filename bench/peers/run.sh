#!/usr/bin/env bash
# Measures this log in the shared peer benchmark.
#
#	bench/peers/run.sh HARNESS [flags of the harness]
#
# HARNESS is the harness's source folder; it is copied, never changed. The build
# takes this checkout as it stands. TAGS names build tags of the harness to add
# (TAGS=srcpeers builds the peers that are kept behind it). Relative paths in the
# flags are relative to the current folder.
set -euo pipefail

if [ $# -lt 1 ] || [ ! -f "$1/go.mod" ]; then
	echo "usage: $0 HARNESS [flags of the harness]; HARNESS holds a go.mod" >&2
	exit 2
fi
harness=$1
shift
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)

build=$(mktemp -d)
trap 'rm -rf "$build"' EXIT
cp -R "$harness/." "$build/"
chmod -R u+w "$build"
cp "$here/eng_tidemark.go" "$build/"
(
	cd "$build"
	export GOWORK=off GOFLAGS=-mod=mod
	go mod edit -require github.com/tidemark-log/tidemark@v0.0.0 -replace "github.com/tidemark-log/tidemark=$root"
	go build -tags "peerbench ${TAGS:-}" -o peerbench .
)
"$build/peerbench" "$@"
