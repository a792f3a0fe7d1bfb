//! What the headers declare: enums, switches of a configuration, and counts.
// Generated from the headers: run python3 dev/generate. Do not edit.

use crate::number::numbers;
use crate::{Config, sys};

numbers! {
    /// What went wrong: the statuses of the library that are errors, and the one that
    /// [`Issued::step`](crate::Issued::step) makes one.
    ///
    /// Newer libraries may know more; those are [`ErrorKind::Other`].
    ErrorKind, "The kind of a status of C's that is an error.", status: "The status in C." {
        /// An argument is wrong (`ROUTECAP_ERR_ARGUMENT`).
        Argument = ROUTECAP_ERR_ARGUMENT;
        /// Too small; or larger, with a tail that is not 0 (`ROUTECAP_ERR_STRUCT_SIZE`).
        StructSize = ROUTECAP_ERR_STRUCT_SIZE;
        /// Outside the capturer's layers (`ROUTECAP_ERR_UNKNOWN_LAYER`).
        UnknownLayer = ROUTECAP_ERR_UNKNOWN_LAYER;
        /// Never opened here, closed or finished (`ROUTECAP_ERR_UNKNOWN_REQUEST`).
        UnknownRequest = ROUTECAP_ERR_UNKNOWN_REQUEST;
        /// Never issued; for accept: the request has no drafts in it (`ROUTECAP_ERR_UNKNOWN_STEP`).
        UnknownStep = ROUTECAP_ERR_UNKNOWN_STEP;
        /// Rows or indices that do not exist (`ROUTECAP_ERR_OUT_OF_RANGE`).
        OutOfRange = ROUTECAP_ERR_OUT_OF_RANGE;
        /// Rows outside the sink (`ROUTECAP_ERR_CAPACITY`).
        Capacity = ROUTECAP_ERR_CAPACITY;
        /// Two spans of a step, or two sources of a plan, have the same row
        /// (`ROUTECAP_ERR_OVERLAP`).
        Overlap = ROUTECAP_ERR_OVERLAP;
        /// A dtype that the call does not take, or one that cannot hold the ids or what is written
        /// in their place (`ROUTECAP_ERR_DTYPE`).
        DType = ROUTECAP_ERR_DTYPE;
        /// Layers, k, experts, id space or the dtype of the weights differ; or a matrix does not
        /// have the size that it is said to have (`ROUTECAP_ERR_SHAPE_MISMATCH`).
        ShapeMismatch = ROUTECAP_ERR_SHAPE_MISMATCH;
        /// Nothing was written; the needed size is returned (`ROUTECAP_ERR_BUFFER_TOO_SMALL`).
        BufferTooSmall = ROUTECAP_ERR_BUFFER_TOO_SMALL;
        /// The bytes are not in the expected format, are damaged, or have a version that this
        /// library does not read (`ROUTECAP_ERR_FORMAT`).
        Format = ROUTECAP_ERR_FORMAT;
        /// The format cannot carry a fact of the routing, and the caller did not allow the loss
        /// (`ROUTECAP_ERR_LOSSY`).
        Lossy = ROUTECAP_ERR_LOSSY;
        /// Wrong order of calls (`ROUTECAP_ERR_STATE`).
        State = ROUTECAP_ERR_STATE;
        /// Reading from a disabled or mirroring capturer (`ROUTECAP_ERR_DISABLED`).
        Disabled = ROUTECAP_ERR_DISABLED;
        /// Some of these rows are in flight (`ROUTECAP_ERR_NOT_READY`).
        NotReady = ROUTECAP_ERR_NOT_READY;
        /// Strict reading, and cells are missing (`ROUTECAP_ERR_INCOMPLETE`).
        Incomplete = ROUTECAP_ERR_INCOMPLETE;
        /// Recorded twice in one step, one sink row in two spans, or two different sets of ids for
        /// one cell (`ROUTECAP_ERR_CONFLICT`).
        Conflict = ROUTECAP_ERR_CONFLICT;
        /// The object was made before this process was forked (`ROUTECAP_ERR_FORKED`).
        Forked = ROUTECAP_ERR_FORKED;
        /// The call is not capturable, and the stream is being captured (`ROUTECAP_ERR_CAPTURING`).
        Capturing = ROUTECAP_ERR_CAPTURING;
        /// Strict reading, and cells were recomputed from the router's scores (logits)
        /// (`ROUTECAP_ERR_RECOMPUTED`).
        Recomputed = ROUTECAP_ERR_RECOMPUTED;
        /// Record, route, snapshot or issue without a begin (`ROUTECAP_ERR_NOT_BEGUN`).
        NotBegun = ROUTECAP_ERR_NOT_BEGUN;
        /// Issue of a forward pass without a snapshot (`ROUTECAP_ERR_NOT_SNAPSHOT`).
        NotSnapshot = ROUTECAP_ERR_NOT_SNAPSHOT;
        /// A second snapshot of one step (`ROUTECAP_ERR_SNAPSHOT_TWICE`).
        SnapshotTwice = ROUTECAP_ERR_SNAPSHOT_TWICE;
        /// A second issue of one forward pass (`ROUTECAP_ERR_ISSUED_TWICE`).
        IssuedTwice = ROUTECAP_ERR_ISSUED_TWICE;
        /// A recorded row, or a row of a span, is not among the rows begun
        /// (`ROUTECAP_ERR_ROWS_NOT_BEGUN`).
        RowsNotBegun = ROUTECAP_ERR_ROWS_NOT_BEGUN;
        /// Two threads are in calls of the forward path at once (`ROUTECAP_ERR_TWO_THREADS`).
        TwoThreads = ROUTECAP_ERR_TWO_THREADS;
        /// The budget, or the system's memory (`ROUTECAP_ERR_NO_MEMORY`).
        NoMemory = ROUTECAP_ERR_NO_MEMORY;
        /// A resource is exhausted (`ROUTECAP_ERR_TOO_MANY_REQUESTS`).
        TooManyRequests = ROUTECAP_ERR_TOO_MANY_REQUESTS;
        /// The worker thread could not be started (`ROUTECAP_ERR_THREAD`).
        Thread = ROUTECAP_ERR_THREAD;
        /// This build or this machine lacks the backend (`ROUTECAP_ERR_NO_BACKEND`).
        NoBackend = ROUTECAP_ERR_NO_BACKEND;
        /// The text names the driver that this build needs (`ROUTECAP_ERR_DRIVER_TOO_OLD`).
        DriverTooOld = ROUTECAP_ERR_DRIVER_TOO_OLD;
        /// A call of the driver failed; the text names it (`ROUTECAP_ERR_DEVICE`).
        Device = ROUTECAP_ERR_DEVICE;
        /// The device has failed for good. Rows that have landed can still be read; the others are
        /// missing (`ROUTECAP_ERR_DEVICE_LOST`).
        DeviceLost = ROUTECAP_ERR_DEVICE_LOST;
        /// A defect of the library (`ROUTECAP_ERR_INTERNAL`).
        Internal = ROUTECAP_ERR_INTERNAL;
        /// The step has a ticket, but all its rows are missing: too many were in flight, its copy
        /// failed, or its rows did not arrive (`ROUTECAP_LOST`).
        Lost = ROUTECAP_LOST;
    }
}

