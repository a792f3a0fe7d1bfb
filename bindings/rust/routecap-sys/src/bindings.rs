pub const ROUTECAP_VERSION_MAJOR: u32 = 1;
pub const ROUTECAP_VERSION_MINOR: u32 = 0;
pub const ROUTECAP_VERSION_PATCH: u32 = 0;
pub const ROUTECAP_OK: i32 = 0;
pub const ROUTECAP_INCOMPLETE: i32 = 1;
pub const ROUTECAP_LOST: i32 = 2;
pub const ROUTECAP_PENDING: i32 = 3;
pub const ROUTECAP_PARTIAL: i32 = 4;
pub const ROUTECAP_NOT_CAPTURED: i32 = 5;
pub const ROUTECAP_ERR_ARGUMENT: i32 = -100;
pub const ROUTECAP_ERR_STRUCT_SIZE: i32 = -101;
pub const ROUTECAP_ERR_UNKNOWN_LAYER: i32 = -102;
pub const ROUTECAP_ERR_UNKNOWN_REQUEST: i32 = -103;
pub const ROUTECAP_ERR_UNKNOWN_STEP: i32 = -104;
pub const ROUTECAP_ERR_OUT_OF_RANGE: i32 = -105;
pub const ROUTECAP_ERR_CAPACITY: i32 = -106;
pub const ROUTECAP_ERR_OVERLAP: i32 = -107;
pub const ROUTECAP_ERR_DTYPE: i32 = -108;
pub const ROUTECAP_ERR_SHAPE_MISMATCH: i32 = -109;
pub const ROUTECAP_ERR_BUFFER_TOO_SMALL: i32 = -110;
pub const ROUTECAP_ERR_FORMAT: i32 = -111;
pub const ROUTECAP_ERR_STATE: i32 = -200;
pub const ROUTECAP_ERR_DISABLED: i32 = -201;
pub const ROUTECAP_ERR_NOT_READY: i32 = -202;
pub const ROUTECAP_ERR_INCOMPLETE: i32 = -203;
pub const ROUTECAP_ERR_CONFLICT: i32 = -204;
pub const ROUTECAP_ERR_FORKED: i32 = -205;
pub const ROUTECAP_ERR_CAPTURING: i32 = -206;
pub const ROUTECAP_ERR_RECOMPUTED: i32 = -207;
pub const ROUTECAP_ERR_NOT_BEGUN: i32 = -208;
pub const ROUTECAP_ERR_NOT_SNAPSHOT: i32 = -209;
pub const ROUTECAP_ERR_SNAPSHOT_TWICE: i32 = -210;
pub const ROUTECAP_ERR_ISSUED_TWICE: i32 = -211;
pub const ROUTECAP_ERR_ROWS_NOT_BEGUN: i32 = -212;
pub const ROUTECAP_ERR_TWO_THREADS: i32 = -213;
pub const ROUTECAP_ERR_NO_MEMORY: i32 = -300;
pub const ROUTECAP_ERR_TOO_MANY_REQUESTS: i32 = -301;
pub const ROUTECAP_ERR_THREAD: i32 = -302;
pub const ROUTECAP_ERR_NO_BACKEND: i32 = -400;
pub const ROUTECAP_ERR_DRIVER_TOO_OLD: i32 = -401;
pub const ROUTECAP_ERR_DEVICE: i32 = -402;
pub const ROUTECAP_ERR_DEVICE_LOST: i32 = -403;
pub const ROUTECAP_ERR_INTERNAL: i32 = -500;
pub const ROUTECAP_ROWS_ALL: u64 = 0xffffffffffffffff;
pub const ROUTECAP_ROWS_LANDED: u64 = 0xfffffffffffffffe;
pub const ROUTECAP_MAX_LAYERS: u32 = 1024;
pub const ROUTECAP_MAX_K: u32 = 32;
pub const ROUTECAP_MAX_EXPERTS: u32 = 32768;
pub const ROUTECAP_MAX_ROUTED_EXPERTS: u32 = 1024;
pub const ROUTECAP_MAX_GROUPS: u32 = 32;
pub const ROUTECAP_MAX_ROWS: u32 = 1048576;
pub const ROUTECAP_MAX_RECEIVED: u32 = 67108864;
pub const ROUTECAP_MAX_SLOTS: u32 = 64;
pub const ROUTECAP_MAX_POSITION: u64 = 1099511627776;
pub const ROUTECAP_DTYPE_U8: i32 = 1;
pub const ROUTECAP_DTYPE_I16: i32 = 2;
pub const ROUTECAP_DTYPE_U16: i32 = 3;
pub const ROUTECAP_DTYPE_I32: i32 = 4;
pub const ROUTECAP_DTYPE_U32: i32 = 5;
pub const ROUTECAP_DTYPE_I64: i32 = 6;
pub const ROUTECAP_DTYPE_ID16_BF16: i32 = 7;
pub const ROUTECAP_DTYPE_F32: i32 = 16;
pub const ROUTECAP_DTYPE_F16: i32 = 17;
pub const ROUTECAP_DTYPE_BF16: i32 = 18;
pub const ROUTECAP_BACKEND_HOST: i32 = 1;
pub const ROUTECAP_BACKEND_CUDA: i32 = 2;
pub const ROUTECAP_ROLE_OWNER: i32 = 0;
pub const ROUTECAP_ROLE_MIRROR: i32 = 1;
pub const ROUTECAP_ROLE_DISABLED: i32 = 2;
pub const ROUTECAP_ID_SPACE_LOGICAL: i32 = 0;
pub const ROUTECAP_ID_SPACE_PHYSICAL: i32 = 1;
pub const ROUTECAP_PROVENANCE_CAPTURED: i32 = 0;
pub const ROUTECAP_PROVENANCE_RECOMPUTED: i32 = 1;
pub const ROUTECAP_CONFIG_COMPARE: u32 = 1;
pub const ROUTECAP_CONFIG_EXTERNAL_SINK: u32 = 2;
pub const ROUTECAP_CONFIG_MANUAL_PROGRESS: u32 = 4;
pub const ROUTECAP_CONFIG_MAY_LOSE: u32 = 8;
pub const ROUTECAP_CONFIG_CHECKED: u32 = 16;
pub const ROUTECAP_SPAN_SPECULATIVE: u32 = 1;
pub const ROUTECAP_SPAN_DEVICE_POSITIONS: u32 = 2;
pub const ROUTECAP_SNAPSHOT_TAKEN: i32 = 0;
pub const ROUTECAP_SNAPSHOT_MAKE: i32 = 1;
pub const ROUTECAP_SOURCE_OVERLAP: u32 = 1;
pub const ROUTECAP_SCORE_LOGIT: i32 = 0;
pub const ROUTECAP_SCORE_SOFTMAX: i32 = 1;
pub const ROUTECAP_SCORE_SIGMOID: i32 = 2;
pub const ROUTECAP_SCORE_SQRT_SOFTPLUS: i32 = 3;
pub const ROUTECAP_GROUP_MAX: i32 = 0;
pub const ROUTECAP_GROUP_TOP2: i32 = 1;
pub const ROUTECAP_GROUP_TOP2_DISTINCT: i32 = 2;
pub const ROUTECAP_ROUTER_RANK_LOGITS: u32 = 1;
pub const ROUTECAP_ROUTER_RENORMALIZE: u32 = 2;
pub const ROUTECAP_ROUTER_FLOOR_MAX: u32 = 4;
pub const ROUTECAP_ROUTER_SIGMOID_TANH: u32 = 8;
pub const ROUTECAP_ROUTER_GROUPS_ZERO: u32 = 16;
pub const ROUTECAP_METHOD_SOFTMAX: i32 = 1;
pub const ROUTECAP_METHOD_SOFTMAX_RENORMALIZE: i32 = 2;
pub const ROUTECAP_METHOD_TOPK_SOFTMAX: i32 = 3;
pub const ROUTECAP_METHOD_TOPK: i32 = 4;
pub const ROUTECAP_METHOD_TOPK_SIGMOID: i32 = 5;
pub const ROUTECAP_METHOD_SIGMOID: i32 = 6;
pub const ROUTECAP_METHOD_SIGMOID_RENORMALIZE: i32 = 7;
pub const ROUTECAP_METHOD_DEEPSEEK_V2: i32 = 8;
pub const ROUTECAP_METHOD_DEEPSEEK_V3: i32 = 9;
pub const ROUTECAP_METHOD_DEEPSEEK_V4: i32 = 10;
pub const ROUTECAP_METHOD_ERNIE: i32 = 11;
pub const ROUTECAP_PROBE_SILENT: u32 = 1;
pub const ROUTECAP_PROBE_INCOMPLETE: u32 = 2;
pub const ROUTECAP_PROBE_OUT_OF_RANGE: u32 = 4;
pub const ROUTECAP_PROBE_DUPLICATE: u32 = 8;
pub const ROUTECAP_PROBE_SEQUENCE: u32 = 16;
pub const ROUTECAP_PROBE_CONSTANT: u32 = 32;
pub const ROUTECAP_PROBE_REPEATED: u32 = 64;
pub const ROUTECAP_MISSING_ABSENT: i32 = 1;
pub const ROUTECAP_MISSING_UNWRITTEN: i32 = 2;
pub const ROUTECAP_MISSING_OUT_OF_RANGE: i32 = 3;
pub const ROUTECAP_MISSING_DUPLICATE: i32 = 4;
pub const ROUTECAP_MISSING_LOST: i32 = 5;
pub const ROUTECAP_MISSING_REFUSED: i32 = 6;
pub const ROUTECAP_MISSING_TAKEN: i32 = 7;
pub const ROUTECAP_MISSING_EVICTED: i32 = 8;
pub const ROUTECAP_MISSING_NOT_PUBLISHED: i32 = 9;
pub const ROUTECAP_MISSING_STALE: i32 = 10;
pub const ROUTECAP_READ_STRICT: u32 = 1;
pub const ROUTECAP_READ_ALLOW_RECOMPUTED: u32 = 2;
pub const ROUTECAP_ORDER_ROW_MAJOR: i32 = 0;
pub const ROUTECAP_ORDER_LAYER_MAJOR: i32 = 1;
pub const ROUTECAP_POLICY_KEEP: i32 = 0;
pub const ROUTECAP_POLICY_REPLACE: i32 = 1;
pub const ROUTECAP_EXTRACT_SHARE: i32 = 0;
pub const ROUTECAP_EXTRACT_TAKE: i32 = 1;
pub const ROUTECAP_EXTRACT_COPY: i32 = 2;
pub const ROUTECAP_IMPORT_TRUSTED: u32 = 1;
pub const ROUTECAP_SERIALIZED_MIN: u32 = 64;
pub const ROUTECAP_PIECE_HEADER: i32 = 0;
pub const ROUTECAP_PIECE_HEAD: i32 = 1;
pub const ROUTECAP_PIECE_TAIL: i32 = 2;
pub const ROUTECAP_PIECE_ZERO: i32 = 3;
pub const ROUTECAP_MAX_PIECES: u32 = 16;
pub const ROUTECAP_RECEIVED_EXPANDED: u32 = 1;
pub const ROUTECAP_RECEIVED_GLOBAL: u32 = 2;
unsafe extern "C" {
    /// The version of the loaded library: major * 10000 + minor * 100 + patch. Never fails.
    pub fn routecap_version() -> u32;
}
unsafe extern "C" {
    /// The name of a status, "ROUTECAP_ERR_CAPACITY" for instance; "ROUTECAP_STATUS_UNKNOWN" for others. Static storage. Never fails.
    pub fn routecap_status_name(status: i32) -> *const ::core::ffi::c_char;
}
unsafe extern "C" {
    /// One line about the last call on this thread that left one (see above); "" if none did.
    ///
    /// Valid until the next such call on this thread. Read it on the thread that made the call.
    pub fn routecap_last_error() -> *const ::core::ffi::c_char;
}
/// ================================================================================================
/// Types and constants
/// ==============================================================================================
#[repr(C)]
#[derive(Debug)]
pub struct routecap_capturer {
    _unused: [u8; 0],
}
#[repr(C)]
#[derive(Debug)]
pub struct routecap_routing {
    _unused: [u8; 0],
}
/// Names a request of one capturer; other capturers do not know it. 0 is none. No two requests of a
/// process have the same handle, whatever their capturers: a handle that was closed or finished is
/// not given out again.
pub type routecap_request = u64;
/// Ticket of a step of one capturer: 1, 2, 3, ... in order of issue. 0 is none.
pub type routecap_step = u64;
/// What CUDA calls cudaStream_t and CUstream. NULL on the host backend.
#[repr(C)]
#[derive(Debug)]
pub struct CUstream_st {
    _unused: [u8; 0],
}
pub type routecap_stream = *mut CUstream_st;
/// Checked mode, for development and tests: ROUTECAP_CONFIG_CHECKED, or ROUTECAP_CHECKED=1 in the
/// environment when a capturer is created. A slip that is otherwise forgiven is an error:
///
///   ROUTECAP_ERR_NOT_BEGUN, _NOT_SNAPSHOT, _SNAPSHOT_TWICE, _ISSUED_TWICE, _ROWS_NOT_BEGUN
///       At the call that makes it, which changes nothing. Where only the device can see it (graphs
///       that are replayed, a row base or an index list on the device), routecap_step_finalize of that
///       step returns it once the step has landed, and the next issue after that returns it once,
///       with nothing changed: the text names the step. Rows are what they are without checked mode.
///   ROUTECAP_ERR_TWO_THREADS
///       At the call that finds another thread in a call of the forward path of this capturer.
///   ROUTECAP_ERR_ARGUMENT
///       On a device: ids, a table or another [device] argument that is no memory of the device.
///
/// Without the flag it costs a branch a call.
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct routecap_config {
    pub struct_size: u32,
    /// ROUTECAP_BACKEND_*. Required: 0 or less is ROUTECAP_ERR_ARGUMENT, unknown ones ROUTECAP_ERR_NO_BACKEND
    pub backend: i32,
    /// ROUTECAP_ROLE_*
    pub role: i32,
    /// ordinal, 0 or more; ignored by the host backend
    pub device: i32,
    /// captured (MoE) layers, 1..ROUTECAP_MAX_LAYERS. Required
    pub layers: u32,
    /// experts per token, 1..ROUTECAP_MAX_K. Required
    pub k: u32,
    /// ids are in [0, experts), zero experts included; k..ROUTECAP_MAX_EXPERTS. Required unless layer_experts is set
    pub experts: u32,
    /// sink rows: the most tokens of one forward pass, padding included; 1..ROUTECAP_MAX_ROWS. Required
    pub rows: u32,
    /// each holds one step in flight, 1..ROUTECAP_MAX_SLOTS; default 4; see routecap_step_issue
    pub slots: u32,
    /// of the library's sink: I16 (default), I32 or I64
    pub sink_dtype: i32,
    /// ROUTECAP_CONFIG_*
    pub flags: u32,
    /// ROUTECAP_ID_SPACE_*: what the recorded ids are; travels with every routing
    pub id_space: i32,
    /// open at a time; default 65536, at most 16777216
    pub max_requests: u32,
    /// 0
    pub reserved: u32,
    /// upper limit of the memory for captured rows, routings included; default 1 GiB; at least one page (routecap_memory)
    pub budget_bytes: u64,
    /// [layers] index of each captured layer in the decoder, strictly ascending; default 0..layers-1
    pub layer_map: *const i32,
    /// [layers] experts of each layer where they differ; default `experts` for all
    pub layer_experts: *const u32,
    /// [layers] ROUTECAP_PROVENANCE_*; default CAPTURED for all. RECOMPUTED: the layer may be routed
    pub layer_provenance: *const i32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of routecap_config"][::core::mem::size_of::<routecap_config>() - 88usize];
    ["Alignment of routecap_config"][::core::mem::align_of::<routecap_config>() - 8usize];
    ["Offset of field: routecap_config::struct_size"][::core::mem::offset_of!(routecap_config, struct_size) - 0usize];
    ["Offset of field: routecap_config::backend"][::core::mem::offset_of!(routecap_config, backend) - 4usize];
    ["Offset of field: routecap_config::role"][::core::mem::offset_of!(routecap_config, role) - 8usize];
    ["Offset of field: routecap_config::device"][::core::mem::offset_of!(routecap_config, device) - 12usize];
    ["Offset of field: routecap_config::layers"][::core::mem::offset_of!(routecap_config, layers) - 16usize];
    ["Offset of field: routecap_config::k"][::core::mem::offset_of!(routecap_config, k) - 20usize];
    ["Offset of field: routecap_config::experts"][::core::mem::offset_of!(routecap_config, experts) - 24usize];
    ["Offset of field: routecap_config::rows"][::core::mem::offset_of!(routecap_config, rows) - 28usize];
    ["Offset of field: routecap_config::slots"][::core::mem::offset_of!(routecap_config, slots) - 32usize];
    ["Offset of field: routecap_config::sink_dtype"][::core::mem::offset_of!(routecap_config, sink_dtype) - 36usize];
    ["Offset of field: routecap_config::flags"][::core::mem::offset_of!(routecap_config, flags) - 40usize];
    ["Offset of field: routecap_config::id_space"][::core::mem::offset_of!(routecap_config, id_space) - 44usize];
    ["Offset of field: routecap_config::max_requests"][::core::mem::offset_of!(routecap_config, max_requests) - 48usize];
    ["Offset of field: routecap_config::reserved"][::core::mem::offset_of!(routecap_config, reserved) - 52usize];
    ["Offset of field: routecap_config::budget_bytes"][::core::mem::offset_of!(routecap_config, budget_bytes) - 56usize];
    ["Offset of field: routecap_config::layer_map"][::core::mem::offset_of!(routecap_config, layer_map) - 64usize];
    ["Offset of field: routecap_config::layer_experts"][::core::mem::offset_of!(routecap_config, layer_experts) - 72usize];
    ["Offset of field: routecap_config::layer_provenance"][::core::mem::offset_of!(routecap_config, layer_provenance) - 80usize];
};
impl Default for routecap_config {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
/// Memory that a capturer of some configuration needs.
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct routecap_memory {
    pub struct_size: u32,
    /// rows in one page
    pub page_rows: u32,
    /// allocated at create
    pub device_bytes: u64,
    /// allocated at create: page-locked host memory
    pub pinned_bytes: u64,
    /// allocated at create: other host memory, rounded up
    pub host_bytes: u64,
    /// of one captured row: ids and validity
    pub row_bytes: u64,
    /// of one page, the unit in which requests take memory from the budget
    pub page_bytes: u64,
    /// of one open request before its first row, outside the budget
    pub request_bytes: u64,
    /// what a page takes besides, from the budget, once two of its rows have different tags
    pub tag_bytes: u64,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of routecap_memory"][::core::mem::size_of::<routecap_memory>() - 64usize];
    ["Alignment of routecap_memory"][::core::mem::align_of::<routecap_memory>() - 8usize];
    ["Offset of field: routecap_memory::struct_size"][::core::mem::offset_of!(routecap_memory, struct_size) - 0usize];
    ["Offset of field: routecap_memory::page_rows"][::core::mem::offset_of!(routecap_memory, page_rows) - 4usize];
    ["Offset of field: routecap_memory::device_bytes"][::core::mem::offset_of!(routecap_memory, device_bytes) - 8usize];
    ["Offset of field: routecap_memory::pinned_bytes"][::core::mem::offset_of!(routecap_memory, pinned_bytes) - 16usize];
    ["Offset of field: routecap_memory::host_bytes"][::core::mem::offset_of!(routecap_memory, host_bytes) - 24usize];
    ["Offset of field: routecap_memory::row_bytes"][::core::mem::offset_of!(routecap_memory, row_bytes) - 32usize];
    ["Offset of field: routecap_memory::page_bytes"][::core::mem::offset_of!(routecap_memory, page_bytes) - 40usize];
    ["Offset of field: routecap_memory::request_bytes"][::core::mem::offset_of!(routecap_memory, request_bytes) - 48usize];
    ["Offset of field: routecap_memory::tag_bytes"][::core::mem::offset_of!(routecap_memory, tag_bytes) - 56usize];
};
/// What the capturer saw since it was created. Fields are read one after another while it runs; no row is counted as landed before it is issued.
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct routecap_stats {
    pub struct_size: u32,
    /// layers without one valid cell in the last step that landed with rows
    pub silent_layers: u32,
    /// lost ones included
    pub steps_issued: u64,
    /// lost ones included
    pub steps_landed: u64,
    /// no slot was free, or the copy failed
    pub steps_lost: u64,
    /// Rows of the spans that issue was given, those of unknown requests apart. Each is in one of the nine counts that follow.
    pub rows_issued: u64,
    pub rows_in_flight: u64,
    /// landed, speculative, not settled
    pub rows_provisional: u64,
    /// filed with at least one valid cell
    pub rows_delivered: u64,
    /// landed without a valid cell
    pub rows_missing: u64,
    /// in a lost step
    pub rows_lost: u64,
    /// landed after their request was closed; or cut, before or after they landed as drafts
    pub rows_late: u64,
    /// speculative and not accepted, whether or not a later call cut them too
    pub rows_rejected: u64,
    /// their position, read from the device, was outside the span's bounds
    pub rows_unplaced: u64,
    /// for memory
    pub rows_refused: u64,
    /// in spans of unknown requests
    pub rows_skipped: u64,
    /// delivered with a valid cell where one was
    pub rows_overlapped: u64,
    /// of those, with another set of ids in a cell valid in both; needs ROUTECAP_CONFIG_COMPARE
    pub rows_mismatched: u64,
    /// recorded rows outside the rows begun, of steps that landed
    pub rows_dropped: u64,
    /// recorded again within one step, of steps that landed; the first was kept
    pub cells_conflicting: u64,
    /// missing cells of landed rows, but for late and unplaced ones: not, or not completely, written in their step
    pub cells_unwritten: u64,
    /// likewise: an id outside the layer's range
    pub cells_out_of_range: u64,
    /// likewise: one id twice
    pub cells_duplicate: u64,
    /// Now.
    pub requests_open: u64,
    pub steps_in_flight: u64,
    /// of the budget: pages of requests and routings, their tags, provisional rows, and what is promised to rows issued
    pub bytes_in_use: u64,
    /// with what a step asked for and gave back at once: a page that two of its spans share
    pub bytes_peak: u64,
    pub bytes_budget: u64,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of routecap_stats"][::core::mem::size_of::<routecap_stats>() - 216usize];
    ["Alignment of routecap_stats"][::core::mem::align_of::<routecap_stats>() - 8usize];
    ["Offset of field: routecap_stats::struct_size"][::core::mem::offset_of!(routecap_stats, struct_size) - 0usize];
    ["Offset of field: routecap_stats::silent_layers"][::core::mem::offset_of!(routecap_stats, silent_layers) - 4usize];
    ["Offset of field: routecap_stats::steps_issued"][::core::mem::offset_of!(routecap_stats, steps_issued) - 8usize];
    ["Offset of field: routecap_stats::steps_landed"][::core::mem::offset_of!(routecap_stats, steps_landed) - 16usize];
    ["Offset of field: routecap_stats::steps_lost"][::core::mem::offset_of!(routecap_stats, steps_lost) - 24usize];
    ["Offset of field: routecap_stats::rows_issued"][::core::mem::offset_of!(routecap_stats, rows_issued) - 32usize];
    ["Offset of field: routecap_stats::rows_in_flight"][::core::mem::offset_of!(routecap_stats, rows_in_flight) - 40usize];
    ["Offset of field: routecap_stats::rows_provisional"][::core::mem::offset_of!(routecap_stats, rows_provisional) - 48usize];
    ["Offset of field: routecap_stats::rows_delivered"][::core::mem::offset_of!(routecap_stats, rows_delivered) - 56usize];
    ["Offset of field: routecap_stats::rows_missing"][::core::mem::offset_of!(routecap_stats, rows_missing) - 64usize];
    ["Offset of field: routecap_stats::rows_lost"][::core::mem::offset_of!(routecap_stats, rows_lost) - 72usize];
    ["Offset of field: routecap_stats::rows_late"][::core::mem::offset_of!(routecap_stats, rows_late) - 80usize];
    ["Offset of field: routecap_stats::rows_rejected"][::core::mem::offset_of!(routecap_stats, rows_rejected) - 88usize];
    ["Offset of field: routecap_stats::rows_unplaced"][::core::mem::offset_of!(routecap_stats, rows_unplaced) - 96usize];
    ["Offset of field: routecap_stats::rows_refused"][::core::mem::offset_of!(routecap_stats, rows_refused) - 104usize];
    ["Offset of field: routecap_stats::rows_skipped"][::core::mem::offset_of!(routecap_stats, rows_skipped) - 112usize];
    ["Offset of field: routecap_stats::rows_overlapped"][::core::mem::offset_of!(routecap_stats, rows_overlapped) - 120usize];
    ["Offset of field: routecap_stats::rows_mismatched"][::core::mem::offset_of!(routecap_stats, rows_mismatched) - 128usize];
    ["Offset of field: routecap_stats::rows_dropped"][::core::mem::offset_of!(routecap_stats, rows_dropped) - 136usize];
    ["Offset of field: routecap_stats::cells_conflicting"][::core::mem::offset_of!(routecap_stats, cells_conflicting) - 144usize];
    ["Offset of field: routecap_stats::cells_unwritten"][::core::mem::offset_of!(routecap_stats, cells_unwritten) - 152usize];
    ["Offset of field: routecap_stats::cells_out_of_range"][::core::mem::offset_of!(routecap_stats, cells_out_of_range) - 160usize];
    ["Offset of field: routecap_stats::cells_duplicate"][::core::mem::offset_of!(routecap_stats, cells_duplicate) - 168usize];
    ["Offset of field: routecap_stats::requests_open"][::core::mem::offset_of!(routecap_stats, requests_open) - 176usize];
    ["Offset of field: routecap_stats::steps_in_flight"][::core::mem::offset_of!(routecap_stats, steps_in_flight) - 184usize];
    ["Offset of field: routecap_stats::bytes_in_use"][::core::mem::offset_of!(routecap_stats, bytes_in_use) - 192usize];
    ["Offset of field: routecap_stats::bytes_peak"][::core::mem::offset_of!(routecap_stats, bytes_peak) - 200usize];
    ["Offset of field: routecap_stats::bytes_budget"][::core::mem::offset_of!(routecap_stats, bytes_budget) - 208usize];
};
/// The same for one layer. Late and unplaced rows are not looked at.
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct routecap_layer_stats {
    /// valid cells that landed
    pub rows_written: u64,
    pub unwritten: u64,
    pub out_of_range: u64,
    pub duplicate: u64,
    /// steps that landed with rows, none of which this layer wrote
    pub silent_steps: u64,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of routecap_layer_stats"][::core::mem::size_of::<routecap_layer_stats>() - 40usize];
    ["Alignment of routecap_layer_stats"][::core::mem::align_of::<routecap_layer_stats>() - 8usize];
    ["Offset of field: routecap_layer_stats::rows_written"][::core::mem::offset_of!(routecap_layer_stats, rows_written) - 0usize];
    ["Offset of field: routecap_layer_stats::unwritten"][::core::mem::offset_of!(routecap_layer_stats, unwritten) - 8usize];
    ["Offset of field: routecap_layer_stats::out_of_range"][::core::mem::offset_of!(routecap_layer_stats, out_of_range) - 16usize];
    ["Offset of field: routecap_layer_stats::duplicate"][::core::mem::offset_of!(routecap_layer_stats, duplicate) - 24usize];
    ["Offset of field: routecap_layer_stats::silent_steps"][::core::mem::offset_of!(routecap_layer_stats, silent_steps) - 32usize];
};
/// What this build and machine can do.
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct routecap_backend {
    pub struct_size: u32,
    /// 1: a capturer on this backend can be created; 0: detail says why not
    pub available: i32,
    /// how many, 0 on the host backend
    pub devices: i32,
    /// 0
    pub reserved: i32,
    /// one line, static storage
    pub detail: *const ::core::ffi::c_char,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of routecap_backend"][::core::mem::size_of::<routecap_backend>() - 24usize];
    ["Alignment of routecap_backend"][::core::mem::align_of::<routecap_backend>() - 8usize];
    ["Offset of field: routecap_backend::struct_size"][::core::mem::offset_of!(routecap_backend, struct_size) - 0usize];
    ["Offset of field: routecap_backend::available"][::core::mem::offset_of!(routecap_backend, available) - 4usize];
    ["Offset of field: routecap_backend::devices"][::core::mem::offset_of!(routecap_backend, devices) - 8usize];
    ["Offset of field: routecap_backend::reserved"][::core::mem::offset_of!(routecap_backend, reserved) - 12usize];
    ["Offset of field: routecap_backend::detail"][::core::mem::offset_of!(routecap_backend, detail) - 16usize];
};
impl Default for routecap_backend {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
unsafe extern "C" {
    /// Describe a backend of this build on this machine.
    ///
    /// @param backend  ROUTECAP_BACKEND_*. One that this library does not know is not available.
    /// @param info     Filled.
    pub fn routecap_backend_info(backend: i32, info: *mut routecap_backend) -> i32;
}
unsafe extern "C" {
    /// Fill a configuration with the defaults; `layers`, `k`, `experts` and `rows` remain to be set.
    ///
    /// @param config       Filled.
    /// @param struct_size  sizeof(routecap_config) of the caller.
    pub fn routecap_config_init(config: *mut routecap_config, struct_size: usize) -> i32;
}
unsafe extern "C" {
    /// Say how much memory a capturer of this configuration needs, without creating it.
    ///
    /// It asks neither the driver nor a device: it can be called before a fork, and where there is no
    /// device. Errors as routecap_capturer_create, as far as configuration and build tell them:
    /// ROUTECAP_ERR_ARGUMENT, ROUTECAP_ERR_NO_BACKEND (unknown, or not in this build).
    pub fn routecap_config_memory(config: *const routecap_config, memory: *mut routecap_memory) -> i32;
}
unsafe extern "C" {
    /// Create a capturer: all memory of the device and all page-locked memory is allocated here, none of it later on the forward path.
    ///
    /// Create it before CUDA graphs are captured. Not capturable. Starts one worker thread unless ROUTECAP_CONFIG_MANUAL_PROGRESS is set.
    ///
    /// A disabled capturer is its own handle and nothing else; of its configuration only `role` is looked at. Every function returns at once:
    /// those that give out rows (coverage, extract, finish, and their batches) with ROUTECAP_ERR_DISABLED, all others with ROUTECAP_OK, handles
    /// and counts 0. A mirror works on the forward path: up to the snapshot all calls do what they do on its owner, so that graphs are the same on
    /// all ranks. From issue on it is like a disabled capturer.
    ///
    /// @param config    The arrays it points to are copied.
    /// @param capturer  Receives the capturer, to be passed to routecap_capturer_destroy; NULL on error.
    /// @return ROUTECAP_ERR_NO_BACKEND: unknown, not in this build or not usable on this machine; ROUTECAP_ERR_DRIVER_TOO_OLD; ROUTECAP_ERR_DEVICE,
    ///         ROUTECAP_ERR_DEVICE_LOST; ROUTECAP_ERR_THREAD.
    pub fn routecap_capturer_create(config: *const routecap_config, capturer: *mut *mut routecap_capturer) -> i32;
}
unsafe extern "C" {
    /// Destroy a capturer. NULL is allowed.
    ///
    /// Waits until all steps issued so far have landed; after it returns the library touches no memory of the engine. Routings stay valid, and
    /// those of routecap_request_finish are ready, even where there is no memory left to hand their rows over: those rows are missing then. Threads
    /// that wait for a routing may go on waiting meanwhile. In a forked child it does nothing.
    pub fn routecap_capturer_destroy(capturer: *mut routecap_capturer);
}
unsafe extern "C" {
    /// Read the counters. Does not wait.
    pub fn routecap_capturer_stats(capturer: *const routecap_capturer, stats: *mut routecap_stats) -> i32;
}
unsafe extern "C" {
    /// Read the counters of every layer. Does not wait.
    ///
    /// @param stats      [count], filled for layers 0..count-1.
    /// @param stat_size  sizeof(routecap_layer_stats) of the caller.
    /// @param count      At most the capturer's layers (ROUTECAP_ERR_UNKNOWN_LAYER otherwise).
    pub fn routecap_capturer_layer_stats(
        capturer: *const routecap_capturer,
        stats: *mut routecap_layer_stats,
        stat_size: usize,
        count: usize,
    ) -> i32;
}
unsafe extern "C" {
    /// File the steps that have landed, on this thread: the whole work of the worker thread that a capturer with ROUTECAP_CONFIG_MANUAL_PROGRESS
    /// does not have, for processes that allow no threads, and for tests. The calls that wait make progress themselves; reading does not, and
    /// finds changes of a request only after it.
    ///
    /// Does not wait for the device. From any thread, one at a time (others wait for it). Without that flag it does nothing.
    pub fn routecap_capturer_progress(capturer: *mut routecap_capturer) -> i32;
}
/// Sink rows of one step that belong to one request.
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct routecap_span {
    pub request: routecap_request,
    /// row index, in the request, of the first row; the others follow. Not a rotary position
    pub position: u64,
    /// with DEVICE_POSITIONS: one past the highest position; rows outside the bounds are dropped. Otherwise 0
    pub position_end: u64,
    /// of the first row
    pub sink_row: u32,
    /// >= 1
    pub rows: u32,
    /// ROUTECAP_SPAN_*
    pub flags: u32,
    /// 0
    pub reserved: u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of routecap_span"][::core::mem::size_of::<routecap_span>() - 40usize];
    ["Alignment of routecap_span"][::core::mem::align_of::<routecap_span>() - 8usize];
    ["Offset of field: routecap_span::request"][::core::mem::offset_of!(routecap_span, request) - 0usize];
    ["Offset of field: routecap_span::position"][::core::mem::offset_of!(routecap_span, position) - 8usize];
    ["Offset of field: routecap_span::position_end"][::core::mem::offset_of!(routecap_span, position_end) - 16usize];
    ["Offset of field: routecap_span::sink_row"][::core::mem::offset_of!(routecap_span, sink_row) - 24usize];
    ["Offset of field: routecap_span::rows"][::core::mem::offset_of!(routecap_span, rows) - 28usize];
    ["Offset of field: routecap_span::flags"][::core::mem::offset_of!(routecap_span, flags) - 32usize];
    ["Offset of field: routecap_span::reserved"][::core::mem::offset_of!(routecap_span, reserved) - 36usize];
};
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct routecap_issue_options {
    pub struct_size: u32,
    /// ROUTECAP_SNAPSHOT_*
    pub snapshot: i32,
    /// kept with every row of the step: a weight version, for instance
    pub tag: u64,
    /// [device] the position of each sink row, up to the last that a span with DEVICE_POSITIONS names
    pub positions: *const ::core::ffi::c_void,
    /// I32 or I64, where positions is set
    pub positions_dtype: i32,
    /// 0
    pub reserved: u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of routecap_issue_options"][::core::mem::size_of::<routecap_issue_options>() - 32usize];
    ["Alignment of routecap_issue_options"][::core::mem::align_of::<routecap_issue_options>() - 8usize];
    ["Offset of field: routecap_issue_options::struct_size"][::core::mem::offset_of!(routecap_issue_options, struct_size) - 0usize];
    ["Offset of field: routecap_issue_options::snapshot"][::core::mem::offset_of!(routecap_issue_options, snapshot) - 4usize];
    ["Offset of field: routecap_issue_options::tag"][::core::mem::offset_of!(routecap_issue_options, tag) - 8usize];
    ["Offset of field: routecap_issue_options::positions"][::core::mem::offset_of!(routecap_issue_options, positions) - 16usize];
    ["Offset of field: routecap_issue_options::positions_dtype"]
        [::core::mem::offset_of!(routecap_issue_options, positions_dtype) - 24usize];
    ["Offset of field: routecap_issue_options::reserved"][::core::mem::offset_of!(routecap_issue_options, reserved) - 28usize];
};
impl Default for routecap_issue_options {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
unsafe extern "C" {
    /// Begin a step: forget what the sink holds and expect up to `rows` rows, sink rows 0..rows-1, from this forward pass.
    ///
    /// Belongs at the head of the forward pass, before the first write and before streams of micro-batches fork. It may be made on a stream of
    /// its own that is forked from the engine's and joined before the first write. Rows that are not begun are missing. A begin after a forward
    /// that was never issued discards that forward.
    ///
    /// On the host backend, where all slots hold steps in flight, begin files the oldest of them on the
    /// calling thread: nothing is lost there, also with ROUTECAP_CONFIG_MANUAL_PROGRESS. That takes as
    /// long as copying that step's rows does. If the worker thread is filing it already, begin waits for
    /// that instead. It never waits for whoever reads or waits. ROUTECAP_CONFIG_MAY_LOSE turns it off.
    ///
    /// Capturable. Does not block otherwise.
    ///
    /// @param rows  At most the capturer's rows (ROUTECAP_ERR_CAPACITY otherwise). May exceed the rows that spans will name later.
    pub fn routecap_step_begin(capturer: *mut routecap_capturer, rows: u32, stream: routecap_stream) -> i32;
}
unsafe extern "C" {
    /// Take a snapshot of the rows begun, so that the next forward may write the sink.
    ///
    /// Belongs behind the last write of the forward pass, on a stream that has joined all writers. It reads the sink and never writes it. A
    /// second snapshot of one step makes its rows missing. In a graph what follows on the stream does not wait for it, only the graph's end and
    /// the next begin do: put it behind the last router and it costs next to nothing; but write the sink again only after another begin.
    ///
    /// Capturable. Does not block. On the host backend the rows are copied before the call returns.
    pub fn routecap_step_snapshot(capturer: *mut routecap_capturer, stream: routecap_stream) -> i32;
}
unsafe extern "C" {
    /// Hand the last forward pass to the library: say which of its rows belong to which request. They will be filed in the
    /// background, in order of issue; the ticket refers to the step from now on.
    ///
    /// Call it after the forward, on a stream that is ordered behind it, and before anything that begins another. Sink rows that no span names are
    /// forgotten. Several spans may name one sink row (one token in several sequences). One request may have several spans: those with positions
    /// known to the host must not overlap unless they are speculative (trees). With no spans at all the step has landed at once.
    ///
    /// A span of an unknown or closed request, or one that could need more memory than the budget has,
    /// is skipped and counted; the others are not affected, and the call returns ROUTECAP_PARTIAL.
    /// Positions refused for memory count for the request's length: they are missing (REFUSED).
    ///
    /// Memory. A span is accepted if the budget has all that its rows could need: new pages, a copy of
    /// each page that it shares with a routing or another request, the tags of a page whose rows get a
    /// second tag, and for wide bounds of device positions a page for each row. What turns out not to be
    /// needed goes back when the step is filed. Rows that were accepted are refused later only where the
    /// system itself has no memory left: they are then missing (REFUSED), and counted. What close,
    /// truncate, take and finish have freed can be used at once: where the budget is exhausted, issue
    /// applies those calls itself, as far as no step in flight still needs the memory, before it refuses
    /// a span.
    ///
    /// Slots. Each forward fills one slot, which is free again once its step was filed. If none is free,
    /// the step is lost: it has a ticket and has landed, all its rows are missing (LOST), and the call
    /// returns ROUTECAP_LOST. When the slot is chosen depends on who makes the begin:
    ///   - begin is called for this forward (eager): begin chooses. To lose no step, have at most
    ///     slots - 1 steps in flight when you call begin. On the host backend nothing is ever lost.
    ///   - begin is replayed as part of a graph: the issue or discard before it has chosen. To lose no
    ///     step, have at most slots - 2 steps in flight when you call issue, so that one slot is left for
    ///     the forward that follows. If an issue found none, the forward after it is lost, whatever has
    ///     landed meanwhile, unless routecap_step_discard is called before it, which chooses again.
    ///
    /// Not capturable. Does not block otherwise. Takes memory from the system only to grow buffers that
    /// it keeps.
    ///
    /// @param spans      [count] of span_size bytes each; may be NULL if count is 0.
    /// @param span_size  sizeof(routecap_span) of the caller.
    /// @param options    NULL: the forward took its snapshot, tag 0.
    /// @param status     [count] receives for each span ROUTECAP_OK, ROUTECAP_ERR_UNKNOWN_REQUEST or ROUTECAP_ERR_NO_MEMORY; may be NULL.
    /// @param step       Receives the ticket; may be NULL. 0 on error.
    /// @return ROUTECAP_PARTIAL; ROUTECAP_LOST (also where spans were skipped); and with nothing changed, the step neither issued nor discarded:
    ///         ROUTECAP_ERR_ARGUMENT (a span without rows, unknown flags, positions beyond ROUTECAP_MAX_POSITION, empty bounds, no positions where a
    /// span
    ///         needs them); ROUTECAP_ERR_CAPACITY (sink rows outside the sink); ROUTECAP_ERR_OVERLAP; ROUTECAP_ERR_DTYPE (positions).
    pub fn routecap_step_issue(
        capturer: *mut routecap_capturer,
        spans: *const routecap_span,
        span_size: usize,
        count: usize,
        options: *const routecap_issue_options,
        status: *mut i32,
        step: *mut routecap_step,
        stream: routecap_stream,
    ) -> i32;
}
unsafe extern "C" {
    /// Forget the last forward pass: for warm-up, profiling and dummy runs that will not be issued. The next begin does the same.
    ///
    /// Not capturable. Does not block.
    pub fn routecap_step_discard(capturer: *mut routecap_capturer, stream: routecap_stream) -> i32;
}
unsafe extern "C" {
    /// Whether a step has landed, that is, whether its rows can be read.
    ///
    /// @return ROUTECAP_OK; ROUTECAP_LOST (landed, and lost; known for the last 1024 steps, ROUTECAP_OK before; the text says why: no slot was free,
    ///         or the call of the driver that failed); ROUTECAP_PENDING;
    ///         ROUTECAP_ERR_UNKNOWN_STEP (never issued).
    pub fn routecap_step_poll(capturer: *mut routecap_capturer, step: routecap_step) -> i32;
}
unsafe extern "C" {
    /// Wait until a step has landed.
    ///
    /// Waits. With ROUTECAP_CONFIG_MANUAL_PROGRESS it files what has landed itself.
    ///
    /// @param timeout_ns   Nanoseconds; 0 looks once; negative waits without limit.
    /// @param conflicting  Receives how many cells of the step were recorded twice (known for the last 1024 steps, 0 before); may be NULL.
    /// @return ROUTECAP_OK; ROUTECAP_LOST; ROUTECAP_PENDING (timeout); ROUTECAP_ERR_UNKNOWN_STEP (never issued). In checked mode also the slips that
    ///         the device found in this step, which has landed all the same.
    pub fn routecap_step_finalize(capturer: *mut routecap_capturer, step: routecap_step, timeout_ns: i64, conflicting: *mut u64) -> i32;
}
/// Where the ids of one layer, or of several at equal distances, are written.
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct routecap_sink {
    pub struct_size: u32,
    /// ROUTECAP_DTYPE_I16, _I32 or _I64
    pub dtype: i32,
    /// [device] element of row 0, column 0 of the (first) layer, aligned to its element size
    pub ids: *mut ::core::ffi::c_void,
    /// rows present
    pub rows: u32,
    /// columns of a row, next to one another
    pub k: u32,
    /// elements from one row to the next, >= k; 0 means k
    pub row_stride: i64,
    /// elements from one layer to the next; 0 means rows * row_stride
    pub layer_stride: i64,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of routecap_sink"][::core::mem::size_of::<routecap_sink>() - 40usize];
    ["Alignment of routecap_sink"][::core::mem::align_of::<routecap_sink>() - 8usize];
    ["Offset of field: routecap_sink::struct_size"][::core::mem::offset_of!(routecap_sink, struct_size) - 0usize];
    ["Offset of field: routecap_sink::dtype"][::core::mem::offset_of!(routecap_sink, dtype) - 4usize];
    ["Offset of field: routecap_sink::ids"][::core::mem::offset_of!(routecap_sink, ids) - 8usize];
    ["Offset of field: routecap_sink::rows"][::core::mem::offset_of!(routecap_sink, rows) - 16usize];
    ["Offset of field: routecap_sink::k"][::core::mem::offset_of!(routecap_sink, k) - 20usize];
    ["Offset of field: routecap_sink::row_stride"][::core::mem::offset_of!(routecap_sink, row_stride) - 24usize];
    ["Offset of field: routecap_sink::layer_stride"][::core::mem::offset_of!(routecap_sink, layer_stride) - 32usize];
};
impl Default for routecap_sink {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
unsafe extern "C" {
    /// Adopt memory of the engine as the sink of `layers` layers from `first_layer` on, instead of the library's.
    ///
    /// A router or fused kernel then writes its ids there and nothing has to be recorded. Only where nothing rewrites the ids
    /// before the snapshot (load balancing in place, masking of zero experts): there, record them before that instead. The
    /// memory must stay valid and in place until the capturer is destroyed, and as long as graphs that write it are replayed.
    /// Addresses never change: other memory for a layer that has adopted some, or whose address was given out, is refused, and after the first
    /// begin everything but what is bound already.
    ///
    /// Not capturable. One thread at a time, with the calls that take a stream.
    ///
    /// On a device the memory must be that device's own: neither managed, nor page-locked host memory, nor another device's
    /// (ROUTECAP_ERR_ARGUMENT).
    ///
    /// @param sink  rows >= the capturer's rows, k == the capturer's k.
    /// @return ROUTECAP_ERR_UNKNOWN_LAYER; ROUTECAP_ERR_SHAPE_MISMATCH (rows or strides too small, another k); ROUTECAP_ERR_DTYPE;
    ///         ROUTECAP_ERR_STATE (the address of a layer is fixed); ROUTECAP_ERR_DEVICE, ROUTECAP_ERR_DEVICE_LOST.
    pub fn routecap_sink_bind(capturer: *mut routecap_capturer, first_layer: u32, layers: u32, sink: *const routecap_sink) -> i32;
}
unsafe extern "C" {
    /// Where layer `layer` is written: what to give a router as its output of ids. From now on the address is fixed.
    ///
    /// Write a row at most once in a step, between its begin and its snapshot, in the order of the stream.
    ///
    /// @param sink  Filled; sink->ids is NULL if the layer has no memory yet (ROUTECAP_CONFIG_EXTERNAL_SINK), which leaves it unfixed.
    /// @return ROUTECAP_ERR_UNKNOWN_LAYER.
    pub fn routecap_sink_layer(capturer: *mut routecap_capturer, layer: u32, sink: *mut routecap_sink) -> i32;
}
/// Expert ids as a router leaves them: a matrix of rows x k_source elements. What it takes to make ids of this capturer from them: columns
/// at and after the capturer's k are dropped (fused shared experts); then `table`, if there is one, replaces an id by table[id], and an id
/// outside the table becomes invalid; then `offset` is added. An id that is outside the layer's range in the end makes its cell missing;
/// nothing wraps.
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct routecap_source {
    pub struct_size: u32,
    /// I16, I32, U32, I64 or ID16_BF16
    pub dtype: i32,
    /// [device] element of row 0, column 0
    pub ids: *const ::core::ffi::c_void,
    /// elements from one row to the next; 0 means k_source; arbitrary if there is one row
    pub row_stride: i64,
    /// elements from one column to the next; 0 means 1
    pub column_stride: i64,
    /// rows present, or the most of them where live_rows is set
    pub rows: u32,
    /// columns present, >= the capturer's k; 0 means k
    pub k_source: u32,
    /// [device] one number: only the first *live_rows rows hold ids; clamped to [0, rows]; NULL: all
    pub live_rows: *const i32,
    /// [device] one number, added to first_row; NULL: nothing is added
    pub row_base: *const i32,
    /// [device] [rows] the sink row of each source row, negative for none; first_row is not used then. NULL: in order
    pub row_index: *const i32,
    /// sink row of source row 0, where row_index is NULL
    pub first_row: u32,
    /// added to each id
    pub offset: i32,
    /// [device] [table_size] the id of each source id: a placement's physical-to-logical table; NULL: none
    pub table: *const i32,
    pub table_size: u32,
    /// 0 or ROUTECAP_SOURCE_OVERLAP
    pub flags: u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of routecap_source"][::core::mem::size_of::<routecap_source>() - 88usize];
    ["Alignment of routecap_source"][::core::mem::align_of::<routecap_source>() - 8usize];
    ["Offset of field: routecap_source::struct_size"][::core::mem::offset_of!(routecap_source, struct_size) - 0usize];
    ["Offset of field: routecap_source::dtype"][::core::mem::offset_of!(routecap_source, dtype) - 4usize];
    ["Offset of field: routecap_source::ids"][::core::mem::offset_of!(routecap_source, ids) - 8usize];
    ["Offset of field: routecap_source::row_stride"][::core::mem::offset_of!(routecap_source, row_stride) - 16usize];
    ["Offset of field: routecap_source::column_stride"][::core::mem::offset_of!(routecap_source, column_stride) - 24usize];
    ["Offset of field: routecap_source::rows"][::core::mem::offset_of!(routecap_source, rows) - 32usize];
    ["Offset of field: routecap_source::k_source"][::core::mem::offset_of!(routecap_source, k_source) - 36usize];
    ["Offset of field: routecap_source::live_rows"][::core::mem::offset_of!(routecap_source, live_rows) - 40usize];
    ["Offset of field: routecap_source::row_base"][::core::mem::offset_of!(routecap_source, row_base) - 48usize];
    ["Offset of field: routecap_source::row_index"][::core::mem::offset_of!(routecap_source, row_index) - 56usize];
    ["Offset of field: routecap_source::first_row"][::core::mem::offset_of!(routecap_source, first_row) - 64usize];
    ["Offset of field: routecap_source::offset"][::core::mem::offset_of!(routecap_source, offset) - 68usize];
    ["Offset of field: routecap_source::table"][::core::mem::offset_of!(routecap_source, table) - 72usize];
    ["Offset of field: routecap_source::table_size"][::core::mem::offset_of!(routecap_source, table_size) - 80usize];
    ["Offset of field: routecap_source::flags"][::core::mem::offset_of!(routecap_source, flags) - 84usize];
};
impl Default for routecap_source {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
unsafe extern "C" {
    /// Copy the ids that a router chose into the sink of one layer.
    ///
    /// Ways to bring ids into the sink, the cheapest first:
    /// - The router writes them there (routecap_sink_layer, routecap_sink_bind): nothing is launched. Not if anything rewrites them in place before
    ///   the snapshot: load balancing, masks of zero experts, shared experts appended to the same rows.
    /// - One call for many layers behind the last router (routecap_layers_record), if the ids of all of them still exist there.
    /// - One call per layer on a stream of its own, forked behind the router and joined before the snapshot.
    /// - One call per layer in line, with ROUTECAP_SOURCE_OVERLAP if the router and the consumer of its ids use programmatic dependent launch.
    /// README.md has what each costs.
    ///
    /// Call it after top-k and before anything rewrites the ids. Rows of one layer may come in several calls (micro-batches, chunks) as long as
    /// they are disjoint: of a row recorded twice one is kept, the first where the order is known. If begin and both records were made outside
    /// graph capture, with no snapshot, issue, discard or capture since, and neither row_index nor live_rows nor row_base, the second call is
    /// refused with ROUTECAP_ERR_CONFLICT; otherwise its cells are dropped, counted, and reported by routecap_step_finalize. Rows at or beyond
    /// the number begun are dropped and counted; without a begin, that is all rows.
    ///
    /// Capturable. Does not block. On the host backend the ids are copied before the call returns.
    ///
    /// @return ROUTECAP_ERR_UNKNOWN_LAYER; ROUTECAP_ERR_DTYPE; ROUTECAP_ERR_SHAPE_MISMATCH (k_source < k);
    ///         ROUTECAP_ERR_CAPACITY (first_row + rows outside the sink; nothing is written); ROUTECAP_ERR_CONFLICT (nothing is written);
    ///         ROUTECAP_ERR_STATE (the layer has no sink).
    pub fn routecap_layer_record(
        capturer: *mut routecap_capturer,
        layer: u32,
        source: *const routecap_source,
        stream: routecap_stream,
    ) -> i32;
}
/// The ids of one layer among several.
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct routecap_layer_source {
    pub layer: u32,
    /// 0
    pub reserved: u32,
    /// [device] as in routecap_source
    pub ids: *const ::core::ffi::c_void,
    /// [device] as in routecap_source; NULL for every layer if source.table_size is 0
    pub table: *const i32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of routecap_layer_source"][::core::mem::size_of::<routecap_layer_source>() - 24usize];
    ["Alignment of routecap_layer_source"][::core::mem::align_of::<routecap_layer_source>() - 8usize];
    ["Offset of field: routecap_layer_source::layer"][::core::mem::offset_of!(routecap_layer_source, layer) - 0usize];
    ["Offset of field: routecap_layer_source::reserved"][::core::mem::offset_of!(routecap_layer_source, reserved) - 4usize];
    ["Offset of field: routecap_layer_source::ids"][::core::mem::offset_of!(routecap_layer_source, ids) - 8usize];
    ["Offset of field: routecap_layer_source::table"][::core::mem::offset_of!(routecap_layer_source, table) - 16usize];
};
impl Default for routecap_layer_source {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
unsafe extern "C" {
    /// Copy the ids of several layers in one launch (of at most 64 layers each), where all of them are still there at the end of a forward pass.
    ///
    /// Inside a CUDA graph the ids of a layer may lie in memory that later layers use again: keep them in memory of their own.
    ///
    /// Otherwise as routecap_layer_record, once for each layer; if one of them is refused, nothing is recorded. A layer that is named twice is
    /// ROUTECAP_ERR_ARGUMENT.
    ///
    /// @param source      What the layers have in common; `ids` and `table` are NULL.
    /// @param layers      [count] of layer_size bytes each, each layer once.
    /// @param layer_size  sizeof(routecap_layer_source) of the caller.
    pub fn routecap_layers_record(
        capturer: *mut routecap_capturer,
        source: *const routecap_source,
        layers: *const routecap_layer_source,
        layer_size: usize,
        count: usize,
        stream: routecap_stream,
    ) -> i32;
}
/// How a router chooses k of its experts. The key of an expert is its score plus its bias. With groups, only experts of the groups_kept groups
/// with the largest group scores remain. The k largest keys win; of equal ones the lower id (of equal groups the lower group). Ids are in
/// order of falling keys, a column each. A NaN is scored as minus infinity would be, and its key is minus infinity; if the largest logit is
/// infinite, softmax counts logits equal to it as 1 and others as 0.
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct routecap_router {
    pub struct_size: u32,
    /// ROUTECAP_SCORE_*
    pub score: i32,
    /// ROUTECAP_GROUP_*
    pub group_score: i32,
    /// ROUTECAP_ROUTER_*
    pub flags: u32,
    /// of equal size, up to ROUTECAP_MAX_GROUPS; 0 or 1: no groups
    pub groups: u32,
    /// 1..groups, with k experts at least; not looked at without groups
    pub groups_kept: u32,
    /// weights are multiplied by it; 0 means 1
    pub scale: f32,
    /// see ROUTECAP_ROUTER_RENORMALIZE; routecap_router_init sets what the method's models use
    pub floor: f32,
    /// [device] [experts]; ranks experts and does not weigh them; NULL: none
    pub bias: *const ::core::ffi::c_void,
    /// F32, F16 or BF16, where bias is set
    pub bias_dtype: i32,
    /// rows of hash_table
    pub hash_tokens: u32,
    /// [device] [hash_tokens, k] ids by token: no key is looked at, logits serve for weights only; NULL: none
    pub hash_table: *const i32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of routecap_router"][::core::mem::size_of::<routecap_router>() - 56usize];
    ["Alignment of routecap_router"][::core::mem::align_of::<routecap_router>() - 8usize];
    ["Offset of field: routecap_router::struct_size"][::core::mem::offset_of!(routecap_router, struct_size) - 0usize];
    ["Offset of field: routecap_router::score"][::core::mem::offset_of!(routecap_router, score) - 4usize];
    ["Offset of field: routecap_router::group_score"][::core::mem::offset_of!(routecap_router, group_score) - 8usize];
    ["Offset of field: routecap_router::flags"][::core::mem::offset_of!(routecap_router, flags) - 12usize];
    ["Offset of field: routecap_router::groups"][::core::mem::offset_of!(routecap_router, groups) - 16usize];
    ["Offset of field: routecap_router::groups_kept"][::core::mem::offset_of!(routecap_router, groups_kept) - 20usize];
    ["Offset of field: routecap_router::scale"][::core::mem::offset_of!(routecap_router, scale) - 24usize];
    ["Offset of field: routecap_router::floor"][::core::mem::offset_of!(routecap_router, floor) - 28usize];
    ["Offset of field: routecap_router::bias"][::core::mem::offset_of!(routecap_router, bias) - 32usize];
    ["Offset of field: routecap_router::bias_dtype"][::core::mem::offset_of!(routecap_router, bias_dtype) - 40usize];
    ["Offset of field: routecap_router::hash_tokens"][::core::mem::offset_of!(routecap_router, hash_tokens) - 44usize];
    ["Offset of field: routecap_router::hash_table"][::core::mem::offset_of!(routecap_router, hash_table) - 48usize];
};
impl Default for routecap_router {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
unsafe extern "C" {
    /// Fill a router with a method in use; what that method takes from the model remains to be set.
    ///
    /// @param router       Filled.
    /// @param struct_size  sizeof(routecap_router) of the caller.
    /// @param method       ROUTECAP_METHOD_*.
    pub fn routecap_router_init(router: *mut routecap_router, struct_size: usize, method: i32) -> i32;
}
/// The logits of one layer: a matrix of rows x experts elements.
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct routecap_logits {
    pub struct_size: u32,
    /// F32, F16 or BF16
    pub dtype: i32,
    /// [device] element of row 0, column 0; may be NULL with a hash_table if weights is NULL
    pub logits: *const ::core::ffi::c_void,
    /// elements from one row to the next; 0 means experts
    pub row_stride: i64,
    /// elements from one column to the next; 0 means 1
    pub column_stride: i64,
    /// these five as in routecap_source
    pub rows: u32,
    pub first_row: u32,
    /// [device]
    pub live_rows: *const i32,
    /// [device]
    pub row_base: *const i32,
    /// [device] [rows]
    pub row_index: *const i32,
    /// [device] [rows] input token of each row, where the router has a hash_table
    pub tokens: *const ::core::ffi::c_void,
    /// I32 or I64, where tokens is set
    pub tokens_dtype: i32,
    /// columns: k or more, and no more than the layer's or ROUTECAP_MAX_ROUTED_EXPERTS; 0 means the layer's
    pub experts: u32,
    /// [device] [rows, weights_stride] receives the weight of each column, for every live row, also one that is not
    ///begun or was recorded before; NULL: none. A disabled capturer writes none
    pub weights: *mut f32,
    /// elements from one row to the next, >= k; 0 means k
    pub weights_stride: i64,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of routecap_logits"][::core::mem::size_of::<routecap_logits>() - 96usize];
    ["Alignment of routecap_logits"][::core::mem::align_of::<routecap_logits>() - 8usize];
    ["Offset of field: routecap_logits::struct_size"][::core::mem::offset_of!(routecap_logits, struct_size) - 0usize];
    ["Offset of field: routecap_logits::dtype"][::core::mem::offset_of!(routecap_logits, dtype) - 4usize];
    ["Offset of field: routecap_logits::logits"][::core::mem::offset_of!(routecap_logits, logits) - 8usize];
    ["Offset of field: routecap_logits::row_stride"][::core::mem::offset_of!(routecap_logits, row_stride) - 16usize];
    ["Offset of field: routecap_logits::column_stride"][::core::mem::offset_of!(routecap_logits, column_stride) - 24usize];
    ["Offset of field: routecap_logits::rows"][::core::mem::offset_of!(routecap_logits, rows) - 32usize];
    ["Offset of field: routecap_logits::first_row"][::core::mem::offset_of!(routecap_logits, first_row) - 36usize];
    ["Offset of field: routecap_logits::live_rows"][::core::mem::offset_of!(routecap_logits, live_rows) - 40usize];
    ["Offset of field: routecap_logits::row_base"][::core::mem::offset_of!(routecap_logits, row_base) - 48usize];
    ["Offset of field: routecap_logits::row_index"][::core::mem::offset_of!(routecap_logits, row_index) - 56usize];
    ["Offset of field: routecap_logits::tokens"][::core::mem::offset_of!(routecap_logits, tokens) - 64usize];
    ["Offset of field: routecap_logits::tokens_dtype"][::core::mem::offset_of!(routecap_logits, tokens_dtype) - 72usize];
    ["Offset of field: routecap_logits::experts"][::core::mem::offset_of!(routecap_logits, experts) - 76usize];
    ["Offset of field: routecap_logits::weights"][::core::mem::offset_of!(routecap_logits, weights) - 80usize];
    ["Offset of field: routecap_logits::weights_stride"][::core::mem::offset_of!(routecap_logits, weights_stride) - 88usize];
};
impl Default for routecap_logits {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
unsafe extern "C" {
    /// Choose experts from logits, into the sink of one layer.
    ///
    /// Rows go where routecap_layer_record would put them, and are kept or dropped by the same rules.
    ///
    /// Capturable. Does not block. On the host backend the work is done before the call returns.
    ///
    /// @param layer  One whose provenance is RECOMPUTED (ROUTECAP_ERR_STATE otherwise).
    /// @return ROUTECAP_ERR_UNKNOWN_LAYER; ROUTECAP_ERR_DTYPE (logits, bias or tokens); ROUTECAP_ERR_ARGUMENT (also groups that do not divide the
    /// experts,
    ///         groups kept with fewer than k experts, more experts than there may be, a hash_table without tokens);
    ///         ROUTECAP_ERR_CAPACITY; ROUTECAP_ERR_CONFLICT; ROUTECAP_ERR_STATE.
    pub fn routecap_layer_route(
        capturer: *mut routecap_capturer,
        layer: u32,
        router: *const routecap_router,
        logits: *const routecap_logits,
        stream: routecap_stream,
    ) -> i32;
}
/// What a layer's sink holds. Each row is in exactly one of the first three counts.
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct routecap_layer_probe {
    /// ROUTECAP_PROBE_*
    pub found: u32,
    /// no column was written
    pub rows_unwritten: u32,
    /// some were
    pub rows_incomplete: u32,
    /// all were
    pub rows_written: u32,
    /// of those that were written at least in part
    pub rows_out_of_range: u32,
    /// of those that were written, with ids in range
    pub rows_duplicate: u32,
    /// id of those in range; -1 if there is none
    pub lowest: i32,
    pub highest: i32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of routecap_layer_probe"][::core::mem::size_of::<routecap_layer_probe>() - 32usize];
    ["Alignment of routecap_layer_probe"][::core::mem::align_of::<routecap_layer_probe>() - 4usize];
    ["Offset of field: routecap_layer_probe::found"][::core::mem::offset_of!(routecap_layer_probe, found) - 0usize];
    ["Offset of field: routecap_layer_probe::rows_unwritten"][::core::mem::offset_of!(routecap_layer_probe, rows_unwritten) - 4usize];
    ["Offset of field: routecap_layer_probe::rows_incomplete"][::core::mem::offset_of!(routecap_layer_probe, rows_incomplete) - 8usize];
    ["Offset of field: routecap_layer_probe::rows_written"][::core::mem::offset_of!(routecap_layer_probe, rows_written) - 12usize];
    ["Offset of field: routecap_layer_probe::rows_out_of_range"]
        [::core::mem::offset_of!(routecap_layer_probe, rows_out_of_range) - 16usize];
    ["Offset of field: routecap_layer_probe::rows_duplicate"][::core::mem::offset_of!(routecap_layer_probe, rows_duplicate) - 20usize];
    ["Offset of field: routecap_layer_probe::lowest"][::core::mem::offset_of!(routecap_layer_probe, lowest) - 24usize];
    ["Offset of field: routecap_layer_probe::highest"][::core::mem::offset_of!(routecap_layer_probe, highest) - 28usize];
};
unsafe extern "C" {
    /// Look at what the last forward pass wrote: for one warm-up at start, of many different tokens, to learn which layers are captured and which
    /// only seem to be.
    ///
    /// Call it between a begin with its forward and what issues or discards that; it changes nothing. Waits until the stream has run. Not
    /// capturable. A disabled capturer fills zeros.
    ///
    /// @param rows        The rows to look at, from row 0 on: those of the forward that were not padding. At most those begun.
    /// @param layers      [count], filled for layers 0..count-1.
    /// @param layer_size  sizeof(routecap_layer_probe) of the caller.
    /// @param count       At most the capturer's layers (ROUTECAP_ERR_UNKNOWN_LAYER otherwise).
    /// @return ROUTECAP_OK; ROUTECAP_PARTIAL (something was found: see each layer); ROUTECAP_ERR_CAPACITY; ROUTECAP_ERR_STATE (no row is begun).
    pub fn routecap_capturer_probe(
        capturer: *mut routecap_capturer,
        rows: u32,
        layers: *mut routecap_layer_probe,
        layer_size: usize,
        count: usize,
        stream: routecap_stream,
    ) -> i32;
}
/// A block of missing cells: consecutive rows, consecutive layers, one reason. Rows with equal missing cells and reasons follow one another
/// in one run as long as possible; in a run, neighbouring layers with one reason are one block. Blocks are ordered by row, then layer.
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct routecap_missing {
    /// position of the first row
    pub first: u64,
    pub rows: u64,
    pub first_layer: u32,
    pub layers: u32,
    /// ROUTECAP_MISSING_*
    pub reason: i32,
    /// 0
    pub reserved: u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of routecap_missing"][::core::mem::size_of::<routecap_missing>() - 32usize];
    ["Alignment of routecap_missing"][::core::mem::align_of::<routecap_missing>() - 8usize];
    ["Offset of field: routecap_missing::first"][::core::mem::offset_of!(routecap_missing, first) - 0usize];
    ["Offset of field: routecap_missing::rows"][::core::mem::offset_of!(routecap_missing, rows) - 8usize];
    ["Offset of field: routecap_missing::first_layer"][::core::mem::offset_of!(routecap_missing, first_layer) - 16usize];
    ["Offset of field: routecap_missing::layers"][::core::mem::offset_of!(routecap_missing, layers) - 20usize];
    ["Offset of field: routecap_missing::reason"][::core::mem::offset_of!(routecap_missing, reason) - 24usize];
    ["Offset of field: routecap_missing::reserved"][::core::mem::offset_of!(routecap_missing, reserved) - 28usize];
};
/// How much of a range of rows is there.
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct routecap_coverage {
    pub struct_size: u32,
    pub layers: u32,
    /// the range: position of its first row
    pub first: u64,
    /// and its rows
    pub rows: u64,
    /// one past the last row that exists, of the request or routing
    pub length: u64,
    /// every cell valid
    pub rows_complete: u64,
    /// some cells valid
    pub rows_partial: u64,
    /// no cell valid
    pub rows_empty: u64,
    pub cells_missing: u64,
    /// how many blocks of missing cells there are
    pub blocks: u64,
    /// valid, of layers whose provenance is RECOMPUTED
    pub cells_recomputed: u64,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of routecap_coverage"][::core::mem::size_of::<routecap_coverage>() - 80usize];
    ["Alignment of routecap_coverage"][::core::mem::align_of::<routecap_coverage>() - 8usize];
    ["Offset of field: routecap_coverage::struct_size"][::core::mem::offset_of!(routecap_coverage, struct_size) - 0usize];
    ["Offset of field: routecap_coverage::layers"][::core::mem::offset_of!(routecap_coverage, layers) - 4usize];
    ["Offset of field: routecap_coverage::first"][::core::mem::offset_of!(routecap_coverage, first) - 8usize];
    ["Offset of field: routecap_coverage::rows"][::core::mem::offset_of!(routecap_coverage, rows) - 16usize];
    ["Offset of field: routecap_coverage::length"][::core::mem::offset_of!(routecap_coverage, length) - 24usize];
    ["Offset of field: routecap_coverage::rows_complete"][::core::mem::offset_of!(routecap_coverage, rows_complete) - 32usize];
    ["Offset of field: routecap_coverage::rows_partial"][::core::mem::offset_of!(routecap_coverage, rows_partial) - 40usize];
    ["Offset of field: routecap_coverage::rows_empty"][::core::mem::offset_of!(routecap_coverage, rows_empty) - 48usize];
    ["Offset of field: routecap_coverage::cells_missing"][::core::mem::offset_of!(routecap_coverage, cells_missing) - 56usize];
    ["Offset of field: routecap_coverage::blocks"][::core::mem::offset_of!(routecap_coverage, blocks) - 64usize];
    ["Offset of field: routecap_coverage::cells_recomputed"][::core::mem::offset_of!(routecap_coverage, cells_recomputed) - 72usize];
};
/// How ids are written into the caller's memory.
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct routecap_copy_options {
    pub struct_size: u32,
    /// U8, I16, U16, I32, U32 or I64. Required
    pub dtype: i32,
    /// ROUTECAP_ORDER_*: of the dense layout and of the mask
    pub order: i32,
    /// as of routecap_request_extract
    pub flags: u32,
    /// layers to copy: the first
    pub first_layer: u32,
    /// and how many; 0 means all from first_layer on
    pub layers: u32,
    /// elements from one row to the next; 0 means that of the dense layout
    pub row_stride: i64,
    /// elements from one layer to the next; likewise
    pub layer_stride: i64,
    /// for the ids of missing cells, in two's complement; -1 by routecap_copy_options_init
    pub fill: i64,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of routecap_copy_options"][::core::mem::size_of::<routecap_copy_options>() - 48usize];
    ["Alignment of routecap_copy_options"][::core::mem::align_of::<routecap_copy_options>() - 8usize];
    ["Offset of field: routecap_copy_options::struct_size"][::core::mem::offset_of!(routecap_copy_options, struct_size) - 0usize];
    ["Offset of field: routecap_copy_options::dtype"][::core::mem::offset_of!(routecap_copy_options, dtype) - 4usize];
    ["Offset of field: routecap_copy_options::order"][::core::mem::offset_of!(routecap_copy_options, order) - 8usize];
    ["Offset of field: routecap_copy_options::flags"][::core::mem::offset_of!(routecap_copy_options, flags) - 12usize];
    ["Offset of field: routecap_copy_options::first_layer"][::core::mem::offset_of!(routecap_copy_options, first_layer) - 16usize];
    ["Offset of field: routecap_copy_options::layers"][::core::mem::offset_of!(routecap_copy_options, layers) - 20usize];
    ["Offset of field: routecap_copy_options::row_stride"][::core::mem::offset_of!(routecap_copy_options, row_stride) - 24usize];
    ["Offset of field: routecap_copy_options::layer_stride"][::core::mem::offset_of!(routecap_copy_options, layer_stride) - 32usize];
    ["Offset of field: routecap_copy_options::fill"][::core::mem::offset_of!(routecap_copy_options, fill) - 40usize];
};
unsafe extern "C" {
    /// Fill copy options with the defaults: fill -1, everything else 0; `dtype` remains to be set.
    ///
    /// @param options      Filled.
    /// @param struct_size  sizeof(routecap_copy_options) of the caller.
    pub fn routecap_copy_options_init(options: *mut routecap_copy_options, struct_size: usize) -> i32;
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct routecap_open_options {
    pub struct_size: u32,
    /// ROUTECAP_POLICY_*
    pub policy: i32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of routecap_open_options"][::core::mem::size_of::<routecap_open_options>() - 8usize];
    ["Alignment of routecap_open_options"][::core::mem::align_of::<routecap_open_options>() - 4usize];
    ["Offset of field: routecap_open_options::struct_size"][::core::mem::offset_of!(routecap_open_options, struct_size) - 0usize];
    ["Offset of field: routecap_open_options::policy"][::core::mem::offset_of!(routecap_open_options, policy) - 4usize];
};
unsafe extern "C" {
    /// Open requests.
    ///
    /// @param options   For all of them; NULL: the defaults.
    /// @param requests  [count] receives the handles.
    /// @return ROUTECAP_ERR_TOO_MANY_REQUESTS (none is opened).
    pub fn routecap_request_open(
        capturer: *mut routecap_capturer,
        options: *const routecap_open_options,
        requests: *mut routecap_request,
        count: usize,
    ) -> i32;
}
unsafe extern "C" {
    /// Settle the speculative rows of one request in one step: keep some, drop the others.
    ///
    /// May come before the step has landed and after later steps were issued. The rows of a step are
    /// settled once. The first row of a verification, which is no draft, may be in the same span: it is
    /// then one of those to keep. Rows that were lost, refused for memory or cut by a truncate in
    /// between are accepted too, without effect but for the length of lost and refused ones.
    ///
    /// A kept row takes its place in the order of rows when accept is called: behind the rows of every
    /// step that was issued before the call, and before those of every later step. So a row that was
    /// issued for the same position before accept was called comes first.
    ///
    /// @param rows   NULL: the first `count` rows. Otherwise [count] strictly ascending indices into the request's speculative rows of
    ///               that step as they were issued, in the order of the spans: the accepted path of a tree.
    /// @param count  How many rows to keep; 0 keeps none.
    /// @return ROUTECAP_ERR_UNKNOWN_REQUEST; ROUTECAP_ERR_UNKNOWN_STEP (no speculative rows of this request wait there: none were issued, or they are
    ///         settled); ROUTECAP_ERR_OUT_OF_RANGE (more rows than there are, or an index outside them).
    pub fn routecap_request_accept(
        capturer: *mut routecap_capturer,
        request: routecap_request,
        step: routecap_step,
        rows: *const u32,
        count: usize,
    ) -> i32;
}
/// One call of routecap_request_accept.
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct routecap_accept_item {
    pub request: routecap_request,
    pub step: routecap_step,
    pub rows: *const u32,
    pub count: u64,
    /// receives the status of this item
    pub status: i32,
    /// 0
    pub reserved: i32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of routecap_accept_item"][::core::mem::size_of::<routecap_accept_item>() - 40usize];
    ["Alignment of routecap_accept_item"][::core::mem::align_of::<routecap_accept_item>() - 8usize];
    ["Offset of field: routecap_accept_item::request"][::core::mem::offset_of!(routecap_accept_item, request) - 0usize];
    ["Offset of field: routecap_accept_item::step"][::core::mem::offset_of!(routecap_accept_item, step) - 8usize];
    ["Offset of field: routecap_accept_item::rows"][::core::mem::offset_of!(routecap_accept_item, rows) - 16usize];
    ["Offset of field: routecap_accept_item::count"][::core::mem::offset_of!(routecap_accept_item, count) - 24usize];
    ["Offset of field: routecap_accept_item::status"][::core::mem::offset_of!(routecap_accept_item, status) - 32usize];
    ["Offset of field: routecap_accept_item::reserved"][::core::mem::offset_of!(routecap_accept_item, reserved) - 36usize];
};
impl Default for routecap_accept_item {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
unsafe extern "C" {
    /// Settle the speculative rows of many requests in one call.
    ///
    /// @param items      [count] of item_size bytes each.
    /// @param item_size  sizeof(routecap_accept_item) of the caller.
    /// @return ROUTECAP_OK; ROUTECAP_PARTIAL.
    pub fn routecap_request_accept_batch(
        capturer: *mut routecap_capturer,
        items: *mut routecap_accept_item,
        item_size: usize,
        count: usize,
    ) -> i32;
}
unsafe extern "C" {
    /// Cut a request: rows at and after position `rows` are gone, whether settled, provisional or in flight. Later spans may record those
    /// positions anew. Nothing happens if the request is shorter.
    ///
    /// @return ROUTECAP_ERR_UNKNOWN_REQUEST.
    pub fn routecap_request_truncate(capturer: *mut routecap_capturer, request: routecap_request, rows: u64) -> i32;
}
unsafe extern "C" {
    /// Open a request that begins with rows 0..rows-1 of another: several samples of one prompt, a beam. The pages are shared, not copied. Rows in
    /// flight are included once they land; provisional rows are not. Without memory for its table of pages the child's shared rows are missing.
    ///
    /// Until the rows of steps in flight have landed, the shared rows cannot be taken from the parent (ROUTECAP_ERR_NOT_READY).
    ///
    /// @param rows   At most the parent's length (ROUTECAP_ERR_OUT_OF_RANGE otherwise); ROUTECAP_ROWS_ALL: its length at this moment.
    /// @param child  Receives the handle. It has the parent's policy.
    /// @return ROUTECAP_ERR_UNKNOWN_REQUEST; ROUTECAP_ERR_OUT_OF_RANGE; ROUTECAP_ERR_TOO_MANY_REQUESTS.
    pub fn routecap_request_fork(
        capturer: *mut routecap_capturer,
        request: routecap_request,
        rows: u64,
        child: *mut routecap_request,
    ) -> i32;
}
unsafe extern "C" {
    /// Supply rows of a routing as rows of a request: the positions before `rows` that an engine took from its prefix cache and did not compute,
    /// from the routing of the request that did. Whether both really have the same tokens there is the caller's knowledge.
    ///
    /// Positions are those of the routing. Cells that the request has already are kept, also with ROUTECAP_POLICY_REPLACE. Pages are shared where
    /// their rows line up; where they do not, rows are copied, or refused for memory and missing. The request's length becomes at least the
    /// end of what was attached.
    ///
    /// @param routing  Retained as long as needed. May be pending if it comes from a request of the same capturer.
    /// @param rows     One past the last position to attach; at most the end of the routing; ROUTECAP_ROWS_ALL: its end.
    /// @return ROUTECAP_ERR_UNKNOWN_REQUEST; ROUTECAP_ERR_SHAPE_MISMATCH (also a layer that is recomputed in the routing and captured here);
    ///         ROUTECAP_ERR_OUT_OF_RANGE (rows beyond the routing);
    ///         ROUTECAP_ERR_NOT_READY (pending, of another capturer).
    pub fn routecap_request_attach(
        capturer: *mut routecap_capturer,
        request: routecap_request,
        routing: *const routecap_routing,
        rows: u64,
    ) -> i32;
}
unsafe extern "C" {
    /// Say which cells of a range of rows are there and which are missing.
    ///
    /// @param first         Position of the first row.
    /// @param rows          How many; ROUTECAP_ROWS_ALL; ROUTECAP_ROWS_LANDED.
    /// @param coverage      Filled.
    /// @param missing       [capacity] receives the first blocks; may be NULL if capacity is 0.
    /// @param missing_size  sizeof(routecap_missing) of the caller.
    /// @return ROUTECAP_OK; ROUTECAP_INCOMPLETE (also if nothing at all is there); ROUTECAP_ERR_UNKNOWN_REQUEST; ROUTECAP_ERR_OUT_OF_RANGE;
    ///         ROUTECAP_ERR_NOT_READY; ROUTECAP_ERR_DISABLED.
    pub fn routecap_request_coverage(
        capturer: *mut routecap_capturer,
        request: routecap_request,
        first: u64,
        rows: u64,
        coverage: *mut routecap_coverage,
        missing: *mut routecap_missing,
        missing_size: usize,
        capacity: usize,
    ) -> i32;
}
unsafe extern "C" {
    /// Read rows of a request into a routing, at any time of its life.
    ///
    /// share and take cost a few nanoseconds per page; copy costs one pass over the rows. Their memory
    /// counts in the budget until the routing is freed; copy takes new memory from it, and so does a
    /// take that leaves rows on both sides in one page. Rows that drafts or steps in flight name too may
    /// have to be copied later: memory for that is reserved now, or the call returns
    /// ROUTECAP_ERR_NO_MEMORY.
    ///
    /// @param first    Position of the first row, at most the length.
    /// @param rows     How many; ROUTECAP_ROWS_ALL; ROUTECAP_ROWS_LANDED; 0 gives a routing without rows.
    /// @param mode     ROUTECAP_EXTRACT_*.
    /// @param flags    0 or ROUTECAP_READ_STRICT, with or without ROUTECAP_READ_ALLOW_RECOMPUTED.
    /// @param routing  Receives the routing, to be freed with routecap_routing_free; NULL on error.
    /// @return ROUTECAP_OK; ROUTECAP_INCOMPLETE (the valid cells are delivered); ROUTECAP_NOT_CAPTURED (a routing of missing rows);
    ///         ROUTECAP_ERR_UNKNOWN_REQUEST; ROUTECAP_ERR_OUT_OF_RANGE; ROUTECAP_ERR_NOT_READY; ROUTECAP_ERR_INCOMPLETE (strict);
    ///         ROUTECAP_ERR_RECOMPUTED (strict); ROUTECAP_ERR_DISABLED.
    pub fn routecap_request_extract(
        capturer: *mut routecap_capturer,
        request: routecap_request,
        first: u64,
        rows: u64,
        mode: i32,
        flags: u32,
        routing: *mut *mut routecap_routing,
    ) -> i32;
}
/// One call of routecap_request_extract.
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct routecap_extract_item {
    pub request: routecap_request,
    pub first: u64,
    pub rows: u64,
    pub mode: i32,
    pub flags: u32,
    /// receives the routing
    pub routing: *mut routecap_routing,
    /// receives the status of this item
    pub status: i32,
    /// 0
    pub reserved: i32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of routecap_extract_item"][::core::mem::size_of::<routecap_extract_item>() - 48usize];
    ["Alignment of routecap_extract_item"][::core::mem::align_of::<routecap_extract_item>() - 8usize];
    ["Offset of field: routecap_extract_item::request"][::core::mem::offset_of!(routecap_extract_item, request) - 0usize];
    ["Offset of field: routecap_extract_item::first"][::core::mem::offset_of!(routecap_extract_item, first) - 8usize];
    ["Offset of field: routecap_extract_item::rows"][::core::mem::offset_of!(routecap_extract_item, rows) - 16usize];
    ["Offset of field: routecap_extract_item::mode"][::core::mem::offset_of!(routecap_extract_item, mode) - 24usize];
    ["Offset of field: routecap_extract_item::flags"][::core::mem::offset_of!(routecap_extract_item, flags) - 28usize];
    ["Offset of field: routecap_extract_item::routing"][::core::mem::offset_of!(routecap_extract_item, routing) - 32usize];
    ["Offset of field: routecap_extract_item::status"][::core::mem::offset_of!(routecap_extract_item, status) - 40usize];
    ["Offset of field: routecap_extract_item::reserved"][::core::mem::offset_of!(routecap_extract_item, reserved) - 44usize];
};
impl Default for routecap_extract_item {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
unsafe extern "C" {
    /// Read rows of many requests in one call.
    ///
    /// @param items      [count] of item_size bytes each.
    /// @param item_size  sizeof(routecap_extract_item) of the caller.
    /// @return ROUTECAP_OK; ROUTECAP_PARTIAL; ROUTECAP_ERR_DISABLED.
    pub fn routecap_request_extract_batch(
        capturer: *mut routecap_capturer,
        items: *mut routecap_extract_item,
        item_size: usize,
        count: usize,
    ) -> i32;
}
unsafe extern "C" {
    /// Copy rows of a request to the caller's memory without making a routing.
    ///
    /// A fill that, in this dtype, is an expert id needs a mask or ROUTECAP_READ_STRICT: missing cells must not pass for routing. With 8 bits and
    /// 256 experts every fill is one. Waits as reading does.
    ///
    /// @param first       Position of the first row, at most the length.
    /// @param rows        How many; ROUTECAP_ROWS_ALL; ROUTECAP_ROWS_LANDED.
    /// @param dst         [rows, layers, k] elements of options->dtype in the layout of options; NULL with dst_bytes 0 to ask for the size, which
    ///                    returns ROUTECAP_ERR_BUFFER_TOO_SMALL.
    /// @param dst_bytes   Size of dst.
    /// @param mask        [rows, layers] or [layers, rows] bytes, as the order says: 1 where the cell is valid, otherwise 0. NULL: none.
    /// @param mask_bytes  Size of mask.
    /// @param needed      Receives the bytes that dst needs; may be NULL. Set on ROUTECAP_ERR_BUFFER_TOO_SMALL too.
    /// @return As routecap_request_extract, and ROUTECAP_ERR_BUFFER_TOO_SMALL (dst or mask; nothing is written);
    ///         ROUTECAP_ERR_DTYPE (ids up to experts-1, or the fill, do not fit); ROUTECAP_ERR_UNKNOWN_LAYER;
    ///         ROUTECAP_ERR_ARGUMENT (strides that do not put all layers of a row before the next row, or all rows of a layer before the next layer;
    /// a
    ///         fill that is an expert id).
    pub fn routecap_request_extract_into(
        capturer: *mut routecap_capturer,
        request: routecap_request,
        first: u64,
        rows: u64,
        options: *const routecap_copy_options,
        dst: *mut ::core::ffi::c_void,
        dst_bytes: usize,
        mask: *mut u8,
        mask_bytes: usize,
        needed: *mut u64,
    ) -> i32;
}
unsafe extern "C" {
    /// End a request and get its rows: the ordinary end.
    ///
    /// The handle is stale at once. Steps issued before still file into the routing, which is ready when the last of them has landed; nobody waits
    /// here. Speculative rows that were not accepted are dropped. The routing begins at position 0; rows that were taken before are missing in it.
    ///
    /// @param rows     The routing has exactly so many rows: later ones are cut, absent ones are missing. A sequence of S tokens has S-1, whatever
    /// was
    ///                 issued ahead. ROUTECAP_ROWS_ALL: the request's length, rows issued ahead included.
    /// @param routing  Receives the routing, to be freed with routecap_routing_free; see routecap_routing_wait.
    /// @return ROUTECAP_ERR_UNKNOWN_REQUEST; ROUTECAP_ERR_OUT_OF_RANGE (rows beyond ROUTECAP_MAX_POSITION); ROUTECAP_ERR_DISABLED.
    pub fn routecap_request_finish(
        capturer: *mut routecap_capturer,
        request: routecap_request,
        rows: u64,
        routing: *mut *mut routecap_routing,
    ) -> i32;
}
/// One call of routecap_request_finish.
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct routecap_finish_item {
    pub request: routecap_request,
    pub rows: u64,
    /// receives the routing
    pub routing: *mut routecap_routing,
    /// receives the status of this item
    pub status: i32,
    /// 0
    pub reserved: i32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of routecap_finish_item"][::core::mem::size_of::<routecap_finish_item>() - 32usize];
    ["Alignment of routecap_finish_item"][::core::mem::align_of::<routecap_finish_item>() - 8usize];
    ["Offset of field: routecap_finish_item::request"][::core::mem::offset_of!(routecap_finish_item, request) - 0usize];
    ["Offset of field: routecap_finish_item::rows"][::core::mem::offset_of!(routecap_finish_item, rows) - 8usize];
    ["Offset of field: routecap_finish_item::routing"][::core::mem::offset_of!(routecap_finish_item, routing) - 16usize];
    ["Offset of field: routecap_finish_item::status"][::core::mem::offset_of!(routecap_finish_item, status) - 24usize];
    ["Offset of field: routecap_finish_item::reserved"][::core::mem::offset_of!(routecap_finish_item, reserved) - 28usize];
};
impl Default for routecap_finish_item {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
unsafe extern "C" {
    /// End many requests in one call.
    ///
    /// @param items      [count] of item_size bytes each.
    /// @param item_size  sizeof(routecap_finish_item) of the caller.
    /// @return ROUTECAP_OK; ROUTECAP_PARTIAL (see the status of each item); ROUTECAP_ERR_DISABLED.
    pub fn routecap_request_finish_batch(
        capturer: *mut routecap_capturer,
        items: *mut routecap_finish_item,
        item_size: usize,
        count: usize,
    ) -> i32;
}
unsafe extern "C" {
    /// End a request and drop its rows: an abort, or a preemption whose rows are not wanted. Rows in flight are dropped when they land.
    ///
    /// @param request  0 is allowed and ignored.
    /// @return ROUTECAP_ERR_UNKNOWN_REQUEST.
    pub fn routecap_request_close(capturer: *mut routecap_capturer, request: routecap_request) -> i32;
}
unsafe extern "C" {
    /// End many requests and drop their rows.
    ///
    /// @param requests  [count]; 0 is allowed and ignored.
    /// @param status    [count] receives the status of each; may be NULL.
    /// @return ROUTECAP_OK; ROUTECAP_PARTIAL.
    pub fn routecap_request_close_batch(
        capturer: *mut routecap_capturer,
        requests: *const routecap_request,
        status: *mut i32,
        count: usize,
    ) -> i32;
}
/// Consecutive rows whose ids lie next to one another in memory.
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct routecap_segment {
    /// position of the first row
    pub first: u64,
    pub rows: u64,
    /// [rows, layers, k] in C order; NULL: all cells of these rows are missing, for `reason`
    pub ids: *const ::core::ffi::c_void,
    /// [rows, validity_bytes]: bit l % 8 of byte l / 8 is set if layer l is valid; NULL: all are
    pub validity: *const u8,
    /// [rows] the tag of each row, without meaning where the row is not there; NULL: `tag` is that of all
    pub tags: *const u64,
    pub tag: u64,
    /// where ids is NULL: why these rows are not there, one of ROUTECAP_MISSING_*; otherwise 0
    pub reason: i32,
    /// 0
    pub reserved: u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of routecap_segment"][::core::mem::size_of::<routecap_segment>() - 56usize];
    ["Alignment of routecap_segment"][::core::mem::align_of::<routecap_segment>() - 8usize];
    ["Offset of field: routecap_segment::first"][::core::mem::offset_of!(routecap_segment, first) - 0usize];
    ["Offset of field: routecap_segment::rows"][::core::mem::offset_of!(routecap_segment, rows) - 8usize];
    ["Offset of field: routecap_segment::ids"][::core::mem::offset_of!(routecap_segment, ids) - 16usize];
    ["Offset of field: routecap_segment::validity"][::core::mem::offset_of!(routecap_segment, validity) - 24usize];
    ["Offset of field: routecap_segment::tags"][::core::mem::offset_of!(routecap_segment, tags) - 32usize];
    ["Offset of field: routecap_segment::tag"][::core::mem::offset_of!(routecap_segment, tag) - 40usize];
    ["Offset of field: routecap_segment::reason"][::core::mem::offset_of!(routecap_segment, reason) - 48usize];
    ["Offset of field: routecap_segment::reserved"][::core::mem::offset_of!(routecap_segment, reserved) - 52usize];
};
impl Default for routecap_segment {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
/// A routing's contents, in place. The k ids of a cell that is not valid have no meaning, but for the first: its reason,
/// ROUTECAP_MISSING_*, or UNWRITTEN where it is anything else, as it may be in foreign bytes.
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct routecap_view {
    pub struct_size: u32,
    /// of the ids: U8 if experts <= 256, otherwise I16
    pub dtype: i32,
    pub layers: u32,
    pub k: u32,
    /// the most of any layer
    pub experts: u32,
    /// per row
    pub validity_bytes: u32,
    /// ROUTECAP_ID_SPACE_*
    pub id_space: i32,
    /// 1: no cell is missing
    pub complete: i32,
    /// position of the first row
    pub first: u64,
    pub rows: u64,
    /// [layers] index of each captured layer in the decoder
    pub layer_map: *const i32,
    /// [layers]
    pub layer_experts: *const u32,
    /// [segment_count] together exactly the rows, in order
    pub segments: *const routecap_segment,
    /// bytes from one segment to the next
    pub segment_size: usize,
    pub segment_count: usize,
    /// [layers] ROUTECAP_PROVENANCE_*
    pub layer_provenance: *const i32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of routecap_view"][::core::mem::size_of::<routecap_view>() - 96usize];
    ["Alignment of routecap_view"][::core::mem::align_of::<routecap_view>() - 8usize];
    ["Offset of field: routecap_view::struct_size"][::core::mem::offset_of!(routecap_view, struct_size) - 0usize];
    ["Offset of field: routecap_view::dtype"][::core::mem::offset_of!(routecap_view, dtype) - 4usize];
    ["Offset of field: routecap_view::layers"][::core::mem::offset_of!(routecap_view, layers) - 8usize];
    ["Offset of field: routecap_view::k"][::core::mem::offset_of!(routecap_view, k) - 12usize];
    ["Offset of field: routecap_view::experts"][::core::mem::offset_of!(routecap_view, experts) - 16usize];
    ["Offset of field: routecap_view::validity_bytes"][::core::mem::offset_of!(routecap_view, validity_bytes) - 20usize];
    ["Offset of field: routecap_view::id_space"][::core::mem::offset_of!(routecap_view, id_space) - 24usize];
    ["Offset of field: routecap_view::complete"][::core::mem::offset_of!(routecap_view, complete) - 28usize];
    ["Offset of field: routecap_view::first"][::core::mem::offset_of!(routecap_view, first) - 32usize];
    ["Offset of field: routecap_view::rows"][::core::mem::offset_of!(routecap_view, rows) - 40usize];
    ["Offset of field: routecap_view::layer_map"][::core::mem::offset_of!(routecap_view, layer_map) - 48usize];
    ["Offset of field: routecap_view::layer_experts"][::core::mem::offset_of!(routecap_view, layer_experts) - 56usize];
    ["Offset of field: routecap_view::segments"][::core::mem::offset_of!(routecap_view, segments) - 64usize];
    ["Offset of field: routecap_view::segment_size"][::core::mem::offset_of!(routecap_view, segment_size) - 72usize];
    ["Offset of field: routecap_view::segment_count"][::core::mem::offset_of!(routecap_view, segment_count) - 80usize];
    ["Offset of field: routecap_view::layer_provenance"][::core::mem::offset_of!(routecap_view, layer_provenance) - 88usize];
};
impl Default for routecap_view {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
unsafe extern "C" {
    /// Wait until a routing is ready. Those of extract, split, slice and merge always are.
    ///
    /// Waits. With ROUTECAP_CONFIG_MANUAL_PROGRESS it files what has landed itself.
    ///
    /// @param timeout_ns  Nanoseconds; 0 looks once; negative waits without limit.
    /// @return ROUTECAP_OK (ready and complete); ROUTECAP_INCOMPLETE (ready); ROUTECAP_NOT_CAPTURED (ready); ROUTECAP_PENDING (timeout).
    pub fn routecap_routing_wait(routing: *const routecap_routing, timeout_ns: i64) -> i32;
}
unsafe extern "C" {
    /// Whether a routing is ready. Does not wait, and makes no progress.
    ///
    /// @return As routecap_routing_wait.
    pub fn routecap_routing_poll(routing: *const routecap_routing) -> i32;
}
unsafe extern "C" {
    /// Look at a routing in place, without a copy.
    ///
    /// @param view  Filled. Its pointers are valid until the last reference to the routing is freed.
    /// @return ROUTECAP_ERR_NOT_READY.
    pub fn routecap_routing_view(routing: *const routecap_routing, view: *mut routecap_view) -> i32;
}
unsafe extern "C" {
    /// Say which cells of a routing are there and which are missing. Parameters as in routecap_request_coverage, over all its rows.
    ///
    /// @return ROUTECAP_OK; ROUTECAP_INCOMPLETE; ROUTECAP_ERR_NOT_READY.
    pub fn routecap_routing_coverage(
        routing: *const routecap_routing,
        coverage: *mut routecap_coverage,
        missing: *mut routecap_missing,
        missing_size: usize,
        capacity: usize,
    ) -> i32;
}
unsafe extern "C" {
    /// Divide a routing at the end of the prompt. Pages are shared.
    ///
    /// @param prompt_tokens     Rows before this position go to `prompt`, all of them if the routing ends before it.
    /// @param generated_tokens  Of the rows from there on, at most so many go to `generated` (one token is usually never input: its row does not
    ///                          exist); ROUTECAP_ROWS_ALL: all of them.
    /// @param prompt            Receives a routing, possibly without rows; NULL on error.
    /// @param generated         Likewise.
    /// @return ROUTECAP_ERR_NOT_READY.
    pub fn routecap_routing_split(
        routing: *const routecap_routing,
        prompt_tokens: u64,
        generated_tokens: u64,
        prompt: *mut *mut routecap_routing,
        generated: *mut *mut routecap_routing,
    ) -> i32;
}
unsafe extern "C" {
    /// A routing of some of the rows of another. Pages are shared; positions stay what they are.
    ///
    /// @param first  Position of the first row.
    /// @param rows   How many; ROUTECAP_ROWS_ALL: up to the end.
    /// @param slice  Receives the routing; NULL on error.
    /// @return ROUTECAP_ERR_OUT_OF_RANGE; ROUTECAP_ERR_NOT_READY.
    pub fn routecap_routing_slice(routing: *const routecap_routing, first: u64, rows: u64, slice: *mut *mut routecap_routing) -> i32;
}
unsafe extern "C" {
    /// Unite routings of one sequence that hold different rows, different layers, or both: sequence- and pipeline-parallel ranks, pieces of a
    /// stream.
    ///
    /// Layers are matched by their index in the decoder (the layer map), rows by position. The result
    /// has the layers of all, and the rows from the lowest to the highest position of any; what nobody
    /// has is missing, for the reason that comes first in the list at ROUTECAP_MISSING_STALE among those
    /// of all routings that have the layer. A row keeps the tag of the first routing that has any cell
    /// of it. A layer that is recomputed in one of them is recomputed in the result.
    ///
    /// @param routings  [count], count >= 1. They stay the caller's.
    /// @param flags     0.
    /// @param merged    Receives the routing; NULL on error. Its memory counts in the budget that the first one's does, also after its capturer's
    /// end.
    /// @return ROUTECAP_OK; ROUTECAP_INCOMPLETE; ROUTECAP_NOT_CAPTURED; ROUTECAP_ERR_CONFLICT (two have a cell with different sets of ids);
    ///         ROUTECAP_ERR_SHAPE_MISMATCH (k, the id space, or the experts of one layer differ);
    ///         ROUTECAP_ERR_NOT_READY.
    pub fn routecap_routing_merge(
        routings: *const *const routecap_routing,
        count: usize,
        flags: u32,
        merged: *mut *mut routecap_routing,
    ) -> i32;
}
unsafe extern "C" {
    /// Copy a routing to the caller's memory. Parameters, rules and errors as routecap_request_extract_into; slice first to copy fewer rows.
    ///
    /// @return ROUTECAP_OK; ROUTECAP_INCOMPLETE; ROUTECAP_NOT_CAPTURED; ROUTECAP_ERR_INCOMPLETE (strict); ROUTECAP_ERR_RECOMPUTED (strict);
    ///         ROUTECAP_ERR_NOT_READY; ROUTECAP_ERR_BUFFER_TOO_SMALL; ROUTECAP_ERR_DTYPE; ROUTECAP_ERR_UNKNOWN_LAYER.
    pub fn routecap_routing_copy_to(
        routing: *const routecap_routing,
        options: *const routecap_copy_options,
        dst: *mut ::core::ffi::c_void,
        dst_bytes: usize,
        mask: *mut u8,
        mask_bytes: usize,
        needed: *mut u64,
    ) -> i32;
}
unsafe extern "C" {
    /// Take one more reference to a routing. Each is freed with routecap_routing_free.
    pub fn routecap_routing_retain(routing: *const routecap_routing) -> i32;
}
unsafe extern "C" {
    /// Free one reference to a routing; its memory goes with the last. NULL is allowed. In a forked child it does nothing.
    pub fn routecap_routing_free(routing: *mut routecap_routing);
}
/// Called once when memory that was lent is no longer used: on any thread, perhaps before the call
/// that lent it returns, perhaps inside a call that frees rows (close, free, truncate, destroy). No
/// lock of the library is held while it runs, so it may take a lock that other threads hold while
/// they call routecap. It must not call routecap itself.
pub type routecap_release = ::core::option::Option<unsafe extern "C" fn(context: *mut ::core::ffi::c_void)>;
unsafe extern "C" {
    /// Write a routing in the serialised form. Routings with equal layer tables, first rows, cells (ids in order), reasons and tags give equal bytes.
    ///
    /// Later libraries write version 1 too, unless a flag asks them for another, and refuse a routing that version 1 has no words for.
    ///
    /// @param flags      0.
    /// @param dst        NULL with dst_bytes 0 to ask for the size, which returns ROUTECAP_ERR_BUFFER_TOO_SMALL.
    /// @param dst_bytes  Size of dst.
    /// @param needed     Receives the bytes that it takes; may be NULL. Set on ROUTECAP_ERR_BUFFER_TOO_SMALL too.
    /// @return ROUTECAP_OK, also if cells are missing; ROUTECAP_ERR_NOT_READY; ROUTECAP_ERR_BUFFER_TOO_SMALL (nothing is written).
    pub fn routecap_routing_serialize(
        routing: *const routecap_routing,
        flags: u32,
        dst: *mut ::core::ffi::c_void,
        dst_bytes: usize,
        needed: *mut u64,
    ) -> i32;
}
unsafe extern "C" {
    /// Make a routing of bytes in the serialised form, from wherever they come: nothing in them is trusted. Needs no capturer.
    ///
    /// The memory that it takes is about `bytes`, at most twenty times that (many runs of one row), and counts in no budget. Ids are checked as
    /// those of a step are: a cell that claims to be valid and is not k distinct experts of its layer is an error.
    ///
    /// @param data     [bytes]. With `release`, lent: the routing, and all that shares rows with it, refers to it in place, and it must not change
    ///                 until it is released, in this process: it is checked once. Copy memory that someone else may still write. It is never
    /// written, so
    ///                 a read-only mapping will do. If it does not begin at a multiple of 8 it is copied all the same, and released at once.
    /// @param bytes    Exactly those of one routing.
    /// @param flags    0 or ROUTECAP_IMPORT_TRUSTED.
    /// @param release  NULL: data is copied, and the caller's again when the call returns. Not called if the call fails.
    /// @param context  Passed to release.
    /// @param routing  Receives the routing, to be freed with routecap_routing_free; NULL on error.
    /// @return ROUTECAP_OK; ROUTECAP_INCOMPLETE; ROUTECAP_NOT_CAPTURED; ROUTECAP_ERR_FORMAT (the text says what is wrong).
    pub fn routecap_routing_deserialize(
        data: *const ::core::ffi::c_void,
        bytes: usize,
        flags: u32,
        release: routecap_release,
        context: *mut ::core::ffi::c_void,
        routing: *mut *mut routecap_routing,
    ) -> i32;
}
unsafe extern "C" {
    /// Make a routing of arrays of any origin: the inverse of routecap_routing_view. For rows that another process, file format or engine has.
    ///
    /// The rows and cells of the view are checked as those of routecap_routing_deserialize. Of cells
    /// that are not valid only the first id is looked at: it is their reason if it is one of
    /// ROUTECAP_MISSING_*, which is otherwise UNWRITTEN. Rows without ids are missing for the segment's
    /// `reason`, where 0 means ABSENT.
    ///
    /// @param view     `experts` and `complete` are not looked at; `validity_bytes` may be 0; layer_map, layer_experts and layer_provenance may be
    ///                 NULL: 0..layers-1, `experts` (which is then needed) and CAPTURED. Segments need not hold rows that are ABSENT, but are in
    ///                 order, with a segment_size of sizeof(routecap_segment) of the caller.
    /// @param release  NULL: all arrays are copied. Otherwise those that segments point to are lent; tables and segments themselves are copied.
    /// @return As routecap_routing_deserialize, but ROUTECAP_ERR_ARGUMENT (limits, order or segments), ROUTECAP_ERR_DTYPE or
    ///         ROUTECAP_ERR_FORMAT (an id of a valid cell out of range or twice).
    pub fn routecap_routing_import(
        view: *const routecap_view,
        flags: u32,
        release: routecap_release,
        context: *mut ::core::ffi::c_void,
        routing: *mut *mut routecap_routing,
    ) -> i32;
}
/// What the first 64 bytes of the serialised form say.
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct routecap_serialized {
    pub struct_size: u32,
    pub version: u32,
    /// of everything
    pub bytes: u64,
    /// of the header with its tables: as much as routecap_serialized_splice reads
    pub header_bytes: u64,
    pub first: u64,
    pub rows: u64,
    pub layers: u32,
    pub k: u32,
    pub dtype: i32,
    pub id_space: i32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of routecap_serialized"][::core::mem::size_of::<routecap_serialized>() - 56usize];
    ["Alignment of routecap_serialized"][::core::mem::align_of::<routecap_serialized>() - 8usize];
    ["Offset of field: routecap_serialized::struct_size"][::core::mem::offset_of!(routecap_serialized, struct_size) - 0usize];
    ["Offset of field: routecap_serialized::version"][::core::mem::offset_of!(routecap_serialized, version) - 4usize];
    ["Offset of field: routecap_serialized::bytes"][::core::mem::offset_of!(routecap_serialized, bytes) - 8usize];
    ["Offset of field: routecap_serialized::header_bytes"][::core::mem::offset_of!(routecap_serialized, header_bytes) - 16usize];
    ["Offset of field: routecap_serialized::first"][::core::mem::offset_of!(routecap_serialized, first) - 24usize];
    ["Offset of field: routecap_serialized::rows"][::core::mem::offset_of!(routecap_serialized, rows) - 32usize];
    ["Offset of field: routecap_serialized::layers"][::core::mem::offset_of!(routecap_serialized, layers) - 40usize];
    ["Offset of field: routecap_serialized::k"][::core::mem::offset_of!(routecap_serialized, k) - 44usize];
    ["Offset of field: routecap_serialized::dtype"][::core::mem::offset_of!(routecap_serialized, dtype) - 48usize];
    ["Offset of field: routecap_serialized::id_space"][::core::mem::offset_of!(routecap_serialized, id_space) - 52usize];
};
unsafe extern "C" {
    /// Read the fixed part of a serialised routing's header: what it is, and how much is still to come from a stream, as its sender claims: bound
    /// header_bytes and bytes before you make room for them.
    ///
    /// @param data   The first bytes of it.
    /// @param bytes  ROUTECAP_SERIALIZED_MIN or more (ROUTECAP_ERR_BUFFER_TOO_SMALL otherwise, unless the first bytes show that it is none).
    /// @param info   Filled.
    /// @return ROUTECAP_ERR_FORMAT; ROUTECAP_ERR_BUFFER_TOO_SMALL.
    pub fn routecap_serialized_info(data: *const ::core::ffi::c_void, bytes: usize, info: *mut routecap_serialized) -> i32;
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct routecap_piece {
    /// in its source; 0 for ZERO
    pub offset: u64,
    pub bytes: u64,
    /// ROUTECAP_PIECE_*
    pub source: i32,
    /// 0
    pub reserved: u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of routecap_piece"][::core::mem::size_of::<routecap_piece>() - 24usize];
    ["Alignment of routecap_piece"][::core::mem::align_of::<routecap_piece>() - 8usize];
    ["Offset of field: routecap_piece::offset"][::core::mem::offset_of!(routecap_piece, offset) - 0usize];
    ["Offset of field: routecap_piece::bytes"][::core::mem::offset_of!(routecap_piece, bytes) - 8usize];
    ["Offset of field: routecap_piece::source"][::core::mem::offset_of!(routecap_piece, source) - 16usize];
    ["Offset of field: routecap_piece::reserved"][::core::mem::offset_of!(routecap_piece, reserved) - 20usize];
};
/// A serialised routing as a list of pieces: written one after another (writev) they are it.
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct routecap_splice {
    pub struct_size: u32,
    /// how many
    pub pieces: u32,
    /// of everything
    pub bytes: u64,
    /// of the new header
    pub header_bytes: u64,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of routecap_splice"][::core::mem::size_of::<routecap_splice>() - 24usize];
    ["Alignment of routecap_splice"][::core::mem::align_of::<routecap_splice>() - 8usize];
    ["Offset of field: routecap_splice::struct_size"][::core::mem::offset_of!(routecap_splice, struct_size) - 0usize];
    ["Offset of field: routecap_splice::pieces"][::core::mem::offset_of!(routecap_splice, pieces) - 4usize];
    ["Offset of field: routecap_splice::bytes"][::core::mem::offset_of!(routecap_splice, bytes) - 8usize];
    ["Offset of field: routecap_splice::header_bytes"][::core::mem::offset_of!(routecap_splice, header_bytes) - 16usize];
};
unsafe extern "C" {
    /// Splice two serialised routings of one sequence: the rows of `head` before position `row`, and the rows of `tail` from it on. Prefill and
    /// decode
    /// on different machines, the turns of a conversation, the parts of a stream; no id is read, and none needs to be there.
    ///
    /// The result begins with head's first row or at `row`, whichever comes first, and ends with tail's last row or at `row`; rows between that
    /// neither
    /// has are missing. A layer that is recomputed in one is recomputed in the result. Both headers are checked; the planes are whoever's who reads
    /// the result. Pieces of one source ascend, but head's tags and validity come after tail's ids: have both at hand.
    ///
    /// @param head, tail      At least their headers, header_bytes as routecap_serialized_info gives them.
    /// @param header          Receives the new header; NULL with capacity 0 to ask for the sizes, which returns ROUTECAP_ERR_BUFFER_TOO_SMALL.
    /// @param capacity        Size of header: splice->header_bytes, at most the sum of both headers' and 128.
    /// @param pieces          [piece_capacity] receives where the bytes come from, in order; may be NULL if piece_capacity is 0.
    /// @param piece_size      sizeof(routecap_piece) of the caller.
    /// @param piece_capacity  At least splice->pieces; ROUTECAP_MAX_PIECES are enough.
    /// @param splice          Filled, also on ROUTECAP_ERR_BUFFER_TOO_SMALL.
    /// @return ROUTECAP_OK; ROUTECAP_ERR_FORMAT; ROUTECAP_ERR_SHAPE_MISMATCH (k, the id space, the layers or their experts differ);
    ///         ROUTECAP_ERR_BUFFER_TOO_SMALL (header or pieces; nothing is written to either).
    pub fn routecap_serialized_splice(
        head: *const ::core::ffi::c_void,
        head_bytes: usize,
        tail: *const ::core::ffi::c_void,
        tail_bytes: usize,
        row: u64,
        header: *mut ::core::ffi::c_void,
        capacity: usize,
        pieces: *mut routecap_piece,
        piece_size: usize,
        piece_capacity: usize,
        splice: *mut routecap_splice,
    ) -> i32;
}
/// What one dispatch brought to this rank. In parentheses: where DeepEP has it. All arrays are in C order, without gaps.
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct routecap_received {
    pub struct_size: u32,
    /// ROUTECAP_RECEIVED_*
    pub flags: u32,
    /// of the dispatch: all scale-out and scale-up ranks, 1..1024
    pub ranks: u32,
    /// this one; it has the experts from rank * (experts / ranks) on
    pub rank: u32,
    /// (handle.num_experts), a multiple of ranks, up to ROUTECAP_MAX_EXPERTS; 0 means the layer's
    pub experts: u32,
    /// columns of the dispatched ids, up to ROUTECAP_MAX_K; 0 means the capturer's k
    pub k: u32,
    /// (handle.num_max_tokens_per_rank) of this very dispatch: vLLM's changes from step to step; times ranks at most
    ///ROUTECAP_MAX_RECEIVED
    pub tokens_per_rank: u32,
    /// rows of metadata (handle.recv_src_metadata.shape[0]), at most ranks * tokens_per_rank
    pub rows: u32,
    /// [device] one number, the last of handle.psum_num_recv_tokens_per_scaleup_rank: only the first *live_rows rows were
    ///received; clamped to [0, rows]; NULL: all
    pub live_rows: *const i32,
    /// [device] [rows, 2 + k] (handle.recv_src_metadata); may be NULL if executed is
    pub metadata: *const i32,
    /// [device] [rows, k] (recv_topk_idx); NULL with EXPANDED
    pub ids: *const ::core::ffi::c_void,
    /// [device] [experts / ranks] with EXPANDED (handle.psum_num_recv_tokens_per_expert, after the dispatch): the row
    ///behind the last of each local expert; the next begins at the next multiple of expert_alignment. Otherwise NULL
    pub expert_ends: *const i32,
    /// (handle.expert_alignment) with EXPANDED; 0 means 1. Otherwise 0
    pub expert_alignment: u32,
    /// (recv_x.shape[0]) with EXPANDED, less than 2^31. Otherwise 0
    pub expanded_rows: u32,
    /// I32 or I64: of ids and global_ids. Required
    pub dtype: i32,
    /// 0
    pub reserved: u32,
    /// [device] receives [rows, k], or with EXPANDED [expanded_rows]; NULL: not wanted. May be `ids`
    pub global_ids: *mut ::core::ffi::c_void,
    /// [device] receives [ranks, tokens_per_rank, k]; NULL: not wanted. Written whole, -1 included
    pub executed: *mut i32,
    /// [device] one number, to which is added how many columns were ignored; NULL: not counted
    pub ignored: *mut u64,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of routecap_received"][::core::mem::size_of::<routecap_received>() - 104usize];
    ["Alignment of routecap_received"][::core::mem::align_of::<routecap_received>() - 8usize];
    ["Offset of field: routecap_received::struct_size"][::core::mem::offset_of!(routecap_received, struct_size) - 0usize];
    ["Offset of field: routecap_received::flags"][::core::mem::offset_of!(routecap_received, flags) - 4usize];
    ["Offset of field: routecap_received::ranks"][::core::mem::offset_of!(routecap_received, ranks) - 8usize];
    ["Offset of field: routecap_received::rank"][::core::mem::offset_of!(routecap_received, rank) - 12usize];
    ["Offset of field: routecap_received::experts"][::core::mem::offset_of!(routecap_received, experts) - 16usize];
    ["Offset of field: routecap_received::k"][::core::mem::offset_of!(routecap_received, k) - 20usize];
    ["Offset of field: routecap_received::tokens_per_rank"][::core::mem::offset_of!(routecap_received, tokens_per_rank) - 24usize];
    ["Offset of field: routecap_received::rows"][::core::mem::offset_of!(routecap_received, rows) - 28usize];
    ["Offset of field: routecap_received::live_rows"][::core::mem::offset_of!(routecap_received, live_rows) - 32usize];
    ["Offset of field: routecap_received::metadata"][::core::mem::offset_of!(routecap_received, metadata) - 40usize];
    ["Offset of field: routecap_received::ids"][::core::mem::offset_of!(routecap_received, ids) - 48usize];
    ["Offset of field: routecap_received::expert_ends"][::core::mem::offset_of!(routecap_received, expert_ends) - 56usize];
    ["Offset of field: routecap_received::expert_alignment"][::core::mem::offset_of!(routecap_received, expert_alignment) - 64usize];
    ["Offset of field: routecap_received::expanded_rows"][::core::mem::offset_of!(routecap_received, expanded_rows) - 68usize];
    ["Offset of field: routecap_received::dtype"][::core::mem::offset_of!(routecap_received, dtype) - 72usize];
    ["Offset of field: routecap_received::reserved"][::core::mem::offset_of!(routecap_received, reserved) - 76usize];
    ["Offset of field: routecap_received::global_ids"][::core::mem::offset_of!(routecap_received, global_ids) - 80usize];
    ["Offset of field: routecap_received::executed"][::core::mem::offset_of!(routecap_received, executed) - 88usize];
    ["Offset of field: routecap_received::ignored"][::core::mem::offset_of!(routecap_received, ignored) - 96usize];
};
impl Default for routecap_received {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
unsafe extern "C" {
    /// Read what an expert-parallel dispatch brought to this rank, into memory of the caller: not into the sink, where a cell is a whole row.
    ///
    /// global_ids, decode: a local id becomes global, as that class does it: wherever the sum is below `experts`; and all else is -1: other ranks'
    /// columns, and every row that is not live, which is memory nobody initialised. Every row is written. Expanded: the expert of each row, the
    /// gaps that alignment leaves included, as repeat_interleave over the aligned counts has it; -1 behind the last expert's rows. An engine that
    /// reads global_ids must not be given a disabled capturer, which writes nothing.
    ///
    /// executed: by source token, whatever the order of the rows. What contradicts itself writes nothing and is counted in `ignored`: a source token
    /// outside ranks * tokens_per_rank, an id that is no expert of this rank, an expanded row that is outside expanded_rows or no expert's, and a
    /// column of a token that another row has filled. In tables that can be trusted the count is 0.
    ///
    /// Whoever owns the tensors keeps them until the stream has reached this work: the handle of a micro-batch until its combine, as anyway.
    ///
    /// Capturable; a graph has the sizes of the call that was captured. Does not block. On the host backend the work is done before the call returns.
    ///
    /// @param layer  Whose `experts` are meant if received->experts is 0.
    /// @return ROUTECAP_ERR_UNKNOWN_LAYER; ROUTECAP_ERR_DTYPE; ROUTECAP_ERR_ARGUMENT (a number beyond its limit, rank not below ranks, NULL where
    /// rows
    ///         need an array, neither product wanted although there are rows); ROUTECAP_ERR_SHAPE_MISMATCH (experts not a multiple of ranks, or
    ///         rows beyond ranks * tokens_per_rank: another step's tokens_per_rank).
    pub fn routecap_received_read(
        capturer: *mut routecap_capturer,
        layer: u32,
        received: *const routecap_received,
        stream: routecap_stream,
    ) -> i32;
}
unsafe extern "C" {
    /// Merge the tables of all ranks in host memory, where no collective does: the whole rows of all tokens. Experimental, as the above.
    ///
    /// Touches no device, needs no capturer.
    ///
    /// @param executed  [count] tables of `cells` ids each, `executed` of every rank copied to the host.
    /// @param cells     ranks * tokens_per_rank * k.
    /// @param merged    [cells] receives the highest id of each cell, -1 where no table has one. May be one of the tables.
    /// @return ROUTECAP_ERR_CONFLICT (two tables have different ids in one cell; nothing is written).
    pub fn routecap_received_merge(executed: *const *const i32, count: usize, cells: usize, merged: *mut i32) -> i32;
}
/// ================================================================================================
/// The function table, for programs that dlopen the library: one dlsym instead of one per function
/// ==============================================================================================
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct routecap_api {
    /// of this table in the loaded library; entries at or beyond it do not exist
    pub size: usize,
    /// version of the loaded library
    pub major: u32,
    pub minor: u32,
    pub version: ::core::option::Option<unsafe extern "C" fn() -> u32>,
    pub status_name: ::core::option::Option<unsafe extern "C" fn(arg1: i32) -> *const ::core::ffi::c_char>,
    pub last_error: ::core::option::Option<unsafe extern "C" fn() -> *const ::core::ffi::c_char>,
    pub backend_info: ::core::option::Option<unsafe extern "C" fn(arg1: i32, arg2: *mut routecap_backend) -> i32>,
    pub config_init: ::core::option::Option<unsafe extern "C" fn(arg1: *mut routecap_config, arg2: usize) -> i32>,
    pub config_memory: ::core::option::Option<unsafe extern "C" fn(arg1: *const routecap_config, arg2: *mut routecap_memory) -> i32>,
    pub capturer_create:
        ::core::option::Option<unsafe extern "C" fn(arg1: *const routecap_config, arg2: *mut *mut routecap_capturer) -> i32>,
    pub capturer_destroy: ::core::option::Option<unsafe extern "C" fn(arg1: *mut routecap_capturer)>,
    pub capturer_stats: ::core::option::Option<unsafe extern "C" fn(arg1: *const routecap_capturer, arg2: *mut routecap_stats) -> i32>,
    pub capturer_layer_stats: ::core::option::Option<
        unsafe extern "C" fn(arg1: *const routecap_capturer, arg2: *mut routecap_layer_stats, arg3: usize, arg4: usize) -> i32,
    >,
    pub capturer_progress: ::core::option::Option<unsafe extern "C" fn(arg1: *mut routecap_capturer) -> i32>,
    pub sink_bind:
        ::core::option::Option<unsafe extern "C" fn(arg1: *mut routecap_capturer, arg2: u32, arg3: u32, arg4: *const routecap_sink) -> i32>,
    pub sink_layer: ::core::option::Option<unsafe extern "C" fn(arg1: *mut routecap_capturer, arg2: u32, arg3: *mut routecap_sink) -> i32>,
    pub layer_record: ::core::option::Option<
        unsafe extern "C" fn(arg1: *mut routecap_capturer, arg2: u32, arg3: *const routecap_source, arg4: routecap_stream) -> i32,
    >,
    pub layers_record: ::core::option::Option<
        unsafe extern "C" fn(
            arg1: *mut routecap_capturer,
            arg2: *const routecap_source,
            arg3: *const routecap_layer_source,
            arg4: usize,
            arg5: usize,
            arg6: routecap_stream,
        ) -> i32,
    >,
    pub router_init: ::core::option::Option<unsafe extern "C" fn(arg1: *mut routecap_router, arg2: usize, arg3: i32) -> i32>,
    pub layer_route: ::core::option::Option<
        unsafe extern "C" fn(
            arg1: *mut routecap_capturer,
            arg2: u32,
            arg3: *const routecap_router,
            arg4: *const routecap_logits,
            arg5: routecap_stream,
        ) -> i32,
    >,
    pub capturer_probe: ::core::option::Option<
        unsafe extern "C" fn(
            arg1: *mut routecap_capturer,
            arg2: u32,
            arg3: *mut routecap_layer_probe,
            arg4: usize,
            arg5: usize,
            arg6: routecap_stream,
        ) -> i32,
    >,
    /// experimental
    pub received_read: ::core::option::Option<
        unsafe extern "C" fn(arg1: *mut routecap_capturer, arg2: u32, arg3: *const routecap_received, arg4: routecap_stream) -> i32,
    >,
    /// experimental
    pub received_merge:
        ::core::option::Option<unsafe extern "C" fn(arg1: *const *const i32, arg2: usize, arg3: usize, arg4: *mut i32) -> i32>,
    pub step_begin: ::core::option::Option<unsafe extern "C" fn(arg1: *mut routecap_capturer, arg2: u32, arg3: routecap_stream) -> i32>,
    pub step_snapshot: ::core::option::Option<unsafe extern "C" fn(arg1: *mut routecap_capturer, arg2: routecap_stream) -> i32>,
    pub step_issue: ::core::option::Option<
        unsafe extern "C" fn(
            arg1: *mut routecap_capturer,
            arg2: *const routecap_span,
            arg3: usize,
            arg4: usize,
            arg5: *const routecap_issue_options,
            arg6: *mut i32,
            arg7: *mut routecap_step,
            arg8: routecap_stream,
        ) -> i32,
    >,
    pub step_discard: ::core::option::Option<unsafe extern "C" fn(arg1: *mut routecap_capturer, arg2: routecap_stream) -> i32>,
    pub step_poll: ::core::option::Option<unsafe extern "C" fn(arg1: *mut routecap_capturer, arg2: routecap_step) -> i32>,
    pub step_finalize:
        ::core::option::Option<unsafe extern "C" fn(arg1: *mut routecap_capturer, arg2: routecap_step, arg3: i64, arg4: *mut u64) -> i32>,
    pub request_open: ::core::option::Option<
        unsafe extern "C" fn(
            arg1: *mut routecap_capturer,
            arg2: *const routecap_open_options,
            arg3: *mut routecap_request,
            arg4: usize,
        ) -> i32,
    >,
    pub request_accept: ::core::option::Option<
        unsafe extern "C" fn(
            arg1: *mut routecap_capturer,
            arg2: routecap_request,
            arg3: routecap_step,
            arg4: *const u32,
            arg5: usize,
        ) -> i32,
    >,
    pub request_accept_batch: ::core::option::Option<
        unsafe extern "C" fn(arg1: *mut routecap_capturer, arg2: *mut routecap_accept_item, arg3: usize, arg4: usize) -> i32,
    >,
    pub request_truncate:
        ::core::option::Option<unsafe extern "C" fn(arg1: *mut routecap_capturer, arg2: routecap_request, arg3: u64) -> i32>,
    pub request_fork: ::core::option::Option<
        unsafe extern "C" fn(arg1: *mut routecap_capturer, arg2: routecap_request, arg3: u64, arg4: *mut routecap_request) -> i32,
    >,
    pub request_attach: ::core::option::Option<
        unsafe extern "C" fn(arg1: *mut routecap_capturer, arg2: routecap_request, arg3: *const routecap_routing, arg4: u64) -> i32,
    >,
    pub request_coverage: ::core::option::Option<
        unsafe extern "C" fn(
            arg1: *mut routecap_capturer,
            arg2: routecap_request,
            arg3: u64,
            arg4: u64,
            arg5: *mut routecap_coverage,
            arg6: *mut routecap_missing,
            arg7: usize,
            arg8: usize,
        ) -> i32,
    >,
    pub request_extract: ::core::option::Option<
        unsafe extern "C" fn(
            arg1: *mut routecap_capturer,
            arg2: routecap_request,
            arg3: u64,
            arg4: u64,
            arg5: i32,
            arg6: u32,
            arg7: *mut *mut routecap_routing,
        ) -> i32,
    >,
    pub request_extract_batch: ::core::option::Option<
        unsafe extern "C" fn(arg1: *mut routecap_capturer, arg2: *mut routecap_extract_item, arg3: usize, arg4: usize) -> i32,
    >,
    pub copy_options_init: ::core::option::Option<unsafe extern "C" fn(arg1: *mut routecap_copy_options, arg2: usize) -> i32>,
    pub request_extract_into: ::core::option::Option<
        unsafe extern "C" fn(
            arg1: *mut routecap_capturer,
            arg2: routecap_request,
            arg3: u64,
            arg4: u64,
            arg5: *const routecap_copy_options,
            arg6: *mut ::core::ffi::c_void,
            arg7: usize,
            arg8: *mut u8,
            arg9: usize,
            arg10: *mut u64,
        ) -> i32,
    >,
    pub request_finish: ::core::option::Option<
        unsafe extern "C" fn(arg1: *mut routecap_capturer, arg2: routecap_request, arg3: u64, arg4: *mut *mut routecap_routing) -> i32,
    >,
    pub request_finish_batch: ::core::option::Option<
        unsafe extern "C" fn(arg1: *mut routecap_capturer, arg2: *mut routecap_finish_item, arg3: usize, arg4: usize) -> i32,
    >,
    pub request_close: ::core::option::Option<unsafe extern "C" fn(arg1: *mut routecap_capturer, arg2: routecap_request) -> i32>,
    pub request_close_batch: ::core::option::Option<
        unsafe extern "C" fn(arg1: *mut routecap_capturer, arg2: *const routecap_request, arg3: *mut i32, arg4: usize) -> i32,
    >,
    pub routing_wait: ::core::option::Option<unsafe extern "C" fn(arg1: *const routecap_routing, arg2: i64) -> i32>,
    pub routing_poll: ::core::option::Option<unsafe extern "C" fn(arg1: *const routecap_routing) -> i32>,
    pub routing_view: ::core::option::Option<unsafe extern "C" fn(arg1: *const routecap_routing, arg2: *mut routecap_view) -> i32>,
    pub routing_coverage: ::core::option::Option<
        unsafe extern "C" fn(
            arg1: *const routecap_routing,
            arg2: *mut routecap_coverage,
            arg3: *mut routecap_missing,
            arg4: usize,
            arg5: usize,
        ) -> i32,
    >,
    pub routing_split: ::core::option::Option<
        unsafe extern "C" fn(
            arg1: *const routecap_routing,
            arg2: u64,
            arg3: u64,
            arg4: *mut *mut routecap_routing,
            arg5: *mut *mut routecap_routing,
        ) -> i32,
    >,
    pub routing_slice: ::core::option::Option<
        unsafe extern "C" fn(arg1: *const routecap_routing, arg2: u64, arg3: u64, arg4: *mut *mut routecap_routing) -> i32,
    >,
    pub routing_merge: ::core::option::Option<
        unsafe extern "C" fn(arg1: *const *const routecap_routing, arg2: usize, arg3: u32, arg4: *mut *mut routecap_routing) -> i32,
    >,
    pub routing_copy_to: ::core::option::Option<
        unsafe extern "C" fn(
            arg1: *const routecap_routing,
            arg2: *const routecap_copy_options,
            arg3: *mut ::core::ffi::c_void,
            arg4: usize,
            arg5: *mut u8,
            arg6: usize,
            arg7: *mut u64,
        ) -> i32,
    >,
    pub routing_retain: ::core::option::Option<unsafe extern "C" fn(arg1: *const routecap_routing) -> i32>,
    pub routing_free: ::core::option::Option<unsafe extern "C" fn(arg1: *mut routecap_routing)>,
    pub routing_serialize: ::core::option::Option<
        unsafe extern "C" fn(arg1: *const routecap_routing, arg2: u32, arg3: *mut ::core::ffi::c_void, arg4: usize, arg5: *mut u64) -> i32,
    >,
    pub routing_deserialize: ::core::option::Option<
        unsafe extern "C" fn(
            arg1: *const ::core::ffi::c_void,
            arg2: usize,
            arg3: u32,
            arg4: routecap_release,
            arg5: *mut ::core::ffi::c_void,
            arg6: *mut *mut routecap_routing,
        ) -> i32,
    >,
    pub routing_import: ::core::option::Option<
        unsafe extern "C" fn(
            arg1: *const routecap_view,
            arg2: u32,
            arg3: routecap_release,
            arg4: *mut ::core::ffi::c_void,
            arg5: *mut *mut routecap_routing,
        ) -> i32,
    >,
    pub serialized_info:
        ::core::option::Option<unsafe extern "C" fn(arg1: *const ::core::ffi::c_void, arg2: usize, arg3: *mut routecap_serialized) -> i32>,
    pub serialized_splice: ::core::option::Option<
        unsafe extern "C" fn(
            arg1: *const ::core::ffi::c_void,
            arg2: usize,
            arg3: *const ::core::ffi::c_void,
            arg4: usize,
            arg5: u64,
            arg6: *mut ::core::ffi::c_void,
            arg7: usize,
            arg8: *mut routecap_piece,
            arg9: usize,
            arg10: usize,
            arg11: *mut routecap_splice,
        ) -> i32,
    >,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of routecap_api"][::core::mem::size_of::<routecap_api>() - 464usize];
    ["Alignment of routecap_api"][::core::mem::align_of::<routecap_api>() - 8usize];
    ["Offset of field: routecap_api::size"][::core::mem::offset_of!(routecap_api, size) - 0usize];
    ["Offset of field: routecap_api::major"][::core::mem::offset_of!(routecap_api, major) - 8usize];
    ["Offset of field: routecap_api::minor"][::core::mem::offset_of!(routecap_api, minor) - 12usize];
    ["Offset of field: routecap_api::version"][::core::mem::offset_of!(routecap_api, version) - 16usize];
    ["Offset of field: routecap_api::status_name"][::core::mem::offset_of!(routecap_api, status_name) - 24usize];
    ["Offset of field: routecap_api::last_error"][::core::mem::offset_of!(routecap_api, last_error) - 32usize];
    ["Offset of field: routecap_api::backend_info"][::core::mem::offset_of!(routecap_api, backend_info) - 40usize];
    ["Offset of field: routecap_api::config_init"][::core::mem::offset_of!(routecap_api, config_init) - 48usize];
    ["Offset of field: routecap_api::config_memory"][::core::mem::offset_of!(routecap_api, config_memory) - 56usize];
    ["Offset of field: routecap_api::capturer_create"][::core::mem::offset_of!(routecap_api, capturer_create) - 64usize];
    ["Offset of field: routecap_api::capturer_destroy"][::core::mem::offset_of!(routecap_api, capturer_destroy) - 72usize];
    ["Offset of field: routecap_api::capturer_stats"][::core::mem::offset_of!(routecap_api, capturer_stats) - 80usize];
    ["Offset of field: routecap_api::capturer_layer_stats"][::core::mem::offset_of!(routecap_api, capturer_layer_stats) - 88usize];
    ["Offset of field: routecap_api::capturer_progress"][::core::mem::offset_of!(routecap_api, capturer_progress) - 96usize];
    ["Offset of field: routecap_api::sink_bind"][::core::mem::offset_of!(routecap_api, sink_bind) - 104usize];
    ["Offset of field: routecap_api::sink_layer"][::core::mem::offset_of!(routecap_api, sink_layer) - 112usize];
    ["Offset of field: routecap_api::layer_record"][::core::mem::offset_of!(routecap_api, layer_record) - 120usize];
    ["Offset of field: routecap_api::layers_record"][::core::mem::offset_of!(routecap_api, layers_record) - 128usize];
    ["Offset of field: routecap_api::router_init"][::core::mem::offset_of!(routecap_api, router_init) - 136usize];
    ["Offset of field: routecap_api::layer_route"][::core::mem::offset_of!(routecap_api, layer_route) - 144usize];
    ["Offset of field: routecap_api::capturer_probe"][::core::mem::offset_of!(routecap_api, capturer_probe) - 152usize];
    ["Offset of field: routecap_api::received_read"][::core::mem::offset_of!(routecap_api, received_read) - 160usize];
    ["Offset of field: routecap_api::received_merge"][::core::mem::offset_of!(routecap_api, received_merge) - 168usize];
    ["Offset of field: routecap_api::step_begin"][::core::mem::offset_of!(routecap_api, step_begin) - 176usize];
    ["Offset of field: routecap_api::step_snapshot"][::core::mem::offset_of!(routecap_api, step_snapshot) - 184usize];
    ["Offset of field: routecap_api::step_issue"][::core::mem::offset_of!(routecap_api, step_issue) - 192usize];
    ["Offset of field: routecap_api::step_discard"][::core::mem::offset_of!(routecap_api, step_discard) - 200usize];
    ["Offset of field: routecap_api::step_poll"][::core::mem::offset_of!(routecap_api, step_poll) - 208usize];
    ["Offset of field: routecap_api::step_finalize"][::core::mem::offset_of!(routecap_api, step_finalize) - 216usize];
    ["Offset of field: routecap_api::request_open"][::core::mem::offset_of!(routecap_api, request_open) - 224usize];
    ["Offset of field: routecap_api::request_accept"][::core::mem::offset_of!(routecap_api, request_accept) - 232usize];
    ["Offset of field: routecap_api::request_accept_batch"][::core::mem::offset_of!(routecap_api, request_accept_batch) - 240usize];
    ["Offset of field: routecap_api::request_truncate"][::core::mem::offset_of!(routecap_api, request_truncate) - 248usize];
    ["Offset of field: routecap_api::request_fork"][::core::mem::offset_of!(routecap_api, request_fork) - 256usize];
    ["Offset of field: routecap_api::request_attach"][::core::mem::offset_of!(routecap_api, request_attach) - 264usize];
    ["Offset of field: routecap_api::request_coverage"][::core::mem::offset_of!(routecap_api, request_coverage) - 272usize];
    ["Offset of field: routecap_api::request_extract"][::core::mem::offset_of!(routecap_api, request_extract) - 280usize];
    ["Offset of field: routecap_api::request_extract_batch"][::core::mem::offset_of!(routecap_api, request_extract_batch) - 288usize];
    ["Offset of field: routecap_api::copy_options_init"][::core::mem::offset_of!(routecap_api, copy_options_init) - 296usize];
    ["Offset of field: routecap_api::request_extract_into"][::core::mem::offset_of!(routecap_api, request_extract_into) - 304usize];
    ["Offset of field: routecap_api::request_finish"][::core::mem::offset_of!(routecap_api, request_finish) - 312usize];
    ["Offset of field: routecap_api::request_finish_batch"][::core::mem::offset_of!(routecap_api, request_finish_batch) - 320usize];
    ["Offset of field: routecap_api::request_close"][::core::mem::offset_of!(routecap_api, request_close) - 328usize];
    ["Offset of field: routecap_api::request_close_batch"][::core::mem::offset_of!(routecap_api, request_close_batch) - 336usize];
    ["Offset of field: routecap_api::routing_wait"][::core::mem::offset_of!(routecap_api, routing_wait) - 344usize];
    ["Offset of field: routecap_api::routing_poll"][::core::mem::offset_of!(routecap_api, routing_poll) - 352usize];
    ["Offset of field: routecap_api::routing_view"][::core::mem::offset_of!(routecap_api, routing_view) - 360usize];
    ["Offset of field: routecap_api::routing_coverage"][::core::mem::offset_of!(routecap_api, routing_coverage) - 368usize];
    ["Offset of field: routecap_api::routing_split"][::core::mem::offset_of!(routecap_api, routing_split) - 376usize];
    ["Offset of field: routecap_api::routing_slice"][::core::mem::offset_of!(routecap_api, routing_slice) - 384usize];
    ["Offset of field: routecap_api::routing_merge"][::core::mem::offset_of!(routecap_api, routing_merge) - 392usize];
    ["Offset of field: routecap_api::routing_copy_to"][::core::mem::offset_of!(routecap_api, routing_copy_to) - 400usize];
    ["Offset of field: routecap_api::routing_retain"][::core::mem::offset_of!(routecap_api, routing_retain) - 408usize];
    ["Offset of field: routecap_api::routing_free"][::core::mem::offset_of!(routecap_api, routing_free) - 416usize];
    ["Offset of field: routecap_api::routing_serialize"][::core::mem::offset_of!(routecap_api, routing_serialize) - 424usize];
    ["Offset of field: routecap_api::routing_deserialize"][::core::mem::offset_of!(routecap_api, routing_deserialize) - 432usize];
    ["Offset of field: routecap_api::routing_import"][::core::mem::offset_of!(routecap_api, routing_import) - 440usize];
    ["Offset of field: routecap_api::serialized_info"][::core::mem::offset_of!(routecap_api, serialized_info) - 448usize];
    ["Offset of field: routecap_api::serialized_splice"][::core::mem::offset_of!(routecap_api, serialized_splice) - 456usize];
};
unsafe extern "C" {
    /// The library's functions as one append-only table, each under its name without the prefix.
    ///
    /// @param major  ROUTECAP_VERSION_MAJOR that the caller was compiled with.
    /// @param minor  ROUTECAP_VERSION_MINOR, likewise; or the oldest that the caller can do with: then an entry that came later exists only if
    ///               offsetof(routecap_api, entry) < api->size.
    /// @return Static storage, with every entry that version has; NULL if this library cannot stand in for it: another major version, or an older
    ///         minor one.
    pub fn routecap_get_api(major: u32, minor: u32) -> *const routecap_api;
}
