package main

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/ollama/ollama/ml"
	"github.com/ollama/ollama/model"
	"github.com/ollama/ollama/model/input"

	routecap "github.com/routecap/routecap/bindings/go"
)

// load returns the model of a file that a variable of the environment names.
func load(t *testing.T, variable string) model.Model {
	t.Helper()
	m, err := model.New(os.Getenv(variable), ml.BackendParams{AllocMemory: true, NumThreads: 1})
	if err != nil {
		t.Fatalf("%s: %v", variable, err)
	}
	t.Cleanup(m.Backend().Close)
	if err := m.Backend().Load(context.Background(), func(float32) {}); err != nil {
		t.Fatal(err)
	}
	m.Config().Cache.Init(m.Backend(), ml.DTypeF32, 1, contextLength, maxBatch)
	return m
}

func install(t *testing.T, m model.Model) *Tap {
	t.Helper()
	tap, err := Install(m, maxBatch, routecap.DefaultConfig())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tap.Close() })
	return tap
}

func refused(t *testing.T, err error, expected string) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), expected) {
		t.Fatalf("%v does not say %q", err, expected)
	}
}

func TestAModelWithoutMoELayersIsRefused(t *testing.T) {
	_, err := Install(load(t, "DENSE_MODEL"), maxBatch, routecap.DefaultConfig())
	refused(t, err, "no MoE layers")
}

func TestASecondTapIsRefusedUntilTheFirstIsClosed(t *testing.T) {
	m := load(t, "MOE_MODEL")
	first := install(t, m)
	_, err := Install(m, maxBatch, routecap.DefaultConfig())
	refused(t, err, "a tap already")
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	install(t, m)
}

func TestASequenceIsCapturedOnceAtATime(t *testing.T) {
	tap := install(t, load(t, "MOE_MODEL"))
	if err := tap.Open(0); err != nil {
		t.Fatal(err)
	}
	refused(t, tap.Open(0), "already")
	if _, err := tap.Finish(1); !errors.Is(err, routecap.ErrUnknownRequest) {
		t.Fatal(err)
	}
}

func TestALayerThatDoesNotRunIsMissing(t *testing.T) {
	m := load(t, "MOE_MODEL")
	tap := install(t, m)
	if err := tap.Open(0); err != nil {
		t.Fatal(err)
	}
	ctx := m.Backend().NewContext()
	defer ctx.Close()
	rows := []int32{0, 1, 2}
	batch := input.Batch{
		Inputs:    ctx.Input().FromInts(rows, 3),
		Outputs:   ctx.Input().FromInts(rows, 3),
		Positions: rows,
		Sequences: []int{0, 0, 0},
	}
	logits, err := model.Forward(ctx, m, batch)
	if err != nil {
		t.Fatal(err)
	}
	graph := tap.Built()
	graph[1] = nil
	ctx.Compute(graph.Outputs(logits)...)
	if err := tap.Issue(graph, batch, rows); err != nil {
		t.Fatal(err)
	}
	routing, err := tap.Finish(0)
	if err != nil {
		t.Fatal(err)
	}
	defer routing.Close()
	if result, err := routing.Wait(context.Background()); err != nil ||
		result.Status != routecap.Incomplete {
		t.Fatal(result, err)
	}
	view, err := routing.View()
	if err != nil {
		t.Fatal(err)
	}
	for position, row := range view.All() {
		for layer := range int(view.Layers) {
			if row.Valid(layer) == (layer == 1) {
				t.Errorf("row %d of layer %d: valid is %v", position, layer, row.Valid(layer))
			}
		}
	}
}
