//go:build cgo

package routecap

import (
	"fmt"
	"runtime"
	"unsafe"
)

// PlanConfig is a rank of a trainer, and one micro-batch: see routecap_plan_config, whose words
// these are. What is 0 or nil is the default.
type PlanConfig struct {
	Layout        PlanLayout
	Context       PlanContext
	ContextSize   uint32 // context-parallel ranks
	ContextRank   uint32 // this one; DefaultPlanConfig sets PlanRankUnset
	TensorSize    uint32 // tensor-parallel ranks
	TensorRank    uint32 // this one; DefaultPlanConfig sets PlanRankUnset
	Flags         PlanFlags
	Lengths       []uint64 // tokens of each sequence; or CuLengths
	CuLengths     []uint64 // the first token of each in all tokens, and their number
	Needed        []uint64 // rows of each that matter; default all but the last
	PaddedLengths []uint64 // packed: rows of each with its padding
	Starts        []uint64 // padded layouts: the column of each first token
	Width         uint64   // padded layouts: columns
	Align         uint64   // each sequence is padded to a multiple of this
	AlignTotal    uint64   // packed: and the whole
	LeastTotal    uint64   // packed: which has so many rows at least
	AlignRank     uint64   // packed: and the rows of each context-parallel rank
	Layers        uint32   // MoE layers of this stage; default those of LayerMap
	K             uint32
	Experts       uint32 // required unless LayerExperts is set
	// ExpertParallel is how many ranks share the experts: padding loads them evenly.
	ExpertParallel uint32
	LayerMap       []int32  // index of each layer in the decoder, strictly ascending
	LayerExperts   []uint32 // experts of each layer where they differ
	LayerK         []uint32 // as in Config, as are the next two
	LayerMinK      []uint32
	LayerVisit     []uint32
	Order          Order // of the result
	Fill           PlanFill
	FillValue      int64 // with PlanFillValue
	Lost           PlanLost
	LostValue      int64 // with PlanLostMark; DefaultPlanConfig sets -1
	NoneValue      int64 // of columns without an expert; DefaultPlanConfig sets NoExpert
}

// DefaultPlanConfig returns the defaults (routecap_plan_config_init).
func DefaultPlanConfig() PlanConfig {
	var c cPlanConfig
	routecap_plan_config_init(&c, unsafe.Sizeof(c))
	return PlanConfig{
		ContextRank: c.contextRank,
		TensorRank:  c.tensorRank,
		LostValue:   c.lostValue,
		NoneValue:   c.noneValue,
	}
}

// Plan is which token each row of a trainer's rank is, and what its routers are to be given, as ids
// of type T. It is immutable: any number of goroutines may use it at once. It has to be closed.
type Plan[T ID] struct {
	handle
	lengths []uint64
}

