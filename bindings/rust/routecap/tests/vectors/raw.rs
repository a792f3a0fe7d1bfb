//! Calls through the raw layer: those that the crate's types rule out, and the few whose outputs it
//! keeps to itself.

use std::ffi::CStr;

use routecap::{DType, Routing, sys};
use serde_json::Value;

use crate::replay::{Call, Replay};
use crate::value::{Elements, Said, UNTOUCHED, expect_fields, float, object};

/// Sets the fields of a struct of C that are said.
macro_rules! fill {
    ($raw:expr, $said:expr; $($field:ident),* $(; $($float:ident),*)?) => {
        $(if $said.has(stringify!($field)) { $raw.$field = $said.number(stringify!($field)); })*
        $($(if let Some(value) = $said.get(stringify!($float)) { $raw.$float = float(value) as f32; })*)?
    };
}
macro_rules! sized {
    ($struct:ident) => {
        sys::$struct { struct_size: size_of::<sys::$struct>() as u32, ..Default::default() }
    };
}

/// Arrays of 32-bit numbers that live as long as a call.
#[derive(Default)]
struct Kept(Vec<Box<[i32]>>, Vec<Elements>);

impl Kept {
    fn i32(&mut self, said: Said<'_>, key: &str) -> *const i32 {
        let Some(numbers) = said.numbers::<i64>(key) else { return std::ptr::null() };
        self.0.push(numbers.into_iter().map(|n| n as i32).collect());
        self.0.last().unwrap().as_ptr()
    }
    /// Of a dtype that may be none: elements that nobody reads then.
    fn elements(&mut self, values: Option<&Value>, of: i32) -> *mut std::ffi::c_void {
        let Some(values) = values else { return std::ptr::null_mut() };
        let values = values.as_array().expect("an array");
        self.1.push(DType::of(of).map_or_else(
            || Elements::untouched(DType::I64, values.len()),
            |of| Elements::of(of, values),
        ));
        self.1.last_mut().unwrap().as_mut_ptr()
    }
}

impl Call<'_> {
    /// Compares a status and the text that must be there. Whether outputs are delivered.
    fn returned(&self, status: i32) -> bool {
        assert_eq!(self.status, routecap::status_name(status), "{}", routecap::last_message());
        let texts = [
            sys::ROUTECAP_INCOMPLETE,
            sys::ROUTECAP_NOT_CAPTURED,
            sys::ROUTECAP_PARTIAL,
            sys::ROUTECAP_LOST,
        ];
        if status < 0 || texts.contains(&status) {
            let text = routecap::last_message();
            assert!(!text.is_empty() && !text.contains('\n'), "text: {text:?}");
        }
        status >= 0
    }

    fn returned_object(&self, status: i32, key: &str, is: impl FnOnce() -> Value) {
        if let (true, Some(expected)) = (self.returned(status), self.out.object(key)) {
            expect_fields(key, &is(), expected);
        }
    }
}

impl Replay {
    fn raw_capturer(&mut self, call: &Call<'_>) -> *mut sys::routecap_capturer {
        self.capturer(call).map_or(std::ptr::null_mut(), |(capturer, _)| capturer.as_raw())
    }

    fn raw_routing(&self, call: &Call<'_>) -> *mut sys::routecap_routing {
        let routing = call.input.get("routing").map(|name| self.routing_named(name));
        routing.and_then(Result::ok).map_or(std::ptr::null_mut(), Routing::as_raw)
    }

    /// A routing that a call has delivered, or none.
    fn raw_made(
        &mut self,
        call: &Call<'_>,
        key: &str,
        status: i32,
        routing: *mut sys::routecap_routing,
    ) {
        let delivered = call.returned(status);
        assert_eq!(delivered, !routing.is_null());
        // SAFETY: the call gave out this reference, or none.
        self.bind_routing(call, key, unsafe { Routing::from_raw(routing) });
    }
}

