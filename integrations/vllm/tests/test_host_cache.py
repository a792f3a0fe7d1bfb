import numpy as np

from routecap_vllm.routed_experts_capturer import (
    _RoutedExpertsHostCache,
    create_shared_host_cache,
    get_shared_host_cache,
)


def test_a_caller_s_array_grows_to_what_is_asked_for_and_keeps_its_rows():
    cache = _RoutedExpertsHostCache(3, 2, 100)
    first = cache.get_or_grow_buffer("a", 9)
    assert first.shape == (10, 3, 2) and first.dtype == np.int16 and (first == -1).all()
    first[:] = 7
    assert cache.get_or_grow_buffer("a", 5) is first
    second = cache.get_or_grow_buffer("a", 10)
    assert second.shape == (20, 3, 2) and (second[:10] == 7).all() and (second[10:] == -1).all()
    assert cache.get_or_grow_buffer("a", 98).shape == (99, 3, 2)
    assert cache.get_buffer_size_bytes() == 99 * 6 * 2


def test_doubling_ends_at_the_model_s_length_and_never_before_what_is_asked_for():
    cache = _RoutedExpertsHostCache(1, 1, 100)
    cache.get_or_grow_buffer("a", 79)
    assert len(cache.get_or_grow_buffer("a", 80)) == 100
    assert (
        len(cache.get_or_grow_buffer("a", 103)) == 104
    )  # drafts near the end: the released module had too few rows


def test_the_filled_length_only_grows_until_the_request_is_freed():
    cache = _RoutedExpertsHostCache(1, 1, 100)
    assert cache.get_filled_len("a") == 0 and cache.get_buffer("a") is None
    cache.get_or_grow_buffer("a", 9)
    cache.update_filled_len("a", 9)
    cache.update_filled_len("a", 4)
    assert cache.get_filled_len("a") == 10
    cache.free_request("a")
    cache.free_request("a")
    assert (
        cache.get_filled_len("a") == 0
        and cache.get_buffer("a") is None
        and cache.get_buffer_size_bytes() == 0
    )


def test_a_shared_cache_is_made_for_the_layers_that_route():
    config = type(
        "C",
        (),
        {
            "num_hidden_layers": 61,
            "n_routed_experts": 256,
            "num_experts_per_tok": 8,
            "first_k_dense_replace": 3,
        },
    )
    cache = create_shared_host_cache(type("M", (), {"hf_text_config": config}), 4096)
    assert get_shared_host_cache() is cache and (
        cache.num_hidden_layers,
        cache.num_experts_per_tok,
        cache.max_model_len,
    ) == (58, 8, 4096)
