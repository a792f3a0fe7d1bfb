//go:build cgo

package routecap

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
)

// weighted is a capturer of one layer, two experts of eight for each token.
func weighted(t *testing.T, dtype DType) *Capturer {
	t.Helper()
	config := DefaultConfig()
	config.Backend, config.Layers, config.K, config.Experts, config.Rows = BackendHost, 1, 2, 8, 4
	config.WeightsDType = dtype
	c, err := New(config)
	must(t, err)
	t.Cleanup(func() { c.Close() })
	return c
}

// rowsOf is what `record` leaves of two rows.
func rowsOf(t *testing.T, c *Capturer, record func() error) *Routing {
	t.Helper()
	request, err := c.Open(PolicyKeep)
	must(t, err)
	must(t, c.Begin(2, 0))
	must(t, record())
	must(t, c.Snapshot(0))
	_, _, err = c.Issue([]Span{{Request: request, Rows: 2}}, IssueOptions{}, nil, 0)
	must(t, err)
	routing, err := c.Finish(request, RowsAll)
	must(t, err)
	t.Cleanup(func() { routing.Close() })
	_, err = routing.Wait(context.Background())
	must(t, err)
	return routing
}

func refusedWith(t *testing.T, err, kind error, text string) {
	t.Helper()
	if !errors.Is(err, kind) || !strings.Contains(fmt.Sprint(err), text) {
		t.Errorf("%v, and not %v with %q", err, kind, text)
	}
}

var weightedIDs = []int32{3, 1, 7, 0}

func TestWeightsOfEachTypeAreReadAsTheyWereRecorded(t *testing.T) {
	values := []float32{0.5, float32(math.Inf(1)), -1, 3}
	c := weighted(t, DTypeF32)
	routing := rowsOf(t, c, func() error {
		source := SourceOf(weightedIDs, 2)
		source.Weights = ArrayOf(values)
		return c.Record(0, source, 0)
	})
	view, err := routing.View()
	must(t, err)
	for position, row := range view.All() {
		if got := row.Weights32(0); !slices.Equal(got, values[2*position:2*position+2]) {
			t.Error(position, got)
		}
	}
	coverage, _, err := routing.Coverage(nil)
	must(t, err)
	copied, mask := make([]float32, 4), make([]uint8, 2)
	_, result, err := CopyWeights(routing, DefaultCopyOptions(), copied, mask)
	if err != nil || result.Status != OK || coverage.CellsWeighted != 2 ||
		!slices.Equal(copied, values) || !slices.Equal(mask, []uint8{1, 1}) {
		t.Error(err, result, coverage, copied, mask)
	}

	halves := []uint16{0x3c00, 0x4000, 0x7e00, 0} // the third is NaN
	c = weighted(t, DTypeF16)
	routing = rowsOf(t, c, func() error {
		layer := LayerSource{IDs: ArrayOf(weightedIDs), Weights: ArrayOf(halves).As(DTypeF16)}
		return c.RecordLayers(Source{Rows: 2}, []LayerSource{layer}, 0)
	})
	view, err = routing.View()
	must(t, err)
	rows := map[uint64]Row{}
	for position, row := range view.All() {
		rows[position] = row
	}
	if view.WeightsDType != DTypeF16 || !slices.Equal(rows[0].Weights16(0), halves[:2]) ||
		rows[0].Weights32(0) != nil {
		t.Error(view.WeightsDType, rows[0].Weights16(0))
	}
	if rows[1].Weighted(0) || rows[1].Weights16(0) != nil || rows[1].Count(0) != 2 {
		t.Error("a cell with a NaN has weights, or no ids")
	}
	wide := make([]float32, 4)
	_, result, err = CopyWeights(routing, DefaultCopyOptions(), wide, mask)
	if err != nil || result.Status != Incomplete || wide[0] != 1 || wide[1] != 2 ||
		wide[2] == wide[2] || !slices.Equal(mask, []uint8{1, 0}) {
		t.Error(err, result, wide, mask)
	}
	data, err := routing.MarshalBinary()
	must(t, err)
	if info, err := SerializedInfo(data); err != nil || info.WeightsDType != DTypeF16 {
		t.Error(info, err)
	}
}

func TestThereAreAsManyWeightsAsExperts(t *testing.T) {
	nan := float32(math.NaN())
	config := DefaultConfig()
	config.Backend, config.Layers, config.K, config.Experts, config.Rows = BackendHost, 1, 2, 8, 4
	config.WeightsDType, config.LayerMinK = DTypeF32, []uint32{0}
	c, err := New(config)
	must(t, err)
	defer c.Close()
	routing := rowsOf(t, c, func() error {
		source := SourceOf([]int32{3, -1, -1, -1}, 2)
		source.None, source.Weights = -1, ArrayOf([]float32{0.5, nan, nan, 1})
		return c.Record(0, source, 0)
	})
	view, err := routing.View()
	must(t, err)
	for position, row := range view.All() {
		want := [][]float32{{0.5}, {}}[position]
		if got := row.Weights32(0); got == nil || !slices.Equal(got, want) {
			t.Error(position, got)
		}
	}
	copied := make([]float32, 4)
	_, _, err = CopyWeights(routing, DefaultCopyOptions(), copied, nil)
	if err != nil || !slices.Equal(copied, []float32{0.5, 0, 0, 0}) {
		t.Error(err, copied)
	}
}

