#!/usr/bin/env bash
# Small models of five families, with random weights, in transformers: clean runs, in which conform
# must find nothing, and runs with planted faults, which it must find, among these of adapters,
# updates and preemptions. prove.py does so with each engine: `check.sh` of its folder in
# integrations/. usage: check.sh [PREFIX of an installed library]
cd "$(dirname "$0")/../../.." && . dev/setup.sh
use_library "$@"
install_package
install_transformers
export PYTHONPATH=$package:integrations/transformers/tests/real OMP_NUM_THREADS=1
set +e
check "transformers, five families" "$transformers_python" tools/tests/conform/families.py --json "$build/conform_families.json"
closing
