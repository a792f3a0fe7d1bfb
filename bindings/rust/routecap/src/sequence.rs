//! One conversation out of many turns.

use std::fmt;
use std::ptr::{NonNull, null_mut};

use crate::error::{Completeness, ErrorKind, Result, check};
use crate::layers::{Layers, layer_methods, list};
use crate::{ALL, IdSpace, Routing, WeightsType, sys};

/// What a sequence holds (`routecap_sequence_config`), a builder.
#[derive(Clone, Debug, Default)]
pub struct SequenceConfig {
    raw: sys::routecap_sequence_config,
    of: Layers,
}

// SAFETY: the pointers are filled in for a call only.
unsafe impl Send for SequenceConfig {}
// SAFETY: as above.
unsafe impl Sync for SequenceConfig {}

impl SequenceConfig {
    /// Rows of so many layers and of k ids in `[0, experts)`.
    pub fn new(layers: u32, k: u32, experts: u32) -> Self {
        let struct_size = size_of::<sys::routecap_sequence_config>() as u32;
        SequenceConfig {
            raw: sys::routecap_sequence_config {
                struct_size,
                layers,
                k,
                experts,
                ..Default::default()
            },
            ..Default::default()
        }
    }

    layer_methods!();

    /// What the ids number.
    pub fn id_space(mut self, id_space: IdSpace) -> Self {
        self.raw.id_space = id_space.value();
        self
    }

    /// It has weights of this type. Default none.
    pub fn weights(mut self, weights: WeightsType) -> Self {
        self.raw.weights_dtype = weights as i32;
        self
    }

    /// The most memory for rows and tokens, of the sequence and all its forks together; 0: no
    /// limit.
    pub fn budget_bytes(mut self, bytes: u64) -> Self {
        self.raw.budget_bytes = bytes;
        self
    }

    /// Make an empty sequence (`routecap_sequence_create`).
    ///
    /// # Errors
    ///
    /// [`Argument`](ErrorKind::Argument); [`ShapeMismatch`](ErrorKind::ShapeMismatch) for a list that
    /// is not as long as there are layers.
    pub fn create(&self) -> Result<Sequence> {
        self.of.check(self.raw.layers)?;
        let config = sys::routecap_sequence_config {
            layer_map: list(&self.of.map),
            layer_experts: list(&self.of.experts),
            layer_k: list(&self.of.k),
            layer_min_k: list(&self.of.min_k),
            layer_visit: list(&self.of.visit),
            ..self.raw
        };
        let mut sequence = null_mut();
        // SAFETY: the struct has the size that it says, and its arrays are as long as there are
        // layers.
        check(unsafe { sys::routecap_sequence_create(&config, &mut sequence) })?;
        // SAFETY: the call gave it out.
        Ok(unsafe { Sequence::delivered(sequence) })
    }
}

/// Which cell stays where a sequence and a turn both have one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(i32)]
#[non_exhaustive]
pub enum AppendPolicy {
    /// The sequence's, of the turn that sampled the next token (`ROUTECAP_APPEND_KEEP`).
    #[default]
    Keep = sys::ROUTECAP_APPEND_KEEP,
    /// The turn's (`ROUTECAP_APPEND_NEWEST`).
    Newest = sys::ROUTECAP_APPEND_NEWEST,
    /// Both must be the same set of ids, and all tokens that both have must be equal
    /// (`ROUTECAP_APPEND_EQUAL`).
    Equal = sys::ROUTECAP_APPEND_EQUAL,
}

/// What is known of a turn beside its tokens and rows (`routecap_append_options`), a builder.
#[derive(Clone, Copy, Debug)]
pub struct AppendOptions {
    raw: sys::routecap_append_options,
}

impl Default for AppendOptions {
    fn default() -> Self {
        AppendOptions {
            raw: sys::routecap_append_options {
                struct_size: size_of::<sys::routecap_append_options>() as u32,
                ..Default::default()
            },
        }
    }
}

impl AppendOptions {
    /// The defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// Which cell stays.
    pub fn policy(mut self, policy: AppendPolicy) -> Self {
        self.raw.policy = policy as i32;
        self
    }

    /// How many tokens, counted from token 0 of the sequence, were the turn's prompt; it sampled the
    /// others.
    pub fn prompt_tokens(mut self, tokens: u64) -> Self {
        self.raw.prompt_tokens = tokens;
        self
    }

    /// The turn's number in the spans; 0: one more than the highest so far.
    pub fn call(mut self, call: u64) -> Self {
        self.raw.call = call;
        self
    }

