//! Expert ids as a router leaves them, to be recorded.

use crate::error::{Error, ErrorKind, Result};
use crate::memory::{AnySlice, Checker, Layout, Place, Slice};
use crate::sys;

/// Which sink rows the rows of a source or of logits are.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Placement<'a> {
    pub(crate) rows: u32,
    pub(crate) first_row: u32,
    pub(crate) live_rows: Option<Slice<'a, i32>>,
    pub(crate) row_base: Option<Slice<'a, i32>>,
    pub(crate) row_index: Option<Slice<'a, i32>>,
}

impl Placement<'_> {
    pub(crate) fn check(&self, checker: &Checker) -> Result<()> {
        for (name, slice) in [("live_rows", self.live_rows), ("row_base", self.row_base)] {
            if let Some(slice) = slice {
                checker.one(name, slice.place, slice.len)?;
            }
        }
        if let Some(index) = self.row_index {
            checker.exactly("row_index", index.place, index.len, self.rows.into(), || {
                "one for each row".into()
            })?;
        }
        Ok(())
    }
}

/// The address of optional memory, NULL for none.
pub(crate) fn address<T>(slice: Option<Slice<'_, T>>) -> *const T {
    slice.map_or(std::ptr::null(), |slice| slice.address)
}

/// The address of element `start` of optional memory, NULL for none.
pub(crate) fn address_at(slice: Option<AnySlice<'_>>, start: usize) -> *const std::ffi::c_void {
    slice.map_or(std::ptr::null(), |slice| {
        slice.address.wrapping_byte_add(start.wrapping_mul(slice.dtype.size()))
    })
}

/// The methods by which sources and logits say where their rows go.
macro_rules! placement_methods {
    () => {
        /// The sink row of row 0; the others follow. Default 0.
        pub fn first_row(mut self, row: u32) -> Self {
            self.placement.first_row = row;
            self
        }

        /// One number: only so many rows hold anything, clamped to `0..=rows`. Default all.
        pub fn live_rows(mut self, rows: impl Into<Slice<'a, i32>>) -> Self {
            self.placement.live_rows = Some(rows.into());
            self
        }

        /// One number that is added to `first_row`.
        pub fn row_base(mut self, base: impl Into<Slice<'a, i32>>) -> Self {
            self.placement.row_base = Some(base.into());
            self
        }

        /// `[rows]` the sink row of each row, negative for none, instead of `first_row`.
        pub fn row_index(mut self, index: impl Into<Slice<'a, i32>>) -> Self {
            self.placement.row_index = Some(index.into());
            self
        }
    };
}
pub(crate) use placement_methods;

/// Expert ids as a router leaves them: a matrix of rows x `columns` elements of `i16`, `i32`,
/// `u32`, `i64` or [`IdWeight`](crate::IdWeight) (`routecap_source`).
///
/// The memory is exactly that long, unless [`row_stride`](Self::row_stride) or
/// [`column_stride`](Self::column_stride) says how the rows lie in longer memory; otherwise the call
/// is [`ShapeMismatch`](crate::ErrorKind::ShapeMismatch). A capturer whose k is not the model's would
/// read rows of something else.
///
/// What it takes to make ids of this capturer from them: columns at and after the layer's k are
/// dropped (fused shared experts); then the number that stands for no expert, if one is said
/// ([`none`](Self::none)), is set aside; then the table, if there is one, replaces an id by `table[id]`,
/// and an id outside the table becomes invalid; then the offset is added. An id that is outside the
/// layer's range in the end makes its cell missing; nothing wraps.
///
/// ```
/// use routecap::Source;
/// let wide = vec![0i32; 5 * 16];
/// let topk = Source::new(&wide, 5).row_stride(16); // the first k of 16 columns, 5 rows
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Source<'a> {
    ids: Option<AnySlice<'a>>,
    pub(crate) layout: Layout,
    weights: Option<AnySlice<'a>>,
    weights_start: usize,
    weights_row_stride: i64,
    pub(crate) placement: Placement<'a>,
    offset: i32,
    table: Option<Slice<'a, i32>>,
    none: i32,
    flags: u32,
}

impl<'a> Source<'a> {
    /// Of one layer: `rows` rows of k `ids`, dense, one after another. Where a row has more, say
    /// how many with [`columns`](Self::columns).
    pub fn new(ids: impl Into<AnySlice<'a>>, rows: u32) -> Self {
        Source { ids: Some(ids.into()), ..Source::common(rows) }
    }

    /// What several layers have in common, for
    /// [`Forward::record_layers`](crate::Forward::record_layers): without ids, table and weights.
    pub fn common(rows: u32) -> Self {
        Source {
            ids: None,
            layout: Layout::default(),
            weights: None,
            weights_start: 0,
            weights_row_stride: 0,
            placement: Placement { rows, ..Placement::default() },
            offset: 0,
            table: None,
            none: 0,
            flags: 0,
        }
    }

