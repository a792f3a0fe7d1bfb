"""What Prometheus scrapes from vLLM's engine is what its routers chose: metrics.py [--drafts]"""

import os
import random
import socket
import sys
import urllib.request


def free_port():
    """None of those that the system gives to whoever asks for any, as vLLM does."""
    while True:
        try:
            with socket.create_server(("127.0.0.1", random.randrange(20000, 30000))) as listening:
                return listening.getsockname()[1]
        except OSError:
            continue


PORT = free_port()
os.environ["ROUTECAP_VLLM_METRICS_PORT"] = str(PORT)  # as an operator does

import engine  # noqa: E402
import numpy as np  # noqa: E402
import words  # noqa: E402
from prometheus_client.parser import text_string_to_metric_families  # noqa: E402

import routecap_vllm  # noqa: E402
from routecap_vllm import routed_experts_capturer  # noqa: E402

DRAFTS = "--drafts" in sys.argv
VOCABULARY, TOKENS = 2048, 20


def scraped():
    """{name: {labels: value}}"""
    with urllib.request.urlopen(f"http://127.0.0.1:{PORT}/metrics", timeout=60) as answer:
        families = text_string_to_metric_families(answer.read().decode())
    found = {}
    for family in families:
        for sample in family.samples:
            found.setdefault(sample.name, {})[frozenset(sample.labels.items())] = sample.value
    return found


def prompts():
    draw = random.Random(1)
    for length in (1, 15, 40, 100) * 3:
        tokens = [draw.randrange(VOCABULARY) for _ in range(length)]
        yield (tokens[:5] * length)[: max(length, 40)] if DRAFTS else tokens  # drafts by n-grams


routecap_vllm.install()
oracle = engine.Oracle(8192)
more = {}
if DRAFTS:
    more["speculative_config"] = {"method": "ngram", "num_speculative_tokens": 4}
    more["speculative_config"] |= {"prompt_lookup_max": 3, "prompt_lookup_min": 1}
llm, runner = engine.make(
    words.LEAST,
    True,
    async_scheduling=not DRAFTS,
    max_num_batched_tokens=128,
    max_model_len=256,
    max_num_seqs=8,
    **engine.cache_of(1),
    **more,
)
oracle.forget()
asked = [{"prompt_token_ids": tokens} for tokens in prompts()]
for output in llm.generate(asked, engine.sampling(TOKENS), use_tqdm=False):
    assert np.asarray(output.outputs[0].routed_experts).size  # its rows have landed

found = scraped()
rows = np.concatenate([ids.cpu().numpy() for _, ids, _ in oracle.steps])
capturer = routed_experts_capturer.get_global_experts_capturer().capturer
counts = np.zeros((rows.shape[1], capturer.experts), int)
places = {layer: index for index, layer in enumerate(engine.layers_that_route(llm))}
for labels, value in found["routecap_expert_chosen_total"].items():
    said = dict(labels)
    assert said["rank"] == "0", said
    counts[places[int(said["layer"])], int(said["expert"])] += int(value)
expected = np.array(
    [np.bincount(ids.ravel(), minlength=capturer.experts) for ids in rows.swapaxes(0, 1)]
)
phases = {
    dict(labels)["phase"]: int(value) for labels, value in found["routecap_load_rows_total"].items()
}
print(f"{len(rows)} rows were computed, counted: {phases}")
prefill = sum(len(each["prompt_token_ids"]) for each in asked)
# One token alone is decode. 0.26 may verify drafts in the step of a prompt of one token.
most = prefill + DRAFTS * 4 * sum(len(each["prompt_token_ids"]) == 1 for each in asked)
assert prefill - len(asked) <= phases["prefill"] <= most
if DRAFTS:  # those of a request that has ended before they landed do not count
    assert 0 <= len(rows) - sum(phases.values()) <= 5 * len(asked) and (counts <= expected).all()
else:
    assert (counts == expected).all() and sum(phases.values()) == len(rows)
print("PASSED")
