"""The CUDA backend through the package, with the driver that needs no device: memory and streams as
other frameworks give them.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import routecap
from driver import DeviceTensor, Stream
from numpy.typing import NDArray
from routecap._tensors import describe

LAYERS, K, EXPERTS, ROWS = 4, 4, 64, 32


def expected_ids(seed: int, rows: int) -> NDArray[np.int64]:
    row, layer, column = np.ogrid[:rows, :LAYERS, :K]
    return ((seed * 7 + row * 13 + layer * 29 + column * 5) % EXPERTS).astype(np.int64)


@pytest.fixture
def stream() -> Stream:
    return Stream()


@pytest.fixture
def capturer(stream: Stream) -> Iterator[routecap.Capturer]:
    with routecap.Capturer(
        layers=LAYERS, k=K, experts=EXPERTS, rows=ROWS, backend="cuda", device=0, stream=stream
    ) as made:
        yield made


def read(capturer: routecap.Capturer, rows: int) -> Any:
    request = capturer.open()
    step = capturer.issue(routecap.spans(1, request=int(request), rows=rows))
    assert step.wait(10) == routecap.Status.OK and step.conflicts(10) == 0
    with request.finish() as routing:
        assert routing.wait(10) == routecap.Status.OK
        return routing.ids().copy()


def test_the_backend_is_there() -> None:
    assert routecap.backends()["cuda"].available and routecap.backends()["cuda"].devices >= 1
    needs = routecap.memory(layers=LAYERS, k=K, experts=EXPERTS, rows=ROWS, backend="cuda")
    assert needs.device_bytes > 0 and needs.pinned_bytes > 0


@pytest.mark.parametrize("dtype", [np.int16, np.int32, np.int64])
def test_device_tensors_are_recorded(capturer: routecap.Capturer, dtype: Any) -> None:
    ids = expected_ids(1, 10)
    tensor = DeviceTensor(ids.astype(dtype))
    capturer.begin(10)
    for layer in range(LAYERS):
        capturer.record(layer, tensor[:, layer])
    capturer.snapshot()
    assert (read(capturer, 10) == ids).all()
    capturer.begin(10)
    capturer.record_layers({layer: tensor[:, layer] for layer in range(LAYERS)})
    assert not capturer.probe(10)["found"].any()
    capturer.snapshot()
    assert (read(capturer, 10) == ids).all()


def test_a_graph_captures_and_replays(capturer: routecap.Capturer, stream: Stream) -> None:
    buffer = DeviceTensor(np.zeros((10, LAYERS, K), np.int32))
    request = capturer.open()
    with stream.capture() as graph:
        capturer.begin(10)
        for layer in range(LAYERS):
            capturer.record(layer, buffer[:, layer])
        capturer.snapshot()
        with pytest.raises(routecap.Error) as raised:
            capturer.issue(routecap.spans(1, request=int(request), rows=10))
        assert raised.value.status == routecap.Status.ERR_CAPTURING
    for seed in range(5):
        buffer.values[...] = expected_ids(seed, 10)
        graph.replay()
        assert (read(capturer, 10) == expected_ids(seed, 10)).all()


def test_a_bound_tensor_is_written_by_the_router() -> None:
    sink = DeviceTensor(np.zeros((LAYERS, ROWS, K), np.int16))
    with routecap.Capturer(
        layers=LAYERS, k=K, experts=EXPERTS, rows=ROWS, backend="cuda", external_sink=True
    ) as capturer:
        assert capturer.sink(0) is None
        capturer.bind(0, sink)
        capturer.begin(10, stream=0)
        sink.values[:, :10] = expected_ids(2, 10).transpose(1, 0, 2)
        capturer.snapshot(stream=0)
        assert (read(capturer, 10) == expected_ids(2, 10)).all()
        assert capturer.sink(1).__cuda_array_interface__["data"][0] == sink.values[1].ctypes.data


def test_a_layer_of_the_sink_is_an_array_for_other_frameworks(
    capturer: routecap.Capturer, stream: Stream
) -> None:
    layers = [capturer.sink(layer) for layer in range(LAYERS)]
    face = layers[1].__cuda_array_interface__
    assert (
        face["shape"] == (ROWS, K)
        and face["typestr"] == "<i2"
        and face["strides"][1] == 2
        and layers[1].__dlpack_device__() == (2, 0)
    )
    assert repr(layers[1]) == "DeviceArray(shape=(32, 4), dtype=int16, device=0)"
    capturer.begin(10)
    capturer.record_layers(
        {layer: DeviceTensor(expected_ids(3, 10)[:, layer]) for layer in range(LAYERS)}
    )
    capturer.snapshot()
    assert (read(capturer, 10) == expected_ids(3, 10)).all()

    class Exchanged:  # knows DLPack only
        def __dlpack__(self, **options: Any) -> Any:
            return layers[1].__dlpack__(**options)

        def __dlpack_device__(self) -> tuple[int, int]:
            return 2, 0

    by_interface, by_dlpack = describe(layers[1], "it"), describe(Exchanged(), "it")
    assert by_interface[:7] == by_dlpack[:7] and by_dlpack.device == 0
    capturer.close()
    del by_dlpack  # the last to hold the sink
    with pytest.raises(BufferError):
        layers[1].__dlpack__(copy=True)
    with pytest.raises(routecap.Error, match="torch is not imported"):
        layers[1].torch()


@pytest.mark.parametrize(
    ("tensor", "match"),
    [
        (np.zeros((4, K), np.int32), "ids is in host memory"),
        (
            DeviceTensor(np.zeros((4, K), np.int32), device=1),
            "ids is on cuda:1, the capturer's memory is on cuda:0",
        ),
    ],
)
def test_tensors_elsewhere_are_refused(
    capturer: routecap.Capturer, tensor: Any, match: str
) -> None:
    capturer.begin(4)
    with pytest.raises(ValueError, match=match):
        capturer.record(0, tensor)
    with pytest.raises(ValueError, match="host memory"):
        capturer.record(0, DeviceTensor(np.zeros((4, K), np.int32)), live_rows=np.ones(1, np.int32))
    with pytest.raises(ValueError, match="host memory"):
        capturer.issue(None, positions=np.zeros(4, np.int32))


def test_host_memory_is_not_bound_on_a_device(stream: Stream) -> None:
    with routecap.Capturer(
        layers=LAYERS, k=K, experts=EXPERTS, rows=ROWS, backend="cuda", external_sink=True
    ) as capturer:
        with pytest.raises(ValueError, match="host memory"):
            capturer.bind(0, np.zeros((LAYERS, ROWS, K), np.int16))


class CudaPython:
    """A stream as CUDA Python has it."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.stream.cuda_stream


