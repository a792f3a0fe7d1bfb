//go:build cgo

package routecap

import (
	"runtime"
	"unsafe"
)

// SequenceConfig is what a sequence holds: rows of so many layers, of K ids in [0, Experts).
type SequenceConfig struct {
	Layers  uint32 // captured (MoE) layers; default those of LayerMap or LayerExperts
	K       uint32 // experts per token, the most of any layer
	Experts uint32 // required unless LayerExperts is set
	IDSpace IDSpace
	// of its weights, as in Config; default none
	WeightsDType DType
	// the most memory for rows and tokens, of the sequence and all its forks together; 0: no limit
	BudgetBytes  uint64
	LayerMap     []int32  // index of each captured layer in the decoder, strictly ascending
	LayerExperts []uint32 // experts of each layer where they differ
	LayerK       []uint32 // as in Config, as are the next two
	LayerMinK    []uint32
	LayerVisit   []uint32
}

// Sequence is one conversation: its token ids, and the rows that its turns brought, each once. S
// tokens have S-1 rows. It has to be closed. It may be used from one goroutine at a time; its forks
// are other sequences.
type Sequence struct {
	handle
}

// newSequence takes over a sequence; nil gives nil.
func newSequence(pointer unsafe.Pointer) *Sequence {
	if pointer == nil {
		return nil
	}
	s := &Sequence{}
	s.object = &[]unsafe.Pointer{pointer}[0]
	s.cleanup = runtime.AddCleanup(
		s,
		func(object *unsafe.Pointer) { routecap_sequence_free(*object) },
		s.object,
	)
	return s
}

// NewSequence makes an empty sequence (routecap_sequence_create).
//
// Errors: ErrArgument; ErrShapeMismatch, a list is not as long as there are layers.
func NewSequence(config SequenceConfig) (*Sequence, error) {
	const op = "routecap_sequence_create"
	layers := config.Layers
	if layers == 0 {
		layers = uint32(max(len(config.LayerMap), len(config.LayerExperts)))
	}
	lists := layerLists(config.LayerMap, config.LayerExperts, config.LayerK, config.LayerMinK, config.LayerVisit)
	if wrong := misfit(lists, int(layers)); wrong != nil {
		_, err := Result{ErrShapeMismatch, wrong.says(int(layers))}.outcome(op)
		return nil, err
	}
	var pin runtime.Pinner
	defer pin.Unpin()
	c := cSequenceConfig{
		structSize:   uint32(unsafe.Sizeof(cSequenceConfig{})),
		layers:       layers,
		k:            config.K,
		experts:      config.Experts,
		idSpace:      config.IDSpace,
		weightsDType: config.WeightsDType,
		budgetBytes:  config.BudgetBytes,
		layerMap:     pinSlice(&pin, config.LayerMap),
		layerExperts: pinSlice(&pin, config.LayerExperts),
		layerK:       pinSlice(&pin, config.LayerK),
		layerMinK:    pinSlice(&pin, config.LayerMinK),
		layerVisit:   pinSlice(&pin, config.LayerVisit),
	}
	var sequence unsafe.Pointer
	_, err := routecap_sequence_create(&c, &sequence).outcome(op)
	return newSequence(sequence), err
}

// Close frees the sequence (routecap_sequence_free). Routings that it gave out and its forks stay
// as they are. A second Close does nothing. It returns nil.
func (s *Sequence) Close() error {
	s.close(routecap_sequence_free)
	collectLoans()
	return nil
}

// Append adds a turn: its tokens, of which the first is at position tokenStart, and its rows, at
// their own positions; routing may be nil (routecap_sequence_append). Give all tokens of the turn,
// from 0 on, if you have them: only tokens that are given are compared.
//
// Result: OK; Incomplete, cells of the sequence are missing now. Errors: ErrOutOfRange;
// ErrShapeMismatch; ErrConflict, with AppendEqual; ErrNotReady; ErrState, the sequence does not
// know its tokens; ErrNoMemory. Nothing has changed on an error.
func (s *Sequence) Append(
	tokens []int32,
	tokenStart uint64,
	routing *Routing,
	options AppendOptions,
) (AppendReport, Result, error) {
	const op = "routecap_sequence_append"
	options.structSize = uint32(unsafe.Sizeof(options))
	report := newAppendReport()
	var rows unsafe.Pointer
	if routing != nil {
		if !routing.enter() {
			r, err := closed.outcome(op)
			return report, r, err
		}
		defer routing.leave()
		rows = *routing.object
	}
	r, err := s.call(op, func(p unsafe.Pointer) Result {
		return routecap_sequence_append(
			p,
			unsafe.SliceData(tokens),
			tokenStart,
			uint64(len(tokens)),
			rows,
			&options,
			&report,
		)
	})
	return report, r, err
}

