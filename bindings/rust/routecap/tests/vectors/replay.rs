//! One vector through the crate.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use routecap::{
    AcceptItem, AppendOptions, AppendPolicy, AppendReport, ArraySegment, Arrays, ArrivedRows, BF16,
    Backend, Capturer, Completeness, Config, CopyOptions, Coverage, DType, Element, Error,
    ErrorKind, Extract, ExtractItem, F16, FinishItem, Forward, GroupScore, IdSpace, Ids,
    IssueOptions, ItemStatus, Kept, Landing, LayerProbe, LayerSource, LayerStats, Logits, Missing,
    NO_EXPERT, Order, Phase, Policy, Prefix, Provenance, Reason, RequestId, Role, Router, Routing,
    Rows, Score, Sequence, SequenceConfig, Sink, Slice, Snapshot, Source, Span, Step, Store,
    StoreConfig, Stream, Strictness, Trust, View, WeightElement, Weights, WeightsType, status_name,
    sys,
};
use serde_json::{Value, json};

use crate::calls;
use crate::fields::{METHODS, SWITCHES};
use crate::raw;
use crate::value::{
    Elements, Said, Shown, UNTOUCHED, expect_fields, expect_value, float, number, object,
};

/// A call that the crate's types cannot express.
pub struct Inexpressible;
type Made = Result<(), Inexpressible>;

/// What a vector has made so far. Dropped in this order: routings, capturers, the memory of sinks.
#[derive(Default)]
pub struct Replay {
    pub routings: HashMap<String, Routing>,
    pub sequences: HashMap<String, Sequence>,
    pub stores: HashMap<String, Store>,
    pub capturers: HashMap<String, (Capturer, Forward)>,
    pub requests: HashMap<String, RequestId>,
    pub memory: HashMap<String, Elements>,
    /// Of steps whose rows arrive later, by capturer.
    positions: HashMap<(String, Step), Elements>,
    k: HashMap<String, u32>,
    loans: Vec<Arc<AtomicUsize>>,
}

/// One call of it: what is said.
pub struct Call<'a> {
    pub name: &'a str,
    pub input: Said<'a>,
    pub out: Said<'a>,
    pub status: &'a str,
}

pub fn vector(vector: &Value) {
    let nothing = json!({});
    let mut replay = Replay::default();
    for (i, said) in vector["calls"].as_array().expect("calls").iter().enumerate() {
        let out = said.get("out").unwrap_or(&nothing);
        let call = Call {
            name: said["call"].as_str().expect("a name"),
            input: Said::of(&said["in"]),
            out: Said::of(out),
            status: said.get("status").map_or("", |status| status.as_str().expect("a status")),
        };
        let told = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            if replay.call(&call).is_err() {
                assert_eq!(
                    said.get("raw"),
                    Some(&Value::Bool(true)),
                    "the crate cannot make this call, and it is not raw"
                );
                raw::call(&mut replay, &call);
            }
        }));
        if let Err(panic) = told {
            let text = panic
                .downcast_ref::<String>()
                .cloned()
                .or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string));
            let said = said.to_string().chars().take(600).collect::<String>();
            panic!("call {i}: {}\n    {said}", text.unwrap_or_default());
        }
    }
    let loans = std::mem::take(&mut replay.loans);
    drop(replay);
    for loan in loans {
        assert_eq!(loan.load(Ordering::SeqCst), 1, "times that lent memory was released");
    }
}

/// Memory that is lent, and counts how often it is dropped.
struct Loan<T>(T, Arc<AtomicUsize>);

impl<T> Drop for Loan<T> {
    fn drop(&mut self) {
        self.1.fetch_add(1, Ordering::SeqCst);
    }
}
impl AsRef<[u8]> for Loan<Vec<u8>> {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

fn choice<T: Copy>(value: i128, of: &[T], number: impl Fn(T) -> i128) -> Result<T, Inexpressible> {
    of.iter().copied().find(|choice| number(*choice) == value).ok_or(Inexpressible)
}
macro_rules! choice {
    ($value:expr, $type:ident: $($choice:ident),*) => {
        choice($value, &[$($type::$choice),*], |choice| choice as i128)
    };
}

fn strictness(said: Said<'_>) -> Result<Strictness, Inexpressible> {
    if said.number::<u32>("flags") == sys::ROUTECAP_READ_ALLOW_RECOMPUTED {
        return Ok(Strictness::Lenient); // which allows everything
    }
    choice!(said.number("flags"), Strictness: Lenient, Strict, StrictButRecomputed)
}
fn trust(said: Said<'_>) -> Result<Trust, Inexpressible> {
    choice!(said.number("flags"), Trust: None, Ids)
}
fn rows(said: Said<'_>) -> Rows {
    Rows::new(said.number("first"), said.number("rows"))
}
fn some_dtype(said: Said<'_>, key: &str) -> Result<DType, Inexpressible> {
    DType::of(said.number(key)).ok_or(Inexpressible)
}
/// Refuses what is in none of the crate's types: a reserved field that is not 0, flags that do not
/// exist.
fn only(said: Said<'_>, key: &str, known: u32) -> Made {
    if said.number::<i128>(key) & !i128::from(known) != 0 { Err(Inexpressible) } else { Ok(()) }
}

fn completeness(completeness: Completeness) -> &'static str {
    status_name(completeness.status())
}
fn readiness(ready: Option<Completeness>) -> &'static str {
    ready.map_or("ROUTECAP_PENDING", completeness)
}
fn landing(landing: Landing) -> &'static str {
    status_name(landing.status())
}
fn whole(all: bool) -> &'static str {
    if all { "ROUTECAP_OK" } else { "ROUTECAP_PARTIAL" }
}
fn item<T>(result: Result<T, ErrorKind>, status: impl FnOnce(T) -> &'static str) -> String {
    result.map_or_else(|kind| kind.to_string(), |value| status(value).to_string())
}

/// Does something with a type that ids can be copied out in.
macro_rules! with_type {
    ($dtype:expr, $type:ident => $do:expr) => {
        match $dtype {
            DType::U8 => {
                type $type = u8;
                $do
            }
            DType::I16 => {
                type $type = i16;
                $do
            }
            DType::U16 => {
                type $type = u16;
                $do
            }
            DType::I32 => {
                type $type = i32;
                $do
            }
            DType::U32 => {
                type $type = u32;
                $do
            }
            DType::I64 => {
                type $type = i64;
                $do
            }
            _ => return Err(Inexpressible),
        }
    };
}

impl Call<'_> {
    /// Compares the status that the crate's answer stands for, and the text that must be there.
    /// Gives what was delivered.
    pub fn answered<T>(
        &self,
        result: Result<T, Error>,
        status: impl FnOnce(&T) -> &'static str,
    ) -> Option<T> {
        match result {
            Ok(value) => {
                let status = status(&value);
                assert_eq!(self.status, status);
                if [
                    "ROUTECAP_INCOMPLETE",
                    "ROUTECAP_NOT_CAPTURED",
                    "ROUTECAP_PARTIAL",
                    "ROUTECAP_LOST",
                ]
                .contains(&status)
                {
                    one_line(&routecap::last_message());
                }
                Some(value)
            }
            Err(error) => {
                assert_eq!(self.status, error.kind().to_string(), "{error}");
                one_line(error.message());
                None
            }
        }
    }

    fn done<T>(&self, result: Result<T, Error>) -> Option<T> {
        self.answered(result, |_| "ROUTECAP_OK")
    }

    pub fn expect(&self, key: &str, is: impl Into<Value>) {
        if let Some(expected) = self.out.get(key) {
            expect_value(key, &is.into(), expected);
        }
    }

    pub fn expect_object(&self, key: &str, is: Value) {
        if let Some(expected) = self.out.object(key) {
            expect_fields(key, &is, expected);
        }
    }

    pub fn expect_statuses(&self, is: Vec<String>) {
        if self.out.has("status") {
            assert_eq!(
                self.out
                    .list("status")
                    .iter()
                    .map(|name| name.as_str().unwrap())
                    .collect::<Vec<_>>(),
                is
            );
        }
    }

    pub fn expect_elements(&self, key: &str, delivered: bool, is: &Elements, tolerance: f64) {
        if !delivered {
            is.expect_untouched(key);
        } else if self.out.has(key) {
            is.expect(key, self.out.list(key), tolerance);
        }
    }
}

fn one_line(text: &str) {
    assert!(!text.is_empty() && !text.contains('\n'), "text: {text:?}");
}

impl Replay {
    pub fn capturer(&mut self, call: &Call<'_>) -> Result<&mut (Capturer, Forward), Inexpressible> {
        let name = call.input.text("capturer").ok_or(Inexpressible)?;
        Ok(self.capturers.get_mut(name).unwrap_or_else(|| panic!("no capturer {name}")))
    }

    pub fn routing(&self, call: &Call<'_>) -> Result<&Routing, Inexpressible> {
        self.routing_named(call.input.get("routing").ok_or(Inexpressible)?)
    }

