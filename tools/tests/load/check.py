"""Checks the example, and watches it as an operator does: a real Prometheus scrapes it, and is
asked every expression of the dashboard and of the alerts. Grafana's own schema reads the dashboard.

    check.py FOLDER GRAFANA        where Prometheus and its tool write; where Grafana's schema is
"""

import copy
import itertools
import json
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Callable
from pathlib import Path

import imbalance
import routecap
import routecap_tools.command
import routecap_tools.metrics
from imbalance import EXPERTS, K, LAYERS, ROWS, gains, windows

here = Path(__file__).parent
passed = 0


def check(what: str, good: bool, seen: object = "") -> None:
    global passed
    if not good:
        sys.exit(f"FAILED  {what}: {seen}")
    print(f"ok      {what}")
    passed += 1


def get(url: str, **parameters: object) -> bytes:
    query = f"?{urllib.parse.urlencode(parameters)}" if parameters else ""
    with urllib.request.urlopen(url + query, timeout=10) as answer:
        return answer.read()


def wait_for(what: str, done: Callable[[], object], seconds: float = 30) -> None:
    end = time.monotonic() + seconds
    while True:
        try:
            if done():
                return
        except OSError:
            pass  # nobody listens yet
        if time.monotonic() > end:
            sys.exit(f"FAILED  {what}: not after {seconds} s")
        time.sleep(0.1)


def free_port() -> int:
    with socket.socket() as socket_:
        socket_.bind(("127.0.0.1", 0))
        return socket_.getsockname()[1]


def check_gains() -> None:
    with routecap.Capturer(layers=LAYERS, k=K, experts=EXPERTS, rows=ROWS, load=True) as capturer:
        even, _, uneven, _ = map(gains, itertools.islice(windows(capturer), 4))
    check("an imbalance appears", even[0] < 1.5 and uneven[0] > 4, (even, uneven))
    check("it holds up a GPU", even[1] < 1.2 and uneven[1] > 3, (even, uneven))
    check("replicas even it out", uneven[2] < 1.1, uneven)


def check_rules(folder: Path) -> None:
    """Prometheus's own tool, about the alerts and when they fire."""
    for name in (routecap_tools.metrics.folder / "alerts.yml", here / "alerts_test.yml"):
        shutil.copy(name, folder)
    for command in (["check", "rules", "alerts.yml"], ["test", "rules", "alerts_test.yml"]):
        done = subprocess.run(["promtool", *command], cwd=folder, capture_output=True, text=True)
        check(f"promtool {' '.join(command)}", done.returncode == 0, done.stdout + done.stderr)


def check_schema(grafana: Path) -> None:
    """TypeScript holds the dashboard against Grafana's types, and finds what is wrong in others."""
    dashboard = json.loads((routecap_tools.metrics.folder / "dashboard.json").read_text())

    def rename(of: dict, name: str) -> None:
        of[f"{name}s"] = of.pop(name)

    mistakes: dict[str, Callable[[dict], object]] = {
        "a member that is none": lambda d: rename(d, "templating"),
        "a query without expression": lambda d: rename(d["panels"][0]["targets"][0], "expr"),
        "a unit that nobody reads": lambda d: rename(
            d["panels"][-1]["fieldConfig"]["defaults"], "unit"
        ),
        "a panel without width": lambda d: d["panels"][0]["gridPos"].pop("w"),
        "a panel of another kind": lambda d: d["panels"][0].update(type="graph"),
        "a way to refresh that is none": lambda d: d["templating"]["list"][1].update(refresh=7),
        "a version that is text": lambda d: d.update(schemaVersion="39"),
    }
    lines = ['import type { Dashboard } from "./dashboard";']
    lines.append(f"export const dashboard: Dashboard = {json.dumps(dashboard)};")
    for i, mistake in enumerate(mistakes.values()):
        wrong = copy.deepcopy(dashboard)
        mistake(wrong)
        lines.append("// @ts-expect-error")
        lines.append(f"export const wrong{i}: Dashboard = {json.dumps(wrong)};")
    shutil.copy(here / "dashboard.ts", grafana)
    (grafana / "check.ts").write_text("\n".join(lines))
    command = ["node_modules/.bin/tsc", "--noEmit", "--strict", "--skipLibCheck"]
    command += ["--module", "esnext", "--moduleResolution", "node", "check.ts"]
    done = subprocess.run(command, cwd=grafana, capture_output=True, text=True)
    check("the dashboard is one by Grafana's schema", done.returncode == 0, done.stdout)
    check(f"which finds each of {len(mistakes)} mistakes", True)


