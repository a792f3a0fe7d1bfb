//! The capturer: what every thread may do with requests and steps.

use std::ffi::c_void;
use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Duration;

use crate::copy::{copy_into, copy_len};
use crate::coverage::{all_missing, coverage_into};
use crate::error::{Result, check};
use crate::memory::{Checker, IdElement, Place};
use crate::range::Rows;
use crate::step::status_for_each;
use crate::{
    AcceptItem, ArrivedRows, Backend, Completeness, CopyOptions, Coverage, Extract, ExtractItem,
    Finalized, FinishItem, ItemStatus, Kept, Landing, LayerStats, Load, Missing, Policy,
    RequestGuard, RequestId, Routing, Stats, Step, Strictness, WeightsType, sys,
};

/// A capturer, shared: the calls that every thread may make at any time, also while steps are in
/// flight (`routecap_capturer`).
///
/// Made by [`Config::create`](crate::Config::create), together with the [`Forward`](crate::Forward)
/// that takes what the engine computes. Clones are the same capturer. When the last of them and the
/// `Forward` are dropped it is destroyed (`routecap_capturer_destroy`): that waits until all steps
/// issued so far have landed, after which the library touches no memory of the engine. Routings
/// stay valid.
///
/// No call here waits for a step or for the device, but for [`finalize`](Self::finalize). Reading a
/// request waits for one thing: a change of that request which no step in flight holds up, for a
/// fraction of a second at most, then [`NotReady`](crate::ErrorKind::NotReady).
///
/// Errors beside those that a method names are listed at [`ErrorKind`](crate::ErrorKind):
/// [`Argument`](crate::ErrorKind::Argument), [`NoMemory`](crate::ErrorKind::NoMemory),
/// [`Forked`](crate::ErrorKind::Forked) and [`Internal`](crate::ErrorKind::Internal) can come from
/// all.
#[derive(Clone)]
pub struct Capturer {
    shared: Arc<Shared>,
}

impl fmt::Debug for Capturer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let experts = &self.shared.layer_experts;
        let alike = experts.first().filter(|first| experts.iter().all(|n| n == *first));
        f.debug_struct("Capturer")
            .field("backend", &self.backend())
            .field("disabled", &self.is_disabled())
            .field("layers", &experts.len())
            .field("k", &self.k())
            .field("experts", alike.map_or(experts as &dyn fmt::Debug, |first| first))
            .finish()
    }
}

/// The library's capturer and what of its configuration arguments are checked against.
struct Shared {
    raw: NonNull<sys::routecap_capturer>,
    backend: Backend,
    disabled: bool,
    k: u32,
    layer_k: Vec<u32>,
    layer_experts: Vec<u32>,
    weights: Option<WeightsType>,
}

// SAFETY: all functions but those of `Forward` may be called on any thread at any time; destroy
// runs when nobody is left to call one.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: the last reference is gone, and with it every way to call a function of this
        // capturer.
        unsafe { sys::routecap_capturer_destroy(self.raw.as_ptr()) }
    }
}

impl Capturer {
    /// # Safety
    ///
    /// `raw` was created for these values, and nobody else uses it.
    pub(crate) unsafe fn new(
        raw: *mut sys::routecap_capturer,
        backend: Backend,
        disabled: bool,
        k: u32,
        layer_k: Vec<u32>,
        layer_experts: Vec<u32>,
        weights: Option<WeightsType>,
    ) -> Capturer {
        let raw = NonNull::new(raw).expect("a capturer that was created");
        Capturer {
            shared: Arc::new(Shared { raw, backend, disabled, k, layer_k, layer_experts, weights }),
        }
    }

    /// The library's handle, for functions of [`sys`]. It is valid as long as this capturer lives,
    /// and must not be destroyed.
    pub fn as_raw(&self) -> *mut sys::routecap_capturer {
        self.shared.raw.as_ptr()
    }

    pub(crate) fn backend(&self) -> Backend {
        self.shared.backend
    }

