//go:build cgo

package routecap

import (
	"runtime"
	"unsafe"
)

// Open opens a request: a sequence to be captured (routecap_request_open).
//
// Errors: ErrTooManyRequests.
func (c *Capturer) Open(policy Policy) (Request, error) {
	var one [1]Request
	err := c.OpenBatch(one[:], policy)
	return one[0], err
}

// OpenBatch opens as many requests as the slice has elements, and puts them there
// (routecap_request_open). On error none is opened.
//
// Errors: ErrTooManyRequests.
func (c *Capturer) OpenBatch(requests []Request, policy Policy) error {
	options := cOpenOptions{structSize: uint32(unsafe.Sizeof(cOpenOptions{})), policy: policy}
	_, err := c.call("routecap_request_open", func(p unsafe.Pointer) Result {
		return routecap_request_open(
			p,
			&options,
			unsafe.SliceData(requests),
			uintptr(len(requests)),
		)
	})
	return err
}

// Accept settles the speculative rows of a request in one step: the first `count` are kept, the
// others dropped (routecap_request_accept). It may come before the step has landed and after later
// steps were issued. The rows of a step are settled once.
//
// Errors: ErrUnknownRequest; ErrUnknownStep, no speculative rows of this request wait there;
// ErrOutOfRange, more rows than there are.
func (c *Capturer) Accept(request Request, step Step, count uint64) error {
	_, err := c.call("routecap_request_accept", func(p unsafe.Pointer) Result {
		return routecap_request_accept(p, request, step, nil, uintptr(count))
	})
	return err
}

// AcceptRows is Accept for the accepted path of a tree: `rows` are strictly ascending indices into
// the request's speculative rows of that step as they were issued, in the order of the spans.
func (c *Capturer) AcceptRows(request Request, step Step, rows []uint32) error {
	_, err := c.call("routecap_request_accept", func(p unsafe.Pointer) Result {
		return routecap_request_accept(p, request, step, unsafe.SliceData(rows), uintptr(len(rows)))
	})
	return err
}

// SetRows makes the item one of AcceptRows, with these rows instead of the first Count, which is
// now theirs and must not be changed.
func (item *AcceptItem) SetRows(rows []uint32) {
	item.rows, item.Count = unsafe.Pointer(unsafe.SliceData(rows)), uint64(len(rows))
}

// AcceptBatch settles the speculative rows of many requests in one call
// (routecap_request_accept_batch), and sets the Status of each item.
//
// Result: Partial, some items were refused.
func (c *Capturer) AcceptBatch(items []AcceptItem) (Result, error) {
	return c.call("routecap_request_accept_batch", func(p unsafe.Pointer) Result {
		var pin runtime.Pinner
		defer pin.Unpin()
		for i := range items {
			if items[i].rows != nil {
				pin.Pin(items[i].rows)
			}
		}
		return routecap_request_accept_batch(
			p,
			unsafe.SliceData(items),
			unsafe.Sizeof(AcceptItem{}),
			uintptr(len(items)),
		)
	})
}

// Truncate cuts a request: rows at and after position `rows` are gone, whether settled, provisional
// or in flight (routecap_request_truncate). Later spans may record those positions anew. Nothing
// happens if the request is shorter.
//
// Errors: ErrUnknownRequest.
func (c *Capturer) Truncate(request Request, rows uint64) error {
	_, err := c.call(
		"routecap_request_truncate",
		func(p unsafe.Pointer) Result { return routecap_request_truncate(p, request, rows) },
	)
	return err
}

// Fork opens a request that begins with the first `rows` rows of another, or RowsAll: several
// samples of one prompt, a beam (routecap_request_fork). The pages are shared. Rows in flight are
// included once they land; provisional rows are not. The child has the parent's policy.
//
// Errors: ErrUnknownRequest; ErrOutOfRange, more rows than the parent's length; ErrTooManyRequests.
func (c *Capturer) Fork(request Request, rows uint64) (Request, error) {
	var child Request
	_, err := c.call(
		"routecap_request_fork",
		func(p unsafe.Pointer) Result { return routecap_request_fork(p, request, rows, &child) },
	)
	return child, err
}

