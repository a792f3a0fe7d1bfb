"""What is examined: the routing of one sequence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from routecap import Sample, Status
from routecap.adapter import error


@dataclass(frozen=True, eq=False)
class Case:
    """The routing of one sequence, as a file has it."""

    name: str
    ids: NDArray[Any]
    """As stored: [rows, layers, k] if it is routing."""
    valid: NDArray[np.bool_]
    """[rows, layers] True for cells that are not missing."""
    first: int = 0
    """Position of the first row."""
    layer_map: tuple[int, ...] | None = None
    """Index of each layer in the decoder; None: the file does not say."""
    experts: NDArray[np.int64] | None = None
    """[layers] how many experts each layer has; None: the file does not say."""
    reasons: NDArray[np.uint8] | None = None
    """[rows, layers] why cells are missing (`Missing`), or 0; None: the file does not say."""
    info: Mapping[str, Any] = field(default_factory=dict)
    """What else is known of it (see `Sample`)."""
    length: int | None = None
    """How many tokens there are; None: the file does not say."""
    digests: tuple[bytes, ...] = ()
    """For each block of `DIGEST_TOKENS` tokens the digest of all tokens up to its end, if the file
    has them.
    """


def of_array(name: str, ids: NDArray[Any]) -> Case:
    """A case from ids alone."""
    if ids.ndim != 3 or ids.dtype.kind not in "iu":
        return Case(name, ids, np.zeros((0, 0), bool))
    return Case(
        name,
        ids,
        (ids != -1).any(axis=2) if ids.dtype.kind == "i" else np.ones(ids.shape[:2], bool),
    )


def of_sample(name: str, sample: Sample) -> Case:
    """A case from what `load` gives.

    Raises:
        Error: Cells may have fewer than k experts, or layers are there several times: what is looked
            for in the others is no fault in these.
    """
    routing = sample.routing
    if (routing.layer_min_k < routing.k).any() or routing.layer_visit.any():
        raise error(
            Status.ERR_SHAPE_MISMATCH,
            f"{name} has layers whose cells may have fewer than {routing.k} experts, or that ran"
            " again: give routings of models that choose as many for each token of each layer",
        )
    return Case(
        name,
        *routing.masked(),
        first=routing.first,
        layer_map=tuple(routing.layer_map.tolist()),
        experts=routing.layer_experts.astype(np.int64),
        reasons=routing.reasons(),
        info=sample.info,
    )
