//go:build cgo

package routecap

import (
	"context"
	"fmt"
	"iter"
	"math"
	"runtime"
	"slices"
	"time"
	"unsafe"
)

// Routing is rows that were read out: immutable, and independent of its request and its capturer.
// Its methods may be called from any goroutine at any time. It has to be closed: its memory is C's
// and counts in the capturer's budget until then. After Close all methods return ErrClosed.
//
// A routing of Finish is pending until its last step has landed; until then all methods but Wait,
// Poll, Clone and Close return ErrNotReady.
type Routing struct {
	handle
}

// newRouting takes over one reference to a routing; nil gives nil.
func newRouting(pointer unsafe.Pointer) *Routing {
	if pointer == nil {
		return nil
	}
	r := &Routing{}
	r.set(pointer)
	return r
}

func (r *Routing) set(pointer unsafe.Pointer) {
	objects := []unsafe.Pointer{pointer}
	r.object = &objects[0]
	r.cleanup = runtime.AddCleanup(r, freeAll, objects)
}

// newRoutings takes over the references that the items of a batch received. They share a cleanup,
// which costs ten times what the rest does.
func newRoutings(n int, received func(item int) *unsafe.Pointer) []*Routing {
	all, objects, routings := make([]Routing, n), make([]unsafe.Pointer, n), make([]*Routing, n)
	for i := range n {
		if pointer := received(i); *pointer != nil {
			objects[i], *pointer = *pointer, nil
			all[i].object = &objects[i]
			routings[i] = &all[i]
		}
	}
	if n > 0 {
		runtime.AddCleanup(&all[0], freeAll, objects)
	}
	return routings
}

// freeAll frees those that were not closed.
func freeAll(objects []unsafe.Pointer) {
	for _, pointer := range objects {
		routecap_routing_free(pointer)
	}
	collectLoans()
}

// Close frees the routing; its memory goes with the last that shares it (routecap_routing_free).
// Its views stay. A second Close does nothing. It returns nil.
func (r *Routing) Close() error {
	r.close(routecap_routing_free)
	collectLoans()
	return nil
}

// Clone returns the same routing once more, to be closed on its own (routecap_routing_retain).
func (r *Routing) Clone() (*Routing, error) {
	var same unsafe.Pointer
	_, err := r.call("routecap_routing_retain", func(p unsafe.Pointer) Result {
		retained := routecap_routing_retain(p)
		if retained.Status == OK {
			same = p
		}
		return retained
	})
	return newRouting(same), err
}

// Wait waits until the routing is ready, or ctx ends (routecap_routing_wait). A goroutine that
// waits takes a thread; it looks at least once, and notices the end of ctx within 20 ms.
//
// Result: OK, ready and complete; Incomplete, ready; NotCaptured, ready; Pending, with the error of
// ctx.
func (r *Routing) Wait(ctx context.Context) (Result, error) {
	return wait(ctx, func(timeout time.Duration) (Result, error) {
		return r.call(
			"routecap_routing_wait",
			func(p unsafe.Pointer) Result { return routecap_routing_wait(p, timeout.Nanoseconds()) },
		)
	})
}

// Poll says whether the routing is ready (routecap_routing_poll), with the results of Wait. It does
// not wait.
func (r *Routing) Poll() (Result, error) {
	return r.call(
		"routecap_routing_poll",
		func(p unsafe.Pointer) Result { return routecap_routing_poll(p) },
	)
}

// Coverage says which cells of the routing are there and which are missing
// (routecap_routing_coverage), as that of Capturer does.
func (r *Routing) Coverage(missing []Missing) (Coverage, Result, error) {
	coverage := Coverage{structSize: uint32(unsafe.Sizeof(Coverage{}))}
	outcome, err := r.call("routecap_routing_coverage", func(p unsafe.Pointer) Result {
		return routecap_routing_coverage(
			p,
			&coverage,
			unsafe.SliceData(missing),
			unsafe.Sizeof(Missing{}),
			uintptr(len(missing)),
		)
	})
	return coverage, outcome, err
}

// Split divides the routing at the end of the prompt (routecap_routing_split): rows before position
// promptTokens go to `prompt`; of the others at most generatedTokens, or RowsAll, to `generated`.
// Pages are shared.
//
// Errors: ErrNotReady.
func (r *Routing) Split(
	promptTokens, generatedTokens uint64,
) (prompt, generated *Routing, err error) {
	var first, second unsafe.Pointer
	_, err = r.call("routecap_routing_split", func(p unsafe.Pointer) Result {
		return routecap_routing_split(p, promptTokens, generatedTokens, &first, &second)
	})
	return newRouting(first), newRouting(second), err
}

