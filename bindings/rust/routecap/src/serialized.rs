//! The serialised form of routings.

use crate::error::{Error, ErrorKind, Result, check};
use crate::import::release;
use crate::{DType, IdSpace, Routing, Rows, Trust, WeightsType, sys};

impl Routing {
    /// How many bytes the serialised form takes.
    pub fn serialized_len(&self) -> Result<usize> {
        match self.serialize_raw(std::ptr::null_mut(), 0) {
            (needed, Err(error)) if error.kind() != ErrorKind::BufferTooSmall => {
                Err(error).map(|()| needed)
            }
            (needed, _) => Ok(needed),
        }
    }

    /// Write the routing in the serialised form (`routecap_routing_serialize`). Equal routings give
    /// equal bytes. They have a checksum of the header and one of each row, so that a reader of all
    /// rows or of some notices whether they arrived as they were written.
    pub fn serialize(&self) -> Result<Vec<u8>> {
        let len = self.serialized_len()?;
        let mut bytes = Vec::with_capacity(len);
        let (written, result) = self.serialize_raw(bytes.as_mut_ptr(), len);
        result?;
        // SAFETY: the call has written so many bytes, which is no more than there is room for.
        unsafe { bytes.set_len(written) };
        Ok(bytes)
    }

    /// The same, into memory of the caller. How many bytes were written.
    ///
    /// # Errors
    ///
    /// [`BufferTooSmall`](ErrorKind::BufferTooSmall); nothing is written then.
    pub fn serialize_into(&self, dst: &mut [u8]) -> Result<usize> {
        let (written, result) = self.serialize_raw(dst.as_mut_ptr(), dst.len());
        result.map(|()| written)
    }

    fn serialize_raw(&self, dst: *mut u8, bytes: usize) -> (usize, Result<()>) {
        let mut needed = 0;
        // SAFETY: `dst` is NULL or so many bytes.
        let status = unsafe {
            sys::routecap_routing_serialize(self.as_raw(), dst.cast(), bytes, &mut needed)
        };
        (needed as usize, check(status).map(drop))
    }

    /// Make a routing of bytes in the serialised form, from wherever they come
    /// (`routecap_routing_deserialize`). They are copied.
    ///
    /// # Errors
    ///
    /// [`Format`](ErrorKind::Format); the text says what is wrong.
    pub fn deserialize(bytes: &[u8], trust: Trust) -> Result<Routing> {
        // SAFETY: nothing is lent.
        unsafe { deserialize(bytes.as_ptr(), bytes.len(), trust, None, std::ptr::null_mut()) }
    }

    /// The same without a copy: the routing refers to the bytes in place and keeps `owner`, a
    /// `Vec<u8>`, an `Arc<[u8]>`, a mapped file. It is dropped on any thread when the routing, and
    /// all that shares rows with it, is gone, and at once if the call fails; dropping it must not
    /// use routecap. Bytes whose address is not a multiple of 16 are copied, and `owner` is dropped
    /// at once.
    ///
    /// # Errors
    ///
    /// As [`deserialize`](Self::deserialize).
    pub fn deserialize_lent<T: AsRef<[u8]> + Send + 'static>(
        owner: T,
        trust: Trust,
    ) -> Result<Routing> {
        let owner = Box::into_raw(Box::new(owner));
        // SAFETY: what is borrowed from the box stays where it is, unchanged, until `release` drops
        // it.
        let deserialized = unsafe {
            let bytes: &[u8] = (*owner).as_ref();
            deserialize(bytes.as_ptr(), bytes.len(), trust, Some(release::<T>), owner.cast())
        };
        if deserialized.is_err() {
            // SAFETY: a call that fails does not call release.
            unsafe { release::<T>(owner.cast()) };
        }
        deserialized
    }
}

