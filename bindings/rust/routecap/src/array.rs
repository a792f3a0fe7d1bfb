//! Sources from, and routings as, arrays of the crate ndarray.

use ndarray::{Array2, Array3, ArrayView2, ArrayView3, ArrayViewMut3, ShapeBuilder};

use crate::copy::copy_into;
use crate::error::{Error, ErrorKind, Result};
use crate::memory::{AnySlice, Layout, reach};
use crate::view::Segment;
use crate::{Completeness, CopyOptions, DType, Element, IdElement, Logits, Order, Routing, Source};

/// A matrix as the library takes one: its memory, and where its elements are in it.
struct Matrix<'a> {
    elements: AnySlice<'a>,
    rows: u32,
    layout: Layout,
}

impl<'a> Matrix<'a> {
    fn of<T: Element>(array: ArrayView2<'a, T>) -> Result<Self> {
        let number = |n: usize| {
            u32::try_from(n)
                .map_err(|_| Error::new(ErrorKind::Argument, format!("an axis of {n} elements")))
        };
        let (rows, columns) = (number(array.nrows())?, number(array.ncols())?);
        // Strides of axes with one element are of no account, and 0 means dense to the library.
        let stride = |axis: usize| match (array.shape()[axis], array.strides()[axis]) {
            (0 | 1, _) => Ok(0),
            (_, 0) => {
                Err(Error::new(ErrorKind::Argument, "a broadcast axis: its elements are one"))
            }
            (_, stride) => Ok(stride as i64),
        };
        let (row_stride, column_stride) = (stride(0)?, stride(1)?);
        let (low, high) =
            reach(rows.into(), columns.into(), row_stride, column_stride).unwrap_or((0, 0));
        let start = low.unsigned_abs() as usize;
        // SAFETY: these are the elements from the lowest to the highest of the view, which borrows
        // its own for 'a; the layout reaches no other, and is fixed.
        let elements = unsafe {
            AnySlice::host(
                array.as_ptr().wrapping_sub(start).cast(),
                T::DTYPE,
                (high - low) as usize,
            )
        };
        Ok(Matrix {
            elements,
            rows,
            layout: Layout {
                start,
                row_stride,
                column_stride,
                columns: 0,
                array: Some(columns),
                changed: false,
            },
        })
    }
}

impl<'a> Source<'a> {
    /// Of a host array `[rows, k]` with any strides; of one with more columns, say how many with
    /// [`columns`](Self::columns). Its layout is the array's: a call with a source whose start or
    /// strides were set afterwards is [`Argument`](ErrorKind::Argument). Needs the feature `ndarray`.
    ///
    /// # Errors
    ///
    /// [`Argument`](ErrorKind::Argument) for an array that is broadcast.
    pub fn from_array<T: Element>(ids: ArrayView2<'a, T>) -> Result<Self> {
        let m = Matrix::of(ids)?;
        let mut source = Source::new(m.elements, m.rows);
        source.layout = m.layout;
        Ok(source)
    }
}

impl<'a> Logits<'a> {
    /// Of a host array `[rows, experts]` with any strides; of one with fewer experts than the layer,
    /// say how many with [`experts`](Self::experts). Its layout is the array's: a call with logits
    /// whose start or strides were set afterwards is [`Argument`](ErrorKind::Argument). Needs the
    /// feature `ndarray`.
    ///
    /// # Errors
    ///
    /// [`Argument`](ErrorKind::Argument) for an array that is broadcast.
    pub fn from_array<T: Element>(logits: ArrayView2<'a, T>) -> Result<Self> {
        let m = Matrix::of(logits)?;
        let mut logits = Logits::new(m.elements, m.rows);
        logits.layout = m.layout;
        Ok(logits)
    }
}

/// Ids that were copied out, and which of them are valid. Needs the feature `ndarray`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CopiedArray<T> {
    /// `[rows, layers, k]` or `[layers, rows, k]`, as the order says.
    pub ids: Array3<T>,
    /// `[rows, layers]` or `[layers, rows]`.
    pub mask: Array2<bool>,
    /// Whether any cell is missing.
    pub completeness: Completeness,
}

impl Routing {
    /// Copy ids and mask into arrays, dense whatever strides the options have. Needs the feature
    /// `ndarray`.
    ///
    /// # Errors
    ///
    /// As [`copy_to`](Routing::copy_to).
    pub fn to_array<T: IdElement>(&self, options: &CopyOptions) -> Result<CopiedArray<T>> {
        let view = self.view()?;
        let copied = self.to_vec::<T>(&options.strides(0, 0))?;
        let (rows, layers) = (view.rows() as usize, options.copied_layers(view.layers()) as usize);
        let (a, b) = if options.is_row_major() { (rows, layers) } else { (layers, rows) };
        let misfit =
            |error: ndarray::ShapeError| Error::new(ErrorKind::Internal, error.to_string());
        Ok(CopiedArray {
            ids: Array3::from_shape_vec((a, b, view.k() as usize), copied.ids).map_err(misfit)?,
            mask: Array2::from_shape_vec((a, b), copied.mask).map_err(misfit)?,
            completeness: copied.completeness,
        })
    }

