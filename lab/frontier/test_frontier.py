"""The parts of the experiment, and all of it once with a tiny model."""

import base64
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from frontier import countdown, fp8, grpo, report, rollouts, vllm_table
from frontier.__main__ import decide
from frontier.grid import ARMS, TINY, cells_of, tiny_cells
from frontier.log import Log, read
from frontier.rig import Rig
from transformers import Qwen3MoeForCausalLM


@pytest.mark.parametrize("task", [countdown.Task(), TINY.task])
def test_demonstrations_solve_their_problems_and_none_is_held_out(task):
    texts, lengths = countdown.demonstrations(task, 200, np.random.default_rng(0))
    held_out, _ = countdown.draw(task, 200, np.random.default_rng(1), held_out=True)
    apart = {(*sorted(n), t) for n, t in zip(held_out.numbers.tolist(), held_out.targets.tolist())}
    for text, length in zip(texts, lengths):
        prompt = bytes(text[: task.prompt]).decode()
        numbers, target = prompt[:-1].split("=")
        numbers = [int(each) for each in numbers.split()]
        answer = bytes(text[task.prompt : length])
        assert countdown.solved(numbers, int(target), answer)
        assert (*sorted(numbers), int(target)) not in apart
        assert not text[length:].any()


@pytest.mark.parametrize(
    ("answer", "right"),
    [
        (b"02+03=05 05*04=20.", True),
        (b"02+04=06 06*03=18;02+03=05 05*04=20.", True),
        (b"02+03=05 05*04=20", False),  # not marked as the answer
        (b"02+03=05 05*04=20;", False),
        (b"02+03=06 06*04=24.", False),  # a wrong sum
        (b"04+04=08 08+03=11.", False),  # a number twice
        (b"04*03=12 12+02=14.", False),  # another target
        (b"05*04=20.", False),  # a number that is not there
        (b"4*05=20.", False),
        (b".", False),
        (b"", False),
    ],
)
def test_an_answer_is_right_in_every_step_of_its_last_attempt(answer, right):
    assert countdown.solved([2, 3, 4], 20, answer) is right


def test_fp8_numbers_are_exact_in_bf16_and_the_nearest_there_are():
    x = torch.randn(256, 384, generator=torch.Generator().manual_seed(0)).bfloat16()
    found = fp8.rounded(x, (128, 128))
    assert torch.equal(fp8.rounded(found, (128, 128)), found)
    blocks, ours = (
        each.float().view(2, 128, 3, 128).transpose(1, 2).reshape(6, -1) for each in (x, found)
    )
    for block, mine in zip(blocks, ours):
        scale = min(2.0**n for n in range(-30, 30) if block.abs().max() / 2.0**n < 448)
        assert torch.equal(mine, (block / scale).to(torch.float8_e4m3fn).float() * scale)
    assert not fp8.rounded(torch.zeros(4, 128)).any()


def test_the_objective_clips_and_truncates():
    logs = torch.tensor([[0.5, -0.5, 0.05, 9.0]], requires_grad=True)
    old, behind = torch.zeros(1, 4), torch.tensor([[-2.0, 0.5, 0.0, 0.0]])
    advantages, answers = torch.tensor([[1.0]]), torch.tensor([[True, True, True, False]])
    gain, clipped = grpo.objective(logs, old, behind, advantages, answers, tis=False)
    expected = 1.2 + np.exp(-0.5) + np.exp(0.05)
    assert gain.item() == pytest.approx(expected) and clipped.item() == 1
    gain.backward()
    assert logs.grad[0, 0] == 0 and logs.grad[0, 3] == 0 and logs.grad[0, 1] > 0
    weighted, _ = grpo.objective(logs, old, behind, advantages, answers, tis=True)
    expected = 2 * 1.2 + np.exp(-0.5) * np.exp(-0.5) + np.exp(0.05)
    assert weighted.item() == pytest.approx(expected)


