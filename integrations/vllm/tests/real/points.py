"""What a user of vLLM does with the plugin: nothing at all beyond an environment variable.

    python3 points.py FOLDER

Requests of all kinds in an engine in this process, in one of its own that was forked, and in one
that was spawned: each gets its rows, and the same in all three. Not asked for, the plugin does
nothing. FOLDER is for what they write.
"""

import os
import pickle
import subprocess
import sys
from pathlib import Path

import engine  # vllm before routecap, as in a user's script
import numpy as np
import words

if engine.ON_CPU:
    engine.cpu.in_each_process()  # in one that is spawned too, which imports this

PROMPT = list(range(100, 133))
ROUTES = [0, 2, 3]


def run(folder, out, asynchronous):
    """Everything that one engine answers, into a file."""
    options = engine.options_of(
        folder,
        True,
        eager=True,
        async_scheduling=asynchronous,
        skip_tokenizer_init=False,
        max_model_len=512,
        max_num_seqs=16,
        max_num_batched_tokens=64,
        enable_prefix_caching=True,
    )
    llm = engine.LLM(**options)
    prompt = {"prompt_token_ids": PROMPT}

    def ask(most=8, **arguments):
        arguments = {"temperature": 0, "ignore_eos": True} | arguments
        return llm.generate(
            [prompt], engine.SamplingParams(max_tokens=most, **arguments), use_tqdm=False
        )[0]

    found = {}

    def keep(name, output):
        completion = output.outputs[0]
        found[f"{name} reason"] = np.array(f"{completion.finish_reason} {completion.stop_reason}")
        found[f"{name} tokens"] = np.array(completion.token_ids)
        rows, mask = engine.given(output, ROUTES) or (np.zeros(0), np.zeros(0))
        first = len(PROMPT) + len(completion.token_ids) - 1 - len(rows)
        for what, cells in (("", rows), ("_validity", mask)):
            prompt, generated = np.split(cells, [max(0, len(PROMPT) - first) if len(rows) else 0])
            found[f"{name} prompt_routed_experts{what}"] = prompt
            found[f"{name} routed_experts{what}"] = generated

    first = ask()
    keep("first", first)
    tokens = list(first.outputs[0].token_ids)
    keep("cached", ask())
    keep("stop token", ask(50, stop_token_ids=[tokens[5]]))
    keep("stop string", ask(50, stop=[f"w{tokens[5]}"]))
    keep("one of two", ask(50, stop=[f"w{tokens[5]}"], n=2, temperature=1e-3, top_k=1))
    keep("off", ask(extra_args={"routed_experts": 0}))
    keep("start", ask(extra_args={"routed_experts_start": 35}))
    keep("narrow", ask(extra_args={"routed_experts_dtype": "uint8", "routed_experts_start": 32}))
    if "ROUTECAP_VLLM_FOLDER" in os.environ:
        sent = pickle.dumps(ask(extra_args={"routed_experts_format": "file"}))
        [completion] = pickle.loads(sent).outputs
        found["file bytes"] = np.array(len(sent))
        found["file rows"] = sys.modules["routecap_vllm"].read(completion.routed_experts).ids()
    try:
        ask(extra_args={"routed_experts_start": -1})
        found["refused"] = np.array(False)
    except ValueError as error:
        found["refused"] = np.array("routed_experts_start is -1" in str(error))
    found["ours"] = np.array("routecap_vllm.routed_experts_capturer" in sys.modules)
    np.savez(out, **found)


