"""Traces: one table of all rows, in the order in which an engine computed them.

    from routecap_tools import traces

    table = traces.trace(routecap.load("run.tar"))
    traces.write("run.parquet", table)             # or .csv, .jsonl
    needed = table.needed(layer=3)                 # the experts that each step needs
    print(routecap.experts.hit_rates(needed))

Each row has its request, its position, the phase and the engine's step. That is what simulators of
caches, of prefetching and of offloading begin with.
"""

import csv
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from routecap import ArgumentError, Phase, Routing, Sample, Status, experts
from routecap.adapter import alike, error, layers_of, prompt_of, steps_of

__all__ = ["ENDINGS", "Trace", "trace", "write"]

ENDINGS = (".csv", ".jsonl", ".parquet")
"""Of the files that `write` writes."""
_CELLS = 1 << 16  # that are written at a time
_UNKNOWN = -1


class Trace(NamedTuple):
    """The rows of several requests, by step, and within a step by request and position."""

    names: list[str]
    """Of the requests."""
    request: NDArray[np.int32]
    """[rows] of whom a row is: an index into `names`."""
    position: NDArray[np.int64]
    """[rows] of its token in the sequence, from 0 on."""
    phase: NDArray[np.int8]
    """[rows] a Phase: PREFILL for tokens of the prompt, DECODE for those behind it; -1 if the length
    of the prompt is not known."""
    step: NDArray[np.int64]
    """[rows] the number of the engine's step that computed it; -1 if that is not known."""
    rows: Routing
    """The ids, tags and missing cells of all rows, in the order of the table: row i is at i."""

    def needed(self, layer: int) -> list[NDArray[np.int64]]:
        """The experts of one layer that each step needs, over all requests: `experts.needed`.
        `layer` is the index in the decoder. Rows without a step are left out.

        Raises:
            ValueError: No row has a step, and there is more than one request.
        """
        there = np.flatnonzero(self.step != _UNKNOWN)
        if len(there) == 0 and len(self.names) > 1:
            raise ValueError(
                "nobody knows the steps of these rows, and several requests may have shared one:"
                ' give trace(samples, steps=...), or save samples with info["steps"]'
            )
        start = int(there[0]) if len(there) else 0  # the table begins with what has none
        return experts.needed(self.rows[start:], layer, [self.step[start:]] if len(there) else None)


def trace(
    samples: Mapping[str, Sample | Routing], steps: Mapping[str, Any] | str | None = None
) -> Trace:
    """The table of all rows of some requests of one model.

    Args:
        samples: By the name of the request. What `routecap.load` gives has the length of the prompt
            and the steps, if they were saved with it: info["prompt_tokens"], info["steps"].
        steps: For each name the steps of its rows, [rows] of integers in any numbering that ascends
            with time, -1 where none computed a row. "tags": the rows' tags are steps. Default: what
            the samples say.

    Raises:
        ValueError: Requests are of different models; some have steps and some have not; or steps
            have another shape than the rows.
    """
    given = {
        name: each if isinstance(each, Sample) else Sample(each) for name, each in samples.items()
    }
    if len(alike(given)) != 1:
        raise error(
            Status.ERR_SHAPE_MISMATCH,
            f"{len(given)} requests are of {len(alike(given))} models: give those of one model",
        )
    found = {name: _steps(name, sample, steps) for name, sample in given.items()}
    without = [name for name, each in found.items() if each is None]
    if without and len(without) < len(found):
        raise error(
            Status.ERR_ARGUMENT,
            f"{without[0]} has no steps, and others have: give those of all requests",
        )
    routings = [sample.routing for sample in given.values()]
    request = np.repeat(np.arange(len(given), dtype=np.int32), [each.rows for each in routings])
    position = np.concatenate([each.first + np.arange(each.rows) for each in routings])
    prompts = [prompt_of(sample) for sample in given.values()]
    prompt = np.array([-1 if each is None else each for each in prompts])[request]
    phase = np.where(position < prompt, Phase.PREFILL, Phase.DECODE)
    step = np.concatenate(
        [np.full(sample.routing.rows, _UNKNOWN) if each is None else each
         for sample, each in zip(given.values(), found.values())]
    )  # fmt: skip
    order = np.lexsort((position, request, step))
    return Trace(
        list(given),
        request[order],
        position[order].astype(np.int64),
        np.where(prompt < 0, _UNKNOWN, phase)[order].astype(np.int8),
        step[order].astype(np.int64),
        _together(routings, order),
    )


def _steps(
    name: str, sample: Sample, given: Mapping[str, Any] | str | None
) -> NDArray[np.int64] | None:
    if given is None:
        return steps_of(sample)
    if isinstance(given, str):
        if given != "tags":
            raise error(
                Status.ERR_ARGUMENT, f'steps is {given!r}: give "tags", or steps for each request'
            )
        tags = sample.routing.tags
        if (tags > np.iinfo(np.int64).max).any():
            raise error(
                Status.ERR_ARGUMENT, f"a tag of {name} is {tags.max()}: that is no number of a step"
            )
        return tags.astype(np.int64)
    if name not in given:
        raise error(Status.ERR_ARGUMENT, f"steps has none of {name}: give those of all requests")
    steps = np.asarray(given[name])
    if steps.shape != (sample.routing.rows,) or steps.dtype.kind not in "iu":
        raise error(
            Status.ERR_SHAPE_MISMATCH,
            f"steps of {name} are {steps.dtype} of shape {steps.shape}: give an integer for each of"
            f" its {sample.routing.rows} rows",
        )
    if (steps < _UNKNOWN).any():
        raise error(
            Status.ERR_ARGUMENT,
            f"a step of {name} is {steps.min()}: give numbers from 0 on, -1 where none computed it",
        )
    return steps.astype(np.int64)


