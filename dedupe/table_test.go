package dedupe

import (
	"errors"
	"flag"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/tidemark-log/tidemark/record"
)

var long = flag.Bool("long", false, "run loops at the full length of their cases")

// verdict is what Check says: −1 for a duplicate, else Kafka's code, 0 to accept.
func verdict(tab *Table, b record.Batch) int16 {
	_, dup, err := tab.Check(b)
	if dup {
		return -1
	}
	return codeOf(err)
}

// TestCheck is the table of log-format §5.3, row by row, and the scenarios of
// §10.6 that need no log.
func TestCheck(t *testing.T) {
	five := func() *Table { // epoch 3, sequences 5 to 9, one by one, then 10 to 12
		tab := New(Options{})
		for i := range int32(5) {
			tab.Update(sent{pid: 7, epoch: 3, seq: 5 + i, count: 1, ts: 100}.batch(), int64(5+i))
		}
		tab.Update(sent{pid: 7, epoch: 3, seq: 10, count: 3, ts: 100}.batch(), 10)
		return tab
	}
	after := func(s ...sent) func() *Table {
		return func() *Table {
			tab := New(Options{})
			base := int64(0)
			for _, x := range s {
				tab.Update(x.batch(), base)
				base += int64(x.count)
			}
			return tab
		}
	}
	marked := func() *Table { // only a marker of epoch 2 is known (scenario 104)
		tab := New(Options{})
		tab.Update(markerBatch(7, 2, 5, record.Commit, 100), 0)
		return tab
	}
	for _, tc := range []struct {
		name string
		tab  func() *Table
		s    sent
		want int16
	}{
		{"row 1: retry of the last batch", five, sent{pid: 7, epoch: 3, seq: 10, count: 3}, -1},
		{"row 1: retry of the fifth last", five, sent{pid: 7, epoch: 3, seq: 6, count: 1}, -1},
		{"row 10: retry of the sixth last", five, sent{pid: 7, epoch: 3, seq: 5, count: 1}, 45},
		{"row 10: retry cut shorter", five, sent{pid: 7, epoch: 3, seq: 10, count: 2}, 45},
		{"row 10: two batches in one", five, sent{pid: 7, epoch: 3, seq: 8, count: 2}, 45},
		{"row 10: gap", five, sent{pid: 7, epoch: 3, seq: 14, count: 1}, 45},
		{"row 9: next in order", five, sent{pid: 7, epoch: 3, seq: 13, count: 4}, 0},
		{"row 3: zombie", five, sent{pid: 7, epoch: 2, seq: 13, count: 1}, 47},
		{"row 3: zombie with a sequence of the window", five, sent{pid: 7, epoch: 2, seq: 10, count: 3}, 47},
		{"row 5: unknown producer", five, sent{pid: 8, epoch: 0, seq: 16, count: 1}, 0},
		{"row 6: new epoch that does not begin at 0", five, sent{pid: 7, epoch: 4, seq: 13, count: 1}, 45},
		{"row 7: new epoch", five, sent{pid: 7, epoch: 4, seq: 0, count: 1}, 0},
		{"no producer, a sequence all the same", five, sent{pid: -1, epoch: -1, seq: 99, count: 1}, 0},
		{"sequence missing", five, sent{pid: 7, epoch: 3, seq: -1, count: 1}, 87},
		{"row 8: only a marker is known, older epoch", marked, sent{pid: 7, epoch: 1, seq: 0, count: 1}, 47},
		{"row 8: only a marker is known, any sequence", marked, sent{pid: 7, epoch: 2, seq: 17, count: 1}, 45},
		{"row 8: only a marker is known, sequence 0", marked, sent{pid: 7, epoch: 2, seq: 0, count: 1}, 0},
		{"row 7: epoch unknown", after(sent{pid: 7, epoch: -1, seq: 3, count: 1}), sent{pid: 7, epoch: 0, seq: 9, count: 1}, 0},
		{"row 11: plain batch in a transaction", after(sent{pid: 7, seq: 0, count: 1, txn: true}), sent{pid: 7, seq: 1, count: 1}, 48},
		{"row 11: the transaction goes on", after(sent{pid: 7, seq: 0, count: 1, txn: true}), sent{pid: 7, seq: 1, count: 1, txn: true}, 0},
		{"scenario 105: 0 after the last sequence", after(sent{pid: 7, seq: math.MaxInt32, count: 1}), sent{pid: 7, seq: 0, count: 1}, 0},
		{"scenario 105: 1 after the last sequence", after(sent{pid: 7, seq: math.MaxInt32, count: 1}), sent{pid: 7, seq: 1, count: 1}, 45},
		{"in order and in the window at once", after(sent{pid: 7, seq: 5, count: 5}, sent{pid: 7, seq: 3, count: 2}), sent{pid: 7, seq: 5, count: 5}, -1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tab := tc.tab()
			before := sorted(tab)
			if got := verdict(tab, tc.s.batch()); got != tc.want {
				t.Errorf("%+v = %d, want %d", tc.s, got, tc.want)
			}
			if !slices.Equal(sorted(tab), before) {
				t.Error("Check changed the table")
			}
		})
	}
	if original, dup, err := five().Check(sent{pid: 7, epoch: 3, seq: 10, count: 3}.batch()); !dup || err != nil ||
		original.BaseOffset() != 10 || original.LastOffset != 12 || original.Timestamp != 100 {
		t.Errorf("a duplicate is answered with %+v, %v, %v", original, dup, err)
	}
	for _, kind := range []error{ErrOutOfOrder, ErrFenced, ErrTxnState, ErrCoordinatorFenced} {
		if err := refuse(1, kind, 7, "x"); !errors.Is(err, kind) {
			t.Errorf("%v does not wrap %v", err, kind)
		}
	}
}

