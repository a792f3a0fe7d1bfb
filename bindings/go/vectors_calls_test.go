//go:build cgo

package routecap

import (
	"cmp"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"runtime"
	"syscall"
	"unsafe"
)

// How the replayer of vectors_test.go makes each call.

var calls map[string]func(r *replay, in, out *said) // filled by init: they call what looks into it

func init() {
	calls = map[string]func(r *replay, in, out *said){
		"version": func(r *replay, in, out *said) {
			major, minor, patch := Version()
			r.equal("version", out.int("version"), int64(major*10000+minor*100+patch))
		},
		"get_api": func(r *replay, in, out *said) {
			major, minor := in.uint32("major"), in.uint32("minor")
			r.equal("available", out.uint("available") != 0, routecap_get_api(major, minor) != nil)
			if major == HeaderVersionMajor && minor == HeaderVersionMinor {
				r.equal("Compatible", true, Compatible())
			}
		},
		"status_name": func(r *replay, in, out *said) { r.equal("name", out.text("name"), Status(in.int("status")).String()) },
		"backend_info": func(r *replay, in, out *said) {
			info, err := Backend(in.int("backend")).Info()
			if r.done(err) {
				expected := out.object("info")
				r.equal("available", expected.uint("available") != 0, info.Available)
				r.equal("devices", expected.int("devices"), int64(info.Devices))
				r.equal("reserved", uint64(0), expected.uint("reserved"))
				r.equal("whether there is a detail", true, info.Detail != "")
			}
		},
		"config_init": func(r *replay, in, out *said) {
			config, expected := DefaultConfig(), out.object("config")
			expected.same(&config)
			r.equal("reserved", uint64(0), expected.uint("reserved"))
			r.done(nil)
		},
		"capturer_create": func(r *replay, in, out *said) {
			config := r.config(in.object("config"))
			if in.has("budget_pages") {
				memory, err := config.Memory()
				if err != nil {
					r.fatal(err)
				}
				config.BudgetBytes = in.uint("budget_pages") * memory.PageBytes
			}
			c, err := New(config)
			delivered := r.done(err)
			r.equal("whether there is a capturer", delivered, c != nil)
			if delivered {
				r.capturers[out.text("capturer")] = c
			}
		},
		"capturer_load": func(r *replay, in, out *said) {
			load, err := in.capturer().Load()
			if r.done(err) {
				expected := out.object("load")
				for name, got := range map[string]uint64{"layers": uint64(load.Layers), "experts": uint64(load.Experts), "steps": load.Steps,
					"first_step": uint64(load.FirstStep), "last_step": uint64(load.LastStep), "rows_prefill": load.RowsPrefill,
					"rows_decode": load.RowsDecode} {
					r.equal(name, expected.uint(name), got)
				}
				if out.has("counts") {
					r.equal(
						"counts",
						fmt.Sprint(numbers[uint64](out.list("counts"))),
						fmt.Sprint(load.Counts),
					)
				}
			}
		},
		"sink_bind":  replaySinkBind,
		"sink_layer": replaySinkLayer,
		"sink_write": func(r *replay, in, out *said) {
			sink, err := in.capturer().SinkLayer(in.uint32("layer"))
			if err != nil {
				r.fatal(err)
			}
			switch sink.DType {
			case DTypeI16:
				writeSink[int16](r, in)
			case DTypeI32:
				writeSink[int32](r, in)
			case DTypeI64:
				writeSink[int64](r, in)
			}
			switch {
			case in.has("weights") && in.capturer().config.WeightsDType == DTypeF32:
				writeWeights[float32](r, in)
			case in.has("weights"):
				writeWeights[uint16](r, in)
			}
		},
		"layer_record": func(r *replay, in, out *said) {
			c := in.capturer()
			said := in.object("source")
			given := source(said, c.config.K)
			given.Weights = weightsOfSource(said, said, c)
			if dtype := DType(said.int("weights_dtype")); given.Weights.none() {
				given.Weights.dtype = dtype // of none, which only C can state
			}
			r.done(c.Record(in.uint32("layer"), given, Stream(in.uint("stream"))))
		},
		"layers_record": func(r *replay, in, out *said) {
			c, said := in.capturer(), in.object("source")
			dtype := DType(said.int("dtype"))
			common := source(said, c.config.K)
			common.Weights = weightsOfSource(said, said, c)
			var layers []LayerSource
			for _, item := range in.list("layers") {
				l := r.said(item)
				layers = append(
					layers,
					LayerSource{
						Layer: l.uint32("layer"),
						IDs:   common.dense(l.list("ids"), dtype, c.config.K),
						Table: l.int32s("table"),

						Weights: weightsOfSource(said, l, c),
					},
				)
			}
			r.done(c.RecordLayers(common, layers, Stream(in.uint("stream"))))
		},
		"router_init": func(r *replay, in, out *said) {
			router, err := NewRouter(Method(in.int("method")))
			if r.done(err) {
				expected := out.object("router")
				expected.same(&router)
				r.equal("bias_dtype", expected.int("bias_dtype"), int64(router.Bias.dtype))
				r.equal("hash_tokens", expected.int("hash_tokens"), int64(router.HashTable.Len()))
			}
		},
		"layer_route": replayRoute,
		"step_issue":  replayIssue,
		"step_arrive": replayArrive,
		"request_open": func(r *replay, in, out *said) {
			var options cOpenOptions
			in.object("options").fill(&options)
			handles := buffer[uint64](int(in.uint("count")))
			requests := unsafe.Slice((*Request)(unsafe.SliceData(handles)), len(handles))
			if r.done(in.capturer().OpenBatch(requests, options.policy)) {
				for i, name := range out.list("requests") {
					r.bindRequest(name, requests[i])
				}
				return
			}
			for _, handle := range requests {
				r.equal("a handle", Request(0), handle)
			}
		},
		"request_accept": func(r *replay, in, out *said) {
			c, request, step := in.capturer(), in.request(), Step(in.uint("step"))
			if in.has("rows") {
				r.done(c.AcceptRows(request, step, numbers[uint32](in.list("rows"))))
			} else {
				r.done(c.Accept(request, step, in.uint("count")))
			}
		},
		"request_accept_batch": func(r *replay, in, out *said) {
			var items []AcceptItem
			for _, item := range in.list("items") {
				s := r.said(item)
				var one AcceptItem
				s.fill(&one)
				if s.has("rows") {
					one.SetRows(numbers[uint32](s.list("rows")))
				}
				items = append(items, one)
			}
			if r.returned(in.capturer().AcceptBatch(items)) {
				status := make([]Status, len(items))
				for i := range items {
					status[i] = items[i].Status
				}
				r.statuses(out, status)
			}
		},
		"request_extract_into": func(r *replay, in, out *said) {
			first, rows := in.uint("first"), in.uint("rows")
			r.copying(in, out, copies{in.capturer(), in.request(), first, rows, nil, false})
		},
		"copy_options_init": func(r *replay, in, out *said) {
			options := DefaultCopyOptions()
			out.object("options").same(&options)
			r.done(nil)
		},
		"routing_retain": func(r *replay, in, out *said) {
			same, err := in.routing("routing").Clone()
			r.made(r.done(err), out.value("routing"), same)
		},
		"routing_view":    replayView,
		"routing_copy_to": func(r *replay, in, out *said) { r.copying(in, out, copies{routing: in.routing("routing")}) },
		"routing_copy_weights": func(r *replay, in, out *said) {
			r.copying(in, out, copies{routing: in.routing("routing"), weights: true})
		},

		"routing_serialize":   replaySerialize,
		"routing_deserialize": replayDeserialize,
		"routing_import":      replayImport,
		"serialized_splice":   replaySplice,

		"sequence_create": func(r *replay, in, out *said) {
			var config SequenceConfig
			said := in.object("config")
			said.fill(&config)
			sequence, err := NewSequence(config)
			r.sequence(r.done(err), out.value("sequence"), sequence)
		},
		"store_config_init": func(r *replay, in, out *said) {
			config := DefaultStoreConfig()
			r.done(nil)
			out.object("config").same(&config)
		},
		"store_create": func(r *replay, in, out *said) {
			var config StoreConfig
			in.object("config").fill(&config)
			store, err := NewStore(config, r.config(in.object("shape")))
			delivered := r.done(err)
			r.equal("a store", delivered, store != nil)
			if delivered {
				r.stores[out.text("store")] = store
			}
		},
		"request_publish_batch": func(r *replay, in, out *said) {
			status, result, err := in.capturer().
				PublishBatch(in.store(), r.prefixes(in), in.uint("generation"))
			if r.returned(result, err) {
				r.statuses(out, status)
			}
		},
		"request_adopt_batch": func(r *replay, in, out *said) {
			found, status, result, err := in.capturer().
				AdoptBatch(in.store(), r.prefixes(in), in.uint("generation"))
			if r.returned(result, err) {
				r.statuses(out, status)
				for i, expected := range out.list("adoptions") {
					r.said(expected).same(&found[i])
				}
			}
		},
	}
}

