//! What the library answers: statuses as errors, and the statuses that are none.

use std::ffi::CStr;
use std::fmt;

use crate::number::numbers;
use crate::sys;

/// Result of a call of the library.
pub type Result<T, E = Error> = std::result::Result<T, E>;

numbers! {
    /// What went wrong: the statuses of the library that are errors, and the one that
    /// [`Issued::step`](crate::Issued::step) makes one.
    ///
    /// Newer libraries may know more; those are [`ErrorKind::Other`].
    ErrorKind, "The kind of a status of C's that is an error.", status: "The status in C." {
        /// `ROUTECAP_ERR_ARGUMENT`: a value outside its documented set, or memory that is too short
        /// or in the wrong place for the call.
        Argument = ROUTECAP_ERR_ARGUMENT;
        /// `ROUTECAP_ERR_STRUCT_SIZE`: the library is older than this crate.
        StructSize = ROUTECAP_ERR_STRUCT_SIZE;
        /// `ROUTECAP_ERR_UNKNOWN_LAYER`: outside the capturer's layers.
        UnknownLayer = ROUTECAP_ERR_UNKNOWN_LAYER;
        /// `ROUTECAP_ERR_UNKNOWN_REQUEST`: never opened here, closed or finished.
        UnknownRequest = ROUTECAP_ERR_UNKNOWN_REQUEST;
        /// `ROUTECAP_ERR_UNKNOWN_STEP`: never issued, or nothing of that step waits for this call.
        UnknownStep = ROUTECAP_ERR_UNKNOWN_STEP;
        /// `ROUTECAP_ERR_OUT_OF_RANGE`: rows or indices that do not exist.
        OutOfRange = ROUTECAP_ERR_OUT_OF_RANGE;
        /// `ROUTECAP_ERR_CAPACITY`: rows outside the sink.
        Capacity = ROUTECAP_ERR_CAPACITY;
        /// `ROUTECAP_ERR_OVERLAP`: one step, one request, one position twice.
        Overlap = ROUTECAP_ERR_OVERLAP;
        /// `ROUTECAP_ERR_DTYPE`: a dtype that is not taken here, or ids of this model or the fill
        /// do not fit into it.
        DType = ROUTECAP_ERR_DTYPE;
        /// `ROUTECAP_ERR_SHAPE_MISMATCH`: layers, k, experts or id space differ.
        ShapeMismatch = ROUTECAP_ERR_SHAPE_MISMATCH;
        /// `ROUTECAP_ERR_BUFFER_TOO_SMALL`: nothing was written.
        BufferTooSmall = ROUTECAP_ERR_BUFFER_TOO_SMALL;
        /// `ROUTECAP_ERR_FORMAT`: not a serialised routing, damaged, or of a version that this
        /// library does not read.
        Format = ROUTECAP_ERR_FORMAT;
        /// `ROUTECAP_ERR_LOSSY`: a format cannot say what a routing says, and the caller did not
        /// allow that to be lost.
        Lossy = ROUTECAP_ERR_LOSSY;
        /// `ROUTECAP_ERR_STATE`: wrong order of calls.
        State = ROUTECAP_ERR_STATE;
        /// `ROUTECAP_ERR_DISABLED`: reading from a disabled or mirroring capturer.
        Disabled = ROUTECAP_ERR_DISABLED;
        /// `ROUTECAP_ERR_NOT_READY`: some of these rows are in flight.
        NotReady = ROUTECAP_ERR_NOT_READY;
        /// `ROUTECAP_ERR_INCOMPLETE`: strict reading, and cells are missing.
        Incomplete = ROUTECAP_ERR_INCOMPLETE;
        /// `ROUTECAP_ERR_CONFLICT`: recorded twice in one step, or different ids where equal ones
        /// are required.
        Conflict = ROUTECAP_ERR_CONFLICT;
        /// `ROUTECAP_ERR_FORKED`: called in a child process that was forked after the object was
        /// made.
        Forked = ROUTECAP_ERR_FORKED;
        /// `ROUTECAP_ERR_CAPTURING`: this call cannot be part of a CUDA graph, and the stream is
        /// being captured; the capture goes on.
        Capturing = ROUTECAP_ERR_CAPTURING;
        /// `ROUTECAP_ERR_RECOMPUTED`: strict reading, and cells were recomputed from logits.
        Recomputed = ROUTECAP_ERR_RECOMPUTED;
        /// `ROUTECAP_ERR_NOT_BEGUN`: record, route, snapshot or issue, and no step was begun. This
        /// and the five that follow are of [checked](crate::Config::checked) capturers alone.
        NotBegun = ROUTECAP_ERR_NOT_BEGUN;
        /// `ROUTECAP_ERR_NOT_SNAPSHOT`: issue of a forward that took no snapshot.
        NotSnapshot = ROUTECAP_ERR_NOT_SNAPSHOT;
        /// `ROUTECAP_ERR_SNAPSHOT_TWICE`: a second snapshot of one step.
        SnapshotTwice = ROUTECAP_ERR_SNAPSHOT_TWICE;
        /// `ROUTECAP_ERR_ISSUED_TWICE`: a second issue of one forward.
        IssuedTwice = ROUTECAP_ERR_ISSUED_TWICE;
        /// `ROUTECAP_ERR_ROWS_NOT_BEGUN`: rows were recorded, or named by a span, at or beyond
        /// those begun.
        RowsNotBegun = ROUTECAP_ERR_ROWS_NOT_BEGUN;
        /// `ROUTECAP_ERR_TWO_THREADS`: two threads are in calls of the forward path at once.
        TwoThreads = ROUTECAP_ERR_TWO_THREADS;
        /// `ROUTECAP_ERR_NO_MEMORY`: the budget, or the system's memory.
        NoMemory = ROUTECAP_ERR_NO_MEMORY;
        /// `ROUTECAP_ERR_TOO_MANY_REQUESTS`: as many are open as may be.
        TooManyRequests = ROUTECAP_ERR_TOO_MANY_REQUESTS;
        /// `ROUTECAP_ERR_THREAD`: the worker thread could not be started.
        Thread = ROUTECAP_ERR_THREAD;
        /// `ROUTECAP_ERR_NO_BACKEND`: this build or this machine does not have the backend.
        NoBackend = ROUTECAP_ERR_NO_BACKEND;
        /// `ROUTECAP_ERR_DRIVER_TOO_OLD`: the text says which driver this build needs.
        DriverTooOld = ROUTECAP_ERR_DRIVER_TOO_OLD;
        /// `ROUTECAP_ERR_DEVICE`: a call of the driver failed; the text says which and how.
        Device = ROUTECAP_ERR_DEVICE;
        /// `ROUTECAP_ERR_DEVICE_LOST`: the device works no more. Final; what has landed can still
        /// be read, the rest is missing.
        DeviceLost = ROUTECAP_ERR_DEVICE_LOST;
        /// `ROUTECAP_ERR_INTERNAL`: a defect of the library.
        Internal = ROUTECAP_ERR_INTERNAL;
        /// `ROUTECAP_LOST`: the step has a ticket, but all its rows are missing: no slot was free,
        /// or its copy failed.
        Lost = ROUTECAP_LOST;
    }
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(status_name(self.status()))
    }
}

