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

import numpy as np
import torch
from torch import nn

import routecap

from .._held import HeldIds
from ..metrics import Server, serve_rank
from ..replay._passes import in_backward
from . import _ledger, _ops
from ._follow import Generation, follow_generate, follow_generate_batch
from ._ledger import Content, Held, Ledger, length_of
from ._prefixes import Prefixes
from ._sequences import Batch, Inputs, Plan, cached_columns, inputs_of, plan_of_runs, runs_of
from ._taps import Tap, find, in_order, stack_of

logger = logging.getLogger("routecap.transformers")

_ROWS, _SLOTS = 16384, 8


def attach(
    model: nn.Module,
    *,
    taps: Sequence[Tap] | None = None,
    store: routecap.Store | int | None = None,
    metrics_port: int = 0,
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
            "routecap.transformers" says why. `routecap.metrics.serve(capture.capturer)` has more
            to choose. Default: no.
        settings: Of the capturer: `rows`, the most tokens of one forward pass with padding
            (default 16384), budget_bytes, slots and so on.

    Raises:
        ValueError: There is nothing to capture, or it is not known how (see `find`).
        RuntimeError: The model is captured already.
    """
    found = find(model) if taps is None else in_order(list(taps))
    if metrics_port:
        settings.setdefault("load", True)
    return Capture(model, found, settings, store, metrics_port)


class Capture:
    """What `attach` returns.

    Forward passes of one model are one after another, on any threads, and so are the methods; a
    second one at the same time is a RuntimeError. A sequence begins with a forward pass whose cache
    is empty or absent, goes on with every pass that is given that cache, and ends when it is taken.

    Attributes:
        capturer: routecap's, for statistics, and for reading requests that go on.
        taps: What is captured, by layer.
        tag: Kept with every row from now on: a version of the weights, for instance. With a store
            it is the generation of its rows: a larger one ends those that were captured before.
        store: Where rows of caches are kept; None.
    """

    def __init__(
        self,
        model: nn.Module,
        taps: list[Tap],
        settings: routecap.Settings,
        store: routecap.Store | int | None = None,
        metrics_port: int = 0,
    ) -> None:
        self.taps = taps
        self._tag = 0
        for tap in taps:
            if tap.module in _tapped:
                raise RuntimeError(f"{tap.name} is captured already: detach that capture first")
        self._devices = [_device_of(tap.module) for tap in taps]
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
            "k": taps[0].k,
            "layer_map": [tap.layer for tap in taps],
            "layer_experts": [tap.experts for tap in taps],
            "layer_provenance": [
                "captured" if tap.router is None else "recomputed" for tap in taps
            ],
            "rows": _ROWS,
            "slots": _SLOTS,
        }
        own.update(settings)
        self.capturer = routecap.Capturer(**own)
        self._metrics: Server | None = None
        self._prefixes = None if store is None else Prefixes(self.capturer, store)
        self.store = None if self._prefixes is None else self._prefixes.store
        if self.store is not None:
            self._tag = self.store.stats().generation
        self._held = HeldIds(self.capturer)
        self._lock = threading.Lock()  # held from the beginning of a forward pass to its end
        self._owner: tuple[int, nn.Module] | None = (
            None  # the thread that holds it, and the module whose forward it began with
        )
        self._on_stack = False  # its call is found there
        self._inside = False  # a step is begun, and its snapshot not made
        self._paused = False
        self._aside: set[int] = set()  # threads whose forward passes compute no user's sequence
        self._unfollowed = 0  # forward passes that ran without anybody to say whose rows they had
        self._plan: Plan | None = None
        self._placed: tuple[torch.Tensor, bool] | None = None
        self._generation: Generation | None = None
        self._steps: list[routecap.Step] = []
        self._batches: list[Batch] = []
        self._named: dict[str, Batch] = {}
        self._ledgers: weakref.WeakSet[Ledger] = weakref.WeakSet()
        self._skipped: dict[int, tuple[nn.Module, Plan]] = {}
        self._key = next(_keys)
        self._token = torch.zeros(1, dtype=torch.int32, device=self._device)
        torch._dynamo.mark_static_address(
            self._token
        )  # compilers keep it where it is, and their graphs write it in place
        _ops.captures[self._key] = self
        self._undo: list[Callable[[], object]] = []
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
            register = (
                tap.module.register_forward_pre_hook
                if tap.before
                else tap.module.register_forward_hook
            )
            add(register(self._recorder(index, tap), with_kwargs=True).remove)
            _tapped.add(tap.module)
            add(partial(_tapped.discard, tap.module))
        follow_generate(self, model, add)
        follow_generate_batch(self, model, add)
        _ledger.attached()
        add(_ledger.detached)

    def _before_model(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        if torch.compiler.is_compiling() or in_backward():
            return
        if self._apart():
            self._skip(module, args, kwargs)
            return
        self._enter(module)
        if self._plan is None and not self._capturing():
            self._plan = self._plan_of(module, args, kwargs)

    def _after_model(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any
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
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any
    ) -> None:
        if torch.compiler.is_compiling():
            torch.ops.routecap.snapshot(self._token, self._key)
            return
        self._skipped_to(module, output)
        if self._mine():
            if self._inside and output is not None:
                self._snapshot()
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

    def _apart(self) -> bool:
        """Whether nothing of this thread's forward passes is captured."""
        return self._paused or threading.get_ident() in self._aside

    @contextmanager
    def _set_apart(self) -> Iterator[None]:
        """As `paused`, for this thread."""
        here = threading.get_ident()
        before = here in self._aside
        self._aside.add(here)
        try:
            yield
        finally:
            if not before:
                self._aside.discard(here)

    def _mine(self) -> bool:
        return self._owner is not None and self._owner[0] == threading.get_ident()

    def _end(self, module: nn.Module, output: Any) -> None:
        """A forward pass has ended; without output if it failed."""
        try:
            if output is None:
                self._drop()
            elif not self._capturing():
                self._file(output=output)
        finally:
            if self._owner is not None and self._owner[1] is module:
                self._owner = None
                self._lock.release()

    def _recorder(self, index: int, tap: Tap) -> Callable[..., None]:
        ids = tap.ids

        def record(
            module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any = None
        ) -> None:
            if torch.compiler.is_compiling():
                torch.ops.routecap.record(self._token, ids(args, kwargs, output), self._key, index)
            else:
                self._record(index, ids(args, kwargs, output), hold=True)

        return record

    # ---- The forward pass. These three are called when it runs, and may be captured into a CUDA graph

    def _begin(self, rows: int) -> None:
        if rows > self.capturer.rows:
            room = self.capturer.rows
            raise ValueError(
                f"the forward pass has {rows} rows, padding included; the capture has room for"
                f" {room}: attach(model, rows={rows})"
            )
        if self._plan is None and not self._apart() and not self._capturing():
            self._unfollowed += 1
        self._held.begin(self._kind())
        self.capturer.begin(rows)
        self._inside = True

    def _kind(self) -> str | None:
        """How the experts are computed: by other kernels, which may treat ids in another way."""
        config = getattr(self.taps[0].module, "config", None)
        return getattr(config, "_experts_implementation", None)

    def _record(self, index: int, ids: torch.Tensor, hold: bool = False) -> None:
        """hold: the ids lie in memory that nothing but their tensor's end makes free; a compiler's
        may be used again.
        """
        if not self._inside:  # a layer is computed again, in backward
            return
        tap, device = self.taps[index], self._devices[index]
        if ids.device != device and device.type != "meta":
            raise RuntimeError(
                f"{tap.name} was on {device} when the capture was attached, and is on {ids.device}:"
                " detach, move, attach again"
            )
        if ids.device != self._device:
            ids = ids.to(self._device, non_blocking=True)
        if tap.router is not None:
            self.capturer.route(index, tap.router, ids)
        elif ids.shape[1] != tap.k:
            raise ValueError(
                f"{tap.name} is given {ids.shape[1]} experts per token, {tap.k} were expected: give"
                " attach() the tap with its k"
            )
        elif not (
            hold and index not in self._held and self._held.hold(index, ids, self._capturing())
        ):
            self.capturer.record(index, ids)

    def _snapshot(self) -> None:
        self._inside = False
        self._held.record()
        self.capturer.snapshot()

    def _capturing(self) -> bool:
        return self._cuda and bool(torch.cuda.is_current_stream_capturing())

    # ---- Whose rows

    def _plan_of(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Plan | None:
        inputs = inputs_of(module, args, kwargs)
        if inputs is None:
            return None
        if self._placed is not None:
            (positions, new), self._placed = self._placed, None
            return self._plan_placed(positions, new)
        if inputs.paged:  # a warm-up: whose rows those of a step are is planned by who runs it
            return plan_of_runs(np.zeros(0, np.uint64), [], 0, None)
        mask = inputs.mask
        if mask is not None and not (isinstance(mask, torch.Tensor) and mask.ndim == 2):
            raise ValueError(
                "attention_mask is no [batch, length] tensor, so that padding cannot be told: give"
                " one, or say where the rows are by capture.place()"
            )
        held = self._held_by(inputs.cache)
        if held.known and held.content is None or inputs.starts is not None:
            runs = runs_of(inputs)
            if runs is not None:
                return self._plan_packed(inputs, runs, held)
        batch, begun = self._goes_on(inputs.batch, inputs.length, inputs.mask, inputs.cache, held)
        batch.lengths = None  # if it was generated, it goes on
        try:
            return self._with_cache(batch.plan(inputs.length, mask), inputs.cache, begun)
        except ValueError:
            self._forget(begun)
            raise

    def _held_by(self, cache: Any) -> Held:
        return Held(True) if cache is None else _ledger.read(self, cache)

    def _with_cache(self, plan: Plan, cache: Any, begun: Batch | None) -> Plan:
        """The forward pass of a plan is next, and goes on with a cache."""
        plan.cache, plan.begun = cache, begun
        if cache is not None:
            _ledger.begin(self, cache, plan)
        return plan

    def _goes_on(
        self, rows: int, length: int, mask: torch.Tensor | None, cache: Any, held: Held
    ) -> tuple[Batch, Batch | None]:
        """The sequences that a forward pass goes on with; and again, if they begin with it."""
        content, batch = held.content, held.batch
        in_progress = batch is not None and batch in self._batches
        known = len(content.rows) if content is not None else None
        if not held.known and in_progress and batch is not None:
            known = len(batch.requests)
        if known not in (None, rows):
            raise ValueError(
                f"the cache has {known} sequences and the forward pass {rows} rows: call"
                " capture.reorder() where that changes"
            )
        if content is not None and batch is not None and in_progress and content.line is batch.line:
            self._bring(batch, content)
            return batch, None
        columns = 0
        if not held.known:
            said = cached_columns(cache)
            if said is None and mask is not None:
                said = mask.shape[1] - length
            if said is None:
                raise ValueError(
                    "the cache was filled unseen, and does not say how many tokens it has: give"
                    " attention_mask, or say where the rows are by capture.place()"
                )
            columns = said
        batch = self._new_batch(rows)
        if content is None:
            batch.begin(columns)
        elif self._prefixes is None:
            batch.begin(content.columns)
        else:
            self._prefixes.adopt(content, batch, self._tag)
        return batch, batch

    def _bring(self, batch: Batch, content: Content) -> None:
        """Rows of its cache were cut or reordered: its sequences follow."""
        assert batch.line is not None
        rows, every = list(content.rows), list(range(len(batch.requests)))
        columns = batch.line.columns
        if rows == every and content.columns == columns:
            return
        if rows != every:
            self._reorder(batch, rows)
        if content.columns < columns:
            self._cut(batch, content.columns)
        now = Content(batch.line, content.columns, tuple(range(len(rows))))
        for ledger in batch.ledgers:
            if ledger.content == content:
                ledger.content = now

    def _skip(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A forward pass of which nothing is captured: what its cache holds then is followed."""
        here = threading.get_ident()
        outer = self._skipped.get(here)
        if outer is not None and outer[0] is not module:
            return
        self._skipped.pop(here, None)  # of one that was interrupted
        inputs = inputs_of(module, args, kwargs)
        if inputs is None or inputs.cache is None or inputs.starts is not None:
            return
        held = self._held_by(inputs.cache)
        content, batch, mask = held.content, held.batch, inputs.mask
        if (
            content is None
            or len(content.rows) != inputs.batch
            or not (mask is None or isinstance(mask, torch.Tensor) and mask.ndim == 2)
        ):
            return
        if batch is not None and batch in self._batches and content.line is batch.line:
            self._bring(batch, content)
        elif self._prefixes is not None:
            batch = self._prefixes.left(content)
        else:
            return
        try:
            plan = batch.plan(inputs.length, mask)
        except ValueError:
            return
        if plan.positions is not None and batch in self._batches:
            # where a mask has hidden tokens, the next are in their place, and have no rows
            for request, rows in zip(batch.requests.tolist(), batch.rows(plan.past)):
                self.capturer.truncate(request, rows)
        self._skipped[here] = module, self._with_cache(plan, inputs.cache, None)

    def _skipped_to(self, module: nn.Module, output: Any) -> None:
        begun = self._skipped.get(threading.get_ident())
        if begun is not None and begun[0] is module:
            del self._skipped[threading.get_ident()]
            if output is not None:
                self._ended(begun[1], output)

    def _ended(self, plan: Plan, output: Any) -> None:
        """The forward pass of a plan has run, and a cache has its columns."""
        batch = plan.batch
        if batch is None or batch.line is None:
            return
        batch.line.columns = plan.columns
        cache = getattr(output, "past_key_values", None)
        if cache is None and isinstance(output, tuple):
            cache = next((each for each in output if hasattr(each, "get_seq_length")), None)
        if cache is None:
            cache = plan.cache
        if cache is not None:
            _ledger.end(self, cache, plan, batch, plan.past)

    def _plan_packed(self, inputs: Inputs, runs: list[tuple[int, int]], held: Held) -> Plan:
        positions = inputs.position_ids
        begun = (
            []
            if positions is None
            else positions.expand(inputs.batch, -1).flatten()[[first for first, _ in runs]].tolist()
        )
        if not held.known or held.content is not None or any(begun):
            raise ValueError(
                "a packed batch goes on with sequences of a cache, and nothing says with which:"
                " name them by capture.place()"
            )
        batch = self._new_batch(len(runs))
        batch.line = None
        plan = plan_of_runs(batch.requests, runs, 0, inputs.rows)
        plan.begun = batch
        return plan

    def _plan_placed(self, positions: torch.Tensor, new: bool) -> Plan:
        if positions.ndim != 2:
            raise ValueError(
                f"positions has shape {tuple(positions.shape)}, [batch, length] is expected: a row"
                " for each sequence"
            )
        if new or not self._batches or self._batches[-1].name:
            batch = self._new_batch(len(positions))
            plan = batch.placed(positions)
            plan.begun = batch
            return plan
        return self._batches[-1].placed(positions)

    def _new_batch(self, sequences: int, name: str | None = None) -> Batch:
        batch = Batch(
            self.capturer.open_batch(sequences, policy="replace"), name
        )  # a position that is computed again is meant to be
        self._batches.append(batch)
        return batch

    def _forget(self, batch: Batch | None) -> None:
        if batch is not None and batch in self._batches:
            self._batches.remove(batch)
            self.capturer.close_batch(batch.requests)

    def _new_ledger(self, layer: Any, index: int) -> Ledger:
        ledger = Ledger(weakref.ref(self), layer, index)
        self._ledgers.add(ledger)
        return ledger

    def _copied(self, batch: Batch | None) -> None:
        """A cache is copied that a batch goes on with."""
        if self._prefixes is not None and batch in self._batches and batch is not None:
            self._prefixes.keep(batch, self._tag)

    def _reorder(self, batch: Batch, indices: list[int]) -> None:
        self._wait()  # for the lengths of requests whose positions the device has
        kept = [int(self.capturer.fork(int(batch.requests[index]))) for index in indices]
        self.capturer.close_batch(batch.requests)
        batch.select(indices, np.array(kept, np.uint64))

    def _cut(self, batch: Batch, columns: int) -> None:
        """The cache was cut: what is behind it is no longer a part of the sequences."""
        for request, rows in zip(batch.requests.tolist(), batch.cut(columns)):
            self.capturer.truncate(request, rows)

    def _drop(self) -> None:
        """The last forward pass is nobody's. The next begin discards what it wrote."""
        plan, self._plan = self._plan, None
        if plan is not None:
            self._forget(plan.begun)

    def _file(self, stream: Any = None, output: Any = None) -> None:
        """Say whose the rows of the last forward pass are, if somebody has planned that and it has
        not been said.
        """
        plan, self._plan = self._plan, None
        if plan is None:
            return
        if (
            len(self._steps) >= self.capturer.slots - 1
        ):  # so that none is lost, however far ahead the host is
            self._steps.pop(0).wait()
        positions = None if plan.positions is None else plan.positions.to(self._device)
        self._steps.append(
            self.capturer.issue(plan.spans, positions=positions, tag=self._tag, stream=stream)
        )
        self._ended(plan, output)
        if plan.batch is not None:
            plan.batch.reach = plan.columns

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
                f"{unfollowed} compiled forward passes ran, and nobody said whose their rows are,"
                " which are missing: attach to the module that torch.compile returned, or call"
                " capture.issue() after each",
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
            items = [(request, rows) for (request, _), rows in zip(items, lengths)]
        for batch in batches if self._prefixes is not None else ():
            if any(ledger.batch is batch and ledger.layer() for ledger in batch.ledgers):
                self._copied(batch)
        self._end_batches(batches)
        routings = [self.capturer.finish(request, rows) for request, rows in items]
        for routing in routings:
            routing.wait()
        self._warn()
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
        self._unfollowed = 0
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

    @property
    def attached(self) -> bool:
        return bool(self._undo)

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
        if (metrics := getattr(self, "_metrics", None)) is not None:
            metrics.close()
        if (capturer := getattr(self, "capturer", None)) is not None:
            capturer.close()

    def __repr__(self) -> str:
        state = "attached" if self.attached else "detached"
        return (
            f"<routecap.transformers.Capture, {state},"
            f" {sum(len(batch.requests) for batch in self._batches)} sequences, of"
            f" {self.capturer!r}>"
        )

    # ---- Inside

    def _take_off(self) -> None:
        while self._undo:
            self._undo.pop()()
        for ledger in list(self._ledgers):
            _ledger.take_out(ledger)
        if self._metrics is not None:
            self._metrics.close()
        _ops.captures.pop(self._key, None)

    def _expect_idle(self, what: str) -> None:
        if self._lock.locked() and not self._runs():
            self._interrupted()
        if self._generation is not None or self._lock.locked():
            raise RuntimeError(f"{what}: the model is running. Wait until it has ended")

    def _wait(self) -> None:
        for step in self._steps:
            step.wait()
        self._steps.clear()

    def _batches_of(self, requests: Sequence[str]) -> list[Batch]:
        unknown = [name for name in requests if name not in self._named]
        if unknown:
            raise KeyError(
                f"no request {unknown[0]!r} was captured: give one of those that the capture has"
            )
        return [self._named[name] for name in requests]

    def _lengths(self, batch: Batch) -> Sequence[int | None]:
        """How many rows each sequence of a batch has; None is as many as were forwarded."""
        if batch.line is None:
            return [None] * len(batch.requests)
        content = _ledger.head(batch)
        if content is not None and content.columns and content.line is batch.line:
            if batch.lengths is not None:  # it was generated; what was cut since is a part of that
                content = content._replace(columns=batch.line.columns)
            self._bring(batch, content)
        for request, rows in zip(batch.requests.tolist(), batch.kept or ()):
            self.capturer.truncate(request, rows)
        if batch.lengths is not None:
            return batch.lengths()
        return batch.rows(batch.reach)

    def _end_batches(self, batches: list[Batch]) -> None:
        self._batches = [batch for batch in self._batches if batch not in batches]
        for batch in batches:
            if batch.name:
                if self._named.get(batch.name) is batch:
                    del self._named[batch.name]

    def _warn(self) -> None:
        stats = self.capturer.stats()
        if stats.rows_delivered and (silent := self.silent_layers):
            warnings.warn(
                f"layers {silent} have not fired: all their cells are missing. Attach to the module"
                " that runs, or leave these taps out",
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
_tapped: weakref.WeakSet[nn.Module] = weakref.WeakSet()
_keys = count(1)


def _device_of(module: nn.Module) -> torch.device:
    tensor = next(module.parameters(), None)
    return torch.device("meta") if tensor is None else tensor.device