    /// Of the turn's spans: the version of the weights, for instance.
    pub fn tag(mut self, tag: u64) -> Self {
        self.raw.tag = tag;
        self
    }

    /// Of the turn's spans, a number of the caller's: which engine, say.
    pub fn origin(mut self, origin: u32) -> Self {
        self.raw.origin = origin;
        self
    }
}

/// What one append did, or all together (`routecap_append_report`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct AppendReport {
    /// The turn's number; of all: the highest.
    pub call: u64,
    /// Of the sequence now.
    pub tokens: u64,
    /// The turn's tokens are the sequence's up to here. Of all: of the last append.
    pub tokens_common: u64,
    /// Tokens that the turn did not have.
    pub tokens_cut: u64,
    /// Rows that were there and were cut with them.
    pub rows_cut: u64,
    /// Rows of which both had a cell.
    pub rows_overlap: u64,
    /// Of these: rows with other ids in such a cell.
    pub rows_differed: u64,
    /// Position of the first of these.
    pub first_differed: Option<u64>,
    /// Rows in which the sequence took a cell from the turn.
    pub rows_taken: u64,
    /// Of these: boundary rows.
    pub rows_boundary: u64,
    /// Of these: rows before the boundary row that had a hole there.
    pub rows_filled: u64,
    /// Of these: rows in which a cell of the turn replaced another.
    pub rows_replaced: u64,
    /// Rows of the turn at or after its last token, which are ignored.
    pub rows_beyond: u64,
    /// Rows of the sequence now of which a cell is missing.
    pub rows_missing: u64,
    /// Memory now for rows and tokens, of the sequence and all its forks.
    pub bytes: u64,
}

impl AppendReport {
    fn memory() -> sys::routecap_append_report {
        sys::routecap_append_report {
            struct_size: size_of::<sys::routecap_append_report>() as u32,
            ..Default::default()
        }
    }

    fn of(raw: &sys::routecap_append_report) -> AppendReport {
        AppendReport {
            call: raw.call,
            tokens: raw.tokens,
            tokens_common: raw.tokens_common,
            tokens_cut: raw.tokens_cut,
            rows_cut: raw.rows_cut,
            rows_overlap: raw.rows_overlap,
            rows_differed: raw.rows_differed,
            first_differed: (raw.first_differed != ALL).then_some(raw.first_differed),
            rows_taken: raw.rows_taken,
            rows_boundary: raw.rows_boundary,
            rows_filled: raw.rows_filled,
            rows_replaced: raw.rows_replaced,
            rows_beyond: raw.rows_beyond,
            rows_missing: raw.rows_missing,
            bytes: raw.bytes,
        }
    }

    /// Whether no cell of the sequence is missing.
    pub fn completeness(&self) -> Completeness {
        if self.rows_missing == 0 { Completeness::Complete } else { Completeness::Incomplete }
    }
}

/// Consecutive rows that came from one turn (`routecap_sequence_span`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SequenceSpan {
    /// Position of the first row.
    pub first: u64,
    /// How many.
    pub rows: u64,
    /// Number of the turn.
    pub call: u64,
    /// As [`AppendOptions::tag`] gave it.
    pub tag: u64,
    /// As [`AppendOptions::origin`] gave it.
    pub origin: u32,
}

/// One conversation: its token ids, and the rows that its turns brought, each once
/// (`routecap_sequence`).
///
/// S tokens have S-1 rows. One thread at a time uses a sequence; its forks are other sequences.
/// Dropping it frees it (`routecap_sequence_free`).
///
/// ```
/// use routecap::{AppendOptions, Arrays, ArraySegment, Routing, SequenceConfig, Trust};
/// # fn main() -> routecap::Result<()> {
/// # let routing = |ids: &[u8]| {
/// #     let rows = ids.len() as u64 / 2;
/// #     Routing::import(&Arrays::new(1, 2, 0, rows).experts(8).segment(ArraySegment::new(0, rows).ids(ids)), Trust::None)
/// # };
/// # let (first, second) = (routing(&[0, 1, 2, 3])?, routing(&[0, 1, 2, 3, 4, 5])?);
/// let mut sequence = SequenceConfig::new(1, 2, 8).create()?;
/// sequence.append(&[11, 12, 13], 0, Some(&first), &AppendOptions::new())?;
/// let report = sequence.append(&[11, 12, 13, 14], 0, Some(&second), &AppendOptions::new().tag(7))?;
/// assert_eq!((report.tokens_common, report.rows_boundary), (3, 1));
/// assert_eq!(sequence.routing()?.view()?.rows(), 3);
/// # Ok(())
/// # }
/// ```
pub struct Sequence {
    raw: NonNull<sys::routecap_sequence>,
}

