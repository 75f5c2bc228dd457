// Package interop holds tests of Tidemark against Apache Kafka's own programs:
// its dump tool reads what we wrote and agrees with logtool, its broker serves
// what we wrote, and we open what its broker wrote.
//
// It is a module of its own, tied to the root by go.work, so that whoever embeds
// the log inherits nothing of it. The tests need java and javac (17 or later)
// and mvn, which fetches Kafka's jars once into the user's cache folder. Without
// those programs they are skipped, unless TIDEMARK_REQUIRE_KAFKA=1.
package interop
