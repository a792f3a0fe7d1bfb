//! A routing's contents, in place.

use std::fmt;
use std::marker::PhantomData;
use std::ops::Range;

use crate::sys;
use crate::{DType, IdSpace, Provenance, Reason, Weights, WeightsType};

/// A routing's contents, in place (`routecap_view`): segments of consecutive rows, and rows one by
/// one.
///
/// ```
/// # fn example(routing: &routecap::Routing) -> routecap::Result<()> {
/// let view = routing.view()?;
/// for row in view.iter() {
///     for (layer, cell) in row.cells().enumerate() {
///         match cell {
///             Some(ids) => println!("token {}, layer {}: {:?}", row.position(), view.layer_map()[layer], ids),
///             None => println!("token {}, layer {}: missing", row.position(), view.layer_map()[layer]),
///         }
///     }
/// }
/// # Ok(())
/// # }
/// ```
///
/// Rows lie [`row_stride`](Self::row_stride) bytes apart, so there is a slice for each row, and
/// none for all rows of a segment. [`Routing::to_vec`](crate::Routing::to_vec) makes one dense
/// array of all rows.
///
/// ```
/// use routecap::{ArraySegment, Arrays, Ids, Routing, Trust};
/// # fn main() -> routecap::Result<()> {
/// let ids: [u8; 12] = [3, 1, 7, 0, 2, 5, 4, 6, 0, 7, 1, 2]; // 2 rows, 3 layers, k = 2
/// let validity: [u8; 2] = [0b111, 0b101]; // layer 1 is missing in the second row
/// let rows = ArraySegment::new(0, 2).ids(&ids).validity(&validity);
/// let arrays = Arrays::new(3, 2, 0, 2).experts(8).segment(rows);
/// let routing = Routing::import(&arrays, Trust::None)?;
///
/// let view = routing.view()?;
/// assert_eq!(view.row_stride(), 8); // 6 bytes of ids, one of validity, and one of padding
/// let row = view.row(1).expect("a row at position 1");
/// assert!(matches!(row.ids(), Some(Ids::U8([4, 6, _, _, 1, 2])))); // [layers, k]
/// assert_eq!(row.validity(), Some(&[0b101u8][..]));
/// assert_eq!(row.experts(1), None);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy)]
pub struct View<'a> {
    raw: sys::routecap_view,
    routing: PhantomData<&'a ()>,
}

// SAFETY: a view only shows what no one changes.
unsafe impl Send for View<'_> {}
// SAFETY: as above.
unsafe impl Sync for View<'_> {}

impl fmt::Debug for View<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("View")
            .field("first", &self.first())
            .field("rows", &self.rows())
            .field("layers", &self.layers())
            .field("k", &self.k())
            .field("experts", &self.experts())
            .field("id_space", &self.id_space())
            .field("complete", &self.is_complete())
            .field("segments", &self.raw.segment_count)
            .finish()
    }
}

impl<'a> View<'a> {
    /// # Safety
    ///
    /// `raw` was filled by the library for a routing that lives for `'a`.
    pub(crate) unsafe fn new(raw: sys::routecap_view) -> Self {
        View { raw, routing: PhantomData }
    }

    /// Position of the first row.
    pub fn first(&self) -> u64 {
        self.raw.first
    }

    /// How many rows.
    pub fn rows(&self) -> u64 {
        self.raw.rows
    }

    /// The positions of the rows.
    pub fn positions(&self) -> Range<u64> {
        self.raw.first..self.raw.first + self.raw.rows
    }

    /// Layers of each row.
    pub fn layers(&self) -> u32 {
        self.raw.layers
    }

    /// Experts per token, the most of any layer: columns of a cell.
    pub fn k(&self) -> u32 {
        self.raw.k
    }

    /// The most experts of any layer.
    pub fn experts(&self) -> u32 {
        self.raw.experts
    }

    /// Of the ids: U8 if there are at most 256 experts, or 255 where a cell may have fewer than k;
    /// otherwise I16.
    pub fn dtype(&self) -> DType {
        if self.raw.dtype == sys::ROUTECAP_DTYPE_U8 { DType::U8 } else { DType::I16 }
    }

    /// Bytes of validity in a row.
    pub fn validity_bytes(&self) -> usize {
        self.raw.validity_bytes as usize
    }

    /// Of the weights; `None`: there are none.
    pub fn weights_type(&self) -> Option<WeightsType> {
        WeightsType::of(self.raw.weights_dtype)
    }

    /// Bytes from one row of a segment to the next, of ids, weights and the validity of both: a
    /// multiple of the size of an id and of a weight.
    pub fn row_stride(&self) -> usize {
        self.raw.row_stride as usize
    }

    /// What the ids number.
    pub fn id_space(&self) -> IdSpace {
        IdSpace::of(self.raw.id_space)
    }

