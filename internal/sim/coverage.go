package sim

import (
	"cmp"
	"fmt"
	"io"
	"slices"

	"github.com/tidemark-log/tidemark/isr"
)

// Coverage counts what runs came across.
type Coverage struct {
	Counts map[string]int64
	// States are the steps that left a replica in a state: role, held, reconciled,
	// place in the record (out, elr, isr), proposal under way.
	States [4][2][2][3][2]int64
}

func (c *Coverage) add(what string) {
	if c.Counts == nil {
		c.Counts = make(map[string]int64, 128)
	}
	c.Counts[what]++
}

func (c *Coverage) state(role isr.Role, held, reconciled bool, place int, pending bool) {
	c.States[role&3][b2i(held)][b2i(reconciled)][place][b2i(pending)]++
}

func b2i(b bool) int {
	if b {
		return 1
	}
	return 0
}

// Merge adds the counts of another run.
func (c *Coverage) Merge(o *Coverage) {
	for k, n := range o.Counts {
		if c.Counts == nil {
			c.Counts = map[string]int64{}
		}
		c.Counts[k] += n
	}
	for r := range c.States {
		for h := range c.States[r] {
			for y := range c.States[r][h] {
				for p := range c.States[r][h][y] {
					for q := range c.States[r][h][y][p] {
						c.States[r][h][y][p][q] += o.States[r][h][y][p][q]
					}
				}
			}
		}
	}
}

// wanted are the rows, beside faults, that no long run of many seeds may be without.
var wanted = []string{
	"A3 NONE", "A3 UNKNOWN_TOPIC_ID", "A3 INCONSISTENT_TOPIC_ID", "A3 FENCED_LEADER_EPOCH", "A3 UNKNOWN_LEADER_EPOCH",
	"A3 NOT_LEADER_OR_FOLLOWER", "A3 STALE_BROKER_EPOCH", "A3 OFFSET_OUT_OF_RANGE", "A3 KAFKA_STORAGE_ERROR",
	"A3 diverging", "A3 parked", "A3 dropped (R29)",
	"A8 NONE", "A8 STALE_BROKER_EPOCH", "A8 UNKNOWN_TOPIC_ID", "A8 NOT_CONTROLLER", "A8 FENCED_LEADER_EPOCH",
	"A8 INVALID_REQUEST", "A8 INVALID_UPDATE_VERSION", "A8 INELIGIBLE_REPLICA",
	"F7 dropped", "F7 doubled", "F7 reordered", "F7 very late", "F8 clock of a life drifts",
	"F18 NONE", "F18 DUPLICATE_BROKER_REGISTRATION", "F20 retention", "F22 spoiled answer", "F22 forged request",
	"history judged by porcupine", "I25 at rest",
}

// Missing says what a long run of many seeds should have come across and did not:
// every fault, every answer of A3 and A8, every role with a held tail and without, a
// history that porcupine judged. A leader holds nothing (A1), and who declines with
// something held has another log or life than its evidence said.
func (c *Coverage) Missing() (list []string) {
	for _, k := range slices.Concat(faultNames, wanted) {
		if c.Counts[k] == 0 {
			list = append(list, k)
		}
	}
	for role := range isr.Role(len(c.States)) {
		for held := range 2 {
			n := int64(0)
			for _, reconciled := range c.States[role][held] {
				for _, place := range reconciled {
					n += place[0] + place[1]
				}
			}
			if n == 0 && (held == 0 || role != isr.Leading && role != isr.Declined) {
				list = append(list, fmt.Sprintf("state: %v, held %v", role, held == 1))
			}
		}
	}
	return list
}

// Print writes a table.
func (c *Coverage) Print(w io.Writer) {
	keys := make([]string, 0, len(c.Counts))
	for k := range c.Counts {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, cmp.Compare[string])
	for _, k := range keys {
		fmt.Fprintf(w, "%12d  %s\n", c.Counts[k], k)
	}
	for r := range c.States {
		for h := range c.States[r] {
			for y := range c.States[r][h] {
				for p := range c.States[r][h][y] {
					for q, n := range c.States[r][h][y][p] {
						if n > 0 {
							fmt.Fprintf(w, "%12d  state: %v, held %v, reconciled %v, %s, proposal %v\n", n, isr.Role(r), h == 1, y == 1,
								[...]string{"out", "in elr", "in isr"}[p], q == 1)
						}
					}
				}
			}
		}
	}
}
