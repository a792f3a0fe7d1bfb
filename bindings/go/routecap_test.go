//go:build cgo

package routecap

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"reflect"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"
)

// ---- What most tests do

const (
	testLayers = 3
	testK      = 2
)

func newCapturer(t testing.TB, change func(*Config)) *Capturer {
	t.Helper()
	config := Config{Backend: BackendHost, Layers: testLayers, K: testK, Experts: 16, Rows: 64}
	if change != nil {
		change(&config)
	}
	c, err := New(config)
	must(t, err)
	t.Cleanup(func() { c.Close() })
	return c
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestRowsThatArriveAreCheckedBeforeTheyAreRead(t *testing.T) {
	c, err := New(Config{Backend: BackendHost, Layers: 2, K: 2, Experts: 16, Rows: 8})
	must(t, err)
	defer c.Close()
	request, err := c.Open(PolicyKeep)
	must(t, err)
	later := IssueOptions{Snapshot: SnapshotLater}
	spans := []Span{{Request: request, Rows: 3, PositionEnd: 9, Flags: SpanDevicePositions}}
	later.Positions = ArrayOf([]int32{0, 1, 2})
	_, _, err = c.Issue(spans, later, nil, 0)
	mustBe(t, err, ErrArgument) // Go's memory, which would be read later
	later.Positions = Array{}
	step, _, err := c.Issue([]Span{{Request: request, Rows: 3}}, later, nil, 0)
	must(t, err)

	ids := []int32{1, 2, 3, 4, 5, 6, 6, 5, 4, 3, 2, 1}
	for _, rows := range []ArrivedRows{
		{IDs: ArrayOf(ids[:11]), Rows: 3},
		{IDs: ArrayOf(ids), Rows: 4},
		{IDs: ArrayOf(ids), Rows: math.MaxUint32},
		{IDs: ArrayOf(ids).From(1), Rows: 3},
		{IDs: ArrayOf(ids), Rows: 3, LayerStride: 7},
		{IDs: ArrayOf(ids), Rows: 3, LayerStride: math.MaxInt64},
		{IDs: ArrayOf(ids), Rows: 3, RowStride: 3},
		{IDs: ArrayOf(ids), Rows: 3, RowStride: math.MaxInt64},
		{IDs: ArrayOf(ids), Rows: 3, RowStride: 6, LayerStride: 2},
		{IDs: Array{}, Rows: 3},
	} {
		if err := c.Arrive(step, &rows); !errors.Is(err, ErrShapeMismatch) && !errors.Is(err, ErrDType) {
			t.Fatalf("%+v: the error is %v", rows, err)
		}
	}
	negative := ArrivedRows{IDs: ArrayOf(ids).From(6), Rows: 3, LayerStride: -6}
	mustBe(t, c.Arrive(step, &negative), ErrShapeMismatch)
	done := make(chan error)
	go func() { // of any thread
		done <- c.Arrive(step, &ArrivedRows{IDs: ArrayOf(ids), Rows: 3, RowStride: 4, LayerStride: 2})
	}()
	must(t, <-done)
	_, _, err = c.Finalize(context.Background(), step)
	must(t, err)
	stats, err := c.Stats()
	must(t, err)
	if stats.RowsDelivered != 3 {
		t.Fatalf("%+v", stats)
	}
}

func mustBe(t testing.TB, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Fatalf("the error is %v, not %v", err, want)
	}
}

// routed is what the routers choose for the token at a position of a request.
func routed(position, layer, column int) int { return (position*5 + layer*3 + column*7) % 16 }

// capture runs a forward pass of one request and waits until it has landed.
func capture(t testing.TB, c *Capturer, request Request, position, rows int) {
	t.Helper()
	must(t, c.Begin(uint32(rows), 0))
	for layer := range testLayers {
		ids := make([]int64, 0, rows*testK)
		for row := range rows {
			for column := range testK {
				ids = append(ids, int64(routed(position+row, layer, column)))
			}
		}
		must(t, c.Record(uint32(layer), Source{IDs: ArrayOf(ids), Rows: uint32(rows)}, 0))
	}
	must(t, c.Snapshot(0))
	step, _, err := c.Issue(
		[]Span{{Request: request, Position: uint64(position), Rows: uint32(rows)}},
		IssueOptions{Tag: 7},
		nil,
		0,
	)
	must(t, err)
	_, _, err = c.Finalize(context.Background(), step)
	must(t, err)
}

// captured is a complete routing.
func captured(t testing.TB, c *Capturer, rows int) *Routing {
	t.Helper()
	request, err := c.Open(PolicyKeep)
	must(t, err)
	capture(t, c, request, 0, rows)
	r, err := c.Finish(request, uint64(rows))
	must(t, err)
	result, err := r.Wait(context.Background())
	must(t, err)
	if !result.Complete() {
		t.Fatal(result)
	}
	return r
}

func expectRouted(t testing.TB, v View) {
	t.Helper()
	rows := uint64(0)
	for position, row := range v.All() {
		for layer := range testLayers {
			for column := range testK {
				if got, want := row.ID(layer, column), routed(int(position), layer, column); got != want {
					t.Fatalf(
						"row %d, layer %d, column %d is %d, not %d",
						position,
						layer,
						column,
						got,
						want,
					)
				}
			}
		}
		if row.Tag() != 7 {
			t.Fatalf("the tag of row %d is %d", position, row.Tag())
		}
		rows++
	}
	if rows != v.Rows {
		t.Fatalf("the view has %d rows, not %d", rows, v.Rows)
	}
}

