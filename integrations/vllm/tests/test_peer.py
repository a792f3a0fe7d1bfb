"""What callers of the released module do beyond its engine: capturers of their own, none at all,
and configurations that say less."""

import logging
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from engine import Model

from routecap_vllm import _capturer
from routecap_vllm import routed_experts_capturer as module


@pytest.fixture
def use():
    """use(capturer): it is the capturer of the process, until the test ends."""
    before = module.get_global_experts_capturer()
    yield module.set_global_experts_capturer
    module.set_global_experts_capturer(before)


class OnlyACache:
    """A capturer of which only the device cache is known."""

    def __init__(self, buffer):
        self._cache = None if buffer is None else SimpleNamespace(buffer=buffer)

    def get_device_cache(self):
        return self._cache


class Modules:
    def __init__(self, *modules):
        self._modules_of_it = modules

    def modules(self):
        return iter(self._modules_of_it)


def layer(moe_layer_id, **config):
    return SimpleNamespace(
        moe_layer_id=moe_layer_id,
        moe_config=SimpleNamespace(**({"is_sequence_parallel": False, "dp_size": 1} | config)),
        quant_method=SimpleNamespace(supports_internal_mk=True, is_monolithic=False),
    )


def test_of_a_capturer_that_has_only_a_device_cache_the_buffer_is_bound(use):
    buffer = torch.zeros((4, 8, 2), dtype=torch.int16)
    use(OnlyACache(buffer))
    layers = [layer(0), layer(2)]
    module.bind_routing_capture_to_model(Modules(*layers))
    for each in layers:
        view = buffer[each.moe_layer_id]
        assert each._routing_replay_out.data_ptr() == view.data_ptr()
        assert each._routing_replay_out.shape == (8, 2)


def test_what_such_a_capturer_does_not_have_is_nothing_to_do(use):
    for capturer in (OnlyACache(torch.zeros((1, 8, 2), dtype=torch.int16)), OnlyACache(None)):
        use(capturer)
        module.bind_routing_capture_to_model(Modules())
        module.begin_forward(1)
        module.end_forward()
        module.issue_routing_d2h_copy(["a"], {"a": 1}, torch.zeros(1), torch.zeros(1))
        arguments = (["a"], {}, {"a": 0}, np.array([1]), 8)
        assert module.extract_routed_experts_for_current_batch(*arguments) is None
        module.free_routing_buffers({"a"})
        assert module.routing_of("a") is None and module.validity_of("a") is None


def test_layers_whose_rows_are_not_the_step_s_are_refused_there_too(use):
    use(OnlyACache(torch.zeros((1, 8, 2), dtype=torch.int16)))
    with pytest.raises(NotImplementedError, match="sequence parallelism"):
        module.bind_routing_capture_to_model(Modules(layer(0, is_sequence_parallel=True)))


def test_no_capturer_at_all_does_nothing(use):
    use(None)
    assert module.get_global_experts_capturer() is None
    module.bind_routing_capture_to_model(Model())
    module.begin_forward(1)
    module.end_forward()
    module.issue_routing_d2h_copy(["a"], {"a": 1}, torch.zeros(1), torch.zeros(1))
    arguments = (["a"], {}, {"a": 0}, np.array([1]), 8)
    assert module.extract_routed_experts_for_current_batch(*arguments) is None
    module.free_routing_buffers({"a"}, {"b"})
    assert module.routing_of("a") is None and module.validity_of("a") is None


@pytest.mark.parametrize("seqlen", [None, 7, 5, 1, 0, -1, -4, -5, -9])
def test_a_length_of_rows_counts_as_in_a_slice(start, seqlen):
    model = Model()
    start(model)
    model(torch.arange(10, 15), torch.arange(5))
    module.issue_routing_d2h_copy(["a"], {"a": 5}, torch.arange(5), torch.arange(5))
    got = module.get_global_experts_capturer().get_routed_experts("a", seqlen)
    np.testing.assert_array_equal(got, model.expected(range(10, 15))[:seqlen])


