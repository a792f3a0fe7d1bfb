//go:build cgo

package routecap

import (
	"bytes"
	"fmt"
	"io"
	"math/bits"
	"slices"
	"unsafe"
)

// ---- Routings to bytes

// Serialize writes the routing in the serialised form to dst, and returns how many bytes it takes,
// also with ErrBufferTooSmall: with a dst of nil that is a way to ask (routecap_routing_serialize).
// Equal routings give equal bytes. They have a checksum of the header and one of each row, so that
// a reader of all rows or of some notices whether they arrived as they were written.
//
// Errors: ErrNotReady; ErrBufferTooSmall, nothing is written.
func (r *Routing) Serialize(dst []byte) (int, error) {
	var needed uint64
	_, err := r.call("routecap_routing_serialize", func(p unsafe.Pointer) Result {
		return routecap_routing_serialize(
			p,
			unsafe.Pointer(unsafe.SliceData(dst)),
			uintptr(len(dst)),
			&needed,
		)
	})
	return int(needed), err
}

// AppendBinary appends the serialised form. It implements encoding.BinaryAppender.
//
// Errors: ErrNotReady.
func (r *Routing) AppendBinary(b []byte) ([]byte, error) {
	needed, err := r.Serialize(nil)
	if needed == 0 {
		return b, err
	}
	at := len(b)
	b = slices.Grow(b, needed)[:at+needed]
	_, err = r.Serialize(b[at:])
	return b, err
}

// MarshalBinary returns the serialised form. It implements encoding.BinaryMarshaler.
//
// Errors: ErrNotReady.
func (r *Routing) MarshalBinary() ([]byte, error) { return r.AppendBinary(nil) }

// WriteTo writes the serialised form. It implements io.WriterTo.
//
// Errors: ErrNotReady; those of w.
func (r *Routing) WriteTo(w io.Writer) (int64, error) {
	b, err := r.MarshalBinary()
	if err != nil {
		return 0, err
	}
	n, err := w.Write(b)
	return int64(n), err
}

// ---- Bytes to routings

// Deserialize makes a routing of bytes in the serialised form, from wherever they come: nothing in
// them is trusted (routecap_routing_deserialize). The data is copied and exactly that of one
// routing. No capturer is needed, and the memory counts in no budget. With ImportTrusted the ids
// are not looked at, everything else is.
//
// Result: OK; Incomplete; NotCaptured. Errors: ErrFormat, the text says what is wrong.
func Deserialize(data []byte, flags ImportFlags) (*Routing, Result, error) {
	return deserialize(
		data,
		flags,
		func(call func(unsafe.Pointer) Result) Result { return call(nil) },
	)
}

// DeserializeInPlace is Deserialize without a copy: the routing, and all that shares rows with it,
// refers to data, which is pinned and must not be changed. When that is over, release is called,
// unless nil: by a Close of a routing or capturer, or by a later call that lends memory, on its
// goroutine. It is not called if the call fails. Memory that is not Go's, such as a mapped file,
// may be lent too. Data whose address is not a multiple of 16 is copied and released at once. Go
// allocates the bytes of a routing at such an address; a part of a longer slice may lie differently.
func DeserializeInPlace(data []byte, flags ImportFlags, release func()) (*Routing, Result, error) {
	return deserialize(data, flags, func(call func(unsafe.Pointer) Result) Result {
		l := &loan{release: release}
		pinSlice(&l.pin, data)
		return l.lend(call)
	})
}

func deserialize(
	data []byte,
	flags ImportFlags,
	lend func(call func(context unsafe.Pointer) Result) Result,
) (*Routing, Result, error) {
	var routing unsafe.Pointer
	r, err := lend(func(context unsafe.Pointer) Result {
		return routecap_routing_deserialize(
			start(data),
			uintptr(len(data)),
			uint32(flags),
			context,
			&routing,
		)
	}).outcome("routecap_routing_deserialize")
	return newRouting(routing), r, err
}

