//! Requests: their handles, and what is done to many of them at once.

use std::fmt;
use std::marker::PhantomData;

use crate::error::{ErrorKind, ItemStatus, Result};
use crate::number::named;
use crate::range::Rows;
use crate::{Capturer, Completeness, Routing, Step, Strictness, sys};

/// Names a request, a sequence being captured, of one capturer (`routecap_request`).
///
/// A plain handle, to be kept with the engine's own record of the sequence. One that was closed or
/// finished is not given out again: using it is [`ErrorKind::UnknownRequest`], never another
/// request's rows. [`RequestGuard`] is one that closes itself.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct RequestId(pub u64);

/// In hexadecimal, as the library's texts have it.
impl fmt::Debug for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RequestId({:016x})", self.0)
    }
}

impl RequestId {
    /// No request. Closing it does nothing.
    pub const NONE: RequestId = RequestId(0);
}

/// What happens to a position that is issued again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(i32)]
#[non_exhaustive]
pub enum Policy {
    /// A valid cell is final (`ROUTECAP_POLICY_KEEP`).
    #[default]
    Keep = sys::ROUTECAP_POLICY_KEEP,
    /// A later row with a valid cell replaces the whole row, tag and missing cells included
    /// (`ROUTECAP_POLICY_REPLACE`).
    Replace = sys::ROUTECAP_POLICY_REPLACE,
}

/// How rows are read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(i32)]
#[non_exhaustive]
pub enum Extract {
    /// The request keeps the rows; pages are shared (`ROUTECAP_EXTRACT_SHARE`).
    #[default]
    Share = sys::ROUTECAP_EXTRACT_SHARE,
    /// The rows leave the request, where they are missing from then on (`ROUTECAP_EXTRACT_TAKE`).
    Take = sys::ROUTECAP_EXTRACT_TAKE,
    /// The request keeps the rows; the routing is one array (one segment) of its own
    /// (`ROUTECAP_EXTRACT_COPY`).
    Copy = sys::ROUTECAP_EXTRACT_COPY,
}

/// Which of a request's speculative rows of a step to keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kept<'a> {
    /// So many leading ones; 0 keeps none.
    First(u64),
    /// Those with these strictly ascending indices, in the order of the spans: the accepted path of
    /// a tree.
    Indices(&'a [u32]),
}

impl Kept<'_> {
    pub(crate) fn raw(&self) -> (*const u32, u64) {
        match self {
            Kept::First(count) => (std::ptr::null(), *count),
            // An empty list is no list: NULL means the first `count`.
            Kept::Indices([]) => (std::ptr::null(), 0),
            Kept::Indices(rows) => (rows.as_ptr(), rows.len() as u64),
        }
    }
}

/// One of many accepts in one call of [`Capturer::accept_batch`] (`routecap_accept_item`).
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct AcceptItem<'a> {
    raw: sys::routecap_accept_item,
    rows: PhantomData<&'a [u32]>,
}

// SAFETY: what it points to is a slice of numbers that it borrows.
unsafe impl Send for AcceptItem<'_> {}
// SAFETY: as above.
unsafe impl Sync for AcceptItem<'_> {}

impl<'a> AcceptItem<'a> {
    /// Settle the speculative rows of `request` in `step`.
    pub fn new(request: RequestId, step: Step, kept: Kept<'a>) -> Self {
        let (rows, count) = kept.raw();
        let raw = sys::routecap_accept_item {
            request: request.0,
            step: step.0,
            rows,
            count,
            status: 0,
            reserved: 0,
        };
        AcceptItem { raw, rows: PhantomData }
    }

    fn kept(&self) -> Kept<'a> {
        if self.raw.rows.is_null() {
            return Kept::First(self.raw.count);
        }
        // SAFETY: they were made of a slice of that many, borrowed for 'a.
        Kept::Indices(unsafe { std::slice::from_raw_parts(self.raw.rows, self.raw.count as usize) })
    }

    /// What the call said of this item.
    pub fn result(&self) -> Result<(), ErrorKind> {
        ItemStatus(self.raw.status).result()
    }
}

impl fmt::Debug for AcceptItem<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AcceptItem")
            .field("request", &RequestId(self.raw.request))
            .field("step", &Step(self.raw.step))
            .field("kept", &self.kept())
            .field("result", &self.result())
            .finish()
    }
}

