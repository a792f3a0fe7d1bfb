//! The rows of a trainer's rank, in the layout of its model.

use std::marker::PhantomData;
use std::ptr::{NonNull, null, null_mut};

use crate::error::{Error, ErrorKind, Result, check};
use crate::layers::{Layers, layer_methods, list};
use crate::memory::IdElement;
use crate::number::numbers;
use crate::{Order, Routing, Stream, WeightElement, sys};

numbers! {
    /// How a micro-batch lies before it is divided.
    PlanLayout, "The layout of C's number.", number: "The number in C." {
        /// Sequences one after another, each with its padding behind it
        /// (`ROUTECAP_PLAN_LAYOUT_PACKED`).
        Packed = ROUTECAP_PLAN_LAYOUT_PACKED;
        /// `[samples, width]`, padding behind the tokens (`ROUTECAP_PLAN_LAYOUT_PADDED_RIGHT`).
        PaddedRight = ROUTECAP_PLAN_LAYOUT_PADDED_RIGHT;
        /// `[samples, width]`, padding before the tokens (`ROUTECAP_PLAN_LAYOUT_PADDED_LEFT`).
        PaddedLeft = ROUTECAP_PLAN_LAYOUT_PADDED_LEFT;
    }
}

numbers! {
    /// How context parallelism divides it.
    PlanContext, "The division of C's number.", number: "The number in C." {
        /// Not at all (`ROUTECAP_PLAN_CONTEXT_NONE`).
        None = ROUTECAP_PLAN_CONTEXT_NONE;
        /// Each sequence in twice as many chunks as ranks: two for each
        /// (`ROUTECAP_PLAN_CONTEXT_ZIGZAG`).
        Zigzag = ROUTECAP_PLAN_CONTEXT_ZIGZAG;
        /// The whole in intervals, or where it is padded each sequence
        /// (`ROUTECAP_PLAN_CONTEXT_CONTIGUOUS`).
        Contiguous = ROUTECAP_PLAN_CONTEXT_CONTIGUOUS;
        /// The same intervals, of sequences that are not padded
        /// (`ROUTECAP_PLAN_CONTEXT_ALLGATHER`).
        Allgather = ROUTECAP_PLAN_CONTEXT_ALLGATHER;
    }
}

numbers! {
    /// What a cell of a result is. Results have these numbers as bytes.
    PlanClass, "The class of C's number.", number: "The number in C." {
        /// The routing that was captured (`ROUTECAP_PLAN_CLASS_VALID`).
        Valid = ROUTECAP_PLAN_CLASS_VALID;
        /// No token (`ROUTECAP_PLAN_CLASS_PADDING`).
        Padding = ROUTECAP_PLAN_CLASS_PADDING;
        /// A token behind the last one that has a loss (`ROUTECAP_PLAN_CLASS_NOT_NEEDED`).
        NotNeeded = ROUTECAP_PLAN_CLASS_NOT_NEEDED;
        /// A needed token whose cell no source has (`ROUTECAP_PLAN_CLASS_LOST`).
        Lost = ROUTECAP_PLAN_CLASS_LOST;
    }
}

/// What padding, and rows that are not needed, are filled with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlanFill {
    /// Experts, so that these and the ranks that share them are loaded evenly
    /// (`ROUTECAP_PLAN_FILL_BALANCED`).
    Balanced,
    /// This number (`ROUTECAP_PLAN_FILL_VALUE`).
    Value(i64),
}

/// What lost cells are filled with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlanLost {
    /// This number (`ROUTECAP_PLAN_LOST_MARK`).
    Mark(i64),
    /// As padding (`ROUTECAP_PLAN_LOST_BALANCED`).
    Balanced,
    /// They are an error (`ROUTECAP_PLAN_LOST_ERROR`).
    Error,
}

/// A rank of a trainer, and one micro-batch (`routecap_plan_config`), a builder. What is not set
/// has the default.
#[derive(Clone, Debug)]
pub struct PlanConfig {
    raw: sys::routecap_plan_config,
    lengths: Vec<u64>,
    needed: Vec<u64>,
    padded_lengths: Vec<u64>,
    starts: Vec<u64>,
    of: Layers,
}

