package isr

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/cespare/xxhash/v2"

	"github.com/tidemark-log/tidemark/partition"
)

var rewrite = flag.Bool("rewrite", false, "rewrite testdata from what the tests produce")

// stateFile is a state as the first version of the format has it. Later versions
// keep it and read it. It is what TestStateGolden makes.
const stateFile = "testdata/coordinator-1.txt"

// sealed gives a state, cut before its last line, the sum it needs.
func sealed(body string) []byte {
	return fmt.Appendf(nil, "%sxxh64 %016x\n", body, xxhash.Sum64String(body))
}

func TestStateGolden(t *testing.T) {
	var state []byte
	k := threeUp(t, ControllerOptions{Store: func(b []byte) error { state = b; return nil }})
	id := k.topic("events", 3, 0, 1, 2)
	if _, _, err := k.c.CreateTopic("more", TopicSpec{Partitions: 2, ReplicationFactor: 2, Config: map[string]string{"retention.ms": "1000", "a": "b"}}, k.now); err != nil {
		t.Fatal(err)
	}
	k.alter(id, 0, 1, 2)
	k.alter(id, 0, 1)
	k.ok("decline", k.c.Decline(id, 0, k.epoch[0], 0, k.now))
	k.c.Stop(2, k.epoch[2], k.now)
	k.c.NewProducerID()
	if *rewrite {
		if err := os.WriteFile(stateFile, state, 0o666); err != nil {
			t.Fatal(err)
		}
	}
	if want, err := os.ReadFile(stateFile); err != nil || !bytes.Equal(state, want) {
		t.Errorf("state is\n%s\nwhat %s has is\n%s(%v)", state, stateFile, want, err)
	}

	c, err := LoadController(state, ControllerOptions{ClusterID: "c"})
	if err != nil {
		t.Fatal(err)
	}
	if got := show(c.Record(id)); got != "/12/0 - e2" {
		t.Errorf("loaded as %s", got)
	}
	before, after := k.c.Since(0), c.Since(0)
	if !reflect.DeepEqual(before.Topics, after.Topics) || len(after.Records) != 3 || len(after.Nodes) != 3 || after.Revision <= before.Revision {
		t.Errorf("loaded as %+v", after)
	}
	for _, n := range after.Nodes {
		if !n.Fenced || n.BrokerEpoch != k.epoch[n.ID] {
			t.Errorf("loaded node %+v", n)
		}
	}
}

// TestLoad is the story of a process that ends with all its nodes and is started
// again, over and over.
func TestLoad(t *testing.T) {
	var state []byte
	o := ControllerOptions{Store: func(b []byte) error { state = b; return nil }}
	k := threeUp(t, o)
	id := k.topic("t", 2, 0, 1, 2)
	k.alter(id, 0, 1, 2)
	again := func() {
		t.Helper()
		before, rev := k.c.Record(id), k.c.Since(0).Revision
		c, err := LoadController(state, ControllerOptions{ClusterID: "c", TTL: courtTTL, Store: o.Store})
		if err != nil {
			t.Fatal(err)
		}
		k.c = c
		if r := c.Record(id); r.Leader != partition.None || before.Leader != partition.None && r.LeaderEpoch != before.LeaderEpoch+1 {
			t.Fatalf("%s was loaded as %s", show(before), show(r))
		}
		for n, epoch := range k.epoch {
			if code := c.KeepAlive(n, epoch, k.now); code != partition.StaleBrokerEpoch {
				t.Errorf("keep-alive of a life before: %v", code)
			}
			if epoch > rev {
				t.Errorf("broker epoch %d above revision %d", epoch, rev)
			}
		}
	}
	full := errors.New("no space left")
	if _, err := LoadController(state, ControllerOptions{ClusterID: "c", TTL: courtTTL, Store: func([]byte) error { return full }}); !errors.Is(err, full) {
		t.Errorf("loaded where nothing can be stored: %v, want the reason", err)
	}
	again()
	k.want(id, "/012/ - e1")
	again() // nothing happened
	k.want(id, "/012/ - e1")
	k.up(1, partition.Intact) // at once: no session is in the way
	k.want(id, "1/02/ 1 e2")
	k.up(0, partition.Clean)
	k.up(2, partition.Suspect)
	k.want(id, "1/0/2 1 e2")
	k.alter(id, 0, 1)
	k.want(id, "01// 1 e2")
	again()
	k.want(id, "/01/ - e3")
	k.up(0, partition.Suspect) // power was cut, and syncs were off
	k.up(1, partition.Suspect)
	k.up(2, partition.Suspect)
	k.want(id, "//01 - e3") // no leader rather than loss
	if k.epoch[0] <= 3 {
		t.Errorf("broker epoch %d was there before", k.epoch[0])
	}
}