func newAppendReport() AppendReport {
	return AppendReport{structSize: uint32(unsafe.Sizeof(AppendReport{}))}
}

// Truncate keeps the first tokens (routecap_sequence_truncate).
//
// Errors: ErrState, the sequence does not know its tokens, and `tokens` is not a multiple of
// DigestTokens.
func (s *Sequence) Truncate(tokens uint64) error {
	_, err := s.call(
		"routecap_sequence_truncate",
		func(p unsafe.Pointer) Result { return routecap_sequence_truncate(p, tokens) },
	)
	return err
}

// Fork returns a sequence that begins with the first tokens of this one, or with RowsAll
// (routecap_sequence_fork). Rows are shared.
//
// Errors: ErrOutOfRange; ErrState, as of Truncate; ErrNoMemory.
func (s *Sequence) Fork(tokens uint64) (*Sequence, error) {
	var child unsafe.Pointer
	_, err := s.call(
		"routecap_sequence_fork",
		func(p unsafe.Pointer) Result { return routecap_sequence_fork(p, tokens, &child) },
	)
	return newSequence(child), err
}

// Routing returns the rows of the whole conversation, as they are now (routecap_sequence_routing).
// Pages are shared.
//
// Result: OK; Incomplete; NotCaptured.
func (s *Sequence) Routing() (*Routing, Result, error) {
	var routing unsafe.Pointer
	r, err := s.call(
		"routecap_sequence_routing",
		func(p unsafe.Pointer) Result { return routecap_sequence_routing(p, &routing) },
	)
	return newRouting(routing), r, err
}

// Spans says which rows came from which turn (routecap_sequence_spans).
func (s *Sequence) Spans() ([]SequenceSpan, error) {
	var spans []SequenceSpan
	var count uint64
	_, err := s.call("routecap_sequence_spans", func(p unsafe.Pointer) Result {
		if r := routecap_sequence_spans(p, nil, unsafe.Sizeof(SequenceSpan{}), 0, &count); r.Status < 0 {
			return r
		}
		spans = make([]SequenceSpan, count)
		return routecap_sequence_spans(
			p,
			unsafe.SliceData(spans),
			unsafe.Sizeof(SequenceSpan{}),
			uintptr(count),
			&count,
		)
	})
	return spans, err
}

// Tokens returns the token ids from position `first` on (routecap_sequence_tokens).
//
// Errors: ErrOutOfRange; ErrState, the sequence does not know them.
func (s *Sequence) Tokens(first uint64) ([]int32, error) {
	var tokens []int32
	var count uint64
	_, err := s.call("routecap_sequence_tokens", func(p unsafe.Pointer) Result {
		if r := routecap_sequence_tokens(p, first, nil, 0, &count); r.Status < 0 {
			return r
		}
		tokens = make([]int32, count)
		return routecap_sequence_tokens(p, first, unsafe.SliceData(tokens), uintptr(count), &count)
	})
	return tokens, err
}

// Report says what all appends together did, and what the sequence is now
// (routecap_sequence_report).
func (s *Sequence) Report() (AppendReport, error) {
	report := newAppendReport()
	_, err := s.call(
		"routecap_sequence_report",
		func(p unsafe.Pointer) Result { return routecap_sequence_report(p, &report) },
	)
	return report, err
}

// Serialize returns the sequence as bytes: with SequenceWithTokens its tokens, otherwise digests of
// them only (routecap_sequence_serialize).
//
// Errors: ErrState, the sequence does not know its tokens.
func (s *Sequence) Serialize(flags SequenceFlags) ([]byte, error) {
	var data []byte
	_, err := s.call("routecap_sequence_serialize", func(p unsafe.Pointer) Result {
		return written(&data, func(dst unsafe.Pointer, bytes uintptr, needed *uint64) Result {
			return routecap_sequence_serialize(p, uint32(flags), dst, bytes, needed)
		})
	})
	return data, err
}

// DeserializeSequence makes a sequence of such bytes: nothing in them is trusted
// (routecap_sequence_deserialize). The budget is that of SequenceConfig.
//
// Errors: ErrFormat, the text says what is wrong; ErrNoMemory.
func DeserializeSequence(data []byte, budgetBytes uint64) (*Sequence, error) {
	var sequence unsafe.Pointer
	_, err := routecap_sequence_deserialize(
		start(data),
		uintptr(len(data)),
		budgetBytes,
		&sequence,
	).outcome("routecap_sequence_deserialize")
	return newSequence(sequence), err
}
