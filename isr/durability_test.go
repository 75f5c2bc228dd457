package isr

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/tidemark-log/tidemark/replica"
)

// TestC096_DurabilityTable plays the table of docs/durability.md: what becomes of an
// acknowledged record, by acks, sync mode and failure. Each cell is played with
// everything that the failure leaves open: who it meets, in which order nodes come back,
// who had copied the record when it was acknowledged. What then came of it, all in all,
// is what the cell says up to its colon: "kept", "can be lost", which has to happen in
// one play and not in another, "no leader", or "kept, or no leader".
//
// The row of the coordinator's file is the root package's TestClusterWithoutCoordinator.
func TestC096_DurabilityTable(t *testing.T) {
	rows := durabilityTable(t)
	failures := durabilityFailures()
	for _, r := range rows {
		plays := failures[r.failure]
		if plays == nil && r.failure != "the coordinator's file is lost" {
			t.Errorf("nobody plays %q", r.failure)
		}
		for i, modes := range [][]replica.SyncMode{{replica.Always}, {replica.Interval, replica.Never}} {
			if plays == nil {
				continue
			}
			t.Run(fmt.Sprintf("%s/acks %v/%v", r.failure, r.acks, modes[0]), func(t *testing.T) {
				if got := durability(t, r.acks, modes, plays); got != r.says[i] {
					t.Errorf("it is %s; the table says %s", got, r.says[i])
				}
			})
		}
	}
	for failure := range failures {
		for _, acks := range []string{"all", "1", "0"} {
			if !slices.ContainsFunc(rows, func(r durabilityRow) bool { return r.failure == failure && slices.Contains(r.acks, acks) }) {
				t.Errorf("the table has no row for %q, acks %s", failure, acks)
			}
		}
	}
}

type durabilityRow struct {
	failure string
	acks    []string
	says    [2]string // Always; Interval and Never
}