// Slice returns a routing of `rows` rows from position `first` on, or RowsAll
// (routecap_routing_slice). Pages are shared; positions stay what they are.
//
// Errors: ErrOutOfRange; ErrNotReady.
func (r *Routing) Slice(first, rows uint64) (*Routing, error) {
	var slice unsafe.Pointer
	_, err := r.call(
		"routecap_routing_slice",
		func(p unsafe.Pointer) Result { return routecap_routing_slice(p, first, rows, &slice) },
	)
	return newRouting(slice), err
}

// Merge unites routings of one sequence that hold different rows, different layers, or both
// (routecap_routing_merge). Layers are matched by their index in the decoder, rows by position;
// what nobody has is missing. A row keeps the tag of the first routing that has any cell of it. At
// least one is needed.
//
// Result: OK; Incomplete; NotCaptured. Errors: ErrConflict, two have a cell with different sets of
// ids; ErrShapeMismatch, k, the id space or the experts of one layer differ; ErrNotReady.
func Merge(routings ...*Routing) (*Routing, Result, error) {
	const op = "routecap_routing_merge"
	pointers := make([]unsafe.Pointer, len(routings))
	for i, r := range routings {
		if !r.enter() {
			outcome, err := closed.outcome(op)
			return nil, outcome, err
		}
		defer r.leave()
		pointers[i] = *r.object
	}
	var merged unsafe.Pointer
	outcome, err := routecap_routing_merge(
		unsafe.SliceData(pointers),
		uintptr(len(pointers)),
		0,
		&merged,
	).outcome(op)
	return newRouting(merged), outcome, err
}

// ---- Views

// View is a routing's contents (routecap_view), in Go's memory: it stays as it is when the routing
// is closed. All goes over its rows one by one.
//
// RowStride is of ids, of weights and of the validity of both. It is 0 in every view of a routing:
// the rows of a segment's ids follow one another, and so do those of each other. Import takes other
// rows as well.
type View struct {
	// of the ids: U8 if no layer has more than 256 experts, or more than 255 where a cell may have
	// fewer than K; otherwise I16
	DType           DType
	WeightsDType    DType // of the weights: DTypeF32, DTypeF16 or DTypeBF16; 0: there are none
	Layers          uint32
	K               uint32 // columns of a cell: the most experts of a token
	Experts         uint32 // the most of any layer
	ValidityBytes   uint32 // per row
	IDSpace         IDSpace
	Complete        bool   // no cell is missing
	First           uint64 // position of the first row
	Rows            uint64
	RowStride       uint64       // bytes from one row of a segment to the next; 0: no gap
	LayerMap        []int32      // [Layers] index of each captured layer in the decoder
	LayerExperts    []uint32     // [Layers]
	LayerK          []uint32     // [Layers] the most experts of a token in each layer
	LayerMinK       []uint32     // [Layers] the fewest
	LayerVisit      []uint32     // [Layers] how often a looped decoder ran the layer before
	LayerProvenance []Provenance // [Layers]
	Segments        []Segment    // together exactly the rows, in order
}

// Segment is consecutive rows (routecap_segment). The ids are in IDs8 or in IDs16, as the view's
// DType says; without either, all cells of these rows are missing, for Reason. Ids of a cell that
// is not valid have no meaning. A valid cell with fewer than K experts has them first, and every bit
// of its other columns is set: 255, or -1.
type Segment struct {
	First uint64 // position of the first row
	Rows  uint64
	IDs8  []uint8 // [Rows, Layers, K], with DTypeU8
	IDs16 []int16 // [Rows, Layers, K], with DTypeI16
	// [Rows, ValidityBytes]: bit l % 8 of byte l / 8 is set if layer l is valid; nil: all are
	Validity []uint8
	// [Rows, Layers, K], with DTypeF32. Those of a cell that has none, and of columns without an
	// expert, are 0. Import copies only those that are there
	Weights32 []float32
	// the same with the bits of DTypeF16 or DTypeBF16
	Weights16 []uint16
	// as Validity, the layers whose weights are there; in Import nil: those whose ids are
	WeightsValidity []uint8
	Tags            []uint64 // [Rows] the tag of each row; nil: Tag is that of all
	Tag             uint64
	// without ids: why these rows are not there; otherwise 0. Import takes 0 for MissingAbsent
	Reason Reason
}

