//! Captures the routing of a mixture-of-experts model that runs in llama.cpp, through the engine's
//! own public callback: no patch. Take this file as it is; it needs the crates `llama-cpp-sys-2`
//! and `routecap`.
//!
//! ```text
//! let mut tap = Tap::attach(&mut params)?;             // before llama_init_from_model(model, params)
//! let layers = unsafe { tap.discover(context) }?;      // after it: what is there to capture
//! tap.start(&layers, |config| config)?;                // all of it or a part; change the configuration as you like
//!
//! tap.open(sequence)?;                                 // every sequence that is to be captured, before its first token
//! unsafe { tap.decode(context, batch) }?;              // in the place of llama_decode
//! let routing = tap.finish(sequence)?;                 // the end of a sequence; wait for it on any thread
//! ```
//!
//! What changes llama.cpp's memory has a call beside it, with `request = tap.request(s)?` and
//! `capturer = tap.capturer()?`:
//!
//! ```text
//! llama_memory_seq_rm(m, s, p, -1)        capturer.truncate(request, p)?                  the tail is dropped: rejected drafts, an edited prompt
//! llama_memory_seq_cp(m, s, to, -1, p)    tap.adopt(to, capturer.fork(request, p)?)?      several samples of one prompt
//! ```
//!
//! Everything is called on the thread that calls llama_decode; a [`Capturer`] and routings may be
//! used on any. Limits: the model's layers run on the CPU; one memory for all sequences
//! (`kv_unified`, or one sequence), so that the engine runs rows in the order of the batch; no
//! recurrent layers, which run them in another.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_void};
use std::rc::Rc;

use llama_cpp_sys_2 as llama;
use routecap::{
    ALL, Capturer, Config, Filing, Forward, IssueOptions, RequestId, Routing, Snapshot, Source,
    Span, Step, Stream,
};

pub type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

const TOPK: &str = "ffn_moe_topk-"; // what llama.cpp calls the experts chosen in a layer: this, and the decoder layer's number
const SLOTS: u32 = 4;

/// A decoder layer that has experts: of how many it chooses how many.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MoeLayer {
    pub decoder_layer: i32,
    pub experts: u32,
    pub k: u32,
}

pub struct Tap {
    seen: Rc<RefCell<Seen>>, // the engine holds a pointer to it
    capturer: Option<Capturer>,
    requests: HashMap<llama::llama_seq_id, RequestId>,
    max_rows: u32, // of a batch
    step: Step,    // the last one issued
}

/// What the callback knows.
#[derive(Default)]
struct Seen {
    listening: bool,       // the warm-up forward: note the layers
    layers: Vec<MoeLayer>, // that it had
    forward: Option<Forward>,
    layer_of: HashMap<i32, u32>,     // captured layer of a decoder layer
    tokens: Vec<llama::llama_token>, // of the batch that runs; empty if it is not captured
    embedding: Option<*const llama::ggml_tensor>, // the weights whose rows a micro-batch's tokens select first of all
    first_row: usize,                             // of the micro-batch that runs, in the batch
    rows: usize,                                  // of it
    outputs: Vec<i32>,                            // sink rows of those of its rows that want logits
    failure: Option<String>, // why the forward pass that runs will not be issued
}

impl Tap {
    /// Make the engine call the tap, as long as the context exists: so keep the tap that long, too.
    pub fn attach(params: &mut llama::llama_context_params) -> Result<Tap> {
        if params.cb_eval.is_some() {
            return Err("the context has a callback already: two taps on one context would take each other's place".into());
        }
        if !params.kv_unified && params.n_seq_max > 1 {
            return Err("several sequences need kv_unified: otherwise the engine runs the rows of a batch in an order of its own".into());
        }
        let seen = Rc::new(RefCell::new(Seen::default()));
        params.cb_eval = Some(on_tensor);
        params.cb_eval_user_data = Rc::as_ptr(&seen).cast_mut().cast();
        Ok(Tap { seen, capturer: None, requests: HashMap::new(), max_rows: 0, step: Step(0) })
    }

