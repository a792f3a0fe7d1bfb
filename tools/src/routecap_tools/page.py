"""One HTML page of routings that needs nothing else: no network, no other file."""

import json
import zlib
from base64 import b64encode
from collections.abc import Callable, Iterable, Mapping
from importlib.resources import files
from typing import Any

import numpy as np
from numpy.typing import NDArray
from routecap import Missing, Routing, Sample, version
from routecap.adapter import (
    alike,
    experts_per_token,
    layer_names,
    layer_of,
    prompt_of,
    token_texts,
)
from routecap.analysis import balance, expert_load, reason_words
from routecap.colours import expert, hexadecimal, mark, ramp

_ROWS = 8192  # of a routing that can be looked at one by one: each is an element of the page
_IDS = 1 << 24  # in one page
_COLOURS = 256  # of experts, before they repeat


def page(
    samples: Mapping[str, Sample],
    layer: int | None = None,
    *,
    progress: Callable[[Any], Iterable[Any]] = iter,
) -> str:
    """The page: the text of each sample with the experts of every token, the load of the experts in
    each layer and how even it is, the experts over
    the positions, and what is missing. `layer` is the index in the decoder of the layer that is
    chosen first.

    Of long routings the page shows the first rows, and says so; their load is that of all rows.
    `progress` wraps what is iterated over, as tqdm does.
    """
    groups, written = [], []
    ids = sum(
        sample.routing.layers * sample.routing.k * min(sample.routing.rows, _ROWS)
        for sample in samples.values()
    )
    share = min(_IDS / max(ids, 1), 1)
    for number, group in enumerate(alike(samples)):
        like = next(iter(group.values())).routing
        total = np.zeros((like.layers, like.experts), np.int64)
        tokens = np.zeros(like.layers, np.int64)
        for name, sample in progress(group.items()):
            load, of_sample = expert_load(sample.routing), sample.routing.mask().sum(axis=0)
            total += load
            tokens += of_sample
            shown = _sample(sample, share)
            shown["load"] = _load(load, of_sample, sample.routing)
            written.append({"name": name, "group": number, **shown})
        groups.append(
            {
                "layers": layer_names(like.layer_map, like.layer_visit),
                "experts": like.layer_experts.tolist(),
                "k": like.k,
                "per_token": experts_per_token(like.layer_k, like.layer_min_k),
                "chosen": 0 if layer is None else layer_of(like, layer),
                "load": _load(total, tokens, like),
            }
        )
    themes = {
        name: {
            "ramp": [hexadecimal(step) for step in ramp(dark)],
            "experts": [hexadecimal(expert(number, dark)) for number in range(_COLOURS)],
            "marks": [hexadecimal(mark(number, dark)) for number in range(_COLOURS)],
        }
        for name, dark in (("light", False), ("dark", True))
    }
    reasons = {int(reason): reason_words(reason) for reason in Missing}
    about = {
        "version": ".".join(map(str, version())),
        "themes": themes,
        "reasons": reasons,
        "groups": groups,
        "samples": written,
    }
    data = json.dumps(about, separators=(",", ":")).replace("<", "\\u003c")
    template = files("routecap_tools").joinpath("page.html").read_text(encoding="utf-8")
    return template.replace(
        "<!-- data -->", f'<script type="application/json" id="data">{data}</script>'
    )


def _sample(sample: Sample, share: float) -> dict[str, Any]:
    routing, coverage = sample.routing, sample.routing.coverage()
    shown = routing[: int(min(routing.rows, _ROWS) * share)]
    texts, tags = token_texts(sample), np.unique(routing.tags)
    return {
        "first": routing.first,
        "rows": routing.rows,
        "shown": shown.rows,
        "prompt": prompt_of(sample),
        "tokens": texts if texts is None else texts[: shown.rows],
        "cells": routing.rows * routing.layers,
        "missing": coverage.cells_missing,
        "tags": [str(tag) for tag in (tags if len(tags) < 2 else tags[[0, -1]])],
        "ids": _ids(shown),
    }


def _ids(routing: Routing) -> str:
    """[rows, layers, k] in 16 bits, little endian, compressed; in a missing cell 65535 - its
    Missing, and 65535 in columns without an expert.
    """
    ids, reasons = routing.masked(np.uint16, none=-1)[0], routing.reasons()
    ids[reasons > 0] = 65535 - reasons[reasons > 0, None].astype(np.uint16)
    return b64encode(zlib.compress(ids.astype("<u2").tobytes(), 9)).decode()


def _load(load: NDArray[np.int64], tokens: NDArray[np.int64], like: Routing) -> dict[str, Any]:
    """The load [layers, experts], and of how many tokens it is, [layers]."""
    figures = balance(load, like.layer_experts)._asdict()
    return {
        "tokens": tokens.tolist(),
        "counts": [row[:experts].tolist() for row, experts in zip(load, like.layer_experts)],
        **{
            name: [None if value != value else round(value, 4) for value in column.tolist()]
            for name, column in figures.items()
        },
    }
