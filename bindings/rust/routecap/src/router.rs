//! Routing again from logits, for kernels that expose no ids.

use std::fmt;

pub use crate::declared::{GroupScore, Method, Score};
use crate::error::{Error, ErrorKind, Result, check};
use crate::memory::{AnySlice, Checker, Layout, Slice, SliceMut, reach};
use crate::number::named;
use crate::source::{Placement, address, address_at, placement_methods};
use crate::sys;

/// How a router chooses k of its experts (`routecap_router`).
///
/// The key of an expert is its score plus its bias. With groups, only experts of the kept groups
/// with the largest group scores remain. The k largest keys win; of equal ones the lower id (of
/// equal groups the lower group). Ids are in order of falling keys, a column each.
#[derive(Clone, Copy)]
pub struct Router<'a> {
    raw: sys::routecap_router,
    bias: Option<AnySlice<'a>>,
    hash_table: Option<Slice<'a, i32>>,
}

// SAFETY: the pointers of `raw` are NULL; what a router borrows is in the slices.
unsafe impl Send for Router<'_> {}
// SAFETY: as above.
unsafe impl Sync for Router<'_> {}

impl fmt::Debug for Router<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let raw = &self.raw;
        let mut shown = f.debug_struct("Router");
        shown.field("score", named!(raw.score, Score: Logit, Softmax, Sigmoid, SqrtSoftplus));
        shown.field("group_score", named!(raw.group_score, GroupScore: Max, Top2, Top2Distinct));
        shown
            .field("groups", &raw.groups)
            .field("groups_kept", &raw.groups_kept)
            .field("scale", &raw.scale)
            .field("floor", &raw.floor);
        for (name, flag) in [
            ("rank_logits", sys::ROUTECAP_ROUTER_RANK_LOGITS),
            ("renormalize", sys::ROUTECAP_ROUTER_RENORMALIZE),
            ("floor_max", sys::ROUTECAP_ROUTER_FLOOR_MAX),
            ("sigmoid_tanh", sys::ROUTECAP_ROUTER_SIGMOID_TANH),
            ("groups_zero", sys::ROUTECAP_ROUTER_GROUPS_ZERO),
        ] {
            shown.field(name, &(raw.flags & flag != 0));
        }
        shown
            .field("bias", &self.bias)
            .field("hash_table", &self.hash_table)
            .field("hash_tokens", &raw.hash_tokens)
            .finish()
    }
}

impl<'a> Router<'a> {
    /// A method in use (`routecap_router_init`); what it takes from the model remains to be set.
    pub fn new(method: Method) -> Result<Self> {
        let mut raw = sys::routecap_router::default();
        // SAFETY: `raw` is a router of the size given.
        check(unsafe { sys::routecap_router_init(&mut raw, size_of_val(&raw), method as i32) })?;
        Ok(Router { raw, bias: None, hash_table: None })
    }

    /// One that is built from nothing: it ranks the scores and weighs with them, without bias,
    /// groups or normalisation, until more is set.
    pub fn custom(score: Score) -> Self {
        let raw = sys::routecap_router {
            struct_size: size_of::<sys::routecap_router>() as u32,
            score: score as i32,
            ..Default::default()
        };
        Router { raw, bias: None, hash_table: None }
    }

    /// `groups` groups of equal size, up to [`MAX_GROUPS`](crate::MAX_GROUPS), of which `kept`
    /// remain, with k experts at least.
    pub fn groups(mut self, groups: u32, kept: u32) -> Self {
        (self.raw.groups, self.raw.groups_kept) = (groups, kept);
        self
    }

    /// `[experts]` of `f32`, [`F16`](crate::F16) or [`BF16`](crate::BF16): ranks experts and does
    /// not weigh them.
    pub fn bias(mut self, bias: impl Into<AnySlice<'a>>) -> Self {
        self.bias = Some(bias.into());
        self
    }

    /// Weights are multiplied by it.
    pub fn scale(mut self, scale: f32) -> Self {
        self.raw.scale = scale;
        self
    }

