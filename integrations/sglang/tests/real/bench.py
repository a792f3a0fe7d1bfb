"""What capture costs SGLang 0.5.23 in its own step: without it, with its own, and with routecap.

    python3 integrations/sglang/tests/real/bench.py [--engines N] [--kinds KIND,...] [--rounds N] [--budget S]
        [--json FILE]

Engines of the three kinds take turns on one GPU, N of each, one at a time. The shape is that of
Qwen3-30B-A3B with random weights: 48 layers, 8 of 128 experts, in CUDA graphs, with overlap
scheduling. A decode step is the difference between two lengths of output, by the number of tokens;
a prefill is 64 x 1,024 tokens and one of output. It tells the median of the engines without
capture, by how much those of the others differ, and as the noise how far those without are apart.
The same of the engine's step alone, without what is sent to the caller: by the throughput that the
engine logs, of the faster half of its intervals, which nothing interrupts.

It needs the package routecap, built with CUDA, and SGLang 0.5.23.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import statistics
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
MODEL = HERE.parents[3] / "tests/engines/models"
DECODE = (1, 64, 256)
SHORT, LONG = 16, 144
KINDS = ("off", "own", "routecap")


# ---- In a process that has an engine


def run(kind: str, rounds: int, model: str, settings: dict[str, object]) -> dict[str, object]:
    if kind == "routecap":
        os.environ["ROUTECAP_SGLANG"] = "1"
    import sglang

    begun = time.perf_counter()
    engine = sglang.Engine(
        model_path=str(MODEL / model),
        load_format="dummy",
        skip_tokenizer_init=False,
        enable_return_routed_experts=kind != "off",
        disable_radix_cache=True,
        log_level="info",
        **settings,
    )
    found: dict[str, object] = {"kind": kind, "start, s": round(time.perf_counter() - begun, 1)}
    draw = random.Random(0)

    def generate(count: int, length: int, tokens: int) -> float:
        prompts = [[draw.randrange(1000) for _ in range(length)] for _ in range(count)]
        parameters = {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True}
        begun = time.perf_counter()
        outputs = engine.generate(
            input_ids=prompts, sampling_params=parameters, return_routed_experts=kind != "off"
        )
        took = time.perf_counter() - begun
        if kind != "off":
            expect_rows(outputs[0]["meta_info"]["routed_experts"], length + tokens - 1)
        return took

    def expect_rows(answer: str, rows: int) -> None:
        import base64

        import numpy as np

        ids = np.frombuffer(base64.b64decode(answer), np.int32).reshape(rows, -1, 8)
        distinct = (np.diff(np.sort(ids, -1), axis=-1) > 0).all(-1)
        if not distinct.any(0).all() or kind == "routecap" and not distinct.all():
            raise RuntimeError(f"rows are missing: {(~distinct).sum(0)}")

    for count in DECODE:
        generate(count, 128, 8)
    samples: dict[str, list[float]] = {}
    for _ in range(rounds):
        for count in DECODE:
            step = (generate(count, 128, LONG) - generate(count, 128, SHORT)) / (LONG - SHORT)
            samples.setdefault(f"decode {count}", []).append(round(step * 1e3, 4))
        samples.setdefault("prefill", []).append(round(generate(64, 1024, 1) * 1e3, 3))
    found["ms"] = samples
    engine.shutdown()
    return found


# ---- The process that asks

_INTERVAL = re.compile(
    r"(Decode|Prefill) batch, #(?:running-req|new-seq: 8, #new-token): (\d+),"
    r".* (?:gen|input) throughput \(token/s\): ([\d.]+)"
)
_NAMES = {("Decode", str(count)): f"decode step {count}" for count in DECODE}
_NAMES["Prefill", "8192"] = "prefill step"


def steps(log: str) -> dict[str, float]:
    """ms of an engine's steps, as it logs them itself."""
    found: dict[str, list[float]] = {}
    before = None
    for kind, tokens, rate in _INTERVAL.findall(log):
        name = _NAMES.get((kind, tokens))
        if name is not None and name == before:  # the first interval has something else, too
            found.setdefault(name, []).append(1e3 * int(tokens) / float(rate))
        before = name
    return {
        name: round(statistics.median(sorted(times)[: (len(times) + 1) // 2]), 3)
        for name, times in found.items()
    }


def compare(results: list[dict[str, object]]) -> list[dict[str, object]]:
    rows = []
    for name in dict.fromkeys(name for each in results for name in each["ms"]):
        medians = {
            kind: [
                statistics.median(each["ms"][name])
                for each in results
                if each["kind"] == kind and name in each["ms"]
            ]
            for kind in KINDS
        }
        if not medians["off"]:
            continue
        off = statistics.median(medians["off"])
        row: dict[str, object] = {"sample": name, "off, ms": round(off, 3)}
        for kind in KINDS[1:]:
            if medians[kind]:
                row[f"{kind}, %"] = round(100 * (statistics.median(medians[kind]) / off - 1), 2)
        spread = 100 * (max(medians["off"]) - min(medians["off"])) / off
        row["noise, %"] = round(spread, 2) if len(medians["off"]) > 1 else None
        row["engines"] = [len(medians[kind]) for kind in KINDS]
        rows.append(row)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--engines", type=int, default=2, help="of each kind")
    parser.add_argument("--kinds", type=lambda text: text.split(","), default=KINDS)
    parser.add_argument("--rounds", type=int, default=3, help="of measurements in an engine")
    parser.add_argument("--budget", type=float, default=3600, help="seconds")
    parser.add_argument("--model", default="large")
    parser.add_argument("--settings", type=json.loads, default={}, help="JSON, for the engine")
    parser.add_argument("--logs", default="sglang_engine_logs")
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--run", choices=KINDS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.run:
        found = run(arguments.run, arguments.rounds, arguments.model, arguments.settings)
        print(json.dumps(found), flush=True)
        return
    sys.path.append(str(HERE.parents[3] / "lab/bench"))
    from machine import save

    Path(arguments.logs).mkdir(parents=True, exist_ok=True)
    until, took, results = time.monotonic() + arguments.budget, 0.0, []
    for number in range(arguments.engines):
        for kind in arguments.kinds:
            if time.monotonic() + took > until:
                print(f"no time for {kind} {number}", flush=True)
                continue
            begun, log = time.monotonic(), Path(arguments.logs) / f"{kind}_{number}.log"
            command = [sys.executable, __file__, "--run", kind, "--rounds", str(arguments.rounds)]
            command += ["--model", arguments.model, "--settings", json.dumps(arguments.settings)]
            with log.open("w") as errors:
                done = subprocess.run(command, stdout=subprocess.PIPE, stderr=errors, text=True)
            lines = [line for line in done.stdout.splitlines() if line.startswith('{"kind"')]
            if done.returncode or not lines:
                print(f"FAILED {kind} {number}: {log.read_text()[-3000:]}", flush=True)
                continue
            result = json.loads(lines[-1])
            for name, each in steps(log.read_text()).items():
                result["ms"][name] = [each]
            results.append(result)
            print(json.dumps(result), flush=True)
            took = max(took, time.monotonic() - begun)
    rows = compare(results)
    for row in rows:
        print(json.dumps(row), flush=True)
    if arguments.json:
        title = "SGLang 0.5.23 in its own step: without capture, with its own, with routecap"
        save(arguments.json, title=title, results=rows, engines=results)


if __name__ == "__main__":
    main()
