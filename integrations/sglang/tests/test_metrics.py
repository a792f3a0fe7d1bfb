"""What an operator sees of a scheduler: the counts of its routings, at a port of each rank."""

import numpy as np
import pytest
import torch
from engine import EXPERTS, ROUTED, Request, choose
from routecap_sglang import Options
from routecap_testing.scraping import chosen, counted, free_port, scrape, taken_port, wait_for_all

pytest.importorskip("prometheus_client")

draw = np.random.default_rng(3)


def requests(*lengths):
    return [Request(draw.integers(0, 100, n).tolist(), most=n % 7 + 1) for n in lengths]


@pytest.fixture
def options():
    return Options(budget_bytes=64 << 20, metrics_port=free_port())


def test_counts_are_those_of_the_routings(start, options, ranks):
    ranks.enabled = False  # nobody asks for rows
    engine = start(options=options)
    served = requests(1, 15, 16, 17, 40)
    engine.generate(served)
    wait_for_all(engine.capturer.capturer)
    found = scrape(options.metrics_port)
    counts = chosen(found, ROUTED, EXPERTS)
    rows = np.concatenate([choose(request.tokens) for request in served])  # the last ran ahead
    assert (counts.sum(0) == counted(rows, EXPERTS)).all()
    assert sum(found["routecap_load_rows_total"].values()) == len(rows)


def test_rows_of_a_cached_prefix_count_where_they_were_computed(start, options):
    engine = start(options=options)
    [first] = requests(30)
    engine.generate([first])
    second = Request(first.tokens[:31].tolist() + [7] * 5, most=4)
    assert engine.generate([second]) == [31]
    wait_for_all(engine.capturer.capturer)
    rows = scrape(options.metrics_port)["routecap_load_rows_total"]
    assert sum(rows.values()) == len(first.tokens) + len(second.tokens) - 31


def test_ranks_of_a_machine_have_ports_of_their_own(start, options, ranks, monkeypatch, caplog):
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 1)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    ranks.dp_rank = 3  # a replica with ranks of its own
    with caplog.at_level("INFO"):
        engine = start(options=options)
    [line] = [each for each in caplog.messages if "metrics" in each]
    port = options.metrics_port + 3 * 2 + 1
    assert line == f"metrics of rank 7 are served at http://127.0.0.1:{port}/metrics"
    assert ("delivered", "7") in scrape(port)["routecap_rows_total"]
    engine.close()
    with pytest.raises(OSError):
        scrape(port)


def test_a_rank_without_requests_serves_none(start, options, ranks):
    ranks.attn_tp_rank, ranks.attn_tp_size = 1, 2
    start(options=options)
    with pytest.raises(OSError):
        scrape(options.metrics_port)


def test_a_port_that_is_taken_is_said_and_serving_goes_on(start, caplog):
    with taken_port() as port:
        engine = start(options=Options(budget_bytes=64 << 20, metrics_port=port))
    [line] = [each for each in caplog.messages if "metrics" in each]
    assert f"in use: port {port}" in line
    [request] = requests(9)
    engine.generate([request])
    assert engine.answer(request) is not None
