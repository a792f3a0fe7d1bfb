"""routecap: which experts every token was sent to, in every layer of a mixture-of-experts model,
captured from any inference engine.

Capturer is where to begin; README.md has a tour, and help() of each method what the header of the C
library says of it.

Parts of the package, such as `routecap.experts` and `routecap.remote`, are imported when they are
first used.
"""

import typing
from importlib import import_module
from importlib.util import find_spec

from . import models
from ._capturer import Capturer
from ._config import BackendInfo, Memory, Settings, backends, memory
from ._constants import (
    ALL,
    DIGEST_TOKENS,
    LANDED,
    LOAD_PHASES,
    MAX_BLOCK_ROWS,
    MAX_EXPERTS,
    MAX_GROUPS,
    MAX_K,
    MAX_KEY_BYTES,
    MAX_LAYERS,
    MAX_PIECES,
    MAX_PLAN_ROWS,
    MAX_PLAN_SAMPLES,
    MAX_POSITION,
    MAX_RANKS,
    MAX_RECEIVED,
    MAX_ROUTED_EXPERTS,
    MAX_ROWS,
    MAX_SLOTS,
    MIN_KEY_BYTES,
    NO_EXPERT,
    SERIALIZED_MIN,
    AppendPolicy,
    Backend,
    ConfigFlag,
    Dtype,
    Extract,
    GroupScore,
    IdSpace,
    LogLevel,
    Method,
    Missing,
    Order,
    Phase,
    Piece,
    PlanClass,
    PlanContext,
    PlanFill,
    PlanLayout,
    PlanLost,
    PlanSequence,
    Policy,
    ProbeFlag,
    Provenance,
    ReadFlag,
    ReceivedFlag,
    Role,
    RouterFlag,
    Score,
    SequenceFlag,
    Snapshot,
    SourceFlag,
    SpanFlag,
    Status,
    StoreFlag,
    TrustFlag,
    Wire,
    WireColumns,
    WireFact,
    WireHintFlag,
)
from ._contents import Segment
from ._counts import Stats, StoreStats
from ._errors import (
    ArgumentError,
    DtypeError,
    Error,
    LostStepWarning,
    NotReadyError,
    OutOfMemoryError,
    RangeError,
    UnknownError,
)
from ._files import load, save
from ._library import version
from ._load import Load
from ._message import WireHint, WireOptions, WireReport, wire_format
from ._open_step import OpenStep
from ._plan import Gathered, Plan, PlanReport, Reader, needed_rows
from ._reading import Coverage
from ._requests import Request
from ._router import Router
from ._routing import Routing, merge
from ._routings import PartialError, Routings
from ._samples import Sample
from ._sequence import AppendReport, Sequence, SequenceSpan
from ._serialized import (
    Serialized,
    serialized_info,
    slice_pieces,
    splice,
    splice_pieces,
)
from ._steps import LayerSources, PreparedIssue, Step
from ._store import Adoption, Keys, Store, key_chain
from ._stored import StoredRouting, stored
from ._structs import (
    SpanColumns,
    accept_dtype,
    adopt_dtype,
    extract_dtype,
    finish_dtype,
    layer_probe_dtype,
    layer_stats_dtype,
    missing_dtype,
    plan_range_dtype,
    publish_dtype,
    span_dtype,
    spans,
)
from ._tensors import DeviceArray
from ._wire import (
    WireDecoder,
    WireFormat,
    wire_decode,
    wire_decode_batch,
    wire_encode,
    wire_formats,
)

if typing.TYPE_CHECKING:
    from . import (
        adapter as adapter,
    )
    from . import (
        analysis as analysis,
    )
    from . import (
        colours as colours,
    )
    from . import (
        experts as experts,
    )
    from . import (
        log as log,
    )
    from . import (
        names as names,
    )
    from . import (
        torch as torch,
    )
