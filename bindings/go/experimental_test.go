//go:build cgo && routecap_experimental

package routecap

import (
	"encoding/json"
	"errors"
	"testing"
)

func TestAStoreOfSeveralProcessesSaysIfThereIsNone(t *testing.T) {
	if _, _, err := NewSharedStore(StoreConfig{}, testShape); err != nil &&
		!errors.Is(err, ErrNoBackend) {
		t.Fatal(err)
	}
	if _, err := OpenSharedStore(-1, StoreConfig{}, testShape); err == nil {
		t.Fatal("a store of no descriptor")
	}
}

func TestADumpIsJSONWithWhatIsInFlight(t *testing.T) {
	c := newCapturer(t, nil)
	request, err := c.Open(PolicyKeep)
	must(t, err)
	capture(t, c, request, 0, 8)
	text, err := c.Dump(10)
	must(t, err)
	var dump struct {
		Config   struct{ Layers, Rows uint32 }
		Counters map[string]uint64
		Requests []struct {
			Request Request
			Rows    uint64
		}
	}
	must(t, json.Unmarshal(text, &dump))
	if dump.Config.Layers != testLayers || dump.Counters["rows_issued"] != 8 || len(dump.Requests) != 1 ||
		dump.Requests[0].Request != request ||
		dump.Requests[0].Rows != 8 {
		t.Errorf("the dump says %+v", dump)
	}
	c.Close()
	if _, err := c.Dump(10); err == nil {
		t.Error("a closed capturer has a dump")
	}
}
