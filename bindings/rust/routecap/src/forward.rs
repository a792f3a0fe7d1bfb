//! The forward path: what one thread at a time does around and inside a forward pass.

use std::ffi::c_void;
use std::fmt;

use crate::error::{Error, ErrorKind, ItemStatus, Result, check};
use crate::memory::Checker;
use crate::source::place_of;
use crate::step::status_for_each;
use crate::{
    Backend, Capturer, DType, Element, IssueOptions, Issued, LayerProbe, LayerSource, Logits,
    Received, Router, Source, Span, Step, Stream, WeightElement, WeightsType, sys,
};

/// Where the ids of one layer, or of several at equal distances, are written (`routecap_sink`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sink {
    /// Element of row 0, column 0 of the (first) layer, on the capturer's device.
    pub ids: *mut c_void,
    /// I16, I32 or I64.
    pub dtype: DType,
    /// Rows present.
    pub rows: u32,
    /// Columns of a row, next to one another.
    pub k: u32,
    /// Elements from one row to the next, k or more; 0 means k.
    pub row_stride: i64,
    /// Elements from one layer to the next; 0 means `rows * row_stride`.
    pub layer_stride: i64,
    /// The bytes at `ids`, to be checked; 0: not stated, as of what [`Forward::sink`] gives.
    pub ids_bytes: u64,
    /// [`Config::weights`](crate::Config::weights) if `weights` is given.
    pub weights_dtype: Option<WeightsType>,
    /// The weights of the same cells, with the same strides in elements of `weights_dtype`; NULL:
    /// without weights, and those of the layer are missing. Each column of a row that is begun is
    /// NaN until it is written.
    pub weights: *mut c_void,
    /// The bytes at `weights`, checked as `ids_bytes`; 0: not stated.
    pub weights_bytes: u64,
}

// SAFETY: it is an address and numbers; to write there is unsafe already.
unsafe impl Send for Sink {}
// SAFETY: as above.
unsafe impl Sync for Sink {}

/// The forward path of a capturer: the calls that take a stream, and those of the sink.
///
/// These are made by one thread at a time, so there is one `Forward` for each capturer, and its
/// methods take `&mut self`. It may move between threads. Whatever else is done with requests and
/// steps goes through the [`Capturer`], on any thread at the same time.
///
/// One forward pass after another: [`begin`](Self::begin); the routers write the sink, or
/// [`record`](Self::record) copies their ids there; [`snapshot`](Self::snapshot);
/// [`issue`](Self::issue). Forget one of these calls and rows are missing and reported as missing;
/// they are never wrong.
///
/// Nothing here waits for the device, but for [`probe`](Self::probe). A call that is *capturable*
/// may be made on a stream that is being captured into a CUDA graph, and then runs at each replay;
/// one that is not returns [`Capturing`](crate::ErrorKind::Capturing) there, and the capture goes
/// on. Every call may return [`Device`](crate::ErrorKind::Device) or
/// [`DeviceLost`](crate::ErrorKind::DeviceLost).
///
/// ```
/// use routecap::{ALL, Config, IssueOptions, Source, Span, Stream};
/// # fn main() -> routecap::Result<()> {
/// let (capturer, mut forward) = Config::host().layers(1).k(2).experts(8).rows(16).create()?;
/// let request = capturer.open()?;
///
/// let topk: [i32; 6] = [3, 1, 7, 0, 2, 5]; // 3 tokens, 2 experts each
/// forward.begin(3, Stream::HOST)?;
/// forward.record(0, &Source::new(&topk, 3), Stream::HOST)?;
/// forward.snapshot(Stream::HOST)?;
/// forward.issue(&[Span::new(request, 0, 0, 3)], &IssueOptions::new(), Stream::HOST)?.step()?;
///
/// let routing = capturer.finish(request, ALL)?;
/// assert!(routing.wait()?.is_complete());
/// # Ok(())
/// # }
/// ```
///
/// It cannot be cloned, or used by two threads at once:
///
/// ```compile_fail
/// # let (_, forward) = routecap::Config::host().layers(1).k(2).experts(8).rows(16).create().unwrap();
/// let other = forward.clone();
/// ```
///
/// ```compile_fail
/// # use routecap::{Config, Stream};
/// # let (_, mut forward) = Config::host().layers(1).k(2).experts(8).rows(16).create().unwrap();
/// std::thread::scope(|scope| {
///     scope.spawn(|| forward.begin(1, Stream::HOST));
///     scope.spawn(|| forward.begin(1, Stream::HOST));
/// });
/// ```
pub struct Forward {
    capturer: Capturer,
    checker: Checker,
    /// Sink rows that a begin has written, and that are therefore initialised in the library's
    /// sink.
    begun: u32,
    /// Kept for its memory.
    layer_sources: Vec<sys::routecap_layer_source>,
}

