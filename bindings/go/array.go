//go:build cgo

package routecap

import (
	"cmp"
	"fmt"
	"math"
	"runtime"
	"unsafe"
)

// Element is what an array of Go may consist of. Values of 16 or 32 bits that are none of these,
// such as bfloat16, are named with As.
type Element interface {
	~uint8 | ~int16 | ~uint16 | ~int32 | ~uint32 | ~int64 | ~uint64 | ~float32
}

// Array is an array that the library reads or writes: Go's (ArrayOf), on the host backend only, or
// any other (DeviceArray). The zero Array is none.
//
// Its length is checked before the library sees it, its type by the library: an array that is not
// exactly as long as what is read of it is ErrShapeMismatch, unless a stride says how it lies in a
// longer one. Go's memory is pinned while a call runs and not used after it.
type Array struct {
	memory unsafe.Pointer // of Go; or nil
	device DevicePointer
	dtype  DType
	size   int // of an element
	length int
	origin int // see From
}

// ArrayOf makes an array of a slice, for a capturer on the host backend. nil makes none; a slice
// without elements is an array that is too short.
func ArrayOf[T Element](s []T) Array {
	if s == nil {
		return Array{}
	}
	return Array{
		memory: unsafe.Pointer(unsafe.SliceData(s)),
		dtype:  typeOf[T](),
		size:   int(unsafe.Sizeof(*new(T))),
		length: len(s),
	}
}

// DeviceArray makes an array of `elements` elements from memory that is not Go's. On the CUDA
// backend it has to stay valid, and what is in it in place, until the stream has reached the call's
// work.
func DeviceArray(pointer DevicePointer, dtype DType, elements int) Array {
	if pointer == 0 {
		return Array{}
	}
	return Array{device: pointer, dtype: dtype, size: dtype.Size(), length: max(elements, 0)}
}

// As returns the array with another type of elements of the same size: uint16 as DTypeF16 or
// DTypeBF16, uint32 as DTypeID16BF16.
func (a Array) As(dtype DType) Array {
	a.dtype = dtype
	return a
}

// From returns the array, beginning at an element, 0..Len(): with strides below 0 elements before
// it are used, otherwise none.
func (a Array) From(element int) Array {
	a.origin = element
	return a
}

// Len returns the number of elements, with those before From's.
func (a Array) Len() int { return a.length }

// bytes is how many there are from its origin on.
func (a Array) bytes() uint64 { return uint64(max(a.length-a.origin, 0)) * uint64(a.size) }

func (a Array) none() bool { return a.memory == nil && a.device == 0 }

// typeOf returns the dtype of a Go type; 0 for uint64, which has none.
func typeOf[T Element]() DType {
	var zero T
	signed := zero-1 < zero
	switch size := unsafe.Sizeof(zero); {
	case T(1)/2 != zero:
		return DTypeF32
	case size == 1:
		return DTypeU8
	case size == 2 && signed:
		return DTypeI16
	case size == 2:
		return DTypeU16
	case size == 4 && signed:
		return DTypeI32
	case size == 4:
		return DTypeU32
	case size == 8 && signed:
		return DTypeI64
	}
	return 0
}

// arrays checks and passes the arrays of one call.
type arrays struct {
	c       *Capturer
	pin     runtime.Pinner
	refused Result // the first reason not to make the call
}

// callWithArrays is callAlone for calls that take arrays: f passes them and makes the call, unless
// one was refused.
func (c *Capturer) callWithArrays(
	op string,
	f func(capturer unsafe.Pointer, a *arrays) Result,
) (Result, error) {
	return c.callAlone(op, func(capturer unsafe.Pointer) Result {
		a := arrays{c: c}
		defer a.pin.Unpin()
		return f(capturer, &a)
	})
}

func (a *arrays) refuse(status Status, format string, values ...any) DevicePointer {
	if a.refused.Status == OK {
		a.refused = Result{status, fmt.Sprintf(format, values...)}
	}
	return 0
}

