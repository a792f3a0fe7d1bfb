"""The package with torch tensors, streams and CUDA graphs on a GPU.

A program, for machines that have one and no pytest:

    PYTHONPATH=FOLDER_OF_THE_UNPACKED_WHEEL python3 cuda_device.py

Every id that comes out is compared with what was written. Ends with "N checks passed, M failed" and
exit status 0 if none failed.
"""

import sys
import traceback
from collections.abc import Callable
from typing import Any

import numpy as np
import routecap
import torch

LAYERS, K, EXPERTS, ROWS, STEPS = 58, 8, 256, 1024, 8
device = torch.device("cuda", 0)
checks: list[Callable[[], None]] = []


def check(function: Callable[[], None]) -> Callable[[], None]:
    checks.append(function)
    return function


def new(**settings: Any) -> routecap.Capturer:
    return routecap.Capturer(
        **{
            "layers": LAYERS,
            "k": K,
            "experts": EXPERTS,
            "rows": ROWS,
            "backend": "cuda",
            "device": device,
            **settings,
        }
    )


def choose(seed: int, rows: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
    """[layers, rows, k] distinct ids in each cell, on the device."""
    row = torch.arange(rows, device=device).view(1, -1, 1)
    layer, column = (
        torch.arange(LAYERS, device=device).view(-1, 1, 1),
        torch.arange(K, device=device),
    )
    return ((seed * 7 + row * 13 + layer * 29 + column * 5) % EXPERTS).to(dtype).contiguous()


def expect(routing: routecap.Routing, ids: torch.Tensor) -> None:
    """A routing is complete, and its ids are those of [layers, rows, k]."""
    with routing:
        status = routing.wait(30)
        assert status == routecap.Status.OK, status
        found, wanted = routing.ids(), ids.cpu().numpy().transpose(1, 0, 2)
        assert found.shape == wanted.shape and (found == wanted).all(), (
            f"{np.count_nonzero(found != wanted)} ids differ"
        )


def issue(capturer: routecap.Capturer, rows: int, **options: Any) -> routecap.Routing:
    request = capturer.open()
    step = capturer.issue(routecap.spans(1, request=int(request), rows=rows), **options)
    assert (
        step.status == routecap.Status.OK
        and step.wait(30) == routecap.Status.OK
        and step.conflicts(30) == 0
    )
    return request.finish()


def refused(call: Callable[[], Any], kind: type[Exception], status: routecap.Status) -> None:
    try:
        call()
    except kind as error:
        assert isinstance(error, routecap.Error) and error.status == status, f"{error!r}"
    else:
        raise AssertionError("it was not refused")


@check
def tensors_of_all_types_are_recorded_into_the_library_s_sink() -> None:
    with new() as capturer:
        for seed, dtype in enumerate((torch.int16, torch.int32, torch.int64)):
            ids = choose(seed, 300, dtype)
            capturer.begin(300)
            for layer in range(LAYERS):
                capturer.record(layer, ids[layer])
            capturer.snapshot()
            expect(issue(capturer, 300), ids)
            capturer.begin(300)
            capturer.record_layers(ids)
            assert not capturer.probe(300)["found"].any()
            capturer.snapshot()
            expect(issue(capturer, 300), ids)


@check
def strided_and_padded_tensors_and_parts_of_rows_are_recorded() -> None:
    ids = choose(5, 200, torch.int64)
    with new() as capturer:
        capturer.begin(200)
        order = torch.randperm(200, device=device)
        for layer in range(LAYERS):
            if layer % 4 == 0:  # fused shared experts behind the routed ones
                wide = torch.nn.functional.pad(ids[layer], (0, 2), value=999)
                capturer.record(layer, wide, columns=K + 2)
            elif layer % 4 == 1:  # columns apart
                capturer.record(layer, ids[layer].t().contiguous().t())
            elif layer % 4 == 2:  # rows in another order
                capturer.record(layer, ids[layer][order], row_index=order.to(torch.int32))
            else:  # micro-batches
                capturer.record(layer, ids[layer][:120])
                capturer.record(
                    layer,
                    ids[layer][120:],
                    row_base=torch.tensor([120], dtype=torch.int32, device=device),
                )
        capturer.snapshot()
        expect(issue(capturer, 200), ids)


def bound(graph: bool, recorded: torch.dtype | None) -> None:
    """A sink of the engine's as int16, written by the router itself or recorded into, eager or in a
    graph.
    """
    sink = torch.full((LAYERS, ROWS, K), -1, dtype=torch.int16, device=device)
    stream = torch.cuda.Stream(device)
    rows = 256
    source = torch.zeros(LAYERS, rows, K, dtype=recorded or torch.int16, device=device)

    def forward(capturer: routecap.Capturer) -> None:
        capturer.begin(rows)
        for layer in range(LAYERS):
            if recorded is None:
                sink[layer, :rows].copy_(source[layer])
            else:
                capturer.record(layer, source[layer])
        capturer.snapshot()

    with new(external_sink=True) as capturer:
        capturer.bind(0, sink)
        with torch.cuda.stream(stream):
            replay: Callable[[], Any] = lambda: forward(capturer)
            if graph:
                forward(capturer)
                capturer.discard()
                captured = torch.cuda.CUDAGraph()
                torch.cuda.synchronize()
                with torch.cuda.graph(captured, stream=stream):
                    forward(capturer)
                    refused(
                        lambda: capturer.issue(None), routecap.Error, routecap.Status.ERR_CAPTURING
                    )
                replay = captured.replay
            for seed in range(STEPS):
                ids = choose(seed, rows, source.dtype)
                source.copy_(ids)
                replay()
                expect(issue(capturer, rows), ids)
        assert capturer.stats().steps_lost == 0


for in_graph in (False, True):
    for kind in (None, torch.int16, torch.int32, torch.int64):

        def run(in_graph: bool = in_graph, kind: torch.dtype | None = kind) -> None:
            bound(in_graph, kind)

        run.__name__ = f"a_sink_bound_as_int16_{'in_a_graph' if in_graph else 'eager'}_written_by_{'the_router' if kind is None else kind}"
        check(run)


@check
def streams_are_given_in_every_form() -> None:
    stream = torch.cuda.Stream(device)
    ids = choose(3, 64)
    torch.cuda.synchronize()
    for given in (stream, stream.cuda_stream, 0, torch.cuda.default_stream(device)):
        with new() as capturer:
            capturer.begin(64, stream=given)
            for layer in range(LAYERS):
                capturer.record(layer, ids[layer], stream=given)
            capturer.snapshot(stream=given)
            expect(issue(capturer, 64, stream=given), ids)
    with (
        new(stream=lambda: torch.cuda.current_stream(device)) as capturer,
        torch.cuda.stream(stream),
    ):
        capturer.begin(64)
        capturer.record_layers(ids)
        capturer.snapshot()
        expect(issue(capturer, 64), ids)


@check
def work_of_the_current_stream_is_captured_in_its_order() -> None:
    """The ids are made by kernels that are still queued on a stream of the user's when they are
    recorded: on another stream they would be old.
    """
    stream = torch.cuda.Stream(device)
    source = torch.zeros(LAYERS, 512, K, dtype=torch.int32, device=device)
    wanted = choose(9, 512)
    torch.cuda.synchronize()
    with new() as capturer, torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)
        source.copy_(wanted)
        capturer.begin(512)
        capturer.record_layers(source)
        capturer.snapshot()
        request = capturer.open()
        step = capturer.issue(routecap.spans(1, request=int(request), rows=512))
        assert step.poll() == routecap.Status.PENDING, "issue waited for the device"
        expect(request.finish(), wanted)


