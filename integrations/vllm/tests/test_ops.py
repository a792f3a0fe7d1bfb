"""The custom ops: opaque to compilers, without a graph break, and the same in a traced model as in
an eager one.
"""

import numpy as np
import pytest
import torch
from engine import FusedMoE, Model

from routecap_vllm import routed_experts_capturer as module


def test_the_op_has_its_schema_and_a_fake_kernel():
    from torch._subclasses.fake_tensor import FakeTensorMode

    module._RoutedExpertsDeviceCache(1, 1, 1, "cpu")
    schema = torch.ops.vllm.capture_routing.default._schema
    assert [argument.name for argument in schema.arguments] == [
        "buffer",
        "topk_ids",
        "layer_id",
        "batch_size",
    ]
    assert [
        bool(argument.alias_info and argument.alias_info.is_write) for argument in schema.arguments
    ] == [True, False, False, False]
    assert not schema.returns
    with FakeTensorMode():
        assert (
            torch.ops.vllm.capture_routing(
                torch.zeros(2, 8, 4, dtype=torch.int16), torch.zeros(3, 4), 1, 3
            )
            is None
        )


def test_the_op_writes_rows_of_one_layer_of_any_buffer():
    module._RoutedExpertsDeviceCache(1, 1, 1, "cpu")
    buffer = torch.zeros(2, 8, 4, dtype=torch.int16)
    ids = torch.tensor([[1, 2, 3, 4], [5, 6, 40000, 65541], [9, 9, 9, 9]])
    torch.ops.vllm.capture_routing(buffer, ids, 1, 2)
    assert buffer[1, :3].tolist() == [[1, 2, 3, 4], [5, 6, -1, -1], [0] * 4] and not buffer[0].any()


@pytest.mark.parametrize("backend", ["eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_a_compiled_model_is_captured_without_a_graph_break(start, backend):
    model = Model(dtype=torch.int64)
    start(model)
    torch._dynamo.reset()
    compiled = torch.compile(model, backend=backend, fullgraph=True, dynamic=False)
    for turn, rows in enumerate((5, 9, 5)):
        tokens = list(range(10 * turn, 10 * turn + rows))
        positions = torch.arange(rows)
        compiled(torch.tensor(tokens), positions)
        module.issue_routing_d2h_copy([str(turn)], {str(turn): rows}, positions, positions)
        got = module.get_global_experts_capturer().get_routed_experts(str(turn))
        np.testing.assert_array_equal(got, model.expected(tokens))


def test_a_compiler_that_copies_the_buffer_is_told_so(start):
    model = Model(dtype=torch.int64)
    start(model)
    torch._dynamo.reset()
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    with pytest.raises(RuntimeError, match="a compiler has copied it"):
        compiled(torch.arange(5), torch.arange(5))


def test_views_of_layers_stay_where_they_are(start):
    model = Model(internal=True)
    start(model)
    buffer = module.get_global_experts_capturer().get_device_cache().buffer
    for captured, moe in enumerate(filter(None, model.moe)):
        assert (
            isinstance(moe, FusedMoE)
            and moe._routing_replay_out.data_ptr() == buffer[captured].data_ptr()
        )
        assert getattr(moe._routing_replay_out, "_dynamo_static_input_type", None) is not None
