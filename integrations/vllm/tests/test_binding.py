"""Which layers of a model are found, how each is tapped, and which configurations are refused."""

import functools
import gc
import logging
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from engine import FusedMoE, Model, Router, RouterThatIsOpaque, RouterWithoutCallback

from routecap_vllm import _aux_output, _binding
from routecap_vllm import routed_experts_capturer as module
from routecap_vllm.routed_experts_capturer import Options


def taps(model):
    return _binding._bindings[model].layers


def forward_and_read(model, tokens, name="a"):
    capturer = module.get_global_experts_capturer()
    positions = torch.arange(len(tokens), device=model.device)
    model(torch.tensor(tokens, device=model.device), positions)
    module.issue_routing_d2h_copy([name], {name: len(tokens)}, positions, positions.cpu())
    return capturer.get_routed_experts(name)


@pytest.mark.parametrize(
    ("model", "tap"),
    [
        ({}, "callback"),
        ({"router": RouterWithoutCallback}, "router"),
        ({"router": RouterThatIsOpaque}, "selection"),
        ({"internal": True}, "buffer"),
    ],
    ids=["callback", "router", "selection", "buffer"],
)
def test_a_layer_is_tapped_where_its_ids_are_logical(start, model, tap):
    model = Model(**model)
    start(model)
    assert taps(model) == dict.fromkeys(range(4), tap)
    for moe in filter(None, model.moe):
        assert (moe._routing_replay_out is not None) == (tap == "buffer")


def test_binding_again_and_to_another_capturer_leaves_one_tap(start):
    model = Model(router=RouterWithoutCallback)
    start(model)
    module.bind_routing_capture_to_model(model)
    first = module.get_global_experts_capturer()
    start(model)
    tokens = list(range(10, 30))
    np.testing.assert_array_equal(forward_and_read(model, tokens), model.expected(tokens))
    assert first.capturer.stats().steps_issued == 0
    assert module.get_global_experts_capturer().capturer.stats().cells_conflicting == 0
    assert len(model._forward_pre_hooks) == len(model._forward_hooks) == 1
    _binding._bindings[model].remove()
    assert not model._forward_pre_hooks and all(
        "_compute_routing" not in vars(moe.router) for moe in model.moe if moe
    )


def test_layers_are_known_by_their_place_in_the_decoder_and_not_by_a_counter(start):
    FusedMoE.count = 1000
    model = Model(layers=5, dense=1)
    start(model)
    assert sorted(taps(model)) == [0, 1, 2, 3]
    routing = None
    forward_and_read(model, [10, 11], "b")
    model(torch.tensor([12]), torch.zeros(1, dtype=torch.int64))
    module.issue_routing_d2h_copy(
        ["c"], {"c": 1}, torch.zeros(1, dtype=torch.int64), torch.zeros(1, dtype=torch.int64)
    )
    routing = module.routing_of("c")
    assert routing.layer_map.tolist() == [1, 2, 3, 4]


def test_a_capturer_goes_with_its_model_and_not_before(start):
    model = Model(router=RouterWithoutCallback)
    start(model)
    capturer = module.get_global_experts_capturer().capturer
    module.init_routed_experts_capturer_with_shared_cache(False, None, 0, 1, 1, "cpu")
    gc.collect()
    assert not capturer.closed
    model(torch.arange(3), torch.arange(3))  # which still writes its buffer
    del model
    gc.collect()
    assert capturer.closed


class Bare:
    """A model of which only its modules are known."""

    def __init__(self, modules):
        self._modules_of_it = modules

    def modules(self):
        return iter(self._modules_of_it)


def bare_layer(moe_layer_id, **attributes):
    return SimpleNamespace(
        moe_layer_id=moe_layer_id,
        moe_config=SimpleNamespace(is_sequence_parallel=False, dp_size=1, experts_per_token=4),
        quant_method=SimpleNamespace(supports_internal_mk=True, is_monolithic=False),
        **attributes,
    )