/// Items that receive a routing, which they own until it is taken.
macro_rules! routing_item {
    ($item:ident, $raw:ident) => {
        // SAFETY: what it points to is a routing, which it owns.
        unsafe impl Send for $item {}
        // SAFETY: nothing is done to the routing through a shared reference.
        unsafe impl Sync for $item {}

        impl $item {
            /// Forgets what an earlier call left, so that the item may be used again.
            pub(crate) fn reset(&mut self) {
                drop(self.take());
                self.0.status = 0;
            }

            /// Shows the routing that is here, if there is one.
            fn show_routing<R>(&self, show: impl FnOnce(&dyn fmt::Debug) -> R) -> R {
                // SAFETY: the reference stays the item's: it is not dropped here.
                let routing =
                    unsafe { Routing::from_raw(self.0.routing) }.map(std::mem::ManuallyDrop::new);
                show(&routing.as_deref())
            }

            /// The routing that the call delivered, once.
            pub fn take(&mut self) -> Option<Routing> {
                let routing = std::mem::replace(&mut self.0.routing, std::ptr::null_mut());
                // SAFETY: the call left a reference here, and nobody else has it.
                unsafe { Routing::from_raw(routing) }
            }
        }

        impl Drop for $item {
            fn drop(&mut self) {
                drop(self.take());
            }
        }

        const _: () = assert!(size_of::<$item>() == size_of::<sys::$raw>());
    };
}

/// One of many reads in one call of [`Capturer::extract_batch`] (`routecap_extract_item`).
#[repr(transparent)]
pub struct ExtractItem(sys::routecap_extract_item);
routing_item!(ExtractItem, routecap_extract_item);

impl ExtractItem {
    /// Read rows of `request` into a routing.
    pub fn new(
        request: RequestId,
        rows: impl Into<Rows>,
        mode: Extract,
        strictness: Strictness,
    ) -> Self {
        let rows = rows.into();
        ExtractItem(sys::routecap_extract_item {
            request: request.0,
            first: rows.first,
            rows: rows.count,
            mode: mode as i32,
            flags: strictness as u32,
            routing: std::ptr::null_mut(),
            status: 0,
            reserved: 0,
        })
    }

    /// What the call said of this item.
    pub fn result(&self) -> Result<Completeness, ErrorKind> {
        ItemStatus(self.0.status).result().map(|()| Completeness::of(self.0.status))
    }
}

impl fmt::Debug for ExtractItem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("ExtractItem");
        shown
            .field("request", &RequestId(self.0.request))
            .field("rows", &Rows::new(self.0.first, self.0.rows));
        shown.field("mode", named!(self.0.mode, Extract: Share, Take, Copy));
        shown.field(
            "strictness",
            named!(self.0.flags, Strictness: Lenient, Strict, StrictButRecomputed),
        );
        self.show_routing(|routing| {
            shown.field("routing", routing).field("result", &self.result()).finish()
        })
    }
}

/// One of many ends in one call of [`Capturer::finish_batch`] (`routecap_finish_item`).
#[repr(transparent)]
pub struct FinishItem(sys::routecap_finish_item);
routing_item!(FinishItem, routecap_finish_item);

impl FinishItem {
    /// End `request`; its routing has exactly `rows` rows, or with [`ALL`](crate::ALL) the
    /// request's length.
    pub fn new(request: RequestId, rows: u64) -> Self {
        FinishItem(sys::routecap_finish_item {
            request: request.0,
            rows,
            routing: std::ptr::null_mut(),
            status: 0,
            reserved: 0,
        })
    }

    /// What the call said of this item.
    pub fn result(&self) -> Result<(), ErrorKind> {
        ItemStatus(self.0.status).result()
    }
}

impl fmt::Debug for FinishItem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("FinishItem");
        shown.field("request", &RequestId(self.0.request)).field("rows", &self.0.rows);
        self.show_routing(|routing| {
            shown.field("routing", routing).field("result", &self.result()).finish()
        })
    }
}

/// A request that closes itself when it is dropped, rows and all, unless it is finished before.
///
/// ```
/// # use routecap::Config;
/// # fn main() -> routecap::Result<()> {
/// # let (capturer, _forward) = Config::host().layers(2).k(2).experts(8).rows(4).create()?;
/// let request = capturer.open_guarded(Default::default())?;
/// let id = request.id(); // what spans take
/// # let _ = id;
/// drop(request); // an abort: the request is closed
/// assert_eq!(capturer.stats()?.requests_open, 0);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct RequestGuard {
    capturer: Capturer,
    id: RequestId,
}

impl RequestGuard {
    pub(crate) fn new(capturer: Capturer, id: RequestId) -> Self {
        RequestGuard { capturer, id }
    }

    /// The handle. It is stale once the guard is gone.
    pub fn id(&self) -> RequestId {
        self.id
    }

    /// End the request and get its rows, as [`Capturer::finish`]. If that fails the request is
    /// closed.
    pub fn finish(self, rows: u64) -> Result<Routing> {
        self.capturer.finish(self.id, rows)
    }

    /// The handle, which from now on is for the caller to close or finish.
    pub fn into_id(mut self) -> RequestId {
        std::mem::take(&mut self.id)
    }
}

impl Drop for RequestGuard {
    fn drop(&mut self) {
        // A request that is finished already, or not of this process, needs no end.
        let _ = self.capturer.close(self.id);
    }
}
