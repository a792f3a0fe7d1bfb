"""Looks at pages of routings in a headless Chromium: what they show is what the routings hold, and
nothing goes wrong.

usage: check.py FOLDER JOB OUTPUT     where pages and screenshots go; the routings that
examples/run.sh left, and what it printed
"""

import re
import sys
from pathlib import Path

import numpy as np
import routecap
from browser import Browser
from routecap.analysis import balance, expert_load
from routecap.colours import expert
from routecap_tools.page import page

TOKENS = ["<b>", "two\n", "\udcc3", "\udca9", "\0", " "] + [
    f"{word} " for word in "the router sends each token to a few experts".split()
] * 40
TEXTS = [
    Path(__file__).parents[3] / name
    for name in ("LICENSE", "include/routecap/requests.h", "bindings/python/bench_python.py")
]
passed = failed = 0


def check(what, right):
    global passed, failed
    passed, failed = passed + bool(right), failed + (not right)
    if not right:
        print("failed:", what)


def made(rows, layers, k, experts, seed):
    """A routing with rows and cells missing."""
    scores = np.random.default_rng(seed).gumbel(size=(rows, layers, experts)) + np.linspace(
        0, 2, experts
    )
    valid = np.ones((rows, layers), bool)
    valid[10:20], valid[30:60, layers - 1] = False, False
    return routecap.Routing.from_arrays(
        np.argsort(-scores)[..., :k],
        experts=experts,
        valid=valid,
        first=5,
        layer_map=np.arange(layers) + 3,
        tags=7,
    )


def colours(browser):
    """How many colours the tokens have, faded ones left out."""
    return browser.evaluate(
        "new Set([...document.querySelectorAll('#text span:not(.faded)')].map(each =>"
        " each.style.background)).size"
    )


def texts(browser, selector):
    return browser.evaluate(
        f"[...document.querySelectorAll({selector!r})].map(each => each.textContent)"
    )


def check_page(browser, file, samples, dark):
    """What the page shows of each sample in `samples`."""
    browser.open(file)
    for number, (name, sample) in enumerate(samples.items()):
        routing = sample.routing
        if number > 0:
            browser.evaluate(
                f"document.querySelector('#sample').value = {number},"
                " document.querySelector('#sample').onchange({target:"
                " document.querySelector('#sample')})"
            )
        browser.wait_for(f"document.body?.dataset.ready === {name!r}")
        ids, valid = routing.masked()
        layers = [str(layer) for layer in routing.layer_map]
        check(
            f"{name}: an element for every token",
            browser.evaluate("document.querySelectorAll('#text span').length") == routing.rows,
        )
        check(f"{name}: a button for every layer", texts(browser, "#layers button") == layers)
        check(
            f"{name}: as many missing tokens",
            browser.evaluate("document.querySelectorAll('#text .missing').length")
            == (~valid[:, 0]).sum(),
        )
        check(
            f"{name}: coverage is hidden where nothing is missing",
            browser.evaluate("document.querySelector('#coverage').hidden") == valid.all(),
        )
        lines = [str(number) for number in range(routing.experts)]
        axes = [("experts", lines)] if valid.all() else [("experts", lines), ("decoder", layers)]
        for axis, names in axes:
            drawn = texts(browser, f"#{axis} span")
            step = names.index(drawn[1]) if len(drawn) > 1 else 1
            check(
                f"{name}: an axis of {axis} beside their picture", drawn == names[::step] and step
            )
        check(
            f"{name}: what is chosen is no heading",
            browser.evaluate("document.querySelector('h1 select')") is None
            and browser.evaluate("document.querySelector('#which').hidden") == (len(samples) < 2),
        )
        load = expert_load(routing)
        shown = [
            texts(browser, f"#load tr:nth-child({layer + 1}) td")[-4:]
            for layer in range(routing.layers)
        ]
        shown = np.array([[float(text.replace("–", "nan")) for text in layer] for layer in shown])
        check(
            f"{name}: the balance of every layer",
            np.allclose(shown, np.transpose(balance(load)[2:]), rtol=0, atol=0.006, equal_nan=True),
        )
        browser.point_at("#raster", click=True)
        browser.press("Escape")
        if not routing.rows:
            continue
        first = {expert(number, dark) for number in ids[valid[:, 0], 0, 0].tolist()}
        check(
            f"{name}: a colour for each first expert",
            colours(browser) == len(first) + (not valid[:, 0].all()),
        )

        # A token under the mouse: its experts in every layer.
        row, height = (
            min(25, routing.rows - 1),
            browser.evaluate("document.documentElement.scrollHeight"),
        )
        browser.point_at(f'#text [data-row="{row}"]')
        chips = [
            texts(browser, f".cells div:nth-of-type({layer + 1}) .chip")
            for layer in range(routing.layers)
        ]
        check(
            f"{name}: nothing moves under the mouse",
            browser.evaluate("document.documentElement.scrollHeight") == height,
        )
        check(
            f"{name}: the experts of a token",
            chips
            == [list(map(str, cell)) if there else [] for cell, there in zip(ids[row], valid[row])],
        )

        # A layer and an expert of it, chosen in the heat map: the tokens that it was given.
        layer, busiest = routing.layers - 2, int(load[routing.layers - 2].argmax())
        browser.point_at(
            f"#load tr:nth-child({layer + 1}) canvas", right=(busiest + 0.5) / routing.experts
        )
        [told] = texts(browser, "#tip")
        check(
            f"{name}: the load of an expert",
            f"expert {busiest}\n{load[layer, busiest]:,} tokens" in told,
        )
        browser.point_at(
            f"#load tr:nth-child({layer + 1}) canvas",
            right=(busiest + 0.5) / routing.experts,
            click=True,
        )
        lit = browser.evaluate(
            "[...document.querySelectorAll('#text span:not(.faded)')].map(each =>"
            " +each.dataset.row)"
        )
        check(
            f"{name}: the tokens of an expert",
            lit
            == np.flatnonzero(valid[:, layer] & (ids[:, layer] == busiest).any(axis=1)).tolist(),
        )
        check(
            f"{name}: the chosen layer",
            texts(browser, "#layers [aria-pressed=true]") == [layers[layer]],
        )

        # Keys: to a token and to another layer.
        browser.evaluate("document.querySelector('#text').focus()")
        for key in ("Escape", "ArrowRight", "ArrowRight", "ArrowUp"):
            browser.press(key)
        check(
            f"{name}: keys move",
            texts(browser, "#text .at")
            and texts(browser, "#layers [aria-pressed=true]") == [layers[max(layer - 1, 0)]],
        )
        browser.press("Escape")
        browser.evaluate("document.querySelector('#layers button').click()")


