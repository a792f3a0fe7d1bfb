"""The capturer without a model: `capture` from callbacks of the engine's own,
`sync_fwd_experts_buffer_DtoH`, and its caches.
"""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from routecap_vllm import routed_experts_capturer as module
from routecap_vllm.routed_experts_capturer import Options, RoutedExpertsCapturer

L, K, E, N = 3, 4, 64, 32


def config(layers=L, k=K, experts=E):
    return SimpleNamespace(
        hf_text_config=SimpleNamespace(
            num_hidden_layers=layers, num_experts=experts, num_experts_per_tok=k
        )
    )


def create(**arguments):
    defaults = {
        "num_fused_shared_experts": 0,
        "max_num_batched_tokens": N,
        "max_model_len": 100,
        "device": "cpu",
    }
    return RoutedExpertsCapturer.create(True, config(), **(defaults | arguments))


def ids(rows, salt=0, dtype=torch.int32):
    first = torch.arange(rows)[:, None, None] * 3 + torch.arange(L)[None, :, None] * 5 + salt
    return ((first + torch.arange(K)) % E).to(dtype)  # [rows, layers, k]


def forward(capturer, rows, layers=range(L)):
    for layer in layers:
        capturer.capture(layer, rows[:, layer])


@pytest.mark.parametrize("dtype", [torch.int16, torch.int32, torch.int64])
def test_captured_layers_are_read_by_request(dtype):
    capturer = create()
    for step in range(4):
        rows = ids(5, step, dtype)
        forward(capturer, rows)
        capturer.sync_fwd_experts_buffer_DtoH(
            torch.tensor([2 * step, 2 * step + 1, 7 * step, 7 * step + 1, 7 * step + 2]),
            {"a": 2, "b": 3},
        )
    for name, first, count, stride in (("a", 0, 2, 2), ("b", 2, 3, 7)):
        got = capturer.get_routed_experts(name)
        want = np.full((3 * stride + count, L, K), -1, np.int16)
        for step in range(4):
            want[step * stride : step * stride + count] = ids(5, step)[first : first + count]
        np.testing.assert_array_equal(got, want)
        assert capturer.get_routed_experts(name) is None


def test_a_forward_pass_that_was_not_issued_leaves_nothing_behind():
    capturer = create()
    forward(capturer, ids(8, 1))  # a warm-up
    forward(capturer, ids(3, 2), layers=[0, 2])
    capturer.sync_fwd_experts_buffer_DtoH(torch.arange(3), {"a": 3})
    got = capturer.get_routed_experts("a")
    assert (got[:, 1] == -1).all() and (got[:, [0, 2]] == ids(3, 2)[:, [0, 2]].numpy()).all()


def test_columns_of_shared_experts_are_dropped():
    capturer = create(num_fused_shared_experts=2)
    wide = torch.cat((ids(4), torch.tensor([E, E + 1]).expand(4, L, 2)), -1)
    forward(capturer, wide)
    capturer.sync_fwd_experts_buffer_DtoH(torch.arange(4), {"a": 4})
    np.testing.assert_array_equal(capturer.get_routed_experts("a"), ids(4))


def test_strided_ids_are_read_by_their_strides():
    capturer = create()
    padded = torch.zeros(4, L, 16, dtype=torch.int64)
    padded[:, :, :K] = ids(4)
    forward(capturer, padded[:, :, :K])
    capturer.sync_fwd_experts_buffer_DtoH(torch.arange(4), {"a": 4})
    np.testing.assert_array_equal(capturer.get_routed_experts("a"), ids(4))


def test_more_rows_than_the_buffer_has_are_refused():
    capturer = create()
    with pytest.raises(IndexError):
        capturer.capture(0, torch.zeros(N + 1, K, dtype=torch.int32))
    with pytest.raises(IndexError):
        capturer.capture(L, torch.zeros(1, K, dtype=torch.int32))
    with pytest.raises(IndexError):
        capturer.capture(-1, torch.zeros(1, K, dtype=torch.int32))
    forward(capturer, ids(2))
    capturer.sync_fwd_experts_buffer_DtoH(torch.arange(2), {"a": 2})
    np.testing.assert_array_equal(capturer.get_routed_experts("a"), ids(2))