// NewPlan makes the plan of a rank for one micro-batch (routecap_plan_create).
//
// Errors: ErrArgument, also where rows cannot be divided evenly: the text says what is no multiple
// of what; ErrDType, T does not hold the ids, or a value.
func NewPlan[T ID](config PlanConfig) (*Plan[T], error) {
	const op = "routecap_plan_create"
	samples := len(config.Lengths)
	if config.CuLengths != nil {
		samples = len(config.CuLengths) - 1
	}
	refuse := func(name string, length, wanted int) (*Plan[T], error) {
		_, err := Result{
			ErrShapeMismatch,
			fmt.Sprintf("%s has %d elements, not %d", name, length, wanted),
		}.outcome(
			op,
		)
		return nil, err
	}
	for _, list := range []struct {
		name   string
		values []uint64
	}{{"Lengths", config.Lengths}, {"Needed", config.Needed}, {"PaddedLengths", config.PaddedLengths}, {"Starts", config.Starts}} {
		if list.values != nil && len(list.values) != samples {
			return refuse(list.name, len(list.values), samples)
		}
	}
	layers := config.Layers
	if layers == 0 {
		layers = uint32(max(len(config.LayerMap), len(config.LayerExperts)))
	}
	lists := layerLists(config.LayerMap, config.LayerExperts, config.LayerK, config.LayerMinK, config.LayerVisit)
	if wrong := misfit(lists, int(layers)); wrong != nil {
		return refuse(wrong.name, wrong.length, int(layers))
	}
	if samples < 0 {
		return refuse("CuLengths", 0, 1)
	}
	var pin runtime.Pinner
	defer pin.Unpin()
	c := cPlanConfig{
		structSize:  uint32(unsafe.Sizeof(cPlanConfig{})),
		layout:      config.Layout,
		context:     config.Context,
		contextSize: config.ContextSize,
		contextRank: config.ContextRank,
		tensorSize:  config.TensorSize,
		tensorRank:  config.TensorRank,
		flags:       config.Flags,
		samples:     uint64(samples),
		lengths:     pinSlice(&pin, config.Lengths),
		cuLengths:   pinSlice(&pin, config.CuLengths),
		needed: pinSlice(
			&pin,
			config.Needed,
		),
		paddedLengths:  pinSlice(&pin, config.PaddedLengths),
		starts:         pinSlice(&pin, config.Starts),
		width:          config.Width,
		align:          config.Align,
		alignTotal:     config.AlignTotal,
		leastTotal:     config.LeastTotal,
		alignRank:      config.AlignRank,
		layers:         layers,
		k:              config.K,
		experts:        config.Experts,
		expertParallel: config.ExpertParallel,
		layerMap:       pinSlice(&pin, config.LayerMap),
		layerExperts: pinSlice(
			&pin,
			config.LayerExperts,
		),
		dtype:      typeOf[T](),
		order:      config.Order,
		fill:       config.Fill,
		lost:       config.Lost,
		fillValue:  config.FillValue,
		lostValue:  config.LostValue,
		noneValue:  config.NoneValue,
		layerK:     pinSlice(&pin, config.LayerK),
		layerMinK:  pinSlice(&pin, config.LayerMinK),
		layerVisit: pinSlice(&pin, config.LayerVisit),
	}
	var plan unsafe.Pointer
	if _, err := routecap_plan_create(&c, &plan).outcome(op); err != nil {
		return nil, err
	}
	p := &Plan[T]{}
	for i := range samples {
		if config.CuLengths != nil {
			p.lengths = append(p.lengths, config.CuLengths[i+1]-config.CuLengths[i])
		} else {
			p.lengths = append(p.lengths, config.Lengths[i])
		}
	}
	p.object = &[]unsafe.Pointer{plan}[0]
	p.cleanup = runtime.AddCleanup(
		p,
		func(object *unsafe.Pointer) { routecap_plan_free(*object) },
		p.object,
	)
	return p, nil
}

// Close frees the plan (routecap_plan_free). A second Close does nothing. It returns nil.
func (p *Plan[T]) Close() error {
	p.close(routecap_plan_free)
	return nil
}

// Samples returns how many sequences the micro-batch has.
func (p *Plan[T]) Samples() int { return len(p.lengths) }

// Describe says how large the plan's results are (routecap_plan_describe). IDsBytes is of T.
func (p *Plan[T]) Describe() (PlanShape, error) {
	shape := PlanShape{structSize: uint32(unsafe.Sizeof(PlanShape{}))}
	_, err := p.call(
		"routecap_plan_describe",
		func(plan unsafe.Pointer) Result { return routecap_plan_describe(plan, &shape) },
	)
	return shape, err
}

// Ranges says which rows this rank needs, of which sample (routecap_plan_ranges).
func (p *Plan[T]) Ranges() ([]PlanRange, error) {
	return listed(
		p,
		"routecap_plan_ranges",
		func(plan unsafe.Pointer, list []PlanRange, count *uint64) Result {
			return routecap_plan_ranges(
				plan,
				unsafe.SliceData(list),
				unsafe.Sizeof(PlanRange{}),
				uintptr(len(list)),
				count,
			)
		},
	)
}

// listed makes room for what a call lists.
func listed[T ID, E any](
	p *Plan[T],
	op string,
	call func(plan unsafe.Pointer, list []E, count *uint64) Result,
) ([]E, error) {
	var list []E
	_, err := p.call(op, func(plan unsafe.Pointer) Result {
		var count uint64
		if r := call(plan, nil, &count); r.Status < 0 || count == 0 {
			return r
		}
		list = make([]E, count)
		return call(plan, list, &count)
	})
	return list, err
}

