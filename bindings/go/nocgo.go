//go:build !cgo

package routecap

// Without cgo nothing else of this package is compiled: this line is for the compiler to say why.
func init() { "routecap needs cgo: install a C compiler, build with CGO_ENABLED=1" }
