//go:build cgo

package routecap

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"unsafe"
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

// A model of k 8 and a capturer of K 6: 4 x 8 ids were read as the first 24 of them, six to a row.
// All rows were there, and all but the first were parts of two.
func TestIDsThatAreNotRowsTimesKAreRefusedUnlessColumnsOrAStrideIsStated(t *testing.T) {
	const rows, model = 4, 8
	config := Config{Backend: BackendHost, Layers: 1, K: 6, Experts: 64, Rows: rows}
	c, err := New(config)
	must(t, err)
	defer c.Close()
	ids := make([]int32, rows*model)
	for i := range ids {
		ids[i] = int32(i)
	}
	must(t, c.Begin(rows, 0))
	err = c.Record(0, SourceOf(ids, rows), 0)
	mustBe(t, err, ErrShapeMismatch)
	for _, part := range []string{"32 elements", "24", "Columns"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%v, without %q", err, part)
		}
	}
	for _, wrong := range []Source{
		{IDs: ArrayOf(ids[:23]), Rows: rows},
		{IDs: ArrayOf(ids[:0]), Rows: rows},
		{IDs: ArrayOf(ids[:31]), Rows: rows, Columns: model},
		{IDs: ArrayOf(ids), Rows: rows, Columns: 7},
		{IDs: ArrayOf(ids), Rows: rows - 1, Columns: model},
		{IDs: ArrayOf(ids[:29]), Rows: rows, RowStride: model},
		{IDs: ArrayOf(ids), Rows: rows, Columns: model, RowIndex: ArrayOf(make([]int32, 5))},
		{IDs: ArrayOf(ids), Rows: rows, Columns: model, RowIndex: ArrayOf([]int32{})},
		{IDs: ArrayOf(ids), Rows: rows, Columns: model, LiveRows: ArrayOf([]int32{0, 2, 4})},
		{IDs: ArrayOf(ids), Rows: rows, Columns: model, RowBase: ArrayOf([]int32{0, 2})},
	} {
		mustBe(t, c.Record(0, wrong, 0), ErrShapeMismatch)
		if wrong.RowIndex.none() && wrong.LiveRows.none() && wrong.RowBase.none() {
			layer := LayerSource{IDs: wrong.IDs}
			wrong.IDs = Array{}
			mustBe(t, c.RecordLayers(wrong, []LayerSource{layer}, 0), ErrShapeMismatch)
		}
	}
	for _, right := range []Source{
		{IDs: ArrayOf(ids), Rows: rows, Columns: model},
		{IDs: ArrayOf(ids[:30]), Rows: rows, RowStride: model},
		{Rows: rows, Columns: model, Flags: SourceWholeStep},
	} {
		if right.Flags == SourceWholeStep {
			must(t, c.RecordLayers(right, []LayerSource{{IDs: ArrayOf(ids)}}, 0))
		} else {
			must(t, c.Begin(rows, 0))
			must(t, c.Record(0, right, 0))
			must(t, c.Snapshot(0))
		}
		request, err := c.Open(PolicyKeep)
		must(t, err)
		_, _, err = c.Issue([]Span{{Request: request, Rows: rows}}, IssueOptions{}, nil, 0)
		must(t, err)
		routing, err := c.Finish(request, rows)
		must(t, err)
		_, err = routing.Wait(context.Background())
		must(t, err)
		view, err := routing.View()
		must(t, err)
		for position, row := range view.All() {
			if got := row.ID(0, 5); got != int(position)*model+5 {
				t.Errorf("row %d has %d in column 5", position, got)
			}
		}
		routing.Close()
	}
}

