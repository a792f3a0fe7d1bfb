"""Capture of routed experts in vLLM.

`pip install routecap` registers a plugin of vLLM, which does nothing until it is asked for: by
ROUTECAP_VLLM=1 or by its name, routecap, in VLLM_PLUGINS, for engines with
`--enable-return-routed-experts`. Programs may call `install` instead.

Each generation of vLLM has a face of its own, a module here that says what of the engine is
replaced; what is below them is the same for all.
"""

from __future__ import annotations

import logging
import os
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version

__all__ = ["install", "plugin"]

logger = logging.getLogger("vllm.routecap")

_FACES = {"0.21": "_v021"}  # by the beginning of vLLM's version
_ASKED = "ROUTECAP_VLLM"


def plugin() -> None:
    """What vLLM calls in each of its processes, if this package is installed."""
    if not _is_asked():
        return
    known = ", ".join(_FACES)
    face = _face()
    if face is None:
        logger.error(
            "routecap knows vLLM %s, not %s: routed experts are vLLM's own", known, _version()
        )
        return
    install()
    logger.info("routecap captures routed experts in vLLM %s (it knows %s)", _version(), known)


def install(name: str | None = None) -> None:
    """Capture with routecap in the engines of this process that are made from now on, and in the
    processes that they start. May be called again.

    With the name of a module, only that is replaced, by `routed_experts_capturer`: for engines of
    another name that have the module of vLLM 0.21.

    Raises:
        RuntimeError: vLLM is of a generation that is not known here, or its own capturer is in use.
    """
    if name is not None:
        import_module("._v021", __name__).own_module(name)
        return
    face = _face()
    if face is None:
        raise RuntimeError(f"routecap knows vLLM {', '.join(_FACES)}, not {_version()}")
    import_module(face, __name__).apply()
    os.environ[_ASKED] = "1"


def _is_asked() -> bool:
    named = "routecap" in os.environ.get("VLLM_PLUGINS", "").split(",")
    return named or os.environ.get(_ASKED, "").lower() in ("1", "true", "yes", "on")


def _version() -> str:
    try:
        return version("vllm")
    except PackageNotFoundError:
        return "of no version"


def _face() -> str | None:
    found = _version()
    return next(
        (f".{module}" for known, module in _FACES.items() if found.startswith(f"{known}.")), None
    )