    pub fn routing_named(&self, name: &Value) -> Result<&Routing, Inexpressible> {
        let name = name.as_str().ok_or(Inexpressible)?;
        Ok(self.routings.get(name).unwrap_or_else(|| panic!("no routing {name}")))
    }

    /// A name, or a number that no open has given out.
    pub fn request(&self, said: Said<'_>) -> RequestId {
        self.request_named(said.get("request").unwrap_or(&Value::Null))
    }

    pub fn request_named(&self, name: &Value) -> RequestId {
        match name {
            Value::String(name) => {
                *self.requests.get(name).unwrap_or_else(|| panic!("no request {name}"))
            }
            Value::Null => RequestId::NONE,
            number_of_one => RequestId(u64::try_from(number(number_of_one)).expect("a handle")),
        }
    }

    pub fn bind_routing(&mut self, call: &Call<'_>, key: &str, routing: Option<Routing>) {
        if let Some(routing) = routing {
            let name = call.out.text(key).unwrap_or_else(|| panic!("no name for {key}"));
            assert!(
                self.routings.insert(name.into(), routing).is_none(),
                "{name} is bound already"
            );
        }
    }

    pub fn bind_request(&mut self, name: &Value, request: RequestId) {
        match name {
            Value::String(name) => {
                assert_ne!(request, RequestId::NONE);
                assert!(
                    self.requests.values().all(|other| *other != request),
                    "a handle is given out again"
                );
                assert!(
                    self.requests.insert(name.clone(), request).is_none(),
                    "{name} is bound already"
                );
            }
            number_of_one => assert_eq!(i128::from(request.0), number(number_of_one)),
        }
    }

    fn call(&mut self, call: &Call<'_>) -> Made {
        if call.input.has("stream") {
            return Err(Inexpressible); // the host backend's only stream can be made without unsafe code
        }
        if calls::call(self, call)? {
            return Ok(());
        }
        match call.name {
            "version" => call.expect("version", routecap::version()),
            "get_api" => {
                let wanted = (call.input.number("major"), call.input.number("minor"));
                // The crate asks for its own version; others are for the raw layer to ask for.
                if wanted == (sys::ROUTECAP_VERSION_MAJOR, sys::ROUTECAP_VERSION_MINOR) {
                    call.expect("available", i32::from(routecap::api().is_some()));
                } else {
                    raw::call(self, call);
                }
            }
            "status_name" => assert_eq!(
                call.out.text("name"),
                Some(routecap::status_name(call.input.number("status")))
            ),
            "backend_info" => {
                let backend = choice!(call.input.number("backend"), Backend: Host, Cuda)?;
                if let Some(info) = call.done(backend.info()) {
                    one_line(info.detail);
                    call.expect_object("info", json!({"available": i32::from(info.available), "devices": info.devices, "reserved": 0}));
                }
            }
            // What these fill, builders keep to themselves.
            "config_init" | "router_init" | "copy_options_init" => raw::call(self, call),
            "config_memory" => {
                if let Some(memory) =
                    call.done(config(call.input.object("config").ok_or(Inexpressible)?)?.memory())
                {
                    let memory = object!(memory; page_rows, device_bytes, pinned_bytes, host_bytes, row_bytes, page_bytes, request_bytes);
                    call.expect_object("memory", memory);
                }
            }
            "capturer_create" => {
                let mut config = config(call.input.object("config").ok_or(Inexpressible)?)?;
                if call.input.has("budget_pages") {
                    let page_bytes = config.memory().expect("a size").page_bytes;
                    config =
                        config.budget_bytes(call.input.number::<u64>("budget_pages") * page_bytes);
                }
                if let Some(made) = call.done(config.create()) {
                    let name = call.out.text("capturer").expect("a name");
                    self.capturers.insert(name.into(), made);
                    self.k.insert(name.into(), call.input.object("config").unwrap().number("k"));
                }
            }
            "capturer_destroy" => {
                self.capturer(call)?;
                self.capturers.remove(call.input.text("capturer").unwrap());
            }
            "capturer_layer_stats" => {
                let mut stats = vec![LayerStats::default(); call.input.number("count")];
                let result = self.capturer(call)?.0.layer_stats(&mut stats);
                if call.done(result).is_some() {
                    let of = |s: &LayerStats| object!(s; rows_written, unwritten, out_of_range, duplicate, silent_steps);
                    call.expect("stats", stats.iter().map(of).collect::<Vec<_>>());
                }
            }
            "capturer_load" => {
                let load = self.capturer(call)?.0.load();
                if let Some(load) = call.done(load) {
                    call.expect("counts", load.counts.clone());
                    let (first_step, last_step) = (load.first_step.0, load.last_step.0);
                    let mut said = object!(load; layers, experts, steps, rows_prefill, rows_decode);
                    said["first_step"] = first_step.into();
                    said["last_step"] = last_step.into();
                    call.expect_object("load", said);
                }
            }
            name if name.starts_with("sink_") => self.sinks(call)?,
            name if name.starts_with("step_") => self.steps(call)?,
            "layer_record" | "layers_record" | "layer_route" | "capturer_probe" => {
                self.taps(call)?
            }
            "request_publish_batch" | "request_adopt_batch" => self.prefixes(call)?,
            name if name.starts_with("request_") => self.requests(call)?,
            name if name.starts_with("routing_") || name.starts_with("serialized_") => {
                self.routings(call)?
            }
            name if name.starts_with("sequence_") => self.sequences(call)?,
            name if name.starts_with("store_") || name == "key_chain" => self.stores(call)?,
            name => panic!("no such call: {name}"),
        }
        Ok(())
    }

    fn sinks(&mut self, call: &Call<'_>) -> Made {
        let input = call.input;
        let layer: u32 = input.number("layer");
        match call.name {
            "sink_bind" => {
                let said = input.object("sink").ok_or(Inexpressible)?;
                let dtype = some_dtype(said, "dtype")?;
                let weights_type = self.capturer(call)?.0.weights_type();
                let mut plane = |key: &str, dtype: DType| {
                    said.object(key).map_or(std::ptr::null_mut(), |memory| {
                        let name = memory.text("memory").expect("a name").to_string();
                        let new = || Elements::untouched(dtype, memory.number("elements"));
                        let elements = self.memory.entry(name).or_insert_with(new);
                        let start = memory.number::<usize>("start") * dtype.size();
                        elements.as_mut_ptr().wrapping_byte_add(start)
                    })
                };
                let ids = plane("ids", dtype);
                let weights = weights_type
                    .map_or(std::ptr::null_mut(), |weights| plane("weights", weights.dtype()));
                let sink = Sink {
                    ids,
                    dtype,
                    rows: said.number("rows"),
                    k: said.number("k"),
                    row_stride: said.number("row_stride"),
                    layer_stride: said.number("layer_stride"),
                    ids_bytes: said.number("ids_bytes"),
                    weights_dtype: routecap::WeightsType::of(said.number("weights_dtype")),
                    weights,
                    weights_bytes: said.number("weights_bytes"),
                };
                let forward = &mut self.capturer(call)?.1;
                // SAFETY: the vector's memory holds what its sink describes, and outlives the
                // capturers.
                call.done(unsafe {
                    forward.bind(input.number("first_layer"), input.number("layers"), &sink)
                });
            }
            "sink_layer" => {
                let Some(sink) = call.done(self.capturer(call)?.1.sink(layer)) else {
                    return Ok(());
                };
                let Some(expected) = call.out.object("sink") else { return Ok(()) };
                let Some(sink) = sink else {
                    raw::call(self, call); // what else the library says of a layer without memory, the crate keeps to itself
                    return Ok(());
                };
                let mut is = object!(sink; rows, k, row_stride, layer_stride);
                is["dtype"] = (sink.dtype as i32).into();
                is["weights_dtype"] = sink.weights_dtype.map_or(0, |of| of as i32).into();
                let weights_size = sink.weights_dtype.map_or(0, |of| of.dtype().size());
                for (key, address, size) in
                    [("ids", sink.ids, sink.dtype.size()), ("weights", sink.weights, weights_size)]
                {
                    is[key] = match expected.get(key) {
                        Some(Value::Object(memory)) => {
                            let memory = Said(memory);
                            let elements = self
                                .memory
                                .get_mut(memory.text("memory").unwrap())
                                .expect("bound memory");
                            let start = memory.number::<usize>("start") * size;
                            assert_eq!(address, elements.as_mut_ptr().wrapping_byte_add(start));
                            expected.0[key].clone()
                        }
                        None if address.is_null() => Value::Null,
                        _ => (!address.is_null()).into(),
                    };
                }
                expect_fields("sink", &is, expected);
            }
            "sink_write" => {
                let forward = &mut self.capturer(call)?.1;
                let sink = forward.sink(layer).expect("a sink").expect("memory");
                let ids = Elements::of(sink.dtype, input.list("ids"));
                let row_stride =
                    if sink.row_stride == 0 { i64::from(sink.k) } else { sink.row_stride };
                let ids = ids.numbers();
                for (i, id) in ids.iter().enumerate() {
                    let (row, column) = (
                        input.number::<usize>("first_row") + i / sink.k as usize,
                        i % sink.k as usize,
                    );
                    let at = row * row_stride as usize + column;
                    // SAFETY: a vector writes rows that the sink has.
                    unsafe {
                        match sink.dtype {
                            DType::I16 => sink.ids.cast::<i16>().add(at).write(*id as i16),
                            DType::I32 => sink.ids.cast::<i32>().add(at).write(*id as i32),
                            _ => sink.ids.cast::<i64>().add(at).write(*id as i64),
                        }
                    }
                }
                if input.has("weights") {
                    match self.capturer(call)?.0.weights_type().expect("weights") {
                        WeightsType::F32 => self.write_weights(call, |v| float(v) as f32)?,
                        WeightsType::F16 => self.write_weights(call, |v| F16(number(v) as u16))?,
                        _ => self.write_weights(call, |v| BF16(number(v) as u16))?,
                    }
                }
            }
            name => panic!("no such call: {name}"),
        }
        Ok(())
    }