// What else has a shape: memory that is longer than it was made for another one.
func TestOtherArraysAreAsLongAsWhatIsReadOrWritten(t *testing.T) {
	c := newCapturer(t, func(config *Config) {
		config.LayerProvenance = []Provenance{
			ProvenanceRecomputed,
			ProvenanceCaptured,
			ProvenanceCaptured,
		}
	})
	must(t, c.Begin(4, 0))
	router, err := NewRouter(MethodSoftmax)
	must(t, err)
	scores, bias := ArrayOf(make([]float32, 4*16)), ArrayOf(make([]float32, 17))
	for what, logits := range map[string]Logits{
		"logits":  {Logits: ArrayOf(make([]float32, 4*17)), Rows: 4},
		"experts": {Logits: scores, Rows: 4, Experts: 8},
		"weights": {Logits: scores, Rows: 4, Weights: ArrayOf(make([]float32, 9))},
		"tokens":  {Logits: scores, Rows: 4, Tokens: ArrayOf(make([]int32, 5))},
	} {
		if err := c.Route(0, router, logits, 0); !errors.Is(err, ErrShapeMismatch) {
			t.Errorf("%s: %v", what, err)
		}
	}
	router.Bias = bias
	mustBe(t, c.Route(0, router, Logits{Logits: scores, Rows: 4}, 0), ErrShapeMismatch)
	router.Bias, router.HashTable = Array{}, ArrayOf(make([]int32, 5))
	mustBe(t, c.Route(0, router, Logits{Logits: scores, Rows: 4}, 0), ErrShapeMismatch)

	// of a capturer whose rows arrive later
	c = newCapturer(t, nil)
	request, err := c.Open(PolicyKeep)
	must(t, err)
	step, _, err := c.Issue(
		[]Span{{Request: request, Rows: 2}},
		IssueOptions{Snapshot: SnapshotLater},
		nil,
		0,
	)
	must(t, err)
	all := make([]int32, testLayers*2*testK+1)
	mustBe(t, c.Arrive(step, &ArrivedRows{IDs: ArrayOf(all), Rows: 2}), ErrShapeMismatch)
	for i := range all {
		all[i] = int32(i % testK)
	}
	must(t, c.Arrive(step, &ArrivedRows{IDs: ArrayOf(all[1:]), Rows: 2}))
	_, _, err = c.Finalize(context.Background(), step)
	must(t, err)

	options := DefaultCopyOptions()
	cells := 2 * testLayers
	for _, rows := range []uint64{2, RowsAll} {
		_, _, err = ExtractInto(c, request, 0, rows, options, make([]int32, cells*testK+1), nil)
		mustBe(t, err, ErrShapeMismatch)
		_, _, err = ExtractInto(
			c,
			request,
			0,
			rows,
			options,
			make([]int32, cells*testK),
			make([]uint8, cells+1),
		)
		mustBe(t, err, ErrShapeMismatch)
		_, _, err = ExtractInto(c, request, 0, rows, options, make([]int32, cells*testK), nil)
		must(t, err)
	}
	more := make([]int32, 2*cells*testK) // room for rows that have yet to land
	_, _, err = ExtractInto(c, request, 0, RowsLanded, options, more, nil)
	must(t, err)
	_, _, err = ExtractInto(c, request, 0, 2, options, more, nil)
	mustBe(t, err, ErrShapeMismatch)

	routing, err := c.Finish(request, 2)
	must(t, err)
	defer routing.Close()
	_, err = routing.Wait(context.Background())
	must(t, err)
	_, _, err = CopyTo(routing, options, more, nil)
	mustBe(t, err, ErrShapeMismatch)
	_, _, err = CopyTo(routing, options, more[:cells*testK], make([]uint8, 2*cells))
	mustBe(t, err, ErrShapeMismatch)
	_, _, err = CopyTo(routing, options, more[:cells*testK], make([]uint8, cells))
	must(t, err)
	options.Layers = 1
	_, _, err = CopyTo(routing, options, more[:cells*testK], nil)
	mustBe(t, err, ErrShapeMismatch)

	store, err := NewStore(StoreConfig{BlockRows: 2, KeyBytes: 8}, c.config)
	must(t, err)
	defer store.Close()
	_, err = store.Contains(make([]byte, 16), 0, make([]Reason, 1))
	mustBe(t, err, ErrArgument)
	mustBe(t, store.Retain(make([]byte, 16), make([]Reason, 3)), ErrArgument)

	plan, err := NewPlan[int32](PlanConfig{
		Lengths: []uint64{3}, Layers: testLayers, K: testK, Experts: 16, ContextSize: 1, TensorSize: 1,
	})
	must(t, err)
	defer plan.Close()
	sources := []PlanSource{{0, routing}}
	ids, classes := make([]int32, 3*testLayers*testK), make([]uint8, 3*testLayers)
	_, _, err = plan.Gather(sources, append(ids, 0), classes)
	mustBe(t, err, ErrShapeMismatch)
	_, _, err = plan.Gather(sources, ids, append(classes, 0))
	mustBe(t, err, ErrShapeMismatch)
	_, _, err = plan.Gather(sources, ids, classes)
	must(t, err)
	mustBe(t, GatherValues(plan, [][]int32{{1, 2, 3}}, 0, make([]int32, 4)), ErrShapeMismatch)
	mustBe(t, GatherValues(plan, [][]int32{}, 0, make([]int32, 3)), ErrShapeMismatch)
	must(t, GatherValues(plan, [][]int32{{1, 2, 3}}, 0, make([]int32, 3)))
}

