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
