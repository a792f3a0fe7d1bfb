"""Capture changes no token: what an engine gives with routecap is what it gives without.

    python3 tokens.py FOLDER

Two engines, one after the other, each in a process of its own, with what is compiled kept in
FOLDER: the first without capture. Greedy tokens of the same requests, in batches of several sizes,
with prompts in chunks, are compared one by one. So is the name under which vLLM keeps what it has
compiled. Prints what is compared, and PASSED or FAILED.
"""

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import words


def run(capture, out):
    import engine

    if capture:
        import routecap_vllm

        routecap_vllm.install()
    scale = 8 if engine.ON_CPU else 1
    llm, _ = engine.make(
        words.LEAST,
        capture,
        max_num_batched_tokens=1024 // scale,
        max_model_len=2048 // scale,
        max_num_seqs=64 // scale,
        enable_prefix_caching=True,
        **engine.cache_of(2),
    )
    draw = random.Random(3)
    vocabulary = llm.llm_engine.vllm_config.model_config.get_vocab_size()
    lengths = [
        draw.choice((1, 16, 100, 900)) // scale + draw.randrange(40) for _ in range(96 // scale)
    ]
    prompts = [[draw.randrange(vocabulary) for _ in range(length + 1)] for length in lengths]
    tokens = []
    for size in (1, 5, len(prompts)):
        batch = [{"prompt_token_ids": prompt} for prompt in prompts[:size]]
        outputs = llm.generate(batch, engine.sampling(48), use_tqdm=False)
        tokens += [list(output.outputs[0].token_ids) for output in outputs]
        if capture:
            assert all(output.outputs[0].routed_experts is not None for output in outputs)
    if capture and engine.ON_CPU:  # as on a device: there routers are out of the compiler's sight
        from routecap_vllm import _compiled

        _compiled.engine_is_on_cuda = lambda: True
    name = llm.llm_engine.vllm_config.compute_hash()
    Path(out).write_text(json.dumps({"tokens": tokens, "compiled": name}))


def main():
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    found = []
    for capture in (False, True):
        out = folder / f"tokens_{capture}.json"
        out.unlink(missing_ok=True)
        environment = os.environ | {"VLLM_CACHE_ROOT": str(folder.absolute() / "compiled")}
        command = [sys.executable, __file__, "--run", str(int(capture)), str(out)]
        result = subprocess.run(
            command, env=environment, capture_output=True, text=True, check=False
        )
        if not out.exists():
            print((result.stdout + result.stderr)[-3000:], "FAILED", sep="\n")
            return True
        found.append(json.loads(out.read_text()))
    off, on = found
    pairs = list(zip(off["tokens"], on["tokens"], strict=True))
    unlike = sum(one != other for both in pairs for one, other in zip(*both, strict=True))
    print(f"{sum(map(len, off['tokens']))} tokens of {len(pairs)} requests, {unlike} unlike")
    print("compiled under one name" if off["compiled"] == on["compiled"] else "compiled apart")
    failed = unlike or off["compiled"] != on["compiled"] or not pairs
    print("FAILED" if failed else "PASSED")
    return bool(failed)


if __name__ == "__main__":
    if sys.argv[1] == "--run":
        run(sys.argv[2] == "1", sys.argv[3])
    else:
        sys.exit(main())
