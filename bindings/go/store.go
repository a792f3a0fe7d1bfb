//go:build cgo

package routecap

import (
	"fmt"
	"runtime"
	"unsafe"
)

// StoreConfig says what a store is (routecap_store_config); 0 is the default.
type StoreConfig struct {
	Flags       StoreFlags // StoreSlotKeys: keys are places in a cache
	BlockRows   uint32     // rows of a block, 1..MaxBlockRows; default 16
	KeyBytes    uint32     // bytes of a key, MinKeyBytes..MaxKeyBytes; default 32
	BudgetBytes uint64     // limit of its memory; default 1 GiB
	Generation  uint64     // that it begins at
}

func (config StoreConfig) c() cStoreConfig {
	return cStoreConfig{
		structSize:  uint32(unsafe.Sizeof(cStoreConfig{})),
		flags:       config.Flags,
		blockRows:   config.BlockRows,
		keyBytes:    config.KeyBytes,
		budgetBytes: config.BudgetBytes,
		generation:  config.Generation,
	}
}

// DefaultStoreConfig returns the defaults, with their numbers (routecap_store_config_init).
func DefaultStoreConfig() StoreConfig {
	var c cStoreConfig
	routecap_store_config_init(&c, unsafe.Sizeof(c))
	return StoreConfig{
		Flags:       c.flags,
		BlockRows:   16,
		KeyBytes:    32,
		BudgetBytes: 1 << 30,
		Generation:  c.generation,
	}
}

// Store keeps rows that were captured when a prefix was computed, for whoever takes the prefix from
// a cache. The unit is a block of rows under a key. Capturers publish to it and adopt from it; its
// methods may be called from any goroutine at any time. What was adopted outlives it.
//
// Keys are passed one after another, KeyBytes each.
type Store struct {
	handle
	keyBytes int
}

// newStore keeps what create makes.
func newStore(
	op string,
	config StoreConfig,
	shape Config,
	create func(*cStoreConfig, *cConfig, *unsafe.Pointer) Result,
) (*Store, error) {
	s := &Store{keyBytes: int(config.KeyBytes)}
	if s.keyBytes == 0 {
		s.keyBytes = 32
	}
	s.object = new(unsafe.Pointer)
	c := config.c()
	if _, err := shape.pass(func(of *cConfig) Result { return create(&c, of, s.object) }).outcome(op); err != nil {
		return nil, err
	}
	s.cleanup = runtime.AddCleanup(
		s,
		func(object *unsafe.Pointer) { routecap_store_free(*object) },
		s.object,
	)
	return s, nil
}

// NewStore creates a store in the memory of this process (routecap_store_create). Of `shape`, a
// capturer's configuration, it takes Layers, K, Experts, IDSpace and the lists of layers.
func NewStore(config StoreConfig, shape Config) (*Store, error) {
	return newStore("routecap_store_create", config, shape, routecap_store_create)
}

// Close frees the store (routecap_store_free). What was adopted stays with its requests. A second
// Close does nothing. It returns nil.
func (s *Store) Close() error {
	s.close(routecap_store_free)
	return nil
}

// count says how many keys there are.
func (s *Store) count(keys []byte) (uintptr, Result) {
	if len(keys)%s.keyBytes != 0 {
		return 0, Result{
			ErrArgument,
			fmt.Sprintf("%d bytes are not a multiple of %d", len(keys), s.keyBytes),
		}
	}
	return uintptr(len(keys) / s.keyBytes), Result{}
}

// withKeys makes a call with keys.
func (s *Store) withKeys(
	op string,
	keys []byte,
	f func(store, keys unsafe.Pointer, count uintptr) Result,
) (Result, error) {
	count, refused := s.count(keys)
	if refused.Status != OK {
		return refused.outcome(op)
	}
	return s.call(op, func(p unsafe.Pointer) Result { return f(p, start(keys), count) })
}

// Contains says how many leading keys an adopt of this generation would find
// (routecap_store_contains), and in reasons, which is nil or has one for each key, why each is not
// there, or 0.
//
// Errors: ErrArgument, reasons of another length; ErrState, a generation that the store has not
// advanced to.
func (s *Store) Contains(
	keys []byte,
	generation uint64,
	reasons []Reason,
) (leading uint64, err error) {
	_, err = s.withKeys(
		"routecap_store_contains",
		keys,
		func(store, k unsafe.Pointer, count uintptr) Result {
			if refused := oneEach(reasons, count); refused.Status != OK {
				return refused
			}
			return routecap_store_contains(
				store,
				k,
				count,
				generation,
				(*int32)(unsafe.SliceData(reasons)),
				&leading,
			)
		},
	)
	return leading, err
}

