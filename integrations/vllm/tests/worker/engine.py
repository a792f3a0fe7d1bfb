"""vLLM's engine on the CPU, driven step by step."""

import cpu_kernels  # isort: skip  before vllm
from dataclasses import dataclass
from pathlib import Path

import routecap
import torch
from vllm import LLM, SamplingParams

from oracle import Recording

BLOCK = 32  # tokens in a block of the KV cache
BLOCKS = 21  # of which vLLM keeps one for itself: a batch of long sequences does not fit
BATCH = 64  # the most tokens of a step,
CHUNK = 32  # and of one prompt in a step


@dataclass
class Ended:
    """A request, as its caller sees it in the end."""

    id: str
    tokens: list
    cached: int
    routing: routecap.Routing


class Engine:
    """vLLM's engine with the tap, driven step by step."""

    def __init__(self, folder, worker, ahead):
        self.ahead = ahead  # schedules a step before it has the results of the one before
        torch.manual_seed(1)
        llm = LLM(
            folder,
            worker_cls=worker,
            async_scheduling=ahead,
            block_size=BLOCK,
            num_gpu_blocks_override=BLOCKS,
            enable_prefix_caching=True,
            max_model_len=512,
            max_num_seqs=6,
            max_num_batched_tokens=BATCH,
            long_prefill_token_threshold=CHUNK,
            dtype="float32",
            skip_tokenizer_init=True,
            enforce_eager=True,
            compilation_config={"custom_ops": ["none"]},  # norms and activations in PyTorch
            disable_log_stats=True,
        )
        self.llm, self.engine = llm, llm.llm_engine
        core = self.engine.engine_core.engine_core
        self.scheduler = core.scheduler
        worker = core.model_executor.driver_worker.worker
        self.tap, self.runner = worker.tap, worker.model_runner
        self.recording = Recording(self.runner)
        self.prompts = {}  # of requests that run, by the engine's id
        self.outputs = {}  # what they have said last, by the caller's id and the prompt
        self.preempted = set()

    def add(self, prompt, most, name=None, temperature=0.0, **sampling):
        """A request of up to `most` tokens; returns the engine's id."""
        name = name or f"request-{len(self.prompts)}"
        sampling = SamplingParams(
            max_tokens=most, temperature=temperature, detokenize=False, **sampling
        )
        id = self.engine.add_request(name, {"prompt_token_ids": prompt}, sampling)
        self.prompts[id] = name, tuple(prompt)
        return id

    def change_routers(self):
        """Other weights; and the same as before when it is done again."""
        for name, weight in self.runner.model.named_parameters():
            if name.endswith("mlp.gate.weight"):
                weight.data.copy_(weight.data.flip(0))

    def step(self):
        for output in self.engine.step():
            self.outputs[output.request_id, tuple(output.prompt_token_ids)] = output
        self.preempted |= {
            request.request_id for request in self.scheduler.waiting if request.num_preemptions
        }

    def run(self, steps=10000):
        """So many steps, or until no request is left."""
        for _ in range(steps):
            if not self.engine.has_unfinished_requests():
                return
            self.step()

    def take(self, id, tokens):
        """What an engine would put into its answer."""
        return self.llm.collective_rpc("take_routing", args=(id, tokens))[0]

    def end(self, id):
        """The end of a request, which has finished or was aborted."""
        output = self.outputs[self.prompts[id]]
        tokens = [*output.prompt_token_ids, *output.outputs[0].token_ids]
        return Ended(id, tokens, output.num_cached_tokens or 0, self.take(id, len(tokens)))

    def clear(self):
        """Forget cached prefixes, and what the situation was."""
        self.run()
        assert self.engine.reset_prefix_cache()
        self.recording.steps.clear()
        self.preempted.clear()


class Passages:
    """Prompts: one passage of a text after another, a token for each byte."""

    def __init__(self, path):
        self.data, self.used = Path(path).read_bytes(), 0

    def __call__(self, length):
        self.used += length
        assert self.used <= len(self.data), "the text is too short"
        return list(self.data[self.used - length : self.used])
