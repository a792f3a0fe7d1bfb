//! What differs from layer to layer, as configurations take it.

use std::ptr::null;

use crate::error::{Error, ErrorKind, Result};

/// Of each layer one element; empty: the default for all.
#[derive(Clone, Debug, Default)]
pub(crate) struct Layers {
    pub(crate) map: Vec<i32>,
    pub(crate) experts: Vec<u32>,
    pub(crate) k: Vec<u32>,
    pub(crate) min_k: Vec<u32>,
    pub(crate) visit: Vec<u32>,
}

impl Layers {
    /// Refuses a list that is not as long as there are layers.
    pub(crate) fn check(&self, layers: u32) -> Result<()> {
        for (name, given) in [
            ("layer_map", self.map.len()),
            ("layer_experts", self.experts.len()),
            ("layer_k", self.k.len()),
            ("layer_min_k", self.min_k.len()),
            ("layer_visit", self.visit.len()),
        ] {
            check_layers(name, given, layers)?;
        }
        Ok(())
    }
}

/// Refuses a list of so many elements, unless there are none or one for each layer.
pub(crate) fn check_layers(name: &str, given: usize, layers: u32) -> Result<()> {
    if given == 0 || given == layers as usize {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::ShapeMismatch,
        format!("{name} has {given} elements for {layers} layers"),
    ))
}

/// The address of a list, NULL if it is empty.
pub(crate) fn list<T>(values: &[T]) -> *const T {
    if values.is_empty() { null() } else { values.as_ptr() }
}

/// The methods by which a builder takes them; its field is `of`.
macro_rules! layer_methods {
    () => {
        /// `[layers]` index of each captured layer in the decoder, strictly ascending. Default 0, 1,
        /// 2...
        pub fn layer_map(mut self, map: impl Into<Vec<i32>>) -> Self {
            self.of.map = map.into();
            self
        }

        /// `[layers]` experts of each layer, where they differ.
        pub fn layer_experts(mut self, experts: impl Into<Vec<u32>>) -> Self {
            self.of.experts = experts.into();
            self
        }

        /// `[layers]` the most experts of a token in each layer, where they differ. Default k for
        /// all.
        pub fn layer_k(mut self, k: impl Into<Vec<u32>>) -> Self {
            self.of.k = k.into();
            self
        }

        /// `[layers]` the fewest, where a router chooses fewer for some tokens. Default `layer_k`.
        pub fn layer_min_k(mut self, k: impl Into<Vec<u32>>) -> Self {
            self.of.min_k = k.into();
            self
        }

        /// `[layers]` how often the decoder ran the layer before, where it runs layers several
        /// times: layers ascend by their index and this. Default 0 for all.
        pub fn layer_visit(mut self, visit: impl Into<Vec<u32>>) -> Self {
            self.of.visit = visit.into();
            self
        }
    };
}
pub(crate) use layer_methods;
