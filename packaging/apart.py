"""What a user of some of the project's Python packages has, and does: their plugins, every module of
them, and a program with each.

usage: apart.py DISTRIBUTION..., in the project's root: all of the project that should be installed
"""

import importlib
import logging
import os
import pkgutil
import runpy
import subprocess
import sys
import tempfile
from importlib.metadata import distributions, entry_points
from pathlib import Path

PLUGINS = {
    "routecap-tools": ("console_scripts", "routecap"),
    "routecap-vllm": ("vllm.general_plugins", "routecap"),
    "routecap-sglang": ("sglang.srt.plugins", "routecap"),
    "routecap-replay": ("verl.plugins", "routecap"),
}
# What a user adds who wants a module that needs it. Of the project's own packages: an extra.
ADDED = {"torch", "fsspec", "ray", "mooncake", "pyarrow", "matplotlib", "rich", "prometheus_client"}
ADDED |= {"vllm", "sglang", "megatron", "nemo_automodel", "torchtitan", "verl", "slime", "miles"}
EXTRAS = {"routecap_replay.transformers": "routecap_transformers"}


def expect_installed(names: set[str]) -> None:
    """These distributions of the project, and their entry points, and no others."""
    found = {each.name for each in distributions() if each.name.startswith("routecap")}
    assert found == names, found
    points = {
        (its.name, each.group, each.name)
        for its in distributions()
        for each in its.entry_points
        if each.value.startswith("routecap")
    }
    assert points == {(name, *PLUGINS[name]) for name in names & PLUGINS.keys()}, points


def expect_modules(names: set[str]) -> None:
    """Every module can be imported, unless it needs what a user adds."""
    for package in sorted(each.replace("-", "_") for each in names):
        folder = importlib.import_module(package).__path__
        for _, name, _ in pkgutil.walk_packages(folder, f"{package}."):
            if name.endswith(("__main__", "._server")):
                continue  # programs
            try:
                importlib.import_module(name)
            except ImportError as error:  # of the module that is missing, or one that tells of it
                missing = (error.name or getattr(error.__context__, "name", "")).partition(".")[0]
                extra = EXTRAS.get(name) == missing and missing.replace("_", "-") not in names
                assert missing in ADDED or extra, f"{name} needs {missing}, which is not asked for"


def library() -> None:
    runpy.run_path("bindings/python/examples/worker_loop.py", run_name="__main__")


def routing(seed: int = 1):
    """Three layers of eight experts, two of which 16 tokens were sent to."""
    import numpy as np
    import routecap

    chosen = np.random.default_rng(seed).random((16, 3, 8)).argsort(axis=-1)[..., :2]
    return routecap.Routing.from_arrays(chosen.astype(np.uint8), experts=8)


def tools() -> None:
    import routecap

    with tempfile.TemporaryDirectory() as folder:
        file = f"{folder}/one.routecap"
        routecap.save(file, {"one": routing()})
        for command in (["info"], ["show", file], ["compare", file, file]):
            subprocess.run(["routecap", *command], check=True)


def called(group: str, asked: str) -> list[str]:
    """Call a plugin as its engine does, unasked and asked; the errors that it logs then."""
    (point,) = entry_points(group=group)
    plugin, logged = point.load(), []
    handler = logging.Handler()
    handler.emit = lambda record: logged.append(record.getMessage())
    logging.getLogger().addHandler(handler)
    plugin()
    assert not logged, logged
    os.environ[asked] = "1"
    plugin()
    del os.environ[asked]
    logging.getLogger().removeHandler(handler)
    return logged


def vllm() -> None:
    """A client reads what a server wrote; the plugin says that there is no vLLM."""
    import routecap_vllm

    (logged,) = called("vllm.general_plugins", "ROUTECAP_VLLM")
    assert "routecap supports vLLM" in logged, logged
    data = routing().serialize()
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "rows").write_bytes(data)
        answer = {"file": f"{folder}/rows", "offset": 0, "bytes": len(data), "format": "routecap"}
        assert (routecap_vllm.read(answer).ids() == routing().ids()).all()


def sglang() -> None:
    """The settings reach processes that the engine starts; the plugin says that there is no SGLang."""
    import routecap_sglang

    (logged,) = called("sglang.srt.plugins", "ROUTECAP_SGLANG")
    assert "routecap knows SGLang" in logged, logged
    environment: dict[str, str] = {}
    options = routecap_sglang.Options(callback="answers:show")
    options.to_environment(environment)
    assert routecap_sglang.Options.from_environment(environment) == options


def transformers() -> None:
    example = "integrations/transformers/examples/capture.py"
    subprocess.run([sys.executable, example, "tests/model/weights", "One.", "Another."], check=True)


def replay() -> None:
    """A model of Megatron-Core takes the rows that it is given; with the other package, one of
    transformers does.
    """
    sys.path[:0] = ["integrations/replay/examples", "integrations/replay/tests"]
    import megatron_on_cpu

    megatron_on_cpu.start()
    import routecap_replay.megatron
    import small

    model, batch = small.model_of(small.config_of()), small.MicroBatch(1)
    taken = routecap_replay.megatron.attach(model)
    with taken(batch.rows):
        batch.through(model).sum().backward()
    assert [each.replayed for each in taken.report().layers] == [small.LENGTH] * 3, taken.report()
    megatron_on_cpu.stop()


def both() -> None:
    import routecap_replay.transformers
    import routecap_transformers
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained("tests/model/weights", dtype=torch.float32)
    with routecap_transformers.attach(model) as capture:
        out = model.generate(torch.tensor([list(b"One.")]), max_new_tokens=8, do_sample=False)
        routings = capture.take()
    taken = routecap_replay.transformers.attach(model)
    with taken(routings):
        model(out, labels=out).loss.backward()
    assert {each.replayed for each in taken.report().layers} == {out.shape[1] - 1}, taken.report()


PROGRAMS = {
    "routecap": library,
    "routecap-tools": tools,
    "routecap-vllm": vllm,
    "routecap-sglang": sglang,
    "routecap-transformers": transformers,
    "routecap-replay": replay,
}

if __name__ == "__main__":
    installed = set(sys.argv[1:])
    expect_installed(installed)
    for name in sorted(installed):
        PROGRAMS[name]()
    if {"routecap-replay", "routecap-transformers"} <= installed:
        both()
    expect_modules(installed)
