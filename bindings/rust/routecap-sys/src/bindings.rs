// Of headers with the SHA-256 6b52d5f63b52b6c8c18f531d0303584699d180f638ec3f4d169e6c5752728326
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
pub const ROUTECAP_ERR_LOSSY: i32 = -112;
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
pub const ROUTECAP_NO_EXPERT: i32 = -2;
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
pub const ROUTECAP_CONFIG_LOAD: u32 = 32;
pub const ROUTECAP_SPAN_SPECULATIVE: u32 = 1;
pub const ROUTECAP_SPAN_DEVICE_POSITIONS: u32 = 2;
pub const ROUTECAP_SPAN_PREFILL: u32 = 4;
pub const ROUTECAP_SPAN_DECODE: u32 = 8;
pub const ROUTECAP_SPAN_UNCOUNTED: u32 = 16;
pub const ROUTECAP_SPAN_SHARED: u32 = 32;
pub const ROUTECAP_SNAPSHOT_TAKEN: i32 = 0;
pub const ROUTECAP_SNAPSHOT_MAKE: i32 = 1;
pub const ROUTECAP_SNAPSHOT_LATER: i32 = 2;
pub const ROUTECAP_SOURCE_OVERLAP: u32 = 1;
pub const ROUTECAP_SOURCE_WHOLE_STEP: u32 = 2;
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
pub const ROUTECAP_PROBE_WORD_SIZE: u32 = 128;
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
pub const ROUTECAP_SERIALIZED_MIN: u32 = 88;
pub const ROUTECAP_PIECE_HEADER: i32 = 0;
pub const ROUTECAP_PIECE_HEAD: i32 = 1;
pub const ROUTECAP_PIECE_TAIL: i32 = 2;
pub const ROUTECAP_MAX_PIECES: u32 = 3;
pub const ROUTECAP_WIRE_ANY: i32 = 0;
pub const ROUTECAP_WIRE_SERIALIZED: i32 = 1;
pub const ROUTECAP_WIRE_NPY: i32 = 2;
pub const ROUTECAP_WIRE_NPY_BASE64: i32 = 3;
pub const ROUTECAP_WIRE_RAW: i32 = 4;
pub const ROUTECAP_WIRE_RAW_BASE64: i32 = 5;
pub const ROUTECAP_WIRE_OBJECT: i32 = 6;
pub const ROUTECAP_WIRE_NRLRE1: i32 = 7;
pub const ROUTECAP_WIRE_LISTS: i32 = 8;
pub const ROUTECAP_DTYPE_I8: i32 = 8;
pub const ROUTECAP_DTYPE_U64: i32 = 9;
pub const ROUTECAP_WIRE_FACT_SHAPE: u32 = 1;
pub const ROUTECAP_WIRE_FACT_DTYPE: u32 = 2;
pub const ROUTECAP_WIRE_FACT_EXPERTS: u32 = 4;
pub const ROUTECAP_WIRE_FACT_LAYERS: u32 = 8;
pub const ROUTECAP_WIRE_FACT_FIRST: u32 = 16;
pub const ROUTECAP_WIRE_FACT_VALIDITY: u32 = 32;
pub const ROUTECAP_WIRE_FACT_REASONS: u32 = 64;
pub const ROUTECAP_WIRE_FACT_TAGS: u32 = 128;
pub const ROUTECAP_WIRE_FACT_ID_SPACE: u32 = 256;
pub const ROUTECAP_WIRE_FACT_PROVENANCE: u32 = 512;
pub const ROUTECAP_WIRE_FACT_WEIGHTS: u32 = 1024;
pub const ROUTECAP_WIRE_COLUMNS_FOUND: i32 = 0;
pub const ROUTECAP_WIRE_COLUMNS_CAPTURED: i32 = 1;
pub const ROUTECAP_WIRE_COLUMNS_DECODER: i32 = 2;
pub const ROUTECAP_WIRE_HINT_STRICT: u32 = 1;
pub const ROUTECAP_APPEND_KEEP: i32 = 0;
pub const ROUTECAP_APPEND_NEWEST: i32 = 1;
pub const ROUTECAP_APPEND_EQUAL: i32 = 2;
pub const ROUTECAP_DIGEST_TOKENS: i32 = 64;
pub const ROUTECAP_SEQUENCE_WITH_TOKENS: u32 = 1;
pub const ROUTECAP_STORE_SLOT_KEYS: u32 = 1;
pub const ROUTECAP_MAX_BLOCK_ROWS: u32 = 4096;
pub const ROUTECAP_MIN_KEY_BYTES: u32 = 8;
pub const ROUTECAP_MAX_KEY_BYTES: u32 = 64;
pub const ROUTECAP_MAX_PLAN_ROWS: u32 = 1073741824;
pub const ROUTECAP_MAX_PLAN_SAMPLES: u32 = 16777216;
pub const ROUTECAP_MAX_RANKS: u32 = 1048576;
pub const ROUTECAP_PLAN_LAYOUT_PACKED: i32 = 0;
pub const ROUTECAP_PLAN_LAYOUT_PADDED_RIGHT: i32 = 1;
pub const ROUTECAP_PLAN_LAYOUT_PADDED_LEFT: i32 = 2;
pub const ROUTECAP_PLAN_CONTEXT_NONE: i32 = 0;
pub const ROUTECAP_PLAN_CONTEXT_ZIGZAG: i32 = 1;
pub const ROUTECAP_PLAN_CONTEXT_CONTIGUOUS: i32 = 2;
pub const ROUTECAP_PLAN_CONTEXT_ALLGATHER: i32 = 3;
pub const ROUTECAP_PLAN_SEQUENCE_PARALLEL: u32 = 1;
pub const ROUTECAP_PLAN_SEQUENCE_FIRST: u32 = 2;
pub const ROUTECAP_PLAN_RANK_UNSET: u32 = 4294967295;
pub const ROUTECAP_PLAN_FILL_BALANCED: i32 = 0;
pub const ROUTECAP_PLAN_FILL_VALUE: i32 = 1;
pub const ROUTECAP_PLAN_LOST_MARK: i32 = 0;
pub const ROUTECAP_PLAN_LOST_BALANCED: i32 = 1;
pub const ROUTECAP_PLAN_LOST_ERROR: i32 = 2;
pub const ROUTECAP_PLAN_CLASS_VALID: i32 = 0;
pub const ROUTECAP_PLAN_CLASS_PADDING: i32 = 1;
pub const ROUTECAP_PLAN_CLASS_NOT_NEEDED: i32 = 2;
pub const ROUTECAP_PLAN_CLASS_LOST: i32 = 3;
pub const ROUTECAP_PHASE_PREFILL: i32 = 0;
pub const ROUTECAP_PHASE_DECODE: i32 = 1;
pub const ROUTECAP_LOAD_PHASES: i32 = 2;
pub const ROUTECAP_LOG_OFF: i32 = 0;
pub const ROUTECAP_LOG_ERROR: i32 = 1;
pub const ROUTECAP_LOG_WARNING: i32 = 2;
pub const ROUTECAP_LOG_INFO: i32 = 3;
pub const ROUTECAP_LOG_DEBUG: i32 = 4;
pub const ROUTECAP_RECEIVED_EXPANDED: u32 = 1;
pub const ROUTECAP_RECEIVED_GLOBAL: u32 = 2;
unsafe extern "C" {
    /// Return the version of the loaded library: major * 10000 + minor * 100 + patch. Never fails.
    pub fn routecap_version() -> u32;
}
pub type routecap_status = i32;
unsafe extern "C" {
    /// Return the name of a status, such as "ROUTECAP_ERR_CAPACITY". Never fails.
    ///
    /// @param[in] status  A status.
    /// @return A static string; "ROUTECAP_STATUS_UNKNOWN" if this library does not know the status.
    pub fn routecap_status_name(status: routecap_status) -> *const ::core::ffi::c_char;
}
unsafe extern "C" {
    /// Return the most recent line of text that a call on this thread left; see "Statuses" at the top.
    ///
    /// Call it on the thread that made that call. Never fails.
    ///
    /// @return A string, valid until the next call on this thread that leaves a text; "" if none did.
    pub fn routecap_last_error() -> *const ::core::ffi::c_char;
}
/// A capturer; see capture.h.
#[repr(C)]
#[derive(Debug)]
pub struct routecap_capturer {
    _unused: [u8; 0],
}
/// A routing; see routing.h.
#[repr(C)]
#[derive(Debug)]
pub struct routecap_routing {
    _unused: [u8; 0],
}
/// A request of one capturer; other capturers do not know it. 0 means no request. No two requests of
/// a process ever have the same handle.
pub type routecap_request = u64;
/// The ticket of a step of one capturer: 1, 2, 3, ... in order of issue. 0 means no step.
pub type routecap_step = u64;
/// CUDA's cudaStream_t or CUstream. NULL on the host backend.
#[repr(C)]
#[derive(Debug)]
pub struct CUstream_st {
    _unused: [u8; 0],
}
pub type routecap_stream = *mut CUstream_st;
pub type routecap_dtype = i32;
pub type routecap_backend_kind = i32;
pub type routecap_role = i32;
pub type routecap_id_space = i32;
pub type routecap_provenance = i32;
pub type routecap_config_flags = u32;
/// The shape of the rows that a capturer captures, and the memory that it may use.
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct routecap_config {
    pub struct_size: u32,
    /// ROUTECAP_BACKEND_*. Required: 0 or less is
    /// ROUTECAP_ERR_ARGUMENT, an unknown one
    /// ROUTECAP_ERR_NO_BACKEND
    pub backend: routecap_backend_kind,
    /// ROUTECAP_ROLE_*; default OWNER
    pub role: routecap_role,
    /// CUDA's number of the device, 0 or more; the host backend
    /// ignores it
    pub device: i32,
    /// captured (MoE) layers, 1..ROUTECAP_MAX_LAYERS. Required
    pub layers: u32,
    /// experts per token, 1..ROUTECAP_MAX_K; with layer_k, the most
    /// of any layer or more. Required
    pub k: u32,
    /// ids are in [0, experts), those of zero-computation experts
    /// included. In k..ROUTECAP_MAX_EXPERTS. Required unless
    /// layer_experts is set
    pub experts: u32,
    /// sink rows: the most tokens of one forward pass, padding
    /// included, in 1..ROUTECAP_MAX_ROWS. Required
    pub rows: u32,
    /// steps that may be in flight, 1..ROUTECAP_MAX_SLOTS;
    /// default 2. On a device, a step that is issued while so many
    /// are in flight is lost. On the host backend begin files the
    /// oldest of them instead
    pub slots: u32,
    /// of the sink that the library allocates: ROUTECAP_DTYPE_I16
    /// (default), _I32 or _I64
    pub sink_dtype: routecap_dtype,
    /// ROUTECAP_CONFIG_*; default none
    pub flags: routecap_config_flags,
    /// ROUTECAP_ID_SPACE_* of the captured ids; default LOGICAL.
    /// Every routing states it
    pub id_space: routecap_id_space,
    /// requests open at a time, at most 16777216; default 65536
    pub max_requests: u32,
    /// capture the experts' weights too, as ROUTECAP_DTYPE_F32, _F16
    /// or _BF16; default 0: ids alone. A row with weights has at
    /// most 4096 bytes. See "Weights" in base.h
    pub weights_dtype: routecap_dtype,
    /// limit of the host memory for captured rows, routings included, in
    /// bytes. It is taken page by page, as rows need it. At least one page
    /// (routecap_memory.page_bytes); default 1 GiB
    pub budget_bytes: u64,
    /// [layers] index of each captured layer in the decoder, strictly
    /// ascending unless layer_visit is set; default 0..layers-1
    pub layer_map: *const i32,
    /// [layers] number of experts of each layer, if they differ: in
    /// layer_k..ROUTECAP_MAX_EXPERTS; default `experts` for all
    pub layer_experts: *const u32,
    /// [layers] ROUTECAP_PROVENANCE_*; default CAPTURED
    /// for all. routecap_layer_route works only on a
    /// RECOMPUTED layer
    pub layer_provenance: *const routecap_provenance,
    /// [layers] the most experts of a token in each layer, 1..k, if
    /// they differ; default k for all. See "Cells with fewer experts"
    /// in base.h
    pub layer_k: *const u32,
    /// [layers] the fewest experts of a token in each layer,
    /// 0..layer_k; default layer_k: each token has as many
    pub layer_min_k: *const u32,
    /// [layers] if the decoder runs a layer several times, each visit
    /// is a captured layer, and this is its number, from 0; default 0
    /// for all. Layers ascend by (layer_map, layer_visit), which is
    /// not the order in which they run. For example, layers 3 and 5
    /// run in turn, twice: layer_map {3, 3, 5, 5} and layer_visit
    /// {0, 1, 0, 1}
    pub layer_visit: *const u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of routecap_config"][::core::mem::size_of::<routecap_config>() - 112usize];
    ["Alignment of routecap_config"][::core::mem::align_of::<routecap_config>() - 8usize];
    ["Offset of field: routecap_config::struct_size"]
        [::core::mem::offset_of!(routecap_config, struct_size) - 0usize];
    ["Offset of field: routecap_config::backend"]
        [::core::mem::offset_of!(routecap_config, backend) - 4usize];
    ["Offset of field: routecap_config::role"]
        [::core::mem::offset_of!(routecap_config, role) - 8usize];
    ["Offset of field: routecap_config::device"]
        [::core::mem::offset_of!(routecap_config, device) - 12usize];
    ["Offset of field: routecap_config::layers"]
        [::core::mem::offset_of!(routecap_config, layers) - 16usize];
    ["Offset of field: routecap_config::k"][::core::mem::offset_of!(routecap_config, k) - 20usize];
    ["Offset of field: routecap_config::experts"]
        [::core::mem::offset_of!(routecap_config, experts) - 24usize];
    ["Offset of field: routecap_config::rows"]
        [::core::mem::offset_of!(routecap_config, rows) - 28usize];
    ["Offset of field: routecap_config::slots"]
        [::core::mem::offset_of!(routecap_config, slots) - 32usize];
    ["Offset of field: routecap_config::sink_dtype"]
        [::core::mem::offset_of!(routecap_config, sink_dtype) - 36usize];
    ["Offset of field: routecap_config::flags"]
        [::core::mem::offset_of!(routecap_config, flags) - 40usize];
    ["Offset of field: routecap_config::id_space"]
        [::core::mem::offset_of!(routecap_config, id_space) - 44usize];
    ["Offset of field: routecap_config::max_requests"]
        [::core::mem::offset_of!(routecap_config, max_requests) - 48usize];
    ["Offset of field: routecap_config::weights_dtype"]
        [::core::mem::offset_of!(routecap_config, weights_dtype) - 52usize];
    ["Offset of field: routecap_config::budget_bytes"]
        [::core::mem::offset_of!(routecap_config, budget_bytes) - 56usize];
    ["Offset of field: routecap_config::layer_map"]
        [::core::mem::offset_of!(routecap_config, layer_map) - 64usize];
    ["Offset of field: routecap_config::layer_experts"]
        [::core::mem::offset_of!(routecap_config, layer_experts) - 72usize];
    ["Offset of field: routecap_config::layer_provenance"]
        [::core::mem::offset_of!(routecap_config, layer_provenance) - 80usize];
    ["Offset of field: routecap_config::layer_k"]
        [::core::mem::offset_of!(routecap_config, layer_k) - 88usize];
    ["Offset of field: routecap_config::layer_min_k"]
        [::core::mem::offset_of!(routecap_config, layer_min_k) - 96usize];
    ["Offset of field: routecap_config::layer_visit"]
        [::core::mem::offset_of!(routecap_config, layer_visit) - 104usize];
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
unsafe extern "C" {
    /// Fill a configuration with the defaults. The caller then sets `backend`, `layers`, `k`, `experts`
    /// and `rows`.
    ///
    /// @param[out] config      The configuration.
    /// @param[in] struct_size  sizeof(routecap_config) of the caller, in bytes.
    pub fn routecap_config_init(
        config: *mut routecap_config,
        struct_size: usize,
    ) -> routecap_status;
}
unsafe extern "C" {
    /// Create a capturer.
    ///
    /// Create it before you capture CUDA graphs with calls on it. The call allocates all device memory
    /// and all page-locked memory, so the forward path allocates none later. It starts one worker
    /// thread, unless ROUTECAP_CONFIG_MANUAL_PROGRESS is set. Not capturable.
    ///
    /// The role decides how the capturer behaves:
    ///   - ROUTECAP_ROLE_OWNER captures.
    ///   - ROUTECAP_ROLE_MIRROR behaves like an owner in begin, snapshot and the calls of record.h, so
    ///     that CUDA graphs are equal on all ranks. In all other calls it behaves like
    ///     ROUTECAP_ROLE_DISABLED.
    ///   - ROUTECAP_ROLE_DISABLED turns capture off. The capturer allocates nothing, starts nothing, and
    ///     ignores all other fields of the configuration. Every call only checks that its output
    ///     pointers are sound, and sets the outputs. Calls that return rows (coverage, extract, finish,
    ///     and their batch forms) return ROUTECAP_ERR_DISABLED. All other calls return ROUTECAP_OK, with
    ///     handles and counts of 0. routecap_sink_layer gives ids NULL: the router must then write
    ///     elsewhere.
    ///
    /// @param[in] config     The configuration. The arrays that it points to are copied.
    /// @param[out] capturer  The capturer, to be passed to routecap_capturer_destroy; NULL on error.
    /// @return ROUTECAP_OK; ROUTECAP_ERR_ARGUMENT (a field outside its range; the text names it);
    ///         ROUTECAP_ERR_DTYPE (weights_dtype); ROUTECAP_ERR_NO_BACKEND (unknown, not in this build,
    ///         or not usable on this machine); ROUTECAP_ERR_DRIVER_TOO_OLD; ROUTECAP_ERR_DEVICE;
    ///         ROUTECAP_ERR_DEVICE_LOST; ROUTECAP_ERR_THREAD.
    pub fn routecap_capturer_create(
        config: *const routecap_config,
        capturer: *mut *mut routecap_capturer,
    ) -> routecap_status;
}
unsafe extern "C" {
    /// Destroy a capturer.
    ///
    /// The call waits until all issued steps have landed; those whose rows have not arrived
    /// (routecap_step_arrive) are lost. After that only graphs that you still replay use the engine's
    /// memory. The call ends all open requests and drops their rows.
    ///
    /// Routings stay valid. Those of routecap_request_finish become ready, and threads that wait for
    /// them return. If there is no memory left to hand rows over to such a routing, those rows are
    /// missing in it. In a forked child process the call does nothing.
    ///
    /// @param[in] capturer  The capturer; may be NULL.
    pub fn routecap_capturer_destroy(capturer: *mut routecap_capturer);
}
unsafe extern "C" {
    /// Begin a step: clear the sink, and expect sink rows 0..rows-1 from this forward pass.
    ///
    /// Call it at the start of the forward pass, before the first write. If the engine computes parts of
    /// the pass on several streams, call it before these streams fork. It may run on a stream of its own
    /// that is forked from the engine's stream and joined before the first write. Rows of the pass
    /// beyond `rows` are missing. If the previous forward pass was not issued, begin discards it. A
    /// begin that is replayed in a graph does that too.
    ///
    /// On the host backend, if config.slots steps are in flight, begin files the oldest one on the
    /// calling thread, even with ROUTECAP_CONFIG_MANUAL_PROGRESS. So no step is lost. Filing takes as
    /// long as copying the rows of that step. If another thread is filing a step at that moment, begin
    /// waits until that step is filed. With ROUTECAP_CONFIG_MAY_LOSE, begin files nothing.
    ///
    /// Capturable.
    ///
    /// @param[in] capturer  The capturer.
    /// @param[in] rows      How many rows, padding included: at most routecap_config.rows. Spans may
    ///                      leave some of them out.
    /// @param[in] stream    The stream of the forward pass, or one forked from it.
    /// @return ROUTECAP_OK; ROUTECAP_ERR_CAPACITY (rows beyond routecap_config.rows);
    ///         ROUTECAP_ERR_STATE (a step was issued with ROUTECAP_SNAPSHOT_LATER).
    pub fn routecap_step_begin(
        capturer: *mut routecap_capturer,
        rows: u32,
        stream: routecap_stream,
    ) -> routecap_status;
}
unsafe extern "C" {
    /// Take a snapshot of the rows that were begun: sink rows 0..rows-1 of the begin. After the snapshot
    /// and the issue, the next forward pass may begin and write the sink.
    ///
    /// Call it after the last write of the forward pass, on a stream that has joined all writers. The
    /// call reads the sink and never writes it. A second snapshot in one step makes the rows of the step
    /// missing.
    ///
    /// Write the sink again only after another begin. In a graph the snapshot is a branch of its own,
    /// which may still read the sink while later work of the stream runs. So it costs next to nothing if
    /// you call it directly after the last router. The library joins the branch before the end of the
    /// graph and before the device work of the next begin.
    ///
    /// Capturable. On the host backend the rows are copied before the call returns.
    ///
    /// @param[in] capturer  The capturer.
    /// @param[in] stream    The stream that has joined all writers.
    pub fn routecap_step_snapshot(
        capturer: *mut routecap_capturer,
        stream: routecap_stream,
    ) -> routecap_status;
}
pub type routecap_span_flags = u32;
/// Sink rows of one step that belong to one request.
///
/// For example, a prompt of 100 tokens in chunks of 64 and 36 tokens gives two spans: one with
/// position 0 and 64 rows, and in a later step one with position 64 and 36 rows. Each decode step
/// after that gives a span of one row, with position 100, 101, and so on.
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct routecap_span {
    pub request: routecap_request,
    /// of the first row; the positions of the others follow it. With
    /// DEVICE_POSITIONS: the lowest position that a row may have
    pub position: u64,
    /// with DEVICE_POSITIONS: one past the highest position that a row
    /// may have; a row outside the bounds is dropped and counted.
    /// Otherwise 0
    pub position_end: u64,
    /// sink row of the first row: its place among all rows of the pass
    pub sink_row: u32,
    /// how many, 1 or more
    pub rows: u32,
    /// ROUTECAP_SPAN_*
    pub flags: routecap_span_flags,
    /// 0
    pub reserved: u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of routecap_span"][::core::mem::size_of::<routecap_span>() - 40usize];
    ["Alignment of routecap_span"][::core::mem::align_of::<routecap_span>() - 8usize];
    ["Offset of field: routecap_span::request"]
        [::core::mem::offset_of!(routecap_span, request) - 0usize];
    ["Offset of field: routecap_span::position"]
        [::core::mem::offset_of!(routecap_span, position) - 8usize];
    ["Offset of field: routecap_span::position_end"]
        [::core::mem::offset_of!(routecap_span, position_end) - 16usize];
    ["Offset of field: routecap_span::sink_row"]
        [::core::mem::offset_of!(routecap_span, sink_row) - 24usize];
    ["Offset of field: routecap_span::rows"]
        [::core::mem::offset_of!(routecap_span, rows) - 28usize];
    ["Offset of field: routecap_span::flags"]
        [::core::mem::offset_of!(routecap_span, flags) - 32usize];
    ["Offset of field: routecap_span::reserved"]
        [::core::mem::offset_of!(routecap_span, reserved) - 36usize];
};
pub type routecap_snapshot = i32;
/// Options that apply to all spans of an issue.
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct routecap_issue_options {
    pub struct_size: u32,
    /// ROUTECAP_SNAPSHOT_*; default TAKEN
    pub snapshot: routecap_snapshot,
    /// kept with every row of the step, such as the version of the
    /// weights
    pub tag: u64,
    /// [device] [n] the position of each sink row, where n is one
    /// more than the last sink row in a span with DEVICE_POSITIONS;
    /// NULL if no span has them. With ROUTECAP_SNAPSHOT_LATER it
    /// is host memory, which routecap_step_arrive reads
    pub positions: *const ::core::ffi::c_void,
    /// ROUTECAP_DTYPE_I32 or _I64, if positions is set
    pub positions_dtype: routecap_dtype,
    /// 0
    pub reserved: u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of routecap_issue_options"][::core::mem::size_of::<routecap_issue_options>() - 32usize];
    ["Alignment of routecap_issue_options"]
        [::core::mem::align_of::<routecap_issue_options>() - 8usize];
    ["Offset of field: routecap_issue_options::struct_size"]
        [::core::mem::offset_of!(routecap_issue_options, struct_size) - 0usize];
    ["Offset of field: routecap_issue_options::snapshot"]
        [::core::mem::offset_of!(routecap_issue_options, snapshot) - 4usize];
    ["Offset of field: routecap_issue_options::tag"]
        [::core::mem::offset_of!(routecap_issue_options, tag) - 8usize];
    ["Offset of field: routecap_issue_options::positions"]
        [::core::mem::offset_of!(routecap_issue_options, positions) - 16usize];
    ["Offset of field: routecap_issue_options::positions_dtype"]
        [::core::mem::offset_of!(routecap_issue_options, positions_dtype) - 24usize];
    ["Offset of field: routecap_issue_options::reserved"]
        [::core::mem::offset_of!(routecap_issue_options, reserved) - 28usize];
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
    /// Issue the latest forward pass: say which of its rows belong to which request.
    ///
    /// Call it when the whole forward pass is enqueued, on a stream that is ordered after the pass, and
    /// before a call that begins another pass. The pass need not have run. The worker thread then files
    /// the rows in the background. Steps are filed in the order in which they were issued.
    ///
    /// Spans. Issue ignores sink rows that are in no span. A request may have several spans. They must
    /// not overlap in position, unless they are speculative (a tree has several drafts for one position)
    /// or have device positions. A step without spans lands at once.
    ///
    /// Shared sink rows. If several sequences share a token that is computed once, its sink row is in
    /// several spans. Each of these spans must have ROUTECAP_SPAN_SHARED. Otherwise issue returns
    /// ROUTECAP_ERR_CONFLICT and changes nothing, because a sink_row that was forgotten gives a request
    /// the rows of another. All spans of the call count, those of unknown requests too. The check costs
    /// one comparison per span if spans are in the order of their sink rows.
    ///
    /// Issue skips a span and counts its rows if the request is unknown, or if the span's charge (see
    /// "Memory") is more than the budget (config.budget_bytes) has left. Issue then returns
    /// ROUTECAP_PARTIAL, and files the other spans as usual. Positions that were refused for memory are
    /// missing (REFUSED). They count towards the request's length; those of drafts do once accept keeps
    /// them.
    ///
    /// Memory. Issue reserves the memory that the rows of a span may need, so that rows which it accepts
    /// find room when they land. It charges the budget for each page that a span touches, except the
    /// newest page that the request wrote, which is charged already. That page is charged again if the
    /// request was truncated, or if rows of the page were taken (requests.h). It is not charged again
    /// because its rows were shared or forked: the next row still goes into it. Issue also charges:
    ///   - for drafts: memory of their own, until they are settled,
    ///   - for device positions: each page within the bounds. If the bounds contain more pages than the
    ///     span has rows, issue charges one page for each row instead.
    /// When the step is filed, or when its drafts are settled, the part of the charge that was not
    /// needed returns to the budget. Issue accepts a span that is charged nothing, even if the budget is
    /// exceeded. Rows of an accepted span are refused later only if the system itself has no memory
    /// left. They are then missing (REFUSED), and counted.
    ///
    /// A span may need a page that issue did not charge, if rows are shared, forked or taken between its
    /// issue and its filing. The span gets that page even if this exceeds the budget. The excess has a
    /// limit. Consider the time since stats.bytes_in_use was last within the budget, and all spans that
    /// were in flight or had provisional drafts at any moment of that time. The excess is at most the
    /// memory of the pages that these spans touch.
    ///
    /// The worker thread frees the memory of rows that close, truncate, finish or a take removed from a
    /// request, unless a routing has them. If the budget is exhausted, issue does that itself before it
    /// refuses a span. Memory that a step in flight still needs is not freed.
    ///
    /// Steps in flight. If config.slots steps are in flight, the next one that is issued is lost,
    /// whether its begin was called or replayed in a graph. It has a ticket and has landed, all its rows
    /// are missing (LOST), and issue returns ROUTECAP_LOST. To lose none, first call
    /// routecap_step_finalize of the step issued config.slots steps before this one. For example, with 2
    /// slots finalize step 1 before you issue step 3. On the host backend begin does that for you. A
    /// step without spans is never lost.
    ///
    /// Positions. The positions array is read on the stream, up to the last sink row whose span has
    /// DEVICE_POSITIONS. Free the array only after the stream has run this work; with
    /// ROUTECAP_SNAPSHOT_LATER, only after routecap_step_arrive has returned. The library checks an
    /// address when it is first passed, and may not check it again. If you pass an address whose memory
    /// was freed since then, the step may be lost, the CUDA context that the engine shares may fail, or
    /// the process may crash.
    ///
    /// Issue allocates system memory only to grow buffers that it keeps. Not capturable.
    ///
    /// @param[in] capturer   The capturer.
    /// @param[in] spans      [count] elements of span_size bytes; may be NULL if count is 0.
    /// @param[in] span_size  sizeof(routecap_span) of the caller, in bytes.
    /// @param[in] count      How many spans.
    /// @param[in] options    NULL: the forward pass took its snapshot, and the tag is 0.
    /// @param[out] status    [count] ROUTECAP_OK, ROUTECAP_ERR_UNKNOWN_REQUEST or ROUTECAP_ERR_NO_MEMORY
    ///                       for each span; may be NULL.
    /// @param[out] step      The ticket, 0 on error; may be NULL.
    /// @param[in] stream     A stream that is ordered after the forward pass.
    /// @return ROUTECAP_OK; ROUTECAP_PARTIAL; ROUTECAP_LOST (also if spans were skipped). On error the
    ///         pass is neither issued nor discarded: ROUTECAP_ERR_ARGUMENT (a span without rows, unknown
    ///         flags, positions beyond ROUTECAP_MAX_POSITION, empty bounds, no positions although a span
    ///         needs them, or ROUTECAP_SNAPSHOT_LATER on a device); ROUTECAP_ERR_CAPACITY (sink rows
    ///         outside the sink); ROUTECAP_ERR_CONFLICT (a sink row in two spans without
    ///         ROUTECAP_SPAN_SHARED; the text names both); ROUTECAP_ERR_OVERLAP; ROUTECAP_ERR_DTYPE (of
    ///         the positions); ROUTECAP_ERR_STATE (ROUTECAP_SNAPSHOT_LATER after a begin).
    pub fn routecap_step_issue(
        capturer: *mut routecap_capturer,
        spans: *const routecap_span,
        span_size: usize,
        count: usize,
        options: *const routecap_issue_options,
        status: *mut routecap_status,
        step: *mut routecap_step,
        stream: routecap_stream,
    ) -> routecap_status;
}
unsafe extern "C" {
    /// Discard the latest forward pass, such as a warm-up, profiling or dummy run. If you do not call
    /// it, the next begin discards the pass. Not capturable.
    ///
    /// @param[in] capturer  The capturer.
    /// @param[in] stream    A stream that is ordered after the forward pass.
    pub fn routecap_step_discard(
        capturer: *mut routecap_capturer,
        stream: routecap_stream,
    ) -> routecap_status;
}
unsafe extern "C" {
    /// Tell whether a step has landed, so that its rows can be read.
    ///
    /// @param[in] capturer  The capturer.
    /// @param[in] step      The ticket.
    /// @return ROUTECAP_OK (landed); ROUTECAP_LOST (landed and lost; the text gives the reason: too
    ///         many were in flight, the call of the driver that failed, or the rows did not arrive);
    ///         ROUTECAP_PENDING; ROUTECAP_ERR_UNKNOWN_STEP (never issued). The library remembers which
    ///         of the last 1024 steps were lost; for older lost steps the call returns ROUTECAP_OK.
    pub fn routecap_step_poll(
        capturer: *mut routecap_capturer,
        step: routecap_step,
    ) -> routecap_status;
}
unsafe extern "C" {
    /// Wait until a step has landed.
    ///
    /// With ROUTECAP_CONFIG_MANUAL_PROGRESS the calling thread files the steps that can land.
    ///
    /// @param[in] capturer      The capturer.
    /// @param[in] step          The ticket.
    /// @param[in] timeout_ns    The longest wait, in nanoseconds; 0: look once; negative: no limit.
    /// @param[out] conflicting  How many cells of the step were recorded twice. 0 for all but the last
    ///                          1024 steps; unchanged on a timeout; may be NULL.
    /// @return ROUTECAP_OK; ROUTECAP_LOST (see routecap_step_poll); ROUTECAP_PENDING (timeout);
    ///         ROUTECAP_ERR_UNKNOWN_STEP (never issued). In checked mode also the error of a mistake
    ///         that the device found; the step has landed nevertheless.
    pub fn routecap_step_finalize(
        capturer: *mut routecap_capturer,
        step: routecap_step,
        timeout_ns: i64,
        conflicting: *mut u64,
    ) -> routecap_status;
}
/// The memory that a capturer with a given configuration needs.
///
/// For example, with 48 layers and 8 of 128 experts a row takes 390 bytes, and a page of 128 rows,
/// with room for their tags, 51,072 bytes. A request of 4,096 tokens takes 32 pages of the budget,
/// 1.6 MB. A request of 10 tokens takes one page. 256 requests of 4,096 tokens take 418 MB, so the
/// default budget of 1 GiB has room for 657 of them.
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct routecap_memory {
    pub struct_size: u32,
    /// rows in one page
    pub page_rows: u32,
    /// device memory, allocated at create
    pub device_bytes: u64,
    /// page-locked host memory, allocated at create
    pub pinned_bytes: u64,
    /// other host memory, allocated at create, rounded up
    pub host_bytes: u64,
    /// of one captured row: ids, validity, and weights if captured
    pub row_bytes: u64,
    /// of one page, the unit in which requests take from the budget: its
    /// rows, and 8 bytes for the tag of each
    pub page_bytes: u64,
    /// of one open request before its first row, outside the budget
    pub request_bytes: u64,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of routecap_memory"][::core::mem::size_of::<routecap_memory>() - 56usize];
    ["Alignment of routecap_memory"][::core::mem::align_of::<routecap_memory>() - 8usize];
    ["Offset of field: routecap_memory::struct_size"]
        [::core::mem::offset_of!(routecap_memory, struct_size) - 0usize];
    ["Offset of field: routecap_memory::page_rows"]
        [::core::mem::offset_of!(routecap_memory, page_rows) - 4usize];
    ["Offset of field: routecap_memory::device_bytes"]
        [::core::mem::offset_of!(routecap_memory, device_bytes) - 8usize];
    ["Offset of field: routecap_memory::pinned_bytes"]
        [::core::mem::offset_of!(routecap_memory, pinned_bytes) - 16usize];
    ["Offset of field: routecap_memory::host_bytes"]
        [::core::mem::offset_of!(routecap_memory, host_bytes) - 24usize];
    ["Offset of field: routecap_memory::row_bytes"]
        [::core::mem::offset_of!(routecap_memory, row_bytes) - 32usize];
    ["Offset of field: routecap_memory::page_bytes"]
        [::core::mem::offset_of!(routecap_memory, page_bytes) - 40usize];
    ["Offset of field: routecap_memory::request_bytes"]
        [::core::mem::offset_of!(routecap_memory, request_bytes) - 48usize];
};
unsafe extern "C" {
    /// Tell how much memory a capturer with a given configuration needs, without creating it.
    ///
    /// The call asks neither the driver nor a device. You can call it before a fork, and without a
    /// device.
    ///
    /// @param[in] config   The configuration.
    /// @param[out] memory  The sizes, in bytes.
    /// @return ROUTECAP_OK; ROUTECAP_ERR_NO_BACKEND (unknown, or not in this build).
    pub fn routecap_config_memory(
        config: *const routecap_config,
        memory: *mut routecap_memory,
    ) -> routecap_status;
}
/// A backend of this build, on this machine.
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct routecap_backend {
    pub struct_size: u32,
    /// 1: a capturer can be created on it; 0: it cannot, and detail says why
    pub available: i32,
    /// number of devices; 0 on the host backend
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
    ["Offset of field: routecap_backend::struct_size"]
        [::core::mem::offset_of!(routecap_backend, struct_size) - 0usize];
    ["Offset of field: routecap_backend::available"]
        [::core::mem::offset_of!(routecap_backend, available) - 4usize];
    ["Offset of field: routecap_backend::devices"]
        [::core::mem::offset_of!(routecap_backend, devices) - 8usize];
    ["Offset of field: routecap_backend::reserved"]
        [::core::mem::offset_of!(routecap_backend, reserved) - 12usize];
    ["Offset of field: routecap_backend::detail"]
        [::core::mem::offset_of!(routecap_backend, detail) - 16usize];
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
    /// @param[in] backend  ROUTECAP_BACKEND_*. One that this library does not know is not available.
    /// @param[out] info    The description.
    pub fn routecap_backend_info(
        backend: routecap_backend_kind,
        info: *mut routecap_backend,
    ) -> routecap_status;
}
/// The counters of a capturer, since it was created. The fields are read one after another while the
/// capturer runs. No row is counted as landed before it is counted as issued.
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct routecap_stats {
    pub struct_size: u32,
    /// layers without a valid cell in the last step
    /// that landed with rows
    pub silent_layers: u32,
    /// lost ones included
    pub steps_issued: u64,
    /// lost ones included
    pub steps_landed: u64,
    /// too many were in flight, the copy failed, or the
    /// rows did not arrive
    pub steps_lost: u64,
    /// Rows in the spans of issue, except those of unknown requests. Each row is in exactly one of
    /// the counts from rows_in_flight to rows_refused.
    pub rows_issued: u64,
    pub rows_in_flight: u64,
    /// drafts that have landed and wait for
    /// accept
    pub rows_provisional: u64,
    /// landed with at least one valid cell
    pub rows_delivered: u64,
    /// landed without a valid cell
    pub rows_missing: u64,
    /// of a lost step
    pub rows_lost: u64,
    /// cut by close or truncate, or by `rows` of
    /// finish, while in flight or provisional. A cut draft counts here if
    /// accept kept it, if close dropped it, or if truncate cut it and
    /// finish dropped it
    pub rows_late: u64,
    /// drafts that accept did not keep, cut or not;
    /// and drafts that finish dropped unsettled, unless truncate had cut
    /// them
    pub rows_rejected: u64,
    /// their device position was outside the span's
    /// bounds
    pub rows_unplaced: u64,
    /// there was no memory for them
    pub rows_refused: u64,
    /// in spans of unknown requests
    pub rows_skipped: u64,
    /// of spans whose sink row another span of the
    /// step has too; see ROUTECAP_SPAN_SHARED
    pub rows_shared: u64,
    /// delivered with a valid cell where the
    /// request already had one
    pub rows_overlapped: u64,
    /// rows of rows_overlapped with different sets
    /// of ids in a cell that is valid in both; needs
    /// ROUTECAP_CONFIG_COMPARE
    pub rows_mismatched: u64,
    /// recorded rows outside the rows that were
    /// begun, of steps that landed
    pub rows_dropped: u64,
    /// recorded twice in one step, of steps that
    /// landed; one of the two records was kept
    pub cells_conflicting: u64,
    /// cells of landed rows that their step did not write,
    /// or not completely. Late and unplaced rows are not counted
    pub cells_unwritten: u64,
    /// likewise, with the reason OUT_OF_RANGE (reading.h)
    pub cells_out_of_range: u64,
    /// likewise, with the same id twice
    pub cells_duplicate: u64,
    /// Now.
    pub requests_open: u64,
    pub steps_in_flight: u64,
    /// of the budget: pages of requests and routings,
    /// provisional rows, and the charges of spans in flight
    pub bytes_in_use: u64,
    /// the highest bytes_in_use so far. It includes memory that
    /// an issue reserved and gave back at once, such as for a page that
    /// two of its spans share
    pub bytes_peak: u64,
    /// the limit of bytes_in_use, except for the excess that
    /// routecap_step_issue describes
    pub bytes_budget: u64,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of routecap_stats"][::core::mem::size_of::<routecap_stats>() - 224usize];
    ["Alignment of routecap_stats"][::core::mem::align_of::<routecap_stats>() - 8usize];
    ["Offset of field: routecap_stats::struct_size"]
        [::core::mem::offset_of!(routecap_stats, struct_size) - 0usize];
    ["Offset of field: routecap_stats::silent_layers"]
        [::core::mem::offset_of!(routecap_stats, silent_layers) - 4usize];
    ["Offset of field: routecap_stats::steps_issued"]
        [::core::mem::offset_of!(routecap_stats, steps_issued) - 8usize];
    ["Offset of field: routecap_stats::steps_landed"]
        [::core::mem::offset_of!(routecap_stats, steps_landed) - 16usize];
    ["Offset of field: routecap_stats::steps_lost"]
        [::core::mem::offset_of!(routecap_stats, steps_lost) - 24usize];
    ["Offset of field: routecap_stats::rows_issued"]
        [::core::mem::offset_of!(routecap_stats, rows_issued) - 32usize];
    ["Offset of field: routecap_stats::rows_in_flight"]
        [::core::mem::offset_of!(routecap_stats, rows_in_flight) - 40usize];
    ["Offset of field: routecap_stats::rows_provisional"]
        [::core::mem::offset_of!(routecap_stats, rows_provisional) - 48usize];
    ["Offset of field: routecap_stats::rows_delivered"]
        [::core::mem::offset_of!(routecap_stats, rows_delivered) - 56usize];
    ["Offset of field: routecap_stats::rows_missing"]
        [::core::mem::offset_of!(routecap_stats, rows_missing) - 64usize];
    ["Offset of field: routecap_stats::rows_lost"]
        [::core::mem::offset_of!(routecap_stats, rows_lost) - 72usize];
    ["Offset of field: routecap_stats::rows_late"]
        [::core::mem::offset_of!(routecap_stats, rows_late) - 80usize];
    ["Offset of field: routecap_stats::rows_rejected"]
        [::core::mem::offset_of!(routecap_stats, rows_rejected) - 88usize];
    ["Offset of field: routecap_stats::rows_unplaced"]
        [::core::mem::offset_of!(routecap_stats, rows_unplaced) - 96usize];
    ["Offset of field: routecap_stats::rows_refused"]
        [::core::mem::offset_of!(routecap_stats, rows_refused) - 104usize];
    ["Offset of field: routecap_stats::rows_skipped"]
        [::core::mem::offset_of!(routecap_stats, rows_skipped) - 112usize];
    ["Offset of field: routecap_stats::rows_shared"]
        [::core::mem::offset_of!(routecap_stats, rows_shared) - 120usize];
    ["Offset of field: routecap_stats::rows_overlapped"]
        [::core::mem::offset_of!(routecap_stats, rows_overlapped) - 128usize];
    ["Offset of field: routecap_stats::rows_mismatched"]
        [::core::mem::offset_of!(routecap_stats, rows_mismatched) - 136usize];
    ["Offset of field: routecap_stats::rows_dropped"]
        [::core::mem::offset_of!(routecap_stats, rows_dropped) - 144usize];
    ["Offset of field: routecap_stats::cells_conflicting"]
        [::core::mem::offset_of!(routecap_stats, cells_conflicting) - 152usize];
    ["Offset of field: routecap_stats::cells_unwritten"]
        [::core::mem::offset_of!(routecap_stats, cells_unwritten) - 160usize];
    ["Offset of field: routecap_stats::cells_out_of_range"]
        [::core::mem::offset_of!(routecap_stats, cells_out_of_range) - 168usize];
    ["Offset of field: routecap_stats::cells_duplicate"]
        [::core::mem::offset_of!(routecap_stats, cells_duplicate) - 176usize];
    ["Offset of field: routecap_stats::requests_open"]
        [::core::mem::offset_of!(routecap_stats, requests_open) - 184usize];
    ["Offset of field: routecap_stats::steps_in_flight"]
        [::core::mem::offset_of!(routecap_stats, steps_in_flight) - 192usize];
    ["Offset of field: routecap_stats::bytes_in_use"]
        [::core::mem::offset_of!(routecap_stats, bytes_in_use) - 200usize];
    ["Offset of field: routecap_stats::bytes_peak"]
        [::core::mem::offset_of!(routecap_stats, bytes_peak) - 208usize];
    ["Offset of field: routecap_stats::bytes_budget"]
        [::core::mem::offset_of!(routecap_stats, bytes_budget) - 216usize];
};
/// The counters of one layer, since the capturer was created. A cell is that layer's part of a
/// landed row. Late and unplaced rows are not counted.
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct routecap_layer_stats {
    /// cells that are valid
    pub rows_written: u64,
    /// cells that their step did not write, or not completely
    pub unwritten: u64,
    /// cells with the reason OUT_OF_RANGE (reading.h)
    pub out_of_range: u64,
    /// cells with the same id twice
    pub duplicate: u64,
    /// steps that landed with rows, none of which this layer wrote
    pub silent_steps: u64,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of routecap_layer_stats"][::core::mem::size_of::<routecap_layer_stats>() - 40usize];
    ["Alignment of routecap_layer_stats"][::core::mem::align_of::<routecap_layer_stats>() - 8usize];
    ["Offset of field: routecap_layer_stats::rows_written"]
        [::core::mem::offset_of!(routecap_layer_stats, rows_written) - 0usize];
    ["Offset of field: routecap_layer_stats::unwritten"]
        [::core::mem::offset_of!(routecap_layer_stats, unwritten) - 8usize];
    ["Offset of field: routecap_layer_stats::out_of_range"]
        [::core::mem::offset_of!(routecap_layer_stats, out_of_range) - 16usize];
    ["Offset of field: routecap_layer_stats::duplicate"]
        [::core::mem::offset_of!(routecap_layer_stats, duplicate) - 24usize];
    ["Offset of field: routecap_layer_stats::silent_steps"]
        [::core::mem::offset_of!(routecap_layer_stats, silent_steps) - 32usize];
};
unsafe extern "C" {
    /// Read the counters.
    ///
    /// @param[in] capturer  The capturer.
    /// @param[out] stats    The counters.
    pub fn routecap_capturer_stats(
        capturer: *const routecap_capturer,
        stats: *mut routecap_stats,
    ) -> routecap_status;
}
unsafe extern "C" {
    /// Read the counters of layers 0 to count-1.
    ///
    /// @param[in] capturer   The capturer.
    /// @param[out] stats     [count] elements of stat_size bytes.
    /// @param[in] stat_size  sizeof(routecap_layer_stats) of the caller, in bytes.
    /// @param[in] count      How many layers: at most routecap_config.layers.
    /// @return ROUTECAP_OK; ROUTECAP_ERR_UNKNOWN_LAYER (layers beyond routecap_config.layers).
    pub fn routecap_capturer_layer_stats(
        capturer: *const routecap_capturer,
        stats: *mut routecap_layer_stats,
        stat_size: usize,
        count: usize,
    ) -> routecap_status;
}
unsafe extern "C" {
    /// File the steps that the device has finished, on this thread.
    ///
    /// With ROUTECAP_CONFIG_MANUAL_PROGRESS this call does all the work of the worker thread. Use it in
    /// processes that allow no threads, and in tests. Calls that wait also file steps. Calls that read
    /// do not file steps, and do not carry out queued changes. So a reader sees new rows and changes of
    /// a request only after progress or a wait: routecap_routing_poll of a request that was finished
    /// returns ROUTECAP_PENDING until then, even if none of its rows was in flight, and
    /// routecap_step_poll may return ROUTECAP_LOST of a step whose rows are still in flight for
    /// routecap_request_extract.
    ///
    /// Any thread may call it. One call runs at a time, and others wait for it. It does not wait for the
    /// device. Without ROUTECAP_CONFIG_MANUAL_PROGRESS it does nothing.
    ///
    /// @param[in] capturer  The capturer.
    pub fn routecap_capturer_progress(capturer: *mut routecap_capturer) -> routecap_status;
}
/// Memory for the ids of one layer, or of several layers at equal distances: [layers, rows, k]
/// without strides. If a token may have fewer than k experts (layer_min_k), the router writes
/// ROUTECAP_NO_EXPERT into each column after the last expert.
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct routecap_sink {
    pub struct_size: u32,
    /// ROUTECAP_DTYPE_I16, _I32 or _I64
    pub dtype: routecap_dtype,
    /// [device] row 0, column 0 of the first layer, aligned to its element
    /// type
    pub ids: *mut ::core::ffi::c_void,
    /// rows present
    pub rows: u32,
    /// columns of a row, adjacent in memory: config.k, or the layer_k of these
    /// layers if config.layer_k is set. For routecap_step_arrive it is
    /// config.k in any case
    pub k: u32,
    /// elements from one row to the next, k or more; 0 means k
    pub row_stride: i64,
    /// elements from one layer to the next; 0 means rows * row_stride
    pub layer_stride: i64,
    /// the bytes at ids, to be checked as in routecap_source: without strides
    /// layers * rows * k elements exactly; 0: not stated. routecap_sink_layer
    /// does not state it
    pub ids_bytes: u64,
    /// config.weights_dtype if weights are given; otherwise 0
    pub weights_dtype: routecap_dtype,
    /// 0
    pub reserved: u32,
    /// [device] the weights of the same cells, with the same strides
    /// in elements. Begin fills the rows with NaN, so weights that
    /// nobody writes are missing. NULL: the weights of these layers
    /// are missing
    pub weights: *mut ::core::ffi::c_void,
    /// the bytes at weights, checked as ids_bytes; 0: not stated
    pub weights_bytes: u64,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of routecap_sink"][::core::mem::size_of::<routecap_sink>() - 72usize];
    ["Alignment of routecap_sink"][::core::mem::align_of::<routecap_sink>() - 8usize];
    ["Offset of field: routecap_sink::struct_size"]
        [::core::mem::offset_of!(routecap_sink, struct_size) - 0usize];
    ["Offset of field: routecap_sink::dtype"]
        [::core::mem::offset_of!(routecap_sink, dtype) - 4usize];
    ["Offset of field: routecap_sink::ids"][::core::mem::offset_of!(routecap_sink, ids) - 8usize];
    ["Offset of field: routecap_sink::rows"]
        [::core::mem::offset_of!(routecap_sink, rows) - 16usize];
    ["Offset of field: routecap_sink::k"][::core::mem::offset_of!(routecap_sink, k) - 20usize];
    ["Offset of field: routecap_sink::row_stride"]
        [::core::mem::offset_of!(routecap_sink, row_stride) - 24usize];
    ["Offset of field: routecap_sink::layer_stride"]
        [::core::mem::offset_of!(routecap_sink, layer_stride) - 32usize];
    ["Offset of field: routecap_sink::ids_bytes"]
        [::core::mem::offset_of!(routecap_sink, ids_bytes) - 40usize];
    ["Offset of field: routecap_sink::weights_dtype"]
        [::core::mem::offset_of!(routecap_sink, weights_dtype) - 48usize];
    ["Offset of field: routecap_sink::reserved"]
        [::core::mem::offset_of!(routecap_sink, reserved) - 52usize];
    ["Offset of field: routecap_sink::weights"]
        [::core::mem::offset_of!(routecap_sink, weights) - 56usize];
    ["Offset of field: routecap_sink::weights_bytes"]
        [::core::mem::offset_of!(routecap_sink, weights_bytes) - 64usize];
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
    /// Get the sink of a layer, so that the router can write its ids there.
    ///
    /// The address does not change afterwards. In each step, the router may write each row once. The
    /// stream must order this write after the begin and before the snapshot. A second write replaces the
    /// first, and nothing can notice it. Begin fills the rows with a value that is no id, so the
    /// snapshot finds cells that were not written. The router may also write unsigned integers of the
    /// size of the sink's dtype. If weights are captured, it writes them to sink->weights, by the same
    /// rules.
    ///
    /// @param[in] capturer  The capturer.
    /// @param[in] layer     The layer.
    /// @param[out] sink     The sink of this layer, with row_stride set. ids is NULL if the capturer is
    ///                      disabled. It is NULL too if the layer has no memory yet
    ///                      (ROUTECAP_CONFIG_EXTERNAL_SINK); the call does not fix its address then.
    /// @return ROUTECAP_OK; ROUTECAP_ERR_UNKNOWN_LAYER.
    pub fn routecap_sink_layer(
        capturer: *mut routecap_capturer,
        layer: u32,
        sink: *mut routecap_sink,
    ) -> routecap_status;
}
unsafe extern "C" {
    /// Use memory of the engine as the sink of some layers, instead of the library's. With
    /// ROUTECAP_CONFIG_EXTERNAL_SINK the library does not allocate the memory that is replaced.
    ///
    /// If a router or a fused kernel writes its ids there, nothing else has to record them. Bind only
    /// memory in which nothing rewrites the ids before the snapshot. If something rewrites them, record
    /// them before it does. routecap_step_begin writes to this memory: it clears the k columns of each
    /// row that is begun, of ids and of weights.
    ///
    /// Keep the memory valid and in place until the capturer is destroyed, and as long as graphs that
    /// write it are replayed. On a device it must be that device's own memory. Managed memory,
    /// page-locked host memory and the memory of a different device are ROUTECAP_ERR_ARGUMENT.
    ///
    /// The address of a sink never changes. It is fixed when the layer is bound, when its address is
    /// returned, or when the first step begins. After that only the same memory can be bound again.
    ///
    /// Not capturable.
    ///
    /// @param[in] capturer     The capturer.
    /// @param[in] first_layer  The first layer.
    /// @param[in] layers       How many layers, 1 or more.
    /// @param[in] sink         The memory, with routecap_config.rows rows or more, and the k of these
    ///                         layers. Layers with different layer_k need a call each.
    /// @return ROUTECAP_OK; ROUTECAP_ERR_UNKNOWN_LAYER; ROUTECAP_ERR_SHAPE_MISMATCH (rows or strides too
    ///         small, a different k, layers with different layer_k, ids_bytes or weights_bytes);
    ///         ROUTECAP_ERR_DTYPE (also if weights_dtype is not config.weights_dtype, is set without
    ///         weights, or is 0 with them); ROUTECAP_ERR_STATE (the address is fixed);
    ///         ROUTECAP_ERR_DEVICE; ROUTECAP_ERR_DEVICE_LOST.
    pub fn routecap_sink_bind(
        capturer: *mut routecap_capturer,
        first_layer: u32,
        layers: u32,
        sink: *const routecap_sink,
    ) -> routecap_status;
}
pub type routecap_source_flags = u32;
/// Expert ids as a router leaves them: a matrix [rows, k_source]. Usually you set dtype, ids and
/// rows, and leave the rest 0: the ids of source row i then go to sink row i as they are.
///
/// The library turns the numbers into ids of the capturer in this order:
///   1. Only the first k columns are used (the layer's layer_k). Engines that fuse shared experts
///      append their ids after these.
///   2. A number that equals `none`, if you state one, says that no expert was chosen. Such columns
///      must come after all experts of the cell. The next two steps leave them out.
///   3. If there is a table, an id becomes table[id]. An id outside the table becomes invalid.
///   4. `offset` is added.
/// If the result is outside the layer's range, the cell is missing. Nothing wraps around.
///
/// A matrix of another shape or type than it is said to be gives ids that are in range and wrong. So
/// state the bytes that there are at `ids` if you know them:
///   - With neither row_stride nor column_stride, they must be rows * k_source elements exactly.
///   - With a stride, they must reach up to the end of the last element that is used.
/// Otherwise the call returns ROUTECAP_ERR_SHAPE_MISMATCH, and the text has both numbers.
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct routecap_source {
    pub struct_size: u32,
    /// ROUTECAP_DTYPE_I16, _I32, _U32, _I64 or _ID16_BF16
    pub dtype: routecap_dtype,
    /// [device] row 0, column 0
    pub ids: *const ::core::ffi::c_void,
    /// the bytes at ids, of each layer alike; 0: not stated
    pub ids_bytes: u64,
    /// elements from one row to the next; 0 means k_source; ignored if
    /// there is only one row
    pub row_stride: i64,
    /// elements from one column to the next; 0 means 1
    pub column_stride: i64,
    /// rows present; with live_rows, the most that can be present
    pub rows: u32,
    /// columns present, the layer's layer_k or more; 0 means config.k,
    /// also where layer_k is less
    pub k_source: u32,
    /// [device] one number: only the first *live_rows rows hold ids;
    /// clamped to [0, rows]; NULL: all do
    pub live_rows: *const i32,
    /// [device] one number, added to first_row; NULL: 0
    pub row_base: *const i32,
    /// [device] [rows] the sink row of each source row, negative for
    /// none; first_row and row_base are then ignored. NULL: source rows
    /// go to consecutive sink rows
    pub row_index: *const i32,
    /// without row_index: the sink row of source row 0
    pub first_row: u32,
    /// added to each id
    pub offset: i32,
    /// [device] [table_size] the id for each source id, such as a load
    /// balancer's table from physical to logical ids; NULL: none
    pub table: *const i32,
    /// elements of table; 0 without one
    pub table_size: u32,
    /// 0, ROUTECAP_SOURCE_OVERLAP or ROUTECAP_SOURCE_WHOLE_STEP
    pub flags: routecap_source_flags,
    /// the number that says that no expert was chosen, such as -1 or
    /// the number of experts; with U32 a negative one in two's
    /// complement. 0: there is no such number, and -1 is out of range.
    /// Allowed only if layer_min_k is less than layer_k in a layer of
    /// the call. Where it is not, such a cell is out of range
    pub none: i32,
    /// config.weights_dtype if weights are given; otherwise 0
    pub weights_dtype: routecap_dtype,
    /// [device] row 0, column 0: the weight of each id, in adjacent
    /// columns, whatever column_stride is. NULL: none; but if dtype is
    /// ID16_BF16 and config.weights_dtype BF16, those in the ids are
    /// recorded
    pub weights: *const ::core::ffi::c_void,
    /// elements from one row of weights to the next, 0 or more;
    /// 0 means k_source
    pub weights_row_stride: i64,
    /// the bytes at weights, of each layer alike, checked as
    /// ids_bytes; 0: not stated
    pub weights_bytes: u64,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of routecap_source"][::core::mem::size_of::<routecap_source>() - 128usize];
    ["Alignment of routecap_source"][::core::mem::align_of::<routecap_source>() - 8usize];
    ["Offset of field: routecap_source::struct_size"]
        [::core::mem::offset_of!(routecap_source, struct_size) - 0usize];
    ["Offset of field: routecap_source::dtype"]
        [::core::mem::offset_of!(routecap_source, dtype) - 4usize];
    ["Offset of field: routecap_source::ids"]
        [::core::mem::offset_of!(routecap_source, ids) - 8usize];
    ["Offset of field: routecap_source::ids_bytes"]
        [::core::mem::offset_of!(routecap_source, ids_bytes) - 16usize];
    ["Offset of field: routecap_source::row_stride"]
        [::core::mem::offset_of!(routecap_source, row_stride) - 24usize];
    ["Offset of field: routecap_source::column_stride"]
        [::core::mem::offset_of!(routecap_source, column_stride) - 32usize];
    ["Offset of field: routecap_source::rows"]
        [::core::mem::offset_of!(routecap_source, rows) - 40usize];
    ["Offset of field: routecap_source::k_source"]
        [::core::mem::offset_of!(routecap_source, k_source) - 44usize];
    ["Offset of field: routecap_source::live_rows"]
        [::core::mem::offset_of!(routecap_source, live_rows) - 48usize];
    ["Offset of field: routecap_source::row_base"]
        [::core::mem::offset_of!(routecap_source, row_base) - 56usize];
    ["Offset of field: routecap_source::row_index"]
        [::core::mem::offset_of!(routecap_source, row_index) - 64usize];
    ["Offset of field: routecap_source::first_row"]
        [::core::mem::offset_of!(routecap_source, first_row) - 72usize];
    ["Offset of field: routecap_source::offset"]
        [::core::mem::offset_of!(routecap_source, offset) - 76usize];
    ["Offset of field: routecap_source::table"]
        [::core::mem::offset_of!(routecap_source, table) - 80usize];
    ["Offset of field: routecap_source::table_size"]
        [::core::mem::offset_of!(routecap_source, table_size) - 88usize];
    ["Offset of field: routecap_source::flags"]
        [::core::mem::offset_of!(routecap_source, flags) - 92usize];
    ["Offset of field: routecap_source::none"]
        [::core::mem::offset_of!(routecap_source, none) - 96usize];
    ["Offset of field: routecap_source::weights_dtype"]
        [::core::mem::offset_of!(routecap_source, weights_dtype) - 100usize];
    ["Offset of field: routecap_source::weights"]
        [::core::mem::offset_of!(routecap_source, weights) - 104usize];
    ["Offset of field: routecap_source::weights_row_stride"]
        [::core::mem::offset_of!(routecap_source, weights_row_stride) - 112usize];
    ["Offset of field: routecap_source::weights_bytes"]
        [::core::mem::offset_of!(routecap_source, weights_bytes) - 120usize];
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
    /// Call it after top-k, before anything rewrites the ids.
    ///
    /// You may record the rows of a layer in several calls (micro-batches, chunks), if they are
    /// disjoint. If a row is recorded twice, one record is kept: the first, if the streams order the
    /// two.
    ///   - The call notices the second record and returns ROUTECAP_ERR_CONFLICT if all of this holds:
    ///     the begin and both records were made outside graph capture; no snapshot, issue, discard or
    ///     graph capture came between them; and neither record has row_index, live_rows or row_base.
    ///   - Otherwise the device drops and counts the cells of the second record, and
    ///     routecap_step_finalize reports them.
    /// Rows at or beyond the number begun are dropped and counted: without a begin, all rows.
    ///
    /// Capturable. On the host backend the ids are copied before the call returns.
    ///
    /// @param[in] capturer  The capturer.
    /// @param[in] layer     The layer.
    /// @param[in] source    The ids, and the sink rows to write them to.
    /// @param[in] stream    A stream that is ordered after the router.
    /// @return ROUTECAP_OK. On error nothing is written: ROUTECAP_ERR_UNKNOWN_LAYER; ROUTECAP_ERR_DTYPE
    ///         (also if weights_dtype is not config.weights_dtype, or is set without weights, or is 0
    ///         with them); ROUTECAP_ERR_SHAPE_MISMATCH (k_source less than layer_k, or ids_bytes or
    ///         weights_bytes is not what is read); ROUTECAP_ERR_ARGUMENT (also `none` for a layer in
    ///         which each token has layer_k experts); ROUTECAP_ERR_CAPACITY (first_row + rows outside
    ///         the sink); ROUTECAP_ERR_CONFLICT; ROUTECAP_ERR_STATE (the layer has no sink, or none for
    ///         the weights that are given).
    pub fn routecap_layer_record(
        capturer: *mut routecap_capturer,
        layer: u32,
        source: *const routecap_source,
        stream: routecap_stream,
    ) -> routecap_status;
}
/// The ids of one layer among several.
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct routecap_layer_source {
    /// index of the captured layer
    pub layer: u32,
    /// 0
    pub reserved: u32,
    /// [device] as in routecap_source
    pub ids: *const ::core::ffi::c_void,
    /// [device] as in routecap_source; NULL if source.table_size is 0
    pub table: *const i32,
    /// [device] as in routecap_source; NULL: no weights of this layer
    pub weights: *const ::core::ffi::c_void,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of routecap_layer_source"][::core::mem::size_of::<routecap_layer_source>() - 32usize];
    ["Alignment of routecap_layer_source"]
        [::core::mem::align_of::<routecap_layer_source>() - 8usize];
    ["Offset of field: routecap_layer_source::layer"]
        [::core::mem::offset_of!(routecap_layer_source, layer) - 0usize];
    ["Offset of field: routecap_layer_source::reserved"]
        [::core::mem::offset_of!(routecap_layer_source, reserved) - 4usize];
    ["Offset of field: routecap_layer_source::ids"]
        [::core::mem::offset_of!(routecap_layer_source, ids) - 8usize];
    ["Offset of field: routecap_layer_source::table"]
        [::core::mem::offset_of!(routecap_layer_source, table) - 16usize];
    ["Offset of field: routecap_layer_source::weights"]
        [::core::mem::offset_of!(routecap_layer_source, weights) - 24usize];
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
    /// Copy the ids of several layers, with one launch per 64 layers.
    ///
    /// The ids of all layers must still exist when the stream reaches this call. Inside a CUDA graph,
    /// later layers may reuse the memory that holds the ids of a layer, so keep the ids of each layer in
    /// separate memory.
    ///
    /// With ROUTECAP_SOURCE_WHOLE_STEP the call also begins the step and takes its snapshot. In all
    /// other respects it is like one routecap_layer_record for each layer. If one layer is refused,
    /// nothing is recorded. Naming a layer twice is ROUTECAP_ERR_ARGUMENT. Capturable.
    ///
    /// @param[in] capturer    The capturer.
    /// @param[in] source      What the layers have in common. Set its ids, table and weights to NULL.
    /// @param[in] layers      [count] elements of layer_size bytes, each layer once.
    /// @param[in] layer_size  sizeof(routecap_layer_source) of the caller, in bytes.
    /// @param[in] count       How many layers.
    /// @param[in] stream      A stream that is ordered after the routers.
    /// @return As routecap_layer_record.
    pub fn routecap_layers_record(
        capturer: *mut routecap_capturer,
        source: *const routecap_source,
        layers: *const routecap_layer_source,
        layer_size: usize,
        count: usize,
        stream: routecap_stream,
    ) -> routecap_status;
}
pub type routecap_score = i32;
pub type routecap_group_score = i32;
pub type routecap_router_flags = u32;
pub type routecap_method = i32;
/// How a router chooses k of its experts. The key of an expert is its score plus its bias. The
/// experts with the k largest keys win. With groups, only the groups_kept groups with the largest
/// group scores take part. If keys are equal, the lower id wins; if group scores are equal, the
/// lower group. The ids are in descending order of their keys, one in each column.
///
/// A logit that is NaN gets the score that a logit of minus infinity would get, and its key is minus
/// infinity. If the largest logit is infinite, softmax counts logits equal to it as 1 and the others
/// as 0.
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct routecap_router {
    pub struct_size: u32,
    /// ROUTECAP_SCORE_*
    pub score: routecap_score,
    /// ROUTECAP_GROUP_*
    pub group_score: routecap_group_score,
    /// ROUTECAP_ROUTER_*
    pub flags: routecap_router_flags,
    /// groups of equal size, up to ROUTECAP_MAX_GROUPS; 0 or 1:
    /// none
    pub groups: u32,
    /// 1..groups, with k experts or more in them; not used without
    /// groups
    pub groups_kept: u32,
    /// weights are multiplied by it; 0 means 1
    pub scale: f32,
    /// see ROUTECAP_ROUTER_RENORMALIZE; routecap_router_init sets
    /// what the method's models use
    pub floor: f32,
    /// [device] [experts] added to the scores to rank experts; not
    /// part of the weights; NULL: none
    pub bias: *const ::core::ffi::c_void,
    /// ROUTECAP_DTYPE_F32, _F16 or _BF16, where bias is set
    pub bias_dtype: routecap_dtype,
    /// rows of hash_table; 0 without one
    pub hash_tokens: u32,
    /// [device] [hash_tokens, k] row t has the ids for token id t.
    /// Keys are then not used, and logits only for weights; NULL:
    /// none
    pub hash_table: *const i32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of routecap_router"][::core::mem::size_of::<routecap_router>() - 56usize];
    ["Alignment of routecap_router"][::core::mem::align_of::<routecap_router>() - 8usize];
    ["Offset of field: routecap_router::struct_size"]
        [::core::mem::offset_of!(routecap_router, struct_size) - 0usize];
    ["Offset of field: routecap_router::score"]
        [::core::mem::offset_of!(routecap_router, score) - 4usize];
    ["Offset of field: routecap_router::group_score"]
        [::core::mem::offset_of!(routecap_router, group_score) - 8usize];
    ["Offset of field: routecap_router::flags"]
        [::core::mem::offset_of!(routecap_router, flags) - 12usize];
    ["Offset of field: routecap_router::groups"]
        [::core::mem::offset_of!(routecap_router, groups) - 16usize];
    ["Offset of field: routecap_router::groups_kept"]
        [::core::mem::offset_of!(routecap_router, groups_kept) - 20usize];
    ["Offset of field: routecap_router::scale"]
        [::core::mem::offset_of!(routecap_router, scale) - 24usize];
    ["Offset of field: routecap_router::floor"]
        [::core::mem::offset_of!(routecap_router, floor) - 28usize];
    ["Offset of field: routecap_router::bias"]
        [::core::mem::offset_of!(routecap_router, bias) - 32usize];
    ["Offset of field: routecap_router::bias_dtype"]
        [::core::mem::offset_of!(routecap_router, bias_dtype) - 40usize];
    ["Offset of field: routecap_router::hash_tokens"]
        [::core::mem::offset_of!(routecap_router, hash_tokens) - 44usize];
    ["Offset of field: routecap_router::hash_table"]
        [::core::mem::offset_of!(routecap_router, hash_table) - 48usize];
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
    /// Fill a router with a routing method. Then set the fields that the method takes from the model.
    ///
    /// @param[out] router      The router.
    /// @param[in] struct_size  sizeof(routecap_router) of the caller, in bytes.
    /// @param[in] method       ROUTECAP_METHOD_*.
    pub fn routecap_router_init(
        router: *mut routecap_router,
        struct_size: usize,
        method: routecap_method,
    ) -> routecap_status;
}
/// The logits of one layer: a matrix [rows, experts].
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct routecap_logits {
    pub struct_size: u32,
    /// ROUTECAP_DTYPE_F32, _F16 or _BF16
    pub dtype: routecap_dtype,
    /// [device] row 0, column 0; may be NULL with a hash_table, if
    /// weights is NULL
    pub logits: *const ::core::ffi::c_void,
    /// elements from one row to the next; 0 means experts
    pub row_stride: i64,
    /// elements from one column to the next; 0 means 1
    pub column_stride: i64,
    /// as in routecap_source
    pub rows: u32,
    /// as in routecap_source
    pub first_row: u32,
    /// [device] as in routecap_source
    pub live_rows: *const i32,
    /// [device] as in routecap_source
    pub row_base: *const i32,
    /// [device] [rows] as in routecap_source
    pub row_index: *const i32,
    /// [device] [rows] the token id of each row, where the router has a
    /// hash_table
    pub tokens: *const ::core::ffi::c_void,
    /// ROUTECAP_DTYPE_I32 or _I64, where tokens is set
    pub tokens_dtype: routecap_dtype,
    /// columns: k or more, at most the layer's experts and
    /// ROUTECAP_MAX_ROUTED_EXPERTS; 0 means the layer's
    pub experts: u32,
    /// [device] [rows, weights_stride] receives the weight of each
    /// chosen expert, for every live row, even if the row is not begun
    /// or was recorded before; NULL: not wanted. A disabled capturer
    /// writes no weights
    pub weights: *mut f32,
    /// elements from one row to the next, k or more; 0 means k
    pub weights_stride: i64,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of routecap_logits"][::core::mem::size_of::<routecap_logits>() - 96usize];
    ["Alignment of routecap_logits"][::core::mem::align_of::<routecap_logits>() - 8usize];
    ["Offset of field: routecap_logits::struct_size"]
        [::core::mem::offset_of!(routecap_logits, struct_size) - 0usize];
    ["Offset of field: routecap_logits::dtype"]
        [::core::mem::offset_of!(routecap_logits, dtype) - 4usize];
    ["Offset of field: routecap_logits::logits"]
        [::core::mem::offset_of!(routecap_logits, logits) - 8usize];
    ["Offset of field: routecap_logits::row_stride"]
        [::core::mem::offset_of!(routecap_logits, row_stride) - 16usize];
    ["Offset of field: routecap_logits::column_stride"]
        [::core::mem::offset_of!(routecap_logits, column_stride) - 24usize];
    ["Offset of field: routecap_logits::rows"]
        [::core::mem::offset_of!(routecap_logits, rows) - 32usize];
    ["Offset of field: routecap_logits::first_row"]
        [::core::mem::offset_of!(routecap_logits, first_row) - 36usize];
    ["Offset of field: routecap_logits::live_rows"]
        [::core::mem::offset_of!(routecap_logits, live_rows) - 40usize];
    ["Offset of field: routecap_logits::row_base"]
        [::core::mem::offset_of!(routecap_logits, row_base) - 48usize];
    ["Offset of field: routecap_logits::row_index"]
        [::core::mem::offset_of!(routecap_logits, row_index) - 56usize];
    ["Offset of field: routecap_logits::tokens"]
        [::core::mem::offset_of!(routecap_logits, tokens) - 64usize];
    ["Offset of field: routecap_logits::tokens_dtype"]
        [::core::mem::offset_of!(routecap_logits, tokens_dtype) - 72usize];
    ["Offset of field: routecap_logits::experts"]
        [::core::mem::offset_of!(routecap_logits, experts) - 76usize];
    ["Offset of field: routecap_logits::weights"]
        [::core::mem::offset_of!(routecap_logits, weights) - 80usize];
    ["Offset of field: routecap_logits::weights_stride"]
        [::core::mem::offset_of!(routecap_logits, weights_stride) - 88usize];
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
    /// Choose the experts of one layer from its logits, and write their ids into the sink.
    ///
    /// Rows are placed, kept and dropped as in routecap_layer_record. Each token gets layer_k experts,
    /// even if layer_min_k is less. The call writes weights only to logits->weights: it records none, so
    /// the weights of its cells are missing if the capturer captures weights.
    ///
    /// Capturable. On the host backend the work is done before the call returns.
    ///
    /// @param[in] capturer  The capturer.
    /// @param[in] layer     A layer whose provenance is RECOMPUTED (otherwise ROUTECAP_ERR_STATE).
    /// @param[in] router    How the layer chooses.
    /// @param[in] logits    The logits, and the sink rows to write the ids to.
    /// @param[in] stream    A stream that is ordered after the logits.
    /// @return ROUTECAP_OK. On error nothing is written: ROUTECAP_ERR_UNKNOWN_LAYER; ROUTECAP_ERR_DTYPE
    ///         (logits, bias or tokens); ROUTECAP_ERR_ARGUMENT (also groups that do not divide the
    ///         experts, kept groups with fewer than k experts, too many experts, or a hash_table without
    ///         tokens); ROUTECAP_ERR_CAPACITY; ROUTECAP_ERR_CONFLICT; ROUTECAP_ERR_STATE.
    pub fn routecap_layer_route(
        capturer: *mut routecap_capturer,
        layer: u32,
        router: *const routecap_router,
        logits: *const routecap_logits,
        stream: routecap_stream,
    ) -> routecap_status;
}
unsafe extern "C" {
    /// Hand over the rows of a step that was issued with ROUTECAP_SNAPSHOT_LATER.
    ///
    /// The calls between the issue and this one work as on the CUDA backend: they may come while the
    /// rows are on their way, and take effect in the order in which they were made. Rows may arrive in
    /// any order. Steps are filed in the order in which they were issued.
    ///
    /// The step is in flight until its rows have been filed. At most config.slots steps may be in
    /// flight: one that is issued beyond them is lost, with or without ROUTECAP_CONFIG_MAY_LOSE. To lose
    /// none, wait for the oldest by routecap_step_finalize, while another thread hands over its rows.
    ///
    /// Such a capturer never begins a step. Once a step was issued in this way, routecap_step_begin
    /// returns ROUTECAP_ERR_STATE; once a step was begun, such an issue does. Set
    /// ROUTECAP_CONFIG_EXTERNAL_SINK, so that the library allocates no sink, and bind none.
    ///
    /// Fill the device's memory for ids with bytes 0x80, and that for weights with bytes 0xff (NaN),
    /// before each pass. What the pass does not write is then missing (UNWRITTEN), and never the id of
    /// an earlier pass.
    ///
    /// The call copies the rows and checks every cell before it returns, so their memory is free again
    /// after it. It does nothing if the rows were handed over before, if the step has landed, or if it
    /// was issued in another way. When the capturer is destroyed, steps whose rows have not arrived are
    /// lost.
    ///
    /// Any thread may call it, once the issue has returned. It does not wait.
    ///
    /// @param[in] capturer  The capturer.
    /// @param[in] step      The ticket.
    /// @param[in] rows      The rows of all layers, in host memory: ids (and weights, if captured) of
    ///                      sink row 0 of layer 0. rows->k is config.k; of a layer with a smaller
    ///                      layer_k the columns after that are not read. Set layer_stride if the memory
    ///                      has room for more than rows->rows rows. For an array [rows, layers, k],
    ///                      row_stride is layers * k, and layer_stride is k.
    ///                      Rows of spans at or beyond rows->rows are missing (ABSENT), in checked mode
    ///                      ROUTECAP_ERR_ROWS_NOT_BEGUN. Rows beyond the last that a span names are not
    ///                      read. NULL: the rows will not come, and the step is lost.
    /// @return ROUTECAP_OK; ROUTECAP_ERR_UNKNOWN_STEP (never issued); ROUTECAP_ERR_SHAPE_MISMATCH (a
    ///         different k, a stride below k, ids_bytes or weights_bytes); ROUTECAP_ERR_DTYPE (as of
    ///         routecap_sink_bind); in checked mode ROUTECAP_ERR_ROWS_NOT_BEGUN. On error the rows can
    ///         still arrive.
    pub fn routecap_step_arrive(
        capturer: *mut routecap_capturer,
        step: routecap_step,
        rows: *const routecap_sink,
    ) -> routecap_status;
}
pub type routecap_probe_flags = u32;
/// What the sink of a layer holds. Each row is in exactly one of the first three counts.
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct routecap_layer_probe {
    /// ROUTECAP_PROBE_*
    pub found: routecap_probe_flags,
    /// no column was written
    pub rows_unwritten: u32,
    /// some columns were written
    pub rows_incomplete: u32,
    /// all columns were written
    pub rows_written: u32,
    /// rows with at least one written id out of range
    pub rows_out_of_range: u32,
    /// written rows with all ids in range and one id twice
    pub rows_duplicate: u32,
    /// lowest id in range that was written; -1 if there is none
    pub lowest: i32,
    /// highest id in range that was written; -1 if there is none
    pub highest: i32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of routecap_layer_probe"][::core::mem::size_of::<routecap_layer_probe>() - 32usize];
    ["Alignment of routecap_layer_probe"][::core::mem::align_of::<routecap_layer_probe>() - 4usize];
    ["Offset of field: routecap_layer_probe::found"]
        [::core::mem::offset_of!(routecap_layer_probe, found) - 0usize];
    ["Offset of field: routecap_layer_probe::rows_unwritten"]
        [::core::mem::offset_of!(routecap_layer_probe, rows_unwritten) - 4usize];
    ["Offset of field: routecap_layer_probe::rows_incomplete"]
        [::core::mem::offset_of!(routecap_layer_probe, rows_incomplete) - 8usize];
    ["Offset of field: routecap_layer_probe::rows_written"]
        [::core::mem::offset_of!(routecap_layer_probe, rows_written) - 12usize];
    ["Offset of field: routecap_layer_probe::rows_out_of_range"]
        [::core::mem::offset_of!(routecap_layer_probe, rows_out_of_range) - 16usize];
    ["Offset of field: routecap_layer_probe::rows_duplicate"]
        [::core::mem::offset_of!(routecap_layer_probe, rows_duplicate) - 20usize];
    ["Offset of field: routecap_layer_probe::lowest"]
        [::core::mem::offset_of!(routecap_layer_probe, lowest) - 24usize];
    ["Offset of field: routecap_layer_probe::highest"]
        [::core::mem::offset_of!(routecap_layer_probe, highest) - 28usize];
};
unsafe extern "C" {
    /// Check what the latest forward pass wrote, layer by layer.
    ///
    /// Use it at startup, for one warm-up pass with many different tokens. Call it after the begin and
    /// the writes of that pass, and before the issue or discard. It changes nothing. For a disabled
    /// capturer all numbers are 0.
    ///
    /// The call waits until the device has done the work that is on the stream. Not capturable.
    ///
    /// @param[in] capturer    The capturer.
    /// @param[in] rows        Check sink rows 0..rows-1: the rows of the pass without padding. At most
    ///                        the rows begun.
    /// @param[out] layers     [count] elements of layer_size bytes, for layers 0..count-1.
    /// @param[in] layer_size  sizeof(routecap_layer_probe) of the caller, in bytes.
    /// @param[in] count       How many layers: at most routecap_config.layers.
    /// @param[in] stream      The stream of the forward pass.
    /// @return ROUTECAP_OK; ROUTECAP_PARTIAL (there are findings; see `found` of each layer);
    ///         ROUTECAP_ERR_UNKNOWN_LAYER (layers beyond routecap_config.layers); ROUTECAP_ERR_CAPACITY
    ///         (more rows than begun); ROUTECAP_ERR_STATE (no row is begun).
    pub fn routecap_capturer_probe(
        capturer: *mut routecap_capturer,
        rows: u32,
        layers: *mut routecap_layer_probe,
        layer_size: usize,
        count: usize,
        stream: routecap_stream,
    ) -> routecap_status;
}
pub type routecap_reason = i32;
/// A block of missing cells: consecutive rows, consecutive layers, one reason.
///
/// The library first joins consecutive rows with the same missing cells and reasons into the longest
/// possible runs. In each run, consecutive layers with the same reason form one block. Blocks are
/// ordered by row, then by layer.
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct routecap_missing {
    /// position of the first row
    pub first: u64,
    /// how many rows
    pub rows: u64,
    /// index of the first layer
    pub first_layer: u32,
    /// how many layers
    pub layers: u32,
    /// ROUTECAP_MISSING_*, of every cell of the block
    pub reason: routecap_reason,
    /// 0
    pub reserved: u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of routecap_missing"][::core::mem::size_of::<routecap_missing>() - 32usize];
    ["Alignment of routecap_missing"][::core::mem::align_of::<routecap_missing>() - 8usize];
    ["Offset of field: routecap_missing::first"]
        [::core::mem::offset_of!(routecap_missing, first) - 0usize];
    ["Offset of field: routecap_missing::rows"]
        [::core::mem::offset_of!(routecap_missing, rows) - 8usize];
    ["Offset of field: routecap_missing::first_layer"]
        [::core::mem::offset_of!(routecap_missing, first_layer) - 16usize];
    ["Offset of field: routecap_missing::layers"]
        [::core::mem::offset_of!(routecap_missing, layers) - 20usize];
    ["Offset of field: routecap_missing::reason"]
        [::core::mem::offset_of!(routecap_missing, reason) - 24usize];
    ["Offset of field: routecap_missing::reserved"]
        [::core::mem::offset_of!(routecap_missing, reserved) - 28usize];
};
/// How many cells of a range of rows are there.
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct routecap_coverage {
    pub struct_size: u32,
    /// of the request or routing
    pub layers: u32,
    /// position of the first row of the range
    pub first: u64,
    /// rows of the range
    pub rows: u64,
    /// one past the last position of the request or routing; see "Length"
    /// in requests.h
    pub length: u64,
    /// rows with every cell valid
    pub rows_complete: u64,
    /// rows with some cells valid
    pub rows_partial: u64,
    /// rows with no cell valid
    pub rows_empty: u64,
    /// cells of the range that are not valid
    pub cells_missing: u64,
    /// blocks of missing cells in the range
    pub blocks: u64,
    /// valid cells of layers whose provenance is RECOMPUTED
    pub cells_recomputed: u64,
    /// cells whose weights are there; 0 if no weights are captured.
    /// Cells without weights are not counted as missing
    pub cells_weighted: u64,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of routecap_coverage"][::core::mem::size_of::<routecap_coverage>() - 88usize];
    ["Alignment of routecap_coverage"][::core::mem::align_of::<routecap_coverage>() - 8usize];
    ["Offset of field: routecap_coverage::struct_size"]
        [::core::mem::offset_of!(routecap_coverage, struct_size) - 0usize];
    ["Offset of field: routecap_coverage::layers"]
        [::core::mem::offset_of!(routecap_coverage, layers) - 4usize];
    ["Offset of field: routecap_coverage::first"]
        [::core::mem::offset_of!(routecap_coverage, first) - 8usize];
    ["Offset of field: routecap_coverage::rows"]
        [::core::mem::offset_of!(routecap_coverage, rows) - 16usize];
    ["Offset of field: routecap_coverage::length"]
        [::core::mem::offset_of!(routecap_coverage, length) - 24usize];
    ["Offset of field: routecap_coverage::rows_complete"]
        [::core::mem::offset_of!(routecap_coverage, rows_complete) - 32usize];
    ["Offset of field: routecap_coverage::rows_partial"]
        [::core::mem::offset_of!(routecap_coverage, rows_partial) - 40usize];
    ["Offset of field: routecap_coverage::rows_empty"]
        [::core::mem::offset_of!(routecap_coverage, rows_empty) - 48usize];
    ["Offset of field: routecap_coverage::cells_missing"]
        [::core::mem::offset_of!(routecap_coverage, cells_missing) - 56usize];
    ["Offset of field: routecap_coverage::blocks"]
        [::core::mem::offset_of!(routecap_coverage, blocks) - 64usize];
    ["Offset of field: routecap_coverage::cells_recomputed"]
        [::core::mem::offset_of!(routecap_coverage, cells_recomputed) - 72usize];
    ["Offset of field: routecap_coverage::cells_weighted"]
        [::core::mem::offset_of!(routecap_coverage, cells_weighted) - 80usize];
};
pub type routecap_read_flags = u32;
pub type routecap_order = i32;
/// How to write ids into the caller's memory. Usually you set dtype, and `fill` is -1. The other
/// fields select layers and a layout.
///
/// Values for the fields that are written in place of ids must fit dtype. An unsigned dtype takes
/// a negative value in two's complement: -1 becomes 255 in U8.
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct routecap_copy_options {
    pub struct_size: u32,
    /// ROUTECAP_DTYPE_U8, _I16, _U16, _I32, _U32 or _I64. Required
    pub dtype: routecap_dtype,
    /// ROUTECAP_ORDER_*: of the mask, and of the ids if you give no
    /// strides
    pub order: routecap_order,
    /// 0, or ROUTECAP_READ_*
    pub flags: routecap_read_flags,
    /// the first layer to copy
    pub first_layer: u32,
    /// how many layers; 0 means all from first_layer on
    pub layers: u32,
    /// elements from one row to the next; 0 means as in a dense array of
    /// this order
    pub row_stride: i64,
    /// elements from one layer to the next; 0 means as in a dense array
    /// of this order
    pub layer_stride: i64,
    /// written for each id of a missing cell. Here 0 means 0 and not the
    /// default: routecap_copy_options_init sets -1
    pub fill: i64,
    /// written for each column of a valid cell that has no expert. Not
    /// used if every cell has k experts. 0 means 0 here too:
    /// routecap_copy_options_init sets ROUTECAP_NO_EXPERT
    pub none: i64,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of routecap_copy_options"][::core::mem::size_of::<routecap_copy_options>() - 56usize];
    ["Alignment of routecap_copy_options"]
        [::core::mem::align_of::<routecap_copy_options>() - 8usize];
    ["Offset of field: routecap_copy_options::struct_size"]
        [::core::mem::offset_of!(routecap_copy_options, struct_size) - 0usize];
    ["Offset of field: routecap_copy_options::dtype"]
        [::core::mem::offset_of!(routecap_copy_options, dtype) - 4usize];
    ["Offset of field: routecap_copy_options::order"]
        [::core::mem::offset_of!(routecap_copy_options, order) - 8usize];
    ["Offset of field: routecap_copy_options::flags"]
        [::core::mem::offset_of!(routecap_copy_options, flags) - 12usize];
    ["Offset of field: routecap_copy_options::first_layer"]
        [::core::mem::offset_of!(routecap_copy_options, first_layer) - 16usize];
    ["Offset of field: routecap_copy_options::layers"]
        [::core::mem::offset_of!(routecap_copy_options, layers) - 20usize];
    ["Offset of field: routecap_copy_options::row_stride"]
        [::core::mem::offset_of!(routecap_copy_options, row_stride) - 24usize];
    ["Offset of field: routecap_copy_options::layer_stride"]
        [::core::mem::offset_of!(routecap_copy_options, layer_stride) - 32usize];
    ["Offset of field: routecap_copy_options::fill"]
        [::core::mem::offset_of!(routecap_copy_options, fill) - 40usize];
    ["Offset of field: routecap_copy_options::none"]
        [::core::mem::offset_of!(routecap_copy_options, none) - 48usize];
};
unsafe extern "C" {
    /// Fill copy options with the defaults: fill -1, none ROUTECAP_NO_EXPERT, everything else 0. The
    /// caller then sets `dtype`.
    ///
    /// @param[out] options     The options.
    /// @param[in] struct_size  sizeof(routecap_copy_options) of the caller, in bytes.
    pub fn routecap_copy_options_init(
        options: *mut routecap_copy_options,
        struct_size: usize,
    ) -> routecap_status;
}
pub type routecap_policy = i32;
/// Options of a new request.
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct routecap_open_options {
    pub struct_size: u32,
    /// ROUTECAP_POLICY_*; default KEEP
    pub policy: routecap_policy,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of routecap_open_options"][::core::mem::size_of::<routecap_open_options>() - 8usize];
    ["Alignment of routecap_open_options"]
        [::core::mem::align_of::<routecap_open_options>() - 4usize];
    ["Offset of field: routecap_open_options::struct_size"]
        [::core::mem::offset_of!(routecap_open_options, struct_size) - 0usize];
    ["Offset of field: routecap_open_options::policy"]
        [::core::mem::offset_of!(routecap_open_options, policy) - 4usize];
};
unsafe extern "C" {
    /// Open one or more requests.
    ///
    /// @param[in] capturer   The capturer.
    /// @param[in] options    They apply to all requests of the call; NULL: the defaults.
    /// @param[out] requests  [count] the handles.
    /// @param[in] count      How many requests.
    /// @return ROUTECAP_OK; ROUTECAP_ERR_TOO_MANY_REQUESTS (none is opened).
    pub fn routecap_request_open(
        capturer: *mut routecap_capturer,
        options: *const routecap_open_options,
        requests: *mut routecap_request,
        count: usize,
    ) -> routecap_status;
}
unsafe extern "C" {
    /// Settle the drafts that one step issued for one request: keep some, drop the others.
    ///
    /// Drafts are the rows of spans with ROUTECAP_SPAN_SPECULATIVE. The drafts of a step can be settled
    /// only once. You may call accept before the step has landed, and after later steps were issued.
    /// Later spans may record the positions of dropped drafts.
    ///
    /// The pass that verifies speculative tokens also computes a row for the token before them. If that
    /// row is in the same span, it counts as draft 0, and you must keep it: add 1 to the number of
    /// accepted tokens. For example, a span of 5 rows verifies 4 tokens. If the first 2 of them are
    /// accepted, count is 3.
    ///
    /// If several rows have one position, a kept draft counts as issued at the moment of the accept:
    /// after the rows of all steps that were issued before the accept, and before those of later steps.
    ///
    /// You may keep rows that were lost, refused for memory or cut in the meantime. Lost and refused
    /// rows then count towards the request's length. Keeping a row that was cut has no effect.
    ///
    /// @param[in] capturer  The capturer.
    /// @param[in] request   The request.
    /// @param[in] step      The ticket of the step that issued the drafts.
    /// @param[in] rows      [count] strictly ascending indices of the drafts to keep, such as the
    ///                      accepted path of a tree. The request's drafts of that step are numbered
    ///                      from 0 in the order of the spans. NULL: the first `count` drafts.
    /// @param[in] count     How many drafts to keep; 0 keeps none.
    /// @return ROUTECAP_OK; ROUTECAP_ERR_UNKNOWN_REQUEST; ROUTECAP_ERR_UNKNOWN_STEP (the request has no
    ///         drafts in that step: none were issued, or they are settled); ROUTECAP_ERR_OUT_OF_RANGE
    ///         (an index or a count beyond the drafts).
    pub fn routecap_request_accept(
        capturer: *mut routecap_capturer,
        request: routecap_request,
        step: routecap_step,
        rows: *const u32,
        count: usize,
    ) -> routecap_status;
}
/// One call of routecap_request_accept: its parameters, and its status.
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct routecap_accept_item {
    pub request: routecap_request,
    pub step: routecap_step,
    /// [count]; may be NULL, as in routecap_request_accept
    pub rows: *const u32,
    pub count: u64,
    /// receives the status of this item
    pub status: routecap_status,
    /// 0
    pub reserved: i32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of routecap_accept_item"][::core::mem::size_of::<routecap_accept_item>() - 40usize];
    ["Alignment of routecap_accept_item"][::core::mem::align_of::<routecap_accept_item>() - 8usize];
    ["Offset of field: routecap_accept_item::request"]
        [::core::mem::offset_of!(routecap_accept_item, request) - 0usize];
    ["Offset of field: routecap_accept_item::step"]
        [::core::mem::offset_of!(routecap_accept_item, step) - 8usize];
    ["Offset of field: routecap_accept_item::rows"]
        [::core::mem::offset_of!(routecap_accept_item, rows) - 16usize];
    ["Offset of field: routecap_accept_item::count"]
        [::core::mem::offset_of!(routecap_accept_item, count) - 24usize];
    ["Offset of field: routecap_accept_item::status"]
        [::core::mem::offset_of!(routecap_accept_item, status) - 32usize];
    ["Offset of field: routecap_accept_item::reserved"]
        [::core::mem::offset_of!(routecap_accept_item, reserved) - 36usize];
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
    /// Settle the drafts of many requests in one call.
    ///
    /// @param[in] capturer   The capturer.
    /// @param[in,out] items  [count] elements of item_size bytes.
    /// @param[in] item_size  sizeof(routecap_accept_item) of the caller, in bytes.
    /// @param[in] count      How many items.
    /// @return ROUTECAP_OK; ROUTECAP_PARTIAL.
    pub fn routecap_request_accept_batch(
        capturer: *mut routecap_capturer,
        items: *mut routecap_accept_item,
        item_size: usize,
        count: usize,
    ) -> routecap_status;
}
unsafe extern "C" {
    /// Cut a request: drop its rows at and after a position, whether settled, provisional or in flight.
    ///
    /// Later spans may record those positions anew. If no row was issued at or after `rows`, nothing
    /// happens.
    ///
    /// @param[in] capturer  The capturer.
    /// @param[in] request   The request.
    /// @param[in] rows      How many rows stay: the position of the first row that is dropped.
    /// @return ROUTECAP_OK; ROUTECAP_ERR_UNKNOWN_REQUEST.
    pub fn routecap_request_truncate(
        capturer: *mut routecap_capturer,
        request: routecap_request,
        rows: u64,
    ) -> routecap_status;
}
unsafe extern "C" {
    /// Open a request that begins with the first rows of another. Use it for several samples of one
    /// prompt, or for a beam.
    ///
    /// Pages are shared, not copied. The child gets rows in flight once they land. It does not get
    /// provisional rows. If there is no memory for the child's table of pages, its shared rows are
    /// missing. The parent's shared rows cannot be taken (ROUTECAP_EXTRACT_TAKE) until its steps that
    /// are in flight at the fork have landed; before that, taking returns ROUTECAP_ERR_NOT_READY.
    ///
    /// @param[in] capturer  The capturer.
    /// @param[in] request   The parent.
    /// @param[in] rows      How many rows: at most the parent's length. ROUTECAP_ROWS_ALL: the parent's
    ///                      length at this moment.
    /// @param[out] child    The handle; 0 on error. The child has the parent's policy.
    /// @return ROUTECAP_OK; ROUTECAP_ERR_UNKNOWN_REQUEST; ROUTECAP_ERR_OUT_OF_RANGE;
    ///         ROUTECAP_ERR_TOO_MANY_REQUESTS.
    pub fn routecap_request_fork(
        capturer: *mut routecap_capturer,
        request: routecap_request,
        rows: u64,
        child: *mut routecap_request,
    ) -> routecap_status;
}
unsafe extern "C" {
    /// Add rows of a routing to a request. Use it if an engine took tokens from its prefix cache: the
    /// routing of the request that computed these tokens has their rows.
    ///
    /// Rows keep their positions. You vouch that the routing and the request have the same tokens at
    /// these positions. Cells that the request already has are kept, even with ROUTECAP_POLICY_REPLACE.
    /// Where rows line up with pages, the pages are shared. Other rows are copied; if there is no memory
    /// for a copy, they are missing (REFUSED). If the request's length was less than `rows`, it becomes
    /// `rows`. With `rows` up to the routing's first row nothing is added, and the length stays.
    ///
    /// @param[in] capturer  The capturer.
    /// @param[in] request   The request.
    /// @param[in] routing   The routing, which the library retains as long as it needs it. It may be
    ///                      pending if it comes from a request of the same capturer.
    /// @param[in] rows      One past the last position to add: at most the end of the routing.
    ///                      ROUTECAP_ROWS_ALL: the end of the routing.
    /// @return ROUTECAP_OK; ROUTECAP_ERR_UNKNOWN_REQUEST; ROUTECAP_ERR_SHAPE_MISMATCH (also if the
    ///         weights_dtype differs, or if a layer is recomputed in the routing and captured here);
    ///         ROUTECAP_ERR_OUT_OF_RANGE;
    ///         ROUTECAP_ERR_NOT_READY (pending, and of another capturer).
    pub fn routecap_request_attach(
        capturer: *mut routecap_capturer,
        request: routecap_request,
        routing: *const routecap_routing,
        rows: u64,
    ) -> routecap_status;
}
unsafe extern "C" {
    /// End a request and get its rows. This is the usual way to end a request.
    ///
    /// The handle ends with the call. Rows of steps that were issued before the call are still filed
    /// into the routing. The routing is ready when the last of these steps has landed;
    /// routecap_routing_wait waits for that. Drafts that were not accepted are dropped. The routing
    /// begins at position 0. Rows that an extract took earlier are missing in it (TAKEN).
    ///
    /// @param[in] capturer  The capturer.
    /// @param[in] request   The request.
    /// @param[in] rows      How many rows the routing has. Those of them that were never issued are
    ///                      missing (ABSENT). Later rows are cut. For a sequence of S tokens pass S-1,
    ///                      even if the engine issued further rows ahead. ROUTECAP_ROWS_ALL: the
    ///                      request's length, rows issued ahead included.
    /// @param[out] routing  The routing, to be freed with routecap_routing_free; NULL on error.
    /// @return ROUTECAP_OK; ROUTECAP_ERR_UNKNOWN_REQUEST; ROUTECAP_ERR_OUT_OF_RANGE (rows beyond
    ///         ROUTECAP_MAX_POSITION); ROUTECAP_ERR_DISABLED.
    pub fn routecap_request_finish(
        capturer: *mut routecap_capturer,
        request: routecap_request,
        rows: u64,
        routing: *mut *mut routecap_routing,
    ) -> routecap_status;
}
/// One call of routecap_request_finish: its parameters, and its status.
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct routecap_finish_item {
    pub request: routecap_request,
    pub rows: u64,
    /// receives the routing; NULL on error
    pub routing: *mut routecap_routing,
    /// receives the status of this item
    pub status: routecap_status,
    /// 0
    pub reserved: i32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of routecap_finish_item"][::core::mem::size_of::<routecap_finish_item>() - 32usize];
    ["Alignment of routecap_finish_item"][::core::mem::align_of::<routecap_finish_item>() - 8usize];
    ["Offset of field: routecap_finish_item::request"]
        [::core::mem::offset_of!(routecap_finish_item, request) - 0usize];
    ["Offset of field: routecap_finish_item::rows"]
        [::core::mem::offset_of!(routecap_finish_item, rows) - 8usize];
    ["Offset of field: routecap_finish_item::routing"]
        [::core::mem::offset_of!(routecap_finish_item, routing) - 16usize];
    ["Offset of field: routecap_finish_item::status"]
        [::core::mem::offset_of!(routecap_finish_item, status) - 24usize];
    ["Offset of field: routecap_finish_item::reserved"]
        [::core::mem::offset_of!(routecap_finish_item, reserved) - 28usize];
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
    /// End many requests and get their rows, in one call.
    ///
    /// @param[in] capturer   The capturer.
    /// @param[in,out] items  [count] elements of item_size bytes.
    /// @param[in] item_size  sizeof(routecap_finish_item) of the caller, in bytes.
    /// @param[in] count      How many items.
    /// @return ROUTECAP_OK; ROUTECAP_PARTIAL; ROUTECAP_ERR_DISABLED.
    pub fn routecap_request_finish_batch(
        capturer: *mut routecap_capturer,
        items: *mut routecap_finish_item,
        item_size: usize,
        count: usize,
    ) -> routecap_status;
}
unsafe extern "C" {
    /// End a request and drop its rows: for example after an abort, or after a preemption if you do not
    /// want to keep the rows.
    ///
    /// Rows in flight are dropped when they land.
    ///
    /// @param[in] capturer  The capturer.
    /// @param[in] request   The request; 0 is allowed and ignored.
    /// @return ROUTECAP_OK; ROUTECAP_ERR_UNKNOWN_REQUEST.
    pub fn routecap_request_close(
        capturer: *mut routecap_capturer,
        request: routecap_request,
    ) -> routecap_status;
}
unsafe extern "C" {
    /// End many requests and drop their rows, in one call.
    ///
    /// @param[in] capturer  The capturer.
    /// @param[in] requests  [count] the requests; 0 is allowed and ignored.
    /// @param[out] status   [count] the status of each; may be NULL.
    /// @param[in] count     How many requests.
    /// @return ROUTECAP_OK; ROUTECAP_PARTIAL.
    pub fn routecap_request_close_batch(
        capturer: *mut routecap_capturer,
        requests: *const routecap_request,
        status: *mut routecap_status,
        count: usize,
    ) -> routecap_status;
}
unsafe extern "C" {
    /// Tell which cells of a range of rows are valid and which are missing.
    ///
    /// @param[in] capturer      The capturer.
    /// @param[in] request       The request.
    /// @param[in] first         Position of the first row, at most the length.
    /// @param[in] rows          How many rows; ROUTECAP_ROWS_ALL; ROUTECAP_ROWS_LANDED.
    /// @param[out] coverage     The counts.
    /// @param[out] missing      [capacity] elements of missing_size bytes: the first blocks of missing
    ///                          cells. coverage->blocks is the number of all of them. May be NULL if
    ///                          capacity is 0.
    /// @param[in] missing_size  sizeof(routecap_missing) of the caller, in bytes.
    /// @param[in] capacity      How many elements there is room for.
    /// @return ROUTECAP_OK; ROUTECAP_INCOMPLETE (also if no cell is valid);
    ///         ROUTECAP_ERR_UNKNOWN_REQUEST; ROUTECAP_ERR_OUT_OF_RANGE; ROUTECAP_ERR_NOT_READY;
    ///         ROUTECAP_ERR_DISABLED.
    pub fn routecap_request_coverage(
        capturer: *mut routecap_capturer,
        request: routecap_request,
        first: u64,
        rows: u64,
        coverage: *mut routecap_coverage,
        missing: *mut routecap_missing,
        missing_size: usize,
        capacity: usize,
    ) -> routecap_status;
}
pub type routecap_extract_mode = i32;
unsafe extern "C" {
    /// Read rows of a request into a routing.
    ///
    /// TAKE returns ROUTECAP_ERR_NOT_READY as long as a fork or a publish (store.h) is still to get some
    /// of the rows: until the request's steps that were in flight at that call have landed.
    ///
    /// SHARE and TAKE cost a few nanoseconds per page. COPY costs one pass over the rows. The memory of
    /// the rows counts in the budget until the routing is freed. COPY takes new memory from the budget.
    /// TAKE does too if all taken rows lie in one page, and rows before and after them stay in it.
    /// Without that memory the call returns ROUTECAP_ERR_NO_MEMORY. SHARE needs no new memory.
    ///
    /// Drafts, and steps that are issued after the call, may still fill cells at positions that are read
    /// here. Whoever files them then copies the page first, because a routing never changes. That copy
    /// may exceed the budget (see routecap_step_issue).
    ///
    /// @param[in] capturer  The capturer.
    /// @param[in] request   The request.
    /// @param[in] first     Position of the first row, at most the length.
    /// @param[in] rows      How many rows; ROUTECAP_ROWS_ALL; ROUTECAP_ROWS_LANDED. 0 gives a routing
    ///                      without rows.
    /// @param[in] mode      ROUTECAP_EXTRACT_*.
    /// @param[in] flags     0, or ROUTECAP_READ_*.
    /// @param[out] routing  The routing, to be freed with routecap_routing_free; NULL on error.
    /// @return ROUTECAP_OK; ROUTECAP_INCOMPLETE (the valid cells are delivered); ROUTECAP_NOT_CAPTURED
    ///         (a routing whose cells are all missing); ROUTECAP_ERR_UNKNOWN_REQUEST;
    ///         ROUTECAP_ERR_OUT_OF_RANGE; ROUTECAP_ERR_NOT_READY; ROUTECAP_ERR_INCOMPLETE (strict);
    ///         ROUTECAP_ERR_RECOMPUTED (strict); ROUTECAP_ERR_DISABLED.
    pub fn routecap_request_extract(
        capturer: *mut routecap_capturer,
        request: routecap_request,
        first: u64,
        rows: u64,
        mode: routecap_extract_mode,
        flags: routecap_read_flags,
        routing: *mut *mut routecap_routing,
    ) -> routecap_status;
}
/// One call of routecap_request_extract: its parameters, and its status.
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct routecap_extract_item {
    pub request: routecap_request,
    pub first: u64,
    pub rows: u64,
    pub mode: routecap_extract_mode,
    pub flags: routecap_read_flags,
    /// receives the routing; NULL on error
    pub routing: *mut routecap_routing,
    /// receives the status of this item
    pub status: routecap_status,
    /// 0
    pub reserved: i32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of routecap_extract_item"][::core::mem::size_of::<routecap_extract_item>() - 48usize];
    ["Alignment of routecap_extract_item"]
        [::core::mem::align_of::<routecap_extract_item>() - 8usize];
    ["Offset of field: routecap_extract_item::request"]
        [::core::mem::offset_of!(routecap_extract_item, request) - 0usize];
    ["Offset of field: routecap_extract_item::first"]
        [::core::mem::offset_of!(routecap_extract_item, first) - 8usize];
    ["Offset of field: routecap_extract_item::rows"]
        [::core::mem::offset_of!(routecap_extract_item, rows) - 16usize];
    ["Offset of field: routecap_extract_item::mode"]
        [::core::mem::offset_of!(routecap_extract_item, mode) - 24usize];
    ["Offset of field: routecap_extract_item::flags"]
        [::core::mem::offset_of!(routecap_extract_item, flags) - 28usize];
    ["Offset of field: routecap_extract_item::routing"]
        [::core::mem::offset_of!(routecap_extract_item, routing) - 32usize];
    ["Offset of field: routecap_extract_item::status"]
        [::core::mem::offset_of!(routecap_extract_item, status) - 40usize];
    ["Offset of field: routecap_extract_item::reserved"]
        [::core::mem::offset_of!(routecap_extract_item, reserved) - 44usize];
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
    /// @param[in] capturer   The capturer.
    /// @param[in,out] items  [count] elements of item_size bytes.
    /// @param[in] item_size  sizeof(routecap_extract_item) of the caller, in bytes.
    /// @param[in] count      How many items.
    /// @return ROUTECAP_OK; ROUTECAP_PARTIAL (also if an item is INCOMPLETE); ROUTECAP_ERR_DISABLED.
    pub fn routecap_request_extract_batch(
        capturer: *mut routecap_capturer,
        items: *mut routecap_extract_item,
        item_size: usize,
        count: usize,
    ) -> routecap_status;
}
unsafe extern "C" {
    /// Copy rows of a request to the caller's memory, without a routing.
    ///
    /// If the fill of missing cells, in this dtype, is also an expert id, a reader could not tell the
    /// two apart. The call then requires a mask or ROUTECAP_READ_STRICT. With 8 bits and 256 experts,
    /// every fill is an expert id.
    ///
    /// Where cells may have fewer than k experts, options->none must not be an expert id in this dtype.
    /// If it equals the fill, the call requires a mask or ROUTECAP_READ_STRICT too.
    ///
    /// The call copies ids alone. To copy weights, extract a routing and call
    /// routecap_routing_copy_weights.
    ///
    /// @param[in] capturer    The capturer.
    /// @param[in] request     The request.
    /// @param[in] first       Position of the first row, at most the length.
    /// @param[in] rows        How many rows; ROUTECAP_ROWS_ALL; ROUTECAP_ROWS_LANDED.
    /// @param[in] options     The dtype, layers and layout of dst.
    /// @param[out] dst        [rows, layers, k] elements of options->dtype, in the layout of options.
    ///                        NULL with dst_bytes 0 asks for the size, and the call returns
    ///                        ROUTECAP_ERR_BUFFER_TOO_SMALL.
    /// @param[in] dst_bytes   Size of dst, in bytes.
    /// @param[out] mask       [rows, layers] or [layers, rows] bytes, as options->order says: 1 for a
    ///                        valid cell, 0 for a missing one; NULL if you do not want it.
    /// @param[in] mask_bytes  Size of mask, in bytes.
    /// @param[out] needed     How many bytes dst needs, set on ROUTECAP_ERR_BUFFER_TOO_SMALL too; may be
    ///                        NULL.
    /// @return As routecap_request_extract, and ROUTECAP_ERR_BUFFER_TOO_SMALL (dst or mask; nothing is
    ///         written); ROUTECAP_ERR_DTYPE (the dtype cannot hold experts - 1, the fill or `none`);
    ///         ROUTECAP_ERR_UNKNOWN_LAYER; ROUTECAP_ERR_ARGUMENT (a fill or a `none` that could be
    ///         mistaken, see above; or strides with which cells overlap: each row must end before the
    ///         next row begins, or each layer before the next layer begins).
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
    ) -> routecap_status;
}
/// Consecutive rows, view.row_stride bytes apart: row r has its ids at `ids` plus r * row_stride
/// bytes. Its validity, its weights and their validity are found likewise, each from its own
/// pointer. The rows of a routing may be in several segments: routecap_routing_copy_to and
/// routecap_routing_copy_weights make one array of them all.
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct routecap_segment {
    /// position of the first row
    pub first: u64,
    /// how many
    pub rows: u64,
    /// of the first row: [layers, k] elements of view.dtype, in C order.
    /// NULL: all cells of these rows are missing, and `reason` says why
    pub ids: *const ::core::ffi::c_void,
    /// of the first row: [validity_bytes] bit l % 8 of byte l / 8, from the
    /// least significant, is 1 if layer l is valid. NULL: all layers of all
    /// these rows are
    pub validity: *const u8,
    /// [rows] the tag of each row, meaningless where no cell of the row is
    /// valid; NULL: `tag` is the tag of all rows
    pub tags: *const u64,
    /// the tag of all rows, where tags is NULL
    pub tag: u64,
    /// with ids NULL: ROUTECAP_MISSING_*, one of the reasons of whole rows.
    /// Otherwise 0
    pub reason: routecap_reason,
    /// 0
    pub reserved: u32,
    /// of the first row: [layers, k] elements of view.weights_dtype; 0 in
    /// columns without an expert and in cells without weights. NULL if ids
    /// is NULL, or if view.weights_dtype is 0
    pub weights: *const ::core::ffi::c_void,
    /// of the first row: [validity_bytes] bits as in `validity`: 1
    /// if the weights of the layer are there. Unlike `validity`
    /// never NULL where there are weights
    pub weights_validity: *const u8,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of routecap_segment"][::core::mem::size_of::<routecap_segment>() - 72usize];
    ["Alignment of routecap_segment"][::core::mem::align_of::<routecap_segment>() - 8usize];
    ["Offset of field: routecap_segment::first"]
        [::core::mem::offset_of!(routecap_segment, first) - 0usize];
    ["Offset of field: routecap_segment::rows"]
        [::core::mem::offset_of!(routecap_segment, rows) - 8usize];
    ["Offset of field: routecap_segment::ids"]
        [::core::mem::offset_of!(routecap_segment, ids) - 16usize];
    ["Offset of field: routecap_segment::validity"]
        [::core::mem::offset_of!(routecap_segment, validity) - 24usize];
    ["Offset of field: routecap_segment::tags"]
        [::core::mem::offset_of!(routecap_segment, tags) - 32usize];
    ["Offset of field: routecap_segment::tag"]
        [::core::mem::offset_of!(routecap_segment, tag) - 40usize];
    ["Offset of field: routecap_segment::reason"]
        [::core::mem::offset_of!(routecap_segment, reason) - 48usize];
    ["Offset of field: routecap_segment::reserved"]
        [::core::mem::offset_of!(routecap_segment, reserved) - 52usize];
    ["Offset of field: routecap_segment::weights"]
        [::core::mem::offset_of!(routecap_segment, weights) - 56usize];
    ["Offset of field: routecap_segment::weights_validity"]
        [::core::mem::offset_of!(routecap_segment, weights_validity) - 64usize];
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
/// The contents of a routing, in place.
///
/// In a cell that is not valid, the first of the k ids is the reason, ROUTECAP_MISSING_*. Imported
/// arrays may have a different number there: the reason is then UNWRITTEN. The other ids of the cell
/// have no meaning.
///
/// A valid cell with fewer than k experts has them in its first columns. In its other columns all
/// bits are set: 255 as a uint8, -1 as an int16.
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct routecap_view {
    pub struct_size: u32,
    /// of the ids: ROUTECAP_DTYPE_U8 if experts <= 256, or <= 255 where
    /// a cell may have fewer than k; otherwise _I16
    pub dtype: routecap_dtype,
    /// captured layers that the routing has
    pub layers: u32,
    /// columns of a cell: the most experts of a token
    pub k: u32,
    /// the most of any layer
    pub experts: u32,
    /// bytes of validity per row
    pub validity_bytes: u32,
    /// ROUTECAP_ID_SPACE_*
    pub id_space: routecap_id_space,
    /// 1: no cell is missing; otherwise 0
    pub complete: i32,
    /// position of the first row
    pub first: u64,
    /// of the whole routing
    pub rows: u64,
    /// bytes from one row of a segment to the next, the same for ids,
    /// weights and the validity of both; a multiple of the size of an
    /// id and of a weight
    pub row_stride: u64,
    /// [layers] each layer's index in the decoder
    pub layer_map: *const i32,
    /// [layers] experts of each layer
    pub layer_experts: *const u32,
    /// [segment_count] all rows, in order
    pub segments: *const routecap_segment,
    /// bytes from one segment to the next
    pub segment_size: usize,
    /// how many segments
    pub segment_count: usize,
    /// [layers] ROUTECAP_PROVENANCE_*
    pub layer_provenance: *const routecap_provenance,
    /// [layers] the most experts of a token in each layer
    pub layer_k: *const u32,
    /// [layers] the fewest experts of a token in each layer
    pub layer_min_k: *const u32,
    /// [layers] as in routecap_config; 0 unless the decoder runs a
    /// layer several times
    pub layer_visit: *const u32,
    /// of the weights: ROUTECAP_DTYPE_F32, _F16 or _BF16; 0: there
    /// are none
    pub weights_dtype: routecap_dtype,
    /// 0
    pub reserved: u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of routecap_view"][::core::mem::size_of::<routecap_view>() - 136usize];
    ["Alignment of routecap_view"][::core::mem::align_of::<routecap_view>() - 8usize];
    ["Offset of field: routecap_view::struct_size"]
        [::core::mem::offset_of!(routecap_view, struct_size) - 0usize];
    ["Offset of field: routecap_view::dtype"]
        [::core::mem::offset_of!(routecap_view, dtype) - 4usize];
    ["Offset of field: routecap_view::layers"]
        [::core::mem::offset_of!(routecap_view, layers) - 8usize];
    ["Offset of field: routecap_view::k"][::core::mem::offset_of!(routecap_view, k) - 12usize];
    ["Offset of field: routecap_view::experts"]
        [::core::mem::offset_of!(routecap_view, experts) - 16usize];
    ["Offset of field: routecap_view::validity_bytes"]
        [::core::mem::offset_of!(routecap_view, validity_bytes) - 20usize];
    ["Offset of field: routecap_view::id_space"]
        [::core::mem::offset_of!(routecap_view, id_space) - 24usize];
    ["Offset of field: routecap_view::complete"]
        [::core::mem::offset_of!(routecap_view, complete) - 28usize];
    ["Offset of field: routecap_view::first"]
        [::core::mem::offset_of!(routecap_view, first) - 32usize];
    ["Offset of field: routecap_view::rows"]
        [::core::mem::offset_of!(routecap_view, rows) - 40usize];
    ["Offset of field: routecap_view::row_stride"]
        [::core::mem::offset_of!(routecap_view, row_stride) - 48usize];
    ["Offset of field: routecap_view::layer_map"]
        [::core::mem::offset_of!(routecap_view, layer_map) - 56usize];
    ["Offset of field: routecap_view::layer_experts"]
        [::core::mem::offset_of!(routecap_view, layer_experts) - 64usize];
    ["Offset of field: routecap_view::segments"]
        [::core::mem::offset_of!(routecap_view, segments) - 72usize];
    ["Offset of field: routecap_view::segment_size"]
        [::core::mem::offset_of!(routecap_view, segment_size) - 80usize];
    ["Offset of field: routecap_view::segment_count"]
        [::core::mem::offset_of!(routecap_view, segment_count) - 88usize];
    ["Offset of field: routecap_view::layer_provenance"]
        [::core::mem::offset_of!(routecap_view, layer_provenance) - 96usize];
    ["Offset of field: routecap_view::layer_k"]
        [::core::mem::offset_of!(routecap_view, layer_k) - 104usize];
    ["Offset of field: routecap_view::layer_min_k"]
        [::core::mem::offset_of!(routecap_view, layer_min_k) - 112usize];
    ["Offset of field: routecap_view::layer_visit"]
        [::core::mem::offset_of!(routecap_view, layer_visit) - 120usize];
    ["Offset of field: routecap_view::weights_dtype"]
        [::core::mem::offset_of!(routecap_view, weights_dtype) - 128usize];
    ["Offset of field: routecap_view::reserved"]
        [::core::mem::offset_of!(routecap_view, reserved) - 132usize];
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
    /// Wait until a routing is ready.
    ///
    /// With ROUTECAP_CONFIG_MANUAL_PROGRESS the calling thread files the steps that can land.
    ///
    /// @param[in] routing     The routing.
    /// @param[in] timeout_ns  Nanoseconds; 0 looks once; a negative number waits without limit.
    /// @return ROUTECAP_OK (ready and complete); ROUTECAP_INCOMPLETE (ready, cells are missing);
    ///         ROUTECAP_NOT_CAPTURED (ready, no cell is valid); ROUTECAP_PENDING (timeout).
    pub fn routecap_routing_wait(
        routing: *const routecap_routing,
        timeout_ns: i64,
    ) -> routecap_status;
}
unsafe extern "C" {
    /// Tell whether a routing is ready. The call neither waits nor files steps.
    ///
    /// @param[in] routing  The routing.
    /// @return As routecap_routing_wait; ROUTECAP_PENDING if it is not ready.
    pub fn routecap_routing_poll(routing: *const routecap_routing) -> routecap_status;
}
unsafe extern "C" {
    /// Get the contents of a routing in place, without copying them.
    ///
    /// @param[in] routing  The routing.
    /// @param[out] view    Its contents. The pointers are valid until the last reference to the routing
    ///                     is freed.
    /// @return ROUTECAP_OK; ROUTECAP_ERR_NOT_READY.
    pub fn routecap_routing_view(
        routing: *const routecap_routing,
        view: *mut routecap_view,
    ) -> routecap_status;
}
unsafe extern "C" {
    /// Count the cells of a routing that are there, and list those that are missing.
    ///
    /// @param[in] routing       The routing.
    /// @param[out] coverage     The counts, over all rows.
    /// @param[out] missing      [capacity] elements of missing_size bytes: the first blocks of missing
    ///                          cells, coverage->blocks in all; may be NULL if capacity is 0.
    /// @param[in] missing_size  sizeof(routecap_missing) of the caller, in bytes.
    /// @param[in] capacity      How many elements there is room for.
    /// @return ROUTECAP_OK; ROUTECAP_INCOMPLETE (also if no cell is valid); ROUTECAP_ERR_NOT_READY.
    pub fn routecap_routing_coverage(
        routing: *const routecap_routing,
        coverage: *mut routecap_coverage,
        missing: *mut routecap_missing,
        missing_size: usize,
        capacity: usize,
    ) -> routecap_status;
}
unsafe extern "C" {
    /// Copy the ids of a routing to the caller's memory.
    ///
    /// The call copies all rows; to copy fewer, slice the routing first. The rules on fill, none and
    /// strides are those of routecap_request_extract_into.
    ///
    /// @param[in] routing     The routing.
    /// @param[in] options     The dtype, layers and layout of dst.
    /// @param[out] dst        [rows, layers, k] elements of options->dtype, in the layout of options.
    ///                        NULL with dst_bytes 0 asks for the size, and the call returns
    ///                        ROUTECAP_ERR_BUFFER_TOO_SMALL.
    /// @param[in] dst_bytes   Size of dst, in bytes.
    /// @param[out] mask       [rows, layers] or [layers, rows] bytes, as options->order says: 1 for a
    ///                        valid cell, otherwise 0; NULL: not wanted.
    /// @param[in] mask_bytes  Size of mask, in bytes.
    /// @param[out] needed     How many bytes dst needs, set on ROUTECAP_ERR_BUFFER_TOO_SMALL too; may be
    ///                        NULL.
    /// @return ROUTECAP_OK; ROUTECAP_INCOMPLETE; ROUTECAP_NOT_CAPTURED; ROUTECAP_ERR_INCOMPLETE
    ///         (strict); ROUTECAP_ERR_RECOMPUTED (strict); ROUTECAP_ERR_NOT_READY;
    ///         ROUTECAP_ERR_BUFFER_TOO_SMALL (dst or mask; nothing is written); ROUTECAP_ERR_DTYPE;
    ///         ROUTECAP_ERR_UNKNOWN_LAYER; ROUTECAP_ERR_ARGUMENT. The last three are as in
    ///         routecap_request_extract_into.
    pub fn routecap_routing_copy_to(
        routing: *const routecap_routing,
        options: *const routecap_copy_options,
        dst: *mut ::core::ffi::c_void,
        dst_bytes: usize,
        mask: *mut u8,
        mask_bytes: usize,
        needed: *mut u64,
    ) -> routecap_status;
}
unsafe extern "C" {
    /// Copy the weights of a routing to the caller's memory.
    ///
    /// Call it beside routecap_routing_copy_to, with the same options except for dtype. The weight of an
    /// expert is then at the same place as its id: column c of a cell is the weight of the expert in
    /// column c. In a cell whose weights are missing all k weights are NaN. The weight of a column
    /// without an expert is 0.
    ///
    /// Here a cell counts as missing if it has no weights, even if it has ids. ROUTECAP_INCOMPLETE and
    /// ROUTECAP_NOT_CAPTURED say this of some cells or of all.
    ///
    /// @param[in] routing     The routing.
    /// @param[in] options     The layers and layout of dst. dtype is ROUTECAP_DTYPE_F32, to which
    ///                        weights are widened, or view.weights_dtype. fill and none are not used.
    ///                        With ROUTECAP_READ_STRICT every cell must have weights.
    /// @param[out] dst        [rows, layers, k] elements of options->dtype, in the layout of options.
    ///                        NULL with dst_bytes 0 asks for the size, and the call returns
    ///                        ROUTECAP_ERR_BUFFER_TOO_SMALL.
    /// @param[in] dst_bytes   Size of dst, in bytes.
    /// @param[out] mask       [rows, layers] or [layers, rows] bytes, as options->order says: 1 for a
    ///                        cell whose weights are there, otherwise 0; NULL: not wanted.
    /// @param[in] mask_bytes  Size of mask, in bytes.
    /// @param[out] needed     How many bytes dst needs, set on ROUTECAP_ERR_BUFFER_TOO_SMALL too; may be
    ///                        NULL.
    /// @return ROUTECAP_OK; ROUTECAP_INCOMPLETE; ROUTECAP_NOT_CAPTURED; ROUTECAP_ERR_INCOMPLETE
    ///         (strict); ROUTECAP_ERR_RECOMPUTED (strict); ROUTECAP_ERR_NOT_READY;
    ///         ROUTECAP_ERR_BUFFER_TOO_SMALL (dst or mask); ROUTECAP_ERR_DTYPE (neither of the two; or
    ///         the routing has no weights); ROUTECAP_ERR_UNKNOWN_LAYER; ROUTECAP_ERR_ARGUMENT (also
    ///         strides with which cells overlap).
    pub fn routecap_routing_copy_weights(
        routing: *const routecap_routing,
        options: *const routecap_copy_options,
        dst: *mut ::core::ffi::c_void,
        dst_bytes: usize,
        mask: *mut u8,
        mask_bytes: usize,
        needed: *mut u64,
    ) -> routecap_status;
}
unsafe extern "C" {
    /// Divide a routing at the end of the prompt: into the rows whose input is a token of the prompt,
    /// and those whose input is a generated token. Pages are shared. To train on the response, do not
    /// split: make a plan (plan.h), which keeps all rows that the loss needs.
    ///
    /// @param[in] routing           The routing.
    /// @param[in] prompt_tokens     Rows before this position go to `prompt`; if the routing ends before
    ///                              it, all rows do. The first generated token was sampled from the pass
    ///                              of the last of these rows.
    /// @param[in] generated_tokens  At most this many of the other rows go to `generated`. The last
    ///                              generated token has no row if it was never an input: then it makes
    ///                              no difference whether you count that token. ROUTECAP_ROWS_ALL: all
    ///                              of them.
    /// @param[out] prompt           A routing, possibly without rows; NULL on error.
    /// @param[out] generated        A routing, possibly without rows; NULL on error.
    /// @return ROUTECAP_OK; ROUTECAP_ERR_NOT_READY.
    pub fn routecap_routing_split(
        routing: *const routecap_routing,
        prompt_tokens: u64,
        generated_tokens: u64,
        prompt: *mut *mut routecap_routing,
        generated: *mut *mut routecap_routing,
    ) -> routecap_status;
}
unsafe extern "C" {
    /// Make a routing of some rows of another. Pages are shared, and positions stay the same.
    ///
    /// @param[in] routing  The routing.
    /// @param[in] first    Position of the first row.
    /// @param[in] rows     How many rows; ROUTECAP_ROWS_ALL: all up to the end.
    /// @param[out] slice   The new routing; NULL on error.
    /// @return ROUTECAP_OK; ROUTECAP_ERR_OUT_OF_RANGE; ROUTECAP_ERR_NOT_READY.
    pub fn routecap_routing_slice(
        routing: *const routecap_routing,
        first: u64,
        rows: u64,
        slice: *mut *mut routecap_routing,
    ) -> routecap_status;
}
unsafe extern "C" {
    /// Merge routings of one sequence that have different rows, different layers, or both: for instance
    /// those of sequence-parallel and pipeline-parallel ranks, or the parts of an answer that arrives in
    /// parts.
    ///
    /// Layers are matched by their index in the decoder (the layer map) and their visit (layer_visit),
    /// rows by position. The result has all layers of all routings, and the rows from the lowest to the
    /// highest position of any. A cell that no routing has is missing; its reason comes from the
    /// routings that have the layer, by the order in reading.h. If the valid cells of a row come from
    /// rows with different tags, the result has the lowest of these tags. A layer that is RECOMPUTED in
    /// one routing is RECOMPUTED in the result.
    ///
    /// @param[in] routings  [count] the routings. They stay the caller's.
    /// @param[in] count     How many, 1 or more.
    /// @param[in] flags     0.
    /// @param[out] merged   The new routing; NULL on error. Its memory counts in the budget of the first
    ///                      routing's capturer, even after the capturer is destroyed; in none, if the
    ///                      first routing came from bytes or arrays.
    /// @return ROUTECAP_OK; ROUTECAP_INCOMPLETE; ROUTECAP_NOT_CAPTURED; ROUTECAP_ERR_CONFLICT (two
    ///         routings have different sets of ids in the same cell); ROUTECAP_ERR_SHAPE_MISMATCH (k,
    ///         the id space, the weights_dtype, or experts, layer_k or layer_min_k of one layer differ);
    ///         ROUTECAP_ERR_NOT_READY.
    pub fn routecap_routing_merge(
        routings: *const *const routecap_routing,
        count: usize,
        flags: u32,
        merged: *mut *mut routecap_routing,
    ) -> routecap_status;
}
unsafe extern "C" {
    /// Take one more reference to a routing. Each reference is freed with routecap_routing_free.
    ///
    /// @param[in] routing  The routing.
    pub fn routecap_routing_retain(routing: *const routecap_routing) -> routecap_status;
}
unsafe extern "C" {
    /// Free one reference to a routing. The last one frees the memory. In a forked child the call does
    /// nothing.
    ///
    /// @param[in] routing  The routing; may be NULL.
    pub fn routecap_routing_free(routing: *mut routecap_routing);
}
unsafe extern "C" {
    /// Write a routing in the serialised form.
    ///
    /// Routings whose views show the same contents give equal bytes. The bytes contain checksums
    /// (CRC32C, 4 bytes each), one of the header, and one of each row and its position. So
    /// deserialising them, or a slice of them, finds bytes that a disk or a network changed, and rows
    /// that were read from a wrong place.
    ///
    /// @param[in] routing    The routing.
    /// @param[out] dst       [dst_bytes] the bytes. NULL with dst_bytes 0 asks for the size, and the
    ///                       call returns ROUTECAP_ERR_BUFFER_TOO_SMALL.
    /// @param[in] dst_bytes  Size of dst, in bytes.
    /// @param[out] needed    How many bytes it takes, set on ROUTECAP_ERR_BUFFER_TOO_SMALL too; may be
    ///                       NULL.
    /// @return ROUTECAP_OK, also if cells are missing; ROUTECAP_ERR_NOT_READY;
    ///         ROUTECAP_ERR_BUFFER_TOO_SMALL (nothing is written).
    pub fn routecap_routing_serialize(
        routing: *const routecap_routing,
        dst: *mut ::core::ffi::c_void,
        dst_bytes: usize,
        needed: *mut u64,
    ) -> routecap_status;
}
/// Called once, when the library no longer uses memory that a caller lent to it. `context` is the
/// pointer that was passed to the call that lent the memory.
///
/// The callback may run on any thread, even before the call that lent the memory returns, and inside
/// calls that free rows (close, free, truncate, destroy). The library holds no lock meanwhile, so
/// the callback may take a lock that other threads hold while they call routecap. It must not call
/// routecap itself.
pub type routecap_release =
    ::core::option::Option<unsafe extern "C" fn(context: *mut ::core::ffi::c_void)>;
pub type routecap_import_flags = u32;
unsafe extern "C" {
    /// Make a routing from bytes in the serialised form.
    ///
    /// Nothing in the bytes is trusted. It is an error if a cell that is marked valid is not a valid
    /// cell of its layer, if weights that are marked as there contain a NaN, or if a checksum does not
    /// match.
    ///
    /// The routing takes about as much memory as the bytes, or up to twenty times as much if
    /// neighbouring rows often differ in their tags, or if single rows are often missing. This memory
    /// counts in no budget.
    ///
    /// @param[in] data      [bytes] the bytes. Without `release` they are copied. With `release` they
    ///                      are lent: the routing, and every routing that shares rows with it, reads
    ///                      them in place and never writes to them. They are checked only once, so no
    ///                      process may change them until they are released. If a process might, copy
    ///                      them first. Bytes whose address is not a multiple of 16 are copied and
    ///                      released at once.
    /// @param[in] bytes     How many: exactly those of one routing.
    /// @param[in] flags     0 or ROUTECAP_IMPORT_TRUSTED.
    /// @param[in] release   Called when the library no longer uses the bytes; not called if this call
    ///                      fails. NULL: the bytes are copied.
    /// @param[in] context   Passed to release.
    /// @param[out] routing  The routing, to be freed with routecap_routing_free; NULL on error.
    /// @return ROUTECAP_OK; ROUTECAP_INCOMPLETE; ROUTECAP_NOT_CAPTURED; ROUTECAP_ERR_FORMAT (the text
    ///         says what is wrong).
    pub fn routecap_routing_deserialize(
        data: *const ::core::ffi::c_void,
        bytes: usize,
        flags: routecap_import_flags,
        release: routecap_release,
        context: *mut ::core::ffi::c_void,
        routing: *mut *mut routecap_routing,
    ) -> routecap_status;
}
unsafe extern "C" {
    /// Make a routing from arrays of any origin: the inverse of routecap_routing_view. Use it for rows
    /// of a different process, file format or engine.
    ///
    ///   routecap_segment segment = {.first = 0, .rows = ROWS, .ids = ids};   // all cells are valid
    ///   routecap_view view = {.struct_size = sizeof view, .dtype = ROUTECAP_DTYPE_U8,
    ///                         .layers = LAYERS, .k = K, .experts = EXPERTS, .rows = ROWS,
    ///                         .segments = &segment, .segment_size = sizeof segment,
    ///                         .segment_count = 1};                // ids: uint8_t [rows, layers, k]
    ///   routecap_routing_import(&view, 0, NULL, NULL, &routing);
    ///
    /// The rows are checked as in routecap_routing_deserialize. In a cell that is not valid, the first
    /// id is the reason, and the others are ignored. If the first id is none of ROUTECAP_MISSING_*, the
    /// reason is UNWRITTEN. Rows of a segment without ids are missing, and the segment's `reason` says
    /// why; 0 means ABSENT.
    ///
    /// @param[in] view      The arrays. `dtype` is not free: it must be the one that routecap_view names
    ///                      for this shape. `first` and `rows` must enclose all segments. `experts` is
    ///                      used only without layer_experts, and `complete` is ignored. validity_bytes
    ///                      must be (layers + 7) / 8; 0 means that number. Arrays of layers that are
    ///                      NULL have the defaults of routecap_config. weights_dtype 0 means that there
    ///                      are no weights. A segment with `weights` and without weights_validity has
    ///                      the weights of all its valid cells. row_stride 0 means that the rows of each
    ///                      array (ids, validity, weights, their validity) follow one another without a
    ///                      gap. Segments must be in order of position, and segment_size is
    ///                      sizeof(routecap_segment) of the caller. Rows in no segment are ABSENT.
    /// @param[in] flags     0 or ROUTECAP_IMPORT_TRUSTED.
    /// @param[in] release   NULL, the usual case: all arrays are copied. Otherwise the arrays that
    ///                      segments point to are lent, as in routecap_routing_deserialize, if all rows
    ///                      lie as the library lays them out; rows that lie differently are copied, and
    ///                      released at once. The layout is: the ids of a row, then its validity, which
    ///                      must be given. With weights, then their validity, which must be given too,
    ///                      and the weights, from the next multiple of their size on. All other bytes up
    ///                      to row_stride are 0, also in the last row. The alignment is the largest
    ///                      power of two that divides the bytes of a cell's ids, at most 16, but at
    ///                      least the size of a weight. row_stride is the bytes of all that, rounded up
    ///                      to the alignment, and the ids of the first row are aligned to it.
    /// @param[in] context   Passed to release.
    /// @param[out] routing  The routing, to be freed with routecap_routing_free; NULL on error.
    /// @return ROUTECAP_OK; ROUTECAP_INCOMPLETE; ROUTECAP_NOT_CAPTURED; ROUTECAP_ERR_ARGUMENT (limits,
    ///         order, alignment or segments); ROUTECAP_ERR_DTYPE; ROUTECAP_ERR_SHAPE_MISMATCH
    ///         (row_stride is too small for such rows, or no multiple of the size of an id and of a
    ///         weight); ROUTECAP_ERR_FORMAT (a cell that is marked valid is not, or a weight is NaN).
    pub fn routecap_routing_import(
        view: *const routecap_view,
        flags: routecap_import_flags,
        release: routecap_release,
        context: *mut ::core::ffi::c_void,
        routing: *mut *mut routecap_routing,
    ) -> routecap_status;
}
/// What the first ROUTECAP_SERIALIZED_MIN bytes of a serialised routing say.
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct routecap_serialized {
    pub struct_size: u32,
    /// of the serialised form: 1
    pub version: u32,
    /// of the whole routing, header included
    pub bytes: u64,
    /// of the header with its tables and the checksums of all rows:
    /// all that splice and slice read. The rows follow it
    pub header_bytes: u64,
    /// position of the first row
    pub first: u64,
    /// how many
    pub rows: u64,
    /// captured layers of the routing
    pub layers: u32,
    /// columns of a cell, as in routecap_view
    pub k: u32,
    /// of the ids, ROUTECAP_DTYPE_*
    pub dtype: routecap_dtype,
    /// ROUTECAP_ID_SPACE_*
    pub id_space: routecap_id_space,
    /// of the weights, ROUTECAP_DTYPE_*; 0: none
    pub weights_dtype: routecap_dtype,
    /// 0
    pub reserved: u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of routecap_serialized"][::core::mem::size_of::<routecap_serialized>() - 64usize];
    ["Alignment of routecap_serialized"][::core::mem::align_of::<routecap_serialized>() - 8usize];
    ["Offset of field: routecap_serialized::struct_size"]
        [::core::mem::offset_of!(routecap_serialized, struct_size) - 0usize];
    ["Offset of field: routecap_serialized::version"]
        [::core::mem::offset_of!(routecap_serialized, version) - 4usize];
    ["Offset of field: routecap_serialized::bytes"]
        [::core::mem::offset_of!(routecap_serialized, bytes) - 8usize];
    ["Offset of field: routecap_serialized::header_bytes"]
        [::core::mem::offset_of!(routecap_serialized, header_bytes) - 16usize];
    ["Offset of field: routecap_serialized::first"]
        [::core::mem::offset_of!(routecap_serialized, first) - 24usize];
    ["Offset of field: routecap_serialized::rows"]
        [::core::mem::offset_of!(routecap_serialized, rows) - 32usize];
    ["Offset of field: routecap_serialized::layers"]
        [::core::mem::offset_of!(routecap_serialized, layers) - 40usize];
    ["Offset of field: routecap_serialized::k"]
        [::core::mem::offset_of!(routecap_serialized, k) - 44usize];
    ["Offset of field: routecap_serialized::dtype"]
        [::core::mem::offset_of!(routecap_serialized, dtype) - 48usize];
    ["Offset of field: routecap_serialized::id_space"]
        [::core::mem::offset_of!(routecap_serialized, id_space) - 52usize];
    ["Offset of field: routecap_serialized::weights_dtype"]
        [::core::mem::offset_of!(routecap_serialized, weights_dtype) - 56usize];
    ["Offset of field: routecap_serialized::reserved"]
        [::core::mem::offset_of!(routecap_serialized, reserved) - 60usize];
};
unsafe extern "C" {
    /// Read the fixed part of a serialised routing's header: its shape, and how many bytes it has in
    /// all.
    ///
    /// The header may lie. Check header_bytes and bytes against a limit of your own before you allocate
    /// memory for them.
    ///
    /// @param[in] data   [bytes] the first bytes of a serialised routing.
    /// @param[in] bytes  How many: ROUTECAP_SERIALIZED_MIN or more.
    /// @param[out] info  What they say.
    /// @return ROUTECAP_OK; ROUTECAP_ERR_FORMAT; ROUTECAP_ERR_BUFFER_TOO_SMALL (too few bytes; they may
    ///         be the beginning of a serialised routing).
    pub fn routecap_serialized_info(
        data: *const ::core::ffi::c_void,
        bytes: usize,
        info: *mut routecap_serialized,
    ) -> routecap_status;
}
pub type routecap_piece_source = i32;
/// Bytes of such a routing that are contiguous in one source.
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct routecap_piece {
    /// in its source, in bytes
    pub offset: u64,
    /// how many
    pub bytes: u64,
    /// ROUTECAP_PIECE_*
    pub source: routecap_piece_source,
    /// 0
    pub reserved: u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of routecap_piece"][::core::mem::size_of::<routecap_piece>() - 24usize];
    ["Alignment of routecap_piece"][::core::mem::align_of::<routecap_piece>() - 8usize];
    ["Offset of field: routecap_piece::offset"]
        [::core::mem::offset_of!(routecap_piece, offset) - 0usize];
    ["Offset of field: routecap_piece::bytes"]
        [::core::mem::offset_of!(routecap_piece, bytes) - 8usize];
    ["Offset of field: routecap_piece::source"]
        [::core::mem::offset_of!(routecap_piece, source) - 16usize];
    ["Offset of field: routecap_piece::reserved"]
        [::core::mem::offset_of!(routecap_piece, reserved) - 20usize];
};
/// Sizes of a serialised routing that is returned as a list of pieces. Write the pieces one after
/// another, for instance with writev, to get the routing. The first piece is the new header.
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct routecap_splice {
    pub struct_size: u32,
    /// how many
    pub pieces: u32,
    /// of the whole routing, header included
    pub bytes: u64,
    /// of the new header
    pub header_bytes: u64,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of routecap_splice"][::core::mem::size_of::<routecap_splice>() - 24usize];
    ["Alignment of routecap_splice"][::core::mem::align_of::<routecap_splice>() - 8usize];
    ["Offset of field: routecap_splice::struct_size"]
        [::core::mem::offset_of!(routecap_splice, struct_size) - 0usize];
    ["Offset of field: routecap_splice::pieces"]
        [::core::mem::offset_of!(routecap_splice, pieces) - 4usize];
    ["Offset of field: routecap_splice::bytes"]
        [::core::mem::offset_of!(routecap_splice, bytes) - 8usize];
    ["Offset of field: routecap_splice::header_bytes"]
        [::core::mem::offset_of!(routecap_splice, header_bytes) - 16usize];
};
unsafe extern "C" {
    /// Join two serialised routings of one sequence: the rows of `head` before position `row`, and the
    /// rows of `tail` from `row` on. They may come from prefill and decode on different machines, or
    /// from an answer that arrives in parts. Only the headers are read. No tokens are compared: for the
    /// turns of a conversation, whose prompts may change, use a sequence.
    ///
    /// For example, head has rows 0..99, tail has rows 90..199, and `row` is 95: the result has rows
    /// 0..94 of head and 95..199 of tail. If head begins at or after `row`, the result begins with row
    /// `row`. If tail ends before `row`, the result ends with row `row` - 1. Rows in between that
    /// neither has are missing. A layer that is RECOMPUTED in either routing is RECOMPUTED in the
    /// result.
    ///
    /// Both headers are checked. The rows are not; they are checked when the result is deserialised.
    ///
    /// @param[in] head            [head_bytes] the first routing, at least its header.
    /// @param[in] head_bytes      How many: header_bytes of routecap_serialized_info or more.
    /// @param[in] tail            [tail_bytes] the second routing, at least its header.
    /// @param[in] tail_bytes      How many: header_bytes of routecap_serialized_info or more.
    /// @param[in] row             The position at which `tail` takes over.
    /// @param[out] header         [capacity] the new header. NULL with capacity 0 asks for the sizes,
    ///                            and the call returns ROUTECAP_ERR_BUFFER_TOO_SMALL.
    /// @param[in] capacity        Size of header, in bytes: splice->header_bytes or more. The sum of
    ///                            both headers and 128 is always enough.
    /// @param[out] pieces         [piece_capacity] elements of piece_size bytes: where the bytes come
    ///                            from, in order; may be NULL if piece_capacity is 0.
    /// @param[in] piece_size      sizeof(routecap_piece) of the caller, in bytes.
    /// @param[in] piece_capacity  Elements of pieces: splice->pieces or more. ROUTECAP_MAX_PIECES is
    ///                            always enough.
    /// @param[out] splice         The sizes, set on ROUTECAP_ERR_BUFFER_TOO_SMALL too.
    /// @return ROUTECAP_OK; ROUTECAP_ERR_FORMAT; ROUTECAP_ERR_SHAPE_MISMATCH (k, the id space, the
    ///         weights_dtype, or the layers with their experts and numbers of experts per token differ);
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
    ) -> routecap_status;
}
unsafe extern "C" {
    /// Extract rows of a serialised routing: make a new header, and list the bytes of the routing to be
    /// written after it. Only the header is read. So if the routing is in a file or on a different
    /// machine, you need to read only its header and the listed bytes: read ROUTECAP_SERIALIZED_MIN
    /// bytes, then the whole header (header_bytes of routecap_serialized_info), call slice, write its
    /// pieces, and deserialise the result.
    ///
    /// Positions stay the same. The header is checked. The rows are not; they are checked when the
    /// result is deserialised, each by its own checksum.
    ///
    /// @param[in] data            [bytes] the routing, at least its header.
    /// @param[in] bytes           How many: header_bytes of routecap_serialized_info or more.
    /// @param[in] first           Position of the first row.
    /// @param[in] rows            How many; ROUTECAP_ROWS_ALL: up to the end.
    /// @param[out] header         [capacity] the new header. NULL with capacity 0 asks for the sizes,
    ///                            and the call returns ROUTECAP_ERR_BUFFER_TOO_SMALL.
    /// @param[in] capacity        Size of header, in bytes: slice->header_bytes or more. The size of the
    ///                            routing's own header is always enough.
    /// @param[out] pieces         [piece_capacity] elements of piece_size bytes: where the bytes come
    ///                            from, in order: the header, then the rows of the routing
    ///                            (ROUTECAP_PIECE_HEAD); may be NULL if piece_capacity is 0.
    /// @param[in] piece_size      sizeof(routecap_piece) of the caller, in bytes.
    /// @param[in] piece_capacity  Elements of pieces: slice->pieces or more. ROUTECAP_MAX_PIECES is
    ///                            always enough.
    /// @param[out] slice          The sizes, set on ROUTECAP_ERR_BUFFER_TOO_SMALL too.
    /// @return ROUTECAP_OK; ROUTECAP_ERR_FORMAT; ROUTECAP_ERR_OUT_OF_RANGE (the routing lacks some of
    ///         these rows: keep within `first` and `rows` of routecap_serialized);
    ///         ROUTECAP_ERR_BUFFER_TOO_SMALL (header or pieces; nothing is written to either).
    pub fn routecap_serialized_slice(
        data: *const ::core::ffi::c_void,
        bytes: usize,
        first: u64,
        rows: u64,
        header: *mut ::core::ffi::c_void,
        capacity: usize,
        pieces: *mut routecap_piece,
        piece_size: usize,
        piece_capacity: usize,
        slice: *mut routecap_splice,
    ) -> routecap_status;
}
pub type routecap_wire_format = i32;
pub type routecap_wire_facts = u32;
/// Description of a format.
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct routecap_wire_description {
    pub struct_size: u32,
    /// ROUTECAP_WIRE_*
    pub format: routecap_wire_format,
    /// the version that is written; this and all earlier versions can
    /// be read
    pub version: u32,
    /// ROUTECAP_WIRE_FACT_* that the format carries. If VALIDITY is
    /// carried by ids of -1, only a signed dtype carries it
    pub facts: routecap_wire_facts,
    /// static storage, like aliases and ending
    pub name: *const ::core::ffi::c_char,
    /// programs that write it, separated by spaces: names that
    /// routecap_wire_find accepts
    pub aliases: *const ::core::ffi::c_char,
    /// ending of file names, with the dot; "" if there is none
    pub ending: *const ::core::ffi::c_char,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of routecap_wire_description"]
        [::core::mem::size_of::<routecap_wire_description>() - 40usize];
    ["Alignment of routecap_wire_description"]
        [::core::mem::align_of::<routecap_wire_description>() - 8usize];
    ["Offset of field: routecap_wire_description::struct_size"]
        [::core::mem::offset_of!(routecap_wire_description, struct_size) - 0usize];
    ["Offset of field: routecap_wire_description::format"]
        [::core::mem::offset_of!(routecap_wire_description, format) - 4usize];
    ["Offset of field: routecap_wire_description::version"]
        [::core::mem::offset_of!(routecap_wire_description, version) - 8usize];
    ["Offset of field: routecap_wire_description::facts"]
        [::core::mem::offset_of!(routecap_wire_description, facts) - 12usize];
    ["Offset of field: routecap_wire_description::name"]
        [::core::mem::offset_of!(routecap_wire_description, name) - 16usize];
    ["Offset of field: routecap_wire_description::aliases"]
        [::core::mem::offset_of!(routecap_wire_description, aliases) - 24usize];
    ["Offset of field: routecap_wire_description::ending"]
        [::core::mem::offset_of!(routecap_wire_description, ending) - 32usize];
};
impl Default for routecap_wire_description {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
unsafe extern "C" {
    /// Describe a format.
    ///
    /// @param[in] format        ROUTECAP_WIRE_*. To list all formats, count up from 1 until the call
    ///                          returns ROUTECAP_ERR_ARGUMENT: the numbers have no gaps.
    /// @param[out] description  What the format is.
    /// @return ROUTECAP_OK; ROUTECAP_ERR_ARGUMENT (no such format).
    pub fn routecap_wire_describe(
        format: routecap_wire_format,
        description: *mut routecap_wire_description,
    ) -> routecap_status;
}
unsafe extern "C" {
    /// Find a format by its name, by one of its aliases, or by its file ending.
    ///
    /// @param[in] name     Such as "nrlre1", "vllm" or ".npy"; in lower case.
    /// @param[out] format  ROUTECAP_WIRE_*.
    /// @return ROUTECAP_OK; ROUTECAP_ERR_ARGUMENT (unknown; the text lists all names).
    pub fn routecap_wire_find(
        name: *const ::core::ffi::c_char,
        format: *mut routecap_wire_format,
    ) -> routecap_status;
}
pub type routecap_wire_columns = i32;
pub type routecap_wire_hint_flags = u32;
/// What the caller knows about a message. If the bytes say it too, both must agree; otherwise
/// decoding fails with ROUTECAP_ERR_SHAPE_MISMATCH. A field that is 0 or NULL is taken from the
/// bytes, or has its default if they do not say it.
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct routecap_wire_hint {
    pub struct_size: u32,
    /// captured (MoE) layers; default: the number of columns.
    /// Required with layer_map or layer_experts, and if nothing
    /// else says the number of columns
    pub layers: u32,
    /// length of the layer axis; default: what the bytes say,
    /// else `layers`
    pub columns: u32,
    /// experts per token. Required if the bytes do not say it
    pub k: u32,
    /// ids are in [0, experts). Required, unless layer_experts is
    /// set or the format is SERIALIZED
    pub experts: u32,
    /// of the ids, ROUTECAP_DTYPE_*; default I32, with OBJECT
    /// U8
    pub dtype: routecap_dtype,
    /// ROUTECAP_WIRE_COLUMNS_*; default FOUND
    pub column_kind: routecap_wire_columns,
    /// ROUTECAP_ID_SPACE_*; ignored with SERIALIZED
    pub id_space: routecap_id_space,
    /// 0 or ROUTECAP_WIRE_HINT_STRICT
    pub flags: routecap_wire_hint_flags,
    /// 0
    pub reserved: u32,
    /// position of the first row; default 0
    pub first: u64,
    /// number of rows of this message: S - 1 - first, where S
    /// is the number of tokens from token 0 to the message's end.
    /// Default 0: as many as it has
    pub rows: u64,
    /// tag of all rows; ignored with SERIALIZED
    pub tag: u64,
    /// the most memory that decoding may take, in bytes; beyond
    /// it, ROUTECAP_ERR_NO_MEMORY. Default: about 8 times the
    /// message
    pub budget_bytes: u64,
    /// [layers] index of each captured layer in the decoder, strictly
    /// ascending; default 0..layers-1. With CAPTURED columns it names
    /// them; with DECODER columns it selects them
    pub layer_map: *const i32,
    /// [layers] number of experts of each layer, if they differ;
    /// default `experts` for all
    pub layer_experts: *const u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of routecap_wire_hint"][::core::mem::size_of::<routecap_wire_hint>() - 88usize];
    ["Alignment of routecap_wire_hint"][::core::mem::align_of::<routecap_wire_hint>() - 8usize];
    ["Offset of field: routecap_wire_hint::struct_size"]
        [::core::mem::offset_of!(routecap_wire_hint, struct_size) - 0usize];
    ["Offset of field: routecap_wire_hint::layers"]
        [::core::mem::offset_of!(routecap_wire_hint, layers) - 4usize];
    ["Offset of field: routecap_wire_hint::columns"]
        [::core::mem::offset_of!(routecap_wire_hint, columns) - 8usize];
    ["Offset of field: routecap_wire_hint::k"]
        [::core::mem::offset_of!(routecap_wire_hint, k) - 12usize];
    ["Offset of field: routecap_wire_hint::experts"]
        [::core::mem::offset_of!(routecap_wire_hint, experts) - 16usize];
    ["Offset of field: routecap_wire_hint::dtype"]
        [::core::mem::offset_of!(routecap_wire_hint, dtype) - 20usize];
    ["Offset of field: routecap_wire_hint::column_kind"]
        [::core::mem::offset_of!(routecap_wire_hint, column_kind) - 24usize];
    ["Offset of field: routecap_wire_hint::id_space"]
        [::core::mem::offset_of!(routecap_wire_hint, id_space) - 28usize];
    ["Offset of field: routecap_wire_hint::flags"]
        [::core::mem::offset_of!(routecap_wire_hint, flags) - 32usize];
    ["Offset of field: routecap_wire_hint::reserved"]
        [::core::mem::offset_of!(routecap_wire_hint, reserved) - 36usize];
    ["Offset of field: routecap_wire_hint::first"]
        [::core::mem::offset_of!(routecap_wire_hint, first) - 40usize];
    ["Offset of field: routecap_wire_hint::rows"]
        [::core::mem::offset_of!(routecap_wire_hint, rows) - 48usize];
    ["Offset of field: routecap_wire_hint::tag"]
        [::core::mem::offset_of!(routecap_wire_hint, tag) - 56usize];
    ["Offset of field: routecap_wire_hint::budget_bytes"]
        [::core::mem::offset_of!(routecap_wire_hint, budget_bytes) - 64usize];
    ["Offset of field: routecap_wire_hint::layer_map"]
        [::core::mem::offset_of!(routecap_wire_hint, layer_map) - 72usize];
    ["Offset of field: routecap_wire_hint::layer_experts"]
        [::core::mem::offset_of!(routecap_wire_hint, layer_experts) - 80usize];
};
impl Default for routecap_wire_hint {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
/// What a message holds, and which facts it lacks. With SERIALIZED, cells_valid is the only count of
/// cells, and rows_zero, rows_repeated and rows_counting are 0.
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct routecap_wire_report {
    pub struct_size: u32,
    /// ROUTECAP_WIRE_*
    pub format: routecap_wire_format,
    /// of the format
    pub version: u32,
    /// of the ids in the message, ROUTECAP_DTYPE_*; I64 for LISTS
    pub dtype: routecap_dtype,
    /// ROUTECAP_WIRE_FACT_* that this message carries
    pub facts: routecap_wire_facts,
    /// when encoding: the ROUTECAP_WIRE_FACT_* that were lost; see
    /// routecap_wire_encode. When decoding: 0
    pub lost: routecap_wire_facts,
    /// length of the layer axis
    pub columns: u32,
    /// columns that were left out, because they are not in the layer
    /// map
    pub columns_left_out: u32,
    /// columns that were left out although they hold a cell of k
    /// distinct ids: perhaps the layer map lacks their layer
    pub columns_in_use: u32,
    /// captured layers without a single valid cell; 0 if there are no
    /// rows
    pub layers_empty: u32,
    /// of the whole message
    pub bytes: u64,
    /// position of the first row
    pub first: u64,
    /// how many
    pub rows: u64,
    /// k distinct ids of the layer
    pub cells_valid: u64,
    /// an id below 0
    pub cells_negative: u64,
    /// k zeros, where k is 2 or more
    pub cells_zero: u64,
    /// an id that the layer does not have
    pub cells_out_of_range: u64,
    /// the same id twice
    pub cells_duplicate: u64,
    /// every cell is zero
    pub rows_zero: u64,
    /// at least one cell is valid, and all ids equal those of the row
    /// before: perhaps a copy that fills a gap
    pub rows_repeated: u64,
    /// every cell is 0, 1, ..., k-1: perhaps filler
    pub rows_counting: u64,
    /// largest id in a valid cell; -1 if there is none
    pub largest_id: i64,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of routecap_wire_report"][::core::mem::size_of::<routecap_wire_report>() - 136usize];
    ["Alignment of routecap_wire_report"][::core::mem::align_of::<routecap_wire_report>() - 8usize];
    ["Offset of field: routecap_wire_report::struct_size"]
        [::core::mem::offset_of!(routecap_wire_report, struct_size) - 0usize];
    ["Offset of field: routecap_wire_report::format"]
        [::core::mem::offset_of!(routecap_wire_report, format) - 4usize];
    ["Offset of field: routecap_wire_report::version"]
        [::core::mem::offset_of!(routecap_wire_report, version) - 8usize];
    ["Offset of field: routecap_wire_report::dtype"]
        [::core::mem::offset_of!(routecap_wire_report, dtype) - 12usize];
    ["Offset of field: routecap_wire_report::facts"]
        [::core::mem::offset_of!(routecap_wire_report, facts) - 16usize];
    ["Offset of field: routecap_wire_report::lost"]
        [::core::mem::offset_of!(routecap_wire_report, lost) - 20usize];
    ["Offset of field: routecap_wire_report::columns"]
        [::core::mem::offset_of!(routecap_wire_report, columns) - 24usize];
    ["Offset of field: routecap_wire_report::columns_left_out"]
        [::core::mem::offset_of!(routecap_wire_report, columns_left_out) - 28usize];
    ["Offset of field: routecap_wire_report::columns_in_use"]
        [::core::mem::offset_of!(routecap_wire_report, columns_in_use) - 32usize];
    ["Offset of field: routecap_wire_report::layers_empty"]
        [::core::mem::offset_of!(routecap_wire_report, layers_empty) - 36usize];
    ["Offset of field: routecap_wire_report::bytes"]
        [::core::mem::offset_of!(routecap_wire_report, bytes) - 40usize];
    ["Offset of field: routecap_wire_report::first"]
        [::core::mem::offset_of!(routecap_wire_report, first) - 48usize];
    ["Offset of field: routecap_wire_report::rows"]
        [::core::mem::offset_of!(routecap_wire_report, rows) - 56usize];
    ["Offset of field: routecap_wire_report::cells_valid"]
        [::core::mem::offset_of!(routecap_wire_report, cells_valid) - 64usize];
    ["Offset of field: routecap_wire_report::cells_negative"]
        [::core::mem::offset_of!(routecap_wire_report, cells_negative) - 72usize];
    ["Offset of field: routecap_wire_report::cells_zero"]
        [::core::mem::offset_of!(routecap_wire_report, cells_zero) - 80usize];
    ["Offset of field: routecap_wire_report::cells_out_of_range"]
        [::core::mem::offset_of!(routecap_wire_report, cells_out_of_range) - 88usize];
    ["Offset of field: routecap_wire_report::cells_duplicate"]
        [::core::mem::offset_of!(routecap_wire_report, cells_duplicate) - 96usize];
    ["Offset of field: routecap_wire_report::rows_zero"]
        [::core::mem::offset_of!(routecap_wire_report, rows_zero) - 104usize];
    ["Offset of field: routecap_wire_report::rows_repeated"]
        [::core::mem::offset_of!(routecap_wire_report, rows_repeated) - 112usize];
    ["Offset of field: routecap_wire_report::rows_counting"]
        [::core::mem::offset_of!(routecap_wire_report, rows_counting) - 120usize];
    ["Offset of field: routecap_wire_report::largest_id"]
        [::core::mem::offset_of!(routecap_wire_report, largest_id) - 128usize];
};
unsafe extern "C" {
    /// Decode a message into a routing. Nothing in the message is trusted.
    ///
    /// Each id is written to the routing's memory once, as one or two bytes, depending on the number of
    /// experts. Sizes are checked before memory is allocated. A SERIALIZED message is copied; to use it
    /// in place, see routecap_routing_deserialize.
    ///
    /// @param[in] data      [bytes] the message. It may be freed afterwards.
    /// @param[in] bytes     How many: exactly those of one message.
    /// @param[in] format    ROUTECAP_WIRE_*.
    /// @param[in] hint      What the bytes do not say. May be NULL for SERIALIZED.
    /// @param[out] report   What the message held, filled on success; may be NULL.
    /// @param[out] routing  The routing, to be freed with routecap_routing_free; NULL on error.
    /// @return ROUTECAP_OK; ROUTECAP_INCOMPLETE; ROUTECAP_NOT_CAPTURED; ROUTECAP_ERR_FORMAT (the text
    ///         says what is wrong, and where); ROUTECAP_ERR_SHAPE_MISMATCH (the message contradicts the
    ///         hint); ROUTECAP_ERR_DTYPE (the hint's dtype); ROUTECAP_ERR_INCOMPLETE (strict, and cells
    ///         are missing).
    pub fn routecap_wire_decode(
        data: *const ::core::ffi::c_void,
        bytes: usize,
        format: routecap_wire_format,
        hint: *const routecap_wire_hint,
        report: *mut routecap_wire_report,
        routing: *mut *mut routecap_routing,
    ) -> routecap_status;
}
/// Decoding of bytes that arrive piece by piece.
#[repr(C)]
#[derive(Debug)]
pub struct routecap_wire_decoder {
    _unused: [u8; 0],
}
unsafe extern "C" {
    /// Begin to decode a message that arrives piece by piece. The pieces are kept and decoded at the
    /// end, so routecap_wire_decoder_finish finds what is wrong with the message, and hint.budget_bytes
    /// has to have room for the message and its rows.
    ///
    /// @param[in] format    ROUTECAP_WIRE_*. With ANY, the format is found at the end.
    /// @param[in] hint      What the bytes do not say. The call reads it and its arrays before it
    ///                      returns. May be NULL for SERIALIZED.
    /// @param[out] decoder  The decoder, to be freed with routecap_wire_decoder_free; NULL on error.
    /// @return ROUTECAP_OK; ROUTECAP_ERR_DTYPE (the hint's dtype).
    pub fn routecap_wire_decoder_create(
        format: routecap_wire_format,
        hint: *const routecap_wire_hint,
        decoder: *mut *mut routecap_wire_decoder,
    ) -> routecap_status;
}
unsafe extern "C" {
    /// Give the decoder the next bytes of the message, however many. After an error, every later call
    /// returns the same error.
    ///
    /// @param[in,out] decoder  The decoder.
    /// @param[in] data         [bytes] the next bytes. They may be freed afterwards.
    /// @param[in] bytes        How many.
    /// @return ROUTECAP_OK; ROUTECAP_ERR_NO_MEMORY (also hint.budget_bytes).
    pub fn routecap_wire_decoder_write(
        decoder: *mut routecap_wire_decoder,
        data: *const ::core::ffi::c_void,
        bytes: usize,
    ) -> routecap_status;
}
unsafe extern "C" {
    /// End the message, after all of it was written. The decoder cannot be used again: further calls
    /// return ROUTECAP_ERR_STATE if this one succeeded, and otherwise the same error.
    ///
    /// @param[in,out] decoder  The decoder.
    /// @param[out] report      What the message held, filled on success; may be NULL.
    /// @param[out] routing     The routing, to be freed with routecap_routing_free; NULL on error.
    /// @return As routecap_wire_decode.
    pub fn routecap_wire_decoder_finish(
        decoder: *mut routecap_wire_decoder,
        report: *mut routecap_wire_report,
        routing: *mut *mut routecap_routing,
    ) -> routecap_status;
}
unsafe extern "C" {
    /// Free a decoder. This is allowed at any time, even before the message has ended. Free it after
    /// routecap_wire_decoder_finish too.
    ///
    /// @param[in,out] decoder  The decoder; may be NULL.
    pub fn routecap_wire_decoder_free(decoder: *mut routecap_wire_decoder);
}
/// How to write a routing.
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct routecap_wire_options {
    pub struct_size: u32,
    /// ROUTECAP_WIRE_*. Required
    pub format: routecap_wire_format,
    /// of the ids; default: what other writers of the format use
    /// for this number of experts (docs/wire.md). Not for LISTS
    /// and SERIALIZED
    pub dtype: routecap_dtype,
    /// ROUTECAP_WIRE_COLUMNS_CAPTURED (default) or _DECODER. With
    /// DECODER, layers that are not captured get ids of 0
    pub column_kind: routecap_wire_columns,
    /// with DECODER: number of decoder layers; default: up to and
    /// including the last captured layer
    pub columns: u32,
    /// ROUTECAP_WIRE_FACT_* that may be lost
    pub allow: routecap_wire_facts,
    /// each id of a missing cell, if the dtype is unsigned and
    /// `allow` has VALIDITY; 0 or more
    pub fill: i64,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of routecap_wire_options"][::core::mem::size_of::<routecap_wire_options>() - 32usize];
    ["Alignment of routecap_wire_options"]
        [::core::mem::align_of::<routecap_wire_options>() - 8usize];
    ["Offset of field: routecap_wire_options::struct_size"]
        [::core::mem::offset_of!(routecap_wire_options, struct_size) - 0usize];
    ["Offset of field: routecap_wire_options::format"]
        [::core::mem::offset_of!(routecap_wire_options, format) - 4usize];
    ["Offset of field: routecap_wire_options::dtype"]
        [::core::mem::offset_of!(routecap_wire_options, dtype) - 8usize];
    ["Offset of field: routecap_wire_options::column_kind"]
        [::core::mem::offset_of!(routecap_wire_options, column_kind) - 12usize];
    ["Offset of field: routecap_wire_options::columns"]
        [::core::mem::offset_of!(routecap_wire_options, columns) - 16usize];
    ["Offset of field: routecap_wire_options::allow"]
        [::core::mem::offset_of!(routecap_wire_options, allow) - 20usize];
    ["Offset of field: routecap_wire_options::fill"]
        [::core::mem::offset_of!(routecap_wire_options, fill) - 24usize];
};
unsafe extern "C" {
    /// Write a routing in a format.
    ///
    /// If the routing states a fact that the format cannot carry, the call fails, unless options->allow
    /// has that fact. The facts that are then lost are in report->lost. These can be lost: a position of
    /// the first row other than 0, tags other than 0, a layer map that a reader cannot tell from the
    /// columns, missing cells and their reasons, physical ids, recomputed layers, and weights. Columns,
    /// k, experts and dtype never count as lost, because a reader knows them from the model.
    ///
    /// Two things are ROUTECAP_ERR_LOSSY whatever options->allow has: a routing whose cells may have
    /// fewer than k experts, in all formats but SERIALIZED; and a layer with several visits, with
    /// DECODER, where it would have one column.
    ///
    /// If the dtype is signed, the ids of missing cells are -1. Equal routings and options give equal
    /// bytes.
    ///
    /// @param[in] routing    The routing.
    /// @param[in] options    The format and its options.
    /// @param[out] dst       [dst_bytes] the message. NULL with dst_bytes 0 asks for the size, and the
    ///                       call returns ROUTECAP_ERR_BUFFER_TOO_SMALL.
    /// @param[in] dst_bytes  Size of dst, in bytes.
    /// @param[out] needed    How many bytes it takes, set on ROUTECAP_ERR_BUFFER_TOO_SMALL too; may be
    ///                       NULL.
    /// @param[out] report    What was written, filled on success; may be NULL. Of the counts of cells
    ///                       and rows, only cells_valid and rows are set.
    /// @return ROUTECAP_OK; ROUTECAP_ERR_NOT_READY; ROUTECAP_ERR_LOSSY (the text names what would be
    ///         lost); ROUTECAP_ERR_BUFFER_TOO_SMALL (nothing is written); ROUTECAP_ERR_DTYPE (the dtype
    ///         cannot hold the ids or the fill, or the format does not have it);
    ///         ROUTECAP_ERR_SHAPE_MISMATCH (the layer map names a layer beyond `columns`).
    pub fn routecap_wire_encode(
        routing: *const routecap_routing,
        options: *const routecap_wire_options,
        dst: *mut ::core::ffi::c_void,
        dst_bytes: usize,
        needed: *mut u64,
        report: *mut routecap_wire_report,
    ) -> routecap_status;
}
/// One conversation: its token ids and their rows.
#[repr(C)]
#[derive(Debug)]
pub struct routecap_sequence {
    _unused: [u8; 0],
}
/// What a sequence holds. The arrays are copied.
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct routecap_sequence_config {
    pub struct_size: u32,
    /// captured (MoE) layers, 1 to ROUTECAP_MAX_LAYERS. Required
    pub layers: u32,
    /// experts per token, 1 to ROUTECAP_MAX_K. Required
    pub k: u32,
    /// ids are in [0, experts). Required unless layer_experts is set
    pub experts: u32,
    /// ROUTECAP_ID_SPACE_*; default LOGICAL
    pub id_space: routecap_id_space,
    /// of its weights, as in routecap_config: that of all routings
    /// that are appended; default 0: without weights
    pub weights_dtype: routecap_dtype,
    /// the most memory that the rows and tokens of the sequence and all
    /// its forks may take together, in bytes; 0: no limit
    pub budget_bytes: u64,
    /// [layers] index of each captured layer in the decoder, strictly
    /// ascending unless layer_visit is set; default 0..layers-1
    pub layer_map: *const i32,
    /// [layers] number of experts of each layer, if they differ;
    /// default `experts` for all
    pub layer_experts: *const u32,
    /// [layers] as in routecap_config
    pub layer_k: *const u32,
    /// [layers] as in routecap_config
    pub layer_min_k: *const u32,
    /// [layers] as in routecap_config
    pub layer_visit: *const u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of routecap_sequence_config"]
        [::core::mem::size_of::<routecap_sequence_config>() - 72usize];
    ["Alignment of routecap_sequence_config"]
        [::core::mem::align_of::<routecap_sequence_config>() - 8usize];
    ["Offset of field: routecap_sequence_config::struct_size"]
        [::core::mem::offset_of!(routecap_sequence_config, struct_size) - 0usize];
    ["Offset of field: routecap_sequence_config::layers"]
        [::core::mem::offset_of!(routecap_sequence_config, layers) - 4usize];
    ["Offset of field: routecap_sequence_config::k"]
        [::core::mem::offset_of!(routecap_sequence_config, k) - 8usize];
    ["Offset of field: routecap_sequence_config::experts"]
        [::core::mem::offset_of!(routecap_sequence_config, experts) - 12usize];
    ["Offset of field: routecap_sequence_config::id_space"]
        [::core::mem::offset_of!(routecap_sequence_config, id_space) - 16usize];
    ["Offset of field: routecap_sequence_config::weights_dtype"]
        [::core::mem::offset_of!(routecap_sequence_config, weights_dtype) - 20usize];
    ["Offset of field: routecap_sequence_config::budget_bytes"]
        [::core::mem::offset_of!(routecap_sequence_config, budget_bytes) - 24usize];
    ["Offset of field: routecap_sequence_config::layer_map"]
        [::core::mem::offset_of!(routecap_sequence_config, layer_map) - 32usize];
    ["Offset of field: routecap_sequence_config::layer_experts"]
        [::core::mem::offset_of!(routecap_sequence_config, layer_experts) - 40usize];
    ["Offset of field: routecap_sequence_config::layer_k"]
        [::core::mem::offset_of!(routecap_sequence_config, layer_k) - 48usize];
    ["Offset of field: routecap_sequence_config::layer_min_k"]
        [::core::mem::offset_of!(routecap_sequence_config, layer_min_k) - 56usize];
    ["Offset of field: routecap_sequence_config::layer_visit"]
        [::core::mem::offset_of!(routecap_sequence_config, layer_visit) - 64usize];
};
impl Default for routecap_sequence_config {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
unsafe extern "C" {
    /// Make an empty sequence.
    ///
    /// @param[in] config     The shape of its rows, and its budget.
    /// @param[out] sequence  The sequence, to be freed with routecap_sequence_free; NULL on error.
    /// @return ROUTECAP_OK; ROUTECAP_ERR_ARGUMENT (a field outside its range; the text names it);
    ///         ROUTECAP_ERR_DTYPE (weights_dtype).
    pub fn routecap_sequence_create(
        config: *const routecap_sequence_config,
        sequence: *mut *mut routecap_sequence,
    ) -> routecap_status;
}
unsafe extern "C" {
    /// Free a sequence. Its forks, and the routings that were read from it, stay valid. In a forked
    /// child process the call does nothing.
    ///
    /// @param[in] sequence  The sequence; may be NULL.
    pub fn routecap_sequence_free(sequence: *mut routecap_sequence);
}
pub type routecap_append_policy = i32;
/// What the caller knows about a turn besides its tokens and rows.
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct routecap_append_options {
    pub struct_size: u32,
    /// ROUTECAP_APPEND_*; default KEEP
    pub policy: routecap_append_policy,
    /// number of tokens, from token 0 on, that were the turn's
    /// prompt; the turn sampled the others. 0: not known. With KEEP,
    /// let p be the position of the first token that the turn adds or
    /// replaces. If p is prompt_tokens or more, the turn sampled that
    /// token, and row p-1 is taken from the turn even if the sequence
    /// has it
    pub prompt_tokens: u64,
    /// number of the turn, for routecap_sequence_spans; 0: one more
    /// than the highest so far. If the parts of one turn arrive
    /// separately, give all of them the same number
    pub call: u64,
    /// tag of the turn, for routecap_sequence_spans, such as the
    /// version of the weights. It does not change the tags of the
    /// rows themselves
    pub tag: u64,
    /// a number of the caller's choice, for routecap_sequence_spans,
    /// such as the number of the engine
    pub origin: u32,
    /// 0
    pub flags: u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of routecap_append_options"]
        [::core::mem::size_of::<routecap_append_options>() - 40usize];
    ["Alignment of routecap_append_options"]
        [::core::mem::align_of::<routecap_append_options>() - 8usize];
    ["Offset of field: routecap_append_options::struct_size"]
        [::core::mem::offset_of!(routecap_append_options, struct_size) - 0usize];
    ["Offset of field: routecap_append_options::policy"]
        [::core::mem::offset_of!(routecap_append_options, policy) - 4usize];
    ["Offset of field: routecap_append_options::prompt_tokens"]
        [::core::mem::offset_of!(routecap_append_options, prompt_tokens) - 8usize];
    ["Offset of field: routecap_append_options::call"]
        [::core::mem::offset_of!(routecap_append_options, call) - 16usize];
    ["Offset of field: routecap_append_options::tag"]
        [::core::mem::offset_of!(routecap_append_options, tag) - 24usize];
    ["Offset of field: routecap_append_options::origin"]
        [::core::mem::offset_of!(routecap_append_options, origin) - 32usize];
    ["Offset of field: routecap_append_options::flags"]
        [::core::mem::offset_of!(routecap_append_options, flags) - 36usize];
};
/// What one append did. routecap_sequence_report fills it with the sums over all appends; a field
/// that is not a sum says so.
///
/// A row is there if at least one of its cells is valid.
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct routecap_append_report {
    pub struct_size: u32,
    /// 0
    pub reserved: u32,
    /// number of the turn. Over all appends: the highest
    pub call: u64,
    /// tokens of the sequence now
    pub tokens: u64,
    /// number of tokens, from token 0 on, in which the turn and the
    /// sequence agree. Tokens before token_start count as agreeing. Over
    /// all appends: that of the last append
    pub tokens_common: u64,
    /// tokens of the sequence that were cut
    pub tokens_cut: u64,
    /// rows that were there and were cut with these tokens
    pub rows_cut: u64,
    /// rows with at least one cell that both the turn and the sequence
    /// had
    pub rows_overlap: u64,
    /// rows of rows_overlap with different ids in such a cell: the engine
    /// routed differently, or the rows belong to different tokens
    pub rows_differed: u64,
    /// position of the first row in rows_differed; ROUTECAP_ROWS_ALL: there
    /// is none. Over all appends: the lowest
    pub first_differed: u64,
    /// rows in which the sequence took at least one cell from the turn
    pub rows_taken: u64,
    /// boundary rows in which the turn filled a missing cell: 0 or 1 per
    /// append
    pub rows_boundary: u64,
    /// rows before the boundary row in which the turn filled a gap
    pub rows_filled: u64,
    /// rows of rows_taken in which a cell of the turn replaced one of the
    /// sequence
    pub rows_replaced: u64,
    /// rows of the turn's routing at or after its last token, which are
    /// ignored
    pub rows_beyond: u64,
    /// rows that have at least one missing cell in the sequence now
    pub rows_missing: u64,
    /// memory now, in bytes, for the rows and tokens of the sequence, its
    /// forks, and the routings read from any of them
    pub bytes: u64,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of routecap_append_report"][::core::mem::size_of::<routecap_append_report>() - 128usize];
    ["Alignment of routecap_append_report"]
        [::core::mem::align_of::<routecap_append_report>() - 8usize];
    ["Offset of field: routecap_append_report::struct_size"]
        [::core::mem::offset_of!(routecap_append_report, struct_size) - 0usize];
    ["Offset of field: routecap_append_report::reserved"]
        [::core::mem::offset_of!(routecap_append_report, reserved) - 4usize];
    ["Offset of field: routecap_append_report::call"]
        [::core::mem::offset_of!(routecap_append_report, call) - 8usize];
    ["Offset of field: routecap_append_report::tokens"]
        [::core::mem::offset_of!(routecap_append_report, tokens) - 16usize];
    ["Offset of field: routecap_append_report::tokens_common"]
        [::core::mem::offset_of!(routecap_append_report, tokens_common) - 24usize];
    ["Offset of field: routecap_append_report::tokens_cut"]
        [::core::mem::offset_of!(routecap_append_report, tokens_cut) - 32usize];
    ["Offset of field: routecap_append_report::rows_cut"]
        [::core::mem::offset_of!(routecap_append_report, rows_cut) - 40usize];
    ["Offset of field: routecap_append_report::rows_overlap"]
        [::core::mem::offset_of!(routecap_append_report, rows_overlap) - 48usize];
    ["Offset of field: routecap_append_report::rows_differed"]
        [::core::mem::offset_of!(routecap_append_report, rows_differed) - 56usize];
    ["Offset of field: routecap_append_report::first_differed"]
        [::core::mem::offset_of!(routecap_append_report, first_differed) - 64usize];
    ["Offset of field: routecap_append_report::rows_taken"]
        [::core::mem::offset_of!(routecap_append_report, rows_taken) - 72usize];
    ["Offset of field: routecap_append_report::rows_boundary"]
        [::core::mem::offset_of!(routecap_append_report, rows_boundary) - 80usize];
    ["Offset of field: routecap_append_report::rows_filled"]
        [::core::mem::offset_of!(routecap_append_report, rows_filled) - 88usize];
    ["Offset of field: routecap_append_report::rows_replaced"]
        [::core::mem::offset_of!(routecap_append_report, rows_replaced) - 96usize];
    ["Offset of field: routecap_append_report::rows_beyond"]
        [::core::mem::offset_of!(routecap_append_report, rows_beyond) - 104usize];
    ["Offset of field: routecap_append_report::rows_missing"]
        [::core::mem::offset_of!(routecap_append_report, rows_missing) - 112usize];
    ["Offset of field: routecap_append_report::bytes"]
        [::core::mem::offset_of!(routecap_append_report, bytes) - 120usize];
};
unsafe extern "C" {
    /// Add the tokens and rows of one turn, by the rules in "What append does" above.
    ///
    /// Give all tokens of the turn, from token 0 on, if you have them, because only given tokens are
    /// compared. With token_start > 0 you vouch that the tokens before it are those of the sequence. The
    /// routing may begin at any position. Usually it begins one row before token_start, with the
    /// boundary row.
    ///
    /// The time is about that of copying the turn's tokens and rows.
    ///
    /// @param[in,out] sequence  The sequence.
    /// @param[in] tokens        [count] token ids; may be NULL if count is 0.
    /// @param[in] token_start   Position of tokens[0]; at most the sequence's number of tokens.
    /// @param[in] count         How many tokens; 0 to add rows of tokens that the sequence already has.
    /// @param[in] routing       The turn's rows, by their positions; NULL if it brought none. The caller
    ///                          still owns its reference, and may free it after the call.
    /// @param[in] options       What you know about the turn; NULL: the defaults.
    /// @param[out] report       What was done, filled on success; may be NULL.
    /// @return ROUTECAP_OK; ROUTECAP_INCOMPLETE (the sequence now has missing cells);
    ///         ROUTECAP_ERR_OUT_OF_RANGE (token_start beyond the sequence, prompt_tokens beyond the
    ///         turn, tokens beyond ROUTECAP_MAX_POSITION, or no higher number left for `call`);
    ///         ROUTECAP_ERR_SHAPE_MISMATCH (anything of routecap_sequence_config but budget_bytes
    ///         differs in the routing); ROUTECAP_ERR_CONFLICT (EQUAL); ROUTECAP_ERR_NOT_READY;
    ///         ROUTECAP_ERR_STATE (the sequence does not know its tokens, and the call does not give all
    ///         of them; see routecap_sequence_deserialize); ROUTECAP_ERR_NO_MEMORY (also the budget,
    ///         which must have room for the old and the new rows until append returns).
    pub fn routecap_sequence_append(
        sequence: *mut routecap_sequence,
        tokens: *const i32,
        token_start: u64,
        count: u64,
        routing: *const routecap_routing,
        options: *const routecap_append_options,
        report: *mut routecap_append_report,
    ) -> routecap_status;
}
unsafe extern "C" {
    /// Cut a sequence: keep its first `tokens` tokens and rows 0 to tokens-1.
    ///
    /// Row tokens-1, that of the last token, is kept in memory, and becomes readable when another token
    /// follows. A sequence that is not longer than `tokens` stays as it is.
    ///
    /// @param[in,out] sequence  The sequence.
    /// @param[in] tokens        How many tokens to keep.
    /// @return ROUTECAP_OK; ROUTECAP_ERR_STATE (the sequence does not know its tokens, and `tokens` is
    ///         not a multiple of ROUTECAP_DIGEST_TOKENS).
    pub fn routecap_sequence_truncate(
        sequence: *mut routecap_sequence,
        tokens: u64,
    ) -> routecap_status;
}
unsafe extern "C" {
    /// Fork a sequence: make a new one that begins with the same tokens and rows. Use it for several
    /// samples of one prompt, or a branch of a conversation. Rows are shared, not copied.
    ///
    /// @param[in] sequence  The parent. The child's report starts with the parent's sums.
    /// @param[in] tokens    How many tokens the child begins with, at most the parent's. The child is
    ///                      cut there as in routecap_sequence_truncate. ROUTECAP_ROWS_ALL: all.
    /// @param[out] child    The new sequence, to be freed with routecap_sequence_free; NULL on error.
    /// @return ROUTECAP_OK; ROUTECAP_ERR_OUT_OF_RANGE; ROUTECAP_ERR_STATE (as
    ///         routecap_sequence_truncate).
    pub fn routecap_sequence_fork(
        sequence: *const routecap_sequence,
        tokens: u64,
        child: *mut *mut routecap_sequence,
    ) -> routecap_status;
}
unsafe extern "C" {
    /// Get the rows of the whole conversation: for S tokens, rows 0 to S-2. Pages are shared, not
    /// copied. Later appends do not change the routing.
    ///
    /// @param[in] sequence  The sequence.
    /// @param[out] routing  The routing, to be freed with routecap_routing_free; NULL on error.
    /// @return ROUTECAP_OK; ROUTECAP_INCOMPLETE; ROUTECAP_NOT_CAPTURED (all cells are missing).
    pub fn routecap_sequence_routing(
        sequence: *const routecap_sequence,
        routing: *mut *mut routecap_routing,
    ) -> routecap_status;
}
/// Consecutive rows that came from one turn.
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct routecap_sequence_span {
    /// position of the first row
    pub first: u64,
    /// how many
    pub rows: u64,
    /// number of the turn
    pub call: u64,
    /// tag of the turn, from its routecap_append_options
    pub tag: u64,
    /// origin of the turn, likewise
    pub origin: u32,
    /// 0
    pub reserved: u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of routecap_sequence_span"][::core::mem::size_of::<routecap_sequence_span>() - 40usize];
    ["Alignment of routecap_sequence_span"]
        [::core::mem::align_of::<routecap_sequence_span>() - 8usize];
    ["Offset of field: routecap_sequence_span::first"]
        [::core::mem::offset_of!(routecap_sequence_span, first) - 0usize];
    ["Offset of field: routecap_sequence_span::rows"]
        [::core::mem::offset_of!(routecap_sequence_span, rows) - 8usize];
    ["Offset of field: routecap_sequence_span::call"]
        [::core::mem::offset_of!(routecap_sequence_span, call) - 16usize];
    ["Offset of field: routecap_sequence_span::tag"]
        [::core::mem::offset_of!(routecap_sequence_span, tag) - 24usize];
    ["Offset of field: routecap_sequence_span::origin"]
        [::core::mem::offset_of!(routecap_sequence_span, origin) - 32usize];
    ["Offset of field: routecap_sequence_span::reserved"]
        [::core::mem::offset_of!(routecap_sequence_span, reserved) - 36usize];
};
unsafe extern "C" {
    /// List which rows came from which turn.
    ///
    /// Spans are in ascending order and as long as possible. A row without a valid cell is in no span. A
    /// row with cells of several turns belongs to the first of them. If turns replaced cells in it, it
    /// belongs to the last turn that did.
    ///
    /// @param[in] sequence   The sequence.
    /// @param[out] spans     [capacity] elements of span_size bytes: the first spans; may be NULL if
    ///                       capacity is 0.
    /// @param[in] span_size  sizeof(routecap_sequence_span) of the caller, in bytes.
    /// @param[in] capacity   How many spans there is room for.
    /// @param[out] count     How many there are.
    /// @return ROUTECAP_OK.
    pub fn routecap_sequence_spans(
        sequence: *const routecap_sequence,
        spans: *mut routecap_sequence_span,
        span_size: usize,
        capacity: usize,
        count: *mut u64,
    ) -> routecap_status;
}
unsafe extern "C" {
    /// Read the token ids of a sequence.
    ///
    /// @param[in] sequence  The sequence.
    /// @param[in] first     Position of the first token, at most the sequence's number of tokens.
    /// @param[out] tokens   [capacity] the ids; may be NULL if capacity is 0.
    /// @param[in] capacity  How many ids there is room for.
    /// @param[out] count    How many tokens the sequence has from `first` on; at most `capacity` are
    ///                      written.
    /// @return ROUTECAP_OK; ROUTECAP_ERR_OUT_OF_RANGE; ROUTECAP_ERR_STATE (the sequence does not know
    ///         its tokens).
    pub fn routecap_sequence_tokens(
        sequence: *const routecap_sequence,
        first: u64,
        tokens: *mut i32,
        capacity: usize,
        count: *mut u64,
    ) -> routecap_status;
}
unsafe extern "C" {
    /// Get the sums of the reports of all appends, since the sequence was created or deserialised.
    ///
    /// @param[in] sequence  The sequence.
    /// @param[out] report   The sums, and the state of the sequence now.
    /// @return ROUTECAP_OK.
    pub fn routecap_sequence_report(
        sequence: *const routecap_sequence,
        report: *mut routecap_append_report,
    ) -> routecap_status;
}
pub type routecap_sequence_flags = u32;
unsafe extern "C" {
    /// Write a sequence as bytes: its rows in the serialised form of serialized.h, its spans, and
    /// digests of its tokens. docs/format.md describes the bytes. Equal sequences give equal bytes. The
    /// bytes do not contain the sums of the reports. routecap_serialized_slice cannot read the bytes of
    /// a sequence: to read a part of the rows later, serialise the routing of routecap_sequence_routing
    /// instead.
    ///
    /// @param[in] sequence   The sequence.
    /// @param[in] flags      0 or ROUTECAP_SEQUENCE_WITH_TOKENS.
    /// @param[out] dst       [dst_bytes] the bytes. NULL with dst_bytes 0 asks for the size, and the
    ///                       call returns ROUTECAP_ERR_BUFFER_TOO_SMALL.
    /// @param[in] dst_bytes  Size of dst, in bytes.
    /// @param[out] needed    How many bytes it takes, set on ROUTECAP_ERR_BUFFER_TOO_SMALL too; may be
    ///                       NULL.
    /// @return ROUTECAP_OK, also if cells are missing; ROUTECAP_ERR_BUFFER_TOO_SMALL (nothing is
    ///         written); ROUTECAP_ERR_STATE (WITH_TOKENS, and the sequence does not know its tokens).
    pub fn routecap_sequence_serialize(
        sequence: *const routecap_sequence,
        flags: routecap_sequence_flags,
        dst: *mut ::core::ffi::c_void,
        dst_bytes: usize,
        needed: *mut u64,
    ) -> routecap_status;
}
unsafe extern "C" {
    /// Make a sequence from such bytes. Nothing in them is trusted: ids are checked as in
    /// routecap_routing_deserialize, tokens against their digests, and spans against the rows.
    ///
    /// A sequence without its tokens can be read, serialised, and cut or forked at multiples of
    /// ROUTECAP_DIGEST_TOKENS. The next append must give all tokens from token 0 on, at least as many as
    /// the sequence has. Append checks them against the digests, one group of ROUTECAP_DIGEST_TOKENS
    /// tokens at a time, and cuts the sequence at the start of the first group that differs. From then
    /// on the sequence knows its tokens.
    ///
    /// @param[in] data          [bytes] the bytes. They are copied.
    /// @param[in] bytes         How many: exactly those of one sequence.
    /// @param[in] budget_bytes  As in routecap_sequence_config.
    /// @param[out] sequence     The sequence, to be freed with routecap_sequence_free; NULL on error.
    /// @return ROUTECAP_OK; ROUTECAP_ERR_FORMAT (the text says what is wrong); ROUTECAP_ERR_NO_MEMORY
    ///         (also the budget).
    pub fn routecap_sequence_deserialize(
        data: *const ::core::ffi::c_void,
        bytes: usize,
        budget_bytes: u64,
        sequence: *mut *mut routecap_sequence,
    ) -> routecap_status;
}
/// A store.
#[repr(C)]
#[derive(Debug)]
pub struct routecap_store {
    _unused: [u8; 0],
}
pub type routecap_store_flags = u32;
/// The kind and the size of a store.
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct routecap_store_config {
    pub struct_size: u32,
    /// ROUTECAP_STORE_*; default none
    pub flags: routecap_store_flags,
    /// rows of a block, 1..ROUTECAP_MAX_BLOCK_ROWS; default 16
    pub block_rows: u32,
    /// bytes of a key, ROUTECAP_MIN_KEY_BYTES..ROUTECAP_MAX_KEY_BYTES;
    /// default 32
    pub key_bytes: u32,
    /// limit of its memory, in bytes; default 1 GiB. At least two pages
    /// (routecap_memory.page_bytes) or two blocks, whichever is more,
    /// and what two blocks take besides their rows, such as keys. If it
    /// is less, the text of the error names the least that is allowed
    pub budget_bytes: u64,
    /// the generation at which the store begins
    pub generation: u64,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of routecap_store_config"][::core::mem::size_of::<routecap_store_config>() - 32usize];
    ["Alignment of routecap_store_config"]
        [::core::mem::align_of::<routecap_store_config>() - 8usize];
    ["Offset of field: routecap_store_config::struct_size"]
        [::core::mem::offset_of!(routecap_store_config, struct_size) - 0usize];
    ["Offset of field: routecap_store_config::flags"]
        [::core::mem::offset_of!(routecap_store_config, flags) - 4usize];
    ["Offset of field: routecap_store_config::block_rows"]
        [::core::mem::offset_of!(routecap_store_config, block_rows) - 8usize];
    ["Offset of field: routecap_store_config::key_bytes"]
        [::core::mem::offset_of!(routecap_store_config, key_bytes) - 12usize];
    ["Offset of field: routecap_store_config::budget_bytes"]
        [::core::mem::offset_of!(routecap_store_config, budget_bytes) - 16usize];
    ["Offset of field: routecap_store_config::generation"]
        [::core::mem::offset_of!(routecap_store_config, generation) - 24usize];
};
unsafe extern "C" {
    /// Fill a configuration with the defaults.
    ///
    /// @param[out] config      The configuration.
    /// @param[in] struct_size  sizeof(routecap_store_config) of the caller, in bytes.
    pub fn routecap_store_config_init(
        config: *mut routecap_store_config,
        struct_size: usize,
    ) -> routecap_status;
}
unsafe extern "C" {
    /// Create a store in the memory of this process.
    ///
    /// @param[in] config  The configuration.
    /// @param[in] shape   A capturer's configuration. The store takes its layers, k, experts, id_space,
    ///                    weights_dtype and all arrays whose names begin with layer_, and ignores all
    ///                    other fields. The arrays are copied.
    /// @param[out] store  The store, to be freed with routecap_store_free; NULL on error.
    /// @return ROUTECAP_OK.
    pub fn routecap_store_create(
        config: *const routecap_store_config,
        shape: *const routecap_config,
        store: *mut *mut routecap_store,
    ) -> routecap_status;
}
unsafe extern "C" {
    /// Free a store.
    ///
    /// Blocks that were published and have not landed are dropped. Requests keep the rows that they
    /// adopted.
    ///
    /// @param[in] store  The store; may be NULL.
    pub fn routecap_store_free(store: *mut routecap_store);
}
/// The blocks of a store now, and its counters since it was created.
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct routecap_store_counts {
    pub struct_size: u32,
    /// rows of a block
    pub block_rows: u32,
    /// bytes of a key
    pub key_bytes: u32,
    /// ROUTECAP_STORE_*
    pub flags: routecap_store_flags,
    /// the generation that the store is at
    pub generation: u64,
    /// blocks in the store, those in flight and stale ones included
    pub blocks: u64,
    /// of these: published, and not landed yet
    pub blocks_in_flight: u64,
    /// of these: retained by at least one caller
    pub blocks_retained: u64,
    /// of the budget
    pub bytes_in_use: u64,
    /// the highest bytes_in_use so far
    pub bytes_peak: u64,
    /// the limit of bytes_in_use
    pub bytes_budget: u64,
    /// landed under their key, or added cells that a block lacked
    pub blocks_published: u64,
    /// published again, with no new cells
    pub blocks_repeated: u64,
    /// published without a row that landed
    pub blocks_empty: u64,
    /// there was no room
    pub blocks_refused: u64,
    /// a row of it, or its publisher, was of an older generation
    pub blocks_stale: u64,
    /// found by adopt
    pub blocks_adopted: u64,
    /// not found by adopt
    pub blocks_absent: u64,
    /// published again with different ids in a valid cell
    pub blocks_mismatched: u64,
    /// replaced by a later publish under the same slot key
    pub blocks_replaced: u64,
    /// dropped for room, or by routecap_store_evict
    pub blocks_evicted: u64,
    /// rows that were copied, because their page was not shared
    pub rows_copied: u64,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of routecap_store_counts"][::core::mem::size_of::<routecap_store_counts>() - 160usize];
    ["Alignment of routecap_store_counts"]
        [::core::mem::align_of::<routecap_store_counts>() - 8usize];
    ["Offset of field: routecap_store_counts::struct_size"]
        [::core::mem::offset_of!(routecap_store_counts, struct_size) - 0usize];
    ["Offset of field: routecap_store_counts::block_rows"]
        [::core::mem::offset_of!(routecap_store_counts, block_rows) - 4usize];
    ["Offset of field: routecap_store_counts::key_bytes"]
        [::core::mem::offset_of!(routecap_store_counts, key_bytes) - 8usize];
    ["Offset of field: routecap_store_counts::flags"]
        [::core::mem::offset_of!(routecap_store_counts, flags) - 12usize];
    ["Offset of field: routecap_store_counts::generation"]
        [::core::mem::offset_of!(routecap_store_counts, generation) - 16usize];
    ["Offset of field: routecap_store_counts::blocks"]
        [::core::mem::offset_of!(routecap_store_counts, blocks) - 24usize];
    ["Offset of field: routecap_store_counts::blocks_in_flight"]
        [::core::mem::offset_of!(routecap_store_counts, blocks_in_flight) - 32usize];
    ["Offset of field: routecap_store_counts::blocks_retained"]
        [::core::mem::offset_of!(routecap_store_counts, blocks_retained) - 40usize];
    ["Offset of field: routecap_store_counts::bytes_in_use"]
        [::core::mem::offset_of!(routecap_store_counts, bytes_in_use) - 48usize];
    ["Offset of field: routecap_store_counts::bytes_peak"]
        [::core::mem::offset_of!(routecap_store_counts, bytes_peak) - 56usize];
    ["Offset of field: routecap_store_counts::bytes_budget"]
        [::core::mem::offset_of!(routecap_store_counts, bytes_budget) - 64usize];
    ["Offset of field: routecap_store_counts::blocks_published"]
        [::core::mem::offset_of!(routecap_store_counts, blocks_published) - 72usize];
    ["Offset of field: routecap_store_counts::blocks_repeated"]
        [::core::mem::offset_of!(routecap_store_counts, blocks_repeated) - 80usize];
    ["Offset of field: routecap_store_counts::blocks_empty"]
        [::core::mem::offset_of!(routecap_store_counts, blocks_empty) - 88usize];
    ["Offset of field: routecap_store_counts::blocks_refused"]
        [::core::mem::offset_of!(routecap_store_counts, blocks_refused) - 96usize];
    ["Offset of field: routecap_store_counts::blocks_stale"]
        [::core::mem::offset_of!(routecap_store_counts, blocks_stale) - 104usize];
    ["Offset of field: routecap_store_counts::blocks_adopted"]
        [::core::mem::offset_of!(routecap_store_counts, blocks_adopted) - 112usize];
    ["Offset of field: routecap_store_counts::blocks_absent"]
        [::core::mem::offset_of!(routecap_store_counts, blocks_absent) - 120usize];
    ["Offset of field: routecap_store_counts::blocks_mismatched"]
        [::core::mem::offset_of!(routecap_store_counts, blocks_mismatched) - 128usize];
    ["Offset of field: routecap_store_counts::blocks_replaced"]
        [::core::mem::offset_of!(routecap_store_counts, blocks_replaced) - 136usize];
    ["Offset of field: routecap_store_counts::blocks_evicted"]
        [::core::mem::offset_of!(routecap_store_counts, blocks_evicted) - 144usize];
    ["Offset of field: routecap_store_counts::rows_copied"]
        [::core::mem::offset_of!(routecap_store_counts, rows_copied) - 152usize];
};
unsafe extern "C" {
    /// Read the counters of a store.
    ///
    /// @param[in] store    The store.
    /// @param[out] counts  The counters.
    pub fn routecap_store_stats(
        store: *const routecap_store,
        counts: *mut routecap_store_counts,
    ) -> routecap_status;
}
unsafe extern "C" {
    /// Advance a store to a generation: rows with a lower tag are stale from then on.
    ///
    /// No adopt finds a stale block any more, so nothing uses it again, and it is dropped before blocks
    /// that were used since. A retained block stays until it is released. Nothing happens if the store
    /// is already at this generation or at a later one.
    ///
    /// @param[in] store       The store.
    /// @param[in] generation  The new generation.
    pub fn routecap_store_advance(store: *mut routecap_store, generation: u64) -> routecap_status;
}
unsafe extern "C" {
    /// Publish rows of a request: `count` blocks, one after another in the request.
    ///
    /// The call notes the keys and returns. The worker thread publishes the rows when they have landed.
    /// If one of the blocks has drafts that are not settled, the call returns ROUTECAP_ERR_NOT_READY and
    /// publishes nothing.
    ///
    /// @param[in] capturer    The capturer.
    /// @param[in] request     The request.
    /// @param[in] store       The store.
    /// @param[in] first       Position of the first row of the first block.
    /// @param[in] keys        [count, key_bytes] the keys, each once.
    /// @param[in] count       How many blocks. All of their rows must have been issued.
    /// @param[in] generation  The tag of the caller's steps. If it is lower than the store's generation,
    ///                        nothing is published.
    /// @return ROUTECAP_OK; ROUTECAP_ERR_UNKNOWN_REQUEST; ROUTECAP_ERR_SHAPE_MISMATCH (also if a layer
    ///         is recomputed here and captured in the store); ROUTECAP_ERR_OUT_OF_RANGE;
    ///         ROUTECAP_ERR_NOT_READY; ROUTECAP_ERR_STATE (a generation that the store has not advanced
    ///         to).
    pub fn routecap_request_publish(
        capturer: *mut routecap_capturer,
        request: routecap_request,
        store: *mut routecap_store,
        first: u64,
        keys: *const ::core::ffi::c_void,
        count: usize,
        generation: u64,
    ) -> routecap_status;
}
/// The result of an adopt.
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct routecap_adoption {
    pub struct_size: u32,
    /// 0
    pub reserved: u32,
    /// rows from `first` up to the first block that was not found
    pub rows: u64,
    /// blocks that were found
    pub found: u64,
    /// blocks that are missing with the reason EVICTED
    pub evicted: u64,
    /// blocks that are missing with the reason NOT_PUBLISHED
    pub not_published: u64,
    /// blocks that are missing with the reason STALE
    pub stale: u64,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of routecap_adoption"][::core::mem::size_of::<routecap_adoption>() - 48usize];
    ["Alignment of routecap_adoption"][::core::mem::align_of::<routecap_adoption>() - 8usize];
    ["Offset of field: routecap_adoption::struct_size"]
        [::core::mem::offset_of!(routecap_adoption, struct_size) - 0usize];
    ["Offset of field: routecap_adoption::reserved"]
        [::core::mem::offset_of!(routecap_adoption, reserved) - 4usize];
    ["Offset of field: routecap_adoption::rows"]
        [::core::mem::offset_of!(routecap_adoption, rows) - 8usize];
    ["Offset of field: routecap_adoption::found"]
        [::core::mem::offset_of!(routecap_adoption, found) - 16usize];
    ["Offset of field: routecap_adoption::evicted"]
        [::core::mem::offset_of!(routecap_adoption, evicted) - 24usize];
    ["Offset of field: routecap_adoption::not_published"]
        [::core::mem::offset_of!(routecap_adoption, not_published) - 32usize];
    ["Offset of field: routecap_adoption::stale"]
        [::core::mem::offset_of!(routecap_adoption, stale) - 40usize];
};
unsafe extern "C" {
    /// Add rows of a store to a request: `count` blocks, one after another in the request. Use it for
    /// the positions that an engine took from its cache and did not compute.
    ///
    /// Each block that is found fills its rows. The rows of all other blocks are missing. If the
    /// request's length was less than the end of the last block, it becomes that end. Cells that the
    /// request already has are kept, even with ROUTECAP_POLICY_REPLACE. Where rows line up with pages,
    /// the pages are shared. The worker thread copies all other rows; if the capturer's budget has no
    /// room for a copy, they are missing (REFUSED). No counter shows that, only the reasons of the
    /// missing cells.
    ///
    /// @param[in] capturer    The capturer.
    /// @param[in] request     The request.
    /// @param[in] store       The store.
    /// @param[in] first       Position of the first row of the first block.
    /// @param[in] keys        [count, key_bytes] the keys.
    /// @param[in] count       How many blocks.
    /// @param[in] generation  The tag of the caller's steps. If it is lower than the store's generation,
    ///                        nothing is found: landed blocks are STALE, and blocks in flight
    ///                        NOT_PUBLISHED.
    /// @param[out] adoption   What was found; may be NULL.
    /// @return ROUTECAP_OK, also if nothing was found; ROUTECAP_ERR_UNKNOWN_REQUEST;
    ///         ROUTECAP_ERR_SHAPE_MISMATCH (also if a layer is recomputed in the store and captured
    ///         here); ROUTECAP_ERR_OUT_OF_RANGE (beyond ROUTECAP_MAX_POSITION); ROUTECAP_ERR_STATE (a
    ///         generation that the store has not advanced to).
    pub fn routecap_request_adopt(
        capturer: *mut routecap_capturer,
        request: routecap_request,
        store: *mut routecap_store,
        first: u64,
        keys: *const ::core::ffi::c_void,
        count: usize,
        generation: u64,
        adoption: *mut routecap_adoption,
    ) -> routecap_status;
}
/// One call of routecap_request_publish: its parameters, and its status.
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct routecap_publish_item {
    pub request: routecap_request,
    pub first: u64,
    /// [count, key_bytes]
    pub keys: *const ::core::ffi::c_void,
    pub count: u64,
    /// receives the status of this item
    pub status: routecap_status,
    /// 0
    pub reserved: i32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of routecap_publish_item"][::core::mem::size_of::<routecap_publish_item>() - 40usize];
    ["Alignment of routecap_publish_item"]
        [::core::mem::align_of::<routecap_publish_item>() - 8usize];
    ["Offset of field: routecap_publish_item::request"]
        [::core::mem::offset_of!(routecap_publish_item, request) - 0usize];
    ["Offset of field: routecap_publish_item::first"]
        [::core::mem::offset_of!(routecap_publish_item, first) - 8usize];
    ["Offset of field: routecap_publish_item::keys"]
        [::core::mem::offset_of!(routecap_publish_item, keys) - 16usize];
    ["Offset of field: routecap_publish_item::count"]
        [::core::mem::offset_of!(routecap_publish_item, count) - 24usize];
    ["Offset of field: routecap_publish_item::status"]
        [::core::mem::offset_of!(routecap_publish_item, status) - 32usize];
    ["Offset of field: routecap_publish_item::reserved"]
        [::core::mem::offset_of!(routecap_publish_item, reserved) - 36usize];
};
impl Default for routecap_publish_item {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
unsafe extern "C" {
    /// Publish rows of many requests in one call, such as all blocks that were filled in this step.
    ///
    /// @param[in] capturer    The capturer.
    /// @param[in] store       The store.
    /// @param[in,out] items   [count] elements of item_size bytes.
    /// @param[in] item_size   sizeof(routecap_publish_item) of the caller, in bytes.
    /// @param[in] count       How many items; 0 returns at once.
    /// @param[in] generation  As in routecap_request_publish.
    /// @return ROUTECAP_OK; ROUTECAP_PARTIAL; ROUTECAP_ERR_SHAPE_MISMATCH; ROUTECAP_ERR_STATE.
    pub fn routecap_request_publish_batch(
        capturer: *mut routecap_capturer,
        store: *mut routecap_store,
        items: *mut routecap_publish_item,
        item_size: usize,
        count: usize,
        generation: u64,
    ) -> routecap_status;
}
/// One call of routecap_request_adopt: its parameters, its result, and its status.
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct routecap_adopt_item {
    pub request: routecap_request,
    pub first: u64,
    /// [count, key_bytes]
    pub keys: *const ::core::ffi::c_void,
    pub count: u64,
    /// These five receive the fields of routecap_adoption with the same names.
    pub rows: u64,
    pub found: u64,
    pub evicted: u64,
    pub not_published: u64,
    pub stale: u64,
    /// receives the status of this item
    pub status: routecap_status,
    /// 0
    pub reserved: i32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of routecap_adopt_item"][::core::mem::size_of::<routecap_adopt_item>() - 80usize];
    ["Alignment of routecap_adopt_item"][::core::mem::align_of::<routecap_adopt_item>() - 8usize];
    ["Offset of field: routecap_adopt_item::request"]
        [::core::mem::offset_of!(routecap_adopt_item, request) - 0usize];
    ["Offset of field: routecap_adopt_item::first"]
        [::core::mem::offset_of!(routecap_adopt_item, first) - 8usize];
    ["Offset of field: routecap_adopt_item::keys"]
        [::core::mem::offset_of!(routecap_adopt_item, keys) - 16usize];
    ["Offset of field: routecap_adopt_item::count"]
        [::core::mem::offset_of!(routecap_adopt_item, count) - 24usize];
    ["Offset of field: routecap_adopt_item::rows"]
        [::core::mem::offset_of!(routecap_adopt_item, rows) - 32usize];
    ["Offset of field: routecap_adopt_item::found"]
        [::core::mem::offset_of!(routecap_adopt_item, found) - 40usize];
    ["Offset of field: routecap_adopt_item::evicted"]
        [::core::mem::offset_of!(routecap_adopt_item, evicted) - 48usize];
    ["Offset of field: routecap_adopt_item::not_published"]
        [::core::mem::offset_of!(routecap_adopt_item, not_published) - 56usize];
    ["Offset of field: routecap_adopt_item::stale"]
        [::core::mem::offset_of!(routecap_adopt_item, stale) - 64usize];
    ["Offset of field: routecap_adopt_item::status"]
        [::core::mem::offset_of!(routecap_adopt_item, status) - 72usize];
    ["Offset of field: routecap_adopt_item::reserved"]
        [::core::mem::offset_of!(routecap_adopt_item, reserved) - 76usize];
};
impl Default for routecap_adopt_item {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
unsafe extern "C" {
    /// Add rows of a store to many requests in one call, such as all requests that the engine admits in
    /// this step.
    ///
    /// @param[in] capturer    The capturer.
    /// @param[in] store       The store.
    /// @param[in,out] items   [count] elements of item_size bytes.
    /// @param[in] item_size   sizeof(routecap_adopt_item) of the caller, in bytes.
    /// @param[in] count       How many items; 0 returns at once.
    /// @param[in] generation  As in routecap_request_adopt.
    /// @return ROUTECAP_OK; ROUTECAP_PARTIAL; ROUTECAP_ERR_SHAPE_MISMATCH; ROUTECAP_ERR_STATE.
    pub fn routecap_request_adopt_batch(
        capturer: *mut routecap_capturer,
        store: *mut routecap_store,
        items: *mut routecap_adopt_item,
        item_size: usize,
        count: usize,
        generation: u64,
    ) -> routecap_status;
}
unsafe extern "C" {
    /// Make content keys from token ids: one key for each whole block. The key stands for all tokens up
    /// to the end of its block.
    ///
    /// A key is a BLAKE2b digest (RFC 7693, unkeyed) of key_bytes bytes. The digest covers two things,
    /// one after the other: a prefix, and the block's tokens as little-endian 32-bit integers. For the
    /// first block the prefix is the seed. For every other block the prefix is the key of the block
    /// before it. To continue a chain, pass its last key as the seed of the next call. The
    /// personalisation of the digest is the 8 bytes "routecap", then block_rows and 0 as little-endian
    /// 32-bit integers.
    ///
    /// @param[in] seed         [seed_bytes] everything else that decides the rows: the model, its
    ///                         weights, an adapter, a session. May be NULL if seed_bytes is 0.
    /// @param[in] seed_bytes   Size of seed, in bytes.
    /// @param[in] tokens       [count] the token ids.
    /// @param[in] count        How many tokens. Tokens after the last whole block get no key.
    /// @param[in] block_rows   Rows of a block, 1..ROUTECAP_MAX_BLOCK_ROWS.
    /// @param[in] key_bytes    Bytes of a key, ROUTECAP_MIN_KEY_BYTES..ROUTECAP_MAX_KEY_BYTES.
    /// @param[out] keys        [count / block_rows, key_bytes] the keys.
    /// @param[in] keys_bytes   Size of keys, in bytes.
    /// @return ROUTECAP_OK; ROUTECAP_ERR_BUFFER_TOO_SMALL.
    pub fn routecap_key_chain(
        seed: *const ::core::ffi::c_void,
        seed_bytes: usize,
        tokens: *const i32,
        count: usize,
        block_rows: u32,
        key_bytes: u32,
        keys: *mut ::core::ffi::c_void,
        keys_bytes: usize,
    ) -> routecap_status;
}
unsafe extern "C" {
    /// Tell which keys an adopt of this generation would find now.
    ///
    /// The answer holds at this moment only. The store may drop a block before you adopt it, unless the
    /// block is retained. Blocks in flight count as found. Until such a block has landed, only the
    /// capturer that published it can adopt it.
    ///
    /// @param[in] store       The store.
    /// @param[in] keys        [count, key_bytes] the keys.
    /// @param[in] count       How many keys.
    /// @param[in] generation  The tag of the caller's steps.
    /// @param[out] reasons    [count] 0 for a block that is found, otherwise ROUTECAP_MISSING_*; may be
    ///                        NULL.
    /// @param[out] leading    How many keys before the first that is not found; may be NULL.
    /// @return ROUTECAP_OK; ROUTECAP_ERR_STATE (a generation that the store has not advanced to).
    pub fn routecap_store_contains(
        store: *mut routecap_store,
        keys: *const ::core::ffi::c_void,
        count: usize,
        generation: u64,
        reasons: *mut routecap_reason,
        leading: *mut u64,
    ) -> routecap_status;
}
unsafe extern "C" {
    /// Retain blocks: the store keeps them until they are released, whatever the budget says.
    ///
    /// A block that was retained twice stays until it is released twice. A block that was retained
    /// 65,535 times stays for ever. If another block takes the key later, that block is retained as many
    /// times as this one was. A key without a block is not retained, so release only the keys that were
    /// retained.
    ///
    /// @param[in] store     The store.
    /// @param[in] keys      [count, key_bytes] the keys.
    /// @param[in] count     How many keys.
    /// @param[out] reasons  [count] 0 for a block that is retained now, otherwise ROUTECAP_MISSING_*;
    ///                      may be NULL.
    pub fn routecap_store_retain(
        store: *mut routecap_store,
        keys: *const ::core::ffi::c_void,
        count: usize,
        reasons: *mut routecap_reason,
    ) -> routecap_status;
}
unsafe extern "C" {
    /// Release blocks that were retained. Keys that nobody retains are ignored.
    ///
    /// @param[in] store  The store.
    /// @param[in] keys   [count, key_bytes] the keys.
    /// @param[in] count  How many keys.
    pub fn routecap_store_release(
        store: *mut routecap_store,
        keys: *const ::core::ffi::c_void,
        count: usize,
    ) -> routecap_status;
}
unsafe extern "C" {
    /// Drop blocks, including retained ones and those in flight. Requests that adopted them keep the
    /// rows.
    ///
    /// @param[in] store     The store.
    /// @param[in] keys      [count, key_bytes] the keys; keys without a block are ignored.
    /// @param[in] count     How many keys.
    /// @param[out] evicted  How many keys had a block; may be NULL.
    pub fn routecap_store_evict(
        store: *mut routecap_store,
        keys: *const ::core::ffi::c_void,
        count: usize,
        evicted: *mut u64,
    ) -> routecap_status;
}
/// A plan; see routecap_plan_create.
#[repr(C)]
#[derive(Debug)]
pub struct routecap_plan {
    _unused: [u8; 0],
}
pub type routecap_plan_layout = i32;
pub type routecap_plan_context = i32;
pub type routecap_plan_flags = u32;
pub type routecap_plan_fill = i32;
pub type routecap_plan_lost = i32;
/// One rank of a trainer, and one micro-batch.
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct routecap_plan_config {
    pub struct_size: u32,
    /// ROUTECAP_PLAN_LAYOUT_PACKED (default), _PADDED_RIGHT or
    /// _PADDED_LEFT
    pub layout: routecap_plan_layout,
    /// ROUTECAP_PLAN_CONTEXT_*; default NONE
    pub context: routecap_plan_context,
    /// number of context-parallel ranks, C; default 1
    pub context_size: u32,
    /// this rank, 0..C-1. Required if C is more than 1
    pub context_rank: u32,
    /// number of tensor-parallel ranks; default 1
    pub tensor_size: u32,
    /// this rank, 0..tensor_size-1. Required with SEQUENCE_PARALLEL
    /// if tensor_size is more than 1
    pub tensor_rank: u32,
    /// ROUTECAP_PLAN_SEQUENCE_PARALLEL, _SEQUENCE_FIRST; default
    /// none
    pub flags: routecap_plan_flags,
    /// sequences of the micro-batch; may be 0
    pub samples: u64,
    /// [samples] number of tokens of each sample; may be 0.
    /// Required, unless cu_lengths is given
    pub lengths: *const u64,
    /// [samples + 1] instead of lengths: cumulative lengths. The
    /// first is 0, the last the number of all tokens
    pub cu_lengths: *const u64,
    /// [samples] rows [0, needed) of each sample are needed;
    /// ROUTECAP_ROWS_ALL: all. Default: all but the last
    pub needed: *const u64,
    /// [samples] PACKED: rows of each sample with its padding.
    /// Default: the lengths, each rounded up to a multiple of
    /// `align`
    pub padded_lengths: *const u64,
    /// [samples] padded layouts: the column of each sample's first
    /// token. Default: 0; with PADDED_LEFT width - length
    pub starts: *const u64,
    /// padded layouts: columns. Default: the length of the longest sample,
    /// rounded up to a multiple of `align`
    pub width: u64,
    /// each sequence is padded to a multiple of this. Default: C, times 2
    /// with ZIGZAG, times tensor_size with SEQUENCE_PARALLEL, so that a
    /// sequence can be divided evenly among all ranks; but 1 with PACKED
    /// and ALLGATHER
    pub align: u64,
    /// PACKED: the last sequence is padded further until the number of
    /// rows of the micro-batch is a multiple of this. Default: 1. With
    /// ALLGATHER: C, times tensor_size with SEQUENCE_PARALLEL
    pub align_total: u64,
    /// PACKED: the last sequence is padded further until the micro-batch
    /// has at least this many rows
    pub least_total: u64,
    /// PACKED: the rows of each context-parallel rank are padded at their
    /// end to a multiple of this. Default 1
    pub align_rank: u64,
    /// MoE layers of this pipeline stage (or virtual stage),
    /// 1..ROUTECAP_MAX_LAYERS. Required; a stage without MoE layers needs
    /// no plan
    pub layers: u32,
    /// experts per token, 1..ROUTECAP_MAX_K: the k of the sources, also
    /// where layer_k is less in all layers of this stage. Required
    pub k: u32,
    /// ids are in [0, experts). Required unless layer_experts is set
    pub experts: u32,
    /// number P of ranks among which the experts are divided, for
    /// BALANCED; default 1. All ranks of the trainer fill a row with the
    /// same experts. Which experts these are depends on p, the number of
    /// the row, counted from 0 in the order of the undivided micro-batch.
    /// For a row of padding, or one that is not needed, p counts only rows
    /// of these two kinds. For a lost cell, p counts all rows. Column c of
    /// row p in a layer of E experts, whose index in the decoder is l,
    /// gets this expert, where a = p * k + c + l * P * k:
    /// if P divides E:  a % P * (E / P) + a / P % (E / P)
    /// otherwise:       a % E
    /// With layer_k, the layer_k of the layer takes the place of k:
    /// columns from there on get none_value
    pub expert_parallel: u32,
    /// [layers] each layer's index in the decoder, strictly
    /// ascending unless layer_visit is set. Default: 0..layers-1
    pub layer_map: *const i32,
    /// [layers] number of experts of each layer, if they differ.
    /// Default: `experts` for all
    pub layer_experts: *const u32,
    /// [layers] as in routecap_config
    pub layer_k: *const u32,
    /// [layers] as in routecap_config
    pub layer_min_k: *const u32,
    /// [layers] as in routecap_config
    pub layer_visit: *const u32,
    /// dtype of the result: ROUTECAP_DTYPE_U8, _I16, _U16, _I32, _U32 or
    /// _I64. Required
    pub dtype: routecap_dtype,
    /// ROUTECAP_ORDER_ROW_MAJOR (default): [rows, layers, k];
    /// _LAYER_MAJOR: [layers, rows, k]
    pub order: routecap_order,
    /// ROUTECAP_PLAN_FILL_*; default BALANCED
    pub fill: routecap_plan_fill,
    /// ROUTECAP_PLAN_LOST_*; default MARK
    pub lost: routecap_plan_lost,
    /// with FILL_VALUE: written for each of the k ids of a filled cell; a
    /// negative one as in routecap_copy_options
    pub fill_value: i64,
    /// with LOST_MARK: written for each of the k ids of a lost cell; a
    /// negative one as in routecap_copy_options. Here 0 means 0 and not
    /// the default: routecap_plan_config_init sets -1
    pub lost_value: i64,
    /// written for each column of a valid or BALANCED cell that has no
    /// expert; a negative one as in routecap_copy_options. It must not be
    /// an expert's id. Not used if every cell has k experts. 0 means 0
    /// here too: routecap_plan_config_init sets ROUTECAP_NO_EXPERT
    pub none_value: i64,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of routecap_plan_config"][::core::mem::size_of::<routecap_plan_config>() - 216usize];
    ["Alignment of routecap_plan_config"][::core::mem::align_of::<routecap_plan_config>() - 8usize];
    ["Offset of field: routecap_plan_config::struct_size"]
        [::core::mem::offset_of!(routecap_plan_config, struct_size) - 0usize];
    ["Offset of field: routecap_plan_config::layout"]
        [::core::mem::offset_of!(routecap_plan_config, layout) - 4usize];
    ["Offset of field: routecap_plan_config::context"]
        [::core::mem::offset_of!(routecap_plan_config, context) - 8usize];
    ["Offset of field: routecap_plan_config::context_size"]
        [::core::mem::offset_of!(routecap_plan_config, context_size) - 12usize];
    ["Offset of field: routecap_plan_config::context_rank"]
        [::core::mem::offset_of!(routecap_plan_config, context_rank) - 16usize];
    ["Offset of field: routecap_plan_config::tensor_size"]
        [::core::mem::offset_of!(routecap_plan_config, tensor_size) - 20usize];
    ["Offset of field: routecap_plan_config::tensor_rank"]
        [::core::mem::offset_of!(routecap_plan_config, tensor_rank) - 24usize];
    ["Offset of field: routecap_plan_config::flags"]
        [::core::mem::offset_of!(routecap_plan_config, flags) - 28usize];
    ["Offset of field: routecap_plan_config::samples"]
        [::core::mem::offset_of!(routecap_plan_config, samples) - 32usize];
    ["Offset of field: routecap_plan_config::lengths"]
        [::core::mem::offset_of!(routecap_plan_config, lengths) - 40usize];
    ["Offset of field: routecap_plan_config::cu_lengths"]
        [::core::mem::offset_of!(routecap_plan_config, cu_lengths) - 48usize];
    ["Offset of field: routecap_plan_config::needed"]
        [::core::mem::offset_of!(routecap_plan_config, needed) - 56usize];
    ["Offset of field: routecap_plan_config::padded_lengths"]
        [::core::mem::offset_of!(routecap_plan_config, padded_lengths) - 64usize];
    ["Offset of field: routecap_plan_config::starts"]
        [::core::mem::offset_of!(routecap_plan_config, starts) - 72usize];
    ["Offset of field: routecap_plan_config::width"]
        [::core::mem::offset_of!(routecap_plan_config, width) - 80usize];
    ["Offset of field: routecap_plan_config::align"]
        [::core::mem::offset_of!(routecap_plan_config, align) - 88usize];
    ["Offset of field: routecap_plan_config::align_total"]
        [::core::mem::offset_of!(routecap_plan_config, align_total) - 96usize];
    ["Offset of field: routecap_plan_config::least_total"]
        [::core::mem::offset_of!(routecap_plan_config, least_total) - 104usize];
    ["Offset of field: routecap_plan_config::align_rank"]
        [::core::mem::offset_of!(routecap_plan_config, align_rank) - 112usize];
    ["Offset of field: routecap_plan_config::layers"]
        [::core::mem::offset_of!(routecap_plan_config, layers) - 120usize];
    ["Offset of field: routecap_plan_config::k"]
        [::core::mem::offset_of!(routecap_plan_config, k) - 124usize];
    ["Offset of field: routecap_plan_config::experts"]
        [::core::mem::offset_of!(routecap_plan_config, experts) - 128usize];
    ["Offset of field: routecap_plan_config::expert_parallel"]
        [::core::mem::offset_of!(routecap_plan_config, expert_parallel) - 132usize];
    ["Offset of field: routecap_plan_config::layer_map"]
        [::core::mem::offset_of!(routecap_plan_config, layer_map) - 136usize];
    ["Offset of field: routecap_plan_config::layer_experts"]
        [::core::mem::offset_of!(routecap_plan_config, layer_experts) - 144usize];
    ["Offset of field: routecap_plan_config::layer_k"]
        [::core::mem::offset_of!(routecap_plan_config, layer_k) - 152usize];
    ["Offset of field: routecap_plan_config::layer_min_k"]
        [::core::mem::offset_of!(routecap_plan_config, layer_min_k) - 160usize];
    ["Offset of field: routecap_plan_config::layer_visit"]
        [::core::mem::offset_of!(routecap_plan_config, layer_visit) - 168usize];
    ["Offset of field: routecap_plan_config::dtype"]
        [::core::mem::offset_of!(routecap_plan_config, dtype) - 176usize];
    ["Offset of field: routecap_plan_config::order"]
        [::core::mem::offset_of!(routecap_plan_config, order) - 180usize];
    ["Offset of field: routecap_plan_config::fill"]
        [::core::mem::offset_of!(routecap_plan_config, fill) - 184usize];
    ["Offset of field: routecap_plan_config::lost"]
        [::core::mem::offset_of!(routecap_plan_config, lost) - 188usize];
    ["Offset of field: routecap_plan_config::fill_value"]
        [::core::mem::offset_of!(routecap_plan_config, fill_value) - 192usize];
    ["Offset of field: routecap_plan_config::lost_value"]
        [::core::mem::offset_of!(routecap_plan_config, lost_value) - 200usize];
    ["Offset of field: routecap_plan_config::none_value"]
        [::core::mem::offset_of!(routecap_plan_config, none_value) - 208usize];
};
impl Default for routecap_plan_config {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
unsafe extern "C" {
    /// Fill a plan's configuration with the defaults: lost_value -1, none_value ROUTECAP_NO_EXPERT,
    /// context_rank and tensor_rank ROUTECAP_PLAN_RANK_UNSET, everything else 0.
    ///
    /// @param[out] config      The configuration.
    /// @param[in] struct_size  sizeof(routecap_plan_config) of the caller, in bytes.
    pub fn routecap_plan_config_init(
        config: *mut routecap_plan_config,
        struct_size: usize,
    ) -> routecap_status;
}
unsafe extern "C" {
    /// Make the plan of one rank for one micro-batch.
    ///
    /// All ranks that share the micro-batch must be given the same samples in the same order. Time and
    /// memory grow with the number of samples, not with the number of tokens.
    ///
    /// @param[in] config  The rank and the micro-batch. The call reads it and its arrays before it
    ///                    returns.
    /// @param[out] plan   The plan, to be freed with routecap_plan_free; NULL on error.
    /// @return ROUTECAP_OK; ROUTECAP_ERR_ARGUMENT (also if rows cannot be divided evenly: the text names
    ///         the number and the divisor; or if none_value is an expert's id); ROUTECAP_ERR_DTYPE (ids,
    ///         fill_value, lost_value or none_value do not fit dtype).
    pub fn routecap_plan_create(
        config: *const routecap_plan_config,
        plan: *mut *mut routecap_plan,
    ) -> routecap_status;
}
unsafe extern "C" {
    /// Free a plan.
    ///
    /// @param[in,out] plan  The plan; may be NULL. Work that routecap_plan_unpack has enqueued still
    ///                      runs to its end.
    pub fn routecap_plan_free(plan: *mut routecap_plan);
}
/// The sizes of a plan and of its results.
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct routecap_plan_shape {
    pub struct_size: u32,
    /// this and the next three: as configured
    pub layers: u32,
    pub k: u32,
    pub dtype: routecap_dtype,
    pub order: routecap_order,
    /// 0
    pub reserved: u32,
    /// local rows: the sum of the next three
    pub rows: u64,
    /// needed rows
    pub rows_needed: u64,
    /// rows of tokens after the last needed row of their sample
    pub rows_not_needed: u64,
    /// rows without a token
    pub rows_padding: u64,
    /// rows of the whole micro-batch, over all ranks that share it,
    /// padding included
    pub total_rows: u64,
    /// padded layouts: columns of this rank; otherwise 0
    pub width: u64,
    /// number of ranges that routecap_plan_ranges returns
    pub ranges: u64,
    /// bytes of dst in routecap_plan_gather
    pub ids_bytes: u64,
    /// bytes of classes in routecap_plan_gather: one for each cell
    pub classes_bytes: u64,
    /// the most that routecap_plan_pack writes: the same for all plans
    /// with these rows, layers, k and experts
    pub packed_bytes: u64,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of routecap_plan_shape"][::core::mem::size_of::<routecap_plan_shape>() - 104usize];
    ["Alignment of routecap_plan_shape"][::core::mem::align_of::<routecap_plan_shape>() - 8usize];
    ["Offset of field: routecap_plan_shape::struct_size"]
        [::core::mem::offset_of!(routecap_plan_shape, struct_size) - 0usize];
    ["Offset of field: routecap_plan_shape::layers"]
        [::core::mem::offset_of!(routecap_plan_shape, layers) - 4usize];
    ["Offset of field: routecap_plan_shape::k"]
        [::core::mem::offset_of!(routecap_plan_shape, k) - 8usize];
    ["Offset of field: routecap_plan_shape::dtype"]
        [::core::mem::offset_of!(routecap_plan_shape, dtype) - 12usize];
    ["Offset of field: routecap_plan_shape::order"]
        [::core::mem::offset_of!(routecap_plan_shape, order) - 16usize];
    ["Offset of field: routecap_plan_shape::reserved"]
        [::core::mem::offset_of!(routecap_plan_shape, reserved) - 20usize];
    ["Offset of field: routecap_plan_shape::rows"]
        [::core::mem::offset_of!(routecap_plan_shape, rows) - 24usize];
    ["Offset of field: routecap_plan_shape::rows_needed"]
        [::core::mem::offset_of!(routecap_plan_shape, rows_needed) - 32usize];
    ["Offset of field: routecap_plan_shape::rows_not_needed"]
        [::core::mem::offset_of!(routecap_plan_shape, rows_not_needed) - 40usize];
    ["Offset of field: routecap_plan_shape::rows_padding"]
        [::core::mem::offset_of!(routecap_plan_shape, rows_padding) - 48usize];
    ["Offset of field: routecap_plan_shape::total_rows"]
        [::core::mem::offset_of!(routecap_plan_shape, total_rows) - 56usize];
    ["Offset of field: routecap_plan_shape::width"]
        [::core::mem::offset_of!(routecap_plan_shape, width) - 64usize];
    ["Offset of field: routecap_plan_shape::ranges"]
        [::core::mem::offset_of!(routecap_plan_shape, ranges) - 72usize];
    ["Offset of field: routecap_plan_shape::ids_bytes"]
        [::core::mem::offset_of!(routecap_plan_shape, ids_bytes) - 80usize];
    ["Offset of field: routecap_plan_shape::classes_bytes"]
        [::core::mem::offset_of!(routecap_plan_shape, classes_bytes) - 88usize];
    ["Offset of field: routecap_plan_shape::packed_bytes"]
        [::core::mem::offset_of!(routecap_plan_shape, packed_bytes) - 96usize];
};
unsafe extern "C" {
    /// Get the sizes of a plan and of its results.
    ///
    /// @param[in] plan    The plan.
    /// @param[out] shape  Its sizes.
    /// @return ROUTECAP_OK.
    pub fn routecap_plan_describe(
        plan: *const routecap_plan,
        shape: *mut routecap_plan_shape,
    ) -> routecap_status;
}
/// Consecutive rows of one sample that a rank needs.
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct routecap_plan_range {
    /// its number, from 0
    pub sample: u64,
    /// position of the first row
    pub first: u64,
    /// how many
    pub rows: u64,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of routecap_plan_range"][::core::mem::size_of::<routecap_plan_range>() - 24usize];
    ["Alignment of routecap_plan_range"][::core::mem::align_of::<routecap_plan_range>() - 8usize];
    ["Offset of field: routecap_plan_range::sample"]
        [::core::mem::offset_of!(routecap_plan_range, sample) - 0usize];
    ["Offset of field: routecap_plan_range::first"]
        [::core::mem::offset_of!(routecap_plan_range, first) - 8usize];
    ["Offset of field: routecap_plan_range::rows"]
        [::core::mem::offset_of!(routecap_plan_range, rows) - 16usize];
};
unsafe extern "C" {
    /// List the rows that this rank needs, sample by sample, so that it fetches no others.
    ///
    /// Ranges are ordered by sample, then by row, and adjacent rows are in one range. A sample has at
    /// most two ranges with ZIGZAG, and at most one otherwise.
    ///
    /// @param[in] plan        The plan.
    /// @param[out] ranges     [capacity] elements of range_size bytes: the first ranges; may be NULL if
    ///                        capacity is 0.
    /// @param[in] range_size  sizeof(routecap_plan_range) of the caller, in bytes.
    /// @param[in] capacity    How many there is room for.
    /// @param[out] count      How many there are.
    /// @return ROUTECAP_OK.
    pub fn routecap_plan_ranges(
        plan: *const routecap_plan,
        ranges: *mut routecap_plan_range,
        range_size: usize,
        capacity: usize,
        count: *mut u64,
    ) -> routecap_status;
}
pub type routecap_plan_class = i32;
/// Rows of one sample, to be gathered.
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct routecap_plan_source {
    /// its number, from 0
    pub sample: u64,
    /// its rows, by their positions in the sample, 0 for its first
    /// token. Layers that the plan lacks and rows that this rank
    /// does not need are ignored, and so are tags and provenance
    pub routing: *const routecap_routing,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of routecap_plan_source"][::core::mem::size_of::<routecap_plan_source>() - 16usize];
    ["Alignment of routecap_plan_source"][::core::mem::align_of::<routecap_plan_source>() - 8usize];
    ["Offset of field: routecap_plan_source::sample"]
        [::core::mem::offset_of!(routecap_plan_source, sample) - 0usize];
    ["Offset of field: routecap_plan_source::routing"]
        [::core::mem::offset_of!(routecap_plan_source, routing) - 8usize];
};
impl Default for routecap_plan_source {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
/// How many rows and cells of a result are valid, filled or lost.
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct routecap_plan_report {
    pub struct_size: u32,
    /// of the plan
    pub layers: u32,
    /// local rows: the sum of the next five
    pub rows: u64,
    /// every cell is valid
    pub rows_valid: u64,
    /// some cells are lost
    pub rows_partial: u64,
    /// all cells are lost
    pub rows_lost: u64,
    /// as in routecap_plan_shape
    pub rows_not_needed: u64,
    /// as in routecap_plan_shape
    pub rows_padding: u64,
    /// cells of needed rows that no source has
    pub cells_lost: u64,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of routecap_plan_report"][::core::mem::size_of::<routecap_plan_report>() - 64usize];
    ["Alignment of routecap_plan_report"][::core::mem::align_of::<routecap_plan_report>() - 8usize];
    ["Offset of field: routecap_plan_report::struct_size"]
        [::core::mem::offset_of!(routecap_plan_report, struct_size) - 0usize];
    ["Offset of field: routecap_plan_report::layers"]
        [::core::mem::offset_of!(routecap_plan_report, layers) - 4usize];
    ["Offset of field: routecap_plan_report::rows"]
        [::core::mem::offset_of!(routecap_plan_report, rows) - 8usize];
    ["Offset of field: routecap_plan_report::rows_valid"]
        [::core::mem::offset_of!(routecap_plan_report, rows_valid) - 16usize];
    ["Offset of field: routecap_plan_report::rows_partial"]
        [::core::mem::offset_of!(routecap_plan_report, rows_partial) - 24usize];
    ["Offset of field: routecap_plan_report::rows_lost"]
        [::core::mem::offset_of!(routecap_plan_report, rows_lost) - 32usize];
    ["Offset of field: routecap_plan_report::rows_not_needed"]
        [::core::mem::offset_of!(routecap_plan_report, rows_not_needed) - 40usize];
    ["Offset of field: routecap_plan_report::rows_padding"]
        [::core::mem::offset_of!(routecap_plan_report, rows_padding) - 48usize];
    ["Offset of field: routecap_plan_report::cells_lost"]
        [::core::mem::offset_of!(routecap_plan_report, cells_lost) - 56usize];
};
unsafe extern "C" {
    /// Write the ids of this rank to host memory, in the rank's layout.
    ///
    /// Every byte of dst and of classes is written exactly once. A sample may have several sources with
    /// different rows. Each must have all layers of the plan: merge routings with different layers first
    /// (routecap_routing_merge). To gather from serialised bytes or arrays without a copy, make routings
    /// of them with routecap_routing_deserialize or routecap_routing_import.
    ///
    /// On an error nothing is written, except the report on ROUTECAP_ERR_INCOMPLETE.
    ///
    /// @param[in] plan           The plan.
    /// @param[in] sources        [count] elements of source_size bytes, in any order; may be NULL if
    ///                           count is 0. Needed rows that no source has are lost.
    /// @param[in] source_size    sizeof(routecap_plan_source) of the caller, in bytes.
    /// @param[in] count          How many sources.
    /// @param[out] dst           [rows, layers, k] or [layers, rows, k] elements of the plan's dtype.
    ///                           May be NULL if the plan has no rows.
    /// @param[in] dst_bytes      Size of dst, in bytes: ids_bytes of the plan's shape or more.
    /// @param[out] classes       [rows, layers] or [layers, rows] bytes: ROUTECAP_PLAN_CLASS_*. NULL:
    ///                           not wanted. NULL is ROUTECAP_ERR_ARGUMENT if lost cells could not be
    ///                           told from valid ones: with LOST_BALANCED, or with LOST_MARK and an
    ///                           expert's id or none_value as lost_value.
    /// @param[in] classes_bytes  Size of classes, in bytes: classes_bytes of the plan's shape or more.
    /// @param[out] report        What became of the cells; may be NULL.
    /// @return ROUTECAP_OK; ROUTECAP_INCOMPLETE (cells are lost); ROUTECAP_ERR_INCOMPLETE (LOST_ERROR,
    ///         and cells are lost); ROUTECAP_ERR_OUT_OF_RANGE (no such sample, or a routing with rows
    ///         beyond the last token of its sample); ROUTECAP_ERR_OVERLAP (the ranges of rows of two
    ///         sources of one sample overlap, even if rows in them are missing);
    ///         ROUTECAP_ERR_UNKNOWN_LAYER (a routing lacks a layer, or a visit of it);
    ///         ROUTECAP_ERR_SHAPE_MISMATCH (k differs, or experts, layer_k or layer_min_k of a layer, or
    ///         ids are physical); ROUTECAP_ERR_NOT_READY; ROUTECAP_ERR_BUFFER_TOO_SMALL;
    ///         ROUTECAP_ERR_FORKED (a routing was made before fork()).
    pub fn routecap_plan_gather(
        plan: *const routecap_plan,
        sources: *const routecap_plan_source,
        source_size: usize,
        count: usize,
        dst: *mut ::core::ffi::c_void,
        dst_bytes: usize,
        classes: *mut u8,
        classes_bytes: usize,
        report: *mut routecap_plan_report,
    ) -> routecap_status;
}
unsafe extern "C" {
    /// Lay out other data that has one element per token, such as token ids, in the same way.
    ///
    /// The elements of tokens whose rows are not needed are copied too.
    ///
    /// @param[in] plan           The plan.
    /// @param[in] values         [samples] pointers to host memory, each to the [length] elements of one
    ///                           sample. An element may be NULL if this rank has no row of the sample.
    /// @param[in] element_bytes  Size of an element: 1 to 65536 bytes.
    /// @param[in] fill           [element_bytes] the element to write where there is no token.
    /// @param[out] dst           [rows] elements.
    /// @param[in] dst_bytes      Size of dst, in bytes: rows * element_bytes or more.
    /// @return ROUTECAP_OK; ROUTECAP_ERR_BUFFER_TOO_SMALL (nothing is written).
    pub fn routecap_plan_gather_values(
        plan: *const routecap_plan,
        values: *const *const ::core::ffi::c_void,
        element_bytes: usize,
        fill: *const ::core::ffi::c_void,
        dst: *mut ::core::ffi::c_void,
        dst_bytes: usize,
    ) -> routecap_status;
}
unsafe extern "C" {
    /// Write the weights of this rank to host memory, in the rank's layout.
    ///
    /// Call it beside routecap_plan_gather, with the same sources. The weight of an expert is then at
    /// the same place as its id. What a cell gets depends on its row, and on the source:
    ///   - A needed cell that has weights in a source gets them, with 0 in columns without an expert.
    ///   - A needed cell without weights gets `missing` in all k columns, whether its ids are lost or
    ///     there. That is no error, even with LOST_ERROR.
    ///   - A cell of padding, or of a row that is not needed, gets 0 in all k columns.
    ///
    /// @param[in] plan            The plan. It says nothing of weights: any plan of these rows and
    ///                            layers will do.
    /// @param[in] sources         [count] elements of source_size bytes, as in routecap_plan_gather. The
    ///                            routings must have weights.
    /// @param[in] source_size     sizeof(routecap_plan_source) of the caller, in bytes.
    /// @param[in] count           How many sources.
    /// @param[in] dtype           ROUTECAP_DTYPE_F32, to which weights are widened; or the weights_dtype
    ///                            of all sources.
    /// @param[in] missing         Written in place of each missing weight, such as NaN or 0. Rounded to
    ///                            dtype.
    /// @param[out] dst            [rows, layers, k] or [layers, rows, k] elements of dtype, as the
    ///                            plan's order says. May be NULL if the plan has no rows.
    /// @param[in] dst_bytes       Size of dst, in bytes: rows * layers * k elements of dtype or more.
    /// @param[out] missing_cells  How many needed cells have no weights; may be NULL.
    /// @return ROUTECAP_OK; ROUTECAP_INCOMPLETE (needed cells have no weights); ROUTECAP_ERR_DTYPE (also
    ///         if a source has no weights); ROUTECAP_ERR_BUFFER_TOO_SMALL; ROUTECAP_ERR_SHAPE_MISMATCH,
    ///         ROUTECAP_ERR_UNKNOWN_LAYER, ROUTECAP_ERR_OVERLAP, ROUTECAP_ERR_OUT_OF_RANGE and
    ///         ROUTECAP_ERR_NOT_READY as in routecap_plan_gather.
    pub fn routecap_plan_gather_weights(
        plan: *const routecap_plan,
        sources: *const routecap_plan_source,
        source_size: usize,
        count: usize,
        dtype: routecap_dtype,
        missing: f32,
        dst: *mut ::core::ffi::c_void,
        dst_bytes: usize,
        missing_cells: *mut u64,
    ) -> routecap_status;
}
unsafe extern "C" {
    /// Make routings from ids that this rank's routers recorded: the inverse of gather.
    ///
    /// Each sample gets one routing with rows [0, length) and the plan's layers. It has the rows that
    /// this rank needs; all others are ABSENT. Merge the routings of all ranks with
    /// routecap_routing_merge. A cell that is not k distinct ids of its layer is missing: UNWRITTEN if
    /// an id is below 0, otherwise OUT_OF_RANGE or DUPLICATE. If the plan allows fewer than k experts,
    /// columns without one come last in `ids` and hold none_value. The routings have no weights. To
    /// record the last row of each sample too, make a plan with `needed` ROUTECAP_ROWS_ALL.
    ///
    /// @param[in] plan           The plan.
    /// @param[in] ids            [rows, layers, k] or [layers, rows, k] elements of the plan's dtype, in
    ///                           host memory.
    /// @param[in] ids_bytes      Size of ids, in bytes: ids_bytes of the plan's shape.
    /// @param[in] classes        [rows, layers] or [layers, rows] bytes. Cells of class LOST become
    ///                           missing cells, with the reason UNWRITTEN. NULL: no cell counts as lost.
    ///                           Pass NULL to keep what the trainer's own router chose in cells that
    ///                           gather marked as lost.
    /// @param[in] classes_bytes  Size of classes, in bytes: classes_bytes of the plan's shape.
    /// @param[out] routings      [count] a routing for each sample, to be freed with
    ///                           routecap_routing_free; NULL on error.
    /// @param[in] count          How many: `samples`.
    /// @return ROUTECAP_OK; ROUTECAP_INCOMPLETE (a needed cell of this rank is missing);
    ///         ROUTECAP_ERR_ARGUMENT (a size differs from the plan's).
    pub fn routecap_plan_scatter(
        plan: *const routecap_plan,
        ids: *const ::core::ffi::c_void,
        ids_bytes: usize,
        classes: *const u8,
        classes_bytes: usize,
        routings: *mut *mut routecap_routing,
        count: usize,
    ) -> routecap_status;
}
unsafe extern "C" {
    /// Pack the ids of this rank for upload: the narrow ids, and what the kernel needs to widen them and
    /// to fill the other cells. Weights are not packed; see routecap_plan_gather_weights.
    ///
    /// Only routecap_plan_unpack on this machine can read the bytes: in a call with this plan, or in the
    /// replay of a call that was captured with a plan of the same shape. Do not store or send them.
    ///
    /// @param[in] plan          The plan.
    /// @param[in] sources       [count] elements of source_size bytes, as in routecap_plan_gather.
    /// @param[in] source_size   sizeof(routecap_plan_source) of the caller, in bytes.
    /// @param[in] count         How many sources.
    /// @param[out] packed       [packed_bytes] host memory, aligned to 8 bytes. Page-locked memory is
    ///                          uploaded faster, and is required if the upload is captured into a graph.
    ///                          Do not write to it while an upload reads it.
    /// @param[in] packed_bytes  Size of packed, in bytes: packed_bytes of the plan's shape or more.
    /// @param[out] report       What became of the cells; may be NULL. It is also filled on
    ///                          ROUTECAP_ERR_INCOMPLETE.
    /// @return As routecap_plan_gather.
    pub fn routecap_plan_pack(
        plan: *const routecap_plan,
        sources: *const routecap_plan_source,
        source_size: usize,
        count: usize,
        packed: *mut ::core::ffi::c_void,
        packed_bytes: usize,
        report: *mut routecap_plan_report,
    ) -> routecap_status;
}
/// Where unpack writes the ids of a rank. With ROUTECAP_BACKEND_HOST, all pointers are to host
/// memory.
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct routecap_plan_target {
    pub struct_size: u32,
    /// ROUTECAP_BACKEND_*
    pub backend: routecap_backend_kind,
    /// CUDA's number of the device; the host backend ignores it
    pub device: i32,
    /// 0
    pub reserved: u32,
    /// [device] [scratch_bytes] receives the upload; aligned to 8
    /// bytes. The host backend does not use it: may be NULL there
    pub scratch: *mut ::core::ffi::c_void,
    /// packed_bytes of the plan's shape or more
    pub scratch_bytes: u64,
    /// [device] as in routecap_plan_gather
    pub dst: *mut ::core::ffi::c_void,
    /// as in routecap_plan_gather
    pub dst_bytes: u64,
    /// [device] as in routecap_plan_gather; NULL: not wanted
    pub classes: *mut u8,
    /// as in routecap_plan_gather
    pub classes_bytes: u64,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of routecap_plan_target"][::core::mem::size_of::<routecap_plan_target>() - 64usize];
    ["Alignment of routecap_plan_target"][::core::mem::align_of::<routecap_plan_target>() - 8usize];
    ["Offset of field: routecap_plan_target::struct_size"]
        [::core::mem::offset_of!(routecap_plan_target, struct_size) - 0usize];
    ["Offset of field: routecap_plan_target::backend"]
        [::core::mem::offset_of!(routecap_plan_target, backend) - 4usize];
    ["Offset of field: routecap_plan_target::device"]
        [::core::mem::offset_of!(routecap_plan_target, device) - 8usize];
    ["Offset of field: routecap_plan_target::reserved"]
        [::core::mem::offset_of!(routecap_plan_target, reserved) - 12usize];
    ["Offset of field: routecap_plan_target::scratch"]
        [::core::mem::offset_of!(routecap_plan_target, scratch) - 16usize];
    ["Offset of field: routecap_plan_target::scratch_bytes"]
        [::core::mem::offset_of!(routecap_plan_target, scratch_bytes) - 24usize];
    ["Offset of field: routecap_plan_target::dst"]
        [::core::mem::offset_of!(routecap_plan_target, dst) - 32usize];
    ["Offset of field: routecap_plan_target::dst_bytes"]
        [::core::mem::offset_of!(routecap_plan_target, dst_bytes) - 40usize];
    ["Offset of field: routecap_plan_target::classes"]
        [::core::mem::offset_of!(routecap_plan_target, classes) - 48usize];
    ["Offset of field: routecap_plan_target::classes_bytes"]
        [::core::mem::offset_of!(routecap_plan_target, classes_bytes) - 56usize];
};
impl Default for routecap_plan_target {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
unsafe extern "C" {
    /// Upload packed ids and write the ids of this rank to device memory, in the rank's layout.
    ///
    /// The call enqueues one copy and one kernel on the stream and returns without waiting for them.
    /// Every byte of dst and of classes is written exactly once.
    ///
    /// Capturable. Each replay uploads what `packed` holds at that time, so one graph serves many
    /// micro-batches: when the copy of one replay has finished, pack the next micro-batch into the same
    /// memory. Its plan must have the same rows, layers, k, experts, dtype and order, and both plans or
    /// neither must allow cells with fewer than k experts. If any of these differs, the replay writes -1
    /// for every id and marks every cell as LOST. Replays do not need the plan that was captured.
    ///
    /// The first call for a device loads the kernels there, which may take milliseconds.
    ///
    /// @param[in] plan          The plan whose ids were packed.
    /// @param[in] packed        [packed_bytes] what routecap_plan_pack wrote, in host memory that the
    ///                          stream reads. Keep it valid and unchanged until the stream has finished
    ///                          the copy. The host backend reads it before the call returns.
    /// @param[in] packed_bytes  Size of packed, in bytes: as for routecap_plan_pack.
    /// @param[in] target        Where the ids go.
    /// @param[in] stream        A stream of the device; NULL on the host.
    /// @return ROUTECAP_OK; ROUTECAP_ERR_STATE (packed does not hold ids packed by this plan);
    ///         ROUTECAP_ERR_BUFFER_TOO_SMALL; ROUTECAP_ERR_NO_BACKEND; ROUTECAP_ERR_DRIVER_TOO_OLD;
    ///         ROUTECAP_ERR_FORKED (the driver was loaded before fork()).
    pub fn routecap_plan_unpack(
        plan: *const routecap_plan,
        packed: *const ::core::ffi::c_void,
        packed_bytes: usize,
        target: *const routecap_plan_target,
        stream: routecap_stream,
    ) -> routecap_status;
}
pub type routecap_phase = i32;
/// What a reading of the load covers.
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct routecap_load {
    pub struct_size: u32,
    /// of the counts: those of the capturer
    pub layers: u32,
    /// of the counts: the most experts of any layer
    pub experts: u32,
    /// 0
    pub reserved: u32,
    /// steps that landed with rows and are counted
    pub steps: u64,
    /// ticket of the first of them; 0: none
    pub first_step: u64,
    /// ticket of the last of them
    pub last_step: u64,
    /// rows of prefill that got their first valid cell
    pub rows_prefill: u64,
    /// rows of decode that got their first valid cell
    pub rows_decode: u64,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of routecap_load"][::core::mem::size_of::<routecap_load>() - 56usize];
    ["Alignment of routecap_load"][::core::mem::align_of::<routecap_load>() - 8usize];
    ["Offset of field: routecap_load::struct_size"]
        [::core::mem::offset_of!(routecap_load, struct_size) - 0usize];
    ["Offset of field: routecap_load::layers"]
        [::core::mem::offset_of!(routecap_load, layers) - 4usize];
    ["Offset of field: routecap_load::experts"]
        [::core::mem::offset_of!(routecap_load, experts) - 8usize];
    ["Offset of field: routecap_load::reserved"]
        [::core::mem::offset_of!(routecap_load, reserved) - 12usize];
    ["Offset of field: routecap_load::steps"]
        [::core::mem::offset_of!(routecap_load, steps) - 16usize];
    ["Offset of field: routecap_load::first_step"]
        [::core::mem::offset_of!(routecap_load, first_step) - 24usize];
    ["Offset of field: routecap_load::last_step"]
        [::core::mem::offset_of!(routecap_load, last_step) - 32usize];
    ["Offset of field: routecap_load::rows_prefill"]
        [::core::mem::offset_of!(routecap_load, rows_prefill) - 40usize];
    ["Offset of field: routecap_load::rows_decode"]
        [::core::mem::offset_of!(routecap_load, rows_decode) - 48usize];
};
unsafe extern "C" {
    /// Read how often each expert was chosen since the capturer was created.
    ///
    /// The counts contain every step that had landed, and every accept that was applied, when the call
    /// began. A step or accept is counted either completely or not at all. If the worker thread is
    /// filing a step, the call waits until that step is done: microseconds for a decode step, some
    /// milliseconds for thousands of rows. Any thread may call it.
    ///
    /// For a disabled or mirroring capturer all numbers are 0.
    ///
    /// @param[in] capturer  The capturer.
    /// @param[out] load     What the counts cover.
    /// @param[out] counts   [ROUTECAP_LOAD_PHASES, layers, experts] in C order. Beyond the experts of a
    ///                      layer they are 0. NULL if count is 0.
    /// @param[in] count     Elements of counts: exactly ROUTECAP_LOAD_PHASES * layers * experts; or 0,
    ///                      to fill only `load`.
    /// @return ROUTECAP_OK; ROUTECAP_ERR_ARGUMENT (the capturer was created without
    ///         ROUTECAP_CONFIG_LOAD); ROUTECAP_ERR_BUFFER_TOO_SMALL (any other count; load is filled,
    ///         counts are not).
    pub fn routecap_capturer_load(
        capturer: *const routecap_capturer,
        load: *mut routecap_load,
        counts: *mut u64,
        count: usize,
    ) -> routecap_status;
}
pub type routecap_log_level = i32;
/// Takes one line.
///
/// The hook runs on the thread on which something happened: in create, in destroy, in a call that
/// returns an error, and on the worker thread. Without a worker thread it runs in
/// routecap_capturer_progress and in calls that wait. Calls of the forward path that succeed, or
/// that lose a step, never run it. Several threads may run it at once. The library holds no lock
/// meanwhile, so the hook may take a lock that other threads hold while they call routecap. A slow
/// hook delays the thread that runs it; on the worker thread it delays the filing of rows.
///
/// The hook may call routecap, except for routecap_set_log and routecap_capturer_destroy. Lines that
/// calls made in the hook would log are dropped. If the hook runs on the worker thread, it must not
/// wait for a step or a routing without a timeout: the thread would wait for itself. The hook must
/// not throw, fork or leave by longjmp.
///
/// `context` is the pointer that was passed to routecap_set_log. level is
/// ROUTECAP_LOG_ERROR..ROUTECAP_LOG_DEBUG. text is one line without a newline, at most 511 bytes and
/// a 0; it is valid during the call.
pub type routecap_log = ::core::option::Option<
    unsafe extern "C" fn(
        context: *mut ::core::ffi::c_void,
        level: routecap_log_level,
        text: *const ::core::ffi::c_char,
    ),
>;
unsafe extern "C" {
    /// Set the log hook of this process.
    ///
    /// Without a hook, the environment variable ROUTECAP_LOG selects the lines that are written to
    /// stderr: "error", "warning", "info" or "debug". If it is not set, no lines are written. It is read
    /// once, when the first line is logged.
    ///
    /// The call waits until no thread runs the previous hook, and the previous hook never runs again. So
    /// you may then free its context. Do not hold a lock that the previous hook needs: the call could
    /// then wait forever. A child of fork() keeps the hook.
    ///
    /// @param[in] log      The hook. NULL: no hook, and ROUTECAP_LOG applies again.
    /// @param[in] context  Passed to log.
    /// @param[in] level    ROUTECAP_LOG_*: the lines that the hook gets; 0 without a hook.
    /// @return ROUTECAP_OK; ROUTECAP_ERR_ARGUMENT (level is none of these, or not 0 without a hook);
    ///         ROUTECAP_ERR_STATE (called by a hook).
    pub fn routecap_set_log(
        log: routecap_log,
        context: *mut ::core::ffi::c_void,
        level: routecap_log_level,
    ) -> routecap_status;
}
pub type routecap_received_flags = u32;
/// What a check found, in device memory. Both functions add to it. A column is one of the k ids of a
/// token.
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct routecap_received_counts {
    /// tokens of this rank that were compared
    pub tokens: u64,
    /// their columns with an id; a negative id chooses nothing
    pub columns: u64,
    /// columns whose expert executed the token
    pub equal: u64,
    /// columns in which a different expert did
    pub replaced: u64,
    /// the same, but that expert and the chosen one changed places in the
    /// token's columns
    pub swapped: u64,
    /// columns that no rank executed
    pub lost: u64,
    /// tokens of which every column with an id is lost
    pub tokens_lost: u64,
    /// columns that nobody chose but a rank executed, and columns that several
    /// ranks executed
    pub extra: u64,
    /// columns that this rank received and that cannot be right, of tokens of
    /// any rank: the tensors do not belong together, or the table was not
    /// zero
    pub ignored: u64,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of routecap_received_counts"]
        [::core::mem::size_of::<routecap_received_counts>() - 72usize];
    ["Alignment of routecap_received_counts"]
        [::core::mem::align_of::<routecap_received_counts>() - 8usize];
    ["Offset of field: routecap_received_counts::tokens"]
        [::core::mem::offset_of!(routecap_received_counts, tokens) - 0usize];
    ["Offset of field: routecap_received_counts::columns"]
        [::core::mem::offset_of!(routecap_received_counts, columns) - 8usize];
    ["Offset of field: routecap_received_counts::equal"]
        [::core::mem::offset_of!(routecap_received_counts, equal) - 16usize];
    ["Offset of field: routecap_received_counts::replaced"]
        [::core::mem::offset_of!(routecap_received_counts, replaced) - 24usize];
    ["Offset of field: routecap_received_counts::swapped"]
        [::core::mem::offset_of!(routecap_received_counts, swapped) - 32usize];
    ["Offset of field: routecap_received_counts::lost"]
        [::core::mem::offset_of!(routecap_received_counts, lost) - 40usize];
    ["Offset of field: routecap_received_counts::tokens_lost"]
        [::core::mem::offset_of!(routecap_received_counts, tokens_lost) - 48usize];
    ["Offset of field: routecap_received_counts::extra"]
        [::core::mem::offset_of!(routecap_received_counts, extra) - 56usize];
    ["Offset of field: routecap_received_counts::ignored"]
        [::core::mem::offset_of!(routecap_received_counts, ignored) - 64usize];
};
/// What this rank sent and received in one dispatch. Names in parentheses are DeepEP's. All arrays
/// are in C order, without gaps. "read" and "compare" say which function uses a field; the other
/// fields are used by both.
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct routecap_received {
    pub struct_size: u32,
    /// read: ROUTECAP_RECEIVED_*
    pub flags: routecap_received_flags,
    /// all scale-out and scale-up ranks of the dispatch, 1..1024
    pub ranks: u32,
    /// this one; its experts begin at rank * (experts / ranks)
    pub rank: u32,
    /// (handle.num_experts) a multiple of ranks, up to
    /// ROUTECAP_MAX_EXPERTS
    pub experts: u32,
    /// columns of the dispatched ids, up to ROUTECAP_MAX_K
    pub k: u32,
    /// (handle.num_max_tokens_per_rank) of this dispatch: in vLLM it
    /// changes from step to step. ranks * tokens_per_rank is at most
    /// ROUTECAP_MAX_RECEIVED
    pub tokens_per_rank: u32,
    /// read: (handle.recv_src_metadata.shape[0]) rows of metadata, at
    /// most ranks * tokens_per_rank
    pub rows: u32,
    /// read: [device] one number, the last of
    /// handle.psum_num_recv_tokens_per_scaleup_rank: only the first
    /// live_rows rows were received. NULL: all rows
    pub live_rows: *const i32,
    /// read: [device] [rows, 2 + k] (handle.recv_src_metadata)
    pub metadata: *const i32,
    /// read: [device] [rows, k] (recv_topk_idx); NULL with
    /// EXPANDED
    pub ids: *const ::core::ffi::c_void,
    /// read: [device] [experts / ranks] with EXPANDED
    /// (handle.psum_num_recv_tokens_per_expert, after the dispatch):
    /// one past the last row of each local expert. The rows of the
    /// next expert begin at the next multiple of expert_alignment.
    /// Otherwise NULL
    pub expert_ends: *const i32,
    /// read: with EXPANDED (handle.expert_alignment) in rows; 0 means
    /// 1. Otherwise 0
    pub expert_alignment: u32,
    /// read: with EXPANDED (handle.num_expanded_tokens, the rows of
    /// recv_x, or of recv_x[0] with fp8), less than 2^31.
    /// Otherwise 0
    pub expanded_rows: u32,
    /// ROUTECAP_DTYPE_I32 or _I64, of ids and topk_ids. DeepEP's
    /// builds with ids of 8 or 16 bits are refused
    pub dtype: routecap_dtype,
    /// compare: tokens that this rank sent, at most
    /// tokens_per_rank
    pub tokens: u32,
    /// compare: [device] [tokens, k] the ids that the router chose.
    /// Not handle.topk_idx, which is what was sent. With load
    /// balancing, the ids behind the balancer: those of physical
    /// experts
    pub topk_ids: *const ::core::ffi::c_void,
    /// [device] [ranks, tokens_per_rank, k] of int32, by source token
    /// and column. Zero it before read; add it up over all ranks
    /// before compare. What its numbers mean is the library's
    pub executed: *mut i32,
    /// [device] added to. Zero it before the first call
    pub counts: *mut routecap_received_counts,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of routecap_received"][::core::mem::size_of::<routecap_received>() - 104usize];
    ["Alignment of routecap_received"][::core::mem::align_of::<routecap_received>() - 8usize];
    ["Offset of field: routecap_received::struct_size"]
        [::core::mem::offset_of!(routecap_received, struct_size) - 0usize];
    ["Offset of field: routecap_received::flags"]
        [::core::mem::offset_of!(routecap_received, flags) - 4usize];
    ["Offset of field: routecap_received::ranks"]
        [::core::mem::offset_of!(routecap_received, ranks) - 8usize];
    ["Offset of field: routecap_received::rank"]
        [::core::mem::offset_of!(routecap_received, rank) - 12usize];
    ["Offset of field: routecap_received::experts"]
        [::core::mem::offset_of!(routecap_received, experts) - 16usize];
    ["Offset of field: routecap_received::k"]
        [::core::mem::offset_of!(routecap_received, k) - 20usize];
    ["Offset of field: routecap_received::tokens_per_rank"]
        [::core::mem::offset_of!(routecap_received, tokens_per_rank) - 24usize];
    ["Offset of field: routecap_received::rows"]
        [::core::mem::offset_of!(routecap_received, rows) - 28usize];
    ["Offset of field: routecap_received::live_rows"]
        [::core::mem::offset_of!(routecap_received, live_rows) - 32usize];
    ["Offset of field: routecap_received::metadata"]
        [::core::mem::offset_of!(routecap_received, metadata) - 40usize];
    ["Offset of field: routecap_received::ids"]
        [::core::mem::offset_of!(routecap_received, ids) - 48usize];
    ["Offset of field: routecap_received::expert_ends"]
        [::core::mem::offset_of!(routecap_received, expert_ends) - 56usize];
    ["Offset of field: routecap_received::expert_alignment"]
        [::core::mem::offset_of!(routecap_received, expert_alignment) - 64usize];
    ["Offset of field: routecap_received::expanded_rows"]
        [::core::mem::offset_of!(routecap_received, expanded_rows) - 68usize];
    ["Offset of field: routecap_received::dtype"]
        [::core::mem::offset_of!(routecap_received, dtype) - 72usize];
    ["Offset of field: routecap_received::tokens"]
        [::core::mem::offset_of!(routecap_received, tokens) - 76usize];
    ["Offset of field: routecap_received::topk_ids"]
        [::core::mem::offset_of!(routecap_received, topk_ids) - 80usize];
    ["Offset of field: routecap_received::executed"]
        [::core::mem::offset_of!(routecap_received, executed) - 88usize];
    ["Offset of field: routecap_received::counts"]
        [::core::mem::offset_of!(routecap_received, counts) - 96usize];
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
    /// Add to a table what this rank executed of one dispatch.
    ///
    /// Each column that this rank received is written at its source token, whatever the order of the
    /// rows. A column that cannot be right is not written, and is counted in counts->ignored:
    ///   - its source token is outside ranks * tokens_per_rank;
    ///   - its id is not an expert of this rank;
    ///   - its expanded row is outside expanded_rows, or of no expert;
    ///   - its place in the table is not zero: a different row has the same token, or the table is that
    ///     of an earlier step;
    ///   - with GLOBAL, it is behind the live rows and is not -1: the experts get rows that nobody sent;
    ///   - *live_rows is not `rows`, nor is `rows` ranks * tokens_per_rank: DeepEP allocates either as
    ///     many rows as it received or as many as could be, so tokens_per_rank is that of a different
    ///     step. All columns are then counted, and none is written.
    ///
    /// Keep the tensors until the stream has run this work. An engine keeps the handle of a dispatch
    /// anyway until it has collected the experts' outputs. A disabled capturer writes nothing.
    ///
    /// Capturable; a graph keeps the sizes of the call that was captured. On the host backend the work
    /// is done before the call returns.
    ///
    /// @param[in] capturer  A capturer on the device of the tensors. Nothing else of it is used.
    /// @param[in] received  The tensors of the dispatch, the table, and the counts.
    /// @param[in] stream    A stream that is ordered after the dispatch.
    /// @return ROUTECAP_OK; ROUTECAP_ERR_DTYPE; ROUTECAP_ERR_ARGUMENT (a number beyond its limit, rank
    ///         not below ranks, an array that is NULL); ROUTECAP_ERR_SHAPE_MISMATCH (experts not a
    ///         multiple of ranks; or rows beyond ranks * tokens_per_rank, as with the tokens_per_rank of
    ///         a different step).
    pub fn routecap_received_read(
        capturer: *mut routecap_capturer,
        received: *const routecap_received,
        stream: routecap_stream,
    ) -> routecap_status;
}
unsafe extern "C" {
    /// Compare, column by column, what all ranks executed with what the router of this rank chose.
    ///
    /// Capturable; a graph keeps the sizes of the call that was captured. On the host backend the work
    /// is done before the call returns.
    ///
    /// @param[in] capturer  A capturer on the device of the tensors. Nothing else of it is used.
    /// @param[in] received  The same as in read: `executed` is now the sum of all ranks' tables.
    /// @param[in] stream    A stream that is ordered after that sum.
    /// @return ROUTECAP_OK; ROUTECAP_ERR_DTYPE; ROUTECAP_ERR_ARGUMENT (a number beyond its limit, rank
    ///         not below ranks, an array that is NULL); ROUTECAP_ERR_SHAPE_MISMATCH (experts not a
    ///         multiple of ranks; or tokens beyond tokens_per_rank).
    pub fn routecap_received_compare(
        capturer: *mut routecap_capturer,
        received: *const routecap_received,
        stream: routecap_stream,
    ) -> routecap_status;
}
/// All functions except routecap_get_api, each under its name without the prefix, in the order of
/// the chapters of 1.0. Later versions only add entries, at the end. Experimental functions have
/// their entries whether or not ROUTECAP_EXPERIMENTAL is defined.
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct routecap_api {
    /// size of this table in the loaded library, in bytes; entries beyond it do not
    /// exist
    pub size: usize,
    /// version of the loaded library
    pub major: u32,
    pub minor: u32,
    /// base.h
    pub version: ::core::option::Option<unsafe extern "C" fn() -> u32>,
    pub status_name: ::core::option::Option<
        unsafe extern "C" fn(arg1: routecap_status) -> *const ::core::ffi::c_char,
    >,
    pub last_error: ::core::option::Option<unsafe extern "C" fn() -> *const ::core::ffi::c_char>,
    /// capture.h
    pub config_init: ::core::option::Option<
        unsafe extern "C" fn(arg1: *mut routecap_config, arg2: usize) -> routecap_status,
    >,
    pub capturer_create: ::core::option::Option<
        unsafe extern "C" fn(
            arg1: *const routecap_config,
            arg2: *mut *mut routecap_capturer,
        ) -> routecap_status,
    >,
    pub capturer_destroy:
        ::core::option::Option<unsafe extern "C" fn(arg1: *mut routecap_capturer)>,
    pub step_begin: ::core::option::Option<
        unsafe extern "C" fn(
            arg1: *mut routecap_capturer,
            arg2: u32,
            arg3: routecap_stream,
        ) -> routecap_status,
    >,
    pub step_snapshot: ::core::option::Option<
        unsafe extern "C" fn(
            arg1: *mut routecap_capturer,
            arg2: routecap_stream,
        ) -> routecap_status,
    >,
    pub step_issue: ::core::option::Option<
        unsafe extern "C" fn(
            arg1: *mut routecap_capturer,
            arg2: *const routecap_span,
            arg3: usize,
            arg4: usize,
            arg5: *const routecap_issue_options,
            arg6: *mut routecap_status,
            arg7: *mut routecap_step,
            arg8: routecap_stream,
        ) -> routecap_status,
    >,
    pub step_discard: ::core::option::Option<
        unsafe extern "C" fn(
            arg1: *mut routecap_capturer,
            arg2: routecap_stream,
        ) -> routecap_status,
    >,
    pub step_poll: ::core::option::Option<
        unsafe extern "C" fn(arg1: *mut routecap_capturer, arg2: routecap_step) -> routecap_status,
    >,
    pub step_finalize: ::core::option::Option<
        unsafe extern "C" fn(
            arg1: *mut routecap_capturer,
            arg2: routecap_step,
            arg3: i64,
            arg4: *mut u64,
        ) -> routecap_status,
    >,
    pub config_memory: ::core::option::Option<
        unsafe extern "C" fn(
            arg1: *const routecap_config,
            arg2: *mut routecap_memory,
        ) -> routecap_status,
    >,
    pub backend_info: ::core::option::Option<
        unsafe extern "C" fn(
            arg1: routecap_backend_kind,
            arg2: *mut routecap_backend,
        ) -> routecap_status,
    >,
    pub capturer_stats: ::core::option::Option<
        unsafe extern "C" fn(
            arg1: *const routecap_capturer,
            arg2: *mut routecap_stats,
        ) -> routecap_status,
    >,
    pub capturer_layer_stats: ::core::option::Option<
        unsafe extern "C" fn(
            arg1: *const routecap_capturer,
            arg2: *mut routecap_layer_stats,
            arg3: usize,
            arg4: usize,
        ) -> routecap_status,
    >,
    pub capturer_progress: ::core::option::Option<
        unsafe extern "C" fn(arg1: *mut routecap_capturer) -> routecap_status,
    >,
    /// record.h
    pub sink_layer: ::core::option::Option<
        unsafe extern "C" fn(
            arg1: *mut routecap_capturer,
            arg2: u32,
            arg3: *mut routecap_sink,
        ) -> routecap_status,
    >,
    pub sink_bind: ::core::option::Option<
        unsafe extern "C" fn(
            arg1: *mut routecap_capturer,
            arg2: u32,
            arg3: u32,
            arg4: *const routecap_sink,
        ) -> routecap_status,
    >,
    pub layer_record: ::core::option::Option<
        unsafe extern "C" fn(
            arg1: *mut routecap_capturer,
            arg2: u32,
            arg3: *const routecap_source,
            arg4: routecap_stream,
        ) -> routecap_status,
    >,
    pub layers_record: ::core::option::Option<
        unsafe extern "C" fn(
            arg1: *mut routecap_capturer,
            arg2: *const routecap_source,
            arg3: *const routecap_layer_source,
            arg4: usize,
            arg5: usize,
            arg6: routecap_stream,
        ) -> routecap_status,
    >,
    pub router_init: ::core::option::Option<
        unsafe extern "C" fn(
            arg1: *mut routecap_router,
            arg2: usize,
            arg3: routecap_method,
        ) -> routecap_status,
    >,
    pub layer_route: ::core::option::Option<
        unsafe extern "C" fn(
            arg1: *mut routecap_capturer,
            arg2: u32,
            arg3: *const routecap_router,
            arg4: *const routecap_logits,
            arg5: routecap_stream,
        ) -> routecap_status,
    >,
    pub step_arrive: ::core::option::Option<
        unsafe extern "C" fn(
            arg1: *mut routecap_capturer,
            arg2: routecap_step,
            arg3: *const routecap_sink,
        ) -> routecap_status,
    >,
    pub capturer_probe: ::core::option::Option<
        unsafe extern "C" fn(
            arg1: *mut routecap_capturer,
            arg2: u32,
            arg3: *mut routecap_layer_probe,
            arg4: usize,
            arg5: usize,
            arg6: routecap_stream,
        ) -> routecap_status,
    >,
    /// reading.h
    pub copy_options_init: ::core::option::Option<
        unsafe extern "C" fn(arg1: *mut routecap_copy_options, arg2: usize) -> routecap_status,
    >,
    /// requests.h
    pub request_open: ::core::option::Option<
        unsafe extern "C" fn(
            arg1: *mut routecap_capturer,
            arg2: *const routecap_open_options,
            arg3: *mut routecap_request,
            arg4: usize,
        ) -> routecap_status,
    >,
    pub request_accept: ::core::option::Option<
        unsafe extern "C" fn(
            arg1: *mut routecap_capturer,
            arg2: routecap_request,
            arg3: routecap_step,
            arg4: *const u32,
            arg5: usize,
        ) -> routecap_status,
    >,
    pub request_accept_batch: ::core::option::Option<
        unsafe extern "C" fn(
            arg1: *mut routecap_capturer,
            arg2: *mut routecap_accept_item,
            arg3: usize,
            arg4: usize,
        ) -> routecap_status,
    >,
    pub request_truncate: ::core::option::Option<
        unsafe extern "C" fn(
            arg1: *mut routecap_capturer,
            arg2: routecap_request,
            arg3: u64,
        ) -> routecap_status,
    >,
    pub request_fork: ::core::option::Option<
        unsafe extern "C" fn(
            arg1: *mut routecap_capturer,
            arg2: routecap_request,
            arg3: u64,
            arg4: *mut routecap_request,
        ) -> routecap_status,
    >,
    pub request_attach: ::core::option::Option<
        unsafe extern "C" fn(
            arg1: *mut routecap_capturer,
            arg2: routecap_request,
            arg3: *const routecap_routing,
            arg4: u64,
        ) -> routecap_status,
    >,
    pub request_finish: ::core::option::Option<
        unsafe extern "C" fn(
            arg1: *mut routecap_capturer,
            arg2: routecap_request,
            arg3: u64,
            arg4: *mut *mut routecap_routing,
        ) -> routecap_status,
    >,
    pub request_finish_batch: ::core::option::Option<
        unsafe extern "C" fn(
            arg1: *mut routecap_capturer,
            arg2: *mut routecap_finish_item,
            arg3: usize,
            arg4: usize,
        ) -> routecap_status,
    >,
    pub request_close: ::core::option::Option<
        unsafe extern "C" fn(
            arg1: *mut routecap_capturer,
            arg2: routecap_request,
        ) -> routecap_status,
    >,
    pub request_close_batch: ::core::option::Option<
        unsafe extern "C" fn(
            arg1: *mut routecap_capturer,
            arg2: *const routecap_request,
            arg3: *mut routecap_status,
            arg4: usize,
        ) -> routecap_status,
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
        ) -> routecap_status,
    >,
    pub request_extract: ::core::option::Option<
        unsafe extern "C" fn(
            arg1: *mut routecap_capturer,
            arg2: routecap_request,
            arg3: u64,
            arg4: u64,
            arg5: routecap_extract_mode,
            arg6: routecap_read_flags,
            arg7: *mut *mut routecap_routing,
        ) -> routecap_status,
    >,
    pub request_extract_batch: ::core::option::Option<
        unsafe extern "C" fn(
            arg1: *mut routecap_capturer,
            arg2: *mut routecap_extract_item,
            arg3: usize,
            arg4: usize,
        ) -> routecap_status,
    >,
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
        ) -> routecap_status,
    >,
    /// routing.h
    pub routing_wait: ::core::option::Option<
        unsafe extern "C" fn(arg1: *const routecap_routing, arg2: i64) -> routecap_status,
    >,
    pub routing_poll: ::core::option::Option<
        unsafe extern "C" fn(arg1: *const routecap_routing) -> routecap_status,
    >,
    pub routing_view: ::core::option::Option<
        unsafe extern "C" fn(
            arg1: *const routecap_routing,
            arg2: *mut routecap_view,
        ) -> routecap_status,
    >,
    pub routing_coverage: ::core::option::Option<
        unsafe extern "C" fn(
            arg1: *const routecap_routing,
            arg2: *mut routecap_coverage,
            arg3: *mut routecap_missing,
            arg4: usize,
            arg5: usize,
        ) -> routecap_status,
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
        ) -> routecap_status,
    >,
    pub routing_copy_weights: ::core::option::Option<
        unsafe extern "C" fn(
            arg1: *const routecap_routing,
            arg2: *const routecap_copy_options,
            arg3: *mut ::core::ffi::c_void,
            arg4: usize,
            arg5: *mut u8,
            arg6: usize,
            arg7: *mut u64,
        ) -> routecap_status,
    >,
    pub routing_split: ::core::option::Option<
        unsafe extern "C" fn(
            arg1: *const routecap_routing,
            arg2: u64,
            arg3: u64,
            arg4: *mut *mut routecap_routing,
            arg5: *mut *mut routecap_routing,
        ) -> routecap_status,
    >,
    pub routing_slice: ::core::option::Option<
        unsafe extern "C" fn(
            arg1: *const routecap_routing,
            arg2: u64,
            arg3: u64,
            arg4: *mut *mut routecap_routing,
        ) -> routecap_status,
    >,
    pub routing_merge: ::core::option::Option<
        unsafe extern "C" fn(
            arg1: *const *const routecap_routing,
            arg2: usize,
            arg3: u32,
            arg4: *mut *mut routecap_routing,
        ) -> routecap_status,
    >,
    pub routing_retain: ::core::option::Option<
        unsafe extern "C" fn(arg1: *const routecap_routing) -> routecap_status,
    >,
    pub routing_free: ::core::option::Option<unsafe extern "C" fn(arg1: *mut routecap_routing)>,
    /// serialized.h
    pub routing_serialize: ::core::option::Option<
        unsafe extern "C" fn(
            arg1: *const routecap_routing,
            arg2: *mut ::core::ffi::c_void,
            arg3: usize,
            arg4: *mut u64,
        ) -> routecap_status,
    >,
    pub routing_deserialize: ::core::option::Option<
        unsafe extern "C" fn(
            arg1: *const ::core::ffi::c_void,
            arg2: usize,
            arg3: routecap_import_flags,
            arg4: routecap_release,
            arg5: *mut ::core::ffi::c_void,
            arg6: *mut *mut routecap_routing,
        ) -> routecap_status,
    >,
    pub routing_import: ::core::option::Option<
        unsafe extern "C" fn(
            arg1: *const routecap_view,
            arg2: routecap_import_flags,
            arg3: routecap_release,
            arg4: *mut ::core::ffi::c_void,
            arg5: *mut *mut routecap_routing,
        ) -> routecap_status,
    >,
    pub serialized_info: ::core::option::Option<
        unsafe extern "C" fn(
            arg1: *const ::core::ffi::c_void,
            arg2: usize,
            arg3: *mut routecap_serialized,
        ) -> routecap_status,
    >,
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
        ) -> routecap_status,
    >,
    pub serialized_slice: ::core::option::Option<
        unsafe extern "C" fn(
            arg1: *const ::core::ffi::c_void,
            arg2: usize,
            arg3: u64,
            arg4: u64,
            arg5: *mut ::core::ffi::c_void,
            arg6: usize,
            arg7: *mut routecap_piece,
            arg8: usize,
            arg9: usize,
            arg10: *mut routecap_splice,
        ) -> routecap_status,
    >,
    /// wire.h
    pub wire_describe: ::core::option::Option<
        unsafe extern "C" fn(
            arg1: routecap_wire_format,
            arg2: *mut routecap_wire_description,
        ) -> routecap_status,
    >,
    pub wire_find: ::core::option::Option<
        unsafe extern "C" fn(
            arg1: *const ::core::ffi::c_char,
            arg2: *mut routecap_wire_format,
        ) -> routecap_status,
    >,
    pub wire_decode: ::core::option::Option<
        unsafe extern "C" fn(
            arg1: *const ::core::ffi::c_void,
            arg2: usize,
            arg3: routecap_wire_format,
            arg4: *const routecap_wire_hint,
            arg5: *mut routecap_wire_report,
            arg6: *mut *mut routecap_routing,
        ) -> routecap_status,
    >,
    pub wire_decoder_create: ::core::option::Option<
        unsafe extern "C" fn(
            arg1: routecap_wire_format,
            arg2: *const routecap_wire_hint,
            arg3: *mut *mut routecap_wire_decoder,
        ) -> routecap_status,
    >,
    pub wire_decoder_write: ::core::option::Option<
        unsafe extern "C" fn(
            arg1: *mut routecap_wire_decoder,
            arg2: *const ::core::ffi::c_void,
            arg3: usize,
        ) -> routecap_status,
    >,
    pub wire_decoder_finish: ::core::option::Option<
        unsafe extern "C" fn(
            arg1: *mut routecap_wire_decoder,
            arg2: *mut routecap_wire_report,
            arg3: *mut *mut routecap_routing,
        ) -> routecap_status,
    >,
    pub wire_decoder_free:
        ::core::option::Option<unsafe extern "C" fn(arg1: *mut routecap_wire_decoder)>,
    pub wire_encode: ::core::option::Option<
        unsafe extern "C" fn(
            arg1: *const routecap_routing,
            arg2: *const routecap_wire_options,
            arg3: *mut ::core::ffi::c_void,
            arg4: usize,
            arg5: *mut u64,
            arg6: *mut routecap_wire_report,
        ) -> routecap_status,
    >,
    /// sequence.h
    pub sequence_create: ::core::option::Option<
        unsafe extern "C" fn(
            arg1: *const routecap_sequence_config,
            arg2: *mut *mut routecap_sequence,
        ) -> routecap_status,
    >,
    pub sequence_free: ::core::option::Option<unsafe extern "C" fn(arg1: *mut routecap_sequence)>,
    pub sequence_append: ::core::option::Option<
        unsafe extern "C" fn(
            arg1: *mut routecap_sequence,
            arg2: *const i32,
            arg3: u64,
            arg4: u64,
            arg5: *const routecap_routing,
            arg6: *const routecap_append_options,
            arg7: *mut routecap_append_report,
        ) -> routecap_status,
    >,
    pub sequence_truncate: ::core::option::Option<
        unsafe extern "C" fn(arg1: *mut routecap_sequence, arg2: u64) -> routecap_status,
    >,
    pub sequence_fork: ::core::option::Option<
        unsafe extern "C" fn(
            arg1: *const routecap_sequence,
            arg2: u64,
            arg3: *mut *mut routecap_sequence,
        ) -> routecap_status,
    >,
    pub sequence_routing: ::core::option::Option<
        unsafe extern "C" fn(
            arg1: *const routecap_sequence,
            arg2: *mut *mut routecap_routing,
        ) -> routecap_status,
    >,
    pub sequence_spans: ::core::option::Option<
        unsafe extern "C" fn(
            arg1: *const routecap_sequence,
            arg2: *mut routecap_sequence_span,
            arg3: usize,
            arg4: usize,
            arg5: *mut u64,
        ) -> routecap_status,
    >,
    pub sequence_tokens: ::core::option::Option<
        unsafe extern "C" fn(
            arg1: *const routecap_sequence,
            arg2: u64,
            arg3: *mut i32,
            arg4: usize,
            arg5: *mut u64,
        ) -> routecap_status,
    >,
    pub sequence_report: ::core::option::Option<
        unsafe extern "C" fn(
            arg1: *const routecap_sequence,
            arg2: *mut routecap_append_report,
        ) -> routecap_status,
    >,
    pub sequence_serialize: ::core::option::Option<
        unsafe extern "C" fn(
            arg1: *const routecap_sequence,
            arg2: routecap_sequence_flags,
            arg3: *mut ::core::ffi::c_void,
            arg4: usize,
            arg5: *mut u64,
        ) -> routecap_status,
    >,
    pub sequence_deserialize: ::core::option::Option<
        unsafe extern "C" fn(
            arg1: *const ::core::ffi::c_void,
            arg2: usize,
            arg3: u64,
            arg4: *mut *mut routecap_sequence,
        ) -> routecap_status,
    >,
    /// store.h
    pub store_config_init: ::core::option::Option<
        unsafe extern "C" fn(arg1: *mut routecap_store_config, arg2: usize) -> routecap_status,
    >,
    pub store_create: ::core::option::Option<
        unsafe extern "C" fn(
            arg1: *const routecap_store_config,
            arg2: *const routecap_config,
            arg3: *mut *mut routecap_store,
        ) -> routecap_status,
    >,
    pub store_free: ::core::option::Option<unsafe extern "C" fn(arg1: *mut routecap_store)>,
    pub store_stats: ::core::option::Option<
        unsafe extern "C" fn(
            arg1: *const routecap_store,
            arg2: *mut routecap_store_counts,
        ) -> routecap_status,
    >,
    pub store_advance: ::core::option::Option<
        unsafe extern "C" fn(arg1: *mut routecap_store, arg2: u64) -> routecap_status,
    >,
    pub request_publish: ::core::option::Option<
        unsafe extern "C" fn(
            arg1: *mut routecap_capturer,
            arg2: routecap_request,
            arg3: *mut routecap_store,
            arg4: u64,
            arg5: *const ::core::ffi::c_void,
            arg6: usize,
            arg7: u64,
        ) -> routecap_status,
    >,
    pub request_adopt: ::core::option::Option<
        unsafe extern "C" fn(
            arg1: *mut routecap_capturer,
            arg2: routecap_request,
            arg3: *mut routecap_store,
            arg4: u64,
            arg5: *const ::core::ffi::c_void,
            arg6: usize,
            arg7: u64,
            arg8: *mut routecap_adoption,
        ) -> routecap_status,
    >,
    pub request_publish_batch: ::core::option::Option<
        unsafe extern "C" fn(
            arg1: *mut routecap_capturer,
            arg2: *mut routecap_store,
            arg3: *mut routecap_publish_item,
            arg4: usize,
            arg5: usize,
            arg6: u64,
        ) -> routecap_status,
    >,
    pub request_adopt_batch: ::core::option::Option<
        unsafe extern "C" fn(
            arg1: *mut routecap_capturer,
            arg2: *mut routecap_store,
            arg3: *mut routecap_adopt_item,
            arg4: usize,
            arg5: usize,
            arg6: u64,
        ) -> routecap_status,
    >,
    pub key_chain: ::core::option::Option<
        unsafe extern "C" fn(
            arg1: *const ::core::ffi::c_void,
            arg2: usize,
            arg3: *const i32,
            arg4: usize,
            arg5: u32,
            arg6: u32,
            arg7: *mut ::core::ffi::c_void,
            arg8: usize,
        ) -> routecap_status,
    >,
    pub store_contains: ::core::option::Option<
        unsafe extern "C" fn(
            arg1: *mut routecap_store,
            arg2: *const ::core::ffi::c_void,
            arg3: usize,
            arg4: u64,
            arg5: *mut routecap_reason,
            arg6: *mut u64,
        ) -> routecap_status,
    >,
    pub store_retain: ::core::option::Option<
        unsafe extern "C" fn(
            arg1: *mut routecap_store,
            arg2: *const ::core::ffi::c_void,
            arg3: usize,
            arg4: *mut routecap_reason,
        ) -> routecap_status,
    >,
    pub store_release: ::core::option::Option<
        unsafe extern "C" fn(
            arg1: *mut routecap_store,
            arg2: *const ::core::ffi::c_void,
            arg3: usize,
        ) -> routecap_status,
    >,
    pub store_evict: ::core::option::Option<
        unsafe extern "C" fn(
            arg1: *mut routecap_store,
            arg2: *const ::core::ffi::c_void,
            arg3: usize,
            arg4: *mut u64,
        ) -> routecap_status,
    >,
    /// plan.h
    pub plan_config_init: ::core::option::Option<
        unsafe extern "C" fn(arg1: *mut routecap_plan_config, arg2: usize) -> routecap_status,
    >,
    pub plan_create: ::core::option::Option<
        unsafe extern "C" fn(
            arg1: *const routecap_plan_config,
            arg2: *mut *mut routecap_plan,
        ) -> routecap_status,
    >,
    pub plan_free: ::core::option::Option<unsafe extern "C" fn(arg1: *mut routecap_plan)>,
    pub plan_describe: ::core::option::Option<
        unsafe extern "C" fn(
            arg1: *const routecap_plan,
            arg2: *mut routecap_plan_shape,
        ) -> routecap_status,
    >,
    pub plan_ranges: ::core::option::Option<
        unsafe extern "C" fn(
            arg1: *const routecap_plan,
            arg2: *mut routecap_plan_range,
            arg3: usize,
            arg4: usize,
            arg5: *mut u64,
        ) -> routecap_status,
    >,
    pub plan_gather: ::core::option::Option<
        unsafe extern "C" fn(
            arg1: *const routecap_plan,
            arg2: *const routecap_plan_source,
            arg3: usize,
            arg4: usize,
            arg5: *mut ::core::ffi::c_void,
            arg6: usize,
            arg7: *mut u8,
            arg8: usize,
            arg9: *mut routecap_plan_report,
        ) -> routecap_status,
    >,
    pub plan_gather_values: ::core::option::Option<
        unsafe extern "C" fn(
            arg1: *const routecap_plan,
            arg2: *const *const ::core::ffi::c_void,
            arg3: usize,
            arg4: *const ::core::ffi::c_void,
            arg5: *mut ::core::ffi::c_void,
            arg6: usize,
        ) -> routecap_status,
    >,
    pub plan_gather_weights: ::core::option::Option<
        unsafe extern "C" fn(
            arg1: *const routecap_plan,
            arg2: *const routecap_plan_source,
            arg3: usize,
            arg4: usize,
            arg5: routecap_dtype,
            arg6: f32,
            arg7: *mut ::core::ffi::c_void,
            arg8: usize,
            arg9: *mut u64,
        ) -> routecap_status,
    >,
    pub plan_scatter: ::core::option::Option<
        unsafe extern "C" fn(
            arg1: *const routecap_plan,
            arg2: *const ::core::ffi::c_void,
            arg3: usize,
            arg4: *const u8,
            arg5: usize,
            arg6: *mut *mut routecap_routing,
            arg7: usize,
        ) -> routecap_status,
    >,
    pub plan_pack: ::core::option::Option<
        unsafe extern "C" fn(
            arg1: *const routecap_plan,
            arg2: *const routecap_plan_source,
            arg3: usize,
            arg4: usize,
            arg5: *mut ::core::ffi::c_void,
            arg6: usize,
            arg7: *mut routecap_plan_report,
        ) -> routecap_status,
    >,
    pub plan_unpack: ::core::option::Option<
        unsafe extern "C" fn(
            arg1: *const routecap_plan,
            arg2: *const ::core::ffi::c_void,
            arg3: usize,
            arg4: *const routecap_plan_target,
            arg5: routecap_stream,
        ) -> routecap_status,
    >,
    /// load.h
    pub capturer_load: ::core::option::Option<
        unsafe extern "C" fn(
            arg1: *const routecap_capturer,
            arg2: *mut routecap_load,
            arg3: *mut u64,
            arg4: usize,
        ) -> routecap_status,
    >,
    /// diagnostics.h
    pub set_log: ::core::option::Option<
        unsafe extern "C" fn(
            arg1: routecap_log,
            arg2: *mut ::core::ffi::c_void,
            arg3: routecap_log_level,
        ) -> routecap_status,
    >,
    /// dispatch_check.h
    pub received_read: ::core::option::Option<
        unsafe extern "C" fn(
            arg1: *mut routecap_capturer,
            arg2: *const routecap_received,
            arg3: routecap_stream,
        ) -> routecap_status,
    >,
    pub received_compare: ::core::option::Option<
        unsafe extern "C" fn(
            arg1: *mut routecap_capturer,
            arg2: *const routecap_received,
            arg3: routecap_stream,
        ) -> routecap_status,
    >,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of routecap_api"][::core::mem::size_of::<routecap_api>() - 856usize];
    ["Alignment of routecap_api"][::core::mem::align_of::<routecap_api>() - 8usize];
    ["Offset of field: routecap_api::size"][::core::mem::offset_of!(routecap_api, size) - 0usize];
    ["Offset of field: routecap_api::major"][::core::mem::offset_of!(routecap_api, major) - 8usize];
    ["Offset of field: routecap_api::minor"]
        [::core::mem::offset_of!(routecap_api, minor) - 12usize];
    ["Offset of field: routecap_api::version"]
        [::core::mem::offset_of!(routecap_api, version) - 16usize];
    ["Offset of field: routecap_api::status_name"]
        [::core::mem::offset_of!(routecap_api, status_name) - 24usize];
    ["Offset of field: routecap_api::last_error"]
        [::core::mem::offset_of!(routecap_api, last_error) - 32usize];
    ["Offset of field: routecap_api::config_init"]
        [::core::mem::offset_of!(routecap_api, config_init) - 40usize];
    ["Offset of field: routecap_api::capturer_create"]
        [::core::mem::offset_of!(routecap_api, capturer_create) - 48usize];
    ["Offset of field: routecap_api::capturer_destroy"]
        [::core::mem::offset_of!(routecap_api, capturer_destroy) - 56usize];
    ["Offset of field: routecap_api::step_begin"]
        [::core::mem::offset_of!(routecap_api, step_begin) - 64usize];
    ["Offset of field: routecap_api::step_snapshot"]
        [::core::mem::offset_of!(routecap_api, step_snapshot) - 72usize];
    ["Offset of field: routecap_api::step_issue"]
        [::core::mem::offset_of!(routecap_api, step_issue) - 80usize];
    ["Offset of field: routecap_api::step_discard"]
        [::core::mem::offset_of!(routecap_api, step_discard) - 88usize];
    ["Offset of field: routecap_api::step_poll"]
        [::core::mem::offset_of!(routecap_api, step_poll) - 96usize];
    ["Offset of field: routecap_api::step_finalize"]
        [::core::mem::offset_of!(routecap_api, step_finalize) - 104usize];
    ["Offset of field: routecap_api::config_memory"]
        [::core::mem::offset_of!(routecap_api, config_memory) - 112usize];
    ["Offset of field: routecap_api::backend_info"]
        [::core::mem::offset_of!(routecap_api, backend_info) - 120usize];
    ["Offset of field: routecap_api::capturer_stats"]
        [::core::mem::offset_of!(routecap_api, capturer_stats) - 128usize];
    ["Offset of field: routecap_api::capturer_layer_stats"]
        [::core::mem::offset_of!(routecap_api, capturer_layer_stats) - 136usize];
    ["Offset of field: routecap_api::capturer_progress"]
        [::core::mem::offset_of!(routecap_api, capturer_progress) - 144usize];
    ["Offset of field: routecap_api::sink_layer"]
        [::core::mem::offset_of!(routecap_api, sink_layer) - 152usize];
    ["Offset of field: routecap_api::sink_bind"]
        [::core::mem::offset_of!(routecap_api, sink_bind) - 160usize];
    ["Offset of field: routecap_api::layer_record"]
        [::core::mem::offset_of!(routecap_api, layer_record) - 168usize];
    ["Offset of field: routecap_api::layers_record"]
        [::core::mem::offset_of!(routecap_api, layers_record) - 176usize];
    ["Offset of field: routecap_api::router_init"]
        [::core::mem::offset_of!(routecap_api, router_init) - 184usize];
    ["Offset of field: routecap_api::layer_route"]
        [::core::mem::offset_of!(routecap_api, layer_route) - 192usize];
    ["Offset of field: routecap_api::step_arrive"]
        [::core::mem::offset_of!(routecap_api, step_arrive) - 200usize];
    ["Offset of field: routecap_api::capturer_probe"]
        [::core::mem::offset_of!(routecap_api, capturer_probe) - 208usize];
    ["Offset of field: routecap_api::copy_options_init"]
        [::core::mem::offset_of!(routecap_api, copy_options_init) - 216usize];
    ["Offset of field: routecap_api::request_open"]
        [::core::mem::offset_of!(routecap_api, request_open) - 224usize];
    ["Offset of field: routecap_api::request_accept"]
        [::core::mem::offset_of!(routecap_api, request_accept) - 232usize];
    ["Offset of field: routecap_api::request_accept_batch"]
        [::core::mem::offset_of!(routecap_api, request_accept_batch) - 240usize];
    ["Offset of field: routecap_api::request_truncate"]
        [::core::mem::offset_of!(routecap_api, request_truncate) - 248usize];
    ["Offset of field: routecap_api::request_fork"]
        [::core::mem::offset_of!(routecap_api, request_fork) - 256usize];
    ["Offset of field: routecap_api::request_attach"]
        [::core::mem::offset_of!(routecap_api, request_attach) - 264usize];
    ["Offset of field: routecap_api::request_finish"]
        [::core::mem::offset_of!(routecap_api, request_finish) - 272usize];
    ["Offset of field: routecap_api::request_finish_batch"]
        [::core::mem::offset_of!(routecap_api, request_finish_batch) - 280usize];
    ["Offset of field: routecap_api::request_close"]
        [::core::mem::offset_of!(routecap_api, request_close) - 288usize];
    ["Offset of field: routecap_api::request_close_batch"]
        [::core::mem::offset_of!(routecap_api, request_close_batch) - 296usize];
    ["Offset of field: routecap_api::request_coverage"]
        [::core::mem::offset_of!(routecap_api, request_coverage) - 304usize];
    ["Offset of field: routecap_api::request_extract"]
        [::core::mem::offset_of!(routecap_api, request_extract) - 312usize];
    ["Offset of field: routecap_api::request_extract_batch"]
        [::core::mem::offset_of!(routecap_api, request_extract_batch) - 320usize];
    ["Offset of field: routecap_api::request_extract_into"]
        [::core::mem::offset_of!(routecap_api, request_extract_into) - 328usize];
    ["Offset of field: routecap_api::routing_wait"]
        [::core::mem::offset_of!(routecap_api, routing_wait) - 336usize];
    ["Offset of field: routecap_api::routing_poll"]
        [::core::mem::offset_of!(routecap_api, routing_poll) - 344usize];
    ["Offset of field: routecap_api::routing_view"]
        [::core::mem::offset_of!(routecap_api, routing_view) - 352usize];
    ["Offset of field: routecap_api::routing_coverage"]
        [::core::mem::offset_of!(routecap_api, routing_coverage) - 360usize];
    ["Offset of field: routecap_api::routing_copy_to"]
        [::core::mem::offset_of!(routecap_api, routing_copy_to) - 368usize];
    ["Offset of field: routecap_api::routing_copy_weights"]
        [::core::mem::offset_of!(routecap_api, routing_copy_weights) - 376usize];
    ["Offset of field: routecap_api::routing_split"]
        [::core::mem::offset_of!(routecap_api, routing_split) - 384usize];
    ["Offset of field: routecap_api::routing_slice"]
        [::core::mem::offset_of!(routecap_api, routing_slice) - 392usize];
    ["Offset of field: routecap_api::routing_merge"]
        [::core::mem::offset_of!(routecap_api, routing_merge) - 400usize];
    ["Offset of field: routecap_api::routing_retain"]
        [::core::mem::offset_of!(routecap_api, routing_retain) - 408usize];
    ["Offset of field: routecap_api::routing_free"]
        [::core::mem::offset_of!(routecap_api, routing_free) - 416usize];
    ["Offset of field: routecap_api::routing_serialize"]
        [::core::mem::offset_of!(routecap_api, routing_serialize) - 424usize];
    ["Offset of field: routecap_api::routing_deserialize"]
        [::core::mem::offset_of!(routecap_api, routing_deserialize) - 432usize];
    ["Offset of field: routecap_api::routing_import"]
        [::core::mem::offset_of!(routecap_api, routing_import) - 440usize];
    ["Offset of field: routecap_api::serialized_info"]
        [::core::mem::offset_of!(routecap_api, serialized_info) - 448usize];
    ["Offset of field: routecap_api::serialized_splice"]
        [::core::mem::offset_of!(routecap_api, serialized_splice) - 456usize];
    ["Offset of field: routecap_api::serialized_slice"]
        [::core::mem::offset_of!(routecap_api, serialized_slice) - 464usize];
    ["Offset of field: routecap_api::wire_describe"]
        [::core::mem::offset_of!(routecap_api, wire_describe) - 472usize];
    ["Offset of field: routecap_api::wire_find"]
        [::core::mem::offset_of!(routecap_api, wire_find) - 480usize];
    ["Offset of field: routecap_api::wire_decode"]
        [::core::mem::offset_of!(routecap_api, wire_decode) - 488usize];
    ["Offset of field: routecap_api::wire_decoder_create"]
        [::core::mem::offset_of!(routecap_api, wire_decoder_create) - 496usize];
    ["Offset of field: routecap_api::wire_decoder_write"]
        [::core::mem::offset_of!(routecap_api, wire_decoder_write) - 504usize];
    ["Offset of field: routecap_api::wire_decoder_finish"]
        [::core::mem::offset_of!(routecap_api, wire_decoder_finish) - 512usize];
    ["Offset of field: routecap_api::wire_decoder_free"]
        [::core::mem::offset_of!(routecap_api, wire_decoder_free) - 520usize];
    ["Offset of field: routecap_api::wire_encode"]
        [::core::mem::offset_of!(routecap_api, wire_encode) - 528usize];
    ["Offset of field: routecap_api::sequence_create"]
        [::core::mem::offset_of!(routecap_api, sequence_create) - 536usize];
    ["Offset of field: routecap_api::sequence_free"]
        [::core::mem::offset_of!(routecap_api, sequence_free) - 544usize];
    ["Offset of field: routecap_api::sequence_append"]
        [::core::mem::offset_of!(routecap_api, sequence_append) - 552usize];
    ["Offset of field: routecap_api::sequence_truncate"]
        [::core::mem::offset_of!(routecap_api, sequence_truncate) - 560usize];
    ["Offset of field: routecap_api::sequence_fork"]
        [::core::mem::offset_of!(routecap_api, sequence_fork) - 568usize];
    ["Offset of field: routecap_api::sequence_routing"]
        [::core::mem::offset_of!(routecap_api, sequence_routing) - 576usize];
    ["Offset of field: routecap_api::sequence_spans"]
        [::core::mem::offset_of!(routecap_api, sequence_spans) - 584usize];
    ["Offset of field: routecap_api::sequence_tokens"]
        [::core::mem::offset_of!(routecap_api, sequence_tokens) - 592usize];
    ["Offset of field: routecap_api::sequence_report"]
        [::core::mem::offset_of!(routecap_api, sequence_report) - 600usize];
    ["Offset of field: routecap_api::sequence_serialize"]
        [::core::mem::offset_of!(routecap_api, sequence_serialize) - 608usize];
    ["Offset of field: routecap_api::sequence_deserialize"]
        [::core::mem::offset_of!(routecap_api, sequence_deserialize) - 616usize];
    ["Offset of field: routecap_api::store_config_init"]
        [::core::mem::offset_of!(routecap_api, store_config_init) - 624usize];
    ["Offset of field: routecap_api::store_create"]
        [::core::mem::offset_of!(routecap_api, store_create) - 632usize];
    ["Offset of field: routecap_api::store_free"]
        [::core::mem::offset_of!(routecap_api, store_free) - 640usize];
    ["Offset of field: routecap_api::store_stats"]
        [::core::mem::offset_of!(routecap_api, store_stats) - 648usize];
    ["Offset of field: routecap_api::store_advance"]
        [::core::mem::offset_of!(routecap_api, store_advance) - 656usize];
    ["Offset of field: routecap_api::request_publish"]
        [::core::mem::offset_of!(routecap_api, request_publish) - 664usize];
    ["Offset of field: routecap_api::request_adopt"]
        [::core::mem::offset_of!(routecap_api, request_adopt) - 672usize];
    ["Offset of field: routecap_api::request_publish_batch"]
        [::core::mem::offset_of!(routecap_api, request_publish_batch) - 680usize];
    ["Offset of field: routecap_api::request_adopt_batch"]
        [::core::mem::offset_of!(routecap_api, request_adopt_batch) - 688usize];
    ["Offset of field: routecap_api::key_chain"]
        [::core::mem::offset_of!(routecap_api, key_chain) - 696usize];
    ["Offset of field: routecap_api::store_contains"]
        [::core::mem::offset_of!(routecap_api, store_contains) - 704usize];
    ["Offset of field: routecap_api::store_retain"]
        [::core::mem::offset_of!(routecap_api, store_retain) - 712usize];
    ["Offset of field: routecap_api::store_release"]
        [::core::mem::offset_of!(routecap_api, store_release) - 720usize];
    ["Offset of field: routecap_api::store_evict"]
        [::core::mem::offset_of!(routecap_api, store_evict) - 728usize];
    ["Offset of field: routecap_api::plan_config_init"]
        [::core::mem::offset_of!(routecap_api, plan_config_init) - 736usize];
    ["Offset of field: routecap_api::plan_create"]
        [::core::mem::offset_of!(routecap_api, plan_create) - 744usize];
    ["Offset of field: routecap_api::plan_free"]
        [::core::mem::offset_of!(routecap_api, plan_free) - 752usize];
    ["Offset of field: routecap_api::plan_describe"]
        [::core::mem::offset_of!(routecap_api, plan_describe) - 760usize];
    ["Offset of field: routecap_api::plan_ranges"]
        [::core::mem::offset_of!(routecap_api, plan_ranges) - 768usize];
    ["Offset of field: routecap_api::plan_gather"]
        [::core::mem::offset_of!(routecap_api, plan_gather) - 776usize];
    ["Offset of field: routecap_api::plan_gather_values"]
        [::core::mem::offset_of!(routecap_api, plan_gather_values) - 784usize];
    ["Offset of field: routecap_api::plan_gather_weights"]
        [::core::mem::offset_of!(routecap_api, plan_gather_weights) - 792usize];
    ["Offset of field: routecap_api::plan_scatter"]
        [::core::mem::offset_of!(routecap_api, plan_scatter) - 800usize];
    ["Offset of field: routecap_api::plan_pack"]
        [::core::mem::offset_of!(routecap_api, plan_pack) - 808usize];
    ["Offset of field: routecap_api::plan_unpack"]
        [::core::mem::offset_of!(routecap_api, plan_unpack) - 816usize];
    ["Offset of field: routecap_api::capturer_load"]
        [::core::mem::offset_of!(routecap_api, capturer_load) - 824usize];
    ["Offset of field: routecap_api::set_log"]
        [::core::mem::offset_of!(routecap_api, set_log) - 832usize];
    ["Offset of field: routecap_api::received_read"]
        [::core::mem::offset_of!(routecap_api, received_read) - 840usize];
    ["Offset of field: routecap_api::received_compare"]
        [::core::mem::offset_of!(routecap_api, received_compare) - 848usize];
};
unsafe extern "C" {
    /// Get the library's functions as one table.
    ///
    /// Ask for the oldest minor version that the program can work with. An entry that was added later
    /// exists only if offsetof(routecap_api, entry) < api->size.
    ///
    /// @param[in] major  ROUTECAP_VERSION_MAJOR that the caller was compiled with.
    /// @param[in] minor  ROUTECAP_VERSION_MINOR that the caller was compiled with, or an older one.
    /// @return Static storage, with every entry of that version. NULL if this library has a different
    ///         major version or an older minor version; routecap_last_error names both versions.
    pub fn routecap_get_api(major: u32, minor: u32) -> *const routecap_api;
}
