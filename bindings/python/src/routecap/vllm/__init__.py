"""Capture of routed experts in vLLM.

`pip install routecap` registers a plugin of vLLM, which does nothing until it is asked for: by
ROUTECAP_VLLM=1 or by its name, routecap, in VLLM_PLUGINS, for engines with
`--enable-return-routed-experts`. Programs may call `install` instead.

A module for each version of vLLM (`_v021`, `_v026`, `_v033`) replaces parts of the engine and lists
them in its first lines. The other modules serve all versions.
"""

from __future__ import annotations

import logging
import os
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from ._answers import read

__all__ = ["install", "plugin", "read"]

logger = logging.getLogger("vllm.routecap")


class _Face(NamedTuple):
    """A version of vLLM, our module for it, and a line of vLLM's that the module relies on."""

    version: str  # the beginning of its number
    module: str
    source: str
    seam: str


_CAPTURER = "model_executor/layers/fused_moe/routed_experts_capturer.py"
_FACES = (
    _Face("0.21", "_v021", _CAPTURER, "def issue_routing_d2h_copy("),
    _Face("0.26", "_v026", _CAPTURER, "class RoutedExpertsManager:"),
    _Face(
        "0.33",
        "_v033",
        "distributed/aux_output_connector/worker.py",
        "def get_aux_output_connector(",
    ),
)
_KNOWN = ", ".join(face.version for face in _FACES)
_ASKED = "ROUTECAP_VLLM"


def plugin() -> None:
    """What vLLM calls in each of its processes, if this package is installed."""
    if not _is_asked():
        return
    face = _face()
    if face is None:
        logger.error(
            "routecap supports vLLM %s, and this is %s: vLLM captures routed experts itself. "
            "Install a supported version",
            _KNOWN,
            _version(),
        )
        return
    install()
    logger.info(
        "routecap captures routed experts in vLLM %s, by routecap.vllm.%s (it supports %s)",
        _version(),
        face.module,
        _KNOWN,
    )


def install(name: str | None = None) -> None:
    """Capture with routecap in the engines that this process makes from now on, and in processes
    that they start. A second call changes nothing.

    Args:
        name: Replace only the module of this name, by `routed_experts_capturer`. This is for forks
            of vLLM 0.21 in which the module has a different name.

    Raises:
        RuntimeError: This version of vLLM is not supported, or vLLM's own capturer is in use.
    """
    if name is not None:
        import_module("._v021", __name__).own_module(name)
        return
    face = _face()
    if face is None:
        raise RuntimeError(
            f"routecap supports vLLM {_KNOWN}, and this is {_version()}: install a supported"
            f" version, or unset {_ASKED}"
        )
    import_module(f".{face.module}", __name__).apply()
    os.environ[_ASKED] = "1"


def _is_asked() -> bool:
    named = "routecap" in os.environ.get("VLLM_PLUGINS", "").split(",")
    return named or os.environ.get(_ASKED, "").lower() in ("1", "true", "yes", "on")


def _version() -> str:
    try:
        return version("vllm")
    except PackageNotFoundError:
        return "a vLLM without a version"


def _face() -> _Face | None:
    """The module for the installed vLLM; None if there is none, or if vLLM's sources lack the line
    that it relies on.
    """
    found = _version()
    face = next((each for each in _FACES if found.startswith(f"{each.version}.")), None)
    spec = None if face is None else find_spec("vllm")
    if face is None or spec is None:
        return face
    for folder in spec.submodule_search_locations or ():
        source = Path(folder) / face.source
        if source.is_file() and face.seam in source.read_text("utf-8", "replace"):
            return face
    return None
