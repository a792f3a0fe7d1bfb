//! Steps: which of their rows belong to whom, and what becomes of them.

use std::fmt;

use crate::error::{Error, ErrorKind, Result, last_message};
use crate::memory::{AnySlice, Checker, Element, Place};
use crate::number::numbers;
use crate::source::address_at;
use crate::{Phase, RequestId, WeightsType, sys};

/// Ticket of a step of one capturer: 1, 2, 3, ... in order of issue (`routecap_step`). 0 is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct Step(pub u64);

/// Sink rows of one step that belong to one request (`routecap_span`).
///
/// Spans have C's layout: a slice of them reaches the library as it is, and can be kept and filled
/// anew for every step.
#[derive(Clone, Copy, Default)]
#[repr(transparent)]
pub struct Span(sys::routecap_span);

impl fmt::Debug for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Span")
            .field("request", &self.request())
            .field("position", &self.position())
            .field("sink_row", &self.sink_row())
            .field("rows", &self.rows())
            .field("speculative", &self.is_speculative())
            .field("shared", &self.is_shared())
            .field("position_end", &self.position_end())
            .finish()
    }
}

/// Of which a span has one at most.
const PHASES: u32 =
    sys::ROUTECAP_SPAN_PREFILL | sys::ROUTECAP_SPAN_DECODE | sys::ROUTECAP_SPAN_UNCOUNTED;

impl Span {
    /// `rows` rows (at least 1) from `sink_row` on, which are the rows of `request` from `position`
    /// on: indices in the sequence, not rotary positions.
    pub const fn new(request: RequestId, position: u64, sink_row: u32, rows: u32) -> Span {
        Span(sys::routecap_span {
            request: request.0,
            position,
            position_end: 0,
            sink_row,
            rows,
            flags: 0,
            reserved: 0,
        })
    }

    /// Draft tokens: provisional until they are accepted (`ROUTECAP_SPAN_SPECULATIVE`).
    pub const fn speculative(mut self) -> Span {
        self.0.flags |= sys::ROUTECAP_SPAN_SPECULATIVE;
        self
    }

    /// Other spans of the step may have its sink rows too, if they are shared as well
    /// (`ROUTECAP_SPAN_SHARED`): sequences that share a token which is computed once. Without it two
    /// spans with one sink row are [`Conflict`](crate::ErrorKind::Conflict).
    pub const fn shared(mut self, shared: bool) -> Span {
        self.0.flags &= !sys::ROUTECAP_SPAN_SHARED;
        self.0.flags |= if shared { sys::ROUTECAP_SPAN_SHARED } else { 0 };
        self
    }

    /// Its rows count as load of this phase (`ROUTECAP_SPAN_PREFILL`, `ROUTECAP_SPAN_DECODE`).
    /// Without it one row, and drafts, are decode, and others are prefill.
    pub const fn phase(mut self, phase: Phase) -> Span {
        self.0.flags &= !PHASES;
        self.0.flags |= match phase {
            Phase::Prefill => sys::ROUTECAP_SPAN_PREFILL,
            Phase::Decode => sys::ROUTECAP_SPAN_DECODE,
        };
        self
    }

    /// Its rows are no load, as another span that names them counts (`ROUTECAP_SPAN_UNCOUNTED`).
    pub const fn uncounted(mut self) -> Span {
        self.0.flags &= !PHASES;
        self.0.flags |= sys::ROUTECAP_SPAN_UNCOUNTED;
        self
    }

    /// Positions come from [`IssueOptions::positions`] and are from the span's position up to, not
    /// including, `end`; rows outside are dropped (`ROUTECAP_SPAN_DEVICE_POSITIONS`).
    pub const fn device_positions(mut self, end: u64) -> Span {
        self.0.flags |= sys::ROUTECAP_SPAN_DEVICE_POSITIONS;
        self.0.position_end = end;
        self
    }

    /// Whose rows these are.
    pub const fn request(&self) -> RequestId {
        RequestId(self.0.request)
    }

    /// Position of the first row, or the lowest one.
    pub const fn position(&self) -> u64 {
        self.0.position
    }

    /// The first row in the sink.
    pub const fn sink_row(&self) -> u32 {
        self.0.sink_row
    }

    /// How many rows.
    pub const fn rows(&self) -> u32 {
        self.0.rows
    }

    /// Whether these are drafts.
    pub const fn is_speculative(&self) -> bool {
        self.0.flags & sys::ROUTECAP_SPAN_SPECULATIVE != 0
    }

    /// Whether other spans may have its sink rows too.
    pub const fn is_shared(&self) -> bool {
        self.0.flags & sys::ROUTECAP_SPAN_SHARED != 0
    }

