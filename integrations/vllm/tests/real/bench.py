"""What capture costs vLLM in its own step, 0.21 or 0.26, off beside on.

    python3 integrations/vllm/tests/real/bench.py [--engines N] [--modes async,sync] [--own] [--json FILE]

Engine processes without capture and with it alternate on one GPU, N of each, with --own also with
vLLM's own. Two more are imported while one is made, and wait while it is measured. The shape is
that of Qwen3-30B-A3B with random weights: 48 layers, 8 of 128 experts, in CUDA graphs. For a decode
step at 1, 64 and 256 requests, a prefill of 64 x 1,024 tokens and a mixed batch of 384 requests it
tells the median of the engines without capture, how much the median of those with it differs, and
as the noise how far those without it are apart. Then, of the first engine with capture: what the
engine's thread spends in each of routecap's functions, and in one call of the driver at the place
of issue; what 64 requests of 1,024 rows cost it that end at once; and how long routecap's own
kernels take on the device in a step, beside what all copies take there with capture and without.

    python3 integrations/vllm/tests/real/bench.py --together --memory 6 --modes sync \\
        --samples "decode 1,decode 64,decode 256"

has one engine of each kind alive at a time, N times, and asks them in turns, the first of which
does not count: what the host does otherwise meanwhile is in both. It tells the median over the
turns of how much the others differ from the one without capture, for each N and of all, and as the
noise the same of that one against itself a turn later. Both fit into 141 GB.

--prefix: with the prefix cache. Several GPUs measure at once, each with cores and logs of its own:

    CUDA_VISIBLE_DEVICES=1 taskset -c 16-31 python3 integrations/vllm/tests/real/bench.py --logs logs1 ...

It needs the package routecap, built with CUDA, and vLLM.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import time
import traceback
from importlib.metadata import version
from pathlib import Path

ENGINE = Path(__file__).resolve().parent
DECODE = (1, 64, 256)
KINDS = ("off", "on", "own")
SAMPLES = [f"decode {n}" for n in DECODE] + ["prefill", "mixed"]


# ---- In a process that has an engine


class Measured:
    """An engine, and what is measured of it."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        kind, steps, count = arguments.kind, arguments.steps, arguments.mixed
        self.arguments = arguments
        self.kind, capture = kind, kind == "on"
        if capture:
            import routecap_vllm

            routecap_vllm.install()
        import engine

        self.engine, self.steps, self.count, self.capture = engine, steps, count, capture
        self.spent: dict[str, list[int]] = {}
        self.issued = 0
        if capture:
            self.time_functions()

    def make(self, model: str, asynchronous: bool, memory: int) -> None:
        self.timing = False
        self.llm, self.runner = self.engine.make(
            model,
            self.kind != "off",
            async_scheduling=asynchronous,
            enable_prefix_caching=self.arguments.prefix,
            **self.engine.cache_of(memory),
        )
        self.eng = self.llm.llm_engine
        if not self.engine.ON_CPU:
            import torch

            self.event = torch.cuda.Event()
            self.event.record()  # which makes it
        self.draw, self.names = random.Random(0), iter(range(1 << 60))
        self.vocabulary = self.eng.vllm_config.model_config.get_vocab_size()
        self.decode(8, 20), self.prefill()  # warm

    def time_functions(self) -> None:
        """Of routecap's, what the engine's thread calls; they are timed while `timing` says so."""
        from routecap_vllm import _by_slot, _scheduler, _versions, routed_experts_capturer
        from routecap_vllm._capturer import _RoutedExpertsCapturerReal

        def time_one(owner: object, name: str, called: str) -> None:
            function = getattr(owner, name)

            def timed(*args: object, **kwargs: object) -> object:
                if not self.timing:
                    return function(*args, **kwargs)
                if called == "issue" and self.probes_driver():
                    return function(*args, **kwargs)
                begun = time.perf_counter_ns()
                try:
                    return function(*args, **kwargs)
                finally:
                    self.spent.setdefault(called, []).append(time.perf_counter_ns() - begun)

            setattr(owner, name, timed)

        if _versions.find().module == "_by_slot":
            time_one(_by_slot.Capture, "issue", "issue")
            time_one(_by_slot.Capture, "begin", "begin")
        else:
            time_one(routed_experts_capturer, "issue_routing_d2h_copy", "issue")
            extract = "extract_routed_experts_for_current_batch"
            time_one(routed_experts_capturer, extract, "extract")
            time_one(routed_experts_capturer, "free_routing_buffers", "free")
            time_one(_RoutedExpertsCapturerReal, "finalize_pending_copy", "finalize")
        time_one(_scheduler.TellingScheduler, "_attach", "ends")

    def probes_driver(self) -> bool:
        """Every fourth time: what one call of the driver takes in the place of issue, whose own
        time does not count then, as that call has brought the driver into the caches. issue makes
        eight, two of which only ask where it is (tests/fault/hot_path.cc).
        """
        self.issued += 1
        if self.issued % 4 or self.engine.ON_CPU:
            return False
        begun = time.perf_counter_ns()
        self.event.record()
        self.spent.setdefault("one event", []).append(time.perf_counter_ns() - begun)
        return True

    def drive(
        self, prompts: list[list[int]], most: list[int]
    ) -> tuple[list[tuple[float, int]], list[object]]:
        """[(when, tokens that came)] for each step, and the outputs."""
        for prompt, limit in zip(prompts, most, strict=True):
            parameters = self.engine.sampling(limit)
            self.eng.add_request(str(next(self.names)), {"prompt_token_ids": prompt}, parameters)
        steps, seen, done = [], {}, []
        begin = time.perf_counter()
        while self.eng.has_unfinished_requests():
            came = 0
            for output in self.eng.step():
                n = len(output.outputs[0].token_ids)
                came += n - seen.get(output.request_id, 0)
                seen[output.request_id] = n
                if output.finished:
                    done.append(output)
            steps.append((time.perf_counter() - begin, came))
        return steps, done

    def prompts(self, count: int, length: int) -> list[list[int]]:
        return [[self.draw.randrange(self.vocabulary) for _ in range(length)] for _ in range(count)]

    def decode(self, count: int, most: int | None = None) -> float:
        """Median ms of a step in which each request gets a token."""
        steps, outputs = self.drive(self.prompts(count, 128), [most or self.steps] * count)
        self.expect_rows(outputs)
        pairs = zip(steps, steps[1:], strict=False)
        times = [end - begin for (begin, _), (end, came) in pairs if came == count][5:-1]
        return statistics.median(times) * 1e3

    def prefill(self) -> float:
        """ms, from the first step to the last output."""
        steps, outputs = self.drive(self.prompts(64, 1024), [1] * 64)
        self.expect_rows(outputs)
        return steps[-1][0] * 1e3

    def mixed(self) -> float:
        """ms of requests of different lengths."""
        draw = random.Random(1)
        lengths = [(draw.randrange(64, 1024), draw.randrange(32, 400)) for _ in range(self.count)]
        prompts = [prompt for n, _ in lengths for prompt in self.prompts(1, n)]
        steps, outputs = self.drive(prompts, [most for _, most in lengths])
        self.expect_rows(outputs)
        return steps[-1][0] * 1e3

    def expect_rows(self, outputs: list[object]) -> None:
        """Each has all its rows, and none is missing; of some, every cell is looked at."""
        if self.kind == "off":
            return
        for index, output in enumerate(outputs):
            completion = output.outputs[0]
            found = []
            for owner, name in ((output, "prompt_routed_experts"), (completion, "routed_experts")):
                for attribute in (f"_{name}", name):  # routecap's rows, or vLLM's array
                    if attribute in vars(owner):
                        found.append(vars(owner)[attribute])
                        break
            rows = sum(len(each) for each in found if each is not None)
            if rows != len(output.prompt_token_ids) + len(completion.token_ids) - 1:
                raise RuntimeError(f"{output.request_id} has {rows} rows")
            if self.capture and index % 32 == 0 and not found[0].part().complete:
                raise RuntimeError(f"{output.request_id} has missing cells")

    def measure(self, name: str) -> float:
        what, _, count = name.partition(" ")
        return (
            self.decode(int(count))
            if count
            else self.prefill()
            if what == "prefill"
            else self.mixed()
        )

    def thread(self) -> dict[str, object]:
        """us of the engine's thread in routecap's functions: median and 90th percentile."""
        found = {}
        for name in SAMPLES[:-1]:
            self.spent.clear()
            self.timing = True
            self.measure(name)
            self.timing = False
            found[name] = {
                called: [
                    round(statistics.median(times) / 1e3, 1),
                    round(sorted(times)[len(times) * 9 // 10] / 1e3, 1),
                ]
                for called, times in self.spent.items()
                if called != "ends"
            }
            if self.spent.get("ends"):
                found[name]["ends, in all"] = round(sum(self.spent["ends"]) / 1e3, 1)
        if not self.eng.vllm_config.scheduler_config.async_scheduling:
            return found
        self.spent.clear()
        self.timing = True
        self.drive(self.prompts(64, 128), [897] * 64)  # prefilled in one step, they end in one
        self.timing = False
        found["64 requests of 1,024 rows end at once"] = {
            "ends, in all": round(sum(self.spent["ends"]) / 1e3, 1)
        }
        return found

    def device(self) -> dict[str, object]:
        """us of the device in a step: routecap's kernels, and copies between memories of all."""
        from torch.profiler import ProfilerActivity, profile, supported_activities

        found = {}
        if ProfilerActivity.CUDA not in supported_activities():
            return found
        for count in DECODE:
            ours, copies, steps = {}, {}, 40
            with profile(activities=[ProfilerActivity.CUDA]) as profiler:
                self.drive(self.prompts(count, 128), [steps] * count)
            for event in profiler.events():
                kind = (
                    copies
                    if event.name.startswith("Memcpy")
                    else ours
                    if "routecap" in event.name
                    else None
                )
                if kind is not None:
                    kind.setdefault(event.name, []).append(event.device_time)
            found[f"decode {count}"] = {
                "kernels": {
                    name: [round(statistics.median(times), 2), round(len(times) / steps, 2)]
                    for name, times in ours.items()
                },
                "copies": {
                    name: [round(sum(times) / steps, 2), round(len(times) / steps, 2)]
                    for name, times in copies.items()
                },
            }
        return found

    def memory(self) -> dict[str, object]:
        import torch

        found = {
            "GPU, GiB": round(torch.cuda.memory_allocated() / 2**30, 3),
            "KV blocks": self.eng.vllm_config.cache_config.num_gpu_blocks,
            "graphs": str(self.eng.vllm_config.compilation_config.cudagraph_mode),
            "async": self.eng.vllm_config.scheduler_config.async_scheduling,
        }
        if not self.engine.ON_CPU:
            free, total = torch.cuda.mem_get_info()
            found["GPU, by all processes, MiB"] = (total - free) >> 20
        if self.capture:
            import routecap
            from routecap_vllm import routed_experts_capturer

            capturer = routed_experts_capturer.get_global_experts_capturer()
            stats = capturer.capturer.stats()
            needed = routecap.memory(experts=capturer.capturer.experts, **capturer._settings)
            found |= {
                "device, as config_memory says, MiB": round(needed.device_bytes / 2**20, 1),
                "its sink, MiB": round(capturer.device_cache.get_buffer_size_bytes() / 2**20, 1),
                "steps": stats.steps_issued,
                "steps lost": stats.steps_lost,
                "rows missing": stats.rows_missing,
                "budget in use, bytes, most": stats.bytes_peak,
                "layers recorded at once": capturer.forward.held.recorded,
            }
        return found


def serve(arguments: argparse.Namespace) -> None:
    """Take names of measurements, a line each, and answer each with a line of JSON."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the engine prints is no answer
    measured = Measured(arguments)
    print(json.dumps("imported"), file=answers, flush=True)
    for line in sys.stdin:
        name, begun = line.strip(), time.perf_counter()
        answer: object = None
        try:
            if name == "make":
                measured.make(arguments.model, arguments.asynchronous, arguments.memory)
                answer = round(time.perf_counter() - begun, 1)
            elif name in ("thread", "device", "memory"):
                answer = getattr(measured, name)()
            else:
                answer = measured.measure(name)
        except Exception:
            traceback.print_exc()
        print(json.dumps(answer), file=answers, flush=True)
    os._exit(0)  # an engine takes its time to end


# ---- The process that asks


class Engine:
    """A process that has imported all, or will have."""

    def __init__(self, kind: str, mode: str, number: int, arguments: argparse.Namespace) -> None:
        self.kind, self.mode = kind, mode
        self.name = f"{mode} {kind} {number}"
        self._imported = False
        command = [sys.executable, __file__, "--serve", "--memory", str(arguments.memory)]
        command += [
            "--model",
            arguments.model,
            "--steps",
            str(arguments.steps),
            "--mixed",
            str(arguments.mixed),
        ]
        command += ["--samples", arguments.samples]
        command += ["--prefix"] * arguments.prefix
        command += ["--kind", kind] + ["--asynchronous"] * (mode == "async")
        self.number = number
        self.log = Path(arguments.logs) / f"{self.name.replace(' ', '_')}.log"
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )

    def imported(self) -> None:
        """Wait until it has imported all: from then on it waits, and takes no time of others."""
        if not self._imported:
            self._imported = self.answer("imports") == "imported"

    def ask(self, name: str) -> object:
        self.begin(name)
        return self.answer(name)

    def begin(self, name: str) -> None:
        """What is asked, whose answer is to be taken."""
        self.imported()
        self.process.stdin.write(f"{name}\n")
        self.process.stdin.flush()

    def answer(self, name: str) -> object:
        line = self.process.stdout.readline()
        answer = json.loads(line) if line else None
        if answer is None:
            raise RuntimeError(f"{self.name}, {name}: {self.log.read_text()[-3000:]}")
        return answer

    def end(self) -> None:
        self.process.stdin.close()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def measure(
    engine: Engine, ahead: list[Engine], first: bool, arguments: argparse.Namespace
) -> dict[str, object]:
    found: dict[str, object] = {"name": engine.name, "mode": engine.mode, "kind": engine.kind}
    found["start, s"] = engine.ask("make")
    for other in ahead:
        other.imported()
    samples = arguments.samples.split(",")
    times = {name: [] for name in samples}
    for turn in range(arguments.rounds):
        for name in samples:
            times[name].append(round(engine.ask(name), 4))
    found["ms"] = times
    found["memory"] = engine.ask("memory")
    print(
        engine.name,
        json.dumps({key: found[key] for key in ("start, s", "ms", "memory")}),
        flush=True,
    )
    if first:
        for what in ("device", "thread") if engine.kind == "on" else ("device",):
            found[what] = engine.ask(what)
            print(f"  {what}: {json.dumps(found[what])}", flush=True)
    return found


def measure_together(
    engines: list[Engine], ahead: list[Engine], first: bool, arguments: argparse.Namespace
) -> list[dict[str, object]]:
    """One of each kind, in turns."""
    took: dict[str, object] = {}
    compiler = engines[engines[0].number % len(engines)]  # of each kind in turns
    for made in ([compiler], [one for one in engines if one is not compiler]):
        for engine in made:
            engine.begin("make")
        took |= {engine.name: engine.answer("make") for engine in made}
    found: list[dict[str, object]] = [
        {"name": one.name, "mode": one.mode, "kind": one.kind, "start, s": took[one.name]}
        for one in engines
    ]
    for other in ahead:
        other.imported()
    samples = arguments.samples.split(",")
    for each in found:
        each["ms"] = {name: [] for name in samples}
    for turn in range(arguments.rounds + 1):
        line = {}
        for name in samples:
            pairs = list(zip(engines, found, strict=True))
            for engine, each in reversed(pairs) if turn % 2 else pairs:
                ms = round(engine.ask(name), 4)
                line[f"{name} {engine.kind} {engine.number}"] = ms
                if turn:
                    each["ms"][name].append(ms)
        print(f"{engines[0].mode}, turn {turn}: {json.dumps(line)}", flush=True)
    for engine, each in zip(engines, found, strict=True):
        each["memory"] = engine.ask("memory")
        print(engine.name, json.dumps(each["memory"]), each["start, s"], flush=True)
        if first:
            for what in ("device", "thread") if engine.kind == "on" else ("device",):
                each[what] = engine.ask(what)
                print(f"  {what}: {json.dumps(each[what])}", flush=True)
    for row in compare_turns(found):
        print(json.dumps(row), flush=True)
    return found


def compare_turns(results: list[dict[str, object]]) -> list[dict[str, object]]:
    """Of engines that were asked in turns, an engine of each kind after another, for each mode and
    sample: the median over the turns of how much the others differ from the one without capture."""
    rows = []
    for mode in dict.fromkeys(result["mode"] for result in results):
        of_mode = [result for result in results if result["mode"] == mode]
        for name in of_mode[0]["ms"]:
            off = [result["ms"][name] for result in of_mode if result["kind"] == "off"]
            row = {"mode": mode, "sample": name}
            row["off, ms"] = round(statistics.median(ms for turns in off for ms in turns), 3)
            for kind in KINDS[1:]:
                others = [result["ms"][name] for result in of_mode if result["kind"] == kind]
                if not others:
                    continue
                differences = [
                    [100 * (other / one - 1) for one, other in zip(*turns, strict=True)]
                    for turns in zip(off, others, strict=True)
                ]
                row[f"{kind}, %"] = round(statistics.median(sum(differences, [])), 2)
                row[f"{kind}, % of each"] = [
                    round(statistics.median(each), 2) for each in differences
                ]
            itself = [
                abs(100 * (later / one - 1))
                for turns in off
                for one, later in zip(turns, turns[1:], strict=False)
            ]
            row["noise, %"] = round(statistics.median(itself), 2) if itself else None
            medians = [statistics.median(turns) for turns in off]
            if len(medians) > 1:
                apart = 100 * (max(medians) / min(medians) - 1)
                row["those off are apart, %"] = round(apart, 2)
            rows.append(row)
    return rows


def compare(results: list[dict[str, object]]) -> list[dict[str, object]]:
    """For each mode and sample: off, by how much the others differ, how far those off are apart."""
    rows = []
    kinds = [kind for kind in KINDS if any(result["kind"] == kind for result in results)]
    for mode in dict.fromkeys(result["mode"] for result in results):
        for name in dict.fromkeys(name for result in results for name in result["ms"]):
            medians = {
                kind: [
                    statistics.median(result["ms"][name])
                    for result in results
                    if result["mode"] == mode and result["kind"] == kind and result["ms"].get(name)
                ]
                for kind in kinds
            }
            if not all(medians.values()):
                continue
            off = statistics.median(medians["off"])
            spread = 100 * (max(medians["off"]) - min(medians["off"])) / off
            row = {"mode": mode, "sample": name, "off, ms": round(off, 3)}
            for kind in kinds[1:]:
                other = statistics.median(medians[kind])
                row[f"{kind}, ms"] = round(other, 3)
                row[f"{kind}, %"] = round(100 * (other / off - 1), 2)
            row["noise, %"] = round(spread, 2) if len(medians["off"]) > 1 else None
            row["engines"] = [len(medians[kind]) for kind in kinds]
            rows.append(row)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--engines", type=int, default=3, help="of each kind and mode")
    parser.add_argument("--modes", default="async,sync")
    parser.add_argument("--rounds", type=int, default=3, help="of measurements in an engine")
    parser.add_argument("--steps", type=int, default=100, help="of a decode")
    parser.add_argument("--mixed", type=int, default=384, help="requests of the mixed batch")
    parser.add_argument("--budget", type=float, default=3600, help="seconds")
    parser.add_argument("--memory", type=int, default=24, help="GiB for the KV cache")
    parser.add_argument("--model", default="large")
    parser.add_argument("--samples", default=",".join(SAMPLES))
    parser.add_argument("--logs", default="vllm_engine_logs")
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--no-more", dest="more", action="store_false", help="times of steps alone")
    parser.add_argument("--own", action="store_true", help="vLLM's own capture too")
    parser.add_argument("--together", action="store_true", help="a process of each kind in turns")
    parser.add_argument("--prefix", action="store_true", help="with the prefix cache")
    parser.add_argument("--kind", choices=KINDS, default="off", help=argparse.SUPPRESS)
    for name in ("serve", "asynchronous"):
        parser.add_argument(f"--{name}", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        serve(arguments)
    sys.path.append(str(ENGINE.parents[3] / "lab/bench"))
    from machine import save

    Path(arguments.logs).mkdir(parents=True, exist_ok=True)
    until, results = time.monotonic() + arguments.budget, []
    kinds = KINDS if arguments.own else KINDS[:2]
    groups = [
        [(kind, mode, number) for kind in kinds]
        for mode in arguments.modes.split(",")
        for number in range(arguments.engines)
    ]
    if not arguments.together:
        groups = [[one] for group in groups for one in group]
    size = len(groups[0])  # of what is made while another is measured: two, or a group
    coming = [one for group in groups for one in group]
    ahead = [Engine(*one, arguments) for one in coming[: max(2, size)]]
    took = 0.0
    for index, _ in enumerate(groups):
        if time.monotonic() + took > until:
            print(f"no time for {len(groups) - index} more", flush=True)
            break
        begun = time.monotonic()
        engines, ahead = ahead[:size], ahead[size:]
        started = (index + 1) * size + len(ahead)
        ahead += [Engine(*one, arguments) for one in coming[started : started + size]]
        known = {(result["mode"], result["kind"]) for result in results}
        first = any((engine.mode, engine.kind) not in known for engine in engines)
        try:
            if arguments.together:
                results += measure_together(engines, ahead, first and arguments.more, arguments)
            else:
                results.append(measure(engines[0], ahead, first and arguments.more, arguments))
        except RuntimeError as error:
            print(f"FAILED {error}", flush=True)
        for engine in engines:
            engine.end()
        if not first:
            took = max(took, time.monotonic() - begun)
    for engine in ahead:
        engine.end()
    rows = (compare_turns if arguments.together else compare)(results)
    for row in rows:
        print(json.dumps(row), flush=True)
    if arguments.json:
        title = f"vLLM {version('vllm')} with routecap in its own step, off beside on"
        save(arguments.json, title=title, results=rows, engines=results)


if __name__ == "__main__":
    main()