numbers! {
    /// Why a cell is missing. [`Unwritten`](Reason::Unwritten), [`OutOfRange`](Reason::OutOfRange)
    /// and [`Duplicate`](Reason::Duplicate) belong to a cell of a row that is there, the others to
    /// whole rows that are not there.
    Reason, "The one that has this number in C.", value: "The number in C." {
        /// The row was never issued, or was cut by truncate or finish; or its sink row was not
        /// begun, or is not in the snapshot (`ROUTECAP_MISSING_ABSENT`).
        Absent = ROUTECAP_MISSING_ABSENT;
        /// The layer did not write it in its step, or not completely
        /// (`ROUTECAP_MISSING_UNWRITTEN`).
        Unwritten = ROUTECAP_MISSING_UNWRITTEN;
        /// An id outside `[0, experts)` of the layer; or, where cells may have fewer than k
        /// experts, fewer than layer_min_k, or a column without an expert before one that has one
        /// (`ROUTECAP_MISSING_OUT_OF_RANGE`).
        OutOfRange = ROUTECAP_MISSING_OUT_OF_RANGE;
        /// The same id twice (`ROUTECAP_MISSING_DUPLICATE`).
        Duplicate = ROUTECAP_MISSING_DUPLICATE;
        /// The row's step was lost; see `ROUTECAP_LOST` (`ROUTECAP_MISSING_LOST`).
        Lost = ROUTECAP_MISSING_LOST;
        /// There was no memory for the row (`ROUTECAP_MISSING_REFUSED`).
        Refused = ROUTECAP_MISSING_REFUSED;
        /// A call with `ROUTECAP_EXTRACT_TAKE` took the row out of its request; the routing of that
        /// call has the row (`ROUTECAP_MISSING_TAKEN`).
        Taken = ROUTECAP_MISSING_TAKEN;
        /// A store had the row and dropped it; see store.h (`ROUTECAP_MISSING_EVICTED`).
        Evicted = ROUTECAP_MISSING_EVICTED;
        /// A store never had the row, or dropped it long ago (`ROUTECAP_MISSING_NOT_PUBLISHED`).
        NotPublished = ROUTECAP_MISSING_NOT_PUBLISHED;
        /// A store has the row, but the row, or the request that asks for it, is of an older
        /// generation; see store.h (`ROUTECAP_MISSING_STALE`).
        Stale = ROUTECAP_MISSING_STALE;
    }
}

