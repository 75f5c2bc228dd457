package kafka

import (
	"bufio"
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"os/exec"
	"strconv"
	"strings"
)

// A Record is what Kafka's own consumer returns for one.
type Record struct {
	Offset      int64
	Timestamp   int64 // ms since 1970
	AppendTime  bool  // the timestamp is the broker's, not the producer's
	LeaderEpoch int32
	Key, Value  []byte // nil is null
	Headers     []Header
}

// A Header of a [Record]. A nil Value is null.
type Header struct {
	Key   string
	Value []byte
}

// A Client is Kafka's Java client in a process of its own. It is for one
// goroutine.
type Client struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

// Client starts a client of the running broker. It ends with ctx or Close.
func (c *Cluster) Client(ctx context.Context) (*Client, error) {
	cmd, err := java(ctx, []string{c.dir}, "Peer", "client", c.addr)
	if err != nil {
		return nil, err
	}
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start client: %w", err)
	}
	return &Client{cmd: cmd, in: in, out: bufio.NewReaderSize(out, 1<<20)}, nil
}

// Close ends the client and waits for it.
func (c *Client) Close() error {
	c.in.Close()
	return c.cmd.Wait()
}

// call sends one command and returns the lines of its answer.
func (c *Client) call(body string, command ...any) ([]string, error) {
	line := strings.Trim(fmt.Sprintf(strings.Repeat("%v\t", len(command)), command...), "\t")
	if _, err := io.WriteString(c.in, line+"\n"+body); err != nil {
		return nil, fmt.Errorf("client %s: %w", line, err)
	}
	var lines []string
	for {
		s, err := c.out.ReadString('\n')
		if err != nil {
			return nil, fmt.Errorf("client %s: %w", line, err)
		}
		s = strings.TrimSuffix(s, "\n")
		if s == "ok" {
			return lines, nil
		}
		if text, failed := strings.CutPrefix(s, "error "); failed {
			return nil, fmt.Errorf("client %s: %s", line, text)
		}
		lines = append(lines, s)
	}
}

// Create makes a topic with the given configs ("key=value", at least one) and
// waits until every partition has a leader.
func (c *Client) Create(topic string, partitions int, configs ...string) error {
	_, err := c.call("", "create", topic, partitions, strings.Join(configs, ","))
	return err
}

// Ends returns the first offset and the end offset of a partition.
func (c *Client) Ends(topic string, partition int) (start, end int64, err error) {
	lines, err := c.call("", "ends", topic, partition)
	if err != nil {
		return 0, 0, err
	}
	if _, err := fmt.Sscan(lines[0], &start, &end); err != nil {
		return 0, 0, fmt.Errorf("ends of %s-%d: %q: %w", topic, partition, lines[0], err)
	}
	return start, end, nil
}

// OffsetsForTimes returns for each timestamp, in ms, the offset of the first
// record at or after it, and -1 if there is none.
func (c *Client) OffsetsForTimes(topic string, partition int, timestamps []int64) ([]int64, error) {
	return c.offsets("", "times", topic, partition, strings.Trim(strings.ReplaceAll(fmt.Sprint(timestamps), " ", ","), "[]"))
}

// offsets is call for an answer of one offset a line.
func (c *Client) offsets(body string, command ...any) ([]int64, error) {
	lines, err := c.call(body, command...)
	if err != nil {
		return nil, err
	}
	offsets := make([]int64, len(lines))
	for i, line := range lines {
		if offsets[i], err = strconv.ParseInt(line, 10, 64); err != nil {
			return nil, fmt.Errorf("client %v: %w", command, err)
		}
	}
	return offsets, nil
}

// Read consumes a partition's records in [from, end), read uncommitted, with
// the client checking every batch's CRC. Control records are not among them.
func (c *Client) Read(topic string, partition int, from, end int64) ([]Record, error) {
	lines, err := c.call("", "read", topic, partition, from, end)
	if err != nil {
		return nil, err
	}
	recs := make([]Record, len(lines))
	for i, line := range lines {
		if recs[i], err = parseRecord(line); err != nil {
			return nil, fmt.Errorf("read %s-%d: %q: %w", topic, partition, line, err)
		}
	}
	return recs, nil
}

// Write produces records with acks=all by an idempotent producer that
// compresses with codec ("none", "gzip", …), and returns their offsets. Of each
// record the timestamp, key, value and headers are used.
func (c *Client) Write(topic string, partition int, codec string, recs []Record) ([]int64, error) {
	var body strings.Builder
	for _, r := range recs {
		headers := make([]string, len(r.Headers))
		for i, h := range r.Headers {
			headers[i] = text([]byte(h.Key)) + ":" + text(h.Value)
		}
		fmt.Fprintf(&body, "0\t%d\t0\t0\t%s\t%s\t%s\n", r.Timestamp, text(r.Key), text(r.Value), strings.Join(headers, ","))
	}
	return c.offsets(body.String(), "write", topic, partition, codec, len(recs))
}

func parseRecord(line string) (r Record, err error) {
	f := strings.Split(line, "\t")
	if len(f) != 7 {
		return r, fmt.Errorf("%d fields, want 7", len(f))
	}
	if _, err = fmt.Sscan(strings.Join(f[:2], " ")+" "+f[3], &r.Offset, &r.Timestamp, &r.LeaderEpoch); err != nil {
		return r, err
	}
	r.AppendTime = f[2] == "1"
	if r.Key, err = blob(f[4]); err != nil {
		return r, err
	}
	if r.Value, err = blob(f[5]); err != nil {
		return r, err
	}
	if f[6] == "" {
		return r, nil
	}
	for h := range strings.SplitSeq(f[6], ",") {
		k, v, _ := strings.Cut(h, ":")
		key, err := blob(k)
		if err != nil {
			return r, err
		}
		value, err := blob(v)
		if err != nil {
			return r, err
		}
		r.Headers = append(r.Headers, Header{string(key), value})
	}
	return r, nil
}

// text is b in base64, or "-" if it is null.
func text(b []byte) string {
	if b == nil {
		return "-"
	}
	return base64.StdEncoding.EncodeToString(b)
}

// blob reverses text: never nil for an empty one.
func blob(s string) ([]byte, error) {
	if s == "-" {
		return nil, nil
	}
	return base64.StdEncoding.DecodeString(s)
}
