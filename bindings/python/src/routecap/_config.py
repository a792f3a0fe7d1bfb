"""What a capturer is made of: its settings, and what this machine can do."""

from collections.abc import Callable, Sequence
from operator import index
from typing import Any, NamedTuple, Unpack, cast, get_args

import numpy as np
from numpy.typing import NDArray

from . import _structs as structs
from ._constants import Backend, ConfigFlag, IdSpace, Provenance, Role, Status
from ._docs import documented
from ._errors import error, member
from ._layers import ARRAYS, addresses, expect_layers, layer_arrays
from ._library import raw
from ._protocols import StreamLike
from ._switches import Switches
from ._tensors import dtype_of, provenances
from ._weights import weights_dtype_of
from .names import BackendName, DtypeLike, IdSpaceName, ProvenanceName, RoleName, WeightsType


class Settings(Switches, total=False):
    """Settings of a Capturer. layers, k, experts (or layer_experts) and rows are required, unless
    the role is "disabled".
    """

    layers: int
    """Captured (MoE) layers."""
    k: int
    """Experts per token, the most of any layer."""
    experts: int
    """Ids are in [0, experts), zero experts included."""
    rows: int
    """Sink rows: the most tokens of one forward pass, padding included."""
    backend: Backend | BackendName
    """Where the sink is: "host", which is the default, or "cuda"."""
    device: Any
    """Ordinal of the CUDA device, or torch's device."""
    role: Role | RoleName
    """"owner", which is the default, "mirror" (a replica: rows go nowhere) or "disabled" (nothing
    is allocated, every call returns at once).
    """
    slots: int
    """Each holds one step in flight; default 2.

    A step without one is lost, with a LostStepWarning.
    """
    sink_dtype: DtypeLike
    """Of the library's sink: int16, which is the default, int32 or int64."""
    id_space: IdSpace | IdSpaceName
    """What the recorded ids are; travels with every routing."""
    max_requests: int
    """Open at a time; default 65536."""
    budget_bytes: int
    """Upper limit of the memory for captured rows, routings included; default 1 GiB."""
    layer_map: Sequence[int] | NDArray[Any] | None
    """[layers] index of each captured layer in the decoder, strictly ascending unless layer_visit is
    set; default 0..layers-1.
    """
    layer_experts: Sequence[int] | NDArray[Any] | None
    """[layers] experts of each layer where they differ."""
    layer_k: Sequence[int] | NDArray[Any] | None
    """[layers] the most experts of a token in each layer, where they differ."""
    layer_min_k: Sequence[int] | NDArray[Any] | None
    """[layers] the fewest, where a router chooses fewer for some tokens; default: layer_k."""
    layer_visit: Sequence[int] | NDArray[Any] | None
    """[layers] how often the decoder ran the layer before, where it runs layers several times."""
    weights: WeightsType | None
    """Capture a weight beside each id, of this type: float32, float16 or "bfloat16"; default: none."""
    layer_provenance: Sequence[Provenance | ProvenanceName] | NDArray[Any] | None
    """[layers] "captured", which is the default, or "recomputed": the layer may be routed from
    logits.
    """
    stream: StreamLike | Callable[[], StreamLike | None] | None
    """What stream=None means: a stream, or a function that gives one.

    Default: the current stream of the framework in use.
    """


_SWITCHES = {name.lower(): flag for name, flag in ConfigFlag.__members__.items()}