def test_the_host_cache_reads_what_is_captured():
    capturer = create()
    cache = capturer.get_host_cache()
    forward(capturer, ids(5))
    capturer.sync_fwd_experts_buffer_DtoH(torch.arange(5), {"a": 5})
    np.testing.assert_array_equal(cache.get_buffer("a"), ids(5))
    assert cache.get_filled_len("a") == 5 and cache.get_buffer_size_bytes() > 0
    assert cache.get_filled_len("b") == 0 and cache.get_buffer("b") is None
    cache.free_request("a")
    assert cache.get_filled_len("a") == 0 and capturer.get_routed_experts("a") is None
    cache.get_or_grow_buffer("c", 2)[:] = 1
    cache.update_filled_len("c", 2)
    assert cache.get_filled_len("c") == 3 and (cache.get_buffer("c") == 1).all()


def test_a_shared_host_cache_reads_from_all_its_capturers():
    cache = module.create_shared_host_cache(config(), 100)
    capturers = [create(shared_host_cache=cache) for _ in range(2)]
    for number, capturer in enumerate(capturers):
        forward(capturer, ids(3, number))
        capturer.sync_fwd_experts_buffer_DtoH(torch.arange(3), {f"r{number}": 3})
        assert capturer.get_host_cache() is cache
    for number in range(2):
        np.testing.assert_array_equal(cache.get_buffer(f"r{number}"), ids(3, number))


def test_the_device_cache_by_itself_is_plain_memory():
    cache = module._RoutedExpertsDeviceCache(N, L, K, "cpu")
    assert (
        cache.buffer.shape == (L, N, K)
        and cache.buffer.dtype == torch.int16 == cache.DTYPE
        and not cache.buffer.any()
    )
    assert (
        cache.buffer[1].is_contiguous()
        and cache.num_hidden_layers == L
        and cache.get_buffer_size_bytes() == L * N * K * 2
    )
    cache.capture_fwd_routed_experts(1, torch.tensor([[1, 2, 3, 4], [5, 6, 40000, 65541]]))
    assert cache.buffer[1, :2].tolist() == [[1, 2, 3, 4], [5, 6, -1, -1]]
    with pytest.raises(IndexError):
        cache.capture_fwd_routed_experts(L, torch.zeros(1, K))


def test_rows_carry_the_tag_of_their_step():
    capturer = create()
    for step in range(3):
        capturer.tag = 100 + step
        forward(capturer, ids(1, step))
        capturer.sync_fwd_experts_buffer_DtoH(torch.tensor([step]), {"a": 1})
    assert capturer.routing("a").tags.tolist() == [100, 101, 102]


def test_a_configuration_without_layers_that_route_is_an_error():
    with pytest.raises(ValueError, match="no layer of the model routes"):
        RoutedExpertsCapturer.create(
            True,
            SimpleNamespace(hf_config=SimpleNamespace(num_hidden_layers=4, num_experts=0)),
            0,
            N,
            100,
            "cpu",
        )


@pytest.mark.slow
def test_memory_is_bounded_and_what_does_not_fit_is_missing(caplog):
    module.set_options(Options(budget_bytes=1 << 20))
    try:
        capturer = create(max_model_len=1 << 20)
    finally:
        module.set_options(None)
    for step in range(4000):
        forward(capturer, ids(N, step % 7))
        capturer.sync_fwd_experts_buffer_DtoH(torch.arange(N) + step * N, {"a": N})
        capturer.finalize_pending_copy()
    stats = capturer.capturer.stats()
    assert "rows did not fit into the budget" in caplog.text
    assert stats.rows_refused > 0 and stats.bytes_peak <= 1 << 20 and stats.steps_lost == 0
    got = capturer.get_routed_experts("a")
    assert len(got) == 4000 * N
    for step in range(4000):
        rows = got[step * N : (step + 1) * N]
        missing = (rows == -1).all((1, 2))
        assert missing.all() or (rows == ids(N, step % 7).numpy()).all(), step