numbers! {
    /// A format of the wire.
    WireFormat, "The format of C's number.", number: "The number in C." {
        /// Decoding only: the format that the first bytes show. A message that begins with 512
        /// blanks is refused (`ROUTECAP_WIRE_ANY`).
        Any = ROUTECAP_WIRE_ANY;
        /// "routecap": the serialised form, which carries every fact (`ROUTECAP_WIRE_SERIALIZED`).
        Serialized = ROUTECAP_WIRE_SERIALIZED;
        /// "npy": a .npy file, version 1, 2 or 3, with integers of 8 to 64 bits
        /// (`ROUTECAP_WIRE_NPY`).
        Npy = ROUTECAP_WIRE_NPY;
        /// "npy.base64": a .npy file in base64 (`ROUTECAP_WIRE_NPY_BASE64`).
        NpyBase64 = ROUTECAP_WIRE_NPY_BASE64;
        /// "raw": the array alone (`ROUTECAP_WIRE_RAW`).
        Raw = ROUTECAP_WIRE_RAW;
        /// "raw.base64": the array alone, in base64 (`ROUTECAP_WIRE_RAW_BASE64`).
        RawBase64 = ROUTECAP_WIRE_RAW_BASE64;
        /// "object": a JSON object with these members in any order: "data": base64; "shape":
        /// `[rows, columns, k]`; "start": the first position; "dtype": a name such as "uint8"
        /// (`ROUTECAP_WIRE_OBJECT`).
        Object = ROUTECAP_WIRE_OBJECT;
        /// "nrlre1": the text nrlre1:DTYPE:ROWSxCOLUMNSxK:BASE64, where DTYPE is int8, int16 or
        /// int32 (`ROUTECAP_WIRE_NRLRE1`).
        Nrlre1 = ROUTECAP_WIRE_NRLRE1;
        /// "lists": nested JSON lists of integers; read also within `["ndarray", {"data": lists,
        /// "dtype": name}]` (`ROUTECAP_WIRE_LISTS`).
        Lists = ROUTECAP_WIRE_LISTS;
    }
}

/// Type of elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(i32)]
#[non_exhaustive]
pub enum DType {
    /// `ROUTECAP_DTYPE_U8`.
    U8 = sys::ROUTECAP_DTYPE_U8,
    /// `ROUTECAP_DTYPE_I16`.
    I16 = sys::ROUTECAP_DTYPE_I16,
    /// `ROUTECAP_DTYPE_U16`.
    U16 = sys::ROUTECAP_DTYPE_U16,
    /// `ROUTECAP_DTYPE_I32`.
    I32 = sys::ROUTECAP_DTYPE_I32,
    /// `ROUTECAP_DTYPE_U32`.
    U32 = sys::ROUTECAP_DTYPE_U32,
    /// `ROUTECAP_DTYPE_I64`.
    I64 = sys::ROUTECAP_DTYPE_I64,
    /// The upper 16 bits are the id. The lower 16 are a bfloat16: the factor by which the expert's
    /// output is multiplied. Only in `routecap_source` (`ROUTECAP_DTYPE_ID16_BF16`).
    IdWeight = sys::ROUTECAP_DTYPE_ID16_BF16,
    /// `ROUTECAP_DTYPE_I8`.
    I8 = sys::ROUTECAP_DTYPE_I8,
    /// `ROUTECAP_DTYPE_U64`.
    U64 = sys::ROUTECAP_DTYPE_U64,
    /// `ROUTECAP_DTYPE_F32`.
    F32 = sys::ROUTECAP_DTYPE_F32,
    /// `ROUTECAP_DTYPE_F16`.
    F16 = sys::ROUTECAP_DTYPE_F16,
    /// `ROUTECAP_DTYPE_BF16`.
    BF16 = sys::ROUTECAP_DTYPE_BF16,
}

