"""Clean runs of an engine, in which conform must find nothing, and runs with a planted fault, in
which it must.

    python3 prove.py NAME [--runs N] [--json FOLDER] [--beside NAME] [OPTION=VALUE...]

NAME is a module of the path with `engine(**options)`: an engine, its model's description, its
vocabulary, and what else `judge` takes; perhaps `features`, {name: function}: what the engine can
be asked for, which it does, refuses (ValueError) or does wrong (AssertionError); and perhaps
`checkpoint`: the folder of the model.

--beside NAME: makes the check `against` alone, which has to find the faults by itself. The other
engine is that of a module whose `engine` takes the folder, such as transformers_engine.

Prints a line for each run; exit status 0 if all is as it has to be.
"""

import argparse
import importlib
import json
import re
import sys
from pathlib import Path

from faults import FAULTS, Wrong

from routecap_tools import conform
from routecap_tools.conform._compare import Tally


def ask(name, feature):
    """What the engine does with a feature that it is asked for, as a verdict."""
    result, what = "passes", []
    try:
        feature()
    except (ValueError, NotImplementedError) as reason:
        result, what = "refuses", [str(reason)]
    except AssertionError as reason:
        result, what = "fails", [str(reason)]
    print(f"  {name}: {result} {'; '.join(what)}")
    return {"check": name, "result": result, "what": what}


def judged(engine, given, **more):
    """The report of one clean run, as JSON, with what the engine can be asked for. more: what else
    `judge` takes."""
    features = given.pop("features", {})
    given.pop("checkpoint", None)
    asked = [ask(name, feature) for name, feature in features.items()]
    report = conform.judge(engine, **given, **more)
    for each in report.verdicts:
        print(f"  {each.check}: {each.result} {'; '.join(each.what)}")
    status = report.status or int(any(each["result"] == "fails" for each in asked))
    verdicts = [*report.as_json()["verdicts"], *asked]
    return report.as_json() | {"status": status, "verdicts": verdicts}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("engine")
    parser.add_argument("options", nargs="*", metavar="OPTION=VALUE")
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--beside")
    arguments = parser.parse_intermixed_args()
    options = dict(each.split("=", 1) for each in arguments.options)
    engine, given = importlib.import_module(arguments.engine).engine(**options)
    features, checkpoint = given.pop("features", {}), given.pop("checkpoint", None)
    wrong, reports = 0, []
    shown = [each for each in arguments.options if "/" not in each]  # a path is this machine's
    if arguments.beside:
        features = {}
        given["beside"], _ = importlib.import_module(arguments.beside).engine(folder=checkpoint)
        given["only"] = given["needed"] = ["against"]
        shown = ["--beside", arguments.beside, *shown]
        name, capture = engine.name.rsplit(", ", 1)
        engine.name = f"{name}, beside {given['beside'].name.split(',')[0]}, {capture}"

    def run(what, engine, seed, must):
        nonlocal wrong
        report = conform.judge(engine, seed=seed, **given)
        found = [each.check for each in report.verdicts if each.result == "fails"]
        right = report.status == must and (not must or set(given.get("needed", ())) <= set(found))
        wrong += not right
        said = f"found by {', '.join(found)}" if found else "nothing is found"
        print(f"{'ok    ' if right else 'WRONG '} {what}, seed {seed}: {said}")
        if not right:
            for each in report.verdicts:
                for text in each.what if each.result == "fails" else ():
                    print(f"         {each.check}: {text}")
        sys.stdout.flush()
        command = " ".join(["prove.py", arguments.engine, *shown])
        reports.append({"what": what, "seed": seed, "command": command, **report.as_json()})
        return report

    asked = [ask(name, feature) for name, feature in features.items()]
    clean = [run("clean", engine, seed, must=False) for seed in range(arguments.runs)]
    if asked:
        wrong += any(each["result"] == "fails" for each in asked)
        reports[0]["verdicts"] = [*reports[0]["verdicts"], *asked]
    report = clean[-1]
    for each in report.verdicts:
        tally = Tally()
        for other in clean:
            tally.add(next(v.compared for v in other.verdicts if v.check == each.check))
        results = sorted(
            {v.result for other in clean for v in other.verdicts if v.check == each.check}
        )
        print(
            f"  {each.check}: {', '.join(results)}, {tally.rows} rows, {tally.cells_different} of "
            f"{tally.cells} cells differ, {tally.rows_in_part} rows do in part, "
            f"{tally.rows_other} are other, {tally.cells_missing} cells are missing {'; '.join([*each.what, *each.notes])}"
        )
    for fault in [*FAULTS, "swapped"]:
        run(fault, Wrong(engine, fault, 0), 0, must=True)
    if arguments.json:
        name = re.sub(r"[^\w.=]+", "-", f"{engine.name} {' '.join(shown)}").strip("-")
        arguments.json.mkdir(parents=True, exist_ok=True)
        (arguments.json / f"{name}.json").write_text(json.dumps(reports))
    print(f"{len(reports) - wrong} runs are right, {wrong} wrong")
    return wrong > 0


if __name__ == "__main__":
    sys.exit(main())
