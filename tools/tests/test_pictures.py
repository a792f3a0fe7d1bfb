"""The page and the pictures: their data are those of the routings. html/ looks at the page in a
browser.
"""

import json
import re
import zlib
from base64 import b64decode
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import routecap
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from routecap import analysis, colours
from routecap_testing.helpers import EXPERTS, LAYERS, K, a_row_of_each_reason, expected_ids
from routecap_tools import plot
from routecap_tools.command import main
from routecap_tools.page import page


@pytest.fixture
def samples(routing: routecap.Routing, holey: routecap.Routing) -> dict[str, routecap.Sample]:
    holey.wait()
    tokens = ["</script>", "<!--", "\udcc3", "\udca9", "\0", "'\"&"] + ["$x$ "] * 4
    return {
        "plain": routecap.Sample(routing),
        "a < b": routecap.Sample(holey, {"tokens": tokens, "prompt_tokens": 3}),
    }


def data_of(text: str) -> dict[str, Any]:
    [data] = re.findall(
        r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL
    )
    found: dict[str, Any] = json.loads(data)
    return found


def ids_of(sample: dict[str, Any]) -> Any:
    return np.frombuffer(zlib.decompress(b64decode(sample["ids"])), "<u2").reshape(-1, LAYERS, K)


# ---- The page


def test_the_page_has_the_ids_and_the_reasons_of_every_cell(
    samples: dict[str, routecap.Sample],
) -> None:
    plain, holey = data_of(page(samples))["samples"]
    assert (ids_of(plain) == expected_ids(3, 20)).all()
    ids, valid = ids_of(holey), samples["a < b"].routing.mask()
    assert (ids[valid] == expected_ids(3, 10)[valid]).all() and (ids[~valid] >= 32768).all()
    assert (65535 - ids[4:6] == routecap.Missing.ABSENT).all() and (
        65535 - ids[6:, 2] == routecap.Missing.UNWRITTEN
    ).all()


def test_the_page_has_the_load_of_each_and_of_all(samples: dict[str, routecap.Sample]) -> None:
    data = data_of(page(samples, layer=3))
    [group] = data["groups"]
    assert (
        group["chosen"] == 3
        and group["layers"] == [str(layer) for layer in range(LAYERS)]
        and group["experts"] == [EXPERTS] * LAYERS
    )
    total = analysis.expert_load(sample.routing for sample in samples.values())
    assert group["load"]["counts"] == total.tolist()
    for written, sample in zip(data["samples"], samples.values()):
        load = analysis.expert_load(sample.routing)
        assert written["load"]["counts"] == load.tolist()
        assert written["load"]["gini"] == pytest.approx(
            analysis.balance(load).gini.tolist(), abs=1e-4
        )


def test_the_page_needs_nothing_else_and_no_text_breaks_out_of_it(
    samples: dict[str, routecap.Sample],
) -> None:
    text = page(samples)
    assert not re.search(r"(src|href)=\"(?!data:)|https?://|@import|url\((?!data:)", text)
    assert text.count("</script>") == 2 and "default-src 'none'" in text
    assert data_of(text)["samples"][1]["tokens"][:6] == ["</script>", "<!--", "", "é", "\0", "'\"&"]


def test_the_page_shows_the_beginning_of_what_is_long_and_counts_all(
    monkeypatch: pytest.MonkeyPatch, samples: dict[str, routecap.Sample]
) -> None:
    monkeypatch.setattr("routecap_tools.page._ROWS", 8)
    plain, holey = data_of(page(samples))["samples"]
    assert (plain["rows"], plain["shown"], len(ids_of(plain))) == (20, 8, 8) and len(
        holey["tokens"]
    ) == 8
    assert np.sum(plain["load"]["counts"]) == 20 * LAYERS * K
    monkeypatch.setattr("routecap_tools.page._IDS", 8 * LAYERS * K)
    assert [each["shown"] for each in data_of(page(samples))["samples"]] == [4, 4]