# The released module has zeros there, which its own test asks for. But 0 is an expert: a row that
# nobody wrote would pass for routing. Whoever has to have zeros says so.
@pytest.mark.parametrize(("fill", "cells"), [(None, -1), (0, 0)])
def test_what_nobody_wrote_is_no_expert_unless_zeros_are_asked_for(fill, cells):
    module.set_options(None if fill is None else module.Options(fill=fill))
    try:
        cache = module._RoutedExpertsHostCache(40, 8, 1024)
    finally:
        module.set_options(None)
    rows = cache.get_or_grow_buffer("a", max_pos=100)
    assert rows.dtype == np.int16 and (rows == cells).all()


# ---- A configuration that names no number of experts


def without_number(model):
    del model.hf_config.n_routed_experts
    return model


def run(model, ids):
    """One step whose router in decoder layer 3 chooses these ids."""
    model.moe[3].router._compute_routing = lambda tokens, positions: (None, torch.tensor(ids))
    rows = len(ids)
    model(torch.arange(10, 10 + rows), torch.arange(rows))
    module.issue_routing_d2h_copy(["a"], {"a": rows}, torch.arange(rows), torch.arange(rows))
    return module.routing_of("a")


IDS = [[1, 2, 3, 63], [1, 2, 3, 64], [1, 2, 3, 40000], [1, -7, 3, 4], [1, 2, 2, 4]]
IDS += [[0, 1, 2, 32767]]


@pytest.mark.parametrize("without_kernels", ["0", "1"])
def test_without_a_number_of_experts_it_works_and_warns_and_checks_what_it_can(
    start, caplog, monkeypatch, without_kernels
):
    monkeypatch.setenv("ROUTECAP_WITHOUT_KERNELS", without_kernels)
    with caplog.at_level(logging.WARNING):
        model = without_number(Model())
        start(model)
    assert "Ids up to 32767 are accepted" in caplog.text
    assert ("so PyTorch copies the ids" in caplog.text) is (without_kernels == "1")
    routing = run(model, IDS)
    assert routing.layer_experts.tolist() == [32768] * 4
    assert routing.mask()[:, 1].tolist() == [True, True, False, False, False, True]
    expected = model.expected(range(10, 16))
    got = module.get_global_experts_capturer().get_routed_experts("a")
    np.testing.assert_array_equal(got[:, [0, 2, 3]], expected[:, [0, 2, 3]])


def test_the_layers_may_say_how_many_experts_there_are_when_the_model_is_bound(start):
    model = without_number(Model())
    for moe in filter(None, model.moe):
        moe.logical_num_experts = 64
    start(model)
    routing = run(model, IDS)
    assert routing.layer_experts.tolist() == [64] * 4
    assert routing.mask()[:, 1].tolist() == [True, False, False, False, False, False]
    module.bind_routing_capture_to_model(model)  # again, when rows were captured
    assert module.routing_of("a").layer_experts.tolist() == [64] * 4


def test_a_layer_that_is_silent_is_missing_where_no_number_of_experts_is_known(start):
    model = without_number(Model())
    start(model)
    model.moe[4].skip = True
    assert run(model, IDS[:1]).mask().tolist() == [[True, True, False, True]]


def test_a_dense_configuration_is_refused_as_it_was(start):
    model = without_number(Model())
    del model.hf_config.num_experts_per_tok
    with pytest.raises(ValueError, match="number of experts per token"):
        start(model)


def test_a_device_that_pytorch_does_not_have_either_is_refused_before_anything_is_allocated(
    monkeypatch,
):
    for device, hip, kind in (
        ("xpu:0", None, "xpu"),
        ("meta", None, "meta"),
        ("cuda:0", "7", "cuda"),
    ):
        monkeypatch.setattr(torch.version, "hip", hip)
        monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: None)
        with pytest.raises(ValueError, match=f"runs on {kind}, where routecap has no backend"):
            module.init_routed_experts_capturer_with_shared_cache(
                True, Model().model_config, 0, 64, 512, device
            )


def test_a_capturer_without_cuda_is_refused_in_one_sentence_before_it_allocates(monkeypatch):
    monkeypatch.setattr(_capturer, "without_cuda", lambda: True)
    with pytest.raises(RuntimeError, match="built without it: install one"):
        module.init_routed_experts_capturer_with_shared_cache(
            True, Model().model_config, 0, 64, 512, "cuda:0"
        )
