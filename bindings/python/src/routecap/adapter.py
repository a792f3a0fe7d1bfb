"""What adapters of engines, and tools beside the library, are built with beyond `routecap` itself.

An engine's adapter captures by a routecap.Capturer; here is what it needs to make one for the
engine's device, to record and issue at the least cost, and to hand rows on. A user of an adapter
needs nothing of this module. It imports no framework: what works on tensors of torch imports torch
when it is called.

    device       backend_of, expect_device, capturer_on, capturing_on, takes_tensors
    a pass       HeldIds, Choice, kept_weights, in_backward, KeptSpans, issue_prepared,
                 raw_stream_of, describe, Tensor
    rows         to_array, to_packed, Outbox, slice_table
    settings     option_values, expect_port, has_experts_field
    files        ROUTING, WIRE_ENDINGS, wire_ending, kind_to_write, in_folder, mapped
    layers       layer_names, layers_of, experts_per_token
    samples      alike, layer_of, prompt_of, steps_of, token_texts
    the rest     error, wire_fact, library_path
"""

from __future__ import annotations

from ._dense import to_array, to_packed
from ._devices import backend_of, capturer_on, capturing_on, expect_device, takes_tensors
from ._environment import expect_port, option_values
from ._errors import error
from ._files import WIRE_ENDINGS, kind_to_write, wire_ending
from ._held import Choice, HeldIds
from ._kept_spans import KeptSpans, issue_prepared, raw_stream_of
from ._kept_weights import kept_weights
from ._layers import experts_per_token, layer_names, layers_of
from ._library import path as library_path
from ._mapped import ROUTING, in_folder, mapped
from ._message import wire_fact
from ._outbox import Outbox
from ._protocols import Tensor
from ._samples import alike, layer_of, prompt_of, steps_of, token_texts
from ._serialized import slice_table
from ._tensors import describe
from .models import has_experts_field

__all__ = [
    "ROUTING",
    "WIRE_ENDINGS",
    "Choice",
    "HeldIds",
    "KeptSpans",
    "Outbox",
    "Tensor",
    "alike",
    "backend_of",
    "capturer_on",
    "capturing_on",
    "describe",
    "error",
    "expect_device",
    "expect_port",
    "experts_per_token",
    "has_experts_field",
    "in_backward",
    "in_folder",
    "issue_prepared",
    "kept_weights",
    "kind_to_write",
    "layer_names",
    "layer_of",
    "layers_of",
    "library_path",
    "mapped",
    "option_values",
    "prompt_of",
    "raw_stream_of",
    "slice_table",
    "steps_of",
    "takes_tensors",
    "to_array",
    "to_packed",
    "token_texts",
    "wire_ending",
    "wire_fact",
]


def in_backward() -> bool:
    """Whether autograd runs on this thread: a router that runs then, runs again."""
    import torch

    return bool(torch._C._current_graph_task_id() != -1)