/// Takes no slice, as a slice that is an argument must outlive the call, and `release` may be
/// called within it.
///
/// # Safety
///
/// `data` is `bytes` bytes, until the call returns; with `release`, until that is called.
unsafe fn deserialize(
    data: *const u8,
    bytes: usize,
    trust: Trust,
    release: sys::routecap_release,
    context: *mut std::ffi::c_void,
) -> Result<Routing> {
    let mut routing = std::ptr::null_mut();
    // SAFETY: as the caller promises.
    check(unsafe {
        sys::routecap_routing_deserialize(
            data.cast(),
            bytes,
            trust as u32,
            release,
            context,
            &mut routing,
        )
    })?;
    // SAFETY: the call gave out this reference.
    Ok(unsafe { Routing::delivered(routing) })
}

/// What the first [`SERIALIZED_MIN`](crate::SERIALIZED_MIN) bytes of the serialised form say
/// (`routecap_serialized`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SerializedInfo {
    /// Of the form.
    pub version: u32,
    /// Of everything.
    pub bytes: u64,
    /// Of the header with its tables and the checksums of all rows: as much as [`splice`] reads.
    /// The rows follow it.
    pub header_bytes: u64,
    /// Position of the first row.
    pub first: u64,
    /// How many rows.
    pub rows: u64,
    /// Layers of each row.
    pub layers: u32,
    /// Experts per token.
    pub k: u32,
    /// Of the ids.
    pub dtype: DType,
    /// What the ids number.
    pub id_space: IdSpace,
    /// Of the weights; `None`: there are none.
    pub weights: Option<WeightsType>,
}

/// Read the fixed part of a serialised routing's header (`routecap_serialized_info`): what it is,
/// and how much is still to come from a stream.
///
/// # Errors
///
/// [`BufferTooSmall`](ErrorKind::BufferTooSmall) for fewer than
/// [`SERIALIZED_MIN`](crate::SERIALIZED_MIN) bytes; [`Format`](ErrorKind::Format).
pub fn serialized_info(bytes: &[u8]) -> Result<SerializedInfo> {
    let mut raw = sys::routecap_serialized {
        struct_size: size_of::<sys::routecap_serialized>() as u32,
        ..Default::default()
    };
    // SAFETY: `raw` has the size that it says.
    check(unsafe { sys::routecap_serialized_info(bytes.as_ptr().cast(), bytes.len(), &mut raw) })?;
    Ok(SerializedInfo {
        version: raw.version,
        bytes: raw.bytes,
        header_bytes: raw.header_bytes,
        first: raw.first,
        rows: raw.rows,
        layers: raw.layers,
        k: raw.k,
        dtype: DType::of(raw.dtype)
            .ok_or_else(|| Error::new(ErrorKind::Format, format!("dtype {}", raw.dtype)))?,
        id_space: IdSpace::of(raw.id_space),
        weights: WeightsType::of(raw.weights_dtype),
    })
}

/// Bytes of a spliced routing (`routecap_piece`).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Piece {
    /// Of the new header (`ROUTECAP_PIECE_HEADER`).
    Header(std::ops::Range<u64>),
    /// Of the first of the two (`ROUTECAP_PIECE_HEAD`).
    Head(std::ops::Range<u64>),
    /// Of the second (`ROUTECAP_PIECE_TAIL`).
    Tail(std::ops::Range<u64>),
}

/// A serialised routing as a list of pieces: written one after another they are it
/// (`routecap_splice`).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Splice {
    /// The new header.
    pub header: Vec<u8>,
    /// All bytes, in order.
    pub pieces: Vec<Piece>,
    /// Of everything.
    pub bytes: u64,
}

/// Splice two serialised routings of one sequence: the rows of `head` before position `row`, and
/// the rows of `tail` from it on (`routecap_serialized_splice`).
///
/// Prefill and decode on different machines, the turns of a conversation, the parts of a stream; no
/// id is read, and none needs to be there: both may be headers alone,
/// [`SerializedInfo::header_bytes`] of them.
///
/// # Errors
///
/// [`Format`](ErrorKind::Format); [`ShapeMismatch`](ErrorKind::ShapeMismatch) if k, the id space,
/// the layers or their experts differ.
pub fn splice(head: &[u8], tail: &[u8], row: u64) -> Result<Splice> {
    // SAFETY: `head` and `tail` are as long as it is said; the rest is as `spliced` promises.
    spliced(|header, capacity, pieces, piece_count, sizes| unsafe {
        sys::routecap_serialized_splice(
            head.as_ptr().cast(),
            head.len(),
            tail.as_ptr().cast(),
            tail.len(),
            row,
            header,
            capacity,
            pieces,
            size_of::<sys::routecap_piece>(),
            piece_count,
            sizes,
        )
    })
}