def test_a_block_has_the_cells_that_are_registered():
    cells = cells_of(1, 1e-4, 80)
    assert len(cells) == len({cell.name for cell in cells}) == 15
    assert len([cell for cell in cells if cell.point == "P" and cell.arm in "bcde"]) == 8
    assert [cell.name for cell in cells] != [cell.name for cell in cells_of(2, 1e-4, 80)]
    assert {cell.rate for cell in cells if cell.point == "L"} == {2.5e-5}
    assert {cell.updates for cell in cells if cell.point == "O"} == {1}
    assert {cell.arm for cell in tiny_cells(1)} == set(ARMS)
    assert {cell.arm for cell in cells_of(0, 1e-4, 80)} == {"a"}


def test_rates_are_decided_from_the_arm_without_mismatch():
    lines = []
    for rate, curve in ((3e-5, (0.4, 0.5)), (1e-4, (0.4, 0.6)), (3e-4, (0.4, 0.2))):
        lines.append({"kind": "cell", "name": f"{rate}", "rate": rate})
        for step, accuracy in zip((0, 40), curve):
            lines.append(
                {"kind": "evaluation", "name": f"{rate}", "step": step, "accuracy": accuracy}
            )
    assert decide(lines, 1.0) == (1e-4, 70)
    with pytest.raises(SystemExit, match="has not finished"):
        decide(lines[:-1], 1.0)


def test_a_line_that_a_kill_has_cut_off_is_skipped(tmp_path):
    log = Log(tmp_path / "a.jsonl")
    log.write(kind="step", step=1)
    with log.path.open("a") as file:
        file.write('{"kind": "st')
    log.write(kind="step", step=2)
    assert [line["step"] for line in read([log.path])] == [1, 2]


def test_tables_and_pictures_are_those_of_the_logs(tmp_path):
    folder = Path(report.__file__).parent / "results"
    report.report(sorted(folder.glob("block*.jsonl")), tmp_path)
    for made in tmp_path.iterdir():
        assert made.read_text() == (folder / made.name).read_text()
    assert {made.suffix for made in tmp_path.iterdir()} == {".md", ".svg"}


def outputs_of(rig, batch, answers):
    """Answers of our own engine, as those of vLLM are given."""
    found = []
    for row, sequence in enumerate(batch.sequences):
        tokens = sequence.tokens.tolist()
        logits = answers.logits[row, : len(tokens) - batch.prompt]
        width = logits.shape[1]
        flat = SimpleNamespace(
            start_indices=[width * at for at in range(len(logits))],
            end_indices=[width * (at + 1) for at in range(len(logits))],
            token_ids=[*range(width)] * len(logits),
            logprobs=logits.flatten().tolist(),
        )
        answer = SimpleNamespace(
            token_ids=tokens[batch.prompt :],
            logprobs=flat,
            routed_experts=base64.b64encode(sequence.routing().serialize()),
        )
        found.append(SimpleNamespace(prompt_token_ids=tokens[: batch.prompt], outputs=[answer]))
    return found


def test_the_table_of_an_engine_is_that_of_its_answers(tmp_path):
    """An engine with the trainer's own weights and kernels has no gap, unless rows are shifted."""
    torch.manual_seed(0)
    rig = Rig(TINY, ARMS["a"], "cpu", "auto")
    rig.send_weights()
    torch.save({"exact": rig.trainer.exact}, tmp_path / "base.pt")
    batch, answers = rollouts.roll_out(rig, rollouts.problems_of(rig, 1, 1, 0), 7, keep_logits=True)
    side = vllm_table.side_of(TINY, tmp_path / "base.pt", "cpu")
    log = Log(tmp_path / "log.jsonl")
    vllm_table.compare(side, 1, outputs_of(rig, batch, answers), log, format="ours", seed=0)
    lines = list(read([log.path]))
    table = {line["row"]: line for line in lines}
    assert all(line["complete"] == line["answers"] == TINY.answers for line in lines)
    assert table["live"]["cells_differ"] < 0.05 and not table["live"]["findings"]
    assert table["live"]["controls_missed"] == 0
    for name in ("live", "replayed"):
        assert 0 <= table[name]["kl"] < 0.01 * table["shifted"]["kl"]
    assert report.text_of(lines, {}).count("| 1 | ours | 0 |") == 3