func TestARouterWritesWeightsBesideItsIDs(t *testing.T) {
	c := weighted(t, DTypeBF16)
	routing := rowsOf(t, c, func() error {
		ids, _, err := SinkSlice[int16](c, 0)
		must(t, err)
		copy(ids, []int16{3, 1, 7, 0})
		weights, stride, err := SinkWeights[uint16](c, 0)
		must(t, err)
		if stride != 2 || weights[0]&0x7fff <= 0x7f80 {
			t.Error(stride, weights)
		}
		copy(weights, []uint16{0x3f80, 0x4000})
		return nil
	})
	view, err := routing.View()
	must(t, err)
	for position, row := range view.All() {
		if row.Weighted(0) != (position == 0) || !row.Valid(0) {
			t.Error(position, row.Weights16(0))
		}
	}
	_, _, err = SinkWeights[float32](c, 0)
	refusedWith(t, err, ErrDType, "weights have dtype")
	_, _, err = SinkWeights[uint16](weighted(t, 0), 0)
	refusedWith(t, err, ErrState, "no sink for weights")
}

// Weights that are as long as other rows would be read as those of other tokens.
func TestWeightsOfAnotherLengthTypeOrPlaceAreRefused(t *testing.T) {
	c := weighted(t, DTypeF32)
	must(t, c.Begin(2, 0))
	values := []float32{1, 2, 3, 4}
	record := func(change func(*Source)) error {
		source := SourceOf(weightedIDs, 2)
		source.Weights = ArrayOf(values)
		change(&source)
		return c.Record(0, source, 0)
	}
	for _, change := range []func(*Source){
		func(s *Source) { s.Weights = ArrayOf(values[:3]) },
		func(s *Source) { s.Weights = ArrayOf(values).From(1) },
		func(s *Source) { s.WeightsRowStride = 3 },
		func(s *Source) { s.Rows, s.Columns, s.Weights = 1, 4, ArrayOf(values[:2]) },
	} {
		refusedWith(t, record(change), ErrShapeMismatch, "Weights has")
	}
	halves := ArrayOf(make([]uint16, 4)).As(DTypeF16)
	refusedWith(t, record(func(s *Source) { s.Weights = halves }), ErrDType, "weights_dtype")
	refusedWith(t, record(func(s *Source) { s.WeightsRowStride = -2 }), ErrArgument, "WeightsRowStride")
	layers := []LayerSource{{IDs: ArrayOf(weightedIDs), Weights: ArrayOf(values[:3])}}
	err := c.RecordLayers(Source{Rows: 2}, layers, 0)
	refusedWith(t, err, ErrShapeMismatch, "Weights has 3 elements, not 4")

	c = weighted(t, DTypeF32)
	request, err := c.Open(PolicyKeep)
	must(t, err)
	later := IssueOptions{Snapshot: SnapshotLater}
	step, _, err := c.Issue([]Span{{Request: request, Rows: 2}}, later, nil, 0)
	must(t, err)
	arrive := func(weights Array) error {
		return c.Arrive(step, &ArrivedRows{IDs: ArrayOf(weightedIDs), Rows: 2, Weights: weights})
	}
	refusedWith(t, arrive(ArrayOf(values[:3])), ErrShapeMismatch, "Weights has 3")
	refusedWith(t, arrive(halves), ErrDType, "Weights has dtype")
	must(t, arrive(ArrayOf(values)))
	routing, err := c.Finish(request, RowsAll)
	must(t, err)
	defer routing.Close()
	_, err = routing.Wait(context.Background())
	must(t, err)
	_, _, err = CopyWeights(routing, DefaultCopyOptions(), make([]float32, 5), nil)
	refusedWith(t, err, ErrShapeMismatch, "dst has 5 elements, not 4")
	_, _, err = CopyWeights(routing, DefaultCopyOptions(), make([]uint16, 4), nil)
	refusedWith(t, err, ErrDType, "no half")
}

