"""The capturer."""

import numpy as np
from numpy.typing import NDArray

from . import _structs as structs
from ._batch_calls import BatchCalls
from ._constants import LOAD_PHASES
from ._counts import Stats
from ._docs import documented
from ._forward_path import ForwardPath
from ._library import raw
from ._load import Load
from ._open_step import OpenStep
from ._protocols import StreamLike


class Capturer(ForwardPath, BatchCalls):
    """Captures the routing of a running engine: one per rank and device.

    Settings are named in routecap.Settings:

        with routecap.Capturer(layers=58, k=8, experts=256, rows=8192, backend="cuda", device=0) as capturer:
            request = capturer.open()                           # for each sequence
            with capturer.step(tokens) as step:                 # every forward pass
                for layer in range(58): step.record(layer, topk_ids[layer])
                step.issue(spans)                               # which row was whose
            routing = request.finish(tokens - 1)                #  the last token was never input
            routing.wait(1.0)
            routing.ids()                                       # NumPy [rows, layers, k]

    A CUDA graph has `begin`, `record` and `snapshot` in it, and `issue` follows each replay.

    What is done with one request is a method of it; what is here is done with steps, and with many
    requests in one call, which are then named by their handles. Tensors are NumPy arrays
    and other buffers, torch's, and all with DLPack or __cuda_array_interface__, on the capturer's
    device. `stream` is a number or an object of torch, cupy or CUDA Python; None is the setting
    `stream`, or else the current stream of the framework whose tensor is given, or else of torch or
    cupy if one of them is in use.

    The methods that take a stream, `bind` and `sink` are for one thread at a time, and an Error
    (ERR_STATE) for a second; all others for any thread at any time. An engine's tensors must stay
    as they are until its stream has come to the work that reads them, as with any other kernel.
    """

    def step(self, rows: int, *, stream: StreamLike | None = None) -> OpenStep:
        """A step of up to `rows` rows, for a `with`: see OpenStep. All of it is on `stream`."""
        return OpenStep(self, rows, stream)

    @documented("routecap_capturer_stats")
    def stats(self) -> Stats:
        """Read the counters. Does not wait."""
        memory = structs.stats.empty()
        raw.routecap_capturer_stats(self._handle, memory)
        return Stats._make(structs.stats.read(memory))

    @documented("routecap_capturer_layer_stats")
    def layer_stats(self, layers: int | None = None) -> NDArray[np.void]:
        """Read the counters of every layer: an array of layer_stats_dtype. Does not wait."""
        counters = np.zeros(self.layers if layers is None else layers, structs.layer_stats_dtype)
        raw.routecap_capturer_layer_stats(self._handle, counters)
        return counters

    @documented("routecap_capturer_load")
    def load(self) -> Load:
        """How often each expert was chosen since the capturer was created. Needs the setting
        `load`. Two readings make a window: capturer.load().since(earlier).
        """
        memory = structs.load.empty()
        raw.routecap_capturer_load(self._handle, memory, bytearray())
        layers, experts, *_ = structs.load.read(memory)
        counts = np.zeros((LOAD_PHASES, layers, experts), np.uint64)
        raw.routecap_capturer_load(self._handle, memory, counts)
        _, _, _, steps, first_step, last_step, rows_prefill, rows_decode = structs.load.read(memory)
        config = self._config
        return Load(
            counts,
            steps,
            first_step,
            last_step,
            rows_prefill,
            rows_decode,
            layer_map=config.layer_map[:layers],
            layer_experts=config.layer_experts[:layers],
            layer_visit=config.layer_visit[:layers],
        )

    @documented("routecap_capturer_progress")
    def progress(self) -> None:
        """File the steps that have landed, on this thread. Needed with manual_progress."""
        raw.routecap_capturer_progress(self._handle)