    /// Whether positions come from memory, and then one past the highest.
    pub const fn position_end(&self) -> Option<u64> {
        if self.0.flags & sys::ROUTECAP_SPAN_DEVICE_POSITIONS != 0 {
            Some(self.0.position_end)
        } else {
            None
        }
    }
}

/// Who takes the snapshot of a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(i32)]
#[non_exhaustive]
pub enum Snapshot {
    /// The forward took it, by [`Forward::snapshot`](crate::Forward::snapshot)
    /// (`ROUTECAP_SNAPSHOT_TAKEN`).
    #[default]
    Taken = sys::ROUTECAP_SNAPSHOT_TAKEN,
    /// Issue takes it (`ROUTECAP_SNAPSHOT_MAKE`).
    Make = sys::ROUTECAP_SNAPSHOT_MAKE,
    /// Nobody: the rows arrive later, by [`Capturer::arrive`](crate::Capturer::arrive)
    /// (`ROUTECAP_SNAPSHOT_LATER`).
    Later = sys::ROUTECAP_SNAPSHOT_LATER,
}

/// Options of [`Forward::issue`](crate::Forward::issue) (`routecap_issue_options`), a builder. By
/// default the forward took its snapshot, and the tag is 0.
#[derive(Clone, Copy, Debug, Default)]
pub struct IssueOptions<'a> {
    snapshot: Snapshot,
    tag: u64,
    positions: Option<AnySlice<'a>>,
}

impl<'a> IssueOptions<'a> {
    /// The defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// Who takes the snapshot.
    pub fn snapshot(mut self, snapshot: Snapshot) -> Self {
        self.snapshot = snapshot;
        self
    }

    /// Kept with every row of the step: a weight version, for instance.
    pub fn tag(mut self, tag: u64) -> Self {
        self.tag = tag;
        self
    }

    /// The position of each sink row, up to the last that a span with device positions names; `i32`
    /// or `i64`. With [`Snapshot::Later`] they are [`positions_later`](Self::positions_later).
    pub fn positions(mut self, positions: impl Into<AnySlice<'a>>) -> Self {
        self.positions = Some(positions.into());
        self
    }

    /// The same with [`Snapshot::Later`]: `len` positions in host memory that
    /// [`Capturer::arrive`](crate::Capturer::arrive) reads, as no slice lives long enough.
    ///
    /// # Safety
    ///
    /// The elements stay allocated until `arrive` of every step that these options issue has
    /// succeeded, or the step has landed, or the capturer is gone. While an `arrive` of such a step
    /// runs they are initialised, and nothing writes them.
    pub unsafe fn positions_later<T: Element>(mut self, positions: *const T, len: usize) -> Self {
        // SAFETY: as the caller promises; to the library it is memory that it may keep.
        self.positions = Some(unsafe { AnySlice::device(positions.cast(), T::DTYPE, len) });
        self
    }

    /// In C's form, its memory checked against what these spans will read.
    pub(crate) fn checked(
        &self,
        checker: &Checker,
        spans: &[Span],
    ) -> Result<sys::routecap_issue_options> {
        if let Some(positions) = &self.positions {
            let spans = spans.iter().filter(|span| span.position_end().is_some());
            let needed =
                spans.map(|span| u64::from(span.sink_row()) + u64::from(span.rows())).max();
            let later = self.snapshot == Snapshot::Later;
            if later && positions.place == Place::Host && checker.place.is_some() {
                return Err(Error::new(
                    ErrorKind::Argument,
                    "positions is a slice, and arrive reads it: give positions_later",
                ));
            }
            let place = if later { Some(Place::Device) } else { checker.place };
            Checker { place: checker.place.and(place) }.holds(
                "positions",
                positions.place,
                positions.len,
                needed.unwrap_or(0),
            )?;
        }
        Ok(sys::routecap_issue_options {
            struct_size: size_of::<sys::routecap_issue_options>() as u32,
            snapshot: self.snapshot as i32,
            tag: self.tag,
            positions: address_at(self.positions, 0),
            positions_dtype: self.positions.map_or(0, |positions| positions.dtype as i32),
            reserved: 0,
        })
    }
}

/// Rows that [arrive](crate::Capturer::arrive) later, of all layers (`routecap_sink`), a builder.
///
/// ```
/// use routecap::ArrivedRows;
/// let ids = vec![0i32; 48 * 16 * 8]; // [layers, rows, k]
/// let rows = ArrivedRows::new(&ids, 16);
/// let the_first_five = ArrivedRows::new(&ids, 5).layer_stride(16 * 8);
/// let rows_first = ArrivedRows::new(&ids, 16).row_stride(48 * 8).layer_stride(8); // [rows, layers, k]
/// ```
#[derive(Clone, Copy, Debug)]
pub struct ArrivedRows<'a> {
    ids: AnySlice<'a>,
    weights: Option<AnySlice<'a>>,
    rows: u32,
    start: usize,
    row_stride: i64,
    layer_stride: i64,
}