// PlanSource is rows of one sample.
type PlanSource struct {
	Sample  int
	Routing *Routing
}

// withSources calls f with the sources as C has them.
func (p *Plan[T]) withSources(
	op string,
	sources []PlanSource,
	f func(plan unsafe.Pointer, first *cPlanSource, count uintptr) Result,
) (Result, error) {
	var pin runtime.Pinner
	defer pin.Unpin()
	passed := make([]cPlanSource, len(sources))
	for i, s := range sources {
		if s.Sample < 0 || s.Routing == nil {
			return Result{
				ErrArgument,
				fmt.Sprintf("source %d is of sample %d, or has no routing", i, s.Sample),
			}.outcome(
				op,
			)
		}
		if !s.Routing.enter() {
			return closed.outcome(op)
		}
		defer s.Routing.leave()
		passed[i] = cPlanSource{sample: uint64(s.Sample), routing: *s.Routing.object}
	}
	return p.call(op, func(plan unsafe.Pointer) Result {
		return f(plan, unsafe.SliceData(passed), uintptr(len(passed)))
	})
}

// Gather writes the ids of this rank, in its layout, to dst, and the PlanClass of each cell to
// classes, unless nil (routecap_plan_gather). Both are as long as Describe says, and no longer.
//
// Result: OK; Incomplete, cells are lost. Errors: ErrIncomplete, with PlanLostError; ErrOutOfRange,
// no such sample, or a routing with rows behind its last token; ErrOverlap; ErrUnknownLayer;
// ErrShapeMismatch, also dst or classes is too long; ErrNotReady; ErrBufferTooSmall; ErrArgument, a
// lost cell would look like experts.
func (p *Plan[T]) Gather(
	sources []PlanSource,
	dst []T,
	classes []uint8,
) (PlanReport, Result, error) {
	report := PlanReport{structSize: uint32(unsafe.Sizeof(PlanReport{}))}
	r, err := p.withSources(
		"routecap_plan_gather",
		sources,
		func(plan unsafe.Pointer, first *cPlanSource, count uintptr) Result {
			if refused := p.noLonger(plan, dst, classes); refused.Status != OK {
				return refused
			}
			return routecap_plan_gather(
				plan,
				first,
				unsafe.Sizeof(cPlanSource{}),
				count,
				unsafe.Pointer(unsafe.SliceData(dst)),
				uintptr(
					len(dst),
				)*unsafe.Sizeof(
					*new(T),
				),
				unsafe.SliceData(classes),
				uintptr(len(classes)),
				&report,
			)
		},
	)
	return report, r, err
}

// noLonger refuses memory for ids and classes that is longer than they are: who made it took it for
// that of another shape. Too short is what the library finds.
func (p *Plan[T]) noLonger(plan unsafe.Pointer, dst []T, classes []uint8) Result {
	s := PlanShape{structSize: uint32(unsafe.Sizeof(PlanShape{}))}
	if r := routecap_plan_describe(plan, &s); r.Status != OK {
		return r
	}
	ids := s.IDsBytes / uint64(unsafe.Sizeof(*new(T)))
	switch {
	case uint64(len(dst)) > ids:
		return Result{ErrShapeMismatch, fmt.Sprintf("dst has %d elements, not %d", len(dst), ids)}
	case uint64(len(classes)) > s.ClassesBytes:
		return Result{
			ErrShapeMismatch,
			fmt.Sprintf("classes has %d elements, not %d", len(classes), s.ClassesBytes),
		}
	}
	return Result{}
}

