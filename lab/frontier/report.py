"""Tables and pictures of the experiment, from its logs alone.

Pictures are vector graphics that follow the reader's light or dark theme. Arms are told apart by
dashes and by their letters at the end of each line, so that grey is enough.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .grid import ARMS, Setting
from .log import read

COLLAPSED, GAP, GAP_BATCHES = 0.5, 0.1, 5
LEAST, PRACTICAL, LEVEL = 0.02, 0.05, 0.05
PRIMARY = ("d", "b")
PROBLEMS = Setting().held_out
_T = {
    1: 12.706,
    2: 4.303,
    3: 3.182,
    4: 2.776,
    5: 2.571,
    6: 2.447,
    7: 2.365,
}  # 97.5 % of Student's t
_MARKS = {
    "a": ("#767676", "2 3"), "b": ("#b3331d", ""), "c": ("#9a6a00", "7 3"), "d": ("#1f66b0", ""),
    "e": ("#2c7a4b", "7 3"), "f": ("#7a4bb0", "1 4"), "g": ("#555555", "9 3 2 3"),
}  # fmt: skip
_WIDE = {"b": 2.4, "d": 2.4}


class Run:
    """A cell as its log has it. A step that was made twice, after a kill, counts as it was last."""

    def __init__(self, about: dict[str, Any]) -> None:
        self.about = about
        self.steps: dict[int, dict[str, Any]] = {}
        self.held_out: dict[int, float] = {}

    @property
    def made(self) -> int:
        return max(self.steps, default=0)

    @property
    def finite(self) -> bool:
        return all(each["finite"] for each in self.steps.values())

    def outcome(self, length: int) -> float | None:
        """U: mean of the evaluations in the second half of this length. A cell whose weights are
        not finite any more solves nothing from there on.
        """
        found = [self.held_out[at] for at in self.held_out if length / 2 < at <= length]
        if not self.finite:
            every = min((at for at in self.held_out if at), default=length)
            due = len([at for at in range(every, length + 1, every) if at > length / 2])
            found += [0.0] * (due - len(found))
        return float(np.mean(found)) if found else None

    def collapsed(self) -> int | None:
        """The step at which it did, or None."""
        best, low = 0.0, False
        for step, found in sorted(self.held_out.items()):
            if found < COLLAPSED * best:
                if low:
                    return step
                low = True
            else:
                low = False
            best = max(best, found)
        return None if self.finite else self.made

    def gap_collapsed(self) -> int | None:
        row = 0
        for step, line in sorted(self.steps.items()):
            row = row + 1 if not line["k3"] <= GAP else 0
            if row == GAP_BATCHES:
                return step
        return None


def runs_of(lines: Sequence[dict[str, Any]]) -> dict[str, Run]:
    """The log has accuracies to six digits. They are shares of PROBLEMS and made exact again, so
    that cells that solve as many problems are equal, and ties are ties in the sign-flip test.
    """
    runs: dict[str, Run] = {}
    for line in lines:
        if line["kind"] == "cell":
            runs.setdefault(line["name"], Run(line))
        elif line["kind"] == "step":
            runs[line["name"]].steps[line["step"]] = line
        elif line["kind"] == "evaluation":
            solved = round(line["accuracy"] * PROBLEMS)
            runs[line["name"]].held_out[line["step"]] = solved / PROBLEMS
    return runs


def common_length(runs: dict[str, Run], block: int, tens: int = 10) -> tuple[int, bool]:
    """What all cells of b to e at P of a block have reached, and whether the block is complete."""
    of = [r for r in runs.values() if (r.about["block"], r.about["point"]) == (block, "P")]
    of = [run for run in of if run.about["arm"] in "bcde"]
    if not of:
        return 0, False
    length = min(run.made if run.finite else run.about["steps"] for run in of) // tens * tens
    return length, len(of) == 8 and length >= 0.6 * of[0].about["steps"]


def sign_flips(differences: Sequence[float]) -> float:
    """p of the exact test, two-sided: the share of sign patterns with as large a mean."""
    values = np.array(differences)
    signs = np.array(list(itertools.product((1, -1), repeat=len(values))))
    means = np.abs(signs @ values)
    return float((means >= abs(values.sum()) - 1e-12).mean())


def interval(differences: Sequence[float]) -> tuple[float, float]:
    values, count = np.array(differences), len(differences)
    if count < 2:
        return -math.inf, math.inf
    half = _T.get(count - 1, 2.3) * values.std(ddof=1) / math.sqrt(count)
    return values.mean() - half, values.mean() + half


def verdict(differences: Sequence[float]) -> str:
    """By the rule that was registered; `differences` are those of the six pairs."""
    if len(differences) < 6:
        return f"{len(differences)} of 6 pairs are there: nothing is decided yet"
    mean, p = float(np.mean(differences)), sign_flips(differences)
    low, high = interval(differences)
    if p <= LEVEL and mean >= LEAST:
        return "replay moved the frontier"
    if p <= LEVEL and mean <= -LEAST:
        return "replay did harm"
    if -PRACTICAL <= low and high <= PRACTICAL:
        return "no effect of practical size"
    return "not decided by this experiment"


def paired(
    runs: dict[str, Run], lengths: dict[int, int], point: str, one: str, other: str
) -> list[tuple[int, int, float]]:
    """(block, seed, difference of U) for each pair."""
    of = {
        (run.about["block"], run.about["seed"], run.about["arm"]): run
        for run in runs.values()
        if run.about["point"] == point
    }
    found = []
    for block, seed, arm in sorted(of):
        if arm != one or (block, seed, other) not in of or block not in lengths:
            continue
        values = [of[block, seed, each].outcome(lengths[block]) for each in (one, other)]
        if None not in values:
            found.append((block, seed, values[0] - values[1]))
    return found


# ---- Tables


def _table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += ["| " + " | ".join(map(_cell, row)) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.3g}" if value and abs(value) < 0.01 else f"{value:.3f}"
    return str(value)


def complete_blocks(lines: Sequence[dict[str, Any]], runs: dict[str, Run]) -> dict[int, int]:
    """The common length of each block that counts."""
    refused = {line["block"] for line in lines if line["kind"] == "base_done" and not line["taken"]}
    blocks = sorted({run.about["block"] for run in runs.values()} - {0} - refused)
    measured = {block: common_length(runs, block) for block in blocks}
    return {block: length for block, (length, whole) in measured.items() if whole}


def text_of(lines: Sequence[dict[str, Any]], runs: dict[str, Run]) -> str:
    blocks = sorted({run.about["block"] for run in runs.values()} - {0})
    measured = {block: common_length(runs, block) for block in blocks}
    complete = complete_blocks(lines, runs)
    pairs = paired(runs, complete, "P", *PRIMARY)
    parts = ["# What was measured\n", "## Primary outcome\n"]
    if pairs:
        values = [each for _, _, each in pairs]
        by_block = {b: float(np.mean([v for c, _, v in pairs if c == b])) for b in complete}
        if any(each * np.mean(values) < 0 for each in by_block.values()):
            parts.append("**The blocks differ in sign: see their means.**\n")
        low, high = interval(values)
        parts.append(
            f"D = {np.mean(values):+.4f}, 95 % interval [{low:+.4f}, {high:+.4f}], sign-flip p ="
            f" {sign_flips(values):.3f}: **{verdict(values)}**.\n"
        )
        parts.append(_table(("block", "seed", "U(d) - U(b)"), pairs))
        parts.append(_table(("block", "mean of its pairs"), list(by_block.items())))
    else:
        parts.append("No pair of a complete block is there yet.\n")
    parts.append(
        _table(
            ("block", "common length", "complete"),
            [
                (block, length, "yes" if whole else "no")
                for block, (length, whole) in measured.items()
            ],
        )
    )
    rows = []
    for point, one, other in [
        ("P", *each) for each in ("ec", "cb", "dc", "ed", "ab", "fb", "gb")
    ] + [("L", "d", "b"), ("O", "d", "b")]:
        found = paired(runs, complete, point, one, other)
        if found:
            values = ", ".join(f"{each:+.3f}" for *_, each in found)
            rows.append(
                (point, f"{one} - {other}", f"{np.mean([v for *_, v in found]):+.3f}", values)
            )
    parts += ["## Secondary\n", _table(("point", "arms", "mean", "each pair"), rows)]
    parts += ["## The static table\n", _static(lines)]
    if any(line["kind"] == "engine" for line in lines):
        parts += ["## The static table with vLLM\n", _engine(lines)]
    parts += ["## Bases\n", _bases(lines)]
    parts += ["## Every cell\n", _cells(runs, measured)]
    parts += ["## Problems solved, of 1, held out\n", _held_out(runs)]
    return "\n".join(parts)


def _static(lines: Sequence[dict[str, Any]]) -> str:
    last = {(x["block"], x["row"]): x for x in lines if x["kind"] == "static"}
    keys = ("cells_differ", "tokens_differ", "kl", "k3", "f2", "f5", "controls_missed")
    return _table(
        ("block", "row", "cells that differ", "tokens", "KL", "k3", "F(2)", "F(5)", 
         "controls missed", "findings"),
        [(b, row, *(x[key] for key in keys), len(x["findings"])) for (b, row), x in last.items()],
    )  # fmt: skip


def _engine(lines: Sequence[dict[str, Any]]) -> str:
    """Of a real engine; each seed is another sampling of the same base."""
    last = {
        tuple(x[key] for key in ("block", "format", "seed", "row")): x
        for x in lines
        if x["kind"] == "engine"
    }
    order = {"live": 0, "replayed": 1, "shifted": 2}
    keys = ("cells_differ", "tokens_differ", "kl", "k3", "f2", "f5", "controls_missed")
    return _table(
        ("block", "format", "seed", "row", "answers", "with every row", "cells that differ",
         "tokens", "KL", "k3", "F(2)", "F(5)", "controls missed", "findings"),
        [(*key, x["answers"], x["complete"], *(x[each] for each in keys), len(x["findings"]))
         for key, x in sorted(last.items(), key=lambda each: (*each[0][:3], order[each[0][3]]))],
    )  # fmt: skip


def _bases(lines: Sequence[dict[str, Any]]) -> str:
    found = [each for each in lines if each["kind"] == "base_done"]
    return _table(
        ("block", "steps", "seconds", "solves", "taken"),
        [(x["block"], x["step"], round(x["seconds"]), x["accuracy"], x["taken"]) for x in found],
    )


def _held_out(runs: dict[str, Run]) -> str:
    steps = sorted({step for run in runs.values() for step in run.held_out})
    rows = [(name, *map(run.held_out.get, steps)) for name, run in sorted(runs.items())]
    return _table(("cell", *(f"after {step}" for step in steps)), rows)


def _cells(runs: dict[str, Run], measured: dict[int, tuple[int, bool]]) -> str:
    rows = []
    for name, run in sorted(runs.items()):
        steps = list(run.steps.values())
        total = {key: sum(each[key] for each in steps) for key in ("replayed", "lost", "invalid")}
        length = measured.get(run.about["block"], (run.made, True))[0] or run.made
        rows.append((
            name, run.about["updates"], f"{run.about['rate']:g}",
            f"{run.made}/{run.about['steps']}",
            run.held_out.get(0), max(run.held_out.values(), default=None), run.outcome(length),
            run.collapsed(), run.gap_collapsed(),
            float(np.median([each["k3"] for each in steps])) if steps else None,
            total["replayed"], total["lost"], total["invalid"],
            sum(bool(each["findings"]) for each in steps),
            sum(each["controls_missed"] > 0 for each in steps),
            round(sum(each["seconds"] for each in steps)),
        ))  # fmt: skip
    head = (
        "cell", "updates", "rate", "steps", "base", "best", "U", "collapsed at", "gap collapsed at",
        "median k3", "cells replayed", "lost", "invalid", "batches with findings", "control missed",
        "seconds",
    )  # fmt: skip
    return _table(head, rows)


# ---- Pictures

_STYLE = """<style>
text{font:12px system-ui,sans-serif;fill:#222}.axis{stroke:#999;fill:none}.grid{stroke:#e4e4e4}
.back{fill:#fff}.band{fill:#eee}.title{font-weight:600;font-size:14px}
@media(prefers-color-scheme:dark){
text{fill:#ddd}.grid{stroke:#333}.back{fill:#111}.band{fill:#262626}.line,.dot{filter:brightness(1.55)}}
</style>"""
_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 740, 380, 76, 200, 40, 46


class Picture:
    def __init__(
        self,
        title: str,
        x: str,
        y: str,
        across: tuple[float, float],
        up: tuple[float, float],
        *,
        log: bool = False,
    ) -> None:
        self.across, self.up, self.log = across, up, log
        self.ends: list[tuple[float, str, str]] = []
        self.parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img">',
            f"<title>{title}</title>{_STYLE}",
            f'<rect class="back" width="{_WIDTH}" height="{_HEIGHT}"/>',
            f'<text class="title" x="{_LEFT}" y="22">{title}</text>',
            f'<text x="{(_LEFT + _WIDTH - _RIGHT) / 2}" y="{_HEIGHT - 8}">{x}</text>',
            f'<text transform="translate(14 {_HEIGHT / 2 + 40}) rotate(-90)">{y}</text>',
        ]
        for value in self._ticks(*up, log):
            at = self.y(value)
            self.parts.append(
                f'<path class="grid" d="M{_LEFT} {at:.1f}H{_WIDTH - _RIGHT}"/>'
                f'<text x="{_LEFT - 8}" y="{at + 4:.1f}" text-anchor="end">{value:g}</text>'
            )
        for value in self._ticks(*across, False):
            self.parts.append(
                f'<text x="{self.x(value):.1f}" y="{_HEIGHT - _BOTTOM + 18}"'
                f' text-anchor="middle">{value:g}</text>'
            )
        self.parts.append(
            f'<path class="axis" d="M{_LEFT} {_TOP}V{_HEIGHT - _BOTTOM}H{_WIDTH - _RIGHT}"/>'
        )

    @staticmethod
    def _ticks(low: float, high: float, log: bool) -> list[float]:
        if log:
            return [
                10.0**n for n in range(math.ceil(math.log10(low)), math.floor(math.log10(high)) + 1)
            ]
        size = 10 ** math.floor(math.log10((high - low) or 1))
        size = next(size * s for s in (0.1, 0.2, 0.5, 1, 2) if (high - low) / (size * s) <= 8)
        first = math.ceil(low / size - 1e-9)
        return [round(n * size, 10) for n in range(first, math.floor(high / size + 1e-9) + 1)]

    def x(self, value: float) -> float:
        low, high = self.across
        return _LEFT + (value - low) / ((high - low) or 1) * (_WIDTH - _LEFT - _RIGHT)

    def y(self, value: float) -> float:
        low, high = self.up
        if self.log:
            low, high, value = math.log10(low), math.log10(high), math.log10(max(value, low))
        share = min(max((value - low) / ((high - low) or 1), 0), 1)
        return _HEIGHT - _BOTTOM - share * (_HEIGHT - _TOP - _BOTTOM)

    def line(
        self,
        points: Sequence[tuple[float, float]],
        arm: str,
        *,
        thin: bool = False,
        end: bool = True,
    ) -> None:
        points = [each for each in points if math.isfinite(each[1])]
        if not points:
            return
        colour, dash = _MARKS[arm]
        path = "M" + "L".join(f"{self.x(x):.1f} {self.y(y):.1f}" for x, y in points)
        wide = 1 if thin else _WIDE.get(arm, 1.6)
        self.parts.append(
            f'<path class="line" d="{path}" fill="none" stroke="{colour}" stroke-width="{wide}"'
            f' stroke-dasharray="{dash}" opacity="{0.35 if thin else 1}"/>'
        )
        if end and not thin:
            self.ends.append((self.y(points[-1][1]), arm, colour))

    def dot(self, x: float, y: float, arm: str, *, hollow: bool) -> None:
        colour, _ = _MARKS[arm]
        fill = "none" if hollow else colour
        self.parts.append(
            f'<circle class="dot" cx="{self.x(x):.1f}" cy="{self.y(y):.1f}" r="5" fill="{fill}"'
            f' stroke="{colour}" stroke-width="2"/>'
        )

    def label(self, y: float, text: str) -> None:
        """Beside the picture."""
        x = _WIDTH - _RIGHT + 12
        self.parts.append(f'<text x="{x}" y="{self.y(y) + 4:.1f}">{text}</text>')

    def text(self, x: float, y: float, text: str) -> None:
        self.parts.append(f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="middle">{text}</text>')

    def write(self, path: Path) -> None:
        last = -100.0
        for at, arm, colour in sorted(self.ends):  # labels that would lie on others move down
            last = max(at, last + 15)
            x = _WIDTH - _RIGHT + 6
            self.parts.append(
                f'<text x="{x}" y="{last + 4:.1f}"><tspan fill="{colour}" class="line"'
                f' font-weight="700">{arm}</tspan> {ARMS[arm].what}</text>'
            )
        path.write_text("\n".join([*self.parts, "</svg>", ""]))


def _curves(runs: dict[str, Run], of: str) -> dict[str, list[dict[int, float]]]:
    """By arm: of each cell at P, values over steps."""
    found: dict[str, list[dict[int, float]]] = {}
    for run in runs.values():
        if run.about["point"] == "P":
            curve = run.held_out if of == "held out" else {n: s["k3"] for n, s in run.steps.items()}
            if curve:
                found.setdefault(run.about["arm"], []).append(curve)
    return dict(sorted(found.items()))


def _over_steps(runs: dict[str, Run], of: str, title: str, y: str, path: Path) -> None:
    curves = _curves(runs, of)
    values = [v for each in curves.values() for curve in each for v in curve.values()]
    values = [value for value in values if math.isfinite(value)]
    if not values:
        return
    log = of != "held out"
    if log:
        positive = [value for value in values if value > 0] or [1e-6]
        up = 10 ** math.floor(math.log10(min(positive))), 10 ** math.ceil(math.log10(max(positive)))
        up = (up[0], max(up[1], up[0] * 10))
    else:
        up = 0.0, min(1.0, math.ceil(max(values) * 10 + 0.5) / 10)
    last = max(step for each in curves.values() for curve in each for step in curve)
    picture = Picture(title, "batches", y, (0, last), up, log=log)
    for arm, each in curves.items():
        for curve in each:
            picture.line(sorted(curve.items()), arm, thin=True)
    for arm, each in curves.items():
        shared = sorted(set.intersection(*(set(curve) for curve in each)))
        mean = (lambda v: float(np.exp(np.mean(np.log(np.maximum(v, up[0])))))) if log else np.mean
        picture.line([(x, float(mean([curve[x] for curve in each]))) for x in shared], arm)
    picture.write(path)


def _frontier(runs: dict[str, Run], path: Path) -> None:
    there = {(run.about["point"], run.about["arm"]) for run in runs.values()}
    columns = [(point, arm) for point in "OLP" for arm in ARMS if (point, arm) in there]
    measured = {b: common_length(runs, b)[0] for b in {r.about["block"] for r in runs.values()}}
    found = [
        (columns.index((run.about["point"], run.about["arm"])), value, run)
        for run in runs.values()
        if (run.about["point"], run.about["arm"]) in columns
        and (value := run.outcome(measured[run.about["block"]] or run.made)) is not None
    ]
    if not found:
        return
    high = min(1.0, math.ceil(max(value for _, value, _ in found) * 10 + 0.5) / 10)
    picture = Picture(
        "Each cell: U, and hollow where it collapsed",
        "",
        "held-out accuracy, second half",
        (-0.5, len(columns) - 0.5),
        (0.0, high),
    )
    picture.parts = [each for each in picture.parts if f'y="{_HEIGHT - _BOTTOM + 18}"' not in each]
    for index, (point, arm) in enumerate(columns):
        picture.text(picture.x(index), _HEIGHT - _BOTTOM + 16, arm)
        picture.text(picture.x(index), _HEIGHT - _BOTTOM + 32, point)
    for index, value, run in found:
        picture.dot(index, value, run.about["arm"], hollow=run.collapsed() is not None)
    for row, (point, what) in enumerate(
        (("O", "1 update, high rate"), ("L", "8 updates, low rate"), ("P", "8 updates, high rate"))
    ):
        picture.parts.append(
            f'<text x="{_WIDTH - _RIGHT + 12}" y="{_TOP + 20 + 16 * row}">{point}: {what}</text>'
        )
    for row, arm in enumerate(ARMS.values()):
        picture.parts.append(
            f'<text x="{_WIDTH - _RIGHT + 12}" y="{_TOP + 84 + 16 * row}">'
            f"{arm.letter}: {arm.what}</text>"
        )
    picture.write(path)


def _differences(pairs: Sequence[tuple[int, int, float]], path: Path) -> None:
    """The primary outcome: each pair, and the mean with its interval."""
    values = [each for *_, each in pairs]
    (low, high), mean = interval(values), float(np.mean(values))
    wide = math.ceil(max(PRACTICAL, -low, high, *map(abs, values)) * 50 + 0.5) / 50
    count = len(pairs) + 1
    picture = Picture(
        "Replay less live routers: held-out accuracy, each pair, and the mean",
        "U(d) - U(b); band: no practical size",
        "",
        (-wide, wide),
        (0.0, count + 0.5),
    )
    picture.parts = [each for each in picture.parts if 'class="grid"' not in each]
    (left, right), top = (picture.x(-PRACTICAL), picture.x(PRACTICAL)), picture.y(count + 0.5)
    bottom = picture.y(0)
    picture.parts.append(
        f'<rect class="band" x="{left:.1f}" y="{top:.1f}" width="{right - left:.1f}"'
        f' height="{bottom - top:.1f}"/><path class="axis" d="M{picture.x(0):.1f} {top:.1f}V{bottom}"/>'
    )
    for row, (block, seed, value) in enumerate(pairs):
        at = count - row
        picture.dot(value, at, "d", hollow=False)
        picture.label(at, f"block {block}, seed {seed}: {value:+.3f}")
    picture.line([(low, 1), (high, 1)], "d", end=False)
    picture.dot(mean, 1, "d", hollow=True)
    picture.label(1, f"mean {mean:+.3f} [{low:+.3f}, {high:+.3f}]")
    picture.write(path)


def report(logs: Sequence[Path], out: Path) -> int:
    lines = [line for line in read(logs) if "kind" in line]
    runs = runs_of(lines)
    out.mkdir(parents=True, exist_ok=True)
    (out / "report.md").write_text(text_of(lines, runs))
    blocks = {name: run for name, run in runs.items() if run.about["block"] > 0}
    _over_steps(
        blocks,
        "held out",
        "Held-out accuracy, 8 updates of each batch",
        "problems solved, of 1",
        out / "held_out.svg",
    )
    _over_steps(
        blocks, "gap", "Gap between engine and trainer", "k3 KL, nats a token", out / "gap.svg"
    )
    _frontier(blocks, out / "frontier.svg")
    if pairs := paired(runs, complete_blocks(lines, runs), "P", *PRIMARY):
        _differences(pairs, out / "differences.svg")
    print((out / "report.md").read_text())
    return 0
