//go:build cgo

package cudatest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"sync"
	"testing"
	"unsafe"

	routecap "github.com/routecap/routecap/bindings/go"
)

// Without a GPU these tests say so and are skipped, unless ROUTECAP_REQUIRE_CUDA is set.

const (
	layers, k, experts = 5, 4, 64
	rows               = 32
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// routed is what a layer's router chooses for the token at a position of a sequence: k distinct
// ids.
func routed(seed, position, layer, column int) int {
	return (seed*7 + position*13 + layer*29 + column*5) % experts
}

type token struct{ seed, position int }

// engine is a device with the static buffers of a model's routers, and its capturer.
type engine struct {
	t       testing.TB
	device  *Device
	c       *routecap.Capturer
	stream  routecap.Stream
	dtype   routecap.DType // of the routers' ids
	buffers [layers]uintptr
}

func newEngine(t testing.TB, dtype routecap.DType, change func(*routecap.Config)) *engine {
	t.Helper()
	device, err := Open()
	if err != nil {
		if os.Getenv("ROUTECAP_REQUIRE_CUDA") != "" {
			t.Fatal("no GPU: ", err)
		}
		t.Skip("no GPU: ", err)
	}
	t.Cleanup(device.Close)
	config := routecap.Config{
		Backend: routecap.BackendCUDA,
		Layers:  layers,
		K:       k,
		Experts: experts,
		Rows:    rows,
		Slots:   4,
	}
	if change != nil {
		change(&config)
	}
	c, err := routecap.New(config)
	must(t, err)
	t.Cleanup(func() { c.Close() })
	e := &engine{t: t, device: device, c: c, stream: routecap.Stream(device.Stream), dtype: dtype}
	for layer := range e.buffers {
		e.buffers[layer] = device.Allocate(rows * k * dtype.Size())
	}
	return e
}

// feed puts into the routers' buffers what the next forward pass routes.
func (e *engine) feed(batch []token) {
	for layer, buffer := range e.buffers {
		var ids []byte
		for _, t := range batch {
			for column := range k {
				id := int64(routed(t.seed, t.position, layer, column))
				ids = append(
					ids,
					unsafe.Slice((*byte)(unsafe.Pointer(&id)), e.dtype.Size())...) // little endian
			}
		}
		e.device.Write(buffer, ids)
	}
}

// ids are the first n rows of a router's buffer.
func (e *engine) ids(layer int, n uint32) routecap.Array {
	return routecap.DeviceArray(routecap.DevicePointer(e.buffers[layer]), e.dtype, int(n*k))
}

// forward enqueues a forward pass: layer by layer, or all layers at once.
func (e *engine) forward(n uint32, atOnce bool) {
	e.t.Helper()
	must(e.t, e.c.Begin(n, e.stream))
	var sources []routecap.LayerSource
	for layer := range layers {
		ids := e.ids(layer, n)
		if atOnce {
			sources = append(sources, routecap.LayerSource{Layer: uint32(layer), IDs: ids})
		} else {
			must(e.t, e.c.Record(uint32(layer), routecap.Source{IDs: ids, Rows: n}, e.stream))
		}
	}
	if atOnce {
		must(e.t, e.c.RecordLayers(routecap.Source{Rows: n}, sources, e.stream))
	}
	must(e.t, e.c.Snapshot(e.stream))
}

func (e *engine) issue(spans []routecap.Span, options routecap.IssueOptions) routecap.Step {
	e.t.Helper()
	step, result, err := e.c.Issue(spans, options, nil, e.stream)
	must(e.t, err)
	if !result.Complete() {
		e.t.Fatal(result)
	}
	return step
}

func (e *engine) finalize(step routecap.Step) {
	e.t.Helper()
	_, result, err := e.c.Finalize(context.Background(), step)
	must(e.t, err)
	if !result.Complete() {
		e.t.Fatal(result)
	}
}

func (e *engine) open() routecap.Request {
	e.t.Helper()
	r, err := e.c.Open(routecap.PolicyKeep)
	must(e.t, err)
	return r
}

// finish ends a request and compares every id.
func (e *engine) finish(request routecap.Request, seed, n int) {
	e.t.Helper()
	r, err := e.c.Finish(request, uint64(n))
	must(e.t, err)
	defer r.Close()
	result, err := r.Wait(context.Background())
	must(e.t, err)
	if !result.Complete() {
		e.t.Fatal(result)
	}
	must(e.t, compare(r, seed, n))
}

// compare compares every id of a routing.
func compare(r *routecap.Routing, seed, n int) error {
	v, err := r.View()
	if err != nil {
		return err
	}
	if v.Rows != uint64(n) {
		return fmt.Errorf("%d rows, not %d", v.Rows, n)
	}
	for position, row := range v.All() {
		for layer := range layers {
			for column := range k {
				if got, want := row.ID(layer, column), routed(seed, int(position), layer, column); got != want {
					return fmt.Errorf(
						"row %d, layer %d, column %d of sequence %d is %d, not %d",
						position,
						layer,
						column,
						seed,
						got,
						want,
					)
				}
			}
		}
	}
	return nil
}

// decode runs sequences of a prompt and then token by token, several steps in flight; pass makes
// the forward pass of a batch.
func (e *engine) decode(pass func(batch []token)) {
	const sequences, prompt, length = 3, 8, 30
	var requests [sequences]routecap.Request
	for seed := range requests {
		requests[seed] = e.open()
	}
	var steps []routecap.Step
	step := func(first, n int) {
		var batch []token
		var spans []routecap.Span
		for seed, request := range requests {
			spans = append(
				spans,
				routecap.Span{
					Request:  request,
					Position: uint64(first),
					SinkRow:  uint32(len(batch)),
					Rows:     uint32(n),
				},
			)
			for i := range n {
				batch = append(batch, token{seed, first + i})
			}
		}
		if len(steps) >= 3 { // or a step would be lost
			e.finalize(steps[len(steps)-3])
		}
		pass(batch)
		steps = append(steps, e.issue(spans, routecap.IssueOptions{}))
	}
	step(0, prompt)
	for position := prompt; position < length; position++ {
		step(position, 1)
	}
	for seed, request := range requests {
		e.finish(request, seed, length)
	}
}

func TestEveryIdIsCaptured(t *testing.T) {
	for name, dtype := range map[string]routecap.DType{"int16": routecap.DTypeI16, "int32": routecap.DTypeI32, "int64": routecap.DTypeI64} {
		for _, atOnce := range []bool{false, true} {
			t.Run(
				map[bool]string{false: "layer by layer/", true: "at once/"}[atOnce]+name,
				func(t *testing.T) {
					e := newEngine(t, dtype, nil)
					e.decode(func(batch []token) {
						e.feed(batch)
						e.forward(uint32(len(batch)), atOnce)
					})
				},
			)
		}
	}
}

func TestEveryIdIsCapturedInGraphs(t *testing.T) {
	for _, atOnce := range []bool{false, true} {
		t.Run(
			map[bool]string{false: "layer by layer", true: "at once"}[atOnce],
			func(t *testing.T) {
				e := newEngine(t, routecap.DTypeI64, nil)
				graphs := map[int]*Graph{}
				e.decode(func(batch []token) {
					e.feed(batch)
					if graphs[len(batch)] == nil {
						graphs[len(batch)] = e.device.Capture(
							func() { e.forward(uint32(len(batch)), atOnce) },
						)
					}
					graphs[len(batch)].Launch(e.device)
				})
				if len(graphs) != 2 {
					t.Fatal(len(graphs), " graphs")
				}
				must(t, e.c.Close())
				for _, g := range graphs { // they outlive the capturer, and may be replayed
					g.Launch(e.device)
					e.device.Synchronize()
					g.Close()
				}
			},
		)
	}
}

func TestARouterMayWriteASinkOfItsOwn(t *testing.T) {
	for name, own := range map[string]bool{"bound": true, "the library's": false} {
		t.Run(name, func(t *testing.T) {
			e := newEngine(t, routecap.DTypeI16, nil)
			if own {
				sink := e.device.Allocate(layers * rows * k * 2)
				must(
					t,
					e.c.SinkBind(
						0,
						layers,
						routecap.Sink{
							DType: routecap.DTypeI16,
							IDs:   routecap.DevicePointer(sink),
							Rows:  rows,
							K:     k,
						},
					),
				)
			}
			for layer := range uint32(layers) {
				sink, err := e.c.SinkLayer(layer)
				must(t, err)
				if sink.DType != routecap.DTypeI16 || sink.RowStride != k {
					t.Fatal(sink)
				}
				e.buffers[layer] = uintptr(sink.IDs)
			}
			_, _, err := routecap.SinkSlice[int16](e.c, 0)
			if !errors.Is(err, routecap.ErrState) {
				t.Fatal("device memory as a slice: ", err)
			}
			e.decode(func(batch []token) {
				must(t, e.c.Begin(uint32(len(batch)), e.stream))
				e.feed(batch)
				must(t, e.c.Snapshot(e.stream))
			})
		})
	}
}

func TestDraftsArePlacedByPositionsOnTheDeviceAndAccepted(t *testing.T) {
	e := newEngine(t, routecap.DTypeI32, nil)
	request := e.open()
	positions := e.device.Allocate(rows * 8)
	const drafts = 3
	position, random := 0, rand.New(rand.NewPCG(1, 2))
	for range 12 {
		var batch []token
		var device []byte
		for i := range 1 + drafts {
			batch = append(batch, token{1, position + i})
			at := int64(position + i)
			device = append(device, unsafe.Slice((*byte)(unsafe.Pointer(&at)), 8)...)
		}
		e.feed(batch)
		e.device.Write(positions, device)
		e.forward(uint32(len(batch)), true)
		array := routecap.DeviceArray(routecap.DevicePointer(positions), routecap.DTypeI64, rows)
		_, _, err := e.c.Issue(
			[]routecap.Span{
				{
					Request:     request,
					PositionEnd: 99,
					SinkRow:     rows,
					Rows:        1,
					Flags:       routecap.SpanDevicePositions,
				},
			},
			routecap.IssueOptions{Positions: array},
			nil,
			e.stream,
		)
		if err == nil {
			t.Fatal("positions beyond their array were not refused")
		}
		step := e.issue([]routecap.Span{
			{
				Request:     request,
				Position:    uint64(position),
				PositionEnd: uint64(position + 1),
				SinkRow:     0,
				Rows:        1,
				Flags:       routecap.SpanDevicePositions,
			},
			{
				Request:     request,
				Position:    uint64(position + 1),
				PositionEnd: uint64(position + 1 + drafts),
				SinkRow:     1,
				Rows:        drafts,
				Flags:       routecap.SpanDevicePositions | routecap.SpanSpeculative,
			},
		}, routecap.IssueOptions{Positions: array})
		kept := random.IntN(drafts + 1)
		must(t, e.c.Accept(request, step, uint64(kept)))
		if step > 1 { // or one would be lost
			e.finalize(step - 1)
		}
		position += 1 + kept
	}
	e.finish(request, 1, position)
}

func TestExpertsAreChosenFromLogits(t *testing.T) {
	e := newEngine(t, routecap.DTypeI32, func(c *routecap.Config) {
		c.LayerProvenance = slices.Repeat(
			[]routecap.Provenance{routecap.ProvenanceRecomputed},
			layers,
		)
	})
	random := rand.New(rand.NewPCG(3, 4))
	logits, weights := make([]float32, rows*experts), make([]float32, rows*k)
	order := random.Perm(rows * experts) // all different
	for i := range logits {
		logits[i] = float32(order[i]) / 100
	}
	asBytes := func(s []float32) []byte { return unsafe.Slice((*byte)(unsafe.Pointer(&s[0])), len(s)*4) }
	onDevice, weightsOnDevice := e.device.Allocate(rows*experts*4), e.device.Allocate(rows*k*4)
	e.device.Write(onDevice, asBytes(logits))
	router, err := routecap.NewRouter(routecap.MethodTopK)
	must(t, err)
	must(t, e.c.Begin(rows, e.stream))
	for layer := range uint32(layers) {
		must(t, e.c.Route(layer, router, routecap.Logits{Rows: rows,
			Logits: routecap.DeviceArray(
				routecap.DevicePointer(onDevice),
				routecap.DTypeF32,
				rows*experts,
			),
			Weights: routecap.DeviceArray(
				routecap.DevicePointer(weightsOnDevice),
				routecap.DTypeF32,
				rows*k,
			)}, e.stream))
	}
	must(t, e.c.Snapshot(e.stream))
	found := make([]routecap.LayerProbe, layers)
	if _, err := e.c.Probe(rows, found, e.stream); err != nil || found[0].RowsWritten != rows {
		t.Fatal(found, err)
	}
	request := e.open()
	e.finalize(e.issue([]routecap.Span{{Request: request, Rows: rows}}, routecap.IssueOptions{}))
	e.device.Read(asBytes(weights), weightsOnDevice)
	_, _, err = e.c.Extract(
		request,
		0,
		routecap.RowsAll,
		routecap.ExtractShare,
		routecap.ReadStrict,
	)
	if !errors.Is(err, routecap.ErrRecomputed) {
		t.Fatal(err)
	}
	r, _, err := e.c.Extract(
		request,
		0,
		routecap.RowsAll,
		routecap.ExtractTake,
		routecap.ReadStrict|routecap.ReadAllowRecomputed,
	)
	must(t, err)
	defer r.Close()
	v, err := r.View()
	must(t, err)
	for position, row := range v.All() {
		of := logits[position*experts:][:experts]
		best := make([]int, experts)
		for i := range best {
			best[i] = i
		}
		slices.SortFunc(best, func(a, b int) int { return int(100*of[b]+0.5) - int(100*of[a]+0.5) })
		for layer := range layers {
			if got := row.AppendIDs(nil, layer); !slices.Equal(got, best[:k]) {
				t.Fatalf("row %d, layer %d: %v, not %v", position, layer, got, best[:k])
			}
		}
		for column := range k {
			if got, want := weights[position*k+uint64(column)], of[best[column]]; got != want {
				t.Fatalf(
					"the weight of row %d, column %d is %v, not %v",
					position,
					column,
					got,
					want,
				)
			}
		}
	}
}

func TestGoMemoryIsRefused(t *testing.T) {
	e := newEngine(t, routecap.DTypeI32, nil)
	must(t, e.c.Begin(2, e.stream))
	err := e.c.Record(
		0,
		routecap.Source{IDs: routecap.ArrayOf(make([]int32, 2*k)), Rows: 2},
		e.stream,
	)
	if !errors.Is(err, routecap.ErrArgument) {
		t.Fatal(err)
	}
	must(t, e.c.Discard(e.stream))
}

func TestACallThatCannotBeCapturedLeavesTheCaptureGoingOn(t *testing.T) {
	e := newEngine(t, routecap.DTypeI32, nil)
	batch := []token{{0, 0}, {0, 1}}
	e.feed(batch)
	request := e.open()
	graph := e.device.Capture(func() {
		_, _, err := e.c.Issue(nil, routecap.IssueOptions{}, nil, e.stream)
		if !errors.Is(err, routecap.ErrCapturing) {
			t.Error(err)
		}
		if err := e.c.Discard(e.stream); !errors.Is(err, routecap.ErrCapturing) {
			t.Error(err)
		}
		e.forward(uint32(len(batch)), false)
	})
	defer graph.Close()
	graph.Launch(e.device)
	e.finalize(e.issue([]routecap.Span{{Request: request, Rows: 2}}, routecap.IssueOptions{}))
	e.finish(request, 0, 2)
}

func TestSmallNumbersAreStreams(t *testing.T) {
	runtime.LockOSThread() // the per-thread default stream
	defer runtime.UnlockOSThread()
	for _, stream := range []routecap.Stream{0, 1, 2} {
		e := newEngine(t, routecap.DTypeI32, nil)
		e.feed([]token{{4, 0}, {4, 1}, {4, 2}})
		e.stream = stream
		request := e.open()
		e.forward(3, false)
		e.finalize(e.issue([]routecap.Span{{Request: request, Rows: 3}}, routecap.IssueOptions{}))
		e.finish(request, 4, 3)
	}
}

func TestReadersReadWhileTheEngineGoesOnAndChangesThreads(t *testing.T) {
	e := newEngine(t, routecap.DTypeI64, nil)
	stop := make(chan struct{})
	shared := e.open()
	e.feed([]token{{9, 0}, {9, 1}, {9, 2}, {9, 3}})
	e.forward(4, true)
	e.finalize(e.issue([]routecap.Span{{Request: shared, Rows: 4}}, routecap.IssueOptions{}))
	var readers sync.WaitGroup
	for range 8 {
		readers.Add(1)
		go func() {
			defer readers.Done()
			for {
				select {
				case <-stop:
					return
				default:
				}
				r, _, err := e.c.Extract(
					shared,
					0,
					routecap.RowsAll,
					routecap.ExtractShare,
					routecap.ReadStrict,
				)
				if err == nil {
					err = errors.Join(compare(r, 9, 4), r.Close())
				}
				if err != nil {
					t.Error(err)
					return
				}
			}
		}()
	}
	for range 4 {
		e.decode(func(batch []token) {
			done := make(chan struct{})
			go func() { // on a thread of its own
				runtime.LockOSThread()
				defer close(done)
				e.feed(batch)
				e.forward(uint32(len(batch)), true)
			}()
			<-done
		})
	}
	close(stop)
	readers.Wait()
}
