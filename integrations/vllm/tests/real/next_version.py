"""What routecap does in a release of vLLM that nobody has checked: the installed 0.26 under the
number of a patch to it, and with changes that a new version may bring.

    python3 next_version.py FOLDER

    same       without the setting refused, and all places are named as fitting. With it the rows
               are those of the version that is known, and everything says that it is not checked;
               in the program's process, and in one of the engine's own
    signature  a method that routecap hooks has one more parameter: refused, and named
    shifted    all places fit, and a router tells the ids of another row: conform finds it when the
               engine starts, and no request gets rows

FOLDER is for what it makes. Prints a line for each, and the number of checks.
"""

import io
import logging
import os
import subprocess
import sys
from pathlib import Path

NUMBER = "0.26.1"
NOTE = f"not checked with vLLM {NUMBER}"
ROUTER = "model_executor/layers/fused_moe/router/base_router.py"
CHANGES = {  # of a file of vLLM: what it has, and what it has instead
    "same": {},
    "signature": {
        "v1/worker/worker_base.py": ("def init_worker(self, ", "def init_worker(self, rank, ")
    },
    "shifted": {ROUTER: ("self.capture_fn(topk_ids)", "self.capture_fn(topk_ids.roll(1, 0))")},
}
if "--run" in sys.argv:  # in the engine's own process too, which imports this
    import engine  # vllm before routecap, as in a user's script
    from vllm.model_executor.model_loader.dummy_loader import DummyModelLoader

    engine.cpu.in_each_process()
    DummyModelLoader.load_weights = lambda self, model, config: engine.draw_weights(model, 1)

PROMPTS = [[(7 * i * i + 3 * n) % 2000 + 20 for i in range(33)] for n in range(4)]


def make(folder, change):
    """A vLLM with another number and a change, in links to the installed one."""
    import importlib.util

    own = Path(importlib.util.find_spec("vllm").submodule_search_locations[0])
    info = folder / f"vllm-{NUMBER}.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {NUMBER}+cpu\n")
    changed = {Path(file): texts for file, texts in CHANGES[change].items()}
    link(own, folder / "vllm", Path(), changed)


def link(own, made, at, changed):
    """Links to what is in a folder; files that change, and the folders on the way, are copies."""
    made.mkdir(exist_ok=True)
    for each in own.iterdir():
        here, file = made / each.name, at / each.name
        if file in changed:
            before, after = changed[file]
            text = each.read_text()
            assert text.count(before) == 1, f"{file} has {before!r} {text.count(before)} times"
            here.unlink(missing_ok=True)
            here.write_text(text.replace(before, after))
        elif any(file in of.parents for of in changed):
            link(each, here, file, changed)
        elif not here.is_symlink():
            here.symlink_to(each)


# ---- In the other vLLM


def run(out):
    """What an engine of this process, or its own, answers; what is logged, and what was replaced."""
    text = io.StringIO()
    handler = logging.StreamHandler(text)
    logging.getLogger("vllm.routecap").addHandler(handler)
    logging.getLogger("vllm.routecap").setLevel(logging.INFO)
    import routecap_vllm
    from routecap_vllm import _versions, _wrap

    replaced, replace = set(), _wrap.replace

    def noting(owner, name, function, replacement):
        if isinstance(owner, type) and owner.__module__.startswith("vllm."):
            replaced.add(f"{owner.__module__} {owner.__qualname__}.{name}(")
        replace(owner, name, function, replacement)

    assert "routecap_vllm._hooks" not in sys.modules
    _wrap.replace = noting
    found = _versions.find()
    try:
        routecap_vllm.install()
    except RuntimeError as error:
        print("REFUSED", error)
        return
    import numpy as np

    llm = engine.LLM(
        **engine.options_of(
            "tiny", True, eager=True, max_model_len=512, max_num_batched_tokens=64, max_num_seqs=16
        )
        | {"enable_prefix_caching": True}
    )
    prompts = [{"prompt_token_ids": each} for each in PROMPTS]
    outputs = llm.generate(prompts, engine.sampling(12), use_tqdm=False)
    routes = engine.layers_that_route(llm)
    rows = [engine.given(each, routes) for each in outputs]
    print("ROWS", [None if each is None else each[0].shape for each in rows])
    if rows[0] is not None:
        np.savez(out, *(each[0] for each in rows))
    marks = {getattr(each.outputs[0], "routed_experts_unchecked", "") for each in outputs}
    marks |= {getattr(each, "routed_experts_unchecked", "") for each in outputs}
    print("MARKS", marks)
    print("LOG", text.getvalue())
    from importlib import import_module

    places = look_up(import_module(f"routecap_vllm.{found.module}").PLACES)
    if not found.checked:
        places |= look_up(import_module("routecap_vllm._unchecked").PLACES)
    # These are replaced in whatever class of workers there is, if it has them.
    asked = ("update_weights(", "reload_weights(")
    print(
        "NOT IN THE TABLE", sorted(each for each in replaced - places if not each.endswith(asked))
    )
    print("REPLACED", len(replaced))