@pytest.mark.parametrize(
    ("ids", "captured"),
    [([0, 1, 2, 3], [0, 1, 2, 3]), ([0, 2], [0, 2]), ([7, 8, 9, 10], [0, 1, 2, 3])],
)
def test_layers_without_names_are_known_by_the_order_of_their_numbers(start, ids, captured):
    start(bind=False)
    layers = [bare_layer(i) for i in ids]
    module.bind_routing_capture_to_model(Bare(layers))
    buffer = module.get_global_experts_capturer().get_device_cache().buffer
    for layer, index in zip(layers, captured, strict=True):
        assert layer._routing_replay_out.data_ptr() == buffer[
            index
        ].data_ptr() and layer._routing_replay_out.shape == (64, 4)


class Told:
    """Of a kernel that routes internally, and tells what it chose; or of one that does not."""

    def __init__(self, tells):
        self.tells, self.told = tells, None

    def supports_routing_replay_capture(self):
        return self.tells

    def set_capture_fn(self, capture_fn):
        self.told = capture_fn


# Such layers were given a buffer, which no kernel since 0.22 writes: their rows were missing.
def test_a_kernel_that_routes_internally_tells_its_ids_if_it_can(start):
    start(bind=False)
    layers, experts = [bare_layer(i) for i in range(4)], [Told(i != 3) for i in range(4)]
    for layer, each in zip(layers, experts, strict=True):
        layer.quant_method.is_monolithic = True
        layer.quant_method.moe_kernel = SimpleNamespace(impl=SimpleNamespace(fused_experts=each))
    model = Bare(layers)
    module.bind_routing_capture_to_model(model)
    assert [each.told is not None for each in experts] == [True, True, True, False]
    ids = torch.tensor([[1, 2, 3, 4], [5, 6, 7, 8]], dtype=torch.int16)
    module.begin_forward(2)
    for each in experts[:3]:
        each.told(ids)
    module.end_forward()
    positions = torch.arange(2)
    module.issue_routing_d2h_copy(["a"], {"a": 2}, positions, positions)
    array = module.get_global_experts_capturer().get_routed_experts("a")
    np.testing.assert_array_equal(array[:, :3], ids.numpy()[:, None].repeat(3, 1))
    _binding._bindings[model].remove()
    assert all(each.told is None for each in experts)


# The fused experts of DeepSeek V4 and Kimi K3 have no router.
def test_a_module_that_is_given_ids_tells_them(start):
    start(bind=False)
    layers = [SimpleNamespace(layer_id=i, capture_fn=None) for i in range(2)]
    capturer, model = module.get_global_experts_capturer(), Bare(layers)
    places = zip(capturer.layer_map, layers)
    model.named_modules = lambda: ((f"model.layers.{i}.experts", each) for i, each in places)
    module.bind_routing_capture_to_model(model)
    ids = torch.tensor([[1, 2, 3, 4], [5, 6, 7, 8]], dtype=torch.int16)
    module.begin_forward(2)
    for each in layers:
        each.capture_fn(ids)
    module.end_forward()
    positions = torch.arange(2)
    module.issue_routing_d2h_copy(["a"], {"a": 2}, positions, positions)
    array = capturer.get_routed_experts("a")
    np.testing.assert_array_equal(array[:, :2], ids.numpy()[:, None].repeat(2, 1))
    assert (array[:, 2:] == -1).all()


def test_engines_without_hooks_say_where_a_forward_pass_begins_and_ends(start):
    start(bind=False)
    layers = [bare_layer(i) for i in range(4)]
    module.bind_routing_capture_to_model(Bare(layers))
    ids = torch.tensor([[1, 2, 3, 4], [5, 6, 7, 8]], dtype=torch.int16)
    module.begin_forward(2)
    for layer in layers:
        layer._routing_replay_out[:2].copy_(ids)
    module.end_forward()
    positions = torch.arange(2)
    module.issue_routing_d2h_copy(["a"], {"a": 2}, positions, positions)
    array = module.get_global_experts_capturer().get_routed_experts("a")
    np.testing.assert_array_equal(array, ids.numpy()[:, None].repeat(4, 1))