// eventually collects garbage until a condition holds.
func eventually(t testing.TB, what string, holds func() bool) {
	t.Helper()
	for range 30000 { // minutes
		if holds() {
			return
		}
		runtime.GC()
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatal("never: ", what)
}

// ---- Errors

func TestAnErrorHasTheTextOfItsOwnCallWhateverOtherGoroutinesDo(t *testing.T) {
	c := newCapturer(t, nil)
	var all sync.WaitGroup
	for goroutine := range 64 {
		all.Add(1)
		go func() {
			defer all.Done()
			for i := range 1000 {
				unknown := Request(1<<40 + goroutine<<20 + i)
				err := c.Truncate(unknown, 0)
				if !errors.Is(err, ErrUnknownRequest) ||
					!strings.Contains(err.Error(), fmt.Sprintf("%016x", uint64(unknown))) {
					t.Errorf("request %016x: %v", uint64(unknown), err)
					return
				}
			}
		}()
	}
	all.Wait()
}

func TestAnErrorSaysWhichCallFailedHowAndWhy(t *testing.T) {
	c := newCapturer(t, nil)
	err := c.CloseRequest(5)
	var failure *Error
	if !errors.As(err, &failure) || failure.Op != "routecap_request_close" ||
		failure.Status != ErrUnknownRequest ||
		failure.Text == "" {
		t.Fatalf("%#v", err)
	}
	var status Status
	if !errors.As(err, &status) || status != ErrUnknownRequest || errors.Is(err, ErrUnknownStep) ||
		errors.Is(err, ErrClosed) {
		t.Fatal(err)
	}
	if want := "routecap_request_close: " + failure.Text + " (ROUTECAP_ERR_UNKNOWN_REQUEST)"; err.Error() != want {
		t.Fatalf("%q, not %q", err, want)
	}
}

func TestALostStepIsAnErrorWithAValidTicket(t *testing.T) {
	// Nobody files: with one slot the second step finds none free.
	c := newCapturer(t, func(config *Config) {
		config.Slots, config.Flags = 1, ConfigManualProgress|ConfigMayLose
	})
	request, err := c.Open(PolicyKeep)
	must(t, err)
	issue := func(position uint64, flags SpanFlags) (Step, Result, error) {
		must(t, c.Begin(1, 0))
		for layer := range uint32(testLayers) {
			must(t, c.Record(layer, SourceOf([]int32{1, 2}, 1), 0))
		}
		must(t, c.Snapshot(0))
		spans := []Span{{Request: request, Position: position, Rows: 1, Flags: flags}}
		return c.Issue(spans, IssueOptions{}, nil, 0)
	}
	first, result, err := issue(0, 0)
	if first != 1 || !result.Complete() || err != nil {
		t.Fatal(first, result, err)
	}
	second, result, err := issue(1, SpanSpeculative)
	if second != 2 || result.Status != Lost {
		t.Fatal(second, result)
	}
	mustBe(t, err, ErrLost)
	var lost *LostError
	if !errors.As(err, &lost) || lost.Step != second || errors.Is(err, ErrState) ||
		errors.Is(err, ErrClosed) {
		t.Fatalf("%#v", err)
	}
	want := "routecap_step_issue: step 2 is lost: " + lost.Text + " (ROUTECAP_LOST)"
	const why = "this step was issued while as many steps were in flight"
	if err.Error() != want || !strings.HasPrefix(lost.Text, why) || result.Text != lost.Text {
		t.Fatalf("%q, not %q", err, want)
	}
	landed, err := c.Poll(second)
	must(t, err)
	if landed.Status != Lost || !strings.HasPrefix(landed.Text, why) {
		t.Fatal(landed)
	}
	must(t, c.Accept(request, second, 1)) // the ticket is one
	r, err := c.Finish(request, RowsAll)
	must(t, err)
	defer r.Close()
	result, err = r.Wait(context.Background())
	must(t, err)
	coverage, _, err := r.Coverage(nil)
	must(t, err)
	if result.Status != Incomplete || coverage.RowsComplete != 1 || coverage.RowsEmpty != 1 {
		t.Fatal(result, coverage)
	}
	view, err := r.View()
	must(t, err)
	if len(view.Segments) != 2 || view.Segments[0].Reason != 0 ||
		view.Segments[1].Reason != MissingLost {
		t.Fatal(view.Segments)
	}
	again, _, err := Import(view, 0)
	must(t, err)
	defer again.Close()
	same, err := again.View()
	must(t, err)
	if len(same.Segments) != 2 || same.Segments[1].Reason != MissingLost {
		t.Fatal(same.Segments)
	}
}

func TestCallsAfterCloseFail(t *testing.T) {
	c := newCapturer(t, nil)
	store, err := NewStore(StoreConfig{BlockRows: 4, KeyBytes: 8}, testShape)
	must(t, err)
	defer store.Close()
	open, closed := captured(t, c, 4), captured(t, c, 4)
	defer open.Close()
	must(t, closed.Close())
	must(t, closed.Close())
	must(t, c.Close())
	must(t, c.Close())
	arguments := map[reflect.Type]reflect.Value{
		reflect.TypeFor[context.Context](): reflect.ValueOf(context.Background()),
		reflect.TypeFor[*Routing]():        reflect.ValueOf(open),
		reflect.TypeFor[*Store]():          reflect.ValueOf(store),
		reflect.TypeFor[io.Writer]():       reflect.ValueOf(io.Discard),
	}
	calls := 0
	for _, object := range []any{c, closed} {
		v := reflect.ValueOf(object)
		for i := range v.NumMethod() {
			name, method := v.Type().Method(i).Name, v.Method(i)
			if name == "Close" || name == "UnmarshalBinary" { // the second makes it another routing
				continue
			}
			in := make([]reflect.Value, method.Type().NumIn())
			for j := range in {
				in[j] = reflect.Zero(method.Type().In(j))
				if value, ok := arguments[method.Type().In(j)]; ok {
					in[j] = value
				}
			}
			out := method.Call(in)
			err, _ := out[len(out)-1].Interface().(error)
			if !errors.Is(err, ErrClosed) || !errors.Is(err, ErrState) {
				t.Errorf("%T.%s: %v", object, name, err)
			}
			calls++
		}
	}
	if calls < 40 {
		t.Errorf("only %d methods were called", calls)
	}
	_, _, err = ExtractInto[int32](c, 1, 0, RowsAll, DefaultCopyOptions(), nil, nil)
	mustBe(t, err, ErrClosed)
	_, _, err = CopyTo[int32](closed, DefaultCopyOptions(), nil, nil)
	mustBe(t, err, ErrClosed)
	_, _, err = SinkSlice[int16](c, 0)
	mustBe(t, err, ErrClosed)
	_, _, err = Merge(open, closed)
	mustBe(t, err, ErrClosed)
	mustBe(t, c.Attach(1, closed, RowsAll), ErrClosed)
	var never Routing
	_, err = never.View()
	mustBe(t, err, ErrClosed)
	must(t, never.Close())
}

func TestACapturerAndARoutingMayBeClosedWhileOthersUseThem(t *testing.T) {
	for range 20 {
		c := newCapturer(t, nil)
		r := captured(t, c, 8)
		var all sync.WaitGroup
		var uses atomic.Int64
		for range 8 {
			all.Add(2)
			go func() {
				defer all.Done()
				for {
					request, err := c.Open(PolicyKeep)
					if err == nil {
						err = c.CloseRequest(request)
						uses.Add(1)
					}
					if err != nil {
						if !errors.Is(err, ErrClosed) {
							t.Error(err)
						}
						return
					}
				}
			}()
			go func() {
				defer all.Done()
				for {
					_, err := r.MarshalBinary()
					if err == nil {
						var merged *Routing
						if merged, _, err = Merge(r, r); err == nil {
							merged.Close()
							uses.Add(1)
						}
					}
					if err != nil {
						if !errors.Is(err, ErrClosed) {
							t.Error(err)
						}
						return
					}
				}
			}()
		}
		eventually(t, "they are in use", func() bool { return uses.Load() >= 32 })
		r.Close()
		c.Close()
		all.Wait()
	}
}

func TestAViewIsWholeEvenIfItsRoutingIsClosedMeanwhile(t *testing.T) {
	const rows = 2000
	v := View{DType: DTypeU8, Layers: 1, K: 1, Experts: 1, Rows: 2 * rows}
	for i := range uint64(rows) { // every second row is missing: each of the others is a segment
		v.Segments = append(v.Segments, Segment{First: 2 * i, Rows: 1, IDs8: make([]uint8, 1)})
	}
	for range 300 {
		r, _, err := Import(v, 0)
		must(t, err)
		go r.Close()
		seen, err := r.View()
		if err != nil {
			mustBe(t, err, ErrClosed)
			continue
		}
		first := uint64(0)
		for _, s := range seen.Segments {
			if s.First != first || s.Rows != 1 {
				t.Fatalf("%d rows from %d on are in the place of row %d", s.Rows, s.First, first)
			}
			first++
		}
		if first != seen.Rows {
			t.Fatalf("%d rows of %d", first, seen.Rows)
		}
	}
}

func TestASecondGoroutineInAFunctionForOneIsRefused(t *testing.T) {
	c := newCapturer(t, nil)
	inside, done := make(chan bool), make(chan bool)
	go func() {
		c.callAlone("test", func(_ unsafe.Pointer) Result {
			inside <- true
			<-done
			return Result{}
		})
		inside <- false
	}()
	<-inside
	mustBe(t, c.Begin(1, 0), ErrState)
	mustBe(t, c.Snapshot(0), ErrState)
	_, err := c.SinkLayer(0)
	mustBe(t, err, ErrState)
	_, err = c.Stats()
	must(t, err)
	done <- true
	<-inside
	must(t, c.Begin(1, 0))
}

// ---- Arguments

func TestArraysThatDoNotFitAreErrors(t *testing.T) {
	c := newCapturer(t, func(config *Config) {
		config.LayerProvenance = []Provenance{
			ProvenanceCaptured,
			ProvenanceCaptured,
			ProvenanceRecomputed,
		}
	})
	must(t, c.Begin(4, 0))
	eight := ArrayOf(make([]int32, 8))
	for what, test := range map[string]struct {
		source Source
		want   Status
	}{
		"too few ids":              {Source{IDs: eight, Rows: 5}, ErrShapeMismatch},
		"too few for the strides":  {Source{IDs: eight, Rows: 4, RowStride: 3}, ErrShapeMismatch},
		"before the first":         {Source{IDs: eight, Rows: 4, RowStride: -2}, ErrShapeMismatch},
		"behind the last":          {Source{IDs: eight.From(2), Rows: 4}, ErrShapeMismatch},
		"an overflow":              {Source{IDs: eight, Rows: 4, RowStride: 1 << 62}, ErrShapeMismatch},
		"no ids":                   {Source{Rows: 4}, ErrDType},
		"ids of float32":           {Source{IDs: ArrayOf(make([]float32, 8)), Rows: 4}, ErrDType},
		"ids of uint8":             {Source{IDs: ArrayOf(make([]uint8, 8)), Rows: 4}, ErrDType},
		"ids of a wrong size":      {Source{IDs: eight.As(DTypeI64), Rows: 4}, ErrDType},
		"a row index too short":    {Source{IDs: eight, Rows: 4, RowIndex: ArrayOf(make([]int32, 3))}, ErrShapeMismatch},
		"a row index of int64":     {Source{IDs: eight, Rows: 4, RowIndex: ArrayOf(make([]int64, 4))}, ErrDType},
		"live rows of uint32":      {Source{IDs: eight, Rows: 4, LiveRows: ArrayOf([]uint32{1})}, ErrDType},
		"a device array too short": {Source{IDs: DeviceArray(1<<20, DTypeI32, 7), Rows: 4}, ErrShapeMismatch},
		"a layer's ids too few":    {Source{Rows: 5}, ErrShapeMismatch},
	} {
		err := c.Record(0, test.source, 0)
		if test.source.IDs.none() && test.want == ErrShapeMismatch {
			err = c.RecordLayers(test.source, []LayerSource{{Layer: 0, IDs: eight}}, 0)
		}
		if !errors.Is(err, test.want) {
			t.Errorf("%s: %v, not %v", what, err, test.want)
		}
	}
	must(
		t,
		c.Record(
			0,
			Source{
				IDs:       eight.From(6),
				Rows:      4,
				RowStride: -2,
				Table:     ArrayOf([]int32{1}),
				Offset:    0,
			},
			0,
		),
	) // backwards is no error
	must(t, c.Record(1, Source{IDs: ArrayOf(make([]uint32, 8)).As(DTypeID16BF16), Rows: 4}, 0))

	router, err := NewRouter(MethodSoftmax)
	must(t, err)
	logits := ArrayOf(make([]float32, 4*16))
	mustBe(t, c.Route(2, router, Logits{Logits: logits, Rows: 5}, 0), ErrShapeMismatch)
	mustBe(
		t,
		c.Route(
			2,
			router,
			Logits{Logits: logits, Rows: 4, Weights: ArrayOf(make([]float32, 7))},
			0,
		),
		ErrShapeMismatch,
	)
	mustBe(
		t,
		c.Route(2, router, Logits{Logits: logits, Rows: 4, Weights: ArrayOf(make([]int32, 8))}, 0),
		ErrDType,
	)
	mustBe(
		t,
		c.Route(2, Router{Bias: ArrayOf(make([]float32, 15))}, Logits{Logits: logits, Rows: 4}, 0),
		ErrShapeMismatch,
	)
	mustBe(t, c.Route(2, router, Logits{Logits: eight, Rows: 4}, 0), ErrShapeMismatch)
	must(
		t,
		c.Route(
			2,
			router,
			Logits{Logits: logits, Rows: 4, Weights: ArrayOf(make([]float32, 8))},
			0,
		),
	)
	received := Received{
		Ranks:         2,
		Experts:       8,
		K:             2,
		TokensPerRank: 2,
		Rows:          1,
		DType:         DTypeI32,
		Metadata:      ArrayOf(make([]int32, 4)),
		IDs:           ArrayOf([]int32{0, -1}),
		Tokens:        1,
		TopkIDs:       ArrayOf([]int32{0, 5}),
		Executed:      ArrayOf(make([]int32, 8)),
	}
	counts := make([]uint64, 9) // tokens, columns, equal, replaced, swapped, lost, ...
	received.Counts = ArrayOf(counts)
	must(t, c.ReadReceived(received, 0))
	must(t, c.CompareReceived(received, 0))
	if counts[0] != 1 || counts[1] != 2 || counts[2] != 1 || counts[5] != 1 {
		t.Errorf("counted %d", counts)
	}
	short, wide := received, received
	short.Executed = ArrayOf(make([]int32, 7))
	mustBe(t, c.ReadReceived(short, 0), ErrShapeMismatch)
	wide.TopkIDs = ArrayOf(make([]int64, 2))
	mustBe(t, c.CompareReceived(wide, 0), ErrDType)
	must(t, c.Snapshot(0))

	request, err := c.Open(PolicyKeep)
	must(t, err)
	spans := []Span{
		{Request: request, SinkRow: 1, Rows: 3, PositionEnd: 9, Flags: SpanDevicePositions},
	}
	_, _, err = c.Issue(spans, IssueOptions{Positions: ArrayOf([]int32{0, 1, 2})}, nil, 0)
	mustBe(t, err, ErrShapeMismatch)
	_, _, err = c.Issue(
		spans,
		IssueOptions{Positions: ArrayOf([]int32{0, 1, 2, 3})},
		make([]Status, 2),
		0,
	)
	mustBe(t, err, ErrArgument)
	_, _, err = c.Issue(spans, IssueOptions{Positions: ArrayOf([]int16{0, 1, 2, 3})}, nil, 0)
	mustBe(t, err, ErrDType)
	_, _, err = c.Issue(spans, IssueOptions{Positions: ArrayOf([]int32{0, 1, 2, 3})}, nil, 0)
	must(t, err)
	_, err = c.CloseRequests([]Request{request}, make([]Status, 2))
	mustBe(t, err, ErrArgument)
	_, err = New(
		Config{Backend: BackendHost, Layers: 2, K: 2, Experts: 16, Rows: 8, LayerMap: []int32{1}},
	)
	mustBe(t, err, ErrArgument)
}

func TestASourceIsMadeOfASliceOfAnyTypeOfIDsWhereverItLies(t *testing.T) {
	c := newCapturer(t, func(config *Config) { config.Layers = 4 })
	// cgo lets no memory with pointers of Go pass: here they are beside the ids.
	type engine struct {
		next  *engine
		ids   [4]int32
		names []string
	}
	e := &engine{next: &engine{}, ids: [4]int32{1, 2, 3, 4}, names: []string{"engine"}}
	type expert int64
	must(t, c.Begin(2, 0))
	must(t, c.Record(0, SourceOf(e.ids[:], 2), 0))
	must(t, c.Record(1, SourceOf([]int16{9, 9, 5, 6, 7, 8, 9}[2:6], 2), 0))
	must(t, c.Record(2, SourceOf([]uint32{9, 10, 11, 12}, 2), 0))
	must(t, c.Record(3, SourceOf([]expert{13, 14, 15, 0}, 2), 0))
	mustBe(t, c.Record(3, SourceOf([]expert{13, 14, 15}, 2), 0), ErrShapeMismatch) // too short
	must(t, c.Snapshot(0))
	request, err := c.Open(PolicyKeep)
	must(t, err)
	_, _, err = c.Issue([]Span{{Request: request, Rows: 2}}, IssueOptions{}, nil, 0)
	must(t, err)
	r, err := c.Finish(request, 2)
	must(t, err)
	defer r.Close()
	_, err = r.Wait(context.Background())
	must(t, err)
	ids := make([]int32, 2*4*testK)
	_, result, err := CopyTo(r, DefaultCopyOptions(), ids, nil)
	must(t, err)
	want := []int32{1, 2, 5, 6, 9, 10, 13, 14, 3, 4, 7, 8, 11, 12, 15, 0}
	if !result.Complete() || !slices.Equal(ids, want) {
		t.Fatal(result, ids)
	}
}

func TestATableEndsWhereItsArrayEndsAlsoIfItBeginsLater(t *testing.T) {
	c := newCapturer(t, func(config *Config) {
		config.K = 1
		config.LayerProvenance = []Provenance{
			ProvenanceCaptured,
			ProvenanceCaptured,
			ProvenanceRecomputed,
		}
	})
	// Four entries; what is behind the array are experts too.
	table := ArrayOf([]int32{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}[:8])
	ids := ArrayOf([]int32{0, 3, 4, 7})
	router, err := NewRouter(MethodSoftmax)
	must(t, err)
	write := func(table Array) []error {
		router.HashTable = table
		return []error{
			c.Record(0, Source{IDs: ids, Rows: 4, Table: table}, 0),
			c.RecordLayers(Source{Rows: 4}, []LayerSource{{Layer: 1, IDs: ids, Table: table}}, 0),
			c.Route(2, router, Logits{Rows: 4, Tokens: ids}, 0),
		}
	}
	must(t, c.Begin(4, 0))
	for _, origin := range []int{-1, 9} {
		for _, err := range write(table.From(origin)) {
			mustBe(t, err, ErrArgument)
		}
	}
	must(t, errors.Join(write(table.From(4))...))
	must(t, c.Snapshot(0))
	request, err := c.Open(PolicyKeep)
	must(t, err)
	_, _, err = c.Issue([]Span{{Request: request, Rows: 4}}, IssueOptions{}, nil, 0)
	must(t, err)
	r, err := c.Finish(request, 4)
	must(t, err)
	_, err = r.Wait(context.Background())
	must(t, err)
	v, err := r.View()
	must(t, err)
	for position, row := range v.All() {
		for layer := range testLayers {
			if got, want := row.ID(layer, 0), []int{4, 7, -1, -1}[position]; got != want {
				t.Errorf("row %d, layer %d is %d, not %d", position, layer, got, want)
			}
		}
	}
}

func TestNoLayerExpertsAreNil(t *testing.T) {
	c := newCapturer(t, func(config *Config) {
		config.LayerExperts = []uint32{}
		config.LayerProvenance = []Provenance{
			ProvenanceRecomputed,
			ProvenanceRecomputed,
			ProvenanceRecomputed,
		}
	})
	router, err := NewRouter(MethodSoftmax)
	must(t, err)
	must(t, c.Begin(1, 0))
	mustBe(
		t,
		c.Route(0, router, Logits{Logits: ArrayOf(make([]float32, 15)), Rows: 1}, 0),
		ErrShapeMismatch,
	) // of 16
	must(t, c.Route(0, router, Logits{Logits: ArrayOf(make([]float32, 16)), Rows: 1}, 0))
}

func TestGoMemoryIsNotGivenToADevice(t *testing.T) {
	c := &Capturer{config: Config{Backend: BackendCUDA, K: testK}}
	a := arrays{c: c}
	a.number("ids", ArrayOf(make([]int32, 1)), DTypeI32)
	_, err := a.refused.outcome("test")
	mustBe(t, err, ErrArgument)
}

func TestTheSinkCanBeWrittenInPlace(t *testing.T) {
	c := newCapturer(t, func(config *Config) { config.SinkDType = DTypeI32 })
	_, _, err := SinkSlice[int16](c, 0)
	mustBe(t, err, ErrDType)
	_, _, err = SinkSlice[int32](c, testLayers)
	mustBe(t, err, ErrUnknownLayer)
	must(t, c.Begin(4, 0))
	for layer := range testLayers {
		ids, stride, err := SinkSlice[int32](c, uint32(layer))
		must(t, err)
		for row := range 4 {
			for column := range testK {
				ids[row*stride+column] = int32(routed(row, layer, column))
			}
		}
	}
	must(t, c.Snapshot(0))
	request, err := c.Open(PolicyKeep)
	must(t, err)
	step, _, err := c.Issue([]Span{{Request: request, Rows: 4}}, IssueOptions{Tag: 7}, nil, 0)
	must(t, err)
	_, _, err = c.Finalize(context.Background(), step)
	must(t, err)
	r, _, err := c.Extract(request, 0, RowsAll, ExtractCopy, ReadStrict)
	must(t, err)
	defer r.Close()
	v, err := r.View()
	must(t, err)
	expectRouted(t, v)
}

func TestItemsOfABatchThatAreRefusedDoNotHarmTheOthers(t *testing.T) {
	c := newCapturer(t, nil)
	requests := make([]Request, 3)
	must(t, c.OpenBatch(requests, PolicyKeep))
	must(t, c.Begin(6, 0))
	for layer := range uint32(testLayers) {
		must(
			t,
			c.Record(
				layer,
				Source{IDs: ArrayOf([]int16{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}), Rows: 6},
				0,
			),
		)
	}
	must(t, c.Snapshot(0))
	spans := []Span{
		{Request: requests[0], SinkRow: 0, Rows: 3, Flags: SpanSpeculative},
		{Request: 99, SinkRow: 3, Rows: 1, Flags: SpanShared},
		{Request: requests[1], SinkRow: 3, Rows: 3, Flags: SpanSpeculative | SpanShared},
	}
	status := make([]Status, len(spans))
	step, result, err := c.Issue(spans, IssueOptions{}, status, 0)
	must(t, err)
	if result.Status != Partial || result.Text == "" || status[0] != OK ||
		status[1] != ErrUnknownRequest ||
		status[2] != OK {
		t.Fatal(result, status)
	}
	must(t, c.Begin(4, 0))
	must(t, c.Snapshot(0))
	step2, result, err := c.Issue(spans[1:2], IssueOptions{}, nil, 0)
	var skipped *SkippedError
	if !errors.As(err, &skipped) || !errors.Is(err, ErrSkipped) || skipped.Step != step2 ||
		step2 != step+1 || result.Status != Partial || skipped.Statuses[0] != ErrUnknownRequest ||
		!strings.Contains(err.Error(), "1 of 1 spans were skipped, first span 0") {
		t.Fatal(step2, result, err)
	}
	accepts := []AcceptItem{
		{Request: requests[0], Step: step, Count: 2},
		{Request: requests[2], Step: step, Count: 1},
		{Request: requests[1], Step: step},
	}
	accepts[2].SetRows([]uint32{0, 2})
	result, err = c.AcceptBatch(accepts)
	must(t, err)
	if result.Status != Partial || accepts[0].Status != OK || accepts[1].Status != ErrUnknownStep ||
		accepts[2].Status != OK {
		t.Fatal(result, accepts)
	}
	_, _, err = c.Finalize(context.Background(), step)
	must(t, err)
	extracts := []ExtractItem{
		{Request: requests[0], Rows: RowsAll},
		{Request: 99, Rows: RowsAll},
		{Request: requests[1], Rows: 1},
	}
	routings, result, err := c.ExtractBatch(extracts)
	must(t, err)
	if result.Status != Partial || routings[0] == nil || routings[1] != nil || routings[2] == nil ||
		extracts[1].Status != ErrUnknownRequest {
		t.Fatal(result, routings, extracts)
	}
	finishes := []FinishItem{
		{Request: requests[0], Rows: 2},
		{Request: requests[1], Rows: 3},
		{Request: 99},
	}
	finished, result, err := c.FinishBatch(finishes)
	must(t, err)
	if result.Status != Partial || finished[0] == nil || finished[1] == nil || finished[2] != nil {
		t.Fatal(result, finished)
	}
	_, err = finished[1].Wait(context.Background())
	must(t, err)
	dst, mask := make([]uint8, 3*testLayers*testK), make([]uint8, 3*testLayers)
	_, _, err = CopyTo(finished[1], DefaultCopyOptions(), dst, mask)
	must(t, err)
	if want := []uint8{6, 7, 6, 7, 6, 7, 255, 255, 255, 255, 255, 255, 10, 11, 10, 11, 10, 11}; !bytes.Equal(
		dst,
		want,
	) {
		t.Fatal(dst)
	}
	if want := []uint8{1, 1, 1, 0, 0, 0, 1, 1, 1}; !bytes.Equal(mask, want) {
		t.Fatal(mask)
	}
	for _, r := range append(routings, finished...) {
		if r != nil {
			must(t, r.Close())
		}
	}
	empty, _, err := c.FinishBatch(nil)
	must(t, err)
	if len(empty) != 0 {
		t.Fatal(empty)
	}
}

// ---- Waiting

func TestWaitingLooksOnceAndEndsWithItsContext(t *testing.T) {
	never := func(time.Duration) (Result, error) { return Result{Status: Pending}, nil }
	ctx, cancel := context.WithCancel(context.Background())
	looked := 0
	r, err := wait(ctx, func(timeout time.Duration) (Result, error) {
		if looked++; looked == 3 {
			cancel()
		}
		return never(timeout)
	})
	if r.Status != Pending || err != context.Canceled || looked < 3 {
		t.Fatal(r, err, looked)
	}
	looked = 0
	r, err = wait(
		ctx,
		func(timeout time.Duration) (Result, error) { looked++; return Result{Status: Lost}, nil },
	)
	if r.Status != Lost || err != nil || looked != 1 {
		t.Fatal(r, err, looked)
	}
	short, cancel := context.WithTimeout(context.Background(), time.Millisecond)
	defer cancel()
	if r, err = wait(short, never); r.Status != Pending || err != context.DeadlineExceeded {
		t.Fatal(r, err)
	}
}

func TestARoutingIsPendingUntilItsStepsHaveLanded(t *testing.T) {
	c := newCapturer(t, func(config *Config) { config.Flags = ConfigManualProgress })
	request, err := c.Open(PolicyKeep)
	must(t, err)
	must(t, c.Begin(1, 0))
	must(t, c.Snapshot(0))
	step, _, err := c.Issue([]Span{{Request: request, Rows: 1}}, IssueOptions{}, nil, 0)
	must(t, err)
	r, err := c.Finish(request, RowsAll)
	must(t, err)
	defer r.Close()
	for _, poll := range []func() (Result, error){r.Poll, func() (Result, error) { return c.Poll(step) }} {
		if result, err := poll(); err != nil || result.Status != Pending {
			t.Fatal(result, err)
		}
	}
	_, err = r.View()
	mustBe(t, err, ErrNotReady)
	_, err = r.MarshalBinary()
	mustBe(t, err, ErrNotReady)
	must(t, c.Progress())
	if result, err := r.Poll(); err != nil || result.Status != NotCaptured || result.Text == "" {
		t.Fatal(result, err)
	}
}

// ---- Lifetimes

// bytesInUse is what routings and requests hold of the budget.
func bytesInUse(t testing.TB, c *Capturer) uint64 {
	stats, err := c.Stats()
	must(t, err)
	return stats.BytesInUse
}

func TestRoutingsThatAreNotClosedAreCollected(t *testing.T) {
	c := newCapturer(t, nil)
	requests := make([]Request, 8)
	must(t, c.OpenBatch(requests, PolicyKeep))
	items := make([]FinishItem, len(requests))
	for i, request := range requests {
		capture(t, c, request, 0, 4)
		items[i] = FinishItem{Request: request, Rows: 4}
	}
	routings, _, err := c.FinishBatch(items)
	must(t, err)
	for _, r := range routings {
		_, err := r.Wait(context.Background())
		must(t, err)
	}
	must(t, routings[3].Close()) // and the others of the batch not
	for range 8 {
		captured(t, c, 4)
	}
	if bytesInUse(t, c) == 0 {
		t.Fatal("nothing is held")
	}
	runtime.GC()
	runtime.KeepAlive(routings)
	eventually(t, "the budget is free", func() bool { return bytesInUse(t, c) == 0 })
}

func TestACapturerThatIsNotClosedIsCollected(t *testing.T) {
	var r *Routing
	func() {
		c, err := New(
			Config{
				Backend: BackendHost,
				Layers:  testLayers,
				K:       testK,
				Experts: 16,
				Rows:    4,
				Flags:   ConfigManualProgress,
			},
		)
		must(t, err)
		request, err := c.Open(PolicyKeep)
		must(t, err)
		must(t, c.Begin(1, 0))
		must(t, c.Snapshot(0))
		_, _, err = c.Issue([]Span{{Request: request, Rows: 1}}, IssueOptions{}, nil, 0)
		must(t, err)
		r, err = c.Finish(request, 1)
		must(t, err)
	}()
	defer r.Close()
	if result, err := r.Poll(); err != nil || result.Status != Pending {
		t.Fatal(result, err)
	}
	eventually(t, "the capturer's end has made its routing ready", func() bool {
		result, err := r.Poll()
		must(t, err)
		return result.Status == NotCaptured
	})
}

// A view was the routing's memory: after Close it showed the rows of another request, and crashed
// later.
func TestAViewNeedsNoRouting(t *testing.T) {
	c := newCapturer(t, nil)
	r := captured(t, c, 40)
	v, err := r.View()
	must(t, err)
	must(t, r.Close())
	if bytesInUse(t, c) != 0 {
		t.Fatal("a view keeps memory of its routing")
	}
	request, err := c.Open(PolicyKeep) // which takes the pages
	must(t, err)
	capture(t, c, request, 7, 40)
	rows := v.All()
	must(t, c.Close())
	expectRouted(t, v)
	for position, row := range rows {
		if row.ID(0, 0) != routed(int(position), 0, 0) {
			t.Fatalf("row %d has %d", position, row.ID(0, 0))
		}
	}
}

func TestACloneIsClosedOnItsOwn(t *testing.T) {
	c := newCapturer(t, nil)
	r := captured(t, c, 4)
	clone, err := r.Clone()
	must(t, err)
	must(t, r.Close())
	v, err := clone.View()
	must(t, err)
	expectRouted(t, v)
	must(t, clone.Close())
}

// The resident memory of the process in KiB.
func residentKiB(t testing.TB) int {
	text, err := os.ReadFile("/proc/self/status")
	must(t, err)
	var kib int
	for line := range strings.Lines(string(text)) {
		if _, err := fmt.Sscanf(line, "VmRSS: %d kB", &kib); err == nil {
			return kib
		}
	}
	t.Fatal("no VmRSS")
	return 0
}

func TestThousandsOfCyclesLeaveNoMemoryBehind(t *testing.T) {
	cycle := func(i int) {
		config := Config{Backend: BackendHost, Layers: testLayers, K: testK, Experts: 16, Rows: 64}
		if i%2 == 0 {
			config.Flags = ConfigManualProgress
		}
		c, err := New(config)
		must(t, err)
		request, err := c.Open(PolicyKeep)
		must(t, err)
		capture(t, c, request, 0, 16)
		r, _, err := c.Extract(request, 0, RowsAll, ExtractMode(i%3), ReadStrict)
		must(t, err)
		data, err := r.MarshalBinary()
		must(t, err)
		lent, _, err := DeserializeInPlace(data, 0, nil)
		must(t, err)
		v, err := lent.View()
		must(t, err)
		expectRouted(t, v)
		if i%4 != 0 { // otherwise the backstop
			must(t, lent.Close())
			must(t, r.Close())
			must(t, c.Close())
		}
		if i%16 == 0 {
			runtime.GC()
		}
	}
	settle := func() int {
		eventually(
			t,
			"all loans are over",
			func() bool { collectLoans(); return openLoans.Load() == 0 },
		)
		debug.FreeOSMemory()
		return residentKiB(t)
	}
	cycles, warmUp := 10000, 1000
	if testing.Short() {
		cycles, warmUp = 2000, 500
	}
	for i := range warmUp {
		cycle(i)
	}
	before := settle()
	for i := range cycles {
		cycle(i)
	}
	if after := settle(); after > before+16<<10 {
		t.Fatalf("%d KiB are resident, %d before %d cycles", after, before, cycles)
	}
}

// ---- The serialised form

func TestLentMemoryIsReleasedOnceWhenTheLastThatSharesItGoes(t *testing.T) {
	c := newCapturer(t, nil)
	r := captured(t, c, 40)
	data, err := r.MarshalBinary()
	must(t, err)
	must(t, r.Close())
	released := 0
	lent, _, err := DeserializeInPlace(data, 0, func() { released++ })
	must(t, err)
	slice, err := lent.Slice(10, 20)
	must(t, err)
	must(t, lent.Close())
	runtime.GC()
	v, err := slice.View()
	must(t, err)
	expectRouted(t, v)
	request, err := c.Open(PolicyKeep)
	must(t, err)
	must(t, c.Attach(request, slice, RowsAll))
	must(t, slice.Close())
	if released != 0 {
		t.Fatal("released while a request shares the rows")
	}
	if loans.Lock(); len(loans.open) != 1 {
		t.Fatal(len(loans.open), " loans")
	}
	loans.Unlock()
	must(t, c.Close())
	if released != 1 || openLoans.Load() != 0 {
		t.Fatalf("released %d times, %d loans", released, openLoans.Load())
	}

	misaligned := append(make([]byte, 1, len(data)+1), data...)[1:]
	copied, _, err := DeserializeInPlace(misaligned, ImportTrusted, func() { released++ })
	must(t, err)
	if released != 2 {
		t.Fatal("what could not be used in place was not released at once")
	}
	must(t, copied.Close())
	_, _, err = DeserializeInPlace(data[:100], 0, func() { released++ })
	mustBe(t, err, ErrFormat)
	if released != 2 || openLoans.Load() != 0 {
		t.Fatal("released after an error")
	}
}

func TestAViewCanBeImportedAgain(t *testing.T) {
	c := newCapturer(t, nil)
	r := captured(t, c, 20)
	defer r.Close()
	want, err := r.MarshalBinary()
	must(t, err)
	v, err := r.View()
	must(t, err)
	released := false
	for name, make := range map[string]func() (*Routing, Result, error){
		"a copy": func() (*Routing, Result, error) { return Import(v, 0) },
		"lent":   func() (*Routing, Result, error) { return ImportInPlace(v, 0, nil) },
		"in place": func() (*Routing, Result, error) {
			return ImportInPlace(v, ImportTrusted, func() { released = true })
		},
	} {
		imported, result, err := make()
		must(t, err)
		runtime.GC()
		got, err := imported.MarshalBinary()
		must(t, err)
		if !result.Complete() || !bytes.Equal(got, want) {
			t.Error(name, ": ", result)
		}
		must(t, imported.Close())
	}
	if !released || openLoans.Load() != 0 {
		t.Fatal("not released")
	}
	for what, change := range map[string]func(*View){
		"too few ids":       func(v *View) { v.Segments[0].IDs8 = v.Segments[0].IDs8[1:] },
		"too much validity": func(v *View) { v.Segments[0].Validity = make([]uint8, 21) },
		"too few tags":      func(v *View) { v.Segments[0].Tags = make([]uint64, 19) },
		"a short layer map": func(v *View) { v.LayerMap = v.LayerMap[1:] },
		"impossible rows":   func(v *View) { v.Segments[0].Rows = 1 << 60 },
	} {
		wrong := v
		wrong.Segments = slices.Clone(v.Segments)
		change(&wrong)
		if _, _, err := Import(wrong, 0); !errors.Is(err, ErrArgument) {
			t.Errorf("%s: %v", what, err)
		}
		if _, _, err := ImportInPlace(wrong, 0, nil); !errors.Is(err, ErrArgument) {
			t.Errorf("%s, in place: %v", what, err)
		}
	}
	wrong := v
	wrong.Segments = slices.Clone(v.Segments)
	wrong.DType = DTypeI16
	_, _, err = Import(wrong, 0)
	mustBe(t, err, ErrDType)
}

// records are four rows of 3 layers, K = 2, as the library has them: ids, validity, padding. Layer 1
// of the second row is missing.
func records[T uint8 | int16](experts uint32) (view View, memory []T) {
	idBytes := int(unsafe.Sizeof(T(0)))
	stride := 8 * idBytes // 6 ids, one byte of validity, and zeros
	memory = make([]T, 4*8)
	all := unsafe.Slice((*uint8)(unsafe.Pointer(unsafe.SliceData(memory))), len(memory)*idBytes)
	for row := range 4 {
		for layer := range 3 {
			memory[8*row+2*layer], memory[8*row+2*layer+1] = T(row), T(layer+4)
		}
		all[row*stride+6*idBytes] = 0b111
	}
	all[stride+6*idBytes] = 0b101
	segment := Segment{First: 5, Rows: 4, Tag: 3, Validity: all[6*idBytes:]}
	view = View{
		DType:     typeOf[T](),
		Layers:    3,
		K:         2,
		Experts:   experts,
		First:     5,
		Rows:      4,
		RowStride: uint64(stride),
	}
	switch ids := any(memory).(type) {
	case []uint8:
		segment.IDs8 = ids
	case []int16:
		segment.IDs16 = ids
	}
	view.Segments = []Segment{segment}
	return view, memory
}

func expectRecords(t *testing.T, v View) {
	t.Helper()
	rows := 0
	for position, row := range v.All() {
		if position != uint64(5+rows) || row.Tag() != 3 {
			t.Error("row ", position, " with tag ", row.Tag())
		}
		for layer := range 3 {
			want := []int{rows, layer + 4}
			if rows == 1 && layer == 1 {
				want = nil
			}
			if ids := row.AppendIDs(nil, layer); !slices.Equal(ids, want) {
				t.Errorf("row %d, layer %d: %d, not %d", position, layer, ids, want)
			}
		}
		rows++
	}
	if rows != 4 {
		t.Error(rows, " rows")
	}
}

func testRecords[T uint8 | int16](t *testing.T, experts uint32) {
	v, memory := records[T](experts)
	expectRecords(t, v)
	released := false
	lent, _, err := ImportInPlace(v, 0, func() { released = true })
	must(t, err)
	if released {
		t.Error("records were copied")
	}
	seen, err := lent.View()
	must(t, err)
	expectRecords(t, seen)
	if seen.RowStride != 0 || len(seen.Segments[0].IDs8)+len(seen.Segments[0].IDs16) != 4*3*2 {
		t.Error("the rows of a view do not follow one another")
	}
	want, err := lent.MarshalBinary()
	must(t, err)
	must(t, lent.Close())
	if !released {
		t.Error("not released")
	}

	// What lies differently is the same routing: copied, and released at once.
	wide := v
	wide.RowStride = 2 * v.RowStride
	wide.Rows = 2
	wide.Segments = slices.Clone(v.Segments)
	wide.Segments[0].Rows = 2
	for what, other := range map[string]View{"dense": seen, "every second row": wide} {
		released = false
		r, _, err := ImportInPlace(other, 0, func() { released = true })
		must(t, err)
		if !released {
			t.Error(what, ": not released at once")
		}
		got, err := r.MarshalBinary()
		must(t, err)
		if what == "dense" && !bytes.Equal(got, want) {
			t.Error(what, ": another routing")
		}
		copied, err := r.View()
		must(t, err)
		for position, row := range copied.All() {
			if first := row.ID(0, 0); what != "dense" && first != 2*int(position-5) {
				t.Errorf("%s: row %d begins with %d", what, position, first)
			}
		}
		must(t, r.Close())
	}

	setIDs := func(s *Segment, ids []T) {
		switch ids := any(ids).(type) {
		case []uint8:
			s.IDs8 = ids
		case []int16:
			s.IDs16 = ids
		}
	}
	for what, wrong := range map[string]struct {
		change func(*View)
		err    error
	}{
		"ids without the last row's padding": {
			func(v *View) { setIDs(&v.Segments[0], memory[:len(memory)-1]) }, ErrArgument,
		},
		"validity without the last row's": {func(v *View) {
			s := &v.Segments[0]
			s.Validity = s.Validity[:3*v.RowStride]
		}, ErrArgument},
		"rows that wrap around": {func(v *View) {
			v.RowStride = 1 << 62
			v.Segments[0].Rows, v.Rows = 5, 5
		}, ErrArgument},
		"a stride that is less than a row": {
			func(v *View) { v.RowStride = 6 * uint64(v.DType.Size()) }, ErrShapeMismatch,
		},
	} {
		for in, call := range map[string]func(View) (*Routing, Result, error){
			"":           func(v View) (*Routing, Result, error) { return Import(v, 0) },
			", in place": func(v View) (*Routing, Result, error) { return ImportInPlace(v, 0, nil) },
		} {
			changed := v
			changed.Segments = slices.Clone(v.Segments)
			wrong.change(&changed)
			if _, _, err := call(changed); !errors.Is(err, wrong.err) {
				t.Errorf("%s%s: %v", what, in, err)
			}
		}
	}
	if openLoans.Load() != 0 {
		t.Error(openLoans.Load(), " loans")
	}
}

func TestRowsThatLieAsTheLibrarysAreLentInPlaceAndOthersAreCopied(t *testing.T) {
	t.Run("8 bits", func(t *testing.T) { testRecords[uint8](t, 8) })
	t.Run("16 bits", func(t *testing.T) { testRecords[int16](t, 300) })
}

func TestRoutingsAreReadFromAStreamOneByOne(t *testing.T) {
	c := newCapturer(t, nil)
	var stream bytes.Buffer
	for rows := 1; rows <= 5; rows++ {
		r := captured(t, c, rows)
		_, err := r.WriteTo(&stream)
		must(t, err)
		must(t, r.Close())
	}
	whole := stream.Bytes()
	for rows := 1; rows <= 5; rows++ {
		r, _, err := ReadRouting(&stream, 1<<16)
		must(t, err)
		v, err := r.View()
		must(t, err)
		if v.Rows != uint64(rows) {
			t.Fatal(v.Rows)
		}
		expectRouted(t, v)
		must(t, r.Close())
	}
	_, _, err := ReadRouting(&stream, 1<<16)
	mustBe(t, err, io.EOF)
	for _, n := range []int{1, 63, 64, 100} {
		_, _, err = ReadRouting(bytes.NewReader(whole[:n]), 1<<16)
		mustBe(t, err, io.ErrUnexpectedEOF)
	}
	_, _, err = ReadRouting(bytes.NewReader(whole), 100)
	mustBe(t, err, ErrNoMemory)
	_, _, err = ReadRouting(bytes.NewReader(make([]byte, 100)), 100)
	mustBe(t, err, ErrFormat)
	huge := bytes.Clone(whole[:SerializedMin])
	binary.LittleEndian.PutUint64(huge[16:], 1<<50) // says so, and does not come
	_, _, err = ReadRouting(bytes.NewReader(huge), 1<<60)
	if err == nil {
		t.Fatal("no error")
	}
}

func TestUnmarshalMakesARoutingAnother(t *testing.T) {
	c := newCapturer(t, nil)
	r, other := captured(t, c, 4), captured(t, c, 9)
	data, err := other.MarshalBinary()
	must(t, err)
	must(t, other.Close())
	must(t, r.UnmarshalBinary(data))
	mustBe(t, r.UnmarshalBinary(data[1:]), ErrFormat) // and it stays what it was
	v, err := r.View()
	must(t, err)
	if v.Rows != 9 || bytesInUse(t, c) != 0 {
		t.Fatal(v.Rows, " rows, ", bytesInUse(t, c), " bytes")
	}
	appended, err := r.AppendBinary([]byte("before"))
	must(t, err)
	if string(appended[:6]) != "before" || !bytes.Equal(appended[6:], data) {
		t.Fatal("not appended")
	}
	must(t, r.Close())
}

func FuzzDeserialize(f *testing.F) {
	c := newCapturer(f, nil)
	r := captured(f, c, 5)
	data, err := r.MarshalBinary()
	must(f, err)
	must(f, r.Close())
	f.Add(data)
	f.Add(data[:64])
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, data []byte) {
		r, _, err := Deserialize(data, 0)
		if err != nil {
			mustBe(t, err, ErrFormat)
			return
		}
		v, err := r.View()
		must(t, err)
		for _, row := range v.All() {
			for layer := range int(v.Layers) {
				if row.Valid(layer) && uint32(row.ID(layer, 0)) >= v.LayerExperts[layer] {
					t.Fatal("an id that is no expert")
				}
			}
		}
		must(t, r.Close())
	})
}
