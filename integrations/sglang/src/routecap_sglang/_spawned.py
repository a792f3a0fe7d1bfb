"""Hooks in a release of SGLang that has no plugins: in the program that calls `install`, and in the
schedulers that its engines start, which call `run` in the place of SGLang's function."""

from __future__ import annotations

import functools
import pkgutil
from collections.abc import Callable
from inspect import getattr_static
from typing import Any

from ._hooks import Hook

_LAUNCH = "entrypoints.engine.Engine._launch_subprocesses"


@functools.cache
def launch() -> None:
    """Schedulers of engines that this process makes from now on have hooks."""
    apply(Hook(_LAUNCH, (), _launch, "around"))


def _launch(original: Callable[..., Any], owner: object, *args: Any, **kwargs: Any) -> Any:
    if args or "run_scheduler_process_func" not in kwargs:
        raise TypeError(
            "Engine._launch_subprocesses must be called with run_scheduler_process_func by name"
        )
    kwargs["run_scheduler_process_func"] = functools.partial(
        run, kwargs["run_scheduler_process_func"]
    )
    return original(owner, **kwargs)


def run(scheduler: Callable[..., Any], *args: object, **kwargs: object) -> Any:
    """A scheduler's process begins."""
    import routecap_sglang

    routecap_sglang.plugin()
    return scheduler(*args, **kwargs)


def apply(hook: Hook) -> None:
    """Put a hook around a function of SGLang's, or of a class of it."""
    path, _, name = f"sglang.srt.{hook.target}".rpartition(".")
    owner = pkgutil.resolve_name(path)
    found = getattr_static(owner, name)
    kind = type(found) if isinstance(found, (staticmethod, classmethod)) else None
    original = found if kind is None else found.__func__
    hooked = functools.wraps(original)(_KINDS[hook.kind](original, hook.function))
    setattr(owner, name, hooked if kind is None else kind(hooked))


def _before(original: Callable[..., Any], hook: Callable[..., Any]) -> Callable[..., Any]:
    def hooked(*args: object, **kwargs: object) -> Any:
        hook(*args, **kwargs)
        return original(*args, **kwargs)

    return hooked


def _after(original: Callable[..., Any], hook: Callable[..., Any]) -> Callable[..., Any]:
    def hooked(*args: object, **kwargs: object) -> Any:
        result = original(*args, **kwargs)
        hook(result, *args, **kwargs)
        return result

    return hooked


def _around(original: Callable[..., Any], hook: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args, **kwargs: hook(original, *args, **kwargs)


_KINDS = {"before": _before, "after": _after, "around": _around}