    /// Whether no cell is missing.
    pub fn is_complete(&self) -> bool {
        self.raw.complete != 0
    }

    fn per_layer<T>(&self, table: *const T) -> &'a [T] {
        // SAFETY: a view's tables have an entry for each layer, for 'a.
        unsafe { slice(table, self.raw.layers as usize) }
    }

    /// `[layers]` index of each captured layer in the decoder.
    pub fn layer_map(&self) -> &'a [i32] {
        self.per_layer(self.raw.layer_map)
    }

    /// `[layers]` experts of each layer.
    pub fn layer_experts(&self) -> &'a [u32] {
        self.per_layer(self.raw.layer_experts)
    }

    /// `[layers]` the most experts of a token in each layer.
    pub fn layer_k(&self) -> &'a [u32] {
        self.per_layer(self.raw.layer_k)
    }

    /// `[layers]` the fewest: the same, unless a router may choose fewer.
    pub fn layer_min_k(&self) -> &'a [u32] {
        self.per_layer(self.raw.layer_min_k)
    }

    /// `[layers]` how often a looped decoder ran the layer before.
    pub fn layer_visit(&self) -> &'a [u32] {
        self.per_layer(self.raw.layer_visit)
    }

    /// How the ids of each layer were had.
    pub fn layer_provenance(&self) -> impl ExactSizeIterator<Item = Provenance> + use<'a> {
        self.per_layer(self.raw.layer_provenance).iter().map(|value| Provenance::of(*value))
    }

    /// The segments, in order: together exactly the rows.
    pub fn segments(&self) -> impl ExactSizeIterator<Item = Segment<'a>> + use<'a> {
        let (view, layer_k, layer_min_k) = (self.raw, self.layer_k(), self.layer_min_k());
        (0..view.segment_count).map(move |i| {
            // SAFETY: there are segment_count of them, segment_size bytes apart, for 'a.
            let raw = unsafe { &*view.segments.byte_add(i * view.segment_size) };
            Segment {
                raw,
                layers: view.layers,
                k: view.k,
                layer_k,
                layer_min_k,
                dtype: view.dtype,
                weights_dtype: view.weights_dtype,
                validity_bytes: view.validity_bytes as usize,
                row_stride: view.row_stride as usize,
            }
        })
    }

    /// The rows, in order.
    pub fn iter(&self) -> impl Iterator<Item = Row<'a>> + use<'a> {
        self.segments().flat_map(|segment| segment.iter())
    }

    /// The row at a position, if the routing has it.
    pub fn row(&self, position: u64) -> Option<Row<'a>> {
        let segment = self.segments().find(|segment| segment.positions().contains(&position))?;
        Some(segment.row(position - segment.first()))
    }
}

/// # Safety
///
/// `data` points to `len` elements that live for `'a` and do not change.
unsafe fn slice<'a, T>(data: *const T, len: usize) -> &'a [T] {
    if len == 0 {
        return &[];
    }
    // SAFETY: as the caller promises.
    unsafe { std::slice::from_raw_parts(data, len) }
}

/// Expert ids as they lie in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ids<'a> {
    /// Of models with up to 256 experts in any layer, or 255 where a cell may have fewer than k.
    U8(&'a [u8]),
    /// Of others.
    I16(&'a [i16]),
}

impl<'a> Ids<'a> {
    /// How many.
    pub fn len(&self) -> usize {
        match self {
            Ids::U8(ids) => ids.len(),
            Ids::I16(ids) => ids.len(),
        }
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// One of them, if there are so many.
    pub fn get(&self, index: usize) -> Option<u16> {
        match self {
            Ids::U8(ids) => ids.get(index).map(|id| u16::from(*id)),
            Ids::I16(ids) => ids.get(index).map(|id| *id as u16), // below 2^15
        }
    }

    /// Whether a column has no expert: every bit is set, which is no id where that can be.
    fn is_unused(&self, index: usize) -> bool {
        match self {
            Ids::U8(ids) => ids[index] == u8::MAX,
            Ids::I16(ids) => ids[index] == -1,
        }
    }

    /// Some of them.
    ///
    /// # Panics
    ///
    /// If there are not so many.
    pub fn slice(&self, range: Range<usize>) -> Ids<'a> {
        match self {
            Ids::U8(ids) => Ids::U8(&ids[range]),
            Ids::I16(ids) => Ids::I16(&ids[range]),
        }
    }

    /// All of them, in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = u16> + use<'a> {
        let ids = *self;
        (0..ids.len()).map(move |i| ids.get(i).unwrap_or_default())
    }
}

/// Consecutive rows, [`View::row_stride`] bytes apart in memory (`routecap_segment`).
#[derive(Clone, Copy)]
pub struct Segment<'a> {
    raw: &'a sys::routecap_segment,
    layers: u32,
    k: u32,
    layer_k: &'a [u32],
    layer_min_k: &'a [u32],
    dtype: i32,
    weights_dtype: i32,
    validity_bytes: usize,
    row_stride: usize,
}