// SAFETY: the functions may be called on any thread, one at a time; what `layer_sources` points to
// is not looked at between calls.
unsafe impl Send for Forward {}
// SAFETY: nothing is called through a shared reference.
unsafe impl Sync for Forward {}

impl fmt::Debug for Forward {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Forward")
            .field("capturer", &self.capturer)
            .field("begun", &self.begun)
            .finish()
    }
}

impl Forward {
    pub(crate) fn new(capturer: Capturer) -> Forward {
        let checker =
            Checker { place: (!capturer.is_disabled()).then(|| place_of(capturer.backend())) };
        Forward { capturer, checker, begun: 0, layer_sources: Vec::new() }
    }

    /// The capturer that this is the forward path of.
    pub fn capturer(&self) -> &Capturer {
        &self.capturer
    }

    // ---- The sink

    /// Adopt memory of the engine as the sink of `layers` layers from `first_layer` on, instead of
    /// the library's (`routecap_sink_bind`).
    ///
    /// A router or fused kernel then writes its ids there and nothing has to be recorded. Only
    /// where nothing rewrites the ids before the snapshot. Addresses never change: other memory for
    /// a layer that has adopted some, or whose address was given out, is refused, and after the
    /// first begin everything but what is bound already. Not capturable.
    ///
    /// # Errors
    ///
    /// [`UnknownLayer`](crate::ErrorKind::UnknownLayer);
    /// [`ShapeMismatch`](crate::ErrorKind::ShapeMismatch) for rows or strides too small, or another
    /// k; [`DType`](crate::ErrorKind::DType); [`State`](crate::ErrorKind::State) if the address of
    /// a layer is fixed; [`Argument`](crate::ErrorKind::Argument) for memory that is not the
    /// device's own.
    ///
    /// # Safety
    ///
    /// `sink` describes memory, of ids and of weights, that the capturer's device (or on the host backend this process) may
    /// read and write, of which every element is initialised. It stays in place, and nothing but
    /// this `Forward` and the routers that it is given to use it, until capturer and `Forward` are
    /// dropped, and as long as graphs that write it are replayed.
    pub unsafe fn bind(&mut self, first_layer: u32, layers: u32, sink: &Sink) -> Result<()> {
        let raw = sys::routecap_sink {
            struct_size: size_of::<sys::routecap_sink>() as u32,
            dtype: sink.dtype as i32,
            ids: sink.ids,
            rows: sink.rows,
            k: sink.k,
            row_stride: sink.row_stride,
            layer_stride: sink.layer_stride,
            ids_bytes: sink.ids_bytes,
            weights_dtype: sink.weights_dtype.map_or(0, |dtype| dtype.dtype() as i32),
            reserved: 0,
            weights: sink.weights,
            weights_bytes: sink.weights_bytes,
        };
        // SAFETY: as the caller promises.
        check(unsafe { sys::routecap_sink_bind(self.capturer.as_raw(), first_layer, layers, &raw) })
            .map(drop)
    }

