//go:build cgo

package routecap

// Here the installed library is used. A released module has another file in this place, and the
// library: packaging/go.sh.

/*
#cgo pkg-config: routecap
*/
import "C"
