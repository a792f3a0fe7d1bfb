"""Models that are compiled before or behind the attach, whole or in parts: the rows are those of the
eager model, or a warning says why not, before all is taken.
"""

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from families import Witness, make, rows_of
from routecap_transformers import Capture, attach

TOKENS = torch.tensor([[11, 12, 13, 14, 15, 16], [21, 22, 23, 24, 25, 26]])
BEFORE, NOT_SEEN = (
    "a forward pass ran, and nothing was captured",
    r"layers \[0, 2\] were not seen to choose",
)
UNFOLLOWED = "compiled forward passes run, and nobody said whose their rows are"
Run = Callable[..., Any]

pytestmark = pytest.mark.usefixtures("compiler")


def slow(*values: Any) -> Any:
    """What differs from another case in what is compiled and when: torch.compile takes seconds."""
    return pytest.param(*values, marks=pytest.mark.slow)


def compiled(module: Any) -> Any:
    return torch.compile(module, backend="eager")


def forward(run: Run) -> None:
    with torch.no_grad():
        run(input_ids=TOKENS, use_cache=False)


def each_layer(model: Any) -> None:
    for layer in model.model.layers:
        layer.compile(backend="eager")


def own_forward(model: Any) -> Run:
    model.forward = compiled(model.forward)
    run: Run = model
    return run


# ---- What has all rows


def attach_to_what_compile_returned(model: Any) -> tuple[Capture, Run]:
    run = compiled(model)
    return attach(run), run


def forward_compiled_behind_attach(model: Any) -> tuple[Capture, Run]:
    return attach(model), own_forward(model)


def forward_compiled_before_attach(model: Any) -> tuple[Capture, Run]:
    run = own_forward(model)
    return attach(model), run


def layers_compiled_behind_attach(model: Any) -> tuple[Capture, Run]:
    capture = attach(model)
    each_layer(model)
    return capture, model


def layers_compiled_before_attach(model: Any) -> tuple[Capture, Run]:
    each_layer(model)
    return attach(model), model


def decoder_compiled_before_attach(model: Any) -> tuple[Capture, Run]:
    model.model.compile(backend="eager")
    return attach(model), model


@pytest.mark.parametrize(
    "way",
    [
        slow(attach_to_what_compile_returned),
        forward_compiled_behind_attach,
        slow(forward_compiled_before_attach),
        slow(layers_compiled_behind_attach),
        slow(layers_compiled_before_attach),
        slow(decoder_compiled_before_attach),
    ],
)
def test_rows_are_those_of_the_eager_model(way: Callable[[Any], tuple[Capture, Run]]) -> None:
    model = make("qwen3_moe")
    with Witness(model) as witness:
        forward(model)
    rows = [each.numpy() for each in rows_of(witness.passes, [torch.ones_like(TOKENS)], 2)]
    capture, run = way(model)
    with capture:
        forward(run)
        forward(run)
        routings = capture.take()
    assert len(routings) == 4
    for number, routing in enumerate(routings):
        assert routing.complete
        assert (np.sort(routing.ids().astype(np.int64), -1) == rows[number % 2]).all()


# ---- What has not, and says so


def whole_compiled_behind_attach(model: Any) -> tuple[Capture, Run]:
    return attach(model), compiled(model)


def compiled_in_place_behind_attach(model: Any) -> tuple[Capture, Run]:
    capture = attach(model)
    model.compile(backend="eager")
    return capture, model


def whole_ran_before_attach(model: Any) -> tuple[Capture, Run]:
    run = compiled(model)
    forward(run)
    return attach(run), run


def forward_ran_before_attach(model: Any) -> tuple[Capture, Run]:
    run = own_forward(model)
    forward(run)
    return attach(model), run


def layers_ran_before_attach(model: Any) -> tuple[Capture, Run]:
    each_layer(model)
    forward(model)
    return attach(model), model


def decoder_ran_before_attach(model: Any) -> tuple[Capture, Run]:
    model.model.compile(backend="eager")
    forward(model)
    return attach(model), model


# The warning came when all was taken, hours later.
@pytest.mark.parametrize(
    ("way", "passes", "said"),
    [
        slow(whole_compiled_behind_attach, 2, UNFOLLOWED),  # issue() may be called behind the first
        slow(compiled_in_place_behind_attach, 2, UNFOLLOWED),
        slow(whole_ran_before_attach, 1, BEFORE),
        slow(forward_ran_before_attach, 1, BEFORE),
        (layers_ran_before_attach, 1, NOT_SEEN),
        slow(decoder_ran_before_attach, 1, NOT_SEEN),
    ],
)
def test_what_cannot_be_captured_is_said_when_it_runs(
    way: Callable[[Any], tuple[Capture, Run]], passes: int, said: str
) -> None:
    capture, run = way(make("qwen3_moe"))
    with capture:
        for _ in range(passes - 1):
            forward(run)
        with pytest.warns(RuntimeWarning, match=said):
            forward(run)
        with warnings.catch_warnings():  # once is enough
            warnings.simplefilter("error")
            forward(run)
        with pytest.warns(RuntimeWarning, match="captured|missing"):
            routings = capture.take()
    assert all(not routing.coverage().rows_complete for routing in routings)


# Nothing of the module that is attached runs: what torch.compile returned is another one.
@pytest.mark.slow
def test_a_model_whose_compiled_form_ran_before_is_reported_when_all_is_taken() -> None:
    model = make("qwen3_moe")
    run = compiled(model)
    forward(run)
    with attach(model) as capture:
        forward(run)
        with pytest.warns(RuntimeWarning, match="nothing was captured: the model has not run, or"):
            assert capture.take() == []


@pytest.mark.parametrize("ran", [False, slow(True)])
def test_a_model_that_was_compiled_in_place_is_named_when_it_is_attached(ran: bool) -> None:
    model = make("qwen3_moe")
    model.compile(backend="eager")
    if ran:
        forward(model)
    with pytest.warns(RuntimeWarning, match=r"Qwen3MoeForCausalLM.compile\(\) was called"):
        attach(model).close()


def test_passes_of_a_graph_whose_rows_are_issued_need_no_warning() -> None:
    model = make("qwen3_moe")
    with attach(model) as capture:
        run = compiled(model)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for _ in range(3):
                forward(run)
                capture.issue(torch.arange(6).repeat(2, 1), new=True)
            routings = capture.take()
    assert len(routings) == 6 and all(routing.complete for routing in routings)
