//go:build cgo

package routecap

import (
	"encoding/binary"
	"testing"
)

func slots(numbers ...uint64) []byte {
	var keys []byte
	for _, n := range numbers {
		keys = binary.LittleEndian.AppendUint64(keys, n)
	}
	return keys
}

var testShape = Config{Backend: BackendHost, Layers: testLayers, K: testK, Experts: 16, Rows: 64}

func TestRowsOfAPrefixComeFromTheRequestThatComputedThem(t *testing.T) {
	c := newCapturer(t, nil)
	store, err := NewStore(StoreConfig{BlockRows: 4, KeyBytes: 8}, testShape)
	must(t, err)
	defer store.Close()
	var requests [3]Request
	for i := range requests {
		requests[i], err = c.Open(PolicyKeep)
		must(t, err)
	}
	a := requests[2]
	capture(t, c, a, 0, 8)
	must(t, c.Publish(a, store, 0, slots(1, 2), 0))
	adoption, err := c.Adopt(requests[0], store, 0, slots(1, 2, 3), 0)
	must(t, err)
	if adoption.Rows != 8 || adoption.Found != 2 || adoption.NotPublished != 1 {
		t.Fatalf("found %+v", adoption)
	}
	adoptions, statuses, _, err := c.AdoptBatch(store, []Prefix{{requests[1], 4, slots(2)}}, 0)
	must(t, err)
	if adoptions[0].Found != 1 || statuses[0] != OK {
		t.Fatalf("found %+v, %v", adoptions[0], statuses[0])
	}
	statuses, outcome, err := c.PublishBatch(store, []Prefix{{a, 0, slots(3)}, {a, 8, slots(4)}}, 0)
	must(t, err)
	if outcome.Status != Partial || statuses[1] != ErrOutOfRange {
		t.Fatalf("published %v, %v", outcome, statuses)
	}
	routing, err := c.Finish(requests[0], 8)
	must(t, err)
	defer routing.Close()
	if outcome, err := routing.Wait(t.Context()); err != nil || outcome.Status != OK {
		t.Fatal(outcome, err)
	}

	reasons := make([]Reason, 2)
	must(t, store.Retain(slots(1, 9), reasons))
	if reasons[0] != 0 || reasons[1] != MissingNotPublished {
		t.Fatal(reasons)
	}
	must(t, store.Release(slots(1)))
	if evicted, err := store.Evict(slots(1, 9)); err != nil || evicted != 1 {
		t.Fatal(evicted, err)
	}
	must(t, store.Advance(8)) // the rows have the tag 7
	leading, err := store.Contains(slots(2, 1), 8, reasons)
	must(t, err)
	if leading != 0 || reasons[0] != MissingStale || reasons[1] != MissingEvicted {
		t.Fatal(leading, reasons)
	}
	stats, err := store.Stats()
	must(t, err)
	if stats.Generation != 8 || stats.BlocksAdopted != 3 {
		t.Fatalf("%+v", stats)
	}
}

func TestKeysContinue(t *testing.T) {
	tokens := []int32{1, 2, 3, 4, 5, 6, 7, 8}
	whole, err := KeyChain([]byte("model"), tokens, 4, 16)
	must(t, err)
	rest, err := KeyChain(whole[:16], tokens[4:], 4, 16)
	must(t, err)
	if string(rest) != string(whole[16:]) {
		t.Fatal("another key")
	}
	if config := DefaultStoreConfig(); config.BlockRows != 16 || config.KeyBytes != 32 {
		t.Fatal(config)
	}
}
