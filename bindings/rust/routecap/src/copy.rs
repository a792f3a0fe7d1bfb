//! Copying ids out: in which type and layout, and what stands for missing cells.

use std::fmt;

use crate::error::{Completeness, Error, ErrorKind, Result, check};
use crate::memory::Element;
use crate::number::named;
use crate::{View, sys};

/// In which order rows and layers are copied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(i32)]
#[non_exhaustive]
pub enum Order {
    /// `[rows, layers, k]` (`ROUTECAP_ORDER_ROW_MAJOR`).
    #[default]
    RowMajor = sys::ROUTECAP_ORDER_ROW_MAJOR,
    /// `[layers, rows, k]` (`ROUTECAP_ORDER_LAYER_MAJOR`).
    LayerMajor = sys::ROUTECAP_ORDER_LAYER_MAJOR,
}

/// Whether reading fails on cells that are missing or were recomputed from logits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u32)]
#[non_exhaustive]
pub enum Strictness {
    /// Missing cells are reported, not refused.
    #[default]
    Lenient = 0,
    /// Missing cells are [`ErrorKind::Incomplete`], recomputed ones [`ErrorKind::Recomputed`]
    /// (`ROUTECAP_READ_STRICT`).
    Strict = sys::ROUTECAP_READ_STRICT,
    /// Missing cells are [`ErrorKind::Incomplete`], recomputed ones are taken
    /// (`ROUTECAP_READ_STRICT | ROUTECAP_READ_ALLOW_RECOMPUTED`).
    StrictButRecomputed = sys::ROUTECAP_READ_STRICT | sys::ROUTECAP_READ_ALLOW_RECOMPUTED,
}

/// How ids are written into the caller's memory (`routecap_copy_options`), a builder.
///
/// By default: row-major, dense, all layers, -1 for the ids of missing cells, and
/// [`NO_EXPERT`](crate::NO_EXPERT) in columns of valid cells that have no expert.
#[derive(Clone, Copy)]
pub struct CopyOptions {
    raw: sys::routecap_copy_options,
}

impl fmt::Debug for CopyOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CopyOptions")
            .field("order", named!(self.raw.order, Order: RowMajor, LayerMajor))
            .field(
                "strictness",
                named!(self.raw.flags, Strictness: Lenient, Strict, StrictButRecomputed),
            )
            .field("first_layer", &self.raw.first_layer)
            .field("layers", &self.raw.layers)
            .field("row_stride", &self.raw.row_stride)
            .field("layer_stride", &self.raw.layer_stride)
            .field("fill", &self.raw.fill)
            .field("none", &self.raw.none)
            .finish()
    }
}

impl Default for CopyOptions {
    fn default() -> Self {
        let mut raw = sys::routecap_copy_options::default();
        // SAFETY: `raw` has the size given; with that the call cannot fail.
        unsafe { sys::routecap_copy_options_init(&mut raw, size_of_val(&raw)) };
        CopyOptions { raw }
    }
}

impl CopyOptions {
    /// The defaults (`routecap_copy_options_init`).
    pub fn new() -> Self {
        Self::default()
    }

    /// Of the dense layout and of the mask.
    pub fn order(mut self, order: Order) -> Self {
        self.raw.order = order as i32;
        self
    }

    /// Whether missing or recomputed cells are errors.
    pub fn strictness(mut self, strictness: Strictness) -> Self {
        self.raw.flags = strictness as u32;
        self
    }

    /// `layers` layers from `first` on; 0 means all from there.
    pub fn layers(mut self, first: u32, layers: u32) -> Self {
        (self.raw.first_layer, self.raw.layers) = (first, layers);
        self
    }

    /// Elements from one row to the next and from one layer to the next; 0 means dense.
    pub fn strides(mut self, row: i64, layer: i64) -> Self {
        (self.raw.row_stride, self.raw.layer_stride) = (row, layer);
        self
    }

    /// For the ids of missing cells, in two's complement. Default -1.
    ///
    /// A fill that, in the type copied to, is an expert id needs a mask or strictness: missing
    /// cells must not pass for routing.
    pub fn fill(mut self, fill: i64) -> Self {
        self.raw.fill = fill;
        self
    }

