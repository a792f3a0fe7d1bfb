"""Make a server's answer of the rows of one completion, in the format that the request asked for.

By `Asked.format`:

    lists            nested lists of ids [rows, layers, k]
    npy.base64       a .npy file of them in base64, with dtype and shape
    object           {"data": base64, "shape", "start", "dtype"}
    nrlre1           the text nrlre1:DTYPE:ROWSxLAYERSxK:BASE64
    raw.base64       the ids alone in base64
    routecap.base64  the serialised form in base64: validity, tags, layers and weights too
    file             where the serialised form is, for clients on the same machine:
                     {"file", "offset", "bytes", "format": "routecap", "start", "shape"}
    reference        where the rows are, for clients on any machine: a routecap.remote.Reference
"""

from __future__ import annotations

import base64
import functools
import io
import json
import os
import secrets
import threading
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import routecap

from routecap import remote
from routecap.names import WireFactName
from . import _versions
from ._asked import Asked
from ._options import get_options
from ._results import PendingRoutedExperts, of_array

ROWS, VALIDITY, ERROR = "routed_experts", "routed_experts_validity", "routed_experts_error"
UNCHECKED = "routed_experts_unchecked"  # where the version of vLLM was not checked
# What no format but the serialised form can say, and a client knows, or does not ask for.
_UNSAID: tuple[WireFactName, ...] = (
    *("first", "layers", "reasons", "tags", "id_space", "provenance"),
    "weights",
)


class Answer:
    """The rows of one completion, and what its request asked for.

    Reading an attribute waits for rows in flight. Any thread may do so.

    Attributes:
        rows: PendingRoutedExperts, or an array [rows, layers, k] if the workers are processes of
            their own.
        asked: What the request asked for, with a format.
    """

    def __init__(
        self,
        rows: PendingRoutedExperts | NDArray[np.int16],
        asked: Asked,
        folder: Folder | None = None,
    ) -> None:
        """Args:
        folder: Where files go; default: the folder of the options.
        """
        self.rows, self.asked, self._folder = rows, asked, folder

    @functools.cached_property
    def value(self) -> Any:
        """The answer in its format.

        Raises:
            routecap.Error, OSError, ValueError: The format cannot express missing cells, or there
                is no room for a file.
        """
        rows, kind = self._pending, self.asked.format
        rows.read()
        if kind == "lists":
            return rows.tolist()
        routing = rows.part()
        if kind == "reference":
            return remote.write_as_set(routing, get_options().objects)
        if kind == "file":
            place = (self._folder or _folder()).write(routing.serialize())
            return place | {"format": "routecap", "start": rows.first, "shape": list(rows.shape)}
        if kind == "routecap.base64":
            return _base64(routing.serialize())
        return _message(routing, rows.decoder_layers, self.asked)

    def validity(self) -> NDArray[np.bool_]:
        """Which cells are there, [rows, layers]."""
        return self._pending.validity()

    def weights(self) -> NDArray[np.float32] | None:
        """The weight of each id, [rows, layers, k]; None if none were captured."""
        return self._pending.weights()

    def for_json(self) -> dict[str, Any]:
        """Return the entries for the JSON of the response. If the value cannot be made, an error
        takes its place.
        """
        try:
            found = {ROWS: self.value}
            if self.asked.validity:
                valid = self.validity()
                found[VALIDITY] = valid.tolist() if self.asked.format == "lists" else _npy(valid)
        except (routecap.Error, OSError, ValueError) as error:
            found = {ROWS: None, ERROR: str(error)}
        return found | ({UNCHECKED: _versions.note} if _versions.note else {})

    @property
    def _pending(self) -> PendingRoutedExperts:
        if isinstance(self.rows, PendingRoutedExperts):
            return self.rows
        return of_array(self.rows, self.asked.start)


def _message(routing: routecap.Routing, decoder_layers: int, asked: Asked) -> Any:
    """Encode a routing in a format of the wire. decoder_layers: as of PendingRoutedExperts."""
    allow, fill = _UNSAID, 0
    if np.dtype(asked.dtype).kind == "u":
        fill = int(np.iinfo(asked.dtype).max)
        if asked.validity or fill >= int(routing.layer_experts.max()):
            allow = (*allow, "validity")
    assert asked.format is not None
    message, _ = routecap.wire_encode(
        routing,
        routecap.wire_format(asked.format),
        dtype=np.dtype(asked.dtype),
        allow=allow,
        fill=fill,
        columns=decoder_layers or None,
    )
    return json.loads(message) if asked.format == "object" else message.decode("ascii")


def _npy(array: NDArray[Any]) -> str:
    """Return a .npy file of an array."""
    file = io.BytesIO()
    np.save(file, array)
    return _base64(file.getbuffer())


def _base64(data: Any) -> str:
    return base64.b64encode(data).decode("ascii")


class Folder:
    """Files for clients on the same machine. If there is no room, the oldest are deleted first. Any
    thread may use it.

    A client may delete a file that it has read. Files of processes that have ended stay.

    Args:
        path: The folder; made if it does not exist.
        budget: The most bytes of all files that this process has written and not deleted.
    """

    def __init__(self, path: str | os.PathLike[str], budget: int) -> None:
        self._path = Path(path).resolve()
        self._path.mkdir(parents=True, exist_ok=True)
        self._budget = budget
        self._files: deque[tuple[Path, int]] = deque()
        self._bytes = 0
        self._lock = threading.Lock()

    def write(self, data: bytes) -> dict[str, Any]:
        """Write a file and return its path.

        Raises:
            OSError: The file cannot be written.
            ValueError: It is larger than the budget.
        """
        if len(data) > self._budget:
            raise ValueError(
                f"{len(data)} bytes are more than the folder's {self._budget}: give it a larger"
                " budget"
            )
        path = self._path / f"{secrets.token_hex(16)}.routecap"
        with self._lock:  # room first
            self._bytes += len(data)
            while self._bytes > self._budget and self._files:
                oldest, size = self._files.popleft()
                oldest.unlink(missing_ok=True)
                self._bytes -= size
        try:
            path.write_bytes(data)
        except OSError:
            path.unlink(missing_ok=True)
            with self._lock:
                self._bytes -= len(data)
            raise
        with self._lock:
            self._files.append((path, len(data)))
        return {"file": str(path), "offset": 0, "bytes": len(data)}


def _folder() -> Folder:
    """Return the folder of the options."""
    options = get_options()
    return _folder_of(options.folder, options.folder_bytes)


@functools.cache
def _folder_of(path: str, budget: int) -> Folder:
    return Folder(path, budget)


def read(reference: Mapping[str, Any], *, keep: bool = False) -> routecap.Routing:
    """Read the rows that an answer of format "file" refers to, in a process of the same machine.

    The call deletes the file, unless `keep` is set for other readers.

    Raises:
        FileNotFoundError: The file was read already, or was deleted to make room
            (ROUTECAP_VLLM_FOLDER_BYTES).
        routecap.Error: The bytes are not rows.
    """
    path = Path(reference["file"])
    with path.open("rb") as file:
        file.seek(reference["offset"])
        data = file.read(reference["bytes"])
    routing = routecap.Routing.deserialize(data)
    if not keep:
        path.unlink(missing_ok=True)
    return routing
