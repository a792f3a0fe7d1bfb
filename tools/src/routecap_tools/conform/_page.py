"""A report as one HTML page that needs nothing else."""

from __future__ import annotations

from html import escape

from ._checks import CHECKS
from ._judge import Report, Verdict

_HEAD = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>routecap conform</title>
<style>
:root { color-scheme: light dark; --soft: #6d6b78; --line: #d4d1c9; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 64rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.4rem; margin-bottom: .2rem; }
p { margin: .2rem 0; }
table { border-collapse: collapse; width: 100%; margin-top: 1.5rem; }
th { font-weight: 400; color: var(--soft); }
th, td { text-align: left; vertical-align: top; padding: .5rem .8rem .5rem 0; }
tr { border-bottom: 1px solid var(--line); }
small { color: var(--soft); display: block; font-size: .87rem; }
.passes { color: #23763c; } .fails { color: #c0262d; } .refuses, .not { color: #8f6400; }
td:nth-child(2) { font-weight: 600; white-space: nowrap; }
</style>
"""


def page(report: Report) -> str:
    """The page."""
    count = {name: 0 for name in ("passes", "fails", "refuses", "not run")}
    for verdict in report.verdicts:
        count[verdict.result] += 1
    counted = ", ".join(f"{number} {name}" for name, number in count.items() if number)
    rows = "".join(_row(verdict) for verdict in report.verdicts)
    return (
        f"{_HEAD}<h1>{escape(report.engine)}</h1><p>{escape(report.summary)} {counted}. "
        f"A check that was not run is no pass.</p><p><small>routecap conform {report.version}"
        f"</small></p><table><tr><th>check<th>result<th>what was seen</tr>{rows}</table></html>\n"
    )


def _row(verdict: Verdict) -> str:
    compared = verdict.compared
    seen = [f"<p>{escape(text)}</p>" for text in verdict.what]
    seen += [f"<small>like {escape(text)}</small>" for text in verdict.like]
    seen += [f"<small>{escape(text)}</small>" for text in verdict.notes]
    if compared.rows:
        seen.append(f"<small>{counted(verdict)}</small>")
    return (
        f"<tr><td>{verdict.check}<small>{escape(CHECKS[verdict.check])}</small>"
        f'<td class="{verdict.result.split()[0]}">{verdict.result}<td>{"".join(seen)}</tr>'
    )


def counted(verdict: Verdict) -> str:
    """What a check compared, in words."""
    compared = verdict.compared
    return (
        f"{compared.rows} rows compared; {compared.cells_different} of {compared.cells} cells "
        f"differ, {compared.rows_in_part} rows do in part, {compared.rows_other} are other ones, "
        f"{compared.cells_missing} cells are missing"
    )
