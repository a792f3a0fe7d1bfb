"""Watch the load of the experts of a running engine.

URL is the address at which routecap_tools.metrics.serve or the metrics_port of an engine serves metrics.
Give one URL for each rank. Every interval, the command shows the layers with the largest imbalance
(load of the most chosen expert over the mean), and the hottest experts of each. It names layers
that wrote nothing in a step with rows, whose cells are missing. Layers are those of the decoder.

With --save, the command adds up what all ranks chose while it ran, and writes that when it ends
(after --count intervals, or at Ctrl-C): .json for SGLang's --init-expert-location, .npy for EPLB's
rebalance_experts.
"""

import argparse
import http.client
import math
import time
import urllib.parse
import urllib.request
from collections import defaultdict
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from routecap import LOAD_PHASES, MAX_EXPERTS, Error, Load, Status
from routecap.adapter import error

from .terminal import Terminal

_URL = "http://127.0.0.1:9400/metrics"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("urls", metavar="URL", nargs="*", default=[_URL], help=f"default {_URL}")
    parser.add_argument(
        "--interval", type=_seconds, default=2.0, help="seconds between two readings; default 2"
    )
    parser.add_argument(
        "--layers", type=int, default=20, help="how many layers to show; default 20"
    )
    parser.add_argument(
        "--phase", choices=("prefill", "decode"), help="show only this phase; default both"
    )
    parser.add_argument(
        "--count", type=int, default=0, help="end after so many intervals; default: never"
    )
    parser.add_argument(
        "--save", metavar="FILE", help="write what was chosen while the command ran: .json or .npy"
    )
    parser.add_argument(
        "--decoder-layers",
        type=_decoder_layers,
        help="layers of the model, for .json; default: up to the last that was seen",
    )


def _seconds(text: str) -> float:
    if not 0 <= (seconds := float(text)) <= _MOST_INTERVAL:
        raise argparse.ArgumentTypeError(f"{text}: give seconds from 0 to {_MOST_INTERVAL}")
    return seconds


def _decoder_layers(text: str) -> int:
    if not 0 < (layers := int(text)) <= _MOST_LAYERS:
        raise argparse.ArgumentTypeError(f"{text}: give a number from 1 to {_MOST_LAYERS}")
    return layers


_MOST_INTERVAL = 86400
_MOST_BYTES = 1 << 26
_MOST_SECONDS = 10
_MOST_LAYERS = 65536

Chosen = dict[tuple[str, int], dict[int, float]]
"""By the labels that tell capturers apart, and the layer: how often each expert was chosen."""
_CHOSEN, _SILENT = "routecap_expert_chosen_total", "routecap_layer_silent_steps_total"


class Reading(NamedTuple):
    """What is served."""

    chosen: Chosen
    silent: dict[tuple[str, int], float]
    """In how many steps each layer wrote nothing."""


def _read(urls: list[str], phase: str | None) -> Reading:
    from prometheus_client.parser import text_string_to_metric_families

    chosen: Chosen = defaultdict(lambda: defaultdict(float))
    silent: dict[tuple[str, int], float] = {}
    for url in urls:
        text = _fetch(url)
        seen = False
        try:
            for sample in _samples(text_string_to_metric_families(text)):
                labels = dict(sample.labels)
                # A file of it has as many columns as the largest number says.
                layer = _below(_MOST_LAYERS, "layer", labels)
                if sample.name == _CHOSEN:
                    expert, of = _below(MAX_EXPERTS, "expert", labels), labels.pop("phase")
                if not (0 <= sample.value < math.inf):
                    raise ValueError(f"{sample.name} is {sample.value}")
                name = ",".join(f"{key}={value}" for key, value in sorted(labels.items()))
                if len(urls) > 1:
                    name = f"{urllib.parse.urlsplit(url).netloc} {name}".rstrip()
                if sample.name == _SILENT:
                    silent[name, layer] = sample.value
                    continue
                seen = True
                if phase in (None, of):
                    chosen[name, layer][expert] += sample.value
        except Exception as reason:  # its parser raises many kinds for what is no metrics
            raise error(
                Status.ERR_FORMAT,
                f"{url} serves no metrics of routecap, give where they are: {reason!r}",
            ) from None
        if not seen:
            raise error(
                Status.ERR_ARGUMENT,
                f"{url} has no routecap_expert_chosen_total: serve it with experts=True, the "
                "default",
            )
    return Reading(chosen, silent)


def _below(most: int, name: str, labels: dict[str, str]) -> int:
    """The number that a label is, which is taken out."""
    number = int(labels.pop(name))
    if not 0 <= number < most:
        raise ValueError(f"{name} {number} is none: there are {most}")
    return number


