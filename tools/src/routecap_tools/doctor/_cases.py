"""Reads files for examination. Nothing in them is taken to be right."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from routecap import (
    DIGEST_TOKENS,
    MAX_POSITION,
    Error,
    Sample,
    Sequence,
    SequenceFlag,
    Status,
    load,
)
from routecap.adapter import ROUTING, WIRE_ENDINGS, error, in_folder, mapped, wire_ending
from routecap.models import Description

from ._case import Case, of_array, of_sample
from ._messages import Shape, array_of, arrays_of, unwrap
from ._server_answers import cases_of

_ARRAYS = (".npy", ".npz")
_SEQUENCE = struct.Struct("<8sIIQQQ")  # the begin of docs/format.md's header of a sequence


_BUDGET = 1 << 30
_MOST_EXPERTS = 1 << 31
"""Of any engine: what has more is no number of experts."""


def read(
    path: str | os.PathLike[str],
    *,
    model: Description | None = None,
    experts: int | None = None,
    columns: int | None = None,
    k: int | None = None,
    dtype: str | None = None,
    first: int | None = None,
    budget_bytes: int = _BUDGET,
) -> dict[str, Case]:
    """The routings of a file or folder, by their names.

    - What `routecap.load` reads. A folder without .routecap files may have messages of the wire.
    - A message of the wire. All ids are kept as they are; `load` would drop cells that are wrong.
    - A server's whole answer, or a list of answers, in .json.
    - The bytes of a `routecap.Sequence`, under any name.
    - .npy with [rows, layers, k], or .npz with such an array for each name. A cell that is -1 in
      every column is missing.

    Args:
        model: By `routecap.models.describe`: gives columns (all layers of the decoder) and k,
            unless they are given.
        experts, columns, k, dtype, first: What a message, or an array, does not say.
        budget_bytes: The most memory for the arrays of a .npz: a small file can unpack to much.

    Raises:
        Error: It is none of these, or damaged.
    """
    _expect_within("first", first, 0, MAX_POSITION)
    _expect_within("experts", experts, 1, _MOST_EXPERTS)
    path = Path(path)
    shape = Shape(
        model.decoder_layers if columns is None and model else columns,
        model.k if k is None and model else k,
        dtype,
    )
    if not path.is_dir():
        return {each.name: each for each in _of_file(path, shape, experts, first, budget_bytes)}
    found: dict[str, Case] = {}
    for file in in_folder(path, ROUTING) or in_folder(path, *WIRE_ENDINGS):
        for case in _of_file(file, shape, experts, first, budget_bytes):
            name = f"{file.name}:{case.name}" if case.name in found else case.name
            found[name] = replace(case, name=name)
    return found


def _expect_within(name: str, value: int | None, least: int, most: int) -> None:
    if value is not None and not least <= value < most:
        raise error(
            Status.ERR_ARGUMENT, f"{name} is {value}: give a number from {least} to {most - 1}"
        )


def _of_file(
    path: Path, shape: Shape, experts: int | None, first: int | None, budget: int
) -> Iterator[Case]:
    ending = wire_ending(path)
    if _begin(path) == b"ROUTESEQ":
        return iter([of_sequence(path.stem, path.read_bytes())])
    if not ending and path.suffix not in (".npz", ".json"):
        return (of_sample(name, sample) for name, sample in load(path, mmap=True).items())
    try:
        cases = list(_unwrapped(path, ending, shape, budget))
    except (Error, OSError):
        raise
    except Exception as reason:  # NumPy and zipfile raise many kinds for damaged bytes
        raise error(Status.ERR_FORMAT, f"{path}: {reason or repr(reason)}") from None
    return (
        replace(
            case,
            first=case.first if first is None else first,
            experts=case.experts
            if experts is None or case.ids.ndim != 3
            else np.full(case.ids.shape[1], experts),
        )
        for case in cases
    )


def _unwrapped(path: Path, ending: str, shape: Shape, budget: int) -> Iterator[Case]:
    """The cases of a message, of arrays, or of a server's answer."""
    name = path.name.removesuffix(ending or path.suffix)
    if path.suffix in _ARRAYS:
        yield from (of_array(name, array) for name, array in _arrays(path, budget))
    elif ending:
        message = unwrap(WIRE_ENDINGS[ending], path.read_bytes(), shape)
        yield replace(of_array(name, message.ids), first=message.first)
    else:
        yield from cases_of(name, path.read_bytes(), shape)


def _arrays(path: Path, budget: int = _BUDGET) -> list[tuple[str, NDArray[Any]]]:
    return (
        arrays_of(path, budget) if path.suffix == ".npz" else [(path.stem, array_of(mapped(path)))]
    )


def _begin(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(8)


def of_sequence(name: str, data: bytes) -> Case:
    """A case from the serialised form of a sequence, with its tokens or their digests.

    Raises:
        Error: It is damaged.
    """
    sequence = Sequence.deserialize(data)
    _, _, flags, _, length, spans = _SEQUENCE.unpack_from(data)
    first, blocks = 64 + 40 * spans, -(-length // DIGEST_TOKENS)
    info = {}
    if flags & SequenceFlag.WITH_TOKENS:
        info["token_ids"] = sequence.tokens.tolist()
    return replace(
        of_sample(name, Sample(sequence.routing(), info)),
        length=length,
        digests=tuple(data[first + 16 * n :][:16] for n in range(blocks)),
    )


def read_tokens(path: str | os.PathLike[str]) -> dict[str, NDArray[np.int64]] | NDArray[np.int64]:
    """Read token ids, by names or of one sequence, from .npy [tokens]; .npz with an array for each
    name; or JSON, a list of numbers or an object with such a list for each name.

    Raises:
        Error: It is none of these.
    """
    path = Path(path)
    tokens: Any
    try:
        if path.suffix in _ARRAYS:
            arrays = dict(_arrays(path))
            tokens = arrays if path.suffix == ".npz" else arrays[path.stem]
        else:
            tokens = json.loads(path.read_bytes())
    except (Error, OSError):
        raise
    except Exception as reason:
        raise error(Status.ERR_FORMAT, f"{path}: {reason or repr(reason)}") from None
    if isinstance(tokens, dict):
        return {name: token_ids(each, f"{path}: {name}") for name, each in tokens.items()}
    return token_ids(tokens, str(path))


def token_ids(values: object, source: str) -> NDArray[np.int64]:
    """A list of token ids, checked."""
    try:
        ids = np.asarray(values)
    except ValueError:
        ids = np.zeros((), object)
    if ids.ndim != 1 or ids.dtype.kind not in "iu":
        raise error(
            Status.ERR_FORMAT,
            f"{source}: this is not a list of token ids: give one integer for each token",
        )
    if ids.size and not (-(1 << 31) <= ids.min() and ids.max() < 1 << 31):
        raise error(
            Status.ERR_FORMAT,
            f"{source}: token ids have 32 bits, and there is {max(ids.max(), -ids.min(), key=int)}:"
            " give the ids of a tokenizer",
        )
    return ids.astype(np.int64)
