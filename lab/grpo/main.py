#!/usr/bin/env python3
"""Rollouts of an engine, and a GRPO-like training step that replays their routing.

    main.py megatron FOLDER               # the trainer: two ranks of Megatron-Core, each on a GPU if
                                          # there are two
    main.py megatron FOLDER --ray         # the same on CPUs, as Ray's actors
    main.py megatron [FOLDER] --ranks 1   # one rank of it, on a GPU if there is one
    main.py transformers [FOLDER]         # the trainer: transformers, on a GPU if there is one

FOLDER is a model over bytes, such as tests/model/weights. Without one the model has 560 million
random weights.

Transformers generates in bfloat16, in one batch with a cache, and routecap captures the routing.
Each answer takes two calls, as where rollouts are interrupted. Each call's routing is encoded as
vLLM sends it, decoded, and appended to the answer's sequence, which keeps the rows with which its
tokens were made. Sequences travel with log-probabilities: to other processes, or with --ray through
Ray's object store to Ray's actors. The trainer lays rows out by a plan, and makes the step in
float32 with activation checkpointing: without replay, with replay, and with rows shifted by one. It
exits with 1 unless replay narrows the gap of log-probabilities, shifted rows widen it, and every
row came through. The ranks of Megatron-Core are tensor parallel, with sequence parallelism, and
divide the experts. Then its routers alone, on two context-parallel ranks, are given the same
routing.
"""

import argparse
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
sys.path.append(str(Path(__file__).parent))

import torch
import transformers
from rollouts import (
    HEAD,
    Padded,
    Rollout,
    Step,
    failures,
    measure,
    roll_out,
    routed_otherwise,
    taps_of,
)


def on_megatron(arguments: argparse.Namespace) -> tuple[list[Rollout], dict[str, Step], float]:
    load = transformers.AutoModelForCausalLM.from_pretrained
    engine = load(arguments.folder, dtype=torch.bfloat16).eval()
    rollouts = roll_out(
        engine,
        measure.prompts_of(arguments.prompts, arguments.seed),
        arguments.group,
        arguments.new_tokens,
    )
    same = load(arguments.folder, dtype=torch.float32).eval()
    weights = {name: weight.clone() for name, weight in same.state_dict().items()}
    with tempfile.TemporaryDirectory() as folder:
        given = folder, rollouts, weights, engine.config, taps_of(engine)
        results = by_ray(given) if arguments.ray else by_processes(given, arguments.device)
    otherwise = routed_otherwise(rollouts, [result[2:] for result in results])
    print(
        f"context parallel: {otherwise:,} of"
        f" {sum(len(each.tokens) - 1 for each in rollouts) * len(taps_of(engine)['layer_map']):,}"
        " tokens x layers are not routed on 2 ranks as the engine routed them"
    )
    assert otherwise == 0
    steps, after = results[0][:2]
    assert all(
        (steps[name].gaps == results[1][0][name].gaps).all() for name in steps
    )  # of one loss on two ranks
    batch = Padded(rollouts, max(len(rollout.tokens) for rollout in rollouts))
    with torch.no_grad():
        logits = same(input_ids=batch.tokens, attention_mask=batch.mask, use_cache=False).logits
    logs = logits.log_softmax(-1).gather(-1, batch.labels[..., None])[..., 0]
    differ = abs(batch.gaps(logs) - steps[measure.NONE].gaps).max()
    print(
        "Megatron-Core computes what transformers does: log-probabilities in float32 differ by"
        f" {differ:.1e} at most"
    )
    assert differ < 1e-3
    for name, step in steps.items():  # each rank has rows of its own
        reports = [result[0][name].report for result in results]
        if step.report is not None:
            print(
                f"{name}: "
                + ", ".join(
                    f"rank {rank} replayed {report.replayed:,}"
                    for rank, report in enumerate(reports)
                )
            )
    return rollouts, steps, after