// View copies the routing's contents, segment by segment (routecap_routing_view): each segment's
// ids and validity become arrays in which the rows follow one another. CopyTo makes one array of
// all rows, in memory of the caller.
//
// Errors: ErrNotReady.
func (r *Routing) View() (View, error) {
	var view View
	_, err := r.look(func(v *cView) { view = v.copied() })
	return view, err
}

// look has see called with what the library shows of the routing, whose pointers are valid until it
// returns: a Close waits for it.
func (r *Routing) look(see func(*cView)) (Result, error) {
	return r.call("routecap_routing_view", func(p unsafe.Pointer) Result {
		v := cView{structSize: uint32(unsafe.Sizeof(cView{}))}
		seen := routecap_routing_view(p, &v)
		if seen.Status == OK {
			see(&v)
		}
		return seen
	})
}

// copied returns the view of a routing as Go has it; the inverse of View.pass.
func (v *cView) copied() View {
	layers := int(v.layers)
	view := View{
		DType:           v.dtype,
		WeightsDType:    v.weightsDType,
		Layers:          v.layers,
		K:               v.k,
		Experts:         v.experts,
		ValidityBytes:   v.validityBytes,
		IDSpace:         v.idSpace,
		Complete:        v.complete != 0,
		First:           v.first,
		Rows:            v.rows,
		LayerMap:        copyOf[int32](v.layerMap, layers),
		LayerExperts:    copyOf[uint32](v.layerExperts, layers),
		LayerK:          copyOf[uint32](v.layerK, layers),
		LayerMinK:       copyOf[uint32](v.layerMinK, layers),
		LayerVisit:      copyOf[uint32](v.layerVisit, layers),
		LayerProvenance: copyOf[Provenance](v.layerProvenance, layers),
		Segments:        make([]Segment, v.segmentCount),
	}
	for i := range view.Segments {
		c := (*cSegment)(unsafe.Add(v.segments, uintptr(i)*v.segmentSize))
		rows := int(c.rows)
		s := Segment{
			First:    c.first,
			Rows:     c.rows,
			Tag:      c.tag,
			Reason:   c.reason,
			Tags:     copyOf[uint64](c.tags, rows),
			Validity: copyOfRows[uint8](c.validity, rows, int(v.validityBytes), v.rowStride),
		}
		if ids := layers * int(v.k); v.dtype == DTypeU8 {
			s.IDs8 = copyOfRows[uint8](c.ids, rows, ids, v.rowStride)
		} else {
			s.IDs16 = copyOfRows[int16](c.ids, rows, ids, v.rowStride)
		}
		s.WeightsValidity = copyOfRows[uint8](c.weightsValidity, rows, int(v.validityBytes), v.rowStride)
		if cells := layers * int(v.k); v.weightsDType == DTypeF32 {
			s.Weights32 = copyOfRows[float32](c.weights, rows, cells, v.rowStride)
		} else {
			s.Weights16 = copyOfRows[uint16](c.weights, rows, cells, v.rowStride)
		}
		view.Segments[i] = s
	}
	return view
}

// copyOf copies an array of C that may be absent.
func copyOf[T any](array unsafe.Pointer, length int) []T {
	if array == nil {
		return nil
	}
	return slices.Clone(unsafe.Slice((*T)(array), length))
}

// copyOfRows copies rows of C that lie `stride` bytes apart, and may be absent.
func copyOfRows[T any](first unsafe.Pointer, rows, length int, stride uint64) []T {
	if first == nil {
		return nil
	}
	copied := make([]T, 0, rows*length)
	for row := range rows {
		from := unsafe.Add(first, uintptr(row)*uintptr(stride))
		copied = append(copied, unsafe.Slice((*T)(from), length)...)
	}
	return copied
}

// strides returns how far the rows of segments lie apart: ids in elements, validity in bytes.
func (v *View) strides() (ids, validity int) {
	if v.RowStride != 0 {
		return int(v.RowStride) / v.DType.Size(), int(v.RowStride)
	}
	return int(v.Layers) * int(v.K), (int(v.Layers) + 7) / 8
}

// All iterates over the rows by position.
func (v View) All() iter.Seq2[uint64, Row] {
	return func(yield func(uint64, Row) bool) {
		for i := range v.Segments {
			s := &v.Segments[i]
			for row := range s.Rows {
				if !yield(s.First+row, Row{view: &v, segment: s, index: int(row)}) {
					return
				}
			}
		}
	}
}

// Row is the routing of one input token: up to K ids in each layer.
type Row struct {
	view    *View
	segment *Segment
	index   int
}