impl DType {
    /// The one that has this number in C, if there is one.
    pub fn of(value: i32) -> Option<DType> {
        match value {
            sys::ROUTECAP_DTYPE_U8 => Some(DType::U8),
            sys::ROUTECAP_DTYPE_I16 => Some(DType::I16),
            sys::ROUTECAP_DTYPE_U16 => Some(DType::U16),
            sys::ROUTECAP_DTYPE_I32 => Some(DType::I32),
            sys::ROUTECAP_DTYPE_U32 => Some(DType::U32),
            sys::ROUTECAP_DTYPE_I64 => Some(DType::I64),
            sys::ROUTECAP_DTYPE_ID16_BF16 => Some(DType::IdWeight),
            sys::ROUTECAP_DTYPE_I8 => Some(DType::I8),
            sys::ROUTECAP_DTYPE_U64 => Some(DType::U64),
            sys::ROUTECAP_DTYPE_F32 => Some(DType::F32),
            sys::ROUTECAP_DTYPE_F16 => Some(DType::F16),
            sys::ROUTECAP_DTYPE_BF16 => Some(DType::BF16),
            _ => None,
        }
    }

    /// Bytes of one element.
    pub fn size(self) -> usize {
        match self {
            DType::U8 => 1,
            DType::I16 => 2,
            DType::U16 => 2,
            DType::I32 => 4,
            DType::U32 => 4,
            DType::I64 => 8,
            DType::IdWeight => 4,
            DType::I8 => 1,
            DType::U64 => 8,
            DType::F32 => 4,
            DType::F16 => 2,
            DType::BF16 => 2,
        }
    }
}

/// A method in use, for [`Router::new`](crate::Router::new).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(i32)]
#[non_exhaustive]
pub enum Method {
    /// Rank probabilities; weights are probabilities: OLMoE, Qwen2 (`ROUTECAP_METHOD_SOFTMAX`).
    Softmax = sys::ROUTECAP_METHOD_SOFTMAX,
    /// Rank probabilities; weights sum to 1: Mixtral, Qwen3
    /// (`ROUTECAP_METHOD_SOFTMAX_RENORMALIZE`).
    SoftmaxRenormalize = sys::ROUTECAP_METHOD_SOFTMAX_RENORMALIZE,
    /// Rank logits; softmax over the chosen: gpt-oss (`ROUTECAP_METHOD_TOPK_SOFTMAX`).
    TopkSoftmax = sys::ROUTECAP_METHOD_TOPK_SOFTMAX,
    /// Rank logits; weights are logits (`ROUTECAP_METHOD_TOPK`).
    Topk = sys::ROUTECAP_METHOD_TOPK,
    /// Rank logits; weights are their sigmoid: Llama 4, with k = 1
    /// (`ROUTECAP_METHOD_TOPK_SIGMOID`).
    TopkSigmoid = sys::ROUTECAP_METHOD_TOPK_SIGMOID,
    /// Rank sigmoid + bias; weights are sigmoids (`ROUTECAP_METHOD_SIGMOID`).
    Sigmoid = sys::ROUTECAP_METHOD_SIGMOID,
    /// Rank sigmoid + bias; weights sum to 1: MiniMax M2 (set bias)
    /// (`ROUTECAP_METHOD_SIGMOID_RENORMALIZE`).
    SigmoidRenormalize = sys::ROUTECAP_METHOD_SIGMOID_RENORMALIZE,
    /// Softmax; groups by their maximum. Set groups, groups_kept, scale
    /// (`ROUTECAP_METHOD_DEEPSEEK_V2`).
    DeepSeekV2 = sys::ROUTECAP_METHOD_DEEPSEEK_V2,
    /// Sigmoid + bias; groups by their top two; weights sum to 1: also GLM, Kimi, Nemotron. Set
    /// groups, groups_kept, bias, scale (`ROUTECAP_METHOD_DEEPSEEK_V3`).
    DeepSeekV3 = sys::ROUTECAP_METHOD_DEEPSEEK_V3,
    /// Sqrt-softplus + bias; weights sum to 1. Set bias, scale; or hash_table in layers that have
    /// one (`ROUTECAP_METHOD_DEEPSEEK_V4`).
    DeepSeekV4 = sys::ROUTECAP_METHOD_DEEPSEEK_V4,
    /// Rank softmax + bias; weights are probabilities and sum to 1. Set bias, floor
    /// (`ROUTECAP_METHOD_ERNIE`).
    Ernie = sys::ROUTECAP_METHOD_ERNIE,
}