pub fn call(replay: &mut Replay, call: &Call<'_>) {
    let input = call.input;
    let mut kept = Kept::default();
    let stream = std::ptr::without_provenance_mut(input.number::<usize>("stream"));
    // SAFETY: every struct has the size that it says and points to arrays of `kept` or of the
    // vector, which are as long as the header demands of what the vector says.
    unsafe {
        match call.name {
            "get_api" => {
                let api = sys::routecap_get_api(input.number("major"), input.number("minor"));
                call.expect("available", i32::from(!api.is_null()));
            }
            "backend_info" => {
                let mut info = sized!(routecap_backend);
                let status = sys::routecap_backend_info(input.number("backend"), &mut info);
                call.returned_object(
                    status,
                    "info",
                    || object!(info; available, devices, reserved),
                );
                assert!(status < 0 || !CStr::from_ptr(info.detail).is_empty());
            }
            "config_init" => {
                let mut config = sys::routecap_config::default();
                let status = sys::routecap_config_init(&mut config, size_of_val(&config));
                call.returned_object(status, "config", || {
                    assert!(config.layer_map.is_null() && config.layer_experts.is_null() && config.layer_provenance.is_null());
                    assert!(config.layer_k.is_null() && config.layer_min_k.is_null() && config.layer_visit.is_null());
                    let mut is = object!(config; backend, role, device, layers, k, experts, rows, slots, sink_dtype, flags, id_space, max_requests,
                        weights_dtype, budget_bytes);
                    for table in ["layer_map", "layer_experts", "layer_provenance", "layer_k", "layer_min_k", "layer_visit"] {
                        is[table] = Value::Null;
                    }
                    is
                });
            }
            "router_init" => {
                let mut router = sys::routecap_router::default();
                let status = sys::routecap_router_init(
                    &mut router,
                    size_of_val(&router),
                    input.number("method"),
                );
                call.returned_object(
                    status,
                    "router",
                    || object!(router; score, group_score, flags, groups, groups_kept, scale, floor, bias_dtype, hash_tokens),
                );
            }
            "copy_options_init" => {
                let mut options = sys::routecap_copy_options::default();
                let status = sys::routecap_copy_options_init(&mut options, size_of_val(&options));
                call.returned_object(
                    status,
                    "options",
                    || object!(options; dtype, order, flags, first_layer, layers, row_stride, layer_stride, fill, none),
                );
            }
            "config_memory" | "capturer_create" => {
                let said = input.object("config").unwrap();
                let mut config = sized!(routecap_config);
                fill!(config, said; backend, role, device, layers, k, experts, rows, slots, sink_dtype, flags, id_space, max_requests, weights_dtype,
                    budget_bytes);
                config.layer_map = kept.i32(said, "layer_map");
                config.layer_experts = kept.i32(said, "layer_experts").cast();
                config.layer_provenance = kept.i32(said, "layer_provenance");
                config.layer_k = kept.i32(said, "layer_k").cast();
                config.layer_min_k = kept.i32(said, "layer_min_k").cast();
                config.layer_visit = kept.i32(said, "layer_visit").cast();
                if call.name == "config_memory" {
                    let mut memory = sized!(routecap_memory);
                    let status = sys::routecap_config_memory(&config, &mut memory);
                    call.returned_object(
                        status,
                        "memory",
                        || object!(memory; page_rows, device_bytes, pinned_bytes, host_bytes, row_bytes, page_bytes, request_bytes),
                    );
                } else {
                    let mut capturer = std::ptr::dangling_mut();
                    let delivered =
                        call.returned(sys::routecap_capturer_create(&config, &mut capturer));
                    assert!(
                        !delivered && capturer.is_null(),
                        "a raw configuration is one that is refused"
                    );
                }
            }
            "capturer_destroy" => sys::routecap_capturer_destroy(replay.raw_capturer(call)),
            "routing_free" => sys::routecap_routing_free(replay.raw_routing(call)),
            "sink_bind" => {
                let said = input.object("sink").unwrap();
                let mut sink = sized!(routecap_sink);
                fill!(sink, said; dtype, rows, k, row_stride, layer_stride);
                if let Some(memory) = said.object("ids") {
                    let name = memory.text("memory").unwrap().to_string();
                    let of = DType::of(sink.dtype).unwrap_or(DType::I32);
                    let elements = replay
                        .memory
                        .entry(name)
                        .or_insert_with(|| Elements::untouched(of, memory.number("elements")));
                    sink.ids =
                        elements.as_mut_ptr().byte_add(memory.number::<usize>("start") * of.size());
                }
                let capturer = replay.raw_capturer(call);
                call.returned(sys::routecap_sink_bind(
                    capturer,
                    input.number("first_layer"),
                    input.number("layers"),
                    &sink,
                ));
            }
            "step_arrive" => {
                let said = input.object("rows").unwrap();
                let mut rows = sized!(routecap_sink);
                fill!(rows, said; dtype, rows, k, row_stride, layer_stride);
                let size = DType::of(rows.dtype).map_or(1, DType::size);
                rows.ids = kept
                    .elements(said.get("ids"), rows.dtype)
                    .byte_add(said.number::<usize>("ids_start") * size);
                let capturer = replay.raw_capturer(call);
                call.returned(sys::routecap_step_arrive(capturer, input.number("step"), &rows));
            }
            "sink_layer" => {
                let mut sink = sized!(routecap_sink);
                let status = sys::routecap_sink_layer(
                    replay.raw_capturer(call),
                    input.number("layer"),
                    &mut sink,
                );
                call.returned_object(status, "sink", || {
                    assert!(sink.ids.is_null());
                    let mut is = object!(sink; dtype, rows, k, row_stride, layer_stride);
                    is["ids"] = Value::Null;
                    is
                });
            }
            "layer_record" | "layers_record" => {
                let said = input.object("source").unwrap();
                let mut source = sized!(routecap_source);
                fill!(source, said; dtype, row_stride, column_stride, rows, k_source, first_row, offset, table_size, flags, none,
                    weights_dtype, weights_row_stride, weights_bytes);
                let start = said.number::<usize>("ids_start")
                    * DType::of(source.dtype).unwrap_or(DType::I32).size();
                let ids = kept.elements(said.get("ids"), source.dtype);
                source.ids = if ids.is_null() { ids } else { ids.byte_add(start) };
                let of = if source.weights_dtype == 0 {
                    sys::ROUTECAP_DTYPE_F32
                } else {
                    source.weights_dtype
                };
                source.weights = kept.elements(said.get("weights"), of);
                source.table = kept.i32(said, "table");
                source.live_rows = kept.i32(said, "live_rows");
                source.row_base = kept.i32(said, "row_base");
                source.row_index = kept.i32(said, "row_index");
                if !source.table.is_null() {
                    source.table_size = said.list("table").len() as u32;
                }
                let capturer = replay.raw_capturer(call);
                if call.name == "layer_record" {
                    call.returned(sys::routecap_layer_record(
                        capturer,
                        input.number("layer"),
                        &source,
                        stream,
                    ));
                    return;
                }
                let mut layers = Vec::new();
                for said in input.list("layers").iter().map(Said::of) {
                    let mut layer = sys::routecap_layer_source::default();
                    fill!(layer, said; layer, reserved);
                    layer.ids = kept.elements(said.get("ids"), source.dtype);
                    layer.weights = kept.elements(said.get("weights"), of);
                    layer.table = kept.i32(said, "table");
                    if !layer.table.is_null() {
                        source.table_size = said.list("table").len() as u32;
                    }
                    layers.push(layer);
                }
                let size = size_of::<sys::routecap_layer_source>();
                call.returned(sys::routecap_layers_record(
                    capturer,
                    &source,
                    layers.as_ptr(),
                    size,
                    layers.len(),
                    stream,
                ));
            }
            "layer_route" => {
                let said = input.object("router").unwrap();
                let mut router = sized!(routecap_router);
                if said.has("method") {
                    assert_eq!(
                        sys::routecap_router_init(
                            &mut router,
                            size_of_val(&router),
                            said.number("method")
                        ),
                        sys::ROUTECAP_OK
                    );
                }
                fill!(router, said; score, group_score, flags, groups, groups_kept, bias_dtype, hash_tokens; scale, floor);
                router.bias = kept.elements(said.get("bias"), router.bias_dtype);
                router.hash_table = kept.i32(said, "hash_table");
                let said = input.object("logits").unwrap();
                let mut logits = sized!(routecap_logits);
                fill!(logits, said; dtype, row_stride, column_stride, rows, first_row, tokens_dtype, experts, weights_stride);
                logits.logits = kept.elements(said.get("logits"), logits.dtype);
                logits.tokens = kept.elements(said.get("tokens"), logits.tokens_dtype);
                logits.live_rows = kept.i32(said, "live_rows");
                logits.row_base = kept.i32(said, "row_base");
                logits.row_index = kept.i32(said, "row_index");
                let mut weights = vec![UNTOUCHED as f32; call.out.list("weights").len().max(1024)];
                if said.has("weights") {
                    logits.weights = weights.as_mut_ptr();
                }
                let capturer = replay.raw_capturer(call);
                let delivered = call.returned(sys::routecap_layer_route(
                    capturer,
                    input.number("layer"),
                    &router,
                    &logits,
                    stream,
                ));
                assert!(!delivered, "raw logits are some that are refused");
                assert!(weights.iter().all(|weight| *weight == UNTOUCHED as f32));
            }
            "step_begin" => drop(call.returned(sys::routecap_step_begin(
                replay.raw_capturer(call),
                input.number("rows"),
                stream,
            ))),
            "step_snapshot" => {
                _ = call.returned(sys::routecap_step_snapshot(replay.raw_capturer(call), stream));
            }
            "step_discard" => {
                _ = call.returned(sys::routecap_step_discard(replay.raw_capturer(call), stream));
            }
            "capturer_probe" => {
                let mut layers = vec![sys::routecap_layer_probe::default(); input.number("count")];
                let size = size_of::<sys::routecap_layer_probe>();
                let capturer = replay.raw_capturer(call);
                call.returned(sys::routecap_capturer_probe(
                    capturer,
                    input.number("rows"),
                    layers.as_mut_ptr(),
                    size,
                    layers.len(),
                    stream,
                ));
            }
            "step_issue" => {
                let mut spans = Vec::new();
                for said in input.list("spans").iter().map(Said::of) {
                    let mut span = sys::routecap_span {
                        request: replay.request(said).0,
                        ..Default::default()
                    };
                    fill!(span, said; position, position_end, sink_row, rows, flags, reserved);
                    spans.push(span);
                }
                let mut options = sized!(routecap_issue_options);
                if let Some(said) = input.object("options") {
                    fill!(options, said; snapshot, tag, positions_dtype, reserved);
                    options.positions =
                        kept.elements(said.get("positions"), options.positions_dtype);
                }
                let mut status = vec![UNTOUCHED as i32; spans.len()];
                let mut step = UNTOUCHED as u64;
                let (size, count, status_data) =
                    (size_of::<sys::routecap_span>(), spans.len(), status.as_mut_ptr());
                let capturer = replay.raw_capturer(call);
                let returned = sys::routecap_step_issue(
                    capturer,
                    spans.as_ptr(),
                    size,
                    count,
                    &options,
                    status_data,
                    &mut step,
                    stream,
                );
                if call.returned(returned) {
                    call.expect_statuses(
                        status
                            .iter()
                            .map(|status| routecap::status_name(*status).to_string())
                            .collect(),
                    );
                    call.expect("step", step);
                } else {
                    assert_eq!((step, status), (0, vec![UNTOUCHED as i32; count]));
                }
            }
            "request_open" => {
                let mut options = sized!(routecap_open_options);
                fill!(options, input.object("options").unwrap(); policy);
                let mut requests = vec![UNTOUCHED as u64; input.number("count")];
                let capturer = replay.raw_capturer(call);
                assert!(!call.returned(sys::routecap_request_open(
                    capturer,
                    &options,
                    requests.as_mut_ptr(),
                    requests.len()
                )));
                assert!(requests.iter().all(|request| *request == 0));
            }
            "request_extract" => {
                let request = replay.request(input).0;
                let (first, rows, mode, flags) = (
                    input.number("first"),
                    input.number("rows"),
                    input.number("mode"),
                    input.number("flags"),
                );
                let mut routing = std::ptr::dangling_mut();
                let capturer = replay.raw_capturer(call);
                let status = sys::routecap_request_extract(
                    capturer,
                    request,
                    first,
                    rows,
                    mode,
                    flags,
                    &mut routing,
                );
                replay.raw_made(call, "routing", status, routing);
            }
            "request_extract_batch" => {
                let mut items = Vec::new();
                for said in input.list("items").iter().map(Said::of) {
                    let mut item = sys::routecap_extract_item {
                        request: replay.request(said).0,
                        ..Default::default()
                    };
                    fill!(item, said; first, rows, mode, flags, reserved);
                    items.push(item);
                }
                let size = size_of::<sys::routecap_extract_item>();
                let capturer = replay.raw_capturer(call);
                if call.returned(sys::routecap_request_extract_batch(
                    capturer,
                    items.as_mut_ptr(),
                    size,
                    items.len(),
                )) {
                    call.expect_statuses(
                        items
                            .iter()
                            .map(|item| routecap::status_name(item.status).to_string())
                            .collect(),
                    );
                    for (item, name) in items.iter().zip(call.out.list("routings")) {
                        assert_eq!(item.routing.is_null(), name.is_null());
                        if let (Some(routing), Some(name)) =
                            (Routing::from_raw(item.routing), name.as_str())
                        {
                            assert!(replay.routings.insert(name.into(), routing).is_none());
                        }
                    }
                }
            }
            "request_extract_into" | "routing_copy_to" | "routing_copy_weights" => {
                let said = input.object("options").unwrap();
                let mut options = sys::routecap_copy_options::default();
                sys::routecap_copy_options_init(&mut options, size_of_val(&options));
                fill!(options, said; dtype, order, flags, first_layer, layers, row_stride, layer_stride, fill, none);
                let (bytes, mask_bytes): (usize, usize) =
                    (input.number("dst_bytes"), input.number("mask_bytes"));
                let of = DType::of(options.dtype).unwrap_or(DType::I32);
                let mut dst = Elements::untouched(of, bytes.div_ceil(of.size()));
                let mut mask = vec![UNTOUCHED as u8; mask_bytes];
                let dst_data =
                    if input.has("dst_bytes") { dst.as_mut_ptr() } else { std::ptr::null_mut() };
                let mask_data =
                    if input.has("mask_bytes") { mask.as_mut_ptr() } else { std::ptr::null_mut() };
                let mut needed = UNTOUCHED as u64;
                let copy = match call.name {
                    "routing_copy_weights" => sys::routecap_routing_copy_weights,
                    _ => sys::routecap_routing_copy_to,
                };
                let status = if call.name != "request_extract_into" {
                    copy(
                        replay.raw_routing(call),
                        &options,
                        dst_data,
                        bytes,
                        mask_data,
                        mask_bytes,
                        &mut needed,
                    )
                } else {
                    let (request, first, rows) =
                        (replay.request(input).0, input.number("first"), input.number("rows"));
                    let capturer = replay.raw_capturer(call);
                    sys::routecap_request_extract_into(
                        capturer,
                        request,
                        first,
                        rows,
                        &options,
                        dst_data,
                        bytes,
                        mask_data,
                        mask_bytes,
                        &mut needed,
                    )
                };
                let delivered = call.returned(status);
                call.expect_elements("dst", delivered, &dst, 0.0);
                call.expect_elements("mask", delivered, &Elements::U8(mask.into()), 0.0);
                call.expect("needed", needed);
            }
            "routing_deserialize" => {
                let data = input.bytes("data");
                let mut routing = std::ptr::dangling_mut();
                let (flags, none) = (input.number("flags"), std::ptr::null_mut());
                let status = sys::routecap_routing_deserialize(
                    data.as_ptr().cast(),
                    data.len(),
                    flags,
                    None,
                    none,
                    &mut routing,
                );
                replay.raw_made(call, "routing", status, routing);
            }
            "routing_import" => {
                let said = input.object("view").unwrap();
                let mut view = sized!(routecap_view);
                fill!(view, said; dtype, layers, k, experts, validity_bytes, id_space, complete, first, rows, row_stride, weights_dtype);
                view.layer_map = kept.i32(said, "layer_map");
                view.layer_experts = kept.i32(said, "layer_experts").cast();
                view.layer_provenance = kept.i32(said, "layer_provenance");
                view.layer_k = kept.i32(said, "layer_k").cast();
                view.layer_min_k = kept.i32(said, "layer_min_k").cast();
                view.layer_visit = kept.i32(said, "layer_visit").cast();
                let mut segments = Vec::new();
                for said in said.list("segments").iter().map(Said::of) {
                    let mut segment = sys::routecap_segment::default();
                    fill!(segment, said; first, rows, tag, reason, reserved);
                    segment.ids = kept.elements(said.get("ids"), view.dtype);
                    segment.validity =
                        kept.elements(said.get("validity"), sys::ROUTECAP_DTYPE_U8).cast();
                    let of = match view.weights_dtype {
                        0 => sys::ROUTECAP_DTYPE_F32,
                        dtype => dtype,
                    };
                    segment.weights = kept.elements(said.get("weights"), of);
                    segment.tags = kept.elements(said.get("tags"), sys::ROUTECAP_DTYPE_I64).cast();
                    segments.push(segment);
                }
                view.segments = segments.as_ptr();
                view.segment_count = segments.len();
                view.segment_size =
                    said.number_or("segment_size", size_of::<sys::routecap_segment>() as i128);
                let mut routing = std::ptr::dangling_mut();
                let status = sys::routecap_routing_import(
                    &view,
                    input.number("flags"),
                    None,
                    std::ptr::null_mut(),
                    &mut routing,
                );
                replay.raw_made(call, "routing", status, routing);
            }
            "sequence_create" => {
                let said = input.object("config").unwrap();
                let mut config = sized!(routecap_sequence_config);
                fill!(config, said; layers, k, experts, id_space, weights_dtype, budget_bytes);
                let mut sequence = std::ptr::dangling_mut();
                call.returned(sys::routecap_sequence_create(&config, &mut sequence));
                assert!(sequence.is_null());
            }
            "sequence_append" => {
                let mut options = sized!(routecap_append_options);
                fill!(options, input.object("options").unwrap(); policy, flags);
                let tokens: Vec<i32> = input.numbers("tokens").unwrap();
                let sequence = replay.sequences[input.text("sequence").unwrap()].as_raw();
                let count = tokens.len() as u64;
                let report = std::ptr::null_mut();
                call.returned(sys::routecap_sequence_append(
                    sequence,
                    tokens.as_ptr(),
                    0,
                    count,
                    std::ptr::null(),
                    &options,
                    report,
                ));
            }
            name => panic!("no raw form of {name}"),
        }
    }
}
