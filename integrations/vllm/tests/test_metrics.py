"""What an operator sees of an engine: the counts of its routings, at a port of each rank."""

import random

import numpy as np
import pytest
import torch
from engine import Model
from routecap_testing.scraping import chosen, counted, free_port, scrape, taken_port
from test_prefixes import TOKENS, Caching, request

from routecap_vllm import routed_experts_capturer as module
from routecap_vllm.routed_experts_capturer import Options

pytest.importorskip("prometheus_client")


def add(engine, count, **parameters):
    """Returns how many tokens their prompts have."""
    draw = random.Random(1)
    prompts = [[draw.randrange(3, 1000) for _ in range(draw.randint(2, 90))] for _ in range(count)]
    for i, prompt in enumerate(prompts):
        engine.add(f"{i}", prompt, max_tokens=draw.randint(2, 30), **parameters)
    return sum(map(len, prompts))


@pytest.fixture
def port():
    return free_port()


def test_counts_are_those_of_the_routings(start, port):
    engine = start(options=Options(metrics_port=port))
    prompts = add(engine, 12)
    engine.run()
    capturer = module.get_global_experts_capturer()
    found = scrape(port)
    counts = chosen(found, capturer.layer_map, capturer.capturer.experts)
    rows = np.concatenate(list(engine.arrays.values()))
    assert (counts.sum(0) == counted(rows, capturer.capturer.experts)).all()
    prefill, decode = (
        found["routecap_load_rows_total"][phase, "0"] for phase in ("prefill", "decode")
    )
    assert prefill + decode == len(rows) == found["routecap_rows_total"]["delivered", "0"]
    assert 0.8 * prompts < prefill <= prompts  # a chunk of one row is decode


def test_rows_that_verify_drafts_are_decode(start, port):
    engine = start(options=Options(metrics_port=port), drafts=3, seed=2)
    prompts = add(engine, 12)
    engine.run()
    assert engine.checked["drafts rejected"] > 0
    rows = scrape(port)["routecap_load_rows_total"]
    assert 0.8 * prompts < rows["prefill", "0"] <= prompts
    # Rows of a second prefill are prefill, though the request has had output.
    engine.add("again", [9] * 40, max_tokens=100)
    while not engine.requests["again"].sampled:
        engine.step()
    assert module.routing_of("again").rows >= 40  # what is in flight when it goes does not count
    engine.preempt("again")
    engine.run()
    more = scrape(port)["routecap_load_rows_total"]
    assert more["prefill", "0"] - rows["prefill", "0"] > 60


def test_the_last_capturer_of_a_process_is_served(start, port, caplog):
    options = Options(metrics_port=port)
    measuring = start(options=options)  # as vLLM makes one while it measures its graphs
    add(measuring, 3)
    measuring.run()
    first = module.get_global_experts_capturer()  # which is still there
    engine = start(options=options)
    assert module.get_global_experts_capturer() is not first
    assert scrape(port)["routecap_rows_total"]["delivered", "0"] == 0
    add(engine, 12)
    engine.run()
    rows = sum(map(len, engine.arrays.values()))
    assert scrape(port)["routecap_rows_total"]["delivered", "0"] == rows
    assert not [each for each in caplog.messages if "not served" in each]


def test_the_blocks_of_the_engines_store_are_counted(start, port):
    batch = Caching(start, Options(metrics_port=port), a=request(), b=request())
    batch.fill("a")
    batch.hit("b", [*TOKENS, 30, 31, 32, 33], numbers=(3, 5, 9))
    batch.wait_for_blocks()
    blocks = scrape(port)["routecap_store_blocks_total"]
    assert blocks["published", "0"] == blocks["adopted", "0"] == 2 and blocks["absent", "0"] == 1


def test_ranks_of_a_machine_have_ports_of_their_own(start, port, monkeypatch, caplog):
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 3)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 8)
    with caplog.at_level("INFO"):
        start(options=Options(metrics_port=port))
    [line] = [each for each in caplog.messages if "metrics" in each]
    assert line == f"metrics of rank 3 are served at http://127.0.0.1:{port + 3}/metrics"
    assert ("delivered", "3") in scrape(port + 3)["routecap_rows_total"]


def test_a_port_that_is_taken_is_said_and_serving_goes_on(start, caplog):
    with taken_port() as port:
        engine = start(options=Options(metrics_port=port))
    [line] = [each for each in caplog.messages if "metrics" in each]
    assert f"in use: port {port}" in line
    add(engine, 4)
    engine.run()
    assert engine.checked["requests"] == 4


def test_ranks_without_rows_serve_none_and_the_end_frees_the_port(start, port):
    start(options=Options(metrics_port=port, metrics_experts=False))
    assert "routecap_expert_chosen_total" not in scrape(port)
    config = Model().model_config
    module.init_routed_experts_capturer_with_shared_cache(False, None, 0, 0, 0, "cpu")
    with pytest.raises(OSError):
        scrape(port)
    module.init_routed_experts_capturer_with_shared_cache(
        True, config, 0, 64, 512, "cpu", rank=1, world_size=2
    )
    with pytest.raises(OSError):
        scrape(port)


@pytest.mark.parametrize("known", [True, False])
def test_the_layers_may_say_how_many_experts_there_are(start, port, caplog, known):
    model = Model()
    del model.hf_config.n_routed_experts
    for moe in filter(None, model.moe):
        moe.logical_num_experts = 64 if known else None
    engine = start(model, options=Options(metrics_port=port))
    if not known:
        assert "not served, because it is not known how many experts" in caplog.text
        return
    add(engine, 2)
    engine.run()
    capturer = module.get_global_experts_capturer()
    counts = chosen(scrape(port), capturer.layer_map, capturer.capturer.experts)
    assert counts.sum() == sum(array.size for array in engine.arrays.values())
    assert "not served" not in caplog.text
