//go:build cgo

package routecap

import (
	"cmp"
	"fmt"
	"unsafe"
)

// Source is the expert ids as a router leaves them: a matrix of Rows x Columns elements
// (routecap_source).
//
// IDs has exactly Rows x Columns elements, one after another, or RowStride or ColumnStride says how
// they lie in a longer array. Another length is ErrShapeMismatch: a capturer whose K is not the
// model's would read rows of something else.
//
// What it takes to make ids of the capturer from them: columns at and after the layer's K are
// dropped (fused shared experts); then columns with None, if that is said, are set aside; then Table, if there is one, replaces an id by Table[id], and an
// id outside the table becomes invalid; then Offset is added. An id that is outside the layer's
// range in the end makes its cell missing; nothing wraps.
type Source struct {
	// of int16, int32, uint32, int64 or DTypeID16BF16, beginning at row 0, column 0
	IDs Array
	// elements from one row to the next; 0 means Columns; arbitrary if there is one row
	RowStride    int64
	ColumnStride int64  // elements from one column to the next; 0 means 1
	Rows         uint32 // rows present, or the most of them where LiveRows is set
	// columns present (routecap_source.k_source), at least the layer's K, which 0 means; of several
	// layers, the largest
	Columns  uint32
	LiveRows Array // one int32: only the first so many rows hold ids; none: all
	RowBase  Array // one int32, added to FirstRow
	// [Rows] of int32: the sink row of each source row, negative for none; FirstRow is not used
	// then. None: in order
	RowIndex Array
	FirstRow uint32 // sink row of source row 0
	Offset   int32  // added to each id
	// of int32: the id of each source id, a placement's physical-to-logical table
	Table Array
	Flags SourceFlags
	// the weight of each id, in adjacent columns, to be recorded with the ids: exactly Rows x Columns
	// elements of the capturer's WeightsDType (of halves uint16, with As), or as WeightsRowStride says.
	// None: they are missing, but with DTypeID16BF16 and DTypeBF16 those in the ids are recorded
	Weights Array
	// elements from one row of Weights to the next; 0 means Columns
	WeightsRowStride int64
	// the number that says that no expert was chosen, such as -1 or the number of experts, in columns
	// behind those of the experts; only where LayerMinK allows fewer. 0: no number does, and such a
	// cell is missing
	None int32
}

// SourceOf makes a source of a slice, for a capturer on the host backend: `rows` rows of ids, K in
// each, one after another and nothing else. What is laid out otherwise has its fields set: Columns
// where a row has more than K, as with fused shared experts.
//
// The slice is the caller's again when the call that it is passed to returns: it is pinned until
// then.
// For memory of a device there is Source{IDs: DeviceArray(...)}.
func SourceOf[T ~int16 | ~int32 | ~uint32 | ~int64](ids []T, rows uint32) Source {
	return Source{IDs: ArrayOf(ids), Rows: rows}
}

// pass returns the source as C has it; where ids and tables belong to layers, it has none.
func (s *Source) pass(a *arrays, k uint32) cSource {
	table, tableSize := a.table("Table", s.Table)
	return cSource{
		structSize:   uint32(unsafe.Sizeof(cSource{})),
		dtype:        s.IDs.dtype,
		ids:          s.passIDs(a, k, s.IDs),
		idsBytes:     s.IDs.bytes(),
		rowStride:    s.RowStride,
		columnStride: s.ColumnStride,
		rows:         s.Rows,
		kSource:      cmp.Or(s.Columns, k),
		liveRows:     a.number("LiveRows", s.LiveRows, DTypeI32),
		rowBase:      a.number("RowBase", s.RowBase, DTypeI32),
		rowIndex:     a.perRow("RowIndex", s.RowIndex, DTypeI32, s.Rows),
		firstRow:     s.FirstRow,
		offset:       s.Offset,
		table:        table,
		tableSize:    uint32(tableSize),
		flags:        s.Flags,
		none:         s.None,

		weightsDType:     s.Weights.dtype,
		weights:          s.passWeights(a, k, s.Weights),
		weightsRowStride: s.WeightsRowStride,
		weightsBytes:     s.Weights.bytes(),
	}
}