// durabilityTable reads the table.
func durabilityTable(t *testing.T) (rows []durabilityRow) {
	t.Helper()
	b, err := os.ReadFile("../docs/durability.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, ok := strings.Cut(string(b), "\n| failure | acks | `Always` | `Interval`, `Never` |\n")
	if !ok {
		t.Fatal("docs/durability.md has no table of failures")
	}
	failure := ""
	for line := range strings.Lines(table) {
		cells := strings.Split(line, "|")
		if len(cells) < 6 {
			break
		}
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		if strings.HasPrefix(cells[1], "---") {
			continue
		}
		if cells[1] != "" {
			failure = cells[1]
		}
		r := durabilityRow{failure: failure, acks: strings.Split(cells[2], ", ")}
		for i, c := range cells[3:5] {
			if c == "the same" {
				c = cells[3]
			}
			r.says[i], _, _ = strings.Cut(c, ":")
		}
		rows = append(rows, r)
	}
	return rows
}

// durabilityFailures are the plays of each failure of the table: the lines of a story,
// on a stage where A leads, all are in sync, and a record x was acknowledged.
func durabilityFailures() map[string][][]string {
	orders := [][]string{{"A", "B", "C"}, {"A", "C", "B"}, {"B", "A", "C"}, {"B", "C", "A"}, {"C", "A", "B"}, {"C", "B", "A"}}
	each := func(nodes string, lines ...string) (plays [][]string) {
		for _, x := range nodes {
			var play []string
			for _, line := range lines {
				play = append(play, strings.ReplaceAll(line, "%", string(x)))
			}
			plays = append(plays, play)
		}
		return plays
	}
	// all has them end and come back in each order; in every other one each of them ends
	// once more right after it came back.
	all := func(how string) (plays [][]string) {
		for i, order := range orders {
			play := []string{how + " " + order[2], how + " " + order[1], how + " " + order[0], "time 10s"}
			for _, x := range order {
				play = append(play, "start "+x)
				if again := i%2 == 0; again || *every {
					play = append(play, how+" "+x, "fence "+x, "start "+x)
				}
				play = append(play, "run 2s")
			}
			plays = append(plays, play)
		}
		return plays
	}
	two := func(gone string, without bool) (play []string) {
		if without { // the third is not in sync
			play = []string{withoutC}
		}
		for _, x := range gone {
			play = append(play, fmt.Sprintf("kill %c", x), fmt.Sprintf("burn %c", x))
		}
		play = append(play, "time 10s")
		for _, x := range gone {
			play = append(play, fmt.Sprintf("start %c", x), "run 2s")
		}
		if without {
			play = append(play, "start C")
		}
		return play
	}
	return map[string][][]string{
		"a follower's process is killed": each("BC", "kill %", "run 10s", "start %"),
		"the leader's process is killed": each("A", "kill %", "run 10s", "start %"),
		"all processes are killed":       all("kill"),
		"the leader is stopped in order": each("A", "stop %", "run 10s", "start %"),
		"power fails under one replica":  each("ABC", "power %", "run 10s", "start %"),
		"power fails under all replicas": all("power"),
		"one disk is lost":               each("ABC", "kill %", "burn %", "run 10s", "start %"),
		"one disk returns wrong bytes":   slices.Concat(each("ABC", "kill %", "rot %", "run 10s", "start %"), each("ABC", "kill %", "rot %", "run 10s", "start % blind")),
		"two disks are lost":             {two("AB", false), two("BA", false), two("BC", false), two("CA", false), two("AB", true), two("BA", true)},
		"a write or sync fails once": slices.Concat(each("A", "break %", "produce A 1 y", "sync %", "run 10s", "kill %", "fence %", "start %"),
			each("BC", "break %", "produce A 1 y", "fetch %", "fetch %", "sync %", "run 10s", "kill %", "fence %", "start %")),
		"a follower is slow, or cut off": each("BC", "part A %", "run 60s", "heal"),
		"the leader is cut off":          {{"part A B", "part A C", "part A .", "run 10s", "heal"}},
	}
}

// withoutC as a play's first line has C leave the ISR before the record is appended.
const withoutC = "without C"

// durability plays a failure in all ways and says what became of an acknowledged
// record. Acks, modes and kinds of recovery take turns; with -every each has each.
func durability(t *testing.T, acks []string, modes []replica.SyncMode, plays [][]string) string {
	outcomes := map[string]int{}
	n, combinations := 0, 2*len(modes)*len(acks)
	for _, play := range plays {
		for _, before := range [][]string{{}, {"fetch B"}, {"fetch C"}, {"fetch B 2", "fetch C 2"}, {"catchup"}} {
			n++
			for i := range combinations {
				if i > 0 && !*every {
					break
				}
				k := n + i
				a := acks[k%len(acks)]
				if a == "all" && (len(before) == 0 || len(before) == 1 && before[0] != "catchup") {
					continue // it would not be acknowledged
				}
				k /= len(acks)
				o := stageOptions{nodes: 3, minISR: 2, sync: modes[k%len(modes)], recovery: replica.Recovery(k / len(modes) % 2)}
				outcomes[durabilityPlay(t, o, a, before, play)]++
			}
		}
	}
	switch kept, lost, none := outcomes["kept"], outcomes["lost"], outcomes["no leader"]; {
	case lost > 0 && kept > 0:
		return "can be lost"
	case lost > 0:
		return "lost"
	case kept > 0 && none > 0:
		return "kept, or no leader"
	case none > 0:
		return "no leader"
	}
	return "kept"
}

func durabilityPlay(t *testing.T, o stageOptions, acks string, before, play []string) (outcome string) {
	s := newStage(t, o)
	var script strings.Builder
	do := func(line string) string {
		said := s.do(line)
		script.WriteString(line + "\n" + said)
		if strings.Contains(said, "!! ") {
			t.Fatalf("%+v\n%s", o, script.String())
		}
		return said
	}
	do("produce A all m0")
	do("catchup")
	if play[0] == withoutC {
		play = play[1:]
		do("kill C")
		do("fence C")
		before = slices.DeleteFunc(slices.Clone(before), func(line string) bool { return strings.HasPrefix(line, "fetch C") })
	}
	said := do("produce A " + acks + " x")
	for _, line := range before {
		said += do(line)
	}
	if acks != "0" && !strings.Contains(said, "x acked at 1\n") {
		t.Fatalf("not acknowledged:\n%s", script.String())
	}
	for _, line := range play {
		do(line)
	}
	do("run 10s")
	do("show")
	r := s.c.Record(s.id)
	if r.Leader < 0 {
		return "no leader"
	}
	want := s.entries(s.actors[r.Leader].log)
	for _, n := range s.actors { // in the end they agree, whatever became of it
		if n.up && n.log.Err() == nil && n.log.Damage() == nil && !slices.Equal(s.entries(n.log), want) {
			t.Fatalf("%v has another log:\n%s", n, script.String())
		}
	}
	if slices.ContainsFunc(want, func(e entry) bool { return e.value == "x" }) {
		return "kept"
	}
	return "lost"
}
