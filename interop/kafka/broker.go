package kafka

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// A Cluster is a single KRaft node, broker and controller in one, with its data
// in one folder. It may be started and stopped again and again.
type Cluster struct {
	LogDir string // Kafka's log.dirs: partition folders and root checkpoints

	dir  string // configuration, compiled Peer and the brokers' output
	node *exec.Cmd
	exit chan error // of node
	hold io.Closer  // node's standard input: the broker halts when it closes
	addr string     // of the running broker
}

// NewCluster formats a data folder below dir, which the caller removes after
// Kill.
func NewCluster(ctx context.Context, dir string) (*Cluster, error) {
	c := &Cluster{LogDir: filepath.Join(dir, "data"), dir: dir}
	if err := compilePeer(ctx, dir); err != nil {
		return nil, err
	}
	if err := c.configure(); err != nil {
		return nil, err
	}
	format, err := java(ctx, nil, "kafka.tools.StorageTool", "format", "-t", "VGlkZW1hcmtJbnRlcm9wAA", "-c", c.config())
	if err != nil {
		return nil, err
	}
	if out, err := format.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("format %s: %w: %s", c.LogDir, err, tail(out))
	}
	return c, nil
}

func (c *Cluster) config() string { return filepath.Join(c.dir, "server.properties") }

// configure writes server.properties with two ports that are free now.
func (c *Cluster) configure() error {
	var ports [2]string
	for i := range ports {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return err
		}
		defer l.Close() // after both are chosen, so that they differ
		ports[i] = l.Addr().String()
	}
	c.addr = ports[0]
	return os.WriteFile(c.config(), []byte(strings.Join([]string{
		"process.roles=broker,controller",
		"node.id=1",
		"controller.quorum.voters=1@" + ports[1],
		"listeners=PLAINTEXT://" + ports[0] + ",CONTROLLER://" + ports[1],
		"advertised.listeners=PLAINTEXT://" + ports[0],
		"controller.listener.names=CONTROLLER",
		"inter.broker.listener.name=PLAINTEXT",
		"log.dirs=" + filepath.ToSlash(c.LogDir),
		"offsets.topic.replication.factor=1",
		"transaction.state.log.replication.factor=1",
		"transaction.state.log.min.isr=1",
		"auto.create.topics.enable=false",
		"message.max.bytes=16777216",
		"",
	}, "\n")), 0o644)
}

// Start starts the broker and waits until it listens. Its output goes to
// broker.log, of which an error quotes the end.
func (c *Cluster) Start(ctx context.Context) error {
	if c.node != nil {
		return errors.New("start broker: it runs already")
	}
	if err := c.configure(); err != nil {
		return err
	}
	cmd, err := java(ctx, []string{c.dir}, "Peer", "broker", c.config())
	if err != nil {
		return err
	}
	log, err := os.OpenFile(c.output(), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd.Stdout, cmd.Stderr = log, log
	if c.hold, err = cmd.StdinPipe(); err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start broker: %w", err)
	}
	c.node, c.exit = cmd, make(chan error, 1)
	go func() { c.exit <- cmd.Wait() }()

	for {
		conn, dialErr := net.DialTimeout("tcp", c.addr, time.Second)
		if dialErr == nil {
			return conn.Close()
		}
		select {
		case err := <-c.exit:
			c.node = nil
			return c.failed("start broker: it ended", err)
		case <-ctx.Done():
			err := c.failed("start broker: not listening", dialErr)
			c.Kill()
			return err
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// Stop ends the broker as an operator does, by SIGTERM, and checks that it left
// the clean marker. If it does not end before ctx does, it is killed.
func (c *Cluster) Stop(ctx context.Context) error {
	if c.node == nil {
		return errors.New("stop broker: it does not run")
	}
	if err := c.node.Process.Signal(syscall.SIGTERM); err != nil {
		return fmt.Errorf("stop broker: %w", err)
	}
	select {
	case <-c.exit: // the JVM exits 143 after a SIGTERM that went well
		c.node = nil
		c.hold.Close()
	case <-ctx.Done():
		err := c.failed("stop broker: still running", ctx.Err())
		c.Kill()
		return err
	}
	if _, err := os.Stat(filepath.Join(c.LogDir, ".kafka_cleanshutdown")); err != nil {
		return c.failed("stop broker: not a clean one", err)
	}
	return nil
}

// Kill ends the broker at once if it runs, by its process id.
func (c *Cluster) Kill() {
	if c.node == nil {
		return
	}
	c.node.Process.Kill()
	<-c.exit
	c.node = nil
	c.hold.Close()
}

func (c *Cluster) output() string { return filepath.Join(c.dir, "broker.log") }

// failed wraps err with the end of the broker's output.
func (c *Cluster) failed(what string, err error) error {
	out, _ := os.ReadFile(c.output())
	return fmt.Errorf("%s: %w: %s", what, err, tail(out))
}
