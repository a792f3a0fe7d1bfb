"""Single modules of released packages, without what their packages import."""

import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType


def released(name: str) -> ModuleType:
    """The module `name` (a.b.c) of the first folder on the path that has its file. The packages
    above it are imported without their __init__, which want a GPU's libraries.
    """
    file = Path(*name.split(".")).with_suffix(".py")
    [root, *_] = [each for each in sys.path if (Path(each) / file).exists()]
    for folder in list(file.parents)[:-1]:
        package = ".".join(folder.parts)
        if package not in sys.modules:
            module = sys.modules[package] = ModuleType(package)
            module.__path__ = [str(Path(root) / folder)]
    return import_module(name)
