"""Watch the load of the experts of a running engine.

URL is where metrics are served: by routecap.metrics.serve, or by the metrics_port of an engine. Every interval the layers with the largest imbalance
(most chosen expert over the mean) are shown, and their hottest experts, both of that interval.
"""

import argparse
import time
import urllib.request
from collections import defaultdict

from .._constants import Status
from .._errors import error
from .terminal import Terminal


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("url", metavar="URL", nargs="?", default="http://127.0.0.1:9400/metrics")
    parser.add_argument("--interval", type=float, default=2.0, help="seconds; default 2")
    parser.add_argument("--layers", type=int, default=20, help="how many; default 20")
    parser.add_argument("--phase", choices=("prefill", "decode"), help="only this; default both")
    parser.add_argument("--count", type=int, default=0, help="intervals to show; default: no end")


Chosen = dict[tuple[str, int], dict[int, float]]
"""By the labels that tell capturers apart, and the layer: how often each expert was chosen."""


def _read(url: str, phase: str | None) -> Chosen:
    from prometheus_client.parser import text_string_to_metric_families

    with urllib.request.urlopen(url, timeout=10) as answer:
        families = text_string_to_metric_families(answer.read().decode())
        chosen: Chosen = defaultdict(lambda: defaultdict(float))
        for sample in (each for family in families for each in family.samples):
            if sample.name != "routecap_expert_chosen_total":
                continue
            labels = dict(sample.labels)
            layer, expert = int(labels.pop("layer")), int(labels.pop("expert"))
            if phase in (None, labels.pop("phase")):
                name = ",".join(f"{key}={value}" for key, value in sorted(labels.items()))
                chosen[name, layer][expert] += sample.value
    if not chosen:
        raise error(
            Status.ERR_ARGUMENT,
            f"{url} has no routecap_expert_chosen_total: serve it with experts=True, the default",
        )
    return chosen


def _lines(before: Chosen, now: Chosen, seconds: float, layers: int) -> list[list[str]]:
    found = []
    for (name, layer), counts in now.items():
        earlier = before.get((name, layer), {})
        window = {expert: count - earlier.get(expert, 0) for expert, count in counts.items()}
        if min(window.values()) < 0:  # the engine was started again
            window = counts
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


def run(arguments: argparse.Namespace, terminal: Terminal) -> int:
    columns = ("<capturer", "layer", "max/mean", "choices/s", "<hottest experts (over the mean)")
    before, then, shown = _read(arguments.url, arguments.phase), time.monotonic(), 0
    while arguments.count == 0 or shown < arguments.count:
        time.sleep(arguments.interval)
        now, at = _read(arguments.url, arguments.phase), time.monotonic()
        lines = _lines(before, now, at - then, arguments.layers)
        terminal.clear()
        terminal.title(f"{arguments.url}: {len(lines)} layers with load in {at - then:.1f} s")
        terminal.table(columns, lines)
        before, then, shown = now, at, shown + 1
    return 0
