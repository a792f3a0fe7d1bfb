//go:build cgo && routecap_experimental

package routecap

import (
	"errors"
	"testing"
)

func TestAStoreOfSeveralProcessesSaysIfThereIsNone(t *testing.T) {
	if _, _, err := NewSharedStore(StoreConfig{}, testShape); err != nil &&
		!errors.Is(err, ErrNoBackend) {
		t.Fatal(err)
	}
	if _, err := OpenSharedStore(-1, StoreConfig{}, testShape); err == nil {
		t.Fatal("a store of no descriptor")
	}
}
