"""A capture: the capturer, the hooks, and the sequences that go through them."""

from __future__ import annotations

import logging
import sys
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import count
from typing import Any, Unpack

import torch
from torch import nn

import routecap
from routecap.adapter import HeldIds, in_backward, kept_weights

from routecap_tools.metrics import Server, serve_rank
from . import _ledger, _ops
from ._chosen import Chosen, device_of, expect_ids, expect_weights
from ._follow import follow_generate, follow_generate_batch
from ._followed import Followed
from ._places import expect_further, expect_known
from ._sequences import Content, length_of, take_out
from ._steps import Numbers, Steps
from ._taps import Tap, expect_model, find, in_order, stack_of
from ._inputs import inputs_of

logger = logging.getLogger("routecap_transformers")

_ROWS, _SLOTS = 16384, 7


def attach(
    model: nn.Module,
    *,
    taps: Sequence[Tap] | None = None,
    store: routecap.Store | int | None = None,
    metrics_port: int = 0,
    steps: bool = False,
    unchecked: bool | None = None,
    **settings: Unpack[routecap.Settings],
) -> Capture:
    """Capture what a model routes from now on, until the capture is detached: at the end of a
    `with`, or by `detach`.

    Args:
        model: A model of transformers, one in the wrapper of another library (PEFT, what
            torch.compile returned), or a part that has a whole decoder.
        taps: Some of those of `find`, or taps of your own. Default: all that `find` finds.
        store: Where rows of caches are kept that are used again, themselves or as copies
            (copy.deepcopy): a store of content keys in the model's shape, or how many bytes one
            of the capture's own may have. Blocks of one row keep every row; of larger ones those
            that are not full are missing. Default: none, and the rows of a cache that others
            filled are missing.
        metrics_port: Count how often each expert is chosen, and serve that to Prometheus on
            127.0.0.1, at this port and the rank of torch.distributed. If it cannot be, the logger
            "routecap_transformers" says why. `routecap_tools.metrics.serve(capture.capturer)` has more
            to choose. Default: no.
        steps: Keep which forward pass computed each row: see `Capture.steps`. Rows have that in the
            place of their tag until they are taken; so not with a store. Default: no.
        unchecked: Capture in a release of transformers that routecap was not checked with, if that
            has all places that are hooked and read. Default: what the environment says in
            ROUTECAP_TRANSFORMERS_UNCHECKED; no.
        settings: Of the capturer: `rows`, the most tokens of one forward pass with padding
            (default 16384), budget_bytes, slots and so on. weights="float32" captures the weight
            of each expert too, of whatever type the router gives; "bfloat16" or "float16" keeps
            half the bytes, where the router gives that.

    Raises:
        TypeError: It is no model, or taps are none.
        ValueError: There is nothing to capture, or it is not known how (see `find`), or this release
            of transformers is not known. Weights are wanted that a router does not give.
        RuntimeError: The model is captured already.
    """
    expect_model("attach", model)
    note = expect_known(model, unchecked)
    if taps is not None:
        for tap in (taps := list(taps)):
            if not isinstance(tap, Tap):
                raise TypeError(
                    f"attach() got {type(tap).__name__} among its taps: give routecap_transformers.Tap,"
                    " or some of those of find(model)"
                )
        if not taps:
            raise ValueError("attach() got no taps: give those of find(model), or some of them")
    found = find(model) if taps is None else in_order(list(taps))
    if metrics_port:
        settings.setdefault("load", True)
    if steps and store is not None:
        raise ValueError(
            "attach() got steps and a store, which goes by tags: leave one of them out"
        )
    return Capture(model, found, settings, store, metrics_port, note, steps)


def detach(model: nn.Module) -> None:
    """Detach the captures of a model or of its parts: where nobody has kept what `attach` returned.
    What they captured and nobody took is given up, if nobody has kept them.

    Not while the model runs.
    """
    expect_model("detach", model)
    for module in model.modules():
        held = _tapped.get(module)
        if held is not None and (capture := held()) is not None:
            capture.detach()


