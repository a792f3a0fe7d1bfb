// Package routecap captures which experts every token was sent to, in every layer of a
// mixture-of-experts model, from any inference engine. It is the Go face of the C library routecap:
// in it as a released module, through pkg-config in the sources.
//
// # Concepts
//
//   - Capturer: one per rank and device; owns the sink, the pages and the requests.
//   - Layer: index 0..Layers-1 among the captured (MoE) layers; the layer map gives each its index
//     in the decoder.
//   - Expert id: in [0, Experts), as the router chose it.
//   - Sink: buffer (layers, rows, k) into which a forward pass writes its ids; its addresses never
//     change.
//   - Step: one forward pass: Begin, writes (Record and its like), Snapshot, Issue. The ticket that
//     Issue returns names it.
//   - Span: a run of sink rows of one step that belong to one request, at consecutive positions.
//   - Row: the k ids of every layer for one input token. A sequence of S tokens has S-1 rows,
//     because the last one is not input.
//   - Cell: one row in one layer. It is valid only if that layer wrote k distinct ids in range for
//     that row in that step; validity is kept beside the ids, because every id value is an ordinary
//     expert.
//   - Routing: rows that were read out; immutable, outlives request and capturer.
//
// Forget a call, and rows are missing and reported as missing; they are never wrong. The C header,
// routecap.h, is the manual; every method here names its function there and adds what is Go's.
//
// # Errors and results
//
// A call that fails returns an *Error with the status and one line of text, and has changed
// nothing; errors.Is compares with the statuses (ErrUnknownRequest and so on) and with ErrClosed. A
// call that succeeds in part returns no error and a Result that says so, with one exception: a step
// that Issue could only lose is an error, ErrLost, that comes with a valid ticket.
//
// # Goroutines
//
// All methods may be called from any goroutine at any time, but for those of a Capturer that take a
// Stream or are about the sink: an engine calls these in its own order, one at a time. A second one
// at the same time gets ErrState. Finalize, Routing.Wait, Probe and Capturer.Close wait and take a
// thread meanwhile; nothing else does. A CUDA graph is captured, and the per-thread default stream
// used, on one thread: runtime.LockOSThread.
//
// # Memory
//
// Capturers and routings are memory of C and have to be closed. One that is collected without is
// freed as well, but some time later: the collector does not see how much it holds. Arguments are
// used during the call and belong to the caller; slices that are passed in are pinned for its
// length, spans and batches of items are passed as they are, without a copy. What a View shows is
// the routing's own memory, valid until its Close.
//
// Arrays that the stream's work reads or writes are Go's on the host backend only; the device has
// its own, which DeviceArray names.
package routecap