// GatherWeights writes the weights of this rank, in its layout, to dst: those of the ids that Gather
// writes with the same sources (routecap_plan_gather_weights). dtype is DTypeF32, with values in dst,
// or the WeightsDType of all sources, with the bits of halves. Where weights are missing, `missing`
// is written, such as NaN or 0; the experts of filled cells have the weight 0. It returns how many
// needed cells have no weights.
//
// Result: OK; Incomplete, weights are missing. Errors: ErrDType, a source has no weights or not such,
// or dst is not of the dtype; otherwise as Gather.
func GatherWeights[W Weight, T ID](
	p *Plan[T],
	sources []PlanSource,
	dtype DType,
	missing float32,
	dst []W,
) (missingCells uint64, r Result, err error) {
	const op = "routecap_plan_gather_weights"
	if !holds[W](dtype) {
		r, err = Result{ErrDType, fmt.Sprintf("dst is not of dtype %d", dtype)}.outcome(op)
		return 0, r, err
	}
	r, err = p.withSources(
		op,
		sources,
		func(plan unsafe.Pointer, first *cPlanSource, count uintptr) Result {
			s := PlanShape{structSize: uint32(unsafe.Sizeof(PlanShape{}))}
			if r := routecap_plan_describe(plan, &s); r.Status != OK {
				return r
			}
			if ids := s.IDsBytes / uint64(unsafe.Sizeof(*new(T))); uint64(len(dst)) > ids {
				return Result{
					ErrShapeMismatch,
					fmt.Sprintf("dst has %d elements, not %d", len(dst), ids),
				}
			}
			return routecap_plan_gather_weights(
				plan,
				first,
				unsafe.Sizeof(cPlanSource{}),
				count,
				int32(dtype),
				missing,
				unsafe.Pointer(unsafe.SliceData(dst)),
				uintptr(len(dst))*unsafe.Sizeof(*new(W)),
				&missingCells,
			)
		},
	)
	return missingCells, r, err
}

// GatherValues sends one element for each token the same way (routecap_plan_gather_values): token
// ids for instance. `values` has those of each sample, or nil where this rank has no row of it;
// `fill` is written where there is no token, and dst has an element for each row of the rank. E
// must not have pointers in it.
//
// Errors: ErrShapeMismatch, a sample has not one value for each token, or dst is too long;
// ErrBufferTooSmall.
func GatherValues[E any, T ID](p *Plan[T], values [][]E, fill E, dst []E) error {
	const op = "routecap_plan_gather_values"
	var pin runtime.Pinner
	defer pin.Unpin()
	pointers := make([]unsafe.Pointer, p.Samples())
	if len(values) != len(pointers) {
		_, err := Result{
			ErrShapeMismatch,
			fmt.Sprintf("there are values of %d samples, not %d", len(values), len(pointers)),
		}.outcome(op)
		return err
	}
	for i, each := range values {
		if each != nil && uint64(len(each)) != p.lengths[i] {
			_, err := Result{
				ErrShapeMismatch,
				fmt.Sprintf("sample %d has %d values, not one for each token", i, len(each)),
			}.outcome(
				op,
			)
			return err
		}
		pointers[i] = pinSlice(&pin, each)
	}
	pinSlice(&pin, pointers)
	_, err := p.call(op, func(plan unsafe.Pointer) Result {
		s := PlanShape{structSize: uint32(unsafe.Sizeof(PlanShape{}))}
		if r := routecap_plan_describe(plan, &s); r.Status != OK {
			return r
		}
		if uint64(len(dst)) > s.Rows {
			return Result{
				ErrShapeMismatch,
				fmt.Sprintf("dst has %d elements, not %d", len(dst), s.Rows),
			}
		}
		return routecap_plan_gather_values(
			plan,
			unsafe.SliceData(pointers),
			unsafe.Sizeof(fill),
			unsafe.Pointer(&fill),
			unsafe.Pointer(unsafe.SliceData(dst)),
			uintptr(len(dst))*unsafe.Sizeof(fill),
		)
	})
	return err
}

// Scatter makes a routing for each sample of ids that this rank's routers have recorded
// (routecap_plan_scatter); a cell that is PlanClassLost in classes, unless nil, is missing. The
// routings have to be closed.
//
// Result: OK; Incomplete. Errors: ErrArgument, a length is another than the plan's.
func (p *Plan[T]) Scatter(ids []T, classes []uint8) ([]*Routing, Result, error) {
	made := make([]unsafe.Pointer, p.Samples())
	r, err := p.call("routecap_plan_scatter", func(plan unsafe.Pointer) Result {
		return routecap_plan_scatter(
			plan,
			unsafe.Pointer(unsafe.SliceData(ids)),
			uintptr(len(ids))*unsafe.Sizeof(*new(T)),
			unsafe.SliceData(
				classes,
			),
			uintptr(len(classes)),
			unsafe.SliceData(made),
			uintptr(len(made)),
		)
	})
	if err != nil {
		return nil, r, err
	}
	routings := make([]*Routing, len(made))
	for i, each := range made {
		routings[i] = newRouting(each)
	}
	return routings, r, nil
}

