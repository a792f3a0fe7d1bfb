"""Check that DeepEP v2 had each token computed by the experts that its router chose: Python's way to
routecap/dispatch_check.h, in the library as it imports nothing of DeepEP. Experimental.

    import routecap.deepep

    dispatches = []                                 # of one step
    # behind each dispatch:
    recv_x, recv_topk_idx, weights, handle, event = buffer.dispatch(x=x, topk_idx=topk_ids, ...)
    dispatches.append(routecap.deepep.Dispatch(handle, topk_ids, recv_topk_idx))
    # behind the last layer, on all ranks:
    checked = routecap.deepep.check(dispatches, group)
    # whenever the numbers are wanted:
    for counts in checked.read():
        assert counts.right, counts

A step costs one all-reduce, and two small kernels for each dispatch. `check` waits for nothing on
the host, so it may be part of a CUDA graph; `read` waits.

Written against DeepEP at revision dd758ca (deep_ep.ElasticBuffer) and vLLM's class
DeepEPV2PrepareAndFinalize at 02bd2a4. Other handles are refused, those of DeepEP 2.5 too, whose
experts move between ranks.
"""

import atexit
import threading
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed

from . import _received as received
from ._capturer import Capturer
from ._constants import Backend, Status
from ._errors import error
from ._received import Counts

__all__ = ["Checked", "Counts", "Dispatch", "check"]

_HANDLE = "deep_ep.buffers.elastic.EPHandle"
_REVISION = "DeepEP at revision dd758ca"
_V2_5 = "deep_ep.buffers.ep.EPHandle"


class Dispatch(NamedTuple):
    """One call of ElasticBuffer.dispatch: of one layer, or of one micro-batch of it."""

    handle: Any
    """What dispatch returned. Its tensors must stay as they are until `check` has run."""
    topk_ids: Any
    """[tokens, k] what the router of this rank chose: not handle.topk_idx, which is what was sent.
    With load balancing, the ids behind the balancer.
    """
    recv_topk_idx: Any = None
    """What dispatch returned; None with do_expand=True."""
    global_ids: bool = False
    """The engine has made recv_topk_idx global in place before `check`, as vLLM's class does. All
    that is not a live row's must then be -1.
    """


class Checked:
    """What a check found. In a CUDA graph: what the last replay found.

    Attributes:
        counts: [dispatches, counters] of int64 on the device, in the order of Counts.
    """

    def __init__(self, counts: torch.Tensor) -> None:
        self.counts = counts

    def read(self) -> list[Counts]:
        """The counts of each dispatch. Waits for the current stream."""
        return [Counts(*each) for each in self.counts.tolist()]


def check(dispatches: Sequence[Dispatch], group: Any = None) -> Checked:
    """Compare the experts that executed each token with those that its router chose.

    All ranks of the group make this call, with the same number of dispatches in the same order.
    Each counts its own tokens, and what it received that cannot be right.

    Args:
        dispatches: All of a step: layers, and micro-batches.
        group: The one that DeepEP's buffer has. Default: all ranks.

    Returns:
        The counts of each dispatch; `read` waits for them.
    """
    ranks = torch.distributed.get_world_size(group)
    rank = torch.distributed.get_rank(group)
    if not dispatches:
        raise error(Status.ERR_ARGUMENT, "there are no dispatches to check: give those of a step")
    described = [_Handle(each.handle) for each in dispatches]
    cells = [ranks * each.tokens_per_rank * each.k for each in described]
    on = described[0].metadata.device
    # Zeroed at once, and next to one another, so that one all-reduce adds them up.
    executed = torch.zeros(sum(cells), dtype=torch.int32, device=on)
    counts = torch.zeros(len(cells), len(Counts._fields), dtype=torch.int64, device=on)
    tables = [
        received.Table(table, row, ranks, rank, each.experts, each.tokens_per_rank)
        for table, row, each in zip(executed.split(cells), counts, described)
    ]
    with _lock:
        capturer = _capturer(on)
        for table, dispatch, handle in zip(tables, dispatches, described):
            handle.expect_columns(dispatch.topk_ids)
            received.read(capturer, table, **handle.tensors(dispatch))
    torch.distributed.all_reduce(executed, group=group)
    with _lock:
        for table, dispatch in zip(tables, dispatches):
            received.compare(capturer, table, dispatch.topk_ids)
    return Checked(counts)


