//! The bytes in which servers send routing and trainers read it.

use std::ffi::{CStr, CString};
use std::fmt;
use std::ptr::{NonNull, null, null_mut};

pub use crate::declared::WireFormat;
use crate::error::{Error, ErrorKind, Result, check};
use crate::{DType, IdSpace, Routing, sys};

impl WireFormat {
    /// The format of a name ("nrlre1"), of who writes it ("vllm"), or of the ending of files
    /// (".npy") (`routecap_wire_find`).
    ///
    /// # Errors
    ///
    /// [`Argument`](ErrorKind::Argument); the text lists all names.
    pub fn find(name: &str) -> Result<WireFormat> {
        let name = CString::new(name)
            .map_err(|_| Error::new(ErrorKind::Argument, "a name with a zero in it"))?;
        let mut format = 0;
        // SAFETY: the name ends with a zero.
        check(unsafe { sys::routecap_wire_find(name.as_ptr(), &mut format) })?;
        Ok(WireFormat::of(format))
    }

    /// What there is to know of it (`routecap_wire_describe`).
    ///
    /// # Errors
    ///
    /// [`Argument`](ErrorKind::Argument) of [`Any`](Self::Any), and of one that the library does
    /// not know.
    pub fn describe(self) -> Result<WireDescription> {
        let mut raw = sys::routecap_wire_description {
            struct_size: size_of::<sys::routecap_wire_description>() as u32,
            ..Default::default()
        };
        // SAFETY: `raw` has the size that it says.
        check(unsafe { sys::routecap_wire_describe(self.number(), &mut raw) })?;
        // SAFETY: the texts are static.
        let text = |text| unsafe { CStr::from_ptr(text) }.to_str().unwrap_or_default();
        let (name, aliases, ending) = (text(raw.name), text(raw.aliases), text(raw.ending));
        Ok(WireDescription {
            version: raw.version,
            facts: WireFacts(raw.facts),
            name,
            aliases,
            ending,
        })
    }
}

/// A format of the library (`routecap_wire_description`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct WireDescription {
    /// The one that is written; versions up to it are read.
    pub version: u32,
    /// What its bytes can say.
    pub facts: WireFacts,
    /// Of the format.
    pub name: &'static str,
    /// Who writes it: names with a space between.
    pub aliases: &'static str,
    /// Of the names of files, with the dot; empty if it has none.
    pub ending: &'static str,
}

/// What a routing says, and a format may not: some of the constants here.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct WireFacts(pub u32);

impl WireFacts {
    /// Rows, columns and k.
    pub const SHAPE: WireFacts = WireFacts(sys::ROUTECAP_WIRE_FACT_SHAPE);
    /// The type of the ids.
    pub const DTYPE: WireFacts = WireFacts(sys::ROUTECAP_WIRE_FACT_DTYPE);
    /// How many experts each layer has.
    pub const EXPERTS: WireFacts = WireFacts(sys::ROUTECAP_WIRE_FACT_EXPERTS);
    /// Which layers of the decoder they are.
    pub const LAYERS: WireFacts = WireFacts(sys::ROUTECAP_WIRE_FACT_LAYERS);
    /// The position of the first row, where it is not 0.
    pub const FIRST: WireFacts = WireFacts(sys::ROUTECAP_WIRE_FACT_FIRST);
    /// Which cells are missing.
    pub const VALIDITY: WireFacts = WireFacts(sys::ROUTECAP_WIRE_FACT_VALIDITY);
    /// And why.
    pub const REASONS: WireFacts = WireFacts(sys::ROUTECAP_WIRE_FACT_REASONS);
    /// The tag of each row.
    pub const TAGS: WireFacts = WireFacts(sys::ROUTECAP_WIRE_FACT_TAGS);
    /// That ids are physical.
    pub const ID_SPACE: WireFacts = WireFacts(sys::ROUTECAP_WIRE_FACT_ID_SPACE);
    /// That layers were recomputed.
    pub const PROVENANCE: WireFacts = WireFacts(sys::ROUTECAP_WIRE_FACT_PROVENANCE);
    /// The weights beside the ids.
    pub const WEIGHTS: WireFacts = WireFacts(sys::ROUTECAP_WIRE_FACT_WEIGHTS);