func (s *Source) passWeights(a *arrays, k uint32, weights Array) DevicePointer {
	if weights.none() {
		return 0
	}
	if s.WeightsRowStride < 0 {
		return a.refuse(ErrArgument, "WeightsRowStride is %d", s.WeightsRowStride)
	}
	columns := cmp.Or(s.Columns, k)
	return a.matrix("Weights", weights, shape{s.Rows, columns, s.WeightsRowStride, 0, "one for each of the ids"})
}

func (s *Source) passIDs(a *arrays, k uint32, ids Array) DevicePointer {
	columns := cmp.Or(s.Columns, k)
	says := "Rows x Columns"
	if s.Columns == 0 {
		says = "Rows x K of the layer; set Columns where the rows have more"
	}
	return a.matrix("IDs", ids, shape{s.Rows, columns, s.RowStride, s.ColumnStride, says})
}

// Record copies the ids that a router chose into the sink of one layer (routecap_layer_record).
// Call it after top-k and before anything rewrites the ids, between Begin and Snapshot. The header
// says which other ways there are, and when they are cheaper.
//
// Rows of one layer may come in several calls as long as they are disjoint: of a row recorded twice
// one is kept. Rows at or beyond the number begun are dropped and counted. On the host backend the
// ids are copied before the call returns; on the CUDA backend it may be part of a graph.
//
// Errors: ErrUnknownLayer; ErrDType; ErrShapeMismatch, fewer columns than K, or an array that is
// not as long as what is read; ErrCapacity, rows outside the sink; ErrConflict; ErrState, the layer
// has no sink, or Weights are given and it has none for them.
func (c *Capturer) Record(layer uint32, source Source, stream Stream) error {
	_, err := c.callWithArrays("routecap_layer_record", func(p unsafe.Pointer, a *arrays) Result {
		cc := source.pass(a, c.kOf(layer))
		if a.refused.Status != OK {
			return a.refused
		}
		return routecap_layer_record(p, layer, &cc, stream)
	})
	return err
}

// LayerSource is the ids of one layer among several (routecap_layer_source).
type LayerSource struct {
	Layer uint32
	IDs   Array // as in Source
	Table Array // as in Source, of one length in all layers
	// as in Source, of one dtype in all layers; none: the weights of this layer are missing
	Weights Array
}

// RecordLayers copies the ids of several layers in one launch, each layer once, where all of them
// still exist at the end of a forward pass (routecap_layers_record). `common` says what they have
// in common; its IDs, Table and Weights are none. If one of them is refused, nothing is recorded. With
// SourceWholeStep in Flags the call is the whole step: leave Begin and Snapshot out.
//
// Errors: as Record; ErrArgument, a layer twice.
func (c *Capturer) RecordLayers(common Source, layers []LayerSource, stream Stream) error {
	_, err := c.callWithArrays("routecap_layers_record", func(p unsafe.Pointer, a *arrays) Result {
		if !common.IDs.none() || !common.Table.none() || !common.Weights.none() {
			return Result{ErrArgument, "IDs, Table and Weights belong to each layer"}
		}
		var k uint32
		for _, l := range layers {
			k = max(k, c.kOf(l.Layer))
		}
		k = cmp.Or(k, c.config.K)
		cc := common.pass(a, k)
		cc.dtype = DTypeI32 // of no layers at all
		list := make([]cLayerSource, len(layers))
		for i, l := range layers {
			table, tableSize := a.table("Table", l.Table)
			switch {
			case i == 0:
				cc.dtype, cc.tableSize = l.IDs.dtype, uint32(tableSize)
			case cc.dtype != l.IDs.dtype:
				a.refuse(ErrDType, "the ids of all layers have one dtype")
			case cc.tableSize != uint32(tableSize):
				a.refuse(ErrArgument, "the tables of all layers have one length")
			}
			if bytes := l.IDs.bytes(); i == 0 || bytes < cc.idsBytes {
				cc.idsBytes = bytes
			}
			list[i] = cLayerSource{
				layer:   l.Layer,
				ids:     common.passIDs(a, k, l.IDs),
				table:   table,
				weights: common.passWeights(a, k, l.Weights),
			}
			if l.Weights.none() {
				continue
			}
			if cc.weightsDType == 0 {
				cc.weightsDType, cc.weightsBytes = l.Weights.dtype, l.Weights.bytes()
			}
			cc.weightsBytes = min(cc.weightsBytes, l.Weights.bytes())
			if cc.weightsDType != l.Weights.dtype {
				a.refuse(ErrDType, "the weights of all layers have one dtype")
			}
		}
		if a.refused.Status != OK {
			return a.refused
		}
		return routecap_layers_record(
			p,
			&cc,
			unsafe.SliceData(list),
			unsafe.Sizeof(cLayerSource{}),
			uintptr(len(list)),
			stream,
		)
	})
	return err
}

