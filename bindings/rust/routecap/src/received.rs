//! Checking an expert-parallel dispatch. Experimental: this reads the tensors of another project,
//! DeepEP v2. When they change, other functions come, and these may return an error.

use std::fmt;

use crate::error::{Error, ErrorKind, Result};
use crate::memory::{AnySlice, Checker, Slice, SliceMut};
use crate::source::{address, address_at};
use crate::sys;

/// What a check found (`routecap_received_counts`), in memory of the capturer's backend.
/// Experimental.
pub use crate::sys::routecap_received_counts as ReceivedCounts;

/// What this rank sent and received in one dispatch, in words of DeepEP v2 (`routecap_received`;
/// the header says more). Experimental.
///
/// [`Forward::read_received`](crate::Forward::read_received) adds what this rank executed to its
/// table; when the tables of all ranks have been added up,
/// [`Forward::compare_received`](crate::Forward::compare_received) counts what is equal to the ids
/// that the router chose. All arrays are in C order, without gaps.
pub struct Received<'a> {
    raw: sys::routecap_received,
    executed: SliceMut<'a, i32>,
    counts: SliceMut<'a, ReceivedCounts>,
    live_rows: Option<Slice<'a, i32>>,
    metadata: Option<Slice<'a, i32>>,
    ids: Option<AnySlice<'a>>,
    expert_ends: Option<Slice<'a, i32>>,
    topk_ids: Option<AnySlice<'a>>,
}

// SAFETY: the pointers of `raw` are NULL; what is borrowed is in the slices.
unsafe impl Send for Received<'_> {}
// SAFETY: as above.
unsafe impl Sync for Received<'_> {}

impl fmt::Debug for Received<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let raw = &self.raw;
        let mut shown = f.debug_struct("Received");
        shown
            .field("ranks", &raw.ranks)
            .field("rank", &raw.rank)
            .field("experts", &raw.experts)
            .field("k", &raw.k)
            .field("tokens_per_rank", &raw.tokens_per_rank)
            .field("rows", &raw.rows)
            .field("already_global", &(raw.flags & sys::ROUTECAP_RECEIVED_GLOBAL != 0))
            .field("live_rows", &self.live_rows)
            .field("metadata", &self.metadata)
            .field("ids", &self.ids)
            .field("expert_ends", &self.expert_ends)
            .field("expert_alignment", &raw.expert_alignment)
            .field("expanded_rows", &raw.expanded_rows)
            .field("tokens", &raw.tokens)
            .field("topk_ids", &self.topk_ids)
            .field("executed", &self.executed)
            .field("counts", &self.counts)
            .finish()
    }
}

impl<'a> Received<'a> {
    /// Of a dispatch of `k` ids a token to `ranks` ranks (1..=1024), as rank `rank` of them has it:
    /// at most `tokens_per_rank` (`handle.num_max_tokens_per_rank` of this very dispatch) tokens
    /// from each. `ranks * tokens_per_rank` is at most [`MAX_RECEIVED`](crate::MAX_RECEIVED), and
    /// `experts` a multiple of `ranks`.
    ///
    /// `executed` is `[ranks, tokens_per_rank, k]`. Zero it before `read_received`; add it up over
    /// all ranks before `compare_received`. `counts` is one, and is added to.
    #[allow(clippy::too_many_arguments)] // the shape of a dispatch is so many numbers
    pub fn new(
        ranks: u32,
        rank: u32,
        experts: u32,
        k: u32,
        tokens_per_rank: u32,
        executed: impl Into<SliceMut<'a, i32>>,
        counts: impl Into<SliceMut<'a, ReceivedCounts>>,
    ) -> Self {
        let raw = sys::routecap_received {
            struct_size: size_of::<sys::routecap_received>() as u32,
            ranks,
            rank,
            experts,
            k,
            tokens_per_rank,
            dtype: sys::ROUTECAP_DTYPE_I64,
            ..Default::default()
        };
        Received {
            raw,
            executed: executed.into(),
            counts: counts.into(),
            live_rows: None,
            metadata: None,
            ids: None,
            expert_ends: None,
            topk_ids: None,
        }
    }

