//go:build cgo

package routecap

import (
	"bytes"
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
