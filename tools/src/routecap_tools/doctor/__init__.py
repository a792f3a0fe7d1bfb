"""What is wrong with captured routing, and which published failure it resembles.

    report = routecap_tools.doctor.examine(routecap_tools.doctor.read("job.tar"), tokens={"request-7": ids})
    for finding in report.findings:
        print(finding.name, finding.what, finding.meaning, finding.like)

A check finds something, or finds nothing, or could not be made: `Report.not_checked` says why, and
that is never a pass. NumPy only; what a model is asked for needs torch and transformers.
"""

from ._case import Case
from ._cases import read, read_tokens
from ._examine import CHECKS, Finding, NotChecked, Report, examine
from ._model import routing_of_model

for _each in (Case, Finding, NotChecked, Report):
    _each.__module__ = __name__  # where users find them

__all__ = [
    "CHECKS",
    "Case",
    "Finding",
    "NotChecked",
    "Report",
    "examine",
    "read",
    "read_tokens",
    "routing_of_model",
]
