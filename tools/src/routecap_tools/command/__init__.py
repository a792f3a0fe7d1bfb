"""The command routecap, also python -m routecap_tools."""

import argparse
import io
import os
import sys
import traceback
from collections.abc import Sequence

from routecap import Error, __version__

from . import bench, compare, conform, convert, coverage, doctor, info, show, top, trace
from .terminal import Terminal, printable
from .wire import in_options

_COMMANDS = {
    "info": info,
    "show": show,
    "compare": compare,
    "coverage": coverage,
    "trace": trace,
    "bench": bench,
    "convert": convert,
    "doctor": doctor,
    "conform": conform,
    "top": top,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line; return its exit status: 0, 1 where `compare`, `doctor` or `conform` found
    something, 2 for an error, 3 where `doctor` could not check.
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    parser = argparse.ArgumentParser(
        prog="routecap",
        description="Show, compare, convert and check the routing of mixture-of-experts models.",
    )
    parser.add_argument("--version", action="version", version=f"routecap {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    named = arguments[0] if arguments else ""
    # Help and errors list all; otherwise the options of the others are time for nothing.
    for name in [named] if named in _COMMANDS else _COMMANDS:
        module = _COMMANDS[name]
        text = (module.__doc__ or "").strip()
        command = commands.add_parser(
            name,
            help=text.splitlines()[0],
            description=text,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        module.add_arguments(command)
        command.set_defaults(run=module.run)
    parsed = parser.parse_args(arguments)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # whatever a name has, it can be written
            stream.reconfigure(errors="backslashreplace")
    try:
        status: int = parsed.run(parsed, Terminal())
        sys.stdout.flush()
        return status
    except BrokenPipeError:  # whoever read the output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 2
    except (Error, OSError, ImportError) as reason:
        print(f"routecap: {printable(in_options(str(reason)))}", file=sys.stderr)
        return 2
    except MemoryError as reason:
        print(f"routecap: there is not enough memory: {printable(str(reason))}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except Exception:  # a defect; Python's own status, 1, would say that something was found
        print(printable(traceback.format_exc(), keep="\n"), file=sys.stderr, end="")
        return 2