// oneEach refuses reasons that are not one for each key.
func oneEach(reasons []Reason, count uintptr) Result {
	if reasons != nil && uintptr(len(reasons)) != count {
		return Result{ErrArgument, fmt.Sprintf("there are %d reasons for %d keys", len(reasons), count)}
	}
	return Result{}
}

// Retain keeps blocks until they are released (routecap_store_retain). It says in reasons, which is
// nil or has one for each key, which are retained now: those with 0.
//
// Errors: ErrArgument, reasons of another length.
func (s *Store) Retain(keys []byte, reasons []Reason) error {
	_, err := s.withKeys(
		"routecap_store_retain",
		keys,
		func(store, k unsafe.Pointer, count uintptr) Result {
			if refused := oneEach(reasons, count); refused.Status != OK {
				return refused
			}
			return routecap_store_retain(store, k, count, (*int32)(unsafe.SliceData(reasons)))
		},
	)
	return err
}

// Release lets blocks go that were retained (routecap_store_release).
func (s *Store) Release(keys []byte) error {
	_, err := s.withKeys("routecap_store_release", keys, routecap_store_release)
	return err
}

// Evict drops blocks, and says how many there were (routecap_store_evict).
func (s *Store) Evict(keys []byte) (evicted uint64, err error) {
	_, err = s.withKeys(
		"routecap_store_evict",
		keys,
		func(store, k unsafe.Pointer, count uintptr) Result {
			return routecap_store_evict(store, k, count, &evicted)
		},
	)
	return evicted, err
}

// Advance advances the store to a generation of weights: everything older is gone for adopters
// (routecap_store_advance).
func (s *Store) Advance(generation uint64) error {
	_, err := s.call(
		"routecap_store_advance",
		func(p unsafe.Pointer) Result { return routecap_store_advance(p, generation) },
	)
	return err
}

// Stats reads the counters (routecap_store_stats).
func (s *Store) Stats() (StoreStats, error) {
	stats := StoreStats{structSize: uint32(unsafe.Sizeof(StoreStats{}))}
	_, err := s.call(
		"routecap_store_stats",
		func(p unsafe.Pointer) Result { return routecap_store_stats(p, &stats) },
	)
	return stats, err
}

// KeyChain makes content keys from token ids, one for each whole block (routecap_key_chain). `seed`
// is what else decides the rows, or the last key of the tokens before.
func KeyChain(seed []byte, tokens []int32, blockRows, keyBytes uint32) ([]byte, error) {
	keys := make([]byte, len(tokens)/int(max(blockRows, 1))*int(keyBytes))
	_, err := routecap_key_chain(
		start(seed),
		uintptr(len(seed)),
		unsafe.SliceData(tokens),
		uintptr(len(tokens)),
		blockRows,
		keyBytes,
		start(keys),
		uintptr(len(keys)),
	).outcome("routecap_key_chain")
	return keys, err
}

// ---- Publishing and adopting

// withStore makes a call of a capturer and a store.
func (c *Capturer) withStore(
	op string,
	store *Store,
	f func(capturer, store unsafe.Pointer) Result,
) (Result, error) {
	if !store.enter() {
		return closed.outcome(op)
	}
	defer store.leave()
	return c.call(op, func(p unsafe.Pointer) Result { return f(p, *store.object) })
}

// Publish publishes rows of a request from position `first` on, a block for each key
// (routecap_request_publish). It returns at once; the rows may be in flight.
//
// Errors: ErrUnknownRequest; ErrShapeMismatch; ErrOutOfRange, rows that were not issued; ErrState,
// a generation that the store has not advanced to.
func (c *Capturer) Publish(
	request Request,
	store *Store,
	first uint64,
	keys []byte,
	generation uint64,
) error {
	const op = "routecap_request_publish"
	count, refused := store.count(keys)
	if refused.Status != OK {
		_, err := refused.outcome(op)
		return err
	}
	_, err := c.withStore(op, store, func(p, s unsafe.Pointer) Result {
		return routecap_request_publish(p, request, s, first, start(keys), count, generation)
	})
	return err
}