// SAFETY: the pointers in `raw` are NULL until a call.
unsafe impl Send for PlanConfig {}
// SAFETY: as above.
unsafe impl Sync for PlanConfig {}

impl PlanConfig {
    /// Sequences of so many tokens, of a model with `layers` MoE layers in this stage, the first
    /// ones of the decoder, and k of `experts` in each (`routecap_plan_config_init`).
    pub fn new(lengths: impl Into<Vec<u64>>, layers: u32, k: u32, experts: u32) -> Self {
        let mut raw = sys::routecap_plan_config::default();
        // SAFETY: `raw` has the size given; with that the call cannot fail.
        unsafe { sys::routecap_plan_config_init(&mut raw, size_of_val(&raw)) };
        (raw.layers, raw.k, raw.experts) = (layers, k, experts);
        let (needed, padded_lengths, starts) = (Vec::new(), Vec::new(), Vec::new());
        PlanConfig {
            raw,
            lengths: lengths.into(),
            needed,
            padded_lengths,
            starts,
            of: Layers::default(),
        }
    }

    /// How the micro-batch lies.
    pub fn layout(mut self, layout: PlanLayout) -> Self {
        self.raw.layout = layout.number();
        self
    }

    /// How `size` context-parallel ranks divide it; this is `rank`.
    pub fn context(mut self, context: PlanContext, size: u32, rank: u32) -> Self {
        (self.raw.context, self.raw.context_size, self.raw.context_rank) =
            (context.number(), size, rank);
        self
    }

    /// `size` tensor-parallel ranks, of which this is `rank`, divide the rows further.
    pub fn sequence_parallel(mut self, size: u32, rank: u32) -> Self {
        (self.raw.tensor_size, self.raw.tensor_rank) = (size, rank);
        self.raw.flags |= sys::ROUTECAP_PLAN_SEQUENCE_PARALLEL;
        self
    }

    /// Of padded layouts: rows are `[width, samples]`, as in Megatron.
    pub fn sequence_first(mut self) -> Self {
        self.raw.flags |= sys::ROUTECAP_PLAN_SEQUENCE_FIRST;
        self
    }

    /// How many rows of each sequence are needed. Default: all but the last one.
    pub fn needed(mut self, rows: impl Into<Vec<u64>>) -> Self {
        self.needed = rows.into();
        self
    }

    /// Packed: rows of each sequence with its padding.
    pub fn padded_lengths(mut self, rows: impl Into<Vec<u64>>) -> Self {
        self.padded_lengths = rows.into();
        self
    }

    /// Padded layouts: the column of each first token.
    pub fn starts(mut self, columns: impl Into<Vec<u64>>) -> Self {
        self.starts = columns.into();
        self
    }

    /// Padded layouts: columns.
    pub fn width(mut self, columns: u64) -> Self {
        self.raw.width = columns;
        self
    }

    /// Each sequence is padded to a multiple of this.
    pub fn align(mut self, rows: u64) -> Self {
        self.raw.align = rows;
        self
    }

    /// Packed: the last sequence is padded on until the whole is a multiple of `rows`, and has
    /// `least` of them.
    pub fn align_total(mut self, rows: u64, least: u64) -> Self {
        (self.raw.align_total, self.raw.least_total) = (rows, least);
        self
    }

    /// Packed: the rows of each context-parallel rank are padded to a multiple of this.
    pub fn align_rank(mut self, rows: u64) -> Self {
        self.raw.align_rank = rows;
        self
    }

    layer_methods!();

    /// How many ranks share the experts.
    pub fn expert_parallel(mut self, ranks: u32) -> Self {
        self.raw.expert_parallel = ranks;
        self
    }

    /// Of the result.
    pub fn order(mut self, order: Order) -> Self {
        self.raw.order = order as i32;
        self
    }

    /// What padding is filled with.
    pub fn fill(mut self, fill: PlanFill) -> Self {
        (self.raw.fill, self.raw.fill_value) = match fill {
            PlanFill::Balanced => (sys::ROUTECAP_PLAN_FILL_BALANCED, 0),
            PlanFill::Value(value) => (sys::ROUTECAP_PLAN_FILL_VALUE, value),
        };
        self
    }