// SAFETY: any thread may use it, one at a time.
unsafe impl Send for Sequence {}

impl fmt::Debug for Sequence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.report() {
            Ok(report) => f
                .debug_struct("Sequence")
                .field("tokens", &report.tokens)
                .field("rows_missing", &report.rows_missing)
                .finish(),
            Err(error) => write!(f, "Sequence({})", error.kind()),
        }
    }
}

impl Drop for Sequence {
    fn drop(&mut self) {
        // SAFETY: it is freed once.
        unsafe { sys::routecap_sequence_free(self.raw.as_ptr()) }
    }
}

impl Sequence {
    /// What a call that succeeded has given out.
    ///
    /// # Safety
    ///
    /// Nobody else frees `sequence`.
    unsafe fn delivered(sequence: *mut sys::routecap_sequence) -> Sequence {
        Sequence {
            raw: NonNull::new(sequence).expect("a call that succeeds delivers its sequence"),
        }
    }

    /// The library's handle, for functions of [`sys`]. It is valid as long as this sequence lives,
    /// and must not be freed.
    pub fn as_raw(&self) -> *mut sys::routecap_sequence {
        self.raw.as_ptr()
    }

    /// An empty sequence for rows as those of a routing.
    pub fn like(routing: &Routing) -> Result<Sequence> {
        let view = routing.view()?;
        let mut config = SequenceConfig::new(view.layers(), view.k(), 0)
            .layer_map(view.layer_map())
            .layer_experts(view.layer_experts())
            .layer_k(view.layer_k())
            .layer_min_k(view.layer_min_k())
            .layer_visit(view.layer_visit());
        if let Some(weights) = view.weights_type() {
            config = config.weights(weights);
        }
        config.id_space(view.id_space()).create()
    }

    /// Add a turn: its tokens from position `token_start` on, and its rows
    /// (`routecap_sequence_append`). Give all tokens of the turn, from 0 on, if you have them: only
    /// tokens that are given are compared.
    ///
    /// # Errors
    ///
    /// [`OutOfRange`](ErrorKind::OutOfRange), [`ShapeMismatch`](ErrorKind::ShapeMismatch),
    /// [`Conflict`](ErrorKind::Conflict) with [`AppendPolicy::Equal`],
    /// [`NotReady`](ErrorKind::NotReady), [`State`](ErrorKind::State) if the sequence does not know
    /// its tokens, [`NoMemory`](ErrorKind::NoMemory). Nothing has changed then.
    pub fn append(
        &mut self,
        tokens: &[i32],
        token_start: u64,
        routing: Option<&Routing>,
        options: &AppendOptions,
    ) -> Result<AppendReport> {
        let mut report = AppendReport::memory();
        let rows = routing.map_or(null_mut(), Routing::as_raw);
        // SAFETY: the sequence and the routing live, and the structs have the sizes that they say.
        check(unsafe {
            sys::routecap_sequence_append(
                self.as_raw(),
                tokens.as_ptr(),
                token_start,
                tokens.len() as u64,
                rows,
                &options.raw,
                &mut report,
            )
        })?;
        Ok(AppendReport::of(&report))
    }

    /// Keep the first `tokens` tokens (`routecap_sequence_truncate`).
    ///
    /// # Errors
    ///
    /// [`State`](ErrorKind::State) if the sequence does not know its tokens, and `tokens` is not a
    /// multiple of [`DIGEST_TOKENS`](crate::DIGEST_TOKENS).
    pub fn truncate(&mut self, tokens: u64) -> Result<()> {
        // SAFETY: the sequence lives.
        check(unsafe { sys::routecap_sequence_truncate(self.as_raw(), tokens) }).map(drop)
    }

    /// A sequence that begins with the first `tokens` tokens of this one, or with [`ALL`]
    /// (`routecap_sequence_fork`). Rows are shared.
    ///
    /// # Errors
    ///
    /// [`OutOfRange`](ErrorKind::OutOfRange); [`State`](ErrorKind::State) as of
    /// [`truncate`](Self::truncate); [`NoMemory`](ErrorKind::NoMemory).
    pub fn fork(&self, tokens: u64) -> Result<Sequence> {
        let mut child = null_mut();
        // SAFETY: the sequence lives.
        check(unsafe { sys::routecap_sequence_fork(self.as_raw(), tokens, &mut child) })?;
        // SAFETY: the call gave it out.
        Ok(unsafe { Sequence::delivered(child) })
    }

