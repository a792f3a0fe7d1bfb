"""Show the version, the backends, and which optional packages are installed."""

import argparse
import platform
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as version_of

import numpy as np
from routecap import backends, version
from routecap.adapter import library_path

from .terminal import Terminal

EXTRAS = {
    "routecap-tools[cli]": "rich",
    "routecap-tools[metrics]": "prometheus_client",
    "routecap-tools[plot]": "matplotlib",
    "routecap[safetensors]": "safetensors",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    pass


def run(arguments: argparse.Namespace, terminal: Terminal) -> int:
    terminal.title(f"routecap {'.'.join(map(str, version()))}")
    terminal.line(f"library  {library_path()}")
    terminal.line(
        f"running  Python {platform.python_version()}, NumPy {np.__version__}, {platform.system()}"
        f" {platform.machine()}"
    )
    terminal.line()
    rows = []
    for name, (available, devices, detail) in backends().items():
        rows.append(
            (
                name,
                "usable" if available else "not usable",
                str(devices) if devices else "-",
                detail,
            )
        )
    terminal.table(("<backend", "<", "devices", "<"), rows)
    terminal.line()
    terminal.table(
        ("<extra", "<package", "<"),
        [(extra, package, _installed(extra, package)) for extra, package in EXTRAS.items()],
    )
    return 0


def _installed(extra: str, package: str) -> str:
    try:
        return version_of(package)
    except PackageNotFoundError:
        return f"not installed: pip install '{extra}'"