    /// Whether all of these are among them.
    pub fn contains(self, facts: WireFacts) -> bool {
        self.0 & facts.0 == facts.0
    }
}

impl std::ops::BitOr for WireFacts {
    type Output = WireFacts;
    fn bitor(self, other: WireFacts) -> WireFacts {
        WireFacts(self.0 | other.0)
    }
}

impl fmt::Debug for WireFacts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const NAMES: [&str; 11] = [
            "SHAPE",
            "DTYPE",
            "EXPERTS",
            "LAYERS",
            "FIRST",
            "VALIDITY",
            "REASONS",
            "TAGS",
            "ID_SPACE",
            "PROVENANCE",
            "WEIGHTS",
        ];
        let named: Vec<_> = NAMES
            .iter()
            .enumerate()
            .filter(|(bit, _)| self.0 >> bit & 1 != 0)
            .map(|(_, name)| *name)
            .collect();
        write!(f, "WireFacts({})", named.join(" | "))
    }
}

/// What the columns of a message are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(i32)]
#[non_exhaustive]
pub enum WireColumns {
    /// As many as captured layers: these; more: those of the decoder
    /// (`ROUTECAP_WIRE_COLUMNS_FOUND`).
    #[default]
    Found = sys::ROUTECAP_WIRE_COLUMNS_FOUND,
    /// The captured layers, in order (`ROUTECAP_WIRE_COLUMNS_CAPTURED`).
    Captured = sys::ROUTECAP_WIRE_COLUMNS_CAPTURED,
    /// All layers of the decoder (`ROUTECAP_WIRE_COLUMNS_DECODER`).
    Decoder = sys::ROUTECAP_WIRE_COLUMNS_DECODER,
}

/// What is known of bytes beside them (`routecap_wire_hint`), a builder. Where the bytes say it
/// too, both must agree.
#[derive(Clone, Debug, Default)]
pub struct WireHint {
    raw: sys::routecap_wire_hint,
    layer_map: Vec<i32>,
    layer_experts: Vec<u32>,
}

// SAFETY: the pointers are filled in for a call only.
unsafe impl Send for WireHint {}
// SAFETY: as above.
unsafe impl Sync for WireHint {}

impl WireHint {
    /// Ids are in `[0, experts)`. 0: the bytes say it, or [`layer_experts`](Self::layer_experts)
    /// do.
    pub fn new(experts: u32) -> Self {
        let raw = sys::routecap_wire_hint {
            struct_size: size_of::<sys::routecap_wire_hint>() as u32,
            experts,
            ..Default::default()
        };
        WireHint { raw, ..Default::default() }
    }

    /// Captured (MoE) layers. Default: as many as there are columns.
    pub fn layers(mut self, layers: u32) -> Self {
        self.raw.layers = layers;
        self
    }

    /// Index of each captured layer in the decoder, strictly ascending; also how many there are.
    pub fn layer_map(mut self, layers: impl Into<Vec<i32>>) -> Self {
        self.layer_map = layers.into();
        self.raw.layers = self.layer_map.len() as u32;
        self
    }

    /// Experts of each layer where they differ; also how many layers there are.
    pub fn layer_experts(mut self, experts: impl Into<Vec<u32>>) -> Self {
        self.layer_experts = experts.into();
        self.raw.layers = self.layer_experts.len() as u32;
        self
    }

    /// Where the bytes do not say it: the length of the layer axis.
    pub fn columns(mut self, columns: u32) -> Self {
        self.raw.columns = columns;
        self
    }

    /// What the columns are.
    pub fn column_kind(mut self, kind: WireColumns) -> Self {
        self.raw.column_kind = kind as i32;
        self
    }

