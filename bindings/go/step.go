//go:build cgo

package routecap

import (
	"cmp"
	"context"
	"sync"
	"time"
	"unsafe"
)

// Begin begins a step: forget what the sink holds and expect up to `rows` rows from this forward
// pass (routecap_step_begin). It belongs at the head of the forward pass; rows that are not begun
// are missing. A Begin after a forward that was never issued discards that forward. On the CUDA
// backend it may be part of a graph.
//
// Errors: ErrCapacity, more than the capturer's Rows.
func (c *Capturer) Begin(rows uint32, stream Stream) error {
	_, err := c.callAlone(
		"routecap_step_begin",
		func(p unsafe.Pointer) Result { return routecap_step_begin(p, rows, stream) },
	)
	return err
}

// Snapshot takes a snapshot of the rows begun, so that the next forward may write the sink
// (routecap_step_snapshot). It belongs behind the last write of the forward pass, on a stream that
// has joined all writers. On the CUDA backend it may be part of a graph.
func (c *Capturer) Snapshot(stream Stream) error {
	_, err := c.callAlone(
		"routecap_step_snapshot",
		func(p unsafe.Pointer) Result { return routecap_step_snapshot(p, stream) },
	)
	return err
}

// IssueOptions of Issue (routecap_issue_options).
type IssueOptions struct {
	// SnapshotTaken, the forward took it; SnapshotMake, issue takes it; SnapshotLater, nobody: the
	// rows arrive later (Arrive)
	Snapshot Snapshot
	Tag      uint64 // kept with every row of the step: a weight version, for instance
	// of int32 or int64: the position of each sink row, up to the last that a span with
	// SpanDevicePositions names. With SnapshotLater, Arrive reads them: they are a DeviceArray of C's
	// memory, which is valid until then
	Positions Array
}

// Issue hands the last forward pass to the library: it says which of its rows belong to which
// request (routecap_step_issue). They are filed in the background, in order of issue; the ticket
// refers to the step from now on. The spans are read in place and may be used again.
//
// A span of an unknown request, or one that is charged more memory than the budget has, is skipped
// and counted; the others are not affected. Rows that were accepted are refused later only where
// the system itself has no memory left. `status` receives for each span OK, ErrUnknownRequest or
// ErrNoMemory. If it is nil, skipped spans are the error ErrSkipped, a *SkippedError that has these,
// and the ticket that comes with it is valid. With no spans at all the step has landed at once.
//
// Each forward pass takes a slot until its step is filed. If none is free, the step is lost: it is
// issued and has landed, and all its rows are missing. That is the error ErrLost, a *LostError with
// the reason, and the ticket that comes with it is valid: an engine counts it and goes on. To lose
// none, have at most Slots - 1 steps in flight (Finalize) when you call Begin; where the begin is
// replayed as part of a graph, at most Slots - 2 when you call Issue. On the host backend nothing
// is lost without ConfigMayLose.
//
// Result: Partial, spans were skipped, with ErrSkipped if status is nil; Lost, with ErrLost. Other errors, with the step neither
// issued nor discarded: ErrArgument, a span without rows, unknown flags, positions beyond
// MaxPosition, empty bounds, no positions where a span needs them, or a status of another length;
// ErrShapeMismatch, too few positions; ErrCapacity, rows outside the sink; ErrConflict, a sink row
// in two spans without SpanShared; ErrOverlap; ErrDType; ErrCapturing. With ConfigChecked also,
// once, the slip that a device found in an earlier step.
func (c *Capturer) Issue(
	spans []Span,
	options IssueOptions,
	status []Status,
	stream Stream,
) (Step, Result, error) {
	var step Step
	own := status == nil && len(spans) > 0
	if own {
		kept := statusPool.Get().(*[]Status)
		if cap(*kept) < len(spans) {
			*kept = make([]Status, len(spans))
		}
		status = (*kept)[:len(spans)]
		defer statusPool.Put(kept)
	}
	r, err := c.callWithArrays("routecap_step_issue", func(p unsafe.Pointer, a *arrays) Result {
		if status != nil && len(status) != len(spans) {
			return Result{ErrArgument, "there is not one status for each span"}
		}
		cc := cIssueOptions{
			structSize: uint32(unsafe.Sizeof(cIssueOptions{})),
			snapshot:   options.Snapshot,
			tag:        options.Tag,
		}
		if options.Snapshot == SnapshotLater && options.Positions.memory != nil {
			return Result{ErrArgument, "Positions is Go's memory, and Arrive would read it"}
		}
		if !options.Positions.none() {
			named := uint64(0)
			for i := range spans {
				if spans[i].Flags&SpanDevicePositions != 0 {
					named = max(named, uint64(spans[i].SinkRow)+uint64(spans[i].Rows))
				}
			}
			cc.positions = a.at("Positions", options.Positions, 0, int64(named)-1)
			cc.positionsDType = options.Positions.dtype
			if a.refused.Status != OK {
				return a.refused
			}
		}
		return routecap_step_issue(
			p,
			unsafe.SliceData(spans),
			unsafe.Sizeof(Span{}),
			uintptr(len(spans)),
			&cc,
			unsafe.SliceData(status),
			&step,
			stream,
		)
	})
	if err == nil && r.Status == Lost {
		err = &LostError{step, r.Text}
	}
	if err == nil && r.Status == Partial && own {
		err = &SkippedError{step, append([]Status(nil), status...), r.Text}
	}
	return step, r, err
}

