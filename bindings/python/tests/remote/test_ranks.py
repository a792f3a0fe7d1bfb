"""Routings from Ray actors: exact, in place, and never more than what was captured."""

import os
import pickle
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import ray
import routecap
from routecap import remote

from divided import (
    Ranks,
    both,
    generate,
    in_object_store,
    lose,
    pipeline_parallel,
    sequence_parallel,
    tensor_parallel,
)
from ray_ranks import (
    EXPERTS,
    K,
    LAYERS,
    STORE_BYTES,
    Chunk,
    Part,
    Rank,
    local_ray,
    routed,
    unite,
)

ROWS = {1: 9000, 2: 7001}
SHAPES = {
    "tensor, one captures": tensor_parallel(2),
    "tensor, each captures": [Part(), Part()],
    "sequence": sequence_parallel(3),
    "pipeline": pipeline_parallel(3),
    "pipeline of sequence": both(sequence_parallel(2), pipeline_parallel(2)),
}


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    with local_ray():
        yield


@pytest.fixture(scope="module")
def reference() -> dict[int, routecap.Routing]:
    """What one rank captures, in this process."""
    return captured(Part())


def captured(part: Part) -> dict[int, routecap.Routing]:
    rank = Rank(part)
    generate(rank, ROWS)
    return {sequence: rank.finish(sequence, rows) for sequence, rows in ROWS.items()}


def arrays_of(routing: routecap.Routing) -> list[np.ndarray]:
    return [segment.ids for segment in routing.segments if segment.ids is not None]


def test_one_rank_captures_what_its_routers_choose(reference):
    for sequence, rows in ROWS.items():
        assert reference[sequence].status == routecap.Status.OK
        assert np.array_equal(
            reference[sequence].ids(), routed(sequence, np.arange(rows), range(LAYERS))
        )


@pytest.mark.parametrize("parts", SHAPES.values(), ids=SHAPES.keys())
def test_the_united_routing_is_that_of_one_rank(parts, reference):
    with Ranks(parts) as ranks:
        generate(ranks, ROWS)
        for sequence, rows in ROWS.items():
            arrived = ranks.parts(sequence, rows)
            assert len(arrived) == sum(part.role == "owner" for part in parts)
            assert bytes(unite(arrived, rows)) == bytes(reference[sequence])
            if len({part.layers for part in parts}) > 1 or parts[0].shares > 1:
                assert bytes(unite(arrived[1:], rows)) != bytes(
                    reference[sequence]
                )  # each part is needed


def test_the_drivers_arrays_lie_in_the_object_store(reference):
    with Ranks(pipeline_parallel(2)) as ranks:
        generate(ranks, ROWS)
        arrived = ranks.parts(1, ROWS[1])
    for part in arrived:
        assert arrays_of(part) and all(map(in_object_store, arrays_of(part)))
        copied = pickle.loads(pickle.dumps(part, 5))  # in band
        assert bytes(copied) == bytes(part) and not any(map(in_object_store, arrays_of(copied)))
    assert not any(map(in_object_store, arrays_of(reference[1])))


