//go:build cgo

package routecap

import (
	"fmt"
	"unsafe"
)

// Coverage says which cells of a range of a request's rows are there and which are missing
// (routecap_request_coverage). The range has `rows` rows from position `first` on, or RowsAll, or
// RowsLanded: what can be read now. `missing` receives the first blocks of missing cells;
// Coverage.Blocks says how many there are.
//
// Result: OK; Incomplete, also if nothing at all is there. Errors: ErrUnknownRequest;
// ErrOutOfRange; ErrNotReady, some rows are in flight; ErrDisabled.
func (c *Capturer) Coverage(
	request Request,
	first, rows uint64,
	missing []Missing,
) (Coverage, Result, error) {
	coverage := Coverage{structSize: uint32(unsafe.Sizeof(Coverage{}))}
	r, err := c.call("routecap_request_coverage", func(p unsafe.Pointer) Result {
		return routecap_request_coverage(
			p,
			request,
			first,
			rows,
			&coverage,
			unsafe.SliceData(missing),
			unsafe.Sizeof(Missing{}),
			uintptr(len(missing)),
		)
	})
	return coverage, r, err
}

// Extract reads rows of a request into a routing, at any time of its life
// (routecap_request_extract): `rows` rows from position `first` on, or RowsAll, or RowsLanded. The
// memory counts in the capturer's budget until the routing is closed.
//
// Result: OK; Incomplete, the valid cells are delivered; NotCaptured, a routing of missing rows.
// Errors: ErrUnknownRequest; ErrOutOfRange; ErrNotReady, some rows are in flight; ErrIncomplete and
// ErrRecomputed, with ReadStrict; ErrNoMemory; ErrDisabled.
func (c *Capturer) Extract(
	request Request,
	first, rows uint64,
	mode ExtractMode,
	flags ReadFlags,
) (*Routing, Result, error) {
	var routing unsafe.Pointer
	r, err := c.call("routecap_request_extract", func(p unsafe.Pointer) Result {
		return routecap_request_extract(
			p,
			request,
			first,
			rows,
			int32(mode),
			uint32(flags),
			&routing,
		)
	})
	return newRouting(routing), r, err
}

// ExtractBatch reads rows of many requests in one call (routecap_request_extract_batch), and sets
// the Status of each item. The routings are those of the items, nil for those that were refused.
// Those that are not closed are collected together.
//
// Result: Partial, some items have another status than OK. Errors: ErrDisabled.
func (c *Capturer) ExtractBatch(items []ExtractItem) ([]*Routing, Result, error) {
	r, err := c.call("routecap_request_extract_batch", func(p unsafe.Pointer) Result {
		return routecap_request_extract_batch(
			p,
			unsafe.SliceData(items),
			unsafe.Sizeof(ExtractItem{}),
			uintptr(len(items)),
		)
	})
	if err != nil {
		return nil, r, err
	}
	return newRoutings(len(items), func(i int) *unsafe.Pointer { return &items[i].routing }), r, nil
}

// ID is a Go type that ids can be copied to.
type ID interface {
	~uint8 | ~int16 | ~uint16 | ~int32 | ~uint32 | ~int64
}

// DefaultCopyOptions returns the defaults: all layers, [rows, layers, k] without gaps, missing
// cells filled with -1, and columns of valid cells that have no expert with NoExpert
// (routecap_copy_options_init).
func DefaultCopyOptions() CopyOptions {
	var options CopyOptions
	routecap_copy_options_init(&options, unsafe.Sizeof(options))
	return options
}

// ExtractInto copies rows of a request to the caller's memory without making a routing
// (routecap_request_extract_into): to dst as [rows, layers, k] ids of its type in the layout of the
// options, and to mask, unless nil, as [rows, layers] or [layers, rows] bytes: 1 where the cell is
// valid, otherwise 0. It returns how many elements dst needs, also with ErrBufferTooSmall: with a
// dst of nil that is a way to ask.
//
// Without strides dst has exactly so many elements, and mask one for each cell. With RowsLanded,
// whose number grows, they may have room for more.
//
// A Fill that is an expert id needs a mask or ReadStrict: missing cells must not pass for routing.
//
// Result and errors: as Extract, and ErrBufferTooSmall and ErrShapeMismatch, dst or mask is too
// short or too long, and nothing is written; ErrDType, the ids or the fill do not fit;
// ErrUnknownLayer; ErrArgument, strides that mix the cells of rows and layers, or a fill that is an
// expert id.
func ExtractInto[T ID](
	c *Capturer,
	request Request,
	first, rows uint64,
	options CopyOptions,
	dst []T,
	mask []uint8,
) (
	needed uint64, r Result, err error) {
	return copyIDs(
		&options,
		dst,
		mask,
		rows == RowsLanded || c.config.Role == RoleDisabled,
		c.config.K,
		func(p unsafe.Pointer, n uintptr, m *uint8, cells uintptr, needed *uint64) (Result, error) {
			return c.call("routecap_request_extract_into", func(capturer unsafe.Pointer) Result {
				return routecap_request_extract_into(
					capturer,
					request,
					first,
					rows,
					&options,
					p,
					n,
					m,
					cells,
					needed,
				)
			})
		},
	)
}