    placement_methods!();

    /// The element that is row 0, column 0. Default 0.
    pub fn start(mut self, element: usize) -> Self {
        self.layout.change().start = element;
        self
    }

    /// Elements from one row to the next. Default `columns`.
    pub fn row_stride(mut self, elements: i64) -> Self {
        self.layout.change().row_stride = elements;
        self
    }

    /// Elements from one column to the next. Default 1.
    pub fn column_stride(mut self, elements: i64) -> Self {
        self.layout.change().column_stride = elements;
        self
    }

    /// Columns present, the layer's k or more. Default that k; of several layers, the largest.
    pub fn columns(mut self, columns: u32) -> Self {
        self.layout.columns = columns;
        self
    }

    /// The weight of each id, in adjacent columns, to be recorded with the ids: of the capturer's
    /// [`weights`](crate::Config::weights). The memory is exactly as long as rows x `columns`, unless
    /// [`weights_row_stride`](Self::weights_row_stride) says otherwise. Without it the weights are
    /// missing, but with ids of [`IdWeight`](crate::IdWeight) and weights of
    /// [`BF16`](crate::WeightsType::BF16) those in the ids are recorded.
    pub fn weights(mut self, weights: impl Into<AnySlice<'a>>) -> Self {
        self.weights = Some(weights.into());
        self
    }

    /// The element of the weights that is row 0, column 0. Default 0.
    pub fn weights_start(mut self, element: usize) -> Self {
        self.weights_start = element;
        self
    }

    /// Elements from one row of the weights to the next. Default `columns`.
    pub fn weights_row_stride(mut self, elements: i64) -> Self {
        self.weights_row_stride = elements;
        self
    }

    /// A number that is added to each id.
    pub fn offset(mut self, offset: i32) -> Self {
        self.offset = offset;
        self
    }

    /// The id of each source id: a placement's physical-to-logical table.
    pub fn table(mut self, table: impl Into<Slice<'a, i32>>) -> Self {
        self.table = Some(table.into());
        self
    }

    /// The number that says that no expert was chosen, such as -1 or the number of experts, in
    /// columns behind those of the experts. Only where
    /// [`layer_min_k`](crate::Config::layer_min_k) allows fewer. Without it, or with 0, no number
    /// does, and such a cell is missing.
    pub fn none(mut self, number: i32) -> Self {
        self.none = number;
        self
    }

    /// Launch the copy with programmatic dependent launch (`ROUTECAP_SOURCE_OVERLAP`), so that it
    /// may start while a router that allows it is still running. Compute capability 9.0 or newer;
    /// elsewhere without effect.
    pub fn overlap(self, overlap: bool) -> Self {
        self.set(sys::ROUTECAP_SOURCE_OVERLAP, overlap)
    }

    /// For [`Forward::record_layers`](crate::Forward::record_layers): the call is the whole step
    /// (`ROUTECAP_SOURCE_WHOLE_STEP`). It begins the step with as many rows as the ids have, and takes
    /// its snapshot. Leave `begin` and `snapshot` out then.
    pub fn whole_step(self, whole_step: bool) -> Self {
        self.set(sys::ROUTECAP_SOURCE_WHOLE_STEP, whole_step)
    }

    fn set(mut self, flag: u32, on: bool) -> Self {
        self.flags = if on { self.flags | flag } else { self.flags & !flag };
        self
    }

    fn check_ids(&self, checker: &Checker, k: u32, ids: &AnySlice<'_>) -> Result<()> {
        let more = "where the rows have more than the layer's k, say columns";
        self.layout.check(checker, "ids", ids, self.placement.rows, k, more)
    }

    /// The same of weights.
    fn check_weights(&self, checker: &Checker, k: u32, weights: &AnySlice<'_>) -> Result<()> {
        let layout = Layout {
            start: self.weights_start,
            row_stride: self.weights_row_stride,
            columns: if self.layout.present() == 0 { k } else { self.layout.present() },
            ..Layout::default()
        };
        let more = "one for each column of the ids";
        layout.check(checker, "weights", weights, self.placement.rows, k, more)
    }