// TestStoreFails: what could not be stored is told nobody, and is not lost.
func TestStoreFails(t *testing.T) {
	var fail error
	var stored int64
	var k *court
	o := ControllerOptions{Store: func(b []byte) error {
		if k != nil { // no lock is in the way of a sign of life
			k.ok("keep-alive while it stores", k.c.KeepAlive(0, k.epoch[0], k.now))
		}
		if fail == nil {
			_, err := fmt.Sscanf(string(b), `{"tidemark":"coordinator","version":1,"cluster":"c","revision":%d`, &stored)
			if err != nil {
				t.Error(err)
			}
		}
		return fail
	}}
	k0 := threeUp(t, o)
	k0.c.Notify = func() {
		if rev := k0.c.Since(0).Revision; rev > stored {
			t.Errorf("revision %d was told, %d is stored", rev, stored)
		}
	}
	k = k0
	id := k.topic("t", 2, 0, 1, 2)
	k.alter(id, 0, 1, 2)

	fail = errors.New("no space")
	before, q := k.c.Since(0), k.proposal(id, 0, 1)
	told := func(what string, code partition.Code) {
		t.Helper()
		if code != partition.Unknown {
			t.Errorf("%s: %v; want Unknown", what, code)
		}
		if ch := k.c.Since(0); !reflect.DeepEqual(ch, before) {
			t.Errorf("%s: told %+v", what, ch)
		}
	}
	for range 2 { // sent again
		a := k.c.Alter(q, k.now)
		told("alter", a.Code)
		if a.Record != before.Records[0] {
			t.Errorf("the answer has %+v", a.Record)
		}
	}
	told("a refusal, which rests on what was not stored", k.c.Alter(&partition.Alter{ID: id, Node: 0, BrokerEpoch: k.epoch[0]}, k.now).Code)
	told("decline", k.c.Decline(id, 0, k.epoch[0], 0, k.now))
	told("register", k.register(5, partition.Suspect))
	told("fence", k.c.Fence(1, k.epoch[1], k.now))
	_, _, err := k.c.CreateTopic("u", TopicSpec{Partitions: 1, ReplicationFactor: 1}, k.now)
	if !errors.Is(err, partition.Unknown) || !errors.Is(err, fail) {
		t.Errorf("CreateTopic: %v", err)
	}
	if err := k.c.DeleteTopic("u", k.now); !errors.Is(err, partition.Unknown) || !errors.Is(err, fail) {
		t.Errorf("DeleteTopic: %v", err)
	}
	if next := k.c.Tick(k.now); !next.Equal(k.now.Add(courtTTL / 9)) {
		t.Errorf("Tick again at %v, it is %v", next, k.now)
	}
	if k.c.Node(5).BrokerEpoch != -1 || k.c.Node(1).Fenced {
		t.Error("a node was told")
	}
	if _, ok := k.c.Topic("u"); ok {
		t.Error("a topic was told")
	}

	fail = nil
	if next := k.c.Tick(k.now); !next.Equal(k.now.Add(courtTTL)) {
		t.Errorf("Tick again at %v, it is %v", next, k.now)
	}
	k.want(id, "/1/0 - e2") // 2 shrunk away, 0 declined, 1 fenced
	if n := k.c.Node(5); n.BrokerEpoch < 1 {
		t.Errorf("node 5 is %+v", n)
	}
	ch := k.c.Since(before.Revision)
	if len(ch.Nodes) != 2 || len(ch.Records) != 1 || ch.Records[0].PartitionEpoch != before.Records[0].PartitionEpoch+3 {
		t.Errorf("afterwards %+v", ch)
	}
}