    /// What `sink_write` says of weights.
    fn write_weights<W: WeightElement>(
        &mut self,
        call: &Call<'_>,
        one: impl Fn(&Value) -> W,
    ) -> Made {
        let (layer, first) = (call.input.number("layer"), call.input.number::<usize>("first_row"));
        let forward = &mut self.capturer(call)?.1;
        let sink = forward.sink(layer).expect("a sink").expect("memory");
        let (k, stride) = (sink.k as usize, sink.row_stride as usize);
        let weights = forward.sink_weights_mut::<W>(layer).expect("weights");
        for (i, said) in call.input.list("weights").iter().enumerate() {
            weights[(first + i / k) * stride + i % k] = one(said);
        }
        Ok(())
    }

    fn steps(&mut self, call: &Call<'_>) -> Made {
        let input = call.input;
        let step = Step(input.number("step"));
        match call.name {
            "step_issue" => {
                let spans = input
                    .list("spans")
                    .iter()
                    .map(|said| self.span(Said::of(said)))
                    .collect::<Result<Vec<_>, _>>()?;
                let mut options = IssueOptions::new();
                let mut positions = None;
                if let Some(said) = input.object("options") {
                    only(said, "reserved", 0)?;
                    options = options
                        .tag(said.number("tag"))
                        .snapshot(choice!(said.number("snapshot"), Snapshot: Taken, Make, Later)?);
                    if said.has("positions") {
                        positions = Some(Elements::of(
                            some_dtype(said, "positions_dtype")?,
                            said.list("positions"),
                        ));
                    }
                }
                let later = input
                    .object("options")
                    .is_some_and(|said| said.number::<i32>("snapshot") == Snapshot::Later as i32);
                match &mut positions {
                    Some(positions) if later => {
                        let (address, len) = (positions.as_mut_ptr(), positions.numbers().len());
                        // SAFETY: they are kept until the capturer is gone, and written between
                        // calls.
                        options = unsafe {
                            match positions {
                                Elements::I32(_) => {
                                    options.positions_later(address.cast::<i32>(), len)
                                }
                                _ => options.positions_later(address.cast::<i64>(), len),
                            }
                        };
                    }
                    Some(positions) => options = options.positions(positions.slice()),
                    None => {}
                }
                let mut status = vec![ItemStatus::default(); spans.len()];
                let issued =
                    self.capturer(call)?.1.issue_into(&spans, &options, &mut status, Stream::HOST);
                if let Some(issued) =
                    call.answered(issued, |issued| status_name(issued.filing().status()))
                {
                    call.expect_statuses(
                        status
                            .iter()
                            .map(|status| item(status.result(), |()| "ROUTECAP_OK"))
                            .collect(),
                    );
                    call.expect("step", issued.ticket().0);
                    if let (true, Some(positions)) = (later, positions) {
                        let capturer = input.text("capturer").unwrap().to_string();
                        self.positions.insert((capturer, issued.ticket()), positions);
                    }
                }
            }
            "step_arrive" => {
                if input.has("positions") {
                    let capturer = input.text("capturer").unwrap().to_string();
                    let positions =
                        self.positions.get_mut(&(capturer, step)).expect("positions of a step");
                    positions.set(input.list("positions"));
                }
                let Some(said) = input.object("rows") else {
                    call.done(self.capturer(call)?.0.arrive(step, None));
                    return Ok(());
                };
                let ids = Elements::of(some_dtype(said, "dtype")?, said.list("ids"));
                if said.number::<u32>("k") != self.k[input.text("capturer").unwrap()] {
                    return Err(Inexpressible);
                }
                let weights_type = self.capturer(call)?.0.weights_type();
                let weights = weights_of(said, said.get("weights"), weights_type)?;
                let mut rows = ArrivedRows::new(ids.slice(), said.number("rows"))
                    .start(said.number("ids_start"))
                    .row_stride(said.number("row_stride"))
                    .layer_stride(said.number("layer_stride"));
                if let Some(weights) = &weights {
                    let starts = ["weights_start", "ids_start"].map(|key| said.number::<u64>(key));
                    assert_eq!(starts[0], starts[1]);
                    rows = rows.weights(weights.slice());
                }
                call.done(self.capturer(call)?.0.arrive(step, Some(&rows)));
            }
            "step_finalize" => {
                let timeout: i64 = input.number("timeout_ns");
                let capturer = &self.capturer(call)?.0;
                let result = match u64::try_from(timeout) {
                    Ok(timeout) => capturer.finalize_timeout(step, Duration::from_nanos(timeout)),
                    Err(_) => capturer.finalize(step),
                };
                if let Some(finalized) =
                    call.answered(result, |finalized| landing(finalized.landing))
                {
                    call.expect("conflicting", finalized.conflicting);
                }
            }
            name => panic!("no such call: {name}"),
        }
        Ok(())
    }

    fn span(&self, said: Said<'_>) -> Result<Span, Inexpressible> {
        only(said, "reserved", 0)?;
        let (prefill, decode) = (sys::ROUTECAP_SPAN_PREFILL, sys::ROUTECAP_SPAN_DECODE);
        let uncounted = sys::ROUTECAP_SPAN_UNCOUNTED;
        let phases = prefill | decode | uncounted;
        only(
            said,
            "flags",
            sys::ROUTECAP_SPAN_SPECULATIVE
                | sys::ROUTECAP_SPAN_DEVICE_POSITIONS
                | sys::ROUTECAP_SPAN_SHARED
                | phases,
        )?;
        let flags: u32 = said.number("flags");
        let mut span = Span::new(
            self.request(said),
            said.number("position"),
            said.number("sink_row"),
            said.number("rows"),
        );
        span = span.shared(flags & sys::ROUTECAP_SPAN_SHARED != 0);
        if flags & sys::ROUTECAP_SPAN_SPECULATIVE != 0 {
            span = span.speculative();
        }
        match flags & phases {
            0 => {}
            none if none == uncounted => span = span.uncounted(),
            phase if phase == prefill => span = span.phase(Phase::Prefill),
            phase if phase == decode => span = span.phase(Phase::Decode),
            _ => return Err(Inexpressible),
        }
        if flags & sys::ROUTECAP_SPAN_DEVICE_POSITIONS != 0 {
            span = span.device_positions(said.number("position_end"));
        } else if said.number::<u64>("position_end") != 0 {
            return Err(Inexpressible);
        }
        Ok(span)
    }

