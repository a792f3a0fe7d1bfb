"""When the plugin does something, and what it tells SGLang's registry."""

import ast
import importlib
import types
from importlib.metadata import PackageNotFoundError, distribution

import pytest
import routecap_sglang
from routecap_sglang import _hooks, _versions

try:
    SOURCE = distribution("sglang").locate_file("")
except PackageNotFoundError:
    SOURCE = None


def test_it_does_nothing_until_it_is_asked(registry, monkeypatch):
    routecap_sglang.plugin()
    monkeypatch.setenv("ROUTECAP_SGLANG", "0")
    monkeypatch.setenv("SGLANG_PLUGINS", "other")
    routecap_sglang.plugin()
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
    routecap_sglang.plugin()
    count = len(registry.hooks)
    routecap_sglang.plugin()
    assert count == len(registry.hooks) == 20
    assert _hooks._options.beside is (value == "beside")


def test_a_type_that_there_is_not_is_refused_where_a_request_comes_in(monkeypatch):
    def request(dtype, asks=True):
        parameters = {"custom_params": {"routed_experts_dtype": dtype}}
        return types.SimpleNamespace(return_routed_experts=asks, sampling_params=parameters)

    monkeypatch.setattr(_hooks, "_options", routecap_sglang.Options())
    for dtype in ("float", 16, None):
        with pytest.raises(ValueError, match=f"routed_experts_dtype is {dtype!r}: it must be one"):
            _hooks.check_request(None, request(dtype), [1])
    _hooks.check_request(None, request("uint8"), [1])
    _hooks.check_request(None, request("float", asks=False), [1])
    _hooks.check_request(None, types.SimpleNamespace(sampling_params={}), [1])  # an embedding's
    monkeypatch.setattr(_hooks, "_options", routecap_sglang.Options(beside=True))
    _hooks.check_request(None, request("float"), [1])  # SGLang's own answers


def stand_in(monkeypatch, lacks=""):
    """A release that nobody checked, whose names are those of SGLang's that design modules know;
    but one."""

    def misfits(functions, fields):
        return [f"there must be {name}" for name in functions if name == lacks]

    monkeypatch.setattr(_versions, "installed", lambda: "0.6.0")
    monkeypatch.setattr(_versions, "misfits", misfits)


def test_another_release_is_refused_and_what_it_lacks_is_named(registry, monkeypatch, caplog):
    monkeypatch.setenv("ROUTECAP_SGLANG", "1")
    lacking = "sglang.srt.model_executor.forward_batch_info.ForwardBatch.init_new"
    stand_in(monkeypatch, lacking)
    routecap_sglang.plugin()
    assert registry.hooks == [] and _hooks._design is None
    assert f"0.5.23, and this is 0.6.0. These do not fit:\n  there must be {lacking}" in caplog.text
    with pytest.raises(RuntimeError, match=r"0\.6\.0"):
        routecap_sglang.install()
    monkeypatch.setenv("ROUTECAP_SGLANG_UNCHECKED", "1")
    routecap_sglang.plugin()
    assert registry.hooks == []


def test_another_release_that_fits_is_run_if_a_setting_says_so(registry, monkeypatch, caplog):
    monkeypatch.setenv("ROUTECAP_SGLANG", "1")
    stand_in(monkeypatch)
    routecap_sglang.plugin()
    assert registry.hooks == [] and "ROUTECAP_SGLANG_UNCHECKED=1 runs it" in caplog.text
    monkeypatch.setenv("ROUTECAP_SGLANG_UNCHECKED", "1")
    routecap_sglang.plugin()
    assert len(registry.hooks) == 20 and "not checked with SGLang 0.6.0" in caplog.text


@pytest.mark.parametrize("number", ("of no version", "0.5.99.dev1", "0.5.12rc0"))
def test_what_is_no_release_is_refused(registry, monkeypatch, caplog, number):
    monkeypatch.setenv("ROUTECAP_SGLANG", "1")
    monkeypatch.setenv("ROUTECAP_SGLANG_UNCHECKED", "1")
    monkeypatch.setattr(_versions, "installed", lambda: number)
    routecap_sglang.plugin()
    assert registry.hooks == [] and f"and this is {number}" in caplog.text


@pytest.mark.parametrize(
    ("number", "design"),
    [
        ("0.5.10", None),
        ("0.5.10.post1", "_before_plugins"),
        ("0.5.10.post2", None),
        ("0.5.11", "_mixins"),
        ("0.5.12.post1", "_mixins"),
        ("0.5.13", "_components"),
        ("0.5.21", "_components"),
        ("0.5.22", "_checkpoints"),
        ("0.5.23+cu130", "_checkpoints"),
        ("0.5.23.post1", None),
    ],
)
def test_each_release_has_the_design_whose_range_it_is_in(monkeypatch, number, design):
    monkeypatch.setattr(_versions, "misfits", lambda *names: ["nothing is there"])
    found = _versions.find(number, routecap_sglang.Options())
    assert found.checked is (design is not None) and bool(found.why) is (design is None)
    if design:
        module = importlib.import_module(f"routecap_sglang.{design}")
        assert found.design == module.design(number, _versions.release_of(number))


def test_a_program_installs_it_for_the_processes_that_it_starts(registry, monkeypatch):
    monkeypatch.setenv("ROUTECAP_SGLANG_FOLDER", "")
    for name in ("BESIDE", "CALLBACK", "BUDGET_BYTES", "SLOTS"):
        monkeypatch.setenv(f"ROUTECAP_SGLANG_{name}", "0")
    monkeypatch.setenv("ROUTECAP_SGLANG", "1")
    routecap_sglang.install(routecap_sglang.Options(folder="/data"))
    assert registry.applied == 1 and len(registry.hooks) == 20
    assert routecap_sglang.Options.from_environment().folder == "/data"
    monkeypatch.setenv("SGLANG_PLUGINS", "other, routecap")
    routecap_sglang.install()
    monkeypatch.setenv("SGLANG_PLUGINS", "other")
    with pytest.raises(RuntimeError, match="other"):
        routecap_sglang.install()


def test_every_target_is_there_in_sglang_0_5_23(registry, monkeypatch):
    assert SOURCE is not None, "needs SGLang's source: its wheel, and nothing that it needs"
    monkeypatch.setenv("ROUTECAP_SGLANG", "1")
    routecap_sglang.plugin()
    for target, _, _ in registry.hooks:
        *modules, name = target.split(".")
        owner = modules.pop() if modules[-1][0].isupper() else None
        found = ast.parse((SOURCE / "/".join(modules)).with_suffix(".py").read_text())
        if owner is not None:
            [found] = [n for n in found.body if isinstance(n, ast.ClassDef) and n.name == owner]
        functions = (ast.FunctionDef, ast.AsyncFunctionDef)
        assert [n for n in found.body if isinstance(n, functions) and n.name == name], target
