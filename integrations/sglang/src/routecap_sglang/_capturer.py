"""In the place of SGLang's RoutedExpertsCapturer, or beside it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import routecap
from routecap import models
from routecap.adapter import capturer_on
from routecap_tools.metrics import Server, serve_rank

from ._answer import dtype_asked
from ._delivery import Asked, Outbox, in_message
from ._forward import Forward
from ._lives import Lives, life_of, tree_of, tree_without_salts
from ._options import Options
from ._prefixes import Prefixes, Tokens
from ._sinks import Finished, Sinks

if TYPE_CHECKING:
    import torch

logger = logging.getLogger(__name__)


# How many caches full of rows are kept: what the engine evicted cannot be told from what it has,
# and it uses what it has more often than it tells here.
_CACHES = 4


class Place(NamedTuple):
    """Where a process stands among its engine's.

    owner: it has requests; the others of its attention group route the same rows.
    scattered: each rank of the group routes a part of these.
    sliced: its routers see the rows of other attention groups too.
    apart: the detokenizer runs on another host.
    replica: which of the engine's replicas it is in; each has ranks from 0 on.
    """

    owner: bool = True
    scattered: bool = False
    sliced: bool = False
    apart: bool = False
    replica: int = 0


class Batch(NamedTuple):
    """One forward pass, as its engine knows it on the host.

    kind: "decode", "prefill" or "verify".
    sink_row: where its first row is among those that the routers saw.
    firsts, counts: positions and rows of each request. Of a decode or verification, an array, and
        one number for all.
    positions: of all rows that the routers saw, on the device, where the host does not know them.
    """

    kind: str
    requests: list[Any]
    sink_row: int
    firsts: Any = None
    counts: Any = 1
    positions: torch.Tensor | None = None

    @property
    def rows(self) -> int:
        if self.kind == "prefill":
            return sum(self.counts)
        return len(self.requests) * int(self.counts)


NOBODYS = Batch("decode", [], 0)  # or of whom nobody can tell


def settings_of(routers: set[int], config: object) -> tuple[models.CapturerSettings, int]:
    """What a model decides, and how many layers its decoder has.

    routers: The layers in which the engine's model routes. Where its configuration says others, the
        model is right.

    Raises:
        ValueError: It is not known how layers route, they run several times, or they have several
            banks of experts.
    """
    described = models.describe(config)
    settings = described.settings()
    if "layer_visit" in settings:
        looped = settings["layer_map"][settings["layer_visit"].index(1)]
        raise ValueError(
            f"layer {looped} of the decoder runs several times for a token, and SGLang's adapter"
            " follows one run of a layer: leave capture off for this model"
        )
    if described.banks > 1:
        raise ValueError(
            f"layer {settings['layer_map'][0]} of the decoder has {described.banks} banks of experts,"
            " each for a part of the tokens, and nothing tells SGLang's adapter which: leave capture"
            " off for this model"
        )
    layers = described.decoder_layers or settings["layer_map"][-1] + 1
    routing = {layer for layer in routers if layer < layers}
    if more := sorted(routing.difference(settings["layer_map"])):
        logger.warning(
            "routed experts: layers %s route, and the configuration denies it: they are captured, "
            "too. Look whether it is that of this model",
            more,
        )
        experts = dict(zip(settings["layer_map"], settings["layer_experts"], strict=True))
        chosen = dict(zip(settings["layer_map"], settings.get("layer_k", ())))
        layer_map = sorted(routing.union(experts))
        settings["layers"], settings["layer_map"] = len(layer_map), layer_map
        settings["layer_experts"] = [experts.get(each, settings["experts"]) for each in layer_map]
        if chosen:
            settings["layer_k"] = [chosen.get(each, settings["k"]) for each in layer_map]
    return settings, layers


def _number(version: str) -> int | None:
    """A version of weights that is a number, and can be a tag."""
    return int(version) if version.isdecimal() and int(version) < 1 << 63 else None


class Capturer:
    """All is called by the scheduler's thread.

    own: SGLang's own, which stays; or None.
    fused: shared experts that may stand behind the k chosen ones. salts: whether the cache tells
        them from adapters. starts: whether a request may ask for rows from a later one on. beams:
        whether it may be a beam search, which is not captured.
    tag: kept with every row from now on: a number for the weights, the version's if it has one. It
        rises, and no two weights have the same.
    failed: something did, and nothing is captured any more.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        config: object,
        *,
        routers: set[int],
        rows: int,
        cached_tokens: int,
        max_requests: int,
        max_tokens: int,
        device: torch.device,
        place: Place,
        options: Options,
        own: Any = None,
        fused: int = 0,
        salts: bool = True,
        starts: bool = True,
        beams: bool = True,
        breaks: Callable[[], bool | None] = lambda: False,
        weight_version: str = "",
    ) -> None:
        from ._op import anchor

        settings, self.columns = settings_of(routers, config)
        self.own, self.place, self.failed = own, place, False
        self._max_tokens = max_tokens
        self.capturer = capturer_on(
            device,
            **settings,
            rows=rows,
            role="owner" if place.owner else "mirror",
            slots=options.slots,
            budget_bytes=options.budget_bytes,
            max_requests=max(65536, 4 * max_requests),
            load=bool(options.metrics_port),
            **({"weights": "float32"} if options.weights else {}),
        )
        self._metrics: Server | None = None
        self._layers = {index: i for i, index in enumerate(settings["layer_map"])}
        widths = [(k, k + fused) for k in self.capturer.layer_k.tolist()]
        self._forward = Forward(self.capturer, widths, breaks, options.weights)
        self._anchor = anchor(self._forward, device)
        model.forward = self._forward.around(model.forward, self.softly)
        id_bytes = 1 + (settings["experts"] > 255) + 4 * options.weights
        row_bytes = settings["layers"] * (settings["k"] * id_bytes + 1)
        self.prefixes = Prefixes(
            min(_CACHES * cached_tokens, options.budget_bytes // 2 // row_bytes)
        )
        self._sinks = Sinks(options)
        self._outbox: Outbox | None = None
        self.tag = _number(weight_version) or 0
        self._issued = -1  # the largest tag that a row has
        self.weight_version = weight_version
        if options.metrics_port and place.owner:
            self._metrics = serve_rank(
                self.capturer,
                options.metrics_port,
                options.metrics_address,
                logger=logger,
                replica=place.replica,
                experts=options.metrics_experts,
            )
        self._outside = self.storage_cleared = False
        self._computed = False  # anything since the last flush
        self.tree_of = tree_of if salts else tree_without_salts
        self._starts = starts
        self._lives = Lives(self.capturer, self.prefixes, self.tree_of, beams)

    def close(self) -> None:
        if self._metrics is not None:
            self._metrics.close()
        self._sinks.close()
        if self._outbox is not None:
            self._outbox.close()
        self.capturer.close()

    def softly(self, call: Callable[..., Any], *args: object) -> Any:
        """What must not end the engine. None if it fails, and capture is over."""
        if self.failed:
            return None
        try:
            return call(*args)
        except Exception:
            self.failed = True
            logger.exception("routed experts: capture ends here; requests have no rows")
            return None

    # ---- The forward pass

    def route(self, layer: int, ids: torch.Tensor, weights: torch.Tensor | None = None) -> None:
        """A router of the decoder's layer chose these: before load balancing, of all rows. weights:
        of them, where they are seen."""
        import torch

        captured = self._layers.get(layer)
        if captured is None:
            return
        if torch.compiler.is_compiling():
            torch.ops.routecap.route(self._anchor, ids, weights, captured)
        else:
            self._forward.route(captured, ids, weights)

    def issue(self, batch: Batch) -> routecap.Step | None:
        """The pass is enqueued: say whose its rows are. None if they are nobody's."""
        if not self.place.owner:
            return None
        if not batch.requests or batch.sink_row + batch.rows > self.capturer.rows:
            if batch.requests:
                logger.error(
                    "routed experts: a pass of %d rows is too large, where SGLang named %d as the "
                    "most: they are missing. Report the server's arguments",
                    batch.rows,
                    self.capturer.rows - batch.sink_row,
                )
            self.capturer.discard()
            return None
        lives = self._lives
        if batch.kind == "prefill":
            spans = lives.prefilling(batch.requests, batch.firsts, batch.counts, batch.sink_row)
        elif batch.positions is None:
            spans = lives.decoding(batch.requests, 1, batch.sink_row)
            spans["position"] = batch.firsts
        else:
            flags = routecap.SpanFlag.DEVICE_POSITIONS
            if batch.kind == "verify":
                flags |= routecap.SpanFlag.SPECULATIVE
            spans = lives.decoding(batch.requests, batch.counts, batch.sink_row, flags)
            spans["position"], spans["position_end"] = 0, self._max_tokens
        self._issued, self._computed = self.tag, True
        return self.capturer.issue(spans, tag=self.tag, positions=batch.positions)

    def accept(
        self, step: routecap.Step, requests: list[Any], kept: list[int], paths: Any, each: int
    ) -> None:
        """A verification of `each` rows a request keeps so many of them. Of a tree, those of its
        path [requests, most]: indices into all rows of the pass."""
        lives = [life_of(request) for request in requests]
        going_on = [i for i, life in enumerate(lives) if life is not None and life.rows.handle]
        items = np.zeros(len(going_on), routecap.accept_dtype)
        items["request"] = [lives[i].rows.handle for i in going_on]  # type: ignore[union-attr]
        items["step"] = step.ticket
        items["count"] = [kept[i] for i in going_on]
        rows = None
        if paths is not None:
            own = [np.asarray(paths[i][: kept[i]]) - i * each for i in going_on]
            rows = np.concatenate(own).astype(np.uint32) if own else np.empty(0, np.uint32)
        self.capturer.accept_batch(items, rows)

    # ---- Requests

    def finish(self, request: Any) -> Any:
        """A request has ended. Returns its ticket as an array, or None if it has no rows."""
        life = life_of(request)
        prompt = len(request.origin_input_ids)
        output = len(request.output_ids_through_stop)
        if life is None or not self.place.owner:
            return None
        # The cache may take tokens behind the stop, and the last one if it was input to a pass that
        # ran ahead: who continues the sequence needs their rows.
        routing = life.rows.finish(prompt + len(request.output_ids))
        finished = Finished(request.rid, routing, prompt, output, self.weight_version)
        if self._sinks:
            self._sinks.put(finished)
        if not request.return_routed_experts or self.own is not None:
            return None
        dtype = dtype_asked(request.sampling_params)
        start = request.routed_experts_start_len if self._starts else 0
        asked = Asked(dtype, start, finished.rows, self.columns)
        if self.place.apart:
            return in_message(routing, asked)
        if self._outbox is None:
            self._outbox = Outbox()
        return self._outbox.put(routing, asked)

    def cached(
        self, request: object, scope: Hashable, tokens: Tokens, first: int, page: int = 1
    ) -> None:
        """The engine's cache took the KV of a request's first tokens, in such pages; from `first`
        on its own."""
        life = life_of(request)
        if life is not None and self.place.owner:
            life.rows.kept = max(life.rows.kept, len(tokens))
            life.part = self.prefixes.insert(scope, tokens, first, life.rows, life.part, page)

    def set_weight_version(self, version: str | None) -> None:
        """Rows from now on are of these weights. A part of some has the version of the part before
        it; no row was computed in between."""
        self.weight_version = version or ""
        number = _number(self.weight_version)
        if number is not None and number <= self._issued:
            logger.error(
                "routed experts: weight_version %d is not above %d, the tag of rows of other"
                " weights: rows have the tag %d. Give versions that rise",
                number,
                self._issued,
                self.tag + 1,
            )
            number = None
        self.tag = self.tag + 1 if number is None else number
        self._lives.mixed |= self._computed or self._outside
        self.storage_cleared = False

    def follow(self, followed: bool, outside: bool) -> None:
        """followed: a place in the engine's tree keeps the KV that it was told here with. outside:
        it also gets some from where no flush reaches."""
        self._lives.followed, self._outside = followed, outside

    def flushed(self) -> None:
        """The engine's cache is empty."""
        self.prefixes.clear()
        self._computed = False
        if not self._outside or self.storage_cleared:
            self._lives.mixed = False
