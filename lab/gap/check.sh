#!/usr/bin/env bash
# Measures replay with the model of tests/model on the CPU, and runs the tests of the measurement
# and of ../grpo. usage: check.sh [PREFIX]
cd "$(dirname "$0")/../.." && . dev/setup.sh
export ROUTECAP_CHECKED=1 # a slip in the order of calls is an error

use_library "$@"
install_package
install_transformers
export HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 PYTHONPATH=$package:lab/gap:lab/grpo
set +e

check "replay brings a trainer's forward closer to the generation, wrong rows drive it away" \
    "$transformers_python" lab/gap/measure.py tests/model/weights --device cpu --json "$build/replay.json" --markdown "$build/replay.md"
cat "$build/replay.md"
tests "tests" "$transformers_python" -m pytest lab/gap/test_measure.py lab/grpo/test_rollouts.py
closing
