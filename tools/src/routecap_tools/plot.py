"""Pictures of routings, by matplotlib: `overview` draws one of everything, the other functions draw
one thing each on axes of the caller's.
"""

import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple
from unicodedata import east_asian_width

import numpy as np
from numpy.typing import ArrayLike
from routecap import Missing, Routing, Sample, Status, colours
from routecap.adapter import (
    alike,
    error,
    experts_per_token,
    layer_names,
    layer_of,
    prompt_of,
    token_texts,
)
from routecap.analysis import Drift, balance, expert_load, facts, reason_words
from routecap.experts import Usage, hit_rates

try:
    from matplotlib.colors import LinearSegmentedColormap, PowerNorm
    from matplotlib.figure import Figure
    from matplotlib.font_manager import fontManager, get_font
    from matplotlib.layout_engine import ConstrainedLayoutEngine
    from matplotlib.patches import Patch
    from matplotlib.ticker import MaxNLocator
except ImportError:
    raise ImportError("matplotlib is needed for this: pip install 'routecap-tools[plot]'") from None
if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis

_CARD, _INK, _SOFT, _LINE, _ACCENT, _TEAL, _ORANGE, _HOLE = (
    "#fffefb #23222b #6d6b78 #e4e1d9 #4b3fa7 #149a8a #c8651b #f6d9c5".split()
)
_COLUMNS, _LINES = 150, 14  # of text that is drawn
_PLACES = 800  # columns of a picture over positions
_DPI = 130
_REASONS = {reason: colours.hexadecimal(colours.mark(reason, False)) for reason in Missing}
_REASONS |= {Missing.ABSENT: _ORANGE, Missing.UNWRITTEN: _ACCENT}
_REASONS |= {Missing.OUT_OF_RANGE: _INK, Missing.DUPLICATE: "#9a97a8"}


def heat_map(axes: "Axes", load: ArrayLike, layer_map: ArrayLike | None = None) -> None:
    """The load [layers, experts], in means of each layer. layer_map: the numbers or names of these.

    Small loads are lifted where they could not be seen.
    """
    load = np.asarray(load, float)
    means = load / np.maximum(load.mean(axis=1, keepdims=True), 1e-9)
    steps = LinearSegmentedColormap.from_list(
        "load", [colours.hexadecimal(step) for step in colours.ramp(False)]
    )
    norm = PowerNorm(colours.exponent(float(means.max(initial=1))), vmin=0)
    image = axes.imshow(means, cmap=steps, norm=norm, aspect="auto", interpolation="nearest")
    bar = axes.figure.colorbar(image, ax=axes, pad=0.01, fraction=0.03, aspect=60)
    bar.ax.set_ylabel("load, in means of its layer")
    axes.set_xlabel("expert")
    _whole(axes.xaxis)
    _layers(axes, load.shape[0], layer_map)
    _plain(bar.ax)


def balances(
    axes: "Axes",
    load: ArrayLike,
    layer_map: ArrayLike | None = None,
    layer_experts: ArrayLike | None = None,
) -> None:
    """How even the load of each layer is: normalised entropy and Gini coefficient, and max / mean
    on an axis of its own.
    """
    figures = balance(np.asarray(load), layer_experts)
    layers = np.arange(len(figures.entropy))
    peak = axes.twiny()
    lines = (
        (axes, figures.entropy, _ACCENT, "o-", "entropy (lower axis)"),
        (axes, figures.gini, _TEAL, "o-", "Gini (lower axis)"),
        (peak, figures.peak, _ORANGE, "s:", "max / mean (upper axis)"),
    )
    drawn = [
        on.plot(figure, layers, style, color=colour, markersize=3, linewidth=1.2, label=name)[0]
        for on, figure, colour, style, name in lines
    ]
    axes.set_xlim(-0.02, 1.02)
    axes.set_xlabel("entropy, Gini")
    axes.grid(axis="x", color=_LINE, linewidth=0.6)
    axes.legend(
        handles=drawn, frameon=False, fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.16)
    )
    axes.set_ylim(len(layers) - 0.5, -0.5)
    _layers(axes, len(layers), layer_map)
    peak.set_xlim(left=0)
    peak.set_xlabel("max / mean")
    _plain(peak)
    peak.xaxis.label.set_color(_ORANGE)