def test_layers_with_different_experts_have_their_own_lengths() -> None:
    routing = routecap.Routing.from_arrays([[[0], [0]], [[1], [7]]], layer_experts=[2, 8])
    [sample] = data_of(page({"a": routecap.Sample(routing)}))["samples"]
    assert (
        sample["load"]["counts"] == [[1, 1], [1, 0, 0, 0, 0, 0, 0, 1]] and sample["tokens"] is None
    )


# ---- Pictures


def drawn(figure: Figure) -> Any:
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())


def axes_of(figure: Figure) -> Any:
    return figure.subplots()


def test_the_heat_map_is_the_load_in_means(routing: routecap.Routing) -> None:
    load, axes = analysis.expert_load(routing), axes_of(Figure())
    plot.heat_map(axes, load, routing.layer_map)
    assert np.allclose(axes.images[0].get_array(), load / load.mean(axis=1, keepdims=True))


def test_balances_are_drawn_as_they_are(routing: routecap.Routing) -> None:
    load, axes = analysis.expert_load(routing), axes_of(Figure())
    plot.balances(axes, load)
    figures = analysis.balance(load)
    entropy, gini = (line.get_xdata() for line in axes.get_lines())
    assert (entropy == figures.entropy).all() and (gini == figures.gini).all()


def test_positions_have_a_mark_for_each_expert(samples: dict[str, routecap.Sample]) -> None:
    axes, routing = axes_of(Figure()), samples["a < b"].routing
    plot.positions(axes, routing, 2)
    image, ids, valid = axes.images[0].get_array(), expected_ids(3, 10)[:, 2], routing.mask()[:, 2]
    for row in range(10):
        background = image[next(expert for expert in range(EXPERTS) if expert not in ids[row]), row]
        marks = np.flatnonzero((image[:, row] != background).any(axis=1))
        assert set(marks) == (set(ids[row]) if valid[row] else set())
    assert (image[:, 4] == image[:, 5]).all() and (
        image[:, 4] != image[-1, 0]
    ).any()  # missing rows are shaded
    assert tuple(image[ids[0, 0], 0]) == colours.mark(int(ids[0, 0]), False)


def test_text_is_on_the_colour_of_its_first_expert(samples: dict[str, routecap.Sample]) -> None:
    axes = axes_of(Figure())
    sample = samples["plain"]._replace(info={"tokens": ["ab", "\n", "c"]})
    plot.text(axes, sample, 1)
    image, first = axes.images[0].get_array(), expected_ids(3, 20)[:, 1, 0]
    assert [tuple(image[0, column]) for column in range(3)] == [
        colours.expert(int(first[row]), False) for row in (0, 0, 1)
    ]
    assert tuple(image[1, 0]) == colours.expert(int(first[2]), False)
    assert [each.get_text() for each in axes.texts] == ["a", "b", "c"]


def test_a_token_is_on_one_line_where_there_is_room(
    monkeypatch: pytest.MonkeyPatch, samples: dict[str, routecap.Sample]
) -> None:
    """The number 77 was a 7 at the end of a line and another in the next."""
    monkeypatch.setattr(plot, "_COLUMNS", 10)
    rows = samples["plain"]._replace(routing=samples["plain"].routing[9:13])
    assert plot._typeset(rows, 0).lines == [" 9  10 ", " 11  12 "]
    tokens = ["abcd efgh", "ijkl", "a" * 12]
    text = samples["plain"]._replace(info={"tokens": tokens + ["b"] * 18})
    assert plot._typeset(text, 0).lines[:3] == ["abcd efgh", "ijklaaaaaa", "aaaaaabbbb"]


