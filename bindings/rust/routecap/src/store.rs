//! The store: rows that live as long as a prefix does.

use std::ffi::c_void;
use std::ptr::{NonNull, null, null_mut};

use crate::error::{ErrorKind, ItemStatus, Result, check};
use crate::{Capturer, Config, Error, RequestId, sys};

/// What a store is (`routecap_store_config`). The default has blocks of 16 rows, keys of 32 bytes
/// and 1 GiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StoreConfig {
    /// Keys are places in a cache, which are used again; otherwise they stand for content
    /// (`ROUTECAP_STORE_SLOT_KEYS`).
    pub slot_keys: bool,
    /// Rows of a block, 1..`MAX_BLOCK_ROWS`.
    pub block_rows: u32,
    /// Bytes of a key, `MIN_KEY_BYTES`..`MAX_KEY_BYTES`.
    pub key_bytes: u32,
    /// Limit of its memory, in bytes.
    pub budget_bytes: u64,
    /// The generation of weights that it begins at.
    pub generation: u64,
}

impl Default for StoreConfig {
    fn default() -> Self {
        let mut raw = sys::routecap_store_config::default();
        // SAFETY: `raw` has the size that is said. It does not fail.
        unsafe {
            sys::routecap_store_config_init(&mut raw, size_of::<sys::routecap_store_config>())
        };
        StoreConfig {
            slot_keys: raw.flags != 0,
            block_rows: 16,
            key_bytes: 32,
            budget_bytes: 1 << 30,
            generation: raw.generation,
        }
    }
}

impl StoreConfig {
    pub(crate) fn raw(&self) -> sys::routecap_store_config {
        sys::routecap_store_config {
            struct_size: size_of::<sys::routecap_store_config>() as u32,
            flags: if self.slot_keys { sys::ROUTECAP_STORE_SLOT_KEYS } else { 0 },
            block_rows: self.block_rows,
            key_bytes: self.key_bytes,
            budget_bytes: self.budget_bytes,
            generation: self.generation,
        }
    }

    /// Create a store in the memory of this process, in the shape of a capturer's configuration
    /// (`routecap_store_create`).
    ///
    /// # Errors
    ///
    /// [`Argument`](ErrorKind::Argument); [`NoMemory`](ErrorKind::NoMemory).
    pub fn create(&self, shape: &Config) -> Result<Store> {
        let (raw, of) = (self.raw(), shape.raw()?);
        let mut store = null_mut();
        // SAFETY: both structs have the sizes that they say; the tables of `of` have an entry for
        // each layer.
        check(unsafe { sys::routecap_store_create(&raw, &of, &mut store) })?;
        Ok(self.store(store))
    }

    pub(crate) fn store(&self, store: *mut sys::routecap_store) -> Store {
        Store { raw: NonNull::new(store).expect("a store"), key_bytes: self.key_bytes as usize }
    }
}

/// Rows that were captured when a prefix was computed, for whoever takes the prefix from a cache
/// (`routecap_store`).
///
/// The unit is a block of rows under a key. Keys are passed one after another, `key_bytes` each.
/// What was adopted outlives the store.
#[derive(Debug)]
pub struct Store {
    raw: NonNull<sys::routecap_store>,
    key_bytes: usize,
}

// SAFETY: all functions of a store may be called by any thread at any time.
unsafe impl Send for Store {}
// SAFETY: as above.
unsafe impl Sync for Store {}

impl Drop for Store {
    fn drop(&mut self) {
        // SAFETY: nobody else has it, and no call is inside.
        unsafe { sys::routecap_store_free(self.raw.as_ptr()) }
    }
}

/// What an adopt found (`routecap_adoption`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Adoption {
    /// Rows up to the first block that was not found.
    pub rows: u64,
    /// Blocks.
    pub found: u64,
    /// Blocks that are missing because they went.
    pub evicted: u64,
    /// Blocks that are missing because they never were there, or are too old to be known.
    pub not_published: u64,
    /// Blocks that are missing because they, or the request, are of older weights.
    pub stale: u64,
}

/// Consecutive blocks of a request, for [`Capturer::publish_batch`] and [`Capturer::adopt_batch`].
#[derive(Clone, Copy, Debug)]
pub struct Prefix<'a> {
    /// The request.
    pub request: RequestId,
    /// Position of the first row.
    pub first: u64,
    /// The keys, one after another.
    pub keys: &'a [u8],
}

impl Store {
    /// The store in C.
    pub fn as_raw(&self) -> *mut sys::routecap_store {
        self.raw.as_ptr()
    }

