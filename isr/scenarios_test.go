package isr

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/tidemark-log/tidemark/partition"
	"github.com/tidemark-log/tidemark/replica"
)

var every = flag.Bool("every", false, "try every crash of TestS17_CommonCrash")

// play plays a story: a file of lines for stage.do, each followed by what came of
// it, indented. Lines with # are for the reader; the first that is not sets the
// stage: "stage nodes 3 min 2 sync always recovery refetch", which are the defaults. It
// returns the file as it should be.
func play(t testing.TB, text string, change func(*stageOptions)) string {
	o := stageOptions{nodes: 3, minISR: 2}
	var s *stage
	var out strings.Builder
	defer func() {
		if t.Failed() {
			t.Log(out.String())
		}
	}()
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\n")
		switch {
		case strings.HasPrefix(line, "    "):
			continue
		case line == "" || line[0] == '#':
		case strings.HasPrefix(line, "stage"):
			f := strings.Fields(line)
			for i := 1; i+1 < len(f); i += 2 {
				switch f[i] {
				case "nodes":
					o.nodes, _ = strconv.Atoi(f[i+1])
				case "min":
					n, _ := strconv.Atoi(f[i+1])
					o.minISR = int32(n)
				case "sync":
					o.sync = map[string]replica.SyncMode{"always": replica.Always, "interval": replica.Interval, "never": replica.Never}[f[i+1]]
				case "recovery":
					o.recovery = map[string]replica.Recovery{"refetch": replica.Refetch, "adopt": replica.Adopt}[f[i+1]]
				default:
					t.Fatalf("stage has no %q", f[i])
				}
			}
		default:
			if s == nil {
				if change != nil {
					change(&o)
				}
				s = newStage(t, o)
			}
			out.WriteString(line + "\n")
			for said := range strings.Lines(s.do(line)) {
				out.WriteString("    " + said)
			}
			continue
		}
		out.WriteString(line + "\n")
	}
	return out.String()
}

func story(t *testing.T, file string) {
	t.Helper()
	file = filepath.Join("testdata", "scenarios", file+".txt")
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	got := play(t, string(b), nil)
	switch {
	case *rewrite:
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	case got != string(b):
		t.Errorf("%s comes out otherwise:\n%s", file, diff(string(b), got))
	}
	if strings.Contains(got, "    !! ") {
		t.Errorf("%s:\n%s", file, got)
	}
}

// diff marks the first line in which two texts differ.
func diff(want, got string) string {
	w, g := strings.Split(want, "\n"), strings.Split(got, "\n")
	for i := range g {
		if i >= len(w) || w[i] != g[i] {
			g[i] += "   <<< from here on"
			if i < len(w) {
				g[i] += ", want: " + w[i]
			}
			break
		}
	}
	return strings.Join(g, "\n")
}

