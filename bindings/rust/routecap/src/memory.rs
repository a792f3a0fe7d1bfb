//! Memory that calls read and write: slices of this process, or addresses on the device; and
//! streams.

use std::ffi::c_void;
use std::marker::PhantomData;

pub use crate::declared::DType;
use crate::error::{Error, ErrorKind, Result};
use crate::sys;

/// An expert's id in the upper 16 bits, its bfloat16 weight in the lower 16.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(transparent)]
pub struct IdWeight(pub u32);

/// The bits of an IEEE half-precision number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(transparent)]
pub struct F16(pub u16);

/// The bits of a bfloat16 number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(transparent)]
pub struct BF16(pub u16);

mod sealed {
    pub trait Sealed {}
}

/// A type that arrays in calls can have.
pub trait Element: Copy + Default + Send + Sync + sealed::Sealed + 'static {
    /// Its dtype.
    const DTYPE: DType;
}

/// A type that ids can be copied out in: 8, 16, 32 or 64 bits wide.
pub trait IdElement: Element {}

macro_rules! elements {
    ($($type:ty: $dtype:ident),*) => { $(
        impl sealed::Sealed for $type {}
        impl Element for $type {
            const DTYPE: DType = DType::$dtype;
        }
    )* };
}
elements!(u8: U8, i16: I16, u16: U16, i32: I32, u32: U32, i64: I64, IdWeight: IdWeight, f32: F32, F16: F16, BF16: BF16);
impl IdElement for u8 {}
impl IdElement for i16 {}
impl IdElement for u16 {}
impl IdElement for i32 {}
impl IdElement for u32 {}
impl IdElement for i64 {}

/// A CUDA stream: what `cudaStream_t` and `CUstream` are.
///
/// Calls that take one run in its order, and some may be captured into a CUDA graph. The host
/// backend has no streams: pass [`Stream::HOST`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct Stream(sys::routecap_stream);

// SAFETY: a stream is a name; the driver's functions may be called with it on every thread.
unsafe impl Send for Stream {}
// SAFETY: as above.
unsafe impl Sync for Stream {}

impl Stream {
    /// No stream, as the host backend has none.
    pub const HOST: Stream = Stream(std::ptr::null_mut());
    /// CUDA's legacy default stream.
    pub const LEGACY: Stream = Stream(std::ptr::null_mut());
    /// CUDA's per-thread default stream.
    pub const PER_THREAD: Stream = Stream(std::ptr::without_provenance_mut(2));

    /// The stream of an engine.
    ///
    /// # Safety
    ///
    /// `stream` is a `cudaStream_t` or `CUstream` of the device of every capturer that it is used
    /// with, and exists as long as it is used.
    pub unsafe fn from_raw(stream: *mut c_void) -> Stream {
        Stream(stream.cast())
    }

    pub(crate) fn raw(self) -> sys::routecap_stream {
        self.0
    }
}

/// On which side memory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    Host,
    Device,
}

/// Elements that a call reads: a slice, or memory of the device.
///
/// Made of `&[T]`, `&Vec<T>`, `&[T; N]` or `&T` by `into()`, which most methods do themselves. The
/// host backend takes slices, the CUDA backend memory of the device; the other kind is
/// [`ErrorKind::Argument`](crate::ErrorKind::Argument).
#[derive(Clone, Copy, Debug)]
pub struct Slice<'a, T> {
    pub(crate) address: *const T,
    pub(crate) len: usize,
    pub(crate) place: Place,
    lifetime: PhantomData<&'a [T]>,
}

impl<T> Slice<'_, T> {
    /// Memory of the device: `len` elements from `address` on.
    ///
    /// # Safety
    ///
    /// The device can read these elements, and nothing else writes them, until the work of every
    /// call that the slice is given to has run on its stream; where that was captured into a graph,
    /// whenever the graph runs.
    pub unsafe fn device(address: *const T, len: usize) -> Self {
        Slice { address, len, place: Place::Device, lifetime: PhantomData }
    }
}

/// Elements of some dtype that a call reads: as [`Slice`], where several dtypes are taken.
#[derive(Clone, Copy, Debug)]
pub struct AnySlice<'a> {
    pub(crate) address: *const c_void,
    pub(crate) len: usize,
    pub(crate) dtype: DType,
    pub(crate) place: Place,
    lifetime: PhantomData<&'a [u8]>,
}

impl<'a> AnySlice<'a> {
    /// How many bytes there are from an element on.
    pub(crate) fn bytes_from(&self, start: usize) -> u64 {
        self.len.saturating_sub(start) as u64 * self.dtype.size() as u64
    }

    /// Memory of the device: `len` elements of `dtype` from `address` on.
    ///
    /// # Safety
    ///
    /// As for [`Slice::device`].
    pub unsafe fn device(address: *const c_void, dtype: DType, len: usize) -> Self {
        AnySlice { address, len, dtype, place: Place::Device, lifetime: PhantomData }
    }

