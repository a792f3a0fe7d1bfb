//! Steps: which of their rows belong to whom, and what becomes of them.

use crate::error::{Error, ErrorKind, Result};
use crate::memory::{AnySlice, Checker};
use crate::source::address_at;
use crate::{RequestId, sys};

/// Ticket of a step of one capturer: 1, 2, 3, ... in order of issue (`routecap_step`). 0 is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct Step(pub u64);

/// Sink rows of one step that belong to one request (`routecap_span`).
///
/// Spans have C's layout: a slice of them reaches the library as it is, and can be kept and filled anew for every step.
#[derive(Clone, Copy, Debug, Default)]
#[repr(transparent)]
pub struct Span(sys::routecap_span);

impl Span {
    /// `rows` rows (at least 1) from `sink_row` on, which are the rows of `request` from `position` on: indices in the sequence, not rotary
    /// positions.
    pub const fn new(request: RequestId, position: u64, sink_row: u32, rows: u32) -> Span {
        Span(sys::routecap_span { request: request.0, position, position_end: 0, sink_row, rows, flags: 0, reserved: 0 })
    }

    /// Draft tokens: provisional until they are accepted (`ROUTECAP_SPAN_SPECULATIVE`).
    pub const fn speculative(mut self) -> Span {
        self.0.flags |= sys::ROUTECAP_SPAN_SPECULATIVE;
        self
    }

    /// Positions come from [`IssueOptions::positions`] and are from the span's position up to, not including, `end`; rows outside are dropped
    /// (`ROUTECAP_SPAN_DEVICE_POSITIONS`).
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

    /// Whether positions come from memory, and then one past the highest.
    pub const fn position_end(&self) -> Option<u64> {
        if self.0.flags & sys::ROUTECAP_SPAN_DEVICE_POSITIONS != 0 { Some(self.0.position_end) } else { None }
    }
}

/// Who takes the snapshot of a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(i32)]
#[non_exhaustive]
pub enum Snapshot {
    /// The forward took it, by [`Forward::snapshot`](crate::Forward::snapshot) (`ROUTECAP_SNAPSHOT_TAKEN`).
    #[default]
    Taken = sys::ROUTECAP_SNAPSHOT_TAKEN,
    /// Issue takes it (`ROUTECAP_SNAPSHOT_MAKE`).
    Make = sys::ROUTECAP_SNAPSHOT_MAKE,
}

/// Options of [`Forward::issue`](crate::Forward::issue) (`routecap_issue_options`), a builder. By default the forward took its snapshot, and the
/// tag is 0.
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

    /// The position of each sink row, up to the last that a span with device positions names; `i32` or `i64`.
    pub fn positions(mut self, positions: impl Into<AnySlice<'a>>) -> Self {
        self.positions = Some(positions.into());
        self
    }

    /// In C's form, its memory checked against what these spans will read.
    pub(crate) fn checked(&self, checker: &Checker, spans: &[Span]) -> Result<sys::routecap_issue_options> {
        if let Some(positions) = &self.positions {
            let spans = spans.iter().filter(|span| span.position_end().is_some());
            let needed = spans.map(|span| u64::from(span.sink_row()) + u64::from(span.rows())).max();
            checker.holds("positions", positions.place, positions.len, needed.unwrap_or(0))?;
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

/// What became of the spans of a step that was issued.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Filing {
    /// All of them will be filed.
    Whole,
    /// Some were skipped (`ROUTECAP_PARTIAL`): of unknown requests, or beyond the budget.
    Partial,
    /// The step is lost, because no slot was free when its forward ran (`ROUTECAP_LOST`): all its rows are missing.
    Lost,
}

/// A step that was issued.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Issued {
    /// Its ticket. [`Step`] 0 of a disabled capturer.
    pub step: Step,
    /// What became of its spans.
    pub filing: Filing,
}

/// Whether the rows of a step can be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[must_use]
pub enum Landing {
    /// They can.
    Landed,
    /// The step has landed and is lost: its rows are missing (`ROUTECAP_LOST`). Known for the last 1024 steps.
    Lost,
    /// Not yet (`ROUTECAP_PENDING`).
    Pending,
}

impl Landing {
    pub(crate) fn of(status: i32) -> Landing {
        match status {
            sys::ROUTECAP_LOST => Landing::Lost,
            sys::ROUTECAP_PENDING => Landing::Pending,
            _ => Landing::Landed,
        }
    }
}

/// What became of a step that was waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[must_use]
pub struct Finalized {
    /// Whether it has landed.
    pub landing: Landing,
    /// How many of its cells were recorded twice; of each the first was kept. Known for the last 1024 steps.
    pub conflicting: u64,
}

/// Checks that there is a status for each of `count` items.
pub(crate) fn status_for_each(status: usize, count: usize) -> Result<()> {
    if status == count {
        return Ok(());
    }
    Err(Error::new(ErrorKind::Argument, format!("there are {status} statuses for {count} items")))
}