func TestLoadRefuses(t *testing.T) {
	b, err := os.ReadFile(stateFile)
	if err != nil {
		t.Fatal(err)
	}
	state := string(b)
	body := state[:strings.LastIndex(state, "xxh64")]
	load := func(b []byte) error {
		_, err := LoadController(b, ControllerOptions{ClusterID: "c"})
		return err
	}
	if err := load(sealed(body)); err != nil {
		t.Fatal(err)
	}
	for i := range b {
		if load(b[:i]) == nil {
			t.Errorf("loaded, cut at %d", i)
		}
		flipped := slices.Clone(b)
		flipped[i] ^= 1
		if load(flipped) == nil {
			t.Errorf("loaded with byte %d flipped", i)
		}
	}
	if _, err := LoadController(b, ControllerOptions{ClusterID: "d"}); err == nil || !strings.Contains(err.Error(), `cluster "c", want "d"`) {
		t.Errorf("of another cluster: %v", err)
	}
	for _, tc := range [][2]string{
		{`"version":1`, `"version":2`},
		{`"nodes":3`, `"nodes":2`},
		{`"nodes":3`, `"nodes":-1`},
		{`"partitions":3`, `"partitions":1000000000`},
		{`"revision":`, `"revision":-`},
		{`"node":1,`, `"node":0,`},
		{`"node":1,`, `"node":-1,`},
		{`"brokerEpoch":3,"chainStart":3`, `"brokerEpoch":99,"chainStart":3`},
		{`"chainStart":3`, `"chainStart":4`},
		{`"topic":"more"`, `"topic":"events"`},
		{`"topic":"more"`, `"topic":"a/b"`},
		{`"partitions":2,`, `"partitions":3,`},
		{`"minISR":1,"config"`, `"minISR":0,"config"`},
		{`"partition":1`, `"partition":0`},
		{`"partition":1`, `"partition":2`},
		{`"replicas":[0,1,2]`, `"replicas":[0,1,1]`},
		{`"replicas":[0,1,2]`, `"replicas":[]`},
		{`"leaderEpoch":1`, `"leaderEpoch":-1`},
		{`"leaderEpoch":1`, `"leaderEpoch":2147483647`},
		{`"leader":1,`, `"leader":1,"x":1,`},
		{`"leader":1,`, `"leader":-7,`},
	} {
		if !strings.Contains(body, tc[0]) {
			t.Errorf("the state has no %s", tc[0])
		}
		if load(sealed(strings.Replace(body, tc[0], tc[1], 1))) == nil {
			t.Errorf("loaded with %s for %s", tc[1], tc[0])
		}
	}
}

// FuzzLoadController: no state panics, and what is loaded can be stored, loaded
// again and is the same. The sum is given to every input.
func FuzzLoadController(f *testing.F) {
	b, err := os.ReadFile(stateFile)
	if err != nil {
		f.Fatal(err)
	}
	body := string(b[:bytes.LastIndex(b, []byte("xxh64"))])
	f.Add(body)
	f.Add(body[:len(body)/2])
	f.Add("")
	f.Fuzz(func(t *testing.T, body string) {
		var state []byte
		o := ControllerOptions{ClusterID: "c", Store: func(b []byte) error { state = b; return nil }}
		first, err := LoadController(sealed(body), o)
		if err != nil {
			return
		}
		first.mu.Lock()
		state = first.encode()
		first.mu.Unlock()
		kept := slices.Clone(state)
		second, err := LoadController(state, o)
		if err != nil {
			t.Fatalf("%v: what was loaded is\n%s", err, kept)
		}
		if !bytes.Equal(state, kept) { // nobody is up: there is nothing to store
			t.Errorf("stored as\n%s\nthen as\n%s", kept, state)
		}
		if a, b := first.Since(0), second.Since(0); !reflect.DeepEqual(a, b) {
			t.Errorf("%+v became %+v", a, b)
		}
	})
}
