//go:build cgo

package routecap_test

import (
	"encoding/json"
	"errors"
	"os"
	"slices"
	"testing"

	routecap "github.com/routecap/routecap/bindings/go"
)

// routed is what the router of a layer chose for a token.
func routed(sample, token, layer, column int) uint8 {
	return uint8((977*sample + 31*token + 7*layer + column) % 256)
}

// routingOf is a routing of rows [0, rows) with 2 experts in each layer.
func routingOf(t *testing.T, sample, rows, layers int) *routecap.Routing {
	t.Helper()
	var ids []uint8
	for i := range rows * layers * 2 {
		ids = append(ids, routed(sample, i/2/layers, i/2%layers, i%2))
	}
	view := routecap.View{
		DType:   routecap.DTypeU8,
		Layers:  uint32(layers),
		K:       2,
		Experts: 256,
		Rows:    uint64(rows),
	}
	if rows > 0 {
		view.Segments = []routecap.Segment{{Rows: uint64(rows), IDs8: ids}}
	}
	routing, _, err := routecap.Import(view, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { routing.Close() })
	return routing
}

// Which token every row of every rank is, as slime, verl and Megatron-Core say it:
// tests/plan/golden.
func TestPlansPutTokensWhereTrainersPutThem(t *testing.T) {
	text, err := os.ReadFile("../../tests/plan/golden/layouts.json")
	if err != nil {
		t.Fatal(err)
	}
	var cases []struct {
		By, Layout, Context                                string
		Context_size, Tensor_size                          uint32
		Sequence_parallel, Sequence_first                  bool
		Lengths                                            []uint64
		Align, Align_total, Least_total, Align_rank, Width uint64
		Ranks                                              [][]int64
	}
	if err := json.Unmarshal(text, &cases); err != nil || len(cases) < 50 {
		t.Fatal(err, len(cases))
	}
	layouts := []string{"packed", "padded_right", "padded_left"}
	contexts := []string{"none", "zigzag", "contiguous", "allgather"}
	for _, golden := range cases {
		config := routecap.DefaultPlanConfig()
		config.Layout = routecap.PlanLayout(slices.Index(layouts, golden.Layout))
		config.Context = routecap.PlanContext(slices.Index(contexts, golden.Context))
		config.ContextSize, config.TensorSize = golden.Context_size, golden.Tensor_size
		tensorRanks := uint32(1)
		if golden.Sequence_parallel {
			config.Flags |= routecap.PlanSequenceParallel
			tensorRanks = golden.Tensor_size
		}
		if golden.Sequence_first {
			config.Flags |= routecap.PlanSequenceFirst
		}
		config.Lengths, config.Align, config.AlignTotal = golden.Lengths, golden.Align, golden.Align_total
		config.LeastTotal, config.AlignRank, config.Width = golden.Least_total, golden.Align_rank, golden.Width
		config.LayerMap, config.K, config.Experts = []int32{1, 3}, 2, 256
		config.Order = routecap.OrderLayerMajor
		var sources []routecap.PlanSource
		var tokens [][]int64
		var sample, token []int
		for i, n := range golden.Lengths {
			sources = append(
				sources,
				routecap.PlanSource{Sample: i, Routing: routingOf(t, i, int(n)-1, 5)},
			)
			numbers := make([]int64, n)
			for at := range numbers {
				numbers[at] = int64(len(sample))
				sample, token = append(sample, i), append(token, at)
			}
			tokens = append(tokens, numbers)
		}
		for rank, rows := range golden.Ranks {
			config.ContextRank, config.TensorRank = uint32(
				rank,
			)/tensorRanks, uint32(
				rank,
			)%tensorRanks
			plan, err := routecap.NewPlan[int64](config)
			if err != nil {
				t.Fatal(err)
			}
			shape, err := plan.Describe()
			if err != nil || shape.Rows != uint64(len(rows)) ||
				shape.IDsBytes != uint64(len(rows)*2*2*8) {
				t.Fatal(err, shape, len(rows))
			}
			ids, classes := make([]int64, len(rows)*4), make([]uint8, len(rows)*2)
			report, result, err := plan.Gather(sources, ids, classes)
			if err != nil || result.Status != routecap.OK || report.CellsLost != 0 {
				t.Fatal(report, result, err)
			}
			sent := make([]int64, len(rows))
			if err := routecap.GatherValues(plan, tokens, -1, sent); err != nil {
				t.Fatal(err)
			}
			for r, number := range rows {
				for l := range 2 {
					cell := l*len(rows) + r
					if valid := classes[cell] == uint8(routecap.PlanClassValid); valid != (number >= 0) {
						t.Fatalf(
							"%s: row %d of rank %d is of class %d",
							golden.By,
							r,
							rank,
							classes[cell],
						)
					}
					for column := range 2 {
						if number >= 0 &&
							ids[cell*2+column] != int64(
								routed(sample[number], token[number], 1+2*l, column),
							) {
							t.Fatalf(
								"%s: row %d of rank %d has id %d",
								golden.By,
								r,
								rank,
								ids[cell*2+column],
							)
						}
					}
				}
				if number >= 0 && sent[r] != number {
					t.Fatalf(
						"%s: row %d of rank %d is token %d, not %d",
						golden.By,
						r,
						rank,
						sent[r],
						number,
					)
				}
			}
			packed := make([]byte, shape.PackedBytes)
			if _, _, err := plan.Pack(sources, packed); err != nil {
				t.Fatal(err)
			}
			again, againClasses := make([]int64, len(ids)), make([]uint8, len(classes))
			if err := plan.UnpackOnHost(packed, again, againClasses); err != nil ||
				!slices.Equal(ids, again) ||
				!slices.Equal(classes, againClasses) {
				t.Fatal("what is unpacked is not what is gathered", err)
			}
			ranges, err := plan.Ranges()
			if err != nil || uint64(len(ranges)) != shape.Ranges {
				t.Fatal(err)
			}
			plan.Close()
		}
	}
}