def test_a_forward_pass_that_nobody_delimits_is_missing_and_not_stale(start, monkeypatch):
    monkeypatch.delenv("ROUTECAP_CHECKED", raising=False)  # with it this is an error
    start(bind=False)
    layers = [bare_layer(i) for i in range(4)]
    module.bind_routing_capture_to_model(Bare(layers))
    positions = torch.arange(2)
    for layer in layers:
        layer._routing_replay_out[:2] = 3
    module.issue_routing_d2h_copy(["a"], {"a": 2}, positions, positions)
    assert (module.get_global_experts_capturer().get_routed_experts("a") == -1).all()


def test_a_layer_that_the_configuration_does_not_have_is_an_error(start):
    model = Model(layers=6, dense=2)
    model.hf_config.first_k_dense_replace = 3
    with pytest.raises(
        ValueError, match=r"layers\.2\.mlp\.experts routes, but by the model's configuration only"
    ):
        start(model)
    assert all(moe.router.capture_fn is None for moe in model.moe if moe)


def test_layers_behind_the_decoder_are_a_draft_model_s(start):
    model = Model(layers=7, dense=2)
    model.hf_config.num_hidden_layers = 6
    start(model)
    tokens = list(range(10, 20))
    np.testing.assert_array_equal(forward_and_read(model, tokens), model.expected(tokens)[:, :4])


def test_layers_of_other_pipeline_stages_are_missing_and_named(start, caplog):
    model = Model(layers=6, dense=2)
    del model.layers[4].mlp.experts
    with caplog.at_level(logging.WARNING):
        start(model)
    assert "decoder layers [4] will be missing here" in caplog.text
    array = forward_and_read(model, [10, 11, 12])
    assert (array[:, 2] == -1).all() and (
        array[:, [0, 1, 3]] == model.expected([10, 11, 12])[:, [0, 1, 3]]
    ).all()


# The refusal advised vLLM's own capture, which takes the rows of one bank for those of the other:
# of 8 rows of an ERNIE-4.5-VL it gave 4 of another token and 4 that nobody wrote.
def test_two_routers_in_one_layer_of_the_decoder_are_refused_and_nothing_is_advised(start):
    model = Model()
    model.layers[3].mlp.vision_experts = FusedMoE(Router(3, model.version, 4, 64, torch.int32))
    refusal = (
        r"layers.3.mlp.experts \(FusedMoE\) and layers.3.mlp.vision_experts both route.*own neither"
    )
    with pytest.raises(ValueError, match=refusal):
        start(model)
    capture = module.get_global_experts_capturer()
    with pytest.raises(ValueError, match=refusal):  # no NotImplementedError: vLLM's own would do
        _aux_output.bind(model, capture)


def test_more_experts_than_the_configuration_has_are_an_error(start):
    model = Model()
    model.moe[3].logical_num_experts = 65
    with pytest.raises(ValueError, match="65 experts"):
        start(model)


# The number of columns was taken from the tensor: of ids with a column more, the first k were rows.
@pytest.mark.parametrize("columns", [3, 5, 8])
def test_ids_of_another_number_of_columns_than_the_layer_s_are_an_error_that_says_both(
    start, columns
):
    model = Model(shared=2)  # so that a row has 6 columns, or 4
    start(model)
    forward_and_read(model, [10, 11, 12])
    for width in (4, 6):
        model.moe[3].router.capture_fn(torch.zeros(3, width, dtype=torch.int32))
    with pytest.raises(ValueError, match=rf"\(3, {columns}\), and the model says 4 experts"):
        model.moe[3].router.capture_fn(torch.zeros(3, columns, dtype=torch.int32))


def test_a_layer_that_chooses_more_experts_than_the_configuration_says_is_an_error(start):
    model = Model()
    model.moe[3].router.top_k = 5
    with pytest.raises(ValueError, match="chooses 5 experts a token, but .* it is 4"):
        start(model)