    fn taps(&mut self, call: &Call<'_>) -> Made {
        let input = call.input;
        let layer: u32 = input.number("layer");
        match call.name {
            "layer_record" => {
                let said = input.object("source").ok_or(Inexpressible)?;
                let ids = ids_of(said, self.capturer(call)?.0.k())?;
                let numbers = Placed::of(said);
                let mut source = match &ids {
                    Some(ids) => Source::new(ids.slice(), said.number("rows")),
                    None => Source::common(said.number("rows")),
                };
                source = common_source(source, said, self.capturer(call)?.0.k(), &numbers)?;
                let weights_type = self.capturer(call)?.0.weights_type();
                let weights = weights_of(said, said.get("weights"), weights_type)?;
                if let Some(weights) = &weights {
                    source = source.weights(weights.slice());
                }
                call.done(self.capturer(call)?.1.record(layer, &source, Stream::HOST));
            }
            "layers_record" => {
                let said = input.object("source").ok_or(Inexpressible)?;
                if said.has("ids") || said.has("table") || said.has("weights") {
                    return Err(Inexpressible);
                }
                let numbers = Placed::of(said);
                let k = self.capturer(call)?.0.k();
                let source = common_source(Source::common(said.number("rows")), said, k, &numbers)?;
                let mut arrays = Vec::new();
                for layer in input.list("layers") {
                    let layer = Said::of(layer);
                    only(layer, "reserved", 0)?;
                    let ids = layer.get("ids").ok_or(Inexpressible)?.as_array().expect("ids");
                    let ids =
                        Elements::of(some_dtype(said, "dtype")?, dense(said, ids, "k_source", k));
                    let weights_type = self.capturer(call)?.0.weights_type();
                    let weights = layer.get("weights");
                    let weights = match weights {
                        Some(_) => weights_of(said, weights, weights_type)?,
                        None => None,
                    };
                    let table = layer.numbers::<i32>("table");
                    arrays.push((layer.number("layer"), ids, table, weights));
                }
                let layers: Vec<LayerSource<'_>> = arrays
                    .iter()
                    .map(|(layer, ids, table, weights)| {
                        let mut source = LayerSource::new(*layer, ids.slice());
                        if let Some(weights) = weights {
                            source = source.weights(weights.slice());
                        }
                        if let Some(table) = table { source.table(table) } else { source }
                    })
                    .collect();
                call.done(self.capturer(call)?.1.record_layers(&source, &layers, Stream::HOST));
            }
            "layer_route" => self.route(call, layer)?,
            "capturer_probe" => {
                let mut layers = vec![LayerProbe::default(); input.number("count")];
                let result =
                    self.capturer(call)?.1.probe(input.number("rows"), &mut layers, Stream::HOST);
                if call.answered(result, |found| whole(!*found)).is_some() {
                    let of = |probe: &LayerProbe| {
                        let mut is = object!(probe; rows_unwritten, rows_incomplete, rows_written, rows_out_of_range, rows_duplicate);
                        let (lowest, highest) =
                            probe.range().map_or((-1, -1), |(low, high)| (low as i32, high as i32));
                        is["found"] = probe.bits().into();
                        is["lowest"] = lowest.into();
                        is["highest"] = highest.into();
                        is
                    };
                    // A disabled capturer fills zeros, which are a range.
                    call.expect("layers", layers.iter().map(of).collect::<Vec<_>>());
                }
            }
            name => panic!("no such call: {name}"),
        }
        Ok(())
    }

    fn route(&mut self, call: &Call<'_>, layer: u32) -> Made {
        let said = call.input.object("router").ok_or(Inexpressible)?;
        let score = choice!(said.number("score"), Score: Logit, Softmax, Sigmoid, SqrtSoftplus)?;
        let mut router = if said.has("method") {
            let made =
                Router::new(choice(said.number("method"), &METHODS, |method| method as i128)?)
                    .expect("a method in use");
            if said.has("score") { made.score(score) } else { made }
        } else {
            Router::custom(score)
        };
        let flags = sys::ROUTECAP_ROUTER_RANK_LOGITS
            | sys::ROUTECAP_ROUTER_RENORMALIZE
            | sys::ROUTECAP_ROUTER_FLOOR_MAX
            | sys::ROUTECAP_ROUTER_SIGMOID_TANH
            | sys::ROUTECAP_ROUTER_GROUPS_ZERO;
        only(said, "flags", flags)?;
        if said.has("group_score") {
            router = router.group_score(
                choice!(said.number("group_score"), GroupScore: Max, Top2, Top2Distinct)?,
            );
        }
        if said.has("flags") {
            let flags: u32 = said.number("flags");
            let on = |flag| flags & flag != 0;
            router = router
                .rank_logits(on(sys::ROUTECAP_ROUTER_RANK_LOGITS))
                .renormalize(on(sys::ROUTECAP_ROUTER_RENORMALIZE))
                .floor_max(on(sys::ROUTECAP_ROUTER_FLOOR_MAX))
                .sigmoid_tanh(on(sys::ROUTECAP_ROUTER_SIGMOID_TANH))
                .groups_zero(on(sys::ROUTECAP_ROUTER_GROUPS_ZERO));
        }
        if said.has("groups") || said.has("groups_kept") {
            router = router.groups(said.number("groups"), said.number("groups_kept"));
        }
        if let Some(scale) = said.get("scale") {
            router = router.scale(scale.as_f64().unwrap() as f32);
        }
        if let Some(floor) = said.get("floor") {
            router = router.floor(floor.as_f64().unwrap() as f32);
        }
        let bias = match said.get("bias") {
            Some(bias) => {
                Some(Elements::of(some_dtype(said, "bias_dtype")?, bias.as_array().unwrap()))
            }
            None => None,
        };
        if let Some(bias) = &bias {
            router = router.bias(bias.slice());
        }
        let table = said.numbers::<i32>("hash_table");
        if let Some(table) = &table {
            router = router.hash_table(table, said.number("hash_tokens"));
        }

        let said = call.input.object("logits").ok_or(Inexpressible)?;
        let rows: u32 = said.number("rows");
        let elements = match said.get("logits") {
            Some(logits) => {
                let experts = self.capturer(call)?.0.experts(layer);
                let read = dense(said, logits.as_array().unwrap(), "experts", experts);
                Some(Elements::of(some_dtype(said, "dtype")?, read))
            }
            None => None,
        };
        let mut logits = match &elements {
            Some(elements) => {
                Logits::new(elements.slice(), rows).start(said.number("logits_start"))
            }
            None => Logits::none(rows),
        };
        let numbers = Placed::of(said);
        logits = logits
            .row_stride(said.number("row_stride"))
            .column_stride(said.number("column_stride"))
            .first_row(said.number("first_row"));
        logits = logits.experts(said.number("experts"));
        if let Some(rows) = numbers.live_rows() {
            logits = logits.live_rows(rows);
        }
        if let Some(base) = numbers.row_base() {
            logits = logits.row_base(base);
        }
        if let Some(index) = numbers.row_index() {
            logits = logits.row_index(index);
        }
        let tokens = match said.get("tokens") {
            Some(tokens) => {
                Some(Elements::of(some_dtype(said, "tokens_dtype")?, tokens.as_array().unwrap()))
            }
            None => None,
        };
        if let Some(tokens) = &tokens {
            logits = logits.tokens(tokens.slice());
        }
        let stride: i64 = said.number("weights_stride");
        let wanted = call.out.list("weights").len();
        let mut weights = vec![
            UNTOUCHED as f32;
            wanted.max(if said.has("weights") {
                rows as usize * stride.unsigned_abs() as usize
            } else {
                0
            })
        ];
        if said.has("weights") {
            logits = logits.weights(&mut weights, stride);
        }
        let delivered = call
            .done(self.capturer(call)?.1.route(layer, &router, &mut logits, Stream::HOST))
            .is_some();
        let tolerance =
            call.out.get("tolerance").map_or(0.0, |tolerance| tolerance.as_f64().unwrap());
        call.expect_elements("weights", delivered, &Elements::F32(weights.into()), tolerance);
        Ok(())
    }