class Capture(Followed):
    """What `attach` returns.

    Forward passes of one model are one after another, on any threads, and so are the methods; a
    second one at the same time is a RuntimeError. A sequence begins with a forward pass whose cache
    is empty or absent, goes on with every pass that is given that cache, and ends when it is taken.

    Attributes:
        capturer: routecap's, for statistics, and for reading requests that go on.
        taps: What is captured, by layer, and by visit where layers run in a loop.
        tag: Kept with every row from now on: a version of the weights, for instance. With a store
            it is the generation of its rows: a larger one ends those that were captured before.
        store: Where rows of caches are kept; None.
        steps: Of each routing that was taken last, [rows] the number of the forward pass that
            computed the row, from 0 on, -1 where none did; None if they are not kept.
        unchecked: "not checked with transformers 5.99.0"; "" if routecap was.
    """

    def __init__(
        self,
        model: nn.Module,
        taps: list[Tap],
        settings: routecap.Settings,
        store: routecap.Store | int | None = None,
        metrics_port: int = 0,
        unchecked: str = "",
        steps: bool = False,
    ) -> None:
        self.taps, self.unchecked = taps, unchecked
        if settings.get("weights") is not None:
            expect_weights(taps)
        for tap in taps:
            if tap.module in _tapped:
                raise RuntimeError(
                    f"{tap.name} is captured already: detach that capture first, by its detach() or"
                    " by routecap_transformers.detach(model)"
                )
        self._devices = [device_of(tap.module) for tap in taps]
        self._device = next(
            (device for device in self._devices if device.type != "meta"), torch.device("cpu")
        )
        if self._device.type not in ("cpu", "cuda"):
            raise ValueError(
                f"the model is on {self._device}, where routecap cannot go: move it to the host or"
                " a CUDA device"
            )
        self._cuda = self._device.type == "cuda"
        own: routecap.Settings = {
            "backend": "cuda" if self._cuda else "host",
            "device": self._device.index or 0,
            "layers": len(taps),
            "k": max(tap.k for tap in taps),
            "layer_k": [tap.k for tap in taps],
            "layer_map": [tap.layer for tap in taps],
            "layer_visit": [tap.visit for tap in taps],
            "layer_experts": [tap.experts for tap in taps],
            "layer_provenance": ["recomputed" if tap.router else "captured" for tap in taps],
            "rows": _ROWS,
            "slots": _SLOTS,
        }
        own.update(settings)
        super().__init__(routecap.Capturer(**own), self._device, store)
        self._weights = self.capturer.weights_dtype
        self.steps: list[Numbers] | None = [] if steps else None
        self._marks = Steps() if steps else None
        self._metrics: Server | None = None
        self._held = HeldIds(self.capturer)
        self._lock = threading.Lock()  # held from the beginning of a forward pass to its end
        self._owner: tuple[int, nn.Module] | None = (
            None  # the thread that holds it, and the module whose forward it began with
        )
        self._on_stack = False  # its call is found there
        self._inside = False  # a step is begun, and its snapshot not made
        self._rows = 0  # of that step
        self._chosen = Chosen(taps)  # in that step
        self._unfollowed = 0  # forward passes that ran without anybody to say whose rows they had
        self._unseen = 0  # of which nothing was seen but that they ran
        self._begun = False  # the decoder's hooks, by its forward or by what compilers made of it
        self._looked = False  # whether all layers chose in the first forward pass
        self._said: set[str] = set()  # what was warned of when a forward pass ran
        self._key = next(_keys)
        self._token = torch.zeros(1, dtype=torch.int32, device=self._device)
        torch._dynamo.mark_static_address(
            self._token
        )  # compilers keep it where it is, and their graphs write it in place
        _ops.captures[self._key] = self
        try:
            self._install(model)
        except BaseException:
            self.close()
            raise
        if metrics_port:
            self._metrics = serve_rank(self.capturer, metrics_port, logger=logger, store=self.store)

    # ---- Hooks

    def _install(self, model: nn.Module) -> None:
        modules = dict(model.named_modules())
        decoder = modules[stack_of(self.taps[0].name)]
        add = self._undo.append
        expect_further(decoder)
        if model._compiled_call_impl is not None:
            self._say(
                f"{type(model).__name__}.compile() was called: hooks run inside what it compiles, and"
                " nobody will say whose the rows are. Attach to what torch.compile(model) returns"
            )

        def around(
            module: nn.Module, before: Callable[..., Any], after: Callable[..., Any]
        ) -> None:
            hook = module.register_forward_pre_hook(before, with_kwargs=True, prepend=True)
            add(hook.remove)
            add(module.register_forward_hook(after, with_kwargs=True, always_call=True).remove)

        if decoder is not model:
            around(model, self._before_model, self._after_model)
        around(decoder, self._before_decoder, self._after_decoder)
        for index, tap in enumerate(self.taps):
            if tap.visit:  # the hook of the first has all
                continue
            register = (
                tap.module.register_forward_pre_hook
                if tap.before
                else tap.module.register_forward_hook
            )
            add(register(self._recorder(index, tap), with_kwargs=True).remove)
            for hook in tap.banks.follow(tap.module) if tap.banks else ():
                add(hook.remove)
            _tapped[tap.module] = weakref.ref(self)
            add(partial(_tapped.pop, tap.module, None))
        follow_generate(self, model, add)
        follow_generate_batch(self, model, add)
        _ledger.attached()
        add(_ledger.detached)

    def _before_model(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        if torch.compiler.is_compiling() or in_backward():
            return
        self._seen = True
        if self._apart():
            self._skip(module, args, kwargs)
            return
        self._enter(module)
        if self._plan is None and not self._capturing():
            self._plan = self._plan_of(module, args, kwargs, has_decoder=True)

    def _after_model(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: object
    ) -> None:
        if torch.compiler.is_compiling():
            return
        self._skipped_to(module, output)
        if self._mine():
            self._end(
                module, output
            )  # of what the decoder's own hook did not see, because it is compiled or was not reached

    def _before_decoder(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        if torch.compiler.is_compiling():
            tokens = (
                kwargs["input_ids"]
                if kwargs.get("input_ids") is not None
                else kwargs.get("inputs_embeds", *args[:1])
            )
            torch.ops.routecap.begin(self._token, self._key, tokens.shape[0] * tokens.shape[1])
            return
        if in_backward():  # a checkpoint runs the whole model again
            return
        self._seen = True
        if self._apart():
            self._skip(module, args, kwargs)
            return
        inputs = inputs_of(module, args, kwargs)
        if inputs is None:
            return
        self._enter(module)
        if self._plan is None and not self._capturing():
            self._plan = self._plan_of(module, args, kwargs)
        if self._plan is not None and self._plan.rows not in (None, inputs.rows):
            raise ValueError(
                f"the forward pass has {inputs.rows} rows, {self._plan.rows} were placed: give"
                " place() a position for each of its rows"
            )
        self._begin(inputs.rows)

    def _after_decoder(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: object
    ) -> None:
        if torch.compiler.is_compiling():
            torch.ops.routecap.snapshot(self._token, self._key)
            return
        self._skipped_to(module, output)
        if self._mine():
            try:
                if self._inside and output is not None:
                    self._snapshot()
            except BaseException:
                output = None
                raise
            finally:
                self._inside = False
                self._end(module, output)

    def _enter(self, module: nn.Module) -> None:
        """A forward pass begins, with the model or, within it or alone, with its decoder."""
        here = threading.get_ident()
        if self._generation is not None and self._generation.thread != here:
            raise RuntimeError(
                "generate is running on this model, and another thread runs it: a capture is for"
                " one forward pass at a time. Wait until it has ended"
            )
        if self._owner is not None and not self._runs(besides=module):
            self._interrupted()
        if self._owner is None or self._owner[0] != here:
            if not self._lock.acquire(blocking=False):
                raise RuntimeError(
                    "two threads run the model at the same time: a capture is for one forward pass"
                    " at a time. Call them one after another"
                )
            self._owner, self._on_stack = (here, module), True
            self._on_stack = self._runs()  # not what a compiler has rewritten

    def _runs(self, besides: nn.Module | None = None) -> bool:
        """Whether the forward pass that began still runs. One that was left by KeyboardInterrupt
        does not, and its hooks did not say so: it is looked for on its thread's stack.

        besides: A module of which one call more is there, that is only about to begin.
        """
        if self._owner is None:
            return False
        thread, module = self._owner
        frame = sys._current_frames().get(thread)
        calls = -(module is besides and thread == threading.get_ident())
        while frame is not None:
            if frame.f_code is _CALL and frame.f_locals.get("self") is module:
                calls += 1
            frame = frame.f_back
        return calls > 0 or not self._on_stack

    def _interrupted(self) -> None:
        """The forward pass that began was left, and nothing of it is known."""
        if self._generation is None:
            self._drop()
        self._owner, self._inside = None, False
        self._lock.release()

    def _mine(self) -> bool:
        return self._owner is not None and self._owner[0] == threading.get_ident()

    def _end(self, module: nn.Module, output: object) -> None:
        """A forward pass has ended; without output if it failed."""
        try:
            if output is None:
                self._drop()
            elif self._plan is not None and not self._begun:
                self._unseen += 1
                self._say(f"a forward pass ran, and nothing was captured: it {_COMPILED_BEFORE}")
                self._drop()
            elif not self._capturing():
                self._file(output=output)
        finally:
            if self._owner is not None and self._owner[1] is module:
                self._owner = None
                self._lock.release()
        if output is not None and self._begun and not self._looked:
            self._looked = True  # later ones may be graphs, which call nothing
            if silent := self._chosen.silent_layers():
                passed = "were not seen to choose in the first forward pass"
                self._say(
                    f"layers {silent} {passed}: they do not run, or the model {_COMPILED_BEFORE}"
                )

    def _say(self, text: str) -> None:
        """Warn, once, as soon as it is known and not when all is taken."""
        if text not in self._said:
            self._said.add(text)
            warnings.warn(text, RuntimeWarning, stacklevel=2)

    def _recorder(self, index: int, tap: Tap) -> Callable[..., None]:
        ids, weights = tap.ids, tap.weights if self._weights else None

        def record(
            module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: object = None
        ) -> None:
            chosen = ids(args, kwargs, output)
            beside = None if weights is None else weights(args, kwargs, output).detach()
            if torch.compiler.is_compiling():
                torch.ops.routecap.record(self._token, chosen, beside, self._key, index)
            else:
                self._record(index, chosen, beside, hold=True)

        return record

    # ---- The forward pass. These three are called when it runs, and may be captured into a CUDA graph

    def _begin(self, rows: int) -> None:
        if rows > self.capturer.rows:
            room = self.capturer.rows
            raise ValueError(
                f"the forward pass has {rows} rows, padding included; the capture has room for"
                f" {room}: attach(model, rows={rows})"
            )
        self._seen = self._begun = True
        if self._plan is None and not self._apart() and not self._capturing():
            if self._unfollowed:  # and issue() was not called behind the last one
                self._say("compiled forward passes run, and " + _UNFOLLOWED)
            self._unfollowed += 1
        self._held.begin(self._kind())
        self.capturer.begin(rows)
        self._inside, self._rows = True, rows
        self._chosen.begin()

    def _kind(self) -> str | None:
        """How the experts are computed: by other kernels, which may treat ids in another way. None:
        nothing says it.
        """
        config = getattr(self.taps[0].module, "config", None)
        return getattr(config, "_experts_implementation", None)

    def _record(
        self, index: int, ids: torch.Tensor, weights: torch.Tensor | None, hold: bool = False
    ) -> None:
        """index: of the module's first tap. hold: the ids lie in memory that nothing but their
        tensor's end makes free; a compiler's may be used again.
        """
        if not self._inside:  # a layer is computed again, in backward
            return
        index = self._chosen.add(index)
        tap = self.taps[index]
        expect_ids(tap, ids, self._rows, self._devices[index])
        hold = hold and ids.device == self._device and not ids.is_inference()
        if ids.device != self._device:
            ids = ids.to(self._device, non_blocking=self._cuda)  # the host reads them at once
        if tap.router is not None:
            self.capturer.route(index, tap.router, ids)
        else:
            if weights is not None and self._weights is not None:
                given = "weights= of attach()"
                weights = kept_weights(
                    ids, weights, router=tap.name, setting=given, dtype=self._weights
                )
            else:
                weights = None
            if not (
                hold
                and self._kind() in _VERSIONED
                and self._held.hold(index, ids, self._capturing(), weights)
            ):
                self.capturer.record(index, ids, weights=weights)

    def _snapshot(self) -> None:
        self._inside = False
        self._chosen.end()
        self._held.record()
        self.capturer.snapshot()

    def _capturing(self) -> bool:
        return self._cuda and bool(torch.cuda.is_current_stream_capturing())

    # ---- For users

    def take(
        self, lengths: Sequence[int] | None = None, *, requests: Sequence[str] | None = None
    ) -> list[routecap.Routing]:
        """End the sequences that began since the last time, and return a routing for each, ready:
        batch after batch, in the order of rows.

        Rows that padding, rejected drafts or tokens behind the end of a generated sequence had are
        not in them. Of S tokens that `generate` returns the last was never routed, and S - 1 rows
        are there; after a plain forward, all S. Waits until the device has computed them.

        Args:
            lengths: How many rows each has, where only the caller knows: of a sequence of S
                tokens whose last was not an input, S - 1.
            requests: Only these requests of `generate_batch`, in this order.
        """
        self._expect_idle("take")
        if self._unfollowed:
            unfollowed, self._unfollowed = self._unfollowed, 0
            warnings.warn(
                f"{unfollowed} compiled forward passes ran, and {_UNFOLLOWED}",
                RuntimeWarning,
                stacklevel=2,
            )
        if self._unseen or not self._seen:
            passes = (
                f"{self._unseen} forward passes ran" if self._unseen else "no forward pass was seen"
            )
            self._unseen, self._seen = 0, True
            warnings.warn(
                f"{passes}, and nothing was captured: the model has not run, or {_COMPILED_BEFORE}",
                RuntimeWarning,
                stacklevel=2,
            )
        self._wait()
        batches = self._batches if requests is None else self._batches_of(requests)
        items: list[tuple[int, int | None]] = []
        for batch in batches:
            rows = self._lengths(batch)  # which may reorder its requests
            items += zip(batch.requests.tolist(), rows, strict=True)
        if lengths is not None:
            if len(lengths) != len(items):
                raise ValueError(
                    f"{len(lengths)} lengths for {len(items)} sequences: give one for each"
                )
            items = [(handle, rows) for (handle, _), rows in zip(items, lengths)]
        for batch in batches if self._prefixes is not None else ():
            if any(ledger.batch is batch and ledger.layer() for ledger in batch.ledgers):
                self._copied(batch)
        self._end_batches(batches)
        routings = [self.capturer.request(handle).finish(rows) for handle, rows in items]
        for routing in routings:
            routing.wait()
        if self._marks is not None:
            routings, self.steps = self._marks.taken(routings)
        self._warn(bool(routings))
        return routings

    def discard(self) -> None:
        """Forget the sequences that began since the last `take`: of warm-up runs, for instance."""
        self._expect_idle("discard")
        for batch in self._batches:
            self.capturer.close_batch(batch.requests)
        self._end_batches(self._batches)
        self._unfollowed = 0

    def reorder(self, indices: Sequence[int] | torch.Tensor) -> None:
        """The rows of the batch in progress were reordered, dropped or repeated: row i is what row
        indices[i] was.

        Changes that are made by methods of the model's cache are noticed without it.
        """
        if not self._batches:
            raise RuntimeError("no sequence is in progress: call the model first")
        batch, rows = self._batches[-1], [int(index) for index in indices]
        self._reorder(batch, rows)
        if batch.line is None:
            return
        now = Content(batch.line, batch.line.columns, tuple(range(len(rows))))
        for ledger in batch.ledgers:
            if ledger.batch is batch and length_of(ledger.layer()) in (None, now.columns):
                ledger.content = now
                ledger.look()

    def place(self, positions: torch.Tensor, *, new: bool = False) -> None:
        """Say for the next forward pass what its inputs do not: the position of each row
        [batch, length] in its sequence, negative for nobody's.

        Row i of a batch goes on with sequence i of the last one, unless `new` sequences begin.
        """
        self._placed = positions, new

    def issue(self, positions: torch.Tensor, *, new: bool = False) -> None:
        """After a CUDA graph of the model was replayed that was captured while this was attached:
        whose its rows were. As `place`; positions on the
        device are read there, and nothing waits.
        """
        self._plan = self._plan_placed(positions, new)
        self._unfollowed, self._seen = 0, True
        self._file()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Capture nothing of the forward passes inside."""
        paused, self._paused = self._paused, True
        try:
            yield
        finally:
            self._paused = paused

    @property
    def tag(self) -> int:
        return self._tag

    @tag.setter
    def tag(self, tag: int) -> None:
        if self.store is not None:
            if tag < self._tag:
                raise ValueError(
                    f"tag {tag} is below {self._tag}, of which the store has rows: give newer "
                    "weights a larger tag"
                )
            self.store.advance(tag)
        self._tag = tag

    @property
    def silent_layers(self) -> list[int]:
        """Layers, by their index in the decoder, of which no row was written: their routers were
        not seen to run.
        """
        stats = self.capturer.layer_stats()
        seen = stats["rows_written"] + stats["out_of_range"] + stats["duplicate"]
        return [tap.layer for tap, rows in zip(self.taps, seen.tolist()) if not rows]

    def detach(self) -> None:
        """Take the hooks off the model.

        Not while it runs. What was captured can be taken afterwards.
        """
        self._expect_idle("detach")
        self._take_off()

    def close(self) -> None:
        """Detach, drop what was not taken, and give the capturer's memory back.

        Routings stay valid.
        """
        self._take_off()
        self.capturer.close()

    def __enter__(self) -> Capture:
        return self

    def __exit__(self, kind: object = None, *unused: object) -> None:
        self.detach()

    def __del__(self) -> None:
        if getattr(self, "_undo", None):  # forgotten with its model, and with its hooks
            _ledger.detached()
        if (metrics := getattr(self, "_metrics", None)) is not None:
            metrics.close()
        if (capturer := getattr(self, "capturer", None)) is not None:
            capturer.close()

    def __repr__(self) -> str:
        state = "attached" if self.attached else "detached"
        state += f", {self.unchecked}" if self.unchecked else ""
        return (
            f"<routecap_transformers.Capture, {state},"
            f" {sum(len(batch.requests) for batch in self._batches)} sequences, of"
            f" {self.capturer!r}>"
        )

    # ---- Inside

    def _take_off(self) -> None:
        while self._undo:
            self._undo.pop()()
        for ledger in list(self._ledgers):
            take_out(ledger)
        if self._metrics is not None:
            self._metrics.close()
        _ops.captures.pop(self._key, None)

    def _expect_idle(self, what: str) -> None:
        if self._lock.locked() and not self._runs():
            self._interrupted()
        if self._generation is not None or self._lock.locked():
            raise RuntimeError(f"{what}: the model is running. Wait until it has ended")

    def _warn(self, taken: bool) -> None:
        stats = self.capturer.stats()
        if taken and (silent := self.silent_layers):
            warnings.warn(
                f"layers {silent} have not fired: all their cells are missing. Attach to the module"
                " that runs, and before it is compiled; or leave these taps out",
                RuntimeWarning,
                stacklevel=3,
            )
        if lacking := stats.rows_refused + stats.rows_lost:
            warnings.warn(
                f"{lacking} rows in all are missing for want of memory: take more often, or "
                "attach(model, budget_bytes=...)",
                RuntimeWarning,
                stacklevel=3,
            )


_CALL = nn.Module._call_impl.__code__
_COMPILED_BEFORE = (
    "runs what was compiled before the capture was attached. Attach before it is compiled, to the"
    " module that torch.compile returned, or call torch.compiler.reset()"
)
_UNFOLLOWED = (
    "nobody said whose their rows are, which are missing: attach to the module that torch.compile"
    " returned, or call capture.issue() after each"
)
_VERSIONED = ("eager", "batched_mm", "grouped_mm")
"""Ways to compute experts by PyTorch's own operations, which count what they write to a tensor."""
_tapped: weakref.WeakKeyDictionary[nn.Module, weakref.ref[Capture]] = weakref.WeakKeyDictionary()
_keys = count(1)