    /// For columns of valid cells that have no expert, likewise. Default
    /// [`NO_EXPERT`](crate::NO_EXPERT). It must be no expert id; if it is the fill, a mask is needed.
    pub fn none(mut self, none: i64) -> Self {
        self.raw.none = none;
        self
    }

    pub(crate) fn raw<T: Element>(&self) -> sys::routecap_copy_options {
        sys::routecap_copy_options { dtype: T::DTYPE as i32, ..self.raw }
    }

    #[cfg(feature = "ndarray")]
    pub(crate) fn is_row_major(&self) -> bool {
        self.raw.order == sys::ROUTECAP_ORDER_ROW_MAJOR
    }

    /// Layers that are copied of `layers`.
    pub(crate) fn copied_layers(&self, layers: u32) -> u32 {
        if self.raw.layers != 0 {
            self.raw.layers
        } else {
            layers.saturating_sub(self.raw.first_layer)
        }
    }
}

/// How many cells a copy of a view has.
pub(crate) fn dense_cells(view: &View<'_>, options: &CopyOptions) -> Result<usize> {
    let cells = view.rows().checked_mul(options.copied_layers(view.layers()).into());
    cells
        .map(|cells| cells as usize)
        .ok_or_else(|| Error::new(ErrorKind::NoMemory, "more cells than there can be memory"))
}

/// Ids that were copied out, and which of them are valid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Copied<T> {
    /// In the layout that was asked for.
    pub ids: Vec<T>,
    /// `[rows, layers]` or `[layers, rows]`, as the order says: whether the cell is valid.
    pub mask: Vec<bool>,
    /// Whether any cell is missing.
    pub completeness: Completeness,
}

/// Makes a call that copies: options, dst, bytes of it, mask, bytes of it, needed.
pub(crate) type Copy<'a> = &'a dyn Fn(
    *const sys::routecap_copy_options,
    *mut std::ffi::c_void,
    usize,
    *mut u8,
    usize,
    *mut u64,
) -> i32;

/// Copies into `dst` and `mask`. With `k`, of what is copied, memory for a dense copy that is longer
/// than it is refused: who made it took it for that of another shape.
pub(crate) fn copy_into<T: Element>(
    options: &CopyOptions,
    dst: &mut [T],
    mask: Option<&mut [bool]>,
    k: Option<u32>,
    copy: Copy<'_>,
) -> Result<Completeness> {
    let raw = options.raw::<T>();
    let (mask, mask_bytes) =
        mask.map_or((std::ptr::null_mut(), 0), |mask| (mask.as_mut_ptr().cast(), mask.len()));
    if let (Some(k), 0, 0) = (k, raw.row_stride, raw.layer_stride) {
        let mut needed = 0;
        match check(copy(&raw, std::ptr::null_mut(), 0, mask, 0, &mut needed)) {
            Err(error) if error.kind() != ErrorKind::BufferTooSmall => return Err(error),
            _ => {}
        }
        let ids = needed / size_of::<T>() as u64;
        let cells = ids / u64::from(k.max(1));
        for (name, given, needed) in [("dst", dst.len(), ids), ("mask", mask_bytes, cells)] {
            if given as u64 > needed {
                return Err(Error::new(
                    ErrorKind::ShapeMismatch,
                    format!("{name} has {given} elements, not {needed}"),
                ));
            }
        }
    }
    check(copy(
        &raw,
        dst.as_mut_ptr().cast(),
        size_of_val(dst),
        mask,
        mask_bytes,
        std::ptr::null_mut(),
    ))
    .map(Completeness::of)
}

/// How many elements of `T` a copy with a mask takes.
pub(crate) fn copy_len<T: Element>(options: &CopyOptions, copy: Copy<'_>) -> Result<usize> {
    let raw = options.raw::<T>();
    let mut needed = 0;
    let mut mask = 0;
    match check(copy(&raw, std::ptr::null_mut(), 0, &mut mask, 0, &mut needed)) {
        Err(error) if error.kind() != ErrorKind::BufferTooSmall => Err(error),
        _ => Ok(needed as usize / size_of::<T>()),
    }
}
