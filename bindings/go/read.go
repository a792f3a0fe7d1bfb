//go:build cgo

package routecap

import "unsafe"

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
// cells filled with -1 (routecap_copy_options_init).
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
// A Fill that is an expert id needs a mask or ReadStrict: missing cells must not pass for routing.
//
// Result and errors: as Extract, and ErrBufferTooSmall, dst or mask, and nothing is written;
// ErrDType, the ids or the fill do not fit; ErrUnknownLayer; ErrArgument, strides that mix the
// cells of rows and layers, or a fill that is an expert id.
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
		func(p unsafe.Pointer, bytes uintptr, needed *uint64) (Result, error) {
			return c.call("routecap_request_extract_into", func(capturer unsafe.Pointer) Result {
				return routecap_request_extract_into(
					capturer,
					request,
					first,
					rows,
					&options,
					p,
					bytes,
					unsafe.SliceData(mask),
					uintptr(len(mask)),
					needed,
				)
			})
		},
	)
}

// CopyTo copies a routing to the caller's memory (routecap_routing_copy_to). It is to a routing
// what ExtractInto is to a request, with the same results and errors; Slice first to copy fewer
// rows.
func CopyTo[T ID](
	r *Routing,
	options CopyOptions,
	dst []T,
	mask []uint8,
) (needed uint64, outcome Result, err error) {
	return copyIDs(
		&options,
		dst,
		func(p unsafe.Pointer, bytes uintptr, needed *uint64) (Result, error) {
			return r.call("routecap_routing_copy_to", func(routing unsafe.Pointer) Result {
				return routecap_routing_copy_to(
					routing,
					&options,
					p,
					bytes,
					unsafe.SliceData(mask),
					uintptr(len(mask)),
					needed,
				)
			})
		},
	)
}

// copyIDs makes a copying call with dst as C has it.
func copyIDs[T ID](
	options *CopyOptions,
	dst []T,
	call func(dst unsafe.Pointer, bytes uintptr, needed *uint64) (Result, error),
) (
	uint64, Result, error) {
	size := unsafe.Sizeof(*new(T))
	options.structSize, options.dtype = uint32(unsafe.Sizeof(*options)), typeOf[T]()
	var bytes uint64
	r, err := call(unsafe.Pointer(unsafe.SliceData(dst)), uintptr(len(dst))*size, &bytes)
	return bytes / uint64(size), r, err
}