def positions(axes: "Axes", routing: Routing, layer: int) -> None:
    """A mark for each expert of each row in a layer, an index in the decoder; missing cells are
    shaded.

    Where there are more rows than a picture has room for, a mark is of several rows next to one
    another: the stronger, the more of them were sent there. Of these none may be missing without
    being seen: then all are shaded.
    """
    captured = layer_of(routing, layer)
    ids, valid = (
        array[:, 0] for array in routing.masked(np.int64, fill=-1, first_layer=captured, layers=1)
    )
    experts = int(routing.layer_experts[captured])
    starts = _bins(routing.rows)
    column = np.repeat(np.arange(len(starts)), np.diff(starts, append=routing.rows))
    counts = np.bincount(
        (ids * len(starts) + column[:, None])[ids >= 0], minlength=experts * len(starts)
    ).reshape(experts, len(starts))
    share = counts / np.maximum(np.bincount(column[valid], minlength=len(starts)), 1)
    strength = (
        np.minimum(share / max(np.quantile(share[share > 0], 0.99), 1e-9), 1)
        if counts.any()
        else share
    )
    background = np.full((max(len(starts), 1), 3), _rgb(_CARD), float)
    background[column[~valid]] = _rgb(_HOLE)
    marks = np.array([colours.mark(number, False) for number in range(experts)], float)
    weight = strength[..., None] if strength.size else np.zeros((experts, 1, 1))
    image = background + (marks[:, None] - background) * weight**0.7
    _image(axes, image.round().astype(np.uint8), routing)
    axes.set_ylabel("expert")
    _whole(axes.yaxis)


def coverage(axes: "Axes", routing: Routing) -> None:
    """Which cells are missing, coloured by why.

    However many rows there are, none of these is too small to be seen.
    """
    why = np.zeros((1, routing.layers), np.uint8)
    if routing.rows:
        why = np.maximum.reduceat(routing.reasons(), _bins(routing.rows), axis=0)
    tones = np.full(
        (256, 3), _rgb(_ORANGE), np.uint8
    )  # of reasons that a later library may say, too
    tones[0] = _rgb("#efece4")
    tones[list(Missing)] = [_rgb(_REASONS[reason]) for reason in Missing]
    _image(axes, tones[why.T], routing)
    _layers(axes, routing.layers, layer_names(routing.layer_map, routing.layer_visit), 6)
    reasons = [reason for reason in Missing if (why == reason).any()]
    axes.legend(
        handles=[Patch(color=_REASONS[reason], label=reason_words(reason)) for reason in reasons],
        frameon=False,
        fontsize=8,
        ncols=max(len(reasons), 1),
        loc="lower right",
        bbox_to_anchor=(1, 1),
    )


def usage(axes: "Axes", used: Usage, levels: Sequence[int] = (0, 10, 100)) -> None:
    """How many experts of each layer got at most so many tokens: what a calibration set leaves
    out. The bars of a layer lie on one another, the fewest tokens to the left.
    """
    tones = (_ORANGE, _ACCENT, _TEAL, _SOFT)
    layers, below = np.arange(len(used.tokens)), np.zeros(len(used.tokens), np.int64)
    for level, tone in zip(sorted(levels), tones):
        counts = used.at_most(level).sum(axis=1)
        name = "no token" if level == 0 else f"at most {level}"
        axes.barh(layers, counts - below, left=below, color=tone, label=name)
        below = counts
    axes.set_xlim(0, max(int(used.layer_experts.max(initial=1)), 1))
    axes.set_ylim(len(layers) - 0.5, -0.5)
    axes.set_xlabel("experts")
    _whole(axes.xaxis)
    axes.legend(frameon=False, fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=3)
    _layers(axes, len(layers), layer_names(used.layer_map, used.layer_visit))
    _plain(axes)