    /// Experts per token.
    pub fn k(mut self, k: u32) -> Self {
        self.raw.k = k;
        self
    }

    /// Type of the ids, where the bytes do not say it.
    pub fn dtype(mut self, dtype: DType) -> Self {
        self.raw.dtype = dtype as i32;
        self
    }

    /// What the ids number.
    pub fn id_space(mut self, id_space: IdSpace) -> Self {
        self.raw.id_space = id_space.value();
        self
    }

    /// Position of the first row.
    pub fn first(mut self, first: u64) -> Self {
        self.raw.first = first;
        self
    }

    /// How many rows there must be: of S tokens S-1.
    pub fn rows(mut self, rows: u64) -> Self {
        self.raw.rows = rows;
        self
    }

    /// Of all rows.
    pub fn tag(mut self, tag: u64) -> Self {
        self.raw.tag = tag;
        self
    }

    /// The most memory that decoding may take.
    pub fn budget_bytes(mut self, bytes: u64) -> Self {
        self.raw.budget_bytes = bytes;
        self
    }

    /// A missing cell is [`Incomplete`](ErrorKind::Incomplete).
    pub fn strict(mut self) -> Self {
        self.raw.flags = sys::ROUTECAP_WIRE_HINT_STRICT;
        self
    }

    /// With pointers into this hint: for calls while it is borrowed.
    fn raw(&self) -> Result<sys::routecap_wire_hint> {
        let layers = self.raw.layers as usize;
        for (name, given) in
            [("layer_map", self.layer_map.len()), ("layer_experts", self.layer_experts.len())]
        {
            if given != 0 && given != layers {
                return Err(Error::new(
                    ErrorKind::ShapeMismatch,
                    format!("{name} has {given} elements for {layers} layers"),
                ));
            }
        }
        let layer_map = if self.layer_map.is_empty() { null() } else { self.layer_map.as_ptr() };
        let layer_experts =
            if self.layer_experts.is_empty() { null() } else { self.layer_experts.as_ptr() };
        Ok(sys::routecap_wire_hint { layer_map, layer_experts, ..self.raw })
    }
}

/// What a message was, and what of a routing it could not say (`routecap_wire_report`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct WireReport {
    /// Of the message.
    pub format: WireFormat,
    /// Of the format.
    pub version: u32,
    /// Of the ids in the bytes.
    pub dtype: Option<DType>,
    /// What these bytes say.
    pub facts: WireFacts,
    /// Encoding: what the routing said and these bytes do not.
    pub lost: WireFacts,
    /// Length of the layer axis.
    pub columns: u32,
    /// Decoder layers that are not captured.
    pub columns_left_out: u32,
    /// Of those left out: with a cell of k distinct ids. Such a layer may be missing in the layer
    /// map.
    pub columns_in_use: u32,
    /// Captured layers without one valid cell.
    pub layers_empty: u32,
    /// Of the whole message.
    pub bytes: u64,
    /// Position of the first row.
    pub first: u64,
    /// How many.
    pub rows: u64,
    /// Of captured layers, as all cells below; with these five each cell is counted once.
    pub cells_valid: u64,
    /// An id below 0.
    pub cells_negative: u64,
    /// k zeros, where k is 2 or more.
    pub cells_zero: u64,
    /// An id of `experts` or more.
    pub cells_out_of_range: u64,
    /// One id twice.
    pub cells_duplicate: u64,
    /// Every cell is zero.
    pub rows_zero: u64,
    /// All ids equal those of the row before, and a cell is valid.
    pub rows_repeated: u64,
    /// Every cell is 0, 1, .. k-1.
    pub rows_counting: u64,
    /// Of valid cells; -1 if there are none.
    pub largest_id: i64,
}

impl WireReport {
    fn memory() -> sys::routecap_wire_report {
        sys::routecap_wire_report {
            struct_size: size_of::<sys::routecap_wire_report>() as u32,
            ..Default::default()
        }
    }