def check_metrics(url: str) -> None:
    text = get(url)
    done = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True)
    said = (done.stdout + done.stderr).decode()
    check("promtool check metrics has nothing to say", done.returncode == 0 and not said, said)


def check_dashboard(api: str) -> None:
    """Every panel has series, and few, with the variables as Grafana fills them in."""

    def series(expression: str) -> list[dict]:
        """As Grafana asks for a panel: a point for each step of the time that is shown."""
        end = time.time()
        ask = {"query": expression, "start": end - 60, "end": end, "step": 1}
        return json.loads(get(f"{api}/query_range", **ask))["data"]["result"]

    wait_for("a first scrape", lambda: series("routecap_steps_total"))
    check("there are many series", len(series("routecap_expert_chosen_total")) > 1000)
    dashboard = json.loads((routecap_tools.metrics.folder / "dashboard.json").read_text())
    values = {"__rate_interval": "4s", "__range": "60s"}
    for variable in dashboard["templating"]["list"]:
        if variable["type"] != "query":
            continue
        selector, label = re.fullmatch(r"label_values\((.*), (\w+)\)", variable["query"]).groups()
        for name, value in values.items():
            selector = selector.replace(f"${name}", value)
        found = json.loads(get(f"{api}/label/{label}/values", **{"match[]": selector}))["data"]
        check(f"the variable {variable['name']} has a choice", len(found) == 1, found)
        values[variable["name"]] = f"({'|'.join(map(re.escape, found))})"
    asked = 0
    for panel in dashboard["panels"]:
        for target in panel["targets"]:
            expression = target["expr"]
            for name, value in values.items():
                expression = expression.replace(f"${name}", value.replace("\\", "\\\\"))
            wait_for(f"{panel['title']}: series of {expression}", lambda: series(expression))
            legend = set(re.findall(r"{{(\w+)}}", target["legendFormat"]))
            shown = series(expression)
            labels = set.intersection(*(set(each["metric"]) for each in shown))
            check(f"panel: {panel['title']}", legend <= labels, (legend, labels))
            check(f"it shows {len(shown)} series", len(shown) <= 10)
            names = {tuple(each["metric"][label] for label in legend) for each in shown}
            check("each of a name of its own", len(names) == len(shown), shown)
            asked += 1
    check("every panel asks for something", asked >= len(dashboard["panels"]), asked)


def check_alerts(api: str) -> None:
    rules = json.loads(get(f"{api}/rules"))["data"]["groups"][0]["rules"]
    check("every alert is evaluated", {rule["health"] for rule in rules} == {"ok"}, rules)

    def pending() -> bool:
        alerts = json.loads(get(f"{api}/alerts"))["data"]["alerts"]
        return {a["labels"]["alertname"] for a in alerts} == {"RoutecapExpertImbalance"}

    wait_for("the imbalance alone is pending as an alert", pending)
    check("the imbalance alone is pending as an alert", True)


def check_watched(folder: Path) -> None:
    port, at = free_port(), free_port()
    url, api = f"http://127.0.0.1:{port}/metrics", f"http://127.0.0.1:{at}/api/v1"
    (folder / "prometheus.yml").write_text(
        "global: {scrape_interval: 1s, evaluation_interval: 1s}\n"
        "rule_files: [alerts.yml]\n"
        "scrape_configs:\n"
        f"  - {{job_name: engine, static_configs: [{{targets: ['127.0.0.1:{port}']}}]}}\n"
    )
    shutil.rmtree(folder / "data", ignore_errors=True)
    engine = [sys.executable, imbalance.__file__, "--port", str(port)]
    prometheus = ["prometheus", "--config.file=prometheus.yml", "--storage.tsdb.path=data"]
    prometheus.append(f"--web.listen-address=127.0.0.1:{at}")
    with (
        open(folder / "prometheus.log", "w") as log,
        subprocess.Popen(engine, stdout=subprocess.DEVNULL) as first,
        subprocess.Popen(prometheus, cwd=folder, stdout=log, stderr=log) as second,
    ):
        try:
            wait_for("the example answers", lambda: get(url))
            check_metrics(url)
            wait_for("Prometheus has its rules", lambda: b"Routecap" in get(f"{api}/rules"))
            check_dashboard(api)
            check_alerts(api)
            top = routecap_tools.command.main(["top", url, "--interval", "1", "--count", "1"])
            check("routecap top shows it", top == 0, top)
        finally:
            first.terminate()
            second.terminate()


def main() -> None:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    check_gains()
    check_rules(folder)
    check_schema(Path(sys.argv[2]))
    check_watched(folder)
    print(f"{passed} checks passed, 0 failed")


if __name__ == "__main__":
    main()
