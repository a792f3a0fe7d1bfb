"""Convert routings from one kind of file to another, without loss.

The ending of a name says which kind of file it is:

  FILE.routecap     one routing in the serialised form
  FILE.tar          several in one archive
  FILE.safetensors  arrays that need no routecap to be read
  none              a folder of files NAME.routecap

OUT is also a folder, whatever its ending, if it ends in a slash or is a folder already. Any other
ending of OUT is refused.
"""

import argparse

from .. import load, save
from .._files import kind_to_write
from .terminal import Terminal


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source", metavar="IN")
    parser.add_argument("target", metavar="OUT")


def run(arguments: argparse.Namespace, terminal: Terminal) -> int:
    kind_to_write(arguments.target)  # refused, if it is, before all of IN is read
    samples = load(arguments.source, mmap=True, progress=terminal.track)
    save(arguments.target, samples, progress=terminal.track)
    terminal.line(f"{arguments.target}: {len(samples)} {'routing' if len(samples) == 1 else 'routings'}")
    return 0
