//go:build cgo

package routecap

import (
	"fmt"
	"runtime"
	"strings"
	"unsafe"
)

// ---- Formats

// FindWire returns the format of a name ("nrlre1"), of who writes it ("vllm"), or of the ending of
// files (".npy") (routecap_wire_find).
//
// Errors: ErrArgument, the text lists all names.
func FindWire(name string) (WireFormat, error) {
	var format int32
	text := append([]byte(name), 0)
	_, err := routecap_wire_find(unsafe.SliceData(text), &format).outcome("routecap_wire_find")
	return WireFormat(format), err
}

// WireDescription describes a format of the library.
type WireDescription struct {
	Format  WireFormat
	Version uint32    // the one that is written; versions up to it are read
	Facts   WireFacts // what its bytes can say
	Name    string
	Aliases []string // who writes it
	Ending  string   // of the names of files, with the dot; empty if it has none
}

// Describe describes the format (routecap_wire_describe).
//
// Errors: ErrArgument, of WireAny and of one that the library does not know.
func (f WireFormat) Describe() (WireDescription, error) {
	c := cWireDescription{structSize: uint32(unsafe.Sizeof(cWireDescription{}))}
	if _, err := routecap_wire_describe(int32(f), &c).outcome("routecap_wire_describe"); err != nil {
		return WireDescription{}, err
	}
	return WireDescription{
		c.format,
		c.version,
		c.facts,
		cString(c.name),
		strings.Fields(cString(c.aliases)),
		cString(c.ending),
	}, nil
}

// cString is a static text of the library.
func cString(text unsafe.Pointer) string {
	n := 0
	for *(*byte)(unsafe.Add(text, n)) != 0 {
		n++
	}
	return string(unsafe.Slice((*byte)(text), n))
}

// ---- Decoding

// WireHint is what is known of a message beside its bytes. Where they say it too, both must agree
// (ErrShapeMismatch); what is 0 or nil is taken from the bytes.
type WireHint struct {
	// captured (MoE) layers; default those of LayerMap, or as many as there are columns
	Layers       uint32
	Columns      uint32 // where the bytes do not say it: the length of the layer axis
	K            uint32 // experts per token
	Experts      uint32 // ids are in [0, Experts); required unless LayerExperts is set
	DType        DType  // of the ids, where the bytes do not say it
	ColumnKind   WireColumns
	IDSpace      IDSpace
	Flags        WireHintFlags
	First        uint64   // position of the first row
	Rows         uint64   // how many: of S tokens S-1
	Tag          uint64   // of all rows
	BudgetBytes  uint64   // the most memory that decoding may take
	LayerMap     []int32  // index of each captured layer in the decoder, strictly ascending
	LayerExperts []uint32 // experts of each layer where they differ
}

// pass pins the hint's arrays and returns it as C has it.
func (h *WireHint) pass(pin *runtime.Pinner) (cWireHint, Result) {
	layers := h.Layers
	for _, n := range []int{len(h.LayerMap), len(h.LayerExperts)} {
		if layers == 0 {
			layers = uint32(n)
		}
		if n != 0 && n != int(layers) {
			return cWireHint{}, Result{
				ErrShapeMismatch,
				fmt.Sprintf("LayerMap or LayerExperts has %d elements for %d layers", n, layers),
			}
		}
	}
	return cWireHint{
		structSize:   uint32(unsafe.Sizeof(cWireHint{})),
		layers:       layers,
		columns:      h.Columns,
		k:            h.K,
		experts:      h.Experts,
		dtype:        h.DType,
		columnKind:   h.ColumnKind,
		idSpace:      h.IDSpace,
		flags:        h.Flags,
		first:        h.First,
		rows:         h.Rows,
		tag:          h.Tag,
		budgetBytes:  h.BudgetBytes,
		layerMap:     pinSlice(pin, h.LayerMap),
		layerExperts: pinSlice(pin, h.LayerExperts),
	}, Result{}
}

// with calls f with the hint as C has it, or fails.
func (h *WireHint) with(op string, f func(*cWireHint) Result) (Result, error) {
	var pin runtime.Pinner
	defer pin.Unpin()
	c, refused := h.pass(&pin)
	if refused.Status != OK {
		return refused.outcome(op)
	}
	return f(&c).outcome(op)
}

