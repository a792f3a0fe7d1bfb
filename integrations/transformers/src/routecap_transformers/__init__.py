"""Capture from models of Hugging Face transformers, without a patch:

    with routecap_transformers.attach(model) as capture:
        out = model.generate(**inputs, max_new_tokens=64)
        routings = capture.take()                               # one Routing for each row of `out`

It needs torch, and imports no transformers of its own. README.md of the package says what is
captured and what is refused.
"""

from ._capture import Capture, attach, detach
from ._taps import Tap, find

for _each in (Capture, Tap):
    _each.__module__ = __name__  # where users find them

__all__ = ["Capture", "Tap", "attach", "detach", "find"]