def test_a_layer_of_vllm_that_does_not_say_how_many_experts_it_chooses_is_an_error(start):
    model = Model()
    del model.moe[3].router.top_k, model.moe[3].moe_config
    with pytest.raises(ValueError, match="has no moe_config"):
        start(model)


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"is_sequence_parallel": True}, "sequence parallelism"),
        ({"dp_size": 4}, "data parallelism that gathers"),
        ({"dp_size": 4, "internal": True}, "data parallelism that gathers"),
    ],
)
def test_layers_that_see_other_rows_are_refused_unless_it_is_said_which(start, attributes, message):
    model = Model(**attributes)
    for moe in filter(None, model.moe):
        moe.quant_method.supports_internal_mk = "internal" in attributes
    with pytest.raises(NotImplementedError, match=message):
        start(model)
    start(model, options=Options(place=lambda rows: (0, 0, rows)))


def test_rows_of_all_data_parallel_ranks_are_cut_to_those_of_this_one(start):
    """Three ranks gathered with four rows each, of which ours is the second."""
    model = Model(dp_size=3)
    for moe in filter(None, model.moe):
        moe.quant_method.supports_internal_mk = False
    start(model, options=Options(place=lambda rows: (4, 0, 4)))
    tokens = torch.arange(10, 22)
    positions = torch.tensor([0, 1, 2, 3] * 3)
    model(tokens, positions)
    module.issue_routing_d2h_copy(["a"], {"a": 4}, positions, positions)
    array = module.get_global_experts_capturer().get_routed_experts("a")
    np.testing.assert_array_equal(array, model.expected(range(14, 18)))


def test_sequence_parallel_ranks_each_have_their_rows_and_merge(start):
    import routecap

    tokens = list(range(10, 17))
    routings = []
    for rank in range(2):
        model = Model(is_sequence_parallel=True)
        module.set_options(
            Options(all_ranks=True, place=lambda rows, rank=rank: (0, rank * 4, rows))
        )
        capturer = module.init_routed_experts_capturer_with_shared_cache(
            True, model.model_config, 0, 64, 512, "cpu", rank=rank, world_size=2
        )
        module.bind_routing_capture_to_model(model)
        positions = torch.arange(7)
        mine = slice(rank * 4, rank * 4 + 4)
        forward = _binding._bindings[model]
        assert forward.layers
        capturer.forward.begin(7)
        for moe in filter(None, model.moe):
            moe(torch.tensor(tokens)[mine], positions[mine])
        capturer.forward.end()
        module.issue_routing_d2h_copy(["a"], {"a": 7}, positions, positions)
        routings.append(capturer.routing("a"))
        assert routings[-1].mask().all(1).tolist() == [
            rank * 4 <= i < rank * 4 + 4 for i in range(7)
        ]
    np.testing.assert_array_equal(routecap.merge(routings).ids(np.int16), Model().expected(tokens))
    module.set_options(None)


def test_ids_of_replicas_without_a_table_are_missing_and_the_log_says_so(start, caplog):
    model = Model(router=RouterThatIsOpaque, replicas=torch.randperm(128).view(64, 2))
    for moe in filter(None, model.moe):
        state = moe.router.eplb_state
        moe.router.eplb_state = SimpleNamespace(logical_to_physical_map=None)
        moe.router.select_experts = lambda tokens, positions, state=state: (
            None,
            state.logical_to_physical_map[torch.zeros(1, 4).long(), 0],
        )
    with caplog.at_level(logging.ERROR):
        start(model)
    assert "decoder layers [2, 3, 4, 5] will be missing, because their ids" in caplog.text
    assert (forward_and_read(model, [10, 11]) == -1).all()


def test_a_kernel_that_routes_to_replicas_is_missing_and_the_log_says_so(start, caplog):
    model = Model(internal=True, replicas=torch.randperm(128).view(64, 2))
    with caplog.at_level(logging.ERROR):
        start(model)
    assert "routes inside a kernel, to replicas" in caplog.text
    assert all(moe._routing_replay_out is None for moe in model.moe if moe)
    assert (forward_and_read(model, [10, 11]) == -1).all()