/// A call that failed; nothing was changed by it. Displays as the name of the status and the
/// library's line of text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    kind: ErrorKind,
    message: String,
}

impl Error {
    pub(crate) fn new(kind: ErrorKind, message: impl Into<String>) -> Error {
        Error { kind, message: message.into() }
    }

    /// What went wrong.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// What went wrong in this case, one line. Empty in an error made of an [`ErrorKind`] alone, as
    /// those of the items of a batch.
    pub fn message(&self) -> &str {
        &self.message
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.message.is_empty() {
            self.kind.fmt(f)
        } else {
            write!(f, "{}: {}", self.kind, self.message)
        }
    }
}

impl std::error::Error for Error {}

impl From<ErrorKind> for Error {
    fn from(kind: ErrorKind) -> Error {
        Error::new(kind, "")
    }
}

/// The name of a status in C, `"ROUTECAP_ERR_CAPACITY"` for instance; `"ROUTECAP_STATUS_UNKNOWN"`
/// for others.
pub fn status_name(status: i32) -> &'static str {
    // SAFETY: routecap_status_name never fails; its texts are static.
    unsafe { CStr::from_ptr(sys::routecap_status_name(status)) }.to_str().unwrap_or_default()
}

/// The library's line about the last call on this thread that left one: an error, or a success that
/// is not whole. Empty if none did.
///
/// Errors carry their text already; this is for incomplete results and partial batches.
pub fn last_message() -> String {
    // SAFETY: routecap_last_error never fails; its text is valid until this thread's next call.
    unsafe { CStr::from_ptr(sys::routecap_last_error()) }.to_string_lossy().into_owned()
}

/// The status of a call, or its error with the text that it left on this thread.
#[inline]
pub(crate) fn check(status: i32) -> Result<i32> {
    if status >= 0 { Ok(status) } else { Err(failed(status)) }
}

#[cold]
fn failed(status: i32) -> Error {
    Error::new(ErrorKind::of(status), last_message())
}

/// What happened to one item of a call that takes many.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
#[repr(transparent)]
pub struct ItemStatus(pub(crate) i32);

impl fmt::Debug for ItemStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ItemStatus({})", status_name(self.0))
    }
}

impl ItemStatus {
    /// Whether the item was done, and otherwise why not.
    pub fn result(self) -> Result<(), ErrorKind> {
        if self.0 >= 0 { Ok(()) } else { Err(ErrorKind::of(self.0)) }
    }
}

numbers! {
    /// How much of what was asked for is there. Not an error: the valid cells are delivered.
    #[must_use]
    Completeness, "What a status of C's that is no error says.", status: "The status in C." {
        /// Every cell is valid.
        Complete = ROUTECAP_OK;
        /// Some cells are missing (`ROUTECAP_INCOMPLETE`).
        Incomplete = ROUTECAP_INCOMPLETE;
        /// There are rows, but not one of their cells is valid (`ROUTECAP_NOT_CAPTURED`).
        NotCaptured = ROUTECAP_NOT_CAPTURED;
    }
}

impl Completeness {
    /// Of a call that may also find nothing yet (`ROUTECAP_PENDING`).
    pub(crate) fn unless_pending(status: i32) -> Option<Completeness> {
        (status != sys::ROUTECAP_PENDING).then(|| Completeness::of(status))
    }

    /// Whether no cell is missing.
    pub fn is_complete(self) -> bool {
        self == Completeness::Complete
    }
}