WAYS = {  # environment, and whether scheduling is asynchronous
    "in this process": ({"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "ROUTECAP_VLLM": "1"}, True),
    "forked": ({"VLLM_WORKER_MULTIPROC_METHOD": "fork", "ROUTECAP_VLLM": "1"}, True),
    "spawned": ({"VLLM_WORKER_MULTIPROC_METHOD": "spawn", "VLLM_PLUGINS": "routecap"}, True),
    "not asked for": ({"VLLM_WORKER_MULTIPROC_METHOD": "fork"}, False),
}
passed = failed = 0


def expect(right, what):
    global passed, failed
    passed, failed = passed + bool(right), failed + (not right)
    if not right:
        print("FAILED", what)


def judge(way, found, first):
    def rows(name):
        return found[f"{name} prompt_routed_experts"], found[f"{name} routed_experts"]

    prompt, generated = rows("first")
    expect(prompt.shape == (33, 3, 4) and generated.shape == (7, 3, 4), f"{way}: all rows")
    if way == "not asked for":
        expect(not found["ours"] and not (prompt == -1).any(), f"{way}: it is vLLM's own")
        return
    expect(
        found["ours"] and (prompt >= 0).all() and (generated >= 0).all(), f"{way}: none is missing"
    )
    cached, again = rows("cached")
    mask = found["cached prompt_routed_experts_validity"]
    expect(mask.all() and np.array_equal(cached, prompt), f"{way}: those out of the prefix cache")
    expect(np.array_equal(again, generated), f"{way}: those behind it")
    for name in ("stop token", "stop string", "one of two"):
        tokens = found[f"{name} tokens"]
        expect(
            "stop" in str(found[f"{name} reason"]) and 0 < len(tokens) < 9, f"{way}: {name} stops"
        )
        expect(
            len(rows(name)[1]) == len(tokens) - 1,
            f"{way}: {name} has {len(rows(name)[1])} rows of {len(tokens)}",
        )
        same = np.array_equal(rows(name)[1], generated[: len(tokens) - 1])
        expect(same, f"{way}: {name}, its rows")
    expect(not rows("off")[0].size and not rows("off")[1].size, f"{way}: off")
    expect(
        not rows("start")[0].size and np.array_equal(rows("start")[1], generated[2:]),
        f"{way}: start",
    )
    narrow = rows("narrow")
    expect(all(each.dtype == np.uint8 for each in narrow), f"{way}: narrow")
    whole = np.concatenate((prompt[32:], generated))
    expect(np.array_equal(np.concatenate(narrow), whole), f"{way}: narrow, its ids")
    expect(found["narrow routed_experts_validity"].all(), f"{way}: narrow, its mask")
    if "file rows" in first:
        both = np.concatenate((prompt, generated))
        expect(np.array_equal(found["file rows"], both), f"{way}: a reference")
        size = found.pop("file bytes")
        expect(size < 2000, f"{way}: a reference is small: {size}")
    expect(found["refused"], f"{way}: what makes no sense is refused")
    for name, array in found.items():
        expect(np.array_equal(array, first[name]), f"{way}: {name} is as in this process")


def main():
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    words.write(folder)
    clean = {k: v for k, v in os.environ.items() if k not in ("VLLM_PLUGINS", "ROUTECAP_VLLM")}
    first = None
    for way, (environment, asynchronous) in WAYS.items():
        out = folder / f"{way.replace(' ', '_')}.npz"
        out.unlink(missing_ok=True)
        command = [sys.executable, __file__, "--run", str(folder), str(out), str(int(asynchronous))]
        if way != "not asked for":
            rows = {"FOLDER": str(folder / "rows"), "STORE_BYTES": str(1 << 24)}
            environment |= {f"ROUTECAP_VLLM_{name}": value for name, value in rows.items()}
        environment = clean | {"VLLM_ENABLE_V1_MULTIPROCESSING": "1"} | environment
        try:
            result = subprocess.run(
                command, env=environment, capture_output=True, text=True, timeout=300
            )
            text = result.stdout + result.stderr
        except subprocess.TimeoutExpired as error:
            text = f"{error}\n{(error.stdout or b'').decode()}\n{(error.stderr or b'').decode()}"
        if not out.exists():
            expect(False, f"{way}: {text[-3000:]}")
            continue
        with np.load(out) as found:
            found = dict(found)
        first = first or found
        judge(way, found, first)
        print(f"{way}: looked at", flush=True)
    print(f"{passed} checks passed, {failed} failed")
    return failed > 0


if __name__ == "__main__":
    if sys.argv[1] == "--run":
        run(Path(sys.argv[2]), sys.argv[3], sys.argv[4] == "1")
    else:
        sys.exit(main())