@check
def a_layer_of_the_sink_is_a_torch_tensor() -> None:
    for dtype in (torch.int16, torch.int32, torch.int64):
        with new(sink_dtype=dtype) as capturer:
            layers = [capturer.sink(layer).torch() for layer in range(LAYERS)]
            assert (
                layers[0].shape == (ROWS, K)
                and layers[0].dtype == dtype
                and layers[0].device == device
            )
            by_interface = torch.as_tensor(capturer.sink(1), device=device)
            assert (
                by_interface.data_ptr()
                == layers[1].data_ptr()
                == torch.from_dlpack(capturer.sink(1)).data_ptr()
            )
            ids = choose(4, 128, dtype)
            capturer.begin(128)
            for layer in range(LAYERS):
                layers[layer][:128].copy_(ids[layer])
            capturer.snapshot()
            expect(issue(capturer, 128), ids)
        layers[0].fill_(3)  # the sink outlives the capturer
        assert int(layers[0].sum()) == 3 * ROWS * K
        del layers, by_interface


@check
def positions_are_read_on_the_device() -> None:
    ids = choose(6, 96)
    for dtype in (torch.int32, torch.int64):
        with new() as capturer:
            request = capturer.open()
            capturer.begin(96)
            capturer.record_layers(ids)
            capturer.snapshot()
            positions = torch.arange(40, 136, dtype=dtype, device=device)
            spans = routecap.spans(
                1,
                request=int(request),
                position_end=1000,
                rows=96,
                flags=routecap.SpanFlag.DEVICE_POSITIONS,
            )
            capturer.issue(spans, positions=positions).wait(30)
            assert request.length == 136 and request.coverage(0, 40).rows_empty == 40
            expect(request.extract(40), ids)


