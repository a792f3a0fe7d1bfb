//! Routings of arrays of any origin.

use std::ffi::c_void;

use crate::error::{Error, ErrorKind, Result, check};
use crate::memory::{AnySlice, Place};
use crate::{DType, IdSpace, Provenance, Reason, Routing, WeightsType, sys};

/// Whether ids from elsewhere are looked at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u32)]
#[non_exhaustive]
pub enum Trust {
    /// Nothing is trusted: a cell that claims to be valid and is not as many distinct experts as its
    /// layer allows is an error.
    #[default]
    None = 0,
    /// The ids are known to be right: they are not looked at (`ROUTECAP_IMPORT_TRUSTED`).
    /// Everything else is checked all the same.
    Ids = sys::ROUTECAP_IMPORT_TRUSTED,
}

/// Consecutive rows of [`Arrays`] (`routecap_segment`).
#[derive(Clone, Copy, Debug)]
pub struct ArraySegment<'a> {
    first: u64,
    rows: u64,
    ids: Option<AnySlice<'a>>,
    validity: Option<&'a [u8]>,
    weights: Option<AnySlice<'a>>,
    weights_validity: Option<&'a [u8]>,
    tags: Option<&'a [u64]>,
    tag: u64,
    reason: i32,
}

impl<'a> ArraySegment<'a> {
    /// `rows` rows from position `first` on; all their cells are missing until they have ids.
    pub fn new(first: u64, rows: u64) -> Self {
        ArraySegment {
            first,
            rows,
            ids: None,
            validity: None,
            weights: None,
            weights_validity: None,
            tags: None,
            tag: 0,
            reason: 0,
        }
    }

    /// `[rows, layers, k]` in C order: `u8` if there are at most 256 experts, or 255 where a cell may
    /// have fewer than k; otherwise `i16`. With
    /// a [`row_stride`](Arrays::row_stride) they reach to where a next row would begin.
    pub fn ids(mut self, ids: impl Into<AnySlice<'a>>) -> Self {
        self.ids = Some(ids.into());
        self
    }

    /// `[rows, validity_bytes]`: bit l % 8 of byte l / 8 is set if layer l is valid. With a
    /// [`row_stride`](Arrays::row_stride) the rows lie as far apart as those of the ids. Default
    /// all layers are valid.
    pub fn validity(mut self, validity: &'a [u8]) -> Self {
        self.validity = Some(validity);
        self
    }

    /// `[rows, layers, k]` the weight of each id: `f32`, [`F16`](crate::F16) or
    /// [`BF16`](crate::BF16), the same in all segments. With a [`row_stride`](Arrays::row_stride) the
    /// rows lie as far apart as those of the ids. Default none: the weights are missing.
    pub fn weights(mut self, weights: impl Into<AnySlice<'a>>) -> Self {
        self.weights = Some(weights.into());
        self
    }

    /// `[rows, validity_bytes]` as [`validity`](Self::validity): the layers whose weights are there.
    /// Default those whose ids are.
    pub fn weights_validity(mut self, validity: &'a [u8]) -> Self {
        self.weights_validity = Some(validity);
        self
    }

    /// `[rows]` the tag of each row.
    pub fn tags(mut self, tags: &'a [u64]) -> Self {
        self.tags = Some(tags);
        self
    }

    /// The tag of all rows. Default 0.
    pub fn tag(mut self, tag: u64) -> Self {
        self.tag = tag;
        self
    }

    /// Why rows without ids are not there. Default [`Reason::Absent`].
    pub fn reason(mut self, reason: Reason) -> Self {
        self.reason = reason.value();
        self
    }
}

/// Rows that another process, file format or engine has, to be imported (`routecap_view` the other
/// way round), a builder.
///
/// ```
/// use routecap::{ArraySegment, Arrays, Routing, Trust};
/// # fn main() -> routecap::Result<()> {
/// let ids: [u8; 4] = [3, 1, 7, 0]; // 2 rows, 1 layer, k = 2
/// let routing = Routing::import(&Arrays::new(1, 2, 0, 2).experts(8).segment(ArraySegment::new(0, 2).ids(&ids)), Trust::None)?;
/// assert_eq!(routing.view()?.rows(), 2);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Arrays<'a> {
    layers: u32,
    k: u32,
    first: u64,
    rows: u64,
    experts: u32,
    id_space: IdSpace,
    validity_bytes: u32,
    row_stride: u64,
    weights: Option<WeightsType>,
    layer_map: Option<&'a [i32]>,
    layer_experts: Option<&'a [u32]>,
    layer_k: Option<&'a [u32]>,
    layer_min_k: Option<&'a [u32]>,
    layer_visit: Option<&'a [u32]>,
    layer_provenance: Option<Vec<i32>>,
    segments: Vec<ArraySegment<'a>>,
}

