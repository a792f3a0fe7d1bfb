"""Settings of a user, beyond SGLang's own flags."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, MutableMapping

from routecap.adapter import expect_port, option_values

ASKED = "ROUTECAP_SGLANG"


@dataclasses.dataclass(frozen=True)
class Options:
    """Settings of an engine's processes. Each is also a variable of their environment:
    ROUTECAP_SGLANG_ and the field's name in capitals (ROUTECAP_SGLANG_FOLDER=/data/routes).

    Attributes:
        beside: SGLang's own capturer stays, and answers; routings go to callback and folder.
            ROUTECAP_SGLANG=beside is the same.
        callback: "module:function", called with a `Finished` for every request that ended, in a
            thread of the process that computed it. What it raises is logged.
        folder: Where the routing of every request that ended is saved, as its request id and
            .routecap.
        objects: Where rows are put whose clients ask for a reference, as routecap.remote.connect
            takes it: "s3://bucket/rollouts"; or JSON with its settings, {"url": ..., ...}.
        weights: Capture the router's weight of each expert too, as float32: in all routings, and in
            answers in the format "routecap".
        budget_bytes: Upper limit of the memory for captured rows, those of cached prefixes
            included. Beyond it rows are missing, and counted.
        slots: Steps that may be in flight.
        metrics_port: Count how often each expert is chosen, and serve that and the capturer's
            counters to Prometheus: at this port and the rank. 0: no.
        metrics_address: Where to listen; "0.0.0.0": at all addresses of the machine.
        metrics_experts: A series for each expert too.
        unchecked: Run in a release of SGLang that routecap is not checked with, if it has all that
            is hooked and read.
    """

    beside: bool = False
    callback: str = ""
    folder: str = ""
    objects: str = ""
    weights: bool = False
    budget_bytes: int = 8 << 30
    slots: int = 5
    metrics_port: int = 0
    metrics_address: str = "127.0.0.1"
    metrics_experts: bool = True
    unchecked: bool = False

    def __post_init__(self) -> None:
        if self.callback and self.callback.count(":") != 1:
            raise ValueError(f"callback is {self.callback!r}: it must be 'module:function'")
        expect_port(self.metrics_port)
        if self.slots < 2:
            raise ValueError(
                f"slots is {self.slots}: with fewer than 2, steps are lost under overlap"
                " scheduling. Give 2 or more"
            )

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Options:
        found = option_values(cls, f"{ASKED}_", environment)
        if environment.get(ASKED, "").lower() == "beside":
            found["beside"] = True
        return cls(**found)

    def to_environment(self, environment: MutableMapping[str, str] = os.environ) -> None:
        """Write the settings to an environment, for processes that the engine starts."""
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            environment[f"{ASKED}_{field.name.upper()}"] = (
                str(int(value)) if isinstance(value, bool) else str(value)
            )