    pub(crate) fn is_disabled(&self) -> bool {
        self.shared.disabled
    }

    /// Experts per token, the most of any layer.
    pub fn k(&self) -> u32 {
        self.shared.k
    }

    /// The most experts of a token in a captured layer; [`k`](Self::k) of one that does not exist.
    pub fn layer_k(&self, layer: u32) -> u32 {
        self.shared.layer_k.get(layer as usize).copied().unwrap_or(self.shared.k)
    }

    /// The type of the weights that are captured; `None`: none are.
    pub fn weights_type(&self) -> Option<WeightsType> {
        self.shared.weights
    }

    /// How many layers are captured.
    pub fn layers(&self) -> usize {
        self.shared.layer_experts.len()
    }

    /// The experts of a captured layer; 0 of one that does not exist.
    pub fn experts(&self, layer: u32) -> u32 {
        self.shared.layer_experts.get(layer as usize).copied().unwrap_or(0)
    }

    // ---- The capturer

    /// Read the counters (`routecap_capturer_stats`).
    pub fn stats(&self) -> Result<Stats> {
        let mut stats = sys::routecap_stats {
            struct_size: size_of::<sys::routecap_stats>() as u32,
            ..Default::default()
        };
        // SAFETY: `stats` has the size that it says.
        check(unsafe { sys::routecap_capturer_stats(self.as_raw(), &mut stats) })?;
        Ok(stats.into())
    }

    /// Read the counters of layers 0, 1, ... as many as `stats` holds
    /// (`routecap_capturer_layer_stats`).
    ///
    /// # Errors
    ///
    /// [`UnknownLayer`](crate::ErrorKind::UnknownLayer) if these are more than the capturer has.
    pub fn layer_stats(&self, stats: &mut [LayerStats]) -> Result<()> {
        let (data, count) = (stats.as_mut_ptr().cast(), stats.len());
        // SAFETY: `stats` are that many, of C's layout.
        check(unsafe {
            sys::routecap_capturer_layer_stats(self.as_raw(), data, size_of::<LayerStats>(), count)
        })
        .map(drop)
    }

    /// Read how often each expert was chosen since the capturer was created
    /// (`routecap_capturer_load`). It needs [`Config::load`](crate::Config::load).
    ///
    /// The reading has all steps that had landed before, each whole. It may wait for the step that
    /// is being filed or counted.
    ///
    /// # Errors
    ///
    /// [`Argument`](crate::ErrorKind::Argument) if the capturer was created without it.
    pub fn load(&self) -> Result<Load> {
        let mut load = sys::routecap_load {
            struct_size: size_of::<sys::routecap_load>() as u32,
            ..Default::default()
        };
        let mut counts = Vec::new();
        loop {
            // SAFETY: `load` has the size that it says, `counts` are that many.
            check(unsafe {
                sys::routecap_capturer_load(
                    self.as_raw(),
                    &mut load,
                    counts.as_mut_ptr(),
                    counts.len(),
                )
            })?;
            let (layers, experts) = (load.layers as usize, load.experts as usize);
            let size = sys::ROUTECAP_LOAD_PHASES as usize * layers * experts;
            if counts.len() != size {
                counts = vec![0; size];
                continue;
            }
            return Ok(Load {
                layers,
                experts,
                counts,
                steps: load.steps,
                first_step: Step(load.first_step),
                last_step: Step(load.last_step),
                rows_prefill: load.rows_prefill,
                rows_decode: load.rows_decode,
            });
        }
    }

    /// File the steps that have landed, on this thread: the work of the worker thread that a
    /// capturer with [`Config::manual_progress`](crate::Config::manual_progress) does not have
    /// (`routecap_capturer_progress`). Does not wait for the device.
    pub fn progress(&self) -> Result<()> {
        // SAFETY: the capturer lives.
        check(unsafe { sys::routecap_capturer_progress(self.as_raw()) }).map(drop)
    }

    // ---- Steps

