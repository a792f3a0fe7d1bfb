//! Captures the routing of the models of candle-transformers that call an observer behind their
//! routers (patch.sh): take this file as it is.
//!
//! ```text
//! let mut tap = Tap::new(&layers, k, experts, max_rows)?;   // once for a thread that runs a model
//! let request = tap.capturer().open()?;                     // for every sequence
//! let span = Span::new(request, position, row, tokens);     // for every sequence of a forward pass; its rows are [batch, tokens], flattened
//! let logits = tap.forward(rows, &[span], || model.forward(&input, position))?;
//! let routing = tap.capturer().finish(request, rows)?;      // the end of a sequence; wait for it on any thread
//! ```

use std::cell::RefCell;
use std::rc::Rc;

use candle_core::{Storage, Tensor};
use candle_transformers::routing::set_observer;
use routecap::{Capturer, Config, Filing, Forward, IssueOptions, Source, Span, Step, Stream};

pub type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

const SLOTS: u32 = 4;

pub struct Tap {
    capturer: Capturer,
    seen: Rc<RefCell<Seen>>,
    layers: u32,
    step: Step,
}

/// What the observer knows.
struct Seen {
    forward: Forward,
    layer: Option<u32>, // the next one to run, of the forward pass that is captured
}

impl Tap {
    /// `layers` are the decoder layers that have experts, `rows` the most tokens of one forward
    /// pass.
    pub fn new(layers: &[i32], k: u32, experts: u32, rows: u32) -> Result<Tap> {
        if layers.is_empty() {
            return Err("this model has no MoE layers".into());
        }
        let count = layers.len() as u32;
        let (capturer, forward) = Config::host()
            .layers(count)
            .k(k)
            .experts(experts)
            .rows(rows)
            .layer_map(layers)
            .slots(SLOTS)
            .create()?;
        let seen = Rc::new(RefCell::new(Seen { forward, layer: None }));
        let observer = seen.clone();
        if let Some(other) =
            set_observer(Some(Box::new(move |ids| observer.borrow_mut().record(ids))))
        {
            set_observer(Some(other));
            return Err(
                "this thread has an observer already: two taps would take each other's place"
                    .into(),
            );
        }
        Ok(Tap { capturer, seen, layers: count, step: Step(0) })
    }

    pub fn capturer(&self) -> &Capturer {
        &self.capturer
    }

    /// Captures one forward pass of `rows` tokens. After an error nothing of it was captured.
    pub fn forward<T>(
        &mut self,
        rows: u32,
        spans: &[Span],
        run: impl FnOnce() -> candle_core::Result<T>,
    ) -> Result<T> {
        // A step that finds no slot free would be lost: wait for an old one, which has long landed
        // unless this machine has no core to spare.
        if self.step.0 >= u64::from(SLOTS) {
            let _ = self.capturer.finalize(Step(self.step.0 + 1 - u64::from(SLOTS)))?;
        }
        self.seen.borrow_mut().forward.begin(rows, Stream::HOST)?;
        self.seen.borrow_mut().layer = Some(0);
        let result = run();
        let mut seen = self.seen.borrow_mut();
        let ran = seen.layer.take().unwrap_or_default();
        let result = result?;
        if ran != self.layers {
            let layers = self.layers;
            return Err(
                format!("{ran} of {layers} layers called the observer: is this the patched candle-transformers, and this model?").into()
            );
        }
        seen.forward.snapshot(Stream::HOST)?;
        let issued = seen.forward.issue(spans, &IssueOptions::new(), Stream::HOST)?;
        self.step = issued.ticket();
        match issued.filing() {
            Filing::Whole => Ok(result),
            filing => Err(format!("routing will be missing: {filing:?}").into()),
        }
    }
}

impl Drop for Tap {
    fn drop(&mut self) {
        set_observer(None);
    }
}

impl Seen {
    /// A router has chosen: u32 [tokens, k] with any strides, read in place.
    fn record(&mut self, ids: &Tensor) -> candle_core::Result<()> {
        let Some(layer) = self.layer else { return Ok(()) }; // a forward pass that is not captured
        self.layer = Some(layer + 1);
        let (rows, columns) = ids.dims2()?;
        let (storage, layout) = ids.storage_and_layout();
        let Storage::Cpu(memory) = &*storage else {
            candle_core::bail!("run the model on the CPU")
        };
        let source = Source::new(memory.as_slice::<u32>()?, rows as u32)
            .start(layout.start_offset())
            .columns(columns as u32)
            .row_stride(layout.stride()[0] as i64)
            .column_stride(layout.stride()[1] as i64);
        self.forward.record(layer, &source, Stream::HOST).map_err(candle_core::Error::wrap)
    }
}
