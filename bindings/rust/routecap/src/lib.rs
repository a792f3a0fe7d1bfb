//! routecap captures which experts every token of a mixture-of-experts model was sent to, in every
//! layer, from any inference engine, and hands that out request by request.
//!
//! This crate is the safe layer over the C library, whose header is the manual; its words mean the
//! same here:
//!
//! - A *capturer*, one per rank and device, is two values: the [`Capturer`], which all threads
//!   share, and the [`Forward`], whose calls take the engine's stream and are made by one thread at
//!   a time.
//! - A *step* is one forward pass. Its ids get into the *sink*, because routers write them there
//!   ([`Forward::sink`]) or they are recorded ([`Forward::record`]). [`Span`]s say which of its
//!   rows belong to which *request*.
//! - A [`Routing`] is what is read out: rows of ids, with validity beside them, because every id,
//!   zero included, is an ordinary expert. Row i is the routing when token i was *input*, so a
//!   sequence of S tokens has S-1 rows.
//!
//! ```
//! use routecap::{Config, CopyOptions, IssueOptions, Source, Span, Stream};
//!
//! # fn main() -> routecap::Result<()> {
//! # let (layers, k, tokens) = (2, 2, 3);
//! let (capturer, mut forward) = Config::host().layers(layers).k(k).experts(8).rows(64).create()?; // once, for each rank
//!
//! let request = capturer.open()?; // for each sequence
//!
//! forward.begin(tokens, Stream::HOST)?; // around each forward pass
//! for layer in 0..layers {
//!     let topk = [0i32, 1, 5, 4, 2, 7]; // what the router of this layer chose: [tokens, k]
//!     forward.record(layer, &Source::new(&topk, tokens), Stream::HOST)?;
//! }
//! forward.snapshot(Stream::HOST)?;
//! let spans = [Span::new(request, 0, 0, tokens)]; // whose rows these were
//! forward.issue(&spans, &IssueOptions::new(), Stream::HOST)?.step()?; // an error if the step is lost
//!
//! let routing = capturer.finish(request, tokens as u64)?; // when the sequence ends
//! assert!(routing.wait()?.is_complete()); // on any thread
//! for row in routing.view()?.iter() {
//!     println!("token {}: {:?}", row.position(), row.ids());
//! }
//! let ids = routing.to_vec::<i64>(&CopyOptions::new())?.ids; // [rows, layers, k]
//! # assert_eq!(ids.len(), 12);
//! # Ok(())
//! # }
//! ```
//!
//! # Errors
//!
//! A call that fails changes nothing and returns an [`Error`] with a [kind](ErrorKind) and the
//! library's line of text. What is not whole, but delivered, is no error: [`Completeness`],
//! [`Landing`], [`Issued`]. These are not to be dropped unseen: the compiler warns.
//!
//! # Memory and `unsafe`
//!
//! On the host backend everything is safe: calls take slices, and check that they are long enough.
//! On the CUDA backend the library reads and writes memory of the device when a stream reaches its
//! work, which nobody can check: streams ([`Stream::from_raw`]), memory of the device
//! ([`Slice::device`] and its like) and adopted sinks ([`Forward::bind`]) are made by `unsafe`
//! functions that say what to keep. All calls that take them are safe.
//!
//! # Features
//!
//! - `vendored`: build the C++ library from the sources in `routecap-sys` and link it statically,
//!   instead of finding an installed one.
//! - `ndarray`: sources from, and copies to, arrays of the crate `ndarray`.
#![deny(missing_docs)]
#![deny(unsafe_op_in_unsafe_fn)]

#[cfg(feature = "ndarray")]
mod array;
mod capturer;
mod config;
mod copy;
mod coverage;
mod declared;
mod error;
mod forward;
mod import;
mod layers;
mod load;
mod log;
mod memory;
mod number;
mod plan;
mod probe;
mod range;
mod received;
mod request;
mod router;
mod routing;
mod sequence;
mod serialized;
mod source;
mod stats;
mod step;
mod store;
mod view;
mod weights;
mod wire;