/// Cut rows out of a serialised routing (`routecap_serialized_slice`): a new header, and which
/// bytes of the routing follow it, as pieces of [`Head`](Piece::Head). No id is read, and none
/// needs to be there: the header is enough, [`SerializedInfo::header_bytes`].
///
/// # Errors
///
/// [`Format`](ErrorKind::Format); [`OutOfRange`](ErrorKind::OutOfRange) if the routing has no such
/// rows.
pub fn slice_serialized(data: &[u8], rows: Rows) -> Result<Splice> {
    // SAFETY: `data` is as long as it is said; the rest is as `spliced` promises.
    spliced(|header, capacity, pieces, piece_count, sizes| unsafe {
        sys::routecap_serialized_slice(
            data.as_ptr().cast(),
            data.len(),
            rows.first,
            rows.count,
            header,
            capacity,
            pieces,
            size_of::<sys::routecap_piece>(),
            piece_count,
            sizes,
        )
    })
}

/// Make room for what a call gives. It is given a header or NULL and its size, pieces and their
/// number, and the sizes to fill.
fn spliced(
    call: impl Fn(
        *mut std::ffi::c_void,
        usize,
        *mut sys::routecap_piece,
        usize,
        *mut sys::routecap_splice,
    ) -> i32,
) -> Result<Splice> {
    let mut raw = sys::routecap_splice {
        struct_size: size_of::<sys::routecap_splice>() as u32,
        ..Default::default()
    };
    let mut call = |header: &mut [u8], pieces: &mut [sys::routecap_piece]| {
        let data =
            if header.is_empty() { std::ptr::null_mut() } else { header.as_mut_ptr().cast() };
        let status = call(data, header.len(), pieces.as_mut_ptr(), pieces.len(), &mut raw);
        (check(status).map(drop), raw)
    };
    let (mut header, mut pieces) = (Vec::new(), Vec::new());
    let (mut result, sizes) = call(&mut header, &mut pieces);
    if result.as_ref().is_err_and(|error| error.kind() == ErrorKind::BufferTooSmall) {
        header.resize(sizes.header_bytes as usize, 0);
        pieces.resize(sizes.pieces as usize, Default::default());
        (result, _) = call(&mut header, &mut pieces);
    }
    result?;
    let piece = |piece: &sys::routecap_piece| {
        let range = piece.offset..piece.offset + piece.bytes;
        match piece.source {
            sys::ROUTECAP_PIECE_HEADER => Ok(Piece::Header(range)),
            sys::ROUTECAP_PIECE_HEAD => Ok(Piece::Head(range)),
            sys::ROUTECAP_PIECE_TAIL => Ok(Piece::Tail(range)),
            other => Err(Error::new(ErrorKind::Internal, format!("a piece of source {other}"))),
        }
    };
    let pieces = pieces.iter().map(piece).collect::<Result<_>>()?;
    Ok(Splice { header, pieces, bytes: sizes.bytes })
}

impl Splice {
    /// The pieces put together, of the whole of `head` and `tail`.
    ///
    /// # Errors
    ///
    /// [`OutOfRange`](ErrorKind::OutOfRange) if `head` or `tail` is shorter than the pieces say.
    pub fn join(&self, head: &[u8], tail: &[u8]) -> Result<Vec<u8>> {
        let mut joined = Vec::with_capacity(usize::try_from(self.bytes).unwrap_or(0));
        for piece in &self.pieces {
            let (name, source, range) = match piece {
                Piece::Header(range) => ("header", self.header.as_slice(), range),
                Piece::Head(range) => ("head", head, range),
                Piece::Tail(range) => ("tail", tail, range),
            };
            let bytes = source.get(range.start as usize..range.end as usize);
            joined.extend_from_slice(bytes.ok_or_else(|| {
                Error::new(ErrorKind::OutOfRange, format!("{name} has no bytes {range:?}"))
            })?);
        }
        Ok(joined)
    }
}