def _together(routings: list[Routing], order: NDArray[np.intp]) -> Routing:
    """One routing of the rows of all, in this order."""
    like = routings[0]
    masked = [each.masked(np.int16) for each in routings]
    return Routing.from_arrays(
        np.concatenate([ids for ids, _ in masked])[order],
        valid=np.concatenate([valid for _, valid in masked])[order],
        reasons=np.concatenate([each.reasons() for each in routings])[order],
        tags=np.concatenate([each.tags for each in routings])[order],
        id_space=like.id_space,
        none=-1,
        trusted=True,  # these came out of routings
        **layers_of(like),
    )


# ---- Files


def write(
    path: str | os.PathLike[str],
    table: Trace,
    *,
    progress: Callable[[Any], Iterable[Any]] = iter,
) -> int:
    """Write a trace to a file, a line for each valid cell: request, position, phase, step, tag,
    layer (the index in the decoder), visit (how often a looped decoder ran the layer before) and the
    experts. Cells that are missing have no line. Returns how many were written.

    The ending of the name says how: ``.csv`` has the experts in columns expert_0 and up; ``.jsonl``
    has an object on each line with "experts" as an array; ``.parquet`` has them as a list of k, and
    needs pyarrow. What is not known is empty in CSV, and null in the others; so is what a cell with
    fewer than k experts lacks, but in ``.jsonl``, whose arrays are shorter.
    """
    path = Path(path)
    writers: dict[str, Any] = dict(zip(ENDINGS, (_write_csv, _write_jsonl, _write_parquet)))
    if path.suffix not in writers:
        raise ArgumentError(
            Status.ERR_ARGUMENT,
            f"{path} ends in {path.suffix!r}: name a file that ends in {', '.join(ENDINGS)}",
        )
    part = path.with_name(path.name + ".part")
    try:
        count: int = writers[path.suffix](part, table, progress)
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)
    return count


class _Lines(NamedTuple):
    """Some lines of a file, column by column."""

    request: list[str]
    position: list[int]
    phase: list[str | None]
    step: list[int | None]
    tag: list[int]
    layer: list[int]
    visit: list[int]
    experts: NDArray[np.int32]
    """Negative where there is none."""

    def chosen(self) -> list[list[int | None]]:
        """The experts of each line, None where there is none."""
        return [[each if each >= 0 else None for each in line] for line in self.experts.tolist()]


def _lines(table: Trace, progress: Callable[[Any], Iterable[Any]]) -> Iterator[_Lines]:
    at_a_time = max(_CELLS // max(table.rows.layers, 1), 1)
    phases = {_UNKNOWN: None, **{int(each): each.name.lower() for each in Phase}}
    for start in progress(range(0, table.rows.rows, at_a_time)):
        part = table.rows[start : start + at_a_time]
        ids, valid = part.masked(np.int32)
        row, layer = np.nonzero(valid)
        at = start + row
        yield _Lines(
            [table.names[each] for each in table.request[at].tolist()],
            table.position[at].tolist(),
            [phases[each] for each in table.phase[at].tolist()],
            [None if each == _UNKNOWN else each for each in table.step[at].tolist()],
            part.tags[row].tolist(),
            table.rows.layer_map[layer].tolist(),
            table.rows.layer_visit[layer].tolist(),
            ids[valid],
        )


def _write_csv(path: Path, table: Trace, progress: Callable[[Any], Iterable[Any]]) -> int:
    count = 0
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([*_Lines._fields[:-1], *(f"expert_{i}" for i in range(table.rows.k))])
        for lines in _lines(table, progress):
            for *before, chosen in zip(*lines[:-1], lines.chosen()):
                writer.writerow([*before, *chosen])
            count += len(lines.experts)
    return count


def _write_jsonl(path: Path, table: Trace, progress: Callable[[Any], Iterable[Any]]) -> int:
    count = 0
    with path.open("w", encoding="utf-8") as file:
        for lines in _lines(table, progress):
            for *before, chosen in zip(*lines[:-1], lines.chosen()):
                there = [each for each in chosen if each is not None]
                file.write(json.dumps(dict(zip(_Lines._fields, (*before, there)))) + "\n")
            count += len(lines.experts)
    return count


def _write_parquet(path: Path, table: Trace, progress: Callable[[Any], Iterable[Any]]) -> int:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise ImportError(
            "pyarrow is needed for this: pip install 'routecap-tools[parquet]'"
        ) from None
    kinds = (
        pyarrow.string(), pyarrow.int64(), pyarrow.string(), pyarrow.int64(), pyarrow.uint64(),
        pyarrow.int32(), pyarrow.int32(), pyarrow.list_(pyarrow.int32(), table.rows.k),
    )  # fmt: skip
    count = 0
    with parquet.ParquetWriter(path, pyarrow.schema(zip(_Lines._fields, kinds))) as writer:
        for lines in _lines(table, progress):
            flat = pyarrow.array(lines.experts.ravel(), mask=lines.experts.ravel() < 0)
            columns = [pyarrow.array(each, kind) for each, kind in zip(lines[:-1], kinds)]
            columns.append(pyarrow.FixedSizeListArray.from_arrays(flat, table.rows.k))
            writer.write_batch(pyarrow.record_batch(columns, schema=writer.schema))
            count += len(lines.experts)
    return count
