"""Convert routings from one kind of file to another, without loss.

IN and OUT are files or folders of the kinds that routecap.save names, told by their names: FILE.routecap holds one routing, FILE.tar and a folder
hold several, FILE.safetensors holds arrays that need no routecap to be read.
"""

import argparse

from .. import load, save
from .terminal import Terminal


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source", metavar="IN")
    parser.add_argument("target", metavar="OUT")


def run(arguments: argparse.Namespace, terminal: Terminal) -> int:
    samples = load(arguments.source, mmap=True, progress=terminal.track)
    save(arguments.target, samples, progress=terminal.track)
    terminal.line(f"{arguments.target}: {len(samples)} {'routing' if len(samples) == 1 else 'routings'}")
    return 0
