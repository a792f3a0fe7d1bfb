//! Ranges of rows.

use std::ops::{Range, RangeFrom, RangeFull, RangeInclusive, RangeTo};

use crate::sys;

/// In a count of rows: up to the end.
pub const ALL: u64 = sys::ROUTECAP_ROWS_ALL;
/// In a count of rows: up to the first row in flight, or the end: what of a running request can be
/// read now.
pub const LANDED: u64 = sys::ROUTECAP_ROWS_LANDED;

/// Rows of a request or routing by position: where the first is, and how many.
///
/// Made of ranges: `..`, `10..`, `10..20`, `10..=19`; and [`Rows::landed`] for what can be read of
/// a running request now. A range that ends before it begins is empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rows {
    /// Position of the first row.
    pub first: u64,
    /// How many; [`ALL`]; [`LANDED`], of requests.
    pub count: u64,
}

impl Rows {
    /// `count` rows from `first` on.
    pub fn new(first: u64, count: u64) -> Rows {
        Rows { first, count }
    }

    /// From `first` up to the first row in flight, or the end.
    pub fn landed(first: u64) -> Rows {
        Rows { first, count: LANDED }
    }
}

impl From<Range<u64>> for Rows {
    fn from(range: Range<u64>) -> Rows {
        Rows { first: range.start, count: range.end.saturating_sub(range.start) }
    }
}
impl From<RangeInclusive<u64>> for Rows {
    fn from(range: RangeInclusive<u64>) -> Rows {
        (*range.start()..range.end().saturating_add(1)).into()
    }
}
impl From<RangeTo<u64>> for Rows {
    fn from(range: RangeTo<u64>) -> Rows {
        (0..range.end).into()
    }
}
impl From<RangeFrom<u64>> for Rows {
    fn from(range: RangeFrom<u64>) -> Rows {
        Rows { first: range.start, count: ALL }
    }
}
impl From<RangeFull> for Rows {
    fn from(_: RangeFull) -> Rows {
        Rows { first: 0, count: ALL }
    }
}
