"""What needs torch is collected where torch is; the header says so where it is not."""

from importlib.util import find_spec

NEEDS_TORCH = ["test_aux_output.py", "test_binding.py", "test_defects.py", "test_drafts.py"]
NEEDS_TORCH += ["test_engine.py", "test_held.py", "test_told.py", "test_metrics.py", "test_ops.py"]
NEEDS_TORCH += ["test_peer.py", "test_prefixes.py", "test_sessions.py", "test_by_slot.py"]
NEEDS_TORCH += ["test_without_model.py", "test_workers.py", "test_calls.py"]
NEEDS_TORCH += ["test_unread.py", "test_weights.py"]
TORCH = find_spec("torch")
HAS_TORCH = TORCH is not None and TORCH.origin is not None  # and not a folder of that name

collect_ignore = [] if HAS_TORCH else NEEDS_TORCH


def pytest_report_header(config):
    return None if HAS_TORCH else f"not collected, as there is no torch: {', '.join(NEEDS_TORCH)}"


if HAS_TORCH:
    import pytest
    from engine import Engine, Model

    from routecap_vllm import routed_experts_capturer as module

    @pytest.fixture
    def start():
        """start(model=..., options=..., **engine) -> an Engine whose model is bound to a capturer
        of its own, in use.
        """

        def begin(model=None, options=None, bind=True, **engine):
            model = Model() if model is None else model
            module.set_options(options)
            sizes = {"max_tokens": 64, "max_model_len": 512} | engine
            module.init_routed_experts_capturer_with_shared_cache(
                True,
                model.model_config,
                0,
                sizes["max_tokens"],
                sizes["max_model_len"],
                model.device,
            )
            if bind:
                module.bind_routing_capture_to_model(model)
            return Engine(model, **sizes)

        yield begin
        module.set_options(None)
        module.init_routed_experts_capturer_with_shared_cache(False, None, 0, 0, 0, "cpu")
