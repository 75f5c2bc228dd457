package isr

import (
	"testing"

	"github.com/tidemark-log/tidemark/partition"
)

// comeBack registers the next life of a node whose log was closed in order and ends
// at leo, in an epoch.
func (k *court) comeBack(node int32, id partition.ID, epoch int32, leo int64) {
	k.t.Helper()
	k.lives++
	q := partition.Register{Node: node, ClusterID: "c", Incarnation: uuid(k.lives), BootID: uuid(77), Evidence: partition.Clean, Previous: k.epoch[node],
		Logs: []partition.LogEvidence{{ID: id, Evidence: partition.Clean, LastEpoch: epoch, LEO: leo}}}
	a := k.c.Register(&q, k.now)
	k.ok("register", a.Code)
	k.epoch[node] = a.BrokerEpoch
}

// TestR22_LongestLog: of the ELR the one with the longest log leads, by epoch before
// length, and one that has registered with a longer one is waited for.
func TestR22_LongestLog(t *testing.T) {
	begin := func(t *testing.T) (*court, partition.ID) {
		k := threeUp(t, ControllerOptions{})
		id := k.topic("t", 3, 0, 1, 2)
		k.alter(id, 0, 1, 2)
		k.down(0, 1, 2)
		k.want(id, "/012/ - e1")
		return k, id
	}
	t.Run("the longer one is coming", func(t *testing.T) {
		k, id := begin(t)
		k.comeBack(0, id, 0, 10)
		k.comeBack(1, id, 0, 12)
		k.comeBack(2, id, 0, 11)
		k.ready(0)
		k.want(id, "/012/ - e1")
		k.ready(2)
		k.want(id, "/012/ - e1")
		k.ready(1)
		k.want(id, "1/02/ 1 e2")
	})
	t.Run("a later epoch is longer", func(t *testing.T) {
		k, id := begin(t)
		k.comeBack(0, id, 0, 100)
		k.comeBack(1, id, 1, 12)
		k.ready(0)
		k.want(id, "/012/ - e1")
		k.ready(1)
		k.want(id, "1/02/ 1 e2")
	})
	t.Run("equal ones do not wait", func(t *testing.T) {
		k, id := begin(t)
		k.comeBack(0, id, 0, 10)
		k.comeBack(1, id, 0, 10)
		k.ready(1)
		k.want(id, "1/02/ 1 e2")
	})
	t.Run("nobody waits for who is not there", func(t *testing.T) {
		k, id := begin(t)
		k.comeBack(2, id, 0, 9)
		k.ready(2)
		k.want(id, "2/01/ 2 e2")
	})
	for how, end := range map[string]func(k *court){
		"its session ends": func(k *court) {
			k.now = k.now.Add(courtTTL / 2)
			k.ok("keep alive", k.c.KeepAlive(0, k.epoch[0], k.now))
			if next, want := k.c.Tick(k.now), k.now.Add(courtTTL/2); !next.Equal(want) {
				k.t.Errorf("Tick again at %v; want %v, when the session ends", next, want)
			}
			k.now = k.now.Add(courtTTL / 2)
			k.c.Tick(k.now)
		},
		"it is fenced": func(k *court) { k.ok("fence", k.c.Fence(1, k.epoch[1], k.now)) },
		"it stops":     func(k *court) { k.ok("stop", k.c.Stop(1, k.epoch[1], k.now)) },
	} {
		t.Run(how, func(t *testing.T) {
			k, id := begin(t)
			k.comeBack(0, id, 0, 10)
			k.comeBack(1, id, 0, 12)
			k.ready(0)
			k.want(id, "/012/ - e1")
			end(k)
			k.want(id, "0/12/ 0 e2")
		})
	}
	t.Run("what was long before there was a leader says nothing", func(t *testing.T) {
		k, id := begin(t)
		k.comeBack(2, id, 0, 9)
		k.ready(2)
		k.comeBack(1, id, 0, 100)
		k.ready(1) // follows 2, which cuts what it has above
		k.comeBack(0, id, 0, 5)
		k.down(2)
		k.want(id, "1/02/ 1 e3")
	})
}
