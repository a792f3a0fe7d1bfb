"""Each store for real: rollouts in other processes, ranks that read by plan, owners that are killed
and servers that go away."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import main
import numpy as np
import pytest
import routecap
import servers
from rollout import routing_of
from routecap import remote
from workers import worker

SHAPE = {"layers": 12, "k": 8, "experts": 128}


@pytest.fixture(scope="module", params=servers.SCHEMES)
def place(request: Any) -> Iterator[tuple[str, str, dict[str, Any]]]:
    with servers.server_of(request.param) as (url, settings, _):
        yield request.param, url, settings


@contextmanager
def owner_of(scheme: str, url: str, settings: dict[str, Any]) -> Iterator[Any]:
    settings = servers.writer_settings(scheme, settings)
    owner = worker(scheme, "rollout:Rollout", url, settings, SHAPE)
    try:
        yield owner
    finally:
        owner.kill()


def test_ranks_read_what_their_plan_names(place: Any) -> None:
    seeds, lengths = [1, 2, 3], [1001, 700, 65]
    with owner_of(*place) as owner:
        references = owner.call("generate", seeds, lengths)
        routings = [routing_of(SHAPE, s, n - 1) for s, n in zip(seeds, lengths)]
        store = servers.connect(*place[1:])
        for rank in main.RANKS:
            plan = routecap.Plan(lengths, **SHAPE, **rank)
            reader = remote.Reader(store, **SHAPE)
            got = plan.gather([reader.rows(each) for each in references])
            expected = plan.gather(routings)
            assert np.array_equal(got.ids, expected.ids) and got.report == expected.report
            report = reader.report
            assert report.missing == {} and report.calls == 2 and report.rows == plan.rows_needed
            own = plan.rows_needed * SHAPE["layers"] * SHAPE["k"]
            assert own <= report.bytes <= 1.05 * own + 3 * 4096
        store.close()


def test_what_an_owner_took_along_is_missing_and_nobody_waits(place: Any) -> None:
    scheme, url, settings = place
    store = servers.connect(url, settings)
    reader = remote.Reader(store, **SHAPE)
    with owner_of(*place) as staying, owner_of(*place) as killed:
        kept, taken = staying.call("generate", [4], [4001]), killed.call("generate", [5], [4001])
        sources = [reader.rows(each) for each in kept + taken]
        assert sources[1].read(0, 1).mask().all()
        killed.kill()
        plan = routecap.Plan([4001] * 2, **SHAPE)
        gathered = plan.gather(sources)
        # In a bucket an object stays. In memory of its owner it goes with it, sooner or later.
        there = [routing_of(SHAPE, seed, 4000) for seed in (4, 5)]
        lost = reader.report.missing
        assert lost in (({},) if scheme == "s3" else ({}, {"evicted": 4000})), reader.log
        expected = plan.gather([there[0], None] if lost else there)
        assert np.array_equal(gathered.ids, expected.ids) and gathered.report == expected.report
    store.close()


def test_an_owner_that_does_not_answer_costs_its_own_rows() -> None:
    with servers.mooncake() as (url, settings, _):
        place = ("mooncake", url, settings)
        with owner_of(*place) as staying, owner_of(*place) as stopped:
            references = stopped.call("generate", [1], [301]) + staying.call("generate", [2], [301])
            reader = remote.Reader(servers.connect(url, settings | {"seconds": 2}), **SHAPE)
            sources = [reader.rows(each) for each in references]
            assert all(each.read(0, 1).mask().all() for each in sources)
            stopped.stop()
            plan = routecap.Plan([301] * 2, **SHAPE)
            gathered = plan.gather(sources)
            expected = plan.gather([None, routing_of(SHAPE, 2, 300)])
            assert np.array_equal(gathered.ids, expected.ids), reader.log
            assert reader.report.missing == {"evicted": 300}, reader.log


def test_objects_of_a_step_that_is_done_are_deleted(place: Any) -> None:
    with owner_of(*place) as owner:
        references = owner.call("generate", [6, 7], [51, 51])
        store = servers.connect(*place[1:])
        if place[0] == "ray":  # where objects go with their last reference
            assert not store.delete([references[0].key])
            return
        store.delete([references[0]["key"]])
        reader = remote.Reader(store, **SHAPE)
        got = [reader.rows(each).read(0, 50) for each in references]
        assert [each.mask().any() for each in got] == [False, True], reader.log
        store.close()


def test_http_reads_ranges_of_what_is_in_a_bucket() -> None:
    with servers.s3() as (url, settings, server):
        whole = routing_of(SHAPE, 8, 500)
        public = settings | {"s3_additional_kwargs": {"ACL": "public-read"}}
        reference = remote.write(servers.connect(url, public), whole)
        store = remote.connect(settings["endpoint_url"] + "/" + url.removeprefix("s3://"))
        reader = remote.Reader(store, **SHAPE)
        rows = reader.rows(reference._replace(scheme="http"))
        got = rows.read(100, 50)
        assert got is not None and np.array_equal(got.ids(), whole.ids()[100:150]), reader.log
        assert reader.report.bytes < 50 * 12 * 8 * 1.05 + 4096
        gone = reader.rows(reference._replace(scheme="http", key="another")).read(100, 50)
        assert gone is not None and not gone.mask().any()
        assert reader.report.missing == {"evicted": 50}
        server.kill()
        server.wait()
        cut = rows.read(100, 50)
        assert cut is not None and not cut.mask().any()
        assert reader.report.missing == {"evicted": 100}


@pytest.mark.parametrize("scheme", ["s3", "mooncake"])
def test_a_server_that_goes_away_costs_rows_and_no_more(scheme: str) -> None:
    with (
        servers.server_of(scheme) as (url, settings, server),
        owner_of(scheme, url, settings) as owner,
    ):
        references = owner.call("generate", [9], [301])
        reader = remote.Reader(servers.connect(url, settings), **SHAPE)
        rows = reader.rows(references[0])
        assert rows.read(0, 300).mask().all()
        server.kill()
        server.wait()
        got = rows.read(0, 300)
        right = got.mask().all() and np.array_equal(got.ids(), routing_of(SHAPE, 9, 300).ids())
        assert right or reader.report.missing == {"evicted": 300}