def check_output(output, samples):
    """What the main job printed: the engine's own tensors agree, and the load that the program in C
    counted is the one that is in the files.
    """
    check(
        "the engine's own tensors agree",
        re.search(r"\n\d+ calls of llama_decode, [1-9]\d* rows, 0 differences", output),
    )
    load = expert_load(sample.routing for sample in samples.values())
    digits = ["".join(str(count * 9 // max(layer)) for count in layer) for layer in load.tolist()]
    check(
        "the load that C counted",
        re.findall(r"^  layer +\d+  (\d+)  busiest", output, re.MULTILINE) == digits,
    )
    check(
        "the load that the command counted",
        re.findall(r"^ \d+  (\d+)$", output, re.MULTILINE) == digits,
    )
    texts = {
        "".join(sample.info["tokens"][: sample.info["prompt_tokens"]]).encode(
            "utf-8", "surrogateescape"
        )
        for sample in samples.values()
    }
    check(
        "the prompts are texts of this project",
        all(any(path.read_bytes().startswith(text) for path in TEXTS) for text in texts),
    )


def main():
    folder = Path(sys.argv[1])
    with_text = routecap.Sample(made(300, 6, 2, 16, 1), {"tokens": TOKENS, "prompt_tokens": 40})
    routings = {"with text": with_text, "without": routecap.Sample(made(90, 6, 2, 16, 2))}
    pages = {
        "two": routings,
        "one": {"<only> & 'one'": routings["without"]},
        "large": {"large": routecap.Sample(made(500, 58, 8, 256, 3), {"tokens": TOKENS})},
        "none": {"none": routecap.Sample(routings["without"].routing[:0])},
    }
    pages["job"] = routecap.load(sys.argv[2])
    check_output(Path(sys.argv[3]).read_text(), pages["job"])
    with Browser() as browser:
        for theme in ("light", "dark"):
            browser.prefer(theme)
            for name, samples in pages.items():
                file = folder / f"{name}.html"
                file.write_text(page(samples), encoding="utf-8")
                check_page(browser, file, samples, theme == "dark")
                check(
                    f"{name}: it is {theme}",
                    browser.evaluate("document.documentElement.dataset.theme") == theme,
                )
                browser.size(1280, browser.evaluate("document.documentElement.scrollHeight"))
                browser.screenshot(folder / f"{name}-{theme}.png")
                browser.size(400, 900)
                check(
                    f"{name}: a narrow window needs no scrolling to the side",
                    browser.evaluate("document.documentElement.scrollWidth") <= 400,
                )
                browser.screenshot(folder / f"{name}-{theme}-narrow.png")
                browser.size(1280, 900)
        check("nothing went wrong: " + "; ".join(browser.problems), not browser.problems)

        # The check itself: a page that asks for something, and one that throws.
        for text in (
            "<img src='http://127.0.0.1:9/'>",
            "<script>console.error('an error')</script>",
            "<script>throw Error('thrown')</script>",
        ):
            browser.problems.clear()
            ready = (
                "<script>addEventListener('load', () => document.body.dataset.ready = 'x')</script>"
            )
            (folder / "wrong.html").write_text(f"<!doctype html>{text}{ready}")
            browser.open(folder / "wrong.html")
            browser.wait_for("document.body?.dataset.ready")
            check(f"found: {text}", browser.problems)
    print(f"{passed} checks passed, {failed} failed")
    return failed != 0


sys.exit(main())