else:

    def __getattr__(name):
        """A part of the package: some need torch or matplotlib, and most programs use few."""
        if not name.startswith("_") and find_spec(f"{__name__}.{name}"):
            return import_module(f".{name}", __name__)
        raise AttributeError(
            f"module {__name__!r} has no attribute {name!r}: look for its name in routecap.__all__"
        )


__version__ = ".".join(map(str, version()))


def _repr_html_(self: object) -> str:
    """What notebooks show."""
    from . import _html

    return _html.shown(self)


for _each in (
    Capturer,
    Load,
    Plan,
    Routing,
    Routings,
    Sample,
    Sequence,
    Stats,
    StoreStats,
    WireReport,
):
    setattr(_each, "_repr_html_", _repr_html_)

__all__ = [
    "ALL",
    "Adoption",
    "AppendPolicy",
    "AppendReport",
    "ArgumentError",
    "Backend",
    "BackendInfo",
    "Capturer",
    "ConfigFlag",
    "Coverage",
    "DIGEST_TOKENS",
    "DeviceArray",
    "Dtype",
    "DtypeError",
    "Error",
    "Extract",
    "Gathered",
    "GroupScore",
    "IdSpace",
    "Keys",
    "LANDED",
    "LOAD_PHASES",
    "LayerSources",
    "Load",
    "LogLevel",
    "LostStepWarning",
    "MAX_BLOCK_ROWS",
    "MAX_EXPERTS",
    "MAX_GROUPS",
    "MAX_K",
    "MAX_KEY_BYTES",
    "MAX_LAYERS",
    "MAX_PIECES",
    "MAX_PLAN_ROWS",
    "MAX_PLAN_SAMPLES",
    "MAX_POSITION",
    "MAX_RANKS",
    "MAX_RECEIVED",
    "MAX_ROUTED_EXPERTS",
    "MAX_ROWS",
    "MAX_SLOTS",
    "MIN_KEY_BYTES",
    "Memory",
    "Method",
    "Missing",
    "NO_EXPERT",
    "NotReadyError",
    "OpenStep",
    "Order",
    "OutOfMemoryError",
    "PartialError",
    "Phase",
    "Piece",
    "Plan",
    "PlanClass",
    "PlanContext",
    "PlanFill",
    "PlanLayout",
    "PlanLost",
    "PlanReport",
    "PlanSequence",
    "Policy",
    "PreparedIssue",
    "ProbeFlag",
    "Provenance",
    "RangeError",
    "ReadFlag",
    "Reader",
    "ReceivedFlag",
    "Request",
    "Role",
    "Router",
    "RouterFlag",
    "Routing",
    "Routings",
    "SERIALIZED_MIN",
    "Sample",
    "Score",
    "Segment",
    "Sequence",
    "SequenceFlag",
    "SequenceSpan",
    "Serialized",
    "Settings",
    "Snapshot",
    "SourceFlag",
    "SpanColumns",
    "SpanFlag",
    "Stats",
    "Status",
    "Step",
    "StoredRouting",
    "Store",
    "StoreFlag",
    "StoreStats",
    "TrustFlag",
    "UnknownError",
    "Wire",
    "WireColumns",
    "WireDecoder",
    "WireFact",
    "WireFormat",
    "WireHint",
    "WireHintFlag",
    "WireOptions",
    "WireReport",
    "accept_dtype",
    "adopt_dtype",
    "backends",
    "extract_dtype",
    "finish_dtype",
    "key_chain",
    "layer_probe_dtype",
    "layer_stats_dtype",
    "load",
    "memory",
    "merge",
    "missing_dtype",
    "models",
    "needed_rows",
    "plan_range_dtype",
    "publish_dtype",
    "save",
    "serialized_info",
    "slice_pieces",
    "span_dtype",
    "spans",
    "splice",
    "splice_pieces",
    "stored",
    "version",
    "wire_decode",
    "wire_decode_batch",
    "wire_encode",
    "wire_format",
    "wire_formats",
]

for _name in __all__:  # users find all of it here
    if getattr(globals()[_name], "__module__", "").startswith(f"{__name__}._"):
        globals()[_name].__module__ = __name__
