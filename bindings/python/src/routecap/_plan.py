"""The rows of one rank of a trainer, in the layout of its model."""

from collections.abc import Iterable, Mapping, Sequence
from threading import Lock
from typing import (
    Any,
    Literal,
    NamedTuple,
    Protocol,
    TypeAlias,
    Union,
    cast,
    runtime_checkable,
)

import numpy as np
from numpy.typing import ArrayLike, NDArray

from . import _structs as structs
from ._constants import (
    Backend,
    Dtype,
    Order,
    PlanContext,
    PlanFill,
    PlanLayout,
    PlanLost,
    PlanSequence,
    Status,
)
from ._docs import documented
from ._errors import error, member
from ._layers import addresses, layer_arrays
from ._library import raw
from ._protocols import BytesLike, StreamLike, Tensor, TensorLike
from ._reading import NONE
from ._routing import Routing
from ._tensors import (
    HOST,
    current_stream,
    describe,
    dtype_of,
    expect_dense,
    expect_writable,
    integers,
    numpy_dtype,
    stream_of,
)
from ._weights import array_dtype, weights_dtype_of
from .names import DtypeLike, OrderName, PlanContextName, PlanLayoutName, WeightsType


@runtime_checkable
class Reader(Protocol):
    """A source that reads selected rows of a stored routing without reading the others."""

    def read(self, first: int, rows: int) -> Routing:
        """Rows from position `first` on, as far as it has them."""
        ...


Source: TypeAlias = Union[Routing, Reader, bytes, bytearray, memoryview, None]
"""The rows of one sample: a routing, one in the serialised form, or what reads one. None: lost."""
Sources: TypeAlias = Union[
    Sequence[Union[Source, Sequence[Source]]], Mapping[int, Union[Source, Sequence[Source]]]
]
"""By the samples' numbers. A sample may have several, with different rows."""


_RANK_UNSET = 4294967295  # ROUTECAP_PLAN_RANK_UNSET: left out, it is not rank 0 on every rank
_LOST: dict[object, PlanLost] = {"balanced": PlanLost.BALANCED, "error": PlanLost.ERROR}


class PlanReport(NamedTuple):
    """How many rows of a result are valid, filled or lost. All fields but layers, rows and
    cells_lost add up to rows.
    """

    layers: int
    rows: int
    rows_valid: int
    rows_partial: int
    """Some cells are lost."""
    rows_lost: int
    """All cells are lost."""
    rows_not_needed: int
    rows_padding: int
    cells_lost: int


class Gathered(NamedTuple):
    """The ids of a rank in its layout."""

    ids: Any
    """[layers, rows, k] or [rows, layers, k]."""
    classes: Any
    """[layers, rows] or [rows, layers]: PlanClass of each cell."""
    report: PlanReport