def test_missing_rows_are_no_expert_and_a_bar_ends_the_prompt(
    samples: dict[str, routecap.Sample],
) -> None:
    axes, sample = axes_of(Figure()), samples["a < b"]
    plot.text(axes, sample._replace(info={"tokens": list("abcdefghij"), "prompt_tokens": 3}), 2)
    valid, image = sample.routing.mask()[:, 2], axes.images[0].get_array()[0]
    ink = [each.get_color() for each in axes.texts]
    assert ink == [plot._INK if there else plot._ORANGE for there in valid] and len(set(ink)) == 2
    experts = {colours.expert(number, False) for number in range(EXPERTS)}
    assert [tuple(image[column]) in experts for column in range(10)] == valid.tolist()
    [bar] = axes.collections[-1].get_segments()
    assert bar.tolist() == [[3, 0], [3, 1]]


def test_wide_characters_have_room_and_those_of_no_font_are_boxes(
    monkeypatch: pytest.MonkeyPatch, samples: dict[str, routecap.Sample]
) -> None:
    """They were boxes over one another, and a warning each."""
    fonts = [font for font in plot.fontManager.ttflist if font.name.startswith("DejaVu")]
    monkeypatch.setattr(plot.fontManager, "ttflist", fonts)
    axes, tokens = axes_of(Figure()), ["今天", "é", "🎉"] + [""] * 18
    with pytest.warns(UserWarning, match="no installed font has '今天🎉': install one") as warned:
        plot.text(axes, samples["plain"]._replace(info={"tokens": tokens}), 1)
        axes.figure.canvas.draw()
    assert len(warned) == 1
    found = [(each.get_position()[0], each.get_text()) for each in axes.texts]
    assert found == [(1, "▯"), (3, "▯"), (4.5, "é"), (6, "▯")]


def test_rows_and_experts_are_whole_numbers_and_no_expert_is_between_pixels() -> None:
    """Three rows were labelled 0.5, and of 512 experts some were drawn nowhere."""
    ids = np.arange(3 * 32).reshape(3, 1, 32) * 5
    figure = plot.overview({"a": routecap.Sample(routecap.Routing.from_arrays(ids, experts=512))})
    drawn(figure)
    heat, experts = figure.subfigs[0].axes[0], figure.subfigs[2].axes[0]
    for axis in (heat.xaxis, experts.xaxis, experts.yaxis):
        assert all(float(tick).is_integer() for tick in axis.get_majorticklocs())
    assert experts.get_window_extent().height >= 512


