"""Stand-ins for classes and functions of released SGLang, out of its source: what they are called,
their fields and their parameters, and nothing that they do."""

import ast
import copy
import functools
import sys
import types
from importlib.metadata import distribution


@functools.cache
def _parsed(module):
    path = distribution("sglang").locate_file("/".join(module.split(".")))
    return ast.parse(path.with_suffix(".py").read_text())


def _split(name):
    """The module, the class or None, and the rest of a whole name."""
    *modules, last = name.split(".")
    if last[0].isupper():
        return ".".join(modules), last, None
    owner = modules.pop() if modules[-1][0].isupper() else None
    return ".".join(modules), owner, last


def put(monkeypatch, name, **renamed):
    """Put one into its module, and into its class if it is a method; returns whether all that is to
    be renamed was there. renamed: other names for parts of it, or for itself."""
    module, owner, function = _split(name)
    place, body = _module(monkeypatch, module), _parsed(module).body
    if owner is not None:
        [found] = [each for each in body if isinstance(each, ast.ClassDef) and each.name == owner]
        body = found.body
        made = getattr(place, owner, None) or type(owner, (), {"__annotations__": {}})
        _set(monkeypatch, place, owner, made, renamed)
        place = made
    if function is None:
        fields = [each.target.id for each in body if isinstance(each, ast.AnnAssign)]
        annotations = {renamed.get(each, each): None for each in fields}
        monkeypatch.setattr(place, "__annotations__", annotations)
        return renamed.keys() <= {owner, *fields}
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    [found] = [each for each in body if isinstance(each, kinds) and each.name == function]
    made, parameters = _function(found, renamed)
    _set(monkeypatch, place, function, made, renamed)
    return renamed.keys() <= {function, *parameters}


def _set(monkeypatch, place, name, value, renamed):
    monkeypatch.delattr(place, name, raising=False)
    monkeypatch.setattr(place, renamed.get(name, name), value, raising=False)


def _function(found, renamed):
    arguments = copy.deepcopy(found.args)
    every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    parameters = [each.arg for each in every]
    for each in every:
        each.arg, each.annotation = renamed.get(each.arg, each.arg), None
    nothing = ast.Constant(None)
    arguments.defaults = [nothing for _ in arguments.defaults]
    arguments.kw_defaults = [each and nothing for each in arguments.kw_defaults]
    scope = {}
    exec(f"def made({ast.unparse(arguments)}): pass", scope)
    made = scope["made"]
    for decorator in found.decorator_list:
        if isinstance(decorator, ast.Name) and decorator.id in ("staticmethod", "classmethod"):
            made = {"staticmethod": staticmethod, "classmethod": classmethod}[decorator.id](made)
    return made, parameters


def _module(monkeypatch, name):
    if name not in sys.modules:
        parent, _, last = name.rpartition(".")
        made = types.ModuleType(name)
        if parent:
            monkeypatch.setattr(_module(monkeypatch, parent), last, made, raising=False)
        monkeypatch.setitem(sys.modules, name, made)
    return sys.modules[name]
