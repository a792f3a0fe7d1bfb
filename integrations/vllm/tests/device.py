"""The drop-in module on a GPU, driven as vLLM's runner drives it: bind, graphs of several batch
sizes, replay, issue, finalize, extract, split, free.

    python3 integrations/vllm/tests/device.py [cuda]

with the package, torch with CUDA and the library. Every id of every request is compared with the
engine's own record. Ends with one line of counts and exit status 0 if nothing failed. With "cpu" it
runs the same without graphs, to check the program itself.
"""

from __future__ import annotations

import random
import sys
import traceback
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from engine import Engine, Model, Router, RouterThatIsOpaque, RouterWithoutCallback

from routecap_vllm import routed_experts_capturer as module
from routecap_vllm.routed_experts_capturer import Options

DEVICE = sys.argv[1] if len(sys.argv) > 1 else "cuda"
ON_GPU = DEVICE != "cpu"
GRAPHS = (1, 2, 4, 8, 16, 32, 64) if ON_GPU else ()

checks: list[tuple[str, Callable[[], Any]]] = []
not_run: list[str] = []
ids_compared = 0


def check(function: Callable[[], Any]) -> Callable[[], Any]:
    """The docstring names what holds."""
    checks.append((function.__doc__ or function.__name__, function))
    return function


def check_on_gpu(function: Callable[[], Any]) -> Callable[[], Any]:
    """The same for what means nothing without one."""
    if ON_GPU:
        return check(function)
    not_run.append(function.__doc__ or function.__name__)
    return function


def start(model: Model, options: Options | None = None, **engine: Any) -> Engine:
    module.set_options(options)
    sizes = {"max_tokens": 256, "max_model_len": 1024} | engine
    module.init_routed_experts_capturer_with_shared_cache(
        True, model.model_config, 0, sizes["max_tokens"], sizes["max_model_len"], DEVICE
    )
    module.bind_routing_capture_to_model(model)
    return Engine(model, graph_sizes=GRAPHS, **sizes)


