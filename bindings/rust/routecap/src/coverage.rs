//! Which cells are there and which are missing.

use crate::error::{Result, check};
use crate::number::numbers;
use crate::sys;

/// How much of a range of rows is there (`routecap_coverage`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Coverage {
    /// Layers of each row.
    pub layers: u32,
    /// Position of the first row.
    pub first: u64,
    /// How many rows.
    pub rows: u64,
    /// One past the last row that exists, of the request or routing.
    pub length: u64,
    /// Rows with every cell valid.
    pub rows_complete: u64,
    /// Rows with some cells valid.
    pub rows_partial: u64,
    /// Rows with no cell valid.
    pub rows_empty: u64,
    /// Cells missing.
    pub cells_missing: u64,
    /// How many blocks of missing cells there are.
    pub blocks: u64,
    /// Valid cells of layers that are recomputed.
    pub cells_recomputed: u64,
}

impl Coverage {
    /// Whether no cell is missing.
    pub fn is_complete(&self) -> bool {
        self.cells_missing == 0
    }
}

numbers! {
    /// Why a cell is missing. [`Unwritten`](Reason::Unwritten), [`OutOfRange`](Reason::OutOfRange)
    /// and [`Duplicate`](Reason::Duplicate) belong to a cell of a row that is there, the others to
    /// whole rows that are not there.
    Reason, "The one that has this number in C.", value: "The number in C." {
        /// Nothing is known of the row: never issued, cut, not begun, or not in the snapshot
        /// (`ROUTECAP_MISSING_ABSENT`).
        Absent = ROUTECAP_MISSING_ABSENT;
        /// The layer did not write it, or not completely, in its step
        /// (`ROUTECAP_MISSING_UNWRITTEN`).
        Unwritten = ROUTECAP_MISSING_UNWRITTEN;
        /// An id outside the layer's range (`ROUTECAP_MISSING_OUT_OF_RANGE`).
        OutOfRange = ROUTECAP_MISSING_OUT_OF_RANGE;
        /// One id twice (`ROUTECAP_MISSING_DUPLICATE`).
        Duplicate = ROUTECAP_MISSING_DUPLICATE;
        /// The row's step was lost (`ROUTECAP_MISSING_LOST`).
        Lost = ROUTECAP_MISSING_LOST;
        /// There was no memory for the row (`ROUTECAP_MISSING_REFUSED`).
        Refused = ROUTECAP_MISSING_REFUSED;
        /// The row left its request by [`Extract::Take`](crate::Extract::Take): whoever took it has
        /// it (`ROUTECAP_MISSING_TAKEN`).
        Taken = ROUTECAP_MISSING_TAKEN;
        /// A store of prefixes had the row and gave it up (`ROUTECAP_MISSING_EVICTED`). No call of
        /// this version says so.
        Evicted = ROUTECAP_MISSING_EVICTED;
        /// No store has ever had the row (`ROUTECAP_MISSING_NOT_PUBLISHED`). No call of this
        /// version says so.
        NotPublished = ROUTECAP_MISSING_NOT_PUBLISHED;
        /// A store has the row of older weights only (`ROUTECAP_MISSING_STALE`). No call of this
        /// version says so.
        Stale = ROUTECAP_MISSING_STALE;
    }
}

/// A block of missing cells: consecutive rows, consecutive layers, one reason (`routecap_missing`).
///
/// Blocks are ordered by row, then layer, each as large as possible.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Missing {
    /// Position of the first row.
    pub first: u64,
    /// How many rows.
    pub rows: u64,
    /// The first layer.
    pub first_layer: u32,
    /// How many layers.
    pub layers: u32,
    reason: i32,
    reserved: u32,
}

const _: () = assert!(size_of::<Missing>() == size_of::<sys::routecap_missing>());

impl std::fmt::Debug for Missing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let layers = self.first_layer..self.first_layer + self.layers;
        f.debug_struct("Missing")
            .field("positions", &self.positions())
            .field("layers", &layers)
            .field("reason", &self.reason())
            .finish()
    }
}

impl Missing {
    /// Why these cells are missing.
    pub fn reason(&self) -> Reason {
        Reason::of(self.reason)
    }

    /// The positions of its rows.
    pub fn positions(&self) -> std::ops::Range<u64> {
        self.first..self.first + self.rows
    }
}

/// Asks for coverage and as many blocks as `missing` holds. `ask` makes the call: coverage, blocks,
/// bytes of one, capacity.
pub(crate) fn coverage_into(
    missing: &mut [Missing],
    ask: impl FnOnce(*mut sys::routecap_coverage, *mut sys::routecap_missing, usize, usize) -> i32,
) -> Result<Coverage> {
    let mut raw = sys::routecap_coverage {
        struct_size: size_of::<sys::routecap_coverage>() as u32,
        ..Default::default()
    };
    check(ask(&mut raw, missing.as_mut_ptr().cast(), size_of::<Missing>(), missing.len()))?;
    Ok(Coverage {
        layers: raw.layers,
        first: raw.first,
        rows: raw.rows,
        length: raw.length,
        rows_complete: raw.rows_complete,
        rows_partial: raw.rows_partial,
        rows_empty: raw.rows_empty,
        cells_missing: raw.cells_missing,
        blocks: raw.blocks,
        cells_recomputed: raw.cells_recomputed,
    })
}

/// All blocks, however many there are by the time they are asked for.
pub(crate) fn all_missing(
    mut ask: impl FnMut(&mut [Missing]) -> Result<Coverage>,
) -> Result<Vec<Missing>> {
    let mut missing = Vec::new();
    loop {
        let blocks = ask(&mut missing)?.blocks as usize;
        if blocks <= missing.len() {
            missing.truncate(blocks);
            return Ok(missing);
        }
        missing.resize(blocks, Missing::default());
    }
}
