"""Capture of routed experts in vLLM.

`pip install routecap-vllm` registers a plugin of vLLM, which does nothing until it is asked for: by
ROUTECAP_VLLM=1 or by its name, routecap, in VLLM_PLUGINS, for engines with
`--enable-return-routed-experts`. Programs may call `install` instead.

A module for each way in which vLLM brings rows to requests (`_by_request`, `_by_slot`,
`_aux_output`) replaces parts of the engine, and lists them in its first lines. The other modules
serve all versions.
"""

from __future__ import annotations

import logging
import os
from importlib import import_module

from . import _versions
from ._answers import read

__all__ = ["install", "plugin", "read"]

logger = logging.getLogger("vllm.routecap")

_ASKED = "ROUTECAP_VLLM"


def plugin() -> None:
    """What vLLM calls in each of its processes, if this package is installed."""
    if not _is_asked():
        return
    found = _versions.find()
    if found.why:
        logger.error(
            "vLLM captures routed experts itself: install a version that routecap supports. %s",
            found.why,
        )
        return
    _install(found)
    logger.info(
        "routecap captures routed experts in vLLM %s, by routecap_vllm.%s (it supports %s)%s",
        found.version,
        found.module,
        _versions.supported(),
        f", {found.note}" if found.note else "",
    )


def install(name: str | None = None) -> None:
    """Capture with routecap in the engines that this process makes from now on, and in processes
    that they start. A second call changes nothing.

    Args:
        name: Replace only the module of this name, by `routed_experts_capturer`. This is for forks
            of vLLM 0.21 in which the module has a different name.

    Raises:
        RuntimeError: This version of vLLM is not supported, or lacks places that routecap hooks or
            reads, or vLLM's own capturer is in use.
    """
    if name is not None:
        import_module("._by_request", __name__).own_module(name)
        return
    found = _versions.find()
    if found.why:
        raise RuntimeError(
            f"install a version that routecap supports, or unset {_ASKED}: {found.why}"
        )
    _install(found)


def _install(found: _versions.Found) -> None:
    module = import_module(f".{found.module}", __name__)
    module.apply()
    if not found.checked:
        _versions.note = found.note
        import_module("._unchecked", __name__).guard(module.captures)
    os.environ[_ASKED] = "1"


def _is_asked() -> bool:
    named = "routecap" in os.environ.get("VLLM_PLUGINS", "").split(",")
    return named or os.environ.get(_ASKED, "").lower() in ("1", "true", "yes", "on")
