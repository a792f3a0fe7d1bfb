//go:build cgo && routecap_experimental

// Experimental functions, which may be withdrawn: build with -tags routecap_experimental.

package routecap

import "unsafe"

// NewSharedStore creates a store that several processes share, and returns the file descriptor by
// which they open it, which is the caller's (routecap_store_create_shared).
//
// Errors: ErrNoBackend, this system has no such memory.
func NewSharedStore(config StoreConfig, shape Config) (*Store, int, error) {
	var descriptor int32
	store, err := newStore(
		"routecap_store_create_shared",
		config,
		shape,
		func(c *cStoreConfig, of *cConfig, object *unsafe.Pointer) Result {
			return routecap_store_create_shared(c, of, &descriptor, object)
		},
	)
	return store, int(descriptor), err
}

// OpenSharedStore opens the store of a descriptor (routecap_store_open_shared).
//
// Errors: ErrFormat; ErrShapeMismatch; ErrNoBackend.
func OpenSharedStore(descriptor int, config StoreConfig, shape Config) (*Store, error) {
	return newStore(
		"routecap_store_open_shared",
		config,
		shape,
		func(c *cStoreConfig, of *cConfig, object *unsafe.Pointer) Result {
			return routecap_store_open_shared(c, of, int32(descriptor), object)
		},
	)
}