/// The score of an expert, from its logit x. All arithmetic is in float32.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(i32)]
#[non_exhaustive]
pub enum Score {
    /// x (`ROUTECAP_SCORE_LOGIT`).
    Logit = sys::ROUTECAP_SCORE_LOGIT,
    /// exp(x - max) / sum of these (`ROUTECAP_SCORE_SOFTMAX`).
    Softmax = sys::ROUTECAP_SCORE_SOFTMAX,
    /// 1 / (1 + exp(-x)) (`ROUTECAP_SCORE_SIGMOID`).
    Sigmoid = sys::ROUTECAP_SCORE_SIGMOID,
    /// sqrt(log(1 + exp(x))); sqrt(x) above 20 (`ROUTECAP_SCORE_SQRT_SOFTPLUS`).
    SqrtSoftplus = sys::ROUTECAP_SCORE_SQRT_SOFTPLUS,
}

/// The score of a group of experts, from their keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(i32)]
#[non_exhaustive]
pub enum GroupScore {
    /// The largest (`ROUTECAP_GROUP_MAX`).
    Max = sys::ROUTECAP_GROUP_MAX,
    /// Sum of the two largest, which may be equal (`ROUTECAP_GROUP_TOP2`).
    Top2 = sys::ROUTECAP_GROUP_TOP2,
    /// Sum of the two largest values that differ; if all are equal, that value once
    /// (`ROUTECAP_GROUP_TOP2_DISTINCT`).
    Top2Distinct = sys::ROUTECAP_GROUP_TOP2_DISTINCT,
}

/// The switches of a configuration.
pub(crate) const SWITCHES: [(&str, u32); 6] = [
    ("compare", sys::ROUTECAP_CONFIG_COMPARE),
    ("external_sink", sys::ROUTECAP_CONFIG_EXTERNAL_SINK),
    ("manual_progress", sys::ROUTECAP_CONFIG_MANUAL_PROGRESS),
    ("may_lose", sys::ROUTECAP_CONFIG_MAY_LOSE),
    ("checked", sys::ROUTECAP_CONFIG_CHECKED),
    ("load", sys::ROUTECAP_CONFIG_LOAD),
];

/// Switches, which are all off by default.
impl Config {
    /// If a row is issued again, compare it with the row that is kept; see stats.rows_mismatched
    /// (`ROUTECAP_CONFIG_COMPARE`).
    pub fn compare(self, on: bool) -> Self {
        self.flag(sys::ROUTECAP_CONFIG_COMPARE, on)
    }

    /// Allocate no sink: you bind memory to each layer by `routecap_sink_bind`. The cells of a
    /// layer without memory are missing (`ROUTECAP_CONFIG_EXTERNAL_SINK`).
    pub fn external_sink(self, on: bool) -> Self {
        self.flag(sys::ROUTECAP_CONFIG_EXTERNAL_SINK, on)
    }

    /// Start no worker thread: calls of the caller file the steps; see `routecap_capturer_progress`
    /// (`ROUTECAP_CONFIG_MANUAL_PROGRESS`).
    pub fn manual_progress(self, on: bool) -> Self {
        self.flag(sys::ROUTECAP_CONFIG_MANUAL_PROGRESS, on)
    }

    /// Host backend: if config.slots steps are in flight, the next one is lost, as on a device.
    /// Without the flag begin files the oldest step instead (`ROUTECAP_CONFIG_MAY_LOSE`).
    pub fn may_lose(self, on: bool) -> Self {
        self.flag(sys::ROUTECAP_CONFIG_MAY_LOSE, on)
    }

    /// Checked mode, for development: mistakes in the order of calls are errors
    /// (`ROUTECAP_ERR_NOT_BEGUN` to `ROUTECAP_ERR_TWO_THREADS`). `ROUTECAP_CHECKED`=1 in the
    /// environment does the same (`ROUTECAP_CONFIG_CHECKED`).
    pub fn checked(self, on: bool) -> Self {
        self.flag(sys::ROUTECAP_CONFIG_CHECKED, on)
    }

    /// Count how often each expert was chosen; see load.h (`ROUTECAP_CONFIG_LOAD`).
    pub fn load(self, on: bool) -> Self {
        self.flag(sys::ROUTECAP_CONFIG_LOAD, on)
    }
}