var nothing [1]byte

// start is where data begins; no data are data too.
func start(data []byte) unsafe.Pointer {
	if len(data) == 0 {
		return unsafe.Pointer(&nothing)
	}
	return unsafe.Pointer(unsafe.SliceData(data))
}

// UnmarshalBinary makes r the routing that the data holds, and closes what r was before. It
// implements encoding.BinaryUnmarshaler. The data is copied, and nothing in it is trusted.
//
// Errors: ErrFormat.
func (r *Routing) UnmarshalBinary(data []byte) error {
	n, _, err := Deserialize(data, 0)
	if err != nil {
		return err
	}
	r.Close()
	r.mu.Lock()
	defer r.mu.Unlock()
	n.cleanup.Stop()
	r.set(*n.object)
	return nil
}

// ReadRouting reads one serialised routing, and no byte beyond it, from a stream that is not
// trusted: one of more than `limit` bytes is an error.
//
// Result: OK; Incomplete; NotCaptured. Errors: ErrFormat; ErrNoMemory, more than the limit; those
// of the reader, io.EOF if it is at its end.
func ReadRouting(from io.Reader, limit uint64) (*Routing, Result, error) {
	var b bytes.Buffer
	if _, err := io.CopyN(&b, from, SerializedMin); err != nil {
		if err == io.EOF && b.Len() > 0 {
			err = io.ErrUnexpectedEOF
		}
		return nil, Result{}, err
	}
	info, err := SerializedInfo(b.Bytes())
	if err != nil {
		return nil, Result{}, err
	}
	if info.Bytes > limit {
		tooMuch := Result{
			ErrNoMemory,
			fmt.Sprintf("the routing has %d bytes, at most %d are wanted", info.Bytes, limit),
		}
		r, err := tooMuch.outcome("routecap_serialized_info")
		return nil, r, err
	}
	// grows with what really comes
	if _, err := io.CopyN(&b, from, int64(info.Bytes)-SerializedMin); err != nil {
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		return nil, Result{}, err
	}
	return DeserializeInPlace(b.Bytes(), 0, nil)
}

// SerializedInfo reads the fixed part of a serialised routing's header: what it is, and how much is
// still to come from a stream (routecap_serialized_info). Of data SerializedMin bytes are enough.
//
// Errors: ErrFormat; ErrBufferTooSmall.
func SerializedInfo(data []byte) (Serialized, error) {
	info := Serialized{structSize: uint32(unsafe.Sizeof(Serialized{}))}
	_, err := routecap_serialized_info(
		start(data),
		uintptr(len(data)),
		&info,
	).outcome("routecap_serialized_info")
	return info, err
}

// ---- Arrays to routings

// Import makes a routing of arrays of any origin, the inverse of Routing.View
// (routecap_routing_import): for rows that another process, file format or engine has. The rows and
// cells are checked as those of Deserialize; all arrays are copied.
//
// Complete is not looked at; ValidityBytes may be 0; the lists of layers may be nil, and are then as
// in Config: LayerExperts is Experts, which is needed only then.
// Segments need not hold rows that are MissingAbsent, but are in order. With a RowStride the arrays
// of a segment may be longer than its rows, and IDs8 or IDs16 reaches to where a next row would
// begin.
//
// Result: OK; Incomplete; NotCaptured. Errors: ErrArgument, limits, order or segments, or an array
// that has not the length that it should; ErrShapeMismatch, a RowStride that is less than ids,
// weights and validity of a row take, or no multiple of the size of an id or weight; ErrDType;
// ErrFormat, an id of a valid cell out of range or twice, or weights of a cell without ids, or NaN.
func Import(view View, flags ImportFlags) (*Routing, Result, error) {
	l := &loan{}
	defer l.pin.Unpin()
	return importView(
		&view,
		flags,
		l,
		func(call func(unsafe.Pointer) Result) Result { return call(nil) },
	)
}

