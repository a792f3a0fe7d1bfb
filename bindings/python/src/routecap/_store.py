"""The store: keeps rows of cached prefixes, in blocks under keys."""

from collections.abc import Sequence
from typing import Any, NamedTuple, TypedDict, Union, Unpack, cast

import numpy as np
from numpy.typing import NDArray

from . import _structs as structs
from ._config import Config, Settings
from ._constants import IdSpace, Provenance, Status, StoreFlag
from ._counts import StoreStats
from ._docs import documented
from ._errors import error
from ._library import raw
from ._opened import Opened
from ._tensors import as_bytes, integers
from .names import IdSpaceName, ProvenanceName

Keys = Union[Sequence[bytes], Sequence[int], bytes, NDArray[Any]]
"""Keys of blocks: a sequence of bytes objects of key_bytes each; or all keys one after another, as
bytes or as an array of uint8 [blocks, key_bytes]; or integers, if key_bytes is 8.
"""


class Shape(TypedDict, total=False):
    """The settings that a store takes from a capturer; see Settings."""

    layers: int
    k: int
    experts: int
    id_space: IdSpace | IdSpaceName
    layer_map: Sequence[int] | NDArray[Any] | None
    layer_experts: Sequence[int] | NDArray[Any] | None
    layer_k: Sequence[int] | NDArray[Any] | None
    layer_min_k: Sequence[int] | NDArray[Any] | None
    layer_visit: Sequence[int] | NDArray[Any] | None
    layer_provenance: Sequence[Provenance | ProvenanceName] | NDArray[Any] | None


class Adoption(NamedTuple):
    """The result of an adopt."""

    rows: int
    """Rows up to the first block that was not found."""
    found: int
    """Blocks that were found."""
    evicted: int
    """Blocks that are missing because the store dropped them."""
    not_published: int
    """Blocks that are missing because the store never had them, or dropped them long ago."""
    stale: int
    """Blocks that are missing because they, or the request, are of older weights."""


def checked_keys(keys: Any, key_bytes: int, name: str = "keys") -> tuple[Any, int]:
    """A buffer of keys, and the number of keys in it."""
    if isinstance(keys, (list, tuple)):
        if keys and not isinstance(keys[0], (bytes, bytearray, memoryview)):
            keys = integers(keys, np.uint64)
        elif any(len(key) != key_bytes for key in keys):
            raise error(
                Status.ERR_ARGUMENT,
                f"{name}: each must have {key_bytes} bytes, which is the store's key_bytes",
            )
        else:
            keys = b"".join(keys)
    if isinstance(keys, np.ndarray):
        whole = keys.shape[1:] in ((), (key_bytes,)) and keys.flags.c_contiguous
        if not whole or keys.nbytes != len(keys) * key_bytes:
            raise error(
                Status.ERR_ARGUMENT,
                f"{name} is an array of {keys.dtype} of shape {keys.shape}, where uint8 of shape "
                f"(blocks, {key_bytes}) is expected, dense: key_bytes is the store's",
            )
        return keys, len(keys)
    data = as_bytes(keys, name)
    if data.nbytes % key_bytes:
        raise error(
            Status.ERR_ARGUMENT,
            f"{name} has {data.nbytes} bytes, which is not a multiple of {key_bytes}, the"
            " store's key_bytes: give whole keys",
        )
    return data, data.nbytes // key_bytes


@documented("routecap_key_chain")
def key_chain(
    tokens: Sequence[int] | NDArray[Any],
    block_rows: int = 16,
    *,
    seed: bytes = b"",
    key_bytes: int = 32,
) -> NDArray[np.uint8]:
    """Content keys of token ids, [len(tokens) // block_rows, key_bytes]: one for each whole block.

    `seed` is everything else that decides the rows: model, weights, adapter, session. To continue
    a chain, pass its last key as the seed.
    """
    ids = integers(tokens, np.int32)
    blocks = len(ids) // block_rows if ids is not None and block_rows > 0 else 0
    keys = np.empty((blocks, max(key_bytes, 0)), np.uint8)
    raw.routecap_key_chain(seed, ids, block_rows, key_bytes, keys)
    return keys


