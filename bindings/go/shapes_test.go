//go:build cgo

package routecap

import (
	"context"
	"fmt"
	"strings"
	"testing"
)

// ---- A slip of shape is an error, never a row of something else

// panicsWith expects f to panic with a text that has all of these parts.
func panicsWith(t *testing.T, f func(), parts ...string) {
	t.Helper()
	defer func() {
		t.Helper()
		said := fmt.Sprint(recover())
		for _, part := range parts {
			if !strings.Contains(said, part) {
				t.Errorf("it says %q, without %q", said, part)
			}
		}
	}()
	f()
}

// Layer 2 of 2 was the next token's layer 0, and column 2 of 2 the next layer's first id. A program
// that indexed by the decoder's layers read rows that were shifted by a layer, and all were valid.
func TestALayerOrColumnThatIsNotThereIsAPanicThatNamesIt(t *testing.T) {
	c := newCapturer(t, func(config *Config) { config.LayerMap = []int32{1, 2, 3} })
	routing := captured(t, c, 3)
	defer routing.Close()
	view, err := routing.View()
	must(t, err)
	for _, row := range view.All() {
		for _, layer := range []int{-1, testLayers, 1 << 40} {
			parts := []string{fmt.Sprintf("layer %d of %d", layer, testLayers), "captured"}
			panicsWith(t, func() { row.Valid(layer) }, parts...)
			panicsWith(t, func() { row.ID(layer, 0) }, parts...)
			panicsWith(t, func() { row.AppendIDs(nil, layer) }, parts...)
		}
		for _, column := range []int{-1, testK, 1 << 40} {
			panicsWith(t, func() { row.ID(0, column) }, fmt.Sprintf("column %d of %d", column, testK))
		}
	}
}

// A missing cell was -1 in every layer and column, those that no routing has included.
func TestALayerOfAMissingRowHasToBeThereToo(t *testing.T) {
	c := newCapturer(t, nil)
	request, err := c.Open(PolicyKeep)
	must(t, err)
	routing, err := c.Finish(request, 2)
	must(t, err)
	defer routing.Close()
	_, err = routing.Wait(context.Background())
	must(t, err)
	view, err := routing.View()
	must(t, err)
	for _, row := range view.All() {
		panicsWith(t, func() { row.Valid(testLayers) }, "layer 3 of 3")
		panicsWith(t, func() { row.ID(0, testK) }, "column 2 of 2")
	}
}

// Layer 3 of 3 of the prompts was layer 0 of the tokens that are generated.
func TestTheLoadOfALayerThatIsNotThereIsAPanic(t *testing.T) {
	c := newCapturer(t, func(config *Config) { config.Flags = ConfigLoad })
	captured(t, c, 3).Close()
	load, err := c.Load()
	must(t, err)
	load.Of(PhaseDecode, testLayers-1)
	panicsWith(t, func() { load.Of(PhasePrefill, testLayers) }, "layer 3 of 3")
	panicsWith(t, func() { load.Of(LoadPhases, 0) }, "phase 2 of 2")
	panicsWith(t, func() { load.Of(-1, 0) }, "phase -1 of 2")
}