    /// Copy the ids of all layers to `dst`, `[rows, layers, k]` with any strides that keep the ids
    /// of a cell next to one another. Of `options`, fill and strictness are looked at. Needs the
    /// feature `ndarray`.
    ///
    /// # Errors
    ///
    /// As [`copy_to`](Routing::copy_to), and [`ShapeMismatch`](ErrorKind::ShapeMismatch) if `dst`
    /// has another shape; [`Argument`](ErrorKind::Argument) for negative strides, or ids of a cell
    /// that are apart.
    pub fn copy_to_array<T: IdElement>(
        &self,
        mut dst: ArrayViewMut3<'_, T>,
        options: &CopyOptions,
    ) -> Result<Completeness> {
        let view = self.view()?;
        let shape = [view.rows() as usize, view.layers() as usize, view.k() as usize];
        if dst.shape() != shape {
            return Err(Error::new(
                ErrorKind::ShapeMismatch,
                format!("an array of {:?} for a routing of {shape:?}", dst.shape()),
            ));
        }
        let stride =
            |axis: usize, alone: isize| if shape[axis] > 1 { dst.strides()[axis] } else { alone };
        let (row, layer, column) = (stride(0, 0), stride(1, 0), stride(2, 1));
        if row < 0 || layer < 0 || column != 1 {
            return Err(Error::new(
                ErrorKind::Argument,
                format!("strides of {:?}: the last is 1, none is negative", dst.strides()),
            ));
        }
        let options = options.order(Order::RowMajor).layers(0, 0).strides(row as i64, layer as i64);
        let reach: usize = if dst.is_empty() {
            0
        } else {
            (shape[0] - 1) * row as usize + (shape[1] - 1) * layer as usize + shape[2]
        };
        let bytes = reach * size_of::<T>();
        let data = dst.as_mut_ptr();
        // SAFETY: the library writes the cells of the view, which borrows them exclusively, and
        // nothing between them.
        copy_into::<T>(
            &options,
            &mut [],
            None,
            None,
            &|options, _, _, mask, mask_bytes, needed| unsafe {
                crate::sys::routecap_routing_copy_to(
                    self.as_raw(),
                    options,
                    data.cast(),
                    bytes,
                    mask,
                    mask_bytes,
                    needed,
                )
            },
        )
    }
}

/// The ids of a segment, `[rows, layers, k]`, in place: an array with strides, as rows lie
/// [`View::row_stride`](crate::View::row_stride) bytes apart. Needs the feature `ndarray`.
#[derive(Clone, Copy, Debug)]
pub enum SegmentArray<'a> {
    /// Of models with up to 256 experts in any layer.
    U8(ArrayView3<'a, u8>),
    /// Of others.
    I16(ArrayView3<'a, i16>),
}

impl<'a> Segment<'a> {
    /// The ids as an array with strides, in place; `None`: all cells of these rows are missing.
    /// Those of a cell that is not valid have no meaning. Needs the feature `ndarray`.
    ///
    /// ```
    /// # use routecap::{ArraySegment, Arrays, Routing, SegmentArray, Trust};
    /// # fn main() -> routecap::Result<()> {
    /// # let ids = [3u8, 1, 7, 0];
    /// # let rows = ArraySegment::new(0, 2).ids(&ids);
    /// # let arrays = Arrays::new(1, 2, 0, 2).experts(8).segment(rows);
    /// # let routing = Routing::import(&arrays, Trust::None)?;
    /// for segment in routing.view()?.segments() {
    ///     let Some(SegmentArray::U8(ids)) = segment.array() else { continue };
    ///     for (position, row) in segment.positions().zip(ids.outer_iter()) {
    ///         println!("token {position}: {row}"); // [layers, k]
    ///     }
    /// #   assert_eq!(ids[[1, 0, 0]], 7);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn array(&self) -> Option<SegmentArray<'a>> {
        let (ids, dtype, row_stride) = self.strided_ids()?;
        let (rows, layers, k) = (self.rows() as usize, self.layers() as usize, self.k() as usize);
        let shape = |id_bytes| (rows, layers, k).strides((row_stride / id_bytes, k, 1));
        // SAFETY: a segment has so many rows of layers x k ids of this type, row_stride bytes apart
        // (a multiple of the size of an id, and no less than a row takes), for 'a.
        Some(unsafe {
            match dtype {
                DType::U8 => SegmentArray::U8(ArrayView3::from_shape_ptr(shape(1), ids.cast())),
                _ => SegmentArray::I16(ArrayView3::from_shape_ptr(shape(2), ids.cast())),
            }
        })
    }
}