impl<'a> ArrivedRows<'a> {
    /// `rows` rows of each layer, as `[layers, rows, k]` and nothing else; `i16`, `i32` or `i64`.
    /// Sink rows beyond are missing.
    pub fn new(ids: impl Into<AnySlice<'a>>, rows: u32) -> Self {
        ArrivedRows {
            ids: ids.into(),
            weights: None,
            rows,
            start: 0,
            row_stride: 0,
            layer_stride: 0,
        }
    }

    /// The weights of the same cells, in memory that is laid out alike, start and strides included;
    /// of the capturer's [`weights`](crate::Config::weights). Default none: they are missing.
    pub fn weights(mut self, weights: impl Into<AnySlice<'a>>) -> Self {
        self.weights = Some(weights.into());
        self
    }

    /// The element that is row 0, column 0 of layer 0. Default 0.
    pub fn start(mut self, element: usize) -> Self {
        self.start = element;
        self
    }

    /// Elements from one row to the next, k or more. Default k.
    pub fn row_stride(mut self, elements: i64) -> Self {
        self.row_stride = elements;
        self
    }

    /// Elements from one layer to the next, k or more. Default all rows of one.
    pub fn layer_stride(mut self, elements: i64) -> Self {
        self.layer_stride = elements;
        self
    }

    /// In C's form, its memory checked against what a capturer of this shape will read.
    pub(crate) fn checked(
        &self,
        checker: &Checker,
        layers: usize,
        k: u32,
        weights_type: Option<WeightsType>,
    ) -> Result<sys::routecap_sink> {
        self.check(checker, "rows", &self.ids, layers, k)?;
        if let Some(weights) = &self.weights {
            self.check(checker, "weights", weights, layers, k)?;
            if Some(weights.dtype) != weights_type.map(WeightsType::dtype)
                && checker.place.is_some()
            {
                return Err(Error::new(
                    ErrorKind::DType,
                    format!(
                        "weights of {:?}, and the capturer's are {weights_type:?}",
                        weights.dtype
                    ),
                ));
            }
        }
        // Without rows nothing is read, whatever the strides are.
        let (row, layer) =
            if self.rows == 0 { (0, 0) } else { (self.row_stride, self.layer_stride) };
        Ok(sys::routecap_sink {
            struct_size: size_of::<sys::routecap_sink>() as u32,
            dtype: self.ids.dtype as i32,
            ids: address_at(Some(self.ids), self.start).cast_mut(),
            rows: self.rows,
            k,
            row_stride: row,
            layer_stride: layer,
            ids_bytes: if self.rows == 0 { 0 } else { self.ids.bytes_from(self.start) },
            weights_dtype: self.weights.map_or(0, |weights| weights.dtype as i32),
            reserved: 0,
            weights: address_at(self.weights, self.start).cast_mut(),
            weights_bytes: match self.weights {
                Some(weights) if self.rows > 0 => weights.bytes_from(self.start),
                _ => 0,
            },
        })
    }

    fn check(
        &self,
        checker: &Checker,
        name: &str,
        memory: &AnySlice<'_>,
        layers: usize,
        k: u32,
    ) -> Result<()> {
        if self.rows > 0 && self.row_stride == 0 && self.layer_stride == 0 {
            let needed = layers as u64 * u64::from(self.rows) * u64::from(k);
            let len = memory.len.saturating_sub(self.start);
            checker.exactly(name, memory.place, len, needed, || {
                format!("{layers} layers x {} rows x k; say the strides otherwise", self.rows)
            })?;
        }
        let down = i128::from(if self.row_stride == 0 { i64::from(k) } else { self.row_stride });
        let across = if self.layer_stride == 0 {
            down * i128::from(self.rows)
        } else {
            self.layer_stride.into()
        };
        let reach = (self.rows > 0).then(|| {
            // The library refuses strides below k before it reads.
            let rows = down.max(0) * i128::from(self.rows - 1);
            (0, across.max(0).saturating_mul(layers as i128 - 1) + rows + i128::from(k))
        });
        checker.reaches(name, memory.place, memory.len, self.start, reach)
    }
}

numbers! {
    /// What became of the spans of a step that was issued.
    #[must_use]
    Filing, "What a status of C's that is no error says.", status: "The status in C." {
        /// All of them will be filed.
        Whole = ROUTECAP_OK;
        /// Some were skipped (`ROUTECAP_PARTIAL`): of unknown requests, or beyond the budget.
        Partial = ROUTECAP_PARTIAL;
        /// The step is lost (`ROUTECAP_LOST`): all its rows are missing, because too many were in flight
        /// or its copy failed.
        Lost = ROUTECAP_LOST;
    }
}