// Statuses of spans, for callers of Issue who want none.
var statusPool = sync.Pool{New: func() any { return new([]Status) }}

// ArrivedRows are the rows of a step that arrive later, of all layers (routecap_sink).
type ArrivedRows struct {
	// of int16, int32 or int64, beginning at row 0, column 0 of layer 0: exactly [layers, Rows, K],
	// or as the strides say
	IDs         Array
	Rows        uint32 // rows present; sink rows beyond are missing
	RowStride   int64  // elements from one row to the next, K or more; 0 means K
	LayerStride int64  // elements from one layer to the next, K or more; 0 means Rows * RowStride
	// the weights of the same cells, of the capturer's WeightsDType, in an array that is laid out
	// alike; none: they are missing
	Weights Array
}

// pass returns the rows as C has them. C refuses strides below K before it reads.
func (r *ArrivedRows) pass(a *arrays) Sink {
	k := a.c.config.K
	sink := Sink{structSize: uint32(unsafe.Sizeof(Sink{})), DType: r.IDs.dtype, Rows: r.Rows, K: k}
	if r.Rows == 0 { // nothing is read, whatever the strides are
		return sink
	}
	sink.RowStride, sink.LayerStride, sink.IDsBytes = r.RowStride, r.LayerStride, r.IDs.bytes()
	sink.IDs = r.passCells(a, "IDs", r.IDs)
	if dtype := a.c.config.WeightsDType; !r.Weights.none() && r.Weights.dtype != dtype {
		a.refuse(ErrDType, "Weights has dtype %d, and the capturer's weights %d", r.Weights.dtype, dtype)
		return sink
	}
	sink.WeightsDType, sink.WeightsBytes = r.Weights.dtype, r.Weights.bytes()
	sink.Weights = r.passCells(a, "Weights", r.Weights)
	return sink
}

func (r *ArrivedRows) passCells(a *arrays, name string, cells Array) DevicePointer {
	k := a.c.config.K
	if r.RowStride == 0 && r.LayerStride == 0 {
		return a.exactly(
			name,
			cells,
			product(a.c.config.Layers, r.Rows, k),
			"layers x Rows x K; set the strides where they lie otherwise",
		)
	}
	row := cmp.Or(r.RowStride, int64(k))
	rows := extent(r.Rows, row)
	layer := r.LayerStride
	if layer == 0 && rows != outOfReach {
		layer = rows + row
	}
	layers := extent(a.c.config.Layers, layer)
	if rows == outOfReach || layers == outOfReach {
		return a.refuse(
			ErrShapeMismatch,
			"%s has %d elements and impossible strides",
			name,
			cells.length,
		)
	}
	return a.at(name, cells, 0, layers+rows+int64(k)-1)
}