// SinkRow was forgotten in the second span: both requests had the first one's rows, complete.
func TestASinkRowInTwoSpansIsRefusedUnlessBothShareIt(t *testing.T) {
	c := newCapturer(t, nil)
	requests := make([]Request, 2)
	must(t, c.OpenBatch(requests, PolicyKeep))
	must(t, c.Begin(2, 0))
	for layer := range uint32(testLayers) {
		must(t, c.Record(layer, SourceOf([]int32{1, 2, 3, 4}, 2), 0))
	}
	must(t, c.Snapshot(0))
	spans := []Span{{Request: requests[0], Rows: 2}, {Request: requests[1], Rows: 2}}
	_, _, err := c.Issue(spans, IssueOptions{}, nil, 0)
	mustBe(t, err, ErrConflict)
	spans[0].Flags = SpanShared
	_, _, err = c.Issue(spans, IssueOptions{}, nil, 0)
	mustBe(t, err, ErrConflict)
	spans[1].Flags = SpanShared
	_, _, err = c.Issue(spans, IssueOptions{}, nil, 0)
	must(t, err)
	for _, request := range requests {
		routing, err := c.Finish(request, 2)
		must(t, err)
		_, err = routing.Wait(context.Background())
		must(t, err)
		view, err := routing.View()
		must(t, err)
		for position, row := range view.All() {
			if got := row.ID(0, 0); got != 1+2*int(position) {
				t.Errorf("row %d has %d", position, got)
			}
		}
		must(t, routing.Close())
	}
}