// CopyTo copies a routing to the caller's memory (routecap_routing_copy_to). It is to a routing
// what ExtractInto is to a request, with the same results and errors; Slice first to copy fewer
// rows. Without strides dst and mask are exactly as long as the copy.
func CopyTo[T ID](
	r *Routing,
	options CopyOptions,
	dst []T,
	mask []uint8,
) (needed uint64, outcome Result, err error) {
	var view cView
	if outcome, err = r.look(func(v *cView) { view = *v }); err != nil {
		return 0, outcome, err
	}
	return copyIDs(
		&options,
		dst,
		mask,
		false,
		view.k,
		func(p unsafe.Pointer, n uintptr, m *uint8, cells uintptr, needed *uint64) (Result, error) {
			return r.call("routecap_routing_copy_to", func(routing unsafe.Pointer) Result {
				return routecap_routing_copy_to(routing, &options, p, n, m, cells, needed)
			})
		},
	)
}

// Weight is a Go type that weights can be copied to: their values, or the bits of halves.
type Weight interface {
	~uint16 | ~float32
}

// holds reports whether T is the type of weights of a dtype.
func holds[T Weight](dtype DType) bool {
	if typeOf[T]() == DTypeF32 {
		return dtype == DTypeF32
	}
	return dtype == DTypeF16 || dtype == DTypeBF16
}

// CopyWeights copies the weights of a routing to the caller's memory
// (routecap_routing_copy_weights), laid out as CopyTo lays out the ids with the same options: to dst
// as values, to which halves are widened, or as the bits of the halves that the routing has; and to
// mask, unless nil, 1 where the cell has weights, otherwise 0. Weights that are missing are NaN, and
// columns without an expert have the weight 0. With ReadStrict every cell must have weights.
//
// Result and errors: as CopyTo; ErrDType, the routing has no weights, or not such.
func CopyWeights[T Weight](
	r *Routing,
	options CopyOptions,
	dst []T,
	mask []uint8,
) (needed uint64, outcome Result, err error) {
	var view cView
	if outcome, err = r.look(func(v *cView) { view = *v }); err != nil {
		return 0, outcome, err
	}
	options.dtype = DTypeF32
	if typeOf[T]() != DTypeF32 {
		if options.dtype = view.weightsDType; !holds[T](options.dtype) {
			outcome = Result{ErrDType, fmt.Sprintf("the weights have dtype %d, which is no half", options.dtype)}
			outcome, err = outcome.outcome("routecap_routing_copy_weights")
			return 0, outcome, err
		}
	}
	return copyCells(
		&options,
		dst,
		mask,
		false,
		view.k,
		func(p unsafe.Pointer, n uintptr, m *uint8, cells uintptr, needed *uint64) (Result, error) {
			return r.call("routecap_routing_copy_weights", func(routing unsafe.Pointer) Result {
				return routecap_routing_copy_weights(routing, &options, p, n, m, cells, needed)
			})
		},
	)
}

// copyIDs is copyCells for ids.
func copyIDs[T ID](
	options *CopyOptions,
	dst []T,
	mask []uint8,
	open bool,
	k uint32,
	call copyCall,
) (
	uint64, Result, error) {
	options.dtype = typeOf[T]()
	return copyCells(options, dst, mask, open, k, call)
}

type copyCall func(
	dst unsafe.Pointer,
	dstBytes uintptr,
	mask *uint8,
	maskBytes uintptr,
	needed *uint64,
) (Result, error)

// copyCells makes a copying call with dst and mask as C has them. Memory for a dense copy that is
// longer than it is refused: who made it took it for that of another shape. With `open` it may be.
func copyCells[T any](
	options *CopyOptions,
	dst []T,
	mask []uint8,
	open bool,
	k uint32,
	call copyCall,
) (
	uint64, Result, error) {
	size := uint64(unsafe.Sizeof(*new(T)))
	options.structSize = uint32(unsafe.Sizeof(*options))
	var bytes uint64
	first := unsafe.SliceData(mask)
	if dst != nil && !open && options.RowStride == 0 && options.LayerStride == 0 {
		r, err := call(nil, 0, first, 0, &bytes)
		if r.Status < 0 && r.Status != ErrBufferTooSmall {
			return bytes / size, r, err
		}
		ids := bytes / size
		cells := ids / uint64(max(k, 1))
		switch {
		case uint64(len(dst)) > ids:
			r = Result{ErrShapeMismatch, fmt.Sprintf("dst has %d elements, not %d", len(dst), ids)}
		case uint64(len(mask)) > cells:
			r = Result{ErrShapeMismatch, fmt.Sprintf("mask has %d elements, not %d", len(mask), cells)}
		default:
			r = Result{}
		}
		if r.Status != OK {
			r, err = r.outcome("routecap_copy_options")
			return ids, r, err
		}
	}
	r, err := call(
		unsafe.Pointer(unsafe.SliceData(dst)),
		uintptr(len(dst))*uintptr(size),
		first,
		uintptr(len(mask)),
		&bytes,
	)
	return bytes / size, r, err
}
