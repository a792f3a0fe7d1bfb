"""From the engine's process to the front end's: rows travel as routecap's own bytes."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

import routecap

from ._results import PendingRoutedExperts
from ._wrap import once, replace

PLACES = """
vllm.v1.serial_utils
    MsgpackEncoder.enc_hook(self, obj)
    MsgpackEncoder._encode_ndarray(self, obj)
"""  # what this module replaces and reads


def send_bytes(encoder_class: Any) -> None:
    """Rows travel as a one-dimensional array of uint8: routecap's bytes, which say all of them."""
    hook = once(encoder_class, "enc_hook")
    if hook is None:
        return

    def enc_hook(encoder: Any, value: object) -> Any:
        if isinstance(value, PendingRoutedExperts):
            return encoder._encode_ndarray(to_bytes(value))
        return hook(encoder, value)

    replace(encoder_class, "enc_hook", hook, enc_hook)


_HEAD = struct.Struct("<I")


def to_bytes(rows: PendingRoutedExperts) -> NDArray[np.uint8]:
    """Layers of the decoder, and the routing. Waits for rows in flight."""
    rows.routing.wait()
    return np.frombuffer(_HEAD.pack(rows.decoder_layers) + rows.routing.serialize(), np.uint8)


def from_bytes(data: NDArray[np.uint8], fill: int) -> PendingRoutedExperts:
    [decoder_layers] = _HEAD.unpack(data[: _HEAD.size].tobytes())
    routing = routecap.Routing.deserialize(data[_HEAD.size :])
    return PendingRoutedExperts(
        routing, (routing.rows, routing.layers, routing.k), fill, decoder_layers=decoder_layers
    )