// SAFETY: a segment only shows what no one changes.
unsafe impl Send for Segment<'_> {}
// SAFETY: as above.
unsafe impl Sync for Segment<'_> {}

impl fmt::Debug for Segment<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let missing = self.iter().flat_map(|row| row.cells()).filter(Option::is_none).count();
        f.debug_struct("Segment")
            .field("first", &self.first())
            .field("rows", &self.rows())
            .field("layers", &self.layers())
            .field("k", &self.k())
            .field("missing", &missing)
            .finish()
    }
}

impl<'a> Segment<'a> {
    /// Position of the first row.
    pub fn first(&self) -> u64 {
        self.raw.first
    }

    /// How many rows.
    pub fn rows(&self) -> u64 {
        self.raw.rows
    }

    /// The positions of the rows.
    pub fn positions(&self) -> Range<u64> {
        self.raw.first..self.raw.first + self.raw.rows
    }

    /// Layers of each row.
    pub fn layers(&self) -> u32 {
        self.layers
    }

    /// Experts per token.
    pub fn k(&self) -> u32 {
        self.k
    }

    /// The ids of the first row, [`View::row_stride`] bytes from those of the next, and what they
    /// are; `None`: all cells of these rows are missing.
    #[cfg(feature = "ndarray")]
    pub(crate) fn strided_ids(&self) -> Option<(*const std::ffi::c_void, DType, usize)> {
        let dtype = if self.dtype == sys::ROUTECAP_DTYPE_U8 { DType::U8 } else { DType::I16 };
        (!self.raw.ids.is_null()).then_some((self.raw.ids, dtype, self.row_stride))
    }

    /// Why all cells of these rows are missing; `None` if the rows are there, that is, if they have
    /// [`ids`](Row::ids).
    pub fn reason(&self) -> Option<Reason> {
        self.raw.ids.is_null().then(|| Reason::of(self.raw.reason))
    }

    /// The tags of rows, where they are not all [`tag`](Self::tag).
    pub fn tags(&self) -> Option<&'a [u64]> {
        // SAFETY: a segment with tags has one for each row, for 'a.
        (!self.raw.tags.is_null()).then(|| unsafe { slice(self.raw.tags, self.raw.rows as usize) })
    }

    /// The tag of all rows, where there are no [`tags`](Self::tags).
    pub fn tag(&self) -> u64 {
        self.raw.tag
    }

    /// The `index`-th row.
    ///
    /// # Panics
    ///
    /// If there are not so many.
    pub fn row(&self, index: u64) -> Row<'a> {
        assert!(index < self.rows(), "row {index} of {}", self.rows());
        Row { segment: *self, index: index as usize }
    }

    /// The rows, in order.
    pub fn iter(&self) -> impl Iterator<Item = Row<'a>> + use<'a> {
        let segment = *self;
        (0..segment.rows() as usize).map(move |index| Row { segment, index })
    }
}

/// The ids of every layer for one input token.
#[derive(Clone, Copy)]
pub struct Row<'a> {
    segment: Segment<'a>,
    index: usize,
}

impl fmt::Debug for Row<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cells: Vec<Option<Vec<u16>>> =
            self.cells().map(|cell| cell.map(|ids| ids.iter().collect())).collect();
        f.debug_struct("Row")
            .field("position", &self.position())
            .field("tag", &self.tag())
            .field("cells", &cells)
            .finish()
    }
}

impl<'a> Row<'a> {
    /// Its position in the sequence.
    pub fn position(&self) -> u64 {
        self.segment.first() + self.index as u64
    }

    /// The tag of the step that delivered it.
    pub fn tag(&self) -> u64 {
        self.segment.tags().map_or(self.segment.tag(), |tags| tags[self.index])
    }