impl<'a> Arrays<'a> {
    /// Of `rows` rows from position `first` on, with `k` experts in each of `layers` layers.
    pub fn new(layers: u32, k: u32, first: u64, rows: u64) -> Self {
        Arrays {
            layers,
            k,
            first,
            rows,
            experts: 0,
            id_space: IdSpace::Logical,
            validity_bytes: 0,
            row_stride: 0,
            weights: None,
            layer_map: None,
            layer_experts: None,
            layer_k: None,
            layer_min_k: None,
            layer_visit: None,
            layer_provenance: None,
            segments: Vec::new(),
        }
    }

    /// Experts of every layer. Required unless [`layer_experts`](Self::layer_experts) is set.
    pub fn experts(mut self, experts: u32) -> Self {
        self.experts = experts;
        self
    }

    /// `[layers]` experts of each layer.
    pub fn layer_experts(mut self, experts: &'a [u32]) -> Self {
        self.layer_experts = Some(experts);
        self
    }

    /// `[layers]` index of each layer in the decoder. Default 0, 1, 2...
    pub fn layer_map(mut self, map: &'a [i32]) -> Self {
        self.layer_map = Some(map);
        self
    }

    /// `[layers]` the most experts of a token in each layer. Default k.
    pub fn layer_k(mut self, k: &'a [u32]) -> Self {
        self.layer_k = Some(k);
        self
    }

    /// `[layers]` the fewest. Default `layer_k`. A cell with fewer than k has them first, and every
    /// bit of its other columns is set: 255 of `u8`, -1 of `i16`.
    pub fn layer_min_k(mut self, k: &'a [u32]) -> Self {
        self.layer_min_k = Some(k);
        self
    }

    /// `[layers]` how often the decoder ran the layer before. Default 0.
    pub fn layer_visit(mut self, visit: &'a [u32]) -> Self {
        self.layer_visit = Some(visit);
        self
    }

    /// `[layers]` how the ids of each layer were had. Default captured.
    pub fn layer_provenance(mut self, provenance: impl IntoIterator<Item = Provenance>) -> Self {
        self.layer_provenance = Some(provenance.into_iter().map(Provenance::value).collect());
        self
    }

    /// What the ids number. Default logical.
    pub fn id_space(mut self, id_space: IdSpace) -> Self {
        self.id_space = id_space;
        self
    }

    /// The type of the weights. Default that of the segments', or none.
    pub fn weights(mut self, weights: WeightsType) -> Self {
        self.weights = Some(weights);
        self
    }

    /// Bytes of validity in a row. Default `layers` / 8, rounded up.
    pub fn validity_bytes(mut self, bytes: u32) -> Self {
        self.validity_bytes = bytes;
        self
    }

    /// Bytes from one row of a segment to the next, of ids, weights and the validity of both: a
    /// multiple of the size of an id and of a weight, and no less than all of these take in a row.
    /// Default dense: the rows of the ids follow one another, and so do those of each other.
    pub fn row_stride(mut self, bytes: u64) -> Self {
        self.row_stride = bytes;
        self
    }

    /// The next segment. They are in order; rows that none holds are [`Absent`](Reason::Absent).
    pub fn segment(mut self, segment: ArraySegment<'a>) -> Self {
        self.segments.push(segment);
        self
    }