    /// In C's form, its memory checked against what a capturer of `k` experts per token in these
    /// layers will read.
    pub(crate) fn checked(&self, checker: &Checker, k: u32) -> Result<sys::routecap_source> {
        if let Some(ids) = &self.ids {
            self.check_ids(checker, k, ids)?;
        }
        if let Some(weights) = &self.weights {
            self.check_weights(checker, k, weights)?;
        }
        if let Some(table) = self.table {
            checker.holds("table", table.place, table.len, 0)?;
        }
        self.placement.check(checker)?;
        Ok(sys::routecap_source {
            struct_size: size_of::<sys::routecap_source>() as u32,
            dtype: self.ids.map_or(0, |ids| ids.dtype as i32),
            ids: address_at(self.ids, self.layout.start),
            ids_bytes: self.ids.map_or(0, |ids| ids.bytes_from(self.layout.start)),
            row_stride: self.layout.row_stride,
            column_stride: self.layout.column_stride,
            rows: self.placement.rows,
            k_source: if self.layout.present() == 0 { k } else { self.layout.present() },
            live_rows: address(self.placement.live_rows),
            row_base: address(self.placement.row_base),
            row_index: address(self.placement.row_index),
            first_row: self.placement.first_row,
            offset: self.offset,
            table: address(self.table),
            table_size: self.table.map_or(Ok(0), table_size)?,
            flags: self.flags,
            none: self.none,
            weights_dtype: self.weights.map_or(0, |weights| weights.dtype as i32),
            weights: address_at(self.weights, self.weights_start),
            weights_row_stride: self.weights_row_stride,
            weights_bytes: self.weights.map_or(0, |all| all.bytes_from(self.weights_start)),
        })
    }

    /// The same for several layers, which go into `raw`.
    pub(crate) fn checked_layers(
        &self,
        checker: &Checker,
        k: u32,
        layers: &[LayerSource<'_>],
        raw: &mut Vec<sys::routecap_layer_source>,
    ) -> Result<sys::routecap_source> {
        let mut source = self.checked(checker, k)?;
        source.dtype = sys::ROUTECAP_DTYPE_I32; // of no layer
        raw.clear();
        for (i, layer) in layers.iter().enumerate() {
            self.check_ids(checker, k, &layer.ids)?;
            let size = layer.table.map_or(Ok(0), table_size)?;
            if let Some(table) = layer.table {
                checker.holds("table", table.place, table.len, 0)?;
            }
            let bytes = layer.ids.bytes_from(self.layout.start);
            if i == 0 {
                source.dtype = layer.ids.dtype as i32;
                source.table_size = size;
                source.ids_bytes = bytes;
            }
            source.ids_bytes = source.ids_bytes.min(bytes);
            if layer.ids.dtype as i32 != source.dtype {
                return Err(Error::new(
                    ErrorKind::DType,
                    "layers that are recorded together have ids of one dtype",
                ));
            }
            if size != source.table_size {
                return Err(Error::new(
                    ErrorKind::Argument,
                    "layers that are recorded together have tables of one size, or none",
                ));
            }
            if let Some(weights) = &layer.weights {
                self.check_weights(checker, k, weights)?;
                let (dtype, bytes) = (weights.dtype as i32, weights.bytes_from(self.weights_start));
                if source.weights_dtype == 0 {
                    source.weights_dtype = dtype;
                    source.weights_bytes = bytes;
                }
                source.weights_bytes = source.weights_bytes.min(bytes);
                if source.weights_dtype != dtype {
                    return Err(Error::new(
                        ErrorKind::DType,
                        "layers that are recorded together have weights of one dtype",
                    ));
                }
            }
            raw.push(sys::routecap_layer_source {
                layer: layer.layer,
                reserved: 0,
                ids: address_at(Some(layer.ids), self.layout.start),
                table: address(layer.table),
                weights: address_at(layer.weights, self.weights_start),
            });
        }
        Ok(source)
    }
}

fn table_size(table: Slice<'_, i32>) -> Result<u32> {
    u32::try_from(table.len)
        .map_err(|_| Error::new(ErrorKind::Argument, format!("table has {} entries", table.len)))
}

/// The ids of one layer among several that are recorded at once (`routecap_layer_source`).
#[derive(Clone, Copy, Debug)]
pub struct LayerSource<'a> {
    pub(crate) layer: u32,
    ids: AnySlice<'a>,
    table: Option<Slice<'a, i32>>,
    weights: Option<AnySlice<'a>>,
}

impl<'a> LayerSource<'a> {
    /// The ids of layer `layer`, laid out as the common [`Source`] says.
    pub fn new(layer: u32, ids: impl Into<AnySlice<'a>>) -> Self {
        LayerSource { layer, ids: ids.into(), table: None, weights: None }
    }

    /// As [`Source::weights`], laid out as the common [`Source`] says. The weights of a layer without
    /// them are missing.
    pub fn weights(mut self, weights: impl Into<AnySlice<'a>>) -> Self {
        self.weights = Some(weights.into());
        self
    }

    /// As [`Source::table`]; all layers have one, of one size, or none has.
    pub fn table(mut self, table: impl Into<Slice<'a, i32>>) -> Self {
        self.table = Some(table.into());
        self
    }
}

/// The side where a backend reads memory.
pub(crate) fn place_of(backend: crate::Backend) -> Place {
    match backend {
        crate::Backend::Host => Place::Host,
        crate::Backend::Cuda => Place::Device,
    }
}
