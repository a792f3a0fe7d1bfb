"""Writes what follows from the headers.

    python3 dev/generate                     writes it
    python3 dev/generate --check [FOLDER]    writes nothing; names what is stale or was
                                                 forgotten, for the headers in FOLDER or else those
                                                 of the project

The raw layers of Rust and Go have generators of their own, which need more than Python.
"""

import hashlib
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

sys.dont_write_bytecode = True  # no cache beside the sources

import c
import docs
import python
import rust
from headers import ROOT, Headers

# Packages: where a function is used, and those that need none there.
PACKAGES = {
    "Python's package": ("bindings/python/src/routecap/*.py", ["routing_retain"]),
    "Rust's crate": ("bindings/rust/routecap/src/*.rs", []),
    "Go's package": ("bindings/go/[!z]*.go", []),
}


def generated(headers: Headers) -> dict[str, str]:
    parts = [part.files(headers) for part in (c, python, rust, docs)]
    return {name: text for part in parts for name, text in part.items()}


def stale(headers: Headers) -> Iterator[str]:
    for name, text in generated(headers).items():
        if text != read(name):
            yield f"{name} is stale: run python3 dev/generate"
    texts = [headers.folder / "routecap.h", *sorted(headers.folder.glob("routecap/*.h"))]
    digest = hashlib.sha256(b"".join(each.read_bytes() for each in texts)).hexdigest()
    if digest not in read("bindings/rust/routecap-sys/src/bindings.rs").split("\n", 1)[0]:
        yield "Rust's raw layer is stale: run bash bindings/rust/generate.sh"
    single = subprocess.run(
        ["sh", ROOT / "dev/single.sh", headers.folder], stdout=subprocess.PIPE, check=True
    )
    if hashlib.sha256(single.stdout).hexdigest() not in read("bindings/go/zz_generated.go")[:300]:
        yield "Go's raw layer is stale: run go generate in bindings/go"


def forgotten(headers: Headers) -> Iterator[str]:
    for package, (pattern, without) in PACKAGES.items():
        paths = [each for each in ROOT.glob(pattern) if not each.name.endswith("_test.go")]
        used = set(re.findall(r"\broutecap_\w+", "".join(each.read_text() for each in paths)))
        for function in headers.functions:
            if function.name not in used and function.short not in without:
                yield f"{function.name} is not in {package}"
    yield from c.forgotten(headers)
    yield from python.forgotten(headers)
    yield from docs.forgotten(headers)


def read(name: str) -> str:
    path = ROOT / name
    return path.read_text() if path.exists() else ""


def main(arguments: list[str]) -> int:
    if arguments[:1] == ["--check"]:
        headers = Headers(*map(Path, arguments[1:]))
        found = [*stale(headers), *forgotten(headers)]
        for each in found:
            print(f"generate: {each}")
        print(f"generate: {len(found)} places are stale or forgotten")
        return len(found) > 0
    for name, text in generated(Headers()).items():
        if text != read(name):
            (ROOT / name).write_text(text)
            print(f"generate: wrote {name}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
