"""Output: with colours by rich where it is installed and writes to a terminal, otherwise plain text
that scripts can read.
"""

from collections.abc import Iterable, Sequence
from typing import Any, TypeVar
from unicodedata import category

import numpy as np
from numpy.typing import NDArray
from routecap.colours import expert, exponent, ramp

_Item = TypeVar("_Item")


def printable(text: str, keep: str = "") -> str:
    """A text in which every character that could steer a terminal is written as Python writes it.

    Names and texts come from files of others. ESC, controls of eight bits, and what reverses the
    direction of writing are such, and halves of characters, which cannot be written at all.
    """
    return "".join(
        each if each.isprintable() or each in keep or category(each) == "Zs" else repr(each)[1:-1]
        for each in text
    )


class Terminal:
    def __init__(self) -> None:
        self._rich: Any = None
        """rich's console, if there is something to colour."""
        self._progress: Any = None
        try:
            from rich.console import Console
        except ImportError:
            return
        console, errors = Console(highlight=False), Console(stderr=True)
        if console.is_terminal and console.color_system is not None:
            self._rich = console
        if errors.is_terminal:
            self._progress = errors

    def line(self, text: str = "", style: str = "") -> None:
        text = printable(text)
        if self._rich:
            self._rich.print(text, style=style, markup=False, soft_wrap=True)
        else:
            print(text)

    def clear(self) -> None:
        """Begin again at the top of a terminal; elsewhere what was written stays."""
        if self._rich:
            self._rich.clear()

    def title(self, text: str) -> None:
        self.line(text, "bold")

    def table(self, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
        """A table; a column whose name begins with "<" is aligned to the left, all others to the
        right.
        """
        rows = [[printable(cell) for cell in row] for row in rows]
        if self._rich:
            from rich.table import Table
            from rich.text import Text

            table = Table(box=None, header_style="dim", pad_edge=False, padding=(0, 2))
            for name in columns:
                table.add_column(
                    name.removeprefix("<"), justify="left" if name.startswith("<") else "right"
                )
            for row in rows:
                table.add_row(*map(Text, row))
            self._rich.print(table)
            return
        lines = [[name.removeprefix("<") for name in columns], *rows]
        widths = [max(map(len, column)) for column in zip(*lines)]
        for line in lines:
            cells = (
                text.ljust(width) if name.startswith("<") else text.rjust(width)
                for name, text, width in zip(columns, line, widths)
            )
            print("  ".join(cells).rstrip())

    def heat(self, labels: Sequence[str], load: NDArray[np.int64]) -> None:
        """A line for each layer: the load of each expert, as a colour or as a digit, where the
        layer's busiest is the strongest, or 9.
        """
        indent = max(map(len, labels), default=0)
        width = max((self._rich.width if self._rich else 10_000) - indent - 3, 8)
        group = -(
            -load.shape[1] // width
        )  # experts in one cell, where there are too many for a line
        cells = (
            np.add.reduceat(load, range(0, load.shape[1], group), axis=1) / group
            if load.size
            else load
        )
        most = np.maximum(cells.max(axis=1, initial=0), 1)
        wide = 2 if 2 * cells.shape[1] <= width else 1
        colours = ramp(True)
        for label, row, top in zip(labels, cells, most):
            start = f" {label.rjust(indent)}  "
            if not self._rich:
                print(start + "".join(str(int(each * 9 / top)) for each in row))
                continue
            from rich.text import Text

            text, power = Text(start, "dim"), exponent(top / max(row.mean(), 1e-9))
            for each in row:
                text.append(
                    " " * wide,
                    "on rgb(%d,%d,%d)" % colours[int((each / top) ** power * (len(colours) - 1))],
                )
            self._rich.print(text)
        if group > 1:
            self.line(f" {group} experts in each cell", "dim")
        if cells.size:
            self.line(
                " the brightest: the busiest of its layer"
                if self._rich
                else " a digit is the load of an expert, from expert 0 on: 9 is the busiest of its"
                " layer, 0 has less than a ninth of that",
                "dim",
            )

    def tokens(self, texts: Sequence[str], experts: Sequence[int | None]) -> None:
        """Text, each token on the colour of an expert; -1: on none; None: struck out, too.

        Only for a terminal that has colours.
        """
        from rich.text import Text

        text = Text()
        for token, number in zip(texts, experts):
            text.append(
                printable(token, keep="\n\t"),
                "dim strike"
                if number is None
                else ""
                if number < 0
                else "rgb(0,0,0) on rgb(%d,%d,%d)" % expert(number, False),
            )
        self._rich.print(text, soft_wrap=True)

    @property
    def colours(self) -> bool:
        return self._rich is not None

    def track(self, items: Iterable[_Item]) -> Iterable[_Item]:
        """The items, with a bar of progress on the error stream where someone sees it."""
        if self._progress is None:
            return items
        from rich.progress import track

        return track(list(items), "", console=self._progress, transient=True)