    /// Where a layer is written: what to give a router as its output of ids
    /// (`routecap_sink_layer`). From now on the address is fixed. `None`, which leaves it unfixed,
    /// if the layer has no memory: of a disabled capturer, or yet to be bound.
    ///
    /// Write a row at most once in a step, between its begin and its snapshot, in the order of the
    /// stream.
    ///
    /// # Errors
    ///
    /// [`UnknownLayer`](crate::ErrorKind::UnknownLayer).
    pub fn sink(&mut self, layer: u32) -> Result<Option<Sink>> {
        let mut raw = sys::routecap_sink {
            struct_size: size_of::<sys::routecap_sink>() as u32,
            ..Default::default()
        };
        // SAFETY: `raw` has the size that it says.
        check(unsafe { sys::routecap_sink_layer(self.capturer.as_raw(), layer, &mut raw) })?;
        if raw.ids.is_null() {
            return Ok(None);
        }
        let dtype = DType::of(raw.dtype).ok_or_else(|| {
            Error::new(ErrorKind::Internal, format!("a sink of dtype {}", raw.dtype))
        })?;
        let (row_stride, layer_stride) = (raw.row_stride, raw.layer_stride);
        Ok(Some(Sink {
            ids: raw.ids,
            dtype,
            rows: raw.rows,
            k: raw.k,
            row_stride,
            layer_stride,
            ids_bytes: 0,
            weights_dtype: WeightsType::of(raw.weights_dtype),
            weights: raw.weights,
            weights_bytes: 0,
        }))
    }

    /// On the host backend: the rows of a layer that were begun, to write its ids into. Row r,
    /// column c is element `r * row_stride + c` of what [`sink`](Self::sink) says. As there, write
    /// a row at most once in a step.
    ///
    /// # Errors
    ///
    /// [`UnknownLayer`](crate::ErrorKind::UnknownLayer); [`State`](crate::ErrorKind::State) before
    /// the first begin, or if the layer has no memory; [`DType`](crate::ErrorKind::DType) if the
    /// sink has another; [`Argument`](crate::ErrorKind::Argument) on the CUDA backend.
    pub fn sink_mut<T: Element>(&mut self, layer: u32) -> Result<&mut [T]> {
        let (sink, len) = self.begun_rows(layer)?;
        if sink.dtype != T::DTYPE {
            return Err(Error::new(
                ErrorKind::DType,
                format!("the sink's elements are {:?}", sink.dtype),
            ));
        }
        // SAFETY: in the library's sink, which has no gaps, begin has written these rows; of
        // adopted memory `bind` demands it. Nobody else uses the sink while this `Forward` is
        // borrowed: on the host backend it is read and written by calls that need it.
        Ok(unsafe { std::slice::from_raw_parts_mut(sink.ids.cast(), len) })
    }

    /// The same of the weights, beside the ids of [`sink_mut`](Self::sink_mut). Each is NaN until it is
    /// written.
    ///
    /// # Errors
    ///
    /// As [`sink_mut`](Self::sink_mut); [`State`](crate::ErrorKind::State) also if the layer has no
    /// memory for weights; [`DType`](crate::ErrorKind::DType) if the capturer's weights are others.
    pub fn sink_weights_mut<W: WeightElement>(&mut self, layer: u32) -> Result<&mut [W]> {
        let (sink, len) = self.begun_rows(layer)?;
        if sink.weights.is_null() {
            return Err(Error::new(
                ErrorKind::State,
                format!("layer {layer} has no sink for weights"),
            ));
        }
        let weights = self.capturer.weights_type();
        if weights.map(WeightsType::dtype) != Some(W::DTYPE) {
            return Err(Error::new(ErrorKind::DType, format!("the weights are {weights:?}")));
        }
        // SAFETY: as in `sink_mut`.
        Ok(unsafe { std::slice::from_raw_parts_mut(sink.weights.cast(), len) })
    }

    /// The sink of a layer on the host, and the elements of its rows that were begun.
    fn begun_rows(&mut self, layer: u32) -> Result<(Sink, usize)> {
        if self.capturer.backend() != Backend::Host {
            return Err(Error::new(ErrorKind::Argument, "the sink is memory of the device"));
        }
        let (Some(sink), 1..) = (self.sink(layer)?, self.begun) else {
            return Err(Error::new(
                ErrorKind::State,
                format!("layer {layer} has no rows that were begun"),
            ));
        };
        let stride = if sink.row_stride == 0 { i64::from(sink.k) } else { sink.row_stride };
        Ok((sink, (self.begun - 1) as usize * stride as usize + sink.k as usize))
    }

    // ---- A forward pass