func (r *replay) prefixes(in *said) (prefixes []Prefix) {
	for _, item := range in.list("items") {
		one := r.said(item)
		prefixes = append(prefixes, Prefix{one.request(), one.uint("first"), one.bytes("keys")})
	}
	return prefixes
}

// reasons compares as many reasons as there are keys.
func (r *replay) reasons(out *said, got []Reason) {
	r.t.Helper()
	expected := out.list("reasons")
	for i := range expected {
		r.equal(fmt.Sprint("reason ", i), uinteger(expected[i]), uint64(got[i]))
	}
}

func (r *replay) sequence(delivered bool, name any, sequence *Sequence) {
	r.t.Helper()
	r.equal("a sequence", delivered, sequence != nil)
	if sequence != nil {
		r.sequences[name.(string)] = sequence
	}
}

// config is the configuration of a vector.
func (r *replay) config(s *said) (config Config) {
	s.fill(&config)
	return config
}

func (r *replay) madeBatch(delivered bool, out *said, routings []*Routing) {
	r.t.Helper()
	if !delivered {
		r.equal("the number of routings", 0, len(routings))
		return
	}
	names := out.list("routings")
	r.equal("the number of routings", len(names), len(routings))
	for i, name := range names {
		r.made(true, name, routings[i])
	}
}

