//! What a capturer saw.

use crate::sys;

macro_rules! stats {
    ($($(#[$doc:meta])* $field:ident: $type:ty,)*) => {
        /// What the capturer saw since it was created (`routecap_stats`).
        ///
        /// Fields are read one after another while it runs; no row is counted as landed before it
        /// is issued. Every row of the spans that issue was given, those of unknown requests apart,
        /// is in one of the nine counts from `rows_in_flight` to `rows_refused`.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct Stats {
            $($(#[$doc])* pub $field: $type,)*
        }

        impl From<sys::routecap_stats> for Stats {
            fn from(raw: sys::routecap_stats) -> Stats {
                Stats { $($field: raw.$field,)* }
            }
        }
    };
}

stats! {
    /// Layers without one valid cell in the last step that landed with rows.
    silent_layers: u32,
    /// Steps issued, lost ones included.
    steps_issued: u64,
    /// Steps landed, lost ones included.
    steps_landed: u64,
    /// Steps lost.
    steps_lost: u64,
    /// Rows of the spans that issue was given.
    rows_issued: u64,
    /// Not landed yet.
    rows_in_flight: u64,
    /// Landed, speculative, not settled.
    rows_provisional: u64,
    /// Filed with at least one valid cell.
    rows_delivered: u64,
    /// Landed without a valid cell.
    rows_missing: u64,
    /// In a lost step.
    rows_lost: u64,
    /// Landed after their request was closed or cut below them.
    rows_late: u64,
    /// Speculative, and not accepted.
    rows_rejected: u64,
    /// Their position, read from the device, was outside the span's bounds.
    rows_unplaced: u64,
    /// Refused for memory.
    rows_refused: u64,
    /// In spans of unknown requests.
    rows_skipped: u64,
    /// Delivered with a valid cell where one was.
    rows_overlapped: u64,
    /// Of those, with another set of ids in a cell valid in both; needs
    /// [`Config::compare`](crate::Config::compare).
    rows_mismatched: u64,
    /// Recorded rows outside the rows begun, of steps that landed.
    rows_dropped: u64,
    /// Cells recorded again within one step, of steps that landed; the first was kept.
    cells_conflicting: u64,
    /// Missing cells of landed rows: not, or not completely, written in their step.
    cells_unwritten: u64,
    /// Missing cells of landed rows: an id outside the layer's range.
    cells_out_of_range: u64,
    /// Missing cells of landed rows: one id twice.
    cells_duplicate: u64,
    /// Requests open now.
    requests_open: u64,
    /// Steps in flight now.
    steps_in_flight: u64,
    /// Of the budget: pages of requests and routings, their tags, provisional rows, and what spans
    /// in flight are charged.
    bytes_in_use: u64,
    /// The most that was in use.
    bytes_peak: u64,
    /// The budget.
    bytes_budget: u64,
}

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
