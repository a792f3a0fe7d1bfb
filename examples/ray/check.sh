#!/usr/bin/env bash
# Runs the example and its tests with Ray from PyPI (80 MB), on two CPUs and an object store of 80
# MiB. usage: check.sh [PREFIX]
cd "$(dirname "$0")/../.." && . dev/setup.sh
export ROUTECAP_CHECKED=1 # a slip in the order of calls is an error

use_library "$@"
install_package
python_environment "$build/ray" ray==2.60.0 numpy==2.4.6 pytest==9.2.0
export PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=$package:examples/ray
set +e

check "the united routings are those of one rank" "$build/ray/bin/python" examples/ray/ranks.py
tests "tests" "$build/ray/bin/python" -m pytest examples/ray
closing