class _Handle:
    """What is needed of DeepEP's handle, each by its name."""

    def __init__(self, handle: object) -> None:
        names = [f"{each.__module__}.{each.__qualname__}" for each in type(handle).__mro__]
        if _V2_5 in names:
            raise error(
                Status.ERR_ARGUMENT,
                f"the handle is DeepEP 2.5's {_V2_5}: routecap.deepep does not know where its"
                f" experts are, which move between ranks. It knows {_HANDLE} of {_REVISION}",
            )
        if _HANDLE not in names:
            raise error(
                Status.ERR_ARGUMENT,
                f"the handle is a {names[0]}: routecap.deepep knows {_HANDLE} of {_REVISION}. Give"
                " what ElasticBuffer.dispatch returned fourth",
            )
        self._handle = handle
        self.expanded: bool = self._of("do_expand")
        self.experts: int = self._of("num_experts")
        self.tokens_per_rank: int = self._of("num_max_tokens_per_rank")
        self.metadata: torch.Tensor = self._of("recv_src_metadata")
        self.k: int = self.metadata.shape[1] - 2

    def _of(self, name: str) -> Any:
        try:
            return getattr(self._handle, name)
        except AttributeError:
            raise error(
                Status.ERR_ARGUMENT,
                f"{_HANDLE} has no {name}: routecap.deepep was written against {_REVISION}, and"
                " this is another one. Install that revision",
            ) from None

    def expect_columns(self, topk_ids: Any) -> None:
        if len(topk_ids.shape) == 2 and topk_ids.shape[1] != self.k:
            raise error(
                Status.ERR_SHAPE_MISMATCH,
                f"topk_ids has {topk_ids.shape[1]} columns, {self.k} were dispatched: give the ids"
                " that the dispatch was called with, shared experts included",
            )

    def tensors(self, dispatch: Dispatch) -> dict[str, Any]:
        live_rows = self._of("psum_num_recv_tokens_per_scaleup_rank")[-1:]
        common = {"metadata": self.metadata, "live_rows": live_rows}
        if self.expanded:
            if dispatch.recv_topk_idx is not None or dispatch.global_ids:
                raise error(
                    Status.ERR_ARGUMENT,
                    "the handle is of do_expand=True, whose rows have no ids: leave recv_topk_idx"
                    " and global_ids out",
                )
            return {
                **common,
                "expert_ends": self._of("psum_num_recv_tokens_per_expert"),
                "expert_alignment": self._of("expert_alignment"),
                "expanded_rows": self._of("num_expanded_tokens"),
            }
        if dispatch.recv_topk_idx is None:
            raise error(
                Status.ERR_ARGUMENT,
                "recv_topk_idx is None, and the handle is of do_expand=False: give what"
                " ElasticBuffer.dispatch returned second",
            )
        return {**common, "ids": dispatch.recv_topk_idx, "global_ids": dispatch.global_ids}


# The library's kernels and streams belong to a capturer. This one captures nothing.
_lock = threading.Lock()
_capturers: dict[torch.device, Capturer] = {}


def _capturer(device: torch.device) -> Capturer:
    if device not in _capturers:
        _capturers[device] = Capturer(
            layers=1,
            k=1,
            experts=1,
            rows=1,
            slots=1,
            manual_progress=True,
            backend=Backend.HOST if device.type == "cpu" else Backend.CUDA,
            device=device,
        )
        atexit.register(_capturers[device].close)
    return _capturers[device]