// Router is how a router chooses K of its experts (routecap_router). The key of an expert is its
// score plus its bias. With groups, only experts of the GroupsKept groups with the largest group
// scores remain. The K largest keys win; of equal ones the lower id.
type Router struct {
	Score      Score
	GroupScore GroupScore
	Flags      RouterFlags
	Groups     uint32  // of equal size, up to MaxGroups; 0 or 1: no groups
	GroupsKept uint32  // 1..Groups, with K experts at least; not looked at without groups
	Scale      float32 // weights are multiplied by it; 0 means 1
	Floor      float32 // see RouterRenormalize; NewRouter sets what the method's models use
	// [experts] of float32, DTypeF16 or DTypeBF16; ranks experts and does not weigh them
	Bias Array
	// [tokens, K] ids by token, of int32: no key is looked at, logits serve for weights only
	HashTable Array
}

// NewRouter returns a method in use; what it takes from the model remains to be set
// (routecap_router_init).
//
// Errors: ErrArgument, no such method.
func NewRouter(method Method) (Router, error) {
	var r cRouter
	_, err := routecap_router_init(
		&r,
		unsafe.Sizeof(r),
		int32(method),
	).outcome("routecap_router_init")
	return Router{
		Score:      r.score,
		GroupScore: r.groupScore,
		Flags:      r.flags,
		Groups:     r.groups,
		GroupsKept: r.groupsKept,
		Scale:      r.scale,
		Floor:      r.floor,
	}, err
}

// Logits is the logits of one layer, a matrix of Rows x Experts elements (routecap_logits).
type Logits struct {
	// of float32, DTypeF16 or DTypeBF16, beginning at row 0, column 0; may be none with a HashTable
	// and no Weights
	Logits       Array
	RowStride    int64 // elements from one row to the next; 0 means Experts
	ColumnStride int64 // elements from one column to the next; 0 means 1
	Rows         uint32
	FirstRow     uint32
	LiveRows     Array // these three as in Source
	RowBase      Array
	RowIndex     Array
	// [Rows] of int32 or int64: the input token of each row, where the router has a HashTable
	Tokens Array
	// columns: K or more, and no more than the layer's or MaxRoutedExperts; 0 means the layer's
	Experts uint32
	// [Rows, WeightsStride] of float32: receives the weight of each column of every live row
	Weights       Array
	WeightsStride int64 // elements from one row to the next, at least K; 0 means K
}

