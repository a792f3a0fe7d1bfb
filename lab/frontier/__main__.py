"""Run the experiment of README.md, or a part of it, and go on where it stopped.

run:     a block (0 is the pilot), for some minutes; exit status 3 says that there is more to do
time:    what a step costs, alone and with several cells on the device
decide:  high rate and steps, by the registered rule, from the pilot's log and a time
collect: all logs of a folder as one file
report:  tables and pictures, from such files alone
"""

from __future__ import annotations

import argparse
import os
import sys
from dataclasses import replace
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")

from . import log
from .grid import PILOT_RATES, PILOT_STEPS, TINY, Setting, cells_of, tiny_cells

SECONDS, CELLS = 1100.0, 15  # what a block may take of the machine, and its cells


def decide(lines: list[dict], a_second: float) -> tuple[float, int]:
    """The high rate and S. a_second: steps of cells that the machine makes in a second."""
    found: dict[float, dict[int, float]] = {}
    rates = {each["name"]: each["rate"] for each in lines if each.get("kind") == "cell"}
    for each in lines:
        if each.get("kind") == "evaluation" and each["name"] in rates:
            found.setdefault(rates[each["name"]], {})[each["step"]] = each["accuracy"]
    high = 1e-5
    for rate in PILOT_RATES:
        by_step = found.get(rate, {})
        if PILOT_STEPS not in by_step:
            raise SystemExit(f"the pilot has not finished its {PILOT_STEPS} steps at {rate:g}")
        base, last = by_step[0], by_step[PILOT_STEPS]
        if last > base and min(by_step.values()) >= base - 0.05:
            high = rate
    return high, min(int(SECONDS * a_second / CELLS) // 10 * 10, 120)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="frontier", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("run", "time"):
        each = commands.add_parser(name)
        each.add_argument("--folder", type=Path, default=Path("build/frontier"))
        each.add_argument("--minutes", type=float, default=8.5)
        each.add_argument("--jobs", type=int, default=6, help="processes that share the device")
        each.add_argument("--device", help="default: cuda if it is there")
        each.add_argument("--decode", choices=("auto", "graph", "eager"), default="auto")
        each.add_argument("--tiny", action="store_true", help="a model for a CPU: is it all there?")
        each.add_argument(
            "--micro", type=int, help="sequences of one forward; less for less memory"
        )
        each.add_argument(
            "--collect", type=Path, help="write all logs of the folder here at the end"
        )
    run = commands.choices["run"]
    run.add_argument("--block", type=int, default=1, help="0: the pilot")
    run.add_argument("--high", type=float, default=1e-4, help="rate, as decided by the pilot")
    run.add_argument("--steps", type=int, default=80, help="S, as decided by the timing")
    run.add_argument("--arms", default="abcdefg", help="only these")
    run.add_argument("--points", default="PLO", help="only these")
    run.add_argument("--without-o", action="store_true")
    each = commands.add_parser("decide")
    each.add_argument("log", type=Path)
    each.add_argument("--a-second", type=float, required=True, help="steps, by the command time")
    each = commands.add_parser("collect")
    each.add_argument("folder", type=Path)
    each.add_argument("into", type=Path)
    each = commands.add_parser("report")
    each.add_argument("logs", type=Path, nargs="+")
    each.add_argument("--out", type=Path, default=Path("build/frontier/report"))
    arguments = parser.parse_args()

    if arguments.command == "decide":
        high, steps = decide(list(log.read([arguments.log])), arguments.a_second)
        print(f"--high {high:g} --steps {steps}" + (" --without-o" if steps < 50 else ""))
        return 0
    if arguments.command == "collect":
        log.collect(arguments.folder, arguments.into)
        return 0
    if arguments.command == "report":
        from .report import report

        return report(arguments.logs, arguments.out)
    return _on_device(arguments)


def _on_device(arguments: argparse.Namespace) -> int:
    import torch

    from .work import run_block

    device = arguments.device or ("cuda" if torch.cuda.is_available() else "cpu")
    setting = TINY if arguments.tiny else Setting()
    if arguments.micro:
        setting = replace(setting, micro=arguments.micro)
    if arguments.command == "time":
        from .timing import time_steps

        return time_steps(setting, arguments, device)
    block = arguments.block
    if arguments.tiny:
        cells = tiny_cells(block)
    else:
        cells = cells_of(block, arguments.high, arguments.steps, with_o=not arguments.without_o)
    if block:
        cells = [c for c in cells if c.arm in arguments.arms and c.point in arguments.points]
    if not cells:
        raise SystemExit(f"no cell of block {block} is of these arms and points")
    try:
        return run_block(
            setting, cells, arguments.folder / f"block{block}", device=device, how=arguments.decode,
            jobs=arguments.jobs, minutes=arguments.minutes,
        )  # fmt: skip
    finally:
        if arguments.collect:
            log.collect(arguments.folder, arguments.collect)


if __name__ == "__main__":
    sys.exit(main())
