//! Routings: rows that were read out.

use std::ffi::c_void;
use std::fmt;
use std::ptr::NonNull;
use std::time::Duration;

use crate::capturer::nanoseconds;
use crate::copy::{copy_into, copy_len, dense_cells};
use crate::coverage::{all_missing, coverage_into};
use crate::error::{Completeness, Result, check};
use crate::memory::IdElement;
use crate::range::Rows;
use crate::view::View;
use crate::{Copied, CopyOptions, Coverage, Missing, sys};

/// Rows that were read out: immutable, reference-counted, usable on all threads, outliving request
/// and capturer (`routecap_routing`).
///
/// A clone is one more reference to the same rows (`routecap_routing_retain`), and dropping one
/// frees that (`routecap_routing_free`); the memory goes with the last. The routing of
/// [`Capturer::finish`](crate::Capturer::finish) is pending until its last step has landed: until
/// then all methods but [`wait`](Self::wait) and [`poll`](Self::poll) return
/// [`NotReady`](crate::ErrorKind::NotReady). All others always are ready.
pub struct Routing {
    raw: NonNull<sys::routecap_routing>,
}

/// What it is of and how many cells are missing; that it is pending; or why it cannot be looked at.
impl fmt::Debug for Routing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seen = self
            .poll()
            .and_then(|ready| ready.map(|_| Ok((self.view()?, self.coverage()?))).transpose());
        match seen {
            Ok(None) => f.write_str("Routing(pending)"),
            Err(error) => write!(f, "Routing({})", error.kind()),
            Ok(Some((view, coverage))) => f
                .debug_struct("Routing")
                .field("first", &view.first())
                .field("rows", &view.rows())
                .field("layers", &view.layers())
                .field("k", &view.k())
                .field("missing", &coverage.cells_missing)
                .finish(),
        }
    }
}

// SAFETY: routings may be used from all threads at once.
unsafe impl Send for Routing {}
// SAFETY: as above.
unsafe impl Sync for Routing {}

impl Clone for Routing {
    fn clone(&self) -> Routing {
        // SAFETY: the routing lives. Taking a reference to one fails only in a forked child, where
        // freeing does nothing either.
        unsafe { sys::routecap_routing_retain(self.raw.as_ptr()) };
        Routing { raw: self.raw }
    }
}

impl Drop for Routing {
    fn drop(&mut self) {
        // SAFETY: this reference is freed once.
        unsafe { sys::routecap_routing_free(self.raw.as_ptr()) }
    }
}

impl Routing {
    /// A routing of the library's; NULL is none.
    ///
    /// # Safety
    ///
    /// `routing` is NULL or a reference that nobody else frees.
    pub unsafe fn from_raw(routing: *mut sys::routecap_routing) -> Option<Routing> {
        NonNull::new(routing).map(|raw| Routing { raw })
    }

    /// What a call that succeeded has given out.
    ///
    /// # Safety
    ///
    /// `routing` is a reference that nobody else frees.
    pub(crate) unsafe fn delivered(routing: *mut sys::routecap_routing) -> Routing {
        // SAFETY: as the caller promises.
        unsafe { Routing::from_raw(routing) }.expect("a call that succeeds delivers its routing")
    }

    /// The library's handle, for functions of [`sys`]. It is valid as long as this routing lives,
    /// and must not be freed.
    pub fn as_raw(&self) -> *mut sys::routecap_routing {
        self.raw.as_ptr()
    }

    /// The library's handle, to be freed with `routecap_routing_free`.
    pub fn into_raw(self) -> *mut sys::routecap_routing {
        std::mem::ManuallyDrop::new(self).raw.as_ptr()
    }

    // ---- Whether it is ready

    /// Wait until the routing is ready, without limit (`routecap_routing_wait`). With manual
    /// progress it files what has landed itself.
    pub fn wait(&self) -> Result<Completeness> {
        // SAFETY: the routing lives.
        check(unsafe { sys::routecap_routing_wait(self.as_raw(), -1) }).map(Completeness::of)
    }

    /// The same for so long at most; 0 looks once. `None` if that was not enough.
    pub fn wait_timeout(&self, timeout: Duration) -> Result<Option<Completeness>> {
        // SAFETY: the routing lives.
        check(unsafe { sys::routecap_routing_wait(self.as_raw(), nanoseconds(timeout)) })
            .map(Completeness::unless_pending)
    }