def test_routers_that_mask_zero_experts_are_missing_and_the_log_says_so(start, caplog):
    model = Model()
    model.moe[4].router.zero_expert_type = "identity"
    with caplog.at_level(logging.ERROR):
        start(model)
    assert "replaces the ids of zero experts" in caplog.text
    array = forward_and_read(model, [10, 11])
    assert (array[:, 2] == -1).all() and (array[:, 3] >= 0).all()


def test_zero_experts_and_shared_ones_are_known_where_vllm_binds_too(start, caplog, monkeypatch):
    """vLLM's own function took every router, and zeros of such a layer were rows of expert 0."""

    def bind(model, capture):
        for place, moe in enumerate(model.moe):
            if moe is not None:
                call = functools.partial(capture.capture, place)
                moe.router.set_capture_fn(call)

    name = "vllm.model_executor.layers.fused_moe.routed_experts_capturer"
    monkeypatch.setitem(sys.modules, name, SimpleNamespace(bind_routed_experts_capturer=bind))
    model = Model(shared=2)
    start(model)
    _binding._bindings.pop(model).remove()
    model.moe[4].router.zero_expert_type = "identity"
    capture = module.get_global_experts_capturer()
    capture.forward.widths.clear()
    with caplog.at_level(logging.ERROR):
        _aux_output.bind(model, capture)
    assert "layers.4.mlp.experts replaces the ids of zero experts" in caplog.text
    array = forward_and_read(model, [10, 11, 12])
    expected = model.expected([10, 11, 12])
    assert (array[:, 2] == -1).all() and (array[:, [0, 1, 3]] == expected[:, [0, 1, 3]]).all()


def test_replicas_are_looked_up_in_tables_made_of_either_map():
    replicas = torch.tensor([[4, 0], [1, -1], [3, 5], [2, -1]])
    table = _binding._inverted(replicas)
    assert table.dtype == torch.int32 and table.tolist() == [0, 1, 3, 2, 0, 2, -1, -1]
    ids = torch.tensor([[4, 1], [5, 7], [-1, 8]], dtype=torch.int32)
    assert _binding._look_up(table, ids).tolist() == [[0, 1], [2, -1], [-1, -1]]


@pytest.mark.parametrize("kind", ["logical_to_physical_map", "physical_to_logical_map"])
def test_rebalancing_is_followed_as_the_tables_are_rewritten(start, kind):
    generator = torch.Generator().manual_seed(3)
    model = Model(
        router=RouterThatIsOpaque, replicas=torch.randperm(128, generator=generator).view(64, 2)
    )
    states = {id(moe.router): moe.router.eplb_state for moe in model.moe if moe}
    inverse = torch.zeros(128, dtype=torch.int32)
    if kind == "physical_to_logical_map":
        for state in states.values():
            state.physical_to_logical_map = inverse
    start(model)
    for turn in range(3):
        replicas = torch.randperm(128, generator=generator).view(64, 2)
        for state in states.values():
            state.logical_to_physical_map.copy_(replicas)
        inverse[replicas.flatten()] = torch.arange(64, dtype=torch.int32).repeat_interleave(2)
        tokens = list(range(10 * turn, 10 * turn + 20))
        np.testing.assert_array_equal(
            forward_and_read(model, tokens, str(turn)), model.expected(tokens)
        )


@pytest.mark.parametrize(
    ("args", "kwargs", "rows"),
    [
        ((), {"input_ids": torch.zeros(7).long(), "positions": torch.zeros(7).long()}, 7),
        ((), {"input_ids": torch.zeros(2, 5).long()}, 10),
        ((), {"input_ids": None, "positions": torch.zeros(3, 6).long()}, 6),
        ((), {"inputs_embeds": torch.zeros(4, 16)}, 4),
        ((), {"inputs_embeds": torch.zeros(2, 4, 16)}, 8),
        ((torch.zeros(9).long(), torch.zeros(9).long()), {}, 9),
        ((torch.zeros(9, 16),), {}, None),
        ((), {}, None),
    ],
)
def test_the_rows_of_a_forward_pass_are_told_from_its_arguments(args, kwargs, rows):
    assert _binding._rows_of(args, kwargs) == rows
