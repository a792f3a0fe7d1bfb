"""Experimental, and may be withdrawn: a store that several processes share."""

import os
import weakref
from multiprocessing import reduction
from typing import TYPE_CHECKING, Any, Unpack

from . import _structs as structs
from ._config import Config
from ._docs import documented
from ._library import raw
from ._store import Shape, Store, shape_of

if TYPE_CHECKING:
    from ._capturer import Capturer


class SharedStore(Store):
    """A store that several processes share. It can be pickled, to send it to processes that
    multiprocessing starts: pickling sends its descriptor, and the other process opens the store.
    """

    _shared: tuple[int, dict[str, Any]]  # its descriptor and settings

    @classmethod
    @documented("routecap_store_create_shared")
    def create(
        cls,
        capturer: "Capturer | None" = None,
        *,
        block_rows: int = 16,
        key_bytes: int = 32,
        budget_bytes: int | None = None,
        generation: int = 0,
        **shape: Unpack[Shape],
    ) -> tuple["SharedStore", int]:
        """Create a store that several processes share. Returns it, and its file descriptor."""
        self = cls.__new__(cls)
        self._take(block_rows, key_bytes, budget_bytes, generation, False)
        of = shape_of(capturer, shape)
        _, descriptor, self._handle = raw.routecap_store_create_shared(self._config, of.memory)
        self._share(descriptor, of)
        return self, descriptor

    @classmethod
    @documented("routecap_store_open_shared")
    def open(
        cls,
        descriptor: int,
        capturer: "Capturer | None" = None,
        *,
        block_rows: int = 16,
        key_bytes: int = 32,
        budget_bytes: int | None = None,
        **shape: Unpack[Shape],
    ) -> "SharedStore":
        """Open the store of a descriptor that `create` returned, in this process or another; or the
        store in a file. If the file is empty, this creates a store of budget_bytes in it.
        """
        self = cls.__new__(cls)
        self._take(block_rows, key_bytes, budget_bytes, 0, False)
        of = shape_of(capturer, shape)
        self._handle = raw.routecap_store_open_shared(self._config, of.memory, descriptor)[1]
        self.generation = self.stats().generation
        self._share(descriptor, of)
        return self

    def _share(self, descriptor: int, of: Config) -> None:
        """Keep what another process needs to open the store."""
        kept = os.dup(descriptor)
        shape = dict(zip(structs.config.fields, structs.config.read(of.memory)))
        self._shared = (
            kept,
            {
                "block_rows": self.block_rows,
                "key_bytes": self.key_bytes,
                "layer_map": of.layer_map,
                "layer_experts": of.layer_experts,
                "layer_provenance": of.layer_provenance,
                **{name: shape[name] for name in ("layers", "k", "experts", "id_space")},
            },
        )
        self._drop_descriptor = weakref.finalize(self, os.close, kept)

    def __reduce__(self) -> Any:
        if self.closed:
            raise TypeError("the store is closed: only an open one can be pickled")
        descriptor, settings = self._shared
        return _reopened, (reduction.DupFd(descriptor), settings)

    def close(self) -> None:
        super().close()
        self._drop_descriptor()


def _reopened(sent: Any, settings: dict[str, Any]) -> SharedStore:
    descriptor = sent.detach()
    try:
        return SharedStore.open(descriptor, **settings)
    finally:
        os.close(descriptor)
