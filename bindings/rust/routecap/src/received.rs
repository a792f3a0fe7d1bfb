//! What an expert-parallel dispatch brought to a rank. Experimental: this reads the tensors of
//! another project, DeepEP v2. When they change, other functions come, and these may return an
//! error.

use std::fmt;

use crate::error::{Error, ErrorKind, Result, check};
use crate::memory::{AnySlice, AnySliceMut, Checker, Slice, SliceMut};
use crate::source::{address, address_at};
use crate::sys;

/// What one dispatch brought to this rank, in words of DeepEP v2 (`routecap_received`; the header
/// says more). Experimental.
///
/// Two things are made of it, each only if wanted: the global ids of the received rows, and a table
/// of what this rank executed. All arrays are in C order, without gaps.
pub struct Received<'a> {
    raw: sys::routecap_received,
    live_rows: Option<Slice<'a, i32>>,
    metadata: Option<Slice<'a, i32>>,
    ids: Option<AnySlice<'a>>,
    expert_ends: Option<Slice<'a, i32>>,
    global_ids: Option<AnySliceMut<'a>>,
    in_place: bool,
    executed: Option<SliceMut<'a, i32>>,
    ignored: Option<SliceMut<'a, u64>>,
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
            .field("k", &raw.k);
        shown.field("tokens_per_rank", &raw.tokens_per_rank).field("rows", &raw.rows);
        shown.field("already_global", &(raw.flags & sys::ROUTECAP_RECEIVED_GLOBAL != 0));
        shown
            .field("live_rows", &self.live_rows)
            .field("metadata", &self.metadata)
            .field("ids", &self.ids);
        shown
            .field("expert_ends", &self.expert_ends)
            .field("expert_alignment", &raw.expert_alignment);
        shown
            .field("expanded_rows", &raw.expanded_rows)
            .field("global_ids", &self.global_ids)
            .field("in_place", &self.in_place);
        shown.field("executed", &self.executed).field("ignored", &self.ignored).finish()
    }
}

impl<'a> Received<'a> {
    /// Of a dispatch of `ranks` ranks (1..=1024), as rank `rank` of them received it: `rows` rows
    /// of at most `tokens_per_rank` (`handle.num_max_tokens_per_rank` of this very dispatch) from
    /// each. `ranks * tokens_per_rank` is at most [`MAX_RECEIVED`](crate::MAX_RECEIVED).
    pub fn new(ranks: u32, rank: u32, tokens_per_rank: u32, rows: u32) -> Self {
        let raw = sys::routecap_received {
            struct_size: size_of::<sys::routecap_received>() as u32,
            ranks,
            rank,
            tokens_per_rank,
            rows,
            ..Default::default()
        };
        Received {
            raw,
            live_rows: None,
            metadata: None,
            ids: None,
            expert_ends: None,
            global_ids: None,
            in_place: false,
            executed: None,
            ignored: None,
        }
    }

    /// Experts of the dispatch, a multiple of the ranks. Default the layer's.
    pub fn experts(mut self, experts: u32) -> Self {
        self.raw.experts = experts;
        self
    }

    /// Columns of the dispatched ids. Default the capturer's k.
    pub fn k(mut self, k: u32) -> Self {
        self.raw.k = k;
        self
    }

    /// One number: only so many rows were received. Default all.
    pub fn live_rows(mut self, rows: impl Into<Slice<'a, i32>>) -> Self {
        self.live_rows = Some(rows.into());
        self
    }

    /// `[rows, 2 + k]` (`handle.recv_src_metadata`); needed for `executed`.
    pub fn metadata(mut self, metadata: impl Into<Slice<'a, i32>>) -> Self {
        self.metadata = Some(metadata.into());
        self
    }

