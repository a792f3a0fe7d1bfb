//! Which cells are there and which are missing.

pub use crate::declared::Reason;
use crate::error::{Result, check};
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
    /// Cells whose weights are there; 0 without weights.
    pub cells_weighted: u64,
}

impl Coverage {
    /// Whether no cell is missing.
    pub fn is_complete(&self) -> bool {
        self.cells_missing == 0
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
        cells_weighted: raw.cells_weighted,
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
