"""The constants of routecap.h: each group is an enum, and names have lost their prefix.

Where a function takes one of them, it also takes its name in lower case: "cuda", "take",
"row_major".
"""
# Generated from the headers: run python3 dev/generate. Do not edit.

from typing import Literal, TypeAlias

from ._named import Constant, Flags, Open

ALL = 0xFFFFFFFFFFFFFFFF
"""In a count of rows: up to the end. None is the same."""
LANDED = 0xFFFFFFFFFFFFFFFE
"""In a count of rows: up to the first row in flight, or the end; what of a running request can be
read now.
"""

MAX_LAYERS = 1024
MAX_K = 32
MAX_EXPERTS = 32768
MAX_ROUTED_EXPERTS = 1024
MAX_GROUPS = 32
MAX_ROWS = 1048576
MAX_RECEIVED = 1 << 26
MAX_SLOTS = 64
MAX_POSITION = 1 << 40
NO_EXPERT = -2
SERIALIZED_MIN = 88
MAX_PIECES = 3
DIGEST_TOKENS = 64
MAX_BLOCK_ROWS = 4096
MIN_KEY_BYTES = 8
MAX_KEY_BYTES = 64
MAX_PLAN_ROWS = 1 << 30
MAX_PLAN_SAMPLES = 1 << 24
MAX_RANKS = 1048576
LOAD_PHASES = 2


class Status(Open):
    """What a call came to: 0 success, positive partial success with everything delivered, negative
    an error, raised as routecap.Error.
    """

    OK = 0
    INCOMPLETE = 1
    LOST = 2
    PENDING = 3
    PARTIAL = 4
    NOT_CAPTURED = 5
    ERR_ARGUMENT = -100
    ERR_STRUCT_SIZE = -101
    ERR_UNKNOWN_LAYER = -102
    ERR_UNKNOWN_REQUEST = -103
    ERR_UNKNOWN_STEP = -104
    ERR_OUT_OF_RANGE = -105
    ERR_CAPACITY = -106
    ERR_OVERLAP = -107
    ERR_DTYPE = -108
    ERR_SHAPE_MISMATCH = -109
    ERR_BUFFER_TOO_SMALL = -110
    ERR_FORMAT = -111
    ERR_LOSSY = -112
    ERR_STATE = -200
    ERR_DISABLED = -201
    ERR_NOT_READY = -202
    ERR_INCOMPLETE = -203
    ERR_CONFLICT = -204
    ERR_FORKED = -205
    ERR_CAPTURING = -206
    ERR_RECOMPUTED = -207
    ERR_NOT_BEGUN = -208
    ERR_NOT_SNAPSHOT = -209
    ERR_SNAPSHOT_TWICE = -210
    ERR_ISSUED_TWICE = -211
    ERR_ROWS_NOT_BEGUN = -212
    ERR_TWO_THREADS = -213
    ERR_NO_MEMORY = -300
    ERR_TOO_MANY_REQUESTS = -301
    ERR_THREAD = -302
    ERR_NO_BACKEND = -400
    ERR_DRIVER_TOO_OLD = -401
    ERR_DEVICE = -402
    ERR_DEVICE_LOST = -403
    ERR_INTERNAL = -500


class Dtype(Constant):
    """Element types of ids, and of logits and biases."""

    U8 = 1
    I16 = 2
    U16 = 3
    I32 = 4
    U32 = 5
    I64 = 6
    ID16_BF16 = 7
    I8 = 8
    U64 = 9
    F32 = 16
    F16 = 17
    BF16 = 18


DtypeName: TypeAlias = Literal[
    "u8", "i16", "u16", "i32", "u32", "i64", "id16_bf16", "i8", "u64", "f32", "f16", "bf16"
]


class Wire(Constant):
    """Formats of the wire: what servers send and trainers read."""

    ANY = 0
    SERIALIZED = 1
    NPY = 2
    NPY_BASE64 = 3
    RAW = 4
    RAW_BASE64 = 5
    OBJECT = 6
    NRLRE1 = 7
    LISTS = 8


WireName: TypeAlias = Literal[
    "any", "serialized", "npy", "npy_base64", "raw", "raw_base64", "object", "nrlre1", "lists"
]