func TestC102_Wrap(t *testing.T) {
	tab := New(Options{})
	tab.Update(sent{pid: 1, seq: math.MaxInt32 - 1, count: 1}.batch(), 0)
	if got := verdict(tab, sent{pid: 1, seq: 0, count: 1}.batch()); got != 45 {
		t.Errorf("0 after 2147483646: %d", got)
	}
	if got := verdict(tab, sent{pid: 1, seq: math.MaxInt32, count: 1}.batch()); got != 0 {
		t.Errorf("2147483647 after 2147483646: %d", got)
	}
}

// TestMarkers is scenarios 108, 111 and 117.
func TestMarkers(t *testing.T) {
	tab := New(Options{})
	tab.Update(sent{pid: 1, epoch: 2, seq: 0, count: 5, txn: true, ts: 1}.batch(), 16)
	tab.Update(sent{pid: 1, epoch: 2, seq: 5, count: 5, txn: true, ts: 2}.batch(), 26)
	for _, tc := range []struct {
		epoch       int16
		coordinator int32
		want        int16
	}{{1, 5, 47}, {2, 5, 0}, {3, 5, 0}} {
		if got := verdict(tab, markerBatch(1, tc.epoch, tc.coordinator, record.Commit, 3)); got != tc.want {
			t.Errorf("marker of epoch %d: %d, want %d", tc.epoch, got, tc.want)
		}
	}
	done, ended := tab.Update(markerBatch(1, 2, 5, record.Abort, 3), 40)
	if want := (Transaction{ProducerID: 1, First: 16, Last: 40, Aborted: true}); !ended || done != want {
		t.Errorf("marker ended %+v, %v; want %+v", done, ended, want)
	}
	if p, _ := tab.Get(1); p.N != 2 || p.TxnFirstOffset != -1 || p.LastTimestamp != 3 || p.CoordinatorEpoch != 5 {
		t.Errorf("after the marker: %+v", p)
	}
	if _, ended := tab.Update(markerBatch(1, 2, 5, record.Abort, 3), 41); ended {
		t.Error("a marker without a transaction ended one")
	}
	if got := verdict(tab, markerBatch(1, 2, 4, record.Commit, 3)); got != 52 {
		t.Errorf("marker of an older coordinator: %d", got)
	}
	tab.Update(markerBatch(1, 3, 5, record.Commit, 3), 42)
	if p, _ := tab.Get(1); p.Epoch != 3 || p.N != 0 {
		t.Errorf("after a marker of a newer epoch: %+v", p)
	}
	junk := record.Encode(make([]byte, 200), []record.Record{{Key: []byte{0, 0, 0, 2}, Value: []byte{1}, Timestamp: 1}},
		&record.Spec{ProducerID: 9, BaseSequence: -1, Control: true})
	if got := verdict(tab, junk); got != 87 {
		t.Errorf("control batch of no transaction: %d", got)
	}
	if tab.Update(junk, 50); tab.Len() != 1 {
		t.Error("a control batch of no transaction made a producer")
	}
}

// TestExpiry is scenarios 114 and 116: in steps, and not with an open transaction.
func TestExpiry(t *testing.T) {
	tab := New(Options{Expiration: time.Second})
	const n = 1000
	for pid := range int64(n) {
		tab.Update(sent{pid: pid, count: 1, txn: pid%10 == 0, ts: pid}.batch(), pid)
	}
	steps := 1
	for ; !tab.Expire(1499, 64); steps++ {
	}
	if steps < n/64 {
		t.Errorf("%d steps", steps)
	}
	for pid := range int64(n) {
		if _, ok := tab.Get(pid); ok != (pid >= 500 || pid%10 == 0) {
			t.Errorf("producer %d known: %v", pid, ok)
		}
	}
	if got := tab.Stats(); got.Expired != 450 || got.Producers != 550 {
		t.Errorf("%+v", got)
	}
	if New(Options{Expiration: time.Second}).isExpired(math.MaxInt64, math.MinInt64, -1) != true {
		t.Error("the oldest timestamp does not expire")
	}
	if got := verdict(tab, sent{pid: 1, seq: 77, count: 1}.batch()); got != 0 {
		t.Errorf("a successor of an expired batch: %d", got)
	}
}

