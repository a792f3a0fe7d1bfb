"""What stands in for objects of SGLang: it says what the adapter reads of it."""

import sys
import types


class Watched:
    """Says what the adapter reads of it, and may lack one of these: by another name, say.

    asked: (class, attribute) of what the adapter asked for. lacks: one that it does not find.
    """

    asked, lacks = set(), None

    def __getattribute__(self, name):
        if not name.startswith("__") and sys._getframe(1).f_globals["__name__"].startswith(
            "routecap_sglang"
        ):
            what = (type(self).__name__, name)
            Watched.asked.add(what)
            if what == Watched.lacks:
                raise AttributeError(f"{what[0]} has no {name}")
        return super().__getattribute__(name)


class Known(Watched, types.SimpleNamespace):
    """What it is made of."""
