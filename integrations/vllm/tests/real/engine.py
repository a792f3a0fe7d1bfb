"""vLLM in this process, with random weights; and an oracle of what its routers chose.

ON_CPU: without a GPU (VLLM_ENGINE_ON_CPU=1), by cpu.py.
"""

import os
from pathlib import Path

os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
ON_CPU = os.environ.get("VLLM_ENGINE_ON_CPU") == "1"
if ON_CPU:
    import cpu
import numpy as np
import releases
import router_weights
import torch
from vllm import LLM, SamplingParams

MODELS = Path(__file__).resolve().parents[4] / "tests/engines/models"
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)  # of batches that have graphs


class Oracle:
    """What each router chose, copied on the device as it is chosen, inside graphs too, into memory
    of its own; and whose rows those were, as the scheduler says. It shares no code with routecap.

    Make it before the engine.

    steps: ([(request, first position, rows)], ids [rows, layers, k], version) of each; with weights
        behind the ids if these are captured (router_weights.py).
    anew: which requests began anew with each, behind a preemption.
    version: of the weights, as whoever changes them says.
    preempted: how many requests were, again and again.
    """

    def __init__(self, rows):
        from vllm.model_executor.layers.fused_moe.router.base_router import BaseRouter
        from vllm.v1.worker.gpu_model_runner import GPUModelRunner

        self.buffers, self.steps, self.anew, self.preempted, self.version = [], [], [], 0, 0
        self._spans, self._anew = None, ()
        layers = {}
        watched = router_weights.Watched(layers, rows) if router_weights.WANTED else None
        place, prepare = BaseRouter._apply_eplb_mapping, GPUModelRunner._prepare_inputs
        sample = GPUModelRunner.sample_tokens

        def place_experts(router, ids):
            """Of the router's choice, before its experts' replicas are chosen."""
            layer = layers.setdefault(id(router), len(layers))
            if layer == len(self.buffers):
                shape = (rows, ids.shape[1])
                self.buffers.append(torch.full(shape, -7, dtype=torch.int32, device=ids.device))
            self.buffers[layer][: len(ids)].copy_(ids)
            return place(router, ids)

        def prepare_inputs(runner, scheduler_output, num_scheduled_tokens, *args, **kwargs):
            batch = runner.input_batch
            n = batch.num_reqs
            computed = batch.num_computed_tokens_cpu[:n].tolist()
            counts = [int(count) for count in num_scheduled_tokens[:n]]
            self._spans = list(zip(list(batch.req_ids[:n]), computed, counts, strict=True))
            self.preempted += len(scheduler_output.preempted_req_ids or ())
            self._anew = set(scheduler_output.scheduled_cached_reqs.resumed_req_ids)
            return prepare(runner, scheduler_output, num_scheduled_tokens, *args, **kwargs)

        def sample_tokens(runner, *args, **kwargs):
            if self._spans:
                total = sum(n for _, _, n in self._spans)
                ids = torch.stack([buffer[:total] for buffer in self.buffers], 1).to(torch.int16)
                if watched is not None:
                    ids = torch.from_numpy(watched.beside(ids.cpu().numpy()))
                self.steps.append((self._spans, ids, self.version))
                self.anew.append(self._anew)
                self._spans = None
            return sample(runner, *args, **kwargs)

        BaseRouter._apply_eplb_mapping = place_experts
        GPUModelRunner._prepare_inputs = prepare_inputs
        GPUModelRunner.sample_tokens = sample_tokens

    def forget(self):
        """What came before, as a warm-up."""
        self.steps.clear(), self.anew.clear()
        self._spans, self.preempted = None, 0

    def rows(self, last_life=False):
        """{request: {position: every ([layers, k], version) of it, in order}}; or only those since
        it began anew."""
        found = {}
        for (spans, ids, version), anew in zip(self.steps, self.anew, strict=True):
            ids, at = ids.cpu().numpy(), 0
            for name in anew if last_life else ():
                found.pop(name, None)
            for name, first, n in spans:
                rows = found.setdefault(name, {})
                for i in range(n):
                    rows.setdefault(first + i, []).append((ids[at + i], version))
                at += n
        return found


