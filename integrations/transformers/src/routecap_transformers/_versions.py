"""Which releases of transformers routecap is checked with."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass

FIRST, LAST = (5, 10), (5, 24)
"""Every minor release from the first to the last, with all its patches."""
KNOWN = f"{FIRST[0]}.{FIRST[1]} to {LAST[0]}.{LAST[1]}"


@dataclass(frozen=True)
class Options:
    """In the environment as ROUTECAP_TRANSFORMERS_ and the field's name in capitals."""

    unchecked: bool = False
    """Run in a release that routecap is not checked with, if it has all places that routecap hooks
    and reads."""


def number() -> str | None:
    """Of the transformers that this process has imported; None: it has not."""
    module = sys.modules.get("transformers")
    return None if module is None else str(getattr(module, "__version__", "without a version"))


def is_checked(release: str) -> bool:
    """Not what comes before a release: nobody has seen that."""
    found = re.fullmatch(r"(\d+)\.(\d+)(\.\d+)*(\.post\d+)?(\+.*)?", release)
    return found is not None and FIRST <= (int(found[1]), int(found[2])) <= LAST