    /// Begin a step: forget what the sink holds and expect up to `rows` rows, sink rows `0..rows`,
    /// from this forward pass (`routecap_step_begin`).
    ///
    /// Belongs at the head of the forward pass, before the first write and before streams of
    /// micro-batches fork. A begin after a forward that was never issued discards that forward.
    /// Capturable.
    ///
    /// # Errors
    ///
    /// [`Capacity`](crate::ErrorKind::Capacity) for more rows than the sink has.
    pub fn begin(&mut self, rows: u32, stream: Stream) -> Result<()> {
        // SAFETY: the capturer lives; a stream is what its constructor demands.
        check(unsafe { sys::routecap_step_begin(self.capturer.as_raw(), rows, stream.raw()) })?;
        self.begun = self.begun.max(rows);
        Ok(())
    }

    /// Copy the ids that a router chose into the sink of one layer (`routecap_layer_record`).
    ///
    /// Call it after top-k and before anything rewrites the ids. Rows of one layer may come in
    /// several calls (micro-batches, chunks) as long as they are disjoint: of a row recorded twice
    /// one is kept, the first where the order is known. Rows at or beyond the number begun are
    /// dropped and counted. Capturable. On the host backend the ids are copied before the call
    /// returns.
    ///
    /// # Errors
    ///
    /// [`UnknownLayer`](crate::ErrorKind::UnknownLayer); [`DType`](crate::ErrorKind::DType);
    /// [`ShapeMismatch`](crate::ErrorKind::ShapeMismatch) for fewer columns than k, and memory that
    /// is not as long as what is read; [`Capacity`](crate::ErrorKind::Capacity) for rows outside the
    /// sink; [`Conflict`](crate::ErrorKind::Conflict) for rows recorded already;
    /// [`State`](crate::ErrorKind::State) if the layer has no sink, or weights are given and it has
    /// none for weights; [`DType`](crate::ErrorKind::DType) for weights of another type than the
    /// capturer's;
    /// [`Argument`](crate::ErrorKind::Argument) for memory on the other side.
    /// Nothing is written then.
    pub fn record(&mut self, layer: u32, source: &Source<'_>, stream: Stream) -> Result<()> {
        let raw = source.checked(&self.checker, self.capturer.layer_k(layer))?;
        // SAFETY: the memory was checked to hold what is read, and slices live until the call
        // returns; memory of the device as its constructor demands.
        check(unsafe {
            sys::routecap_layer_record(self.capturer.as_raw(), layer, &raw, stream.raw())
        })
        .map(drop)
    }

