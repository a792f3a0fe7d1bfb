"""Where and of what a benchmark was made: what its results begin with."""

import json
import os
import subprocess


def processor():
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        for line in file:
            if line.startswith("model name"):
                return line.split(": ", 1)[1].strip()
    return "unknown processor"


def commit():
    """Of the working directory, unless ROUTECAP_BENCH_COMMIT says what was built."""
    given = os.environ.get("ROUTECAP_BENCH_COMMIT")
    if given:
        return given
    try:
        found = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=12"],
            capture_output=True,
            text=True,
            check=False,
        )
    except OSError:
        return "unknown"
    return found.stdout.strip() or "unknown"


def save(path, **found):
    """Results as JSON: a title, what else there is to say, and the results."""
    with open(path, "w", encoding="utf-8") as file:
        json.dump({"commit": commit(), "processor": processor(), **found}, file, indent=1)
        file.write("\n")