    /// See [`renormalize`](Self::renormalize). The method sets what its models use.
    pub fn floor(mut self, floor: f32) -> Self {
        self.raw.floor = floor;
        self
    }

    /// `[tokens, k]` ids by token: no key is looked at, logits serve for weights only.
    pub fn hash_table(mut self, table: impl Into<Slice<'a, i32>>, tokens: u32) -> Self {
        self.hash_table = Some(table.into());
        self.raw.hash_tokens = tokens;
        self
    }

    /// The score of an expert.
    pub fn score(mut self, score: Score) -> Self {
        self.raw.score = score as i32;
        self
    }

    /// The score of a group.
    pub fn group_score(mut self, score: GroupScore) -> Self {
        self.raw.group_score = score as i32;
        self
    }

    fn flag(mut self, flag: u32, on: bool) -> Self {
        self.raw.flags = if on { self.raw.flags | flag } else { self.raw.flags & !flag };
        self
    }

    /// The key is x + bias, not score + bias (`ROUTECAP_ROUTER_RANK_LOGITS`).
    pub fn rank_logits(self, on: bool) -> Self {
        self.flag(sys::ROUTECAP_ROUTER_RANK_LOGITS, on)
    }

    /// Weights are divided by their sum, and the floor is added to that
    /// (`ROUTECAP_ROUTER_RENORMALIZE`).
    pub fn renormalize(self, on: bool) -> Self {
        self.flag(sys::ROUTECAP_ROUTER_RENORMALIZE, on)
    }

    /// The sum is at least the floor, which is not added (`ROUTECAP_ROUTER_FLOOR_MAX`).
    pub fn floor_max(self, on: bool) -> Self {
        self.flag(sys::ROUTECAP_ROUTER_FLOOR_MAX, on)
    }

    /// Sigmoid as 0.5 * tanh(0.5 * x) + 0.5 (`ROUTECAP_ROUTER_SIGMOID_TANH`).
    pub fn sigmoid_tanh(self, on: bool) -> Self {
        self.flag(sys::ROUTECAP_ROUTER_SIGMOID_TANH, on)
    }

    /// Experts of groups that are not kept have the key 0; without it they are out of the running
    /// (`ROUTECAP_ROUTER_GROUPS_ZERO`).
    pub fn groups_zero(self, on: bool) -> Self {
        self.flag(sys::ROUTECAP_ROUTER_GROUPS_ZERO, on)
    }

    /// In C's form, its memory checked against what a layer of `experts` experts will read.
    pub(crate) fn checked(
        &self,
        checker: &Checker,
        k: u32,
        experts: u32,
    ) -> Result<sys::routecap_router> {
        if let Some(bias) = &self.bias {
            checker.exactly("bias", bias.place, bias.len, experts.into(), || {
                "one for each expert".into()
            })?;
        }
        if let Some(table) = self.hash_table {
            let needed = u64::from(self.raw.hash_tokens) * u64::from(k);
            checker.exactly("hash_table", table.place, table.len, needed, || {
                format!("{} tokens x k", self.raw.hash_tokens)
            })?;
        }
        Ok(sys::routecap_router {
            bias: address_at(self.bias, 0),
            bias_dtype: self.bias.map_or(0, |bias| bias.dtype as i32),
            hash_table: address(self.hash_table),
            ..self.raw
        })
    }
}

/// The logits of one layer: a matrix of rows x experts elements of `f32`, [`F16`](crate::F16) or
/// [`BF16`](crate::BF16) (`routecap_logits`).
#[derive(Debug)]
pub struct Logits<'a> {
    logits: Option<AnySlice<'a>>,
    pub(crate) layout: Layout,
    placement: Placement<'a>,
    tokens: Option<AnySlice<'a>>,
    weights: Option<SliceMut<'a, f32>>,
    weights_stride: i64,
}

impl<'a> Logits<'a> {
    /// `rows` rows of `logits`, dense, one after another.
    pub fn new(logits: impl Into<AnySlice<'a>>, rows: u32) -> Self {
        Logits { logits: Some(logits.into()), ..Logits::none(rows) }
    }