// ImportInPlace is Import without a copy of the arrays of segments, if the rows of all segments lie
// as in the library's own memory: K ids of each layer, then ValidityBytes bytes of validity, then
// zeros up to RowStride, which is the next multiple of the largest power of two that divides the
// bytes of K ids, at most 16. Such arrays are lent as DeserializeInPlace lends its data. Arrays that
// lie differently, such as those of Routing.View, are copied and released at once.
func ImportInPlace(view View, flags ImportFlags, release func()) (*Routing, Result, error) {
	l := &loan{release: release}
	return importView(&view, flags, l, l.lend)
}

func importView(
	view *View,
	flags ImportFlags,
	l *loan,
	lend func(call func(context unsafe.Pointer) Result) Result,
) (*Routing, Result, error) {
	const op = "routecap_routing_import"
	v, refused := view.pass(l)
	if refused.Status != OK {
		l.pin.Unpin()
		r, err := refused.outcome(op)
		return nil, r, err
	}
	var routing unsafe.Pointer
	r, err := lend(func(context unsafe.Pointer) Result {
		return routecap_routing_import(&v, uint32(flags), context, &routing)
	}).outcome(op)
	return newRouting(routing), r, err
}

// pass pins the arrays of a view and returns it as C has it, or says which of them has a wrong
// length.
func (v *View) pass(l *loan) (cView, Result) {
	fail := func(name string, length int, want uint64) (cView, Result) {
		return cView{}, Result{
			ErrArgument,
			fmt.Sprintf("%s has %d elements, not %d", name, length, want),
		}
	}
	short := func(name string, length int, rows uint64) (cView, Result) {
		return cView{}, Result{
			ErrArgument,
			fmt.Sprintf(
				"%s has %d elements, too few for %d rows %d bytes apart",
				name,
				length,
				rows,
				v.RowStride,
			),
		}
	}
	lists := append(
		layerLists(v.LayerMap, v.LayerExperts, v.LayerK, v.LayerMinK, v.LayerVisit),
		layerList{"LayerProvenance", len(v.LayerProvenance)},
	)
	if wrong := misfit(lists, int(v.Layers)); wrong != nil {
		return fail(wrong.name, wrong.length, uint64(v.Layers))
	}
	validity := uint64(v.ValidityBytes)
	if validity == 0 {
		validity = (uint64(v.Layers) + 7) / 8
	}
	segments := make([]cSegment, len(v.Segments))
	for i, s := range v.Segments {
		name := func(array string) string { return fmt.Sprintf("%s of segment %d", array, i) }
		if s.Rows > MaxPosition {
			return cView{}, Result{ErrArgument, fmt.Sprintf("segment %d has %d rows", i, s.Rows)}
		}
		c := cSegment{first: s.First, rows: s.Rows, tag: s.Tag, reason: s.Reason}
		ids, size := len(s.IDs8), uint64(1)
		c.ids = pinSlice(&l.pin, s.IDs8)
		switch {
		case v.DType == DTypeU8 && s.IDs16 != nil, v.DType != DTypeU8 && s.IDs8 != nil:
			return cView{}, Result{
				ErrDType,
				fmt.Sprintf("segment %d has ids of another type than the view", i),
			}
		case v.DType != DTypeU8:
			ids, size = len(s.IDs16), 2
			c.ids = pinSlice(&l.pin, s.IDs16)
		}
		hasIDs, cells := s.IDs8 != nil || s.IDs16 != nil, s.Rows*product(v.Layers, v.K)
		switch strided := v.RowStride != 0; {
		case hasIDs && !strided && uint64(ids) != cells:
			return fail(name("the array of ids"), ids, cells)
		// what is lent is read up to the end of the last row's padding
		case hasIDs && strided && !v.reaches(uint64(ids)*size, s.Rows, v.RowStride):
			return short(name("the array of ids"), ids, s.Rows)
		case s.Validity != nil && !strided && uint64(len(s.Validity)) != s.Rows*validity:
			return fail(name("Validity"), len(s.Validity), s.Rows*validity)
		case s.Validity != nil && strided && !v.reaches(uint64(len(s.Validity)), s.Rows, validity):
			return short(name("Validity"), len(s.Validity), s.Rows)
		case s.WeightsValidity != nil && !strided && uint64(len(s.WeightsValidity)) != s.Rows*validity:
			return fail(name("WeightsValidity"), len(s.WeightsValidity), s.Rows*validity)
		case s.WeightsValidity != nil && strided &&
			!v.reaches(uint64(len(s.WeightsValidity)), s.Rows, validity):
			return short(name("WeightsValidity"), len(s.WeightsValidity), s.Rows)
		case s.Tags != nil && uint64(len(s.Tags)) != s.Rows:
			return fail(name("Tags"), len(s.Tags), s.Rows)
		}
		weights, size := len(s.Weights32), uint64(4)
		c.weights = pinSlice(&l.pin, s.Weights32)
		switch {
		case s.Weights32 != nil && v.WeightsDType != DTypeF32 && v.WeightsDType != 0, s.Weights16 != nil && v.WeightsDType == DTypeF32:
			return cView{}, Result{
				ErrDType,
				fmt.Sprintf("segment %d has weights of another type than the view", i),
			}
		case s.Weights16 != nil:
			weights, size = len(s.Weights16), 2
			c.weights = pinSlice(&l.pin, s.Weights16)
		}
		switch hasWeights, strided := s.Weights32 != nil || s.Weights16 != nil, v.RowStride != 0; {
		case hasWeights && !strided && uint64(weights) != cells:
			return fail(name("the array of weights"), weights, cells)
		case hasWeights && strided && !v.reaches(uint64(weights)*size, s.Rows, product(v.Layers, v.K)*size):
			return short(name("the array of weights"), weights, s.Rows)
		}
		c.weightsValidity = pinSlice(&l.pin, s.WeightsValidity)
		c.validity = pinSlice(&l.pin, s.Validity)
		c.tags = pinSlice(&l.pin, s.Tags)
		segments[i] = c
	}
	return cView{
		structSize:    uint32(unsafe.Sizeof(cView{})),
		dtype:         v.DType,
		weightsDType:  v.WeightsDType,
		layers:        v.Layers,
		k:             v.K,
		experts:       v.Experts,
		validityBytes: v.ValidityBytes,
		idSpace:       v.IDSpace,
		first:         v.First,
		rows:          v.Rows,
		rowStride:     v.RowStride,
		layerMap:      pinSlice(&l.pin, v.LayerMap),
		layerExperts:  pinSlice(&l.pin, v.LayerExperts),
		layerProvenance: pinSlice(
			&l.pin,
			v.LayerProvenance,
		),
		layerK:       pinSlice(&l.pin, v.LayerK),
		layerMinK:    pinSlice(&l.pin, v.LayerMinK),
		layerVisit:   pinSlice(&l.pin, v.LayerVisit),
		segments:     pinSlice(&l.pin, segments),
		segmentSize:  unsafe.Sizeof(cSegment{}),
		segmentCount: uintptr(len(segments)),
	}, Result{}
}

