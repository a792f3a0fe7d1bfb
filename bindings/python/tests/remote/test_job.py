"""The job of main.py with each store, and with owners that are killed."""

import engine
import main
import pytest
import servers


@pytest.mark.parametrize("scheme", servers.SCHEMES)
def test_the_job_moves_what_plans_name_and_loses_no_row_silently(scheme: str) -> None:
    found = main.run(scheme, samples=8, steps=1, kills=3)
    for each in found.values():
        assert each["wrong_rows"] == 0
        assert each["lost_rows"] == sum(each["missing"].values())
    assert found["calm"]["lost_rows"] == 0
    assert found["calm"]["read_over_plan"] < 1.05
    assert found["calm"]["driver_bytes_a_sample"] < 1024


def test_what_a_real_engine_captured_is_what_its_routers_choose() -> None:
    assert main.ENGINE_SHAPE == engine.SHAPE
    found = main.run("mooncake", samples=8, steps=1, engine="transformers")["calm"]
    assert found["rows"] > 200 and found["wrong_rows"] == found["lost_rows"] == 0