    fn count(&self, keys: &[u8]) -> Result<usize> {
        if keys.len() % self.key_bytes == 0 {
            return Ok(keys.len() / self.key_bytes);
        }
        Err(Error::new(
            ErrorKind::Argument,
            format!("{} bytes of keys, of {} each", keys.len(), self.key_bytes),
        ))
    }

    /// Say why each key is not there, or 0, and how many leading keys are there
    /// (`routecap_store_contains`). Reasons are `ROUTECAP_MISSING_*`.
    ///
    /// # Errors
    ///
    /// [`State`](ErrorKind::State) for a generation that the store has not advanced to.
    pub fn contains(&self, keys: &[u8], generation: u64) -> Result<(Vec<i32>, u64)> {
        let count = self.count(keys)?;
        let (mut reasons, mut leading) = (vec![0; count], 0);
        // SAFETY: there are as many keys as is said, and as many reasons.
        check(unsafe {
            sys::routecap_store_contains(
                self.as_raw(),
                pointer(keys),
                count,
                generation,
                reasons.as_mut_ptr(),
                &mut leading,
            )
        })?;
        Ok((reasons, leading))
    }

    /// Keep blocks until they are released: 0 for each that is retained now, otherwise why not
    /// (`routecap_store_retain`).
    ///
    /// # Errors
    ///
    /// [`Argument`](ErrorKind::Argument).
    pub fn retain(&self, keys: &[u8]) -> Result<Vec<i32>> {
        let count = self.count(keys)?;
        let mut reasons = vec![0; count];
        // SAFETY: as in `contains`.
        check(unsafe {
            sys::routecap_store_retain(self.as_raw(), pointer(keys), count, reasons.as_mut_ptr())
        })?;
        Ok(reasons)
    }

    /// Let blocks go that were retained (`routecap_store_release`).
    ///
    /// # Errors
    ///
    /// [`Argument`](ErrorKind::Argument).
    pub fn release(&self, keys: &[u8]) -> Result<()> {
        let count = self.count(keys)?;
        // SAFETY: there are as many keys as is said.
        check(unsafe { sys::routecap_store_release(self.as_raw(), pointer(keys), count) }).map(drop)
    }

    /// Drop blocks; how many there were (`routecap_store_evict`).
    ///
    /// # Errors
    ///
    /// [`Argument`](ErrorKind::Argument).
    pub fn evict(&self, keys: &[u8]) -> Result<u64> {
        let count = self.count(keys)?;
        let mut evicted = 0;
        // SAFETY: there are as many keys as is said.
        check(unsafe {
            sys::routecap_store_evict(self.as_raw(), pointer(keys), count, &mut evicted)
        })?;
        Ok(evicted)
    }

    /// Advance to a generation of weights: everything older is gone for adopters
    /// (`routecap_store_advance`).
    ///
    /// # Errors
    ///
    /// [`Forked`](ErrorKind::Forked).
    pub fn advance(&self, generation: u64) -> Result<()> {
        // SAFETY: the store lives.
        check(unsafe { sys::routecap_store_advance(self.as_raw(), generation) }).map(drop)
    }

    /// The counters, as C has them (`routecap_store_stats`).
    ///
    /// # Errors
    ///
    /// [`Forked`](ErrorKind::Forked).
    pub fn stats(&self) -> Result<sys::routecap_store_counts> {
        let mut counts = sys::routecap_store_counts {
            struct_size: size_of::<sys::routecap_store_counts>() as u32,
            ..Default::default()
        };
        // SAFETY: the struct has the size that it says.
        check(unsafe { sys::routecap_store_stats(self.as_raw(), &mut counts) })?;
        Ok(counts)
    }
}

fn pointer(bytes: &[u8]) -> *const c_void {
    if bytes.is_empty() { null() } else { bytes.as_ptr().cast() }
}

/// Content keys of token ids, one for each whole block (`routecap_key_chain`). `seed` is what else
/// decides the rows, or the last key of the tokens before.
///
/// # Errors
///
/// [`Argument`](ErrorKind::Argument).
pub fn key_chain(seed: &[u8], tokens: &[i32], block_rows: u32, key_bytes: u32) -> Result<Vec<u8>> {
    let mut keys = vec![0; tokens.len() / block_rows.max(1) as usize * key_bytes as usize];
    // SAFETY: there are as many bytes, tokens and keys as is said.
    check(unsafe {
        sys::routecap_key_chain(
            pointer(seed),
            seed.len(),
            tokens.as_ptr(),
            tokens.len(),
            block_rows,
            key_bytes,
            keys.as_mut_ptr().cast(),
            keys.len(),
        )
    })?;
    Ok(keys)
}