func TestS10_Adopt(t *testing.T)                  { story(t, "S10-adopt") }
func TestS10_Refetch(t *testing.T)                { story(t, "S10-refetch") }
func TestS11_RestartedAndElected(t *testing.T)    { story(t, "S11") }
func TestS12_PowerCut(t *testing.T)               { story(t, "S12") }
func TestS12_OneSpared(t *testing.T)              { story(t, "S12-spared") }
func TestS13_FastLeaderChanges(t *testing.T)      { story(t, "S13") }
func TestS14_ZombieFollower(t *testing.T)         { story(t, "S14") }
func TestS15_MissedEpoch(t *testing.T)            { story(t, "S15") }
func TestS19_LastStanding(t *testing.T)           { story(t, "S19") }
func TestS20_EligibleCutsNothing(t *testing.T)    { story(t, "S20") }
func TestS21_LeaderCutOff(t *testing.T)           { story(t, "S21") }
func TestS22_AckedAlone(t *testing.T)             { story(t, "S22") }
func TestS26_Bounce(t *testing.T)                 { story(t, "S26") }
func TestS27_DiskLostMeanwhile(t *testing.T)      { story(t, "S27") }
func TestS28_FetchOfThePast(t *testing.T)         { story(t, "S28") }
func TestS30_EmptyDisk(t *testing.T)              { story(t, "S30") }
func TestS30_Declines(t *testing.T)               { story(t, "S30-declines") }
func TestS31_NewLog(t *testing.T)                 { story(t, "S31") }
func TestS32_Damaged(t *testing.T)                { story(t, "S32") }
func TestS32_Declines(t *testing.T)               { story(t, "S32-declines") }
func TestS35_AcceptedUnheard(t *testing.T)        { story(t, "S35") }
func TestS36_Refused(t *testing.T)                { story(t, "S36") }
func TestS52_BeginsAnew(t *testing.T)             { story(t, "S52") }
func TestS74_OneMinISR(t *testing.T)              { story(t, "S74") }
func TestS76_AckLost(t *testing.T)                { story(t, "S76") }
func TestS77_RetryWaits(t *testing.T)             { story(t, "S77") }
func TestS78_SuccessorFirst(t *testing.T)         { story(t, "S78") }
func TestS85_SyncFailed(t *testing.T)             { story(t, "S85") }
func TestS88_WinnersCrash(t *testing.T)           { story(t, "S88") }
func TestS89_Handover(t *testing.T)               { story(t, "S89") }
func TestS92_NoCoordinator(t *testing.T)          { story(t, "S92") }
func TestS93_RecordMissed(t *testing.T)           { story(t, "S93") }
func TestS97_FallsBack(t *testing.T)              { story(t, "S97") }
func TestS98_ReadsOfTheElected(t *testing.T)      { story(t, "S98") }
func TestS75_RecordChangedMeanwhile(t *testing.T) { story(t, "S75-cas") }

// TestStoriesWithoutTheirRules: a story about a rule ends badly without it.
func TestStoriesWithoutTheirRules(t *testing.T) {
	for _, x := range []struct {
		file string
		off  partition.Guards
	}{
		{"S11", partition.Guards{NoG1: true}},
		{"S11-live", partition.Guards{NoG2: true}},
		{"S16", partition.Guards{NoG4: true}},
		{"S34-refused", partition.Guards{NoG5: true}},
		{"S19", partition.Guards{NoG6: true}},
		{"S16", partition.Guards{NoG7: true}},
		{"S14", partition.Guards{NoG11: true}},
	} {
		b, err := os.ReadFile(filepath.Join("testdata", "scenarios", x.file+".txt"))
		if err != nil {
			t.Fatal(err)
		}
		if got := play(t, string(b), func(o *stageOptions) { o.guards = x.off }); !strings.Contains(got, "    !! ") {
			t.Errorf("%s with %+v breaks nothing:\n%s", x.file, x.off, got)
		}
	}
}

func TestS16_BelowTheReignsStart(t *testing.T) { story(t, "S16") }
func TestS34_AnswerLost(t *testing.T)          { story(t, "S34") }
func TestS34_NeverArrives(t *testing.T)        { story(t, "S34-refused") }
func TestS11_WithoutRestart(t *testing.T)      { story(t, "S11-live") }

// TestS17_CommonCrash is the walk 3.3: power fails everywhere, and the nodes come back
// in each order, with a crash of any of them at any point of the way. No acknowledged
// record is missing, and in the end all logs are equal.
//
// With -every each of them crashes at each point, else one of them.
func TestS17_CommonCrash(t *testing.T) {
	orders := []string{"ABC", "ACB", "BAC", "BCA", "CAB", "CBA"}
	for i, order := range orders {
		// Where one more of them crashes, after how many lines; −1 none.
		for row := -1; row < 12; row++ {
			for v, victim := range "ABC" {
				if row < 0 && v > 0 || row >= 0 && v != (row+i)%3 && !*every {
					continue
				}
				mode := replica.Recovery((i + row + v + 1) % 2)
				name := fmt.Sprintf("%v/%s/%c at %d", mode, order, victim, row)
				t.Run(name, func(t *testing.T) { commonCrash(t, mode, order, row, string(victim)) })
			}
		}
	}
}

