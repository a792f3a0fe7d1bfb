"""A library without CUDA under an engine that runs on it: told in one sentence, before weights
are loaded."""

import importlib
import logging
import sys
from types import SimpleNamespace

import pytest

import routecap
import routecap_vllm
from routecap_vllm import _platform
from routecap_vllm import routed_experts_capturer as module

SENTENCE = "the engine runs on CUDA, and this routecap was built without it"


@pytest.fixture
def build(monkeypatch):
    """build(cuda, engine, driver): what the library has, the engine runs on, the machine has."""

    def pretend(cuda, engine, driver=False):
        monkeypatch.setattr(_platform, "without_cuda", lambda: not cuda)
        if engine is None:
            monkeypatch.delitem(sys.modules, "vllm.platforms", raising=False)
        else:
            platforms = SimpleNamespace(current_platform=SimpleNamespace(device_type=engine))
            monkeypatch.setitem(sys.modules, "vllm.platforms", platforms)

        def load(name):
            if not driver:
                raise OSError(name)

        monkeypatch.setattr(_platform.ctypes, "CDLL", load)

    return pretend


@pytest.mark.parametrize(
    ("cuda", "engine", "driver", "said"),
    [
        (False, "cuda", False, True),
        (False, "cpu", True, False),
        (False, None, True, True),  # nobody has said yet
        (False, None, False, False),
        (True, "cuda", True, False),
        (True, None, True, False),
    ],
)
def test_a_library_without_cuda_says_so(build, caplog, cuda, engine, driver, said):
    build(cuda, engine, driver)
    with caplog.at_level(logging.ERROR):
        _platform.say_if_without_cuda()
    assert [SENTENCE in record.getMessage() for record in caplog.records] == [True] * said


@pytest.mark.parametrize(
    ("engine", "there", "refused"),
    [
        ("xpu", None, True),
        ("xpu", "xpu", False),
        ("tpu", "xpu", True),
        ("cpu", None, False),
        ("", None, False),
    ],
)
def test_an_engine_on_a_device_that_pytorch_does_not_have_is_refused_before_weights_are_loaded(
    build, monkeypatch, engine, there, refused
):
    torch = pytest.importorskip("torch")
    build(True, engine)
    accelerator = None if there is None else torch.device(there)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: accelerator)
    if refused:
        with pytest.raises(
            ValueError, match=f"runs on {engine}, where routecap has no backend and PyT"
        ):
            _platform.expect_cuda()
    else:
        _platform.expect_cuda()


def test_it_is_said_when_the_module_is_imported(build, caplog, monkeypatch):
    build(False, "cuda")
    monkeypatch.delitem(sys.modules, module.__name__)
    monkeypatch.setattr(routecap_vllm, "routed_experts_capturer", module)
    with caplog.at_level(logging.ERROR):
        importlib.import_module(module.__name__)
    assert SENTENCE in caplog.text


def test_what_the_library_has_is_asked_of_the_library():
    assert _platform.without_cuda() == ("built without CUDA" in routecap.backends()["cuda"].detail)
