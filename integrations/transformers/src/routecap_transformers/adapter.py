"""What others need to follow models of transformers as a capture does: `routecap_replay`."""

from ._inputs import Inputs, cached_columns, inputs_of, runs_of
from ._places import expect_known
from ._taps import expect_model, stack_of
from ._versions import KNOWN

__all__ = [
    "KNOWN",
    "Inputs",
    "cached_columns",
    "expect_known",
    "expect_model",
    "inputs_of",
    "runs_of",
    "stack_of",
]
