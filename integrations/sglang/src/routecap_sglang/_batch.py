"""Whose the rows of a pass are, as SGLang says it."""

from __future__ import annotations

import functools
import logging
from collections.abc import Sequence
from typing import Any

from ._capturer import NOBODYS, Batch, Place

logger = logging.getLogger(__name__)


def batch_of(
    forward_batch: Any,
    place: Place,
    splits: Sequence[str],
    buckets: bool,
    in_graph: bool,
    graph_requests: int | None,
) -> Batch:
    """What SGLang says of a pass. Looks at nothing on the device.

    splits: fields of a pass that say that its rows are divided over ranks.
    buckets: whether a prefill is padded to the size of its graph before it says how many rows each
        rank has.
    """
    mode = forward_batch.forward_mode
    # By name_requests, a hook of ours. Passes that warm up or capture a graph have no requests.
    requests = getattr(forward_batch, "routecap", None) or []
    split = any(getattr(forward_batch, each) is not None for each in splits)
    if not requests or mode.is_idle() or split or mode.is_dllm_extend():
        return NOBODYS
    verify, decode = mode.is_target_verify(), mode.is_decode()
    each = int(forward_batch.spec_info.draft_token_num) if verify else 1
    padded = graph_requests * each if graph_requests and (verify or decode) else None
    sink_row = _first_row(forward_batch, buckets, in_graph, padded) if place.sliced else 0
    if sink_row is None:
        return NOBODYS
    if verify or decode and forward_batch.seq_lens_cpu is None:
        positions = forward_batch.positions
        if sink_row:
            import torch

            positions = torch.nn.functional.pad(positions, (sink_row, 0))
        kind = "verify" if verify else "decode"
        return Batch(kind, requests, sink_row, None, each, positions)
    if decode:
        lengths = forward_batch.seq_lens_cpu[: len(requests)]  # behind them is padding
        return Batch("decode", requests, sink_row, lengths.numpy() - 1)
    firsts, counts = forward_batch.extend_prefix_lens_cpu, forward_batch.extend_seq_lens_cpu
    return Batch("prefill", requests, sink_row, list(firsts), list(counts))


def _first_row(forward_batch: Any, buckets: bool, in_graph: bool, padded: int | None) -> int | None:
    """Where a slice begins among the rows that the routers saw; None if that is not known.

    padded: how many rows each rank has in a graph of decodes or of verified drafts.
    """
    from sglang.srt.layers.dp_attention import get_dp_local_slice_cpu

    mode = forward_batch.dp_padding_mode  # of what is no graph of decodes
    if in_graph and mode is not None:  # a graph of prefills, whatever this rank computes in it
        in_graph, padded = not (buckets and mode.is_max_len()), None
    if in_graph and padded is None:
        say_that_prefills_are_missing()
        return None
    return int(get_dp_local_slice_cpu(forward_batch, in_graph, padded)[0])


@functools.cache
def say_that_prefills_are_missing() -> None:
    """Once in a process."""
    logger.warning(
        "routed experts: under data-parallel attention the rows of these prefills in CUDA graphs "
        "are missing: give --disable-prefill-cuda-graph, which older releases call "
        "--disable-piecewise-cuda-graph"
    )