// What small plans with holes gather, cell by cell: tests/plan/golden/gathers.json.
func TestPlansGatherTheGoldenCells(t *testing.T) {
	text, err := os.ReadFile("../../tests/plan/golden/gathers.json")
	if err != nil {
		t.Fatal(err)
	}
	var cases []struct {
		Lengths, Needed             []uint64
		Layers                      []int32
		K, Experts, Expert_parallel uint32
		Layout, Context, Order      string
		Context_size, Tensor_size   uint32
		Sequence_parallel           bool
		Align                       uint64
		Fill                        *int64
		Lost                        int64
		Valid, Weighted             [][]int
		Ranks                       []struct {
			Ids              []int64
			Classes          []int
			Cells_lost       uint64
			Weights          []float32
			Cells_unweighted uint64
		}
	}
	if err := json.Unmarshal(text, &cases); err != nil || len(cases) < 5 {
		t.Fatal(err, len(cases))
	}
	for _, golden := range cases {
		config := routecap.DefaultPlanConfig()
		config.Layout = routecap.PlanLayout(
			slices.Index([]string{"packed", "padded_right"}, golden.Layout),
		)
		config.Context = routecap.PlanContext(
			slices.Index([]string{"none", "zigzag", "contiguous"}, golden.Context),
		)
		config.Order = routecap.Order(
			slices.Index([]string{"row_major", "layer_major"}, golden.Order),
		)
		config.ContextSize, config.TensorSize = golden.Context_size, golden.Tensor_size
		tensorRanks := uint32(1)
		if golden.Sequence_parallel {
			config.Flags |= routecap.PlanSequenceParallel
			tensorRanks = golden.Tensor_size
		}
		config.Lengths, config.Needed, config.LayerMap = golden.Lengths, golden.Needed, golden.Layers
		config.K, config.Experts, config.ExpertParallel = golden.K, golden.Experts, golden.Expert_parallel
		config.Align, config.LostValue = golden.Align, golden.Lost
		if golden.Fill != nil {
			config.Fill, config.FillValue = routecap.PlanFillValue, *golden.Fill
		}
		var sources []routecap.PlanSource
		for sample, bits := range golden.Valid {
			var ids, validity, weighted []uint8
			var weights []float32
			for token, valid := range bits {
				validity = append(validity, uint8(valid))
				weighted = append(weighted, uint8(golden.Weighted[sample][token]))
				for cell := range 5 * int(golden.K) {
					layer, column := cell/int(golden.K), cell%int(golden.K)
					weights = append(weights, float32(1000*sample+100*token+10*layer+column+1))
					ids = append(
						ids,
						uint8((977*sample+31*token+7*layer+column)%int(golden.Experts)),
					)
				}
			}
			view := routecap.View{
				DType:   routecap.DTypeU8,
				Layers:  5,
				K:       golden.K,
				Experts: golden.Experts,
				Rows:    uint64(len(bits)),

				WeightsDType: routecap.DTypeF32,
			}
			if len(bits) > 0 {
				view.Segments = []routecap.Segment{{
					Rows:            uint64(len(bits)),
					IDs8:            ids,
					Validity:        validity,
					Weights32:       weights,
					WeightsValidity: weighted,
				}}
			}
			routing, _, err := routecap.Import(view, 0)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { routing.Close() })
			sources = append(sources, routecap.PlanSource{Sample: sample, Routing: routing})
		}
		for rank, expected := range golden.Ranks {
			config.ContextRank, config.TensorRank = uint32(
				rank,
			)/tensorRanks, uint32(
				rank,
			)%tensorRanks
			plan, err := routecap.NewPlan[int64](config)
			if err != nil {
				t.Fatal(err)
			}
			ids, classes := make([]int64, len(expected.Ids)), make([]uint8, len(expected.Classes))
			report, _, err := plan.Gather(sources, ids, classes)
			if err != nil || report.CellsLost != expected.Cells_lost ||
				!slices.Equal(ids, expected.Ids) {
				t.Fatalf(
					"rank %d of %v: %v, %v, %v instead of %v",
					rank,
					golden,
					err,
					report,
					ids,
					expected,
				)
			}
			weights := make([]float32, len(expected.Weights))
			missing, _, err := routecap.GatherWeights(plan, sources, routecap.DTypeF32, -1, weights)
			if err != nil || missing != expected.Cells_unweighted ||
				!slices.Equal(weights, expected.Weights) {
				t.Fatalf("rank %d of %v: %v, %v, %v", rank, golden, err, missing, weights)
			}
			for at, class := range expected.Classes {
				if int(classes[at]) != class {
					t.Fatalf(
						"rank %d: cell %d is of class %d, not %d",
						rank,
						at,
						classes[at],
						class,
					)
				}
			}
			plan.Close()
		}
	}
}