    /// Whether the routing is ready, and then how complete (`routecap_routing_poll`). Does not
    /// wait, and makes no progress.
    #[inline]
    pub fn poll(&self) -> Result<Option<Completeness>> {
        // SAFETY: the routing lives.
        check(unsafe { sys::routecap_routing_poll(self.as_raw()) })
            .map(Completeness::unless_pending)
    }

    // ---- Looking at it

    /// Look at the routing in place, without a copy (`routecap_routing_view`).
    ///
    /// What the view shows lives as long as the routing is borrowed:
    ///
    /// ```compile_fail
    /// # fn example(routing: routecap::Routing) -> routecap::Result<()> {
    /// let view = routing.view()?;
    /// drop(routing);
    /// println!("{}", view.rows());
    /// # Ok(())
    /// # }
    /// ```
    #[inline]
    pub fn view(&self) -> Result<View<'_>> {
        let mut view = sys::routecap_view {
            struct_size: size_of::<sys::routecap_view>() as u32,
            ..Default::default()
        };
        // SAFETY: `view` has the size that it says.
        check(unsafe { sys::routecap_routing_view(self.as_raw(), &mut view) })?;
        // SAFETY: its pointers are valid as long as this reference is, which the view borrows.
        Ok(unsafe { View::new(view) })
    }

    /// Say how much is there (`routecap_routing_coverage`).
    pub fn coverage(&self) -> Result<Coverage> {
        self.coverage_into(&mut [])
    }

    /// The same, with the first blocks of missing cells, as many as `missing` holds;
    /// [`Coverage::blocks`] says how many there are.
    pub fn coverage_into(&self, missing: &mut [Missing]) -> Result<Coverage> {
        // SAFETY: coverage_into passes a struct that says its size, and as many blocks as it says.
        coverage_into(missing, |coverage, blocks, size, capacity| unsafe {
            sys::routecap_routing_coverage(self.as_raw(), coverage, blocks, size, capacity)
        })
    }

    /// All blocks of missing cells, in order.
    pub fn missing(&self) -> Result<Vec<Missing>> {
        all_missing(|missing| self.coverage_into(missing))
    }

    // ---- Dividing and uniting

    /// Divide the routing at the end of the prompt (`routecap_routing_split`): rows before position
    /// `prompt_tokens`, and of those from there on at most `generated_tokens`, or with
    /// [`ALL`](crate::ALL) all. Pages are shared.
    pub fn split(&self, prompt_tokens: u64, generated_tokens: u64) -> Result<(Routing, Routing)> {
        let (mut prompt, mut generated) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: the routing lives.
        check(unsafe {
            sys::routecap_routing_split(
                self.as_raw(),
                prompt_tokens,
                generated_tokens,
                &mut prompt,
                &mut generated,
            )
        })?;
        // SAFETY: the call gave out both references.
        Ok(unsafe { (Routing::delivered(prompt), Routing::delivered(generated)) })
    }

    /// A routing of some of the rows (`routecap_routing_slice`). Pages are shared; positions stay
    /// what they are.
    ///
    /// # Errors
    ///
    /// [`OutOfRange`](crate::ErrorKind::OutOfRange) for rows that the routing does not have.
    pub fn slice(&self, rows: impl Into<Rows>) -> Result<Routing> {
        let rows = rows.into();
        let mut slice = std::ptr::null_mut();
        // SAFETY: the routing lives.
        check(unsafe {
            sys::routecap_routing_slice(self.as_raw(), rows.first, rows.count, &mut slice)
        })?;
        // SAFETY: the call gave out this reference.
        Ok(unsafe { Routing::delivered(slice) })
    }

    /// Unite routings of one sequence that hold different rows, different layers, or both
    /// (`routecap_routing_merge`): sequence- and pipeline-parallel ranks, pieces of a stream.
    /// Layers are matched by their index in the decoder, rows by position; what nobody has is
    /// missing.
    ///
    /// # Errors
    ///
    /// [`Argument`](crate::ErrorKind::Argument) for no routing at all;
    /// [`Conflict`](crate::ErrorKind::Conflict) if two have a cell with different sets of ids;
    /// [`ShapeMismatch`](crate::ErrorKind::ShapeMismatch) if k, the id space, the type of the
    /// weights or the experts of one layer differ.
    pub fn merge<'a>(routings: impl IntoIterator<Item = &'a Routing>) -> Result<Routing> {
        let routings: Vec<*const sys::routecap_routing> =
            routings.into_iter().map(|routing| routing.as_raw().cast_const()).collect();
        let mut merged = std::ptr::null_mut();
        // SAFETY: these are that many routings, borrowed until the call returns.
        check(unsafe {
            sys::routecap_routing_merge(routings.as_ptr(), routings.len(), 0, &mut merged)
        })?;
        // SAFETY: the call gave out this reference.
        Ok(unsafe { Routing::delivered(merged) })
    }

    // ---- Copying

    /// Copy the ids to `dst`, and to `mask` which cells are valid (`routecap_routing_copy_to`).
    /// [`slice`](Self::slice) first to copy fewer rows.
    ///
    /// `dst` is `[rows, layers, k]` in the layout of `options`, `mask` `[rows, layers]` or
    /// `[layers, rows]`.
    ///
    /// # Errors
    ///
    /// [`BufferTooSmall`](crate::ErrorKind::BufferTooSmall) (nothing is written);
    /// [`DType`](crate::ErrorKind::DType) if ids or the fill do not fit into `T`;
    /// [`UnknownLayer`](crate::ErrorKind::UnknownLayer); [`Argument`](crate::ErrorKind::Argument)
    /// for strides that mix the cells of rows and layers, or a fill that is an expert id with
    /// neither mask nor strictness; when strict [`Incomplete`](crate::ErrorKind::Incomplete) and
    /// [`Recomputed`](crate::ErrorKind::Recomputed).
    pub fn copy_to<T: IdElement>(
        &self,
        dst: &mut [T],
        mask: Option<&mut [bool]>,
        options: &CopyOptions,
    ) -> Result<Completeness> {
        let k = Some(self.view()?.k());
        copy_into(options, dst, mask, k, &|options, dst, bytes, mask, mask_bytes, needed| {
            self.copy(options, dst, bytes, mask, mask_bytes, needed)
        })
    }

    /// How many elements of `T` [`copy_to`](Self::copy_to) takes.
    ///
    /// # Errors
    ///
    /// As [`copy_to`](Self::copy_to).
    pub fn copy_len<T: IdElement>(&self, options: &CopyOptions) -> Result<usize> {
        copy_len::<T>(options, &|options, dst, bytes, mask, mask_bytes, needed| {
            self.copy(options, dst, bytes, mask, mask_bytes, needed)
        })
    }

    fn copy(
        &self,
        options: *const sys::routecap_copy_options,
        dst: *mut c_void,
        dst_bytes: usize,
        mask: *mut u8,
        mask_bytes: usize,
        needed: *mut u64,
    ) -> i32 {
        // SAFETY: the functions of `copy` pass memory of the sizes that they say.
        unsafe {
            sys::routecap_routing_copy_to(
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

    /// Copy ids and mask into vectors.
    ///
    /// ```
    /// # use routecap::{ALL, Config, CopyOptions, IssueOptions, Source, Span, Stream};
    /// # fn main() -> routecap::Result<()> {
    /// # let (capturer, mut forward) = Config::host().layers(1).k(2).experts(8).rows(16).create()?;
    /// # let request = capturer.open()?;
    /// # forward.begin(2, Stream::HOST)?;
    /// # forward.record(0, &Source::new(&[3, 1, 7, 0], 2), Stream::HOST)?;
    /// # forward.snapshot(Stream::HOST)?;
    /// # forward.issue(&[Span::new(request, 0, 0, 2)], &IssueOptions::new(), Stream::HOST)?.step()?;
    /// # let routing = capturer.finish(request, ALL)?;
    /// # let _ = routing.wait()?;
    /// let copied = routing.to_vec::<i32>(&CopyOptions::new())?;
    /// assert_eq!(copied.ids, [3, 1, 7, 0]);
    /// assert_eq!(copied.mask, [true, true]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`copy_to`](Self::copy_to).
    pub fn to_vec<T: IdElement>(&self, options: &CopyOptions) -> Result<Copied<T>> {
        let mut ids = vec![T::default(); self.copy_len::<T>(options)?];
        let mut mask = vec![false; dense_cells(&self.view()?, options)?];
        let completeness = self.copy_to(&mut ids, Some(&mut mask), options)?;
        Ok(Copied { ids, mask, completeness })
    }
}
