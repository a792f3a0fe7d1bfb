"""What one request asks of its capture, in the extra_args of its sampling parameters.

Over HTTP these are vllm_xargs, or sampling_params.extra_args if the request has them.

    routed_experts           false or 0: do not capture, at no cost; true or 1: capture
    routed_experts_start     leave out the rows before this one, because the client has them
    routed_experts_dtype     dtype of the arrays: "int16" (the default), "uint8", "uint16" or
                             "int32"
    routed_experts_format    what a server or a program answers instead of arrays (`_answers`)
    routed_experts_validity  true or 1: the server also says which cells are there
"""

from __future__ import annotations

from typing import Any, NamedTuple

FORMATS = (
    "lists",
    "npy.base64",
    "raw.base64",
    "object",
    "nrlre1",
    "routecap.base64",
    "file",
    "reference",
)
_DTYPES = ("int16", "uint8", "uint16", "int32")
_CAPTURE, _START, _DTYPE = "routed_experts", "routed_experts_start", "routed_experts_dtype"
_FORMAT, _VALIDITY = "routed_experts_format", "routed_experts_validity"


class Asked(NamedTuple):
    """What one request asks for. `format` is None if it asks for the engine's own answer."""

    capture: bool = True
    start: int = 0
    dtype: str = "int16"
    format: str | None = None
    validity: bool = False


_ALL = Asked()


def asked_by(sampling_params: object) -> Asked:
    """Read what a request asks for.

    Raises:
        ValueError: A value is none of those above.
    """
    extra = getattr(sampling_params, "extra_args", None)
    if not extra:
        return _ALL
    start, dtype, kind = extra.get(_START, 0), extra.get(_DTYPE, "int16"), extra.get(_FORMAT)
    whole = isinstance(start, int) or (isinstance(start, float) and start.is_integer())
    if isinstance(start, bool) or not whole or start < 0:
        raise ValueError(f"{_START} is {start!r}: it must be a row's number")
    if dtype not in _DTYPES:
        raise ValueError(f"{_DTYPE} is {dtype!r}: it must be one of {', '.join(_DTYPES)}")
    validity = _flag(extra, _VALIDITY, False)
    if kind is None and validity:
        kind = "lists"
    if kind is not None and kind not in FORMATS:
        raise ValueError(f"{_FORMAT} is {kind!r}: it must be one of {', '.join(FORMATS)}")
    return Asked(_flag(extra, _CAPTURE, True), int(start), dtype, kind, validity)


def without_format(extra: dict[str, Any]) -> dict[str, Any] | None:
    """The extra_args that ask for the same rows, and for the engine's own answer."""
    names = (_DTYPE, _FORMAT, _VALIDITY)
    return {name: value for name, value in extra.items() if name not in names} or None


def _flag(extra: dict[str, Any], name: str, default: bool) -> bool:
    """Read a flag: true, false, 1 or 0."""
    value = extra.get(name, default)
    if value not in (True, False):
        raise ValueError(f"{name} is {value!r}: it must be true or false")
    return bool(value)
