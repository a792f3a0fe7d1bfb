"""Capturers and routings that the tests share."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import routecap

from routecap_testing.helpers import EXPERTS, LAYERS, ROWS, K, expected_ids, run


@pytest.fixture
def make() -> Iterator[Callable[..., routecap.Capturer]]:
    """Makes capturers, which are closed at the end."""
    made: list[routecap.Capturer] = []

    def make(**settings: Any) -> routecap.Capturer:
        made.append(
            routecap.Capturer(
                **{"layers": LAYERS, "k": K, "experts": EXPERTS, "rows": ROWS, **settings}
            )
        )
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture
def capturer(make: Callable[..., routecap.Capturer]) -> routecap.Capturer:
    return make()


@pytest.fixture
def routing(capturer: routecap.Capturer) -> routecap.Routing:
    """Twenty complete rows, of which `expected_ids(3, 20)` are the ids and 7 is the tag."""
    request = capturer.open()
    run(capturer, request, expected_ids(3, 20), tag=7)
    return request.extract(mode="copy")


@pytest.fixture
def holey(capturer: routecap.Capturer) -> routecap.Routing:
    """Ten rows: 4..5 are absent, and layer 2 of rows 6..9 was not written.

    The ids are `expected_ids(3, 10)`.
    """
    request = capturer.open()
    ids = expected_ids(3, 10)
    run(capturer, request, ids[:4], tag=1)
    capturer.begin(4)
    for layer in (0, 1, 3, 4):
        capturer.record(layer, ids[6:, layer])
    capturer.snapshot()
    capturer.issue(routecap.spans(1, request=int(request), position=6, rows=4), tag=2).wait(10)
    return request.finish(10)