    /// `[rows, 2 + k]` (`handle.recv_src_metadata`): where each of the rows came from.
    pub fn metadata(mut self, metadata: impl Into<Slice<'a, i32>>, rows: u32) -> Self {
        self.metadata = Some(metadata.into());
        self.raw.rows = rows;
        self
    }

    /// One number, the last of `handle.psum_num_recv_tokens_per_scaleup_rank`: only so many rows
    /// were received. Default all.
    pub fn live_rows(mut self, rows: impl Into<Slice<'a, i32>>) -> Self {
        self.live_rows = Some(rows.into());
        self
    }

    /// `[rows, k]` of `i32` or `i64` (`recv_topk_idx`): ids of this rank's experts, each token
    /// once. Not with [`expanded`](Self::expanded).
    pub fn ids(mut self, ids: impl Into<AnySlice<'a>>) -> Self {
        self.ids = Some(ids.into());
        self
    }

    /// The ids are global already: the engine has converted them in place
    /// (`ROUTECAP_RECEIVED_GLOBAL`).
    pub fn already_global(mut self) -> Self {
        self.raw.flags |= sys::ROUTECAP_RECEIVED_GLOBAL;
        self
    }

    /// `do_expand=True`, a row for each token and local expert (`ROUTECAP_RECEIVED_EXPANDED`):
    /// `[experts / ranks]` the row behind the last of each local expert, the rows of each beginning
    /// at a multiple of `alignment` (0 means 1), `expanded_rows` in all.
    pub fn expanded(
        mut self,
        expert_ends: impl Into<Slice<'a, i32>>,
        alignment: u32,
        expanded_rows: u32,
    ) -> Self {
        self.raw.flags |= sys::ROUTECAP_RECEIVED_EXPANDED;
        self.expert_ends = Some(expert_ends.into());
        self.raw.expert_alignment = alignment;
        self.raw.expanded_rows = expanded_rows;
        self
    }

    /// `[tokens, k]` of `i32` or `i64`: the ids that the router of this rank chose. Not
    /// `handle.topk_idx`, which is what was sent.
    pub fn topk_ids(mut self, ids: impl Into<AnySlice<'a>>, tokens: u32) -> Self {
        self.topk_ids = Some(ids.into());
        self.raw.tokens = tokens;
        self
    }

    /// In C's form, its memory checked against what the library will read and write.
    pub(crate) fn checked(&mut self, checker: &Checker) -> Result<sys::routecap_received> {
        let raw = &self.raw;
        let (rows, k) = (u64::from(raw.rows), u64::from(raw.k));
        let cells = u64::from(raw.ranks) * u64::from(raw.tokens_per_rank);
        let exactly = |name: &str, place, len, needed| {
            checker.exactly(name, place, len, needed, || {
                format!("of {rows} rows, {} tokens, {cells} places and {k} columns", raw.tokens)
            })
        };
        let executed = &self.executed;
        exactly("executed", executed.place, executed.len, cells.saturating_mul(k))?;
        checker.one("counts", self.counts.place, self.counts.len)?;
        for (name, slice, needed) in [
            ("live_rows", self.live_rows, 1),
            ("metadata", self.metadata, rows * (2 + k)),
            ("expert_ends", self.expert_ends, u64::from(raw.experts / raw.ranks.max(1))),
        ] {
            if let Some(slice) = slice {
                exactly(name, slice.place, slice.len, needed)?;
            }
        }
        let mut dtype = raw.dtype;
        for (name, ids, needed) in
            [("ids", self.ids, rows * k), ("topk_ids", self.topk_ids, u64::from(raw.tokens) * k)]
        {
            let Some(ids) = ids else { continue };
            exactly(name, ids.place, ids.len, needed)?;
            dtype = ids.dtype as i32;
        }
        if let (Some(received), Some(chosen)) = (self.ids, self.topk_ids) {
            if received.dtype != chosen.dtype {
                return Err(Error::new(
                    ErrorKind::DType,
                    "topk_ids have another dtype than the ids",
                ));
            }
        }
        Ok(sys::routecap_received {
            dtype,
            live_rows: address(self.live_rows),
            metadata: address(self.metadata),
            ids: address_at(self.ids, 0),
            expert_ends: address(self.expert_ends),
            topk_ids: address_at(self.topk_ids, 0),
            executed: self.executed.address,
            counts: self.counts.address,
            ..self.raw
        })
    }
}
