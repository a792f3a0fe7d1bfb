package main

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"reflect"
	"slices"

	"github.com/ollama/ollama/ml"
	"github.com/ollama/ollama/ml/nn"
	"github.com/ollama/ollama/model"
	"github.com/ollama/ollama/model/input"

	routecap "github.com/routecap/routecap/bindings/go"
)

// Tap captures the routing of a mixture-of-experts model in Ollama's engine, without a patch: every
// family multiplies a token's hidden state by the experts' last matrix with MulmatID(ctx, states,
// ids), ml.Tensor is an interface, and the weights are exported fields. Take this file as it is.
//
//	tap, err := Install(m, maxBatch, routecap.DefaultConfig())  // once, after Load
//	err = tap.Open(sequence)                                    // every sequence that is to be captured, before its first token
//
//	logits, err := model.Forward(ctx, m, batch)                 // builds a graph; the next one may be built before this one runs
//	graph := tap.Built()
//	ctx.Compute(graph.Outputs(logits)...)
//	err = tap.Issue(graph, batch, outputs)
//
//	routing, err := tap.Finish(sequence)                        // the end of a sequence; wait for it on any goroutine
//
// Beside cache.Remove(sequence, position, math.MaxInt32) belongs tap.Truncate(sequence, position),
// and beside cache.CopyPrefix(from, to, length) tap.Fork(from, to, length). A Tap is one
// goroutine's at a time; its Capturer and routings are everyone's.
type Tap struct {
	Capturer *routecap.Capturer

	weights  []*tapped // of each captured layer
	built    Graph
	requests map[int]routecap.Request
	slots    uint32
	step     routecap.Step
}

// Graph is what a forward pass will route: the ids of each captured layer, as tensors of its graph.
type Graph []ml.Tensor

// Outputs is what to give to Compute: logits, and the ids, which can be read then.
func (g Graph) Outputs(logits ml.Tensor) []ml.Tensor {
	outputs := []ml.Tensor{logits}
	for _, ids := range g {
		if ids != nil {
			outputs = append(outputs, ids)
		}
	}
	return outputs
}

// tapped stands in for the last expert weight of one layer. The interface that it embeds forwards
// all other methods.
type tapped struct {
	ml.Tensor
	tap          *Tap
	batch        *nn.LinearBatch // where it stands
	layer        int             // among the captured ones
	decoderLayer int
}

func (w *tapped) MulmatID(ctx ml.Context, states, ids ml.Tensor) ml.Tensor {
	// A node of its own: the memory of the ids, a view into all experts sorted by weight, is used
	// again after their last consumer.
	kept := ids.Contiguous(ctx)
	ctx.Forward(kept)
	w.tap.built[w.layer] = kept
	return w.Tensor.MulmatID(ctx, states, ids)
}

// Install makes a model call a new tap, and creates the capturer: config with the layers and
// experts of this model, for batches of so many tokens.
func Install(m model.Model, maxBatch int, config routecap.Config) (*Tap, error) {
	config.Slots = cmp.Or(config.Slots, 4)
	t := &Tap{requests: make(map[int]routecap.Request), slots: config.Slots}
	walk(reflect.ValueOf(m), -1, func(decoderLayer int, batch *nn.LinearBatch) {
		t.weights = append(t.weights, &tapped{batch.Weight, t, batch, len(t.weights), decoderLayer})
	})
	if len(t.weights) == 0 {
		return nil, errors.New(
			"this model has no MoE layers: it has no experts' weight called Down",
		)
	}
	config.Backend = routecap.BackendHost
	config.Layers, config.Rows = uint32(len(t.weights)), uint32(maxBatch)
	config.K = m.Backend().Config().Uint("expert_used_count")
	for _, w := range t.weights {
		if _, twice := w.Tensor.(*tapped); twice {
			return nil, errors.New("this model has a tap already")
		}
		config.LayerMap = append(config.LayerMap, int32(w.decoderLayer))
		config.LayerExperts = append(config.LayerExperts, uint32(w.Dim(2)))
	}
	var err error
	if t.Capturer, err = routecap.New(config); err != nil {
		return nil, err
	}
	t.Built()
	for _, w := range t.weights {
		w.batch.Weight = w
	}
	return t, nil
}

// walk finds the last expert weight of every layer: a field Down of this type, in an element of a
// slice of layers.
func walk(v reflect.Value, layer int, found func(int, *nn.LinearBatch)) {
	switch v.Kind() {
	case reflect.Pointer, reflect.Interface:
		if !v.IsNil() {
			walk(v.Elem(), layer, found)
		}
	case reflect.Slice:
		for i := range v.Len() {
			if v.Type().Elem().Kind() == reflect.Struct ||
				v.Type().Elem().Kind() == reflect.Pointer {
				walk(v.Index(i), i, found)
			}
		}
	case reflect.Struct:
		for i := range v.NumField() {
			field := v.Type().Field(i)
			if !field.IsExported() {
				continue
			}
			if down, ok := v.Field(i).Interface().(*nn.LinearBatch); ok && field.Name == "Down" &&
				layer >= 0 {
				if down != nil && down.Weight != nil {
					found(layer, down)
				}
				continue
			}
			walk(v.Field(i), layer, found)
		}
	}
}