// ---- Sinks and taps

// mapMemory is memory that is not Go's and stays until the end of the vector.
func (r *replay) mapMemory(name string, size int) []byte {
	const access = syscall.PROT_READ | syscall.PROT_WRITE
	mapped, err := syscall.Mmap(-1, 0, size, access, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	if err != nil {
		r.fatal(err)
	}
	r.memory[name] = mapped
	return mapped
}

func replaySinkBind(r *replay, in, out *said) {
	s := in.object("sink")
	var sink Sink
	s.fill(&sink)
	plane := func(key string, dtype DType) DevicePointer {
		if !s.has(key) {
			return 0
		}
		memory := s.object(key)
		name, size := memory.text("memory"), max(dtype.Size(), 1)
		if r.memory[name] == nil {
			r.mapMemory(name, int(memory.uint("elements"))*size)
		}
		memory.has("elements")
		start := uintptr(memory.uint("start")) * uintptr(size)
		return DevicePointer(uintptr(unsafe.Pointer(&r.memory[name][0])) + start)
	}
	sink.IDs = plane("ids", sink.DType)
	sink.Weights = plane("weights", in.capturer().config.WeightsDType)
	r.done(in.capturer().SinkBind(in.uint32("first_layer"), in.uint32("layers"), sink))
}

func replaySinkLayer(r *replay, in, out *said) {
	sink, err := in.capturer().SinkLayer(in.uint32("layer"))
	if !r.done(err) {
		return
	}
	expected := out.object("sink")
	expected.same(&sink)
	plane := func(key string, dtype DType, address DevicePointer) {
		switch said := expected.value(key).(type) {
		case map[string]any:
			memory := r.said(said)
			start := uintptr(unsafe.Pointer(&r.memory[memory.text("memory")][0]))
			memory.has("elements")
			r.equal(key, DevicePointer(start+uintptr(memory.uint("start"))*uintptr(dtype.Size())), address)
		case bool:
			r.equal("whether there is memory of "+key, said, address != 0)
		case nil:
			r.equal(key, DevicePointer(0), address)
		}
	}
	plane("ids", sink.DType, sink.IDs)
	if expected.has("weights") || in.capturer().config.WeightsDType == 0 {
		plane("weights", in.capturer().config.WeightsDType, sink.Weights)
	}
}

// writeWeights writes the weights that a router wrote with its ids.
func writeWeights[T Weight](r *replay, in *said) {
	weights, stride, err := SinkWeights[T](in.capturer(), in.uint32("layer"))
	if err != nil {
		r.fatal(err)
	}
	first, columns := int(in.uint("first_row")), int(in.capturer().kOf(in.uint32("layer")))
	for i, value := range numbers[T](in.list("weights")) {
		weights[(first+i/columns)*stride+i%columns] = value
	}
}

func writeSink[T int16 | int32 | int64](r *replay, in *said) {
	ids, stride, err := SinkSlice[T](in.capturer(), in.uint32("layer"))
	if err != nil {
		r.fatal(err)
	}
	first, columns := int(in.uint("first_row")), int(in.capturer().kOf(in.uint32("layer")))
	for i, id := range numbers[T](in.list("ids")) {
		ids[(first+i/columns)*stride+i%columns] = id
	}
}

// dense is the array of a source: C has a pointer, and what a vector has behind the last row of a
// dense matrix is of no account.
func (s *Source) dense(ids []any, dtype DType, k uint32) Array {
	read := int(s.Rows) * int(cmp.Or(s.Columns, k))
	if s.RowStride == 0 && s.ColumnStride == 0 && len(ids) > read {
		ids = ids[:read]
	}
	return array(ids, dtype)
}

func source(s *said, k uint32) Source {
	var source Source
	dtype := DType(s.int("dtype"))
	s.fill(&source)
	source.Columns = cmp.Or(s.uint32("k_source"), k)
	source.IDs = source.dense(s.list("ids"), dtype, k).From(int(s.uint("ids_start")))
	source.LiveRows, source.RowBase, source.RowIndex = s.int32s(
		"live_rows",
	), s.int32s(
		"row_base",
	), s.int32s(
		"row_index",
	)
	source.Table = s.int32s("table")
	return source
}

// weightsOfSource are those that a source, a layer of several or rows say: of the dtype that is
// stated, or else of the capturer's.
func weightsOfSource(stated, said *said, c *Capturer) Array {
	dtype := c.config.WeightsDType
	if stated.has("weights_dtype") {
		dtype = DType(stated.int("weights_dtype"))
	}
	stated.has("weights_bytes")
	if !said.has("weights") {
		return Array{}
	}
	return array(said.list("weights"), dtype).From(int(stated.uint("weights_start")))
}

func replayRoute(r *replay, in, out *said) {
	ofRouter, ofLogits := in.object("router"), in.object("logits")
	var router Router
	if ofRouter.has("method") {
		made, err := NewRouter(Method(ofRouter.int("method")))
		if err != nil {
			r.fatal(err)
		}
		router = made
	}
	ofRouter.fill(&router)
	router.Bias = array(ofRouter.list("bias"), DType(ofRouter.int("bias_dtype")))
	router.HashTable = ofRouter.int32s("hash_table")
	if ofRouter.has("hash_tokens") {
		r.equal(
			"the length of hash_table",
			ofRouter.uint("hash_tokens")*uint64(in.capturer().config.K),
			uint64(router.HashTable.Len()),
		)
	}
	var logits Logits
	ofLogits.fill(&logits)
	scores := ofLogits.list("logits")
	experts := cmp.Or(logits.Experts, in.capturer().expertsOf(in.uint32("layer")))
	read := int(logits.Rows * experts) // C has a pointer, and does not mind what is behind it
	if logits.RowStride == 0 && logits.ColumnStride == 0 && len(scores) > read && read > 0 {
		scores = scores[:read]
	}
	logits.Logits = array(scores, DType(ofLogits.int("dtype"))).From(int(ofLogits.uint("logits_start")))
	logits.LiveRows, logits.RowBase, logits.RowIndex = ofLogits.int32s(
		"live_rows",
	), ofLogits.int32s(
		"row_base",
	), ofLogits.int32s(
		"row_index",
	)
	logits.Tokens = array(ofLogits.list("tokens"), DType(ofLogits.int("tokens_dtype")))
	var weights []float32
	if ofLogits.has("weights") {
		weights = buffer[float32](len(out.list("weights")))
		if !out.has("weights") { // it fails: of any size that it may need
			weights = buffer[float32](1 << 12)
		}
		logits.Weights = ArrayOf(weights)
	}
	delivered := r.done(
		in.capturer().Route(in.uint32("layer"), router, logits, Stream(in.uint("stream"))),
	)
	tolerance := 0.0
	if out.has("tolerance") {
		tolerance = float(out.value("tolerance"))
	}
	wrote(r, delivered, out, "weights", weights, tolerance)
}

// ---- Steps and reading

// laterStep is a step whose rows arrive later.
type laterStep struct {
	capturer string
	step     Step
}

// later is an array in memory that is not Go's and stays until the end of the vector.
func (r *replay) later(values []any, dtype DType) Array {
	name := fmt.Sprint("positions ", len(r.memory))
	memory := r.mapMemory(name, len(values)*dtype.Size())
	all := DeviceArray(DevicePointer(uintptr(unsafe.Pointer(&memory[0]))), dtype, len(values))
	write(all, values)
	return all
}

// write writes positions, as the engine's copy does.
func write(to Array, values []any) {
	switch memory := to.device.pointer(); to.dtype {
	case DTypeI32:
		copy(unsafe.Slice((*int32)(memory), to.length), numbers[int32](values))
	case DTypeI64:
		copy(unsafe.Slice((*int64)(memory), to.length), numbers[int64](values))
	}
}

func replayArrive(r *replay, in, out *said) {
	c, step := in.capturer(), Step(in.uint("step"))
	if in.has("positions") {
		write(r.positions[laterStep{in.text("capturer"), step}], in.list("positions"))
	}
	if !in.has("rows") {
		r.done(c.Arrive(step, nil))
		return
	}
	s := in.object("rows")
	var sink Sink
	s.fill(&sink)
	ids := array(s.list("ids"), sink.DType).From(int(s.uint("ids_start")))
	if sink.K != c.config.K {
		sink.structSize = uint32(unsafe.Sizeof(sink))
		var pin runtime.Pinner
		defer pin.Unpin()
		pin.Pin(ids.memory)
		sink.IDs = DevicePointer(uintptr(ids.memory))
		r.returned(routecap_step_arrive(*c.object, step, &sink).outcome("raw"))
		return
	}
	weights := weightsOfSource(s, s, c)
	r.done(c.Arrive(step, &ArrivedRows{ids, sink.Rows, sink.RowStride, sink.LayerStride, weights}))
}

func replayIssue(r *replay, in, out *said) {
	spans := make([]Span, len(in.list("spans")))
	for i, item := range in.list("spans") {
		r.said(item).fill(&spans[i])
	}
	var options IssueOptions
	if in.has("options") {
		s := in.object("options")
		s.fill(&options)
		values, dtype := s.list("positions"), DType(s.int("positions_dtype"))
		options.Positions = array(values, dtype)
		if options.Snapshot == SnapshotLater && values != nil {
			options.Positions = r.later(values, dtype)
		}
		if reserved := s.uint32("reserved"); reserved != 0 {
			raw := cIssueOptions{
				structSize: uint32(unsafe.Sizeof(cIssueOptions{})),
				reserved:   reserved,
			}
			r.returned(
				routecap_step_issue(
					*in.capturer().object,
					unsafe.SliceData(spans),
					unsafe.Sizeof(Span{}),
					uintptr(len(spans)),
					&raw,
					nil,
					nil,
					0,
				).outcome("raw"),
			)
			return
		}
	}
	status := make([]Status, len(spans))
	for i := range status {
		status[i] = untouched
	}
	step, result, err := in.capturer().Issue(spans, options, status, Stream(in.uint("stream")))
	if lost := (*LostError)(nil); errors.As(err, &lost) {
		r.equal("the lost step", step, lost.Step)
		r.equal("the result of a lost step", Lost, result.Status)
		err = nil
	}
	if r.returned(result, err) {
		r.statuses(out, status)
		if out.has("step") {
			r.equal("step", Step(out.uint("step")), step)
		}
		if options.Snapshot == SnapshotLater {
			r.positions[laterStep{in.text("capturer"), step}] = options.Positions
		}
		return
	}
	r.equal("step", Step(0), step)
	for _, s := range status {
		r.equal("a status", Status(untouched), s)
	}
}

// copies is what request_extract_into, routing_copy_to and routing_copy_weights have in common.
type copies struct {
	c           *Capturer
	request     Request
	first, rows uint64
	routing     *Routing
	weights     bool
}

func (r *replay) copying(in, out *said, from copies) {
	options := DefaultCopyOptions()
	s := in.object("options")
	s.fill(&options)
	bytes := in.uint("dst_bytes")
	switch size := uint64(options.dtype.Size()); {
	case from.weights && options.dtype == DTypeF32:
		copyWeights[float32](r, in, out, from, options)
	case from.weights && holds[uint16](options.dtype):
		copyWeights[uint16](r, in, out, from, options)
	case from.weights || size == 0 || bytes%size != 0 || options.dtype > DTypeI64:
		copyRaw(r, in, out, from, options)
	case options.dtype == DTypeU8:
		copyIDsOf[uint8](r, in, out, from, options)
	case options.dtype == DTypeI16:
		copyIDsOf[int16](r, in, out, from, options)
	case options.dtype == DTypeU16:
		copyIDsOf[uint16](r, in, out, from, options)
	case options.dtype == DTypeI32:
		copyIDsOf[int32](r, in, out, from, options)
	case options.dtype == DTypeU32:
		copyIDsOf[uint32](r, in, out, from, options)
	case options.dtype == DTypeI64:
		copyIDsOf[int64](r, in, out, from, options)
	}
}

func copyIDsOf[T ID](r *replay, in, out *said, from copies, options CopyOptions) {
	copyTo := func(dst []T, mask []uint8) (uint64, Result, error) {
		if from.routing != nil {
			return CopyTo(from.routing, options, dst, mask)
		}
		return ExtractInto(from.c, from.request, from.first, from.rows, options, dst, mask)
	}
	dst, delivered := copyTyped(r, in, out, from, options, copyTo)
	wide := make([]int64, len(dst)) // ID is narrower than Element
	for i, v := range dst {
		wide[i] = int64(v)
	}
	wrote(r, delivered, out, "dst", wide, 0)
}

func copyWeights[T Weight](r *replay, in, out *said, from copies, options CopyOptions) {
	copyTo := func(dst []T, mask []uint8) (uint64, Result, error) {
		return CopyWeights(from.routing, options, dst, mask)
	}
	dst, delivered := copyTyped(r, in, out, from, options, copyTo)
	if !delivered {
		wrote(r, false, out, "dst", dst, 0)
		return
	}
	wroteWeights(r, out, "dst", shown(dst, options.dtype))
}

// shown are weights as vectors have them: the bits of halves, and NaN.
func shown[T Weight](weights []T, dtype DType) []float64 {
	values := make([]float64, len(weights))
	for i, v := range weights {
		values[i] = float64(v)
		infinity := map[DType]uint16{DTypeF16: 0x7c00, DTypeBF16: 0x7f80}[dtype]
		if infinity != 0 && uint16(v)&0x7fff > infinity {
			values[i] = math.NaN()
		}
	}
	return values
}

func wroteWeights(r *replay, out *said, key string, got []float64) {
	r.t.Helper()
	if !out.has(key) {
		return
	}
	want := out.list(key)
	r.equal(key+": length", len(want), len(got))
	for i := range want {
		if w := float(want[i]); w != got[i] && !(math.IsNaN(w) && math.IsNaN(got[i])) {
			r.fatal(key, " ", i, " is ", got[i], ", not ", want[i])
		}
	}
}

func (r *replay) mask(in *said) []uint8 {
	if !in.has("mask_bytes") {
		return nil
	}
	return buffer[uint8](int(in.uint("mask_bytes")))
}

// k is that of what is copied.
func (s *said) k(from copies) uint32 {
	if from.routing == nil {
		return from.c.config.K
	}
	view, err := from.routing.View()
	must(s.r.t, err)
	return view.K
}

// copyTyped makes a copy and compares all but what it wrote to dst, which it returns.
func copyTyped[T ID | Weight](
	r *replay,
	in, out *said,
	from copies,
	options CopyOptions,
	copyTo func(dst []T, mask []uint8) (uint64, Result, error),
) (dst []T, delivered bool) {
	size := uint64(options.dtype.Size())
	if in.has("dst_bytes") {
		dst = make([]T, in.uint("dst_bytes")/size)
		for i := range dst {
			dst[i] = untouched
		}
	}
	mask := r.mask(in)
	needed, result, err := copyTo(dst, mask)
	if errors.Is(err, ErrShapeMismatch) && options.RowStride == 0 && options.LayerStride == 0 {
		// Longer than the copy, which C does not mind.
		part := mask
		if at := needed / uint64(in.k(from)); uint64(len(mask)) > at {
			part = mask[:at]
		}
		needed, result, err = copyTo(dst[:min(needed, uint64(len(dst)))], part)
	}
	delivered = r.returned(result, err)
	wrote(r, delivered, out, "mask", mask, 0)
	if out.has("needed") {
		r.equal("needed", out.uint("needed"), needed*size)
	}
	return dst, delivered
}

func copyRaw(r *replay, in, out *said, from copies, options CopyOptions) {
	dst, mask := buffer[uint8](int(in.uint("dst_bytes"))), r.mask(in)
	var needed uint64
	var outcome Result
	p, bytes := unsafe.Pointer(unsafe.SliceData(dst)), uintptr(len(dst))
	if from.routing != nil {
		copyTo := routecap_routing_copy_to
		if from.weights {
			copyTo = routecap_routing_copy_weights
		}
		outcome = copyTo(
			*from.routing.object,
			&options,
			p,
			bytes,
			unsafe.SliceData(mask),
			uintptr(len(mask)),
			&needed,
		)
	} else {
		outcome = routecap_request_extract_into(*from.c.object, from.request, from.first, from.rows, &options, p, bytes, unsafe.SliceData(mask),
			uintptr(len(mask)), &needed)
	}
	delivered := r.returned(outcome.outcome("raw"))
	wrote(r, delivered, out, "dst", dst, 0)
	wrote(r, delivered, out, "mask", mask, 0)
	if out.has("needed") {
		r.equal("needed", out.uint("needed"), needed)
	}
}

// ---- Routings

// reasonsOfAbsentRows checks that what a segment says of rows that are not there is what coverage
// says of each of their cells.
func (r *replay) reasonsOfAbsentRows(routing *Routing, view *View) {
	r.t.Helper()
	coverage, _, err := routing.Coverage(nil)
	must(r.t, err)
	blocks := make([]Missing, coverage.Blocks)
	_, _, err = routing.Coverage(blocks)
	must(r.t, err)
	for _, s := range view.Segments {
		if absent := len(s.IDs8)+len(s.IDs16) == 0; absent != (s.Reason != 0) {
			r.fatal("a segment has the reason ", s.Reason)
		} else if !absent {
			continue
		}
		for position := s.First; position < s.First+s.Rows; position++ {
			layers := uint32(0)
			for _, block := range blocks {
				if block.First <= position && position < block.First+block.Rows {
					r.equal("the reason of a block", s.Reason, block.Reason)
					layers += block.Layers
				}
			}
			r.equal("missing layers of a row that is not there", view.Layers, layers)
		}
	}
}

func replayView(r *replay, in, out *said) {
	routing := in.routing("routing")
	view, err := routing.View()
	if !r.done(err) || !out.has("view") {
		return
	}
	expected := out.object("view")
	expected.same(&view)
	if expected.has("segment_count") {
		r.equal("segment_count", expected.int("segment_count"), int64(len(view.Segments)))
	}
	position := view.First
	for _, s := range view.Segments {
		r.equal("first of a segment", position, s.First)
		position += s.Rows
	}
	r.equal("rows of all segments", view.First+view.Rows, position)
	r.reasonsOfAbsentRows(routing, &view)

	var ids, valid, tags, weighted []int64
	var weights []float64
	for _, row := range view.All() {
		tag := int64(0)
		for layer := range int(view.Layers) {
			is := int64(0)
			if row.Valid(layer) {
				is, tag = 1, int64(row.Tag())
			}
			valid = append(valid, is)
			for column := range int(view.K) {
				ids = append(ids, int64(row.ID(layer, column)))
			}
			of := shown(row.Weights32(layer), DTypeF32)
			if halves := row.Weights16(layer); halves != nil {
				of = shown(halves, view.WeightsDType)
			}
			is = 0
			if row.Weighted(layer) {
				is = 1
				r.equal("the number of weights", row.Count(layer), len(of))
			}
			weighted = append(weighted, is)
			weights = append(weights, append(of, make([]float64, int(view.K)-len(of))...)...)
		}
		tags = append(tags, tag)
	}
	wrote(r, true, expected, "ids", ids, 0)
	wrote(r, true, expected, "valid", valid, 0)
	wrote(r, true, expected, "tags", tags, 0)
	wrote(r, true, expected, "weighted", weighted, 0)
	wroteWeights(r, expected, "weights", weights)
}

func replaySerialize(r *replay, in, out *said) {
	routing := in.routing("routing")
	var data []byte
	if !in.has("dst_bytes") {
		needed, err := routing.Serialize(nil)
		data = make([]byte, needed)
		if needed > 0 {
			_, err = routing.Serialize(data)
		}
		if !r.done(err) {
			r.equal("the length", 0, len(data))
			return
		}
		if out.has("needed") {
			r.equal("needed", out.uint("needed"), uint64(len(data)))
		}
	} else {
		dst := buffer[uint8](int(in.uint("dst_bytes")))
		needed, err := routing.Serialize(dst)
		if out.has("needed") {
			r.equal("needed", out.uint("needed"), uint64(needed))
		}
		if !r.done(err) {
			wrote(r, false, out, "dst", dst, 0)
			return
		}
		data = dst[:needed]
		wrote(r, false, out, "dst beyond the routing", dst[needed:], 0)
	}
	if out.has("dst") {
		r.equal("dst", hex.EncodeToString(out.bytes("dst")), hex.EncodeToString(data))
	}
}

// lending returns a release function for a call that lends, and what is to be called with the
// call's outcome.
func (r *replay) lending() (release func(), ended func(delivered bool) bool) {
	l := &testLoan{}
	r.loans = append(r.loans, l)
	return func() { l.released++ }, func(delivered bool) bool {
		if delivered {
			l.taken = 1
		}
		return delivered
	}
}

func replayDeserialize(r *replay, in, out *said) {
	data, flags := in.bytes("data"), ImportFlags(in.uint("flags"))
	if in.uint("lent") == 0 {
		routing, result, err := Deserialize(data, flags)
		r.made(r.returned(result, err), out.value("routing"), routing)
		return
	}
	release, ended := r.lending()
	routing, result, err := DeserializeInPlace(data, flags, release)
	r.made(ended(r.returned(result, err)), out.value("routing"), routing)
}

func replayImport(r *replay, in, out *said) {
	s, flags := in.object("view"), ImportFlags(in.uint("flags"))
	var view View
	s.fill(&view)
	reserved := map[int]uint32{} // of which segment
	for i, item := range s.list("segments") {
		of := r.said(item)
		var segment Segment
		of.fill(&segment)
		if n := of.uint32("reserved"); n != 0 {
			reserved[i] = n
		}
		if of.has("ids") {
			if view.DType == DTypeU8 {
				segment.IDs8 = numbers[uint8](of.list("ids"))
			} else {
				segment.IDs16 = numbers[int16](of.list("ids"))
			}
		}
		if of.has("validity") {
			segment.Validity = numbers[uint8](of.list("validity"))
		}
		switch {
		case of.has("weights") && holds[uint16](view.WeightsDType):
			segment.Weights16 = numbers[uint16](of.list("weights"))
		case of.has("weights"):
			segment.Weights32 = numbers[float32](of.list("weights"))
		}
		if of.has("weights_validity") {
			segment.WeightsValidity = numbers[uint8](of.list("weights_validity"))
		}
		if of.has("tags") {
			segment.Tags = numbers[uint64](of.list("tags"))
		}
		view.Segments = append(view.Segments, segment)
	}
	lent := in.uint("lent") != 0
	if len(reserved) > 0 {
		l := &loan{}
		defer l.pin.Unpin()
		raw, refused := view.pass(l)
		r.equal("the arrays", Result{}, refused)
		for i, n := range reserved {
			unsafe.Slice((*cSegment)(raw.segments), raw.segmentCount)[i].reserved = n
		}
		var made unsafe.Pointer
		outcome, err := routecap_routing_import(&raw, uint32(flags), nil, &made).outcome("raw")
		r.made(r.returned(outcome, err), out.value("routing"), newRouting(made))
		return
	}
	if !lent {
		routing, result, err := Import(view, flags)
		r.made(r.returned(result, err), out.value("routing"), routing)
		return
	}
	release, ended := r.lending()
	routing, result, err := ImportInPlace(view, flags, release)
	r.made(ended(r.returned(result, err)), out.value("routing"), routing)
}

func replaySplice(r *replay, in, out *said) {
	head, tail, row := in.bytes("head"), in.bytes("tail"), in.uint("row")
	spliced, err := Splice(head, tail, row)
	if !r.done(err) {
		return
	}
	expected := out.object("splice")
	for key, got := range map[string]int{"pieces": len(spliced.Pieces), "bytes": int(spliced.Bytes), "header_bytes": len(spliced.Header)} {
		if expected.has(key) {
			r.equal(key, expected.int(key), int64(got))
		}
	}
	buffers, err := spliced.Buffers(head, tail)
	if err != nil {
		r.fatal(err)
	}
	whole := []byte{}
	for _, b := range buffers {
		whole = append(whole, b...)
	}
	r.equal("the length of the pieces", int(spliced.Bytes), len(whole))
	if out.has("routing") {
		routing, _, err := Deserialize(whole, 0)
		if err != nil {
			r.fatal(err)
		}
		r.made(true, out.value("routing"), routing)
	}
}