// Adopt adds rows of a store to a request from position `first` on, a block for each key
// (routecap_request_adopt). What is not there is missing, with its reason.
//
// Errors: as Publish; ErrOutOfRange, rows beyond MaxPosition.
func (c *Capturer) Adopt(
	request Request,
	store *Store,
	first uint64,
	keys []byte,
	generation uint64,
) (Adoption, error) {
	const op = "routecap_request_adopt"
	adoption := Adoption{structSize: uint32(unsafe.Sizeof(Adoption{}))}
	count, refused := store.count(keys)
	if refused.Status != OK {
		_, err := refused.outcome(op)
		return adoption, err
	}
	_, err := c.withStore(op, store, func(p, s unsafe.Pointer) Result {
		return routecap_request_adopt(
			p,
			request,
			s,
			first,
			start(keys),
			count,
			generation,
			&adoption,
		)
	})
	return adoption, err
}

// Prefix is consecutive blocks of a request.
type Prefix struct {
	Request Request
	First   uint64 // position of the first row
	Keys    []byte
}

// PublishBatch publishes rows of many requests in one call (routecap_request_publish_batch). It
// returns the status of each.
//
// Result: OK; Partial. Errors: ErrShapeMismatch; ErrState.
func (c *Capturer) PublishBatch(
	store *Store,
	prefixes []Prefix,
	generation uint64,
) ([]Status, Result, error) {
	items := make([]cPublishItem, len(prefixes))
	outcome, err := c.batchOfPrefixes(
		"routecap_request_publish_batch",
		store,
		prefixes,
		func(i int, keys unsafe.Pointer, count uint64) {
			items[i] = cPublishItem{
				request: prefixes[i].Request,
				first:   prefixes[i].First,
				keys:    keys,
				count:   count,
			}
		},
		func(p, s unsafe.Pointer) Result {
			return routecap_request_publish_batch(
				p,
				s,
				unsafe.SliceData(items),
				unsafe.Sizeof(cPublishItem{}),
				uintptr(len(items)),
				generation,
			)
		},
	)
	statuses := make([]Status, len(items))
	for i := range items {
		statuses[i] = items[i].status
	}
	return statuses, outcome, err
}

// AdoptBatch adds rows of a store to many requests in one call (routecap_request_adopt_batch). It
// returns what each found, and its status.
//
// Result: OK; Partial. Errors: ErrShapeMismatch; ErrState.
func (c *Capturer) AdoptBatch(
	store *Store,
	prefixes []Prefix,
	generation uint64,
) ([]Adoption, []Status, Result, error) {
	items := make([]cAdoptItem, len(prefixes))
	outcome, err := c.batchOfPrefixes(
		"routecap_request_adopt_batch",
		store,
		prefixes,
		func(i int, keys unsafe.Pointer, count uint64) {
			items[i] = cAdoptItem{
				request: prefixes[i].Request,
				first:   prefixes[i].First,
				keys:    keys,
				count:   count,
			}
		},
		func(p, s unsafe.Pointer) Result {
			return routecap_request_adopt_batch(
				p,
				s,
				unsafe.SliceData(items),
				unsafe.Sizeof(cAdoptItem{}),
				uintptr(len(items)),
				generation,
			)
		},
	)
	adoptions, statuses := make([]Adoption, len(items)), make([]Status, len(items))
	for i, item := range items {
		adoptions[i] = Adoption{
			Rows:         item.rows,
			Found:        item.found,
			Evicted:      item.evicted,
			NotPublished: item.notPublished,
			Stale:        item.stale,
		}
		statuses[i] = item.status
	}
	return adoptions, statuses, outcome, err
}

func (c *Capturer) batchOfPrefixes(
	op string,
	store *Store,
	prefixes []Prefix,
	set func(int, unsafe.Pointer, uint64),
	call func(capturer, store unsafe.Pointer) Result,
) (Result, error) {
	var pin runtime.Pinner
	defer pin.Unpin()
	for i := range prefixes {
		count, refused := store.count(prefixes[i].Keys)
		if refused.Status != OK {
			return refused.outcome(op)
		}
		set(i, pinSlice(&pin, prefixes[i].Keys), uint64(count))
	}
	return c.withStore(op, store, call)
}