/// A step that was issued, and that may be lost all the same.
///
/// An engine that loses a step goes on, and counts it; a program that may lose none makes it an
/// error with [`step`](Self::step):
///
/// ```
/// # use routecap::{Config, IssueOptions, Result, Span, Step, Stream};
/// # fn main() -> Result<()> {
/// # let (capturer, mut forward) = Config::host().layers(1).k(2).experts(8).rows(16).create()?;
/// # let spans = [Span::new(capturer.open()?, 0, 0, 1)];
/// # let options = IssueOptions::new();
/// # let mut lost = 0;
/// # forward.begin(1, Stream::HOST)?;
/// # forward.snapshot(Stream::HOST)?;
/// let issued = forward.issue(&spans, &options, Stream::HOST)?;
/// if issued.is_lost() {
///     lost += 1; // all its rows are missing: reading them says so
/// }
/// let ticket = issued.ticket(); // names the step, lost or not
/// # forward.begin(1, Stream::HOST)?;
/// # forward.snapshot(Stream::HOST)?;
///
/// let step = forward.issue(&spans, &options, Stream::HOST)?.step()?; // or else an error
/// # assert_eq!((ticket, step, lost), (Step(1), Step(2), 0));
/// # Ok(())
/// # }
/// ```
///
/// It cannot be dropped without a warning, which is an error here:
///
/// ```compile_fail
/// #![deny(unused_must_use)]
/// # use routecap::{Config, IssueOptions, Result, Stream};
/// # fn main() -> Result<()> {
/// # let (_capturer, mut forward) = Config::host().layers(1).k(2).experts(8).rows(16).create()?;
/// # forward.begin(1, Stream::HOST)?;
/// # forward.snapshot(Stream::HOST)?;
/// forward.issue(&[], &IssueOptions::new(), Stream::HOST)?;
/// # Ok(())
/// # }
/// ```
///
/// while this is none:
///
/// ```
/// #![deny(unused_must_use)]
/// # use routecap::{Config, IssueOptions, Result, Stream};
/// # fn main() -> Result<()> {
/// # let (_capturer, mut forward) = Config::host().layers(1).k(2).experts(8).rows(16).create()?;
/// # forward.begin(1, Stream::HOST)?;
/// # forward.snapshot(Stream::HOST)?;
/// forward.issue(&[], &IssueOptions::new(), Stream::HOST)?.step()?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[must_use = "the step may be lost: `step()?` makes that an error, `is_lost()` tells"]
pub struct Issued {
    step: Step,
    filing: Filing,
    why: String, // of a lost step
}

impl Issued {
    /// Of the last call on this thread, whose text this is.
    pub(crate) fn new(step: Step, status: i32) -> Issued {
        let filing = Filing::of(status);
        Issued {
            step,
            filing,
            why: if filing == Filing::Lost { last_message() } else { String::new() },
        }
    }

    /// The step's ticket, if it is not lost. [`Step`] 0 of a disabled capturer.
    ///
    /// # Errors
    ///
    /// [`Lost`](ErrorKind::Lost), with a text that says why. The step has a
    /// [`ticket`](Self::ticket) all the same, and accepting drafts of it works.
    pub fn step(&self) -> Result<Step> {
        if self.is_lost() {
            return Err(Error::new(
                ErrorKind::Lost,
                format!("step {} is lost: {}", self.step.0, self.why),
            ));
        }
        Ok(self.step)
    }

    /// The step's ticket, lost or not. [`Step`] 0 of a disabled capturer.
    pub fn ticket(&self) -> Step {
        self.step
    }

    /// Whether the step is lost: too many were in flight or its copy failed, and all its rows are missing
    /// (`ROUTECAP_LOST`).
    pub fn is_lost(&self) -> bool {
        self.filing == Filing::Lost
    }

    /// What became of its spans.
    pub fn filing(&self) -> Filing {
        self.filing
    }
}

numbers! {
    /// Whether the rows of a step can be read.
    #[must_use]
    Landing, "What a status of C's that is no error says.", status: "The status in C." {
        /// They can.
        Landed = ROUTECAP_OK;
        /// The step has landed and is lost: its rows are missing (`ROUTECAP_LOST`), and
        /// [`last_message`](crate::last_message) says why. Known for the last 1024 steps.
        Lost = ROUTECAP_LOST;
        /// Not yet (`ROUTECAP_PENDING`).
        Pending = ROUTECAP_PENDING;
    }
}

/// What became of a step that was waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[must_use]
pub struct Finalized {
    /// Whether it has landed.
    pub landing: Landing,
    /// How many of its cells were recorded twice; of each the first was kept. Known for the last
    /// 1024 steps.
    pub conflicting: u64,
}

/// Checks that there is a status for each of `count` items.
pub(crate) fn status_for_each(status: usize, count: usize) -> Result<()> {
    if status == count {
        return Ok(());
    }
    Err(Error::new(ErrorKind::Argument, format!("there are {status} statuses for {count} items")))
}
