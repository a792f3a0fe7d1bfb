"""In a step in which nothing happens to a request no function of ours runs for it: what workers
call is as much for 64 requests as for 8. Of the front end see test_front_end."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from batch import Batch, request
from calls import calls_in
from schedule import capture, told
from test_aux_output import EXPERTS, K, LAYERS, connector
from test_by_slot import BLOCK, Runner

from routecap_vllm import _by_slot, routed_experts_capturer


@pytest.fixture
def steps(start):
    """steps(face, count): a function that runs a further step of a worker, one row for each of so
    many requests."""

    def of_021(count):
        batch = Batch(start, **{f"r{i}": request() for i in range(count)})
        batch.capturer.tell_ends({})
        return batch.step

    def of_026(count):
        runner, position = Runner(), [0]
        made = _by_slot.Capture(runner).capturer

        def step():
            at, position[0] = position[0], position[0] + 1
            runner.step([(f"r{i}", at, 1) for i in range(count)])
            made.capturer.issued(made._requests.last_ticket).wait()

        return step

    def of_033(count):
        made, position = connector(), [0]
        names = [f"r{i}" for i in range(count)]
        rows = np.arange(count * LAYERS * K, dtype=np.int32).reshape(count, LAYERS, K) % EXPERTS
        ones = np.ones(count, np.int32)
        positions = torch.zeros(count, dtype=torch.int64)  # the runner's, one for all steps

        def step():
            at, position[0] = position[0], position[0] + 1
            metadata = SimpleNamespace(
                generation=0,
                requests=dict.fromkeys(names, at),
                block_hashes={},
                finished_requests=(),
                retained_block_hashes=None,
                released_block_hashes=None,
            )
            batch = SimpleNamespace(
                req_ids=names,
                query_start_loc_np=np.arange(count + 1, dtype=np.int32),
                num_computed_tokens_np=np.full(count, at, np.int32),
                num_draft_tokens_per_req=None,
                positions=positions.fill_(at),
            )
            made.told = told((), names, [None] * count)
            made.begin_step(metadata)
            capture(made, rows)
            output = made.prepare_output(batch)
            output.enqueue_cpu_copy(ones, 0 * ones)
            assert len(output.process_output()) == count

        return step

    faces = {"0.21": of_021, "0.26": of_026, "0.33": of_033}
    yield lambda face, count: faces[face](count)
    routed_experts_capturer.init_routed_experts_capturer_with_shared_cache(
        False, None, 0, 0, 0, "cpu"
    )


@pytest.mark.parametrize("face", ["0.21", "0.26", "0.33"])
def test_a_worker_s_step_calls_as_much_for_many_requests_as_for_few(steps, face):
    found = []
    for count in (8, 64):
        step = steps(face, count)
        for _ in range(BLOCK + 1):
            step()
        found.append(calls_in(step))
    assert found[0] == found[1] and found[0].total() > 5