// What layers with rules of their own gather, pack and give back: tests/plan/golden/fewer.json.
func TestAPlanGathersTheGoldenCellsWithFewerExperts(t *testing.T) {
	text, err := os.ReadFile("../../tests/plan/golden/fewer.json")
	if err != nil {
		t.Fatal(err)
	}
	var cases []struct {
		Lengths              []uint64
		Layers               []int32
		Visits               []uint32
		Layer_k, Layer_min_k []uint32
		K, Experts           uint32
		None, Lost           int64
		Fill                 *int64
		Order                string
		Cells                [][][]*[]int
		Ids                  []int64
		Classes              []int
		Cells_lost           uint64
	}
	if err := json.Unmarshal(text, &cases); err != nil || len(cases) == 0 {
		t.Fatal(err, len(cases))
	}
	for _, golden := range cases {
		config := routecap.DefaultPlanConfig()
		config.Lengths, config.LayerMap, config.LayerVisit = golden.Lengths, golden.Layers, golden.Visits
		config.LayerK, config.LayerMinK = golden.Layer_k, golden.Layer_min_k
		config.K, config.Experts, config.NoneValue, config.LostValue = golden.K, golden.Experts, golden.None, golden.Lost
		if golden.Order == "layer_major" {
			config.Order = routecap.OrderLayerMajor
		}
		if golden.Fill != nil {
			config.Fill, config.FillValue = routecap.PlanFillValue, *golden.Fill
		}
		var sources []routecap.PlanSource
		for sample, rows := range golden.Cells {
			var ids, validity []uint8
			for _, row := range rows {
				valid := uint8(0)
				for layer, cell := range row {
					columns := slices.Repeat([]uint8{255}, int(golden.K))
					if cell != nil {
						valid |= 1 << layer
						for column, id := range *cell {
							columns[column] = uint8(id)
						}
					}
					ids = append(ids, columns...)
				}
				validity = append(validity, valid)
			}
			view := routecap.View{
				DType: routecap.DTypeU8, Layers: uint32(len(golden.Layers)), K: golden.K, Experts: golden.Experts, Rows: uint64(len(rows)),
				LayerMap: golden.Layers, LayerVisit: golden.Visits, LayerK: golden.Layer_k, LayerMinK: golden.Layer_min_k,
			}
			if len(rows) > 0 {
				view.Segments = []routecap.Segment{{Rows: uint64(len(rows)), IDs8: ids, Validity: validity}}
			}
			routing, _, err := routecap.Import(view, 0)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { routing.Close() })
			expectCells(t, routing, golden.Cells[sample])
			sources = append(sources, routecap.PlanSource{Sample: sample, Routing: routing})
		}
		plan, err := routecap.NewPlan[int64](config)
		if err != nil {
			t.Fatal(err)
		}
		ids, classes := make([]int64, len(golden.Ids)), make([]uint8, len(golden.Classes))
		report, _, err := plan.Gather(sources, ids, classes)
		if err != nil || report.CellsLost != golden.Cells_lost || !slices.Equal(ids, golden.Ids) {
			t.Fatal(err, report, ids, golden.Ids)
		}
		for at, class := range golden.Classes {
			if int(classes[at]) != class {
				t.Fatal(at, classes, golden.Classes)
			}
		}
		shape, err := plan.Describe()
		if err != nil {
			t.Fatal(err)
		}
		packed := make([]byte, shape.PackedBytes)
		if _, _, err := plan.Pack(sources, packed); err != nil {
			t.Fatal(err)
		}
		clear(ids)
		if err := plan.UnpackOnHost(packed, ids, nil); err != nil || !slices.Equal(ids, golden.Ids) {
			t.Fatal(err, ids)
		}
		routings, _, err := plan.Scatter(ids, classes)
		if err != nil {
			t.Fatal(err)
		}
		for sample, routing := range routings {
			expectCells(t, routing, golden.Cells[sample])
			routing.Close()
		}
		plan.Close()
	}
}

