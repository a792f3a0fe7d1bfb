"""lab/grpo: its checks find what they are there for."""

import numpy as np
import pytest
import routecap
import torch
from rollouts import Padded, Rollout, Step, failures, measure, routed_otherwise
from routecap_replay import LayerReport, Report

EXPERTS, K = 8, 2


def rollout(length: int, seed: int) -> Rollout:
    random = np.random.default_rng(seed)
    ids = np.array(
        [[random.permutation(EXPERTS)[:K] for _ in range(2)] for _ in range(length - 1)], np.uint8
    )
    routing = routecap.Routing.from_arrays(ids, experts=EXPERTS, layer_map=[0, 2])
    sequence = routecap.Sequence.like(routing)
    sequence.append(random.integers(0, 256, length), routing)
    return Rollout(sequence, 3, np.zeros(length - 3, np.float32), 1.0, 0)


def ranks_of(rollouts, shift=0):
    """What two ranks give that have every other token, and take rows `shift` too late."""
    chosen, places = [], []
    for number, each in enumerate(rollouts):
        ids = np.roll(each.routing().ids(), shift, 0)
        for position in range(len(each.tokens)):
            row = np.zeros((2, EXPERTS), bool)
            if position < len(ids):
                np.put_along_axis(row, ids[position].astype(int), True, -1)
            chosen.append(row)
            places.append((number, position))
    return [(np.stack(chosen[rank::2], 1), np.array(places[rank::2])) for rank in range(2)]


def test_rows_of_other_tokens_and_tokens_that_no_rank_has_are_noticed():
    rollouts = [rollout(9, 1), rollout(6, 2)]
    assert routed_otherwise(rollouts, ranks_of(rollouts)) == 0
    assert routed_otherwise(rollouts, ranks_of(rollouts, 1)) > 15
    with pytest.raises(AssertionError):
        routed_otherwise(rollouts, [ranks_of(rollouts)[0]] * 2)


def test_a_token_is_scored_by_the_row_before_it():
    each = rollout(6, 1)
    each.log_probabilities[:] = [-1, -2, -3]
    batch = Padded([each], 8)
    logs = torch.zeros(1, 8)
    logs[0, 2:5] = torch.tensor([-1.0, -2.0, -3.0])
    assert batch.labels[0, :5].tolist() == each.tokens[1:].tolist()
    assert batch.gaps(logs).tolist() == [0, 0, 0] and batch.objective(logs).item() == pytest.approx(
        3
    )
    assert batch.objective(logs + 1).item() == pytest.approx(3 * 1.2)  # clipped


def steps(gaps=(2.0, 1.0, 9.0), lost=0):
    report = Report(1, (LayerReport(0, "router", 10, lost, 0, 0, 0.9),))
    names = (measure.NONE, measure.CAPTURED, measure.SHIFTED)
    return {
        name: Step(name, np.array([gap]), 0.0, 0.0, report if name != measure.NONE else None)
        for name, gap in zip(names, gaps)
    }


def test_what_does_not_hold_is_said():
    assert failures(steps()) == []
    assert (
        "gap" in failures(steps((1.0, 2.0, 9.0)))[0]
        and "gap" in failures(steps((2.0, 1.0, 1.5)))[0]
    )
    assert failures(steps(lost=1)) == ["rows were lost or invalid"]
