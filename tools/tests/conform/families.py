"""Small models of five families with random weights, in three precisions, in transformers: clean
runs, in which conform must find nothing, and each planted fault in each of twelve models.

    python3 families.py [--json FILE] [--jobs N]

All checks are made that one engine of transformers can be asked for. It has an adapter and other
weights, which are changes of low rank, and says that it preempts the last requests of many, which
changes no row where nothing is planted. Prints a line for each run; exit status 0 if no clean run
has a finding and each fault is found in at least eleven of the twelve models.
"""

import argparse
import json
import multiprocessing
import os
import sys
import tempfile
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import torch
import transformers_engine
from faults import FAULTS, MORE, REQUESTS, Wrong
from transformers import AutoConfig, AutoModelForCausalLM

from routecap_tools import conform

SIZES = {
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "bos_token_id": None,
    "eos_token_id": None,
}
ROUTED = {"n_routed_experts": 16, "num_experts_per_tok": 4, "moe_intermediate_size": 32}
ROUTED |= {"first_k_dense_replace": 1, "n_shared_experts": 1}
FAMILIES = {
    "qwen3_moe": {
        "num_experts": 16,
        "num_experts_per_tok": 4,
        "moe_intermediate_size": 32,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
    },
    "mixtral": {"num_local_experts": 8, "num_experts_per_tok": 2},
    "deepseek_v3": {
        **ROUTED,
        "n_group": 4,
        "topk_group": 2,
        "q_lora_rank": 32,
        "kv_lora_rank": 16,
        "qk_nope_head_dim": 16,
        "qk_rope_head_dim": 16,
        "v_head_dim": 16,
        "num_key_value_heads": 4,
    },
    "glm4_moe": {**ROUTED, "n_group": 1, "topk_group": 1},
    "gpt_oss": {
        "num_local_experts": 16,
        "num_experts_per_tok": 4,
        "layer_types": ["full_attention"] * 4,
    },
}
PRECISIONS = {
    "float32": {"dtype": "float32"},
    "bfloat16": {"dtype": "bfloat16"},
    "bfloat16, activations in float8": {"dtype": "bfloat16", "activations": "float8"},
}
CLEAN = {"float32": (0, 1, 2), "bfloat16": (0, 1), "bfloat16, activations in float8": (0, 1)}
"""The seeds of the clean runs, of each family."""
PLANTED = 12
"""Models with planted faults: all in the first two precisions, and of the third as many as are
left."""


def make(family, folder, seed=0):
    """A checkpoint. Routers and embeddings are large, so that tokens decide the choice."""
    config = AutoConfig.for_model(family, **SIZES | FAMILIES[family])
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            if "norm" in name:
                parameter.fill_(1)
            else:
                large = any(part in name for part in ("embed_tokens", "gate.weight", "router"))
                parameter.normal_(0, 1.0 if large else 0.35, generator=generator)
    model.save_pretrained(folder)
    return folder


class Remembering:
    """An engine that computes each batch once: what is planted in its answers needs no second."""

    def __init__(self, engine, use):
        self._engine, self._use, self._known, self._updates = engine, use, {}, 0
        self.name, self.can, self.preempted = engine.name, {*engine.can, "preemptions"}, 0

    def generate(self, requests):
        key = self._updates, tuple(requests)
        if key not in self._known:
            self._use(self._updates)
            self._known[key] = self._engine.generate(requests)
        self.preempted += max(len(requests) - REQUESTS, 0)
        return [[*choices] for choices in self._known[key]]

    def update(self):
        self._updates += 1

    def begin(self):
        """With the weights from before."""
        self._updates = 0

    def preemptions(self):
        return self.preempted


def judge(number, family, precision):
    """Of one model: a report for each run, with what is printed of it."""
    engine, given = transformers_engine.engine(
        folder=make(family, tempfile.mkdtemp()), adapter="1", **PRECISIONS[precision]
    )
    engine = Remembering(engine, given.pop("use"))
    given |= {"generated": 8, "requests": 8}  # a quarter of the time that the defaults take
    name, reports = f"{family}, {precision}", []

    def run(what, seed, wrong=None):
        engine.begin()
        report = conform.judge(wrong or engine, seed=seed, **given)
        fails = [each for each in report.verdicts if each.result == "fails"]
        print(
            f"{name}, {what}, seed {seed}:"
            f" {', '.join(each.check for each in fails) or 'nothing is found'};"
            f" status {report.status}, not judged: {', '.join(report.not_judged)}",
            *(f"    {each.check}: {text}" for each in fails if not wrong for text in each.what),
            sep="\n",
            flush=True,
        )
        told = {"model": name, "what": what, "seed": seed, **report.as_json()}
        reports.append((what, bool(fails), told))

    for seed in CLEAN[precision]:
        run("clean", seed)
    for fault in (*FAULTS, *MORE, "swapped") if number < PLANTED else ():
        run(fault, 0, wrong=Wrong(engine, fault, 0))
    return reports


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--json", type=Path)
    parser.add_argument("--jobs", type=int, default=2, help="models at a time, a process each")
    arguments = parser.parse_args()
    models = [(family, precision) for precision in PRECISIONS for family in FAMILIES]
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with ProcessPoolExecutor(arguments.jobs, multiprocessing.get_context("spawn")) as pool:
        parts = pool.map(judge, range(len(models)), *zip(*models, strict=True))
        runs = [each for part in parts for each in part]
    found = Counter()
    for what, fails, _ in runs:
        found[what] += fails
    for fault in (*FAULTS, *MORE, "swapped"):
        print(f"{fault}: found in {found[fault]} of {PLANTED} models")
    clean = sum(what == "clean" for what, _, _ in runs)
    print(f"{clean} clean runs, {found['clean']} of them with a finding")
    if arguments.json:
        arguments.json.write_text(json.dumps([told for _, _, told in runs]))
    least = min(found[fault] for fault in (*FAULTS, *MORE, "swapped"))
    return found["clean"] > 0 or least < PLANTED - 1


if __name__ == "__main__":
    sys.exit(main())