// Close gives the model its weights back and closes the capturer. Routings stay valid.
func (t *Tap) Close() error {
	for _, w := range t.weights {
		w.batch.Weight = w.Tensor
	}
	return t.Capturer.Close()
}

// Open begins the capture of a sequence.
func (t *Tap) Open(sequence int) error {
	request, err := t.Capturer.Open(routecap.PolicyKeep)
	return t.adopt(sequence, request, err)
}

// Fork begins the capture of a sequence with the rows of another before a position.
func (t *Tap) Fork(from, to int, rows uint64) error {
	request, err := t.Capturer.Fork(t.requests[from], rows)
	return t.adopt(to, request, err)
}

func (t *Tap) adopt(sequence int, request routecap.Request, err error) error {
	if err != nil {
		return err
	}
	if _, open := t.requests[sequence]; open {
		return errors.Join(
			fmt.Errorf("sequence %d is being captured already", sequence),
			t.Capturer.CloseRequest(request),
		)
	}
	t.requests[sequence] = request
	return nil
}

// Truncate drops the rows of a sequence from a position on.
func (t *Tap) Truncate(sequence int, rows uint64) error {
	return t.Capturer.Truncate(t.requests[sequence], rows)
}

// Finish ends the capture of a sequence.
func (t *Tap) Finish(sequence int) (*routecap.Routing, error) {
	routing, err := t.Capturer.Finish(t.requests[sequence], routecap.RowsAll)
	delete(t.requests, sequence)
	return routing, err
}

// Built returns what the forward pass that was built last will route.
func (t *Tap) Built() Graph {
	built := t.built
	t.built = make(Graph, len(t.weights))
	return built
}

// Issue captures a forward pass that was computed. outputs are those of the batch, ascending. After
// an error its rows are missing.
func (t *Tap) Issue(graph Graph, batch input.Batch, outputs []int32) error {
	if t.step >= routecap.Step(
		t.slots,
	) { // a step without a slot would be lost: wait for an old one, which has long landed
		if _, _, err := t.Capturer.Finalize(context.Background(), t.step+1-routecap.Step(t.slots)); err != nil {
			return err
		}
	}
	rows := len(batch.Positions)
	if err := t.Capturer.Begin(uint32(rows), 0); err != nil {
		return err
	}
	for layer, tensor := range graph {
		if tensor == nil || tensor.Dim(1) == 0 {
			continue // no row of the batch ran, and will be reported missing
		}
		raw := tensor.Bytes()
		ids := make([]int32, len(raw)/4)
		if _, err := binary.Decode(raw, binary.NativeEndian, ids); err != nil {
			return err
		}
		source := routecap.Source{
			IDs:     routecap.ArrayOf(ids),
			Columns: uint32(tensor.Dim(0)),
			Rows:    uint32(tensor.Dim(1)),
		}
		if tensor.Dim(1) != rows {
			// The last layer: only rows that want logits go through it. The others of this layer do
			// not
			// exist.
			if tensor.Dim(1) != len(outputs) || !slices.IsSorted(outputs) {
				return fmt.Errorf(
					"layer %d has %d rows, the batch %d, of which %d want logits",
					layer,
					tensor.Dim(1),
					rows,
					len(outputs),
				)
			}
			source.RowIndex = routecap.ArrayOf(outputs)
		}
		if err := t.Capturer.Record(uint32(layer), source, 0); err != nil {
			return err
		}
	}
	step, result, err := t.Capturer.Issue(
		t.spans(batch),
		routecap.IssueOptions{Snapshot: routecap.SnapshotMake},
		nil,
		0,
	)
	if step != 0 { // lost, perhaps, but issued
		t.step = step
	}
	if err != nil {
		return err
	}
	if !result.Complete() {
		return fmt.Errorf("routing will be missing: %v", result)
	}
	return nil
}

// spans says whose the rows of a batch are: each run of consecutive positions of one sequence is a
// span.
func (t *Tap) spans(batch input.Batch) []routecap.Span {
	var spans []routecap.Span
	for row, position := range batch.Positions {
		request, open := t.requests[batch.Sequences[row]]
		if !open {
			continue
		}
		if n := len(spans) - 1; n >= 0 && spans[n].Request == request &&
			spans[n].SinkRow+spans[n].Rows == uint32(row) &&
			spans[n].Position+uint64(spans[n].Rows) == uint64(position) {
			spans[n].Rows++
		} else {
			spans = append(spans, routecap.Span{Request: request, Position: uint64(position), SinkRow: uint32(row), Rows: 1})
		}
	}
	return spans
}