/// What the capturer saw since it was created (`routecap_stats`).
///
/// Fields are read one after another while it runs; no row is counted as landed before it is
/// issued. Every row of the spans that issue was given, those of unknown requests apart, is in one
/// of the counts from `rows_in_flight` to `rows_refused`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Layers without a valid cell in the last step that landed with rows.
    pub silent_layers: u32,
    /// Lost ones included.
    pub steps_issued: u64,
    /// Lost ones included.
    pub steps_landed: u64,
    /// Too many were in flight, the copy failed, or the rows did not arrive.
    pub steps_lost: u64,
    /// Rows issued.
    pub rows_issued: u64,
    /// Rows in flight.
    pub rows_in_flight: u64,
    /// Drafts that have landed and wait for accept.
    pub rows_provisional: u64,
    /// Landed with at least one valid cell.
    pub rows_delivered: u64,
    /// Landed without a valid cell.
    pub rows_missing: u64,
    /// Of a lost step.
    pub rows_lost: u64,
    /// Cut by close or truncate, or by `rows` of finish, while in flight or provisional. A cut
    /// draft counts here if accept kept it, if close dropped it, or if truncate cut it and finish
    /// dropped it.
    pub rows_late: u64,
    /// Drafts that accept did not keep, cut or not; and drafts that finish dropped unsettled,
    /// unless truncate had cut them.
    pub rows_rejected: u64,
    /// Their device position was outside the span's bounds.
    pub rows_unplaced: u64,
    /// There was no memory for them.
    pub rows_refused: u64,
    /// In spans of unknown requests.
    pub rows_skipped: u64,
    /// Of spans whose sink row another span of the step has too; see `ROUTECAP_SPAN_SHARED`.
    pub rows_shared: u64,
    /// Delivered with a valid cell where the request already had one.
    pub rows_overlapped: u64,
    /// Rows of rows_overlapped with different sets of ids in a cell that is valid in both; needs
    /// `ROUTECAP_CONFIG_COMPARE`.
    pub rows_mismatched: u64,
    /// Recorded rows outside the rows that were begun, of steps that landed.
    pub rows_dropped: u64,
    /// Recorded twice in one step, of steps that landed; one of the two records was kept.
    pub cells_conflicting: u64,
    /// Cells of landed rows that their step did not write, or not completely. Late and unplaced
    /// rows are not counted.
    pub cells_unwritten: u64,
    /// Likewise, with the reason OUT_OF_RANGE (reading.h).
    pub cells_out_of_range: u64,
    /// Likewise, with the same id twice.
    pub cells_duplicate: u64,
    /// Requests open.
    pub requests_open: u64,
    /// Steps in flight.
    pub steps_in_flight: u64,
    /// Of the budget: pages of requests and routings, provisional rows, and the charges of spans in
    /// flight.
    pub bytes_in_use: u64,
    /// The highest bytes_in_use so far. It includes memory that an issue reserved and gave back at
    /// once, such as for a page that two of its spans share.
    pub bytes_peak: u64,
    /// The limit of bytes_in_use, except for the excess that `routecap_step_issue` describes.
    pub bytes_budget: u64,
}

impl From<sys::routecap_stats> for Stats {
    fn from(raw: sys::routecap_stats) -> Stats {
        Stats {
            silent_layers: raw.silent_layers,
            steps_issued: raw.steps_issued,
            steps_landed: raw.steps_landed,
            steps_lost: raw.steps_lost,
            rows_issued: raw.rows_issued,
            rows_in_flight: raw.rows_in_flight,
            rows_provisional: raw.rows_provisional,
            rows_delivered: raw.rows_delivered,
            rows_missing: raw.rows_missing,
            rows_lost: raw.rows_lost,
            rows_late: raw.rows_late,
            rows_rejected: raw.rows_rejected,
            rows_unplaced: raw.rows_unplaced,
            rows_refused: raw.rows_refused,
            rows_skipped: raw.rows_skipped,
            rows_shared: raw.rows_shared,
            rows_overlapped: raw.rows_overlapped,
            rows_mismatched: raw.rows_mismatched,
            rows_dropped: raw.rows_dropped,
            cells_conflicting: raw.cells_conflicting,
            cells_unwritten: raw.cells_unwritten,
            cells_out_of_range: raw.cells_out_of_range,
            cells_duplicate: raw.cells_duplicate,
            requests_open: raw.requests_open,
            steps_in_flight: raw.steps_in_flight,
            bytes_in_use: raw.bytes_in_use,
            bytes_peak: raw.bytes_peak,
            bytes_budget: raw.bytes_budget,
        }
    }
}