// reaches reports whether `rows` rows, RowStride bytes apart, of which the last takes `last` bytes,
// lie within so many bytes.
func (v *View) reaches(bytes, rows, last uint64) bool {
	if rows == 0 {
		return true
	}
	high, before := bits.Mul64(rows-1, v.RowStride)
	return high == 0 && before <= bytes && last <= bytes-before
}

// ---- Splicing

// Spliced is a serialised routing as a list of pieces: written one after another they are it
// (routecap_splice).
type Spliced struct {
	Header []byte  // the new header
	Pieces []Piece // in order
	Bytes  uint64  // of everything
}

// Splice splices two serialised routings of one sequence: the rows of `head` before position `row`,
// and the rows of `tail` from it on (routecap_serialized_splice). Prefill and decode on different
// machines, the turns of a conversation; no id is read, and none needs to be there: of both at
// least the first HeaderBytes (SerializedInfo) are needed.
//
// Errors: ErrFormat; ErrShapeMismatch, k, the id space, the layers or their experts differ.
func Splice(head, tail []byte, row uint64) (*Spliced, error) {
	return spliced(
		"routecap_serialized_splice",
		func(header []byte, pieces []Piece, sizes *cSplice) Result {
			return routecap_serialized_splice(
				start(head),
				uintptr(len(head)),
				start(tail),
				uintptr(len(tail)),
				row,
				unsafe.Pointer(unsafe.SliceData(header)),
				uintptr(len(header)),
				unsafe.SliceData(pieces),
				unsafe.Sizeof(Piece{}),
				uintptr(len(pieces)),
				sizes,
			)
		},
	)
}

