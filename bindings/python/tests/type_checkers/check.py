"""Says whether a type checker finds each mistake of typos.py, and nothing else.

Usage: check.py COMMAND..., to which the file is added.
"""

import re
import subprocess
import sys
from pathlib import Path

program = Path(__file__).with_name("typos.py")
lines = program.read_text().splitlines()
expected = {number for number, line in enumerate(lines, 1) if line.endswith("# wrong")}
output = subprocess.run([*sys.argv[1:], str(program)], text=True, stdout=subprocess.PIPE).stdout
found = {int(line) for line in re.findall(r"typos\.py:(\d+)(?::\d+)?(?: -|:) error", output)}
for number in sorted(expected ^ found):
    print(f"{'not found' if number in expected else 'no mistake'}: {lines[number - 1]}")
if not expected or expected != found:
    print(output)
    raise SystemExit(1)
print(f"{len(expected)} mistakes are found, and nothing else")