// Attach supplies rows of a routing as rows of a request: positions before `rows`, or RowsAll, that
// an engine took from its prefix cache, from the routing of the request that computed them
// (routecap_request_attach). Cells that the request has already are kept. The routing may be closed
// at once. It may be pending if it comes from a request of the same capturer.
//
// Errors: ErrUnknownRequest; ErrShapeMismatch, also a layer that is recomputed in the routing and
// captured here; ErrOutOfRange, rows beyond the routing; ErrNotReady, pending and of another
// capturer.
func (c *Capturer) Attach(request Request, routing *Routing, rows uint64) error {
	const op = "routecap_request_attach"
	if !routing.enter() {
		_, err := closed.outcome(op)
		return err
	}
	defer routing.leave()
	_, err := c.call(
		op,
		func(p unsafe.Pointer) Result { return routecap_request_attach(p, request, *routing.object, rows) },
	)
	return err
}

// Finish ends a request and returns its rows: the ordinary end (routecap_request_finish). The
// request is unknown at once; the routing is ready when the last step issued before has landed
// (Wait). It has exactly `rows` rows, from position 0 on: later ones are cut, absent ones are
// missing. A sequence of S tokens has S-1. RowsAll: the request's length, rows issued ahead
// included. Speculative rows that were not accepted are dropped.
//
// Errors: ErrUnknownRequest; ErrOutOfRange, rows beyond MaxPosition; ErrDisabled.
func (c *Capturer) Finish(request Request, rows uint64) (*Routing, error) {
	var routing unsafe.Pointer
	_, err := c.call(
		"routecap_request_finish",
		func(p unsafe.Pointer) Result { return routecap_request_finish(p, request, rows, &routing) },
	)
	return newRouting(routing), err
}

// FinishBatch ends many requests in one call (routecap_request_finish_batch), and sets the Status
// of each item. The routings are those of the items, nil for those that were refused. Those that
// are not closed are collected together.
//
// Result: Partial, some items were refused. Errors: ErrDisabled.
func (c *Capturer) FinishBatch(items []FinishItem) ([]*Routing, Result, error) {
	r, err := c.call("routecap_request_finish_batch", func(p unsafe.Pointer) Result {
		return routecap_request_finish_batch(
			p,
			unsafe.SliceData(items),
			unsafe.Sizeof(FinishItem{}),
			uintptr(len(items)),
		)
	})
	if err != nil {
		return nil, r, err
	}
	return newRoutings(len(items), func(i int) *unsafe.Pointer { return &items[i].routing }), r, nil
}

// CloseRequest ends a request and drops its rows: an abort, or a preemption whose rows are not
// wanted (routecap_request_close). 0 is ignored.
//
// Errors: ErrUnknownRequest.
func (c *Capturer) CloseRequest(request Request) error {
	_, err := c.call(
		"routecap_request_close",
		func(p unsafe.Pointer) Result { return routecap_request_close(p, request) },
	)
	return err
}

// CloseRequests ends many requests and drops their rows (routecap_request_close_batch). `status` is
// nil or receives the status of each.
//
// Result: Partial, some were unknown. Errors: ErrArgument, a status of another length.
func (c *Capturer) CloseRequests(requests []Request, status []Status) (Result, error) {
	return c.call("routecap_request_close_batch", func(p unsafe.Pointer) Result {
		if status != nil && len(status) != len(requests) {
			return Result{ErrArgument, "there is not one status for each request"}
		}
		return routecap_request_close_batch(
			p,
			unsafe.SliceData(requests),
			unsafe.SliceData(status),
			uintptr(len(requests)),
		)
	})
}
