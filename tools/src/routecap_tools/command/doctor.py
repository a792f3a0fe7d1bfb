"""Find what is wrong with routings, and which published failure it resembles.

FILE is one of these:

  FILE.routecap, FILE.tar, FILE.safetensors
  FILE.npy          an array [rows, layers, k]
  FILE.npz          several such arrays, each under its name
  FILE.json         a server's whole answer
  a message as a server sent it, or the bytes of a sequence
  a folder of .routecap files or of messages

Several FILEs are examined together. The more options you give, the more can be checked. A check
that could not be made is listed, and never counts as passed.

Exit status: 0 if nothing was found; 1 if something was found; 2 for an error; 3 if nothing was
found, but a check that an option asks for could not be made (with --strict: any check).
"""

import argparse
import json
from dataclasses import replace

from routecap import ArgumentError, Status
from routecap.models import describe

from ..doctor import Case, Report, examine, read, read_tokens, routing_of_model
from .terminal import Terminal
from .wire import add_hints, hint_of


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", metavar="FILE", nargs="+", help="routings; see above")
    parser.add_argument(
        "--tokens",
        metavar="FILE",
        help=(
            "the token ids: a JSON list, a JSON object with a list for each name, .npy or .npz. "
            "Finds wrong lengths, shifts, and rows of other texts"
        ),
    )
    parser.add_argument(
        "--against",
        metavar="FILE",
        help="another capture of the same texts. Compares cell by cell, and finds a shift",
    )
    parser.add_argument(
        "--config",
        metavar="PATH",
        help="the model's config.json. Checks experts, k, and which layers are MoE layers",
    )
    parser.add_argument(
        "--model",
        metavar="PATH",
        help=(
            "a model that transformers can load. Compares with the experts that it chooses for "
            "the tokens. Includes --config"
        ),
    )
    parser.add_argument(
        "--control",
        action="store_true",
        help=(
            "test the doctor itself: --against and --model must find the shift in a copy that is "
            "shifted by one row"
        ),
    )
    parser.add_argument(
        "--strict", action="store_true", help="exit status 3 if any check could not be made"
    )
    parser.add_argument(
        "--json", action="store_true", help="print everything as one JSON object instead"
    )
    add_hints(parser, judged=False)


def run(arguments: argparse.Namespace, terminal: Terminal) -> int:
    config = arguments.config or arguments.model
    model, hint = describe(config) if config else None, hint_of(arguments)
    cases: dict[str, Case] = {}
    for file in arguments.files:
        for name, case in read(file, model=model, **hint).items():
            own = f"{file}:{name}" if name in cases else name
            cases[own] = replace(case, name=own)
    if not cases:
        raise ArgumentError(
            Status.ERR_ARGUMENT,
            f"no routing in {', '.join(arguments.files)}: name a file, or a folder or archive that"
            " has NAME.routecap in it",
        )
    report = examine(
        cases,
        tokens=read_tokens(arguments.tokens) if arguments.tokens else None,
        against=read(arguments.against, model=model, **hint) if arguments.against else None,
        model=model,
        live=routing_of_model(arguments.model) if arguments.model else None,
        control=arguments.control,
    )
    if arguments.json:
        print(json.dumps(_described(report)))
    else:
        _print(report, terminal)
    if report.findings:
        return 1
    return 3 if any(each.asked or arguments.strict for each in report.not_checked) else 0


def _described(report: Report) -> dict[str, object]:
    return {
        "findings": [each._asdict() for each in report.findings],
        "not_checked": [each._asdict() for each in report.not_checked],
        "checked": {name: list(checks) for name, checks in report.checked.items()},
        "notes": [{"name": name, "note": note} for name, note in report.notes],
    }


def _print(report: Report, terminal: Terminal) -> None:
    for name, checks in report.checked.items():
        found = [each for each in report.findings if each.name == name]
        terminal.title(f"{name}: {len(found) or 'no'} finding{'s' * (len(found) != 1)}")
        for each in found:
            terminal.line(f"  {each.check}: {each.what}", "red")
            terminal.line(f"    {each.meaning}")
            terminal.line(f"    like {each.like}", "dim")
        for owner, note in report.notes:
            if owner == name:
                terminal.line(f"  {note}")
        terminal.line(f"  checked: {', '.join(checks) or 'nothing'}")
        for skipped in report.not_checked:
            if skipped.name == name:
                terminal.line(f"  not checked: {skipped.check}: {skipped.why}", "yellow")
