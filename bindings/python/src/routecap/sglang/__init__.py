"""Capture of routed experts in SGLang.

`pip install routecap` registers a plugin of SGLang, which does nothing until it is asked for: by
its name, routecap, in SGLANG_PLUGINS, or by ROUTECAP_SGLANG=1. Programs may call `install` instead,
before they make an engine.

It takes the place of SGLang's own capturer: the same flag of the server, the same fields of a
request, the same answers. With ROUTECAP_SGLANG=beside SGLang's own goes on, and answers. In both
ways the routings of all requests can go to a function or to a folder (`Options`).
"""

from __future__ import annotations

import logging
import os
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version

from ._options import ASKED, Options
from ._sinks import Finished

__all__ = ["Finished", "Options", "install", "plugin"]

logger = logging.getLogger("sglang.srt.routecap")

_KNOWN = {"0.5.23": "_v0523"}  # SGLang's version, and the module that says what of it is replaced


def plugin() -> None:
    """What SGLang calls in each of its processes, if this package is installed."""
    if not _is_asked():
        return
    face = _KNOWN.get(_version())
    if face is None:
        logger.error(
            "routecap knows SGLang %s, not %s: routed experts are SGLang's own. Install a version "
            "that it knows",
            ", ".join(_KNOWN),
            _version(),
        )
        return
    import_module(f".{face}", __name__).register(Options.from_environment())


def install(options: Options | None = None) -> None:
    """Capture with routecap in the engines that this process makes from now on.

    Raises:
        RuntimeError: This is no version of SGLang that is known here, or its processes could not
            find the plugin: SGLANG_PLUGINS does not name it.
    """
    if _version() not in _KNOWN:
        raise RuntimeError(
            f"routecap knows SGLang {', '.join(_KNOWN)}, not {_version()}: install one of these"
        )
    allowed = os.environ.get("SGLANG_PLUGINS", "")
    if allowed and not _is_named():
        raise RuntimeError(f"SGLANG_PLUGINS is {allowed!r}: it must name routecap")
    (options or Options.from_environment()).to_environment()
    os.environ.setdefault(ASKED, "1")
    plugin()
    import_module("sglang.srt.plugins.hook_registry").HookRegistry.apply_hooks()


def _is_asked() -> bool:
    asked = os.environ.get(ASKED, "").strip().lower()
    return _is_named() or asked in ("1", "true", "yes", "on", "beside")


def _is_named() -> bool:
    return "routecap" in map(str.strip, os.environ.get("SGLANG_PLUGINS", "").split(","))


def _version() -> str:
    try:
        return version("sglang")
    except PackageNotFoundError:
        return "of no version"
