"""Arrays for and from formats that cannot say that a cell is missing."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ._constants import Missing, Status
from ._errors import error
from ._message import WireHint
from ._routing import Routing
from .names import WireFactName


def whole_rows(
    routing: Routing,
    layers: int | None,
    first: int,
    who: str,
    allow: tuple[WireFactName, ...] = ("tags", "first"),
) -> NDArray[Any]:
    """Ids [rows, layers, k] of a routing that has every cell: uint8 up to 256 experts, else uint16.

    layers: Of the decoder; those that were not captured are zeros. None: the captured layers, which
    must be the decoder's first ones. first: The position with which the rows must begin. who: Reads
    them. allow: What the ids need not say.

    Raises:
        Error: The array would say less than the routing, or something else.
    """
    if len(missing := routing.missing):
        row, layer, reason = (int(missing[0][name]) for name in ("first", "first_layer", "reason"))
        raise error(
            Status.ERR_LOSSY,
            f"{who} cannot say that a cell is missing, and {routing.coverage().cells_missing} are:"
            f" the first in row {row}, layer {layer}, {Missing(reason).name}. Leave this"
            " sequence out, or give a routing without them",
        )
    if routing.first != first:
        raise error(
            Status.ERR_LOSSY,
            f"{who} expects rows from position {first} on, the routing begins at {routing.first}:"
            " slice it, or give first=...",
        )
    dtype = np.dtype(np.uint8 if routing.experts <= 256 else np.uint16)
    written = routing.to_wire("raw", dtype=dtype, columns=layers, allow=allow)
    columns = routing.layers if layers is None else layers
    return np.frombuffer(written, dtype).reshape(routing.rows, columns, routing.k)


def routing_of(ids: bytes, known: WireHint, hint: WireHint) -> Routing:
    """The routing of an array's bytes. `known` is what its format says.

    Raises:
        Error: The hint says otherwise.
    """
    told: dict[str, Any] = {**hint}
    for name, value in known.items():
        if told.get(name, value) != value:
            raise error(
                Status.ERR_SHAPE_MISMATCH,
                f"the bytes have {name} {value}, the hint {told[name]}: leave it out",
            )
    return Routing.from_wire(ids, "raw", **{**told, **known})
