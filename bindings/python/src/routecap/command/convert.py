"""Convert routings from one kind of file to another; what OUT cannot say is an error, unless
--allow names it.

The ending of a name says which kind of file it is:

  FILE.routecap     one routing in the serialised form FILE.tar          several in one archive
  FILE.safetensors  arrays that need no routecap to be read FILE.npy, .npy.b64, .b64, .routes.json,
  .nrlre1, .lists.json one, as servers send it: what such a file does not say is said by options,
  --experts above all none              a folder of files NAME.routecap

OUT is also a folder, whatever its ending, if it ends in a slash or is a folder already. Any other
ending of OUT is refused.
"""

import argparse

from .. import load, save
from .._files import kind_to_write
from .terminal import Terminal
from .wire import add_hints, add_options, hint_of, options_of


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source", metavar="IN")
    parser.add_argument("target", metavar="OUT")
    add_options(parser)
    add_hints(parser)


def run(arguments: argparse.Namespace, terminal: Terminal) -> int:
    kind_to_write(arguments.target)  # refused, if it is, before all of IN is read
    samples = load(arguments.source, mmap=True, progress=terminal.track, wire=hint_of(arguments))
    save(arguments.target, samples, progress=terminal.track, wire=options_of(arguments))
    terminal.line(
        f"{arguments.target}: {len(samples)} {'routing' if len(samples) == 1 else 'routings'}"
    )
    return 0
