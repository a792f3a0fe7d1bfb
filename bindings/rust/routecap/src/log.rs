//! The library's lines for operators, given to a closure.

use std::cell::Cell;
use std::ffi::{CStr, c_char, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, PoisonError};

use crate::error::{Result, check};
use crate::sys;

/// What a line is about (`ROUTECAP_LOG_*`). A level takes the lines of those before it, too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(i32)]
#[non_exhaustive]
pub enum LogLevel {
    /// It does not work: no device, a lost device, a defect.
    Error = sys::ROUTECAP_LOG_ERROR,
    /// Rows are missing.
    Warning = sys::ROUTECAP_LOG_WARNING,
    /// Capturers made and destroyed; a worker thread that falls behind.
    Info = sys::ROUTECAP_LOG_INFO,
    /// Every call that returned an error.
    Debug = sys::ROUTECAP_LOG_DEBUG,
}

impl LogLevel {
    fn of(level: i32) -> LogLevel {
        match level {
            sys::ROUTECAP_LOG_ERROR => LogLevel::Error,
            sys::ROUTECAP_LOG_WARNING => LogLevel::Warning,
            sys::ROUTECAP_LOG_INFO => LogLevel::Info,
            _ => LogLevel::Debug,
        }
    }
}

type Hook = Box<dyn Fn(LogLevel, &str) + Send + Sync>;

/// The one that the library has. It lies in a box of its own, so that it stays where it is.
static CURRENT: Mutex<Option<Box<Hook>>> = Mutex::new(None);

thread_local! {
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Give the library's lines, up to a level, to a closure (`routecap_set_log`). Without one
/// `ROUTECAP_LOG` in the environment says which lines go to stderr.
///
/// The closure is called on the thread on which something happened, by several threads at once. It
/// must not drop a [`Capturer`](crate::Capturer); a panic in it is caught and ends there. The one
/// before it is dropped when this returns. For the crate `log`:
///
/// ```ignore
/// routecap::set_log(LogLevel::Info, |level, line| {
///     let level = match level {
///         LogLevel::Error => log::Level::Error,
///         LogLevel::Warning => log::Level::Warn,
///         LogLevel::Info => log::Level::Info,
///         _ => log::Level::Debug,
///     };
///     log::log!(target: "routecap", level, "{line}");
/// })?;
/// ```
///
/// # Errors
///
/// [`State`](crate::ErrorKind::State), called by such a closure.
pub fn set_log(
    level: LogLevel,
    hook: impl Fn(LogLevel, &str) + Send + Sync + 'static,
) -> Result<()> {
    replace(level as i32, Some(Box::new(Box::new(hook))))
}

/// Take the closure of [`set_log`] away.
///
/// # Errors
///
/// [`State`](crate::ErrorKind::State), called by that closure.
pub fn unset_log() -> Result<()> {
    replace(sys::ROUTECAP_LOG_OFF, None)
}

fn replace(level: i32, hook: Option<Box<Hook>>) -> Result<()> {
    if INSIDE.get() {
        // Refused, with the library's text: another thread may wait in here for this one.
        // SAFETY: nothing is passed.
        return check(unsafe {
            sys::routecap_set_log(None, std::ptr::null_mut(), sys::ROUTECAP_LOG_OFF)
        })
        .map(drop);
    }
    let mut current = CURRENT.lock().unwrap_or_else(PoisonError::into_inner);
    let context = hook.as_deref().map_or(std::ptr::null(), std::ptr::from_ref).cast_mut();
    let call: sys::routecap_log =
        hook.as_ref().map(|_| line as unsafe extern "C" fn(*mut c_void, i32, *const c_char));
    // SAFETY: the closure lives until another call has replaced it, which waits until nobody is in
    // it.
    check(unsafe { sys::routecap_set_log(call, context.cast(), level) })?;
    *current = hook;
    Ok(())
}

/// # Safety
///
/// `context` is a `Hook` and `text` a string, both as long as the call.
unsafe extern "C" fn line(context: *mut c_void, level: i32, text: *const c_char) {
    // SAFETY: as the caller promises.
    let (hook, text) = unsafe { (&*context.cast::<Hook>(), CStr::from_ptr(text)) };
    INSIDE.set(true);
    let _ = catch_unwind(AssertUnwindSafe(|| hook(LogLevel::of(level), &text.to_string_lossy())));
    INSIDE.set(false);
}
