"""Which releases of transformers a capture and a replay run in."""

import logging
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from families import make
from routecap_replay.transformers import attach as replay_in
from routecap_transformers import Capture, Tap, _places, _versions, attach
from torch import nn
from transformers import GenerationMixin, cache_utils
from transformers.generation.continuous_batching import requests
from transformers.integrations import moe

LAST = ".".join(map(str, _versions.LAST))
VARIABLE = "ROUTECAP_TRANSFORMERS_UNCHECKED"


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.delenv(VARIABLE, raising=False)  # of who runs these tests in a new release
    return make("qwen3_moe")


def pretend(release: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # The module is made anew when a part of it is loaded late: `transformers` may be an older one.
    monkeypatch.setattr(sys.modules["transformers"], "__version__", release, raising=False)


def test_this_release_has_every_place(model: Any) -> None:
    fits, bad = _places.look()
    assert not bad and len(fits) == 7


@pytest.mark.parametrize(
    ("release", "checked"),
    [
        ("5.9.0", False), ("5.10.0", True), ("5.10.4", True), (f"{LAST}.9", True), ("5.99.0", False),
        (f"{LAST}.0+cpu", True), (f"{LAST}.1.post1", True), (f"{LAST}.0.dev0", False), (f"{LAST}.0rc1", False),
        ("4.57.6", False), ("6.10.0", False), ("15.10.0", False), ("new", False), ("5", False),
    ],
)  # fmt: skip
def test_a_release_is_checked_from_the_first_to_the_last(release: str, checked: bool) -> None:
    assert _versions.is_checked(release) is checked


@pytest.mark.parametrize("release", ["5.9.0", "5.99.0"])
@pytest.mark.parametrize("enter", [attach, replay_in])
def test_another_release_is_refused_until_a_setting_says_otherwise(
    model: Any, enter: Any, release: str, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    pretend(release, monkeypatch)
    text = (
        f"routecap knows transformers {re.escape(_versions.KNOWN)}, and this is {release}. Of the"
        rf" places that routecap_transformers hooks and reads, 7 of 7 fit.\nattach\(model,"
        rf" unchecked=True\) or {VARIABLE}=1 runs it.*\n  the experts' dispatch\n"
    )
    with pytest.raises(ValueError, match=text):
        enter(model)
    monkeypatch.setenv(VARIABLE, "1")
    with pytest.raises(ValueError, match=text):
        enter(model, unchecked=False)
    with caplog.at_level(logging.WARNING, "routecap_transformers"):
        enter(model).detach()
    assert f"not checked with transformers {release}" in caplog.text
    monkeypatch.setenv(VARIABLE, "0")
    with pytest.raises(ValueError, match=text):
        enter(model)
    enter(model, unchecked=True).detach()
    monkeypatch.setenv(VARIABLE, "perhaps")
    with pytest.raises(ValueError, match=f"{VARIABLE} is 'perhaps': it must be 1 or 0"):
        enter(model)


def test_a_capture_says_that_its_release_is_not_checked(
    model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with attach(model) as capture:
        assert capture.unchecked == "" and "checked" not in repr(capture)
    pretend("5.99.0", monkeypatch)
    with attach(model, unchecked=True) as capture, torch.no_grad():
        model(input_ids=torch.tensor([[5, 6, 7]]))
        [routing] = capture.take()
        assert capture.unchecked == "not checked with transformers 5.99.0"
        assert capture.unchecked in repr(capture)
    assert routing.complete and routing.rows == 3


def remove_a_parameter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GenerationMixin, "generate", lambda self, prompts: None)


def remove_a_field(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = dict(requests.RequestState.__annotations__)
    del kept["position_offset"]
    lacking = type("RequestState", (), {"__annotations__": kept})
    monkeypatch.setattr(requests, "RequestState", lacking)


def remove_an_operation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(cache_utils.DynamicLayer, "get_seq_length")
    monkeypatch.delattr(cache_utils.CacheLayerMixin, "get_seq_length")


def remove_the_dispatch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(moe, "use_experts_implementation")


@pytest.mark.parametrize(
    ("remove", "place", "why"),
    [
        (remove_a_parameter, "generate", r"\(self, prompts\) has no parameter inputs"),
        (remove_a_field, "its requests", "RequestState must have position_offset"),
        (remove_an_operation, "caches", "DynamicLayer has no get_seq_length"),
        (
            remove_the_dispatch,
            "the experts' dispatch",
            "transformers.integrations.moe has no use_experts_implementation",
        ),
    ],
)
def test_a_release_that_lacks_a_place_is_refused_whatever_the_setting_says(
    model: Any, remove: Any, place: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend("5.99.0", monkeypatch)
    remove(monkeypatch)
    with pytest.raises(ValueError) as refusal:
        attach(model, unchecked=True)
    said = str(refusal.value)
    assert "hooks and reads, 6 of 7 fit.\nThese do not fit:" in said
    assert re.search(f"\n  {place}: .*{why}\nThese fit:\n", said)


def test_a_model_that_is_not_of_transformers_is_of_no_release(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Experts(nn.Module):
        def forward(self, states: Any, top_k_index: Any) -> Any:
            return states

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.experts = Experts()

        def forward(self, states: Any) -> Any:
            return self.experts(states, torch.zeros(len(states), 2, dtype=torch.long))

    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList([Layer()])

        def forward(self, input_ids: Any, attention_mask: Any = None, position_ids: Any = None,
                    cache: Any = None) -> Any:  # fmt: skip
            return self.layers[0](input_ids[0, :, None].float())

    pretend("5.99.0", monkeypatch)
    model = Own()
    tap = Tap(0, "layers.0.experts", model.layers[0].experts, True, lambda a, k, o: a[1], 2, 8)
    capture = attach(model, taps=[tap])
    assert isinstance(capture, Capture) and capture.unchecked == ""
    capture.detach()


def test_the_range_is_what_the_package_its_guide_and_what_is_run_say() -> None:
    folder = Path(__file__).parents[1]
    run = [each.rpartition(".")[0] for each in (folder / "releases.txt").read_text().split()]
    assert run == [f"5.{each}" for each in range(_versions.FIRST[1], _versions.LAST[1] + 1)]
    least = ".".join(map(str, _versions.FIRST))
    packaged = (folder / "pyproject.toml").read_text()
    assert f'"transformers>={least}"' in packaged
    guide = (folder / "README.md").read_text()
    assert f"'transformers>={least}'" in guide and f"transformers {_versions.KNOWN}" in guide