    /// Run one token through a new context and look which layers have experts; an error if none
    /// has. The context's memory is empty before and after.
    ///
    /// # Safety
    ///
    /// `context` was made with the parameters that this tap is attached to.
    pub unsafe fn discover(&mut self, context: *mut llama::llama_context) -> Result<Vec<MoeLayer>> {
        let decoded = unsafe {
            let model = llama::llama_get_model(context);
            if llama::llama_model_is_recurrent(model) || llama::llama_model_is_hybrid(model) {
                return Err("this model has recurrent layers, for which the engine runs the rows of a batch in an order of its own".into());
            }
            self.max_rows = llama::llama_n_batch(context);
            self.seen.borrow_mut().listening = true;
            let mut token = 0;
            let decoded = llama::llama_decode(context, llama::llama_batch_get_one(&mut token, 1));
            llama::llama_synchronize(context);
            llama::llama_memory_seq_rm(llama::llama_get_memory(context), 0, -1, -1);
            decoded
        };
        let mut seen = self.seen.borrow_mut();
        seen.listening = false;
        match (decoded, std::mem::take(&mut seen.layers)) {
            (0, layers) if layers.is_empty() => Err(format!(
                "this model has no MoE layers: it computes no tensor called {TOPK}<layer>"
            )
            .into()),
            (0, layers) => Ok(layers),
            (status, _) => {
                Err(format!("the warm-up failed: llama_decode returned {status}").into())
            }
        }
    }

    /// Create the capturer: of the layers that were discovered, or of some of them.
    pub fn start(
        &mut self,
        layers: &[MoeLayer],
        configure: impl FnOnce(Config) -> Config,
    ) -> Result<()> {
        let k = layers.first().ok_or("there are no layers to capture")?.k;
        if layers.iter().any(|layer| layer.k != k) {
            return Err("layers differ in how many experts they choose".into());
        }
        let config = Config::host()
            .layers(layers.len() as u32)
            .k(k)
            .layer_experts(layers.iter().map(|layer| layer.experts).collect::<Vec<_>>())
            .layer_map(layers.iter().map(|layer| layer.decoder_layer).collect::<Vec<_>>())
            .rows(self.max_rows) // of a batch; micro-batches change nothing in that
            .slots(SLOTS);
        let (capturer, forward) = configure(config).create()?;
        self.capturer = Some(capturer);
        let mut seen = self.seen.borrow_mut();
        seen.forward = Some(forward);
        seen.layer_of =
            (0..).zip(layers).map(|(captured, layer)| (layer.decoder_layer, captured)).collect();
        Ok(())
    }

    pub fn capturer(&self) -> Result<&Capturer> {
        Ok(self.capturer.as_ref().ok_or("the tap was not started")?)
    }

    pub fn request(&self, sequence: llama::llama_seq_id) -> Result<RequestId> {
        Ok(*self
            .requests
            .get(&sequence)
            .ok_or_else(|| format!("sequence {sequence} is not being captured"))?)
    }

    pub fn open(&mut self, sequence: llama::llama_seq_id) -> Result<RequestId> {
        let request = self.capturer()?.open()?;
        self.adopt(sequence, request)
    }

    /// Take a request as that of a sequence.
    pub fn adopt(
        &mut self,
        sequence: llama::llama_seq_id,
        request: RequestId,
    ) -> Result<RequestId> {
        if self.requests.contains_key(&sequence) {
            self.capturer()?.close(request)?;
            return Err(format!("sequence {sequence} is being captured already").into());
        }
        self.requests.insert(sequence, request);
        Ok(request)
    }

    pub fn finish(&mut self, sequence: llama::llama_seq_id) -> Result<Routing> {
        let routing = self.capturer()?.finish(self.request(sequence)?, ALL)?;
        self.requests.remove(&sequence);
        Ok(routing)
    }

