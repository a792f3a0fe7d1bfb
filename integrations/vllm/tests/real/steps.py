"""What a step of vLLM's engine calls of routecap: as much for 64 requests as for 8.

    python3 steps.py

A step in which no request begins or ends and no block of the prefix cache is filled, of outputs
that come at the end and of a stream. Prints the calls, and PASSED or FAILED.
"""

import sys
from pathlib import Path

import engine
import words
from vllm.sampling_params import RequestOutputKind

import routecap_vllm

sys.path.append(str(Path(__file__).resolve().parents[1]))
from calls import calls_in  # noqa: E402

FEW, MANY = 8, 64

routecap_vllm.install()
llm, _ = engine.make(
    words.LEAST,
    True,
    async_scheduling=False,
    max_num_batched_tokens=256,
    max_model_len=256,
    max_num_seqs=MANY,
    enable_prefix_caching=True,
    **engine.cache_of(1),
)
running = llm.llm_engine


def fewest_calls(count, kind):
    """Of a step with so many requests; between two that fill a block there are some others."""
    for i in range(count):
        parameters = engine.sampling(40, output_kind=kind)
        running.add_request(f"{kind}{count}-{i}", {"prompt_token_ids": [i + 1] * 3}, parameters)
    for _ in range(6):
        running.step()
    found = [calls_in(running.step) for _ in range(4)]
    assert running.get_num_unfinished_requests() == count
    while running.has_unfinished_requests():
        running.step()
    return min(found, key=lambda each: each.total())


failed = False
for kind in (RequestOutputKind.FINAL_ONLY, RequestOutputKind.DELTA):
    few, many = fewest_calls(FEW, kind), fewest_calls(MANY, kind)
    print(f"{kind.name}: {few.total()} calls for {FEW} requests, {many.total()} for {MANY}")
    for name in sorted({*few, *many}):
        if few[name] != many[name]:
            failed = True
            print(f"    {name}: {few[name]} and {many[name]}")
print("FAILED" if failed or not few.total() else "PASSED")
sys.exit(failed or not few.total())
