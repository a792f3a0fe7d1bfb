//! Lets a program see which experts the models of this crate choose: they call `observe` after
//! every router.

use std::cell::RefCell;

type Observer = Box<dyn FnMut(&candle::Tensor) -> candle::Result<()>>;

thread_local!(static OBSERVER: RefCell<Option<Observer>> = const { RefCell::new(None) });

/// Calls `observer` for every MoE block that runs on this thread from now on, in the order of the
/// layers, with ids [tokens, k] of experts; or nobody. Returns the one that was called before.
pub fn set_observer(observer: Option<Observer>) -> Option<Observer> {
    OBSERVER.with(|cell| cell.replace(observer))
}

pub(crate) fn observe(ids: &candle::Tensor) -> candle::Result<()> {
    OBSERVER.with(|cell| cell.borrow_mut().as_mut().map_or(Ok(()), |observer| observer(ids)))
}
