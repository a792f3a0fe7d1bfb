"""Names and signatures are those that callers of the released module use."""

import inspect
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest

import routecap_vllm
from routecap_vllm import routed_experts_capturer as module

EMPTY = inspect.Parameter.empty
REQUIRED = object()

FUNCTIONS = {
    "_count_moe_layers": {"hf_config": REQUIRED},
    "bind_routing_capture_to_model": {"model": REQUIRED},
    "create_shared_host_cache": {"model_config": REQUIRED, "max_model_len": REQUIRED},
    "extract_routed_experts_for_current_batch": dict.fromkeys(
        ["req_ids", "requests", "req_id_to_index", "num_tokens_no_spec", "max_model_len"], REQUIRED
    ),
    "free_routing_buffers": {"finished_req_ids": REQUIRED, "preempted_req_ids": None},
    "get_global_experts_capturer": {},
    "get_shared_host_cache": {},
    "init_routed_experts_capturer_with_shared_cache": {
        **dict.fromkeys(
            [
                "enable",
                "model_config",
                "num_fused_shared_experts",
                "max_num_batched_tokens",
                "max_model_len",
                "device",
            ],
            REQUIRED,
        ),
        "rank": 0,
        "world_size": 1,
    },
    "issue_routing_d2h_copy": dict.fromkeys(
        ["input_batch_req_ids", "num_scheduled_tokens", "positions", "positions_cpu"], REQUIRED
    ),
    "set_global_experts_capturer": {"capturer": REQUIRED},
    "split_routed_experts": {
        "routed_experts": REQUIRED,
        "prompt_len": REQUIRED,
        "num_output_tokens": None,
    },
}
CAPTURER = {
    "capture": {"layer_id": REQUIRED, "topk_ids": REQUIRED},
    "finalize_pending_copy": {},
    "get_device_cache": {},
    "get_host_cache": {},
    "get_routed_experts": {"req_id": REQUIRED, "seqlen": None, "free_slot": True},
    "sync_fwd_experts_buffer_DtoH": {"positions": REQUIRED, "num_scheduled_tokens": REQUIRED},
}
METHODS = {
    "_RoutedExpertsDeviceCache": {
        "__init__": dict.fromkeys(
            ["max_num_batched_tokens", "num_hidden_layers", "num_experts_per_tok", "device"],
            REQUIRED,
        ),
        "capture_fwd_routed_experts": {"layer_id": REQUIRED, "topk_ids": REQUIRED},
        "get_buffer_size_bytes": {},
    },
    "_RoutedExpertsHostCache": {
        "__init__": dict.fromkeys(
            ["num_hidden_layers", "num_experts_per_tok", "max_model_len"], REQUIRED
        ),
        "free_request": {"req_id": REQUIRED},
        "get_buffer": {"req_id": REQUIRED},
        "get_buffer_size_bytes": {},
        "get_filled_len": {"req_id": REQUIRED},
        "get_or_grow_buffer": {"req_id": REQUIRED, "max_pos": REQUIRED},
        "update_filled_len": {"req_id": REQUIRED, "max_pos": REQUIRED},
    },
    "RoutedExpertsCapturer": {
        "create": {
            **dict.fromkeys(
                [
                    "enable",
                    "model_config",
                    "num_fused_shared_experts",
                    "max_num_batched_tokens",
                    "max_model_len",
                    "device",
                ],
                REQUIRED,
            ),
            "shared_host_cache": None,
            "skip_host_cache": False,
        },
        **CAPTURER,
    },
    "_RoutedExpertsCapturerReal": CAPTURER,
    "_RoutedExpertsCapturerNoop": CAPTURER,
}


def parameters(function, skip_self):
    found = list(inspect.signature(function).parameters.values())[1 if skip_self else 0 :]
    assert all(p.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD for p in found)
    return {p.name: REQUIRED if p.default is EMPTY else p.default for p in found}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_has_its_parameters_in_order(name):
    assert list(parameters(getattr(module, name), False).items()) == list(FUNCTIONS[name].items())


@pytest.mark.parametrize(
    ("owner", "name"), [(owner, name) for owner, methods in METHODS.items() for name in methods]
)
def test_a_method_has_its_parameters_in_order(owner, name):
    function = inspect.getattr_static(getattr(module, owner), name)
    static = isinstance(function, staticmethod)
    found = parameters(function.__func__ if static else function, not static)
    assert list(found.items()) == list(METHODS[owner][name].items())