// TestBytesPerProducer: what Options promises about memory.
func TestBytesPerProducer(t *testing.T) {
	for _, n := range []int{1000, 100_000, 1_000_000} {
		if n > 100_000 && !*long {
			break
		}
		for _, tc := range []struct {
			batches int
			most    int64
		}{{1, 100}, {5, 200}} {
			if per := fill(n, tc.batches).Stats().Bytes / int64(n); per > tc.most {
				t.Errorf("%d producers with %d batches take %d bytes each, want at most %d", n, tc.batches, per, tc.most)
			}
		}
	}
}

func TestNoAllocations(t *testing.T) {
	tab := fill(1000, 5)
	b := sent{count: 1, ts: 1}.batch()
	seq, base := int32(5), int64(5000)
	allocs := testing.AllocsPerRun(100, func() {
		for pid := range int64(1000) {
			set(b, pid, seq)
			if _, dup, err := tab.Check(b); dup || err != nil {
				t.Fatal(dup, err)
			}
			tab.Update(b, base)
			if _, dup, err := tab.Check(b); !dup || err != nil {
				t.Fatal("no duplicate", err)
			}
			base++
		}
		seq++
	})
	if allocs != 0 {
		t.Errorf("%v allocations", allocs)
	}
}

// TestC111_Flood: a million ids, each used once; the bound holds, an open
// transaction is never evicted, and expiry gives the memory back.
func TestC111_Flood(t *testing.T) {
	n := int64(50_000)
	if *long {
		n = 1_000_000
	}
	tab := New(Options{MaxProducers: 5000})
	for pid := range int64(100) {
		tab.Update(sent{pid: pid, count: 1, txn: true, ts: 1}.batch(), pid)
	}
	b := sent{count: 1, ts: 1}.batch()
	for pid := int64(100); pid < n; pid++ {
		set(b, pid, 0)
		tab.Update(b, pid)
	}
	if got := tab.Stats(); got.Producers != 5000 || got.Evicted != n-5000 || got.Bytes > 5000*100 {
		t.Errorf("%+v", got)
	}
	for pid := range int64(100) {
		if _, ok := tab.Get(pid); !ok {
			t.Errorf("producer %d with an open transaction was evicted", pid)
		}
	}
	// Of those that went on most were there long: the hand takes the longest idle
	// of 32.
	recent := 0
	for pid := n - 1000; pid < n; pid++ {
		if _, ok := tab.Get(pid); ok {
			recent++
		}
	}
	if recent < 990 {
		t.Errorf("of the last 1000 producers %d are known", recent)
	}
	for !tab.Expire(math.MaxInt64, 1000) {
	}
	if got := tab.Stats(); got.Producers != 100 || got.Bytes > 100_000 {
		t.Errorf("after expiry: %+v", got)
	}
	// All with open transactions: the bound gives way.
	tab = New(Options{MaxProducers: 10})
	for pid := range int64(20) {
		tab.Update(sent{pid: pid, count: 1, txn: true, ts: 1}.batch(), pid)
	}
	if tab.Len() != 20 {
		t.Errorf("%d producers with open transactions", tab.Len())
	}
}

// TestViewBesideUpdates: a view stays as it was frozen whatever the table does,
// and chunks are used again.
func TestViewBesideUpdates(t *testing.T) {
	tab := fill(3000, 3)
	want := sorted(tab)
	view := tab.Freeze()
	if tab.Freeze() != nil {
		t.Error("two views at once")
	}
	b := sent{count: 1, ts: 2}.batch()
	for pid := range int64(6000) {
		set(b, pid, 3)
		tab.Update(b, 9000+pid)
	}
	for !tab.Expire(math.MaxInt64, 1000) {
	}
	for pid := range int64(100) {
		set(b, pid, 0)
		tab.Update(b, 20000+pid)
	}
	var w buffer
	if _, err := view.WriteWindow(&w, [16]byte{}, 9000); err != nil || int64(w.Len()) != view.WindowBytes() {
		t.Fatal(err, w.Len(), view.WindowBytes())
	}
	tab.Thaw()
	f, err := ParseWindow(w.Bytes())
	must(t, err)
	again := New(Options{})
	must(t, again.Load(f, 9000, 0))
	if !slices.Equal(sorted(again), want) {
		t.Error("the view changed")
	}
	if tab.Len() != 100 {
		t.Errorf("%d producers", tab.Len())
	}
}

func TestOptions(t *testing.T) {
	for _, o := range []Options{{MaxProducers: -1}, {MaxProducers: 1 << 24}, {Expiration: -1}} {
		if o.Validate() == nil {
			t.Errorf("%+v is valid", o)
		}
	}
	if err := (&Options{}).Validate(); err != nil {
		t.Error(err)
	}
}