    fn of(raw: &sys::routecap_wire_report) -> WireReport {
        WireReport {
            format: WireFormat::of(raw.format),
            version: raw.version,
            dtype: DType::of(raw.dtype),
            facts: WireFacts(raw.facts),
            lost: WireFacts(raw.lost),
            columns: raw.columns,
            columns_left_out: raw.columns_left_out,
            columns_in_use: raw.columns_in_use,
            layers_empty: raw.layers_empty,
            bytes: raw.bytes,
            first: raw.first,
            rows: raw.rows,
            cells_valid: raw.cells_valid,
            cells_negative: raw.cells_negative,
            cells_zero: raw.cells_zero,
            cells_out_of_range: raw.cells_out_of_range,
            cells_duplicate: raw.cells_duplicate,
            rows_zero: raw.rows_zero,
            rows_repeated: raw.rows_repeated,
            rows_counting: raw.rows_counting,
            largest_id: raw.largest_id,
        }
    }
}

/// Bytes of a call that says how many it needs.
fn written(call: impl Fn(*mut u8, usize, &mut u64) -> Result<i32>) -> Result<Vec<u8>> {
    let mut needed = 0;
    match call(null_mut(), 0, &mut needed) {
        Err(error) if error.kind() != ErrorKind::BufferTooSmall => return Err(error),
        _ => {}
    }
    let len = needed as usize;
    let mut bytes = Vec::with_capacity(len.max(1)); // an empty message has a place, too
    call(bytes.as_mut_ptr(), len, &mut needed)?;
    // SAFETY: the call has written so many bytes.
    unsafe { bytes.set_len(len) };
    Ok(bytes)
}

/// How a routing is encoded (`routecap_wire_options`), a builder.
#[derive(Clone, Copy, Debug)]
pub struct WireOptions {
    raw: sys::routecap_wire_options,
}

impl WireOptions {
    /// In this format, in the type that its writers use; nothing may be lost.
    pub fn new(format: WireFormat) -> Self {
        let struct_size = size_of::<sys::routecap_wire_options>() as u32;
        WireOptions {
            raw: sys::routecap_wire_options {
                struct_size,
                format: format.number(),
                ..Default::default()
            },
        }
    }

    /// Of the ids.
    pub fn dtype(mut self, dtype: DType) -> Self {
        self.raw.dtype = dtype as i32;
        self
    }

    /// All layers of the decoder, of which there are so many (0: up to the last captured one):
    /// those that are not captured are zeros.
    pub fn decoder(mut self, columns: u32) -> Self {
        (self.raw.column_kind, self.raw.columns) = (sys::ROUTECAP_WIRE_COLUMNS_DECODER, columns);
        self
    }

    /// What may be lost.
    pub fn allow(mut self, facts: WireFacts) -> Self {
        self.raw.allow = facts.0;
        self
    }

    /// For the ids of missing cells, where the type has no -1 and validity may be lost.
    pub fn fill(mut self, fill: i64) -> Self {
        self.raw.fill = fill;
        self
    }
}

impl Routing {
    /// Make a routing of a message, from wherever it comes: nothing in it is trusted
    /// (`routecap_wire_decode`).
    ///
    /// Cells that are not k distinct experts are missing, and counted in the report.
    ///
    /// # Errors
    ///
    /// [`Format`](ErrorKind::Format); [`ShapeMismatch`](ErrorKind::ShapeMismatch) if the hint says
    /// otherwise; [`NoMemory`](ErrorKind::NoMemory) beyond its budget;
    /// [`Incomplete`](ErrorKind::Incomplete) if it is strict.
    ///
    /// ```
    /// use routecap::{Routing, WireFormat, WireHint};
    /// # fn main() -> routecap::Result<()> {
    /// let (routing, report) = Routing::from_wire(b"[[[3,1]],[[0,0]]]", WireFormat::find("megatron")?, &WireHint::new(8))?;
    /// assert_eq!((routing.view()?.rows(), report.cells_valid, report.cells_zero), (2, 1, 1));
    /// # Ok(())
    /// # }
    /// ```
    pub fn from_wire(
        bytes: &[u8],
        format: WireFormat,
        hint: &WireHint,
    ) -> Result<(Routing, WireReport)> {
        let (raw, mut report, mut routing) = (hint.raw()?, WireReport::memory(), null_mut());
        // SAFETY: the hint and its arrays live until the call returns.
        check(unsafe {
            sys::routecap_wire_decode(
                bytes.as_ptr().cast(),
                bytes.len(),
                format.number(),
                &raw,
                &mut report,
                &mut routing,
            )
        })?;
        // SAFETY: the call gave out this reference.
        Ok((unsafe { Routing::delivered(routing) }, WireReport::of(&report)))
    }