    /// Memory of this process that no slice may cover, because parts of it belong to others.
    ///
    /// # Safety
    ///
    /// What the call that it is given to reads of these elements is initialised, and unchanged for
    /// `'a`.
    #[cfg(feature = "ndarray")]
    pub(crate) unsafe fn host(address: *const c_void, dtype: DType, len: usize) -> Self {
        AnySlice { address, len, dtype, place: Place::Host, lifetime: PhantomData }
    }
}

impl<'a, T: Element> From<Slice<'a, T>> for AnySlice<'a> {
    fn from(slice: Slice<'a, T>) -> Self {
        AnySlice {
            address: slice.address.cast(),
            len: slice.len,
            dtype: T::DTYPE,
            place: slice.place,
            lifetime: PhantomData,
        }
    }
}

/// Elements that a call writes: a slice, or memory of the device.
#[derive(Debug)]
pub struct SliceMut<'a, T> {
    pub(crate) address: *mut T,
    pub(crate) len: usize,
    pub(crate) place: Place,
    lifetime: PhantomData<&'a mut [T]>,
}

impl<T> SliceMut<'_, T> {
    /// Memory of the device: `len` elements from `address` on.
    ///
    /// # Safety
    ///
    /// The device can read and write these elements, and nothing else uses them, until the work of
    /// every call that the slice is given to has run on its stream; where that was captured into a
    /// graph, whenever the graph runs.
    pub unsafe fn device(address: *mut T, len: usize) -> Self {
        SliceMut { address, len, place: Place::Device, lifetime: PhantomData }
    }
}

// SAFETY: they are borrows of elements that are Send and Sync, or addresses that the constructors'
// contracts make as good.
unsafe impl<T: Sync> Send for Slice<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Sync> Sync for Slice<'_, T> {}
// SAFETY: as above.
unsafe impl Send for AnySlice<'_> {}
// SAFETY: as above.
unsafe impl Sync for AnySlice<'_> {}
// SAFETY: as above.
unsafe impl<T: Send> Send for SliceMut<'_, T> {}
// SAFETY: as above; nothing is written through a shared one.
unsafe impl<T: Sync> Sync for SliceMut<'_, T> {}

impl<'a, T> From<&'a [T]> for Slice<'a, T> {
    fn from(slice: &'a [T]) -> Self {
        Slice {
            address: slice.as_ptr(),
            len: slice.len(),
            place: Place::Host,
            lifetime: PhantomData,
        }
    }
}
impl<'a, T> From<&'a T> for Slice<'a, T> {
    fn from(one: &'a T) -> Self {
        std::slice::from_ref(one).into()
    }
}
impl<'a, T> From<&'a mut [T]> for SliceMut<'a, T> {
    fn from(slice: &'a mut [T]) -> Self {
        SliceMut {
            address: slice.as_mut_ptr(),
            len: slice.len(),
            place: Place::Host,
            lifetime: PhantomData,
        }
    }
}
impl<'a, T> From<&'a mut T> for SliceMut<'a, T> {
    fn from(one: &'a mut T) -> Self {
        std::slice::from_mut(one).into()
    }
}
impl<'a, T: Element> From<&'a [T]> for AnySlice<'a> {
    fn from(slice: &'a [T]) -> Self {
        Slice::from(slice).into()
    }
}

macro_rules! from_containers {
    ($($slice:ident<$($args:tt),*>: $bound:path;)*) => { $(
        impl<'a, T: $bound> From<&'a Vec<T>> for $slice<$($args),*> {
            fn from(vec: &'a Vec<T>) -> Self {
                vec.as_slice().into()
            }
        }
        impl<'a, T: $bound, const N: usize> From<&'a [T; N]> for $slice<$($args),*> {
            fn from(array: &'a [T; N]) -> Self {
                array.as_slice().into()
            }
        }
    )* };
}
from_containers! { Slice<'a, T>: Sized; AnySlice<'a>: Element; }

impl<'a, T> From<&'a mut Vec<T>> for SliceMut<'a, T> {
    fn from(vec: &'a mut Vec<T>) -> Self {
        vec.as_mut_slice().into()
    }
}
impl<'a, T, const N: usize> From<&'a mut [T; N]> for SliceMut<'a, T> {
    fn from(array: &'a mut [T; N]) -> Self {
        array.as_mut_slice().into()
    }
}

/// The elements that a matrix with strides reaches: from the lowest to one past the highest,
/// relative to row 0, column 0. None: no element.
pub(crate) fn reach(
    rows: u64,
    columns: u64,
    row_stride: i64,
    column_stride: i64,
) -> Option<(i128, i128)> {
    if rows == 0 || columns == 0 {
        return None;
    }
    let down = (rows - 1) as i128 * row_stride as i128;
    let across = (columns - 1) as i128 * column_stride as i128;
    Some((down.min(0) + across.min(0), down.max(0) + across.max(0) + 1))
}

