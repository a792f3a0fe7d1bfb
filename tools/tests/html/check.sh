#!/usr/bin/env bash
# Runs the main job, and looks at the page of routings in a real browser, Debian's Chromium without
# a window: what it shows, what happens when one points and clicks, that nothing is fetched and
# nothing goes wrong. Screenshots are left in build/html.
cd "$(dirname "$0")/../../.." && . dev/setup.sh
export ROUTECAP_CHECKED=1 # a slip in the order of calls is an error

need chromium=chromium
bash examples/run.sh | tee "$build/run.log"
[ "${PIPESTATUS[0]}" = 0 ] || exit 1
install_library > /dev/null
install_python
install_package
mkdir -p "$build/html"
export PYTHONPATH=$package
"$build/python/bin/python" tools/tests/html/check.py "$build/html" "$build/run" "$build/run.log"
