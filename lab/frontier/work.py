"""Several processes that share the device, each with a cell, until all are done or time is up."""

from __future__ import annotations

import multiprocessing
import os
import queue
import time
from pathlib import Path
from typing import Any

from .grid import ARMS, Cell, Setting

MARGIN = 15.0  # seconds before the deadline in which the last worker saves and ends
TABLE = 75.0  # seconds for the static table, or it is left to the next call


def _quiet() -> None:
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)


def _of_base(setting: Setting, block: int, folder: Path, device: str, how: str, end: float) -> None:
    _quiet()
    from .base import train_base
    from .log import Log
    from .static import table

    log = Log(folder / "base.jsonl")
    least = TABLE if not (folder / "base.pt").exists() else 0.0
    if not (folder / "base.pt").exists() and not train_base(
        setting, block, folder, log, device, how, end
    ):
        return
    if not (folder / "static.done").exists() and time.monotonic() + least < end:
        table(setting, block, folder, log, device, how)
        (folder / "static.done").touch()


def _of_cells(
    setting: Setting, folder: Path, device: str, how: str, end: float, asked: Any, told: Any
) -> None:
    _quiet()
    from .cell import run
    from .rig import Rig

    rig: Rig | None = None
    while (cell := asked.get()) is not None:
        arm = ARMS[cell.arm]
        if rig is None or not rig.serves(arm):
            if rig is not None:
                rig.close()
            rig = None
            rig = Rig(setting, arm, device, how)

        def tell(step: int, text: str, name: str = cell.name) -> None:
            told.put(("step", name, step, text))

        made = run(setting, cell, rig, folder, setting.slice, end, tell)
        told.put(("slice", cell.name, made, ""))


def steps_made(cell: Cell, folder: Path) -> int:
    """As its last checkpoint has them."""
    from .log import read

    path = folder / f"{cell.name}.jsonl"
    if not path.exists():
        return 0
    return max((line["step"] for line in read([path]) if line.get("kind") == "saved"), default=0)


def run_block(
    setting: Setting,
    cells: list[Cell],
    folder: Path,
    *,
    device: str,
    how: str,
    jobs: int,
    minutes: float,
) -> int:
    """Whatever can be done of a block in so many minutes. Returns 0 when all of it is done, 3 when
    there is more to do, 1 when a cell failed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + 60 * minutes - (MARGIN if minutes > 2 else 0)
    context = multiprocessing.get_context("spawn")
    if not (folder / "static.done").exists():
        block = cells[0].block
        base = context.Process(target=_of_base, args=(setting, block, folder, device, how, end))
        base.start()
        base.join()
        if base.exitcode:
            return 1
        if not (folder / "static.done").exists():
            print("time is up before the base was done: the next call goes on with it", flush=True)
            return 3
    return _advance(setting, cells, folder, context, device, how, jobs, end)


def _advance(
    setting: Setting, cells: list[Cell], folder: Path, context: Any, device: str, how: str,
    jobs: int, end: float,
) -> int:  # fmt: skip
    made = {cell.name: steps_made(cell, folder) for cell in cells}
    by_name = {cell.name: cell for cell in cells}
    order = {cell.name: index for index, cell in enumerate(cells)}
    running: set[str] = set()
    refused: set[str] = set()  # which have failed in this call
    begun_with: dict[str, int] = {}
    told = context.Queue()
    jobs = min(jobs, len(cells))
    workers = []
    for _ in range(jobs):
        asked = context.Queue()
        worker = context.Process(
            target=_of_cells, args=(setting, folder, device, how, end, asked, told), daemon=True
        )
        worker.start()
        workers.append((worker, asked))

    def rig_of(name: str) -> tuple[bool, str]:
        arm = ARMS[by_name[name].arm]
        return arm.fp8, arm.dtype

    def give(number: int, last: str | None) -> bool:
        """The cell that is furthest back; of those, one that this worker's models serve."""
        open_ = [
            name
            for name, steps in made.items()
            if steps < by_name[name].steps and name not in running | refused
        ]
        if not open_ or time.monotonic() > end:
            workers[number][1].put(None)
            return False
        least = min(made[name] for name in open_)
        near = [name for name in open_ if made[name] < least + setting.slice]
        same = [name for name in near if last is not None and rig_of(name) == rig_of(last)]
        name = min(same or near, key=lambda each: (made[each], order[each]))
        running.add(name)
        of_worker[name], begun_with[name] = number, made[name]
        workers[number][1].put(by_name[name])
        return True

    of_worker: dict[str, int] = {}
    busy = sum(give(number, None) for number in range(jobs))
    failed, texts, begun, shown, total = 0, {}, time.monotonic(), time.monotonic(), 0
    all_steps = sum(cell.steps for cell in cells)
    while busy:
        try:
            kind, name, step, text = told.get(timeout=5)
        except queue.Empty:
            kind = name = text = ""
            step = 0
        for lost in [each for each in running if not workers[of_worker[each]][0].is_alive()]:
            print(f"{lost}: its process has died", flush=True)
            running.discard(lost)
            refused.add(lost)
            busy, failed = busy - 1, failed + 1
        if time.monotonic() > end + 3 * MARGIN:
            break
        if kind == "step":
            total += 1
            made[name], texts[name] = step, text
        elif kind == "slice" and name in running:
            made[name] = step
            running.discard(name)
            if step == begun_with[name]:  # there was no time for one
                workers[of_worker[name]][1].put(None)
                busy -= 1
            else:
                busy -= not give(of_worker[name], name)
        if time.monotonic() - shown > 15 or (kind == "slice" and not busy):
            shown = time.monotonic()
            rate = total / (shown - begun)
            least = min(made, key=lambda each: (made[each], each))
            print(
                f"{(shown - begun) / 60:4.1f} min  {sum(made.values())}/{all_steps} steps,"
                f" {rate:.2f} a second, {sum(made[c.name] >= c.steps for c in cells)}/{len(cells)}"
                f" cells done; furthest back {least} {made[least]};"
                + "".join(
                    f" {each} {made[each]} {texts.get(each, '')};" for each in sorted(running)
                ),
                flush=True,
            )
    for worker, _ in workers:
        worker.join(timeout=10)
        if worker.is_alive():
            worker.kill()
    if failed:
        return 1
    return 0 if all(made[cell.name] >= cell.steps for cell in cells) else 3
