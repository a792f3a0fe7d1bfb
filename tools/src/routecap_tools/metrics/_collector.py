"""A capturer's counters and load as prometheus_client's registries take them."""

import math
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol, TypedDict, Unpack

import numpy as np
from numpy.typing import NDArray
from routecap import Load, Phase, Stats, Status, StoreStats
from routecap.adapter import error

_STEPS = {"steps_issued": "issued", "steps_lost": "lost"}
_ROWS = ("delivered", "missing", "lost", "late", "rejected", "unplaced", "refused", "skipped")
_CELLS = {
    "valid": "rows_written",
    "unwritten": "unwritten",
    "out_of_range": "out_of_range",
    "duplicate": "duplicate",
}
_BLOCKS = ("adopted", "absent", "published", "refused", "stale", "evicted", "mismatched")


_OWN = ("expert", "kind", "layer", "outcome", "phase", "state")
"""Labels that series have already."""
_LABEL = re.compile(r"(?!__)[a-zA-Z_][a-zA-Z0-9_]*")


class Counters(Protocol):
    """A capturer, or who asks one in another process."""

    def stats(self) -> Stats: ...
    def load(self) -> Load: ...
    def layer_stats(self) -> NDArray[np.void]: ...


class Counts(Protocol):
    """A store, or who asks one in another process."""

    def stats(self) -> StoreStats | None: ...


class Options(TypedDict, total=False):
    """Of Collector, which describes them."""

    experts: bool
    window: float
    labels: Mapping[str, str | int | float] | None


def checked(options: Options) -> Options:
    """Options as a scrape takes them. What is wrong would be a traceback in each.

    Raises:
        ArgumentError: A label has a name of the series' own, or is no text nor a number; or the
            window is no number of seconds.
    """
    if unknown := set(options) - set(Options.__annotations__):
        raise error(
            Status.ERR_ARGUMENT,
            f"there is no option {', '.join(sorted(unknown))}: give"
            f" {', '.join(Options.__annotations__)}",
        )
    made, labels = options.copy(), options.get("labels")
    if labels is not None:
        if not isinstance(labels, Mapping):
            raise error(
                Status.ERR_ARGUMENT,
                f"labels are a {type(labels).__name__}: give a mapping, such as {{'rank': 3}}",
            )
        made["labels"] = {name: _value(name, value) for name, value in labels.items()}
    window = options.get("window", 0.0)
    if not isinstance(window, (int, float)) or not 0 <= window < math.inf:
        raise error(Status.ERR_ARGUMENT, f"window is {window!r}: give a number of seconds")
    return made


def _value(name: object, value: object) -> str:
    """The value of a label, as text."""
    if not isinstance(name, str) or not _LABEL.fullmatch(name) or name in _OWN:
        raise error(
            Status.ERR_ARGUMENT,
            f"{name!r} cannot be a label: give it a name of letters, digits and _, other than"
            f" {', '.join(_OWN)}, which series have already",
        )
    try:
        if not isinstance(value, (str, int, float, np.integer)):
            raise ValueError
        str(value).encode()
    except ValueError:
        raise error(
            Status.ERR_ARGUMENT, f"the label {name} is {value!r}: give a text or a number"
        ) from None
    return str(value)


