//! Experimental methods, which may be withdrawn: a store that several processes share
//! ([`StoreConfig::create_shared`], [`StoreConfig::open_shared`]). They are there with the feature
//! `experimental`.

use std::ptr::null_mut;

use crate::error::{Result, check};
use crate::{Config, Store, StoreConfig, sys};

impl StoreConfig {
    /// Create a store that several processes share, and the file descriptor by which they open it,
    /// which is the caller's (`routecap_store_create_shared`).
    ///
    /// # Errors
    ///
    /// As [`create`](Self::create); [`NoBackend`](crate::ErrorKind::NoBackend) where the system has
    /// no such memory.
    pub fn create_shared(&self, shape: &Config) -> Result<(Store, i32)> {
        let (raw, of) = (self.raw(), shape.raw()?);
        let (mut store, mut descriptor) = (null_mut(), -1);
        // SAFETY: as in `create`.
        check(unsafe {
            sys::routecap_store_create_shared(&raw, &of, &mut descriptor, &mut store)
        })?;
        Ok((self.store(store), descriptor))
    }

    /// Open the store of a descriptor (`routecap_store_open_shared`).
    ///
    /// # Errors
    ///
    /// [`Format`](crate::ErrorKind::Format); [`ShapeMismatch`](crate::ErrorKind::ShapeMismatch);
    /// [`NoBackend`](crate::ErrorKind::NoBackend).
    pub fn open_shared(&self, shape: &Config, descriptor: i32) -> Result<Store> {
        let (raw, of) = (self.raw(), shape.raw()?);
        let mut store = null_mut();
        // SAFETY: as in `create`; the library checks what the descriptor is.
        check(unsafe { sys::routecap_store_open_shared(&raw, &of, descriptor, &mut store) })?;
        Ok(self.store(store))
    }
}
