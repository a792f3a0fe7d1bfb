#!/usr/bin/env python3
"""A corpus as one file: each input's length in four bytes, little endian, and its bytes; the
shorter first.

corpus.py unpack FILE FOLDER    writes each input to a file of its own
corpus.py pack FOLDER FILE      the other way round
"""

import hashlib
import sys
from pathlib import Path


def inputs(data):
    """The inputs of a packed corpus."""
    while data:
        size = int.from_bytes(data[:4], "little")
        yield data[4 : 4 + size]
        data = data[4 + size :]


def main(action, source, target):
    if action == "unpack":
        Path(target).mkdir(parents=True, exist_ok=True)
        for data in inputs(Path(source).read_bytes()):
            (Path(target) / hashlib.sha1(data).hexdigest()).write_bytes(data)
    elif action == "pack":
        found = {path.read_bytes() for path in Path(source).iterdir()}
        packed = b"".join(
            len(data).to_bytes(4, "little") + data
            for data in sorted(found, key=lambda data: (len(data), data))
        )
        Path(target).write_bytes(packed)
        print(f"{len(found)} inputs, {len(packed)} bytes")
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main(*sys.argv[1:]) if len(sys.argv) == 4 else sys.exit(__doc__)
