//! The router's weights beside the ids.

use std::fmt;

use crate::copy::{copy_into, copy_len, dense_cells};
#[cfg(doc)]
use crate::error::ErrorKind;
use crate::error::{Completeness, Result};
use crate::memory::{BF16, Element, F16};
use crate::{CopyOptions, DType, Routing, sys};

/// What a weight is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(i32)]
#[non_exhaustive]
pub enum WeightsType {
    /// `f32`.
    F32 = sys::ROUTECAP_DTYPE_F32,
    /// The bits of an IEEE half-precision number, [`F16`].
    F16 = sys::ROUTECAP_DTYPE_F16,
    /// The bits of a bfloat16 number, [`BF16`].
    BF16 = sys::ROUTECAP_DTYPE_BF16,
}

impl WeightsType {
    /// The one that has this number in C, if there is one.
    pub fn of(value: i32) -> Option<WeightsType> {
        match value {
            sys::ROUTECAP_DTYPE_F32 => Some(WeightsType::F32),
            sys::ROUTECAP_DTYPE_F16 => Some(WeightsType::F16),
            sys::ROUTECAP_DTYPE_BF16 => Some(WeightsType::BF16),
            _ => None,
        }
    }

    /// The same among the types of all arrays.
    pub fn dtype(self) -> DType {
        match self {
            WeightsType::F32 => DType::F32,
            WeightsType::F16 => DType::F16,
            WeightsType::BF16 => DType::BF16,
        }
    }
}

/// A type that weights can be copied out in: their own, or `f32`.
pub trait WeightElement: Element {}
impl WeightElement for f32 {}
impl WeightElement for F16 {}
impl WeightElement for BF16 {}

/// Weights as they lie in memory. Of half types these are the bits: crates such as `half` make
/// numbers of them.
#[derive(Clone, Copy, PartialEq)]
pub enum Weights<'a> {
    /// Of [`WeightsType::F32`].
    F32(&'a [f32]),
    /// Of [`WeightsType::F16`].
    F16(&'a [F16]),
    /// Of [`WeightsType::BF16`].
    BF16(&'a [BF16]),
}

impl fmt::Debug for Weights<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Weights::F32(weights) => f.debug_list().entries(*weights).finish(),
            Weights::F16(weights) => f.debug_list().entries(*weights).finish(),
            Weights::BF16(weights) => f.debug_list().entries(*weights).finish(),
        }
    }
}

impl Weights<'_> {
    /// How many.
    pub fn len(&self) -> usize {
        match self {
            Weights::F32(weights) => weights.len(),
            Weights::F16(weights) => weights.len(),
            Weights::BF16(weights) => weights.len(),
        }
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Weights that were copied out, and which cells have them.
#[derive(Clone, Debug, PartialEq)]
pub struct CopiedWeights<T> {
    /// In the layout that was asked for. Those of cells that have none are NaN.
    pub weights: Vec<T>,
    /// `[rows, layers]` or `[layers, rows]`, as the order says: whether the cell has weights.
    pub mask: Vec<bool>,
    /// Whether any cell has none.
    pub completeness: Completeness,
}

impl Routing {
    /// Copy the weights to `dst`, and to `mask` which cells have them
    /// (`routecap_routing_copy_weights`).
    ///
    /// They lie as [`copy_to`](Self::copy_to) lays out the ids with the same options. Weights that
    /// are missing are NaN, and columns without an expert have the weight 0. `T` is the type of the
    /// weights ([`View::weights_type`](crate::View::weights_type)), or `f32`, to which they are then
    /// widened. Of strictness every cell must have weights.
    ///
    /// # Errors
    ///
    /// [`DType`](ErrorKind::DType) if the routing has no weights, or none that can be had as `T`;
    /// otherwise as [`copy_to`](Self::copy_to).
    pub fn copy_weights<T: WeightElement>(
        &self,
        dst: &mut [T],
        mask: Option<&mut [bool]>,
        options: &CopyOptions,
    ) -> Result<Completeness> {
        let k = Some(self.view()?.k());
        copy_into(options, dst, mask, k, &|options, dst, bytes, mask, mask_bytes, needed| {
            self.copy_weights_raw(options, dst, bytes, mask, mask_bytes, needed)
        })
    }

    /// How many elements of `T` [`copy_weights`](Self::copy_weights) takes.
    ///
    /// # Errors
    ///
    /// As [`copy_weights`](Self::copy_weights).
    pub fn copy_weights_len<T: WeightElement>(&self, options: &CopyOptions) -> Result<usize> {
        copy_len::<T>(options, &|options, dst, bytes, mask, mask_bytes, needed| {
            self.copy_weights_raw(options, dst, bytes, mask, mask_bytes, needed)
        })
    }

    /// Copy weights and mask into vectors.
    ///
    /// ```
    /// # use routecap::{ALL, Config, CopyOptions, IssueOptions, Source, Span, Stream, WeightsType};
    /// # fn main() -> routecap::Result<()> {
    /// # let (capturer, mut forward) =
    /// #     Config::host().layers(1).k(2).experts(8).rows(16).weights(WeightsType::F32).create()?;
    /// # let request = capturer.open()?;
    /// # forward.begin(2, Stream::HOST)?;
    /// let (ids, weights) = ([3, 1, 7, 0], [0.5, 0.25, 1.0, 0.125]);
    /// forward.record(0, &Source::new(&ids, 2).weights(&weights), Stream::HOST)?;
    /// # forward.snapshot(Stream::HOST)?;
    /// # forward.issue(&[Span::new(request, 0, 0, 2)], &IssueOptions::new(), Stream::HOST)?.step()?;
    /// # let routing = capturer.finish(request, ALL)?;
    /// # let _ = routing.wait()?;
    /// let copied = routing.weights_to_vec::<f32>(&CopyOptions::new())?;
    /// assert_eq!(copied.weights, weights);
    /// assert_eq!(copied.mask, [true, true]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`copy_weights`](Self::copy_weights).
    pub fn weights_to_vec<T: WeightElement>(
        &self,
        options: &CopyOptions,
    ) -> Result<CopiedWeights<T>> {
        let mut weights = vec![T::default(); self.copy_weights_len::<T>(options)?];
        let mut mask = vec![false; dense_cells(&self.view()?, options)?];
        let completeness = self.copy_weights(&mut weights, Some(&mut mask), options)?;
        Ok(CopiedWeights { weights, mask, completeness })
    }

    fn copy_weights_raw(
        &self,
        options: *const sys::routecap_copy_options,
        dst: *mut std::ffi::c_void,
        dst_bytes: usize,
        mask: *mut u8,
        mask_bytes: usize,
        needed: *mut u64,
    ) -> i32 {
        // SAFETY: the functions of `copy` pass memory of the sizes that they say.
        unsafe {
            sys::routecap_routing_copy_weights(
                self.as_raw(),
                options,
                dst,
                dst_bytes,
                mask,
                mask_bytes,
                needed,
            )
        }
    }
}
