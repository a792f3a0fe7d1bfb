"""The head of an object whose rows' checks stay where they are: a rank that reads an eighth of the
rows needs an eighth of the checks. docs/format.md has the layout."""

import functools

import numpy as np
from numpy.typing import NDArray

from routecap import SERIALIZED_MIN

CHECK_BYTES = 4
_ENTRY = 24  # bytes of a layer, and of a run
_BLOCK = 1024
_POLYNOMIAL = 0x82F63B78


def tables_bytes(layers: int, runs: int) -> int:
    """All before the checks of rows."""
    return SERIALIZED_MIN + _ENTRY * (layers + runs)


def tables_bytes_of(head: memoryview | bytes | bytearray) -> int:
    layers, runs = (int.from_bytes(head[at : at + n], "little") for at, n in ((56, 4), (40, 8)))
    return tables_bytes(layers, runs)


def stride_of(head: bytes) -> int:
    return int.from_bytes(head[72:76], "little")


def without_checks(tables: bytes, size: int) -> bytes:
    """A head of `size` bytes with these tables, in which each row's check is 0."""
    head = bytearray(size)
    head[: len(tables)] = tables
    seal(memoryview(head))
    return bytes(head)


def seal(head: memoryview) -> None:
    """Write the check of the head itself, after its other bytes."""
    head[12:16] = bytes(4)
    head[12:16] = crc32c(head).to_bytes(4, "little")


def crc32c(data: memoryview | bytes | bytearray) -> int:
    """Of 4 bytes or more. Blocks of zeros, as checks that are not there, cost next to nothing."""
    blocks = np.zeros((-(-len(data) // _BLOCK), _BLOCK), np.uint8)
    own = blocks.reshape(-1)[-len(data) :]  # zeros in front change nothing
    own[:] = np.frombuffer(data, np.uint8)
    own[:4] ^= 0xFF
    table = _table()
    some = blocks.any(axis=1)
    at = np.arange(0, table.size, 256) + blocks[some]
    values = np.zeros(len(blocks), np.uint32)
    values[some] = np.bitwise_xor.reduce(table.reshape(-1).take(at), axis=1)
    a, b, c, d = table[:4].tolist()
    crc = 0
    for value in values.tolist():
        crc = value ^ a[crc & 255] ^ b[crc >> 8 & 255] ^ c[crc >> 16 & 255] ^ d[crc >> 24]
    return crc ^ 0xFFFFFFFF


@functools.cache
def _table() -> NDArray[np.uint32]:
    """What each byte at each place of a block adds to the block's CRC."""
    last: NDArray[np.uint32] = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        last = last >> np.uint32(1) ^ (last & np.uint32(1)) * np.uint32(_POLYNOMIAL)
    table = np.empty((_BLOCK, 256), np.uint32)
    table[-1] = last
    for place in range(_BLOCK - 2, -1, -1):
        after = table[place + 1]
        table[place] = last[after & 255] ^ after >> 8
    return table