// slipped is a pass of two requests with one slip: it says whether that was refused, and fails if a
// row is there that no router chose.
func slipped(t *testing.T, draw *rand.Rand, slip string) (refused bool) {
	k, rows, more := 2+draw.IntN(5), 2+draw.IntN(4), 1+draw.IntN(2)
	chosen := make([]int32, 0, 2*rows*k)
	for range 2 * rows {
		for _, id := range draw.Perm(64)[:k] {
			chosen = append(chosen, int32(id))
		}
	}
	config := Config{Backend: BackendHost, Layers: 2, K: uint32(k), Experts: 64, Rows: 32}
	source := SourceOf(chosen, uint32(2*rows))
	spans := []Span{{Rows: uint32(rows)}, {SinkRow: uint32(rows), Rows: uint32(rows)}}
	begun, shift := uint32(2*rows), uint32(0)
	switch slip {
	case "smaller K":
		config.K = uint32(max(1, k-more))
	case "larger K":
		config.K = uint32(k + more)
	case "fewer rows":
		source.Rows -= uint32(more)
	case "more rows":
		source.Rows += uint32(more)
	case "columns":
		source.Columns = uint32(k + more)
	case "stride":
		source.RowStride = int64(k + more)
	case "sink row":
		spans[1].SinkRow = 0
	case "span beyond":
		spans[1].Rows += uint32(more)
	case "prefix sum":
		source.LiveRows = ArrayOf([]int32{0, int32(rows), int32(2 * rows)})
	case "row index":
		source.RowIndex = ArrayOf(make([]int32, 2*rows-more))
	case "type": // of twice as many elements
		wide := make([]int64, len(chosen))
		for i, id := range chosen {
			wide[i] = int64(id)
		}
		source.IDs = ArrayOf(unsafe.Slice((*int32)(unsafe.Pointer(&wide[0])), 2*len(wide)))
	case "layer":
		shift = 1
	case "begun":
		begun -= uint32(more)
	case "table":
		table := make([]int32, 32) // of the 64 that there are
		for i := range table {
			table[i] = int32(i)
		}
		source.Table = ArrayOf(table)
	}
	c, err := New(config)
	must(t, err)
	defer c.Close()
	requests := make([]Request, 2)
	must(t, c.OpenBatch(requests, PolicyKeep))
	spans[0].Request, spans[1].Request = requests[0], requests[1]
	failed := func(err error) bool { refused = refused || err != nil; return err != nil }
	if failed(c.Begin(begun, 0)) || failed(c.Record(shift, source, 0)) ||
		failed(c.Record(shift+1, source, 0)) || failed(c.Snapshot(0)) {
		return true
	}
	if _, _, err := c.Issue(spans, IssueOptions{}, nil, 0); failed(err) {
		return true
	}
	for i, request := range requests {
		count := int(spans[i].Rows) // more than there are, if that is the slip
		routing, err := c.Finish(request, uint64(count))
		must(t, err)
		defer routing.Close()
		result, err := routing.Wait(context.Background())
		must(t, err)
		if slip == "copy" {
			_, _, err = CopyTo(routing, DefaultCopyOptions(), make([]int32, count*2*(k+more)), nil)
			failed(err)
		}
		if slip == "column" || slip == "layer of a row" {
			refused = true // by a panic, below
		}
		view, err := routing.View()
		must(t, err)
		for position, row := range view.All() {
			at := (i*rows + int(position)) * k
			for layer := range 2 {
				if got := row.AppendIDs(nil, layer); len(got) > 0 {
					want := make([]int, k)
					for j, id := range chosen[at : at+k] {
						want[j] = int(id)
					}
					if !slices.Equal(got, want) {
						t.Errorf("%s: row %d has %d, not %d", slip, position, got, want)
					}
				}
			}
			switch slip {
			case "column":
				panicsWith(t, func() { row.ID(0, k) }, "column")
			case "layer of a row":
				panicsWith(t, func() { row.ID(2, 0) }, "layer 2 of 2")
			}
		}
		if result.Complete() && !refused && i == 1 {
			t.Errorf("%s: nothing is missing", slip)
		}
	}
	return refused
}

// What a program gets wrong about a shape is refused, or a panic, or rows are missing: never is
// there a row that no router chose.
func TestOfAHundredSlipsNoneGivesARowThatNobodyChose(t *testing.T) {
	slips := []string{
		"smaller K", "larger K", "fewer rows", "more rows", "columns", "stride", "sink row",
		"span beyond", "prefix sum", "row index", "type", "layer", "begun", "table", "copy",
		"column", "layer of a row",
	}
	draw := rand.New(rand.NewPCG(49, 0))
	seen, refused := map[string]bool{}, 0
	for range 100 {
		slip := slips[draw.IntN(len(slips))]
		seen[slip] = true
		if slipped(t, draw, slip) {
			refused++
		}
	}
	if len(seen) != len(slips) || refused < 60 {
		t.Fatalf("%d kinds of slips, %d refused", len(seen), refused)
	}
}
