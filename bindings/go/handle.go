//go:build cgo

package routecap

import (
	"runtime"
	"sync"
	"unsafe"
)

// A handle guards a C object, which Close frees once and nobody uses afterwards. Every call is made
// between enter and leave; leave also keeps the Go object, and so what it refers to, alive until
// then.
type handle struct {
	mu sync.RWMutex // held for reading by calls, for writing by close
	// nil after close. It lies outside of the handle's owner, where the cleanup finds it
	object *unsafe.Pointer
	// frees the object if the owner is collected without close; none if the owner is one of a
	// batch, which has one
	cleanup runtime.Cleanup
}

// enter fails if the object is closed or about to be. It does not wait: a goroutine that is inside
// may enter again.
func (h *handle) enter() bool {
	if !h.mu.TryRLock() {
		return false
	}
	if h.object == nil {
		h.mu.RUnlock()
		return false
	}
	return true
}

func (h *handle) leave() { h.mu.RUnlock() }

// call makes a call of the object.
func (h *handle) call(op string, f func(object unsafe.Pointer) Result) (Result, error) {
	if !h.enter() {
		return closed.outcome(op)
	}
	defer h.leave()
	return f(*h.object).outcome(op)
}

// close frees the object, once calls in progress have returned.
func (h *handle) close(free func(unsafe.Pointer)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.object == nil {
		return
	}
	h.cleanup.Stop()
	free(*h.object)
	*h.object, h.object = nil, nil
}