// Arrive hands over the rows of a step that was issued with SnapshotLater (routecap_step_arrive):
// the way to capture a device that the library has no backend for, by a capturer on the host
// backend. nil: they will not come, and the step is lost.
//
// The rows are copied, and every cell checked, before the call returns; it does not wait. Steps may
// arrive in any order, and are filed in that of their issue. It does nothing for rows that were
// handed over before, and for a step that has landed or was issued in another way.
//
// Fill the device's memory with bytes 0x80 before each forward: what that does not write is then
// missing. The capturer never begins a step, and needs no sink (ConfigExternalSink). A step for
// which no slot is free is lost, without ConfigMayLose too: have at most Slots - 1 in flight when
// you call Issue.
//
// Errors: ErrUnknownStep, never issued; ErrShapeMismatch, IDs is not as long as Rows and the
// strides say, or a stride below K; ErrDType. The rows can still arrive then.
func (c *Capturer) Arrive(step Step, rows *ArrivedRows) error {
	_, err := c.call("routecap_step_arrive", func(p unsafe.Pointer) Result {
		if rows == nil {
			return routecap_step_arrive(p, step, nil)
		}
		a := arrays{c: c}
		defer a.pin.Unpin()
		sink := rows.pass(&a)
		if a.refused.Status != OK {
			return a.refused
		}
		return routecap_step_arrive(p, step, &sink)
	})
	return err
}

// Discard forgets the last forward pass: for warm-up, profiling and dummy runs that will not be
// issued (routecap_step_discard). The next Begin does the same.
//
// Errors: ErrCapturing.
func (c *Capturer) Discard(stream Stream) error {
	_, err := c.callAlone(
		"routecap_step_discard",
		func(p unsafe.Pointer) Result { return routecap_step_discard(p, stream) },
	)
	return err
}

// Poll says whether a step has landed, that is, whether its rows can be read (routecap_step_poll).
// It does not wait.
//
// Result: OK; Lost, landed and lost (known for the last 1024 steps), with a text that says why;
// Pending. Errors: ErrUnknownStep, never issued.
func (c *Capturer) Poll(step Step) (Result, error) {
	return c.call(
		"routecap_step_poll",
		func(p unsafe.Pointer) Result { return routecap_step_poll(p, step) },
	)
}

// Finalize waits until a step has landed, or ctx ends (routecap_step_finalize), and says how many
// cells of the step were recorded twice (known for the last 1024 steps). A goroutine that waits
// takes a thread; it looks at least once, and notices the end of ctx within 20 ms.
//
// Result: OK; Lost; Pending, with the error of ctx. Errors: ErrUnknownStep, never issued; the error
// of ctx; with ConfigChecked the slips that a device found in this step, which has landed all the
// same.
func (c *Capturer) Finalize(
	ctx context.Context,
	step Step,
) (conflicting uint64, r Result, err error) {
	r, err = wait(ctx, func(timeout time.Duration) (Result, error) {
		return c.call("routecap_step_finalize", func(p unsafe.Pointer) Result {
			return routecap_step_finalize(p, step, timeout.Nanoseconds(), &conflicting)
		})
	})
	return conflicting, r, err
}

// How long C may wait before somebody looks whether the context has ended or the object is to be
// closed.
const patience = 20 * time.Millisecond

// wait calls f, which waits for a time, until it no longer says Pending or the context ends.
func wait(ctx context.Context, f func(timeout time.Duration) (Result, error)) (Result, error) {
	for {
		timeout := patience
		if deadline, ok := ctx.Deadline(); ok {
			timeout = max(0, min(timeout, time.Until(deadline)))
		}
		if ctx.Err() != nil {
			timeout = 0
		}
		r, err := f(timeout)
		if err != nil || r.Status != Pending {
			return r, err
		}
		if timeout == 0 {
			<-ctx.Done() // at its deadline, if not before
			return r, ctx.Err()
		}
	}
}