    fn requests(&mut self, call: &Call<'_>) -> Made {
        let input = call.input;
        let request = self.request(input);
        match call.name {
            "request_open" => {
                let policy = input.object("options").map_or(0, |options| options.number("policy"));
                let policy = choice!(policy, Policy: Keep, Replace)?;
                let mut requests = vec![RequestId(UNTOUCHED as u64); input.number("count")];
                let result = self.capturer(call)?.0.open_batch(&mut requests, policy);
                if call.done(result).is_some() {
                    for (name, request) in call.out.list("requests").iter().zip(&requests) {
                        self.bind_request(name, *request);
                    }
                } else {
                    assert!(requests.iter().all(|request| *request == RequestId::NONE));
                }
            }
            "request_accept" => {
                let rows = input.numbers::<u32>("rows");
                let kept = rows
                    .as_ref()
                    .map_or(Kept::First(input.number("count")), |rows| Kept::Indices(rows));
                call.done(self.capturer(call)?.0.accept(request, Step(input.number("step")), kept));
            }
            "request_accept_batch" => {
                let items = input.list("items").iter().map(Said::of);
                let items: Vec<_> = items
                    .map(|said| {
                        (
                            self.request(said),
                            Step(said.number("step")),
                            said.numbers::<u32>("rows"),
                            said,
                        )
                    })
                    .collect();
                let mut items: Vec<AcceptItem<'_>> = items
                    .iter()
                    .map(|(request, step, rows, said)| {
                        let kept = rows
                            .as_ref()
                            .map_or(Kept::First(said.number("count")), |rows| Kept::Indices(rows));
                        AcceptItem::new(*request, *step, kept)
                    })
                    .collect();
                let result = self.capturer(call)?.0.accept_batch(&mut items);
                if call.answered(result, |all| whole(*all)).is_some() {
                    call.expect_statuses(
                        items.iter().map(|done| item(done.result(), |()| "ROUTECAP_OK")).collect(),
                    );
                }
            }
            "request_coverage" => {
                let mut missing = vec![Missing::default(); input.number("capacity")];
                let capturer = &self.capturer(call)?.0;
                let result = capturer.coverage_into(request, rows(input), &mut missing);
                let all = capturer.missing(request, rows(input));
                self.coverage(call, result, &missing, all);
            }
            "request_extract" => {
                let mode = choice!(input.number("mode"), Extract: Share, Take, Copy)?;
                let result = self.capturer(call)?.0.extract_with(
                    request,
                    rows(input),
                    mode,
                    strictness(input)?,
                );
                let routing = call.answered(result, poll);
                self.bind_routing(call, "routing", routing);
            }
            "request_extract_batch" => {
                let mut items = Vec::new();
                for said in input.list("items").iter().map(Said::of) {
                    only(said, "reserved", 0)?;
                    let mode = choice!(said.number("mode"), Extract: Share, Take, Copy)?;
                    items.push(ExtractItem::new(
                        self.request(said),
                        rows(said),
                        mode,
                        strictness(said)?,
                    ));
                }
                let result = self.capturer(call)?.0.extract_batch(&mut items);
                if call.answered(result, |all| whole(*all)).is_some() {
                    call.expect_statuses(
                        items.iter().map(|done| item(done.result(), completeness)).collect(),
                    );
                    self.bind_all(call, items.iter_mut().map(ExtractItem::take).collect());
                }
            }
            "request_extract_into" => {
                let options = input.object("options").ok_or(Inexpressible)?;
                let capturer = self.capturer(call)?.0.clone();
                let rows = rows(input);
                with_type!(some_dtype(options, "dtype")?, T => copied::<T>(
                    call,
                    UNTOUCHED as T,
                    Value::from,
                    |options| capturer.extract_len::<T>(request, rows, options),
                    capturer.k(),
                    |dst, mask, options| capturer.extract_into::<T>(request, rows, dst, mask, options),
                )?)
            }
            "request_finish_batch" => {
                let items = input.list("items").iter().map(Said::of);
                let mut items: Vec<_> = items
                    .map(|said| FinishItem::new(self.request(said), said.number("rows")))
                    .collect();
                let result = self.capturer(call)?.0.finish_batch(&mut items);
                if call.answered(result, |all| whole(*all)).is_some() {
                    call.expect_statuses(
                        items.iter().map(|done| item(done.result(), |()| "ROUTECAP_OK")).collect(),
                    );
                    self.bind_all(call, items.iter_mut().map(FinishItem::take).collect());
                }
            }
            "request_close_batch" => {
                let requests: Vec<_> =
                    input.list("requests").iter().map(|name| self.request_named(name)).collect();
                let mut status = vec![ItemStatus::default(); requests.len()];
                let capturer = &self.capturer(call)?.0;
                let wanted = call.out.has("status");
                let result = if wanted {
                    capturer.close_batch_into(&requests, &mut status)
                } else {
                    capturer.close_batch(&requests)
                };
                if call.answered(result, |all| whole(*all)).is_some() {
                    call.expect_statuses(
                        status
                            .iter()
                            .map(|status| item(status.result(), |()| "ROUTECAP_OK"))
                            .collect(),
                    );
                }
            }
            name => panic!("no such call: {name}"),
        }
        Ok(())
    }

    fn bind_all(&mut self, call: &Call<'_>, routings: Vec<Option<Routing>>) {
        let names = call.out.list("routings");
        assert_eq!(names.len(), routings.len(), "routings");
        for (name, routing) in names.iter().zip(routings) {
            match (name.as_str(), routing) {
                (Some(name), Some(routing)) => {
                    assert!(self.routings.insert(name.into(), routing).is_none())
                }
                (None, None) => {}
                (name, routing) => panic!("{routing:?} for {name:?}"),
            }
        }
    }

    fn coverage(
        &self,
        call: &Call<'_>,
        result: Result<Coverage, Error>,
        missing: &[Missing],
        all: Result<Vec<Missing>, Error>,
    ) {
        let Some(coverage) = call.answered(result, |c| {
            if c.is_complete() { "ROUTECAP_OK" } else { "ROUTECAP_INCOMPLETE" }
        }) else {
            return;
        };
        let of = |m: &Missing| {
            let mut is = object!(m; first, rows, first_layer, layers);
            is["reason"] = m.reason().value().into();
            is["reserved"] = 0.into();
            is
        };
        let blocks = missing.len().min(coverage.blocks as usize);
        call.expect("missing", missing[..blocks].iter().map(of).collect::<Vec<_>>());
        let all = all.expect("blocks");
        assert_eq!(all.len() as u64, coverage.blocks);
        assert_eq!(all[..blocks], missing[..blocks]);
        let is = object!(coverage; layers, first, rows, length, rows_complete, rows_partial, rows_empty, cells_missing, blocks, cells_recomputed, cells_weighted);
        call.expect_object("coverage", is);
    }

    fn routings(&mut self, call: &Call<'_>) -> Made {
        let input = call.input;
        match call.name {
            "routing_wait" => {
                let routing = self.routing(call)?;
                let result = match u64::try_from(input.number::<i64>("timeout_ns")) {
                    Ok(timeout) => routing.wait_timeout(Duration::from_nanos(timeout)),
                    Err(_) => routing.wait().map(Some),
                };
                call.answered(result, |is| readiness(*is));
            }
            "routing_retain" => {
                let same = call.done(Ok(self.routing(call)?.clone()));
                self.bind_routing(call, "routing", same);
            }
            "routing_free" => {
                self.routing(call)?;
                self.routings.remove(input.text("routing").unwrap());
            }
            "routing_view" => {
                let routing = self.routing(call)?;
                let Some(view) = call.done(routing.view()) else { return Ok(()) };
                let (mut ids, mut valid, mut tags) = (Vec::new(), Vec::new(), Vec::new());
                let (mut weights, mut weighted) = (Vec::new(), Vec::new());
                let mut position = view.first();
                for segment in view.segments() {
                    assert_eq!(segment.first(), position, "segments are in order, without gaps");
                    position += segment.rows();
                    for row in segment.iter() {
                        let cells: Vec<_> = row.cells().collect();
                        let any = cells.iter().any(Option::is_some);
                        tags.push(if any { row.tag() } else { 0 });
                        assert_eq!(view.row(row.position()).map(|row| row.ids()), Some(row.ids()));
                        let k = view.k() as usize;
                        for layer in 0..view.layers() {
                            let of = row.weights(layer);
                            weighted.push(i32::from(of.is_some()));
                            assert_eq!(row.is_weighted(layer), of.is_some());
                            let mut of: Vec<Value> = match of {
                                Some(Weights::F32(of)) => of.iter().map(|w| w.shown()).collect(),
                                Some(Weights::F16(of)) => of.iter().map(|w| w.shown()).collect(),
                                Some(Weights::BF16(of)) => of.iter().map(|w| w.shown()).collect(),
                                None => Vec::new(),
                            };
                            if row.is_weighted(layer) {
                                assert_eq!(of.len(), row.experts(layer).expect("experts").len());
                            }
                            of.resize(k, 0.into());
                            weights.extend(of);
                        }
                        for (layer, cell) in cells.into_iter().enumerate() {
                            valid.push(i32::from(cell.is_some()));
                            let Some(cell) = cell else {
                                ids.extend(vec![-1; k]);
                                continue;
                            };
                            ids.extend(cell.iter().map(i32::from));
                            ids.extend(vec![NO_EXPERT; k - cell.len()]);
                            let all = row.ids().expect("ids").slice(layer * k..(layer + 1) * k);
                            assert!(all.slice(cell.len()..k).iter().all(|id| match all {
                                Ids::U8(_) => id == u16::from(u8::MAX),
                                Ids::I16(_) => id == u16::MAX,
                            }));
                        }
                    }
                }
                assert_eq!(position, view.positions().end);
                reasons_of_absent_rows(routing, &view);
                assert_eq!(view.iter().count() as u64, view.rows());
                call.expect_object(
                    "view",
                    json!({
                        "dtype": view.dtype() as i32, "layers": view.layers(), "k": view.k(), "experts": view.experts(),
                        "validity_bytes": view.validity_bytes(), "id_space": view.id_space().value(), "complete": i32::from(view.is_complete()),
                        "first": view.first(), "rows": view.rows(), "segment_count": view.segments().len(),
                        "layer_map": view.layer_map(), "layer_experts": view.layer_experts(), "layer_k": view.layer_k(),
                        "layer_min_k": view.layer_min_k(), "layer_visit": view.layer_visit(),
                        "layer_provenance": view.layer_provenance().map(Provenance::value).collect::<Vec<_>>(),
                        "ids": ids, "valid": valid, "tags": tags, "weights": weights, "weighted": weighted,
                        "weights_dtype": view.weights_type().map_or(0, |of| of as i32),
                    }),
                );
            }
            "routing_coverage" => {
                let mut missing = vec![Missing::default(); input.number("capacity")];
                let routing = self.routing(call)?;
                let result = routing.coverage_into(&mut missing);
                self.coverage(call, result, &missing, routing.missing());
            }
            "routing_slice" => {
                let slice = call.done(self.routing(call)?.slice(rows(input)));
                self.bind_routing(call, "slice", slice);
            }
            "routing_merge" => {
                let all = input
                    .list("routings")
                    .iter()
                    .map(|name| self.routing_named(name))
                    .collect::<Result<Vec<_>, _>>()?;
                let merged = call.answered(Routing::merge(all), poll);
                self.bind_routing(call, "merged", merged);
            }
            "routing_copy_to" => {
                let routing = self.routing(call)?;
                let options = input.object("options").ok_or(Inexpressible)?;
                with_type!(some_dtype(options, "dtype")?, T => copied::<T>(
                    call,
                    UNTOUCHED as T,
                    Value::from,
                    |options| routing.copy_len::<T>(options),
                    routing.view().map_or(1, |view| view.k()),
                    |dst, mask, options| routing.copy_to::<T>(dst, mask, options),
                )?)
            }
            "routing_copy_weights" => {
                fn of<W: Shown>(call: &Call<'_>, routing: &Routing) -> Made {
                    copied::<W>(
                        call,
                        W::UNTOUCHED,
                        W::shown,
                        |options| routing.copy_weights_len::<W>(options),
                        routing.view().map_or(1, |view| view.k()),
                        |dst, mask, options| routing.copy_weights::<W>(dst, mask, options),
                    )
                }
                let routing = self.routing(call)?;
                let options = input.object("options").ok_or(Inexpressible)?;
                match WeightsType::of(options.number("dtype")).ok_or(Inexpressible)? {
                    WeightsType::F32 => of::<f32>(call, routing)?,
                    WeightsType::F16 => of::<F16>(call, routing)?,
                    _ => of::<BF16>(call, routing)?,
                }
            }
            "routing_serialize" => {
                let routing = self.routing(call)?;
                let (result, bytes) = if input.has("dst_bytes") {
                    let mut dst = vec![UNTOUCHED as u8; input.number("dst_bytes")];
                    let result = routing.serialize_into(&mut dst);
                    let written = *result.as_ref().unwrap_or(&0);
                    assert!(dst[written..].iter().all(|byte| *byte == UNTOUCHED as u8));
                    dst.truncate(written);
                    (result, dst)
                } else {
                    let result = routing.serialize();
                    let bytes = result.clone().unwrap_or_default();
                    (result.map(|bytes| bytes.len()), bytes)
                };
                if call.done(result).is_some() && call.out.has("dst") {
                    assert_eq!(call.out.bytes("dst"), bytes);
                }
                if call.out.has("needed") {
                    call.expect("needed", routing.serialized_len().expect("a length"));
                }
            }
            "routing_deserialize" => {
                let (data, trust) = (input.bytes("data"), trust(input)?);
                let result = if input.number::<u32>("lent") != 0 {
                    self.lend(data, |loan| Routing::deserialize_lent(loan, trust))
                } else {
                    Routing::deserialize(&data, trust)
                };
                let routing = call.answered(result, poll);
                self.bind_routing(call, "routing", routing);
            }
            "routing_import" => {
                let arrays = Imported::of(input.object("view").ok_or(Inexpressible)?)?;
                let trust = trust(input)?;
                let result = if input.number::<u32>("lent") != 0 {
                    self.lend(arrays, |loan| {
                        Routing::import_lent(loan, |loan| loan.0.arrays(), trust)
                    })
                } else {
                    Routing::import(&arrays.arrays(), trust)
                };
                let routing = call.answered(result, poll);
                self.bind_routing(call, "routing", routing);
            }
            "serialized_info" => {
                if let Some(info) = call.done(routecap::serialized_info(&input.bytes("data"))) {
                    let mut is =
                        object!(info; version, bytes, header_bytes, first, rows, layers, k);
                    is["dtype"] = (info.dtype as i32).into();
                    is["id_space"] = info.id_space.value().into();
                    is["weights_dtype"] = info.weights.map_or(0, |of| of as i32).into();
                    call.expect_object("info", is);
                }
            }
            "serialized_splice" => {
                let (head, tail) = (input.bytes("head"), input.bytes("tail"));
                if let Some(splice) = call.done(routecap::splice(&head, &tail, input.number("row")))
                {
                    call.expect_object(
                        "splice",
                        json!({"pieces": splice.pieces.len(), "bytes": splice.bytes, "header_bytes": splice.header.len()}),
                    );
                    let joined = splice.join(&head, &tail).expect("both whole");
                    assert_eq!(joined.len() as u64, splice.bytes);
                    self.bind_routing(
                        call,
                        "routing",
                        Some(Routing::deserialize(&joined, Trust::None).expect("a routing")),
                    );
                }
            }
            name => panic!("no such call: {name}"),
        }
        Ok(())
    }