    /// `[layers, k]` in C order; `None`: all cells are missing, for [`Segment::reason`]. Those of a
    /// cell that is not valid have no meaning. Columns of a valid cell that have no expert come last,
    /// with every bit set: [`experts`](Self::experts) leaves them out.
    pub fn ids(&self) -> Option<Ids<'a>> {
        let segment = &self.segment;
        if segment.raw.ids.is_null() {
            return None;
        }
        let len = segment.layers as usize * segment.k as usize;
        // SAFETY: a row has so many ids of its view's dtype, row_stride bytes behind those of the
        // row before it, for 'a.
        Some(unsafe {
            let ids = segment.raw.ids.byte_add(self.index * segment.row_stride);
            match segment.dtype {
                sys::ROUTECAP_DTYPE_U8 => Ids::U8(slice(ids.cast(), len)),
                _ => Ids::I16(slice(ids.cast(), len)),
            }
        })
    }

    /// `[validity_bytes]`: bit l % 8 of byte l / 8 is set if layer l is valid; `None`: all are, if
    /// there are [`ids`](Self::ids).
    pub fn validity(&self) -> Option<&'a [u8]> {
        let segment = &self.segment;
        // SAFETY: a row of a segment with validity has so many bytes of it, row_stride bytes behind
        // those of the row before it, for 'a.
        (!segment.raw.validity.is_null()).then(|| unsafe {
            slice(segment.raw.validity.add(self.index * segment.row_stride), segment.validity_bytes)
        })
    }

    /// Whether the cell of a layer is valid. Layers are the captured ones, `0..layers`;
    /// [`View::layer_map`] has the index of each in the decoder.
    ///
    /// # Panics
    ///
    /// If there is no such layer.
    pub fn is_valid(&self, layer: u32) -> bool {
        let layers = self.segment.layers;
        assert!(
            layer < layers,
            "layer {layer} of {layers}: layers are counted from 0, and only those that are captured \
             (layer_map has their index in the decoder)"
        );
        if self.segment.raw.ids.is_null() {
            return false;
        }
        self.validity().is_none_or(|validity| validity[layer as usize / 8] >> (layer % 8) & 1 != 0)
    }

    /// The experts that a token got in a layer, in the router's order: as many as the layer's
    /// [`layer_k`](View::layer_k), or fewer, down to its [`layer_min_k`](View::layer_min_k). `None`
    /// if the cell is missing.
    ///
    /// # Panics
    ///
    /// If there is no such layer (see [`is_valid`](Self::is_valid)).
    pub fn experts(&self, layer: u32) -> Option<Ids<'a>> {
        let ids = self.is_valid(layer).then(|| self.ids()).flatten()?;
        let (segment, layer) = (&self.segment, layer as usize);
        let at = layer * segment.k as usize;
        let (least, mut count) = (segment.layer_min_k[layer], segment.layer_k[layer]);
        while count > least && ids.is_unused(at + count as usize - 1) {
            count -= 1;
        }
        Some(ids.slice(at..at + count as usize))
    }

    /// `[layers, k]` in C order; `None`: all cells are missing, or the routing has no weights. Those of
    /// a cell that has none, and of columns without an expert, are 0.
    fn all_weights(&self) -> Option<Weights<'a>> {
        let segment = &self.segment;
        if segment.raw.weights.is_null() {
            return None;
        }
        let len = segment.layers as usize * segment.k as usize;
        // SAFETY: a row has so many weights of its view's type, row_stride bytes behind those of the
        // row before it, for 'a.
        Some(unsafe {
            let weights = segment.raw.weights.byte_add(self.index * segment.row_stride);
            match segment.weights_dtype {
                sys::ROUTECAP_DTYPE_F32 => Weights::F32(slice(weights.cast(), len)),
                sys::ROUTECAP_DTYPE_F16 => Weights::F16(slice(weights.cast(), len)),
                _ => Weights::BF16(slice(weights.cast(), len)),
            }
        })
    }

    /// Whether the cell of a layer has weights.
    ///
    /// # Panics
    ///
    /// If there is no such layer (see [`is_valid`](Self::is_valid)).
    pub fn is_weighted(&self, layer: u32) -> bool {
        let segment = &self.segment;
        if !self.is_valid(layer) || segment.raw.weights.is_null() {
            return false;
        }
        // SAFETY: where there are weights a row has so many bytes of their validity, row_stride bytes
        // behind those of the row before it, for 'a.
        let validity = unsafe {
            let first = segment.raw.weights_validity;
            slice(first.add(self.index * segment.row_stride), segment.validity_bytes)
        };
        validity[layer as usize / 8] >> (layer % 8) & 1 != 0
    }

    /// The weights of the experts that a token got in a layer: one for each of
    /// [`experts`](Self::experts). `None` if the cell has none, though it may have experts.
    ///
    /// # Panics
    ///
    /// If there is no such layer (see [`is_valid`](Self::is_valid)).
    pub fn weights(&self, layer: u32) -> Option<Weights<'a>> {
        let weights = self.is_weighted(layer).then(|| self.all_weights()).flatten()?;
        let at = layer as usize * self.segment.k as usize;
        let used = at..at + self.experts(layer)?.len();
        Some(match weights {
            Weights::F32(weights) => Weights::F32(&weights[used]),
            Weights::F16(weights) => Weights::F16(&weights[used]),
            Weights::BF16(weights) => Weights::BF16(&weights[used]),
        })
    }

    /// The experts of all layers.
    pub fn cells(&self) -> impl ExactSizeIterator<Item = Option<Ids<'a>>> + use<'a> {
        let row = *self;
        (0..self.segment.layers as usize).map(move |layer| row.experts(layer as u32))
    }
}
