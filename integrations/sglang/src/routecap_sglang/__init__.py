"""Capture of routed experts in SGLang.

`pip install routecap-sglang` registers a plugin of SGLang, which does nothing until it is asked for: by
its name, routecap, in SGLANG_PLUGINS, or by ROUTECAP_SGLANG=1. Programs may call `install` instead,
before they make an engine.

It takes the place of SGLang's own capturer: the same flag of the server, the same fields of a
request, the same answers. With ROUTECAP_SGLANG=beside SGLang's own goes on, and answers. In both
ways the routings of all requests can go to a function or to a folder (`Options`).
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from importlib import import_module
from typing import Any

from . import _versions
from ._options import ASKED, Options
from ._sinks import Finished

__all__ = ["Finished", "Options", "install", "plugin"]

logger = logging.getLogger("sglang.srt.routecap")


def plugin() -> None:
    """What SGLang calls in each of its processes, if this package is installed."""
    if not _is_asked():
        return
    options = Options.from_environment()
    found = _versions.find(_versions.installed(), options)
    if found.why:
        logger.error("Routed experts are SGLang's own: %s", found.why)
        return
    if not found.checked:
        logger.warning(
            "routed experts: routecap is not checked with SGLang %s: look at what conform says of it",
            found.number,
        )
    import_module("._hooks", __name__).register(found.design, options, _apply(found.design))


def install(options: Options | None = None) -> None:
    """Capture with routecap in the engines that this process makes from now on.

    Raises:
        RuntimeError: This is no version of SGLang that is known here, or its processes could not
            find the plugin: SGLANG_PLUGINS does not name it.
    """
    options = options or Options.from_environment()
    found = _versions.find(_versions.installed(), options)
    if found.why:
        raise RuntimeError(found.why)
    allowed = os.environ.get("SGLANG_PLUGINS", "")
    if allowed and not _is_named():
        raise RuntimeError(f"SGLANG_PLUGINS is {allowed!r}: it must name routecap")
    options.to_environment()
    os.environ.setdefault(ASKED, "1")
    plugin()
    if found.design.plugins:
        import_module("sglang.srt.plugins.hook_registry").HookRegistry.apply_hooks()
    else:
        import_module("._spawned", __name__).launch()


def _apply(design: Any) -> Callable[[Any], None]:
    """What puts a hook in its place: SGLang's registry does, when all plugins are loaded."""
    if not design.plugins:
        return import_module("._spawned", __name__).apply  # type: ignore[no-any-return]
    registry = import_module("sglang.srt.plugins.hook_registry")

    def apply(hook: Any) -> None:
        registry.HookRegistry.register(
            f"sglang.srt.{hook.target}", hook.function, registry.HookType[hook.kind.upper()]
        )

    return apply


def _is_asked() -> bool:
    asked = os.environ.get(ASKED, "").strip().lower()
    return _is_named() or asked in ("1", "true", "yes", "on", "beside")


def _is_named() -> bool:
    return "routecap" in map(str.strip, os.environ.get("SGLANG_PLUGINS", "").split(","))