    /// llama_decode, captured. What it returns, unless that is 0, is an error. So is a forward pass
    /// that the tap does not understand: it has run, and its rows will be missing.
    ///
    /// # Safety
    ///
    /// As of `llama_decode`, with a batch whose arrays are all there, as those of
    /// `llama_batch_init` are; `context` is the one of `discover`.
    pub unsafe fn decode(
        &mut self,
        context: *mut llama::llama_context,
        batch: llama::llama_batch,
    ) -> Result<()> {
        let rows = batch.n_tokens as usize;
        // A step that finds no slot free would be lost: wait for an old one, which has long landed
        // unless this machine has no core to spare.
        if self.step.0 >= u64::from(SLOTS) {
            let _ = self.capturer()?.finalize(Step(self.step.0 + 1 - u64::from(SLOTS)))?;
        }
        let spans = unsafe {
            let tokens = std::slice::from_raw_parts(batch.token, rows);
            self.seen.borrow_mut().begin(tokens)?;
            let status = llama::llama_decode(context, batch);
            if status != 0 {
                self.seen.borrow_mut().end();
                return Err(format!("llama_decode returned {status}").into());
            }
            self.spans(&batch)
        };
        let mut seen = self.seen.borrow_mut();
        let ran = seen.first_row + seen.rows;
        seen.end();
        if let Some(failure) = seen.failure.take() {
            return Err(failure.into());
        }
        if ran != rows {
            return Err(format!("the engine ran {ran} of the batch's {rows} rows").into());
        }
        let issued = seen.forward()?.issue(
            &spans,
            &IssueOptions::new().snapshot(Snapshot::Make),
            Stream::HOST,
        )?;
        self.step = issued.ticket();
        match issued.filing() {
            Filing::Whole => Ok(()),
            filing => Err(format!("routing will be missing: {filing:?}").into()),
        }
    }

    /// Whose are the rows of a batch? Each run of consecutive positions of one sequence is a span;
    /// a token may belong to several sequences.
    unsafe fn spans(&self, batch: &llama::llama_batch) -> Vec<Span> {
        let mut spans: Vec<Span> = Vec::new();
        for row in 0..batch.n_tokens as usize {
            let (position, sequences) = unsafe {
                let count = *batch.n_seq_id.add(row) as usize;
                (
                    *batch.pos.add(row) as u64,
                    std::slice::from_raw_parts(*batch.seq_id.add(row), count),
                )
            };
            for request in sequences.iter().filter_map(|sequence| self.requests.get(sequence)) {
                match spans.last_mut() {
                    Some(last)
                        if last.request() == *request
                            && u64::from(last.sink_row() + last.rows()) == row as u64
                            && last.position() + u64::from(last.rows()) == position =>
                    {
                        let rows = last.rows() + 1;
                        *last = Span::new(*request, last.position(), last.sink_row(), rows)
                            .shared(last.is_shared() || sequences.len() > 1);
                    }
                    _ => spans.push(
                        Span::new(*request, position, row as u32, 1).shared(sequences.len() > 1),
                    ),
                }
            }
        }
        spans
    }
}

impl Seen {
    fn forward(&mut self) -> Result<&mut Forward> {
        Ok(self.forward.as_mut().ok_or("the tap was not started")?)
    }

    fn begin(&mut self, tokens: &[llama::llama_token]) -> Result<()> {
        self.forward()?.begin(tokens.len() as u32, Stream::HOST)?;
        self.tokens = tokens.to_vec();
        (self.first_row, self.rows, self.failure) = (0, 0, None);
        Ok(())
    }

    fn end(&mut self) {
        self.tokens.clear(); // what runs outside of `decode` is not captured; what is not issued, the next begin discards
    }

    /// The engine is about to run `tensor`: does it say something about the rows of the
    /// micro-batch? Graph inputs lie in memory that is used again as soon as their last consumer
    /// has run, so they must be read when a consumer is asked about, and never when a result is
    /// there.
    unsafe fn identify(&mut self, tensor: &llama::ggml_tensor) {
        let input = tensor.src[1];
        if tensor.op != llama::GGML_OP_GET_ROWS || input.is_null() {
            return;
        }
        let name = unsafe { name(input) };
        if name.contains("inp_tokens")
            && *self.embedding.get_or_insert(tensor.src[0]) == tensor.src[0]
        {
            self.first_row += self.rows;
            let tokens = unsafe { integers(input) };
            self.rows = tokens.len();
            self.outputs.clear();
            if self.tokens.get(self.first_row..self.first_row + self.rows) != Some(&tokens[..]) {
                self.failure = Some(
                    "the engine runs the rows of the batch in an order that this tap does not know"
                        .into(),
                );
            }
        } else if name.contains("out_ids") {
            self.outputs =
                unsafe { integers(input) }.iter().map(|row| self.first_row as i32 + row).collect();
        }
    }

