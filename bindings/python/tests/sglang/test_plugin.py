"""When the plugin does something, and what it tells SGLang's registry."""

import ast
import types
from importlib.metadata import PackageNotFoundError, distribution

import pytest

import routecap.sglang
from routecap.sglang import _v0523

try:
    SOURCE = distribution("sglang").locate_file("")
except PackageNotFoundError:
    SOURCE = None


def test_it_does_nothing_until_it_is_asked(registry, monkeypatch):
    routecap.sglang.plugin()
    monkeypatch.setenv("ROUTECAP_SGLANG", "0")
    monkeypatch.setenv("SGLANG_PLUGINS", "other")
    routecap.sglang.plugin()
    assert registry.hooks == []


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("SGLANG_PLUGINS", "other, routecap"),
        ("SGLANG_PLUGINS", "routecap"),
        ("ROUTECAP_SGLANG", "1"),
        ("ROUTECAP_SGLANG", "beside"),
    ],
)
def test_asked_it_registers_its_hooks_once(registry, monkeypatch, name, value):
    monkeypatch.setenv(name, value)
    routecap.sglang.plugin()
    count = len(registry.hooks)
    routecap.sglang.plugin()
    assert count == len(registry.hooks) == 20
    assert _v0523._options.beside is (value == "beside")


def test_a_type_that_there_is_not_is_refused_where_a_request_comes_in(monkeypatch):
    def request(dtype, asks=True):
        parameters = {"custom_params": {"routed_experts_dtype": dtype}}
        return types.SimpleNamespace(return_routed_experts=asks, sampling_params=parameters)

    monkeypatch.setattr(_v0523, "_options", routecap.sglang.Options())
    for dtype in ("float", 16, None):
        with pytest.raises(ValueError, match=f"routed_experts_dtype is {dtype!r}: it must be one"):
            _v0523.check_request(None, request(dtype), [1])
    _v0523.check_request(None, request("uint8"), [1])
    _v0523.check_request(None, request("float", asks=False), [1])
    _v0523.check_request(None, types.SimpleNamespace(sampling_params={}), [1])  # an embedding's
    monkeypatch.setattr(_v0523, "_options", routecap.sglang.Options(beside=True))
    _v0523.check_request(None, request("float"), [1])  # SGLang's own answers


def test_another_version_is_named_and_left_alone(registry, monkeypatch, caplog):
    monkeypatch.setenv("ROUTECAP_SGLANG", "1")
    monkeypatch.setattr(routecap.sglang, "_version", lambda: "0.6.0")
    routecap.sglang.plugin()
    assert registry.hooks == [] and "knows SGLang 0.5.23, not 0.6.0" in caplog.text
    with pytest.raises(RuntimeError, match=r"0\.6\.0"):
        routecap.sglang.install()


def test_a_program_installs_it_for_the_processes_that_it_starts(registry, monkeypatch):
    monkeypatch.setenv("ROUTECAP_SGLANG_FOLDER", "")
    for name in ("BESIDE", "CALLBACK", "BUDGET_BYTES", "SLOTS"):
        monkeypatch.setenv(f"ROUTECAP_SGLANG_{name}", "0")
    monkeypatch.setenv("ROUTECAP_SGLANG", "1")
    routecap.sglang.install(routecap.sglang.Options(folder="/data"))
    assert registry.applied == 1 and len(registry.hooks) == 20
    assert routecap.sglang.Options.from_environment().folder == "/data"
    monkeypatch.setenv("SGLANG_PLUGINS", "other, routecap")
    routecap.sglang.install()
    monkeypatch.setenv("SGLANG_PLUGINS", "other")
    with pytest.raises(RuntimeError, match="other"):
        routecap.sglang.install()


def test_every_target_is_there_in_sglang_0_5_23(registry, monkeypatch):
    assert SOURCE is not None, "needs SGLang's source: its wheel, and nothing that it needs"
    monkeypatch.setenv("ROUTECAP_SGLANG", "1")
    routecap.sglang.plugin()
    for target, _, _ in registry.hooks:
        *modules, name = target.split(".")
        owner = modules.pop() if modules[-1][0].isupper() else None
        found = ast.parse((SOURCE / "/".join(modules)).with_suffix(".py").read_text())
        if owner is not None:
            [found] = [n for n in found.body if isinstance(n, ast.ClassDef) and n.name == owner]
        functions = (ast.FunctionDef, ast.AsyncFunctionDef)
        assert [n for n in found.body if isinstance(n, functions) and n.name == name], target