// Route chooses experts from logits, into the sink of one layer whose provenance is
// ProvenanceRecomputed (routecap_layer_route): for kernels that route internally and expose no ids.
// Rows go where Record would put them, and are kept or dropped by the same rules.
//
// Errors: ErrUnknownLayer; ErrDType; ErrArgument, also groups that do not divide the experts, too
// few or too many experts, a HashTable without Tokens; ErrShapeMismatch, an array that is not as
// long as what is read; ErrCapacity; ErrConflict; ErrState.
func (c *Capturer) Route(layer uint32, router Router, logits Logits, stream Stream) error {
	_, err := c.callWithArrays("routecap_layer_route", func(p unsafe.Pointer, a *arrays) Result {
		if layer >= c.config.Layers && c.config.Role != RoleDisabled {
			return Result{ErrUnknownLayer, fmt.Sprintf("layer %d of %d", layer, c.config.Layers)}
		}
		k, experts := c.kOf(layer), cmp.Or(logits.Experts, c.expertsOf(layer))
		hashTable, hashElements := a.table("HashTable", router.HashTable)
		if hashElements%int(max(k, 1)) != 0 {
			a.refuse(
				ErrShapeMismatch,
				"HashTable has %d elements, not a multiple of K, %d",
				hashElements,
				k,
			)
		}
		r := cRouter{
			structSize: uint32(unsafe.Sizeof(cRouter{})),
			score:      router.Score,
			groupScore: router.GroupScore,
			flags:      router.Flags,
			groups:     router.Groups,
			groupsKept: router.GroupsKept,
			scale:      router.Scale,
			floor:      router.Floor,
			bias: a.list(
				"Bias",
				router.Bias,
				0,
				uint64(experts),
				"one for each expert",
			),
			biasDType:  router.Bias.dtype,
			hashTokens: uint32(hashElements / int(max(k, 1))),
			hashTable:  hashTable,
		}
		l := cLogits{
			structSize: uint32(unsafe.Sizeof(cLogits{})),
			dtype:      logits.Logits.dtype,
			logits: a.matrix("Logits", logits.Logits, shape{
				logits.Rows,
				experts,
				logits.RowStride,
				logits.ColumnStride,
				"Rows x experts; set Experts where the logits have fewer than the layer",
			}),
			rowStride:    logits.RowStride,
			columnStride: logits.ColumnStride,
			rows:         logits.Rows,
			firstRow:     logits.FirstRow,
			liveRows:     a.number("LiveRows", logits.LiveRows, DTypeI32),
			rowBase:      a.number("RowBase", logits.RowBase, DTypeI32),
			rowIndex:     a.perRow("RowIndex", logits.RowIndex, DTypeI32, logits.Rows),
			tokens:       a.perRow("Tokens", logits.Tokens, 0, logits.Rows),
			tokensDType:  logits.Tokens.dtype,
			experts:      logits.Experts,
			weights: a.matrix("Weights", logits.Weights, shape{
				logits.Rows,
				k,
				logits.WeightsStride,
				0,
				"Rows x K",
			}),
			weightsStride: logits.WeightsStride,
		}
		if !logits.Weights.none() && logits.Weights.dtype != DTypeF32 {
			a.refuse(ErrDType, "Weights has dtype %d, not %d", logits.Weights.dtype, DTypeF32)
		}
		if a.refused.Status != OK {
			return a.refused
		}
		return routecap_layer_route(p, layer, &r, &l, stream)
	})
	return err
}

// Probe looks at what the last forward pass wrote (routecap_capturer_probe): for one warm-up at
// start, of many different tokens, to learn which layers are captured and which only seem to be. It
// fills layers 0..len(layers)-1 from sink rows 0..rows-1, which are at most those begun, without
// padding. Call it between a Begin with its forward and what issues or discards that; it changes
// nothing. It waits until the stream has run.
//
// Result: Partial, something was found: see each layer. Errors: ErrUnknownLayer; ErrCapacity;
// ErrState, no row is begun; ErrCapturing.
func (c *Capturer) Probe(rows uint32, layers []LayerProbe, stream Stream) (Result, error) {
	return c.callAlone("routecap_capturer_probe", func(p unsafe.Pointer) Result {
		return routecap_capturer_probe(
			p,
			rows,
			unsafe.SliceData(layers),
			unsafe.Sizeof(LayerProbe{}),
			uintptr(len(layers)),
			stream,
		)
	})
}

// kOf returns the most experts of a token in a layer; K if there is no such layer.
func (c *Capturer) kOf(layer uint32) uint32 {
	if int(layer) < len(c.config.LayerK) {
		return c.config.LayerK[layer]
	}
	return c.config.K
}

// expertsOf returns the experts of a layer, 0 if there is no such layer.
func (c *Capturer) expertsOf(layer uint32) uint32 {
	switch {
	case layer >= c.config.Layers:
		return 0
	case int(layer) < len(c.config.LayerExperts):
		return c.config.LayerExperts[layer]
	}
	return c.config.Experts
}
