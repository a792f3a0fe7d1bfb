//go:build cgo

package routecap

import (
	"fmt"
	"unsafe"
)

// SinkBind adopts memory of the engine as the sink of `layers` layers from firstLayer on, instead
// of the library's (routecap_sink_bind): a router then writes its ids there and nothing has to be
// recorded. sink.Rows is at least the capturer's Rows, sink.K is its K.
//
// The memory must stay valid and in place until the capturer is closed, and as long as graphs that
// write it are replayed. So it is never Go's: it belongs to the device or, on the host backend, to
// C. SinkSlice gives Go memory to write to.
//
// Errors: ErrUnknownLayer; ErrShapeMismatch, rows or strides too small, or another k; ErrDType;
// ErrState, the address of a layer is fixed; ErrCapturing.
func (c *Capturer) SinkBind(firstLayer, layers uint32, sink Sink) error {
	sink.structSize = uint32(unsafe.Sizeof(sink))
	_, err := c.callAlone(
		"routecap_sink_bind",
		func(p unsafe.Pointer) Result { return routecap_sink_bind(p, firstLayer, layers, &sink) },
	)
	return err
}

// SinkLayer returns where a layer is written: what to give a router as its output of ids
// (routecap_sink_layer). From now on the address is fixed. IDs is 0 if the layer has no memory yet
// (ConfigExternalSink).
//
// Write a row at most once in a step, between its begin and its snapshot, in the order of the
// stream.
//
// Errors: ErrUnknownLayer.
func (c *Capturer) SinkLayer(layer uint32) (Sink, error) {
	sink := Sink{structSize: uint32(unsafe.Sizeof(Sink{}))}
	_, err := c.callAlone(
		"routecap_sink_layer",
		func(p unsafe.Pointer) Result { return routecap_sink_layer(p, layer, &sink) },
	)
	return sink, err
}

// SinkSlice returns the memory of SinkLayer as a slice, on the host backend: row r begins at r *
// stride and has the capturer's K ids. It is not Go's memory and is gone with Close.
//
// Errors: as SinkLayer; ErrDType, T is not the sink's type; ErrState, the sink is on a device or
// the layer has none.
func SinkSlice[T int16 | int32 | int64](
	c *Capturer,
	layer uint32,
) (ids []T, stride int, err error) {
	const op = "routecap_sink_layer"
	sink, err := c.SinkLayer(layer)
	switch {
	case err != nil:
		return nil, 0, err
	case sink.IDs == 0 || c.config.Backend != BackendHost:
		return nil, 0, &Error{
			Op:     op,
			Status: ErrState,
			Text:   fmt.Sprintf("layer %d has no sink in host memory", layer),
		}
	case sink.DType != typeOf[T]():
		return nil, 0, &Error{
			Op:     op,
			Status: ErrDType,
			Text:   fmt.Sprintf("the sink has dtype %d", sink.DType),
		}
	}
	stride = int(sink.RowStride)
	return unsafe.Slice((*T)(sink.IDs.pointer()), int(sink.Rows-1)*stride+int(sink.K)), stride, nil
}

// SinkWeights returns the weights beside the ids of SinkSlice, of the capturer's WeightsDType: as
// float32, or the bits of halves as uint16. In a row that is begun each is NaN until it is written.
//
// Errors: as SinkSlice; ErrState, the layer has no memory for weights.
func SinkWeights[T Weight](c *Capturer, layer uint32) (weights []T, stride int, err error) {
	const op = "routecap_sink_layer"
	sink, err := c.SinkLayer(layer)
	switch {
	case err != nil:
		return nil, 0, err
	case sink.Weights == 0 || c.config.Backend != BackendHost:
		return nil, 0, &Error{
			Op:     op,
			Status: ErrState,
			Text:   fmt.Sprintf("layer %d has no sink for weights in host memory", layer),
		}
	case !holds[T](c.config.WeightsDType):
		return nil, 0, &Error{
			Op:     op,
			Status: ErrDType,
			Text:   fmt.Sprintf("the weights have dtype %d", c.config.WeightsDType),
		}
	}
	stride = int(sink.RowStride)
	elements := int(sink.Rows-1)*stride + int(sink.K)
	return unsafe.Slice((*T)(sink.Weights.pointer()), elements), stride, nil
}

// pointer is the address as a pointer to memory of C.
func (p DevicePointer) pointer() unsafe.Pointer { return *(*unsafe.Pointer)(unsafe.Pointer(&p)) }