def pairs(axes: "Axes", together: ArrayLike) -> None:
    """The co-activation [experts, experts] of one layer, relative to what independent choices of
    the same load would give: 1 as often, 2 twice as often. The diagonal is left out.
    """
    counts = np.array(together, float)
    load = counts.diagonal().copy()
    np.fill_diagonal(counts, 0)
    expected = np.outer(load, load)
    np.fill_diagonal(expected, 0)
    scale = counts.sum() / max(float(expected.sum()), 1e-9)
    with np.errstate(divide="ignore", invalid="ignore"):
        relative = counts / (expected * scale)
    steps = LinearSegmentedColormap.from_list(
        "pairs", [colours.hexadecimal(step) for step in colours.ramp(False)]
    )
    finite = relative[np.isfinite(relative)]
    most = max(float(np.quantile(finite, 0.995)) if finite.size else 2, 2)
    image = axes.imshow(relative, cmap=steps, vmin=0, vmax=most, interpolation="nearest")
    bar = axes.figure.colorbar(image, ax=axes, pad=0.01, fraction=0.046)
    bar.ax.set_ylabel("together, beside independent choices")
    axes.set_xlabel("expert")
    axes.set_ylabel("expert")
    _whole(axes.xaxis)
    _whole(axes.yaxis)
    _plain(axes)
    _plain(bar.ax)


def drift(axes: "Axes", found: Drift) -> None:
    """Which cells of two routings differ, over positions and layers: the stronger the colour, the
    larger the share of those that share a place, of several sequences or of positions next to one
    another. One that differs is always seen. What could not be compared is shaded.
    """
    first, last = (
        (int(found.positions.min()), int(found.positions.max())) if len(found.positions) else (0, 0)
    )
    starts = _bins(last - first + 1)
    column = np.searchsorted(starts, found.positions - first, "right") - 1
    compared, differs = np.zeros((2, len(starts), len(found.layer_map)))
    np.add.at(compared, column, found.both)
    np.add.at(differs, column, found.differs)
    share = (differs / np.maximum(compared, 1))[..., None]
    image = np.full((*compared.shape, 3), _rgb(_HOLE), float)
    image[compared > 0] = _rgb("#efece4")
    image += np.where(share > 0, 0.3 + 0.7 * share, 0) * (np.array(_rgb(_ACCENT)) - image)
    axes.imshow(
        image.transpose(1, 0, 2).round().astype(np.uint8),
        aspect="auto",
        interpolation="nearest",
        extent=(first - 0.5, last + 0.5, len(found.layer_map) - 0.5, -0.5),
    )
    axes.set_xlabel("position")
    _whole(axes.xaxis)
    _layers(axes, len(found.layer_map), layer_names(found.layer_map, found.layer_visit))
    cells, differ = int(found.both.sum()), int(found.differs.sum())
    axes.set_title(f"{differ:,} of {cells:,} compared cells differ", fontsize=9)


def caches(axes: "Axes", steps: Sequence[Any], experts: int) -> None:
    """Hit rates over the size of a cache of one layer's experts: LRU, and the best there is.

    `steps` is what `experts.needed` gives.
    """
    sizes = np.unique(np.linspace(1, experts, min(experts, 24)).round().astype(int))
    rates = hit_rates(steps, sizes.tolist())
    axes.plot(sizes, rates.optimal, "s-", color=_TEAL, markersize=3, label="optimal (Belady)")
    axes.plot(sizes, rates.lru, "o-", color=_ACCENT, markersize=3, label="LRU")
    axes.set_xlim(0, experts)
    axes.set_ylim(0, 1.02)
    axes.set_xlabel(f"experts that the cache holds, of {experts}")
    axes.set_ylabel("hit rate")
    axes.grid(color=_LINE, linewidth=0.6)
    axes.legend(frameon=False, fontsize=8)
    _plain(axes)


def text(axes: "Axes", sample: Sample, layer: int) -> None:
    """The beginning of a sample's text, or the numbers of its rows, each token on the colour of its
    first expert in a layer, an index in the decoder.

    Missing rows are striped, and a bar is where the prompt ends. Where the font of matplotlib has
    no such character, one that is installed draws it; if there is none, a box is drawn and a
    UserWarning says so.
    """
    lines, image, missing, starts = _typeset(sample, layer)
    axes.imshow(image, aspect="auto", interpolation="nearest", extent=(0, _COLUMNS, len(lines), 0))
    families, none = _fonts({character for line in lines for character in line})
    for line, characters in enumerate(lines):
        for column, character in enumerate(characters):
            if character != " ":
                drawn = axes.text(
                    column + _width(character) / 2,
                    line + 0.54,
                    "\N{WHITE VERTICAL RECTANGLE}" if character in none else character,
                    color=_ORANGE if missing[line, column] else _INK,
                    family=families,
                    fontsize=10.5,
                    ha="center",
                    va="center",
                    parse_math=False,
                )
                drawn.set_in_layout(False)
    axes.hlines(range(1, len(lines)), 0, _COLUMNS, color=_CARD, linewidth=1.5)
    prompt = prompt_of(sample)
    row = -1 if prompt is None else prompt - sample.routing.first
    if 0 <= row < len(starts):
        line, column = starts[row]
        axes.vlines(column, line, line + 1, color=_INK, linewidth=2)
    axes.set_axis_off()


