"""What differs between releases of vLLM, for the checks in this folder: everything else here is the
same in all of them.

RELEASE: the installed one, as (0, 30, 0). RUNNERS: the model runners with which it captures; it
refuses to with another one. V2: whether the engine is to have model runner V2, by
VLLM_USE_V2_MODEL_RUNNER; V1 unless that says something or only V2 captures. AUX_OUTPUT: whether
rows come with the outputs of steps, by vLLM's auxiliary outputs.

    python3 releases.py     the model runners of the installed one that capture
"""

import os
from importlib import import_module
from importlib.metadata import version

RELEASE = tuple(map(int, version("vllm").partition("+")[0].split(".")))
RUNNERS = [*(["V1"] if RELEASE < (0, 31) else []), *(["V2"] if RELEASE >= (0, 28) else [])]
V2 = os.environ.setdefault("VLLM_USE_V2_MODEL_RUNNER", str(int(RUNNERS == ["V2"]))) == "1"
AUX_OUTPUT = RELEASE >= (0, 31)
BLOCK = 16 if RELEASE < (0, 27) else 32  # the smallest that attention on the CPU takes


def runner_class():
    name = "vllm.v1.worker.gpu.model_runner" if V2 else "vllm.v1.worker.gpu_model_runner"
    return import_module(name).GPUModelRunner


def watch_batches(see):
    """Before each forward pass see(slots, positions): where in the KV cache each row of the batch
    is written, and its position in its request; both tensors or arrays."""
    kind = runner_class()
    if V2:
        prepare_attn = kind.prepare_attn

        def prepare(runner, batch, *args, **kwargs):
            found = prepare_attn(runner, batch, *args, **kwargs)
            rows = slice(batch.num_tokens)
            see(found[1][0][rows].clone(), batch.positions[rows].clone())
            return found

        kind.prepare_attn = prepare
        return

    import numpy as np

    prepare_inputs = kind._prepare_inputs

    def prepare(runner, step, *args, **kwargs):
        batch = runner.input_batch
        table = batch.block_table[0]
        blocks, size = table.get_numpy_array(), table.block_size
        slots, positions = [], []
        for i, name in enumerate(batch.req_ids[: batch.num_reqs]):
            first = int(batch.num_computed_tokens_cpu[i])
            at = np.arange(first, first + step.num_scheduled_tokens[name])
            slots.append(blocks[i, at // size].astype(np.int64) * size + at % size)
            positions.append(at)
        see(np.concatenate(slots), np.concatenate(positions))
        return prepare_inputs(runner, step, *args, **kwargs)

    kind._prepare_inputs = prepare


def is_dummy(args, kwargs):
    """Whether execute_model(step, *args, **kwargs) only warms up, which V2 does by it."""
    return V2 and bool(kwargs.get("dummy_run") or (len(args) > 1 and args[1]))


def empty_under_requests(llm, step):
    """Empties the prefix cache, and preempts what runs. step(): one of the engine's, whose outputs
    are taken."""
    if RELEASE[:2] != (0, 31):
        return llm.reset_prefix_cache(reset_running_requests=True)
    core = llm.llm_engine.engine_core.engine_core  # it wants to be paused, with nothing in flight
    core.pause_scheduler("keep", clear_cache=False)
    while any(each.num_in_flight_tokens for each in core.scheduler.requests.values()):
        step()
    emptied = llm.reset_prefix_cache(reset_running_requests=True)
    core.resume_scheduler()
    return emptied


def truths(position, own, lives, prompt):
    """What a row may be of a request that began as often as `own` has lives: of its last. With
    auxiliary outputs also of those before, as rows come out with each step; and 0.21 has one array
    for the prompt of all choices, each of which has `lives`."""
    if RELEASE < (0, 22) and position < prompt:
        own = [*own[-1:], *(each[-1] for each in lives)]
    elif not AUX_OUTPUT:
        own = own[-1:]
    return [life[position] for life in reversed(own) if position in life]


if __name__ == "__main__":
    print(*RUNNERS)
