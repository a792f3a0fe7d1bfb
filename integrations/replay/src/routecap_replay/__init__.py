"""Replay of captured routing in training: routers choose the experts that the generation had.

    routecap_replay.transformers    models of Hugging Face transformers
    routecap_replay.megatron        Megatron-Core 0.16 to 0.19
    routecap_replay.automodel       NeMo Automodel 0.7
    routecap_replay.torchtitan      torchtitan 0.3
    routecap_replay.verl            verl 0.9, by its plugins
    routecap_replay.slime           slime and miles, by their custom paths

Import the one that you need; each needs torch and imports nothing of its trainer before it is used.
All of them promise the same:

- Rows are bound to routers by the layer's index in the decoder, never by order.
- Each router takes its rows exactly once in a forward pass. Otherwise a `ReplayError` names it.
- What activation checkpointing runs again in backward chooses what its own forward pass chose, in
  whatever order passes go backward.
- A row that is missing, or is no choice of k experts, is routed live, on the device, and counted.
- `record()` of a rank's replay gives what its routers choose by themselves, each pass once.
- Weights of the experts are the live scores at the replayed ids, so gradients are as without
  replay; or, where they are asked for, the captured ones, through which no gradient goes.
"""

from ._recording import Recording
from ._report import LayerReport, ReplayError, Report

for _each in (LayerReport, Recording, ReplayError, Report):
    _each.__module__ = __name__  # where users find them

__all__ = ["LayerReport", "Recording", "ReplayError", "Report"]
