"""torch tensors in host memory. Needs torch; tests/cuda_device.py has those of a GPU."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import routecap
import torch
from numpy.typing import NDArray
from routecap.adapter import raw_stream_of

LAYERS, K, EXPERTS, ROWS = 3, 4, 64, 32


def expected_ids(rows: int) -> NDArray[np.int64]:
    row, layer, column = np.ogrid[:rows, :LAYERS, :K]
    return ((row * 13 + layer * 29 + column * 5) % EXPERTS).astype(np.int64)


@pytest.fixture
def capturer() -> Any:
    with routecap.Capturer(
        layers=LAYERS,
        k=K,
        experts=EXPERTS,
        rows=ROWS,
        external_sink=True,
        device=torch.device("cpu"),
    ) as made:
        yield made


def issue(capturer: routecap.Capturer, rows: int, **options: Any) -> routecap.Routing:
    request = capturer.open()
    capturer.issue(routecap.spans(1, request=int(request), rows=rows), **options).wait(10)
    routing = request.finish()
    routing.wait(10)
    return routing


@pytest.mark.parametrize("dtype", [torch.int16, torch.int32, torch.int64])
def test_a_tensor_is_bound_and_tensors_of_all_types_are_recorded(
    capturer: routecap.Capturer, dtype: torch.dtype
) -> None:
    buffer = torch.zeros(LAYERS, ROWS, K, dtype=torch.int16)
    capturer.bind(0, buffer)
    ids = expected_ids(10)
    tensor = torch.from_numpy(ids).to(dtype)
    capturer.begin(10)
    capturer.record(0, tensor[:, 0])
    capturer.record(1, torch.nn.functional.pad(tensor[:, 1], (0, 2)), columns=K + 2)
    buffer[2, :10] = tensor[:, 2].to(torch.int16)
    capturer.snapshot()
    routing = issue(capturer, 10)
    assert (routing.ids() == ids).all() and (buffer[:, :10].numpy() == ids.transpose(1, 0, 2)).all()
    assert (torch.from_dlpack(routing).numpy() == ids).all()
    out = torch.empty(10, LAYERS, K, dtype=torch.int64)
    routing.copy_to(out)
    assert (out.numpy() == ids).all()


def test_the_sink_is_a_tensor_s_memory(capturer: routecap.Capturer) -> None:
    buffer = torch.zeros(LAYERS, ROWS, K, dtype=torch.int64)
    capturer.bind(0, buffer)
    assert np.shares_memory(capturer.sink(1), buffer.numpy())
    assert torch.from_numpy(capturer.sink(1)).data_ptr() == buffer[1].data_ptr()


def test_logits_of_bfloat16_are_routed() -> None:
    with routecap.Capturer(
        layers=1, k=K, experts=EXPERTS, rows=ROWS, layer_provenance=["recomputed"]
    ) as capturer:
        logits = torch.randn(8, EXPERTS, generator=torch.Generator().manual_seed(1)).to(
            torch.bfloat16
        )
        weights = torch.zeros(8, K)
        capturer.begin(8)
        capturer.route(
            0,
            routecap.Router("softmax_renormalize", bias=torch.zeros(EXPERTS, dtype=torch.bfloat16)),
            logits,
            weights=weights,
        )
        capturer.snapshot()
        expected = torch.sort(logits.float(), dim=1, descending=True, stable=True).indices[:, :K]
        assert (issue(capturer, 8).ids()[:, 0] == expected.numpy()).all()
        assert torch.allclose(weights.sum(dim=1), torch.ones(8))


def test_positions_are_a_tensor(capturer: routecap.Capturer) -> None:
    capturer.bind(0, torch.zeros(LAYERS, ROWS, K, dtype=torch.int16))
    ids = expected_ids(4)
    capturer.begin(4)
    capturer.record_layers(torch.from_numpy(ids.transpose(1, 0, 2).copy()))
    capturer.snapshot()
    request = capturer.open()
    spans = routecap.spans(
        1, request=int(request), position_end=9, rows=4, flags=routecap.SpanFlag.DEVICE_POSITIONS
    )
    capturer.issue(spans, positions=torch.tensor([5, 6, 7, 8])).wait(10)
    assert request.length == 9 and (request.extract(5).ids() == ids).all()


@pytest.mark.parametrize(
    ("tensor", "kind"),
    [
        (torch.zeros(4, K), TypeError),
        (torch.zeros(4, K, dtype=torch.bool), TypeError),
        (torch.zeros(4, K, dtype=torch.bfloat16), TypeError),
        (torch.zeros(1, K, dtype=torch.int32).expand(4, K), ValueError),
        (torch.zeros(4, K, dtype=torch.int32).to_sparse(), ValueError),
        (torch.zeros(4, K, dtype=torch.int32, device="meta"), ValueError),
        (torch.zeros(K, dtype=torch.int32), ValueError),
    ],
)
def test_tensors_that_cannot_be_recorded_are_refused(
    capturer: routecap.Capturer, tensor: torch.Tensor, kind: type[Exception]
) -> None:
    capturer.bind(0, torch.zeros(LAYERS, ROWS, K, dtype=torch.int16))
    capturer.begin(4)
    with pytest.raises(kind) as raised:
        capturer.record(0, tensor)
    assert isinstance(raised.value, routecap.Error)


def test_the_stream_of_the_host_backend_is_none_although_torch_is_there(
    capturer: routecap.Capturer,
) -> None:
    capturer.bind(0, torch.zeros(LAYERS, ROWS, K, dtype=torch.int16))
    capturer.begin(1)
    with pytest.raises(ValueError):
        capturer.snapshot(stream=5)


# Steps that come again were issued on the default stream then, beside the engine's.
def test_a_torch_without_the_quick_function_says_its_stream_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Stream:
        cuda_stream = 4096

    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: Stream)
    monkeypatch.delattr(torch._C, "_cuda_getCurrentRawStream", raising=False)
    on_cuda = SimpleNamespace(backend=routecap.Backend.CUDA)
    found = raw_stream_of(on_cuda)  # type: ignore[arg-type]
    assert found is not None and found(0) == 4096


def test_a_plan_writes_to_tensors() -> None:
    ids = np.arange(2 * 10 * 3).reshape(10, 3, 2) % 8
    routing = routecap.Routing.from_arrays(ids.astype(np.uint8), experts=8)
    plan = routecap.Plan([11], layers=3, k=2, experts=8, align=4)
    expected = plan.gather([routing])
    out, classes = (
        torch.empty(plan.shape, dtype=torch.int64),
        torch.empty(plan.shape[:2], dtype=torch.uint8),
    )
    assert plan.gather([routing], out=out, classes=classes).ids is out
    assert (out.numpy() == expected.ids).all() and (classes.numpy() == expected.classes).all()
    packed = torch.empty(plan.packed_bytes, dtype=torch.uint8)
    plan.pack([routing], packed)
    again = torch.empty_like(out)
    plan.unpack(packed, again, classes=classes)
    assert torch.equal(again, out)
    sent = torch.empty(plan.rows, dtype=torch.int64)
    plan.gather_values([torch.arange(11)], fill=-1, out=sent)
    assert sent.tolist() == [*range(11), -1]
    assert (plan.scatter(out, classes)[0].ids(np.int64)[:10] == ids).all()
