//go:build cgo

package routecap

import (
	"cmp"
	"runtime"
	"unsafe"
)

// Received is what one dispatch brought to this rank (routecap_received, experimental): tensors of
// DeepEP v2, whose names are in the header.
type Received struct {
	Flags           ReceivedFlags
	Ranks           uint32 // of the dispatch, 1..1024
	Rank            uint32 // this one
	Experts         uint32 // a multiple of Ranks; 0 means the layer's
	K               uint32 // columns of the dispatched ids; 0 means the capturer's
	TokensPerRank   uint32 // of this very dispatch; times Ranks at most MaxReceived
	Rows            uint32 // of Metadata, at most Ranks * TokensPerRank
	LiveRows        Array  // one int32: only so many rows were received; none: all
	Metadata        Array  // [Rows, 2 + K] of int32; may be none if Executed is
	IDs             Array  // [Rows, K] of int32 or int64; none with ReceivedExpanded
	ExpertEnds      Array  // [Experts / Ranks] of int32 with ReceivedExpanded; otherwise none
	ExpertAlignment uint32 // with ReceivedExpanded; 0 means 1. Otherwise 0
	ExpandedRows    uint32 // with ReceivedExpanded. Otherwise 0
	DType           DType  // I32 or I64: of IDs and GlobalIDs. Required
	// receives [Rows, K], or with ReceivedExpanded [ExpandedRows]; none: not wanted. May be IDs
	GlobalIDs Array
	// receives [Ranks, TokensPerRank, K] of int32; none: not wanted. Written whole, -1 included
	Executed Array
	// one uint64 (DTypeI64 of a device), to which is added how many columns were ignored; none: not
	// counted
	Ignored Array
}

// ReadReceived reads what an expert-parallel dispatch brought to this rank, into memory of the
// caller (routecap_received_read, experimental): the ids of the received rows, and which experts
// were executed here for each source token. Of `layer` only its number of experts is used.
//
// Errors: ErrUnknownLayer; ErrDType; ErrArgument, a number beyond its limit, an array that is
// needed or too short, nothing wanted; ErrShapeMismatch, Experts not a multiple of Ranks, or Rows
// beyond Ranks * TokensPerRank.
func (c *Capturer) ReadReceived(layer uint32, received Received, stream Stream) error {
	_, err := c.callWithArrays("routecap_received_read", func(p unsafe.Pointer, a *arrays) Result {
		r := &received
		k := cmp.Or(r.K, c.config.K)
		globals := product(r.Rows, k)
		if r.Flags&ReceivedExpanded != 0 {
			globals = uint64(r.ExpandedRows)
		}
		cc := cReceived{
			structSize:    uint32(unsafe.Sizeof(cReceived{})),
			flags:         r.Flags,
			ranks:         r.Ranks,
			rank:          r.Rank,
			experts:       r.Experts,
			k:             r.K,
			tokensPerRank: r.TokensPerRank,
			rows:          r.Rows,
			liveRows:      a.list("LiveRows", r.LiveRows, DTypeI32, 1),
			metadata:      a.list("Metadata", r.Metadata, DTypeI32, product(r.Rows, k+2)),
			ids:           a.list("IDs", r.IDs, r.DType, product(r.Rows, k)),
			expertEnds: a.list(
				"ExpertEnds",
				r.ExpertEnds,
				DTypeI32,
				uint64(cmp.Or(r.Experts, c.expertsOf(layer))/max(r.Ranks, 1)),
			),
			expertAlignment: r.ExpertAlignment,
			expandedRows:    r.ExpandedRows,
			dtype:           r.DType,
			globalIDs:       a.list("GlobalIDs", r.GlobalIDs, r.DType, globals),
			executed: a.list(
				"Executed",
				r.Executed,
				DTypeI32,
				product(r.Ranks, r.TokensPerRank, k),
			),
			ignored: a.list("Ignored", r.Ignored, 0, 1),
		}
		if !r.Ignored.none() && r.Ignored.size != 8 {
			a.refuse(ErrDType, "Ignored has elements of %d bytes, not 8", r.Ignored.size)
		}
		if a.refused.Status != OK {
			return a.refused
		}
		return routecap_received_read(p, layer, &cc, stream)
	})
	return err
}

// ReceivedMerge merges the Executed tables of all ranks, copied to the host, into the whole rows of
// all tokens (routecap_received_merge, experimental): the highest id of each cell, -1 where no
// table has one. All have the length of `merged`, which may be one of them.
//
// Errors: ErrConflict, two tables have different ids in one cell, and nothing is written;
// ErrArgument, tables of different lengths.
func ReceivedMerge(executed [][]int32, merged []int32) error {
	call := func() Result {
		var pin runtime.Pinner
		defer pin.Unpin()
		tables := make([]unsafe.Pointer, len(executed))
		for i, t := range executed {
			if len(t) != len(merged) {
				return Result{ErrArgument, "the tables have different lengths"}
			}
			tables[i] = pinSlice(&pin, t)
		}
		return routecap_received_merge(
			unsafe.SliceData(tables),
			uintptr(len(tables)),
			uintptr(len(merged)),
			unsafe.SliceData(merged),
		)
	}
	_, err := call().outcome("routecap_received_merge")
	return err
}
