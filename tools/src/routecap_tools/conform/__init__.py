"""Judges an engine that returns routing: asks it for answers, and compares what has to be equal.

    def generate(requests): ...    # all at once; for each a list of outputs, one for each choice
    def routing(output): ...       # [rows, layers, k], -1 in missing cells; or a Routing; or None
    def tokens(output): ...        # token ids of the prompt and of what was generated

    engine = routecap_tools.conform.Functions("my engine 1.2", generate, routing, tokens)
    report = routecap_tools.conform.judge(engine, routecap.models.describe("config.json"), vocabulary=32000)
    print(report.status, [verdict for verdict in report.verdicts if verdict.result == "fails"])

`Http` is an engine behind a server. A check passes, fails, is refused by the engine, or is not run:
the last two are never a pass.
"""

from ._checks import CHECKS
from ._engines import Answer, CannotError, Engine, Functions, RefusedError, Request
from ._http import Http
from ._judge import Report, Verdict, judge
from ._page import counted, page

for _each in (Answer, CannotError, Engine, Functions, Http, RefusedError, Report, Request, Verdict):
    _each.__module__ = __name__  # where users find them

__all__ = [
    "CHECKS",
    "Answer",
    "CannotError",
    "Engine",
    "Functions",
    "Http",
    "RefusedError",
    "Report",
    "Request",
    "Verdict",
    "counted",
    "judge",
    "page",
]