def on_one_rank(arguments: argparse.Namespace) -> tuple[list[Rollout], dict[str, Step], float]:
    from transformers_step import models_of

    trainer, engine, prompts = models_of(
        arguments.folder, arguments.device, arguments.prompts, arguments.seed
    )
    rollouts = roll_out(engine, prompts, arguments.group, arguments.new_tokens)
    weights, hf, taps = trainer.state_dict(), engine.config, taps_of(engine)
    del engine
    from megatron_step import train

    with tempfile.TemporaryDirectory() as folder:
        given = rollouts, weights, hf, taps, 1, arguments.device
        steps, after = train(0, f"{folder}/tensor", *given)
    return rollouts, steps, after


def by_processes(given: tuple[Any, ...], device: str) -> list[Any]:
    import torch.multiprocessing

    with torch.multiprocessing.get_context("spawn").Pool(2) as pool:
        return pool.starmap(_rank, [(rank, *given, 2, device) for rank in range(2)], chunksize=1)


def by_ray(given: tuple[Any, ...]) -> list[Any]:
    import ray

    sys.path.append(str(Path(__file__).resolve().parents[2] / "examples"))
    from ray_ranks import local_ray

    with local_ray():
        folder, rollouts, *rest = given
        held = ray.put(rollouts)  # once, whatever number of ranks reads it
        return ray.get(
            [ray.remote(num_cpus=1)(_rank).remote(rank, folder, held, *rest) for rank in range(2)]
        )


def _rank(rank: int, folder: str, *given: Any) -> tuple[Any, ...]:
    """What a rank does: the steps, then the routers with context parallelism."""
    sys.path.append(str(Path(__file__).parent))
    from context_step import route
    from megatron_step import train

    return *train(rank, f"{folder}/tensor", *given), *route(rank, f"{folder}/context", *given)


def on_transformers(arguments: argparse.Namespace) -> tuple[list[Rollout], dict[str, Step], float]:
    import transformers_step

    return transformers_step.run(arguments)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("trainer", choices=("megatron", "transformers"))
    parser.add_argument("folder", nargs="?")
    parser.add_argument("--ray", action="store_true")
    parser.add_argument("--ranks", type=int, choices=(1, 2), default=2, help="of Megatron-Core")
    parser.add_argument("--prompts", type=int, default=2)
    parser.add_argument("--group", type=int, default=4, help="answers to each prompt")
    parser.add_argument("--new-tokens", type=int, default=48)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", choices=("cuda", "cpu"))
    arguments = parser.parse_args()
    on_two_ranks = arguments.trainer == "megatron" and arguments.ranks == 2
    if arguments.device is None:
        wanted = arguments.ranks if on_two_ranks else 1
        arguments.device = "cuda" if torch.cuda.device_count() >= wanted else "cpu"
    if on_two_ranks and arguments.folder is None:
        parser.error("two ranks of Megatron-Core need a FOLDER")
    if arguments.ray and not on_two_ranks:
        parser.error("--ray is for two ranks of Megatron-Core")
    transformers.utils.logging.disable_progress_bar()
    if on_two_ranks:
        run = on_megatron
    else:
        run = on_one_rank if arguments.trainer == "megatron" else on_transformers
    rollouts, steps, after = run(arguments)
    print(
        f"{len(rollouts)} rollouts of {arguments.new_tokens} tokens,"
        f" {sum(each.wire_bytes for each in rollouts):,} bytes of routing on the wire"
    )
    reports = [each.sequence.report() for each in rollouts]
    print(
        f"{sum(each.rows_differed for each in reports):,} of"
        f" {sum(each.rows_overlap for each in reports):,} rows were others when the engine read"
        " their tokens again: those that made the tokens stay\n"
    )
    print(
        "\n".join(
            [
                HEAD,
                *(steps[name].line() for name in (measure.NONE, measure.CAPTURED, measure.SHIFTED)),
            ]
        )
    )
    print(f"\nThe objective of these rollouts after the step: {after:+.4f}")
    found = failures(steps)
    if not after > steps[measure.CAPTURED].objective:
        found.append("the step did not raise the objective")
    for each in found:
        print(f"does not hold: {each}")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