class Plan:
    """Which token each row of a trainer's rank is, and which experts its routers get.

    Immutable; any number of threads may use it at once. It is freed with the last reference to it
    (routecap_plan_free).

    lengths: tokens of each sequence of the micro-batch, or cu_lengths, which is one longer: the
    first token of each among all, and their number. layers: how many MoE layers this pipeline stage
    or virtual stage has, or the index of each in the decoder. k, experts, layer_experts, layer_k,
    layer_min_k, layer_visit: of the model, as in Settings. expert_parallel: how many ranks share the experts, for balanced filling. needed: how many
    rows of each sequence matter: those before the last token that has a loss (see `needed_rows`).
    Default: all but the last one. layout: "packed" (one after another), "padded_right" or
    "padded_left" ([samples, width]). context: how context_size ranks divide it: "zigzag",
    "contiguous" or "allgather"; this is context_rank, which must be given where context_size is
    more than 1. sequence_parallel: tensor_size ranks divide the rows further; this is tensor_rank,
    which must be given likewise. sequence_first: of padded layouts: rows are
    [width, samples], as in Megatron. align, align_total, least_total, align_rank, padded_lengths,
    width, starts: to what it is padded; see routecap/plan.h. The defaults are the least that can be
    divided evenly. dtype, order: of the result. fill: what padding and rows that are not needed
    get: "balanced", or a number. lost: what lost cells get: a number (-1), "balanced", or "error":
    they are refused. none: what columns without an expert get.
    """

    @documented("routecap_plan_config_init", "routecap_plan_create")
    def __init__(
        self,
        lengths: ArrayLike | None = None,
        *,
        layers: int | Sequence[int] | NDArray[Any],
        k: int,
        experts: int | None = None,
        layer_experts: ArrayLike | None = None,
        layer_k: ArrayLike | None = None,
        layer_min_k: ArrayLike | None = None,
        layer_visit: ArrayLike | None = None,
        cu_lengths: ArrayLike | None = None,
        needed: ArrayLike | None = None,
        padded_lengths: ArrayLike | None = None,
        starts: ArrayLike | None = None,
        layout: PlanLayout | PlanLayoutName = PlanLayout.PACKED,
        context: PlanContext | PlanContextName = PlanContext.NONE,
        context_size: int = 1,
        context_rank: int | None = None,
        tensor_size: int = 1,
        tensor_rank: int | None = None,
        sequence_parallel: bool = False,
        sequence_first: bool = False,
        width: int = 0,
        align: int = 0,
        align_total: int = 0,
        least_total: int = 0,
        align_rank: int = 0,
        expert_parallel: int = 1,
        dtype: DtypeLike = Dtype.I64,
        order: Order | OrderName = Order.LAYER_MAJOR,
        fill: int | Literal["balanced"] = "balanced",
        lost: int | Literal["balanced", "error"] = -1,
        none: int = NONE,
    ) -> None:
        held = {
            name: integers(values, np.uint64)
            for name, values in (
                ("lengths", lengths),
                ("cu_lengths", cu_lengths),
                ("needed", needed),
                ("padded_lengths", padded_lengths),
                ("starts", starts),
            )
        }
        samples = _samples(held)
        for name, given, names in (("fill", fill, ("balanced",)), ("lost", lost, tuple(_LOST))):
            if isinstance(given, str) and given not in names:
                wanted = " or ".join(map(repr, names))
                raise error(Status.ERR_ARGUMENT, f"{name} is {given!r}: give {wanted}, or a number")
        count = layers if isinstance(layers, int) else len(layers)
        of_layers = layer_arrays(
            count,
            layer_map=None if isinstance(layers, int) else layers,
            layer_experts=layer_experts,
            layer_k=layer_k,
            layer_min_k=layer_min_k,
            layer_visit=layer_visit,
        )
        config = structs.plan_config(
            layout=member(PlanLayout, layout),
            context=member(PlanContext, context),
            context_size=context_size,
            context_rank=_RANK_UNSET if context_rank is None else context_rank,
            tensor_size=tensor_size,
            tensor_rank=_RANK_UNSET if tensor_rank is None else tensor_rank,
            flags=(PlanSequence.PARALLEL if sequence_parallel else 0)
            | (PlanSequence.FIRST if sequence_first else 0),
            samples=samples,
            width=width,
            align=align,
            align_total=align_total,
            least_total=least_total,
            align_rank=align_rank,
            layers=count,
            k=k,
            experts=experts or 0,
            expert_parallel=expert_parallel,
            dtype=dtype_of(dtype),
            order=member(Order, order),
            fill=PlanFill.BALANCED if fill == "balanced" else PlanFill.VALUE,
            fill_value=0 if fill == "balanced" else fill,
            lost=_LOST.get(lost, PlanLost.MARK),
            lost_value=0 if lost in _LOST else lost,
            none_value=none,
            **addresses({name: array for name, array in held.items() if array is not None}),
            **addresses(of_layers),
        )
        self._handle = raw.routecap_plan_create(config)[1]
        memory = structs.plan_shape.empty()
        raw.routecap_plan_describe(self._handle, memory)
        self._shape = dict(zip(structs.plan_shape.fields, structs.plan_shape.read(memory)))
        self.samples = samples
        """Sequences of the micro-batch."""
        self._layers: list[int] = of_layers.get("layer_map", np.arange(count)).tolist()
        self._lengths: list[int] = []
        if held["lengths"] is not None:
            self._lengths = held["lengths"].tolist()
        elif held["cu_lengths"] is not None:
            self._lengths = np.diff(held["cu_lengths"]).tolist()

    # ---- What it says

    @property
    def rows(self) -> int:
        """Rows of this rank."""
        return int(self._shape["rows"])

    @property
    def layers(self) -> int:
        return int(self._shape["layers"])

    @property
    def k(self) -> int:
        """Columns of a cell."""
        return int(self._shape["k"])

    @property
    def rows_needed(self) -> int:
        """Rows of this rank whose routing is wanted."""
        return int(self._shape["rows_needed"])

    @property
    def total_rows(self) -> int:
        """Rows of the micro-batch with its padding, of all ranks that divide it."""
        return int(self._shape["total_rows"])

    @property
    def width(self) -> int:
        """Columns of this rank, of padded layouts."""
        return int(self._shape["width"])

    @property
    def dtype(self) -> "np.dtype[Any]":
        return numpy_dtype(self._shape["dtype"])

    @property
    def order(self) -> Order:
        return Order(self._shape["order"])

    @property
    def shape(self) -> tuple[int, int, int]:
        """Of the result: [layers, rows, k] or [rows, layers, k]."""
        by_layer = self.order == Order.LAYER_MAJOR
        return (self.layers, self.rows, self.k) if by_layer else (self.rows, self.layers, self.k)

    @property
    def packed_bytes(self) -> int:
        """What `pack` writes at most."""
        return int(self._shape["packed_bytes"])

    @property
    @documented("routecap_plan_ranges", "routecap_plan_describe")
    def ranges(self) -> NDArray[np.void]:
        """The rows that this rank needs, of which sample: an array with the fields sample, first
        and rows.
        """
        ranges = np.zeros(self._shape["ranges"], structs.plan_range_dtype)
        raw.routecap_plan_ranges(self._handle, ranges)
        return ranges

    def __repr__(self) -> str:
        return (
            f"Plan({self.rows} of {self.total_rows} rows of {self.samples} samples, {self.layers}"
            f" layers, {self.dtype})"
        )

    # ---- Gathering

    def fetch(self, readers: Sequence[Any] | Mapping[int, Any]) -> dict[int, list[Source]]:
        """Read the rows that this rank needs, from one reader for each sample; a routing that is
        not a reader stays as it is.

        A reader that has `of_layers(layers)` is asked for one of this stage's layers alone. A reader that has `begin(first, rows)` is asked for all its ranges before the first is
        waited for: what that gives is called for the routing.
        """
        given = {
            sample: [
                each.of_layers(self._layers) if hasattr(each, "of_layers") else each
                for each in several
            ]
            for sample, several in _by_sample(readers).items()
        }
        read: dict[int, list[Any]] = {
            sample: [each for each in sources if not isinstance(each, Reader)]
            for sample, sources in given.items()
        }
        waiting: list[tuple[int, Any]] = []
        for sample, first, rows in self.ranges.tolist():
            for each in given.get(sample, []):
                if not isinstance(each, Reader):
                    continue
                begin = getattr(each, "begin", None)
                waiting.append(
                    (
                        sample,
                        (
                            begin(first, rows)
                            if begin is not None
                            else lambda r=each, a=first, n=rows: r.read(a, n)
                        ),
                    )
                )
        for sample, finish in waiting:
            read[sample].append(finish())
        return read

    def _sources(self, sources: Sources) -> tuple[tuple[int, object], ...]:
        return tuple(
            (
                sample,
                (
                    each
                    if isinstance(each, Routing)
                    else Routing.deserialize(cast(BytesLike, each))
                )._handle,
            )
            for sample, several in self.fetch(sources).items()
            for each in several
            if each is not None
        )

    @documented("routecap_plan_gather")
    def gather(
        self,
        sources: Sources,
        *,
        out: TensorLike | None = None,
        classes: TensorLike | None = None,
        stream: StreamLike | None = None,
    ) -> Gathered:
        """The ids of this rank, in its layout, and the class of each cell.

        sources: for each sample its routing, the bytes of one in the serialised form, or a reader.
        out, classes: memory for them, of `shape`, `dtype` and uint8: NumPy arrays or tensors. Where
        `out` is a tensor of torch on a CUDA device, the ids are uploaded narrow and widened there,
        on its current stream or on `stream`, and nothing is waited for.
        """
        if out is None:
            out = np.empty(self.shape, self.dtype)
        tensor = self._result(out, "out", self.dtype, self.shape)
        if tensor.device != HOST:
            return self._gather_on_device(sources, out, classes, stream)
        if classes is None:
            classes = np.empty(self.shape[:2], np.uint8)
        report = structs.plan_report.empty()
        raw.routecap_plan_gather(
            self._handle,
            self._sources(sources),
            _memory(tensor),
            _memory(self._result(classes, "classes", np.dtype(np.uint8), self.shape[:2])),
            report,
        )
        return Gathered(out, classes, PlanReport(*structs.plan_report.read(report)))

    @documented("routecap_plan_gather_weights")
    def gather_weights(
        self, sources: Sources, *, dtype: WeightsType = np.float32, missing: float = float("nan")
    ) -> NDArray[Any]:
        """The weights of this rank, in its layout: those of the ids that `gather` gives of the same
        sources.

        They are float32, or of the type in which they were captured ("bfloat16" as uint16). Filled
        cells have the weight 0, needed cells without weights `missing`.
        """
        kind = weights_dtype_of(dtype)
        out = np.empty(self.shape, array_dtype(kind))
        raw.routecap_plan_gather_weights(
            self._handle, self._sources(sources), kind, missing, out.view(np.uint8).reshape(-1)
        )
        return out

    @documented("routecap_plan_gather_values")
    def gather_values(
        self,
        values: Sequence[Any] | Mapping[int, Any],
        *,
        fill: ArrayLike = 0,
        out: TensorLike | None = None,
    ) -> TensorLike:
        """Lay out one element for each token in the same way: [rows, ...] of `values`, for each
        sample an array [length, ...], all of one type.

        Token ids for instance. `fill` is written where there is no token. Rows that are not needed
        are tokens.
        """
        given = values.items() if isinstance(values, Mapping) else enumerate(values)
        arrays = {sample: np.ascontiguousarray(each) for sample, each in given if each is not None}
        kinds = {(each.dtype, each.shape[1:]) for each in arrays.values()}
        if len(kinds) > 1:
            raise error(
                Status.ERR_SHAPE_MISMATCH,
                f"values have different types or shapes: {sorted(map(str, kinds))}. Give arrays of"
                " one type, alike but for their length",
            )
        dtype, shape = kinds.pop() if kinds else (np.asarray(fill).dtype, ())
        addresses = np.zeros(self.samples, np.uint64)
        for sample, each in arrays.items():
            if not 0 <= sample < self.samples or len(each) != self._lengths[sample]:
                raise error(
                    Status.ERR_SHAPE_MISMATCH,
                    f"sample {sample} has {len(each)} values, and must have one for each token:"
                    " give as many as `lengths` has for it",
                )
            addresses[sample] = each.ctypes.data or 1  # of nothing
        filler = np.ascontiguousarray(np.broadcast_to(np.asarray(fill, dtype), shape))
        if out is None:
            out = np.empty((self.rows, *shape), dtype)
        tensor = describe(out, "out")
        if (
            tensor.shape != (self.rows, *shape)
            or tensor.itemsize != dtype.itemsize
            or isinstance(out, np.ndarray)
            and out.dtype != dtype
            or tensor.device != HOST
        ):
            raise error(
                Status.ERR_SHAPE_MISMATCH,
                f"out has shape {tensor.shape}, {(self.rows, *shape)} of {dtype} in host memory is"
                " expected: leave it out, or give such an array",
            )
        expect_dense(tensor, "out")
        expect_writable(tensor, "out")
        raw.routecap_plan_gather_values(
            self._handle, addresses, filler.nbytes, filler, _memory(tensor)
        )
        return out

    @documented("routecap_plan_scatter")
    def scatter(self, ids: TensorLike, classes: TensorLike | None = None) -> list[Routing]:
        """Make a routing for each sample from ids that this rank's routers have recorded, of
        `shape` and `dtype` in host memory.
        """
        result = raw.routecap_plan_scatter(
            self._handle,
            _memory(self._result(ids, "ids", self.dtype, self.shape, writable=False)),
            (
                None
                if classes is None
                else _memory(
                    self._result(
                        classes, "classes", np.dtype(np.uint8), self.shape[:2], writable=False
                    )
                )
            ),
            self.samples,
        )
        return [Routing._of(handle) for handle in result[1]]

    # ---- Onto a device

    @documented("routecap_plan_pack")
    def pack(self, sources: Sources, packed: TensorLike) -> PlanReport:
        """Pack the ids for upload into host memory of `packed_bytes`: a tensor of uint8, preferably
        pinned.
        """
        report = structs.plan_report.empty()
        tensor = describe(packed, "packed")
        expect_dense(tensor, "packed")
        expect_writable(tensor, "packed")
        raw.routecap_plan_pack(self._handle, self._sources(sources), _memory(tensor), report)
        return PlanReport(*structs.plan_report.read(report))

    @documented("routecap_plan_unpack")
    def unpack(
        self,
        packed: TensorLike,
        out: TensorLike,
        *,
        classes: TensorLike | None = None,
        scratch: TensorLike | None = None,
        stream: StreamLike | None = None,
    ) -> None:
        """Upload what was packed, and write the ids of this rank where `out` is: one copy and one
        kernel, which a CUDA graph can capture.

        scratch: memory of the device, of `packed_bytes`. stream: by default the current one of
        `out`'s framework.
        """
        tensor = self._result(out, "out", self.dtype, self.shape)
        upload = describe(packed, "packed")
        expect_dense(upload, "packed")
        on_host = tensor.device == HOST
        places = {"dst": tensor}
        if classes is not None:
            places["classes"] = self._result(classes, "classes", np.dtype(np.uint8), self.shape[:2])
        if scratch is not None:
            places["scratch"] = describe(scratch, "scratch")
            expect_dense(places["scratch"], "scratch")
        for name, each in places.items():
            if each.device not in (tensor.device, None):
                raise error(
                    Status.ERR_ARGUMENT,
                    f"{name} is not where out is: give a tensor on the same device",
                )
        device = 0 if on_host else tensor.device or 0
        target = structs.plan_target(
            backend=Backend.HOST if on_host else Backend.CUDA,
            device=device,
            **{name: each.address for name, each in places.items()},
            **{f"{name}_bytes": _bytes(each) for name, each in places.items()},
        )
        where = (
            0 if on_host else current_stream(out, device) if stream is None else stream_of(stream)
        )
        raw.routecap_plan_unpack(self._handle, _memory(upload), target, where)

    def _gather_on_device(
        self,
        sources: Sources,
        out: TensorLike,
        classes: TensorLike | None,
        stream: StreamLike | None,
    ) -> Gathered:
        import torch

        if not isinstance(out, torch.Tensor):
            raise error(
                Status.ERR_ARGUMENT,
                "out is on a device, and no tensor of torch: give one, or take pack and unpack",
            )
        with torch.cuda.device(out.device):
            on = (
                torch.cuda.current_stream()
                if stream is None
                else torch.cuda.ExternalStream(stream_of(stream))
            )
        with torch.cuda.stream(on):  # whose memory this is, and comes back to
            if classes is None:
                classes = torch.empty(self.shape[:2], dtype=torch.uint8, device=out.device)
            scratch = torch.empty(self.packed_bytes, dtype=torch.uint8, device=out.device)
            packed = torch.empty(self.packed_bytes, dtype=torch.uint8, pin_memory=True)
            report = self.pack(sources, packed)
            self.unpack(packed, out, classes=classes, scratch=scratch, stream=on)
            arrived = torch.cuda.Event()
            arrived.record(on)
        with _uploading:
            _uploads[:] = [(event, held) for event, held in _uploads if not event.query()]
            _uploads.append((arrived, packed))
        return Gathered(out, classes, report)

    def _result(
        self,
        given: TensorLike,
        name: str,
        dtype: "np.dtype[Any]",
        shape: tuple[int, ...],
        writable: bool = True,
    ) -> Tensor:
        tensor = describe(given, name)
        if tensor.shape != shape:
            raise error(
                Status.ERR_SHAPE_MISMATCH,
                f"{name} has shape {tensor.shape}, {shape} is expected: make it by the shape of the"
                " plan",
            )
        if tensor.dtype != dtype_of(dtype):
            raise error(
                Status.ERR_DTYPE,
                f"{name} has elements of another type than {dtype}: give such an array, or another"
                " dtype to the Plan",
            )
        expect_dense(tensor, name)
        if writable:
            expect_writable(tensor, name)
        return tensor


