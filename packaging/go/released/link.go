//go:build cgo

package routecap

// The library is in this module: an object for each processor, which is linked by itself, and its
// header. It needs the C library and nothing else.

/*
#cgo CFLAGS: -I${SRCDIR}
#cgo LDFLAGS: -lpthread -ldl -lm
*/
import "C"