    /// Write a message (`routecap_wire_encode`).
    ///
    /// # Errors
    ///
    /// [`Lossy`](ErrorKind::Lossy) if the format cannot say what the routing says and the options
    /// do not allow that to be lost; the text names it.
    pub fn to_wire(&self, options: &WireOptions) -> Result<(Vec<u8>, WireReport)> {
        let report = std::cell::Cell::new(WireReport::memory());
        let bytes = written(|dst, bytes, needed| {
            let mut memory = report.get();
            // SAFETY: `dst` is NULL or so many bytes.
            let status = unsafe {
                sys::routecap_wire_encode(
                    self.as_raw(),
                    &options.raw,
                    dst.cast(),
                    bytes,
                    needed,
                    &mut memory,
                )
            };
            report.set(memory);
            check(status)
        })?;
        Ok((bytes, WireReport::of(&report.get())))
    }
}

/// Decodes a message that arrives piece by piece (`routecap_wire_decoder`).
#[derive(Debug)]
pub struct WireDecoder(NonNull<sys::routecap_wire_decoder>);

// SAFETY: any thread may use a decoder, one at a time.
unsafe impl Send for WireDecoder {}

impl WireDecoder {
    /// Begin (`routecap_wire_decoder_create`).
    ///
    /// # Errors
    ///
    /// [`Argument`](ErrorKind::Argument).
    pub fn new(format: WireFormat, hint: &WireHint) -> Result<WireDecoder> {
        let (raw, mut decoder) = (hint.raw()?, null_mut());
        // SAFETY: the hint and its arrays live until the call returns.
        check(unsafe { sys::routecap_wire_decoder_create(format.number(), &raw, &mut decoder) })?;
        NonNull::new(decoder)
            .map(WireDecoder)
            .ok_or_else(|| Error::new(ErrorKind::Internal, "no decoder"))
    }

    /// The next bytes of the message (`routecap_wire_decoder_write`).
    ///
    /// # Errors
    ///
    /// [`NoMemory`](ErrorKind::NoMemory), for the hint's budget too; the decoder repeats it from
    /// then on.
    pub fn write(&mut self, bytes: &[u8]) -> Result<()> {
        // SAFETY: the decoder is this one's.
        check(unsafe {
            sys::routecap_wire_decoder_write(self.0.as_ptr(), bytes.as_ptr().cast(), bytes.len())
        })
        .map(drop)
    }

    /// The end of the message (`routecap_wire_decoder_finish`).
    ///
    /// # Errors
    ///
    /// As [`Routing::from_wire`].
    pub fn finish(self) -> Result<(Routing, WireReport)> {
        let (mut report, mut routing) = (WireReport::memory(), null_mut());
        // SAFETY: the decoder is this one's.
        check(unsafe {
            sys::routecap_wire_decoder_finish(self.0.as_ptr(), &mut report, &mut routing)
        })?;
        // SAFETY: the call gave out this reference.
        Ok((unsafe { Routing::delivered(routing) }, WireReport::of(&report)))
    }
}

impl Drop for WireDecoder {
    fn drop(&mut self) {
        // SAFETY: nobody else has it.
        unsafe { sys::routecap_wire_decoder_free(self.0.as_ptr()) };
    }
}