def _fetch(url: str) -> str:
    """What is served there: not more than `_MOST_BYTES`, and not for longer than some seconds."""
    end, pieces, size = time.monotonic() + _MOST_SECONDS, [], 0
    try:
        with urllib.request.urlopen(url, timeout=_MOST_SECONDS) as answer:
            while piece := answer.read1(1 << 16):
                pieces.append(piece)
                size += len(piece)
                if size > _MOST_BYTES or time.monotonic() > end:
                    raise error(
                        Status.ERR_FORMAT,
                        f"{url} serves more than {_MOST_BYTES} bytes, or takes more than"
                        f" {_MOST_SECONDS} s: name where metrics are served",
                    )
    except Error:
        raise
    except (ValueError, http.client.HTTPException) as reason:
        raise error(
            Status.ERR_ARGUMENT,
            f"{url} is no address of a server, or what is there answers no HTTP: give where"
            f" metrics are served ({reason!r})",
        ) from None
    return b"".join(pieces).decode(errors="replace")


def _samples(families: Any) -> Iterator[Any]:
    for family in families:
        yield from (each for each in family.samples if each.name in (_CHOSEN, _SILENT))


def _windows(before: Chosen, now: Chosen) -> Iterator[tuple[str, int, dict[int, float]]]:
    for (name, layer), counts in now.items():
        earlier = before.get((name, layer), {})
        window = {expert: count - earlier.get(expert, 0) for expert, count in counts.items()}
        # Of an engine that was started again: all.
        yield name, layer, counts if min(window.values()) < 0 else window


def _silent(before: Reading, now: Reading) -> list[str]:
    """The layers that wrote nothing in steps of the interval, for each capturer."""
    found: dict[str, list[str]] = {}
    for (name, layer), steps in sorted(now.silent.items()):
        earlier = before.silent.get((name, layer), 0)
        more = steps - earlier if steps >= earlier else steps  # of one that was started again
        if more:
            found.setdefault(name, []).append(f"{layer} (in {more:.0f} steps)")
    return [
        f"{f'{name}: ' if name else ''}silent layers, whose cells are missing: {', '.join(layers)}"
        for name, layers in found.items()
    ]


def _lines(before: Chosen, now: Chosen, seconds: float, layers: int) -> list[list[str]]:
    found = []
    for name, layer, window in _windows(before, now):
        total = sum(window.values())
        if total <= 0:
            continue
        mean = total / len(window)
        hottest = sorted(window, key=lambda expert: -window[expert])[:5]
        found.append(
            (
                window[hottest[0]] / mean,
                [
                    name,
                    str(layer),
                    f"{window[hottest[0]] / mean:.2f}",
                    f"{total / seconds:.0f}",
                    "  ".join(f"{expert} ({window[expert] / mean:.1f})" for expert in hottest),
                ],
            )
        )
    found.sort(key=lambda each: -each[0])
    return [line for _, line in found[:layers]]


def _add(sums: Chosen, before: Chosen, now: Chosen) -> None:
    for _, layer, window in _windows(before, now):
        for expert, count in window.items():
            sums["", layer][expert] += count


def _save(sums: Chosen, path: str, decoder_layers: int | None) -> None:
    layers = sorted(layer for _, layer in sums)
    sizes = np.array([1 + max(sums["", layer]) for layer in layers])
    counts = np.zeros((LOAD_PHASES, len(layers), sizes.max()), np.uint64)
    for index, layer in enumerate(layers):
        for expert, count in sums["", layer].items():
            counts[0, index, expert] = count  # a file has both phases in one
    visits = np.zeros(len(layers), np.uint32)
    Load(counts, 0, 0, 0, 0, 0, np.array(layers), sizes, visits).save(path, decoder_layers)


def run(arguments: argparse.Namespace, terminal: Terminal) -> int:
    columns = ("<capturer", "layer", "max/mean", "choices/s", "<hottest experts (over the mean)")
    before, then, shown = _read(arguments.urls, arguments.phase), time.monotonic(), 0
    sums: Chosen = defaultdict(lambda: defaultdict(float))
    try:
        while arguments.count == 0 or shown < arguments.count:
            time.sleep(arguments.interval)
            now, at = _read(arguments.urls, arguments.phase), time.monotonic()
            lines = _lines(before.chosen, now.chosen, at - then, arguments.layers)
            terminal.clear()
            named = ", ".join(arguments.urls)
            terminal.title(f"{named}: {len(lines)} layers with load in {at - then:.1f} s")
            terminal.table(columns, lines)
            for line in _silent(before, now):
                terminal.line(line, "red")
            _add(sums, before.chosen, now.chosen)
            before, then, shown = now, at, shown + 1
    finally:
        if arguments.save and sums:
            _save(sums, arguments.save, arguments.decoder_layers)
    return 0
