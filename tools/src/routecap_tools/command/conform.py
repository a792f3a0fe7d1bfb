"""Judge an engine that returns routing: ask it for answers, and compare what has to be equal.

ENGINE is the URL of a server, vLLM's or SGLang's or one that answers as these do, or
MODULE:NAME, an object of Python (`routecap_tools.conform.Functions`) or a function that makes it. The
engine has to be idle, but for these requests.

Exit status: 0 if every check that was run passes; 1 if one fails; 2 if it could not judge: an
error, nothing was compared, or a check that --require names, or for which an option gives
something (--against, --adapter, --update, --model), was not made. What the engine refuses or cannot
do is named in the first line, and is never a pass.
"""

import argparse
import importlib
import json
import os
import sys
from pathlib import Path
from typing import Any

from routecap import ArgumentError, Status
from routecap.models import describe

from ..conform import CHECKS, Engine, Http, Verdict, counted, judge, page
from ..doctor import routing_of_model
from .terminal import Terminal

_STYLES = {"fails": "red", "refuses": "yellow", "not run": "yellow"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("engine", metavar="ENGINE")
    parser.add_argument(
        "--config",
        metavar="PATH",
        help="the model's config.json: its experts, layers and vocabulary; required without --model",
    )
    parser.add_argument(
        "--model",
        metavar="PATH",
        help="a model for transformers: compares with what it chooses; includes --config",
    )
    parser.add_argument(
        "--against",
        metavar="ENGINE",
        help="another engine of the same model, such as one without drafts",
    )
    parser.add_argument("--adapter", metavar="NAME", help="an adapter that the engine has")
    parser.add_argument(
        "--update",
        metavar="COMMAND",
        help="a shell command that changes a server's weights and empties its cache",
    )
    parser.add_argument(
        "--body", metavar="JSON", help='what goes into each request, such as {"vllm_xargs": {...}}'
    )
    parser.add_argument(
        "--api", choices=("openai", "sglang"), help="of a server; default: it is found out"
    )
    parser.add_argument(
        "--require",
        metavar="CHECK",
        nargs="+",
        default=[],
        choices=[*CHECKS, "all"],
        help="exit status 2 if one of these was not run; all: any",
    )
    parser.add_argument(
        "--only", metavar="CHECK", nargs="+", default=[], choices=CHECKS, help="of the checks"
    )
    parser.add_argument("--tokens", metavar="N", type=int, default=48, help="of a prompt: 48")
    parser.add_argument("--generate", metavar="N", type=int, default=16, help="tokens: 16")
    parser.add_argument(
        "--requests", metavar="N", type=int, default=12, help="in the engine at once: 12"
    )
    parser.add_argument("--vocabulary", metavar="N", type=int, help="token ids are below")
    parser.add_argument("--seed", metavar="N", type=int, default=0, help="of the prompts: 0")
    parser.add_argument("--html", metavar="FILE", help="write the report as a page")
    parser.add_argument("--json", metavar="FILE", help="write the report as JSON; -: print it")


def run(arguments: argparse.Namespace, terminal: Terminal) -> int:
    config = arguments.config or arguments.model
    if not config:
        raise ArgumentError(
            Status.ERR_ARGUMENT, "give the model's configuration: --config, or --model"
        )
    model = describe(config)
    body = _body(arguments.body) if arguments.body else None

    def made(name: str) -> Engine:
        if "://" in name:
            return Http(name, model, body=body, api=arguments.api, update=arguments.update)
        return _of_python(name)

    def show(verdict: Verdict) -> None:
        if sys.stderr.isatty():  # the report's first line comes when all is known
            print(f"{verdict.result:8} {verdict.check}", file=sys.stderr)

    engine = made(arguments.engine)
    report = judge(
        engine,
        model,
        vocabulary=arguments.vocabulary or _vocabulary(config),
        beside=made(arguments.against) if arguments.against else None,
        adapter=arguments.adapter or "",
        live=routing_of_model(arguments.model) if arguments.model else None,
        needed=CHECKS if "all" in arguments.require else arguments.require,
        only=arguments.only,
        tokens=arguments.tokens,
        generated=arguments.generate,
        requests=arguments.requests,
        seed=arguments.seed,
        progress=show,
    )
    if arguments.html:
        Path(arguments.html).write_text(page(report), encoding="utf-8")
    if arguments.json != "-":
        terminal.title(f"{engine.name}: {report.summary}")
        for verdict in report.verdicts:
            _print(verdict, terminal)
    if arguments.json == "-":
        print(json.dumps(report.as_json()))
    elif arguments.json:
        Path(arguments.json).write_text(json.dumps(report.as_json(), indent=1) + "\n")
    return report.status


def _of_python(name: str) -> Engine:
    module, _, attribute = name.partition(":")
    if not attribute:
        raise ArgumentError(
            Status.ERR_ARGUMENT, f"{name}: give the URL of a server, or MODULE:NAME"
        )
    sys.path.insert(0, os.getcwd())
    try:
        found: Any = getattr(importlib.import_module(module), attribute)
    except AttributeError:
        raise ArgumentError(
            Status.ERR_ARGUMENT, f"{module} has no {attribute}: give MODULE:NAME of an engine"
        ) from None
    made: Any = found() if callable(found) and not hasattr(found, "generate") else found
    if not hasattr(made, "generate"):
        raise ArgumentError(
            Status.ERR_ARGUMENT,
            f"{name} is a {type(made).__name__} and no engine: give a routecap_tools.conform.Functions,"
            " or a function that makes one",
        )
    return made  # type: ignore[no-any-return]


def _body(text: str) -> dict[str, Any]:
    try:
        body = json.loads(text)
    except (ValueError, RecursionError) as reason:
        raise ArgumentError(
            Status.ERR_ARGUMENT, f"--body is no JSON ({reason}): give an object, {{...}}"
        ) from None
    if not isinstance(body, dict):
        raise ArgumentError(
            Status.ERR_ARGUMENT, "--body is no object of JSON: give one, such as {...}"
        )
    return body


def _vocabulary(config: str) -> int:
    path = Path(config)
    content = json.loads((path / "config.json" if path.is_dir() else path).read_bytes())
    part = content.get("text_config")
    size = (content | part if isinstance(part, dict) else content).get("vocab_size")
    if type(size) is not int:
        raise ArgumentError(Status.ERR_ARGUMENT, f"{path} has no vocab_size: give --vocabulary")
    return size


def _print(verdict: Verdict, terminal: Terminal) -> None:
    terminal.line(f"{verdict.result:8} {verdict.check}", _STYLES.get(verdict.result, ""))
    for text in verdict.what:
        terminal.line(f"    {text}")
    for text in verdict.like:
        terminal.line(f"    like {text}", "dim")
    for text in [*verdict.notes, *([counted(verdict)] if verdict.compared.rows else [])]:
        terminal.line(f"    {text}", "dim")