class Store:
    """Rows that were captured when a prefix was computed, for requests that take the prefix from a
    cache:

        store = routecap.Store(capturer, block_rows=16)             # in the shape of the capturer
        found = request.adopt(store, 0, hashes)                     # what the engine's cache has
        ...                                                         # forward passes of the rest
        request.publish(store, 0, hashes)                           # blocks that have filled

    Any threads, and any number of capturers of its shape, may use a store. Requests keep the rows
    that they adopted, even after the store is closed.
    """

    @documented("routecap_store_config_init", "routecap_store_create")
    def __init__(
        self,
        capturer: Opened | None = None,
        *,
        block_rows: int = 16,
        key_bytes: int = 32,
        budget_bytes: int | None = None,
        generation: int = 0,
        slot_keys: bool = False,
        **shape: Unpack[Shape],
    ) -> None:
        """Create a store in the shape of a capturer, or of settings: layers, k, experts, id_space,
        layer_map, layer_experts, layer_k, layer_min_k, layer_visit, layer_provenance.
        """
        self._handle: object = None
        self._take(block_rows, key_bytes, budget_bytes, generation, slot_keys)
        of = shape_of(capturer, shape)  # held: it has the arrays of layers
        self._handle = raw.routecap_store_create(self._config, of.memory)[1]

    def _take(
        self,
        block_rows: int,
        key_bytes: int,
        budget_bytes: int | None,
        generation: int,
        slot_keys: bool,
    ) -> None:
        self.block_rows = block_rows
        self.key_bytes = key_bytes
        self.generation = generation
        """The generation of calls that give none: the last one that this object advanced to."""
        flags = StoreFlag.SLOT_KEYS if slot_keys else 0
        self._flags = flags
        self._config = structs.store_config(
            flags=flags,
            block_rows=block_rows,
            key_bytes=key_bytes,
            budget_bytes=budget_bytes or 0,
            generation=generation,
        )

    def close(self) -> None:
        """Free the store, as soon as no call uses it; see routecap_store_free.

        Requests keep the rows that they adopted.
        """
        self._handle = None

    @property
    def closed(self) -> bool:
        return self._handle is None

    def __enter__(self) -> "Store":
        return self

    def __exit__(self, *unused: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = ", closed" if self.closed else ""
        return f"<Store of blocks of {self.block_rows} rows, generation {self.generation}{state}>"

    # ---- Keys

    def keys(self, tokens: Sequence[int] | NDArray[Any], *, seed: bytes = b"") -> NDArray[np.uint8]:
        """Content keys of token ids for this store: see routecap.key_chain."""
        return key_chain(tokens, self.block_rows, seed=seed, key_bytes=self.key_bytes)

    def _generation(self, generation: int | None) -> int:
        return self.generation if generation is None else generation

    @documented("routecap_store_contains")
    def reasons(self, keys: Keys, *, generation: int | None = None) -> NDArray[np.int32]:
        """Ask for keys: 0 for each key whose block an adopt would find now, otherwise a Missing."""
        data, count = checked_keys(keys, self.key_bytes)
        reasons = np.zeros(count, np.int32)
        raw.routecap_store_contains(
            self._handle, data, count, self._generation(generation), reasons
        )
        return reasons

    @documented("routecap_store_contains")
    def leading(self, keys: Keys, *, generation: int | None = None) -> int:
        """The number of keys before the first whose block an adopt would not find now."""
        data, count = checked_keys(keys, self.key_bytes)
        leading: int = raw.routecap_store_contains(
            self._handle, data, count, self._generation(generation), None
        )[1]
        return leading

    @documented("routecap_store_retain")
    def retain(self, keys: Keys) -> NDArray[np.int32]:
        """Keep blocks until they are released. Returns 0 for each key that is retained now, and a
        Missing for the others.
        """
        data, count = checked_keys(keys, self.key_bytes)
        reasons = np.zeros(count, np.int32)
        raw.routecap_store_retain(self._handle, data, count, reasons)
        return reasons

    @documented("routecap_store_release")
    def release(self, keys: Keys) -> None:
        """Release blocks that were retained."""
        data, count = checked_keys(keys, self.key_bytes)
        raw.routecap_store_release(self._handle, data, count)

    @documented("routecap_store_evict")
    def evict(self, keys: Keys) -> int:
        """Drop blocks. Returns how many of them the store had."""
        data, count = checked_keys(keys, self.key_bytes)
        evicted: int = raw.routecap_store_evict(self._handle, data, count)[1]
        return evicted

    # ---- The whole

    @documented("routecap_store_advance")
    def advance(self, generation: int) -> None:
        """Advance to a generation of the weights: from now on no adopt finds an older block."""
        raw.routecap_store_advance(self._handle, generation)
        self.generation = max(self.generation, generation)

    @documented("routecap_store_stats")
    def stats(self) -> StoreStats:
        """Read the counters."""
        memory = structs.store_counts.empty()
        raw.routecap_store_stats(self._handle, memory)
        values = structs.store_counts.read(memory)
        return StoreStats._make((*values[:2], StoreFlag(values[2]), *values[3:]))


def shape_of(capturer: Opened | None, settings: Any) -> Config:
    if capturer is not None:
        if settings:
            raise TypeError("the shape is the capturer's, or that of settings: give one of them")
        return capturer._config
    return Config(cast(Settings, {"rows": 1, **settings}))