    /// What lost cells are filled with. Default: -1.
    pub fn lost(mut self, lost: PlanLost) -> Self {
        (self.raw.lost, self.raw.lost_value) = match lost {
            PlanLost::Mark(value) => (sys::ROUTECAP_PLAN_LOST_MARK, value),
            PlanLost::Balanced => (sys::ROUTECAP_PLAN_LOST_BALANCED, 0),
            PlanLost::Error => (sys::ROUTECAP_PLAN_LOST_ERROR, 0),
        };
        self
    }

    /// What columns without an expert are filled with. Default: [`NO_EXPERT`](crate::NO_EXPERT).
    pub fn none(mut self, value: i64) -> Self {
        self.raw.none_value = value;
        self
    }

    /// Make the plan, for ids of type `T` (`routecap_plan_create`).
    ///
    /// # Errors
    ///
    /// [`Argument`](ErrorKind::Argument), also if rows cannot be divided evenly: the text names
    /// the number and the divisor; [`DType`](ErrorKind::DType) if `T` does not hold the ids or a
    /// value; [`ShapeMismatch`](ErrorKind::ShapeMismatch) for a list of another length.
    pub fn create<T: IdElement>(&self) -> Result<Plan<T>> {
        let samples = self.lengths.len();
        self.of.check(self.raw.layers)?;
        for (name, given) in [
            ("needed", self.needed.len()),
            ("padded_lengths", self.padded_lengths.len()),
            ("starts", self.starts.len()),
        ] {
            if given != 0 && given != samples {
                return Err(Error::new(
                    ErrorKind::ShapeMismatch,
                    format!("{name} has {given} elements, not {samples}"),
                ));
            }
        }
        let raw = sys::routecap_plan_config {
            struct_size: size_of::<sys::routecap_plan_config>() as u32,
            samples: samples as u64,
            lengths: list(&self.lengths),
            needed: list(&self.needed),
            padded_lengths: list(&self.padded_lengths),
            starts: list(&self.starts),
            layer_map: list(&self.of.map),
            layer_experts: list(&self.of.experts),
            layer_k: list(&self.of.k),
            layer_min_k: list(&self.of.min_k),
            layer_visit: list(&self.of.visit),
            dtype: T::DTYPE as i32,
            ..self.raw
        };
        let mut plan = null_mut();
        // SAFETY: the lists are as long as it is said, and live until the call returns.
        check(unsafe { sys::routecap_plan_create(&raw, &mut plan) })?;
        let raw = NonNull::new(plan).ok_or_else(|| Error::new(ErrorKind::Internal, "no plan"))?;
        Ok(Plan { raw, lengths: self.lengths.clone(), ids: PhantomData })
    }
}

/// How large a plan's results are (`routecap_plan_shape`).
pub type PlanShape = sys::routecap_plan_shape;
/// Rows of one sample that a rank must have (`routecap_plan_range`).
pub type PlanRange = sys::routecap_plan_range;
/// What became of the rows of a result (`routecap_plan_report`).
pub type PlanReport = sys::routecap_plan_report;
/// Where the ids of a rank go on a device (`routecap_plan_target`).
pub type PlanTarget = sys::routecap_plan_target;

/// Which token each row of a trainer's rank is, and what its routers are to be given, as ids of
/// type `T` (`routecap_plan`). Immutable: any number of threads may use it at once.
///
/// ```
/// use routecap::{PlanConfig, PlanContext, PlanLost};
/// # fn main() -> routecap::Result<()> {
/// let plan = PlanConfig::new([6, 9], 2, 2, 8).context(PlanContext::Zigzag, 2, 0).create::<i64>()?;
/// let ranges: Vec<_> = plan.ranges()?.iter().map(|range| (range.sample, range.first, range.rows)).collect();
/// assert_eq!(ranges, [(0, 0, 2), (1, 0, 3)]); // chunks 0 and 3 of each sequence: the latter is padding
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Plan<T: IdElement> {
    raw: NonNull<sys::routecap_plan>,
    lengths: Vec<u64>,
    ids: PhantomData<fn() -> T>,
}

// SAFETY: plans are immutable, and may be used from all threads at once.
unsafe impl<T: IdElement> Send for Plan<T> {}
// SAFETY: as above.
unsafe impl<T: IdElement> Sync for Plan<T> {}

