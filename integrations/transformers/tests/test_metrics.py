"""What an operator sees of a model that is captured."""

from typing import Any

import numpy as np
import pytest
import torch
from families import CACHE, make
from routecap_transformers import attach
from routecap_testing.scraping import chosen, counted, free_port, scrape, taken_port, wait_for_all

pytest.importorskip("prometheus_client")


def generate(model: Any) -> torch.Tensor:
    return model.generate(torch.arange(11, 17)[None], max_new_tokens=6, do_sample=False)


def test_counts_are_those_of_the_routings() -> None:
    model, port = make("qwen3_moe"), free_port()
    with attach(model, metrics_port=port) as capture:
        generate(model)
        [routing] = capture.take()
        wait_for_all(capture.capturer)
        found = scrape(port)
    experts = capture.capturer.experts
    counts = chosen(found, [tap.layer for tap in capture.taps], experts)
    assert (counts.sum(0) == counted(routing.ids(), experts)).all()
    rows = found["routecap_load_rows_total"]
    assert rows == {("prefill", "0"): 6, ("decode", "0"): routing.rows - 6}
    with pytest.raises(OSError):  # it is detached
        scrape(port)
    assert np.array_equal(capture.capturer.load().counts.sum(0), counts.sum(0))


def test_the_blocks_of_the_captures_store_are_counted() -> None:
    model, port = make("qwen3_moe"), free_port()
    tokens = torch.arange(11, 17)[None]
    with attach(model, metrics_port=port, store=1 << 22) as capture, torch.no_grad():
        cache = model(input_ids=tokens)[CACHE]
        capture.take()
        model(input_ids=tokens, **{CACHE: cache})
        assert capture.take()[0].complete
        blocks = scrape(port)["routecap_store_blocks_total"]
    assert blocks["published", "0"] >= 6 and blocks["adopted", "0"] == 6


def test_a_port_that_is_taken_is_said_and_the_model_goes_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    model = make("qwen3_moe")
    with taken_port() as port, attach(model, metrics_port=port) as capture:
        generate(model)
        assert capture.take()[0].complete
    assert f"in use: port {port}" in caplog.text
