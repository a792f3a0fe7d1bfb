//! Raw bindings to routecap, a library that captures which experts every token of a
//! mixture-of-experts model was sent to.
//!
//! `bindings.rs` is what bindgen makes of `routecap.h`, the library's manual: every function,
//! struct and constant has its C name and the header's own words. The crate `routecap` is the safe
//! layer on top; use this one where that does not reach.
//!
//! Numbers have the type of the field or argument that takes them: statuses, dtypes and other
//! choices `i32`, flags and limits `u32`, counts of rows `u64`. Every struct is [`Default`] with
//! all fields zero, `struct_size` included: set it.
//!
//! # Linking
//!
//! `ROUTECAP_LIB_DIR` names a directory with the library, otherwise pkg-config finds it, and the
//! feature `vendored` builds it from the sources in this crate; the README says more. Dependents'
//! build scripts find the header's directory in `DEP_ROUTECAP_INCLUDE`, where it is known.
#![no_std]
#![allow(
    non_camel_case_types,
    clippy::doc_lazy_continuation,
    clippy::type_complexity,
    rustdoc::broken_intra_doc_links,
    rustdoc::invalid_html_tags
)]

mod bindings;

pub use bindings::*;
