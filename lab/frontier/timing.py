"""What a step costs: its parts in one process, and the steps a second of several at once."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import threading
import time
from collections import defaultdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from .grid import ARMS, Cell, Setting
from .work import _quiet

_READY = 120.0  # seconds that processes may take until each has made a step


def _part(into: dict[str, list[float]], device: str, name: str, action: Any) -> Any:
    if device != "cpu":
        torch.cuda.synchronize()
    begun = time.perf_counter()
    result = action()
    if device != "cpu":
        torch.cuda.synchronize()
    into[name].append(time.perf_counter() - begun)
    print(f"  {name:<28}{into[name][-1]:8.3f} s", flush=True)
    return result


def _answers(rig: Any, cell: Cell, step: int) -> Any:
    from .cell import noise_of
    from .rollouts import problems_of, roll_out

    return roll_out(rig, problems_of(rig, cell.block, cell.seed, step), noise_of(cell, step))


def _parts(setting: Setting, letter: str, device: str, how: str, steps: int) -> None:
    """With random weights: answers are as long as can be."""
    _quiet()
    from .base import accuracy, held_out
    from .grpo import train
    from .rig import Rig, parameters, save
    from .rollouts import examine

    torch.manual_seed(0)
    arm, cell = ARMS[letter], Cell(99, letter, "time", 8, 1e-6, 1, steps)
    seconds: dict[str, list[float]] = defaultdict(list)
    rig = _part(seconds, device, "models and graphs", lambda: Rig(setting, arm, device, how))
    print(f"{parameters(rig.engine) / 1e6:.1f} million parameters; arm {letter}", flush=True)
    problems = held_out(setting, 99)
    part = partial(_part, seconds, device)
    for step in range(steps):
        part("weights to the engine", rig.send_weights)
        batch, _ = part("answers and their messages", partial(_answers, rig, cell, step))
        seen = part("the doctor", partial(examine, rig, batch, setting.examined))
        for updates in sorted({1, min(8, setting.prompts)}):
            line = part(
                f"training, {updates} updates", partial(train, rig, batch, arm, updates, 1e-6)
            )
    part("evaluation", lambda: accuracy(rig.evaluator, problems, 99))
    path = Path(tempfile.gettempdir()) / f"frontier-{os.getpid()}.pt"
    part("a checkpoint", lambda: save(rig.trainer.state(), path))
    path.unlink()
    print("medians:", flush=True)
    for name, each in seconds.items():
        print(f"  {name:<28}{np.median(each):8.3f} s   (first {each[0]:.3f})", flush=True)
    print(f"  the last step: {line | seen}", flush=True)
    if device != "cpu":
        print(f"  memory at most {torch.cuda.max_memory_allocated() / 2**30:.1f} GiB", flush=True)
        _against_scaled_mm()


def _against_scaled_mm() -> None:
    """How far our product is from that of the device's FP8 kernel, on the same FP8 numbers."""
    from .fp8 import rounded

    torch.manual_seed(0)
    x, w = torch.randn(512, 512, device="cuda").bfloat16(), torch.randn(512, 512, device="cuda")
    x, w = rounded(x, (512, 512)), rounded(w.bfloat16(), (512, 512))  # one scale, as it takes
    try:
        scales = [2.0 ** torch.frexp(each.abs().amax().float() / 448)[1] for each in (x, w)]
        a, b = (
            (each.float() / scale).to(torch.float8_e4m3fn) for each, scale in zip((x, w), scales)
        )
        fp8 = torch._scaled_mm(
            a, b.t(), scale_a=scales[0], scale_b=scales[1], out_dtype=torch.bfloat16
        )
        ours = x @ w.t()
        exact = x.double() @ w.double().t()
        for name, each in (("_scaled_mm", fp8), ("BF16 kernel", ours)):
            print(f"  {name}: off by {((each - exact).norm() / exact.norm()).item():.1e}")
    except RuntimeError as reason:
        print(f"  torch._scaled_mm could not be compared: {reason!r}")


def _loop(setting: Setting, device: str, how: str, barrier: Any, told: Any, end: float) -> None:
    _quiet()
    from .cell import one_step
    from .rig import Rig

    torch.manual_seed(0)
    try:
        rig = Rig(setting, ARMS["d"], device, how)
        cell = Cell(99, "d", "time", min(8, setting.prompts), 1e-6, 1, 1 << 30)
        one_step(setting, cell, rig, 0)
    except BaseException:
        barrier.abort()  # nobody waits for this one
        raise
    barrier.wait(timeout=_READY)
    step = 1
    while time.monotonic() < end.value or step == 1:
        one_step(setting, cell, rig, step)
        told.put(time.monotonic())
        step += 1


def time_steps(setting: Setting, arguments: Any, device: str) -> int:
    begun = time.monotonic()
    context = multiprocessing.get_context("spawn")
    alone = context.Process(target=_parts, args=(setting, "d", device, arguments.decode, 3))
    alone.start()
    alone.join()
    if alone.exitcode:
        return 1
    jobs = arguments.jobs
    barrier, told = context.Barrier(jobs + 1), context.Queue()
    end = context.Value("d", begun + 60 * arguments.minutes)
    several = [
        context.Process(
            target=_loop, args=(setting, device, arguments.decode, barrier, told, end), daemon=True
        )
        for _ in range(jobs)
    ]
    for each in several:
        each.start()
    try:
        barrier.wait(timeout=_READY)
    except threading.BrokenBarrierError:
        print(f"not all of {jobs} processes became ready", flush=True)
        return 1
    start, made = time.monotonic(), []
    shown = start
    print(f"{jobs} processes are ready after {start - begun:.0f} s", flush=True)
    while any(each.is_alive() for each in several) or not told.empty():
        while not told.empty():
            made.append(told.get())
        if made and time.monotonic() - shown > 15:
            shown = time.monotonic()
            print(f"  {len(made)} steps in {made[-1] - start:.1f} s", flush=True)
        time.sleep(0.05)
    if any(each.exitcode for each in several):
        return 1
    print(
        f"{jobs} at once: {len(made)} steps in {max(made) - start:.1f} s,"
        f" {len(made) / (max(made) - start):.3f} a second"
    )
    return 0