def add_mixed(engine: Engine, count: int, seed: int, longest: int = 300) -> None:
    draw = random.Random(seed)
    for i in range(count):
        prompt = [draw.randrange(3, 1000) for _ in range(draw.randint(1, longest))]
        cached = draw.choice([0, 0, 0, len(prompt) // 2])
        engine.add(
            f"{seed}-{i}",
            prompt,
            cached=cached,
            max_tokens=draw.randint(1, 60),
            stop_token_ids=[5, 6],
        )


def finish(engine: Engine) -> None:
    """Run until nothing is left, and see that graphs were replayed and nothing was lost."""
    global ids_compared
    engine.run()
    ids_compared += engine.checked["ids"]
    stats = module.get_global_experts_capturer().capturer.stats()
    assert stats.steps_lost == 0 and stats.cells_unwritten == 0 and stats.cells_out_of_range == 0, (
        stats
    )
    assert engine.checked["replays"] > 0 or not ON_GPU, engine.checked
    print(f"        {engine.checked}")


def replicas() -> torch.Tensor:
    return torch.randperm(128, generator=torch.Generator().manual_seed(1)).view(64, 2).to(DEVICE)


MODELS: dict[str, dict[str, Any]] = {
    "int32 ids by callback": {"dtype": torch.int32},
    "int64 ids by callback": {"dtype": torch.int64},
    "int16 ids by callback": {"dtype": torch.int16},
    "the bound int16 buffer": {"internal": True},
    "a router without callback": {"router": RouterWithoutCallback},
    "fused shared experts": {"shared": 2},
    "replicas and a callback": {"replicas": None},
    "replicas and an opaque router": {"router": RouterThatIsOpaque, "replicas": None},
    "512 experts, k of 10": {"experts": 512, "k": 10, "layers": 8},
    "k of 1": {"k": 1, "experts": 16},
    "58 layers, 256 experts": {"layers": 61, "dense": 3, "k": 8, "experts": 256},
}
for _name, _model in MODELS.items():

    def _run(model: dict[str, Any] = _model) -> None:
        replicated = {"replicas": replicas()} if "replicas" in model else {}
        engine = start(Model(device=DEVICE, **(model | replicated)))
        add_mixed(engine, 24, 1)
        finish(engine)

    _run.__doc__ = f"every id is right with {_name}"
    check(_run)


def disturbed(**engine_options: Any) -> None:
    kept = engine_options.get("keep_preempted", False)
    engine = start(
        Model(device=DEVICE),
        Options(preempted="keep" if kept else "drop"),
        seed=3,
        **engine_options,
    )
    draw = random.Random(3)
    add_mixed(engine, 40, 3)
    for step in range(100):
        if not engine.requests:
            break
        if step % 5 == 4:
            engine.set_version(step)
            engine.preempt(draw.choice(list(engine.requests)))
        if step % 11 == 10:
            engine.abort(draw.choice(list(engine.requests)))
        engine.step()
    finish(engine)


@check
def _() -> None:
    """preemptions and aborts leave every row right"""
    disturbed()


@check
def _() -> None:
    """drafts, preemptions and aborts leave every row right"""
    disturbed(drafts=3)


@check
def _() -> None:
    """asynchronous scheduling with drafts leaves every row right"""
    disturbed(drafts=3, asynchronous=True)


@check
def _() -> None:
    """rows of a first life are kept under asynchronous scheduling with drafts"""
    disturbed(drafts=2, asynchronous=True, keep_preempted=True)


@check
def _() -> None:
    """results that are looked at later are the same"""
    engine = start(Model(device=DEVICE), Options(lazy=True))
    add_mixed(engine, 24, 5)
    finish(engine)


@check_on_gpu
def _() -> None:
    """streams of the engine's own are followed"""
    with torch.cuda.stream(torch.cuda.Stream()):
        engine = start(Model(device=DEVICE, internal=True))
        add_mixed(engine, 12, 6)
        finish(engine)


@check
def _() -> None:
    """two models in one process do not disturb one another"""
    engines = [start(Model(device=DEVICE)), None]
    capturers = [module.get_global_experts_capturer()]
    engines[1] = start(Model(device=DEVICE, layers=9, dense=1, k=2, experts=32))
    capturers.append(module.get_global_experts_capturer())
    for engine in engines:
        add_mixed(engine, 12, 7)
    while any(engine.requests for engine in engines):
        for engine, capturer in zip(engines, capturers):
            with module.use_capturer(capturer):
                engine.step()
    for engine, capturer in zip(engines, capturers):
        with module.use_capturer(capturer):
            finish(engine)


@check
def _() -> None:
    """a layer that a graph skips is missing, and the others are right"""
    global ids_compared
    model = Model(device=DEVICE)
    model.moe[3].skip = True
    engine = start(model)
    engine.check = lambda request, experts, rows=None: None
    engine.add("a", list(range(10, 60)), max_tokens=8)
    engine.run()
    tokens = list(range(10, 60))
    got, want = engine.arrays["a"][:50], model.expected(tokens)
    assert (got[:, 1] == -1).all() and (got[:, [0, 2, 3]] == want[:, [0, 2, 3]]).all()
    ids_compared += got.size
    assert module.get_global_experts_capturer().silent_layers() == [3]


@check_on_gpu
def _() -> None:
    """issue, finalize and lazy extraction return while the device is still at work"""
    global ids_compared
    model = Model(device=DEVICE)
    engine = start(model, Options(lazy=True))
    engine.add("warm", list(range(10, 20)), max_tokens=1)
    engine.run()
    capturer = module.get_global_experts_capturer()
    for rows in (1, 64, 255, 256):
        tokens = torch.arange(10, 10 + rows, device=DEVICE)
        positions = torch.arange(rows, device=DEVICE)
        torch.cuda.synchronize()
        torch.cuda._sleep(400_000_000)
        held = torch.cuda.Event()
        held.record()
        capturer.finalize_pending_copy()
        model(tokens, positions)
        name = f"r{rows}"
        module.issue_routing_d2h_copy([name], {name: rows}, positions, engine.positions_cpu)
        request = engine.add(name, list(range(10, 10 + rows)), max_tokens=1)
        request.output_token_ids = [5]
        result = module.extract_routed_experts_for_current_batch(
            [name], engine.requests, {name: 0}, np.array([rows + 1]), 1024
        )
        module.free_routing_buffers({name})
        assert not held.query(), f"{rows} rows: the host has waited for the device"
        assert (np.asarray(result[name]) == model.expected(range(10, 10 + rows))).all()
        assert held.query()
        ids_compared += result[name].size
        engine.abort(name)


@check
def _() -> None:
    """positions and buffers may be overwritten as soon as the stream has come by"""
    global ids_compared
    model = Model(device=DEVICE, internal=True)
    engine = start(model)
    for step in range(200):
        module.get_global_experts_capturer().finalize_pending_copy()
        engine.input_ids[:64] = torch.arange(64) + step
        engine.positions[:64] = step
        if GRAPHS:
            engine.graphs[64].replay()
        else:
            model(engine.input_ids[:64], engine.positions[:64])
        names = [f"{i}" for i in range(64)]
        module.issue_routing_d2h_copy(
            names, dict.fromkeys(names, 1), engine.positions, engine.positions_cpu
        )
        engine.positions.fill_(-1)
        engine.input_ids.fill_(0)
    for i in range(64):
        got = module.get_global_experts_capturer().get_routed_experts(f"{i}")
        assert (got == model.expected(np.arange(200) + i)).all()
        ids_compared += got.size


@check
def _() -> None:
    """positions that the host knows serve as well, and negative ones belong to nobody"""
    global ids_compared
    model = Model(device=DEVICE)
    start(model)
    capturer = module.get_global_experts_capturer()
    for turn, issue in enumerate(
        (
            capturer.issue,
            lambda names, counts, known: capturer.sync_fwd_experts_buffer_DtoH(known, counts),
        )
    ):
        known = torch.tensor([0, 1, 2, -1, 0, 1])
        model(torch.arange(10, 16, device=DEVICE), known.to(DEVICE))
        issue([f"a{turn}", f"b{turn}"], {f"a{turn}": 3, f"b{turn}": 3}, known)
        known.fill_(99)
        for name, tokens in ((f"a{turn}", [10, 11, 12]), (f"b{turn}", [14, 15])):
            got = capturer.get_routed_experts(name)
            assert (got == model.expected(tokens)).all()
            ids_compared += got.size


@check_on_gpu
def _() -> None:
    """a compiled model is captured"""
    global ids_compared
    model = Model(device=DEVICE, dtype=torch.int64)
    start(model)
    compiled = torch.compile(model, fullgraph=True, dynamic=False)
    for turn, rows in enumerate((5, 33, 5)):
        tokens, positions = (
            torch.arange(turn, turn + rows, device=DEVICE),
            torch.arange(rows, device=DEVICE),
        )
        compiled(tokens, positions)
        module.issue_routing_d2h_copy([str(turn)], {str(turn): rows}, positions, positions)
        got = module.get_global_experts_capturer().get_routed_experts(str(turn))
        assert (got == model.expected(range(turn, turn + rows))).all()
        ids_compared += got.size


def main() -> int:
    failed = 0
    for name, function in checks:
        try:
            function()
            print(f"passed  {name}", flush=True)
        except Exception:
            failed += 1
            print(f"FAILED  {name}\n{traceback.format_exc()}", flush=True)
        module.set_options(None)
    where = torch.cuda.get_device_name() if ON_GPU else "the host: nothing here ran on a GPU"
    for name in not_run:
        print(f"not run {name}")
    print(f"{ids_compared} ids compared on {where}")
    print(f"{len(checks) - failed} checks passed, {failed} failed")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
