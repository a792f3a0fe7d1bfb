"""The static table of lab/frontier with the engine, tiny and with random weights.

    python3 frontier_table.py FOLDER

On a CPU, where the engine computes in FP32 and the trainer in BF16: cells differ, and replay
narrows the gap.
"""

import json
import sys
from pathlib import Path

import engine
import torch

sys.path.append(str(Path(__file__).resolve().parents[4] / "lab"))
from frontier import vllm_table
from frontier.grid import TINY
from frontier.rig import Trainer

BLOCK = 1


def main():
    folder = Path(sys.argv[1])
    (folder / f"block{BLOCK}").mkdir(parents=True, exist_ok=True)
    log = folder / "log.jsonl"
    log.unlink(missing_ok=True)
    torch.manual_seed(0)
    exact = [each.detach() for each in Trainer(TINY, "cpu", torch.bfloat16).exact]
    for each in exact:
        if each.dim() > 1:  # of a size with which the choice of experts matters
            each.normal_(0, each.shape[-1] ** -0.5)
    torch.save({"exact": exact}, folder / f"block{BLOCK}" / "base.pt")
    more = {}
    if engine.ON_CPU:
        engine.cpu.without_streams()
        more = engine.options_of("", True)
        more = {
            name: more[name]
            for name in ("dtype", "enforce_eager", "block_size", "compilation_config")
        }
    sys.argv[1:] = ["bf16", "--tiny", "--folder", str(folder), "--log", str(log)]
    assert vllm_table.main(more) == 0
    table = {line["row"]: line for line in map(json.loads, log.read_text().splitlines())}
    assert set(table) == {"live", "replayed", "shifted"}
    for line in table.values():
        assert line["complete"] == line["answers"] == TINY.held_out
        assert line["answer_tokens"] >= TINY.held_out
    assert 0 < table["live"]["cells_differ"] < 0.2
    assert 2 * table["replayed"]["kl"] < table["live"]["kl"] < 0.5 * table["shifted"]["kl"]


if __name__ == "__main__":
    main()