def test_of_a_long_request_nothing_that_is_missing_vanishes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One row of 36,000 was a tint that nobody saw, and the experts of the others were too."""
    monkeypatch.setattr(plot, "_PLACES", 50)
    ids, valid = np.zeros((1000, LAYERS, K), np.int64), np.ones((1000, LAYERS), bool)
    ids[:] = np.arange(K)
    ids[500:520, 1, 0] = EXPERTS - 1  # a column whole
    ids[520:530, 1, 0] = EXPERTS - 1  # and half of the next
    valid[703, 1] = False
    routing = routecap.Routing.from_arrays(ids, experts=EXPERTS, valid=valid, first=100)
    axes = axes_of(Figure())
    plot.coverage(axes, routing)
    image = axes.images[0].get_array()
    different = (image != image[0, 0]).any(axis=2)
    assert image.shape[:2] == (LAYERS, 50) and np.argwhere(different).tolist() == [[1, 35]]
    axes = axes_of(Figure())
    plot.positions(axes, routing, 1)
    image = axes.images[0].get_array().astype(int)
    assert axes.images[0].get_extent()[:2] == [99.5, 1099.5]
    card, row = image[EXPERTS - 2, 0], image[EXPERTS - 1]
    strength = np.abs(row - card).sum(axis=1)
    assert tuple(row[25]) == colours.mark(EXPERTS - 1, False) and 0 < strength[26] < strength[25]
    assert np.flatnonzero((image[EXPERTS - 2] != card).any(axis=1)).tolist() == [35]


def test_the_picture_is_as_high_as_the_text_is_long(samples: dict[str, routecap.Sample]) -> None:
    short = samples["plain"]._replace(info={"tokens": ["a"] * 21})
    long = samples["plain"]._replace(info={"tokens": ["a\n"] * 21})
    heights = [plot.overview({"a": each}).get_figheight() for each in (short, long)]
    assert heights[1] - heights[0] == pytest.approx(0.23 * (plot._LINES - 1))


def test_every_reason_has_a_colour_of_its_own() -> None:
    axes, reasons = axes_of(Figure()), routecap.Missing
    plot.coverage(axes, a_row_of_each_reason())
    image = axes.images[0].get_array()
    assert len({tuple(image[0, row]) for row in range(len(reasons))}) == len(reasons)
    legend = [each.get_text() for each in axes.get_legend().get_texts()]
    assert legend == [reason.name.lower().replace("_", " ") for reason in reasons]


@pytest.mark.slow
def test_the_overview_draws_samples_with_and_without_text_and_holes(
    samples: dict[str, routecap.Sample], tmp_path: Path
) -> None:
    for name, parts in (("plain", 3), ("a < b", 4)):
        figure = plot.overview({name: samples[name]}, 2)
        assert len(figure.subfigs) == parts and drawn(figure).std() > 10
    routecap.save(tmp_path / "job", samples)
    for ending in ("png", "svg"):
        assert main(["show", str(tmp_path / "job"), "--png", str(tmp_path / f"a.{ending}")]) == 0
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG") and "<svg" in (
        tmp_path / "a.svg"
    ).read_text()


def test_titles_and_axes_of_the_overview_say_what_they_are_of(
    samples: dict[str, routecap.Sample],
) -> None:
    """A name is no mathematics: an odd $ was an exception."""
    figure = plot.overview({"a$\\frac$": samples["a < b"], "b": samples["plain"]}, 2)
    drawn(figure)
    assert (
        figure.subfigs[0].get_suptitle() == f"2 routings: {LAYERS} layers, {K} of {EXPERTS} experts"
    )
    titles = [each.axes[0].get_title("left") for each in figure.subfigs]
    assert titles[0] == "Load of the experts, 2 routings together"
    assert all(each.startswith("a$\\frac$: ") for each in titles[1:])
    balances, peak = figure.subfigs[0].axes[1], figure.subfigs[0].axes[-1]
    legend = [each.get_text() for each in balances.get_legend().get_texts()]
    assert legend == ["entropy (lower axis)", "Gini (lower axis)", "max / mean (upper axis)"]
    assert peak.get_xlabel() == "max / mean"


def test_a_picture_is_of_one_model(samples: dict[str, routecap.Sample]) -> None:
    other = routecap.Sample(
        routecap.Routing.from_arrays(expected_ids(1, 3, layers=2), experts=EXPERTS)
    )
    with pytest.raises(ValueError, match="one model"):
        plot.overview({**samples, "other": other})


# ---- Colours


@pytest.mark.parametrize("dark", [False, True])
def test_more_load_is_always_further_from_the_background(dark: bool) -> None:
    luminance = [
        0.2126 * red + 0.7152 * green + 0.0722 * blue for red, green, blue in colours.ramp(dark)
    ]
    assert luminance == sorted(luminance, reverse=not dark)


@pytest.mark.parametrize("dark", [False, True])
def test_text_can_be_read_on_the_colour_of_every_expert(dark: bool) -> None:
    def luminance(colour: colours.Colour) -> float:
        red, green, blue = (
            each / 255 / 12.92 if each < 11 else ((each / 255 + 0.055) / 1.055) ** 2.4
            for each in colour
        )
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    ink = luminance((233, 231, 240) if dark else (35, 34, 43))
    for expert in range(256):
        low, high = sorted((luminance(colours.expert(expert, dark)), ink))
        assert (high + 0.05) / (low + 0.05) >= 4.5, expert
