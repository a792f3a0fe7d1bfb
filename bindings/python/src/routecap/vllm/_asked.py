"""What one request asks of its capture, in its sampling parameters' extra_args.

Over HTTP they are vllm_xargs.

routed_experts          false or 0: it is not captured, and costs nothing; true or 1: it is
routed_experts_start    rows before this one are left out: the client has them
routed_experts_dtype    of its arrays: "int16" (the default), "uint8", "uint16" or "int32"
"""

from __future__ import annotations

from typing import Any, NamedTuple

_DTYPES = ("int16", "uint8", "uint16", "int32")
_CAPTURE, _START, _DTYPE = "routed_experts", "routed_experts_start", "routed_experts_dtype"


class Asked(NamedTuple):
    capture: bool = True
    start: int = 0
    dtype: str = "int16"


_ALL = Asked()


def asked_by(sampling_params: Any) -> Asked:
    """Raises: ValueError: a value is none of those above."""
    extra = getattr(sampling_params, "extra_args", None)
    if not extra:
        return _ALL
    capture, start, dtype = (
        extra.get(_CAPTURE, True),
        extra.get(_START, 0),
        extra.get(_DTYPE, "int16"),
    )
    if capture not in (True, False):
        raise ValueError(f"{_CAPTURE} is {capture!r}: it must be true or false")
    if isinstance(start, bool) or int(start) != start or start < 0:
        raise ValueError(f"{_START} is {start!r}: it must be a row's number")
    if dtype not in _DTYPES:
        raise ValueError(f"{_DTYPE} is {dtype!r}: it must be one of {', '.join(_DTYPES)}")
    return Asked(bool(capture), int(start), dtype)
