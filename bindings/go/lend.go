package routecap

/*
#include "lend.h"
#include <stdlib.h>
#cgo noescape routecap_go_collect
#cgo nocallback routecap_go_collect
*/
import "C"

import (
	"runtime"
	"sync"
	"sync/atomic"
	"unsafe"
)

// A loan is memory that a routing refers to in place: pinned, until the library says that it is no
// longer used.
//
// The library releases on any thread and from within any call. Go is not called from there: the
// other calls lend C their goroutine's stack, which would move. lend.c notes the loans that are
// over, and collectLoans ends them, after the calls that most often end some.
type loan struct {
	pin     runtime.Pinner
	release func()
}

var loans = struct {
	sync.Mutex
	last uint64
	open map[uint64]*loan
}{open: map[uint64]*loan{}}

// openLoans is len(loans.open), to be read without the lock: nearly always it is 0 and nothing is
// to be done.
var openLoans atomic.Int64

// lend makes a call that lends the library what l has pinned; the call passes the context on.
func (l *loan) lend(call func(context unsafe.Pointer) Result) Result {
	context := (*C.routecap_go_loan)(C.malloc(C.sizeof_routecap_go_loan))
	loans.Lock()
	loans.last++
	id := loans.last
	loans.open[id] = l
	loans.Unlock()
	openLoans.Add(1)
	context.id = C.uint64_t(id)
	r := call(unsafe.Pointer(context))
	if r.Status < 0 { // nothing was lent
		endLoan(context)
	}
	collectLoans()
	return r
}

// collectLoans ends the loans that are over.
func collectLoans() {
	if openLoans.Load() == 0 {
		return
	}
	for context := C.routecap_go_collect(); context != nil; {
		next := context.next
		if l := endLoan(context); l.release != nil {
			l.release()
		}
		context = next
	}
}

func endLoan(context *C.routecap_go_loan) *loan {
	id := uint64(context.id)
	C.free(unsafe.Pointer(context))
	loans.Lock()
	l := loans.open[id]
	delete(loans.open, id)
	loans.Unlock()
	openLoans.Add(-1)
	l.pin.Unpin()
	return l
}
