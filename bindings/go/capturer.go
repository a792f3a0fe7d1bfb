//go:build cgo

package routecap

import (
	"fmt"
	"runtime"
	"slices"
	"sync/atomic"
	"unsafe"
)

// Version returns the version of the loaded library (routecap_version).
func Version() (major, minor, patch int) {
	v := int(routecap_version())
	return v / 10000, v / 100 % 100, v % 100
}

// Compatible reports whether the loaded library can stand in for the one that this package was made
// for, which New requires (routecap_get_api).
func Compatible() bool { return routecap_get_api(HeaderVersionMajor, HeaderVersionMinor) != nil }

// BackendInfo says what a backend of the loaded library can do on this machine.
type BackendInfo struct {
	Available bool   // a capturer can be created; otherwise Detail says why not
	Devices   int    // how many; 0 on the host backend
	Detail    string // one line
}

// Info describes the backend (routecap_backend_info).
func (b Backend) Info() (BackendInfo, error) {
	info := cBackend{structSize: uint32(unsafe.Sizeof(cBackend{}))}
	if _, err := routecap_backend_info(int32(b), &info).outcome("routecap_backend_info"); err != nil {
		return BackendInfo{}, err
	}
	return BackendInfo{
		Available: info.available != 0,
		Devices:   int(info.devices),
		Detail:    goString(info.detail),
	}, nil
}

// Config says what a capturer captures (routecap_config). Backend, Layers, K, Experts (or
// LayerExperts) and Rows are required; 0 elsewhere is the default.
type Config struct {
	Backend Backend
	Role    Role
	Device  int32  // ordinal; ignored by the host backend
	Layers  uint32 // captured (MoE) layers, 1..MaxLayers
	K       uint32 // experts per token, the most of any layer, 1..MaxK
	Experts uint32 // ids are in [0, Experts), zero experts included; K..MaxExperts
	// sink rows: the most tokens of one forward pass, padding included; 1..MaxRows
	Rows      uint32
	Slots     uint32 // steps that may be in flight, 1..MaxSlots; default 2 (Issue)
	SinkDType DType  // of the library's sink: I16 (default), I32 or I64
	// capture a weight beside each id, as it is: DTypeF32, DTypeF16 or DTypeBF16; default none. A
	// cell can have ids without weights. The weights of a cell are missing if its ids are, if nobody
	// recorded them, or if one of them is NaN
	WeightsDType DType
	// ConfigMayLose for steps that are lost on the host, ConfigChecked for errors at slips
	Flags       ConfigFlags
	IDSpace     IDSpace // what the recorded ids are; travels with every routing
	MaxRequests uint32  // open at a time; default 65536
	// upper limit of the memory for captured rows, routings included; default 1 GiB; at least one
	// page (Memory)
	BudgetBytes uint64

	// [Layers] index of each captured layer in the decoder, strictly ascending unless LayerVisit is
	// set; default 0..Layers-1
	LayerMap []int32
	// [Layers] experts of each layer where they differ; default Experts for all
	LayerExperts []uint32
	// [Layers] the most experts of a token in each layer where they differ; default K for all
	LayerK []uint32
	// [Layers] the fewest, where a router chooses fewer for some tokens; default LayerK
	LayerMinK []uint32
	// [Layers] how often the decoder ran the layer before, where it runs layers several times:
	// layers ascend by LayerMap and LayerVisit; default 0 for all
	LayerVisit []uint32
	// [Layers] default ProvenanceCaptured for all. ProvenanceRecomputed: the layer may be routed
	LayerProvenance []Provenance
}

// DefaultConfig returns the defaults; Backend, Layers, K, Experts and Rows remain to be set
// (routecap_config_init).
func DefaultConfig() Config {
	var c cConfig
	routecap_config_init(&c, unsafe.Sizeof(c))
	return Config{
		Backend:      c.backend,
		Role:         c.role,
		Device:       c.device,
		Layers:       c.layers,
		K:            c.k,
		Experts:      c.experts,
		Rows:         c.rows,
		Slots:        c.slots,
		SinkDType:    c.sinkDType,
		WeightsDType: c.weightsDType,
		Flags:        c.flags,
		IDSpace:      c.idSpace,
		MaxRequests:  c.maxRequests,
		BudgetBytes:  c.budgetBytes,
	}
}