func TestImportedWeightsHaveOneTypeAndTheLengthOfTheirRows(t *testing.T) {
	segment := Segment{Rows: 2, IDs8: []uint8{3, 1, 7, 0}, Weights32: []float32{1, 2, 3, 4}}
	imported := func(change func(*View, *Segment)) (*Routing, error) {
		view, s := View{DType: DTypeU8, WeightsDType: DTypeF32, Layers: 1, K: 2, Experts: 8, Rows: 2}, segment
		change(&view, &s)
		view.Segments = []Segment{s}
		routing, _, err := Import(view, 0)
		return routing, err
	}
	for text, change := range map[string]func(*View, *Segment){
		"weights of segment 0 has 3":         func(_ *View, s *Segment) { s.Weights32 = s.Weights32[:3] },
		"WeightsValidity of segment 0 has 1": func(_ *View, s *Segment) { s.WeightsValidity = []uint8{1} },
	} {
		_, err := imported(change)
		refusedWith(t, err, ErrArgument, text)
	}
	_, err := imported(func(_ *View, s *Segment) { s.Weights32, s.Weights16 = nil, make([]uint16, 4) })
	refusedWith(t, err, ErrDType, "another type than the view")
	routing, err := imported(func(_ *View, s *Segment) { s.WeightsValidity = []uint8{1, 0} })
	must(t, err)
	defer routing.Close()
	view, err := routing.View()
	must(t, err)
	again, _, err := Import(view, 0) // a view is what Import takes
	must(t, err)
	defer again.Close()
	for _, r := range []*Routing{routing, again} {
		copied := make([]float32, 4)
		_, _, err = CopyWeights(r, DefaultCopyOptions(), copied, nil)
		if err != nil || !slices.Equal(copied[:2], []float32{1, 2}) || copied[2] == copied[2] {
			t.Error(err, copied)
		}
	}
}

func TestAPlanGathersWeightsWhereItGathersIDs(t *testing.T) {
	routing, _, err := Import(View{
		DType: DTypeU8, WeightsDType: DTypeBF16, Layers: 1, K: 2, Experts: 8, Rows: 4,
		Segments: []Segment{{
			Rows: 4, IDs8: []uint8{3, 1, 7, 0, 2, 4, 6, 5},
			Weights16:       []uint16{0x3f80, 0x4000, 0x4040, 0x4080, 0x40a0, 0x40c0, 0x40e0, 0x4100},
			WeightsValidity: []uint8{1, 0, 1, 1},
		}},
	}, 0)
	must(t, err)
	defer routing.Close()
	// Five tokens, of which the last is not needed, and three rows of padding.
	config := DefaultPlanConfig()
	config.Lengths, config.Layers, config.K, config.Experts, config.Align = []uint64{5}, 1, 2, 8, 8
	plan, err := NewPlan[int32](config)
	must(t, err)
	defer plan.Close()
	sources := []PlanSource{{0, routing}}
	dst := make([]float32, 16)
	missing, result, err := GatherWeights(plan, sources, DTypeF32, -1, dst)
	want := []float32{1, 2, -1, -1, 5, 6, 7, 8, 0, 0, 0, 0, 0, 0, 0, 0}
	if err != nil || result.Status != Incomplete || missing != 1 || !slices.Equal(dst, want) {
		t.Error(missing, result, err, dst)
	}
	halves := make([]uint16, 16)
	missing, _, err = GatherWeights(plan, sources, DTypeBF16, -1, halves)
	if err != nil || missing != 1 || halves[0] != 0x3f80 || halves[2] != 0xbf80 || halves[7] != 0x4100 {
		t.Error(missing, err, halves)
	}
	_, _, err = GatherWeights(plan, sources, DTypeF16, 0, halves)
	refusedWith(t, err, ErrDType, "as F32")
	_, _, err = GatherWeights(plan, sources, DTypeF32, 0, halves)
	refusedWith(t, err, ErrDType, "dst is not of dtype")
	_, _, err = GatherWeights(plan, sources, DTypeF32, 0, make([]float32, 17))
	refusedWith(t, err, ErrShapeMismatch, "dst has 17 elements, not 16")
	_, _, err = GatherWeights(plan, sources, DTypeF32, 0, make([]float32, 15))
	refusedWith(t, err, ErrBufferTooSmall, "")
}

func TestAMessageWithoutWeightsIsALoss(t *testing.T) {
	routing, _, err := Import(View{
		DType: DTypeU8, WeightsDType: DTypeF32, Layers: 1, K: 2, Experts: 8, Rows: 1,
		Segments: []Segment{{Rows: 1, IDs8: []uint8{3, 1}, Weights32: []float32{1, 2}}},
	}, 0)
	must(t, err)
	defer routing.Close()
	options := WireOptions{Format: WireLists}
	_, _, err = routing.EncodeWire(options)
	refusedWith(t, err, ErrLossy, "weights")
	options.Allow = WireFactWeights
	data, report, err := routing.EncodeWire(options)
	if err != nil || string(data) != "[[[3,1]]]" || report.Lost != WireFactWeights {
		t.Error(string(data), report, err)
	}
}