// expectCells compares the first rows of a routing, and counts the experts of each cell.
func expectCells(t *testing.T, routing *routecap.Routing, rows [][]*[]int) {
	t.Helper()
	view, err := routing.View()
	if err != nil {
		t.Fatal(err)
	}
	for position, row := range view.All() {
		if position >= uint64(len(rows)) {
			break
		}
		for layer, cell := range rows[position] {
			var wanted []int
			for column := range int(view.K) {
				switch id := row.ID(layer, column); {
				case cell == nil && id != -1, cell != nil && column >= len(*cell) && id != routecap.NoExpert:
					t.Fatal(position, layer, column, id)
				case cell != nil && column < len(*cell):
					wanted = append(wanted, (*cell)[column])
				}
			}
			if row.Valid(layer) != (cell != nil) || row.Count(layer) != len(wanted) || !slices.Equal(row.AppendIDs(nil, layer), wanted) {
				t.Fatal(position, layer, row.AppendIDs(nil, layer), wanted)
			}
		}
	}
}

func TestAPlanScattersWhatItGathers(t *testing.T) {
	config := routecap.DefaultPlanConfig()
	config.CuLengths, config.LayerMap, config.K, config.Experts = []uint64{
		0,
		6,
		10,
	}, []int32{
		0,
		2,
	}, 2, 256
	plan, err := routecap.NewPlan[int16](config)
	if err != nil {
		t.Fatal(err)
	}
	defer plan.Close()
	ids, classes := make([]int16, 10*2*2), make([]uint8, 10*2)
	report, result, err := plan.Gather(
		[]routecap.PlanSource{{0, routingOf(t, 0, 5, 3)}},
		ids,
		classes,
	)
	if err != nil || result.Status != routecap.Incomplete || report.RowsLost != 3 ||
		ids[6*4] != -1 {
		t.Fatal(report, result, err, ids)
	}
	routings, result, err := plan.Scatter(ids, classes)
	if err != nil || result.Status != routecap.Incomplete || len(routings) != 2 {
		t.Fatal(routings, result, err)
	}
	for i, rows := range []uint64{6, 4} {
		view, err := routings[i].View()
		if err != nil || view.Rows != rows || !slices.Equal(view.LayerMap, []int32{0, 2}) {
			t.Fatal(view, err)
		}
		routings[i].Close()
	}
	plan.Close()
	if _, err := plan.Describe(); !errors.Is(err, routecap.ErrClosed) {
		t.Fatal(err)
	}
}