// pass calls f with the configuration as C has it.
func (config *Config) pass(f func(*cConfig) Result) Result {
	lists := append(
		layerLists(config.LayerMap, config.LayerExperts, config.LayerK, config.LayerMinK, config.LayerVisit),
		layerList{"LayerProvenance", len(config.LayerProvenance)},
	)
	if wrong := misfit(lists, int(config.Layers)); wrong != nil && config.Role != RoleDisabled {
		return Result{ErrArgument, wrong.says(int(config.Layers))}
	}
	c := cConfig{
		structSize:   uint32(unsafe.Sizeof(cConfig{})),
		backend:      config.Backend,
		role:         config.Role,
		device:       config.Device,
		layers:       config.Layers,
		k:            config.K,
		experts:      config.Experts,
		rows:         config.Rows,
		slots:        config.Slots,
		sinkDType:    config.SinkDType,
		weightsDType: config.WeightsDType,
		flags:        config.Flags,
		idSpace:      config.IDSpace,
		maxRequests:  config.MaxRequests,
		budgetBytes:  config.BudgetBytes,
	}
	var pin runtime.Pinner
	defer pin.Unpin()
	c.layerMap = pinSlice(&pin, config.LayerMap)
	c.layerExperts = pinSlice(&pin, config.LayerExperts)
	c.layerProvenance = pinSlice(&pin, config.LayerProvenance)
	c.layerK = pinSlice(&pin, config.LayerK)
	c.layerMinK = pinSlice(&pin, config.LayerMinK)
	c.layerVisit = pinSlice(&pin, config.LayerVisit)
	return f(&c)
}

// A layerList is a list of a configuration with an element for each layer, or none.
type layerList struct {
	name   string
	length int
}

func layerLists(layerMap []int32, layerExperts, layerK, layerMinK, layerVisit []uint32) []layerList {
	return []layerList{
		{"LayerMap", len(layerMap)},
		{"LayerExperts", len(layerExperts)},
		{"LayerK", len(layerK)},
		{"LayerMinK", len(layerMinK)},
		{"LayerVisit", len(layerVisit)},
	}
}

// misfit returns the first list that has elements, but not one for each layer.
func misfit(lists []layerList, layers int) *layerList {
	for i, list := range lists {
		if list.length != 0 && list.length != layers {
			return &lists[i]
		}
	}
	return nil
}

func (l *layerList) says(layers int) string {
	return fmt.Sprintf("%s has %d elements for %d layers", l.name, l.length, layers)
}

// Memory says how much memory a capturer of this configuration needs, without creating it
// (routecap_config_memory). Errors as New.
func (config Config) Memory() (Memory, error) {
	memory := Memory{structSize: uint32(unsafe.Sizeof(Memory{}))}
	_, err := config.pass(func(c *cConfig) Result { return routecap_config_memory(c, &memory) }).
		outcome("routecap_config_memory")
	return memory, err
}

// Capturer captures the routing of one rank: it owns the sink, the pages and the requests.
//
// The methods that take a Stream, SinkBind, SinkLayer and SinkSlice are called by one goroutine at
// a time, in the engine's order; a second one that comes while one of them runs gets ErrState
// instead of harm. All others may be called from any goroutine at any time. After Close all return
// ErrClosed.
type Capturer struct {
	handle
	config    Config
	streaming atomic.Bool // one of the functions for one goroutine at a time is running
}