def test_a_checkpoint_for_engines_has_the_weights_of_the_base(tmp_path):
    torch.manual_seed(0)
    rig = Rig(TINY, ARMS["a"], "cpu", "auto")
    torch.save({"exact": rig.trainer.exact}, tmp_path / "base.pt")
    vllm_table.export(TINY, tmp_path / "base.pt", tmp_path / "checkpoint")
    model = Qwen3MoeForCausalLM.from_pretrained(tmp_path / "checkpoint", dtype=torch.bfloat16)
    ours, theirs = (each.state_dict() for each in (rig.trainer.model, model))
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert model.config.rope_parameters == rig.trainer.model.config.rope_parameters


@pytest.mark.parametrize("letter", ["d", "g"])
def test_the_updates_of_a_batch_follow_its_advantages(letter):
    arm = ARMS[letter]
    torch.manual_seed(0)
    rig = Rig(TINY, arm, "cpu", "auto")
    rig.send_weights()
    batch, _ = rollouts.roll_out(rig, rollouts.problems_of(rig, 1, 1, 0), 7)
    assert all(each.report().complete for each in batch.sequences)
    batch.advantages = np.where(np.arange(TINY.answers) % 2, 1, -1).astype(np.float32)
    pieces = [rollouts.Piece(rig, batch, slice(0, TINY.answers))]

    def likely() -> float:
        with torch.no_grad():
            logs = [grpo.logs_of(rig, piece, arm)[0] for piece in pieces]
        found = [each * piece.answers * piece.advantages for each, piece in zip(logs, pieces)]
        return float(torch.cat(found).sum())

    before = likely()
    line = grpo.train(rig, batch, arm, 2, 1e-3)
    assert likely() > before
    assert line["gradient"] > 0 and line["lost"] == line["invalid"] == line["plan_lost"] == 0
    rows = sum(len(each.tokens) - 1 for each in batch.sequences) * TINY.layers
    assert line["replayed"] == (2 * rows if arm.replay else 0)  # old log-probabilities, an update
    assert torch.equal(rig.trainer.weights[5], rig.trainer.exact[5].to(rig.trainer.weights[5]))


def lines_of(effect: float, blocks: int = 3, steps: int = 40, broken: str = ""):
    """A log as runs would have written it."""
    for block in range(1, blocks + 1):
        for cell in cells_of(block, 1e-4, steps):
            yield {"kind": "cell", "name": cell.name, **vars(cell)}
            for step in range(1, steps + 1):
                yield {
                    "kind": "step", "name": cell.name, "step": step, "finite": True, "k3": 1e-3,
                    "replayed": 5, "lost": 0, "invalid": 0, "findings": [], "controls_missed": 0,
                    "seconds": 1.0, "reward": 0.5,
                }  # fmt: skip
            for step in range(0, steps + 1, 10):
                moved = effect * (1 + 0.1 * cell.seed) if cell.arm == "d" else 0.0
                good = 0.1 if cell.name == broken and step > 10 else 0.5 + moved
                yield {"kind": "evaluation", "name": cell.name, "step": step, "accuracy": good}


@pytest.mark.parametrize(
    ("effect", "blocks", "said"),
    [
        (0.1, 3, "replay moved the frontier"),
        (-0.1, 3, "replay did harm"),
        (0.01, 3, "no effect of practical size"),
        (0.1, 2, "4 of 6 pairs"),
    ],
)
def test_the_verdict_follows_the_registered_rule(effect, blocks, said):
    lines = list(lines_of(effect, blocks))
    assert said in report.text_of(lines, report.runs_of(lines))


def test_cells_that_solve_as_many_problems_are_equal_though_the_log_has_six_digits():
    solved = {"d-1": {30: 333, 40: 365}, "b-1": {30: 362, 40: 336}}  # of 512: both 698 in two
    lines = list(lines_of(0.1))
    for line in lines:
        of = solved.get(line["name"][4:], {})
        if line["kind"] == "evaluation" and line["step"] in of:
            line["accuracy"] = float(f"{of[line['step']] / 512:.6g}")  # apart by 1e-6 there
    runs = report.runs_of(lines)
    pairs = report.paired(runs, {1: 40, 2: 40, 3: 40}, "P", "d", "b")
    assert [difference == 0 for *_, difference in pairs] == [True, False] * 3
    assert report.sign_flips([difference for *_, difference in pairs]) == 16 / 64


