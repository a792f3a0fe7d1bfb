//! What a capturer saw.

pub use crate::declared::Stats;
use crate::sys;

/// What the capturer saw of one layer (`routecap_layer_stats`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
#[non_exhaustive]
pub struct LayerStats {
    /// Valid cells that landed.
    pub rows_written: u64,
    /// Missing cells: not, or not completely, written.
    pub unwritten: u64,
    /// Missing cells: an id outside the layer's range.
    pub out_of_range: u64,
    /// Missing cells: one id twice.
    pub duplicate: u64,
    /// Steps that landed with rows, none of which this layer wrote.
    pub silent_steps: u64,
}

const _: () = assert!(size_of::<LayerStats>() == size_of::<sys::routecap_layer_stats>());
