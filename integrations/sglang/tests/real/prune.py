"""Take from SGLang's sources the models that no check loads: an engine imports every one that is
there when it starts.

    python3 prune.py FOLDER    where the package `sglang` is
"""

import re
import shutil
import sys
from pathlib import Path

KEPT = {"__init__", "registry", "qwen3_moe"}
# Where a module is loaded, and not later in a function.
IMPORTED = re.compile(r"^(?:from|import) sglang\.srt\.models\.(\w+)", re.MULTILINE)


def main():
    package = Path(sys.argv[1]) / "sglang"
    shutil.rmtree(package / "multimodal_gen", ignore_errors=True)
    models = package / "srt/models"
    pending = set(KEPT)
    for path in package.rglob("*.py"):
        if not {models, package / "srt/multimodal"} & set(path.parents):
            pending |= set(IMPORTED.findall(path.read_text()))
    kept = set()
    while pending:
        name = pending.pop()
        kept.add(name)
        file = models / f"{name}.py"
        files = [file] if file.exists() else list((models / name).rglob("*.py"))
        for each in files:
            pending |= set(IMPORTED.findall(each.read_text())) - kept
    for path in models.iterdir():
        if path.stem not in kept:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    print(len(list(models.iterdir())), "models are left")


main()
