//go:build cgo

package routecap

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"strings"
	"testing"
)

func TestLinesOfTheLibraryBecomeRecords(t *testing.T) {
	var text bytes.Buffer // read when nobody writes it any more
	logger := slog.New(slog.NewTextHandler(&text, &slog.HandlerOptions{Level: slog.LevelDebug}))
	must(t, SetLog(logger))
	c := newCapturer(t, nil)
	if _, err := c.Poll(7); err == nil {
		t.Fatal("a step was not issued, and there is no error")
	}
	c.Close()
	must(t, SetLog(nil))
	lines := strings.Split(strings.TrimSpace(text.String()), "\n")
	if len(lines) != 3 {
		t.Fatalf("%d lines: %q", len(lines), lines)
	}
	for i, want := range []string{"level=INFO msg=\"capturer ", "level=DEBUG msg=\"routecap_step_poll: ROUTECAP_ERR_UNKNOWN_STEP", "level=INFO"} {
		if !strings.Contains(lines[i], want) {
			t.Errorf("line %d is %q, without %q", i, lines[i], want)
		}
	}
}

func TestALoggerGetsOnlyTheLevelsThatItIsEnabledFor(t *testing.T) {
	var text bytes.Buffer
	must(
		t,
		SetLog(slog.New(slog.NewTextHandler(&text, &slog.HandlerOptions{Level: slog.LevelWarn}))),
	)
	c := newCapturer(t, nil)
	_, _ = c.Poll(7)
	c.Close()
	must(t, SetLog(nil))
	if text.Len() > 0 {
		t.Errorf("it got %q", text.String())
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
