"""Whether each artefact says whose it is, where the project is and under which licences everything
in it may be used. Prints what is not said.

usage: described.py DIST VERSION, in the project's root
"""

import io
import pathlib
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator

AUTHORS, ADDRESS = b"The routecap authors", b"github.com/routecap/routecap"
LICENCES = {
    name: pathlib.Path(folder, "LICENSE").read_bytes()
    for name, folder in {
        "Apache-2.0": ".",
        "BSD-2-Clause": "src/third_party/base64",
        "BSD-3-Clause": "src/third_party/crc32c",
        "CC0-1.0": "src/third_party/blake2",
    }.items()
}


def files(content: bytes, name: str) -> dict[str, bytes]:
    """What is in an artefact; in a Go proxy, also what is in the module."""
    found: dict[str, bytes] = {}
    if name.endswith((".whl", ".zip")):
        with zipfile.ZipFile(io.BytesIO(content)) as packed:
            return {each: packed.read(each) for each in packed.namelist()}
    if name.endswith(".deb"):
        command = ["dpkg-deb", "--fsys-tarfile", "/dev/stdin"]
        content = subprocess.run(command, input=content, stdout=subprocess.PIPE, check=True).stdout
    with tarfile.open(fileobj=io.BytesIO(content)) as packed:
        for member in packed:
            if member.isfile():
                found[member.name] = packed.extractfile(member).read()
    for inner in [each for each in found if each.endswith(".zip")]:
        found |= files(found[inner], inner)
    return found


def missing(path: pathlib.Path, version: str) -> Iterator[str]:
    name, content = path.name, path.read_bytes()
    inside = files(content, name)

    def file(ending: str) -> bytes:
        (only,) = [inside[each] for each in inside if each.endswith(ending)]
        return only

    licences = set(LICENCES)
    if name.startswith("routecap_"):  # Python alone: tools, or an integration
        licences = {"Apache-2.0"}
        said = file(".dist-info/METADATA" if name.endswith(".whl") else "/PKG-INFO")
        wanted = [AUTHORS, ADDRESS, *map(str.encode, licences)]
    elif name.endswith(".whl"):
        said, wanted = file(".dist-info/METADATA"), [AUTHORS, ADDRESS, *map(str.encode, licences)]
    elif name == f"routecap-{version}.tar.gz":
        said, wanted = file(f"routecap-{version}/PKG-INFO"), [AUTHORS, ADDRESS]
    elif name.endswith(".deb"):
        said = subprocess.run(["dpkg-deb", "-f", path], stdout=subprocess.PIPE, check=True).stdout
        said += file("/copyright")
        wanted = [AUTHORS, ADDRESS, *map(str.encode, licences)]
        if "-dev_" in name:  # headers alone, of which the copyright file says all
            licences = set()
    elif name.endswith(".crate"):
        said, wanted = file("/Cargo.toml"), [AUTHORS, ADDRESS, b"license = "]
        if "-sys-" not in name:  # routecap's own code alone
            licences = {"Apache-2.0"}
    elif name.endswith("-go.tar.gz"):
        said, wanted = file("/go.mod"), [ADDRESS]
    elif name.endswith("-source.tar.gz"):
        said, wanted = file("bindings/python/pyproject.toml"), [AUTHORS, ADDRESS]
    else:
        said, wanted = file("/routecap.pc"), [ADDRESS]
    for text in wanted:
        if text not in said:
            yield f"{name} does not say {text.decode()}"
    for licence in sorted(licences):
        if LICENCES[licence] not in inside.values():
            yield f"{name} has not the text of {licence}"


if __name__ == "__main__":
    dist, version = pathlib.Path(sys.argv[1]), sys.argv[2]
    artefacts = sorted(each for each in dist.iterdir() if each.name.startswith(("routecap", "lib")))
    found = [
        each for path in artefacts if path.suffix != ".json" for each in missing(path, version)
    ]
    print(*found, sep="\n")
    sys.exit(len(found) > 0 or len(artefacts) < 12)