impl<T: IdElement> Drop for Plan<T> {
    fn drop(&mut self) {
        // SAFETY: nobody else has it.
        unsafe { sys::routecap_plan_free(self.raw.as_ptr()) };
    }
}

fn sources_of(sources: &[(u64, &Routing)]) -> Vec<sys::routecap_plan_source> {
    sources
        .iter()
        .map(|&(sample, routing)| sys::routecap_plan_source { sample, routing: routing.as_raw() })
        .collect()
}

fn no_report() -> PlanReport {
    PlanReport { struct_size: size_of::<PlanReport>() as u32, ..Default::default() }
}

/// The address and the length of classes, where they are wanted.
fn classes_of(classes: Option<&mut [u8]>) -> (*mut u8, usize) {
    classes.map_or((null_mut(), 0), |classes| (classes.as_mut_ptr(), classes.len()))
}

impl<T: IdElement> Plan<T> {
    /// How large its results are (`routecap_plan_describe`).
    pub fn describe(&self) -> Result<PlanShape> {
        let mut shape =
            PlanShape { struct_size: size_of::<PlanShape>() as u32, ..Default::default() };
        // SAFETY: the plan lives; `shape` has the size that it says.
        check(unsafe { sys::routecap_plan_describe(self.raw.as_ptr(), &mut shape) })?;
        Ok(shape)
    }

    /// The rows that this rank needs, of which sample (`routecap_plan_ranges`).
    pub fn ranges(&self) -> Result<Vec<PlanRange>> {
        let (mut count, mut list) =
            (0, vec![PlanRange::default(); self.describe()?.ranges as usize]);
        // SAFETY: the plan lives; the list is as long as it is said.
        check(unsafe {
            sys::routecap_plan_ranges(
                self.raw.as_ptr(),
                list.as_mut_ptr(),
                size_of::<PlanRange>(),
                list.len(),
                &mut count,
            )
        })?;
        Ok(list)
    }

    /// Refuses memory for ids and classes that is longer than they are: who made it took it for that
    /// of another shape. Too short is what the library finds.
    fn no_longer(&self, dst: &[T], classes: usize) -> Result<()> {
        let shape = self.describe()?;
        let ids = shape.ids_bytes / size_of::<T>() as u64;
        for (name, given, wanted) in
            [("dst", dst.len(), ids), ("classes", classes, shape.classes_bytes)]
        {
            if given as u64 > wanted {
                return Err(Error::new(
                    ErrorKind::ShapeMismatch,
                    format!("{name} has {given} elements, not {wanted}"),
                ));
            }
        }
        Ok(())
    }

    /// Write the ids of this rank, in its layout, to `dst`, and the class of each cell (a
    /// [`PlanClass`]) to `classes` (`routecap_plan_gather`). Both are as long as
    /// [`describe`](Self::describe) says, and no longer. Cells that no source has are lost, and
    /// counted in the report.
    ///
    /// # Errors
    ///
    /// [`Incomplete`](ErrorKind::Incomplete) with [`PlanLost::Error`];
    /// [`OutOfRange`](ErrorKind::OutOfRange) of a sample that is not, or a routing with rows behind
    /// its last token; [`Overlap`](ErrorKind::Overlap); [`UnknownLayer`](ErrorKind::UnknownLayer);
    /// [`ShapeMismatch`](ErrorKind::ShapeMismatch); [`NotReady`](ErrorKind::NotReady);
    /// [`BufferTooSmall`](ErrorKind::BufferTooSmall); [`Argument`](ErrorKind::Argument) if a lost
    /// cell would look like experts.
    pub fn gather(
        &self,
        sources: &[(u64, &Routing)],
        dst: &mut [T],
        classes: Option<&mut [u8]>,
    ) -> Result<PlanReport> {
        let (sources, mut report) = (sources_of(sources), no_report());
        let (classes, classes_len) = classes_of(classes);
        self.no_longer(dst, classes_len)?;
        // SAFETY: the plan and the routings live; `dst` and `classes` are as long as it is said.
        check(unsafe {
            sys::routecap_plan_gather(
                self.raw.as_ptr(),
                sources.as_ptr(),
                size_of::<sys::routecap_plan_source>(),
                sources.len(),
                dst.as_mut_ptr().cast(),
                size_of_val(dst),
                classes,
                classes_len,
                &mut report,
            )
        })?;
        Ok(report)
    }