// SliceSerialized cuts rows out of a serialised routing, `rows` from position `first` on or all of
// them (RowsAll), without reading others (routecap_serialized_slice): a new header, and which bytes
// of the data follow it, as pieces of PieceHead. Of the data at least the first HeaderBytes
// (SerializedInfo) are needed.
//
// Errors: ErrFormat; ErrOutOfRange, the routing has no such rows.
func SliceSerialized(data []byte, first, rows uint64) (*Spliced, error) {
	return spliced(
		"routecap_serialized_slice",
		func(header []byte, pieces []Piece, sizes *cSplice) Result {
			return routecap_serialized_slice(start(data), uintptr(len(data)), first, rows,
				unsafe.Pointer(unsafe.SliceData(header)), uintptr(len(header)),
				unsafe.SliceData(pieces), unsafe.Sizeof(Piece{}), uintptr(len(pieces)), sizes)
		},
	)
}

// spliced makes room for what a call gives.
func spliced(
	op string,
	call func(header []byte, pieces []Piece, sizes *cSplice) Result,
) (*Spliced, error) {
	sizes := cSplice{structSize: uint32(unsafe.Sizeof(cSplice{}))}
	var made Spliced
	r := call(nil, nil, &sizes)
	if r.Status == ErrBufferTooSmall {
		made = Spliced{
			Header: make([]byte, sizes.headerBytes),
			Pieces: make([]Piece, sizes.pieces),
			Bytes:  sizes.bytes,
		}
		r = call(made.Header, made.Pieces, &sizes)
	}
	if _, err := r.outcome(op); err != nil {
		return nil, err
	}
	return &made, nil
}

// Buffers returns the pieces of the whole head and tail, without a copy: net.Buffers of them is one
// writev.
func (s *Spliced) Buffers(head, tail []byte) ([][]byte, error) {
	buffers := make([][]byte, 0, len(s.Pieces))
	sources := map[PieceSource][]byte{
		PieceHeader: s.Header,
		PieceHead:   head,
		PieceTail:   tail,
	}
	for _, p := range s.Pieces {
		source := sources[p.Source]
		if p.Offset > uint64(len(source)) || p.Bytes > uint64(len(source))-p.Offset {
			return nil, &Error{
				Op:     "routecap_serialized_splice",
				Status: ErrArgument,
				Text:   "head or tail is shorter than its header says",
			}
		}
		buffers = append(buffers, source[p.Offset:p.Offset+p.Bytes])
	}
	return buffers, nil
}

// Reader reads the pieces from where the whole head and tail are, files for instance.
func (s *Spliced) Reader(head, tail io.ReaderAt) io.Reader {
	readers := make([]io.Reader, 0, len(s.Pieces))
	sources := map[PieceSource]io.ReaderAt{
		PieceHeader: bytes.NewReader(s.Header),
		PieceHead:   head,
		PieceTail:   tail,
	}
	for _, p := range s.Pieces {
		readers = append(
			readers,
			io.NewSectionReader(sources[p.Source], int64(p.Offset), int64(p.Bytes)),
		)
	}
	return io.MultiReader(readers...)
}