func newReport() WireReport { return WireReport{structSize: uint32(unsafe.Sizeof(WireReport{}))} }

// DecodeWire makes a routing of a message, from wherever it comes: nothing in it is trusted
// (routecap_wire_decode). Cells that are not k distinct experts are missing, and counted in the
// report.
//
// Result: OK; Incomplete; NotCaptured. Errors: ErrFormat; ErrShapeMismatch, the hint says
// otherwise; ErrNoMemory, beyond its budget; ErrIncomplete, if it is strict.
func DecodeWire(
	data []byte,
	format WireFormat,
	hint WireHint,
) (*Routing, WireReport, Result, error) {
	report := newReport()
	var routing unsafe.Pointer
	r, err := hint.with("routecap_wire_decode", func(c *cWireHint) Result {
		return routecap_wire_decode(
			start(data),
			uintptr(len(data)),
			int32(format),
			c,
			&report,
			&routing,
		)
	})
	return newRouting(routing), report, r, err
}

// WireDecoder decodes a message that arrives piece by piece: Write as often as there is some, then
// Finish. It has to be closed. It may be used from one goroutine at a time; it implements
// io.WriteCloser.
type WireDecoder struct {
	handle
}

// NewWireDecoder begins to decode (routecap_wire_decoder_create).
func NewWireDecoder(format WireFormat, hint WireHint) (*WireDecoder, error) {
	var decoder unsafe.Pointer
	_, err := hint.with("routecap_wire_decoder_create", func(c *cWireHint) Result {
		return routecap_wire_decoder_create(int32(format), c, &decoder)
	})
	if err != nil {
		return nil, err
	}
	d := &WireDecoder{}
	d.object = &[]unsafe.Pointer{decoder}[0]
	d.cleanup = runtime.AddCleanup(
		d,
		func(object *unsafe.Pointer) { routecap_wire_decoder_free(*object) },
		d.object,
	)
	return d, nil
}

// Write takes the next bytes of the message (routecap_wire_decoder_write). An error is repeated
// from then on.
func (d *WireDecoder) Write(data []byte) (int, error) {
	_, err := d.call("routecap_wire_decoder_write", func(p unsafe.Pointer) Result {
		return routecap_wire_decoder_write(p, start(data), uintptr(len(data)))
	})
	if err != nil {
		return 0, err
	}
	return len(data), nil
}

// Finish is the end of the message (routecap_wire_decoder_finish). Result and errors: those of
// DecodeWire.
func (d *WireDecoder) Finish() (*Routing, WireReport, Result, error) {
	report := newReport()
	var routing unsafe.Pointer
	r, err := d.call("routecap_wire_decoder_finish", func(p unsafe.Pointer) Result {
		return routecap_wire_decoder_finish(p, &report, &routing)
	})
	return newRouting(routing), report, r, err
}

// Close frees the decoder, at any time (routecap_wire_decoder_free). A second Close does nothing.
// It returns nil.
func (d *WireDecoder) Close() error {
	d.close(routecap_wire_decoder_free)
	return nil
}

// ---- Encoding

// EncodeWire returns the routing as a message (routecap_wire_encode). What the format cannot say is
// an error, unless options.Allow has it; then it is in the report's Lost.
//
// Errors: ErrNotReady; ErrLossy, the text names what would be lost; ErrDType; ErrShapeMismatch.
func (r *Routing) EncodeWire(options WireOptions) ([]byte, WireReport, error) {
	options.structSize = uint32(unsafe.Sizeof(options))
	report := newReport()
	var message []byte
	_, err := r.call("routecap_wire_encode", func(p unsafe.Pointer) Result {
		return written(&message, func(dst unsafe.Pointer, bytes uintptr, needed *uint64) Result {
			return routecap_wire_encode(p, &options, dst, bytes, needed, &report)
		})
	})
	return message, report, err
}

// written makes room for what a call writes, and makes it.
func written(
	message *[]byte,
	call func(dst unsafe.Pointer, bytes uintptr, needed *uint64) Result,
) Result {
	var needed uint64
	if r := call(nil, 0, &needed); r.Status != ErrBufferTooSmall {
		return r
	}
	*message = make([]byte, needed)
	r := call(start(*message), uintptr(needed), &needed)
	if r.Status < 0 {
		*message = nil
	}
	return r
}
