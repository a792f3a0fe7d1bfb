"""The shipped weights' number format, and safetensors files of it. Needs NumPy only.

Every matrix of the shipped model holds values that an 8-bit float (E4M3) and a signed multiple of
STEP in one byte can both represent: the safetensors file stores the former, the GGUF file the
latter (Q8_0 with STEP as the scale of every block), and both mean the same numbers. Vectors and
routers, which decide between experts, stay in 32 bits.
"""

import json

import numpy as np

STEP = 2.0**-9  # the smallest E4M3 number
LIMIT = 15 * 2.0**-6  # the largest one that is at most 127 steps

_code = np.arange(256)
_exponent, _mantissa = _code >> 3 & 15, _code & 7
_e4m3 = np.where(_code < 128, 1, -1) * np.where(
    _exponent > 0, (8 + _mantissa) * 2.0 ** (_exponent - 10), _mantissa * STEP
)
_e4m3 = _e4m3.astype(np.float32)


def is_eight_bit(name):
    """Whether a matrix of this safetensors name is stored in 8 bits."""
    return not name.endswith(("norm.weight", "mlp.gate.weight"))


def _encode(values):
    codes = np.searchsorted(_e4m3[:127], np.abs(values)).astype(np.uint8)
    codes |= np.signbit(values).astype(np.uint8) << 7
    if not np.array_equal(_e4m3[codes], values):
        raise ValueError("a weight is not an E4M3 number")
    return codes


def q8_0(values):
    """The bytes of these weights as Q8_0: [..., columns / 32 * 34], a half-precision scale before
    each 32 of them.
    """
    steps = values.reshape(-1, 32) / np.float32(STEP)
    if np.abs(steps).max() > 127 or not np.array_equal(steps, np.round(steps)):
        raise ValueError("a weight is not a multiple of the step in one byte")
    blocks = np.empty((len(steps), 34), np.uint8)
    blocks[:, :2] = np.frombuffer(np.float16(STEP).tobytes(), np.uint8)
    blocks[:, 2:] = steps.astype(np.int8).view(np.uint8)
    return blocks.reshape(*values.shape[:-1], -1)


def write_safetensors(path, tensors, metadata):
    """Writes {name: float32 array}, matrices as E4M3 numbers, with this metadata, {name: text}."""
    header, parts, offset = {"__metadata__": {"format": "pt", **metadata}}, [], 0
    # Wide elements first: their offsets stay aligned.
    for name in sorted(tensors, key=is_eight_bit):
        small = is_eight_bit(name)
        data = (_encode(tensors[name]) if small else tensors[name].astype("<f4")).tobytes()
        header[name] = {
            "dtype": "F8_E4M3" if small else "F32",
            "shape": tensors[name].shape,
            "data_offsets": [offset, offset + len(data)],
        }
        parts.append(data)
        offset += len(data)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text + b"".join(parts))


def read_safetensors(path):
    """Returns ({name: float32 array}, metadata) of a file of write_safetensors."""
    with open(path, "rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        data = file.read()
    metadata, tensors = header.pop("__metadata__"), {}
    for name, entry in header.items():
        first, end = entry["data_offsets"]
        array = (
            _e4m3[np.frombuffer(data[first:end], np.uint8)]
            if entry["dtype"] == "F8_E4M3"
            else np.frombuffer(data[first:end], "<f4")
        )
        tensors[name] = array.reshape(entry["shape"])
    return tensors, metadata