    /// The segments in C's form, checked to be as long as they say, and the dtypes of their ids and
    /// weights.
    fn checked(&self) -> Result<(Vec<sys::routecap_segment>, i32, i32)> {
        let fits = |name: &str, len: usize, good: bool| match good {
            true => Ok(()),
            false => Err(Error::new(
                ErrorKind::Argument,
                format!("{name} has {len} elements, which is not what its rows take"),
            )),
        };
        // Dense rows have exactly `per_row` elements each. Rows with a stride may lie in a longer
        // array, in which the last one has `last` bytes: of ids the whole stride, since what is
        // lent is read to the end of its padding.
        let rows_fit = |name: &str, len: usize, size: usize, rows: u64, per_row: u64, last: u64| {
            let len_bytes = len as u64 * size as u64;
            let good = match (self.row_stride, rows) {
                (0, _) | (_, 0) => rows.checked_mul(per_row) == Some(len as u64),
                (stride, _) => (rows - 1)
                    .checked_mul(stride)
                    .and_then(|bytes| bytes.checked_add(last))
                    .is_some_and(|needed| needed <= len_bytes),
            };
            fits(name, len, good)
        };
        for (name, len) in [
            ("layer_map", self.layer_map.map(<[_]>::len)),
            ("layer_experts", self.layer_experts.map(<[_]>::len)),
            ("layer_k", self.layer_k.map(<[_]>::len)),
            ("layer_min_k", self.layer_min_k.map(<[_]>::len)),
            ("layer_visit", self.layer_visit.map(<[_]>::len)),
            ("layer_provenance", self.layer_provenance.as_ref().map(Vec::len)),
        ] {
            let len = len.unwrap_or(self.layers as usize);
            fits(name, len, len == self.layers as usize)?;
        }
        let validity_bytes =
            if self.validity_bytes == 0 { self.layers.div_ceil(8) } else { self.validity_bytes };
        let mut dtype = None;
        let mut weights_dtype = self.weights.map(WeightsType::dtype);
        let mut segments = Vec::with_capacity(self.segments.len());
        for segment in &self.segments {
            if let Some(ids) = &segment.ids {
                if ids.place != Place::Host {
                    return Err(Error::new(
                        ErrorKind::Argument,
                        "ids are memory of the device: import takes slices",
                    ));
                }
                if *dtype.get_or_insert(ids.dtype) != ids.dtype {
                    return Err(Error::new(ErrorKind::DType, "segments have ids of one dtype"));
                }
                let per_row = u64::from(self.layers) * u64::from(self.k);
                let (size, stride) = (ids.dtype.size(), self.row_stride);
                rows_fit("ids", ids.len, size, segment.rows, per_row, stride)?;
            }
            if let Some(validity) = segment.validity {
                let bytes = u64::from(validity_bytes);
                rows_fit("validity", validity.len(), 1, segment.rows, bytes, bytes)?;
            }
            if let Some(weights) = &segment.weights {
                if weights.place != Place::Host {
                    return Err(Error::new(
                        ErrorKind::Argument,
                        "weights are memory of the device: import takes slices",
                    ));
                }
                if *weights_dtype.get_or_insert(weights.dtype) != weights.dtype {
                    return Err(Error::new(ErrorKind::DType, "segments have weights of one dtype"));
                }
                let per_row = u64::from(self.layers) * u64::from(self.k);
                let size = weights.dtype.size();
                let last = per_row.saturating_mul(size as u64);
                rows_fit("weights", weights.len, size, segment.rows, per_row, last)?;
            }
            if let Some(validity) = segment.weights_validity {
                let bytes = u64::from(validity_bytes);
                rows_fit("weights_validity", validity.len(), 1, segment.rows, bytes, bytes)?;
            }
            if let Some(tags) = segment.tags {
                fits("tags", tags.len(), tags.len() as u64 == segment.rows)?;
            }
            segments.push(sys::routecap_segment {
                first: segment.first,
                rows: segment.rows,
                ids: segment.ids.map_or(std::ptr::null(), |ids| ids.address),
                validity: segment.validity.map_or(std::ptr::null(), <[_]>::as_ptr),
                tags: segment.tags.map_or(std::ptr::null(), <[_]>::as_ptr),
                tag: segment.tag,
                reason: segment.reason,
                reserved: 0,
                weights: segment.weights.map_or(std::ptr::null(), |weights| weights.address),
                weights_validity: segment.weights_validity.map_or(std::ptr::null(), <[_]>::as_ptr),
            });
        }
        let number = |dtype: Option<DType>| dtype.map_or(0, |dtype| dtype as i32);
        Ok((segments, number(dtype), number(weights_dtype)))
    }