// New creates a capturer (routecap_capturer_create). All memory of the device and all page-locked
// memory is allocated here; create it before CUDA graphs are captured. It has to be closed: Close
// stops its thread and frees its memory.
//
// Errors: ErrNoBackend, the backend is not in the library or not usable on this machine;
// ErrDriverTooOld; ErrDevice; ErrThread; ErrArgument; ErrNoMemory.
func New(config Config) (*Capturer, error) {
	const op = "routecap_capturer_create"
	if !Compatible() {
		return nil, &Error{
			Op:     op,
			Status: ErrStructSize,
			Text:   "the loaded library has another version than this package",
		}
	}
	c := &Capturer{config: config}
	c.config.LayerMap = slices.Clone(config.LayerMap)
	c.config.LayerExperts = slices.Clone(config.LayerExperts)
	c.config.LayerProvenance = slices.Clone(config.LayerProvenance)
	c.config.LayerK = slices.Clone(config.LayerK)
	c.config.LayerMinK = slices.Clone(config.LayerMinK)
	c.config.LayerVisit = slices.Clone(config.LayerVisit)
	c.object = new(unsafe.Pointer)
	if _, err := config.pass(func(cc *cConfig) Result { return routecap_capturer_create(cc, c.object) }).outcome(op); err != nil {
		return nil, err
	}
	// The backstop waits as Close does: not on a goroutine that runs clean-ups.
	c.cleanup = runtime.AddCleanup(c, func(object *unsafe.Pointer) {
		go func() {
			routecap_capturer_destroy(*object)
			collectLoans()
		}()
	}, c.object)
	return c, nil
}

// Close destroys the capturer (routecap_capturer_destroy). It waits for calls in progress and until
// all steps issued so far have landed. Routings stay valid, and those of Finish are ready. A second
// Close does nothing. It returns nil.
func (c *Capturer) Close() error {
	c.close(routecap_capturer_destroy)
	collectLoans()
	return nil
}

// callAlone is call for the functions for one goroutine at a time.
func (c *Capturer) callAlone(op string, f func(capturer unsafe.Pointer) Result) (Result, error) {
	return c.call(op, func(capturer unsafe.Pointer) Result {
		if !c.streaming.CompareAndSwap(false, true) {
			return Result{
				ErrState,
				"another goroutine is in a call of this capturer that takes a stream or is one of the sink",
			}
		}
		defer c.streaming.Store(false)
		return f(capturer)
	})
}

// Stats reads the counters (routecap_capturer_stats). It does not wait.
func (c *Capturer) Stats() (Stats, error) {
	stats := Stats{structSize: uint32(unsafe.Sizeof(Stats{}))}
	_, err := c.call(
		"routecap_capturer_stats",
		func(p unsafe.Pointer) Result { return routecap_capturer_stats(p, &stats) },
	)
	return stats, err
}

// LayerStats reads the counters of layers 0..len(stats)-1 (routecap_capturer_layer_stats). It does
// not wait.
//
// Errors: ErrUnknownLayer, there are fewer layers.
func (c *Capturer) LayerStats(stats []LayerStats) error {
	_, err := c.call("routecap_capturer_layer_stats", func(p unsafe.Pointer) Result {
		return routecap_capturer_layer_stats(
			p,
			unsafe.SliceData(stats),
			unsafe.Sizeof(LayerStats{}),
			uintptr(len(stats)),
		)
	})
	return err
}

// Progress files the steps that have landed, on this goroutine: the work of the thread that a
// capturer with ConfigManualProgress does not have (routecap_capturer_progress). Finalize and Wait
// make progress themselves; reading does not. Without that flag it does nothing.
func (c *Capturer) Progress() error {
	_, err := c.call(
		"routecap_capturer_progress",
		func(p unsafe.Pointer) Result { return routecap_capturer_progress(p) },
	)
	return err
}

// pinSlice pins the elements of a slice and returns where they are; nil if it has none.
func pinSlice[T any](pin *runtime.Pinner, s []T) unsafe.Pointer {
	if len(s) == 0 {
		return nil
	}
	pin.Pin(unsafe.SliceData(s))
	return unsafe.Pointer(unsafe.SliceData(s))
}

// goString copies a string of C.
func goString(p unsafe.Pointer) string {
	if p == nil {
		return ""
	}
	n := 0
	for *(*byte)(unsafe.Add(p, n)) != 0 {
		n++
	}
	return string(unsafe.Slice((*byte)(p), n))
}
