"""What it costs to look inside: instructions of the calls of a step.

    off.py LIBRARY

The last two columns have a hook of the log that takes every line, and the load of the experts
counted. Valgrind's callgrind counts, so that the numbers are those of the code, whatever else the
machine does. off.c is the program.

It fails if the hook or counting the load costs a call of the engine's thread more than SPARE
instructions, or if counting adds more than LATER to filing, of which it is a part.
"""

import re
import subprocess
import sys
import tempfile
from pathlib import Path

root = Path(__file__).parents[2]
SPARE, LATER = 100, 0.4
CALLS = {
    "begin": "routecap_step_begin",
    "record, 4 layers": "routecap_layer_record",
    "snapshot": "routecap_step_snapshot",
    "issue": "routecap_step_issue",
    "filing": "routecap_capturer_progress",
    "finish of 256 requests": "routecap_request_finish_batch",
}
STEPS = 100


def counted(library: Path, folder: Path, *arguments: str) -> dict[str, float]:
    """Instructions of each call, a step."""
    out = folder / "callgrind.out"
    run = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={out}", str(folder / "off")]
    environment = {"LD_LIBRARY_PATH": str(library.parent), "LD_BIND_NOW": "1"}
    subprocess.run([*run, *arguments], env=environment, check=True, capture_output=True)
    annotate = ["callgrind_annotate", "--inclusive=yes", "--threshold=100", str(out)]
    listing = subprocess.run(annotate, check=True, capture_output=True, text=True).stdout
    numbers = {}
    for call, function in CALLS.items():
        name = re.escape(function)
        found = re.search(rf"^\s*([\d,]+) .*:{name}(?:'| |$)", listing, re.MULTILINE)
        if found is None:
            sys.exit(f"callgrind has not seen {function}")
        steps = 1 if function == "routecap_request_finish_batch" else STEPS
        numbers[call] = int(found[1].replace(",", "")) / steps
    return numbers


def main() -> None:
    library = Path(sys.argv[1]).resolve()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        link = [f"-I{root}/include", str(library), "-o", str(folder / "off")]
        source = str(root / "lab/bench/off.c")
        subprocess.run(["cc", "-std=c11", "-O2", source, *link], check=True)
        columns = {
            "neither": counted(library, folder),
            "a hook": counted(library, folder, "log"),
            "load": counted(library, folder, "load"),
        }
    print("Instructions of the calls of a step: 256 rows and requests, 4 layers, host backend\n")
    print(f"{'':28}", *(f"{column:>14}" for column in columns))
    for call in CALLS:
        print(f"{call:28}", *(f"{numbers[call]:14,.0f}" for numbers in columns.values()))
    expect_free(*columns.values())


def expect_free(neither: dict[str, float], hook: dict[str, float], load: dict[str, float]) -> None:
    for call in CALLS:
        for what, numbers in (("the hook", hook), ("counting the load", load)):
            if call != "filing" and numbers[call] > neither[call] + SPARE:
                sys.exit(f"{call}: {what} costs {numbers[call] - neither[call]:.0f}")
    later = load["filing"] / neither["filing"] - 1
    if later > LATER:
        sys.exit(f"filing takes {later:.1%} more where the load is counted")


if __name__ == "__main__":
    main()