class _Text(NamedTuple):
    lines: list[str]
    """Those that there is room for. A character is at its column; after one of two columns is a
    space."""
    image: Any
    """[lines, columns, 3], the colour behind each character."""
    missing: Any
    """[lines, columns] of bool"""
    starts: list[tuple[int, int]]
    """The line and column of the first character of each row that begins there."""


def _typeset(sample: Sample, layer: int) -> _Text:
    routing = sample.routing[: _COLUMNS * _LINES]  # more there is no room for
    ids, valid = routing.masked(np.int16, first_layer=layer_of(routing, layer), layers=1)
    texts = token_texts(sample._replace(routing=routing)) or [
        f" {routing.first + row} " for row in range(routing.rows)
    ]
    image = np.full((_LINES, _COLUMNS, 3), _rgb(_CARD), np.uint8)
    missing = np.zeros((_LINES, _COLUMNS), bool)
    lines, starts, line, column = [""], [], 0, 0
    for token, chosen, there in zip(texts, ids[:, 0, 0].tolist(), valid[:, 0]):
        widths = [_width(character) for character in token]
        if column + sum(widths) > _COLUMNS >= sum(widths):  # it begins the next line
            column = _COLUMNS
        for number, (character, width) in enumerate(zip(token, widths)):
            if column + width > _COLUMNS:
                line, column = line + 1, 0
                lines.append("")
            if line == _LINES:
                break
            if number == 0:
                starts.append((line, column))
            if chosen >= 0:
                image[line, column : column + width] = colours.expert(chosen, False)
            missing[line, column : column + width] = not there
            lines[line] += (character if character.isprintable() else " ") + " " * (width - 1)
            column = _COLUMNS if character == "\n" else column + width
        if not token:
            starts.append((line, column))
        if line == _LINES:
            break
    image[missing] = np.where(np.argwhere(missing)[:, 1:] % 2, _rgb(_HOLE), _rgb(_CARD))
    lines = lines[:_LINES]
    return _Text(lines, image[: len(lines)], missing, starts)


def _width(character: str) -> int:
    """The columns that a character takes."""
    return 2 if east_asian_width(character) in "WF" else 1


def _fonts(characters: set[str]) -> tuple[list[str], set[str]]:
    """The fonts that draw these characters, matplotlib's own and of those installed as few as it
    takes, and the characters that none has."""
    families, left = ["monospace"], characters - {" "}

    def drawn(path: str) -> set[str]:
        font = get_font(path)
        return {character for character in left if font.get_char_index(ord(character))}

    left -= drawn(fontManager.findfont("monospace"))
    for font in fontManager.ttflist:
        # Fonts of coloured emoji are pictures, which matplotlib cannot draw.
        if not left or font.style != "normal" or "Color" in font.name:
            continue
        if found := drawn(font.fname):
            families.append(font.name)
            left -= found
    if left:
        warnings.warn(
            f"no installed font has {''.join(sorted(left)[:20])!r}: install one, such as "
            "fonts-noto-cjk, or write the page, which a browser draws with its own",
            stacklevel=4,
        )
    return families, left


