"""What an integrator can choose beyond the arguments that the engine passes."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping
from typing import Literal

from routecap import Store
from routecap.adapter import expect_port, option_values


_PREFIX = "ROUTECAP_VLLM_"


@dataclasses.dataclass(frozen=True)
class Options:
    """Settings of the capturers that are created from now on; see `set_options`.

    Each field can also be set in the environment of the engine's workers, as ROUTECAP_VLLM_ and the
    field's name in capitals (ROUTECAP_VLLM_FILL=0), where no options are set in the program.
    `place` and `store` cannot.

    Attributes:
        fill: What int16 arrays hold in cells that are missing: rows taken from a prefix cache,
            layers that wrote nothing. -1 by default, which is no expert; 0 for consumers that
            cannot read anything else, which then have to look at the validity (`validity_of`).
            Columns of layers without a router are 0 whatever it is.
        lazy: Finished requests come as `PendingRoutedExperts`, which wait for their last step and
            are converted when somebody looks at them, instead of arrays. For engines whose outputs
            do not leave the process between worker and consumer.
        weights: Capture the weight that its router gives to each chosen expert too, as float32. Outputs
            have them in `routed_experts_weights`, and routecap's own bytes beside the ids. An
            engine with a layer whose weights cannot be had is refused.
        preempted: "drop": the rows of a preempted request are forgotten, and those of its second
            prefill are delivered. "keep": the rows under which its tokens were sampled are,
            wherever there are any.
        keep_ended: How many requests that end without having been extracted (stop strings, aborts)
            stay readable through `get_routed_experts`, the most recent ones. They keep their memory
            in the budget until they are read, or pushed out by later ones.
        budget_bytes: Upper limit of the memory for captured rows: of requests that run, and of
            results that callers in this process have and have not read. Beyond it rows are missing,
            and counted. A row takes a byte for each id up to 256 experts, 384 for 48 layers of 8.
        unread_bytes: Where the budget, or a store's, gets short, the oldest of those results are
            copied out of it: upper limit of their memory then. -1: a quarter of what the process's
            cgroup has. Results that were read are the caller's, and count nowhere.
        folder: Where a server puts rows of requests whose clients ask for a file, in tmpfs for
            instance; "": such requests are refused.
        folder_bytes: Upper limit of the files there of one server process. The oldest go first.
        objects: Where a server puts rows of requests whose clients ask for a reference, as
            routecap.remote.connect takes it: "s3://bucket/rollouts", "mooncake://master:port"; or
            JSON with its settings, {"url": ..., "segment_bytes": ...}. Credentials come from the
            environment. "": such requests are refused.
        slots: Steps that may be in flight; a further one waits in `finalize_pending_copy`, or in
            the issue of a batch that has come before.
        store: Where rows of prefixes are kept, for requests that take the prefix from its cache:
            under the engine's block hashes and the versions of its weights. For an engine whose
            scheduler and worker are in this process.
        store_bytes: Without one, the upper limit of the store that each worker has in its memory; 0:
            there is none, and such rows are missing.
        all_ranks: Every rank captures, instead of rank 0 alone: for sequence parallelism, where
            each has rows that nobody else has. `routecap.merge` unites their routings.
        place: For layers whose routers see other rows than the step's own from 0 on: called in the
            forward pass, for each layer, with the number of rows that the router saw; returns
            (first of them to record, first row in the step, how many). Without it layers with
            sequence parallelism, or with data parallelism that gathers before routing, are refused
            when the model is bound. In a CUDA graph the numbers are those of its capture.
        unchecked: Run in a version of vLLM that routecap was not checked with, if it has all places
            that routecap hooks and reads. No request gets rows unless the engine passes checks of
            `routecap conform` when it starts. Outputs, answers and the log say so.
        metrics_port: Count how often each expert is chosen, and serve that and the capturer's
            counters to Prometheus: at this port and the rank. 0: no.
        metrics_address: Where to listen; "0.0.0.0": at all addresses of the machine.
        metrics_experts: A series for each expert too.
    """

    fill: int = -1
    lazy: bool = False
    weights: bool = False
    preempted: Literal["drop", "keep"] = "drop"
    keep_ended: int = 0
    budget_bytes: int = 8 << 30
    unread_bytes: int = -1
    folder: str = ""
    folder_bytes: int = 1 << 30
    objects: str = ""
    slots: int = 3
    store: Store | None = None
    store_bytes: int = 1 << 30
    all_ranks: bool = False
    place: Callable[[int], tuple[int, int, int]] | None = None
    unchecked: bool = False
    metrics_port: int = 0
    metrics_address: str = "127.0.0.1"
    metrics_experts: bool = True

    def __post_init__(self) -> None:
        if not -32768 <= self.fill <= 0:
            raise ValueError(
                f"fill is {self.fill}: it must be negative, as no expert's id is, or 0"
            )
        if self.preempted not in ("drop", "keep"):
            raise ValueError(f"preempted is {self.preempted!r}: it must be 'drop' or 'keep'")
        if self.keep_ended < 0:
            raise ValueError(f"keep_ended is {self.keep_ended}: it must be 0 or more")
        expect_port(self.metrics_port)
        if self.slots < 1:
            raise ValueError(f"slots is {self.slots}: at least one step has to be in flight")

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Options:
        return cls(**option_values(cls, _PREFIX, environment))


_options: Options | None = None


def set_options(options: Options | None) -> None:
    """Choose the settings of capturers created from now on; None: those of the environment."""
    global _options
    _options = options


def get_options() -> Options:
    return Options.from_environment() if _options is None else _options
