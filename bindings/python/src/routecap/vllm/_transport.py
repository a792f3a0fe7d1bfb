"""From the engine's process to the front end's: rows travel as routecap's own bytes."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

import routecap

from ._results import Blocks, PendingRoutedExperts
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

    def enc_hook(encoder: Any, value: Any) -> Any:
        if isinstance(value, PendingRoutedExperts):
            return encoder._encode_ndarray(to_bytes(value))
        return hook(encoder, value)

    replace(encoder_class, "enc_hook", hook, enc_hook)


_HEAD = struct.Struct("<4I")


def to_bytes(rows: PendingRoutedExperts) -> NDArray[np.uint8]:
    """Layers of the decoder and what is known of blocks, their keys, and the routing. Waits for
    rows in flight."""
    rows.routing.wait()
    blocks = rows.blocks or Blocks(0, [])
    head = _HEAD.pack(rows.decoder_layers, blocks.rows, len(blocks.keys), blocks.key_bytes)
    return np.frombuffer(b"".join((head, *blocks.keys, rows.routing.serialize())), np.uint8)


def from_bytes(data: NDArray[np.uint8], fill: int) -> PendingRoutedExperts:
    decoder_layers, block_rows, count, key_bytes = _HEAD.unpack(data[: _HEAD.size].tobytes())
    end = _HEAD.size + count * key_bytes
    routing = routecap.Routing.deserialize(data[end:])
    rows = PendingRoutedExperts(
        routing, (routing.rows, routing.layers, routing.k), fill, decoder_layers=decoder_layers
    )
    if block_rows:
        keys = data[_HEAD.size : end].reshape(count, key_bytes)
        rows.blocks = Blocks(block_rows, [key.tobytes() for key in keys])
    return rows