_uploads: list[tuple[Any, Any]] = []
"""Pinned memory that a copy may still read, and the event behind that copy.

Guarded by _uploading.
"""
_uploading = Lock()


def _bytes(tensor: Tensor) -> int:
    return int(np.prod(tensor.shape, dtype=np.int64)) * tensor.itemsize


def _memory(tensor: Tensor) -> object:
    return raw.memory(tensor.address, _bytes(tensor), 0 if tensor.readonly else 1, tensor.holder)


def _samples(arrays: Mapping[str, NDArray[Any] | None]) -> int:
    """How many samples there are; all arrays must have as many."""
    counts = {
        name: array.size - (name == "cu_lengths")
        for name, array in arrays.items()
        if array is not None
    }
    if len(set(counts.values())) > 1 or -1 in counts.values():
        raise error(
            Status.ERR_SHAPE_MISMATCH,
            "these are not of equally many samples: "
            + ", ".join(f"{n} has {c}" for n, c in counts.items())
            + ". Give one element for each sample, and one more in cu_lengths",
        )
    return next(iter(counts.values()), 0)


def _by_sample(sources: Sequence[Any] | Mapping[int, Any]) -> dict[int, list[Any]]:
    given: Iterable[tuple[int, Any]] = (
        sources.items() if isinstance(sources, Mapping) else enumerate(sources)
    )
    return {
        sample: list(each) if isinstance(each, (list, tuple)) else [each] for sample, each in given
    }


def needed_rows(loss_mask: ArrayLike) -> int:
    """How many rows of a sequence are needed, of a mask [tokens] of the tokens that have a loss:
    those before the last of them.

    A token is predicted from the row before it; rows behind that change nothing that is learnt.
    """
    (last,) = np.nonzero(np.asarray(loss_mask))
    return int(last[-1]) if last.size else 0
