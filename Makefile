# Shorthand for the commands of CONTRIBUTING.md. `make ci` is the whole of what
# CI runs; .ci/run is the only place that says how.

.PHONY: test race lint fuzz bench interop ci

test:
	go test ./...

race:
	go test -race -short ./...

lint fuzz interop:
	.ci/run $@

bench:
	go run ./bench

ci:
	.ci/run
