"""A release of vLLM without its kernels: python3 fetch.py VERSION FOLDER

Only Python and data files are read out of the wheel on PyPI, by ranges of its bytes: 15 MB in the
place of 500. The release calls itself one for the CPU, as vLLM chooses its platform by that.
"""

import functools
import io
import json
import subprocess
import sys
import urllib.request
from pathlib import Path
from zipfile import ZipFile

PART = 2**20  # bytes that are fetched at once


class Remote(io.RawIOBase):
    """A file on a server, of which the parts are fetched that are read."""

    def __init__(self, url: str):
        self.url, self.at = url, 0
        with urllib.request.urlopen(urllib.request.Request(url, method="HEAD")) as answer:
            self.size = int(answer.headers["Content-Length"])
        self.part = functools.lru_cache(maxsize=8)(self.fetch)

    def fetch(self, number: int) -> bytes:
        first, last = number * PART, min((number + 1) * PART, self.size) - 1
        request = urllib.request.Request(self.url, headers={"Range": f"bytes={first}-{last}"})
        with urllib.request.urlopen(request) as answer:
            content = answer.read()
        assert len(content) == last - first + 1, f"{self.url} is not served in ranges"
        return content

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self.at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self.at, io.SEEK_END: self.size}[whence]
        return self.at

    def tell(self) -> int:
        return self.at

    def read(self, count: int = -1) -> bytes:
        end, found = self.size if count < 0 else min(self.at + count, self.size), b""
        while self.at < end:
            number, begin = divmod(self.at, PART)
            found += self.part(number)[begin : begin + end - self.at]
            self.at = min(end, (number + 1) * PART)
        return found


def wheel(version: str) -> ZipFile:
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    pip += ["--dry-run", "--report", "-", "--no-deps", "--ignore-installed"]
    pip += ["--ignore-requires-python", "--only-binary", ":all:", f"vllm=={version}"]
    [found] = json.loads(subprocess.check_output(pip))["install"]
    return ZipFile(Remote(found["download_info"]["url"]))


def main() -> None:
    version, folder = sys.argv[1], Path(sys.argv[2])
    archive = wheel(version)
    for name in sorted(archive.namelist(), key=lambda name: archive.getinfo(name).header_offset):
        about = name.startswith(f"vllm-{version}.dist-info/")
        if about or name.startswith("vllm/") and name.endswith((".py", ".json")):
            archive.extract(name, folder)
    about = folder / f"vllm-{version}.dist-info" / "METADATA"
    text = about.read_text()
    line = f"\nVersion: {version}\n"
    assert line in text, f"{about} does not say that it is {version}"
    about.write_text(text.replace(line, f"\nVersion: {version}+cpu\n"))


if __name__ == "__main__":
    main()
