#!/usr/bin/env bash
# The parts of the experiment, and all of it with a tiny model on the CPU: a base, all arms, a kill,
# the run that goes on from it, a report. usage: check.sh [PREFIX]
cd "$(dirname "$0")/../.." && . dev/setup.sh
export ROUTECAP_CHECKED=1 # a slip in the order of calls is an error

use_library "$@"
install_package
install_transformers
export HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 PYTHONPATH=$package:lab
set +e

tests "tests" "$transformers_python" -m pytest lab/frontier
closing