def look_up(table):
    """The functions of a table, as `run` notes those that are replaced."""
    found, module = set(), ""
    for line in table.splitlines():
        if not line.startswith(" "):
            module = line
        elif "(" in line and not line.startswith(" " * 8):
            found.add(f"{module} {line.strip().split('(')[0]}(")
    return found


# ---- Here


passed = failed = 0


def expect(right, what, text):
    global passed, failed
    passed, failed = passed + bool(right), failed + (not right)
    if not right:
        print("FAILED", what, "\n", text[-6000:])


def child(folder, way, path="", **environment):
    out = folder / f"{way}.npz"
    out.unlink(missing_ok=True)
    environment = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_PLUGINS": ""} | environment
    search = os.pathsep.join(filter(None, (str(path), os.environ["PYTHONPATH"])))
    clean = {name: v for name, v in os.environ.items() if name != "ROUTECAP_VLLM"}
    result = subprocess.run(
        [sys.executable, __file__, "--run", str(out)],
        env=clean | {"PYTHONPATH": search} | environment,
        capture_output=True,
        text=True,
        timeout=400,
    )
    return result.stdout + result.stderr, out


def main():
    import numpy as np

    folder = Path(sys.argv[1])
    for change in CHANGES:
        make(folder / change, change)
    setting = {"ROUTECAP_VLLM_UNCHECKED": "1"}

    text, known = child(folder, "known")
    expect(known.exists() and "MARKS {''}" in text, "known: nothing is marked", text)
    expect("NOT IN THE TABLE []" in text, "known: all that is replaced is in the table", text)

    text, out = child(folder, "refused", folder / "same")
    expect("REFUSED" in text and not out.exists(), "same, without the setting: refused", text)
    expect("These fit:" in text and "do not fit" not in text, "same: all fit, and are named", text)

    ways = {"in this process": {}, "in its own": {"VLLM_ENABLE_V1_MULTIPROCESSING": "1"}}
    ways["in its own"] |= {"VLLM_WORKER_MULTIPROC_METHOD": "spawn", "VLLM_PLUGINS": "routecap"}
    for way, environment in ways.items():
        text, out = child(folder, f"same {way}", folder / "same", **setting, **environment)
        expect(out.exists(), f"same, {way}: there are rows", text)
        if out.exists():
            one, other = np.load(known), np.load(out)
            same = all(np.array_equal(one[each], other[each]) for each in one.files)
            expect(same and len(one.files) == len(PROMPTS), f"same, {way}: they are right", text)
        expect(f"MARKS {{'{NOTE}+cpu'}}" in text, f"same, {way}: outputs say so", text)
        expect("NOT IN THE TABLE []" in text, f"same, {way}: the table has all", text)
        expect("It passed conform" in text, f"same, {way}: the log says what passed", text)
        expect(text.count(NOTE) >= 2, f"same, {way}: the log says so", text)
        print(f"same, {way}: looked at", flush=True)

    for environment in ({}, setting):
        text, out = child(folder, "signature", folder / "signature", **environment)
        bad = text.partition("These do not fit:")[2].partition("These fit:")[0]
        expect("REFUSED" in text and not out.exists(), "signature: refused", text)
        expect("init_worker" in bad and "rank, all_kwargs" in bad, "signature: named", text)
        expect(len(bad.strip().splitlines()) == 1, "signature: and nothing else", text)
    print("signature: looked at", flush=True)

    text, out = child(folder, "shifted", folder / "shifted", **setting)
    expect("ROWS [None, None, None, None]" in text, "shifted: no rows", text)
    expect("capture stays off" in text, "shifted: the log says so", text)
    expect("token fails" in text, "shifted: the log says what was found", text)
    print("shifted: looked at", flush=True)
    print(f"{passed} checks passed, {failed} failed")
    return failed > 0


if __name__ == "__main__":
    if sys.argv[1] == "--run":
        run(Path(sys.argv[2]))
    else:
        sys.exit(main())