#[cfg(feature = "ndarray")]
pub use array::{CopiedArray, SegmentArray};
pub use capturer::Capturer;
pub use config::{Backend, BackendInfo, Config, IdSpace, Memory, Provenance, Role};
pub use copy::{Copied, CopyOptions, Order, Strictness};
pub use coverage::{Coverage, Missing, Reason};
pub use error::{Completeness, Error, ErrorKind, ItemStatus, Result, last_message, status_name};
pub use forward::{Forward, Sink};
pub use import::{ArraySegment, Arrays, Trust};
pub use load::{Load, Phase};
pub use log::{LogLevel, set_log, unset_log};
pub use memory::{
    AnySlice, BF16, DType, Element, F16, IdElement, IdWeight, Slice, SliceMut, Stream,
};
pub use plan::{
    Plan, PlanClass, PlanConfig, PlanContext, PlanFill, PlanLayout, PlanLost, PlanRange,
    PlanReport, PlanShape, PlanTarget,
};
pub use probe::LayerProbe;
pub use range::{ALL, LANDED, Rows};
pub use received::{Received, ReceivedCounts};
pub use request::{
    AcceptItem, Extract, ExtractItem, FinishItem, Kept, Policy, RequestGuard, RequestId,
};
pub use router::{GroupScore, Logits, Method, Router, Score};
pub use routing::Routing;
pub use sequence::{
    AppendOptions, AppendPolicy, AppendReport, Sequence, SequenceConfig, SequenceSpan,
};
pub use serialized::{Piece, SerializedInfo, Splice, serialized_info, slice_serialized, splice};
pub use source::{LayerSource, Source};
pub use stats::{LayerStats, Stats};
pub use step::{
    ArrivedRows, Filing, Finalized, IssueOptions, Issued, Landing, Snapshot, Span, Step,
};
pub use store::{Adoption, Prefix, Store, StoreConfig, key_chain};
pub use view::{Ids, Row, Segment, View};
pub use weights::{CopiedWeights, WeightElement, Weights, WeightsType};
pub use wire::{
    WireColumns, WireDecoder, WireDescription, WireFacts, WireFormat, WireHint, WireOptions,
    WireReport,
};

/// The README's program, compiled and run.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

/// The raw bindings, for what this layer does not reach.
pub use routecap_sys as sys;

/// Most captured layers.
pub const MAX_LAYERS: u32 = sys::ROUTECAP_MAX_LAYERS;
/// Most experts per token.
pub const MAX_K: u32 = sys::ROUTECAP_MAX_K;
/// Most experts of a layer.
pub const MAX_EXPERTS: u32 = sys::ROUTECAP_MAX_EXPERTS;
/// Most experts of a layer that is routed from logits.
pub const MAX_ROUTED_EXPERTS: u32 = sys::ROUTECAP_MAX_ROUTED_EXPERTS;
/// Most groups of its experts.
pub const MAX_GROUPS: u32 = sys::ROUTECAP_MAX_GROUPS;
/// Most sink rows, that is, tokens of one forward pass.
pub const MAX_ROWS: u32 = sys::ROUTECAP_MAX_ROWS;
/// Most source tokens of one dispatch: its ranks times its tokens per rank.
pub const MAX_RECEIVED: u32 = sys::ROUTECAP_MAX_RECEIVED;
/// Most steps in flight.
pub const MAX_SLOTS: u32 = sys::ROUTECAP_MAX_SLOTS;
/// Positions are below this.
pub const MAX_POSITION: u64 = sys::ROUTECAP_MAX_POSITION;
/// In a column of a cell: no expert was chosen for it.
pub const NO_EXPERT: i32 = sys::ROUTECAP_NO_EXPERT;
/// As many pieces are enough for a splice of two routings in version 1 of the serialised form.
pub const MAX_PIECES: u32 = sys::ROUTECAP_MAX_PIECES;
/// A digest of a sequence's tokens stands for this many, and all before them.
pub const DIGEST_TOKENS: u64 = sys::ROUTECAP_DIGEST_TOKENS as u64;
/// Most rows of a block.
pub const MAX_BLOCK_ROWS: u32 = sys::ROUTECAP_MAX_BLOCK_ROWS;
/// Fewest bytes of a key.
pub const MIN_KEY_BYTES: u32 = sys::ROUTECAP_MIN_KEY_BYTES;
/// Most bytes of a key.
pub const MAX_KEY_BYTES: u32 = sys::ROUTECAP_MAX_KEY_BYTES;
/// Most rows of a micro-batch with its padding, of all ranks.
pub const MAX_PLAN_ROWS: u32 = sys::ROUTECAP_MAX_PLAN_ROWS;
/// Most sequences of a micro-batch.
pub const MAX_PLAN_SAMPLES: u32 = sys::ROUTECAP_MAX_PLAN_SAMPLES;
/// Most ranks of a kind of parallelism.
pub const MAX_RANKS: u32 = sys::ROUTECAP_MAX_RANKS;
/// Bytes of the fixed part of a serialised routing's header.
pub const SERIALIZED_MIN: usize = sys::ROUTECAP_SERIALIZED_MIN as usize;

/// The version of the loaded library: major * 10000 + minor * 100 + patch (`routecap_version`).
/// This crate was made for the one of `ROUTECAP_VERSION_MAJOR`, `ROUTECAP_VERSION_MINOR` and
/// `ROUTECAP_VERSION_PATCH`, and runs with every later one of the same major version.
pub fn version() -> u32 {
    // SAFETY: never fails.
    unsafe { sys::routecap_version() }
}

/// The library's functions as one table (`routecap_get_api`), to be handed to code that was not
/// linked with it; `None` if the loaded library cannot stand in for the version that this crate was
/// made for.
pub fn api() -> Option<&'static sys::routecap_api> {
    // SAFETY: the table is in static storage, and at least as large as that version's.
    unsafe {
        sys::routecap_get_api(sys::ROUTECAP_VERSION_MAJOR, sys::ROUTECAP_VERSION_MINOR).as_ref()
    }
}
