// Package kafka runs Apache Kafka 4.4 on this machine as the referee of interop
// tests: its dump tool, a single-node broker on loopback and a Java client.
//
// The jars come by their Maven coordinates (pom.xml) into the user's cache
// folder, once. Nothing here imports Tidemark: what a test compares Tidemark
// with must not depend on it.
package kafka

import (
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

// Version is the release that the pom names.
const Version = "4.4.0"

//go:embed pom.xml
var pom []byte

//go:embed Peer.java
var peerSource []byte

// Available returns an error that names the first program missing of those
// needed: java, javac (17 or later) and mvn.
func Available() error {
	for _, p := range []string{"java", "javac", "mvn"} {
		if _, err := exec.LookPath(p); err != nil {
			return fmt.Errorf("run Apache Kafka %s: %w", Version, err)
		}
	}
	return nil
}

// libs is the folder of Kafka's jars, filled on first use.
var libs = sync.OnceValues(func() (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(cache, "tidemark", "kafka-"+Version)
	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return "", err
	}
	tmp, err := os.MkdirTemp(filepath.Dir(dir), "fetch-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(tmp)
	if err := os.WriteFile(filepath.Join(tmp, "pom.xml"), pom, 0o644); err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	out := filepath.Join(tmp, "jars")
	cmd := exec.CommandContext(ctx, "mvn", "-B", "-q", "-f", filepath.Join(tmp, "pom.xml"),
		"org.apache.maven.plugins:maven-dependency-plugin:3.7.0:copy-dependencies", "-DoutputDirectory="+out)
	if text, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("fetch Kafka %s: %w: %s", Version, err, tail(text))
	}
	// A rename, so that a folder of this name is always whole. Another process
	// may have been faster.
	if err := os.Rename(out, dir); err != nil {
		if _, statErr := os.Stat(dir); statErr != nil {
			return "", err
		}
	}
	return dir, nil
})

// Fetch brings Kafka's jars into the cache, so that later calls do not wait for
// the network.
func Fetch() error {
	_, err := libs()
	return err
}

// Jar returns the path of one of Kafka's own jars, such as kafka-metadata.
func Jar(artifact string) (string, error) {
	dir, err := libs()
	return filepath.Join(dir, artifact+"-"+Version+".jar"), err
}

// java returns a command that runs class with Kafka's jars and extra class path
// entries. Warnings and errors of the JVM's logging go to its standard error.
func java(ctx context.Context, extra []string, class string, args ...string) (*exec.Cmd, error) {
	dir, err := libs()
	if err != nil {
		return nil, err
	}
	path := append([]string{filepath.Join(dir, "*")}, extra...)
	args = append([]string{
		"-Xmx400M", "-XX:TieredStopAtLevel=1", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
		"-cp", strings.Join(path, string(os.PathListSeparator)), class,
	}, args...)
	return exec.CommandContext(ctx, "java", args...), nil
}

// compilePeer compiles Peer.java into dir.
func compilePeer(ctx context.Context, dir string) error {
	jars, err := libs()
	if err != nil {
		return err
	}
	src := filepath.Join(dir, "Peer.java")
	if err := os.WriteFile(src, peerSource, 0o644); err != nil {
		return err
	}
	out, err := exec.CommandContext(ctx, "javac", "-cp", filepath.Join(jars, "*"), "-d", dir, src).CombinedOutput()
	if err != nil {
		return fmt.Errorf("compile Peer.java: %w: %s", err, tail(out))
	}
	return nil
}

// Dump runs Kafka's DumpLogSegments over files with the given further options
// and returns what it printed on standard output and standard error. The tool
// exits 0 whatever it finds (log-format §9.3); an error means that it crashed
// or never ran.
func Dump(ctx context.Context, files []string, options ...string) (stdout, stderr string, err error) {
	args := append([]string{"--files", strings.Join(files, ",")}, options...)
	cmd, err := java(ctx, nil, "org.apache.kafka.tools.DumpLogSegments", args...)
	if err != nil {
		return "", "", err
	}
	var o, e bytes.Buffer
	cmd.Stdout, cmd.Stderr = &o, &e
	if err := cmd.Run(); err != nil {
		return o.String(), e.String(), fmt.Errorf("dump %d files: %w: %s", len(files), errors.Join(err, ctx.Err()), tail(e.Bytes()))
	}
	return o.String(), e.String(), nil
}

// DumpTo is Dump for measurements: with the flags of Kafka's own scripts, and
// standard output into out. It returns how long the program ran.
func DumpTo(ctx context.Context, out *os.File, files []string, options ...string) (time.Duration, error) {
	dir, err := libs()
	if err != nil {
		return 0, err
	}
	args := append([]string{
		"-Xmx256M", "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20", "-XX:InitiatingHeapOccupancyPercent=35",
		"-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-cp", filepath.Join(dir, "*"),
		"org.apache.kafka.tools.DumpLogSegments", "--files", strings.Join(files, ","),
	}, options...)
	cmd := exec.CommandContext(ctx, "java", args...)
	var e bytes.Buffer
	cmd.Stdout, cmd.Stderr = out, &e
	start := time.Now()
	if err := cmd.Run(); err != nil {
		return 0, fmt.Errorf("dump %d files: %w: %s", len(files), errors.Join(err, ctx.Err()), tail(e.Bytes()))
	}
	return time.Since(start), nil
}

// tail is the end of a program's output, short enough for an error.
func tail(b []byte) string {
	b = bytes.TrimSpace(b)
	if len(b) > 2000 {
		b = append([]byte("…"), b[len(b)-2000:]...)
	}
	return string(b)
}
