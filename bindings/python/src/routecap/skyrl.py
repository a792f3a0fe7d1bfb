"""Rows for SkyRL 0.4, and from it:

    routecap.skyrl.rows(routing)        # an array of GeneratorOutput's rollout_expert_indices
    trace.record_generation(            # or of a RoutedExpertTrace, turn by turn
        prompt_token_count=prompt,
        generated_token_count=generated,
        routed_experts=routecap.skyrl.rows(routing[trace.prompt_start :], first=trace.prompt_start),
    )
    routecap.skyrl.packed(routing)      # "routed_experts" in an answer of /skyrl/v1/generate
    routecap.skyrl.read(given, experts=128)  # a Routing of any of these

SkyRL's arrays have uint8, int16 or int32, by the largest id that is in them, and it refuses others.
They cannot say that a cell is missing: a routing that lacks one is refused here, too. Tags, which
say with which weights a row was computed, stay behind.
"""

import base64
from collections.abc import Mapping
from typing import Any, Unpack

import numpy as np
from numpy.typing import NDArray

from ._message import WireHint
from ._routing import Routing
from ._whole import routing_of, whole_rows

__all__ = ["packed", "read", "rows"]


def rows(routing: Routing, *, layers: int | None = None, first: int = 0) -> NDArray[Any]:
    """Ids [rows, layers, k] of a routing, in the type that SkyRL calls canonical.

    layers: Of the decoder, where some are dense: SkyRL looks for a router's column by its layer's
    number. The columns of dense layers are zeros, as vLLM's are. first: The position of the first
    row that is wanted, such as `RoutedExpertTrace.prompt_start`.

    Raises:
        Error: A cell is missing, or the routing begins elsewhere.
    """
    ids = whole_rows(routing, layers, first, "SkyRL")
    most = int(ids.max(initial=0))
    return ids.astype(np.uint8 if most < 1 << 8 else np.int16 if most < 1 << 15 else np.int32)


def packed(routing: Routing, *, layers: int | None = None, first: int = 0) -> dict[str, Any]:
    """The same as an object of JSON, with its ids in base64. The order of its members matters."""
    ids = rows(routing, layers=layers, first=first)
    return {
        "data": base64.b64encode(ids.tobytes()).decode("ascii"),
        "shape": list(ids.shape),
        "dtype": ids.dtype.name,
    }


def read(given: NDArray[Any] | Mapping[str, Any], **hint: Unpack[WireHint]) -> Routing:
    """The routing of an array of SkyRL's, or of "routed_experts" in its server's answer.

    `hint` is what they do not say, `experts` above all: see WireHint. Rows that SkyRL filled behind
    the last row that was captured have the experts 0, 1, ..., k-1, and look like any other row.
    """
    if isinstance(given, Mapping):
        return Routing.from_wire(dict(given), "object", **hint)
    _rows, columns, k = given.shape
    known: WireHint = {"columns": columns, "k": k, "dtype": given.dtype}
    return routing_of(given.tobytes(), known, hint)