impl Capturer {
    /// Publish rows of a request from position `first` on, a block for each key; returns at once,
    /// the rows may be in flight (`routecap_request_publish`).
    ///
    /// # Errors
    ///
    /// [`UnknownRequest`](ErrorKind::UnknownRequest); [`ShapeMismatch`](ErrorKind::ShapeMismatch);
    /// [`OutOfRange`](ErrorKind::OutOfRange) for rows that were not issued;
    /// [`State`](ErrorKind::State) for a generation that the store has not advanced to.
    pub fn publish(
        &self,
        request: RequestId,
        store: &Store,
        first: u64,
        keys: &[u8],
        generation: u64,
    ) -> Result<()> {
        let count = store.count(keys)?;
        // SAFETY: capturer and store live; there are as many keys as is said.
        check(unsafe {
            sys::routecap_request_publish(
                self.as_raw(),
                request.0,
                store.as_raw(),
                first,
                pointer(keys),
                count,
                generation,
            )
        })
        .map(drop)
    }

    /// Add rows of a store to a request from position `first` on, a block for each key; what is not
    /// there is missing, with its reason (`routecap_request_adopt`).
    ///
    /// # Errors
    ///
    /// As [`publish`](Self::publish); [`OutOfRange`](ErrorKind::OutOfRange) for rows beyond
    /// `MAX_POSITION`.
    pub fn adopt(
        &self,
        request: RequestId,
        store: &Store,
        first: u64,
        keys: &[u8],
        generation: u64,
    ) -> Result<Adoption> {
        let count = store.count(keys)?;
        let mut found = sys::routecap_adoption {
            struct_size: size_of::<sys::routecap_adoption>() as u32,
            ..Default::default()
        };
        // SAFETY: as in `publish`; the struct has the size that it says.
        check(unsafe {
            sys::routecap_request_adopt(
                self.as_raw(),
                request.0,
                store.as_raw(),
                first,
                pointer(keys),
                count,
                generation,
                &mut found,
            )
        })?;
        Ok(Adoption {
            rows: found.rows,
            found: found.found,
            evicted: found.evicted,
            not_published: found.not_published,
            stale: found.stale,
        })
    }

    /// Publish rows of many requests in one call; what became of each
    /// (`routecap_request_publish_batch`).
    ///
    /// # Errors
    ///
    /// As [`publish`](Self::publish), but for what concerns one item.
    pub fn publish_batch(
        &self,
        store: &Store,
        prefixes: &[Prefix<'_>],
        generation: u64,
    ) -> Result<Vec<ItemStatus>> {
        let mut items = Vec::with_capacity(prefixes.len());
        for p in prefixes {
            let count = store.count(p.keys)? as u64;
            items.push(sys::routecap_publish_item {
                request: p.request.0,
                first: p.first,
                keys: pointer(p.keys),
                count,
                status: 0,
                reserved: 0,
            });
        }
        // SAFETY: as in `publish`; there are as many items as is said.
        check(unsafe {
            sys::routecap_request_publish_batch(
                self.as_raw(),
                store.as_raw(),
                items.as_mut_ptr(),
                size_of::<sys::routecap_publish_item>(),
                items.len(),
                generation,
            )
        })?;
        Ok(items.iter().map(|item| ItemStatus(item.status)).collect())
    }

    /// Add rows of a store to many requests in one call; what each found, and what became of it
    /// (`routecap_request_adopt_batch`).
    ///
    /// # Errors
    ///
    /// As [`adopt`](Self::adopt), but for what concerns one item.
    pub fn adopt_batch(
        &self,
        store: &Store,
        prefixes: &[Prefix<'_>],
        generation: u64,
    ) -> Result<Vec<(Adoption, ItemStatus)>> {
        let mut items = Vec::with_capacity(prefixes.len());
        for p in prefixes {
            let count = store.count(p.keys)? as u64;
            items.push(sys::routecap_adopt_item {
                request: p.request.0,
                first: p.first,
                keys: pointer(p.keys),
                count,
                ..Default::default()
            });
        }
        // SAFETY: as in `publish_batch`.
        check(unsafe {
            sys::routecap_request_adopt_batch(
                self.as_raw(),
                store.as_raw(),
                items.as_mut_ptr(),
                size_of::<sys::routecap_adopt_item>(),
                items.len(),
                generation,
            )
        })?;
        let found = |item: &sys::routecap_adopt_item| Adoption {
            rows: item.rows,
            found: item.found,
            evicted: item.evicted,
            not_published: item.not_published,
            stale: item.stale,
        };
        Ok(items.iter().map(|item| (found(item), ItemStatus(item.status))).collect())
    }
}