class CuPy:
    def __init__(self, stream: Stream) -> None:
        self.ptr = stream.cuda_stream


@pytest.mark.parametrize(
    "kind",
    [
        lambda stream: stream,
        lambda stream: stream.cuda_stream,
        CudaPython,
        CuPy,
        lambda stream: 0,
        lambda stream: 2,
    ],
)
def test_streams_of_every_kind_are_taken(
    capturer: routecap.Capturer, stream: Stream, kind: Any
) -> None:
    given = kind(stream)
    ids = expected_ids(4, 6)
    tensor = DeviceTensor(ids)
    capturer.begin(6, stream=given)
    for layer in range(LAYERS):
        capturer.record(layer, tensor[:, layer], stream=given)
    capturer.snapshot(stream=given)
    request = capturer.open()
    capturer.issue(routecap.spans(1, request=int(request), rows=6), stream=given).wait(10)
    assert (request.extract().ids() == ids).all()


def test_the_setting_may_be_a_function_that_is_asked_each_time() -> None:
    asked: list[int] = []
    streams = [Stream(), Stream()]

    def current() -> Stream:
        asked.append(1)
        return streams[len(asked) % 2]

    with routecap.Capturer(
        layers=LAYERS, k=K, experts=EXPERTS, rows=ROWS, backend="cuda", stream=current
    ) as capturer:
        capturer.begin(4)
        capturer.discard()
    assert len(asked) == 2


def test_device_memory_and_streams_outlive_nothing_that_needs_them(
    capturer: routecap.Capturer,
) -> None:
    """Routings are in host memory: they stay when the capturer and its device memory have gone."""
    ids = expected_ids(5, 10)
    capturer.begin(10)
    capturer.record_layers(DeviceTensorList(ids))
    capturer.snapshot()
    request = capturer.open()
    capturer.issue(routecap.spans(1, request=int(request), rows=10))
    routing = request.finish()
    capturer.close()
    assert routing.ready and (routing.ids() == ids).all()


def test_a_step_for_which_there_is_no_slot_is_warned_of(stream: Stream) -> None:
    with routecap.Capturer(
        layers=LAYERS,
        k=K,
        experts=EXPERTS,
        rows=ROWS,
        backend="cuda",
        slots=1,
        manual_progress=True,
        stream=stream,
    ) as capturer:
        spans = routecap.spans(1, request=int(capturer.open()), rows=6)
        capturer.begin(6)
        capturer.snapshot()
        assert not capturer.issue(spans).lost
        capturer.begin(6)
        capturer.snapshot()
        with pytest.warns(routecap.LostStepWarning, match="step 2 .*cuda:0.* is lost"):
            assert capturer.issue(spans).lost


class DeviceTensorList(list[DeviceTensor]):
    """One tensor for each layer."""

    def __init__(self, ids: NDArray[Any]) -> None:
        super().__init__(DeviceTensor(ids[:, layer]) for layer in range(LAYERS))