def test_a_wide_spread_decides_nothing():
    assert report.verdict([0.4, -0.1, 0.3, 0.2, 0.1, -0.3]) == "not decided by this experiment"
    assert report.sign_flips([0.1] * 6) == pytest.approx(2 / 64)


def test_collapse_is_seen_in_two_evaluations_one_after_another():
    lines = list(lines_of(0.0, 1, broken="1-P-b-1"))
    runs = report.runs_of(lines)
    assert runs["1-P-b-1"].collapsed() == 30 and runs["1-P-b-2"].collapsed() is None
    runs["1-P-b-2"].steps[40] |= {"finite": False}
    assert runs["1-P-b-2"].collapsed() == 40
    for step in range(7, 12):
        runs["1-P-c-1"].steps[step] |= {"k3": 0.2}
    assert runs["1-P-c-1"].gap_collapsed() == 11 and runs["1-P-c-2"].gap_collapsed() is None


def test_a_block_that_is_cut_short_is_not_in_the_outcome():
    lines = [
        line for line in lines_of(0.1, 1) if line["name"] != "1-P-e-2" or line.get("step", 0) <= 20
    ]
    runs = report.runs_of(lines)
    assert report.common_length(runs, 1) == (20, False)
    assert "No pair of a complete block" in report.text_of(lines, runs)


def test_a_block_whose_base_is_not_taken_is_not_in_the_outcome():
    done = [{"kind": "base_done", "block": 2, "step": 1, "seconds": 1, "accuracy": 0.9}]
    lines = [*lines_of(0.1), done[0] | {"taken": True}]
    assert "replay moved" in report.text_of(lines, report.runs_of(lines))
    lines = [*lines_of(0.1), done[0] | {"taken": False}]
    assert "4 of 6 pairs" in report.text_of(lines, report.runs_of(lines))


def frontier(*arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "frontier", *map(str, arguments)],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
    )  # fmt: skip


def test_all_of_it_with_a_tiny_model_killed_in_between(tmp_path):
    folder, logs = tmp_path / "runs", tmp_path / "logs.jsonl"
    run = ("run", "--tiny", "--folder", folder, "--jobs", 2, "--minutes", 20, "--device", "cpu")
    first = frontier(*run)
    for line in first.stdout:
        if (folder / "block1").exists() and list((folder / "block1").glob("1-*.pt")):
            break
    os.killpg(first.pid, signal.SIGKILL)
    first.wait()
    saved = {path.name for path in (folder / "block1").glob("1-*.pt")}
    second = frontier(*run, "--collect", logs)
    output = second.communicate()[0]
    assert second.returncode == 0, output
    lines = list(read([logs]))
    runs = report.runs_of(lines)
    assert {run.about["arm"] for run in runs.values()} == set(ARMS)
    assert all(run.made == 3 for run in runs.values())
    steps = [line for line in lines if line["kind"] == "step"]
    for line in steps:
        arm = ARMS[line["name"].split("-")[2]]
        assert line["lost"] == line["invalid"] == line["plan_lost"] == 0
        assert (line["replayed"] > 0) == arm.replay
        assert np.isfinite([line["k3"], line["entropy"], line["gradient"]]).all()
    table = {line["row"]: line for line in lines if line["kind"] == "static"}
    live, replayed, shifted = (
        table[f"FP8 rollouts, {name}"]["kl"] for name in ("live", "replayed", "shifted")
    )
    assert replayed < live < shifted
    report.report([logs], tmp_path / "report")
    cells, held_out = (tmp_path / "report" / "report.md").read_text().split("held out\n")
    assert cells.count("| 1-") == held_out.count("| 1-") == len(runs)
    for name in ("held_out", "gap", "frontier"):
        assert (tmp_path / "report" / f"{name}.svg").read_text().endswith("</svg>\n")
    assert saved or "steps" in output