    /// The experts of one layer are chosen: a view [rows][k] into all experts sorted by weight, so
    /// its rows are `experts` elements apart.
    unsafe fn record(&mut self, topk: &llama::ggml_tensor, layer: u32) -> Result<()> {
        let (k, rows, stride) =
            (topk.ne[0] as usize, topk.ne[1] as usize, topk.nb[1] / size_of::<i32>());
        if rows == 0 {
            return Ok(());
        }
        let buffer =
            unsafe { if topk.view_src.is_null() { topk.buffer } else { (*topk.view_src).buffer } };
        if topk.type_ != llama::GGML_TYPE_I32
            || topk.nb[0] != size_of::<i32>()
            || !unsafe { llama::ggml_backend_buffer_is_host(buffer) }
        {
            return Err(
                "the experts chosen are not integers in host memory: run all layers on the CPU"
                    .into(),
            );
        }
        let ids =
            unsafe { std::slice::from_raw_parts(topk.data.cast::<i32>(), (rows - 1) * stride + k) };
        let mut source = Source::new(ids, rows as u32)
            .columns(k as u32)
            .row_stride(stride as i64)
            .first_row(self.first_row as u32);
        let outputs = std::mem::take(&mut self.outputs);
        if rows != self.rows {
            // The last layer: only rows that want logits go through it, by an index list. The other
            // rows of this layer do not exist.
            if rows != outputs.len() {
                let (all, wanted) = (self.rows, outputs.len());
                return Err(format!(
                    "a layer has {rows} rows, the micro-batch {all}, of which {wanted} want logits"
                )
                .into());
            }
            source = source.row_index(&outputs);
        }
        self.forward()?.record(layer, &source, Stream::HOST)?;
        self.outputs = outputs;
        Ok(())
    }
}

/// llama.cpp calls this for every tensor of its graph, first to ask whether it is of interest, and
/// again behind its computation if it is.
unsafe extern "C" fn on_tensor(
    tensor: *mut llama::ggml_tensor,
    ask: bool,
    user: *mut c_void,
) -> bool {
    let (tensor, mut seen) = unsafe { (&*tensor, (*user.cast::<RefCell<Seen>>()).borrow_mut()) };
    let capturing = !seen.tokens.is_empty() && seen.failure.is_none();
    if ask && capturing {
        unsafe { seen.identify(tensor) };
    }
    let Some(decoder_layer) =
        unsafe { name(tensor) }.strip_prefix(TOPK).and_then(|number| number.parse().ok())
    else {
        return !ask; // false behind a computation would end it
    };
    if seen.listening {
        if !ask {
            let all = unsafe { &*tensor.src[0] }; // one number for each expert
            seen.layers.push(MoeLayer {
                decoder_layer,
                experts: all.ne[0] as u32,
                k: tensor.ne[0] as u32,
            });
        }
        return true;
    }
    match seen.layer_of.get(&decoder_layer).copied() {
        Some(layer) if capturing => {
            if !ask && let Err(error) = unsafe { seen.record(tensor, layer) } {
                seen.failure = Some(error.to_string());
            }
            true
        }
        _ => !ask,
    }
}

unsafe fn name<'a>(tensor: *const llama::ggml_tensor) -> &'a str {
    unsafe { CStr::from_ptr((&raw const (*tensor).name).cast::<c_char>()) }
        .to_str()
        .unwrap_or_default()
}

/// A list of 32-bit integers that the engine holds.
unsafe fn integers(tensor: *const llama::ggml_tensor) -> Vec<i32> {
    unsafe {
        let mut all = vec![0; (*tensor).ne[0] as usize];
        llama::ggml_backend_tensor_get(tensor, all.as_mut_ptr().cast(), 0, size_of_val(&all[..]));
        all
    }
}