    pub fn sequence(&mut self, call: &Call<'_>) -> &mut Sequence {
        self.sequences.get_mut(call.input.text("sequence").expect("a name")).expect("a sequence")
    }

    pub fn bind_sequence(&mut self, call: &Call<'_>, key: &str, sequence: Option<Sequence>) {
        if let Some(sequence) = sequence {
            let name = call.out.text(key).unwrap_or_else(|| panic!("no name for {key}"));
            assert!(
                self.sequences.insert(name.into(), sequence).is_none(),
                "{name} is bound already"
            );
        }
    }

    fn sequences(&mut self, call: &Call<'_>) -> Made {
        let input = call.input;
        match call.name {
            "sequence_create" => {
                let said = input.object("config").ok_or(Inexpressible)?;
                let mut config = SequenceConfig::new(
                    said.number("layers"),
                    said.number("k"),
                    said.number("experts"),
                )
                .layer_map(said.numbers("layer_map").unwrap_or_default())
                .layer_experts(said.numbers("layer_experts").unwrap_or_default())
                .layer_k(said.numbers("layer_k").unwrap_or_default())
                .layer_min_k(said.numbers("layer_min_k").unwrap_or_default())
                .layer_visit(said.numbers("layer_visit").unwrap_or_default());
                config = config.id_space(IdSpace::of(said.number("id_space")));
                if said.number::<i32>("weights_dtype") != 0 {
                    let weights = WeightsType::of(said.number("weights_dtype"));
                    config = config.weights(weights.ok_or(Inexpressible)?);
                }
                let sequence = call.done(config.create());
                self.bind_sequence(call, "sequence", sequence);
            }
            "sequence_free" => drop(
                self.sequences.remove(input.text("sequence").expect("a name")).expect("a sequence"),
            ),
            "sequence_append" => {
                let mut options = AppendOptions::new();
                if let Some(said) = input.object("options") {
                    only(said, "flags", 0)?;
                    options = options
                        .policy(choice!(said.number("policy"), AppendPolicy: Keep, Newest, Equal)?)
                        .prompt_tokens(said.number("prompt_tokens"))
                        .call(said.number("call"))
                        .tag(said.number("tag"))
                        .origin(said.number("origin"));
                }
                let tokens: Vec<i32> = input.numbers("tokens").expect("tokens");
                let routing =
                    input.get("routing").map(|name| self.routing_named(name)).transpose()?.cloned();
                let result = self.sequence(call).append(
                    &tokens,
                    input.number("token_start"),
                    routing.as_ref(),
                    &options,
                );
                if let Some(report) =
                    call.answered(result, |report| completeness(report.completeness()))
                {
                    call.expect_object("report", reported(report));
                }
            }
            "sequence_routing" => {
                let routing = call.answered(self.sequence(call).routing(), poll);
                self.bind_routing(call, "routing", routing);
            }
            "sequence_spans" => {
                if let Some(spans) = call.done(self.sequence(call).spans()) {
                    call.expect("count", spans.len());
                    let shown = spans.iter().take(input.number("capacity"));
                    call.expect(
                        "spans",
                        shown
                            .map(|span| object!(span; first, rows, call, tag, origin))
                            .collect::<Vec<_>>(),
                    );
                }
            }
            "sequence_tokens" => {
                if let Some(tokens) = call.done(self.sequence(call).tokens(input.number("first"))) {
                    call.expect("count", tokens.len());
                    call.expect(
                        "tokens",
                        tokens.into_iter().take(input.number("capacity")).collect::<Vec<_>>(),
                    );
                }
            }
            "sequence_serialize" => {
                if let Some(bytes) =
                    call.done(self.sequence(call).serialize(input.number::<u32>("flags") != 0))
                {
                    assert_eq!(call.out.bytes("dst"), bytes);
                    call.expect("needed", bytes.len());
                }
            }
            name => panic!("no such call: {name}"),
        }
        Ok(())
    }

    pub fn store(&self, call: &Call<'_>) -> &Store {
        &self.stores[call.input.text("store").expect("a name")]
    }

    fn stores(&mut self, call: &Call<'_>) -> Made {
        let input = call.input;
        match call.name {
            "store_config_init" => {
                call.done(Ok(())); // a default is no call that fails
                let config = StoreConfig::default();
                let flags = u32::from(config.slot_keys);
                let mut said = object!(config; block_rows, key_bytes, budget_bytes, generation);
                said["flags"] = flags.into();
                call.expect_object("config", said);
            }
            "store_create" => {
                let said = input.object("config").expect("a config");
                only(said, "flags", sys::ROUTECAP_STORE_SLOT_KEYS)?;
                let usual = StoreConfig::default();
                let config = StoreConfig {
                    slot_keys: said.number::<u32>("flags") != 0,
                    block_rows: said.number_or("block_rows", usual.block_rows.into()),
                    key_bytes: said.number_or("key_bytes", usual.key_bytes.into()),
                    budget_bytes: said.number_or("budget_bytes", usual.budget_bytes.into()),
                    generation: said.number("generation"),
                };
                let shape = self::config(input.object("shape").expect("a shape"))?;
                if let Some(store) = call.done(config.create(&shape)) {
                    self.stores.insert(call.out.text("store").expect("a name").into(), store);
                }
            }
            "store_free" => {
                drop(self.stores.remove(input.text("store").expect("a name")).expect("a store"));
            }
            name => panic!("no such call: {name}"),
        }
        Ok(())
    }