    /// Whether a step has landed, that is, whether its rows can be read (`routecap_step_poll`).
    ///
    /// # Errors
    ///
    /// [`UnknownStep`](crate::ErrorKind::UnknownStep) if it was never issued.
    #[inline]
    pub fn poll(&self, step: Step) -> Result<Landing> {
        // SAFETY: the capturer lives.
        check(unsafe { sys::routecap_step_poll(self.as_raw(), step.0) }).map(Landing::of)
    }

    /// Hand over the rows of a step that was issued with
    /// [`Snapshot::Later`](crate::Snapshot::Later) (`routecap_step_arrive`): the way to capture a
    /// device that the library has no backend for, by a capturer on the host backend. `None`: they
    /// will not come, and the step is lost.
    ///
    /// The rows are copied, and every cell checked, before the call returns; it does not wait. Steps
    /// may arrive in any order, and are filed in that of their issue. It does nothing for rows that
    /// were handed over before, and for a step that has landed or was issued in another way.
    ///
    /// Fill the device's memory with bytes 0x80 before each forward: what that does not write is
    /// then missing. The capturer never begins a step, and needs no sink
    /// ([`Config::external_sink`](crate::Config::external_sink)).
    ///
    /// ```
    /// # use routecap::{ArrivedRows, Config, IssueOptions, Result, Snapshot, Span, Stream};
    /// # fn main() -> Result<()> {
    /// # let config = Config::host().layers(2).k(2).experts(8).rows(16).external_sink(true);
    /// # let (capturer, mut forward) = config.create()?;
    /// # let request = capturer.open()?;
    /// let later = IssueOptions::new().snapshot(Snapshot::Later);
    /// let step = forward.issue(&[Span::new(request, 0, 0, 1)], &later, Stream::HOST)?.step()?;
    /// // ... once the engine's copy to the host is complete, on any thread:
    /// let ids = [3i32, 1, 0, 7]; // [layers, rows, k]
    /// capturer.arrive(step, Some(&ArrivedRows::new(&ids, 1)))?;
    /// # _ = capturer.finalize(step)?;
    /// # assert_eq!(capturer.stats()?.rows_delivered, 1);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`UnknownStep`](crate::ErrorKind::UnknownStep) if it was never issued;
    /// [`Argument`](crate::ErrorKind::Argument) if the slice does not hold what rows and strides
    /// reach; [`ShapeMismatch`](crate::ErrorKind::ShapeMismatch) for a stride below k;
    /// [`DType`](crate::ErrorKind::DType). The rows can still arrive then.
    pub fn arrive(&self, step: Step, rows: Option<&ArrivedRows<'_>>) -> Result<()> {
        // Rows are in host memory on every backend.
        let checker = Checker { place: (!self.is_disabled()).then_some(Place::Host) };
        let layers = self.shared.layer_experts.len();
        let rows = rows
            .map(|rows| rows.checked(&checker, layers, self.k(), self.weights_type()))
            .transpose()?;
        let rows = rows.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
        // SAFETY: the memory was checked to hold what is read, and lives until the call returns;
        // that of positions is as its giver promised.
        check(unsafe { sys::routecap_step_arrive(self.as_raw(), step.0, rows) }).map(drop)
    }

    /// Wait until a step has landed (`routecap_step_finalize`), without limit. With manual progress
    /// it files what has landed itself.
    ///
    /// # Errors
    ///
    /// [`UnknownStep`](crate::ErrorKind::UnknownStep) if it was never issued. Of a
    /// [checked](crate::Config::checked) capturer also the slips that a device found in this step,
    /// which has landed all the same.
    pub fn finalize(&self, step: Step) -> Result<Finalized> {
        self.finalize_within(step, -1)
    }

    /// The same for so long at most; 0 looks once. [`Landing::Pending`] if that was not enough.
    pub fn finalize_timeout(&self, step: Step, timeout: Duration) -> Result<Finalized> {
        self.finalize_within(step, nanoseconds(timeout))
    }