    /// No logits: for a router with a hash table, if no weights are wanted.
    pub fn none(rows: u32) -> Self {
        Logits {
            logits: None,
            layout: Layout::default(),
            placement: Placement { rows, ..Placement::default() },
            tokens: None,
            weights: None,
            weights_stride: 0,
        }
    }

    placement_methods!();

    /// The element that is row 0, column 0. Default 0.
    pub fn start(mut self, element: usize) -> Self {
        self.layout.change().start = element;
        self
    }

    /// Elements from one row to the next. Default `experts`.
    pub fn row_stride(mut self, elements: i64) -> Self {
        self.layout.change().row_stride = elements;
        self
    }

    /// Elements from one column to the next. Default 1.
    pub fn column_stride(mut self, elements: i64) -> Self {
        self.layout.change().column_stride = elements;
        self
    }

    /// `[rows]` of `i32` or `i64`: the input token of each row, where the router has a hash table.
    pub fn tokens(mut self, tokens: impl Into<AnySlice<'a>>) -> Self {
        self.tokens = Some(tokens.into());
        self
    }

    /// Columns: k or more, and no more than the layer's or
    /// [`MAX_ROUTED_EXPERTS`](crate::MAX_ROUTED_EXPERTS). Default the layer's.
    pub fn experts(mut self, experts: u32) -> Self {
        self.layout.columns = experts;
        self
    }

    /// `[rows, stride]` receives the weight of each column, for every live row; `stride` 0 means k.
    /// A disabled capturer writes none.
    pub fn weights(mut self, weights: impl Into<SliceMut<'a, f32>>, stride: i64) -> Self {
        self.weights = Some(weights.into());
        self.weights_stride = stride;
        self
    }

    /// How many experts these logits are of, in a layer of `layer_experts`.
    pub(crate) fn columns(&self, layer_experts: u32) -> u32 {
        self.layout.columns_or(layer_experts)
    }

    /// In C's form, its memory checked against what routing of `experts` experts will read and
    /// write.
    pub(crate) fn checked(
        &mut self,
        checker: &Checker,
        k: u32,
        experts: u32,
    ) -> Result<sys::routecap_logits> {
        let rows = self.placement.rows;
        if let Some(logits) = &self.logits {
            let more = "where they have fewer experts than the layer, say experts";
            self.layout.check(checker, "logits", logits, rows, experts, more)?;
        }
        if let Some(tokens) = &self.tokens {
            checker.exactly("tokens", tokens.place, tokens.len, rows.into(), || {
                "one for each row".into()
            })?;
        }
        if let Some(weights) = &self.weights {
            if self.weights_stride < 0 {
                return Err(Error::new(ErrorKind::Argument, "the stride of weights is negative"));
            }
            if self.weights_stride == 0 {
                let needed = u64::from(rows) * u64::from(k);
                checker.exactly("weights", weights.place, weights.len, needed, || {
                    format!("{rows} rows x k")
                })?;
            } else {
                let reach = reach(rows.into(), k.into(), self.weights_stride, 1);
                checker.reaches("weights", weights.place, weights.len, 0, reach)?;
            }
        }
        self.placement.check(checker)?;
        Ok(sys::routecap_logits {
            struct_size: size_of::<sys::routecap_logits>() as u32,
            dtype: self.logits.map_or(sys::ROUTECAP_DTYPE_F32, |logits| logits.dtype as i32),
            logits: address_at(self.logits, self.layout.start),
            row_stride: self.layout.row_stride,
            column_stride: self.layout.column_stride,
            rows,
            first_row: self.placement.first_row,
            live_rows: address(self.placement.live_rows),
            row_base: address(self.placement.row_base),
            row_index: address(self.placement.row_index),
            tokens: address_at(self.tokens, 0),
            tokens_dtype: self.tokens.map_or(0, |tokens| tokens.dtype as i32),
            experts: self.layout.present(),
            weights: self.weights.as_ref().map_or(std::ptr::null_mut(), |weights| weights.address),
            weights_stride: self.weights_stride,
        })
    }
}