class Collector:
    """What prometheus_client's registries take: registry.register(Collector(capturer)).

    To write it takes the interpreter's lock: 0.14 s for 58 layers of 256 experts, in which no other
    thread of the process runs Python. Where an engine runs in it, `serve` does not.

    experts: a series for each expert too, which is layers x experts x 2 of them; routecap top
        shows the hottest by these. Without it a layer has few.
    window: imbalance is that of the last window of so many seconds, at least.
    labels: of every series, as {"rank": 3}. Names that series have already are refused.
    store: whose counters are series too: that of the prefixes that are adopted.
    """

    def __init__(
        self,
        capturer: Counters,
        *,
        store: Counts | None = None,
        experts: bool = True,
        window: float = 15.0,
        labels: Mapping[str, str | int | float] | None = None,
    ) -> None:
        given = checked({"experts": experts, "window": window, "labels": labels})
        self._capturer = capturer
        self._store = store
        self._experts = experts
        self._window = window
        self._labels: Mapping[str, Any] = given["labels"] or {}
        self._lock = threading.Lock()
        self._began = time.monotonic()
        self._before = capturer.load()
        self._last: Load | None = None  # the last whole window

    def _recent(self, load: Load) -> Load:
        """The last window that is over; until one is, all."""
        with self._lock:
            now = time.monotonic()
            if now - self._began >= self._window:
                self._last = load.since(self._before)
                self._began, self._before = now, load
            return self._last or load

    def collect(self) -> Iterator[Any]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        names, values = list(self._labels), list(self._labels.values())

        def counter(name: str, text: str, *labels: str) -> Any:
            return CounterMetricFamily(name, text, labels=[*names, *labels])

        def gauge(name: str, text: str, *labels: str) -> Any:
            return GaugeMetricFamily(name, text, labels=[*names, *labels])

        stats, load = self._capturer.stats(), self._capturer.load()
        steps = counter("routecap_steps", "Steps of the capturer.", "state")
        for field, state in _STEPS.items():
            steps.add_metric([*values, state], getattr(stats, field))
        yield steps
        rows = counter("routecap_rows", "Rows that landed, by what became of them.", "outcome")
        for outcome in _ROWS:
            rows.add_metric([*values, outcome], getattr(stats, f"rows_{outcome}"))
        yield rows
        layers = self._capturer.layer_stats()
        cells = counter(
            "routecap_layer_cells",
            "Cells of rows that landed, by what was in them: the ids of a row in a layer.",
            "layer",
            "outcome",
        )
        silent = counter(
            "routecap_layer_silent_steps",
            "Steps with rows, none of which the layer wrote.",
            "layer",
        )
        for layer, counts in zip(load.layer_map, layers):
            for outcome, field in _CELLS.items():
                cells.add_metric([*values, str(layer), outcome], int(counts[field]))
            silent.add_metric([*values, str(layer)], int(counts["silent_steps"]))
        yield cells
        yield silent
        dropped = counter("routecap_dropped_rows", "Rows recorded outside the rows begun.")
        dropped.add_metric(values, stats.rows_dropped)
        yield dropped
        yield from self._of_store(counter, values)
        memory = gauge("routecap_memory_bytes", "Of the budget for captured rows.", "kind")
        memory.add_metric([*values, "in_use"], stats.bytes_in_use)
        memory.add_metric([*values, "budget"], stats.bytes_budget)
        yield memory
        counted = counter("routecap_load_rows", "Rows whose load is counted.", "phase")
        counted.add_metric([*values, "prefill"], load.rows_prefill)
        counted.add_metric([*values, "decode"], load.rows_decode)
        yield counted
        imbalance = gauge(
            "routecap_load_imbalance",
            "The most chosen expert of a layer over the mean, in the last window.",
            "layer",
            "phase",
        )
        recent = self._recent(load)
        for phase in Phase:
            for layer, value in zip(load.layer_map, recent.imbalance(phase)):
                if value == value:  # a layer that was not used has none
                    imbalance.add_metric([*values, str(layer), phase.name.lower()], float(value))
        yield imbalance
        if not self._experts:
            return
        chosen = counter(
            "routecap_expert_chosen", "How often an expert was chosen.", "layer", "expert", "phase"
        )
        for phase in Phase:
            for layer, size, each in zip(load.layer_map, load.layer_experts, load.counts[phase]):
                for expert in range(int(size)):
                    chosen.add_metric(
                        [*values, str(layer), str(expert), phase.name.lower()], float(each[expert])
                    )
        yield chosen

    def _of_store(self, counter: Callable[..., Any], values: list[str]) -> Iterator[Any]:
        stats = None if self._store is None else self._store.stats()
        if stats is None:
            return
        blocks = counter(
            "routecap_store_blocks", "Blocks of a store, by what became of them.", "outcome"
        )
        for outcome in _BLOCKS:
            blocks.add_metric([*values, outcome], getattr(stats, f"blocks_{outcome}"))
        yield blocks


def registry(capturer: Counters, *, store: Counts | None = None, **options: Unpack[Options]) -> Any:
    from prometheus_client import CollectorRegistry

    made = CollectorRegistry()
    made.register(Collector(capturer, store=store, **options))
    return made


def text(
    capturer: Counters,
    *,
    openmetrics: bool = False,
    store: Counts | None = None,
    **options: Unpack[Options],
) -> str:
    """All metrics now, in Prometheus's text format or as OpenMetrics. Options of Collector."""
    from prometheus_client import exposition
    from prometheus_client.openmetrics import exposition as openmetrics_exposition

    write: Any = openmetrics_exposition if openmetrics else exposition
    written: bytes = write.generate_latest(registry(capturer, store=store, **options))
    return written.decode()