func TestAPlanRefusesWhatDoesNotFit(t *testing.T) {
	for name, change := range map[string]func(*routecap.PlanConfig){
		"Needed":       func(c *routecap.PlanConfig) { c.Needed = []uint64{1} },
		"LayerExperts": func(c *routecap.PlanConfig) { c.LayerExperts = []uint32{8, 8, 8} },
		"multiple": func(c *routecap.PlanConfig) {
			c.Context, c.ContextSize, c.Align = routecap.PlanContextZigzag, 2, 1
			c.ContextRank = 0
		},
		"ContextRank": func(c *routecap.PlanConfig) {
			c.Context, c.ContextSize = routecap.PlanContextZigzag, 2
		},
		"TensorRank": func(c *routecap.PlanConfig) {
			c.Flags, c.TensorSize = routecap.PlanSequenceParallel, 2
		},
	} {
		config := routecap.DefaultPlanConfig()
		config.Lengths, config.Layers, config.K, config.Experts = []uint64{3, 4}, 2, 2, 256
		change(&config)
		if _, err := routecap.NewPlan[int64](config); !errors.Is(err, routecap.ErrShapeMismatch) &&
			!errors.Is(err, routecap.ErrArgument) {
			t.Fatal(name, err)
		}
	}
	config := routecap.DefaultPlanConfig()
	config.Lengths, config.Layers, config.K, config.Experts = []uint64{3}, 1, 2, 257
	if _, err := routecap.NewPlan[uint8](config); !errors.Is(err, routecap.ErrDType) {
		t.Fatal(err)
	}
	plan, err := routecap.NewPlan[int64](config)
	if err != nil {
		t.Fatal(err)
	}
	defer plan.Close()
	if err := routecap.GatherValues(plan, [][]int32{{1, 2}}, 0, make([]int32, 3)); !errors.Is(
		err,
		routecap.ErrShapeMismatch,
	) {
		t.Fatal(err)
	}
	if err := plan.UnpackOnHost(make([]byte, 1<<20), make([]int64, 6), nil); !errors.Is(
		err,
		routecap.ErrState,
	) {
		t.Fatal(err)
	}
}

func TestASliceHasTheRowsAndNoOthers(t *testing.T) {
	whole := routingOf(t, 1, 9, 2)
	data, err := whole.MarshalBinary()
	if err != nil {
		t.Fatal(err)
	}
	cut, err := routecap.SliceSerialized(data, 3, 4)
	if err != nil {
		t.Fatal(err)
	}
	var joined []byte
	for _, piece := range cut.Pieces {
		source := data
		if piece.Source == routecap.PieceHeader {
			source = cut.Header
		}
		joined = append(joined, source[piece.Offset:piece.Offset+piece.Bytes]...)
	}
	part, err := whole.Slice(3, 4)
	if err != nil {
		t.Fatal(err)
	}
	defer part.Close()
	if expected, _ := part.MarshalBinary(); !slices.Equal(joined, expected) {
		t.Fatal("the slice has other rows")
	}
	if _, err := routecap.SliceSerialized(data, 8, 2); !errors.Is(err, routecap.ErrOutOfRange) {
		t.Fatal(err)
	}
}