class Config:
    """A routecap_config of settings, and the arrays to which it points."""

    def __init__(self, settings: Settings) -> None:
        unknown = set(settings) - set(Settings.__annotations__)
        if unknown:
            raise TypeError(
                f"unknown settings: {', '.join(sorted(unknown))}; there are "
                f"{', '.join(Settings.__annotations__)}"
            )
        self.backend = member(Backend, settings.get("backend", Backend.HOST))
        self.role = member(Role, settings.get("role", Role.OWNER))
        device = settings.get("device", 0)
        self.device: int = (
            device if isinstance(device, int) else getattr(device, "index", None) or 0
        )  # torch's device has its number so
        self.layers = settings.get("layers", 0)
        given = {name: settings.get(name) for name in ARRAYS}
        self._arrays = layer_arrays(self.layers, **cast(dict[str, Any], given))
        layer_provenance = provenances(settings.get("layer_provenance"))
        if layer_provenance is not None:
            self._arrays["layer_provenance"] = expect_layers(
                layer_provenance, "layer_provenance", self.layers
            )
        flags = sum(flag for name, flag in _SWITCHES.items() if settings.get(name))
        numbers: dict[str, int] = {}
        for name in ("layers", "k", "experts", "rows", "slots", "max_requests", "budget_bytes"):
            numbers[name] = cast(int, settings.get(name) or 0)
            most = 1 << (64 if name == "budget_bytes" else 32)
            if not 0 <= index(numbers[name]) < most:
                raise error(
                    Status.ERR_ARGUMENT, f"{name} is {numbers[name]}: give a number in [0, {most})"
                )
        numbers.update(addresses(self._arrays))
        memory = structs.config.empty()
        raw.routecap_config_init(memory, structs.config.size)
        defaults = dict(zip(structs.config.fields, structs.config.read(memory)))
        numbers["slots"] = numbers["slots"] or 2
        self.k: int
        self.experts: int
        self.rows: int
        self.slots: int
        self.k, self.experts, self.rows, self.slots = (
            numbers["k"],
            numbers["experts"],
            numbers["rows"],
            numbers["slots"],
        )
        if "layer_experts" in self._arrays and not self.experts:
            self.experts = int(self._arrays["layer_experts"].max(initial=0))
        # Of the layers, [layers] each.
        self.layer_map: NDArray[np.int32] = self._arrays.get(
            "layer_map", np.arange(self.layers, dtype=np.int32)
        )
        self.layer_experts: NDArray[np.uint32] = self._arrays.get(
            "layer_experts", np.full(self.layers, self.experts, np.uint32)
        )
        self.layer_k: NDArray[np.uint32] = self._arrays.get(
            "layer_k", np.full(self.layers, self.k, np.uint32)
        )
        self.layer_min_k: NDArray[np.uint32] = self._arrays.get("layer_min_k", self.layer_k)
        self.layer_visit: NDArray[np.uint32] = self._arrays.get(
            "layer_visit", np.zeros(self.layers, np.uint32)
        )
        sink_dtype, weights = settings.get("sink_dtype"), settings.get("weights")
        self.weights_dtype = weights_dtype_of(weights) if weights is not None else None
        defaults.update(
            numbers,
            backend=self.backend,
            role=self.role,
            device=self.device,
            flags=flags,
            id_space=member(IdSpace, settings.get("id_space", IdSpace.LOGICAL)),
            sink_dtype=dtype_of(sink_dtype) if sink_dtype is not None else 0,
            weights_dtype=self.weights_dtype or 0,
        )
        self.memory = structs.config(**defaults)


class Memory(NamedTuple):
    """Memory that a capturer of some settings needs."""

    page_rows: int
    """Rows in one page."""
    device_bytes: int
    """Allocated at once, on the device."""
    pinned_bytes: int
    """Allocated at once: page-locked host memory."""
    host_bytes: int
    """Allocated at once: other host memory, rounded up."""
    row_bytes: int
    """Of one captured row: ids and validity."""
    page_bytes: int
    """Of one page, the unit in which requests take memory from the budget: its rows, and 8 bytes
    for the tag of each."""
    request_bytes: int
    """Of one open request before its first row, outside the budget."""


@documented("routecap_config_memory")
def memory(**settings: Unpack[Settings]) -> Memory:
    """How much memory a Capturer of these settings would need."""
    needs = structs.memory.empty()
    raw.routecap_config_memory(Config(settings).memory, needs)
    return Memory._make(structs.memory.read(needs))


class BackendInfo(NamedTuple):
    """What this build can do on this machine."""

    available: bool
    """Whether a capturer on this backend can be created; `detail` says why not."""
    devices: int
    detail: str


@documented("routecap_backend_info")
def backends() -> dict[BackendName, BackendInfo]:
    """The backends by name, "host" and "cuda"."""
    found: dict[BackendName, BackendInfo] = {}
    for name in get_args(BackendName):
        info = structs.backend.empty()
        raw.routecap_backend_info(member(Backend, name), info)
        available, devices, _, detail = structs.backend.read(info)
        found[name] = BackendInfo(available == 1, devices, raw.text(detail))
    return found