@check
def experts_are_chosen_from_logits() -> None:
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        with new(layers=1, layer_provenance=["recomputed"]) as capturer:
            logits = torch.randn(512, EXPERTS, device=device, dtype=torch.float32).to(dtype)
            weights = torch.zeros(512, K, device=device)
            capturer.begin(512)
            capturer.route(0, routecap.Router("softmax_renormalize"), logits, weights=weights)
            capturer.snapshot()
            wanted = torch.sort(logits.float(), dim=1, descending=True, stable=True).indices[:, :K]
            routing = issue(capturer, 512)
            routing.wait(30)
            assert (
                routing.ids()[:, 0] == wanted.cpu().numpy()
            ).mean() > 0.999  # equal logits but one may fall differently in softmax
            assert torch.allclose(weights.sum(dim=1), torch.ones(512, device=device), atol=1e-4)


class Exchanged:
    """A tensor of a framework that has DLPack only."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor

    def __dlpack__(self, **options: Any) -> Any:
        return self.tensor.__dlpack__(stream=options.get("stream"))

    def __dlpack_device__(self) -> Any:
        return self.tensor.__dlpack_device__()


@check
def tensors_come_by_dlpack_and_by_cuda_array_interface() -> None:
    ids = choose(7, 100)
    torch.cuda.synchronize()
    with new() as capturer:
        stream = torch.cuda.current_stream(device)
        capturer.begin(100, stream=stream)
        for layer in range(LAYERS):
            face = type(
                "Face", (), {"__cuda_array_interface__": ids[layer].__cuda_array_interface__}
            )()
            capturer.record(layer, Exchanged(ids[layer]) if layer % 2 else face, stream=stream)
        capturer.snapshot(stream=stream)
        expect(issue(capturer, 100, stream=stream), ids)


@check
def wrong_tensors_are_refused() -> None:
    status = routecap.Status
    with new() as capturer:
        capturer.begin(4)
        refused(
            lambda: capturer.record(0, torch.zeros(4, K, dtype=torch.int32)),
            ValueError,
            status.ERR_ARGUMENT,
        )
        refused(
            lambda: capturer.record(0, np.zeros((4, K), np.int32)), ValueError, status.ERR_ARGUMENT
        )
        refused(
            lambda: capturer.record(0, torch.zeros(4, K, device=device)),
            TypeError,
            status.ERR_DTYPE,
        )
        refused(
            lambda: capturer.record(0, torch.zeros(4, K - 1, dtype=torch.int32, device=device)),
            ValueError,
            status.ERR_SHAPE_MISMATCH,
        )
        refused(
            lambda: capturer.record(
                0, torch.zeros(1, K, dtype=torch.int32, device=device).expand(4, K)
            ),
            ValueError,
            status.ERR_ARGUMENT,
        )
        refused(
            lambda: capturer.issue(None, positions=torch.zeros(4, dtype=torch.int32)),
            ValueError,
            status.ERR_ARGUMENT,
        )
        pinned = torch.from_numpy(
            choose(1, 4)[0].cpu().numpy()
        ).pin_memory()  # which the device reads as its own
        capturer.record(0, pinned)
        capturer.snapshot()
        request = capturer.open()
        capturer.issue(routecap.spans(1, request=int(request), rows=4)).wait(30)
        routing = request.finish()
        routing.wait(30)
        assert (routing.ids()[:, 0] == pinned.numpy()).all()
    with new(external_sink=True) as capturer:
        refused(
            lambda: capturer.bind(0, torch.zeros(LAYERS, ROWS, K, dtype=torch.int16)),
            ValueError,
            status.ERR_ARGUMENT,
        )
        refused(
            lambda: capturer.bind(0, torch.zeros(LAYERS, ROWS, K, dtype=torch.int16).pin_memory()),
            ValueError,
            status.ERR_ARGUMENT,
        )
        refused(
            lambda: capturer.bind(
                0, torch.zeros(LAYERS, ROWS - 1, K, dtype=torch.int16, device=device)
            ),
            ValueError,
            status.ERR_SHAPE_MISMATCH,
        )
    if torch.cuda.device_count() > 1:
        with new() as capturer:
            capturer.begin(4)
            refused(
                lambda: capturer.record(0, torch.zeros(4, K, dtype=torch.int32, device="cuda:1")),
                ValueError,
                status.ERR_ARGUMENT,
            )


@check
def a_bound_tensor_is_kept_until_the_capturer_is_closed() -> None:
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated(device)
    with new(external_sink=True) as capturer:
        capturer.bind(0, torch.zeros(LAYERS, ROWS, K, dtype=torch.int16, device=device))
        assert torch.cuda.memory_allocated(device) >= before + LAYERS * ROWS * K * 2
    assert torch.cuda.memory_allocated(device) == before


@check
def a_routing_becomes_a_tensor_of_torch() -> None:
    ids = choose(8, 40)
    with new() as capturer:
        capturer.begin(40)
        capturer.record_layers(ids)
        capturer.snapshot()
        routing = issue(capturer, 40)
        routing.wait(30)
    tensor = torch.from_dlpack(routing).to(device)
    assert torch.equal(tensor.to(torch.int32), ids.permute(1, 0, 2))
    out = torch.empty(LAYERS, 40, K, dtype=torch.int64).pin_memory()
    routing.copy_to(out, order="layer_major")
    assert torch.equal(out.to(device), ids.to(torch.int64))


def planned(rank: int, rows: int) -> tuple[routecap.Plan, list[routecap.Routing]]:
    """A rank of a trainer with two sequences of so many rows, of which one has holes."""
    plan = routecap.Plan(
        [rows + 1, 2 * rows + 1],
        layers=LAYERS,
        k=K,
        experts=EXPERTS,
        context="zigzag",
        context_size=2,
        context_rank=rank,
    )
    routings = []
    for sample, count in enumerate((rows, 2 * rows)):
        ids = choose(sample, count).cpu().numpy().transpose(1, 0, 2).astype(np.uint8)
        valid = np.ones((count, LAYERS), bool)
        valid[5::7, 3] = valid[11::29] = sample == 0
        routings.append(routecap.Routing.from_arrays(ids, experts=EXPERTS, valid=valid))
    return plan, routings


@check
def a_plan_gathers_to_the_device_what_it_gathers_to_the_host() -> None:
    for rank in range(2):
        plan, routings = planned(rank, 300)
        expected = plan.gather(routings)
        out = torch.full(plan.shape, 77, dtype=torch.int64, device=device)
        stream = torch.cuda.Stream()
        for on in (None, stream):
            out.fill_(77)
            stream.wait_stream(torch.cuda.current_stream())
            gathered = plan.gather(routings, out=out, stream=on)
            torch.cuda.synchronize()
            assert (
                gathered.ids is out
                and gathered.report == expected.report
                and gathered.report.cells_lost > 0
            )
            assert (out.cpu().numpy() == expected.ids).all() and (
                gathered.classes.cpu().numpy() == expected.classes
            ).all()


@check
def a_captured_upload_takes_what_is_packed_at_each_replay() -> None:
    plan, routings = planned(0, 200)
    packed = torch.empty(plan.packed_bytes, dtype=torch.uint8, pin_memory=True)
    scratch = torch.empty(plan.packed_bytes, dtype=torch.uint8, device=device)
    out = torch.empty(plan.shape, dtype=torch.int64, device=device)
    classes = torch.empty(plan.shape[:2], dtype=torch.uint8, device=device)
    plan.pack(routings, packed)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        plan.unpack(packed, out, classes=classes, scratch=scratch)
    for sources in (routings, [routings[0], None], [None, routings[1]]):
        plan.pack(sources, packed)
        graph.replay()
        torch.cuda.synchronize()
        expected = plan.gather(sources)
        assert (out.cpu().numpy() == expected.ids).all() and (
            classes.cpu().numpy() == expected.classes
        ).all()


def main() -> int:
    failed = 0
    for function in checks:
        try:
            function()
            torch.cuda.synchronize()
            print(f"passed  {function.__name__}")
        except Exception:
            failed += 1
            print(f"FAILED  {function.__name__}")
            traceback.print_exc()
    print(
        f"routecap {routecap.__version__}, torch {torch.__version__},"
        f" {torch.cuda.get_device_name(device)}"
    )
    print(f"{len(checks) - failed} checks passed, {failed} failed")
    return failed != 0


if __name__ == "__main__":
    sys.exit(main())
