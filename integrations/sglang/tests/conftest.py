"""Stand-ins of SGLang's classes, with what the adapter reads of them, and an engine of them. What
needs torch is collected where torch is."""

import enum
import sys
import types
from importlib.util import find_spec

import pytest
import released
from watched import Known, Watched

HAS_TORCH = (found := find_spec("torch")) is not None and found.origin is not None
collect_ignore = (
    []
    if HAS_TORCH
    else [
        "test_designs.py",
        "test_engine.py",
        "test_graph.py",
        "test_metrics.py",
        "test_names.py",
        "test_weights.py",
    ]
)


def pytest_report_header(config):
    return (
        None if HAS_TORCH else f"not collected, as there is no torch: {', '.join(collect_ignore)}"
    )


def _module(monkeypatch, name, **content):
    module = types.ModuleType(name)
    vars(module).update(content)
    monkeypatch.setitem(sys.modules, name, module)
    parent, _, last = name.rpartition(".")
    if parent:
        if parent not in sys.modules:
            _module(monkeypatch, parent)
        monkeypatch.setattr(sys.modules[parent], last, module, raising=False)
    return module


class Ranks(Watched):
    """What SGLang says of ranks, of parallel attention and of its settings; tests change it."""

    model_path, revision, json_model_override_args, load_format = "model", None, "{}", "auto"
    dtype, quantization, kv_cache_dtype = "auto", None, "auto"

    def __init__(self):
        self.attn_tp_rank, self.attn_tp_size, self.num_dp_ranks, self.dp_rank = 0, 1, 1, 0
        self.scattered = False
        self.parts = None  # what all ranks of an attention group routed, for the gather
        self.topk = 1  # drafts for each position
        self.enabled, self.drafts, self.nnodes, self.node_rank = True, None, 1, 0
        self.enable_hierarchical_cache, self.hicache_ratio = False, 2.0
        self.weight_version = "default"
        self.disaggregation = "null"
        self.tokenizer_worker_num = 1
        self.enable_two_batch_overlap, self.attn_cp_size, self.backend = False, 1, "none"

    def slice_of(self, forward_batch, in_graph, graph_rows):
        counts = forward_batch.global_num_tokens_cpu
        first = self.dp_rank * graph_rows if in_graph else sum(counts[: self.dp_rank])
        return first, counts[self.dp_rank]

    def gather(self, whole, part):
        import torch

        whole.copy_(torch.cat(self.parts))


class HookType(enum.Enum):
    BEFORE, AFTER, AROUND = 1, 2, 3


class Registry:
    applied = 0
    hooks = ()

    @classmethod
    def register(cls, target, hook, kind):
        cls.hooks.append((target, hook, kind))

    @classmethod
    def apply_hooks(cls):
        cls.applied += 1


@pytest.fixture
def registry(monkeypatch):
    """SGLang's, which remembers what it is told."""
    from routecap_sglang import _hooks, _versions

    for name in ("sglang", "sglang.srt", "sglang.srt.plugins"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    module = types.ModuleType("sglang.srt.plugins.hook_registry")
    module.HookRegistry, module.HookType = Registry, HookType
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(Registry, "hooks", [])
    monkeypatch.setattr(Registry, "applied", 0)
    monkeypatch.setattr(_hooks, "_design", None)
    monkeypatch.setattr(_versions, "installed", lambda: "0.5.23")
    for name in ("SGLANG_PLUGINS", "ROUTECAP_SGLANG"):
        monkeypatch.delenv(name, raising=False)
    return Registry


@pytest.fixture
def ranks(monkeypatch):
    """SGLang's modules that the adapter asks, in the place of SGLang's."""
    from routecap_sglang import _checkpoints, _hooks
    from routecap_sglang._routed import FUNCTION

    known = Ranks()
    design = _checkpoints.design("0.5.23", (0, 5, 23))._replace(hooks=[])
    monkeypatch.setattr(_hooks, "_design", design)

    def of(name):
        return type(name, (Known,), {})

    _module(
        monkeypatch,
        "sglang.srt.runtime_context",
        get_schedule=lambda: of("Schedule")(chunked_prefill_size=32, max_prefill_tokens=64),
        get_parallel=lambda: known,
        get_spec=lambda: of("Spec")(
            speculative_num_draft_tokens=known.drafts,
            speculative_algorithm="EAGLE",
            speculative_eagle_topk=known.topk,
        ),
        get_server_args=lambda: known,
        get_disagg=lambda: of("Disagg")(disaggregation_mode=known.disaggregation),
        get_exec=lambda: of("Exec")(
            features=of("Features")(enable_return_routed_experts=known.enabled)
        ),
    )
    _module(
        monkeypatch,
        "sglang.srt.layers.dp_attention",
        get_dp_local_slice_cpu=known.slice_of,
        is_dp_attention_enabled=lambda: known.num_dp_ranks > 1,
        attn_tp_all_gather_into_tensor=known.gather,
    )
    _module(
        monkeypatch,
        "sglang.srt.layers.moe",
        get_moe_a2a_backend=lambda: of("Backend")(
            is_none=lambda: known.backend == "none", value=known.backend
        ),
    )
    _module(
        monkeypatch,
        "sglang.srt.state_capturer.routed_experts",
        _is_scattered_a2a_backend=lambda: known.scattered,
    )
    cache = _module(monkeypatch, "sglang.srt.mem_cache.unified_radix_cache")
    for name in [*design.fields, f"sglang.srt.{design.breaks}", f"sglang.srt.{FUNCTION}"]:
        released.put(monkeypatch, name)
    if HAS_TORCH:
        from engine import TopK, Tree

        cache.UnifiedRadixCache = Tree
        sys.modules["sglang.srt.layers.moe.topk"].TopK = TopK
    return known


@pytest.fixture
def start(ranks, monkeypatch):
    """start(options=..., own=..., **engine) -> an Engine that captures."""
    from routecap_sglang import _hooks
    from routecap_sglang._delivery import disconnect
    from routecap_sglang._options import Options

    engines = []

    def begin(options=None, own=None, weight_version="default", **settings):
        from engine import Engine

        ranks.weight_version = weight_version
        if options is not None and options.weights:
            monkeypatch.setattr(_hooks, "_design", _hooks.design().with_weights())
        monkeypatch.setattr(_hooks, "_options", options or Options(budget_bytes=64 << 20))
        engines.append(Engine(_hooks, ranks, own, **settings))
        return engines[-1]

    yield begin
    for engine in engines:
        engine.close()
    _hooks._capturer = None
    disconnect()