def test_an_array_outlives_its_routing_and_actor_in_a_store_that_is_full():
    with Ranks([Part()]) as ranks:
        generate(ranks, ROWS)
        (routing,) = ranks.parts(1, ROWS[1])
    segment = routing.segments[0]
    routing.free()
    del routing
    for filling in range(3):
        for _ in range(8):
            ray.put(np.full(STORE_BYTES // 8, filling, np.uint8))
    assert in_object_store(segment.ids)
    assert np.array_equal(segment.ids, routed(1, np.arange(segment.rows), range(LAYERS)))


def test_ranks_that_routed_one_row_differently_are_a_conflict(reference):
    other = reference[1].ids().copy()
    other[4321, 17, 0] = (set(range(EXPERTS)) - set(other[4321, 17].tolist())).pop()
    arrived = ray.get(ray.put(routecap.Routing.from_arrays(other, experts=EXPERTS)))
    with pytest.raises(routecap.Error) as conflict:
        unite([reference[1], arrived], ROWS[1])
    assert conflict.value.status == routecap.Status.ERR_CONFLICT


@pytest.mark.parametrize(
    "parts",
    [sequence_parallel(3), pipeline_parallel(3), tensor_parallel(2)],
    ids=["sequence", "pipeline", "tensor"],
)
def test_what_a_lost_rank_captured_is_missing_and_the_rest_is_exact(parts, reference):
    with Ranks(parts) as ranks:
        generate(ranks, ROWS)
        lose(ranks.actors[0])
        arrived = ranks.parts(1, ROWS[1])
    assert len(arrived) == len(ranks.owners) - 1
    united = unite(arrived, ROWS[1])
    lost = captured(parts[0])[1]
    lost_cells = np.zeros((ROWS[1], LAYERS), bool)
    lost_cells[:, lost.layer_map] = lost.mask()

    assert united.status == (
        routecap.Status.INCOMPLETE if arrived else routecap.Status.NOT_CAPTURED
    )
    assert (united.rows, united.layers, united.k) == (ROWS[1], LAYERS, K)
    assert lost_cells.any() and np.array_equal(united.mask(), ~lost_cells)
    assert np.array_equal(united.ids()[~lost_cells], reference[1].ids()[~lost_cells])
    assert (united.ids()[lost_cells] == -1).all()
    blocks = united.missing
    assert (blocks["rows"] * blocks["layers"]).sum() == lost_cells.sum() and set(
        blocks["reason"].tolist()
    ) == {routecap.Missing.ABSENT}


def test_a_rank_that_is_lost_in_mid_run_costs_its_part_and_later_steps(reference):
    with Ranks(pipeline_parallel(2)) as ranks:
        generate(ranks, {1: 4000})
        lose(ranks.actors[1])
        with pytest.raises(ray.exceptions.RayActorError):
            ranks.forward([Chunk(1, 4000, 100)])
        united = unite(ranks.parts(1, ROWS[1]), ROWS[1])
    there = united.mask()
    assert there[:4100, : LAYERS // 2].all() and there.sum() == 4100 * LAYERS // 2
    assert np.array_equal(united.ids()[there], reference[1].ids()[there])


FAILING_PROGRAM = """
from divided import *
from ray_ranks import *
with local_ray():
    ranks = Ranks([Part()])
    ranks.open(1)
    print(ray.get_runtime_context().get_session_name(), flush=True)
    raise SystemExit("as it should")
"""


def commands_with(text: str) -> list[str]:
    """The processes of this machine whose command line has this text."""
    commands = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            commands.append(path.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
        except OSError:  # it has ended
            continue
    return [command for command in commands if text in command]


def test_a_program_that_fails_leaves_neither_a_process_nor_a_file():
    with (
        tempfile.TemporaryDirectory() as folder
    ):  # not pytest's: the names of Ray's sockets would be too long there
        run = subprocess.run(
            [sys.executable, "-c", FAILING_PROGRAM],
            capture_output=True,
            text=True,
            env=os.environ | {"TMPDIR": folder},
        )
        assert run.returncode == 1 and run.stderr.strip().endswith("as it should"), run.stderr
        session = run.stdout.strip()
        assert session.startswith("session_")
        assert os.listdir(folder) == []
    end = time.monotonic() + 30  # actors end by themselves, soon after
    while commands_with(session) and time.monotonic() < end:
        time.sleep(0.2)
    assert commands_with(session) == []


@pytest.mark.parametrize("context", [0, 1])
@pytest.mark.parametrize("here", [False, True])
def test_a_trainers_rank_gets_only_its_own_from_the_object_store(context, here, reference):
    """Its rows, and headers. If the object is brought here, it is read in place."""
    store = remote.RayObjects(here=here)
    reader = remote.Reader(store, layers=LAYERS, k=K, experts=EXPERTS)
    sources = [reader.rows(remote.write(store, routing)) for routing in reference.values()]
    plan = routecap.Plan(
        [rows + 1 for rows in ROWS.values()],
        layers=LAYERS,
        k=K,
        experts=EXPERTS,
        context="zigzag",
        context_size=2,
        context_rank=context,
    )
    gathered, expected = plan.gather(sources), plan.gather(list(reference.values()))
    assert np.array_equal(gathered.ids, expected.ids) and gathered.report == expected.report
    own, report = plan.rows_needed * LAYERS * K, reader.report
    assert report.calls == 2 and report.missing == {}
    assert own <= report.bytes <= 1.05 * own + 4096 * len(sources)