    /// Imports; the memory of the segments is copied, or lent until `release` is called with
    /// `context`.
    ///
    /// # Safety
    ///
    /// With `release`, the segments' memory stays until it is called.
    unsafe fn import(
        &self,
        trust: Trust,
        release: sys::routecap_release,
        context: *mut c_void,
    ) -> Result<Routing> {
        let (segments, dtype, weights_dtype) = self.checked()?;
        let uniform = [self.layer_k, self.layer_min_k]
            .iter()
            .all(|given| given.is_none_or(|of| of.iter().all(|each| *each == self.k)));
        let most = if uniform { 256 } else { 255 };
        let default_dtype =
            if self.experts <= most { sys::ROUTECAP_DTYPE_U8 } else { sys::ROUTECAP_DTYPE_I16 };
        let view = sys::routecap_view {
            struct_size: size_of::<sys::routecap_view>() as u32,
            dtype: if dtype == 0 { default_dtype } else { dtype },
            layers: self.layers,
            k: self.k,
            experts: self.experts,
            validity_bytes: self.validity_bytes,
            id_space: self.id_space.value(),
            complete: 0,
            first: self.first,
            rows: self.rows,
            row_stride: self.row_stride,
            layer_map: self.layer_map.map_or(std::ptr::null(), <[_]>::as_ptr),
            layer_experts: self.layer_experts.map_or(std::ptr::null(), <[_]>::as_ptr),
            segments: segments.as_ptr(),
            segment_size: size_of::<sys::routecap_segment>(),
            segment_count: segments.len(),
            layer_provenance: self.layer_provenance.as_ref().map_or(std::ptr::null(), Vec::as_ptr),
            layer_k: self.layer_k.map_or(std::ptr::null(), <[_]>::as_ptr),
            layer_min_k: self.layer_min_k.map_or(std::ptr::null(), <[_]>::as_ptr),
            layer_visit: self.layer_visit.map_or(std::ptr::null(), <[_]>::as_ptr),
            weights_dtype,
            reserved: 0,
        };
        let mut routing = std::ptr::null_mut();
        // SAFETY: every array was checked to be as long as the view says; they live until the call
        // returns, or as the caller promises.
        check(unsafe {
            sys::routecap_routing_import(&view, trust as u32, release, context, &mut routing)
        })?;
        // SAFETY: the call gave out this reference.
        Ok(unsafe { Routing::delivered(routing) })
    }
}

/// Drops what was lent, a `Box<T>` that was made a pointer.
///
/// # Safety
///
/// `context` is that pointer, and this is called once.
pub(crate) unsafe extern "C" fn release<T>(context: *mut c_void) {
    // SAFETY: as the caller promises.
    drop(unsafe { Box::from_raw(context.cast::<T>()) });
}

impl Routing {
    /// Make a routing of arrays of any origin, which are copied (`routecap_routing_import`).
    ///
    /// # Errors
    ///
    /// [`Argument`](ErrorKind::Argument) for numbers beyond their limits, segments out of order or
    /// arrays of the wrong length; [`ShapeMismatch`](ErrorKind::ShapeMismatch) for a row stride
    /// that is too small or no multiple of the size of an id; [`DType`](ErrorKind::DType);
    /// [`Format`](ErrorKind::Format) for an id of a valid cell that is out of range or there twice,
    /// and for weights of a cell without ids, or that are NaN.
    pub fn import(arrays: &Arrays<'_>, trust: Trust) -> Result<Routing> {
        // SAFETY: nothing is lent.
        unsafe { arrays.import(trust, None, std::ptr::null_mut()) }
    }

    /// The same without a copy, if the rows of all segments lie as a [`View`](crate::View) has
    /// them: with its [`row_stride`](crate::View::row_stride), with validity directly behind the
    /// ids of each row, and with zeros up to the next (with weights: as a view of a routing with
    /// weights has them). Arrays that lie differently are copied, and `owner` is dropped at once.
    ///
    /// `arrays` describes memory of `owner`, which the routing keeps. It is dropped on any thread
    /// when the routing, and all that shares rows with it, is gone, and at once if the call fails;
    /// dropping it must not use routecap.
    ///
    /// ```
    /// use routecap::{ArraySegment, Arrays, Routing, Trust};
    /// # fn main() -> routecap::Result<()> {
    /// // 2 rows of 1 layer, k = 2: the ids, a byte of validity, and a zero.
    /// let rows: Vec<u8> = vec![3, 1, 1, 0, 7, 0, 1, 0];
    /// let routing = Routing::import_lent(
    ///     rows,
    ///     |rows| {
    ///         let segment = ArraySegment::new(0, 2).ids(rows).validity(&rows[2..]);
    ///         Arrays::new(1, 2, 0, 2).experts(8).row_stride(4).segment(segment)
    ///     },
    ///     Trust::None,
    /// )?;
    /// assert!(routing.view()?.is_complete());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`import`](Self::import).
    pub fn import_lent<T: Send + 'static>(
        owner: T,
        arrays: impl for<'a> FnOnce(&'a T) -> Arrays<'a>,
        trust: Trust,
    ) -> Result<Routing> {
        let owner = Box::into_raw(Box::new(owner));
        // SAFETY: what is borrowed from the box stays where it is, unchanged, until `release` drops
        // it.
        let imported = unsafe { arrays(&*owner).import(trust, Some(release::<T>), owner.cast()) };
        if imported.is_err() {
            // SAFETY: a call that fails does not call release.
            unsafe { release::<T>(owner.cast()) };
        }
        imported
    }
}