    /// What requests and stores have to do with one another.
    fn prefixes(&mut self, call: &Call<'_>) -> Made {
        let input = call.input;
        let (generation, store) = (input.number("generation"), self.store(call));
        let capturer = &self.capturers[input.text("capturer").expect("a name")].0;
        let adopted =
            |found: routecap::Adoption| object!(found; rows, found, evicted, not_published, stale);
        let items: Vec<_> = input.list("items").iter().map(Said::of).collect();
        let keys: Vec<_> = items.iter().map(|item| item.bytes("keys")).collect();
        let prefixes: Vec<_> = items
            .iter()
            .zip(&keys)
            .map(|(item, keys)| Prefix {
                request: self.request(*item),
                first: item.number("first"),
                keys,
            })
            .collect();
        fn all(mut statuses: impl Iterator<Item = ItemStatus>) -> &'static str {
            whole(statuses.all(|status| status.result().is_ok()))
        }
        let named = |status: &ItemStatus| item(status.result(), |()| "ROUTECAP_OK");
        if call.name == "request_publish_batch" {
            let result = capturer.publish_batch(store, &prefixes, generation);
            if let Some(statuses) = call.answered(result, |statuses| all(statuses.iter().copied()))
            {
                call.expect_statuses(statuses.iter().map(named).collect());
            }
        } else {
            let result = capturer.adopt_batch(store, &prefixes, generation);
            if let Some(found) =
                call.answered(result, |found| all(found.iter().map(|(_, status)| *status)))
            {
                call.expect_statuses(found.iter().map(|(_, status)| named(status)).collect());
                let found: Vec<_> = found.into_iter().map(|(found, _)| adopted(found)).collect();
                call.expect("adoptions", found);
            }
        }
        Ok(())
    }

    /// Lends `memory`, and sees that it is dropped at once if it is not taken.
    fn lend<T>(
        &mut self,
        memory: T,
        take: impl FnOnce(Loan<T>) -> Result<Routing, Error>,
    ) -> Result<Routing, Error> {
        let released = Arc::new(AtomicUsize::new(0));
        self.loans.push(released.clone());
        let result = take(Loan(memory, released.clone()));
        assert!(result.is_ok() || released.load(Ordering::SeqCst) == 1);
        result
    }
}

pub fn reported(report: AppendReport) -> Value {
    let mut is = object!(report; call, tokens, tokens_common, tokens_cut, rows_cut, rows_overlap, rows_differed, rows_taken, rows_boundary,
        rows_filled, rows_replaced, rows_beyond, rows_missing);
    is["first_differed"] = report.first_differed.unwrap_or(routecap::ALL).into();
    is
}

/// The status of a call that gave out a routing that is ready.
fn poll(routing: &Routing) -> &'static str {
    readiness(routing.poll().expect("a status"))
}

fn config(said: Said<'_>) -> Result<Config, Inexpressible> {
    let known = SWITCHES.iter().fold(0, |all, (flag, _)| all | flag);
    only(said, "flags", known)?;
    let role = choice!(said.number("role"), Role: Owner, Mirror, Disabled)?;
    let mut config = match said.number("backend") {
        sys::ROUTECAP_BACKEND_HOST => Config::host().role(role),
        sys::ROUTECAP_BACKEND_CUDA => {
            Config::cuda(u32::try_from(said.number::<i32>("device")).map_err(|_| Inexpressible)?)
                .role(role)
        }
        0 if role == Role::Disabled => Config::disabled(),
        _ => return Err(Inexpressible),
    };
    let flags: u32 = said.number("flags");
    config = config
        .layers(said.number("layers"))
        .k(said.number("k"))
        .experts(said.number("experts"))
        .rows(said.number("rows"))
        .id_space(IdSpace::of(said.number("id_space")))
        .slots(said.number("slots"))
        .max_requests(said.number("max_requests"))
        .budget_bytes(said.number("budget_bytes"));
    for (flag, switch) in SWITCHES {
        config = switch(config, flags & flag != 0);
    }
    if said.number::<i32>("sink_dtype") != 0 {
        config = config.sink_dtype(some_dtype(said, "sink_dtype")?);
    }
    if said.number::<i32>("weights_dtype") != 0 {
        let weights = WeightsType::of(said.number("weights_dtype"));
        config = config.weights(weights.ok_or(Inexpressible)?);
    }
    if let Some(map) = said.numbers::<i32>("layer_map") {
        config = config.layer_map(map);
    }
    if let Some(experts) = said.numbers::<i64>("layer_experts") {
        config = config.layer_experts(experts.iter().map(|n| *n as u32).collect::<Vec<_>>());
    }
    config = config
        .layer_k(said.numbers("layer_k").unwrap_or_default())
        .layer_min_k(said.numbers("layer_min_k").unwrap_or_default())
        .layer_visit(said.numbers("layer_visit").unwrap_or_default());
    if let Some(provenance) = said.numbers::<i32>("layer_provenance") {
        config = config
            .layer_provenance(&provenance.into_iter().map(Provenance::of).collect::<Vec<_>>());
    }
    Ok(config)
}

/// What a segment says of rows that are not there is what coverage says of each of their cells.
fn reasons_of_absent_rows(routing: &Routing, view: &View<'_>) {
    let blocks = routing.missing().expect("blocks");
    for segment in view.segments() {
        assert!(segment.iter().all(|row| row.ids().is_none() == segment.reason().is_some()));
        let Some(reason) = segment.reason() else { continue };
        for position in segment.positions() {
            let cells = blocks.iter().filter(|block| block.positions().contains(&position));
            let layers: u32 = cells
                .inspect(|block| assert_eq!(block.reason(), reason))
                .map(|block| block.layers)
                .sum();
            assert_eq!(layers, view.layers(), "position {position}");
        }
    }
}

/// The numbers of a source or of logits that calls point to.
struct Placed {
    live_rows: Option<Vec<i32>>,
    row_base: Option<Vec<i32>>,
    row_index: Option<Vec<i32>>,
    table: Option<Vec<i32>>,
}

impl Placed {
    fn of(said: Said<'_>) -> Placed {
        Placed {
            live_rows: said.numbers("live_rows"),
            row_base: said.numbers("row_base"),
            row_index: said.numbers("row_index"),
            table: said.numbers("table"),
        }
    }
    fn live_rows(&self) -> Option<Slice<'_, i32>> {
        self.live_rows.as_ref().map(Into::into)
    }
    fn row_base(&self) -> Option<Slice<'_, i32>> {
        self.row_base.as_ref().map(Into::into)
    }
    fn row_index(&self) -> Option<Slice<'_, i32>> {
        self.row_index.as_ref().map(Into::into)
    }
}

/// The elements of a matrix: C has a pointer, and what a vector has behind the last row of a dense
/// one is of no account.
fn dense<'v>(said: Said<'_>, elements: &'v [Value], columns: &str, default: u32) -> &'v [Value] {
    let columns = match said.number::<usize>(columns) {
        0 => default as usize,
        columns => columns,
    };
    let read = said.number::<usize>("rows") * columns;
    let strided = said.number::<i64>("row_stride") != 0 || said.number::<i64>("column_stride") != 0;
    if strided { elements } else { &elements[..read.min(elements.len())] }
}

fn ids_of(said: Said<'_>, k: u32) -> Result<Option<Elements>, Inexpressible> {
    match said.get("ids") {
        Some(ids) => {
            let read = dense(said, ids.as_array().unwrap(), "k_source", k);
            Ok(Some(Elements::of(some_dtype(said, "dtype")?, read)))
        }
        None => Ok(None),
    }
}

fn common_source<'a>(
    mut source: Source<'a>,
    said: Said<'_>,
    k: u32,
    numbers: &'a Placed,
) -> Result<Source<'a>, Inexpressible> {
    only(said, "flags", sys::ROUTECAP_SOURCE_OVERLAP | sys::ROUTECAP_SOURCE_WHOLE_STEP)?;
    source = source
        .weights_start(said.number("weights_start"))
        .weights_row_stride(said.number("weights_row_stride"))
        .whole_step(said.number::<u32>("flags") & sys::ROUTECAP_SOURCE_WHOLE_STEP != 0)
        .start(said.number("ids_start"))
        .row_stride(said.number("row_stride"))
        .column_stride(said.number("column_stride"))
        .columns(if said.number::<u32>("k_source") == 0 { k } else { said.number("k_source") })
        .first_row(said.number("first_row"))
        .offset(said.number("offset"))
        .none(said.number("none"))
        .overlap(said.number::<u32>("flags") & sys::ROUTECAP_SOURCE_OVERLAP != 0);
    if let Some(rows) = numbers.live_rows() {
        source = source.live_rows(rows);
    }
    if let Some(base) = numbers.row_base() {
        source = source.row_base(base);
    }
    if let Some(index) = numbers.row_index() {
        source = source.row_index(index);
    }
    if let Some(table) = &numbers.table {
        source = source.table(table);
    }
    if said.number::<usize>("table_size") != numbers.table.as_ref().map_or(0, Vec::len)
        && said.has("table_size")
    {
        return Err(Inexpressible);
    }
    Ok(source)
}

