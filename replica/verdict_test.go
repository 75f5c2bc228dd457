package replica

import "testing"

// The examples of replication A10. ask answers as the leader's log does.
func TestEpochCut(t *testing.T) {
	for _, tc := range []struct {
		name        string
		own, leader []Epoch
		leo, leads  int64
		cut         int64
		ok          bool
	}{
		{"nothing to cut", epochList(0, 0), epochList(0, 0), 5, 9, 5, true},
		{"KIP-101: the leader's epoch ended before", epochList(0, 0), epochList(0, 0, 1, 1), 2, 2, 1, true},
		// P leads: 0:0 1:2 2:2 3:2 4:4 5:4; Q has 0:0 1:1 2:3 (offset:epoch).
		{"KIP-279: three fast changes", epochList(0, 0, 1, 1, 3, 2), epochList(0, 0, 2, 1, 4, 4), 3, 6, 1, true},
		{"C078: the leader lost its tail", epochList(5, 0), epochList(5, 0), 2391, 2051, 2051, true},
		{"C073: an election without data", epochList(4, 0, 5, 100), epochList(4, 0, 6, 100), 100, 100, 100, true},
		{"C075: below the first kept epoch", epochList(4, 0), epochList(5, 10), 20, 30, 10, true},
		{"C076: a sparse list of an equal log", epochList(0, 0, 9, 90), epochList(0, 0, 1, 10, 2, 20, 9, 90), 100, 100, 100, true},
		{"nothing in common", epochList(7, 3), epochList(2, 0, 9, 9), 8, 12, 3, true},
		{"the leader is older", epochList(0, 0, 3, 5), epochList(0, 0, 2, 5), 9, 9, 9, false},
		{"a leader without epochs", epochList(0, 0), nil, 9, 9, 9, false},
		{"no epochs of one's own", nil, epochList(0, 0), 9, 9, 9, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			asked := 0
			cut, ok := EpochCut(tc.own, tc.leo, func(e int32) (int32, int64) {
				if asked++; asked > len(tc.own) {
					t.Fatal("asks more often than it has epochs")
				}
				return EndOffset(tc.leader, e, tc.leads)
			})
			if cut != tc.cut || ok != tc.ok {
				t.Errorf("EpochCut = %d, %v; want %d, %v", cut, ok, tc.cut, tc.ok)
			}
		})
	}
}