    /// `[rows, k]` of `i32` or `i64` (`recv_topk_idx`): ids of this rank's experts, each token
    /// once. Not with [`expanded`](Self::expanded).
    pub fn ids(mut self, ids: impl Into<AnySlice<'a>>) -> Self {
        let ids = ids.into();
        self.raw.dtype = ids.dtype as i32;
        self.ids = Some(ids);
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

    /// `[rows, k]`, or with [`expanded`](Self::expanded) `[expanded_rows]`, of `i32` or `i64` as
    /// the ids: receives the expert of each, -1 for none. A disabled capturer writes nothing.
    pub fn global_ids(mut self, global_ids: impl Into<AnySliceMut<'a>>) -> Self {
        self.set_global_ids(global_ids.into(), false);
        self
    }

    /// `[rows, k]` of `i32` or `i64`: the ids, which are replaced by global ones.
    pub fn ids_in_place(mut self, ids: impl Into<AnySliceMut<'a>>) -> Self {
        self.set_global_ids(ids.into(), true);
        self
    }

    fn set_global_ids(&mut self, global_ids: AnySliceMut<'a>, in_place: bool) {
        if self.ids.is_none() {
            self.raw.dtype = global_ids.dtype as i32;
        }
        self.global_ids = Some(global_ids);
        self.in_place = in_place;
    }

    /// `[ranks, tokens_per_rank, k]` receives the experts that this rank executed, by source token
    /// and column, and -1 elsewhere. Written whole.
    pub fn executed(mut self, executed: impl Into<SliceMut<'a, i32>>) -> Self {
        if self.raw.dtype == 0 {
            self.raw.dtype = sys::ROUTECAP_DTYPE_I32; // required by the library, of nothing here
        }
        self.executed = Some(executed.into());
        self
    }

    /// One number, to which is added how many columns were ignored because they contradict
    /// themselves.
    pub fn ignored(mut self, ignored: impl Into<SliceMut<'a, u64>>) -> Self {
        self.ignored = Some(ignored.into());
        self
    }

    /// In C's form, its memory checked against what a layer of `experts` experts and a capturer of
    /// `k` per token will read and write.
    pub(crate) fn checked(
        &mut self,
        checker: &Checker,
        k: u32,
        experts: u32,
    ) -> Result<sys::routecap_received> {
        let raw = &self.raw;
        let k = u64::from(if raw.k == 0 { k } else { raw.k });
        let experts = u64::from(if raw.experts == 0 { experts } else { raw.experts });
        let rows = u64::from(raw.rows);
        let expanded = raw.flags & sys::ROUTECAP_RECEIVED_EXPANDED != 0;
        let tokens = u64::from(raw.ranks) * u64::from(raw.tokens_per_rank);
        for (name, slice, needed) in [
            ("live_rows", self.live_rows, 1),
            ("metadata", self.metadata, rows * (2 + k)),
            ("expert_ends", self.expert_ends, experts / u64::from(raw.ranks.max(1))),
        ] {
            if let Some(slice) = slice {
                checker.holds(name, slice.place, slice.len, needed)?;
            }
        }
        if let Some(ids) = &self.ids {
            checker.holds("ids", ids.place, ids.len, rows * k)?;
        }
        if let Some(ids) = &self.global_ids {
            if ids.dtype as i32 != raw.dtype {
                return Err(Error::new(
                    ErrorKind::DType,
                    "global_ids have another dtype than the ids",
                ));
            }
            checker.holds(
                "global_ids",
                ids.place,
                ids.len,
                if expanded { raw.expanded_rows.into() } else { rows * k },
            )?;
        }
        if let Some(executed) = &self.executed {
            checker.holds("executed", executed.place, executed.len, tokens.saturating_mul(k))?;
        }
        if let Some(ignored) = &self.ignored {
            checker.holds("ignored", ignored.place, ignored.len, 1)?;
        }
        let global_ids = self.global_ids.as_ref().map_or(std::ptr::null_mut(), |ids| ids.address);
        Ok(sys::routecap_received {
            live_rows: address(self.live_rows),
            metadata: address(self.metadata),
            ids: if self.in_place { global_ids } else { address_at(self.ids, 0) },
            expert_ends: address(self.expert_ends),
            global_ids,
            executed: self
                .executed
                .as_ref()
                .map_or(std::ptr::null_mut(), |executed| executed.address),
            ignored: self.ignored.as_ref().map_or(std::ptr::null_mut(), |ignored| ignored.address),
            ..self.raw
        })
    }
}

/// Merge the `executed` tables of all ranks in host memory, where no collective does: the whole
/// rows of all tokens (`routecap_received_merge`). Experimental.
///
/// `merged` receives the highest id of each cell, -1 where no table has one. Every table is as long
/// as `merged`. Needs no capturer.
///
/// # Errors
///
/// [`ErrorKind::Conflict`] if two tables have different ids in one cell (nothing is written),
/// [`ErrorKind::Argument`] if a table has another length.
pub fn received_merge(executed: &[&[i32]], merged: &mut [i32]) -> Result<()> {
    if let Some(table) = executed.iter().find(|table| table.len() != merged.len()) {
        return Err(Error::new(
            ErrorKind::Argument,
            format!("a table has {} cells, merged has {}", table.len(), merged.len()),
        ));
    }
    let tables: Vec<*const i32> = executed.iter().map(|table| table.as_ptr()).collect();
    // SAFETY: `tables` are that many arrays of merged.len() ids, as is `merged`, which is nobody
    // else's.
    check(unsafe {
        sys::routecap_received_merge(
            tables.as_ptr(),
            tables.len(),
            merged.len(),
            merged.as_mut_ptr(),
        )
    })
    .map(drop)
}