/// The weights that a source or rows say, of the capturer's type unless they state another.
fn weights_of(
    said: Said<'_>,
    weights: Option<&Value>,
    of: Option<WeightsType>,
) -> Result<Option<Elements>, Inexpressible> {
    let stated = if said.has("weights_dtype") {
        Some(WeightsType::of(said.number("weights_dtype")).ok_or(Inexpressible)?)
    } else {
        None
    };
    let Some(weights) = weights else {
        // That a type is stated of weights that are not there is not to be expressed.
        return if stated.is_some() { Err(Inexpressible) } else { Ok(None) };
    };
    let of = stated.or(of).expect("a type of weights").dtype();
    Ok(Some(Elements::of(of, weights.as_array().expect("weights"))))
}

/// The copy that a call asks for, into memory of the sizes that it says.
fn copied<T: Element>(
    call: &Call<'_>,
    untouched: T,
    shown: impl Fn(T) -> Value,
    len: impl Fn(&CopyOptions) -> Result<usize, Error>,
    k: u32,
    copy: impl FnOnce(&mut [T], Option<&mut [bool]>, &CopyOptions) -> Result<Completeness, Error>,
) -> Made {
    let said = call.input.object("options").ok_or(Inexpressible)?;
    let mut options = CopyOptions::new()
        .order(choice!(said.number("order"), Order: RowMajor, LayerMajor)?)
        .strictness(strictness(said)?)
        .layers(said.number("first_layer"), said.number("layers"))
        .strides(said.number("row_stride"), said.number("layer_stride"));
    if said.has("fill") {
        options = options.fill(said.number("fill"));
    }
    if said.has("none") {
        options = options.none(said.number("none"));
    }
    let bytes: usize = call.input.number("dst_bytes");
    let mut mask =
        call.input.has("mask_bytes").then(|| vec![true; call.input.number("mask_bytes")]);
    if !call.input.has("dst_bytes") && call.status == "ROUTECAP_ERR_BUFFER_TOO_SMALL" {
        // The crate asks for the size in a call of its own, which finds it.
        call.expect("needed", len(&options).expect("a size") * size_of::<T>());
        return Ok(());
    }
    let mut dst = vec![untouched; bytes / size_of::<T>()];
    // C does not mind memory that is longer than the copy.
    let strided = said.number::<i64>("row_stride") != 0 || said.number::<i64>("layer_stride") != 0;
    let needed = if strided { usize::MAX } else { len(&options).unwrap_or(usize::MAX) };
    let cells = mask.as_mut().map(|mask| {
        let most = mask.len().min(if strided { usize::MAX } else { needed / k.max(1) as usize });
        &mut mask[..most]
    });
    let most = dst.len().min(needed);
    let delivered =
        call.answered(copy(&mut dst[..most], cells, &options), |is| completeness(*is)).is_some();
    let dst: Vec<Value> = dst.into_iter().map(&shown).collect();
    if delivered {
        call.expect("dst", dst);
    } else {
        let untouched = shown(untouched);
        assert!(dst.iter().all(|each| *each == untouched), "dst was written by a call that failed");
    }
    if let (Some(mask), true) = (&mask, call.out.has("mask")) {
        for (i, (is, expected)) in mask.iter().zip(call.out.list("mask")).enumerate() {
            // What is not written stays true.
            assert_eq!(*is, number(expected) != 0, "mask[{i}]");
        }
    }
    if !delivered {
        assert!(
            mask.iter().flatten().all(|valid| *valid),
            "mask was written by a call that failed"
        );
    }
    if call.out.has("needed") {
        call.expect("needed", len(&options).expect("a size") * size_of::<T>());
    }
    Ok(())
}

/// What an import takes, owned.
struct Imported {
    layers: u32,
    k: u32,
    first: u64,
    rows: u64,
    experts: u32,
    validity_bytes: u32,
    row_stride: u64,
    weights: Option<WeightsType>,
    id_space: IdSpace,
    layer_map: Option<Vec<i32>>,
    layer_experts: Option<Vec<u32>>,
    layer_k: Option<Vec<u32>>,
    layer_min_k: Option<Vec<u32>>,
    layer_visit: Option<Vec<u32>>,
    layer_provenance: Option<Vec<Provenance>>,
    segments: Vec<ImportedSegment>,
}

struct ImportedSegment {
    first: u64,
    rows: u64,
    tag: u64,
    reason: i32,
    ids: Option<Elements>,
    validity: Option<Vec<u8>>,
    weights: Option<Elements>,
    weights_validity: Option<Vec<u8>>,
    tags: Option<Vec<u64>>,
}

impl Imported {
    fn of(said: Said<'_>) -> Result<Imported, Inexpressible> {
        let mut segments = Vec::new();
        let elements = some_dtype(said, "dtype")?;
        let weights_type = match said.number("weights_dtype") {
            0 => None,
            number => Some(WeightsType::of(number).ok_or(Inexpressible)?),
        };
        for segment in said.list("segments").iter().map(Said::of) {
            only(segment, "reserved", 0)?;
            segments.push(ImportedSegment {
                first: segment.number("first"),
                rows: segment.number("rows"),
                tag: segment.number("tag"),
                reason: segment.number("reason"),
                ids: segment.get("ids").map(|ids| Elements::of(elements, ids.as_array().unwrap())),
                validity: segment.numbers("validity"),
                weights: match segment.get("weights") {
                    Some(weights) => {
                        let of = weights_type.ok_or(Inexpressible)?.dtype();
                        Some(Elements::of(of, weights.as_array().unwrap()))
                    }
                    None => None,
                },
                weights_validity: segment.numbers("weights_validity"),
                tags: segment.numbers("tags"),
            });
        }
        let usual = if said.number::<u32>("experts") <= 256 { DType::U8 } else { DType::I16 };
        if segments.iter().all(|segment| segment.ids.is_none()) && elements != usual {
            return Err(Inexpressible);
        }
        let provenance = said.numbers::<i32>("layer_provenance");
        Ok(Imported {
            layers: said.number("layers"),
            k: said.number("k"),
            first: said.number("first"),
            rows: said.number("rows"),
            experts: said.number("experts"),
            validity_bytes: said.number("validity_bytes"),
            row_stride: said.number("row_stride"),
            weights: weights_type,
            id_space: IdSpace::of(said.number("id_space")),
            layer_map: said.numbers("layer_map"),
            layer_experts: said.numbers("layer_experts"),
            layer_k: said.numbers("layer_k"),
            layer_min_k: said.numbers("layer_min_k"),
            layer_visit: said.numbers("layer_visit"),
            layer_provenance: provenance.map(|all| all.into_iter().map(Provenance::of).collect()),
            segments,
        })
    }

    fn arrays(&self) -> Arrays<'_> {
        let mut arrays = Arrays::new(self.layers, self.k, self.first, self.rows)
            .experts(self.experts)
            .validity_bytes(self.validity_bytes)
            .row_stride(self.row_stride)
            .id_space(self.id_space);
        if let Some(weights) = self.weights {
            arrays = arrays.weights(weights);
        }
        if let Some(map) = &self.layer_map {
            arrays = arrays.layer_map(map);
        }
        if let Some(experts) = &self.layer_experts {
            arrays = arrays.layer_experts(experts);
        }
        if let Some(k) = &self.layer_k {
            arrays = arrays.layer_k(k);
        }
        if let Some(k) = &self.layer_min_k {
            arrays = arrays.layer_min_k(k);
        }
        if let Some(visit) = &self.layer_visit {
            arrays = arrays.layer_visit(visit);
        }
        if let Some(provenance) = &self.layer_provenance {
            arrays = arrays.layer_provenance(provenance.iter().copied());
        }
        for said in &self.segments {
            let mut segment = ArraySegment::new(said.first, said.rows).tag(said.tag);
            if said.reason != 0 {
                segment = segment.reason(Reason::of(said.reason));
            }
            if let Some(ids) = &said.ids {
                segment = segment.ids(ids.slice());
            }
            if let Some(validity) = &said.validity {
                segment = segment.validity(validity);
            }
            if let Some(weights) = &said.weights {
                segment = segment.weights(weights.slice());
            }
            if let Some(validity) = &said.weights_validity {
                segment = segment.weights_validity(validity);
            }
            if let Some(tags) = &said.tags {
                segment = segment.tags(tags);
            }
            arrays = arrays.segment(segment);
        }
        arrays
    }
}