def options_of(model, capture, sizes=SIZES, eager=False, **arguments):
    """What LLM is given."""
    options = {
        "model": str(MODELS / model),
        "load_format": "dummy",
        "skip_tokenizer_init": True,
        "enable_return_routed_experts": capture,
        "async_scheduling": True,
        "enforce_eager": eager,
        "max_model_len": 4096,
        "max_num_seqs": 256,
        "max_num_batched_tokens": 8192,
        "enable_prefix_caching": False,
        "enable_chunked_prefill": True,
        "disable_log_stats": True,
        "seed": 0,
        "dtype": "bfloat16",
    }
    if not eager:
        options["compilation_config"] = {"cudagraph_capture_sizes": list(sizes)}
    options |= arguments
    if ON_CPU:
        options |= {"dtype": "float32", "enforce_eager": True}
        options.setdefault("block_size", releases.BLOCK)
        options["compilation_config"] = {"custom_ops": ["none"]}
        for name in ("gpu_memory_utilization", "kv_cache_memory_bytes"):
            options.pop(name, None)
    return options


def cache_of(gib):
    """Options for a cache of so much memory, whatever others on the device have: vLLM measures how
    much is free, beside engines that start and end meanwhile, only where it is not told."""
    return {"kv_cache_memory_bytes": int(gib * 2**30), "gpu_memory_utilization": 0.02}


def layers_that_route(llm):
    """Their places in the decoder."""
    config = llm.llm_engine.vllm_config.model_config.hf_text_config
    return [i for i in range(config.num_hidden_layers) if i not in config.mlp_only_layers]


def draw_weights(model, seed):
    """Weights are normal by the seed, norms 1."""
    device = "cpu" if ON_CPU else "cuda"
    generator = torch.Generator(device=device).manual_seed(seed)
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            if "norm" in name:
                parameter.fill_(1)
            else:
                scale = 1.0 if "embed" in name else parameter.shape[-1] ** -0.5
                parameter.normal_(0, scale, generator=generator)
    if not ON_CPU:
        torch.cuda.synchronize()


def make(model, capture, seed=1, **arguments):
    """An engine in this process, and its model runner. draw_weights gives it weights, unless it
    loads some."""
    if ON_CPU:
        cpu.without_streams()
    llm = LLM(**options_of(model, capture, **arguments))
    runner = llm.llm_engine.engine_core.engine_core.model_executor.driver_worker.worker.model_runner
    if arguments.get("load_format", "dummy") == "dummy":
        draw_weights(runner.get_model(), seed)
    return llm, runner


def given(output, layers, completion=None):
    """What the caller got of a finished request, [rows, layers, k], and which cells of it are
    there, [rows, layers]; None if it got none.

    layers: those of the decoder that route.
    completion: of several choices; the first unless it is given.
    """
    completion = output.outputs[0] if completion is None else completion
    owners = [(completion, "routed_experts")]
    if hasattr(output, "prompt_routed_experts"):  # 0.21
        owners.insert(0, (output, "prompt_routed_experts"))
    found = [(owner, name) for owner, name in owners if getattr(owner, name) is not None]
    if not found:
        return None
    rows = np.concatenate([getattr(owner, name) for owner, name in found])
    masks = [getattr(owner, f"{name}_validity", None) for owner, name in found]
    says = masks[0] is not None
    if not says:  # with auxiliary outputs; vLLM's own, which says nothing
        masks = [(rows[..., 0] != -1) & releases.AUX_OUTPUT]
    valid = np.concatenate(masks)
    if len(owners) == 1:  # with all layers of the decoder
        dense = [layer for layer in range(rows.shape[1]) if layer not in layers]
        assert not rows[:, dense].any()
        assert not (says and valid[:, dense].any())
        rows, valid = rows[:, layers], valid[:, layers]
    return rows, valid


def sampling(most, **arguments):
    """Greedy, up to `most` tokens."""
    arguments = {"temperature": 0, "ignore_eos": True, "detokenize": False} | arguments
    return SamplingParams(max_tokens=most, **arguments)
