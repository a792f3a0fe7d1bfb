"""Convert routings from one kind of file to another.

The ending of a name says which kind of file it is:

  FILE.routecap     one routing in the serialised form
  FILE.tar          several routings in one archive
  FILE.safetensors  arrays that other programs can read without routecap
  FILE.npy, .npy.b64, .b64, .routes.json, .nrlre1, .lists.json
                    one routing as servers send it
  no ending         a folder of files NAME.routecap

OUT is also a folder if it ends in a slash, or if there is a folder of that name. Any other ending
of OUT is refused.

A file from a server does not say everything about the model. Give what it lacks as options, at
least --experts. If OUT cannot hold something that a routing says, this is an error, unless --allow
names it.
"""

import argparse

from routecap import load, save
from routecap.adapter import kind_to_write

from .terminal import Terminal
from .wire import add_hints, add_options, hint_of, options_of


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source", metavar="IN", help="file or folder to read")
    parser.add_argument("target", metavar="OUT", help="file or folder to write")
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