// at passes an array of which elements lowest to highest, counted from its origin, are used.
func (a *arrays) at(name string, array Array, lowest, highest int64) DevicePointer {
	switch {
	case array.none() || a.c.config.Role == RoleDisabled: // disabled: the library looks at nothing
		return 0
	case array.memory != nil && a.c.config.Backend != BackendHost:
		return a.refuse(ErrArgument, "%s is Go's memory, which a device does not read", name)
	case array.dtype.Size() != array.size && !(array.dtype == 0 && array.size == 8):
		return a.refuse(
			ErrDType,
			"%s has elements of %d bytes, which dtype %d has not",
			name,
			array.size,
			array.dtype,
		)
	case array.origin < 0 || array.origin > array.length:
		return a.refuse(
			ErrArgument,
			"%s has %d elements and begins at %d",
			name,
			array.length,
			array.origin,
		)
	case lowest <= highest && (lowest < -int64(array.origin) || highest >= int64(array.length)-int64(array.origin)):
		return a.refuse(
			ErrShapeMismatch,
			"%s has %d elements, of which %d to %d would be used",
			name,
			array.length,
			lowest+int64(array.origin),
			highest+int64(array.origin),
		)
	}
	address := array.device
	if array.memory != nil {
		if array.length > 0 {
			a.pin.Pin(array.memory)
		}
		address = DevicePointer(uintptr(array.memory))
	}
	return address + DevicePointer(array.origin*array.size)
}

// A shape of an array: what a call reads of it, and how its caller says so.
type shape struct {
	rows, columns           uint32
	rowStride, columnStride int64 // 0: one after another
	says                    string
}

// matrix passes an array of rows and columns: with strides it holds what these reach, without any
// it has exactly so many elements.
func (a *arrays) matrix(name string, array Array, s shape) DevicePointer {
	if s.rowStride == 0 && s.columnStride == 0 {
		return a.exactly(name, array, product(s.rows, s.columns), s.says)
	}
	if s.rows == 0 || s.columns == 0 {
		return a.at(name, array, 0, -1)
	}
	r := extent(s.rows, cmp.Or(s.rowStride, int64(s.columns)))
	c := extent(s.columns, cmp.Or(s.columnStride, 1))
	if r == outOfReach || c == outOfReach {
		return a.refuse(
			ErrShapeMismatch,
			"%s has %d elements and impossible strides",
			name,
			array.length,
		)
	}
	return a.at(name, array, min(r, 0)+min(c, 0), max(r, 0)+max(c, 0))
}

// exactly passes an array that has so many elements from its origin on, no more and no fewer; says
// is where the number comes from.
func (a *arrays) exactly(name string, array Array, elements uint64, says string) DevicePointer {
	given := uint64(max(array.length-array.origin, 0))
	if !array.none() && a.c.config.Role != RoleDisabled && given != elements {
		return a.refuse(
			ErrShapeMismatch,
			"%s has %d elements, not %d: %s",
			name,
			given,
			elements,
			says,
		)
	}
	return a.at(name, array, 0, -1)
}

// list passes an array of exactly so many elements, which has to be of one type; 0: any.
func (a *arrays) list(
	name string,
	array Array,
	dtype DType,
	elements uint64,
	says string,
) DevicePointer {
	if dtype != 0 && !array.none() && array.dtype != dtype {
		return a.refuse(ErrDType, "%s has dtype %d, not %d", name, array.dtype, dtype)
	}
	return a.exactly(name, array, elements, says)
}

// perRow passes an array with an element for each row.
func (a *arrays) perRow(name string, array Array, dtype DType, rows uint32) DevicePointer {
	return a.list(name, array, dtype, uint64(rows), "one for each of Rows")
}

// number passes an array of one number.
func (a *arrays) number(name string, array Array, dtype DType) DevicePointer {
	return a.list(name, array, dtype, 1, "it is one number")
}

// table passes an array of int32 that is used from its origin to its end, and says how many
// elements that is.
func (a *arrays) table(name string, array Array) (address DevicePointer, elements int) {
	elements = array.length - array.origin
	if address = a.list(name, array, DTypeI32, uint64(max(elements, 0)), ""); address == 0 {
		elements = 0
	}
	return address, elements
}

const outOfReach = math.MinInt64

// extent is how far the last of `count` elements is from the first.
func extent(count uint32, stride int64) int64 {
	steps := int64(count) - 1
	if steps > 0 && (stride > math.MaxInt64/4/steps || stride < -(math.MaxInt64/4/steps)) {
		return outOfReach
	}
	return steps * stride
}

// product multiplies numbers of elements; what is beyond all memory stays beyond it.
func product(factors ...uint32) uint64 {
	all := uint64(1)
	for _, f := range factors {
		if f != 0 && all > math.MaxUint64/uint64(f) {
			return math.MaxUint64
		}
		all *= uint64(f)
	}
	return all
}