def test_both_capturers_are_capturers():
    assert issubclass(module._RoutedExpertsCapturerReal, module.RoutedExpertsCapturer)
    assert issubclass(module._RoutedExpertsCapturerNoop, module.RoutedExpertsCapturer)
    assert isinstance(
        module.RoutedExpertsCapturer.create(False, None, 0, 1, 1, "cpu"),
        module._RoutedExpertsCapturerNoop,
    )


def test_a_capturer_is_set_and_used():
    before = module.get_global_experts_capturer()
    other = module._RoutedExpertsCapturerNoop()
    module.set_global_experts_capturer(other)
    assert module.get_global_experts_capturer() is other
    with module.use_capturer(before):
        assert module.get_global_experts_capturer() is before
    assert module.get_global_experts_capturer() is other
    module.set_global_experts_capturer(before)


@pytest.mark.parametrize(
    "available", [True, False], ids=["torch may be there", "torch is not there"]
)
def test_the_module_is_imported_without_torch(available):
    program = f"""
import sys
from types import SimpleNamespace
if not {available}:
    sys.modules["torch"] = None
from routecap_vllm import routed_experts_capturer as module
assert sys.modules.get("torch") is None
assert module._count_moe_layers(type("C", (), {{"num_hidden_layers": 4}})) == 4
module.init_routed_experts_capturer_with_shared_cache(False, None, 0, 1, 1, "cuda")
module.issue_routing_d2h_copy([], {{}}, None, None)
assert sys.modules.get("torch") is None
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_the_module_takes_the_place_of_the_engine_s(monkeypatch):
    package = type(sys)("engine_package")
    monkeypatch.setitem(sys.modules, "engine_package", package)
    routecap_vllm.install("engine_package.capturer")
    try:
        from engine_package.capturer import split_routed_experts

        assert split_routed_experts is module.split_routed_experts and package.capturer is module
        routecap_vllm.install("engine_package.capturer")
    finally:
        del sys.modules["engine_package.capturer"]


def test_the_module_may_come_after_those_that_imported_the_engine_s(monkeypatch):
    """As after `from vllm import LLM`, or after the model runner: each gets ours where it had the engine's own."""
    own, runner, output = (type(sys)(name) for name in ("capturer", "runner", "output"))
    own.issue_routing_d2h_copy, own.split_routed_experts = (lambda: None), (lambda: None)
    runner.issue_routing_d2h_copy = own.issue_routing_d2h_copy
    runner.split_routed_experts = other = lambda: None
    output.split_routed_experts = own.split_routed_experts
    for each in (own, runner, output):
        monkeypatch.setitem(sys.modules, f"engine_package.{each.__name__}", each)
    routecap_vllm.install("engine_package.capturer")
    assert sys.modules["engine_package.capturer"] is module
    assert runner.issue_routing_d2h_copy is module.issue_routing_d2h_copy
    assert output.split_routed_experts is module.split_routed_experts
    assert runner.split_routed_experts is other


def test_the_module_comes_too_late_where_the_engine_s_own_captures(monkeypatch):
    own, capturer = type(sys)("capturer"), SimpleNamespace(get_device_cache=object)
    own.get_global_experts_capturer = lambda: capturer
    monkeypatch.setitem(sys.modules, "engine_package.capturer", own)
    with pytest.raises(RuntimeError, match="captures already: install routecap before"):
        routecap_vllm.install("engine_package.capturer")
    assert sys.modules["engine_package.capturer"] is own
    capturer.get_device_cache = lambda: None
    routecap_vllm.install("engine_package.capturer")
    assert sys.modules["engine_package.capturer"] is module


@pytest.mark.parametrize(
    ("rows", "prompt", "outputs", "prompt_rows", "generated_rows"),
    [
        (9, 7, None, 7, 2),
        (9, 7, 3, 7, 2),
        (9, 7, 1, 7, 1),
        (9, 7, 0, 7, 2),
        (7, 7, 1, 7, None),
        (5, 7, None, 5, None),
        (5, 0, None, None, 5),
        (0, 7, None, None, None),
    ],
)
def test_rows_are_divided_at_the_prompt_s_end(rows, prompt, outputs, prompt_rows, generated_rows):
    array = np.arange(rows * 6, dtype=np.int16).reshape(rows, 3, 2)
    first, second = module.split_routed_experts(array, prompt, outputs)
    assert (None if first is None else len(first)) == prompt_rows
    assert (None if second is None else len(second)) == generated_rows
    for part, start in ((first, 0), (second, prompt)):
        if part is not None:
            assert (
                np.shares_memory(part, array) and (part == array[start : start + len(part)]).all()
            )