func commonCrash(t *testing.T, mode replica.Recovery, order string, row int, victim string) {
	s := newStage(t, stageOptions{nodes: 3, minISR: 2, recovery: mode})
	var script strings.Builder
	do := func(line string) {
		said := s.do(line)
		script.WriteString(line + "\n" + said)
		if strings.Contains(said, "!! ") {
			t.Fatal(script.String())
		}
	}
	do("produce A all m1 m2")
	do("catchup")
	do("produce A all m3 m4") // committed, though only A knows
	do("fetch B 2")
	do("fetch C")
	do("send C x")
	do("take x")
	do("produce A all m5") // B has a record more than C, and A another one
	do("fetch B")
	do("produce A 1 m6")
	if len(s.acked) != 4 {
		t.Fatal(script.String())
	}
	for _, x := range "ABC" {
		do(fmt.Sprintf("power %c", x))
	}
	do("time 10s") // all sessions end at once
	steps := 0
	step := func(line string) {
		f := strings.Fields(line)
		if len(f) > 1 && len(f[1]) == 1 && !s.actor(f[1]).up && f[0] != "start" {
			return
		}
		do(line)
		if steps == row && s.actor(victim).up {
			do([]string{"kill ", "power "}[row%2] + victim)
			do("fence " + victim)
		}
		steps++
	}
	for i, x := range order {
		step(fmt.Sprintf("start %c", x))
		for _, y := range order[:i+1] {
			step(fmt.Sprintf("fetch %c", y))
		}
		step(fmt.Sprintf("fetch %c 2", x))
	}
	for _, x := range "ABC" {
		if !s.actor(string(x)).up {
			do("fence " + string(x))
			do("start " + string(x))
		}
	}
	do("run 10s")
	do("show")
	r := s.c.Record(s.id)
	if r.Leader < 0 || len(r.ISR) != 3 {
		t.Fatal(script.String())
	}
	do("produce " + name(r.Leader) + " all last")
	do("catchup")
	do("run 2s")
	want := s.entries(s.actors[r.Leader].log)
	for _, n := range s.actors {
		if got := s.entries(n.log); len(got) != len(want) || n.log.HighWatermark() != int64(len(want)) {
			do("show")
			t.Fatal(script.String())
		}
	}
	if len(s.acked) < 5 {
		t.Fatal(script.String())
	}
}

// TestS65_RetentionBelowHighWatermark: segments at or above the high watermark stay,
// however old and large they are (KAFKA-5634).
func TestS65_RetentionBelowHighWatermark(t *testing.T) {
	d := newDesk(t, deskOptions{sync: replica.Never, segment: 4 << 10})
	for range 200 {
		d.mustProduce(1)
	}
	d.fetch(2, 200)
	d.fetch(3, 90)
	d.wantHW(90)
	c := d.log.Config()
	c.RetentionBytes, c.RetentionMs = 1, 1
	if err := d.log.SetConfig(c); err != nil {
		t.Fatal(err)
	}
	for range 20 {
		d.now = d.now.Add(24 * time.Hour)
		if _, err := d.log.Maintain(d.now); err != nil {
			t.Fatal(err)
		}
	}
	if at := d.log.LogStartOffset(); at == 0 || at > 90 {
		t.Errorf("log start %d at high watermark 90", at)
	}
	if a := d.fetch(3, 90); len(a.Records) == 0 {
		t.Error("the slow follower gets nothing")
	}
}

func TestC085_ShrinkMovesHighWatermark(t *testing.T) { story(t, "C085") }
func TestC088_OldHighWatermark(t *testing.T)         { story(t, "C088") }
func TestC090_ElectionThenWrite(t *testing.T)        { story(t, "C090") }