    /// The rows of the whole conversation, as they are now (`routecap_sequence_routing`). Pages are
    /// shared.
    pub fn routing(&self) -> Result<Routing> {
        let mut routing = null_mut();
        // SAFETY: the sequence lives.
        check(unsafe { sys::routecap_sequence_routing(self.as_raw(), &mut routing) })?;
        // SAFETY: the call gave it out.
        Ok(unsafe { Routing::delivered(routing) })
    }

    /// Which rows came from which turn (`routecap_sequence_spans`).
    pub fn spans(&self) -> Result<Vec<SequenceSpan>> {
        let size = size_of::<sys::routecap_sequence_span>();
        let mut count = 0;
        // SAFETY: nothing is written but the count.
        check(unsafe {
            sys::routecap_sequence_spans(self.as_raw(), null_mut(), size, 0, &mut count)
        })?;
        let mut raw = vec![sys::routecap_sequence_span::default(); count as usize];
        // SAFETY: there is room for as many as are said.
        check(unsafe {
            sys::routecap_sequence_spans(
                self.as_raw(),
                raw.as_mut_ptr(),
                size,
                raw.len(),
                &mut count,
            )
        })?;
        Ok(raw
            .iter()
            .map(|span| SequenceSpan {
                first: span.first,
                rows: span.rows,
                call: span.call,
                tag: span.tag,
                origin: span.origin,
            })
            .collect())
    }

    /// The token ids from position `first` on (`routecap_sequence_tokens`).
    ///
    /// # Errors
    ///
    /// [`OutOfRange`](ErrorKind::OutOfRange); [`State`](ErrorKind::State) if the sequence does not
    /// know them.
    pub fn tokens(&self, first: u64) -> Result<Vec<i32>> {
        let mut count = 0;
        // SAFETY: nothing is written but the count.
        check(unsafe {
            sys::routecap_sequence_tokens(self.as_raw(), first, null_mut(), 0, &mut count)
        })?;
        let mut tokens = vec![0; count as usize];
        // SAFETY: there is room for as many as are said.
        check(unsafe {
            sys::routecap_sequence_tokens(
                self.as_raw(),
                first,
                tokens.as_mut_ptr(),
                tokens.len(),
                &mut count,
            )
        })?;
        Ok(tokens)
    }

    /// What all appends together did, and what the sequence is now (`routecap_sequence_report`).
    pub fn report(&self) -> Result<AppendReport> {
        let mut report = AppendReport::memory();
        // SAFETY: the struct has the size that it says.
        check(unsafe { sys::routecap_sequence_report(self.as_raw(), &mut report) })?;
        Ok(AppendReport::of(&report))
    }

    /// The sequence as bytes (`routecap_sequence_serialize`), with its tokens or with digests of
    /// them only.
    ///
    /// # Errors
    ///
    /// [`State`](ErrorKind::State) if tokens are asked for that the sequence does not know.
    pub fn serialize(&self, with_tokens: bool) -> Result<Vec<u8>> {
        let flags = if with_tokens { sys::ROUTECAP_SEQUENCE_WITH_TOKENS } else { 0 };
        let mut needed = 0;
        // SAFETY: nothing is written but the size.
        match check(unsafe {
            sys::routecap_sequence_serialize(self.as_raw(), flags, null_mut(), 0, &mut needed)
        }) {
            Err(error) if error.kind() != ErrorKind::BufferTooSmall => return Err(error),
            _ => {}
        }
        let mut bytes = Vec::<u8>::with_capacity(needed as usize);
        // SAFETY: there is room for so many bytes.
        check(unsafe {
            sys::routecap_sequence_serialize(
                self.as_raw(),
                flags,
                bytes.as_mut_ptr().cast(),
                needed as usize,
                null_mut(),
            )
        })?;
        // SAFETY: the call has written them.
        unsafe { bytes.set_len(needed as usize) };
        Ok(bytes)
    }

    /// The sequence of such bytes (`routecap_sequence_deserialize`). Nothing in them is trusted.
    /// `budget_bytes` is as of [`SequenceConfig`].
    ///
    /// # Errors
    ///
    /// [`Format`](ErrorKind::Format); [`NoMemory`](ErrorKind::NoMemory).
    pub fn deserialize(bytes: &[u8], budget_bytes: u64) -> Result<Sequence> {
        let mut sequence = null_mut();
        // SAFETY: so many bytes are there.
        check(unsafe {
            sys::routecap_sequence_deserialize(
                bytes.as_ptr().cast(),
                bytes.len(),
                budget_bytes,
                &mut sequence,
            )
        })?;
        // SAFETY: the call gave it out.
        Ok(unsafe { Sequence::delivered(sequence) })
    }
}