    fn finalize_within(&self, step: Step, timeout_ns: i64) -> Result<Finalized> {
        let mut conflicting = 0;
        // SAFETY: the capturer lives.
        let status = check(unsafe {
            sys::routecap_step_finalize(self.as_raw(), step.0, timeout_ns, &mut conflicting)
        })?;
        Ok(Finalized { landing: Landing::of(status), conflicting })
    }

    // ---- Requests

    /// Open a request, in which a valid cell is final.
    ///
    /// # Errors
    ///
    /// [`TooManyRequests`](crate::ErrorKind::TooManyRequests).
    pub fn open(&self) -> Result<RequestId> {
        let mut request = RequestId::NONE;
        self.open_batch(std::slice::from_mut(&mut request), Policy::Keep)?;
        Ok(request)
    }

    /// Open a request that is closed when the guard is dropped.
    ///
    /// # Errors
    ///
    /// As [`open`](Self::open).
    pub fn open_guarded(&self, policy: Policy) -> Result<RequestGuard> {
        let mut request = RequestId::NONE;
        self.open_batch(std::slice::from_mut(&mut request), policy)?;
        Ok(RequestGuard::new(self.clone(), request))
    }

    /// Open as many requests as `requests` holds (`routecap_request_open`).
    ///
    /// # Errors
    ///
    /// As [`open`](Self::open); then none is opened.
    pub fn open_batch(&self, requests: &mut [RequestId], policy: Policy) -> Result<()> {
        let options = sys::routecap_open_options {
            struct_size: size_of::<sys::routecap_open_options>() as u32,
            policy: policy as i32,
        };
        // SAFETY: `requests` are that many handles.
        check(unsafe {
            sys::routecap_request_open(
                self.as_raw(),
                &options,
                requests.as_mut_ptr().cast(),
                requests.len(),
            )
        })
        .map(drop)
    }

    /// Settle the speculative rows of one request in one step: keep some, drop the others
    /// (`routecap_request_accept`).
    ///
    /// May come before the step has landed and after later steps were issued. The rows of a step
    /// are settled once.
    ///
    /// # Errors
    ///
    /// [`UnknownRequest`](crate::ErrorKind::UnknownRequest);
    /// [`UnknownStep`](crate::ErrorKind::UnknownStep) if no speculative rows of this request wait
    /// there; [`OutOfRange`](crate::ErrorKind::OutOfRange) for more rows than there are, or an
    /// index outside them.
    pub fn accept(&self, request: RequestId, step: Step, kept: Kept<'_>) -> Result<()> {
        let (rows, count) = kept.raw();
        // SAFETY: `rows` is NULL or that many indices.
        check(unsafe {
            sys::routecap_request_accept(self.as_raw(), request.0, step.0, rows, count as usize)
        })
        .map(drop)
    }

