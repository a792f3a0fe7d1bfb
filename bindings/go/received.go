//go:build cgo

package routecap

import "unsafe"

// Received is what this rank sent and received in one dispatch (routecap_received, experimental):
// tensors of DeepEP v2, whose names are in the header. ReadReceived adds what this rank executed to
// its table; when the tables of all ranks have been added up, CompareReceived counts what is equal
// to the ids that the router chose.
type Received struct {
	Flags           ReceivedFlags // read
	Ranks           uint32        // of the dispatch, 1..1024
	Rank            uint32        // this one
	Experts         uint32        // a multiple of Ranks
	K               uint32        // columns of the dispatched ids
	TokensPerRank   uint32        // of this very dispatch; times Ranks at most MaxReceived
	Rows            uint32        // read: of Metadata, at most Ranks * TokensPerRank
	LiveRows        Array         // read: one int32: only so many rows were received; none: all
	Metadata        Array         // read: [Rows, 2 + K] of int32
	IDs             Array         // read: [Rows, K] of int32 or int64; none with ReceivedExpanded
	ExpertEnds      Array         // read: [Experts / Ranks] of int32 with ReceivedExpanded; else none
	ExpertAlignment uint32        // read: with ReceivedExpanded; 0 means 1. Otherwise 0
	ExpandedRows    uint32        // read: with ReceivedExpanded. Otherwise 0
	DType           DType         // I32 or I64: of IDs and TopkIDs. Required
	Tokens          uint32        // compare: that this rank sent, at most TokensPerRank
	TopkIDs         Array         // compare: [Tokens, K] what the router of this rank chose
	// [Ranks, TokensPerRank, K] of int32: zero it before read, add it up over all ranks before
	// compare
	Executed Array
	// nine numbers of 64 bits, to which both calls add: those of ReceivedCounts, in their order
	Counts Array
}

// ReadReceived adds what this rank executed of one dispatch to its table (routecap_received_read,
// experimental).
//
// Errors: ErrDType; ErrArgument, a number beyond its limit, or an array that is needed;
// ErrShapeMismatch, an array of another length, Experts not a multiple of Ranks, or Rows beyond
// Ranks * TokensPerRank.
func (c *Capturer) ReadReceived(received Received, stream Stream) error {
	_, err := c.callWithArrays("routecap_received_read", func(p unsafe.Pointer, a *arrays) Result {
		cc := received.toC(a)
		if a.refused.Status != OK {
			return a.refused
		}
		return routecap_received_read(p, &cc, stream)
	})
	return err
}

// CompareReceived counts what the sum of all ranks' tables has of the ids that the router of this
// rank chose (routecap_received_compare, experimental).
//
// Errors: as of ReadReceived, and ErrShapeMismatch for more Tokens than TokensPerRank.
func (c *Capturer) CompareReceived(received Received, stream Stream) error {
	_, err := c.callWithArrays(
		"routecap_received_compare",
		func(p unsafe.Pointer, a *arrays) Result {
			cc := received.toC(a)
			if a.refused.Status != OK {
				return a.refused
			}
			return routecap_received_compare(p, &cc, stream)
		},
	)
	return err
}

func (r *Received) toC(a *arrays) cReceived {
	if !r.Counts.none() && r.Counts.size != 8 {
		a.refuse(ErrDType, "Counts has elements of %d bytes, not 8", r.Counts.size)
	}
	counts := uint64(unsafe.Sizeof(ReceivedCounts{}) / 8)
	return cReceived{
		structSize:    uint32(unsafe.Sizeof(cReceived{})),
		flags:         r.Flags,
		ranks:         r.Ranks,
		rank:          r.Rank,
		experts:       r.Experts,
		k:             r.K,
		tokensPerRank: r.TokensPerRank,
		rows:          r.Rows,
		liveRows:      a.number("LiveRows", r.LiveRows, DTypeI32),
		metadata:      a.list("Metadata", r.Metadata, DTypeI32, product(r.Rows, r.K+2), "Rows x (2 + K)"),
		ids:           a.list("IDs", r.IDs, r.DType, product(r.Rows, r.K), "Rows x K"),
		expertEnds: a.list(
			"ExpertEnds",
			r.ExpertEnds,
			DTypeI32,
			uint64(r.Experts/max(r.Ranks, 1)),
			"one for each expert of this rank",
		),
		expertAlignment: r.ExpertAlignment,
		expandedRows:    r.ExpandedRows,
		dtype:           r.DType,
		tokens:          r.Tokens,
		topkIDs:         a.list("TopkIDs", r.TopkIDs, r.DType, product(r.Tokens, r.K), "Tokens x K"),
		executed: a.list(
			"Executed",
			r.Executed,
			DTypeI32,
			product(r.Ranks, r.TokensPerRank, r.K),
			"Ranks x TokensPerRank x K",
		),
		counts: a.list("Counts", r.Counts, 0, counts, "the fields of ReceivedCounts"),
	}
}
