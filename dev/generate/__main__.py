"""Writes all that follows from the headers: for C, Python, Rust and Go, the baseline of the ABI, and
the table of threads in docs/.

    python3 dev/generate                  writes it
    python3 dev/generate --check          writes nothing; names what is stale or was forgotten
    python3 dev/generate --without rust   leaves out Rust's raw layer, which needs bindgen; likewise
                                          go: Go's, which needs Go and clang; missing: the layers
                                          whose programs are not here

A layer whose programs are not here is named, and the exit status is not 0 unless it is left out. Of
one that is left out, it is still said whether it is of these headers.
"""

import argparse
import re
import sys
from collections.abc import Iterator

sys.dont_write_bytecode = True  # no cache beside the sources

import c
import docs
import python
import raw
import rust
import vectors
from headers import ROOT, Headers

# Packages: where a function is used, and those that need none there.
PACKAGES = {
    "Python's package": ("bindings/python/src/routecap/*.py", ["routing_retain"]),
    "Rust's crate": ("bindings/rust/routecap/src/*.rs", []),
    "Go's package": ("bindings/go/[!z]*.go", []),
}

# Where they set the fields of a configuration.
CONFIGS = (
    "bindings/python/src/routecap/_config.py",
    "bindings/rust/routecap/src/config.rs",
    "bindings/go/capturer.go",
)


def generated(headers: Headers) -> dict[str, str]:
    parts = [part.files(headers) for part in (c, python, rust, docs, vectors)]
    return {name: text for part in parts for name, text in part.items()}


def layers(headers: Headers, without: list[str], found: list[str]) -> Iterator[tuple[str, str]]:
    """The raw layers and their texts; adds to `found` what was not made or is of other headers."""
    for layer, (what, name, lacks, digest, make) in raw.LAYERS.items():
        missing = lacks()
        if layer in without or (missing and "missing" in without):
            print(f"generate: {what} is left out")
            if digest() not in read(name)[:300]:
                found.append(f"{name} is of other headers")
        elif missing:
            found.append(f"{what} was not made: there is no {', no '.join(missing)}")
        else:
            try:
                yield name, make(headers)
            except raw.Failed as failure:
                found.append(f"{what} was not made: {failure}")


def forgotten(headers: Headers) -> Iterator[str]:
    for package, (pattern, without) in PACKAGES.items():
        paths = [each for each in ROOT.glob(pattern) if not each.name.endswith("_test.go")]
        used = set(re.findall(r"\broutecap_\w+", "".join(each.read_text() for each in paths)))
        for function in headers.functions:
            if function.name not in used and function.short not in without:
                yield f"{function.name} is not in {package}"
    [config] = (each for each in headers.structs if each.short == "config")
    for path in CONFIGS:
        words = set(re.findall(r"\w+", (ROOT / path).read_text().replace("_", "").lower()))
        for each in config.fields[config.sized :]:
            if each.name.replace("_", "") not in words:
                yield f"{config.name}.{each.name} is not in {path}"
    yield from c.forgotten(headers)
    yield from python.forgotten(headers)
    yield from docs.forgotten(headers)


def read(name: str) -> str:
    path = ROOT / name
    return path.read_text() if path.exists() else ""


def check(without: list[str]) -> int:
    headers = Headers()
    found: list[str] = []
    texts = generated(headers) | dict(layers(headers, without, found))
    stale = [f"{name} is stale" for name, text in texts.items() if text != read(name)]
    if stale:
        stale.append("run python3 dev/generate")
    found = [*stale, *found, *forgotten(headers)]
    for each in found:
        print(f"generate: {each}")
    print(f"generate: {'something' if found else 'nothing'} is stale or forgotten")
    return len(found) > 0


def write(without: list[str]) -> int:
    headers = Headers()
    found: list[str] = []
    for texts in (generated(headers).items(), layers(headers, without, found)):
        for name, text in texts:
            if text != read(name):
                (ROOT / name).write_text(text)
                print(f"generate: wrote {name}")
    for each in found:
        print(f"generate: {each}")
    return len(found) > 0


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="dev/generate",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--check", action="store_true", help="write nothing")
    parser.add_argument("--without", action="append", default=[], choices=[*raw.LAYERS, "missing"])
    arguments = parser.parse_args()
    return (check if arguments.check else write)(arguments.without)


if __name__ == "__main__":
    sys.exit(main())