    /// Write the weights of this rank, in its layout, to `dst`: those of the ids that
    /// [`gather`](Self::gather) writes with the same sources (`routecap_plan_gather_weights`). `W` is
    /// the type of the weights of all sources, or `f32`. Where weights are missing, `missing` is
    /// written, such as NaN or 0; the experts of filled cells have the weight 0. Returns how many
    /// needed cells have no weights.
    ///
    /// # Errors
    ///
    /// [`DType`](ErrorKind::DType) if a source has no weights, or none that can be had as `W`;
    /// [`ShapeMismatch`](ErrorKind::ShapeMismatch), also for a `dst` that is longer than the ids;
    /// [`OutOfRange`](ErrorKind::OutOfRange), [`Overlap`](ErrorKind::Overlap),
    /// [`UnknownLayer`](ErrorKind::UnknownLayer), [`NotReady`](ErrorKind::NotReady) and
    /// [`BufferTooSmall`](ErrorKind::BufferTooSmall) as [`gather`](Self::gather).
    pub fn gather_weights<W: WeightElement>(
        &self,
        sources: &[(u64, &Routing)],
        missing: f32,
        dst: &mut [W],
    ) -> Result<u64> {
        let wanted = self.describe()?.ids_bytes / size_of::<T>() as u64;
        if dst.len() as u64 > wanted {
            return Err(Error::new(
                ErrorKind::ShapeMismatch,
                format!("dst has {} elements, not {wanted}", dst.len()),
            ));
        }
        let (sources, mut missing_cells) = (sources_of(sources), 0);
        // SAFETY: the plan and the routings live; `dst` is as long as it is said.
        check(unsafe {
            sys::routecap_plan_gather_weights(
                self.raw.as_ptr(),
                sources.as_ptr(),
                size_of::<sys::routecap_plan_source>(),
                sources.len(),
                W::DTYPE as i32,
                missing,
                dst.as_mut_ptr().cast(),
                size_of_val(dst),
                &mut missing_cells,
            )
        })?;
        Ok(missing_cells)
    }

    /// Send one element for each token the same way, token ids for instance
    /// (`routecap_plan_gather_values`): of each sample its elements, or none where this rank has no
    /// row of it. `fill` is written where there is no token, and `dst` has an element for each row of
    /// the rank.
    ///
    /// # Errors
    ///
    /// [`ShapeMismatch`](ErrorKind::ShapeMismatch) if a sample has not one value for each token;
    /// [`BufferTooSmall`](ErrorKind::BufferTooSmall).
    pub fn gather_values<V: Copy>(
        &self,
        values: &[Option<&[V]>],
        fill: V,
        dst: &mut [V],
    ) -> Result<()> {
        let fits = |(each, &length): (&Option<&[V]>, &u64)| {
            each.is_none_or(|each| each.len() as u64 == length)
        };
        if values.len() != self.lengths.len() || !values.iter().zip(&self.lengths).all(fits) {
            return Err(Error::new(
                ErrorKind::ShapeMismatch,
                "each sample must have one value for each token",
            ));
        }
        let rows = self.describe()?.rows;
        if dst.len() as u64 > rows {
            return Err(Error::new(
                ErrorKind::ShapeMismatch,
                format!("dst has {} elements, not {rows}", dst.len()),
            ));
        }
        let pointers: Vec<_> =
            values.iter().map(|each| each.map_or(null(), |each| each.as_ptr().cast())).collect();
        // SAFETY: the plan lives; every sample has an element for each token, and `dst` is as long
        // as it is said.
        check(unsafe {
            sys::routecap_plan_gather_values(
                self.raw.as_ptr(),
                pointers.as_ptr(),
                size_of::<V>(),
                (&raw const fill).cast(),
                dst.as_mut_ptr().cast(),
                size_of_val(dst),
            )
        })
        .map(drop)
    }

