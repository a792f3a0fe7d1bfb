//! What the library answers: statuses as errors, and the statuses that are none.

use std::ffi::CStr;
use std::fmt;

pub use crate::declared::ErrorKind;
use crate::number::numbers;
use crate::sys;

/// Result of a call of the library.
pub type Result<T, E = Error> = std::result::Result<T, E>;

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
