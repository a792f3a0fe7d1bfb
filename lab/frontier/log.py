"""An append-only log: one JSON object a line, of which a line cut off by a kill is skipped."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any


class Log:
    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, **line: Any) -> None:
        text = json.dumps(_rounded(line) | {"at": round(time.time(), 1)})
        with self.path.open("a+") as file:
            file.seek(0, 2)
            if file.tell():
                with self.path.open("rb") as end:
                    end.seek(-1, 2)
                    if end.read() != b"\n":  # what a kill has cut off stays a line of its own
                        text = "\n" + text
            file.write(text + "\n")


def _rounded(line: dict[str, Any]) -> dict[str, Any]:
    """Six digits say enough, and a log of all cells stays small."""
    return {
        key: float(f"{value:.6g}") if isinstance(value, float) else value
        for key, value in line.items()
    }


def read(paths: Iterable[Path]) -> Iterator[dict[str, Any]]:
    for path in paths:
        for line in path.read_text().splitlines():
            try:
                found = json.loads(line)
            except ValueError:
                continue
            if isinstance(found, dict):
                yield found


def collect(folder: Path, into: Path) -> None:
    """All logs of a folder as one file."""
    with into.open("w") as file:
        for path in sorted(folder.rglob("*.jsonl")):
            if path.resolve() != into.resolve():
                file.writelines(json.dumps(line) + "\n" for line in read([path]))