/// Where the elements of a matrix are in its memory, counted in elements.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Layout {
    /// The element that is row 0, column 0.
    pub(crate) start: usize,
    /// 0: the columns.
    pub(crate) row_stride: i64,
    /// 0: 1.
    pub(crate) column_stride: i64,
    /// As the caller says; 0: as many as the capturer or the layer has.
    pub(crate) columns: u32,
    /// It is an array's, of so many columns: what lies between its elements may be lent to others,
    /// exclusively.
    pub(crate) array: Option<u32>,
    /// The start or a stride was set after that.
    pub(crate) changed: bool,
}

impl Layout {
    /// For the public methods that set the start or a stride.
    pub(crate) fn change(&mut self) -> &mut Self {
        self.changed = self.array.is_some();
        self
    }

    pub(crate) fn columns_or(&self, default: u32) -> u32 {
        if self.columns == 0 { default } else { self.columns }
    }

    /// As C has it; 0: the default.
    pub(crate) fn present(&self) -> u32 {
        self.array.unwrap_or(self.columns)
    }

    /// Whether `memory` is `rows` rows of it: with strides it holds what these reach, without any
    /// it is exactly as long. `columns` is the default, and `more` what to do where there are more.
    pub(crate) fn check(
        &self,
        checker: &Checker,
        name: &str,
        memory: &AnySlice<'_>,
        rows: u32,
        columns: u32,
        more: &str,
    ) -> Result<()> {
        if self.changed {
            return Err(Error::new(
                ErrorKind::Argument,
                format!("the layout of {name} was changed, and is that of an array"),
            ));
        }
        let columns = self.columns_or(columns);
        if let Some(present) = self.array
            && present != columns
            && checker.place.is_some()
        {
            return Err(Error::new(
                ErrorKind::ShapeMismatch,
                format!("{name} is an array of {rows} x {present}, not {rows} x {columns}: {more}"),
            ));
        }
        if self.array.is_none() && self.row_stride == 0 && self.column_stride == 0 {
            let needed = u64::from(rows) * u64::from(columns);
            let len = memory.len.saturating_sub(self.start);
            return checker.exactly(name, memory.place, len, needed, || {
                format!("{rows} rows x {columns} columns; {more}, or row_stride")
            });
        }
        let row_stride = if self.row_stride == 0 { i64::from(columns) } else { self.row_stride };
        let column_stride = if self.column_stride == 0 { 1 } else { self.column_stride };
        let reach = reach(rows.into(), columns.into(), row_stride, column_stride);
        checker.reaches(name, memory.place, memory.len, self.start, reach)
    }
}

/// Checks that memory is as long as what is read of it, and on the side where the backend reads it.
#[derive(Debug)]
pub(crate) struct Checker {
    /// None: the capturer is disabled and looks at no memory.
    pub(crate) place: Option<Place>,
}

impl Checker {
    pub(crate) fn holds(&self, name: &str, place: Place, len: usize, needed: u64) -> Result<()> {
        let Some(expected) = self.place else { return Ok(()) };
        if place != expected {
            let (is, takes) = match place {
                Place::Host => ("a slice", "the CUDA backend takes memory of the device"),
                Place::Device => ("memory of the device", "the host backend takes slices"),
            };
            return Err(Error::new(ErrorKind::Argument, format!("{name} is {is}: {takes}")));
        }
        if (len as u64) < needed {
            return Err(Error::new(
                ErrorKind::ShapeMismatch,
                format!("{name} has {len} elements and needs {needed}"),
            ));
        }
        Ok(())
    }

    /// The same for memory that may not be longer either; `says` is what the number is.
    pub(crate) fn exactly(
        &self,
        name: &str,
        place: Place,
        len: usize,
        needed: u64,
        says: impl FnOnce() -> String,
    ) -> Result<()> {
        self.holds(name, place, len, 0)?;
        if self.place.is_some() && len as u64 != needed {
            return Err(Error::new(
                ErrorKind::ShapeMismatch,
                format!("{name} has {len} elements, not {needed}: {}", says()),
            ));
        }
        Ok(())
    }

    /// The same for one number.
    pub(crate) fn one(&self, name: &str, place: Place, len: usize) -> Result<()> {
        self.exactly(name, place, len, 1, || "it is one number".into())
    }

    /// The same for a matrix whose row 0, column 0 is element `start`.
    pub(crate) fn reaches(
        &self,
        name: &str,
        place: Place,
        len: usize,
        start: usize,
        reach: Option<(i128, i128)>,
    ) -> Result<()> {
        let (low, high) = reach.unwrap_or((0, 0));
        if low + (start as i128) < 0 {
            return Err(Error::new(
                ErrorKind::ShapeMismatch,
                format!("{name} is reached before its first element"),
            ));
        }
        self.holds(name, place, len, u64::try_from(high + start as i128).unwrap_or(u64::MAX))
    }
}