    /// Settle the speculative rows of many requests in one call (`routecap_request_accept_batch`).
    /// Whether all items succeeded: if not, see each.
    pub fn accept_batch(&self, items: &mut [AcceptItem<'_>]) -> Result<bool> {
        let (data, count) = (items.as_mut_ptr().cast(), items.len());
        // SAFETY: `items` are that many, of C's layout, and borrow their rows.
        whole(unsafe {
            sys::routecap_request_accept_batch(
                self.as_raw(),
                data,
                size_of::<AcceptItem<'_>>(),
                count,
            )
        })
    }

    /// Cut a request: rows at and after position `rows` are gone, whether settled, provisional or
    /// in flight (`routecap_request_truncate`).
    ///
    /// # Errors
    ///
    /// [`UnknownRequest`](crate::ErrorKind::UnknownRequest).
    pub fn truncate(&self, request: RequestId, rows: u64) -> Result<()> {
        // SAFETY: the capturer lives.
        check(unsafe { sys::routecap_request_truncate(self.as_raw(), request.0, rows) }).map(drop)
    }

    /// Open a request that begins with the rows of another before position `rows`, or with
    /// [`ALL`](crate::ALL) all it has at this moment: several samples of one prompt, a beam
    /// (`routecap_request_fork`). The pages are shared. Rows in flight are included once they land;
    /// provisional ones are not.
    ///
    /// # Errors
    ///
    /// [`UnknownRequest`](crate::ErrorKind::UnknownRequest);
    /// [`OutOfRange`](crate::ErrorKind::OutOfRange) for more rows than there are;
    /// [`TooManyRequests`](crate::ErrorKind::TooManyRequests).
    pub fn fork(&self, request: RequestId, rows: u64) -> Result<RequestId> {
        let mut child = RequestId::NONE;
        // SAFETY: the capturer lives; `child` is a handle.
        check(unsafe { sys::routecap_request_fork(self.as_raw(), request.0, rows, &mut child.0) })?;
        Ok(child)
    }

    /// Supply rows of a routing as rows of a request, before position `rows` or with
    /// [`ALL`](crate::ALL) all of it: what an engine took from its prefix cache and did not compute
    /// (`routecap_request_attach`). The routing may be pending if it comes from this capturer.
    ///
    /// # Errors
    ///
    /// [`UnknownRequest`](crate::ErrorKind::UnknownRequest);
    /// [`ShapeMismatch`](crate::ErrorKind::ShapeMismatch);
    /// [`OutOfRange`](crate::ErrorKind::OutOfRange) for rows beyond the routing;
    /// [`NotReady`](crate::ErrorKind::NotReady) if it is pending and of another capturer.
    pub fn attach(&self, request: RequestId, routing: &Routing, rows: u64) -> Result<()> {
        // SAFETY: capturer and routing live; the library retains the routing as long as it needs
        // it.
        check(unsafe {
            sys::routecap_request_attach(self.as_raw(), request.0, routing.as_raw(), rows)
        })
        .map(drop)
    }

    // ---- Reading

    /// Say how much of a range of rows is there (`routecap_request_coverage`).
    ///
    /// # Errors
    ///
    /// [`UnknownRequest`](crate::ErrorKind::UnknownRequest);
    /// [`OutOfRange`](crate::ErrorKind::OutOfRange); [`NotReady`](crate::ErrorKind::NotReady);
    /// [`Disabled`](crate::ErrorKind::Disabled).
    pub fn coverage(&self, request: RequestId, rows: impl Into<Rows>) -> Result<Coverage> {
        self.coverage_into(request, rows, &mut [])
    }

    /// The same, with the first blocks of missing cells, as many as `missing` holds;
    /// [`Coverage::blocks`] says how many there are.
    ///
    /// # Errors
    ///
    /// As [`coverage`](Self::coverage).
    pub fn coverage_into(
        &self,
        request: RequestId,
        rows: impl Into<Rows>,
        missing: &mut [Missing],
    ) -> Result<Coverage> {
        let rows = rows.into();
        // SAFETY: coverage_into passes a struct that says its size, and as many blocks as it says.
        coverage_into(missing, |coverage, blocks, size, capacity| unsafe {
            sys::routecap_request_coverage(
                self.as_raw(),
                request.0,
                rows.first,
                rows.count,
                coverage,
                blocks,
                size,
                capacity,
            )
        })
    }

    /// All blocks of missing cells of a range of rows, in order.
    ///
    /// # Errors
    ///
    /// As [`coverage`](Self::coverage).
    pub fn missing(&self, request: RequestId, rows: impl Into<Rows>) -> Result<Vec<Missing>> {
        let rows = rows.into();
        all_missing(|missing| self.coverage_into(request, rows, missing))
    }

    /// Read rows of a request into a routing, at any time of its life (`routecap_request_extract`).
    /// What is missing is for the routing to say: [`Routing::poll`].
    ///
    /// ```
    /// # use routecap::{Config, Extract, Rows};
    /// # fn main() -> routecap::Result<()> {
    /// # let (capturer, _forward) = Config::host().layers(2).k(2).experts(8).rows(4).create()?;
    /// # let request = capturer.open()?;
    /// let so_far = capturer.extract(request, Rows::landed(0), Extract::Share)?;
    /// # drop(so_far);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`coverage`](Self::coverage).
    pub fn extract(
        &self,
        request: RequestId,
        rows: impl Into<Rows>,
        mode: Extract,
    ) -> Result<Routing> {
        self.extract_with(request, rows, mode, Strictness::Lenient)
    }

    /// The same, and strict if asked to be.
    ///
    /// # Errors
    ///
    /// As [`coverage`](Self::coverage), and when strict
    /// [`Incomplete`](crate::ErrorKind::Incomplete) and
    /// [`Recomputed`](crate::ErrorKind::Recomputed).
    pub fn extract_with(
        &self,
        request: RequestId,
        rows: impl Into<Rows>,
        mode: Extract,
        strictness: Strictness,
    ) -> Result<Routing> {
        let rows = rows.into();
        let (mode, flags) = (mode as i32, strictness as u32);
        let mut routing = std::ptr::null_mut();
        // SAFETY: the capturer lives.
        check(unsafe {
            sys::routecap_request_extract(
                self.as_raw(),
                request.0,
                rows.first,
                rows.count,
                mode,
                flags,
                &mut routing,
            )
        })?;
        // SAFETY: the call gave out this reference.
        Ok(unsafe { Routing::delivered(routing) })
    }

    /// Read rows of many requests in one call (`routecap_request_extract_batch`). Whether all items
    /// are complete: if not, see each.
    ///
    /// # Errors
    ///
    /// [`Disabled`](crate::ErrorKind::Disabled).
    pub fn extract_batch(&self, items: &mut [ExtractItem]) -> Result<bool> {
        items.iter_mut().for_each(ExtractItem::reset);
        let (data, count) = (items.as_mut_ptr().cast(), items.len());
        // SAFETY: `items` are that many, of C's layout, without routings.
        whole(unsafe {
            sys::routecap_request_extract_batch(
                self.as_raw(),
                data,
                size_of::<ExtractItem>(),
                count,
            )
        })
    }

    /// Copy rows of a request to `dst` without making a routing, and to `mask` which of them are
    /// valid (`routecap_request_extract_into`).
    ///
    /// `dst` is `[rows, layers, k]` in the layout of `options`, `mask` `[rows, layers]` or
    /// `[layers, rows]`.
    ///
    /// # Errors
    ///
    /// As [`extract_with`](Self::extract_with), and those of [`Routing::copy_to`].
    pub fn extract_into<T: IdElement>(
        &self,
        request: RequestId,
        rows: impl Into<Rows>,
        dst: &mut [T],
        mask: Option<&mut [bool]>,
        options: &CopyOptions,
    ) -> Result<Completeness> {
        let rows = rows.into();
        // What has landed grows, and a disabled capturer has nothing.
        let open = rows.count == sys::ROUTECAP_ROWS_LANDED || self.is_disabled();
        copy_into(
            options,
            dst,
            mask,
            (!open).then(|| self.k()),
            &|options, dst, bytes, mask, mask_bytes, needed| {
                self.copy(request, rows, options, dst, bytes, mask, mask_bytes, needed)
            },
        )
    }

    /// How many elements of `T` [`extract_into`](Self::extract_into) takes.
    ///
    /// # Errors
    ///
    /// As [`extract_into`](Self::extract_into).
    pub fn extract_len<T: IdElement>(
        &self,
        request: RequestId,
        rows: impl Into<Rows>,
        options: &CopyOptions,
    ) -> Result<usize> {
        let rows = rows.into();
        copy_len::<T>(options, &|options, dst, bytes, mask, mask_bytes, needed| {
            self.copy(request, rows, options, dst, bytes, mask, mask_bytes, needed)
        })
    }

    #[allow(clippy::too_many_arguments)] // C's, one for one
    fn copy(
        &self,
        request: RequestId,
        rows: Rows,
        options: *const sys::routecap_copy_options,
        dst: *mut c_void,
        dst_bytes: usize,
        mask: *mut u8,
        mask_bytes: usize,
        needed: *mut u64,
    ) -> i32 {
        // SAFETY: the functions of `copy` pass memory of the sizes that they say.
        unsafe {
            sys::routecap_request_extract_into(
                self.as_raw(),
                request.0,
                rows.first,
                rows.count,
                options,
                dst,
                dst_bytes,
                mask,
                mask_bytes,
                needed,
            )
        }
    }

    // ---- The end of a request

    /// End a request and get its rows: the ordinary end (`routecap_request_finish`).
    ///
    /// The handle is stale at once. Steps issued before still file into the routing, which is ready
    /// when the last of them has landed; nobody waits here. The routing has exactly `rows` rows
    /// from position 0 on: a sequence of S tokens has S-1, whatever was issued ahead. With
    /// [`ALL`](crate::ALL) it has the request's length.
    ///
    /// # Errors
    ///
    /// [`UnknownRequest`](crate::ErrorKind::UnknownRequest);
    /// [`OutOfRange`](crate::ErrorKind::OutOfRange); [`Disabled`](crate::ErrorKind::Disabled).
    pub fn finish(&self, request: RequestId, rows: u64) -> Result<Routing> {
        let mut routing = std::ptr::null_mut();
        // SAFETY: the capturer lives.
        check(unsafe {
            sys::routecap_request_finish(self.as_raw(), request.0, rows, &mut routing)
        })?;
        // SAFETY: the call gave out this reference.
        Ok(unsafe { Routing::delivered(routing) })
    }

    /// End many requests in one call (`routecap_request_finish_batch`). Whether all items
    /// succeeded: if not, see each.
    ///
    /// # Errors
    ///
    /// [`Disabled`](crate::ErrorKind::Disabled).
    pub fn finish_batch(&self, items: &mut [FinishItem]) -> Result<bool> {
        items.iter_mut().for_each(FinishItem::reset);
        let (data, count) = (items.as_mut_ptr().cast(), items.len());
        // SAFETY: `items` are that many, of C's layout, without routings.
        whole(unsafe {
            sys::routecap_request_finish_batch(self.as_raw(), data, size_of::<FinishItem>(), count)
        })
    }

    /// End a request and drop its rows: an abort, or a preemption whose rows are not wanted
    /// (`routecap_request_close`). Closing [`RequestId::NONE`] does nothing.
    ///
    /// # Errors
    ///
    /// [`UnknownRequest`](crate::ErrorKind::UnknownRequest).
    pub fn close(&self, request: RequestId) -> Result<()> {
        // SAFETY: the capturer lives.
        check(unsafe { sys::routecap_request_close(self.as_raw(), request.0) }).map(drop)
    }

    /// End many requests and drop their rows (`routecap_request_close_batch`). Whether all
    /// succeeded.
    pub fn close_batch(&self, requests: &[RequestId]) -> Result<bool> {
        self.close_raw(requests, std::ptr::null_mut())
    }

    /// The same, with the status of each in `status`, which is as long as `requests`.
    pub fn close_batch_into(
        &self,
        requests: &[RequestId],
        status: &mut [ItemStatus],
    ) -> Result<bool> {
        status_for_each(status.len(), requests.len())?;
        self.close_raw(requests, status.as_mut_ptr().cast())
    }

    fn close_raw(&self, requests: &[RequestId], status: *mut i32) -> Result<bool> {
        // SAFETY: `requests` are that many handles; `status` is NULL or as many statuses.
        whole(unsafe {
            sys::routecap_request_close_batch(
                self.as_raw(),
                requests.as_ptr().cast(),
                status,
                requests.len(),
            )
        })
    }
}

/// Of a call that takes many items: whether it did all of them.
fn whole(status: i32) -> Result<bool> {
    check(status).map(|status| status != sys::ROUTECAP_PARTIAL)
}

/// A timeout as the library takes it; what does not fit is some centuries.
pub(crate) fn nanoseconds(timeout: Duration) -> i64 {
    i64::try_from(timeout.as_nanos()).unwrap_or(i64::MAX)
}