// Pack writes what is to be uploaded (routecap_plan_pack) to memory of PackedBytes (Describe),
// aligned to 8 bytes: best page-locked memory, which is not Go's.
//
// Result and errors: those of Gather.
func (p *Plan[T]) Pack(sources []PlanSource, packed []byte) (PlanReport, Result, error) {
	report := PlanReport{structSize: uint32(unsafe.Sizeof(PlanReport{}))}
	r, err := p.withSources(
		"routecap_plan_pack",
		sources,
		func(plan unsafe.Pointer, first *cPlanSource, count uintptr) Result {
			return routecap_plan_pack(
				plan,
				first,
				unsafe.Sizeof(cPlanSource{}),
				count,
				unsafe.Pointer(unsafe.SliceData(packed)),
				uintptr(len(packed)),
				&report,
			)
		},
	)
	return report, r, err
}

// PlanTarget is where the ids of a rank go on a device; sizes are in bytes. What is nil is not
// wanted, or on the host not needed.
type PlanTarget struct {
	Device       int32
	Scratch      DevicePointer // room for what is uploaded: PackedBytes
	ScratchBytes uint64
	Dst          DevicePointer // as dst of Gather
	DstBytes     uint64
	Classes      DevicePointer // as classes of Gather
	ClassesBytes uint64
}

// Unpack uploads what was packed and writes the ids on a device: one copy and one kernel, which a
// CUDA graph can capture (routecap_plan_unpack). The stream's work reads packed, which stays valid
// and unchanged until the stream has reached the end of the copy: it must not be Go's memory,
// unless it is pinned.
//
// Errors: ErrState, packed holds nothing of this plan; ErrBufferTooSmall; ErrArgument;
// ErrNoBackend; ErrDriverTooOld.
func (p *Plan[T]) Unpack(packed []byte, target PlanTarget, stream Stream) error {
	c := cPlanTarget{
		structSize:   uint32(unsafe.Sizeof(cPlanTarget{})),
		backend:      BackendCUDA,
		device:       target.Device,
		scratch:      target.Scratch,
		scratchBytes: target.ScratchBytes,
		dst:          target.Dst,
		dstBytes:     target.DstBytes,
		classes:      target.Classes,
		classesBytes: target.ClassesBytes,
	}
	return p.unpack(packed, &c, stream)
}

// UnpackOnHost is Unpack to memory of Go, without a device. dst and classes are as those of Gather.
func (p *Plan[T]) UnpackOnHost(packed []byte, dst []T, classes []uint8) error {
	_, err := p.call("routecap_plan_unpack", func(plan unsafe.Pointer) Result {
		return p.noLonger(plan, dst, classes)
	})
	if err != nil {
		return err
	}
	var pin runtime.Pinner
	defer pin.Unpin()
	c := cPlanTarget{
		structSize: uint32(unsafe.Sizeof(cPlanTarget{})),
		backend:    BackendHost,
		dst:        DevicePointer(uintptr(pinSlice(&pin, dst))),
		dstBytes: uint64(
			len(dst),
		) * uint64(
			unsafe.Sizeof(*new(T)),
		),
		classes:      DevicePointer(uintptr(pinSlice(&pin, classes))),
		classesBytes: uint64(len(classes)),
	}
	return p.unpack(packed, &c, 0)
}

func (p *Plan[T]) unpack(packed []byte, target *cPlanTarget, stream Stream) error {
	_, err := p.call("routecap_plan_unpack", func(plan unsafe.Pointer) Result {
		return routecap_plan_unpack(
			plan,
			unsafe.Pointer(unsafe.SliceData(packed)),
			uintptr(len(packed)),
			target,
			stream,
		)
	})
	return err
}