// Tag returns the tag of the step that delivered the row.
func (r Row) Tag() uint64 {
	if r.segment.Tags != nil {
		return r.segment.Tags[r.index]
	}
	return r.segment.Tag
}

// Valid reports whether the row has ids in a layer. Layers are the captured ones, 0..Layers-1; the
// view's LayerMap has the index of each in the decoder. It panics if there is no such layer.
func (r Row) Valid(layer int) bool {
	checkLayer(layer, int(r.view.Layers))
	s := r.segment
	if s.IDs8 == nil && s.IDs16 == nil {
		return false
	}
	_, stride := r.view.strides()
	return s.Validity == nil || s.Validity[r.index*stride+layer/8]>>(layer%8)&1 != 0
}

// Count returns how many experts the token got in a layer: LayerK of them, or fewer, down to
// LayerMinK; 0 also if the cell is missing (Valid). It panics if there is no such layer.
func (r Row) Count(layer int) int {
	if !r.Valid(layer) {
		return 0
	}
	count, least := int(r.view.K), int(r.view.K)
	if r.view.LayerK != nil {
		count, least = int(r.view.LayerK[layer]), int(r.view.LayerK[layer])
	}
	if r.view.LayerMinK != nil {
		least = int(r.view.LayerMinK[layer])
	}
	for count > least && r.unused(layer, count-1) {
		count--
	}
	return count
}

// unused reports whether every bit of a column is set, which is no id where a cell can have fewer.
func (r Row) unused(layer, column int) bool {
	if r.segment.IDs8 != nil {
		return r.segment.IDs8[r.at(layer, column)] == math.MaxUint8
	}
	return r.segment.IDs16[r.at(layer, column)] == -1
}

func (r Row) at(layer, column int) int {
	stride, _ := r.view.strides()
	return r.index*stride + layer*int(r.view.K) + column
}

// ID returns one of the K columns in a layer: an id, NoExpert if the cell has fewer, -1 if the cell
// is missing. It panics if there is no such layer (Valid) or column.
func (r Row) ID(layer, column int) int {
	valid := r.Valid(layer)
	if k := int(r.view.K); uint(column) >= uint(k) {
		panic(fmt.Sprintf("routecap: column %d of %d", column, k))
	}
	switch {
	case !valid:
		return -1
	case column >= r.Count(layer):
		return NoExpert
	case r.segment.IDs8 != nil:
		return int(r.segment.IDs8[r.at(layer, column)])
	}
	return int(r.segment.IDs16[r.at(layer, column)])
}

// AppendIDs appends the ids of the experts that the token got in a layer, Count of them, or nothing
// if the cell is missing. It panics if there is no such layer (Valid).
func (r Row) AppendIDs(ids []int, layer int) []int {
	for column := range r.Count(layer) {
		ids = append(ids, r.ID(layer, column))
	}
	return ids
}

// Weighted reports whether the cell of a layer has weights; one with ids need not. It panics if there
// is no such layer (Valid).
func (r Row) Weighted(layer int) bool {
	s := r.segment
	if !r.Valid(layer) || s.Weights32 == nil && s.Weights16 == nil {
		return false
	}
	_, stride := r.view.strides()
	return s.WeightsValidity == nil || s.WeightsValidity[r.index*stride+layer/8]>>(layer%8)&1 != 0
}

// Weights32 returns the weights of the experts that the token got in a layer, Count of them: a part
// of the segment's. nil if the cell has none, or they are halves. It panics if there is no such layer
// (Valid).
func (r Row) Weights32(layer int) []float32 {
	return weightsOf(r, r.segment.Weights32, layer)
}

// Weights16 returns the same of DTypeF16 and DTypeBF16, as bits.
func (r Row) Weights16(layer int) []uint16 {
	return weightsOf(r, r.segment.Weights16, layer)
}

func weightsOf[T Weight](r Row, of []T, layer int) []T {
	if !r.Weighted(layer) || of == nil {
		return nil
	}
	stride := int(r.view.Layers) * int(r.view.K)
	if r.view.RowStride != 0 {
		stride = int(r.view.RowStride) / int(unsafe.Sizeof(of[0]))
	}
	first := r.index*stride + layer*int(r.view.K)
	end := first + r.Count(layer)
	return of[first:end:end]
}

// checkLayer panics if there is no such layer, as a slice does.
func checkLayer(layer, layers int) {
	if uint(layer) >= uint(layers) {
		panic(fmt.Sprintf(
			"routecap: layer %d of %d: layers are counted from 0, and only those that are captured"+
				" (LayerMap has their index in the decoder)",
			layer,
			layers,
		))
	}
}