def overview(samples: Mapping[str, Sample], layer: int | None = None) -> Figure:
    """A figure of samples of one model: the load and balance of all together; of the first one the
    tokens and positions in a layer, an index in the decoder (the first one is the default), and
    what is missing.
    """
    if len(alike(samples)) != 1:
        raise error(
            Status.ERR_SHAPE_MISMATCH,
            "one picture is of one model: these have different layers, experts or k. Draw those of"
            " each model by themselves",
        )
    name, first = next(iter(samples.items()))
    routing = first.routing
    layer = int(routing.layer_map[0]) if layer is None else layer
    load = expert_load(sample.routing for sample in samples.values())
    written = len(_typeset(first, layer).lines)
    load_height = min(max(1.6 + 0.16 * routing.layers, 2.4), 9)
    experts_height = max(3.5, 0.9 + 1.25 * routing.experts / _DPI)  # a pixel each
    heights = [load_height + 1.4, 0.23 * written + 0.5, experts_height]
    heights += [] if routing.complete else [2.5]
    figure = Figure(
        figsize=(14, sum(heights)),
        dpi=_DPI,
        layout=ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.1),
        facecolor=_CARD,
    )
    parts: Any = figure.subfigures(len(heights), 1, height_ratios=heights, hspace=0.02)
    left, right = parts[0].subplots(1, 2, width_ratios=[2.8, 1])
    names = layer_names(routing.layer_map, routing.layer_visit)
    heat_map(left, load, names)
    balances(right, load, names, routing.layer_experts)
    _title(
        left,
        "Load of the experts"
        + ("" if len(samples) == 1 else f", {len(samples)} routings together"),
    )
    title = f"{name}: {', '.join(facts(routing))}"
    of = ""
    if len(samples) > 1:  # the load is that of all, and what is below it that of the first
        title = (
            f"{len(samples)} routings: {routing.layers} layers,"
            f" {experts_per_token(routing.layer_k, routing.layer_min_k)} of {routing.experts} experts"
        )
        of = f"{name}: "
    parts[0].suptitle(title, x=0.009, ha="left", fontsize=12, color=_INK).set_parse_math(False)
    middle = parts[1].subplots()
    text(middle, first, layer)
    _title(
        middle,
        of
        + f"{'Tokens' if first.info.get('tokens') else 'Rows'} on the colour of their first expert in"
        f" layer {layer}" + (", the beginning" if written == _LINES else ""),
    )
    middle = parts[2].subplots()
    positions(middle, routing, layer)
    if (prompt := prompt_of(first)) is not None:
        middle.axvline(prompt - 0.5, color=_INK, linewidth=1)
    _title(
        middle,
        of
        + f"Experts of layer {layer} over the sequence"
        + ("; the line is the end of the prompt" if prompt is not None else ""),
    )
    if not routing.complete:
        lowest = parts[3].subplots()
        coverage(lowest, routing)
        _title(lowest, f"{of}What is missing")
    return figure


def _rgb(colour: str) -> tuple[int, ...]:
    return tuple(bytes.fromhex(colour[1:]))


def _title(axes: "Axes", title: str) -> None:
    drawn = axes.set_title(title, loc="left", fontsize=10.5, fontweight="bold", color=_INK)
    drawn.set_parse_math(False)  # names are those of files


def _bins(rows: int) -> Any:
    """The first row of each column of a picture: one for each row, as long as there is room."""
    return np.linspace(0, rows, min(rows, _PLACES), endpoint=False).astype(np.int64)


def _image(axes: "Axes", image: Any, routing: Routing) -> None:
    """An image whose columns are the rows of a routing, or equally many of them each."""
    extent = (
        routing.first - 0.5,
        routing.first + max(routing.rows, 1) - 0.5,
        image.shape[0] - 0.5,
        -0.5,
    )
    axes.imshow(image, aspect="auto", interpolation="nearest", extent=extent)
    axes.set_xlabel("position")
    _whole(axes.xaxis)
    _plain(axes)


def _layers(axes: "Axes", layers: int, layer_map: ArrayLike | None, most: int = 24) -> None:
    """The decoder's indices of some of the layers, at most so many."""
    names = np.arange(layers) if layer_map is None else np.asarray(layer_map)
    shown = np.arange(0, layers, -(-max(layers, 1) // most))
    axes.set_yticks(shown, [str(name) for name in names[shown]])
    axes.set_ylabel("layer")
    _plain(axes)


def _whole(axis: "Axis") -> None:
    """Numbers at whole ones only."""
    axis.set_major_locator(MaxNLocator("auto", steps=[1, 2, 5, 10], integer=True, min_n_ticks=1))


def _plain(axes: "Axes") -> None:
    for spine in axes.spines.values():
        spine.set_visible(False)
    axes.tick_params(length=0, labelsize=8, labelcolor=_SOFT)
    axes.xaxis.label.set(color=_SOFT, size=9)
    axes.yaxis.label.set(color=_SOFT, size=9)