    /// Copy the ids of several layers in one launch (of at most 64 layers each), where all of them
    /// are still there at the end of a forward pass (`routecap_layers_record`). `source` has what
    /// they have in common. Capturable.
    ///
    /// # Errors
    ///
    /// As [`record`](Self::record); if one of them is refused, nothing is recorded.
    /// [`Argument`](crate::ErrorKind::Argument) for a layer that is named twice,
    /// [`DType`](crate::ErrorKind::DType) for ids of several dtypes.
    pub fn record_layers(
        &mut self,
        source: &Source<'_>,
        layers: &[LayerSource<'_>],
        stream: Stream,
    ) -> Result<()> {
        let k = layers.iter().map(|source| self.capturer.layer_k(source.layer)).max();
        let raw = source.checked_layers(
            &self.checker,
            k.unwrap_or(self.capturer.k()),
            layers,
            &mut self.layer_sources,
        )?;
        let (data, count) = (self.layer_sources.as_ptr(), self.layer_sources.len());
        let size = size_of::<sys::routecap_layer_source>();
        // SAFETY: as in `record`.
        check(unsafe {
            sys::routecap_layers_record(
                self.capturer.as_raw(),
                &raw,
                data,
                size,
                count,
                stream.raw(),
            )
        })
        .map(drop)
    }

    /// Choose experts from logits, into the sink of one layer (`routecap_layer_route`), and their
    /// weights if these are wanted.
    ///
    /// For kernels that route internally and expose no ids: ties and near ties may fall
    /// differently, so the layer has to be declared as recomputed
    /// ([`Config::layer_provenance`](crate::Config::layer_provenance)). Capturable. On the host
    /// backend the work is done before the call returns.
    ///
    /// # Errors
    ///
    /// [`UnknownLayer`](crate::ErrorKind::UnknownLayer); [`DType`](crate::ErrorKind::DType)
    /// (logits, bias or tokens); [`ShapeMismatch`](crate::ErrorKind::ShapeMismatch) for memory that
    /// is not as long as what is read or written; [`Argument`](crate::ErrorKind::Argument) (also
    /// groups that do not divide the experts, and memory on the other side);
    /// [`Capacity`](crate::ErrorKind::Capacity); [`Conflict`](crate::ErrorKind::Conflict);
    /// [`State`](crate::ErrorKind::State) for a layer that is captured.
    pub fn route(
        &mut self,
        layer: u32,
        router: &Router<'_>,
        logits: &mut Logits<'_>,
        stream: Stream,
    ) -> Result<()> {
        if self.checker.place.is_some() && layer as usize >= self.capturer.layers() {
            return Err(Error::new(
                ErrorKind::UnknownLayer,
                format!("layer {layer} of {}", self.capturer.layers()),
            ));
        }
        let experts = logits.columns(self.capturer.experts(layer));
        let k = self.capturer.layer_k(layer);
        let router = router.checked(&self.checker, k, experts)?;
        let logits = logits.checked(&self.checker, k, experts)?;
        // SAFETY: as in `record`; what is written is borrowed exclusively.
        check(unsafe {
            sys::routecap_layer_route(self.capturer.as_raw(), layer, &router, &logits, stream.raw())
        })
        .map(drop)
    }

    /// Look at what the last forward pass wrote, in layers 0, 1, ... as many as `layers` holds
    /// (`routecap_capturer_probe`): for one warm-up at start, of many different tokens. Whether
    /// something was found: see each layer.
    ///
    /// Call it between a begin with its forward and what issues or discards that; it changes
    /// nothing. `rows` are those to look at, from row 0 on. Waits until the stream has run. Not
    /// capturable.
    ///
    /// # Errors
    ///
    /// [`UnknownLayer`](crate::ErrorKind::UnknownLayer) for more layers than there are;
    /// [`Capacity`](crate::ErrorKind::Capacity) for rows beyond those begun;
    /// [`State`](crate::ErrorKind::State) if no row is begun.
    pub fn probe(&mut self, rows: u32, layers: &mut [LayerProbe], stream: Stream) -> Result<bool> {
        let (data, count) = (layers.as_mut_ptr().cast(), layers.len());
        // SAFETY: `layers` are that many, of C's layout.
        let call = unsafe {
            sys::routecap_capturer_probe(
                self.capturer.as_raw(),
                rows,
                data,
                size_of::<LayerProbe>(),
                count,
                stream.raw(),
            )
        };
        check(call).map(|status| status == sys::ROUTECAP_PARTIAL)
    }

    /// Add what this rank executed of one dispatch to its table (`routecap_received_read`).
    /// Experimental.
    ///
    /// Capturable; a graph has the sizes of the call that was captured. On the host backend the
    /// work is done before the call returns.
    ///
    /// # Errors
    ///
    /// [`DType`](crate::ErrorKind::DType); [`Argument`](crate::ErrorKind::Argument) (a number
    /// beyond its limit, memory that is missing, too short or on the other side);
    /// [`ShapeMismatch`](crate::ErrorKind::ShapeMismatch) (experts not a multiple of the ranks, or
    /// rows beyond those of the dispatch).
    pub fn read_received(&mut self, received: &mut Received<'_>, stream: Stream) -> Result<()> {
        let raw = received.checked(&self.checker)?;
        // SAFETY: as in `record`; what is written is borrowed exclusively.
        check(unsafe { sys::routecap_received_read(self.capturer.as_raw(), &raw, stream.raw()) })
            .map(drop)
    }

    /// Count what the sum of all ranks' tables has of the ids that the router of this rank chose
    /// (`routecap_received_compare`). Experimental.
    ///
    /// # Errors
    ///
    /// As [`read_received`](Self::read_received), and
    /// [`ShapeMismatch`](crate::ErrorKind::ShapeMismatch) for more tokens than `tokens_per_rank`.
    pub fn compare_received(&mut self, received: &mut Received<'_>, stream: Stream) -> Result<()> {
        let raw = received.checked(&self.checker)?;
        // SAFETY: as in `record`; what is written is borrowed exclusively.
        check(unsafe { sys::routecap_received_compare(self.capturer.as_raw(), &raw, stream.raw()) })
            .map(drop)
    }

    /// Take a snapshot of the rows begun, so that the next forward may write the sink
    /// (`routecap_step_snapshot`).
    ///
    /// Belongs behind the last write of the forward pass, on a stream that has joined all writers.
    /// A second snapshot of one step makes its rows missing. Capturable. On the host backend the
    /// rows are copied before the call returns.
    pub fn snapshot(&mut self, stream: Stream) -> Result<()> {
        // SAFETY: as in `begin`.
        check(unsafe { sys::routecap_step_snapshot(self.capturer.as_raw(), stream.raw()) })
            .map(drop)
    }

    /// Hand the last forward pass to the library: say which of its rows belong to which request
    /// (`routecap_step_issue`). They will be filed in the background, in order of issue; the ticket
    /// refers to the step from now on.
    ///
    /// Call it after the forward, on a stream that is ordered behind it, and before anything that
    /// begins another. Sink rows that no span names are forgotten. A span of an unknown or closed
    /// request, or one that is charged more memory than the budget has, is skipped and counted; the
    /// others are not affected. Rows that were accepted are refused later only where the system
    /// itself has no memory left.
    ///
    /// At most [`slots`](crate::Config::slots) steps may be in flight. One that is issued beyond
    /// them is lost: it has a ticket, and all its rows are missing, which [`Issued::step`] makes an
    /// error and [`Issued::is_lost`] tells. On the host backend nothing is lost without
    /// [`may_lose`](crate::Config::may_lose). Not capturable.
    ///
    /// # Errors
    ///
    /// [`Argument`](crate::ErrorKind::Argument) (a span without rows, positions beyond
    /// [`MAX_POSITION`](crate::MAX_POSITION), empty bounds, no or too few positions where a span
    /// needs them); [`Capacity`](crate::ErrorKind::Capacity) for sink rows outside the sink;
    /// [`Conflict`](crate::ErrorKind::Conflict) for a sink row in two spans that are not
    /// [shared](crate::Span::shared);
    /// [`Overlap`](crate::ErrorKind::Overlap); [`DType`](crate::ErrorKind::DType) (positions). The
    /// step is then neither issued nor discarded. A [checked](crate::Config::checked) capturer also
    /// returns here, once, the slip that a device found in an earlier step.
    pub fn issue(
        &mut self,
        spans: &[Span],
        options: &IssueOptions<'_>,
        stream: Stream,
    ) -> Result<Issued> {
        self.issue_raw(spans, options, std::ptr::null_mut(), stream)
    }

    /// The same, with the status of each span in `status`, which is as long as `spans`: done,
    /// [`UnknownRequest`](crate::ErrorKind::UnknownRequest) or
    /// [`NoMemory`](crate::ErrorKind::NoMemory).
    ///
    /// # Errors
    ///
    /// As [`issue`](Self::issue).
    pub fn issue_into(
        &mut self,
        spans: &[Span],
        options: &IssueOptions<'_>,
        status: &mut [ItemStatus],
        stream: Stream,
    ) -> Result<Issued> {
        status_for_each(status.len(), spans.len())?;
        self.issue_raw(spans, options, status.as_mut_ptr().cast(), stream)
    }

    fn issue_raw(
        &mut self,
        spans: &[Span],
        options: &IssueOptions<'_>,
        status: *mut i32,
        stream: Stream,
    ) -> Result<Issued> {
        let options = options.checked(&self.checker, spans)?;
        let (data, count) = (spans.as_ptr().cast(), spans.len());
        let mut step = Step(0);
        // SAFETY: `spans` are that many, of C's layout; `status` is NULL or as many statuses;
        // positions as in `record`.
        let call = unsafe {
            sys::routecap_step_issue(
                self.capturer.as_raw(),
                data,
                size_of::<Span>(),
                count,
                &options,
                status,
                &mut step.0,
                stream.raw(),
            )
        };
        check(call).map(|status| Issued::new(step, status))
    }

    /// Forget the last forward pass: for warm-up, profiling and dummy runs that will not be issued
    /// (`routecap_step_discard`). The next begin does the same. Not capturable.
    pub fn discard(&mut self, stream: Stream) -> Result<()> {
        // SAFETY: as in `begin`.
        check(unsafe { sys::routecap_step_discard(self.capturer.as_raw(), stream.raw()) }).map(drop)
    }
}