WireAlias: TypeAlias = Literal[
    "routecap",
    ".routecap",
    ".npy",
    "npy.base64",
    "vllm",
    ".npy.b64",
    "raw.base64",
    "sglang",
    ".b64",
    "dynamo",
    "prime-rl",
    "verifiers",
    ".routes.json",
    "nemo-rl",
    ".nrlre1",
    "megatron",
    ".lists.json",
]


class WireFact(Flags):
    """What a routing says, and a format of the wire may not."""

    SHAPE = 1
    DTYPE = 2
    EXPERTS = 4
    LAYERS = 8
    FIRST = 16
    VALIDITY = 32
    REASONS = 64
    TAGS = 128
    ID_SPACE = 256
    PROVENANCE = 512
    WEIGHTS = 1024


WireFactName: TypeAlias = Literal[
    "shape",
    "dtype",
    "experts",
    "layers",
    "first",
    "validity",
    "reasons",
    "tags",
    "id_space",
    "provenance",
    "weights",
]


class WireColumns(Constant):
    """What the columns of a message are: as many as layers, or more, FOUND; the captured layers;
    all layers of the decoder.
    """

    FOUND = 0
    CAPTURED = 1
    DECODER = 2


WireColumnsName: TypeAlias = Literal["found", "captured", "decoder"]


class WireHintFlag(Flags):
    """`strict` of decoding."""

    STRICT = 1


class Backend(Constant):
    """Where the sink is."""

    HOST = 1
    CUDA = 2


BackendName: TypeAlias = Literal["host", "cuda"]


class Role(Constant):
    """What a rank does."""

    OWNER = 0
    MIRROR = 1
    DISABLED = 2


RoleName: TypeAlias = Literal["owner", "mirror", "disabled"]


class IdSpace(Open):
    """What the ids number."""

    LOGICAL = 0
    PHYSICAL = 1


IdSpaceName: TypeAlias = Literal["logical", "physical"]


class Provenance(Open):
    """How the ids of a layer were had."""

    CAPTURED = 0
    RECOMPUTED = 1


ProvenanceName: TypeAlias = Literal["captured", "recomputed"]


class ConfigFlag(Flags):
    """Settings of a Capturer that are switches, each by its name in lower case."""

    COMPARE = 1
    EXTERNAL_SINK = 2
    MANUAL_PROGRESS = 4
    MAY_LOSE = 8
    CHECKED = 16
    LOAD = 32


class SourceFlag(Flags):
    """`overlap` of Capturer.record."""

    OVERLAP = 1
    WHOLE_STEP = 2


class Score(Constant):
    """The score of an expert, from its logit."""

    LOGIT = 0
    SOFTMAX = 1
    SIGMOID = 2
    SQRT_SOFTPLUS = 3


ScoreName: TypeAlias = Literal["logit", "softmax", "sigmoid", "sqrt_softplus"]


class GroupScore(Constant):
    """The score of a group of experts, from their keys."""

    MAX = 0
    TOP2 = 1
    TOP2_DISTINCT = 2


GroupScoreName: TypeAlias = Literal["max", "top2", "top2_distinct"]


class RouterFlag(Flags):
    """Flags of a Router."""

    RANK_LOGITS = 1
    RENORMALIZE = 2
    FLOOR_MAX = 4
    SIGMOID_TANH = 8
    GROUPS_ZERO = 16


class Method(Constant):
    """Ways of routing in use."""

    SOFTMAX = 1
    SOFTMAX_RENORMALIZE = 2
    TOPK_SOFTMAX = 3
    TOPK = 4
    TOPK_SIGMOID = 5
    SIGMOID = 6
    SIGMOID_RENORMALIZE = 7
    DEEPSEEK_V2 = 8
    DEEPSEEK_V3 = 9
    DEEPSEEK_V4 = 10
    ERNIE = 11


MethodName: TypeAlias = Literal[
    "softmax",
    "softmax_renormalize",
    "topk_softmax",
    "topk",
    "topk_sigmoid",
    "sigmoid",
    "sigmoid_renormalize",
    "deepseek_v2",
    "deepseek_v3",
    "deepseek_v4",
    "ernie",
]


class ProbeFlag(Flags):
    """What is odd about the ids of a layer: `found` of Capturer.probe."""

    SILENT = 1
    INCOMPLETE = 2
    OUT_OF_RANGE = 4
    DUPLICATE = 8
    SEQUENCE = 16
    CONSTANT = 32
    REPEATED = 64
    WORD_SIZE = 128