    /// A routing for each sample of ids that this rank's routers have recorded
    /// (`routecap_plan_scatter`). A cell that is lost by its class, or is not k distinct experts,
    /// is missing.
    ///
    /// # Errors
    ///
    /// [`Argument`](ErrorKind::Argument) if a length is another than the plan's.
    pub fn scatter(&self, ids: &[T], classes: Option<&[u8]>) -> Result<Vec<Routing>> {
        let mut routings = vec![null_mut(); self.lengths.len()];
        let (classes, classes_len) =
            classes.map_or((null(), 0), |classes| (classes.as_ptr(), classes.len()));
        // SAFETY: the plan lives; `ids`, `classes` and `routings` are as long as it is said.
        check(unsafe {
            sys::routecap_plan_scatter(
                self.raw.as_ptr(),
                ids.as_ptr().cast(),
                size_of_val(ids),
                classes,
                classes_len,
                routings.as_mut_ptr(),
                routings.len(),
            )
        })?;
        // SAFETY: the call gave out these references.
        Ok(routings.into_iter().map(|routing| unsafe { Routing::delivered(routing) }).collect())
    }

    /// Write what is to be uploaded (`routecap_plan_pack`) to memory of
    /// [`packed_bytes`](PlanShape::packed_bytes), in words of 8: best page-locked memory.
    ///
    /// # Errors
    ///
    /// As [`gather`](Self::gather).
    pub fn pack(&self, sources: &[(u64, &Routing)], packed: &mut [u64]) -> Result<PlanReport> {
        let (sources, mut report) = (sources_of(sources), no_report());
        // SAFETY: the plan and the routings live; `packed` is as long as it is said.
        check(unsafe {
            sys::routecap_plan_pack(
                self.raw.as_ptr(),
                sources.as_ptr(),
                size_of::<sys::routecap_plan_source>(),
                sources.len(),
                packed.as_mut_ptr().cast(),
                size_of_val(packed),
                &mut report,
            )
        })?;
        Ok(report)
    }

    /// Unpack on the host what was packed (`routecap_plan_unpack`).
    ///
    /// # Errors
    ///
    /// [`State`](ErrorKind::State) if it was not packed for this plan;
    /// [`BufferTooSmall`](ErrorKind::BufferTooSmall).
    pub fn unpack_on_host(
        &self,
        packed: &[u64],
        dst: &mut [T],
        classes: Option<&mut [u8]>,
    ) -> Result<()> {
        let (classes, classes_len) = classes_of(classes);
        self.no_longer(dst, classes_len)?;
        let target = PlanTarget {
            backend: sys::ROUTECAP_BACKEND_HOST,
            dst: dst.as_mut_ptr().cast(),
            dst_bytes: size_of_val(dst) as u64,
            classes,
            classes_bytes: classes_len as u64,
            ..Default::default()
        };
        // SAFETY: `dst` and `classes` are as long as it is said, and on the host all is done when
        // the call returns.
        unsafe { self.unpack(packed, &target, Stream::HOST) }
    }

    /// Upload what was packed and write the ids on a device: one copy and one kernel, which a CUDA
    /// graph can capture (`routecap_plan_unpack`). [`struct_size`](PlanTarget::struct_size) need
    /// not be set.
    ///
    /// # Errors
    ///
    /// [`State`](ErrorKind::State) if it was not packed for this plan;
    /// [`BufferTooSmall`](ErrorKind::BufferTooSmall); [`NoBackend`](ErrorKind::NoBackend);
    /// [`DriverTooOld`](ErrorKind::DriverTooOld).
    ///
    /// # Safety
    ///
    /// The memory of the target is of its device, as large as it says, and used by nothing else
    /// until the stream has reached the work; until then, and in every replay of a graph, `packed`
    /// lives and is not written.
    pub unsafe fn unpack(&self, packed: &[u64], target: &PlanTarget, stream: Stream) -> Result<()> {
        let target = PlanTarget { struct_size: size_of::<PlanTarget>() as u32, ..*target };
        // SAFETY: the plan lives; `packed` is as long as it is said; the rest is the caller's
        // promise.
        check(unsafe {
            sys::routecap_plan_unpack(
                self.raw.as_ptr(),
                packed.as_ptr().cast(),
                size_of_val(packed),
                &target,
                stream.raw(),
            )
        })
        .map(drop)
    }
}
