"""What clients get in `meta_info["routed_experts"]`."""

from __future__ import annotations

import base64
import json
from typing import Any

import numpy as np
import routecap
from routecap import remote
from routecap.adapter import error

from ._delivery import Asked
from ._options import Options

DTYPES = ("int32", "int16", "uint8", "uint16", "routecap", "reference")
_FIELD = "routed_experts_dtype"


def dtype_asked(sampling_params: Any) -> str:
    """What a request says in its sampling parameters' custom_params; "int32" if nothing.

    Raises:
        ValueError: It is none of `DTYPES`, or a reference and there is no place for objects.
    """
    if sampling_params is None:
        parameters = None
    elif isinstance(sampling_params, dict):  # as the client gave them
        parameters = sampling_params.get("custom_params")
    else:
        parameters = sampling_params.custom_params
    dtype = parameters.get(_FIELD, "int32") if isinstance(parameters, dict) else "int32"
    if dtype not in DTYPES:
        raise ValueError(f"{_FIELD} is {dtype!r}: it must be one of {', '.join(DTYPES)}")
    if dtype == "reference" and not Options.from_environment().objects:
        raise ValueError(
            f"{_FIELD} is 'reference', and there is no ROUTECAP_SGLANG_OBJECTS: give it one, or take"
            " another"
        )
    return str(dtype)


def encode(routing: routecap.Routing, asked: Asked) -> str:
    """
    int32      SGLang's own: base64 of [rows, layers of the decoder, k]. Dense layers are 0 as
               there; a missing cell is -1, where SGLang's is 0 others     a JSON object: "data"
               (base64 of [rows, MoE layers, k]), "shape", "start", "dtype", "layers" (which of the
               decoder these are). A missing cell is the type's largest number, or -1, and "missing"
               names the cells: [first row, rows, first of "layers", layers, reason] routecap
               base64 of the serialised form: validity, reasons and tags included
    """
    if asked.dtype == "reference":
        return json.dumps(remote.write_as_set(routing, Options.from_environment().objects))
    if asked.dtype == "routecap":
        return base64.b64encode(routing.serialize()).decode()
    if asked.dtype == "int32":
        return routing.to_wire(
            "raw.base64",
            dtype="int32",
            columns=asked.columns,
            allow=("first", "tags", "validity", "reasons", "layers", "weights"),
        ).decode()
    dtype = np.dtype(asked.dtype)
    largest = np.iinfo(dtype).max
    needed = routing.experts if routing.complete or dtype.kind == "i" else routing.experts + 1
    if needed - 1 > largest:  # its ids do not fit, or not beside the number that is missing
        dtype = np.dtype(np.uint16)
    return _object(routing, dtype)


def _object(routing: routecap.Routing, dtype: np.dtype[Any]) -> str:
    if (routing.layer_min_k < routing.k).any():
        raise error(
            routecap.Status.ERR_LOSSY,
            f"{dtype.name} answers cannot say that a cell has fewer than {routing.k} experts: ask"
            " for routecap",
        )
    fill = -1 if dtype.kind == "i" else np.iinfo(dtype).max
    ids = np.empty((routing.rows, routing.layers, routing.k), dtype)
    mask = np.empty(ids.shape[:2], np.bool_)
    routing.copy_to(ids, mask=mask, fill=fill)
    content: dict[str, Any] = {
        "data": base64.b64encode(ids.data).decode(),
        "shape": list(ids.shape),
        "start": routing.first,
        "dtype": dtype.name,
        "layers": routing.layer_map.tolist(),
    }
    if not routing.complete:
        content["missing"] = _missing(routing)
    return json.dumps(content)


def _missing(routing: routecap.Routing) -> list[Any]:
    return [
        [*(int(each[name]) for name in ("first", "rows", "first_layer", "layers")), _reason(each)]
        for each in routing.missing
    ]


def _reason(block: np.void) -> str:
    return routecap.Missing(int(block["reason"])).name.lower()