class ReceivedFlag(Flags):
    """What the ids of a dispatch are: see routecap.deepep."""

    EXPANDED = 1
    GLOBAL = 2


class SpanFlag(Flags):
    """`flags` of a span."""

    SPECULATIVE = 1
    DEVICE_POSITIONS = 2
    PREFILL = 4
    DECODE = 8
    UNCOUNTED = 16
    SHARED = 32


SpanFlagName: TypeAlias = Literal[
    "speculative", "device_positions", "prefill", "decode", "uncounted", "shared"
]


class Phase(Constant):
    """That of a step's rows, by which their load is counted: the first index of Load.counts."""

    PREFILL = 0
    DECODE = 1


class Snapshot(Constant):
    """Whether the forward took its snapshot, or issue takes it."""

    TAKEN = 0
    MAKE = 1
    LATER = 2


SnapshotName: TypeAlias = Literal["taken", "make", "later"]


class Policy(Constant):
    """What happens to a valid cell that is issued again."""

    KEEP = 0
    REPLACE = 1


PolicyName: TypeAlias = Literal["keep", "replace"]


class AppendPolicy(Constant):
    """Which cell stays where a sequence and a call that is appended both have one."""

    KEEP = 0
    NEWEST = 1
    EQUAL = 2


AppendPolicyName: TypeAlias = Literal["keep", "newest", "equal"]


class SequenceFlag(Flags):
    """`tokens` of Sequence.serialize."""

    WITH_TOKENS = 1


class Missing(Open):
    """Why a cell is missing: `reason` of a block of missing cells, and of a segment without ids."""

    ABSENT = 1
    UNWRITTEN = 2
    OUT_OF_RANGE = 3
    DUPLICATE = 4
    LOST = 5
    REFUSED = 6
    TAKEN = 7
    EVICTED = 8
    NOT_PUBLISHED = 9
    STALE = 10


OF_CELLS = (Missing.UNWRITTEN, Missing.OUT_OF_RANGE, Missing.DUPLICATE)
"""The reasons that are said of single cells of a row that is there."""


class Extract(Constant):
    """What becomes of rows that are read."""

    SHARE = 0
    TAKE = 1
    COPY = 2


ExtractName: TypeAlias = Literal["share", "take", "copy"]


class ReadFlag(Flags):
    """`strict` and `allow_recomputed` of reading calls."""

    STRICT = 1
    ALLOW_RECOMPUTED = 2


class Order(Constant):
    """Layout of ids: [rows, layers, k] or [layers, rows, k]."""

    ROW_MAJOR = 0
    LAYER_MAJOR = 1


OrderName: TypeAlias = Literal["row_major", "layer_major"]


class TrustFlag(Flags):
    """`trusted` of Routing.deserialize and Routing.from_arrays."""

    TRUSTED = 1


class Piece(Constant):
    """Where bytes of a spliced routing come from."""

    HEADER = 0
    HEAD = 1
    TAIL = 2


class PlanLayout(Constant):
    """How a micro-batch lies before it is divided."""

    PACKED = 0
    PADDED_RIGHT = 1
    PADDED_LEFT = 2


PlanLayoutName: TypeAlias = Literal["packed", "padded_right", "padded_left"]


class PlanContext(Constant):
    """How context parallelism divides a micro-batch."""

    NONE = 0
    ZIGZAG = 1
    CONTIGUOUS = 2
    ALLGATHER = 3


PlanContextName: TypeAlias = Literal["none", "zigzag", "contiguous", "allgather"]


class PlanSequence(Flags):
    """`sequence_parallel` and `sequence_first` of a plan."""

    PARALLEL = 1
    FIRST = 2


class PlanFill(Constant):
    """What padding is filled with."""

    BALANCED = 0
    VALUE = 1


class PlanLost(Constant):
    """What lost cells are filled with."""

    MARK = 0
    BALANCED = 1
    ERROR = 2


class PlanClass(Constant):
    """What a cell of a plan's result is."""

    VALID = 0
    PADDING = 1
    NOT_NEEDED = 2
    LOST = 3


class StoreFlag(Flags):
    """`slot_keys` of Store."""

    SLOT_KEYS = 1


class LogLevel(Constant):
    """What a line of the log is about; routecap.log has those of the module logging for them."""

    OFF = 0
    ERROR = 1
    WARNING = 2
    INFO = 3
    DEBUG = 4
